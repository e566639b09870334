"""Opening the log directories of a store, and loading their partitions (kafka-storage 5.1)."""

from __future__ import annotations

import logging
import os
import threading
import time
from contextlib import nullcontext, suppress
from functools import partial
from typing import TYPE_CHECKING

from logfs.errors import (
    InvalidStore,
    LogfsError,
    PartitionFailed,
    RemoteStorageError,
    UnknownPartition,
)
from logfs.format.base import names
from logfs.format.base.names import DirectoryKind, TopicPartition
from logfs.format.files import checkpoint
from logfs.format.tiered.metadata_record import TOPIC as METADATA_TOPIC
from logfs.locks import Level, make_lock
from logfs.log import recovery
from logfs.log.append.partition import Partition
from logfs.log.disk.bucket_path import BucketPath, as_path
from logfs.log.disk.disk import NO_DESCRIPTOR, Disk, Gone
from logfs.log.follow import live_partition
from logfs.log.follow.live_partition import LivePartition
from logfs.log.follow.live_segment import LiveSegment
from logfs.log.segment.file_checks import check_files
from logfs.log.segment.segment import Segment
from logfs.log.segment.segment_listing import log_bytes
from logfs.store.directory.lease import Lease, LeasedLogDir
from logfs.store.directory.log_dir import LogDir
from logfs.store.directory.topic_id import write_topic_id
from logfs.store.maintenance import move_recovery
from logfs.store.maintenance.deletion import Deletion
from logfs.store.parallel import for_each
from logfs.store.registry import UnloadedPartition

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from logfs.log.read.log import Log
    from logfs.store.registry import BackgroundOperation, PartitionRegistry
    from logfs.store.staged_commits import Commits
    from logfs.store.tiering.tiered_logs import TieredLogs

    # The name of the only partition to load, or a function that returns whether to load a partition, given its name.
    Only = str | Callable[[str], bool]
    Progress = Callable[[str, int, int], None]

logger = logging.getLogger(__name__)

# Partitions of at least this size (bytes) are recovered in parallel: their recovery is mostly done by compiled loops,
# which release the GIL.
_LARGE_BYTES = 4 << 20


def open_log_dirs(
    disk: Disk, log_dirs: Sequence[str | os.PathLike[str]], failed: Callable[[LogDir], object]
) -> list[LogDir]:
    """Open log directories, which `check_log_dirs` has accepted, and return them; a missing one is created.

    If at least one directory works, those that cannot be used are returned, too, with `failure` set; otherwise
    `OSError` is raised. `failed` is called with each directory that fails, now or later. Raises `InvalidStore` if no
    directory or the same one twice is given, for a bucket that is not the only directory, and for a bucket without
    segments. Raises `StoreLocked` if another store holds the lock of a directory.
    """
    paths = [as_path(path).absolute() for path in log_dirs]
    if not paths:
        raise InvalidStore("a store needs at least one log directory; give one")
    real = [os.path.realpath(path) for path in paths]
    for number, path in enumerate(paths):
        if real[number] in real[:number]:
            raise InvalidStore(f"{path}: the log directory is named twice; name it once")
    if len(paths) > 1 and any(isinstance(path, BucketPath) for path in paths):
        raise InvalidStore("a bucket is opened alone; give no other log directories")
    opened: list[LogDir] = []
    broken: dict[LogDir, OSError] = {}
    try:
        for path, given in zip(paths, log_dirs, strict=True):
            if isinstance(given, Lease):
                log_dir: LogDir = LeasedLogDir(disk, given, failed)
            else:
                log_dir = LogDir(disk, path, failed)
            opened.append(log_dir)
            try:
                _check_log_dir(disk, path)
                log_dir.open()
            except OSError as error:
                broken[log_dir] = error
        if len(broken) == len(opened):
            raise next(iter(broken.values()))
        for log_dir, reason in broken.items():
            log_dir.close()
            log_dir.disk.fail(reason)
    except BaseException:
        for log_dir in opened:
            log_dir.close()
        raise
    return opened


def _check_log_dir(disk: Disk, path: Path) -> None:
    """Create the log directory `path` if it is missing. In a bucket, raise `InvalidStore` if it has no segments."""
    if disk.is_remote:
        if not any(disk.scan(path)):
            raise InvalidStore(
                f"{path}: has no segments that a broker copied; give the bucket and the prefix from the settings of "
                "the broker"
            )
    else:
        try:
            # If the disk has failed, `stat` raises an error other than `FileNotFoundError`: create no directory then.
            disk.stat(path)
        except FileNotFoundError:
            disk.mkdir(path)


def _check_unique(found: Mapping[LogDir, move_recovery.FoundDirectories]) -> None:
    """Raise `InvalidStore` if a partition is in two log directories.

    No error is raised if one of the two is open in another process (`LogDir.live`): it may be moving the partition.
    """
    homes: dict[TopicPartition, LogDir] = {}
    for log_dir, each in found.items():
        for name, *_ in each.partitions:
            other = homes.setdefault(name, log_dir)
            if other is not log_dir and not (log_dir.live or other.live):
                raise InvalidStore(
                    f"{name.directory} is in two log directories: {other.path}, {log_dir.path}; move one of them away"
                )


class _LoadingStopped(Exception):
    """Raised to end a recovery early when the store is closed; the next opening starts the recovery again."""


class PartitionLoader:
    """The part of a store that finds and loads the partitions in the log directories.

    `find` adds the partitions to `PartitionRegistry.unloaded`; `load` and `load_all` load them from there.
    Several threads may load different partitions at the same time.
    """

    def __init__(
        self,
        registry: PartitionRegistry,
        commits: Commits,
        tiered: TieredLogs,
        progress: Progress,
        *,
        only: Only | None,
        recover: bool,
    ) -> None:
        """Make a loader without reading anything.

        `only` is the name of the only partition to load, or a function that returns whether to load a partition,
        given its name; None stands for all partitions. With `recover`, all partitions are recovered, even after a
        clean shutdown. During a recovery, `progress` is called with the name of the partition, the bytes read so far,
        and the bytes to read in all.
        """
        self._registry = registry
        self._commits = commits
        self._tiered = tiered
        self.recovered_bytes = 0
        self.recovered_partitions = 0
        self._counting = make_lock(Level.COUNTING)
        # Held during the recovery of a small partition, so that small partitions are recovered one at a time.
        self._turn = make_lock(Level.RECOVERY)
        self._stopped = threading.Event()
        self._progress = progress
        self._wanted = (lambda name: only in (None, name)) if not callable(only) else only
        # Whether `only` may exclude some of the partitions in the log directories.
        self.is_partial = only is not None
        self._recover = recover
        # By partition, for `refresh`: the inode number of its directory; and, if its load failed, the mtime (ns) that
        # the directory had then.
        self._identities: dict[str, int] = {}
        self._failed_mtime: dict[str, int] = {}
        # The partitions that `follow` has opened, by name, each with its directory and the directory's inode number.
        self._followed: dict[str, tuple[tuple[Path, int], Log]] = {}

    def find(self) -> None:
        """Find the partitions of the log directories that work, without loading any (kafka-storage 5.1).

        Also removes the clean-shutdown markers, and finishes or undoes the moves between log directories that a crash
        has interrupted. A read-only store changes no file. Raises `InvalidStore`, before anything is changed, if a
        partition is in two of the directories, unless a process may be moving it (`_check_unique`).
        """
        found: dict[LogDir, move_recovery.FoundDirectories] = {}
        for log_dir in self._registry.working:
            try:
                found[log_dir] = self._scan(log_dir)
                log_dir.is_known = True
            except OSError as error:
                # The directory counts as failed: it is unknown which partitions it holds.
                log_dir.disk.fail(error)
        _check_unique(found)
        for log_dir in list(found):
            try:
                log_dir.begin()
            except OSError as error:
                log_dir.disk.fail(error)
                del found[log_dir]
        move_recovery.finish_or_undo(self._registry, found, self._wanted)
        for log_dir, (partitions, *_) in found.items():
            for name, path, identity in sorted(partitions):
                self._identities[name.directory] = identity
                if self._wanted(name.directory):
                    self._note(log_dir, name, path)
                else:
                    self._registry.homes[name.directory] = log_dir

    def _scan(self, log_dir: LogDir) -> move_recovery.FoundDirectories:
        """Return the partition directories in a log directory.

        Unless the store is read-only, also schedule the directories that end in `-delete` for removal. Set
        `LogDir.half_deleted`.
        """
        found = move_recovery.FoundDirectories([], [], [])
        log_dir.half_deleted = set()
        for entry in log_dir.disk.scan(log_dir.path):
            if not entry.is_directory:
                continue
            try:
                kind, name = names.classify_directory(entry.name)
            except LogfsError:
                # Ignore a directory that is not a partition's, such as lost+found. A broker would refuse the whole
                # log directory.
                logger.info("%s: is not a partition, ignored", log_dir.path / entry.name)
                continue
            path = log_dir.path / entry.name
            if kind is DirectoryKind.DELETED:
                kept = Deletion.read(log_dir.disk, path)
                if kept is not None and not kept.is_finished:
                    log_dir.half_deleted.add(kept.partition)
                if not self._registry.read_only:
                    self._registry.deletions[path] = kept.due_ms if kept else self._registry.clock()
            elif kind is DirectoryKind.NORMAL and name.topic != "__cluster_metadata":
                found.partitions.append((name, path, entry.identity))
            elif kind is DirectoryKind.FUTURE:
                found.futures.append((name, path))
            elif kind is DirectoryKind.STRAY:
                found.strays.append(path)
        return found

    def _note(self, log_dir: LogDir, name: TopicPartition, path: Path) -> None:
        if name.directory in self._registry.homes:
            # Another process is moving the partition, which is in two log directories for a moment. Scan this log
            # directory again at the next `refresh`.
            log_dir.look_again()
            return
        self._registry.unloaded[name.directory] = UnloadedPartition(name, log_dir, path)
        self._registry.homes[name.directory] = log_dir

    def include(self, name: str) -> None:
        """Add to `unloaded` a partition that the argument `only` has excluded, so that it can be loaded.

        This changes nothing if the partition is not excluded, is unknown, or is in a log directory that was opened
        with a lease for another partition.
        """
        registry = self._registry
        if name in registry or name in registry.offline or name not in registry.homes:
            # There is nothing to add. Do not take `registry.lock` to find this out: the caller may hold a lock that
            # must not be held when `registry.lock` is taken (see the order of locks in `logfs.locks`).
            return
        with registry.lock:
            home = registry.homes.get(name)
            if home is None or name in registry or name in registry.offline:
                return
            if not isinstance(home, LeasedLogDir):
                parsed = names.parse_directory(name)
                registry.included.add(name)
                registry.unloaded[name] = UnloadedPartition(parsed, home, home.path / name)

    def follow(self, name: str) -> Log | None:
        """Return a partition of a read-only store, even one that the store does not list; None if it is missing.

        The store does not list partitions that the argument `only` excludes, or that are in log directories that were
        not opened. The result is never the object in `PartitionRegistry.partitions`: this method makes its own, and
        keeps it for later calls. The caller needs no lock, but only one thread at a time may call this. Raises the
        errors of a load.
        """
        log_dirs = {log_dir.path: log_dir for log_dir in self._registry.working}
        for path in self._registry.missing_log_dirs:
            log_dirs[path] = LogDir(self._registry.disk, path)
        for path, log_dir in log_dirs.items():
            try:
                where = path / name, log_dir.disk.stat(path / name).identity
            except (FileNotFoundError, NotADirectoryError):
                continue
            known = self._followed.get(name)
            if known is None or known[0] != where:
                self._registry.disk.check_may_block()
                if log_dir.found is None:
                    log_dir.open()
                partition = self._open_partition(log_dir, names.parse_directory(name), where[0])
                known = self._followed[name] = where, partition
            return known[1]
        return None

    def load_all(self, *, gently: bool = False) -> None:
        """Load all partitions that are not loaded yet, several at a time if any of them may need recovery.

        If a load fails, the error is logged, and the other partitions are loaded all the same. With `gently`, loading
        pauses after each partition for as long as its load took, unless partitions may need recovery. Returns after
        an attempt to load each partition, or after a call of `stop`. Any thread may call this.
        """
        is_clean = not self._recover and all(
            log_dir.clean or log_dir.live for log_dir in self._registry.working
        )

        def load(unloaded: UnloadedPartition) -> None:
            if self._stopped.is_set():
                return
            began = time.monotonic()
            with suppress(LogfsError, OSError):
                self.load(unloaded)
            if gently and is_clean:
                self._stopped.wait(time.monotonic() - began)

        todo = [unloaded for _, unloaded in sorted(self._registry.unloaded.copy().items())]
        count = 1 if is_clean else len(os.sched_getaffinity(0))
        for_each(load, todo, threads=count, abandon=self._stopped.set)

    def stop(self) -> None:
        """Start no more loads, interrupt the recoveries in progress, and wait until the running loads have ended.

        The next opening of the store starts the interrupted recoveries again.
        """
        self._stopped.set()
        for unloaded in list(self._registry.unloaded.values()):
            with unloaded.lock:
                pass

    def load(self, unloaded: UnloadedPartition) -> Log:
        """Load a partition, and return it; if another thread is loading it, wait for that thread.

        Raises the error that keeps the partition offline, `UnknownPartition` if it was deleted meanwhile, and
        `PartitionFailed` after `stop`. After an `OSError` for too many open files, or after a `RemoteStorageError`,
        the partition stays unloaded, and the next call tries again.
        """
        registry, name = self._registry, unloaded.name.directory
        if unloaded.partition is None:
            registry.disk.check_may_block()
            if registry.settings.broker_config.remote_storage_url:
                # The load may send requests to the bucket: raise `WouldBlock` in a thread that must not wait for it.
                registry.disk.check_may_fetch()
                # The load reads the metadata topic. Include its partitions now, because `include` takes a lock that
                # must not be taken during the load.
                for other in registry.partitions_of(METADATA_TOPIC) if self.is_partial else ():
                    self.include(other)
            with unloaded.lock:
                if registry.unloaded.get(name) is unloaded:
                    if self._stopped.is_set():
                        raise PartitionFailed(f"{unloaded.path}: not loaded: the store is closed")
                    self._load(unloaded)
        if unloaded.partition is not None:
            return unloaded.partition
        found = registry.unloaded.get(name)
        if found is unloaded:
            raise PartitionFailed(f"{unloaded.path}: not loaded: the store is closed")
        if found is not None:
            # Meanwhile `refresh` has found the partition again, for example in another log directory.
            return self.load(found)
        raise registry.offline.get(name) or UnknownPartition(f"{name}: no such partition")

    def _load(self, unloaded: UnloadedPartition) -> None:
        """Load a partition, and record the outcome in the registry.

        An error takes the partition offline, and is not raised. There are three exceptions, because a later load may
        succeed:

        - The process has too many open files, or a `RemoteStorageError` occurs. The error is raised, and the
          partition stays unloaded.
        - `stop` has interrupted the recovery. The partition stays unloaded.
        - In a read-only store, another process has removed files of the partition. The registry forgets the
          partition, and the next `refresh` adds it again if its directory exists.
        """
        log_dir, path, registry = unloaded.log_dir, unloaded.path, self._registry
        try:
            registry.record_load(unloaded, self._open_partition(log_dir, unloaded.name, path))
        except _LoadingStopped:
            logger.info("%s: its recovery was interrupted, because the store is being closed", path)
        except (LogfsError, OSError) as error:
            if registry.read_only and isinstance(error, (FileNotFoundError, Gone)):
                # Another process has removed the partition, or files of it. The next `refresh` tries again.
                logger.info("%s: changed while it was loaded: %s", path, error)
                registry.record_load(unloaded, None)
                log_dir.look_again()
                return
            is_passing = isinstance(error, OSError) and error.errno in NO_DESCRIPTOR
            if is_passing or isinstance(error, RemoteStorageError):
                # Nothing is wrong with the partition. It stays unloaded, and the next use of it loads it.
                logger.warning("%s: cannot be loaded now, the next use retries: %s", path, error)
                raise
            logger.error("%s: the partition is offline: %s", path, error)
            self._take_offline(unloaded, error)
        except Exception as error:
            # Unexpected errors come from defects, or from maliciously made files. The other partitions must still be
            # loaded.
            logger.exception("%s: the partition is offline", path)
            self._take_offline(unloaded, InvalidStore(f"{path}: cannot be loaded: {error!r}"))

    def _take_offline(self, unloaded: UnloadedPartition, error: LogfsError | OSError) -> None:
        """Record the error of a failed load. `refresh` permits another load once the directory has changed."""
        with suppress(OSError, RemoteStorageError):
            mtime_ns = unloaded.log_dir.disk.stat(unloaded.path).mtime_ns
            self._failed_mtime[unloaded.name.directory] = mtime_ns
        self._registry.record_load(unloaded, error)

    def _complete(self, log_dir: LogDir, name: TopicPartition, path: Path) -> None:
        """Write a topic id into a partition directory that has neither a topic id nor a segment.

        Such a directory is left by a crash during the creation of the partition.
        """
        if log_dir.disk.exists(path / names.PARTITION_METADATA):
            return
        if not any(entry.name.endswith(names.LOG) for entry in log_dir.disk.scan(path)):
            topic_id = self._registry.topic_id(name.topic) or checkpoint.random_uuid()
            write_topic_id(log_dir.disk, path, topic_id)

    def _open_partition(self, log_dir: LogDir, name: TopicPartition, path: Path) -> Log:
        if not log_dir.disk.is_remote:
            check_files(log_dir.disk, path)
        end: recovery.FilePosition | None = None
        if self._registry.read_only and not log_dir.live and not log_dir.clean:
            end = self._commits.place_of_remains(log_dir, name, path)
        changed = self._commits.reconcile(log_dir, name, path)
        closed = log_dir.clean and not changed
        config = self._registry.settings.log_config(name.topic)
        keeps = log_dir.is_brokers or self._registry.read_only or config.logfs_mirror_source
        if not closed and not keeps:
            self._complete(log_dir, name, path)
        start = recovery.LoadStart(
            closed,
            log_dir.recovery_points.get(name, 0),
            log_dir.log_starts.get(name, 0),
            log_dir.may_have_gaps(name),
            self._recover,
            self._registry.settings.broker_config.producer_id_expiration_ms,
            end,
            config.remote_storage_enable,
        )

        def load() -> recovery.Loaded:
            if log_dir.live:
                return live_partition.load(log_dir.disk, path, start)
            kind = LiveSegment if self._registry.read_only else Segment
            disk, now_ms = log_dir.disk, self._registry.clock()
            if start.is_clean:
                return recovery.load(disk, path, config, start, now_ms, kind=kind)
            total = log_bytes(disk, path)
            # Recover small partitions one at a time: this is mostly Python code, which the GIL serializes anyway.
            turn = self._turn if total < _LARGE_BYTES else nullcontext()
            with turn, self._registry.doing("recovering", name.directory, total) as work:
                report = partial(self._report, work)
                loaded = recovery.load(disk, path, config, start, now_ms, report, kind)
            with self._counting:
                self.recovered_partitions += 1
            return loaded

        get_config = partial(self._registry.settings.log_config, name.topic)
        known = log_dir.disk, path, name, get_config, self._registry.clock
        partition = (
            LivePartition(*known, load) if self._registry.read_only else Partition(*known, load())
        )
        if not isinstance(log_dir, LeasedLogDir):
            self._tiered.attach(
                partition,
                start.log_start_offset,
                is_brokers=log_dir.is_brokers,
                is_live=log_dir.live,
            )
        elif start.is_tiered:
            # A leased partition is loaded without its remote segments, so the load has set its log start to the first
            # local segment. Set the log start back to the offset in the checkpoint, because the lease returns it.
            with partition.lock:
                partition.publish(
                    log_start_offset=min(start.log_start_offset, partition.log_start_offset)
                )
        return partition

    def _report(self, work: BackgroundOperation, size: int) -> None:
        """Add `size` to the bytes that recovery has read, in `work` and in `recovered_bytes`; report the progress.

        Raises `_LoadingStopped` after `stop`.
        """
        if self._stopped.is_set():
            raise _LoadingStopped
        with self._counting:
            work.done_bytes += size
            self.recovered_bytes += size
        self._progress(work.name, work.done_bytes, work.total_bytes)

    def refresh(self, log_dirs: Sequence[LogDir]) -> None:
        """Bring a read-only store up to date with the partitions that `log_dirs` have now.

        Drops partitions that were deleted or replaced, and applies the log start offsets in the checkpoints. Adds
        new partitions, and offline ones whose directory has changed, to `unloaded`. The caller must hold
        `PartitionRegistry.lock` during this call. It must release the lock before it loads the partitions, because a
        load may wait for a bucket.
        """
        # First drop partitions that have left a log directory: a moved partition can then be added in the new one.
        found = {log_dir: self._drop_left(log_dir) for log_dir in log_dirs}
        for log_dir, partitions in found.items():
            for directory, (name, path, identity) in partitions.items():
                if directory not in self._registry.homes and self._wanted(directory):
                    self._identities[directory] = identity
                    self._note(log_dir, name, path)
                elif self._registry.homes.get(directory, log_dir) is not log_dir:
                    # Another process is moving the partition, which is in two log directories for a moment. Scan this
                    # log directory again at the next `refresh`.
                    log_dir.look_again()
        for log_dir, partitions in found.items():
            for partition in list(self._registry.partitions.values()):
                if isinstance(partition, LivePartition) and partition.name.directory in partitions:
                    partition.follow_log_start(log_dir.log_starts.get(partition.name, 0))

    def _drop_left(self, log_dir: LogDir) -> dict[str, tuple[TopicPartition, Path, int]]:
        """Drop from the registry the partitions that `log_dir` no longer has; return those that it has now.

        A partition whose directory was replaced, and an offline one that may work now (`may_work_now`), are dropped,
        too, so that `refresh` adds them again. The keys of the result are the names of the partitions' directories.
        The values are (parsed name, path, inode number) of these directories.
        """
        scanned = self._scan(log_dir)
        found = {
            name.directory: (name, path, identity) for name, path, identity in scanned.partitions
        }
        for name, path in scanned.futures:
            # After an interrupted move, the partition may be loaded from a directory that is still named `-future`
            # (`move_recovery.finish_or_undo`).
            loaded = self._registry.partitions.get(name.directory)
            if loaded is not None and loaded.directory == path:
                found.setdefault(name.directory, (name, path, self._identities[name.directory]))
        changed = self.may_work_now(log_dir)
        for directory in [d for d, h in self._registry.homes.copy().items() if h is log_dir]:
            identity = found[directory][2] if directory in found else None
            if identity != self._identities.get(directory) or directory in changed:
                self._registry.forget(directory)
        return found

    def may_work_now(self, log_dir: LogDir) -> set[str]:
        """Return the offline partitions in `log_dir` that may work now: their directories have changed or are gone.

        A directory counts as changed if its mtime is new, or was unknown when the partition went offline.
        """
        changed = set()
        for name in list(self._registry.offline):
            if self._registry.homes.get(name) is log_dir:
                with suppress(FileNotFoundError):
                    mtime = log_dir.disk.stat(log_dir.path / name).mtime_ns
                    if mtime == self._failed_mtime.get(name):
                        continue
                changed.add(name)
        return changed
