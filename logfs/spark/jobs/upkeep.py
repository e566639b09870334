"""Rebuilding indexes and compacting, a partition a task: `logfs reindex` and `logfs compact` for many disks."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from logfs.format import names
from logfs.log import key_map
from logfs.spark.jobs.lending import lent

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyspark.sql import SparkSession

    from logfs.log.cleaning import Cleaned
    from logfs.spark.jobs.lending import Visited
    from logfs.spark.jobs.running import Progress
    from logfs.spark.jobs.selection import Paths
    from logfs.store.store import Store


class Reindexed(NamedTuple):
    """A partition whose indexes were made anew: its segments, where it ends, and how many segments are damaged."""

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
    """Make all indexes of every partition anew from its log, as `logfs reindex` does.

    Nobody else may have the log directories. `topics` leaves the others out, `progress` is told (bytes of logs that
    are done, bytes in all). What cannot be read is told in what comes back, and the others are done. Raises
    `StoreLocked`, `UnknownPartition`, and what opening a store raises.
    """
    with lent(paths, topics) as lending:
        return lending.visit(
            spark, "logfs reindex", lending.names, _reindex, recover=True, progress=progress
        )


def compact(
    spark: SparkSession,
    paths: Paths,
    *,
    topics: Iterable[str] | None = None,
    roll: bool = False,
    progress: Progress | None = None,
) -> list[Visited[Cleaned]]:
    """Keep only the newest record of each key, in every partition whose `cleanup.policy` says `compact`.

    As `logfs compact`: `roll` seals the active segments first, so that they are compacted too; each task takes as
    much memory as `log.cleaner.dedupe.buffer.size` says, and keeps to `log.cleaner.io.max.bytes.per.second`.
    Otherwise as `reindex`.
    """
    with lent(paths, topics) as lending:
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


def _reindex(store: Store, name: str) -> Reindexed:
    partition = store[name]
    # What the key maps knew is made anew by the next who asks for a key.
    key_map.forget(partition)
    damaged = sum(bool(segment.damaged) for segment in partition.segments)
    return Reindexed(len(partition.segments), partition.log_end_offset, damaged)


def _compact(store: Store, name: str, *, roll: bool) -> Cleaned:
    return store.compactor.compact(name, roll=roll)
