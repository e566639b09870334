"""A segment that another process writes, compacts and deletes, while this process reads it."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from logfs.errors import Corrupt
from logfs.format.base import names
from logfs.format.batches.batch import HEADER_SIZE, LENGTH_OVERHEAD, MAGIC, Batch, parse_header
from logfs.format.text.rendering import TextSize
from logfs.log.disk.disk import Gone
from logfs.log.segment import text_index_cache
from logfs.log.segment.batch_iterator import CHUNK_BYTES, Damage, Walk
from logfs.log.segment.index import TimeEntry
from logfs.log.segment.index_builder import rebuild_text, text_fits
from logfs.log.segment.segment import POINT_READ_BYTES, Segment
from logfs.log.segment.segment_end import UNMEASURED, SegmentEnd
from logfs.log.segment.segment_listing import open_by_identity
from logfs.log.segment.txn_index import TransactionIndex

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from logfs.format.batches.batch import Header
    from logfs.format.files.aborted_transactions import AbortedTransaction
    from logfs.log.disk.disk import Disk, File
    from logfs.log.segment.segment_listing import Files
    from logfs.log.segment.text_index import TextIndex

# Up to this many new bytes of a .log file are read batch by batch. If there are more, the offset index is used to
# skip most of them.
_STEP_BYTES = 64 * 1024
# The greatest int64: no offset and no timestamp is above it.
_LAST = 2**63 - 1
# The suffixes of the files of `Segment.indexes`, in the same order.
_SUFFIXES = (names.OFFSET_INDEX, names.TIME_INDEX, names.TEXT_INDEX)


class LiveSegment(Segment):
    """A segment of a read-only store, whose files are known by their identities (inodes) and not by their names.

    The last segment grows when `advance` is called, up to the end of the last whole batch. For example, if the file
    has two batches of 300 bytes, and then 100 bytes of a third batch, the segment ends at byte 600. An open file
    stays readable after it is renamed or deleted. Reading raises `Gone` if a file was deleted before it was opened,
    or if the .log file was cut.
    """

    def __init__(self, disk: Disk, directory: Path, base_offset: int) -> None:
        super().__init__(disk, directory, base_offset)
        # The identity (inode) of each file by suffix. Empty until `identify` is called: until then the files are
        # opened by their paths, and the transaction index counts as empty.
        self.identities: Files = {}
        self.last_timestamp = -1
        # Whether bytes of the .log file were cut off, and perhaps replaced: reads of the segment must then fail.
        self.is_lost = False
        self.txn_index: _LiveTxnIndex = _LiveTxnIndex(disk, self.txn_index.path)
        self._measured: SegmentEnd | None = None
        # The position and the header of the last batch. They show whether the file was cut and has grown again.
        self._last: tuple[int, bytes] | None = None
        # The size (bytes) and mtime (ns) that a sealed .log file had when `note_log` was called.
        self._noted: tuple[int, int] | None = None
        # The position from which the .log file was searched for a batch without success, and the file's size at that
        # time. None if there was no such search.
        self._doubt: tuple[int, int] | None = None
        # The error because of which nothing of the segment can be read, not even where it ends. Always None for a
        # segment that is not in a bucket.
        self.unreadable: Corrupt | None = None

    def identify(self, files: Files) -> None:
        before, self.identities = self.identities, files
        if files == before:
            return
        if before.get(names.TXN_INDEX) != files.get(names.TXN_INDEX) or not before:
            self.txn_index.follow(files.get(names.TXN_INDEX))
        if before:
            # Since the last call, Kafka may have created an index (it does so with the first entry) or replaced it.
            # Keep the text index: it is not an index of Kafka, and this process maintains it.
            is_growing = self.offset_index.is_growing
            offset_index, time_index, _ = self.new_indexes()
            if before.get(names.OFFSET_INDEX) != files.get(names.OFFSET_INDEX):
                self.offset_index = offset_index
            if before.get(names.TIME_INDEX) != files.get(names.TIME_INDEX):
                self.time_index = time_index
            self.offset_index.is_growing = self.time_index.is_growing = is_growing
            self._watch_indexes()
        for index, suffix in zip(self.indexes, _SUFFIXES, strict=True):
            if index.source is None:
                identity = files.get(suffix)
                # Only the text index may be deleted without its segment: only logfs uses it, and can rebuild it.
                may_go = index is self.text_index
                index.source = partial(_open_index, self._disk, index.path, identity, may_go=may_go)

    def is_same(self, files: Files) -> bool:
        """Whether the .log file in `files` (identities by suffix) is the one that this segment reads."""
        identity, file = files[names.LOG], self._file
        if not self.identities and file is not None:
            return self._disk.stat_file(file).identity == identity
        return self.identities.get(names.LOG, identity) == identity

    def _size_of_file(self) -> int:
        if self._file is None:
            with suppress(FileNotFoundError):
                found = self._disk.stat(self.path)
                if found.identity == self.identities.get(names.LOG):
                    return found.size_bytes
        return self._disk.size(self.file)

    def _open(self) -> File:
        return open_by_identity(self._disk, self.path, self.identities.get(names.LOG))

    def mtime_ms(self) -> int:
        try:
            return self._disk.stat_file(self.file).mtime_ns // 1_000_000
        except Gone:
            return 0

    def read(self, position: int, size: int) -> memoryview:
        if self.unreadable is not None:
            unknown = self.base_offset, self.next_offset
            raise Damage(0, self.size_bytes, *unknown, str(self.unreadable)).error(self.path)
        wanted = max(min(size, self.size_bytes - position), 0)
        data = self._disk.read(self.file, position, wanted)
        if self.is_lost or len(data) < wanted:
            raise self._cut()
        return data

    def _cut(self) -> Gone:
        return Gone(f"{self.path}: was truncated while it was read; read again")

    # The end of a growing segment.

    def follow_end(self) -> None:
        """Find the end of the segment in its files. In a large file, begin the search at an index entry near the end.

        In a bucket, the end is taken from the metadata of the segment, if there is any. If the end cannot be found
        because the segment is corrupt in the bucket, the segment counts as one offset long. Readers then get an error
        for this offset; otherwise they would take the start of the segment for the log end.
        """
        self._end = SegmentEnd(0, self.base_offset, UNMEASURED)
        if not self._disk.is_remote:
            self.advance()
            return
        try:
            self._take_stored_end()
        except Corrupt as error:
            self.unreadable = error
            self._end = SegmentEnd(1, self.base_offset + 1, TextSize(1, 1, 1))

    def _take_stored_end(self) -> None:
        described = self._disk.described_end(self.file)
        size = self._disk.size(self.file)
        if described is not None:
            next_offset, self.last_timestamp = described
            self._end = SegmentEnd(size, next_offset, UNMEASURED)
            return
        self._advance()
        if self.damaged and self.damaged[-1].end == size:
            self._end = SegmentEnd(size, self.next_offset + 1, UNMEASURED)

    def walk(
        self,
        position: int = 0,
        end: int | None = None,
        chunk_bytes: int = CHUNK_BYTES,
        first_offset: int | None = None,
        *,
        is_end_known: bool = True,
    ) -> Iterator[tuple[int, Batch] | Damage]:
        walked = super().walk(position, end, chunk_bytes, first_offset, is_end_known=is_end_known)
        for found in walked:
            if not is_end_known and not isinstance(found, Damage):
                # The caller looks for the end of the segment: note the last batch, after which `advance` goes on.
                self._last = found[0], bytes(found[1].data[:HEADER_SIZE])
            yield found

    def advance(self) -> bool:
        """Move the end of the segment past the whole batches appended since the last call. Return whether it moved.

        Raises `Gone` if the .log file was cut below the known end: the caller must then replace this segment. In a
        bucket, where objects do not grow, the end moves only if the segment was unreadable and is readable now.
        """
        if not self._disk.is_remote:
            return self._advance()
        if self.unreadable is None:
            return False
        self.unreadable = None
        self.follow_end()
        return self.unreadable is None

    def _advance(self) -> bool:
        segment_end = self._end
        assert segment_end is not None
        for index in self.indexes:
            # An index in a bucket is complete, and does not grow.
            index.is_growing = not self._disk.is_remote
            index.recount()
        size = self._disk.size(self.file)
        position, expected, last = segment_end.size_bytes, segment_end.next_offset, self._last
        max_entry = self.max_entry
        if size - position > _STEP_BYTES:
            position, expected = max((position, expected), self._start_before(_LAST, size))
        damaged: list[Damage] = []
        for found in self._new_batches(position, expected, size):
            if isinstance(found, Damage):
                damaged.append(found)
                position, expected = found.end, found.next_offset
                continue
            header = found[1].header
            last = found[0], bytes(found[1].data[:HEADER_SIZE])
            position, expected = found[0] + header.size_bytes, header.next_offset
            if header.max_timestamp > max_entry.timestamp:
                max_entry = TimeEntry(header.max_timestamp, header.last_offset)
            self.last_timestamp = header.max_timestamp
        # Check this last, to notice bytes that were cut off and written again meanwhile.
        self._check_uncut(segment_end)
        if position == segment_end.size_bytes:
            return False
        self.damaged += tuple(damaged)
        self._last = last
        self._end = SegmentEnd(position, expected, UNMEASURED)
        if size - segment_end.size_bytes > _STEP_BYTES:
            # The greatest timestamp may be in a skipped batch: the time index has it.
            max_entry = max(max_entry, self._time_before(_LAST))
        self.max_entry = max_entry
        return True

    def note_log(self) -> None:
        """Note the size and mtime of a sealed segment's .log file for `is_uncut`, unless they were noted before."""
        if self._noted is not None or self._disk.is_remote:
            # An object in a bucket never changes, and its status costs a request.
            return
        with suppress(FileNotFoundError):
            found = self._disk.stat(self.path)
            self._noted = found.size_bytes, found.mtime_ns

    def is_uncut(self) -> bool:
        """Whether a sealed .log file still has the size and mtime that `note_log` noted.

        If `note_log` noted nothing, returns whether the file is at least as long as this segment, and still has the
        header of the segment's last batch at the same position.
        """
        if self._noted is not None:
            found = self._disk.stat(self.path)
            return (found.size_bytes, found.mtime_ns) == self._noted
        try:
            if self._end is not None:
                self._check_uncut(self._end)
        except Gone:
            return False
        return True

    @property
    def last_header(self) -> Header | None:
        """The header of the last batch that `advance` has read; None if there is none, or for an old format.

        It is known without a read, also after the files were moved or deleted.
        """
        if self._last is None or len(self._last[1]) < HEADER_SIZE:
            # A message of an old format may be shorter than the header of a batch.
            return None
        header = parse_header(self._last[1])
        return header if header.magic == MAGIC else None

    def _check_uncut(self, segment_end: SegmentEnd) -> None:
        if self._disk.size(self.file) < segment_end.size_bytes:
            raise self._cut()
        if self._last is not None:
            position, header = self._last
            if self._disk.read(self.file, position, HEADER_SIZE) != header:
                raise self._cut()

    # The indexes of a growing segment. After a truncation, Kafka's index files keep old entries after the valid ones,
    # so each entry is checked against the log before it is used.

    def position_of(self, offset: int) -> int:
        if self.offset_index.is_growing:
            return self._start_before(offset, self.size_bytes)[0]
        return super().position_of(offset)

    def _look_from(self, offset: int) -> tuple[int, int, int]:
        if self.offset_index.is_growing and not len(self.text_index):
            return *self._start_before(offset, self.size_bytes), POINT_READ_BYTES
        return super()._look_from(offset)

    def _start_before(self, offset: int, size: int) -> tuple[int, int]:
        """Return the position and base offset of a batch at or before `offset`, found with the offset index.

        `size` is the position in the .log file at which the search ends. An index entry is used only if a valid batch
        begins at its position and ends at or before `size`. Entries are tried backwards from the nearest one. Returns
        (0, base offset of the segment) if none can be used.
        """
        index = self.offset_index
        number = bisect_right(range(len(index)), offset, key=lambda n: index[n].offset) - 1
        back = 1
        while number >= 0:
            # A damaged entry may have a negative position.
            position = max(index[number].position, 0)
            data = self._disk.read(self.file, position, HEADER_SIZE)
            header = parse_header(data) if len(data) == HEADER_SIZE else None
            if (
                header is not None
                and header.magic == MAGIC
                and self.base_offset <= header.base_offset <= offset
                and HEADER_SIZE <= header.size_bytes <= size - position
            ):
                data = self._disk.read(self.file, position, header.size_bytes)
                if len(data) == header.size_bytes and Batch(header, data).is_valid:
                    return position, header.base_offset
            number -= back
            back *= 2
        return 0, self.base_offset

    def offset_before(self, timestamp: int) -> int:
        if self.time_index.is_growing:
            return self._time_before(timestamp).offset
        return super().offset_before(timestamp)

    def _time_before(self, timestamp: int) -> TimeEntry:
        """Return a time index entry with a timestamp below `timestamp`; (-1, base offset) if none is valid.

        Entries are tried backwards from the nearest one. An entry is valid if its timestamp is the greatest in the
        batch with its offset. An entry with exactly `timestamp` is not returned, because it may be left over from
        before a truncation. For example, such an old entry has offset 9, and after the truncation batches with this
        timestamp were appended at 7 and at 9: a search from offset 9 would miss the batch at 7.
        """
        index = self.time_index
        number = bisect_left(range(len(index)), timestamp, key=lambda n: index[n].timestamp) - 1
        back = 1
        while number >= 0:
            entry = index[number]
            if self.has_batch_of(entry):
                return entry
            number -= back
            back *= 2
        return TimeEntry(-1, self.base_offset)

    def _new_batches(
        self, position: int, expected: int, size: int
    ) -> Iterator[tuple[int, Batch] | Damage]:
        """Yield the whole batches from `position` on, and damaged ranges. Stop before a half-written batch.

        `expected` is the lowest offset that the batch at `position` may have, and `size` the size of the .log file in
        bytes.
        """
        doubt, self._doubt = self._doubt, None
        if self._disk.is_remote:
            # An object in a bucket does not grow, so bytes that are not batches are damage.
            yield from self._walk_to(position, size, expected)
            return
        while size - position > LENGTH_OVERHEAD:
            head = self._disk.read(self.file, position, LENGTH_OVERHEAD)
            length = int.from_bytes(head[8:], "big", signed=True)
            if not any(head):
                # Zeros are preallocated space.
                return
            end = position + LENGTH_OVERHEAD + length
            found: tuple[int, Batch] | Damage | None = None
            if length > 0 and end <= size:
                found = next(self._walk_to(position, end, expected), None)
            if found is None or isinstance(found, Damage):
                is_known = doubt == (position, size)
                found = None if is_known else self._find_next(position, size, expected)
            if found is None:
                self._doubt = position, size
                return
            if isinstance(found, Damage):
                position, expected = found.end, found.next_offset
            else:
                header = found[1].header
                position, expected = position + header.size_bytes, header.next_offset
            yield found

    def _find_next(
        self, position: int, size: int, expected: int
    ) -> tuple[int, Batch] | Damage | None:
        """Return the whole batch at `position`, or the damage there; None if a batch there may be only half-written.

        `expected` is the lowest offset that the batch at `position` may have, and `size` the size of the .log file in
        bytes. Bytes that are not a whole batch are damage if a batch follows, because a writer completes a batch
        before it begins the next. To be sure, such bytes are read a second time: the writer may have completed the
        batch after the first read.
        """
        for _ in range(2):
            walked = self._walk_to(position, size, expected)
            found = next(walked, None)
            if not isinstance(found, Damage):
                return found
            follows = next(walked, None)
            if follows is None or isinstance(follows, Damage):
                return None
        return found

    def _walk_to(
        self, position: int, end: int, expected: int
    ) -> Iterator[tuple[int, Batch] | Damage]:
        where = partial(self._disk.read, self.file), position, end, expected, self.limit_offset
        base, fetch_again = self.base_offset, self._fetch_again
        return iter(Walk(*where, exact=True, base_offset=base, fetch_again=fetch_again))

    def seal_at(self, next_base: int) -> None:
        """Read the rest of this segment and seal it; the next segment begins at the offset `next_base`.

        Raises `Gone` if the .log file has vanished or was cut.
        """
        self.txn_index.read_again()
        self.advance()
        segment_end = self._end
        assert segment_end is not None
        for index in self.indexes:
            index.is_growing = False
        self._measured = None
        self._end = segment_end._replace(next_offset=next_base)
        self.next_base = next_base

    # The size of the segment's text.

    @property
    def end(self) -> SegmentEnd:
        now = self._end or SegmentEnd(self.size_bytes, self.next_offset, UNMEASURED)
        if now.text is not UNMEASURED:
            return now
        measured = self._measured
        if measured is None or measured[:2] != now[:2]:
            measured = self._measure(now)
        return measured

    def _measure(self, now: SegmentEnd) -> SegmentEnd:
        """Return `now`, an end of this segment, with its text size filled in from the text index.

        If the text index does not reach `now`, extends the index by reading the rest of the log.
        """
        # Use a copy of this object with the same files, whose end does not move meanwhile.
        still = self.detached()
        still._end = now
        if not text_fits(still) or still.text_index.last.position != now.size_bytes:
            self._disk.check_may_block()
            with self._rebuilding:
                measured = self._measured
                if measured is not None and measured >= now:
                    return measured
                self._index_text(still, now)
        self._measured = now._replace(text=still.text_index.last.before)
        return self._measured

    def _index_text(self, still: Segment, now: SegmentEnd) -> None:
        """Extend the text index up to `now`, an end of this segment.

        `still` is a copy of this segment that ends at `now` and does not grow. The index of a sealed segment is
        loaded from the cache directory. If the cache has no complete index, the log is read to extend the index,
        which is then saved there. The index of an active segment is not cached. This method sets `text_index` to a
        new object. It does not change the old object, because readers use it without a lock.
        """
        is_sealed = self.next_base is not None or self._disk.is_remote
        before, still.text_index = self.text_index, self._another_text_index()
        if not (
            is_sealed
            and text_index_cache.load(self._disk, self.file, still.text_index)
            and text_fits(still)
            and still.text_index.last.position == now.size_bytes
        ):
            still.text_index = before
            entries = before.to_bytes() if text_fits(still) else b""
            still.text_index = self._another_text_index()
            still.text_index.take_entries(entries)
            still.text_index.truncate(now.size_bytes)
            rebuild_text(still)
            if is_sealed:
                text_index_cache.save(self._disk, self.file, still.text_index)
        self.text_index = still.text_index
        self._watch_indexes()

    def _another_text_index(self) -> TextIndex:
        """Return a second `TextIndex` object for the file of `text_index`, which can replace the present object."""
        index = self.new_indexes()[2]
        index.source, index.is_growing = self.text_index.source, self.text_index.is_growing
        index.recreate = self.text_index.recreate
        return index


class _LiveTxnIndex(TransactionIndex):
    """A transaction index whose file is opened by its identity (inode).

    A broker appends an abort marker to the log before it writes the entry, so the file may lack the newest entries.
    The aborted transactions that were found in the log (`supplement`) are therefore added to those in the file.
    """

    def __init__(self, disk: Disk, path: Path) -> None:
        super().__init__(disk, path)
        self._identity: int | None = None
        self._found: tuple[AbortedTransaction, ...] = ()

    def follow(self, identity: int | None) -> None:
        """Use the file with this identity; None means that there is no file."""
        # Hold the lock, so that a thread which still reads the old file cannot store its entries afterwards.
        with self._disk.hold(self._disk.naming):
            self._entries = None
            self._identity = identity

    def read_again(self) -> None:
        """Read the file again if it was read before. Call this after a roll: the file is complete from then on."""
        if self._entries is not None:
            with suppress(Gone):
                self._entries = self._load()

    @property
    def entries(self) -> Sequence[AbortedTransaction]:
        known, found = super().entries, self._found
        last = known[-1].last_offset if known else -1
        if not found or found[-1].last_offset <= last:
            return known
        return (*known, *(each for each in found if each.last_offset > last))

    def supplement(self, aborted: AbortedTransaction) -> None:
        if not self._found or aborted.last_offset > self._found[-1].last_offset:
            self._found = (*self._found, aborted)

    def _read(self) -> bytes:
        if self._identity is None:
            return b""
        return self._disk.read_all(open_by_identity(self._disk, self.path, self._identity))


def _open_index(disk: Disk, path: Path, identity: int | None, *, may_go: bool) -> File | None:
    if identity is None:
        return None
    try:
        return open_by_identity(disk, path, identity)
    except Gone:
        if may_go:
            return None
        raise
