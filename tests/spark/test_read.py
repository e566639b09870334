"""`spark.read.format("logfs")`: the records in the files, in the columns of Spark's Kafka source."""

from __future__ import annotations

import os
import uuid
from typing import TYPE_CHECKING, Any

import pytest

from logfs.format.batches.record import Record
from logfs.store.store import Store
from tests.spark.streaming import streamed
from tests.support.batches import batch
from tests.support.bucket import put_aiven, put_local, sealed_segments
from tests.support.examples import drawn
from tests.support.stores import set_topic

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from logfs.log.read.reader import Reader

START_MS = 1638100400000
TOPIC_ID = uuid.UUID(int=77)
COLUMNS = ["key", "value", "topic", "partition", "offset", "timestamp", "timestampType"]
CODECS = ["uncompressed", "gzip", "snappy", "lz4", "zstd"]


def records(count: int, first: int = 0) -> list[Record]:
    """Return records with and without keys, values and headers, with timestamps one second apart."""
    return [
        Record(
            None if n % 7 == 3 else b"value %d" % n,
            None if n % 3 == 0 else b"key %d" % (n % 10),
            [("h", b"%d" % n), ("none", None)] if n % 5 == 0 else [],
            timestamp=START_MS + n * 1000,
        )
        for n in range(first, first + count)
    ]


@pytest.fixture(scope="module")
def log_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two topics: three partitions of `orders`, in several small segments, and one of `other`."""
    path = tmp_path_factory.mktemp("logs")
    with Store(path) as store:
        store.settings.set_topic("orders", "segment.bytes", "4000")
        store.settings.set_topic("orders", "index.interval.bytes", "500")
        for number in range(3):
            partition = store.create(f"orders-{number}")
            for first in range(0, 300, 20):
                partition.append(records(20, first))
        store.create("other-0").append([b"a", b"b"])
    return path


def load(spark: SparkSession, path: Path | str, **options: object) -> DataFrame:
    """Return a batch read with these options."""
    options = {"subscribe": "orders", **options}
    if "assign" in options or "subscribePattern" in options:
        del options["subscribe"]
    texts = {name: str(value) for name, value in options.items()}
    return spark.read.format("logfs").options(**texts).load(str(path))


def offsets(frame: DataFrame) -> dict[tuple[str, int], list[int]]:
    """Return the offsets of each partition, in the order of the frame's rows, which is that of the log."""
    found: dict[tuple[str, int], list[int]] = {}
    for row in frame.select("topic", "partition", "offset").collect():
        found.setdefault((row.topic, row.partition), []).append(row.offset)
    return found


def error_of(frame: Any) -> str:
    """Return the text of the error of a query that must fail."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    with pytest.raises((PySparkException, Py4JError)) as caught:
        frame().collect()
    return str(caught.value)


def test_the_columns_are_those_of_the_kafka_source(spark: SparkSession, log_dir: Path) -> None:
    """Names, types and values are those of the Kafka source.

    The column of headers is there only on request, and null for a record without headers.
    """
    assert load(spark, log_dir).columns == COLUMNS
    frame = load(spark, log_dir, includeHeaders="true")
    assert frame.dtypes[-1] == ("headers", "array<struct<key:string,value:binary>>")
    rows = frame.where("partition = 1").orderBy("offset").collect()
    wanted = records(300)
    assert [(row.key, row.value, row.offset) for row in rows] == [
        (record.key, record.value, n) for n, record in enumerate(wanted)
    ]
    assert [row.headers and [tuple(pair) for pair in row.headers] for row in rows] == [
        list(record.headers) or None for record in wanted
    ]
    assert {row.topic for row in rows} == {"orders"}
    assert {row.timestampType for row in rows} == {0}
    times = frame.where("partition = 1").orderBy("offset").selectExpr("unix_millis(timestamp) t")
    assert [row.t for row in times.collect()] == [record.timestamp for record in wanted]


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("kind", ["CreateTime", "LogAppendTime"])
def test_every_codec_and_timestamp_type(
    spark: SparkSession, tmp_path: Path, codec: str, kind: str
) -> None:
    """Codec and timestamp type of a batch make no difference to the rows."""
    with Store(tmp_path) as store:
        store.settings.set_topic("orders", "compression.type", codec)
        store.settings.set_topic("orders", "message.timestamp.type", kind)
        partition = store.create("orders-0")
        for first in range(0, 60, 20):
            partition.append(records(20, first))
        expected = [(r.key, r.value, r.offset, r.timestamp) for r in partition.read()]
    frame = load(spark, tmp_path).selectExpr("*", "unix_millis(timestamp) t")
    rows = frame.orderBy("offset").collect()
    assert [(row.key, row.value, row.offset, row.t) for row in rows] == expected
    assert {row.timestampType for row in rows} == {int(kind == "LogAppendTime")}


def test_a_schema_given_by_the_user_is_a_projection(spark: SparkSession, log_dir: Path) -> None:
    """A schema given by the user selects columns in its order. A column that does not exist is refused."""
    reader = spark.read.format("logfs").option("assign", '{"orders":[2]}')
    rows = reader.schema("offset long, value binary").load(str(log_dir)).collect()
    assert [tuple(row) for row in rows][:2] == [(0, b"value 0"), (1, b"value 1")]
    assert "no column nonsense" in error_of(
        lambda: reader.schema("nonsense int").load(str(log_dir))
    )


def test_topics_patterns_and_partitions_select_what_is_read(
    spark: SparkSession, log_dir: Path
) -> None:
    """A read returns exactly the topics, patterns or partitions that are selected."""
    assert set(offsets(load(spark, log_dir))) == {("orders", n) for n in range(3)}
    assert set(offsets(load(spark, log_dir, subscribe="orders,other"))) == {
        *(("orders", n) for n in range(3)),
        ("other", 0),
    }
    assert set(offsets(load(spark, log_dir, subscribePattern="o.h.*"))) == {("other", 0)}
    assert load(spark, log_dir, subscribePattern="nothing").count() == 0
    assigned = load(spark, log_dir, assign='{"orders":[0,2],"other":[0]}')
    assert set(offsets(assigned)) == {("orders", 0), ("orders", 2), ("other", 0)}


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, (0, 300)),
        ({"startingOffsets": "earliest", "endingOffsets": "latest"}, (0, 300)),
        ({"startingOffsets": '{"orders":{"1":33}}'}, (33, 300)),
        ({"endingOffsets": '{"orders":{"1":33}}'}, (0, 33)),
        (
            {"startingOffsets": '{"orders":{"1":-2}}', "endingOffsets": '{"orders":{"1":-1}}'},
            (0, 300),
        ),
        ({"startingTimestamp": START_MS + 12_500}, (13, 300)),
        ({"endingTimestamp": START_MS + 12_500}, (0, 13)),
        ({"endingTimestamp": START_MS + 10**9}, (0, 300)),
        ({"startingOffsetsByTimestamp": f'{{"orders":{{"1":{START_MS + 20_000}}}}}'}, (20, 300)),
        (
            # A single timestamp takes precedence over timestamps by partition, and these over offsets.
            {
                "startingTimestamp": START_MS + 50_000,
                "startingOffsetsByTimestamp": f'{{"orders":{{"1":{START_MS + 20_000}}}}}',
                "startingOffsets": "earliest",
                "endingOffsetsByTimestamp": f'{{"orders":{{"1":{START_MS + 60_000}}}}}',
                "endingOffsets": "latest",
            },
            (50, 60),
        ),
        (
            {
                "startingTimestamp": START_MS + 10**9,
                "startingOffsetsByTimestampStrategy": "latest",
            },
            None,
        ),
    ],
)
def test_where_reading_starts_and_ends(
    spark: SparkSession, log_dir: Path, options: dict[str, str], expected: tuple[int, int] | None
) -> None:
    """Every option of Kafka's source for the start and end works, with its precedence."""
    found = offsets(load(spark, log_dir, assign='{"orders":[1]}', **options))
    assert found == ({("orders", 1): list(range(*expected))} if expected else {})


WRONG: list[tuple[dict[str, object], str]] = [
    ({"startingOffsets": "latest"}, "starting offset can't be latest for batch queries"),
    (
        {"startingOffsets": '{"orders":{"1":-1}}'},
        "startingOffsets for orders-1 can't be latest",
    ),
    ({"endingOffsets": "earliest"}, "ending offset can't be earliest for batch queries"),
    ({"endingOffsets": '{"orders":{"1":-2}}'}, "ending offset for orders-1 can't be earliest"),
    ({"startingOffsets": '{"orders":{"0":5}}'}, "don't match what are assigned"),
    ({"startingOffsets": '{"orders":{"0":-3,"1":0,"2":0}}'}, "-2 the earliest"),
    ({"startingOffsets": "nonsense"}, "Expected e.g."),
    ({"startingTimestamp": START_MS + 10**9}, "No offset matched from request"),
    ({"startingOffsets": '{"orders":{"1":400}}'}, "greater than the end offset 300"),
    ({"endingOffsets": '{"orders":{"1":400}}'}, "which ends at 300"),
    ({"minPartitions": "0"}, "minPartitions must be positive"),
    ({"subscribe": "orders"}, "Only one of the following options can be specified"),
    ({"assign": '{"orders":[7]}'}, "orders-7"),
    ({"assign": "orders"}, "No topicpartitions to assign"),
    ({"isolationLevel": "none"}, "isolationLevel must be"),
    ({"failOnDataLoss": "maybe"}, "failOnDataLoss must be true or false"),
]


@pytest.mark.parametrize(("options", "message"), drawn(WRONG, 5), ids=str)
def test_wrong_options_are_refused_with_a_message(
    spark: SparkSession, log_dir: Path, options: dict[str, str], message: str
) -> None:
    """Wrong options are refused with an error that names them, and nothing is read."""
    wanted = {"assign": '{"orders":[1]}', **options}
    reader = spark.read.format("logfs").options(**wanted)
    assert message in error_of(lambda: reader.load(str(log_dir)))


def test_a_missing_path_or_topic_is_named(spark: SparkSession, log_dir: Path) -> None:
    """A missing path, topic option or topic is an error that names it."""
    reader = spark.read.format("logfs")
    assert "needs a path" in error_of(lambda: reader.option("subscribe", "orders").load())
    assert "One of the following options must be specified" in error_of(
        lambda: spark.read.format("logfs").load(str(log_dir))
    )
    assert "no such partition or topic" in error_of(lambda: load(spark, log_dir, subscribe="none"))


@pytest.mark.parametrize("many", [1, 7, 50])
def test_min_partitions(spark: SparkSession, log_dir: Path, many: int) -> None:
    """There are at least as many tasks as `minPartitions`, with the same rows."""
    frame = load(spark, log_dir, minPartitions=many)
    assert frame.rdd.getNumPartitions() >= many
    assert offsets(frame) == {("orders", n): list(range(300)) for n in range(3)}


def test_max_records_per_partition(spark: SparkSession, log_dir: Path) -> None:
    """No task has more rows than `maxRecordsPerPartition`, wherever batches end."""
    frame = load(spark, log_dir, maxRecordsPerPartition=13)
    sizes = frame.rdd.mapPartitions(lambda rows: [sum(1 for _ in rows)]).collect()
    assert max(sizes) <= 13
    assert sum(sizes) == 900
    assert offsets(frame) == {("orders", n): list(range(300)) for n in range(3)}
    both = load(spark, log_dir, maxRecordsPerPartition=500, minPartitions=7)
    assert both.rdd.getNumPartitions() >= 7


def test_splits_are_cut_at_the_index_and_packed(spark: SparkSession, log_dir: Path) -> None:
    """Small segments of several partitions share a task. Large ones are split between batches into several tasks."""
    assert load(spark, log_dir).rdd.getNumPartitions() == 1
    frame = load(spark, log_dir, splitBytes=1500)
    assert frame.rdd.getNumPartitions() >= 10
    assert offsets(frame) == {("orders", n): list(range(300)) for n in range(3)}


@pytest.mark.parametrize("segment_bytes", [1 << 30, 100_000])
def test_tasks_follow_the_processors(
    spark: SparkSession, tmp_path: Path, segment_bytes: int
) -> None:
    """Without options there is a task for each processor, if each has 4 MiB, however many partitions and segments."""
    processors = len(os.sched_getaffinity(0))
    with Store(tmp_path) as store:
        set_topic(store, "orders", segment_bytes=segment_bytes)
        for number in range(20):
            partition = store.create(f"orders-{number}")
            for _ in range(10):
                partition.append([b"x" * 1000] * 100)
    # 20 MB of log.
    frame = load(spark, tmp_path)
    assert frame.rdd.getNumPartitions() in range(min(processors, 5), min(processors, 5) + 2)
    assert frame.count() == 20_000
    assert load(spark, tmp_path, splitBytes=1 << 30).rdd.getNumPartitions() == 1
    assert load(spark, tmp_path, minPartitions=40).rdd.getNumPartitions() >= 40
    assert load(spark, tmp_path, assign='{"orders":[3]}').rdd.getNumPartitions() == 1


def test_a_pattern_selects_no_internal_topic(spark: SparkSession, tmp_path: Path) -> None:
    """As with Kafka's consumers: otherwise a stream that commits for a group would read its own commits."""
    with Store(tmp_path) as store:
        store.create("orders-0").append([b"one"])
        store.groups.commit("readers", "orders-0", 1)
    assert offsets(load(spark, tmp_path, subscribePattern=".")) == {("orders", 0): [0]}
    assert load(spark, tmp_path, subscribe="__consumer_offsets").count() == 1


def test_each_load_shows_the_log_as_it_is_then(spark: SparkSession, tmp_path: Path) -> None:
    """Whatever has changed since the load before, and however it was changed, a load shows it."""

    def check() -> None:
        wanted: dict[tuple[str, int], list[int]] = {}
        with Store(tmp_path, read_only=True) as now:
            for name in now:
                found = [record.offset for record in now[name].read()]
                at = now[name].topic, int(name.rpartition("-")[2])
                wanted |= {at: found} if found else {}
        for isolation in ("read_uncommitted", "read_committed"):
            for _ in range(2):
                frame = load(spark, tmp_path, subscribePattern=".", isolationLevel=isolation)
                assert offsets(frame) == wanted

    with Store(tmp_path) as store:
        set_topic(store, "orders", segment_bytes=2000)
        store.settings.set_topic("other", "cleanup.policy", "compact")
        for name in ("orders-0", "orders-1"):
            store.create(name).append(records(30))
        store.create("other-0").append([Record(b"x", b"k%d" % (n % 3)) for n in range(30)])
        check()
        store["orders-0"].append(records(1, 30))
        check()
        store["orders-1"].append(records(20, 30))
        first_batch = max((tmp_path / "orders-1").glob("*.log")).stat().st_size
        store["orders-1"].append(records(2, 50))
        check()
        store.delete_records("orders-1", 20)
        check()
    check()
    with Store(tmp_path) as store:
        store.create("orders-2").append(records(5))
        store.compact("other-0", roll=True)
    check()
    with Store(tmp_path) as store:
        store.delete("orders-0")
        store.create("orders-0").append(records(7))
    check()
    log = max((tmp_path / "orders-1").glob("*.log"))
    assert log.stat().st_size > first_batch
    with log.open("r+b") as file:
        file.truncate(first_batch)
    check()
    moved = tmp_path.with_name("moved")
    tmp_path.rename(moved)
    with Store(tmp_path) as store:
        store.create("orders-0").append(records(3))
    check()


def test_timestamp_types_may_change_within_a_log(spark: SparkSession, tmp_path: Path) -> None:
    """Each record has the timestamp type of its own batch, however tasks put records together."""
    with Store(tmp_path) as store:
        for number in range(2):
            partition = store.create(f"orders-{number}")
            for kind in ("CreateTime", "LogAppendTime", "CreateTime"):
                store.settings.set_topic("orders", "message.timestamp.type", kind)
                partition.append(records(10))
    rows = load(spark, tmp_path).select("partition", "offset", "timestampType").collect()
    assert {(row.partition, row.offset, row.timestampType) for row in rows} == {
        (number, offset, int(10 <= offset < 20)) for number in range(2) for offset in range(30)
    }


def test_several_log_dirs(spark: SparkSession, tmp_path: Path) -> None:
    """A list of paths is used like Kafka's log.dirs."""
    for number in range(2):
        with Store(tmp_path / str(number)) as store:
            store.create(f"orders-{number}").append([b"x"] * (number + 1))
    reader = spark.read.format("logfs").option("subscribe", "orders")
    frame = reader.load([str(tmp_path / "0"), str(tmp_path / "1")])
    assert offsets(frame) == {("orders", 0): [0], ("orders", 1): [0, 1]}


def test_isolation_levels(spark: SparkSession, tmp_path: Path) -> None:
    """read_committed hides aborted and open transactions, and both isolation levels hide control records."""
    with Store(tmp_path) as store:
        partition = store.create("orders-0")
        partition.append([b"plain"])
        for producer, commit in ((1, True), (2, False)):
            values = [b"p%d" % producer] * 2
            partition.append_batch(
                batch(producer, 0, *values, transactional=True, timestamp=START_MS)
            )
            partition.end_transaction(producer, 0, commit=commit)
        partition.append_batch(batch(3, 0, b"open", transactional=True, timestamp=START_MS))
    everything = load(spark, tmp_path)
    assert [row.value for row in everything.orderBy("offset").collect()] == [
        b"plain", b"p1", b"p1", b"p2", b"p2", b"open",
    ]  # fmt: skip
    for name in ("isolationLevel", "kafka.isolation.level"):
        committed = load(spark, tmp_path, **{name: "read_committed"})
        assert offsets(committed) == {("orders", 0): [0, 1, 2]}


def test_data_loss_names_the_range(spark: SparkSession, tmp_path: Path) -> None:
    """Records that retention deleted are a loss, named by offsets. With failOnDataLoss=false the rest is read."""
    with Store(tmp_path) as store:
        partition = store.create("orders-0")
        partition.append([Record(b"%d" % n, b"k") for n in range(30)])
        store.delete_records("orders-0", 10)
    options = {"startingOffsets": '{"orders":{"0":4}}'}
    message = error_of(lambda: load(spark, tmp_path, **options))
    assert "offsets 4 to 9 of orders-0" in message
    frame = load(spark, tmp_path, failOnDataLoss="false", **options)
    assert offsets(frame) == {("orders", 0): list(range(10, 30))}


@pytest.mark.parametrize("strategy", ["error", "latest"])
def test_a_time_before_the_log_start(spark: SparkSession, tmp_path: Path, strategy: str) -> None:
    """Segments wholly below the log start offset that are still on disk do not hide the records after them."""
    with Store(tmp_path) as store:
        store.settings.set_topic("orders", "segment.bytes", "600")
        partition = store.create("orders-0")
        for first in range(0, 333, 9):
            partition.append(
                [Record(b"%d" % n, timestamp=START_MS + n) for n in range(first, first + 9)]
            )
        store.delete_records("orders-0", 100)
    # Retention has not run: only the checkpoint has the new log start offset.
    assert len([*(tmp_path / "orders-0").glob("*.log")]) > 10
    for first, time in (
        (100, 0),
        (100, START_MS + 50),
        (100, START_MS + 100),
        (101, START_MS + 101),
    ):
        for options in (
            {"startingTimestamp": time},
            {"startingOffsetsByTimestamp": f'{{"orders":{{"0":{time}}}}}'},
        ):
            frame = load(spark, tmp_path, startingOffsetsByTimestampStrategy=strategy, **options)
            assert offsets(frame) == {("orders", 0): list(range(first, 333))}
    ending = load(spark, tmp_path, endingTimestamp=START_MS + 50)
    assert offsets(ending) == {}


def test_times_in_a_compacted_log(spark: SparkSession, tmp_path: Path) -> None:
    """A range of times is from the first record that is late enough on, whatever compaction has left of segments."""
    with Store(tmp_path) as store:
        set_topic(store, "orders", segment_bytes=4000)
        store.settings.set_topic("orders", "cleanup.policy", "compact")
        partition = store.create("orders-0")
        for first in range(0, 1000, 10):
            partition.append(
                [
                    Record(b"x", b"k%d" % (n % 60), timestamp=START_MS + n * 1000)
                    for n in range(first, first + 10)
                ]
            )
        store.compact("orders-0", roll=True)
        partition.append([Record(b"x", b"k", timestamp=START_MS + 1_000_000)])
        left = [(record.offset, record.timestamp) for record in partition.read()]
    assert left[0][0] > 900
    assert min(path.stat().st_size for path in (tmp_path / "orders-0").glob("*.log")) == 0
    for second in (0, 500, 960, 999, 1000):
        time = START_MS + second * 1000
        first = next(offset for offset, timestamp in left if timestamp >= time)
        late = load(spark, tmp_path, startingTimestamp=time)
        assert offsets(late) == {("orders", 0): [offset for offset, _ in left if offset >= first]}
        early = offsets(load(spark, tmp_path, endingTimestamp=time))
        assert early.get(("orders", 0), []) == [offset for offset, _ in left if offset < first]


@pytest.mark.parametrize(
    "option",
    [
        {},
        {"minPartitions": 2},
        {"maxRecordsPerPartition": 7},
        {"splitBytes": 100},
        {"columns": "offset"},
        {"startingTimestamp": START_MS, "startingOffsetsByTimestampStrategy": "latest"},
    ],
)
def test_nothing_to_read(spark: SparkSession, tmp_path: Path, option: dict[str, Any]) -> None:
    """A range without records has no rows, whatever the options of its tasks are."""
    with Store(tmp_path) as store:
        store.create("orders-0")
        store.create("other-0").append(records(20))
    assert load(spark, tmp_path, **option).count() == 0
    if "startingTimestamp" not in option:
        end = {"subscribe": "other", "startingOffsets": '{"other":{"0":20}}'}
        assert load(spark, tmp_path, **end, **option).count() == 0


def test_the_gaps_of_compaction_are_no_loss(spark: SparkSession, tmp_path: Path) -> None:
    """The gaps of compaction do not fail the query, and the newest record of each key is there."""
    with Store(tmp_path) as store:
        store.settings.set_topic("orders", "cleanup.policy", "compact")
        partition = store.create("orders-0")
        partition.append([Record(b"%d" % n, b"k%d" % (n % 3)) for n in range(30)])
        store.compact("orders-0", roll=True)
    assert offsets(load(spark, tmp_path)) == {("orders", 0): [27, 28, 29]}


def test_damage_is_an_error_or_skipped_on_request(spark: SparkSession, tmp_path: Path) -> None:
    """A flipped bit fails the query, and the error names the offsets. With failOnDataLoss=false the rest is read."""
    with Store(tmp_path) as store:
        partition = store.create("orders-0")
        positions = []
        for first in range(0, 30, 10):
            positions.append(partition.size_bytes)
            partition.append(records(10, first))
        path = partition.active.path
    data = bytearray(path.read_bytes())
    data[positions[1] + 80] ^= 1
    path.write_bytes(data)
    assert "offsets 10 to 19 are damaged" in error_of(lambda: load(spark, tmp_path))
    frame = load(spark, tmp_path, failOnDataLoss="false")
    assert offsets(frame) == {("orders", 0): [*range(10), *range(20, 30)]}


def test_a_file_that_leaves_the_log_after_the_plan(spark: SparkSession, tmp_path: Path) -> None:
    """After a compaction between planning and reading, the remaining records are read from the new file."""
    with Store(tmp_path) as store:
        store.settings.set_topic("orders", "cleanup.policy", "compact")
        partition = store.create("orders-0")
        partition.append([Record(b"%d" % n, b"k%d" % (n % 3)) for n in range(30)])
        frame = load(spark, tmp_path)
        # Make the plan, with the present file.
        assert frame.rdd.getNumPartitions() == 1
        store.compact("orders-0", roll=True)
        partition.append([Record(b"later", b"k")])
        assert offsets(frame) == {("orders", 0): [27, 28, 29]}


def test_a_file_may_leave_the_log_again_during_the_search(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If compaction replaces the files twice before the reader opens them, the remaining records are read once."""
    from pyspark.sql.datasource import CaseInsensitiveDict

    from logfs.spark import splits
    from logfs.spark.source import LogfsDataSource

    source = LogfsDataSource(CaseInsensitiveDict({"subscribe": "orders", "path": str(tmp_path)}))
    with Store(tmp_path) as store:
        store.settings.set_topic("orders", "cleanup.policy", "compact")
        partition = store.create("orders-0")
        partition.append([Record(b"%d" % n, b"k%d" % (n % 3)) for n in range(30)])
        reader = source.reader(source.schema())
        (split,) = reader.partitions()
        store.compact("orders-0", roll=True)
        plan = splits._splits

        def compact_behind(*arguments: Any, **named: Any) -> Any:
            monkeypatch.undo()
            found = plan(*arguments, **named)
            partition.append([Record(b"later", b"k0")])
            store.compact("orders-0", roll=True)
            return found

        monkeypatch.setattr(splits, "_splits", compact_behind)
        found = [o for batch in reader.read(split) for o in batch.column("offset").to_pylist()]
    assert found == [28, 29]


@pytest.mark.parametrize("option", ["maxRecordsPerPartition", "minPartitions"])
def test_a_file_may_leave_the_log_while_splits_are_cut_by_records(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, option: str
) -> None:
    """The driver plans again if compaction replaces a file between its plan and the division of the file."""
    from pyspark.sql.datasource import CaseInsensitiveDict

    from logfs.spark import splits
    from logfs.spark.source import LogfsDataSource

    options = {"subscribe": "orders", "path": str(tmp_path), option: "2"}
    source = LogfsDataSource(CaseInsensitiveDict(options))
    with Store(tmp_path) as store:
        store.settings.set_topic("orders", "cleanup.policy", "compact")
        partition = store.create("orders-0")
        partition.append([Record(b"%d" % n, b"k%d" % (n % 3)) for n in range(30)])
        reader = source.reader(source.schema())
        divide = splits.scan_split.divide

        def compact_before(*arguments: Any) -> Any:
            monkeypatch.undo()
            store.compact("orders-0", roll=True)
            return divide(*arguments)

        monkeypatch.setattr(splits.scan_split, "divide", compact_before)
        planned = reader.partitions()
        batches = [batch for split in planned for batch in reader.read(split)]
        found = [offset for batch in batches for offset in batch.column("offset").to_pylist()]
    assert found == [27, 28, 29]


@pytest.mark.parametrize("option", [None, "maxRecordsPerPartition", "minPartitions"])
def test_records_that_are_deleted_while_splits_are_planned_are_a_loss(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, option: str | None
) -> None:
    """The driver, which looked at the log before, tells the offsets; without failOnDataLoss the others are read."""
    from pyspark.sql.datasource import CaseInsensitiveDict

    from logfs.spark import splits
    from logfs.spark.source import LogfsDataSource

    known = {"subscribe": "orders", "path": str(tmp_path), **({option: "2"} if option else {})}
    with Store(tmp_path) as store:
        store.settings.set_topic("orders", "file.delete.delay.ms", "0")
        partition = store.create("orders-0")
        for last in (10, 20, 30):
            partition.append([b"%d" % number for number in range(last - 10, last)])
            partition.roll(0)
        planned = splits.planned

        def plan(start: int, **options: str) -> list[int]:
            """Return the offsets that are read if records are deleted up to `start` after the first look."""

            def delete_before(reader: Reader, *arguments: Any) -> Any:
                monkeypatch.undo()
                reader.log.close()
                store.delete_records("orders-0", start)
                store.retain()
                return planned(reader, *arguments)

            source = LogfsDataSource(CaseInsensitiveDict({**known, **options}))
            reader = source.reader(source.schema())
            monkeypatch.setattr(splits, "planned", delete_before)
            batches = [batch for split in reader.partitions() for batch in reader.read(split)]
            return [offset for batch in batches for offset in batch.column("offset").to_pylist()]

        with pytest.raises(splits.DataLoss, match=r"offsets 0 to \d+ of orders-0 are no longer in"):
            plan(12)
        # The reader learns of the log start by the segments that are left, or by the checkpoint.
        assert plan(24, failOnDataLoss="false") in ([*range(20, 30)], [*range(24, 30)])


@pytest.mark.parametrize("kind", ["aiven", "local"])
def test_a_bucket_reads_as_the_log_directory(
    spark: SparkSession, log_dir: Path, tmp_path: Path, kind: str
) -> None:
    """Batches, filters and streams over what a broker has copied into a bucket."""

    def put(key: str, data: bytes) -> None:
        path = tmp_path / "bucket" / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)

    for number in range(3):
        partition = log_dir / f"orders-{number}"
        for segment in sealed_segments(partition, 300):
            if kind == "aiven":
                put_aiven(put, partition, segment, TOPIC_ID, chunk_bytes=1000, compressed=True)
            else:
                put_local(put, partition, segment, TOPIC_ID)
    url = f"file://{tmp_path}/bucket"
    order = ("partition", "offset")
    wanted = load(spark, log_dir).orderBy(*order).collect()
    assert load(spark, url).orderBy(*order).collect() == wanted
    small = load(spark, url, minPartitions=20)
    assert small.rdd.getNumPartitions() >= 20
    assert small.orderBy(*order).collect() == wanted
    some = "partition = 2 AND offset >= 117 AND offset < 130"
    assert offsets(load(spark, url).where(some)) == {("orders", 2): [*range(117, 130)]}
    assert streamed(spark, url, f"bucket_{kind}").orderBy(*order).collect() == wanted


def test_read_committed_ends_at_an_open_transaction(spark: SparkSession, tmp_path: Path) -> None:
    """An end that is given as an offset shows no record of it: that is an error, and after its end all is read."""
    from pyspark.sql.datasource import CaseInsensitiveDict

    from logfs.spark import splits
    from logfs.spark.source import LogfsDataSource

    known = {"subscribe": "orders", "path": str(tmp_path), "isolationLevel": "read_committed"}

    def found(**options: str) -> list[int]:
        source = LogfsDataSource(CaseInsensitiveDict({**known, **options}))
        reader = source.reader(source.schema())
        batches = [batch for split in reader.partitions() for batch in reader.read(split)]
        return [offset for batch in batches for offset in batch.column("offset").to_pylist()]

    with Store(tmp_path) as store:
        partition = store.create("orders-0")
        partition.append([b"plain"])
        transaction = store.transactions.begin("id")
        transaction.append("orders-0", [b"open"] * 2)
        assert found() == found(endingOffsets='{"orders":{"0":1}}') == [0]
        beyond = '{"orders":{"0":3}}'
        with pytest.raises(splits.NotStable, match=r"offsets 1 to 2 of orders-0 .* open"):
            found(endingOffsets=beyond)
        source = LogfsDataSource(CaseInsensitiveDict(known))
        stream = source.streamReader(source.schema())
        with pytest.raises(splits.NotStable, match=r"offsets 1 to 2 of orders-0 .* open"):
            stream.partitions({"orders": {"0": 0}}, {"orders": {"0": 3}})
        stream.stop()
        assert found(isolationLevel="read_uncommitted", endingOffsets=beyond) == [0, 1, 2]
        transaction.commit()
        assert found(endingOffsets=beyond) == [0, 1, 2]
