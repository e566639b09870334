"""Computes from a progress event how many offsets a streaming query is behind the end of the log."""

from __future__ import annotations

import json
from typing import NamedTuple

from logfs.spark.topics import from_json


class OffsetsBehindLatest(NamedTuple):
    """The number of offsets between the end of a micro-batch and the log end.

    The fields are the minimum, maximum and average over the partitions, like the metrics minOffsetsBehindLatest,
    maxOffsetsBehindLatest and avgOffsetsBehindLatest of Kafka's source.
    """

    min: int
    max: int
    avg: float


def behind_latest(end: str | None, latest: str | None) -> OffsetsBehindLatest | None:
    """Return how far the offsets `end` are behind the offsets `latest`. Both are JSON text from a progress event.

    As in Kafka's source, a partition that is only in `latest` is left out, because the query does not read it yet.
    Returns None if there are no offsets, or if they have the format of another source.
    """
    try:
        ends, latests = from_json(json.loads(end or "")), from_json(json.loads(latest or ""))
    except (ValueError, TypeError, AttributeError):
        return None
    behind = [max(latests[name] - ends[name], 0) for name in ends.keys() & latests.keys()]
    if not behind:
        return None
    return OffsetsBehindLatest(min(behind), max(behind), sum(behind) / len(behind))
