"""Pushes the batches of one partition unchanged: with the same bytes, at the same offsets."""

from __future__ import annotations

from typing import TYPE_CHECKING

from logfs.cluster.cluster import Outgoing
from logfs.format.batches.batch import START

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from logfs.format.batches.batch import Batch
    from logfs.log.read.reader import Reader

# The positions of the leader epoch in the bytes of a batch. The leader in the cluster sets the leader epoch of every
# batch, without a new CRC (kafka-storage 2.1). So the leader epoch is ignored when two batches are compared.
_LEADER_EPOCH = slice(12, 16)


def first_offset(reader: Reader) -> int:
    """Return the base offset of the batch that contains the log start offset.

    If no batch contains it, return the log start offset.
    """
    start = reader.log_start_offset
    for batch in reader.batches(start):
        return min(batch.header.base_offset, start)
    return start


def exact_batches(reader: Reader, offset: int, end: int) -> Iterator[Sequence[Outgoing]]:
    """Yield the batches that contain the offsets [offset, end), as lists of one batch.

    `offset` must be the base offset of a batch. In the bytes to send, the base offset of each batch is 0, as in the
    batches of any producer.
    """
    topic, number = reader.name
    for batch in reader.batches(max(offset, reader.log_start_offset), end):
        header = batch.header
        data = bytearray(batch.data)
        START.pack_into(data, 0, 0, header.batch_length)
        yield [Outgoing(topic, number, data, header.base_offset, header.record_count)]


def holds_last_batch(reader: Reader, end: int, theirs: bytes) -> bool:
    """Whether the last batch below the offset `end` in the cluster equals the one in the local log.

    `theirs` are bytes from the cluster. They begin with the batch that contains the offset `end` - 1 there. Returns
    False if no local batch has `end` - 1 as its last offset. The leader epochs are not compared.
    """
    # Reads below the log start offset fail, and `end` - 1 may be below it: a push begins at the base offset of the
    # batch that contains the log start offset.
    offset = max(end - 1, reader.log_start_offset)
    ours: Batch | None = next(iter(reader.batches(offset)), None)
    if ours is None or ours.header.next_offset != end:
        return False
    compared = [bytearray(ours.data), bytearray(theirs[: len(ours.data)])]
    for data in compared:
        data[_LEADER_EPOCH] = bytes(4)
    return compared[0] == compared[1]
