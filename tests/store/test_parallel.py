"""Work on many items in several threads."""

from __future__ import annotations

import _thread
import signal
import threading

import pytest

from logfs.store.parallel import for_each


@pytest.mark.parametrize("threads", [1, 2, 8, 100])
def test_each_item_is_worked_on_once(threads: int) -> None:
    """All items are done when the call returns, whatever the number of threads."""
    done: list[int] = []
    for_each(done.append, range(50), threads=threads)
    assert sorted(done) == list(range(50))
    for_each(done.append, (), threads=threads)
    assert len(done) == 50


def test_calls_overlap() -> None:
    """Two items are worked on at the same time."""
    both = threading.Barrier(2, timeout=60)
    for_each(lambda _: both.wait(), range(2), threads=2)


@pytest.mark.parametrize("error", [ValueError("bad"), KeyboardInterrupt()])
def test_the_first_error_ends_the_work(error: BaseException) -> None:
    """It is raised after the calls that run have ended; `abandon` lets them end early, and no more begin."""
    begun: list[int] = []
    abandoned = threading.Event()
    running = threading.Event()

    def work(number: int) -> None:
        begun.append(number)
        if number == 0:
            assert running.wait(60)
            raise error
        running.set()
        assert abandoned.wait(60)

    with pytest.raises(type(error)):
        for_each(work, range(50), threads=2, abandon=abandoned.set)
    assert sorted(begun) == [0, 1]


def test_ctrl_c_does_not_interrupt_a_call() -> None:
    """It may be in an import, whose lock would stay held. The call ends as `abandon` lets it, and no more begin."""
    begun, ended = [], []
    abandoned = threading.Event()

    def work(number: int) -> None:
        begun.append(number)
        if threading.current_thread() is threading.main_thread():
            # Sent to this thread: another one would not wake this one from its wait.
            signal.pthread_kill(threading.get_ident(), signal.SIGINT)
        assert abandoned.wait(60)
        ended.append(number)

    with pytest.raises(KeyboardInterrupt):
        for_each(work, range(50), threads=2, abandon=abandoned.set)
    assert sorted(begun) == sorted(ended)
    assert len(ended) <= 2
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.parametrize("error", [RuntimeError("can't start new thread"), MemoryError(), None])
def test_without_threads_the_caller_does_the_work(
    monkeypatch: pytest.MonkeyPatch, error: Exception | None
) -> None:
    """Where no thread can be started, or each dies before it runs (None), nothing is left undone."""

    def start(*_: object) -> int:
        if error is not None:
            raise error
        return 1

    monkeypatch.setattr(_thread, "start_new_thread", start)
    done: list[int] = []
    for_each(done.append, range(5), threads=4)
    assert done == list(range(5))
