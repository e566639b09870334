"""The reasons why a partition cannot be pushed byte for byte: brokers would refuse or change some of its batches."""

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
_LOG_TIME = "batches with LogAppendTime, for which brokers set the time themselves"
_SEQUENCES = "batches whose producer epoch or sequence does not continue, as after the expiry of the producer id"


class Obstacles(NamedTuple):
    """Why the batches of a partition cannot be pushed unchanged: `reasons`, and the `damage` found, "" for none."""

    reasons: list[str]
    damage: str


def find_obstacles(
    reader: Reader, offset: int, report: Callable[[int], object] = lambda size: None
) -> Obstacles:
    """Return why the batches of a partition, from the one that contains `offset` on, cannot be pushed unchanged.

    All of these batches are read. `report` is called with the size in bytes of each batch. If a batch is damaged, the
    search ends, and the result has the damage, but no reasons.
    """
    found: dict[str, tuple[int, int]] = {}
    producers = Producers()
    # Each batch must contain the offset `expected`, but need not begin there: the first batch may begin below
    # `offset`.
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
            # The last offsets before the log end are in no batch, so they are missing.
            found.setdefault(_GAPS, (expected, 1))
    except Corrupt as error:
        return Obstacles([], f"{error}; 'logfs check' shows the damage")
    if _GAPS in found or _TRANSACTIONS in found:
        # A missing or transactional batch also uses sequence numbers of its producer, so a gap in the sequence
        # numbers of the other batches proves nothing.
        found.pop(_SEQUENCES, None)
    reasons = [
        f"{count} {kind}; the first at offset {first}" for kind, (first, count) in found.items()
    ]
    return Obstacles(reasons, "")


def _kinds(batch: Batch, producers: Producers, *, is_next: bool) -> list[str]:
    """Return the reasons, such as `_GAPS`, why brokers would refuse or change a batch.

    `producers` is the state after the previous batches, and is updated. `is_next` tells whether the batch contains
    the offset that follows the previous batch.
    """
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
            # `check_batch` returns None for a new batch. Otherwise the batch is a duplicate, which brokers do not
            # append.
            follows = producers.check_batch(header) is None
        except (OutOfOrderSequence, InvalidProducerEpoch):
            follows = False
        if not follows:
            kinds.append(_SEQUENCES)
        producers.update(batch)
    return kinds
