"""The formats of tiered segments: records of `__remote_log_metadata`, chunk indexes, manifests and names of objects.

The texts and bytes that are compared exactly were written by Aiven's plugin; `tests/kafka/test_tiered_formats.py`
compares with Kafka's classes.
"""

from __future__ import annotations

import base64
import uuid
from contextlib import suppress

import orjson
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from logfs.errors import Corrupt, LogfsError, Unsupported
from logfs.format.batches.compression import zstd_frame
from logfs.format.files.checkpoint import text_to_uuid
from logfs.format.tiered import (
    chunk_index,
    custom_metadata,
    manifest,
    metadata_record,
    object_keys,
)
from logfs.format.tiered.chunk_index import Chunk, ChunkIndex, pack_sizes, unpack_sizes
from logfs.format.tiered.custom_metadata import Layout, StoredSegment
from logfs.format.tiered.manifest import Manifest, Slice
from logfs.format.tiered.remote_segment import (
    DeletionState,
    PartitionDeletion,
    RemotePartition,
    RemoteSegment,
    SegmentState,
    SegmentUpdate,
)

TOPIC = RemotePartition(text_to_uuid("lZ6vvmajTWKDBUTV6SQAtQ"), "topic1", 42)
SEGMENT_ID = text_to_uuid("adh9f8BMS4anaUnD8KWfWg")
SEGMENT = RemoteSegment(
    TOPIC,
    SEGMENT_ID,
    start_offset=0,
    end_offset=1000,
    broker_id=2,
    max_timestamp=1_000_000_000,
    event_timestamp=2_000_000_000,
    leader_epochs=((0, 100), (1, 200), (2, 300)),
    size_bytes=1000,
    state=SegmentState.COPY_SEGMENT_FINISHED,
)
# As Aiven's plugin writes it, without a transaction index.
MANIFEST = (
    b'{"version":"1","chunkIndex":{"type":"fixed","originalChunkSize":100,"originalFileSize":1000,'
    b'"transformedChunkSize":110,"finalTransformedChunkSize":110},"segmentIndexes":{'
    b'"offset":{"position":0,"size":1},"timestamp":{"position":1,"size":1},'
    b'"producerSnapshot":{"position":2,"size":1},"leaderEpoch":{"position":3,"size":1},'
    b'"transaction":null},"compression":false,"remoteLogSegmentMetadata":{"remoteLogSegmentId":{'
    b'"topicIdPartition":{"topicId":"lZ6vvmajTWKDBUTV6SQAtQ","topicPartition":{"topic":"topic1",'
    b'"partition":42}},"id":"adh9f8BMS4anaUnD8KWfWg"},"startOffset":0,"endOffset":1000,'
    b'"maxTimestampMs":1000000000,"brokerId":2,"eventTimestampMs":2000000000,'
    b'"segmentLeaderEpochs":{"0":100,"1":200,"2":300}}}'
)
FOUR = {
    name: Slice(position, 1)
    for position, name in enumerate(
        (manifest.OFFSET, manifest.TIMESTAMP, manifest.PRODUCER_SNAPSHOT, manifest.LEADER_EPOCH)
    )
}

_int32 = st.integers(0, 2**31 - 1)
_int64 = st.integers(-(2**63), 2**63 - 1)
_partitions = st.builds(
    RemotePartition, st.uuids(), st.text("abcXYZ019._-", min_size=1, max_size=20), _int32
)
_custom = st.none() | st.binary(max_size=20)
_segments = st.builds(
    RemoteSegment,
    _partitions,
    st.uuids(),
    start_offset=_int64,
    end_offset=_int64,
    broker_id=_int32,
    max_timestamp=_int64,
    event_timestamp=_int64,
    leader_epochs=st.lists(st.tuples(_int32, _int64), max_size=4).map(tuple),
    size_bytes=_int32,
    custom=_custom,
    state=st.sampled_from(SegmentState),
    txn_index_is_empty=st.booleans(),
)
_updates = st.builds(
    SegmentUpdate,
    _partitions,
    st.uuids(),
    _int32,
    _int64,
    _custom,
    st.sampled_from(SegmentState),
)
_deletions = st.builds(
    PartitionDeletion, _partitions, _int32, _int64, st.sampled_from(DeletionState)
)


# Records of `__remote_log_metadata`.


@given(_segments | _updates | _deletions)
def test_metadata_records_are_read_as_they_were_written(
    record: metadata_record.MetadataRecord,
) -> None:
    """Parsing the value of a record gives the record again."""
    assert metadata_record.parse(metadata_record.encode(record)) == record


@given(
    _segments | _updates | _deletions, st.lists(st.tuples(st.integers(0, 999), st.integers(0, 255)))
)
def test_damaged_metadata_records_are_errors_of_logfs(
    record: metadata_record.MetadataRecord, changes: list[tuple[int, int]]
) -> None:
    """Whatever the bytes are, parsing returns a record or None, or raises `Corrupt` or `Unsupported`."""
    data = bytearray(metadata_record.encode(record))
    for at, byte in changes:
        data[at % len(data)] = byte
    for value in (bytes(data), bytes(data[: len(data) // 2])):
        try:
            metadata_record.parse(value)
        except (Corrupt, Unsupported):
            pass


def test_kinds_and_versions_of_later_releases() -> None:
    """A record of an unknown kind is skipped, and another version of a known one is refused."""
    value = metadata_record.encode(SEGMENT)
    assert metadata_record.parse(value[:1] + b"\x09" + value[2:]) is None
    with pytest.raises(Unsupported, match="version 1 is newer"):
        metadata_record.parse(value[:2] + b"\x01" + value[3:])
    with pytest.raises(Unsupported, match="frame version 2"):
        metadata_record.parse(b"\x02" + value[1:])


def test_states_follow_each_other_as_in_kafka() -> None:
    """A copy begins with STARTED; what was deleted never comes back; each state may be told twice."""
    started, finished, deleting, deleted = SegmentState
    allowed = {
        (None, started),
        (started, finished),
        (started, deleting),
        (finished, deleting),
        (deleting, deleted),
        *((state, state) for state in SegmentState),
    }
    for before in (None, *SegmentState):
        for after in SegmentState:
            assert after.may_follow(before) == ((before, after) in allowed)


def test_an_update_changes_state_broker_time_and_custom_metadata() -> None:
    """`updated` takes these four from the update, and the rest from the segment."""
    state = SegmentState.DELETE_SEGMENT_STARTED
    update = SegmentUpdate(TOPIC, SEGMENT_ID, 7, 3_000_000_000, b"x", state)
    after = SEGMENT.updated(update)
    assert (after.state, after.broker_id, after.event_timestamp, after.custom) == (
        state,
        7,
        3_000_000_000,
        b"x",
    )
    assert (
        after._replace(**{name: getattr(SEGMENT, name) for name in update._fields[2:]}) == SEGMENT
    )


# Chunk indexes.


def test_the_list_of_sizes_is_packed_as_the_plugin_packs_it() -> None:
    """Three sizes become the bytes that the plugin's own test expects; the codec's frame has them, too."""
    packed = bytes.fromhex("00000003 0000000a 01 00 0a 0000001e")
    assert pack_sizes([10, 20, 30]) == packed
    assert unpack_sizes(packed) == [10, 20, 30]
    theirs = {
        "type": "variable",
        "originalChunkSize": 100,
        "originalFileSize": 250,
        "transformedChunks": "KLUv/SAPeQAAAAAAAwAAAAoBAAoAAAAe",
    }
    index = chunk_index.from_json(theirs)
    assert [*index] == [Chunk(0, 100, 0, 10), Chunk(100, 100, 10, 20), Chunk(200, 50, 30, 30)]
    assert chunk_index.from_json(chunk_index.to_json(index)).stored_sizes == [10, 20, 30]


@given(st.lists(_int32, max_size=20))
@example([0, 1000, 2, 44002, 369])
@example([1, 255 + 1, 1])
@example([1, 255 + 2, 1])
@example([0, 2**31 - 1, 0])
def test_lists_of_sizes_are_read_as_they_were_packed(sizes: list[int]) -> None:
    """Each list comes back, and each size but the last takes as few bytes as the largest needs above the least."""
    packed = pack_sizes(sizes)
    assert unpack_sizes(packed) == sizes
    if len(sizes) > 1:
        spread = max(sizes[:-1]) - min(sizes[:-1])
        width = next(n for n in range(1, 5) if spread < 256**n)
        assert len(packed) == 13 + (len(sizes) - 1) * width


@given(st.binary(max_size=40))
def test_other_bytes_are_no_list_of_sizes(data: bytes) -> None:
    """Other bytes are refused, or hold as many sizes as their count says."""
    try:
        sizes = unpack_sizes(data)
    except Corrupt:
        return
    assert len(sizes) == int.from_bytes(data[:4], "big")


@given(
    st.integers(1, 50),
    st.integers(0, 400),
    st.integers(0, 60) | st.lists(st.integers(0, 60), min_size=1, max_size=400),
    st.integers(0, 400),
    st.integers(0, 400),
)
def test_chunks_cover_the_segment_and_the_object(
    chunk_bytes: int, file_bytes: int, stored: int | list[int], start: int, length: int
) -> None:
    """The chunks follow each other without gaps in the segment and in the object, and a range needs no others."""
    count = -(-file_bytes // chunk_bytes)
    sizes = stored if isinstance(stored, int) else (stored * count)[:count]
    last = 7 if isinstance(sizes, int) else (sizes or [0])[-1]
    index = ChunkIndex(chunk_bytes, file_bytes, sizes, last)
    chunks = [*index]
    assert len(chunks) == len(index) == count
    position = stored_at = 0
    for chunk in chunks:
        assert (chunk.position, chunk.stored_at) == (position, stored_at)
        position, stored_at = position + chunk.size, stored_at + chunk.stored_size
    assert position == file_bytes
    wanted = [
        number
        for number, chunk in enumerate(chunks)
        if chunk.position < start + length and start < chunk.position + chunk.size and length
    ]
    assert [*index.chunks(start, start + length)] == wanted
    again = chunk_index.from_json(orjson.loads(orjson.dumps(chunk_index.to_json(index))))
    assert [*again] == chunks


@pytest.mark.parametrize(
    "change",
    [
        {"type": "other"},
        {"originalChunkSize": 0},
        {"originalChunkSize": "100"},
        {"originalFileSize": -1},
        {"originalFileSize": True},
        {"transformedChunks": "?"},
        {"transformedChunks": None},
        {"transformedChunks": base64.b64encode(zstd_frame(pack_sizes([1, 2]))).decode()},
        {"transformedChunks": base64.b64encode(zstd_frame(b"")).decode()},
        {"transformedChunks": base64.b64encode(b"no frame").decode()},
    ],
)
def test_malformed_chunk_indexes_are_refused(change: dict[str, object]) -> None:
    """A wrong type, size or list of sizes raises `Corrupt`."""
    fields = chunk_index.to_json(ChunkIndex(100, 250, [10, 20, 30], 30))
    with pytest.raises(Corrupt):
        chunk_index.from_json({**fields, **change})


# Manifests.


def test_a_manifest_is_written_as_the_plugin_writes_it() -> None:
    """The bytes equal those of the plugin, and are read back."""
    described = Manifest(ChunkIndex(100, 1000, 110, 110), FOUR, False, None, SEGMENT)
    assert manifest.encode(described) == MANIFEST
    found = manifest.parse(MANIFEST)
    assert (found.indexes, found.is_compressed, found.encryption) == (FOUR, False, None)
    assert found.segment == SEGMENT
    assert [*found.chunks] == [*described.chunks]
    assert len(found.chunks) == 10


def test_indexes_lie_one_behind_the_other() -> None:
    """`join_indexes` puts the indexes into one object, in the plugin's order, and says where each lies."""
    contents = {
        manifest.TRANSACTION: b"txn",
        manifest.OFFSET: b"offset",
        manifest.TIMESTAMP: b"",
        manifest.LEADER_EPOCH: b"epochs",
        manifest.PRODUCER_SNAPSHOT: b"producers",
    }
    data, slices = manifest.join_indexes(contents)
    assert data == b"offset" + b"producers" + b"epochs" + b"txn"
    for name, (position, size) in slices.items():
        assert data[position : position + size] == contents[name]


@given(st.lists(st.tuples(st.integers(0, 2000), st.integers(0, 255)), min_size=1, max_size=3))
def test_damaged_manifests_are_errors_of_logfs(changes: list[tuple[int, int]]) -> None:
    """Whatever the bytes are, parsing returns a manifest or raises an error of logfs."""
    data = bytearray(MANIFEST)
    for at, byte in changes:
        data[at % len(data)] = byte
    for text in (bytes(data), bytes(data[: changes[0][0]])):
        try:
            manifest.parse(text)
        except LogfsError:
            pass


def test_manifests_of_other_versions_are_refused() -> None:
    """Another version is unsupported; a manifest without the segment's metadata, as older ones are, is read."""
    with pytest.raises(Unsupported):
        manifest.parse(MANIFEST.replace(b'"version":"1"', b'"version":"2"'))
    fields = orjson.loads(MANIFEST)
    del fields["remoteLogSegmentMetadata"]
    assert manifest.parse(orjson.dumps(fields)).segment is None


# Names of objects.


def test_names_of_objects() -> None:
    """The names are those that the plugin and Kafka's `LocalTieredStorage` give."""
    segment = SEGMENT._replace(start_offset=1234)
    assert object_keys.aiven_key(segment, object_keys.LOG, "some/prefix-") == (
        "some/prefix-topic1-lZ6vvmajTWKDBUTV6SQAtQ/42/00000000000000001234-adh9f8BMS4anaUnD8KWfWg.log"
    )
    assert object_keys.local_key(segment, ".timeindex") == (
        "topic1-42-lZ6vvmajTWKDBUTV6SQAtQ/00000000000000001234-adh9f8BMS4anaUnD8KWfWg.timeindex"
    )


@given(_partitions, st.integers(0, 2**63 - 1), st.uuids(), st.text("ab/-", max_size=5))
def test_names_of_objects_tell_their_segments(
    partition: RemotePartition, start: int, segment_id: uuid.UUID, prefix: str
) -> None:
    """Parsing a name gives the segment and the suffix again, also where topics contain ids and dashes."""
    segment = SEGMENT._replace(partition=partition, start_offset=start, segment_id=segment_id)
    for suffix in object_keys.AIVEN_SUFFIXES:
        name = object_keys.aiven_key(segment, suffix, prefix)
        assert object_keys.parse_aiven_key(name, prefix) == (start, segment_id, suffix)
    for suffix in object_keys.LOCAL_SUFFIXES:
        name = object_keys.local_key(segment, suffix)
        assert object_keys.parse_local_key(name) == (start, segment_id, suffix)


@pytest.mark.parametrize(
    "name",
    [
        "",
        "t-lZ6vvmajTWKDBUTV6SQAtQ/0/00000000000000001234-adh9f8BMS4anaUnD8KWfWg.other",
        "t-lZ6vvmajTWKDBUTV6SQAtQ/00/00000000000000001234-adh9f8BMS4anaUnD8KWfWg.log",
        "t-lZ6vvmajTWKDBUTV6SQAtQ/4294967296/00000000000000001234-adh9f8BMS4anaUnD8KWfWg.log",
        "t-lZ6vvmajTWKDBUTV6SQAtQ/0/1234-adh9f8BMS4anaUnD8KWfWg.log",
        "x/t-lZ6vvmajTWKDBUTV6SQAtQ/0/00000000000000001234-adh9f8BMS4anaUnD8KWfWg.log",
    ],
)
def test_other_names_are_of_no_segment(name: str) -> None:
    """Objects that are not of the layout are passed over."""
    assert object_keys.parse_aiven_key(name) is None
    assert object_keys.parse_local_key(name) is None


@pytest.mark.parametrize(("topic_id", "partition", "found"), [(0, 0, 6), (2**127 + 12345, 3, 24)])
def test_the_metadata_partition_is_stable(topic_id: int, partition: int, found: int) -> None:
    """The numbers are those of Kafka's partitioner, with which `tests/kafka` compares many more."""
    where = RemotePartition(uuid.UUID(int=topic_id), "t", partition)
    assert metadata_record.metadata_partition(where) == found


# What logfs adds.

SIZES = st.integers(0, 2**31 - 1)
OFFSETS = st.none() | st.integers(0, 2**62)


@given(
    st.builds(
        StoredSegment,
        layout=st.sampled_from(Layout),
        chunk_bytes=st.integers(1, 2**31 - 1),
        is_compressed=st.booleans(),
        is_encrypted=st.booleans(),
        sizes=st.dictionaries(
            st.sampled_from([".index", ".timeindex", ".snapshot", ".textindex", ".rsm-manifest"]),
            st.integers(1, 2**31 - 1),
        ),
        first_offset=OFFSETS,
        time_offset=OFFSETS,
        text=st.tuples(SIZES, st.integers(0, 2**50), st.integers(0, 2**50)),
        crcs=st.lists(st.integers(0, 2**32 - 1)).map(tuple),
    )
)
def test_custom_metadata_is_read_as_written(stored: StoredSegment) -> None:
    """Without the checksums it is less than Kafka allows its plugins."""
    custom = custom_metadata.encode(stored)
    assert len(custom) < 128 + 4 * len(stored.crcs)
    assert custom_metadata.parse(custom) == stored


@given(st.binary(max_size=60))
@example(b"\x01\x00\x02\x08\x01")
@example(b"\x02\x00\x01\x05\xa8\x46\x01\x00")
def test_custom_metadata_of_others(custom: bytes) -> None:
    """It is ignored, or reported as malformed."""
    found = None
    with suppress(Corrupt):
        found = custom_metadata.parse(custom)
    assert found is None
    assert custom_metadata.parse(None) is None


@pytest.mark.parametrize("wrong", [{"chunk_bytes": -5}, {"chunk_bytes": 0}, {"text": (1, -2, 3)}])
def test_custom_metadata_have_numbers_that_a_segment_can_have(wrong: dict[str, object]) -> None:
    stored = StoredSegment(Layout.AIVEN, 100, False, False, {}, None, None, (1, 2, 3))
    assert custom_metadata.parse(custom_metadata.encode(stored)) == stored
    with pytest.raises(Corrupt, match="are too few or too many"):
        custom_metadata.parse(custom_metadata.encode(stored._replace(**wrong)))
