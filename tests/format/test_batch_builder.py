"""Building sealed batches from lines and records: limits, splits, timestamps and the sizes of their text."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from logfs.errors import RecordTooLarge
from logfs.format.batches.batch import Batch, assign_offset
from logfs.format.batches.compression import Codec
from logfs.format.batches.record import Record, TimestampType
from logfs.format.encoding.batch_builder import (
    BatchFormat,
    Built,
    build_lines,
    build_records,
    offset_digits,
)
from logfs.format.text.rendering import measure
from tests.support.examples import examples
from tests.support.requirements import DEEP

NOW = 1_700_000_000_000
MANY = 700 if DEEP else 300
HEADERS = st.lists(st.tuples(st.text(max_size=6), st.none() | st.binary(max_size=9)), max_size=3)
MAYBE_BYTES = st.none() | st.binary(max_size=60)
RECORDS = st.lists(
    st.builds(Record, MAYBE_BYTES, MAYBE_BYTES, HEADERS, st.none() | st.integers(-1, 2**62)),
    max_size=25,
)
LINES = st.lists(
    (st.binary(max_size=50) | st.integers(0, 400).map(lambda n: b"z" * n)).map(
        lambda line: line.replace(b"\n", b"")
    ),
    min_size=1,
    max_size=60,
)
FORMATS = st.builds(
    BatchFormat,
    st.sampled_from(list(Codec)),
    st.none(),
    st.sampled_from([69, 75, 100, 135, 160, 200, 300, 500, 1000, 1048588]),
    st.sampled_from([TimestampType.CREATE_TIME, TimestampType.LOG_APPEND_TIME]),
)


def check_batches(built: Built, form: BatchFormat, base: int = 7) -> list[Record]:
    """Check that each batch is valid, within the limit, and has the stated text size; return all their records."""
    records = []
    for new in built.batches:
        assert len(new.data) <= form.limit_bytes
        assign_offset(new.data, base, 0)
        batch = Batch.parse(new.data)
        batch.check()
        header = batch.header
        assert header.record_count == new.record_count == header.last_offset_delta + 1
        assert header.codec is form.codec
        assert header.timestamp_type is form.timestamp_type
        assert header.max_timestamp == new.max_timestamp
        assert (header.producer_id, header.producer_epoch, header.base_sequence) == (-1, -1, -1)
        digits = offset_digits(base, new.record_count)
        assert measure(batch) == new.text._replace(envelopes=new.text.envelopes + digits)
        records += batch.records()
        base += new.record_count
    return records


def joined(lines: list[bytes]) -> bytes:
    return b"".join(line + b"\n" for line in lines)


@given(LINES, FORMATS)
@examples(3)
def test_lines_become_valid_batches_in_order(lines: list[bytes], form: BatchFormat) -> None:
    """Each line becomes a value, every batch is within the limit, and building stops before a line too large."""
    built = build_lines(joined(lines), form, NOW)
    records = check_batches(built, form)
    taken = len(records)
    assert [record.value for record in records] == lines[:taken]
    assert built.consumed == len(joined(lines[:taken]))
    assert sum(map(built.consumed_by, built.batches)) == built.consumed
    assert (built.refused is None) == (taken == len(lines))
    if built.refused is not None:
        assert isinstance(built.refused, RecordTooLarge)
        alone = build_records([Record(lines[taken])], form, NOW)
        assert isinstance(alone.refused, RecordTooLarge)
    for record in records:
        assert (record.key, record.headers, record.timestamp) == (None, (), NOW)


@given(LINES, FORMATS)
@examples(2)
def test_lines_and_records_make_the_same_batches(lines: list[bytes], form: BatchFormat) -> None:
    """`build_lines` and `build_records` make the same bytes and text sizes, and stop at the same line."""
    bulk = build_lines(joined(lines), form, NOW)
    plain = build_records([Record(line) for line in lines], form, NOW)
    assert [bytes(new.data) for new in bulk.batches] == [bytes(new.data) for new in plain.batches]
    assert [new.text for new in bulk.batches] == [new.text for new in plain.batches]
    assert [new.max_timestamp for new in bulk.batches] == [n.max_timestamp for n in plain.batches]
    assert bulk.consumed == len(joined(lines[: plain.consumed]))
    assert (bulk.refused is None) == (plain.refused is None)


@given(RECORDS, FORMATS)
@examples(3)
def test_records_become_valid_batches_in_order(records: list[Record], form: BatchFormat) -> None:
    """Records keep their keys, headers and timestamps; those before one that is too large are built."""
    built = build_records(records, form, NOW)
    found = check_batches(built, form)
    assert built.consumed == len(found) == sum(map(built.consumed_by, built.batches))
    assert (built.refused is None) == (len(found) == len(records))
    for was, now in zip(records, found, strict=False):
        assert (now.value, now.key, list(now.headers)) == (was.value, was.key, list(was.headers))
        if form.timestamp_type is TimestampType.LOG_APPEND_TIME:
            assert now.timestamp == NOW
        else:
            assert now.timestamp == (NOW if was.timestamp is None else was.timestamp)


@pytest.mark.drawn(100)
@pytest.mark.parametrize("codec", list(Codec))
@pytest.mark.parametrize("limit", [71, 90, 110, 135, 160, 200, 260, 400, 1000, 5000])
@pytest.mark.parametrize("length", [0, 2, 9, 30, 37, 100])
def test_many_lines_at_any_limit(codec: Codec, limit: int, length: int) -> None:
    """Hundreds of lines, of each length at each limit, are split into valid batches; none is lost or overwritten."""
    noise = random.Random(length)
    lines = [bytes(noise.choices(b"0123456789abcdef\x80\xff", k=length)) for _ in range(MANY)]
    form = BatchFormat(codec, limit_bytes=limit)
    built = build_lines(joined(lines), form, NOW)
    records = check_batches(built, form)
    assert [record.value for record in records] == lines[: len(records)]
    if built.refused is None:
        assert len(records) == len(lines)
    else:
        assert build_records([Record(lines[len(records)])], form, NOW).refused is not None


@pytest.mark.parametrize("codec", list(Codec))
def test_incompressible_lines_keep_the_limit(codec: Codec) -> None:
    """Every batch of random bytes is within max.message.bytes, though a codec makes such bytes longer."""
    noise = random.Random(1)
    lines = [noise.randbytes(999).replace(b"\n", b" ") for _ in range(400)]
    form = BatchFormat(codec, limit_bytes=100_000)
    built = build_lines(joined(lines), form, NOW)
    assert built.refused is None
    assert [record.value for record in check_batches(built, form)] == lines
    assert len(built.batches) == 5


def test_a_batch_is_as_full_as_the_limit_allows() -> None:
    """Uncompressed records share a batch until one more would exceed the limit; a batch may have exactly the limit
    (kafka-storage 2.9.1).
    """
    size = len(build_records([Record(b"v" * 20)], BatchFormat(), NOW).batches[0].data)
    pair = len(build_records([Record(b"v" * 20)] * 2, BatchFormat(), NOW).batches[0].data)
    for limit, counts in ((pair, [2, 2]), (pair - 1, [1, 1, 1, 1]), (size, [1, 1, 1, 1])):
        form = BatchFormat(limit_bytes=limit)
        for built in (
            build_records([Record(b"v" * 20)] * 4, form, NOW),
            build_lines((b"v" * 20 + b"\n") * 4, form, NOW),
        ):
            assert [new.record_count for new in built.batches] == counts
            assert built.refused is None


@pytest.mark.parametrize("codec", list(Codec))
@pytest.mark.parametrize("before", [0, 1, 3, 50])
def test_building_stops_before_a_record_that_is_too_large(codec: Codec, before: int) -> None:
    """The lines before one that cannot fit are built, and `consumed` shows where to go on."""
    noise = random.Random(2).randbytes(3000).replace(b"\n", b" ")
    lines = [b"good"] * before + [noise] + [b"behind"] * 5
    form = BatchFormat(codec, limit_bytes=1000)
    built = build_lines(joined(lines), form, NOW)
    assert isinstance(built.refused, RecordTooLarge)
    assert built.consumed == 5 * before
    assert [record.value for record in check_batches(built, form)] == [b"good"] * before
    assert "max.message.bytes" in str(built.refused)
    again = build_records([Record(line) for line in lines], form, NOW)
    assert isinstance(again.refused, RecordTooLarge)
    assert again.consumed == before


def test_a_large_record_that_compresses_well_fits() -> None:
    """The limit applies to the bytes that go to the log: a larger record is accepted if its compressed batch fits
    (kafka-storage 2.9.1).
    """
    for codec in list(Codec)[1:]:
        form = BatchFormat(codec, limit_bytes=5000)
        for count in (1, 3, 20):
            lines = [b"x" * 20_000] * count
            built = build_lines(joined(lines), form, NOW)
            assert built.refused is None
            assert [record.value for record in check_batches(built, form)] == lines


def test_no_input_makes_no_batch() -> None:
    """A builder without records makes no batch, and never an empty one (kafka-storage 2.3)."""
    assert build_records([], BatchFormat(), NOW) == Built([], 0)


def test_timestamps_of_a_batch() -> None:
    """The base timestamp is the first record's, not the least; the maximum is the greatest (kafka-storage 2.3)."""
    stamps = [500, 100, 900, -1]
    (new,) = build_records([Record(b"", timestamp=t) for t in stamps], BatchFormat(), NOW).batches
    header = Batch.parse(new.data).header
    assert (header.base_timestamp, header.max_timestamp) == (500, 900)
    assert [record.timestamp for record in Batch.parse(new.data).records()] == stamps


def test_a_batch_without_timestamps_has_minus_one() -> None:
    """A batch of records without timestamps has the timestamps -1 (kafka-storage 2.3)."""
    (new,) = build_records([Record(b"", timestamp=-1)] * 2, BatchFormat(), NOW).batches
    header = Batch.parse(new.data).header
    assert (header.base_timestamp, header.max_timestamp, new.max_timestamp) == (-1, -1, -1)


def test_a_record_without_a_timestamp_gets_the_time_of_the_append() -> None:
    """A record with the timestamp None gets the time of the append."""
    (new,) = build_records([Record(b""), Record(b"", timestamp=5)], BatchFormat(), NOW).batches
    assert [record.timestamp for record in Batch.parse(new.data).records()] == [NOW, 5]


def test_log_append_time_stamps_every_record() -> None:
    """Under LogAppendTime every record has the time of the append, whatever timestamp it was sent with
    (kafka-storage 2.2).
    """
    form = BatchFormat(timestamp_type=TimestampType.LOG_APPEND_TIME)
    for new in (
        build_records([Record(b"", timestamp=5), Record(b"")], form, NOW).batches
        + build_lines(b"a\n" * 20, form, NOW).batches
        + build_lines(b"a\n", form, NOW).batches
    ):
        assert new.max_timestamp == NOW
        assert {
            (record.timestamp, record.timestamp_type) for record in Batch.parse(new.data).records()
        } == {(NOW, TimestampType.LOG_APPEND_TIME)}


@given(st.integers(0, 10**7), st.integers(0, 2000))
def test_digits_of_offsets_are_summed(first: int, count: int) -> None:
    """`offset_digits` is the total number of digits of consecutive offsets."""
    assert offset_digits(first, count) == sum(
        len(str(offset)) for offset in range(first, first + count)
    )


def test_digits_of_huge_runs_need_no_loop() -> None:
    """The digits of 10^12 offsets are summed without a loop over the offsets."""
    assert offset_digits(0, 10**12) == 10 + sum(
        9 * 10 ** (length - 1) * length for length in range(2, 13)
    )
