"""Each compiled kernel agrees with plain Python code on any bytes, and stays inside its arrays."""

from __future__ import annotations

import numpy as np
import pytest
from crc32c import crc32c
from hypothesis import example, given
from hypothesis import strategies as st

from logfs.errors import Corrupt
from logfs.format.base import varint
from logfs.format.base.batch_rows import (
    ATTRIBUTES,
    BATCH_COLUMNS,
    CRC,
    LEADER_EPOCH,
    MAX_TIMESTAMP,
    NEXT_OFFSET,
    POSITION,
    PRODUCER_ID,
    SIZE,
    SPAN_BASE_OFFSET,
    SPAN_BASE_TIMESTAMP,
    SPAN_COUNT,
    SPAN_END,
    SPAN_START,
)
from logfs.format.batches.batch import Batch, parse_header
from logfs.format.batches.record import (
    Record,
    TimestampType,
    decode_headers,
    decode_record,
    decode_records,
    encode_record,
    skip_records,
)
from logfs.format.encoding.batch_builder import BatchFormat, build_records, line_ends
from logfs.format.kernels import batch_kernels, json_kernels
from logfs.format.text import envelope
from tests.support.examples import examples

GUARD = 64
HOSTILE = [
    b"",
    b"plain",
    b'quote " and \\ backslash',
    bytes(range(32)),
    b"\x7f\x80",
    b"\x7f",
    "ü€😀".encode(),
    "a𝄞".encode() + b"\n\t",
    b"\xff\xfe",
    b"\xc0\x80",  # overlong NUL
    b"\xc1\xbf",
    b"\xe0\x80\x80",  # overlong
    b"\xe0\x9f\xbf",
    b"\xe0\xa0\x80",
    b"\xed\x9f\xbf",
    b"\xed\xa0\x80",  # a surrogate
    b"\xed\xbf\xbf",
    b"\xee\x80\x80",
    b"\xf0\x8f\xbf\xbf",
    b"\xf0\x90\x80\x80",
    b"\xf4\x8f\xbf\xbf",
    b"\xf4\x90\x80\x80",  # beyond U+10FFFF
    b"\xf5\x80\x80\x80",
    b"\xf0\x9f\x98",  # cut short
    b"\xe2\x82",
    b"\xc3",
    b"a\x80b",
    b"\xe2\x28\xa1",
    b"\xf0\x9f\x28\x80",
    b'{"base64":"YQ=="}',
    b"null",
]
ANY_BYTES = (
    st.binary(max_size=40)
    | st.sampled_from(HOSTILE)
    | st.text(max_size=12).map(str.encode)
    | st.lists(st.sampled_from(HOSTILE), max_size=4).map(b"".join)
)
MAYBE_BYTES = st.none() | ANY_BYTES
HEADERS = st.lists(
    st.tuples(ANY_BYTES.map(lambda b: b.decode("utf-8", "surrogateescape")), MAYBE_BYTES),
    max_size=3,
)
TIMESTAMPS = st.integers(-1, 2**63 - 1) | st.sampled_from([-1, 0, 9, 10, 1_700_000_000_000])
RECORDS = st.lists(st.builds(Record, MAYBE_BYTES, MAYBE_BYTES, HEADERS, TIMESTAMPS), max_size=8)


def guarded(data: bytes) -> tuple[np.ndarray, np.ndarray]:
    """Return the bytes as part of a larger array, and that array, whose other bytes show a write outside the part."""
    whole = np.full(len(data) + 2 * GUARD, 0xA5, np.uint8)
    whole[GUARD : GUARD + len(data)] = np.frombuffer(data, np.uint8)
    return whole[GUARD : GUARD + len(data)], whole


def room(size: int) -> tuple[np.ndarray, np.ndarray]:
    """Return `size` zeros between guard bytes, and the whole array."""
    return guarded(bytes(size))


def untouched(whole: np.ndarray) -> bool:
    return bool((whole[:GUARD] == 0xA5).all() and (whole[-GUARD:] == 0xA5).all())


def columns(rows: int) -> list[np.ndarray]:
    """Return columns for `decode_records` to fill, with -77 in each row."""
    kinds = [
        np.int64,
        np.int64,
        np.int64,
        np.int32,
        np.int64,
        np.int32,
        np.int64,
        np.int64,
        np.int32,
    ]
    return [np.full(rows, -77, kind) for kind in kinds]


def payload(records: list[Record], base_timestamp: int) -> bytes:
    return b"".join(
        encode_record(record, offset_delta=i, timestamp_delta=record.timestamp - base_timestamp)
        for i, record in enumerate(records)
    )


def row_record(data: bytes, cols: list[np.ndarray], row: int) -> Record:
    """Return the record of a row of columns, by plain slicing."""
    offset, timestamp, key, key_size, value, value_size, start, end, count = (
        int(column[row]) for column in cols
    )
    headers, at = [], start
    for _ in range(count):
        size, at = varint.decode(data, at)
        name, at = data[at : at + size], at + size
        size, at = varint.decode(data, at)
        headers.append(
            (name.decode("utf-8", "surrogateescape"), None if size < 0 else data[at : at + size])
        )
        at += max(size, 0)
    assert at == end
    return Record(
        None if value_size < 0 else data[value : value + value_size],
        None if key_size < 0 else data[key : key + key_size],
        headers,
        timestamp,
        offset,
    )


def same(a: Record, b: Record) -> bool:
    return (a.value, a.key, list(a.headers), a.timestamp, a.offset) == (
        b.value,
        b.key,
        list(b.headers),
        b.timestamp,
        b.offset,
    )


# Varints and integers.


@given(st.integers(-(2**63), 2**63 - 1))
@example(-(2**63))
@example(2**63 - 1)
def test_varints_equal_the_plain_ones(value: int) -> None:
    """The kernel writes a varlong as the plain encoder does, and reads it back (kafka-storage 2.2)."""
    expected = varint.encode(value)
    out, whole = room(len(expected))
    assert batch_kernels.put_varint(out, 0, value) == len(expected)
    assert out.tobytes() == expected
    assert batch_kernels.get_varint(out, 0, len(out), 10) == (value, len(expected))
    assert untouched(whole)


@given(st.integers(0, 2**31 - 1))
def test_varint_sizes_are_correct(value: int) -> None:
    """`_varint_size` is the size of the encoded varint."""
    assert batch_kernels._varint_size(value) == len(varint.encode(value))


@given(
    st.binary(max_size=12) | st.lists(st.sampled_from([0x80, 0xFF, 1, 0]), max_size=12).map(bytes)
)
@example(b"\xff" * 9 + b"\x02")
@example(b"\x80" * 9 + b"\x01")
@example(b"\x80" * 10)
@example(b"\xff\xff\xff\xff\x1f")
def test_any_bytes_are_the_same_varint_or_none(data: bytes) -> None:
    """The kernel and the plain decoder agree on which bytes are a varint, for both sizes (kafka-storage 2.2)."""
    array, _ = guarded(data)
    for most in (varint.VARINT_BYTES, varint.VARLONG_BYTES):
        try:
            expected = varint.decode(data, 0, most)
        except Corrupt:
            expected = (0, batch_kernels.BAD_VARINT)
        assert batch_kernels.get_varint(array, 0, len(data), most) == expected


@given(st.integers(-(2**63) + 1, 2**63 - 1))
def test_integers_are_written_in_decimal(value: int) -> None:
    """Integers in an envelope are written in decimal, and have the measured length."""
    expected = str(value).encode()
    assert json_kernels.digits(value) == len(expected)
    out, whole = room(len(expected))
    assert json_kernels.put_integer(out, 0, value) == len(expected)
    assert out.tobytes() == expected
    assert untouched(whole)


# JSON text.


def check_text(data: bytes | None) -> None:
    expected = envelope.text(data)
    array, _ = guarded(data or b"")
    length = -1 if data is None else len(data)
    assert json_kernels.string_size(array, 0, length) == len(expected)
    out, whole = room(len(expected))
    assert json_kernels.put_string(out, 0, array, 0, length) == len(expected)
    assert out.tobytes() == expected
    assert untouched(whole)


@pytest.mark.parametrize("data", [None, *HOSTILE, bytes(range(256)), bytes(range(128))], ids=repr)
def test_hostile_bytes_are_the_same_json(data: bytes | None) -> None:
    """Invalid UTF-8, surrogates, overlong forms, controls, DEL and quotes get the JSON that `envelope.text` makes."""
    check_text(data)


@pytest.mark.parametrize("first", range(0x80, 0x100))
def test_second_bytes_of_characters_are_validated_as_in_python(first: int) -> None:
    """After each lead byte, exactly the second bytes that Python's strict UTF-8 decoder accepts are accepted."""
    for second in range(256):
        for tail in (b"", b"\x80", b"\x80\x80", b"\x80\x41"):
            data = bytes([first, second]) + tail
            array, _ = guarded(data)
            assert json_kernels.string_size(array, 0, len(data)) == len(envelope.text(data)), data


@given(ANY_BYTES)
@examples(3)
def test_any_bytes_are_the_same_json(data: bytes) -> None:
    """The size and the bytes of a JSON string equal those of `envelope.text`, for any bytes."""
    check_text(data)


# Lines to records.


@given(
    st.binary(max_size=80) | st.text("a\n\x0b\x8a", max_size=80).map(str.encode), st.integers(0, 8)
)
@examples(3)
def test_newlines_are_found_as_a_comparison_finds_them(data: bytes, start: int) -> None:
    """The kernel finds the positions of all newlines, and no others, wherever in memory the bytes begin."""
    array = guarded(bytes(start) + data)[0][start:]
    expected = [at for at, byte in enumerate(data) if byte == 10]
    assert line_ends(array).tolist() == expected


def plain_lines(
    lines: list[bytes], first: int, limit: int, out_start: int
) -> tuple[int, bytes, int]:
    """Do the work of `encode_lines`; return the number of records, their bytes, and the JSON size of all values."""
    out, json_bytes, count = b"", 0, 0
    for line in lines[first:]:
        record = encode_record(Record(line), offset_delta=count, timestamp_delta=0)
        if out_start + len(out) + len(record) > limit:
            break
        out += record
        json_bytes += envelope.text_size(line)
        count += 1
    return count, out, json_bytes


@given(
    st.lists(
        (ANY_BYTES | st.integers(0, 300).map(lambda n: b"x" * n)).map(
            lambda b: b.replace(b"\n", b"")
        ),
        min_size=1,
        max_size=80,
    ),
    st.data(),
)
@examples(2)
def test_lines_are_encoded_as_the_plain_loop_does(lines: list[bytes], data: st.DataObject) -> None:
    """The kernel gives the same records, count, end and JSON size as a loop of `encode_record`, at any limit."""
    text = b"".join(line + b"\n" for line in lines)
    array, _ = guarded(text)
    ends = np.flatnonzero(array == 10)
    first = data.draw(st.integers(0, len(lines) - 1))
    start = sum(len(line) + 1 for line in lines[:first])
    out_start = data.draw(st.sampled_from([0, 61, 100]))
    total = len(plain_lines(lines, first, 10**9, 0)[1])
    limit = out_start + data.draw(st.integers(0, total + 10))
    count, expected, json_bytes = plain_lines(lines, first, limit, out_start)
    out, whole = room(out_start + len(expected))
    found = batch_kernels.encode_lines(array, ends, first, start, limit, out, out_start)
    assert found == (count, out_start + len(expected), json_bytes)
    assert out[out_start:].tobytes() == expected
    assert untouched(whole)


def test_many_lines_have_long_offset_deltas() -> None:
    """Offset deltas of two and three bytes, after 64 and 8192 records, are written and counted correctly."""
    lines = [b"%d" % n for n in range(9000)]
    text = b"".join(line + b"\n" for line in lines)
    array = np.frombuffer(text, np.uint8)
    count, expected, json_bytes = plain_lines(lines, 0, 10**9, 0)
    out, whole = room(len(expected))
    found = batch_kernels.encode_lines(array, np.flatnonzero(array == 10), 0, 0, 10**9, out, 0)
    assert found == (count, len(expected), json_bytes)
    assert out.tobytes() == expected
    assert untouched(whole)


# Records to columns.


def kernel_verdict(data: bytes, count: int, offset: int, timestamp: int) -> list[Record] | None:
    """Return the records that the kernel decodes; None if it refuses the bytes or leaves some over."""
    array, _ = guarded(data)
    cols = columns(count + 2)
    end = batch_kernels.decode_records(array, 0, len(data), count, offset, timestamp, *cols, 1)
    for column in cols:
        assert column[0] == column[-1] == -77, "a row that is not the batch's was written"
    if end != len(data):
        return None
    return [row_record(data, cols, row) for row in range(1, count + 1)]


def plain_verdict(data: bytes, count: int, offset: int, timestamp: int) -> list[Record] | None:
    try:
        return list(decode_records(data, count, base_offset=offset, base_timestamp=timestamp))
    except Corrupt:
        return None


def check_same_verdict(data: bytes, count: int, offset: int = 10, timestamp: int = 5) -> None:
    plain = plain_verdict(data, count, offset, timestamp)
    fast = kernel_verdict(data, count, offset, timestamp)
    assert (fast is None) == (plain is None)
    if plain is not None and fast is not None:
        assert all(map(same, fast, plain))


@given(RECORDS, TIMESTAMPS, st.integers(0, 2**62))
def test_records_are_decoded_as_the_plain_decoder_does(
    records: list[Record], base_timestamp: int, base_offset: int
) -> None:
    """Every column of every record equals the result of the plain decoder."""
    data = payload(records, base_timestamp)
    assert kernel_verdict(data, len(records), base_offset, base_timestamp) is not None
    check_same_verdict(data, len(records), base_offset, base_timestamp)


@given(RECORDS, st.data())
@examples(4)
def test_damaged_records_get_the_same_verdict(records: list[Record], data: st.DataObject) -> None:
    """Records with changed, cut or added bytes or a wrong count are refused by both decoders, or read alike."""
    raw = bytearray(payload(records, 0))
    for _ in range(data.draw(st.integers(0, 3))):
        if raw:
            at = data.draw(st.integers(0, len(raw) - 1))
            raw[at] = data.draw(st.integers(0, 255) | st.sampled_from([0, 1, 0x7F, 0x80, 0xFF]))
    raw = raw[: data.draw(st.integers(0, len(raw)) | st.just(len(raw)))]
    raw += data.draw(st.binary(max_size=3) | st.just(b""))
    count = max(len(records) + data.draw(st.sampled_from([0, 0, 0, -1, 1])), 0)
    check_same_verdict(bytes(raw), count)


@given(st.binary(max_size=60), st.integers(0, 4))
@examples(3)
def test_random_bytes_get_the_same_verdict(data: bytes, count: int) -> None:
    """Random bytes are refused by both decoders, or read alike by both."""
    check_same_verdict(data, count)


@given(
    st.lists(st.sampled_from([0x80, 0xFF, 0x01, 0x00, 0x02]), min_size=1, max_size=14).map(bytes)
)
def test_hostile_timestamp_deltas_get_the_same_verdict(delta: bytes) -> None:
    """Both decoders agree on a varlong that is too long or has more than 64 bits (kafka-storage 2.2)."""
    body = b"\0" + delta + b"\0\x01\x01\0"
    check_same_verdict(varint.encode(len(body)) + body, 1)


@pytest.mark.parametrize("delta", ["ff" * 9 + "02", "ff" * 9 + "01", "80" * 9 + "7f", "80" * 10])
@pytest.mark.parametrize("base", [-1, 0, 2**63 - 1])
def test_extreme_timestamp_deltas_get_the_same_verdict(delta: str, base: int) -> None:
    """Both decoders agree on timestamps at the limits of int64."""
    body = b"\0" + bytes.fromhex(delta) + b"\0\x01\x01\0"
    check_same_verdict(varint.encode(len(body)) + body, 1, 0, base)


def test_nothing_outside_the_batch_is_read_as_part_of_it() -> None:
    """A record that extends past the end of its batch is refused, even if the array has more bytes."""
    data = encode_record(Record(b"value", b"key", [("h", b"v")]), offset_delta=0, timestamp_delta=0)
    whole = np.frombuffer(data + data, np.uint8)
    for end in range(len(data)):
        assert batch_kernels.decode_records(whole, 0, end, 1, 0, 0, *columns(1), 0) < 0
    assert batch_kernels.decode_records(whole, 0, len(data), 1, 0, 0, *columns(1), 0) == len(data)
    start = len(data)
    assert (
        batch_kernels.decode_records(whole, start, 2 * start, 1, 0, 0, *columns(1), 0) == 2 * start
    )


@pytest.mark.parametrize(
    ("code", "body"),
    [
        (batch_kernels.BAD_KEY, b"\0\0\0\x20k\x02v\0"),
        (batch_kernels.BAD_VALUE, b"\0\0\0\x01\x20v\0"),
        (batch_kernels.BAD_HEADERS, b"\0\0\0\x01\x01\x01"),
        (batch_kernels.BAD_HEADERS, b"\0\0\0\x01\x01\x02\x01\x01"),
        (batch_kernels.BAD_LENGTH, b"\0\0\0\x01\x01\0!"),
        (batch_kernels.BAD_VARINT, b"\0\0\0\x01\x80\x80\x80\x80\x80\x80"),
    ],
)
def test_the_result_code_identifies_the_malformed_part(code: int, body: bytes) -> None:
    """The result code identifies the malformed part of a record, so that an error message can name it."""
    array, _ = guarded(varint.encode(len(body)) + body)
    assert batch_kernels.decode_records(array, 0, len(array), 1, 0, 0, *columns(1), 0) == code


@given(st.lists(st.integers(0, 20), unique=True, max_size=12).map(sorted), st.integers(-2, 22))
def test_a_record_is_found_where_the_plain_loop_finds_it(deltas: list[int], wanted: int) -> None:
    """`find_record` returns the position of the record with an offset delta, and -1 if compaction has removed it."""
    parts = [
        encode_record(Record(b"v" * delta), offset_delta=delta, timestamp_delta=-1)
        for delta in deltas
    ]
    array, _ = guarded(b"".join(parts))
    expected = sum(map(len, parts[: deltas.index(wanted)])) if wanted in deltas else -1
    assert batch_kernels.find_record(array, 0, len(array), len(deltas), wanted) == expected


@given(RECORDS, st.data())
def test_find_record_in_damaged_bytes_stays_inside_them(
    records: list[Record], data: st.DataObject
) -> None:
    """In damaged bytes `find_record` returns a code or a position inside them; if they decode, that of the record."""
    raw = bytearray(payload(records, 0))
    if raw:
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    array, _ = guarded(bytes(raw))
    wanted = data.draw(st.integers(0, 9))
    found = batch_kernels.find_record(array, 0, len(array), len(records), wanted)
    assert found in (-1, batch_kernels.BAD_LENGTH) or 0 <= found < len(raw)
    if plain_verdict(bytes(raw), len(records), 0, 0) is not None and found >= 0:
        record, _ = decode_record(bytes(raw), found, base_offset=0, base_timestamp=0)
        assert record.offset == wanted


# Columns to text.


def decoded(records: list[Record]) -> tuple[bytes, list[np.ndarray]]:
    data = payload(records, 0)
    array, _ = guarded(data)
    cols = columns(len(records))
    assert batch_kernels.decode_records(array, 0, len(data), len(records), 7, 0, *cols, 0) == len(
        data
    )
    return data, cols


@given(RECORDS)
def test_values_are_written_as_lines(records: list[Record]) -> None:
    """Each value is written with a newline, a null as an empty line, and the end of each line is returned."""
    data, cols = decoded(records)
    lines = [(record.value or b"") + b"\n" for record in records]
    out, whole = room(sum(map(len, lines)))
    ends = np.zeros(len(records), np.int64)
    array = np.frombuffer(data, np.uint8)
    assert batch_kernels.write_values(array, cols[4], cols[5], out, ends) == len(out)
    assert out.tobytes() == b"".join(lines)
    assert ends.tolist() == np.cumsum([len(line) for line in lines]).tolist()
    assert untouched(whole)


@given(RECORDS, st.lists(st.sampled_from(TimestampType), min_size=1), st.binary(max_size=30))
@examples(3)
def test_envelopes_are_written_as_the_plain_ones(
    records: list[Record], kinds: list[TimestampType], prefix: bytes
) -> None:
    """The sizes, bytes and ends of all envelopes equal those of `envelope.encode`."""
    data, cols = decoded(records)
    types = [kinds[i % len(kinds)] for i in range(len(records))]
    lines = [
        envelope.encode(Record(r.value, r.key, r.headers, r.timestamp, 7 + i, types[i]), prefix)
        for i, r in enumerate(records)
    ]
    sizes = np.zeros(len(records), np.int64)
    array = np.frombuffer(data, np.uint8)
    fields = (array, cols[0], cols[1], np.array(types, np.int8), *cols[2:])
    total = batch_kernels.envelope_sizes(*fields, sizes)
    assert sizes.tolist() == [len(line) - len(prefix) for line in lines]
    assert total == sum(sizes)
    out, whole = room(sum(map(len, lines)))
    ends = np.zeros(len(records), np.int64)
    head = np.frombuffer(prefix, np.uint8)
    assert batch_kernels.write_envelopes(head, *fields, out, ends) == len(out)
    assert out.tobytes() == b"".join(lines)
    assert ends.tolist() == np.cumsum([len(line) for line in lines]).tolist()
    assert untouched(whole)


# Batches.


def plain_scan(
    data: bytes, first_offset: int, gaps: bool, most: int
) -> tuple[list[list[int]], int]:
    """Do the work of `scan_batches` with parsed headers; return the rows and the position after the last batch."""
    rows: list[list[int]] = []
    position, expected = 0, first_offset
    while len(rows) < most and position + 61 <= len(data):
        header = parse_header(data, position)
        if not 61 <= header.size_bytes <= len(data) - position or header.magic != 2:
            break
        if header.base_offset < expected or (header.base_offset > expected and not gaps):
            break
        if header.last_offset_delta < 0:
            break
        row = [0] * BATCH_COLUMNS
        row[POSITION] = position
        row[SIZE] = header.size_bytes
        row[CRC] = header.crc
        row[ATTRIBUTES] = header.attributes & 0xFFFF
        row[NEXT_OFFSET] = header.next_offset
        row[MAX_TIMESTAMP] = header.max_timestamp
        row[LEADER_EPOCH] = header.partition_leader_epoch
        row[PRODUCER_ID] = header.producer_id
        row[SPAN_START] = position + 61
        row[SPAN_END] = position + header.size_bytes
        row[SPAN_COUNT] = header.record_count
        row[SPAN_BASE_OFFSET] = header.base_offset
        row[SPAN_BASE_TIMESTAMP] = header.base_timestamp
        rows.append(row)
        expected, position = header.next_offset, position + header.size_bytes
    if rows and has_holes(rows[-1]):
        # The bytes after the last batch must confirm its offsets.
        shown = position == len(data) or (
            position + 61 <= len(data) and parse_header(data, position).base_offset >= expected
        )
        if not shown:
            return rows[:-1], rows[-1][POSITION]
    return rows, position


def has_holes(row: list[int]) -> bool:
    """Whether the batch of this row has another number of records than of offsets."""
    offsets = row[NEXT_OFFSET] - row[SPAN_BASE_OFFSET]
    return row[SPAN_COUNT] != offsets


def batches(records: list[Record], base: int, limit: int, step: int = 0) -> bytes:
    """Return the records in batches of at most `limit` bytes, from offset `base` on, with gaps of `step` offsets."""
    data = b""
    for new in build_records(records, BatchFormat(limit_bytes=limit), 0).batches:
        new.data[0:8] = base.to_bytes(8, "big")
        data += bytes(new.data)
        base += new.record_count + step
    return data


@given(RECORDS, st.integers(75, 400), st.sampled_from([0, 0, 3]), st.booleans(), st.data())
@examples(3)
def test_batches_are_scanned_as_the_plain_loop_does(
    records: list[Record], limit: int, step: int, gaps: bool, data: st.DataObject
) -> None:
    """The kernel gives a row for each batch and stops where the plain loop does, whichever header byte is changed."""
    raw = bytearray(batches(records, 40, limit, step))
    if raw and data.draw(st.booleans()):
        at = data.draw(st.integers(0, len(raw) - 1) | st.integers(0, min(len(raw) - 1, 60)))
        # Base offsets near the end of int64 overflow: see test_offsets_that_overflow_end_the_scan.
        raw[at] ^= data.draw(st.integers(1, 255)) if at else 0x80
    raw = raw[: data.draw(st.just(len(raw)) | st.integers(0, len(raw)))]
    first = data.draw(st.sampled_from([40, 39, 41]))
    most = data.draw(st.sampled_from([len(raw) // 61 + 1, 1]))
    expected, end = plain_scan(bytes(raw), first, gaps, most)
    rows = np.full((most, BATCH_COLUMNS), -77, np.int64)
    array, _ = guarded(bytes(raw))
    assert batch_kernels.scan_batches(array, first, gaps, rows) == (len(expected), end)
    assert rows[: len(expected)].tolist() == expected
    # One more row may have been filled: that of a last batch whose offsets the next bytes contradict.
    assert (rows[len(expected) + 1 :] == -77).all()


@pytest.mark.parametrize(
    ("next_base", "kept", "walked"),
    [(45, None, 2), (45, 61, 1), (45, 60, 0), (45, 0, 1), (44, None, 0), (44, 61, 0)],
)
def test_a_batch_with_missing_records_is_kept_if_the_next_one_begins_after_it(
    next_base: int, kept: int | None, walked: int
) -> None:
    """A batch of one record and five offsets, 40 to 44, is kept at the end of the data and before offset 45."""
    sparse = bytearray(batches([Record(b"v", timestamp=5)], 40, 1000))
    sparse[26] = 4
    behind = batches([Record(b"v", timestamp=5)], next_base, 1000)
    data = bytes(sparse) + behind[:kept]
    expected = plain_scan(data, 40, True, 2)
    rows = np.zeros((2, BATCH_COLUMNS), np.int64)
    found = batch_kernels.scan_batches(np.frombuffer(data, np.uint8), 40, True, rows)
    assert found == (len(expected[0]), expected[1])
    assert found[0] == walked


def test_offsets_that_overflow_end_the_scan() -> None:
    """A base offset at the end of int64 does not wrap around to a next offset that some batch could have."""
    good = batches([Record(b"v", timestamp=5)], 2**63 - 1, 1000)
    behind = batches([Record(b"v", timestamp=5)], 7, 1000)
    rows = np.zeros((4, BATCH_COLUMNS), np.int64)
    count, _ = batch_kernels.scan_batches(np.frombuffer(good + behind, np.uint8), 0, True, rows)
    assert count <= 1
    assert (rows[:count, NEXT_OFFSET] > 0).all()


@pytest.mark.parametrize("position", [8, 0, 23])
def test_negative_header_fields_end_the_scan(position: int) -> None:
    """A negative length, base offset or last offset delta is not misread as a valid one, and ends the scan."""
    bad = bytearray(batches([Record(b"v", timestamp=5)], 0, 1000))
    bad[position] = 0xFF
    rows = np.zeros((4, BATCH_COLUMNS), np.int64)
    assert batch_kernels.scan_batches(np.frombuffer(bytes(bad), np.uint8), 0, True, rows) == (0, 0)


@given(st.lists(RECORDS.filter(len), max_size=4), st.integers(0, 5))
def test_spans_are_decoded_one_after_the_other(groups: list[list[Record]], bad: int) -> None:
    """Several batches fill the columns in order; for the first bad one its number and its error code are returned."""
    data = b""
    spans = []
    for number, group in enumerate(groups):
        raw = payload(group, number) + (b"!" if number == bad else b"")
        spans.append((len(data), len(data) + len(raw), len(group), 100 * number, number))
        data += raw
    array, _ = guarded(data)
    cols = columns(sum(map(len, groups)))
    table = np.array(spans, np.int64).reshape(-1, 5)
    number, stopped = batch_kernels.decode_spans(array, table, *cols)
    if bad < len(groups):
        assert (number, stopped) == (bad, spans[bad][1] - 1)
        return
    assert (number, stopped) == (len(groups), 0)
    expected = [
        Record(r.value, r.key, r.headers, r.timestamp, 100 * n + i)
        for n, group in enumerate(groups)
        for i, r in enumerate(group)
    ]
    found = [row_record(data, cols, row) for row in range(len(expected))]
    assert all(map(same, found, expected))


def test_rows_have_the_position_size_and_crc_of_their_batch() -> None:
    """The position, size and CRC in a row are those of the batch in the data."""
    data = batches([Record(b"%d" % n, timestamp=n) for n in range(9)], 5, 100)
    rows = np.zeros((9, BATCH_COLUMNS), np.int64)
    count, end = batch_kernels.scan_batches(np.frombuffer(data, np.uint8), 5, False, rows)
    assert count > 1
    assert end == len(data)
    for row in rows[:count].tolist():
        batch = Batch.parse(data, row[POSITION])
        assert len(batch.data) == row[SIZE]
        assert crc32c(batch.data[21:]) == row[CRC]


# Lengths around those at which a record's length needs a second and a third byte.
_values = st.one_of(
    st.none(),
    st.binary(max_size=40),
    st.sampled_from([50, 60, 64, 8180, 8192]).map(lambda size: b"v" * size),
)


@given(st.lists(st.lists(_values, max_size=6), max_size=4), st.sampled_from([1, 60, 8000, 2**20]))
def test_render_lines_equals_decoding_and_joining(
    batches: list[list[bytes | None]], step: int
) -> None:
    """`render_lines` writes the values of several batches in one pass, each with a newline."""
    data = bytearray()
    spans = []
    for number, values in enumerate(batches):
        start = len(data)
        for delta, value in enumerate(values):
            # Batches with an even number have no keys; in the others every second record has one.
            key = b"k" if number % 2 and delta % 2 else None
            record = Record(value, key=key, headers=[("h", b"v")] * (delta % 3))
            data += encode_record(record, offset_delta=delta * step, timestamp_delta=-delta * step)
        spans.append((start, len(data), len(values), 0, 0))
    expected = b"".join((value or b"") + b"\n" for values in batches for value in values)
    array = np.frombuffer(bytes(data), np.uint8)
    rows = np.array(spans, np.int64).reshape(-1, 5)
    out = np.zeros(len(expected) + 1, np.uint8)
    assert batch_kernels.render_lines(array, rows, out) == len(expected)
    assert out[: len(expected)].tobytes() == expected
    if expected:
        assert batch_kernels.render_lines(array, rows, out[: len(expected) - 1].copy()) < 0


@given(
    st.binary(max_size=70),
    st.sampled_from([0, 1, 63, 64, 8191, 8192, 2**21]),
    st.integers(0, 12),
    st.integers(0, 255),
)
def test_plain_value_agrees_with_any_value(value: bytes, delta: int, at: int, byte: int) -> None:
    """`_plain_value` accepts no record for which `_any_value` would return an error or another position."""
    record = Record(value, headers=[("h", b"v")] * (at % 2))
    data = bytearray(encode_record(record, offset_delta=delta, timestamp_delta=delta))
    data[at % len(data)] = byte
    data += bytes(16)
    array = np.frombuffer(bytes(data), np.uint8)
    found = batch_kernels._plain_value(array, 0)
    if found[1] >= 0 and found[2] <= len(array):
        assert found == batch_kernels._any_value(array, 0, len(array))


@given(st.binary(max_size=60), st.integers(0, 5))
def test_render_lines_of_hostile_bytes_stays_inside_its_buffer(data: bytes, count: int) -> None:
    """`render_lines` writes nothing outside its output buffer, whatever the bytes are."""
    out = np.full(40, 7, np.uint8)
    rows = np.array([(0, len(data), count, 0, 0)], np.int64)
    done = batch_kernels.render_lines(np.frombuffer(data, np.uint8), rows, out[:32])
    assert done <= 32
    assert (out[32:] == 7).all()


@given(st.binary(max_size=80), st.integers(0, 6))
def test_skip_records_equals_the_plain_loop(data: bytes, count: int) -> None:
    """Skipping records by their lengths ends at the same position as the plain loop, or both refuse the bytes."""
    found = batch_kernels.skip_records(np.frombuffer(data, np.uint8), 0, len(data), count)
    try:
        assert found == skip_records(data, count)
    except Corrupt:
        assert found < 0


_sized = st.none() | st.binary(max_size=70)


def _headers_end(record: bytes, position: int) -> bool:
    """Whether the headers at `position` are well-formed and end with the record."""
    try:
        return decode_headers(record, position)[1] == len(record)
    except Corrupt:
        return False


@given(
    st.lists(st.tuples(_sized, _sized, st.integers(0, 3)), min_size=1, max_size=6),
    st.integers(0, 6),
    st.lists(st.tuples(st.integers(0, 2**16), st.integers(0, 255)), max_size=2),
)
def test_find_fields_equals_the_plain_decoder(
    records: list[tuple[bytes | None, bytes | None, int]],
    skipped: int,
    flips: list[tuple[int, int]],
) -> None:
    """`find_fields` finds the fields that the plain decoder finds, and refuses what it refuses before the headers."""
    data = bytearray()
    for delta, (value, key, headers) in enumerate(records):
        record = Record(value, key=key, headers=[("h", b"v")] * headers)
        data += encode_record(record, offset_delta=delta, timestamp_delta=-delta << 33)
    for at, byte in flips:
        data[at % len(data)] = byte
    fields = np.empty(batch_kernels.FIELDS, np.int64)
    found = batch_kernels.find_fields(
        np.frombuffer(bytes(data), np.uint8), 0, len(data), skipped, fields
    )
    try:
        position = skip_records(bytes(data), skipped)
        record, end = decode_record(bytes(data), position, base_offset=0, base_timestamp=0)
    except Corrupt:
        # Headers are left to the caller.
        assert found < 0 or not _headers_end(bytes(data[:found]), int(fields[6]))
        return
    timestamp, offset, key_at, key_size, value_at, value_size, headers_at, last = fields.tolist()
    assert (found, last) == (end, end)
    assert (timestamp, offset) == (record.timestamp, record.offset)
    assert (None if key_size < 0 else bytes(data[key_at : key_at + key_size])) == record.key
    assert (
        None if value_size < 0 else bytes(data[value_at : value_at + value_size])
    ) == record.value
    assert decode_headers(bytes(data[:end]), headers_at) == (record.headers, end)


# CRCs.


@given(
    st.lists(st.binary(max_size=60) | st.integers(60, 3000).map(bytes), max_size=6),
    st.integers(0, 5),
    st.integers(0, 3100),
)
def test_crcs_are_checked(bodies: list[bytes], wrong: int, most_bytes: int) -> None:
    """The first small batch whose CRC is not that of `crc32c` is found, and larger ones are left out."""
    data, rows = b"", np.zeros((len(bodies), BATCH_COLUMNS), np.int64)
    for number, body in enumerate(bodies):
        rows[number, POSITION], rows[number, SIZE] = len(data), 21 + len(body)
        rows[number, CRC] = crc32c(body) ^ (number >= wrong)
        data += bytes(21) + body
    array, _ = guarded(data)
    small = [n for n, body in enumerate(bodies) if n >= wrong and 21 + len(body) <= most_bytes]
    expected = small[0] if small else len(bodies)
    assert batch_kernels.check_crcs(array, rows, most_bytes) == expected
