"""Spark jobs for work that takes too long on one machine. Each job is a function here and a `logfs spark` command.

The tasks read and write the log directories themselves. So a log directory must have the same path on all machines.

- `verify`: audits segments. `stats`: counts the contents of segments. Each work item of both jobs is one segment.
  `plot`: plots the result of `stats`.
- `reindex`: rebuilds indexes. `compact`: compacts partitions. Each work item of both jobs is one partition.
- `export`: exports records to files. `export_files`: writes the files in the tasks. `export_commit`: moves them to
  their final paths in the driver. `export_iceberg`: adds them to tables of Apache Iceberg.
- `import_`: imports files. `import_splits`: finds the files, and orders and merges parts of files. `import_formats`,
  `import_lines`, `import_parquet`: read the formats of files.
- `job_runner`: sends work items to tasks, and returns their results and progress. Begin here.
- `partition_leases`: lets tasks change partitions while the driver holds the locks of the log directories.
- `selection`: which logs a job works on. `missing`: handles segments that a task could not open on its machine.
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
