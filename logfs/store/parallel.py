"""Work on many partitions in several threads, so that waits for the disk and compiled loops overlap."""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

_T = TypeVar("_T")


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

    helpers: list[threading.Thread] = []

    def join() -> None:
        for helper in helpers:
            # A thread that could not be started has no ident.
            if helper.ident is not None:
                helper.join()

    try:
        with suppress(RuntimeError):
            for _ in range(min(threads, len(todo)) - 1):
                helpers.append(threading.Thread(target=run))
                helpers[-1].start()
        run()
        join()
    except BaseException as error:
        fail(error)
        join()
    if errors:
        raise errors[0]
