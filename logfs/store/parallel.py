"""Work on many partitions in several threads, so that waits for the disk and compiled loops overlap."""

from __future__ import annotations

import _thread
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, TypeVar

from logfs.interrupts import delayed_interrupts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

_T = TypeVar("_T")

# How often `for_each` checks whether its threads have ended. A thread also sends a message at its end, but a signal
# such as Ctrl-C may interrupt the receipt, and the message is then lost.
_LOOK_SECONDS = 0.5


def for_each(
    work: Callable[[_T], object],
    items: Iterable[_T],
    *,
    threads: int,
    abandon: Callable[[], object] = lambda: None,
) -> None:
    """Call `work` for each item, in this thread and in up to `threads` - 1 others; return when all calls are done.

    After an error or Ctrl-C, no further call begins, and `abandon` is called, which may make the running calls end
    early. When they have ended, the first error is raised; for Ctrl-C it is `KeyboardInterrupt`. If a thread cannot
    be started, the other threads do its work.
    """
    todo = list(items)
    # All threads take items from this iterator, so each item goes to one thread.
    rest = iter(todo)
    errors: list[BaseException] = []

    def fail(error: BaseException) -> None:
        errors.append(error)
        abandon()

    def run() -> None:
        for item in rest:
            if errors:
                return
            try:
                work(item)
            except BaseException as error:
                fail(error)

    begun: list[None] = []
    ended: list[None] = []
    wake: SimpleQueue[None] = SimpleQueue()

    def help_with_run() -> None:
        begun.append(None)
        try:
            run()
        finally:
            ended.append(None)
            wake.put(None)

    def join() -> None:
        # Do not wait for a thread that has not begun yet: it finds no item left, or an error, and does nothing.
        while len(ended) < len(begun):
            with suppress(Empty):
                wake.get(timeout=_LOOK_SECONDS)

    with delayed_interrupts(lambda: fail(KeyboardInterrupt())):
        try:
            with suppress(RuntimeError, MemoryError):
                for _ in range(min(threads, len(todo)) - 1):
                    # `start` of a `Thread` would wait forever for a thread that dies before it runs, for lack of
                    # memory.
                    _thread.start_new_thread(help_with_run, ())
            run()
            join()
        except BaseException as error:
            fail(error)
            join()
        if errors:
            raise errors[0]
