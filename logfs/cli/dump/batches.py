"""Reads the batches of a .log file, as kafka-dump-log does.

Batches are found by their length fields alone, so batches that are otherwise invalid are read, too.
"""

from __future__ import annotations

import os
import struct
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from logfs.errors import Corrupt
from logfs.format.batches import legacy
from logfs.format.batches.batch import (
    CODEC_MASK,
    HEADER_SIZE,
    LENGTH_OVERHEAD,
    MAGIC,
    MAGIC_AT,
    Batch,
    Header,
    parse_header,
)
from logfs.format.batches.compression import Codec
from logfs.format.batches.legacy import MESSAGE, MESSAGE_TIMESTAMP, LegacyBatch
from logfs.format.batches.record import NO_TIMESTAMP, Record, TimestampType, decode_records
from logfs.log.disk.disk import ReadOnlyDisk

if TYPE_CHECKING:
    from collections.abc import Iterator

# The fields that kafka-dump-log reads before it knows the size of a batch's header: base offset and length, and then
# the leader epoch and the magic, which are skipped here (`5x`).
_START = struct.Struct(">qi5x")
# The smallest valid value of a batch's length field.
_SMALLEST_BYTES = 14
_CHUNK_BYTES = 1 << 20


class LogFile:
    """A .log file that is open for reading; it is read in chunks of 1 MiB or more."""

    def __init__(self, name: str) -> None:
        """Open the file. Raises `OSError`."""
        self._disk = ReadOnlyDisk()
        self._file = self._disk.open(Path(os.path.realpath(name)))
        self.size_bytes = self._disk.size(self._file)
        self._start = 0
        self._chunk = memoryview(b"")

    def batches(self, position: int = 0, end: int | None = None) -> Iterator[tuple[int, Batch]]:
        """Yield (position, batch) for each batch that lies completely in the bytes [position, end).

        An `end` of None stands for the end of the file. An incomplete last batch is left out. Raises `Corrupt` for a
        `position` outside the file, for a length field below 14, and for a batch of magic 2 or more that begins so
        close to the end of the file that no batch header fits there.
        """
        if not 0 <= position <= self.size_bytes:
            raise Corrupt(
                f"an index entry has the position {position}, but the .log file has {self.size_bytes} bytes"
            )
        end = self.size_bytes if end is None else min(end, self.size_bytes)
        # Not `<=`: kafka-dump-log stops if no byte follows the magic, which is the last byte of `_START`.
        while position + _START.size < end:
            _, length = _START.unpack(self._read(position, _START.size))
            if length < _SMALLEST_BYTES:
                raise Corrupt(
                    f"byte {position}: length {length} is below 14, the minimum of a batch"
                )
            after = position + LENGTH_OVERHEAD + length
            if after > end:
                return
            yield position, self._batch(position, after)
            position = after

    def _batch(self, position: int, after: int) -> Batch:
        head = self._read(position, HEADER_SIZE)
        data = self._read(position, after - position)
        if len(head) > MAGIC_AT and head[MAGIC_AT] not in range(MAGIC, 128):
            return Batch(_legacy_header(head), data)
        if len(head) < HEADER_SIZE:
            raise Corrupt(f"byte {position}: {len(head)} bytes are too few for a batch header")
        return Batch(parse_header(head), data)

    def _read(self, position: int, size: int) -> memoryview:
        at = position - self._start
        if at < 0 or at + size > len(self._chunk):
            self._start, at = position, 0
            self._chunk = self._disk.read(self._file, position, max(size, _CHUNK_BYTES))
        return self._chunk[at : at + size]


def _legacy_header(head: memoryview) -> Header:
    """Return the header of a message of magic 0 or 1 in the form of a batch header, with a record count of 1.

    `head` has the first bytes of the message; as many as a batch header has are enough. The base offset in the result
    is the offset in the message's header. In a wrapper, a message with compressed messages in its value, this is the
    offset of the last compressed message.
    """
    offset, length, crc, magic, attributes = MESSAGE.unpack_from(head)
    timestamp = NO_TIMESTAMP
    if magic == 1 and len(head) >= MESSAGE.size + MESSAGE_TIMESTAMP.size:
        (timestamp,) = MESSAGE_TIMESTAMP.unpack_from(head, MESSAGE.size)
    return Header(
        offset, length, -1, magic, crc, attributes, 0, timestamp, timestamp, -1, -1, -1, 1
    )


def is_valid(batch: Batch) -> bool:
    """Return whether the CRC of a batch matches. As in kafka-dump-log, a magic above 2 is treated as 2.

    Raises `Corrupt` for a magic below 0.
    """
    magic = batch.header.magic
    if magic < 0:
        raise Corrupt(f"batch {batch.header.base_offset}: unknown magic {magic}")
    if magic < MAGIC:
        return zlib.crc32(batch.data[MAGIC_AT:]) == batch.header.crc
    if len(batch.data) < HEADER_SIZE:
        return False
    return Batch(batch.header._replace(magic=MAGIC), batch.data).is_valid


class Shown(NamedTuple):
    """A record, and what is printed with it.

    `timestamp` is in ms: the time of the append with LogAppendTime, otherwise the record's own timestamp, -1 for
    none. For a message of magic 0 or 1, `crc` is the message's own CRC, and `is_valid` tells whether it matches. For
    a record of a batch of magic 2, `crc` and `is_valid` are None.
    """

    record: Record
    timestamp: int
    is_valid: bool | None = None
    crc: int | None = None


def records(batch: Batch) -> Iterator[Shown]:
    """Yield the records of a batch with the timestamps to print; with LogAppendTime, all have the time of the append.

    Raises `Corrupt` for malformed records. As in kafka-dump-log, uncompressed records are yielded up to the first
    malformed one; compressed records are yielded only if all of them are well-formed.
    """
    header = batch.header
    if header.magic < MAGIC:
        yield from _legacy_records(batch)
        return
    if len(batch.data) < HEADER_SIZE or header.record_count < 0:
        raise Corrupt(
            f"batch {header.base_offset}: incomplete header or invalid record count {header.record_count}"
        )
    if header.record_count == 0:
        return
    plain = header.codec is Codec.NONE
    found = decode_records(
        batch.data[HEADER_SIZE:] if plain else batch.payload,
        header.record_count,
        base_offset=header.base_offset,
        base_timestamp=header.base_timestamp,
    )
    late = header.timestamp_type is TimestampType.LOG_APPEND_TIME
    for record in found if plain else list(found):
        timestamp = NO_TIMESTAMP if record.timestamp is None else record.timestamp
        yield Shown(record, header.max_timestamp if late else timestamp)


def _legacy_records(batch: Batch) -> Iterator[Shown]:
    """Yield the record of an uncompressed message, or those of all messages in a compressed wrapper.

    Raises `Corrupt` if the wrapper, or a message in it, is not valid.
    """
    outer = legacy.parse_message(batch.data)
    data: bytes | memoryview = batch.data
    messages: tuple[legacy.LegacyMessage, ...] = (outer,)
    if outer.attributes & CODEC_MASK:
        wrapper = LegacyBatch.parse(batch.data)
        data, messages = wrapper.unpacked, wrapper.messages
    for message in messages:
        record = Record(
            _slice(data, message.value_start, message.value_length),
            _slice(data, message.key_start, message.key_length),
            offset=message.offset,
        )
        yield Shown(record, message.timestamp, message.is_valid, message.crc)


def _slice(data: bytes | memoryview, start: int, length: int) -> bytes | None:
    return None if length < 0 else bytes(data[start : start + length])
