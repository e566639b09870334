"""The life of one mount: open the store, mount, serve requests, run upkeep, unmount, close."""

from __future__ import annotations

import ctypes
import gc
import logging
import os
import resource
import sys
import threading
from contextlib import ExitStack, nullcontext, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pyfuse3
import trio

import logfs
from logfs.log.disk.bucket_path import BucketPath
from logfs.log.disk.memory import keep_memory
from logfs.log.read.read_committed import Isolation
from logfs.mount import metrics_server, threads
from logfs.mount.admin_requests import AdminRequests
from logfs.mount.errnos import ErrorLog
from logfs.mount.mount_metrics import metrics_of
from logfs.mount.mounted_mirror import MirrorOptions, MountedMirror
from logfs.mount.mounting import (
    first_error,
    mounted,
    one_stop,
    prepare_mountpoint,
    start_notifier,
)
from logfs.mount.nodes.base import Context
from logfs.mount.nodes.root import RootDirectory
from logfs.mount.protocol import Operations
from logfs.mount.threads import run_in_thread
from logfs.mount.watchdog import watchdog
from logfs.store.directory import lock
from logfs.store.directory.mount_table import FILESYSTEM_TYPE
from logfs.store.directory.recognition import check_log_dirs
from logfs.store.maintenance.upkeep import update_key_indexes
from logfs.store.store import Store

if TYPE_CHECKING:
    import socket
    from collections.abc import Awaitable, Callable, Sequence

logger = logging.getLogger(__name__)

# The most requests that are served at the same time. With pyfuse3's default of 99, 120 readers of a slow disk delayed
# an unrelated stat for seconds. At most 384 of these requests have a thread that waits for an object store; further
# ones wait for such a thread.
_MAX_TASKS = 4000
# The usual and the longest pause between two runs of an upkeep task.
_UPKEEP_SECONDS = 1.0
_LONGEST_PAUSE_SECONDS = 60.0
# The pause before the next attempt to load partitions, if some could not be loaded for lack of file descriptors.
_LOAD_SECONDS = 10.0
# How often a read-only store checks for changes by other processes. A request for a size or a name checks at once.
_REFRESH_SECONDS = 0.5
_READ_AHEAD_KB = 1024
# How long a worker thread may keep the GIL while the trio thread waits for it. Python's default is 5 ms.
_SWITCH_SECONDS = 0.0005
# The name of the library of numba's compiler. The loading of compiled code reads most of this library into memory.
_COMPILER = b"libllvmlite"
# From <sys/mman.h>.
_MADV_PAGEOUT = 21


@dataclass(frozen=True, kw_only=True)
class MountOptions:
    """The options of one mount."""

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
    mirror: MirrorOptions | None = None
    # The host and the port at which the metrics are served over HTTP.
    metrics_address: tuple[str, int] | None = None


def run(
    options: MountOptions,
    *,
    ready: Callable[[], None] = lambda: None,
) -> None:
    """Mount, and serve requests until unmounted or stopped by SIGTERM, SIGINT or SIGHUP.

    `ready` is called when the mount answers. Partitions are loaded, and recovered if necessary, in the background; a
    request for a partition waits until this partition is loaded. Raises the errors of opening a `Store`,
    `InvalidStore` for an unsuitable mountpoint, and `OSError`.
    """
    mountpoint = check_paths(options)
    sys.setswitchinterval(_SWITCH_SECONDS)
    keep_memory()
    _raise_file_limit()
    with (
        watchdog() as watch,
        ExitStack() as after_closing,
        Store(options.log_dirs, read_only=options.read_only, lazy=True) as store,
    ):
        stop_wanted = after_closing.enter_context(one_stop())
        store.disk.forbid_blocking()
        try:
            _mount(options, mountpoint, store, watch, stop_wanted, ready)
        finally:
            # Closing the store waits for the disk. This thread may now wait, because it serves no more requests.
            store.disk.allow_blocking()
        if not store.read_only:
            lock.withdraw(store.registry.working)


def _mount(
    options: MountOptions,
    mountpoint: Path,
    store: Store,
    watch: Callable[[Path], None],
    stop_wanted: Callable[[], Awaitable[None]],
    ready: Callable[[], None],
) -> None:
    """Mount a store, and serve requests until the mount ends or `stop_wanted` returns.

    `watch` tells the watchdog process which mount to watch. It is called with the path of the mountpoint, in the form
    that the mount table shows. `ready` is called when the mount answers.
    """
    mirror = None if options.mirror is None else MountedMirror(store, options.mirror)
    errors, requests = ErrorLog(store.clock), AdminRequests()
    context = Context(
        store,
        errors,
        logfs.__version__,
        requests,
        options.isolation,
        mirror,
        is_sync="sync" in options.fuse_options,
    )
    operations = Operations(RootDirectory(context))
    threads.start()
    address = options.metrics_address
    listening = None if address is None else metrics_server.listen(*address)
    # The mountpoint as the mount table will show it. Resolve it before the mount: later, the call would send a
    # request to the mount, and this thread, which has to answer it, would wait forever.
    place = Path(os.path.realpath(mountpoint))
    source, words = source_of(options), _fuse_options(options)
    with (
        listening or nullcontext(),
        mounted(operations, mountpoint, FILESYSTEM_TYPE, source, words),
    ):
        watch(place)
        try:
            trio.run(_serve, operations, store, mountpoint, stop_wanted, ready, listening)
        except BaseExceptionGroup as group:
            raise first_error(group) from group


def check_paths(options: MountOptions) -> Path:
    """Check the mountpoint and the log directories, and return the absolute path of the mountpoint.

    If the mountpoint has a dead mount (one whose daemon has ended), this function unmounts it, and then checks the
    directory under it. If this directory is unsuitable, the dead mount stays unmounted. The function changes nothing
    else. Raises `InvalidStore` if logfs is already mounted there, or if the mountpoint or a log directory is
    unsuitable, and `OSError` (EBUSY) if a dead mount cannot be unmounted.
    """
    writable = not options.read_only
    return prepare_mountpoint(
        options.mountpoint,
        lambda: check_log_dirs(options.log_dirs, may_be_empty=writable, may_be_made=writable),
        sources=options.log_dirs,
        nonempty=options.nonempty,
    )


def source_of(options: MountOptions) -> str:
    """Return the source that the mount table shows: `options.source`, or else the log directories, joined by commas.

    In the path of a single log directory, symlinks are resolved; in several paths they are not. mount(8) does the
    same with the source in a line of fstab, and then searches for it in the mount table, to find out whether the line
    is mounted already.
    """
    if options.source is not None:
        return options.source
    if isinstance(options.log_dirs[0], BucketPath):
        return str(options.log_dirs[0])
    if len(options.log_dirs) == 1:
        return os.path.realpath(options.log_dirs[0])
    return ",".join(os.path.abspath(path) for path in options.log_dirs)


def _raise_file_limit() -> None:
    """Raise the limit of open files to the hard limit: a segment has up to five files, and readers keep them open."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def warm_up(stopping: threading.Event | None = None) -> None:
    """Compile the loops over batches and keys, or load them from the cache; the compilation takes many seconds.

    Afterwards, the function frees the compiler's memory, and excludes all existing objects from garbage collection.
    If `stopping` is set during the call, it returns early, and skips these two steps: a mount that ends must not wait
    for the compiler.
    """
    from logfs.format.kernel_warmup import warm_up_steps
    from logfs.log.read import key_tables

    for _ in warm_up_steps():
        if stopping is not None and stopping.is_set():
            return
    key_tables.warm_up()
    _page_out(_COMPILER)
    # Most objects that exist now are never freed, so the garbage collector need not examine them each time it runs.
    gc.collect()
    gc.freeze()


def _fuse_options(options: MountOptions) -> set[str]:
    fuse_options = {"default_permissions", "nosuid", "nodev", *options.fuse_options}
    if options.allow_other:
        fuse_options.add("allow_other")
    if options.read_only:
        fuse_options.add("ro")
    return fuse_options


async def _serve(
    operations: Operations,
    store: Store,
    mountpoint: Path,
    stop_wanted: Callable[[], Awaitable[None]],
    ready: Callable[[], None],
    listening: socket.socket | None,
) -> None:
    stopping = threading.Event()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_stop, operations, stop_wanted)
        interval = _REFRESH_SECONDS if store.read_only else _UPKEEP_SECONDS
        nursery.start_soon(_upkeep, lambda: store.upkeep(compaction=False), interval)
        nursery.start_soon(_upkeep, lambda: update_key_indexes(store.registry), interval)
        if not store.read_only:
            # Each of these workers may run for minutes, so each has a task of its own. A request to a worker wakes
            # its task at once.
            for worker in (store.compactor, store.mover, store.remote_log_manager):
                alarm = _Alarm()
                worker.wake = alarm.ring
                nursery.start_soon(_upkeep, worker.run_due, _UPKEEP_SECONDS, alarm.sleep)
        mirror = operations.context.mirror
        if mirror is not None:
            nursery.start_soon(run_in_thread, mirror.run)
        nursery.start_soon(_load, store)
        nursery.start_soon(_warm_up, operations, stopping)
        nursery.start_soon(_announce, store, mountpoint, ready)
        if listening is not None:
            metrics = partial(metrics_of, operations.context)
            nursery.start_soon(metrics_server.serve, listening, metrics)
        await pyfuse3.main(max_tasks=_MAX_TASKS)
        stopping.set()
        if mirror is not None:
            mirror.stop()
        store.stop_maintenance()
        await run_in_thread(store.stop_loading)
        await run_in_thread(operations.context.requests.stop)
        nursery.cancel_scope.cancel()


async def _load(store: Store) -> None:
    """Load all partitions in the background. Every 10 s, retry those that failed for lack of file descriptors."""
    await run_in_thread(partial(store.load_all, gently=True))
    while store.registry.unloaded:
        await trio.sleep(_LOAD_SECONDS)
        await run_in_thread(partial(store.load_all, gently=True))


async def _warm_up(operations: Operations, stopping: threading.Event) -> None:
    """Load the compiled code while the first requests are served, unless the mount ends first."""
    try:
        await run_in_thread(warm_up, stopping)
    except Exception as error:
        # The error is unexpected, and must not end the mount: each request loads the code that it needs, in a worker
        # thread.
        logger.exception("the compiled code cannot be loaded, so requests stay slow: %r", error)
    else:
        operations.is_cold = False


async def _stop(operations: Operations, stop_wanted: Callable[[], Awaitable[None]]) -> None:
    await stop_wanted()
    await operations.stop_growth()
    pyfuse3.terminate()


async def _announce(store: Store, mountpoint: Path, ready: Callable[[], None]) -> None:
    """Wait until the mount answers a `stat`, finish its setup, and call `ready`.

    A worker thread calls `stat`, because this thread must answer it. Unless the store is read-only, the mountpoint is
    written to a file in each log directory, for other processes.
    """
    await run_in_thread(os.stat, mountpoint)
    start_notifier()
    await run_in_thread(_raise_read_ahead, mountpoint)
    if not store.read_only:
        await run_in_thread(lock.announce, store.registry.working, mountpoint)
    ready()


def _raise_read_ahead(mountpoint: Path) -> None:
    """Raise the mount's read-ahead to the size of the kernel's largest READ. Without root's rights, do nothing."""
    device = os.stat(mountpoint).st_dev
    knob = Path(f"/sys/class/bdi/{os.major(device)}:{os.minor(device)}/read_ahead_kb")
    try:
        knob.write_text(str(_READ_AHEAD_KB))
    except OSError as error:
        logger.debug("%s: %s", knob, error)


def _page_out(library: bytes) -> None:
    """Make the kernel drop the pages of a shared library from memory. A page that is used later is read again.

    `library` is a part of the library's path. Before Linux 5.4, or for a library that belongs to another user, this
    does nothing: the pages stay in memory.
    """
    # Binary, because the paths of mapped files need not be UTF-8.
    with suppress(AttributeError, OSError), open("/proc/self/maps", "rb") as maps:
        libc = ctypes.CDLL(None)
        for line in maps:
            addresses, *_, path = line.split()
            if library in path:
                start, end = (int(address, 16) for address in addresses.split(b"-"))
                libc.madvise(ctypes.c_void_p(start), ctypes.c_size_t(end - start), _MADV_PAGEOUT)


class _Alarm:
    """A sleep of a task that any thread can end early."""

    def __init__(self) -> None:
        self._token = trio.lowlevel.current_trio_token()
        self._rung = trio.Event()

    def ring(self) -> None:
        """End the current sleep, or, if there is none, the next one. May be called from any thread."""
        # `RunFinishedError`: the event loop has ended, so no task sleeps any more.
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
    """Call `work` in a thread every `interval` seconds; less often if `work` takes long or has failed.

    Before each call of `work`, `sleep` is called with the length of the pause in seconds. If `sleep` returns early,
    `work` is called early.
    """
    pause = interval
    while True:
        await sleep(pause)
        began = trio.current_time()
        try:
            await run_in_thread(work)
            # Pause ten times as long as `work` took, but at least `interval` and at most 60 s, so that `work` delays
            # requests little.
            pause = min(max(interval, 10 * (trio.current_time() - began)), _LONGEST_PAUSE_SECONDS)
        except Exception as error:
            # `work` handles expected failures itself. This error is unexpected, and must not end the mount.
            logger.exception("upkeep failed, and is tried again: %r", error)
            pause = min(pause * 2, _LONGEST_PAUSE_SECONDS)
