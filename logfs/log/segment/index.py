"""Sparse sorted indexes of fixed-width entries (kafka-storage 3): offset and time; `text_index` has the third.

All three are caches of the .log file (rule 3). Kafka's two carry no checksum; recovery rebuilds them from the log.
The index of an active segment is a preallocated, memory-mapped file; sealing trims it to its entries.
"""

from __future__ import annotations

import mmap
import struct
from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from logfs.errors import Corrupt
from logfs.log.disk.disk import Gone
from logfs.log.disk.named_file import NamedFile

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from logfs.log.disk.disk import Disk, File

# The greatest offset relative to the base offset of its segment.
MAX_RELATIVE_OFFSET = 2**31 - 1
# More than the index of any segment needs. A longer file is not an index, and may not fit into memory.
_MOST_BYTES = 512 * 1024 * 1024


class SparseIndex(NamedFile):
    """Fixed-width entries in increasing order, so that a lookup finds the last one at or before its target.

    There is one writer. Any thread may look up: an entry is in place before it is counted, and a mapping that a
    lookup still uses is left to the garbage collector. The file is opened at the first use, so that a store of many
    segments opens quickly.

    A read-only store maps nothing, because the writer of the file may cut it, and access to a mapping beyond the end
    of its file raises SIGBUS. It reads each entry when it needs it. Entries live in memory if there is no file, or if
    a read-only store makes entries of its own.
    """

    entry: ClassVar[struct.Struct]
    # The first field of an entry, by which lookups search.
    first_field: ClassVar[struct.Struct]
    # For a read-only store: opens the file, in place of opening it by its path. Returns None if the file is missing.
    source: Callable[[], File | None] | None = None
    # Called when a reader has opened the file.
    on_open: Callable[[], object] = staticmethod(lambda: None)
    # Called when a reader has opened the file: returns an index made from the log if this one cannot be right.
    repair: Callable[[], SparseIndex | None] = staticmethod(lambda: None)
    # Whether another process is writing the file. Its space is preallocated: the entries end where zeros begin.
    is_growing = False

    def __init__(self, disk: Disk, path: Path, base_offset: int) -> None:
        self.path = path
        self.base_offset = base_offset
        self._disk = disk
        self._file: File | None = None
        self._data: mmap.mmap | bytearray | None = None
        self._count = 0
        self._allocated = 0
        self._is_taken = False
        # The most entries that may be collected in memory.
        self._limit = MAX_RELATIVE_OFFSET
        # Whether the file may hold entries that a power cut would lose.
        self._is_dirty = False
        # Whether the file's size is not a multiple of the entry size.
        self._has_rest = False

    def __len__(self) -> int:
        self._open()
        return self._count

    @property
    def size_bytes(self) -> int:
        """The size of the entries in bytes, without the preallocated space after them."""
        return len(self) * self.entry.size

    @property
    def capacity(self) -> int:
        """The greatest number of entries that the index can have.

        For a mapped file, it is the number for which the file has space; otherwise the limit set by `collect`.
        """
        self._open()
        if self._data is None or self._is_in_memory:
            return self._limit
        return len(self._data) // self.entry.size

    @property
    def _is_in_memory(self) -> bool:
        return self._file is None and not isinstance(self._data, mmap.mmap)

    @property
    def is_full(self) -> bool:
        """Whether no further entry fits, which rolls the segment (kafka-storage 4.1)."""
        return self.room <= 0

    @property
    def room(self) -> int:
        """How many further entries fit."""
        return self.capacity - len(self)

    def exists(self) -> bool:
        """Whether the index has a file on the disk."""
        return self._disk.exists(self.path) if self.source is None else self.source() is not None

    def to_bytes(self) -> bytes:
        """Return the bytes of all entries in the format of the file, without the preallocated space after them."""
        size = self.size_bytes
        file, data = self._entries()
        if data is not None:
            return bytes(data[:size])
        return b"" if file is None else bytes(self._disk.read(file, 0, size))

    def file_bytes(self) -> bytes:
        """Return the bytes of the file without an incomplete entry at its end. They are not checked or repaired."""
        with self._disk.hold(self._disk.naming):
            file = self._find_file()
        if file is None:
            return b""
        data = self._disk.read(file, 0, self._disk.size(file))
        return bytes(data[: len(data) - len(data) % self.entry.size])

    def preallocate(self, max_bytes: int) -> None:
        """Make space for the entries of an active segment: the file grows to at most `max_bytes`, filled with zeros.

        A read-only store copies the entries into memory instead, which has no such limit.
        """
        self._open()
        if not self._disk.writable:
            self.copy()
            return
        room = max_bytes - max_bytes % self.entry.size
        room = max(room, self._count * self.entry.size)
        self._map(room)

    def reset(self) -> None:
        """Drop all entries; in a writable store the file is emptied, or created."""
        self._count = 0
        if self._disk.writable:
            self._map(0)
        else:
            self._file, self._data = None, bytearray()

    def collect(self, max_bytes: int | None = None, *, keep: bool = False) -> None:
        """Collect entries in memory from now on, until `save`. The file does not change.

        The entries so far are dropped unless `keep`. At most `max_bytes` of entries fit.
        """
        data = bytearray(self.to_bytes()) if keep else bytearray()
        self._limit = MAX_RELATIVE_OFFSET if max_bytes is None else max_bytes // self.entry.size
        self._count = len(data) // self.entry.size
        # This order matters: see `_entries`.
        self._data = data
        self._file = None

    def save(self, *, sync: bool) -> None:
        """Replace the file with the collected entries; in a read-only store they stay in memory.

        A killed process leaves the old file or the new one. With `sync`, a power cut does so too, which is needed
        for a segment that recovery would not check again. The caller syncs the directory.
        """
        if self._disk.writable:
            assert isinstance(self._data, bytearray), "collect"
            self._disk.ensure_file(self.path, bytes(self._data), sync=sync)
            self._is_dirty = not sync
            self._limit = MAX_RELATIVE_OFFSET
            self._data = None

    def extend(self, entries: bytes) -> None:
        """Add packed entries. Raises `ValueError` if there is no room for them, and `OSError` if the disk is full."""
        self._open()
        count = len(entries) // self.entry.size
        if count > self.capacity - self._count:
            raise ValueError(f"{self.path}: the index is full with {self._count} entries")
        data, at = self._data, self._count * self.entry.size
        if isinstance(data, mmap.mmap):
            self.reserve(count)
            self._is_dirty = True
            data[at : at + len(entries)] = entries
        else:
            assert data is not None, "an index is opened into memory for appends"
            data[at:] = entries
        self._count += count

    def keep(self, count: int) -> None:
        """Drop all but the first `count` entries. In a mapped file, zeros fill the space of the dropped ones."""
        self._open()
        before, self._count = self._count, min(count, self._count)
        if isinstance(self._data, mmap.mmap):
            # Readers in other processes find the end of the entries by the zeros.
            start, end = self._count * self.entry.size, before * self.entry.size
            self._data[start:end] = bytes(end - start)
            self._is_dirty = True

    def copy(self) -> None:
        """In a read-only store, copy the file's whole entries into memory, where no other process can cut them."""
        self._open()
        if self._data is None:
            self._data = bytearray(self.to_bytes())
            self._count = len(self._data) // self.entry.size
            self._file = None

    def take_entries(self, data: bytes) -> None:
        """Use the entries in `data`, in the format of the file, in place of those in the file. Writes nothing."""
        self._data, self._count = bytearray(data), len(data) // self.entry.size

    def take_file(self, file: File, count: int) -> None:
        """In a read-only store, use the first `count` entries of the open `file` in place of the index's own file."""
        self._count = min(self._count, count)
        self._file = file
        self._is_taken = True
        self._data = None
        self._count = count

    def recount(self) -> None:
        """Update the number of entries of a file to which another process appends."""
        file = self._file
        if file is not None:
            self._count = self._written(file)

    def _written(self, file: File) -> int:
        """Return the number of entries before the first one of zeros.

        An entry stands for a batch after the first one, so it is never all zero.
        """
        width = self.entry.size
        return bisect_left(
            range(self._disk.size(file) // width),
            True,
            key=lambda number: not any(self._disk.read(file, number * width, width)),
        )

    def reserve(self, count: int = 1) -> None:
        """Allocate the disk blocks that the next `count` entries need. Raises `OSError` if the disk is full.

        On a full disk, storing the entry into an unallocated part of the mapping would raise SIGBUS and end the
        process.
        """
        self._open()
        end = (self._count + count) * self.entry.size
        if isinstance(self._data, mmap.mmap) and self._allocated < end <= len(self._data):
            end = min(-(-end // mmap.PAGESIZE) * mmap.PAGESIZE, len(self._data))
            self._disk.allocate(self._writable_file(), self._allocated, end - self._allocated)
            self._allocated = end

    def trim(self) -> None:
        """Cut the preallocated space after the entries off the file (kafka-storage 3.5)."""
        self._open()
        # A flush that was running when the file was enlarged may have released its descriptor.
        has_preallocated_space = (
            isinstance(self._data, mmap.mmap) and len(self._data) > self._count * self.entry.size
        )
        if self._disk.writable and (self._file is not None or has_preallocated_space):
            self._map(self._count * self.entry.size)

    def flush(self) -> None:
        """Make the entries durable. If the file is mapped, its descriptor is closed then; the mapping stays."""
        if not self._is_dirty:
            return
        file, data = self._file, self._data
        # Cleared first: entries that are written meanwhile need the next flush.
        self._is_dirty = False
        try:
            if isinstance(data, mmap.mmap):
                self._disk.sync_map(data)
            self._disk.sync(file or self._disk.open(self.path, write=True))
        except BaseException:
            self._is_dirty = True
            raise
        # Keep the descriptor if the index was made ready for appends meanwhile.
        if isinstance(data, mmap.mmap) and self._data is data:
            self._file = None

    def close(self) -> None:
        """Release the file; the next use opens it again. In a read-only store, entries only in memory stay."""
        if self._disk.writable or self._file is not None:
            self._file, self._data, self._count, self._allocated = None, None, 0, 0

    def release(self) -> None:
        """Release the file of an index that is not written any more. Readers open the file again when they need it.

        A file that was set by `take_file` stays.
        """
        if not self._is_taken and (self._file is not None or isinstance(self._data, mmap.mmap)):
            # This order matters: see `_entries`. The number of entries does not change.
            self._file = None
            self._data = None

    def check_sane(self) -> None:
        """Raise `Corrupt` if the file is too long, or does not hold a whole number of entries (kafka-storage 3.8).

        As in Kafka, the offset index and the time index check their last entry too.
        """
        # An open file may have lost its name.
        file = self._file or self._find_file()
        size = self._disk.size(file) if file else 0
        if size % self.entry.size:
            raise Corrupt(f"{self.path}: not a whole number of {self.entry.size}-byte entries")
        if size > _MOST_BYTES:
            raise Corrupt(
                f"{self.path}: is {size} bytes long, but an index has at most {_MOST_BYTES}"
            )

    @property
    def _is_open(self) -> bool:
        return self._data is not None or (self._file is not None and not self._disk.writable)

    def _open(self) -> None:
        if self._is_open:
            return
        self._open_file()
        try:
            better = self.repair()
        except BaseException:
            # `WouldBlock` or another error: the next use calls `repair` again.
            self._file = self._data = None
            raise
        if better is None:
            self.on_open()
            return
        self._file = self._data = None
        if self._disk.writable:
            self._open_file()
            self.on_open()
        else:
            self._data, self._count = better._data, better._count

    def _open_file(self) -> None:
        # Under the lock, and once: a thread that reads must not replace what a thread that appends has opened and
        # made space in since.
        with self._disk.hold(self._disk.naming):
            if self._is_open:
                return
            file = self._find_file()
            if file is None:
                self._count, self._has_rest, self._data = 0, False, bytearray()
                return
            size = self._disk.size(file)
            if size > _MOST_BYTES and not self.is_growing:
                size = 0
            self._has_rest = bool(size % self.entry.size)
            if not self._disk.writable:
                # A writer that has just rolled may not have trimmed the file yet.
                has_preallocated_space = self.is_growing or self.source is not None
                self._count = (
                    self._written(file) if has_preallocated_space else size // self.entry.size
                )
                self._file = file
            else:
                self._count = size // self.entry.size
                # A writer opens the file again to make space. The descriptor of an empty file is kept, or the index
                # would count as one in memory.
                self._file = None if size else file
                self._data = self._disk.map(file, size) if size else bytearray()

    def _entries(self) -> tuple[File | None, mmap.mmap | bytearray | None]:
        """Return the file and the entries in memory, at least one of them; they are opened again if released."""
        while True:
            # This order matters: a thread that takes the entries into memory does so before it releases the file.
            file = self._file
            data = self._data
            if file is not None or data is not None:
                return file, data
            self._open()

    def _find_file(self) -> File | None:
        if self.source is not None:
            return self.source()
        if not self.exists():
            return None
        return self._disk.open(self.path, write=self._disk.writable)

    def _writable_file(self) -> File:
        file = self._file
        if file is None:
            file = self._file = self._disk.open(self.path, write=True, create=True)
        return file

    def _map(self, size: int) -> None:
        file = self._writable_file()
        self._is_dirty = True
        if self._disk.size(file) != size:
            self._disk.truncate(file, size)
        self._data = self._disk.map(file, size) if size else bytearray()
        self._allocated = 0

    def _append(self, *fields: int) -> None:
        data = self._data
        assert data is not None
        at = self._count * self.entry.size
        if isinstance(data, bytearray):
            if self._file is not None or self._count >= self._limit:
                raise ValueError(f"{self.path}: the index is full with {self._count} entries")
            data[at:] = self.entry.pack(*fields)
        elif at + self.entry.size > len(data):
            raise ValueError(f"{self.path}: the index is full with {self._count} entries")
        else:
            if at + self.entry.size > self._allocated:
                self.reserve()
            self._is_dirty = True
            self.entry.pack_into(data, at, *fields)
        self._count += 1

    def _get(self, number: int) -> tuple[int, ...]:
        at = number * self.entry.size
        data = self._data
        if data is not None:
            return self.entry.unpack_from(data, at)
        file, data = self._entries()
        if data is not None:
            return self.entry.unpack_from(data, at)
        assert file is not None
        read = self._disk.read(file, at, self.entry.size)
        if len(read) < self.entry.size:
            raise Gone(f"{self.path}: was truncated while it was read; read again")
        return self.entry.unpack(read)

    def _count_up_to(self, value: int) -> int:
        """Return the number of entries whose first field is at most `value`."""
        self._open()
        data = self._data
        if data is None:
            return bisect_right(
                range(self._count), value, key=lambda n: SparseIndex._get(self, n)[0]
            )
        # A bisection that calls no function of Python: most of a lookup's time went there.
        unpack, width = self.first_field.unpack_from, self.entry.size
        low, high = 0, self._count
        while low < high:
            middle = (low + high) // 2
            if unpack(data, middle * width)[0] <= value:
                low = middle + 1
            else:
                high = middle
        return low

    def _relative(self, offset: int) -> int:
        relative = offset - self.base_offset
        if not 0 <= relative <= MAX_RELATIVE_OFFSET:
            raise OverflowError(f"{self.path}: offset {offset} is out of the segment's range")
        return relative


class OffsetEntry(NamedTuple):
    """An offset index entry: the batch whose last offset is `offset` starts at `position`."""

    offset: int
    position: int


class OffsetIndex(SparseIndex):
    """The offset index: where in a segment's file to start looking for an offset (kafka-storage 3.1)."""

    entry = struct.Struct(">ii")
    first_field = struct.Struct(">i")

    def append(self, offset: int, position: int) -> None:
        """Add an entry for the batch that starts at `position` and whose last offset is `offset`.

        Raises `ValueError` if the index is full, or if `offset` is not above that of the last entry.
        """
        self._open()
        relative = self._relative(offset)
        if self._count and relative <= self._get(self._count - 1)[0]:
            raise ValueError(f"{self.path}: offset {offset} is not beyond the last entry's")
        self._append(relative, position)

    def append_all(self, entries: Iterable[tuple[int, int]]) -> None:
        """Add an entry for each (offset, position), as `append` does; their offsets are ascending."""
        pack, base = self.entry.pack, self.base_offset
        self.extend(b"".join([pack(offset - base, position) for offset, position in entries]))

    def can_be(self, next_offset: int, log_bytes: int) -> bool:
        """Whether this may be the index of a sealed segment whose .log file has `log_bytes` bytes.

        All offsets of the segment are below `next_offset`. Checks only the file size and the last entry. No
        entry stands for the first batch, so an entry of zeros is invalid (kafka-storage 3.1).
        """
        if self._has_rest:
            return False
        if not self._count:
            return True
        last = self[self._count - 1]
        return self.base_offset <= last.offset < next_offset and 0 < last.position < log_bytes

    def lookup(self, offset: int) -> OffsetEntry:
        """Return the last entry at or before `offset`; (base offset, 0) if there is none."""
        number = self._count_up_to(offset - self.base_offset)
        return self[number - 1] if number else OffsetEntry(self.base_offset, 0)

    def truncate(self, offset: int) -> None:
        """Drop the entries whose offset is `offset` or higher (kafka-storage 3.7)."""
        self._open()
        relative = offset - self.base_offset
        self.keep(bisect_left(range(self._count), relative, key=lambda i: self._get(i)[0]))

    def check_sane(self) -> None:
        super().check_sane()
        if len(self) and self[len(self) - 1].offset < self.base_offset:
            raise Corrupt(
                f"{self.path}: the last offset is below the segment's base offset; run 'logfs reindex'"
            )

    def __getitem__(self, number: int) -> OffsetEntry:
        relative, position = self._get(number)
        return OffsetEntry(self.base_offset + relative, position)

    def __iter__(self) -> Iterator[OffsetEntry]:
        return (self[number] for number in range(len(self)))


class TimeEntry(NamedTuple):
    """A time index entry: every record up to `offset` has a timestamp of at most `timestamp` (ms)."""

    timestamp: int
    offset: int


class TimeIndex(SparseIndex):
    """The time index: from which offset on to look for a timestamp (kafka-storage 3.2)."""

    entry = struct.Struct(">qi")
    first_field = struct.Struct(">q")

    def can_be(self, next_offset: int, first_timestamp: int) -> bool:
        """Whether this may be the index of a sealed segment whose offsets are all below `next_offset`.

        `first_timestamp` is the greatest timestamp of the segment's first batch (ms), -1 if there is none. Checks
        only the file size and the last entry. If the segment has timestamps, the index has at least one entry: the
        closing entry, which is written when the segment is sealed (kafka-storage 3.5).
        """
        if self._has_rest:
            return False
        if not self._count:
            return first_timestamp < 0
        last = self[self._count - 1]
        if (last.timestamp, last.offset) == (0, self.base_offset):
            # An entry of zeros: only right if the segment begins in 1970.
            return self._count == 1 and first_timestamp == 0
        return self.base_offset <= last.offset < next_offset

    @property
    def room(self) -> int:
        """How many further entries fit beside the closing one, for which one slot is reserved (kafka-storage 3.5)."""
        return self.capacity - 1 - len(self)

    def maybe_append(self, timestamp: int, offset: int, *, closing: bool = False) -> None:
        """Add an entry if `timestamp` (ms) is above that of the last entry; do nothing if the two are equal.

        With `closing`, the entry may use the slot that is reserved for the closing entry. Raises `ValueError` if the
        index is full, or if `timestamp` or `offset` is below that of the last entry.
        """
        self._open()
        if not closing and self.is_full:
            raise ValueError(f"{self.path}: the index is full with {self._count} entries")
        last = self.last
        if self._count and offset < last.offset:
            raise ValueError(f"{self.path}: offset {offset} is below the last entry's")
        if self._count and timestamp < last.timestamp:
            raise ValueError(f"{self.path}: timestamp {timestamp} is below the last entry's")
        if timestamp > last.timestamp:
            self._append(timestamp, self._relative(offset))

    def append_all(self, entries: Iterable[TimeEntry]) -> None:
        """Add each of `entries` whose timestamp is above that of the entry before it; they are ascending."""
        pack, base, newest = self.entry.pack, self.base_offset, self.last.timestamp
        packed = []
        for timestamp, offset in entries:
            if timestamp > newest:
                packed.append(pack(timestamp, offset - base))
                newest = timestamp
        self.extend(b"".join(packed))

    @property
    def last(self) -> TimeEntry:
        """The last entry; (-1, base offset) if there is none."""
        self._open()
        return self[self._count - 1] if self._count else TimeEntry(-1, self.base_offset)

    def lookup(self, timestamp: int) -> TimeEntry:
        """Return the last entry at or before `timestamp`; (-1, base offset) if there is none."""
        number = self._count_up_to(timestamp)
        return self[number - 1] if number else TimeEntry(-1, self.base_offset)

    def truncate(self, offset: int) -> None:
        """Drop the entries whose offset is `offset` or higher."""
        self._open()
        relative = offset - self.base_offset
        self.keep(bisect_left(range(self._count), relative, key=lambda i: self._get(i)[1]))

    def check_sane(self) -> None:
        super().check_sane()
        if len(self) and self.last.timestamp < self[0].timestamp:
            raise Corrupt(
                f"{self.path}: the last timestamp is below the first; run 'logfs reindex'"
            )
        if len(self) and self.last.offset < self.base_offset:
            raise Corrupt(
                f"{self.path}: the last offset is below the segment's base offset; run 'logfs reindex'"
            )

    def __getitem__(self, number: int) -> TimeEntry:
        timestamp, relative = self._get(number)
        return TimeEntry(timestamp, self.base_offset + relative)

    def __iter__(self) -> Iterator[TimeEntry]:
        return (self[number] for number in range(len(self)))
