"""The metadata of all remote segments, in the records of Kafka's topic `__remote_log_metadata` (KIP-405).

Each partition of the topic is read completely once; later calls read only the new records. So a read-only store sees
which segments another process copies and deletes. The *metadata partition* of a partition P is the partition of this
topic that has all records about the remote segments of P.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from logfs.errors import Corrupt, Unsupported
from logfs.format.batches.record import Record
from logfs.format.tiered import metadata_record
from logfs.format.tiered.metadata_record import TOPIC, metadata_partition
from logfs.format.tiered.remote_segment import (
    DeletionState,
    PartitionDeletion,
    RemoteSegment,
    SegmentState,
    SegmentUpdate,
)
from logfs.locks import Level, make_lock
from logfs.store.internal_topic import InternalTopic, Replay

if TYPE_CHECKING:
    import uuid
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from logfs.format.batches.batch import Batch
    from logfs.format.tiered.metadata_record import MetadataRecord
    from logfs.format.tiered.remote_segment import RemotePartition
    from logfs.log.append.partition import Partition
    from logfs.log.read.log import Log
    from logfs.store.registry import PartitionRegistry

logger = logging.getLogger(__name__)

BROKER_ID = 0
"""The broker id in records that logfs writes: logfs is not a broker, but the format requires an id."""


class RemoteLogMetadata:
    """The remote segments of a store, with their states. Any thread may call the methods.

    In a thread that must not wait, a call that would have to wait raises `WouldBlock`. A caller of a method that
    appends may hold the registry's lock, but not the lock of a partition. A damaged range of the topic is skipped
    with a warning. A remote segment whose metadata is lost in this way is missing from its log.
    """

    def __init__(self, registry: PartitionRegistry, create: Callable[[str], Partition]) -> None:
        """Make the object without reading anything. `create` creates the named partition, and returns it."""
        self._registry = registry
        self._topic = InternalTopic(
            registry,
            create,
            TOPIC,
            "remote.log.metadata.topic.num.partitions",
            # Kafka creates the topic with these settings, so no record is ever deleted.
            lambda: {"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1"},
            "the descriptions of remote segments",
        )
        # Refuse another number of metadata partitions: most records would then be looked for in the wrong one.
        registry.settings.broker_checks.append(self._topic.check_count)
        self._lock = make_lock(Level.METADATA)
        self._replays: dict[int, _Replay] = {}

    def segments(self, partition: RemotePartition) -> Mapping[uuid.UUID, RemoteSegment]:
        """Return the remote segments of a partition by id, without those whose deletion is finished.

        The mapping is a new one. Raises `OSError`, and `PartitionFailed` if the partition's metadata partition is
        offline.
        """
        found = self._following(partition)
        return {} if found is None else found.segments.get(partition, {}).copy()

    def finished(self, partition: RemotePartition) -> list[RemoteSegment]:
        """Return the segments of a partition whose copies are finished. Raises the errors of `segments`."""
        known = self.segments(partition).values()
        return [each for each in known if each.state is SegmentState.COPY_SEGMENT_FINISHED]

    def has(self, partition: RemotePartition) -> bool:
        """Whether the metadata partition of a partition exists. If not, nothing is known of its remote segments.

        Raises the errors of `segments`.
        """
        return self._following(partition) is not None

    def has_copies(self) -> bool:
        """Whether any remote segment is copied or is to be deleted. An interrupted copy does not count.

        Raises the errors of `segments`.
        """
        return any(
            each.state is not SegmentState.COPY_SEGMENT_STARTED
            for partition in self.partitions()
            for each in self.segments(partition).values()
        )

    def partitions(self) -> list[RemotePartition]:
        """Return the partitions that have remote segments, and those whose remote segments are being deleted."""
        self._topic.check_online()
        logs = self._topic.logs()
        found: set[RemotePartition] = set()
        with self._registry.disk.hold(self._lock):
            for log in logs:
                replay = self._replay(log)
                found |= {name for name, segments in replay.segments.items() if segments}
                found |= replay.deletions
        return sorted(found)

    def is_deleted(self, partition: RemotePartition) -> bool:
        """Whether the deletion of all remote segments of a partition has begun, and is not recorded as finished."""
        found = self._following(partition)
        return found is not None and partition in found.deletions

    def add(self, *records: MetadataRecord, durable: bool = True) -> None:
        """Append records about one partition, all or none. With `durable`, return only when they are durable.

        Raises the errors of `Store.create`, of an append and of a flush.
        """
        self._registry.disk.check_may_block()
        log = self._topic.log(self._number(records[0].partition))
        log.append([Record(metadata_record.encode(record)) for record in records])
        if durable:
            log.flush()

    def update(self, *segments: RemoteSegment, state: SegmentState, durable: bool = True) -> None:
        """Append records that set the state of `segments`, which must belong to one partition: all or none.

        With `durable`, return only when the records are durable. Raises the errors of `add`.
        """
        if segments:
            self.add(*self._updates(segments, state), durable=durable)

    def _updates(
        self, segments: Iterable[RemoteSegment], state: SegmentState
    ) -> Iterator[SegmentUpdate]:
        now_ms = self._registry.clock()
        for each in segments:
            yield SegmentUpdate(
                each.partition, each.segment_id, BROKER_ID, now_ms, each.custom, state
            )

    def mark_deleted(self, partition: RemotePartition) -> None:
        """Record durably that all remote segments of a partition are to be deleted, if it has any."""
        segments = [
            each
            for each in self.segments(partition).values()
            if each.state is not SegmentState.DELETE_SEGMENT_STARTED
        ]
        if not segments:
            return
        now_ms = self._registry.clock()
        marks = [
            PartitionDeletion(partition, BROKER_ID, now_ms, state)
            for state in (
                DeletionState.DELETE_PARTITION_MARKED,
                DeletionState.DELETE_PARTITION_STARTED,
            )
        ]
        self.add(*marks, *self._updates(segments, SegmentState.DELETE_SEGMENT_STARTED))

    def end_deletion(self, partition: RemotePartition) -> None:
        """Record that all remote segments of a deleted partition were deleted."""
        state = DeletionState.DELETE_PARTITION_FINISHED
        self.add(
            PartitionDeletion(partition, BROKER_ID, self._registry.clock(), state), durable=False
        )

    def _number(self, partition: RemotePartition) -> int:
        return metadata_partition(partition, self._topic.partition_count())

    def _following(self, partition: RemotePartition) -> _Replay | None:
        """Read the new records of a partition's metadata partition, and return the state that they result in.

        Return None if the metadata partition does not exist.
        """
        name = f"{TOPIC}-{self._number(partition)}"
        self._topic.check_online(name)
        registry = self._registry
        log = None if registry.read_only else registry.include(name)
        with registry.disk.hold(self._lock):
            if registry.read_only:
                log = registry.loader.follow(name)
            return None if log is None else self._replay(log)

    def _replay(self, log: Log) -> _Replay:
        known = self._replays.get(log.partition)
        if known is None or known.log is not log:
            known = self._replays[log.partition] = _Replay(log)
        known.catch_up()
        return known


class _Replay(Replay):
    """The states of remote segments, built from the records of one partition of `__remote_log_metadata`."""

    def __init__(self, log: Log) -> None:
        super().__init__(log, "remote log metadata")
        self.segments: dict[RemotePartition, dict[uuid.UUID, RemoteSegment]] = {}
        self.deletions: set[RemotePartition] = set()

    def forget(self) -> None:
        self.segments, self.deletions = {}, set()

    def apply(self, batch: Batch) -> None:
        for record in [] if batch.header.is_control else list(batch.records()):
            if record.offset >= self.end:
                self._apply(record)

    def _apply(self, record: Record) -> None:
        try:
            found = metadata_record.parse(record.value or b"")
        except (Corrupt, Unsupported) as error:
            self.leave_out(record.offset, error)
            return
        if found is None:
            return
        here = self.segments.setdefault(found.partition, {})
        if isinstance(found, PartitionDeletion):
            if found.state is DeletionState.DELETE_PARTITION_FINISHED:
                self.deletions.discard(found.partition)
            else:
                self.deletions.add(found.partition)
            return
        known = here.get(found.segment_id)
        if known is None and not isinstance(found, RemoteSegment):
            # Ignore an update of a segment that was deleted, or whose first record is damaged.
            return
        if known is not None and not found.state.may_follow(known.state):
            # As in Kafka, ignore the record: a repeated record of an earlier state must not undo a finished copy.
            logger.warning(
                "%s: offset %d is skipped: the state %s cannot follow %s",
                self.log.directory,
                record.offset,
                found.state.name,
                known.state.name,
            )
        elif isinstance(found, RemoteSegment):
            here[found.segment_id] = found
        elif found.state is SegmentState.DELETE_SEGMENT_FINISHED:
            del here[found.segment_id]
        else:
            assert known is not None
            here[found.segment_id] = known.updated(found)
