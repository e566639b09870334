"""The compiled loop that prints records by a format string. `format/text/format_string` calls it, and is its twin."""

from __future__ import annotations

from typing import TYPE_CHECKING

from logfs.format.kernels.batch_kernels import get_varint, kernel, put_integer

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
