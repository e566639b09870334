"""Tests of the test tools: a release of Kafka starts, serves clients, stops, is killed and starts again."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from logfs.format.batches.record import Record
from tests.kafka.helper import KafkaError

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.kafka.broker import Broker
    from tests.kafka.client import Client
    from tests.kafka.tools import Tools

T = 1_700_000_000_000


def test_records_go_through_kafka_unchanged(client: Client) -> None:
    """Null and empty keys, values and header values are distinguished, and all bytes are read back unchanged."""
    client.create_topic("through")
    records = [
        Record(b"", None, [], T),
        Record(None, b"", [("n", None), ("e", b""), ("n", bytes(range(256)))], T - 5),
        Record(bytes(range(256)), b"k", [], T + 5),
    ]
    assert [sent.offset for sent in client.produce("through", records[:2], records[2:])] == [
        0,
        1,
        2,
    ]
    found = client.consume_epochs("through")
    assert [(r.value, r.key, list(r.headers), r.timestamp) for r, _ in found] == [
        (r.value, r.key, list(r.headers), r.timestamp) for r in records
    ]
    assert [(r.offset, epoch) for r, epoch in found] == [(0, 0), (1, 0), (2, 0)]
    assert client.list_offsets("through", ["earliest", "latest", "max", T + 1, T + 6]) == [
        (0, -1, 0),
        (3, -1, 0),
        (2, T + 5, 0),
        (2, T + 5, 0),
        None,
    ]
    assert client.offsets_for_times("through", [T + 1, T + 6]) == [(2, T + 5, 0), None]


def test_transactions_commit_and_abort(client: Client) -> None:
    """With read_committed only committed records are read, not those of aborted and abandoned transactions."""
    client.create_topic("transactions")
    one = client.producer(transactional_id="one")
    two = client.producer(transactional_id="two")
    for producer, end in ((one, one.commit), (two, two.abort)):
        producer.begin()
        producer.send("transactions", [Record(producer.name.encode())])
        end()
    one.begin()
    one.send("transactions", [Record(b"open")])
    one.send_offsets("billing", ("transactions", 0, 1))
    assert len(client.consume("transactions")) == 3
    (kept,) = client.consume("transactions", isolation="read_committed")
    assert kept.value == one.name.encode()
    one.close(abandon=True)
    two.close()


def test_groups_are_seen_by_the_tool(client: Client, tools: Tools) -> None:
    """kafka-consumer-groups lists groups with and without members, and prints the offsets that members committed."""
    client.create_topic("grouped", 2)
    client.produce("grouped", [Record(b"a"), Record(b"b")], partition=1)
    client.commit("loose", ("grouped", 1, 1, "half"))
    assert client.committed("loose") == [("grouped", 1, 1, None, "half")]
    for protocol in ("classic", "consumer"):
        assert client.join(f"member-{protocol}", ["grouped"], 2, protocol) == 2
        printed = tools.groups(
            client.servers, "--describe", "--group", f"member-{protocol}", "--offsets"
        )
        (row,) = [line.split() for line in printed.splitlines() if " 1 " in line]
        assert row[1:6] == ["grouped", "1", "2", "2", "0"]
    assert "loose" in tools.groups(client.servers, "--list").split()


def test_errors_come_with_their_names(client: Client, tools: Tools) -> None:
    """An exception of Kafka is a `KafkaError` with its name, and a tool that fails has exit code 1."""
    with pytest.raises(KafkaError) as caught:
        client.create_topic("no such/name")
    assert caught.value.name == "InvalidTopicException"
    assert tools.run("DumpLogSegments").code == 1


def test_a_broker_stops_dies_and_comes_back(
    make_broker: Callable[..., Broker], connect: Callable[[Broker], Client], tools: Tools
) -> None:
    """Records survive a clean stop and a SIGKILL. The broker keeps its ports, and recovers only after the SIGKILL."""
    broker = make_broker()
    assert broker.process is not None
    client = connect(broker)
    client.create_topic("kept")
    client.produce("kept", [Record(b"one", timestamp=T)])
    broker.restart()
    assert "Skipping recovery" in broker.log()
    client.produce("kept", [Record(b"two", timestamp=T)])
    pid = broker.process.pid
    broker.kill()
    assert not os.path.exists(f"/proc/{pid}")
    broker.start()
    assert "Recovering" in broker.log_of("kept-0")
    assert [record.value for record in client.consume("kept")] == [b"one", b"two"]
    dumped = tools.dump(broker.partition("kept-0") / f"{0:020}.log", options="--print-data-log")
    assert dumped.code == 0
    assert dumped.out.count("isvalid: true") == 2
    assert "payload: one" in dumped.out
