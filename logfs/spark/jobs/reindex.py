"""The job that rebuilds the indexes of many partitions at the same time; `logfs reindex` rebuilds those of one."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from logfs.spark.jobs.partition_leases import lease_partitions

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyspark.sql import SparkSession

    from logfs.spark.jobs.job_runner import Progress
    from logfs.spark.jobs.partition_leases import Visited
    from logfs.spark.jobs.selection import Paths
    from logfs.store.store import Store


class Reindexed(NamedTuple):
    """The result of rebuilding the indexes of a partition.

    `segments` is the number of its segments, `damaged` is the number of segments with damage.
    """

    segments: int
    log_end_offset: int
    damaged: int


def reindex(
    spark: SparkSession,
    paths: Paths,
    *,
    topics: Iterable[str] | None = None,
    progress: Progress | None = None,
) -> list[Visited[Reindexed]]:
    """Rebuild all indexes of every partition from its log, in the same way as `logfs reindex`.

    Key indexes are only deleted; the next lookup of a key rebuilds them. No other process may have opened the log
    directories for writing. `topics` limits the job to these topics. `progress` is called with (bytes of logs done,
    total bytes). Blocks until the job has ended. Returns a `Visited` for each partition. If a partition cannot be
    read, its `Visited` has the error as text, and the other partitions are still processed. Raises the errors of
    `lease_partitions`, such as `StoreLocked`.
    """
    with lease_partitions(paths, topics) as lending:
        return lending.visit(
            spark, "logfs reindex", lending.names, _reindex, recover=True, progress=progress
        )


def _reindex(store: Store, name: str) -> Reindexed:
    partition = store[name]
    # Remove the key indexes. The other indexes were rebuilt when the store was opened.
    partition.forget_keys()
    damaged = sum(bool(segment.damaged) for segment in partition.segments)
    return Reindexed(len(partition.segments), partition.log_end_offset, damaged)
