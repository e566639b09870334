"""Compiled loops that scan, decode and encode batches and records, at the speed of memory and without the GIL.

Each loop is one pass over bytes and numpy columns. The tests check that plain Python code gives the same results
(`tests/format/test_batch_kernels.py`). No loop allocates memory: the caller allocates every array. The array sizes
follow from the number of bytes in `data`, and never from a length field in these bytes, which may be wrong.

Importing this module takes a quarter of a second, so import it only to process many records: see
`logfs.format.batches.columns.worthwhile`.

Sizes and positions are int64, in bytes. `data` is always a C-contiguous uint8 array.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from logfs.format.base.batch_rows import (
    ATTRIBUTES,
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
from logfs.format.kernels.json_kernels import (
    CREATE_TIME,
    ENVELOPE_BYTES,
    ENVELOPE_END,
    HEADERS_FIELD,
    KEY_FIELD,
    LOG_APPEND_TIME,
    NO_TIMESTAMP_TYPE,
    TIMESTAMP_FIELD,
    TIMESTAMP_TYPE_FIELD,
    VALUE_FIELD,
    copy_plain,
    digits,
    put_bytes,
    put_integer,
    put_string,
    string_size,
)
from logfs.format.kernels.kernel import copy_bytes, kernel

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from logfs.format.kernels.kernel import Bytes, Int8s, Int32s, Int64s, Words


# Words of eight equal bytes: of newlines (0x0A), of 0x7F (all bits but the highest), and of 0x01.
_NEWLINES = np.uint64(0x0A0A0A0A0A0A0A0A)
_LOW_BITS = np.uint64(0x7F7F7F7F7F7F7F7F)
_ONES = np.uint64(0x0101010101010101)

# Error codes that loops return instead of a position if the bytes violate the record format (kafka-storage 2.2).
BAD_VARINT = -1
BAD_LENGTH = -2
BAD_KEY = -3
BAD_VALUE = -4
BAD_HEADERS = -5
# How many numbers `find_fields` writes for a record.
FIELDS = 8


# The kernels below read and write varints.


@kernel
def _varint_size(value: int) -> int:
    """Return the size in bytes of the zigzag varint of a non-negative value below 2^31."""
    if value < 64:
        return 1
    if value < 8192:
        return 2
    if value < 1048576:
        return 3
    if value < 134217728:
        return 4
    return 5


@kernel
def varlong_size(value: int) -> int:
    """Return the size in bytes of the zigzag varint of any int64."""
    zigzag = np.uint64((value << 1) ^ (value >> 63))
    size = 1
    while zigzag >= np.uint64(128):
        zigzag >>= np.uint64(7)
        size += 1
    return size


@kernel
def put_varint(out: Bytes, position: int, value: int) -> int:
    """Write `value`, any int64, to `out` at `position` as a zigzag varint. Return the position after the varint.

    For example, 300 becomes 600, the bytes D8 04; -1 becomes 1, the byte 01.
    """
    zigzag = np.uint64((value << 1) ^ (value >> 63))
    while zigzag >= np.uint64(128):
        out[np.uint64(position)] = np.uint8((zigzag & np.uint64(127)) | np.uint64(128))
        zigzag >>= np.uint64(7)
        position += 1
    out[np.uint64(position)] = np.uint8(zigzag)
    return position + 1


@kernel
def get_varint(data: Bytes, position: int, end: int, most_bytes: int) -> tuple[int, int]:
    """Return (the value of the zigzag varint at `position`, the position after the varint).

    `most_bytes` is 5 for an int32 and 10 for an int64. Returns (0, BAD_VARINT) if the varint reaches beyond `end`,
    is longer than `most_bytes`, or has a value that does not fit the integer type.
    """
    result = np.uint64(0)
    shift = np.uint64(0)
    for _ in range(most_bytes):
        if position >= end:
            return 0, BAD_VARINT
        byte = np.uint64(data[np.uint64(position)])
        position += 1
        result |= (byte & np.uint64(127)) << shift
        if byte < np.uint64(128):
            if most_bytes == 5 and result > np.uint64(0xFFFFFFFF):
                return 0, BAD_VARINT
            if shift == np.uint64(63) and byte > np.uint64(1):
                return 0, BAD_VARINT
            half = np.int64(result >> np.uint64(1))
            return int(half ^ -np.int64(result & np.uint64(1))), position
        shift += np.uint64(7)
    return 0, BAD_VARINT


# The kernels below encode, decode and find records.


@kernel
def find_newlines(words: Words, data: Bytes, positions: Int64s) -> int:
    """Write the positions of all newlines in `data` to `positions`, and return their number.

    `positions` must have room for all. `words` is a view of `data` as native uint64, eight bytes to a word. The last
    0 to 7 bytes of `data`, which fill no word, are not in `words`. The loop relies on a little-endian processor;
    numba supports no other.
    """
    count = 0
    for index in range(len(words)):
        other = words[np.uint64(index)] ^ _NEWLINES
        # The highest bit of each byte of `found` tells whether that byte of the word is a newline.
        found = ~(((other & _LOW_BITS) + _LOW_BITS) | other | _LOW_BITS)
        while found:
            below = (found & (~found + np.uint64(1))) - np.uint64(1)
            # The index (0 to 7) of the first newline in the word, plus 1.
            number = ((below & _ONES) * _ONES) >> np.uint64(56)
            positions[np.uint64(count)] = 8 * index + np.int64(number) - 1
            count += 1
            found &= found - np.uint64(1)
    for at in range(8 * len(words), len(data)):
        if data[at] == 10:
            positions[count] = at
            count += 1
    return count


@kernel
def encode_lines(
    data: Bytes, ends: Int64s, first: int, start: int, limit: int, out: Bytes, out_start: int
) -> tuple[int, int, int]:
    """Encode the lines from line `first` on as the records of one batch. The value of each record is its line.

    The records have no key, no headers, the timestamp delta 0, and offset deltas from 0 up. Line i is
    data[ends[i - 1] + 1 : ends[i]], except that line `first` begins at `start`. Writes the records to `out` from
    `out_start` on, and stops before a record that would end after the position `limit` of `out`.

    Returns (the number of records written, the position in `out` after the last record, the total size in bytes of
    the values as JSON).
    """
    position = out_start
    json_bytes = 0
    count = 0
    for index in range(first, len(ends)):
        length = ends[index] - start
        body = 4 + _varint_size(count) + _varint_size(length) + length
        if position + _varint_size(body) + body > limit:
            break
        position = put_varint(out, position, body)
        out[np.uint64(position)] = 0
        out[np.uint64(position + 1)] = 0
        position = put_varint(out, position + 2, count)
        out[np.uint64(position)] = 1
        position = put_varint(out, position + 1, length)
        source = data[start : start + length]
        target = out[position : position + length]
        is_plain = copy_plain(source, target, length)
        json_bytes += length + 2 if is_plain else string_size(data, start, length)
        position += length
        out[np.uint64(position)] = 0
        position += 1
        count += 1
        start = ends[index] + 1
    return count, position, json_bytes


@kernel
def decode_records(
    data: Bytes,
    start: int,
    end: int,
    count: int,
    base_offset: int,
    base_timestamp: int,
    offsets: Int64s,
    timestamps: Int64s,
    key_starts: Int64s,
    key_lengths: Int32s,
    value_starts: Int64s,
    value_lengths: Int32s,
    header_starts: Int64s,
    header_ends: Int64s,
    header_counts: Int32s,
    row: int,
) -> int:
    """Decode the first `count` records of data[start:end] into rows [row, row + count) of the column arrays.

    The column arrays are those from `offsets` to `header_counts`. A null key or value gets the length -1. Returns the
    position after the last record, or a negative BAD_ code (kafka-storage 2.2, read checks).
    """
    position = start
    for index in range(row, row + count):
        body, position = get_varint(data, position, end, 5)
        if position < 0:
            return BAD_VARINT
        record_end = position + body
        if body < 6 or record_end > end:
            return BAD_LENGTH
        delta, position = get_varint(data, position + 1, record_end, 10)
        if position < 0:
            return BAD_VARINT
        timestamps[index] = base_timestamp + delta
        delta, position = get_varint(data, position, record_end, 5)
        if position < 0:
            return BAD_VARINT
        offsets[index] = base_offset + delta
        length, position = get_varint(data, position, record_end, 5)
        if position < 0:
            return BAD_VARINT
        if length < -1 or position + max(length, 0) > record_end:
            return BAD_KEY
        key_starts[index] = position
        key_lengths[index] = length
        position += max(length, 0)
        length, position = get_varint(data, position, record_end, 5)
        if position < 0:
            return BAD_VARINT
        if length < -1 or position + max(length, 0) > record_end:
            return BAD_VALUE
        value_starts[index] = position
        value_lengths[index] = length
        position += max(length, 0)
        headers, position = get_varint(data, position, record_end, 5)
        if position < 0:
            return BAD_VARINT
        if headers < 0 or headers > record_end - position:
            return BAD_HEADERS
        header_counts[index] = headers
        header_starts[index] = position
        for _ in range(headers):
            length, position = get_varint(data, position, record_end, 5)
            if position < 0 or length < 0 or position + length > record_end:
                return BAD_HEADERS
            length, position = get_varint(data, position + length, record_end, 5)
            if position < 0 or length < -1 or position + max(length, 0) > record_end:
                return BAD_HEADERS
            position += max(length, 0)
        header_ends[index] = position
        if position != record_end:
            return BAD_LENGTH
    return position


@kernel
def find_record(data: Bytes, start: int, end: int, count: int, offset_delta: int) -> int:
    """Return the position of the record with `offset_delta` among the `count` records of data[start:end].

    Returns -1 if no record has this offset delta, and BAD_LENGTH for malformed bytes.
    """
    position = start
    for _ in range(count):
        body, after = get_varint(data, position, end, 5)
        if after < 0 or body < 6 or after + body > end:
            return BAD_LENGTH
        _, at = get_varint(data, after + 1, end, 10)
        if at < 0:
            return BAD_LENGTH
        delta, at = get_varint(data, at, end, 5)
        if at < 0:
            return BAD_LENGTH
        if delta == offset_delta:
            return position
        if delta > offset_delta:
            return -1
        position = after + body
    return -1 if position == end else BAD_LENGTH


@kernel
def skip_records(data: Bytes, start: int, end: int, count: int) -> int:
    """Return the position after the first `count` records of data[start:end].

    Reads only the length field of each record. Returns BAD_LENGTH if a length is malformed or reaches beyond `end`.
    """
    position = start
    for _ in range(count):
        body, position = get_varint(data, position, end, 5)
        if position < 0 or body < 6 or position + body > end:
            return BAD_LENGTH
        position += body
    return position


@kernel
def find_fields(data: Bytes, start: int, end: int, skipped: int, fields: Int64s) -> int:
    """Locate the fields of one record, which follows the first `skipped` records of data[start:end].

    `fields`, int64[FIELDS], becomes: timestamp delta, offset delta, start and length of the key, start and length of
    the value (a null has the length -1), start of the headers, which begin with their count, and end of the record.
    Returns the end of the record, or a BAD_ code. The headers are not read.
    """
    position = skip_records(data, start, end, skipped)
    if position < 0:
        return position
    body, position = get_varint(data, position, end, 5)
    record_end = position + body
    if position < 0 or body < 6 or record_end > end:
        return BAD_LENGTH
    fields[0], position = get_varint(data, position + 1, record_end, 10)
    if position < 0:
        return BAD_VARINT
    fields[1], position = get_varint(data, position, record_end, 5)
    if position < 0:
        return BAD_VARINT
    for number in range(2, 6, 2):
        length, position = get_varint(data, position, record_end, 5)
        if position < 0:
            return BAD_VARINT
        if length < -1 or position + max(length, 0) > record_end:
            return BAD_VALUE
        fields[number], fields[number + 1] = position, length
        position += max(length, 0)
    fields[6], fields[7] = position, record_end
    return record_end


# The kernels below write records as text: as lines, or as JSON envelopes.


@kernel
def write_values(data: Bytes, starts: Int64s, lengths: Int32s, out: Bytes, out_ends: Int64s) -> int:
    """Write each value data[starts[i] : starts[i] + lengths[i]] and a newline to `out`.

    out_ends[i] becomes the position after the newline. A null value (length -1) becomes an empty line. Returns the
    number of bytes written.
    """
    position = 0
    for index in range(len(starts)):
        length = max(lengths[index], 0)
        copy_bytes(out, position, data, starts[index], length)
        position += length
        out[position] = 10
        position += 1
        out_ends[index] = position
    return position


@kernel
def short_varint(first: int, second: int) -> tuple[int, int]:
    """Return the value and the size of the zigzag varint that begins with these two bytes.

    The size is 0 if the varint is longer than two bytes.
    """
    zigzag = np.int64(first & 127)
    size = 1
    if first >= 128:
        zigzag |= np.int64(second) << 7
        size = 2 if second < 128 else 0
    return int((zigzag >> 1) ^ -(zigzag & 1)), size


@kernel
def _plain_value(data: Bytes, position: int) -> tuple[int, int, int]:
    """Return (start of the value, length of the value, end of the record), in half the time of `_any_value`.

    The length is -1 if the record has a key, a null value or a varint longer than two bytes, or if its value does not
    end before the end of the record. The caller must then call `_any_value`. Reads only the 16 bytes from `position`
    on, which must lie in `data`. The caller must check that the end of the record also lies in `data`.

    The speed comes from `short_varint`: a call of it costs almost nothing, because it has no array argument and only
    one `return`.
    """
    body, size = short_varint(data[np.uint64(position)], data[np.uint64(position + 1)])
    at = position + size
    end = at + body
    _, time_size = short_varint(data[np.uint64(at + 1)], data[np.uint64(at + 2)])
    at += 1 + time_size
    _, offset_size = short_varint(data[np.uint64(at)], data[np.uint64(at + 1)])
    at += offset_size
    has_key = data[np.uint64(at)] != 1
    length, length_size = short_varint(data[np.uint64(at + 1)], data[np.uint64(at + 2)])
    at += 1 + length_size
    fits = (size > 0) & (time_size > 0) & (offset_size > 0) & (length_size > 0)
    fits &= (length >= 0) & (at + length < end) & (not has_key)
    return at, length if fits else -1, end


@kernel
def _any_value(data: Bytes, position: int, end: int) -> tuple[int, int, int]:
    """Return the start of a record's value, its length (0 for null), and the end of the record.

    The start is BAD_LENGTH if the bytes are malformed.
    """
    body, position = get_varint(data, position, end, 5)
    record_end = position + body
    if position < 0 or body < 6 or record_end > end:
        return BAD_LENGTH, 0, 0
    _, position = get_varint(data, position + 1, record_end, 10)
    if position < 0:
        return BAD_LENGTH, 0, 0
    _, position = get_varint(data, position, record_end, 5)
    if position < 0:
        return BAD_LENGTH, 0, 0
    length, position = get_varint(data, position, record_end, 5)
    if position < 0 or length < -1 or position + max(length, 0) > record_end:
        return BAD_LENGTH, 0, 0
    length, position = get_varint(data, position + max(length, 0), record_end, 5)
    if position < 0 or length < -1 or position + max(length, 0) > record_end:
        return BAD_LENGTH, 0, 0
    return position, max(length, 0), record_end


@kernel
def render_lines(data: Bytes, spans: Int64s, out: Bytes) -> int:
    """Write the value of each record of several batches to `out`, with a newline after each value.

    A row of `spans` begins with (start, end, record count) of a batch's uncompressed records in `data`. Returns the
    number of bytes written, or BAD_LENGTH if a record is malformed before the end of its value, if the records do not
    end where their span ends, or if the lines do not fit in `out`.
    """
    written = 0
    room = len(out)
    for number in range(len(spans)):
        position = spans[number, 0]
        end = spans[number, 1]
        for _ in range(spans[number, 2]):
            start, length, record_end = position, -1, end
            if position + 16 <= end:
                start, length, record_end = _plain_value(data, position)
            if length < 0 or record_end > end:
                start, length, record_end = _any_value(data, position, end)
                if start < 0:
                    return BAD_LENGTH
            if written + length >= room:
                return BAD_LENGTH
            copy_bytes(out, written, data, start, length)
            written += length
            out[np.uint64(written)] = 10
            written += 1
            position = record_end
        if position != end:
            return BAD_LENGTH
    return written


@kernel
def _label(timestamp_type: int) -> Bytes:
    if timestamp_type == 0:
        return CREATE_TIME
    return LOG_APPEND_TIME if timestamp_type > 0 else NO_TIMESTAMP_TYPE


@kernel
def envelope_sizes(
    data: Bytes,
    offsets: Int64s,
    timestamps: Int64s,
    timestamp_types: Int8s,
    key_starts: Int64s,
    key_lengths: Int32s,
    value_starts: Int64s,
    value_lengths: Int32s,
    header_starts: Int64s,
    header_ends: Int64s,
    header_counts: Int32s,
    sizes: Int64s,
) -> int:
    """Write the size in bytes of each record's line of JSON (its envelope) to `sizes`. Return the sum of the sizes.

    The sizes exclude the prefix (topic and partition). The other arrays are the columns of the records: a length of
    -1 stands for null, and starts and ends are positions in `data`.
    """
    total = 0
    for index in range(len(offsets)):
        size = ENVELOPE_BYTES + len(_label(timestamp_types[index]))
        size += digits(offsets[index]) + digits(timestamps[index])
        size += string_size(data, key_starts[index], key_lengths[index])
        size += string_size(data, value_starts[index], value_lengths[index])
        position = header_starts[index]
        for number in range(header_counts[index]):
            length, position = get_varint(data, position, header_ends[index], 5)
            size += 3 + string_size(data, position, length)
            length, position = get_varint(data, position + length, header_ends[index], 5)
            size += string_size(data, position, length)
            position += max(length, 0)
            if number:
                size += 1
        sizes[index] = size
        total += size
    return total


@kernel
def write_envelopes(
    prefix: Bytes,
    data: Bytes,
    offsets: Int64s,
    timestamps: Int64s,
    timestamp_types: Int8s,
    key_starts: Int64s,
    key_lengths: Int32s,
    value_starts: Int64s,
    value_lengths: Int32s,
    header_starts: Int64s,
    header_ends: Int64s,
    header_counts: Int32s,
    out: Bytes,
    out_ends: Int64s,
) -> int:
    """Write each record's line of JSON (its envelope) to `out`, and the position after each line to `out_ends`.

    `prefix` is the beginning of every line, up to the digits of the offset. The arrays from `data` to `header_counts`
    are the columns of the records: a length of -1 stands for null, and starts and ends are positions in `data`. `out`
    must have room for the number of bytes that `envelope_sizes` returns, plus a prefix for each record. Returns the
    number of bytes written.
    """
    position = 0
    for index in range(len(offsets)):
        position = put_bytes(out, position, prefix)
        position = put_integer(out, position, offsets[index])
        position = put_bytes(out, position, TIMESTAMP_FIELD)
        position = put_integer(out, position, timestamps[index])
        position = put_bytes(out, position, TIMESTAMP_TYPE_FIELD)
        position = put_bytes(out, position, _label(timestamp_types[index]))
        position = put_bytes(out, position, KEY_FIELD)
        position = put_string(out, position, data, key_starts[index], key_lengths[index])
        position = put_bytes(out, position, VALUE_FIELD)
        position = put_string(out, position, data, value_starts[index], value_lengths[index])
        position = put_bytes(out, position, HEADERS_FIELD)
        at = header_starts[index]
        for number in range(header_counts[index]):
            if number:
                out[position] = 44
                position += 1
            out[position] = 91
            length, at = get_varint(data, at, header_ends[index], 5)
            position = put_string(out, position + 1, data, at, length)
            out[position] = 44
            length, at = get_varint(data, at + length, header_ends[index], 5)
            position = put_string(out, position + 1, data, at, length)
            at += max(length, 0)
            out[position] = 93
            position += 1
        position = put_bytes(out, position, ENVELOPE_END)
        out_ends[index] = position
    return position


# The kernels below process whole batches.


@kernel
def _big_endian(data: Bytes, position: int, size: int) -> int:
    value = np.uint64(0)
    for index in range(position, position + size):
        value = (value << np.uint64(8)) | np.uint64(data[np.uint64(index)])
    return int(np.int64(value))


@kernel
def scan_batches(data: Bytes, first_offset: int, gaps: bool, rows: Int64s) -> tuple[int, int]:
    """Find the whole batches at the start of `data` by their length fields, and write a row of `rows` for each.

    `rows` is int64[n, BATCH_COLUMNS]. CRCs are not checked. Returns (the number of batches, the position after the
    last batch). The scan stops when `rows` is full, and before a batch in these cases:

    - The batch is incomplete or shorter than a header, its magic is not 2, its last offset delta is negative, or its
      next offset exceeds an int64.
    - Its base offset is not the expected one: `first_offset` for the first batch, then the offset after the batch
      before. With `gaps` the base offset may also be higher.
    - Its number of records differs from its number of offsets, and bytes follow it that do not confirm its offsets:
      they are fewer than a header, or begin with a base offset below its next offset. For example, the batch has 3
      records and the offsets 5 to 9, and the next batch begins at 8. The caller must then check which offsets belong
      to the batch.
    """
    count = 0
    position = 0
    expected = first_offset
    end = len(data)
    while count < len(rows) and position + 61 <= end:
        size = _big_endian(data, position + 8, 4) + 12
        base_offset = _big_endian(data, position, 8)
        last_delta = _big_endian(data, position + 23, 4)
        if size < 61 or size > end - position or data[position + 16] != 2:
            break
        if base_offset < expected or (base_offset > expected and not gaps):
            break
        if last_delta > 0x7FFFFFFF or base_offset + last_delta + 1 < base_offset:
            break
        row = rows[count]
        row[POSITION] = position
        row[SIZE] = size
        row[CRC] = _big_endian(data, position + 17, 4)
        row[ATTRIBUTES] = _big_endian(data, position + 21, 2)
        row[NEXT_OFFSET] = base_offset + last_delta + 1
        row[MAX_TIMESTAMP] = _big_endian(data, position + 35, 8)
        row[LEADER_EPOCH] = np.int32(_big_endian(data, position + 12, 4))
        row[PRODUCER_ID] = _big_endian(data, position + 43, 8)
        row[SPAN_START] = position + 61
        row[SPAN_END] = position + size
        row[SPAN_COUNT] = np.int32(_big_endian(data, position + 57, 4))
        row[SPAN_BASE_OFFSET] = base_offset
        row[SPAN_BASE_TIMESTAMP] = _big_endian(data, position + 27, 8)
        expected = base_offset + last_delta + 1
        position += size
        count += 1
    if count > 0:
        last = rows[count - 1]
        has_holes = last[SPAN_COUNT] != last[NEXT_OFFSET] - last[SPAN_BASE_OFFSET]
        follows = position == end or (
            position + 61 <= end and _big_endian(data, position, 8) >= expected
        )
        if has_holes and not follows:
            return count - 1, last[POSITION]
    return count, position


def _crc_tables() -> NDArray[np.uint64]:
    """Return uint64[8, 256]: [n, b] is the CRC-32C, without bit inversions, of a byte b and n zero bytes after it."""
    tables = np.zeros((8, 256), np.uint64)
    tables[0] = np.arange(256)
    for _ in range(8):
        odd = tables[0] & np.uint64(1)
        tables[0] = (tables[0] >> np.uint64(1)) ^ (odd * np.uint64(0x82F63B78))
    for number in range(1, 8):
        before = tables[number - 1]
        tables[number] = (before >> np.uint64(8)) ^ tables[0][before & np.uint64(255)]
    return tables


_CRC = _crc_tables()
# The number of bytes at the start of a batch that its CRC does not cover.
_CRC_START = 21


@kernel
def check_crcs(data: Bytes, rows: Int64s, most_bytes: int) -> int:
    """Return the number of the first row whose batch has a wrong CRC-32C, or len(rows) if there is none.

    `rows` has the rows that `scan_batches` wrote for `data`. Batches larger than `most_bytes` are not checked here,
    and are left to the caller: for these the library `crc32c`, which uses a special instruction of the processor, is
    faster in spite of its cost for each call.
    """
    for number in range(len(rows)):
        size = rows[number, SIZE]
        if size > most_bytes:
            continue
        at = np.uint64(rows[number, POSITION] + _CRC_START)
        end = np.uint64(rows[number, POSITION] + size)
        crc = np.uint64(0xFFFFFFFF)
        while at + np.uint64(8) <= end:
            word = crc
            for shift in range(8):
                word ^= np.uint64(data[at + np.uint64(shift)]) << np.uint64(8 * shift)
            crc = np.uint64(0)
            for shift in range(8):
                byte = (word >> np.uint64(8 * shift)) & np.uint64(255)
                crc ^= _CRC[7 - shift, byte]
            at += np.uint64(8)
        while at < end:
            byte = (crc ^ np.uint64(data[at])) & np.uint64(255)
            crc = (crc >> np.uint64(8)) ^ _CRC[0, byte]
            at += np.uint64(1)
        if crc ^ np.uint64(0xFFFFFFFF) != np.uint64(rows[number, CRC]):
            return number
    return len(rows)


@kernel
def decode_spans(
    data: Bytes,
    spans: Int64s,
    offsets: Int64s,
    timestamps: Int64s,
    key_starts: Int64s,
    key_lengths: Int32s,
    value_starts: Int64s,
    value_lengths: Int32s,
    header_starts: Int64s,
    header_ends: Int64s,
    header_counts: Int32s,
) -> tuple[int, int]:
    """Decode the records of several batches into columns: the arrays from `offsets` on, one row for each record.

    A row of `spans` is (start, end, record count, base offset, base timestamp) of a batch's uncompressed records in
    `data`. Returns (len(spans), 0) if all spans are valid. Otherwise the first item is the number of the first
    invalid span. The second item is then a BAD_ code or, if the records do not end where the span ends, the position
    after the last record.
    """
    first = 0
    for number in range(len(spans)):
        span = spans[number]
        stopped = decode_records(
            data,
            span[0],
            span[1],
            span[2],
            span[3],
            span[4],
            offsets,
            timestamps,
            key_starts,
            key_lengths,
            value_starts,
            value_lengths,
            header_starts,
            header_ends,
            header_counts,
            first,
        )
        if stopped != span[1]:
            return number, stopped
        first += span[2]
    return len(spans), 0
