"""The text of a partition as one long file. The text indexes map bytes of this text to records."""

from __future__ import annotations

import sys
from bisect import bisect_right
from contextlib import suppress
from typing import TYPE_CHECKING
from weakref import WeakSet

from logfs.errors import LogfsError, OffsetOutOfRange
from logfs.locks import Level, make_lock
from logfs.log.disk.disk import Gone
from logfs.log.read.text_renderer import TextRenderer
from logfs.log.segment.batch_iterator import Damage
from logfs.log.state.log_state import segments_from

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from logfs.format.batches.batch import Header
    from logfs.format.batches.columns import Columns
    from logfs.format.text.rendering import View
    from logfs.log.read.reader import Reader
    from logfs.log.segment.segment import Segment
    from logfs.log.state.log_state import LogState

# How many segments a view keeps after they have left the log and readers have passed them: a reader may seek back.
KEPT_SEGMENTS = 16
# The position to pass to `release_before` when there is no reader.
NO_READER = sys.maxsize


class TextView:
    """The records from offset `start` on, up to `end` or to the growing log end, as one text.

    The text begins at `first_offset`: at `start`, or at the log start if that is higher or `start` is None. Byte 0 is
    the first byte of the first record at or after this offset. The view only grows: it keeps its segments after they
    have left the log (rule 4 of docs/architecture.md), so that the same bytes can be read again until
    `release_before` is called for them. After the log's `generation` has changed, this view still grows, but a new
    view may have different bytes at the same positions. If a truncation of the log removes records that a result of
    `size` has included, the view ends permanently at the offset of the truncation.

    Any thread may use it. A thread that must not wait gets `WouldBlock`; the call can be repeated in another thread.
    """

    def __init__(
        self, log: Reader, view: View, start: int | None = None, end: int | None = None
    ) -> None:
        self.log = log
        self.renderer = TextRenderer(log, view)
        # The segments that the view has reached, each with the byte at which its text begins. These bytes, and the
        # byte `_origin` at which the view begins, are counted from the start of the original first segment's text. A
        # segment and its byte are one tuple, so that a read during an append never finds one without the other.
        # Appends extend the list in place; a removal of its first segments replaces the list.
        self._segments: list[tuple[int, Segment]] = []
        # The segments of the log after those in `_segments`, as far as the view has listed them.
        self._ahead: list[Segment] = []
        self._extending = make_lock(Level.TEXT)
        # The argument of the last call of `release_before`: readers have passed the bytes before this position.
        self._passed = 0
        # The greatest size (bytes) that readers have been told.
        self._told = 0
        self._end_offset = end
        self._fixed_size: int | None = None
        with log.disk.hold(self._extending):
            # Register the view before the segments are listed: from now on, a log that this process writes calls
            # `pin` before it drops a segment. Until the lock is released, `pin` waits.
            log.views.add(self)
            state = log.state
            first = max(state.log_start_offset, 0 if start is None else start)
            reached, *self._ahead = state.segments_from(first)
            self._segments.append((0, reached))
            # Once the log has a higher generation than this one, a new view may have different bytes at the same
            # positions than this view.
            self.generation = state.generation
            self._truncations = state.truncations
            self._origin: int | None = None
        self.first_offset = first
        self._find_origin()

    @property
    def size(self) -> int:
        """The current size of the view in bytes."""
        self.follow_truncation(lambda end: self._told > self.position_of(end))
        if self._fixed_size is not None:
            return self._fixed_size
        origin = self._find_origin()
        if origin is None:
            return 0
        self._extend()
        end = self._end_offset
        if end is None:
            start, last = self._segments[-1]
            size = max(start + self.renderer.size_of(last.end.text) - origin, 0)
        else:
            is_final = end <= self.log.state.log_end_offset
            size = max(self._position_of(end) - origin, 0)
            if is_final:
                self._fixed_size = size
        self._told = max(self._told, size)
        return size

    @property
    def is_behind_truncation(self) -> bool:
        """Whether the log was truncated since the last `follow_truncation` (at first, since the view was made)."""
        return self.log.state.truncations is not self._truncations

    def follow_truncation(self, has_shown: Callable[[int], bool]) -> tuple[int, bool] | None:
        """Adapt the view to the truncations of the log since the last call.

        Only the lowest of the offsets to which the log was truncated counts. `has_shown` takes this offset, and
        returns whether readers may know of a record at or after it, for example from a result of `size`. If so, or if
        the offset is below `first_offset`, the view ends at the offset. Otherwise the view continues with the next
        appends. Returns (the offset, whether the view ends at it), or None if the log was not truncated since the
        last call.
        """
        known, state = self._truncations, self.log.state
        if state.truncations is known:
            return None
        end = min(state.truncations[len(known) :])
        is_shown = end < self.first_offset or has_shown(end)
        with self.log.disk.hold(self._extending):
            self._truncations, self._ahead, self._fixed_size = state.truncations, [], None
            if is_shown:
                self._end_offset = end if self._end_offset is None else min(end, self._end_offset)
            else:
                self._segments = [
                    pair
                    for pair in self._segments
                    if pair[1].base_offset < end or pair[1] in state.segments
                ]
        return end, is_shown

    def is_cut_below(self, offset: int) -> bool:
        """Adapt the view to new truncations of the log; return whether one has cut off records below `offset`.

        If so, the view ends at the offset of the truncation.
        """
        cut = self.follow_truncation(lambda end: end < offset)
        return cut is not None and cut[1]

    @property
    def is_closed(self) -> bool:
        """Whether the view has reached its end and grows no more, as of the last use of `size` or `read`."""
        return self._fixed_size is not None

    @property
    def is_whole(self) -> bool:
        """Whether byte 0 can still be read: the segment with this byte may have been released (`release_before`)."""
        return self._origin is None or self._segments[0][0] <= self._origin

    def read(self, position: int, size: int, *, up_to_damage: bool = False) -> bytes:
        """Return the bytes [position, position + size), fewer at the end of the view.

        Raises `DamagedRange` if any of these bytes is damaged: a shorter answer would look like the end of the file.
        With `up_to_damage`, returns the bytes before the damage, and raises only if the first byte is damaged. Raises
        `OffsetOutOfRange` for bytes whose segment is not kept any more.
        """
        size = min(size, self.size - position)
        if size <= 0 or self._origin is None:
            return b""
        parts: list[memoryview] = []
        at = position + self._origin
        stop = at + size
        while at < stop:
            segments = self._segments
            number = bisect_right(segments, at, key=lambda pair: pair[0]) - 1
            if number < 0:
                raise OffsetOutOfRange(
                    f"{self.log.name.directory}: byte {at - self._origin} of this file is in a segment that has "
                    "left the log; open the file again"
                )
            start, segment = segments[number]
            found = self.renderer.range_at(segment, at - start)
            if isinstance(found.data, Damage):
                if parts and up_to_damage:
                    break
                raise found.data.error(segment.path)
            begin = start + found.start
            parts.append(found.data[at - begin : stop - begin])
            at += len(parts[-1])
        return bytes(parts[0]) if len(parts) == 1 else b"".join(parts)

    def release_before(self, position: int) -> None:
        """Note that readers have passed byte `position`: earlier segments that left the log need not be kept.

        The next `pin` releases these segments, except for the last `KEPT_SEGMENTS`. If `position` is `NO_READER`, the
        next `pin` releases all segments that have left the log.
        """
        self._passed = position
        if position == NO_READER:
            self.renderer.forget_block()

    def _drop_passed(self) -> None:
        """Release the segments that have left the log and that readers have passed, except for the last few."""
        if self._origin is None:
            return
        self._take_ahead()
        segments = self._segments
        passed = self._passed + self._origin
        kept = 1 if self._passed == NO_READER else KEPT_SEGMENTS
        gone = 0
        while gone + kept < len(segments) and segments[gone + kept][0] <= passed:
            segment = segments[gone][1]
            if self.log.state.segments_from(segment.base_offset)[0] is segment:
                break
            gone += 1
        if gone:
            self._segments = segments[gone:]
            self.renderer.forget_block()

    def pin(self) -> None:
        """Keep every segment that the log has now, because any of them may leave it.

        Also releases segments that have left the log and that readers have passed (`release_before`).
        """
        # Ignore errors, which must not prevent the log from dropping its segments. A read of the view that meets such
        # an error raises it.
        with suppress(LogfsError, OSError):
            self._keep_segments()

    def _keep_segments(self) -> None:
        with self.log.disk.hold(self._extending):
            self._look_ahead()
            if self._passed:
                with suppress(LogfsError, OSError):
                    self._drop_passed()

    def exchange(self, copies: Mapping[Segment, Segment]) -> None:
        """After a move of the partition, replace the view's segments by their `copies`, which have the same text."""
        with self._extending:
            reached = [(start, copies.get(segment, segment)) for start, segment in self._segments]
            # Without duplicates: an empty segment and the segment that has replaced it have the same copy.
            self._segments = list(dict.fromkeys(reached))
            known = {segment for _, segment in reached}
            self._ahead = [
                copy
                for segment in self._ahead
                if (copy := copies.get(segment, segment)) not in known
            ]
            self.renderer.forget_block()

    @property
    def segments(self) -> Sequence[Segment]:
        """The segments of the view, and those of the log after them, up to the log end.

        The use of this property makes the view keep all of them, like `pin`.
        """
        self._keep_segments()
        return [*(segment for _, segment in self._segments), *self._ahead]

    def _look_ahead(self) -> None:
        if self.is_behind_truncation:
            # The last segment of the view may have been truncated away: add no segments until `follow_truncation` is
            # called.
            return
        last = self._ahead[-1] if self._ahead else self._segments[-1][1]
        end = last.next_base
        if end is not None:
            later = self.log.state.segments_from(end)
            following = [segment for segment in later if segment.base_offset >= end]
            if len(following) < len(later):
                # Compaction has merged segments that the view has not reached into one that begins before `end`.
                first = self.log.first_offset_from(end)
                if first is not None and (not following or first < following[0].base_offset):
                    raise Gone(
                        f"{self.log.directory}: compaction has merged the segment at offset {end} into an earlier "
                        "one, so this file cannot be read further; open the file again"
                    )
            self._ahead += following

    def _extend(self) -> None:
        """Add the segments that the log has added since the last call."""
        if not self._ahead and self._segments[-1][1].next_base is None:
            return
        with self.log.disk.hold(self._extending):
            self._look_ahead()
            self._take_ahead()

    def _take_ahead(self) -> None:
        end = self._end_offset
        # Segments after the view's end are left out, because they may be damaged.
        while self._ahead and (end is None or self._ahead[0].base_offset < end):
            start, last = self._segments[-1]
            start += self.renderer.size_of(last.end.text)
            self._segments.append((start, self._ahead.pop(0)))

    def position_of(self, offset: int) -> int:
        """Return the byte position in the view of the first record with an offset of at least `offset`.

        If there is none, this is the end of the text.
        """
        origin = self._find_origin()
        if origin is None:
            return 0
        self._extend()
        return max(self._position_of(offset) - origin, 0)

    def columns(self, start: int, end: int) -> Columns:
        """Return the records of the view with offsets in [start, end) as numpy arrays.

        Records that have left the log meanwhile are included, because the view keeps their segments.
        """
        return self.log.until_found(
            lambda: self.log.columns_as_of(self._state(start, end), start, end)
        )

    def offset_for_time(
        self,
        timestamp: int,
        start: int,
        end: int,
        shows: Callable[[Header], bool] = lambda header: not header.is_control,
    ) -> int | None:
        """Return the offset of the first record of the view in [start, end) with a time of at least `timestamp` (ms).

        Batches for which `shows` returns false are skipped. Segments that retention has removed from the log are
        searched, too, as long as the view has them. Returns None if no record is found.
        """
        found = self.log.until_found(
            lambda: self.log.offset_for_time_as_of(self._state(start, end), timestamp, shows)
        )
        return found and found.offset

    def _state(self, start: int, end: int) -> LogState:
        """Return a state of the log that begins at `start`, ends at `end`, and has the segments of the view.

        Segments that end before `start` are left out. Segments that have left the log are included.
        """
        segments = tuple(segments_from(self.segments, start))
        return self.log.state._replace(
            segments=segments, log_start_offset=start, log_end_offset=end
        )

    def _find_origin(self) -> int | None:
        """Return the position of the view's byte 0, counted from the start of the original first segment's text.

        The original first segment is the one with which the view was made, even if it has been released since.
        Returns None while `first_offset` is above the log end.
        """
        if self._origin is None and self.first_offset <= self.log.state.log_end_offset:
            self._extend()
            self._origin = self._position_of(self.first_offset)
        return self._origin

    def _position_of(self, offset: int) -> int:
        """Return the position of the first record with an offset of at least `offset`.

        The position is counted from the start of the original first segment's text, not from the view's byte 0.
        """
        segments = self._segments
        number = bisect_right(segments, offset, key=lambda pair: pair[1].base_offset) - 1
        if number < 0:
            return segments[0][0]
        start, segment = segments[number]
        return start + self.renderer.text_before(segment, offset)


class ViewRegistry:
    """The text views of a log. Any thread may use it.

    Before segments leave the log, `pin` makes the views keep all segments that the log has.
    """

    def __init__(self) -> None:
        self._views: WeakSet[TextView] = WeakSet()
        self._lock = make_lock(Level.VIEWS)

    def add(self, view: TextView) -> None:
        """Register a view, so that `pin` makes it keep its segments."""
        with self._lock:
            self._views.add(view)

    def pin(self) -> None:
        """Make each view keep all segments that the log has. This is called before segments leave the log."""
        for view in self._all():
            view.pin()

    def exchange(self, copies: Mapping[Segment, Segment]) -> None:
        """After the partition has moved, replace the segments of each view by their `copies`.

        The copies have the same text. The caller must not hold a lock of the log.
        """
        for view in self._all():
            view.exchange(copies)

    def _all(self) -> list[TextView]:
        with self._lock:
            return list(self._views)
