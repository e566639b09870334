"""Two objects that Aiven's plugin stores with each segment: the manifest, and the object with all indexes.

The manifest is JSON. The other object has the bytes of all indexes, one after the other, in the order of `INDEXES`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import orjson

from logfs.errors import Corrupt, Unsupported
from logfs.format.files.checkpoint import text_to_uuid, uuid_to_text
from logfs.format.tiered import chunk_index
from logfs.format.tiered.chunk_index import ChunkIndex, number_of
from logfs.format.tiered.remote_segment import RemotePartition, RemoteSegment, SegmentState

if TYPE_CHECKING:
    from collections.abc import Mapping

VERSION = "1"

OFFSET = "offset"
TIMESTAMP = "timestamp"
PRODUCER_SNAPSHOT = "producerSnapshot"
LEADER_EPOCH = "leaderEpoch"
TRANSACTION = "transaction"
INDEXES = (OFFSET, TIMESTAMP, PRODUCER_SNAPSHOT, LEADER_EPOCH, TRANSACTION)
"""The indexes of a segment, in the order of their bytes. Only a segment with aborted transactions has the last."""


class Slice(NamedTuple):
    """The bytes [position, position + size) of an object."""

    position: int
    size: int


class Manifest(NamedTuple):
    """The manifest of one segment. `is_compressed` tells whether the segment's chunks are compressed with zstd.

    `indexes` has the range of each index, by name, in the object with all indexes. `encryption` has the fields
    for decryption, such as the encrypted data key; None if the objects are not encrypted. `segment` is Kafka's
    description of the segment; None in manifests of the plugin's first releases.
    """

    chunks: ChunkIndex
    indexes: Mapping[str, Slice]
    is_compressed: bool
    encryption: Mapping[str, Any] | None
    segment: RemoteSegment | None


def join_indexes(contents: Mapping[str, bytes]) -> tuple[bytes, dict[str, Slice]]:
    """Join the indexes of a segment into one object. Return the object's bytes, and each index's range in the object.

    `contents` has the bytes of each index, by name. The ranges are by name, too.
    """
    slices, position = {}, 0
    for name in INDEXES:
        if name in contents:
            slices[name] = Slice(position, len(contents[name]))
            position += len(contents[name])
    return b"".join(contents[name] for name in slices), slices


def encode(manifest: Manifest) -> bytes:
    """Return a manifest as JSON in the plugin's form: the fields are in the plugin's order, without blanks."""
    fields: dict[str, Any] = {
        "version": VERSION,
        "chunkIndex": chunk_index.to_json(manifest.chunks),
        "segmentIndexes": {
            name: manifest.indexes[name]._asdict() if name in manifest.indexes else None
            for name in INDEXES
        },
        "compression": manifest.is_compressed,
    }
    if manifest.encryption is not None:
        fields["encryption"] = manifest.encryption
    segment = manifest.segment
    if segment is not None:
        fields["remoteLogSegmentMetadata"] = {
            "remoteLogSegmentId": {
                "topicIdPartition": {
                    "topicId": uuid_to_text(segment.partition.topic_id),
                    "topicPartition": {
                        "topic": segment.partition.topic,
                        "partition": segment.partition.partition,
                    },
                },
                "id": uuid_to_text(segment.segment_id),
            },
            "startOffset": segment.start_offset,
            "endOffset": segment.end_offset,
            "maxTimestampMs": segment.max_timestamp,
            "brokerId": segment.broker_id,
            "eventTimestampMs": segment.event_timestamp,
            "segmentLeaderEpochs": {str(epoch): start for epoch, start in segment.leader_epochs},
        }
    return orjson.dumps(fields)


def parse(data: bytes) -> Manifest:
    """Return the manifest in `data`; fields of later releases are ignored.

    Raises `Corrupt` if the manifest is malformed, and `Unsupported` for a manifest of another version.
    """
    try:
        fields = orjson.loads(data)
        version = fields["version"]
        if version != VERSION:
            raise Unsupported(
                f"manifest: version {str(version)[:30]!r} is not supported; only {VERSION!r} is"
            )
        chunks = chunk_index.from_json(fields["chunkIndex"])
        described = fields.get("remoteLogSegmentMetadata")
        return Manifest(
            chunks,
            _slices(fields["segmentIndexes"]),
            bool(fields["compression"]),
            fields.get("encryption"),
            None if described is None else _segment(described, chunks.file_bytes),
        )
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        kind = type(error).__name__
        raise Corrupt(
            f"manifest: not JSON, or a field is missing or wrong: {kind}: {str(error)[:60]}"
        ) from None


def _slices(fields: Mapping[str, Any]) -> dict[str, Slice]:
    return {
        name: Slice(number_of(fields[name], "position"), number_of(fields[name], "size"))
        for name in INDEXES
        if fields.get(name) is not None
    }


def _segment(fields: Mapping[str, Any], size_bytes: int) -> RemoteSegment:
    names = fields["remoteLogSegmentId"]
    partition = names["topicIdPartition"]
    return RemoteSegment(
        RemotePartition(
            text_to_uuid(partition["topicId"]),
            str(partition["topicPartition"]["topic"]),
            int(partition["topicPartition"]["partition"]),
        ),
        text_to_uuid(names["id"]),
        start_offset=int(fields["startOffset"]),
        end_offset=int(fields["endOffset"]),
        broker_id=int(fields["brokerId"]),
        max_timestamp=int(fields["maxTimestampMs"]),
        event_timestamp=int(fields["eventTimestampMs"]),
        leader_epochs=tuple(
            sorted((int(epoch), int(at)) for epoch, at in fields["segmentLeaderEpochs"].items())
        ),
        size_bytes=size_bytes,
        # The manifest is the last object that is stored, so the copy of the segment is finished.
        state=SegmentState.COPY_SEGMENT_FINISHED,
    )
