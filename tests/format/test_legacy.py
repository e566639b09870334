"""Messages of magic 0 and 1 are read everywhere, plain and compressed, and never written (kafka-storage 2.7)."""

from __future__ import annotations

import os
import shutil
import struct
import warnings
import zlib
from typing import TYPE_CHECKING

import lz4.frame
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from logfs.errors import Corrupt
from logfs.format.base.names import TopicPartition
from logfs.format.batches.batch import HEADER_SIZE, MAGIC, Batch, parse_header
from logfs.format.batches.compression import Codec, compress, fix_lz4_header
from logfs.format.batches.legacy import LegacyBatch, parse_batch, whole_batches
from logfs.format.batches.record import Record
from logfs.format.files import checkpoint
from logfs.format.text import envelope, rendering
from logfs.format.text.rendering import View
from logfs.log.read.reader import EARLIEST, LATEST, MAX_TIMESTAMP
from logfs.log.read.text_view import TextView
from logfs.log.segment.batch_iterator import DamagedRange
from logfs.store.directory.log_dir import CLEANER_OFFSETS
from logfs.store.observe.check import Severity, check
from logfs.store.store import Store
from tests.support.batches import empty_batch
from tests.support.command_line import call, ok
from tests.support.examples import drawn, examples
from tests.support.legacy_encoder import CREATE, LATE, NONE, Old, as_read, message, stored, wrapper
from tests.support.partitions import log, raw_batch, raw_partition
from tests.support.stores import assert_clean

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from aiokafka.record import legacy_records as aio
    from kafka.record import legacy_records as kp

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.support.mounts import Mount
    from tests.support.stores import Clock

NAME = "orders-0"
PREFIX = envelope.prefix(TopicPartition("orders", 0))
T = 1_700_000_000_000
CODECS = [Codec.GZIP, Codec.SNAPPY, Codec.LZ4]

K_V1 = bytes.fromhex("00000000000000030000001839268c3301000000018bcfe56800000000016b0000000176")
K_V0 = bytes.fromhex("0000000000000003000000101fecd70a0000000000016b0000000176")
K_V1_GZIP = bytes.fromhex(
    "000000000000000b00000051d7e3fd3701010000018bcfe56801ffffffff0000003b1f8b08000000000000ff63608003"
    "897ad6a620462083b1fbfcd30c9008632288a880ca83a424fc25e457c1d580194920a212005f8b8e5848000000"
)

MAYBE_BYTES = st.none() | st.binary(max_size=100)


@st.composite
def messages(draw: st.DrawFn, rows: int = 12) -> list[Old]:
    """Draw messages with rising offsets, some of them missing, from any offset on."""
    offset = draw(st.sampled_from([0, 1, 1000, 2**40]))
    found = []
    for _ in range(draw(st.integers(1, rows))):
        timestamp = draw(st.integers(-1, 2**50))
        found.append(Old(offset, draw(MAYBE_BYTES), draw(MAYBE_BYTES), timestamp))
        offset += draw(st.sampled_from([1, 1, 1, 5]))
    return found


def records_of(batch: Batch) -> list[Record]:
    """Return the records of a batch, which the plain and the bulk decoder must read alike."""
    found = list(batch.records())
    assert list(batch.columns().records()) == found
    return found


# Golden vectors.


@pytest.mark.parametrize(
    ("data", "magic", "records"),
    [
        (K_V0, 0, [Record(b"v", b"k", (), -1, 3, NONE)]),
        (K_V1, 1, [Record(b"v", b"k", (), T, 3, CREATE)]),
        (
            K_V1_GZIP,
            1,
            [Record(b"x", b"a", (), T, 10, CREATE), Record(b"y", b"b", (), T + 1, 11, CREATE)],
        ),
    ],
)
def test_golden_vectors(data: bytes, magic: int, records: list[Record]) -> None:
    """Every field of the K vectors is read."""
    batch = parse_batch(b"before" + data + b"behind", 6)
    assert isinstance(batch, LegacyBatch)
    assert bytes(batch.data) == data
    assert records_of(batch) == records
    header = batch.header
    assert (header.base_offset, header.last_offset) == (records[0].offset, records[-1].offset)
    assert (header.size_bytes, header.magic) == (len(data), magic)
    assert header.max_timestamp == records[-1].timestamp
    assert header.timestamp_type is records[0].timestamp_type
    assert header.codec is (Codec.NONE if len(records) == 1 else Codec.GZIP)
    assert header.crc == zlib.crc32(data[16:])
    assert header.record_count == len(records)
    assert not header.is_control
    assert not header.is_transactional
    assert (header.producer_id, header.partition_leader_epoch) == (-1, -1)
    assert header.delete_horizon_ms is None


def test_the_tests_encoder_writes_the_golden_vectors() -> None:
    """The tests' encoder writes the golden vectors to the byte, except for the bytes that zlib is free to choose."""
    assert message(0, Old(3, b"v", b"k")) == K_V0
    assert message(1, Old(3, b"v", b"k", T)) == K_V1
    made = parse_batch(wrapper(1, Codec.GZIP, [Old(10, b"x", b"a", T), Old(11, b"y", b"b", T + 1)]))
    golden = parse_batch(K_V1_GZIP)
    assert isinstance(made, LegacyBatch)
    assert isinstance(golden, LegacyBatch)
    assert made.unpacked == golden.unpacked
    assert made.messages == golden.messages


# The format.


@given(messages(), st.sampled_from([0, 1]))
def test_plain_messages(rows: list[Old], magic: int) -> None:
    """Each message without a codec is a batch of one record."""
    for old in rows:
        batch = parse_batch(message(magic, old))
        batch.check()
        assert records_of(batch) == [as_read(magic, old)]
        assert batch.header.next_offset == old.offset + 1
        assert rendering.measure(batch).lines == len(old.value or b"") + 1


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize(("magic", "late"), [(0, -1), (1, -1), (1, T)])
@given(rows=messages())
@examples(0.4)
def test_wrappers(codec: Codec, magic: int, late: int, rows: list[Old]) -> None:
    """A wrapper gives its messages their offsets, with gaps, and its own time if the log set one."""
    batch = parse_batch(wrapper(magic, codec, rows, late=late))
    expected = [as_read(magic, old, late) for old in rows]
    assert records_of(batch) == expected
    header = batch.header
    assert (header.base_offset, header.last_offset) == (rows[0].offset, rows[-1].offset)
    assert header.codec is codec
    by_offset = {record.offset: record for record in expected}
    for offset in range(rows[0].offset - 1, rows[-1].offset + 2):
        assert batch.record_at(offset) == by_offset.get(offset)
        later = [record for record in expected if record.offset >= offset]
        assert batch.records_between(offset, offset + 2) == [
            record for record in later if record.offset < offset + 2
        ]
        assert batch.records_between(offset, rows[-1].offset + 1, 2) == later[:2]
    for record in expected:
        wanted = next(
            (r.offset, r.timestamp)
            for r in expected
            if r.timestamp >= record.timestamp and r.offset >= record.offset - 1
        )
        assert batch.first_at(record.timestamp, record.offset - 1) == wanted


def test_a_compacted_wrapper_keeps_its_relative_offsets() -> None:
    """Offsets in magic 1 count from the first message before any compaction, and the last one is the wrapper's."""
    rows = [Old(102, b"a"), Old(105, b"b")]
    for base in (100, 102):
        assert records_of(parse_batch(wrapper(1, Codec.GZIP, rows, base=base))) == [
            as_read(1, old) for old in rows
        ]


def test_a_wrapper_at_offset_0_counts_from_0() -> None:
    """In a wrapper that no broker gave an offset, the relative offsets of the messages are their offsets."""
    data = wrapper(1, Codec.SNAPPY, [Old(n, b"%d" % n) for n in range(3)])
    batch = parse_batch(bytes(8) + data[8:])
    assert [record.offset for record in batch.records()] == [0, 1, 2]
    assert (batch.header.base_offset, batch.header.next_offset) == (0, 3)


def test_the_header_checksum_of_lz4_in_magic_0_is_ignored() -> None:
    """Magic 0 computed the checksum over too many bytes, so any is accepted; in magic 1 only the correct one is."""
    inner = message(0, Old(7, b"v" * 100, b"k"))
    right = compress(Codec.LZ4, inner)
    for checksum in range(256):
        packed = right[:6] + bytes([checksum]) + right[7:]
        (record,) = parse_batch(message(0, Old(7, packed), Codec.LZ4)).records()
        assert record.value == b"v" * 100
    packed = right[:6] + b"\0" + right[7:]
    with pytest.raises(Corrupt):
        parse_batch(message(1, Old(7, packed), Codec.LZ4))


@pytest.mark.parametrize("store_size", [False, True])
@pytest.mark.parametrize("block_size", [4, 5, 6, 7])
@pytest.mark.parametrize("checksums", [False, True])
def test_fix_lz4_header_sets_the_checksum_of_lz4(
    store_size: bool, block_size: int, checksums: bool
) -> None:
    """`fix_lz4_header` sets LZ4's own checksum, with any options of the frame; a short header is not changed."""
    frame = lz4.frame.compress(
        b"some data",
        store_size=store_size,
        block_size=block_size,
        content_checksum=checksums,
        block_checksum=checksums,
    )
    at = 14 if store_size else 6
    assert fix_lz4_header(frame[:at] + b"\0" + frame[at + 1 :]) == frame
    for size in range(at):
        assert fix_lz4_header(frame[:size]) == frame[:size]


def packed(magic: int, inner: bytes, codec: int = Codec.GZIP) -> bytes:
    return message(magic, Old(9, compress(Codec.GZIP, inner)), codec)


BAD = {
    "an empty wrapper": packed(1, b""),
    "a null wrapper": message(1, Old(9, None), Codec.GZIP),
    "a null wrapper of snappy": message(0, Old(9, None), Codec.SNAPPY),
    "no stream of its codec": message(1, Old(9, b"no gzip"), Codec.GZIP),
    "nested": packed(1, wrapper(1, Codec.GZIP, [Old(9, b"v")])),
    "zstd": message(1, Old(9, compress(Codec.ZSTD, message(1, Old(0, b"v")))), Codec.ZSTD),
    "no such codec": message(0, Old(9, b""), 7),
    "another magic inside": packed(1, message(0, Old(0, b"v"))),
    "a record batch inside": packed(1, raw_batch([Record(b"v")], 0)),
    "a bad CRC inside": packed(1, message(1, Old(0, b"v"))[:-1] + b"w"),
    "half a message behind": packed(1, message(1, Old(0, b"v")) + b"\0" * 20),
    "offsets that fall": packed(0, message(0, Old(10, b"v")) + message(0, Old(9, b"v"))),
    "another offset than the last one's": packed(0, message(0, Old(8, b"v"))),
    "offsets that stand": packed(1, message(1, Old(0, b"v")) * 2),
    "offsets below 0": packed(0, message(0, Old(-2, b"v")) + message(0, Old(9, b"v"))),
    "offsets beyond the wrapper's": packed(1, message(1, Old(10, b"v"))),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_wrappers(name: str) -> None:
    """A malformed wrapper is `Corrupt`, even if its CRC matches."""
    assert zlib.crc32(BAD[name][16:]) == int.from_bytes(BAD[name][12:16], "big")
    with pytest.raises(Corrupt):
        parse_batch(BAD[name])


def test_lengths_that_do_not_fit() -> None:
    """A key or value that extends past the message, or does not end with it, raises `Corrupt`, and no other error."""
    for magic, at in ((0, 18), (0, 23), (1, 26), (1, 31)):
        good = message(magic, Old(3, b"v", b"k"))
        for length in (-2, -(2**31), 0, 2, 5, 6, 1000, 2**31 - 1):
            body = good[16:at] + struct.pack(">i", length) + good[at + 4 :]
            data = good[:12] + struct.pack(">I", zlib.crc32(body)) + body
            with pytest.raises(Corrupt):
                parse_batch(data)
    for data in (K_V0, K_V1):
        for size in (-1, 0, 13, 15, 17, 2**31 - 1):
            with pytest.raises(Corrupt):
                parse_batch(data[:8] + struct.pack(">i", size) + data[12:])


def test_whole_batches_of_any_magic() -> None:
    """A batch without records, which has the smallest size, counts; an incomplete last batch does not."""
    new = raw_batch([Record(b"v")], 7)
    empty = empty_batch(parse_header(raw_batch([Record(b"v")], 8)))
    assert len(empty) == HEADER_SIZE
    data = K_V0 + new + empty + K_V1
    headers = list(whole_batches(data))
    assert [header.magic for header in headers] == [0, 2, 2, 1]
    assert [header.size_bytes for header in headers] == [*map(len, (K_V0, new, empty, K_V1))]
    for cut in range(len(data) - len(K_V1), len(data)):
        assert len(list(whole_batches(data[:cut]))) == 3
    for short in (empty, K_V0):
        least = len(short) if short is empty else 26
        wrong = short[:8] + struct.pack(">i", least - 12 - 1) + short[12:]
        with pytest.raises(Corrupt, match="too small"):
            list(whole_batches(wrong + data))


@pytest.mark.parametrize("data", [K_V0, K_V1, K_V1_GZIP])
def test_every_flip_and_every_cut_is_detected(data: bytes) -> None:
    """Every cut and every flipped bit is detected, except in the offset, which is not under the CRC: a walk of a log
    compares it with its neighbours.
    """
    for size in range(len(data)):
        with pytest.raises(Corrupt):
            parse_batch(data[:size])
    for bit in range(64, len(data) * 8):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises(Corrupt):
            parse_batch(flipped).check()


@given(st.binary(max_size=120), st.sampled_from([0, 1]))
@examples(3)
def test_any_bytes_are_a_batch_or_corrupt(noise: bytes, magic: int) -> None:
    """Any bytes, even under a valid CRC, raise no error but `Corrupt`."""
    for codec in range(8):
        body = bytes([magic, codec]) + noise
        data = struct.pack(">qiI", 5, 4 + len(body), zlib.crc32(body)) + body
        try:
            records_of(parse_batch(data))
        except Corrupt:
            pass


# Client libraries.


PLAIN_AND_CODECS = [Codec.NONE, *CODECS]
ORACLES = [
    pytest.param(library, magic, codec, id=f"{name}-{magic}-{codec.kafka_name}")
    for name, library in (("kafka-python", kp), ("aiokafka", aio))
    for magic in (0, 1)
    for codec in PLAIN_AND_CODECS
    # Left out: snappy in kafka-python, whose package is not installed, and LZ4 in magic 0, whose header checksum
    # kafka-python computes only with another package, and aiokafka not at all.
    if not (codec is Codec.SNAPPY and library is kp) and not (codec is Codec.LZ4 and magic == 0)
]


def theirs(record: object) -> tuple[object, ...]:
    """Return the fields of a library's record. A missing timestamp, None or -1 in the libraries, becomes -1."""
    offset, timestamp, key, value = (
        getattr(record, name) for name in ("offset", "timestamp", "key", "value")
    )
    return (offset, -1 if timestamp is None else timestamp, key, value)


def ours(record: Record) -> tuple[object, ...]:
    return (record.offset, record.timestamp, record.key, record.value)


@pytest.mark.parametrize(("library", "magic", "codec"), ORACLES)
@given(rows=messages())
@examples(0.25)
def test_client_libraries_read_the_same_records(
    library, magic: int, codec: Codec, rows: list[Old]
) -> None:
    """The client libraries' decoders read the same records from the tests' messages as ours."""
    for late in (-1, T) if magic else (-1,):
        if codec is Codec.NONE:
            data = message(magic, rows[0], 0 if late < 0 else 8)
        else:
            data = wrapper(magic, codec, rows, late=late)
        batch = library.LegacyRecordBatch(bytearray(data), magic)
        assert batch.validate_crc()
        found = [theirs(record) for record in batch]
        assert found == [ours(record) for record in parse_batch(data).records()]


@pytest.mark.parametrize(("library", "magic", "codec"), ORACLES)
@given(rows=messages())
@examples(0.25)
def test_messages_of_client_libraries_are_read(
    library, magic: int, codec: Codec, rows: list[Old]
) -> None:
    """Messages of client libraries are read as produced, with offsets from 0 on, and with a broker's offsets."""
    builder = library.LegacyRecordBatchBuilder(magic, codec, 1 << 20)
    for number, old in enumerate(rows):
        builder.append(number, max(old.timestamp, 0), old.key, old.value)
    data = bytes(builder.build())
    expected = [
        as_read(magic, old._replace(offset=number, timestamp=max(old.timestamp, 0)))
        for number, old in enumerate(rows)
    ]
    position, found = 0, []
    while position < len(data):
        batch = parse_batch(data, position)
        found += records_of(batch)
        position += batch.header.size_bytes
    assert found == expected
    if codec is not Codec.NONE and magic == 1:
        moved = struct.pack(">q", 1000 + len(rows) - 1) + data[8:]
        offsets = [record.offset for record in parse_batch(moved).records()]
        assert offsets == [1000 + number for number in range(len(rows))]


# Logs.


def fill(magic: int, first: int, *, plain: int = 3, late: int = -1) -> tuple[bytes, list[Record]]:
    """Return plain messages and after them a wrapper of each codec, and their records."""
    data, records = b"", []
    offset = first

    def some(count: int) -> list[Old]:
        return [
            Old(n, b"value %d" % n if n % 5 else None, b"k%d" % n if n % 3 else None, T + 10 * n)
            for n in range(offset, offset + count)
        ]

    for old in some(plain):
        data += message(magic, old)
        records.append(as_read(magic, old))
    offset += plain
    for codec in CODECS:
        rows = some(4)
        data += wrapper(magic, codec, rows, late=late)
        records += [as_read(magic, old, late) for old in rows]
        offset += 4
    return data, records


def mixed(log_dir: Path) -> list[Record]:
    """Make a partition of three segments, with magic 0, magic 1, and 0, 1 and 2 in turn; return its records."""
    files, records = {}, []
    for base, parts in ((0, (0,)), (15, (1,)), (30, (0, 1, 2))):
        data = b""
        for magic in parts:
            first = len(records)
            if magic == MAGIC:
                new = [
                    Record(b"new %d" % n, b"k", (), T + 10 * n, n) for n in range(first, first + 3)
                ]
                data += raw_batch(new[:1], first) + raw_batch(new[1:], first + 1)
            else:
                part, new = fill(magic, first, late=T + 200 if base == 15 else -1)
                data += part
            records += new
        files[log(base)] = data
    raw_partition(log_dir, files)
    return records


@pytest.fixture
def records(log_dir: Path) -> list[Record]:
    """The records of the partition of mixed formats in `log_dir`."""
    return mixed(log_dir)


def text_of(records: list[Record], view: View) -> bytes:
    if view is View.LINES:
        return b"".join((record.value or b"") + b"\n" for record in records)
    return b"".join(envelope.encode(record, PREFIX) for record in records)


def assert_reads(store: Store, expected: list[Record]) -> None:
    """Assert that every read interface of the engine returns these records."""
    orders = store[NAME]
    end = expected[-1].offset + 1
    assert (orders.log_start_offset, orders.log_end_offset) == (0, end)
    assert list(orders.read()) == expected
    assert list(orders.read(7, 41)) == expected[7:41]
    columns = orders.columns()
    assert columns.offsets.tolist() == list(range(end))
    assert columns.timestamps.tolist() == [record.timestamp for record in expected]
    assert [record.value for record in columns.records()] == [record.value for record in expected]
    assert [orders.record(n) for n in range(end)] == expected
    assert [orders.first_offset_from(n) for n in range(end)] == list(range(end))
    assert orders.last_offset() == end - 1
    assert [r for batch in orders.batches(0) for r in batch.records()] == expected
    for view in View:
        whole = text_of(expected, view)
        shown = TextView(orders, view)
        assert shown.size == len(whole)
        assert shown.read(0, len(whole)) == whole
        assert shown.read(100, 300) == whole[100:400]
        part = TextView(orders, view, 9, 37)
        assert part.read(0, part.size) == text_of(expected[9:37], view)
    for count in (1, 3, 20, end):
        assert orders.offset_of_last(count) == max(end - count, 0)


def test_every_read_interface_of_the_engine(
    log_dir: Path, clock: Clock, records: list[Record]
) -> None:
    """All records are read after an unclean start, a clean one, an append in the new format, and without indexes."""
    with Store(log_dir, clock=clock) as store:
        assert_reads(store, records)
    assert_clean(log_dir)
    with Store(log_dir, clock=clock) as store:
        assert_reads(store, records)
        assert store[NAME].append([b"appended"]) == 63
        appended = Record(b"appended", None, (), clock(), 63)
        assert_reads(store, [*records, appended])
        (batch,) = store[NAME].batches(63)
        assert batch.header.magic == MAGIC
        assert store[NAME].epochs.entries == [(0, 60)]
    assert_clean(log_dir)
    for suffix in (".index", ".timeindex", ".textindex"):
        for path in (log_dir / NAME).glob("*" + suffix):
            path.unlink()
    with Store(log_dir, clock=clock) as store:
        assert_reads(store, [*records, appended])
    with Store(log_dir, clock=clock, read_only=True) as store:
        assert_reads(store, [*records, appended])


def test_with_an_index_entry_for_each_batch(
    log_dir: Path, clock: Clock, records: list[Record]
) -> None:
    """Index entries refer to messages and wrappers; a clean start finds the end of the last segment by them."""
    (log_dir / "orders@p").write_text("index.interval.bytes=0\n")
    for _ in range(3):
        with Store(log_dir, clock=clock) as store:
            assert len(store[NAME].segments[0].offset_index) == 5
            assert_reads(store, records)
        assert_clean(log_dir)
    for path in (log_dir / NAME).glob("*.textindex"):
        path.unlink()
    with Store(log_dir, clock=clock) as store:
        assert [store[NAME].record(n) for n in range(len(records))] == records


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("last", [Codec.NONE, *CODECS])
def test_a_clean_start_finds_the_end_after_an_old_batch(
    log_dir: Path, clock: Clock, magic: int, last: Codec
) -> None:
    """A clean start finds the log end after an old batch; only its messages show the base offset of a wrapper."""
    (log_dir / "orders@p").parent.mkdir()
    (log_dir / "orders@p").write_text("index.interval.bytes=0\n")
    data, records = fill(magic, 0)
    old = [Old(15, b"a", None, T), Old(16, b"b", None, T), Old(17, b"c", None, T)]
    if last is Codec.NONE:
        old = old[:1]
        data += message(magic, old[0])
    else:
        data += wrapper(magic, last, old)
    raw_partition(log_dir, {log(0): data})
    expected = [*records, *(as_read(magic, each) for each in old)]
    for _ in range(2):
        with Store(log_dir, clock=clock) as store:
            assert_reads(store, expected)
            assert store[NAME].last_timestamp == expected[-1].timestamp
    with Store(log_dir, clock=clock) as store:
        before = store[NAME].active.offset_index.path.read_bytes()
        assert store[NAME].append([b"d"]) == len(expected)
    assert_clean(log_dir)
    assert (log_dir / NAME / log(0, ".index")).read_bytes().startswith(before)


def test_time_lookups(log_dir: Path, clock: Clock) -> None:
    """Lookups by time return what Kafka returns for messages of magic 1 (kafka-storage 3.10)."""
    data, records = fill(1, 0)
    raw_partition(log_dir, {log(0): data})
    with Store(log_dir, clock=clock) as store:
        orders = store[NAME]
        for record in records:
            assert orders.offset_for_time(record.timestamp) == (record.offset, record.timestamp, -1)
            assert orders.offset_for_time(record.timestamp - 9)[:2] == (
                record.offset,
                record.timestamp,
            )
        assert orders.offset_for_time(records[-1].timestamp + 1) is None
        assert orders.offset_for_time(MAX_TIMESTAMP)[:2] == (14, records[-1].timestamp)
        assert orders.offset_for_time(EARLIEST)[0] == 0
        assert orders.offset_for_time(LATEST)[0] == 15


def test_time_lookups_without_timestamps(log_dir: Path, clock: Clock) -> None:
    """A log of magic 0 has no timestamps: a lookup finds nothing, as in Kafka, and no time index entry is written."""
    data, _ = fill(0, 0)
    raw_partition(log_dir, {log(0): data})
    with Store(log_dir, clock=clock) as store:
        orders = store[NAME]
        for timestamp in (0, T, MAX_TIMESTAMP):
            assert orders.offset_for_time(timestamp) is None
        assert orders.offset_for_time(EARLIEST)[0] == 0
        assert len(orders.active.time_index) == 0
        assert orders.append([Record(b"new", timestamp=T)]) == 15
        assert orders.offset_for_time(T) == (15, T, 0)
        assert orders.offset_for_time(MAX_TIMESTAMP) == (15, T, 0)


def test_log_append_time_of_a_wrapper(log_dir: Path, clock: Clock) -> None:
    """All messages of a wrapper with the log's append time have that time."""
    rows = [Old(n, b"v", None, n) for n in range(4)]
    raw_partition(log_dir, {log(0): wrapper(1, Codec.GZIP, rows, late=T)})
    with Store(log_dir, clock=clock) as store:
        orders = store[NAME]
        assert [(r.timestamp, r.timestamp_type) for r in orders.read()] == [(T, LATE)] * 4
        assert orders.offset_for_time(5) == (0, T, -1)


def test_a_compacted_log(log_dir: Path, clock: Clock) -> None:
    """Gaps within wrappers and between them are no damage in a compacted topic."""
    rows = [[Old(2, b"a", b"k"), Old(5, b"b", b"l")], [Old(9, b"c", b"m"), Old(10, b"d", b"n")]]
    data = wrapper(1, Codec.SNAPPY, rows[0], base=0) + wrapper(1, Codec.LZ4, rows[1], base=7)
    data += message(1, Old(20, b"e", b"o"))
    raw_partition(log_dir, {log(0): data})
    # A cleaner leaves a checkpoint, which shows that offsets may be missing.
    cleaned = checkpoint.format_offsets({TopicPartition("orders", 0): 0})
    (log_dir / CLEANER_OFFSETS).write_bytes(cleaned)
    for _ in range(2):
        with Store(log_dir, clock=clock) as store:
            orders = store[NAME]
            assert [record.offset for record in orders.read()] == [2, 5, 9, 10, 20]
            assert orders.record(3) is None
            assert orders.record(9).value == b"c"
            assert orders.first_offset_from(6) == 9
            shown = TextView(orders, View.LINES)
            assert shown.read(0, 100) == b"a\nb\nc\nd\ne\n"


def test_truncation_within_a_wrapper_drops_it_whole(
    log_dir: Path, clock: Clock, records: list[Record]
) -> None:
    """Truncation within a wrapper drops it whole, like a record batch; later appends are in the new format."""
    with Store(log_dir, clock=clock) as store:
        store.truncate(NAME, 35)
        end = store[NAME].log_end_offset
        assert end == 33
        assert list(store[NAME].read()) == records[:33]
        assert store[NAME].append([b"new"]) == 33
    with Store(log_dir, clock=clock) as store:
        assert [record.value for record in store[NAME].read(32)] == [records[32].value, b"new"]


# Damage.


def last_batch(kind: str, magic: int, rows: list[Old]) -> bytes:
    """Return a plain message, or a wrapper; a `stored` wrapper holds its messages uncompressed."""
    if kind == "plain":
        return message(magic, rows[0])
    if kind == "stored":
        return wrapper(magic, Codec.LZ4, rows, pack=stored)
    return wrapper(magic, Codec.named(kind), rows)


KINDS = ["plain", "gzip", "snappy", "stored"]


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("kind", KINDS)
def test_a_tail_torn_at_any_byte_is_cut_off(
    tmp_path: Path, clock: Clock, magic: int, kind: str
) -> None:
    """If a crash has torn the last message at any byte, the log ends before it, and the torn bytes are kept."""
    # In magic 1 the offsets in a wrapper count from 0, so its messages 2 and 3 could look like the next of the log.
    records = [as_read(magic, Old(n, b"old", None, T)) for n in range(2)]
    data = b"".join(message(magic, Old(n, b"old", None, T)) for n in range(2))
    tail = last_batch(kind, magic, [Old(n, b"value %d" % n, b"key", T) for n in range(2, 6)])
    for size in drawn(range(1, len(tail)), 15):
        log_dir = tmp_path / "cut"
        directory = raw_partition(log_dir, {log(0): data + tail[:size]})
        with Store(log_dir, clock=clock) as store:
            assert list(store[NAME].read()) == records, size
            assert store[NAME].log_end_offset == 2
            torn = len(store[NAME].torn)
        kept = [path.read_bytes() for path in directory.glob("*.torn")]
        assert torn == 1
        assert kept == ([tail[:size]] if tail[:size].strip(b"\0") else [])
        assert_clean(log_dir)
        shutil.rmtree(log_dir)


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("zeros", [1, 17, 26, 61, 70_000])
def test_preallocated_zeros_are_cut_off(
    log_dir: Path, clock: Clock, magic: int, zeros: int
) -> None:
    """Zeros after the last message are cut off, though they could be read as a message of magic 0."""
    data, records = fill(magic, 0)
    raw_partition(log_dir, {log(0): data + bytes(zeros)})
    with Store(log_dir, clock=clock) as store:
        assert_reads(store, records)
        assert store[NAME].active.path.stat().st_size == len(data)


def readable(store: Store) -> list[Record]:
    """Return the readable records of a partition, skipping damaged ranges."""
    orders = store[NAME]
    found: list[Record] = []
    at = 0
    while at < orders.log_end_offset:
        try:
            for record in orders.read(at):
                found.append(record)
                at = record.offset + 1
        except DamagedRange as error:
            at = error.next_offset
    return found


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("kind", KINDS)
def test_a_flipped_bit_damages_only_its_batch(
    tmp_path: Path, clock: Clock, magic: int, kind: str
) -> None:
    """Whichever bit is flipped, no wrong record is read, and the records before and after the batch stay readable."""
    rows = [Old(n, b"value %d" % n, b"key", T + n) for n in range(10)]
    hit = last_batch(kind, magic, rows[2:8])
    lost = {2} if kind == "plain" else set(range(2, 8))
    before = b"".join(message(magic, old) for old in rows[:2])
    behind = b"".join(message(magic, old) for old in rows[2 + len(lost) :])
    whole = before + hit + behind
    expected = [as_read(magic, old) for old in rows if old.offset not in lost]
    log_dir = tmp_path / "flipped"
    directory = raw_partition(log_dir, {log(0): whole, log(10): message(magic, Old(10, b"end"))})
    expected.append(as_read(magic, Old(10, b"end")))
    with Store(log_dir, clock=clock) as store:
        assert len(list(store[NAME].read())) == 11
    for bit in drawn(range(len(before) * 8, len(before + hit) * 8), 60):
        flipped = bytearray(whole)
        flipped[bit // 8] ^= 1 << bit % 8
        (directory / log(0)).write_bytes(flipped)
        with Store(log_dir, clock=clock, read_only=True) as store:
            assert readable(store) == expected, bit
            for offset in lost:
                with pytest.raises(DamagedRange):
                    store[NAME].record(offset)
            assert store[NAME].record(10).value == b"end"


def test_damage_in_the_views_and_the_audit(log_dir: Path, clock: Clock) -> None:
    """The text of a damaged message raises `DamagedRange`, the text around it is readable, and the audit names it."""
    data, records = fill(1, 0)
    at = len(message(1, Old(0, records[0].value, records[0].key)))
    flipped = bytearray(data)
    flipped[at + 30] ^= 1
    raw_partition(log_dir, {log(0): bytes(flipped), log(15): message(1, Old(15, b"end"))})
    with Store(log_dir, clock=clock) as store:
        shown = TextView(store[NAME], View.LINES)
        first = text_of(records[:1], View.LINES)
        rest = text_of(records[2:], View.LINES) + b"end\n"
        assert shown.read(0, len(first)) == first
        with pytest.raises(DamagedRange):
            shown.read(0, len(first) + 1)
        assert shown.read(shown.size - len(rest), len(rest)) == rest
    (found,) = [each for each in check(log_dir) if each.severity is Severity.ERROR]
    assert "offsets 1 to 1 are damaged" in found.text
    shutil.rmtree(log_dir)


# The mount and the commands.


def test_a_mount(make_mount: Callable[..., Mount], log_dir: Path, records: list[Record]) -> None:
    """The files of a mount show a partition of mixed formats, and an append is in the new format."""
    # The modification time of the file is used where no message has a timestamp.
    os.utime(log_dir / NAME / log(0), (1, 1))
    mount = make_mount()
    orders = mount.path / NAME
    assert (orders / "records").read_bytes() == text_of(records, View.LINES)
    assert (orders / "records").stat().st_size == len(text_of(records, View.LINES))
    assert (orders / "records.jsonl").read_bytes() == text_of(records, View.ENVELOPES)
    first = orjson.loads((orders / "records.jsonl").read_bytes().splitlines()[1])
    assert (first["timestamp"], first["timestamp_type"]) == (-1, "NoTimestampType")
    for record in records:
        assert (orders / "offsets" / str(record.offset)).read_bytes() == (record.value or b"")
    # The record of the first segment that reaches the time; in the segment of magic 1 the log stamped the wrappers.
    wanted = next(r for r in records if r.offset >= 15 and r.timestamp >= T + 165)
    assert (orders / "time" / str(T + 165)).read_bytes() == (wanted.value or b"")
    with (orders / "append").open("wb", buffering=0) as file:
        file.write(b"appended\n")
    assert (orders / "records").read_bytes().endswith(b"new 62\nappended\n")
    assert (orders / "offsets/63").read_bytes() == b"appended"
    mount.stop()
    data = (log_dir / NAME / log(30)).read_bytes()
    assert parse_batch(data, data.rindex(b"appended") - 67).header.magic == MAGIC


def test_commands(log_dir: Path, records: list[Record]) -> None:
    """cat, tail, describe, recover, reindex, dump and check read old formats like any other."""
    with Store(log_dir) as store:
        assert NAME in store
    assert ok("cat", log_dir / NAME) == text_of(records, View.LINES).decode()
    assert ok("cat", log_dir / NAME, "--json") == text_of(records, View.ENVELOPES).decode()
    assert ok("tail", "-n", "4", log_dir / NAME) == text_of(records[-4:], View.LINES).decode()
    assert ok("describe", log_dir).splitlines()[1].split()[:5] == [NAME, "0", "63", "2419", "3"]
    assert ok("recover", log_dir) == f"{NAME}: 0..63\n"
    ok("reindex", log_dir / NAME)
    assert "0 errors" in ok("check", log_dir)
    for base in (0, 15, 30):
        path = log_dir / NAME / log(base)
        for option in ("--deep-iteration", "--print-data-log", "--json"):
            done = call("dump", path, option)
            assert done.returncode == 0, done.stderr
            assert b"nvalid bytes" not in done.stdout
        for suffix in (".index", ".timeindex"):
            ok("dump", path.with_suffix(suffix), "--verify-index-only")


@pytest.mark.parametrize("magic", [0, 1])
def test_a_log_that_ends_with_a_short_message(log_dir: Path, magic: int) -> None:
    """A message may be shorter than the header of a batch."""
    short = [message(magic, Old(n, b"%d" % n)) for n in range(3)]
    assert len(short[-1]) < HEADER_SIZE
    raw_partition(log_dir, {"00000000000000000000.log": b"".join(short)})
    assert ok("cat", log_dir / NAME) == "0\n1\n2\n"
    assert ok("tail", "-n", "1", log_dir / NAME) == "2\n"
    assert ok("consume", log_dir / NAME, "-g", "g", "--idle-exit", "0") == "0\n1\n2\n"
