"""How long things take, counted in classes: cheap enough for every request."""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

# Classes of twice the time each, of which the first ends at 1.024 us.
_UNIT_BITS = 10
_CLASSES = 64
_FIRST_SHOWN = 3
_LAST_SHOWN = 24


class Durations:
    """How many times something took how long. Any thread may note; a count may be lost between two of them."""

    __slots__ = ("counts", "total_ns")

    def __init__(self) -> None:
        self.counts = [0] * _CLASSES
        self.total_ns = 0

    def note(self, ns: int) -> None:
        """Count one time, in ns."""
        self.counts[(ns >> _UNIT_BITS).bit_length()] += 1
        self.total_ns += ns

    @contextmanager
    def timed(self) -> Iterator[None]:
        """Count the time of what is done meanwhile, if it succeeds."""
        began = time.perf_counter_ns()
        yield
        self.note(time.perf_counter_ns() - began)

    def buckets(self) -> Iterator[tuple[float, int]]:
        """Upper bounds in seconds, from 8 us to 17 s, and how many times took less; the last bound is infinite."""
        counts = list(self.counts)
        for number in range(_FIRST_SHOWN, _LAST_SHOWN + 1):
            yield (1 << (number + _UNIT_BITS)) / 1e9, sum(counts[: number + 1])
        yield float("inf"), sum(counts)
