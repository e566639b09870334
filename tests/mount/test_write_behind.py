"""A write-behind mount beside a store's mount: what arrives, when, in which order, and what a failure loses."""

from __future__ import annotations

import errno
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from itertools import count, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from logfs.mount.write_behind.stream import LONGEST_LINE, Stream
from logfs.store.store import Store
from tests.mount.test_container import NOBODY, Container
from tests.support.command_line import fails, misused, ok
from tests.support.examples import examples
from tests.support.mounts import Mount, clear, is_mounted, refuses
from tests.support.processes import Threads, run, wait_for
from tests.support.requirements import DEEP, need_command, need_fuse, need_root
from tests.support.stores import assert_clean

if TYPE_CHECKING:
    from collections.abc import Iterator

LINGER_MS = 5
# Much longer than any test takes.
NEVER_MS = 60_000
# The daemon makes rounds without a known reason this often (docs/filesystem.md).
IDLE_SECONDS = 1.0
_numbers = count()


class Pair(NamedTuple):
    """A store's mount, and a write-behind mount of it. A context manager, which unmounts both."""

    store: Mount
    behind: Mount

    def partition(self) -> tuple[Path, Path]:
        """Create a partition; return its directory in both mounts."""
        name = f"topic{next(_numbers)}-0"
        return self.store.partition(name), self.behind.path / name

    def __enter__(self) -> Pair:
        return self

    def __exit__(self, *_: object) -> None:
        self.behind.stop()
        self.store.stop()


def make(base: Path, linger_ms: int, *options: str) -> Pair:
    """Start both mounts."""
    need_fuse()
    pair = Pair(
        Mount(base / "mnt", [base / "log"], list(options)),
        Mount(
            base / "behind",
            [base / "mnt"],
            ["--write-behind", f"--linger-ms={linger_ms}", *options],
        ),
    )
    try:
        pair.store.start()
        pair.behind.start()
    except BaseException:
        pair.__exit__()
        raise
    return pair


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """Two mounts for the tests of this module, each of which uses a partition of its own."""
    with make(tmp_path_factory.mktemp("behind"), LINGER_MS) as made:
        yield made
    assert_clean(*made.store.log_dirs)


@pytest.fixture(scope="module")
def patient(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """Two mounts, the second of which sends nothing unless it is asked to."""
    with make(tmp_path_factory.mktemp("patient"), NEVER_MS) as made:
        yield made
    assert_clean(*made.store.log_dirs)


@pytest.fixture
def own(tmp_path: Path) -> Iterator[Pair]:
    """Two mounts of one test, which may kill them."""
    with make(tmp_path, LINGER_MS) as made:
        yield made


def lines_of(directory: Path) -> list[bytes]:
    """Return the records of a partition, which have no newline in them."""
    return (directory / "records").read_bytes().splitlines()


def status(mount: Mount) -> dict[str, int]:
    """Return the `status.json` of a write-behind mount."""
    return dict(orjson.loads((mount.path / ".logfs/status.json").read_bytes()))


def open_to_append(path: Path, flags: int = 0) -> int:
    """Open a file as `>>` does."""
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | flags, 0o644)


def refuses_without_daemon() -> pytest.RaisesExc[OSError]:
    """Expect the code inside to fail with an errno of a mount whose daemon is gone."""
    return pytest.raises(OSError, match=r"^\[Errno (103|107)\]")


# What arrives.


def test_small_writes_arrive_whole_and_in_order(pair: Pair) -> None:
    """200,000 write(2) of a line each, none of them synced, are in the log after the close."""
    directory, behind = pair.partition()
    wanted = [b"%06d %s" % (n, b"x" * (n % 97)) for n in range(200_000)]
    descriptor = open_to_append(behind / "append")
    for line in wanted:
        assert os.write(descriptor, line + b"\n") == len(line) + 1
    os.close(descriptor)
    assert lines_of(directory) == wanted


def test_writes_of_any_size(pair: Pair) -> None:
    """Lines from 0 bytes to 1 MB in writes of any size, which cut them anywhere, with syncs and pauses between."""
    directory, behind = pair.partition()
    chance = random.Random(3)
    sizes = [chance.choice([0, 1, 99, 4095, 4096, 5000, 70_000]) for _ in range(800)]
    sizes += [1_000_000, 3, 1_040_000]
    text = b"".join(chance.randbytes(n // 2).hex().encode() + b"\n" for n in sizes)
    descriptor = open_to_append(behind / "append")
    position = 0
    while position < len(text):
        size = chance.choice([1, 10, 100, 4096, 10_000, 200_000, 3_000_000])
        position += os.write(descriptor, text[position : position + size])
        if not chance.randrange(10):
            os.fsync(descriptor)
        if not chance.randrange(10):
            time.sleep(0.01)
    os.close(descriptor)
    assert (directory / "records").read_bytes() == text


def test_a_line_can_be_read_after_the_linger(pair: Pair) -> None:
    """A line is readable without a sync or a close: the first one, one in a burst, and one after a long silence."""
    directory, behind = pair.partition()
    descriptor = open_to_append(behind / "append")
    wanted = 0
    for pause in (0.0, 0.001, 0.02, 0.2, 2.5):
        for _ in range(3):
            time.sleep(pause)
            os.write(descriptor, b"a line\n")
            wanted += 1
        wait_for(lambda: len(lines_of(directory)) == wanted, 5)  # noqa: B023
    os.close(descriptor)


def test_an_open_file_that_is_not_written_costs_no_rounds(pair: Pair) -> None:
    """Rounds end while nothing is written, except for one a second."""
    _, behind = pair.partition()
    descriptor = open_to_append(behind / "append")
    os.write(descriptor, b"a line\n")
    time.sleep(0.5)
    before = status(pair.behind)["rounds"]
    time.sleep(3 * IDLE_SECONDS)
    assert status(pair.behind)["rounds"] - before <= 4
    os.close(descriptor)


def test_several_writers(pair: Pair) -> None:
    """The lines of each of eight processes arrive whole and in its order, in one partition and in three."""
    partitions = [pair.partition() for _ in range(3)]
    script = (
        "import os, sys\n"
        "ends = [os.open(path, os.O_WRONLY | os.O_APPEND) for path in sys.argv[2:]]\n"
        "for n in range(5000):\n"
        "    for end in ends: os.write(end, b'%s %d %s\\n' % (sys.argv[1].encode(), n, b'x' * (n % 60)))\n"
        "    if n % 1000 == 0: os.fsync(end)\n"
    )
    paths = [str(behind / "append") for _, behind in partitions]
    writers = [subprocess.Popen([sys.executable, "-c", script, str(n), *paths]) for n in range(8)]
    assert [writer.wait(120) for writer in writers] == [0] * 8
    for directory, _ in partitions:
        of_writer: dict[bytes, list[int]] = {}
        for line in lines_of(directory):
            writer, number, rest = line.split(b" ", 2)
            assert rest == b"x" * (int(number) % 60)
            of_writer.setdefault(writer, []).append(int(number))
        assert sorted(of_writer) == [b"%d" % n for n in range(8)]
        assert all(numbers == list(range(5000)) for numbers in of_writer.values())


def test_envelopes(pair: Pair) -> None:
    """`append.jsonl` takes envelopes; an invalid one is refused, and the others are appended."""
    directory, behind = pair.partition()
    descriptor = open_to_append(behind / "append.jsonl")
    os.write(descriptor, b'{"value":"a","key":"k"}\nno envelope\n{"value":"b"}\n')
    with refuses(errno.EINVAL):
        os.fsync(descriptor)
    os.close(descriptor)
    found = [orjson.loads(line) for line in lines_of_json(directory)]
    assert [(each["key"], each["value"]) for each in found] == [("k", "a"), (None, "b")]


def lines_of_json(directory: Path) -> list[bytes]:
    """Return the envelopes of a partition."""
    return (directory / "records.jsonl").read_bytes().splitlines()


def test_an_offline_partition_leaves_the_others_listed(tmp_path: Path) -> None:
    """A partition that cannot be loaded is EIO in the main mount; the write-behind mount lists the others."""
    with Store(tmp_path / "log") as store:
        store.create("good-0")
    broken = tmp_path / "log/broken-0/00000000000000000000.log"
    broken.parent.mkdir()
    broken.symlink_to("/etc/passwd")
    with make(tmp_path, LINGER_MS) as mounts:
        assert "broken-0" in os.listdir(mounts.store.path)
        assert os.listdir(mounts.behind.path) == [".logfs", "good-0"]
        with (mounts.behind.path / "good-0/append").open("ab") as file:
            file.write(b"line\n")
            os.fsync(file.fileno())
        assert lines_of(mounts.store.path / "good-0") == [b"line"]


def test_unfinished_lines(patient: Pair) -> None:
    """A line without a newline becomes a record when the last descriptor is closed, not at fsync or another close."""
    directory, behind = patient.partition()
    descriptor = open_to_append(behind / "append")
    os.write(descriptor, b"one\ntw")
    os.fsync(descriptor)
    os.close(os.dup(descriptor))
    assert lines_of(directory) == [b"one"]
    os.write(descriptor, b"o\nthree")
    os.close(descriptor)
    wait_for(lambda: lines_of(directory) == [b"one", b"two", b"three"])


def test_the_shell(pair: Pair, tmp_path: Path) -> None:
    """`>`, `>>`, `tee -a`, `cp`, `dd`, a group of commands, and a file opened again through /proc."""
    directory, behind = pair.partition()
    (tmp_path / "file").write_text("from a file\n")
    script = """
        set -e
        echo a > append; echo b >> append; echo c | tee -a append > /dev/null
        cp "$1" append; dd if="$1" of=append status=none
        { echo d; echo e; (echo f); } >> append
        exec 3>> append; echo g >&3; echo h >> /proc/self/fd/3; echo i >&3
        if echo lost > /proc/self/fd/3; then exit 7; fi
    """
    run("sh", "-c", script, "sh", tmp_path / "file", cwd=behind)
    wanted = b"a\nb\nc\nfrom a file\nfrom a file\nd\ne\nf\ng\nh\ni\n"
    wait_for(lambda: (directory / "records").stat().st_size == len(wanted))
    assert (directory / "records").read_bytes() == wanted


@examples(2)
@given(
    st.lists(st.sampled_from([b"", b"a", b"bb", b"x" * 30, b"\xff"]), max_size=12),
    st.lists(st.integers(0, 80), max_size=20),
    st.randoms(use_true_random=False),
)
def test_pages_again_and_out_of_order(
    lines: list[bytes], cuts: list[int], chance: random.Random
) -> None:
    """However the kernel cuts, repeats and reorders the data, the target gets each line once, in order."""
    text = b"".join(line + b"\n" for line in lines)
    places = sorted({0, len(text), *(cut for cut in cuts if cut < len(text))})
    parts = []
    for begin, end in pairwise(places):
        # A page is sent again from its beginning.
        again = chance.randrange(begin + 1)
        parts.append((again, text[again:end]))
        if chance.randrange(2):
            parts.append((begin, text[begin:end]))
    chance.shuffle(parts)
    with tempfile.NamedTemporaryFile() as file:
        stream = Stream(Path(file.name), lambda error: pytest.fail(str(error)))
        stream.open()
        for position, data in parts:
            stream.write(position, data)
        stream.sync()
        stream.close()
        assert Path(file.name).read_bytes() == text


@pytest.mark.parametrize("number", range(3))
def test_a_page_that_has_grown_overtakes_others(number: int, tmp_path: Path) -> None:
    """The bytes before it may come last, and the same page as it was before may come after it."""
    pages = [(4, b"two\n"), (4, b"two\nthree\n"), (0, b"one\n")]
    stream = Stream(tmp_path / "file", lambda error: pytest.fail(str(error)))
    stream.target.touch()
    stream.open()
    for position, data in (pages[1], *pages[number:], *pages[:number]):
        stream.write(position, data)
    stream.sync()
    stream.close()
    assert stream.target.read_bytes() == b"one\ntwo\nthree\n"


def test_early_bytes_that_change_are_an_error(tmp_path: Path) -> None:
    """Bytes that wait for those before them, and then come again as others, were overwritten."""
    stream = Stream(tmp_path / "file", lambda error: None)
    stream.target.touch()
    stream.open()
    stream.write(4, b"two\nthree\n")
    stream.write(4, b"TWO\n")
    stream.write(0, b"one\n")
    with pytest.raises(OSError, match="were overwritten"):
        stream.sync()
    stream.close()


# Durability.


def test_fsync_is_durable(patient: Pair) -> None:
    """fsync, fdatasync, O_DSYNC and O_SYNC send the lines, and advance the recovery point over them."""
    directory, behind = patient.partition()
    wanted = 0
    for flags in (0, os.O_DSYNC, os.O_SYNC):
        descriptor = open_to_append(behind / "append", flags)
        for sync in (os.fsync, os.fdatasync):
            os.write(descriptor, b"a line\n")
            if not flags:
                sync(descriptor)
            wanted += 1
            state = orjson.loads((directory / "status.json").read_bytes())
            assert (state["log_end_offset"], state["recovery_point"]) == (wanted, wanted)
        os.close(descriptor)


def test_fsync_through_a_descriptor_for_reading(patient: Pair) -> None:
    """`sync FILE` opens the file for reading: it succeeds, and advances the recovery point."""
    directory, behind = patient.partition()
    with (behind / "append").open("ab", buffering=0) as file:
        file.write(b"a line\n")
    for _ in range(2):
        subprocess.run(["sync", str(behind / "append")], check=True)
        state = orjson.loads((directory / "status.json").read_bytes())
        assert state["recovery_point"] == 1


def test_lines_survive_the_writer(pair: Pair) -> None:
    """A process is killed right after its last write(2): all its lines arrive."""
    directory, behind = pair.partition()
    script = (
        "import os, signal, sys\n"
        "end = os.open(sys.argv[1], os.O_WRONLY | os.O_APPEND)\n"
        "for n in range(50_000): os.write(end, b'%d\\n' % n)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-c", script, str(behind / "append")], check=False)
    assert done.returncode == -signal.SIGKILL
    wait_for(lambda: len(lines_of(directory)) == 50_000)
    assert lines_of(directory) == [b"%d" % n for n in range(50_000)]


def test_a_stopped_daemon_sends_what_was_written(tmp_path: Path) -> None:
    """SIGTERM of the write-behind daemon loses no whole line; later writes fail."""
    with make(tmp_path, NEVER_MS) as made:
        directory, behind = made.partition()
        descriptor = open_to_append(behind / "append")
        for n in range(10_000):
            os.write(descriptor, b"%d\n" % n)
        made.behind.stop()
        assert lines_of(directory) == [b"%d" % n for n in range(10_000)]
        with refuses_without_daemon():
            os.write(descriptor, b"later\n")
        with refuses_without_daemon():
            os.close(descriptor)
    assert_clean(*made.store.log_dirs)


def test_a_dead_daemon_is_noticed_without_a_sync(own: Pair) -> None:
    """A writer that never syncs gets an error within seconds after the daemon was killed."""
    _, behind = own.partition()
    descriptor = open_to_append(behind / "append")
    os.write(descriptor, b"a line\n")
    own.behind.kill()

    def is_told() -> bool:
        try:
            os.write(descriptor, b"a line\n")
        except OSError as error:
            return error.errno in (errno.ENOTCONN, errno.ECONNABORTED)
        return False

    wait_for(is_told, 5)
    # EIO if the kernel has tried to write the last line before the close.
    with pytest.raises(OSError, match=r"^\[Errno (5|103|107)\]"):
        os.close(descriptor)


def test_a_killed_daemon(own: Pair) -> None:
    """SIGKILL of the write-behind daemon amid writes: synced lines are kept, what is lost is at the end, and no
    process hangs.
    """
    directory, behind = own.partition()
    descriptor = open_to_append(behind / "append")
    synced, written = -1, 0
    threads = Threads([])

    def kill() -> None:
        time.sleep(0.5)
        own.behind.kill()

    def write() -> None:
        nonlocal synced, written
        for written in range(100_000_000):
            os.write(descriptor, b"%d\n" % written)
            if written % 5000 == 0:
                os.fsync(descriptor)
                synced = written

    threads.start(kill)
    with refuses_without_daemon():
        write()
    threads.join()
    assert threads.errors == []
    with refuses_without_daemon():
        os.close(descriptor)
    found = lines_of(directory)
    assert found == [b"%d" % n for n in range(len(found))]
    assert synced < len(found) <= written + 1
    # It can be mounted again, over the dead mount.
    own.behind.start()
    (behind / "append").write_bytes(b"again\n")
    wait_for(lambda: lines_of(directory)[-1] == b"again")


def test_a_killed_store_daemon(own: Pair) -> None:
    """SIGKILL of the store's daemon amid writes: fsync fails, then write(2); after a new mount new files work."""
    directory, behind = own.partition()
    descriptor = open_to_append(behind / "append")
    for n in range(1000):
        os.write(descriptor, b"%d\n" % n)
    os.fsync(descriptor)
    own.store.kill()

    def write() -> None:
        for n in range(1000, 100_000_000):
            os.write(descriptor, b"%d\n" % n)

    with refuses_without_daemon():
        write()
    for _ in range(2):
        with refuses_without_daemon():
            os.fsync(descriptor)
    with refuses_without_daemon():
        os.close(descriptor)
    with refuses_without_daemon():
        open_to_append(behind / "append")
    own.store.start()
    found = lines_of(directory)
    assert len(found) >= 1000
    assert found == [b"%d" % n for n in range(len(found))]
    (behind / "append").write_bytes(b"again\n")
    wait_for(lambda: lines_of(directory)[-1] == b"again")


# Errors.


def test_a_refused_line_is_told_once(patient: Pair) -> None:
    """A line that is too large is left out; the next fsync or close fails with its errno, and only that one."""
    directory, behind = patient.partition()
    (directory / "config/max.message.bytes").write_text("1000")
    bad = b"x" * 2000 + b"\n"
    descriptor = open_to_append(behind / "append")
    os.write(descriptor, b"one\n" + bad + bad + b"two\n")
    with refuses(errno.EMSGSIZE):
        os.fsync(descriptor)
    os.fsync(descriptor)
    os.write(descriptor, bad + b"three\n")
    with refuses(errno.EMSGSIZE):
        os.close(descriptor)
    assert lines_of(directory) == [b"one", b"two", b"three"]
    name = behind.name
    errors = [line for line in patient.behind.errors().splitlines() if f"/{name}/" in line]
    assert len(errors) == 3
    assert all(" EMSGSIZE " in line and "2000 bytes" in line for line in errors)


def test_a_refused_line_fails_the_next_write(pair: Pair) -> None:
    """A writer that never syncs is told, too: a later write(2) fails once, and its line is not taken."""
    directory, behind = pair.partition()
    (directory / "config/max.message.bytes").write_text("1000")
    descriptor = open_to_append(behind / "append")
    os.write(descriptor, b"x" * 2000 + b"\n")
    taken = 0

    def is_told() -> bool:
        nonlocal taken
        try:
            taken += os.write(descriptor, b"good\n") // 5
        except OSError as error:
            if error.errno != errno.EMSGSIZE:
                raise
            return True
        return False

    wait_for(is_told)
    taken += os.write(descriptor, b"good\n") // 5
    os.close(descriptor)
    assert lines_of(directory) == [b"good"] * taken


@pytest.mark.parametrize("flags", [0, os.O_APPEND, os.O_TRUNC])
@pytest.mark.parametrize("sync", [os.O_SYNC, os.O_DSYNC])
def test_a_synchronous_writer_after_a_refused_line(pair: Pair, flags: int, sync: int) -> None:
    """With O_SYNC or O_DSYNC the bad write fails itself, and every acknowledged line after it is in the log."""
    directory, behind = pair.partition()
    (directory / "config/max.message.bytes").write_text("1000")
    descriptor = os.open(behind / "append", os.O_WRONLY | flags | sync)
    os.write(descriptor, b"good\n")
    with refuses(errno.EMSGSIZE):
        os.write(descriptor, b"x" * 5000 + b"\n")
    wanted = [b"good %d" % n for n in range(300)]
    for line in wanted:
        os.write(descriptor, line + b"\n")
    os.fsync(descriptor)
    os.close(descriptor)
    assert lines_of(directory) == [b"good", *wanted]


@given(st.binary(max_size=300_000), st.integers(0, 310_000), st.integers(0, 70_000))
@examples(1)
def test_accepted_bytes_can_be_read_again(data: bytes, position: int, size: int) -> None:
    """The kernel may drop a page and read it again: the last 64 KiB are kept, and bytes before them are zeros."""
    with tempfile.NamedTemporaryFile() as file:
        stream = Stream(Path(file.name), lambda _: None)
        stream.open()
        stream.write(0, data)
        known = max(len(data) - 65_536, 0)
        expected = b"\0" * known + data[known:]
        assert stream.read(position, size) == expected[position : position + size]
        stream.close()


def test_dropped_pages(pair: Pair) -> None:
    """Writes go on when the kernel has dropped a page that was only partly full."""
    directory, behind = pair.partition()
    descriptor = open_to_append(behind / "append")
    wanted = []
    for n in range(30):
        wanted.append(b"%d %s" % (n, b"x" * (n * 97)))
        os.write(descriptor, wanted[-1] + b"\n")
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(descriptor)
    assert lines_of(directory) == wanted


def test_overwritten_bytes_are_noticed(tmp_path: Path) -> None:
    """Other bytes at a position that was accepted already are an error, and never dropped without a word."""
    target = tmp_path / "target"
    target.touch()
    noted: list[OSError] = []
    stream = Stream(target, noted.append)
    stream.open()
    stream.write(0, b"one\ntwo\n")
    stream.write(4, b"two\nthree\n")
    stream.check()
    stream.write(8, b"THREE\nfour\n")
    with refuses(errno.EIO):
        stream.sync()
    stream.close()
    assert target.read_bytes() == b"one\ntwo\nthree\n"
    assert len(noted) == 1


# Writes numbered lines in one of several ways until there is an error; prints its errno, and how many lines it was
# told are accepted.
ENDLESS_WRITER = """
import os, sys
path, way, name = sys.argv[1:]
end, told = os.open(path, os.O_WRONLY | os.O_APPEND), 0
print("open", flush=True)
try:
    while True:
        os.write(end, b"%s %d\\n" % (name.encode(), told))
        if way == "close":
            os.close(end)
        told += 1
        if way == "close":
            end = os.open(path, os.O_WRONLY | os.O_APPEND)
        if way == "fsync" and told % 1000 == 0:
            os.fsync(end)
except OSError as error:
    print(error.errno, told)
"""


@pytest.mark.parametrize("way", ["fsync", "close", "never"])
@pytest.mark.parametrize("writers", [1, 6])
def test_a_signal_amid_writes(own: Pair, writers: int, way: str) -> None:
    """SIGTERM while processes write as fast as they can: each gets an error, and no accepted line is lost."""
    directory, behind = own.partition()
    command = [sys.executable, "-c", ENDLESS_WRITER, str(behind / "append"), way]
    started = [
        subprocess.Popen([*command, str(n)], stdout=subprocess.PIPE, text=True)
        for n in range(writers)
    ]
    for writer in started:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "open\n"
    time.sleep(0.5)
    own.behind.stop()
    answers = [writer.communicate(timeout=60)[0].split() for writer in started]
    told_errors = {errno.ENOTCONN, errno.ECONNABORTED}
    if way != "never":
        # The kernel reports pages that it could not send as EIO to the close or fsync after them.
        told_errors.add(errno.EIO)
    if way == "close":
        # The file is opened again, and the mount may be gone by then.
        told_errors.add(errno.ENOENT)
    assert {int(number) for number, _ in answers} <= told_errors
    found: dict[bytes, list[int]] = {b"%d" % n: [] for n in range(writers)}
    for line in lines_of(directory):
        writer_number, number = line.split()
        found[writer_number].append(int(number))
    assert all(each == list(range(len(each))) for each in found.values())
    for each, (_, told) in zip(found.values(), answers, strict=True):
        assert len(each) >= int(told)


def test_files_are_closed_while_the_mount_stops(own: Pair) -> None:
    """A file that is closed or synced just after SIGTERM delays nothing, and is told no lie."""
    for way in ("close", "fsync"):
        directory, behind = own.partition()
        ends = [open_to_append(behind / "append") for _ in range(2)]
        for end in ends:
            os.write(end, b"x" * 99 + b"\n")
        assert own.behind.process is not None
        own.behind.process.kill(signal.SIGTERM)
        accepted = 0
        for end in ends:
            with suppress(OSError):
                try:
                    if way == "fsync":
                        os.fsync(end)
                finally:
                    os.close(end)
                accepted += 1
        own.behind.stop()
        assert len(lines_of(directory)) == 2 >= accepted
        own.behind.start()


@pytest.mark.parametrize("size", [1_900_000, 2_300_000, 5_000_000])
def test_long_lines(pair: Pair, size: int) -> None:
    """A line longer than one request of FUSE is accepted or refused as a whole."""
    directory, behind = pair.partition()
    line = b"x" * size
    for limit, accepted in ((size + 1000, [line]), (size - 1000, [])):
        (directory / "config/max.message.bytes").write_text(str(limit))
        before = lines_of(directory)
        descriptor = open_to_append(behind / "append")
        os.write(descriptor, b"one\n" + line + b"\ntwo\n" + line[:-5])
        os.write(descriptor, line[-5:] + b"\n")
        os.write(descriptor, b"three\n")
        if accepted:
            os.fsync(descriptor)
        else:
            with refuses(errno.EMSGSIZE):
                os.fsync(descriptor)
        os.close(descriptor)
        assert lines_of(directory) == [*before, b"one", *accepted, b"two", *accepted, b"three"]


def test_a_line_without_end(tmp_path: Path) -> None:
    """A line that passes the limit of the mount is dropped up to its newline, and takes no more memory."""
    target = tmp_path / "target"
    target.touch()
    noted: list[OSError] = []
    stream = Stream(target, noted.append)
    stream.open()
    part = b"x" * (1 << 20)
    while stream.position <= LONGEST_LINE + 3 * len(part):
        stream.write(stream.position, part)
    with refuses(errno.EMSGSIZE):
        stream.check()
    stream.write(stream.position, b"its end\ngood\nnot the end")
    stream.close()
    assert target.read_bytes() == b"good\nnot the end\n"
    assert len(noted) == 1


def test_a_full_disk(tmp_path: Path) -> None:
    """ENOSPC reaches fsync and write(2); the log has a beginning of what was written, and no line after the error."""
    need_root()
    need_fuse()
    run("mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", tmp_path)
    try:
        with make(tmp_path, LINGER_MS) as made:
            directory, behind = made.partition()
            descriptor = open_to_append(behind / "append")
            line = b"x" * 99
            with refuses(errno.ENOSPC):
                while True:
                    os.write(descriptor, b"%s\n" % line)
            with refuses(errno.ENOSPC):
                os.fsync(descriptor)
            with refuses(errno.ENOSPC):
                os.close(descriptor)
            found = lines_of(directory)
            assert found
            assert found == [line] * len(found)
    finally:
        run("umount", tmp_path)


def test_a_deleted_partition(pair: Pair) -> None:
    """The partition is deleted while a file is open: its writer gets ENOENT."""
    directory, behind = pair.partition()
    descriptor = open_to_append(behind / "append")
    os.write(descriptor, b"a line\n")
    os.fsync(descriptor)
    ok("delete", str(pair.store.log_dirs[0] / directory.name))
    os.write(descriptor, b"another\n")
    with refuses(errno.ENOENT):
        os.fsync(descriptor)
    with refuses(errno.ENOENT):
        os.close(descriptor)
    wait_for(lambda: not behind.exists())


def test_what_is_refused(pair: Pair) -> None:
    """Positions, truncation of an open file, O_DIRECT, other files: each has its errno, and loses nothing."""
    directory, behind = pair.partition()
    descriptor = open_to_append(behind / "append")
    os.write(descriptor, b"one\n")
    for number, call in (
        (errno.ESPIPE, lambda: os.lseek(descriptor, 0, os.SEEK_SET)),
        (errno.ESPIPE, lambda: os.pwrite(descriptor, b"two\n", 0)),
        (errno.EPERM, lambda: os.ftruncate(descriptor, 0)),
        (errno.EINVAL, lambda: os.open(behind / "append", os.O_WRONLY | os.O_DIRECT)),
        (errno.EPERM, lambda: (pair.behind.path / "new-0").mkdir()),
        (errno.EPERM, lambda: (behind / "file").touch()),
        (errno.EPERM, lambda: (behind / "append").unlink()),
        (errno.EPERM, lambda: (behind / "append").chmod(0o600)),
        (errno.ENOENT, lambda: (behind / "records").stat()),
        (errno.ENOENT, lambda: (pair.behind.path / "missing-0").stat()),
    ):
        with refuses(number):
            call()
    os.close(descriptor)
    assert lines_of(directory) == [b"one"]


# The mount.


def test_the_tree(pair: Pair) -> None:
    """Each partition has its two files, with the permissions of the store's mount; `.logfs` tells of the mount."""
    directory, behind = pair.partition()
    (directory / "append").chmod(0o620)
    listed = sorted(each.name for each in pair.behind.path.iterdir())
    # The files of topics are on the store's mount alone.
    assert [*listed, "topics"] == sorted(each.name for each in pair.store.path.iterdir())
    assert sorted(each.name for each in behind.iterdir()) == ["append", "append.jsonl"]
    for name in ("append", "append.jsonl"):
        mine, theirs = (behind / name).stat(), (directory / name).stat()
        assert (mine.st_mode, mine.st_uid, mine.st_size) == (theirs.st_mode, theirs.st_uid, 0)
    assert (behind / "append").read_bytes() == b""
    told = status(pair.behind)
    assert told["write_behind"] == str(pair.store.path)
    assert told["linger_ms"] == LINGER_MS


@pytest.mark.usefixtures("mounts_alone")
def test_it_can_be_unmounted_right_after_a_close(own: Pair) -> None:
    """`umount` right after the last close is never busy, although rounds hold the mount for moments."""
    directory, behind = own.partition()
    for n in range(10 if DEEP else 4):
        (behind / "append").write_bytes(b"%d\n" % n)
        ok("umount", own.behind.path)
        assert lines_of(directory)[-1] == b"%d" % n
        own.behind.stop()
        own.behind.start()


def test_wrong_arguments(pair: Pair, tmp_path: Path) -> None:
    """Each wrong argument gives one line that says what to do."""
    empty = tmp_path / "empty"
    empty.mkdir()
    (tmp_path / "full").mkdir()
    (tmp_path / "full/file").touch()
    store = pair.store.path
    for words, expected in (
        ([empty, tmp_path / "full"], "is not empty"),
        ([tmp_path, empty], "no store is mounted here"),
        ([pair.behind.path, empty], "no store is mounted here"),
        ([store, tmp_path / "missing"], "does not exist"),
        ([store, store / ".logfs"], "lies in another mount"),
        ([store, pair.behind.path], "already mounted"),
        (["--linger-ms=0", store, empty], "must be from 1 to 60000"),
    ):
        assert expected in fails("mount", "--write-behind", *words)
    for words, expected in (
        ([store], "give two paths"),
        (["-olinger_ms=soon", store, empty], "give a number"),
        (["-onothing", store, empty], "no such mount option"),
        (["--read-only", store, empty], "cannot be read-only"),
    ):
        assert expected in misused("mount", "--write-behind", *words)
    assert not is_mounted(empty)


def test_other_commands_name_the_store(pair: Pair) -> None:
    """A write-behind mount given to another command leads to the store's mount; `status` shows it."""
    assert str(pair.store.path) in fails("top", "--once", pair.behind.path)
    shown = ok("status", pair.behind.path)
    assert f"  store       {pair.store.path} (write-behind)" in shown
    assert "  errors " in shown


@pytest.mark.usefixtures("mounts_alone")
def test_an_fstab_line(pair: Pair, tmp_path: Path) -> None:
    """`mount.logfs` with `-o write_behind,linger_ms=N` mounts in the background, and `logfs umount` ends it."""
    place = tmp_path / "place"
    place.mkdir()
    helper = Path(sys.executable).with_name("mount.logfs")
    directory, _ = pair.partition()
    run(helper, pair.store.path, place, "-o", "rw,write_behind,linger_ms=20")
    try:
        (place / directory.name / "append").write_bytes(b"a line\n")
        wait_for(lambda: lines_of(directory) == [b"a line"])
        assert orjson.loads((place / ".logfs/status.json").read_bytes())["linger_ms"] == 20
        run(sys.executable, "-m", "logfs", "umount", place)
        assert not is_mounted(place)
    finally:
        clear(place)


@pytest.mark.usefixtures("mounts_alone")
def test_as_the_volume_of_a_container() -> None:
    """A partition of a write-behind mount is /data in containers of root and of another user."""
    need_fuse()
    need_root()
    need_command("bwrap")
    base = Path(tempfile.mkdtemp(prefix="logfs-"))
    base.chmod(0o755)
    (base / "log").mkdir(mode=0o755)
    script = "echo one >> /data/append; seq 2 1000 >> /data/append; ls /data"
    with make(base, LINGER_MS, "-oallow_other") as made:
        directory, behind = made.partition()
        directory.chmod(0o777)
        for container in (Container(behind, 0), Container(behind, NOBODY)):
            assert container.run(script).split() == ["append", "append.jsonl"]
            wait_for(lambda: len(lines_of(directory)) % 1000 == 0)
        assert lines_of(directory) == [b"one", *(b"%d" % n for n in range(2, 1001))] * 2
    assert_clean(*made.store.log_dirs)
    run("rm", "-r", base)
