"""A lazy store: its partitions are loaded, and recovered if necessary, at their first use or by `load_all`."""

from __future__ import annotations

import errno
import itertools
import os
import shutil
import threading
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from logfs.errors import (
    InvalidName,
    LogDirFailed,
    PartitionExists,
    PartitionFailed,
    UnknownPartition,
)
from logfs.format.base.names import parse_directory
from logfs.format.batches.record import Record
from logfs.format.files import checkpoint
from logfs.log import recovery
from logfs.log.disk.disk import Disk, ReadOnlyDisk
from logfs.store.directory.log_dir import CLEAN_SHUTDOWN, RECOVERY_POINTS, LogDir
from logfs.store.store import Store
from tests.support import lock_order
from tests.support.partitions import offsets
from tests.support.processes import Threads, wait_for
from tests.support.staging import stage
from tests.support.stores import abandon, set_topic

if TYPE_CHECKING:
    from collections.abc import Callable, ItemsView
    from pathlib import Path

    from logfs.format.files.commit_file import StagedFile
    from logfs.log.disk.disk import File
    from tests.support.stores import Clock

NAMES = [f"t-{number}" for number in range(12)]


class GatedDisk(Disk):
    """A disk on which the reads of the .log files of one partition wait until `gate` is set."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name
        self.gate = threading.Event()
        self.waiting = threading.Event()
        self.opened: list[Path] = []

    def open(self, path: Path, *, write: bool = False, create: bool = False) -> File:
        self.opened.append(path)
        return super().open(path, write=write, create=create)

    def read(self, file: File, position: int, size: int) -> memoryview:
        if file.path.suffix == ".log" and file.path.parent.name == self.name:
            self.waiting.set()
            assert self.gate.wait(60)
        return super().read(file, position, size)


def fill(log_dir: Path, clock: Clock, *, clean: bool, count: int = 3) -> None:
    """Make twelve partitions with `count` segments of one record each; `clean` tells how the store ends."""
    store = Store(log_dir, clock=clock)
    for name in NAMES:
        partition = store.create(name)
        for number in range(count):
            if number:
                partition.roll(clock())
            partition.append([f"{name} {number}".encode()])
    if clean:
        store.close()
    else:
        store.checkpoints.write()
        abandon(store)


def values(store: Store, name: str) -> list[str]:
    """Return the values of a partition."""
    return [(record.value or b"").decode() for record in store[name].read()]


def staged(store: Store, name: str, value: bytes) -> StagedFile:
    """Stage one record for a commit."""
    log = store[name]
    return stage(log.directory, log.config, "q", 0, [Record(value)], now_ms=store.clock())


def points(log_dir: Path) -> dict[str, int]:
    """Return the checkpoint of recovery points."""
    found = checkpoint.parse_offsets((log_dir / RECOVERY_POINTS).read_bytes())
    return {name.directory: offset for name, offset in found.items()}


@pytest.mark.parametrize("clean", [True, False])
def test_the_first_use_loads_one_partition(log_dir: Path, clock: Clock, *, clean: bool) -> None:
    """The opening opens no file of a partition; the first use of a name loads this one, and `load_all` the rest."""
    fill(log_dir, clock, clean=clean)
    disk = GatedDisk("none")
    with Store(log_dir, clock=clock, disk=disk, lazy=True) as store:
        assert list(store) == sorted(NAMES)
        assert len(store) == len(store.registry.unloaded) == 12
        assert not store.registry.partitions
        assert all(name in store for name in NAMES)
        assert not [path for path in disk.opened if path.parent != log_dir]
        assert values(store, "t-3") == ["t-3 0", "t-3 1", "t-3 2"]
        assert [*store.registry.partitions] == ["t-3"]
        assert len(store) == 12
        store.load_all()
        assert not store.registry.unloaded
        assert (store.recovered_bytes == 0) == clean
        for name in NAMES:
            assert values(store, name) == [f"{name} {number}" for number in range(3)]


def test_a_partition_is_loaded_once(log_dir: Path, clock: Clock) -> None:
    """Two threads that ask for a partition get the same object; the status shows how far the recovery is."""
    fill(log_dir, clock, clean=False)
    disk = GatedDisk("t-0")
    errors: list[BaseException] = []
    threads = Threads(errors)
    with Store(log_dir, clock=clock, disk=disk, lazy=True) as store:
        found: list[object] = []
        threads.start(lambda: found.append(store["t-0"]))
        assert disk.waiting.wait(60)
        threads.start(lambda: found.append(store["t-0"]))
        (work,) = store.registry.background
        assert (work.what, work.name) == ("recovering", "t-0")
        assert work.total_bytes > work.done_bytes
        disk.gate.set()
        threads.join()
        assert not errors
        assert len(found) == 2
        assert found[0] is found[1] is store["t-0"]
        assert not store.registry.background


def test_partitions_are_served_while_another_is_recovered(log_dir: Path, clock: Clock) -> None:
    """While the recovery of a large partition waits for the disk, all others are loaded, read and written."""
    fill(log_dir, clock, clean=False)
    before = Store(log_dir, clock=clock)
    before["t-0"].append([b"x" * 1_000_000])
    for _ in range(4):
        before["t-0"].append([os.urandom(1_000_000)])
    before.checkpoints.write()
    abandon(before)
    errors: list[BaseException] = []
    threads = Threads(errors)
    store = Store(log_dir, clock=clock, disk=(disk := GatedDisk("t-0")), lazy=True)
    threads.start(store.load_all)
    assert disk.waiting.wait(60)
    for name in NAMES[1:]:
        assert len(values(store, name)) == 3
        store[name].append([b"more"])
    assert [*store.registry.unloaded] == ["t-0"]
    disk.gate.set()
    threads.join()
    assert not errors
    assert store["t-0"].log_end_offset == 8
    store.close()


def test_a_close_before_the_loading_keeps_a_clean_directory_clean(
    log_dir: Path, clock: Clock
) -> None:
    """What was not loaded keeps its recovery points; the next opening needs no recovery."""
    fill(log_dir, clock, clean=True)
    before = points(log_dir)
    with Store(log_dir, clock=clock, lazy=True) as store:
        assert not (log_dir / CLEAN_SHUTDOWN).exists()
        store["t-5"].append([b"more"])
    assert points(log_dir) == {**before, "t-5": 4}
    assert (log_dir / CLEAN_SHUTDOWN).exists()
    with Store(log_dir, clock=clock) as store:
        assert store.recovered_bytes == 0


def test_a_close_before_the_recovery_leaves_it_to_the_next_opening(
    log_dir: Path, clock: Clock
) -> None:
    """The directory stays unclean as long as a partition in it was not recovered."""
    fill(log_dir, clock, clean=False)
    for number in range(3):
        with Store(log_dir, clock=clock, lazy=True) as store:
            store[f"t-{number}"].append([b"more"])
        assert not (log_dir / CLEAN_SHUTDOWN).exists()
        assert points(log_dir)[f"t-{number}"] == 4
        assert points(log_dir)["t-11"] == 0
    with Store(log_dir, clock=clock, lazy=True) as store:
        store.load_all()
        assert [len(values(store, name)) for name in NAMES] == [4] * 3 + [3] * 9
    assert (log_dir / CLEAN_SHUTDOWN).exists()


def test_closing_ends_a_pause_between_two_loads(
    log_dir: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A gentle `load_all` pauses for as long as a load took, but no longer than the store is open."""
    fill(log_dir, clock, clean=True)
    store = Store(log_dir, clock=clock, lazy=True)
    # Every load seems to take an hour.
    hours = itertools.count(step=3600)
    monkeypatch.setattr("logfs.store.loading.time", SimpleNamespace(monotonic=lambda: next(hours)))
    errors: list[BaseException] = []
    threads = Threads(errors)
    threads.start(lambda: store.load_all(gently=True))
    wait_for(lambda: len(store.registry.unloaded) == len(NAMES) - 1)
    store.stop_loading()
    threads.join()
    assert not errors
    assert len(store.registry.unloaded) == len(NAMES) - 1
    store.close()


def test_closing_ends_a_recovery(log_dir: Path, clock: Clock) -> None:
    """`close` does not wait until a recovery is done; the partition then is as a crash would have left it."""
    fill(log_dir, clock, clean=False)
    disk = GatedDisk("t-0")
    store = Store(log_dir, clock=clock, disk=disk, lazy=True)
    errors: list[BaseException] = []
    threads = Threads(errors)
    threads.start(store.load_all)
    assert disk.waiting.wait(60)
    threads.start(store.close)
    wait_for(store.registry.loader._stopped.is_set)
    disk.gate.set()
    threads.join()
    assert not errors
    assert "t-0" in store.registry.unloaded
    with pytest.raises(PartitionFailed, match="closed"):
        store["t-0"]
    assert not (log_dir / CLEAN_SHUTDOWN).exists()
    with Store(log_dir, clock=clock) as store:
        assert all(len(values(store, name)) == 3 for name in NAMES)


def test_a_partition_that_cannot_be_loaded_is_offline(log_dir: Path, clock: Clock) -> None:
    """The first use raises the error that also each later use raises."""
    fill(log_dir, clock, clean=True)
    log = log_dir / "t-4/00000000000000000000.log"
    good = log.read_bytes()
    log.unlink()
    log.symlink_to("/etc/passwd")
    try:
        with Store(log_dir, clock=clock, lazy=True) as store:
            assert "t-4" in store
            for _ in range(2):
                with pytest.raises(InvalidName, match="regular file"):
                    store["t-4"]
            assert [*store.offline] == ["t-4"]
            assert len(store) == 11
            store.load_all()
            assert [*store.offline] == ["t-4"]
    finally:
        log.unlink()
        log.write_bytes(good)


def test_names_that_are_not_loaded_are_taken(log_dir: Path, clock: Clock) -> None:
    """A partition can be deleted, truncated and created as if it were loaded; new ones get the topic's id."""
    fill(log_dir, clock, clean=True)
    with Store(log_dir, clock=clock, lazy=True) as store:
        with pytest.raises(PartitionExists):
            store.create("t-1")
        store.delete("t-1")
        assert "t-1" not in store
        assert store.truncate("t-2", 1)
        store.create("t-1")
        ids = {(log_dir / name / "partition.metadata").read_bytes() for name in ("t-0", "t-1")}
        assert len(ids) == 1
    assert points(log_dir) == {**dict.fromkeys(NAMES, 3), "t-1": 0, "t-2": 1}


def test_retention_and_compaction_on_request_concern_all(log_dir: Path, clock: Clock) -> None:
    """`retain` and a request for all compactions load what they need; logs that are not compacted are left out."""
    fill(log_dir, clock, clean=True)
    with Store(log_dir, clock=clock, lazy=True) as store:
        store.create("plain-0")
        store.settings.set_topic("t", "retention.bytes", "1")
        assert store.retain() == 24
        store.settings.set_topic("t", "cleanup.policy", "compact")
    with Store(log_dir, clock=clock, lazy=True) as store:
        store.compactor.request_all()
        assert store.compactor.requested == set(NAMES)


def test_committed_offsets_are_found(log_dir: Path, clock: Clock) -> None:
    """A group's commits are found although `__consumer_offsets` was not loaded."""
    fill(log_dir, clock, clean=True)
    with Store(log_dir, clock=clock) as store:
        store.groups.commit("billing", "t-3", 2)
    with Store(log_dir, clock=clock, lazy=True) as store:
        found = store.groups.committed("billing", "t-3")
        assert found is not None
        assert found.offset == 2
        assert "t-3" in store.registry.unloaded


def test_a_decided_commit_is_done_at_the_opening(log_dir: Path, clock: Clock) -> None:
    """The opening loads the partitions of a decided commit, and no others."""
    fill(log_dir, clock, clean=True)

    class Full(Disk):
        """A disk that is full for the records of t-7."""

        def write(self, file: File, position: int, data: object) -> None:
            if file.path.parent.name == "t-7" and file.path.suffix == ".log":
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            super().write(file, position, data)  # type: ignore[arg-type]

    store = Store(log_dir, clock=clock, disk=Full())
    with pytest.raises(Exception, match="decided"):
        store.commit("q", 0, [staged(store, "t-6", b"1"), staged(store, "t-7", b"2")])
    abandon(store)
    with Store(log_dir, clock=clock, lazy=True) as store:
        assert not store.commits.pending()
        assert sorted(store.registry.partitions) == ["t-6", "t-7"]
        assert values(store, "t-6")[-1] == "1"
        assert values(store, "t-7")[-1] == "2"


def test_a_failed_log_directory_takes_unloaded_partitions_offline(
    log_dir: Path, clock: Clock, tmp_path: Path
) -> None:
    """After an error of its disk, nothing in it is loaded any more, and the other directory goes on."""
    fill(log_dir, clock, clean=True)
    other = tmp_path / "other"
    with Store(other, clock=clock) as store:
        store.create("o-0").append([b"v"])
    with Store([log_dir, other], clock=clock, lazy=True) as store:
        store.log_dirs[0].disk.fail("broken")
        store.registry.take_failed_offline()
        assert {*store.offline} == {*NAMES}
        assert [*store.registry.unloaded] == ["o-0"]
        with pytest.raises(LogDirFailed):
            store["t-0"]
        assert values(store, "o-0") == ["v"]


def test_no_checkpoint_loses_a_partition_that_is_being_loaded(log_dir: Path, clock: Clock) -> None:
    """Checkpoints that are written while a partition becomes loaded have an entry for each partition."""
    fill(log_dir, clock, clean=True)

    class Homes(dict[str, LogDir]):
        """The log directories by partition; another thread loads t-9 just before a loop over them."""

        def items(self) -> ItemsView[str, LogDir]:
            assert store["t-9"]
            return super().items()

    with Store(log_dir, clock=clock, lazy=True) as store:
        assert store["t-8"]
        store.registry.homes = Homes(store.registry.homes)
        store.scheduler.checkpoint()
        assert points(log_dir) == dict.fromkeys(NAMES, 3)


def test_a_read_only_store_is_lazy_too(log_dir: Path, clock: Clock) -> None:
    """It follows the directory: what is new is listed, and loaded at its first use."""
    fill(log_dir, clock, clean=True)
    with Store(log_dir, clock=clock) as writer, Store(log_dir, read_only=True, lazy=True) as store:
        assert values(store, "t-1")[-1] == "t-1 2"
        writer.create("u-0").append([b"new"])
        writer["t-2"].append([b"t-2 3"])
        writer.delete("t-3")
        store.refresh()
        assert {*store} == {*NAMES, "u-0"} - {"t-3"}
        assert [*store.registry.partitions] == ["t-1"]
        assert values(store, "u-0") == ["new"]
        assert values(store, "t-2")[-1] == "t-2 3"
        assert all(parse_directory(name) for name in store)


def test_a_refresh_loads_no_partition_again_that_has_not_changed(
    log_dir: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A partition that an unexpected error took offline stays so until its directory changes."""
    fill(log_dir, clock, clean=True)
    wanted = recovery.load

    def load(disk: Disk, path: Path, *words: Any, **options: Any) -> recovery.Loaded:
        if path.name == "t-1":
            raise ZeroDivisionError(path)
        return wanted(disk, path, *words, **options)

    monkeypatch.setattr(recovery, "load", load)
    with Store(log_dir, read_only=True) as store:
        for _ in range(3):
            store.refresh()
        assert "ZeroDivisionError" in str(store.offline["t-1"])
        assert len([each for each in caplog.records if each.exc_info]) == 1
        monkeypatch.undo()
        (log_dir / "t-1/other").touch()
        store.refresh()
        assert values(store, "t-1")[-1] == "t-1 2"


@pytest.mark.parametrize("is_moved", [False, True], ids=["in place", "moved"])
def test_a_read_only_store_learns_that_a_log_was_compacted(
    tmp_path: Path, clock: Clock, *, is_moved: bool
) -> None:
    """A log that it loads after the first compaction may lack offsets, which is no damage."""
    log_dirs = [tmp_path / "one", tmp_path / "two"]
    with Store(log_dirs, clock=clock) as store:
        set_topic(store, "keys", cleanup_policy="compact")
        keys = store.create("keys-0")
        for number in range(9):
            keys.append([Record(b"value", b"k%d" % (number % 2))])
    with Store(log_dirs, clock=clock, read_only=True, lazy=True) as reader:
        if is_moved:
            # Loads the log at its old place.
            assert reader["keys-0"].log_end_offset == 9
        with Store(log_dirs, clock=clock) as store:
            store.compact("keys-0", roll=True)
            if is_moved:
                home = store.registry.homes["keys-0"].path
                store.move("keys-0", next(path for path in log_dirs if path != home))
        reader.refresh()
        assert offsets(reader["keys-0"]) == [7, 8]


class MovingDisk(ReadOnlyDisk):
    """A disk that calls `move` before it first opens a .log file."""

    def __init__(self) -> None:
        super().__init__()
        self.move: Callable[[], None] | None = None

    def open(self, path: Path, *, write: bool = False, create: bool = False) -> File:
        move, self.move = (None, self.move) if path.suffix != ".log" else (self.move, None)
        if move is not None:
            move()
        return super().open(path, write=write, create=create)


def test_a_partition_that_moves_while_a_read_only_store_loads_it(
    tmp_path: Path, clock: Clock
) -> None:
    """It is loaded at its new place, if a refresh has found it there meanwhile."""
    log_dirs = [tmp_path / "one", tmp_path / "two"]
    with Store(log_dirs, clock=clock) as store:
        store.create("t-0").append([b"value"])
    disk = MovingDisk()
    with Store(log_dirs, clock=clock, read_only=True, lazy=True, disk=disk) as reader:

        def move() -> None:
            # In another process, and in another thread.
            with lock_order.elsewhere():
                with Store(log_dirs, clock=clock) as store:
                    home = store.registry.homes["t-0"].path
                    store.move("t-0", next(path for path in log_dirs if path != home))
                reader.refresh()

        disk.move = move
        assert [record.value for record in reader["t-0"].read()] == [b"value"]
        assert disk.move is None


def test_a_partition_that_vanishes_before_its_load_is_listed_no_more(
    log_dir: Path, clock: Clock
) -> None:
    """A read-only store forgets it at its first use, and finds another one of its name later."""
    fill(log_dir, clock, clean=True)
    with Store(log_dir, clock=clock, read_only=True, lazy=True) as store:
        shutil.rmtree(log_dir / NAMES[0])
        with pytest.raises(UnknownPartition):
            _ = store[NAMES[0]]
        assert NAMES[0] not in store
        assert NAMES[1] in store
    with Store(log_dir, clock=clock) as writer:
        writer.create(NAMES[0]).append([b"anew"])
    with Store(log_dir, clock=clock, read_only=True, lazy=True) as store:
        assert [record.value for record in store[NAMES[0]].read()] == [b"anew"]
