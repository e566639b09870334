"""Build the indexes of a segment from its .log file (kafka-storage 3.4; rule 3 of docs/architecture.md).

The entries are collected in memory, and new files replace the old ones by renames. If the process is killed, each
index is the old one or the new one (on a full disk, see `Disk.ensure_file`).
"""

from __future__ import annotations

from bisect import bisect_right
from contextlib import suppress
from typing import TYPE_CHECKING

from logfs.errors import Corrupt
from logfs.format.base.batch_rows import MAX_TIMESTAMP, NEXT_OFFSET, SPAN_BASE_OFFSET
from logfs.format.base.lazy_numpy import np
from logfs.format.batches.batch import LENGTH_OVERHEAD, MAGIC, MAGIC_AT, START
from logfs.format.batches.legacy import SMALLEST_BYTES
from logfs.format.text.rendering import NO_TEXT, TextSize, measure
from logfs.log.segment.batch_iterator import Damage, DamagedRange
from logfs.log.segment.batch_scanner import scan_segment, survey, text_size
from logfs.log.segment.index import OffsetIndex, TimeEntry
from logfs.log.segment.text_index import TextEntry, TextIndex

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from logfs.log.segment.batch_scanner import ScannedBatches
    from logfs.log.segment.index import TimeIndex
    from logfs.log.segment.segment import Segment

# Kafka's default index.interval.bytes.
_INTERVAL_BYTES = 4096


def _due(positions: NDArray[np.int64], last_entry: int, interval_bytes: int) -> list[int]:
    """Return the indexes in `positions` of the batches that get an index entry.

    `positions` are the positions of all batches, ascending, and `last_entry` is that of the last entry so far. A
    batch gets an entry if it begins more than `interval_bytes` after the last entry before it.
    """
    known, due = positions.tolist(), []
    row = bisect_right(known, last_entry + interval_bytes)
    while row < len(known):
        due.append(row)
        row = bisect_right(known, known[row] + interval_bytes, row)
    return due


def index_limits(max_bytes: int) -> tuple[int, int, int]:
    """Return the size limits (bytes) of the offset, the time and the text index.

    `max_bytes` is the setting segment.index.bytes. The text index may have one entry more than the offset index: the
    closing entry, which sealing adds.
    """
    text_bytes = (max_bytes // OffsetIndex.entry.size + 1) * TextIndex.entry.size
    return max_bytes, max_bytes, text_bytes


class TextBuilder:
    """A builder that adds text index entries for the batches of a segment, in order.

    `position` is the end of the batches and damage added so far, and `text` the text size of the segment before it.
    """

    def __init__(
        self, index: TextIndex, interval_bytes: int, after: tuple[int, TextSize] | None = None
    ) -> None:
        """Continue after the last entry of `index`, with an entry about every `interval_bytes` of log.

        `after` is a pair: the position from which the next interval is measured, and the text size of all batches
        before the first one that will be added. Without it, both are those of the last entry of `index`.
        """
        self._index = index
        self._interval_bytes = interval_bytes
        self._last_entry, self.text = after or (index.last.position, index.last.before)
        self.position = self._last_entry

    def add(self, found: ScannedBatches | Damage) -> None:
        """Add the entries that are due for the next batches or damage, and add their text size to `text`.

        The batches must be measured: `found.sizes` has their text sizes. Damage gets one entry for its start and one
        for its end. A full index gets no more entries.
        """
        if isinstance(found, Damage):
            self.add_entry(found.first_offset, found.start)
            self.text = self.text.plus(text_size(found))
            self.add_entry(found.next_offset, found.end)
            self.position = found.end
            return
        index, positions = self._index, found.positions
        assert found.sizes is not None
        ends = np.cumsum(found.sizes, axis=0) + np.array(self.text, np.int64)
        due = _due(positions, self._last_entry, self._interval_bytes)[: index.room]
        self.text = TextSize(*ends[-1].tolist())
        self.position = found.end
        if due:
            self._last_entry = int(positions[due[-1]])
            rows = zip(
                found.rows[due, SPAN_BASE_OFFSET].tolist(),
                positions[due].tolist(),
                (ends - found.sizes)[due].tolist(),
                strict=True,
            )
            index.append_all((offset, at, TextSize._make(text)) for offset, at, text in rows)

    def add_entry(self, offset: int, position: int) -> None:
        """Add an entry for `position`, unless the last entry is at or after it, or the index is full.

        `offset` is above the offsets of all batches before `position`, whose text size is `text`.
        """
        if position > self._last_entry and not self._index.is_full:
            self._index.append(offset, position, self.text)
            self._last_entry = position


class LookupBuilder:
    """A builder of offset and time index entries for the batches of a segment, in order (kafka-storage 3.3)."""

    def __init__(
        self,
        offset_index: OffsetIndex,
        time_index: TimeIndex,
        interval_bytes: int,
        last_entry: int = 0,
        max_entry: TimeEntry | None = None,
    ) -> None:
        """Prepare to add an entry about every `interval_bytes` of log after the position `last_entry`.

        `max_entry` is the time index entry for the greatest timestamp of the batches so far; None if there are none.
        """
        self.max_entry = max_entry or TimeEntry(-1, offset_index.base_offset)
        self.last_entry = last_entry
        self._offset_index = offset_index
        self._time_index = time_index
        self._interval_bytes = interval_bytes

    def add(self, found: ScannedBatches) -> None:
        """Process the next batches: note their greatest timestamp, and add the index entries that are due."""
        offset_index, time_index = self._offset_index, self._time_index
        positions, rows = found.positions, found.rows
        lasts, times = rows[:, NEXT_OFFSET] - 1, rows[:, MAX_TIMESTAMP]
        # For each row, `row_of` is the first row that has the greatest timestamp so far; -1 if an earlier call of
        # `add` has found this timestamp.
        greatest = np.maximum.accumulate(np.maximum(times, self.max_entry.timestamp))
        before = np.concatenate(([self.max_entry.timestamp], greatest[:-1]))
        row_of = np.maximum.accumulate(np.where(times > before, np.arange(len(rows)), -1))

        known = self.max_entry

        def max_entry(row: int) -> TimeEntry:
            of = int(row_of[row])
            return TimeEntry(int(times[of]), int(lasts[of])) if of >= 0 else known

        newest = time_index.last.timestamp
        offset_entries: list[tuple[int, int]] = []
        time_entries: list[TimeEntry] = []
        # An index that is full gets no more entries. This happens if segment.index.bytes is too small for
        # index.interval.bytes.
        room, time_room = offset_index.room, time_index.room
        for row in _due(positions, self.last_entry, self._interval_bytes):
            if len(offset_entries) >= room or len(time_entries) >= time_room:
                break
            self.last_entry = int(positions[row])
            offset_entries.append((int(lasts[row]), self.last_entry))
            entry = max_entry(row)
            if entry.timestamp > newest:
                newest = entry.timestamp
                time_entries.append(entry)
        # Set before the appends, which raise on a full disk: a caller may then continue without the entries.
        self.max_entry = max_entry(-1)
        offset_index.append_all(offset_entries)
        time_index.append_all(time_entries)


class IndexBuilder:
    """A builder of the three indexes of a segment. It collects their entries in memory.

    An entry is added about every `interval_bytes` of log. `max_bytes` is the setting segment.index.bytes: a full
    index gets no more entries. `Segment.save_indexes` writes the files. `end` is the offset after the batches added
    so far, `text` is their text size, and `max_entry` the time index entry for their greatest timestamp.
    """

    def __init__(self, segment: Segment, interval_bytes: int, max_bytes: int) -> None:
        for index, limit in zip(segment.indexes, index_limits(max_bytes), strict=True):
            index.collect(limit)
        offset_index, time_index, text_index = segment.indexes
        self._texts = TextBuilder(text_index, interval_bytes)
        self._lookups = LookupBuilder(offset_index, time_index, interval_bytes)
        # The offset after the batches added so far, their text size, and the entry for their greatest timestamp.
        self.end, self.text = segment.base_offset, NO_TEXT
        self.max_entry = self._lookups.max_entry

    def add(self, found: ScannedBatches | Damage) -> None:
        """Add the entries that are due for the next batches or damage; update `end`, `text` and `max_entry`.

        The batches must be measured: `found.sizes` has their text sizes.
        """
        self._texts.add(found)
        if not isinstance(found, Damage):
            self._lookups.add(found)
        self.end, self.text = found.next_offset, self._texts.text
        self.max_entry = self._lookups.max_entry


def rebuild_lookups(segment: Segment) -> tuple[OffsetIndex, TimeIndex]:
    """Rebuild the offset and the time index of a sealed segment from its log; replace their files and return them."""
    offset_index, time_index, _ = segment.new_indexes()
    offset_index.collect()
    time_index.collect()
    builder = LookupBuilder(offset_index, time_index, _INTERVAL_BYTES)
    for found in scan_segment(segment, 0, segment.base_offset):
        if not isinstance(found, Damage):
            builder.add(found)
    if builder.max_entry.timestamp >= 0:
        time_index.maybe_append(*builder.max_entry, closing=True)
    offset_index.save(sync=True)
    time_index.save(sync=True)
    return offset_index, time_index


def lookup_fits(segment: Segment, number: int) -> bool:
    """Whether the offset index (`number` 0) or time index (1) of a sealed segment passes a cheap check.

    The check is whether the file's size and last entry are possible for this segment. The last entry of the time
    index decides which segment is searched for a time, so it is also compared with the log.
    """
    if number == 0:
        return segment.offset_index.can_be(segment.next_offset, segment.size_bytes)
    times = segment.time_index
    if not times.can_be(segment.next_offset, segment.first_batch_timestamp):
        return False
    with suppress(DamagedRange):
        # If the closing entry is missing, the last batch is newer than the last entry, unless timestamps decrease.
        newest = segment.find_batch(segment.next_offset - 1)
        if newest is not None and newest.header.max_timestamp > times.last.timestamp:
            return False
    return not len(times) or segment.has_batch_of(times.last)


def text_fits(segment: Segment) -> bool:
    """Whether the last one or two entries of a segment's text index agree with the log: a cheap check of the index.

    They do not agree, for example, if another program has truncated the log. An index without entries passes.
    """
    index = segment.text_index
    size = segment.size_bytes
    if not index.is_end_right:
        return False
    try:
        last = index.last
        number = len(index) - (2 if last.position == size else 1)
        entry = index[number]
    except Corrupt:
        return False
    if last.position > size or last.offset > segment.limit_offset:
        return False
    if number < 0:
        return True
    data = segment.read(entry.position, SMALLEST_BYTES)
    if len(data) < SMALLEST_BYTES or data[MAGIC_AT] > MAGIC:
        return False
    offset, length = START.unpack_from(data)
    fits = SMALLEST_BYTES <= LENGTH_OVERHEAD + length <= size - entry.position
    return bool(fits and entry.offset <= offset < segment.limit_offset)


def text_entries(
    segment: Segment, before: TextEntry, after: TextEntry | None, count: int
) -> list[TextEntry]:
    """Return `count` text index entries, made from the log, to replace damaged ones between two valid entries.

    Without `after`, the last new entry is for the end of the segment. Returns an empty list if there are too few
    batches between `before` and `after`, or if their text has another size than the two entries say.
    """
    # The offset, position and text size of each batch or damaged range between the two entries. None stands for a
    # size that is derived from the other sizes.
    parts: list[tuple[int, int, TextSize | None]] = []
    missing = NO_TEXT if after is None else after.before.minus(before.before)
    end = None if after is None else after.position
    for found in segment.walk(before.position, end, first_offset=before.offset):
        size: TextSize | None = None
        if isinstance(found, Damage):
            first, position = found.first_offset, found.start
            if found.end == found.start:
                size = NO_TEXT
        else:
            first, position = found[1].header.base_offset, found[0]
            with suppress(Corrupt):
                size = measure(found[1])
        if size is None and after is None:
            size = text_size(found)
        parts.append((first, position, size))
        missing = missing.minus(size or NO_TEXT)
    is_damaged = any(size is None for _, _, size in parts)
    if after is not None and (min(missing) < 0 or (max(missing) and not is_damaged)):
        return []
    entries = [before]
    text = before.before
    for first, position, size in parts:
        if position > entries[-1].position:
            entries.append(TextEntry(first, position, text))
        if size is None:
            # If several ranges are damaged, the first gets all of the missing text, as in text views.
            size, missing = missing, NO_TEXT
        text = text.plus(size)
    del entries[0]
    closing = [TextEntry(segment.next_offset, segment.size_bytes, text)] if after is None else []
    # The other entries are spaced evenly, as in an index that was never damaged.
    between, wanted = len(entries), count - len(closing)
    if between < wanted:
        return []
    return [*(entries[n * between // wanted] for n in range(wanted)), *closing]


def rebuild_text(segment: Segment) -> None:
    """Bring a segment's text index up to date with its log, which another program has written or continued."""
    index = segment.text_index
    size = segment.size_bytes
    index.collect(keep=text_fits(segment))
    builder = TextBuilder(index, _INTERVAL_BYTES)
    for found in survey(segment, builder.position, index.last.offset):
        if isinstance(found, Damage) and found.end == size:
            # The damaged bytes do not show how many offsets they held, but the segment's `next_offset` does.
            found = found._replace(next_offset=max(found.next_offset, segment.next_offset))
        builder.add(found)
    builder.add_entry(segment.next_offset, size)
    # The new file is synced, because it is not checked again after a crash.
    index.save(sync=True)
