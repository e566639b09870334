"""The job that compacts many partitions at the same time; `logfs compact` compacts one partition."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from logfs.format.base import names
from logfs.spark.jobs.partition_leases import lease_partitions

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyspark.sql import SparkSession

    from logfs.log.compaction.cleaning import Cleaned
    from logfs.spark.jobs.job_runner import Progress
    from logfs.spark.jobs.partition_leases import Visited
    from logfs.spark.jobs.selection import Paths
    from logfs.store.store import Store


def compact(
    spark: SparkSession,
    paths: Paths,
    *,
    topics: Iterable[str] | None = None,
    roll: bool = False,
    progress: Progress | None = None,
) -> list[Visited[Cleaned]]:
    """Keep only the newest record of each key, in every partition whose `cleanup.policy` includes `compact`.

    Each partition is compacted in the same way as by `logfs compact`. If `roll` is true, a new active segment is
    started in each partition first, so that the previous active segment is compacted, too. The settings
    `log.cleaner.dedupe.buffer.size` (memory) and `log.cleaner.io.max.bytes.per.second` apply to each task separately.
    `topics` limits the job to these topics. `progress` is called with (bytes of logs done, total bytes).

    Blocks until the job has ended. Returns a `Visited` for each partition whose `cleanup.policy` includes `compact`.
    If a partition cannot be compacted, the `reason` of its `Visited` is the text of the error, and the other
    partitions are still compacted. Raises `StoreLocked` if another process has opened the log directories for
    writing, `UnknownPartition` for a topic that does not exist, and `InvalidStore` if a path is not a log directory,
    or if an earlier commit of staged batches cannot be completed.
    """
    with lease_partitions(paths, topics) as lending:
        settings = lending.store.settings
        wanted = [
            name
            for name in lending.names
            if settings.log_config(names.parse_directory(name).topic).is_compacted
        ]
        lending.allow_gaps(wanted)
        return lending.visit(
            spark, "logfs compact", wanted, partial(_compact, roll=roll), progress=progress
        )


def _compact(store: Store, name: str, *, roll: bool) -> Cleaned:
    return store.compactor.compact(name, roll=roll)
