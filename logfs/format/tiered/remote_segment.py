"""One segment in an object store: Kafka's description of it, and the states that it passes through (KIP-405)."""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import uuid
    from collections.abc import Sequence


class SegmentState(IntEnum):
    """The state of a remote segment. Readers use only segments in the state COPY_SEGMENT_FINISHED."""

    COPY_SEGMENT_STARTED = 0
    COPY_SEGMENT_FINISHED = 1
    DELETE_SEGMENT_STARTED = 2
    DELETE_SEGMENT_FINISHED = 3

    def may_follow(self, before: SegmentState | None) -> bool:
        """Whether a segment may change from the state `before` to this one; `before` is None for a new segment.

        A state may follow itself, because Kafka repeats an update if it does not know whether the update was stored.
        """
        if before is None:
            return self is SegmentState.COPY_SEGMENT_STARTED
        return self is before or self in _NEXT[before]


_NEXT = {
    SegmentState.COPY_SEGMENT_STARTED: (
        SegmentState.COPY_SEGMENT_FINISHED,
        SegmentState.DELETE_SEGMENT_STARTED,
    ),
    SegmentState.COPY_SEGMENT_FINISHED: (SegmentState.DELETE_SEGMENT_STARTED,),
    SegmentState.DELETE_SEGMENT_STARTED: (SegmentState.DELETE_SEGMENT_FINISHED,),
    SegmentState.DELETE_SEGMENT_FINISHED: (),
}


class DeletionState(IntEnum):
    """The state of the deletion of all remote segments of a partition."""

    DELETE_PARTITION_MARKED = 0
    DELETE_PARTITION_STARTED = 1
    DELETE_PARTITION_FINISHED = 2


class RemotePartition(NamedTuple):
    """A partition with the id of its topic. A topic that is deleted and created again has another id."""

    topic_id: uuid.UUID
    topic: str
    partition: int


class RemoteSegment(NamedTuple):
    """The description of a remote segment.

    `start_offset` and `end_offset` are its first and its last offset. `max_timestamp` is the greatest timestamp of a
    record. `broker_id` is the broker that last changed `state`, and `event_timestamp` the time of this change. Both
    timestamps are in ms since the epoch. `size_bytes` is the size of the .log file. `leader_epochs` has (epoch, start
    offset) of each epoch in the segment, ascending. `custom` is the custom metadata of the plugin that copied the
    segment, or None. `txn_index_is_empty` is True if the segment is known to have no aborted transactions.
    """

    partition: RemotePartition
    segment_id: uuid.UUID
    start_offset: int
    end_offset: int
    broker_id: int
    max_timestamp: int
    event_timestamp: int
    leader_epochs: Sequence[tuple[int, int]]
    size_bytes: int
    custom: bytes | None = None
    state: SegmentState = SegmentState.COPY_SEGMENT_STARTED
    txn_index_is_empty: bool = False

    def updated(self, update: SegmentUpdate) -> RemoteSegment:
        """Return a copy with the values of `update`. As in Kafka, None in `update.custom` replaces `custom`, too."""
        return self._replace(
            broker_id=update.broker_id,
            event_timestamp=update.event_timestamp,
            custom=update.custom,
            state=update.state,
        )


class SegmentUpdate(NamedTuple):
    """The change of a remote segment to a new state. The fields have the same meaning as in `RemoteSegment`."""

    partition: RemotePartition
    segment_id: uuid.UUID
    broker_id: int
    event_timestamp: int
    custom: bytes | None
    state: SegmentState


class PartitionDeletion(NamedTuple):
    """A new state in the deletion of all remote segments of a partition.

    `broker_id` is the broker that set the state, and `event_timestamp` the time at which it did so, in ms since the
    epoch.
    """

    partition: RemotePartition
    broker_id: int
    event_timestamp: int
    state: DeletionState
