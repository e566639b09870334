"""Copies sealed segments of tiered logs into an object store, and deletes them there (Kafka's RemoteLogManager).

The copy of a segment has three steps: write a durable metadata record that the copy has started, store its objects
and read them back, and write a durable record that the copy is finished. `expire` deletes interrupted copies.
Before a remote segment is deleted, a durable record of the deletion is written. Its objects are deleted after
`file.delete.delay.ms`, those of an interrupted copy at once. Objects that a reader uses are kept longer, unless the
whole partition was deleted. Only the owner of the bucket (`logfs.store.tiering.bucket_owner`) stores and deletes
objects. Retention (`Retainer`) deletes the local segments that were copied.
"""

from __future__ import annotations

import logging
import uuid
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from logfs.errors import (
    InvalidSetting,
    LogfsError,
    PartitionFailed,
    RemoteStorageError,
    UnknownPartition,
)
from logfs.format.base import names
from logfs.format.files.checkpoint import format_epochs
from logfs.format.files.producer_snapshot import format_snapshot
from logfs.format.tiered import custom_metadata
from logfs.format.tiered.custom_metadata import EPOCHS
from logfs.format.tiered.metadata_record import TOPIC
from logfs.format.tiered.remote_segment import RemoteSegment, SegmentState
from logfs.locks import Level, make_lock
from logfs.store.maintenance.context import Maintenance, MaintenanceContext
from logfs.store.maintenance.schedule import (
    Backoff,
    MaintenanceTask,
    Timer,
    due,
    throttle,
)
from logfs.store.tiering.metadata import BROKER_ID

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from logfs.format.tiered.remote_segment import RemotePartition
    from logfs.log.append.partition import Partition
    from logfs.log.read.log import Log
    from logfs.log.remote.segment_upload import SegmentContent
    from logfs.log.segment.segment import Segment
    from logfs.store.maintenance.context import Progress
    from logfs.store.tiering.tiered_logs import TieredLog

logger = logging.getLogger(__name__)


class CopyPlan(NamedTuple):
    """The segments to copy now, in order of offsets; `stays` says why the next segment is not copied now."""

    segments: Sequence[Segment]
    stays: str

    @property
    def size_bytes(self) -> int:
        """The total size of the segments' .log files in bytes."""
        return sum(segment.size_bytes for segment in self.segments)


class RemoteLogManager(Maintenance):
    """Copies segments of a store into an object store, and deletes remote segments. Any thread may call it.

    Copies run one at a time, and so do deletions. A deletion does not wait for a copy, which may take hours.
    """

    def __init__(self, context: MaintenanceContext) -> None:
        super().__init__(context)
        self._running = make_lock(Level.COPY)
        self._expiring = make_lock(Level.EXPIRE)
        self.timer = Timer(context.registry.opened_ms, 0)
        self.backoff = Backoff(context.registry.clock)
        # The ids of the remote segments that are being copied now.
        self._copying: set[uuid.UUID] = set()
        # Totals since the store was opened, for the metrics.
        self.copied_bytes = 0
        self.copied_segments = 0
        self.copy_errors = 0
        self.deleted_segments = 0
        self.delete_errors = 0

    def plan(self, name: str) -> CopyPlan:
        """Return the segments of a partition to copy now. Raises `InvalidSetting` if the topic is not tiered."""
        partition = self._registry[name]
        return self._plan(partition, self._log_of(partition))

    def plan_of(self, partition: Log) -> CopyPlan:
        """Return the segments of a partition to copy now, without raising an error.

        The result has no segments if the settings of the topic permit no copies, or if it cannot be found out which
        segments were copied. `stays` then has the reason.
        """
        try:
            log = self._tiered.of(partition) if partition.config.copies_segments else None
            if log is not None:
                return self._plan(partition, log)
        except (LogfsError, OSError) as error:
            return CopyPlan((), str(error))
        return CopyPlan((), "the topic is not tiered")

    def _log_of(self, partition: Log) -> TieredLog:
        log = self._tiered.of(partition)
        if not partition.config.remote_storage_enable:
            raise InvalidSetting(
                f"{partition.name.directory}: the topic is not tiered; set remote.storage.enable to true"
            )
        if log is None:
            raise InvalidSetting(
                f"{partition.directory}: cannot be tiered, because partition.metadata has no topic id; copy the file "
                "from another partition of the topic"
            )
        return log

    def _plan(self, partition: Log, log: TieredLog) -> CopyPlan:
        """Return the sealed segments below the last stable offset that are not copied yet."""
        if partition.config.remote_log_copy_disable:
            return CopyPlan((), "remote.log.copy.disable is true")
        begin = log.end_offset
        with partition.lock:
            local, stable = partition.local_segments, partition.last_stable_offset
        found: list[Segment] = []
        for segment, following in pairwise(local):
            if following.base_offset <= max(begin, partition.log_start_offset):
                continue
            if following.base_offset > stable:
                return CopyPlan(found, f"a transaction is open since offset {stable}")
            found.append(segment)
        return CopyPlan(found, "it is the active segment")

    def copy(self, name: str, progress: Progress = lambda _: None) -> CopyPlan:
        """Copy the segments that `plan` returns, one after another, and return those that were copied.

        `progress` is called with the size of each piece of data before it is sent, and again before it is read back.
        After an error, the segments that were completely copied stay copied. Raises `InvalidSetting` if the topic is
        not tiered, `NotWritable` if the bucket belongs to another store, `RemoteStorageError`, `PartitionFailed`,
        `Corrupt` and `OSError`.
        """
        with self._running:
            partition = self._registry.writable(name)
            log = self._log_of(partition)
            if partition.recovery_point < partition.active.base_offset:
                # Flush first: after a power failure, the local log must not end at a lower offset than its copies.
                partition.flush()
            plan = self._plan(partition, log)
            if not plan.segments:
                return plan
            try:
                self._tiered.owner.claim()
            except Exception:
                self.copy_errors += 1
                raise
            broker = self._registry.settings.broker_config
            rate = broker.remote_log_manager_copy_max_bytes_per_second
            throttled = throttle(rate, self._stopped.wait)
            with self._registry.doing("copying", name, 2 * plan.size_bytes) as work:

                def spend(size: int) -> None:
                    if self._stopped.is_set():
                        raise PartitionFailed(
                            f"{name}: a segment is not copied to remote storage: the store is closed"
                        )
                    self._check_wanted(partition)
                    work.done_bytes += size
                    progress(size)
                    throttled(size)

                copied = []
                for segment in plan.segments:
                    # Skip a segment whose records were deleted (by a new log start) since the plan was made.
                    if segment.next_offset > partition.log_start_offset:
                        self._copy_segment(partition, log, segment, spend)
                        copied.append(segment)
            done = plan._replace(segments=copied)
            logger.info("%s: copied %d segments of %d bytes", name, len(copied), done.size_bytes)
            return done

    def _check_wanted(self, partition: Partition) -> None:
        """Raise an error if a copy must end: the partition failed or was deleted, or copying was switched off."""
        if partition.failure is not None:
            raise partition.failure
        if not partition.config.copies_segments:
            raise InvalidSetting(
                f"{partition.name.directory}: not copied: copying needs remote.storage.enable=true and "
                "remote.log.copy.disable=false"
            )

    def _copy_segment(
        self, partition: Partition, log: TieredLog, segment: Segment, spend: Callable[[int], None]
    ) -> None:
        """Copy one segment: record the start, store the objects and read them back, then record the end.

        `log` has the remote segments of the partition. `spend` is called before each read of the .log file and of a
        stored object, with the number of bytes to read; it may wait, or raise an error to end the copy.
        """
        from logfs.log.remote.segment_upload import upload

        broker = self._registry.settings.broker_config
        metadata, before = self._tiered.metadata, segment.content
        segment_id = uuid.uuid4()
        self._copying.add(segment_id)
        try:
            now_ms = self._registry.clock()
            content = _content(partition, segment, now_ms)
            remote = _describe(partition, log.partition, segment, segment_id, content, now_ms)
            metadata.add(remote)
            stored = upload(log.disk, remote, content, broker, spend)
            copied = remote._replace(custom=custom_metadata.encode(stored))
            with self._registry.lock:
                # Truncations, deletions and moves hold this lock, too, so none can happen between these checks and
                # the record that the copy is finished. Appends do not need the lock, and continue.
                self._check_wanted(partition)
                if not partition.holds([segment]) or segment.content is not before:
                    raise PartitionFailed(
                        f"{segment.path}: not copied: it left the log or was truncated"
                    )
                metadata.update(copied, state=SegmentState.COPY_SEGMENT_FINISHED)
        except Exception:
            if not self._stopped.is_set():
                self.copy_errors += 1
            raise
        finally:
            self._copying.discard(segment_id)
        self.copied_bytes += segment.size_bytes
        self.copied_segments += 1
        logger.debug("%s: copied", segment.path)

    def expire(self) -> None:
        """Delete the remote segments that no partition needs any more.

        These are segments below the log start offset, segments of deleted partitions, segments of topics whose
        tiering was switched off with `remote.log.delete.on.disable`, and interrupted copies. Interrupted copies are
        deleted at once, the other segments after `file.delete.delay.ms`. An error for one segment is logged, and the
        others are still deleted.
        """
        with self._expiring:
            for partition in self._tiered.metadata.partitions():
                if self._stopped.is_set():
                    break
                self._expire(partition)

    def _expire(self, remote: RemotePartition) -> None:
        metadata = self._tiered.metadata
        name = f"{remote.topic}-{remote.partition}"
        partition = self._live(remote, name)
        if partition is not None:
            self._mark_expired(partition, remote)
        elif name in self._registry.homes and not metadata.is_deleted(remote):
            # The partition is offline or not loaded: it is unknown which segments it needs.
            return
        doomed = []
        for each in metadata.segments(remote).values():
            if each.segment_id in self._copying:
                continue
            if each.state is SegmentState.COPY_SEGMENT_STARTED:
                # Read the state again, because the copy may just have been finished: its end is recorded before its
                # id is removed from `_copying`.
                now = metadata.segments(remote).get(each.segment_id)
                if now != each or self._is_only_copy(partition, each):
                    continue
                metadata.update(each, state=SegmentState.DELETE_SEGMENT_STARTED)
            elif each.state is not SegmentState.DELETE_SEGMENT_STARTED or self._is_needed(each):
                continue
            doomed.append(each)
        if doomed:
            self._delete(name, doomed)
        states = {each.state for each in metadata.segments(remote).values()}
        if metadata.is_deleted(remote) and SegmentState.DELETE_SEGMENT_STARTED not in states:
            # The deleted partition has no remote segment left. Those in other states belong to a new partition of the
            # same name and topic id.
            metadata.end_deletion(remote)

    def _is_only_copy(self, partition: Partition | None, begun: RemoteSegment) -> bool:
        """Whether a copy must be kept, although it is not recorded as finished: its records are nowhere else.

        `begun` is the remote segment. `partition` is its partition, None if the partition was deleted. The result is
        True if the records are needed, but are in no local segment and in no finished copy. Then this copy was
        finished, too, because a local segment is dropped only after its copy is finished: damage in the metadata
        topic has destroyed the record of it. In this case an error is logged.
        """
        if partition is None or begun.end_offset < partition.log_start_offset:
            return False
        log = self._tiered.of(partition)
        if log is None or begun.start_offset >= partition.local_start_offset:
            return False
        first, last = begun.start_offset, begun.end_offset
        if any(each.start_offset <= first and last <= each.end_offset for each in log.finished()):
            return False
        logger.error(
            "%s: offsets %d to %d are only in a remote segment whose copy was not recorded as finished; it is kept. "
            "Restore the topic %s from a backup",
            partition.directory,
            first,
            last,
            TOPIC,
        )
        return True

    def _live(self, remote: RemotePartition, name: str) -> Partition | None:
        """Return the loaded partition `name` if it is the one that `remote` identifies by its topic id.

        Return None if that partition was deleted, is not loaded, or has failed.
        """
        partition = self._registry.written().get(name)
        if partition is None or partition.failure is not None:
            return None
        return partition if self._tiered.identify(partition) == remote else None

    def _mark_expired(self, partition: Partition, remote: RemotePartition) -> None:
        """Make a partition's log start offset durable, then record which remote segments are to be deleted.

        These are the remote segments below the log start offset. If tiering was switched off with
        `remote.log.delete.on.disable`, the log start first advances to the first local segment, and all remote
        segments are to be deleted.
        """
        name = partition.name.directory
        is_switched_off = not partition.config.remote_storage_enable
        finished = self._tiered.metadata.finished(remote)
        if is_switched_off and finished:
            if not partition.config.remote_log_delete_on_disable:
                return
            with self._registry.lock:
                self._commits.clear_place(name)
                partition.advance_log_start(partition.local_start_offset)
        start = partition.log_start_offset
        gone = [each for each in finished if is_switched_off or each.end_offset < start]
        if gone:
            with self._registry.lock:
                self._checkpoints.write()
            self._tiered.metadata.update(*gone, state=SegmentState.DELETE_SEGMENT_STARTED)
            logger.info("%s: %d remote segments are to be deleted", name, len(gone))
        if is_switched_off:
            partition.detach_remote()

    def _is_needed(self, segment: RemoteSegment) -> bool:
        """Whether a remote segment that is to be deleted must be kept for now.

        It is kept for `file.delete.delay.ms` and, unless its partition was deleted, as long as a reader uses it.
        """
        is_deleted = self._tiered.metadata.is_deleted(segment.partition)
        if self._tiered.is_read(segment) and not is_deleted:
            return True
        delay = self._registry.settings.log_config(segment.partition.topic).file_delete_delay_ms
        return self._registry.clock() < segment.event_timestamp + delay

    def _delete(self, name: str, segments: Sequence[RemoteSegment]) -> None:
        """Delete the objects of remote segments of the partition `name`, if this store owns the bucket.

        The deletion of each segment is recorded, but not flushed. Errors are logged, and a later `expire` tries
        again.
        """
        from logfs.log.remote.segment_upload import delete_copy

        try:
            self._tiered.owner.claim()
            disk = self._tiered.disk()
        except (LogfsError, OSError) as error:
            self.delete_errors += 1
            logger.error("%s: deleting its remote segments failed, and is retried: %s", name, error)
            return
        for each in segments:
            try:
                delete_copy(disk, each)
            except (LogfsError, OSError) as error:
                self.delete_errors += 1
                what = f"the remote segment from offset {each.start_offset} on"
                logger.error("%s: deleting %s failed, and is retried: %s", name, what, error)
            else:
                state = SegmentState.DELETE_SEGMENT_FINISHED
                self._tiered.metadata.update(each, state=state, durable=False)
                self.deleted_segments += 1

    def run_due(self) -> None:
        """Delete remote segments and copy local ones, if the interval of this task has passed or a retry is due.

        The interval is `remote.log.manager.task.interval.ms`. Failed work is logged. A later call retries a failed
        copy, after a wait of a second that doubles at each failure up to a minute. A segment that could not be
        deleted is tried again when the task runs next.
        """
        registry, task = self._registry, MaintenanceTask.TIERING
        broker, now_ms = registry.settings.broker_config, registry.clock()
        if not due({task: self.timer}, broker, now_ms, is_paused=registry.is_paused):
            return
        self.backoff.attempt(task, "", self._claim_and_expire)
        for name in list(registry.partitions):
            if self._tiered.owner.refusal:
                break
            if self._stopped.is_set():
                return
            self.backoff.attempt(task, name, partial(self._copy_due, name))
        self.backoff.keep(registry.partitions)
        self.timer = self.backoff.timer(task, broker)

    def _claim_and_expire(self) -> None:
        """Claim the bucket for this store (`BucketOwner.claim`) if necessary, then delete what is due (`expire`).

        A claim is necessary if the store has not claimed the bucket yet and a topic is tiered, or if the last claim
        was refused.
        """
        partitions = list(self._registry.partitions.values())
        if self._tiered.owner.refusal or (
            not self._tiered.owner.is_claimed
            and any(each.config.copies_segments for each in partitions)
        ):
            self._tiered.owner.claim()
        self.expire()

    def _copy_due(self, name: str) -> None:
        """Copy the segments of a partition that can be copied, if it is tiered and its upkeep is not paused."""
        partition = self._registry.partitions.get(name)
        if partition is None or partition.is_paused or partition.failure is not None:
            return
        if partition.config.copies_segments:
            try:
                self.copy(name)
            except UnknownPartition:
                logger.debug("%s: was deleted while it was copied", name)
            except PartitionFailed:
                if not self._stopped.is_set():
                    raise


def _content(partition: Partition, segment: Segment, now_ms: int) -> SegmentContent:
    """Return what to copy of a sealed segment: its .log file, indexes, leader epochs and producer snapshot.

    `now_ms` (ms since the epoch) determines which producers have expired, if the snapshot must be made from the log.
    """
    from logfs.log.remote.segment_upload import SegmentContent

    text = segment.end.text
    files = {
        names.OFFSET_INDEX: segment.offset_index.to_bytes(),
        names.TIME_INDEX: segment.time_index.to_bytes(),
        names.TEXT_INDEX: segment.text_index.to_bytes(),
        EPOCHS: format_epochs(
            [entry for entry in partition.epochs.entries if entry[1] < segment.next_offset]
        ),
        names.SNAPSHOT: _snapshot(partition, segment, now_ms),
    }
    aborted = segment.txn_index.to_bytes()
    if aborted:
        files[names.TXN_INDEX] = aborted
    newest = segment.max_timestamp
    first = partition.first_offset_from(segment.base_offset)
    return SegmentContent(
        segment.read,
        files,
        first if first is not None and first < segment.next_offset else None,
        newest.offset if newest.timestamp >= 0 else None,
        (text.records, text.lines, text.envelopes),
    )


def _snapshot(partition: Partition, segment: Segment, now_ms: int) -> bytes:
    """Return the producer snapshot at the end of a segment, made from the log if the snapshot file is missing.

    A snapshot that is made leaves out the producers that have expired at the time `now_ms` (ms since the epoch).
    """
    try:
        return partition.snapshots.read(segment.next_offset)
    except FileNotFoundError:
        local = partition.local_segments
        producers = partition.snapshots.producers_at(segment.next_offset, local, now_ms)
        return format_snapshot(producers.entries())


def _describe(
    partition: Partition,
    remote: RemotePartition,
    segment: Segment,
    segment_id: uuid.UUID,
    content: SegmentContent,
    now_ms: int,
) -> RemoteSegment:
    """Return the metadata record for a copy of `segment`, with its start time `now_ms` (ms since the epoch).

    `remote` identifies the partition, and `segment_id` is the id of the new remote segment. Raises
    `RemoteStorageError` if the segment has no leader epoch.
    """
    end = segment.next_offset
    entries = partition.epochs.entries
    epochs = [
        (epoch, max(start, segment.base_offset))
        for (epoch, start), following in pairwise([*entries, (0, end)])
        if start < end and following[1] > segment.base_offset
    ]
    if not epochs:
        raise RemoteStorageError(
            f"{segment.path}: not copied: leader-epoch-checkpoint has no epoch for its records"
        )
    return RemoteSegment(
        remote,
        segment_id,
        start_offset=segment.base_offset,
        end_offset=end - 1,
        broker_id=BROKER_ID,
        max_timestamp=segment.largest_timestamp,
        event_timestamp=now_ms,
        leader_epochs=tuple(epochs),
        size_bytes=segment.size_bytes,
        txn_index_is_empty=names.TXN_INDEX not in content.files,
    )
