"""A topic of an open store: its partitions together, and its settings."""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import TYPE_CHECKING, Any

from logfs.api.arguments import checked_name
from logfs.api.following import Following
from logfs.api.partition import Partition
from logfs.api.records import ConsumerRecord, as_record
from logfs.config import value_in_force
from logfs.errors import InvalidName
from logfs.log.read.read_committed import Isolation, isolation_level
from logfs.setting import TOPIC_SETTINGS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from datetime import datetime

    from logfs.api.store import Store
    from logfs.format.batches.record import Headers, Record, Value
    from logfs.log.read.read_committed import IsolationLevel
    from logfs.store.topic import Topic as Partitions


class Topic:
    """A topic of an open store, from `store.topic("orders")`. Any thread may use it.

    Each call acts on the partitions that the topic has at that time. `isolation` is as in Kafka: "read_uncommitted"
    (all records) or "read_committed" (only the records below the last stable offset, without those of aborted
    transactions). Times are ms since the epoch, or a `datetime` with a time zone.
    """

    name: str

    def __init__(self, store: Store, name: str) -> None:
        self.name = checked_name("the name of a topic", name)
        self._store = store
        # Keep one object for all calls: it remembers the partition for records without a key until these have filled
        # a batch.
        self._partitions: Partitions = store._engine.topic(name)

    def __repr__(self) -> str:
        return f"logfs.Topic({self.name!r})"

    @property
    def partitions(self) -> Sequence[Partition]:
        """The partitions, in the order of their numbers."""
        found = self._store._refreshed().registry.partitions_of(self.name)
        return [Partition(self._store, name) for name in found]

    @property
    def settings(self) -> TopicSettings:
        """The settings of the topic."""
        return TopicSettings(self._store, self.name)

    def append(
        self,
        value: Value | Record | None,
        *,
        key: Value | None = None,
        headers: Headers = (),
        timestamp: int | datetime | None = None,
    ) -> tuple[int, int]:
        """Append one record, and return the number of its partition and its offset.

        Kafka's default partitioner chooses the partition: by the hash of the key. Records without a key go to one
        partition until they fill a batch, and then to another.

        A value or a key is bytes, bytearray, memoryview, a str (UTF-8), or None: a record without a value is a
        tombstone. `headers` is a mapping, or pairs of a name and a value. Without a `timestamp` the record has the
        time of the append. A whole `Record` may be given as the value.

        Raises the errors of `Partition.append`, and `UnknownPartition` if the topic's partitions are not numbered
        from 0 without a gap.
        """
        return self.append_many([as_record(value, key, headers, timestamp)])[0]

    def append_many(self, records: Iterable[Value | Record]) -> Sequence[tuple[int, int]]:
        """Append records, and return the partition number and the offset of each.

        The partitions are chosen as for `append`. Raises the errors of `append`. After an error, it is possible that
        the records for some partitions were appended, and those for others were not.
        """
        self._store._for_writing(self.name)
        return self._partitions.append(records)

    def flush(self) -> None:
        """Make all records of the topic durable."""
        self._store._for_writing(self.name)
        self._partitions.flush()

    def _open(self) -> Partitions:
        """Return the partitions of the topic. Raises `StoreClosed` if the store is closed."""
        _ = self._store._engine
        return self._partitions

    def read(self, *, isolation: IsolationLevel = "read_uncommitted") -> Iterator[ConsumerRecord]:
        """Yield the records of all partitions, merged by time, up to the log ends at the time of the first `next`.

        The records of a partition keep their order. Raises the errors of `Partition.read`.
        """
        self._store._refreshed()
        for each in self.partitions:
            self._store._log(each.name)
        committed = isolation_level(isolation) is Isolation.READ_COMMITTED
        for number, record in self._open().read(committed=committed):
            _ = self._store._engine
            yield ConsumerRecord.of(self.name, number, record)

    def follow(
        self,
        *,
        begin: str = "latest",
        timeout: float | None = None,
        isolation: IsolationLevel = "read_uncommitted",
    ) -> Following[ConsumerRecord]:
        """Return an iterator over the records that are appended to the topic from now on.

        With `begin="earliest"` the iterator begins with the first records in the logs. Partitions that are created
        later are read from their start. The records of a partition keep their order. The iterator ends when no record
        has come for `timeout` seconds; without a `timeout` it never ends. It works with `for` and, under asyncio,
        with `async for`. It raises `OffsetOutOfRange` if retention has deleted the next records, or if the log was
        truncated below the offset that was reached, and `DamagedRange` at damage. After these errors, call
        `Following.seek` with the offset at which to continue.
        """
        if begin not in ("earliest", "latest"):
            raise InvalidName(f"begin {begin!r}: give 'earliest' or 'latest'")
        isolation_level(isolation)
        offsets = {
            each.name: each._reader(isolation).log_end_offset
            if begin == "latest"
            else each.log_start_offset
            for each in self.partitions
        }
        return Following(
            self._store,
            lambda: self.partitions,
            offsets,
            ConsumerRecord.of_partition,
            timeout,
            isolation,
        )

    def delete(self, *, only_empty: bool = False) -> None:
        """Delete the topic: its partitions, its settings, and the offsets that groups have committed for it.

        `Store.undelete` restores it until `file.delete.delay.ms` has passed. With `only_empty`, raises
        `PartitionNotEmpty` if there is a record.
        """
        self._store._for_writing(self.name)
        self._partitions.delete(only_empty=only_empty)


class TopicSettings(MutableMapping[str, str]):
    """The settings of a topic as a mapping from names to values: `topic.settings["retention.ms"]`.

    The mapping has all topic settings, by Kafka's names, each with the value in force, as text. An assigned value may
    have a unit ("7d", "10GB"). An assignment is durable, and in force at once. `del` removes the topic's own value;
    then the store's value or the default is in force. Raises `UnknownSetting` (a `KeyError`) and, for an invalid
    value, `InvalidSetting` (a `ValueError`).
    """

    def __init__(self, store: Store, topic: str) -> None:
        self._store = store
        self._topic = topic

    def __getitem__(self, name: str) -> str:
        settings = self._store._refreshed().settings
        return value_in_force(
            name, settings.topic_overrides(self._topic), settings.broker_overrides
        )

    def __setitem__(self, name: str, value: str | float) -> None:
        if value is None:
            raise TypeError(f"{name}: a setting has no value None; use del")
        self.change({name: value})

    def __delitem__(self, name: str) -> None:
        self.change({name: None})

    def __iter__(self) -> Iterator[str]:
        _ = self._store._engine  # raises `StoreClosed`
        return iter(TOPIC_SETTINGS)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def update(self, *others: Any, **more: str | float) -> None:
        """Change several settings, all or none. The arguments are those of `dict.update`."""
        self.change(dict(*others, **more))

    def popitem(self) -> tuple[str, str]:
        """Remove one of the topic's own values, and return the name and the value. Raises `KeyError` without one."""
        own = self._store._refreshed().settings.topic_overrides(self._topic)
        name = next(iter(own), None)
        if name is None:
            raise KeyError(f"the topic {self._topic} has no settings of its own")
        value = self[name]
        del self[name]
        return name, value

    def clear(self) -> None:
        """Remove all values of the topic's own."""
        self.change(dict.fromkeys(self._store._refreshed().settings.topic_overrides(self._topic)))

    def change(self, changes: Mapping[str, str | float | None]) -> None:
        """Change several settings, all or none. The value None removes the topic's own value of a setting."""
        texts = {
            checked_name("the name of a setting", name): None if to is None else str(to)
            for name, to in dict(changes).items()
        }
        engine = self._store._for_writing(self._topic)
        engine.settings.change_topic(self._topic, texts)
