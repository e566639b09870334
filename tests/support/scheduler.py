"""A scheduler for two threads: one stops wherever another thread may see something of it, and the other runs there.

Another thread may see something at each call of the disk, which every lock that may be waited for goes through, and
at each assignment to an attribute of what threads share: logs, segments, indexes, producers.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from logfs.log.append.flusher import Flusher
from logfs.log.append.partition import Partition
from logfs.log.disk.disk import Disk, ReadOnlyDisk
from logfs.log.follow.live_partition import LivePartition
from logfs.log.follow.live_segment import LiveSegment
from logfs.log.read.log import CommittedReader
from logfs.log.read.read_committed import CommittedText
from logfs.log.read.text_view import TextView
from logfs.log.segment.index import SparseIndex
from logfs.log.segment.segment import Segment
from logfs.log.segment.txn_index import TransactionIndex
from logfs.log.state.leader_epochs import LeaderEpochs
from logfs.log.state.producers import Producers
from tests.support import lock_order

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SHARED = (
    Partition,
    LivePartition,
    Flusher,
    Segment,
    LiveSegment,
    SparseIndex,
    TransactionIndex,
    Producers,
    LeaderEpochs,
    TextView,
    CommittedReader,
    CommittedText,
)
# How long a thread is waited for that may need a lock of the thread that has stopped.
LOCKED_SECONDS = 0.05


class Scheduler:
    """Calls `at_point` in the thread that `watching` watches, with the number of the point from 1 on."""

    def __init__(self, at_point: Callable[[int], None]) -> None:
        self.points = 0
        self._at_point = at_point
        self._thread: int | None = None
        self._is_stopped = False

    def point(self) -> None:
        """Stop here, if this is the watched thread."""
        if threading.get_ident() != self._thread or self._is_stopped:
            return
        self._is_stopped = True
        try:
            self.points += 1
            # What runs here stands for another thread.
            with lock_order.elsewhere():
                self._at_point(self.points)
        finally:
            self._is_stopped = False

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Watch the calling thread during the `with` block."""
        before = [cls.__setattr__ for cls in SHARED]

        def assign(instance: object, name: str, value: object) -> None:
            object.__setattr__(instance, name, value)
            self.point()

        for cls in SHARED:
            cls.__setattr__ = assign  # type: ignore[method-assign, assignment]
        self._thread = threading.get_ident()
        try:
            yield
        finally:
            self._thread = None
            for cls, known in zip(SHARED, before, strict=True):
                cls.__setattr__ = known  # type: ignore[method-assign]


class WatchedDisk(Disk):
    """A disk at whose calls a scheduler stops the watched thread; `scheduler` is set by the test."""

    scheduler: Scheduler | None = None

    def __getattribute__(self, name: str) -> Any:
        attribute = super().__getattribute__(name)
        if callable(attribute) and not name.startswith("_") and name != "scheduler":
            scheduler = super().__getattribute__("scheduler")
            if scheduler is not None:
                scheduler.point()
        return attribute


class WatchedReadOnlyDisk(WatchedDisk, ReadOnlyDisk):
    """The same for a store that only reads."""


class Beside:
    """Work in another thread, beside one that has stopped and may hold a lock that the work needs."""

    def __init__(self, work: Callable[[], object]) -> None:
        self.result: object = None
        self.error: BaseException | None = None
        self._work = work
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        self._thread.join(LOCKED_SECONDS)

    @property
    def is_waiting(self) -> bool:
        """Whether the work has not ended: it waits for the thread that has stopped, or takes longer."""
        return self._thread.is_alive()

    def _run(self) -> None:
        try:
            self.result = self._work()
        except BaseException as error:
            self.error = error

    def wait(self) -> None:
        """Wait for the end of the work, when the other thread goes on."""
        self._thread.join(60)
        assert not self._thread.is_alive(), "the work waits for ever"
