"""A limit on how fast upkeep reads and writes."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

# A shorter wait is postponed, and added to the next one.
_LEAST_WAIT_SECONDS = 0.05


def throttle(
    bytes_per_second: float,
    wait: Callable[[float], object],
    clock: Callable[[], float] = time.monotonic,
) -> Callable[[int], None]:
    """Return a function that counts bytes as read or written, and waits until `bytes_per_second` allows them.

    It calls `wait` with the seconds to wait. `clock` returns the time in seconds.
    """
    paid_until = clock()

    def spend(size: int) -> None:
        nonlocal paid_until
        now = clock()
        paid_until = max(paid_until, now) + size / bytes_per_second
        if paid_until - now >= _LEAST_WAIT_SECONDS:
            wait(paid_until - now)

    return spend
