"""The jobs on log directories of many partitions: their results are those that one machine gets."""

from __future__ import annotations

import importlib
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from logfs.errors import InvalidSetting, InvalidStore, LogfsError, StoreLocked, UnknownPartition
from logfs.format.batches.batch import assign_offset
from logfs.format.batches.record import Record
from logfs.spark.jobs import compact, plot, reindex, stats, verify
from logfs.store.directory.log_dir import CLEAN_SHUTDOWN
from logfs.store.observe.check import check
from logfs.store.store import Store
from tests.spark import commands
from tests.support.batches import Batches
from tests.support.busy_programs import busy_programs, make_logs
from tests.support.examples import seed_of
from tests.support.partitions import flip
from tests.support.requirements import DEEP
from tests.support.stores import Clock, assert_clean

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import SparkSession

    from logfs.log.audit import Finding
    from logfs.log.read.log import Log
    from tests.support.mounts import Mount

# The name in the package is that of the function.
verify_module = importlib.import_module("logfs.spark.jobs.verify")
TOPICS, PARTITIONS, SEGMENTS = 10, 10, 3
CODECS = ("uncompressed", "gzip", "snappy", "lz4", "zstd")


@pytest.fixture(scope="module")
def hundred(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two log directories with a hundred partitions of three segments, all codecs, closed cleanly."""
    root = tmp_path_factory.mktemp("hundred")
    clock = Clock()
    with Store([root / "a", root / "b"], clock=clock) as store:
        for topic in range(TOPICS):
            settings = {"index.interval.bytes": "300", "compression.type": CODECS[topic % 5]}
            if topic % 2:
                settings["cleanup.policy"] = "compact"
            for name, value in settings.items():
                store.settings.set_topic(f"t{topic}", name, value)
            for number in range(PARTITIONS):
                fill(store, f"t{topic}-{number}", clock)
    return root


def fill(store: Store, name: str, clock: Clock) -> None:
    """Fill three segments. Every key is in each of them, and the last value of one key is null."""
    partition = store.create(name)
    for segment in range(SEGMENTS):
        for batch in range(8):
            first = 8 * segment + batch
            partition.append(
                [
                    Record(
                        None if n == 7 and segment == 2 else b"%s %d " % (name.encode(), first) * 5,
                        b"key %d" % n if n else None if not segment % 2 else b"key 0",
                        [("h", b"x")] if n == 3 else [],
                        timestamp=clock() + 60_000 * first,
                    )
                    for n in range(8)
                    if not (n == 0 and partition.config.is_compacted)
                ]
            )
        if segment < SEGMENTS - 1:
            partition.roll(clock())


@pytest.fixture
def copied(hundred: Path, tmp_path: Path) -> list[Path]:
    """A copy of the hundred partitions, to damage or change."""
    shutil.copytree(hundred, tmp_path / "copy", symlinks=True)
    return [tmp_path / "copy/a", tmp_path / "copy/b"]


def find(log_dirs: list[Path], name: str) -> Path:
    """Return the directory of a partition."""
    (found,) = (path / name for path in log_dirs if (path / name).is_dir())
    return found


def ruin(log_dirs: list[Path]) -> dict[str, Path]:
    """Cause damage of every kind, and return the damaged file by partition."""

    def path(name: str, suffix: str) -> Path:
        """Return a file of a partition's second segment."""
        return sorted(find(log_dirs, name).glob("*.log"))[1].with_suffix(suffix)

    ruined = {}
    for number, name in enumerate(("t0-0", "t1-3", "t2-5", "t3-7", "t4-9")):
        # A bit in a record of each codec.
        ruined[name] = path(name, ".log")
        flip(ruined[name], ruined[name].stat().st_size // 2 + number)
    ruined["t5-1"] = path("t5-1", ".index")
    flip(ruined["t5-1"], 11)
    ruined["t6-2"] = path("t6-2", ".timeindex")
    flip(ruined["t6-2"], 3)
    ruined["t7-4"] = path("t7-4", ".textindex")
    flip(ruined["t7-4"], 11)
    ruined["t8-6"] = path("t8-6", ".index")
    ruined["t8-6"].write_bytes(ruined["t8-6"].read_bytes() + b"abc")
    ruined["t9-8"] = path("t9-8", ".log")
    data = bytearray(ruined["t9-8"].read_bytes())
    batch = next(iter(Batches(bytes(data))))
    assign_offset(data, batch.header.base_offset, 7)
    ruined["t9-8"].write_bytes(data)
    gone = path("t0-9", ".log").stem
    for file in find(log_dirs, "t0-9").glob(f"{gone}.*"):
        if file.suffix != ".snapshot":
            file.unlink()
    ruined["t0-9"] = sorted(find(log_dirs, "t0-9").glob("*.log"))[0]
    ruined["t2-2"] = find(log_dirs, "t2-2") / "partition.metadata"
    ruined["t2-2"].write_text("version: 9\n")
    return ruined


# verify


def test_verify_has_no_findings_in_sound_logs(spark: SparkSession, hundred: Path) -> None:
    """A hundred sound partitions have no findings, and every record is counted."""
    told: list[tuple[int, int]] = []
    report = verify(
        spark, [hundred / "a", hundred / "b"], progress=lambda *how_far: told.append(how_far)
    )
    assert report.findings == ()
    assert (report.partitions, report.segments) == (100, 100 * SEGMENTS)
    with Store([hundred / "a", hundred / "b"], read_only=True) as store:
        assert report.records == sum(
            sum(1 for _ in partition.read()) for partition in store.registry.partitions.values()
        )
    assert told[-1] == (report.size_bytes, report.size_bytes)
    assert sorted(told) == told


def test_verify_names_all_damage_as_check_does(spark: SparkSession, copied: list[Path]) -> None:
    """`verify` names each damaged file, and finds what `logfs check` finds."""
    ruined = ruin(copied)
    report = verify(spark, copied)
    assert {finding.path for finding in report.errors} == set(ruined.values())
    assert list(report.findings) == list(check(copied))
    # The other partitions are audited nevertheless.
    assert report.partitions == 100


def test_verify_passes_over_partitions_that_are_deleted_meanwhile(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process deletes one before the job looks at it, and one after; all others are audited."""
    log_dir = tmp_path / "log"
    with Store(log_dir) as store:
        for number in range(3):
            store.create(f"orders-{number}").append([b"a"])
            store.settings.set_topic("orders", "file.delete.delay.ms", "0")
        check_small_files = verify_module.check_small_files

        def deleting(reading: Store, partition: Log) -> Iterator[Finding]:
            if partition.partition == 1:
                for name in ("orders-0", "orders-1"):
                    store.delete(name)
                    shutil.rmtree(next(log_dir.glob(f"{name}.*-delete")))
            return check_small_files(reading, partition)

        monkeypatch.setattr(verify_module, "check_small_files", deleting)
        done = verify(spark, log_dir)
    assert (done.errors, done.partitions, done.records) == ([], 2, 1)
    (found,) = done.findings
    assert "orders-0" in str(found.path)
    assert "has left the log" in found.text


def test_verify_beside_programs_finds_the_damage_and_nothing_else(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Three programs open, change and close the log directory in turns (`LOGFS_HYPOTHESIS=deep`: 1,000 rounds)."""
    index = make_logs(tmp_path / "log")
    with busy_programs(tmp_path / "log", seed_of()):
        for number in range(1000 if DEEP else 3):
            report = verify(spark, tmp_path / "log")
            assert [each.path for each in report.errors] == [index], (number, report.errors)
            assert report.partitions >= 3


def test_verify_some_topics(spark: SparkSession, copied: list[Path]) -> None:
    """`verify` audits only the topics that are named. A topic that does not exist is an error."""
    ruined = ruin(copied)
    report = verify(spark, copied, topics=["t1", "t9"])
    assert {finding.path for finding in report.errors} == {ruined["t1-3"], ruined["t9-8"]}
    assert report.partitions == 2 * PARTITIONS
    with pytest.raises(UnknownPartition, match="has no topic 'nope'"):
        verify(spark, copied, topics=["t1", "nope"])


def test_verify_of_a_mounted_log_directory(
    spark: SparkSession, make_mount: Callable[..., Mount]
) -> None:
    """The mount point of a log directory can be verified in place of the directory, while it is in use."""
    mount = make_mount()
    orders = mount.partition("orders-0")
    for number in range(20):
        (orders / "append").write_text(f"line {number}\n")
    report = verify(spark, mount.path)
    assert (report.errors, report.partitions, report.records) == ([], 1, 20)


# reindex


def test_reindex_rebuilds_wrong_indexes(spark: SparkSession, copied: list[Path]) -> None:
    """`reindex` rebuilds indexes that are wrong, cut or gone, and leaves every other file unchanged."""
    before = {path: path.read_bytes() for log_dir in copied for path in log_dir.glob("*/*index")}
    chosen = random.Random(1).sample(sorted(before), 60)
    for number, path in enumerate(chosen):
        if number % 3 == 0:
            path.unlink()
        elif number % 3 == 1:
            path.write_bytes(path.read_bytes()[:-5] + b"12345")
        else:
            path.write_bytes(b"")
    assert verify(spark, copied).findings != ()
    logs = {path: path.read_bytes() for log_dir in copied for path in log_dir.glob("*/*.log")}
    done = reindex(spark, copied)
    assert [visit.name for visit in done] == sorted(visit.name for visit in done)
    assert {visit.result for visit in done} <= {
        (SEGMENTS, 64 * SEGMENTS, 0),
        (SEGMENTS, 56 * SEGMENTS, 0),
    }
    assert {path: path.read_bytes() for path in logs} == logs
    # The rebuilt indexes have the same entries as those made during the appends.
    assert {path: path.read_bytes() for path in before} == before
    assert verify(spark, copied).findings == ()
    assert all((log_dir / CLEAN_SHUTDOWN).exists() for log_dir in copied)


def test_reindex_continues_after_a_partition_that_fails(
    spark: SparkSession, copied: list[Path]
) -> None:
    """`reindex` reports a damaged segment and a partition that cannot be opened, and completes the others."""
    log = sorted(find(copied, "t0-0").glob("*.log"))[0]
    flip(log, log.stat().st_size // 2)
    (find(copied, "t0-1") / "leader-epoch-checkpoint").write_text("nonsense\n")
    done = {visit.name: visit for visit in reindex(spark, copied, topics=["t0"])}
    assert len(done) == PARTITIONS
    assert done["t0-0"].result is not None
    assert done["t0-0"].result.damaged == 1
    assert done["t0-1"].result is None
    assert "leader-epoch-checkpoint" in str(done["t0-1"].reason)
    # The partition needs a repair first.
    assert not all((log_dir / CLEAN_SHUTDOWN).exists() for log_dir in copied)
    (find(copied, "t0-1") / "leader-epoch-checkpoint").write_text("0\n1\n0 0\n")
    flip(log, log.stat().st_size // 2)
    # The indexes were made around the damage.
    assert all(visit.reason is None for visit in reindex(spark, copied, topics=["t0"]))
    assert_clean(*copied)


def test_jobs_that_write_respect_the_lock(
    spark: SparkSession, make_mount: Callable[..., Mount]
) -> None:
    """A job that writes refuses a mounted log directory: it names the process that holds it, and changes nothing."""
    mount = make_mount()
    mount.partition("orders-0")
    for job in (reindex, compact):
        with pytest.raises(StoreLocked, match="in use by process"):
            job(spark, mount.path)


def test_jobs_that_write_make_no_log_directory(spark: SparkSession, tmp_path: Path) -> None:
    """A job that writes refuses a log directory that does not exist, and does not create it."""
    for job in (reindex, compact):
        with pytest.raises(InvalidStore, match="does not exist"):
            job(spark, tmp_path / "log")
    assert not list(tmp_path.iterdir())


# compact


def contents(log_dirs: list[Path]) -> dict[str, list[tuple[object, ...]]]:
    with Store(log_dirs, read_only=True) as store:
        return {
            name: [(r.offset, r.key, r.value, r.headers, r.timestamp) for r in store[name].read()]
            for name in store
        }


def test_compact_gives_the_result_of_one_machine(
    spark: SparkSession, copied: list[Path], tmp_path: Path
) -> None:
    """`compact` gives the result of one machine for compacted topics, records it, and leaves the others unchanged."""
    alone = [shutil.copytree(path, tmp_path / f"alone-{path.name}") for path in copied]
    with Store(alone) as store:
        for name in store:
            if store[name].config.is_compacted:
                store.compact(name, roll=True)
    done = compact(spark, copied, roll=True)
    assert [visit.reason for visit in done] == [None] * 50
    assert {visit.name.partition("-")[0] for visit in done} == {"t1", "t3", "t5", "t7", "t9"}
    assert all(v.result is not None and v.result.bytes_after < v.result.bytes_before for v in done)
    assert contents(copied) == contents(alone)
    for mine, other in zip(copied, alone, strict=True):
        assert (mine / CLEAN_SHUTDOWN).exists()
        for name in ("cleaner-offset-checkpoint", "recovery-point-offset-checkpoint"):
            assert sorted((mine / name).read_text().splitlines()) == sorted(
                (other / name).read_text().splitlines()
            )
    assert verify(spark, copied).errors == []
    # The store can be opened and written to afterwards.
    with Store(copied) as store:
        store["t1-0"].append([Record(b"on", b"key")])
    assert_clean(*copied)


# stats


def test_stats_agree_with_a_read_of_all_records(spark: SparkSession, hundred: Path) -> None:
    """The numbers of records, keys, nulls, bytes, codecs and times are those that a read of all records gives."""
    log_dirs = [hundred / "a", hundred / "b"]
    found = stats(spark, log_dirs, bucket_ms=600_000)
    assert [each.topic for each in found.topics] == [f"t{n}" for n in range(TOPICS)]
    with Store(log_dirs, read_only=True) as store:
        for each in found.topics:
            here = [store[f"{each.topic}-{n}"] for n in range(PARTITIONS)]
            records = [record for partition in here for record in partition.read()]
            counts = each.counts
            assert (each.partitions, each.segments) == (PARTITIONS, PARTITIONS * SEGMENTS)
            assert counts.records == len(records)
            assert counts.null_keys == sum(record.key is None for record in records)
            assert counts.null_values == sum(record.value is None for record in records)
            assert counts.log_bytes == sum(partition.size_bytes for partition in here)
            assert each.keys == len({record.key for record in records} - {None})
            times = Counter(
                record.timestamp - record.timestamp % 600_000
                for record in records
                if record.timestamp is not None
            )
            assert counts.times == times
            codec = CODECS[int(each.topic[1:]) % 5]
            assert dict(counts.codecs) == {codec.replace("uncompressed", "none"): counts.log_bytes}
            assert (each.compression > 1.2) == (codec != "uncompressed")
            assert counts.plain_bytes == found.topics[0].counts.plain_bytes or int(each.topic[1:])


def test_stats_can_be_plotted(spark: SparkSession, hundred: Path, tmp_path: Path) -> None:
    """The picture's format follows from its name. An unknown format is an error."""
    found = stats(spark, hundred / "a")
    plot(found, tmp_path / "picture.png")
    assert (tmp_path / "picture.png").read_bytes().startswith(b"\x89PNG")
    plot(found, tmp_path / "picture.svg")
    assert "records in" in (tmp_path / "picture.svg").read_text()
    with pytest.raises(LogfsError, match=r"picture\.nonsense"):
        plot(found, tmp_path / "picture.nonsense")
    with pytest.raises(InvalidSetting, match="give at least 1"):
        stats(spark, hundred / "a", bucket_ms=0)


# The commands.


def test_commands(copied: list[Path], hundred: Path, tmp_path: Path) -> None:
    """Each command prints its result, and its exit code reports errors."""
    one = [shutil.copytree(hundred / "a", tmp_path / "one")]
    ruined = ruin(copied)
    session = ("--master", "local[1]", "--conf", "spark.driver.memory=512m")
    verified, counted, reindexed, compacted = commands.run(
        tmp_path,
        ("verify", *session, *copied),
        ("stats", *session, *copied, "--plot", tmp_path / "p.png", "--topics", "t1"),
        ("reindex", *session, *one),
        ("compact", *session, "--roll", *one),
    )
    misspelt, lost = commands.run(
        tmp_path,
        # The first session of a process.
        ("verify", "--master", "locl[1]", *one),
        ("stats", *session, *one, "--plot", tmp_path / "none" / "p.png"),
    )
    assert verified.returncode == 1
    assert all(str(path) in verified.stdout for path in ruined.values())
    assert "100 partitions, " in verified.stdout.splitlines()[-1]
    assert counted.returncode == 0, counted.stderr
    assert counted.stdout.splitlines()[1].split()[:3] == ["t1", "10", "30"]
    assert (tmp_path / "p.png").stat().st_size > 1000
    assert reindexed.returncode == 0, reindexed.stderr
    assert "none: is not a directory" in lost.stderr
    assert misspelt.returncode == 1
    assert "logfs: Spark does not start on locl[1]: " in misspelt.stderr
    assert "Traceback" not in misspelt.stderr
    assert compacted.returncode == 0, compacted.stderr
    assert ": 0 could not be compacted" in compacted.stdout.splitlines()[-1]
    assert_clean(*one)


def test_ctrl_c_while_spark_starts_leaves_no_process(tmp_path: Path) -> None:
    """The command ends, without a traceback, when the JVM that it has begun to start can be ended, too."""
    Store(tmp_path / "log").close()
    command = [sys.executable, "-m", "logfs", "spark", "stats", "--master", "local[1]"]
    process = subprocess.Popen(
        [*command, str(tmp_path / "log")],
        start_new_session=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        while "java" not in members(process.pid):
            assert process.poll() is None
            time.sleep(0.05)
        os.killpg(process.pid, signal.SIGINT)
        out, _ = process.communicate(timeout=120)
        assert process.returncode == 130, out
        assert "Traceback" not in out
        deadline = time.monotonic() + 60
        while left := members(process.pid):
            assert time.monotonic() < deadline, left
            time.sleep(0.1)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def members(group: int) -> list[str]:
    """Return the names of the processes in a process group that have not ended."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            name, state, _, in_group = re.fullmatch(
                r"\d+ \((.*)\) (\S) (\d+) (\d+) .*", stat.read_text(), re.DOTALL
            ).groups()  # type: ignore[union-attr]
            if int(in_group) == group and state != "Z":
                found.append(name)
    return found


def test_a_command_without_java_says_what_to_install(tmp_path: Path) -> None:
    """Without Java the command prints one line that says what to install."""
    command = [sys.executable, "-m", "logfs", "spark", "verify", str(tmp_path)]
    done = subprocess.run(
        command, env={"PATH": str(tmp_path)}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert done.stderr == (
        "logfs: Spark needs Java, but 'java' is not on the PATH: apt-get install default-jre-headless\n"
    )
