"""The contents of a report about log directories, read from a store that is opened read-only."""

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

    # Called with the number of bytes that were read since the last call.
    Progress = Callable[[int], object]


# The fraction of all records that a drawing may leave out at each end of the time axis.
_RARE = 0.01


class PartitionReport(NamedTuple):
    """One partition. Times are in ms since the epoch, -1 if unknown.

    `expired_bytes` is the size of the segments that retention would drop now. `oldest_due_ms` and `stays` are about
    the oldest segment that retention would keep: `oldest_due_ms` is the time from which `retention_ms` (-1 for no
    limit) allows dropping it, None for never or unknown; `stays` says why it is kept now. `counts` is None if the log
    was not read.
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
    """The committed offset of a group for a partition. The lag (offsets) is None if the store lacks the partition."""

    group: str
    partition: str
    offset: int
    lag: int | None


class ReportContents(NamedTuple):
    """The data of the page.

    `findings` are those of the audit, None without an audit. `times` has the number of records by topic and by the
    start of their time bucket (`bucket_ms` long). Without an audit, `times` has the number of offsets instead, taken
    from the time indexes. The drawings show the times from `first_ms` to `last_ms`, -1 if no time is known. They
    leave out a few records with odd timestamps if these records would make the span of times more than 10 times as
    long. `problems` are partitions that cannot be opened, and log directories that have failed.
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
    """Return how many bytes `read_report` reads with `full`: each log twice, to count its records and to audit it.

    Raises the errors of opening a store read-only.
    """
    with Store(log_dirs, read_only=True, create=False) as store:
        return 2 * sum(store[name].local_bytes for name in store)


def read_report(log_dirs: Sequence[Path], *, full: bool, progress: Progress) -> ReportContents:
    """Return the contents of a report about log directories, which are not changed.

    With `full`, the logs are read completely, to audit them and to count records, keys and codecs. Otherwise little
    more than their indexes is read. Segments that are only in an object store are never read. Raises the errors of
    opening a store read-only.
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
    """Return the first and the last time (ms) that the drawings show, (-1, -1) if no time is known.

    The times come from the first and the greatest timestamp of each local segment. The result spans all records,
    unless the earliest and the latest hundredth of the records make the span more than 10 times as long: then these
    records are left out.
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
    # Use one state for all numbers: the log may change meanwhile.
    state = partition.state
    kept = state.segments[len(plan.expired) :]
    due_ms = None
    if config.has_delete_policy and config.retention_ms >= 0 and kept:
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
        config.retention_ms if config.has_delete_policy else -1,
        due_ms,
        plan.stays,
        sum(each.segment.size_bytes for each in plan.expired),
        counts,
    )


def _lag(store: Store, name: str, offset: int) -> int | None:
    return max(store[name].log_end_offset - offset, 0) if name in store else None


def _counts(partition: Log, bucket_ms: int, progress: Progress) -> SegmentStats:
    """Return the counts of records, keys, codecs and times in the local segments, which are read completely."""
    counts = SegmentStats()
    for segment in partition.local_segments:
        # Leave out a segment that was dropped since, or cannot be read. Damage is only counted; the audit reports it.
        with suppress(LogfsError, OSError):
            counts.merge(count_segment(segment, bucket_ms))
        progress(segment.size_bytes)
        segment.close()
    return counts


def _times_by_index(partition: Log, bucket_ms: int) -> Counter[int]:
    """Return the number of offsets in each time bucket, by the bucket's start (ms), from the time indexes alone."""
    counted: Counter[int] = Counter()
    for segment in partition.local_segments:
        with suppress(LogfsError, OSError):
            counted.update(times_by_index(segment, bucket_ms))
        segment.close()
    return counted
