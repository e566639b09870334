"""Topics and several partitions at the prompt: which records, in which order, and what they must contain."""

from __future__ import annotations

import random
import re
import subprocess
import sys
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from logfs.cli.human_times import moment
from logfs.errors import InvalidName
from logfs.format.batches.record import Record
from logfs.log.read.merge import MergedRows, last, merge, rising
from logfs.store.store import Store
from tests.support.command_line import call, fails, misused, ok
from tests.support.processes import wait_for

if TYPE_CHECKING:
    from pathlib import Path

NOW = int(datetime(2026, 11, 25, 12, 30, 15, tzinfo=UTC).timestamp() * 1000)
COUNT = 400


@pytest.fixture
def topic(log_dir: Path) -> list[tuple[int, Record]]:
    """Three partitions of `orders`, whose times go back and forth; the records in the order of a merged read."""
    chance = random.Random(1)
    found: list[tuple[int, int, int, Record]] = []
    with Store(log_dir) as store:
        for number in range(3):
            orders = store.create(f"orders-{number}")
            reached = -1
            for start in range(0, COUNT, 20):
                records = [
                    Record(
                        b"value %d-%d" % (number, n),
                        None if n % 3 else b"key %d" % (n % 5),
                        [("source", b"%d" % (n % 4))] if n % 2 else (),
                        NOW + n * 10 + chance.randrange(-100, 100),
                    )
                    for n in range(start, start + 20)
                ]
                orders.append(records)
                for n, record in enumerate(records, start):
                    reached = max(reached, record.timestamp or -1)
                    found.append((reached, number, n, record))
        store.create("orders-2024-0").append([b"another topic"])
    found.sort(key=lambda each: each[:3])
    return [(number, record) for _, number, _, record in found]


def test_a_topic_is_merged_by_time(log_dir: Path, topic: list[tuple[int, Record]]) -> None:
    """In every form; each partition keeps its order, and a topic of a longer name is another one."""
    values = [record.value for _, record in topic]
    assert ok("cat", f"{log_dir}/orders").encode() == b"".join(b"%s\n" % value for value in values)
    shown = ok("cat", f"{log_dir}/orders", "-F", "%p %s\\n").splitlines()
    assert shown == [f"{number} {(record.value or b'').decode()}" for number, record in topic]
    lines = ok("cat", f"{log_dir}/orders", "-J").splitlines()
    assert [orjson.loads(line)["value"].encode() for line in lines] == values
    two = ok("cat", str(log_dir), "orders-0,orders-2", "-F", "%p").strip()
    assert two == "".join(str(number) for number, _ in topic if number != 1)
    assert ok("cat", f"{log_dir}/orders", "-n", "7").encode() == b"".join(
        b"%s\n" % value for value in values[:7]
    )
    for count in (0, 1, 10, 350, 2000):
        expected = values[len(values) - count :] if count < len(values) else values
        assert ok("tail", f"{log_dir}/orders", "-n", str(count)).encode() == b"".join(
            b"%s\n" % value for value in expected
        )
    assert ok("cat", f"{log_dir}/orders-2024") == "another topic\n"


@pytest.mark.parametrize(
    ("words", "admits"),
    [
        (("--key", "key 3"), lambda r: r.key == b"key 3"),
        (("--key", ""), lambda r: r.key == b""),
        (("--grep", "7$"), lambda r: re.search(b"7$", r.value)),
        (("--grep", "^value 1"), lambda r: r.value.startswith(b"value 1")),
        (("--header", "source"), lambda r: r.headers),
        (("--header", "source=3"), lambda r: ("source", b"3") in r.headers),
        (
            ("--grep", "5", "--key", "key 0", "--header", "source=1"),
            lambda r: b"5" in r.value and r.key == b"key 0" and ("source", b"1") in r.headers,
        ),
    ],
)
def test_filters(
    log_dir: Path, topic: list[tuple[int, Record]], words: tuple[str, ...], admits: object
) -> None:
    """They hold for few and for many records, with every form, with `cat -n`, and counted from the end by `tail`."""
    assert callable(admits)
    wanted = [record.value for _, record in topic if admits(record)]
    target = f"{log_dir}/orders"
    lines = b"".join(b"%s\n" % value for value in wanted)
    assert ok("cat", target, *words).encode() == lines
    assert ok("cat", target, *words, "-F", "%s\\n").encode() == lines
    assert ok("cat", target, *words, "-n", "3").encode() == b"".join(
        b"%s\n" % value for value in wanted[:3]
    )
    assert ok("tail", target, *words, "-n", "3").encode() == b"".join(
        b"%s\n" % value for value in wanted[-3:]
    )
    few = [r.value for number, r in topic if number == 1 and admits(r)]
    one = [value for value in few if value in {b"value 1-%d" % n for n in range(40)}]
    assert ok("cat", f"{target}-1", "-o", "..40", *words).encode() == b"".join(
        b"%s\n" % value for value in one
    )


@pytest.mark.parametrize(
    ("offsets", "expected"),
    [
        ("0", range(1)),
        ("earliest", range(1)),
        ("latest", range(COUNT - 1, COUNT)),
        ("-3", range(COUNT - 3, COUNT)),
        ("-3..", range(COUNT - 3, COUNT)),
        ("-3..-1", range(COUNT - 3, COUNT - 1)),
        ("earliest..latest", range(COUNT)),
        ("latest..", range(COUNT - 1, COUNT)),
        ("10..12", range(10, 12)),
        ("..-390", range(10)),
        ("390..", range(390, COUNT)),
    ],
)
def test_offsets_by_name(
    log_dir: Path, topic: list[tuple[int, Record]], offsets: str, expected: range
) -> None:
    """`earliest`, `latest` and counts from the end, alone and in ranges; of a topic, in each partition."""
    found = ok("cat", f"{log_dir}/orders-1", "-o", offsets, "-F", "%o ").split()
    assert found == [str(n) for n in expected]
    of_all = ok("cat", f"{log_dir}/orders", "-o", offsets, "-F", "%p-%o ").split()
    assert sorted(of_all) == sorted(f"{number}-{n}" for number in range(3) for n in expected)


def test_since_and_until(log_dir: Path, topic: list[tuple[int, Record]]) -> None:
    """They bound each partition by its first record at or after a time, also beside offsets."""
    since, until = NOW + 1000, NOW + 2000
    with Store(log_dir, read_only=True) as store:
        expected = []
        for number in range(3):
            reader = store[f"orders-{number}"]
            first, end = (reader.offset_for_time(time) for time in (since, until))
            assert first is not None
            assert end is not None
            expected += [f"{number}-{n}" for n in range(first.offset, end.offset)]
    words = ("--since", str(since), "--until", "2026-11-25T12:30:17Z", "-F", "%p-%o ")
    assert sorted(ok("cat", f"{log_dir}/orders", *words).split()) == sorted(expected)
    both = ok("cat", f"{log_dir}/orders", "-o", "120..", *words).split()
    assert sorted(both) == sorted(each for each in expected if int(each[2:]) >= 120)
    for wrong in (("--since", "whenever"), ("-t", "soonish..")):
        assert "is not a time" in misused("cat", f"{log_dir}/orders", *wrong)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1638100400000", "2021-11-28T11:53:20"),
        ("2026-11-20", "2026-11-20T00:00:00"),
        ("2026-11-20T10:00:00+02:00", "2026-11-20T08:00:00"),
        ("10 minutes ago", "2026-11-25T12:20:15"),
        ("90s ago", "2026-11-25T12:28:45"),
        ("an hour ago", "2026-11-25T11:30:15"),
        ("2 days ago", "2026-11-23T12:30:15"),
        ("now", "2026-11-25T12:30:15"),
        ("today", "2026-11-25T00:00:00"),
        ("yesterday", "2026-11-24T00:00:00"),
        ("yesterday 14:00", "2026-11-24T14:00:00"),
        ("14:00", "2026-11-24T14:00:00"),
        ("monday", "2026-11-23T00:00:00"),
    ],
)
def test_human_times(text: str, expected: str) -> None:
    """Words are relative to now, everything is in UTC, and a day is its first moment."""
    wanted = datetime.fromisoformat(expected).replace(tzinfo=UTC).timestamp() * 1000
    assert moment(text, NOW) == wanted


@pytest.mark.parametrize("text", ["", "soonish", "2026-13-01", "-5"])
def test_what_is_no_time(text: str) -> None:
    """It is an error that says what a time may be."""
    with pytest.raises(InvalidName, match="ISO 8601"):
        moment(text, NOW)


STREAMS = st.lists(
    st.lists(st.lists(st.integers(-1, 20), min_size=1, max_size=90), max_size=4), max_size=4
)


@given(STREAMS, st.integers(0, 40))
def test_the_merge_is_a_sort(streams: list[list[list[int]]], count: int) -> None:
    """By the greatest time so far, the log, and the offset, however the rows come."""
    import numpy as np

    def rows(number: int, chunks: list[list[int]]) -> list[MergedRows]:
        found, offset, reached = [], 0, -1
        for chunk in chunks:
            times = rising([Record(b"", timestamp=time) for time in chunk], reached)
            reached = int(times[-1])
            texts = [b"%d:%d " % (number, offset + n) for n in range(len(times))]
            offset += len(times)
            found.append(
                MergedRows(
                    times,
                    np.frombuffer(b"".join(texts), np.uint8),
                    np.cumsum([len(text) for text in texts]),
                )
            )
        return found

    expected = []
    for number, chunks in enumerate(streams):
        reached = -1
        for offset, time in enumerate(time for chunk in chunks for time in chunk):
            reached = max(reached, time)
            expected.append((reached, number, offset))
    words = [b"%d:%d " % (number, offset) for _, number, offset in sorted(expected)]
    merged = [*merge([rows(number, chunks) for number, chunks in enumerate(streams)])]
    assert b"".join(each.text.tobytes() for each in merged) == b"".join(words)
    ends = last(merged, count)
    assert b"".join(each.text.tobytes() for each in ends) == b"".join(
        words[max(len(words) - count, 0) :]
    )


def test_a_traceback_is_one_record(log_dir: Path) -> None:
    """By a pattern of its first line; through a pipe, it is there a second after its last line."""
    with Store(log_dir) as store:
        store.create("orders-0")
    text = b"2026 one\n2026 bad\nTraceback\n  File x\n\nError: 1\n2026 two\n"
    told = ok("append", f"{log_dir}/orders-0", "--start", "[0-9]{4}", stdin=text)
    assert told == "orders-0: 0..3\n"
    expected = "2026 bad\nTraceback\n  File x\n\nError: 1"
    assert ok("cat", f"{log_dir}/orders-0", "-o", "1", "-F", "%s") == expected
    words = [sys.executable, "-m", "logfs", "append", f"{log_dir}/orders-0", "--start", "[0-9]"]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        process.stdin.write(b"3 first\n  more\n")
        process.stdin.flush()
        target = f"{log_dir}/orders-0"
        wait_for(lambda: ok("cat", target, "-o", "latest", "-F", "%s") == "3 first\n  more", 30)
        process.stdin.close()
        assert process.wait(30) == 0
    for pattern in ("(", "a{99999999999999}", "(" * 5000):
        assert "not a Python regular expression" in misused("append", target, "--start", pattern)
    assert "leave out" in misused("append", target, "--start", "x", "--jsonl")


def test_every_name_that_kafka_allows(log_dir: Path) -> None:
    """Commands find topics whose names have dots and dashes, also where one name begins as another one does."""
    topics = ["a", "a.b", "a.b-0", "a-0", "a-0.b", "x.y_z-delete"]
    log_dir.mkdir()
    for topic in topics:
        ok("create", log_dir, topic, "-n", "2")
    for number, topic in enumerate(topics, 1):
        for partition in (f"{topic}-0", f"{topic}-1"):
            ok("append", log_dir, partition, stdin=b"%s\n" % partition.encode() * number)
    for number, topic in enumerate(topics, 1):
        # A name that is a partition's stands for that partition.
        is_partition = topic in ("a-0", "a.b-0")
        found = [topic] * (topics.index(topic[:-2]) + 1) if is_partition else []
        found = found or [f"{topic}-0"] * number + [f"{topic}-1"] * number
        for words in (("cat",), ("tail", "-n", "99"), ("consume", "-g", "g", "--idle-exit", "0")):
            shown = ok(*words, log_dir, topic).splitlines()
            assert sorted(shown) == sorted(found), (words, topic)
        done = ok("groups", log_dir, "--commit", "g", topic, "0").splitlines()
        assert len(done) == (1 if is_partition else 2)
    for topic in topics:
        ok("append", log_dir, topic, stdin=b"more\n")
        assert "more" in ok("cat", log_dir, topic).splitlines()
        ok("delete-records", log_dir, f"{topic}-0", "--before", "1")
        ok("delete", log_dir, f"{topic}-1")
        assert "has no partition" in fails("cat", log_dir, f"{topic}-1")


def test_names_that_are_unknown_suggest_others(log_dir: Path, topic: list[object]) -> None:
    """The nearest partition, topic, group, setting or command is named."""
    for wrong, right in (("order-0", "orders-0"), ("Orders", "orders"), ("orders-2042", "orders-")):
        said = fails("cat", log_dir, wrong)
        assert f"has no partition {wrong!r}; did you mean '{right}" in said
    assert "did you mean" not in fails("cat", log_dir, "zzz")
    assert "did you mean 'retention.ms'?" in fails(
        "config", log_dir, "--topic", "orders", "retention.m"
    )
    assert "did you mean 'log.retention.ms'?" in fails("config", log_dir, "log.retention.mss=1")
    for words in ([log_dir, "--topic", "order"], [log_dir / "order", "retention.ms=1d"]):
        assert "has no topic 'order'; did you mean 'orders'?" in fails("config", *words)
    said = misused("mount", "-o", "isolaton=read_committed", log_dir, log_dir.parent / "mnt")
    assert "did you mean 'isolation'?" in said
    ok("groups", log_dir, "--commit", "billing", "orders-0", "5")
    said = fails("groups", log_dir, "-g", "biling")
    assert said.endswith("has no group 'biling' with committed offsets; did you mean 'billing'?")


def test_json_of_every_table(log_dir: Path, topic: list[object]) -> None:
    """One object a line, with the numbers of the table."""
    ok("groups", log_dir, "--commit", "billing", "orders-0", "5")
    (row,) = map(orjson.loads, ok("groups", log_dir, "--json").splitlines())
    assert (row["group"], row["offset"], row["lag"]) == ("billing", 5, COUNT - 5)
    (row,) = map(
        orjson.loads, ok("config", log_dir / "orders", "retention.ms", "--json").splitlines()
    )
    assert row == {"name": "retention.ms", "value": "604800000", "source": "default"}
    assert len(ok("config", log_dir, "--json").splitlines()) > 30
    rows = {
        row["partition"]: row
        for row in map(orjson.loads, ok("top", log_dir, "--json").splitlines())
    }
    assert rows["orders-1"]["logEndOffset"] == COUNT
    assert rows["orders-0"]["lag"] == COUNT - 5
    rows = {
        row["partition"]: row
        for row in map(orjson.loads, ok("retain", "-n", log_dir, "--json").splitlines())
    }
    assert rows["orders-2"]["dropped"] == []
    assert "retention.ms" in rows["orders-2"]["stays"]
    assert ok("check", log_dir, "--json") == ""
    log = log_dir / "orders-1" / f"{0:020}.log"
    good = log.read_bytes()
    log.write_bytes(good[:-1] + b"?")
    done = call("check", log_dir, "--json")
    log.write_bytes(good)
    found = list(map(orjson.loads, done.stdout.splitlines()))
    assert done.returncode == 1
    assert any(each["severity"] == "error" and each["path"] == str(log) for each in found)


def test_what_a_retention_dropped_as_json(log_dir: Path) -> None:
    """The segments that were dropped, with the reason."""
    with Store(log_dir) as store:
        orders = store.create("orders-0")
        orders.append([Record(b"old", timestamp=1)])
        orders.roll(NOW)
        orders.append([b"new"])
    (row,) = map(orjson.loads, ok("retain", log_dir, "--json").splitlines())
    (dropped,) = row["dropped"]
    assert (dropped["file"], dropped["firstOffset"], dropped["nextOffset"]) == (
        f"{0:020}.log",
        0,
        1,
    )
    assert "retention.ms" in dropped["reason"]


def test_a_partition_or_a_topic_in_place_of_a_log_directory(
    log_dir: Path, topic: list[object]
) -> None:
    """`describe` shows it alone; `config` takes a topic; `orders-2024` is a topic of its own."""
    shown = ok("describe", log_dir / "orders").splitlines()[1:]
    assert [line.split()[0] for line in shown] == ["orders-0", "orders-1", "orders-2"]
    shown = ok("describe", log_dir / "orders-1").splitlines()[1:]
    assert [line.split()[0] for line in shown] == ["orders-1"]
    ok("config", log_dir / "orders", "retention.ms=2d")
    assert ok("config", log_dir, "--topic", "orders", "retention.ms").startswith(
        "retention.ms=172800000"
    )
    said = fails("config", log_dir / "orders-1", "retention.ms")
    assert f"is a partition, not a log directory; did you mean {log_dir}?" in said
    assert "does not exist" in fails("describe", log_dir / "order")
    for words in (["config", log_dir / "order", "retention.ms=1"], ["promote", log_dir / "order"]):
        assert "has no topic 'order'" in fails(*words)
    for words in ([log_dir / "orders"], [log_dir, "orders"]):
        assert "orders is not a mirror" in fails("promote", *words)
    ok("create", log_dir / "copy-0")
    with Store(log_dir) as store:
        store.settings.set_topic("copy", "logfs.mirror.source", "cluster")
    for wrong in ("orders", "nope", ""):
        fails("promote", log_dir, f"copy,{wrong}")
        assert "cluster" in ok("config", log_dir / "copy", "logfs.mirror.source")
    assert ok("promote", log_dir, "copy,copy") == "copy: is an ordinary topic now\n"
    for path in (log_dir, log_dir / "orders-1"):
        assert "name a mirrored topic, as in LOGDIR/TOPIC" in misused("promote", path)
