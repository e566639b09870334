"""Compiled loops that measure records as text, and write them as lines of JSON (envelopes) or by a format string.

An envelope begins with its prefix, which is the same for all records of a partition: the text up to the digits of the
offset. It also has a label, which is the name of the record's timestamp type, such as `CreateTime`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from logfs.format.kernels.batch_kernels import BAD_LENGTH, get_varint, short_varint
from logfs.format.kernels.json_kernels import (
    ENVELOPE_BYTES,
    ENVELOPE_END,
    HEADERS_FIELD,
    KEY_FIELD,
    NO_ROOM,
    NULL_WORD,
    QUOTE,
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
from logfs.format.kernels.kernel import copy_bytes, inlined_kernel, kernel

if TYPE_CHECKING:
    from logfs.format.kernels.kernel import Bytes, Int32s, Int64s

# The kinds of the pieces of a format string. EXTRA is text that the caller has prepared for each record.
LITERAL = 0
VALUE = 1
KEY = 2
HEADERS = 3
OFFSET = 4
TIMESTAMP = 5
VALUE_SIZE = 6
KEY_SIZE = 7
EXTRA = 8

# By how many bytes the text of a record header can exceed its encoded form: "=", "NULL" and ",".
HEADER_ROOM = 6
# The maximum length of an int64 in decimal.
INTEGER_ROOM = 20


@kernel
def _put_part(out: Bytes, position: int, data: Bytes, start: int, length: int) -> int:
    length = max(length, 0)
    copy_bytes(out, position, data, start, length)
    return position + length


@kernel
def _put_headers(out: Bytes, position: int, data: Bytes, at: int, end: int, count: int) -> int:
    for number in range(count):
        if number:
            out[position] = 44
            position += 1
        length, at = get_varint(data, at, end, 5)
        position = _put_part(out, position, data, at, length)
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
            position = _put_part(out, position, data, at, length)
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
    extra: Bytes,
    extra_ranges: Int64s,
    out: Bytes,
    ends: Int64s,
) -> int:
    """Write the text of each record to `out` by a format string, and return the number of bytes written.

    `pieces`, int64[n, 3], has the parts of the format string in order: literal texts, and fields of the record. A row
    has a kind, such as VALUE, and two numbers. For LITERAL, the numbers are the start and the end of the text in
    `literals`. For EXTRA, the first number is an index e into `extra_ranges`, int64[extras, records, 2]:
    extra_ranges[e, i] is the start and the end in `extra` of the text for record i. The other kinds use no number.
    `ends`, int64[records], gets the position in `out` after each record. The arrays from `data` to `header_counts`
    are the columns of the records: a length of -1 stands for null, and starts and ends are positions in `data`.

    The caller must make `out` large enough: a null key or value takes no bytes, and a header takes at most
    HEADER_ROOM bytes more than its encoded form.
    """
    position = 0
    for index in range(len(offsets)):
        for number in range(len(pieces)):
            kind = pieces[number, 0]
            if kind == LITERAL:
                start = pieces[number, 1]
                position = _put_part(out, position, literals, start, pieces[number, 2] - start)
            elif kind == VALUE:
                position = _put_part(out, position, data, value_starts[index], value_lengths[index])
            elif kind == KEY:
                position = _put_part(out, position, data, key_starts[index], key_lengths[index])
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
            elif kind == KEY_SIZE:
                position = put_integer(out, position, key_lengths[index])
            else:
                start = extra_ranges[pieces[number, 1], index, 0]
                length = extra_ranges[pieces[number, 1], index, 1] - start
                position = _put_part(out, position, extra, start, length)
        ends[index] = position
    return position


@kernel
def gather(data: Bytes, starts: Int64s, ends: Int64s, order: Int64s, out: Bytes) -> int:
    """Write data[starts[n]:ends[n]] to `out` for each n in `order`. Return the number of bytes written."""
    position = 0
    for number in order:
        start = starts[number]
        position = _put_part(out, position, data, start, ends[number] - start)
    return position


@kernel
def _headers_size(data: Bytes, position: int, end: int) -> tuple[int, int]:
    """Return (size in bytes of a record's headers as JSON, position in `data` after the last header).

    `position` is where the headers begin, with their count. The size excludes the outer brackets of the JSON array.
    The returned position is -1 if the headers are malformed.
    """
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
) -> tuple[int, int, int, int]:
    """Return (size of the value, size of the envelope, offset, end position) of a record. Sizes are in bytes.

    The size of the envelope counts the digits of its offset and timestamp, and the JSON of its key, value and
    headers. It leaves out the prefix, the label, and the constant text that `ENVELOPE_BYTES` counts. The end position
    is -1 if the record is malformed.
    """
    body, position = get_varint(data, position, end, 5)
    record_end = position + body
    if position < 0 or body < 6 or record_end > end:
        return 0, 0, 0, -1
    delta, position = get_varint(data, position + 1, record_end, 10)
    if position < 0:
        return 0, 0, 0, -1
    size = digits(base_timestamp + delta)
    delta, position = get_varint(data, position, record_end, 5)
    if position < 0:
        return 0, 0, 0, -1
    offset = base_offset + delta
    size += digits(offset)
    value = 0
    for _ in range(2):
        value, position = get_varint(data, position, record_end, 5)
        if position < 0 or value < -1 or position + max(value, 0) > record_end:
            return 0, 0, 0, -1
        size += string_size(data, position, value)
        position += max(value, 0)
    headers, position = _headers_size(data, position, record_end)
    end = record_end if position == record_end else -1
    return max(value, 0), size + headers, offset, end


@kernel
def _line_length(data: Bytes, position: int) -> tuple[int, int, int, int]:
    """Return (start of the value, its length, timestamp delta, offset delta) of a short record with only a value.

    The length is -1 if the record has a key, a null value, a varint longer than two bytes, or not exactly one byte
    after the value. The caller must check that this byte, the number of headers, is 0. Reads only the 16 bytes from
    `position` on.
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
def _short_record(data: Bytes, position: int, end: int) -> tuple[int, int, int, int, int, int]:
    """Read a record that has no headers, no null value, and no varint longer than two bytes.

    Returns (start of the key, its length or -1 for a null key, start of the value, its length, timestamp delta,
    offset delta). The value's length is -1 if the record is not of this kind or is malformed. The caller must check
    that `position` + 16 is at most `end`. No byte at or after `end` is read.
    """
    body, size = short_varint(data[np.uint64(position)], data[np.uint64(position + 1)])
    at = position + size
    record_end = at + body
    time_delta, time_size = short_varint(data[np.uint64(at + 1)], data[np.uint64(at + 2)])
    at += 1 + time_size
    offset_delta, offset_size = short_varint(data[np.uint64(at)], data[np.uint64(at + 1)])
    at += offset_size
    key_length, key_size = short_varint(data[np.uint64(at)], data[np.uint64(at + 1)])
    key = at + key_size
    # The limit `end - 2` prevents a read beyond `end` if the key length is malformed.
    at = min(key + max(key_length, 0), end - 2)
    length, length_size = short_varint(data[np.uint64(at)], data[np.uint64(at + 1)])
    value = at + length_size
    fits = (size > 0) & (time_size > 0) & (offset_size > 0) & (key_size > 0) & (length_size > 0)
    fits &= (key_length >= -1) & (at == key + max(key_length, 0)) & (length >= 0)
    fits &= (value + length + 1 == record_end) & (record_end <= end)
    fits = fits and data[np.uint64(record_end - 1)] == 0
    return key, key_length, value, length if fits else -1, time_delta, offset_delta


@kernel
def measure_spans(
    data: Bytes, spans: Int64s, label_bytes: int, sizes: Int64s, edges: Int64s
) -> bool:
    """Measure the text of the records of several batches, in one pass and without decoding them into columns.

    A row of `spans` is (start, end, record count, base offset, base timestamp) of a batch's uncompressed records in
    `data`. `label_bytes` is the length of the label. For each batch, writes a row (number of records, bytes of the
    values as lines, bytes of the envelopes without their prefixes) to `sizes`, int64[batches, 3], and a row (offset
    of the first record, offset of the last) to `edges`, int64[batches, 2].

    Returns True if all records are valid. Returns False if a record is malformed, if the records do not end where
    their span ends, or if the offsets within a batch do not rise.
    """
    constant = ENVELOPE_BYTES + label_bytes
    for number in range(len(spans)):
        position, end, count = spans[number, 0], spans[number, 1], spans[number, 2]
        base_offset, base_timestamp = spans[number, 3], spans[number, 4]
        lines = count
        envelopes = count * constant
        # Counting the digits of a number is slow. Count again only if a delta differs from the previous record's.
        time_before, time_digits = 0, digits(base_timestamp)
        offset_before, offset_digits = 0, digits(base_offset)
        offset = before = base_offset
        for index in range(count):
            length = -1
            if position + 16 <= end:
                start, length, time_delta, offset_delta = _line_length(data, position)
                if length >= 0 and (start + length >= end or data[np.uint64(start + length)] != 0):
                    length = -1
                key_bytes = 4
                if length < 0:
                    key, key_length, start, length, time_delta, offset_delta = _short_record(
                        data, position, end
                    )
                    if length >= 0:
                        key_bytes = string_size(data, key, key_length)
            if length < 0:
                value, size, offset, position = _record_size(
                    data, position, end, base_offset, base_timestamp
                )
                if position < 0:
                    return False
                lines += value
                envelopes += size
            else:
                if time_delta != time_before:
                    time_before, time_digits = time_delta, digits(base_timestamp + time_delta)
                if offset_delta != offset_before:
                    offset_before, offset_digits = offset_delta, digits(base_offset + offset_delta)
                offset = base_offset + offset_delta
                lines += length
                envelopes += key_bytes + time_digits + offset_digits
                envelopes += string_size(data, start, length)
                position = start + length + 1
            if index == 0:
                edges[number, 0] = offset
            elif offset <= before:
                return False
            before = offset
        if position != end:
            return False
        sizes[number, 0] = count
        sizes[number, 1] = lines
        sizes[number, 2] = envelopes
        edges[number, 1] = offset
    return True


# The functions below write envelopes directly from encoded records, without columns.

# The end of the envelope of a record without headers: the closing quote of the value, and an empty array.
LINE_END = np.frombuffer(b'"' + HEADERS_FIELD.tobytes() + ENVELOPE_END.tobytes(), np.uint8)

# An upper bound of the bytes of an envelope besides its prefix, timestamp type label, key, value and headers.
ENVELOPE_ROOM = 128


@kernel
def _add_to_digits(out: Bytes, first: int, end: int, amount: int) -> bool:
    """Add `amount`, 0 or more, to the decimal number in out[first:end]. Return False if the sum needs more digits."""
    at = end - 1
    rest = np.uint64(amount)
    while rest > 0 and at >= first:
        rest += np.uint64(out[np.uint64(at)]) - np.uint64(48)
        tens = rest // np.uint64(10)
        out[np.uint64(at)] = np.uint8(np.uint64(48) + rest - tens * np.uint64(10))
        rest = tens
        at -= 1
    return rest == 0


@kernel
def _put_head(
    out: Bytes, start: int, prefix: Bytes, offset: int, time: int, timestamp_type: Bytes
) -> tuple[int, int, int, int]:
    """Write the head of an envelope, which is its text up to and including `"key":`, to `out` at `start`.

    `time` is the record's timestamp, and `timestamp_type` the label. Returns four distances in bytes from `start`: to
    the end of the offset, to the start and the end of the timestamp, and to the end of the head.
    """
    position = put_integer(out, put_bytes(out, start, prefix), offset)
    offset_end = position - start
    position = put_bytes(out, position, TIMESTAMP_FIELD)
    time_start = position - start
    position = put_integer(out, position, time)
    time_end = position - start
    position = put_bytes(out, position, TIMESTAMP_TYPE_FIELD)
    position = put_bytes(out, position, timestamp_type)
    return offset_end, time_start, time_end, put_bytes(out, position, KEY_FIELD) - start


@inlined_kernel
def _repeat_head(
    out: Bytes,
    start: int,
    to: int,
    size: int,
    offset_start: int,
    offset_end: int,
    offset_step: int,
    time_start: int,
    time_end: int,
    time_step: int,
) -> bool:
    """Copy the head of an envelope within `out` from `start` to `to`, and raise the copy's offset and timestamp.

    `size` is the length of the head. `offset_step` is added to the offset, whose digits are at `offset_start` to
    `offset_end`, counted in bytes from the start of the head. `time_step` is added to the timestamp, whose digits are
    at `time_start` to `time_end`. Returns False if a sum needs more digits.
    """
    copy_bytes(out, to, out, start, size)
    fits = _add_to_digits(out, to + offset_start, to + offset_end, offset_step)
    return fits and _add_to_digits(out, to + time_start, to + time_end, time_step)


@kernel
def _put_header_texts(out: Bytes, position: int, data: Bytes, at: int, end: int) -> int:
    """Write the encoded headers data[at:end], which begin with their count, to `out` as JSON.

    Returns the position in `out` after the JSON. Returns BAD_LENGTH if the headers are malformed, or if `out` has too
    little room. `out` has enough room if the JSON and ENVELOPE_ROOM more bytes fit.
    """
    count, at = get_varint(data, at, end, 5)
    if at < 0 or count < 0 or count > end - at:
        return BAD_LENGTH
    for number in range(count):
        length, at = get_varint(data, at, end, 5)
        if at < 0 or length < 0 or at + length > end or position + ENVELOPE_ROOM > len(out):
            return BAD_LENGTH
        if number:
            out[position] = 44
            position += 1
        out[position] = 91
        position = put_string(out, position + 1, data, at, length)
        length, at = get_varint(data, at + length, end, 5)
        if at < 0 or length < -1 or at + max(length, 0) > end:
            return BAD_LENGTH
        if position < 0 or position + ENVELOPE_ROOM > len(out):
            return BAD_LENGTH
        out[position] = 44
        position = put_string(out, position + 1, data, at, length)
        if position < 0 or position + ENVELOPE_ROOM > len(out):
            return BAD_LENGTH
        out[position] = 93
        position += 1
        at += max(length, 0)
    return position if at == end else BAD_LENGTH


@kernel
def _put_fields(out: Bytes, position: int, data: Bytes, at: int, end: int) -> int:
    """Write the rest of a record's envelope, after `"key":`, to `out` from `position` on.

    data[at:end] is the part of the record that begins with its key's length. Returns the position in `out` after the
    envelope. Returns BAD_LENGTH if the record is malformed, if `at` is negative (an error code of `_record_head`), or
    if `out` has too little room. `out` has enough room if the rest of the envelope and ENVELOPE_ROOM more bytes fit.
    """
    if at < 0:
        return BAD_LENGTH
    length, at = get_varint(data, at, end, 5)
    if at < 0 or length < -1 or at + max(length, 0) > end:
        return BAD_LENGTH
    position = put_string(out, position, data, at, length)
    if position < 0 or position + ENVELOPE_ROOM > len(out):
        return BAD_LENGTH
    position = put_bytes(out, position, VALUE_FIELD)
    length, at = get_varint(data, at + max(length, 0), end, 5)
    if at < 0 or length < -1 or at + max(length, 0) > end:
        return BAD_LENGTH
    position = put_string(out, position, data, at, length)
    if position < 0 or position + ENVELOPE_ROOM > len(out):
        return BAD_LENGTH
    at += max(length, 0)
    position = put_bytes(out, position, HEADERS_FIELD)
    if at + 1 != end or data[at] != 0:
        position = _put_header_texts(out, position, data, at, end)
        if position < 0:
            return BAD_LENGTH
    return put_bytes(out, position, ENVELOPE_END)


@inlined_kernel
def _put_key_and_value(
    out: Bytes, position: int, data: Bytes, key: int, key_length: int, start: int, length: int
) -> int:
    """Write the rest of an envelope, after `"key":`, for a record that has no headers and a value that is not null.

    The text is written to `out` from `position` on. The key has `key_length` bytes of `data` from `key` on (a length
    of -1 stands for null), the value `length` bytes from `start` on. Returns the position in `out` after the
    envelope, or NO_ROOM if `out` has too little room. `out` has enough room if the rest of the envelope and
    ENVELOPE_ROOM more bytes fit.
    """
    if key_length < 0:
        position = put_bytes(out, position, NULL_WORD)
    else:
        position = put_string(out, position, data, key, key_length)
        if position < 0 or position + ENVELOPE_ROOM > len(out):
            return NO_ROOM
    position = put_bytes(out, position, VALUE_FIELD)
    if position + length + ENVELOPE_ROOM // 2 > len(out):
        return NO_ROOM
    source = data[start : start + length]
    if copy_plain(source, out[position + 1 : position + 1 + length], length):
        out[np.uint64(position)] = QUOTE
        return put_bytes(out, position + length + 1, LINE_END)
    position = put_string(out, position, data, start, length)
    if position < 0 or position + ENVELOPE_ROOM > len(out):
        return NO_ROOM
    position = put_bytes(out, position, HEADERS_FIELD)
    return put_bytes(out, position, ENVELOPE_END)


@kernel
def _record_head(data: Bytes, position: int, end: int) -> tuple[int, int, int, int]:
    """Return (position of the key's length, end of the record, timestamp delta, offset delta) of a record.

    The position of the key's length is BAD_LENGTH if the bytes before it are malformed.
    """
    body, position = get_varint(data, position, end, 5)
    record_end = position + body
    if position < 0 or body < 6 or record_end > end:
        return BAD_LENGTH, 0, 0, 0
    time_delta, position = get_varint(data, position + 1, record_end, 10)
    if position < 0:
        return BAD_LENGTH, 0, 0, 0
    offset_delta, position = get_varint(data, position, record_end, 5)
    if position < 0:
        return BAD_LENGTH, 0, 0, 0
    return position, record_end, time_delta, offset_delta


@kernel
def render_envelopes(
    data: Bytes,
    spans: Int64s,
    has_one_time: bool,
    prefix: Bytes,
    timestamp_type: Bytes,
    out: Bytes,
    written: int,
) -> int:
    """Write the envelope line of each record of several batches to `out` from `written` on.

    A row of `spans` is (start, end, record count, base offset, base timestamp) of a batch's uncompressed records in
    `data`. With `has_one_time`, the last number of a row is the timestamp of all records of the batch. `prefix` is
    the beginning of every line, up to the digits of the offset. `timestamp_type` is the label of the records'
    timestamp type, such as `CreateTime`.

    Returns the position after the last line. Returns BAD_LENGTH if a record is malformed, if the records do not end
    where their span ends, or if `out` has no room for the lines and ENVELOPE_ROOM more bytes.
    """
    # Consecutive envelopes begin alike: copy the head of the previous one, and raise its offset and timestamp.
    head_start, head_size, offset_end, time_start, time_end = 0, 0, 0, 0, 0
    offset_before, time_before = -1, -1
    room = len(out) - len(prefix) - len(timestamp_type) - ENVELOPE_ROOM
    for number in range(len(spans)):
        position, end = spans[number, 0], spans[number, 1]
        for _ in range(spans[number, 2]):
            start, length, key, key_length = position, -1, 0, -1
            if position + 16 <= end:
                start, length, delta, offset_delta = _line_length(data, position)
                if length >= 0 and (start + length >= end or data[np.uint64(start + length)] != 0):
                    length = -1
                if length < 0:
                    key, key_length, start, length, delta, offset_delta = _short_record(
                        data, position, end
                    )
            record_end = start + length + 1
            if length < 0:
                start, record_end, delta, offset_delta = _record_head(data, position, end)
            position = record_end
            time = spans[number, 4] + (0 if has_one_time else delta)
            offset = spans[number, 3] + offset_delta
            if written > room:
                return BAD_LENGTH
            is_alike = 0 <= offset_before <= offset and 0 <= time_before <= time
            is_alike = is_alike and _repeat_head(
                out,
                head_start,
                written,
                head_size,
                len(prefix),
                offset_end,
                offset - offset_before,
                time_start,
                time_end,
                time - time_before,
            )
            if not is_alike:
                offset_end, time_start, time_end, head_size = _put_head(
                    out, written, prefix, offset, time, timestamp_type
                )
            head_start, offset_before, time_before = written, offset, time
            written += head_size
            if length < 0:
                written = _put_fields(out, written, data, start, record_end)
            else:
                written = _put_key_and_value(out, written, data, key, key_length, start, length)
            if written < 0:
                return BAD_LENGTH
        if position != end:
            return BAD_LENGTH
    return written
