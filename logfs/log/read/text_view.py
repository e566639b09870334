"""The text of a partition as one long file. The text indexes tell which bytes stand for which records."""

from __future__ import annotations

import sys
import threading
from bisect import bisect_right
from collections import OrderedDict
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple, Protocol

from logfs.errors import Corrupt, LogfsError, OffsetOutOfRange
from logfs.format.text import envelope, rendering
from logfs.format.text.rendering import TextSize, View
from logfs.log.segment import batch_scanner
from logfs.log.segment.batch_iterator import Damage, unreadable

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from logfs.format.batches.batch import Batch
    from logfs.format.batches.columns import Columns
    from logfs.log.read.readable_log import ReadableLog
    from logfs.log.segment.segment import Segment, Tip
    from logfs.log.segment.text_index import TextEntry

# The bytes of a .log file that are rendered at a time: more costs latency, fewer cost calls. A sequential read gets
# as many as the kernel asks for in one request.
BLOCK_BYTES = 256 * 1024
_AHEAD_BYTES = 1024 * 1024
_CACHE_BYTES = 32 * 1024 * 1024
# The most text that a block may make, unless the batches between two index entries make more.
_BLOCK_TEXT_BYTES = 16 * 1024 * 1024
# The memory of a block besides its bytes. While lines are being appended there are very many small blocks.
_BLOCK_COST_BYTES = 1024
# Up to this many bytes of log are rendered in the calling thread, unless they are compressed.
INLINE_BYTES = _AHEAD_BYTES
# How many segments a view keeps after they have left the log and readers have passed them: a reader may seek back.
KEPT_BEHIND = 16
# The position to pass to `let_go` when there is no reader.
NOBODY = sys.maxsize


class Piece(NamedTuple):
    """The text of some batches; if `data` is None, text that cannot be read because of `damage`."""

    start: int
    end: int
    data: memoryview | None
    damage: Damage | None = None


class Block(NamedTuple):
    """Consecutive pieces of a segment's text, valid while the segment has this `content`.

    `next_number` is the number of the text index's entry after the block. The last block of a segment has none, and
    is valid while the segment's end is `tip`.
    """

    content: object
    pieces: list[Piece]
    next_number: int | None
    tip: Tip | None = None

    @property
    def start(self) -> int:
        """The first byte of the block."""
        return self.pieces[0].start

    @property
    def end(self) -> int:
        """The byte after the last of the block."""
        return self.pieces[-1].end

    def piece(self, at: int) -> Piece:
        """Return the piece that holds a byte of the block."""
        return next(piece for piece in self.pieces if piece.start <= at < piece.end)


_NO_BLOCK = Block(None, [Piece(0, 0, None)], 0)


class BlockCache:
    """The blocks rendered last, by what they are made from, for all views of a process. Any thread may use it."""

    def __init__(self, limit_bytes: int = _CACHE_BYTES) -> None:
        self._limit_bytes = limit_bytes
        self._size_bytes = 0
        self._blocks: OrderedDict[tuple[object, ...], list[Piece]] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: tuple[object, ...]) -> list[Piece] | None:
        """Return the pieces of a block; None if the block is not in the cache."""
        with self._lock:
            pieces = self._blocks.get(key)
            if pieces is not None:
                self._blocks.move_to_end(key)
            return pieces

    def put(self, key: tuple[object, ...], pieces: list[Piece]) -> None:
        """Keep a block. If the cache is full, the blocks unused for longest are dropped."""
        with self._lock:
            if key not in self._blocks:
                self._size_bytes += _weight(pieces)
                self._blocks[key] = pieces
            while self._size_bytes > self._limit_bytes and len(self._blocks) > 1:
                _, dropped = self._blocks.popitem(last=False)
                self._size_bytes -= _weight(dropped)


def _weight(pieces: list[Piece]) -> int:
    return _BLOCK_COST_BYTES + sum(len(piece.data) for piece in pieces if piece.data is not None)


_cache = BlockCache()


class Text(Protocol):
    """The text of records as one long file.

    Any thread may use it. A thread that must not wait for the disk may get `WouldBlock`.
    """

    @property
    def generation(self) -> int:
        """The log's generation when the view began. If the log has another now, a new view would begin elsewhere."""

    @property
    def size(self) -> int:
        """The current size of the view in bytes."""

    @property
    def is_closed(self) -> bool:
        """Whether the size is final; known after `size` was read."""

    @property
    def is_whole(self) -> bool:
        """Whether the first byte can still be read: the segment that holds it may be gone after `let_go`."""

    def read(self, position: int, size: int, *, up_to_damage: bool = False) -> bytes:
        """Return the bytes [position, position + size), fewer at the end of the view.

        Raises `DamagedRange` if any of them is damaged, for a shorter answer would look like the end of the file;
        with `up_to_damage`, only if the first of them is damaged.
        """

    def let_go(self, position: int) -> None:
        """Note that readers have passed a byte, so that earlier segments that left the log need not be kept.

        The last `KEPT_BEHIND` of these segments are kept all the same, unless `position` is `NOBODY`. A read before
        the segments that are kept raises `OffsetOutOfRange`.
        """


class TextView:
    """The records from offset `start` on, up to `end` or to the growing log end, as one text.

    Byte 0 is the first byte of the first record at or after `start`. The view only grows: it keeps the segments that
    it began with, so that it can show the same bytes again after they left the log (rule 4), unless its readers
    `let_go`. A view whose partition has another `generation` than its own still grows, but a new one would begin
    elsewhere.

    Any thread may use it. A thread that must not wait gets `WouldBlock`, and repeats the call in another thread.
    """

    def __init__(
        self, log: ReadableLog, view: View, start: int | None = None, end: int | None = None
    ) -> None:
        self.log = log
        self.view = view
        self.generation = log.generation
        self._prefix = envelope.prefix(log.name) if view is View.ENVELOPES else b""
        first = log.log_start_offset if start is None else max(start, log.log_start_offset)
        # The segments that the view has reached, each with its start in the view's text. They are pairs so that a
        # read during an append never finds one without the other. The list grows in place, and is replaced when its
        # start goes.
        self._segments: list[tuple[int, Segment]] = []
        # The segments after these, as far as the view has looked.
        self._ahead: list[Segment] = []
        self._extending = threading.Lock()
        # The byte that readers have passed, as `let_go` reported it.
        self._passed = 0
        with self._extending:
            # First of all: from here on the log calls `pin` before a segment leaves it.
            log.views.add(self)
            reached, *self._ahead = log.segments_from(first)
            self._segments.append((0, reached))
        # Replaced whole, so that any thread may read it.
        self._last_block = _NO_BLOCK
        self._end_offset = end
        self._fixed_size: int | None = None
        self.first_offset = first
        self._origin: int | None = None
        self._settle()

    @property
    def size(self) -> int:
        """The current size of the view in bytes."""
        if self._fixed_size is not None:
            return self._fixed_size
        origin = self._settle()
        if origin is None:
            return 0
        self._extend()
        end = self._end_offset
        if end is None:
            start, last = self._segments[-1]
            return max(start + self._text(last.tip.text) - origin, 0)
        final = end <= self.log.log_end_offset
        size = max(self._position_of(end) - origin, 0)
        if final:
            self._fixed_size = size
        return size

    @property
    def is_closed(self) -> bool:
        """See `Text.is_closed`."""
        return self._fixed_size is not None

    @property
    def is_whole(self) -> bool:
        """See `Text.is_whole`."""
        return self._origin is None or self._segments[0][0] <= self._origin

    def read(self, position: int, size: int, *, up_to_damage: bool = False) -> bytes:
        """See `Text.read`."""
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
                    f"{self.log.name.directory}: byte {at - self._origin} of this view has left the log since "
                    "it was read; open the file again"
                )
            start, segment = segments[number]
            piece = self._piece(segment, at - start)
            if piece.data is None:
                assert piece.damage is not None
                if parts and up_to_damage:
                    break
                raise piece.damage.error(segment.path)
            taken = piece.data[at - start - piece.start : stop - start - piece.start]
            parts.append(taken)
            at += len(taken)
        return bytes(parts[0]) if len(parts) == 1 else b"".join(parts)

    def let_go(self, position: int) -> None:
        """See `Text.let_go`."""
        self._passed = position
        if position == NOBODY:
            self._last_block = _NO_BLOCK

    def _drop_passed(self) -> None:
        """Release the segments that have left the log and that readers have passed, except for the last few."""
        if self._origin is None:
            return
        self._take_ahead()
        segments = self._segments
        passed = self._passed + self._origin
        kept = 1 if self._passed == NOBODY else KEPT_BEHIND
        gone = 0
        while gone + kept < len(segments) and segments[gone + kept][0] <= passed:
            segment = segments[gone][1]
            if self.log.segments_from(segment.base_offset)[0] is segment:
                break
            gone += 1
        if gone:
            self._segments = segments[gone:]
            self._last_block = _NO_BLOCK

    # Positions.

    def _text(self, size: TextSize) -> int:
        return size.size(self.view, len(self._prefix))

    def pin(self) -> None:
        """Keep every segment that the log has now, for any may leave it; release those that readers have passed."""
        with self._extending:
            self._look_ahead()
            if self._passed:
                # What cannot be measured is kept: an error in a view must not prevent the removal of a segment.
                with suppress(LogfsError, OSError):
                    self._drop_passed()

    def exchange(self, copies: Mapping[Segment, Segment]) -> None:
        """Replace segments that the view holds by their copies in another place."""
        with self._extending:
            reached = [(start, copies.get(segment, segment)) for start, segment in self._segments]
            # An empty segment that the view has reached, and the segment that replaced it, have the same copy.
            self._segments = list(dict.fromkeys(reached))
            known = {segment for _, segment in reached}
            self._ahead = [
                copy
                for segment in self._ahead
                if (copy := copies.get(segment, segment)) not in known
            ]
            self._last_block = _NO_BLOCK

    @property
    def segments(self) -> Sequence[Segment]:
        """The segments that the view shows, up to the current log end."""
        self.pin()
        return [*(segment for _, segment in self._segments), *self._ahead]

    def _look_ahead(self) -> None:
        last = self._ahead[-1] if self._ahead else self._segments[-1][1]
        end = last.next_base
        if end is not None:
            self._ahead += [s for s in self.log.segments_from(end) if s.base_offset >= end]

    def _extend(self) -> None:
        """Add the segments that the log has begun since."""
        if not self._ahead and self._segments[-1][1].next_base is None:
            return
        with self.log.disk.hold(self._extending):
            self._look_ahead()
            self._take_ahead()

    def _take_ahead(self) -> None:
        while self._ahead:
            start, last = self._segments[-1]
            start += self._text(last.tip.text)
            self._segments.append((start, self._ahead.pop(0)))

    def position_of(self, offset: int) -> int:
        """Return the byte at which the records from `offset` on begin."""
        origin = self._settle()
        return 0 if origin is None else max(self._position_of(offset) - origin, 0)

    def _settle(self) -> int | None:
        """Return the byte, from the first segment's start, at which the view begins; None until the log is there."""
        if self._origin is None and self.first_offset <= self.log.log_end_offset:
            self._extend()
            self._origin = self._position_of(self.first_offset)
        return self._origin

    def _position_of(self, offset: int) -> int:
        """Return the byte, from the first segment's start, at which the records from `offset` on begin."""
        segments = self._segments
        number = bisect_right(segments, offset, key=lambda pair: pair[1].base_offset) - 1
        if number < 0:
            return segments[0][0]
        start, segment = segments[number]
        return start + self._before(segment, offset)

    def _before(self, segment: Segment, offset: int) -> int:
        """Return the bytes of text of a segment's records below an offset."""
        if offset <= segment.base_offset:
            return 0
        tip = segment.tip
        if offset >= tip.next_offset:
            return self._text(tip.text)
        index = segment.text_index
        number = index.number_of_offset(offset)
        entry = index[number]
        inside = number + 1 < len(index) and index[number + 1].position < tip.size_bytes
        end = index[number + 1].position if inside else tip.size_bytes
        after = index[number + 1].before if inside else tip.text
        before = later = 0
        damages: list[Damage] = []
        for found in segment.walk(entry.position, end, first_offset=entry.offset):
            if isinstance(found, Damage):
                damages.append(found)
                continue
            try:
                first, second = self._split(found[1], offset)
            except Corrupt as error:
                damages.append(unreadable(*found, error))
                continue
            before += first
            later += second
        # The missing text is that of the first damage, as in `_render_carefully`.
        missing = self._text(after) - self._text(entry.before) - before - later
        if missing < 0 or (missing and not damages):
            raise Corrupt(
                f"{index.path}: does not agree with its log at offset {offset}; "
                "run 'logfs reindex' on the partition"
            )
        # Damage that reaches to the next entry holds all offsets up to there.
        if damages:
            damage = _damage_with_text(damages)
            if damage.end < end and damage.next_offset <= offset:
                before += missing
        return self._text(entry.before) + before

    def _split(self, batch: Batch, offset: int) -> tuple[int, int]:
        """Return the bytes of text of a batch's records below an offset, and of the others. Raises `Corrupt`."""
        header = batch.header
        size = self._text(rendering.measure(batch))
        if header.last_offset < offset or header.is_control:
            return size, 0
        if header.base_offset >= offset:
            return 0, size
        columns = batch.columns()
        sizes = rendering.sizes(columns, self.view, len(self._prefix))
        before = int(sizes[columns.offsets < offset].sum())
        return before, size - before

    # Blocks.

    def _piece(self, segment: Segment, at: int) -> Piece:
        """Return the piece of a segment's text that holds byte `at`."""
        content, tip, index = segment.content, segment.tip, segment.text_index
        last_block = self._last_block
        ahead = BLOCK_BYTES
        is_last = last_block.content is content and last_block.tip in (None, tip)
        if is_last and last_block.start <= at < last_block.end:
            return last_block.piece(at)
        if is_last and at == last_block.end and last_block.next_number is not None:
            # A sequential read continues where the last block ended.
            first, ahead = last_block.next_number, _AHEAD_BYTES
        else:
            first = index.number_of_text(at, self.view, len(self._prefix))
        entry = index[first]
        count = len(index)
        last = max(index.last_before(entry.position + ahead, first + 1), first + 1)
        limit = self._text(entry.before) + _BLOCK_TEXT_BYTES
        if self._text(index[last].before if last < count else tip.text) > limit:
            # A short part of the log may decompress to a great deal of text.
            last = max(index.number_of_text(limit, self.view, len(self._prefix)), first + 1)
        inside = last < count and index[last].position < tip.size_bytes
        end = index[last].position if inside else tip.size_bytes
        end_text = index[last].before if inside else tip.text
        key = (content, entry.position, end, self.view, self._prefix)
        pieces = _cache.get(key)
        if pieces is None:
            pieces = self._render(segment, entry, end, end_text)
            _cache.put(key, pieces)
        if not pieces or not pieces[0].start <= at < pieces[-1].end:
            raise Corrupt(
                f"{index.path}: does not agree with its log at byte {at} of the text; "
                "run 'logfs reindex' on the partition"
            )
        block = Block(content, pieces, last) if inside else Block(content, pieces, None, tip)
        self._last_block = block
        return block.piece(at)

    def _render(self, segment: Segment, entry: TextEntry, end: int, after: TextSize) -> list[Piece]:
        """Return the text of the batches of a segment from an entry up to position `end`."""
        if end - entry.position > INLINE_BYTES:
            self.log.check_may_block()
        start = entry.position
        data = segment.read(start, end - start)
        rows, scanned = batch_scanner.scan(data, entry.offset, gaps=segment.gaps)
        at, stop = self._text(entry.before), self._text(after)
        if scanned == len(data):
            if batch_scanner.are_compressed(rows):
                self.log.check_may_block()
            rendered = self._render_scanned(data, rows, stop - at)
            if rendered is not None:
                return [Piece(at, stop, rendered)]
        return self._render_carefully(segment, entry, end, at, stop)

    def _render_scanned(
        self, data: memoryview, rows: NDArray[np.int64], size: int
    ) -> memoryview | None:
        """Return the text of scanned batches; None if its size is not the one in the index."""
        if self.view is View.LINES:
            lines = batch_scanner.render_lines(data, rows, size)
            if lines is not None:
                return lines
        try:
            rendered = self._join(map(self._render_columns, batch_scanner.decode(data, rows)))
        except Corrupt:
            return None
        return rendered if len(rendered) == size else None

    @staticmethod
    def _join(parts: Iterable[memoryview]) -> memoryview:
        first, *rest = [*parts, memoryview(b"")]
        return memoryview(b"".join([first, *rest])) if len(rest) > 1 else first

    def _render_columns(self, columns: Columns) -> memoryview:
        return rendering.render(columns, self.view, self._prefix)[0].data

    def _render_carefully(
        self, segment: Segment, entry: TextEntry, end: int, at: int, stop: int
    ) -> list[Piece]:
        """Return the same as `_render`, one batch at a time, past damage and through old formats.

        The text indexes tell how long the unreadable text is.
        """
        self.log.check_may_block()
        found = list(segment.walk(entry.position, end, first_offset=entry.offset))
        texts: list[memoryview | Damage] = []
        for item in found:
            if isinstance(item, Damage):
                texts.append(item)
                continue
            position, batch = item
            try:
                control = batch.header.is_control
                texts.append(memoryview(b"") if control else self._render_columns(batch.columns()))
            except Corrupt as error:
                texts.append(unreadable(position, batch, error))
        damaged = [item for item in texts if isinstance(item, Damage)]
        missing = stop - at - sum(len(item) for item in texts if not isinstance(item, Damage))
        if missing < 0 or (missing and not damaged):
            raise Corrupt(
                f"{segment.text_index.path}: does not agree with its log; "
                "run 'logfs reindex' on the partition"
            )
        if not damaged:
            whole = self._join(item for item in texts if not isinstance(item, Damage))
            return [Piece(at, stop, whole)]
        pieces = []
        taker = _damage_with_text(damaged)
        for part in texts:
            if isinstance(part, Damage):
                # The size is exact for one damage between two entries. Of several, the first takes it all.
                size = missing if part is taker else 0
                pieces.append(Piece(at, at + size, None, part))
            else:
                size = len(part)
                pieces.append(Piece(at, at + size, part))
            at += size
        return pieces


def _damage_with_text(damages: Sequence[Damage]) -> Damage:
    """Return the damage that gets the missing text: the first that has bytes, for missing batches have none."""
    return next((damage for damage in damages if damage.end > damage.start), damages[0])


def offset_of_last(log: ReadableLog, count: int) -> int:
    """Return the offset at which the last `count` records begin; the log start if there are fewer."""
    left = count
    for segment in reversed(log.segments):
        if segment.next_offset <= log.log_start_offset:
            break
        records = segment.tip.text.records
        if records < left:
            left -= records
            continue
        return max(_offset_of_record(segment, records - left), log.log_start_offset)
    return log.log_start_offset


def _offset_of_record(segment: Segment, number: int) -> int:
    """Return the offset of a segment's record by its number, counted from 0 without gaps."""
    index = segment.text_index
    entry = index[index.number_of_record(number)]
    seen = entry.before.records
    for found in segment.walk(entry.position, first_offset=entry.offset):
        if isinstance(found, Damage) or found[1].header.is_control:
            continue
        count = found[1].header.record_count
        if seen + count > number:
            if count == found[1].header.last_offset_delta + 1:
                return found[1].header.base_offset + number - seen
            return int(found[1].columns().offsets[number - seen])
        seen += count
    return segment.next_offset
