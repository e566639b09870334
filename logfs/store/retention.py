"""Which segments have had their time, and why: a plan, and nothing is done here (kafka-storage 7).

Three passes, each from the oldest segment on and each ended by the first that may stay: what lies below the log
start offset, what exceeds `retention.bytes`, what is older than `retention.ms`.
"""

from __future__ import annotations

from enum import Enum
from itertools import pairwise, repeat
from typing import TYPE_CHECKING, NamedTuple

from logfs.format.times import format_time
from logfs.log.walk import Damage

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from logfs.config import LogConfig
    from logfs.log.segment import Segment


class Cause(Enum):
    """Which of the three passes a segment goes by."""

    START = "log-start-offset"
    SIZE = "retention.bytes"
    TIME = "retention.ms"


class Expired(NamedTuple):
    """A segment that goes, and why, in words."""

    segment: Segment
    cause: Cause
    reason: str


class Plan(NamedTuple):
    """What retention would do now: the oldest segments, which go, and why the first of the others stays.

    `log_start_offset` is where the log starts once they are gone.
    """

    expired: Sequence[Expired]
    stays: str
    log_start_offset: int

    def __bool__(self) -> bool:
        return bool(self.expired)


def plan(
    segments: Sequence[Segment], config: LogConfig | None, log_start_offset: int, now_ms: int
) -> Plan:
    """What to drop of a log's segments, oldest first; the active one is among them only if all of it has expired.

    Without a `config`, where nobody here knows the topic's settings, nothing goes by size or age.
    """
    # Before anybody looks at times: what is appended to the last segment from now on has not expired.
    starts = [log_start_offset, *(segment.next_offset for segment in segments)]
    expired = [*_below_start(segments, log_start_offset)]
    if config is not None and config.is_deleted:
        for cause, reasons in ((Cause.SIZE, _too_large), (Cause.TIME, _too_old)):
            left = segments[len(expired) :]
            expired += map(Expired, left, repeat(cause), reasons(left, config, now_ms))
    left = segments[len(expired) :]
    stays = _why_it_stays(left, config, now_ms) if left else ""
    return Plan(expired, stays, starts[len(expired)])


def _below_start(segments: Sequence[Segment], log_start_offset: int) -> Iterator[Expired]:
    for segment, following in pairwise(segments):
        if following.base_offset > log_start_offset:
            return
        yield Expired(
            segment, Cause.START, f"it lies below the log start offset {log_start_offset}"
        )


def _too_large(segments: Sequence[Segment], config: LogConfig, now_ms: int) -> Iterator[str]:
    limit = config.retention_bytes
    if limit < 0:
        return
    excess = sum(segment.size_bytes for segment in segments) - limit
    for segment in segments:
        if excess < segment.size_bytes or not segment.size_bytes:
            return
        yield f"the log exceeds retention.bytes={limit} by {excess} bytes"
        excess -= segment.size_bytes


def _too_old(segments: Sequence[Segment], config: LogConfig, now_ms: int) -> Iterator[str]:
    limit = config.retention_ms
    if limit < 0:
        return
    for segment in segments:
        newest = segment.largest_timestamp
        if now_ms - newest <= limit or not segment.size_bytes:
            return
        # An index is a cache, and nothing is deleted on the word of one alone.
        newest = _newest_timestamp(segment)
        if now_ms - newest <= limit:
            return
        yield f"its newest record, of {format_time(newest)}, is older than retention.ms={limit}"


def _newest_timestamp(segment: Segment) -> int:
    """As `largest_timestamp`, and no less than the timestamps of the last batches in the log itself (ms)."""
    newest = segment.largest_timestamp
    for found in segment.walk(segment.position_of(segment.next_offset - 1)):
        if isinstance(found, Damage):
            # What cannot be read may be as new as the file.
            newest = max(newest, segment.mtime_ms())
        else:
            newest = max(newest, found[1].header.max_timestamp)
    return newest


def _why_it_stays(segments: Sequence[Segment], config: LogConfig | None, now_ms: int) -> str:
    """What people ask most: why is this old record still here."""
    segment = segments[0]
    if not segment.size_bytes:
        return "it is empty"
    if config is None:
        return (
            "the directory is a broker's, which keeps the topic's settings to itself; to have logfs delete by size "
            "or age, set retention.bytes or retention.ms with 'logfs config' or under config/"
        )
    if not config.is_deleted:
        return f"cleanup.policy={','.join(sorted(config.cleanup_policy))} deletes nothing by age or size"
    reasons = []
    if config.retention_bytes >= 0:
        total = sum(each.size_bytes for each in segments)
        reasons.append(
            f"the log has {total} bytes, and dropping these {segment.size_bytes} would leave less than "
            f"retention.bytes={config.retention_bytes}"
        )
    if config.retention_ms >= 0:
        newest = segment.largest_timestamp
        due = format_time(newest + config.retention_ms)
        reasons.append(
            f"its newest record is of {format_time(newest)}, and may go after {due} "
            f"(retention.ms={config.retention_ms})"
        )
    return "; ".join(reasons) or "retention.ms and retention.bytes set no limit"
