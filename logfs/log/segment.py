"""One segment: a .log file of record batches and its three sparse indexes."""

from __future__ import annotations

import logging
import random
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from logfs.errors import Corrupt
from logfs.format.batch import (
    HEADER_SIZE,
    LENGTH_OVERHEAD,
    MAGIC,
    START,
    STEP,
    Batch,
    Header,
    parse_header,
)
from logfs.format.legacy import is_legacy, parse_batch
from logfs.format.text import NO_TEXT, TextSize
from logfs.log.index import MAX_RELATIVE_OFFSET, OffsetEntry, TimeEntry
from logfs.log.rebuild import (
    lookup_fits,
    rebuild_lookups,
    rebuild_text,
    text_entries_between,
    text_fits,
)
from logfs.log.segment_files import SegmentFiles
from logfs.log.spans import text_size
from logfs.log.walk import CHUNK_BYTES, Damage, DamagedRange, Walk, walk

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from logfs.config import LogConfig
    from logfs.log.files import Disk
    from logfs.log.index import OffsetIndex, SparseIndex, TimeIndex
    from logfs.log.spans import BatchInfo
    from logfs.log.text_index import TextEntry

logger = logging.getLogger(__name__)

_LAST_OFFSET = 2**63 - 1

# The text of a segment that nobody has asked for yet.
UNMEASURED = TextSize(-1, -1, -1)


class Tip(NamedTuple):
    """How far a segment goes, in bytes of its file, in offsets and in text; swapped whole, so never torn."""

    size_bytes: int
    next_offset: int
    text: TextSize


class Segment(SegmentFiles):
    """Batches of consecutive offsets from `base_offset` on, in one append-only file.

    Sealed segments never change (rule 4): any thread reads them, without a lock. An active one has one writer,
    and readers see it up to its `tip`, which is set after the bytes are in the file. `size_bytes` may be less than
    the file's length where a read-only store ignores a torn tail.
    """

    def __init__(self, disk: Disk, directory: Path, base_offset: int, suffix: str = "") -> None:
        """The segment whose files have these names, and `suffix` at their end (kafka-storage 1.1)."""
        super().__init__(disk, directory, base_offset, suffix)
        # Stands for the bytes of the file in caches: a path may come to hold others.
        self.content = object()
        self.gaps = True
        self.damaged: tuple[Damage, ...] = ()
        self._tip: Tip | None = None
        self._sealed_size: int | None = None
        # What the offset and the time index have to be, once either could not be right.
        self._lookups: tuple[OffsetIndex, TimeIndex] | None = None
        # The active segment's: see `append` and `should_roll`.
        self.max_entry = TimeEntry(-1, base_offset)
        self.is_active = False
        # Its indexes may have room behind their entries, as those of an active one.
        self.has_room = False
        self._bytes_since_entry = 0
        self._indexes_are_full = False
        self._rolling_timestamp: int | None = None
        self.created_ms = 0
        self._jitter_ms = 0

    def repaired(self, number: int) -> SparseIndex | None:
        """See `SegmentFiles.repaired`: of a sealed segment, an index that a crash or a hand has damaged."""
        next_base = self.next_base
        if next_base is None or self.is_active or not self.size_bytes:
            return None
        if lookup_fits(self, number) or (self._lookups and self._disk.writable):
            return None
        self._disk.check_may_block()
        with self._rebuilding:
            if self._lookups is None:
                level = logging.WARNING if self._disk.writable else logging.INFO
                logger.log(level, "%s: made again from the log", self.indexes[number].path)
                self._lookups = rebuild_lookups(self)
                # The other one has another file, too.
                self.indexes[1 - number].release()
            return self._lookups[number]

    def remade(self, before: TextEntry, after: TextEntry, count: int) -> Sequence[TextEntry]:
        """See `SegmentFiles.remade`."""
        self._disk.check_may_block()
        return text_entries_between(self, before, after, count)

    @property
    def size_bytes(self) -> int:
        """The bytes of whole batches in the .log file."""
        if self._tip is not None:
            return self._tip.size_bytes
        if self._sealed_size is None:
            self._sealed_size = self._size_of_file()
        return self._sealed_size

    def _size_of_file(self) -> int:
        # One that is not open is not opened for this: there may be very many.
        file = self._file
        with self._disk.hold(self._disk.naming):
            return self._disk.size(file) if file else self._disk.stat(self.path).st_size

    @property
    def next_offset(self) -> int:
        """The offset behind the segment: the next segment's base, or the log end offset."""
        if self.next_base is not None:
            return self.next_base
        assert self._tip is not None, "the last segment of a loaded log has a tip"
        return self._tip.next_offset

    @property
    def tip(self) -> Tip:
        """Size, end offset and text in one; for a segment whose text was never measured, it is read whole."""
        tip = self._tip
        return self._load_tip() if tip is None or tip.text is UNMEASURED else tip

    @property
    def max_timestamp(self) -> TimeEntry:
        """The greatest timestamp of a record (ms, -1 if none), and the last offset of its batch."""
        return self.max_entry if self.max_entry.timestamp >= 0 else self.time_index.last

    def mtime_ms(self) -> int:
        """The .log file's modification time, which stands in where no record has a timestamp."""
        with self._disk.hold(self._disk.naming):
            return self._disk.stat(self.path).st_mtime_ns // 1_000_000

    @property
    def largest_timestamp(self) -> int:
        """What retention and time lookups go by (kafka-storage 3.10)."""
        timestamp = self.max_timestamp.timestamp
        return timestamp if timestamp >= 0 else self.mtime_ms()

    # Reading.

    def read(self, position: int, size: int) -> memoryview:
        """Raw bytes of the .log file, up to the end of the last whole batch."""
        left = self.size_bytes - position
        return self._disk.read(self.file, position, max(min(size, left), 0))

    def header(self, position: int) -> Header | None:
        """The header of the batch at a position, unchecked; None if there is none."""
        data = self.read(position, HEADER_SIZE)
        if is_legacy(data):
            # What offsets a wrapper has, only its messages tell.
            with suppress(Corrupt):
                size = LENGTH_OVERHEAD + START.unpack_from(data)[1]
                return parse_batch(self.read(position, size)).header
        return parse_header(data) if len(data) == HEADER_SIZE else None

    # Kafka's indexes have no checksum, so an entry is held against the log before it is believed.

    def position_of(self, offset: int) -> int:
        """Where to start looking for an offset."""
        return self._entry_before(offset).position

    def _entry_before(self, offset: int) -> OffsetEntry:
        """The offset index's entry at or before an offset; the start of the segment if the log does not agree."""
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
        """Where to start looking for a timestamp: no record below that offset reaches it."""
        found = self.time_index.lookup(timestamp)
        return found.offset if self.has(found) else self.base_offset

    def has(self, entry: TimeEntry) -> bool:
        """Whether the log has a batch that an entry of the time index can be of; zeros never cut off are of none."""
        if entry.timestamp < 0:
            return False
        with suppress(DamagedRange):
            batch = self.find_batch(entry.offset)
            if batch is not None and batch.header.base_offset <= entry.offset:
                return batch.header.max_timestamp == entry.timestamp
        return False

    def walk(
        self,
        position: int = 0,
        end: int | None = None,
        chunk_bytes: int = CHUNK_BYTES,
        first_offset: int | None = None,
    ) -> Iterator[tuple[int, Batch] | Damage]:
        """The batches from the start of one on, with damage told apart (`logfs.log.walk`).

        `first_offset` is the one behind what lies before, if that is known.
        """
        first, size = self.base_offset, self.size_bytes
        stop = size if end is None else min(end, size)
        next_offset = self.next_offset if stop == size else None
        bounds = (first if first_offset is None else first_offset, self.limit_offset, next_offset)
        exact = not position or first_offset is not None
        what = Walk(self.read, position, stop, *bounds, exact, self.gaps, chunk_bytes, first)
        found = walk(what)
        begin = next(found, None)
        if isinstance(begin, Damage) and position:
            # A batch whose forerunner is not known may be wronged, so see all that lies before it.
            for item in walk(what._replace(start=0, first_offset=first, exact=True)):
                if isinstance(item, Damage) and item.end >= position:
                    yield item._replace(start=max(item.start, position))
                elif not isinstance(item, Damage) and item[0] >= position:
                    yield item
        elif begin is not None:
            yield begin
            yield from found

    def walk_unknown_end(
        self, position: int, first_offset: int
    ) -> Iterator[tuple[int, Batch] | Damage]:
        """As `walk`, of a file under recovery: the offset behind its last batch is what it is to find out.

        `first_offset` is the one that the first batch should have.
        """
        bounds = (first_offset, self.limit_offset, self.next_base)
        what = Walk(self.read, position, self.size_bytes, *bounds, True, self.gaps)
        return walk(what._replace(base_offset=self.base_offset))

    def batches_from(self, offset: int) -> Iterator[tuple[int, Batch] | Damage]:
        """The batches from the first one whose last offset is at or beyond `offset`, with their positions."""
        for found in self.walk(self.position_of(offset)):
            if isinstance(found, Damage):
                if found.next_offset > offset:
                    yield found
            elif found[1].header.last_offset >= offset:
                yield found

    def find_batch(self, offset: int) -> Batch | None:
        """The batch that holds an offset, or else the next one; None behind the last.

        Raises `DamagedRange` if the offset lies in one. One or two reads, for a point lookup: steps over headers
        from an index entry on, and checks only the batch that it comes to; where anything does not fit, walks with
        care. A batch's offsets are not under its CRC: they must follow the batch before, or be what the index says.
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
        if len(data) == size:
            batch = Batch(parse_header(data), data)
            hides = (
                batch.header.has_holes
                and self._offset_at(position + size) < batch.header.next_offset
            )
            if batch.is_valid and not hides:
                return batch
        return self._find_batch_carefully(offset)

    def _offset_at(self, position: int) -> int:
        """The offset that stands at the start of a batch, true or not; beyond all offsets at the end of the file."""
        head = self.read(position, LENGTH_OVERHEAD)
        return START.unpack_from(head)[0] if len(head) == LENGTH_OVERHEAD else self.limit_offset

    def _look_from(self, offset: int) -> tuple[int, int, int]:
        """Where to look for an offset, the offset that stands there, and how much to read at once.

        The text index tells all three. Without one, the offset index tells the position, and the last offset of
        the batch there, whose length in offsets is under its CRC.
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

    def skip_earlier(self, position: int, timestamp: int) -> tuple[int, int | None]:
        """Step over headers, from a batch on, to the first that reaches a time.

        Returns where the batch before it starts, and its base offset: None if headers ceased to lead to one
        another. Nothing is checked but that, so what comes of it is to be checked by who reads it.
        """
        before, expected = position, None
        window, window_start = self.read(position, POINT_READ_BYTES), position
        while True:
            at = position - window_start
            if at + HEADER_SIZE > len(window):
                window, window_start, at = self.read(position, POINT_READ_BYTES), position, 0
                if len(window) < HEADER_SIZE:
                    return before, None
            header = parse_header(window, at)
            follows = expected is None or header.base_offset == expected
            if header.magic != MAGIC or not follows or header.size_bytes < HEADER_SIZE:
                return before, None
            if header.max_timestamp >= timestamp:
                return before, header.base_offset
            before, position, expected = position, position + header.size_bytes, header.next_offset

    def _find_batch_carefully(self, offset: int) -> Batch | None:
        """As `find_batch`, by the careful walk from the offset index's entry on."""
        for found in self.walk(self.position_of(offset), chunk_bytes=POINT_READ_BYTES):
            if isinstance(found, Damage):
                if found.first_offset <= offset < found.next_offset:
                    raise found.error(self.path)
            elif found[1].header.last_offset >= offset:
                return found[1]
        return None

    @property
    def limit_offset(self) -> int:
        """Above all offsets that may be in the segment."""
        limit = self.base_offset + MAX_RELATIVE_OFFSET + 1
        return limit if self.next_base is None else min(limit, self.next_base)

    # Writing: the active segment alone.

    def activate(self, config: LogConfig, now_ms: int, *, create: bool = False) -> None:
        """Make the segment ready for appends: its files exist, and its indexes have room."""
        self._begin_writing()
        if create:
            self._file = self._disk.open(self.path, write=True, create=True)
            if self._disk.size(self._file):
                self._disk.truncate(self._file, 0)
            for index in self.indexes:
                index.reset()
            self.txn_index.remove()
            self._tip = Tip(0, self.base_offset, NO_TEXT)
            self.gaps = False
            self.created_ms = now_ms
        elif self._tip is not None:
            # Measured before the index gets room for more.
            _ = self.tip
        self.has_room = True
        if config.preallocate and not self.size_bytes:
            self._disk.truncate(self.file, config.segment_bytes)
        self.offset_index.preallocate(config.segment_index_bytes)
        self.time_index.preallocate(config.segment_index_bytes)
        # As many entries as the offset index, and the closing one.
        entries = config.segment_index_bytes // self.offset_index.entry.size + 1
        self.text_index.preallocate(entries * self.text_index.entry.size)
        self.is_active = True
        self._indexes_are_full = self.offset_index.is_full or self.time_index.is_full
        jitter = min(config.segment_jitter_ms, config.segment_ms)
        self._jitter_ms = random.randrange(2**31) % jitter if jitter > 0 else 0
        self.max_entry = self.max_timestamp

    def append(
        self,
        data: bytearray | memoryview,
        last_offset: int,
        max_timestamp: int,
        text: TextSize,
        interval_bytes: int,
    ) -> None:
        """Write one batch behind the last, and an index entry if one is due (kafka-storage 3.3, per batch).

        The batch has its offsets. After an `OSError` the tip stands where it stood; what of the batch may be in
        the file is for the caller to cut off.
        """
        tip = self.tip
        position = tip.size_bytes
        size = len(data)
        is_due = self._bytes_since_entry > interval_bytes
        if is_due:
            for index in self.indexes:
                index.reserve()
        self._disk.write(self.file, position, data)
        if position == 0 and self._rolling_timestamp is None:
            self._rolling_timestamp = max_timestamp
        if max_timestamp > self.max_entry.timestamp:
            self.max_entry = TimeEntry(max_timestamp, last_offset)
        if is_due:
            self._add_entries(last_offset, tip)
        self._bytes_since_entry += size
        self._tip = Tip(position + size, last_offset + 1, tip.text.plus(text))

    def adopt(self, batches: Sequence[BatchInfo], interval_bytes: int) -> None:
        """Take in batches that stand behind the tip, all at once; an index without room for entries is sparser."""
        tip = self.tip
        for batch in batches:
            last_offset = batch.next_offset - 1
            if batch.position == 0:
                self._rolling_timestamp = batch.max_timestamp
            if batch.max_timestamp > self.max_entry.timestamp:
                self.max_entry = TimeEntry(batch.max_timestamp, last_offset)
            if self._bytes_since_entry > interval_bytes and not self._indexes_are_full:
                with suppress(OSError):
                    for index in self.indexes:
                        index.reserve()
                    self._add_entries(last_offset, tip)
            self._bytes_since_entry += batch.size_bytes
            text = tip.text.plus(batch.text)
            tip = Tip(batch.position + batch.size_bytes, batch.next_offset, text)
        self._tip = tip

    def _add_entries(self, last_offset: int, tip: Tip) -> None:
        """An entry in each index for the batch that begins at the tip."""
        self.offset_index.append(last_offset, tip.size_bytes)
        self.time_index.maybe_append(*self.max_entry)
        if not self.text_index.is_full:
            self.text_index.append(tip.next_offset, tip.size_bytes, tip.text)
        self._bytes_since_entry = 0
        self._indexes_are_full = self.offset_index.is_full or self.time_index.is_full

    def should_roll(
        self, size: int, last_offset: int, max_timestamp: int, config: LogConfig, now_ms: int
    ) -> bool:
        """Whether a batch of `size` bytes belongs in a new segment (kafka-storage 4.1)."""
        held = self.size_bytes
        if held > config.segment_bytes - size:
            return True
        if held and self._waited_ms(max_timestamp, now_ms) > self.max_ms(config):
            return True
        if self._indexes_are_full:
            return True
        return not 0 <= last_offset - self.base_offset <= MAX_RELATIVE_OFFSET

    def max_ms(self, config: LogConfig) -> int:
        """How old it may get, its own jitter taken off (kafka-storage 4.1)."""
        limit = config.segment_ms
        if config.is_compacted:
            limit = min(limit, config.max_compaction_lag_ms)
        return limit - self._jitter_ms

    def _waited_ms(self, max_timestamp: int, now_ms: int) -> int:
        if self._rolling_timestamp is None:
            self._rolling_timestamp = self.first_timestamp
        if self._rolling_timestamp >= 0:
            return max_timestamp - self._rolling_timestamp
        return now_ms - self.created_ms

    @property
    def first_timestamp(self) -> int:
        """The greatest timestamp of the first batch (ms), -1 if there is none."""
        header = self.header(0)
        return -1 if header is None else header.max_timestamp

    def cut_back(self) -> None:
        """Cut the file to the tip, after a write that did not succeed."""
        if self._file is not None:
            # Else it could not be opened, and nothing was written.
            self._disk.truncate(self._file, self.tip.size_bytes)

    def seal(self, next_base: int) -> None:
        """Close the segment for good: closing entries, trimmed files (kafka-storage 3.5)."""
        self.finish()
        self.next_base = next_base

    def finish(self) -> None:
        """Write the closing entries and trim the files, at a roll or at a clean close."""
        tip = self.tip
        try:
            if self.max_entry.timestamp >= 0:
                self.time_index.maybe_append(*self.max_entry, closing=True)
            if tip.size_bytes and not self.text_index.is_full:
                self.text_index.append(tip.next_offset, tip.size_bytes, tip.text)
            for index in self.indexes:
                index.trim()
            if self._disk.writable and self._disk.size(self.file) != tip.size_bytes:
                self._disk.truncate(self.file, tip.size_bytes)
            self.has_room = False
        finally:
            # Last of all: from here on a flush, which may be under way in another thread, takes the indexes along.
            self.is_active = False

    def save_indexes(self, *, sync: bool) -> None:
        """Put the indexes that were collected in the place of the files; see `SparseIndex.save`."""
        for index in (*self.indexes, self.txn_index):
            index.save(sync=sync)

    def flush(self, *, indexes: bool) -> None:
        """Return when the .log file, and the indexes if asked, will survive a power cut: data before index."""
        self._disk.sync(self.file)
        if indexes:
            for index in (*self.indexes, self.txn_index):
                index.flush()
            if not self.is_active:
                self._end_writing()

    def truncate(self, offset: int, config: LogConfig, now_ms: int) -> None:
        """Drop the batch that holds `offset` and all behind it, and go on from there (kafka-storage 10.4).

        The next offset becomes `offset`; where offsets have no gaps, the first of the batch that was cut, for
        recovery would have to take a batch behind a gap for one with a damaged header. Cuts the indexes too, and
        gives them room again.
        """
        self._begin_writing()
        position = self.size_bytes
        text = self.tip.text
        if offset <= self.base_offset:
            position, text = 0, NO_TEXT
        else:
            cut = next(
                (found for found in self.batches_from(offset) if not isinstance(found, Damage)),
                None,
            )
            if cut is not None:
                position, text = cut[0], self.text_before(cut[0])
                offset = offset if self.gaps else min(offset, cut[1].header.base_offset)
        self._tip = Tip(position, offset, text)
        self._disk.truncate(self.file, position)
        # Before anything is appended there: a crash must neither bring the dropped records back nor mix them in.
        self._disk.sync(self.file)
        self.offset_index.truncate(offset)
        self.time_index.truncate(offset)
        self.text_index.truncate(position)
        self.txn_index.truncate(offset)
        self.max_entry = self.time_index.last
        for found in self.walk(self.position_of(self.max_entry.offset)):
            if not isinstance(found, Damage):
                self._note_max(found[1].header)
        self.content = object()
        self._bytes_since_entry = 0
        if position == 0:
            self._rolling_timestamp = None
            self.created_ms = now_ms
        self.next_base = None
        self.activate(config, now_ms)

    def _note_max(self, header: Header) -> None:
        if header.max_timestamp > self.max_entry.timestamp:
            self.max_entry = TimeEntry(header.max_timestamp, header.last_offset)

    # Text.

    def text_before(self, position: int) -> TextSize:
        """The text of the batches that end at or before a position, which is the start of a batch."""
        entry = self.text_index.lookup_position(position)
        text = entry.before
        for found in self.walk(entry.position, position, first_offset=entry.offset):
            text = text.plus(text_size(found if isinstance(found, Damage) else found[1]))
        return text

    def _load_tip(self) -> Tip:
        """The tip by the closing entry of the text index, or where that is missing, by reading the log."""
        size = self.size_bytes
        if not text_fits(self) or self.text_index.last.position != size:
            self._disk.check_may_block()
            with self._rebuilding:
                if self._tip is None or self._tip.text is UNMEASURED:
                    rebuild_text(self)
        self._tip = Tip(size, self.next_offset, self.text_index.last.before)
        return self._tip

    def resume(self, tip: Tip, max_entry: TimeEntry) -> None:
        """Take what loading found of the last segment."""
        self._tip = tip
        self.max_entry = max_entry


POINT_READ_BYTES = 16 * 1024
# What lies between two index entries is hardly ever more than a batch of the default max.message.bytes.
_MOST_READ_BYTES = 2 * 1024 * 1024
