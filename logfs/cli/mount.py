"""`logfs mount`: mount log directories, or make a write-behind mount; in the background unless `-f` is given."""

from __future__ import annotations

import argparse
import os
import signal
import socket
import stat
import sys
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from logfs.cli.common import address_argument, path_argument
from logfs.cli.mirror import add_source, source_of
from logfs.cli.service_manager import notify
from logfs.errors import InvalidSetting, InvalidStore, InvalidUsage, did_you_mean

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from logfs.mount.mounted_mirror import MirrorOptions

# Options of mount(8) that logfs ignores, besides those that begin with a word of `_IGNORED_BEGINNINGS`.
_IGNORED = frozenset(
    {
        "auto",
        "noauto",
        "user",
        "nouser",
        "users",
        "owner",
        "group",
        "nofail",
        "_netdev",
        "defaults",
        "nosuid",
        "nodev",
        "suid",
        "dev",
        "async",
        "default_permissions",
    }
)
_IGNORED_BEGINNINGS = ("x-", "X-", "user=", "uhelper=", "comment=")
# `_FUSE_OPTIONS` are passed to FUSE unchanged. `_REMOUNT_ONLY` are used only by a remount. A new mount ignores them,
# because they are its defaults or have no effect on it.
_FUSE_OPTIONS = frozenset({"noexec", "noatime", "sync", "dirsync"})
_REMOUNT_ONLY = frozenset(
    {
        "exec",
        "atime",
        "diratime",
        "nodiratime",
        "relatime",
        "norelatime",
        "strictatime",
        "nostrictatime",
    }
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments: log directories, the mountpoint, and mount options."""
    parser.add_argument(
        "paths",
        nargs="+",
        type=path_argument,
        metavar="PATH",
        help=(
            "LOGDIR… MOUNTPOINT; a missing or empty LOGDIR becomes a new store. "
            "With --write-behind: the mountpoint of a store, and a MOUNTPOINT"
        ),
    )
    parser.add_argument(
        "-o",
        action="append",
        default=[],
        metavar="OPTION,…",
        dest="options",
        help=(
            "allow_other (other users can access the mount; mode bits control permissions), "
            "isolation=read_committed (hide aborted and open transactions), "
            "nonempty (hide the contents of the MOUNTPOINT), "
            "remount (change ro, rw, noexec or access times of an existing mount); "
            "and as in mount(8): ro, rw, exec, noexec, sync, dirsync, atime, noatime, diratime, nodiratime, "
            "relatime, norelatime, strictatime, nostrictatime"
        ),
    )
    parser.add_argument(
        "--read-only", action="store_true", help="do not write, lock or repair the log directories"
    )
    parser.add_argument(
        "--write-behind",
        action="store_true",
        help=(
            "mount only `append` and `append.jsonl` of the store mounted at the first PATH; small writes are "
            "collected in the page cache, and can be read after --linger-ms (also -o write_behind,linger_ms=N)"
        ),
    )
    parser.add_argument(
        "--linger-ms",
        type=int,
        metavar="N",
        help="how long a write may be collected, 1 to 60,000 ms, 5 by default",
    )
    parser.add_argument(
        "-f", "--foreground", action="store_true", help="do not go to the background"
    )
    parser.add_argument(
        "--mirror",
        metavar="HOST:PORT",
        help="follow the topics of a Kafka cluster into the LOGDIR while it is mounted, as `logfs mirror` does",
    )
    add_source(parser)
    parser.add_argument(
        "--metrics-listen",
        type=address_argument,
        metavar="[ADDRESS:]PORT",
        help=(
            "serve the metrics over HTTP at /metrics, for Prometheus; the ADDRESS is 127.0.0.1 by default, "
            "and only there are they hidden from other machines"
        ),
    )
    # The source to show in the mount table. `mount_helper` passes it if the fstab line names several log directories.
    parser.add_argument("--source", help=argparse.SUPPRESS)
    parser.add_argument("--log-file", type=Path, help="the file for the daemon's log messages")


def run(arguments: argparse.Namespace) -> int:
    """Mount, or change an existing mount. Return 0 when the mount is ready, or with `-f` when it has ended.

    Return 1 if the daemon ends before the mount is ready. Raises `InvalidUsage` for wrong options, and `InvalidStore`
    and `InvalidSetting` for other wrong arguments.
    """
    import logging

    logging.basicConfig(
        level=logging.INFO,
        format="%(asctime)s logfs %(levelname)s %(message)s",
        filename=arguments.log_file,
        force=True,
    )
    if "remount" in _words(arguments):
        return _remount(arguments)
    serve = _session(arguments)
    mountpoint = arguments.paths[-1].absolute()
    if arguments.foreground:

        def ready() -> None:
            print(f"{mountpoint}: ready", flush=True)
            try:
                notify("READY=1", f"STATUS=mounted on {mountpoint}")
            except OSError as error:
                # Only warn: the mount works, and NOTIFY_SOCKET may belong to a service that has started this shell.
                logging.warning(
                    "cannot tell systemd by NOTIFY_SOCKET that the mount is ready: %s", error
                )

        serve(ready=ready)
        return 0
    return _in_background(serve)


def _words(arguments: argparse.Namespace) -> list[str]:
    """Return the individual mount options, without those that only mount(8) itself uses."""
    words = [word for option in arguments.options for word in option.split(",") if word]
    return [w for w in words if w not in _IGNORED and not w.startswith(_IGNORED_BEGINNINGS)]


def _remount(arguments: argparse.Namespace) -> int:
    """Change the flags of the mount at the mountpoint as the options `-o` and `--read-only` say, and return 0.

    Log directories and all other options in the arguments are ignored. Raises the errors of
    `logfs.mount.remount.remount`.
    """
    from logfs.mount.remount import remount

    words = [word for word in _words(arguments) if word not in ("remount", "nonempty")]
    remount(arguments.paths[-1], ["ro", *words] if arguments.read_only else words)
    return 0


def _session(arguments: argparse.Namespace) -> Callable[..., None]:
    """Return a function that mounts, and serves the mount until its end.

    The function has a parameter `ready`, a callback that it calls when the mount can be used.
    """
    words = _words(arguments)
    try:
        if arguments.write_behind or "write_behind" in words:
            return _write_behind_session(arguments, words)
        return _store_session(arguments, words)
    except ImportError as error:
        raise InvalidStore(
            f"the mount needs pyfuse3 and trio ({error}); install logfs[mount]"
        ) from None


def _store_session(arguments: argparse.Namespace, words: list[str]) -> Callable[..., None]:
    from logfs.log.read.read_committed import Isolation, isolation_level
    from logfs.mount.session import MountOptions, run

    *log_dirs, mountpoint = arguments.paths
    if not log_dirs:
        raise InvalidUsage(f"{mountpoint}: give at least one LOGDIR before the MOUNTPOINT")
    if arguments.linger_ms is not None:
        raise InvalidUsage(
            "--linger-ms: has an effect only with --write-behind; add --write-behind, or leave --linger-ms out"
        )
    read_only = arguments.read_only
    allow_other = nonempty = False
    isolation = Isolation.READ_UNCOMMITTED
    fuse = set()
    for word in words:
        if word in ("ro", "rw"):
            read_only = word == "ro" or arguments.read_only
        elif word == "allow_other":
            allow_other = True
            _warn_of_closed(log_dirs[0])
        elif word == "nonempty":
            nonempty = True
        elif word in _FUSE_OPTIONS:
            fuse.add(word)
        elif word.startswith("isolation="):
            try:
                isolation = isolation_level(word.removeprefix("isolation="))
            except InvalidSetting as error:
                raise InvalidUsage(f"-o {word}: {error}") from None
        elif word not in _REMOUNT_ONLY:
            raise _no_such_option(word)
    options = MountOptions(
        log_dirs=[path.absolute() for path in log_dirs],
        mountpoint=mountpoint.absolute(),
        read_only=read_only,
        allow_other=allow_other,
        isolation=isolation,
        nonempty=nonempty,
        source=arguments.source,
        fuse_options=frozenset(fuse),
        mirror=_mirror(arguments, read_only=read_only),
        metrics_address=arguments.metrics_listen,
    )
    return partial(run, options)


def _mirror(arguments: argparse.Namespace, *, read_only: bool) -> MirrorOptions | None:
    """Return the options for mirroring a Kafka cluster into the log directory (`--mirror`); None without `--mirror`.

    Raises `InvalidUsage` if `--mirror` is given for a read-only mount, or if `--topics` or `--command-config` is
    given without `--mirror`. Also raises the errors of `source_of`.
    """
    from logfs.mount.mounted_mirror import MirrorOptions

    if arguments.mirror is None:
        if arguments.topics is not None or arguments.command_config is not None:
            raise InvalidUsage(
                "--topics, --command-config: need --mirror HOST:PORT; give it, or leave them out"
            )
        return None
    if read_only:
        raise InvalidUsage("--mirror: a read-only mount cannot mirror; mount it writable")
    return MirrorOptions(arguments.mirror, *source_of(arguments))


def _write_behind_session(arguments: argparse.Namespace, words: list[str]) -> Callable[..., None]:
    from logfs.mount.write_behind.session import DEFAULT_LINGER_MS, WriteBehindOptions, run

    if len(arguments.paths) != 2:
        raise InvalidUsage(
            "--write-behind: give two paths, the mountpoint of a store and an empty directory to mount on"
        )
    main, mountpoint = arguments.paths
    linger_ms = arguments.linger_ms
    fuse = set()
    for word in words:
        if word.startswith("linger_ms="):
            if linger_ms is not None:
                raise InvalidUsage("linger_ms: is given twice; give it once")
            linger_ms = _milliseconds(word)
        elif word in _FUSE_OPTIONS:
            fuse.add(word)
        elif word not in ("write_behind", "allow_other", "nonempty", "rw", *_REMOUNT_ONLY):
            raise _no_such_option(word)
    if arguments.read_only:
        raise InvalidUsage(
            "--write-behind: this mount takes appends, so it cannot be read-only; leave out --read-only"
        )
    if arguments.mirror is not None:
        raise InvalidUsage(
            "--mirror: not with --write-behind; give it to the mount of the log directories"
        )
    if arguments.metrics_listen is not None:
        raise InvalidUsage(
            "--metrics-listen: not with --write-behind; give it to the mount of the log directories"
        )
    options = WriteBehindOptions(
        mount=main.absolute(),
        mountpoint=mountpoint.absolute(),
        linger_ms=DEFAULT_LINGER_MS if linger_ms is None else linger_ms,
        allow_other="allow_other" in words,
        nonempty="nonempty" in words,
        fuse_options=frozenset(fuse),
    )
    return partial(run, options)


def _milliseconds(word: str) -> int:
    name, _, value = word.partition("=")
    try:
        return int(value)
    except ValueError:
        raise InvalidUsage(f"-o {name}={value}: give a number of milliseconds") from None


def _no_such_option(word: str) -> InvalidUsage:
    known = ("allow_other", "nonempty", "isolation", "linger_ms", "ro", "rw", *_FUSE_OPTIONS)
    name = word.partition("=")[0]
    hint = "" if name in known else did_you_mean(name, known)
    return InvalidUsage(
        f"-o {word}: no such mount option for this kind of mount{hint}; 'logfs mount --help' lists them"
    )


def _warn_of_closed(log_dir: Path) -> None:
    """Print a warning if not all users will be able to access a mount with `allow_other`.

    The mode of the first log directory decides this, because the root of the mount has the same mode.
    """
    try:
        is_open = log_dir.stat().st_mode & stat.S_IXOTH
    except OSError:
        # The log directory does not exist. The mount will create it without access for other users.
        is_open = False
    if not is_open:
        print(
            "logfs: allow_other: other users can access the mount only if they can enter the log directory; run "
            f"chmod 755 {log_dir}",
            file=sys.stderr,
        )


def _in_background(serve: Callable[..., None]) -> int:
    """Fork twice to start the daemon, and wait until the mount is ready. Return 0, or print the error and return 1.

    `serve` is a function that `_session` returns. Call `_in_background` before locks are taken, threads are started
    or anything is mounted: the daemon would not have them after the fork. Only the original process returns. After
    Ctrl-C, the daemon unmounts when the mount is ready, and this function raises `KeyboardInterrupt` when the daemon
    has ended; after a second Ctrl-C at once.
    """
    here, there = socket.socketpair()
    # A Ctrl-C before the handler is set would leave the daemon alone.
    unblocked = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    if os.fork():
        there.close()
        return _await_daemon(here, unblocked)
    here.close()
    os.setsid()
    if os.fork():
        os._exit(0)
    signal.pthread_sigmask(signal.SIG_SETMASK, unblocked)
    code = 1
    try:
        code = _daemon(serve, there)
    finally:
        os._exit(code)


def _await_daemon(daemon: socket.socket, unblocked: Iterable[int]) -> int:
    """Read the answer of `_daemon` in the process that has started it, with the signal mask `unblocked`."""
    interrupts: list[int] = []

    def interrupt(number: int, _: object) -> None:
        interrupts.append(number)
        if len(interrupts) > 1:
            raise KeyboardInterrupt
        daemon.shutdown(socket.SHUT_WR)

    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, interrupt)
    signal.pthread_sigmask(signal.SIG_SETMASK, unblocked)
    with daemon, daemon.makefile("rb") as answers:
        answer = os.fsdecode(answers.read())
    if answer == "ready":
        # The mount stays, so Ctrl-C must not end the rest of this process, either.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        return 0
    if interrupts:
        raise KeyboardInterrupt
    died = "logfs: the daemon died before the mount was ready; mount with --foreground to see why"
    print(answer or died, file=sys.stderr)
    return 1


def _daemon(serve: Callable[..., None], starter: socket.socket) -> int:
    """Run `serve` in the daemon, until the mount is unmounted, and return the exit code.

    `serve` is a function that `_session` returns. The word `ready`, or one line with an error, is sent to `starter`,
    the process that has started the daemon, and the connection is closed. If that process has ended, or has shut down
    its side of the connection, before the mount is ready, the mount ends.
    """
    import logging

    from logfs.errors import LogfsError

    logger = logging.getLogger(__name__)

    def tell(text: str) -> None:
        # Send only once. After the connection is closed, its descriptor may belong to another file, perhaps a
        # segment.
        if starter.fileno() < 0:
            logger.error("the daemon ends: %s", text)
            return
        with suppress(OSError), starter:
            starter.sendall(os.fsencode(text))

    def ready() -> None:
        starter.setblocking(False)
        try:
            has_left = not starter.recv(1)
        except BlockingIOError:
            has_left = False
        starter.setblocking(True)
        if has_left:
            os.kill(os.getpid(), signal.SIGTERM)
        else:
            tell("ready")
        _detach_from_terminal()

    try:
        os.chdir("/")
        serve(ready=ready)
    except (LogfsError, OSError) as error:
        where = f"{error.filename}: " if isinstance(error, OSError) and error.filename else ""
        text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        tell(f"logfs: {where}{text}")
        return 1
    except BaseException as error:
        logger.exception("unexpected error: the daemon ends")
        tell(f"logfs: internal error: {error!r}")
        return 1
    return 0


def _detach_from_terminal() -> None:
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(nothing, descriptor)
    os.close(nothing)
