"""Histograms of durations, cheap enough to record every request."""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

# The buckets of durations: the first ends at 1.024 us, each further bucket at twice the end of the one before.
_UNIT_BITS = 10
_CLASSES = 64
# The numbers of the first and the last of these buckets that the method `buckets` yields.
_FIRST_SHOWN = 3
_LAST_SHOWN = 24


class LatencyHistogram:
    """A histogram of durations. Any thread may add durations; if two threads add at once, a count may be lost."""

    __slots__ = ("counts", "total_ns")

    def __init__(self) -> None:
        self.counts = [0] * _CLASSES
        self.total_ns = 0

    def note(self, ns: int) -> None:
        """Count one duration, in ns."""
        self.counts[(ns >> _UNIT_BITS).bit_length()] += 1
        self.total_ns += ns

    @contextmanager
    def timed(self) -> Iterator[None]:
        """Count the duration of the `with` block, unless the block raises an error."""
        began = time.perf_counter_ns()
        yield
        self.note(time.perf_counter_ns() - began)

    def buckets(self) -> Iterator[tuple[float, int]]:
        """Yield upper bounds (seconds), each with the number of all durations below it.

        The bounds rise from 8 us to 17 s by factors of 2; the last one is infinity.
        """
        counts = list(self.counts)
        for number in range(_FIRST_SHOWN, _LAST_SHOWN + 1):
            yield (1 << (number + _UNIT_BITS)) / 1e9, sum(counts[: number + 1])
        yield float("inf"), sum(counts)
