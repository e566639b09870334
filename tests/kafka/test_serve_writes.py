"""A server of an own log beside a broker: the same writes get the same answers, and leave the same logs."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pytest

import logfs
from logfs.format.batches.batch import reseal
from logfs.format.batches.compression import Codec
from logfs.format.batches.record import Record
from logfs.setting import TOPIC_SETTINGS
from tests.kafka.client import Client
from tests.kafka.story import batch
from tests.server.raw_client import PRODUCE, RawClient
from tests.support.stores import assert_clean

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from tests.kafka.broker import Broker
    from tests.kafka.helper import Helper
    from tests.kafka.tools import Tools

CREATE, DELETE, DELETE_RECORDS, PRODUCER_ID, DESCRIBE, ALTER, GROW, CHANGE = (
    19,
    20,
    21,
    22,
    32,
    33,
    37,
    44,
)
T = 1_790_000_000_000
# Fields that differ in any two servers, or in the texts of errors.
OWN = {"errorMessage", "throttleTimeMs", "topicId", "batchIndexErrorMessage", "recordErrors"}
TOPIC, BROKER = 2, 4
SET, REMOVE, APPEND, SUBTRACT = range(4)
# The settings of which both have the same default here.
SHARED = {name for name in TOPIC_SETTINGS if not name.startswith("logfs.")} - {
    "message.downconversion.enable",
    "message.format.version",
    "message.timestamp.difference.max.ms",
    "min.insync.replicas",
    "retention.ms",
}
TOPICS: dict[str, dict[str, str]] = {
    "plain": {},
    "compacted": {"cleanup.policy": "compact"},
    "stamped": {"message.timestamp.type": "LogAppendTime"},
    "small": {"max.message.bytes": "500"},
    "recompressed": {"compression.type": "gzip"},
    "narrow": {"message.timestamp.before.max.ms": "1000"},
}


class Pair:
    """A broker and a server of an own log. Each request goes to both; `ask` returns both answers."""

    def __init__(self, broker: RawClient, server: RawClient, log_dirs: tuple[Path, Path]) -> None:
        self.broker = broker
        self.server = server
        self.log_dirs = log_dirs

    def ask(self, key: int, version: int, **fields: object) -> tuple[Any, Any]:
        found = [
            comparable(each.ask(key, version, **fields)) for each in (self.broker, self.server)
        ]
        return found[0], found[1]

    def same(self, key: int, version: int, **fields: object) -> Mapping[str, Any]:
        """Send a request to both, assert that the answers are equal, and return one."""
        broker, server = self.ask(key, version, **fields)
        assert server == broker, fields
        answer: Mapping[str, Any] = server
        return answer


def comparable(found: Any) -> Any:
    if isinstance(found, dict):
        shown = {name: comparable(value) for name, value in found.items() if name not in OWN}
        if shown.get("configs"):
            known = {each["name"]: each for each in shown["configs"] if each["name"] in SHARED}
            shown["configs"] = [known[name] for name in sorted(known)]
        return shown
    return [comparable(each) for each in found] if isinstance(found, list) else found


@pytest.fixture(scope="module")
def pair(
    make_broker: Callable[..., Broker], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Pair]:
    broker = make_broker()
    log_dir = tmp_path_factory.mktemp("served") / "log"
    with (
        logfs.open(log_dir, create=True) as store,
        logfs.serve(store) as server,
        RawClient(broker.servers) as first,
        RawClient(server.address) as second,
    ):
        pair = Pair(first, second, (broker.log_dir, log_dir))
        for name, configs in TOPICS.items():
            pair.same(CREATE, 7, topics=[new_topic(name, configs)], timeoutMs=30_000)
        yield pair
    assert_clean(log_dir)


def new_topic(name: str, configs: Mapping[str, str], partitions: int = 1) -> dict[str, object]:
    rows = [{"name": key, "value": value} for key, value in configs.items()]
    return {"name": name, "numPartitions": partitions, "replicationFactor": 1, "configs": rows}


def random_batch(rng: random.Random, sent: dict[int, int]) -> bytes:
    """Return a batch as a client may send it, or one that is wrong. `sent` has the next sequence by producer."""
    records = [
        Record(
            rng.choice([None, b"", rng.randbytes(rng.randrange(90))]),
            rng.choice([None, b"k%d" % rng.randrange(5)]),
            rng.choice([(), [("h", b"1")]]),
            T + rng.choice([0, 1, 5, -2000 if rng.random() < 0.1 else 2]),
        )
        for _ in range(rng.randrange(1, 6))
    ]
    options: dict[str, Any] = {"codec": rng.choice(list(Codec))}
    if rng.random() < 0.4:
        producer = rng.choice([7001, 7002])
        at = sent.get(producer, 0)
        wrong = rng.random() < 0.2
        options |= {
            "producer": producer,
            "epoch": 0,
            "sequence": max(at + rng.choice([-3, 4]), 0) if wrong else at,
        }
        if not wrong:
            sent[producer] = at + len(records)
    data = bytearray(batch(records, **options))
    kind = rng.random()
    if kind < 0.04:
        data[rng.randrange(17, len(data))] ^= 1  # a wrong CRC
    elif kind < 0.08:
        data[16] = rng.choice([0, 1, 3])  # another magic
    elif kind < 0.1:
        data = data * 2  # two batches
    elif kind < 0.12:
        data[57:61] = (len(records) + 1).to_bytes(4, "big")  # a wrong count
        reseal(memoryview(data))
    return bytes(data)


@pytest.mark.parametrize("version", range(3, 13))
def test_batches_are_taken_and_refused_as_by_a_broker(pair: Pair, version: int) -> None:
    """Random batches, right and wrong ones, get the same answers, and the logs have the same bytes."""
    rng = random.Random(version)
    sent: dict[str, dict[int, int]] = {}
    for _ in range(60):
        name = rng.choice(list(TOPICS))
        data = random_batch(rng, sent.setdefault(name, {}))
        topic = {"name": name, "partitionData": [{"index": 0, "records": data}]}
        found = pair.ask(
            PRODUCE, version, acks=rng.choice([1, -1]), timeoutMs=5000, topicData=[topic]
        )
        for answer in found:
            (partition,) = answer["responses"][0]["partitionResponses"]
            if name == "stamped" and not partition["errorCode"]:
                assert partition.pop("logAppendTimeMs") > T
        assert found[0] == found[1], (name, data.hex())
    for name in TOPICS:
        broker, server = (logs_of(each / f"{name}-0") for each in pair.log_dirs)
        # The times of appends differ, and two libraries compress differently.
        if name not in ("stamped", "recompressed"):
            assert server == broker, name
    logs = []
    for log_dir in pair.log_dirs:
        with logfs.open(log_dir, "r") as store:
            records = store["recompressed-0"].read()
            stamped = [(each.key, each.value, each.headers) for each in store["stamped-0"].read()]
            logs.append(([*records], stamped))
    assert logs[0] == logs[1]


def logs_of(directory: Path) -> bytes:
    """Return the bytes of all .log files of a partition, up to preallocated zeros."""
    return b"".join(path.read_bytes() for path in sorted(directory.glob("*.log")))


@pytest.mark.parametrize("version", range(2, 8))
def test_topics_are_made_and_refused_as_by_a_broker(pair: Pair, version: int) -> None:
    """Names, numbers, replicas and settings, right and wrong, get the same answers; then the topics are deleted."""
    node = 1
    cases: list[dict[str, object]] = [
        new_topic(f"new-{version}", {"retention.ms": "1000"}, 3),
        new_topic(f"default-{version}", {}, -1) | {"replicationFactor": -1},
        new_topic("plain", {}),
        new_topic("bad name", {}),
        new_topic("x" * 250, {}),
        new_topic("", {}),
        new_topic("none", {}, 0),
        new_topic("many", {}, -5),
        new_topic("three", {}) | {"replicationFactor": 3},
        new_topic("zero", {}) | {"replicationFactor": 0},
        new_topic("odd", {"nope": "1"}),
        new_topic("wrong", {"retention.ms": "x"}),
        new_topic("range", {"segment.bytes": "-1"}),
        placed(f"placed-{version}", [[node], [node]]),
        placed("elsewhere", [[77]]),
        placed("doubled", [[node]]) | {"numPartitions": 1},
    ]
    for case in cases:
        for validate in (True, False):
            pair.same(CREATE, version, topics=[case], timeoutMs=30_000, validateOnly=validate)
    pair.same(CREATE, version, topics=[cases[0], cases[0]], timeoutMs=30_000)
    for name in (f"new-{version}", f"placed-{version}", f"new-{version}", "nope"):
        grow = {"name": name, "count": 5, "assignments": None}
        pair.same(GROW, min(version, 3), topics=[grow], timeoutMs=30_000)
    named = [f"new-{version}", f"default-{version}", f"placed-{version}", "nope"]
    for name in named:
        if version < 6:
            pair.same(DELETE, version, topicNames=[name], timeoutMs=30_000)
        else:
            pair.same(DELETE, 6, topics=[{"name": name}], timeoutMs=30_000)


def placed(name: str, replicas: list[list[int]]) -> dict[str, object]:
    rows = [{"partitionIndex": number, "brokerIds": nodes} for number, nodes in enumerate(replicas)]
    return new_topic(name, {}, -1) | {"replicationFactor": -1, "assignments": rows}


@pytest.mark.parametrize("version", range(3))
def test_records_are_deleted_as_by_a_broker(pair: Pair, version: int) -> None:
    name = f"trimmed-{version}"
    pair.same(CREATE, 7, topics=[new_topic(name, {})], timeoutMs=30_000)
    topic = {"name": name, "partitionData": [{"index": 0, "records": batch([Record(b"x")] * 9)}]}
    pair.ask(PRODUCE, 9, acks=-1, timeoutMs=5000, topicData=[topic])
    for offset in (0, 3, 2, -1, 10, -2):
        for target in (name, "compacted", "nope"):
            partitions = [{"partitionIndex": 0, "offset": offset}]
            pair.ask(
                DELETE_RECORDS,
                version,
                topics=[{"name": target, "partitions": partitions}],
                timeoutMs=30_000,
            )
            broker, server = pair.ask(
                DELETE_RECORDS,
                version,
                topics=[{"name": target, "partitions": partitions}],
                timeoutMs=30_000,
            )
            assert server == broker, (target, offset)


@pytest.mark.parametrize("version", range(1, 5))
def test_settings_are_described_and_changed_as_by_a_broker(pair: Pair, version: int) -> None:
    """Values, sources, synonyms and types; changes by both requests, right and wrong ones."""
    name = f"settings-{version}"
    pair.same(CREATE, 7, topics=[new_topic(name, {"segment.bytes": "2000000"})], timeoutMs=30_000)

    def describe(**options: object) -> None:
        for resource, kind in ((name, TOPIC), ("nope", TOPIC), ("bad name", TOPIC), (name, 77)):
            asked = {"resourceType": kind, "resourceName": resource, **options}
            for synonyms in (False, True):
                pair.same(DESCRIBE, version, resources=[asked], includeSynonyms=synonyms)

    def change(operation: int, setting: str, value: str | None, resource: str = name) -> None:
        row = {"name": setting, "configOperation": operation, "value": value}
        asked = {"resourceType": TOPIC, "resourceName": resource, "configs": [row]}
        for validate in (True, False):
            pair.same(CHANGE, min(version - 1, 1), resources=[asked], validateOnly=validate)

    describe(configurationKeys=None)
    describe(configurationKeys=["segment.bytes", "cleanup.policy", "nope"])
    change(SET, "max.message.bytes", "70000")
    change(SET, "max.message.bytes", "x")
    change(SET, "nope", "1")
    change(SET, "max.message.bytes", "1", "nope")
    change(APPEND, "cleanup.policy", "compact")
    change(APPEND, "cleanup.policy", "compact")
    change(SUBTRACT, "cleanup.policy", "delete")
    change(APPEND, "max.message.bytes", "1")
    change(REMOVE, "segment.bytes", None)
    change(REMOVE, "segment.bytes", None)
    describe(configurationKeys=None)
    asked = {
        "resourceType": TOPIC,
        "resourceName": name,
        "configs": [{"name": "retention.bytes", "value": "5000"}],
    }
    pair.same(ALTER, min(version - 1, 2), resources=[asked])
    describe(configurationKeys=None)


@pytest.fixture(scope="module")
def own(helper: Helper, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    """Kafka's own clients for a server of an own log."""
    log_dir = tmp_path_factory.mktemp("own") / "log"
    with logfs.open(log_dir, create=True) as store, logfs.serve(store) as server:
        yield Client(helper, server.address)
    assert_clean(log_dir)


def test_kafkas_clients_write_and_administer(own: Client) -> None:
    """Kafka's Admin, its idempotent producer with each codec, and its consumer work with a server alone."""
    topic_id = own.create_topic("mine", 2, segment_ms=100_000)
    assert own.topic_ids() == {"mine": topic_id}
    assert own.topic_settings("mine") == {"segment.ms": "100000"}
    expected = []
    for codec in ("none", "gzip", "snappy", "lz4", "zstd"):
        batches = [[Record(b"%d" % n, b"k", [("h", None)], T + n) for n in range(50)]] * 3
        own.produce("mine", *batches, partition=1, compression_type=codec, acks="all")
        own.produce("mine", *batches, partition=1, acks=1, enable_idempotence=False)
        expected += [record.value for batch in [*batches, *batches] for record in batch]
    assert [record.value for record in own.consume("mine", 1)] == expected
    own.grow_topic("mine", 3)
    own.alter_topic("mine", segment_ms=None, retention_bytes=10**9)
    assert own.topic_settings("mine") == {"retention.bytes": str(10**9)}
    assert own.delete_records("mine", 7, 1) == 7
    assert own.consume("mine", 1)[0].offset == 7
    own.delete_topic("mine")
    assert not own.topic_ids()


def test_kafkas_tools_describe(own: Client, tools: Tools) -> None:
    """kafka-topics works; the settings of the broker level are told."""
    own.create_topic("shown", 2)
    # The tool ends its process in a way that the helper takes for an error, so the code is not looked at.
    main, server = "TopicCommand", ("--bootstrap-server", own.servers)
    shown = tools.run(main, *server, "--describe", "--topic", "shown").out
    assert "PartitionCount: 2" in shown
    assert "Leader: 1" in shown
    assert tools.run(main, *server, "--list").out.split() == ["shown"]
    assert '"partition":"shown-1"' in tools.run("LogDirsCommand", *server, "--describe").out
    broker = {"resourceType": BROKER, "resourceName": "1", "configurationKeys": None}
    with RawClient(own.servers) as client:
        (found,) = client.ask(DESCRIBE, 4, resources=[broker])["results"]
    assert {"log.retention.hours": "168"}.items() <= {
        each["name"]: each["value"] for each in found["configs"]
    }.items()
