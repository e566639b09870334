"""One partition: appending, rolling, reading, times, truncation and loading (kafka-storage 2.9, 4, 5, 10)."""

from __future__ import annotations

import errno
import os
import shutil
import threading
from contextlib import suppress
from datetime import UTC, datetime, timedelta, timezone
from itertools import count
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from logfs.errors import (
    InvalidRecord,
    LogfsError,
    NotWritable,
    OffsetOutOfRange,
    PartitionFailed,
    RecordTooLarge,
)
from logfs.format.batches.batch import HEADER_SIZE, Batch, assign_offset, seal
from logfs.format.batches.compression import Codec
from logfs.format.batches.record import Record, TimestampType, encode_record
from logfs.log.append.partition import Partition
from logfs.log.disk.disk import Disk
from logfs.log.read.reader import EARLIEST, LATEST, MAX_TIMESTAMP
from logfs.log.segment.batch_iterator import DamagedRange
from logfs.store.observe.check import check
from logfs.store.store import Store
from tests.support import lock_order
from tests.support.batches import E_COMMIT, Batches, Producer
from tests.support.examples import seed_of
from tests.support.partitions import bases, log, offsets, raw_batch, raw_partition, values
from tests.support.requirements import DEEP
from tests.support.stores import abandon, assert_clean, set_topic

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from typing_extensions import Buffer

    from logfs.log.disk.disk import File
    from tests.support.stores import Clock

NAME = "orders-0"
SMALL = Record(b"v", b"k")
"""A record whose batch alone has 70 bytes"""


@pytest.fixture
def orders(store: Store) -> Partition:
    return store.create(NAME)


def stamped(*timestamps: int) -> list[Record]:
    return [Record(b"%d" % timestamp, timestamp=timestamp) for timestamp in timestamps]


# Appending.


def test_appends_get_offsets_and_the_epoch(orders: Partition) -> None:
    """Batches get the next offsets and leader epoch 0, in the order of the appends (kafka-storage 2.9)."""
    assert orders.append([b"a", Record(b"b", b"k")]) == 0
    assert orders.append([b"c"]) == 2
    assert [(r.offset, r.value, r.key) for r in orders.read()] == [
        (0, b"a", None),
        (1, b"b", b"k"),
        (2, b"c", None),
    ]
    assert orders.log_end_offset == 3
    headers = [batch.header for batch in orders.batches(0)]
    assert [(h.base_offset, h.last_offset, h.partition_leader_epoch) for h in headers] == [
        (0, 1, 0),
        (2, 2, 0),
    ]
    assert orders.epochs.entries == [(0, 0)]


def test_an_empty_append_does_nothing(orders: Partition) -> None:
    """An append without records makes no batch and no roll (kafka-storage 2.9.1)."""
    assert orders.append([]) == 0
    assert orders.log_end_offset == orders.size_bytes == 0
    assert bases(orders) == [0]


def test_a_log_file_holds_batches_and_nothing_else(orders: Partition) -> None:
    """A .log file has Kafka's batches one after the other, with no header and no footer (kafka-storage 1.1)."""
    for n in range(5):
        orders.append([b"%d" % n] * (n + 1))
    data = (orders.directory / log(0)).read_bytes()
    batches = Batches(data)
    assert [batch.header.record_count for batch in batches] == [1, 2, 3, 4, 5]
    assert batches.end == len(data)
    assert all(batch.is_valid for batch in Batches(data))


EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (b"no list", r"give a list of records, as in \[record\], not one bytes"),
        ("text", "not one str"),
        (Record(b"x"), "not one Record"),
        ([b"right", 7], r"a record must be bytes, str or a logfs\.Record, not int"),
        ([None], "not NoneType"),
        ([Record(5)], "value must be bytes, str or None, not int"),  # type: ignore[arg-type]
        ([Record(b"", 1.5)], "key must be bytes, str or None, not float"),  # type: ignore[arg-type]
        ([Record(b"", None, [("h", 5)])], "header 'h' must be bytes, str or None"),  # type: ignore[list-item]
        ([Record(b"", None, [(b"h", b"")])], "the name of a header must be a str"),  # type: ignore[list-item]
        ([Record(b"", None, 7)], "headers must be a dict, or pairs"),  # type: ignore[arg-type]
        ([Record(b"", None, ["h"])], "headers must be a dict, or pairs"),  # type: ignore[list-item]
        ([Record(b"", None, ["ab"])], "headers must be a dict, or pairs"),  # type: ignore[list-item]
        ([Record(b"", timestamp=1.5)], "timestamp must be an int"),  # type: ignore[arg-type]
        ([Record(b"", timestamp=True)], "timestamp must be an int"),
        ([Record(b"", timestamp=datetime(2021, 11, 28))], "with a time zone"),  # type: ignore[arg-type]
    ],
)
def test_what_is_no_record_is_refused_by_the_name_of_its_field(
    orders: Partition, wrong: Any, message: str
) -> None:
    """Nothing is appended, also if other items are right."""
    end = orders.log_end_offset
    with pytest.raises(TypeError, match=message):
        orders.append(wrong)
    assert orders.log_end_offset == end


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ("\udcff", "value: 'utf-8' codec can't encode"),
        (Record(b"", "\udcff"), "key: "),  # type: ignore[arg-type]
        (Record(b"", None, {"h": "\udcff"}), "header 'h': "),  # type: ignore[arg-type]
        (Record(b"", timestamp=EPOCH - timedelta(milliseconds=1)), "before 1970"),  # type: ignore[arg-type]
    ],
)
def test_what_has_no_bytes_or_no_time_is_refused(
    orders: Partition, wrong: Any, message: str
) -> None:
    """A lone surrogate, which UTF-8 does not have, and a time before 1970: -1 would mean that there is none."""
    end = orders.log_end_offset
    with pytest.raises(ValueError, match=message):
        orders.append([wrong])
    assert orders.log_end_offset == end


def test_fields_may_have_related_types(orders: Partition) -> None:
    """Text becomes UTF-8, other buffers are copied, a dict is headers, and a datetime is ms, to the millisecond."""
    first = orders.log_end_offset
    time = datetime(2021, 11, 28, 12, 53, 20, 400_999, timezone(timedelta(hours=1)))
    data = bytearray(b"buffer")
    items: list[Any] = [
        "Grüße",
        data,
        memoryview(b"view")[1:],
        Record("v", "k", {"a": "x", "b": None}, time),  # type: ignore[arg-type]
        Record(None, None, [("a", bytearray(b"y"))], np.int64(7)),  # type: ignore[arg-type, list-item]
    ]
    orders.append(items)
    data[:] = b"change"
    found = [(r.value, r.key, [*r.headers], r.timestamp) for r in orders.read(first)]
    assert [value for value, *_ in found[:3]] == ["Grüße".encode(), b"buffer", b"iew"]
    assert found[3] == (b"v", b"k", [("a", b"x"), ("b", None)], 1_638_100_400_400)
    assert found[4] == (None, None, [("a", b"y")], 7)


def test_one_append_is_one_batch(orders: Partition) -> None:
    """Records of one append go into one batch unless the limit forces more."""
    orders.append_lines(b"line\n" * 1000)
    assert [batch.header.record_count for batch in orders.batches(0)] == [1000]


def test_a_record_too_large_leaves_the_log_unchanged(store: Store, orders: Partition) -> None:
    """`append` writes all of its records or none (partition.append)."""
    set_topic(store, "orders", max_message_bytes=100)
    with pytest.raises(RecordTooLarge, match=r"max\.message\.bytes"):
        orders.append([b"good", b"x" * 200])
    assert orders.log_end_offset == 0
    assert orders.size_bytes == 0


def test_records_before_a_refused_one_are_kept(store: Store, orders: Partition) -> None:
    """`append_lines` and `append_records` append up to the bad one and report it."""
    set_topic(store, "orders", max_message_bytes=100)
    done = orders.append_lines(b"one\ntwo\n" + b"x" * 200 + b"\nthree\n")
    assert (done.first_offset, done.last_offset, done.consumed) == (0, 1, 8)
    assert isinstance(done.refused, RecordTooLarge)
    done = orders.append_records([Record(b"three"), Record(b"x" * 200), Record(b"four")])
    assert (done.first_offset, done.last_offset, done.consumed) == (2, 2, 1)
    assert values(orders) == [b"one", b"two", b"three"]


def test_a_batch_of_exactly_the_limit_is_accepted(store: Store, orders: Partition) -> None:
    """max.message.bytes limits the size of a whole batch, which may equal it (kafka-storage 2.9.1)."""
    set_topic(store, "orders", max_message_bytes=70)
    orders.append([SMALL])
    set_topic(store, "orders", max_message_bytes=69)
    with pytest.raises(RecordTooLarge):
        orders.append([SMALL])


def test_a_batch_larger_than_a_segment_is_refused(store: Store, orders: Partition) -> None:
    """A batch must not exceed segment.bytes (Kafka's tests of the log)."""
    set_topic(store, "orders", segment_bytes=69)
    with pytest.raises(RecordTooLarge, match=r"segment\.bytes"):
        orders.append([SMALL])


def test_a_compacted_topic_needs_keys(store: Store, orders: Partition) -> None:
    """A null key makes the whole append fail, and nothing is written (Kafka's tests of the log)."""
    set_topic(store, "orders", cleanup_policy="compact")
    with pytest.raises(InvalidRecord, match="key"):
        orders.append([Record(b"a", b"k"), Record(b"b")])
    done = orders.append_lines(b"a\nb\n")
    assert done.consumed == 0
    assert isinstance(done.refused, InvalidRecord)
    assert orders.log_end_offset == 0
    orders.append([Record(b"a", b"k"), Record(None, b"k")])
    assert values(orders) == [b"a", None]


def test_timestamps_out_of_bounds_are_refused(
    store: Store, orders: Partition, clock: Clock
) -> None:
    """Both bounds are inclusive, -1 is accepted, and LogAppendTime ignores the bounds (kafka-storage 2.9.2)."""
    set_topic(
        store, "orders", message_timestamp_before_max_ms=100, message_timestamp_after_max_ms=50
    )
    now = clock.now_ms
    orders.append(stamped(now - 100, now + 50, -1))
    for timestamp, words in ((now - 101, "past"), (now + 51, "future"), (-2, "negative")):
        with pytest.raises(InvalidRecord, match=words):
            orders.append(stamped(now, timestamp))
    assert orders.log_end_offset == 3
    set_topic(store, "orders", message_timestamp_type="LogAppendTime")
    orders.append(stamped(0, now + 10**9))
    assert [record.timestamp for record in orders.read(3)] == [now, now]


@pytest.mark.parametrize("timestamp", [2**63, 2**64])
def test_timestamps_beyond_int64_are_refused(orders: Partition, timestamp: int) -> None:
    """A timestamp beyond int64 raises a `LogfsError`, not an error from packing bytes."""
    with pytest.raises(LogfsError):
        orders.append([Record(b"v", timestamp=timestamp)])
    assert orders.log_end_offset == 0


def test_timestamps_of_any_distance_can_be_read_back(store: Store, orders: Partition) -> None:
    """The least and the greatest timestamp in one batch are read back, record by record and in bulk."""
    set_topic(store, "orders", message_timestamp_after_max_ms=2**63 - 1)
    orders.append(stamped(-1, 2**63 - 1, 0))
    assert [record.timestamp for record in orders.read()] == [-1, 2**63 - 1, 0]
    assert orders.columns().timestamps.tolist() == [-1, 2**63 - 1, 0]


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_batches_are_compressed_by_the_topics_codec(
    store: Store, orders: Partition, codec: str
) -> None:
    """compression.type applies to the next append, of lines and of records."""
    orders.append_lines(b"plain\n" * 20)
    set_topic(store, "orders", compression_type=codec)
    orders.append_lines(b"packed\n" * 20)
    orders.append([Record(b"packed", b"k")] * 20)
    found = [batch.header.codec for batch in orders.batches(0)]
    assert found == [Codec.NONE, Codec.named(codec), Codec.named(codec)]
    assert values(orders) == [b"plain"] * 20 + [b"packed"] * 40


def test_settings_apply_at_once(store: Store, orders: Partition, clock: Clock) -> None:
    """segment.bytes, message.timestamp.type and max.message.bytes apply to the next append."""
    orders.append([SMALL])
    orders.append([SMALL])
    assert bases(orders) == [0]
    set_topic(store, "orders", segment_bytes=140)
    orders.append([SMALL])
    assert bases(orders) == [0, 2]
    set_topic(store, "orders", message_timestamp_type="LogAppendTime")
    orders.append(stamped(5))
    (record,) = orders.read(3)
    assert (record.timestamp, record.timestamp_type) == (
        clock.now_ms,
        TimestampType.LOG_APPEND_TIME,
    )
    store.settings.set_broker("message.max.bytes", "69")
    with pytest.raises(RecordTooLarge):
        orders.append([SMALL])


# Rolling.


@pytest.mark.parametrize(("limit", "expected"), [(139, [0, 1, 2]), (140, [0, 2]), (210, [0])])
def test_a_segment_may_reach_segment_bytes_exactly(
    store: Store, orders: Partition, limit: int, expected: list[int]
) -> None:
    """Batches of 70 bytes may fill a segment exactly (kafka-storage 4.1)."""
    set_topic(store, "orders", segment_bytes=limit)
    for _ in range(3):
        orders.append([SMALL])
    assert bases(orders) == expected
    assert values(orders) == [b"v"] * 3


def test_a_log_rolls_by_record_time(store: Store, orders: Partition, clock: Clock) -> None:
    """If the first record has a timestamp, only a timestamp more than segment.ms later rolls the log.

    See Kafka's tests of the log.
    """
    set_topic(store, "orders", segment_ms=499)
    orders.append(stamped(1000))
    clock.now_ms += 10**9
    orders.append(stamped(1499))
    orders.append(stamped(-1))
    assert bases(orders) == [0]
    orders.append(stamped(1500))
    assert bases(orders) == [0, 3]


def test_a_log_without_timestamps_rolls_by_the_clock(
    store: Store, orders: Partition, clock: Clock
) -> None:
    """Records without timestamps roll by the wall clock, but never an empty segment (Kafka's tests of the log)."""
    set_topic(store, "orders", segment_ms=500)
    clock.now_ms += 10**6
    orders.append(stamped(-1))
    assert bases(orders) == [0]
    orders.append(stamped(-1))
    assert bases(orders) == [0, 1], "the time counts from when the segment was opened"
    clock.now_ms += 500
    orders.append(stamped(-1))
    assert bases(orders) == [0, 1]
    clock.now_ms += 1
    orders.append([])
    assert bases(orders) == [0, 1]
    orders.append(stamped(-1))
    assert bases(orders) == [0, 1, 3]


def test_a_full_index_rolls_the_log(store: Store, orders: Partition) -> None:
    """With segment.index.bytes 48 and an entry for each batch, a segment has four batches (kafka-storage 4.1)."""
    set_topic(store, "orders", segment_index_bytes=48, index_interval_bytes=0)
    for n in range(10):
        orders.append(stamped(1000 + n))
    assert bases(orders) == [0, 4, 8]
    assert [len(segment.time_index) for segment in orders.segments] == [3, 3, 1]


def test_a_failed_partition_does_not_roll(store: Store, orders: Partition) -> None:
    """Its records may not be in the file: a next segment would begin after records that the next opening drops."""
    orders.append([b"a"])
    orders.fail("a test ended the appends", OSError(errno.EIO, "Input/output error"))
    before = sorted(path.name for path in orders.directory.iterdir())
    with pytest.raises(PartitionFailed, match="a test ended the appends"):
        orders.roll(store.clock())
    assert sorted(path.name for path in orders.directory.iterdir()) == before
    assert len(orders.segments) == 1


def test_an_explicit_roll_begins_at_the_end(orders: Partition) -> None:
    """A roll begins a segment at the log end; an empty one stays active (kafka-storage 4.2)."""
    orders.roll(0)
    assert bases(orders) == [0]
    orders.append([b"a", b"b"])
    orders.roll(0)
    orders.roll(0)
    assert bases(orders) == [0, 2]
    orders.append([b"c"])
    assert values(orders) == [b"a", b"b", b"c"]
    names = sorted(path.name for path in orders.directory.glob("*.log"))
    assert names == [log(0), log(2)]


def test_a_hundred_appends_at_interval_one_have_99_time_entries(
    store: Store, orders: Partition
) -> None:
    """Every batch except the first gets a time entry (Kafka's tests of the log)."""
    set_topic(store, "orders", index_interval_bytes=1)
    for n in range(100):
        orders.append(stamped(1000 + n))
    assert len(orders.active.time_index) == 99


# Reading.


def test_reads_are_bounded_by_offsets(store: Store, orders: Partition) -> None:
    """A read gives [offset, end) across batches and segments, and may begin inside a batch (kafka-storage 3.9)."""
    set_topic(store, "orders", segment_bytes=200)
    for n in range(0, 30, 3):
        orders.append([b"%d" % (n + i) for i in range(3)])
    assert len(orders.segments) > 2
    everything = [b"%d" % n for n in range(30)]
    for first in range(31):
        assert values(orders, first) == everything[first:]
        assert values(orders, first, first + 7) == everything[first : first + 7]
        assert orders.columns(first, first + 7).offsets.tolist() == list(
            range(first, min(first + 7, 30))
        )
    for offset in range(30):
        record = orders.record(offset)
        assert record is not None
        assert record.value == everything[offset]


@pytest.mark.parametrize("offset", [-1, 4, 2**62])
def test_offsets_outside_the_log_are_out_of_range(orders: Partition, offset: int) -> None:
    """Offsets below the start or beyond the end raise; a read at the end is empty (kafka-storage 3.9)."""
    orders.append([b"a", b"b", b"c"])
    with pytest.raises(OffsetOutOfRange):
        list(orders.read(offset))
    with pytest.raises(OffsetOutOfRange):
        orders.record(offset)
    assert values(orders, 3) == []
    with pytest.raises(OffsetOutOfRange):
        orders.record(3)


def test_a_read_does_not_include_later_appends(orders: Partition) -> None:
    """Records that are appended during a read are not part of it (partition.read)."""
    orders.append([b"a"])
    reading = orders.read()
    assert next(reading).value == b"a"
    orders.append([b"b"])
    assert list(reading) == []
    assert values(orders) == [b"a", b"b"]
    assert orders.last_offset() == 1


def test_the_first_and_the_last_record(orders: Partition) -> None:
    """`last_offset` and `first_offset_from` work in an empty log, a filled one, and after its start has advanced."""
    assert orders.last_offset() is None
    assert orders.first_offset_from(0) is None
    orders.append([b"a", b"b", b"c"])
    assert (orders.first_offset_from(0), orders.first_offset_from(2)) == (0, 2)
    assert orders.first_offset_from(3) is None
    assert orders.last_offset() == 2
    orders.advance_log_start(3)
    assert orders.last_offset() is None


def test_control_records_are_never_shown(log_dir: Path, clock: Clock) -> None:
    """A marker has an offset, and no reader of records sees it."""
    marker = bytearray(E_COMMIT)
    assign_offset(marker, 1, 0)
    data = raw_batch([Record(b"a")], 0) + bytes(marker) + raw_batch([Record(b"b")], 2)
    last = bytearray(E_COMMIT)
    assign_offset(last, 3, 0)
    raw_partition(log_dir, {log(0): data + bytes(last)})
    with Store(log_dir, clock=clock) as store:
        orders = store[NAME]
        assert orders.log_end_offset == 4
        assert offsets(orders) == [0, 2]
        assert orders.columns().offsets.tolist() == [0, 2]
        assert orders.record(1) is None
        assert orders.first_offset_from(1) == 2
        assert orders.first_offset_from(3) is None
        assert orders.last_offset() == 2
        assert len(list(orders.batches(0))) == 4


# Times.


@pytest.mark.parametrize(
    ("timestamp", "answer"),
    [
        (0, (0, 100)),
        (100, (0, 100)),
        (101, (1, 300)),
        (301, None),
        (200, (1, 300)),
        (300, (1, 300)),
    ],
)
def test_the_lowest_offset_at_or_after_a_time(
    orders: Partition, timestamp: int, answer: tuple[int, int] | None
) -> None:
    """A lookup in unordered times gives the lowest matching offset with its own timestamp (kafka-storage 3.10)."""
    orders.append(stamped(100, 300, 200))
    found = orders.offset_for_time(timestamp)
    assert found == (None if answer is None else (*answer, 0))


def test_special_times(store: Store, orders: Partition) -> None:
    """Time -1 stands for the log end, -2 for the start, -3 for the greatest timestamp (kafka-storage 3.10)."""
    assert orders.offset_for_time(LATEST)[:2] == (0, -1)
    assert orders.offset_for_time(EARLIEST)[:2] == (0, -1)
    assert orders.offset_for_time(MAX_TIMESTAMP) is None
    orders.append(stamped(100, 300, 300, 200))
    assert orders.offset_for_time(LATEST) == (4, -1, 0)
    assert orders.offset_for_time(EARLIEST) == (0, -1, 0)
    assert orders.offset_for_time(MAX_TIMESTAMP) == (1, 300, 0)
    with pytest.raises(InvalidRecord):
        orders.offset_for_time(-4)


def test_the_greatest_timestamp_is_in_the_earliest_segment_that_has_it(
    store: Store, orders: Partition
) -> None:
    """If several segments have the greatest timestamp, the earliest one counts (kafka-storage 3.10)."""
    orders.append(stamped(5, 900))
    orders.roll(0)
    orders.append(stamped(900))
    orders.roll(0)
    orders.append(stamped(7))
    assert orders.offset_for_time(MAX_TIMESTAMP) == (1, 900, 0)


def test_a_log_without_timestamps_answers_its_first_offset(orders: Partition) -> None:
    """If every timestamp is -1, the greatest one is -1 at the first offset (kafka-storage 3.10)."""
    orders.append(stamped(-1, -1))
    assert orders.offset_for_time(MAX_TIMESTAMP)[:2] == (0, -1)


def test_only_one_segment_is_searched(orders: Partition) -> None:
    """A segment that matches only below the log start ends the search, whatever comes later (kafka-storage 3.10)."""
    orders.append(stamped(500, 100))
    orders.roll(0)
    orders.append(stamped(600))
    assert orders.offset_for_time(400) == (0, 500, 0)
    orders.advance_log_start(1)
    assert orders.offset_for_time(400) is None
    assert orders.offset_for_time(600) == (2, 600, 0)


def test_time_lookups_across_segments(store: Store, orders: Partition) -> None:
    """A lookup uses the first segment whose greatest timestamp reaches the time (kafka-storage 3.10)."""
    set_topic(store, "orders", segment_bytes=210, index_interval_bytes=0)
    for n in range(60):
        orders.append([Record(b"v", b"k", timestamp=1000 + 10 * n)])
    assert len(orders.segments) == 20
    for n in range(60):
        assert orders.offset_for_time(1000 + 10 * n) == (n, 1000 + 10 * n, 0)
        found = orders.offset_for_time(1001 + 10 * n)
        assert found == (None if n == 59 else (n + 1, 1010 + 10 * n, 0))


def test_a_time_lookup_returns_the_leader_epoch(log_dir: Path, clock: Clock) -> None:
    """A time lookup returns the leader epoch of the batch that it finds (Kafka's tests of the log)."""
    data = raw_batch(stamped(10), 0, epoch=3) + raw_batch(stamped(20), 1, epoch=5)
    raw_partition(log_dir, {log(0): data})
    with Store(log_dir, clock=clock) as store:
        assert store[NAME].offset_for_time(10) == (0, 10, 3)
        assert store[NAME].offset_for_time(11) == (1, 20, 5)
        assert store[NAME].offset_for_time(LATEST).leader_epoch == 5


# The ends of the log.


def test_the_log_start_moves_only_forward(orders: Partition) -> None:
    """The log start hides the records below it, never moves back, and never passes the end (kafka-storage 10.2)."""
    orders.append([b"a", b"b", b"c"])
    orders.advance_log_start(2)
    assert values(orders) == [b"c"]
    with pytest.raises(OffsetOutOfRange):
        list(orders.read(1))
    orders.advance_log_start(1)
    assert orders.log_start_offset == 2
    with pytest.raises(OffsetOutOfRange):
        orders.advance_log_start(4)
    assert orders.epochs.entries == [(0, 2)]
    orders.advance_log_start(3)
    assert values(orders) == []


def test_truncation_drops_segments_and_batches(store: Store, orders: Partition) -> None:
    """Segments beyond the offset are deleted, and the one that holds it is cut (kafka-storage 10.4)."""
    set_topic(store, "orders", segment_bytes=140)
    for _ in range(6):
        orders.append([SMALL])
    orders.flush()
    assert not store.truncate(NAME, 6)
    assert not store.truncate(NAME, 99)
    assert store.truncate(NAME, 3)
    assert (bases(orders), orders.log_end_offset, orders.size_bytes) == ([0, 2], 3, 210)
    assert orders.recovery_point == 3
    assert sorted(path.name for path in orders.directory.glob("*4*")) == []
    orders.append([SMALL])
    orders.append([SMALL])
    assert (bases(orders), offsets(orders)) == ([0, 2, 4], [0, 1, 2, 3, 4])
    assert store.truncate(NAME, 0)
    assert (bases(orders), orders.log_end_offset, orders.size_bytes) == ([0], 0, 0)
    assert orders.epochs.entries == []
    orders.append([SMALL])
    assert offsets(orders) == [0]


@pytest.mark.drawn(12)
@pytest.mark.parametrize("size", [40, 4000])
@pytest.mark.parametrize("more", [0, 5, 200])
@pytest.mark.parametrize("position", [30, 47, 49, 60])
def test_a_read_that_goes_on_over_a_truncation(
    store: Store, orders: Partition, size: int, more: int, position: int
) -> None:
    """It ends at the records that are left, or with an error: never with dropped records or a gap."""
    set_topic(store, "orders", segment_bytes=20 * size)

    def append(tag: bytes, first: int, count: int) -> None:
        for start in range(first, first + count, 5):
            orders.append([b"%s %d " % (tag, n) + b"x" * size for n in range(start, start + 5)])

    append(b"old", 0, 100)
    reading = iter(orders.read())
    seen = [next(reading) for _ in range(position + 1)]
    assert store.truncate(NAME, 50)
    append(b"new", 50, more)
    with suppress(OffsetOutOfRange):
        seen.extend(reading)
    assert [record.offset for record in seen] == [*range(len(seen))]
    assert len(seen) <= max(50, position + 1)
    assert not any((record.value or b"").startswith(b"new") for record in seen)


def test_truncation_below_the_first_segment_starts_there(log_dir: Path, clock: Clock) -> None:
    """Below the first base offset everything is deleted, and the log starts at the target (kafka-storage 10.4)."""
    raw_partition(log_dir, {log(10): raw_batch([Record(b"v")], 10)})
    with Store(log_dir, clock=clock) as store:
        orders = store[NAME]
        assert (orders.log_start_offset, orders.log_end_offset) == (10, 11)
        assert store.truncate(NAME, 5)
        assert (orders.log_start_offset, orders.log_end_offset, bases(orders)) == (5, 5, [5])
        assert orders.append([b"w"]) == 5


def test_truncation_trims_epochs(log_dir: Path, clock: Clock) -> None:
    """Epochs that begin at or beyond the offset are dropped (kafka-storage 10.1)."""
    data = b"".join(raw_batch([Record(b"v")], n, epoch=n // 2) for n in range(6))
    raw_partition(log_dir, {log(0): data})
    with Store(log_dir, clock=clock) as store:
        assert store[NAME].epochs.entries == [(0, 0), (1, 2), (2, 4)]
        store.truncate(NAME, 4)
        assert store[NAME].epochs.entries == [(0, 0), (1, 2)]
        store[NAME].append([b"new"])
        (batch,) = store[NAME].batches(4)
        assert batch.header.partition_leader_epoch == 1


def test_truncation_right_after_opening(log_dir: Path, clock: Clock) -> None:
    """The indexes get their preallocated space again, and appends continue (Kafka's tests of loading)."""
    with Store(log_dir, clock=clock) as store:
        store.create(NAME)
        set_topic(store, "orders", index_interval_bytes=0)
        for n in range(10):
            store[NAME].append([b"%d" % n])
    with Store(log_dir, clock=clock) as store:
        store.truncate(NAME, 5)
        orders = store[NAME]
        orders.append([b"five"])
        assert values(orders) == [b"0", b"1", b"2", b"3", b"4", b"five"]
        index = orders.active.offset_index
        assert len(index) + index.room == 10 * 1024 * 1024 // 8


@pytest.mark.parametrize("clean", [True, False])
def test_records_after_a_truncated_batch_survive_a_restart(
    log_dir: Path, tmp_path: Path, clock: Clock, clean: bool
) -> None:
    """Records appended and flushed after a truncation inside a batch survive any restart (kafka-storage 10.4)."""
    with Store(log_dir, clock=clock) as store:
        orders = store.create(NAME)
        orders.append([b"a", b"b"])
        orders.append([b"c", b"d", b"e"])
        orders.flush()
        store.truncate(NAME, 3)
        first = orders.append([b"new"])
        orders.flush()
        assert values(orders) == [b"a", b"b", b"new"]
        copy = tmp_path / "copy"
        shutil.copytree(log_dir, copy)
    with Store(log_dir if clean else copy, clock=clock) as store:
        assert values(store[NAME]) == [b"a", b"b", b"new"]
        assert store[NAME].log_end_offset == first + 1


# Loading.


def test_recovery_rebuilds_the_epochs(log_dir: Path, clock: Clock) -> None:
    """Epoch starts 0 -> 104, 1 -> 106, 2 -> 110 come from the batch headers (Kafka's tests of segments)."""
    parts = [
        raw_batch([Record(b"v")] * 2, 104, 0),
        raw_batch([Record(b"v")] * 2, 106, 1),
        raw_batch([Record(b"v")] * 2, 108, 1),
        raw_batch([Record(b"v")], 110, 2),
        raw_batch([Record(b"v")], 111, 2),
    ]
    raw_partition(log_dir, {log(104): b"".join(parts)})
    with Store(log_dir, clock=clock) as store:
        assert store[NAME].epochs.entries == [(0, 104), (1, 106), (2, 110)]
        assert store[NAME].log_start_offset == 104


def filled_copy(log_dir: Path, clock: Clock, segments: int = 3) -> list[bytes]:
    """Write a log of `segments` segments, close it cleanly, and return its values."""
    with Store(log_dir, clock=clock) as store:
        orders = store.create(NAME)
        set_topic(store, "orders", index_interval_bytes=0)
        for n in range(10 * segments):
            orders.append([Record(b"value %d" % n, b"k", timestamp=1000 + n)])
            if n % 10 == 9 and n < 10 * segments - 1:
                orders.roll(clock())
        return [b"value %d" % n for n in range(10 * segments)]


@pytest.mark.parametrize("suffix", [".index", ".timeindex", ".textindex"])
@pytest.mark.parametrize("base", [0, 10, 20])
@pytest.mark.parametrize("clean", [True, False])
def test_a_missing_index_is_rebuilt(
    log_dir: Path, clock: Clock, suffix: str, base: int, clean: bool
) -> None:
    """Indexes are caches: if one is missing, all records are found, and Kafka's two are rebuilt byte for byte.

    See Kafka's tests of loading.
    """
    expected = filled_copy(log_dir, clock)
    path = log_dir / NAME / log(base, suffix)
    before = path.read_bytes()
    path.unlink()
    if not clean:
        (log_dir / ".kafka_cleanshutdown").unlink()
        (log_dir / "recovery-point-offset-checkpoint").unlink()
    with Store(log_dir, clock=clock) as store:
        orders = store[NAME]
        assert values(orders) == expected
        for n in range(30):
            assert orders.offset_for_time(1000 + n).offset == n
            assert orders.record(n).value == expected[n]
            assert [segment.end.text.records for segment in orders.segments] == [10, 10, 10]
    if suffix != ".textindex":
        assert path.read_bytes() == before


@pytest.mark.parametrize("suffix", [".index", ".timeindex", ".textindex"])
@pytest.mark.parametrize("garbage", [b"garbage", b"\xff" * 8 * 12 * 7, b"\0" * 8 * 12 * 7])
def test_garbage_in_an_index_is_repaired_by_recovery(
    log_dir: Path, clock: Clock, suffix: str, garbage: bytes
) -> None:
    """Recovery rebuilds an index whatever it holds, and all records are found (Kafka's tests of segments)."""
    expected = filled_copy(log_dir, clock)
    paths = sorted((log_dir / NAME).glob("*" + suffix))
    before = [path.read_bytes() for path in paths]
    assert len(paths) == 3
    for path in paths:
        path.write_bytes(garbage)
    with Store(log_dir, clock=clock, recover=True) as store:
        orders = store[NAME]
        assert values(orders) == expected
        for n in range(30):
            assert orders.offset_for_time(1000 + n).offset == n
            assert orders.record(n).value == expected[n]
        assert [segment.end.text.records for segment in orders.segments] == [10, 10, 10]
    if suffix != ".textindex":
        assert [path.read_bytes() for path in paths] == before


@pytest.mark.parametrize("suffix", [".index", ".timeindex", ".textindex"])
def test_an_index_of_broken_length_is_detected_at_a_clean_start(
    log_dir: Path, clock: Clock, suffix: str
) -> None:
    """Kafka would accept garbage under the clean-shutdown marker; here the log end is right (kafka-storage 5.6)."""
    expected = filled_copy(log_dir, clock)
    (log_dir / NAME / log(20, suffix)).write_bytes(b"11 bytes of")
    with Store(log_dir, clock=clock) as store:
        assert values(store[NAME]) == expected
        assert store[NAME].append([b"next"]) == 30


def test_orphan_index_files_are_removed(log_dir: Path, clock: Clock) -> None:
    """An index without its .log is deleted; foreign files are left alone (kafka-storage 5.2)."""
    expected = filled_copy(log_dir, clock, 1)
    directory = log_dir / NAME
    orphans = [log(500, end) for end in (".index", ".timeindex", ".txnindex", ".textindex")]
    for name in [*orphans, "foo.txt"]:
        (directory / name).write_bytes(b"1234")
    with Store(log_dir, clock=clock) as store:
        assert values(store[NAME]) == expected
    assert not any((directory / name).exists() for name in orphans)
    assert (directory / "foo.txt").read_bytes() == b"1234"


def test_leftovers_of_deletion_and_cleaning_are_removed(log_dir: Path, clock: Clock) -> None:
    """`.deleted` and `.cleaned` go, and each uncommitted `.swap`, at or beyond a `.cleaned` (kafka-storage 5.2)."""
    expected = filled_copy(log_dir, clock, 1)
    directory = log_dir / NAME
    leftovers = [
        log(0, ".log.deleted"),
        log(0, ".index.deleted"),
        log(5, ".log.cleaned"),
        log(5, ".timeindex.cleaned"),
        log(5, ".log.swap"),
        log(7, ".index.swap"),
    ]
    for name in leftovers:
        (directory / name).write_bytes(b"x" * 100)
    (directory / "0.checkpoint.deleted").write_bytes(b"kept")
    with Store(log_dir, clock=clock) as store:
        assert values(store[NAME]) == expected
    assert not any((directory / name).exists() for name in leftovers)
    assert (directory / "0.checkpoint.deleted").exists()


def test_a_committed_swap_is_completed(log_dir: Path, clock: Clock) -> None:
    """A `.swap` without `.cleaned` replaces the segments of its range (kafka-storage 5.2)."""
    filled_copy(log_dir, clock, 3)
    directory = log_dir / NAME
    both = (directory / log(0)).read_bytes() + (directory / log(10)).read_bytes()
    (directory / log(0, ".log.swap")).write_bytes(both)
    with Store(log_dir, clock=clock) as store:
        orders = store[NAME]
        assert bases(orders) == [0, 20]
        assert values(orders) == [b"value %d" % n for n in range(30)]
    assert not list(directory.glob("*.swap"))
    assert (directory / log(0)).read_bytes() == both


def test_several_committed_swaps_are_completed(log_dir: Path, clock: Clock) -> None:
    """All segments from the first swap to the end of the last one are replaced, and no other (kafka-storage 5.2)."""
    filled_copy(log_dir, clock, 4)
    directory = log_dir / NAME
    segments = [(directory / log(base)).read_bytes() for base in (0, 10, 20)]
    (directory / log(0, ".log.swap")).write_bytes(segments[0] + segments[1])
    (directory / log(20, ".log.swap")).write_bytes(segments[2])
    with Store(log_dir, clock=clock) as store:
        orders = store[NAME]
        assert bases(orders) == [0, 20, 30]
        assert values(orders) == [b"value %d" % n for n in range(40)]
    assert not list(directory.glob("*.swap"))


def test_a_log_below_its_start_is_dropped(log_dir: Path, clock: Clock) -> None:
    """If all remaining records lie below the checkpointed log start, one empty segment remains there.

    See Kafka's tests of loading.
    """
    with Store(log_dir, clock=clock) as store:
        orders = store.create(NAME)
        orders.append([b"a", b"b"])
        orders.roll(clock())
        orders.append([b"c", b"d", b"e"])
        orders.advance_log_start(4)
        store.checkpoints.write()
    for path in [*(log_dir / NAME).glob(f"{2:020}*"), log_dir / ".kafka_cleanshutdown"]:
        path.unlink()
    (log_dir / "recovery-point-offset-checkpoint").unlink()
    with Store(log_dir, clock=clock) as store:
        orders = store[NAME]
        assert (orders.log_start_offset, orders.log_end_offset, bases(orders)) == (4, 4, [4])
        assert orders.append([b"new"]) == 4


def test_an_emptied_directory_starts_at_its_checkpoint(log_dir: Path, clock: Clock) -> None:
    """An emptied directory with the start checkpoint 500 becomes an empty log at 500 (Kafka's tests of the log)."""
    (log_dir / NAME).mkdir(parents=True)
    (log_dir / "log-start-offset-checkpoint").write_bytes(b"0\n1\norders 0 500\n")
    with Store(log_dir, clock=clock) as store:
        assert (store[NAME].log_start_offset, store[NAME].log_end_offset) == (500, 500)
        assert store[NAME].append([b"v"]) == 500


def test_recovery_keeps_the_recovery_point_until_a_flush(
    log_dir: Path, tmp_path: Path, clock: Clock
) -> None:
    """An unclean start leaves the recovery point where it was (Kafka's tests of loading)."""
    with Store(log_dir, clock=clock) as store:
        orders = store.create(NAME)
        orders.append([b"a", b"b"])
        orders.flush()
        store.checkpoints.write()
        orders.append([b"c"])
        shutil.copytree(log_dir, tmp_path / "copy")
    with Store(tmp_path / "copy", clock=clock) as store:
        orders = store[NAME]
        assert values(orders) == [b"a", b"b", b"c"]
        assert (orders.recovery_point, orders.log_end_offset) == (2, 3)
        assert orders.flush() == 3
        assert orders.recovery_point == 3


def test_an_empty_active_segment_without_indexes_is_loaded(log_dir: Path, clock: Clock) -> None:
    """If the indexes never reached the disk, log end and recovery point are kept (Kafka's tests of loading)."""
    expected = filled_copy(log_dir, clock, 1)
    (log_dir / NAME / log(10)).write_bytes(b"")
    for clean in (True, False):
        if not clean:
            (log_dir / ".kafka_cleanshutdown").unlink()
        with Store(log_dir, clock=clock) as store:
            orders = store[NAME]
            assert bases(orders) == [0, 10]
            assert (orders.log_end_offset, orders.recovery_point) == (10, 10)
            assert len(orders.active.time_index) == 0
            assert values(orders) == expected
            shutil.copytree(log_dir / NAME, log_dir.parent / f"kept{clean}")
        for path in (log_dir / NAME).glob(f"{10:020}.*index"):
            path.unlink()


@pytest.mark.parametrize("size", [1, 17, 18, 60, 61, 70, 1024])
@pytest.mark.parametrize("kind", ["zeros", "noise", "batch"])
def test_a_torn_tail_is_cut_and_kept(
    log_dir: Path, tmp_path: Path, clock: Clock, size: int, kind: str
) -> None:
    """Bytes past the recovery point that are no batch are cut from log and index (Kafka's tests of loading).

    They are kept in a file of their own unless all are zero.
    """
    expected = filled_copy(log_dir, clock, 1)
    tail = {
        "zeros": bytes(size),
        "noise": bytes((7 * n + 3) % 256 for n in range(size)),
        "batch": raw_batch([Record(b"x" * 2000)], 10)[:size],
    }[kind]
    (log_dir / ".kafka_cleanshutdown").unlink()
    for name in (log(0), log(0, ".index")):
        with (log_dir / NAME / name).open("ab") as file:
            file.write(tail)
    with Store(log_dir, clock=clock) as store:
        orders = store[NAME]
        assert values(orders) == expected
        assert orders.log_end_offset == 10
        assert orders.torn
        assert orders.append([b"next"]) == 10
        assert values(orders) == [*expected, b"next"]
    kept = [path.read_bytes() for path in (log_dir / NAME).glob("*.torn")]
    assert kept == ([tail] if tail.strip(b"\0") else [])


@pytest.mark.parametrize("number", range(10))
def test_a_damaged_byte_affects_only_its_batch(log_dir: Path, clock: Clock, number: int) -> None:
    """Damage in a batch is reported at its offset, and all other batches stay readable.

    At the unflushed end of the log the damage is cut off (our policy).
    """
    expected = filled_copy(log_dir, clock, 1)
    path = log_dir / NAME / log(0)
    data = bytearray(path.read_bytes())
    positions = [0]
    for batch in Batches(bytes(data)):
        positions.append(positions[-1] + len(batch.data))
    data[positions[number] + HEADER_SIZE + 5] ^= 0xFF
    path.write_bytes(data)
    (log_dir / ".kafka_cleanshutdown").unlink()
    (log_dir / "recovery-point-offset-checkpoint").unlink()
    with Store(log_dir, clock=clock, read_only=True) as store:
        assert values(store[NAME], 0, number) == expected[:number]
    with Store(log_dir, clock=clock) as store:
        orders = store[NAME]
        assert values(orders, 0, number) == expected[:number]
        if number == 9:
            assert orders.log_end_offset == 9
            return
        assert values(orders, number + 1) == expected[number + 1 :]
        with pytest.raises(DamagedRange) as caught:
            orders.record(number)
        assert (caught.value.first_offset, caught.value.next_offset) == (number, number + 1)
    path.write_bytes(bytes(data[: positions[number]]))
    for index in (log_dir / NAME).glob("*index"):
        index.unlink()
    (log_dir / ".kafka_cleanshutdown").unlink(missing_ok=True)
    (log_dir / "recovery-point-offset-checkpoint").unlink()


@pytest.mark.parametrize("policy", ["delete", "compact"])
@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("number", [0, 5, 8])
@pytest.mark.parametrize("byte", [0, 3, 6, 7])
def test_a_flipped_base_offset_affects_only_its_batch(
    tmp_path: Path, clock: Clock, policy: str, clean: bool, number: int, byte: int
) -> None:
    """No CRC covers a base offset; its neighbours reveal damage, even where gaps may be (kafka-storage 2.1, 5.3)."""
    path = tmp_path / "damaged"
    with Store(path, clock=clock) as store:
        set_topic(store, "orders", cleanup_policy=policy)
        orders = store.create(NAME)
        for n in range(10):
            orders.append([Record(b"value %d" % n, b"k", timestamp=1000 + n)])
        size = orders.size_bytes // 10
    file = path / NAME / log(0)
    data = bytearray(file.read_bytes())
    data[number * size + byte] ^= 0x10
    file.write_bytes(data)
    if not clean:
        (path / ".kafka_cleanshutdown").unlink()
        (path / "recovery-point-offset-checkpoint").unlink()
    with Store(path, clock=clock) as store:
        assert not store.offline
        orders = store[NAME]
        assert orders.log_end_offset == 10
        for n in range(10):
            if n != number:
                record = orders.record(n)
                assert record is not None
                assert record.value == b"value %d" % n


def test_a_roll_interrupted_by_a_crash_is_no_damage(
    log_dir: Path, tmp_path: Path, clock: Clock
) -> None:
    """With preallocate, a crash may come before the sealed file is trimmed; the zeros in it hold no records."""
    with Store(log_dir, clock=clock) as store:
        set_topic(store, "orders", preallocate="true", segment_bytes=5000)
        orders = store.create(NAME)
        orders.append([b"a", b"b"])
        orders.roll(clock())
        orders.append([b"c"])
        shutil.copytree(log_dir, tmp_path / "copy")
    with (tmp_path / "copy" / NAME / log(0)).open("ab") as file:
        file.truncate(5000)
    with Store(tmp_path / "copy", clock=clock) as store:
        assert values(store[NAME]) == [b"a", b"b", b"c"]
        assert store[NAME].append([b"d"]) == 3
    assert_clean(tmp_path / "copy")


@pytest.mark.parametrize("name", ["foo.log", "bar.index", "x.timeindex", "y.swap", "z.cleaned"])
def test_a_file_whose_stem_is_no_offset_is_refused(log_dir: Path, clock: Clock, name: str) -> None:
    """Where a broker fails to start, one partition is offline, and the error names the file (kafka-storage 1.1)."""
    raw_partition(log_dir, {name: b"", log(0): b""})
    with Store(log_dir, clock=clock) as store:
        assert name in str(store.offline[NAME])
    (log_dir / NAME / name).unlink()


# Flushing.


def flushes(partition: Partition) -> int:
    """Return how many flushes the metrics of the partition's disk have counted."""
    return sum(partition.disk.flush_times.counts)


def test_flush_messages(store: Store, orders: Partition) -> None:
    """An append flushes once flush.messages messages are unflushed (kafka-storage 6)."""
    set_topic(store, "orders", flush_messages=3)
    orders.append([b"a", b"b"])
    assert (flushes(orders), orders.recovery_point, orders.log_end_offset) == (0, 0, 2)
    orders.append([b"c"])
    assert (flushes(orders), orders.recovery_point, orders.log_end_offset) == (1, 3, 3)


def test_flush_ms(store: Store, orders: Partition, clock: Clock) -> None:
    """Upkeep flushes records that have waited for flush.ms, and none before (kafka-storage 6)."""
    set_topic(store, "orders", flush_ms=1000)
    orders.append([b"a"])
    clock.now_ms += 999
    orders.append([b"b"])
    store.upkeep()
    assert orders.recovery_point == 0
    clock.now_ms += 1
    store.upkeep()
    assert (orders.recovery_point, flushes(orders)) == (2, 1)
    clock.now_ms += 10_000
    store.upkeep()
    assert flushes(orders) == 1, "nothing is flushed where nothing waits"


def test_a_roll_is_flushed_by_upkeep(store: Store, orders: Partition) -> None:
    """After a roll the sealed segment is flushed in the background (kafka-storage 4.2)."""
    orders.append([b"a"])
    orders.roll(0)
    orders.append([b"b"])
    store.upkeep()
    assert orders.recovery_point == 2


def test_a_flush_without_new_records_does_nothing(orders: Partition) -> None:
    """A flush whose records are durable already returns at once, without a sync."""
    orders.append([b"a"])
    assert orders.flush() == orders.flush() == 1
    assert flushes(orders) == 1


# Changes that end half-way.


class Killed(BaseException):
    """Stands for the end of the process: nothing catches it."""


@pytest.mark.parametrize("offset", [3, 5, 12])
def test_a_truncation_that_ends_anywhere_leaves_no_hole(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch, offset: int
) -> None:
    """After a kill at any change of a file, the log is what it was up to some offset; other processes see that, too.

    A log without its aborted transaction's marker, or with a hole, would show aborted records.
    """
    left = 0

    def counted(change: Callable[..., object]) -> Callable[..., object]:
        def wrapped(*arguments: object, **named: object) -> object:
            nonlocal left
            left -= 1
            if left < 0:
                raise Killed
            return change(*arguments, **named)

        return wrapped

    # Each change in a deep campaign; otherwise one of three.
    for steps in count(1) if DEEP else count(1 + seed_of() % 3, 3):
        log_dir = tmp_path / str(steps)
        store = Store(log_dir, clock=clock)
        orders = store.create(NAME)
        producer = Producer(orders, 7)
        for number in range(16):
            if number % 5 == 1:
                producer.send("aborted")
            elif number % 5 == 4:
                orders.end_transaction(7, 0, commit=False)
            else:
                orders.append([b"%d" % number])
            if number % 3 == 2:
                orders.roll(clock())
        orders.flush()
        before = values(orders.committed)
        shown = Store(log_dir, read_only=True)
        ended = False
        with monkeypatch.context() as patch:
            for name in ("unlink", "truncate", "write", "put_file", "sync_directory"):
                patch.setattr(Disk, name, counted(getattr(Disk, name)))
            left = steps
            try:
                orders.truncate(offset)
                ended = True
            except Killed:
                pass
        with lock_order.elsewhere(), shown:
            shown.refresh()
            found = values(shown[NAME].committed)
            assert found == before[: len(found)]
        abandon(store)
        with Store(log_dir, clock=clock) as store:
            found = values(store[NAME].committed)
            assert found == before[: len(found)]
            assert store[NAME].log_end_offset >= offset
        assert_clean(log_dir)
        if ended:
            break
    assert steps > 5


def test_an_abort_that_cannot_be_indexed_is_not_in_the_log(log_dir: Path, clock: Clock) -> None:
    """A marker without its entry in the transaction index would show other processes the aborted records."""

    class Full(Disk):
        is_full = False

        def write(self, file: File, position: int, data: Buffer) -> None:
            if self.is_full and file.path.suffix == ".txnindex":
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            super().write(file, position, data)

    disk = Full()
    store = Store(log_dir, clock=clock, disk=disk)
    orders = store.create(NAME)
    orders.append([b"before"])
    Producer(orders, 7).send("aborted")
    disk.is_full = True
    with pytest.raises(PartitionFailed, match="could not be indexed"):
        orders.end_transaction(7, 0, commit=False)
    disk.is_full = False
    for _ in range(2):
        with lock_order.elsewhere(), Store(log_dir, read_only=True) as shown:
            assert values(shown[NAME].committed) == [b"before"]
        abandon(store)
        with Store(log_dir, clock=clock) as store:
            assert values(store[NAME].committed) == [b"before"]
            assert store[NAME].producers.open_transactions()


# Read-only.


def test_a_read_only_partition_has_no_method_that_changes_it(log_dir: Path, clock: Clock) -> None:
    """A read-only store gives a log to read, and `NotWritable` to whoever asks for one to change."""
    expected = filled_copy(log_dir, clock, 1)
    with Store(log_dir, clock=clock, read_only=True) as store:
        with pytest.raises(NotWritable, match="is open read-only"):
            store.writable(NAME)
        orders = store[NAME]
        for change in ("append", "append_lines", "append_records", "truncate", "advance_log_start"):
            assert not hasattr(orders, change)
            assert hasattr(Partition, change)
        assert values(orders) == expected


def test_a_batch_emptied_by_compaction_is_skipped(log_dir: Path, clock: Clock) -> None:
    """A header without records keeps its offsets, and readers see no record there (kafka-storage 2.6)."""
    empty = bytearray(HEADER_SIZE)
    seal(
        empty,
        base_offset=1,
        last_offset_delta=1,
        base_timestamp=-1,
        max_timestamp=50,
        record_count=0,
        leader_epoch=0,
    )
    parts = [raw_batch([Record(b"a", b"k")], 0), bytes(empty), raw_batch([Record(b"b", b"k")], 3)]
    raw_partition(log_dir, {log(0): b"".join(parts)})
    (log_dir / "orders@p").write_bytes(b"cleanup.policy=compact\n")
    with Store(log_dir, clock=clock) as store:
        orders = store[NAME]
        assert offsets(orders) == [0, 3]
        assert orders.record(1) is None
        assert orders.record(2) is None
        assert orders.first_offset_from(1) == 3
        assert orders.active.max_timestamp == (50, 2)


def test_a_brokers_cleaner_leaves_gaps_and_no_damage(log_dir: Path, clock: Clock) -> None:
    """A broker keeps its settings elsewhere, but the checkpoint of its cleaner shows that offsets may be missing.

    An empty segment has the time of its file, so lookups of all earlier times end there (kafka-storage 3.10, 8.9).
    """
    first = raw_batch([Record(b"a", b"k", timestamp=10)], 4)
    second = raw_batch([Record(b"b", b"k", timestamp=20)], 15)
    raw_partition(log_dir, {log(0): first, log(9): b"", log(12): second})
    with Store(log_dir, read_only=True, clock=clock) as store, pytest.raises(DamagedRange):
        offsets(store[NAME])
    (log_dir / "cleaner-offset-checkpoint").write_bytes(b"0\n1\norders 0 12\n")
    with Store(log_dir, clock=clock) as store:
        orders = store[NAME]
        assert offsets(orders) == [4, 15]
        assert orders.offset_for_time(10) == (4, 10, 0)
        assert orders.offset_for_time(11) is None


def test_the_last_record_before_a_gap_is_found_at_once(
    log_dir: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lookup does not take a step for each offset that compaction removed."""
    gap = 10**9
    many = b"".join(raw_batch([Record(b"v" * 100, b"k")], number) for number in range(200))
    marker = bytearray(E_COMMIT)
    assign_offset(marker, gap - 1, 0)
    raw_partition(log_dir, {log(0): many, log(gap - 1): bytes(marker), log(gap): b""})
    (log_dir / "cleaner-offset-checkpoint").write_bytes(f"0\n1\norders 0 {gap}\n".encode())
    with Store(log_dir, clock=clock) as store:
        orders = store[NAME]
        assert orders.log_end_offset == gap
        looks = 0
        read = store.disk.read

        def counted(*arguments: object) -> bytes:
            nonlocal looks
            looks += 1
            return read(*arguments)  # type: ignore[arg-type]

        monkeypatch.setattr(store.disk, "read", counted)
        assert orders.last_offset() == 199
        assert looks < 20
        monkeypatch.undo()
        # What is left has no records.
        orders.advance_log_start(200)
        assert orders.last_offset() is None


def test_a_batch_with_missing_records_answers_none_for_them(log_dir: Path, clock: Clock) -> None:
    """An offset that compaction removed inside a batch has no record (Kafka's tests of records)."""
    data = bytearray(HEADER_SIZE)
    for delta in (0, 2, 4):
        data += encode_record(Record(b"%d" % delta, b"k"), offset_delta=delta, timestamp_delta=0)
    seal(
        data,
        last_offset_delta=5,
        base_timestamp=9,
        max_timestamp=9,
        record_count=3,
        leader_epoch=0,
    )
    assert Batch.parse(data).is_valid
    raw_partition(log_dir, {log(0): bytes(data)})
    (log_dir / "orders@p").write_bytes(b"cleanup.policy=compact\n")
    with Store(log_dir, clock=clock) as store:
        orders = store[NAME]
        assert offsets(orders) == [0, 2, 4]
        assert [orders.record(n) is None for n in range(6)] == [False, True] * 3
        assert orders.last_offset() == 4
        assert orders.log_end_offset == 6
        assert orders.first_offset_from(1) == 2


def test_the_audit_finds_no_error_in_a_filled_log(log_dir: Path, clock: Clock) -> None:
    """The audit of a log that was filled, rolled and closed finds no error."""
    filled_copy(log_dir, clock)
    assert_clean(log_dir)


class SlowDisk(Disk):
    """A disk on which the first fsync of a .log and the first trim of an index wait for each other."""

    def __init__(self) -> None:
        super().__init__()
        self.is_watched = False
        self.is_syncing, self.is_trimming = threading.Event(), threading.Event()
        self.has_flushed = threading.Event()

    def sync(self, file: File) -> None:
        if self.is_watched and file.path.suffix == ".log" and not self.is_syncing.is_set():
            self.is_syncing.set()
            assert self.is_trimming.wait(20)
        super().sync(file)

    def truncate(self, file: File, size: int) -> None:
        is_trimmed = size < self.size(file)
        super().truncate(file, size)
        if self.is_syncing.is_set() and is_trimmed and not self.is_trimming.is_set():
            self.is_trimming.set()
            # If the flush has to wait for the roll, this wait times out.
            self.has_flushed.wait(2)


def test_a_flush_during_a_roll_leaves_the_indexes_alone(log_dir: Path) -> None:
    """The roll owns the indexes until the segment is sealed: it continues, and the next flush covers its writes."""
    disk = SlowDisk()
    with Store(log_dir, disk=disk) as store:
        orders = store.create("orders-0")
        orders.append([b"a"])
        orders.roll(store.clock())
        orders.append([b"b"])
        disk.is_watched = True

        def flush() -> None:
            orders.flush()
            disk.has_flushed.set()

        flushing = threading.Thread(target=flush)
        flushing.start()
        assert disk.is_syncing.wait(20)
        orders.roll(store.clock())
        flushing.join()
        assert orders.append([b"c"]) == 2
    assert list(check(log_dir)) == []
