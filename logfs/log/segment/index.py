"""Sparse sorted indexes of fixed-width entries (kafka-storage 3): the offset index and the time index.

For example, the entry (35, 4130) in the offset index of the segment at offset 100 says that the batch at byte 4130 of
the .log file ends with offset 135. If the next entry is (70, 8260), a reader of offset 150 walks the batches from
byte 4130 on.

These two and the text index (`text_index`) are caches of the .log file (rule 3 of docs/architecture.md). The offset
and time indexes have no checksum, as in Kafka; recovery rebuilds them from the log. The index file of an active
segment is preallocated; sealing trims it to its entries.
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from logfs.errors import Corrupt
from logfs.log.disk.disk import Gone
from logfs.log.disk.named_file import NamedFile
from logfs.log.segment.index_entries import Entries, EntryCollector, IndexWriter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from logfs.log.disk.disk import Disk, File

# The greatest offset relative to the base offset of its segment.
MAX_RELATIVE_OFFSET = 2**31 - 1
# More bytes than the index of any segment needs. A longer file is not an index, and may not fit into memory.
_MOST_BYTES = 512 * 1024 * 1024


class SparseIndex(NamedFile):
    """Fixed-width entries in increasing order. A lookup finds the last entry at or before its target.

    A lookup needs no lock: it reads `_entries` once, and the only writer replaces `_entries` by one assignment. The
    file is opened at the first use, so that a store of many segments opens quickly, and is read block by block.

    `_writer` adds entries: to the file of an active segment after `preallocate`, or in memory after `collect`. A
    read-only store keeps collected entries in memory. An index without a `_writer` accepts no entries.

    A time index keeps space for one entry free (`reserved`): for the closing entry, which sealing the segment may add
    (kafka-storage 3.5).
    """

    entry: ClassVar[struct.Struct]
    # The first field of an entry, by which lookups search.
    first_field: ClassVar[struct.Struct]
    # The number of the field that has the offset of an entry, relative to the base offset.
    offset_field: ClassVar[int] = 0
    # In a read-only store: the function that opens the file; None to open the file by its path. The function returns
    # None if the file is missing.
    source: Callable[[], File | None] | None = None
    # Called when a reader has opened the file.
    on_open: Callable[[], object] = staticmethod(lambda: None)
    # Called when a reader has opened the file. The function returns an index made from the log if the file cannot be
    # right, else None.
    repair: Callable[[], SparseIndex | None] = staticmethod(lambda: None)
    # Whether another process is writing the file. If so, its space is preallocated, and the entries end before zeros.
    is_growing = False
    # The number of entries for which space is kept free until sealing adds the closing entry.
    reserved: ClassVar[int] = 0

    def __init__(self, disk: Disk, path: Path, base_offset: int) -> None:
        self.path = path
        self.base_offset = base_offset
        self._disk = disk
        # None until the next use opens the file.
        self._entries: Entries | None = None
        self._writer: EntryCollector | None = None
        # Whether the file may hold entries that a power cut would lose.
        self._is_dirty = False

    def __len__(self) -> int:
        return (self._entries or self._open()).length

    @property
    def size_bytes(self) -> int:
        """The size of the entries in bytes, without the preallocated space after them."""
        return len(self) * self.entry.size

    @property
    def is_full(self) -> bool:
        """Whether no further entry fits outside the `reserved` space.

        A full offset or time index rolls the segment (kafka-storage 4.1).
        """
        return self.room <= 0

    @property
    def room(self) -> int:
        """How many more entries fit outside the `reserved` space; 0 or less if the index is full."""
        length = (self._entries or self._open()).length
        capacity = length if self._writer is None else self._writer.capacity
        return capacity - length - self.reserved

    def exists(self) -> bool:
        """Whether the index has a file on the disk."""
        return self._disk.exists(self.path) if self.source is None else self.source() is not None

    def to_bytes(self) -> bytes:
        """Return the bytes of all entries in the format of the file, without the preallocated space after them."""
        entries = self._entries or self._open()
        return entries.blocks.read(entries.length * self.entry.size)

    def file_bytes(self) -> bytes:
        """Return the bytes of the file, unchecked and not repaired, without an incomplete entry at the end."""
        with self._disk.hold(self._disk.naming):
            file = self._find_file()
        if file is None:
            return b""
        data = self._disk.read(file, 0, self._disk.size(file))
        return bytes(data[: len(data) - len(data) % self.entry.size])

    def preallocate(self, max_bytes: int) -> None:
        """Make space for the entries of an active segment, filled with zeros.

        The file gets at most `max_bytes`, but always enough for its entries. A file without entries gets space for at
        least one, which sealing the segment may add. A read-only store collects the entries in memory instead,
        without a limit.
        """
        count = len(self)
        if self._disk.writable:
            self._begin_writing(count, max(max_bytes // self.entry.size, count, 1))
        else:
            self.collect(keep=True)

    def reset(self) -> None:
        """Drop all entries; in a writable store the file is emptied, or created."""
        self.collect()
        if self._disk.writable:
            self._begin_writing(0, 0)

    def _begin_writing(self, count: int, capacity: int) -> None:
        """Let new entries go to the file, with room for `capacity` entries; its first `count` entries stay."""
        file = self._file or self._disk.open(self.path, write=True, create=True)
        self._is_dirty = True
        writer = self._writer = IndexWriter(self._disk, file, self.entry, capacity)
        self._entries = writer.begin(count)

    def collect(self, max_bytes: int | None = None, *, keep: bool = False) -> None:
        """Collect entries in memory from now on, until `save`. The file does not change.

        The present entries are dropped, unless `keep` is true. `max_bytes` limits the size of all entries; None means
        no limit.
        """
        data = bytearray(self.to_bytes() if keep else b"")
        limit = MAX_RELATIVE_OFFSET if max_bytes is None else max(max_bytes // self.entry.size, 1)
        self._entries = Entries.held(data, self.entry)
        self._writer = EntryCollector(self.entry, limit)

    def save(self, *, sync: bool) -> None:
        """Replace the file with the collected entries; in a read-only store they stay in memory.

        If the process is killed, the file is the old one or the new one. With `sync`, this also holds after a power
        cut: use `sync` for a segment that recovery would not check again. Without `sync`, there is one exception: if
        the disk is full, the old file is overwritten in place, and a kill during this can leave new bytes followed by
        old bytes. The caller must sync the directory.
        """
        if self._disk.writable:
            assert self._file is None, "collect"
            self._disk.ensure_file(self.path, self.to_bytes(), sync=sync)
            self._is_dirty = not sync
            self._entries = self._writer = None

    def extend(self, packed: bytes) -> None:
        """Add the entries in `packed`, which are in the format of the file.

        Raises `ValueError` if there is no room for them, and `OSError` if the disk is full.
        """
        entries, writer = self._entries or self._open(), self._writer
        if writer is None or len(packed) > (writer.capacity - entries.length) * self.entry.size:
            raise ValueError(f"{self.path}: the index is full with {entries.length} entries")
        self._entries = writer.add(entries, packed)
        # Set after the write, so that the index is dirty again if a flush in another thread has missed these entries.
        self._is_dirty |= isinstance(writer, IndexWriter)

    def keep(self, count: int) -> None:
        """Drop all but the first `count` entries. In a file, zeros fill the space of the dropped ones."""
        entries = self._entries or self._open()
        if count >= entries.length:
            return
        if self._writer is None:
            self.preallocate(0)
        writer = self._writer
        assert writer is not None
        self._entries = writer.keep(entries, count)
        self._is_dirty |= isinstance(writer, IndexWriter)

    def take_entries(self, data: bytes) -> None:
        """Use the entries in `data`, in the format of the file, in place of those in the file. Writes nothing."""
        self._entries = Entries.held(data, self.entry)

    def take_file(self, file: File, count: int) -> None:
        """In a read-only store, use the first `count` entries of the open `file` in place of the index's own file."""
        self._entries = Entries.of_file(self._disk, file, self.entry, count)

    def recount(self) -> None:
        """Count the entries again in a file to which another process appends, and forget the bytes read so far."""
        file = self._file
        if file is not None:
            self.read_again(self._written(file))

    def read_again(self, count: int | None = None) -> None:
        """Forget the bytes read from a file that has changed.

        The file now has `count` entries; None means as many as before.
        """
        before = self._entries
        if before is not None and before.blocks.file is not None:
            length = before.length if count is None else count
            again = Entries.of_file(self._disk, before.blocks.file, self.entry, length)
            self._entries = again._replace(has_rest=before.has_rest, reopens=before.reopens)

    def _written(self, file: File) -> int:
        """Return the number of entries in a file that may be preallocated: zeros follow the last entry.

        No entry is all zeros, except that of a time index for the timestamp 0 at the segment's base offset.
        """
        width = self.entry.size
        return bisect_left(
            range(self._disk.size(file) // width),
            True,
            key=lambda number: not any(self._disk.read(file, number * width, width)),
        )

    def reserve(self) -> None:
        """Allocate the disk block that the next entry needs. Raises `OSError` if the disk is full."""
        if self._writer is not None:
            self._writer.reserve(len(self), 1)

    def trim(self) -> None:
        """Cut off the preallocated space after the entries. No entries can be added any more (kafka-storage 3.5)."""
        if isinstance(self._writer, IndexWriter):
            self._is_dirty = True
            self._entries = self._writer.trim(self._entries or self._open())
            self._writer = None

    def flush(self) -> None:
        """Make the entries durable."""
        if not self._is_dirty:
            return
        # Cleared before the sync: entries that are written meanwhile need another flush.
        self._is_dirty = False
        try:
            self._disk.sync(self._file or self._disk.open(self.path, write=True))
        except BaseException:
            self._is_dirty = True
            raise

    def close(self) -> None:
        """Release the file; the next use opens it again. In a read-only store, entries in memory are kept."""
        if self._disk.writable or self._file is not None:
            self._entries = self._writer = None

    def release(self) -> None:
        """Release the file that a reader has opened; the next use opens it again.

        Unlike `close`, this does nothing if the index is being written, or if its entries were set by `take_file` or
        `take_entries`.
        """
        entries = self._entries
        if entries is not None and entries.reopens:
            self._entries = None

    def check_sane(self) -> None:
        """Raise `Corrupt` if the file is longer than 512 MiB, or does not hold a whole number of entries.

        As in Kafka (kafka-storage 3.8), an offset or time index is also corrupt if the offset of its last entry is
        below the segment's base offset, and a time index if its last timestamp is below its first.
        """
        # Prefer the open file, because its name may have been removed.
        file = self._file or self._find_file()
        size = self._disk.size(file) if file else 0
        if size % self.entry.size:
            width = self.entry.size
            raise Corrupt(
                f"{self.path}: its size is not a multiple of {width} bytes; run 'logfs reindex'"
            )
        if size > _MOST_BYTES:
            raise Corrupt(
                f"{self.path}: is {size} bytes, but an index has at most {_MOST_BYTES}; run 'logfs reindex'"
            )

    def _check_last_offset(self) -> None:
        if len(self) and self._get(len(self) - 1)[self.offset_field] < 0:
            raise Corrupt(
                f"{self.path}: the last offset is below the segment's base offset; run 'logfs reindex'"
            )

    def truncate(self, offset: int) -> None:
        """Drop the entries whose offset is `offset` or higher (kafka-storage 3.7)."""
        relative = offset - self.base_offset
        self.keep(
            bisect_left(range(len(self)), relative, key=lambda i: self._get(i)[self.offset_field])
        )

    @property
    def _file(self) -> File | None:
        """The file that the entries are read from; None if it is not open, or if they are in memory."""
        entries = self._entries
        return None if entries is None else entries.blocks.file

    def _open(self) -> Entries:
        """Open the file and return its entries. Raises `OSError`, and `WouldBlock` in a thread that must not wait."""
        self._open_file()
        try:
            better = self.repair()
        except BaseException:
            # After an error, such as `WouldBlock`, the next use must call `repair` again.
            self._entries = None
            raise
        if better is not None:
            self._entries = None if self._disk.writable else better._entries
        # Open the file again: a repair replaces the files of both the offset and the time index.
        entries = self._open_file()
        self.on_open()
        return entries

    def _open_file(self) -> Entries:
        # Check again under the lock: a reading thread must not replace the entries of a file that an appending thread
        # has opened and preallocated since.
        with self._disk.hold(self._disk.naming):
            if self._entries is None:
                self._entries = self._entries_of_file()
            return self._entries

    def _entries_of_file(self) -> Entries:
        file, width = self._find_file(), self.entry.size
        if file is None:
            return Entries.held(b"", self.entry)
        size = self._disk.size(file)
        if size > _MOST_BYTES and not self.is_growing:
            size = 0
        # Preallocated zeros may follow the entries if another process writes the log, even in a sealed segment: after
        # a roll, that process may not have trimmed the file yet.
        may_have_zeros = self.is_growing or self.source is not None
        count = self._written(file) if may_have_zeros else size // width
        entries = Entries.of_file(self._disk, file, self.entry, count)
        return entries._replace(has_rest=bool(size % width), reopens=True)

    def _find_file(self) -> File | None:
        if self.source is not None:
            return self.source()
        if not self.exists():
            return None
        return self._disk.open(self.path, write=self._disk.writable)

    def _get(self, number: int) -> tuple[int, ...]:
        width = self.entry.size
        while True:
            entries = self._entries or self._open()
            length, per_block, blocks, _, _ = entries
            if number >= length:
                raise self._cut()
            try:
                return self.entry.unpack_from(
                    blocks[number // per_block], number % per_block * width
                )
            except struct.error:
                self._forget_cut(entries)

    def _cut(self) -> Gone:
        return Gone(f"{self.path}: was truncated while it was read; read again")

    def _forget_cut(self, entries: Entries) -> None:
        """Drop `entries`, because the file has become shorter; the next use opens the file again.

        Raises `Gone` if the store is read-only, or if the index is being written: in either case, the file must not
        be opened again here. `Reader.until_found` then repeats the read. If another thread has already replaced
        `entries`, this method does nothing.
        """
        if self._entries is entries:
            if not (self._disk.writable and entries.reopens):
                raise self._cut()
            self._entries = None

    def _last_up_to(self, value: int) -> tuple[int, tuple[int, ...]]:
        """Return (number, fields) of the last entry whose first field is at most `value`; (-1, ()) if none is."""
        while True:
            entries = self._entries or self._open()
            try:
                return self._search(entries, value)
            except struct.error:
                self._forget_cut(entries)

    def _search(self, entries: Entries, value: int) -> tuple[int, tuple[int, ...]]:
        """Return (number, fields) of the last of `entries` whose first field is at most `value`; (-1, ()) if none is.

        Raises `struct.error` if the file has become shorter.
        """
        # The bisections call no Python function, because such calls took most of a lookup's time.
        length, per_block, blocks, _, _ = entries
        if not length:
            return -1, ()
        unpack, width = self.first_field.unpack_from, self.entry.size
        first, after = 0, -(-length // per_block)
        while after - first > 1:
            middle = (first + after) // 2
            if unpack(blocks[middle])[0] <= value:
                first = middle
            else:
                after = middle
        block, start = blocks[first], first * per_block
        low, high = 0, length - start
        if high > per_block:
            high = per_block
        while low < high:
            middle = (low + high) // 2
            if unpack(block, middle * width)[0] <= value:
                low = middle + 1
            else:
                high = middle
        if not low:
            return start - 1, ()
        return start + low - 1, self.entry.unpack_from(block, (low - 1) * width)

    def _relative(self, offset: int) -> int:
        relative = offset - self.base_offset
        if not 0 <= relative <= MAX_RELATIVE_OFFSET:
            raise OverflowError(
                f"{self.path}: offset {offset} is not 0 to 2^31 - 1 above the segment's base offset"
            )
        return relative


class OffsetEntry(NamedTuple):
    """An offset index entry: the batch at `position`, or a later batch of the same append, ends with `offset`."""

    offset: int
    position: int


class OffsetIndex(SparseIndex):
    """The offset index: the position in a segment's file from which to search for an offset (kafka-storage 3.1)."""

    entry = struct.Struct(">ii")
    first_field = struct.Struct(">i")

    def append(self, offset: int, position: int) -> None:
        """Add an entry for the batch that starts at `position` and whose last offset is `offset`.

        Raises `ValueError` if the index is full, or if `offset` is not above that of the last entry; `OverflowError`
        for an offset that the segment cannot have; and `OSError` if the disk is full.
        """
        relative, count = self._relative(offset), len(self)
        if count and relative <= self._get(count - 1)[0]:
            raise ValueError(f"{self.path}: offset {offset} is not beyond that of the last entry")
        self.extend(self.entry.pack(relative, position))

    def append_all(self, entries: Iterable[tuple[int, int]]) -> None:
        """Add an entry for each (offset, position). The offsets must be ascending, which is not checked."""
        pack, base = self.entry.pack, self.base_offset
        self.extend(b"".join([pack(offset - base, position) for offset, position in entries]))

    def can_be(self, next_offset: int, log_bytes: int) -> bool:
        """Whether the file size and the last entry are possible for the offset index of a sealed segment.

        The .log file of the segment has `log_bytes` bytes, and all its offsets are below `next_offset`. No entry
        stands for the first batch, so an entry of zeros is invalid (kafka-storage 3.1).
        """
        entries = self._entries or self._open()
        if entries.has_rest:
            return False
        if not entries.length:
            return True
        last = self[entries.length - 1]
        return self.base_offset <= last.offset < next_offset and 0 < last.position < log_bytes

    def lookup(self, offset: int) -> OffsetEntry:
        """Return the last entry at or before `offset`; (base offset, 0) if there is none."""
        _, fields = self._last_up_to(offset - self.base_offset)
        relative, position = fields or (0, 0)
        return OffsetEntry(self.base_offset + relative, position)

    def entry_from(self, position: int) -> OffsetEntry | None:
        """Return the first entry whose batch begins at or after `position`; None if there is none."""
        number = bisect_left(range(len(self)), position, key=lambda number: self[number].position)
        return self[number] if number < len(self) else None

    def check_sane(self) -> None:
        super().check_sane()
        self._check_last_offset()

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
    """The time index: the offset from which to search for a timestamp (kafka-storage 3.2)."""

    entry = struct.Struct(">qi")
    first_field = struct.Struct(">q")
    offset_field = 1
    # Space for the closing entry (kafka-storage 3.5).
    reserved = 1

    def can_be(self, next_offset: int, first_batch_timestamp: int) -> bool:
        """Whether the file size and the last entry are possible for the time index of a sealed segment.

        All offsets of the segment are below `next_offset`. `first_batch_timestamp` is the greatest timestamp of its
        first batch (ms), -1 if there is none. If the segment has timestamps, the index has at least one entry: the
        closing entry, which is written when the segment is sealed (kafka-storage 3.5).
        """
        entries = self._entries or self._open()
        if entries.has_rest:
            return False
        if not entries.length:
            return first_batch_timestamp < 0
        last = self[entries.length - 1]
        if (last.timestamp, last.offset) == (0, self.base_offset):
            # An entry of zeros is right only if the segment's first timestamp is 0 (1970).
            return entries.length == 1 and first_batch_timestamp == 0
        return self.base_offset <= last.offset < next_offset

    def maybe_append(self, timestamp: int, offset: int, *, closing: bool = False) -> None:
        """Add an entry if `timestamp` (ms) is above that of the last entry; do nothing if the two are equal.

        `closing` is True for the closing entry, which sealing the segment adds in the space that is kept free for it
        (`reserved`). Raises `ValueError` if there is no space for the entry, or if `timestamp` or `offset` is below
        that of the last entry.
        """
        if not closing and self.is_full:
            raise ValueError(f"{self.path}: the index is full with {len(self)} entries")
        last = self.last
        if offset < last.offset and len(self):
            raise ValueError(f"{self.path}: offset {offset} is below that of the last entry")
        if timestamp < last.timestamp and len(self):
            raise ValueError(f"{self.path}: timestamp {timestamp} is below that of the last entry")
        if timestamp > last.timestamp:
            self.extend(self.entry.pack(timestamp, self._relative(offset)))

    def append_all(self, entries: Iterable[TimeEntry]) -> None:
        """Add entries. Their timestamps must be ascending, and above that of the last entry: this is not checked."""
        pack, base = self.entry.pack, self.base_offset
        self.extend(b"".join([pack(timestamp, offset - base) for timestamp, offset in entries]))

    @property
    def last(self) -> TimeEntry:
        """The last entry; (-1, base offset) if there is none."""
        count = len(self)
        return self[count - 1] if count else TimeEntry(-1, self.base_offset)

    def lookup(self, timestamp: int) -> TimeEntry:
        """Return the last entry at or before `timestamp`; (-1, base offset) if there is none."""
        _, fields = self._last_up_to(timestamp)
        found, relative = fields or (-1, 0)
        return TimeEntry(found, self.base_offset + relative)

    def check_sane(self) -> None:
        super().check_sane()
        if len(self) and self.last.timestamp < self[0].timestamp:
            raise Corrupt(
                f"{self.path}: the last timestamp is below the first; run 'logfs reindex'"
            )
        self._check_last_offset()

    def __getitem__(self, number: int) -> TimeEntry:
        timestamp, relative = self._get(number)
        return TimeEntry(timestamp, self.base_offset + relative)

    def __iter__(self) -> Iterator[TimeEntry]:
        return (self[number] for number in range(len(self)))
