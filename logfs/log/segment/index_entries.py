"""The entries of a sparse index: how readers get the bytes of entries, and how the one writer adds entries.

Readers do not map the file (mmap): an access to a mapping may wait for the disk on the thread of the event loop, and
raises SIGBUS if the file was truncated. They use `Disk.read`, in blocks of 4 KiB, and the process keeps the blocks
that were read last. For example, a lookup among 10,000 offset entries, 512 in a block, reads at most 5 of 20 blocks.
Only the `IndexWriter` of an active segment uses a mapping of the file.
"""

from __future__ import annotations

import mmap
from collections import deque
from typing import TYPE_CHECKING, NamedTuple
from weakref import ref

if TYPE_CHECKING:
    import struct

    from logfs.log.disk.disk import Disk, File

_BLOCK_BYTES = 4096
# The number of entries per block for an index in memory: more than any index has, so that one block has all entries.
_ALL = 2**32


class Blocks(dict[int, bytes | bytearray]):
    """The bytes of an index's entries in blocks, by number: `blocks[n]` reads a missing block from the file.

    The process keeps the 16 MiB of blocks that were read last, and drops older ones. The last block may be
    incomplete.
    """

    __slots__ = ("__weakref__", "_block_bytes", "_disk", "file")

    def __init__(self, disk: Disk, file: File, block_bytes: int) -> None:
        super().__init__()
        self.file: File | None = file
        self._disk = disk
        self._block_bytes = block_bytes

    def __missing__(self, number: int) -> bytes:
        """Read a block. Raises `OSError`, and `WouldBlock` in a thread that must not wait for the disk."""
        assert self.file is not None
        start = number * self._block_bytes
        found = self[number] = bytes(self._disk.read(self.file, start, self._block_bytes))
        _kept.append((ref(self), number))
        if len(_kept) > _MOST_KEPT:
            oldest, number = _kept.popleft()
            blocks = oldest()
            if blocks is not None:
                blocks.pop(number, None)
        return found

    def read(self, size: int) -> bytes:
        """Return the first `size` bytes of the entries."""
        assert self.file is not None
        return bytes(self._disk.read(self.file, 0, size))


class HeldBlock(Blocks):
    """Entries that are held in memory, all of them in one block."""

    __slots__ = ()

    def __init__(self, data: bytes | bytearray) -> None:
        dict.__init__(self, {0: data})
        self.file = None

    def read(self, size: int) -> bytes:
        return bytes(self[0][:size])


# The blocks of files that are kept in memory, at most `_MOST_KEPT` of them, oldest first. Threads share the deque:
# use only atomic operations.
_kept: deque[tuple[ref[Blocks], int]] = deque()
_MOST_KEPT = 4096


class Entries(NamedTuple):
    """The entries that readers of an index see: `length` entries, `per_block` of them in each of the `blocks`.

    Appends extend the last block in place, so it may have more entries than `length` says: readers ignore these.

    - `has_rest`: the file ends with an incomplete entry.
    - `reopens`: the index may drop these entries, because it can read them again from its own file.
    """

    length: int
    per_block: int
    blocks: Blocks
    has_rest: bool = False
    reopens: bool = False

    @classmethod
    def held(cls, data: bytes | bytearray, entry: struct.Struct) -> Entries:
        """Return the entries in `data`, which is kept in memory."""
        return cls(len(data) // entry.size, _ALL, HeldBlock(data))

    @classmethod
    def of_file(cls, disk: Disk, file: File, entry: struct.Struct, length: int) -> Entries:
        """Return the first `length` entries in a file."""
        per_block = _BLOCK_BYTES // entry.size
        return cls(length, per_block, Blocks(disk, file, per_block * entry.size))


class EntryCollector:
    """Adds entries in memory; at most `capacity` fit."""

    def __init__(self, entry: struct.Struct, capacity: int) -> None:
        self.capacity = capacity
        self._entry = entry

    def add(self, entries: Entries, packed: bytes) -> Entries:
        """Add packed entries to `entries`, and return the entries that readers see from now on."""
        data = entries.blocks[0]
        assert isinstance(data, bytearray)
        data += packed
        # Recovery comes here for each entry: `_replace` takes twice as long.
        _, per_block, blocks, has_rest, reopens = entries
        return Entries(len(data) // self._entry.size, per_block, blocks, has_rest, reopens)

    def keep(self, entries: Entries, length: int) -> Entries:
        """Drop all but the first `length` entries, and return the entries that readers see from now on."""
        data = entries.blocks.read(length * self._entry.size)
        return Entries.held(bytearray(data), self._entry)

    def reserve(self, length: int, more: int) -> None:
        """Make space for `more` entries after the first `length`. In memory, there is nothing to do."""


class IndexWriter(EntryCollector):
    """Adds entries to the index file of an active segment, which is preallocated with zeros (kafka-storage 3.6).

    It writes the entries through a mapping (mmap), because a system call for 8 bytes takes ten times as long. Nothing
    else uses the mapping. An entry is in the file before readers see it. Readers read the file, except for the block
    with the last entry. This block is in memory, because an append reads the last entry and must not wait for a read.
    """

    def __init__(self, disk: Disk, file: File, entry: struct.Struct, capacity: int) -> None:
        super().__init__(entry, capacity)
        self._disk = disk
        self._file = file
        self._allocated = 0
        # The block with the last entry, and the number of its first entry.
        self._block = bytearray()
        self._block_start = 0
        self._mapping: mmap.mmap | None = None

    def begin(self, length: int) -> Entries:
        """Preallocate the file for `capacity` entries, and return its first `length` entries; `add` adds after them.

        `trim` removes the space that is left unused. Raises `OSError`, and `WouldBlock` in a thread that must not
        wait for the disk.
        """
        width, size = self._entry.size, self.capacity * self._entry.size
        if self._disk.size(self._file) != size:
            self._disk.truncate(self._file, size)
        if size and self._mapping is None:
            self._mapping = self._disk.map(self._file, size)
        entries = Entries.of_file(self._disk, self._file, self._entry, length)
        number = max(length - 1, 0) // entries.per_block
        start = number * entries.per_block
        data = self._disk.read(self._file, start * width, (length - start) * width)
        self._block_start, self._block = start, bytearray(data)
        entries.blocks[number] = self._block
        return entries

    def add(self, entries: Entries, packed: bytes) -> Entries:
        self._check_size()
        width, mapping = self._entry.size, self._mapping
        length, per_block, blocks, _, _ = entries
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
            # The block that was the last is full now, so readers can read it from the file.
            blocks.pop(before, None)
        return Entries(after, per_block, blocks)

    def _check_size(self) -> None:
        """Extend the file if another program has truncated it: a write to the mapping would raise SIGBUS."""
        size = self.capacity * self._entry.size
        if self._disk.size(self._file) < size:
            self._disk.truncate(self._file, size)
            self._allocated = 0

    def keep(self, entries: Entries, length: int) -> Entries:
        self._check_size()
        # Overwrite the dropped entries with zeros, by which readers in other processes find the end of the entries.
        start, end = length * self._entry.size, entries.length * self._entry.size
        assert self._mapping is not None
        self._mapping[start:end] = bytes(end - start)
        return self.begin(length)

    def reserve(self, length: int, more: int) -> None:
        """Allocate the disk blocks of `more` entries after the first `length`. Raises `OSError` if the disk is full.

        On a full disk, a write to a part of the mapping that is not allocated would raise SIGBUS and end the process.
        """
        size, end = self.capacity * self._entry.size, (length + more) * self._entry.size
        if self._allocated < end <= size:
            end = min(-(-end // mmap.PAGESIZE) * mmap.PAGESIZE, size)
            self._disk.allocate(self._file, self._allocated, end - self._allocated)
            self._allocated = end

    def trim(self, entries: Entries) -> Entries:
        """Cut the preallocated space after `entries` off the file, and drop the mapping of the file.

        Returns `entries` with `reopens` set, for readers to use from now on: the index may drop these entries,
        because it can read them again from the file.
        """
        self._disk.truncate(self._file, entries.length * self._entry.size)
        self._mapping = None
        entries.blocks.clear()
        return entries._replace(reopens=True)
