"""Filters that Spark pushes down: the rows are the same as without them, and other ranges of the log are not read."""

from __future__ import annotations

import operator
import re
import shutil
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from logfs.format.batches.record import Record
from logfs.store.store import Store

pytest.importorskip("pyspark", reason="pyspark is not installed")

from pyspark import cloudpickle
from pyspark.errors import PySparkException
from pyspark.sql import datasource as api
from pyspark.sql.datasource import CaseInsensitiveDict, EqualTo, Filter, In, IsNotNull, Not

import logfs.spark
from logfs.spark.batch import FilteredReader
from logfs.spark.source import LogfsDataSource
from logfs.spark.splits import DataLoss
from tests.support.examples import examples

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

T = 1_700_000_000_000
COUNT = 300
ENABLED = "spark.sql.python.filterPushdown.enabled"
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Row(NamedTuple):
    """The columns that logfs can filter by."""

    topic: str
    partition: int
    offset: int
    timestamp: datetime


def timestamp(partition: int, n: int) -> int:
    """Return the timestamp of record `n` in ms: rising, in falling blocks, or scattered; few seconds per segment."""
    if partition == 0:
        return T + n * 1000
    if partition == 1:
        return T + (COUNT - n // 20 * 20 + n % 20) * 1000
    return T + n * 7919 % COUNT * 1000


def write(store: Store) -> None:
    """Create three partitions of `orders` in segments of 20 to 40 records, and one of `other`."""
    store.settings.set_topic("orders", "segment.bytes", "1500")
    store.settings.set_topic("orders", "index.interval.bytes", "200")
    for number in range(3):
        partition = store.create(f"orders-{number}")
        for first in range(0, COUNT, 5):
            partition.append(
                [
                    Record(b"value %d" % n, b"key", timestamp=timestamp(number, n))
                    for n in range(first, first + 5)
                ]
            )
    store.create("other-0").append([Record(b"%d" % n, timestamp=T + n) for n in range(10)])


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """These partitions, closed cleanly."""
    path = tmp_path_factory.mktemp("logs")
    with Store(path) as store:
        write(store)
    return path


# Calls that Spark makes on the reader, made directly.


def reader(log_dir: Path, **options: str) -> FilteredReader:
    """Return the reader that Spark creates for these options."""
    wanted = {"subscribe": "orders,other", "path": str(log_dir), **options}
    source = LogfsDataSource(CaseInsensitiveDict({"pushDownPredicate": "true", **wanted}))
    found = source.reader(source.schema())
    assert isinstance(found, FilteredReader)
    return found


def planned(found: FilteredReader) -> int:
    """Return how many offsets the tasks will scan."""
    return sum(
        split.end_offset - split.first_offset
        for partition in found.partitions()
        for split in partition.value
    )


def read(found: FilteredReader) -> list[Row]:
    """Return the rows of all splits."""
    splits = found.partitions()
    # Pickled, as it is when it comes to a task.
    found = cloudpickle.loads(cloudpickle.dumps(found))
    rows = []
    for split in splits:
        for batch in found.read(split):
            columns = [batch.column(name).to_pylist() for name in Row._fields]
            rows += map(Row._make, zip(*columns, strict=True))
    return sorted(rows)


def pushed(log_dir: Path, *filters: Filter, **options: str) -> FilteredReader:
    """Return a reader with these filters. It returns all, as the same objects, so that Spark applies them again."""
    found = reader(log_dir, **options)
    again = list(found.pushFilters([*filters]))
    assert [*map(id, again)] == [*map(id, filters)]
    return found


COMPARISONS = {
    api.EqualTo: operator.eq,
    api.LessThan: operator.lt,
    api.LessThanOrEqual: operator.le,
    api.GreaterThan: operator.gt,
    api.GreaterThanOrEqual: operator.ge,
    api.StringStartsWith: lambda text, start: text.startswith(start),
    api.StringEndsWith: lambda text, end: text.endswith(end),
    api.StringContains: lambda text, part: part in text,
}


def passes(each: Filter, row: Row) -> bool | None:
    """Return the value of a filter for a row as in SQL: None where it is unknown, and then the row does not pass."""
    if isinstance(each, Not):
        found = passes(each.child, row)
        return None if found is None else not found
    value = getattr(row, each.attribute[0])
    if isinstance(each, (api.IsNull, IsNotNull)):
        return isinstance(each, IsNotNull)
    if isinstance(each, api.EqualNullSafe):
        return bool(value == each.value)
    if isinstance(each, In):
        return True if value in each.value else None if None in each.value else False
    return None if each.value is None else bool(COMPARISONS[type(each)](value, each.value))


@pytest.fixture(scope="module")
def everything(logs: Path) -> list[Row]:
    """All rows."""
    found = read(reader(logs))
    assert len(found) == 3 * COUNT + 10
    return found


moments = st.integers(-1500, (COUNT + 2) * 1000 * 1000).map(
    lambda us: EPOCH + timedelta(milliseconds=T, microseconds=us)
) | st.sampled_from([EPOCH - timedelta(days=1), EPOCH, datetime(9999, 12, 31, tzinfo=UTC)])
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "topic": st.sampled_from(["orders", "other", "", "none", "order", "ordersx", "ö"]),
    "partition": st.integers(-1, 4) | st.just(2**31),
    "offset": st.integers(-3, COUNT + 3) | st.sampled_from([-(2**63), 2**63 - 1]),
    "timestamp": moments,
}


@st.composite
def filters(draw: st.DrawFn) -> Filter:
    """Draw a filter of any kind that Spark sends, on any of the columns."""
    column = draw(st.sampled_from(sorted(VALUES)))
    value = VALUES[column] | st.none() if draw(st.integers(0, 9)) == 0 else VALUES[column]
    kinds: list[Any] = [*COMPARISONS, api.EqualNullSafe, In, api.IsNull, IsNotNull]
    if column != "topic":
        kinds = [kind for kind in kinds if not kind.__name__.startswith("String")]
    kind = draw(st.sampled_from(kinds))
    if kind in (api.IsNull, IsNotNull):
        found = kind((column,))
    elif kind is In:
        found = In((column,), draw(st.lists(value, max_size=8)))
    else:
        found = kind((column,), draw(value))
    return Not(found) if draw(st.integers(0, 3)) == 0 else found


@examples(1)
@given(st.lists(filters(), max_size=3))
def test_any_filters_leave_the_rows_that_pass(
    logs: Path, everything: list[Row], wanted: list[Filter]
) -> None:
    """The rows that are read and pass the filters are those of all rows that pass them."""
    found = pushed(logs, *wanted)
    assert [row for row in read(found) if all(passes(each, row) for each in wanted)] == [
        row for row in everything if all(passes(each, row) for each in wanted)
    ]


def at(ms: int) -> datetime:
    """Return a time of the records, in milliseconds after the first."""
    return EPOCH + timedelta(milliseconds=T + ms)


ANSWERED: list[tuple[int, list[Filter]]] = [
    (10, [EqualTo(("topic",), "other")]),
    (900, [Not(EqualTo(("topic",), "other")), IsNotNull(("topic",))]),
    (0, [In(("topic",), [])]),
    (300, [EqualTo(("partition",), 1)]),
    (600, [api.GreaterThan(("partition",), 0)]),
    (0, [EqualTo(("partition",), 9)]),
    (4, [EqualTo(("offset",), 7)]),
    (12, [In(("offset",), [3, 4, 5, 299, 299, 1000]), api.LessThan(("topic",), "other")]),
    (20, [api.GreaterThanOrEqual(("offset",), 100), api.LessThan(("offset",), 120),
          api.EqualNullSafe(("partition",), 2)]),
    (298, [Not(In(("offset",), [0, 150])), EqualTo(("partition",), 1)]),
    (0, [api.GreaterThan(("offset",), 50), api.LessThan(("offset",), 51)]),
]  # fmt: skip


@pytest.mark.parametrize(("count", "wanted"), ANSWERED, ids=str)
def test_filters_that_logfs_applies_exactly(logs: Path, count: int, wanted: list[Filter]) -> None:
    """Filters on topic, partition and offset are exact: only passing rows are planned, at either isolation level."""
    for isolation in ("read_uncommitted", "read_committed"):
        found = pushed(logs, *wanted, isolationLevel=isolation)
        assert planned(found) == len(read(found)) == count


def test_a_long_list_of_offsets_is_read_as_one_range(logs: Path) -> None:
    """A long list of offsets is read as one range, so that the plan does not grow with it. Spark selects the rows."""
    several = In(("offset",), [*range(0, 100, 2), 150])
    assert planned(pushed(logs, several, EqualTo(("partition",), 1))) == 51
    many = In(("offset",), list(range(10, 290, 2)))
    assert planned(pushed(logs, many, EqualTo(("partition",), 1))) == 279


def test_filters_that_logfs_cannot_apply_are_unused(logs: Path) -> None:
    """Filters on other columns or with nulls."""
    for each in (
        EqualTo(("value",), b"value 1"),
        EqualTo(("timestampType",), 0),
        EqualTo(("headers", "key"), "x"),
        EqualTo(("offset",), None),
        EqualTo(("partition",), True),
        api.EqualNullSafe(("topic",), None),
        In(("offset",), [1, None]),
        Not(In(("partition",), [None])),
        api.IsNull(("offset",)),
        api.GreaterThan(("timestamp",), at(0)),
    ):
        assert planned(pushed(logs, each)) == 3 * COUNT + 10


def test_a_filter_on_time_skips_segments_and_earlier_batches(logs: Path) -> None:
    """A filter on time reads little where timestamps rise and more where they do not, and misses no record."""
    late = api.GreaterThanOrEqual(("timestamp",), at((COUNT - 10) * 1000))
    for partition, most in ((0, 20), (1, 60), (2, 290)):
        found = pushed(logs, late, EqualTo(("partition",), partition), subscribe="orders")
        assert planned(found) <= most
        assert len(read(found)) == 10 + 20 * (partition == 1)
    # Where the index is not precise enough, batches and records are compared.
    found = pushed(logs, EqualTo(("timestamp",), at(5000)))
    assert {row.timestamp for row in read(found)} == {at(5000)}
    none = api.GreaterThan(("timestamp",), at(COUNT * 2000))
    found = pushed(logs, none)
    assert planned(found) == 0


@pytest.mark.parametrize("spoil", [lambda data: data + bytes(120), lambda data: b""])
def test_a_time_index_that_is_wrong_hides_nothing(
    logs: Path, everything: list[Row], tmp_path: Path, spoil: Callable[[bytes], bytes]
) -> None:
    """Zeros after the entries, as in an index that was never trimmed, or missing entries hide no record."""
    shutil.copytree(logs, tmp_path, dirs_exist_ok=True)
    for index in tmp_path.glob("*/*.timeindex"):
        index.write_bytes(spoil(index.read_bytes()))
    for ms in range(0, COUNT * 1000, 30_500):
        found = pushed(tmp_path, api.GreaterThan(("timestamp",), at(ms)))
        assert read(found) == [row for row in everything if row.timestamp > at(ms)]


def test_filters_while_a_writer_appends(tmp_path: Path) -> None:
    """The index of the growing last segment is not used, so records that were appended later are found."""
    with Store(tmp_path) as store:
        write(store)
        last = [row for row in read(reader(tmp_path)) if row.timestamp >= at(250_500)]
        late = api.GreaterThan(("timestamp",), at(250_000))
        found = pushed(tmp_path, late)
        assert planned(found) < 3 * COUNT
        assert read(found) == last
        store["orders-0"].append([Record(b"late", timestamp=T + 251_000)])
        store["orders-0"].append([Record(b"early", timestamp=T)])
        assert len(read(found)) == len(last) + 1
        # Later than any time in the index.
        store["orders-0"].append([Record(b"latest", timestamp=T + 500_000)])
        (row,) = read(pushed(tmp_path, api.GreaterThan(("timestamp",), at(400_000))))
        assert row.timestamp == at(500_000)


def test_a_filter_hides_no_loss(tmp_path: Path) -> None:
    """A loss that is an error without a filter is one with any filter."""
    with Store(tmp_path) as store:
        write(store)
        store.delete_records("orders-0", 10)
    start = '{"orders":{"0":4,"1":0,"2":0}}'
    found = pushed(tmp_path, EqualTo(("partition",), 1), subscribe="orders", startingOffsets=start)
    with pytest.raises(DataLoss, match="offsets 4 to 9 of orders-0"):
        found.partitions()


# Filters that Spark pushes down itself.

PREDICATES = [
    "topic = 'orders' and partition = 1 and offset = 17",
    "topic in ('other', 'none') and offset < 5",
    "topic like 'ord%' and offset >= 295L",
    "topic <> 'orders' and partition is not null",
    "partition <> 1 and offset between 40 and 60",
    "offset in (1, 2, 3, 150, 999, null)",
    "offset not in (1, 2, 3) and offset < 6",
    "offset <=> 3 or offset <=> null",
    "offset > 10 and offset < 11",
    "offset % 100 = 0 and not (partition = 1)",
    "timestamp > timestamp_millis(1700000250000L) and offset < 100",
    "timestamp <= timestamp_millis(1700000010000L)",
    "timestamp > timestamp_micros(1700000249999999L) and partition = 2",
    "date(timestamp) = date'1999-01-01'",
    "value = binary('value 5')",
]


def load(spark: SparkSession, logs: Path, *, push_down: bool) -> DataFrame:
    frame = spark.read.format("logfs").option("subscribe", "orders,other")
    return frame.option("pushDownPredicate", str(push_down).lower()).load(str(logs))


@pytest.fixture
def pushing(spark: SparkSession) -> Iterator[SparkSession]:
    """The session with the setting that makes Spark push filters down."""
    spark.conf.set(ENABLED, "true")
    yield spark
    spark.conf.unset(ENABLED)


def in_order(frame: DataFrame) -> list[tuple[object, ...]]:
    return sorted((tuple(row) for row in frame.collect()), key=lambda row: row[2:5])


@pytest.mark.parametrize("predicate", PREDICATES)
def test_pushed_filters_give_the_rows_that_spark_selects(
    pushing: SparkSession, logs: Path, predicate: str
) -> None:
    """With and without push-down, the rows are equal in all columns."""
    expected = in_order(load(pushing, logs, push_down=False).where(predicate))
    assert in_order(load(pushing, logs, push_down=True).where(predicate)) == expected


def test_pushed_filters_reduce_the_number_of_tasks(pushing: SparkSession, logs: Path) -> None:
    """Filters reach the plan: there are fewer tasks."""
    where = "offset >= 280 and partition = 1"
    options = {"subscribe": "orders,other", "maxRecordsPerPartition": "10"}
    for push_down, least, most in (("false", 91, 910), ("true", 2, 2)):
        reading = pushing.read.format("logfs").options(**options, pushDownPredicate=push_down)
        tasks = reading.load(str(logs)).where(where).rdd.getNumPartitions()
        assert least <= tasks <= most


def test_a_frame_can_be_filtered_in_several_ways(pushing: SparkSession, logs: Path) -> None:
    """Without push-down a frame can be filtered in several ways.

    With it, Spark 4.3 gives the rows that the last filters left to every use of the same `load`, so it is not the
    default. But no row is returned that does not pass the filters.
    """
    frame = load(pushing, logs, push_down=False)
    one, two = frame.where("topic = 'other'"), frame.where("partition = 1")
    assert [one.count(), two.count(), frame.count(), one.count()] == [10, 300, 910, 10]
    assert one.union(two).union(frame).count() == 10 + 300 + 910
    frame = load(pushing, logs, push_down=True)
    joined = frame.where("partition = 1").alias("one").join(frame.alias("two"), "offset")
    assert {row[0] for row in joined.select("one.partition").distinct().collect()} <= {1}


def test_push_down_without_sparks_setting_is_an_error_that_names_it(
    spark: SparkSession, logs: Path
) -> None:
    """The option without Spark's setting is an error. Without both, filters still work."""
    spark.conf.unset(ENABLED)
    with pytest.raises(PySparkException, match=re.escape(ENABLED)):
        load(spark, logs, push_down=True).count()
    assert load(spark, logs, push_down=False).where("offset = 3").count() == 4


def test_settings_given_by_the_user_take_precedence(spark: SparkSession) -> None:
    """`session` keeps settings given by the user, and `register` sets the ones that logfs needs."""
    name = "spark.sql.execution.arrow.maxBytesPerBatch"
    try:
        assert logfs.spark.session(settings={name: "1000000"}).conf.get(name) == "1000000"
    finally:
        logfs.spark.register(spark)
    assert spark.conf.get(name) == str(2**31 - 1)
