"""Isolation level read_committed: which batches it hides, and the text of the other batches.

Readers with this level see the records below the last stable offset. They do not see the records of aborted
transactions (kafka-storage 9.6).
"""

from __future__ import annotations

import enum
from bisect import bisect_left, bisect_right
from contextlib import suppress
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

from logfs.errors import InvalidSetting
from logfs.format.base.batch_rows import ATTRIBUTES, NEXT_OFFSET, PRODUCER_ID, SPAN_BASE_OFFSET
from logfs.format.base.lazy_numpy import np
from logfs.format.batches.batch import CONTROL_BIT, TRANSACTIONAL_BIT
from logfs.format.text import rendering
from logfs.locks import Level, make_lock
from logfs.log.read.text_view import TextView
from logfs.log.segment.batch_iterator import Damage, DamagedRange
from logfs.log.segment.batch_scanner import scan_from
from logfs.log.state.log_state import segments_from

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence, Set

    from numpy.typing import NDArray

    from logfs.format.batches.batch import Header
    from logfs.format.batches.columns import Columns
    from logfs.format.files.aborted_transactions import AbortedTransaction
    from logfs.format.text.rendering import View
    from logfs.log.read.reader import Reader
    from logfs.log.segment.batch_scanner import ScannedBatches
    from logfs.log.segment.segment import Segment

    # The aborted transactions of each producer id, each as (first offset, offset of the abort marker), in the order
    # of their markers.
    Aborted = Mapping[int, Sequence[tuple[int, int]]]


class Isolation(enum.Enum):
    """Which transactions a reader sees. The values are those of Kafka's `isolation.level`."""

    READ_UNCOMMITTED = "read_uncommitted"
    READ_COMMITTED = "read_committed"


IsolationLevel: TypeAlias = Literal["read_uncommitted", "read_committed"]
"""The name of an isolation level, as in Kafka's `isolation.level`."""


def isolation_level(text: str) -> Isolation:
    """Return the isolation level named `text`, such as `read_committed`. Raises `InvalidSetting` for other texts."""
    try:
        return Isolation(text)
    except ValueError:
        levels = ", ".join(level.value for level in Isolation)
        raise InvalidSetting(f"isolation level {text!r}: give one of {levels}") from None


def is_aborted(aborted: Aborted, producer_id: int, base_offset: int) -> bool:
    """Return whether a producer's transactional batch at `base_offset` is in one of the `aborted` transactions."""
    ranges = aborted.get(producer_id, ())
    number = bisect_right(ranges, base_offset, key=lambda found: found[0]) - 1
    return number >= 0 and base_offset < ranges[number][1]


def aborted_rows(rows: NDArray[np.int64], aborted: Aborted) -> NDArray[np.bool_]:
    """Return which of the scanned batches in `rows` belong to `aborted` transactions, as bool[batches]."""
    found = np.zeros(len(rows), np.bool_)
    kind = rows[:, ATTRIBUTES] & (TRANSACTIONAL_BIT | CONTROL_BIT)
    for number in np.flatnonzero(kind == TRANSACTIONAL_BIT).tolist() if aborted else ():
        found[number] = is_aborted(aborted, *rows[number, [PRODUCER_ID, SPAN_BASE_OFFSET]].tolist())
    return found


class HiddenRange(NamedTuple):
    """A part of the text of all records, bytes [start, end), that read_committed hides.

    `hidden` is the number of hidden bytes from the beginning of the text up to `end`.
    """

    start: int
    end: int
    hidden: int


_NOTHING_HIDDEN = HiddenRange(0, 0, 0)


class CommittedText:
    """A text view like `TextView`, but only of the records that a reader with isolation level read_committed sees.

    It is the text of all records without the hidden bytes, which are kept as a list of `HiddenRange`s. All
    transactions below the last stable offset have ended, so ranges are only added at the end, and the view only
    grows, until the log is truncated. For example, in a log of the records a, B (aborted) and c, the text of all
    records is "a\\nB\\nc\\n", and the hidden range [2, 4) leaves "a\\nc\\n".
    """

    def __init__(
        self, reader: Reader, view: View, start: int | None = None, end: int | None = None
    ) -> None:
        self._reader = reader
        self._all = TextView(reader.log, view, start, end)
        self._end_offset = end
        # The hidden ranges in order. The first one begins at byte 0, and may be empty.
        self._hidden_ranges = [_NOTHING_HIDDEN]
        self._finding = make_lock(Level.HIDDEN)
        self.first_offset, self.generation = self._all.first_offset, self._all.generation
        # The offset up to which the hidden ranges are known, and the size (bytes) of the view's text below this
        # offset.
        self._searched = (self.first_offset, 0)

    @property
    def size(self) -> int:
        """The current size of the view in bytes. Computing it may read the log, to find new hidden ranges."""
        state = self._reader.state
        stable = state.log_end_offset
        if self.is_behind_truncation:
            with self._reader.disk.hold(self._finding):
                self._follow_truncation(stable)
        end = stable if self._end_offset is None else min(stable, self._end_offset)
        offset, size = self._searched
        if end <= offset:
            return size
        with self._reader.disk.hold(self._finding):
            offset, size = self._searched
            if end > offset:
                # Use the view's segments: a segment that has left the log still lists the transactions aborted in it.
                segments = segments_from(self._all.segments, offset)
                left: set[Segment] = set()
                if not self._reader.disk.writable:
                    # Another process may have removed some of these segments from the log.
                    left = {each for each in segments if each.base_offset < end} - {*state.segments}
                # A transaction with records in a removed segment may be aborted after the removal: then only the
                # segments that are still in the log list it.
                later = state.segments_from(offset) if left else ()
                aborted = _aborted_between(offset, end, segments, later)
                # Call `position_of`, which may raise an error, before `_hide` adds hidden ranges. Otherwise they
                # would stay after the error, and the next use of `size` would add them again.
                stop = self._all.position_of(end)
                if aborted or left:
                    self._reader.check_may_block()
                    self._hide(aborted, left, offset, end, segments)
                size = stop - self._hidden_ranges[-1].hidden
                self._searched = (end, size)
        return size

    @property
    def is_behind_truncation(self) -> bool:
        """Whether the log was truncated after the view was made and after the last use of `size` or `read`."""
        return self._all.is_behind_truncation

    def is_cut_below(self, offset: int) -> bool:
        """Adapt the view to truncations of the log; return whether the view now ends permanently below `offset`."""
        _ = self.size
        return self._end_offset is not None and self._end_offset < offset

    @property
    def is_closed(self) -> bool:
        """Whether the view has reached its end and grows no more, as of the last use of `size` or `read`."""
        return self._end_offset is not None and self._searched[0] >= self._end_offset

    @property
    def is_whole(self) -> bool:
        """Whether byte 0 of the view can still be read."""
        return self._all.is_whole

    def read(self, position: int, size: int, *, up_to_damage: bool = False) -> bytes:
        """Return the bytes [position, position + size) of the view, fewer at its end.

        Raises `DamagedRange` if any of these bytes is damaged. With `up_to_damage`, returns the bytes before the
        damage, and raises only if the first byte is damaged. Raises `OffsetOutOfRange` for bytes whose segment is not
        kept any more.
        """
        stop = min(position + size, self.size)
        parts = []
        while position < stop:
            number = bisect_right(
                self._hidden_ranges, position, key=lambda each: each.end - each.hidden
            )
            at = position + self._hidden_ranges[number - 1].hidden
            wanted = stop - position
            if number < len(self._hidden_ranges):
                wanted = min(wanted, self._hidden_ranges[number].start - at)
            try:
                parts.append(self._all.read(at, wanted, up_to_damage=up_to_damage))
            except DamagedRange:
                if parts and up_to_damage:
                    break
                raise
            position += len(parts[-1])
            if len(parts[-1]) < wanted:
                break
        return b"".join(parts)

    def position_of(self, offset: int) -> int:
        """Return the byte position in the view of the first shown record with an offset of at least `offset`.

        Returns the end of the text if there is none. `offset` is at most the last stable offset.
        """
        _ = self.size
        return self._without_hidden(self._all.position_of(offset))

    def columns(self, start: int, end: int) -> Columns:
        """Return the shown records in [start, end) as numpy arrays; `end` is at most the last stable offset."""
        _ = self.size
        columns = self._all.columns(start, end)
        renderer = self._all.renderer
        sizes = rendering.sizes(columns, renderer.view, len(renderer.prefix))
        if not len(sizes):
            return columns
        starts = self._all.position_of(start) + np.cumsum(sizes) - sizes
        first, last = (self._range_at(at) for at in starts[[0, -1]].tolist())
        ranges = np.array([each[:2] for each in self._hidden_ranges[first : last + 1]])
        hidden = starts < ranges[np.searchsorted(ranges[:, 0], starts, "right") - 1, 1]
        return columns.select(~hidden) if hidden.any() else columns

    def offset_for_time(self, timestamp: int, start: int, end: int) -> int | None:
        """Return the offset of the first shown record in [start, end) with a time of at least `timestamp` (ms).

        Returns None if there is no such record.
        """
        _ = self.size

        def shows(header: Header) -> bool:
            return not header.is_control and not (
                header.is_transactional and self._is_hidden(header.base_offset)
            )

        return self._all.offset_for_time(timestamp, start, end, shows)

    def _is_hidden(self, base_offset: int) -> bool:
        """Whether the batch that begins at `base_offset` is hidden."""
        at = self._all.position_of(base_offset)
        return at < self._hidden_ranges[self._range_at(at)].end

    def _range_at(self, at: int) -> int:
        """Return the index of the last hidden range that begins at or before byte `at` of the text of all records.

        There always is such a range: the list begins with a range at byte 0, which is empty if byte 0 is not hidden.
        """
        return bisect_right(self._hidden_ranges, at, key=lambda each: each.start) - 1

    def _without_hidden(self, at: int) -> int:
        """Return the position in this view that corresponds to byte `at` of the text of all records.

        If this byte is hidden, the result is the position of the next shown record.
        """
        last = self._hidden_ranges[self._range_at(at)]
        # If `at` is in the hidden range, the `max` term leads to the position of the next shown record; otherwise the
        # term is 0.
        return at - last.hidden + max(last.end - at, 0)

    def release_before(self, position: int) -> None:
        """Note that readers have passed byte `position`: earlier segments that left the log need not be kept."""
        # `position` counts only the bytes that this view shows. The text of all records also has the hidden bytes, so
        # its byte `position` is never later in the log: no segment is released too early.
        self._all.release_before(position)

    def _follow_truncation(self, stable: int) -> None:
        """Adapt the view to a truncation of the log, and drop the hidden ranges of the records that were cut off.

        The view ends permanently if `size` has returned a larger size than the text has after the truncation. The
        view then ends at the offset of the truncation or, if it is lower, at the offset up to which the hidden ranges
        were known. `stable` is the last stable offset after the truncation. It may be below the offset of the
        truncation, because a transaction whose marker was cut off is open again.
        """
        offset, told = self._searched

        def has_shown(end: int) -> bool:
            return told > self._without_hidden(self._all.position_of(min(end, stable)))

        cut = self._all.follow_truncation(has_shown)
        if cut is None:
            # Another thread has followed this truncation already.
            return
        end, is_final = cut
        if is_final:
            known = end if self._end_offset is None else self._end_offset
            self._end_offset = min(end, offset, known)
        else:
            end = max(min(end, stable), self.first_offset)
        if offset <= end:
            return
        stop = self._all.position_of(end)
        kept = [each for each in self._hidden_ranges if each.start < stop] or [_NOTHING_HIDDEN]
        last = kept[-1]
        if last.end > stop:
            kept[-1] = HiddenRange(last.start, stop, last.hidden - (last.end - stop))
        self._hidden_ranges = kept
        self._searched = (end, stop - kept[-1].hidden)

    def _hide(
        self,
        aborted: Aborted,
        left: Set[Segment],
        start: int,
        end: int,
        segments: Sequence[Segment],
    ) -> None:
        """Hide the batches of `aborted` transactions with offsets in [start, end): add their hidden ranges.

        `segments` are the view's segments from `start` on. `left` are those of them that the log no longer has. In
        such a segment, a transactional batch is also hidden if the log no longer has a batch with its base offset:
        another process may have aborted the transaction and then compacted the log, so that no transaction index
        lists the transaction. If an error is raised, such as `WouldBlock` for a segment in a bucket, no range is
        added.
        """
        ranges = self._hidden_ranges[-1:]
        for segment in segments:
            if segment.base_offset >= end:
                break
            for run in scan_from(segment, start):
                if isinstance(run, Damage):
                    continue
                rows = run.rows
                kind = rows[:, ATTRIBUTES] & (TRANSACTIONAL_BIT | CONTROL_BIT)
                wanted = (kind == TRANSACTIONAL_BIT) & (rows[:, NEXT_OFFSET] > start)
                wanted &= rows[:, SPAN_BASE_OFFSET] < end
                hidden = wanted & aborted_rows(rows, aborted)
                for number in np.flatnonzero(wanted & ~hidden) if segment in left else ():
                    hidden[number] = not self._is_in_log(int(rows[number, SPAN_BASE_OFFSET]))
                if hidden.any():
                    self._add_hidden(ranges, run, np.flatnonzero(hidden).tolist(), end)
                if run.next_offset >= end:
                    break
        self._hidden_ranges[-1:] = ranges

    def _is_in_log(self, base_offset: int) -> bool:
        """Whether the log still has a batch with this base offset. Damage at the offset counts as such a batch."""
        with suppress(DamagedRange):
            batch = self._reader.log.state.segments_from(base_offset)[0].find_batch(base_offset)
            return batch is not None and batch.header.base_offset == base_offset
        return True

    def _add_hidden(
        self, ranges: list[HiddenRange], run: ScannedBatches, hidden: Sequence[int], end: int
    ) -> None:
        """Add to `ranges` the byte ranges of hidden batches in the text of all records.

        `hidden` has the indexes of these batches in `run`. Only records below the offset `end` are in the ranges.
        """
        sizes = self._all.renderer.sizes_of(run.text_sizes())
        # Count back from the end of the last batch: the first may begin before the view, where no position is known.
        ends = self._all.position_of(run.next_offset) - int(sizes.sum()) + np.cumsum(sizes)
        starts = (ends - sizes).tolist()
        next_offsets = run.rows[:, NEXT_OFFSET].tolist()
        for number in hidden:
            is_cut = next_offsets[number] > end
            start = max(starts[number], 0)
            stop = self._all.position_of(end) if is_cut else int(ends[number])
            last = ranges[-1]
            total = last.hidden + stop - start
            if last.end == start:
                ranges[-1] = HiddenRange(last.start, stop, total)
            else:
                ranges.append(HiddenRange(start, stop, total))


# The text of the records that a reader shows, as one long file.
Text = TextView | CommittedText


def _aborted_between(start: int, end: int, *several: Sequence[Segment]) -> Aborted:
    """Return the aborted transactions that begin below `end` and have their abort markers at or above `start`.

    `several` are lists of adjacent segments, whose transaction indexes are searched. Each list must begin with the
    segment that holds `start` or, if this segment has left the log, with the first one after it.
    """
    found: dict[int, set[tuple[int, int]]] = {}
    for segments in several:
        for entry in _entries_between(start, end, segments):
            if entry.first_offset < end:
                found.setdefault(entry.producer_id, set()).add(entry[1:3])
    return {producer_id: sorted(ranges) for producer_id, ranges in found.items()}


def _entries_between(
    start: int, end: int, segments: Sequence[Segment]
) -> Iterator[AbortedTransaction]:
    """Yield the aborted transactions of `segments` with abort markers at or above `start`.

    They are in the order of their markers. The iteration ends after the first transaction whose `last_stable_offset`
    is at least `end`: every transaction with a later marker begins at or above that offset.
    """
    for segment in segments:
        entries = segment.txn_index.entries
        first = bisect_left(entries, start, key=lambda entry: entry.last_offset)
        for entry in entries[first:]:
            yield entry
            # An entry's last stable offset is at most the offset after its marker. A greater one is damage: limit it.
            if min(entry.last_stable_offset, entry.last_offset + 1) >= end:
                return
