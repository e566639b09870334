"""A log that one thread reads for the first time while another thread changes it, or sees that it has grown."""

from __future__ import annotations

import itertools
import shutil
import threading
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from logfs.format.text.rendering import View
from logfs.log.disk.disk import Disk, ReadOnlyDisk
from logfs.store.observe.check import check
from logfs.store.store import Store
from tests.support.batches import batch
from tests.support.examples import seed_of
from tests.support.requirements import DEEP

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from logfs.log.append.partition import Partition

NAME = "orders-0"
LONG = b"f" * 5000


class Pausing(Disk):
    """A disk that stops one thread at its call number `number`, until another thread is done or waits for it."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.left = number
        self.thread: threading.Thread | None = None
        self.has_paused, self.resume = threading.Event(), threading.Event()

    def __getattribute__(self, name: str) -> Any:
        attribute = super().__getattribute__(name)
        if callable(attribute) and not name.startswith("_"):
            pause(self)
        return attribute


class PausingReadOnly(Pausing, ReadOnlyDisk):
    pass


def pause(disk: Pausing) -> None:
    state = vars(disk)
    if threading.current_thread() is not state.get("thread"):
        return
    state["left"] -= 1
    if state["left"] == 0:
        state["has_paused"].set()
        assert state["resume"].wait(60)


def numbers() -> Iterator[int]:
    """Yield the numbers of the calls to pause at: all, or in the suite every second one."""
    return itertools.count(1) if DEEP else itertools.count(1 + seed_of() % 2, 2)


def run_beside(disk: Pausing, read: Callable[[], None], change: Callable[[], None]) -> None:
    """Run `read` in a thread, and `change` in another while `read` pauses."""
    failures: list[BaseException] = []

    def run(work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:
            failures.append(error)

    reader = threading.Thread(target=run, args=(read,))
    other = threading.Thread(target=run, args=(change,))
    disk.thread = reader
    reader.start()
    while not disk.has_paused.wait(0.01) and reader.is_alive():
        pass
    other.start()
    # A thread that needs what the reader holds goes on when the reader does.
    other.join(0.05)
    disk.resume.set()
    reader.join(60)
    other.join(60)
    if failures:
        raise failures[0]


def search_times(orders: Partition) -> None:
    found = orders.offset_for_time(0)
    assert found is not None
    assert found.offset == 0


def search_offsets(orders: Partition) -> None:
    record = orders.record(1)
    assert record is not None
    assert record.value == b"B"


def read_committed(orders: Partition) -> None:
    assert next(iter(orders.committed.read())).value == b"a"
    assert orders.committed.text(View.LINES).read(0, 2) == b"a\n"


def read_text(orders: Partition) -> None:
    assert orders.text(View.LINES).read(0, 4) == b"a\nB\n"


READS = [search_times, search_offsets, read_committed, read_text]


@pytest.fixture(scope="module")
def closed_log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log directory, closed cleanly, with the records a, B (aborted) and C, whose transaction is open."""
    log_dir = tmp_path_factory.mktemp("closed") / "log"
    with Store(log_dir, create=True) as store:
        orders = store.create(NAME)
        orders.append([b"a"])
        orders.append_batch(batch(2, 0, b"B", transactional=True))
        orders.end_transaction(2, 0, commit=False)
        orders.append_batch(batch(1, 0, b"C", transactional=True))
    return log_dir


def append(orders: Partition) -> None:
    """End the transaction of C, and append enough for index entries."""
    orders.append([b"d"])
    orders.end_transaction(1, 0, commit=False)
    orders.append([LONG])
    orders.append([b"g"])


@pytest.mark.parametrize("read", READS)
def test_a_first_read_beside_the_first_appends(
    closed_log: Path, tmp_path: Path, read: Callable[[Partition], None]
) -> None:
    """The reader pauses at each of its calls of the disk; no append fails, and all records are where they belong."""
    for number in numbers():
        log_dir = tmp_path / str(number)
        shutil.copytree(closed_log, log_dir)
        disk = Pausing(number)
        with Store(log_dir, disk=disk) as store:
            orders = store[NAME]
            run_beside(disk, partial(read, orders), partial(append, orders))
            read(orders)
            orders.append([b"h"])
            orders.roll(store.clock())
            orders.append([b"i"])
            committed = [record.value for record in orders.committed.read()]
            assert committed == [b"a", b"d", LONG, b"g", b"h", b"i"]
        assert list(check(log_dir)) == []
        if not disk.has_paused.is_set():
            break
    assert number > 2, "the reader does not use the disk"


@pytest.mark.parametrize("read", READS)
def test_a_first_read_beside_another_of_a_log_that_grows(
    closed_log: Path, tmp_path: Path, read: Callable[[Partition], None]
) -> None:
    """The reader pauses at each of its calls of the disk, while a thread of the same read-only store refreshes it."""
    for number in numbers():
        log_dir = tmp_path / str(number)
        shutil.copytree(closed_log, log_dir)
        disk = PausingReadOnly(number)
        with (
            Store(log_dir) as writing,
            Store(log_dir, read_only=True, disk=disk) as store,
        ):
            original = writing[NAME]
            orders = store[NAME]

            def change(
                original: Partition = original,
                orders: Partition = orders,
                now_ms: int = writing.clock(),
            ) -> None:
                append(original)
                original.roll(now_ms)
                original.append([b"h"])
                orders.refresh()
                compare(original, orders)

            run_beside(disk, partial(read, orders), change)
            read(orders)
            compare(original, orders)
        if not disk.has_paused.is_set():
            break
    assert number > 2, "the reader does not use the disk"


def compare(original: Partition, orders: Partition) -> None:
    assert orders.text(View.LINES).read(0, 1 << 20) == original.text(View.LINES).read(0, 1 << 20)
    assert list(orders.committed.read()) == list(original.committed.read())
    assert orders.offset_for_time(0) == original.offset_for_time(0)


@pytest.mark.parametrize("other_opens", [True, False])
def test_an_opening_beside_a_writer_that_opens_or_closes(
    closed_log: Path, tmp_path: Path, other_opens: bool
) -> None:
    """The reader pauses at each of its calls of the disk; files that the writer removes meanwhile are no errors."""
    for number in numbers():
        log_dir = tmp_path / str(number) / "log"
        shutil.copytree(closed_log, log_dir)
        disk = PausingReadOnly(number)
        writers = [] if other_opens else [Store(log_dir)]
        readers: list[Store] = []

        def change(log_dir: Path = log_dir, writers: list[Store] = writers) -> None:
            if writers:
                writers[0].close()
            else:
                writers.append(Store(log_dir))

        def read(
            log_dir: Path = log_dir, disk: Disk = disk, readers: list[Store] = readers
        ) -> None:
            readers.append(Store(log_dir, read_only=True, disk=disk))

        run_beside(disk, read, change)
        (reader,), (writer,) = readers, writers
        for _ in range(2):
            assert not reader.offline
            assert [record.value for record in reader[NAME].read()] == [b"a", b"B", b"C"]
            reader.refresh()
        reader.close()
        writer.close()
        if not disk.has_paused.is_set():
            break
    assert number > 20
