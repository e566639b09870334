"""`format("logfs")` for Spark: log directories in the columns and options of Spark's Kafka source, with no broker.

    import logfs.spark

    spark = logfs.spark.session("pipeline")        # or: logfs.spark.register(spark) with a session of your own
    orders = spark.read.format("logfs").option("subscribe", "orders").load("/var/lib/logfs")

pyspark and pyarrow live in this room alone. docs/spark.md has every option, with an example.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# What costs much in an untuned session, and can be set in one that runs. The first: any smaller value has Spark
# measure every row that goes to Python.
_SETTINGS = {"spark.sql.execution.arrow.maxBytesPerBatch": str(2**31 - 1)}
# What a session must begin with: less time for each task, and for each micro-batch.
_STATIC_SETTINGS = {
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing."
        "FileSystemBasedCheckpointFileManager"
    ),
}


def register(spark: SparkSession) -> None:
    """Make `format("logfs")` known to a session, and set what a good one needs and can still be set."""
    from logfs.spark.source import LogfsDataSource

    for name, value in _SETTINGS.items():
        spark.conf.set(name, value)
    spark.dataSource.register(LogfsDataSource)


def session(
    name: str = "logfs", *, master: str | None = None, settings: dict[str, str] | None = None
) -> SparkSession:
    """A session that has `format("logfs")`, with the settings that make it quick; yours win.

    Checkpoints are written by plain renames, so they must lie on a file system, not in an object store: for that, set
    spark.sql.streaming.checkpointFileManagerClass yourself.
    """
    from pyspark.sql import SparkSession

    from logfs.spark.source import LogfsDataSource

    if (master or "local").startswith("local"):
        # Otherwise Spark's workers are whatever python3 the PATH leads to, which need not have logfs.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName(name)
    if master is not None:
        builder = builder.master(master)
    for key, value in {**_SETTINGS, **_STATIC_SETTINGS, **(settings or {})}.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    spark.dataSource.register(LogfsDataSource)
    return spark
