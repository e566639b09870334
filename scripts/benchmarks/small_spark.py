"""The rows of Spark for many small partitions: queries of a million small records, and the planning of a read."""

from __future__ import annotations

import functools
import statistics
from typing import TYPE_CHECKING

from harness import Bench, Result, expect, faster, in_rounds, say, settle, timed
from pipeline import Pipeline, append, pipeline_row, write_source
from upkeep import skipped

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import DataFrame

VALUE_BYTES = 80
# The queries, and the columns that each of them needs.
QUERIES = {
    "count": ("count(*)", "offset"),
    "sum": ("sum(length(value))", "value"),
    "group": ("count(distinct n)", "partition"),
    "max": ("max(timestamp)", "timestamp"),
}


def _answer(frame: DataFrame, name: str) -> object:
    text, column = QUERIES[name]
    if name == "group":
        frame = frame.groupBy(column).count().withColumnRenamed("count", "n")
    return frame.selectExpr(text).collect()[0][0]


@pipeline_row
def spark_small(bench: Bench, pipeline: Pipeline) -> list[Result]:
    """Spark queries of small records in many partitions, against Parquet and Spark's Kafka source."""
    return _small_records(bench, pipeline, bench.pick(1000, 100), with_kafka=True)


@pipeline_row
def spark_small_100(bench: Bench, pipeline: Pipeline) -> list[Result]:
    """Spark queries of as many small records in 100 partitions, against Parquet."""
    return _small_records(bench, pipeline, bench.pick(100, 10), with_kafka=False)


def _small_records(
    bench: Bench, pipeline: Pipeline, partitions: int, *, with_kafka: bool
) -> list[Result]:
    import ready_batches

    count = bench.pick(1_000_000, 100_000)
    spark, topic = pipeline.spark, f"small{partitions}"
    directory = pipeline.directory / topic
    directory.mkdir()
    source = directory / "source.parquet"
    say(f"  writing {count} records to {partitions} partitions")
    write_source(source, count, VALUE_BYTES)
    log_dir = pipeline.new_topic(topic, partitions)
    if pipeline.broker is None:
        append(spark.read.parquet(str(source)), "logfs", path=str(log_dir), topic=topic)
    else:
        append(spark.read.parquet(str(source)), "kafka", **pipeline.servers, topic=topic)
    records = pipeline.logfs(log_dir, topic)
    records.write.parquet(str(directory / "parquet"))
    few_columns = {column for _, column in QUERIES.values()}
    load_ready = ready_batches.prepare(records.select(*few_columns), directory / "ready")
    settle()
    results = []
    for name, (_, column) in QUERIES.items():
        few = spark.read.format("logfs").option("subscribe", topic).option("columns", column)
        # Each query loads and plans anew. The partitions have not changed since the query before.
        sides: dict[str, Callable[[], DataFrame]] = {
            "all columns": functools.partial(pipeline.logfs, log_dir, topic),
            f"columns={column}": functools.partial(few.load, str(log_dir)),
            "ready batches": functools.partial(load_ready, column),
            "Parquet": functools.partial(spark.read.parquet, str(directory / "parquet")),
        }
        answers = {side: _answer(load(), name) for side, load in sides.items()}
        for side, answer in answers.items():
            expect(f"{name} by {side}", answer, answers["Parquet"])
        measured = in_rounds(
            bench.pick(7, 5), *(functools.partial(_seconds, load, name) for load in sides.values())
        )
        *ours, parquet = measured
        for side, short, seconds in zip(sides, ("all", "few", "limit"), ours, strict=False):
            ratio, spread = faster(seconds, parquet)
            what = f"Spark {name}, small records in {partitions} partitions, {side}"
            if short == "limit":
                what = f"Spark {name}, as many records, ready Arrow batches from Python"
            said = [f"{statistics.median(each):.2f} s" for each in (seconds, parquet)]
            results.append(
                Result(
                    f"spark-small {partitions} {name} {short}",
                    what,
                    ratio,
                    said[0],
                    f"{said[1]} Parquet",
                    None,
                    None if short == "limit" else 0.5,
                    spread=spread,
                )
            )
    if with_kafka:
        results.append(_against_kafka(pipeline, log_dir, topic, count, partitions))
    pipeline.remove(topic)
    return results


def _seconds(load: Callable[[], DataFrame], name: str) -> float:
    return timed(lambda: _answer(load(), name))


def _against_kafka(
    pipeline: Pipeline, log_dir: Path, topic: str, count: int, partitions: int
) -> Result:
    """Return the result of one count by both sources: Kafka's waits half a second for the end of each partition."""
    short, what = "spark-small kafka", f"Spark count, small records in {partitions} partitions"
    ours = _seconds(functools.partial(pipeline.logfs, log_dir, topic), "count")
    if pipeline.broker is None:
        return skipped(short, what, pipeline.missing, f"{ours:.2f} s")
    say("  Kafka's source")
    found: list[object] = []
    theirs = timed(lambda: found.append(_answer(pipeline.kafka(topic), "count")))
    expect("records by Kafka's source", found, [count])
    ratio, spread = faster([ours], [theirs])
    return Result(
        short,
        what,
        ratio,
        f"{ours:.2f} s",
        f"{theirs:.0f} s Kafka's source",
        None,
        3.0,
        spread=spread,
    )


@pipeline_row
def spark_plan(bench: Bench, pipeline: Pipeline) -> list[Result]:
    """Planning a read of 10,000 partitions, against listing as many Parquet files."""
    from logfs.store.store import Store

    count = bench.pick(10_000, 1000)
    spark, log_dir = pipeline.spark, pipeline.directory / "many"
    files = pipeline.directory / "files"
    say(f"  making {count} partitions")
    log_dir.mkdir()
    names = [f"many-{number}" for number in range(count)]
    for first in range(0, count, 500):
        # A partition that is written keeps its files open.
        part = names[first : first + 500]
        with Store(log_dir, only=frozenset(part).__contains__) as store:
            for name in part:
                store.create(name).append([b"x"])
    source = pipeline.directory / "one"
    spark.range(1).coalesce(1).write.parquet(str(source))
    (one,) = source.glob("*.parquet")
    files.mkdir()
    for number in range(count):
        (files / f"{number}.parquet").write_bytes(one.read_bytes())
    settle()

    def ours() -> float:
        return timed(lambda: pipeline.logfs(log_dir, "many").rdd.getNumPartitions())

    def theirs() -> float:
        return timed(lambda: spark.read.parquet(str(files)).rdd.getNumPartitions())

    mine, peer = in_rounds(bench.pick(5, 3), ours, theirs)
    ratio, spread = faster(mine, peer)
    said = [f"{statistics.median(each):.2f} s" for each in (mine, peer)]
    what = f"Spark planning of {count} partitions"
    return [Result("spark-plan", what, ratio, said[0], f"{said[1]} Parquet files", spread=spread)]
