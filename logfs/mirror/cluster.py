"""A Kafka cluster over the network: what the mirror asks of it. The only module that uses kafka-python.

Fetches and epochs are requests of the protocol itself, which kafka-python offers to its own clients only. Its version
is therefore fixed to one release (`pyproject.toml`, extra `mirror`).
"""

from __future__ import annotations

import logging
import re
import uuid
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from logfs.errors import ClusterError
from logfs.format.batches.batch import whole_batches

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from typing import Self

# The last version of Fetch that names topics by their names; it has all that a follower needs.
_FETCH_VERSION = 12
_CONSUMER = -1
_FULL_SESSION = -1
# How long a broker may wait for new records before it answers a fetch, and the sizes of an answer.
FETCH_WAIT_MS = 500
_FETCH_BYTES = 16 << 20
_PARTITION_BYTES = 4 << 20
_EARLIEST, _LATEST = -2, -1

# The messages of kafka-python about a connection that has failed.
_FAILURE = re.compile(
    r"(?:Connection|Bootstrap connection to \S+) failed: (.*?)(?: \(backoff .*)?$"
)

_SAYS_LITTLE = re.compile("disconnected|[Tt]imeout")

# Error codes of answers (kafka-storage does not list them: they are of the protocol).
NONE = 0
OFFSET_OUT_OF_RANGE = 1
_MOVED = frozenset({3, 5, 6, 9, 56, 74, 75, 100, 103})
"""The partition has another leader now, or its leader is about to change: the metadata is out of date."""


@dataclass(frozen=True)
class RemoteTopic:
    """A topic of the cluster: its id, and for each partition the leader's node and its epoch; -1 without a leader."""

    name: str
    topic_id: uuid.UUID | None
    leaders: Mapping[int, tuple[int, int]]


class Wanted(NamedTuple):
    """What to fetch of a partition: from which offset on, and the epochs that the broker compares with its own."""

    topic: str
    partition: int
    offset: int
    leader_epoch: int
    last_epoch: int

    def after(self, found: Fetched) -> Wanted | None:
        """Return what to fetch once `found` is appended; None if the leader's log differs."""
        if found.diverging is not None:
            return None
        offset, epoch = self.offset, self.last_epoch
        for header in whole_batches(found.records):
            offset, epoch = header.next_offset, header.partition_leader_epoch
        return self._replace(offset=max(offset, self.offset), last_epoch=epoch)


class Fetched(NamedTuple):
    """The answer for a partition: an error code, or raw batches in `records`, and the bounds of the leader's log.

    `diverging` is (epoch, end offset) of the leader's log if the records before the offset are not the leader's.
    """

    topic: str
    partition: int
    error: int
    records: bytes
    log_start_offset: int
    high_watermark: int
    diverging: tuple[int, int] | None

    @property
    def has_moved(self) -> bool:
        """Whether another broker leads the partition now, or will soon."""
        return self.error in _MOVED


class EpochEnd(NamedTuple):
    """Where an epoch ends in the leader's log: the greatest epoch up to the one that was asked for, and its end."""

    topic: str
    partition: int
    error: int
    epoch: int
    end_offset: int


class Cluster:
    """Connections to the brokers of a cluster. Any thread may use it; a fetch occupies the connection to its broker.

    A context manager. Methods raise `ClusterError` where the cluster cannot be reached, refuses the credentials or
    answers with an error.
    """

    def __init__(self, servers: str, options: Mapping[str, Any]) -> None:
        """Connect to `servers`, host:port separated by commas, with `options` of kafka-python."""
        kafka = _library()
        _failures.attach()
        self.servers = servers
        self._kafka = kafka
        _check_addresses(servers)
        with _told(servers):
            self._admin = kafka.admin.KafkaAdminClient(
                bootstrap_servers=servers.split(","), client_id="logfs", **options
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._admin.close()

    def _send(self, request: Any, node: int) -> Any:
        """Send a request to a broker, and return its answer."""
        manager = self._admin._manager

        async def answered() -> Any:
            return await manager.send(request, node_id=node)

        with _told(self.servers):
            return manager.run(answered)

    # What there is.

    def topics(self) -> list[RemoteTopic]:
        """Return all topics, without those that are Kafka's own."""
        with _told(self.servers):
            found = self._admin.describe_topics()
        return [
            RemoteTopic(
                topic["name"],
                _uuid(topic.get("topic_id")),
                {
                    each["partition_index"]: (each["leader_id"], each.get("leader_epoch", -1))
                    for each in topic["partitions"]
                },
            )
            for topic in found
            if topic["error_code"] in (NONE, 5) and not topic["is_internal"]
        ]

    def settings(self, topics: Sequence[str]) -> dict[str, dict[str, str]]:
        """Return the settings of topics that differ from Kafka's defaults: texts by name, by topic.

        Topics whose settings may not be read are left out.
        """
        if not topics:
            return {}
        kind = self._kafka.admin.ConfigResourceType.TOPIC
        wanted = [self._kafka.admin.ConfigResource(kind, topic) for topic in topics]
        with _told(self.servers):
            found = self._admin.describe_configs(wanted, config_filter="all")["topic"]
        return {
            topic: {
                name: told["value"]
                for name, told in each.items()
                # Those of the brokers are defaults of topics, too.
                if told["value"] is not None and told["config_source"] != "DEFAULT_CONFIG"
            }
            for topic, each in found.items()
            if each
        }

    def groups(self) -> list[str]:
        """Return the names of the consumer groups."""
        with _told(self.servers):
            return sorted({each["group_id"] for each in self._admin.list_groups()})

    def group_offsets(self, group: str) -> dict[tuple[str, int], int]:
        """Return the offsets that a group has committed, by (topic, partition)."""
        with _told(self.servers):
            found = self._admin.list_group_offsets(group)[group]
        return {
            (at.topic, at.partition): told.offset for at, told in found.items() if told.offset >= 0
        }

    def end_offsets(self, partitions: Iterable[tuple[str, int]]) -> dict[tuple[str, int], int]:
        """Return the high watermark of each (topic, partition)."""
        kafka = self._kafka
        wanted = {kafka.TopicPartition(*each): _LATEST for each in partitions}
        if not wanted:
            return {}
        with _told(self.servers):
            found = self._admin.list_partition_offsets(wanted)
        return {(at.topic, at.partition): told.offset for at, told in found.items()}

    def offset_range(self, topic: str, partition: int) -> tuple[int, int]:
        """Return the log start offset and the high watermark of a partition."""
        at = self._kafka.TopicPartition(topic, partition)
        with _told(self.servers):
            first = self._admin.list_partition_offsets({at: _EARLIEST})[at].offset
            end = self._admin.list_partition_offsets({at: _LATEST})[at].offset
        return first, end

    @property
    def cluster_id(self) -> str:
        """The id of the cluster."""
        with _told(self.servers):
            return str(self._admin.describe_cluster()["cluster_id"])

    # What a follower asks.

    def fetch(self, node: int, wanted: Sequence[Wanted]) -> list[Fetched]:
        """Fetch from a broker, and wait up to `FETCH_WAIT_MS` for records if there are none."""
        from kafka.protocol.consumer.fetch import FetchRequest

        topics = [
            FetchRequest.FetchTopic(
                topic=topic,
                partitions=[
                    FetchRequest.FetchTopic.FetchPartition(
                        partition=each.partition,
                        current_leader_epoch=each.leader_epoch,
                        fetch_offset=each.offset,
                        last_fetched_epoch=each.last_epoch,
                        log_start_offset=-1,
                        partition_max_bytes=_PARTITION_BYTES,
                    )
                    for each in some
                ],
            )
            for topic, some in _by_topic(wanted)
        ]
        request = FetchRequest(
            replica_id=_CONSUMER,
            max_wait_ms=FETCH_WAIT_MS,
            min_bytes=1,
            max_bytes=_FETCH_BYTES,
            isolation_level=0,
            session_id=0,
            session_epoch=_FULL_SESSION,
            topics=topics,
            forgotten_topics_data=[],
            rack_id="",
            max_version=_FETCH_VERSION,
        )
        answer = self._send(request, node)
        if answer.error_code:
            reason = describe_error(answer.error_code)
            raise ClusterError(f"{self.servers}: broker {node} refuses a fetch: {reason}")
        return [
            Fetched(
                topic.topic,
                each.partition_index,
                each.error_code,
                each.records or b"",
                each.log_start_offset,
                each.high_watermark,
                _diverging(each),
            )
            for topic in answer.responses
            for each in topic.partitions
        ]

    def epoch_ends(self, node: int, wanted: Sequence[Wanted]) -> list[EpochEnd]:
        """Return where the `last_epoch` of each partition ends in its leader's log (kafka-storage 10.4)."""
        from kafka.protocol.consumer.offsets import OffsetForLeaderEpochRequest

        kind = OffsetForLeaderEpochRequest.OffsetForLeaderTopic
        topics = [
            kind(
                topic=topic,
                partitions=[
                    kind.OffsetForLeaderPartition(
                        partition=each.partition,
                        current_leader_epoch=each.leader_epoch,
                        leader_epoch=each.last_epoch,
                    )
                    for each in some
                ],
            )
            for topic, some in _by_topic(wanted)
        ]
        answer = self._send(OffsetForLeaderEpochRequest(replica_id=_CONSUMER, topics=topics), node)
        return [
            EpochEnd(
                topic.topic, each.partition, each.error_code, each.leader_epoch, each.end_offset
            )
            for topic in answer.topics
            for each in topic.partitions
        ]


def describe_error(code: int) -> str:
    """Return the name of an error code, such as TOPIC_AUTHORIZATION_FAILED."""
    found = _library().errors.for_code(code)
    return str(getattr(found, "message", found.__name__))


def _uuid(text: object) -> uuid.UUID | None:
    """Return a topic's id; None for that of a broker before Kafka 2.8, which has none."""
    found = uuid.UUID(str(text)) if text else uuid.UUID(int=0)
    return found if found.int else None


def _check_addresses(servers: str) -> None:
    """Raise `ClusterError` unless these are addresses, host:port separated by commas."""
    for each in servers.split(","):
        host, _, port = each.strip().rpartition(":")
        if not host or not port.isdecimal() or not 0 < int(port) < 1 << 16:
            raise ClusterError(
                f"{servers!r}: give the addresses of brokers as HOST:PORT, separated by commas"
            )


def _by_topic(wanted: Sequence[Wanted]) -> list[tuple[str, list[Wanted]]]:
    found: dict[str, list[Wanted]] = {}
    for each in wanted:
        found.setdefault(each.topic, []).append(each)
    return list(found.items())


def _diverging(answer: Any) -> tuple[int, int] | None:
    told = answer.diverging_epoch
    if told is None or told.end_offset < 0:
        return None
    return told.epoch, told.end_offset


def _library() -> Any:
    """Return kafka-python. Raises `ClusterError` if it is not installed."""
    try:
        import kafka
        import kafka.admin
        import kafka.errors
    except ImportError as error:
        raise ClusterError(
            f"a mirror needs kafka-python ({error}); install logfs[mirror]"
        ) from None
    return kafka


class _Failures(logging.Handler):
    """Takes the messages of kafka-python, and keeps why the last connection has failed: its errors do not say it."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.last = ""

    def attach(self) -> None:
        """Take the place of the handlers of kafka-python's logger."""
        logger = logging.getLogger("kafka")
        logger.handlers, logger.propagate = [self], False
        self.last = ""

    def emit(self, record: logging.LogRecord) -> None:
        """Keep the reason in a message about a failed connection, unless it says less than the one before."""
        found = _FAILURE.match(record.getMessage())
        if found is not None and not (self.last and _SAYS_LITTLE.search(found[1])):
            self.last = found[1]


_failures = _Failures()


@contextmanager
def _told(servers: str) -> Iterator[None]:
    """Raise errors of kafka-python in the context as `ClusterError`, with the addresses of the cluster."""
    from kafka.errors import KafkaError, KafkaTimeoutError

    try:
        yield
    except KafkaTimeoutError as error:
        raise ClusterError(
            f"{servers}: no broker answers ({_failures.last or error}): check the addresses, the network, and the "
            "options of --command-config, such as security.protocol"
        ) from error
    except (KafkaError, OSError, ValueError) as error:
        reason = str(error) or type(error).__name__
        raise ClusterError(f"{servers}: {reason}") from error
