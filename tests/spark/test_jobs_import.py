"""`logfs.spark.jobs.import_`: all records of the files are in the log, in order, or none is."""

from __future__ import annotations

import gzip
import random
import re
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from logfs.cli import main
from logfs.errors import InvalidSetting, InvalidStore, LogfsError
from logfs.format.batches.record import Record
from logfs.format.files.commit_file import STAGED
from logfs.store.staged_commits import Commits
from logfs.store.store import Store
from tests.spark import commands
from tests.spark.logs import DAY_MS, T, contents, make_log
from tests.support.batches import batch
from tests.support.requirements import need_fuse
from tests.support.stores import assert_clean

pytest.importorskip("pyspark", reason="pyspark is not installed")

import pyarrow as pa
import pyarrow.parquet as pq

from logfs.spark.jobs import JobFailed, export, import_, import_lines
from logfs.spark.jobs.import_splits import FileRange, find_files, in_order, merged

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tests.support.mounts import Mount


ENVELOPE = '{"topic":"t","partition":0,"offset":%d,"value":"v"}\n'


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log with records of every kind. Its dates go back and forth."""
    path = tmp_path_factory.mktemp("logs")
    make_log(path)
    assert_clean(path)
    return path


@pytest.fixture
def empty(log_dir: Path) -> Path:
    """An empty log directory. It is audited afterwards."""
    log_dir.mkdir()
    return log_dir


def values(log_dir: Path, name: str) -> list[bytes | None]:
    return [row[2] for row in contents(log_dir).get(name, [])]


def assert_untouched(log_dir: Path) -> None:
    """Check that nothing was appended, and that no staged file is left."""
    assert contents(log_dir) == {}
    assert not list(log_dir.rglob("*" + STAGED))


def test_records_of_internal_topics_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    """They would move the groups of the log. An export has them only if they are named."""
    source, log = tmp_path / "source", tmp_path / "log"
    with Store(source) as store:
        store.create("orders-0").append([b"x"])
        store.groups.commit("readers", "orders-0", 1)
    export(spark, source, tmp_path / "all")
    assert {path.name for path in (tmp_path / "all").glob("topic=*")} == {"topic=orders"}
    export(spark, source, tmp_path / "named", topics=["__consumer_offsets"])
    with pytest.raises(InvalidSetting, match="its records are of __consumer_offsets"):
        import_(spark, tmp_path / "named", log, partitions=1)
    assert import_(spark, tmp_path / "named", log, topic="copies", partitions=1).records == 1


# import(export(x)) == x.


@pytest.mark.drawn(1)
@pytest.mark.parametrize(
    ("format", "compression"), [("parquet", "zstd"), ("json", "none"), ("json", "zstd")]
)
def test_exported_records_come_back_unchanged(
    spark: SparkSession, log: Path, empty: Path, tmp_path: Path, format: str, compression: str
) -> None:
    """Every field of every record comes back, null or empty, in its partition, at its offset, whatever the codec."""
    export(spark, log, tmp_path / "out", format=format, compression=compression)
    done = import_(spark, tmp_path / "out", empty, format=format, partitions=1)
    wanted = contents(log)
    assert contents(empty) == wanted
    assert done.offsets == {name: (0, len(rows)) for name, rows in wanted.items()}
    assert done.records == sum(map(len, wanted.values()))


def test_a_hundred_partitions_come_back(spark: SparkSession, empty: Path, tmp_path: Path) -> None:
    """A hundred partitions come back in a log that already has some of the topics."""
    make_log(tmp_path / "source", partitions=20, records=50)
    export(spark, tmp_path / "source", tmp_path / "out")
    with Store(empty) as store:
        for number in range(20):
            store.create(f"zstd.log-{number}")
    import_(spark, tmp_path / "out", empty, partitions=1)
    found = contents(empty)
    assert len(found) == 100
    assert found == contents(tmp_path / "source")


def test_transactions_and_gaps_keep_their_order(
    spark: SparkSession, empty: Path, tmp_path: Path
) -> None:
    """Aborted records are left out. Records after a gap get lower offsets, in the same order."""
    source = tmp_path / "source"
    with Store(source) as store:
        orders = store.create("orders-0")
        for n in range(40):
            kind = n % 4
            stamp = T + (n % 3) * DAY_MS
            if kind == 3:
                orders.append([Record(b"plain %d" % n, timestamp=stamp)])
                continue
            data = batch(
                kind, n // 4, b"%d %d" % (kind, n), transactional=kind > 0, timestamp=stamp
            )
            orders.append_batch(data)
            if kind:
                orders.end_transaction(kind, 0, commit=kind == 1)
        wanted = [(r.value, r.timestamp) for r in orders.committed.read()]
    committed = {"isolationLevel": "read_committed"}
    export(spark, source, tmp_path / "out", options=committed)
    import_(spark, tmp_path / "out", empty, partitions=1)
    rows = contents(empty)["orders-0"]
    assert [(row[2], row[4]) for row in rows] == wanted
    assert [row[0] for row in rows] == list(range(30))


@pytest.mark.drawn(1)
@pytest.mark.parametrize("folders", [(), ("topic", "partition")])
def test_parquet_that_spark_wrote_comes_back_unchanged(
    spark: SparkSession, log: Path, empty: Path, tmp_path: Path, folders: tuple[str, ...]
) -> None:
    """A frame of `format("logfs")` that Spark wrote to one folder, or to one per partition, comes back unchanged."""
    source = spark.read.format("logfs").option("includeHeaders", "true")
    frame = source.option("subscribePattern", ".").load(str(log))
    frame.coalesce(2).write.partitionBy(*folders).parquet(str(tmp_path / "out"))
    nothing = pa.table({"value": pa.array([], pa.string())})
    pq.write_table(nothing, tmp_path / "out/empty.parquet")
    import_(spark, tmp_path / "out", empty, partitions=1)
    assert contents(empty) == contents(log)


# Text.


def test_lines_become_values_unchanged(spark: SparkSession, empty: Path, tmp_path: Path) -> None:
    """Lines become values unchanged and in order, also empty ones, a last one without newline, and invalid UTF-8.

    So do the lines of compressed files.
    """
    (tmp_path / "1.txt").write_bytes(b"one\r\n\n\xff\x00 two\nlast")
    (tmp_path / "2.txt.gz").write_bytes(gzip.compress(b"of 2\n"))
    (tmp_path / "3.txt").write_bytes(b"")
    (tmp_path / "_hidden").write_bytes(b"hidden\n")
    done = import_(spark, [f"{tmp_path}/*.*"], empty, format="text", topic="t", partitions=1)
    assert values(empty, "t-0") == [b"one\r", b"", b"\xff\x00 two", b"last", b"of 2"]
    assert (done.files, done.records, done.offsets) == (3, 5, {"t-0": (0, 5)})


def test_keys_select_the_partition_as_in_kafka(
    spark: SparkSession, empty: Path, tmp_path: Path
) -> None:
    """The text before a separator is the key, as in kcat. A line without the separator has no key."""
    (tmp_path / "in.txt").write_text("21::a\nno key\n::empty key\n21::b::c\n")
    import_(
        spark,
        tmp_path / "in.txt",
        empty,
        format="text",
        topic="t",
        key_separator="::",
        partitions=5,
    )
    found = {name: [(row[1], row[2]) for row in rows] for name, rows in contents(empty).items()}
    hashed = (-973932308 & 0x7FFFFFFF) % 5
    assert [each for each in found[f"t-{hashed}"] if each[0] == b"21"] == [
        (b"21", b"a"),
        (b"21", b"b::c"),
    ]
    others = {each for rows in found.values() for each in rows if each[0] != b"21"}
    assert others == {(None, b"no key"), (b"", b"empty key")}


def test_json_lines_get_their_key_from_a_field(
    spark: SparkSession, empty: Path, tmp_path: Path
) -> None:
    """The value is the whole line. The key is the field's string, or its JSON, or null."""
    lines = ['{"id": "k", "x": 1}', '{"id":7}', '{"id":null}', "{}", '{"id":["a"]}']
    (tmp_path / "in.jsonl").write_text("\n".join(lines))
    import_(spark, tmp_path / "in.jsonl", empty, format="text", topic="t", key="id", partitions=1)
    rows = contents(empty)["t-0"]
    assert [row[2] for row in rows] == [line.encode() for line in lines]
    assert [row[1] for row in rows] == [b"k", b"7", None, None, b'["a"]']


def test_numbers_in_keys_are_as_written(spark: SparkSession, empty: Path, tmp_path: Path) -> None:
    """Numbers keep their text in the key, so that different ones have different keys."""
    numbers = [
        *("0", "-0", "-0.0", "1", "1.0", "1.1", "1.10", "1e2", "1E+2"),
        *("18446744073709551615", "18446744073709551616", "-9223372036854775809"),
        *("100000000000000000001", "100000000000000000002"),
        *("0.1000000000000000055511151231257827", f"{'7' * 5000}e-5000"),
    ]
    keys = [form % number for number in numbers for form in ("%s", "[%s]", '{"a":[%s]}')]
    lines = [f'{{"x": 2.50, "id": {key}}}' for key in keys]
    (tmp_path / "in.jsonl").write_text("\n".join(lines))
    import_(spark, tmp_path / "in.jsonl", empty, format="text", topic="t", key="id", partitions=1)
    rows = contents(empty)["t-0"]
    assert [row[1] for row in rows] == [key.encode() for key in keys]
    assert [row[2] for row in rows] == [line.encode() for line in lines]


def test_handwritten_envelopes_are_imported(
    spark: SparkSession, empty: Path, tmp_path: Path
) -> None:
    """Envelopes as for an append are imported: most fields may be missing, and their order is free."""
    (tmp_path / "in.jsonl").write_text(
        '{"value":"a","topic":"x","partition":1}\n'
        '{"headers":[["h",null]],"value":{"base64":"/w=="},"key":"k","timestamp":5}\n'
    )
    import_(spark, tmp_path / "in.jsonl", empty, format="json", topic="t", partitions=1)
    found = contents(empty)
    assert [row[2] for row in found["t-1"] if row[2] == b"a"] == [b"a"]
    second = [row for rows in found.values() for row in rows if row[1] == b"k"]
    assert [row[1:] for row in second] == [(b"k", b"\xff", (("h", None),), 5)]


@given(
    lines=st.lists(st.text("ab\r", max_size=12), min_size=1, max_size=40),
    cut=st.integers(1, 60),
    ends=st.booleans(),
)
def test_a_cut_file_has_every_line_once(
    tmp_path_factory: pytest.TempPathFactory, lines: list[str], cut: int, ends: bool
) -> None:
    """Each line is read once, wherever the file is cut: within a newline, after one, or repeatedly within a line."""
    text = "\n".join(lines).encode() + (b"\n" if ends else b"")
    path = tmp_path_factory.mktemp("cut") / "in.txt"
    path.write_bytes(text)
    found = b""
    for start in range(0, len(text), cut):
        for position, block in import_lines.blocks(FileRange(str(path), start, start + cut, cut)):
            assert text[position:].startswith(block.removesuffix(b"\n"))
            assert position == len(found)
            found += block
    assert found == (text if text.endswith(b"\n") or not text else text + b"\n")


def test_a_large_file_is_split_among_tasks(
    spark: SparkSession, empty: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The records of a large file keep their order, and an error in a later task names the right line."""
    monkeypatch.setattr(import_lines, "TASK_BYTES", 1000)
    lines = [b"%d %s" % (n, b"x" * (n % 50)) for n in range(2000)]
    path = tmp_path / "in.txt"
    path.write_bytes(b"\n".join(lines))
    import_(spark, path, empty, format="text", topic="t", partitions=1)
    assert values(empty, "t-0") == lines
    path.write_bytes(b'{"value":"x"}\n' * 1999 + b"bad\n")
    with pytest.raises(JobFailed, match=r"in\.txt, line 2000: not JSON"):
        import_(spark, path, empty, format="json", topic="t")
    assert values(empty, "t-0") == lines


def test_a_line_longer_than_a_file_range_keeps_the_order(
    spark: SparkSession, empty: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file range inside a single line has no offsets, but the others are merged in order."""
    monkeypatch.setattr(import_lines, "TASK_BYTES", 1000)
    lines = [
        ENVELOPE.replace('"v"', f'"{n}{"x" * (5000 if n == 9 else 9)}"') % n for n in range(80)
    ]
    (tmp_path / "a.jsonl").write_text("".join(lines[::2]))
    (tmp_path / "b.jsonl").write_text("".join(lines[1::2]))
    import_(spark, tmp_path, empty, format="json", partitions=1)
    numbers = [int((value or b"").rstrip(b"x")) for value in values(empty, "t-0")]
    assert numbers == list(range(80))


# Parquet.


def test_keys_and_values_come_from_named_columns(
    spark: SparkSession, empty: Path, tmp_path: Path
) -> None:
    """Key and value come from the named columns, numbers as text, times in any unit.

    Files with different columns can be imported together.
    """
    moment = pa.array([T * 1_000_000 + 999_999, None], pa.timestamp("ns"))
    first = pa.table({"id": [1, 2], "body": ["a", None], "timestamp": moment})
    pq.write_table(first, tmp_path / "1.parquet")
    body = pa.array([b"c", b"d"], pa.large_binary())
    second = pa.table({"body": body, "id": ["x", None], "more": [1.5, 2], "timestamp": [T + 1, -1]})
    pq.write_table(second, tmp_path / "2.parquet")
    import_(spark, tmp_path, empty, topic="t", key="id", value="body", partitions=1)
    rows = contents(empty)["t-0"]
    assert [row[1:3] for row in rows] == [(b"1", b"a"), (b"2", None), (b"x", b"c"), (None, b"d")]
    now = rows[1][4]
    assert now is not None
    assert now > T + 1
    assert [row[4] for row in rows] == [T, now, T + 1, -1]


def test_topics_in_a_column_of_bytes(spark: SparkSession, empty: Path, tmp_path: Path) -> None:
    """They are text in UTF-8, in a file with one topic and in a file with several."""
    for name, topics in (("1", [b"a", b"a"]), ("2", [b"b", b"a"])):
        table = pa.table({"topic": pa.array(topics, pa.binary()), "value": [name, name]})
        pq.write_table(table, tmp_path / f"{name}.parquet")
    import_(spark, tmp_path, empty, partitions=1)
    assert values(empty, "a-0") == [b"1", b"1", b"2"]
    assert values(empty, "b-0") == [b"2"]


def test_columns_with_another_meaning_are_ignored_or_refused(
    spark: SparkSession, empty: Path, tmp_path: Path
) -> None:
    """An `offset` column without numbers is ignored. A `partition` column without numbers is refused, if used."""
    columns = {"value": ["a", "b"], "offset": ["+1h", "-2h"], "partition": ["eu", "us"]}
    pq.write_table(pa.table(columns), tmp_path / "in.parquet")
    with pytest.raises(JobFailed, match=r"in\.parquet: column 'partition'"):
        import_(spark, tmp_path / "in.parquet", empty, topic="t", partitions=1)
    assert_untouched(empty)
    import_(spark, tmp_path / "in.parquet", empty, topic="t", repartition=True)
    assert values(empty, "t-0") == [b"a", b"b"]


def test_partitions_are_those_of_the_files_or_follow_from_the_keys(
    spark: SparkSession, log: Path, empty: Path, tmp_path: Path
) -> None:
    """With another topic the partitions follow from the keys, or are those of the files, which may be too many."""
    topic = "snappy.log"
    export(spark, log, tmp_path / "out", topics=[topic])
    with Store(empty) as store:
        store.create("one-0")
    with pytest.raises(JobFailed, match="logfs create LOGDIR/one-1"):
        import_(spark, tmp_path / "out", empty, topic="one")
    assert_untouched(empty)
    import_(spark, tmp_path / "out", empty, topic="many", partitions=7, repartition=True)
    found = contents(empty)
    where: dict[bytes, set[str]] = {}
    for name, rows in found.items():
        for row in rows:
            if row[1] is not None:
                where.setdefault(row[1], set()).add(name)
    assert len(found) > 3
    assert {len(each) for each in where.values()} == {1}
    before = [row[1:] for name, rows in contents(log).items() if topic in name for row in rows]
    after = [row[1:] for rows in found.values() for row in rows]
    assert sorted(map(repr, after)) == sorted(map(repr, before))


@given(seed=st.integers(0, 2**32))
def test_merging_keeps_the_order_of_offsets_and_of_files(seed: int) -> None:
    """Merged rows are in the order of the offsets over all files, and in the order of each file.

    Within a file this holds even where its offsets do not ascend.
    """
    chosen = random.Random(seed)
    count = chosen.randrange(1, 60)
    sorted_files = chosen.random() < 0.7
    files: list[list[int]] = [[] for _ in range(chosen.randrange(1, 6))]
    for offset in range(count):
        chosen.choice(files).append(offset)
    if not sorted_files:
        for file in files:
            chosen.shuffle(file)
    rows = {str(number): file for number, file in enumerate(files) if file}
    name = frozenset([("t", 0)])
    portions = [FileRange(path, 0, 1, 1, name, (file[0], max(file))) for path, file in rows.items()]
    groups = in_order(portions)
    assert sorted(portion.path for group in groups for portion in group) == sorted(rows)

    def read(portion: FileRange) -> Iterator[pa.RecordBatch]:
        file = rows[portion.path]
        while file:
            size = chosen.randrange(1, 8)
            part, file = file[:size], file[size:]
            yield pa.record_batch({"offset": part, "path": [portion.path] * len(part)})

    found = [
        (row["offset"], row["path"])
        for group in groups
        for some in merged(group, read)
        for row in some.to_pylist()
    ]
    for path, file in rows.items():
        assert [offset for offset, its in found if its == path] == file
    if sorted_files:
        assert [offset for offset, _ in found] == list(range(count))


# Errors.


@pytest.mark.parametrize(
    ("name", "text", "options", "message"),
    [
        ("a.jsonl", "{}\n", {}, r"a\.jsonl, line 1: \"value\" is missing"),
        ("a.jsonl", ENVELOPE % 0 + "{", {}, r"line 2: not JSON"),
        ("a.jsonl", ENVELOPE % 0 + "\n", {}, r"line 2: not JSON"),
        ("a.jsonl", '{"id":1}\n', {}, "unknown field 'id'.*format text"),
        ("a.jsonl", '{"topic":7,"value":""}\n', {}, 'line 1: "topic" must be a string'),
        ("a.jsonl", '{"partition":-1,"value":""}\n', {}, 'line 1: "partition" must be an integer'),
        ("a.txt", '{"k":1}\nx\n', {"format": "text", "topic": "t", "key": "k"}, "line 2: .*'k'"),
        (
            "a.txt",
            f'{{"k":1}}\n{{"k":{"[" * 1000}{"]" * 1000}}}\n',
            {"format": "text", "topic": "t", "key": "k"},
            "line 2: .*'k'",
        ),
        ("a.txt", "x" * 2_000_000, {"format": "text", "topic": "t"}, r"a\.txt: .*1048588"),
        ("a.txt.gz", "text", {"format": "text", "topic": "t"}, r"a\.txt\.gz: "),
        ("a.parquet", "text", {"format": "parquet"}, r"a\.parquet: "),
    ],
)
def test_malformed_files_are_named(
    spark: SparkSession,
    empty: Path,
    tmp_path: Path,
    name: str,
    text: str,
    options: dict[str, Any],
    message: str,
) -> None:
    """An error names the file and the line, and nothing is committed, not even from a good file beside it."""
    with Store(empty) as store:
        store.create("t-0")
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / name).write_text(text)
    options = {"format": "json", **options}
    if options["format"] == "parquet":
        pq.write_table(pa.table({"value": ["good"]}), folder / "0.parquet")
        options["topic"] = "t"
    else:
        (folder / "0.txt").write_text(ENVELOPE % 0 if options["format"] == "json" else '{"k":1}\n')
    with pytest.raises(JobFailed, match=message):
        import_(spark, folder, empty, **options)
    assert_untouched(empty)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"format": "csv"}, "give one of parquet, json, text"),
        ({"format": "json", "key": "id"}, "has its own key"),
        ({"format": "text"}, "topic: lines of text contain no topic"),
        ({"format": "text", "topic": "t", "value": "v"}, "names a column of a Parquet file"),
        ({"format": "text", "topic": "t", "key": "k", "key_separator": ","}, "cannot be combined"),
        ({"partitions": 0}, "give 1 or more"),
        ({}, "has no topic for its records"),
        ({"topic": "t"}, "has no topic 't'"),
        ({"topic": "../t", "partitions": 1}, "'../t' contains '/'"),
        ({"topic": "t", "key": "id", "partitions": 1}, "has no column 'id' for the key"),
    ],
)
def test_invalid_options_are_refused_with_a_message(
    spark: SparkSession, empty: Path, tmp_path: Path, options: dict[str, Any], message: str
) -> None:
    """Invalid options are refused with an error that says what to do, and nothing is created."""
    pq.write_table(pa.table({"value": ["v"]}), tmp_path / "in.parquet")
    with pytest.raises(LogfsError, match=message):
        import_(spark, tmp_path / "in.parquet", empty, **options)
    assert list(empty.iterdir()) == []


def test_missing_files_are_an_error(spark: SparkSession, empty: Path, tmp_path: Path) -> None:
    """A pattern without files is an error, and so is a directory without files."""
    with pytest.raises(FileNotFoundError, match="nowhere"):
        import_(spark, tmp_path / "nowhere*", empty)
    with pytest.raises(InvalidSetting, match="no files to import"):
        import_(spark, empty, empty)


def test_files_are_found_in_order(tmp_path: Path) -> None:
    """A directory stands for all files below it that are not hidden. Each file is found once."""
    for name in ("b/2", "b/1", "a", "_temporary/x", ".y", "b/_SUCCESS"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    found = find_files([str(tmp_path), f"{tmp_path}/b/*"])
    assert [name.removeprefix(str(tmp_path)) for name in found] == [
        "/a", "/b/1", "/b/2", "/b/_SUCCESS",
    ]  # fmt: skip


# Mounts and commands.


def test_export_and_import_through_a_mount(
    spark: SparkSession, log: Path, tmp_path: Path, make_mount: Callable[..., Mount]
) -> None:
    """With the path of a mount, partitions are created through it, and the records can be read there at once."""
    need_fuse()
    mount = make_mount()
    export(spark, log, tmp_path / "out")
    import_(spark, tmp_path / "out", mount.path, partitions=1)
    wanted = contents(log)
    for name, rows in wanted.items():
        values = b"".join((row[2] or b"") + b"\n" for row in rows)
        assert (mount.path / name / "records").read_bytes() == values
    export(spark, mount.path, tmp_path / "again", topics=["zstd.log"])
    mount.stop()
    assert contents(tmp_path / "log") == wanted


def test_export_and_import_by_the_command_line(log: Path, empty: Path, tmp_path: Path) -> None:
    """The commands `export` and `import` print what they did."""
    out = tmp_path / "out"
    topics = ["uncompressed.log", "snappy.log"]
    session = ("--master", "local[1]", "--conf", "spark.driver.memory=512m")
    exported, imported = commands.run(
        tmp_path,
        ("export", log, out, "--topics", ",".join(topics), "--format", "json", *session),
        ("import", out, empty, "--format", "json", "--partitions", 1, *session),
    )
    assert exported.returncode == 0, exported.stderr
    assert re.fullmatch(rf"{out}: [0-9]+ files, 1600 records, [0-9]+ bytes\n", exported.stdout)
    assert imported.returncode == 0, imported.stderr
    assert "snappy.log-2: 0..400\nuncompressed.log-0: 0..400\n" in imported.stdout
    wanted = contents(log)
    assert contents(empty) == {
        name: rows for name, rows in wanted.items() if name.rpartition("-")[0] in topics
    }


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ("export", "one"),
            "one: is the only path; give one or more log directories, and a directory for the files",
        ),
        (("export", "a", "b", "-o", "x"), "-o 'x': give an option as NAME=VALUE"),
        (("import", "one"), "one: is the only path; give one or more sources, and a log directory"),
    ],
)
def test_incomplete_command_lines_are_refused(
    words: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """An incomplete command line is refused in one line, before Spark starts."""
    assert main(["spark", *words]) == 2
    assert capsys.readouterr().err == f"logfs: {message}\n"


# Imports with an id, and log directories that are missing.


def test_an_import_with_an_id_is_done_once(
    spark: SparkSession, tmp_path: Path, empty: Path
) -> None:
    """A second import with the same id changes nothing; another id, and no id, import again."""
    lines = tmp_path / "lines.txt"
    lines.write_text("one\ntwo\n")

    def run(**words: Any) -> int:
        done = import_(spark, lines, empty, format="text", topic="t", partitions=1, **words)
        assert done.already == (not done.records)
        return done.records

    assert [run(id="a"), run(id="a"), run(id="b"), run()] == [2, 0, 2, 2]
    lines.write_text("other\n")
    assert run(id="a") == 0
    with Store(empty, read_only=True) as store:
        assert [record.value for record in store["t-0"].read()] == [b"one", b"two"] * 3


def test_an_import_that_dies_once_decided_is_done_by_the_next(
    spark: SparkSession, tmp_path: Path, empty: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the driver dies between the decision and the work, the same id finishes it, and does not repeat it."""
    lines = tmp_path / "lines.txt"
    lines.write_text("one\ntwo\n")
    words: dict[str, Any] = {"format": "text", "topic": "t", "partitions": 1, "id": "a"}
    with monkeypatch.context() as patched:
        patched.setattr(Commits, "_land", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(BaseException):  # noqa: B017, PT011
            import_(spark, lines, empty, **words)
    assert import_(spark, lines, empty, **words).already
    with Store(empty, read_only=True) as store:
        assert [record.value for record in store["t-0"].read()] == [b"one", b"two"]


def test_a_missing_log_directory_is_created_or_named_at_once(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Without `partitions`, a missing log directory is an error before any work; with them it is created."""
    lines = tmp_path / "lines.txt"
    lines.write_text("one\n")
    started: list[tuple[int, int]] = []
    target = tmp_path / "log"
    words: dict[str, Any] = {"format": "text", "topic": "t"}
    with pytest.raises(InvalidStore, match="log does not exist"):
        import_(spark, lines, target, progress=lambda *each: started.append(each), **words)
    assert not started
    assert not target.exists()
    assert import_(spark, lines, f"file:{target}", partitions=1, **words).records == 1
    with pytest.raises(InvalidSetting, match="id is empty: give a name"):
        import_(spark, lines, target, id=" ", **words)
