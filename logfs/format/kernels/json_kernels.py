"""Compiled loops that measure and write the JSON numbers and strings of envelopes (records as lines of JSON).

Sizes and positions are int64, in bytes. `data` is always a C-contiguous uint8 array.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from logfs.format.kernels.kernel import inlined_kernel, kernel

if TYPE_CHECKING:
    from logfs.format.kernels.kernel import Bytes

# What `put_string` returns in place of a position if `out` has no room.
NO_ROOM = -1

# The greatest power of ten that fits a uint64.
_GREATEST_POWER = np.uint64(10**19)

# By how many bytes each byte grows in a JSON string: 1 for a two-byte escape, 5 for \u00XX, 0 without an escape.
_ESCAPE = np.zeros(256, np.uint8)
_ESCAPE[:32] = 5
for _byte in b'\b\t\n\f\r"\\':
    _ESCAPE[_byte] = 1

# QUOTE, BACKSLASH, bytes below SPACE and bytes above LAST_ASCII cannot be copied into a JSON string without a check.
# The constants are uint8: a loop that compares bytes with bytes, and keeps each result as a byte, takes a third of
# the time of a loop with wider integers, because the compiler then works on many bytes at once.
SPACE, QUOTE, BACKSLASH, LAST_ASCII = np.uint8(32), np.uint8(34), np.uint8(92), np.uint8(127)

# The second byte of each two-byte escape: `n`, for example, stands for a newline.
_SHORT = np.zeros(256, np.uint8)
for _byte, _letter in zip(b'\b\t\n\f\r"\\', b'btnfr"\\', strict=True):
    _SHORT[_byte] = _letter

_HEX = np.frombuffer(b"0123456789abcdef", np.uint8)
_BASE64 = np.frombuffer(
    b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/", np.uint8
)
NULL_WORD = np.frombuffer(b"null", np.uint8)
BASE64_OPEN = np.frombuffer(b'{"base64":"', np.uint8)
BASE64_CLOSE = np.frombuffer(b'"}', np.uint8)
TIMESTAMP_FIELD = np.frombuffer(b',"timestamp":', np.uint8)
TIMESTAMP_TYPE_FIELD = np.frombuffer(b',"timestamp_type":"', np.uint8)
KEY_FIELD = np.frombuffer(b'","key":', np.uint8)
VALUE_FIELD = np.frombuffer(b',"value":', np.uint8)
HEADERS_FIELD = np.frombuffer(b',"headers":[', np.uint8)
CREATE_TIME = np.frombuffer(b"CreateTime", np.uint8)
LOG_APPEND_TIME = np.frombuffer(b"LogAppendTime", np.uint8)
NO_TIMESTAMP_TYPE = np.frombuffer(b"NoTimestampType", np.uint8)
ENVELOPE_END = np.frombuffer(b"]}\n", np.uint8)

# The size in bytes of the constant text of an envelope after the offset, including the newline.
ENVELOPE_BYTES = sum(
    map(
        len,
        (
            TIMESTAMP_FIELD,
            TIMESTAMP_TYPE_FIELD,
            KEY_FIELD,
            VALUE_FIELD,
            HEADERS_FIELD,
            ENVELOPE_END,
        ),
    )
)


@kernel
def _utf8_end(data: Bytes, position: int, end: int) -> int:
    """Return the end of the valid UTF-8 character that starts at `position`, or -1 if there is none.

    Surrogates and overlong forms are not valid.
    """
    first = data[np.uint64(position)]
    if first < 0x80:
        return position + 1
    if first < 0xC2 or first > 0xF4:
        return -1
    size = 2 if first < 0xE0 else (3 if first < 0xF0 else 4)
    if position + size > end:
        return -1
    second = data[np.uint64(position + 1)]
    low = 0x80
    high = 0xBF
    if first == 0xE0:
        low = 0xA0
    elif first == 0xED:
        high = 0x9F
    elif first == 0xF0:
        low = 0x90
    elif first == 0xF4:
        high = 0x8F
    if second < low or second > high:
        return -1
    for index in range(position + 2, position + size):
        if data[np.uint64(index)] & 0xC0 != 0x80:
            return -1
    return position + size


@kernel
def _is_utf8(data: Bytes, position: int, end: int) -> bool:
    """Whether data[position:end] is valid UTF-8."""
    while 0 <= position < end:
        if data[np.uint64(position)] < 0x80:
            position += 1
        else:
            position = _utf8_end(data, position, end)
    return position >= 0


@inlined_kernel
def copy_plain(source: Bytes, target: Bytes, length: int) -> bool:
    """Copy `length` bytes from the start of `source` to the start of `target`.

    All bytes are copied in any case. Returns True if they need no escape in a JSON string: all are in 32 to 127, and
    none is `"` or `\\`.
    """
    found = np.uint8(0)
    for index in range(length):
        byte = source[index]
        target[index] = byte
        found = np.uint8(
            found
            | np.uint8(byte < SPACE)
            | np.uint8(byte == QUOTE)
            | np.uint8(byte == BACKSLASH)
            | np.uint8(byte > LAST_ASCII)
        )
    return bool(found == 0)


@kernel
def string_size(data: Bytes, start: int, length: int) -> int:
    """Return the size of data[start : start + length] as JSON: a string, a base64 object, or null if length < 0."""
    if length < 0:
        return 4
    text = data[start : start + length]
    plain = np.uint8(0)
    for index in range(length):
        byte = text[index]
        plain = np.uint8(
            plain
            | np.uint8(byte < SPACE)
            | np.uint8(byte == QUOTE)
            | np.uint8(byte == BACKSLASH)
            | np.uint8(byte > LAST_ASCII)
        )
    if plain == 0:
        return length + 2
    extra = 0
    high = np.uint8(0)
    for index in range(length):
        extra += _ESCAPE[text[index]]
        high |= text[index]
    if high >= 128 and not _is_utf8(data, start, start + length):
        return len(BASE64_OPEN) + (length + 2) // 3 * 4 + len(BASE64_CLOSE)
    return length + 2 + extra


@kernel
def put_bytes(out: Bytes, position: int, text: Bytes) -> int:
    """Write the bytes of `text` to `out` at `position`. Return the position after them."""
    target = out[position : position + len(text)]
    for index in range(len(text)):
        target[index] = text[index]
    return position + len(text)


@kernel
def _put_base64(out: Bytes, position: int, data: Bytes, start: int, length: int) -> int:
    position = put_bytes(out, position, BASE64_OPEN)
    at = np.uint64(position)
    source = np.uint64(start)
    for _ in range(length // 3):
        word = np.int64(data[source]) << 16
        word |= np.int64(data[source + np.uint64(1)]) << 8
        word |= np.int64(data[source + np.uint64(2)])
        out[at] = _BASE64[np.uint64(word >> 18)]
        out[at + np.uint64(1)] = _BASE64[np.uint64((word >> 12) & 63)]
        out[at + np.uint64(2)] = _BASE64[np.uint64((word >> 6) & 63)]
        out[at + np.uint64(3)] = _BASE64[np.uint64(word & 63)]
        at += np.uint64(4)
        source += np.uint64(3)
    position += length // 3 * 4
    rest = length % 3
    if rest > 0:
        word = np.int64(data[source]) << 16
        if rest > 1:
            word |= np.int64(data[source + np.uint64(1)]) << 8
        out[position] = _BASE64[word >> 18]
        out[position + 1] = _BASE64[(word >> 12) & 63]
        out[position + 2] = _BASE64[(word >> 6) & 63] if rest > 1 else 61
        out[position + 3] = 61
        position += 4
    return put_bytes(out, position, BASE64_CLOSE)


@kernel
def _put_escaped(out: Bytes, position: int, data: Bytes, start: int, length: int) -> None:
    """Write data[start : start + length], valid UTF-8, as a JSON string with escapes and quotes."""
    out[np.uint64(position)] = QUOTE
    at = np.uint64(position + 1)
    for index in range(start, start + length):
        byte = data[np.uint64(index)]
        escape = _ESCAPE[byte]
        if escape == 0:
            out[at] = byte
        elif escape == 1:
            out[at] = BACKSLASH
            at += np.uint64(1)
            out[at] = _SHORT[byte]
        else:
            out[at] = BACKSLASH
            out[at + np.uint64(1)] = 117
            out[at + np.uint64(2)] = 48
            out[at + np.uint64(3)] = 48
            out[at + np.uint64(4)] = _HEX[byte >> 4]
            at += np.uint64(5)
            out[at] = _HEX[byte & 15]
        at += np.uint64(1)
    out[at] = QUOTE


@kernel
def _put_special(out: Bytes, position: int, data: Bytes, start: int, length: int) -> int:
    """Write data[start : start + length], for which `copy_plain` has returned False, as JSON.

    UTF-8 becomes a string, other bytes a base64 object. Returns the position after the JSON, or NO_ROOM if it does
    not fit.
    """
    size = string_size(data, start, length)
    if position + size > len(out):
        return NO_ROOM
    if size == length + 2:
        out[np.uint64(position)] = QUOTE
        put_bytes(out, position + 1, data[start : start + length])
        out[np.uint64(position + length + 1)] = QUOTE
    # An escaped string and a base64 object may have the same size, so `size` does not tell which one to write.
    elif _is_utf8(data, start, start + length):
        _put_escaped(out, position, data, start, length)
    else:
        _put_base64(out, position, data, start, length)
    return position + size


@kernel
def put_string(out: Bytes, position: int, data: Bytes, start: int, length: int) -> int:
    """Write data[start : start + length] as JSON; return the position after it, or NO_ROOM if it does not fit.

    The bytes become a string, or a base64 object if they are not UTF-8; a `length` below 0 becomes null.
    """
    if position + (length + 2 if length >= 0 else len(NULL_WORD)) > len(out):
        return NO_ROOM
    if length < 0:
        return put_bytes(out, position, NULL_WORD)
    source = data[start : start + length]
    if not copy_plain(source, out[position + 1 : position + 1 + length], length):
        return _put_special(out, position, data, start, length)
    out[np.uint64(position)] = QUOTE
    out[np.uint64(position + length + 1)] = QUOTE
    return position + length + 2


@kernel
def _magnitude(value: int) -> np.uint64:
    """Return the absolute value of an int64 as uint64: the absolute value of -2^63 does not fit an int64."""
    return np.uint64(-value) if value < 0 else np.uint64(value)


@kernel
def digits(value: int) -> int:
    """Return the number of characters of an int64 in decimal, with its sign."""
    size = 2 if value < 0 else 1
    rest = _magnitude(value)
    # Compare with powers of ten: a comparison takes far less time than a division.
    bound = np.uint64(10)
    while rest >= bound:
        size += 1
        if bound == _GREATEST_POWER:
            break
        bound *= np.uint64(10)
    return size


@kernel
def put_integer(out: Bytes, position: int, value: int) -> int:
    """Write `value` in decimal to `out` at `position`. Return the position after the digits."""
    end = position + digits(value)
    if value < 0:
        out[position] = 45
    rest = _magnitude(value)
    at = end - 1
    while rest >= np.uint64(10):
        out[at] = np.uint8(np.uint64(48) + rest % np.uint64(10))
        rest //= np.uint64(10)
        at -= 1
    out[at] = np.uint8(np.uint64(48) + rest)
    return end
