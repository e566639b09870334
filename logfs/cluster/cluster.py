"""The connections to a Kafka cluster, and the requests that a mirror and a push send to it.

`fetch`, `epoch_ends` and `produce` send requests of the protocol through internal classes of kafka-python, because
its public clients do not offer them. Therefore `pyproject.toml` (extra `mirror`) allows only kafka-python 3.0.
"""

from __future__ import annotations

import socket
import struct
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from logfs.cluster.library import (
    describe_error,
    error_name,
    failures,
    kafka_python,
    large_reads,
    naming_cluster,
)
from logfs.errors import ClusterError, Corrupt
from logfs.format.batches.legacy import whole_batches

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from typing import Self

# With SO_LINGER 0, closing a connection discards unsent data, also when the process is killed. Otherwise a batch
# could reach the broker after the next push has read the log end offset, and be appended twice.
_SOCKET_OPTIONS = (
    (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)),
)
# Internal topics. Their records are the state of one cluster or store, and must not be copied to any other.
OWN_TOPICS = frozenset(
    {"__consumer_offsets", "__transaction_state", "__share_group_state", "__remote_log_metadata"}
)

# The last version of Fetch that identifies topics by name, not by id. It has every field that a follower needs.
_FETCH_VERSION = 12
# The replica id that a consumer sends, and the session epoch of a fetch without a session.
_CONSUMER = -1
_FULL_SESSION = -1
# How long a broker may wait for new records before it answers a fetch.
FETCH_WAIT_MS = 500
# The largest size of a fetch response in bytes, and of the records of one partition in it.
_FETCH_BYTES = 16 << 20
_PARTITION_BYTES = 4 << 20
# The timestamps in ListOffsets that stand for the log start offset and the high watermark.
_EARLIEST, _LATEST = -2, -1
# The last version of Produce that identifies topics by name, not by id.
_PRODUCE_VERSION = 12
# acks=-1: the broker waits until all in-sync replicas have the batches, for at most _PRODUCE_TIMEOUT_MS.
_ALL_IN_SYNC = -1
_PRODUCE_TIMEOUT_MS = 20_000

# Error codes of Kafka's network protocol. docs/kafka-storage.md does not list them.
NONE = 0
OFFSET_OUT_OF_RANGE = 1
UNKNOWN_TOPIC = 3
# Error codes of a partition that has another leader now, or soon will have.
_MOVED = frozenset({3, 5, 6, 9, 56, 74, 75, 100, 103})
# Error codes after which a batch may or may not be in the log: the leader has moved, the request timed out, the
# connection broke, or too few replicas were in sync.
_UNSURE = _MOVED | {7, 13, 19, 20}


@dataclass(frozen=True)
class RemoteTopic:
    """A topic of the cluster. `topic_id` is None if the brokers have no topic ids (before Kafka 2.8).

    `leaders` maps each partition's number to (node id of the leader, leader epoch). The node id is -1 if there is no
    leader.
    """

    name: str
    topic_id: uuid.UUID | None
    leaders: Mapping[int, tuple[int, int]]


class Wanted(NamedTuple):
    """One partition in a fetch request: the `offset` to fetch from, and two epochs for the broker to check.

    `leader_epoch` is the epoch of the partition's leader in the metadata of the cluster. `last_epoch` is the epoch of
    the batch before `offset`; if it is -1, the broker does not check whether the logs differ before `offset`.
    """

    topic: str
    partition: int
    offset: int
    leader_epoch: int
    last_epoch: int

    def after(self, found: Fetched) -> Wanted | None:
        """Return the next `Wanted` of this partition, which begins after the batches in `found`.

        `found` is the response for this partition. Returns None if `found.diverging` is set, because the two logs
        differ then. Also returns None if a batch in `found` has an impossible length or, with magic 0 or 1, a wrong
        CRC or content. The CRC of a batch of magic 2 is not checked.
        """
        if found.diverging is not None:
            return None
        offset, epoch = self.offset, self.last_epoch
        try:
            for header in whole_batches(found.records):
                offset, epoch = header.next_offset, header.partition_leader_epoch
        except Corrupt:
            return None
        return self._replace(offset=max(offset, self.offset), last_epoch=epoch)


class Fetched(NamedTuple):
    """The response for a partition: an error code or raw batches, and the leader's log start and high watermark.

    `error` is 0 if there is no error. `diverging` is None, unless the leader finds that the requester's log differs
    from its own before the requested offset. Then it is (epoch, end offset): the leader's greatest epoch up to
    `Wanted.last_epoch`, and the offset at which this epoch ends in the leader's log (kafka-storage 10.5).
    """

    topic: str
    partition: int
    error: int
    records: bytes
    log_start_offset: int
    high_watermark: int
    diverging: tuple[int, int] | None


class Outgoing(NamedTuple):
    """One batch to send to a partition.

    `data` is the whole batch, with the base offset 0. `records` is the number of its records. `offset` is the base
    offset that it is expected to get: the log end offset of the partition in the cluster.
    """

    topic: str
    partition: int
    data: bytes | bytearray | memoryview
    offset: int
    records: int


class Produced(NamedTuple):
    """The response for a batch: an error code, the broker's message about it or "", and the assigned base offset."""

    topic: str
    partition: int
    error: int
    message: str
    base_offset: int

    @property
    def is_unsure(self) -> bool:
        """Whether `error` leaves open if the broker has appended the batch, as after a timeout.

        To find out, compare the log end offset of the partition with the offset of the batch.
        """
        return self.error in _UNSURE


_Part = TypeVar("_Part", Wanted, Outgoing)


class EpochEnd(NamedTuple):
    """The response to an OffsetForLeaderEpoch request for a partition: an error code, or an epoch and its end offset.

    `epoch` is the leader's last epoch at or below the requested epoch, and `end_offset` the offset at which it ends
    in the leader's log. If the requested epoch is below all epochs of the leader, `epoch` is the requested one, and
    `end_offset` the start of the leader's first epoch. If it is above all of them, both numbers are -1.
    """

    topic: str
    partition: int
    error: int
    epoch: int
    end_offset: int


class Cluster:
    """Connections to the brokers of a cluster, one to each broker. This is a context manager.

    Any thread may call the methods. While a broker works on a fetch, all later requests of this object to the broker
    wait. Methods raise `ClusterError` if the cluster cannot be reached, refuses the credentials or answers with an
    error. An error of a single partition is not raised by methods whose results have a field `error`: it is returned
    in this field. The parameter `node` of a method is the node id of the broker to ask.
    """

    def __init__(self, servers: str, options: Mapping[str, Any]) -> None:
        """Connect to `servers`, host:port separated by commas.

        `options` are keyword arguments for kafka-python's clients, such as `security_protocol`.
        """
        kafka = kafka_python()
        failures.attach()
        self.servers = servers
        self._kafka = kafka
        _check_addresses(servers)
        _check_names(servers)
        with naming_cluster(servers):
            self._admin = kafka.admin.KafkaAdminClient(
                bootstrap_servers=servers.split(","),
                client_id="logfs",
                socket_options=_SOCKET_OPTIONS,
                **large_reads(),
                **options,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._admin.close()

    def _send(self, request: Any, node: int) -> Any:
        """Send a request to the broker with the id `node`, and return its answer."""
        manager = self._admin._manager

        async def answered() -> Any:
            return await manager.send(request, node_id=node)

        with naming_cluster(self.servers):
            return manager.run(answered)

    # The methods below send requests about topics, groups and offsets.

    def topics(self) -> list[RemoteTopic]:
        """Return all topics except Kafka's internal ones and those that the cluster cannot describe."""
        with naming_cluster(self.servers):
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
        """Return for each topic the settings that are set on the topic or on the brokers: {topic: {name: text}}.

        A value that is set on the topic takes precedence. Topics whose settings the user may not read are left out.
        """
        if not topics:
            return {}
        kind = self._kafka.admin.ConfigResourceType.TOPIC
        wanted = [self._kafka.admin.ConfigResource(kind, topic) for topic in topics]
        with naming_cluster(self.servers):
            found = self._admin.describe_configs(wanted, config_filter="all")["topic"]
        return {
            topic: {
                name: told["value"]
                for name, told in each.items()
                # A value that is set on the brokers counts, too: it applies to a topic without a value of its own.
                if told["value"] is not None and told["config_source"] != "DEFAULT_CONFIG"
            }
            for topic, each in found.items()
            if each
        }

    def groups(self) -> list[str]:
        """Return the names of the consumer groups."""
        with naming_cluster(self.servers):
            return sorted({each["group_id"] for each in self._admin.list_groups()})

    def group_offsets(self, group: str) -> dict[tuple[str, int], int]:
        """Return the offsets that a group has committed, by (topic, partition)."""
        with naming_cluster(self.servers):
            found = self._admin.list_group_offsets(group)[group]
        return {
            (at.topic, at.partition): told.offset for at, told in found.items() if told.offset >= 0
        }

    def end_offsets(self, partitions: Iterable[tuple[str, int]]) -> dict[tuple[str, int], int]:
        """Return the high watermark of each (topic, partition)."""
        return self._offsets(partitions, _LATEST)

    def start_offsets(self, partitions: Iterable[tuple[str, int]]) -> dict[tuple[str, int], int]:
        """Return the log start offset of each (topic, partition)."""
        return self._offsets(partitions, _EARLIEST)

    def _offsets(
        self, partitions: Iterable[tuple[str, int]], which: int
    ) -> dict[tuple[str, int], int]:
        wanted = {self._kafka.TopicPartition(*each): which for each in partitions}
        if not wanted:
            return {}
        with naming_cluster(self.servers):
            found = self._admin.list_partition_offsets(wanted)
        return {(at.topic, at.partition): told.offset for at, told in found.items()}

    def offset_range(self, topic: str, partition: int) -> tuple[int, int]:
        """Return the log start offset and the high watermark of a partition."""
        at = (topic, partition)
        return self.start_offsets([at])[at], self.end_offsets([at])[at]

    @property
    def cluster_id(self) -> str:
        """The id of the cluster."""
        with naming_cluster(self.servers):
            return str(self._admin.describe_cluster()["cluster_id"])

    # The methods below send the requests of a mirror, which fetches like a follower of a partition.

    def fetch(
        self, node: int, wanted: Sequence[Wanted], wait_ms: int = FETCH_WAIT_MS
    ) -> list[Fetched]:
        """Return a response for each partition in `wanted`, with the batches from its `offset` on.

        The broker must lead the partitions. The size of the batches is limited, for each partition and in total. If
        none of the partitions has such a batch, the broker waits for one for up to `wait_ms`.
        """
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
            max_wait_ms=wait_ms,
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
            reason = error_name(answer.error_code)
            raise ClusterError(f"{self.servers}: broker {node} refuses to send records: {reason}")
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
        """Return for each partition in `wanted` the offset at which its `last_epoch` ends in the leader's log.

        The broker must lead the partitions. An epoch ends where the leader's next epoch starts, and the latest one at
        the log end offset (kafka-storage 10.5).
        """
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

    def topic_ids(self, node: int, topics: Iterable[str]) -> dict[str, uuid.UUID | None]:
        """Return the ids of the given topics, without topics that the broker `node` does not know.

        An id is None if the broker has no topic ids (before Kafka 2.8).
        """
        from kafka.protocol.metadata import MetadataRequest

        wanted = [MetadataRequest.MetadataRequestTopic(name=topic) for topic in sorted(set(topics))]
        request = MetadataRequest(topics=wanted, allow_auto_topic_creation=False)
        return {
            each.name: _uuid(getattr(each, "topic_id", None))
            for each in self._send(request, node).topics
            if each.error_code == NONE
        }

    # The methods below send the requests of a push.

    def create_topic(
        self,
        topic: str,
        partitions: int,
        replicas: int,
        settings: Mapping[str, str],
        *,
        is_trial: bool = False,
    ) -> None:
        """Create a topic, and wait until its partitions have leaders.

        If `replicas` is -1, the topic gets the cluster's default replication factor. With `is_trial` nothing is
        created, but `ClusterError` is raised if the cluster would refuse the topic.
        """
        options = {
            "num_partitions": partitions,
            "replication_factor": replicas,
            "configs": dict(settings),
        }
        with naming_cluster(self.servers):
            (found,) = self._admin.create_topics(
                {topic: options}, validate_only=is_trial, raise_errors=False
            )["topics"]
            if found["error_code"]:
                reason = describe_error(found["error_code"], found["error_message"])
                raise ClusterError(f"{self.servers}: topic {topic} cannot be created: {reason}")
            if not is_trial:
                self._admin.wait_for_topics([topic])

    def alter_settings(
        self, topic: str, changes: Mapping[str, str | None], *, is_trial: bool = False
    ) -> None:
        """Change settings of a topic.

        `changes` maps the names of settings to texts; None in place of a text restores the cluster's default. With
        `is_trial` nothing is changed, but `ClusterError` is raised if the cluster would refuse the changes.
        """
        admin = self._kafka.admin
        operations = {
            name: (admin.AlterConfigOp.DELETE if text is None else admin.AlterConfigOp.SET, text)
            for name, text in changes.items()
        }
        resource = admin.ConfigResource(admin.ConfigResourceType.TOPIC, topic, configs=operations)
        with naming_cluster(self.servers):
            found = self._admin.alter_configs([resource], validate_only=is_trial)
        result = found["topic"][topic]
        if result != "OK":
            raise ClusterError(f"{self.servers}: settings of topic {topic} are refused: {result}")

    def delete_records(self, topic: str, partition: int, before: int) -> None:
        """Delete the records of a partition below the offset `before`, which becomes the log start offset."""
        with naming_cluster(self.servers):
            self._admin.delete_records({self._kafka.TopicPartition(topic, partition): before})

    def commit(self, group: str, offsets: Mapping[tuple[str, int], tuple[int, str]]) -> None:
        """Commit the (offset, metadata) of a group for each (topic, partition). The group must have no members."""
        kafka = self._kafka
        wanted = {
            kafka.TopicPartition(*at): kafka.OffsetAndMetadata(offset, metadata, None)
            for at, (offset, metadata) in offsets.items()
        }
        with naming_cluster(self.servers):
            found = self._admin.alter_group_offsets(group, wanted)
        for at, error in found.items():
            if error.errno:
                raise ClusterError(
                    f"{self.servers}: group {group}: the offset for {at.topic}-{at.partition} is not committed: "
                    f"{error_name(error.errno)}; stop the group's members, and push again"
                ) from error()

    def produce(self, node: int, batches: Sequence[Outgoing]) -> list[Produced]:
        """Send batches, at most one for each partition, to the broker `node`, and return its responses.

        The broker must lead these partitions. It answers when all in-sync replicas have the batches, or after 20
        seconds.
        """
        from kafka.protocol.producer.produce import ProduceRequest

        kind = ProduceRequest.TopicProduceData
        request = ProduceRequest(
            transactional_id=None,
            acks=_ALL_IN_SYNC,
            timeout_ms=_PRODUCE_TIMEOUT_MS,
            topic_data=[
                kind(
                    name=topic,
                    partition_data=[
                        kind.PartitionProduceData(index=each.partition, records=bytes(each.data))
                        for each in some
                    ],
                )
                for topic, some in _by_topic(batches)
            ],
            max_version=_PRODUCE_VERSION,
        )
        answer = self._send(request, node)
        return [
            Produced(
                topic.name, each.index, each.error_code, each.error_message or "", each.base_offset
            )
            for topic in answer.responses
            for each in topic.partition_responses
        ]


def _uuid(text: object) -> uuid.UUID | None:
    """Return the topic id in `text`; None if it is empty or the zero UUID, as from brokers before Kafka 2.8."""
    found = uuid.UUID(str(text)) if text else uuid.UUID(int=0)
    return found if found.int else None


def _check_addresses(servers: str) -> None:
    """Raise `ClusterError` unless `servers` is a list of addresses, host:port separated by commas."""
    for each in servers.split(","):
        host, _, port = each.strip().rpartition(":")
        if not host or not port.isdecimal() or not 0 < int(port) < 1 << 16:
            raise ClusterError(
                f"{servers!r}: give the addresses of brokers as HOST:PORT, separated by commas"
            )


def _check_names(servers: str) -> None:
    """Resolve the host names in `servers`. Raise `ClusterError` if none of them exists.

    Without this check, kafka-python would try to resolve the names for 30 seconds.
    """
    reason = ""
    for each in servers.split(","):
        host = each.strip().rpartition(":")[0].strip("[]")
        try:
            socket.getaddrinfo(host, None)
        except (socket.gaierror, UnicodeError) as error:
            if isinstance(error, socket.gaierror) and error.errno != socket.EAI_NONAME:
                # The name server does not answer now, so this host may exist.
                return
            reason = f"{host}: {getattr(error, 'strerror', None) or error}"
        else:
            return
    raise ClusterError(f"{servers}: no such host ({reason}): check the addresses")


def _by_topic(wanted: Sequence[_Part]) -> list[tuple[str, list[_Part]]]:
    found: dict[str, list[_Part]] = {}
    for each in wanted:
        found.setdefault(each.topic, []).append(each)
    return list(found.items())


def _diverging(answer: Any) -> tuple[int, int] | None:
    told = answer.diverging_epoch
    if told is None or told.end_offset < 0:
        return None
    return told.epoch, told.end_offset
