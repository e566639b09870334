"""Spark jobs for work that takes too long on one machine. Each job is a function here and a `logfs spark` command.

The tasks read and write the log directories themselves. So a log directory must have the same path on all machines.

- `verify`, `stats`: jobs that read, with one work item per segment. `plot` plots the result of `stats`.
- `reindex`, `compact`: jobs that write, with one work item per partition.
- `export`: the export; `export_files`: the files that its tasks write; `export_commit`: how the driver moves the
  files to their places; `export_iceberg`: tables of Apache Iceberg.
- `import_`: the import; `import_splits`: its files and their order; `import_formats`, `import_lines`,
  `import_parquet`: its formats.
- `job_runner`: sends work items to tasks, and returns their results and progress. Begin here.
- `partition_leases`: partitions that tasks change while the driver holds the locks of the log directories.
- `selection`: which logs a job works on. `missing`: segments that a task could not open on its machine.
"""

from __future__ import annotations

from logfs.spark.jobs.compact import compact
from logfs.spark.jobs.export import Exported, export
from logfs.spark.jobs.import_ import Imported, import_
from logfs.spark.jobs.job_runner import JobFailed
from logfs.spark.jobs.partition_leases import Visited
from logfs.spark.jobs.plot import plot
from logfs.spark.jobs.reindex import Reindexed, reindex
from logfs.spark.jobs.stats import Stats, TopicStats, stats
from logfs.spark.jobs.verify import Verification, verify

__all__ = [
    "Exported",
    "Imported",
    "JobFailed",
    "Reindexed",
    "Stats",
    "TopicStats",
    "Verification",
    "Visited",
    "compact",
    "export",
    "import_",
    "plot",
    "reindex",
    "stats",
    "verify",
]
