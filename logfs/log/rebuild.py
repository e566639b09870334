"""The indexes of a segment, made from its log: they are caches of it (rule 3, kafka-storage 3.4)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from logfs.format.text import NO_TEXT
from logfs.log.index import TimeEntry
from logfs.log.spans import survey, text_size
from logfs.log.walk import Damage

if TYPE_CHECKING:
    from logfs.config import LogConfig
    from logfs.log.index import TextIndex
    from logfs.log.segment import Segment
    from logfs.log.spans import BatchInfo

_TEXT_INTERVAL_BYTES = 4096


class TextBuilder:
    """Adds text index entries while the batches of a segment go by."""

    def __init__(self, index: TextIndex, interval_bytes: int) -> None:
        """Go on behind the last entry of an index."""
        self._index = index
        self._interval_bytes = interval_bytes
        self._last_entry = index.last.position
        self.position = index.last.position
        self.text = index.last.before

    def note(self, found: BatchInfo | Damage) -> None:
        """Take the next batch, or the next damage, which stands between entries of its own."""
        if isinstance(found, Damage):
            self._entry(found.first_offset, found.start)
            self.text = self.text.plus(text_size(found))
            self._entry(found.next_offset, found.end)
            self.position = found.end
            return
        if found.position - self._last_entry > self._interval_bytes:
            self._entry(found.base_offset, found.position)
        self.text = self.text.plus(found.text)
        self.position = found.position + found.size_bytes

    def finish(self, next_offset: int, size: int) -> None:
        """Write the closing entry."""
        self._entry(next_offset, size)

    def _entry(self, offset: int, position: int) -> None:
        if position > self._last_entry and not self._index.is_full:
            self._index.append(offset, position, self.text)
            self._last_entry = position


class IndexBuilder:
    """Makes all indexes of a segment while its batches go by, but for what they say of transactions."""

    def __init__(self, segment: Segment, config: LogConfig, now_ms: int) -> None:
        """Forget what the indexes hold, and give them room."""
        for index in (*segment.indexes, segment.txn_index):
            index.reset()
        segment.activate(config, now_ms)
        self.end = segment.base_offset
        self.text = NO_TEXT
        self.max_entry = TimeEntry(-1, segment.base_offset)
        self._segment = segment
        self._builder = TextBuilder(segment.text_index, config.index_interval_bytes)
        self._interval_bytes = config.index_interval_bytes
        self._last_entry = 0

    def note(self, found: BatchInfo | Damage) -> None:
        """Take the next batch or the next damage."""
        self._builder.note(found)
        self.text = self._builder.text
        self.end = found.next_offset
        if isinstance(found, Damage):
            return
        if found.max_timestamp > self.max_entry.timestamp:
            self.max_entry = TimeEntry(found.max_timestamp, found.next_offset - 1)
        if found.position - self._last_entry > self._interval_bytes:
            offset_index, time_index, _ = self._segment.indexes
            # They were made for a greater index.interval.bytes than is in force now: sparser will do.
            if offset_index.is_full or time_index.is_full:
                return
            offset_index.append(found.next_offset - 1, found.position)
            time_index.maybe_append(*self.max_entry)
            self._last_entry = found.position


def rebuild_text(segment: Segment) -> None:
    """Bring a segment's text index up to its log, which something else wrote or went on with."""
    index = segment.text_index
    size = segment.size_bytes
    if not segment.text_is_sane():
        index.reset()
    entries = len(index) + 2 * (size // _TEXT_INTERVAL_BYTES) + 64
    index.preallocate(entries * index.entry.size)
    builder = TextBuilder(index, _TEXT_INTERVAL_BYTES)
    for found in survey(segment, builder.position, index.last.offset):
        if isinstance(found, Damage) and found.end == size:
            # How far it goes is known here, and from the bytes alone it is not.
            found = found._replace(next_offset=max(found.next_offset, segment.next_offset))
        builder.note(found)
    builder.finish(segment.next_offset, size)
    index.trim()
