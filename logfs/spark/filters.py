"""The filters of a query that decide what of the log is read. Spark evaluates all of them again on what was read.

Filters on topic, partition and offset select exactly what passes. The exception is an offset filter with more than
100 ranges: one range from the first to the last offset of these ranges is read. For timestamps, the log knows the
greatest timestamp of each segment and each batch, so segments and batches that are too early are skipped. From the
other batches, records outside of the time range are dropped. Filters on other columns or of unknown kinds select
nothing.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import numpy as np
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
    Not,
    StringContains,
    StringEndsWith,
    StringStartsWith,
)

from logfs.format.encoding.arrow_batches import FIRST_MS, LAST_MS
from logfs.log.scan import scan_split

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyspark.sql.datasource import Filter

    from logfs.format.batches.columns import Columns
    from logfs.log.read.reader import Reader

    # Ranges of numbers, [first, end), in ascending order.
    Ranges = Sequence[tuple[int, int]]

_FIRST, _END = -(2**63), 2**63 - 1
# If an offset filter has more ranges than this, one range from its lowest to its highest offset replaces them.
_MOST_RANGES = 100
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
# The columns whose filters `PushedFilters` can evaluate, and the types of their values. Only the column `timestamp`
# can have nulls: a timestamp that is too large for an int64 in microseconds is null.
_TYPES = {"topic": str, "partition": int, "offset": int, "timestamp": datetime}
# Spark compares strings by their UTF-8 bytes. Python compares them by code points, which gives the same order.
_STRINGS: dict[type[Filter], Callable[[str, Any], bool]] = {
    EqualTo: operator.eq,
    EqualNullSafe: operator.eq,
    In: lambda topic, topics: topic in topics,
    LessThan: operator.lt,
    LessThanOrEqual: operator.le,
    GreaterThan: operator.gt,
    GreaterThanOrEqual: operator.ge,
    StringStartsWith: str.startswith,
    StringEndsWith: str.endswith,
    StringContains: operator.contains,
}
_NUMBERS: dict[type[Filter], Callable[[Sequence[int]], Ranges]] = {
    EqualTo: lambda values: [(values[0], values[0] + 1)],
    EqualNullSafe: lambda values: [(values[0], values[0] + 1)],
    In: lambda values: _runs(values),
    LessThan: lambda values: [(_FIRST, values[0])],
    LessThanOrEqual: lambda values: [(_FIRST, values[0] + 1)],
    GreaterThan: lambda values: [(values[0] + 1, _END)],
    GreaterThanOrEqual: lambda values: [(values[0], _END)],
}


@dataclass
class PushedFilters:
    """The filters that Spark has pushed down to a read. A new object has no filters.

    `topics` are filters on the topic's name; a topic must pass all of them. `partitions` and `offsets` are the ranges
    [first, end) of the partition numbers and offsets that pass. `since_us` (inclusive) and `until_us` (exclusive) are
    the bounds of the timestamps that pass, in microseconds since the epoch.
    """

    topics: list[Filter] = field(default_factory=list)
    partitions: Ranges = ((_FIRST, _END),)
    offsets: Ranges = ((_FIRST, _END),)
    since_us: int = _FIRST
    until_us: int = _END

    def push(self, each: Filter) -> None:
        """Add a filter that a row must pass."""
        plain = each.child if isinstance(each, Not) else each
        column = ".".join(getattr(plain, "attribute", ()))
        known = _STRINGS if column == "topic" else _NUMBERS
        # Filters of other kinds, or with values of an unexpected type, are left to Spark.
        if column not in _TYPES or type(plain) not in known:
            return
        if {*map(type, _values(plain))} - {_TYPES[column]}:
            return
        if column == "topic":
            self.topics.append(each)
            return
        found = _ranges(each)
        first, end = (found[0][0], found[-1][1]) if found else (_END, _FIRST)
        if column == "partition":
            self.partitions = _common(self.partitions, found)
        elif column == "timestamp":
            self.since_us, self.until_us = max(self.since_us, first), min(self.until_us, end)
        else:
            is_long = len(found) > _MOST_RANGES
            self.offsets = _common(self.offsets, [(first, end)] if is_long else found)

    def wanted(self, reader: Reader, first: int, end: int) -> Ranges:
        """Return the ranges of offsets in [first, end) that must be read.

        No record of `reader` at another offset passes the filters.
        """
        number = reader.partition
        if not _common(self.partitions, [(number, number + 1)]):
            return []
        if not all(_holds(each, reader.topic) for each in self.topics):
            return []
        found = _common([(first, end)], self.offsets)
        if found and self.since_ms is not None:
            found = _common(found, scan_split.ranges_reaching(reader, self.since_ms))
        return found

    @property
    def since_ms(self) -> int | None:
        """The earliest timestamp that passes, in ms, rounded up; None if there is no lower bound."""
        return None if self.since_us == _FIRST else -(-self.since_us // 1000)

    def select(self, columns: Columns) -> Columns:
        """Return the records whose timestamps pass the filters."""
        if (self.since_us, self.until_us) == (_FIRST, _END):
            return columns
        # A timestamp too large for an int64 in microseconds is null in Spark, and a null fails every comparison.
        fits = (columns.timestamps >= FIRST_MS) & (columns.timestamps <= LAST_MS)
        times = np.where(fits, columns.timestamps, 0) * 1000
        return columns.select(fits & (times >= self.since_us) & (times < self.until_us))


def _values(plain: Any) -> Sequence[Any]:
    """Return the values with which a filter compares its column: several for `In`, one for the other filters."""
    return plain.value if isinstance(plain, In) else [plain.value]


def _holds(each: Any, topic: str) -> bool:
    """Whether a topic passes a filter."""
    if isinstance(each, Not):
        return not _holds(each.child, topic)
    return _STRINGS[type(each)](topic, each.value)


def _ranges(each: Filter) -> Ranges:
    """Return the ranges of numbers that pass a filter. Timestamps are in microseconds since the epoch."""
    if isinstance(each, Not):
        return _complement(_ranges(each.child))
    values = _values(each)
    return _NUMBERS[type(each)](
        [v if isinstance(v, int) else (v - _EPOCH) // _MICROSECOND for v in values]
    )


def _runs(values: Sequence[int]) -> Ranges:
    """Return the ranges, as few as possible, that contain exactly the numbers in `values`."""
    found: list[tuple[int, int]] = []
    for value in sorted(set(values)):
        first = found.pop()[0] if found and found[-1][1] == value else value
        found.append((first, value + 1))
    return found


def _complement(ranges: Ranges) -> Ranges:
    ends = [_FIRST, *(end for _, end in ranges)]
    firsts = [*(first for first, _ in ranges), _END]
    return [(end, first) for end, first in zip(ends, firsts, strict=True) if end < first]


def _common(one: Ranges, other: Ranges) -> Ranges:
    """Return the intersection of two sets of ranges."""
    found = ((max(a, c), min(b, d)) for a, b in one for c, d in other)
    return [(first, end) for first, end in found if first < end]
