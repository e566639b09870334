"""Readers and writers during rolls, retention and compaction see no error, no gap and no duplicate.

LOGFS_CROWD_ROUNDS is the number of rounds of rolling, retention and compaction (in scripts/crash: 1,000).
"""

from __future__ import annotations

import os
import random
import re
import shutil
import subprocess
import sys
import threading
import time
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from logfs.errors import OffsetOutOfRange
from logfs.format.batches.record import Record
from logfs.format.text.rendering import View
from logfs.log.read.text_view import KEPT_SEGMENTS
from logfs.store.store import Store
from tests.support.batches import Batches
from tests.support.mounts import Mount
from tests.support.processes import Threads, wait_for
from tests.support.requirements import DEEP, need_command, need_fuse
from tests.support.stores import assert_clean

if TYPE_CHECKING:
    from collections.abc import Callable

THREADS = 4
ROUNDS = int(os.environ.get("LOGFS_CROWD_ROUNDS", "12" if DEEP else "6"))
NAME = "orders-0"


class Crowd:
    """Threads that append to a log, read it and maintain it at the same time."""

    APPENDERS = 4

    def __init__(self, store: Store) -> None:
        self.store = store
        self.log = store[NAME]
        self.errors: list[BaseException] = []
        self.appended = threading.Event()
        self.rounds = 0
        self.counts = [0] * self.APPENDERS

    def run(self) -> None:
        """Run all threads for 2 * ROUNDS rounds of `keep`; raise the first error of any."""
        writing, others = Threads(self.errors), Threads(self.errors)
        for work in (self.tail, self.look, self.keep):
            others.start(work)
        for number in range(self.APPENDERS):
            writing.start(partial(self.append, number))
        writing.join()
        self.appended.set()
        others.join()
        if self.errors:
            raise self.errors[0]

    def append(self, number: int) -> None:
        """Append numbered records of one writer, two per batch."""
        while self.rounds < 2 * ROUNDS and not self.errors:
            count = self.counts[number]
            key = b"%d-%d" % (number, count % 7)
            self.log.append([Record(b"%d %d" % (number, count), key), Record(b"-", b"all")])
            self.counts[number] += 1
            # Locks are not fair: a thread that releases one and takes it again at once starves the others.
            time.sleep(0.0005)

    def tail(self) -> None:
        """A text view from before the first append shows every record, also those that have left the log since."""
        view = self.log.text(View.LINES)
        parts = []
        seen = 0
        while True:
            last = self.appended.is_set()
            size = view.size
            assert size >= seen
            parts.append(view.read(seen, size - seen))
            seen = size
            if last:
                break
            time.sleep(0.002)
        lines = [line.split() for line in b"".join(parts).splitlines() if line != b"-"]
        for number in range(self.APPENDERS):
            counts = [int(count) for writer, count in lines if int(writer) == number]
            assert counts == list(range(self.counts[number]))

    def look(self) -> None:
        """Ranges and reads at random offsets of the log succeed, with records in order."""
        chosen = random.Random(1)
        while not self.appended.is_set():
            start, end = self.log.log_start_offset, self.log.log_end_offset
            time.sleep(0.002)
            offset = chosen.randrange(start, end + 1)
            text = self.log.text(View.LINES, offset, min(offset + 50, end))
            assert len(text.read(0, text.size)) == text.size
            with suppress(OffsetOutOfRange):
                # Retention may have deleted the offset before the read.
                found = [record.offset for record in self.log.read(offset, offset + 200)]
                assert found == sorted(set(found))
                assert not found or found[0] >= offset

    def keep(self) -> None:
        """Roll and compact the log repeatedly, delete records in every third round, and run the other upkeep."""
        while not self.appended.is_set():
            self.store.compact(NAME, roll=True)
            if self.rounds % 3 == 2:
                self.store.delete_records(NAME, self.log.active.base_offset)
                self.store.retain()
            self.store.upkeep(compaction=False)
            self.rounds += 1


def test_threads_during_rolls_retention_and_compaction(log_dir: Path) -> None:
    """A tail sees every record once, ranges and reads succeed, and no descriptor is leaked."""
    with Store(log_dir) as store:
        for name, value in (
            ("cleanup.policy", "compact,delete"),
            ("segment.bytes", "6000"),
            ("file.delete.delay.ms", "0"),
        ):
            store.settings.set_topic("orders", name, value)
        log = store.create(NAME)
        store.compact(NAME)
        before = len(os.listdir("/proc/self/fd"))
        Crowd(store).run()
        assert log.segments[0].base_offset > 0
        store.upkeep(compaction=False)
        after = len(os.listdir("/proc/self/fd"))
        # A segment has a log and three indexes; up to four more segments may be held by the last reads.
        assert after - before <= 4 * (len(log.segments) + 4)


# Over a mount: programs that use plain files.

PARTITIONS = ("orders-0", "orders-1", "orders-2")
WRITERS = 8
# A writer: appends numbered lines with keys of its own to each partition in turn, until the file `stop` exists.
WRITER = """
import os, sys, time
name, stop, *paths = sys.argv[1:]
files = [open(path, "ab", buffering=0) for path in paths]
numbers = [0] * len(files)
while not os.path.exists(stop):
    for at, file in enumerate(files):
        lines = b""
        for _ in range(1 + numbers[at] % 3):
            value = f"{name} {numbers[at]}"
            lines += b'{"key":"%s-%d","value":"%s"}\\n' % (name.encode(), numbers[at] % 5, value.encode())
            numbers[at] += 1
        if file.write(lines) != len(lines):
            sys.exit("a short write")
    time.sleep(0.04)
print(*numbers)
"""


class Usage(NamedTuple):
    """The descriptors and the resident memory (in MB) of a daemon."""

    descriptors: int
    memory_mb: float


def in_order(lines: bytes) -> dict[bytes, list[int]]:
    """Return the numbers of each writer, and check that they increase: no line twice, none out of order."""
    found: dict[bytes, list[int]] = {}
    for line in lines.splitlines():
        name, number = line.split()
        found.setdefault(name, []).append(int(number))
    for name, numbers in found.items():
        assert numbers == sorted(set(numbers)), f"writer {name!r}: {numbers}"
    return found


class MountedCrowd:
    """Writers, followers and readers of three partitions, each a process or a thread."""

    def __init__(self, mount: Mount, scratch: Path) -> None:
        self.mount = mount
        self.scratch = scratch
        self.partitions = [mount.partition(name) for name in PARTITIONS]
        self.stop = scratch / "stop"
        self.over = threading.Event()
        self.errors: list[BaseException] = []
        self.looks = dict.fromkeys(("ranges", "whole ranges", "copies", "records", "python"), 0)
        for partition in self.partitions:
            settings = {
                "cleanup.policy": "compact,delete",
                "segment.bytes": "1000000",
                "file.delete.delay.ms": "0",
                "min.cleanable.dirty.ratio": "1.0",
            }
            for name, value in settings.items():
                (partition / "config" / name).write_text(value)
        self.tails = [scratch / f"tail-{name}" for name in PARTITIONS]

    def run(self, rounds: int) -> list[Usage]:
        """Run `rounds` rounds, and return the daemon's usage before them, after each quarter, and at the end.

        At the end all followers have read everything.
        """
        followers = [self._follow(*pair) for pair in zip(self.partitions, self.tails, strict=True)]
        writers = [self._write(number) for number in range(WRITERS)]
        readers = Threads(self.errors)
        try:
            for work in (self._ranges, self._copies, self._records, self._python):
                readers.start(partial(self._again, work))
            usage = [self._usage()]
            turns = -(-rounds // len(PARTITIONS))
            for turn in range(turns):
                self._turn()
                assert not self.errors, self.errors[0]
                assert not any(writer.poll() for writer in writers), "a writer died"
                if (turn + 1) % max(turns // 4, 1) == 0:
                    usage.append(self._usage())
            self.over.set()
            readers.join()
            self.stop.touch()
            written = [
                list(map(int, writer.communicate(timeout=30)[0].split())) for writer in writers
            ]
            assert not self.errors, self.errors[0]
            for at, tail in enumerate(self.tails):
                self._expect_all(tail, [counts[at] for counts in written])
            # Segments that all readers have passed are released when the next segments leave the log.
            for partition in self.partitions:
                with (partition / "append.jsonl").open("ab") as file:
                    file.write(b'{"key":"last","value":"last 0"}\n')
            self._turn()
            return [*usage, self._usage()]
        finally:
            self.over.set()
            self.stop.touch()
            readers.join()
            for process in (*followers, *writers):
                process.kill()
                process.communicate()

    def _write(self, number: int) -> subprocess.Popen[bytes]:
        paths = [partition / "append.jsonl" for partition in self.partitions]
        command = [sys.executable, "-I", "-S", "-c", WRITER, f"w{number}", self.stop, *paths]
        return subprocess.Popen(list(map(str, command)), stdout=subprocess.PIPE)

    def _follow(self, partition: Path, output: Path) -> subprocess.Popen[bytes]:
        command = [need_command("tail"), "-n", "+1", "-s", "0.2", "-f", str(partition / "records")]
        with output.open("wb") as stream:
            return subprocess.Popen(command, stdout=stream)

    def _expect_all(self, tail: Path, written: list[int]) -> None:
        """Check that a follower has seen every line of every writer, once and in order."""
        wait_for(lambda: tail.read_bytes().count(b"\n") >= sum(written))
        found = in_order(tail.read_bytes())
        for number, count in enumerate(written):
            assert found[b"w%d" % number] == list(range(count))

    def _turn(self) -> None:
        """Roll each partition, compact its sealed segments, and delete what the previous turn has compacted."""
        before = [self._dirty(partition) for partition in self.partitions]
        for partition, dirty in zip(self.partitions, before, strict=True):
            wait_for(lambda: self._end(partition) > dirty)  # noqa: B023
            (partition / "ctl").write_text("roll")
            (partition / "ctl").write_text("compact")
        for partition, dirty in zip(self.partitions, before, strict=True):
            wait_for(lambda: self._dirty(partition) > dirty, 60)  # noqa: B023
            # The first of the two remaining segments, which the previous turn compacted, is deleted.
            start = int((partition / "log-start-offset").read_text())
            (partition / "log-start-offset").write_text(str(max(dirty, start)))
            (partition / "ctl").write_text("retain")
            assert int((partition / "log-start-offset").read_text()) == max(dirty, start)

    def _dirty(self, partition: Path) -> int:
        """Return the offset up to which a partition is compacted."""
        found = re.search(
            r"^dirty from offset (\d+)", (partition / "ctl").read_text(), re.MULTILINE
        )
        assert found is not None
        return int(found[1])

    def _untouched_from(self, partition: Path) -> int:
        """Return the offset from which a partition is not compacted yet; during a compaction, sys.maxsize."""
        doing = (partition / "ctl").read_text()
        return sys.maxsize if "compacting" in doing else self._dirty(partition)

    def _usage(self) -> Usage:
        assert self.mount.process is not None
        process = Path(f"/proc/{self.mount.process.pid}")
        found = re.search(r"VmRSS:\s+(\d+)", (process / "status").read_text())
        assert found is not None
        return Usage(len(list((process / "fd").iterdir())), int(found[1]) / 1000)

    def _again(self, work: Callable[[random.Random, Path], None]) -> None:
        chosen = random.Random(work.__name__)
        while not self.over.is_set() and not self.errors:
            work(chosen, chosen.choice(self.partitions))
            # Leave processor time to the other processes.
            time.sleep(0.02)

    def _ranges(self, chosen: random.Random, partition: Path) -> None:
        """A range has no line twice, and has every line unless it was compacted or deleted meanwhile."""
        end = self._end(partition)
        first = max(end - chosen.randrange(1, 300), 0)
        done = subprocess.run(
            ["cat", partition / f"offsets/{first}..{end}"], capture_output=True, check=False
        )
        if first < int((partition / "log-start-offset").read_text()):
            return
        assert done.returncode == 0, done.stderr
        found = in_order(done.stdout)
        self.looks["ranges"] += 1
        if self._untouched_from(partition) <= first:
            assert sum(map(len, found.values())) == end - first
            for numbers in found.values():
                assert numbers == list(range(numbers[0], numbers[-1] + 1))
            self.looks["whole ranges"] += 1

    def _end(self, partition: Path) -> int:
        import json

        return int(json.loads((partition / "status.json").read_text())["log_end_offset"])

    def _copies(self, chosen: random.Random, partition: Path) -> None:
        """`cp` of the segments copies whole batches; its errors only name files that were deleted or replaced."""
        copy = self.scratch / "copy"
        shutil.rmtree(copy, ignore_errors=True)
        done = subprocess.run(
            ["cp", "-r", partition / "segments", copy], capture_output=True, check=False
        )
        for line in done.stderr.splitlines():
            assert re.search(rb"No such file or directory|was replaced while being copied", line), (
                line
            )
        for path in copy.glob("*.log"):
            batches = Batches(path.read_bytes())
            assert all(batch.is_valid for batch in batches)
            assert batches.end == len(batches.data)
        self.looks["copies"] += 1

    def _records(self, chosen: random.Random, partition: Path) -> None:
        """All of `records`, opened by name, is in order; a single record can be read, or has left the log."""
        in_order((partition / "records").read_bytes())
        end = self._end(partition)
        with suppress(FileNotFoundError):
            in_order((partition / f"offsets/{chosen.randrange(end + 1)}").read_bytes() + b"\n")
        self.looks["records"] += 1

    def _python(self, chosen: random.Random, partition: Path) -> None:
        """A read-only store on the log directory of the mount follows the log."""
        with Store(self.mount.log_dirs, read_only=True, only=partition.name) as store:
            log = store[partition.name]
            at = log.log_start_offset
            for _ in range(20):
                store.refresh()
                with suppress(OffsetOutOfRange):
                    values = [
                        record.value or b"" for record in log.read(max(at, log.log_start_offset))
                    ]
                    in_order(b"".join(value + b"\n" for value in values))
                    at = log.log_end_offset
                time.sleep(0.005)
        self.looks["python"] += 1


def test_programs_during_rolls_retention_and_compaction(
    make_mount: Callable[..., Mount], tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """`tail -f` sees each line once, ranges have no gap, and the daemon's memory and descriptors do not grow."""
    mount = make_mount()
    crowd = MountedCrowd(mount, tmp_path)
    first, *usage = crowd.run(ROUNDS)
    for name, value in (("looks", crowd.looks), ("usage", [first, *usage])):
        print(f"{name}: {value}")
        record_property(name, str(value))
    assert all(crowd.looks.values()), crowd.looks
    # A segment has a log and three indexes, each with another descriptor for its map. The open segments of a
    # partition are those that its follower has just passed, and a few that are in the log, are being created, or are
    # open for a moment; before the followers have caught up, also those that they have not reached. The segments that
    # 1,000 rounds delete would need 14,000 descriptors.
    each_segment = len(PARTITIONS) * 7
    assert usage[-1].descriptors <= first.descriptors + each_segment * 2 * KEPT_SEGMENTS
    assert max(each.descriptors for each in usage) <= first.descriptors + each_segment * 100
    # The text cache grows to its limit of 32 MiB, and the looked-up names to their limit of 20,000, which use about
    # as much memory again.
    assert usage[-1].memory_mb <= usage[0].memory_mb + 64


def test_the_first_requests_of_a_process_are_answered(tmp_path: Path) -> None:
    """Threads write and read as soon as the mount is ready, while its daemon still loads the compiled code."""
    need_fuse()
    mount = Mount(tmp_path / "mnt", [tmp_path / "log"], is_forked=False)
    errors: list[BaseException] = []
    threads = Threads(errors)

    def work(number: int) -> None:
        directory = mount.partition(f"first{number}-0")
        for n in range(20):
            with (directory / "append").open("ab", buffering=0) as file:
                file.write(b"%d\n" % n)
            assert (directory / "records").read_bytes() == b"".join(
                b"%d\n" % m for m in range(n + 1)
            )
            assert (directory / f"offsets/{n}").read_bytes() == b"%d" % n
            assert (directory / "records.jsonl").read_bytes().count(b"\n") == n + 1

    try:
        mount.start()
        for number in range(THREADS):
            threads.start(partial(work, number))
        threads.join()
        assert errors == []
        assert mount.errors() == ""
    finally:
        mount.stop()
    assert_clean(tmp_path / "log")
