"""What leaves the log between planning and reading: the log says whether it may be gone, or is missing here."""

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
    """A partition of three segments with 20 records each, in which every key is written three times."""
    store.settings.set_topic("orders", "cleanup.policy", "compact,delete")
    partition = store.create("orders-0")
    for segment in range(3):
        if segment and rolls:
            partition.roll(store.clock())
        partition.append([Record(b"%d" % segment, b"k%d" % n) for n in range(20)])


def retain(store: Store, log_dir: Path) -> None:
    """The first segment expires."""
    store.delete_records("orders-0", 20)
    assert store.retain(["orders-0"]) == 1


def compact(store: Store, log_dir: Path) -> None:
    """All segments are compacted into one."""
    store.compact("orders-0", roll=True)


def truncate(store: Store, log_dir: Path) -> None:
    """The last two segments lose all their batches."""
    store.truncate("orders-0", 30)


def delete(store: Store, log_dir: Path) -> None:
    """The partition is deleted."""
    store.delete("orders-0")


def recreate(store: Store, log_dir: Path) -> None:
    """The partition is deleted, and one of its name has as many records."""
    store.delete("orders-0")
    store.settings.set_topic("orders", "cleanup.policy", "delete")
    fill(store)


def remove(store: Store, log_dir: Path) -> None:
    """A file is lost that the log still has."""
    (log_dir / "orders-0/00000000000000000020.log").unlink()


def shorten(store: Store, log_dir: Path) -> None:
    """A sealed file is cut."""
    path = log_dir / "orders-0/00000000000000000020.log"
    path.write_bytes(b"")


LEGITIMATE = [retain, compact, truncate, delete, recreate]


@pytest.fixture
def after_planning(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], object]], None]:
    """Has something done between the plan of the next job and its tasks."""

    def when(do: Callable[[], object]) -> None:
        def run(*arguments: Any, **options: Any) -> Any:
            do()
            return job_runner.run(*arguments, **options)

        for module in ("verify", "stats"):
            # The package has functions of these names.
            monkeypatch.setattr(importlib.import_module(f"logfs.spark.jobs.{module}"), "run", run)

    return when


@pytest.mark.parametrize("change", LEGITIMATE)
def test_jobs_pass_what_the_log_has_left_behind(
    spark: SparkSession,
    tmp_path: Path,
    after_planning: Callable[[Callable[[], object]], None],
    change: Callable[[Store, Path], None],
) -> None:
    """`verify` notes it, and `stats` counts the rest."""
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
def test_jobs_name_what_is_missing(
    spark: SparkSession,
    tmp_path: Path,
    after_planning: Callable[[Callable[[], object]], None],
    change: Callable[[Store, Path], None],
) -> None:
    """A file that the log still has is an error with the host and the path, beside a writer too."""
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
    """What Spark makes of these options."""
    from pyspark.sql.datasource import CaseInsensitiveDict

    from logfs.spark.source import LogfsDataSource

    wanted = {"subscribe": "orders", "path": str(log_dir), **options}
    source = LogfsDataSource(CaseInsensitiveDict(wanted))
    return source.reader(source.schema())


def offsets(found: BatchReader, splits: list[Any]) -> list[int]:
    """The offsets that the tasks of a plan read."""
    return [
        offset
        for split in splits
        for batch in found.read(split)
        for offset in batch.column("offset").to_pylist()
    ]


# What may be read where losses are allowed: from a truncated log what is left of it.
LOSSES = {retain: range(20, 60), truncate: range(20), delete: range(0), recreate: range(0)}


@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize("change", LOSSES)
def test_a_read_tells_what_the_log_has_lost(
    tmp_path: Path, change: Callable[[Store, Path], None]
) -> None:
    """`failOnDataLoss` decides; another partition of the same name is never read for the planned one."""
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
def test_a_read_names_what_is_missing(
    tmp_path: Path, change: Callable[[Store, Path], None], fail: str
) -> None:
    """A hole that compaction did not make is an error, whatever losses are allowed."""
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
    """The records of a segment that another one has taken in are read from there, each once."""
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
    """Compaction gives a new segment two names: a plan that was made between its renames holds."""
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
def test_a_partition_that_moves_is_not_passed_over(tmp_path: Path) -> None:
    """Its records are there, so the read fails even where losses are allowed, and the next one has all of them."""
    from logfs.spark.splits import DataLoss

    logs = [tmp_path / "a", tmp_path / "b"]
    with Store(logs) as store:
        fill(store)
        options = {"paths": json.dumps([str(logs[0])])}
        found = reader(logs[1], failOnDataLoss="false", **options)
        plan = found.partitions()
        store.move("orders-0", logs[store.home("orders-0") == logs[0]])
        with pytest.raises(DataLoss, match="orders-0: the partition moved to"):
            offsets(found, plan)
        found = reader(logs[1], failOnDataLoss="false", **options)
        assert offsets(found, found.partitions()) == list(range(60))


@pytest.mark.usefixtures("spark")
def test_a_missing_directory_is_not_a_deleted_partition(tmp_path: Path) -> None:
    """Without the log directory, or with an empty one, nobody knows of losses: it is an error."""
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
    # Removed by hand: the checkpoint still names it.
    shutil.move(log_dir / "orders-0", tmp_path / "elsewhere")
    with pytest.raises(NotOnHost, match=HOST):
        offsets(found, plan)
