"""The records of a topic in new batches, at new offsets, for topics whose batches cannot be pushed as they are.

Readers at the level read_committed see the same records in both logs. Aborted records are left out, and committed
ones are sent without a transaction. If the cluster has another number of partitions, Kafka's default partitioner
chooses the partition of a record with a key. A record without a key goes to the number of its partition here, modulo
the number of partitions there.
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
# An estimate of the bytes of a record beside its key, value and headers.
_RECORD_OVERHEAD = 32
_NO_LIMIT = 2**31 - 1


class Translation:
    """Makes batches of the records of a topic that are not in the cluster yet. One thread may use it."""

    def __init__(self, topic: Topic, ends: Mapping[int, int], offsets: TranslationMap) -> None:
        """Translate a topic for a cluster in which the logs of its partitions end at the offsets `ends`.

        `offsets` maps the records that were sent before. The records of each new batch are added to it.
        """
        self._topic = topic
        self._partitions = len(ends)
        self._next = dict(ends)
        self._map = offsets
        self._pending: dict[int, list[PartitionRecord]] = {}
        self._sizes: dict[int, int] = {}

    def batches(self) -> Iterator[Sequence[Outgoing]]:
        """Yield lists with at most one batch for a partition.

        Before a list is yielded, the lines of the map for its records are durable. Raises the errors of `Topic.read`,
        and `OSError` for the map.
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
                # It may have gone to another partition, when the topic had fewer.
                continue
            self._pending.setdefault(there, []).append(found)
            size = self._sizes.get(there, 0) + _size_of(record)
            self._sizes[there] = size
            if size >= _BATCH_BYTES or len(self._pending[there]) >= _BATCH_RECORDS:
                yield self._built([there], form)
        if self._pending:
            yield self._built(sorted(self._pending), form)

    def _start(self, *, is_same: bool) -> dict[int, int]:
        """Return the offset to begin at in each partition: the one after the last record that was sent.

        `is_same` tells whether the topic has as many partitions in the cluster as here. A partition is left out, and
        read from its beginning, if its records go or went to other partitions there: these may have got records up to
        different offsets.
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
        """Return the codec for new batches: the one with the greatest id among the first batches of the partitions.

        The id of no compression is the least. So new batches are compressed if one of the first batches is.
        """
        first = [next(each.batches(each.log_start_offset), None) for each in self._topic.partitions]
        return max((batch.header.codec for batch in first if batch), default=Codec.NONE)

    def _partition_of(self, number: int, record: Record) -> int:
        """Return the partition in the cluster for a record: by its key, or by its `number` here without a key."""
        if record.key is None:
            return number % self._partitions
        return partition_of(record.key, self._partitions)

    def _built(self, chosen: Sequence[int], form: BatchFormat) -> Sequence[Outgoing]:
        """Return the pending records for the partitions `chosen` as batches; the map gets their new offsets first."""
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
