"""Ctrl-C at a better moment: after an import, or after the start of a JVM, that must not end half-way."""

from __future__ import annotations

import signal
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def delayed_interrupts() -> Iterator[None]:
    """Delay Ctrl-C to the end of the context, where it raises `KeyboardInterrupt`.

    Does nothing in a thread that is not the main thread, or if the program has its own handler of SIGINT.
    """
    if (
        threading.current_thread() is not threading.main_thread()
        or signal.getsignal(signal.SIGINT) is not signal.default_int_handler
    ):
        yield
        return
    arrived: list[int] = []
    signal.signal(signal.SIGINT, lambda number, _: arrived.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if arrived:
        raise KeyboardInterrupt
