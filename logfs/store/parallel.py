"""Work on many partitions in several threads, so that waits for the disk and compiled loops overlap."""

from __future__ import annotations

import _thread
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

_T = TypeVar("_T")

# How often `for_each` looks whether its threads have ended, in case that a signal has taken their message.
_LOOK_SECONDS = 0.5


def for_each(
    work: Callable[[_T], object],
    items: Iterable[_T],
    *,
    threads: int,
    abandon: Callable[[], object] = lambda: None,
) -> None:
    """Call `work` for each item, in this thread and in up to `threads` - 1 others; return when all calls are done.

    After an error, or a signal such as Ctrl-C, no further call begins, and `abandon` is called, which may make the
    running calls end early. When they have ended, the first error is raised. If a thread cannot be started, the other
    threads do its work.
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
        # A thread that begins from now on finds no item that is left.
        while len(ended) < len(begun):
            with suppress(Empty):
                wake.get(timeout=_LOOK_SECONDS)

    try:
        with suppress(RuntimeError, MemoryError):
            for _ in range(min(threads, len(todo)) - 1):
                # `start` of a `Thread` waits forever for a thread that dies before it runs, for lack of memory.
                _thread.start_new_thread(help_with_run, ())
        run()
        join()
    except BaseException as error:
        fail(error)
        join()
    if errors:
        raise errors[0]
