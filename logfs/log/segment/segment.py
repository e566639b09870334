"""One segment: a .log file of record batches and its three sparse indexes."""

from __future__ import annotations

import copy
import logging
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import ref

from logfs.errors import Corrupt
from logfs.format.batches.batch import (
    HEADER_SIZE,
    LENGTH_OVERHEAD,
    MAGIC,
    START,
    STEP,
    Batch,
    Header,
    parse_header,
)
from logfs.format.batches.legacy import is_legacy, parse_batch
from logfs.format.text.rendering import NO_TEXT, TextSize
from logfs.log.segment.batch_iterator import CHUNK_BYTES, Damage, DamagedRange, Walk
from logfs.log.segment.batch_scanner import text_size
from logfs.log.segment.index import MAX_RELATIVE_OFFSET, OffsetEntry, TimeEntry
from logfs.log.segment.index_builder import (
    index_limits,
    lookup_fits,
    rebuild_lookups,
    rebuild_text,
    text_entries,
    text_fits,
)
from logfs.log.segment.segment_end import UNMEASURED, SegmentEnd
from logfs.log.segment.segment_files import SegmentFiles
from logfs.log.segment.segment_writer import SegmentWriter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from logfs.config import LogConfig
    from logfs.log.disk.disk import Disk, Status
    from logfs.log.segment.index import OffsetIndex, SparseIndex, TimeIndex
    from logfs.log.segment.text_index import TextEntry

T = TypeVar("T")

logger = logging.getLogger(__name__)


class Segment(SegmentFiles):
    """A segment: record batches in ascending order of offsets from `base_offset` on, in one append-only .log file.

    A sealed segment does not change (architecture.md, rule 4) unless a truncation makes it active again. Any thread
    may read it without a lock. An active segment has one writer. Readers see the batches before the segment's `end`,
    which is set after the bytes are in the file. The file may be longer than `size_bytes`: for example, a read-only
    store ignores an incomplete batch at the end of the file.
    """

    # Whether the segment is in an object store, and not in the directory of its partition.
    is_tiered = False
    # The offset of the first record that is not a control record, or `next_offset` if there is none. None if it is
    # unknown: then the segment must be read to find the record.
    first_record_offset: int | None = None
    # The result of `_statuses` after the last rebuild of the indexes. If it is different now, another program has
    # changed an index file since.
    _rebuilt: Sequence[Status] = ()

    def __init__(self, disk: Disk, directory: Path, base_offset: int, suffix: str = "") -> None:
        super().__init__(disk, directory, base_offset, suffix)
        # Identifies the .log file's content in caches. A path cannot do this, because another file may get the path.
        self.content = object()
        self.gaps = True
        self.damaged: tuple[Damage, ...] = ()
        self._end: SegmentEnd | None = None
        self._sealed_size: int | None = None
        # The offset and the time index that `_repaired` has rebuilt; None if neither file was found to be wrong.
        self._lookups: tuple[OffsetIndex, TimeIndex] | None = None
        self.writer: SegmentWriter | None = None
        self.max_entry = TimeEntry(-1, base_offset)
        # Whether the index files may have preallocated space after their entries, as in an active segment.
        self.has_preallocated_space = False
        self.created_ms = 0

    @property
    def is_active(self) -> bool:
        """Whether the segment has a writer."""
        return self.writer is not None

    def detached(self) -> Segment:
        """Return a second object for the same files and indexes, with an end and a writer of its own.

        Appends through the second object do not move the end that readers of this object see.
        """
        # Make the index objects before the copy, so that both segments share them.
        _ = self.indexes
        other = copy.copy(self)
        if self.writer is not None:
            other.writer = self.writer.writing_to(other)
        return other

    def _watch_indexes(self) -> None:
        super()._watch_indexes()
        self.offset_index.repair = partial(_if_alive, ref(self), Segment._repaired, 0)
        self.time_index.repair = partial(_if_alive, ref(self), Segment._repaired, 1)
        self.text_index.recreate = partial(_if_alive, ref(self), Segment._recreated)

    def _repaired(self, number: int) -> SparseIndex | None:
        """Check the file of the offset index (`number` 0) or the time index (1); rebuild a wrong one from the log.

        Returns the rebuilt index, or None if the caller is to use the file as it is. Three kinds of files are used as
        they are: right ones, those that a rebuild has left wrong because the log is damaged, and unchecked ones. The
        file is not checked if the segment is the last one, is active or empty, or is in a bucket, where a check costs
        requests. A lookup in an unchecked file compares the entry that it finds with the log.
        """
        if self.next_base is None or self.is_active or self._disk.is_remote or not self.size_bytes:
            return None
        if lookup_fits(self, number):
            return None
        if self._disk.writable and self._rebuilt == self._statuses():
            # The rebuilt file is wrong, too, because the log itself is damaged: do not rebuild it again.
            return None
        self._disk.check_may_block()
        with self._rebuilding:
            if self._lookups is None or (self._disk.writable and self._rebuilt != self._statuses()):
                level = logging.WARNING if self._disk.writable else logging.INFO
                logger.log(level, "%s: invalid, rebuilt from the log", self.indexes[number].path)
                self._lookups = rebuild_lookups(self)
                self._rebuilt = self._statuses()
                # The rebuild has also replaced the file of the other index, so close the old file.
                self.indexes[1 - number].release()
            return self._lookups[number]

    def _statuses(self) -> list[Status]:
        """Return what stat(2) tells of the offset index file and the time index file; a missing file is left out."""
        paths = [index.path for index in self.indexes[:2]]
        return [self._disk.stat(path) for path in paths if self._disk.exists(path)]

    def _recreated(
        self, before: TextEntry, after: TextEntry | None, count: int
    ) -> Sequence[TextEntry]:
        """Return entries, made from the log, to replace `count` damaged entries of the text index.

        The damaged entries lie between the valid entries `before` and `after`; `after` is None if no valid entry
        follows. The result is empty if the log does not agree with the valid entries. Without `after`, it is also
        empty for the last segment of the log, because the segment's end may not be known yet.
        """
        self._disk.check_may_block()
        # During recovery, the end of the last segment is not known yet.
        is_end_known = after is not None or self.next_base is not None
        return text_entries(self, before, after, count) if is_end_known else ()

    @property
    def size_bytes(self) -> int:
        """The length of the .log file in bytes, up to the end of the last whole batch."""
        if self._end is not None:
            return self._end.size_bytes
        if self._sealed_size is None:
            self._sealed_size = self._size_of_file()
        return self._sealed_size

    def _size_of_file(self) -> int:
        return self._status().size_bytes

    def _status(self) -> Status:
        # Do not open the file only for its status: a log may have more segments than a process has descriptors.
        with self._disk.hold(self._disk.naming):
            # Read `_file` under the lock: a truncation that drops this segment opens the file before it unlinks the
            # path. So if the path is gone, the file is open.
            file = self._file
            return self._disk.stat_file(file) if file else self._disk.stat(self.path)

    @property
    def next_offset(self) -> int:
        """The offset after the segment: the base offset of the next segment, or the log end offset."""
        if self.next_base is not None:
            return self.next_base
        assert self._end is not None, "the last segment of a loaded log has an end"
        return self._end.next_offset

    @property
    def end(self) -> SegmentEnd:
        """The size in bytes, the next offset and the text size of the segment, all of the same moment.

        If the text size is not known yet, it is read from the text index, or measured in the log.
        """
        segment_end = self._end
        if segment_end is None or segment_end.text is UNMEASURED:
            return self._load_end()
        return segment_end

    @property
    def max_timestamp(self) -> TimeEntry:
        """The greatest timestamp of a record (ms, -1 if there is none), with the last offset of its batch."""
        return self.max_entry if self.max_entry.timestamp >= 0 else self.time_index.last

    def mtime_ms(self) -> int:
        """Return the .log file's modification time (ms since the epoch)."""
        return self._status().mtime_ns // 1_000_000

    @property
    def largest_timestamp(self) -> int:
        """The greatest timestamp of a record, or else the .log file's mtime, in ms (kafka-storage 3.10)."""
        timestamp = self.max_timestamp.timestamp
        return timestamp if timestamp >= 0 else self.mtime_ms()

    # Methods that read the .log file.

    def read(self, position: int, size: int) -> memoryview:
        """Return up to `size` bytes of the .log file from `position` on, but none after the last whole batch."""
        left = self.size_bytes - position
        return self._disk.read(self.file, position, max(min(size, left), 0))

    def read_ahead(self, position: int, size: int) -> None:
        """Have the kernel read bytes of the .log file in the background, for a scan that will need them soon."""
        if position < self.size_bytes:
            self._disk.read_ahead(self.file, position, size)

    def header(self, position: int) -> Header | None:
        """Return the header of the batch at `position`, unchecked; None if the file ends before a whole header."""
        data = self.read(position, HEADER_SIZE)
        if is_legacy(data):
            # In the old formats, the header of a compressed batch lacks the base offset, so decompress the batch.
            with suppress(Corrupt):
                size = LENGTH_OVERHEAD + START.unpack_from(data)[1]
                return parse_batch(self.read(position, size)).header
        return parse_header(data) if len(data) == HEADER_SIZE else None

    # Methods that use the indexes. Kafka's indexes have no checksum, so each entry is checked against the log.

    def position_of(self, offset: int) -> int:
        """Return the position of a batch at or before `offset`, from which a search for `offset` may start."""
        return self._entry_before(offset).position

    def _entry_before(self, offset: int) -> OffsetEntry:
        """Return the last offset index entry at or before `offset`, or the segment's start if the entry is wrong."""
        found, start = self.offset_index.lookup(offset), OffsetEntry(self.base_offset, 0)
        if not 0 < found.position < self.size_bytes:
            return start
        data = self.read(found.position, LENGTH_OVERHEAD)
        first, length = START.unpack_from(data) if len(data) == LENGTH_OVERHEAD else (-1, -1)
        ends = found.position + LENGTH_OVERHEAD + length
        agrees = (
            self.base_offset <= first <= found.offset and found.position < ends <= self.size_bytes
        )
        return found if agrees else start

    def offset_before(self, timestamp: int) -> int:
        """Return an offset from which to search for the first record with `timestamp` (ms) or a later one.

        The offset is that of a time index entry, or the base offset if the log contradicts the entry. All records in
        batches before the batch of that offset have lower timestamps.
        """
        found = self.time_index.lookup(timestamp)
        if found.timestamp < 0:
            return self.base_offset
        # Only headers are compared with the entry. The callers check the CRC of each batch that they return.
        position, expected, _ = self._look_from(found.offset)
        _, _, header = self._step(position, expected, lambda h: h.last_offset >= found.offset)
        largest = None if header is None else header.max_timestamp
        is_right = largest == found.timestamp or (header is None and self.has_batch_of(found))
        return found.offset if is_right else self.base_offset

    def has_batch_of(self, entry: TimeEntry, *, if_damaged: bool = False) -> bool:
        """Whether a time index entry is right: the greatest timestamp in `entry.offset`'s batch is `entry.timestamp`.

        Returns `if_damaged` if that batch is damaged.
        """
        if entry.timestamp < 0:
            return False
        try:
            batch = self.find_batch(entry.offset)
        except DamagedRange:
            return if_damaged
        if batch is None or batch.header.base_offset > entry.offset:
            return False
        return batch.header.max_timestamp == entry.timestamp

    def walk(
        self,
        position: int = 0,
        end: int | None = None,
        chunk_bytes: int = CHUNK_BYTES,
        first_offset: int | None = None,
        *,
        is_end_known: bool = True,
    ) -> Iterator[tuple[int, Batch] | Damage]:
        """Yield (position, batch) for each valid batch in bytes [position, end) of the .log file, and each `Damage`.

        `position` must be the start of a batch. `end` is by default the end of the segment. About `chunk_bytes` are
        read at a time. `first_offset` is the offset after the batches before `position`, if the caller knows it.
        With `is_end_known` False, the segment's `next_offset` is not used: in recovery, it is not known yet. The
        caller must then pass `first_offset`, too, unless `position` is 0.
        """
        size = self.size_bytes
        stop = size if end is None else min(end, size)
        next_offset = self.next_offset if is_end_known else self.next_base
        what = Walk(
            self.read,
            position,
            stop,
            self.base_offset if first_offset is None else first_offset,
            self.limit_offset,
            next_offset if stop == size else None,
            exact=not position or first_offset is not None,
            gaps=self.gaps,
            chunk_bytes=chunk_bytes,
            base_offset=self.base_offset,
            fetch_again=self._fetch_again,
        )
        found = iter(what)
        begin = next(found, None)
        if isinstance(begin, Damage) and position and is_end_known:
            # `Walk` has not read the batch before the first one, so it may take a valid batch for damage. Walk again,
            # from the segment's start.
            for item in replace(what, start=0, first_offset=self.base_offset, exact=True):
                if isinstance(item, Damage) and item.end >= position:
                    yield item._replace(start=max(item.start, position))
                elif not isinstance(item, Damage) and item[0] >= position:
                    yield item
        elif begin is not None:
            yield begin
            yield from found

    def _fetch_again(self, start: int, end: int) -> bool:
        """Fetch damaged bytes of the .log file again, if it is in a bucket; return whether they have changed."""
        return self._disk.fetch_again(self.file, start, end)

    def batches_from(self, offset: int) -> Iterator[tuple[int, Batch] | Damage]:
        """Yield (position, batch) for each batch, and each `Damage`, that has `offset` or a later offset."""
        for found in self.walk(self.position_of(offset)):
            if isinstance(found, Damage):
                if found.next_offset > offset:
                    yield found
            elif found[1].header.last_offset >= offset:
                yield found

    def find_batch(self, offset: int) -> Batch | None:
        """Return the batch that holds `offset`, or else the next batch; None if no batch ends at or after `offset`.

        Raises `DamagedRange` if `offset` lies in a damaged range. The lookup usually costs one or two reads: it steps
        from header to header, beginning at an index entry, and checks the CRC only of the batch that it returns. No
        CRC covers a base offset. Therefore each batch must begin at the offset after the previous batch, and the
        first one at the offset that the index gives. If one begins elsewhere, or the batch to return is invalid, the
        lookup starts again with `walk`, which checks every batch.
        """
        position, expected, size = self._look_from(offset)
        window, window_start = self.read(position, size), position
        while True:
            at = position - window_start
            if at + HEADER_SIZE > len(window):
                window, window_start, at = self.read(position, POINT_READ_BYTES), position, 0
                if len(window) < HEADER_SIZE:
                    return self._find_batch_carefully(offset)
            base_offset, length, magic, last_delta = STEP.unpack_from(window, at)
            size = length + LENGTH_OVERHEAD
            if base_offset != expected or magic != MAGIC or size < HEADER_SIZE:
                return self._find_batch_carefully(offset)
            if base_offset + last_delta >= offset:
                break
            position, expected = position + size, base_offset + last_delta + 1
        inside = at + size <= len(window)
        data = window[at : at + size] if inside else self.read(position, size)
        return self._checked(position, data) or self._find_batch_carefully(offset)

    def batch_range(self, offset: int, end: int) -> tuple[int, int, Header] | None:
        """Return where the batches with offsets in [offset, end) are in the .log file, found by their headers alone.

        The result is (position of the first batch, position after the last batch, header of the first batch); None if
        there is no such batch. A batch that begins below `offset` is included; `end` must be the base offset of a
        batch, or lie after the last batch. No CRC is checked, so there may be damage behind the first batch. Raises
        `DamagedRange` if `offset` lies in a damaged range.
        """
        known = self._end
        size = self.size_bytes if known is None else known.size_bytes
        next_offset = self.next_offset if known is None else known.next_offset
        first = self._locate(offset)
        if first is None or first[1].base_offset >= end:
            return None
        last = self._locate(end) if end < next_offset else None
        return first[0], size if last is None else last[0], first[1]

    def offset_bound(self, position: int) -> int:
        """Return an offset above those of all batches that end at or before `position`, and close to them.

        It is that of the next offset index entry. If there is none, or the log contradicts it, it is `next_offset`.
        """
        entry = self.offset_index.entry_from(position)
        if entry is not None and entry.position < self.size_bytes:
            header = self.header(entry.position)
            if header is not None and header.last_offset == entry.offset:
                return entry.offset
        return self.next_offset

    def _locate(self, offset: int) -> tuple[int, Header] | None:
        """Return (position, header) of the first batch that ends at or after `offset`; None if there is none."""
        position, expected, _ = self._look_from(offset)
        _, position, header = self._step(position, expected, lambda h: h.last_offset >= offset)
        if header is not None and position + header.size_bytes <= self.size_bytes:
            return position, header
        found = self._look_carefully(offset)
        return None if found is None else (found[0], found[1].header)

    def _checked(self, position: int, data: memoryview) -> Batch | None:
        """Return the batch in `data`, the bytes at `position`; None if it is invalid or overlaps the next batch."""
        header = parse_header(data) if len(data) >= HEADER_SIZE else None
        if header is None or header.size_bytes != len(data):
            return None
        batch = Batch(header, data)
        hides = header.has_holes and self._offset_at(position + len(data)) < header.next_offset
        return batch if batch.is_valid and not hides else None

    def _offset_at(self, position: int) -> int:
        """Return the base offset of the batch at `position`, unchecked.

        At the file's end, return the upper limit of the offsets in the segment (`limit_offset`).
        """
        head = self.read(position, LENGTH_OVERHEAD)
        return START.unpack_from(head)[0] if len(head) == LENGTH_OVERHEAD else self.limit_offset

    def _look_from(self, offset: int) -> tuple[int, int, int]:
        """Return where a search for `offset` begins: a batch's position, its base offset, and how many bytes to read.

        An entry of the text index has the position and the base offset. The bytes to read are those up to the next
        entry, but 2 MiB at most, and 16 KiB if there is no next entry. If the text index is empty or damaged, the
        offset index is used. Its entry has the position and the last offset of the batch. The base offset is then
        this last offset minus the last offset delta in the batch's header, and the number of bytes is 16 KiB.
        """
        around = None
        with suppress(Corrupt):
            around = self.text_index.around(offset)
        if around:
            start, position, after = around
            ahead = POINT_READ_BYTES if after < 0 else max(after - position, HEADER_SIZE)
            return position, start, min(ahead, _MOST_READ_BYTES)
        found = self._entry_before(offset)
        header = self.read(found.position, HEADER_SIZE) if found.position else b""
        if len(header) < HEADER_SIZE:
            return 0, self.base_offset, POINT_READ_BYTES
        return found.position, found.offset - STEP.unpack_from(header)[-1], POINT_READ_BYTES

    def find_batch_at(self, timestamp: int, first_offset: int) -> tuple[int, Batch | None]:
        """Find the first batch with a greatest timestamp >= `timestamp` (ms) and a last offset >= `first_offset`.

        The lookup reads headers one after the other, beginning at a time index entry, and checks the CRC only of the
        batch that it returns. Returns (position, batch). `position` is that of the batch before the one at which the
        lookup ended, or the position where the lookup began. `batch` is None if no batch was found. The lookup may
        then have ended early, at missing offsets, an old format or damage, so the caller must go on with `walk`, from
        `position`.
        """
        start = max(self.offset_before(timestamp), first_offset)
        position, expected, _ = self._look_from(start)
        before, position, header = self._step(
            position,
            expected,
            lambda h: h.max_timestamp >= timestamp and h.last_offset >= first_offset,
        )
        if header is None:
            return before, None
        return before, self._checked(position, self.read(position, header.size_bytes))

    def _step(
        self, position: int, expected: int, is_wanted: Callable[[Header], bool]
    ) -> tuple[int, int, Header | None]:
        """Step from header to header, and find the first batch for which `is_wanted` is true.

        The search begins at the batch at `position`, which must have the base offset `expected`. It ends early at
        missing offsets, an old format or a wrong header. Returns (before, position, header). `position` is where the
        search ended: at the batch found, whose header is `header`. If no batch was found, `header` is None. `before`
        is the position of the batch before `position`, or the start of the search. No CRC is checked.
        """
        before = position
        window, window_start = self.read(position, STEP_READ_BYTES), position
        while True:
            at = position - window_start
            if at + HEADER_SIZE > len(window):
                window, window_start, at = self.read(position, STEP_READ_BYTES), position, 0
                if len(window) < HEADER_SIZE:
                    return before, position, None
            header = parse_header(window, at)
            follows = header.base_offset == expected
            if header.magic != MAGIC or not follows or header.size_bytes < HEADER_SIZE:
                return before, position, None
            if is_wanted(header):
                return before, position, header
            before, position, expected = position, position + header.size_bytes, header.next_offset

    def _find_batch_carefully(self, offset: int) -> Batch | None:
        found = self._look_carefully(offset)
        return None if found is None else found[1]

    def _look_carefully(self, offset: int) -> tuple[int, Batch] | None:
        """Return (position, batch) of the first batch that ends at or after `offset`; None if there is none.

        The batch is found by a walk that checks each batch. Raises `DamagedRange` if `offset` lies in a damaged
        range.
        """
        for found in self.walk(self.position_of(offset), chunk_bytes=POINT_READ_BYTES):
            if isinstance(found, Damage):
                if found.first_offset <= offset < found.next_offset:
                    raise found.error(self.path)
            elif found[1].header.last_offset >= offset:
                return found
        return None

    @property
    def limit_offset(self) -> int:
        """The exclusive upper limit of the offsets in the segment.

        It is the base offset of the next segment, but at most 2^31 above the base offset of this segment.
        """
        limit = self.base_offset + MAX_RELATIVE_OFFSET + 1
        return limit if self.next_base is None else min(limit, self.next_base)

    # Methods that begin, activate, seal, flush and truncate the segment. `SegmentWriter` appends to it.

    def begin(self, config: LogConfig, now_ms: int) -> SegmentWriter:
        """Make the segment new and empty, and return its writer.

        The .log file and the three index files are created, or emptied if they exist; a .txnindex file is removed.
        `now_ms` becomes the segment's time of creation. After an `OSError`, the caller should call `discard`, which
        removes the files that were created.
        """
        self._begin_writing()
        self._file = self._disk.open(self.path, write=True, create=True)
        if self._disk.size(self._file):
            self._disk.truncate(self._file, 0)
        for index in self.indexes:
            index.reset()
        self.txn_index.remove()
        self._end = SegmentEnd(0, self.base_offset, NO_TEXT)
        self.gaps = False
        self.created_ms = now_ms
        return self.activate(config)

    def activate(self, config: LogConfig) -> SegmentWriter:
        """Give the segment a writer, and return it. Preallocates the indexes and, if configured, the .log file."""
        self._begin_writing()
        if self._end is not None:
            # Determine the text size before the indexes are preallocated. `end` may rebuild the text index, and a
            # rebuilt index accepts no entries until it is preallocated.
            _ = self.end
        self.has_preallocated_space = True
        if config.preallocate and not self.size_bytes:
            self._disk.truncate(self.file, config.segment_bytes)
        limits = index_limits(config.segment_index_bytes)
        for index, max_bytes in zip(self.indexes, limits, strict=True):
            index.preallocate(max_bytes)
        self.max_entry = self.max_timestamp
        self.writer = SegmentWriter(self, config)
        return self.writer

    @property
    def first_batch_timestamp(self) -> int:
        """The greatest timestamp of the first batch (ms), -1 if there is no batch or no timestamp."""
        header = self.header(0)
        return -1 if header is None else header.max_timestamp

    def cut_back(self) -> None:
        """Cut off the bytes of the .log file that a failed write has left after the segment's end."""
        # If the file is not open, nothing was written.
        if self._file is not None:
            self._disk.truncate(self._file, self.end.size_bytes)

    def seal(self, next_base: int) -> None:
        """Seal the segment: no more batches are appended to it. `next_base` is the base offset of the next segment.

        Completes and trims the index files, and trims the .log file (`finish`).
        """
        self.finish()
        self.next_base = next_base
        self._await_flush()

    def finish(self) -> None:
        """Write the closing entries of the time index and the text index, trim the files, and remove the writer.

        The closing entries have the segment's greatest timestamp (kafka-storage 3.5) and the size of its text. `seal`
        calls this. It is also called for a segment that stays the last one, as when the log is closed: `activate`
        gives the segment a new writer before the next append.
        """
        segment_end = self.end
        try:
            if self.max_entry.timestamp >= 0:
                self.time_index.maybe_append(*self.max_entry, closing=True)
            if segment_end.size_bytes and not self.text_index.is_full:
                self.text_index.append(
                    segment_end.next_offset, segment_end.size_bytes, segment_end.text
                )
            for index in self.indexes:
                index.trim()
            if self._disk.writable and self._disk.size(self.file) != segment_end.size_bytes:
                self._disk.truncate(self.file, segment_end.size_bytes)
            self.has_preallocated_space = False
        finally:
            # Remove the writer last: once it is None, a flush in another thread syncs the indexes, too, and then
            # counts the segment as durable.
            self.writer = None

    def save_indexes(self, *, sync: bool) -> None:
        """Replace each index file with the entries that recovery or compaction has collected in memory.

        In a read-only store, the entries stay in memory. With `sync`, each file has either its old or its new content
        after a power cut. The caller must sync the directory.
        """
        for index in (*self.indexes, self.txn_index):
            index.save(sync=sync)

    def flush(self, *, indexes: bool) -> None:
        """Make the .log file durable and, if `indexes` is true, the index files after it."""
        self._disk.sync(self.file)
        if indexes:
            for index in (*self.indexes, self.txn_index):
                index.flush()
            if not self.is_active:
                self._end_writing()

    def end_before(self, offset: int) -> SegmentEnd:
        """Return the end that the segment gets if the batch that holds `offset`, and all after it, are cut off.

        The next offset of the returned end is the offset after the last batch or damage that is left, or the base
        offset if none is left. Recovery would find the same next offset in the file. In a compacted log, the next
        offset may be below `offset`.
        """
        if offset <= self.base_offset:
            return SegmentEnd(0, self.base_offset, NO_TEXT)
        position, _, text = self.end
        cut = next(
            (found for found in self.batches_from(offset) if not isinstance(found, Damage)), None
        )
        if cut is not None:
            position, text = cut[0], self.text_before(cut[0])
            offset = min(offset, cut[1].header.base_offset)
        start, offset = self.position_of(offset - 1), self.base_offset
        for found in self.walk(start, position) if position else ():
            last = found if isinstance(found, Damage) else found[1].header
            offset = last.next_offset
        return SegmentEnd(position, offset, text)

    def truncate(self, end: SegmentEnd, config: LogConfig, now_ms: int) -> None:
        """Cut the segment to `end`, a result of `end_before`, and make it active again (kafka-storage 10.4).

        Cuts the indexes too, and preallocates them again with the sizes in `config`. If no batch is left, `now_ms`
        becomes the segment's time of creation.
        """
        self._begin_writing()
        position, offset, _ = self._end = end
        self._disk.truncate(self.file, position)
        # Synced before the next append: a crash must neither restore dropped records nor mix them with new records.
        self._disk.sync(self.file)
        self.offset_index.truncate(offset)
        self.time_index.truncate(offset)
        self.text_index.truncate(position)
        self.txn_index.truncate(offset)
        self.max_entry = self.time_index.last
        for found in self.walk(self.position_of(self.max_entry.offset)):
            if not isinstance(found, Damage):
                header = found[1].header
                if header.max_timestamp > self.max_entry.timestamp:
                    self.max_entry = TimeEntry(header.max_timestamp, header.last_offset)
        self.content = object()
        if position == 0:
            self.created_ms = now_ms
        self.next_base = None
        self.activate(config)

    # Methods that determine or set the segment's end and text size.

    def text_before(self, position: int) -> TextSize:
        """Return the text size of the batches that end at or before `position`, which is the start of a batch."""
        entry = self.text_index[self.text_index.number_of_position(position)]
        text = entry.before
        for found in self.walk(entry.position, position, first_offset=entry.offset):
            text = text.plus(text_size(found))
        return text

    def _load_end(self) -> SegmentEnd:
        """Return the end with its text size, which the last entry of the text index has.

        If the text index is wrong, or does not reach the end of the .log file, it is first rebuilt from the log.
        """
        with self._disk.hold(self._rebuilding):
            segment_end = self._end
            if segment_end is not None and segment_end.text is not UNMEASURED:
                # Another thread has set `_end` since the caller read it, and may have appended batches.
                return segment_end
            size = self.size_bytes
            if not text_fits(self) or self.text_index.last.position != size:
                self._disk.check_may_block()
                rebuild_text(self)
            self._end = SegmentEnd(size, self.next_offset, self.text_index.last.before)
            return self._end

    def set_end(self, end: SegmentEnd) -> None:
        """Set the segment's end: from now on readers see the batches before it."""
        self._end = end

    def resume(self, segment_end: SegmentEnd, max_entry: TimeEntry) -> None:
        """Set the end, up to which readers see the segment, and the greatest timestamp of the batches before it.

        The caller has determined both, for example by reading the files. `max_entry` is the time index entry for the
        greatest timestamp.
        """
        self._end = segment_end
        self.max_entry = max_entry

    def resume_unread(self, size_bytes: int) -> None:
        """Make the first `size_bytes` bytes readable before their offsets, text size and timestamps are known."""
        start = self.base_offset
        self.resume(SegmentEnd(size_bytes, start, NO_TEXT), TimeEntry(-1, start))


def _if_alive(opened: ref[Segment], method: Callable[..., T], *arguments: Any) -> T | None:
    """Call `method` of the segment that `opened` refers to; return None if the segment was freed.

    The indexes of a segment call the segment in this way, so that they hold only a weak reference to it.
    """
    segment = opened()
    return None if segment is None else method(segment, *arguments)


# How many bytes a lookup reads at a time if no index says how many it needs.
POINT_READ_BYTES = 16 * 1024
# How many bytes a lookup reads at a time if it only needs headers: enough for the headers of several small batches.
STEP_READ_BYTES = 4 * 1024
# The limit of a read up to the next text index entry. Two entries are rarely further apart, because the default of
# max.message.bytes is 1 MiB.
_MOST_READ_BYTES = 2 * 1024 * 1024
