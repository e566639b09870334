"""The encoding of one record and of its varints (kafka-storage 2.2)."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from logfs.errors import Corrupt
from logfs.format.base import varint
from logfs.format.batches.record import (
    SMALLEST_RECORD,
    Record,
    TimestampType,
    decode_record,
    decode_records,
    encode_record,
    skip_records,
)

INT64 = st.integers(-(2**63), 2**63 - 1)
MAYBE_BYTES = st.none() | st.binary(max_size=300)
HEADERS = st.lists(
    st.tuples(st.text(max_size=8) | st.just("\udcff\udc80"), MAYBE_BYTES), max_size=4
)


def rebuilt(body: bytes) -> bytes:
    return varint.encode(len(body)) + body


# Attributes, timestamp delta 0 and offset delta 0.
HEAD = b"\0\0\0"
GOOD = rebuilt(HEAD + b"\x02k" + b"\x02v" + b"\x02" + b"\x02h" + b"\x02w")


def decode(data: bytes) -> Record:
    record, end = decode_record(data, 0, base_offset=0, base_timestamp=0)
    assert end == len(data)
    return record


@pytest.mark.parametrize(
    ("value", "data"),
    [
        (0, "00"),
        (-1, "01"),
        (1, "02"),
        (63, "7e"),
        (-64, "7f"),
        (64, "8001"),
        (-65, "8101"),
        (8191, "fe7f"),
        (-8192, "ff7f"),
        (8192, "808001"),
        (2**31 - 1, "feffffff0f"),
        (-(2**31), "ffffffff0f"),
        (2**63 - 1, "feffffffffffffffff01"),
        (-(2**63), "ffffffffffffffffff01"),
    ],
)
def test_varints_are_kafkas(value: int, data: str) -> None:
    """A varint is zigzag-encoded, in seven bits for each byte, with the low bits first (kafka-storage 2.2)."""
    assert varint.encode(value).hex() == data
    most = varint.VARINT_BYTES if -(2**31) <= value < 2**31 else varint.VARLONG_BYTES
    assert varint.decode(bytes.fromhex(data), 0, most) == (value, len(data) // 2)


@given(INT64, st.binary(max_size=3), st.binary(max_size=3))
def test_varlongs_round_trip(value: int, before: bytes, after: bytes) -> None:
    """Any int64 is read back from its varlong, at any position."""
    data = varint.encode(value)
    found = varint.decode(before + data + after, len(before), varint.VARLONG_BYTES)
    assert found == (value, len(before) + len(data))


@pytest.mark.parametrize("data", ["", "80", "ffffffff", "8080808080", "ffffffff1f", "808080808001"])
def test_malformed_varints_are_corrupt(data: str) -> None:
    """A varint that does not end, has a sixth byte or more than 32 bits is refused (kafka-storage 2.2)."""
    with pytest.raises(Corrupt):
        varint.decode(bytes.fromhex(data), 0)


@pytest.mark.parametrize("data", ["80" * 10, "80" * 10 + "01", "ff" * 9 + "02"])
def test_malformed_varlongs_are_corrupt(data: str) -> None:
    """A varlong of eleven bytes or more than 64 bits is refused (Kafka's testInvalidVarlong)."""
    with pytest.raises(Corrupt):
        varint.decode(bytes.fromhex(data), 0, varint.VARLONG_BYTES)


@given(MAYBE_BYTES, MAYBE_BYTES, HEADERS, st.integers(-1, 2**62), st.integers(0, 2**31 - 1))
def test_records_round_trip(value, key, headers, delta, offset_delta) -> None:
    """Any record is read back from its bytes, and null is distinguished from empty (kafka-storage 2.2)."""
    data = encode_record(
        Record(value, key, headers), offset_delta=offset_delta, timestamp_delta=delta
    )
    record, end = decode_record(data, 0, base_offset=10, base_timestamp=5)
    assert end == len(data)
    assert (record.value, record.key, list(record.headers)) == (value, key, headers)
    assert (record.timestamp, record.offset) == (5 + delta, 10 + offset_delta)
    assert record.timestamp_type is TimestampType.CREATE_TIME


def test_the_smallest_records_are_skipped_by_their_lengths() -> None:
    """A record may have neither key, value nor headers. One that is a byte shorter is malformed."""
    smallest = encode_record(Record(None), offset_delta=0, timestamp_delta=0)
    assert len(smallest) == SMALLEST_RECORD
    assert skip_records(smallest * 3, 2) == 2 * SMALLEST_RECORD
    with pytest.raises(Corrupt, match="does not fit its batch"):
        skip_records(rebuilt(smallest[2:]), 1)
    with pytest.raises(Corrupt, match="does not fit its batch"):
        skip_records(smallest[:-1], 1)


@given(st.integers(-1, 2**63 - 1), st.integers(-1, 2**63 - 1))
@example(-1, 2**63 - 1)
@example(2**63 - 1, -1)
def test_timestamps_of_any_distance_round_trip(base: int, timestamp: int) -> None:
    """Two timestamps of a batch may differ by more than an int64 can hold: the delta wraps, as in Java."""
    data = encode_record(Record(b""), offset_delta=0, timestamp_delta=timestamp - base)
    record, _ = decode_record(data, 0, base_offset=0, base_timestamp=base)
    assert record.timestamp == timestamp


def test_the_good_record_is_read() -> None:
    """The record that the following tests break in one place is valid."""
    assert decode(GOOD) == Record(b"v", b"k", [("h", b"w")], 0, 0)


@pytest.mark.parametrize(
    ("what", "data"),
    [
        ("key too long", rebuilt(HEAD + b"\x20k" + b"\x02v\0")),
        ("key length -2", rebuilt(HEAD + b"\x03" + b"\x02v\0")),
        ("value too long", rebuilt(HEAD + b"\x02k" + b"\x20v\0")),
        ("value length -2", rebuilt(HEAD + b"\x02k" + b"\x03\0\0")),
        ("negative header count", rebuilt(HEAD + b"\x02k\x02v" + b"\x01")),
        ("more headers than bytes", rebuilt(HEAD + b"\x02k\x02v" + b"\x06\x02h\0")),
        ("null header name", rebuilt(HEAD + b"\x02k\x02v" + b"\x02\x01\x02w")),
        ("header name too long", rebuilt(HEAD + b"\x02k\x02v" + b"\x02\x10h\x02w")),
        ("header value length -2", rebuilt(HEAD + b"\x02k\x02v" + b"\x02\x02h\x03w")),
        ("header value too long", rebuilt(HEAD + b"\x02k\x02v" + b"\x02\x02h\x20w")),
        ("bytes behind the fields", rebuilt(HEAD + b"\x02k\x02v\0" + b"!")),
        ("length beyond the batch", varint.encode(99) + HEAD + b"\x02k\x02v\0"),
        ("length short of the fields", varint.encode(7) + HEAD + b"\x02k\x02v\0"),
        ("length below the least", rebuilt(b"\0\0\0\x01\x01")),
        ("negative length", b"\x01" + HEAD + b"\x01\x01\0"),
        ("timestamp delta of 11 bytes", rebuilt(b"\0" + b"\x80" * 10 + b"\0\0\x01\x01\0")),
        ("offset delta of 6 bytes", rebuilt(b"\0\0" + b"\x80" * 5 + b"\0\x01\x01\0")),
        ("no bytes", b""),
    ],
)
def test_every_inconsistent_length_is_corrupt(what: str, data: bytes) -> None:
    """A field that does not fit its record is refused (Kafka's tests of records)."""
    with pytest.raises(Corrupt):
        decode(data)


@pytest.mark.parametrize("cut", range(len(GOOD)))
def test_a_cut_record_is_corrupt(cut: int) -> None:
    """Every truncation of a record is refused."""
    with pytest.raises(Corrupt):
        decode(GOOD[:cut])


def test_data_must_hold_exactly_the_records() -> None:
    """Bytes after the last record, and a record too few, are refused (kafka-storage 2.2, read checks)."""
    for count, data in ((1, GOOD + GOOD), (3, GOOD + GOOD), (0, GOOD), (1, GOOD + b"\0")):
        with pytest.raises(Corrupt):
            list(decode_records(data, count, base_offset=0, base_timestamp=0))
    assert len(list(decode_records(GOOD + GOOD, 2, base_offset=0, base_timestamp=0))) == 2


@given(st.binary(max_size=60), st.integers(0, 5))
def test_any_bytes_are_records_or_corrupt(data: bytes, count: int) -> None:
    """Random bytes raise no error but `Corrupt`."""
    try:
        list(decode_records(data, count, base_offset=0, base_timestamp=0))
    except Corrupt:
        pass


def test_header_names_that_are_not_utf_8_round_trip() -> None:
    """A header name of any bytes has the same bytes when the record is encoded again."""
    data = rebuilt(HEAD + b"\x01\x01" + b"\x02" + b"\x06\xff\xfe\x80" + b"\x01")
    record = decode(data)
    assert encode_record(record, offset_delta=0, timestamp_delta=0) == data


def test_timestamp_types_have_kafkas_labels() -> None:
    """The labels of timestamp types are Kafka's names."""
    labels = {kind.value: kind.label for kind in TimestampType}
    assert labels == {-1: "NoTimestampType", 0: "CreateTime", 1: "LogAppendTime"}
