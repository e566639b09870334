"""The entries of a sparse index: where readers find their bytes, and how the one writer adds more.

Readers touch no memory mapping: that may wait for the disk on the event loop, and raises SIGBUS if the file was cut.
They read a file by `Disk.read`, in blocks of 4 KiB, and the process keeps those that were read last. The mapping of
the file of an active segment belongs to its `IndexWriter`.
"""

from __future__ import annotations

import mmap
from abc import abstractmethod
from collections import deque
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TypeVar
from weakref import ref

if TYPE_CHECKING:
    import struct

    from logfs.log.disk.disk import Disk, File

T = TypeVar("T")
_BLOCK_BYTES = 4096
# More entries than an index has.
_ALL = 2**32


class _Kept(dict[int, T]):
    """What was read of a file, by number. The process keeps `most` of them, and reads the others again."""

    __slots__ = ("__weakref__", "_disk", "_size", "file")
    most: ClassVar[int]
    # All that are kept, the oldest first. Only atomic operations are used on it.
    kept: ClassVar[deque[tuple[ref[_Kept[Any]], int]]]

    def __init__(self, disk: Disk, file: File, block_bytes: int) -> None:
        super().__init__()
        self.file = file
        self._disk = disk
        self._size = block_bytes

    @abstractmethod
    def _load(self, number: int) -> T:
        """Read it. Raises `OSError`, and `WouldBlock` in a thread that must not wait for the disk."""

    def __missing__(self, number: int) -> T:
        found = self[number] = self._load(number)
        self.kept.append((ref(self), number))
        if len(self.kept) > self.most:
            oldest, number = self.kept.popleft()
            values = oldest()
            if values is not None:
                values.pop(number, None)
        return found


class FileBlocks(_Kept[bytes | bytearray]):
    """The bytes of a file in blocks. The last one may be incomplete."""

    __slots__ = ()
    most = 2048  # 8 MiB
    kept: ClassVar = deque()

    def _load(self, number: int) -> bytes:
        return bytes(self._disk.read(self.file, number * self._size, self._size))

    def read(self, size: int) -> bytes:
        """Return the first `size` bytes."""
        return bytes(self._disk.read(self.file, 0, size))


class _FirstFields(_Kept[int]):
    """The first field of each block of a file: the upper steps of a bisection meet the same few again and again."""

    __slots__ = ("_entry",)
    most = 16384  # about 4 MiB
    kept: ClassVar = deque()

    def __init__(self, disk: Disk, file: File, block_bytes: int, entry: struct.Struct) -> None:
        super().__init__(disk, file, block_bytes)
        self._entry = entry

    def _load(self, number: int) -> int:
        data = self._disk.read(self.file, number * self._size, self._entry.size)
        first: int = self._entry.unpack(data)[0]
        return first


class HeldBlock(dict[int, bytes | bytearray]):
    """All entries in one block in memory."""

    __slots__ = ()
    file = None

    def read(self, size: int) -> bytes:
        """Return the first `size` bytes."""
        return bytes(self[0][:size])


class Entries(NamedTuple):
    """What readers see of an index: `length` entries, with `per_block` of them in each of the `blocks`.

    More may follow in the last block meanwhile. `firsts` has the first field of each block.

    - `has_rest`: the file has more bytes after its last whole entry, fewer than an entry has.
    - `reopens`: the index may forget them, and find them again in its own file.
    """

    length: int
    per_block: int
    blocks: FileBlocks | HeldBlock
    firsts: dict[int, int]
    has_rest: bool = False
    reopens: bool = False

    @classmethod
    def held(cls, data: bytes | bytearray, entry: struct.Struct) -> Entries:
        """Return the entries in `data`."""
        return cls(len(data) // entry.size, _ALL, HeldBlock({0: data}), {})

    @classmethod
    def of_file(cls, disk: Disk, file: File, entry: struct.Struct, length: int) -> Entries:
        """Return the first `length` entries in a file."""
        per_block = _BLOCK_BYTES // entry.size
        size = per_block * entry.size
        firsts = _FirstFields(disk, file, size, entry)
        return cls(length, per_block, FileBlocks(disk, file, size), firsts)


class EntryCollector:
    """Adds entries in memory; at most `capacity` fit."""

    def __init__(self, entry: struct.Struct, capacity: int) -> None:
        self.capacity = capacity
        self._entry = entry

    def add(self, entries: Entries, packed: bytes) -> Entries:
        """Add packed entries to `entries`, and return what readers see from now on."""
        data = entries.blocks[0]
        assert isinstance(data, bytearray)
        data += packed
        return entries._replace(length=len(data) // self._entry.size)

    def keep(self, entries: Entries, length: int) -> Entries:
        """Drop all but the first `length` entries, and return what readers see from now on."""
        data = entries.blocks.read(length * self._entry.size)
        return Entries.held(bytearray(data), self._entry)

    def reserve(self, length: int, more: int) -> None:
        """Make sure that `more` entries after the first `length` find space. Memory has it."""


class IndexWriter(EntryCollector):
    """Adds entries to the index file of an active segment, which is preallocated with zeros (kafka-storage 3.6).

    It stores them through a mapping that nothing else touches: a write of 8 bytes would take ten times as long. An
    entry is in the file before readers see it. They read the file; but the block with the last entry is in memory, so
    that an append never waits for a read.
    """

    def __init__(self, disk: Disk, file: File, entry: struct.Struct, capacity: int) -> None:
        """Give the file space for `capacity` entries. Raises `OSError`."""
        super().__init__(entry, capacity)
        size = capacity * entry.size
        self._disk = disk
        self._file = file
        self._allocated = 0
        # The block with the last entry, and the number of its first entry.
        self._block = bytearray()
        self._block_start = 0
        if disk.size(file) != size:
            disk.truncate(file, size)
        self._mapping = disk.map(file, size) if size else None

    def begin(self, length: int) -> Entries:
        """Return the first `length` entries of the file, to which others are added. May raise `WouldBlock`."""
        width = self._entry.size
        entries = Entries.of_file(self._disk, self._file, self._entry, length)
        number = max(length - 1, 0) // entries.per_block
        start = number * entries.per_block
        data = self._disk.read(self._file, start * width, (length - start) * width)
        self._block_start, self._block = start, bytearray(data)
        entries.blocks[number] = self._block
        return entries

    def add(self, entries: Entries, packed: bytes) -> Entries:
        width, mapping = self._entry.size, self._mapping
        length, per_block, blocks, firsts, _, _ = entries
        at = length * width
        end = at + len(packed)
        after = end // width
        if end > self._allocated:
            self.reserve(length, after - length)
        assert mapping is not None
        mapping[at:end] = packed
        if after - self._block_start <= per_block:
            self._block += packed
        else:
            number, before = (after - 1) // per_block, self._block_start // per_block
            self._block_start = number * per_block
            self._block = bytearray(packed[(self._block_start - length) * width :])
            blocks[number] = self._block
            # It is whole now: readers find it in the file.
            blocks.pop(before, None)
        return Entries(after, per_block, blocks, firsts)

    def keep(self, entries: Entries, length: int) -> Entries:
        # Readers in other processes find the end of the entries by the zeros.
        start, end = length * self._entry.size, entries.length * self._entry.size
        assert self._mapping is not None
        self._mapping[start:end] = bytes(end - start)
        return self.begin(length)

    def reserve(self, length: int, more: int) -> None:
        """Allocate the disk blocks of `more` entries after the first `length`. Raises `OSError` if the disk is full.

        On a full disk, a store into an unallocated part of the mapping would raise SIGBUS and end the process.
        """
        size, end = self.capacity * self._entry.size, (length + more) * self._entry.size
        if self._allocated < end <= size:
            end = min(-(-end // mmap.PAGESIZE) * mmap.PAGESIZE, size)
            self._disk.allocate(self._file, self._allocated, end - self._allocated)
            self._allocated = end

    def trim(self, entries: Entries) -> Entries:
        """Cut the space after `entries` off the file, end the writing, and return what readers see from now on."""
        self._disk.truncate(self._file, entries.length * self._entry.size)
        self._mapping = None
        entries.blocks.clear()
        return entries._replace(reopens=True)
