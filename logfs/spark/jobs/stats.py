"""The job that counts the contents of log directories: records, bytes and keys, records over time, and compression.

It has one work item per segment.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from logfs.errors import InvalidSetting
from logfs.log.disk.disk import Gone
from logfs.log.scan.segment_descriptor import SegmentDescriptor, describe_segment
from logfs.log.scan.segment_stats import SegmentStats, bucket_width_ms, count_segment
from logfs.spark.jobs.job_runner import WorkItem, run
from logfs.spark.jobs.missing import UnreadableSegment, failure, still_in_log
from logfs.spark.jobs.selection import opened

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyspark.sql import SparkSession

    from logfs.spark.jobs.job_runner import Progress
    from logfs.spark.jobs.selection import Paths


@dataclass(frozen=True)
class TopicStats:
    """The counts of one topic: its partitions, its segments, and their contents."""

    topic: str
    partitions: int
    segments: int
    counts: SegmentStats

    @property
    def keys(self) -> int:
        """The estimated number of different keys. The standard error of the estimate is 0.8 %."""
        return self.counts.keys.count()

    @property
    def compression(self) -> float:
        """The compression ratio: the uncompressed size of the logs divided by their size; 1.0 for empty logs."""
        counts = self.counts
        return counts.plain_bytes / counts.log_bytes if counts.log_bytes else 1.0


@dataclass(frozen=True)
class Stats:
    """The result of the job: the counts of each topic, in the order of the topics' names.

    `bucket_ms` is the length of the time buckets in which `SegmentStats.times` counts records.
    """

    topics: tuple[TopicStats, ...]
    bucket_ms: int


def stats(
    spark: SparkSession,
    paths: Paths,
    *,
    topics: Iterable[str] | None = None,
    bucket_ms: int | None = None,
    progress: Progress | None = None,
) -> Stats:
    """Count the records, bytes and keys in log directories, by topic, and the records over time.

    Nothing is changed, and a mount or a broker may use the directories meanwhile. `bucket_ms` is the length of the
    time buckets in which records are counted; if it is None, at most 200 buckets cover the timestamps. `topics`
    limits the count to these topics. `progress` is called with (bytes of logs done, total bytes). Blocks until the
    job has ended. Raises `InvalidSetting` for a `bucket_ms` below 1, and the errors of opening a store read-only. If
    a partition is offline, raises the error that keeps it offline. Raises `JobFailed` if a segment cannot be read, or
    is in the log but missing on a task's machine.
    """
    if bucket_ms is not None and bucket_ms < 1:
        raise InvalidSetting(f"bucket_ms is {bucket_ms}: give at least 1")
    with opened(paths, topics) as store:
        for reason in store.offline.values():
            raise reason
        works: list[WorkItem[SegmentDescriptor]] = []
        segments: Counter[str] = Counter()
        partitions: Counter[str] = Counter()
        topic_of = {}
        for name in store:
            partition = store[name]
            here = [plan for _, plan in describe_segment(partition)]
            works += [WorkItem(each, each.size_bytes) for each in here]
            partitions[partition.topic] += 1
            segments[partition.topic] += len(here)
            topic_of[name] = partition.topic
        width = bucket_ms or bucket_width_ms([store[name] for name in store])
    found = run(spark, "logfs stats", works, partial(_count, bucket_ms=width), progress)
    missing = still_in_log(paths, (each for each in found if isinstance(each, UnreadableSegment)))
    if missing:
        raise failure(missing)
    counts = {topic: SegmentStats() for topic in sorted(partitions)}
    for work, counted in zip(works, found, strict=True):
        # Do not count segments that retention or compaction has removed after the job was planned.
        if not isinstance(counted, UnreadableSegment):
            counts[topic_of[work.item.partition]].merge(counted)
    return Stats(
        tuple(
            TopicStats(topic, partitions[topic], segments[topic], each)
            for topic, each in counts.items()
        ),
        width,
    )


def _count(plan: SegmentDescriptor, *, bucket_ms: int) -> SegmentStats | UnreadableSegment:
    try:
        segment = plan.open()
        try:
            return count_segment(segment, bucket_ms)
        finally:
            segment.close()
    except (FileNotFoundError, Gone) as error:
        return UnreadableSegment.here(plan, error)
