"""A store: one or several log directories, and the partitions in them (Kafka's LogManager)."""

from __future__ import annotations

import logging
import threading
import time
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

from logfs.errors import (
    InvalidSetting,
    InvalidStore,
    LogfsError,
    NotWritable,
    PartitionExists,
    UnknownPartition,
)
from logfs.format import checkpoint, names
from logfs.format.names import DirectoryKind, TopicPartition
from logfs.log import follow, recovery
from logfs.log.files import Disk, Gone, ReadOnlyDisk
from logfs.log.follow import FollowedPartition
from logfs.log.followed import FollowedSegment
from logfs.log.partition import LEADER_EPOCH, Partition
from logfs.log.segment import Segment
from logfs.store.commit import Commits
from logfs.store.compactor import Compactor
from logfs.store.groups import Groups
from logfs.store.log_dir import LogDir
from logfs.store.retainer import Retainer
from logfs.store.settings import Settings
from logfs.store.upkeep import Keeper, Task

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Collection, Iterable, Iterator
    from types import TracebackType

    from logfs.config import LogConfig
    from logfs.format.commits import StagedFile
    from logfs.store import retention
    from logfs.store.commit import Committed
    from logfs.store.upkeep import Work

    Progress = Callable[[str, int, int], None]

logger = logging.getLogger(__name__)

PARTITION_METADATA = "partition.metadata"


def now_ms() -> int:
    """The wall clock, in ms since the epoch: what a store goes by unless it is given another."""
    return time.time_ns() // 1_000_000


class Store:
    """The partitions of one or several log directories, by name: `store["orders-0"]`.

    A context manager; closing it cleanly saves the next opening the recovery. Any thread may read; creating,
    deleting and upkeep take a lock. A partition that cannot be loaded is in `offline` with the reason, and the
    others work.
    """

    def __init__(
        self,
        log_dirs: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
        *,
        read_only: bool = False,
        clock: Callable[[], int] = now_ms,
        disk: Disk | None = None,
        progress: Progress | None = None,
        only: str | Collection[str] | None = None,
        recover: bool = False,
    ) -> None:
        """Open the store, and recover what was not closed cleanly.

        A missing log directory is made, unless `read_only`: then nothing below is written, locked or repaired.
        `progress` is told (partition, bytes read, bytes in all) during recovery. `only` loads one or some partitions
        and leaves the others as they are; `recover` goes through recovery even where the last shutdown was clean.

        Raises `StoreLocked` with the holder's pid, `InvalidStore`, `InvalidSetting` and `Corrupt` for settings
        files, and `OSError`.
        """
        self.read_only = read_only
        self.clock = clock
        self.disk = disk or (ReadOnlyDisk() if read_only else Disk())
        self.partitions: dict[str, Partition] = {}
        self.offline: dict[str, LogfsError | OSError] = {}
        self.opened_ms = clock()
        self.recovered_bytes = 0
        self.loading_seconds = 0.0
        # What is being done in the background, for those who watch.
        self.background: list[Work] = []
        self.groups = Groups(self)
        self._lock = threading.RLock()
        self._only = only if only is None else {only} if isinstance(only, str) else set(only)
        self._recover = recover
        self._homes: dict[str, LogDir] = {}
        # Of a store that only reads: the directories' inode numbers, and when one that is offline was changed last.
        self._inodes: dict[str, int] = {}
        self._failed_mtime: dict[str, int] = {}
        # The directories of deleted partitions, and from when on they may go.
        self.deletions: dict[Path, int] = {}
        self._progress = progress or (lambda *_: None)
        self.compactor = Compactor(self)
        self.retainer = Retainer(self, self._lock)
        self.log_dirs = self._open_log_dirs(log_dirs)
        try:
            self.settings = Settings(self.disk, [log_dir.path for log_dir in self.log_dirs])
            self.keeper = Keeper(self, self._lock)
            self.commits = Commits(self)
            began = time.monotonic()
            for log_dir in self.log_dirs:
                self._load(log_dir)
            self.loading_seconds = time.monotonic() - began
            self.commits.finish_at_opening()
            if self.recovered_bytes:
                seconds = self.loading_seconds
                logger.info("recovered: %d bytes read in %.1f s", self.recovered_bytes, seconds)
        except BaseException:
            for log_dir in self.log_dirs:
                log_dir.close()
            raise

    def __enter__(self) -> Store:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Store({[str(log_dir.path) for log_dir in self.log_dirs]})"

    def __getitem__(self, name: str) -> Partition:
        """The partition of that name; `UnknownPartition`, or the error that keeps it offline."""
        partition = self.partitions.get(name)
        if partition is not None:
            return partition
        if name in self.offline:
            raise self.offline[name]
        raise UnknownPartition(f"{name}: no such partition; 'logfs create' makes one")

    def __contains__(self, name: object) -> bool:
        return name in self.partitions

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self.partitions))

    def __len__(self) -> int:
        return len(self.partitions)

    # Opening.

    def _open_log_dirs(
        self, log_dirs: str | os.PathLike[str] | Iterable[str | os.PathLike[str]]
    ) -> list[LogDir]:
        if isinstance(log_dirs, (str, bytes)) or not hasattr(log_dirs, "__iter__"):
            log_dirs = [log_dirs]
        paths = [Path(path).absolute() for path in log_dirs]
        if not paths:
            raise InvalidStore("a store needs at least one log directory")
        if len({path.resolve() for path in paths}) < len(paths):
            raise InvalidStore("the same log directory is named twice")
        opened: list[LogDir] = []
        try:
            for path in paths:
                self._check_log_dir(path)
                opened.append(LogDir(self.disk, path))
        except BaseException:
            for log_dir in opened:
                log_dir.close()
            raise
        return opened

    def _check_log_dir(self, path: Path) -> None:
        if path.is_dir():
            return
        if self.disk.exists(path):
            raise InvalidStore(f"{path}: is not a directory")
        if self.read_only:
            raise InvalidStore(f"{path}: there is no such log directory to open read-only")
        for parent in [*reversed(path.parents), path]:
            if not self.disk.exists(parent):
                self.disk.mkdir(parent)

    def _load(self, log_dir: LogDir) -> None:
        """Load every partition of a log directory (kafka-storage 5.1)."""
        for name, path, inode in self._scan(log_dir):
            self._inodes[name.directory] = inode
            if self._only is None or name.directory in self._only:
                self._load_partition(log_dir, name, path)
            else:
                self._homes[name.directory] = log_dir

    def _scan(self, log_dir: LogDir) -> list[tuple[TopicPartition, Path, int]]:
        """The partitions of a log directory with their inode numbers; what is to be deleted is noted."""
        found: list[tuple[TopicPartition, Path, int]] = []
        for entry in self.disk.scan(log_dir.path):
            if not entry.is_dir(follow_symlinks=False):
                continue
            try:
                kind, name = names.classify_directory(entry.name)
            except LogfsError:
                # lost+found and the like: a broker refuses the whole directory, a reader need not.
                logger.info("%s: is not a partition, left alone", entry.path)
                continue
            path = log_dir.path / entry.name
            if kind is DirectoryKind.DELETED and not self.read_only:
                self.deletions[path] = self.clock()
            elif kind is DirectoryKind.NORMAL and name.topic != "__cluster_metadata":
                found.append((name, path, entry.inode()))
        return sorted(found)

    def _load_partition(self, log_dir: LogDir, name: TopicPartition, path: Path) -> None:
        if name.directory in self._homes:
            other = self._homes[name.directory].path
            raise InvalidStore(
                f"{name.directory} is in two log directories: {other}, {log_dir.path}"
            )
        self._homes[name.directory] = log_dir
        try:
            self.partitions[name.directory] = self._open_partition(log_dir, name, path)
        except (FileNotFoundError, Gone) as error:
            if not self.read_only:
                raise
            # Somebody else is deleting it, or was quicker than we: the next refresh looks again.
            logger.info("%s: changed while it was loaded: %s", path, error)
            del self._homes[name.directory]
            log_dir.look_again()
        except (LogfsError, OSError) as error:
            logger.error("%s: offline: %s", path, error)
            self.offline[name.directory] = error
        except Exception as error:
            # Whatever a hostile file may provoke, the other partitions are not to suffer from it.
            reason = InvalidStore(f"{path}: cannot be loaded: {error!r}")
            logger.exception("%s: offline", path)
            self.offline[name.directory] = reason

    def _open_partition(self, log_dir: LogDir, name: TopicPartition, path: Path) -> Partition:
        changed = self.commits.take_stock(log_dir, name, path)
        clean = log_dir.clean and not self._recover and not changed
        point = 0 if self._recover else log_dir.recovery_points.get(name, 0)
        start = recovery.Start(
            clean,
            point,
            log_dir.log_starts.get(name, 0),
            log_dir.may_have_gaps(name),
            self.settings.broker_config.producer_id_expiration_ms,
        )
        config = self.settings.log_config(name.topic)
        total = 0
        if not clean and not log_dir.live:
            logs = (e for e in self.disk.scan(path) if e.name.endswith(names.LOG))
            total = sum(entry.stat(follow_symlinks=False).st_size for entry in logs)
        done = 0

        def report(size: int) -> None:
            nonlocal done
            done += size
            self.recovered_bytes += size
            self._progress(name.directory, done, total)

        def load() -> recovery.Loaded:
            if log_dir.live:
                return follow.load(self.disk, path, start)
            kind = FollowedSegment if self.read_only else Segment
            return recovery.load(self.disk, path, config, start, self.clock(), report, kind)

        def get_config() -> LogConfig:
            return self.settings.log_config(name.topic)

        if self.read_only:
            return FollowedPartition(self.disk, path, name, get_config, self.clock, load)
        return Partition(self.disk, path, name, get_config, self.clock, load())

    # Partitions.

    def create(self, name: str) -> Partition:
        """Make a partition, in the log directory that has the fewest; durable when this returns.

        Raises `InvalidName`, `PartitionExists`, `NotWritable`.
        """
        parsed = names.parse_directory(name)
        self._check_writable(name)
        with self._lock:
            if name in self._homes:
                raise PartitionExists(f"{name}: the partition exists")
            counts = [
                sum(home is log_dir for home in self._homes.values()) for log_dir in self.log_dirs
            ]
            log_dir = self.log_dirs[counts.index(min(counts))]
            path = log_dir.path / name
            self.disk.mkdir(path)
            topic_id = self.topic_id(parsed.topic) or checkpoint.random_uuid()
            self.disk.replace_file(
                path / PARTITION_METADATA, checkpoint.format_partition_metadata(topic_id)
            )
            loaded = recovery.load(
                self.disk,
                path,
                self.settings.log_config(parsed.topic),
                recovery.Start(clean=True),
                self.clock(),
            )
            # A leader notes its epoch before any record (kafka-storage 10.1), and nobody has to wait for it later.
            loaded.epochs.assign(LEADER_EPOCH, 0)
            self.disk.sync_directory(path)
            topic = parsed.topic
            partition = Partition(
                self.disk, path, parsed, lambda: self.settings.log_config(topic), self.clock, loaded
            )
            self._homes[name] = log_dir
            self.partitions[name] = partition
            if parsed in log_dir.recovery_points or parsed in log_dir.log_starts:
                # Of a partition that was deleted before the checkpoints could be written: not of this one.
                self.write_checkpoints()
            self._forget_cleaner_offset(log_dir, parsed)
            return partition

    def topic_id(self, topic: str) -> uuid.UUID | None:
        """The id that all partitions of a topic share (kafka-storage 1.5); None if no file tells it."""
        for partition in self.partitions.values():
            path = partition.directory / PARTITION_METADATA
            if partition.topic == topic and self.disk.exists(path):
                return checkpoint.parse_partition_metadata(self.disk.read_file(path))
        return None

    def delete(self, name: str) -> None:
        """Delete a partition as Kafka does: renamed at once, removed after `file.delete.delay.ms`.

        What groups have committed for it goes, too, and the topic's settings go with its last partition. Raises
        `UnknownPartition`, `NotWritable`.
        """
        self._check_writable(name)
        with self._lock:
            partition = self.partitions.get(name)
            if partition is None:
                raise UnknownPartition(f"{name}: no such partition")
            delay_ms = partition.config.file_delete_delay_ms
            partition.close("the partition is deleted")
            doomed = partition.directory.with_name(
                names.deleted_directory(partition.name, uuid.uuid4().hex)
            )
            self.disk.rename(partition.directory, doomed)
            partition.directory = doomed
            del self.partitions[name]
            self._forget_cleaner_offset(self._homes.pop(name), partition.name)
            self.deletions[doomed] = self.clock() + delay_ms
            if not any(other.topic == partition.topic for other in self.partitions.values()):
                self.settings.remove_topic(partition.topic)
            self.write_checkpoints()
        try:
            self.groups.forget_partition(name)
        except (LogfsError, OSError) as error:
            # The partition is gone all the same; one of that name would only find old commits.
            logger.error("%s: deleted, but not what groups have committed for it: %s", name, error)

    def truncate(self, name: str, offset: int) -> bool:
        """Drop the records of a partition at or beyond an offset, for good; whether any went."""
        with self._lock:
            partition = self[name]
            if offset < partition.recovery_point:
                # First: a crash in between must not take what is being dropped for durable records that are lost.
                partition.lower_recovery_point(offset)
                self.write_checkpoints()
            changed = partition.truncate(offset)
            if changed:
                self.write_checkpoints()
                if (self.cleaner_offset(name) or 0) > partition.log_end_offset:
                    self.set_cleaner_offset(partition, partition.active.base_offset)
            return changed

    def delete_records(self, name: str, offset: int) -> int:
        """Make the records below an offset unreadable, for good; the log start offset then (Kafka's DeleteRecords).

        -1 means all there are. Going back changes nothing. Their segments go at the next `retain`. Raises
        `OffsetOutOfRange` beyond the log end, `InvalidSetting` where `cleanup.policy` deletes nothing.
        """
        with self._lock:
            partition = self[name]
            if not partition.config.is_deleted:
                raise InvalidSetting(
                    f"{name}: cleanup.policy has no 'delete', so its records are not deleted by offset"
                )
            partition.advance_log_start(partition.log_end_offset if offset == -1 else offset)
            self.write_checkpoints()
            self.keeper.ask(Task.RETENTION)
            return partition.log_start_offset

    def commit(self, writer: str, sequence: int, staged: Iterable[StagedFile]) -> Committed:
        """Append batches that were staged for several partitions, all or none and only once; see `Commits.commit`."""
        return self.commits.commit(writer, sequence, staged)

    # `retainer` and `compactor` do it; here is what has to be remembered of a compaction.

    def retention_plan(self, name: str) -> retention.Plan:
        """What `retain` would do to a partition now, and why; nothing is done."""
        return self.retainer.plan(name)

    def retain(self, names: Iterable[str] | None = None) -> int:
        """Drop every segment that has had its time (kafka-storage 7), of these partitions or all; how many."""
        return self.retainer.retain(names)

    def compact(self, name: str, *, roll: bool = False) -> None:
        """Compact a partition now; see `Compactor.compact`, which also tells of its progress."""
        self._check_writable(name)
        self.compactor.compact(name, roll=roll)

    def cleaner_offset(self, name: str) -> int | None:
        """The offset up to which a partition was compacted; None if it never was (kafka-storage 8.9)."""
        return self._homes[name].cleaner_offsets.get(self[name].name)

    def set_cleaner_offset(self, partition: Partition, offset: int) -> None:
        """Note that a partition was compacted up to an offset; one that was deleted meanwhile is passed over."""
        with self._lock:
            if self.partitions.get(partition.name.directory) is partition:
                log_dir = self._homes[partition.name.directory]
                log_dir.write_cleaner_offsets({**log_dir.cleaner_offsets, partition.name: offset})

    def _forget_cleaner_offset(self, log_dir: LogDir, name: TopicPartition) -> None:
        if name in log_dir.cleaner_offsets:
            known = log_dir.cleaner_offsets
            log_dir.write_cleaner_offsets({n: o for n, o in known.items() if n != name})

    def home(self, name: str) -> Path:
        """The log directory that a partition lies in."""
        return self._homes[name].path

    def is_known(self, name: str) -> bool:
        """Whether there is a partition of that name, loaded or not."""
        return name in self._homes

    def is_brokers(self, name: str) -> bool:
        """Whether a broker also uses the directory that a partition lies in."""
        return self._homes[name].is_brokers

    def _check_writable(self, name: str) -> None:
        if self.read_only:
            raise NotWritable(f"{name}: the store is open read-only")

    # Upkeep.

    def refresh(self) -> None:
        """Bring a store that only reads up to date: partitions that came or went, and what was done to the others.

        One that writes itself has nothing to look for. A partition that was deleted, or deleted and made again, is
        another object afterwards, or none; readers of the old one go on with what they have.
        """
        if not self.read_only:
            return
        with self._lock:
            for log_dir in self.log_dirs:
                if log_dir.has_changed():
                    self._refresh_names(log_dir)
        for name, partition in list(self.partitions.items()):
            try:
                partition.refresh()
            except (LogfsError, OSError) as error:
                logger.error("%s: cannot be followed: %s", name, error)

    def _refresh_names(self, log_dir: LogDir) -> None:
        """Drop the partitions that have left a log directory, load the new ones, and take the checkpoint."""
        found = {name.directory: (name, path, inode) for name, path, inode in self._scan(log_dir)}
        for directory in [d for d, home in self._homes.items() if home is log_dir]:
            inode = found[directory][2] if directory in found else None
            if inode != self._inodes.get(directory) or self._may_work_now(directory, log_dir):
                self.partitions.pop(directory, None)
                self.offline.pop(directory, None)
                del self._homes[directory]
        for directory, (name, path, inode) in found.items():
            is_wanted = self._only is None or directory in self._only
            if directory not in self._homes and is_wanted:
                self._inodes[directory] = inode
                self._load_partition(log_dir, name, path)
            elif self._homes.get(directory, log_dir) is not log_dir:
                # On its way from one log directory to another: it is in both for a moment.
                log_dir.look_again()
        for partition in self.partitions.values():
            if isinstance(partition, FollowedPartition) and partition.directory.name in found:
                partition.follow_log_start(log_dir.log_starts.get(partition.name, 0))

    def _may_work_now(self, directory: str, log_dir: LogDir) -> bool:
        """Whether a partition that could not be loaded has been changed since."""
        if directory not in self.offline:
            return False
        try:
            mtime = self.disk.stat(log_dir.path / directory).st_mtime_ns
        except FileNotFoundError:
            return True
        before, self._failed_mtime[directory] = self._failed_mtime.get(directory), mtime
        return before is not None and before != mtime

    def upkeep(self, *, compaction: bool = True) -> None:
        """Do what is due by now (see `logfs.store.upkeep`). May take long; what fails is logged and tried again.

        For a store that only reads, this is `refresh`. Without `compaction`, which takes longest, that is left to who
        calls `compactor.run_due` in another thread.
        """
        if self.read_only:
            self.refresh()
            return
        self.keeper.run_due()
        if compaction:
            self.compactor.run_due()

    def write_checkpoints(self) -> None:
        """Write the recovery points, log start offsets and high watermarks of every log directory."""
        for log_dir in self.log_dirs:
            here = [p for n, p in self.partitions.items() if self._homes[n] is log_dir]
            points = {partition.name: partition.recovery_point for partition in here}
            starts = {
                partition.name: partition.log_start_offset
                for partition in here
                if partition.log_start_offset > partition.segments[0].base_offset
            }
            for directory, home in self._homes.items():
                # Offline, or not loaded: what was known of it stays known.
                if home is log_dir and directory not in self.partitions:
                    name = names.parse_directory(directory)
                    points[name] = log_dir.recovery_points.get(name, 0)
                    if name in log_dir.log_starts:
                        starts[name] = log_dir.log_starts[name]
            log_dir.write_recovery_points(points)
            log_dir.write_high_watermarks(points)
            log_dir.write_log_starts(starts)

    def close(self) -> None:
        """Flush and close everything; the clean-shutdown marker is written only where it is true.

        Closing twice is harmless.
        """
        with self._lock:
            log_dirs, self.log_dirs = self.log_dirs, []
            try:
                if self.read_only:
                    for partition in self.partitions.values():
                        partition.close()
                else:
                    self._close_partitions(log_dirs)
            finally:
                for log_dir in log_dirs:
                    log_dir.close()

    def _close_partitions(self, log_dirs: list[LogDir]) -> None:
        dirty = {
            id(self._homes[name])
            for name, partition in self.partitions.items()
            if not partition.close()
        }
        dirty |= {id(self._homes[name]) for name in self.offline}
        # Those that were not looked at are as clean as they were.
        unseen = {id(home) for name, home in self._homes.items() if name not in self.partitions}
        dirty |= {id(log_dir) for log_dir in log_dirs if not log_dir.clean} & unseen
        self.log_dirs = log_dirs
        self.write_checkpoints()
        self.log_dirs = []
        for log_dir in log_dirs:
            if id(log_dir) not in dirty:
                log_dir.mark_clean()
