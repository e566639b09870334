"""One mount from beginning to end: open the store, mount, serve, keep up, unmount, close."""

from __future__ import annotations

import ctypes
import errno
import gc
import logging
import os
import re
import resource
import signal
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pyfuse3
import trio

import logfs
from logfs.errors import InvalidStore
from logfs.log.committed import Isolation
from logfs.mount import threads
from logfs.mount.errnos import ErrorLog
from logfs.mount.nodes.base import Context
from logfs.mount.nodes.root import RootDirectory
from logfs.mount.protocol import Operations
from logfs.mount.threads import run_in_thread
from logfs.mount.watchdog import watchdog
from logfs.store import door, key_maps
from logfs.store.mount_table import Mounted, mounted_at
from logfs.store.recognition import Kind, check_log_dirs, recognise
from logfs.store.store import Store

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Sequence

logger = logging.getLogger(__name__)

# The kernel shows the type as `fuse.logfs`.
SUBTYPE = "logfs"
# More readers can wait for slow disks than pyfuse3's own 99 tasks would let (reliability: 120 waiting readers made
# an unrelated stat wait for seconds).
_MAX_TASKS = 400
_UPKEEP_SECONDS = 1.0
_LONGEST_PAUSE_SECONDS = 60.0
# How often a store that only reads looks at what others have done. Who asks for a size or a name looks himself.
_REFRESH_SECONDS = 0.5
_READ_AHEAD_KB = 1024
# Of <malloc.h>.
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3


@dataclass(frozen=True, kw_only=True)
class Options:
    """What to mount, where and how."""

    log_dirs: Sequence[Path]
    mountpoint: Path
    read_only: bool = False
    allow_other: bool = False
    isolation: Isolation = Isolation.READ_UNCOMMITTED
    # Whether the mountpoint may have files in it, which the mount hides.
    nonempty: bool = False
    # What the mount table names as the source; None for the log directories.
    source: str | None = None
    fuse_options: frozenset[str] = field(default_factory=frozenset)


def run(
    options: Options,
    *,
    ready: Callable[[], None] = lambda: None,
    progress: Callable[[str, int, int], None] | None = None,
) -> None:
    """Mount, and serve until unmounted or told to stop by SIGTERM or SIGINT.

    `ready` is called when the mount answers. Raises what `Store` raises, `InvalidStore` for a mountpoint that
    cannot be one, and `OSError`.
    """
    mountpoint = check_paths(options)
    _keep_memory()
    _raise_file_limit()
    with (
        watchdog() as watch,
        Store(options.log_dirs, read_only=options.read_only, progress=progress) as store,
    ):
        store.disk.forbid_blocking()
        warm_up()
        context = Context(store, ErrorLog(store.clock), logfs.__version__, options.isolation)
        operations = Operations(RootDirectory(context))
        threads.start()
        # As the mount table will have it; once it is mounted, a look at it waits for an answer.
        place = Path(os.path.realpath(mountpoint))
        with _mounted(operations, mountpoint, options):
            watch(place)
            try:
                trio.run(_serve, operations, store, mountpoint, ready)
            except BaseExceptionGroup as group:
                raise _first_of(group) from group
        # Closing the store waits for the disk, and nobody waits for this thread any more.
        store.disk.allow_blocking()
        if not store.read_only:
            door.withdraw(store.working)


def _first_of(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """The first error of the tasks that ended the mount: callers know it, and not what trio wraps it in."""
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def check_paths(options: Options) -> Path:
    """The mountpoint, made absolute, once all paths are what they should be.

    A dead mount on it is cleared away, a live one refused. Nothing is touched where a path is refused.
    """
    mountpoint = Path(os.path.abspath(options.mountpoint))
    found = mounted_at(mountpoint)
    if found is Mounted.LIVE:
        raise InvalidStore(
            f"{mountpoint}: a logfs is mounted here; 'logfs umount {mountpoint}' first"
        )
    if found is Mounted.NOTHING:
        _check_mountpoint(mountpoint, options)
    writable = not options.read_only
    check_log_dirs(options.log_dirs, may_be_empty=writable, may_be_made=writable)
    if found is Mounted.DEAD:
        logger.warning("%s: clearing away a dead mount", mountpoint)
        # Whoever has a file of it open gets errors, and holds up nobody.
        unmount(mountpoint, lazy=True)
        _check_mountpoint(mountpoint, options)
    return mountpoint


def _check_mountpoint(mountpoint: Path, options: Options) -> None:
    """Raise `InvalidStore` for what cannot be mounted on, or should not, for the mount would hide it."""
    if not mountpoint.is_dir():
        if mountpoint.exists():
            raise InvalidStore(f"{mountpoint}: the mountpoint is not a directory")
        raise InvalidStore(f"{mountpoint}: there is no such directory to mount on; make it first")
    for log_dir in options.log_dirs:
        path = Path(os.path.realpath(log_dir))
        real = Path(os.path.realpath(mountpoint))
        if path == real or real in path.parents:
            raise InvalidStore(
                f"{path}: the log directory cannot lie in its own mount {mountpoint}"
            )
    kind = recognise(mountpoint).kind
    if kind in (Kind.LOG_DIR, Kind.PARTITION):
        what = "a log directory" if kind is Kind.LOG_DIR else "a partition"
        raise InvalidStore(
            f"{mountpoint} is {what}, and a mount would hide it: the LOGDIR comes first, and last an empty directory "
            "to mount on"
        )
    if kind is Kind.IN_MOUNT:
        raise InvalidStore(
            f"{mountpoint}: lies in another mount of logfs; mount on a directory outside of it"
        )
    if not options.nonempty and any(os.scandir(mountpoint)):
        raise InvalidStore(
            f"{mountpoint}: is not empty, and a mount would hide what is in it; mount on an empty directory, or give "
            "-o nonempty"
        )


def source_of(options: Options) -> str:
    """The source that the mount table shows: the log directories, joined by commas.

    mount(8) knows by it that a line of fstab is mounted already: it resolves the links of a path, and compares. It
    resolves no list of paths, so there the source is what the line says.
    """
    if options.source is not None:
        return options.source
    if len(options.log_dirs) == 1:
        return os.path.realpath(options.log_dirs[0])
    return ",".join(os.path.abspath(path) for path in options.log_dirs)


def unmount(mountpoint: Path, *, lazy: bool = False) -> None:
    """Unmount as whoever we are may: with umount as root, with fusermount3 otherwise."""
    import subprocess

    if os.geteuid() == 0:
        command = ["umount", *(["-l"] if lazy else []), str(mountpoint)]
    else:
        command = ["fusermount3", "-u", *(["-z"] if lazy else []), str(mountpoint)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        reason = done.stderr.strip() or f"exit code {done.returncode}"
        raise OSError(errno.EBUSY, f"cannot unmount: {reason}", str(mountpoint))


def _keep_memory() -> None:
    """Have freed buffers reused rather than given back to the kernel after each request.

    By default glibc maps a buffer of 128 KiB or more anew each time, and the page faults of a fresh mapping cost more
    than the copy into it. Where there is no mallopt (musl), nothing is lost.
    """
    with suppress(AttributeError, OSError):
        libc = ctypes.CDLL(None)
        libc.mallopt(_M_MMAP_THRESHOLD, 64 << 20)
        libc.mallopt(_M_TRIM_THRESHOLD, 128 << 20)


def _raise_file_limit() -> None:
    """Let the daemon open as many files as it may: the log has three a segment, and readers hold on to theirs."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def warm_up() -> None:
    """Compile, or load from the cache, what the first request would otherwise wait for."""
    from logfs.format.warm import warm_up as warm
    from logfs.log import key_table

    warm()
    key_table.warm_up()
    # What is there now stays, and the collector need not look at it again and again.
    gc.collect()
    gc.freeze()


class _Option(str):
    """A mount option with any bytes of a path in it; pyfuse3 encodes what it is given as ASCII."""

    __slots__ = ()

    def encode(self, encoding: str = "utf-8", errors: str = "strict") -> bytes:
        return str.encode(self, "utf-8", "surrogateescape")


@contextmanager
def _mounted(operations: Operations, mountpoint: Path, options: Options) -> Iterator[None]:
    fuse_options = set(pyfuse3.default_options)
    source = re.sub(r"([\\,])", r"\\\1", source_of(options))
    fuse_options |= {_Option(f"fsname={source}"), f"subtype={SUBTYPE}", *options.fuse_options}
    fuse_options |= {"default_permissions", "nosuid", "nodev"}
    if options.allow_other:
        fuse_options.add("allow_other")
    if options.read_only:
        fuse_options.add("ro")
    try:
        pyfuse3.init(operations, str(mountpoint), fuse_options)
    except RuntimeError as error:
        raise OSError(
            errno.EPERM,
            f"cannot mount ({error}); is fuse3 installed, /dev/fuse there, and allow_other allowed to "
            "users in /etc/fuse.conf if you asked for it?",
            str(mountpoint),
        ) from None
    try:
        yield
    finally:
        pyfuse3.close(unmount=True)


async def _serve(
    operations: Operations, store: Store, mountpoint: Path, ready: Callable[[], None]
) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_stop_on_signal, operations)
        interval = _REFRESH_SECONDS if store.read_only else _UPKEEP_SECONDS
        nursery.start_soon(_upkeep, lambda: store.upkeep(compaction=False), interval)
        nursery.start_soon(_upkeep, lambda: key_maps.keep_up(store), interval)
        if not store.read_only:
            # A round may take minutes, and nothing else is to wait for it. Who asks for one need not wait either.
            for worker in (store.compactor, store.mover):
                alarm = _Alarm()
                worker.wake = alarm.ring
                nursery.start_soon(_upkeep, worker.run_due, _UPKEEP_SECONDS, alarm.sleep)
        nursery.start_soon(_announce, store, mountpoint, ready)
        await pyfuse3.main(max_tasks=_MAX_TASKS)
        store.compactor.stop()
        store.mover.stop()
        nursery.cancel_scope.cancel()


async def _stop_on_signal(operations: Operations) -> None:
    with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT, signal.SIGHUP) as signals:
        async for number in signals:
            logger.info("stopping on %s", signal.Signals(number).name)
            await operations.settle()
            pyfuse3.terminate()


async def _announce(store: Store, mountpoint: Path, ready: Callable[[], None]) -> None:
    """Say that the mount is ready once it answers, asked from a thread as any caller would."""
    await run_in_thread(os.stat, mountpoint)
    _start_notifier()
    await run_in_thread(_raise_read_ahead, mountpoint)
    if not store.read_only:
        await run_in_thread(door.announce, store.working, mountpoint)
    ready()


def _start_notifier() -> None:
    """Have pyfuse3 start its thread for notifications now, and not in the middle of a request that must not wait."""
    try:
        # A name that nobody looks up: there is nothing to forget.
        name = pyfuse3.FileNameT(b".logfs.none")
        pyfuse3.invalidate_entry_async(pyfuse3.ROOT_INODE, name, ignore_enoent=True)
    except RuntimeError as error:
        raise OSError(errno.EAGAIN, f"the mount cannot start its threads: {error}") from None


def _raise_read_ahead(mountpoint: Path) -> None:
    """Let the kernel read ahead as much as it sends in one request; only root may."""
    device = os.stat(mountpoint).st_dev
    knob = Path(f"/sys/class/bdi/{os.major(device)}:{os.minor(device)}/read_ahead_kb")
    try:
        knob.write_text(str(_READ_AHEAD_KB))
    except OSError as error:
        logger.debug("%s: %s", knob, error)


class _Alarm:
    """Ends a sleep of a task early, from any thread."""

    def __init__(self) -> None:
        self._token = trio.lowlevel.current_trio_token()
        self._rung = trio.Event()

    def ring(self) -> None:
        """End the sleep that goes on, or else the next one."""
        # After the end of the loop nobody sleeps any more.
        with suppress(trio.RunFinishedError):
            self._token.run_sync_soon(self._rung.set)

    async def sleep(self, seconds: float) -> None:
        """So many seconds, or until it rings."""
        with trio.move_on_after(seconds):
            await self._rung.wait()
        self._rung = trio.Event()


async def _upkeep(
    work: Callable[[], None],
    interval: float,
    sleep: Callable[[float], Awaitable[None]] = trio.sleep,
) -> None:
    """Every so many seconds, in a thread, whatever is due; after an error, wait longer before the next try."""
    pause = interval
    while True:
        await sleep(pause)
        began = trio.current_time()
        try:
            await run_in_thread(work)
            # Of very many partitions, no more than a tenth of the time.
            pause = min(max(interval, 10 * (trio.current_time() - began)), _LONGEST_PAUSE_SECONDS)
        except Exception as error:
            # What fails by itself backs off by itself: this is what nobody thought of, and must not end the mount.
            logger.exception("upkeep: %r", error)
            pause = min(pause * 2, _LONGEST_PAUSE_SECONDS)
