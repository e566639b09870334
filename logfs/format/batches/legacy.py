"""Messages of magic 0 and 1, which Kafka wrote before record batches (kafka-storage 2.7). logfs only reads them.

A message is a batch by itself, or a wrapper, whose value decompresses to further messages. In both cases
`LegacyBatch` has the header that a batch of magic 2 would have, so that code that uses `format` does not have to
distinguish old and new batches.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from logfs.errors import Corrupt
from logfs.format.batches import compression
from logfs.format.batches.batch import (
    CODEC_MASK,
    HEADER_SIZE,
    LENGTH_OVERHEAD,
    LOG_APPEND_TIME_BIT,
    MAGIC_AT,
    NO_LEADER_EPOCH,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    Batch,
    Header,
    parse_header,
)
from logfs.format.batches.compression import Codec
from logfs.format.batches.record import NO_TIMESTAMP, Record

if TYPE_CHECKING:
    from collections.abc import Iterator

    from logfs.format.batches.columns import Columns

MAGICS = (0, 1)

# The first fields of a message of magic 0 or 1, and the timestamp that follows them, in magic 1 only.
MESSAGE = struct.Struct(">qiIbb")
MESSAGE_TIMESTAMP = struct.Struct(">q")
_LENGTH = struct.Struct(">i")
# The smallest valid value of a message's size field, for magic 0 and for magic 1.
_LEAST = (14, 22)
# The attribute bits that have a meaning, for magic 0 and for magic 1.
_ATTRIBUTES = (CODEC_MASK, CODEC_MASK | LOG_APPEND_TIME_BIT)

# The largest number of messages in a wrapper. More are refused: their `LegacyMessage` objects would take gigabytes.
_MOST_MESSAGES = 1_000_000

# The size in bytes of the smallest message, including its offset and size fields.
SMALLEST_BYTES = LENGTH_OVERHEAD + _LEAST[0]


class LegacyMessage(NamedTuple):
    """The fields of one message. Key and value are given by their byte positions in the parsed buffer.

    A length of -1 stands for null. `timestamp` is in ms; it is -1 in magic 0. `is_valid` tells whether the CRC, a
    plain CRC-32, matches.
    """

    offset: int
    size_bytes: int
    crc: int
    is_valid: bool
    magic: int
    attributes: int
    timestamp: int
    key_start: int
    key_length: int
    value_start: int
    value_length: int


def parse_message(data: bytes | memoryview, position: int = 0) -> LegacyMessage:
    """Return the message at `position`. A wrong CRC raises no error; the message's `is_valid` is then False.

    Raises `Corrupt` if the message is incomplete, has a magic other than 0 and 1, or has a length that does not match
    its fields.
    """
    left = len(data) - position - LENGTH_OVERHEAD
    if left < _LEAST[0]:
        raise Corrupt(f"{len(data) - position} bytes are too few for a message")
    offset, size, crc, magic, attributes = MESSAGE.unpack_from(data, position)
    if magic not in MAGICS:
        raise Corrupt(f"message {offset}: magic {magic} is neither 0 nor 1")
    if not _LEAST[magic] <= size <= left:
        raise Corrupt(
            f"message {offset}: a size of {size} bytes is too small, or more than the {left} bytes left"
        )
    start, end = position + MAGIC_AT, position + LENGTH_OVERHEAD + size
    is_valid = zlib.crc32(data[start:end]) == crc
    at, timestamp = position + MESSAGE.size, NO_TIMESTAMP
    if magic:
        (timestamp,) = MESSAGE_TIMESTAMP.unpack_from(data, at)
        at += MESSAGE_TIMESTAMP.size
    key_start, key_length, at = _field(data, at, end)
    value_start, value_length, at = _field(data, at, end)
    if at != end:
        raise Corrupt(f"message {offset}: {end - at} bytes follow its value")
    size_bytes = end - position
    attributes &= _ATTRIBUTES[magic]
    lies = (key_start, key_length, value_start, value_length)
    return LegacyMessage(offset, size_bytes, crc, is_valid, magic, attributes, timestamp, *lies)


def _field(data: bytes | memoryview, position: int, end: int) -> tuple[int, int, int]:
    """Return the start and the length of the key or value at `position`, and the position after it.

    Raises `Corrupt` if the key or value does not lie completely before `end`, the end of the message.
    """
    start = position + _LENGTH.size
    if start <= end:
        (length,) = _LENGTH.unpack_from(data, position)
        if length >= -1 and start + max(length, 0) <= end:
            return start, length, start + max(length, 0)
    raise Corrupt(f"the key or value at byte {position} does not fit its message")


@dataclass(frozen=True)
class LegacyBatch(Batch):
    """A single message, or a compressed wrapper with the messages in it, as a batch.

    `messages` has the single message, or those in the wrapper, with their offsets in the log. Their positions are
    positions in `unpacked`: the bytes of the single message, or the decompressed value of the wrapper.

    Unlike a `Batch`, a `LegacyBatch` is always complete and valid: `parse` reads all messages, because they determine
    the base offset of a wrapper, and raises `Corrupt` if one of them is not valid.
    """

    unpacked: bytes | memoryview
    messages: tuple[LegacyMessage, ...]

    @classmethod
    def parse(cls, data: bytes | bytearray | memoryview, position: int = 0) -> LegacyBatch:
        """Return the batch at `position` of a buffer.

        Raises `Corrupt` if the message at `position` is incomplete or malformed, or its CRC does not match. For a
        wrapper it also raises `Corrupt` unless the value decompresses to 1 to `_MOST_MESSAGES` messages that are
        valid, uncompressed and of the wrapper's magic, with offsets that rise and match the wrapper's offset.
        """
        view = memoryview(data)[position:].toreadonly()
        outer = parse_message(view)
        if not outer.is_valid:
            raise Corrupt(f"message {outer.offset}: the CRC does not match its bytes")
        view = view[: outer.size_bytes]
        unpacked: bytes | memoryview = view
        messages: tuple[LegacyMessage, ...] = (outer,)
        if outer.attributes & CODEC_MASK:
            unpacked = _unpack(outer, view)
            messages = _assign_offsets(outer, list(_inner_messages(outer, unpacked)))
        return cls(_header(outer, messages), view, unpacked, messages)

    @property
    def is_valid(self) -> bool:
        """Always True: `parse` raises `Corrupt` for a batch that is not valid."""
        return True

    def records(self) -> Iterator[Record]:
        """Yield the records in offset order."""
        for message in self.messages:
            yield Record(
                self._field(message.value_start, message.value_length),
                self._field(message.key_start, message.key_length),
                (),
                message.timestamp,
                message.offset,
                self.header.timestamp_type,
            )

    def _field(self, start: int, length: int) -> bytes | None:
        return None if length < 0 else bytes(self.unpacked[start : start + length])

    def columns(self) -> Columns:
        """Return the records as columns; all positions in them are positions in `unpacked`."""
        import numpy as np

        from logfs.format.batches.columns import Columns

        fields = dict(
            zip(LegacyMessage._fields, np.array(self.messages, np.int64).T.copy(), strict=True)
        )
        none = np.zeros(len(self.messages), np.int64)
        return Columns(
            data=np.frombuffer(self.unpacked, np.uint8),
            offsets=fields["offset"],
            timestamps=fields["timestamp"],
            timestamp_types=np.full(len(self.messages), self.header.timestamp_type, np.int8),
            key_starts=fields["key_start"],
            key_lengths=fields["key_length"].astype(np.int32),
            value_starts=fields["value_start"],
            value_lengths=fields["value_length"].astype(np.int32),
            header_starts=none,
            header_ends=none,
            header_counts=none.astype(np.int32),
        )

    def record_at(self, offset: int) -> Record | None:
        """Return the record with that offset; None if the batch has no such record, as after compaction."""
        return next((record for record in self.records() if record.offset == offset), None)


def parse_batch(data: bytes | bytearray | memoryview, position: int = 0) -> Batch:
    """Return the batch at `position` of a buffer: a `LegacyBatch` if its magic is 0 or 1, otherwise a `Batch`.

    Raises `Corrupt` if the buffer does not hold the whole batch, or if the batch's length is too small. For magic 0
    and 1, also raises `Corrupt` if the CRC or the content is wrong; a `Batch` is returned without these checks.
    """
    kind = LegacyBatch if is_legacy(data, position) else Batch
    return kind.parse(data, position)


def whole_batches(data: bytes | memoryview) -> Iterator[Header]:
    """Yield the header of each batch in `data`, of any magic. An incomplete last batch is left out.

    Raises `Corrupt` for a batch whose length is too small, and for a batch of magic 0 or 1 whose CRC or content is
    wrong. In a batch of magic 2 the CRC and the content are not checked.
    """
    position = 0
    while len(data) - position >= SMALLEST_BYTES:
        (length,) = _LENGTH.unpack_from(data, position + LENGTH_OVERHEAD - _LENGTH.size)
        is_old = is_legacy(data, position)
        least = SMALLEST_BYTES if is_old else HEADER_SIZE
        if max(size := length + LENGTH_OVERHEAD, least) > len(data) - position:
            return
        if size < least:
            raise Corrupt(f"the length {length} of a batch is too small")
        yield LegacyBatch.parse(data, position).header if is_old else parse_header(data, position)
        position += size


def is_legacy(data: bytes | bytearray | memoryview, position: int = 0) -> bool:
    """Whether the message or batch at `position` has magic 0 or 1. False if the data ends before the magic.

    The magic is the byte at `position` + 16, in messages and in batches.
    """
    at = position + MAGIC_AT
    return at < len(data) and data[at] in MAGICS


def _unpack(outer: LegacyMessage, data: memoryview) -> bytes:
    """Return the bytes of the messages in a wrapper: its value, decompressed.

    `outer` has the fields of the wrapper, `data` its bytes. Raises `Corrupt` if the wrapper has a codec that is not
    permitted in its magic, such as zstd, or if the value is not a valid stream of the codec or is too large.
    """
    number = outer.attributes & CODEC_MASK
    if number > Codec.LZ4:
        raise Corrupt(f"message {outer.offset}: magic {outer.magic} has no codec {number}")
    codec = Codec(number)
    packed: bytes | memoryview = data[outer.value_start :]
    if codec is Codec.LZ4 and outer.magic == 0:
        packed = compression.fix_lz4_header(packed)
    return compression.decompress(codec, packed, limit=compression.DEFAULT_LIMIT)


def _inner_messages(outer: LegacyMessage, unpacked: bytes) -> Iterator[LegacyMessage]:
    position = count = 0
    while position < len(unpacked):
        message = parse_message(unpacked, position)
        if not message.is_valid or message.magic != outer.magic or message.attributes & CODEC_MASK:
            raise Corrupt(
                f"message {outer.offset}: the inner message at byte {position} is compressed, damaged or "
                f"not of magic {outer.magic}"
            )
        yield message
        position += message.size_bytes
        count += 1
        if count > _MOST_MESSAGES:
            raise Corrupt(
                f"message {outer.offset}: it contains more than {_MOST_MESSAGES} messages, the limit of logfs"
            )


def _assign_offsets(outer: LegacyMessage, inner: list[LegacyMessage]) -> tuple[LegacyMessage, ...]:
    """Return a wrapper's messages with their offsets in the log and, with LogAppendTime, the wrapper's timestamp.

    The offset of a wrapper is that of its last message in the log. In magic 1 the stored offsets of the messages are
    relative: in a wrapper of offset 9, the messages 0, 1 and 2 get the offsets 7, 8 and 9. In magic 0 the stored
    offsets are those in the log. If the wrapper's offset is 0, no broker has assigned offsets, and the messages keep
    the stored ones.

    Raises `Corrupt` for a wrapper without messages, and if the offsets in the log do not rise or are negative. Unless
    the wrapper's offset is 0, also raises `Corrupt` if the stored offset of the last message differs from the
    wrapper's offset (magic 0), or is above it (magic 1).
    """
    if not inner:
        raise Corrupt(f"message {outer.offset}: a compressed message contains no messages")
    base = outer.offset - inner[-1].offset if outer.offset else 0
    late = outer.attributes & LOG_APPEND_TIME_BIT
    assigned = tuple(
        message._replace(
            offset=base + message.offset,
            timestamp=outer.timestamp if late else message.timestamp,
        )
        for message in inner
    )
    rising = all(before.offset < after.offset for before, after in pairwise(assigned))
    fits = base >= 0 if outer.magic else base == 0
    if not fits or not rising or assigned[0].offset < 0:
        raise Corrupt(
            f"message {outer.offset}: the offsets of its inner messages do not rise or do not match its offset"
        )
    return assigned


def _header(outer: LegacyMessage, messages: tuple[LegacyMessage, ...]) -> Header:
    base_offset = messages[0].offset
    return Header(
        base_offset,
        outer.size_bytes - LENGTH_OVERHEAD,
        NO_LEADER_EPOCH,
        outer.magic,
        outer.crc,
        outer.attributes,
        messages[-1].offset - base_offset,
        messages[0].timestamp,
        outer.timestamp,
        NO_PRODUCER_ID,
        NO_PRODUCER_EPOCH,
        NO_SEQUENCE,
        len(messages),
    )
