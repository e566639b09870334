"""What a report shows of log directories, read from a store that is opened read-only."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from logfs.errors import LogfsError
from logfs.log.scan.segment_stats import (
    SegmentStats,
    count_segment,
    times_by_index,
    width_for,
)
from logfs.store.observe.check import check
from logfs.store.observe.status import first_timestamp
from logfs.store.store import Store

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from logfs.log.read.log import Log
    from logfs.store.observe.check import Finding

    # Called with a number of bytes that were just read.
    Progress = Callable[[int], object]


# The fraction of all records that a drawing may leave out at either end of the time axis.
_RARE = 0.01


class PartitionReport(NamedTuple):
    """One partition. Sizes are in bytes, times in ms since the epoch, -1 if unknown.

    `oldest_due_ms` is when retention by time may drop the oldest segment that stays, None if it never does; `stays`
    says why that segment stays. `expired_bytes` is what retention would drop now. `counts` is None without an audit.
    """

    name: str
    topic: str
    size_bytes: int
    local_bytes: int
    segments: int
    log_start_offset: int
    log_end_offset: int
    first_ms: int
    last_ms: int
    cleanup_policy: str
    retention_ms: int
    oldest_due_ms: int | None
    stays: str
    expired_bytes: int
    counts: SegmentStats | None


class GroupLag(NamedTuple):
    """The committed offset of a group for a partition, and its lag; None if the store lacks the partition."""

    group: str
    partition: str
    offset: int
    lag: int | None


class ReportContents(NamedTuple):
    """What the page shows.

    `findings` are those of the audit, None if it was left out. `times` counts records by topic and by the beginning
    of a time bucket of `bucket_ms`; without the audit, offsets are counted by the entries of the time indexes.
    The drawings show the times from `first_ms` to `last_ms`, -1 for none. Nearly all records are in this span; a few
    records with odd timestamps are left out if they would make the span more than 10 times as long. `problems` are
    partitions that cannot be opened, and log directories that have failed.
    """

    log_dirs: Sequence[str]
    made_ms: int
    partitions: Sequence[PartitionReport]
    lags: Sequence[GroupLag]
    problems: Sequence[str]
    findings: Sequence[Finding] | None
    first_ms: int
    last_ms: int
    bucket_ms: int
    times: dict[str, Counter[int]]


def size_of(log_dirs: Sequence[Path]) -> int:
    """Return the bytes that `read_report` reads of log directories with `full`: each log twice.

    Raises the errors of opening a store read-only.
    """
    with Store(log_dirs, read_only=True, create=False) as store:
        return 2 * sum(store[name].local_bytes for name in store)


def read_report(log_dirs: Sequence[Path], *, full: bool, progress: Progress) -> ReportContents:
    """Return the contents of a report on log directories; nothing in them is changed.

    With `full`, all of the logs is read: for the audit, and for records, keys and codecs. Otherwise only indexes are
    read. Segments that are only in an object store are not read. Raises the errors of opening a store read-only.
    """
    with Store(log_dirs, read_only=True, create=False) as store:
        names = list(store)
        first_ms, last_ms = _usual_times([store[name] for name in names])
        bucket_ms = width_for(last_ms - first_ms)
        times: dict[str, Counter[int]] = {}
        partitions = []
        for name in names:
            partition = store[name]
            counts = _counts(partition, bucket_ms, progress) if full else None
            counted = _times_by_index(partition, bucket_ms) if counts is None else counts.times
            times.setdefault(partition.topic, Counter()).update(counted)
            partitions.append(_partition(store, partition, counts))
        lags = [
            GroupLag(
                each.group,
                each.partition.directory,
                each.commit.offset,
                _lag(store, each.partition.directory, each.commit.offset),
            )
            for each in store.groups
        ]
        problems = [f"{name}: {reason}" for name, reason in sorted(store.offline.items())]
        problems += map(str, store.registry.failed)
        made_ms = store.clock()

    def audited(_: str, size: int) -> None:
        progress(size)

    findings = list(check(log_dirs, audited)) if full else None
    return ReportContents(
        list(map(str, log_dirs)),
        made_ms,
        partitions,
        lags,
        problems,
        findings,
        first_ms,
        last_ms,
        bucket_ms,
        times,
    )


def _usual_times(partitions: Sequence[Log]) -> tuple[int, int]:
    """Return the times between which nearly all records are, by the first and the greatest time of each segment.

    The span is that of all records. If the first and the last hundredth of the records make it more than 10 times as
    long, they are left out.
    """
    points: list[tuple[int, int]] = []
    for partition in partitions:
        for segment in partition.local_segments:
            with suppress(LogfsError, OSError):
                header = segment.header(0)
                begin = -1 if header is None else header.base_timestamp
                count = segment.next_offset - segment.base_offset
                points += [(begin, count), (segment.max_timestamp.timestamp, count)]
            segment.close()
    points = sorted(point for point in points if point[0] >= 0)
    if not points:
        return -1, -1
    total, seen = sum(count for _, count in points), 0
    usual = []
    for time, count in points:
        if seen + count > total * _RARE and seen < total * (1 - _RARE):
            usual.append(time)
        seen += count
    whole = points[-1][0] - points[0][0]
    if usual and whole > 10 * (usual[-1] - usual[0]):
        return usual[0], usual[-1]
    return points[0][0], points[-1][0]


def _partition(store: Store, partition: Log, counts: SegmentStats | None) -> PartitionReport:
    config = partition.config
    plan = store.retention_plan(partition.name.directory)
    # One moment of the log: its numbers agree with each other.
    state = partition.state
    kept = state.segments[len(plan.expired) :]
    due_ms = None
    if config.is_deleted and config.retention_ms >= 0 and kept:
        with suppress(LogfsError, OSError):
            newest = kept[0].max_timestamp.timestamp
            due_ms = newest + config.retention_ms if newest >= 0 else None
    return PartitionReport(
        partition.name.directory,
        partition.topic,
        state.size_bytes,
        state.local_bytes,
        len(state.segments),
        state.log_start_offset,
        state.log_end_offset,
        first_timestamp(partition),
        state.last_timestamp,
        ",".join(sorted(config.cleanup_policy)),
        config.retention_ms if config.is_deleted else -1,
        due_ms,
        plan.stays,
        sum(each.segment.size_bytes for each in plan.expired),
        counts,
    )


def _lag(store: Store, name: str, offset: int) -> int | None:
    return max(store[name].log_end_offset - offset, 0) if name in store else None


def _counts(partition: Log, bucket_ms: int, progress: Progress) -> SegmentStats:
    """Count the contents of the local segments."""
    counts = SegmentStats()
    for segment in partition.local_segments:
        # A segment that leaves the log meanwhile is not counted; damage is counted, and the audit tells more.
        with suppress(LogfsError, OSError):
            counts.merge(count_segment(segment, bucket_ms))
        progress(segment.size_bytes)
        segment.close()
    return counts


def _times_by_index(partition: Log, bucket_ms: int) -> Counter[int]:
    """Count offsets by time, by the entries of the time indexes alone."""
    counted: Counter[int] = Counter()
    for segment in partition.local_segments:
        with suppress(LogfsError, OSError):
            counted.update(times_by_index(segment, bucket_ms))
        segment.close()
    return counted
