"""Compiled loops over the text of records: its size in the text views, and its form by a format string."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from logfs.format.kernels.batch_kernels import (
    ENVELOPE_BYTES,
    digits,
    get_varint,
    kernel,
    put_integer,
    short_varint,
    string_size,
)

if TYPE_CHECKING:
    from logfs.format.kernels.batch_kernels import Bytes, Int32s, Int64s

# The kinds of pieces that a format string consists of.
LITERAL = 0
VALUE = 1
KEY = 2
HEADERS = 3
OFFSET = 4
TIMESTAMP = 5
VALUE_SIZE = 6
KEY_SIZE = 7

# The most bytes that the text of a header has beyond its encoded form: "=", "NULL" and ",".
HEADER_ROOM = 6
# The most bytes of an int64 in decimal.
INTEGER_ROOM = 20


@kernel
def _put_bytes(out: Bytes, position: int, data: Bytes, start: int, length: int) -> int:
    for at in range(length):
        out[position + at] = data[start + at]
    return position + max(length, 0)


@kernel
def _put_headers(out: Bytes, position: int, data: Bytes, at: int, end: int, count: int) -> int:
    for number in range(count):
        if number:
            out[position] = 44
            position += 1
        length, at = get_varint(data, at, end, 5)
        position = _put_bytes(out, position, data, at, length)
        out[position] = 61
        position += 1
        length, at = get_varint(data, at + length, end, 5)
        if length < 0:
            out[position] = 78
            out[position + 1] = 85
            out[position + 2] = 76
            out[position + 3] = 76
            position += 4
        else:
            position = _put_bytes(out, position, data, at, length)
            at += length
    return position


@kernel
def write_formatted(
    pieces: Int64s,
    literals: Bytes,
    data: Bytes,
    offsets: Int64s,
    timestamps: Int64s,
    key_starts: Int64s,
    key_lengths: Int32s,
    value_starts: Int64s,
    value_lengths: Int32s,
    header_starts: Int64s,
    header_ends: Int64s,
    header_counts: Int32s,
    out: Bytes,
) -> int:
    """Write the text of each record to `out`, and return the number of bytes written.

    `pieces`, int64[n, 3], has a kind and, for a literal, its start and end in `literals`. The other arrays are those
    of `Columns`. `out` has room for the pieces: a null takes no bytes, and a header at most HEADER_ROOM more than its
    encoded form.
    """
    position = 0
    for index in range(len(offsets)):
        for number in range(len(pieces)):
            kind = pieces[number, 0]
            if kind == LITERAL:
                start = pieces[number, 1]
                position = _put_bytes(out, position, literals, start, pieces[number, 2] - start)
            elif kind == VALUE:
                position = _put_bytes(
                    out, position, data, value_starts[index], value_lengths[index]
                )
            elif kind == KEY:
                position = _put_bytes(out, position, data, key_starts[index], key_lengths[index])
            elif kind == HEADERS:
                position = _put_headers(
                    out,
                    position,
                    data,
                    header_starts[index],
                    header_ends[index],
                    header_counts[index],
                )
            elif kind == OFFSET:
                position = put_integer(out, position, offsets[index])
            elif kind == TIMESTAMP:
                position = put_integer(out, position, timestamps[index])
            elif kind == VALUE_SIZE:
                position = put_integer(out, position, value_lengths[index])
            else:
                position = put_integer(out, position, key_lengths[index])
    return position


@kernel
def _headers_size(data: Bytes, position: int, end: int) -> tuple[int, int]:
    """Return the size of the headers at `position` in an envelope, and the position after them; -1 if malformed."""
    size = 0
    count, position = get_varint(data, position, end, 5)
    if position < 0 or count < 0 or count > end - position:
        return 0, -1
    for index in range(count):
        length, position = get_varint(data, position, end, 5)
        if position < 0 or length < 0 or position + length > end:
            return 0, -1
        size += 3 + string_size(data, position, length) + (1 if index else 0)
        length, position = get_varint(data, position + length, end, 5)
        if position < 0 or length < -1 or position + max(length, 0) > end:
            return 0, -1
        size += string_size(data, position, length)
        position += max(length, 0)
    return size, position


@kernel
def _record_size(
    data: Bytes, position: int, end: int, base_offset: int, base_timestamp: int
) -> tuple[int, int, int]:
    """Return the bytes of a record's value, those of its envelope without the constant ones, and the record's end.

    The end is -1 if the record is malformed.
    """
    body, position = get_varint(data, position, end, 5)
    record_end = position + body
    if position < 0 or body < 6 or record_end > end:
        return 0, 0, -1
    delta, position = get_varint(data, position + 1, record_end, 10)
    if position < 0:
        return 0, 0, -1
    size = digits(base_timestamp + delta)
    delta, position = get_varint(data, position, record_end, 5)
    if position < 0:
        return 0, 0, -1
    size += digits(base_offset + delta)
    value = 0
    for _ in range(2):
        value, position = get_varint(data, position, record_end, 5)
        if position < 0 or value < -1 or position + max(value, 0) > record_end:
            return 0, 0, -1
        size += string_size(data, position, value)
        position += max(value, 0)
    headers, position = _headers_size(data, position, record_end)
    return max(value, 0), size + headers, record_end if position == record_end else -1


@kernel
def _line_length(data: Bytes, position: int) -> tuple[int, int, int, int]:
    """Return the start and length of the value, and the timestamp and offset delta, of a record made from a line.

    Such a record has no key, no headers, and no varint longer than two bytes. The length is -1 for any other record.
    Reads the 16 bytes from `position` on, and the byte after the value.
    """
    body, size = short_varint(data[np.uint64(position)], data[np.uint64(position + 1)])
    at = position + size
    end = at + body
    time_delta, time_size = short_varint(data[np.uint64(at + 1)], data[np.uint64(at + 2)])
    at += 1 + time_size
    offset_delta, offset_size = short_varint(data[np.uint64(at)], data[np.uint64(at + 1)])
    at += offset_size
    has_key = data[np.uint64(at)] != 1
    length, length_size = short_varint(data[np.uint64(at + 1)], data[np.uint64(at + 2)])
    at += 1 + length_size
    fits = (size > 0) & (time_size > 0) & (offset_size > 0) & (length_size > 0)
    fits &= (length >= 0) & (at + length + 1 == end) & (not has_key)
    return at, length if fits else -1, time_delta, offset_delta


@kernel
def measure_spans(data: Bytes, spans: Int64s, label_bytes: int, sizes: Int64s) -> bool:
    """Measure the text of the records of several batches, in one pass and without columns.

    A row of `spans` is that of `decode_spans`. `label_bytes` is the length of the label of the records' timestamp
    type. Writes a row (records, bytes of lines, bytes of envelopes without prefixes) to `sizes`, int64[batches, 3],
    for each batch. Returns False if a record is malformed; `decode_spans` tells what is wrong.
    """
    # Null, the key of a line, and the quotes of its value.
    constant = ENVELOPE_BYTES + label_bytes
    for number in range(len(spans)):
        position, end, count = spans[number, 0], spans[number, 1], spans[number, 2]
        base_offset, base_timestamp = spans[number, 3], spans[number, 4]
        lines = count
        envelopes = count * constant
        # The deltas of neighbours are alike, and so are the digits of their sums.
        time_before, time_digits = 0, digits(base_timestamp)
        offset_before, offset_digits = 0, digits(base_offset)
        for _ in range(count):
            length = -1
            if position + 16 <= end:
                start, length, time_delta, offset_delta = _line_length(data, position)
                if length >= 0 and (start + length >= end or data[np.uint64(start + length)] != 0):
                    length = -1
            if length < 0:
                value, size, position = _record_size(
                    data, position, end, base_offset, base_timestamp
                )
                if position < 0:
                    return False
                lines += value
                envelopes += size
                continue
            if time_delta != time_before:
                time_before, time_digits = time_delta, digits(base_timestamp + time_delta)
            if offset_delta != offset_before:
                offset_before, offset_digits = offset_delta, digits(base_offset + offset_delta)
            lines += length
            envelopes += 4 + time_digits + offset_digits + string_size(data, start, length)
            position = start + length + 1
        if position != end:
            return False
        sizes[number, 0] = count
        sizes[number, 1] = lines
        sizes[number, 2] = envelopes
    return True
