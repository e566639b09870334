"""Writing with Spark: every column arrives, and each record of a batch once, wherever a process dies."""

from __future__ import annotations

import datetime
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from logfs.format.batches.record import Record
from logfs.format.files.commit_file import STAGED
from logfs.log.append.staged_batches import StagedAppend
from logfs.store.staged_commits import Commits
from logfs.store.store import Store
from tests.support.examples import drawn
from tests.support.requirements import need_fuse

pytest.importorskip("pyspark", reason="pyspark is not installed")

from pyspark import cloudpickle
from pyspark.errors import PySparkException

from logfs.spark.sink.writer import StreamWriter
from logfs.spark.source import LogfsDataSource

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import DataFrame, SparkSession

    from tests.support.mounts import Mount

T = 1_700_000_000_000
# The steps after which a driver dies: before the commit, after it is decided, written, shown, noted, or done.
STEPS = ("begin", "decided", "written", "shown", "noted", "done")


class DyingWriter(StreamWriter):
    """Dies as a process would at the steps that a file names, one after the other."""

    def __init__(self, schema: Any, options: Any, flag: str) -> None:
        super().__init__(schema, options)
        self.flag = flag

    def _is_next(self, *steps: str) -> str:
        """Return the next step to die at if it is one of `steps`, else an empty string."""
        wanted = Path(self.flag).read_text().split() if Path(self.flag).exists() else []
        if not wanted or wanted[0] not in steps:
            return ""
        Path(self.flag).write_text("\n".join(wanted[1:]))
        return wanted[0]

    def write(self, iterator: Any) -> Any:
        staged = super().write(iterator)
        if staged.files and self._is_next("task"):
            raise RuntimeError("the task dies with its work done")
        return staged

    def commit(self, messages: Any, batchId: int) -> None:
        step = self._is_next(*STEPS)

        def die(*_: object) -> None:
            os._exit(9)

        if step == "begin":
            die()
        if step == "decided":
            Commits._land = die  # type: ignore[method-assign, assignment]
        if step == "written":
            StagedAppend.show = die  # type: ignore[method-assign, assignment]
        if step == "shown":
            Commits._note = die  # type: ignore[method-assign, assignment]
        if step == "noted":
            Commits._discard = die  # type: ignore[method-assign, assignment]
        super().commit(messages, batchId)
        if step == "done":
            die()


class DyingSource(LogfsDataSource):
    """The data source with that writer."""

    @classmethod
    def name(cls) -> str:
        return "dying"

    def streamWriter(self, schema: Any, overwrite: bool) -> Any:
        from logfs.spark.sink.options import write_options

        options = self.options.copy()
        flag = options.pop("flag")
        return DyingWriter(schema, write_options(options), flag)


@pytest.fixture(scope="module")
def session(spark: SparkSession) -> Iterator[SparkSession]:
    """The session, with the data source whose writers die."""
    module = sys.modules[__name__]
    cloudpickle.register_pickle_by_value(module)
    spark.dataSource.register(DyingSource)
    yield spark
    cloudpickle.unregister_pickle_by_value(module)


Seen = tuple[bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...], int]


def read(log_dir: Path, name: str) -> list[Seen]:
    """Return key, value, headers and time of all records of a partition. Their offsets have no gap."""
    with Store(log_dir, read_only=True) as store:
        found = list(store[name].read())
    assert [record.offset for record in found] == list(range(len(found)))
    return [(r.key, r.value, tuple(r.headers), r.timestamp or 0) for r in found]


def make(log_dir: Path, *partitions: str) -> None:
    with Store(log_dir) as store:
        for name in partitions:
            store.create(name)


def frame(spark: SparkSession, rows: list[tuple[Any, ...]], schema: str) -> DataFrame:
    return spark.createDataFrame(rows, schema)


ALL = (
    "key binary, value binary, headers array<struct<key:string,value:binary>>, topic string, "
    "partition int, timestamp timestamp"
)


def test_every_column_arrives(session: SparkSession, log_dir: Path) -> None:
    """Null and empty fields arrive, too. The partition is that of the column, or Kafka's hash of the key."""
    make(log_dir, "a-0", "a-1", "a-2", "b-0")
    when = datetime.datetime.fromtimestamp(T / 1000, datetime.UTC)
    rows = [
        (b"k", b"v", [("h", b"1"), ("n", None)], "a", 1, when),
        (b"k", None, [], "a", 1, when),
        (b"", b"", None, "b", None, when),
        (b"21", b"hashed", None, "a", None, when),
    ]
    frame(session, rows, ALL).coalesce(1).write.format("logfs").mode("append").save(str(log_dir))
    assert read(log_dir, "a-1") == [
        (b"k", b"v", (("h", b"1"), ("n", None)), T),
        (b"k", None, (), T),
    ]
    assert read(log_dir, "b-0") == [(b"", b"", (), T)]
    hashed = (-973932308 & 0x7FFFFFFF) % 3
    assert (b"21", b"hashed", (), T) in read(log_dir, f"a-{hashed}")
    assert not list(log_dir.rglob("*" + STAGED))


def test_strings_many_batches_and_codecs(session: SparkSession, log_dir: Path) -> None:
    """Strings are written as UTF-8, the topic option precedes the column, and the topic's codec is used.

    Null keys are distributed over all partitions.
    """
    make(log_dir, *(f"a-{number}" for number in range(4)))
    with Store(log_dir) as store:
        store.settings.set_topic("a", "compression.type", "zstd")
    count = 30_000
    rows = session.range(0, count, 1, 3).selectExpr(
        "if(id % 2 = 0, null, concat('ключ', id)) key", "concat('значение ', id) value", "7 topic"
    )
    rows.write.format("logfs").option("topic", "a").mode("append").save(str(log_dir))
    per = [read(log_dir, f"a-{number}") for number in range(4)]
    found = sorted((value or b"", key) for each in per for key, value, _, _ in each)
    wanted = [
        (f"значение {n}".encode(), f"ключ{n}".encode() if n % 2 else None) for n in range(count)
    ]
    assert found == sorted(wanted)
    assert all(len(each) > count // 8 for each in per)


@pytest.mark.parametrize(
    ("rows", "schema", "options", "message"),
    [
        ([("v",)], "value string", {}, "topic option required when no 'topic' attribute"),
        ([("v",)], "key string", {"topic": "a"}, "Required attribute 'value' not found"),
        ([(1,)], "value int", {"topic": "a"}, "value attribute unsupported type int"),
        ([("v", "p")], "value string, partition string", {"topic": "a"}, "must be a\\(n\\) int"),
        ([("v", None)], "value string, topic string", {}, "contains a null topic"),
        ([("v", 7)], "value string, partition int", {"topic": "a"}, "logfs create LOGDIR/a-7"),
        ([("v",)], "value string", {"topic": "nowhere"}, "logfs create -n 1 LOGDIR/nowhere"),
        ([("v",)], "value string", {"topic": "a", "txnAppId": "x"}, "go together"),
    ],
)
def test_invalid_writes_are_refused_with_a_message(
    session: SparkSession,
    log_dir: Path,
    rows: list[tuple[Any, ...]],
    schema: str,
    options: dict[str, str],
    message: str,
) -> None:
    """An invalid write is refused in a few lines, with Kafka's text if it has one, and nothing is written."""
    make(log_dir, "a-0")
    writing = frame(session, rows, schema).write.format("logfs").options(**options).mode("append")
    with pytest.raises(PySparkException, match=message) as caught:
        writing.save(str(log_dir))
    assert "Traceback" not in str(caught.value)
    assert read(log_dir, "a-0") == []
    assert not list(log_dir.rglob("*" + STAGED))


def test_overwriting_is_refused(session: SparkSession, log_dir: Path) -> None:
    """The mode `overwrite` is refused, and the error gives the reason."""
    make(log_dir, "a-0")
    with pytest.raises(PySparkException, match="append-only"):
        frame(session, [("v", "a")], "value string, topic string").write.format("logfs").mode(
            "overwrite"
        ).save(str(log_dir))


INPUT = [(b"k%d" % (n % 7), b"v%03d" % n, (("n", b"%d" % n),), T + n) for n in range(90)]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log with the records of `INPUT`, which a stream reads 30 at a time."""
    log_dir = tmp_path_factory.mktemp("source")
    with Store(log_dir) as store:
        records = [Record(value, key, list(headers), time) for key, value, headers, time in INPUT]
        store.create("in-0").append(records)
    return log_dir


class Pipeline:
    """A stream from one log to another."""

    def __init__(self, session: SparkSession, source: Path, target: Path, state: Path) -> None:
        self.session = session
        self.source = source
        self.target = target
        self.flag = state / "flag"
        self.checkpoint = state / "checkpoint"

    def run(self, kind: str = "dying") -> bool:
        """Run until everything is written or a process dies. Return whether everything was written."""
        reading = self.session.readStream.format("logfs").option("subscribe", "in")
        reading = reading.option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", 30)
        rows = reading.option("includeHeaders", "true").load(str(self.source))
        query = (
            rows.drop("topic", "partition")
            .writeStream.format(kind)
            .option("flag", str(self.flag))
            .option("topic", "out")
            .option("checkpointLocation", str(self.checkpoint))
            .trigger(availableNow=True)
            .start(str(self.target))
        )
        try:
            query.awaitTermination(120)
        except PySparkException:
            return False
        return query.exception() is None

    def results(self) -> list[list[Seen]]:
        return [read(self.target, f"out-{number}") for number in range(3)]


@pytest.fixture
def pipeline(session: SparkSession, source: Path, log_dir: Path, tmp_path: Path) -> Pipeline:
    make(log_dir, "out-0", "out-1", "out-2")
    return Pipeline(session, source, log_dir, tmp_path)


def assert_exact(results: list[list[Seen]], others: frozenset[bytes] = frozenset()) -> None:
    """Check that each record of the input is there once, in each partition in order."""
    own = [[seen for seen in each if seen[1] not in others] for each in results]
    assert sorted(seen[1] or b"" for each in own for seen in each) == [v for _, v, _, _ in INPUT]
    for each in own:
        assert each == [seen for seen in INPUT if seen in each]


def test_a_stream_is_written_exactly_once(pipeline: Pipeline) -> None:
    """Drivers and a task die, one at each step, and another writer appends in between: each record is there once.

    The suite draws four of the steps.
    """
    steps = drawn(["task", *STEPS], 4)
    pipeline.flag.write_text("\n".join(steps))
    deaths = 0
    while not pipeline.run():
        deaths += 1
        assert deaths <= len(steps)
        if deaths % 2:
            # Opening the log for any other purpose finishes a decided commit; at the other times the replay finishes
            # it.
            with Store(pipeline.target) as store:
                for name in store:
                    store[name].append([b"other"])
    assert not pipeline.flag.read_text()
    # No driver dies at a step that its replay finds done.
    assert deaths >= len(steps) - 2, steps
    assert_exact(pipeline.results(), frozenset([b"other"]))
    # The processes that died left staged files of finished commits.
    with Store(pipeline.target) as store:
        store.upkeep()
    assert not list(pipeline.target.rglob("*" + STAGED))


def test_a_stream_into_a_mount(
    pipeline: Pipeline, make_mount: Callable[..., Mount], session: SparkSession
) -> None:
    """A stream into a mount writes each record once, although a driver dies after a commit, and later the daemon.

    The path may be that of the mount or of the log directory behind it.
    """
    need_fuse()
    mount = make_mount(log_dirs=[pipeline.target])
    pipeline.flag.write_text("done")
    assert not pipeline.run()
    mount.kill()
    mount.start()
    through = Pipeline(session, pipeline.source, mount.path, pipeline.flag.parent)
    assert through.run()
    lines = b"".join((mount.path / f"out-{n}/records").read_bytes() for n in range(3))
    assert sorted(lines.splitlines()) == [value for _, value, _, _ in INPUT]
    mount.stop()
    assert_exact(pipeline.results())


def test_for_each_batch_writes_once_by_its_transaction(
    session: SparkSession, source: Path, log_dir: Path, tmp_path: Path
) -> None:
    """A batch given to the function again, with the same txnAppId and txnVersion, is not written again."""
    make(log_dir, "out-0")
    given: list[int] = []

    def write(batch: DataFrame, number: int) -> None:
        given.append(number)
        writing = batch.select("key", "value", "timestamp").write.format("logfs").mode("append")
        writing = writing.option("topic", "out").option("txnAppId", "job")
        writing.option("txnVersion", number).save(str(log_dir))
        if given.count(1) == 1 and number == 1:
            raise RuntimeError("once")

    for last in (False, True):
        reading = session.readStream.format("logfs").option("subscribe", "in")
        reading = reading.option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", 30)
        query = (
            reading.load(str(source))
            .writeStream.foreachBatch(write)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        try:
            query.awaitTermination(120)
            assert last
        except PySparkException:
            assert not last
    assert given == [0, 1, 1, 2]
    assert [(key, value, time) for key, value, _, time in read(log_dir, "out-0")] == [
        (key, value, time) for key, value, _, time in INPUT
    ]


# Topics that are missing, unknown columns, and the output mode that Spark does not offer.


def test_a_missing_topic_is_created_if_asked(session: SparkSession, log_dir: Path) -> None:
    """createPartitions makes the topic of a write once, also in an empty directory; it never changes one."""
    rows = frame(session, [(b"k%d" % n, b"v") for n in range(50)], "key binary, value binary")
    log_dir.mkdir()
    for count in (3, 5):
        writer = rows.write.format("logfs").mode("append").option("topic", "new")
        writer.option("createPartitions", count).save(str(log_dir))
    with Store(log_dir, read_only=True) as store:
        assert sorted(store) == ["new-0", "new-1", "new-2"]
        assert sum(store[name].log_end_offset for name in store) == 100
    for options, message in (
        ({"createPartitions": "2"}, "needs the option topic"),
        ({"createPartitions": "0", "topic": "x"}, "createPartitions must be positive"),
    ):
        with pytest.raises(PySparkException, match=message):
            rows.write.format("logfs").mode("append").options(**options).save(str(log_dir))


def test_a_topic_that_was_made_in_part_is_completed(session: SparkSession, log_dir: Path) -> None:
    """If createPartitions fails in the midst, the next write makes the rest: never a topic with fewer partitions."""
    rows = frame(session, [(b"k%d" % n, b"v") for n in range(50)], "key binary, value binary")
    log_dir.mkdir()
    writer = rows.write.format("logfs").mode("append").options(topic="half", createPartitions="4")
    for number in range(4):
        in_the_way = log_dir / f"half-{number}"
        in_the_way.write_text("a file")
        with pytest.raises(PySparkException):
            writer.save(str(log_dir))
        in_the_way.unlink()
    writer.save(str(log_dir))
    with Store(log_dir, read_only=True) as store:
        assert sorted(store) == [f"half-{number}" for number in range(4)]
        assert sum(store[name].log_end_offset for name in store) == 50


def test_a_stream_creates_its_topic_through_a_mount(
    session: SparkSession, source: Path, make_mount: Callable[..., Mount], tmp_path: Path
) -> None:
    """A stream into a mount without its topic creates it there."""
    need_fuse()
    mount = make_mount()
    rows = session.readStream.format("logfs").options(subscribe="in", startingOffsets="earliest")
    query = (
        rows.load(str(source))
        .select("key", "value")
        .writeStream.format("logfs")
        .options(topic="copies", createPartitions="2")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start(str(mount.path))
    )
    query.awaitTermination()
    lines = b"".join((mount.path / f"copies-{n}/records").read_bytes() for n in range(2))
    assert len(lines.splitlines()) == len(INPUT)


def test_unknown_columns_are_errors_and_those_of_the_source_are_not(
    session: SparkSession, log_dir: Path
) -> None:
    """A misspelt column is an error that names the right one; what was read can be written as it is."""
    make(log_dir, "a-0")
    for schema, right in (("valeu binary", "value"), ("value binary, Partition int", "partition")):
        values = [(b"v",) if "," not in schema else (b"v", 0)]
        writer = frame(session, values, schema).write.format("logfs").mode("append")
        with pytest.raises(PySparkException, match=f"did you mean '{right}'"):
            writer.option("topic", "a").save(str(log_dir))
    assert not read(log_dir, "a-0")
    frame(session, [(b"v",)], "value binary").write.format("logfs").mode("append").option(
        "topic", "a"
    ).save(str(log_dir))
    records = session.read.format("logfs").option("subscribe", "a").load(str(log_dir))
    records.write.format("logfs").mode("append").save(str(log_dir))
    assert [seen[1] for seen in read(log_dir, "a-0")] == [b"v", b"v"]


def test_the_output_mode_update_writes_each_change_once(
    session: SparkSession, source: Path, log_dir: Path, tmp_path: Path
) -> None:
    """`write_batches` appends the changed rows of each micro-batch; a batch that is repeated changes nothing."""
    import logfs.spark

    make(log_dir, "counts-0")
    write = logfs.spark.write_batches(str(log_dir), topic="counts")
    calls = []

    def twice(batch: DataFrame, batch_id: int) -> None:
        calls.append(batch_id)
        for _ in range(2):
            write(batch, batch_id)
        if calls == [0]:
            raise RuntimeError("the driver dies after the first batch is written")

    def run() -> bool:
        rows = session.readStream.format("logfs").options(
            subscribe="in", startingOffsets="earliest", maxOffsetsPerTrigger="30"
        )
        counts = rows.load(str(source)).groupBy().count().selectExpr("CAST(count AS STRING) value")
        query = (
            counts.writeStream.outputMode("update")
            .foreachBatch(twice)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        try:
            query.awaitTermination(120)
        except PySparkException:
            return False
        return True

    assert [run(), run()] == [False, True]
    assert calls[:2] == [0, 0]
    counts = [int(seen[1] or b"") for seen in read(log_dir, "counts-0")]
    assert counts == [*range(30, len(INPUT), 30), len(INPUT)]
    with pytest.raises(RuntimeError, match="foreachBatch"):
        write(frame(session, [("v",)], "value string"), 0)
