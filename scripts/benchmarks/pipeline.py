"""The rows of Spark, against its Kafka source and sink with a real broker, Parquet and text.

All sides of a row share one session, whose JVM has all its compilers. With a broker, the logs are the broker's own.
"""

from __future__ import annotations

import functools
import importlib.util
import itertools
import os
import shutil
import statistics
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from harness import (
    Bench,
    Lines,
    Result,
    expect,
    faster,
    in_rounds,
    logfs,
    percentile,
    remove,
    say,
    settle,
    shell,
    speed,
    timed,
)
from rows import evict, row
from upkeep import BROKER_JVM, skipped

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from harness import Daemon
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

    from tests.kafka.broker import Broker
    from tests.kafka.client import Client
    from tests.kafka.distribution import Distribution

PARTITIONS = 2
MASTER = f"local[{PARTITIONS}]"
# The number of records in a full run and in a quick one, and the bytes of a value; each has a key of 8 bytes.
SIZES = ((5_000_000, 500_000, 100), (500_000, 50_000, 1024))
ROWS_A_TRIGGER = 200
# The first triggers of a query, which are slower than the others and are not measured.
FIRST_TRIGGERS = 15


# The session and its peers.


@dataclass
class Pipeline:
    """A session, and a broker with its client; `missing` is the reason if there is no broker."""

    spark: SparkSession
    directory: Path
    missing: str = ""
    broker: Broker | None = None
    client: Client | None = None

    def new_topic(self, topic: str, partitions: int = PARTITIONS) -> Path:
        """Create a topic, on the broker if there is one; return the log directory that holds it."""
        from logfs.store.store import Store

        if self.broker is not None and self.client is not None:
            self.client.create_topic(topic, partitions, file_delete_delay_ms=0)
            return self.broker.log_dir
        log_dir = self.directory / "log"
        with Store(log_dir) as store:
            for number in range(partitions):
                store.create(f"{topic}-{number}")
        return log_dir

    def remove(self, topic: str) -> None:
        """Remove a topic and everything that was written for it."""
        from logfs.store.store import Store

        shutil.rmtree(self.directory / topic, ignore_errors=True)
        if self.client is not None:
            self.client.delete_topic(topic)
            return
        with Store(self.directory / "log") as store:
            for name in list(store):
                store.delete(name)
        shutil.rmtree(self.directory / "log")

    def logfs(self, log_dir: Path, topic: str) -> DataFrame:
        """Return all records of a topic by `format("logfs")`."""
        return self.spark.read.format("logfs").option("subscribe", topic).load(str(log_dir))

    def kafka(self, topic: str) -> DataFrame:
        """Return all records of a topic by Spark's Kafka source."""
        return self.spark.read.format("kafka").options(**self.servers, subscribe=topic).load()

    @property
    def servers(self) -> dict[str, str]:
        """The option with the addresses of the broker."""
        assert self.broker is not None
        return {"kafka.bootstrap.servers": self.broker.servers}


def pipeline_row(
    function: Callable[[Bench, Pipeline], list[Result]],
) -> Callable[[Bench], list[Result]]:
    """Register a function that takes a `Pipeline` as a row; without Spark it is skipped, with the reason."""

    @functools.wraps(function)
    def measured(bench: Bench) -> list[Result]:
        what = str(function.__doc__).partition(",")[0]
        name = function.__name__.replace("_", "-")
        if shutil.which("java") is None:
            return [skipped(name, what, "java is not installed", "-")]
        for package in ("pyspark", "pyarrow"):
            if importlib.util.find_spec(package) is None:
                return [skipped(name, what, f"{package} is not installed", "-")]
        with _pipeline(bench) as found:
            return function(bench, found)

    return row(measured)


@contextmanager
def _pipeline(bench: Bench) -> Iterator[Pipeline]:
    directory = bench.directory("pipeline")
    parts = _kafka_parts()
    jars = [] if isinstance(parts, str) else parts[1]
    try:
        with ExitStack() as stack:
            say("  starting Spark")
            pipeline = Pipeline(stack.enter_context(_session(directory, jars)), directory)
            if isinstance(parts, str):
                pipeline.missing = parts
            else:
                say("  starting the broker")
                _add_broker(pipeline, parts[0], stack)
            yield pipeline
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _kafka_parts() -> tuple[Distribution, list[str]] | str:
    """Return Kafka and the jars of Spark's connector, or the reason why they are not available."""
    import pytest

    from tests.kafka.distribution import distribution
    from tests.spark.connector import connector

    try:
        found = distribution()
    except (pytest.skip.Exception, pytest.fail.Exception) as reason:
        return str(reason)
    jars, missing = connector()
    return missing or (found, jars)


def _add_broker(pipeline: Pipeline, kafka: Distribution, stack: ExitStack) -> None:
    from tests.kafka.broker import Broker
    from tests.kafka.client import Client
    from tests.kafka.helper import Helper

    directory = pipeline.directory / "broker"
    directory.mkdir()
    broker = stack.enter_context(Broker(kafka, directory, BROKER_JVM)).start()
    helper = Helper(kafka, pipeline.directory / "helper-errors")
    stack.callback(helper.close)
    pipeline.broker, pipeline.client = broker, Client(helper, broker.servers)


@contextmanager
def _session(directory: Path, jars: list[str]) -> Iterator[SparkSession]:
    """Start a session by `logfs.spark.session`, and end it with its JVM."""
    from pyspark import SparkContext

    import logfs.spark

    settings = {
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": "4g",
        "spark.jars": ",".join(jars),
        "spark.local.dir": str(directory / "local"),
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.warehouse.dir": str(directory / "warehouse"),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    with _errors_to(directory / "spark-errors"):
        session = logfs.spark.session("bench", master=MASTER, settings=settings)
    try:
        session.sparkContext.setLogLevel("ERROR")
        yield session
    finally:
        gateway = SparkContext._gateway
        try:
            session.stop()
            gateway.shutdown()
        finally:
            SparkContext._gateway = SparkContext._jvm = None
            # The JVM waits for the end of its standard input.
            gateway.proc.stdin.close()
            gateway.proc.wait(60)


@contextmanager
def _errors_to(path: Path) -> Iterator[None]:
    """Redirect the standard error of processes that start meanwhile to a file: a JVM prints much that is no error."""
    ours = os.dup(2)
    try:
        with path.open("wb") as file:
            os.dup2(file.fileno(), 2)
        yield
    finally:
        os.dup2(ours, 2)
        os.close(ours)


# Records.


def write_source(path: Path, count: int, value_bytes: int) -> None:
    """Write records to a Parquet file of keys and values, which are sent to all sides."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    lines = Lines(value_bytes + 1)
    values = np.frombuffer(lines.block, np.uint8).reshape(lines.per_block, -1)[:, :-1]
    schema = pa.schema([("key", pa.binary()), ("value", pa.binary())])

    def column(rows: np.ndarray) -> pa.Array:
        offsets = np.arange(len(rows) + 1, dtype=np.int32) * rows.shape[1]
        buffers = [None, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(rows))]
        return pa.Array.from_buffers(pa.binary(), len(rows), buffers)

    with pq.ParquetWriter(path, schema) as writer:
        for first in range(0, count, lines.per_block):
            numbers = np.arange(first, min(first + lines.per_block, count))
            digits = numbers[:, None] // 10 ** np.arange(7, -1, -1) % 10 + ord("0")
            arrays = [column(digits.astype(np.uint8)), column(values[: len(numbers)])]
            writer.write_batch(pa.RecordBatch.from_arrays(arrays, schema=schema))


def fingerprint(frame: DataFrame, *columns: str) -> tuple[int, int]:
    """Return the number of rows, and the sum of the hashes of these columns, which any order of the rows gives."""
    from pyspark.sql import functions as F

    hashed = F.shiftrightunsigned(F.xxhash64(*columns), 32)
    (found,) = frame.agg(F.count("*"), F.sum(hashed)).collect()
    return found[0], found[1]


def named(count: int, value_bytes: int) -> str:
    """Return a description of `count` records of this size."""
    size = f"{value_bytes} B" if value_bytes < 1024 else f"{value_bytes // 1024} KiB"
    return f"{count / 1e6:g} M records of {size}"


def rate(count: int, seconds: list[float]) -> str:
    """Return the rate at the median time, in records/s."""
    return f"{count / statistics.median(seconds) / 1e6:.2f} M records/s"


# Reading.


def scan(frame: DataFrame) -> float:
    """Return the seconds of reading every column of every row."""
    return timed(lambda: frame.write.format("noop").mode("overwrite").save())


@pipeline_row
def spark_read(bench: Bench, pipeline: Pipeline) -> list[Result]:
    """Spark batch reads, all columns to noop, against its Kafka source, Parquet and text of the same records."""
    results = []
    for full, quick, value_bytes in SIZES:
        results += _read(bench, pipeline, bench.pick(full, quick), value_bytes)
    return results


def _everywhere(
    pipeline: Pipeline, count: int, value_bytes: int, topic: str
) -> dict[str, DataFrame]:
    """Write the same records to a log, to Parquet with all columns, and as text; return DataFrames by reader."""
    spark, directory = pipeline.spark, pipeline.directory / topic
    directory.mkdir()
    source = directory / "source.parquet"
    write_source(source, count, value_bytes)
    log_dir = pipeline.new_topic(topic)
    if pipeline.broker is None:
        append(spark.read.parquet(str(source)), "logfs", path=str(log_dir), topic=topic)
    else:
        append(spark.read.parquet(str(source)), "kafka", **pipeline.servers, topic=topic)
    records = pipeline.logfs(log_dir, topic)
    records.write.parquet(str(directory / "parquet"))
    records.selectExpr("CAST(value AS STRING)").write.text(str(directory / "text"))
    frames = {"logfs": records}
    if pipeline.broker is not None:
        frames["Kafka's source"] = pipeline.kafka(topic)
    frames["Parquet, all columns"] = spark.read.parquet(str(directory / "parquet"))
    frames["text"] = spark.read.text(str(directory / "text"))
    settle()
    return frames


def append(frame: DataFrame, kind: str, **options: str) -> None:
    """Append a DataFrame by a batch write."""
    frame.write.format(kind).mode("append").options(**options).save()


def _read(bench: Bench, pipeline: Pipeline, count: int, value_bytes: int) -> list[Result]:
    topic = f"read-{value_bytes}"
    say(f"  writing {named(count, value_bytes)}")
    frames = _everywhere(pipeline, count, value_bytes, topic)
    say("  checking")
    columns = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType")
    wanted = fingerprint(frames["logfs"], *columns)
    expect("records", wanted[0], count)
    for peer in frames.keys() & {"Kafka's source", "Parquet, all columns"}:
        expect(f"what {peer} reads", fingerprint(frames[peer], *columns), wanted)
    lines = frames["text"].selectExpr("CAST(value AS BINARY) AS value")
    expect("lines", fingerprint(lines, "value"), fingerprint(frames["logfs"], "value"))
    sides = [functools.partial(scan, frame) for frame in frames.values()]
    in_rounds(1, *sides)
    found = in_rounds(bench.pick(7, 3), *sides)
    seconds = dict(zip(frames, found, strict=True))
    ours = seconds.pop("logfs")
    pipeline.remove(topic)
    what = f"Spark batch read, {named(count, value_bytes)}"
    name = f"spark-read {value_bytes}"
    limits = {"Kafka's source": (2.0, 3.0), "Parquet, all columns": (0.5, 0.6)}
    results = []
    if pipeline.missing:
        results.append(skipped(f"{name} kafka", what, pipeline.missing, rate(count, ours)))
    for peer, theirs in seconds.items():
        ratio, spread = faster(ours, theirs)
        floor, target = limits.get(peer, (None, None))
        results.append(
            Result(
                f"{name} {peer}",
                what if not results else f"the same against {peer}",
                ratio,
                rate(count, ours),
                f"{rate(count, theirs)} {peer}",
                floor,
                target,
                spread=spread,
            )
        )
    return results


# Writing.


@pipeline_row
def spark_write(bench: Bench, pipeline: Pipeline) -> list[Result]:
    """Spark batch writes of the same DataFrame, without a mount and with one, against its Kafka sink."""
    results = []
    for full, quick, value_bytes in SIZES:
        results += _write(bench, pipeline, bench.pick(full, quick), value_bytes)
    return results


class Sinks:
    """The sinks for the records of a Parquet file; each write is to a new topic, which is removed afterwards."""

    def __init__(self, pipeline: Pipeline, mount: Daemon, source: Path, count: int) -> None:
        self.pipeline = pipeline
        self.mount = mount
        self.mounted = pipeline.directory / "mounted"
        self.frame = pipeline.spark.read.parquet(str(source))
        self.count = count
        self.wanted: tuple[int, int] | None = fingerprint(self.frame, "key", "value")
        self._topics = (f"write-{number}" for number in itertools.count())

    def _timed(self, kind: str, log_dir: Path, topic: str, **options: str) -> float:
        settle()
        seconds = timed(lambda: append(self.frame, kind, topic=topic, **options))
        found = fingerprint(self.pipeline.logfs(log_dir, topic), "key", "value")
        expect(f"records written by {kind}", found, self.wanted)
        return seconds

    def plain(self) -> float:
        """Return the seconds of a write into a log directory that no process holds."""
        from logfs.store.store import Store

        topic, log_dir = next(self._topics), self.pipeline.directory / "plain"
        with Store(log_dir) as store:
            for number in range(PARTITIONS):
                store.create(f"{topic}-{number}")
        seconds = self._timed("logfs", log_dir, topic, path=str(log_dir))
        shutil.rmtree(log_dir)
        return seconds

    def through_mount(self) -> float:
        """Return the seconds of a write into a log directory that is mounted."""
        topic = next(self._topics)
        partitions = [self.mount.path / f"{topic}-{number}" for number in range(PARTITIONS)]
        for partition in partitions:
            partition.mkdir()
        (partitions[0] / "config/file.delete.delay.ms").write_text("0")
        seconds = self._timed("logfs", self.mounted, topic, path=str(self.mounted))
        for partition in partitions:
            remove(partition)
        return seconds

    def kafka(self) -> float:
        """Return the seconds of a write by Spark's Kafka sink."""
        topic = next(self._topics)
        log_dir = self.pipeline.new_topic(topic)
        seconds = self._timed("kafka", log_dir, topic, **self.pipeline.servers)
        self.pipeline.remove(topic)
        return seconds


def _write(bench: Bench, pipeline: Pipeline, count: int, value_bytes: int) -> list[Result]:
    source = pipeline.directory / "source.parquet"
    say(f"  making {named(count, value_bytes)}")
    write_source(source, count, value_bytes)
    with logfs(pipeline.directory, pipeline.directory / "mounted") as mount:
        sinks = Sinks(pipeline, mount, source, count)
        sides = [sinks.plain, sinks.through_mount]
        if pipeline.broker is not None:
            sides.append(sinks.kafka)
        in_rounds(1, *sides)
        plain, mounted, *theirs = in_rounds(3, *sides)
    results = []
    for name, words, ours in (("plain", "", plain), ("mount", ", with a mount", mounted)):
        name = f"spark-write {value_bytes} {name}"
        what = f"Spark batch write, {named(count, value_bytes)}{words}"
        if not theirs:
            results.append(skipped(name, what, pipeline.missing, rate(count, ours)))
            continue
        ratio, spread = faster(ours, theirs[0])
        peer = f"{rate(count, theirs[0])} Kafka's sink"
        results.append(Result(name, what, ratio, rate(count, ours), peer, 1.0, None, spread=spread))
    return results


# Streams.


@pipeline_row
def spark_stream(bench: Bench, pipeline: Pipeline) -> list[Result]:
    """Stream triggers of 200 records each, p50 of triggerExecution, against Spark's Kafka source."""
    what = f"Spark stream, a trigger of {ROWS_A_TRIGGER} records, p50"
    if pipeline.client is None:
        return [skipped("spark-stream", what, pipeline.missing, "-")]
    topic = "stream"
    log_dir = pipeline.new_topic(topic, 1)
    quick = {"kafka.fetch.max.wait.ms": "10"}
    sides = {
        "logfs": {"path": str(log_dir)},
        "Kafka's source": pipeline.servers,
        "Kafka's source, fetch.max.wait.ms=10": {**pipeline.servers, **quick},
    }
    found: dict[str, list[list[float]]] = {name: [] for name in sides}
    more: dict[str, object] = {}
    triggers = bench.pick(40, 20)
    for number in range(3):
        for name, options in sides.items():
            say(f"  {number + 1}/3: {name}")
            kind = "logfs" if name == "logfs" else "kafka"
            durations = _triggers(pipeline, kind, {**options, "subscribe": topic}, topic, triggers)
            found[name].append([each["triggerExecution"] for each in durations])
            more[name] = {
                part: statistics.median(each.get(part, 0) for each in durations)
                for part in durations[0]
            }
    ours = found.pop("logfs")
    mine = percentile([*itertools.chain(*ours)], 0.5)
    results = []
    for name, theirs in found.items():
        pairs = [percentile(a, 0.5) / percentile(b, 0.5) for a, b in zip(ours, theirs, strict=True)]
        peer = percentile([*itertools.chain(*theirs)], 0.5)
        results.append(
            Result(
                f"spark-stream {name}",
                what if not results else f"the same against {name}",
                mine / peer,
                f"{mine:.0f} ms",
                f"{peer:.0f} ms {name}",
                at_most=True,
                spread=(min(pairs), max(pairs)),
                more=more,
            )
        )
    return results


def _triggers(
    pipeline: Pipeline, kind: str, options: dict[str, str], topic: str, count: int
) -> list[dict[str, int]]:
    """Return the durations of the parts of `count` triggers, in ms; a producer sends the records of each trigger."""
    from logfs.format.batches.record import Record

    assert pipeline.client is not None
    records = [Record(b"status=200 path=/orders/%08d" % n) for n in range(ROWS_A_TRIGGER)]
    frame = pipeline.spark.readStream.format(kind).options(**options).load()
    query: StreamingQuery = (
        frame.writeStream.format("noop").trigger(processingTime="0 seconds").start()
    )
    try:
        query.processAllAvailable()
        with pipeline.client.producer() as producer:
            for _ in range(FIRST_TRIGGERS + count):
                producer.send(topic, records)
                query.processAllAvailable()
        done = [each for each in query.recentProgress if each.numInputRows]
    finally:
        query.stop()
    expect("records of each trigger", {each.numInputRows for each in done}, {ROWS_A_TRIGGER})
    expect("triggers", len(done), FIRST_TRIGGERS + count)
    return [dict(each.durationMs) for each in done[FIRST_TRIGGERS:]]


# Verifying.


@pipeline_row
def spark_verify(bench: Bench, pipeline: Pipeline) -> list[Result]:
    """The Spark job `logfs spark verify`, with the files in the page cache and without, against `cat` of them."""
    log_dir = pipeline.directory / "verify"
    count = _fill(bench, pipeline, log_dir)
    files = sorted(log_dir.glob("*/*.log"))
    size = sum(file.stat().st_size for file in files)

    def work() -> float:
        return timed(lambda: _verify(pipeline, log_dir, count, size))

    def read() -> float:
        return timed(lambda: shell('cat "$@" > /dev/null', *files))

    def cold(side: Callable[[], float]) -> Callable[[], float]:
        def once() -> float:
            evict(files)
            return side()

        return once

    settle()
    in_rounds(1, work, read)
    repeats = bench.pick(7, 3)
    warm_ours, warm_cat = in_rounds(repeats, work, read)
    ours, disk = in_rounds(repeats, cold(work), cold(read))
    wanted = min(1e9, 0.7 * size / statistics.median(disk))
    ratio, spread = faster(ours, [size / wanted] * repeats)
    what = f"Spark verify, {size / 1e9:.2g} GB of .log"
    floor = f"{wanted / 1e6:,.0f} MB/s: 1 GB/s, or 0.7 of the disk's {speed(size, disk)}"
    against, pairs = faster(warm_ours, warm_cat)
    peer = f"{speed(size, warm_cat)} cat"
    return [
        Result("spark-verify", what, ratio, speed(size, ours), floor, 1.0, spread=spread),
        Result(
            "spark-verify warm",
            "the same in the page cache, against cat",
            against,
            speed(size, warm_ours),
            peer,
            spread=pairs,
        ),
    ]


def _fill(bench: Bench, pipeline: Pipeline, log_dir: Path) -> int:
    """Write records of both sizes to a log directory of its own; return their number."""
    from logfs.store.store import Store

    counts = []
    with Store(log_dir) as store:
        for _, _, value_bytes in SIZES:
            for number in range(PARTITIONS):
                store.create(f"records-{value_bytes}-{number}")
    for full, quick, value_bytes in SIZES:
        counts.append(bench.pick(full, quick))
        say(f"  writing {named(counts[-1], value_bytes)}")
        source = pipeline.directory / "source.parquet"
        write_source(source, counts[-1], value_bytes)
        frame = pipeline.spark.read.parquet(str(source))
        append(frame, "logfs", path=str(log_dir), topic=f"records-{value_bytes}")
        source.unlink()
    return sum(counts)


def _verify(pipeline: Pipeline, log_dir: Path, count: int, size: int) -> None:
    from logfs.spark.jobs import verify

    report = verify(pipeline.spark, str(log_dir))
    found = report.findings, report.records, report.size_bytes
    expect("what verify says", found, ((), count, size))
