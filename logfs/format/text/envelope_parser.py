"""Parses many envelope lines at once into columns, with no object for each record (rule 1 of docs/architecture.md).

Only canonical text is parsed, as `rendering` writes it: the fields are in a fixed order, without blanks. For other
text `parse` returns None, and the caller uses `envelope.decode_placed`, which reads any JSON and reports errors. The
loops are compiled like those of `batch_kernels`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from logfs.format.kernels.json_kernels import (
    BASE64_CLOSE,
    BASE64_OPEN,
    ENVELOPE_END,
    HEADERS_FIELD,
    KEY_FIELD,
    NULL_WORD,
    TIMESTAMP_FIELD,
    TIMESTAMP_TYPE_FIELD,
    VALUE_FIELD,
)
from logfs.format.kernels.kernel import kernel

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Bytes = NDArray[np.uint8]
    Int64s = NDArray[np.int64]
    Int32s = NDArray[np.int32]

_QUOTE, _BACKSLASH, _MINUS, _COMMA, _OPEN, _CLOSE = b'"\\-,[]'
_LOWER_A, _LOWER_U, _LOWER_Z, _ZERO, _NINE, _EQUALS = b"auz09="

# The byte that a backslash and a letter stand for in a JSON string, by the letter; 0 for `u` and invalid letters.
_ESCAPED = np.zeros(256, np.uint8)
for _letter, _byte in zip(b'btnfr"\\/', b'\b\t\n\f\r"\\/', strict=True):
    _ESCAPED[_letter] = _byte
# The value of each hex digit and each base64 digit, by its byte. Other bytes have the value _NO_DIGIT.
_NO_DIGIT = 255
_HEX = np.full(256, _NO_DIGIT, np.uint8)
for _number, _letter in enumerate(b"0123456789abcdef"):
    _HEX[_letter] = _number
_BASE64 = np.full(256, _NO_DIGIT, np.uint8)
for _number, _letter in enumerate(
    b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
):
    _BASE64[_letter] = _number
# Any number of this many digits fits an int64.
_MOST_DIGITS = 18
# The position that a loop returns for text that is not canonical.
_BAD = -1


class Envelopes(NamedTuple):
    """Records of one partition as columns.

    `data` has the decoded bytes of all keys, values and headers. All starts are positions in `data`. Timestamps are
    in ms. As in `Columns`, a length of -1 is a null. Record i has the headers with the numbers header_offsets[i] to
    header_offsets[i + 1] - 1.
    """

    data: Bytes
    offsets: Int64s
    timestamps: Int64s
    key_starts: Int64s
    key_lengths: Int32s
    value_starts: Int64s
    value_lengths: Int32s
    header_offsets: Int32s
    header_key_starts: Int64s
    header_key_lengths: Int32s
    header_value_starts: Int64s
    header_value_lengths: Int32s


def parse(lines: bytes, prefix: bytes) -> Envelopes | None:
    """Return the records of envelope lines; None if a line is not canonical or does not begin with `prefix`.

    Canonical means: as logfs itself writes envelopes. `lines` ends with a newline. `prefix` is the beginning of every
    envelope of the partition, as `envelope.prefix` returns it.
    """
    try:
        lines.decode()
    except UnicodeDecodeError:
        return None
    count = lines.count(b"\n")
    # An upper bound of the number of headers: each begins with `[`, which other text may contain, too.
    headers = lines.count(b"[")
    found = Envelopes(
        data=np.empty(len(lines), np.uint8),
        offsets=np.empty(count, np.int64),
        timestamps=np.empty(count, np.int64),
        key_starts=np.empty(count, np.int64),
        key_lengths=np.empty(count, np.int32),
        value_starts=np.empty(count, np.int64),
        value_lengths=np.empty(count, np.int32),
        header_offsets=np.zeros(count + 1, np.int32),
        header_key_starts=np.empty(headers, np.int64),
        header_key_lengths=np.empty(headers, np.int32),
        header_value_starts=np.empty(headers, np.int64),
        header_value_lengths=np.empty(headers, np.int32),
    )
    data = np.frombuffer(lines, np.uint8)
    total = int(_parse(data, np.frombuffer(prefix, np.uint8), *found))
    if total < 0:
        return None
    return found._replace(
        header_key_starts=found.header_key_starts[:total],
        header_key_lengths=found.header_key_lengths[:total],
        header_value_starts=found.header_value_starts[:total],
        header_value_lengths=found.header_value_lengths[:total],
    )


# The compiled loops. Each except `_parse` returns the position after the text that it has read, or _BAD if the text
# is not canonical; if it returns a tuple, the position is the last item.


@kernel
def _literal(data: Bytes, position: int, text: Bytes) -> int:
    if position < 0 or position + len(text) > len(data):
        return _BAD
    for index in range(len(text)):
        if data[position + index] != text[index]:
            return _BAD
    return position + len(text)


@kernel
def _integer(data: Bytes, position: int) -> tuple[int, int]:
    """Read the JSON integer at `position`. Return (the number, the position after it).

    The second item is _BAD if there is no JSON integer, or if it has more than 18 digits.
    """
    if position < 0 or position >= len(data):
        return 0, _BAD
    negative = data[position] == _MINUS
    if negative:
        position += 1
    start = position
    value = np.int64(0)
    while position < len(data) and _ZERO <= data[position] <= _NINE:
        if position - start >= _MOST_DIGITS:
            return 0, _BAD
        value = value * 10 + np.int64(data[position] - _ZERO)
        position += 1
    size = position - start
    if size == 0 or (data[start] == _ZERO and size > 1):
        return 0, _BAD
    return int(-value if negative else value), position


@kernel
def _string(data: Bytes, position: int, out: Bytes, written: int) -> tuple[int, int]:
    """Decode a JSON string, whose first byte after the opening quote is at `position`, to `out` from `written` on.

    Returns (the end of the decoded bytes in `out`, the position after the closing quote or, if the string is not
    canonical, _BAD).
    """
    while position < len(data):
        byte = data[position]
        if byte == _QUOTE:
            return written, position + 1
        if byte < 32:
            return written, _BAD
        if byte == _BACKSLASH:
            if position + 1 >= len(data):
                return written, _BAD
            byte = _ESCAPED[data[position + 1]]
            if byte == 0:
                if data[position + 1] != _LOWER_U or position + 5 >= len(data):
                    return written, _BAD
                # Canonical text has \u00XX only for control characters, but any ASCII character is accepted here.
                high, low = _HEX[data[position + 4]], _HEX[data[position + 5]]
                if data[position + 2] != _ZERO or data[position + 3] != _ZERO:
                    return written, _BAD
                if high > 7 or low == _NO_DIGIT:
                    return written, _BAD
                byte = np.uint8(high * 16 + low)
                position += 4
            position += 1
        out[written] = byte
        written += 1
        position += 1
    return written, _BAD


@kernel
def _base64(data: Bytes, position: int, out: Bytes, written: int) -> tuple[int, int]:
    """Decode the base64 text at `position` to `out` from `written` on.

    Returns (the end of the decoded bytes in `out`, the position after the text or, if it is malformed, _BAD).
    """
    while position + 4 <= len(data) and data[position] != _QUOTE:
        first, second = _BASE64[data[position]], _BASE64[data[position + 1]]
        third, fourth = _BASE64[data[position + 2]], _BASE64[data[position + 3]]
        if first == _NO_DIGIT or second == _NO_DIGIT:
            return written, _BAD
        out[written] = np.uint8((first << 2 | second >> 4) & 255)
        written += 1
        position += 4
        if third == _NO_DIGIT or fourth == _NO_DIGIT:
            # The text has padding, and must end with it.
            if data[position - 1] != _EQUALS:
                return written, _BAD
            if third == _NO_DIGIT:
                return written, position if data[position - 2] == _EQUALS else _BAD
            out[written] = np.uint8((second << 4 | third >> 2) & 255)
            return written + 1, position
        out[written] = np.uint8((second << 4 | third >> 2) & 255)
        out[written + 1] = np.uint8((third << 6 | fourth) & 255)
        written += 2
    return written, position


@kernel
def _field(data: Bytes, position: int, out: Bytes, written: int) -> tuple[int, int, int]:
    """Decode the JSON string, {"base64":"…"} or null at `position` to `out` from `written` on.

    Returns (the number of decoded bytes, or -1 for null; their end in `out`; the position after the field, or _BAD
    if it is not canonical).
    """
    if position < 0 or position >= len(data):
        return -1, written, _BAD
    if data[position] == _QUOTE:
        end, position = _string(data, position + 1, out, written)
        return end - written, end, position
    behind = _literal(data, position, NULL_WORD)
    if behind >= 0:
        return -1, written, behind
    position = _literal(data, position, BASE64_OPEN)
    if position < 0:
        return -1, written, _BAD
    end, position = _base64(data, position, out, written)
    return end - written, end, _literal(data, position, BASE64_CLOSE)


@kernel
def _parse(
    data: Bytes,
    prefix: Bytes,
    out: Bytes,
    offsets: Int64s,
    timestamps: Int64s,
    key_starts: Int64s,
    key_lengths: Int32s,
    value_starts: Int64s,
    value_lengths: Int32s,
    header_offsets: Int32s,
    header_key_starts: Int64s,
    header_key_lengths: Int32s,
    header_value_starts: Int64s,
    header_value_lengths: Int32s,
) -> int:
    """Parse the lines in `data` into the arrays of `Envelopes`, and return the number of headers.

    `out` is the array `Envelopes.data`, and each line must begin with `prefix`. Returns _BAD (-1) if a line is not
    canonical.
    """
    position = written = headers = 0
    for row in range(len(offsets)):
        position = _literal(data, position, prefix)
        offsets[row], position = _integer(data, position)
        position = _literal(data, position, TIMESTAMP_FIELD)
        timestamps[row], position = _integer(data, position)
        position = _literal(data, position, TIMESTAMP_TYPE_FIELD)
        if position < 0 or offsets[row] < 0:
            return _BAD
        while position < len(data) and _LOWER_A <= (data[position] | 32) <= _LOWER_Z:
            position += 1
        position = _literal(data, position, KEY_FIELD)
        key_starts[row] = written
        key_lengths[row], written, position = _field(data, position, out, written)
        position = _literal(data, position, VALUE_FIELD)
        value_starts[row] = written
        value_lengths[row], written, position = _field(data, position, out, written)
        position = _literal(data, position, HEADERS_FIELD)
        more = 0 <= position < len(data) and data[position] == _OPEN
        while more:
            header_key_starts[headers] = written
            length, written, position = _field(data, position + 1, out, written)
            if length < 0 or position < 0 or position >= len(data) or data[position] != _COMMA:
                return _BAD
            header_key_lengths[headers] = length
            header_value_starts[headers] = written
            length, written, position = _field(data, position + 1, out, written)
            header_value_lengths[headers] = length
            headers += 1
            if position < 0 or position + 2 >= len(data) or data[position] != _CLOSE:
                return _BAD
            position += 1
            more = data[position] == _COMMA
            if more:
                position += 1
                if data[position] != _OPEN:
                    return _BAD
        header_offsets[row + 1] = headers
        position = _literal(data, position, ENVELOPE_END)
        if position < 0:
            return _BAD
    return headers if position == len(data) else _BAD
