"""A call that may hang, with a time limit."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

_T = TypeVar("_T")


def within(seconds: float, ask: Callable[[], _T]) -> _T:
    """Call `ask` in another thread, and return its result or raise its error.

    Raises `TimeoutError` if `ask` takes longer than `seconds`. The call of `ask` then continues in its thread.
    """
    from concurrent.futures import Future

    answer: Future[_T] = Future()

    def run() -> None:
        try:
            answer.set_result(ask())
        except BaseException as error:
            answer.set_exception(error)

    # A thread that hangs cannot be ended. With `daemon=True` the process can exit all the same.
    threading.Thread(target=run, daemon=True).start()
    return answer.result(seconds)
