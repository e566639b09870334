"""The text of several logs as one growing text, in the order of time.

The size of the text is known at once: it is the sum of the sizes of the logs' texts. Records are in the order of
(time, log, offset), where the time of a record is the greatest timestamp in its log up to this record. A record that
is appended late, with an earlier time, must not move text that readers have seen. The text is therefore a sequence of
slices. A slice has the records that were appended to all logs between two checks of their ends, merged by time, and
never changes.

A read in the middle of a large slice does not merge the whole slice, but only its records from a time T on. The text
of these records is the last part of the slice's text. T is the latest time for which this part contains the wanted
byte. The time indexes and text indexes of the logs tell where these records begin.
"""

from __future__ import annotations

import sys
from bisect import bisect_right
from typing import TYPE_CHECKING, NamedTuple

from logfs.errors import OffsetOutOfRange
from logfs.format.text import envelope
from logfs.format.text.rendering import render
from logfs.locks import Level, make_lock
from logfs.log.read.merge import MergedRows, merge, rising

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from logfs.format.text.rendering import View
    from logfs.log.read.reader import Reader

# How many offsets of a log are read in one step.
_STEP = 16384
# A slice of at most this many offsets is read from its beginning.
_FEW = 2 * _STEP
# A read that begins at most this many bytes after the end of a kept `_Cursor` continues there.
_SKIP_BYTES = 4 << 20
# How many `_Cursor`s are kept for later reads.
_MOST_CURSORS = 4


class _Slice(NamedTuple):
    """A part of the merged text: of each log n, the records with offsets in [firsts[n], ends[n]).

    The slice begins at byte `start` of the merged text. The slice's records of log n begin at byte `places[n]` of the
    log's own text. `reached[n]` (ms) is a lower limit of the times of these records. It is at least the greatest
    timestamp in log n before the slice.
    """

    start: int
    firsts: Sequence[int]
    ends: Sequence[int]
    places: Sequence[int]
    reached: Sequence[int]


class _Cursor:
    """A place in the merged text where a read can continue.

    `data` is the last text that the cursor has read: bytes [start, end) of the merged text. The iterator `rows`
    yields the records after `data` as text, many at a time, up to the end of slice `number` (from 0).
    """

    def __init__(self, start: int, number: int, rows: Iterator[MergedRows]) -> None:
        self.start = self.end = start
        self.data = b""
        self.number = number
        self.rows = rows


class MergedText:
    """The text of several logs, merged by time. It begins at the log start offsets at the time of its creation.

    Any thread may use it. A thread that must not wait gets `WouldBlock`, and repeats the call in another thread.
    """

    def __init__(self, logs: Sequence[Reader], view: View) -> None:
        self._logs = logs
        self._view = view
        self._texts = [log.text(view) for log in logs]
        self._lock = make_lock(Level.MERGING)
        self._slices: list[_Slice] = []
        self._ends = [text.first_offset for text in self._texts]
        self._reached = [-1] * len(logs)
        self._size = 0
        self._cursors: list[_Cursor] = []
        # Whether a truncation has cut off records that are in the text.
        self._is_cut = False

    @property
    def identity(self) -> tuple[tuple[int, int], ...]:
        """The generation and first offset of each log. Texts with the same identity begin with the same bytes."""
        return tuple((text.generation, text.first_offset) for text in self._texts)

    @property
    def is_up_to_date(self) -> bool:
        """Whether the text has all records that the logs have now, so that `size` does not wait for the disk."""
        return self._ends_now() == self._ends

    def _ends_now(self) -> list[int]:
        return [
            max(text.first_offset, log.state.log_end_offset)
            for text, log in zip(self._texts, self._logs, strict=True)
        ]

    @property
    def is_current(self) -> bool:
        """Whether a new `MergedText` of these logs would have the same bytes.

        It would if the logs still have exactly the records of this text, and if this text has at most one slice: a
        new text merges all records as one slice.
        """
        if len(self._slices) > 1 or not self.is_up_to_date:
            return False
        return all(
            log.generation == text.generation and log.log_start_offset == text.first_offset
            for log, text in zip(self._logs, self._texts, strict=True)
        )

    @property
    def size(self) -> int:
        """The current size in bytes. It grows no more once a truncation has cut off records of the text."""
        with self._logs[0].disk.hold(self._lock):
            self._grow()
            return self._size

    def read(self, position: int, size: int) -> bytes:
        """Return the bytes [position, position + size), fewer at the end.

        Records that became part of the text can still be read after their log has deleted them. Raises `DamagedRange`
        at damage, and `OffsetOutOfRange` if a truncation of a log has cut off records of the text.
        """
        with self._logs[0].disk.hold(self._lock):
            self._grow()
            if self._is_cut:
                raise self._truncated()
            parts = []
            end = min(position + size, self._size)
            while position < end:
                part = self._read_some(position, end)
                parts.append(part)
                position += len(part)
            return b"".join(parts)

    def _grow(self) -> None:
        """Add one slice to the end of the text: the records that were appended to the logs since the last call.

        The text grows no more once a truncation has cut off records of it.
        """
        if any(text.is_behind_truncation for text in self._texts):
            cut = [text.is_cut_below(n) for text, n in zip(self._texts, self._ends, strict=True)]
            self._is_cut |= any(cut)
        ends = self._ends_now()
        if self._is_cut or ends == self._ends:
            return
        size = sum(text.position_of(end) for text, end in zip(self._texts, ends, strict=True))
        if size > self._size:
            firsts = self._ends
            before = [text.position_of(n) for text, n in zip(self._texts, firsts, strict=True)]
            self._slices.append(_Slice(self._size, firsts, ends, before, self._reached))
            self._size = size
        self._reached = [
            max(reached, *(s.max_timestamp.timestamp for s in log.log.state.segments_from(first)))
            for log, first, reached in zip(self._logs, self._ends, self._reached, strict=True)
        ]
        self._ends = ends

    def _truncated(self) -> OffsetOutOfRange:
        return OffsetOutOfRange(
            f"{self._logs[0].topic}: a partition was truncated; open the file again"
        )

    def _read_some(self, position: int, end: int) -> bytes:
        """Return some of the bytes [position, end), at least one."""
        for cursor in self._cursors:
            if cursor.start <= position <= cursor.end + _SKIP_BYTES:
                break
        else:
            cursor = self._seek(position)
            self._cursors.append(cursor)
            del self._cursors[:-_MOST_CURSORS]
        try:
            while cursor.end <= position:
                self._advance(cursor)
        except BaseException:
            # Do not reuse the cursor: a generator that has raised an error yields nothing more.
            self._cursors.remove(cursor)
            raise
        return cursor.data[position - cursor.start : end - cursor.start]

    def _advance(self, cursor: _Cursor) -> None:
        """Read the next text of a cursor's slice or, at the end of the slice, of the next slice into `data`.

        Raises `OffsetOutOfRange` if a truncation has cut off the rest of the text.
        """
        rows = next(cursor.rows, None)
        while rows is None:
            following = cursor.number + 1
            if following == len(self._slices) or self._slices[following].start != cursor.end:
                raise self._truncated()
            cursor.number, cursor.rows = following, self._rows(self._slices[following], -1)
            rows = next(cursor.rows, None)
        cursor.data = rows.text.tobytes()
        cursor.start, cursor.end = cursor.end, cursor.end + len(cursor.data)

    def _seek(self, position: int) -> _Cursor:
        """Return a cursor that begins at or shortly before byte `position`."""
        number = bisect_right(self._slices, position, key=lambda each: each.start) - 1
        part = self._slices[number]
        time, start = -1, part.start
        if sum(part.ends) - sum(part.firsts) > _FEW:
            # Find the latest time T for which the text of the slice's records from T on begins at or before
            # `position`.
            times = range(min(max(self._reached) + 1, sys.maxsize))
            time = bisect_right(times, position, key=lambda each: self._position_at(part, each)) - 1
            start = self._position_at(part, time)
        return _Cursor(start, number, self._rows(part, time))

    def _position_at(self, part: _Slice, time: int) -> int:
        """Return the byte of the merged text at which a slice's records with a time >= `time` (ms) begin."""
        offsets = self._offsets_at(part, time)
        places = [text.position_of(n) for text, n in zip(self._texts, offsets, strict=True)]
        return part.start + sum(places) - sum(part.places)

    def _offsets_at(self, part: _Slice, time: int) -> list[int]:
        """Return for each log the offset of its first record with a time >= `time` (ms) within a slice.

        For a log without such a record, the offset is the end of the log's part of the slice.
        """
        found = []
        for text, first, end, reached in zip(
            self._texts, part.firsts, part.ends, part.reached, strict=True
        ):
            at = first
            if reached < time:
                later = text.offset_for_time(time, first, end)
                at = end if later is None else later
            found.append(at)
        return found

    def _rows(self, part: _Slice, time: int) -> Iterator[MergedRows]:
        """Yield the text of a slice's records with a time >= `time` (ms), in the order of the merged text."""
        offsets = self._offsets_at(part, time)
        return merge([self._stream(number, first, part) for number, first in enumerate(offsets)])

    def _stream(self, number: int, first: int, part: _Slice) -> Iterator[MergedRows]:
        """Yield the text of the records of log `number` in the slice `part`, from the offset `first` on."""
        text, at, reached = self._texts[number], first, part.reached[number]
        prefix = envelope.prefix(self._logs[number].name)
        while at < part.ends[number]:
            stop = min(at + _STEP, part.ends[number])
            columns = text.columns(at, stop)
            at = stop
            if len(columns):
                times = rising(columns, reached)
                reached = int(times[-1])
                yield MergedRows(times, *render(columns, self._view, prefix))
