"""The end of a store: before its lock is released, nothing of it can write to the log directory any more."""

from __future__ import annotations

import errno
import os
import threading
from typing import TYPE_CHECKING, Any

import pytest

from logfs.errors import LogfsError, PartitionFailed, StoreLocked, UnknownPartition
from logfs.log.disk.disk import Disk
from logfs.store.directory import lock
from logfs.store.store import Store
from tests.support.stores import assert_clean, fingerprint, locks_below

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from logfs.log.disk.disk import File
    from tests.support.stores import Clock

NAME = "orders-0"


class Stubborn(Disk):
    """A disk whose syncs find too many open files, and whose writes to .log files wait, each if it is told so."""

    def __init__(self) -> None:
        super().__init__()
        self.fails = False
        self.waits = False
        self.waiting = threading.Event()
        self.released = threading.Event()

    def sync(self, file: File) -> None:
        if self.fails:
            raise OSError(errno.EMFILE, "Too many open files")
        super().sync(file)

    def write(self, file: File, position: int, data: Any) -> None:
        if self.waits and file.path.suffix == ".log":
            self.waiting.set()
            assert self.released.wait(60)
        super().write(file, position, data)


def interrupted(store: Store) -> None:
    with store:
        raise KeyboardInterrupt


def failed(store: Store) -> None:
    with store:
        raise ZeroDivisionError


def unflushed(store: Store) -> None:
    assert isinstance(store.disk, Stubborn)
    store.disk.fails = True
    try:
        store.close()
    finally:
        store.disk.fails = False


@pytest.mark.parametrize("end", [interrupted, failed, unflushed, Store.close])
def test_nothing_is_written_after_the_lock_is_released(
    log_dir: Path, clock: Clock, end: Callable[[Store], None]
) -> None:
    """However a store ends: its partitions, groups, settings and other parts refuse what would change a file."""
    with Store(log_dir, clock=clock) as store:
        # Each fingerprint reads the whole files.
        store.settings.set_broker("log.index.size.max.bytes", "4096")
        for name in (NAME, "lazy-0"):
            store.create(name).append([b"first"])
        store.groups.commit("readers", NAME, 1)
    store = Store(log_dir, clock=clock, disk=Stubborn(), lazy=True)
    orders = store[NAME]
    orders.append([b"second"])
    store.groups.commit("readers", NAME, 2)
    try:
        end(store)
    except (KeyboardInterrupt, ZeroDivisionError, LogfsError, OSError):
        pass
    assert lock.holder(Disk(), log_dir) is None
    before = fingerprint(log_dir)
    for attempt in (
        lambda: orders.append([b"late"]),
        lambda: orders.append_lines(b"late\n"),
        lambda: orders.roll(clock()),
        lambda: orders.truncate(0),
        lambda: orders.advance_log_start(1),
        lambda: orders.drop_oldest(1),
        lambda: store["lazy-0"].append([b"late"]),
        lambda: store.create("late-0"),
        lambda: store.delete(NAME),
        lambda: store.delete_records(NAME, 1),
        lambda: store.truncate(NAME, 1),
        lambda: store.compact(NAME),
        lambda: store.settings.set_topic("orders", "retention.ms", "1"),
        lambda: store.groups.commit("readers", NAME, 1),
        lambda: store.checkpoints.write(),
    ):
        try:
            attempt()
        except (LogfsError, OSError):
            pass
        assert fingerprint(log_dir) == before
    store.upkeep()
    assert fingerprint(log_dir) == before
    with pytest.raises(PartitionFailed, match="store is closed"):
        orders.append([b"late"])
    with pytest.raises(PartitionFailed, match="store is closed"):
        store.create("late-0")
    with Store(log_dir, clock=clock) as store:
        assert [record.value for record in store[NAME].read()] == [b"first", b"second"]


def test_a_deleted_partition_whose_flush_fails_takes_no_appends(
    log_dir: Path, clock: Clock
) -> None:
    """The deletion closes the partition, whatever becomes of its last flush."""
    disk = Stubborn()
    with Store(log_dir, clock=clock, disk=disk) as store:
        orders = store.create(NAME)
        orders.append([b"first"])
        disk.fails = True
        store.delete(NAME)
        disk.fails = False
        with pytest.raises(UnknownPartition):
            orders.append([b"late"])


class Writer:
    """A thread that appends to a partition, and waits in the write of a batch."""

    def __init__(self, store: Store) -> None:
        self.refused: Exception | None = None
        self._store = store
        self._orders = store[NAME]
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            while True:
                self._orders.append([b"from a thread"])
        except PartitionFailed as error:
            self.refused = error

    def join(self) -> None:
        self._thread.join(60)
        assert not self._thread.is_alive()


@pytest.fixture
def stubborn(log_dir: Path, clock: Clock) -> Iterator[Store]:
    """A store with a partition, whose disk is `Stubborn`, and in which a thread waits in the write of a batch."""
    store = Store(log_dir, clock=clock, disk=Stubborn())
    store.create(NAME).append([b"first"])
    yield store
    assert isinstance(store.disk, Stubborn)
    store.disk.released.set()


def test_the_lock_is_not_released_during_an_append(
    stubborn: Store, log_dir: Path, clock: Clock
) -> None:
    """Ctrl-C ends the store while another thread is in an append: nobody gets the lock before its write is done."""
    disk, other = stubborn.disk, stubborn.create("other-0")
    assert isinstance(disk, Stubborn)
    disk.waits = True
    writer = Writer(stubborn)
    assert disk.waiting.wait(60)
    held: list[object] = []

    def look() -> None:
        # The store has ended as soon as another partition of it refuses appends.
        while other.failure is None:
            pass
        try:
            Store(log_dir, clock=clock).close()
        except StoreLocked as error:
            held.append(error)
        held.append(lock.holder(Disk(), log_dir))
        disk.released.set()

    looker = threading.Thread(target=look)
    looker.start()
    with pytest.raises(KeyboardInterrupt):
        interrupted(stubborn)
    looker.join()
    writer.join()
    assert isinstance(held[0], StoreLocked)
    assert held[1] == os.getpid()
    assert lock.holder(Disk(), log_dir) is None
    with Store(log_dir, clock=clock) as store:
        assert {record.value for record in store[NAME].read()} == {b"first", b"from a thread"}
    assert_clean(log_dir)


def test_the_lock_is_kept_if_an_append_does_not_end(
    stubborn: Store, log_dir: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A write that the disk does not finish may still happen later, so the process keeps the lock."""
    monkeypatch.setattr("logfs.store.store.PATIENCE_SECONDS", 0.0)
    monkeypatch.setattr(lock, "_kept", kept := [])
    disk = stubborn.disk
    assert isinstance(disk, Stubborn)
    disk.waits = True
    writer = Writer(stubborn)
    assert disk.waiting.wait(60)
    with pytest.raises(KeyboardInterrupt):
        interrupted(stubborn)
    with pytest.raises(StoreLocked, match="in use by this process"):
        Store(log_dir, clock=clock)
    assert locks_below(log_dir)
    disk.released.set()
    writer.join()
    with pytest.raises(StoreLocked, match="in use by this process"):
        Store(log_dir, clock=clock)
    # As when the process ends.
    for each in kept:
        each.release()
    with Store(log_dir, create=False) as store:
        assert {record.value for record in store[NAME].read()} == {b"first", b"from a thread"}
