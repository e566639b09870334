"""Files that disappear between planning and reading: the log shows whether they left it or are missing here."""

from __future__ import annotations

import importlib
import json
import shutil
import socket
from typing import TYPE_CHECKING, Any

import pytest

from logfs.format.batches.record import Record
from logfs.spark.jobs import JobFailed, job_runner, stats, verify
from logfs.store.store import Store

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import SparkSession

    from logfs.spark.batch import BatchReader

HOST = f"host {socket.gethostname()}: "


def fill(store: Store, *, rolls: bool = True) -> None:
    """Fill a partition with three segments of 20 records each, in which every key is written three times."""
    store.settings.set_topic("orders", "cleanup.policy", "compact,delete")
    partition = store.create("orders-0")
    for segment in range(3):
        if segment and rolls:
            partition.roll(store.clock())
        partition.append([Record(b"%d" % segment, b"k%d" % n) for n in range(20)])


def retain(store: Store, log_dir: Path) -> None:
    """Delete the first segment by retention."""
    store.delete_records("orders-0", 20)
    assert store.retain(["orders-0"]) == 1


def compact(store: Store, log_dir: Path) -> None:
    """Compact all segments into one."""
    store.compact("orders-0", roll=True)


def truncate(store: Store, log_dir: Path) -> None:
    """Truncate the log, so that the last two segments lose all their batches."""
    store.truncate("orders-0", 30)


def delete(store: Store, log_dir: Path) -> None:
    """Delete the partition."""
    store.delete("orders-0")


def recreate(store: Store, log_dir: Path) -> None:
    """Delete the partition, and create one with the same name and as many records."""
    store.delete("orders-0")
    store.settings.set_topic("orders", "cleanup.policy", "delete")
    fill(store)


def remove(store: Store, log_dir: Path) -> None:
    """Remove a file that is still part of the log."""
    (log_dir / "orders-0/00000000000000000020.log").unlink()


def shorten(store: Store, log_dir: Path) -> None:
    """Truncate a sealed file."""
    path = log_dir / "orders-0/00000000000000000020.log"
    path.write_bytes(b"")


LEGITIMATE = [retain, compact, truncate, delete, recreate]


@pytest.fixture
def after_planning(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], object]], None]:
    """Returns a function that schedules an action between the plan of the next job and its tasks."""

    def when(do: Callable[[], object]) -> None:
        def run(*arguments: Any, **options: Any) -> Any:
            do()
            return job_runner.run(*arguments, **options)

        for module in ("verify", "stats"):
            # The package has functions with these names.
            monkeypatch.setattr(importlib.import_module(f"logfs.spark.jobs.{module}"), "run", run)

    return when


@pytest.mark.drawn(2)
@pytest.mark.parametrize("change", LEGITIMATE)
def test_jobs_skip_segments_that_left_the_log(
    spark: SparkSession,
    tmp_path: Path,
    after_planning: Callable[[Callable[[], object]], None],
    change: Callable[[Store, Path], None],
) -> None:
    """`verify` notes segments that left the log after planning, and `stats` counts the remaining records."""
    log_dir = tmp_path / "a"
    with Store(log_dir) as store:
        fill(store)
        after_planning(lambda: change(store, log_dir))
        report = verify(spark, log_dir)
    assert report.errors == []
    assert "has left the log while it was audited" in {each.text for each in report.findings}
    log_dir = tmp_path / "b"
    with Store(log_dir) as store:
        fill(store)
        after_planning(lambda: change(store, log_dir))
        (topic,) = stats(spark, log_dir).topics
    assert topic.counts.records < 60


@pytest.mark.parametrize("change", [remove, shorten])
def test_jobs_name_missing_files(
    spark: SparkSession,
    tmp_path: Path,
    after_planning: Callable[[Callable[[], object]], None],
    change: Callable[[Store, Path], None],
) -> None:
    """A missing file that is still part of the log is an error with the host and the path, even beside a writer."""
    for name in ("a", "b"):
        log_dir = tmp_path / name
        with Store(log_dir) as store:
            fill(store)
        after_planning(lambda log_dir=log_dir: change(store, log_dir))
        if name == "a":
            (error,) = verify(spark, log_dir).errors
            said = str(error)
        else:
            with pytest.raises(JobFailed) as failed:
                stats(spark, log_dir)
            said = str(failed.value)
        assert HOST in said
        assert f"{log_dir}/orders-0/00000000000000000020.log" in said


# Reads.


def reader(log_dir: Path, **options: str) -> BatchReader:
    """Return the reader that Spark creates for these options."""
    from pyspark.sql.datasource import CaseInsensitiveDict

    from logfs.spark.source import LogfsDataSource

    wanted = {"subscribe": "orders", "path": str(log_dir), **options}
    source = LogfsDataSource(CaseInsensitiveDict(wanted))
    return source.reader(source.schema())


def offsets(found: BatchReader, splits: list[Any]) -> list[int]:
    """Return the offsets that the tasks of a plan read."""
    return [
        offset
        for split in splits
        for batch in found.read(split)
        for offset in batch.column("offset").to_pylist()
    ]


# The offsets that may be read where losses are allowed: those that a truncation left, for example.
LOSSES = {retain: range(20, 60), truncate: range(20), delete: range(0), recreate: range(0)}


@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize("change", LOSSES)
def test_a_read_reports_what_the_log_has_lost(
    tmp_path: Path, change: Callable[[Store, Path], None]
) -> None:
    """`failOnDataLoss` decides whether a lost range is an error.

    Another partition of the same name is never read in place of the planned one.
    """
    from logfs.spark.splits import DataLoss

    with Store(tmp_path) as store:
        fill(store)
        strict, lenient = reader(tmp_path), reader(tmp_path, failOnDataLoss="false")
        plans = strict.partitions(), lenient.partitions()
        change(store, tmp_path)
        with pytest.raises(DataLoss, match=HOST):
            offsets(strict, plans[0])
        assert offsets(lenient, plans[1]) == list(LOSSES[change])


@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize("change", [remove, shorten])
@pytest.mark.parametrize("fail", ["true", "false"])
def test_a_read_names_missing_files(
    tmp_path: Path, change: Callable[[Store, Path], None], fail: str
) -> None:
    """A gap that compaction did not make is an error, even if losses are allowed."""
    from logfs.spark.workers import NotOnHost

    with Store(tmp_path) as store:
        fill(store)
        found = reader(tmp_path, failOnDataLoss=fail)
        plan = found.partitions()
        change(store, tmp_path)
        with pytest.raises(NotOnHost, match=f"{HOST}.*00000000000000000020.log: ") as failed:
            offsets(found, plan)
    assert str(tmp_path) in str(failed.value)


@pytest.mark.usefixtures("spark")
def test_compaction_that_merges_segments_is_no_loss(tmp_path: Path) -> None:
    """The records of a segment that was merged into another one are read from there, each once."""
    with Store(tmp_path) as store:
        fill(store)
        found = reader(tmp_path, splitBytes="1")
        plan = found.partitions()
        assert len(plan) == 3
        compact(store, tmp_path)
        assert len(list((tmp_path / "orders-0").glob("*.log"))) == 2
        assert offsets(found, plan) == list(range(40, 60))


@pytest.mark.usefixtures("spark")
def test_a_segment_that_is_swapped_in_is_found(tmp_path: Path) -> None:
    """Compaction gives a new segment two names. A plan that was made between its renames stays valid."""
    with Store(tmp_path) as store:
        fill(store)
        log = tmp_path / "orders-0/00000000000000000020.log"
        swap = log.with_name(log.name + ".swap")
        log.rename(swap)
        found = reader(tmp_path)
        plan = found.partitions()
        assert offsets(found, plan) == list(range(60))
        swap.rename(log)
        assert offsets(found, plan) == list(range(60))


@pytest.mark.usefixtures("spark")
def test_a_partition_that_moves_is_not_skipped(tmp_path: Path) -> None:
    """A moved partition fails the read even where losses are allowed, and the next read has all its records."""
    from logfs.spark.splits import DataLoss

    logs = [tmp_path / "a", tmp_path / "b"]
    with Store(logs) as store:
        fill(store)
        options = {"paths": json.dumps([str(logs[0])])}
        found = reader(logs[1], failOnDataLoss="false", **options)
        plan = found.partitions()
        store.move("orders-0", logs[store.registry.home("orders-0") == logs[0]])
        with pytest.raises(DataLoss, match="orders-0: the partition moved to"):
            offsets(found, plan)
        found = reader(logs[1], failOnDataLoss="false", **options)
        assert offsets(found, found.partitions()) == list(range(60))


@pytest.mark.usefixtures("spark")
def test_a_missing_directory_is_not_a_deleted_partition(tmp_path: Path) -> None:
    """A missing or empty log directory is an error even where losses are allowed: it cannot show what was lost."""
    from logfs.spark.workers import NotOnHost

    log_dir = tmp_path / "logs"
    with Store(log_dir) as store:
        fill(store)
    found = reader(log_dir, failOnDataLoss="false")
    plan = found.partitions()
    shutil.move(log_dir, tmp_path / "elsewhere")
    with pytest.raises(NotOnHost, match=HOST):
        offsets(found, plan)
    log_dir.mkdir()
    with pytest.raises(NotOnHost, match=HOST):
        offsets(found, plan)
    log_dir.rmdir()
    shutil.move(tmp_path / "elsewhere", log_dir)
    assert offsets(found, plan) == list(range(60))
    # Removed by hand: the checkpoint still names the partition.
    shutil.move(log_dir / "orders-0", tmp_path / "elsewhere")
    with pytest.raises(NotOnHost, match=HOST):
        offsets(found, plan)
