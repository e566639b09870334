"""Zigzag varints, one at a time (kafka-storage 2.2). Bulk work has its own in `kernels`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from logfs.errors import Corrupt

if TYPE_CHECKING:
    from collections.abc import Sequence

VARINT_BYTES = 5
VARLONG_BYTES = 10


def encode(value: int) -> bytes:
    """A varint, or a varlong where the value needs one, of an int64."""
    zigzag = (value << 1) ^ (value >> 63)
    return encode_unsigned(zigzag)


def encode_unsigned(value: int) -> bytes:
    """An unsigned varint, as Kafka's generated messages have them: no zigzag."""
    if value < 128:
        return _ONE_BYTE[value]
    out = bytearray()
    while value >= 128:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def decode(data: Sequence[int], position: int, most_bytes: int = VARINT_BYTES) -> tuple[int, int]:
    """The value at a position and the position behind it; `Corrupt` if there is none of at most that length."""
    if position < len(data) and data[position] < 128:
        # One byte, as most are.
        result = data[position]
        return (result >> 1) ^ -(result & 1), position + 1
    result = shift = 0
    for at in range(position, min(position + most_bytes, len(data))):
        byte = data[at]
        result |= (byte & 127) << shift
        if byte < 128:
            if result >> (32 if most_bytes == VARINT_BYTES else 64):
                break
            return (result >> 1) ^ -(result & 1), at + 1
        shift += 7
    raise Corrupt(f"no varint of at most {most_bytes} bytes at byte {position} of the records")


def wrap(value: int) -> int:
    """An int64 again of what a sum or difference of two made: two timestamps may be further apart, as in Java."""
    return value if -_WRAP <= value < _WRAP else (value + _WRAP) % (2 * _WRAP) - _WRAP


_WRAP = 1 << 63
_ONE_BYTE = [bytes([value]) for value in range(128)]
