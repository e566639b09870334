"""Compiled work on what a scan has read, in other threads."""

from __future__ import annotations

import functools
import os
import threading
from typing import TYPE_CHECKING

import pytest

from logfs.log.segment import pipeline
from logfs.log.segment.pipeline import map_ahead

if TYPE_CHECKING:
    from collections.abc import Iterator


def square(number: int) -> int:
    """Return the square, or raise an error for 30."""
    if number == 30:
        raise ValueError("thirty")
    return number * number


@pytest.mark.parametrize("processors", [1, 4])
def test_results_come_in_order(monkeypatch: pytest.MonkeyPatch, processors: int) -> None:
    """As `map` does, with one processor and with several; an error comes in place of its result."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(processors)))
    monkeypatch.setattr(pipeline, "_pool", functools.cache(pipeline._pool.__wrapped__))
    results = map_ahead(square, range(50))
    assert [next(results) for _ in range(30)] == [number * number for number in range(30)]
    with pytest.raises(ValueError, match="thirty"):
        next(results)
    assert list(map_ahead(square, [])) == []


@pytest.mark.parametrize("processors", [1, 4])
def test_an_error_of_the_items_comes_after_the_results(
    monkeypatch: pytest.MonkeyPatch, processors: int
) -> None:
    """What was read before a read failed is used."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(processors)))
    monkeypatch.setattr(pipeline, "_pool", functools.cache(pipeline._pool.__wrapped__))

    def items() -> Iterator[int]:
        yield from range(7)
        raise OSError("unreadable")

    results = map_ahead(str, items())
    assert [next(results) for _ in range(7)] == list("0123456")
    with pytest.raises(OSError, match="unreadable"):
        next(results)


def test_the_caller_works_while_it_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread that needs a result does later items until the result is there."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    monkeypatch.setattr(pipeline, "_pool", functools.cache(pipeline._pool.__wrapped__))
    begun, here = threading.Event(), threading.Event()

    def work(item: int) -> int:
        if threading.current_thread() is threading.main_thread():
            here.set()
        else:
            begun.set()
            assert here.wait(60)
        return item

    def items() -> Iterator[int]:
        for item in range(20):
            yield item
            assert begun.wait(60)

    assert list(map_ahead(work, items())) == list(range(20))


def test_only_a_few_items_are_taken_ahead() -> None:
    """Items are large, so the source is read as the results are used."""
    taken: list[int] = []

    def items() -> object:
        for number in range(100):
            taken.append(number)
            yield number

    results = map_ahead(str, items())  # type: ignore[arg-type]
    assert next(results) == "0"
    assert len(taken) < 10


def test_without_threads_the_caller_does_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no thread can be started, the results are the same."""

    def refuse(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    monkeypatch.setattr(pipeline, "_pool", functools.cache(pipeline._pool.__wrapped__))
    monkeypatch.setattr(threading.Thread, "start", refuse)
    assert list(map_ahead(str, range(9))) == list(map(str, range(9)))


def test_a_forked_child_starts_threads_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """The threads of the parent do not exist in the child."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    assert list(map_ahead(str, range(3))) == ["0", "1", "2"]
    child = os.fork()
    if not child:
        os._exit(0 if list(map_ahead(str, range(3))) == ["0", "1", "2"] else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
