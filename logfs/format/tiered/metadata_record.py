"""The values of the records in `__remote_log_metadata`, and the choice of the partition for a record (KIP-405).

The keys are null. A value consists of three unsigned varints (frame version, kind of the message, version of the
message) and a flexible message.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from logfs.errors import Corrupt, Unsupported
from logfs.format.base.murmur2 import partition_of
from logfs.format.base.varint import decode_unsigned, encode_unsigned
from logfs.format.messages.message import Field, MessageSchema
from logfs.format.tiered.remote_segment import (
    DeletionState,
    PartitionDeletion,
    RemotePartition,
    RemoteSegment,
    SegmentState,
    SegmentUpdate,
)

if TYPE_CHECKING:
    import uuid
    from collections.abc import Callable, Mapping

TOPIC = "__remote_log_metadata"
PARTITIONS = 50
"""The number of partitions that Kafka gives the topic."""

_FRAME = 1
_VERSION = 0

_PARTITION = (Field("name", "string"), Field("id", "uuid"), Field("partition", "int32"))
_SEGMENT_ID = (Field("topicIdPartition", "struct", fields=_PARTITION), Field("id", "uuid"))
_EPOCH = (Field("leaderEpoch", "int32"), Field("offset", "int64"))
_SEGMENT = MessageSchema(
    "remote segment",
    (
        Field("remoteLogSegmentId", "struct", fields=_SEGMENT_ID),
        Field("startOffset", "int64"),
        Field("endOffset", "int64"),
        Field("brokerId", "int32"),
        Field("maxTimestampMs", "int64"),
        Field("eventTimestampMs", "int64"),
        Field("segmentLeaderEpochs", "[]struct", fields=_EPOCH),
        Field("segmentSizeInBytes", "int32"),
        Field("customMetadata", "bytes", nullable=True),
        Field("remoteLogSegmentState", "int8"),
        Field("txnIndexEmpty", "int8", tag=0, default=0),
    ),
    newest=_VERSION,
    flexible=0,
)
_UPDATE = MessageSchema(
    "update of a remote segment",
    (
        Field("remoteLogSegmentId", "struct", fields=_SEGMENT_ID),
        Field("brokerId", "int32"),
        Field("eventTimestampMs", "int64"),
        Field("customMetadata", "bytes", nullable=True),
        Field("remoteLogSegmentState", "int8"),
    ),
    newest=_VERSION,
    flexible=0,
)
_DELETION = MessageSchema(
    "deletion of remote segments",
    (
        Field("topicIdPartition", "struct", fields=_PARTITION),
        Field("brokerId", "int32"),
        Field("eventTimestampMs", "int64"),
        Field("remotePartitionDeleteState", "int8"),
    ),
    newest=_VERSION,
    flexible=0,
)
_SCHEMAS = {0: _SEGMENT, 1: _UPDATE, 2: _DELETION}
_KINDS = {RemoteSegment: 0, SegmentUpdate: 1, PartitionDeletion: 2}

MetadataRecord = RemoteSegment | SegmentUpdate | PartitionDeletion


def encode(record: MetadataRecord) -> bytes:
    """Return the value that stores `record`. Raises `struct.error` for a number that does not fit its field."""
    kind = _KINDS[type(record)]
    head = b"".join(map(encode_unsigned, (_FRAME, kind, _VERSION)))
    return head + _SCHEMAS[kind].encode_body(_VERSION, _fields(record))


def parse(value: bytes) -> MetadataRecord | None:
    """Return the content of a record's value; None for a kind that this release does not read.

    This release does not read kinds of later releases, nor the kind that Kafka writes only to local snapshot files.
    Raises `Corrupt` if the value is malformed, and `Unsupported` for a version of a later release.
    """
    frame, at = decode_unsigned(value, 0)
    if frame != _FRAME:
        raise Unsupported(
            f"remote log metadata: frame version {frame} is not supported; only {_FRAME} is"
        )
    kind, at = decode_unsigned(value, at)
    version, at = decode_unsigned(value, at)
    schema = _SCHEMAS.get(kind)
    if schema is None:
        return None
    fields = schema.parse_body(value, version, at).fields
    try:
        return _READERS[kind](fields)
    except ValueError as error:
        raise Corrupt(f"{schema.what}: {error}") from None


def metadata_partition(partition: RemotePartition, partitions: int = PARTITIONS) -> int:
    """Return the number of the partition of `__remote_log_metadata` that has the records about `partition`.

    `__remote_log_metadata` has `partitions` partitions. Its records have no key. As in Kafka, the partition is the
    one that the default partitioner would choose for a key of four bytes. They are a big-endian int32: Java's hash
    code of the low 64 bits of the topic id, the high 64 bits, and the partition number.
    """
    high, low = divmod(partition.topic_id.int, 1 << 64)
    found = 1
    for number in (_java_hash(low), _java_hash(high), partition.partition):
        found = (31 * found + number) & 0xFFFF_FFFF
    return partition_of(found.to_bytes(4, "big"), partitions)


def _java_hash(number: int) -> int:
    """Return the hash code of Java's class Long for a 64-bit number, as an unsigned 32-bit number."""
    return (number ^ (number >> 32)) & 0xFFFF_FFFF


def _fields(record: MetadataRecord) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "brokerId": record.broker_id,
        "eventTimestampMs": record.event_timestamp,
    }
    partition = {
        "name": record.partition.topic,
        "id": record.partition.topic_id,
        "partition": record.partition.partition,
    }
    if isinstance(record, PartitionDeletion):
        return fields | {
            "topicIdPartition": partition,
            "remotePartitionDeleteState": record.state,
        }
    fields |= {
        "remoteLogSegmentId": {"topicIdPartition": partition, "id": record.segment_id},
        "customMetadata": record.custom,
        "remoteLogSegmentState": record.state,
    }
    if isinstance(record, SegmentUpdate):
        return fields
    return fields | {
        "startOffset": record.start_offset,
        "endOffset": record.end_offset,
        "maxTimestampMs": record.max_timestamp,
        "segmentLeaderEpochs": [
            {"leaderEpoch": epoch, "offset": offset} for epoch, offset in record.leader_epochs
        ],
        "segmentSizeInBytes": record.size_bytes,
        "txnIndexEmpty": int(record.txn_index_is_empty),
    }


def _partition(fields: Mapping[str, Any]) -> RemotePartition:
    return RemotePartition(fields["id"], fields["name"], fields["partition"])


def _segment_id(fields: Mapping[str, Any]) -> tuple[RemotePartition, uuid.UUID]:
    found = fields["remoteLogSegmentId"]
    return _partition(found["topicIdPartition"]), found["id"]


def _segment(fields: Mapping[str, Any]) -> RemoteSegment:
    return RemoteSegment(
        *_segment_id(fields),
        start_offset=fields["startOffset"],
        end_offset=fields["endOffset"],
        broker_id=fields["brokerId"],
        max_timestamp=fields["maxTimestampMs"],
        event_timestamp=fields["eventTimestampMs"],
        leader_epochs=tuple(
            (epoch["leaderEpoch"], epoch["offset"]) for epoch in fields["segmentLeaderEpochs"]
        ),
        size_bytes=fields["segmentSizeInBytes"],
        custom=fields["customMetadata"],
        state=SegmentState(fields["remoteLogSegmentState"]),
        txn_index_is_empty=bool(fields.get("txnIndexEmpty", 0)),
    )


def _update(fields: Mapping[str, Any]) -> SegmentUpdate:
    return SegmentUpdate(
        *_segment_id(fields),
        broker_id=fields["brokerId"],
        event_timestamp=fields["eventTimestampMs"],
        custom=fields["customMetadata"],
        state=SegmentState(fields["remoteLogSegmentState"]),
    )


def _deletion(fields: Mapping[str, Any]) -> PartitionDeletion:
    return PartitionDeletion(
        _partition(fields["topicIdPartition"]),
        broker_id=fields["brokerId"],
        event_timestamp=fields["eventTimestampMs"],
        state=DeletionState(fields["remotePartitionDeleteState"]),
    )


_READERS: dict[int, Callable[[Mapping[str, Any]], MetadataRecord]] = {
    0: _segment,
    1: _update,
    2: _deletion,
}
