"""`format("logfs")` for Spark: log directories with the columns and options of Spark's Kafka source, and no broker.

    import logfs.spark

    spark = logfs.spark.session("pipeline")        # or: logfs.spark.register(spark) with a session of your own
    orders = spark.read.format("logfs").option("subscribe", "orders").load("/var/lib/logfs")

Only this package imports pyspark and pyarrow. docs/spark.md describes every option, with an example.

- `source`: the data source that Spark registers. Begin here.
- `options`: the options of Spark's Kafka source and sink, checked.
- `topics`: the partitions of a read, and where reading starts and ends in them.
- `filters`: the filters of a query that the log evaluates itself.
- `splits`: what each task reads, and reading it. `arrow`: columns to Arrow batches.
- `batch`, `stream`: the readers of batch and of streaming queries.
- `sink`: writing. `jobs`: verify, reindex, compact, stats, export, import.
- `decoding`: values of Confluent's serializers as JSON, in a column.
- `workers`: Spark's Python worker processes. `discovery`: the package by which Spark finds the data source.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import Column, SparkSession

# Settings with a large effect on cost that a running session accepts. With any smaller value, Spark measures every
# row that goes to Python.
_SETTINGS = {"spark.sql.execution.arrow.maxBytesPerBatch": str(2**31 - 1)}
# Settings that must be set before a session starts. They shorten each task and each micro-batch.
_STATIC_SETTINGS = {
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing."
        "FileSystemBasedCheckpointFileManager"
    ),
}


def register(spark: SparkSession) -> None:
    """Register `format("logfs")` with a session, and set the recommended settings that a running session accepts."""
    from logfs.spark.source import LogfsDataSource

    for name, value in _SETTINGS.items():
        spark.conf.set(name, value)
    spark.dataSource.register(LogfsDataSource)


def decode(column: Column | str, schemas: str) -> Column:
    """Return a column of structs with the Avro, Protobuf or JSON values of Confluent's serializers as JSON.

    `schemas` is the URL of a schema registry, a directory with files such as `7.avsc`, or a log directory with the
    topic `_schemas`. The struct has `schema_id` (int), `json` (string) and `error` (string). A value that cannot be
    decoded has no `json`, and its `error` says why; a null has neither. If the schemas cannot be read, it fails.
    """
    from logfs.spark.decoding import decode

    return decode(column, schemas)


def session(
    name: str = "logfs", *, master: str | None = None, settings: dict[str, str] | None = None
) -> SparkSession:
    """Return a Spark session with `format("logfs")` and the settings that make it fast.

    `name` is the name of the application. `settings` maps Spark settings to values, which take precedence.

    Checkpoints are written by plain renames, so they must be on a file system, not in an object store. For an object
    store, set spark.sql.streaming.checkpointFileManagerClass in `settings`.
    """
    from pyspark.sql import SparkSession

    from logfs.spark.source import LogfsDataSource

    if (master or "local").startswith("local"):
        # Otherwise Spark's Python workers run the first python3 on the PATH, which may not have logfs installed.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName(name)
    if master is not None:
        builder = builder.master(master)
    for key, value in {**_SETTINGS, **_STATIC_SETTINGS, **(settings or {})}.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    spark.dataSource.register(LogfsDataSource)
    return spark
