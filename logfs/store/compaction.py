"""Plans of compaction: which log to compact next, and how much of it. Nothing is done here (kafka-storage 8.1)."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from logfs.log.compaction.cleaning import Dirty

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from logfs.config import LogConfig
    from logfs.log.segment.segment import Segment


class Log(NamedTuple):
    """The input of a plan: a log's segments, settings and offsets.

    `checkpoint` is the offset up to which the log was cleaned, None if it never was.
    """

    segments: Sequence[Segment]
    config: LogConfig
    log_start_offset: int
    last_stable_offset: int
    checkpoint: int | None


class Plan(NamedTuple):
    """How dirty a log is: what a round would clean, in offsets and in bytes, and how overdue the round is.

    `clean_bytes` counts the sealed segments below the dirty part. `delay_ms` is the time by which the oldest dirty
    batch exceeds `max.compaction.lag.ms`, or 0.
    """

    dirty: Dirty
    clean_bytes: int
    cleanable_bytes: int
    delay_ms: int

    @property
    def ratio(self) -> float:
        """The share of the bytes that have not been cleaned, from 0 to 1; 0 for a log without bytes."""
        total = self.clean_bytes + self.cleanable_bytes
        return self.cleanable_bytes / total if total else 0.0

    @property
    def work_bytes(self) -> int:
        """The most bytes that a round reads and writes: dirty bytes are read twice, the others once."""
        return 2 * self.clean_bytes + 3 * self.cleanable_bytes

    def is_due(self, config: LogConfig) -> bool:
        """Whether the ratio exceeds `min.cleanable.dirty.ratio`, or the round is overdue and has bytes to clean."""
        overdue = self.delay_ms > 0 and self.cleanable_bytes > 0
        return overdue or self.ratio > config.min_cleanable_dirty_ratio


def plan(log: Log, now_ms: int) -> Plan:
    """Return how dirty a log is at the time `now_ms` (ms since the epoch)."""
    first_dirty = _first_dirty(log)
    sealed = log.segments[:-1]
    dirty = [segment for segment in sealed if segment.next_offset > first_dirty]
    bound = max(_first_uncleanable(log, dirty, now_ms), first_dirty)
    # Only whole segments are cleaned, so the bound moves down to the base offset of the segment that it lies in.
    # If the log starts within a segment, that may be below the first dirty offset: then nothing is due.
    bound = max(s.base_offset for s in log.segments if s.base_offset <= bound)
    cleanable = sum(segment.size_bytes for segment in dirty if segment.base_offset < bound)
    clean = sum(segment.size_bytes for segment in sealed if segment.base_offset < first_dirty)
    times = [time for segment in dirty if (time := segment.first_timestamp) > 0]
    delay_ms = max(now_ms - log.config.max_compaction_lag_ms - min(times, default=now_ms), 0)
    return Plan(Dirty(first_dirty, bound), clean, cleanable, delay_ms)


def _first_dirty(log: Log) -> int:
    """Return the checkpoint, or the log start offset if there is no checkpoint within the log."""
    end = log.segments[-1].next_offset
    known = log.checkpoint
    if known is None or not log.log_start_offset <= known <= end:
        return log.log_start_offset
    return known


def _first_uncleanable(log: Log, dirty: Sequence[Segment], now_ms: int) -> int:
    """Return the offset at which cleaning must stop.

    Open transactions, the active segment and segments younger than `min.compaction.lag.ms` are not cleaned.
    """
    bound = min(log.last_stable_offset, log.segments[-1].base_offset)
    lag_ms = log.config.min_compaction_lag_ms
    if lag_ms > 0:
        young = (s.base_offset for s in dirty if s.largest_timestamp > now_ms - lag_ms)
        bound = min(bound, next(young, bound))
    return bound


def choose(plans: Mapping[str, Plan], configs: Mapping[str, LogConfig]) -> str | None:
    """Return the name of the dirtiest log that is due, or None if no log is due."""
    due = [name for name, each in plans.items() if each.is_due(configs[name])]
    return max(due, key=lambda name: plans[name].ratio, default=None)
