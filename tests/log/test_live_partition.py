"""A read-only store beside a writer in another process: kafka-storage 3.5, 3.6, 4, 7, 8.8, 10.

The writer is a logfs in a process of its own. Retention and compaction are mostly done here, by the renames that a
broker does, so that the reader can look at the directory between any two of them.
"""

from __future__ import annotations

import errno
import itertools
import os
import random
import signal
import struct
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import orjson
import pytest

import logfs
from logfs.cli import main, scanning
from logfs.errors import OffsetOutOfRange, UnknownPartition
from logfs.format.base import names
from logfs.format.base.names import TopicPartition
from logfs.format.batches.record import Record
from logfs.format.files import checkpoint
from logfs.format.text.rendering import View
from logfs.log.disk.disk import Disk, ReadOnlyDisk
from logfs.log.read.text_view import TextView
from logfs.log.segment import text_index_cache
from logfs.log.segment.index import OffsetIndex, TimeIndex
from logfs.log.segment.text_index import TextIndex
from logfs.store.directory.log_dir import LOG_STARTS
from logfs.store.observe.check import check
from logfs.store.store import Store
from tests.support.batches import Batches
from tests.support.examples import seed_of
from tests.support.partitions import values
from tests.support.processes import stopped, wait_for
from tests.support.requirements import DEEP
from tests.support.stores import fingerprint, locks_below, set_topic

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from logfs.log.append.partition import Partition
    from logfs.log.disk.disk import Entry, File, Status
    from logfs.log.read.reader import Reader
    from tests.support.mounts import Mount

NAME = "orders-0"
WRITER = """
import sys
from logfs.store.store import Store
for line in sys.stdin:
    exec(line)
    print(flush=True)
"""


class Writer:
    """A logfs in another process, which runs the code that it gets: `writer("store.create('orders-0')")`."""

    log_dir: Path
    next_value = 0

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", WRITER], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )

    def open(self, log_dir: Path, next_value: int = 0) -> Writer:
        """Open this directory for the writes from now on."""
        self(f"store = Store({str(log_dir)!r})")
        self.log_dir = log_dir
        self.next_value = next_value
        return self

    def __call__(self, code: str) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(code.encode() + b"\n")
        self.process.stdin.flush()
        assert self.process.stdout.readline() == b"\n", code

    def create(self, name: str = NAME, **settings: object) -> None:
        self(f"p = store.create({name!r})")
        for setting, value in settings.items():
            text = setting.replace("_", "."), str(value).lower()
            self(f"store.settings.set_topic(p.topic, *{text!r})")

    def append(self, count: int = 1, size: int = 0) -> list[bytes]:
        """Append a batch of records, each with the next number."""
        values = [b"%d" % n + b"x" * size for n in range(self.next_value, self.next_value + count)]
        self.next_value += count
        self(f"p.append({values!r})")
        return values

    def roll(self) -> None:
        self("p.roll(store.clock())")

    def kill(self) -> None:
        self.process.kill()
        self._reap()

    def _reap(self) -> None:
        self.process.wait(30)
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            pipe.close()


@pytest.fixture(scope="module")
def processes() -> Iterator[list[Writer]]:
    """The writers so far; the next test uses the last one again."""
    writers: list[Writer] = []
    yield writers
    for writer in writers:
        writer.kill()


@pytest.fixture
def writer(processes: list[Writer], tmp_path: Path) -> Iterator[Writer]:
    """A writer in another process, with an empty partition."""
    if not processes or processes[-1].process.poll() is not None:
        processes.append(Writer())
    writer = processes[-1].open(tmp_path / "live")
    writer.create()
    yield writer
    if writer.process.poll() is None:
        writer("store.close()")


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's cache directory for text indexes, used for small segments too."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(text_index_cache, "SMALLEST_BYTES", 1)
    return tmp_path / "cache/logfs/text"


def text_of(partition: Partition, view: View = View.LINES) -> bytes:
    shown = TextView(partition, view)
    text = shown.read(0, shown.size)
    assert len(text) == shown.size
    return text


def lines(wanted: list[bytes]) -> bytes:
    return b"".join(value + b"\n" for value in wanted)


def assert_shows(store: Store, offsets: dict[int, bytes], name: str = NAME) -> None:
    """Refresh, and assert that every kind of read gives exactly these records."""
    store.refresh()
    partition = store[name]
    records = list(partition.read())
    assert {record.offset: record.value for record in records} == offsets
    assert text_of(partition) == lines(list(offsets.values()))
    jsonl = text_of(partition, View.ENVELOPES).splitlines()
    assert [orjson.loads(line)["offset"] for line in jsonl] == list(offsets)
    for offset in range(partition.log_start_offset, partition.log_end_offset):
        record = partition.record(offset)
        assert (record and record.value) == offsets.get(offset)
    for record in records[::7]:
        assert record.timestamp is not None
        found = partition.offset_for_time(record.timestamp)
        expected = next(other for other in records if other.timestamp >= record.timestamp)  # type: ignore[operator]
        assert found is not None
        assert (found.offset, found.timestamp) == (expected.offset, expected.timestamp)


def segment_files(directory: Path, base: int) -> list[Path]:
    return sorted(directory.glob(f"{base:020}.*"))


def retire(directory: Path, base: int) -> list[Path]:
    """Rename the files of a segment to `.deleted`, as retention does first; return the new paths."""
    return [
        path.rename(path.with_name(path.name + names.DELETED))
        for path in segment_files(directory, base)
    ]


# Following.


def test_a_reader_follows_appends_and_rolls(writer: Writer) -> None:
    """Each refresh shows the appends and rolls so far: by offset, as text, by time and in point lookups."""
    with Store(writer.log_dir, read_only=True) as store:
        assert store.log_dirs[0].live
        shown: dict[int, bytes] = {}
        partition = store[NAME]
        assert partition.refresh() is False
        for count in (1, 3, 40):
            for value in writer.append(count):
                shown[len(shown)] = value
            assert_shows(store, shown)
            writer.roll()
            assert_shows(store, shown)
        assert store[NAME] is partition
        assert (partition.generation, len(partition.segments)) == (0, 4)
        assert partition.last_timestamp > 0


def test_a_view_continues_through_rolls(writer: Writer) -> None:
    """An open view only grows, and shows every record once, however often the log rolls."""
    with Store(writer.log_dir, read_only=True) as store:
        partition = store[NAME]
        view = TextView(partition, View.LINES)
        shown: list[bytes] = []
        seen = b""
        for number in range(12):
            shown += writer.append(number + 1, size=20)
            if number % 3:
                writer.roll()
            if number % 2:
                partition.refresh()
                seen += view.read(len(seen), view.size - len(seen))
                assert seen == lines(shown)
        assert partition.generation == view.generation == 0


@pytest.mark.parametrize("state", ["clean", "killed", "torn"])
def test_a_directory_is_followed_once_a_writer_starts(
    writer: Writer, processes: list[Writer], state: str
) -> None:
    """A read-only store shows a directory without a writer as it is, and follows a writer that starts later."""
    shown = dict(enumerate(writer.append(5)))
    second = writer
    if state == "clean":
        writer("store.close()")
    else:
        writer.kill()
        second = Writer()
        processes.append(second)
    log = writer.log_dir / NAME / f"{0:020}.log"
    if state == "torn":
        with log.open("ab") as file:
            file.write(log.read_bytes()[:70])
    with Store(writer.log_dir, read_only=True) as store:
        assert not store.log_dirs[0].live
        assert_shows(store, shown)
        second.open(writer.log_dir, next_value=5)(f"p = store[{NAME!r}]")
        for value in second.append(30):
            shown[len(shown)] = value
        second.roll()
        for value in second.append(3):
            shown[len(shown)] = value
        assert_shows(store, shown)
        second("store.close()")
        assert_shows(store, shown)


class CountingDisk(ReadOnlyDisk):
    """A read-only disk that counts opened files and bytes read."""

    opened = 0
    bytes_read = 0

    def open(self, path: Path, *, write: bool = False, create: bool = False):  # type: ignore[no-untyped-def]
        self.opened += 1
        return super().open(path, write=write, create=create)

    def read(self, file, position: int, size: int):  # type: ignore[no-untyped-def]
        data = super().read(file, position, size)
        self.bytes_read += len(data)
        return data


def test_opening_reads_only_the_end_of_the_log(writer: Writer) -> None:
    """Opening and refreshing read no more for more segments or for a longer last one."""
    for _ in range(60):
        writer.append()
        writer.roll()
    writer("for _ in range(40): p.append([b'x' * 100_000] * 2)")
    writer(f"p.append([b'{'y' * 100_000}'])")
    disk = CountingDisk()
    with Store(writer.log_dir, read_only=True, disk=disk) as store:
        assert store[NAME].log_end_offset == 60 + 81
        assert len(store[NAME].segments) == 61
        assert disk.opened < 20
        assert disk.bytes_read < 1_000_000
        before = disk.opened, disk.bytes_read
        time.sleep(0.1)
        store.refresh()
        store.refresh()
        settled = disk.opened
        store.refresh()
        assert disk.opened == settled
        assert disk.bytes_read - before[1] < 10_000


CALLS = int(os.environ.get("LOGFS_PAUSED_CALLS", "30" if DEEP else "15"))


class PausingDisk(ReadOnlyDisk):
    """A disk that calls `meddle` before its call number `number`. A thread may be paused there on a busy machine."""

    def __init__(self, number: int, meddle: Callable[[], object]) -> None:
        super().__init__()
        self.left = number
        self._meddle = meddle

    def _count(self) -> None:
        self.left -= 1
        if self.left == 0:
            self._meddle()

    def open(self, path: Path, *, write: bool = False, create: bool = False):  # type: ignore[no-untyped-def]
        self._count()
        return super().open(path, write=write, create=create)

    def read(self, file, position: int, size: int):  # type: ignore[no-untyped-def]
        self._count()
        return super().read(file, position, size)

    def stat(self, path: Path, *, follow: bool = False) -> Status:
        self._count()
        found = super().stat(path, follow=follow)
        self._count()
        return found

    def size(self, file) -> int:  # type: ignore[no-untyped-def]
        self._count()
        return super().size(file)

    def scan(self, path: Path) -> Iterator[Entry]:
        self._count()
        found = [*super().scan(path)]
        self._count()
        return iter(found)


@pytest.mark.parametrize("roll", [False, True])
def test_nothing_is_missed_that_comes_while_a_log_is_opened_or_refreshed(
    writer: Writer, roll: bool
) -> None:
    """Whatever step takes long: the next refresh has what was appended meanwhile, and sees that there was more."""
    total = len(writer.append(3))

    def meddle() -> None:
        nonlocal total
        if roll:
            writer.roll()
        total += len(writer.append(1))
        # Longer than the tick in which two changes may have one mtime.
        time.sleep(0.06)

    most = 10_000
    disk = PausingDisk(most, meddle)
    with Store(writer.log_dir, read_only=True, disk=disk) as store:
        store.refresh()
    calls = most - disk.left
    assert calls > 20
    # Each of them, in the long run of the tests.
    step = max(calls // CALLS, 1)
    for number in range(1 + seed_of() % step, calls + 1, step):
        time.sleep(0.06)
        disk = PausingDisk(number, meddle)
        with Store(writer.log_dir, read_only=True, disk=disk) as store:
            store.refresh()
            assert store[NAME].log_end_offset == total or not store.is_unchanged(), number
            store.refresh()
            assert store[NAME].log_end_offset == total, number


class RenamingDisk(ReadOnlyDisk):
    """A disk on which, while `hides` is set, listings miss the first and the second .log file in turns.

    As by real renames, the directory has always changed a moment ago.
    """

    hides = False
    _scans = 0

    def stat_settled(
        self, path: Path, since_ns: int | None = None, *, follow: bool = False
    ) -> tuple[Status, bool]:
        found, is_settled = super().stat_settled(path, since_ns, follow=follow)
        return found, is_settled and not self.hides

    def scan(self, path: Path) -> Iterator[Entry]:
        found = sorted(super().scan(path))
        logs = [entry for entry in found if entry.name.endswith(names.LOG)]
        if self.hides and logs:
            self._scans += 1
            found.remove(logs[(self._scans + 1) % 2])
        return iter(found)


def test_a_listing_that_misses_files_is_not_used(writer: Writer) -> None:
    """A log that is renamed faster than it can be listed stays as it was, and does not seem to begin later."""
    for _ in range(3):
        writer.append()
        writer.roll()
    disk = RenamingDisk()
    with Store(writer.log_dir, read_only=True, disk=disk) as store:
        end = store[NAME].log_end_offset
        disk.hides = True
        more = len(writer.append())
        writer.roll()
        store.refresh()
        assert store[NAME].log_start_offset == 0
        assert store[NAME].log_end_offset in {end, end + more}
        disk.hides = False
        store.refresh()
        assert (store[NAME].log_start_offset, store[NAME].log_end_offset) == (0, end + more)


class MeddledDisk(ReadOnlyDisk):
    """A disk that calls `meddle` between the listing of a directory and the first `times` openings of a .log."""

    def __init__(self, directory: Path, meddle: Callable[[], object], times: int) -> None:
        super().__init__()
        self._directory = directory
        self._meddle = meddle
        self._times = times

    def open(self, path: Path, *, write: bool = False, create: bool = False):  # type: ignore[no-untyped-def]
        if path.parent == self._directory and path.suffix == names.LOG and self._times:
            self._times -= 1
            self._meddle()
        return super().open(path, write=write, create=create)


@pytest.mark.parametrize("change", ["retention", "compaction"])
def test_opening_while_files_are_removed_finds_the_partition(writer: Writer, change: str) -> None:
    """A listing that is outdated before its files are opened is repeated: an existing partition is never missing."""
    for _ in range(3):
        writer.append()
        writer.roll()
    directory = writer.log_dir / NAME

    def retain() -> None:
        writer("store.settings.set_topic('orders', 'file.delete.delay.ms', '0')")
        writer(f"store.delete_records({NAME!r}, p.log_end_offset)")
        writer("store.upkeep(compaction=False)")

    def compact() -> None:
        clean(directory, [2], lambda offset: True, lambda: None)

    # The last segment is empty, so the one before it is opened for the time of the last record.
    meddle, left = (retain, []) if change == "retention" else (compact, [b"0", b"1", b"2"])
    disk = MeddledDisk(directory, meddle, 3)
    with Store(writer.log_dir, read_only=True, disk=disk) as store:
        assert values(store[NAME]) == left


@pytest.mark.parametrize("preallocate", [False, True])
def test_a_half_written_batch_is_not_shown(writer: Writer, preallocate: bool) -> None:
    """Only whole batches are shown, whatever part of the last one is in the file; once complete, it is shown once."""
    writer.create("half-0", preallocate=preallocate, segment_bytes=65536)
    writer("p.roll(0)")
    directory = writer.log_dir / "half-0"
    shown = dict(enumerate(writer.append(3)))
    log = directory / f"{0:020}.log"
    (first,) = Batches(log.read_bytes())
    start = len(first.data)
    value = writer.append(1, size=50)[0]
    after = log.read_bytes()
    end = start + 12 + int.from_bytes(after[start + 8 : start + 12], "big")
    with Store(writer.log_dir, read_only=True) as store:
        assert_shows(store, {**shown, 3: value}, "half-0")
    for cut in [start + 1, start + 11, start + 13, start + 60, start + 62, end - 2]:
        room = b"\0" * (len(after) - cut) if preallocate else b""
        log.write_bytes(after[:cut] + room)
        with Store(writer.log_dir, read_only=True) as store:
            assert_shows(store, shown, "half-0")
            store.refresh()
            assert_shows(store, shown, "half-0")
            with log.open("r+b") as file:
                file.seek(cut)
                file.write(after[cut:end])
            assert_shows(store, {**shown, 3: value}, "half-0")
            assert store["half-0"].generation == 0


def test_damage_in_appended_bytes_is_skipped(writer: Writer) -> None:
    """Bytes that never become a batch, with a batch after them, are reported as damage; later records are shown."""
    shown = dict(enumerate(writer.append(1)))
    log = writer.log_dir / NAME / f"{0:020}.log"
    start = log.stat().st_size
    with Store(writer.log_dir, read_only=True) as store:
        assert_shows(store, shown)
        writer.append(1)
        writer.append(1)
        data = bytearray(log.read_bytes())
        data[start + 65] ^= 1
        log.write_bytes(data)
        store.refresh()
        assert store[NAME].log_end_offset == 3
        writer.append(1)
        store.refresh()
        partition = store[NAME]
        assert partition.log_end_offset == 4
        assert [partition.record(offset).value for offset in (0, 2, 3)] == [b"0", b"2", b"3"]  # type: ignore[union-attr]
        with pytest.raises(logfs.LogfsError, match="damaged"):
            partition.record(1)


# Records that leave the log.


def test_retention_moves_the_start_and_old_views_still_read(writer: Writer) -> None:
    """Deleted segments leave the log at once; an older view shows them to their end, and then continues."""
    directory = writer.log_dir / NAME
    shown: list[bytes] = []
    for _ in range(4):
        shown += writer.append(10)
        writer.roll()
    with Store(writer.log_dir, read_only=True) as store:
        partition = store[NAME]
        old = TextView(partition, View.LINES)
        assert old.size == len(lines(shown))
        doomed = retire(directory, 0) + retire(directory, 10)
        assert_shows(store, dict(list(enumerate(shown))[20:]))
        assert partition.log_start_offset == 20
        assert partition.generation != old.generation
        with pytest.raises(OffsetOutOfRange):
            partition.record(5)
        for path in doomed:
            path.unlink()
        shown += writer.append(3)
        assert_shows(store, dict(list(enumerate(shown))[20:]))
        assert old.read(0, old.size) == lines(shown)


def test_all_segments_expire_between_two_refreshes(writer: Writer) -> None:
    """If all segments but an empty one are deleted, a view shows the rest of its own, then new records, each once."""
    directory = writer.log_dir / NAME
    shown = writer.append(5)
    with Store(writer.log_dir, read_only=True) as store:
        partition = store[NAME]
        view = TextView(partition, View.LINES)
        seen = view.read(0, view.size)
        shown += writer.append(5)
        writer.roll()
        shown += writer.append(1)
        writer.roll()
        for base in (0, 10):
            for path in retire(directory, base):
                path.unlink()
        assert_shows(store, {})
        assert (partition.log_start_offset, partition.log_end_offset) == (11, 11)
        new = writer.append(2)
        assert_shows(store, dict(enumerate(new, 11)))
        # The segment of offset 10 came and went unseen; the open file of the first one still has all of its records.
        seen += view.read(len(seen), view.size - len(seen))
        assert seen == lines(shown[:10] + new)


def test_offsets_of_files_that_vanish_unopened_are_out_of_range(writer: Writer) -> None:
    """Lookups refresh if a segment vanished before it was opened; a read of its old object raises an error."""
    directory = writer.log_dir / NAME
    for _ in range(4):
        writer.append(10)
        writer.roll()
    with Store(writer.log_dir, read_only=True) as store:
        partition = store[NAME]
        held = partition.segments[0]
        for path in segment_files(directory, 0):
            path.unlink()
        with pytest.raises(OffsetOutOfRange):
            partition.record(5)
        assert partition.log_start_offset == 10
        assert partition.offset_for_time(0).offset == 10  # type: ignore[union-attr]
        with pytest.raises(OffsetOutOfRange, match="left the log"):
            held.read(0, 10)
        assert next(partition.read()).offset == 10
        for path in segment_files(directory, 10) + segment_files(directory, 20):
            path.unlink()
        # The read begins at the known log start, whose files are open; the files after it are gone.
        read = partition.read()
        assert [next(read).value for _ in range(10)] == [b"%d" % n for n in range(10, 20)]
        with pytest.raises(OffsetOutOfRange):
            next(read)
        assert values(partition) == [b"%d" % n for n in range(30, 40)]


def test_the_log_start_checkpoint_hides_deleted_records(writer: Writer) -> None:
    """The log start is the larger of the checkpointed offset and the first base offset (kafka-storage 10.2)."""
    directory = writer.log_dir / NAME
    shown = {}
    for _ in range(3):
        shown.update(enumerate(writer.append(10), len(shown)))
        writer.roll()

    def note(offset: int) -> None:
        content = checkpoint.format_offsets({TopicPartition("orders", 0): offset})
        Disk().replace_file(writer.log_dir / LOG_STARTS, content)

    with Store(writer.log_dir, read_only=True) as store:
        note(14)
        assert_shows(store, {n: value for n, value in shown.items() if n >= 14})
        retire(directory, 0)
        assert_shows(store, {n: value for n, value in shown.items() if n >= 14})
        retire(directory, 10)
        assert_shows(store, {n: value for n, value in shown.items() if n >= 20})


def test_truncation_is_noticed(writer: Writer) -> None:
    """After a truncation and new appends, fewer or more than before, only the current records are shown."""
    shown = dict(enumerate(writer.append(5)))
    shown.update(enumerate(writer.append(5), 5))
    with Store(writer.log_dir, read_only=True) as store:
        assert_shows(store, shown)
        old = TextView(store[NAME], View.LINES)
        held = store[NAME].active
        size = old.size
        for again in (2, 9, 0):
            writer(f"store.truncate({NAME!r}, 5)")
            shown = {n: value for n, value in shown.items() if n < 5}
            for value in writer.append(again) if again else ():
                shown[len(shown)] = value
            generation = store[NAME].generation
            assert_shows(store, shown)
            assert store[NAME].generation > generation
        # The old view neither shrinks nor repeats; a read of records that are gone raises an error.
        assert old.size == size
        with pytest.raises(OffsetOutOfRange, match="was truncated"):
            held.read(0, 10)
        writer.roll()
        writer.append(1)
        writer(f"store.truncate({NAME!r}, 3)")
        shown = {}
        store.refresh()
        assert values(store[NAME]) == []
        writer.append(1)
        assert_shows(store, {0: b"%d" % (writer.next_value - 1)})


@pytest.mark.parametrize("size", [0, 1, 5])
@pytest.mark.parametrize("cut", range(4))
def test_a_segment_is_cut_and_sealed_again_at_its_offset(
    writer: Writer, cut: int, size: int
) -> None:
    """Whichever of several sealed segments it is, and if it has fewer, as many or more bytes than before."""
    shown = {}
    for _ in range(4):
        for _ in range(2):
            shown.update(enumerate(writer.append(2, 1), len(shown)))
        writer.roll()
    with Store(writer.log_dir, read_only=True) as store:
        assert_shows(store, shown)
        writer(f"store.truncate({NAME!r}, {4 * cut + 2})")
        shown = {n: value for n, value in shown.items() if n < 4 * cut + 2}
        shown.update(enumerate(writer.append(2, size), len(shown)))
        for _ in range(2):
            writer.roll()
            shown.update(enumerate(writer.append(4, size), len(shown)))
        assert_shows(store, shown)


@pytest.mark.parametrize("was_open", [False, True])
@pytest.mark.parametrize("steps", [*itertools.permutations(("compact", "truncate", "append"))])
def test_transactions_after_changes_that_were_not_seen_one_by_one(
    writer: Writer, was_open: bool, steps: tuple[str, ...]
) -> None:
    """A compaction, a truncation and an append in any order between two looks: open transactions are those of now."""
    writer("store.settings.set_topic('orders', 'cleanup.policy', 'compact')")
    writer("from tests.support.batches import Producer")
    writer("from logfs.format.batches.record import Record")
    writer("p.append([Record(b'v', b'b')])")
    code = {
        "compact": f"store.compact({NAME!r}, roll=True)",
        "truncate": f"store.truncate({NAME!r}, 1)",
        "append": "p.append([Record(b'plain', b'c')])",
    }
    if was_open:
        writer("Producer(p, 1).send_records([Record(b'open', b'a')])")
    else:
        writer("p.append([Record(b'w', b'b')])")
        code["append"] = "Producer(p, 1).send_records([Record(b'open', b'a')])"
    with Store(writer.log_dir, read_only=True) as store:
        _ = [*store[NAME].committed.read()]
        for step in steps:
            writer(code[step])
        store.refresh()
        with Store(writer.log_dir, read_only=True) as fresh:
            for reader, other in (
                (store[NAME], fresh[NAME]),
                (store[NAME].committed, fresh[NAME].committed),
            ):
                assert [*reader.read()] == [*other.read()]
            assert store[NAME].last_stable_offset == fresh[NAME].last_stable_offset
        assert not any(each.value == b"open" for each in store[NAME].committed.read())


def test_an_index_is_cut_while_a_reader_uses_it(writer: Writer) -> None:
    """A mapping would end the process by SIGBUS: a lookup finds its record or raises `OffsetOutOfRange`."""
    writer("store.settings.set_topic('orders', 'index.interval.bytes', '1')")
    shown = {}
    for _ in range(50):
        shown.update(enumerate(writer.append(1), len(shown)))
    writer.roll()
    for _ in range(50):
        shown.update(enumerate(writer.append(1), len(shown)))
    with Store(writer.log_dir, read_only=True) as store:
        assert_shows(store, shown)
        for path in (writer.log_dir / NAME).glob("*index"):
            os.truncate(path, 0)
        partition = store[NAME]
        for offset, value in shown.items():
            try:
                record = partition.record(offset)
            except OffsetOutOfRange:
                continue
            assert record is not None
            assert record.value == value
    # The writer maps the files, so the cut would end its process.
    writer.kill()


@pytest.mark.parametrize("size", [0, 5000])
def test_stale_index_entries_after_the_valid_ones_are_ignored(writer: Writer, size: int) -> None:
    """Kafka truncates an index by counting fewer entries; the old ones stay in the preallocated space after them."""
    writer("store.settings.set_topic('orders', 'index.interval.bytes', '1')")
    shown = {}
    for _ in range(40):
        shown.update(enumerate(writer.append(2, size), len(shown)))
    stem = writer.log_dir / NAME / f"{0:020}"
    now = int(time.time() * 1000)
    for suffix, old in ((".index", (">ii", 70, 61)), (".timeindex", (">qi", now, 20))):
        form, first, second = old
        entry = struct.Struct(form)
        path = Path(f"{stem}{suffix}")
        start = len(path.read_bytes().rstrip(b"\0"))
        start += -start % entry.size
        with path.open("r+b") as file:
            file.seek(start)
            file.write(b"".join(entry.pack(first + n, second + n) for n in range(500)))
    with Store(writer.log_dir, read_only=True) as store:
        assert_shows(store, shown)
        shown.update(enumerate(writer.append(2, size), len(shown)))
        assert_shows(store, shown)
        partition = store[NAME]
        assert partition.offset_for_time(now + 10**6) is None
        newest = partition.offset_for_time(-3)
        assert newest is not None
        assert newest.timestamp == partition.last_timestamp


# Compaction.


def clean(
    directory: Path, bases: list[int], keep: Callable[[int], bool], look: Callable[[], None]
) -> None:
    """Merge segments as the log cleaner does, with a `look` before and after each rename (kafka-storage 8.8)."""
    stem = directory / f"{bases[0]:020}"
    write_cleaned(directory, bases, keep)
    suffixes = [".log", ".index", ".timeindex"]
    doomed = [path for base in bases for path in segment_files(directory, base)]
    doomed = [path for path in doomed if not path.name.endswith(names.CLEANED)]
    renames = [(f"{stem}{suffix}.cleaned", f"{stem}{suffix}.swap") for suffix in suffixes]
    renames += [(str(path), f"{path}.deleted") for path in doomed]
    renames += [(f"{stem}{suffix}.swap", f"{stem}{suffix}") for suffix in suffixes]
    look()
    for old, new in renames:
        os.rename(old, new)
        look()
    for path in doomed:
        path.with_name(path.name + names.DELETED).unlink()
        look()


def write_cleaned(directory: Path, bases: list[int], keep: Callable[[int], bool]) -> None:
    """Write the batches that are kept of some segments, and their indexes, into `.cleaned` files."""
    stem = directory / f"{bases[0]:020}"
    offsets = OffsetIndex(Disk(), Path(f"{stem}.index.cleaned"), bases[0])
    times = TimeIndex(Disk(), Path(f"{stem}.timeindex.cleaned"), bases[0])
    for index in (offsets, times):
        index.preallocate(12 * 1000)
    data = b""
    for base in bases:
        for batch in Batches((directory / f"{base:020}.log").read_bytes()):
            header = batch.header
            if keep(header.base_offset):
                if data:
                    offsets.append(header.last_offset, len(data))
                times.maybe_append(header.max_timestamp, header.last_offset)
                data += bytes(batch.data)
    Path(f"{stem}.log.cleaned").write_bytes(data)
    for index in (offsets, times):
        index.trim()
        index.close()


def test_compaction_is_seen_whole_at_every_rename(writer: Writer, cache: Path) -> None:
    """A reader sees the old segments or the new one, never a mix, even if it opens the store between renames."""
    shown = {}
    for number in range(40):
        shown.update(enumerate(writer.append(1, size=number), number))
        if number % 10 == 9:
            writer.roll()
    writer.append(1)
    shown[40] = b"40"
    kept = {n: value for n, value in shown.items() if n % 3 == 0 or n >= 20}
    states = [shown, kept]
    with Store(writer.log_dir, read_only=True) as store:
        old = TextView(store[NAME], View.LINES)
        assert old.size == len(lines(list(shown.values())))

        def look() -> None:
            store.refresh()
            answer = {record.offset: record.value for record in store[NAME].read()}
            while answer != states[0]:
                del states[0]
            assert_shows(store, states[0])
            with Store(writer.log_dir, read_only=True) as fresh:
                assert_shows(fresh, states[0])

        clean(writer.log_dir / NAME, [0, 10], lambda offset: offset % 3 == 0, look)
        assert states == [kept]
        assert [segment.base_offset for segment in store[NAME].segments] == [0, 20, 30, 40]
        assert old.read(0, old.size) == lines(list(shown.values()))


@pytest.mark.parametrize(
    ("swapped", "cleaned", "counts"),
    [
        (0, [], True),
        (0, [10, 20], True),
        (10, [0, 20], False),
        (10, [10], False),
        (20, [0, 10], False),
        (20, [10], False),
    ],
)
def test_a_replacement_beside_unfinished_ones(
    writer: Writer, swapped: int, cleaned: list[int], counts: bool
) -> None:
    """Of an interrupted compaction, only replacements below all unfinished ones count (kafka-storage 8.8)."""
    for _ in range(3):
        for _ in range(10):
            writer.append(1)
        writer.roll()
    writer.append(1)
    directory = writer.log_dir / NAME
    write_cleaned(directory, [swapped], lambda offset: offset % 2 == 0)
    for suffix in (".log", ".index", ".timeindex"):
        stem = directory / f"{swapped:020}{suffix}"
        os.rename(f"{stem}.cleaned", f"{stem}.swap")
    for base in cleaned:
        (directory / f"{base:020}.log.cleaned").write_bytes(b"")
    gone = range(swapped + 1, swapped + 10, 2) if counts else ()
    with Store(writer.log_dir, read_only=True) as store:
        assert_shows(store, {n: b"%d" % n for n in range(31) if n not in gone})


def test_a_text_index_from_before_a_compaction_is_ignored(writer: Writer) -> None:
    """Kafka leaves the text index as it is when it replaces the segment; readers then go by the log."""
    writer("store.settings.set_topic('orders', 'index.interval.bytes', '1')")
    for _ in range(20):
        writer.append(1)
    writer.roll()
    writer.append(1)
    directory = writer.log_dir / NAME
    text = directory / f"{0:020}.textindex"
    stale = text.read_bytes()
    clean(directory, [0], lambda offset: offset % 2 == 0, lambda: None)
    text.write_bytes(stale)
    with Store(writer.log_dir, read_only=True) as store:
        assert_shows(store, {n: b"%d" % n for n in [*range(0, 20, 2), 20]})


# Partitions.


def test_partitions_come_and_go(writer: Writer) -> None:
    """After creations and deletions (rename, then removal), a name always leads to the current partition."""
    with Store(writer.log_dir, read_only=True) as store:
        assert list(store) == [NAME]
        writer.create("new-0")
        writer.append(2)
        store.refresh()
        new = store["new-0"]
        assert values(new) == [b"0", b"1"]
        writer("store.delete('new-0')")
        assert new.refresh() is False
        store.refresh()
        assert "new-0" not in store
        with pytest.raises(UnknownPartition):
            _ = store["new-0"]
        assert values(new) == [b"0", b"1"]
        writer.create("new-0")
        writer.append(1)
        store.refresh()
        assert values(store["new-0"]) == [b"2"]
        assert store["new-0"] is not new
        writer("store.delete('new-0')")
        writer.create("new-0")
        store.refresh()
        assert values(store["new-0"]) == []


def test_a_partition_that_cannot_be_read_is_tried_again_when_it_changes(writer: Writer) -> None:
    """An unreadable partition is offline with the reason while the others work, and returns when it is repaired."""
    writer.append(1)
    writer.create("other-0")
    epochs = writer.log_dir / NAME / "leader-epoch-checkpoint"
    good = epochs.read_bytes()
    epochs.write_bytes(b"no checkpoint")
    with Store(writer.log_dir, read_only=True) as store:
        assert list(store) == ["other-0"]
        for _ in range(2):
            writer("store.checkpoints.write()")
            store.refresh()
            assert list(store.offline) == [NAME]
        Disk().replace_file(epochs, good)
        writer("store.checkpoints.write()")
        store.refresh()
        assert values(store[NAME]) == [b"0"]


# The user's cache.


def without_text_indexes(directory: Path) -> None:
    """Remove the text indexes of a partition, as if a broker had written it."""
    for path in directory.glob("*.textindex"):
        path.unlink()


def test_the_text_index_of_a_brokers_segment_is_made_once(writer: Writer, cache: Path) -> None:
    """The index of a sealed segment is kept in the user's cache, so the next reader does not read the log.

    The index of the active segment is not kept.
    """
    for _ in range(20):
        writer.append(20, size=1000)
    writer.roll()
    expected = [b"%d" % n + b"x" * 1000 for n in range(400)]
    expected += writer.append(1)
    without_text_indexes(writer.log_dir / NAME)
    before = fingerprint(writer.log_dir)
    read = []
    for _ in range(2):
        disk = CountingDisk()
        with Store(writer.log_dir, read_only=True, disk=disk) as store:
            assert TextView(store[NAME], View.LINES).size == len(lines(expected))
            read.append(disk.bytes_read)
            assert text_of(store[NAME]) == lines(expected)
        assert len(list(cache.iterdir())) == 1
    assert read[0] > 400_000
    assert read[1] < 20_000
    assert fingerprint(writer.log_dir) == before
    # A damaged, cut or emptied file is not used, and is rebuilt.
    (path,) = cache.iterdir()
    good = path.read_bytes()
    for bad in (b"", good[:-1], good[28:], good[:40] + b"\1" + good[41:]):
        path.write_bytes(bad)
        with Store(writer.log_dir, read_only=True) as store:
            assert text_of(store[NAME]) == lines(expected)
        assert path.read_bytes() == good
    # Another file under the same name is another segment, even with the same size and times.
    log = writer.log_dir / NAME / f"{0:020}.log"
    status = log.stat()
    copy = log.with_suffix(".copy")
    copy.write_bytes(log.read_bytes())
    copy.replace(log)
    os.utime(log, ns=(status.st_atime_ns, status.st_mtime_ns))
    with Store(writer.log_dir, read_only=True) as store:
        assert text_of(store[NAME]) == lines(expected)
    assert len(list(cache.iterdir())) == 2


def test_the_cache_is_bounded(writer: Writer, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file that was unused for longest is removed from the cache."""
    shown: list[bytes] = []
    for _ in range(4):
        shown += writer.append(3)
        writer.roll()
    without_text_indexes(writer.log_dir / NAME)
    with Store(writer.log_dir, read_only=True) as store:
        assert text_of(store[NAME]) == lines(shown)
    (one, *others) = sorted(cache.iterdir(), key=lambda path: path.stat().st_mtime_ns)
    assert len(others) == 3
    monkeypatch.setattr(text_index_cache, "LIMIT_BYTES", 4 * one.stat().st_size)
    os.utime(one, ns=(0, 0))
    shown += writer.append(3)
    writer.roll()
    without_text_indexes(writer.log_dir / NAME)
    with Store(writer.log_dir, read_only=True) as store:
        for segment in store[NAME].segments[1:]:
            _ = segment.end
    assert not one.exists()
    assert all(path.exists() for path in others)


@pytest.mark.parametrize("home", ["file", "missing", "relative"])
def test_a_cache_that_cannot_be_written_is_no_error(
    writer: Writer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, home: str
) -> None:
    """Without a usable cache directory reads are slower, but right."""
    monkeypatch.setattr(text_index_cache, "SMALLEST_BYTES", 1)
    (tmp_path / "file").write_bytes(b"")
    monkeypatch.setenv("HOME", "/proc/nowhere" if home == "missing" else str(tmp_path / "file"))
    place = {"file": str(tmp_path / "file"), "missing": "", "relative": "cache"}[home]
    monkeypatch.setenv("XDG_CACHE_HOME", place)
    shown = writer.append(3)
    writer.roll()
    without_text_indexes(writer.log_dir / NAME)
    with Store(writer.log_dir, read_only=True) as store:
        assert text_of(store[NAME]) == lines(shown)


# Random operations.


class Campaign:
    """Operations of the writer and of a broker on a partition; `left` maps the remaining offsets to values."""

    def __init__(self, writer: Writer, store: Store, rng: random.Random) -> None:
        self.writer = writer
        self.store = store
        self.rng = rng
        self.directory = writer.log_dir / NAME
        self.left: dict[int, bytes] = {}
        self.bases = [0]
        self.end = 0

    def append(self) -> None:
        size = self.rng.choice([0, 10, 1000])
        for value in self.writer.append(self.rng.randrange(1, 30), size=size):
            self.left[self.end] = value
            self.end += 1

    def roll(self) -> None:
        if self.bases[-1] < self.end:
            self.writer.roll()
            self.bases.append(self.end)

    def truncate(self) -> None:
        """Truncate within the last segment."""
        if self.bases[-1] < self.end:
            offset = self.rng.randrange(self.bases[-1], self.end)
            self.writer(f"store.truncate({NAME!r}, {offset}); end = p.log_end_offset")
            log = self.directory / f"{self.bases[-1]:020}.log"
            batches = list(Batches(log.read_bytes()))
            self.end = batches[-1].header.next_offset if batches else self.bases[-1]
            self.left = {n: value for n, value in self.left.items() if n < self.end}

    def expire(self) -> None:
        if len(self.bases) > 1:
            for path in retire(self.directory, self.bases.pop(0)):
                if self.rng.random() < 0.5:
                    path.unlink()
            self.left = {n: value for n, value in self.left.items() if n >= self.bases[0]}

    def compact(self) -> None:
        chosen = self.bases[:-1][: self.rng.randrange(1, 4)]
        if chosen:
            clean(self.directory, chosen, self._keep, self._look)
            del self.bases[1 : len(chosen)]

    def _keep(self, base_offset: int) -> bool:
        """Drop some batches, but no segment's first one: an empty segment hides others from time lookups."""
        if self.rng.random() < 0.7 or base_offset in self.bases:
            return True
        following = min((n for n in self.starts if n > base_offset), default=self.end)
        for offset in range(base_offset, following):
            self.left.pop(offset, None)
        return False

    @property
    def starts(self) -> set[int]:
        """The base offsets of all batches."""
        logs = self.directory.glob("*.log")
        return {batch.header.base_offset for log in logs for batch in Batches(log.read_bytes())}

    def _look(self) -> None:
        if self.rng.random() < 0.3:
            self.store.refresh()


@pytest.mark.parametrize("seed", range(6))
def test_random_operations_of_the_writer_are_followed(
    writer: Writer, cache: Path, seed: int
) -> None:
    """A reader that refreshes now and then follows appends, rolls, truncations, retention and compaction."""
    rng = random.Random(seed)
    with Store(writer.log_dir, read_only=True) as store:
        campaign = Campaign(writer, store, rng)
        steps = [
            campaign.append,
            campaign.append,
            campaign.append,
            campaign.roll,
            campaign.truncate,
            campaign.expire,
            campaign.compact,
        ]
        for _ in range(60):
            rng.choice(steps)()
            if rng.random() < 0.4:
                assert_shows(store, campaign.left)
        assert_shows(store, campaign.left)
        left = campaign.left
    with Store(writer.log_dir, read_only=True) as store:
        assert_shows(store, left)


# The mount.


def test_tail_follows_through_a_read_only_mount(
    writer: Writer, make_mount: Callable[..., Mount], tmp_path: Path
) -> None:
    """`tail -f` shows each record once while the log is appended to, rolled, deleted and compacted."""
    writer("store.settings.set_topic('orders', 'segment.bytes', '3000')")
    shown = writer.append(3)
    mount = make_mount("--read-only", log_dirs=[writer.log_dir])
    orders = mount.path / NAME
    output = tmp_path / "tail"
    directory = writer.log_dir / NAME
    with output.open("wb") as file:
        tail = subprocess.Popen(
            ["tail", "-n", "+1", "-s", "0.1", "-f", str(orders / "records")],
            stdout=file,
            stderr=subprocess.STDOUT,
        )
    try:
        wait_for(lambda: output.read_bytes() == lines(shown))
        for turn in range(30):
            shown += writer.append(10, size=60)
            if turn % 4 == 0:
                # Delete nothing that tail has not read yet: Kafka would take such records from a consumer, too.
                length = len(lines(shown))
                wait_for(lambda length=length: output.stat().st_size == length)
                bases = sorted(int(path.stem) for path in directory.glob("*.log"))
                if turn % 8 and len(bases) > 3:
                    clean(directory, bases[:2], lambda offset: offset % 20 == 0, lambda: None)
                else:
                    for base in bases[:-2]:
                        for path in retire(directory, base):
                            path.unlink()
            assert (orders / "offsets/latest").read_bytes() == shown[-1]
        wait_for(lambda: output.stat().st_size >= len(lines(shown)))
        assert output.read_bytes() == lines(shown)
        first = min(int(path.stem) for path in directory.glob("*.log"))
        assert os.readlink(orders / "offsets/earliest") >= str(first)
        assert lines(shown).endswith((orders / "records").read_bytes()[-3000:])
        assert mount.errors() == ""
    finally:
        tail.kill()
        tail.wait()


def test_a_mount_sees_partitions_come_and_go(
    writer: Writer, make_mount: Callable[..., Mount]
) -> None:
    """Partitions that another process creates and deletes appear and vanish; an open file stays readable."""
    mount = make_mount("-oro", log_dirs=[writer.log_dir])
    writer.create("new-0")
    shown = writer.append(2)
    wait_for((mount.path / "new-0").is_dir)
    assert sorted(os.listdir(mount.path)) == [".logfs", "new-0", NAME, "topics"]
    assert (mount.path / "new-0/records").read_bytes() == lines(shown)
    with (mount.path / "new-0/records").open("rb") as file:
        writer("store.delete('new-0')")
        wait_for(lambda: not (mount.path / "new-0").exists())
        assert file.read() == lines(shown)
    with pytest.raises(OSError, match="new-0") as caught:
        os.listdir(mount.path / "new-0")
    assert caught.value.errno == errno.ENOENT
    assert mount.errors() == ""


def test_files_that_are_replaced_all_the_time_can_be_read(
    writer: Writer, make_mount: Callable[..., Mount]
) -> None:
    """Each open in `segments/` reads one whole file, the one of that moment; several threads may read at once."""
    directory = writer.log_dir / NAME
    path = directory / "leader-epoch-checkpoint"
    mount = make_mount("--read-only", log_dirs=[writer.log_dir])
    shown = mount.path / NAME / "segments" / path.name
    ended = threading.Event()
    errors: list[BaseException] = []
    texts: set[bytes] = set()

    def replace() -> None:
        number = 0
        while not ended.is_set():
            number += 1
            new = directory / "new.tmp"
            new.write_bytes(b"0\n1\n0 %d\n" % (10 ** (number % 9)))
            new.rename(path)

    def read() -> None:
        try:
            while not ended.is_set():
                texts.add(shown.read_bytes())
        except BaseException as error:
            errors.append(error)

    before = path.read_bytes()
    threads = [threading.Thread(target=work) for work in (replace, read, read)]
    for thread in threads:
        thread.start()
    try:
        time.sleep(2)
        wait_for(lambda: errors or len(texts) > 1)
    finally:
        ended.set()
        for thread in threads:
            thread.join()
    path.write_bytes(before)
    assert not errors
    assert texts - {before} <= {b"0\n1\n0 %d\n" % (10**number) for number in range(9)}


def test_a_read_only_mount_changes_nothing_in_the_log_directory(
    writer: Writer, make_mount: Callable[..., Mount]
) -> None:
    """While the writer is stopped, a read-only mount reads everything, and no file, time or lock changes."""
    writer("store.settings.set_topic('orders', 'segment.bytes', '3000')")
    shown: list[bytes] = []
    for _ in range(10):
        shown += writer.append(10, size=60)
    without_text_indexes(writer.log_dir / NAME)
    with stopped(writer.process.pid):
        before = fingerprint(writer.log_dir), locks_below(writer.log_dir)
        assert len(before[1]) == 1
        mount = make_mount("--read-only", log_dirs=[writer.log_dir])
        orders = mount.path / NAME
        assert (orders / "records").read_bytes() == lines(shown)
        assert len((orders / "records.jsonl").read_bytes().splitlines()) == 100
        for name in os.listdir(orders / "segments"):
            (orders / "segments" / name).read_bytes()
        for name in (*os.listdir(orders / "offsets"), *os.listdir(orders / "time")):
            assert (orders / "offsets" / name).exists() or (orders / "time" / name).exists()
        assert orjson.loads((orders / "status.json").read_bytes())["log_end_offset"] == 100
        with pytest.raises(OSError, match="append") as caught:
            (orders / "append").open("ab")
        assert caught.value.errno == errno.EROFS
        mount.stop()
        assert (fingerprint(writer.log_dir), locks_below(writer.log_dir)) == before
    shown += writer.append(1)


def test_the_tail_command_follows_the_log(writer: Writer, tmp_path: Path) -> None:
    """`logfs tail -f` shows each record once, through rolls, deletions and a truncation; `logfs cat` shows all."""
    shown = writer.append(2)
    directory = writer.log_dir / NAME
    output = tmp_path / "tail"
    with output.open("wb") as file:
        tail = subprocess.Popen(
            [sys.executable, "-m", "logfs", "tail", "-f", str(directory)], stdout=file
        )
    try:
        wait_for(lambda: output.read_bytes() == lines(shown))
        shown += writer.append(100)
        writer.roll()
        shown += writer.append(1)
        wait_for(lambda: output.read_bytes() == lines(shown))
        for path in retire(directory, 0):
            path.unlink()
        shown += writer.append(1)
        wait_for(lambda: output.read_bytes() == lines(shown))
        writer(f"store.truncate({NAME!r}, 103)")
        done = subprocess.run(
            [sys.executable, "-m", "logfs", "cat", str(directory)], capture_output=True, check=True
        )
        assert done.stdout == lines([b"102"])
    finally:
        tail.send_signal(signal.SIGINT)
        tail.wait()


def test_commands_beside_a_writer_that_compacts(
    writer: Writer, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    """While files are replaced all the time, `check` finds nothing, and `cat` prints every key."""
    keys = 40
    writer("store.settings.set_topic('orders', 'cleanup.policy', 'compact')")
    writer("store.settings.set_topic('orders', 'file.delete.delay.ms', '0')")
    writer("from logfs.format.batches.record import Record")
    writer("import itertools; n = itertools.count()")
    writer(f"put = lambda: p.append([Record(b'%d' % next(n), b'%d' % k) for k in range({keys})])")
    # Upkeep removes the replaced files: without it, they would become more and more.
    writer("compact = lambda: store.compact('orders-0', roll=True) and store.upkeep()")
    writer("work = lambda: [put() for _ in range(5)] and compact()")
    writer("work()")
    ended = threading.Event()

    def write() -> None:
        # On a filesystem in memory, the files would be replaced hundreds of times a second.
        while not ended.wait(0.02):
            writer("work()")

    thread = threading.Thread(target=write)
    thread.start()
    try:
        for number in range(60):
            assert list(check(writer.log_dir)) == []
            form = [["-J"], [], ["-F", "%k %s\\n"]][number % 3]
            code = main(["cat", *form, str(writer.log_dir / NAME)])
            out, err = capfdbinary.readouterr()
            assert code == 0, err
            printed = out.splitlines()
            assert len(printed) >= keys
            if form == ["-J"]:
                offsets = [orjson.loads(line)["offset"] for line in printed]
                assert offsets == sorted(set(offsets))
                assert len({orjson.loads(line)["key"] for line in printed}) == keys
    finally:
        ended.set()
        thread.join()


def test_cat_misses_no_key_that_is_compacted_and_moved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    """`cat` prints each key, also if the partition is compacted and moved between two looks at its end."""
    log_dirs = [tmp_path / "one", tmp_path / "two"]
    keys = [b"%d" % n for n in range(200)]
    with Store(log_dirs) as store:
        set_topic(store, "orders", cleanup_policy="compact", file_delete_delay_ms=0)
        orders = store.create(NAME)
        orders.append([Record(b"x", key) for key in keys])
        moves = iter(range(2))

        def stop(partition: Reader, end: int | None) -> int:
            found = real(partition, end)
            if next(moves, None) is not None:
                store.writable(NAME).append([Record(b"x", key) for key in keys])
                store.compact(NAME, roll=True)
                others = [path for path in log_dirs if path != store[NAME].directory.parent]
                store.move(NAME, others[0])
                store.upkeep()
            return found

        real = scanning._stop
        monkeypatch.setattr(scanning, "_stop", stop)
        assert main(["cat", "-F", "%k\\n", *map(str, log_dirs), NAME]) == 0
    assert {*capfdbinary.readouterr().out.splitlines()} == {*keys}


@pytest.mark.parametrize("form", [["-J"], ["-F", "%k\\n"]])
def test_cat_misses_no_key_that_is_written_again_and_compacted(
    writer: Writer,
    form: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capfdbinary: pytest.CaptureFixture[bytes],
) -> None:
    """`cat` prints a key even if compaction leaves its newest record after the log end at which `cat` began."""
    keys, rounds = 200, 3
    writer("store.settings.set_topic('orders', 'cleanup.policy', 'compact')")
    writer("store.settings.set_topic('orders', 'file.delete.delay.ms', '0')")
    writer("from logfs.format.batches.record import Record")
    put = f"p.append([Record(b'x', b'%d' % k) for k in range({keys})])"
    writer(put)
    left = iter(range(rounds))

    def stop(partition: Reader, end: int | None) -> int:
        found = real(partition, end)
        if next(left, None) is not None:
            for _ in range(3):
                writer(put)
                writer("store.compact('orders-0', roll=True)")
                writer("store.upkeep()")
        return found

    real = scanning._stop
    monkeypatch.setattr(scanning, "_stop", stop)
    assert main(["cat", *form, str(writer.log_dir / NAME)]) == 0
    printed = capfdbinary.readouterr().out.splitlines()
    found = {orjson.loads(line)["key"] for line in printed} if form == ["-J"] else {*printed}
    assert len(found) == keys


def test_readers_of_a_log_that_rolls_all_the_time(writer: Writer) -> None:
    """Several threads read the text of one store while another refreshes it: no read fails, and the text is right."""
    writer("store.settings.set_topic('orders', 'segment.bytes', '20000')")
    shown: list[bytes] = []
    ended = threading.Event()
    errors: list[BaseException] = []

    def write() -> None:
        for _ in range(300 if DEEP else 100):
            shown.extend(writer.append(20, 100))
        ended.set()

    def follow(work: Callable[[], object]) -> None:
        try:
            while not ended.is_set():
                work()
        except BaseException as error:
            errors.append(error)

    def read() -> None:
        text = partition.text(View.LINES)
        size = text.size
        assert len(text.read(max(size - 5000, 0), 5000)) >= min(size, 5000)

    with Store(writer.log_dir, read_only=True) as store:
        partition = store[NAME]
        works = [write, *(partial(follow, read) for _ in range(4)), partial(follow, store.refresh)]
        threads = [threading.Thread(target=work) for work in works]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert errors == []
        store.refresh()
        assert text_of(partition) == lines(shown)


def test_an_index_is_measured_while_it_is_rebuilt(
    writer: Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One thread follows the log while another measures its text; neither changes the index that the other uses."""
    writer("store.settings.set_topic('orders', 'index.interval.bytes', '0')")
    shown = [value for _ in range(5) for value in writer.append(3, 100)]
    with Store(writer.log_dir, read_only=True) as store:
        partition = store[NAME]
        assert len(partition.active.text_index) > 0
        shown += [value for _ in range(20) for value in writer.append(3, 100)]
        written = TextIndex._written

        def measure_meanwhile(index: TextIndex, file: File) -> int:
            count = written(index, file)
            monkeypatch.undo()
            _ = partition.active.end
            return count

        monkeypatch.setattr(TextIndex, "_written", measure_meanwhile)
        store.refresh()
        assert text_of(partition) == lines(shown)
        assert list(partition.active.text_index)
