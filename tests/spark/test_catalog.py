"""SQL: temporary views that are read and written, and tables of Spark's catalog."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from logfs.format.batches.record import Record
from logfs.store.store import Store

pytest.importorskip("pyspark", reason="pyspark is not installed")

from pyspark.errors import PySparkException

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession


@pytest.fixture
def sql(spark: SparkSession) -> Iterator[SparkSession]:
    """The session, whose tables and views of the test are dropped at the end."""
    yield spark
    for name in ("first", "other"):
        spark.sql(f"DROP TABLE IF EXISTS {name}")
        spark.catalog.dropTempView(f"{name}_view")


@pytest.fixture
def two_logs(tmp_path: Path) -> tuple[Path, Path]:
    """Two log directories with the topic `orders`, of ten records and of three."""
    paths = tmp_path / "first", tmp_path / "other"
    for path, count in zip(paths, (10, 3), strict=True):
        with Store(path) as store:
            store.create("orders-0").append([Record(b"%d" % n) for n in range(count)])
    return paths


def count(path: Path) -> int:
    """Return the number of records in a log."""
    with Store(path, read_only=True) as store:
        return sum(1 for _ in store["orders-0"].read())


def make_table(spark: SparkSession, name: str, path: Path, options: str = "") -> None:
    spark.sql(
        f"CREATE TABLE {name} USING logfs "
        f"OPTIONS (path '{path}', subscribe 'orders', topic 'orders'{options})"
    )


def test_a_table_is_read_with_the_options_of_its_creation(
    sql: SparkSession, two_logs: tuple[Path, Path]
) -> None:
    """Tables keep their options apart, also in joins; WITH overrides them for a query, and streams have them, too."""
    for name, path in zip(("first", "other"), two_logs, strict=True):
        make_table(sql, name, path, ", columns 'offset,value'")
    assert sql.table("first").columns == ["offset", "value"]
    assert sql.table("first").count() == 10
    (row,) = sql.sql("SELECT count(*) n FROM first JOIN other USING (value)").collect()
    assert row.n == 3
    starting = json.dumps({"orders": {"0": 7}})
    found = sql.sql(f"SELECT min(`offset`) n FROM first WITH (startingOffsets='{starting}')")
    assert found.collect()[0].n == 7
    with pytest.raises(PySparkException, match="keeps the columns of its creation"):
        sql.sql("SELECT * FROM first WITH (columns='offset')").collect()
    # Another selection takes the place of the table's.
    assert sql.sql("SELECT * FROM other WITH (subscribePattern='ord.*')").count() == 3
    query = (
        sql.readStream.option("startingOffsets", "earliest")
        .table("other")
        .writeStream.format("memory")
        .queryName("streamed_other")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    assert sql.table("streamed_other").count() == 3


def test_insert_into_never_writes_elsewhere(sql: SparkSession, two_logs: tuple[Path, Path]) -> None:
    """INSERT INTO a table needs the options again: Spark gives the sink the columns, and options, of the source.

    CREATE TABLE … AS SELECT gives it no options.
    """
    for name, path in zip(("first", "other"), two_logs, strict=True):
        make_table(sql, name, path)
    for source in ("SELECT * FROM other", "SELECT * FROM first", "VALUES (1, 2, 3, 4, 5, 6, 7)"):
        with pytest.raises(PySparkException):
            sql.sql(f"INSERT INTO first {source}")
    with pytest.raises(PySparkException, match="WITH"):
        sql.sql("INSERT INTO first SELECT * FROM other")
    options = f"OPTIONS (path '{two_logs[0]}', topic 'orders')"
    with pytest.raises(PySparkException, match="create the table, and then insert"):
        sql.sql(f"CREATE TABLE made USING logfs {options} AS SELECT * FROM other")
    assert [count(path) for path in two_logs] == [10, 3]
    sql.sql(f"INSERT INTO first WITH (path='{two_logs[0]}', topic='orders') SELECT * FROM other")
    assert [count(path) for path in two_logs] == [13, 3]


def test_a_view_is_read_and_written(sql: SparkSession, two_logs: tuple[Path, Path]) -> None:
    """A temporary view has the options of reads and writes at once."""
    for name, path in zip(("first", "other"), two_logs, strict=True):
        sql.sql(
            f"CREATE TEMPORARY VIEW {name}_view USING logfs "
            f"OPTIONS (path 'file:{path}', subscribe 'orders', topic 'orders')"
        )
    sql.sql("INSERT INTO first_view (value) VALUES (CAST('new' AS BINARY))")
    sql.sql("INSERT INTO first_view SELECT * FROM other_view")
    assert [count(path) for path in two_logs] == [14, 3]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("subscribe 'orders'", "needs a path"),
        ("path '/x', subscrbe 'orders'", "did you mean 'subscribe'"),
        ("path '/x', columns 'ofset'", "did you mean 'offset'"),
    ],
)
def test_a_wrong_table_is_refused_at_once(sql: SparkSession, options: str, message: str) -> None:
    """CREATE TABLE with wrong options fails, and not the first query of it."""
    with pytest.raises(PySparkException, match=message):
        sql.sql(f"CREATE TABLE first USING logfs OPTIONS ({options})")
    assert not sql.catalog.tableExists("first")


def test_a_table_with_columns_of_its_own_has_no_options(
    sql: SparkSession, two_logs: tuple[Path, Path]
) -> None:
    """A table with a list of columns is made by Spark alone; reading it says what to do."""
    sql.sql(f"CREATE TABLE first (value BINARY) USING logfs OPTIONS (path '{two_logs[0]}')")
    with pytest.raises(PySparkException, match="created with columns"):
        sql.table("first").count()
