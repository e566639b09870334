"""A partition moves to another log directory while it is in use, and nothing is lost (kafka-storage 1.2)."""

from __future__ import annotations

import errno
import logging
import os
import re
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING
from unittest.mock import ANY

import orjson
import pytest

from logfs.cli import main
from logfs.errors import InvalidName, InvalidSetting, LogfsError, NotWritable, PartitionFailed
from logfs.format.batches.record import Record
from logfs.format.text.rendering import View
from logfs.log.disk.disk import Disk
from logfs.store.directory.permissions import Access, PermissionTable
from logfs.store.maintenance.mover import MoveAborted
from logfs.store.partition_identity import PartitionIdentity
from logfs.store.store import Store
from tests.support.processes import wait_for
from tests.support.stores import Clock, abandon, assert_clean, fingerprint

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from logfs.log.append.partition import Partition
    from logfs.log.disk.disk import File
    from tests.support.mounts import Mount

NAME = "a-0"


@pytest.fixture
def log_dirs(tmp_path: Path) -> Iterator[list[Path]]:
    """Two log directories, audited at the end."""
    paths = [tmp_path / "one", tmp_path / "two"]
    yield paths
    assert_clean(*paths)
    assert not [*tmp_path.rglob("a-0/logfs.moved")], "each move has been finished"


def fill(store: Store, count: int = 60) -> Partition:
    """Return a partition of several segments with a changed setting, keyed records and a log start offset of 13."""
    partition = store.create(NAME)
    store.settings.set_topic("a", "segment.bytes", "1500")
    for number in range(count):
        partition.append([Record(b"value %d " % number * 5, b"key %d" % (number % 7))])
    partition.flush()
    store.delete_records(NAME, 13)
    return partition


def content(partition: Partition) -> list[Record]:
    """Return all records of a partition."""
    return list(partition.read())


def directories(log_dirs: list[Path]) -> set[str]:
    """Return the existing directories of the partition as `log directory/name`, without their unique parts."""
    return {
        f"{path.parent.name}/" + re.sub(r"\..*-", "-", path.name)
        for log_dir in log_dirs
        for path in log_dir.glob("a-0*")
    }


def test_a_move_keeps_records_offsets_and_views(log_dirs: list[Path], clock: Clock) -> None:
    """Records, offsets, log start, segments and open views are the same after a move, and appends go on."""
    with Store(log_dirs, clock=clock) as store:
        partition = fill(store)
        before, bases = content(partition), [s.base_offset for s in partition.segments]
        text = partition.text(View.LINES)
        shown = text.read(0, text.size)
        reading = partition.read()
        next(reading)
        key = partition.newest(b"key 3")
        store.move(NAME, log_dirs[1])
        assert store[NAME] is partition
        assert partition.directory == store.registry.home(NAME) / NAME == log_dirs[1] / NAME
        assert content(partition) == before
        assert partition.log_start_offset == 13
        assert [s.base_offset for s in partition.segments] == [*bases, 60]
        assert partition.append([b"behind"]) == 60
        assert partition.flush() == 61
        assert text.read(0, text.size) == shown + b"behind\n"
        assert partition.newest(b"key 3") == key
        assert directories(log_dirs) == {"one/a-0-delete", "two/a-0"}
        clock.now_ms += 10**6
        store.upkeep()
        assert text.read(0, text.size) == shown + b"behind\n"
        # A text view continues with the copy; a reader that has begun continues with the old files.
        assert directories(log_dirs) == {"one/a-0-delete", "two/a-0"}
        assert list(reading) == before[1:]
        store.upkeep()
        assert directories(log_dirs) == {"two/a-0"}
        after = content(partition)
    for recover in (False, True):
        with Store(log_dirs, clock=clock, recover=recover) as store:
            assert content(store[NAME]) == after
            assert store[NAME].log_start_offset == 13


def test_the_old_directory_of_a_moved_partition_stays_for_the_delay(
    log_dirs: list[Path], clock: Clock
) -> None:
    """It is removed after `file.delete.delay.ms`, as that of a deleted partition."""
    with Store(log_dirs, clock=clock) as store:
        fill(store)
        store.move(NAME, log_dirs[1])
        for wait_ms, left in ((59_999, {"one/a-0-delete", "two/a-0"}), (1, {"two/a-0"})):
            clock.now_ms += wait_ms
            store.upkeep()
            assert directories(log_dirs) == left


def test_the_indexes_of_sealed_segments_are_copied(log_dirs: list[Path], clock: Clock) -> None:
    """The copy has the indexes of the original, and need not read its log to build them."""
    with Store(log_dirs, clock=clock) as store:
        partition = fill(store)
        sealed = [segment.base_offset for segment in partition.segments[:-1]]
        names = [
            f"{base:020}{suffix}"
            for base in sealed
            for suffix in (".index", ".timeindex", ".textindex")
        ]
        before = {name: (partition.directory / name).read_bytes() for name in names}
        store.move(NAME, log_dirs[1])
        assert {name: (log_dirs[1] / NAME / name).read_bytes() for name in names} == before
        assert all(before[name] for name in names if name.endswith(".textindex"))


def test_large_files_beside_the_segments_move_too(log_dirs: list[Path], clock: Clock) -> None:
    """Staged batches and the bytes of a torn tail are moved, even if their files are as large as a segment."""
    size = 65 << 20
    with Store(log_dirs, clock=clock) as store:
        partition = fill(store)
        for name in ("writer-0.staged", "00000000000000000000.700.torn"):
            with (partition.directory / name).open("wb") as file:
                file.truncate(size)
                file.write(b"begin")
                file.seek(size - 3)
                file.write(b"end")
        moved = 0

        def count(done: int) -> None:
            nonlocal moved
            moved += done

        log_bytes = partition.size_bytes
        store.mover.move(NAME, log_dirs[1], count)
        assert moved == log_bytes
        for name in ("writer-0.staged", "00000000000000000000.700.torn"):
            with (log_dirs[1] / NAME / name).open("rb") as file:
                data = file.read()
            assert (len(data), data[:5], data[-3:]) == (size, b"begin", b"end")


def test_a_reader_of_the_segments_of_before_goes_on_after_a_move(
    log_dirs: list[Path], clock: Clock
) -> None:
    """It opens their files again where they are now, until they are removed."""
    with Store(log_dirs, clock=clock) as store:
        partition = fill(store)
        before = partition.segments[:-1]
        wanted = [bytes(segment.read(0, 1 << 20)) for segment in before]
        for segment in before:
            segment.close()
        store.move(NAME, log_dirs[1])
        assert [bytes(segment.read(0, 1 << 20)) for segment in before] == wanted
        assert {segment.path.parent.parent for segment in before} == {log_dirs[0]}
        assert {segment.path.parent.suffix for segment in before} != {""}


def test_an_empty_partition_moves_there_and_back(log_dirs: list[Path], clock: Clock) -> None:
    """A partition without records is moved, and moved to a log directory where it was before."""
    with Store(log_dirs, clock=clock) as store:
        partition = store.create(NAME)
        text = partition.text(View.LINES)
        for target in (1, 0, 1):
            store.move(NAME, log_dirs[target])
            assert partition.log_end_offset == len(partition.segments) - 1
            partition.append([b"x"])
        assert [r.offset for r in partition.read()] == [0, 1, 2]
        assert text.read(0, text.size) == b"x\nx\nx\n"
        store.delete(NAME)
        assert store.create(NAME).log_end_offset == 0


def test_appends_and_reads_go_on_during_moves(log_dirs: list[Path], clock: Clock) -> None:
    """No append fails or is lost, and a reader sees each record once and in order, during several moves."""
    with Store(log_dirs, clock=clock) as store:
        partition = fill(store)
        store.settings.set_topic("a", "segment.bytes", "20000")
        ended = threading.Event()
        acknowledged: list[int] = []
        seen: list[int] = []
        errors: list[BaseException] = []

        def guarded(work: Callable[[], None]) -> threading.Thread:
            def run() -> None:
                try:
                    work()
                except BaseException as error:
                    errors.append(error)

            thread = threading.Thread(target=run)
            thread.start()
            return thread

        def append() -> None:
            while not ended.is_set():
                acknowledged.append(partition.append([b"n %d" % len(acknowledged)]))
                partition.flush()

        def follow() -> None:
            while not ended.is_set():
                seen.extend(r.offset for r in partition.read(60 + len(seen)))
                # A thread that polls without a pause leaves hardly any time to the other threads.
                time.sleep(0.001)

        threads = [guarded(append), guarded(follow)]
        try:
            for number in range(4):
                store.move(NAME, log_dirs[(number + 1) % 2])
                before = len(acknowledged)
                wait_for(lambda before=before: errors or len(acknowledged) > before)  # type: ignore[misc]
        finally:
            ended.set()
            for thread in threads:
                thread.join()
        assert not errors
        assert acknowledged == list(range(60, 60 + len(acknowledged)))
        assert seen == list(range(60, 60 + len(seen)))
        values = [r.value for r in partition.read(60)]
        assert values == [b"n %d" % number for number in range(len(acknowledged))]


class InterferingDisk(Disk):
    """A disk that calls `act`, which may fail, before the next write to a path with a given beginning and ending."""

    def __init__(self) -> None:
        super().__init__()
        self.below = self.ending = ""
        self.act: Callable[[], object] = lambda: None

    def write(self, file: File, position: int, data: bytes) -> None:  # type: ignore[override]
        path = str(file.path)
        if self.below and path.startswith(self.below) and path.endswith(self.ending):
            self.below = ""
            self.act()
        super().write(file, position, data)


def small_files(partition: Partition) -> dict[str, bytes]:
    """Return the content of the files beside the segments of a partition."""
    kinds = "*.snapshot", "leader-epoch-checkpoint", "partition.metadata", "logfs.modes"
    found = [path for kind in kinds for path in partition.directory.glob(kind)]
    return {path.name: path.read_bytes() for path in found}


# The first file that is copied, and one of the last.
@pytest.mark.parametrize("ending", [".log", "logfs.modes"])
def test_changes_of_the_log_during_a_move_reach_the_copy(
    ending: str, log_dirs: list[Path], clock: Clock
) -> None:
    """Retention, a truncation and a compaction reach the copy, while segments are copied and after that."""
    disk = InterferingDisk()
    with Store(log_dirs, clock=clock, disk=disk) as store:
        partition = fill(store)
        store.settings.set_topic("a", "cleanup.policy", "compact,delete")
        store.settings.set_topic("a", "segment.bytes", "4000")

        def interfere() -> None:
            store.truncate(NAME, 50)
            store.delete_records(NAME, 30)
            store.retain([NAME])
            store.compact(NAME)
            partition.append([Record(b"after", b"all")])
            after.extend(content(partition))
            modes.set("append", Access(0o640, 1, 1))
            files.update(small_files(partition))

        after: list[Record] = []
        files: dict[str, bytes] = {}
        modes = PermissionTable(partition)
        modes.set("append", Access(0o600, 1, 1))
        before = set(small_files(partition))
        disk.act, disk.below, disk.ending = interfere, str(log_dirs[1] / NAME), ending
        store.move(NAME, log_dirs[1])
        assert not disk.below
        assert content(partition) == after
        assert before - files.keys()
        # The copy begins a new segment at the log end, with a snapshot.
        own = f"{partition.log_end_offset:020}.snapshot"
        assert small_files(partition) == {**files, own: ANY}
        assert after[-1].offset == 50
    with Store(log_dirs, clock=clock, recover=True) as store:
        assert content(store[NAME]) == after
        assert store.checkpoints.cleaner_offset(NAME) is not None


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
def test_an_error_during_a_move_leaves_the_partition_in_place(
    number: int, log_dirs: list[Path], clock: Clock
) -> None:
    """The copy is removed, at the latest by the next opening, and the partition takes appends as before."""
    disk = InterferingDisk()

    def fail() -> None:
        raise OSError(number, "injected")

    with Store(log_dirs, clock=clock, disk=disk) as store:
        partition = fill(store)
        before = content(partition)
        disk.act, disk.below = fail, str(log_dirs[1] / NAME)
        with pytest.raises(OSError, match="injected"):
            store.move(NAME, log_dirs[1])
        assert store.registry.home(NAME) == log_dirs[0]
        partition.append([b"goes on"])
        partition.flush()
        assert content(partition)[:-1] == before
        if number == errno.ENOSPC:
            assert directories(log_dirs) == {"one/a-0"}
    with Store(log_dirs, clock=clock) as store:
        assert content(store[NAME])[:-1] == before
        assert directories(log_dirs) == {"one/a-0"}


@pytest.mark.parametrize("end", [abandon, Store.close])
@pytest.mark.parametrize("is_renamed", [False, True])
def test_the_next_opening_completes_a_move_whose_renames_failed(
    log_dirs: list[Path], clock: Clock, end: Callable[[Store], None], is_renamed: bool
) -> None:
    """If the second of the two renames fails, the partition refuses appends, and nothing is lost.

    No clean-shutdown marker covers the copy, which was never closed.
    """

    class FailingDisk(Disk):
        def rename_unsynced(self, old: Path, new: Path) -> None:
            is_last = old.name.endswith("-future")
            if is_renamed or not is_last:
                super().rename_unsynced(old, new)
            if is_last:
                raise OSError(errno.ENOSPC, "injected")

    store = Store(log_dirs, clock=clock, disk=FailingDisk())
    partition = fill(store)
    before = content(partition)
    with pytest.raises(PartitionFailed, match="open it again with both"):
        store.move(NAME, log_dirs[1])
    with pytest.raises(PartitionFailed):
        partition.append([b"no"])
    end(store)
    copy = "two/a-0" if is_renamed else "two/a-0-future"
    assert directories(log_dirs) == {"one/a-0-stray", copy}
    assert_clean(*log_dirs)
    with Store(log_dirs, clock=clock) as store:
        assert content(store[NAME]) == before
        assert store[NAME].log_start_offset == 13
        assert store.registry.home(NAME) == log_dirs[1]
    assert directories(log_dirs) == {"one/a-0-delete", "two/a-0"}


def test_a_log_directory_that_fails_during_the_renames_of_a_move(
    log_dirs: list[Path], clock: Clock
) -> None:
    """The next opening completes the move, and records that were deleted before stay deleted."""

    class FailingDisk(Disk):
        is_swapped = False

        def rename_unsynced(self, old: Path, new: Path) -> None:
            super().rename_unsynced(old, new)
            self.is_swapped |= new.name.endswith("-stray")

        def sync_directory(self, path: Path) -> None:
            if self.is_swapped and path == log_dirs[0]:
                raise OSError(errno.EIO, "injected")
            super().sync_directory(path)

    store = Store(log_dirs, clock=clock, disk=FailingDisk())
    before = content(fill(store))
    with pytest.raises(LogfsError):
        store.move(NAME, log_dirs[1])
    with store.registry.lock:
        store.checkpoints.write()
    abandon(store)
    with Store(log_dirs, clock=clock) as store:
        assert content(store[NAME]) == before
        assert store[NAME].log_start_offset == 13
        assert store.registry.home(NAME) == log_dirs[1]


def test_a_deletion_during_a_move_aborts_it(log_dirs: list[Path], clock: Clock) -> None:
    """A partition that is deleted during its move does not reappear. A stopped mover aborts a move, too."""
    disk = InterferingDisk()
    with Store(log_dirs, clock=clock, disk=disk) as store:
        fill(store)
        disk.act, disk.below = lambda: store.delete(NAME), str(log_dirs[1] / NAME)
        with pytest.raises(Exception, match="deleted"):
            store.move(NAME, log_dirs[1])
        assert NAME not in store
        assert directories(log_dirs) == {"one/a-0-delete"}
        disk.below = ""
        fill(store)
        store.mover.stop()
        with pytest.raises(MoveAborted):
            store.move(NAME, log_dirs[0 if store.registry.home(NAME) == log_dirs[1] else 1])


def test_impossible_moves_are_refused(log_dirs: list[Path], clock: Clock) -> None:
    """A move is refused to the same directory, to one outside the store, without room, and by a read-only store."""
    disk = Disk()
    with Store(log_dirs, clock=clock, disk=disk) as store:
        fill(store)
        with pytest.raises(InvalidName, match="already"):
            store.move(NAME, log_dirs[0])
        with pytest.raises(InvalidName, match="not a log directory of this store"):
            store.move(NAME, log_dirs[0] / "other")
        disk.free_bytes = lambda path: 100  # type: ignore[method-assign]
        with pytest.raises(OSError, match="100 are free") as refused:
            store.move(NAME, log_dirs[1])
        assert refused.value.errno == errno.ENOSPC
        assert directories(log_dirs) == {"one/a-0"}
    with Store(log_dirs, read_only=True) as reader, pytest.raises(NotWritable):
        reader.move(NAME, log_dirs[1])


def test_a_move_takes_the_settings_in_force_along(log_dirs: list[Path], clock: Clock) -> None:
    """The settings are copied, because retention must not use the defaults if the new directory is opened alone."""
    one, two = log_dirs
    with Store(one, clock=clock) as store:
        store.settings.set_topic("a", "retention.ms", "-1")
        store.settings.set_broker("log.retention.bytes", "123456")
        fill(store)
    with Store(log_dirs, clock=clock) as store:
        before = content(store[NAME])
        store.move(NAME, two)
    with Store(two, clock=clock) as store:
        assert store[NAME].config.retention_ms == -1
        assert store[NAME].config.retention_bytes == 123456
        clock.now_ms += 100 * 24 * 3600 * 1000
        store.retain()
        assert content(store[NAME]) == before
    with Store(log_dirs, clock=clock) as store:
        # A new partition is created in the emptier directory, which must have its settings, too.
        store.settings.set_topic("b", "retention.ms", "-1")
    (two / "b@p").unlink()
    with Store(log_dirs, clock=clock) as store:
        homes = {store.create(f"b-{number}").directory.parent for number in range(3)}
        assert homes == {one, two}
    with Store(two, clock=clock) as store:
        assert store.settings.log_config("b").retention_ms == -1


def test_a_log_directory_with_other_settings_of_the_topic_is_refused(
    log_dirs: list[Path], clock: Clock
) -> None:
    """The move to a directory with other settings of the topic is refused, because it is unknown which are meant."""
    one, two = log_dirs
    with Store(two, clock=clock) as store:
        store.create("a-1")
        store.settings.set_topic("a", "retention.ms", "5000")
    with Store(one, clock=clock) as store:
        fill(store)
    with Store(log_dirs, clock=clock) as store:
        with pytest.raises(InvalidSetting, match=r"retention.ms is not set, but 5000 in .*two"):
            store.move(NAME, two)
        assert directories(log_dirs) == {"one/a-0"}
        store.settings.set_topic("a", "retention.ms", "5000")
        store.move(NAME, two)


def test_a_move_that_a_crash_interrupted_is_completed_or_undone(
    log_dirs: list[Path], clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    """The next opening completes or undoes a move that a crash interrupted.

    A copy beside its original is removed. A copy whose original has been renamed takes over; while the other log
    directory is not open, it is offline.
    """
    one, two = log_dirs
    with Store(log_dirs, clock=clock) as store:
        before = content(fill(store))
        store.move(NAME, two)
        before = content(store[NAME])
    gone = next(one.glob("*-delete"))
    unique = gone.name.rpartition(".")[2].removesuffix("-delete")
    future, stray = two / f"{NAME}.{unique}-future", one / f"{NAME}.{unique}-stray"
    # The state between the two renames.
    gone.rename(stray)
    (two / NAME).rename(future)
    (future / "logfs.moved").write_text(unique)
    with Store([two], clock=clock) as store:
        assert "all of its log directories" in str(store.offline[NAME])
    with Store(log_dirs, read_only=True) as store:
        assert content(store[NAME]) == before
        store.refresh()
        assert content(store[NAME]) == before
    with caplog.at_level(logging.WARNING), Store(log_dirs, clock=clock) as store:
        assert content(store[NAME]) == before
        assert store[NAME].log_start_offset == 13
        assert "a move is finished" in caplog.text
    assert directories(log_dirs) == {"one/a-0-delete", "two/a-0"}
    # The state before the renames.
    leftover = one / f"{NAME}.{'0' * 32}-future"
    leftover.mkdir()
    (leftover / "00000000000000000000.log").write_bytes(b"half of")
    with Store(log_dirs, clock=clock) as store:
        assert content(store[NAME]) == before
        assert "undone" in caplog.text
    assert directories(log_dirs) == {"one/a-0-delete", "two/a-0"}


def test_a_partition_that_was_created_anew_during_an_unfinished_move(
    log_dirs: list[Path], clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    """The new partition is used; neither the copy nor the original is touched, and that is reported."""
    one, two = log_dirs
    with Store(log_dirs, clock=clock) as store:
        before = content(fill(store))
        store.move(NAME, two)
        before = content(store[NAME])
    gone = next(one.glob("*-delete"))
    unique = gone.name.rpartition(".")[2].removesuffix("-delete")
    future, stray = two / f"{NAME}.{unique}-future", one / f"{NAME}.{unique}-stray"
    gone.rename(stray)
    (two / NAME).rename(future)
    (future / "logfs.moved").write_text(unique)
    with Store([one], clock=clock) as store:
        store.create(NAME).append([b"new"])
    held = {path: fingerprint(path) for path in (future, stray)}
    with Store(log_dirs, clock=clock) as store:
        assert [record.value for record in store[NAME].read()] == [b"new"]
        said = "another directory has the partition's name; move that directory away"
        assert said in caplog.text
    assert {path: fingerprint(path) for path in (future, stray)} == held
    (one / NAME).rename(one.parent / "aside")
    with Store(log_dirs, clock=clock) as store:
        # Its log start offset was forgotten for that of the new partition, so deleted records may show again.
        assert content(store[NAME])[-len(before) :] == before


def test_the_move_command_and_the_copy_in_describe(
    log_dirs: list[Path], clock: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    """`logfs move` moves or refuses, and `logfs describe --json` shows the copy while there is one."""
    one, two = map(str, log_dirs)
    with Store(log_dirs, clock=clock) as store:
        before = content(fill(store))
    assert main(["move", f"{one}/{NAME}", "--to", one]) == 1
    assert "already" in capsys.readouterr().err
    assert main(["move", one, NAME, "--to", two]) == 0
    assert capsys.readouterr().out == f"{two}/{NAME}\n"
    with Store(log_dirs, read_only=True) as store:
        assert content(store[NAME]) == before
    copy = log_dirs[0] / f"{NAME}.{'0' * 32}-future"
    copy.mkdir()
    (copy / "00000000000000000000.log").write_bytes(b"1234")
    assert main(["describe", one, two, "--json"]) == 0
    told = orjson.loads(capsys.readouterr().out)["brokers"][0]["logDirs"]
    assert told[0]["partitions"] == [
        {"partition": NAME, "size": 4, "offsetLag": -1, "isFuture": True}
    ]
    assert [each["isFuture"] for each in told[1]["partitions"]] == [False]


def test_a_mount_moves_in_the_background(
    make_mount: Callable[..., Mount], log_dirs: list[Path]
) -> None:
    """`move` in `ctl`: `tail -f` and an open writer go on, and an impossible move is refused at once."""
    mount = make_mount(log_dirs=log_dirs)
    folder = mount.partition(NAME)
    (folder / "append").write_bytes(b"one\n")
    home = next(path for path in log_dirs if (path / NAME).is_dir())
    other = next(path for path in log_dirs if path != home)
    with pytest.raises(OSError, match="Invalid") as refused:
        (folder / "ctl").write_text(f"move {home}\n")
    assert refused.value.errno == errno.EINVAL
    tail = subprocess.Popen(["tail", "-n", "+1", "-f", folder / "records"], stdout=subprocess.PIPE)
    try:
        assert tail.stdout is not None
        assert tail.stdout.readline() == b"one\n"
        with (folder / "append").open("ab", buffering=0) as writer:
            writer.write(b"two\n")
            (folder / "ctl").write_text(f"move {other}\n")
            wait_for(lambda: (other / NAME).is_dir())
            writer.write(b"three\n")
        (folder / "append").write_bytes(b"four\n")
        assert [tail.stdout.readline() for _ in range(3)] == [b"two\n", b"three\n", b"four\n"]
    finally:
        tail.kill()
        tail.wait()
        if tail.stdout is not None:
            tail.stdout.close()
    assert (folder / "records").read_bytes() == b"one\ntwo\nthree\nfour\n"
    assert not (home / NAME).exists()
    assert "not moved" not in (folder / "ctl").read_text()
    mount.kill()
    mount.stop()
    mount.start()
    assert (folder / "records").read_bytes().startswith(b"one\n")


def test_an_open_file_of_a_read_only_mount_ends_where_a_partition_left(
    make_mount: Callable[..., Mount], log_dirs: list[Path]
) -> None:
    """It shows the log as it was; the name leads to another inode, in which the log goes on (`tail -F`)."""
    with Store(log_dirs) as store:
        partition = fill(store)
        records = make_mount("--read-only", log_dirs=log_dirs).path / NAME / "records"
        with records.open("rb") as file:
            before = file.read()
            inode = records.stat().st_ino
            left = store.registry.homes[NAME].path
            store.move(NAME, next(path for path in log_dirs if path != left))
            partition.append([b"after"])
            wait_for(lambda: records.exists() and records.read_bytes() == before + b"after\n")
            assert records.stat().st_ino != inode
            assert os.fstat(file.fileno()).st_size == len(before)
            file.seek(0)
            assert file.read() == before


def asks(folder: Path, log_dir: Path) -> bool:
    """Ask for a move, and return whether it is accepted: it is refused while the previous move has not ended."""
    try:
        (folder / "ctl").write_text(f"move {log_dir}\n")
    except OSError:
        return False
    return True


@pytest.mark.parametrize("moves", [1, 2, 3])
@pytest.mark.parametrize("grows", [False, True])
def test_a_moved_partition_is_the_same_although_its_files_cannot_be_read(
    log_dirs: list[Path], moves: int, grows: bool
) -> None:
    """Another process may have moved it once more before its new files are looked at; a new partition is another."""
    with Store(log_dirs) as store, Store(log_dirs, read_only=True) as reader:
        partition = fill(store)
        reader.refresh()
        identity = PartitionIdentity(reader[NAME])
        seen = []
        for number in range(moves):
            if grows:
                partition.append([b"more"])
            store.move(NAME, log_dirs[(number + 1) % 2])
            reader.refresh()
            seen.append(reader[NAME])
        assert len(set(map(id, seen))) == moves
        assert identity.is_of(seen[-1])
        store.move(NAME, log_dirs[moves % 2 - 1])
        assert identity.is_of(seen[-1])
        store.move(NAME, log_dirs[moves % 2])
        reader.refresh()
        assert identity.is_of(reader[NAME])
        store.delete(NAME)
        fill(store, 100)
        reader.refresh()
        assert not identity.is_of(reader[NAME])


@pytest.mark.parametrize("moves", [1, 2, 3])
def test_a_compacted_partition_is_the_same_after_moves_and_another_after_a_deletion(
    log_dirs: list[Path], moves: int
) -> None:
    """Compaction may remove the last batch that is known, so the directories tell what has happened."""
    with Store(log_dirs) as store, Store(log_dirs, read_only=True) as reader:
        partition = fill(store)
        # The topic keeps its id.
        store.create("a-1").append([b"kept"])
        store.settings.set_topic("a", "cleanup.policy", "compact")
        reader.refresh()
        identity = PartitionIdentity(reader[NAME])
        partition.append([Record(b"newer", b"key %d" % n) for n in range(7)])
        store.compact(NAME, roll=True)
        for number in range(moves):
            store.move(NAME, log_dirs[(number + 1) % 2])
        reader.refresh()
        assert identity.is_of(reader[NAME])
        # The first new one is in another log directory if the number of moves is odd.
        for _ in range(2):
            store.delete(NAME)
            store.create(NAME)
            assert store.registry.home(NAME) == log_dirs[0]
            store[NAME].append([Record(b"new", b"key %d" % n) for n in range(200)])
            reader.refresh()
            assert not identity.is_of(reader[NAME])
            identity = PartitionIdentity(reader[NAME])


def test_cat_and_tail_work_during_moves(
    make_mount: Callable[..., Mount],
    log_dirs: list[Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """`logfs cat` and `tail` find a partition wherever it is at the time; `tail -f` repeats and omits nothing."""
    with Store(log_dirs) as store:
        store.settings.set_topic("a", "segment.bytes", "400")
    mount = make_mount(log_dirs=log_dirs)
    folder = mount.partition(NAME)
    words = [*map(str, log_dirs), NAME]
    written = 0

    def write(count: int) -> None:
        nonlocal written
        with (folder / "append").open("wb", buffering=0) as file:
            for _ in range(count):
                file.write(b"%d\n" % written)
                written += 1

    write(100)
    shown = tmp_path / "shown"
    command = [sys.executable, "-m", "logfs", "tail", "-f", "-n", "1000", *words]
    with shown.open("wb") as file:
        tail = subprocess.Popen(command, stdout=file)
    try:
        wait_for(lambda: shown.read_bytes().endswith(b"\n99\n"))
        for _ in range(12):
            home = next(path for path in log_dirs if (path / NAME).is_dir())
            other = next(path for path in log_dirs if path != home)
            wait_for(lambda other=other: asks(folder, other))
            write(20)
            for command in (["cat"], ["tail", "-n", "1000000"]):
                assert main([command[0], *command[1:], *words]) == 0
                assert capsys.readouterr().out.split() == [str(n) for n in range(written)]
            wait_for(lambda other=other: (other / NAME).is_dir())
        wait_for(lambda: shown.read_bytes().endswith(b"\n%d\n" % (written - 1)))
        assert tail.poll() is None
    finally:
        tail.kill()
        tail.wait()
    assert shown.read_bytes().split() == [b"%d" % n for n in range(written)]
