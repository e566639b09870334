"""A pipeline for scans: compiled work on what was read goes on in other threads, while this one reads on."""

from __future__ import annotations

import os
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

T = TypeVar("T")
R = TypeVar("R")

# How many items are taken before the result of the first one is needed.
_AHEAD = 4

_threads: ThreadPoolExecutor | None = None


def map_ahead(work: Callable[[T], R], items: Iterable[T]) -> Iterator[R]:
    """Yield the result of `work` for each item, in order, as `map` does; `work` is called in other threads.

    An error of `work` is raised when its item would be yielded. With one processor, or if no thread can be started,
    `work` is called in this thread.
    """
    waiting: deque[tuple[T, Future[R] | None]] = deque()

    def first() -> R:
        item, future = waiting.popleft()
        return work(item) if future is None else future.result()

    for item in items:
        future = None
        with suppress(RuntimeError):
            future = _pool().submit(work, item) if _helpers() else None
        waiting.append((item, future))
        if len(waiting) > _AHEAD:
            yield first()
    while waiting:
        yield first()


def _helpers() -> int:
    return len(os.sched_getaffinity(0)) - 1


def _pool() -> ThreadPoolExecutor:
    global _threads
    if _threads is None:
        _threads = ThreadPoolExecutor(_helpers(), "logfs-scan")
    return _threads


def _forget() -> None:
    """Used in a forked child, which has no threads but the one that forked."""
    global _threads
    _threads = None


os.register_at_fork(after_in_child=_forget)
