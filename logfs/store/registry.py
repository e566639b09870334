"""The partitions of a store by name, and the state that the parts of a store share."""

from __future__ import annotations

import os
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from logfs.errors import InvalidStore, LogfsError, StoreClosed, UnknownPartition
from logfs.format.base import names
from logfs.format.tiered.metadata_record import TOPIC as METADATA_TOPIC
from logfs.locks import Level, make_lock, make_rlock
from logfs.log.append.partition import Partition, writable
from logfs.store.directory.log_dir import whole_store
from logfs.store.directory.topic_id import read_topic_id

if TYPE_CHECKING:
    import threading
    import uuid
    from collections.abc import Callable, Iterator, Sequence

    from logfs.errors import LogDirFailed
    from logfs.format.base.names import TopicPartition
    from logfs.log.disk.disk import Disk
    from logfs.log.read.log import Log
    from logfs.store.directory.log_dir import LogDir
    from logfs.store.loading import PartitionLoader
    from logfs.store.settings import Settings


@dataclass(slots=True, eq=False)
class BackgroundOperation:
    """A background operation, with its start `since_ms` (ms since the epoch) and its progress in bytes.

    `what` and `name` describe it, such as "compacting" and "orders-0"; `phase` is its current step in words, or "".
    """

    what: str
    name: str
    since_ms: int
    phase: str = ""
    done_bytes: int = 0
    total_bytes: int = 0

    def __str__(self) -> str:
        phase = f", {self.phase}" if self.phase else ""
        if not self.total_bytes:
            return f"{self.what} {self.name}{phase}"
        share = min(self.done_bytes / self.total_bytes, 1)
        return f"{self.what} {self.name}{phase}: {share:.0%} of {self.total_bytes} bytes"


@dataclass(slots=True, eq=False, weakref_slot=True)
class UnloadedPartition:
    """A partition whose directory was found, but which is not loaded yet (see `PartitionLoader.load`).

    `partition` is None until a load has succeeded. The thread that loads the partition holds `lock`.
    """

    name: TopicPartition
    log_dir: LogDir
    path: Path
    partition: Log | None = None
    lock: threading.Lock = field(init=False)

    def __post_init__(self) -> None:
        is_metadata = self.name.topic == METADATA_TOPIC
        self.lock = make_lock(Level.LOADING_METADATA if is_metadata else Level.LOADING)

    @property
    def disk(self) -> Disk:
        """The disk with the files of the partition."""
        return self.log_dir.disk if self.partition is None else self.partition.disk

    @property
    def directory(self) -> Path:
        """The partition's directory, which changes when the partition is moved."""
        return self.path if self.partition is None else self.partition.directory

    def mtime_ms(self) -> int:
        """Return the modification time (ms) of the last .log file, or of the directory if it has no .log file."""
        logs = [e.name for e in self.disk.scan(self.directory) if e.name.endswith(names.LOG)]
        newest = self.directory / max(logs) if logs else self.directory
        return self.disk.stat(newest).mtime_ns // 1_000_000


class PartitionRegistry:
    """The log directories of a store and its partitions, for the parts of a store that work on them.

    Mappings by the name of a partition: `partitions` has the loaded partitions, `unloaded` those not loaded yet,
    `offline` the errors of those that are offline, and `homes` the log directory of each partition. `deletions` has
    the `-delete` directories that deletions and moves leave, and the times from which they may be removed.

    The parts of a store (commits, retention, compaction, …) use this class, not `Store`. Any thread may read the
    attributes. A thread must hold `lock` to change `partitions`, `offline` or `homes`; only `record_load` does so
    without it. A loop over one of these mappings, or over `deletions`, must use a copy: `list(homes)` or
    `homes.copy().items()`. `list(homes.items())` is not safe: it allocates tuples, which may start the garbage
    collector, during which another thread may run and change the mapping.
    """

    settings: Settings
    loader: PartitionLoader

    def __init__(self, disk: Disk, clock: Callable[[], int], *, read_only: bool) -> None:
        """Make a registry without log directories. The store must set `log_dirs`, `settings` and `loader` later."""
        self.disk = disk
        self.clock = clock
        self.read_only = read_only
        self.opened_ms = clock()
        self.lock = make_rlock(Level.REGISTRY)
        self.log_dirs: list[LogDir] = []
        # The store's other log directories, which are not open here. They may be absent from the disk.
        self.missing_log_dirs: Sequence[Path] = ()
        # By name: the loaded partitions, those not loaded yet, and the errors of those that are offline.
        self.partitions: dict[str, Log] = {}
        self.unloaded: dict[str, UnloadedPartition] = {}
        self.offline: dict[str, LogfsError | OSError] = {}
        # The names of partitions that the store's argument `only` excluded, but that the store needs itself.
        # Iteration over the registry leaves them out.
        self.included: set[str] = set()
        # The log directory of each partition by name, including offline and excluded partitions.
        self.homes: dict[str, LogDir] = {}
        # The `-delete` directories, and when each may be removed (ms since the epoch).
        self.deletions: dict[Path, int] = {}
        # Held briefly while a partition becomes loaded or offline; no other lock is taken while it is held.
        self._settling = make_lock(Level.SETTLING)
        self.background: list[BackgroundOperation] = []
        # Whether upkeep is paused, so that the tasks in `schedule.PAUSABLE` are not done.
        self.is_paused = False

    def __getitem__(self, name: str) -> Log:
        """Return a partition, loaded if necessary. Raises `UnknownPartition`, or the error that keeps it offline."""
        unloaded = self.unloaded.get(name)
        if unloaded is not None:
            return self.loader.load(unloaded)
        partition = self.partitions.get(name)
        if partition is not None:
            return partition
        if name in self.offline:
            raise self.offline[name]
        hint = self.elsewhere(name) or "'logfs create' creates it"
        raise UnknownPartition(f"{name}: no such partition; {hint}")

    def __contains__(self, name: object) -> bool:
        return name in self.unloaded or name in self.partitions

    def __iter__(self) -> Iterator[str]:
        """Iterate over the names of the partitions that are not offline, in sorted order."""
        return iter(sorted({*self.unloaded, *self.partitions} - self.included))

    def __len__(self) -> int:
        return len({*self.unloaded, *self.partitions} - self.included)

    def writable(self, name: str) -> Partition:
        """Return a partition for changes. Raises the errors of `self[name]`; in a read-only store, `NotWritable`."""
        return writable(self[name])

    def check_current(self, partition: Log) -> None:
        """Raise `UnknownPartition` if the partition was deleted, even if another one has its name by now.

        Raises the error that keeps the partition offline, if it is offline.
        """
        name = partition.name.directory
        if self[name] is not partition:
            raise UnknownPartition(f"{name}: the partition was deleted")

    def written(self) -> dict[str, Partition]:
        """Return the loaded partitions that this process may change, by name; none in a read-only store."""
        loaded = self.partitions.copy().items()
        return {name: each for name, each in loaded if isinstance(each, Partition)}

    def find(self, name: str) -> Log | None:
        """Return a partition, which is loaded if necessary; None if it is unknown, offline or cannot be loaded."""
        try:
            return self[name]
        except (LogfsError, OSError):
            return None

    def include(self, name: str) -> Log | None:
        """Load and return a partition, even one that the store does not list because the argument `only` excluded it.

        Return None if the partition is unknown or offline, if it cannot be loaded, or if its log directory was opened
        with a `Lease` for another partition.
        """
        self.loader.include(name)
        return self.find(name)

    def record_load(
        self, unloaded: UnloadedPartition, outcome: Log | LogfsError | OSError | None
    ) -> None:
        """Record the outcome of a load: the partition, the error that takes it offline, or None.

        None means that another process has removed the partition or some of its files. It is then forgotten, and a
        later `refresh` adds it again if its directory exists. The outcome is ignored if, during the load, the log
        directory has failed or the partition was forgotten.
        """
        name = unloaded.name.directory
        with self._settling:
            if self.unloaded.get(name) is not unloaded:
                return
            if outcome is None:
                del self.homes[name]
            elif isinstance(outcome, (LogfsError, OSError)):
                self.offline[name] = outcome
            else:
                unloaded.partition = self.partitions[name] = outcome
            # Delete this entry last, so that readers find the name in at least one of the mappings.
            del self.unloaded[name]

    def unload(self, unloaded: UnloadedPartition) -> None:
        """Replace a loaded partition, which the caller has closed, by `unloaded`: its next use loads it again.

        `unloaded` is a new object for the same partition. Changes nothing if the partition is no longer loaded,
        because its log directory has failed.
        """
        name = unloaded.name.directory
        with self._settling:
            if name in self.partitions:
                # Add this entry first, so that readers find the name in at least one of the mappings.
                self.unloaded[name] = unloaded
                del self.partitions[name]

    def forget(self, name: str) -> None:
        """Remove a partition from all mappings. If it is being loaded, `record_load` ignores the outcome later."""
        with self._settling:
            for known in (self.unloaded, self.partitions, self.offline, self.homes):
                known.pop(name, None)

    def partitions_of(self, topic: str) -> list[str]:
        """Return the names of all partitions of a topic, in the order of their numbers, loaded or not."""
        return [each.directory for each in names.partitions_of(topic, self.homes)]

    def home(self, name: str) -> Path:
        """Return the path of the log directory that a partition is in."""
        return self.homes[name].path

    def topic_id(self, topic: str) -> uuid.UUID | None:
        """Return the topic id in the first readable `partition.metadata` of a topic's partitions, or None.

        The log directories that are not open (`missing_log_dirs`) are searched, too. Raises `OSError` if one of these
        cannot be listed.
        """
        for name in self.partitions_of(topic):
            log_dir = self.homes.get(name)
            if log_dir is not None and log_dir.failure is None:
                loaded = self.partitions.get(name)
                path = log_dir.path / name if loaded is None else loaded.directory
                topic_id = read_topic_id(log_dir.disk, path)
                if topic_id is not None:
                    return topic_id
        for path in filter(self.disk.exists, self.missing_log_dirs):
            for found in names.partitions_of(topic, os.listdir(path)):
                topic_id = read_topic_id(self.disk, path / found.directory)
                if topic_id is not None:
                    return topic_id
        return None

    def is_half_deleted(self, name: str) -> bool:
        """Whether a partition does not exist, because it was deleted, but its committed offsets may be left.

        A store that is opened for writing removes them when all of its log directories are open.
        """
        return (
            name not in self.homes
            and any(name in each.half_deleted for each in self.log_dirs)
            and self.is_whole
        )

    def check_absent(self, name: str) -> None:
        """Raise `InvalidStore` if a log directory in `missing_log_dirs` has a partition of this name."""
        where = self.elsewhere(name)
        if where:
            raise InvalidStore(f"{name}: {where}")

    def elsewhere(self, name: str) -> str:
        """Return in which log directory that is not open a partition is, and what to do; "" if it is in none."""
        for path in self.missing_log_dirs:
            if self.disk.exists(path / name):
                return (
                    f"it is in {path}, a log directory of this store that is not open: name the log directories "
                    f"together, as in '{self.words} {path}'"
                )
        return ""

    @contextmanager
    def doing(self, what: str, name: str, total_bytes: int = 0) -> Iterator[BackgroundOperation]:
        """Yield a new operation, which is listed in `background` until the context ends.

        `what` and `name` describe it, such as "compacting" and "orders-0". The caller must update `done_bytes`.
        """
        work = BackgroundOperation(what, name, self.clock(), total_bytes=total_bytes)
        self.background.append(work)
        try:
            yield work
        finally:
            self.background.remove(work)

    @property
    def words(self) -> str:
        """The paths of the open log directories, separated by blanks as in a command line, for messages."""
        return " ".join(str(log_dir.path) for log_dir in self.log_dirs)

    @property
    def is_whole(self) -> bool:
        """Whether all log directories of the store are open, and the names of all their partitions were read.

        If not, a partition that this object does not know may be in a log directory that is not open.
        """
        return not self.missing_log_dirs and all(each.is_known for each in self.log_dirs)

    @property
    def working(self) -> list[LogDir]:
        """The log directories that work."""
        return [log_dir for log_dir in self.log_dirs if log_dir.failure is None]

    @property
    def failed(self) -> list[LogDirFailed]:
        """The errors of the log directories that do not work."""
        return [log_dir.failure for log_dir in self.log_dirs if log_dir.failure is not None]

    def log_dir_failed(self, log_dir: LogDir) -> None:
        """Take all partitions of a log directory offline (Kafka's handleLogDirFailure).

        The calling thread, which got the error of the disk, may hold other locks, so this does not wait for `lock`.
        The partitions refuse all calls from now on. They are moved to `offline` at once if `lock` is free, otherwise
        by the next `take_failed_offline`.
        """
        if log_dir.disk.is_disowned:
            # Make new locks in a forked child: if a thread of the parent holds an old one, no thread of the child can
            # release it.
            self.lock = make_rlock(Level.REGISTRY)
            self._settling = make_lock(Level.SETTLING)
        for name, partition in self.partitions.copy().items():
            if self.homes.get(name) is log_dir:
                partition.failure = log_dir.failure
                if log_dir.disk.is_disowned:
                    partition.lock = make_rlock(Level.PARTITION)
                    if isinstance(partition, Partition):
                        partition.flusher.lock = make_rlock(Level.FLUSH)
        if self.lock.acquire(blocking=False):
            try:
                self._settle_failures()
            finally:
                self.lock.release()

    def _settle_failures(self) -> None:
        with self._settling:
            here = {name: self.homes[name].failure for name in (*self.partitions, *self.unloaded)}
            lost = {name: failure for name, failure in here.items() if failure is not None}
            if lost:
                self.offline = {**self.offline, **lost}
                # Make new mappings, because the thread that got the error may be iterating over the old ones.
                self.partitions = {n: p for n, p in self.partitions.copy().items() if n not in lost}
                self.unloaded = {n: p for n, p in self.unloaded.copy().items() if n not in lost}

    def find_missing_log_dirs(self) -> None:
        """Set `missing_log_dirs` to those of the store's log directories that are not open here.

        All log directories of the store are listed in the file `logfs.dirs` of each. Does nothing for a bucket.
        """
        if not self.disk.is_remote:
            here = {Path(os.path.realpath(each.path)) for each in self.log_dirs}
            every = whole_store((each.disk, each.path) for each in self.working)
            self.missing_log_dirs = self.settings.missing_log_dirs = sorted(every - here)

    def take_failed_offline(self) -> None:
        """Take offline the log directories that were unmounted or replaced, and partitions in failed directories."""
        for log_dir in self.log_dirs:
            log_dir.check_in_place()
        with self.lock:
            self._settle_failures()

    def emptiest(self) -> LogDir:
        """Return the log directory for a new partition: the working one with the fewest partitions.

        Raises `StoreClosed`. Raises `LogDirFailed` if no log directory works, or if one has failed before the names
        of its partitions were read, because that directory may have a partition with the name of the new one.
        """
        self.take_failed_offline()
        if not self.log_dirs:
            raise StoreClosed("the store is closed; open it again")
        for log_dir in self.log_dirs:
            if log_dir.failure is not None and (not self.working or not log_dir.is_known):
                # A directory that was never read may already have a partition of the new name.
                raise log_dir.failure
        homes = list(self.homes.values())
        return min(self.working, key=lambda log_dir: sum(home is log_dir for home in homes))
