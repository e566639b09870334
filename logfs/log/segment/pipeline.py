"""A pipeline for scans: while the scanning thread reads, other threads process earlier data, in compiled code."""

from __future__ import annotations

import functools
import os
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

T = TypeVar("T")
R = TypeVar("R")

# How many later items `map_ahead` reads from `items` before it needs the result of an item.
_AHEAD = 4


def map_ahead(work: Callable[[T], R], items: Iterable[T]) -> Iterator[R]:
    """Yield the result of `work` for each item, in order, as `map` does; `work` is called in other threads, too.

    Until the next result is ready, the calling thread itself calls `work` on later items. An error of `work` is
    raised in place of the result of its item. An error of `items` is raised after the results of all earlier items.
    With one processor, or if no thread can be started, only the calling thread calls `work`.
    """
    waiting: deque[_Call[T, R]] = deque()
    source, failure = iter(items), None
    while failure is None:
        try:
            item = next(source)
        except StopIteration:
            break
        except Exception as error:
            failure = error
            break
        waiting.append(_Call(work, item))
        if len(waiting) > _AHEAD:
            yield _next_result(waiting)
    while waiting:
        yield _next_result(waiting)
    if failure is not None:
        raise failure


class _Call(Generic[T, R]):
    """One call of `work`, by a thread of the pool or by the thread that needs the result."""

    def __init__(self, work: Callable[[T], R], item: T) -> None:
        self._work = work
        self._item = item
        self.future: Future[R] = Future()
        with suppress(RuntimeError):
            if _helpers():
                self.future = _pool().submit(work, item)

    def take(self) -> bool:
        """Do the work in this thread and return True; if it was begun before, do nothing and return False."""
        if not self.future.cancel():
            return False
        self.future = Future()
        try:
            self.future.set_result(self._work(self._item))
        except Exception as error:
            self.future.set_exception(error)
        return True


def _next_result(waiting: deque[_Call[T, R]]) -> R:
    """Remove the first call from `waiting` and return its result.

    While another thread computes this result, the calling thread executes later calls.
    """
    first = waiting.popleft()
    if not first.take():
        for later in waiting:
            if first.future.done():
                break
            later.take()
    return first.future.result()


def _helpers() -> int:
    return len(os.sched_getaffinity(0)) - 1


@functools.cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(_helpers(), "logfs-scan")


# Let a forked child process make a new pool: it has only the thread that forked.
os.register_at_fork(after_in_child=_pool.cache_clear)
