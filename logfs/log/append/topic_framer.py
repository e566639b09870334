"""Cuts the writes to a topic into lines or envelopes, and appends each to a partition, chosen as by Kafka's producer.

The hash of a record's key selects the partition. Records without a key go to a partition chosen at random until they
have filled a batch; then a partition is chosen again (KIP-480, KIP-794).
"""

from __future__ import annotations

import random
from copy import copy
from typing import TYPE_CHECKING, NamedTuple

from logfs.errors import InvalidEnvelope, LogfsError, UnknownPartition
from logfs.format.base.murmur2 import partition_of
from logfs.format.text import envelope
from logfs.log.append.line_framer import EnvelopeFramer, LineFramer
from logfs.log.append.result import AppendResult

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from logfs.format.batches.record import Record
    from logfs.log.append.partition import Partition
    from logfs.log.read.log import Log

BATCH_BYTES = 16384
"""After so many bytes, records without a key go to another partition: the producer's `batch.size`."""

# An upper bound of the encoded bytes of a record besides its key, value and headers.
_RECORD_BYTES = 64
# An upper bound of the encoded bytes of a header besides its name and value.
_HEADER_BYTES = 10


class Partitioner:
    """Chooses the partition of each record like Kafka's default partitioner. Each writer must have its own object."""

    def __init__(self, count: int, choose: Callable[[int], int] = random.randrange) -> None:
        """Choose among `count` partitions; `choose(count)` returns one of them at random."""
        self.count = count
        self._choose = choose
        self.current = choose(count)
        # How many more bytes of records without a key go to `current`, before their partition is chosen again.
        self.left = BATCH_BYTES

    def partition(self, key: bytes | None, size: int) -> int:
        """Return the number of the partition for a record of `size` bytes.

        A record without a key (None) goes to the current partition, and its size is noted (`note`).
        """
        if key is not None:
            return partition_of(key, self.count)
        number = self.current
        self.note(size)
        return number

    def note(self, size: int) -> None:
        """Note that `size` bytes of records without a key have gone to the current partition.

        When it has got at least `BATCH_BYTES` of such records, a new current partition is chosen.
        """
        self.left -= size
        if self.left <= 0:
            self.current = self._choose(self.count)
            self.left = BATCH_BYTES


def check_partitions(topic: str, partitions: Sequence[Log]) -> None:
    """Raise `UnknownPartition` if there are no partitions, or if they are not numbered from 0 without a gap.

    The hash of a key selects one of these numbers.
    """
    if not partitions:
        raise UnknownPartition(f"{topic}: no such topic; 'logfs create' creates its partitions")
    for number, partition in enumerate(partitions):
        if partition.name.partition != number:
            raise UnknownPartition(
                f"{topic}-{number}: no such partition, but later ones exist; create it, or append to one partition"
            )


class TopicLineFramer(LineFramer):
    """A `LineFramer` whose lines go to the partitions of a topic.

    The attribute `partition` is the partition of the next line or, in the subclass `TopicEnvelopeFramer`, of the next
    record without a key. It changes when the `Partitioner` chooses another one. The offsets in the result of `append`
    are not offsets of a log: they number the records of this call from 0.
    """

    def __init__(self, partitions: Sequence[Partition], partitioner: Partitioner) -> None:
        super().__init__(partitions[partitioner.current])
        self.partitions = partitions
        self._partitioner = partitioner

    def append(self, lines: bytes) -> AppendResult:
        position = count = 0
        refused: LogfsError | OSError | None = None
        while position < len(lines) and refused is None:
            # Append up to the end of the line that fills the partitioner's batch.
            end = lines.find(b"\n", position + self._partitioner.left - 1) + 1 or len(lines)
            if end < len(lines):
                # Later lines go to another partition, whose append may raise `WouldBlock`. Raise it here, before
                # any line is appended: the caller repeats the whole call, and would append the first lines twice.
                self.partition.check_may_block()
            try:
                done = self.partition.append_lines(lines[position:end])
            except (LogfsError, OSError) as error:
                if not position:
                    raise
                # The lines before are in other partitions: their bytes are consumed.
                refused = error
                break
            position += done.consumed
            count += done.last_offset + 1 - done.first_offset
            self._partitioner.note(done.consumed)
            self.partition = self.partitions[self._partitioner.current]
            refused = done.refused
        return AppendResult(0, count - 1, position, refused)


class TopicEnvelopeFramer(TopicLineFramer, EnvelopeFramer):
    """An `EnvelopeFramer` whose records go to the partitions of a topic; the hash of a key selects the partition.

    `append` appends its records partition by partition. If the topic refuses a record, `append` appends the records
    before it, and no later ones. After another error, such as a full disk, later records may already be in other
    partitions. In the result, `consumed` counts only the bytes before the first record that was not appended, so a
    program that writes the rest again appends these later records twice.
    """

    def append(self, lines: bytes) -> AppendResult:
        if lines.find(b"\n") + 1 < len(lines):
            # Records may go to several partitions, and each append may raise `WouldBlock`. Raise it here, before any
            # record is appended: the caller repeats the whole call, and would append the first records twice.
            self.partition.check_may_block()
        # Count bytes in a copy, so that a call that is repeated after `WouldBlock` does not count them twice.
        partitioner = copy(self._partitioner)
        waiting: dict[int, list[_Waiting]] = {}
        decoded = position = 0
        refused: LogfsError | OSError | None = None
        config, now_ms = self.partition.config, self.partition.now_ms()
        try:
            for line in lines[:-1].split(b"\n"):
                try:
                    record = envelope.decode(line)
                except InvalidEnvelope as error:
                    refused = InvalidEnvelope(f"{self.partition.topic}: {error}, in {line[:40]!r}")
                    break
                refused = self.partition.refusal_of(record, config, now_ms)
                if refused is not None:
                    break
                number = partitioner.partition(record.key, len(line))
                # A record that may be too large is appended alone, after all records before it: if it is refused, no
                # record after it is in any of the logs.
                is_large = _size(record) > self.partition.line_limit
                if is_large:
                    self._flush(waiting)
                waiting.setdefault(number, []).append(_Waiting(position, record))
                decoded += 1
                position += len(line) + 1
                if is_large:
                    self._flush(waiting)
            self._flush(waiting)
        except (LogfsError, OSError) as error:
            refused = error
        left = [each.position for records in waiting.values() for each in records]
        self._partitioner = partitioner
        self.partition = self.partitions[partitioner.current]
        return AppendResult(0, decoded - len(left) - 1, min(left, default=position), refused)

    def _flush(self, waiting: dict[int, list[_Waiting]]) -> None:
        """Append the records in `waiting`, by partition number, and remove each appended record from `waiting`.

        If a partition refuses a record, raises the reason, and appends nothing to the partitions after it.
        """
        for number in sorted(waiting):
            records = waiting[number]
            result = self.partitions[number].append_records([each.record for each in records])
            del records[: result.consumed]
            if result.refused is not None:
                raise result.refused
            del waiting[number]


class _Waiting(NamedTuple):
    """A record that is not appended yet, and the position of its line in the argument of `append`."""

    position: int
    record: Record


def _size(record: Record) -> int:
    """Return an upper bound of the size in bytes of an encoded record."""
    headers = sum(
        len(name.encode("utf-8", "surrogateescape")) + len(value or b"") + _HEADER_BYTES
        for name, value in record.headers
    )
    return len(record.key or b"") + len(record.value or b"") + headers + _RECORD_BYTES
