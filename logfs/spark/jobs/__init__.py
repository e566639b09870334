"""Spark jobs for work that takes too long on one machine. Each job is a function here and a `logfs spark` command.

The tasks read and write the log directories themselves, so these must have the same path on all machines.
"""

from __future__ import annotations

from logfs.spark.jobs.export import Exported, export
from logfs.spark.jobs.import_ import Imported, import_
from logfs.spark.jobs.lending import Visited
from logfs.spark.jobs.plot import plot
from logfs.spark.jobs.running import JobFailed
from logfs.spark.jobs.stats import Stats, TopicStats, stats
from logfs.spark.jobs.upkeep import Reindexed, compact, reindex
from logfs.spark.jobs.verify import Report, verify

__all__ = [
    "Exported",
    "Imported",
    "JobFailed",
    "Reindexed",
    "Report",
    "Stats",
    "TopicStats",
    "Visited",
    "compact",
    "export",
    "import_",
    "plot",
    "reindex",
    "stats",
    "verify",
]
