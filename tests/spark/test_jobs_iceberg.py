"""Exports to Apache Iceberg, read back by pyiceberg: every record once, and a snapshot for each export."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from logfs.errors import InvalidSetting
from logfs.format.batches.record import Record
from logfs.store.store import Store
from tests.spark.conftest import need_iceberg
from tests.spark.logs import DAY_MS, T, make_log
from tests.support.stores import assert_clean

pytest.importorskip("pyspark", reason="pyspark is not installed")

from logfs.spark.jobs import JobFailed, export
from logfs.spark.jobs.export_iceberg import IcebergTables

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

COLUMNS = ("partition", "offset", "key", "value", "timestamp", "timestampType", "headers")


@pytest.fixture(autouse=True)
def _iceberg() -> None:
    need_iceberg()


def table(target: Path, topic: str) -> Any:
    """Return the table of a topic, as any user of the catalog finds it."""
    from pyiceberg.catalog.sql import SqlCatalog
    from sqlalchemy import URL

    uri = URL.create("sqlite", database=f"{target}/catalog.db").render_as_string()
    catalog = SqlCatalog("logfs", uri=uri, warehouse=f"file://{target}")
    return catalog.load_table(("logfs", topic))


def offsets(found: Any, **scan: Any) -> list[tuple[int, int]]:
    """Return partition and offset of all records of a table or of one of its snapshots, in order."""
    rows = found.scan(**scan).to_arrow().to_pylist()
    return sorted((row["partition"], row["offset"]) for row in rows)


def test_the_tables_hold_what_the_log_holds(spark: SparkSession, tmp_path: Path) -> None:
    """Every column of every record of every codec is in the table of its topic, whatever the dates."""
    log, target = tmp_path / "log", tmp_path / "ice"
    make_log(log, days=70)
    assert_clean(log)
    done = export(spark, log, target, format="iceberg")
    source = spark.read.format("logfs").option("includeHeaders", "true")
    records = source.option("subscribePattern", ".").load(str(log))
    assert done.records == records.count()
    for topic in {row.topic for row in records.select("topic").distinct().collect()}:
        wanted = records.where(records.topic == topic).select(*COLUMNS).toArrow().to_pylist()
        found = table(target, topic).scan().to_arrow().select(list(COLUMNS)).to_pylist()
        # pyiceberg reads a null list as an empty one.
        found = [{**row, "headers": row["headers"] or None} for row in found]
        assert sorted(found, key=_place) == sorted(wanted, key=_place)


def _place(row: dict[str, Any]) -> tuple[int, int]:
    return row["partition"], row["offset"]


def test_each_export_is_a_snapshot_with_its_offsets(spark: SparkSession, log_dir: Path) -> None:
    """An export begins where the last one ended, and a snapshot tells which offsets it holds."""
    target = log_dir.with_name("ice")
    with Store(log_dir) as store:
        for number in range(2):
            store.create(f"a-{number}").append([Record(b"1", timestamp=T + DAY_MS * number)])
    assert export(spark, log_dir, target, format="iceberg").records == 2
    assert export(spark, log_dir, target, format="iceberg").records == 0
    with Store(log_dir) as store:
        store["a-0"].append([Record(b"2", timestamp=T + DAY_MS), Record(b"3", timestamp=T)])
        store.create("b-0").append([b"new"])
    assert export(spark, log_dir, target, format="iceberg").records == 3
    a = table(target, "a")
    assert offsets(a) == [(0, 0), (0, 1), (0, 2), (1, 0)]
    first, second = a.snapshots()
    ends = json.loads(second.summary.additional_properties["logfs.offsets"])
    assert ends["a"] == {"0": 3, "1": 1}
    assert "b" not in ends
    assert offsets(a, snapshot_id=first.snapshot_id) == [(0, 0), (1, 0)]
    days = {str(row["partition"]["date"]) for row in a.inspect.partitions().to_pylist()}
    assert days == {"2021-11-28", "2021-11-29"}
    assert offsets(table(target, "b")) == [(0, 0)]
    assert not (target / "_temporary").exists()


def test_a_first_export_that_leaves_out_all_records_sets_where_the_next_one_begins(
    spark: SparkSession, log_dir: Path
) -> None:
    """Also for a topic without a record in it, whatever the options of the next export say."""
    target = log_dir.with_name("ice")
    with Store(log_dir) as store:
        for name in ("a-0", "b-0"):
            store.create(name).append([b"1", b"2", b"3"])
    options = {"startingOffsets": '{"a": {"0": 2}, "b": {"0": -1}}'}
    assert export(spark, log_dir, target, format="iceberg", options=options).records == 1
    assert export(spark, log_dir, target, format="iceberg", options=options).records == 0
    with Store(log_dir) as store:
        store["b-0"].append([b"4"])
    assert export(spark, log_dir, target, format="iceberg").records == 1
    assert offsets(table(target, "a")) == [(0, 2)]
    assert offsets(table(target, "b")) == [(0, 3)]


def test_overwrite_begins_anew_and_only_for_its_topics(spark: SparkSession, log_dir: Path) -> None:
    """With mode overwrite, one commit replaces the records of the exported topics; the others stay."""
    target = log_dir.with_name("ice")
    with Store(log_dir) as store:
        store.create("a-0").append([b"1", b"2", b"3"])
        store.create("b-0").append([b"1"])
    export(spark, log_dir, target, format="iceberg")
    with Store(log_dir) as store:
        store.delete_records("a-0", 1)
    export(spark, log_dir, target, format="iceberg", topics=["a"], mode="overwrite")
    assert offsets(table(target, "a")) == [(0, 1), (0, 2)]
    assert offsets(table(target, "b")) == [(0, 0)]
    assert export(spark, log_dir, target, format="iceberg").records == 0


def test_overwrite_of_one_partition_keeps_the_others(spark: SparkSession, log_dir: Path) -> None:
    """Their records are exported already, so they would not come back."""
    target = log_dir.with_name("ice")
    with Store(log_dir) as store:
        for number in range(2):
            store.create(f"a-{number}").append([b"1", b"2"])
    export(spark, log_dir, target, format="iceberg")
    with Store(log_dir) as store:
        store.delete_records("a-0", 1)
    options = {"assign": '{"a":[0]}'}
    export(spark, log_dir, target, format="iceberg", options=options, mode="overwrite")
    assert offsets(table(target, "a")) == [(0, 1), (1, 0), (1, 1)]
    assert export(spark, log_dir, target, format="iceberg").records == 0


def test_an_export_that_ends_between_tables_is_completed(
    spark: SparkSession, log_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the commit of a table fails, the next export adds what is missing, and nothing twice."""
    target = log_dir.with_name("ice")
    with Store(log_dir) as store:
        for topic in "abc":
            store.create(f"{topic}-0").append([Record(topic.encode(), timestamp=T)])
    commit = IcebergTables._commit

    def failing(self: IcebergTables, topic: str, *words: Any, **named: Any) -> None:
        if topic == "b":
            raise JobFailed("the power is gone")
        commit(self, topic, *words, **named)

    with monkeypatch.context() as patched:
        patched.setattr(IcebergTables, "_commit", failing)
        with pytest.raises(JobFailed, match="the power is gone"):
            export(spark, log_dir, target, format="iceberg")
    assert export(spark, log_dir, target, format="iceberg").records == 2
    for topic in "abc":
        assert offsets(table(target, topic)) == [(0, 0)]


@pytest.mark.parametrize(
    ("step", "topic", "options"),
    [
        ("_moved", "a", {"startingTimestamp": str(T + 5)}),
        ("_table", "b", {}),
        ("_moved", "b", {}),
        ("_commit", "b", {"startingTimestamp": str(T + 5)}),
    ],
)
def test_a_first_export_that_ends_between_tables_keeps_where_it_began(
    spark: SparkSession,
    log_dir: Path,
    monkeypatch: pytest.MonkeyPatch,
    step: str,
    topic: str,
    options: dict[str, str],
) -> None:
    """Each topic begins where the first export began: not at offsets that were deleted, nor at those left out."""
    target = log_dir.with_name("ice")
    with Store(log_dir) as store:
        for name in "abc":
            log = store.create(f"{name}-0")
            for number in range(7):
                log.append([Record(b"", timestamp=T + number)])
            store.delete_records(f"{name}-0", 4)
    call = getattr(IcebergTables, step)

    def failing(self: IcebergTables, what: Any, *words: Any) -> Any:
        if topic in (what, getattr(what, "topic", None)):
            raise JobFailed("the power is gone")
        return call(self, what, *words)

    for _ in range(2):
        with monkeypatch.context() as patched:
            patched.setattr(IcebergTables, step, failing)
            with pytest.raises(JobFailed, match="the power is gone"):
                export(spark, log_dir, target, format="iceberg", options=options)
    export(spark, log_dir, target, format="iceberg", topics=["a"])
    export(spark, log_dir, target, format="iceberg")
    for name in "abc":
        assert offsets(table(target, name)) == [(0, n) for n in range(5 if options else 4, 7)]
    with Store(log_dir) as store:
        store.create("d-0").append([b"new"])
    assert export(spark, log_dir, target, format="iceberg", options=options).records == 1


def exported_twice(spark: SparkSession, log_dir: Path) -> Path:
    """Return the target of two exports of the partition a-0, of three records and of one, and append another."""
    target = log_dir.with_name("ice")
    with Store(log_dir) as store:
        store.create("a-0").append([b"1", b"2", b"3"])
    export(spark, log_dir, target, format="iceberg")
    with Store(log_dir) as store:
        store["a-0"].append([b"4"])
    export(spark, log_dir, target, format="iceberg")
    with Store(log_dir) as store:
        store["a-0"].append([b"5"])
    return target


def expire_all_but_the_current(found: Any) -> None:
    """Remove all snapshots of a table but the current one, as the usual maintenance does."""
    current = found.current_snapshot().snapshot_id
    older = [each.snapshot_id for each in found.snapshots() if each.snapshot_id != current]
    found.maintenance.expire_snapshots().by_ids(older).commit()


@pytest.mark.parametrize("deleted", [("offset < 3",), ("offset < 3", "offset = 3")])
def test_an_export_goes_on_after_the_snapshots_of_the_earlier_ones_expired(
    spark: SparkSession, log_dir: Path, deleted: tuple[str, ...]
) -> None:
    """Snapshots of other writers hold no offsets; no record is exported twice if only they are left."""
    target = exported_twice(spark, log_dir)
    for each in deleted:
        table(target, "a").delete(each)
    expire_all_but_the_current(table(target, "a"))
    assert export(spark, log_dir, target, format="iceberg").records == 1
    left = [(0, 4)] if len(deleted) == 2 else [(0, 3), (0, 4)]
    assert offsets(table(target, "a")) == left
    assert export(spark, log_dir, target, format="iceberg").records == 0


def test_after_a_rollback_the_records_that_it_took_away_are_exported_again(
    spark: SparkSession, log_dir: Path
) -> None:
    """The offsets of the snapshot that is current then count, also below a snapshot of another writer."""
    target = exported_twice(spark, log_dir)
    first = table(target, "a").snapshots()[0].snapshot_id
    table(target, "a").manage_snapshots().rollback_to_snapshot(first).commit()
    assert export(spark, log_dir, target, format="iceberg").records == 2
    assert offsets(table(target, "a")) == [(0, number) for number in range(5)]
    table(target, "a").manage_snapshots().rollback_to_snapshot(first).commit()
    table(target, "a").delete("offset < 3")
    assert export(spark, log_dir, target, format="iceberg").records == 2
    assert offsets(table(target, "a")) == [(0, 3), (0, 4)]


def test_a_table_whose_offsets_are_lost_must_be_overwritten(
    spark: SparkSession, log_dir: Path
) -> None:
    """An export refuses to begin anew beside records, but other topics and mode overwrite are not affected."""
    target = exported_twice(spark, log_dir)
    table(target, "a").delete("offset < 3")
    foreign = table(target, "a").current_snapshot().snapshot_id
    export(spark, log_dir, target, format="iceberg")
    table(target, "a").manage_snapshots().rollback_to_snapshot(foreign).commit()
    expire_all_but_the_current(table(target, "a"))
    with Store(log_dir) as store:
        store.create("b-0").append([b"1"])
    with pytest.raises(InvalidSetting, match=r"logfs\.a does not tell .* mode overwrite"):
        export(spark, log_dir, target, format="iceberg")
    assert offsets(table(target, "a")) == [(0, 3)]
    assert export(spark, log_dir, target, format="iceberg", topics=["b"]).records == 1
    again = export(spark, log_dir, target, format="iceberg", topics=["a"], mode="overwrite")
    assert again.records == 5
    assert export(spark, log_dir, target, format="iceberg").records == 0
    assert offsets(table(target, "a")) == [(0, number) for number in range(5)]


def test_times_that_no_date_can_hold_are_null(spark: SparkSession, log_dir: Path) -> None:
    """Times before the year 1 and after 9999 are null; all others are exact, as is a missing one in `format`."""
    with Store(log_dir) as store:
        store.settings.set_topic("t", "message.timestamp.after.max.ms", str(2**63 - 1))
        times = [0, -1, 253_402_300_799_999, 253_402_300_800_000, 2**62]
        store.create("t-0").append([Record(b"", timestamp=each) for each in times])
    target = log_dir.with_name("ice")
    export(spark, log_dir, target, format="iceberg")
    rows = sorted(table(target, "t").scan().to_arrow().to_pylist(), key=_place)
    assert [row["timestamp"] and row["timestamp"].isoformat() for row in rows] == [
        "1970-01-01T00:00:00+00:00",
        "1969-12-31T23:59:59.999000+00:00",
        "9999-12-31T23:59:59.999000+00:00",
        None,
        None,
    ]


@pytest.mark.parametrize("name", ["a b", "данные", "100%", "a%20b", "a;b", "u@h:1", "[x]&y=+"])
def test_all_files_are_in_the_target_whatever_its_name(
    spark: SparkSession, log_dir: Path, name: str
) -> None:
    """No character that is special in a URI moves the catalog, the metadata or the data elsewhere."""
    with Store(log_dir) as store:
        store.create("a-0").append([b"1"])
    target = log_dir.parent / "targets" / name
    before = set(log_dir.parent.iterdir())
    export(spark, log_dir, target, format="iceberg")
    with Store(log_dir) as store:
        store["a-0"].append([b"2"])
    assert export(spark, log_dir, target, format="iceberg").records == 1
    assert offsets(table(target, "a")) == [(0, 0), (0, 1)]
    assert set(log_dir.parent.iterdir()) - before == {target.parent}
    assert [*target.parent.iterdir()] == [target]
    assert {each.name for each in target.iterdir()} == {"catalog.db", "logfs"}
    assert {each.name for each in (target / "logfs/a").iterdir()} == {"data", "metadata"}


@pytest.mark.parametrize("name", ["a?b", "a#b", "a\tb", "a\nb", "a\udcffb"])
def test_a_target_that_pyiceberg_cannot_use_is_refused(
    spark: SparkSession, log_dir: Path, name: str
) -> None:
    """Nothing is created, neither there nor at the path that pyiceberg would take it for."""
    with Store(log_dir) as store:
        store.create("a-0").append([b"1"])
    before = {*log_dir.parent.iterdir()}
    with pytest.raises(InvalidSetting, match="must not have"):
        export(spark, log_dir, log_dir.with_name(name), format="iceberg")
    assert {*log_dir.parent.iterdir()} == before


def test_tables_of_an_encoded_location_stay_readable(
    spark: SparkSession, log_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An older version gave tables a location with percent-encoding: exports go on into them."""
    from pyiceberg.catalog.sql import SqlCatalog

    target = log_dir.with_name("a b")
    target.mkdir()
    uri = f"sqlite:///{target}/catalog.db"
    old = SqlCatalog("logfs", uri=uri, warehouse=target.as_uri())
    with Store(log_dir) as store:
        store.create("a-0").append([b"1"])
    with monkeypatch.context() as patched:
        patched.setattr("pyiceberg.catalog.sql.SqlCatalog", lambda *_, **__: old)
        export(spark, log_dir, target, format="iceberg")
    assert log_dir.with_name("a%20b").exists()
    with Store(log_dir) as store:
        store["a-0"].append([b"2"])
    assert export(spark, log_dir, target, format="iceberg").records == 1
    assert offsets(table(target, "a")) == [(0, 0), (0, 1)]


def test_what_makes_no_sense_is_refused(spark: SparkSession, log_dir: Path) -> None:
    """Ending options and fixed JSON types are refused, as is a directory of something else."""
    with Store(log_dir) as store:
        store.create("a-0").append([b"1"])
    target = log_dir.with_name("ice")
    with pytest.raises(InvalidSetting, match="ending offset"):
        export(spark, log_dir, target, format="iceberg", options={"endingOffsets": "latest"})
    with pytest.raises(InvalidSetting, match="give the format json"):
        export(spark, log_dir, target, format="iceberg", values="text")
    target.mkdir(exist_ok=True)
    (target / "notes").write_text("mine")
    with pytest.raises(FileExistsError, match="not empty"):
        export(spark, log_dir, target, format="iceberg")
