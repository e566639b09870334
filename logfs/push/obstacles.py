"""Why a partition cannot be pushed byte for byte: what brokers refuse, or would change, in a producer's batches."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from logfs.errors import Corrupt, InvalidProducerEpoch, OutOfOrderSequence
from logfs.format.batches.batch import MAGIC
from logfs.format.batches.record import TimestampType
from logfs.log.state.producers import Producers

if TYPE_CHECKING:
    from collections.abc import Callable

    from logfs.format.batches.batch import Batch
    from logfs.log.read.reader import Reader

_OLD = "batches of formats before Kafka 0.11"
_TRANSACTIONS = "batches of transactions or their markers, which only a coordinator can write"
_GAPS = "places where offsets are missing, after compaction or a loss"
_LOG_TIME = "batches with the time of the log (LogAppendTime), which brokers set themselves"
_SEQUENCES = "batches whose producer's sequence does not follow, as after its expiry"


class Obstacles(NamedTuple):
    """What was found in a partition: reasons against pushing it as it is, and damage, which nothing can push."""

    reasons: list[str]
    damage: str


def find_obstacles(
    reader: Reader, offset: int, report: Callable[[int], object] = lambda size: None
) -> Obstacles:
    """Read a partition from the batch that holds `offset` to the log end, and return what is in the way of a push.

    `report` is called with the size of each batch in bytes.
    """
    found: dict[str, tuple[int, int]] = {}
    producers = Producers()
    # The first batch may begin before the offset.
    expected, end = offset, reader.log_end_offset
    try:
        for batch in reader.batches(offset):
            header = batch.header
            if header.magic == MAGIC:
                batch.check()
            is_next = header.base_offset <= expected < header.next_offset
            for kind in _kinds(batch, producers, is_next=is_next):
                first, count = found.get(kind, (header.base_offset, 0))
                found[kind] = first, count + 1
            expected = header.next_offset
            report(header.size_bytes)
        if expected < end:
            # The last batches are gone.
            found.setdefault(_GAPS, (expected, 1))
    except Corrupt as error:
        return Obstacles([], f"{error}; 'logfs check' shows the damage")
    if _GAPS in found or _TRANSACTIONS in found:
        # Missing batches and those of transactions have sequences, too, so a break in the sequences proves nothing.
        found.pop(_SEQUENCES, None)
    reasons = [
        f"{count} {kind}; the first at offset {first}" for kind, (first, count) in found.items()
    ]
    return Obstacles(reasons, "")


def _kinds(batch: Batch, producers: Producers, *, is_next: bool) -> list[str]:
    """Return what is in the way of one batch; `is_next` tells whether it follows the one before."""
    header = batch.header
    if header.magic != MAGIC:
        return [_OLD]
    kinds = []
    if header.has_holes or not is_next:
        kinds.append(_GAPS)
    if header.is_control or header.is_transactional:
        return [*kinds, _TRANSACTIONS]
    if header.timestamp_type is TimestampType.LOG_APPEND_TIME:
        kinds.append(_LOG_TIME)
    if header.producer_id >= 0:
        try:
            # A broker appends no batch that it takes for a repetition.
            follows = producers.check_batch(header) is None
        except (OutOfOrderSequence, InvalidProducerEpoch):
            follows = False
        if not follows:
            kinds.append(_SEQUENCES)
        producers.update(batch)
    return kinds
