"""What clients of the server are promised: the bytes of the log, the offsets, and a server that survives them."""

from __future__ import annotations

import random
import re
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka import KafkaConsumer
from kafka import TopicPartition as KafkaPartition

import logfs
from logfs.errors import InvalidName, StoreClosed
from logfs.format.batches.batch import Batch
from logfs.format.messages.requests import API_VERSIONS, message_schema, versions_of
from logfs.server.apis import APIS
from tests.server.raw_client import (
    CLUSTER,
    EPOCHS,
    FETCH,
    LIST_OFFSETS,
    METADATA,
    PRODUCE,
    SOFTWARE,
    TOPICS,
    RawClient,
    fetched,
)
from tests.support.command_line import fails
from tests.support.partitions import flip
from tests.support.processes import wait_for
from tests.support.stores import fingerprint

if TYPE_CHECKING:
    from collections.abc import Iterator

    from logfs.log.read.log import Log

NOT_AUTHORIZED, NO_TRANSACTIONS = 29, 53
OUT_OF_RANGE, CORRUPT, UNKNOWN_TOPIC, NO_LEADER, INVALID_TOPIC = 1, 2, 3, 5, 17
UNSUPPORTED_VERSION, NO_SESSION, FENCED, UNKNOWN_EPOCH, UNKNOWN_ID = 35, 70, 74, 75, 100
LATEST, EARLIEST, MAX, LOCAL, TIERED = -1, -2, -3, -4, -5
SMALL = {"segment_bytes": 20_000, "index_interval_bytes": 200}


@pytest.fixture
def store(tmp_path: Path) -> Iterator[logfs.Store]:
    with logfs.open(tmp_path / "log", create=True) as store:
        yield store


@pytest.fixture
def server(store: logfs.Store) -> Iterator[logfs.Server]:
    with logfs.serve(store) as server:
        yield server


@pytest.fixture
def client(server: logfs.Server) -> Iterator[RawClient]:
    with RawClient(server.address) as client:
        yield client


def filled(store: logfs.Store, topic: str = "orders", batches: int = 300) -> bytes:
    """Make partition 0 of a topic with several segments, and return the bytes of all .log files."""
    store.create_topic(topic, 1, **SMALL)
    partition = store[f"{topic}-0"]
    rng = random.Random(7)
    for number in range(batches):
        partition.append_many([rng.randbytes(rng.randrange(200)) for _ in range(1 + number % 7)])
    return log_bytes(store._log(f"{topic}-0"))


def log_bytes(log: Log) -> bytes:
    return b"".join(path.read_bytes() for path in sorted(log.directory.glob("*.log")))


def all_bytes(client: RawClient, topic: str = "orders", **options: int) -> bytes:
    """Read a topic's partition 0 as a client does, whole batches at a time, to the high watermark."""
    found, offset = b"", 0
    while True:
        answer = fetched(client, topic, offset, **options)
        assert answer["errorCode"] == 0
        records, at = answer["records"], 0
        while at + 12 <= len(records):
            (size,) = struct.unpack_from(">i", records, at + 8)
            if at + 12 + size > len(records):
                break
            batch = Batch.parse(records[at : at + 12 + size])
            batch.check()
            offset = batch.header.next_offset
            at += 12 + size
        found += records[:at]
        if not at:
            assert offset == answer["highWatermark"]
            return found


@pytest.mark.parametrize("version", range(4, 13))
def test_a_fetch_has_the_bytes_of_the_segments(
    store: logfs.Store, client: RawClient, version: int
) -> None:
    """Whatever the limits of bytes are, the batches that a client gets are those of the files, byte for byte."""
    expected = filled(store)
    for partition_bytes in (1, 700, 5000, 1 << 20):
        assert all_bytes(client, version=version, partition_bytes=partition_bytes) == expected
    assert all_bytes(client, version=version, maxBytes=1000) == expected


def test_each_offset_gets_the_batch_that_holds_it(store: logfs.Store, client: RawClient) -> None:
    """An offset within a batch gets the whole batch, as from a broker."""
    filled(store)
    batches = {}
    for batch in store._log("orders-0").batches(0):
        for offset in range(batch.header.base_offset, batch.header.next_offset):
            batches[offset] = bytes(batch.data)
    for offset, data in batches.items():
        answer = fetched(client, "orders", offset, partition_bytes=1)
        assert answer["records"] == data
    end = len(batches)
    answer = fetched(client, "orders", end)
    assert (answer["errorCode"], answer["records"]) == (0, b"")
    for offset in (end + 1, -1):
        answer = fetched(client, "orders", offset)
        assert (answer["errorCode"], answer["highWatermark"]) == (OUT_OF_RANGE, -1)


def test_a_compacted_log_and_one_whose_start_was_deleted(
    store: logfs.Store, client: RawClient
) -> None:
    """Missing offsets get the next batch there is; offsets below the log start are out of range."""
    store.create_topic("table", 1, **SMALL, cleanup_policy="compact,delete")
    table = store["table-0"]
    for number in range(2000):
        table.append(b"v" * 50, key=b"%d" % (number % 50 if number % 3 else number))
    table.compact()
    held = [record.offset for record in table.read()]
    assert len(held) < 1000
    for offset in range(0, 2000, 7):
        batch = Batch.parse(fetched(client, "table", offset, partition_bytes=1)["records"])
        following = next(each for each in held if each >= offset)
        assert offset <= batch.header.last_offset
        assert batch.header.base_offset <= following <= batch.header.last_offset
    table.delete_records(1000)
    assert fetched(client, "table", 999)["errorCode"] == OUT_OF_RANGE
    assert fetched(client, "table", 1000)["logStartOffset"] == 1000


def test_read_committed(store: logfs.Store, client: RawClient) -> None:
    """A fetch ends at the last stable offset, and names the aborted transactions of what it has, in order."""
    store.create_topic("orders", 1)
    orders = store["orders-0"]
    orders.append("plain")
    with store.transaction("a") as transaction:
        transaction.append("orders-0", "aborted")
        transaction.abort()
    with store.transaction("b") as transaction:
        transaction.append("orders-0", "committed")
    with store.transaction("c") as transaction:
        transaction.append("orders-0", "open")
        orders.append("behind")
        answer = fetched(client, "orders", 0, isolationLevel=1)
        assert (answer["highWatermark"], answer["lastStableOffset"]) == (7, 5)
        last = Batch.parse(answer["records"], answer["records"].rindex(b"\0" * 7 + b"\4"))
        assert last.header.next_offset == 5
        (aborted,) = answer["abortedTransactions"]
        assert aborted["firstOffset"] == 1
        everything = fetched(client, "orders", 0)
        assert not everything["abortedTransactions"]
        assert len(everything["records"]) > len(answer["records"])
        behind = fetched(client, "orders", 3, isolationLevel=1)
        assert not behind["abortedTransactions"]
        (topic,) = client.ask(
            LIST_OFFSETS,
            8,
            isolationLevel=1,
            topics=[{"name": "orders", "partitions": [{"partitionIndex": 0, "timestamp": LATEST}]}],
        )["topics"]
        assert topic["partitions"][0]["offset"] == 5
    assert fetched(client, "orders", 0, isolationLevel=1)["lastStableOffset"] == 8


def test_a_client_that_waits_gets_a_record_at_once(
    store: logfs.Store, server: logfs.Server
) -> None:
    """A fetch at the end waits for `minBytes` or `maxWaitMs`, and ends with the append that it waited for."""
    store.create_topic("orders", 2)
    with RawClient(server.address) as client:
        client.send(FETCH, 12, **waiting_for("orders", 20_000))
        time.sleep(0.2)
        appended = time.monotonic()
        store["orders-1"].append("hello")
        answer = client.answer(FETCH, 12)
        # No limit of time is tested: the wait of 20 s has not ended.
        assert time.monotonic() - appended < 15
        first, second = answer["responses"][0]["partitions"]
        assert (first["records"], b"hello" in second["records"]) == (b"", True)
        began = time.monotonic()
        answer = client.ask(FETCH, 12, **waiting_for("orders", 300, (0, 1)))
        assert time.monotonic() - began >= 0.3
        assert all(not each["records"] for each in answer["responses"][0]["partitions"])


def waiting_for(
    topic: str, ms: int, offsets: tuple[int, int] = (0, 0), least: int = 1
) -> dict[str, object]:
    """Return the fields of a fetch of partitions 0 and 1 that waits."""
    partitions = [
        {"partition": number, "fetchOffset": offset, "partitionMaxBytes": 1 << 20}
        for number, offset in enumerate(offsets)
    ]
    topics = [{"topic": topic, "partitions": partitions}]
    return {"maxWaitMs": ms, "minBytes": least, "topics": topics}


def test_bytes_behind_the_last_stable_offset_end_no_wait(
    store: logfs.Store, server: logfs.Server
) -> None:
    """With read_committed, records of an open transaction do not count for `minBytes`; its end does."""
    store.create_topic("orders", 2)
    with RawClient(server.address) as client, store.transaction("t") as transaction:
        transaction.append("orders-0", "x")
        began = time.monotonic()
        answer = client.ask(FETCH, 12, isolationLevel=1, **waiting_for("orders", 300))
        assert time.monotonic() - began >= 0.3
        assert not answer["responses"][0]["partitions"][0]["records"]
        client.send(FETCH, 12, isolationLevel=1, **waiting_for("orders", 20_000))
        time.sleep(0.1)
        transaction.commit()
        assert client.answer(FETCH, 12)["responses"][0]["partitions"][0]["records"]


def test_closing_ends_a_wait(store: logfs.Store) -> None:
    """`close` does not wait for clients that wait."""
    store.create_topic("orders", 2)
    with logfs.serve(store) as server:
        client = RawClient(server.address)
        client.send(FETCH, 12, **waiting_for("orders", 200_000))
        time.sleep(0.2)
    with client, suppress(EOFError, ConnectionResetError):
        # The answer may come before the end.
        client.answer(FETCH, 12)
    assert not [each for each in threading.enumerate() if each.name.startswith("serve-")]


def test_topics_by_id(store: logfs.Store, client: RawClient) -> None:
    """From Fetch 13 and Metadata 10 on a topic has an id. One that is created again has another."""
    filled(store, batches=3)
    (topic,) = client.ask(METADATA, 13, topics=None)["topics"]
    assert topic["name"] == "orders"
    old = topic["topicId"]
    assert fetched(client, "", 0, version=13, topic_id=old)["records"]
    (named,) = client.ask(METADATA, 13, topics=[{"topicId": old, "name": None}])["topics"]
    assert named == topic
    store.topic("orders").delete()
    filled(store, batches=3)
    assert fetched(client, "", 0, version=13, topic_id=old)["errorCode"] == UNKNOWN_ID
    (topic,) = client.ask(METADATA, 13, topics=None)["topics"]
    assert topic["topicId"] != old
    assert fetched(client, "", 0, version=18, topic_id=topic["topicId"])["records"]
    (unknown,) = client.ask(METADATA, 12, topics=[{"topicId": old, "name": None}])["topics"]
    assert unknown["errorCode"] == UNKNOWN_ID


@pytest.mark.parametrize("version", range(14))
def test_metadata(
    store: logfs.Store, server: logfs.Server, client: RawClient, version: int
) -> None:
    """All topics or those that are asked for, the one node at the address that the client uses, and the errors."""
    filled(store, "orders", 3)
    store.create_topic("users", 2)
    answer = client.ask(METADATA, version, topics=[] if version == 0 else None)
    (node,) = answer["brokers"]
    assert f"{node['host']}:{node['port']}" == server.address
    assert [each["name"] for each in answer["topics"]] == ["orders", "users"]
    for partition in answer["topics"][1]["partitions"]:
        assert (partition["leaderId"], partition["errorCode"]) == (node["nodeId"], 0)
    asked = [{"name": name} for name in ("users", "nope", "bad/name", "")]
    answer = client.ask(METADATA, version, topics=asked)
    codes = [each["errorCode"] for each in answer["topics"]]
    assert codes == [0, UNKNOWN_TOPIC, INVALID_TOPIC, INVALID_TOPIC]
    if version:
        assert not client.ask(METADATA, version, topics=[])["topics"]


def test_partitions_that_other_brokers_have(tmp_path: Path) -> None:
    """On the disk of one broker of several, a topic's other partitions have no leader; its ids are the broker's."""
    with logfs.open(tmp_path / "log", create=True) as store:
        for number in (1, 3):
            store.create(f"orders-{number}").append("x")
    (tmp_path / "log" / "meta.properties").write_text(
        "version=1\ncluster.id=abc\nnode.id=7\ndirectory.id=x\n"
    )
    with (
        logfs.open(tmp_path / "log", "r") as store,
        logfs.serve(store) as server,
        RawClient(server.address) as client,
    ):
        (topic,) = client.ask(METADATA, 12, topics=None)["topics"]
        leaders = [each["leaderId"] for each in topic["partitions"]]
        codes = [each["errorCode"] for each in topic["partitions"]]
        assert (leaders, codes) == ([-1, 7, -1, 7], [NO_LEADER, 0, NO_LEADER, 0])
        assert client.ask(CLUSTER, 1)["clusterId"] == "abc"
        assert fetched(client, "orders", 0, partition=0)["errorCode"] == UNKNOWN_TOPIC
        assert fetched(client, "orders", 0, partition=3)["records"]


def test_pages_of_partitions(store: logfs.Store, client: RawClient) -> None:
    """DescribeTopicPartitions goes on at its cursor."""
    for name, partitions in {"a": 3, "b": 2, "c": 4}.items():
        store.create_topic(name, partitions)
    found, cursor = [], None
    for _ in range(20):
        answer = client.ask(TOPICS, 0, responsePartitionLimit=2, cursor=cursor)
        for topic in answer["topics"]:
            found += [(topic["name"], each["partitionIndex"]) for each in topic["partitions"]]
        cursor = answer["nextCursor"]
        if cursor is None:
            break
    assert found == [
        *(("a", n) for n in range(3)),
        ("b", 0),
        ("b", 1),
        *(("c", n) for n in range(4)),
    ]
    answer = client.ask(TOPICS, 0, topics=[{"name": "nope"}], responsePartitionLimit=9)
    assert answer["topics"][0]["errorCode"] == UNKNOWN_TOPIC


@pytest.mark.parametrize("version", range(1, 12))
def test_offsets_by_time(store: logfs.Store, client: RawClient, version: int) -> None:
    """Times get the first offset that is not earlier; the special times get the ends and the greatest time."""
    store.create_topic("orders", 1, message_timestamp_after_max_ms=1 << 60)
    orders = store["orders-0"]
    for time_ms in (1000, 3000, 2000, 4000):
        orders.append("x", timestamp=time_ms)

    def offset(time_ms: int) -> tuple[int, int]:
        partitions = [{"partitionIndex": 0, "timestamp": time_ms}]
        answer = client.ask(
            LIST_OFFSETS, version, topics=[{"name": "orders", "partitions": partitions}]
        )
        found = answer["topics"][0]["partitions"][0]
        assert found["errorCode"] == 0
        return found["offset"], found["timestamp"]

    assert [offset(ms) for ms in (0, 1000, 1500, 3500)] == [
        (0, 1000),
        (0, 1000),
        (1, 3000),
        (3, 4000),
    ]
    assert offset(4001) == (-1, -1)
    assert [offset(ms) for ms in (EARLIEST, LATEST, MAX, LOCAL, TIERED)] == [
        (0, -1),
        (4, -1),
        (3, 4000),
        (0, -1),
        (-1, -1),
    ]


def test_leader_epochs(store: logfs.Store, client: RawClient) -> None:
    """A client that believes in another leader epoch is told so; the end of an epoch is answered as by a leader."""
    filled(store, batches=2)
    log = store._log("orders-0")
    end = log.log_end_offset
    log.epochs.assign(4, 3)
    assert fetched(client, "orders", 0, epoch=4)["errorCode"] == 0
    assert fetched(client, "orders", 0, epoch=0)["errorCode"] == FENCED
    assert fetched(client, "orders", 0, epoch=5)["errorCode"] == UNKNOWN_EPOCH

    def epoch_end(epoch: int) -> tuple[int, int]:
        partitions = [{"partition": 0, "leaderEpoch": epoch}]
        answer = client.ask(EPOCHS, 4, topics=[{"topic": "orders", "partitions": partitions}])
        found = answer["topics"][0]["partitions"][0]
        return found["leaderEpoch"], found["endOffset"]

    assert [epoch_end(each) for each in (0, 2, 4, 5)] == [(0, 3), (0, 3), (4, end), (-1, -1)]


def test_damage(store: logfs.Store, tmp_path: Path) -> None:
    """A batch whose length is damaged is told as corrupt; the batches before it and behind it can be read."""
    filled(store, batches=10)
    batches = list(store._log("orders-0").batches(0))
    store.close()
    at = sum(len(batch.data) for batch in batches[:5])
    flip(next((tmp_path / "log/orders-0").glob("*.log")), at + 8)
    with (
        logfs.open(tmp_path / "log", "r") as store,
        logfs.serve(store) as server,
        RawClient(server.address) as client,
    ):
        damaged = batches[5].header.base_offset
        assert fetched(client, "orders", damaged, partition_bytes=1)["errorCode"] == CORRUPT
        for number in (4, 6):
            answer = fetched(
                client, "orders", batches[number].header.base_offset, partition_bytes=1
            )
            assert answer["records"] == bytes(batches[number].data)


def test_every_request_that_is_advertised_is_answered(
    store: logfs.Store, client: RawClient
) -> None:
    """Each version of each request gets an answer of that version, and nothing else is advertised."""
    filled(store, batches=1)
    found = client.ask(API_VERSIONS, 4, **SOFTWARE)["apiKeys"]
    assert {each["apiKey"] for each in found} == set(APIS)
    for each in found:
        known = versions_of(each["apiKey"])
        assert each["maxVersion"] == known.highest
        for version in range(known.lowest, known.highest + 1):
            client.ask(each["apiKey"], version, **{"acks": 1} if each["apiKey"] == PRODUCE else {})


@pytest.mark.parametrize("version", range(3, 14))
def test_a_read_only_store(store: logfs.Store, tmp_path: Path, version: int) -> None:
    """What writes is not advertised, but Produce, without which librdkafka fetches nothing: it gets a reason."""
    filled(store, batches=1)
    batch = bytes(next(store._log("orders-0").batches(0)).data)
    topic = {"name": "orders", "partitionData": [{"index": 0, "records": batch}]}
    with (
        logfs.open(tmp_path / "log", "r") as reader,
        logfs.serve(reader) as server,
        RawClient(server.address) as client,
    ):
        answer = client.ask(PRODUCE, version, acks=-1, topicData=[topic])
        (partition,) = answer["responses"][0]["partitionResponses"]
        assert (partition["errorCode"], partition["baseOffset"]) == (NOT_AUTHORIZED, -1)
        if version >= 8:
            assert "read-only" in partition["errorMessage"]
        found = {each["apiKey"] for each in client.ask(API_VERSIONS, 4, **SOFTWARE)["apiKeys"]}
        assert found == {key for key, api in APIS.items() if not api.writes}
        client.send(PRODUCE, version, acks=0, topicData=[topic])
        with pytest.raises((EOFError, ConnectionResetError)):
            client.received()
    assert store._log("orders-0").log_end_offset == 1


def test_batches_without_an_answer(store: logfs.Store, client: RawClient) -> None:
    """With acks=0 a batch is appended, no answer is sent, and a wrong batch ends the connection."""
    filled(store, batches=1)
    batch = bytes(next(store._log("orders-0").batches(0)).data)
    topic = {"name": "orders", "partitionData": [{"index": 0, "records": batch}]}
    for _ in range(3):
        client.send(PRODUCE, 9, acks=0, topicData=[topic])
    assert client.ask(CLUSTER, 0)["brokers"]
    assert store._log("orders-0").log_end_offset == 4
    client.send(PRODUCE, 9, acks=0, topicData=[{**topic, "name": "nope"}])
    with pytest.raises((EOFError, ConnectionResetError)):
        client.received()


def test_transactions_are_refused(store: logfs.Store, client: RawClient) -> None:
    """A transactional producer is told at once that it cannot work."""
    assert client.ask(22, 5, transactionalId="t")["errorCode"] == NO_TRANSACTIONS
    found = [client.ask(22, 5, transactionalId=None)["producerId"] for _ in range(50)]
    assert len(set(found)) == 50


def test_an_unknown_version_of_api_versions(client: RawClient) -> None:
    """The answer has version 0: the error, and the list from which the client takes a version that is known."""
    client.send_frame(struct.pack(">hhih", API_VERSIONS, 99, 1, -1) + b"\0\0")
    data = client.received()
    answer = message_schema("response", API_VERSIONS, 0).parse_body(data, 0, 4).fields
    assert answer["errorCode"] == UNSUPPORTED_VERSION
    assert {each["apiKey"] for each in answer["apiKeys"]} == set(APIS)


def test_fetch_sessions_are_refused(store: logfs.Store, client: RawClient) -> None:
    """Each answer has the session id 0, and a request with another id is refused."""
    filled(store, batches=1)
    assert client.ask(FETCH, 12, sessionEpoch=0)["sessionId"] == 0
    assert client.ask(FETCH, 12, sessionId=5, sessionEpoch=1)["errorCode"] == NO_SESSION


@settings(max_examples=60)
@given(
    frame=st.binary(max_size=200)
    | st.builds(
        lambda key, version, rest: struct.pack(">hhih", key, version, 1, -1) + rest,
        st.sampled_from(sorted(APIS)),
        st.integers(-2, 20),
        st.binary(max_size=120),
    ),
    is_begun=st.booleans(),
)
def test_malformed_requests_end_their_connection_only(
    malformed: tuple[logfs.Server, RawClient], frame: bytes, is_begun: bool
) -> None:
    """Whatever a client sends, it gets an answer or the end of its connection; other clients are answered."""
    server, other = malformed
    with RawClient(server.address) as client:
        if is_begun:
            client.socket.sendall(struct.pack(">i", len(frame) + 1) + frame)
            client.socket.shutdown(socket.SHUT_WR)
        else:
            client.send_frame(frame)
            client.send_frame(b"")
        try:
            while True:
                client.received()
        except (EOFError, ConnectionResetError):
            pass
    assert other.ask(METADATA, 9, topics=None)["topics"]


@pytest.fixture(scope="module")
def malformed(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[tuple[logfs.Server, RawClient]]:
    with (
        logfs.open(tmp_path_factory.mktemp("malformed") / "log", create=True) as store,
        logfs.serve(store) as server,
        RawClient(server.address) as client,
    ):
        filled(store, batches=5)
        yield server, client


@pytest.mark.parametrize("size", [-1, (100 << 20) + 1, (1 << 31) - 1])
def test_a_wrong_length_ends_the_connection(client: RawClient, size: int) -> None:
    """A request that is too long is refused before any of it is read."""
    client.socket.sendall(struct.pack(">i", size))
    with pytest.raises((EOFError, ConnectionResetError)):
        client.received()


def test_many_clients_at_once(store: logfs.Store, server: logfs.Server) -> None:
    """Two hundred connections each get their own answers, in the order of their requests."""
    expected = filled(store, batches=20)
    clients = [RawClient(server.address) for _ in range(200)]
    for number, client in enumerate(clients):
        client.send(METADATA, 9, topics=[{"name": "orders"}])
        client.send(FETCH, 12, **waiting_for("orders", 0, (number % 5, 0)))
        client.send(CLUSTER, 0)
    for client in clients:
        assert client.answer(METADATA, 9)["topics"][0]["name"] == "orders"
        first = client.answer(FETCH, 12)["responses"][0]["partitions"][0]
        assert expected.endswith(first["records"])
        assert client.answer(CLUSTER, 0)["brokers"]
        client.socket.close()


def test_beside_a_program_that_writes(tmp_path: Path) -> None:
    """`logfs serve` changes nothing, and clients see what another process appends, and the topics that it makes."""
    log_dir = tmp_path / "log"
    with logfs.open(log_dir, create=True) as store:
        store.create_topic("orders", 1)
        store["orders-0"].append("first")
        process = subprocess.Popen(
            [sys.executable, "-m", "logfs", "serve", "--listen", "0", log_dir],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            assert process.stdout is not None
            name, _, address = process.stdout.readline().strip().partition("=")
            assert name == "bootstrap.servers"
            consumer = KafkaConsumer(
                bootstrap_servers=address, auto_offset_reset="earliest", consumer_timeout_ms=60_000
            )
            consumer.assign([KafkaPartition("orders", 0)])
            consumer.seek(KafkaPartition("orders", 0), 0)
            assert next(consumer).value == b"first"
            for number in range(20):
                store["orders-0"].append(f"record {number}")
                assert next(consumer).value == b"record %d" % number
            store.create_topic("users", 3)
            wait_for(lambda: "users" in consumer.topics())
            consumer.close()
            before = fingerprint(log_dir)
            with RawClient(address) as client:
                assert client.ask(API_VERSIONS, 3, **SOFTWARE)["apiKeys"]
                assert fetched(client, "orders", 0)["records"]
            assert fingerprint(log_dir) == before
        finally:
            process.send_signal(signal.SIGTERM)
            _, told = process.communicate(timeout=60)
        assert (process.returncode, told) == (0, "")


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "localhost", ""])
def test_only_the_loopback_interface(store: logfs.Store, host: str) -> None:
    """Clients are not authenticated yet, so no other address is listened on."""
    with pytest.raises(InvalidName, match="loopback"):
        logfs.serve(store, host)


def test_an_address_in_use(store: logfs.Store, server: logfs.Server, tmp_path: Path) -> None:
    """The error names the address; the command ends with 1."""
    port = int(server.address.rpartition(":")[2])
    with pytest.raises(OSError, match="in use") as raised:
        logfs.serve(store, port=port)
    assert server.address in str(raised.value)
    assert f"127.0.0.1:{port}" in fails("serve", "--listen", str(port), tmp_path / "log")


def test_a_closed_store(tmp_path: Path) -> None:
    store = logfs.open(tmp_path / "log", create=True)
    store.close()
    with pytest.raises(StoreClosed):
        logfs.serve(store)


def test_ipv6(store: logfs.Store) -> None:
    """The address of the loopback interface may be the one of IPv6."""
    filled(store, batches=1)
    with logfs.serve(store, "::1") as server, RawClient(server.address) as client:
        (node,) = client.ask(METADATA, 9, topics=None)["brokers"]
        assert (f"[{node['host']}]:{node['port']}", node["host"]) == (server.address, "::1")


def test_the_example_of_the_guide(tmp_path: Path) -> None:
    """The Python of docs/serve.md runs as it stands."""
    guide = (Path(__file__).parents[2] / "docs/serve.md").read_text()
    (example,) = re.findall(r"```python\n(.*?)```", guide, re.DOTALL)
    done = subprocess.run(
        [sys.executable, "-c", example], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout) == (0, "b'hello'\n"), done.stderr
