"""`topics/`: topics as directories, and files that append to all partitions of a topic."""

from __future__ import annotations

import os
import subprocess
from collections import Counter
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING

import orjson
import pytest

from logfs.format.base.murmur2 import partition_of
from logfs.store.store import Store
from tests.support.batches import batch
from tests.support.command_line import fails, ok
from tests.support.processes import Threads, run, wait_for
from tests.support.requirements import need_root
from tests.support.stores import assert_clean

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.support.mounts import Mount


NOON = 1_638_100_400_000


@pytest.fixture
def mounted(log_dir: Path, make_mount: Callable[..., Mount]) -> Mount:
    """A mount whose new topics have three partitions."""
    with Store(log_dir) as store:
        store.settings.set_broker("num.partitions", "3")
    return make_mount()


def values(topic: Path, number: int) -> list[bytes]:
    """Return the lines of a partition, by its link."""
    return (topic / f"partitions/{number}/records").read_bytes().splitlines()


def test_a_topic_is_made_and_removed(mounted: Mount, log_dir: Path) -> None:
    """`mkdir` makes `num.partitions` partitions, which are the caller's; `rmdir` deletes them."""
    topic = mounted.path / "topics/orders"
    topic.mkdir()
    assert sorted(os.listdir(mounted.path)) == [
        ".logfs",
        *(f"orders-{n}" for n in range(3)),
        "topics",
    ]
    assert sorted(os.listdir(topic)) == [
        "append",
        "append.jsonl",
        "config",
        "groups",
        "partitions",
        "records",
        "records.jsonl",
    ]
    assert sorted(os.listdir(topic / "partitions")) == ["0", "1", "2"]
    assert os.readlink(topic / "partitions/2") == "../../../orders-2"
    assert os.path.samefile(topic / "partitions/2", mounted.path / "orders-2")
    with pytest.raises(FileExistsError):
        topic.mkdir()
    with pytest.raises(OSError, match="Invalid argument"):
        (mounted.path / "topics/a b").mkdir()
    (topic / "config/retention.ms").write_text("7200000\n")
    assert (mounted.path / "orders-1/config/retention.ms").read_text() == "7200000\n"
    topic.rmdir()
    assert os.listdir(mounted.path / "topics") == []
    assert not topic.exists()
    with pytest.raises(FileNotFoundError):
        topic.rmdir()
    for name in ("topics", ".logfs"):
        with pytest.raises(OSError, match="not permitted"):
            (mounted.path / name).rmdir()


def test_lines_and_envelopes(mounted: Mount, log_dir: Path) -> None:
    """Lines go anywhere, each once; records with a key to the partition of its hash; fsync makes all durable."""
    topic = mounted.path / "topics/orders"
    topic.mkdir()
    # Some forty batches: with fewer, one of the partitions may get none by chance.
    lines = [b"line %d" % n for n in range(60_000)]
    with (topic / "append").open("ab") as file:
        file.write(b"".join(line + b"\n" for line in lines))
        file.flush()
        os.fsync(file.fileno())
    found = [values(topic, number) for number in range(3)]
    assert all(found)
    assert sorted(line for part in found for line in part) == sorted(lines)
    with (topic / "append.jsonl").open("ab") as file:
        for n in range(100):
            file.write(b'{"key":"k%d","value":"keyed %d"}\n' % (n % 10, n))
    for number in range(3):
        keyed = [int(line[6:]) for line in values(topic, number) if line.startswith(b"keyed")]
        assert keyed == [n for n in range(100) if partition_of(b"k%d" % (n % 10), 3) == number]
    with pytest.raises(OSError, match="Invalid argument"), (topic / "append.jsonl").open("ab") as f:
        f.write(b"no envelope\n")
    assert "orders: not JSON" in mounted.errors()
    mounted.stop()
    assert_clean(log_dir)


def test_the_groups_of_a_topic(mounted: Mount, log_dir: Path) -> None:
    """A file has a line for each partition with a commit; what is read can be written; words hold for all."""
    topic = mounted.path / "topics/orders"
    topic.mkdir()
    for number in range(3):
        (topic / f"partitions/{number}/append").write_bytes(b"line\n" * 10 * (number + 1))
    groups = topic / "groups"
    assert os.listdir(groups) == []
    (groups / "billing").write_text("latest\n")
    assert (groups / "billing").read_text() == "0 10\n1 20\n2 30\n"
    assert (mounted.path / "orders-1/groups/billing").read_text() == "20\n"
    (groups / "billing").write_text("2 7\n0 9\n")
    assert (groups / "billing").read_text() == "0 9\n1 20\n2 7\n"
    assert (groups / "billing.lag").read_text() == "24\n"
    for wrong in ("", "0 7\n1 21\n", "3 1\n", "0\n1\n", "0 7 8\n", "0 soon\n", "soon\n"):
        with pytest.raises(OSError, match=r"Invalid argument|out of range"):
            os.write(fd := os.open(groups / "billing", os.O_WRONLY), wrong.encode() or b"\n")
        os.close(fd)
    # A mistake in one line commits none of them.
    assert (groups / "billing").read_text() == "0 9\n1 20\n2 7\n"
    (groups / "copy").write_bytes((groups / "billing").read_bytes())
    (mounted.path / "orders-2/groups/part").write_text("5\n")
    assert sorted(os.listdir(groups)) == ["billing", "copy", "part"]
    assert (groups / "part").read_text() == "2 5\n"
    assert (groups / "part").stat().st_size == 4
    with pytest.raises(PermissionError):
        (groups / "copy").unlink()
    ok("groups", str(mounted.log_dirs[0]), "--forget", "copy", "orders")
    assert not (groups / "copy").exists()
    assert not (mounted.path / "orders-0/groups/copy").exists()
    # The next lookup sees a new partition.
    (mounted.path / "orders-3").mkdir()
    (groups / "all").write_text("earliest")
    assert (groups / "all").read_text() == "0 0\n1 0\n2 0\n3 0\n"
    mounted.stop()
    assert_clean(log_dir)


def test_many_writers(mounted: Mount) -> None:
    """Each line of each writer is there once, whole, and in the writer's order within a partition."""
    topic = mounted.path / "topics/orders"
    topic.mkdir()
    script = 'for n in $(seq 300); do echo "$1 $n"; done >> "$2"'
    writers = [
        subprocess.Popen(["sh", "-c", script, "sh", str(each), str(topic / "append")])
        for each in range(8)
    ]
    assert [writer.wait(60) for writer in writers] == [0] * 8
    seen = [[tuple(map(int, line.split())) for line in values(topic, n)] for n in range(3)]
    assert sorted(pair for part in seen for pair in part) == [
        (each, n) for each in range(8) for n in range(1, 301)
    ]
    for part in seen:
        for each in range(8):
            numbers = [n for writer, n in part if writer == each]
            assert numbers == sorted(numbers)


def test_many_writers_of_envelopes(mounted: Mount) -> None:
    """Each write is appended once, whatever the other writers do: also one whose records go to all partitions."""
    topic = mounted.path / "topics/orders"
    topic.mkdir()
    rounds, size = 300, 40

    def write(writer: int) -> None:
        padding = "x" * (40 + 20 * writer)
        with (topic / "append.jsonl").open("ab", buffering=0) as file:
            for each in range(rounds):
                lines = [
                    f'{{"key":"k{n}","value":"{writer} {each} {n} {padding}"}}\n'
                    for n in range(size)
                ]
                data = "".join(lines).encode()
                assert file.write(data) == len(data)

    threads = Threads([])
    for writer in range(6):
        threads.start(partial(write, writer))
    threads.join()
    assert threads.errors == []
    found = Counter(
        line.rpartition(b" ")[0] for number in range(3) for line in values(topic, number)
    )
    assert len(found) == 6 * rounds * size
    assert set(found.values()) == {1}


def test_a_late_record_is_merged_at_the_next_open(mounted: Mount) -> None:
    """An open file shows it at the end; each later open shows it where its time puts it, also beside the first."""
    topic = mounted.path / "topics/orders"
    topic.mkdir()

    def append(number: int, timestamp: int) -> None:
        line = b'{"value":"%d","timestamp":%d}\n' % (timestamp, NOON + timestamp)
        (topic / f"partitions/{number}/append.jsonl").write_bytes(line)

    append(0, 10)
    append(0, 30)
    with (topic / "records").open("rb") as first:
        assert first.read() == b"10\n30\n"
        append(1, 20)
        assert first.read() == b"20\n"
        assert (topic / "records").read_bytes() == b"10\n20\n30\n"
        append(2, 15)
        assert first.read() == b"15\n"
    assert (topic / "records").read_bytes() == b"10\n15\n20\n30\n"
    append(2, 40)
    append(1, 35)
    assert (topic / "records").read_bytes() == b"10\n15\n20\n30\n35\n40\n"


@pytest.mark.parametrize("isolation", ["read_uncommitted", "read_committed"])
def test_the_envelopes_of_a_topic_whose_timestamp_type_changes(
    log_dir: Path, make_mount: Callable[..., Mount], isolation: str
) -> None:
    """They are those of its partitions, each with its own timestamp type; aborted records are hidden."""
    with Store(log_dir) as store:
        for turn, kind in enumerate(("CreateTime", "LogAppendTime", "CreateTime")):
            store.settings.set_topic("orders", "message.timestamp.type", kind)
            for name in ("orders-0", "orders-1"):
                log = store[name] if name in store else store.create(name)
                log.append([kind.encode()] * 3)
                log.append_batch(batch(1, turn, b"aborted", transactional=True))
                log.end_transaction(1, 0, commit=False)
                log.append([kind.encode()])
    topic = make_mount("-o", f"isolation={isolation}").path / "topics/orders"
    lines = (topic / "records.jsonl").read_bytes().splitlines()
    parts = [topic / f"partitions/{n}/records.jsonl" for n in range(2)]
    assert sorted(lines) == sorted(
        line for part in parts for line in part.read_bytes().splitlines()
    )
    found = [orjson.loads(line) for line in lines]
    assert {
        each["value"] == each["timestamp_type"] for each in found if each["value"] != "aborted"
    } == {True}
    assert len(found) == (24 if isolation == "read_committed" else 30)


def test_new_partitions_are_taken_in(mounted: Mount) -> None:
    """The next open of the file writes to them, too; an append needs all of them."""
    topic = mounted.path / "topics/orders"
    (mounted.path / "orders-0").mkdir()
    (topic / "append").write_bytes(b"a\n")
    assert values(topic, 0) == [b"a"]
    (mounted.path / "orders-2").mkdir()
    with pytest.raises(OSError, match="Input/output error"):
        (topic / "append").write_bytes(b"b\n")
    assert "orders-1: no such partition" in mounted.errors()
    (mounted.path / "orders-1").mkdir()
    for n in range(60):
        (topic / "append").write_bytes(b"%d\n" % n)
    assert all(values(topic, number) for number in range(3))


def test_access_rights(mounted: Mount) -> None:
    """They are those of the partitions' files if these agree; otherwise only the owner may write."""
    topic = mounted.path / "topics/orders"
    topic.mkdir()
    for number in range(3):
        (mounted.path / f"orders-{number}/append").chmod(0o620)
    assert (topic / "append").stat().st_mode & 0o777 == 0o620
    (mounted.path / "orders-1/append").chmod(0o600)
    assert (topic / "append").stat().st_mode & 0o022 == 0
    with pytest.raises(PermissionError):
        (topic / "append").chmod(0o666)


def test_the_commands_beside_a_mount_and_without(
    log_dir: Path, make_mount: Callable[..., Mount]
) -> None:
    """`create -n`, `append` and `cat` of a topic answer alike."""
    answers = []
    for name in ("solo", "shared"):
        target = f"{log_dir}/{name}"
        mount = make_mount() if name == "shared" else None
        created = ok("create", target, "-n", "2", "-p", "-c", "compression.type=lz4")
        again = fails("create", target, "-n", "2")
        more = ok("create", target, "-n", "3")
        told = ok("append", target, stdin=b"one\ntwo\nthree")
        keyed = ok("append", target, "-K", ":", stdin=b"a:1\nb:2\n")
        wrong = fails("append", target, "--jsonl", stdin=b"nothing\n")
        shown = sorted(ok("cat", target).split())
        answers.append(
            [text.replace(name, "NAME") for text in (created, again, more, told, keyed, *shown)]
        )
        assert "not JSON" in wrong
        if mount is not None:
            mount.stop()
    assert answers[0] == answers[1]
    assert answers[0][3:5] == ["NAME: 3 records\n", "NAME: 2 records\n"]
    assert_clean(log_dir)


def test_records_are_merged_by_time(mounted: Mount) -> None:
    """With true sizes, as text and as envelopes; `tail -f` follows all partitions, and new bytes come at the end."""
    topic = mounted.path / "topics/orders"
    topic.mkdir()
    expected = []
    for n in range(900):
        number = n * 7 % 3
        line = b'{"value":"%d","timestamp":%d}\n' % (n, 1000 + n)
        expected.append(line)
        if n % 3 == 2:
            for each in range(3):
                lines = [x for at, x in enumerate(expected[-3:], n - 2) if at * 7 % 3 == each]
                with (mounted.path / f"orders-{each}/append.jsonl").open("ab") as file:
                    file.writelines(lines)
        assert number in range(3)
    text = b"".join(b"%d\n" % n for n in range(900))
    assert (topic / "records").stat().st_size == len(text)
    assert (topic / "records").read_bytes() == text
    shown = [orjson.loads(line) for line in (topic / "records.jsonl").read_bytes().splitlines()]
    assert [int(each["value"]) for each in shown] == [*range(900)]
    assert (topic / "records.jsonl").stat().st_size == len((topic / "records.jsonl").read_bytes())
    assert run("tail", "-n", "2", topic / "records") == "898\n899\n"
    with (topic / "records").open("rb") as file:
        file.seek(len(text) - 8)
        assert file.read() == b"898\n899\n"
        # Late, and at the end all the same for who has read so far.
        (mounted.path / "orders-1/append.jsonl").write_bytes(b'{"value":"late","timestamp":5}\n')
        assert file.read() == b"late\n"
        file.seek(0)
        assert file.read() == text + b"late\n"
    assert (topic / "records").stat().st_size == len(text) + 5
    with pytest.raises(OSError, match="Operation not permitted"):
        (topic / "records").write_bytes(b"x")


def test_a_topic_is_followed(mounted: Mount) -> None:
    """By several `tail -f` beside several writers: each line once, and whole."""
    topic = mounted.path / "topics/orders"
    topic.mkdir()
    follow = ["tail", "-c", "+1", "-f", "-s", "0.05", str(topic / "records")]
    with ExitStack() as stack:
        tails = [
            stack.enter_context(subprocess.Popen(follow, stdout=subprocess.PIPE)) for _ in range(3)
        ]
        script = 'for n in $(seq 200); do echo "$1 $n"; done >> "$2"'
        writers = [
            subprocess.Popen(["sh", "-c", script, "sh", str(each), str(topic / "append")])
            for each in range(4)
        ]
        assert [writer.wait(60) for writer in writers] == [0] * 4
        expected = sorted(b"%d %d\n" % (each, n) for each in range(4) for n in range(1, 201))
        try:
            for tail in tails:
                assert tail.stdout is not None
                assert sorted(tail.stdout.readline() for _ in range(800)) == expected
        finally:
            for tail in tails:
                tail.kill()
    assert sorted((topic / "records").read_bytes().splitlines(keepends=True)) == expected


def test_a_topic_shows_committed_records(log_dir: Path, make_mount: Callable[..., Mount]) -> None:
    """With isolation=read_committed, `records` of a topic is without aborted records, also after a roll."""
    with Store(log_dir, clock=lambda: NOON) as store:
        for orders in store.topic("orders").create(2):
            orders.append([b"first"])
            orders.append_batch(batch(1, 0, b"aborted", transactional=True, timestamp=NOON))
            orders.end_transaction(1, 0, commit=False)
            orders.roll(NOON)
            orders.append_batch(batch(1, 1, b"committed", transactional=True, timestamp=NOON))
            orders.end_transaction(1, 0, commit=True)
    for options in ("isolation=read_committed", "isolation=read_committed,ro"):
        mounted = make_mount("-o", options, log_dirs=[log_dir])
        topic = mounted.path / "topics/orders"
        assert "records" in os.listdir(topic)
        expected = sorted([b"first", b"committed"] * 2)
        assert sorted((topic / "records").read_bytes().splitlines()) == expected
        assert (topic / "records").stat().st_size == sum(map(len, expected)) + 4
        found = (topic / "records.jsonl").read_bytes().splitlines()
        assert sorted(orjson.loads(line)["value"].encode() for line in found) == expected
        mounted.stop()


def test_what_retention_drops_leaves_a_topic(mounted: Mount) -> None:
    """A new open begins at the new log starts."""
    topic = mounted.path / "topics/orders"
    topic.mkdir()
    for number in range(3):
        (mounted.path / f"orders-{number}/append").write_bytes(b"a\nb\nc\n")
    assert len((topic / "records").read_bytes().splitlines()) == 9
    (mounted.path / "orders-1/log-start-offset").write_text("2\n")
    assert sorted((topic / "records").read_bytes().split()) == sorted(b"a b c c a b c".split())
    assert (topic / "records").stat().st_size == 14


def test_a_change_of_access_is_shown_at_once_by_the_topic(mounted: Mount) -> None:
    """Whatever was listed before; the entries of a topic have the mode of those of its partitions, and none else."""
    need_root()
    topic = mounted.path / "topics/orders"
    topic.mkdir()
    entries = {"append": 0o222, "records": 0o400, "config": 0o700, "groups": 0o500}
    for mode in (0, 0o7):
        for name, bits in entries.items():
            for entry in topic.iterdir():
                entry.lstat()
            for number in range(3):
                (mounted.path / f"orders-{number}" / name).chmod(bits | mode)
            assert (topic / name).stat().st_mode & 0o777 == bits | mode
    for name, bits in entries.items():
        with pytest.raises(PermissionError):
            (topic / name).chmod(0o777)
        for number in range(3):
            found = (mounted.path / f"orders-{number}" / name).stat()
            assert found.st_mode & 0o777 == bits | 0o7
    for number in range(3):
        os.chown(mounted.path / f"orders-{number}/groups", 12, 34)
    found = (topic / "groups").stat()
    assert (found.st_uid, found.st_gid) == (12, 34)
    assert mounted.errors().count("change them there") == len(entries)


def test_an_open_directory_of_a_deleted_topic_is_empty(
    log_dir: Path, make_mount: Callable[..., Mount]
) -> None:
    """On a read-only mount, the names in an open directory are ENOENT once another process has deleted the topic."""
    with Store(log_dir) as store:
        store.create("orders-0")
        topic = make_mount("--read-only", name="ro").path / "topics/orders"
        directory = os.open(topic, os.O_RDONLY)
        try:
            store.delete("orders-0")
            wait_for(lambda: not topic.exists())
            for name in ("records", "records.jsonl", "append", "append.jsonl", "config", "groups"):
                with pytest.raises(FileNotFoundError):
                    os.stat(name, dir_fd=directory)
        finally:
            os.close(directory)
