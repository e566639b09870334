"""The contents of a report about log directories, read from a store that is opened read-only."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from logfs.errors import LogfsError
from logfs.format.messages.group_record import lag_of
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


# The most records that a chart may leave out at each end of its time axis, as a fraction of all records.
_RARE = 0.01


class PartitionReport(NamedTuple):
    """What the report says about a partition. Times are in ms since the epoch, -1 if unknown.

    `local_bytes` leaves out the segments that are only in an object store. `first_ms` is the timestamp of the first
    record, `last_ms` the greatest timestamp of the last batch. `retention_ms` is a duration, -1 for no limit.
    `counts` is None for a log that was not read.

    `expired_bytes` is the size of the segments that retention would delete now. The other segments are kept. `stays`
    says why the oldest of these is kept; it is "" if there are none. `oldest_due_ms` is the time at which it is old
    enough to be deleted, None for never or unknown.
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
    """A consumer group's committed offset and its lag in offsets; the lag is None if the partition does not exist."""

    group: str
    partition: str
    offset: int
    lag: int | None


class ReportContents(NamedTuple):
    """The data of the report.

    `findings` are those of the audit, None without an audit. `times` maps each topic to the number of its records in
    each time bucket. The key of a bucket is its start (ms), or -1 for records without a timestamp; its length is
    `bucket_ms`. Without an audit, `times` has numbers of offsets instead, taken from the time indexes. The charts
    show the times from `first_ms` to `last_ms`, -1 if no time is known. If a few records have extreme timestamps,
    which would make the time axis more than 10 times as long, the charts leave them out. `problems` are partitions
    that cannot be opened or read, and log directories that have failed.
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
    """Return how many bytes `read_report` reads if its argument `full` is true.

    `read_report` then reads each local log twice, once to count records and once to audit them. A partition that is
    deleted meanwhile is left out. Raises the errors of opening a store read-only.
    """
    with Store(log_dirs, read_only=True, create=False) as store:
        return 2 * sum(_local_bytes(store[name]) for name in store)


def _local_bytes(partition: Log) -> int:
    with suppress(LogfsError, OSError):
        return partition.until_settled(lambda: partition.local_bytes)
    return 0


def read_report(log_dirs: Sequence[Path], *, full: bool, progress: Progress) -> ReportContents:
    """Return the contents of a report about log directories. Nothing is changed in them.

    If `full` is true, the logs are read completely, to audit them and to count records, keys and codecs. Otherwise
    little more than their indexes is read. Segments that are only in an object store are never read. `progress` is
    called with the number of bytes read since its last call, if `full` is true. Raises the errors of opening a store
    read-only.
    """
    with Store(log_dirs, read_only=True, create=False) as store:
        names = list(store)
        first_ms, last_ms = _usual_times([store[name] for name in names])
        bucket_ms = width_for(last_ms - first_ms)
        times: dict[str, Counter[int]] = {}
        partitions, unread = [], []
        for name in names:
            partition = store[name]
            counts = _counts(partition, bucket_ms, progress) if full else None
            counted = _times_by_index(partition, bucket_ms) if counts is None else counts.times
            try:
                found = partition.until_settled(partial(_partition, store, partition, counts))
            except (LogfsError, OSError) as error:
                unread.append(f"{name}: {error}")
                continue
            times.setdefault(partition.topic, Counter()).update(counted)
            partitions.append(found)
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
        problems += [*unread, *map(str, store.registry.failed)]
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
    """Return the first and the last time (ms) that the charts show, (-1, -1) if no time is known.

    The times are estimated from the first and the greatest timestamp of each local segment. They cover all records,
    with one exception: the earliest 1 % and the latest 1 % of the records are left out if the time span of all
    records is more than 10 times as long as that of the rest.
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
    """Return the report of a partition as it is now. `counts` counts its records; None if they were not read.

    Raises `Gone` if a segment leaves the log meanwhile.
    """
    config = partition.config
    plan = store.retention_plan(partition.name.directory)
    # The log may change now, so take all numbers from one snapshot of its state.
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
    return lag_of(offset, store[name].log_end_offset) if name in store else None


def _counts(partition: Log, bucket_ms: int, progress: Progress) -> SegmentStats:
    """Count the records, keys and codecs in the local segments, and the records in each time bucket.

    All local segments are read completely. A segment that cannot be read is left out. `progress` is called with the
    size in bytes of each segment.
    """
    counts = SegmentStats()
    for segment in partition.local_segments:
        size = 0
        # Leave out a segment that was deleted meanwhile or cannot be read. Damage inside a segment does not raise an
        # error: `counts` has the number of damaged bytes.
        with suppress(LogfsError, OSError):
            size = segment.size_bytes
            counts.merge(count_segment(segment, bucket_ms))
        progress(size)
        segment.close()
    return counts


def _times_by_index(partition: Log, bucket_ms: int) -> Counter[int]:
    """Return the number of offsets in each time bucket, by its start (ms). Only the time indexes are read."""
    counted: Counter[int] = Counter()
    for segment in partition.local_segments:
        with suppress(LogfsError, OSError):
            counted.update(times_by_index(segment, bucket_ms))
        segment.close()
    return counted
