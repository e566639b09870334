"""A limit on how fast upkeep reads and writes."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

# A shorter wait is postponed, and added to the next one.
_LEAST_WAIT_SECONDS = 0.05


class Throttle:
    """A limit of `bytes_per_second` for reads and writes together.

    `spend` calls `wait` with the seconds to wait. `clock` returns the time in seconds.
    """

    def __init__(
        self,
        bytes_per_second: float,
        wait: Callable[[float], object],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._bytes_per_second = bytes_per_second
        self._wait = wait
        self._clock = clock
        self._paid_until = clock()

    def spend(self, size: int) -> None:
        """Count `size` bytes as read or written, and wait until the limit allows them."""
        now = self._clock()
        self._paid_until = max(self._paid_until, now) + size / self._bytes_per_second
        if self._paid_until - now >= _LEAST_WAIT_SECONDS:
            self._wait(self._paid_until - now)
