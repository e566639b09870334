"""Descriptors: a log may have more files than a process may open, and none gets the number of a standard stream."""

from __future__ import annotations

import errno
import gc
import itertools
import os
import random
import resource
import subprocess
import sys
import threading
from typing import TYPE_CHECKING

import pytest

from logfs.format.batches.record import Record
from logfs.format.text.rendering import View
from logfs.log.disk import disk as disk_module
from logfs.log.disk.disk import Disk
from logfs.log.read.text_view import KEPT_SEGMENTS
from logfs.log.segment import segment_files
from logfs.store.store import Store
from tests.support.processes import run
from tests.support.stores import abandon, assert_clean, set_topic

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from logfs.log.append.partition import Partition
    from tests.support.stores import Clock

NAME = "orders-0"
# Each segment has four files; there are descriptors for fewer than half of all files.
SEGMENTS = 100
DESCRIPTORS = 120


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def limit_that_leaves(spare: int) -> int:
    """Return the limit below which `spare` descriptors are free; the open ones may have any numbers."""
    taken = {int(name) for name in os.listdir("/proc/self/fd")}
    free = (number for number in itertools.count() if number not in taken)
    return next(itertools.islice(free, spare, None))


@pytest.fixture(autouse=True)
def nothing_is_collected() -> Iterator[None]:
    """Keep the collector of garbage from closing meanwhile what other tests have left open."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Limit this process to `DESCRIPTORS` more descriptors than it has open; logs may use half of them, or fewer."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = descriptors() + DESCRIPTORS
    monkeypatch.setattr(segment_files, "SHARE", -(-2 * limit // DESCRIPTORS))
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def fill(store: Store, clock: Clock, count: int = SEGMENTS) -> Partition:
    """Return a partition of `count` segments with one record each: its number, 1 ms later than the one before."""
    store.settings.set_topic("orders", "file.delete.delay.ms", "0")
    partition = store.create(NAME)
    for number in range(count):
        clock.now_ms += 1
        partition.append([Record(b"%d" % number, b"%d" % (number % 7))])
        partition.roll(clock.now_ms)
        partition.flush()
    return partition


def assert_holds(partition: Partition, count: int = SEGMENTS) -> None:
    """Assert that the partition has all records in order, as text, by offset and by time."""
    wanted = [b"%d" % number for number in range(count)]
    records = list(partition.read())
    assert [record.value for record in records] == wanted
    text = partition.text(View.LINES)
    assert text.read(0, text.size).splitlines() == wanted
    for record in records:
        assert partition.record(record.offset) == record
        assert record.timestamp is not None
        found = partition.offset_for_time(record.timestamp)
        assert found is not None
        assert found.offset == record.offset


@pytest.mark.usefixtures("few")
def test_a_log_of_many_segments_is_written_and_read(log_dir: Path, clock: Clock) -> None:
    with Store(log_dir, clock=clock) as store:
        assert_holds(fill(store, clock))
        assert store[NAME].newest(b"3") is not None
    with Store(log_dir, clock=clock) as store:
        assert_holds(store[NAME])


@pytest.mark.usefixtures("few")
def test_a_log_without_explicit_flushes_needs_no_more_descriptors(
    log_dir: Path, clock: Clock
) -> None:
    """Segments that are not durable stay open, so an append flushes them once there are a few of them."""
    with Store(log_dir, clock=clock) as store:
        store.settings.set_topic("orders", "segment.bytes", "200")
        partition = store.create(NAME)
        for number in range(SEGMENTS):
            clock.now_ms += 1
            partition.append([Record(b"%d" % number, b"k" * 50)])
        assert len(partition.segments) == SEGMENTS
        assert_holds(partition)


@pytest.mark.parametrize("spare", range(4))
def test_an_append_without_a_descriptor_leaves_the_log_as_it_was(
    log_dir: Path, clock: Clock, spare: int
) -> None:
    """Such an append fails with EMFILE, also the first one and one that rolls; a later append succeeds."""
    wanted = []
    with Store(log_dir, clock=clock) as store:
        store.settings.set_topic("orders", "segment.bytes", "300")
        store.create(NAME)
    with Store(log_dir, clock=clock) as store:
        partition = store[NAME]
        errors = set()
        limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        for number in range(100):
            resource.setrlimit(resource.RLIMIT_NOFILE, (limit_that_leaves(spare), limits[1]))
            try:
                # Eight appends of ten have the low limit, and two the usual one.
                if number % 10 > 7:
                    resource.setrlimit(resource.RLIMIT_NOFILE, limits)
                partition.append([b"%d" % number])
                wanted.append(b"%d" % number)
            except OSError as error:
                errors.add(error.errno)
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        assert errors == {errno.EMFILE}
        assert [record.value for record in partition.read()] == wanted
    assert_clean(log_dir)
    with Store(log_dir, clock=clock) as store:
        assert [record.value for record in store[NAME].read()] == wanted


def test_a_flush_without_a_descriptor_fails_nothing(log_dir: Path, clock: Clock) -> None:
    """It raises EMFILE, and the next flush does all of the work. Recovery has left the files closed."""
    store = Store(log_dir, clock=clock)
    store.settings.set_topic("orders", "segment.bytes", "300")
    partition = store.create(NAME)
    for number in range(40):
        partition.append([b"%d" % number * 30])
    abandon(store)
    with Store(log_dir, clock=clock) as store:
        partition = store[NAME]
        before = partition.recovery_point
        limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit_that_leaves(0), limits[1]))
        try:
            with pytest.raises(OSError, match="Too many open files"):
                partition.flush()
            assert partition.recovery_point == before < 40
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        assert partition.failure is None
        assert partition.append([b"w"]) == 40
        assert partition.flush() == 41


def test_a_load_without_a_descriptor_is_tried_again(log_dir: Path, clock: Clock) -> None:
    """The use of a partition fails with EMFILE, does not take it offline, and works once there are descriptors."""
    with Store(log_dir, clock=clock) as store:
        store.create(NAME).append([b"v"])
    with Store(log_dir, clock=clock, lazy=True) as store:
        limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit_that_leaves(0), limits[1]))
        try:
            for _ in range(2):
                with pytest.raises(OSError, match="Too many open files"):
                    store[NAME]
            store.load_all()
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        assert not store.offline
        assert [*store.registry.unloaded] == [NAME]
        assert [record.value for record in store[NAME].read()] == [b"v"]


@pytest.mark.usefixtures("few")
def test_a_log_of_many_segments_is_recovered_and_audited(log_dir: Path, clock: Clock) -> None:
    store = Store(log_dir, clock=clock)
    fill(store, clock)
    abandon(store)
    with Store(log_dir, clock=clock, recover=True) as store:
        assert_holds(store[NAME])
    assert_clean(log_dir)


@pytest.mark.usefixtures("few")
def test_a_log_of_many_segments_is_read_by_a_read_only_store(log_dir: Path, clock: Clock) -> None:
    """A read-only store finds all records, also without text indexes, which a broker does not write."""
    with Store(log_dir, clock=clock) as store:
        fill(store, clock)
        with Store(log_dir, clock=clock, read_only=True) as reader:
            assert reader.log_dirs[0].live
            assert_holds(reader[NAME])
    for path in (log_dir / NAME).glob("*.textindex"):
        path.unlink()
    with Store(log_dir, clock=clock, read_only=True) as reader:
        assert_holds(reader[NAME])


@pytest.mark.usefixtures("few")
def test_a_log_of_many_segments_is_compacted_and_expires(log_dir: Path, clock: Clock) -> None:
    with Store(log_dir, clock=clock) as store:
        partition = fill(store, clock)
        store.settings.set_topic("orders", "cleanup.policy", "compact,delete")
        store.compact(NAME)
        store.upkeep(compaction=False)
        assert [record.offset for record in partition.read()] == [*range(SEGMENTS - 7, SEGMENTS)]
        clock.now_ms += 10**9
        assert store.retain() > 0
        store.upkeep(compaction=False)
        assert not list(partition.directory.glob("*.deleted"))
        assert not list(partition.read())


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize("how", ["retention", "compaction", "move"])
def test_a_view_that_lags_behind_needs_no_more_descriptors(
    how: str, log_dir: Path, tmp_path: Path, clock: Clock
) -> None:
    """A view that was not read yet stays readable after its segments left the log; then their files are removed."""
    other = tmp_path / "other"
    with Store([log_dir, other], clock=clock) as store:
        partition = fill(store, clock)
        view = partition.text(View.LINES)
        if how == "retention":
            store.delete_records(NAME, SEGMENTS)
            store.retain([NAME])
        elif how == "compaction":
            store.settings.set_topic("orders", "cleanup.policy", "compact")
            store.compact(NAME)
        else:
            store.move(NAME, other if store.registry.home(NAME) == log_dir else log_dir)
        clock.now_ms += 1
        for _ in range(2):
            store.upkeep(compaction=False)
        text = b"".join(b"%d\n" % number for number in range(SEGMENTS))
        assert b"".join(view.read(at, 1) for at in range(view.size)) == text
        view.release_before(view.size)
        store.upkeep(compaction=False)
        left = {*log_dir.rglob("*.log.deleted"), *log_dir.glob("*-delete/*.log")}
        left |= set(other.glob("*-delete/*.log"))
        assert len(left) <= KEPT_SEGMENTS
        del view
        store.upkeep(compaction=False)
        assert not list(log_dir.rglob("*.deleted"))
        assert not [*log_dir.glob("*-delete"), *other.glob("*-delete")]


@pytest.mark.usefixtures("few")
def test_views_from_before_many_compactions_need_no_more_descriptors(
    log_dir: Path, clock: Clock
) -> None:
    """Each round replaces a segment by one of the same name, and views that hold the old one still read it."""
    with Store(log_dir, clock=clock) as store:
        partition = fill(store, clock, 0)
        store.settings.set_topic("orders", "cleanup.policy", "compact")
        views = [partition.text(View.LINES)]
        for number in range(SEGMENTS):
            clock.now_ms += 1
            partition.append([Record(b"%d" % number, b"%d" % (number % 7))])
            store.compact(NAME, roll=True)
            if number % 2 == 0:
                views.append(partition.text(View.LINES))
            store.upkeep(compaction=False)
        assert len(partition.segments) < 10
        first, *others = (view.read(0, view.size).splitlines() for view in views)
        assert first == [b"%d" % number for number in range(SEGMENTS)]
        for at, lines in enumerate(others):
            assert lines == first[max(2 * at - 6, 0) :]
        views.clear()
        store.upkeep(compaction=False)
        assert not list(partition.directory.glob("*.deleted"))


def test_segments_that_wait_for_a_flush_leave_descriptors(few: None, store: Store) -> None:
    """Many partitions roll and nobody flushes: before descriptors are short, appends flush sealed segments."""
    partitions = [store.create(f"topic{number}-0") for number in range(3)]
    for partition in partitions:
        set_topic(store, partition.topic, segment_bytes=2_000)
    before = descriptors()
    for number in range(120):
        for partition in partitions:
            assert partition.append([b"%d" % number * 100]) == number
    # Half for sealed segments; and each partition has an active one, and perhaps one that it has just sealed.
    assert descriptors() - before <= DESCRIPTORS // 2 + 2 * 7 * len(partitions)
    for partition in partitions:
        assert len(partition.segments) > 16
        assert [record.offset for record in partition.read()] == [*range(120)]


def test_readers_find_their_records_while_files_are_closed(
    log_dir: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With descriptors for two segments and readers in all of them, each reader finds its record."""
    count = 20
    with Store(log_dir, clock=clock) as store:
        partition = fill(store, clock, count)
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        monkeypatch.setattr(segment_files, "SHARE", most // 8)
        before = descriptors()
        errors: list[BaseException] = []

        def read(seed: int) -> None:
            chosen = random.Random(seed)
            try:
                for _ in range(300):
                    offset = chosen.randrange(count)
                    found = partition.record(offset)
                    assert found is not None
                    assert found.timestamp is not None
                    assert found.value == b"%d" % offset
                    at = partition.offset_for_time(found.timestamp)
                    assert at is not None
                    assert at.offset == offset
                    text = partition.text(View.LINES, offset, offset + 1)
                    assert text.read(0, text.size) == b"%d\n" % offset
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=read, args=(seed,)) for seed in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not errors
        assert descriptors() <= before + 4 * 3


def test_a_program_without_standard_streams_prints_into_no_file_of_the_log(log_dir: Path) -> None:
    """No file of the log gets the number of a closed standard stream, into which a library may print."""
    script = """
import os, sys
from contextlib import suppress
from logfs.store.store import Store

with Store(sys.argv[1]) as store:
    store.create("a-0").append([b"value"])
    for descriptor in range(3):
        with suppress(OSError):
            os.write(descriptor, b"a message of a library")
"""
    shell = 'exec "$0" -c "$1" "$2" <&- >&- 2>&-'
    run("sh", "-c", shell, sys.executable, script, log_dir)
    for path in log_dir.rglob("*"):
        assert not path.is_file() or b"library" not in path.read_bytes(), path
    done = subprocess.run(
        ["sh", "-c", 'exec "$0" -m logfs check "$1" <&- >&-', sys.executable, log_dir],
        capture_output=True,
        check=False,
    )
    # As in other programs, to print into a closed stream is an error.
    assert done.returncode == 1
    assert done.stderr == b"logfs: standard output: Bad file descriptor\n"


@pytest.mark.usefixtures("few")
def test_many_partitions_are_audited(log_dir: Path, clock: Clock) -> None:
    """The audit closes the files of a partition before it goes on to the next."""
    for number in range(DESCRIPTORS):
        with Store(log_dir, clock=clock, only="") as store:
            store.create(f"orders-{number}").append([b"v"])
    assert_clean(log_dir)


@pytest.mark.usefixtures("few")
def test_logs_leave_descriptors_to_the_status_and_the_metrics(tmp_path: Path) -> None:
    """Files of logs are refused before the last descriptors are taken, and a refused file is not made."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    there = tmp_path / "there"
    there.touch()
    disk, held = Disk(), []

    def take_all() -> None:
        while True:
            held.append(disk.open(there))

    with pytest.raises(OSError, match=os.strerror(errno.EMFILE)):
        take_all()
    new = tmp_path / "new"
    with pytest.raises(OSError, match=os.strerror(errno.EMFILE)):
        disk.open(new, write=True, create=True)
    assert not new.exists()
    reserved = min(disk_module._RESERVED, limit // 8)
    others = [os.open("/", os.O_RDONLY) for _ in range(reserved)]
    for fd in others:
        os.close(fd)
    for file in held:
        file.close()
