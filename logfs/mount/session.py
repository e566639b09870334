"""The life of one mount: open the store, mount, serve requests, run upkeep, unmount, close."""

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
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pyfuse3
import trio

import logfs
from logfs.errors import InvalidStore
from logfs.log.read.read_committed import Isolation
from logfs.mount import threads
from logfs.mount.errnos import ErrorLog
from logfs.mount.nodes.base import Context
from logfs.mount.nodes.root import RootDirectory
from logfs.mount.protocol import Operations
from logfs.mount.threads import run_in_thread
from logfs.mount.watchdog import watchdog
from logfs.store.directory.mount_table import MountState, mounted_at
from logfs.store.directory.recognition import PathKind, check_log_dirs, recognise
from logfs.store.maintenance.upkeep import update_key_indexes
from logfs.store.observe import commit_client
from logfs.store.store import Store

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Sequence

logger = logging.getLogger(__name__)

# The kernel shows the filesystem type as `fuse.logfs`.
SUBTYPE = "logfs"
# pyfuse3's default of 99 tasks is too low: more readers than that may wait for slow disks (120 waiting
# readers delayed an unrelated stat for seconds).
_MAX_TASKS = 400
_UPKEEP_SECONDS = 1.0
_LONGEST_PAUSE_SECONDS = 60.0
# The wait before partitions that could not be loaded for lack of descriptors are tried again.
_LOAD_SECONDS = 10.0
# How often a read-only store checks for changes by others. A request for a size or a name checks by itself.
_REFRESH_SECONDS = 0.5
_READ_AHEAD_KB = 1024
# From <malloc.h>.
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3


@dataclass(frozen=True, kw_only=True)
class Options:
    """The options of one mount: the log directories, the mountpoint and flags."""

    log_dirs: Sequence[Path]
    mountpoint: Path
    read_only: bool = False
    allow_other: bool = False
    isolation: Isolation = Isolation.READ_UNCOMMITTED
    # Whether the mountpoint may contain files, which the mount then hides.
    nonempty: bool = False
    # The source that the mount table shows; None for the log directories.
    source: str | None = None
    fuse_options: frozenset[str] = field(default_factory=frozenset)


def run(
    options: Options,
    *,
    ready: Callable[[], None] = lambda: None,
) -> None:
    """Mount, and serve requests until unmounted or stopped by SIGTERM, SIGINT or SIGHUP.

    `ready` is called when the mount answers. Partitions are then loaded, and recovered if necessary, in the
    background; a request for one of them waits until that one is loaded. Raises the errors of opening a `Store`,
    `InvalidStore` for an unsuitable mountpoint, and `OSError`.
    """
    mountpoint = check_paths(options)
    _keep_memory()
    _raise_file_limit()
    with (
        watchdog() as watch,
        Store(options.log_dirs, read_only=options.read_only, lazy=True) as store,
    ):
        store.disk.forbid_blocking()
        context = Context(store, ErrorLog(store.clock), logfs.__version__, options.isolation)
        operations = Operations(RootDirectory(context))
        threads.start()
        # The path as the mount table will show it; once it is mounted, resolving it would wait for an answer.
        place = Path(os.path.realpath(mountpoint))
        with _mounted(operations, mountpoint, options):
            watch(place)
            try:
                trio.run(_serve, operations, store, mountpoint, ready)
            except BaseExceptionGroup as group:
                raise _first_of(group) from group
        # Closing the store waits for the disk. This thread may wait: it serves no more requests.
        store.disk.allow_blocking()
        if not store.read_only:
            commit_client.withdraw(store.working)


def _first_of(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """Return the first error of the tasks that ended the mount. Callers expect it without trio's exception group."""
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def check_paths(options: Options) -> Path:
    """Check the mountpoint and the log directories, and return the absolute path of the mountpoint.

    A dead mount on the mountpoint is unmounted. Raises `InvalidStore` if logfs is already mounted there, or if the
    mountpoint or a log directory is unsuitable. Even then a dead mount may have been unmounted, because the directory
    below it can be checked only afterwards; nothing else changes.
    """
    mountpoint = Path(os.path.abspath(options.mountpoint))
    found = mounted_at(mountpoint)
    if found is MountState.LIVE:
        raise InvalidStore(
            f"{mountpoint}: logfs is already mounted here; run 'logfs umount {mountpoint}' first"
        )
    if found is MountState.NOTHING:
        _check_mountpoint(mountpoint, options)
    writable = not options.read_only
    check_log_dirs(options.log_dirs, may_be_empty=writable, may_be_made=writable)
    if found is MountState.DEAD:
        logger.warning("%s: clearing away a dead mount", mountpoint)
        # Lazily: processes with open files of the dead mount get errors, and must not delay the unmount.
        unmount(mountpoint, lazy=True)
        _check_mountpoint(mountpoint, options)
    return mountpoint


def _check_mountpoint(mountpoint: Path, options: Options) -> None:
    """Raise `InvalidStore` if `mountpoint` cannot be mounted on, or if the mount would hide something in it."""
    if not mountpoint.is_dir():
        if mountpoint.exists():
            raise InvalidStore(f"{mountpoint}: the mountpoint is not a directory")
        raise InvalidStore(f"{mountpoint}: the mountpoint does not exist; create it first")
    for log_dir in options.log_dirs:
        path = Path(os.path.realpath(log_dir))
        real = Path(os.path.realpath(mountpoint))
        if path == real or real in path.parents:
            raise InvalidStore(
                f"{path}: the log directory cannot lie in its own mount {mountpoint}"
            )
    kind = recognise(mountpoint).kind
    if kind in (PathKind.LOG_DIR, PathKind.PARTITION):
        what = "a log directory" if kind is PathKind.LOG_DIR else "a partition"
        raise InvalidStore(
            f"{mountpoint} is {what}, and a mount would hide it: give the LOGDIR first, and an empty directory to "
            "mount on last"
        )
    if kind is PathKind.IN_MOUNT:
        raise InvalidStore(
            f"{mountpoint}: lies in another mount of logfs; mount on a directory outside of it"
        )
    if not options.nonempty and any(os.scandir(mountpoint)):
        raise InvalidStore(
            f"{mountpoint}: is not empty, and a mount would hide its content; mount on an empty directory, or give "
            "-o nonempty"
        )


def source_of(options: Options) -> str:
    """Return the source that the mount table shows: `options.source`, or else the log directories, joined by commas.

    mount(8) uses it to detect that a line of fstab is already mounted: it resolves the symlinks of the path in that
    line and compares. It does not resolve a list of paths, so the paths of several log directories stay unresolved.
    """
    if options.source is not None:
        return options.source
    if len(options.log_dirs) == 1:
        return os.path.realpath(options.log_dirs[0])
    return ",".join(os.path.abspath(path) for path in options.log_dirs)


def unmount(mountpoint: Path, *, lazy: bool = False) -> None:
    """Unmount with `umount` as root, with `fusermount3` otherwise. Raises `OSError` (EBUSY) if that fails.

    With `lazy` the mountpoint is detached at once, even while files are open.
    """
    import subprocess

    if os.geteuid() == 0:
        command = ["umount", *(["-l"] if lazy else []), str(mountpoint)]
    else:
        command = ["fusermount3", "-u", *(["-z"] if lazy else []), str(mountpoint)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        reason = done.stderr.strip() or f"exit code {done.returncode}"
        # The mountpoint itself may have the word in its path.
        if reason.rstrip(".").endswith("busy"):
            reason = (
                f"it is busy; 'fuser -vm {mountpoint}' lists the processes that use it, and "
                f"'logfs umount -l {mountpoint}' detaches it at once"
            )
        raise OSError(errno.EBUSY, f"cannot unmount: {reason}", str(mountpoint))


def _keep_memory() -> None:
    """Have glibc reuse freed buffers instead of returning them to the kernel after each request.

    By default glibc creates a new mapping for each buffer of 128 KiB or more, and the page faults of a new mapping
    cost more than the copy into it. Without mallopt (musl) this does nothing, and nothing is lost.
    """
    with suppress(AttributeError, OSError):
        libc = ctypes.CDLL(None)
        libc.mallopt(_M_MMAP_THRESHOLD, 64 << 20)
        libc.mallopt(_M_TRIM_THRESHOLD, 128 << 20)


def _raise_file_limit() -> None:
    """Raise the file limit to its maximum: each segment has up to five files, and readers keep their files open."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def warm_up() -> None:
    """Compile the loops over batches and keys, or load them from the cache; the compilation takes many seconds.

    Objects that exist now are excluded from garbage collection.
    """
    from logfs.format.kernel_warmup import warm_up as warm
    from logfs.log.read import key_tables

    warm()
    key_tables.warm_up()
    # The objects that exist now stay, so the garbage collector need not examine them again and again.
    gc.collect()
    gc.freeze()


class _Option(str):
    """A mount option that may contain any bytes of a path; pyfuse3 encodes an ordinary string as ASCII."""

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
            f"cannot mount ({error}); is fuse3 installed, does /dev/fuse exist, and does /etc/fuse.conf "
            "let users set allow_other if you asked for it?",
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
        nursery.start_soon(_upkeep, lambda: update_key_indexes(store), interval)
        if not store.read_only:
            # A round may take minutes, so no other upkeep waits for it. A request for a round wakes its task at once.
            for worker in (store.compactor, store.mover):
                alarm = _Alarm()
                worker.wake = alarm.ring
                nursery.start_soon(_upkeep, worker.run_due, _UPKEEP_SECONDS, alarm.sleep)
        nursery.start_soon(_load, store)
        nursery.start_soon(_warm_up, operations)
        nursery.start_soon(_announce, store, mountpoint, ready)
        await pyfuse3.main(max_tasks=_MAX_TASKS)
        store.compactor.stop()
        store.mover.stop()
        store.stop_loading()
        nursery.cancel_scope.cancel()


async def _load(store: Store) -> None:
    """Load all partitions in the background. Those for which there were too many open files are tried again."""
    await run_in_thread(partial(store.load_all, gently=True))
    while store.unloaded:
        await trio.sleep(_LOAD_SECONDS)
        await run_in_thread(partial(store.load_all, gently=True))


async def _warm_up(operations: Operations) -> None:
    """Load the compiled code while the first requests are served."""
    await run_in_thread(warm_up)
    operations.is_cold = False


async def _stop_on_signal(operations: Operations) -> None:
    with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT, signal.SIGHUP) as signals:
        async for number in signals:
            logger.info("stopping on %s", signal.Signals(number).name)
            await operations.stop_growth()
            pyfuse3.terminate()


async def _announce(store: Store, mountpoint: Path, ready: Callable[[], None]) -> None:
    """Call `ready` once the mount answers a `stat`, which is made in a thread, as by any other caller."""
    await run_in_thread(os.stat, mountpoint)
    _start_notifier()
    await run_in_thread(_raise_read_ahead, mountpoint)
    if not store.read_only:
        await run_in_thread(commit_client.announce, store.working, mountpoint)
    ready()


def _start_notifier() -> None:
    """Have pyfuse3 start its notification thread now, and not during a request, which must not wait for it."""
    try:
        # This name is never looked up, so the kernel has nothing to forget.
        name = pyfuse3.FileNameT(b".logfs.none")
        pyfuse3.invalidate_entry_async(pyfuse3.ROOT_INODE, name, ignore_enoent=True)
    except RuntimeError as error:
        raise OSError(errno.EAGAIN, f"the mount cannot start its threads: {error}") from None


def _raise_read_ahead(mountpoint: Path) -> None:
    """Raise the kernel's read-ahead to the size of its largest request. Only root may; others keep the default."""
    device = os.stat(mountpoint).st_dev
    knob = Path(f"/sys/class/bdi/{os.major(device)}:{os.minor(device)}/read_ahead_kb")
    try:
        knob.write_text(str(_READ_AHEAD_KB))
    except OSError as error:
        logger.debug("%s: %s", knob, error)


class _Alarm:
    """A sleep of a task that any thread can end early."""

    def __init__(self) -> None:
        self._token = trio.lowlevel.current_trio_token()
        self._rung = trio.Event()

    def ring(self) -> None:
        """End the current sleep, or, if there is none, the next one. May be called from any thread."""
        # After the end of the event loop no task sleeps.
        with suppress(trio.RunFinishedError):
            self._token.run_sync_soon(self._rung.set)

    async def sleep(self, seconds: float) -> None:
        """Sleep for `seconds`, or until `ring` is called."""
        with trio.move_on_after(seconds):
            await self._rung.wait()
        self._rung = trio.Event()


async def _upkeep(
    work: Callable[[], None],
    interval: float,
    sleep: Callable[[float], Awaitable[None]] = trio.sleep,
) -> None:
    """Call `work` in a thread every `interval` seconds; after an error, wait longer before the next call."""
    pause = interval
    while True:
        await sleep(pause)
        began = trio.current_time()
        try:
            await run_in_thread(work)
            # With very many partitions, upkeep takes at most a tenth of the time.
            pause = min(max(interval, 10 * (trio.current_time() - began)), _LONGEST_PAUSE_SECONDS)
        except Exception as error:
            # Expected failures have their own backoff. This error is unexpected, and must not end the mount.
            logger.exception("upkeep: %r", error)
            pause = min(pause * 2, _LONGEST_PAUSE_SECONDS)
