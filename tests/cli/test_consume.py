"""`logfs consume`: members share partitions, commit what they have taken, and survive each other's death."""

from __future__ import annotations

import errno
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest

from logfs.cli import consume, main
from logfs.format.batches.record import Record
from logfs.store.group_members import GroupMember, Membership, Place
from logfs.store.store import Store
from tests.support.batches import Producer
from tests.support.command_line import call, fails, misused, ok
from tests.support.partitions import values
from tests.support.processes import wait_for
from tests.support.schemas import write_files
from tests.support.stores import assert_clean

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from tests.support.mounts import Mount

LOGFS = (sys.executable, "-m", "logfs")
END = ("--idle-exit", "0")


@pytest.fixture
def topic(log_dir: Path) -> Iterator[str]:
    """The TARGET of a topic of three partitions with ten records each."""
    with Store(log_dir) as store:
        for partition in store.topic("orders").create(3):
            for n in range(10):
                partition.append([b"%d-%d" % (partition.partition, n)])
    yield f"{log_dir}/orders"
    assert_clean(log_dir)


def committed(log_dir: Path, group: str) -> list[int | None]:
    """Return what a group has committed for each partition."""
    with Store(log_dir, read_only=True) as store:
        found = [store.groups.committed(group, f"orders-{n}") for n in range(3)]
    return [None if each is None else each.offset for each in found]


def expected(*partitions: int, first: int = 0, end: int = 10) -> list[str]:
    """Return the values of partitions in order."""
    return [f"{number}-{n}" for number in partitions for n in range(first, end)]


def test_a_group_goes_on_where_it_stopped(log_dir: Path, topic: str) -> None:
    """Each record once; other groups begin for themselves; nothing new is nothing printed."""
    assert ok("consume", topic, "-g", "a", *END).split() == expected(0, 1, 2)
    assert committed(log_dir, "a") == [10, 10, 10]
    assert ok("consume", topic, "-g", "a", *END) == ""
    ok("append", f"{log_dir}/orders-1", stdin=b"new\n")
    assert ok("consume", topic, "-g", "a", *END, "-F", "%p %o %s\n") == "1 10 new\n"
    assert ok("consume", f"{log_dir}/orders-2", "-g", "b", *END).split() == expected(2)
    assert committed(log_dir, "b") == [None, None, 10]


def test_the_number_of_records(log_dir: Path, topic: str) -> None:
    """`-n` ends after so many, and only they are committed; with a filter, what it leaves out is taken, too."""
    assert ok("consume", topic, "-g", "a", "-n", "4").split() == expected(0, end=4)
    assert committed(log_dir, "a") == [4, None, None] or committed(log_dir, "a") == [4, 0, 0]
    rest = ok("consume", topic, "-g", "a", *END).split()
    assert sorted(rest) == sorted([*expected(0, first=4), *expected(1, 2)])
    found = ok("consume", topic, "-g", "f", *END, "--grep", "[0-9]-[37]$").split()
    assert sorted(found) == sorted(f"{number}-{n}" for number in range(3) for n in (3, 7))
    assert committed(log_dir, "f") == [10, 10, 10]


@pytest.mark.parametrize(
    ("begin", "first"),
    [("earliest", 0), ("latest", 10), ("7", 7), ("99", 10), ("@2000-01-01", 0), ("@now", 10)],
)
def test_where_a_new_group_begins(log_dir: Path, topic: str, begin: str, first: int) -> None:
    """Also without a record the beginning is committed, so that nothing is missed between two runs."""
    assert ok("consume", topic, "-g", "a", "--from", begin, *END).split() == expected(
        0, 1, 2, first=first
    )
    assert committed(log_dir, "a") == [10, 10, 10]
    ok("append", f"{log_dir}/orders-0", stdin=b"later\n")
    assert ok("consume", topic, "-g", "a", "--from", begin, *END) == "later\n"


def test_a_command_for_each_batch(log_dir: Path, topic: str, tmp_path: Path) -> None:
    """It gets the records of one partition; a batch is committed if it succeeds, and comes again if not."""
    taken = tmp_path / "taken"
    command = f'echo "$LOGFS_PARTITION $LOGFS_OFFSETS" >> {taken}; cat >> {taken}'
    ok("consume", topic, "-g", "a", *END, "--exec", command, "--batch", "4")
    found = taken.read_text().splitlines()
    assert found.count("orders-1 4..8") == 1
    assert sorted(line for line in found if not line.startswith("orders")) == sorted(
        expected(0, 1, 2)
    )
    failing = f"read first; test $first != 0-5 && cat >> {taken}"
    taken.unlink()
    words = ("consume", f"{log_dir}/orders-0", "-g", "b", *END, "--exec", failing, "--batch", "5")
    told = fails(*words)
    assert "orders-0: offsets 5 to 9 are not committed: the command ended with 1" in told
    assert committed(log_dir, "b")[0] == 5
    assert taken.read_text().split() == expected(0, first=1, end=5)
    assert "offsets 5 to 9" in fails(*words)
    ok("consume", f"{log_dir}/orders-0", "-g", "b", *END, "--exec", "head -n 1 > /dev/null")
    assert committed(log_dir, "b")[0] == 10


def test_what_has_left_the_log_is_told(log_dir: Path, topic: str) -> None:
    """Records below the log start, and a commit beyond the log end."""
    assert ok("consume", f"{log_dir}/orders-0", "-g", "a", "-n", "2").split() == expected(0, end=2)
    ok("delete-records", f"{log_dir}/orders-0", "--before", "5")
    done = call("consume", f"{log_dir}/orders-0", "-g", "a", *END)
    assert done.returncode == 1
    assert done.stdout.decode().split() == expected(0, first=5)
    assert b"offsets 2 to 4 have left the log" in done.stderr
    ok("delete-records", f"{log_dir}/orders-1", "--before", "10")
    done = call("consume", f"{log_dir}/orders-1", "-g", "a", *END)
    assert (done.returncode, done.stdout) == (0, b""), "the group begins there"
    ok("append", f"{log_dir}/orders-1", stdin=b"x\n")
    ok("delete-records", f"{log_dir}/orders-1", "--before", "11")
    done = call("consume", f"{log_dir}/orders-1", "-g", "a", *END)
    assert (done.returncode, done.stdout) == (1, b"")
    assert b"orders-1: offsets 10 to 10 have left the log" in done.stderr
    assert ok("consume", f"{log_dir}/orders-1", "-g", "a", *END) == ""
    with Store(log_dir) as store:
        store.truncate("orders-0", 8)
    done = call("consume", f"{log_dir}/orders-0", "-g", "a", *END)
    assert (done.returncode, done.stdout) == (0, b"")
    assert b"has committed 10, but the log ends at 8" in done.stderr


def follow(
    monkeypatch: pytest.MonkeyPatch, *words: str | Path, steps: Iterable[Callable[[], object]]
) -> int:
    """Run `consume` in this process: at each pause the next step, at last SIGINT. Return the exit code."""
    left = iter([*steps, lambda: signal.raise_signal(signal.SIGINT)])
    monkeypatch.setattr(consume, "pause", lambda seconds: next(left)())
    return main(["consume", *map(str, words)])


def before_commit(monkeypatch: pytest.MonkeyPatch, step: Callable[[], object]) -> None:
    """Let `step` come between the first batches of `consume` in this process and their commit."""
    commit = consume.ask

    def ask(*words: Any) -> object:
        monkeypatch.setattr(consume, "ask", commit)
        step()
        return commit(*words)

    monkeypatch.setattr(consume, "ask", ask)


def append(log_dir: Path, name: str, *texts: str) -> None:
    """Append a batch for each text, as another process does between two polls."""
    with Store(log_dir) as store:
        for text in texts:
            store[name].append([text.encode()])


def cut(log_dir: Path, offset: int, *texts: str, epoch: int = 0) -> None:
    """Truncate orders-0 and append to it, as a mirror does whose source has lost records."""
    with Store(log_dir) as store:
        store.truncate("orders-0", offset)
        if epoch:
            store["orders-0"].epochs.assign(epoch, offset)
        for text in texts:
            store["orders-0"].append([text.encode()])


@pytest.mark.parametrize("rolls", [False, True])
@pytest.mark.parametrize(
    ("epoch", "texts", "first"),
    [(0, "", 6), (0, "uv", 8), (1, "uv", 6), (1, "uvwx", 6), (1, "tuvwxyz", 6)],
)
def test_a_group_goes_back_in_a_truncated_log(
    log_dir: Path,
    topic: str,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    rolls: bool,
    epoch: int,
    texts: str,
    first: int,
) -> None:
    """To where another leader epoch begins, also if the log has grown beyond it again; otherwise to the log end."""
    if rolls:
        cut(log_dir, 4)
        with Store(log_dir) as store:
            store["orders-0"].roll(store.clock())
        append(log_dir, "orders-0", *expected(0, first=4))
    steps = [
        lambda: cut(log_dir, 6, *texts, epoch=epoch),
        lambda: append(log_dir, "orders-0", "last"),
        lambda: append(log_dir, "orders-1", "other"),
    ]
    assert follow(monkeypatch, topic, "-g", "a", steps=steps) == 130
    out, err = capfd.readouterr()
    read = [*expected(0, 1, 2), *texts[first - 6 :], "last", "other"]
    assert sorted(out.split()) == sorted(read)
    assert err == (
        "logfs: orders-0: the log was truncated below 10, which a has reached: it continues at "
        f"{first}\n"
    )
    assert committed(log_dir, "a") == [7 + len(texts), 11, 10]


@pytest.mark.parametrize("offset", [6, 9])
def test_a_truncation_that_hides_where_it_was_is_told(
    log_dir: Path,
    topic: str,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    offset: int,
) -> None:
    """Under the same leader epoch the log has grown beyond the group's offset: it goes on there, and tells it."""
    steps = [lambda: cut(log_dir, offset, *"tuvwxyz"[offset - 6 :])]
    follow(monkeypatch, topic, "-g", "a", steps=steps)
    out, err = capfd.readouterr()
    assert sorted(out.split()) == sorted([*expected(0, 1, 2), *"xyz"])
    assert "orders-0: the log was truncated below 10, which a has reached, and has grown" in err
    assert committed(log_dir, "a") == [13, 10, 10]


@pytest.mark.parametrize("epoch", [0, 1])
def test_a_truncation_above_what_the_group_has_taken_loses_nothing(
    log_dir: Path,
    topic: str,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    epoch: int,
) -> None:
    """A member that is behind reads the records that replaced those above its offset, and reports nothing."""
    monkeypatch.setattr(consume, "_PRINTED", 2)
    before_commit(monkeypatch, lambda: cut(log_dir, 6, "new", epoch=epoch))
    assert follow(monkeypatch, f"{log_dir}/orders-0", "-g", "a", steps=[]) == 130
    out, err = capfd.readouterr()
    assert err == ""
    assert out.split() == [*expected(0, end=6), "new"]
    assert committed(log_dir, "a") == [7, None, None]


def test_a_log_that_is_cleaned_is_not_taken_for_truncated(
    log_dir: Path,
    topic: str,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """Compaction and retention replace and drop segments that the group has read: nothing is reported."""
    with Store(log_dir) as store:
        store.settings.set_topic("keys", "cleanup.policy", "compact")
        store.create("keys-0").append([Record(b"%d" % n, b"key") for n in range(9)])

    def clean() -> None:
        with Store(log_dir) as store:
            store.compact("keys-0", roll=True)
            assert values(store["keys-0"]) == [b"8"]
            store["orders-0"].roll(store.clock())
            store.delete_records("orders-0", 10)

    words = (f"{log_dir}/orders-0,keys-0", "-g", "a")
    assert follow(monkeypatch, *words, steps=[clean]) == 130
    assert capfd.readouterr().err == ""
    assert committed(log_dir, "a") == [10, None, None]


@pytest.mark.parametrize("at_end", [False, True])
def test_a_truncation_before_a_commit_leaves_the_other_partitions_theirs(
    log_dir: Path,
    topic: str,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    at_end: bool,
) -> None:
    """What has left the log since it was printed is not committed; the group goes on at the new end."""

    def cut_and_end() -> None:
        cut(log_dir, 6)
        signal.raise_signal(signal.SIGINT)

    if not at_end:
        before_commit(monkeypatch, lambda: cut(log_dir, 6))
    steps = [cut_and_end] if at_end else []
    assert follow(monkeypatch, topic, "-g", "a", steps=steps) == 130
    assert "orders-0: the log was truncated below 10" in capfd.readouterr().err
    assert committed(log_dir, "a") == [6, 10, 10]


def test_a_group_goes_on_without_a_deleted_partition(
    log_dir: Path, topic: str, tmp_path: Path
) -> None:
    """The command tells it, reads the other partitions, and commits in them. A lone partition ends the command."""
    words = (*LOGFS, "consume", topic, "-g", "a")
    out = tmp_path / "out"
    with (
        out.open("wb") as file,
        subprocess.Popen(words, stdout=file, stderr=subprocess.PIPE) as running,
    ):
        assert running.stderr is not None
        wait_for(lambda: committed(log_dir, "a") == [10, 10, 10])
        ok("delete", f"{log_dir}/orders-1")
        assert b"orders-1" in running.stderr.readline()
        ok("append", f"{log_dir}/orders-2", stdin=b"more\n")
        wait_for(lambda: committed(log_dir, "a") == [10, None, 11])
        running.send_signal(signal.SIGINT)
        running.communicate(timeout=60)
    assert running.returncode == 130
    assert out.read_bytes().split()[-1] == b"more"
    words = (*LOGFS, "consume", f"{log_dir}/orders-0", "-g", "b")
    with subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as running:
        wait_for(lambda: committed(log_dir, "b")[0] == 10)
        ok("delete", f"{log_dir}/orders-0")
        _, told = running.communicate(timeout=60)
    assert (running.returncode, b"orders-0" in told) == (1, True)


@pytest.mark.parametrize("names", ["orders-0,orders-1", "orders-1,orders-0", "orders-0,keys"])
def test_a_deleted_partition_of_a_list_is_read_again_when_it_is_created_again(
    log_dir: Path,
    topic: str,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    names: str,
) -> None:
    """Named itself or by its topic: the group goes on with the others, and begins anew with the new partition."""
    (name,) = {"orders-1", "keys-0"} & {*names.replace("keys", "keys-0").split(",")}
    with Store(log_dir) as store:
        if name not in store:
            store.create(name)

    def delete() -> None:
        with Store(log_dir) as store:
            store.delete(name)

    def create() -> None:
        with Store(log_dir) as store:
            store.create(name).append([b"again"])

    steps = [delete, lambda: append(log_dir, "orders-0", "later"), create]
    assert follow(monkeypatch, f"{log_dir}/{names}", "-g", "a", steps=steps) == 130
    out, err = capfd.readouterr()
    assert out.split()[-2:] == ["later", "again"]
    assert err.endswith("; the group goes on without it\n")
    with Store(log_dir, read_only=True) as store:
        found = store.groups.committed("a", name)
    assert found is not None
    assert found.offset == 1
    assert committed(log_dir, "a")[0] == 11
    assert "no partition 'nothing'" in fails("consume", f"{log_dir}/orders-0,nothing", "-g", "a")


def test_a_commit_beyond_the_last_stable_offset_stays(log_dir: Path, topic: str) -> None:
    """A member that reads committed records does not take the group back to an open transaction."""
    with Store(log_dir) as store:
        producer = Producer(store["orders-0"], 1)
        producer.send("k")
        store.groups.commit("a", "orders-0", 11)
    words = ("consume", f"{log_dir}/orders-0", "-g", "a", *END, "--isolation", "read_committed")
    assert ok(*words) == ""
    assert committed(log_dir, "a")[0] == 11
    with Store(log_dir) as store:
        store["orders-0"].end_transaction(1, 0, commit=True)
        store["orders-0"].append([b"new"])
    assert ok(*words) == "new\n"
    assert committed(log_dir, "a")[0] == 13


def test_wrong_targets(log_dir: Path, topic: str) -> None:
    """What cannot be consumed is an error, and nothing is committed."""
    assert "no partition 'nothing'" in fails("consume", f"{log_dir}/nothing", "-g", "a", *END)
    assert "give earliest" in misused("consume", topic, "-g", "a", "--from", "soonish", *END)
    assert "--idle-exit" in misused("consume", topic, "-g", "a", "--idle-exit", "-1")
    assert "at least 1" in misused("consume", topic, "-g", "a", "-n", "0")
    assert call("consume", topic).returncode == 2
    assert committed(log_dir, "a") == [None, None, None]


def test_an_output_that_is_closed_from_the_start(log_dir: Path, topic: str) -> None:
    """Nothing is committed that could not be printed, and every command says that it could not print."""
    for command in (f"consume {topic} -g a --idle-exit 0", f"cat {topic}", f"groups {log_dir}"):
        done = subprocess.run(
            ["sh", "-c", f'exec "$0" -m logfs {command} >&-', sys.executable],
            capture_output=True,
            check=False,
        )
        assert done.returncode == 1
        assert done.stderr == b"logfs: standard output: Bad file descriptor\n"
    assert committed(log_dir, "a") == [0, 0, 0]


@pytest.mark.drawn(3)
@pytest.mark.parametrize("size", [1, 100, 8192, 250_000])
@pytest.mark.parametrize("words", [END, ()], ids=["all", "followed"])
def test_what_the_reader_of_a_pipe_has_taken_is_committed(
    log_dir: Path, words: tuple[str, ...], size: int
) -> None:
    """A reader such as `head` ends early: the group goes on with the record after those that it has taken."""
    values = [b"%d" % n * (n % 7) for n in range(20_000)]
    with Store(log_dir) as store:
        store.create("orders-0").append(values)
    target = f"{log_dir}/orders"
    with subprocess.Popen(
        [*LOGFS, "consume", target, "-g", "a", *words], stdout=subprocess.PIPE
    ) as consuming:
        assert consuming.stdout is not None
        taken = os.read(consuming.stdout.fileno(), 1)
        while len(taken) < size:
            taken += os.read(consuming.stdout.fileno(), size - len(taken))
        consuming.stdout.close()
        # 0 if everything was written before the pipe was closed.
        assert consuming.wait(60) in (0, 1)
    whole = taken.count(b"\n")
    assert committed(log_dir, "a")[0] == whole
    rest = ok("consume", target, "-g", "a", *END).encode()
    assert rest == b"".join(b"%s\n" % value for value in values[whole:])


def test_a_reason_is_told_once_if_the_reader_exits_in_a_batch(
    log_dir: Path, tmp_path: Path
) -> None:
    """To find what the reader has taken, the batch is formatted again, but nothing is reported again."""
    with Store(log_dir) as store:
        store.create("orders-0").append([b"\0\0\0\0\x63" + b"x" * 500] * 4000)
    schemas = write_files(tmp_path / "schemas")
    words = f"{sys.executable} -m logfs consume {log_dir}/orders-0 -g a --schemas {schemas}"
    done = subprocess.run(
        f"{words} --idle-exit 0 | head -n 1", shell=True, capture_output=True, check=True
    )
    lines = done.stderr.splitlines()
    assert lines
    assert len(set(lines)) == len(lines)
    with Store(log_dir, read_only=True) as store:
        found = store.groups.committed("a", "orders-0")
        assert found is not None
        assert 0 < found.offset < 4000


def test_a_reader_that_waits_for_the_end_gets_everything(log_dir: Path, topic: str) -> None:
    """It reads only after the command has ended, which commits everything."""
    with subprocess.Popen(
        [*LOGFS, "consume", topic, "-g", "a", *END], stdout=subprocess.PIPE
    ) as consuming:
        assert consuming.wait(60) == 0
        assert consuming.stdout is not None
        assert consuming.stdout.read().decode().split() == expected(0, 1, 2)
    assert committed(log_dir, "a") == [10, 10, 10]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_commits_what_was_printed(log_dir: Path, topic: str, number: int) -> None:
    """In the middle of many records, the next member goes on with the record after the last that was printed."""
    with Store(log_dir) as store:
        store["orders-0"].append([b"%d" % n for n in range(200_000)])
    words = [*LOGFS, "consume", f"{log_dir}/orders-0", "-g", "a", "-F", "%o\n"]
    with subprocess.Popen(words, stdout=subprocess.PIPE) as member:
        assert member.stdout is not None
        start = member.stdout.read(50_000)
        member.send_signal(number)
        printed = (start + member.stdout.read()).split()
        assert member.wait(60) == 128 + number
    assert committed(log_dir, "a")[0] == int(printed[-1]) + 1
    assert 50_000 < int(printed[-1]) < 200_009 or len(printed) < 200_010


def test_a_second_signal_ends_without_a_commit(
    log_dir: Path, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was printed since the last commit comes again; the exit code is that of the first signal."""
    monkeypatch.setattr(consume, "_COMMIT_SECONDS", 3600)

    def end_twice() -> None:
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGINT)

    steps = [lambda: append(log_dir, "orders-0", "new"), end_twice]
    with pytest.raises(SystemExit) as ended:
        follow(monkeypatch, topic, "-g", "a", steps=steps)
    assert ended.value.code == 128 + signal.SIGTERM
    assert committed(log_dir, "a") == [10, 10, 10]
    assert ok("consume", topic, "-g", "a", *END) == "new\n"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_that_is_ignored_from_the_start_stays_ignored(
    log_dir: Path,
    topic: str,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    number: int,
) -> None:
    """As SIGHUP under `nohup`, and SIGINT in the background of a script; another signal ends the command."""
    steps = [
        lambda: signal.raise_signal(number),
        lambda: append(log_dir, "orders-0", "later"),
        lambda: signal.raise_signal(signal.SIGTERM if number != signal.SIGTERM else signal.SIGHUP),
    ]
    before = signal.signal(number, signal.SIG_IGN)
    try:
        code = follow(monkeypatch, topic, "-g", "a", steps=steps)
        assert signal.getsignal(number) is signal.SIG_IGN
    finally:
        signal.signal(number, before)
    assert code == 128 + (signal.SIGTERM if number != signal.SIGTERM else signal.SIGHUP)
    assert capfd.readouterr().out.split()[-1] == "later"
    assert committed(log_dir, "a") == [11, 10, 10]


def test_while_another_process_has_the_directory(log_dir: Path, topic: str) -> None:
    """It goes on, says that it cannot commit, and commits when the other process has ended."""
    words = [*LOGFS, "consume", topic, "-g", "a"]
    with (
        Store(log_dir),
        subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as member,
    ):
        assert member.stdout is not None
        assert member.stderr is not None
        printed = [member.stdout.readline() for _ in range(30)]
        assert len(set(printed)) == 30
        assert b"until then nothing is committed" in member.stderr.readline()
        member.send_signal(signal.SIGTERM)
        assert member.wait(60) == 1
        assert b"in use by process" in member.stderr.read()
    assert committed(log_dir, "a") == [None, None, None]
    with subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as member:
        assert member.stderr is not None
        with Store(log_dir):
            assert b"until then nothing is committed" in member.stderr.readline()
        wait_for(lambda: committed(log_dir, "a") == [10, 10, 10])
        member.send_signal(signal.SIGTERM)
        assert member.wait(60) == 128 + signal.SIGTERM


def test_a_closed_output_commits_only_what_was_printed(log_dir: Path, topic: str) -> None:
    """After `head`, the next run goes on with what `head` did not get, or earlier."""
    with Store(log_dir) as store:
        store["orders-0"].append([b"x" * 1000] * 50_000)
    words = [*LOGFS, "consume", f"{log_dir}/orders-0", "-g", "a", *END]
    with subprocess.Popen(words, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.read(10) == b"0-0\n0-1\n0-"
        process.stdout.close()
        assert process.wait(60) == 1
    place = committed(log_dir, "a")[0]
    assert place is None or place <= 20_010


def test_a_partition_whose_place_is_unknown_is_not_kept(log_dir: Path) -> None:
    """If the committed offset cannot be read, the partition is released, and read after the next attempt."""
    answers: list[Place | None] = [None, Place(7, 7)]

    def begin(_: str) -> Place:
        if (answer := answers.pop(0)) is None:
            raise OSError(errno.EIO, "cannot be read")
        return answer

    Store(log_dir).close()
    with GroupMember(log_dir, "g", begin, lambda _: None) as member:
        with pytest.raises(OSError, match="cannot be read"):
            member.join(["a-0"], lambda _: True)
        with closing(Membership(log_dir, "g")) as other:
            assert other.take("a-0")
            other.release("a-0")
        member.join(["a-0"], lambda _: True)
        assert member.places == {"a-0": Place(7, 7)}


def test_members_share_the_partitions(log_dir: Path) -> None:
    """Every partition belongs to one member, evenly; who leaves makes room, and who joins gets a share."""
    Store(log_dir).close()
    partitions = [f"p-{n}" for n in range(10)]
    members: list[Membership] = []
    chance = random.Random(2)
    for _ in range(60):
        if members and chance.random() < 0.4:
            members.pop(chance.randrange(len(members))).close()
        else:
            members.append(Membership(log_dir, "g"))
        other = Membership(log_dir, "another group")
        shares = [member.assigned(partitions) for member in members]
        assert sorted(name for share in shares for name in share) == (partitions if members else [])
        sizes = [len(share) for share in shares]
        assert not sizes or max(sizes) - min(sizes) <= 1
        assert len(other.assigned(partitions)) == 10
        other.close()
    first, second = Membership(log_dir, "h"), Membership(log_dir, "h")
    assert first.take("p-0")
    assert not second.take("p-0")
    assert second.take("p-1")
    first.release("p-0")
    assert second.take("p-0")
    second.close()
    assert first.take("p-0")
    for member in (first, *members):
        member.close()


def lag(mount: Mount, partitions: int) -> int:
    """Return how far the group `g` is behind; a partition without a commit counts as 1."""
    groups = [mount.path / f"t-{number}/groups" for number in range(partitions)]
    return sum(int((g / "g.lag").read_text()) if (g / "g").exists() else 1 for g in groups)


def taken(outputs: list[Path]) -> dict[int, Counter[int]]:
    """Return how often each offset of each partition was printed."""
    seen: dict[int, Counter[int]] = {}
    for path in outputs:
        for line in path.read_text().splitlines():
            number, offset, value = map(int, line.split())
            assert offset == value
            seen.setdefault(number, Counter())[offset] += 1
    return seen


def test_members_that_are_killed(
    log_dir: Path, make_mount: Callable[..., Mount], tmp_path: Path
) -> None:
    """Beside a mount that is written to: every record is taken, and again only after a kill."""
    mount = make_mount()
    partitions = [mount.partition(f"t-{number}") for number in range(4)]
    chance = random.Random(4)
    outputs: list[Path] = []
    processes: list[subprocess.Popen[bytes]] = []
    written = kills = 0
    try:
        for turn in range(60):
            if turn % 12 == 0:
                outputs.append(tmp_path / f"out{turn}")
                words = [*LOGFS, "consume", f"{log_dir}/t", "-g", "g", "-F", "%p %o %s\\n"]
                with outputs[-1].open("wb") as out:
                    processes.append(subprocess.Popen(words, stdout=out))
            if turn % 20 == 19:
                victim = chance.choice([each for each in processes if each.poll() is None])
                victim.send_signal(chance.choice([signal.SIGKILL, signal.SIGINT]))
                kills += victim.wait(30) == -signal.SIGKILL
            lines = b"".join(b"%d\n" % n for n in range(written, written + 50))
            for partition in partitions:
                (partition / "append").write_bytes(lines)
            written += 50
            time.sleep(0.1)
        wait_for(lambda: lag(mount, 4) == 0, 60)
    finally:
        for process in processes:
            if process.poll() is None:
                process.send_signal(signal.SIGINT)
            process.wait(30)
    seen = taken(outputs)
    for number in range(4):
        assert sorted(seen[number]) == [*range(written)]
    assert kills or max(max(counts.values()) for counts in seen.values()) == 1


def several_log_dirs(tmp_path: Path) -> tuple[Path, Path]:
    """Make a store of two log directories, with a partition of `orders` in each of them, and return them."""
    one, two = tmp_path / "one", tmp_path / "two"
    with Store([one, two]) as store:
        for partition in store.topic("orders").create(2):
            for n in range(10):
                partition.append([b"%d-%d" % (partition.partition, n)])
        assert {store.registry.home("orders-0"), store.registry.home("orders-1")} == {one, two}
    return one, two


@pytest.mark.drawn(1)
@pytest.mark.parametrize("mounted", [False, True])
def test_a_group_of_several_log_directories(
    tmp_path: Path, make_mount: Callable[..., Mount], mounted: bool
) -> None:
    """A TARGET in one log directory of a store, or in several in any order, is the same group with its commits."""
    one, two = several_log_dirs(tmp_path)
    here = {
        entry: path
        for path in (one, two)
        for entry in ("orders-0", "orders-1")
        if (path / entry).is_dir()
    }
    mount = make_mount(log_dirs=[one, two]) if mounted else None
    for group in "abcdefgh":
        first = ok("consume", two, one, "orders-0", "-g", group, *END).split()
        assert first == expected(0)
        assert ok("consume", here["orders-0"] / "orders-0", "-g", group, *END) == ""
        assert ok("consume", here["orders-1"] / "orders-1", "-g", group, *END).split() == expected(
            1
        )
        assert ok("consume", one, two, "orders", "-g", group, *END) == ""
        for path in (one, two):
            assert ok("groups", path, "--group", group) == ok("groups", one, two, "--group", group)
    if mount is not None:
        mount.stop()
    assert_clean(one, two)
