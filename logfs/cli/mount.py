"""`logfs mount`: mount log directories; in the background unless asked otherwise."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from logfs.errors import InvalidStore

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

    from logfs.mount.session import Options

# What mount(8) hands down that means nothing to us.
_IGNORED = frozenset(
    {
        "rw",
        "auto",
        "noauto",
        "user",
        "nouser",
        "users",
        "nofail",
        "_netdev",
        "defaults",
        "nosuid",
        "nodev",
    }
    | {"suid", "dev", "exec", "async", "relatime", "x-systemd.automount", "default_permissions"}
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Log directories, mountpoint, options."""
    parser.add_argument(
        "paths",
        nargs="+",
        type=Path,
        metavar="PATH",
        help="LOGDIR… MOUNTPOINT; a missing LOGDIR is made",
    )
    parser.add_argument(
        "-o",
        action="append",
        default=[],
        metavar="OPTION,…",
        dest="options",
        help=(
            "allow_other (other users see the mount: mode bits decide), ro, noexec, "
            "isolation=read_committed (hide aborted and open transactions)"
        ),
    )
    parser.add_argument(
        "--read-only", action="store_true", help="write, lock and repair nothing below"
    )
    parser.add_argument(
        "-f", "--foreground", action="store_true", help="do not go to the background"
    )
    parser.add_argument("--log-file", type=Path, help="where the daemon's own messages go")


def run(arguments: argparse.Namespace) -> int:
    """Mount; returns when the mount is ready, or with -f when it has ended."""
    import logging

    logging.basicConfig(
        level=logging.INFO,
        format="%(asctime)s logfs %(levelname)s %(message)s",
        filename=arguments.log_file,
        force=True,
    )
    options = _options(arguments)
    if arguments.foreground:
        from logfs.cli.common import recovery_progress
        from logfs.mount.session import run as serve

        serve(
            options,
            ready=lambda: print(f"{options.mountpoint}: ready", flush=True),
            progress=recovery_progress(),
        )
        return 0
    return _in_background(options)


def _options(arguments: argparse.Namespace) -> Options:
    from logfs.cli.common import isolation_level
    from logfs.log.committed import Isolation

    try:
        from logfs.mount.session import Options
    except ImportError as error:
        raise InvalidStore(
            f"the mount needs pyfuse3 and trio ({error}); install logfs[mount]"
        ) from None
    *log_dirs, mountpoint = arguments.paths
    if not log_dirs:
        raise InvalidStore(f"{mountpoint}: give at least one LOGDIR before the MOUNTPOINT")
    words = [word for option in arguments.options for word in option.split(",") if word]
    read_only = arguments.read_only
    allow_other = False
    isolation = Isolation.READ_UNCOMMITTED
    fuse = set()
    for word in words:
        if word == "ro":
            read_only = True
        elif word == "allow_other":
            allow_other = True
            print(
                "logfs: allow_other: every user may enter; mode bits decide what they can do",
                file=sys.stderr,
            )
        elif word in ("noexec", "noatime", "sync", "dirsync"):
            fuse.add(word)
        elif word.startswith("isolation="):
            isolation = isolation_level(word.removeprefix("isolation="))
        elif word in _IGNORED:
            pass
        else:
            raise InvalidStore(f"-o {word}: no such mount option; 'logfs mount --help' lists them")
    return Options(
        log_dirs=[path.absolute() for path in log_dirs],
        mountpoint=mountpoint.absolute(),
        read_only=read_only,
        allow_other=allow_other,
        isolation=isolation,
        fuse_options=frozenset(fuse),
    )


def _in_background(options: Options) -> int:
    """Fork before anything is locked, mounted or started; the parent waits for the child's word."""
    reading, writing = os.pipe()
    if os.fork():
        os.close(writing)
        with os.fdopen(reading, "rb") as pipe:
            # Progress of a recovery is printed by the child itself: it still has our terminal.
            answer = pipe.read().decode()
        if answer == "ready":
            return 0
        print(answer or "logfs: the daemon died before the mount was ready", file=sys.stderr)
        return 1
    os.close(reading)
    os.setsid()
    if os.fork():
        os._exit(0)
    code = 1
    try:
        code = _daemon(options, lambda text: _tell(writing, text))
    finally:
        os._exit(code)


def _daemon(options: Options, tell: Callable[[str], None]) -> int:
    import logging

    from logfs.cli.common import recovery_progress
    from logfs.errors import LogfsError
    from logfs.mount.session import run as serve

    def ready() -> None:
        tell("ready")
        _let_go_of_terminal()

    try:
        os.chdir("/")
        serve(options, ready=ready, progress=recovery_progress())
    except (LogfsError, OSError) as error:
        where = f"{error.filename}: " if isinstance(error, OSError) and error.filename else ""
        text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        tell(f"logfs: {where}{text}")
        return 1
    except BaseException as error:
        logging.getLogger(__name__).exception("the daemon ends")
        tell(f"logfs: internal error: {error!r}")
        return 1
    return 0


def _tell(pipe: int, text: str) -> None:
    """Say something to the waiting parent, once; later errors have only the log file."""
    try:
        os.write(pipe, text.encode())
        os.close(pipe)
    except OSError:
        pass


def _let_go_of_terminal() -> None:
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(nothing, descriptor)
    os.close(nothing)
