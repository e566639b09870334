"""The text of a segment's records. It is rendered from the batches in blocks, which are cached.

A text index maps bytes of a segment's text to batches, and each block begins at an entry of this index. For example,
the block at the entry (10, 4096, 700) is rendered from the batches that begin at byte 4096 of the .log file, with
offset 10. The first byte of the block is byte 700 of the segment's text.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from typing import TYPE_CHECKING, NamedTuple

from logfs.errors import Corrupt
from logfs.format.text import envelope, rendering
from logfs.format.text.rendering import TextSize, View
from logfs.locks import Level, make_lock
from logfs.log.segment import batch_scanner
from logfs.log.segment.batch_iterator import Damage, unreadable

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray

    from logfs.format.batches.batch import Batch
    from logfs.format.batches.columns import Columns
    from logfs.log.read.reader import Reader
    from logfs.log.segment.batch_scanner import ScannedBatches
    from logfs.log.segment.segment import Segment
    from logfs.log.segment.segment_end import SegmentEnd
    from logfs.log.segment.text_index import TextEntry, TextIndex

# How many bytes of a .log file are rendered at once. With more, a small read takes longer; with fewer, a large read
# needs more calls.
BLOCK_BYTES = 256 * 1024
# How many bytes of a .log file are rendered at once for a sequential read: the kernel requests this much at a time.
_AHEAD_BYTES = 1024 * 1024
# The size limit (bytes) of the `BlockCache` of a process.
_CACHE_BYTES = 32 * 1024 * 1024
# The size limit (bytes) of the text of a block. Only the batches between two neighbouring index entries may have
# more.
_BLOCK_TEXT_BYTES = 16 * 1024 * 1024
# The memory (bytes) that a cached block takes besides its text. It counts too, because appends of single lines lead
# to very many small blocks.
_BLOCK_COST_BYTES = 1024
# Up to this many bytes of a .log file are rendered in a thread that must not wait, unless they are compressed,
# damaged or in an old format. Rendering them takes a third of a millisecond.
_INLINE_BYTES = {View.LINES: _AHEAD_BYTES, View.ENVELOPES: BLOCK_BYTES // 2}


class RenderedRange(NamedTuple):
    """The bytes [start, end) of a segment's text in one view: `data`, or the damage that makes them unreadable."""

    start: int
    end: int
    data: memoryview | Damage


class Block(NamedTuple):
    """Consecutive ranges of a segment's text.

    The block is valid while `Segment.content` is the object `content`: a truncation replaces `Segment.content`.
    `next_number` is the number of the text index entry at which the next block begins. It is None for the last block
    of the segment, which is valid only while the segment's end is `segment_end`.
    """

    content: object
    ranges: list[RenderedRange]
    next_number: int | None
    segment_end: SegmentEnd | None = None

    def range_at(self, at: int) -> RenderedRange | None:
        """Return the range that holds byte `at` of the segment's text; None if the block does not have the byte."""
        return next((each for each in self.ranges if each.start <= at < each.end), None)


_NO_BLOCK = Block(None, [RenderedRange(0, 0, memoryview(b""))], 0)


class BlockCache:
    """A cache of the most recently used blocks, for all text views of a process. Any thread may use it.

    The key of a block has all that the block's text depends on: `Segment.content`, the positions [start, end) of the
    block's batches in the .log file, the kind of view, and the text with which each envelope of the partition begins.
    """

    def __init__(self, limit_bytes: int = _CACHE_BYTES) -> None:
        self._limit_bytes = limit_bytes
        self._size_bytes = 0
        self._blocks: OrderedDict[tuple[object, ...], list[RenderedRange]] = OrderedDict()
        self._lock = make_lock(Level.BLOCKS)

    def get(self, key: tuple[object, ...]) -> list[RenderedRange] | None:
        """Return the ranges of a block; None if the block is not in the cache."""
        with self._lock:
            ranges = self._blocks.get(key)
            if ranges is not None:
                self._blocks.move_to_end(key)
            return ranges

    def put(self, key: tuple[object, ...], ranges: list[RenderedRange]) -> None:
        """Add a block. If the cache is full, drop the least recently used blocks."""
        with self._lock:
            if key not in self._blocks:
                self._size_bytes += _weight(ranges)
                self._blocks[key] = ranges
            while self._size_bytes > self._limit_bytes and len(self._blocks) > 1:
                _, dropped = self._blocks.popitem(last=False)
                self._size_bytes -= _weight(dropped)


def _weight(ranges: list[RenderedRange]) -> int:
    texts = (each.data for each in ranges if not isinstance(each.data, Damage))
    return _BLOCK_COST_BYTES + sum(map(len, texts))


_cache = BlockCache()


def _after_fork() -> None:
    """Give a forked child a new cache: a thread that held the lock in the parent does not exist in the child."""
    global _cache
    _cache = BlockCache()


os.register_at_fork(after_in_child=_after_fork)


class TextRenderer:
    """Renders the text of segments in one kind of view. Sizes come from the text index, and text from the batches.

    Any thread may use it. A thread that must not wait gets `WouldBlock`.
    """

    def __init__(self, log: Reader, view: View) -> None:
        self.view = view
        # The beginning of each JSON envelope of the partition; lines have no such beginning.
        self.prefix = envelope.prefix(log.name)
        self._log = log
        # The block rendered last. It is immutable, and replaced by one assignment, so any thread may read it.
        self._last_block = _NO_BLOCK

    def size_of(self, size: TextSize) -> int:
        """Return the size in bytes that a text has in this view; `size` has the text's sizes in all views."""
        return size.size(self.view, len(self.prefix))

    def sizes_of(self, texts: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the sizes (bytes) of n texts in this view, as int64[n].

        `texts` is int64[n, 3]: each row has the fields of a text's `TextSize`.
        """
        if self.view is View.LINES:
            return texts[:, 1]
        return texts[:, 2] + texts[:, 0] * len(self.prefix)

    def forget_block(self) -> None:
        """Drop the reference to the block rendered last, because its segment may not be needed any more."""
        self._last_block = _NO_BLOCK

    def text_before(self, segment: Segment, offset: int) -> int:
        """Return how many bytes of text the records of a segment with offsets below `offset` take in this view.

        Raises `Corrupt` if the text index does not agree with the log.
        """
        if offset <= segment.base_offset:
            # Do not read `segment.end` here: it may measure the text of the whole segment.
            return 0
        segment_end = segment.end
        if offset >= segment_end.next_offset:
            return self.size_of(segment_end.text)
        index = segment.text_index
        number = index.number_of_offset(offset)
        entry = index[number]
        end, after, _ = _begin_of(number + 1, index, segment_end)
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
        # The size (bytes) of the text that cannot be read. One damaged range gets all of it, as in
        # `_render_carefully`.
        missing = self.size_of(after) - self.size_of(entry.before) - before - later
        if missing < 0 or (missing and not damages):
            raise _disagreement(index, f" at offset {offset}")
        # Count the unreadable text only if the damage that gets it ends at or below `offset`. Damage up to byte `end`
        # ends above `offset`: at the offset of the next index entry, even if its `next_offset` is lower.
        if damages:
            damage = _damage_with_text(damages)
            if damage.end < end and damage.next_offset <= offset:
                before += missing
        return self.size_of(entry.before) + before

    def _split(self, batch: Batch, offset: int) -> tuple[int, int]:
        """Return the text size (bytes) of a batch's records below `offset`, and that of its other records.

        Raises `Corrupt` if the records are malformed.
        """
        header = batch.header
        size = self.size_of(rendering.measure(batch))
        if header.last_offset < offset or header.is_control:
            return size, 0
        if header.base_offset >= offset:
            return 0, size
        columns = batch.columns()
        sizes = rendering.sizes(columns, self.view, len(self.prefix))
        before = int(sizes[columns.offsets < offset].sum())
        return before, size - before

    def range_at(self, segment: Segment, at: int) -> RenderedRange:
        """Return the range of a segment's text that holds byte `at`."""
        content, segment_end, index = segment.content, segment.end, segment.text_index
        last_block = self._last_block
        ahead = BLOCK_BYTES
        is_last = last_block.content is content and last_block.segment_end in (None, segment_end)
        if is_last and (found := last_block.range_at(at)):
            return found
        if is_last and at == last_block.ranges[-1].end and last_block.next_number is not None:
            # This is a sequential read: it continues where the last block ended.
            first, ahead = last_block.next_number, _AHEAD_BYTES
            while first + 1 < len(index) and self.size_of(index[first + 1].before) <= at:
                # Between these two entries there are only batches without text, such as markers.
                first += 1
        else:
            first = index.number_of_text(at, self.view, len(self.prefix))
        entry = index[first]
        last = max(index.last_before(entry.position + ahead, first + 1), first + 1)
        limit = self.size_of(entry.before) + _BLOCK_TEXT_BYTES
        end, end_text, inside = _begin_of(last, index, segment_end)
        if self.size_of(end_text) > limit:
            # End the block earlier: a few compressed batches may have a great deal of text.
            last = max(index.number_of_text(limit, self.view, len(self.prefix)), first + 1)
            end, end_text, inside = _begin_of(last, index, segment_end)
        key = (content, entry.position, end, self.view, self.prefix)
        ranges = _cache.get(key)
        if ranges is None:
            ranges = self._render(segment, entry, end, end_text)
            if ahead == BLOCK_BYTES:
                # A sequential reader does not come back. Keeping its blocks would also make rendering write to memory
                # outside the processor's cache, which takes as long as the rendering itself.
                _cache.put(key, ranges)
        block = (
            Block(content, ranges, last) if inside else Block(content, ranges, None, segment_end)
        )
        found = block.range_at(at)
        if found is None:
            raise _disagreement(index, f" at byte {at} of the text")
        self._last_block = block
        return found

    def _render(
        self, segment: Segment, entry: TextEntry, end: int, after: TextSize
    ) -> list[RenderedRange]:
        """Return the text of a segment's batches, from the batch of `entry` up to position `end` of the .log file.

        `after` is the size of the segment's text up to position `end`. If a batch is damaged or in an old format, the
        batches are read one by one (`_render_carefully`).
        """
        if end - entry.position > _INLINE_BYTES[self.view]:
            self._log.check_may_block()
        start = entry.position
        data = segment.read(start, end - start)
        scanned, scanned_bytes = batch_scanner.scan(data, entry.offset, gaps=segment.gaps)
        at, stop = self.size_of(entry.before), self.size_of(after)
        if scanned_bytes == len(data):
            if scanned.are_compressed:
                self._log.check_may_block()
            rendered = self._render_scanned(scanned, stop - at)
            if rendered is not None:
                return [RenderedRange(at, stop, rendered)]
        return self._render_carefully(segment, entry, end, at, stop)

    def _render_scanned(self, scanned: ScannedBatches, size: int) -> memoryview | None:
        """Return the text of scanned batches; None if records are malformed or the text is not `size` bytes long."""
        lines = self.view is View.LINES
        whole = scanned.render_lines(size) if lines else scanned.render_envelopes(self.prefix, size)
        if whole is not None:
            return whole
        parts: list[memoryview] = []
        for columns, _ in scanned.decode():
            if isinstance(columns, Corrupt):
                return None
            parts.append(self._render_columns(columns))
        rendered = self._join(parts)
        return rendered if len(rendered) == size else None

    @staticmethod
    def _join(parts: Sequence[memoryview]) -> memoryview:
        return parts[0] if len(parts) == 1 else memoryview(b"".join(parts))

    def _render_columns(self, columns: Columns) -> memoryview:
        return rendering.render(columns, self.view, self.prefix)[0].data

    def _render_carefully(
        self, segment: Segment, entry: TextEntry, end: int, at: int, stop: int
    ) -> list[RenderedRange]:
        """Return the text of batches, some of which may be damaged or in old formats.

        The batches are those from `entry` up to byte `end` of the .log file, and their text is bytes [at, stop) of
        the segment's text. The text index tells only the total size of the text that cannot be read. All of this text
        is therefore assigned to one damaged range: the first one that has bytes in the file. If no damaged range has
        bytes, because batches are missing from the file, it is the first one.
        """
        self._log.check_may_block()
        texts: list[memoryview | Damage] = []
        for found in segment.walk(entry.position, end, first_offset=entry.offset):
            if isinstance(found, Damage):
                texts.append(found)
                continue
            position, batch = found
            try:
                control = batch.header.is_control
                texts.append(memoryview(b"") if control else self._render_columns(batch.columns()))
            except Corrupt as error:
                texts.append(unreadable(position, batch, error))
        damaged = [item for item in texts if isinstance(item, Damage)]
        rendered = [item for item in texts if not isinstance(item, Damage)]
        missing = stop - at - sum(map(len, rendered))
        if missing < 0 or (missing and not damaged):
            raise _disagreement(segment.text_index)
        if not damaged:
            return [RenderedRange(at, stop, self._join(rendered))]
        ranges = []
        taker = _damage_with_text(damaged)
        for part in texts:
            # The index tells only the total size of the unreadable text, so one damage gets all of it.
            unread = missing if part is taker else 0
            size = unread if isinstance(part, Damage) else len(part)
            ranges.append(RenderedRange(at, at + size, part))
            at += size
        return ranges


def _begin_of(number: int, index: TextIndex, segment_end: SegmentEnd) -> tuple[int, TextSize, bool]:
    """Return the position of text index entry `number` in the .log file, the size of the text before it, and True.

    If there is no such entry before the end of the segment, returns the size of the .log file, the size of the whole
    text, and False.
    """
    if number < len(index):
        _, position, before = index[number]
        if position < segment_end.size_bytes:
            return position, before, True
    return segment_end.size_bytes, segment_end.text, False


def _disagreement(index: TextIndex, where: str = "") -> Corrupt:
    return Corrupt(
        f"{index.path}: does not agree with its log{where}; run 'logfs reindex' on the partition"
    )


def _damage_with_text(damages: Sequence[Damage]) -> Damage:
    """Return the one of `damages` to which all unreadable text is assigned.

    This is the first damage that has bytes in the file. If none has bytes, it is the first of `damages`.
    """
    return next((damage for damage in damages if damage.end > damage.start), damages[0])
