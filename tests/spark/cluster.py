"""A program with its own cluster, whose tasks fail and straggle: `python -m tests.spark.cluster JSON`.

For `test_failures`: a master, two workers and for each of them an executor with one core. The workers have different
loopback addresses, because Spark starts no speculative attempt on the host that runs the task. Events are recorded as
files in a directory: `staged-BATCH-TASK-ATTEMPT`, `failed-…`.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark import SparkConf, SparkContext, TaskContext
from pyspark.sql.functions import udf

import logfs
import logfs.spark
from logfs.spark import jobs
from logfs.spark.sink import staging
from logfs.spark.sink.options import write_options
from logfs.spark.sink.writer import StreamWriter
from logfs.spark.source import LogfsDataSource
from logfs.store.store import Store

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

HOSTS = ("127.0.0.1", "127.0.0.2")
SETTINGS = {
    "spark.executor.cores": "1",
    "spark.executor.memory": "600m",
    "spark.task.maxFailures": "4",
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    # Tasks that are slow because the machine is busy must not get a speculative attempt.
    "spark.speculation.minTaskRuntime": "1s",
    "spark.speculation.quantile": "0.5",
    "spark.speculation.multiplier": "1.5",
    "spark.speculation.efficiency.enabled": "false",
    # Rows come to the sink in many batches.
    "spark.sql.execution.arrow.maxRecordsPerBatch": "4",
}
# The faults of first attempts, by batch and task. Further attempts have none.
FAULTS = {(0, 1): "exit", (1, 0): "straggle", (1, 3): "exit", (2, 2): "raise"}
# Other writers append between the tasks and the commit of this batch.
SHARED = 1


def note(state: str, what: str) -> None:
    """Record an event."""
    (Path(state) / what).touch()


def wait(what: Callable[[], bool]) -> None:
    """Wait until another process has made a condition true."""
    end = time.monotonic() + 120
    while not what():
        if time.monotonic() > end:
            raise TimeoutError("waited in vain")
        time.sleep(0.01)


def attempt() -> tuple[int, int, int]:
    """Return batch, task and attempt, in a task."""
    context = TaskContext.get()
    assert context is not None
    batch = context.getLocalProperty("streaming.sql.batchId")
    assert batch is not None
    return int(batch), context.partitionId(), context.attemptNumber()


class FaultyWriter(StreamWriter):
    """The sink, in tasks that die after their work, or wait until a speculative attempt has done the same work."""

    def __init__(self, schema: Any, options: Any, state: str) -> None:
        super().__init__(schema, options)
        self.state = state

    def write(self, iterator: Any) -> Any:
        batch, task, number = attempt()
        # Stage rows at once, so that a task that dies half-way has staged some.
        staging._CHUNK_BYTES = 1
        staged = super().write(iterator)
        note(self.state, f"staged-{batch}-{task}-{number}")
        fault = FAULTS.get((batch, task))
        if fault == "exit" and number == 0:
            note(self.state, f"failed-{batch}-{task}-0")
            os._exit(9)
        if fault == "straggle":
            wait(lambda: len(list(Path(self.state).glob(f"staged-{batch}-{task}-*"))) > 1)
        elif fault is not None:
            # A speculative attempt must not be faster than the attempt that fails.
            wait((Path(self.state) / f"failed-{batch}-{task}-0").exists)
        return staged

    def commit(self, messages: Any, batchId: int) -> None:
        if batchId == SHARED:
            note(self.state, "wait")
            wait((Path(self.state) / "go").exists)
        super().commit(messages, batchId)


class FaultySource(LogfsDataSource):
    """The data source with that sink."""

    @classmethod
    def name(cls) -> str:
        return "faulty"

    def streamWriter(self, schema: Any, overwrite: bool) -> Any:
        options = self.options.copy()
        state = options.pop("state")
        return FaultyWriter(schema, write_options(options), state)


def start_cluster(scratch: Path, settings: dict[str, str]) -> str:
    """Start master and workers in this program's JVM, and return the master's address."""
    SparkContext._ensure_initialized(conf=SparkConf().setAll(list(settings.items())))
    jvm, gateway = SparkContext._jvm, SparkContext._gateway
    assert jvm is not None
    assert gateway is not None
    deploy, conf = jvm.org.apache.spark.deploy, jvm.org.apache.spark.SparkConf()
    master = deploy.master.Master.startRpcEnvAndEndpoint(HOSTS[0], 0, 0, conf)._1()
    address = f"spark://{HOSTS[0]}:{master.address().port()}"
    masters = gateway.new_array(jvm.java.lang.String, 1)
    masters[0] = address
    option = jvm.scala.Option
    for number, host in enumerate(HOSTS):
        deploy.worker.Worker.startRpcEnvAndEndpoint(
            host, 0, 0, 1, 700, masters, str(scratch), option.apply(number), conf, option.empty()
        )
    return address


def start(spark: SparkSession, told: dict[str, Any], path: str, state: str) -> StreamingQuery:
    """Start the query: 60 records per batch, in four tasks."""

    @udf("binary", useArrow=False)
    def faulty(value: bytes) -> bytes:
        batch, task, number = attempt()
        if FAULTS.get((batch, task)) == "raise" and number == 0 and int(value[1:]) % 15 == 11:
            note(state, f"failed-{batch}-{task}-{number}")
            raise RuntimeError("in the midst of its rows")
        return value

    reading = spark.readStream.format("logfs").option("subscribe", "in")
    reading = reading.option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", 60)
    rows: DataFrame = reading.option("maxRecordsPerPartition", 15).load(told["source"])
    return (
        rows.select("key", faulty("value").alias("value"), "timestamp")
        .writeStream.format("faulty")
        .option("state", state)
        .option("topic", "out")
        .option("checkpointLocation", f"{state}/checkpoint")
        .trigger(availableNow=True)
        .start(path)
    )


def write_beside(spark: SparkSession, path: str, mount: str | None) -> None:
    """Write as others do between the tasks and the commit: by another job, and by appends to each partition."""
    rows = spark.range(0, 30, 1, 2).selectExpr(
        "cast(concat('job ', id) as binary) value", "cast(id % 3 as int) partition"
    )
    rows.write.format("logfs").option("topic", "out").mode("append").save(path)
    for number in range(3):
        if mount is None:
            with Store(path) as store:
                store[f"out-{number}"].append([b"plain"])
        else:
            with (Path(mount) / f"out-{number}/append").open("ab") as file:
                file.write(b"plain\n")


def continue_pipelines(spark: SparkSession, told: dict[str, Any]) -> None:
    """Create a topic by a write, export what is new in two steps, and import it once in two attempts."""
    log, lake = told["pipeline"]["log"], told["pipeline"]["lake"]
    for first in (0, 100):
        rows = spark.range(first, first + 100, 1, 4).selectExpr("cast(id AS string) AS value")
        writer = rows.write.format("logfs").mode("append").option("topic", "made")
        writer.option("createPartitions", 3).save(log)
        for form in ("parquet", "iceberg"):
            jobs.export(spark, log, f"{lake}/{form}", format=form, incremental=True)
    for _ in range(2):
        jobs.import_(spark, f"{lake}/parquet", log, topic="back", partitions=3, id="once")


def main() -> None:
    """Run the query to its end for each target, and then what goes on from run to run."""
    told = json.loads(sys.argv[1])
    settings = {**told["settings"], **SETTINGS}
    master = start_cluster(Path(told["scratch"]), settings)
    spark = logfs.spark.session("cluster", master=master, settings=settings)
    spark.dataSource.register(FaultySource)
    for target in told["targets"]:
        path, state = target["path"], target["state"]
        query = start(spark, told, path, state)
        wait(lambda state=state, query=query: Path(state, "wait").exists() or not query.isActive)
        write_beside(spark, path, target["mount"])
        note(state, "go")
        query.awaitTermination()
    continue_pipelines(spark, told)
    spark.stop()
    print("over", flush=True)


if __name__ == "__main__":
    main()
