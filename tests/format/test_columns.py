"""Records in bulk: the columns of batches, the selection of rows, and the concatenation of columns."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from logfs.errors import Corrupt
from logfs.format.batches.batch import Batch, assign_offset
from logfs.format.batches.columns import Columns, concatenate, decode_columns
from logfs.format.batches.compression import Codec
from logfs.format.batches.record import Record, TimestampType, encode_record
from logfs.format.encoding.batch_builder import BatchFormat, build_records

MAYBE_BYTES = st.none() | st.binary(max_size=20)
RECORDS = st.lists(
    st.builds(
        Record,
        MAYBE_BYTES,
        MAYBE_BYTES,
        st.lists(st.tuples(st.text(max_size=4), MAYBE_BYTES), max_size=2),
        st.integers(0, 2**60),
    ),
    min_size=1,
    max_size=10,
)
FIELDS = {
    "offsets": np.int64,
    "timestamps": np.int64,
    "key_starts": np.int64,
    "key_lengths": np.int32,
    "value_starts": np.int64,
    "value_lengths": np.int32,
    "header_starts": np.int64,
    "header_ends": np.int64,
    "header_counts": np.int32,
}


def batch_of(records: list[Record], base: int = 0, form: BatchFormat | None = None) -> Batch:
    (new,) = build_records(records, form or BatchFormat(), 0).batches
    assign_offset(new.data, base, 0)
    return Batch.parse(new.data)


def plain(records: list[Record], base: int) -> list[tuple[object, ...]]:
    return [(r.value, r.key, list(r.headers), r.timestamp, base + i) for i, r in enumerate(records)]


def rows(columns: Columns) -> list[tuple[object, ...]]:
    return [(r.value, r.key, list(r.headers), r.timestamp, r.offset) for r in columns.records()]


@given(RECORDS, st.sampled_from(list(Codec)))
def test_columns_are_the_records(records: list[Record], codec: Codec) -> None:
    """Each row of the columns is the record at the same place in the batch, with each codec."""
    columns = batch_of(records, 30, BatchFormat(codec)).columns()
    assert len(columns) == len(records)
    assert rows(columns) == plain(records, 30)


def test_columns_have_their_documented_dtypes() -> None:
    """Offsets, timestamps and positions are int64, lengths and counts int32, and the data uint8."""
    columns = batch_of([Record(b"value", b"k"), Record(None)]).columns()
    assert columns.data.dtype == np.uint8
    for name, dtype in FIELDS.items():
        assert getattr(columns, name).dtype == dtype
        assert getattr(columns, name).shape == (2,)


def test_columns_point_into_the_data() -> None:
    """A start and a length delimit a value in `data`; a length of -1 is a null."""
    columns = batch_of([Record(b"value", b"k"), Record(None), Record(b"")]).columns()
    start, length = int(columns.value_starts[0]), int(columns.value_lengths[0])
    assert columns.data[start : start + length].tobytes() == b"value"
    assert columns.value_lengths.tolist() == [5, -1, 0]
    assert columns.key_lengths.tolist() == [1, -1, -1]


@given(RECORDS, st.data())
def test_select_returns_the_chosen_rows(records: list[Record], data: st.DataObject) -> None:
    """`select` takes a mask or a slice, and shares the data."""
    columns = batch_of(records).columns()
    mask = data.draw(st.lists(st.booleans(), min_size=len(records), max_size=len(records)))
    chosen = columns.select(np.array(mask, np.bool_))
    assert rows(chosen) == [row for row, keep in zip(plain(records, 0), mask, strict=True) if keep]
    assert chosen.data is columns.data
    assert rows(columns.select(slice(1, 3))) == plain(records, 0)[1:3]


@given(st.lists(RECORDS, max_size=4))
def test_concatenated_columns_are_all_records_in_order(groups: list[list[Record]]) -> None:
    """Rows of several batches, each with its own data, become rows over one array of data, in order."""
    parts, expected, base = [], [], 0
    for group in groups:
        parts.append(batch_of(group, base).columns())
        expected += plain(group, base)
        base += len(group)
    assert rows(concatenate(parts)) == expected


def test_concatenating_nothing_gives_empty_columns() -> None:
    """`concatenate` of an empty list returns columns without rows, with the usual dtypes."""
    empty = concatenate([])
    assert len(empty) == 0
    assert list(empty.records()) == []
    for name, dtype in FIELDS.items():
        assert getattr(empty, name).dtype == dtype


def test_log_append_time_fills_the_timestamps() -> None:
    """Rows of a LogAppendTime batch have the time of the append (kafka-storage 2.2)."""
    form = BatchFormat(timestamp_type=TimestampType.LOG_APPEND_TIME)
    (new,) = build_records([Record(b"", timestamp=5), Record(b"", timestamp=9)], form, 77).batches
    columns = Batch.parse(new.data).columns()
    assert columns.timestamps.tolist() == [77, 77]
    assert set(columns.timestamp_types.tolist()) == {TimestampType.LOG_APPEND_TIME}


def test_several_batches_are_decoded_at_once() -> None:
    """Spans of one buffer become one set of columns, each span with its own base offset and base timestamp."""
    one = encode_record(Record(b"a"), offset_delta=0, timestamp_delta=1)
    two = encode_record(Record(b"b"), offset_delta=1, timestamp_delta=2)
    data = b"??" + one + two + b"?" + one
    spans = np.array(
        [
            (2, 2 + len(one + two), 2, 10, 100),
            (len(data), len(data), 0, 0, 0),
            (len(data) - len(one), len(data), 1, 20, 200),
        ],
        np.int64,
    )
    found = [(r.value, r.offset, r.timestamp) for r in decode_columns(data, spans).records()]
    assert found == [(b"a", 10, 101), (b"b", 11, 102), (b"a", 20, 201)]


@pytest.mark.parametrize("count", [-1, 0, 2, 2**31, 2**32 - 1])
def test_counts_that_do_not_fit_are_corrupt(count: int) -> None:
    """A declared count must fit the bytes before it decides how much memory is allocated (rule of kernels)."""
    data = encode_record(Record(b"a"), offset_delta=0, timestamp_delta=1)
    with pytest.raises(Corrupt):
        decode_columns(data, np.array([(0, len(data), count, 0, 0)], np.int64))


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"\x0e\0\0\0\x20k\x01\0", "a key does not fit"),
        (b"\x0c\0\0\0\x01\x20\0", "a value does not fit"),
        (b"\x0c\0\0\0\x01\x01\x01", "headers do not fit"),
        (b"\x0e\0\0\0\x01\x01\0!", "length does not match"),
        (b"\x80\x80\x80\x80\x80\x80\0", "not a varint"),
        (b"\x0c\0\0\0\x01\x01\0!", "1 bytes follow the last of 1 records"),
    ],
)
def test_the_error_names_the_batch_and_its_malformed_part(body: bytes, words: str) -> None:
    """The error names the batch and its malformed part (kafka-storage 2.2, read checks)."""
    with pytest.raises(Corrupt, match=f"batch 42: .*{words}"):
        decode_columns(body, np.array([(0, len(body), 1, 42, 0)], np.int64))
