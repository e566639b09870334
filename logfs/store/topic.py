"""A topic, whose partitions are appended to and read together."""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, NamedTuple

from logfs.errors import InvalidName, PartitionExists
from logfs.format.base import names
from logfs.format.batches.record import as_records
from logfs.log.append.partition import writable
from logfs.log.append.topic_framer import Partitioner, check_partitions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from logfs.format.batches.record import Record, Value
    from logfs.log.append.partition import Partition
    from logfs.log.read.log import Log
    from logfs.log.read.reader import Reader
    from logfs.store.store import Store


# Kafka refuses to create more partitions than this in one request.
MOST_PARTITIONS = 10_000


def check_partition_count(topic: str, partitions: int) -> None:
    """Raise `InvalidName` unless a topic may have this number of partitions: 1 to 10,000."""
    if partitions < 1:
        raise InvalidName(f"{topic}: cannot have {partitions} partitions; give at least 1")
    if partitions > MOST_PARTITIONS:
        raise InvalidName(
            f"{topic}: cannot have {partitions} partitions; give at most {MOST_PARTITIONS}"
        )


class PartitionRecord(NamedTuple):
    """A record of a topic, and the number of its partition."""

    partition: int
    record: Record


class Topic:
    """The partitions of one topic in an open store. Any thread may call its methods.

    Each call uses the partitions that the store has at that time. For records without a key, each `Topic` object
    chooses partitions independently of other `Topic` objects.
    """

    def __init__(self, store: Store, name: str) -> None:
        """Make the object for the topic `name`, which need not have any partition yet. Raises `InvalidName`."""
        names.check_topic(name)
        self.name = name
        self._store = store
        self._partitioner: Partitioner | None = None

    def __repr__(self) -> str:
        return f"Topic({self.name!r})"

    @property
    def partitions(self) -> Sequence[Log]:
        """The partitions in the order of their numbers, loaded if necessary. Raises the error of an offline one."""
        return [self._store[name] for name in self._store.registry.partitions_of(self.name)]

    def missing(self, partitions: int) -> Sequence[str]:
        """Return the names of the missing partitions among the numbers 0 to `partitions` - 1.

        Raises `PartitionExists` if all of them exist, and `InvalidName` unless `partitions` is 1 to 10,000.
        """
        check_partition_count(self.name, partitions)
        wanted = [f"{self.name}-{number}" for number in range(partitions)]
        missing = [name for name in wanted if name not in self._store.registry.homes]
        if not missing:
            raise PartitionExists(f"{self.name}: all {partitions} partitions exist already")
        return missing

    def create(
        self, partitions: int, settings: Mapping[str, str] | None = None
    ) -> Sequence[Partition]:
        """Create the missing partitions among the numbers 0 to `partitions` - 1, and return them.

        Before that, the settings of the topic are changed: `settings` has texts by setting name. The partition with
        the highest number is created first. So after a failure the lowest numbers are missing, and the topic refuses
        appends. If the highest numbers were missing, the topic would accept appends, and choose wrong partitions for
        keys. After a failure, the topic has its former settings.

        Raises the errors of `missing`, `Store.create` and `Settings.change_topic`.
        """
        store, missing = self._store, self.missing(partitions)
        # Check this before the settings are changed: in a mirrored topic, which this refuses, retention would apply
        # the new settings at once.
        store.check_creatable(missing[0])
        with store.settings.changing(self.name, settings or {}):
            return [store.create(name) for name in reversed(missing)][::-1]

    def delete(self, *, only_empty: bool = False) -> None:
        """Delete all partitions of the topic, its settings, and the offsets that groups committed for it.

        All partitions are checked before the first is deleted: whether they can be deleted and, with `only_empty`,
        whether they have no records. Raises the errors of `Store.delete`.
        """
        found = self._store.registry.partitions_of(self.name)
        for partition in self._store.deleter.check_deletable(found):
            if only_empty:
                partition.check_empty()
        for name in found:
            self._store.delete(name, only_empty=only_empty)

    def undelete(self) -> Sequence[Log]:
        """Restore the partitions of the deleted topic, with its settings, and return them.

        If one cannot be restored or loaded, the others are restored all the same. Then the first error is raised.
        Raises the errors of `Store.undelete_all`.
        """
        return self._store.undelete_all(self.name)

    def append(self, records: Iterable[Value | Record]) -> list[tuple[int, int]]:
        """Append records to the partitions that Kafka's default partitioner chooses; return their offsets.

        For each record, the result has (partition number, offset). A record with a key goes to the partition of the
        key's hash. Records without a key go to one partition until they fill a batch, and then to another. The
        records are readable at once, and durable after `flush`. Raises the errors of `partitions`, `Partition.append`
        and `check_partitions`; after an error, the records of some partitions may have been appended.
        """
        return self.append_by(
            records, lambda name, chosen: self._store.writable(name).append(chosen)
        )

    def append_by(
        self,
        records: Iterable[Value | Record],
        append: Callable[[str, list[Record]], int],
    ) -> list[tuple[int, int]]:
        """Append records by calls of `append` to the partitions that Kafka's default partitioner chooses.

        `append` is called with the name of a partition and the records for it. It must append these records, and
        return the offset of the first. Returns (partition number, offset) for each record, in the order of `records`.
        Raises the errors of `partitions`, `check_partitions` and `append`; after an error, the records of some
        partitions may have been appended.
        """
        partitions = self.partitions
        check_partitions(self.name, partitions)
        partitioner = self._partitioner
        if partitioner is None or partitioner.count != len(partitions):
            partitioner = self._partitioner = Partitioner(len(partitions))
        wanted = as_records(records)
        rows: dict[int, list[int]] = {}
        for row, record in enumerate(wanted):
            number = partitioner.partition(record.key, len(record.value or b""))
            rows.setdefault(number, []).append(row)
        places = [(-1, -1)] * len(wanted)
        for number, chosen in sorted(rows.items()):
            first = append(f"{self.name}-{number}", [wanted[row] for row in chosen])
            for offset, row in enumerate(chosen, first):
                places[row] = (number, offset)
        return places

    def flush(self) -> None:
        """Make all records of the topic durable."""
        for partition in self.partitions:
            writable(partition).flush()

    def read(
        self, *, committed: bool = False, start: Mapping[int, int] | None = None
    ) -> Iterator[PartitionRecord]:
        """Yield the records of all partitions, merged by time. Records appended after the first `next` are left out.

        The order is (time, partition, offset). The time of a record is the greatest timestamp read so far from its
        partition, so each partition keeps its order. `committed` hides aborted and open transactions. `start` maps
        partition numbers to the first offsets to read; other partitions are read from their log start. Raises the
        errors of `Reader.read`.
        """
        readers: Sequence[Reader] = [
            partition.committed if committed else partition for partition in self.partitions
        ]
        timed = [_timed(each, (start or {}).get(each.partition)) for each in readers]
        return (found for _, found in heapq.merge(*timed, key=lambda each: each[0]))


def _timed(reader: Reader, start: int | None) -> Iterator[tuple[tuple[int, int], PartitionRecord]]:
    """Yield the records of a partition from an offset on, each with its sort key (time, partition)."""
    reached = -1
    for record in reader.read(start):
        if record.timestamp is not None:
            reached = max(reached, record.timestamp)
        yield (reached, reader.partition), PartitionRecord(reader.partition, record)
