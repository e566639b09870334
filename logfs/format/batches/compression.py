"""The four codecs of a record batch, in Kafka's framing (kafka-storage 2.4).

Compressed bytes come from a disk or a client, so a small malicious input could request a large allocation.
`decompress` therefore has a `limit` in bytes. It never allocates a declared size above the limit, and stops as soon
as the output exceeds the limit.

The library of a codec is imported in the functions that use it, so that a command loads only the codecs it needs.
"""

from __future__ import annotations

import enum
import io
import struct
from typing import TYPE_CHECKING, Protocol, TypeVar

from logfs.errors import Corrupt, InvalidSetting
from logfs.format.base.varint import decode_unsigned

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from typing_extensions import Buffer

DEFAULT_LIMIT = 64 * 1024 * 1024
"""The most bytes that the records of one batch may decompress to."""

SNAPPY_BLOCK_BYTES = 32 * 1024
SNAPPY_MAGIC = b"\x82SNAPPY\x00"
SNAPPY_VERSION = 1
SNAPPY_HEADER = struct.Struct(">8sii")
BLOCK_LENGTH = struct.Struct(">i")

# zlib's number for the gzip format with the largest window, 32 KiB.
GZIP_WBITS = 31
KAFKA_LZ4_DEFAULT_LEVEL = 9
LZ4_HIGH_COMPRESSION_LEVELS = range(3, 13)
LZ4_MAGIC = b"\x04\x22\x4d\x18"
LZ4_CONTENT_SIZE_BIT = 0x08
LZ4_DICTIONARY_BIT = 0x01
_UINT32 = 0xFFFFFFFF

# How many bytes of input are decompressed in one step. The output of a step is at most about 4 MiB: two bits of
# deflate can become 258 bytes, one byte of LZ4 can become 255 bytes, and four bytes of zstd can become 128 KiB.
GZIP_STEP_BYTES = 4 * 1024
LZ4_STEP_BYTES = 16 * 1024
ZSTD_STEP_BYTES = 128


class Codec(enum.IntEnum):
    """The compression codec of a batch: the number in bits 0-2 of the batch's attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4

    @property
    def kafka_name(self) -> str:
        """Kafka's name of the codec, as in the producer setting `compression.type`; the name of NONE is `none`."""
        return self.name.lower()

    @classmethod
    def named(cls, kafka_name: str) -> Codec:
        """Return the codec with that `kafka_name`. Raises `InvalidSetting` if there is none."""
        for codec in cls:
            if codec.kafka_name == kafka_name:
                return codec
        names = ", ".join(codec.kafka_name for codec in cls)
        raise InvalidSetting(f"{kafka_name!r} is not a compression codec; choose one of {names}")


LEVELS: dict[Codec, tuple[range, int]] = {
    Codec.GZIP: (range(1, 10), -1),
    Codec.LZ4: (range(1, 18), KAFKA_LZ4_DEFAULT_LEVEL),
    Codec.ZSTD: (range(-131072, 23), 3),
}
"""For each codec with levels: the levels that Kafka allows, and the default level, which is also allowed."""


def compress(codec: Codec, data: Buffer, level: int | None = None) -> bytes:
    """Return `data`, compressed into one stream in Kafka's framing (kafka-storage 2.4).

    `level` is one of the levels that Kafka allows for the codec, or None for the default; codecs without levels
    ignore it. Raises `InvalidSetting` for a level that Kafka does not allow.
    """
    match codec:
        case Codec.NONE:
            return bytes(data)
        case Codec.GZIP:
            return _compress_gzip(data, _checked_level(codec, level))
        case Codec.SNAPPY:
            return _compress_snappy(data)
        case Codec.LZ4:
            return _compress_lz4(data, _checked_level(codec, level))
        case Codec.ZSTD:
            return _compress_zstd(data, _checked_level(codec, level))


def decompress(codec: Codec, data: Buffer, *, limit: int) -> bytes:
    """Return all of `data` decompressed, at most `limit` bytes.

    Any valid stream of the codec is read, not only those that `compress` writes; gzip members and LZ4 or zstd frames
    may follow one another. The memory used exceeds the limit by at most a few MiB, and for zstd also by the part of
    the window that the output fills (at most 128 MiB), even if a stream declares or has a larger size.

    Raises `Corrupt` if the stream is malformed or incomplete, if other bytes follow it, or if its decompressed size
    exceeds `limit` bytes.
    """
    view = memoryview(data).cast("B")
    output = _Output(codec, limit)
    match codec:
        case Codec.NONE:
            output.add(bytes(view[: limit + 1]))
        case Codec.GZIP:
            _decompress_gzip(view, output)
        case Codec.SNAPPY:
            _decompress_snappy(view, output)
        case Codec.LZ4:
            _decompress_lz4(view, output)
        case Codec.ZSTD:
            _decompress_zstd(view, output)
    return output.value()


def _checked_level(codec: Codec, level: int | None) -> int:
    allowed, default = LEVELS[codec]
    if level is None or level == default:
        return default
    if level not in allowed:
        raise InvalidSetting(
            f"{codec.kafka_name} has no level {level}; "
            f"choose {allowed[0]} to {allowed[-1]}, or {default} for the default"
        )
    return level


class _Output:
    """The decompressed output so far. It can grow to `limit` bytes; `room` is how many bytes can still be added."""

    def __init__(self, codec: Codec, limit: int) -> None:
        self.codec = codec
        self.limit = limit
        self.room = limit
        self._kept = io.BytesIO()

    def add(self, part: bytes) -> None:
        """Add a part to the output. Raises `Corrupt` if the output then exceeds the limit."""
        self.reserve(len(part))
        self.room -= len(part)
        self._kept.write(part)

    def reserve(self, size: int) -> None:
        """Raise `Corrupt` if the output and `size` more bytes would exceed the limit."""
        if size > self.room:
            raise Corrupt(
                f"{self.codec.kafka_name} data decompresses to more than {self.limit} bytes"
            )

    def value(self) -> bytes:
        """Return all of the output."""
        return self._kept.getvalue()

    def malformed(self, reason: object) -> Corrupt:
        """Return the error to raise for input that is not a stream of the codec. Its message ends with `reason`."""
        return Corrupt(f"malformed {self.codec.kafka_name} data: {reason}")


# The code below is for gzip, LZ4 and zstd, whose libraries read a stream in steps of any size.


class _Stream(Protocol):
    """The common interface of zlib's, lz4's and zstandard's decompressors. One object reads one stream."""

    @property
    def eof(self) -> bool:
        """Whether the end of the stream has been read."""

    @property
    def unused_data(self) -> bytes | None:
        """The bytes of the most recent input that lie after the end of the stream."""


S = TypeVar("S", bound=_Stream)


def _decompress_streams(
    view: memoryview,
    output: _Output,
    *,
    step_bytes: int,
    open_stream: Callable[[], S],
    read: Callable[[S, memoryview], bytes],
    error: type[Exception],
) -> None:
    """Decompress the streams in `view`, one after another, into `output`.

    `open_stream` returns the decompressor for the next stream. The input is read in steps of `step_bytes`.
    `read(stream, step)` returns the decompressed bytes of a step, and raises `error` if the step is malformed. If
    these bytes exceed the limit, the first `output.room` + 1 of them are enough.

    Small steps bound the memory: zstd's decompressor always returns the whole output of a step, and if a stream ends
    inside a step, `unused_data` is a copy of the rest of the step. Raises `Corrupt` if a stream is malformed or
    incomplete, or if the output exceeds its limit.
    """
    stream = open_stream()
    position = 0
    while position < len(view):
        if stream.eof:
            stream = open_stream()
        step = view[position : position + step_bytes]
        try:
            part = read(stream, step)
        except error as problem:
            raise output.malformed(problem) from None
        output.add(part)
        position += len(step) - len(stream.unused_data or b"")
    if not stream.eof:
        raise output.malformed("it ends in the middle of a stream")


def _compress_gzip(data: Buffer, level: int) -> bytes:
    import zlib

    return zlib.compress(data, level, wbits=GZIP_WBITS)


def _decompress_gzip(view: memoryview, output: _Output) -> None:
    import zlib

    _decompress_streams(
        view,
        output,
        step_bytes=GZIP_STEP_BYTES,
        open_stream=lambda: zlib.decompressobj(wbits=GZIP_WBITS),
        read=lambda stream, step: stream.decompress(step, output.room + 1),
        error=zlib.error,
    )


def _compress_lz4(data: Buffer, level: int) -> bytes:
    """Return `data` as one LZ4 frame in the form that Kafka writes, which begins with the bytes `04224d18 60 40 82`.

    These bytes are the magic, two bytes of flags, and the checksum of the header. The flags say that the blocks are
    independent and have up to 64 KiB, and that the frame has no other checksum and no content size.

    Level 9, Kafka's default, selects the fast compressor. The other levels from 1 to 17 select the high-compression
    compressor, whose levels are 3 to 12: a level below 3 becomes 3, a level above 12 becomes 12.
    """
    import lz4.frame

    fast = 0
    lowest, highest = LZ4_HIGH_COMPRESSION_LEVELS[0], LZ4_HIGH_COMPRESSION_LEVELS[-1]
    is_fast = level == KAFKA_LZ4_DEFAULT_LEVEL
    frame: bytes = lz4.frame.compress(
        data,
        compression_level=fast if is_fast else min(max(level, lowest), highest),
        block_size=lz4.frame.BLOCKSIZE_MAX64KB,
        block_linked=False,
        content_checksum=False,
        block_checksum=False,
        store_size=False,
    )
    return frame


def _decompress_lz4(view: memoryview, output: _Output) -> None:
    import lz4.frame

    _decompress_streams(
        view,
        output,
        step_bytes=LZ4_STEP_BYTES,
        open_stream=lz4.frame.LZ4FrameDecompressor,
        read=lambda stream, step: stream.decompress(step, output.room + 1),
        error=RuntimeError,
    )


def fix_lz4_header(frame: bytes | memoryview) -> bytes:
    """Return a copy of an LZ4 frame from a message of magic 0, with a correct header checksum.

    For messages of magic 0 Kafka computed this checksum over too many bytes. Kafka does not check it when it reads
    such a message, but the LZ4 library always does.
    """
    mended = bytearray(frame)
    flags = mended[len(LZ4_MAGIC)] if len(mended) > len(LZ4_MAGIC) else 0
    size = 2 + (8 if flags & LZ4_CONTENT_SIZE_BIT else 0) + (4 if flags & LZ4_DICTIONARY_BIT else 0)
    end = len(LZ4_MAGIC) + size
    if end < len(mended):
        mended[end] = _xxh32(mended[len(LZ4_MAGIC) : end]) >> 8 & 0xFF
    return bytes(mended)


def _xxh32(data: bytes | bytearray) -> int:
    """Return the hash XXH32, with seed 0, of `data`, which has fewer than 16 bytes."""
    primes = 2654435761, 2246822519, 3266489917, 668265263, 374761393
    digest = primes[4] + len(data)
    whole = len(data) // 4 * 4
    for (word,) in struct.iter_unpack("<I", data[:whole]):
        digest = _rotated(digest + word * primes[2], 17) * primes[3]
    for byte in data[whole:]:
        digest = _rotated(digest + byte * primes[4], 11) * primes[0]
    digest &= _UINT32
    digest = (digest ^ digest >> 15) * primes[1] & _UINT32
    digest = (digest ^ digest >> 13) * primes[2] & _UINT32
    return digest ^ digest >> 16


def _rotated(value: int, bits: int) -> int:
    value &= _UINT32
    return (value << bits | value >> 32 - bits) & _UINT32


def _compress_zstd(data: Buffer, level: int) -> bytes:
    import zstandard

    compressor = zstandard.ZstdCompressor(
        level=level, write_content_size=False, write_checksum=False
    )
    return compressor.compress(memoryview(data))


def zstd_frame(data: Buffer, level: int | None = None) -> bytes:
    """Return `data` in one zstd frame that declares the size of its content.

    A chunk of a remote segment must be such a frame. The zstd frames in batches do not declare the size, because
    Kafka compresses batches as streams. A `level` of None stands for the default, 3. Raises `InvalidSetting` for a
    level that Kafka does not allow.
    """
    import zstandard

    level = _checked_level(Codec.ZSTD, level)
    return zstandard.ZstdCompressor(level=level, write_checksum=False).compress(memoryview(data))


def _decompress_zstd(view: memoryview, output: _Output) -> None:
    """Decompress the zstd frames in `view`, and add the result to `output`.

    As in Kafka, a frame may declare a window of up to 128 MiB, as frames of level 22 do. The library reserves address
    space for the whole window, but memory is used only for the part that the output fills.
    """
    import zstandard

    _decompress_streams(
        view,
        output,
        step_bytes=ZSTD_STEP_BYTES,
        open_stream=zstandard.ZstdDecompressor().decompressobj,
        read=lambda stream, step: stream.decompress(step),
        error=zstandard.ZstdError,
    )


# The code below is for Snappy. Its raw blocks have no framing, so Kafka uses the framing of the snappy-java library.


def _compress_snappy(data: Buffer) -> bytes:
    import cramjam

    view = memoryview(data).cast("B")
    parts = [SNAPPY_HEADER.pack(SNAPPY_MAGIC, SNAPPY_VERSION, SNAPPY_VERSION)]
    for position in range(0, len(view), SNAPPY_BLOCK_BYTES):
        block = bytes(cramjam.snappy.compress_raw(view[position : position + SNAPPY_BLOCK_BYTES]))
        parts += [BLOCK_LENGTH.pack(len(block)), block]
    return b"".join(parts)


def _decompress_snappy(view: memoryview, output: _Output) -> None:
    """Decompress the snappy-java streams in `view` into `output` (kafka-storage 2.4).

    If `view` does not begin with snappy-java's magic, decompress it as a single raw block.
    """
    import cramjam

    framed = view[: len(SNAPPY_MAGIC)] == SNAPPY_MAGIC
    for block in _snappy_blocks(view, output) if framed else [view]:
        output.reserve(_snappy_length(block, output))
        try:
            part = bytes(cramjam.snappy.decompress_raw(block))
        except cramjam.DecompressionError as problem:
            raise output.malformed(problem) from None
        output.add(part)


def _snappy_blocks(view: memoryview, output: _Output) -> Iterator[memoryview]:
    """Yield the raw Snappy blocks of one or several snappy-java streams.

    Streams may follow one another: where the length of the next block is expected, there may be a stream header.
    """
    position = 0
    while position < len(view):
        if view[position : position + len(SNAPPY_MAGIC)] == SNAPPY_MAGIC:
            position = _after_snappy_header(view, position, output)
            continue
        start = position + BLOCK_LENGTH.size
        if start > len(view):
            raise output.malformed(f"the block length at byte {position} is cut short")
        (length,) = BLOCK_LENGTH.unpack_from(view, position)
        if not 0 < length <= len(view) - start:
            raise output.malformed(
                f"a block of {length} bytes at byte {start} does not fit in {len(view)} bytes"
            )
        position = start + length
        yield view[start:position]


def _after_snappy_header(view: memoryview, position: int, output: _Output) -> int:
    end = position + SNAPPY_HEADER.size
    if end > len(view):
        raise output.malformed(f"the stream header at byte {position} is cut short")
    _, version, _ = SNAPPY_HEADER.unpack_from(view, position)
    if version < SNAPPY_VERSION:
        raise output.malformed(f"unknown version {version} in the stream header at byte {position}")
    return end


def _snappy_length(block: memoryview, output: _Output) -> int:
    """Return the uncompressed length of a raw Snappy block: the varint of at most five bytes at its beginning.

    Raises `Corrupt`, made by `output.malformed`, if the varint is not valid.
    """
    try:
        return decode_unsigned(block, 0)[0]
    except Corrupt:
        raise output.malformed("a block has no valid uncompressed length") from None
