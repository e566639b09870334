"""Whether a segment that nobody appends to is rolled: a plan, and nothing is done here.

Kafka looks at `segment.ms` at the next append alone (kafka-storage 4.1), so the last segment of a quiet partition
stays open for ever, and compaction leaves it alone for as long. Here upkeep asks what an append would bring about.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from logfs.config import LogConfig
    from logfs.log.segment import Segment


def is_wanted(config: LogConfig, *, is_brokers: bool) -> bool:
    """Whether quiet segments are rolled: as `logfs.roll.quiet` says; by default unless a broker has the directory."""
    return config.logfs_roll_quiet == "always" or (
        config.logfs_roll_quiet == "auto" and not is_brokers
    )


def is_overdue(segment: Segment, config: LogConfig, idle_ms: int, now_ms: int) -> bool:
    """Whether an append would find the active segment too old, if nothing was appended for `idle_ms`.

    Its age is the difference of two timestamps, and the records' clock may be years from the wall clock (an import of
    old data must not roll at every look). So the record that would come next is taken to have the newest timestamp
    and as much as time has passed since. Without timestamps the age counts from the opening, as Kafka has it.
    """
    if not segment.size_bytes:
        return False
    first = segment.first_timestamp
    if first < 0:
        waited_ms = now_ms - segment.created_ms
    else:
        waited_ms = max(segment.largest_timestamp, first) - first + max(idle_ms, 0)
    return waited_ms > segment.max_ms(config)
