"""Ctrl-C at a better moment: after an import or the start of a JVM, or when the threads of some work have ended."""

from __future__ import annotations

import signal
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@contextmanager
def delayed_interrupts(told: Callable[[], object] = lambda: None) -> Iterator[None]:
    """Delay Ctrl-C to the end of the context, where it raises `KeyboardInterrupt`.

    At each Ctrl-C, `told` is called at once. A `KeyboardInterrupt` in the middle of an import may leave a lock of the
    import system held, for which all other threads then wait for ever.

    Does nothing in a thread that is not the main thread, or if the program has its own handler of SIGINT.
    """
    if (
        threading.current_thread() is not threading.main_thread()
        or signal.getsignal(signal.SIGINT) is not signal.default_int_handler
    ):
        yield
        return
    arrived: list[int] = []

    def note(number: int, _: object) -> None:
        arrived.append(number)
        told()

    signal.signal(signal.SIGINT, note)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if arrived:
        raise KeyboardInterrupt
