"""`logfs.spark.jobs.export`: all records are in files where Hive and Spark look for them, or no files are written."""

from __future__ import annotations

import gzip
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from logfs.errors import InvalidSetting
from logfs.format.base import names
from logfs.format.batches.record import Record
from logfs.format.text import envelope
from logfs.log.disk.disk import Disk
from logfs.store.store import Store
from tests.spark.logs import CODECS, DAY_MS, T, contents, make_log
from tests.support.batches import batch
from tests.support.examples import seed_of
from tests.support.requirements import DEEP
from tests.support.stores import assert_clean

pytest.importorskip("pyspark", reason="pyspark is not installed")

from logfs.spark.jobs import JobFailed, export, export_commit
from logfs.spark.jobs.export_files import WrittenFile
from logfs.spark.splits import DataLoss

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

COLUMNS = ("topic", "partition", "offset", "key", "value", "timestamp", "timestampType", "headers")
NO_DATE = "__HIVE_DEFAULT_PARTITION__"


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log with records of every kind, and of more dates than an export has files open at once."""
    path = tmp_path_factory.mktemp("logs")
    make_log(path, days=70)
    assert_clean(path)
    return path


def files(target: Path) -> list[str]:
    """Return the names of all files, relative to the target."""
    return sorted(
        path.relative_to(target).as_posix() for path in target.rglob("*") if path.is_file()
    )


def rows(frame: DataFrame) -> list[tuple[Any, ...]]:
    """Return the rows of a frame in the columns of `format("logfs")`, in the order of the log."""
    return [tuple(row) for row in frame.select(*COLUMNS).orderBy(*COLUMNS[:3]).collect()]


def test_spark_reads_the_parquet_as_it_reads_the_log(
    spark: SparkSession, log: Path, tmp_path: Path
) -> None:
    """Every column of every record can be read, whatever the codec. The path has the topic and the UTC date."""
    target = tmp_path / "out"
    done = export(spark, log, target)
    source = spark.read.format("logfs").option("includeHeaders", "true")
    wanted = source.option("subscribePattern", ".").load(str(log))
    found = spark.read.parquet(str(target))
    assert rows(found) == rows(wanted)
    assert done.records == wanted.count() == sum(map(len, contents(log).values()))
    dates = found.selectExpr("date = to_date(timestamp) right", "unix_millis(timestamp) < 0 none")
    assert {(row.right, row.none) for row in dates.distinct().collect()} == {
        (True, False),
        (None, True),
    }
    there = [name for name in files(target) if name != "_SUCCESS"]
    assert len(there) == done.files
    assert sum((target / name).stat().st_size for name in there) == done.size_bytes
    assert {name.split("/")[0] for name in there} == {f"topic={codec}.log" for codec in CODECS}
    assert any(f"/date={NO_DATE}/" in name for name in there)
    assert not (target / "_temporary").exists()


@pytest.mark.parametrize("compression", ["none", "gzip"])
def test_json_is_the_envelopes_of_the_log(
    spark: SparkSession, log: Path, tmp_path: Path, compression: str
) -> None:
    """The lines have the same bytes as in `records.jsonl`, and are in order within each file."""
    topic = f"{CODECS[1]}.log"
    done = export(spark, [log], tmp_path, format="json", topics=[topic], compression=compression)
    found: dict[bytes, list[bytes]] = {}
    for name in files(tmp_path):
        if name != "_SUCCESS":
            data = (tmp_path / name).read_bytes()
            text = gzip.decompress(data) if compression == "gzip" else data
            offsets = [envelope.decode_placed(line).offset for line in text.splitlines()]
            assert offsets == sorted(offsets, key=int)
            assert int(Path(name).name.split("-")[2].split(".")[0]) == offsets[0]
            prefix = b"".join(text.partition(b'"offset":')[:2])
            found.setdefault(prefix, []).extend(text.splitlines(keepends=True))
    with Store(log, read_only=True) as store:
        wanted = {}
        for number in range(2):
            prefix = envelope.prefix(names.TopicPartition(topic, number))
            wanted[prefix] = sorted(
                envelope.encode(record, prefix) for record in store[f"{topic}-{number}"].read()
            )
    assert {prefix: sorted(lines) for prefix, lines in found.items()} == wanted
    assert done.records == sum(map(len, wanted.values()))


def test_read_options_select_the_exported_records(spark: SparkSession, log_dir: Path) -> None:
    """Start offset, end time and isolation level select the records. Option names are not case-sensitive."""
    with Store(log_dir) as store:
        orders = store.create("orders-0")
        orders.append([Record(b"%d" % n, timestamp=T + n) for n in range(10)])
        orders.append_batch(batch(1, 0, b"aborted", transactional=True, timestamp=T + 10))
        orders.end_transaction(1, 0, commit=False)
        orders.append_batch(batch(2, 0, b"committed", transactional=True, timestamp=T + 11))
        orders.end_transaction(2, 0, commit=True)
        orders.append_batch(batch(3, 0, b"open", transactional=True, timestamp=T + 12))
        store.create("empty-0")

    def exported(number: int, **options: str) -> list[bytes]:
        target = log_dir.with_name(f"out{number}")
        export(spark, log_dir, target, options=options)
        frame = spark.read.parquet(str(target)).orderBy("offset")
        return [bytes(row.value) for row in frame.collect()]

    numbers = [b"%d" % n for n in range(10)]
    assert exported(1) == [*numbers, b"aborted", b"committed", b"open"]
    assert exported(2, isolationlevel="read_committed") == [*numbers, b"committed"]
    limits = {"assign": '{"orders":[0]}', "startingOffsets": '{"orders":{"0":3}}'}
    assert exported(3, **limits, endingTimestamp=str(T + 7)) == numbers[3:7]


def test_records_of_any_time_are_exported(spark: SparkSession, log_dir: Path) -> None:
    """Timestamps in milliseconds beyond the range of microseconds or of dates are exported."""
    with Store(log_dir) as store:
        store.settings.set_topic("t", "message.timestamp.after.max.ms", str(2**63 - 1))
        last = 253_402_300_799_999
        store.create("t-0").append(
            [Record(b"", timestamp=time) for time in (0, last, last + 1, 2**62)]
        )
    target = log_dir.with_name("out")
    export(spark, log_dir, target, format="json")
    times = {
        name.split("/")[1]: [
            envelope.decode(line).timestamp for line in (target / name).read_bytes().splitlines()
        ]
        for name in files(target)
        if name != "_SUCCESS"
    }
    assert times == {
        "date=1970-01-01": [0],
        "date=9999-12-31": [last],
        f"date={NO_DATE}": [last + 1, 2**62],
    }


def test_existing_files_are_an_error_or_kept_or_replaced(
    spark: SparkSession, log_dir: Path
) -> None:
    """Existing files of an export are an error, or kept, or replaced. Other files and topics are left alone."""
    with Store(log_dir) as store:
        store.create("a-0").append([Record(b"a", timestamp=T)])
        store.create("b-0").append([Record(b"b", timestamp=T)])
    target = log_dir.with_name("out")
    export(spark, log_dir, target, topics=["a"])
    (target / "notes").write_text("mine")
    a = "topic=a/date=2021-11-28/part-00000-00000000000000000000.parquet"
    b = a.replace("=a", "=b")
    before = (target / a).stat().st_ino
    with pytest.raises(FileExistsError, match="append or overwrite"):
        export(spark, log_dir, target)
    for incremental in (False, True):
        with pytest.raises(FileExistsError, match="an export in the format parquet"):
            export(spark, log_dir, target, format="json", mode="append", incremental=incremental)
    with pytest.raises(FileExistsError, match="startingOffsets"):
        export(spark, log_dir, target, mode="append")
    assert files(target) == ["_SUCCESS", "notes", a]
    assert (target / a).stat().st_ino == before
    export(spark, log_dir, target, topics=["b"], mode="append")
    assert files(target) == ["_SUCCESS", "notes", a, b]
    with Store(log_dir) as store:
        store["b-0"].append([Record(b"later", timestamp=T + DAY_MS)])
        store.delete_records("b-0", 1)
    export(spark, log_dir, target, topics=["b"], mode="overwrite")
    later = "topic=b/date=2021-11-29/part-00000-00000000000000000001.parquet"
    assert files(target) == ["_SUCCESS", "notes", a, later]
    assert not (target / b).parent.exists()
    assert (target / a).stat().st_ino == before


def test_a_job_that_fails_leaves_nothing(spark: SparkSession, tmp_path: Path) -> None:
    """An export that fails at damage names the file, and leaves the files of an earlier export unchanged."""
    log_dir, target = tmp_path / "log", tmp_path / "out"
    with Store(log_dir) as store:
        for number in range(3):
            log = store.create(f"t-{number}")
            for day in range(3):
                log.append([Record(b"value", timestamp=T + day * DAY_MS)])
    export(spark, log_dir, target)
    before = {name: (target / name).stat().st_ino for name in files(target)}
    segment = log_dir / "t-2/00000000000000000000.log"
    data = bytearray(segment.read_bytes())
    data[len(data) // 2] ^= 1
    segment.write_bytes(data)
    with pytest.raises(JobFailed, match=r"t-2/0+\.log"):
        export(spark, log_dir, target, mode="overwrite")
    assert {name: (target / name).stat().st_ino for name in files(target)} == before
    with pytest.raises(JobFailed):
        export(spark, log_dir, tmp_path / "other")
    assert files(tmp_path / "other") == []
    loose = {"failOnDataLoss": "false"}
    assert export(spark, log_dir, tmp_path / "other", options=loose).records == 8


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        ({"format": "csv"}, "give one of parquet, json"),
        ({"format": "json", "compression": "snappy"}, "give one of none, gzip, zstd"),
        ({"mode": "ignore"}, "give one of errorifexists"),
        ({"topics": ["nowhere"]}, "logfs describe"),
        ({"options": {"isolationLevel": "high"}}, "read_uncommitted or read_committed"),
        ({"target": "s3a://bucket/out"}, "a directory with the same path"),
    ],
)
def test_invalid_options_are_refused_with_a_message(
    spark: SparkSession, log: Path, tmp_path: Path, wanted: dict[str, Any], message: str
) -> None:
    """Invalid options are refused before anything is created."""
    target = tmp_path / "out"
    with pytest.raises(InvalidSetting, match=message):
        export(spark, log, **{"target": target, **wanted})
    assert not target.exists()


def test_wrong_targets_are_refused(spark: SparkSession, log_dir: Path) -> None:
    """A target in the log directory, however it is named, and a dangling symlink are errors; nothing is written."""
    with Store(log_dir) as store:
        store.create("t-0").append([b"x"])
    (log_dir.parent / "link").symlink_to(log_dir)
    (log_dir.parent / "dangling").symlink_to("nowhere")
    before = sorted(log_dir.rglob("*"))
    for target, message in (
        (log_dir, "is in the log directory"),
        (log_dir / "out", "is in the log directory"),
        (log_dir.parent / "link" / "t-0", "is in the log directory"),
        (log_dir.parent / "dangling", "a symlink to nowhere, which does not exist"),
    ):
        for mode in ("errorifexists", "append", "overwrite"):
            with pytest.raises(InvalidSetting, match=message):
                export(spark, log_dir, target, mode=mode)
    assert sorted(log_dir.rglob("*")) == before


def test_progress_is_reported_in_bytes(spark: SparkSession, log: Path, tmp_path: Path) -> None:
    """The progress ascends to the number of bytes of the logs."""
    told: list[tuple[int, int]] = []
    export(spark, log, tmp_path / "out", progress=lambda *each: told.append(each))
    size = sum(path.stat().st_size for path in log.rglob("*.log"))
    assert told[-1] == (size, size)
    assert told == sorted(told)


# Incremental exports.


def exported(spark: SparkSession, target: Path) -> list[tuple[str, int, int]]:
    """Return topic, partition and offset of all exported records, in order."""
    frame = spark.read.parquet(str(target)).select("topic", "partition", "offset")
    return sorted(tuple(row) for row in frame.collect())


def in_log(log_dir: Path) -> list[tuple[str, int, int]]:
    """Return topic, partition and offset of all records of a log, in order."""
    return sorted(
        (*names.parse_directory(name), row[0])
        for name, rows_of in contents(log_dir).items()
        for row in rows_of
    )


def test_an_incremental_export_goes_on_where_the_last_one_ended(
    spark: SparkSession, log_dir: Path
) -> None:
    """Each run exports what is new, of old, new and few topics alike; no record twice, and none is missed."""
    target = log_dir.with_name("out")
    with Store(log_dir) as store:
        store.create("a-0").append([Record(b"%d" % n, timestamp=T + n) for n in range(10)])
        store.create("b-0").append([Record(b"b", timestamp=T)])
    assert export(spark, log_dir, target, incremental=True).records == 11
    assert export(spark, log_dir, target, incremental=True).records == 0
    with Store(log_dir) as store:
        store["a-0"].append([Record(b"more", timestamp=T)])
        store.create("a-1").append([Record(b"new", timestamp=T)])
        store["b-0"].append([Record(b"more", timestamp=T)])
    # The other topics stay where they are.
    assert export(spark, log_dir, target, topics=["b"], incremental=True).records == 1
    assert export(spark, log_dir, target, incremental=True).records == 2
    assert exported(spark, target) == in_log(log_dir)
    assert files(target)[:2] == ["_SUCCESS", "_offsets.json"]
    with Store(log_dir) as store:
        store["a-0"].append([Record(b"last", timestamp=T)])
    again = export(spark, log_dir, target, topics=["a"], incremental=True, mode="overwrite")
    assert again.records == 13
    assert export(spark, log_dir, target, incremental=True).records == 0
    assert exported(spark, target) == in_log(log_dir)


def test_losses_before_an_incremental_export_are_errors(spark: SparkSession, log_dir: Path) -> None:
    """Records that left the log since, and a topic that was recreated, are errors unless losses are allowed."""
    target = log_dir.with_name("out")
    with Store(log_dir) as store:
        store.create("a-0").append([b"1", b"2"])
        store.create("b-0").append([b"1"])
    export(spark, log_dir, target, incremental=True)
    with Store(log_dir) as store:
        store["a-0"].append([b"3", b"4"])
        store.delete_records("a-0", 3)
    with pytest.raises(DataLoss, match="offsets 2 to 2 of a-0 are no longer in the log"):
        export(spark, log_dir, target, topics=["a"], incremental=True)
    loose = {"failOnDataLoss": "false"}
    done = export(spark, log_dir, target, topics=["a"], options=loose, incremental=True)
    assert done.records == 1
    with Store(log_dir) as store:
        store.delete("b-0")
        store.create("b-0").append([b"other", b"records"])
    with pytest.raises(DataLoss, match="topic b was deleted and recreated"):
        export(spark, log_dir, target, incremental=True)


@pytest.mark.parametrize("is_empty", [False, True])
def test_a_recreated_topic_is_exported_beside_the_old_one(
    spark: SparkSession, log_dir: Path, is_empty: bool
) -> None:
    """Its offsets begin again, but its files have other names, in each of the following exports, too."""
    target = log_dir.with_name("out")
    loose = {"failOnDataLoss": "false"}

    def exports(*values: bytes) -> int:
        with Store(log_dir) as store:
            store["a-0"].append([Record(value, timestamp=T) for value in values])
        wanted = {"incremental": True, "options": loose, "format": "json"}
        return export(spark, log_dir, target, **wanted).records

    with Store(log_dir) as store:
        store.create("a-0")
    assert exports(b"1") == 1
    assert exports(b"2") == 1
    for round in range(2):
        with Store(log_dir) as store:
            store.delete("a-0")
            store.create("a-0")
        if is_empty:
            # This export stores the new id, but writes no file that has it.
            export(spark, log_dir, target, incremental=True, options=loose, format="json")
        assert exports(b"%d" % round) == 1
        assert exports(b"2") == 1
    assert exports(b"3") == 1
    lines = [line for path in target.rglob("part-*") for line in path.read_bytes().splitlines()]
    values = sorted(str(envelope.decode(line).value) for line in lines)
    assert values == sorted(map(str, [b"1", b"2", b"0", b"2", b"1", b"2", b"3"]))
    # Mode overwrite replaces the files of all of them.
    wanted = {"incremental": True, "mode": "overwrite", "format": "json"}
    assert export(spark, log_dir, target, **wanted).records == 3
    assert len([*target.rglob("part-*")]) == 1


def test_a_plain_export_is_not_continued(spark: SparkSession, log_dir: Path) -> None:
    """A directory without the offsets of an incremental export is an error, as are damaged offsets."""
    target = log_dir.with_name("out")
    with Store(log_dir) as store:
        store.create("a-0").append([b"1"])
    export(spark, log_dir, target)
    with pytest.raises(FileExistsError, match="holds no incremental export"):
        export(spark, log_dir, target, incremental=True)
    export(spark, log_dir, target, incremental=True, mode="overwrite")
    (target / "_offsets.json").write_text("{")
    with pytest.raises(InvalidSetting, match="mode overwrite"):
        export(spark, log_dir, target, incremental=True)


@pytest.mark.drawn(1)
@pytest.mark.parametrize("mode", ["append", "overwrite"])
def test_a_killed_export_is_completed_or_never_was(
    spark: SparkSession, log_dir: Path, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    """A driver that dies at any step of its moves leaves an export that the next one completes, or none.

    The suite tries every third step, beginning with another one after each commit.
    """
    with Store(log_dir) as store:
        for number in range(3):
            store.create(f"a-{number}").append([Record(b"1", timestamp=T)])
    steps = 0
    for dies_at in range(0 if DEEP else seed_of() % 3, 100, 1 if DEEP else 3):
        target = log_dir.with_name(f"out{dies_at}")
        export(spark, log_dir, target, incremental=True)
        with Store(log_dir) as store:
            for number in range(3):
                store[f"a-{number}"].append([Record(b"2", timestamp=T)])
        died = _export_dying(spark, log_dir, target, monkeypatch, mode, dies_at)
        export(spark, log_dir, target, incremental=True)
        assert exported(spark, target) == in_log(log_dir), dies_at
        assert not (target / "_temporary").exists()
        if not died:
            break
        steps += 1
    assert steps > (8 if DEEP else 2)


def test_what_a_killed_first_export_has_left_is_no_obstacle(
    spark: SparkSession, log_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A directory with nothing but `_temporary` counts as empty; if the export was decided, it is completed."""
    with Store(log_dir) as store:
        for number in range(3):
            store.create(f"a-{number}").append([Record(b"1", timestamp=T)])
    for dies_at in range(4):
        target = log_dir.with_name(f"out{dies_at}")
        (target / "_temporary/dead").mkdir(parents=True)
        (target / "_temporary/dead/part").write_text("half")
        assert _export_dying(spark, log_dir, target, monkeypatch, "errorifexists", dies_at)
        export(spark, log_dir, target, incremental=True)
        assert exported(spark, target) == in_log(log_dir)
        assert not (target / "_temporary").exists()


def test_exports_at_once_keep_out_of_each_others_way(spark: SparkSession, log_dir: Path) -> None:
    """Plain exports of other topics may run at once; of two incremental ones, one is refused, and none is damaged."""
    target = log_dir.with_name("out")
    with Store(log_dir) as store:
        for topic in "ab":
            store.create(f"{topic}-0").append([Record(b"1", timestamp=T)])

    def run(topic: str) -> None:
        export(spark, log_dir, target, topics=[topic], mode="append")

    with ThreadPoolExecutor() as pool:
        for each in [pool.submit(run, topic) for topic in "ab"]:
            each.result()
    assert exported(spark, target) == in_log(log_dir)
    assert not (target / "_temporary").exists()
    other = log_dir.with_name("other")
    with (
        export_commit.temporary_directory(other, incremental=True),
        pytest.raises(BlockingIOError, match="another incremental export"),
    ):
        export(spark, log_dir, other, incremental=True)
    export(spark, log_dir, other, incremental=True)
    assert exported(spark, other) == in_log(log_dir)


def test_exports_may_begin_while_others_end(tmp_path: Path) -> None:
    """Exports that begin, publish and end all the time, some without a file, leave one another's files alone."""
    out = tmp_path / "out"

    def run(number: int) -> None:
        for each in range(100):
            with export_commit.temporary_directory(out, incremental=False) as mine:
                (mine / "part").write_text("x")
                place = f"topic=t/date=2021-11-28/part-{number:05}-{each:020}.parquet"
                written = [WrittenFile(str(mine / "part"), place, "t", 1, 1)] * (each % 2)
                export_commit.Folders(out, mine).publish(written, None, None)

    with ThreadPoolExecutor() as pool:
        for each in [pool.submit(run, number) for number in range(4)]:
            each.result()
    assert len([*out.glob("topic=t/date=2021-11-28/part-*")]) == 4 * 50
    assert sorted(path.name for path in out.iterdir()) == ["_SUCCESS", "topic=t"]


class Died(BaseException):
    """The driver has died: from now on it changes nothing more."""


class DyingDisk(Disk):
    """A disk whose driver dies before one of its changes, the one with the number `left`."""

    left = 0

    def _step(self) -> None:
        if not DyingDisk.left:
            raise Died
        DyingDisk.left -= 1

    def rename_unsynced(self, old: Path, new: Path) -> None:
        self._step()
        super().rename_unsynced(old, new)

    def put_file(self, path: Path, data: bytes, *, sync: bool) -> None:
        self._step()
        super().put_file(path, data, sync=sync)

    def sync_directory(self, path: Path) -> None:
        self._step()
        super().sync_directory(path)

    def unlink(self, path: Path) -> None:
        self._step()
        super().unlink(path)


def _export_dying(
    spark: SparkSession,
    log_dir: Path,
    target: Path,
    monkeypatch: pytest.MonkeyPatch,
    mode: str,
    dies_at: int,
) -> bool:
    """Export, and return whether the driver has died at the change with the number `dies_at`."""
    DyingDisk.left = dies_at
    with monkeypatch.context() as patched:
        patched.setattr(export_commit, "Disk", DyingDisk)
        try:
            export(spark, log_dir, target, incremental=True, mode=mode)
        except Died:
            return True
    return False


@pytest.mark.parametrize("values", ["text", "base64"])
def test_json_with_values_of_one_type(spark: SparkSession, log_dir: Path, values: str) -> None:
    """All keys, values and headers have one type of JSON, and an import would read them back."""
    wanted = [
        Record(b"plain", b"key", [("h", b"1"), ("none", None)], timestamp=T),
        Record(None, None, timestamp=T),
        Record("наука\n".encode(), b"", timestamp=T),
    ]
    with Store(log_dir) as store:
        store.create("a-0").append(wanted)
    target = log_dir.with_name("out")
    export(spark, log_dir, target, format="json", values=values)
    (name,) = (each for each in files(target) if each != "_SUCCESS")
    lines = (target / name).read_bytes().splitlines()
    kind = str if values == "text" else dict
    for line, record in zip(lines, wanted, strict=True):
        found = json.loads(line)
        assert {type(found["key"]), type(found["value"])} <= {kind, type(None)}
        assert all(isinstance(each, kind | None) for pair in found["headers"] for each in pair)
        back = envelope.decode(line)
        assert (back.key, back.value, tuple(back.headers)) == (
            record.key,
            record.value,
            tuple(record.headers),
        )


def test_text_that_is_not_utf8_is_an_error(spark: SparkSession, log_dir: Path) -> None:
    """With values=text, the partition and the offset of bytes that are no text are named; nothing is written."""
    with Store(log_dir) as store:
        store.create("a-0").append([Record(b"fine"), Record(b"\xff")])
    target = log_dir.with_name("out")
    with pytest.raises(JobFailed, match=r"a-0, offset 1: .*xff.* is not UTF-8"):
        export(spark, log_dir, target, format="json", values="text")
    assert not target.exists()
    with pytest.raises(InvalidSetting, match="give the format json"):
        export(spark, log_dir, target, values="text")
