"""Kafka's own clients, in Python's words: topics, producers, consumers, groups."""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING, Any, NamedTuple

from logfs import OffsetAndTimestamp, Record, TimestampType
from tests.kafka.helper import decoded

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tests.kafka.helper import Helper

    Spec = str | int

UNCOMMITTED = "read_uncommitted"
COMMITTED = "read_committed"

_names = count()


class Sent(NamedTuple):
    """Where a record went."""

    offset: int
    timestamp: int


class Commit(NamedTuple):
    """An offset that a group has committed."""

    topic: str
    partition: int
    offset: int
    leader_epoch: int | None
    metadata: str


class Client:
    """What clients of a broker do, by Kafka's Admin, producer and consumer. Raises `KafkaError`.

    Records are `logfs.Record`, with bytes or None for key, value and header values, so that `==` compares all
    that Kafka and logfs say of one. Topics are named as Kafka names them, their partitions by number.
    """

    def __init__(self, helper: Helper, servers: str) -> None:
        self.helper = helper
        self.servers = servers

    def call(self, name: str, **arguments: object) -> Any:
        """A call of the helper, on this broker."""
        return self.helper.call(name, servers=self.servers, **arguments)

    # Topics.

    def create_topic(self, topic: str, partitions: int = 1, **configs: object) -> str:
        """Make a topic that is served when this returns; its id. `segment_ms=1000` sets `segment.ms`."""
        return str(
            self.call("createTopic", topic=topic, partitions=partitions, configs=_settings(configs))
        )

    def grow_topic(self, topic: str, partitions: int) -> None:
        """Give a topic more partitions, so many in all; they are served when this returns."""
        self.call("growTopic", topic=topic, partitions=partitions)

    def delete_topic(self, topic: str) -> None:
        """Delete a topic."""
        self.call("deleteTopic", topic=topic)

    def alter_topic(self, topic: str, **configs: object) -> None:
        """Change settings of a topic; None takes one back to its default."""
        self.call("alterTopic", topic=topic, configs=_settings(configs))

    def topic_ids(self) -> dict[str, str]:
        """The ids of all topics, the internal ones too."""
        return dict(self.call("topicIds"))

    def delete_records(self, topic: str, before: int, partition: int = 0) -> int:
        """Raise the log start offset; what it is now."""
        return int(self.call("deleteRecords", topic=topic, partition=partition, before=before))

    # Writing.

    def producer(self, **configs: object) -> Producer:
        """A producer with such settings; with a `transactional_id` its transactions are initialised."""
        return Producer(self, _settings(configs))

    def produce(
        self, topic: str, *batches: Sequence[Record], partition: int = 0, **configs: object
    ) -> list[Sent]:
        """Append batches by a producer that lives only for them; see `Producer.send`."""
        with self.producer(**configs) as producer:
            return producer.send(topic, *batches, partition=partition)

    # Reading.

    def consume(
        self,
        topic: str,
        partition: int = 0,
        offset: int | None = None,
        isolation: str = UNCOMMITTED,
    ) -> list[Record]:
        """The records from an offset, or the earliest, up to the end: the last stable one if committed only."""
        return [record for record, _ in self.consume_epochs(topic, partition, offset, isolation)]

    def consume_epochs(
        self,
        topic: str,
        partition: int = 0,
        offset: int | None = None,
        isolation: str = UNCOMMITTED,
    ) -> list[tuple[Record, int]]:
        """The same, each with its leader epoch; -1 for none."""
        rows = self.call(
            "consume",
            topic=topic,
            partition=partition,
            offset=offset,
            configs={"isolation.level": isolation},
        )
        return [(_record(*row), epoch) for *row, epoch in rows]

    def list_offsets(
        self, topic: str, specs: Sequence[Spec], partition: int = 0, isolation: str = UNCOMMITTED
    ) -> list[OffsetAndTimestamp | None]:
        """By the Admin: where `earliest`, `latest`, `max` and timestamps are; None where there is no such record."""
        rows = self.call(
            "listOffsets", topic=topic, partition=partition, specs=specs, isolation=isolation
        )
        return [None if row[0] == -1 else _position(*row) for row in rows]

    def offsets_for_times(
        self, topic: str, timestamps: Sequence[int], partition: int = 0
    ) -> list[OffsetAndTimestamp | None]:
        """By the consumer: the first record at or after each timestamp, with its own timestamp."""
        rows = self.call("offsetsForTimes", topic=topic, partition=partition, timestamps=timestamps)
        return [row and _position(*row) for row in rows]

    # Groups.

    def commit(
        self, group: str, *offsets: tuple[str, int, int] | tuple[str, int, int, str]
    ) -> None:
        """Commit (topic, partition, offset[, metadata]) for a group, by a consumer that is no member."""
        self.call("commitOffsets", offsets=_offsets(offsets), configs={"group.id": group})

    def join(self, group: str, topics: Sequence[str], count: int, protocol: str = "classic") -> int:
        """A member of a group reads at least `count` records, commits and leaves; how many it read."""
        configs = {"group.id": group, "group.protocol": protocol, "auto.offset.reset": "earliest"}
        return int(self.call("joinGroup", topics=topics, count=count, configs=configs))

    def committed(self, group: str) -> list[Commit]:
        """What a group has committed, by topic and partition."""
        rows = self.call("groupOffsets", group=group)
        return sorted(Commit(*row) for row in rows)


class Producer:
    """A producer with a name of its own in the helper; several may be open at once. A context manager."""

    def __init__(self, client: Client, configs: dict[str, str | None]) -> None:
        self.client = client
        self.name = f"producer-{next(_names)}"
        client.call("openProducer", producer=self.name, configs=configs)

    def __enter__(self) -> Producer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def send(self, topic: str, *batches: Sequence[Record], partition: int = 0) -> list[Sent]:
        """Append; each sequence is flushed, so it makes one batch (up to `batch.size`, 1,000,000 bytes here).

        A record's timestamp None asks the producer for its clock. Where each record went, in order.
        """
        rows = self.client.call(
            "send",
            producer=self.name,
            topic=topic,
            partition=partition,
            batches=[[_row(record) for record in batch] for batch in batches],
        )
        return [Sent(*row) for row in rows]

    def begin(self) -> None:
        """Begin a transaction."""
        self.client.call("begin", producer=self.name)

    def send_offsets(self, group: str, *offsets: tuple[str, int, int]) -> None:
        """Commit (topic, partition, offset) for a group, as part of the transaction."""
        self.client.call(
            "sendOffsets",
            producer=self.name,
            offsets=_offsets(offsets),
            configs={"group.id": group},
        )

    def commit(self) -> None:
        """Commit the transaction."""
        self.client.call("commit", producer=self.name)

    def abort(self) -> None:
        """Abort the transaction."""
        self.client.call("abort", producer=self.name)

    def close(self, *, abandon: bool = False) -> None:
        """Close it; abandoned, it goes as if it had been killed, and leaves its transaction open."""
        self.client.call("closeProducer", producer=self.name, abandon=abandon)


def _settings(configs: dict[str, object]) -> dict[str, str | None]:
    """Python's keywords as Kafka's settings: `segment_ms=1` is `segment.ms` = "1"."""
    return {name.replace("_", "."): _setting(value) for name, value in configs.items()}


def _setting(value: object) -> str | None:
    if value is None:
        return None
    return str(value).lower() if isinstance(value, bool) else str(value)


def _position(offset: int, timestamp: int, leader_epoch: int | None) -> OffsetAndTimestamp:
    return OffsetAndTimestamp(offset, timestamp, -1 if leader_epoch is None else leader_epoch)


def _offsets(offsets: Iterable[tuple[object, ...]]) -> list[list[object]]:
    return [[*offset, ""][:4] for offset in offsets]


def _row(record: Record) -> list[object]:
    return [record.timestamp, record.key, record.value, record.headers]


def _record(
    offset: int,
    timestamp: int,
    kind: int,
    key: str | None,
    value: str | None,
    headers: list[tuple[str, str | None]],
) -> Record:
    pairs = [(name, decoded(content)) for name, content in headers] or ()
    return Record(decoded(value), decoded(key), pairs, timestamp, offset, TimestampType(kind))
