"""The records of `__remote_log_metadata` as Kafka's own classes write, read and place them."""

from __future__ import annotations

import random
import uuid
from typing import TYPE_CHECKING, Any

import pytest

from logfs.format.files.checkpoint import uuid_to_text
from logfs.format.tiered import metadata_record
from logfs.format.tiered.remote_segment import (
    DeletionState,
    PartitionDeletion,
    RemotePartition,
    RemoteSegment,
    SegmentState,
    SegmentUpdate,
)
from tests.kafka.helper import decoded

if TYPE_CHECKING:
    from tests.kafka.helper import Helper

PARTITION = RemotePartition(uuid.UUID(int=2**127 + 12345), "orders", 3)
SEGMENT_ID = uuid.UUID(int=2**126 + 54321)
RECORDS = [
    *(
        RemoteSegment(
            PARTITION,
            SEGMENT_ID,
            start_offset=1 << 33,
            end_offset=(1 << 33) + 99,
            broker_id=1,
            max_timestamp=1_700_000_000_000,
            event_timestamp=1_700_000_000_001,
            leader_epochs=((0, 0), (7, 1 << 33)),
            size_bytes=2**31 - 1,
            custom=custom,
            state=state,
            txn_index_is_empty=is_empty,
        )
        for state in SegmentState
        for custom in (None, b"", b"custom")
        for is_empty in (True, False)
    ),
    *(
        SegmentUpdate(PARTITION, SEGMENT_ID, 2, 1_700_000_000_002, custom, state)
        for state in list(SegmentState)[1:]
        for custom in (None, b"custom")
    ),
    *(PartitionDeletion(PARTITION, 3, 1_700_000_000_003, state) for state in DeletionState),
]


def fields(record: metadata_record.MetadataRecord) -> dict[str, Any]:
    """Return a record as arguments of the helper."""
    found = record._asdict()
    return {**found, **names(found.pop("partition"))} | (
        {"segment_id": uuid_to_text(found["segment_id"])} if "segment_id" in found else {}
    )


def names(partition: RemotePartition) -> dict[str, Any]:
    """Return a partition as arguments of the helper."""
    return {**partition._asdict(), "topic_id": uuid_to_text(partition.topic_id)}


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: type(record).__name__)
def test_kafka_writes_and_reads_the_same_metadata_records(
    helper: Helper, record: metadata_record.MetadataRecord
) -> None:
    """The bytes equal those of Kafka's serde, which reads ours; both name the same state."""
    theirs = decoded(helper.call("remoteMetadata", **fields(record)))
    assert metadata_record.encode(record) == theirs
    assert metadata_record.parse(theirs) == record
    assert record.state.name in helper.call("remoteMetadataText", value=theirs)


def test_kafka_puts_the_records_of_a_partition_into_the_same_partition(helper: Helper) -> None:
    """For two known and 300 random partitions, and two numbers of partitions of the topic."""
    numbers = random.Random(3)
    fixed = [RemotePartition(uuid.UUID(int=0), "t", 0), PARTITION]
    for partitions in (50, 7):
        chosen = [
            RemotePartition(uuid.UUID(int=numbers.getrandbits(128)), "t", numbers.getrandbits(31))
            for _ in range(300)
        ]
        for partition in fixed + chosen:
            found = helper.call(
                "remoteMetadataPartition", partitions=partitions, **names(partition)
            )
            assert metadata_record.metadata_partition(partition, partitions) == found
