"""The chunk index in a manifest of Aiven's plugin: which bytes of an object hold which bytes of a .log file.

A segment is cut into chunks of one size; only the last may be smaller. Each chunk is compressed and encrypted by
itself, if at all, so that a range of the segment can be read without other chunks. If the stored chunks, except the
last, all have the same size, the index is *fixed*. Otherwise the index is *variable*: it lists the sizes of all
stored chunks.
"""

from __future__ import annotations

import base64
import binascii
import struct
from itertools import accumulate
from typing import TYPE_CHECKING, Any, NamedTuple

from logfs.errors import Corrupt
from logfs.format.base.names import INT32_MAX
from logfs.format.batches.compression import Codec, decompress, zstd_frame

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_COUNT = struct.Struct(">i")
# The base, to which each listed difference is added, and the width of a difference in bytes (see `pack_sizes`).
_BASE = struct.Struct(">iB")
_INT32_BYTES = 4
# The limit for a decompressed list of sizes, in bytes: more than a segment of 2 GiB needs with reasonable chunks.
_MOST_LIST_BYTES = 16 * 1024 * 1024


class Chunk(NamedTuple):
    """A range of a .log file that can be read without the other ranges, and its place in the stored object.

    The `size` bytes of the file from `position` on are stored as the `stored_size` bytes of the object from
    `stored_at` on.
    """

    position: int
    size: int
    stored_at: int
    stored_size: int


class ChunkIndex:
    """The chunks of one segment.

    `chunk_bytes` is the size of a chunk, `file_bytes` that of the .log file. `stored_sizes` has the sizes of all
    chunks in the object, or is one number if all but the last have this size. `last_stored_size` is the size of the
    last chunk in the object. All sizes are in bytes.
    """

    def __init__(
        self,
        chunk_bytes: int,
        file_bytes: int,
        stored_sizes: int | Sequence[int],
        last_stored_size: int,
    ) -> None:
        """Make the index. Raises `Corrupt` for an invalid size, or if the number of listed sizes is wrong."""
        self.chunk_bytes = chunk_bytes
        self.file_bytes = file_bytes
        self.stored_sizes = stored_sizes
        self.last_stored_size = last_stored_size
        sizes = [stored_sizes] if isinstance(stored_sizes, int) else stored_sizes
        if chunk_bytes <= 0 or min(file_bytes, last_stored_size, *sizes) < 0:
            raise Corrupt(
                f"chunk index: the chunk size {chunk_bytes} is not above 0, or a size is negative"
            )
        if not isinstance(stored_sizes, int):
            if len(stored_sizes) != len(self):
                raise Corrupt(
                    f"chunk index: the segment has {len(self)} chunks, but {len(stored_sizes)} sizes are listed"
                )
            self._starts = [0, *accumulate(stored_sizes)]

    def __len__(self) -> int:
        return -(-self.file_bytes // self.chunk_bytes)

    def __getitem__(self, number: int) -> Chunk:
        if not 0 <= number < len(self):
            raise IndexError(number)
        position = number * self.chunk_bytes
        size = min(self.chunk_bytes, self.file_bytes - position)
        if isinstance(self.stored_sizes, int):
            is_last = number == len(self) - 1
            stored = self.last_stored_size if is_last else self.stored_sizes
            return Chunk(position, size, number * self.stored_sizes, stored)
        return Chunk(position, size, self._starts[number], self.stored_sizes[number])

    def chunks(self, start: int, end: int) -> range:
        """Return the numbers of the chunks that have the bytes [start, end) of the .log file.

        `end` may exceed the file's size.
        """
        end = min(end, self.file_bytes)
        if start >= end:
            return range(0)
        return range(start // self.chunk_bytes, (end - 1) // self.chunk_bytes + 1)


def to_json(index: ChunkIndex) -> dict[str, Any]:
    """Return an index as the JSON object for a manifest, with the fields in the plugin's order."""
    sizes = {"originalChunkSize": index.chunk_bytes, "originalFileSize": index.file_bytes}
    if isinstance(index.stored_sizes, int):
        return {
            "type": "fixed",
            **sizes,
            "transformedChunkSize": index.stored_sizes,
            "finalTransformedChunkSize": index.last_stored_size,
        }
    packed = zstd_frame(pack_sizes(index.stored_sizes))
    return {"type": "variable", **sizes, "transformedChunks": base64.b64encode(packed).decode()}


def from_json(fields: Mapping[str, Any]) -> ChunkIndex:
    """Return the index in the JSON object from a manifest. Raises `Corrupt` if the object is malformed."""
    chunk, size = number_of(fields, "originalChunkSize"), number_of(fields, "originalFileSize")
    kind = fields.get("type")
    if kind == "fixed":
        last = number_of(fields, "finalTransformedChunkSize")
        return ChunkIndex(chunk, size, number_of(fields, "transformedChunkSize"), last)
    if kind != "variable":
        raise Corrupt(f"chunk index: its type, {str(kind)[:30]!r}, is neither fixed nor variable")
    try:
        packed = base64.b64decode(fields["transformedChunks"], validate=True)
    except (KeyError, TypeError, binascii.Error) as error:
        raise Corrupt(f"chunk index: transformedChunks is missing or not base64: {error}") from None
    sizes = unpack_sizes(decompress(Codec.ZSTD, packed, limit=_MOST_LIST_BYTES))
    return ChunkIndex(chunk, size, sizes, sizes[-1] if sizes else 0)


def number_of(fields: Mapping[str, Any], name: str) -> int:
    """Return the number in the field `name` of a JSON object from a manifest.

    Raises `Corrupt` if the field is missing or not an integer in 0..2^31 - 1.
    """
    value = fields.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= INT32_MAX:
        raise Corrupt(f"manifest: {name} is {str(value)[:30]!r}, not a number in 0..{INT32_MAX}")
    return value


def pack_sizes(sizes: Sequence[int]) -> bytes:
    """Return a list of sizes in the plugin's compact form.

    For [100, 102, 7] the form is: the count 3 (int32), the base 100 (int32), the width 1 (one byte), the differences
    0 and 2 (each in as many bytes as the width), and the last size 7 (int32). A list of one size has only the count
    and the size. An empty list has only the count.
    """
    count = _COUNT.pack(len(sizes))
    if not sizes:
        return count
    *others, last = sizes
    if not others:
        return count + _COUNT.pack(last)
    base = min(others)
    width = max((max(others) - base).bit_length() + 7, 8) // 8
    packed = b"".join((size - base).to_bytes(width, "big") for size in others)
    return count + _BASE.pack(base, width) + packed + _COUNT.pack(last)


def unpack_sizes(data: bytes) -> list[int]:
    """Return the list that `pack_sizes` packed. Raises `Corrupt` if the bytes are not such a list."""
    if len(data) < _COUNT.size:
        raise Corrupt(f"chunk index: {len(data)} bytes are too few for a list of sizes")
    (count,) = _COUNT.unpack_from(data)
    base, width, start = 0, 0, _COUNT.size
    if count > 1 and len(data) >= start + _BASE.size:
        base, width = _BASE.unpack_from(data, start)
        start += _BASE.size
    last_at = start + max(count - 1, 0) * width
    expected = last_at + (_COUNT.size if count else 0)
    if count < 0 or len(data) != expected or not (0 < width <= _INT32_BYTES or count < 2):
        raise Corrupt(f"chunk index: {len(data)} bytes are not a list of {count} sizes")
    sizes = [
        base + int.from_bytes(data[at : at + width], "big")
        for at in range(start, last_at, width or 1)
    ]
    return sizes + [last for (last,) in _COUNT.iter_unpack(data[last_at:])]
