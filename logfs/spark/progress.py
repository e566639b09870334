"""How many offsets a streaming query is behind the end of the log, by its progress events."""

from __future__ import annotations

import json
from typing import NamedTuple

from logfs.spark.topics import from_json


class OffsetsBehindLatest(NamedTuple):
    """The number of offsets from a micro-batch's end to the log end: minimum, maximum and average of the partitions.

    The fields are the metrics minOffsetsBehindLatest, maxOffsetsBehindLatest and avgOffsetsBehindLatest of Kafka's
    source.
    """

    min: int
    max: int
    avg: float


def behind_latest(end: str | None, latest: str | None) -> OffsetsBehindLatest | None:
    """Return how far the offsets `end` are behind the offsets `latest`, both as JSON text of a progress event.

    As for Kafka's source, a partition that is only in `latest` is left out: the query does not read it yet. Returns
    None if there are no offsets, or if they have the form of another source.
    """
    try:
        ends, latests = from_json(json.loads(end or "")), from_json(json.loads(latest or ""))
    except (ValueError, TypeError, AttributeError):
        return None
    behind = [max(latests[name] - ends[name], 0) for name in ends.keys() & latests.keys()]
    if not behind:
        return None
    return OffsetsBehindLatest(min(behind), max(behind), sum(behind) / len(behind))
