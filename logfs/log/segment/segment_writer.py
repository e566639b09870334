"""The appends to an active segment: batches, index entries, and whether the next batch belongs in a new segment."""

from __future__ import annotations

import copy
from contextlib import suppress
from typing import TYPE_CHECKING
from weakref import ref

from logfs.format.base.batch_rows import MAX_TIMESTAMP, NEXT_OFFSET, SIZE
from logfs.log.segment.index import MAX_RELATIVE_OFFSET, TimeEntry
from logfs.log.segment.index_builder import LookupBuilder, TextBuilder
from logfs.log.segment.segment_end import SegmentEnd

if TYPE_CHECKING:
    from collections.abc import Sequence

    from logfs.config import LogConfig
    from logfs.format.text.rendering import TextSize
    from logfs.log.segment.batch_scanner import ScannedBatches
    from logfs.log.segment.segment import Segment


class SegmentWriter:
    """The writer of an active segment. It exists until the segment is sealed or the log is closed.

    Only one thread at a time may use it: the one that holds the partition's lock (architecture.md, rule 6). Readers
    see a batch after the segment's `end` is replaced, which happens after the bytes are in the file.
    """

    def __init__(self, segment: Segment, config: LogConfig) -> None:
        # A weak reference, because the segment refers to its writer: a strong one would make a cycle, which only the
        # garbage collector frees.
        self._ref = ref(segment)
        self._disk = segment.disk
        # The position of the last batch that got an index entry; at first, the end of the segment.
        self._last_entry = segment.size_bytes
        # The greatest timestamp (ms) of the first batch, from which the segment's age counts; None until needed.
        self._rolling_timestamp: int | None = None
        offset_index, time_index, _ = segment.indexes
        self._indexes_are_full = offset_index.is_full or time_index.is_full
        self.jitter_ms = 0
        if (jitter := min(config.segment_jitter_ms, config.segment_ms)) > 0:
            import random

            self.jitter_ms = random.randrange(2**31) % jitter

    def writing_to(self, segment: Segment) -> SegmentWriter:
        """Return a copy of this writer that appends to `segment`, another object for the same files."""
        other = copy.copy(self)
        other._ref = ref(segment)
        return other

    @property
    def _segment(self) -> Segment:
        segment = self._ref()
        assert segment is not None, "the segment owns its writer"
        return segment

    def append(
        self,
        data: bytearray | memoryview,
        last_offset: int,
        max_timestamp: int,
        text: TextSize,
        interval_bytes: int,
    ) -> None:
        """Write one batch at the end of the segment, and add the index entries that are due (kafka-storage 3.3).

        `data` are the bytes of the batch, with its final offsets. `max_timestamp` (ms) and `text` are the greatest
        timestamp and the text size of its records. Entries are due if the batch begins more than `interval_bytes`
        after the last batch with entries. After an `OSError` the segment's end is unchanged, and the caller must cut
        off the bytes of the batch that are in the file.
        """
        segment = self._segment
        end = segment.end
        position = end.size_bytes
        is_due = position - self._last_entry > interval_bytes
        if is_due:
            for index in segment.indexes:
                index.reserve()
        self._disk.write(segment.file, position, data)
        if position == 0 and self._rolling_timestamp is None:
            self._rolling_timestamp = max_timestamp
        if max_timestamp > segment.max_entry.timestamp:
            segment.max_entry = TimeEntry(max_timestamp, last_offset)
        if is_due:
            offset_index, time_index, text_index = segment.indexes
            offset_index.append(last_offset, position)
            time_index.maybe_append(*segment.max_entry)
            if not text_index.is_full:
                text_index.append(end.next_offset, position, end.text)
            self._last_entry = position
            self._indexes_are_full = offset_index.is_full or time_index.is_full
        segment.set_end(SegmentEnd(position + len(data), last_offset + 1, end.text.plus(text)))

    def append_written(self, runs: Sequence[ScannedBatches], interval_bytes: int) -> None:
        """Let readers see the batches of `runs`, which are in the file already: set the segment's end after them.

        The caller must have measured the text of the batches (`ScannedBatches.measured`). Adds index entries about
        every `interval_bytes` of log, as far as the indexes and the disk have room for them.
        """
        segment = self._segment
        end = segment.end
        offset_index, time_index, text_index = segment.indexes
        lookups = LookupBuilder(
            offset_index, time_index, interval_bytes, self._last_entry, segment.max_entry
        )
        texts = TextBuilder(text_index, interval_bytes, (self._last_entry, end.text))
        for run in runs:
            if run.positions[0] == 0:
                self._rolling_timestamp = int(run.rows[0, MAX_TIMESTAMP])
            with suppress(OSError):
                lookups.add(run)
            with suppress(OSError):
                texts.add(run)
        segment.max_entry, self._last_entry = lookups.max_entry, lookups.last_entry
        self._indexes_are_full = offset_index.is_full or time_index.is_full
        segment.set_end(SegmentEnd(texts.position, runs[-1].next_offset, texts.text))

    def how_many_fit(
        self,
        batches: ScannedBatches,
        config: LogConfig,
        now_ms: int,
        hidden: Sequence[ScannedBatches] = (),
    ) -> int:
        """Return how many of `batches`, one after the other, can be appended before the segment must be sealed.

        `hidden` are batches that are already in the file, after the segment's end, where no reader sees them. They
        count as part of the segment.
        """
        held, first = self._segment.size_bytes, None
        if hidden:
            held, before = hidden[-1].end, hidden[0]
            first = None if before.positions[0] else int(before.rows[0, MAX_TIMESTAMP])
        rows = batches.rows[:, (SIZE, NEXT_OFFSET, MAX_TIMESTAMP)].tolist()
        for number, (size, next_offset, timestamp) in enumerate(rows):
            if not held:
                first = timestamp
            last = next_offset - 1
            if self.should_roll(size, last, timestamp, config, now_ms, held, first):
                return number
            held += size
        return len(rows)

    def should_roll(
        self,
        size: int,
        last_offset: int,
        max_timestamp: int,
        config: LogConfig,
        now_ms: int,
        held: int | None = None,
        first: int | None = None,
    ) -> bool:
        """Whether the segment must be sealed before a batch of `size` bytes is appended (kafka-storage 4.1).

        `last_offset` and `max_timestamp` (ms) are those of the batch; `now_ms` is the present time. `held` is the
        size of the segment in bytes before this append, and `first` the greatest timestamp (ms) of the segment's
        first batch. If `held` or `first` is None, the value is taken from the segment.
        """
        if held is None:
            held = self._segment.size_bytes
        if held > config.segment_bytes - size:
            return True
        if held:
            if first is None:
                if self._rolling_timestamp is None:
                    self._rolling_timestamp = self._segment.first_batch_timestamp
                first = self._rolling_timestamp
            waited_ms = now_ms - self._segment.created_ms if first < 0 else max_timestamp - first
            if waited_ms > age_limit_ms(config, self):
                return True
        if self._indexes_are_full:
            return True
        return not 0 <= last_offset - self._segment.base_offset <= MAX_RELATIVE_OFFSET


def age_limit_ms(config: LogConfig, writer: SegmentWriter | None) -> int:
    """Return the age (ms) at which a segment rolls: the limit in `config` minus the writer's random jitter, if any.

    This is the rule of kafka-storage 4.1.
    """
    limit = config.segment_ms
    limit = min(limit, config.max_compaction_lag_ms) if config.is_compacted else limit
    return limit - (writer.jitter_ms if writer else 0)


def is_roll_overdue(segment: Segment, config: LogConfig, idle_ms: int, now_ms: int) -> bool:
    """Whether the active segment is so old that an append now would roll it; the last append was `idle_ms` ago.

    The age is the timestamp of the next record minus that of the segment's first batch. The next record is assumed to
    have the segment's newest timestamp plus `idle_ms`. The wall-clock time is not used, because with it a segment of
    imported records from 2015 would be too old at once. If the records have no timestamps, the age counts from the
    time when the segment was created or opened, as in Kafka.
    """
    if not segment.size_bytes:
        return False
    first = segment.first_batch_timestamp
    if first < 0:
        waited_ms = now_ms - segment.created_ms
    else:
        waited_ms = max(segment.largest_timestamp, first) - first + max(idle_ms, 0)
    return waited_ms > age_limit_ms(config, segment.writer)
