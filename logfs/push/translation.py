"""Puts the records of a topic into new batches with new offsets, if its batches cannot be pushed unchanged.

Readers with the isolation level read_committed see the same records in the store and in the cluster: aborted records
are left out, and committed records are sent without a transaction. If the cluster has another number of partitions,
Kafka's default partitioner chooses the partition of a record with a key. A record without a key goes to the partition
whose number is that of its local partition, modulo the number of partitions in the cluster.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from logfs.cluster.cluster import Outgoing
from logfs.format.base.murmur2 import partition_of
from logfs.format.batches.compression import Codec
from logfs.format.batches.record import NO_TIMESTAMP
from logfs.format.encoding.batch_builder import BatchFormat, build_records
from logfs.push.translation_map import holds, runs_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from logfs.format.batches.record import Record
    from logfs.push.translation_map import TranslationMap
    from logfs.store.topic import PartitionRecord, Topic

# A batch is sent once it has this many bytes or records.
_BATCH_BYTES = 1 << 17
_BATCH_RECORDS = 10_000
# An estimate of the bytes of a record without its key, value and headers.
_RECORD_OVERHEAD = 32
_NO_LIMIT = 2**31 - 1


class Translation:
    """Makes new batches of those records of a topic that are not in the cluster yet. Only one thread may use it."""

    def __init__(self, topic: Topic, ends: Mapping[int, int], offsets: TranslationMap) -> None:
        """Prepare to send `topic` to a cluster; `ends` maps its partitions in the cluster to their log end offsets.

        `offsets` is the map file. For the records that were sent before, it has the offsets in the store and in the
        cluster. The offsets of the records in new batches are added to it.
        """
        self._topic = topic
        self._partitions = len(ends)
        self._next = dict(ends)
        self._map = offsets
        self._pending: dict[int, list[PartitionRecord]] = {}
        self._sizes: dict[int, int] = {}

    def batches(self) -> Iterator[Sequence[Outgoing]]:
        """Yield lists of batches to send, each with at most one batch for a partition in the cluster.

        Before a list is yielded, the old and new offsets of its records are durable in the map file
        (`TranslationMap`). Raises `DamagedRange` at damage in the local log, `OffsetOutOfRange` if the log is
        truncated meanwhile, and `OSError` if the map file cannot be written.
        """
        here = [each.partition for each in self._topic.partitions]
        is_same = self._partitions == max(here) + 1
        form = BatchFormat(self._codec(), limit_bytes=_NO_LIMIT)
        sent = {number: list(self._map.sent(self._topic.name, number).values()) for number in here}
        ends = {number: max((runs[-1].end for runs in sent[number]), default=0) for number in here}
        for found in self._topic.read(committed=True, start=self._start(is_same=is_same)):
            number, record = found
            there = number if is_same else self._partition_of(number, record)
            assert record.offset is not None
            if record.offset < ends[number] and any(
                holds(runs, record.offset) for runs in sent[number]
            ):
                # The record was sent before, perhaps to another partition, when the topic in the cluster had fewer
                # partitions.
                continue
            self._pending.setdefault(there, []).append(found)
            size = self._sizes.get(there, 0) + _size_of(record)
            self._sizes[there] = size
            if size >= _BATCH_BYTES or len(self._pending[there]) >= _BATCH_RECORDS:
                yield self._built([there], form)
        if self._pending:
            yield self._built(sorted(self._pending), form)

    def _start(self, *, is_same: bool) -> dict[int, int]:
        """Return the offset at which to begin reading, by local partition.

        This is the offset after the last record that earlier pushes have sent, but at least the log start offset.

        Partitions that are not in the result must be read from their log start. This applies to all partitions if
        `is_same` is false: the topic does not have as many partitions in the cluster as in the store. Otherwise, it
        applies to a partition if some of its records were sent to partitions with other numbers, because each of
        these can have the records up to a different offset.
        """
        found = {}
        for each in self._topic.partitions if is_same else ():
            sent = self._map.sent(self._topic.name, each.partition)
            if sent.keys() <= {each.partition}:
                end = max((runs[-1].end for runs in sent.values()), default=0)
                start = max(end, each.log_start_offset)
                found[each.partition] = min(start, each.committed.log_end_offset)
        return found

    def _codec(self) -> Codec:
        """Return the codec for new batches: the one with the greatest id in the first batches of the partitions.

        The least id stands for no compression, so new batches are compressed if the first batch of any local
        partition is compressed.
        """
        first = [next(each.batches(each.log_start_offset), None) for each in self._topic.partitions]
        return max((batch.header.codec for batch in first if batch), default=Codec.NONE)

    def _partition_of(self, number: int, record: Record) -> int:
        """Return the partition in the cluster for a record of the local partition `number`.

        The hash of the record's key selects the partition. A record without a key goes to the partition `number`
        modulo the number of partitions in the cluster.
        """
        if record.key is None:
            return number % self._partitions
        return partition_of(record.key, self._partitions)

    def _built(self, chosen: Sequence[int], form: BatchFormat) -> Sequence[Outgoing]:
        """Make one batch of the pending records for each of the partitions `chosen` in the cluster.

        Before the batches are returned, the map file gets the new offsets of their records.
        """
        name = self._topic.name
        batches, runs = [], []
        for there in chosen:
            rows = self._pending.pop(there)
            self._sizes.pop(there)
            built = build_records([row.record for row in rows], form, NO_TIMESTAMP)
            (batch,) = built.batches
            offset = self._next[there]
            batches.append(Outgoing(name, there, batch.data, offset, batch.record_count))
            places = [(row.partition, row.record.offset or 0) for row in rows]
            runs += runs_of(name, places, there, offset)
            self._next[there] = offset + batch.record_count
        self._map.add(runs)
        return batches


def _size_of(record: Record) -> int:
    headers = sum(len(name) + len(value or b"") for name, value in record.headers)
    return len(record.value or b"") + len(record.key or b"") + headers + _RECORD_OVERHEAD
