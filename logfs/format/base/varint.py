"""Varints, with and without zigzag, one at a time (kafka-storage 2.2). `kernels` has compiled loops for many."""

from __future__ import annotations

from typing import TYPE_CHECKING

from logfs.errors import Corrupt

if TYPE_CHECKING:
    from collections.abc import Sequence

VARINT_BYTES = 5
VARLONG_BYTES = 10


def encode(value: int) -> bytes:
    """Return an int64 as a zigzag varint: at most 5 bytes for an int32, at most 10 for any other value."""
    zigzag = (value << 1) ^ (value >> 63)
    return _ONE_BYTE[zigzag] if zigzag < 128 else encode_unsigned(zigzag)


def encode_unsigned(value: int) -> bytes:
    """Return a non-negative number as an unsigned varint, without zigzag, as in Kafka's flexible messages."""
    if value < 128:
        return _ONE_BYTE[value]
    out = bytearray()
    while value >= 128:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def decode_unsigned(data: Sequence[int], position: int) -> tuple[int, int]:
    """Return the value of the unsigned varint at `position`, and the position after the varint.

    Raises `Corrupt` if the varint has more than 5 bytes, or is not complete in `data`.
    """
    result = 0
    for at in range(position, min(position + VARINT_BYTES, len(data))):
        result |= (data[at] & 127) << 7 * (at - position)
        if data[at] < 128:
            return result, at + 1
    raise Corrupt(
        f"the unsigned varint at byte {position} of {len(data)} is incomplete or has more than {VARINT_BYTES} bytes"
    )


def decode(data: Sequence[int], position: int, most_bytes: int = VARINT_BYTES) -> tuple[int, int]:
    """Return the value of the zigzag varint at `position`, and the position after the varint.

    `most_bytes` is VARINT_BYTES for a value of 32 bits, or VARLONG_BYTES for a value of 64 bits. Raises `Corrupt` if
    the varint has more than `most_bytes` bytes, if its value has too many bits, or if it is not complete in `data`.
    """
    if position < len(data) and data[position] < 128:
        # A fast path, because most varints have one byte.
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
    raise Corrupt(
        f"the varint at byte {position} is incomplete, longer than {most_bytes} bytes or too large"
    )


def wrap(value: int) -> int:
    """Return `value`, the sum or difference of two int64 numbers, wrapped around to an int64, as in Java.

    The difference of two timestamps can exceed an int64.
    """
    return value if -_WRAP <= value < _WRAP else (value + _WRAP) % (2 * _WRAP) - _WRAP


_WRAP = 1 << 63
_ONE_BYTE = [bytes([value]) for value in range(128)]
