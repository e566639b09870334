"""A server of the disk of a running broker: both give the same answers to the same requests and clients."""

from __future__ import annotations

import random
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import logfs
from logfs.format.messages.requests import versions_of
from logfs.server.apis import APIS
from tests.kafka.client import COMMITTED, UNCOMMITTED, Client
from tests.kafka.topics import CONFIGS
from tests.server.raw_client import (
    CLUSTER,
    EPOCHS,
    FETCH,
    LIST_OFFSETS,
    METADATA,
    SOFTWARE,
    TOPICS,
    RawClient,
)
from tests.support.processes import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from tests.kafka.broker import Broker
    from tests.kafka.distribution import Distribution
    from tests.kafka.helper import Helper
    from tests.kafka.tools import Tools

ROOT = Path(__file__).parents[2]
# Fields in which two servers of the same log differ: where they listen, and what only a cluster has.
_OWN = {
    "host",
    "port",
    "rack",
    "throttleTimeMs",
    "topicAuthorizedOperations",
    "clusterAuthorizedOperations",
    "nodeEndpoints",
}
LOG_DIRS, PRODUCERS = 35, 61
# The isolation levels in requests.
_LEVELS = (0, 1)


@pytest.fixture(scope="module")
def served(source: Broker) -> Iterator[str]:
    """The address of a server of the running broker's log directory, which is opened read-only."""
    with logfs.open(source.log_dir, "r") as store, logfs.serve(store) as server:
        yield server.address


@pytest.fixture(scope="module")
def both(source: Broker, served: str) -> Iterator[Callable[..., list[Any]]]:
    """A function that sends one request to the broker and to the server, and returns both answers to compare."""
    with RawClient(source.servers) as broker, RawClient(served) as server:

        def ask(key: int, version: int, **fields: object) -> list[Any]:
            return [comparable(each.ask(key, version, **fields)) for each in (broker, server)]

        yield ask


def comparable(found: Any) -> Any:
    """Return an answer without the fields in which the two servers may differ."""
    if isinstance(found, dict):
        return {name: comparable(value) for name, value in found.items() if name not in _OWN}
    if isinstance(found, list):
        return [comparable(each) for each in found]
    return bytes(found) if isinstance(found, memoryview) else found


def versions(key: int) -> list[int]:
    known = versions_of(key)
    return list(range(known.lowest, known.highest + 1))


def ends(both: Callable[..., list[Any]], topic: str) -> tuple[int, int]:
    """Return the first offset and the end of partition 0 of a topic."""
    found = []
    for time_ms in (-2, -1):
        partitions = [{"partitionIndex": 0, "timestamp": time_ms}]
        broker, _ = both(LIST_OFFSETS, 7, topics=[{"name": topic, "partitions": partitions}])
        found.append(broker["topics"][0]["partitions"][0]["offset"])
    return found[0], found[1]


@pytest.mark.parametrize("version", versions(FETCH))
def test_fetch_is_answered_as_by_the_broker(both: Callable[..., list[Any]], version: int) -> None:
    """The same batches, byte for byte, the same offsets, errors and aborted transactions, for random requests."""
    rng = random.Random(version)
    topics, _ = both(METADATA, 12, topics=[{"name": name} for name in CONFIGS])
    ids = {each["name"]: each["topicId"] for each in topics["topics"]}
    for topic in CONFIGS:
        first, end = ends(both, topic)
        for offset in [first - 1, first, end, end + 1, *rng.choices(range(first, end + 1), k=6)]:
            asked = {
                "partition": 0,
                "fetchOffset": offset,
                "partitionMaxBytes": rng.choice([1, 100, 3000, 1 << 20]),
            }
            named = {"topicId": ids[topic]} if version >= 13 else {"topic": topic}
            broker, server = both(
                FETCH,
                version,
                maxWaitMs=0,
                maxBytes=rng.choice([1, 2000, 1 << 25]),
                isolationLevel=rng.choice(_LEVELS),
                topics=[{**named, "partitions": [asked]}],
            )
            for answer in (broker, server):
                for partition in answer["responses"][0]["partitions"]:
                    # The broker sends null or an empty list if no transaction was aborted.
                    partition["abortedTransactions"] = partition["abortedTransactions"] or []
                    partition["preferredReadReplica"] = -1
            assert server == broker, (topic, asked)


@pytest.mark.parametrize("version", versions(LIST_OFFSETS))
def test_offsets_are_those_of_the_broker(both: Callable[..., list[Any]], version: int) -> None:
    """Times, and the special times that a version has, get the same offset, timestamp and epoch."""
    rng = random.Random(version)
    special = [-1, -2, *([-3] if version >= 7 else []), *([-4] if version >= 8 else [])]
    for topic in CONFIGS:
        for time_ms in [
            *special,
            0,
            *rng.choices(range(1_600_000_000_000, 1_900_000_000_000), k=6),
        ]:
            partitions = [{"partitionIndex": 0, "timestamp": time_ms}]
            broker, server = both(
                LIST_OFFSETS,
                version,
                replicaId=-1,
                isolationLevel=rng.choice(_LEVELS),
                topics=[{"name": topic, "partitions": partitions}],
            )
            assert server == broker, (topic, time_ms)


@pytest.mark.parametrize("version", versions(EPOCHS))
def test_ends_of_leader_epochs(both: Callable[..., list[Any]], version: int) -> None:
    for topic in CONFIGS:
        for epoch in range(6):
            partitions = [{"partition": 0, "leaderEpoch": epoch}]
            broker, server = both(
                EPOCHS, version, replicaId=-1, topics=[{"topic": topic, "partitions": partitions}]
            )
            assert server == broker, (topic, epoch)


@pytest.mark.parametrize("version", versions(METADATA))
def test_metadata_is_that_of_the_broker(both: Callable[..., list[Any]], version: int) -> None:
    """The same cluster, topics, ids, partitions and errors."""
    asked = [{"name": name} for name in [*CONFIGS, "nope", "bad/name"]]
    broker, server = both(METADATA, version, topics=asked, allowAutoTopicCreation=False)
    assert by_name(server) == by_name(broker)
    broker, server = both(METADATA, version, topics=[] if not version else None)
    assert by_name(server) == by_name(broker)


def by_name(answer: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the answer with its topics and partitions in sorted order."""
    for topic in answer["topics"]:
        topic["partitions"].sort(key=lambda each: each["partitionIndex"])
    return {**answer, "topics": sorted(answer["topics"], key=lambda each: each["name"] or "")}


def test_the_cluster_and_pages_of_partitions(both: Callable[..., list[Any]]) -> None:
    for version in versions(CLUSTER):
        broker, server = both(CLUSTER, version)
        assert server == broker
    broker, server = both(
        TOPICS, 0, topics=[{"name": name} for name in CONFIGS], responsePartitionLimit=5
    )
    assert server == broker


def test_producers_and_sizes_are_those_of_the_broker(
    both: Callable[..., list[Any]],
) -> None:
    """The producers of each partition with their open transactions, and the sizes of the logs."""
    broker, server = both(
        PRODUCERS, 0, topics=[{"name": name, "partitionIndexes": [0, 7]} for name in CONFIGS]
    )
    for answer in (broker, server):
        for topic in answer["topics"]:
            for partition in topic["partitions"]:
                partition.pop("errorMessage")
                partition["activeProducers"].sort(key=lambda each: each["producerId"])
    assert server == broker
    for version in versions(LOG_DIRS):
        topics = [{"topic": name, "partitions": [0]} for name in CONFIGS]
        broker, server = both(LOG_DIRS, version, topics=topics)
        for answer in (broker, server):
            for log_dir in answer["results"]:
                # The free space changes.
                log_dir.pop("usableBytes", None)
                log_dir["topics"].sort(key=lambda each: each["name"])
        assert server == broker


def test_versions_are_those_of_the_broker(source: Broker, served: str) -> None:
    """Each request that the server answers, it answers in all versions that the broker does."""
    found = []
    for address in (source.servers, served):
        with RawClient(address) as client:
            answer = client.ask(18, 4, **SOFTWARE)
            found.append({each["apiKey"]: each for each in answer["apiKeys"]})
    broker, server = found
    assert set(server) == {key for key, api in APIS.items() if not api.writes}
    for key, each in server.items():
        assert each == broker[key], key


def test_the_tables_are_those_of_kafka(kafka: Distribution) -> None:
    """`requests.txt` is what `scripts/kafka-requests` makes of the schemas in Kafka's client library."""
    (jar,) = (path for path in kafka.broker.split(":") if "kafka-clients-" in path)
    subprocess.run([ROOT / "scripts/kafka-requests", jar, "--check"], check=True)


@pytest.mark.parametrize("isolation", [UNCOMMITTED, COMMITTED])
def test_kafkas_consumer_reads_the_same(
    helper: Helper, source: Broker, served: str, isolation: str
) -> None:
    """Kafka's own consumer gets the same records, headers, timestamps and epochs from both."""
    broker, server = (Client(helper, address) for address in (source.servers, served))
    for topic in CONFIGS:
        expected = broker.consume_epochs(topic, isolation=isolation)
        assert server.consume_epochs(topic, isolation=isolation) == expected
        times = [record.timestamp for record, _ in expected if record.timestamp is not None][::50]
        assert server.offsets_for_times(topic, times) == broker.offsets_for_times(topic, times)
        specs = ["earliest", "latest", "max", *times[:3]]
        assert server.list_offsets(topic, specs, isolation=isolation) == broker.list_offsets(
            topic, specs, isolation=isolation
        )


def test_kafkas_tools(tools: Tools, source: Broker, served: str) -> None:
    """kafka-get-offsets prints the same for both."""

    def is_same(*options: str) -> bool:
        topics = ("--topic", "|".join(CONFIGS), *options)
        broker, server = (tools.offsets(each, *topics) for each in (source.servers, served))
        return sorted(server.split()) == sorted(broker.split())

    for options in ([], ["--time", "-2"], ["--time", "-3"]):
        # The server may not know yet what the broker has written last.
        wait_for(lambda options=options: is_same(*options))  # type: ignore[misc]


def test_new_records_arrive(helper: Helper, source: Broker, served: str) -> None:
    """A record that the broker appends reaches a client that waits at the server."""
    broker = Client(helper, source.servers)
    topic_id = broker.create_topic("arrivals")
    assert topic_id
    with RawClient(served) as client:
        asked = {"partition": 0, "fetchOffset": 0, "partitionMaxBytes": 1 << 20}
        while True:
            # The server may not know the new topic yet.
            client.send(
                FETCH,
                12,
                maxWaitMs=60_000,
                minBytes=1,
                topics=[{"topic": "arrivals", "partitions": [asked]}],
            )
            broker.produce("arrivals", [logfs.Record(b"x")])
            (partition,) = client.answer(FETCH, 12)["responses"][0]["partitions"]
            if partition["errorCode"] == 0:
                break
        assert b"x" in partition["records"]
