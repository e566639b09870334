"""A Python interface to Kafka's own clients: topics, producers, consumers and groups."""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING, Any, NamedTuple

from logfs.format.batches.record import Record, TimestampType
from logfs.log.read.reader import OffsetAndTimestamp
from tests.kafka.helper import decoded

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tests.kafka.helper import Helper

    Spec = str | int

UNCOMMITTED = "read_uncommitted"
COMMITTED = "read_committed"

_names = count()


class Sent(NamedTuple):
    """The offset and the timestamp of an appended record."""

    offset: int
    timestamp: int


class Commit(NamedTuple):
    """A committed offset of a group."""

    topic: str
    partition: int
    offset: int
    leader_epoch: int | None
    metadata: str


class Client:
    """The clients of a broker: Kafka's Admin, producer and consumer. All methods raise `KafkaError`.

    Records are `logfs.Record`, with bytes or None for key, value and header values, so that `==` compares all fields
    of a record in Kafka and in logfs. Topics are given by name, partitions by number.
    """

    def __init__(self, helper: Helper, servers: str) -> None:
        self.helper = helper
        self.servers = servers

    def call(self, name: str, **arguments: object) -> Any:
        """Call a function of the helper for this broker, and return the answer."""
        return self.helper.call(name, servers=self.servers, **arguments)

    # Topics.

    def create_topic(self, topic: str, partitions: int = 1, **configs: object) -> str:
        """Create a topic, wait until it is served, and return its id. `segment_ms=1000` sets `segment.ms`."""
        return str(
            self.call("createTopic", topic=topic, partitions=partitions, configs=_settings(configs))
        )

    def place_topic(self, topic: str, replicas: Sequence[Sequence[int]], **configs: object) -> None:
        """Create a topic as `create_topic` does, each partition on the brokers in `replicas`, its leader first."""
        settings = _settings(configs)
        self.call(
            "createTopic",
            topic=topic,
            partitions=len(replicas),
            replicas=replicas,
            configs=settings,
        )

    def grow_topic(self, topic: str, partitions: int) -> None:
        """Increase the number of partitions of a topic to `partitions`, and wait until they are served."""
        self.call("growTopic", topic=topic, partitions=partitions)

    def move_partition(self, topic: str, partition: int, replicas: Sequence[int]) -> None:
        """Give a partition other replicas, the first of which is to lead, and wait until they have all records."""
        self.call("movePartition", topic=topic, partition=partition, replicas=replicas)

    def delete_topic(self, topic: str) -> None:
        """Delete a topic."""
        self.call("deleteTopic", topic=topic)

    def alter_topic(self, topic: str, **configs: object) -> None:
        """Change settings of a topic. None restores the default."""
        self.call("alterTopic", topic=topic, configs=_settings(configs))

    def topic_settings(self, topic: str) -> dict[str, str]:
        """Return the settings that were made for the topic itself, by name."""
        return dict(self.call("topicSettings", topic=topic))

    def topic_ids(self) -> dict[str, str]:
        """Return the ids of all topics by name, including internal topics."""
        return dict(self.call("topicIds"))

    def delete_records(self, topic: str, before: int, partition: int = 0) -> int:
        """Raise the log start offset to `before`, and return the new log start offset."""
        return int(self.call("deleteRecords", topic=topic, partition=partition, before=before))

    # Writing.

    def producer(self, **configs: object) -> Producer:
        """Open a producer with these settings. With a `transactional_id` its transactions are initialised."""
        return Producer(self, _settings(configs))

    def produce(
        self, topic: str, *batches: Sequence[Record], partition: int = 0, **configs: object
    ) -> list[Sent]:
        """Append batches with a temporary producer; see `Producer.send`."""
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
        """Return the records from an offset (default: the earliest) to the end.

        The end is the log end offset, or with `COMMITTED` the last stable offset.
        """
        return [record for record, _ in self.consume_epochs(topic, partition, offset, isolation)]

    def consume_epochs(
        self,
        topic: str,
        partition: int = 0,
        offset: int | None = None,
        isolation: str = UNCOMMITTED,
    ) -> list[tuple[Record, int]]:
        """Return the records as `consume` does, each with its leader epoch, -1 for none."""
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
        """Look up `earliest`, `latest`, `max` and timestamps with the Admin; None means that no record matches."""
        rows = self.call(
            "listOffsets", topic=topic, partition=partition, specs=specs, isolation=isolation
        )
        return [None if row[0] == -1 else _position(*row) for row in rows]

    def offsets_for_times(
        self, topic: str, timestamps: Sequence[int], partition: int = 0
    ) -> list[OffsetAndTimestamp | None]:
        """Look up the first record at or after each timestamp with the consumer; None means that there is none."""
        rows = self.call("offsetsForTimes", topic=topic, partition=partition, timestamps=timestamps)
        return [row and _position(*row) for row in rows]

    # Groups.

    def commit(
        self, group: str, *offsets: tuple[str, int, int] | tuple[str, int, int, str]
    ) -> None:
        """Commit (topic, partition, offset[, metadata]) for a group, with a consumer that is not a member."""
        self.call("commitOffsets", offsets=_offsets(offsets), configs={"group.id": group})

    def join(self, group: str, topics: Sequence[str], count: int, protocol: str = "classic") -> int:
        """Join a group, read at least `count` records, commit and leave. Return the number of records read."""
        configs = {"group.id": group, "group.protocol": protocol, "auto.offset.reset": "earliest"}
        return int(self.call("joinGroup", topics=topics, count=count, configs=configs))

    def committed(self, group: str) -> list[Commit]:
        """Return the committed offsets of a group, sorted by topic and partition."""
        rows = self.call("groupOffsets", group=group)
        return sorted(Commit(*row) for row in rows)


class Producer:
    """A producer in the helper, with a unique name. Several may be open at once. A context manager."""

    def __init__(self, client: Client, configs: dict[str, str | None]) -> None:
        self.client = client
        self.name = f"producer-{next(_names)}"
        client.call("openProducer", producer=self.name, configs=configs)

    def __enter__(self) -> Producer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def send(self, topic: str, *batches: Sequence[Record], partition: int = 0) -> list[Sent]:
        """Append records, and return the offset and timestamp of each, in order.

        Each sequence is flushed, and is therefore one batch (up to `batch.size`, 1,000,000 bytes here). A record
        whose timestamp is None gets the time of the producer's clock.
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
        """Close the producer. With `abandon` it ends as if it was killed, and its transaction stays open."""
        self.client.call("closeProducer", producer=self.name, abandon=abandon)


def _settings(configs: dict[str, object]) -> dict[str, str | None]:
    """Convert keyword arguments to Kafka's settings: `segment_ms=1` becomes `segment.ms` = "1"."""
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
