"""Disks that stop or count the calls of a store."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

import pytest

from logfs.log.disk.disk import Disk, WouldBlock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from logfs.log.disk.disk import File

T = TypeVar("T")


class HeldDisk(Disk):
    """A disk whose syncs of .log files wait until they are released; it counts them."""

    def __init__(self) -> None:
        super().__init__()
        self.released = threading.Event()
        self.released.set()
        self.syncs = 0

    def sync(self, file: File) -> None:
        if file.path.suffix == ".log":
            self.syncs += 1
            assert self.released.wait(60)
        super().sync(file)


class EventLoop:
    """Makes calls as the event loop of a mount does: one that would have to wait is repeated in a thread that may.

    In a first call, every `check_may_block` raises `WouldBlock`.
    """

    def __init__(self) -> None:
        self.waited = False
        self._left: int | None = None

    def call(self, work: Callable[[], T], at_hand: int) -> T:
        """Return the result of `work`. `waited` is then whether it has met a lock or a read that was not at hand.

        In the first call, so many locks and reads are at hand, and the next one would have to be waited for.
        """
        self.waited = False
        self._left = at_hand
        try:
            return work()
        except WouldBlock:
            self._left = None
            return work()
        finally:
            self._left = None

    def check(self) -> None:
        """Raise `WouldBlock` in a first call."""
        if self._left is not None:
            raise WouldBlock

    def step(self) -> None:
        """Raise `WouldBlock` if this lock or read is not at hand."""
        if self._left is not None:
            if not self._left:
                self.waited = True
                raise WouldBlock
            self._left -= 1


@contextmanager
def event_loop() -> Iterator[EventLoop]:
    """Have the locks and reads of every `Disk` ask an `EventLoop` whether they are at hand."""
    loop = EventLoop()
    hold, read = Disk.hold, Disk.read

    @contextmanager
    def held(disk: Disk, lock: threading.Lock | threading.RLock) -> Iterator[None]:
        loop.step()
        with hold(disk, lock):
            yield

    def read_now(disk: Disk, file: File, position: int, size: int) -> memoryview:
        loop.step()
        return read(disk, file, position, size)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Disk, "hold", held)
        patch.setattr(Disk, "read", read_now)
        patch.setattr(Disk, "check_may_block", lambda disk: loop.check())
        yield loop
