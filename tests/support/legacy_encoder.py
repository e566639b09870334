"""An encoder of messages of magic 0 and 1, as of brokers before 0.11 (kafka-storage 2.7). logfs only reads them."""

from __future__ import annotations

import struct
import zlib
from typing import TYPE_CHECKING, NamedTuple

from logfs.format.batches.compression import Codec, compress
from logfs.format.batches.record import Record, TimestampType

if TYPE_CHECKING:
    from collections.abc import Callable

NONE, CREATE, LATE = (
    TimestampType.NO_TIMESTAMP_TYPE,
    TimestampType.CREATE_TIME,
    TimestampType.LOG_APPEND_TIME,
)


class Old(NamedTuple):
    """A message to encode: its offset in the log, value, key, and timestamp in ms (for magic 1)."""

    offset: int
    value: bytes | None
    key: bytes | None = None
    timestamp: int = 0


def message(magic: int, old: Old, attributes: int = 0) -> bytes:
    """Return the bytes of one message."""
    body = struct.pack(">bb", magic, attributes)
    if magic == 1:
        body += struct.pack(">q", old.timestamp)
    for field in (old.key, old.value):
        body += struct.pack(">i", -1 if field is None else len(field)) + (field or b"")
    size = 4 + len(body)
    return struct.pack(">qiI", old.offset, size, zlib.crc32(body)) + body


def wrapper(
    magic: int,
    codec: Codec,
    messages: list[Old],
    *,
    base: int | None = None,
    late: int = -1,
    pack: Callable[[Codec, bytes], bytes] = compress,
) -> bytes:
    """Return the bytes of a wrapper with its messages; `late` is the append time if the log set one.

    In magic 1 the offsets inside count from `base`, which is the first message's offset unless compaction has removed
    messages before it.
    """
    start = messages[0].offset if base is None else base
    inner = [each._replace(offset=each.offset - start) if magic else each for each in messages]
    packed = pack(codec, b"".join(message(magic, each) for each in inner))
    if codec is Codec.LZ4 and magic == 0:
        packed = packed[:6] + bytes([packed[6] ^ 0x5A]) + packed[7:]
    newest = max(each.timestamp for each in messages)
    outer = Old(messages[-1].offset, packed, None, newest if late < 0 else late)
    return message(magic, outer, codec if late < 0 else codec | 8)


def stored(codec: Codec, data: bytes) -> bytes:
    """Return an LZ4 frame with the data uncompressed, as LZ4 stores data that it cannot shorten."""
    assert codec is Codec.LZ4
    block = struct.pack("<I", len(data) | 1 << 31) + data
    return bytes.fromhex("04224d18604082") + block + bytes(4)


def as_read(magic: int, old: Old, late: int = -1) -> Record:
    """Return the record that a reader gets for a message."""
    if magic == 0:
        return Record(old.value, old.key, (), -1, old.offset, NONE)
    if late >= 0:
        return Record(old.value, old.key, (), late, old.offset, LATE)
    return Record(old.value, old.key, (), old.timestamp, old.offset, CREATE)
