"""Rules for rolling the active segment of a partition without appends. Nothing is rolled here.

Kafka checks `segment.ms` only at the next append (kafka-storage 4.1), so the last segment of a quiet partition stays
active for ever and is never compacted. Here upkeep rolls such a segment when an append would roll it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from logfs.config import LogConfig
    from logfs.log.segment.segment import Segment


def is_wanted(config: LogConfig, *, is_brokers: bool) -> bool:
    """Whether `logfs.roll.quiet` has quiet segments rolled; by default, unless a broker has the directory."""
    return config.logfs_roll_quiet == "always" or (
        config.logfs_roll_quiet == "auto" and not is_brokers
    )


def is_overdue(segment: Segment, config: LogConfig, idle_ms: int, now_ms: int) -> bool:
    """Whether an append now would roll the active segment because of its age; the last append was `idle_ms` ago.

    The age is the difference of two timestamps of records, which may be years from the wall clock: an import of old
    data must not roll at every check. So the next record is assumed to have the newest timestamp plus `idle_ms`.
    Without timestamps the age counts from the opening, as in Kafka.
    """
    if not segment.size_bytes:
        return False
    first = segment.first_timestamp
    if first < 0:
        waited_ms = now_ms - segment.created_ms
    else:
        waited_ms = max(segment.largest_timestamp, first) - first + max(idle_ms, 0)
    return waited_ms > segment.max_ms(config)
