"""The command line: every command, its output, its exit code and its one line for an error."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import socket
import struct
import subprocess
import sys
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import orjson
import pytest
from crc32c import crc32c

import logfs
from logfs.cli import main
from logfs.cli.common import progress_bar
from logfs.errors import InvalidStore
from logfs.store.store import Store
from tests.support.command_line import call, fails, misused, ok
from tests.support.processes import stopped, wait_for
from tests.support.stores import abandon, assert_clean
from tests.support.terminal import Terminal

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.mounts import Mount

LOGFS = (sys.executable, "-m", "logfs")
NOON = 1638100400000


@pytest.fixture
def orders(log_dir: Path) -> Path:
    """A partition of ten records with known keys, values, headers and times, in five batches."""
    with Store(log_dir) as store:
        partition = store.create("orders-0")
        for number in range(0, 10, 2):
            partition.append(
                [
                    logfs.Record(
                        b"value %d" % n if n != 7 else None,
                        key=b"key %d" % n if n % 3 else None,
                        headers=[("h", b"%d" % n), ("x", None)] if n % 2 else [],
                        timestamp=NOON + n * 1000,
                    )
                    for n in (number, number + 1)
                ]
            )
    return log_dir / "orders-0"


VALUES = [f"value {n}" if n != 7 else "" for n in range(10)]


def lines(*numbers: int) -> str:
    """Return the values of some of the records, one per line."""
    return "".join(VALUES[number] + "\n" for number in numbers)


# Help and usage.


def test_help_and_version() -> None:
    """`logfs --help` lists every command, `logfs COMMAND --help` its options, and --version prints the version."""
    text = ok("--help")
    commands = [
        "mount",
        "umount",
        "status",
        "create",
        "delete",
        "undelete",
        "describe",
        "append",
        "cat",
        "tail",
        "dump",
        "check",
        "recover",
        "reindex",
        "config",
    ]
    for command in commands:
        assert f"\n  {command} " in text
        assert ok(command, "--help").startswith(f"usage: logfs {command} ")
    assert ok() == text
    assert ok("--version") == f"logfs {logfs.__version__}\n"


@pytest.mark.parametrize(
    "words",
    [
        ("frobnicate",),
        ("cat",),
        ("cat", "x-0", "--colour"),
        ("tail", "x-0", "-n", "many"),
        ("cat", "x-0", "--json", "--format", "%s"),
        ("mount",),
        ("check",),
        ("dump",),
    ],
)
def test_wrong_usage(words: tuple[str, ...]) -> None:
    """Wrong usage is exit code 2, and the usage is printed."""
    done = call(*words)
    assert done.returncode == 2
    assert done.stderr.startswith(b"usage: logfs")
    assert done.stdout == b""


def test_wrong_words_suggest_right_ones(orders: Path) -> None:
    """An unknown command or option is answered with the nearest one, and not with all."""
    for words, right in (
        (("tial", "x-0"), b"there is no command 'tial'; did you mean 'tail'?"),
        (("spark", "xport"), b"there is no command 'xport'; did you mean 'export'?"),
        (
            ("cat", orders, "--ofset", "3"),
            b"unrecognized arguments: --ofset 3; did you mean '--offset'?",
        ),
        (("retain", "--dryrun", orders.parent), b"--dryrun; did you mean '--dry-run'?"),
    ):
        done = call(*words)
        assert done.returncode == 2
        assert right in done.stderr
        assert len(done.stderr.splitlines()[-1]) < 150


# create, delete, describe.


def test_create(log_dir: Path) -> None:
    """`logfs create` creates a partition with settings of its topic, and with `-p` also the log directory."""
    assert (
        f"does not exist; a new log directory starts as an empty directory: mkdir -p {log_dir}"
        in (fails("create", log_dir / "orders-0"))
    )
    settings = ("-c", "compression.type=zstd", "-c", "retention.ms=5")
    printed = ok("create", "-p", log_dir / "orders-0", *settings)
    assert printed == f"{log_dir}/orders-0\n"
    assert ok("create", log_dir, "orders-1") == f"{log_dir}/orders-1\n"
    assert (log_dir / "orders-0/00000000000000000000.log").exists()
    shown = ok("config", log_dir, "--topic", "orders", "compression.type", "retention.ms")
    assert [line.split("  #")[0] for line in shown.splitlines()] == [
        "compression.type=zstd",
        "retention.ms=5",
    ]


def test_create_in_several_log_dirs(tmp_path: Path) -> None:
    """With several log directories a new partition goes to the one with the fewest."""
    one, two = tmp_path / "one", tmp_path / "deep/two"
    one.mkdir()
    assert "deep/two does not exist, nor does" in fails("create", one, two, "orders-0")
    assert list(one.iterdir()) == []
    ok("create", "-p", one, two, "orders-9")
    ok("delete", one, two, "orders-9")
    homes = [Path(ok("create", one, two, f"orders-{n}").strip()).parent for n in range(4)]
    assert homes == [one, two, one, two]
    assert_clean(one, two)


def test_create_errors(orders: Path, tmp_path: Path) -> None:
    """An existing partition, a bad name and a bad setting are refused, each in a line that says what and why."""
    before = ok("config", orders.parent, "--topic", "orders", "retention.ms")
    for words in ((), ("-c", "retention.ms=5")):
        assert "orders-0: the partition exists" in fails("create", orders, *words)
    assert ok("config", orders.parent, "--topic", "orders", "retention.ms") == before
    assert "no dash" in fails("create", tmp_path / "log/orders")
    assert "max.message.bytes" in fails(
        "create", tmp_path / "log/x-0", "-c", "max.message.bytes=-1"
    )
    assert "NAME=VALUE" in misused("create", tmp_path / "log/x-0", "-c", "retention.ms")
    assert "no.such" in fails("create", tmp_path / "log/x-0", "-c", "no.such=1")
    assert not (tmp_path / "log/x-0").exists()
    # A good setting beside a bad one is not set, and no log directory is created.
    both = ("-c", "retention.ms=77", "-c", "no.such=1")
    assert "no.such" in fails("create", tmp_path / "log/x-0", *both)
    assert "retention.ms=77" not in ok("config", orders.parent, "--topic", "orders")
    assert not [*orders.parent.glob("*x*")]
    assert "no.such" in fails("create", "-p", tmp_path / "new/x-0", *both)
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("s3://bucket/prefix/orders-0",), "bucket"),
        (("s3://bucket/a", "orders-0"), "bucket"),
        (("new/a/b",), "'b'"),
        (("new/topic",), "'topic'"),
        (("new/bad name?-0",), "bad name?"),
        (("new/q-0.abc-delete",), "q-0.abc-delete"),
        (("new/..-0",), "'..'"),
        (("new/q", "-n", "0"), "0"),
        (("new/q", "-n", "10001"), "10001"),
        (("new", "full", "q-0"), "full"),
        (("new", "newer/q-0"), "newer/q"),
    ],
)
def test_create_with_parents_makes_nothing_for_a_wrong_target(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], why: str
) -> None:
    """Neither a log directory for a wrong name, nor one beside a directory that is none."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "full").mkdir()
    (tmp_path / "full/file").touch()
    assert why in fails("create", "-p", *words)
    assert [path.name for path in tmp_path.iterdir()] == ["full"]


def test_delete(orders: Path, log_dir: Path) -> None:
    """`logfs delete` renames the directory to `-delete`, as Kafka does. For a minute `logfs undelete` undoes that."""
    whole = ok("cat", orders)
    told = ok("delete", orders)
    undo, until = re.fullmatch(
        rf"{orders}: deleted; '(logfs undelete {orders})' brings it back until (.*Z)\n", told
    ).groups()  # type: ignore[union-attr]
    left = datetime.fromisoformat(until) - datetime.now(UTC)
    assert timedelta(seconds=40) < left <= timedelta(seconds=60)
    assert not orders.exists()
    assert len(list(log_dir.glob("orders-0.*-delete"))) == 1
    assert "orders-0" in fails("delete", orders)
    assert "these can: orders-0" in fails("undelete", log_dir, "orders-7")
    assert ok(*undo.split()[1:]) == f"{orders}: is back\n"
    assert ok("cat", orders) == whole
    assert "there is no deleted partition" in fails("undelete", orders)
    ok("delete", log_dir, "orders")
    assert ok("undelete", log_dir, "orders") == f"{orders}: is back\n"


def test_describe(orders: Path, log_dir: Path) -> None:
    """`logfs describe` shows offsets and sizes of every partition."""
    ok("create", log_dir / "users-3")
    header, first, second = ok("describe", log_dir).splitlines()
    assert header.split()[:4] == ["PARTITION", "START", "END", "SIZE"]
    size = sum(path.stat().st_size for path in orders.glob("*.log"))
    assert first.split() == [
        "orders-0",
        "0",
        "10",
        str(size),
        "1",
        "2021-11-28T11:53:29.000Z",
        str(log_dir),
    ]
    assert second.split()[:4] == ["users-3", "0", "0", "0"]
    assert len(ok("describe", log_dir, "--topic-list", "users").splitlines()) == 2


def test_describe_json(orders: Path, log_dir: Path) -> None:
    """`logfs describe --json` prints the JSON line of kafka-log-dirs."""
    size = sum(path.stat().st_size for path in orders.glob("*.log"))
    assert ok("describe", log_dir, "--json") == (
        f'{{"brokers":[{{"broker":0,"logDirs":[{{"partitions":[{{"partition":"orders-0","size":{size},'
        f'"offsetLag":0,"isFuture":false}}],"error":null,"logDir":"{log_dir}"}}]}}],"version":1}}\n'
    )


# append.


def test_append_lines(orders: Path, tmp_path: Path) -> None:
    """`logfs append` reads lines from standard input or files, and prints their offsets."""
    assert ok("append", orders, stdin=b"a\n\nc") == "orders-0: 10..13\n"
    (tmp_path / "one").write_bytes(b"d\ne\n")
    (tmp_path / "two").write_bytes(b"f\n")
    printed = ok("append", orders, "-f", tmp_path / "one", "--file", tmp_path / "two")
    assert printed == "orders-0: 13..16\n"
    assert ok("cat", orders, "-o", "10..") == "a\n\nc\nd\ne\nf\n"
    assert ok("append", orders) == "", "nothing was appended"


def test_append_envelopes(orders: Path, log_dir: Path) -> None:
    """`logfs append --jsonl` reads what `logfs cat --json` prints."""
    ok("create", log_dir / "copy-0")
    envelopes = ok("cat", orders, "--json")
    assert (
        ok("append", log_dir / "copy-0", "--jsonl", stdin=envelopes.encode()) == "copy-0: 0..10\n"
    )
    copied = ok("cat", log_dir / "copy-0", "--json")
    assert copied.replace('"topic":"copy"', '"topic":"orders"') == envelopes


def test_append_errors(orders: Path, tmp_path: Path) -> None:
    """A refused record is a line on standard error; the records before it are appended and reported."""
    done = call("append", orders, "--jsonl", stdin=b'{"value":"a"}\n{"value":1}\n{"value":"b"}\n')
    assert done.returncode == 1
    assert done.stdout == b"orders-0: 10..11\n"
    assert b'logfs: standard input, line 2: orders-0: "value" must be a string' in done.stderr
    assert b"go on with 'tail -n +2 FILE | logfs append" in done.stderr
    done = call("append", orders, stdin=b"b\n" + b"x" * 2_000_000 + b"\n")
    assert done.returncode == 1
    assert done.stdout == b"orders-0: 11..12\n"
    assert b"max.message.bytes" in done.stderr
    assert ok("tail", orders, "-n", "2") == "a\nb\n"
    assert str(tmp_path / "none") in fails("append", orders, "-f", tmp_path / "none")
    assert "'logfs create' creates one" in fails("append", orders.with_name("users-0"))
    assert "nowhere does not exist" in fails("append", tmp_path / "nowhere/users-0")
    assert ok("append", orders, stdin=b"") == ""


@pytest.mark.parametrize("through", ["directory", "mount", "topic"])
def test_an_append_goes_on_after_a_refused_line(
    request: pytest.FixtureRequest, tmp_path: Path, through: str
) -> None:
    """The error has the file and the number of the line, and nothing is doubled if the rest is appended."""
    target = request.getfixturevalue("orders")
    if through == "mount":
        target = request.getfixturevalue("make_mount")().path / "orders-0"
    target = target.with_name("orders") if through == "topic" else target
    good = [b'{"value":"%d","key":"k"}\n' % number for number in range(5001)]
    file = tmp_path / "many.jsonl"
    before = len(ok("cat", target).splitlines())
    file.write_bytes(b"".join([*good[:2500], b'{"value":\n', *good[2501:]]))
    said = fails("append", target, "--jsonl", "-f", file)
    assert said.startswith(f"logfs: {file}, line 2501: ")
    rest = b"".join(file.read_bytes().splitlines(keepends=True)[2501:])
    ok("append", target, "--jsonl", stdin=rest)
    shown = ok("cat", target).splitlines()[before:]
    assert sorted(map(int, shown)) == [n for n in range(5001) if n != 2500]


def test_commands_beside_a_mount(mount: Mount) -> None:
    """Beside a mount, commands that need the directories alone are refused with its pid; the others work."""
    orders = mount.partition("orders-0")
    (orders / "append").write_bytes(b"a\nb\n")
    real = mount.log_dirs[0] / "orders-0"
    assert mount.process is not None
    for words in (("recover", mount.log_dirs[0]), ("reindex", real)):
        assert f"process {mount.process.pid} " in fails(*words)
    assert ok("cat", real) == "a\nb\n"
    assert ok("tail", real, "-n", "1") == "b\n"
    assert "orders-0" in ok("describe", mount.log_dirs[0])
    assert ok("check", mount.log_dirs[0]) == "clean\n"
    assert "log.retention.ms=" in ok("config", mount.log_dirs[0], "log.retention.ms")
    (log,) = (orders / "segments").glob("*.log")
    assert ok("dump", log).replace(str(log), "X") == ok("dump", real / log.name).replace(
        str(real / log.name), "X"
    )


# cat and tail.


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ((), range(10)),
        (("-o", "3"), [3]),
        (("--offset", "0"), [0]),
        (("-o", "3..6"), [3, 4, 5]),
        (("-o", "8.."), [8, 9]),
        (("-o", "..2"), [0, 1]),
        (("-o", "8..99"), [8, 9]),
        (("-o", "5..5"), []),
        (("-o", "-3"), [7, 8, 9]),
        (("-o=-3..",), [7, 8, 9]),
        (("-o-3",), [7, 8, 9]),
        (("-o", "-99"), range(10)),
        (("-t", f"{NOON}"), range(10)),
        (("-t", f"{NOON + 4001}"), range(5, 10)),
        (("-t", f"{NOON + 2000}..{NOON + 4000}"), [2, 3]),
        (("--time", "2021-11-28T11:53:28Z"), [8, 9]),
        (("-t", "2021-11-28T11:53:21Z..2021-11-28T11:53:23Z"), [1, 2]),
        (("-t", f"..{NOON + 1000}"), [0]),
        (("-t", f"{NOON * 2}"), []),
    ],
)
def test_cat(orders: Path, words: tuple[str, ...], expected: list[int]) -> None:
    """`logfs cat` prints records by offset, by time and by range, one value per line."""
    assert ok("cat", orders, *words) == lines(*expected)


def test_cat_json(orders: Path) -> None:
    """--json prints envelopes, one per line."""
    envelopes = [
        orjson.loads(line) for line in ok("cat", orders, "-o", "6..8", "--json").splitlines()
    ]
    assert envelopes == [
        {
            "topic": "orders",
            "partition": 0,
            "offset": offset,
            "timestamp": NOON + offset * 1000,
            "timestamp_type": "CreateTime",
            "key": key,
            "value": value,
            "headers": headers,
        }
        for offset, key, value, headers in (
            (6, None, "value 6", []),
            (7, "key 7", None, [["h", "7"], ["x", None]]),
        )
    ]


@pytest.mark.parametrize(
    ("form", "expected"),
    [
        (r"%o %s\n", "6 value 6\n7 \n"),
        ("%k=%S,%K;", "=7,-1;=-1,5;".replace(";=-1", ";key 7=-1")),
        (r"%t-%p\t%T%n", f"orders-0\t{NOON + 6000}\norders-0\t{NOON + 7000}\n"),
        (r"%h|\0%%\\", "|\0%\\h=7,x=NULL|\0%\\"),
    ],
)
def test_cat_format(orders: Path, form: str, expected: str) -> None:
    """A format string prints any part of a record."""
    assert ok("cat", orders, "-o", "6..8", "-F", form) == expected


@pytest.mark.parametrize("unbuffered", ["", "1"], ids=["", "PYTHONUNBUFFERED"])
def test_a_line_is_printed_in_one_call(orders: Path, unbuffered: str) -> None:
    """Lines of other threads and processes can stand before and after it, but not between it and its end."""
    # Such a pipe keeps the bytes of each call apart.
    reading, writing = os.pipe2(os.O_DIRECT)
    try:
        for words in (["config", orders, "segment.bytes"], ["cat", orders / "nothing"]):
            subprocess.run(
                [sys.executable, "-m", "logfs", *words],
                env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
                stdout=writing,
                stderr=writing,
                check=False,
            )
            assert os.read(reading, 4096).endswith(b"\n")
    finally:
        os.close(reading)
        os.close(writing)


def test_cat_errors(orders: Path, log_dir: Path, tmp_path: Path) -> None:
    """The error names what was not found, and where it was looked for."""
    assert "offset 10" in fails("cat", orders, "-o", "10") or "ends at 9" in fails(
        "cat", orders, "-o", "10"
    )
    assert "'x' is not an offset" in misused("cat", orders, "-o", "x")
    for time in ("soonish", "9999999999999999999"):
        assert f"{time!r} is not a time" in misused("cat", orders, "-t", time)
    assert "leave out --lines" in misused("cat", orders, "--newest", "k", "-n", "0")
    assert "leave out --grep" in misused("cat", orders, "--newest", "k", "--grep", "x")
    assert "users-0" in fails("cat", log_dir / "users-0")
    assert "users-0" in fails("cat", log_dir, "users-0")
    assert str(tmp_path / "nowhere") in fails("cat", tmp_path / "nowhere/orders-0")
    assert not (tmp_path / "nowhere").exists()


def test_cat_of_many(log_dir: Path) -> None:
    """A log of many records is printed completely, and a closed pipe causes no error message."""
    data = b"".join(b"line %d\n" % n for n in range(20_000))
    ok(
        "create",
        "-p",
        log_dir / "big-0",
        "-c",
        "segment.bytes=100000",
        "-c",
        "compression.type=snappy",
    )
    ok("append", log_dir / "big-0", stdin=data)
    assert ok("cat", log_dir / "big-0").encode() == data
    assert ok("cat", log_dir / "big-0", "-o", "12345..12445").encode() == b"".join(
        data.splitlines(keepends=True)[12345:12445]
    )
    assert len(ok("cat", log_dir / "big-0", "--json").splitlines()) == 20_000
    for words, first in (
        ("cat {}/big-0", b"line 0\n"),
        ("dump {}/big-0/*.log", b"Dumping "),
    ):
        shell = f"{' '.join(LOGFS)} {words.format(log_dir)} | head -n 1"
        done = subprocess.run(["sh", "-c", shell], capture_output=True, check=False)
        assert (done.stdout[: len(first)], done.stderr) == (first, b"")


def test_cat_names_records_that_leave_the_log(log_dir: Path) -> None:
    """Records that retention deletes while the output is read slowly are reported, and all others are printed."""
    with Store(log_dir) as store:
        store.settings.set_topic("orders", "segment.bytes", "100000")
        store.settings.set_topic("orders", "file.delete.delay.ms", "0")
        orders = store.create("orders-0")
        for first in range(0, 20_000, 100):
            orders.append([b"%d %s" % (n, b"x" * 100) for n in range(first, first + 100)])
        orders.flush()
        with subprocess.Popen(
            [*LOGFS, "cat", log_dir / "orders-0"],
            bufsize=0,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        ) as process:
            assert process.stdout is not None
            printed = process.stdout.read(1000)
            store.delete_records("orders-0", 15_000)
            store.retain()
            store.upkeep()
            rest, errors = process.communicate(timeout=60)
        shown = [int(line.split(b" ")[0]) for line in (printed + rest).splitlines()]
    match = re.search(rb"offsets (\d+) to (\d+) left the log", errors)
    assert match is not None, errors
    first, last = map(int, match.groups())
    assert last < 15_000
    assert shown == [*range(first), *range(last + 1, 20_000)]
    assert process.returncode == 1


def test_cat_past_damage(orders: Path, tmp_path: Path) -> None:
    """Damage is named on standard error, the good records around it are printed, and the exit code is 1."""
    copy = tmp_path / "copy/orders-0"
    shutil.copytree(orders, copy)
    log = copy / "00000000000000000000.log"
    data = bytearray(log.read_bytes())
    data[data.index(b"value 4")] ^= 1
    log.write_bytes(data)
    done = call("cat", copy)
    assert done.returncode == 1
    assert done.stdout.decode() == lines(0, 1, 2, 3, 6, 7, 8, 9)
    assert b"Traceback" not in done.stderr
    assert str(log).encode() in done.stderr
    done = call("check", copy.parent)
    assert done.returncode == 1
    assert f"error: {log}".encode() in done.stdout
    assert b"1 errors" in done.stdout


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ((), range(10)),
        (("-n", "3"), [7, 8, 9]),
        (("--lines", "1"), [9]),
        (("-n", "99"), range(10)),
        (("-n", "0"), []),
    ],
)
def test_tail(orders: Path, words: tuple[str, ...], expected: list[int]) -> None:
    """`logfs tail` prints the last records."""
    assert ok("tail", orders, *words) == lines(*expected)


def test_tail_forms(orders: Path) -> None:
    """`logfs tail` takes --json and format strings, too."""
    assert ok("tail", orders, "-n", "2", "-F", r"%o\n") == "8\n9\n"
    assert orjson.loads(ok("tail", orders, "-n", "1", "--json"))["offset"] == 9


def test_tail_follows(mount: Mount, tmp_path: Path) -> None:
    """`logfs tail -f` prints the records that a mount appends, and ends at once when it is interrupted."""
    orders = mount.partition("orders-0")
    (orders / "append").write_bytes(b"a\nb\n")
    out = tmp_path / "out"
    with out.open("wb") as file:
        process = subprocess.Popen(
            [*LOGFS, "tail", "-n", "1", "-f", mount.log_dirs[0] / "orders-0"],
            stdout=file,
            stderr=subprocess.PIPE,
        )
    try:
        wait_for(lambda: out.read_bytes() == b"b\n")
        (orders / "append").write_bytes(b"c\nd\n")
        wait_for(lambda: out.read_bytes() == b"b\nc\nd\n")
    finally:
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=20)
    assert (process.returncode, errors) == (-signal.SIGINT, b"")


@pytest.mark.parametrize("names", [["t-0"], ["t-0", "t-1"]])
def test_tail_follows_a_partition_that_is_created_again(
    log_dir: Path, tmp_path: Path, names: list[str]
) -> None:
    """It prints all records of the new one, also if another partition has kept the topic the same."""
    out = tmp_path / "out"
    with Store(log_dir) as store:
        for name in ("t-0", "t-1"):
            store.create(name)
        store.writable("t-0").append([b"old"] * 3)
        with out.open("wb") as file:
            process = subprocess.Popen([*LOGFS, "tail", "-f", log_dir / "t-0"], stdout=file)
        try:
            wait_for(lambda: out.read_bytes() == b"old\n" * 3)
            for name in names:
                store.delete(name)
            for name in names:
                store.create(name)
            store.writable("t-0").append([b"new"] * 5)
            wait_for(lambda: out.read_bytes() == b"old\n" * 3 + b"new\n" * 5)
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(timeout=20)


@pytest.mark.parametrize(("epoch", "texts", "first"), [(0, 4, 4), (1, 4, 0), (1, 60, 0)])
def test_tail_tells_of_a_truncation(
    log_dir: Path, tmp_path: Path, epoch: int, texts: int, first: int
) -> None:
    """It goes on where another leader epoch begins, also if the log has grown again, otherwise at the log end."""
    out, said = tmp_path / "out", tmp_path / "said"
    with Store(log_dir) as store:
        partition = store.create("t-0")
        partition.append([b"old"] * 50)
        with out.open("wb") as file, said.open("wb") as errors:
            words = [*LOGFS, "tail", "-n", "1", "-f", log_dir / "t-0"]
            process = subprocess.Popen(words, stdout=file, stderr=errors)
        try:
            wait_for(lambda: out.read_bytes() == b"old\n")
            with stopped(process.pid):
                store.truncate("t-0", 20)
                if epoch:
                    partition.epochs.assign(epoch, 0)
                partition.append([b"new"] * texts)
            message = f"truncated below 50, up to which it was printed: it continues at {first}\n"
            wait_for(lambda: said.read_text().endswith(message))
            partition.append([b"after"])
            wait_for(lambda: out.read_bytes().endswith(b"after\n"))
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(timeout=20)
    assert out.read_bytes() == b"old\n" + b"new\n" * (texts - first) + b"after\n"


def test_tail_goes_on_without_a_deleted_partition(log_dir: Path, tmp_path: Path) -> None:
    """It follows the others, tells that one was deleted, and prints it again once it is created again."""
    out, said = tmp_path / "out", tmp_path / "said"
    with Store(log_dir) as store:
        for name in ("a-0", "b-0"):
            store.create(name).append([name.encode()])
        with out.open("wb") as file, said.open("wb") as errors:
            words = [*LOGFS, "tail", "-f", log_dir / "a-0,b-0"]
            process = subprocess.Popen(words, stdout=file, stderr=errors)
        try:
            wait_for(lambda: len(out.read_bytes().split()) == 2)
            store.delete("a-0")
            wait_for(lambda: said.read_bytes() == b"logfs: a-0: the partition was deleted\n")
            store.writable("b-0").append([b"more"])
            wait_for(lambda: out.read_bytes().endswith(b"more\n"))
            store.create("a-0").append([b"again"])
            wait_for(lambda: out.read_bytes().endswith(b"again\n"))
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(timeout=20)


def test_tail_ends_with_its_reader(orders: Path) -> None:
    """`tail -f | head` ends when head has ended, without waiting for another record."""
    ok("append", orders, stdin=b"a\nb\n")
    command = f"{shlex.join(LOGFS)} tail -f {orders} | head -n 1"
    done = subprocess.run(["sh", "-c", command], capture_output=True, check=False, timeout=60)
    assert (done.stdout, done.stderr) == (b"value 2\n", b"")


def test_tail_ends_with_the_other_end_of_a_socket(orders: Path) -> None:
    """Standard output may be a socket, as under inetd: `tail -f` ends once the peer has closed it."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        process = subprocess.Popen(
            [*LOGFS, "tail", "-f", orders], stdout=theirs, stderr=subprocess.PIPE
        )
        theirs.close()
        assert ours.recv(8)
        ours.close()
        _, errors = process.communicate(timeout=60)
    assert errors == b""


# dump.


def batches_of(log: Path) -> list[dict[str, int]]:
    """Return the header fields of a log's batches, parsed by hand (kafka-storage 2.1)."""
    data = log.read_bytes()
    found = []
    position = 0
    while position < len(data):
        base, length, epoch, magic, crc = struct.unpack_from(">qiibI", data, position)
        last_delta, _, maximum = struct.unpack_from(">iqq", data, position + 23)
        assert crc32c(data[position + 21 : position + 12 + length]) == crc
        found.append(
            {
                "base": base,
                "last": base + last_delta,
                "epoch": epoch,
                "position": position,
                "max": maximum,
                "size": length + 12,
                "magic": magic,
                "crc": crc,
            }
        )
        position += length + 12
    return found


BATCH_LINE = (
    "baseOffset: {base} lastOffset: {last} count: 2 baseSequence: -1 lastSequence: -1 producerId: -1 "
    "producerEpoch: -1 partitionLeaderEpoch: {epoch} isTransactional: false isControl: false "
    "deleteHorizonMs: OptionalLong.empty position: {position} CreateTime: {max} size: {size} magic: {magic} "
    "compresscodec: none crc: {crc} isvalid: true"
)


def record_line(number: int, *, data: bool) -> str:
    """Return what kafka-dump-log prints for a record of the `orders` fixture."""
    key, value = f"key {number}" if number % 3 else None, VALUES[number] or None
    line = (
        f"| offset: {number} CreateTime: {NOON + number * 1000} "
        f"keySize: {len(key) if key else -1} valueSize: {len(value) if value else -1} "
        f"sequence: -1 headerKeys: [{'h,x' if number % 2 else ''}]"
    )
    if data and key:
        line += f" key: {key}"
    if data and value:
        line += f" payload: {value}"
    return line


def test_dump_log(orders: Path) -> None:
    """`logfs dump` of a .log prints what kafka-dump-log prints."""
    log = orders / "00000000000000000000.log"
    batches = batches_of(log)
    assert [batch["base"] for batch in batches] == [0, 2, 4, 6, 8]
    head = [f"Dumping {log}", "Log starting offset: 0"]
    shallow = [*head, *(BATCH_LINE.format(**batch) for batch in batches)]
    assert ok("dump", log).splitlines() == shallow
    for option, data in (("--deep-iteration", False), ("--print-data-log", True)):
        deep = list(head)
        for batch in batches:
            deep.append(BATCH_LINE.format(**batch))
            deep += [record_line(n, data=data) for n in (batch["base"], batch["last"])]
        assert ok("dump", log, option).splitlines() == deep


def test_dump_json(orders: Path) -> None:
    """--json prints the same fields, one object per line, with header values."""
    log = orders / "00000000000000000000.log"
    found = [
        orjson.loads(line) for line in ok("dump", log, "--json", "--print-data-log").splitlines()
    ]
    batches = [each for each in found if "baseOffset" in each]
    records = [each for each in found if "offset" in each]
    assert [batch["crc"] for batch in batches] == [batch["crc"] for batch in batches_of(log)]
    assert [record["offset"] for record in records] == list(range(10))
    assert records[7]["headers"] == [["h", "7"], ["x", None]]
    assert records[7]["payload"] is None
    assert records[7]["key"] == "key 7"


def test_dump_indexes(log_dir: Path) -> None:
    """`logfs dump` of .index and .timeindex prints and checks their entries."""
    with Store(log_dir) as store:
        store.settings.set_topic("orders", "index.interval.bytes", "0")
        partition = store.create("orders-0")
        for number in range(20):
            partition.append([logfs.Record(b"value", timestamp=NOON + number)])
    stem = log_dir / "orders-0/00000000000000000000"
    index, times = stem.with_suffix(".index"), stem.with_suffix(".timeindex")
    entries = list(struct.iter_unpack(">ii", index.read_bytes()))
    assert len(entries) > 10
    assert ok("dump", index).splitlines() == [
        f"Dumping {index}",
        *(f"offset: {offset} position: {position}" for offset, position in entries),
    ]
    stamps = list(struct.iter_unpack(">qi", times.read_bytes()))
    assert len(stamps) > 10
    assert ok("dump", times).splitlines() == [
        f"Dumping {times}",
        *(f"timestamp: {timestamp} offset: {offset}" for timestamp, offset in stamps),
    ]
    for path in (index, times):
        printed = ok("dump", path, "--index-sanity-check")
        assert printed == f"Dumping {path}\n{path} passed sanity check.\n"
        assert ok("dump", path, "--verify-index-only") == f"Dumping {path}\n"


def test_dump_empty_index(orders: Path) -> None:
    """An index without entries is reported as empty."""
    index = orders / "00000000000000000000.index"
    assert index.stat().st_size == 0
    assert ok("dump", index) == f"Dumping {index}\n{index} is empty.\n"


def test_dump_damage(orders: Path, tmp_path: Path) -> None:
    """A batch with a wrong CRC is shown as not valid, and bytes that are no batch are counted."""
    copy = tmp_path / "00000000000000000000.log"
    data = bytearray((orders / copy.name).read_bytes())
    data[data.index(b"value 4")] ^= 1
    copy.write_bytes(data + b"half a batch")
    done = call("dump", copy)
    assert done.returncode == 1
    lines = done.stdout.decode().splitlines()
    assert [line.rpartition(" ")[2] for line in lines[2:7]] == [
        "true",
        "true",
        "false",
        "true",
        "true",
    ]
    assert lines[7] == f"Found 12 invalid bytes at the end of {copy.name}"


def test_dump_mismatches(orders: Path, tmp_path: Path) -> None:
    """An index entry that leads nowhere is reported as Kafka's tool reports it."""
    stem = tmp_path / "00000000000000000000"
    shutil.copy(orders / "00000000000000000000.log", stem.with_suffix(".log"))
    stem.with_suffix(".index").write_bytes(struct.pack(">ii", 3, 0))
    stem.with_suffix(".timeindex").write_bytes(struct.pack(">qi", NOON, 1))
    done = call("dump", stem.with_suffix(".index"), "--verify-index-only")
    assert done.returncode == 1
    assert done.stderr.decode().splitlines() == [
        f"Mismatches in :{stem}.index",
        "  Index offset: 3, log offset: 1",
    ]
    done = call("dump", stem.with_suffix(".timeindex"), "--verify-index-only")
    assert done.returncode == 1
    assert done.stderr.decode().splitlines() == [
        f"Found timestamp mismatch in :{stem}.timeindex",
        f"  Index timestamp: {NOON}, log timestamp: {NOON + 1000}",
    ]


def test_dump_errors(orders: Path, tmp_path: Path) -> None:
    """The error names the file that cannot be dumped, or the file that is missing."""
    unknown = orders / "partition.metadata"
    done = call("dump", unknown)
    assert (done.returncode, done.stderr.decode()) == (1, f"Ignoring unknown file {unknown}\n")
    assert "00000000000000000009.log" in fails("dump", orders / "00000000000000000009.log")
    (tmp_path / "00000000000000000000.index").touch()
    assert "00000000000000000000.log" in fails("dump", tmp_path / "00000000000000000000.index")


# check, recover, reindex.


def test_check(orders: Path, log_dir: Path, tmp_path: Path) -> None:
    """`logfs check` prints `clean` with exit code 0, and changes nothing."""
    before = {path: path.read_bytes() for path in log_dir.rglob("*") if path.is_file()}
    assert ok("check", log_dir) == "clean\n"
    assert {path: path.read_bytes() for path in log_dir.rglob("*") if path.is_file()} == before
    assert "nowhere does not exist" in fails("check", tmp_path / "nowhere")


def test_recover(orders: Path, log_dir: Path, tmp_path: Path) -> None:
    """`logfs recover` cuts off the part of a batch that a crash left, keeps its bytes, and reports it."""
    log = orders / "00000000000000000000.log"
    whole = log.read_bytes()
    (log_dir / ".kafka_cleanshutdown").unlink()
    log.write_bytes(whole + whole[:50])
    done = call("recover", log_dir)
    assert done.returncode == 0
    printed = done.stdout.decode().splitlines()
    assert printed[0] == "orders-0: 0..10"
    assert len(printed) == 2
    assert "cut a torn tail of 50 bytes" in printed[1]
    assert done.stderr.decode().splitlines() == [printed[1].strip()], "the warning, and once"
    assert log.read_bytes() == whole
    assert ok("cat", orders) == lines(*range(10))
    assert (log_dir / ".kafka_cleanshutdown").exists()
    assert "nowhere does not exist" in fails("recover", tmp_path / "nowhere")
    for path in orders.glob("*.torn"):
        path.unlink()


def test_reindex(orders: Path, log_dir: Path, tmp_path: Path) -> None:
    """`logfs reindex` rebuilds every index from the log."""
    for suffix in ("index", "timeindex", "textindex"):
        path = orders / f"00000000000000000000.{suffix}"
        path.write_bytes(b"\x7f" * 240)
    assert call("check", log_dir).returncode == 1
    assert ok("reindex", orders) == "orders-0: 1 segments, log end offset 10\n"
    assert ok("check", log_dir) == "clean\n"
    assert ok("cat", orders, "-t", f"{NOON + 8000}") == lines(8, 9)
    assert "users-0" in fails("reindex", log_dir, "users-0")


# config, status, umount.


def test_config(orders: Path, log_dir: Path) -> None:
    """`logfs config` shows values with their origin, sets them permanently, and resets them to the default."""
    assert ok("config", log_dir, "--topic", "orders", "retention.ms") == (
        "retention.ms=604800000  # default\n"
    )
    assert ok("config", log_dir, "log.retention.ms=1000") == ""
    assert (
        ok("config", log_dir, "log.retention.ms")
        == "log.retention.ms=1000  # broker log.retention.ms\n"
    )
    shown = ok("config", log_dir, "--topic", "orders", "retention.ms")
    assert shown.startswith("retention.ms=1000  # ")
    assert "log.retention.ms" in shown
    assert ok("config", log_dir, "--topic", "orders", "retention.ms=7", "retention.ms").startswith(
        "retention.ms=7  # "
    )
    ok("config", log_dir, "--topic", "orders", "retention.ms=")
    ok("config", log_dir, "log.retention.ms=")
    assert ok("config", log_dir, "--topic", "orders", "retention.ms").endswith("# default\n")
    everything = ok("config", log_dir, "--topic", "orders").splitlines()
    assert len(everything) > 30
    assert all("=" in line and "  # " in line for line in everything)
    assert len(ok("config", log_dir).splitlines()) > 30


def test_config_errors(orders: Path, log_dir: Path, tmp_path: Path) -> None:
    """An unknown setting or a value out of range is refused with what is allowed, and nothing is changed."""
    assert "give an integer" in fails("config", log_dir, "--topic", "orders", "segment.bytes=x")
    assert "no.such" in fails("config", log_dir, "no.such")
    assert "no.such" in fails("config", log_dir, "no.such=1")
    assert "nowhere does not exist" in fails("config", tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    for change in ("no.such=1", "log.retention.ms=x"):
        fails("config", tmp_path / "empty", change)
    assert os.listdir(tmp_path / "empty") == []
    for words in ((), ("retention.ms",), ("retention.ms=1",)):
        assert "has no topic 'nosuch'" in fails("config", log_dir, "--topic", "nosuch", *words)
    assert not (log_dir / "nosuch@p").exists()
    assert "segment.bytes=1073741824  # default" in ok("config", log_dir, "--topic", "orders")


def test_a_mountpoint_stands_for_its_log_directories(mount: Mount) -> None:
    """A command takes either path; one that needs the directories alone names the mount."""
    folder = mount.partition("orders-0")
    (folder / "append").write_bytes(b"a\nb\n")
    for top, partition in (
        (mount.path, folder),
        (mount.log_dirs[0], mount.log_dirs[0] / "orders-0"),
    ):
        assert ok("cat", partition) == ok("tail", top, "orders-0") == "a\nb\n"
        assert "orders" in ok("describe", top)
        assert ok("check", top) == "clean\n"
        assert "orders-0" in ok("retain", "--dry-run", top)
        assert "retention.ms" in ok("config", top, "--topic", "orders")
        assert ok("groups", top) == ok("groups", mount.path)
    for words in (("recover", mount.path), ("reindex", folder)):
        assert f"it is mounted at {mount.path}" in fails(*words), words
    assert (folder / "records").read_bytes() == b"a\nb\n"
    for read_only in (True, False):
        with pytest.raises(InvalidStore, match="is where logfs is mounted"):
            Store(mount.path, read_only=read_only)
    assert "errors      0" in ok("status", mount.path)


def test_a_missing_directory_is_not_created(tmp_path: Path) -> None:
    """A misspelt name is an error, and nothing of that name is created."""
    nowhere = tmp_path / "nowhere"
    for words in (("recover",), ("retain",), ("describe",), ("check",), ("config",), ("groups",)):
        assert "nowhere does not exist" in fails(*words, nowhere)
    for command in ("append", "compact", "delete", "reindex", "create", "cat", "tail"):
        assert "nowhere does not exist" in fails(command, nowhere / "orders-0")
    assert not nowhere.exists()


@pytest.mark.parametrize("command", ["recover", "retain"])
def test_a_log_directory_that_cannot_be_opened_is_a_failure(
    orders: Path, tmp_path: Path, command: str
) -> None:
    """The exit code is 1, but the command is executed for the other log directories."""
    done = call(command, orders.parent, tmp_path / ("x" * 300))
    assert done.returncode == 1
    assert b"orders-0" in done.stdout
    assert b"x" * 300 in done.stderr


@pytest.mark.parametrize("words", ["--offset=--", "--time=", "-t ''"])
def test_an_option_without_a_value_is_wrong_usage(orders: Path, words: str) -> None:
    """An empty value, as of a variable that is not set, does not stand for all records."""
    done = call("cat", *words.replace("''", "").split(" "), orders)
    assert (done.returncode, done.stdout) == (2, b"")
    assert b"Traceback" not in done.stderr


def test_characters_that_an_encoding_lacks_are_printed(orders: Path, tmp_path: Path) -> None:
    """Bytes of names and formats are printed as they are, characters as escapes; there is never a traceback."""
    done = subprocess.run(
        [*LOGFS, "groups", "--help"],
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0
    assert b"LOGDIR\\u2026" in done.stdout
    form = os.fsdecode(b"\xff%o\n")
    assert call("cat", "-F", form, "-o", "3", orders).stdout == b"\xff3\n"
    assert b"by\xff" in call("dump", tmp_path / os.fsdecode(b"by\xff")).stderr
    wrong = tmp_path / os.fsdecode(b"l\xff")
    assert os.fsencode(wrong) in call("cat", wrong / "a-0").stderr


def test_a_move_that_cannot_read_its_source_creates_nothing(orders: Path, tmp_path: Path) -> None:
    """The target directory stays as it is, and the error names the directory that cannot be read."""
    (tmp_path / "new").mkdir()
    (tmp_path / "file").write_bytes(b"")
    orders.rename(tmp_path / "kept")
    assert "orders-0" in fails("move", orders, "--to", tmp_path / "new")
    orders.parent.rename(tmp_path / "gone")
    assert "does not exist" in fails("move", orders, "--to", tmp_path / "new")
    assert os.listdir(tmp_path / "new") == []


def test_a_move_that_was_made_is_named_as_such(orders: Path, tmp_path: Path) -> None:
    """Also by the log directory that the partition has left: the files are removed there a minute later."""
    other = tmp_path / "other"
    other.mkdir()
    ok("move", orders, "--to", other)
    assert fails("move", orders, "--to", other).endswith(f"it is in {other} already")


def test_a_file_in_a_log_directory_is_no_partition(orders: Path) -> None:
    """A command for a plain file changes nothing: no marker, lock or checkpoint is written again."""
    log_dir = orders.parent
    name = ".kafka_cleanshutdown"

    def state() -> dict[str, int]:
        return {path.name: path.stat().st_mtime_ns for path in log_dir.iterdir()}

    before = state()
    assert name in before
    for command in ("append", "reindex", "compact", "delete"):
        assert "has no partition" in fails(command, log_dir / name)
    assert state() == before


def test_status_and_umount_errors(tmp_path: Path) -> None:
    """A directory where nothing is mounted has no status, and cannot be unmounted."""
    assert f"{tmp_path} holds no partitions: the directory is empty; no logfs is mounted" in (
        fails("status", tmp_path)
    )
    assert f"{tmp_path}: no logfs is mounted here" in fails("umount", tmp_path)


def test_a_mount_with_an_offline_partition(
    make_mount: Callable[..., Mount], orders: Path, log_dir: Path
) -> None:
    """A partition that cannot be loaded answers EIO, with the reason in `.logfs/errors`, and the others work."""
    ok("create", log_dir / "users-0")
    epochs = orders / "logfs.modes"
    epochs.write_bytes(b"{ not json")
    mount = make_mount(log_dirs=[log_dir])
    assert (mount.path / "users-0/append").exists()
    try:
        with pytest.raises(OSError, match=r"Errno 5\]"):
            os.listdir(mount.path / "orders-0")
        assert "logfs.modes" in mount.errors()
        (mount.path / "users-0/append").write_bytes(b"works\n")
        assert (mount.path / "users-0/records").read_bytes() == b"works\n"
        assert "users-0" in os.listdir(mount.path)
    finally:
        epochs.unlink()


@pytest.mark.parametrize(
    "words",
    [
        "check {}",
        "describe {}",
        "tail {}/a-0",
        "create {}/a-0",
        "config {} no.such=1",
        "mount {} {}",
    ],
)
def test_a_symlink_loop_is_an_error_of_one_line(tmp_path: Path, words: str) -> None:
    """A loop of symbolic links is no log directory, whatever the command."""
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    fails(*words.format(loop, loop).split(" "))


@pytest.mark.parametrize("command", ["consume", "groups"])
def test_the_name_of_a_group_is_utf_8(
    log_dir: Path, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Another name is refused at once, and not when something is to be committed."""
    with Store(log_dir) as store:
        store.create("orders-0").append([b"value"])
    with pytest.raises(SystemExit) as ended:
        main([command, "-g", os.fsdecode(b"\xff"), str(log_dir)])
    assert ended.value.code == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.endswith("-g/--group: b'\\xff' is not UTF-8\n")


def test_an_empty_path_is_no_mountpoint(tmp_path: Path) -> None:
    """An empty path, as of a variable that is not set, does not mount over the current directory."""
    done = call("mount", tmp_path / "log", "", cwd=tmp_path)
    assert done.returncode == 2
    assert b"the value is empty; is a variable unset" in done.stderr
    assert os.listdir(tmp_path) == []


def test_no_progress_in_a_pipe(log_dir: Path) -> None:
    """Long operations show no progress where standard error is not a terminal."""
    ok("create", "-p", log_dir / "big-0")
    assert ok("append", log_dir / "big-0", stdin=b"x" * 1000 * 1000 + b"\n") == "big-0: 0..1\n"
    assert (log_dir / ".kafka_cleanshutdown").exists(), "nothing is left to recover"
    ok("recover", log_dir)
    ok("check", log_dir)


@pytest.mark.drawn(2)
@pytest.mark.parametrize("words", ["append", "check", "recover", "reindex", "compact", "move"])
def test_progress_on_a_terminal(tmp_path: Path, words: str) -> None:
    """Long operations show their progress, in bytes."""
    one, other = tmp_path / "one", tmp_path / "other"
    for log_dir in (one, other):
        ok("create", "-p", log_dir / f"{log_dir.name}-0")
    ok("append", one / "one-0", stdin=b"x" * 100_000 + b"\n")
    ok("config", one, "--topic", "one", "cleanup.policy=compact")
    with Store(one) as store:
        store["one-0"].append([logfs.Record(b"value", b"key")])
    source = tmp_path / "lines"
    source.write_bytes(b"x" * 100_000 + b"\n")
    arguments: dict[str, tuple[object, ...]] = {
        "append": (other / "other-0", "-f", source),
        "reindex": (one / "one-0",),
        "compact": ("--roll", one / "one-0"),
        "move": (one, other, "one-0", "--to", other),
    }
    terminal = Terminal(*LOGFS, words, *arguments.get(words, (one,)))
    try:
        terminal.expect(f"{words.removesuffix('e')}ing".replace("reindex", "recover"))
        assert terminal.end() == 0, terminal.seen
        assert re.search(r"\d+%\|", terminal.seen)
    finally:
        terminal.close()


def test_a_progress_bar_starts_no_thread() -> None:
    """A monitor thread may fail to start when memory runs out, and the thread that starts it would wait for ever."""
    before = threading.enumerate()
    with progress_bar("working", 1) as bar:
        bar.update(1)
    assert threading.enumerate() == before


INTERRUPTED = """
import os, signal, sys

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == module:
            os.kill(os.getpid(), signal.SIGINT)

from logfs.__main__ import main
sys.meta_path.insert(0, Finder())
module = sys.argv.pop(1)
sys.exit(main())
"""


@pytest.mark.parametrize("command", ["check", "recover"])
@pytest.mark.parametrize(
    "module",
    ["logfs.cli", "argparse", "logfs.cli.{}", "orjson", "numpy", "logfs.log.segment.segment"],
)
def test_an_interrupt_while_modules_are_imported(orders: Path, module: str, command: str) -> None:
    """Ctrl-C ends a command without any output, however early it comes."""
    words = [INTERRUPTED, module.format(command), command, orders.parent]
    done = subprocess.run([sys.executable, "-c", *words], capture_output=True, check=False)
    # `recover` imports numpy when it runs: it then ends as after any later Ctrl-C.
    code = 130 if (module, command) == ("numpy", "recover") else -signal.SIGINT
    assert (done.returncode, done.stdout, done.stderr) == (code, b"", b"")


@pytest.mark.parametrize("command", ["groups", "recover"])
@pytest.mark.parametrize("module", ["numba", "logfs.format.kernels.batch_kernels"])
def test_an_interrupt_while_several_threads_recover_partitions(
    log_dir: Path, module: str, command: str
) -> None:
    """Ctrl-C during an import that all of the threads need is no error of a partition."""
    store = Store(log_dir)
    for number in range(4):
        # Small partitions are recovered one after the other.
        store.create(f"orders-{number}").append([b"x" * 500_000] * 4)
    abandon(store)
    # Interrupt when other threads may wait for the import.
    program = INTERRUPTED.replace("== module", "== module and not time.sleep(0.3)")
    words = [program.replace("import os", "import time, os"), module, command, log_dir]
    done = subprocess.run([sys.executable, "-c", *words], capture_output=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, b"", b"")


LOST = """
import os, signal, sys, time

class Freed:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGINT)
        for _ in range(1000):
            pass

class Input:
    left = [b"a line\\n"]

    @property
    def buffer(self):
        return self

    def fileno(self):
        return 0

    def read1(self, size):
        if self.left:
            return self.left.pop()
        Freed()
        time.sleep(60)
        raise AssertionError("nobody has heard the signal")

from logfs.cli import main
sys.stdin = Input()
sys.exit(main())
"""


def test_an_interrupt_while_an_object_is_freed(orders: Path) -> None:
    """Python discards an exception in `__del__`, and the command ends nevertheless."""
    words = [sys.executable, "-c", LOST, "append", orders]
    done = subprocess.run(words, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (130, b"")
    assert ok("cat", orders).endswith("a line\n")


def test_a_node_id_that_is_no_number_is_an_error(
    log_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`describe --json` prints one line about a damaged `meta.properties`, and no traceback."""
    with Store(log_dir) as store:
        store.create("orders-0")
    (log_dir / "meta.properties").write_text("version=1\ncluster.id=x\nnode.id=one\n")
    assert main(["describe", str(log_dir), "--json"]) == 1
    shown = capsys.readouterr()
    assert "meta.properties: the node id 'one' is not a number" in shown.err
    (log_dir / "meta.properties").unlink()


@pytest.mark.parametrize(
    "words", [("--help",), ("--version",), ("cat", "--help"), ("spark", "--help")]
)
@pytest.mark.parametrize(
    ("output", "why"), [(">&-", "Bad file descriptor"), (">/dev/full", "No space left on device")]
)
def test_a_help_that_cannot_be_printed(words: tuple[str, ...], output: str, why: str) -> None:
    """It ends with 1 and one line, as any command whose output cannot be written."""
    command = f"{shlex.join([*LOGFS, *words])} {output}"
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, f"logfs: standard output: {why}\n")


def test_help_imports_no_large_modules() -> None:
    """`logfs --help` imports neither numpy nor numba nor FUSE."""
    code = (
        "import sys; from logfs.cli import main\n"
        "try: main(['--help'])\n"
        "except SystemExit: pass\n"
        "print({'numpy', 'numba', 'pyfuse3', 'trio', 'logfs.store.store'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.endswith("\nset()\n")


@pytest.mark.parametrize(
    "words",
    [
        ("cat", "-n", "1"),
        ("cat", "-n", "0"),
        ("cat", "-n", "64"),
        ("cat", "-o", "5"),
        ("tail", "-n", "3"),
        ("describe",),
        ("append",),
    ],
)
def test_few_records_load_no_kernels(orders: Path, words: tuple[str, ...]) -> None:
    """Few records do not repay the time that compiled kernels and numpy take to load."""
    with Store(orders.parent, create=False) as store:
        store["orders-0"].append([b"x"] * 50_000)
    code = (
        "import sys; from logfs.cli import main\n"
        "code = main(sys.argv[1:])\n"
        "large = {'numpy._core', 'numba', 'pyfuse3', 'trio', 'importlib.metadata'}\n"
        "print(large & set(sys.modules), code)"
    )
    command, *rest = words
    done = subprocess.run(
        [sys.executable, "-c", code, command, str(orders), *rest],
        input="a line\n",
        capture_output=True,
        text=True,
        check=True,
    )
    # No record at all is printed before it, or some.
    printed = "" if rest == ["-n", "0"] else "\n"
    assert done.stdout.endswith(f"{printed}set() 0\n")
    assert bool(printed) == (done.stdout != "set() 0\n")
