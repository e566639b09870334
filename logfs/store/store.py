"""A store: one or several log directories, and the partitions in them (Kafka's LogManager)."""

from __future__ import annotations

import logging
import os
import time
import uuid
from contextlib import contextmanager, nullcontext, suppress
from typing import TYPE_CHECKING

from logfs.errors import (
    InvalidSetting,
    LogfsError,
    NotWritable,
    OffsetOutOfRange,
    PartitionExists,
    StoreClosed,
)
from logfs.format.base import names
from logfs.format.files import checkpoint
from logfs.log import recovery
from logfs.log.append.partition import LEADER_EPOCH, Partition, writable
from logfs.log.disk.bucket_path import BucketPath, as_path
from logfs.log.disk.disk import Disk, ReadOnlyDisk
from logfs.log.follow.live_partition import LivePartition
from logfs.log.partition_copy import remove_directory
from logfs.setting import MIRROR_SOURCE
from logfs.store.checkpoints import Checkpoints
from logfs.store.directory.log_dir import PATIENCE_SECONDS, FirstError, whole_store
from logfs.store.directory.recognition import check_log_dirs
from logfs.store.directory.topic_id import write_topic_id
from logfs.store.groups import TOPIC as GROUPS_TOPIC
from logfs.store.groups import Groups
from logfs.store.loading import PartitionLoader, open_log_dirs
from logfs.store.maintenance.compaction import Compactor
from logfs.store.maintenance.context import MaintenanceContext
from logfs.store.maintenance.deletion import Deleter
from logfs.store.maintenance.mover import Mover
from logfs.store.maintenance.remote_log_manager import RemoteLogManager
from logfs.store.maintenance.retention import Retainer
from logfs.store.maintenance.schedule import MaintenanceTask
from logfs.store.maintenance.upkeep import Upkeep
from logfs.store.parallel import for_each
from logfs.store.registry import PartitionRegistry
from logfs.store.settings import Settings
from logfs.store.staged_commits import Commits
from logfs.store.tiering.tiered_logs import TieredLogs
from logfs.store.topic import Topic
from logfs.store.transactions import Transactions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from logfs.format.base.names import TopicPartition
    from logfs.format.files.commit_file import StagedFile
    from logfs.log.read.log import Log
    from logfs.store.directory.log_dir import LogDir
    from logfs.store.loading import Only, Progress
    from logfs.store.maintenance import retention
    from logfs.store.staged_commits import Committed

logger = logging.getLogger(__name__)

_CLOSING_THREADS = 8


def _disk_for(log_dirs: Iterable[str | os.PathLike[str]], *, read_only: bool) -> Disk:
    """Return the `Disk` for paths of log directories, or for one path of a bucket.

    Raises `NotWritable` for a bucket unless `read_only`.
    """
    for path in map(as_path, log_dirs):
        if isinstance(path, BucketPath):
            if not read_only:
                raise NotWritable(f"{path}: a bucket can only be read; open it read-only")
            from logfs.log.remote.bucket_disk import BucketDisk

            return BucketDisk(path)
    return ReadOnlyDisk() if read_only else Disk()


@contextmanager
def _logged(what: str) -> Iterator[None]:
    """Log and suppress a `LogfsError` or `OSError` of the work in this context: upkeep repeats the failed work."""
    try:
        yield
    except (LogfsError, OSError) as error:
        logger.error("%s: %s", what, error)


def now_ms() -> int:
    """Return the wall-clock time in ms since the epoch; this is the default clock of a store."""
    return time.time_ns() // 1_000_000


class Store:
    """The partitions of one or several log directories, by name: `store["orders-0"]`.

    A store is a context manager; after a clean close the next opening needs no recovery. `registry` has the state
    that the parts of the store share. Methods that add or remove partitions, or change checkpoints, take the lock of
    `registry`; reading needs no lock. A partition that cannot be loaded is in `offline` with the reason; the others
    work. In a forked child, calls raise `LogDirFailed`, because the parent holds the lock of the log directory.
    """

    def __init__(
        self,
        log_dirs: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
        *,
        read_only: bool = False,
        clock: Callable[[], int] = now_ms,
        disk: Disk | None = None,
        progress: Progress | None = None,
        only: Only | None = None,
        recover: bool = False,
        create: bool = True,
        lazy: bool = False,
    ) -> None:
        """Open the store, and recover the partitions that were not closed cleanly.

        With `read_only` nothing on the disk is written, locked or repaired. Otherwise an empty directory becomes a
        log directory, and with `create` a missing one, too, if its parent directory exists. Any other path that is
        not a log directory raises `InvalidStore`, and nothing in it is changed. `clock` returns the time in ms since
        the epoch. `disk` is the `Disk` with which the store reads and writes files, by default one that suits
        `log_dirs` and `read_only`. The errors are those of `logfs.open`.

        With `lazy`, a partition is loaded, and recovered if necessary, at its first use or by `load_all`; otherwise
        the constructor loads all partitions. With `recover`, a partition is recovered whenever it is loaded, even
        after a clean shutdown. `progress` is called with (partition, bytes read, bytes in all) during recovery,
        perhaps by several threads at the same time.

        `only` is the name of the one partition to load, or a function that returns, for a name, whether to load the
        partition. Iteration over the store leaves out the other partitions. The store loads one of them only if it
        needs the partition itself: to finish a commit, or because the partition belongs to an internal topic.

        A `Lease` may be given in place of a log directory that another process has locked; it permits work on one
        partition. The URL of a bucket, such as `s3://bucket/prefix`, may be given alone and with `read_only`; the
        partitions are then those that brokers have copied to the bucket.
        """
        log_dirs = [log_dirs] if isinstance(log_dirs, (str, os.PathLike)) else list(log_dirs)
        check_log_dirs(log_dirs, may_be_empty=not read_only, may_be_made=create and not read_only)
        self.disk = disk or _disk_for(log_dirs, read_only=read_only)
        self.clock = clock
        self.read_only = read_only
        self._is_lazy = lazy
        self.loading_seconds = 0.0
        self.registry = registry = PartitionRegistry(self.disk, clock, read_only=read_only)
        registry.log_dirs = open_log_dirs(self.disk, log_dirs, registry.log_dir_failed)
        try:
            self.settings = registry.settings = Settings(
                [(log_dir.disk, log_dir.path) for log_dir in self.log_dirs]
            )
            self._make_parts()
            registry.loader = PartitionLoader(
                registry,
                self.commits,
                self.tiered,
                progress or (lambda *_: None),
                only=only,
                recover=recover,
            )
            self._find_partitions()
        except BaseException:
            for log_dir in self.log_dirs:
                log_dir.close()
            raise

    def _make_parts(self) -> None:
        """Make the parts of the store. `Commits` reads the commit files; the other parts read no files yet."""
        registry = self.registry
        self.groups = Groups(registry, self.create)
        self.transactions = Transactions(registry, self.create, self.groups)
        self.commits = Commits(registry)
        self.tiered = TieredLogs(registry, self.create)
        self.checkpoints = Checkpoints(registry)
        context = MaintenanceContext(
            registry,
            self.checkpoints,
            self.commits,
            self.tiered,
            self.groups,
            self.transactions,
        )
        self.retainer = Retainer(context)
        self.compactor = Compactor(context)
        self.remote_log_manager = RemoteLogManager(context)
        self.mover = Mover(context, self.compactor)
        self.deleter = Deleter(context)
        self.scheduler = Upkeep(context, self.retainer, self.compactor, self.mover)

    def _find_partitions(self) -> None:
        """Find and load the partitions, then finish the commits that are decided but not done.

        A lazy store loads only the partitions of these commits.
        """
        began = time.monotonic()
        self.registry.find_missing_log_dirs()
        self.registry.loader.find()
        for name in sorted(self.commits.partitions()):
            # `Commits.reconcile` requires that these partitions are loaded first, even if `only` excludes them.
            self.registry.include(name)
        if not self._is_lazy:
            self.load_all()
        if not self.registry.working:
            raise self.registry.failed[0]
        self.loading_seconds = time.monotonic() - began
        if not self.read_only and len(self.registry.working) > 1:
            every = whole_store((each.disk, each.path) for each in self.registry.working)
            for log_dir in self.registry.working:
                log_dir.note_store(every)
        if not (self.read_only or self.registry.loader.is_partial):
            self.deleter.finish()
            if not self._is_lazy:
                # What fails is logged, and `upkeep` tries it again.
                with _logged("open transactions are not ended yet"):
                    self.transactions.finish()
        with _logged("a decided commit is not finished yet"):
            self.commits.finish()

    def load_all(self, *, gently: bool = False) -> None:
        """Load the partitions of a lazy store that are not loaded yet, and recover them if necessary; may take long.

        Other threads may use the store meanwhile. With `gently`, loading pauses after each partition for as long as
        the load took, to leave time to these threads. There are no pauses if partitions may need recovery.
        `stop_loading` and `close` end the loading.
        """
        began = time.monotonic()
        self.registry.loader.load_all(gently=gently)
        if self.registry.loader.recovered_partitions:
            logger.info(
                "recovered %d partitions: %d bytes read in %.1f s",
                self.registry.loader.recovered_partitions,
                self.recovered_bytes,
                time.monotonic() - began,
            )

    def stop_maintenance(self) -> None:
        """Request that running compactions, moves and copies end early, and that no others begin; does not wait."""
        for each in (self.compactor, self.mover, self.remote_log_manager):
            each.stop()

    def stop_loading(self) -> None:
        """Start no more loads, interrupt the running recoveries, and wait until the running loads have ended."""
        self.registry.loader.stop()

    @property
    def recovered_bytes(self) -> int:
        """The number of bytes that recovery has read since the store was opened."""
        return self.registry.loader.recovered_bytes

    def __enter__(self) -> Store:
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if isinstance(error, KeyboardInterrupt):
            # Ctrl-C may have interrupted a change half-way, so the directories must not be marked as clean.
            self.leave()
        else:
            self.close()

    def __repr__(self) -> str:
        return f"Store({[str(log_dir.path) for log_dir in self.log_dirs]})"

    @property
    def log_dirs(self) -> list[LogDir]:
        """The log directories; none once the store is closed."""
        return self.registry.log_dirs

    @property
    def offline(self) -> dict[str, LogfsError | OSError]:
        """The error of each offline partition, by name. Other threads may change the mapping: loop over a copy."""
        return self.registry.offline

    def __getitem__(self, name: str) -> Log:
        """Return a partition, loaded if necessary. Raises `UnknownPartition`, or the error that keeps it offline."""
        return self.registry[name]

    def __contains__(self, name: object) -> bool:
        return name in self.registry

    def __iter__(self) -> Iterator[str]:
        """Iterate over the names of the partitions that are not offline, in sorted order."""
        return iter(self.registry)

    def __len__(self) -> int:
        return len(self.registry)

    def find(self, name: str) -> Log | None:
        """Return a partition, which is loaded if necessary; None if it is unknown, offline or cannot be loaded."""
        return self.registry.find(name)

    def writable(self, name: str) -> Partition:
        """Return a partition for changes. Raises the errors of `store[name]`; in a read-only store, `NotWritable`."""
        return self.registry.writable(name)

    def check_creatable(self, name: str, *, mirror_of: str = "") -> None:
        """Raise the error with which `create` would refuse a partition, before the caller changes anything for it.

        Only the process that mirrors a cluster may create partitions of a mirrored topic: it must give the topic's
        `logfs.mirror.source` as `mirror_of`. Raises `InvalidName`, `PartitionExists`, `NotWritable`, `StoreClosed`,
        and `InvalidStore` if the partition is in a log directory that is not open.
        """
        topic = names.parse_directory(name).topic
        self._check_writable(name)
        source = self.settings.topic_overrides(topic).get(MIRROR_SOURCE, "")
        if source not in ("", mirror_of):
            raise NotWritable.of_mirror(name, source)
        if name in self.registry.homes:
            raise PartitionExists(f"{name}: the partition exists")
        self.registry.check_absent(name)

    def create(
        self, name: str, *, mirror_of: str = "", mirrored_id: uuid.UUID | None = None
    ) -> Partition:
        """Create a partition in the log directory with the fewest partitions, and return it when it is durable.

        Committed offsets and unfinished commits for an earlier partition of that name, which was deleted, are
        dropped. `mirror_of` and `mirrored_id` are only for the process that mirrors a cluster: they are the topic's
        setting `logfs.mirror.source`, and the topic's id in that cluster. The partition then gets this id, and no
        leader epoch until its first batch is appended.

        Raises `InvalidSetting` if the settings of the topic contradict each other, `OSError` (`LogDirFailed` is one),
        and the errors of `check_creatable`, `Commits.forget_partition` and `Groups.forget_partition`.
        """
        self.check_creatable(name, mirror_of=mirror_of)
        parsed = names.parse_directory(name)
        # An earlier partition of that name may have left unfinished commits and, if its deletion was interrupted,
        # committed offsets.
        self.commits.forget_partition(name)
        if parsed.topic != GROUPS_TOPIC:
            self.groups.forget_partition(name)
        with self.registry.lock:
            if name in self.registry.homes:
                raise PartitionExists(f"{name}: the partition exists")
            log_dir = self.registry.emptiest()
            is_new = log_dir not in list(self.registry.homes.values())
            self.settings.copy_to(parsed.topic, log_dir.disk, log_dir.path, is_new=is_new)
            partition = self._make(log_dir, parsed, mirrored_id)
            self.registry.homes[name] = log_dir
            self.registry.partitions[name] = partition
            if parsed in log_dir.recovery_points or parsed in log_dir.log_starts:
                # Remove checkpoint entries that the deletion of a partition of that name failed to remove.
                self.checkpoints.write()
            log_dir.set_cleaner_offset(parsed, None)
        return partition

    def _make(
        self, log_dir: LogDir, name: TopicPartition, mirrored_id: uuid.UUID | None
    ) -> Partition:
        """Create the directory of a partition and its first files; after an error, remove them.

        `mirrored_id` is the id that the topic has in the cluster that it mirrors, None for a topic that is no mirror.
        """
        disk, path, topic = log_dir.disk, log_dir.path / name.directory, name.topic
        disk.mkdir(path)
        try:
            topic_id = self.registry.topic_id(topic)
            for each in () if topic_id or mirrored_id else self.registry.partitions_of(topic):
                failure = self.registry.homes[each].failure
                if failure is not None:
                    # The topic has an id, which cannot be read now.
                    raise failure
            # A deleted partition of that name may have left remote segments with the same topic id: delete these.
            self.tiered.forget_partition(topic_id, name.directory)
            topic_id = mirrored_id or topic_id or checkpoint.random_uuid()
            write_topic_id(disk, path, topic_id)
            config = self.settings.log_config(topic)
            loaded = recovery.load(
                disk, path, config, recovery.LoadStart(closed=True), self.clock()
            )
            # A leader adds its epoch before any record (kafka-storage 10.1). Do it here, where it delays no append.
            if mirrored_id is None:
                loaded.epochs.assign(LEADER_EPOCH, 0)
            disk.sync_directory(path)
        except BaseException:
            # Rename the directory first: this needs no file descriptor. If the removal then fails, the next opening
            # of the store removes the directory.
            doomed = path.with_name(names.deleted_directory(name, uuid.uuid4().hex))
            with suppress(LogfsError, OSError):
                disk.rename_unsynced(path, doomed)
                remove_directory(disk, doomed)
            raise
        return Partition(
            disk, path, name, lambda: self.settings.log_config(topic), self.clock, loaded
        )

    def move(self, name: str, log_dir: str | os.PathLike[str]) -> None:
        """Move a partition to another log directory of the store; appends and reads go on meanwhile.

        Raises `InvalidName` if the store does not have the directory or the partition is in it already, and the other
        errors of `Mover.move`, which can also report progress.
        """
        self.mover.move(name, log_dir)

    def topic(self, name: str) -> Topic:
        """Return an object that appends to all partitions of a topic, and reads them merged by time."""
        return Topic(self, name)

    def delete(self, name: str, *, only_empty: bool = False) -> None:
        """Delete a partition as Kafka does: its directory is renamed now, and removed after `file.delete.delay.ms`.

        Until then `undelete` can restore the partition. The committed offsets of consumer groups for the partition
        are removed, too, and with the last partition of a topic also the topic's settings.

        Raises `UnknownPartition`, `NotWritable`, `OSError`, the error that keeps the partition offline, and, with
        `only_empty`, `PartitionNotEmpty` if the partition has records. The committed offsets are in the partitions of
        `__consumer_offsets`: raises `PartitionFailed` if one of these is offline, and `InvalidStore` if one is in a
        log directory of the store that was not opened. If the topic's settings cannot be removed from all log
        directories, raises `LogDirFailed` (one has failed) or `InvalidStore` (one was not opened).
        """
        self._check_writable(name)
        self.deleter.delete(name, only_empty=only_empty)

    def undelete(self, name: str) -> Log:
        """Restore a deleted partition, and return it. This is possible until `file.delete.delay.ms` has passed.

        `name` is the name of the partition, or of its `-delete` directory. The records, the log start and the
        committed offsets of groups are restored, and, if the topic has no other partition, also the topic's settings.
        Transactions that have ended meanwhile are aborted in the partition. Raises `UnknownPartition` if the
        partition cannot be restored, `PartitionExists`, `InvalidStore` if a new topic has the name of the partition's
        topic, `NotWritable`, and the errors of a load and of an append.
        """
        self._check_writable(name)
        restored = self.deleter.undelete(name)
        self.transactions.end_hanging(writable(restored), restored=True)
        return restored

    def undelete_all(self, name: str) -> list[Log]:
        """Restore the deleted partitions of a topic, or one deleted partition, and return them.

        `name` is the name of the topic, of the partition, or of the `-delete` directory of the partition. For a topic
        that was deleted several times, only the partitions with its last topic id are restored. If one cannot be
        restored or loaded, the others are restored all the same. Then the first error is raised. Raises the errors of
        `undelete`.
        """
        self._check_writable(name)
        found, errors = [], FirstError()
        for each in self.deleter.deleted(name):
            with errors:
                found.append(self.undelete(each))
        errors.throw()
        return found

    def truncate(self, name: str, offset: int, *, mirror_of: str | None = None) -> bool:
        """Remove the records of a partition at or above an offset irrevocably; return whether anything changed.

        A batch that straddles `offset` is removed whole. If the marker of a finished transaction is removed, but not
        its first records, the marker is appended again. Only the process that mirrors a cluster may truncate a
        mirrored topic: it must give the topic's `logfs.mirror.source` as `mirror_of`. Raises `NotWritable`, and
        `OffsetOutOfRange` for a negative offset, and for one whose record is only in the object store.
        """
        if offset < 0:
            raise OffsetOutOfRange(f"{name}: cannot truncate at offset {offset}: give 0 or more")
        partition = self.writable(name)
        # The markers of a mirrored topic come from the mirrored cluster.
        keeping = (
            self.transactions.truncating(partition, offset) if mirror_of is None else nullcontext()
        )
        with keeping, self.registry.lock:
            self._check_changeable(partition, mirror_of)
            partition.check_truncatable(offset)
            self.commits.clear_place(name)
            if offset < partition.recovery_point:
                # Lower the recovery point first: otherwise recovery after a crash would report the removed records
                # as lost. The batch that holds `offset` is removed whole, so the new log end may be below `offset`.
                end = partition.state.segments_from(offset)[0].end_before(offset).next_offset
                partition.flusher.lower_recovery_point(min(offset, end))
                self.checkpoints.write_one(self.registry.homes[name])
            self.tiered.forget_from(partition, offset)
            with partition.flusher.lock, partition.lock:
                # Check again: if the topic is no longer a mirror, others may have written the records to remove.
                self._check_changeable(partition, mirror_of)
                changed = partition.truncate(offset)
            if changed:
                self.checkpoints.write_one(self.registry.homes[name])
                if (self.checkpoints.cleaner_offset(name) or 0) > partition.log_end_offset:
                    self.checkpoints.set_cleaner_offset(partition, partition.active.base_offset)
            return changed

    def _check_changeable(self, partition: Partition, mirror_of: str | None) -> None:
        if mirror_of is None:
            partition.check_appendable()
        else:
            partition.check_mirror(mirror_of)

    def delete_records(self, name: str, offset: int, *, mirror_of: str | None = None) -> int:
        """Advance the log start irrevocably to an offset, and return the new log start (Kafka's DeleteRecords).

        -1 stands for the log end offset. An offset below the log start changes nothing. The next `retain` deletes the
        segments that lie wholly below the new log start. Only the process that mirrors a cluster may change a
        mirrored topic: it must give the topic's `logfs.mirror.source` as `mirror_of`. Raises `OffsetOutOfRange` for
        an offset above the log end or below -1, `NotWritable`, and, without `mirror_of`, `InvalidSetting` if
        `cleanup.policy` has no `delete`.
        """
        if offset < -1:
            raise OffsetOutOfRange(
                f"{name}: cannot delete up to offset {offset}: give 0 or more, or -1 for the log end"
            )
        partition = self.writable(name)
        with self.registry.lock:
            self._check_changeable(partition, mirror_of)
            if not partition.config.has_delete_policy and mirror_of is None:
                raise InvalidSetting(
                    f"{name}: cleanup.policy has no 'delete', so records cannot be deleted by offset; add 'delete'"
                )
            self.commits.clear_place(name)
            partition.advance_log_start(partition.log_end_offset if offset == -1 else offset)
            # Write the checkpoints of this log directory only: the full disk of another one must not fail this call.
            self.checkpoints.write_one(self.registry.homes[name])
            self.scheduler.ask(MaintenanceTask.RETENTION)
            return partition.log_start_offset

    def commit(self, writer: str, sequence: int, staged: Iterable[StagedFile]) -> Committed:
        """Append staged batches to several partitions, all or none, and return when they are durable.

        `writer` is the name of the writer, and `sequence` the writer's own number of this commit. If the number is
        not above that of the writer's last commit, nothing is appended. `Commits.commit` lists the errors.
        """
        return self.commits.commit(writer, sequence, staged)

    def retention_plan(self, name: str) -> retention.RetentionPlan:
        """Return what `retain` would do to a partition now, and why, without doing it."""
        return self.retainer.plan(name)

    def retain(self, names: Iterable[str] | None = None) -> int:
        """Delete all segments that are eligible for deletion (kafka-storage 7), and return their number.

        Without `names`, all partitions are examined, except failed ones and those whose upkeep is paused. Remote
        segments that no partition needs any more are deleted, too, once `file.delete.delay.ms` has passed.
        """
        dropped = self.retainer.retain(names)
        self.remote_log_manager.expire()
        return dropped

    def tier(self, name: str) -> int:
        """Copy the sealed segments of a tiered partition into the object store now, and return how many were copied.

        Only segments that end at or below the last stable offset are copied. Raises `NotWritable`, `InvalidSetting`
        if the topic is not tiered, and the other errors of `RemoteLogManager.copy`, which can also report progress.
        """
        self._check_writable(name)
        return len(self.remote_log_manager.copy(name).segments)

    def compact(self, name: str, *, roll: bool = False) -> None:
        """Compact a partition now, whatever its dirty ratio.

        With `roll` the active segment is sealed first, so that it is compacted, too. Raises `NotWritable`,
        `InvalidSetting` if `cleanup.policy` has no `compact`, and the other errors of `Compactor.compact`, which also
        reports progress and returns the result.
        """
        self._check_writable(name)
        self.compactor.compact(name, roll=roll)

    def _check_writable(self, name: str) -> None:
        if self.read_only:
            raise NotWritable(f"{name}: the store is open read-only")
        if not self.log_dirs:
            raise StoreClosed(f"{name}: the store is closed; open it again")

    def refresh(self, name: str | None = None) -> None:
        """Bring a read-only store up to date with what other processes have changed: partitions, records, settings.

        In a writable store this does nothing. A deleted partition is removed from the store. A partition that was
        deleted and created again becomes a new object; readers of the old object can still read its segments. With
        `name`, the records of that partition alone are brought up to date, which is faster.
        """
        if not self.read_only:
            return
        with self.registry.lock:
            changed = [
                log_dir
                for log_dir in self.log_dirs
                if log_dir.has_changed() or self.registry.loader.may_work_now(log_dir)
            ]
            if changed:
                # The settings may have changed, too: a change replaces a file, and so changes the directory's mtime.
                self.settings.reread()
                self.registry.loader.refresh(changed)
                self.registry.find_missing_log_dirs()
        if changed and not self._is_lazy:
            self.registry.loader.load_all()
        loaded = self.registry.partitions.copy()
        for each in loaded if name is None else loaded.keys() & {name}:
            try:
                loaded[each].refresh()
            except (LogfsError, OSError) as error:
                logger.error("%s: cannot be refreshed: %s", each, error)

    def is_unchanged(self) -> bool:
        """Whether a read-only store is certainly up to date. Costs two calls of `stat` for each partition.

        False if this is unknown, because a partition is offline or has segments in a bucket. Raises `OSError`.
        """
        return (
            not self.offline
            and all(log_dir.is_unchanged() for log_dir in self.log_dirs)
            and all(
                isinstance(partition, LivePartition) and partition.is_unchanged()
                for partition in list(self.registry.partitions.values())
            )
        )

    def upkeep(self, *, compaction: bool = True) -> None:
        """Do the periodic tasks that are due, such as flushes, checkpoints, retention and compaction; may take long.

        An error of a task is logged, and the task is tried again later. In a read-only store this only calls
        `refresh`. Compaction and copies to an object store may take minutes. If `compaction` is False, this call does
        neither; other threads must then call `compactor.run_due` and `remote_log_manager.run_due`.
        """
        if self.read_only:
            self.refresh()
            return
        self.registry.take_failed_offline()
        self.scheduler.run_due()
        if compaction:
            self.compactor.run_due()
            self.remote_log_manager.run_due()

    def close(self) -> None:
        """Flush and close all partitions, and release the log directories.

        A log directory is marked as clean only if all of its partitions closed cleanly. Closing twice is harmless.
        """
        self.stop_maintenance()
        self.registry.loader.stop()
        with self.registry.lock:
            log_dirs = self.log_dirs
            for log_dir in log_dirs:
                log_dir.check_in_place()
            try:
                if self.read_only:
                    for partition in list(self.registry.partitions.values()):
                        partition.close()
                else:
                    self._close_partitions(log_dirs)
            finally:
                self.tiered.release()
                self._release()

    def leave(self) -> None:
        """Unlock the log directories without a flush or a clean-shutdown marker, as if the process were killed.

        Used after Ctrl-C. The partitions accept no more appends, and the next opening recovers them.
        """
        self.stop_maintenance()
        self.registry.loader.stop()
        self._release()

    def _release(self) -> None:
        """Release the log directories, once no partition of this store can change any more.

        Another thread may be appending. Its next call of a `Disk` method is refused. But it writes to memory-mapped
        indexes without calling the `Disk`, so this method waits for the lock of each partition, for up to
        `PATIENCE_SECONDS` in all. The lock is reentrant, so a thread that Ctrl-C interrupted in an append does not
        wait for itself.
        """
        log_dirs, self.registry.log_dirs = self.log_dirs, []
        until = time.monotonic() + PATIENCE_SECONDS

        def seconds_left() -> float:
            return max(until - time.monotonic(), 0)

        busy: set[Disk] = set()
        if not self.read_only:
            partitions = list(self.registry.partitions.values())
            for partition in partitions:
                if partition.failure is None:
                    partition.failure = StoreClosed(
                        f"{partition.directory}: the store is closed; open it again"
                    )
            for log_dir in log_dirs:
                log_dir.disk.end_changes(0)
            for partition in partitions:
                if partition.lock.acquire(timeout=seconds_left()):
                    partition.lock.release()
                else:
                    busy.add(partition.disk)
        for log_dir in log_dirs:
            log_dir.close(seconds_left(), is_idle=log_dir.disk not in busy)

    def _close_partitions(self, log_dirs: list[LogDir]) -> None:
        failed: list[str] = []
        # If a log directory fails meanwhile, its partitions leave the registry's mapping.
        partitions = self.registry.partitions.copy()

        def close(name: str) -> None:
            try:
                is_clean = partitions[name].close()
            except LogfsError as error:
                # If Ctrl-C interrupted a deletion, the partition may be closed already: `close` then raises an error.
                logger.error("%s: is not closed cleanly: %s", name, error)
                is_clean = False
            if not is_clean:
                failed.append(name)

        # Use several threads, because a filesystem can complete several fsyncs together.
        for_each(close, sorted(partitions), threads=_CLOSING_THREADS)
        homes = self.registry.homes
        dirty = {homes[name] for name in (*failed, *list(self.offline))}
        dirty.update(home for home, _ in list(self.checkpoints.unfinished.values()))
        # With a partition that was not loaded, a log directory is clean only if it was clean when it was opened.
        for name, home in homes.copy().items():
            if name not in self.registry.partitions and not home.clean:
                dirty.add(home)
        errors = FirstError()
        for log_dir in log_dirs:
            if log_dir.failure is None:
                with errors:
                    self.checkpoints.write_one(log_dir)
                    if log_dir not in dirty:
                        log_dir.mark_clean()
        errors.throw()
