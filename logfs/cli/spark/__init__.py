"""`logfs spark JOB`: run a job of `logfs.spark.jobs`. Each job has a file here, and a Spark session of its own."""

from __future__ import annotations

COMMANDS = {
    "verify": "audit log directories: every batch, every index entry",
    "reindex": "rebuild all indexes of every partition",
    "compact": "keep only the newest record of each key, in all partitions with compact in their cleanup.policy",
    "stats": "count records, bytes, keys and times, and show the compression ratio",
    "export": "write a log to Parquet files, JSON files or Iceberg tables, by topic and date",
    "import": "append Parquet, JSON or text files, all or nothing",
}
