"""A data source and sink of Spark, `format("logfs")`, with the columns and options of Spark's Kafka source.

It reads and writes log directories and needs no broker:

    import logfs.spark

    spark = logfs.spark.session("pipeline")        # or: logfs.spark.register(spark) with a session of your own
    orders = spark.read.format("logfs").option("subscribe", "orders").load("/var/lib/logfs")

Only this package and `cli/spark` import pyspark; pyarrow is imported here and in `format.encoding.arrow_batches`.
docs/spark.md describes every option, with an example.

- `source`: the data source that Spark registers. Begin here.
- `options`: parses and checks the options of reads.
- `topics`: the partitions of a read, and the offsets at which the read begins and ends in them.
- `filters`: the filters of a query that are evaluated while the log is read, instead of by Spark.
- `splits`: plans the ranges of records that each task reads, reads them, and reports records that were deleted after
  the plan.
- `kafka_schema`: the columns of the source, as types of Spark and of Arrow.
- `batch`, `stream`: the readers of batch queries and of streaming queries.
- `sink`: the writers. `jobs`: the Spark jobs verify, reindex, compact, stats, export and import.
- `known_names`: the names of all options. `catalog`: keeps the options of tables in Spark's catalog.
- `progress`: how many offsets a streaming query is behind the end of the log.
- `group_position`: commits the offsets of a streaming query for a consumer group.
- `decoding`: converts values of Confluent's serializers to JSON, in a column.
- `workers`: Spark's Python worker processes. `worker_daemon`: the process that forks them.
- `discovery`: the package by which Spark finds the data source.
"""

from __future__ import annotations

import os
import sys
import weakref
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.streaming.listener import StreamingQueryProgress

    from logfs.spark.progress import OffsetsBehindLatest

# The sessions in which `format("logfs")` is registered. Each session registers it only once, because Spark warns
# about a second registration.
_registered: weakref.WeakSet[SparkSession] = weakref.WeakSet()

# A setting that makes reads much faster. With a smaller value, Spark measures the size of every row that goes to
# Python, which is slow.
_SETTINGS = {"spark.sql.execution.arrow.maxBytesPerBatch": str(2**31 - 1)}
# Settings that shorten each task and each micro-batch. The first must be set before a session starts. The second must
# not be used for checkpoints in an object store.
_STATIC_SETTINGS = {
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing."
        "FileSystemBasedCheckpointFileManager"
    ),
}


def register(spark: SparkSession) -> None:
    """Register `format("logfs")` with a session, and set spark.sql.execution.arrow.maxBytesPerBatch for fast reads.

    A further call for the same session only sets this setting again. Raises `LogfsError` if the Python of the
    session's workers does not run or lacks logfs, numpy or pyarrow. With Spark Connect, the Python of the workers is
    not checked.
    """
    _add_format(spark)
    for name, value in _SETTINGS.items():
        spark.conf.set(name, value)


def _add_format(spark: SparkSession) -> None:
    """Register the format, once for each session."""
    if spark in _registered:
        return
    from pyspark.sql.utils import is_remote

    from logfs.spark.source import LogfsDataSource
    from logfs.spark.workers import check_python

    # With Spark Connect, the workers run on the server, where this process cannot check their Python.
    if not is_remote():
        check_python(spark.sparkContext.pythonExec)
    if is_remote() or not _has_format(spark):
        spark.dataSource.register(LogfsDataSource)
    _registered.add(spark)


def _has_format(spark: SparkSession) -> bool:
    """Whether a session has found the format of an installed logfs: Spark warns about a second registration."""
    manager = spark._jsparkSession.sessionState().dataSourceManager()
    return bool(manager.dataSourceExists("logfs"))


def decode(column: Column | str, schemas: str) -> Column:
    """Decode a column of values that Confluent's serializers have written (Avro, Protobuf, JSON Schema) to JSON.

    `schemas` is the URL of a schema registry, a directory with files such as `7.avsc`, or a log directory, mountpoint
    or bucket with the topic `_schemas`. The result is a column of structs with the fields `schema_id` (int), `json`
    (string) and `error` (string). If a value cannot be decoded, `json` is null, and `error` says why. If the value is
    null, all three fields are null. If the schemas cannot be read, the query fails.
    """
    from logfs.spark.decoding import decode

    return decode(column, schemas)


def write_batches(
    path: str | Iterable[str], name: str = "", **options: str
) -> Callable[[DataFrame, int], None]:
    """Return a function for `foreachBatch` that appends each micro-batch of a query exactly once.

    Use it for the output mode `update`, which Spark does not offer for sinks in Python. `path` is one log directory
    or several; `options` are those of a write, such as `topic`. If a query uses several of these functions, each must
    have its own `name`.
    """
    from logfs.spark.sink.each_batch import EachBatch

    return EachBatch(path, name, options)


def offsets_behind_latest(progress: StreamingQueryProgress) -> list[OffsetsBehindLatest | None]:
    """Return how many offsets each source of a streaming query is behind the end of the log.

    `progress` is the progress event that Spark reports for a micro-batch. The result has one item for each source, in
    the event's order, with the metrics that Kafka's source reports: the minimum, maximum and average over the
    partitions. The item is None for a source of another format, and for a source without offsets in the event.
    """
    from logfs.spark.progress import behind_latest

    return [behind_latest(source.endOffset, source.latestOffset) for source in progress.sources]


def session(
    name: str = "logfs", *, master: str | None = None, settings: dict[str, str] | None = None
) -> SparkSession:
    """Return a Spark session in which `format("logfs")` is registered, with the settings that make it fast.

    `name` is the name of the application, `master` is Spark's master URL. `settings` are further Spark settings,
    which take precedence over those of this function.

    This session writes checkpoints by plain renames, so they must be on a file system, not in an object store. For an
    object store, set spark.sql.streaming.checkpointFileManagerClass in `settings`. Raises `LogfsError` for the same
    reasons as `register`.
    """
    from pyspark.sql import SparkSession

    from logfs.spark.workers import WORKER_DAEMON

    settings = settings or {}
    master = settings.get("spark.master", master)
    if (master or "local").startswith("local"):
        # By default, Spark's workers run the first python3 on the PATH, which may not have logfs installed.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName(name)
    if master is not None:
        builder = builder.master(master)
    settings = {**_SETTINGS, **_STATIC_SETTINGS, **settings}
    if _is_local(master):
        # This daemon is a module of logfs, so logfs must be installed when the daemon starts. On other machines,
        # logfs may arrive later, with the job, so Spark's own daemon is kept there.
        settings.setdefault("spark.python.daemon.module", WORKER_DAEMON)
    for key, value in settings.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    _add_format(spark)
    return spark


def _is_local(master: str | None) -> bool:
    """Whether it is certain that the workers run on this machine.

    This is certain if `master` is local. It is also certain if `master` is None, and no environment variable that can
    select a master is set.
    """
    elsewhere = (
        "MASTER",
        "PYSPARK_GATEWAY_PORT",
        "PYSPARK_SUBMIT_ARGS",
        "SPARK_CONF_DIR",
        "SPARK_HOME",
    )
    return (
        master.startswith("local") if master else not any(name in os.environ for name in elsewhere)
    )
