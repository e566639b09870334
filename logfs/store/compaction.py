"""Which log to compact next, and how much of it: a plan, and nothing is done here (kafka-storage 8.1)."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from logfs.log.cleaning import Dirty

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from logfs.config import LogConfig
    from logfs.log.segment import Segment


class Log(NamedTuple):
    """What the plan goes by: a log's segments and offsets, and up to where it was cleaned, if ever."""

    segments: Sequence[Segment]
    config: LogConfig
    log_start_offset: int
    last_stable_offset: int
    checkpoint: int | None


class Plan(NamedTuple):
    """How dirty a log is: what a round would clean, in offsets and in bytes, and for how long it has waited.

    `delay_ms` is the time since its oldest dirty batch should have been cleaned by `max.compaction.lag.ms`.
    """

    dirty: Dirty
    clean_bytes: int
    cleanable_bytes: int
    delay_ms: int

    @property
    def ratio(self) -> float:
        """The share of the bytes that have not been cleaned; 0 of a log without any."""
        total = self.clean_bytes + self.cleanable_bytes
        return self.cleanable_bytes / total if total else 0.0

    def is_due(self, config: LogConfig) -> bool:
        """Whether the log is dirty enough, or has been dirty for long enough."""
        overdue = self.delay_ms > 0 and self.cleanable_bytes > 0
        return overdue or self.ratio > config.min_cleanable_dirty_ratio


def plan(log: Log, now_ms: int) -> Plan:
    """How dirty a log is now."""
    first_dirty = _first_dirty(log)
    sealed = log.segments[:-1]
    dirty = [segment for segment in sealed if segment.next_offset > first_dirty]
    bound = max(_first_uncleanable(log, dirty, now_ms), first_dirty)
    # Segments are cleaned whole: down to the base of the one that the bound lies in.
    # That may be below the first dirty offset, where the log start is in the midst of a segment: then nothing is due.
    bound = max(s.base_offset for s in log.segments if s.base_offset <= bound)
    cleanable = sum(segment.size_bytes for segment in dirty if segment.base_offset < bound)
    clean = sum(segment.size_bytes for segment in sealed if segment.base_offset < first_dirty)
    times = [time for segment in dirty if (time := segment.first_timestamp) > 0]
    delay_ms = max(now_ms - log.config.max_compaction_lag_ms - min(times, default=now_ms), 0)
    return Plan(Dirty(first_dirty, bound), clean, cleanable, delay_ms)


def _first_dirty(log: Log) -> int:
    """The checkpoint, unless the log has lost what it speaks of."""
    end = log.segments[-1].next_offset
    known = log.checkpoint
    if known is None or not log.log_start_offset <= known <= end:
        return log.log_start_offset
    return known


def _first_uncleanable(log: Log, dirty: Sequence[Segment], now_ms: int) -> int:
    """Open transactions, the active segment and what is younger than min.compaction.lag.ms are left alone."""
    bound = min(log.last_stable_offset, log.segments[-1].base_offset)
    lag_ms = log.config.min_compaction_lag_ms
    if lag_ms > 0:
        young = (s.base_offset for s in dirty if s.largest_timestamp > now_ms - lag_ms)
        bound = min(bound, next(young, bound))
    return bound


def choose(plans: Mapping[str, Plan], configs: Mapping[str, LogConfig]) -> str | None:
    """The dirtiest of the logs that are due; None if none is."""
    due = [name for name, each in plans.items() if each.is_due(configs[name])]
    return max(due, key=lambda name: plans[name].ratio, default=None)
