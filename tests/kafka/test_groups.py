"""Consumer groups: Kafka sees the offsets committed through files, and files show the commits of its consumers."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import orjson
import pytest

import logfs
from logfs.format.messages.group_record import key_view, parse_key, parse_value, value_view
from logfs.store.groups import TOPIC
from logfs.store.store import Store
from tests.support.command_line import ok
from tests.support.processes import wait_for
from tests.support.stores import assert_clean

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.kafka.broker import Broker
    from tests.kafka.client import Client
    from tests.kafka.tools import Tools
    from tests.support.mounts import Mount

MEMBERS = [f"member-{protocol}" for protocol in ("classic", "consumer")]


@pytest.fixture(scope="module")
def busy(client: Client) -> Client:
    """The clients of a broker with two partitions, in which groups of every kind have committed offsets."""
    client.create_topic("orders", 2)
    for partition in (0, 1):
        client.produce("orders", [logfs.Record(b"%d" % n) for n in range(10)], partition=partition)
    client.commit("loose", ("orders", 0, 3, "half"), ("orders", 1, 10))
    client.commit("a/b", ("orders", 0, 1))
    for number in range(30):
        client.commit(
            f"group-{number}", ("orders", 0, number % 10), ("orders", 0, (number + 1) % 10)
        )
    for group, protocol in zip(MEMBERS, ("classic", "consumer"), strict=True):
        assert client.join(group, ["orders"], 20, protocol) == 20
    producer = client.producer(transactional_id="groups")
    for group, end in (("committed", producer.commit), ("aborted", producer.abort)):
        producer.begin()
        producer.send_offsets(group, ("orders", 1, 4))
        end()
    producer.begin()
    producer.send_offsets("open", ("orders", 1, 5))
    producer.close(abandon=True)
    return client


def kafkas(client: Client, tools: Tools) -> dict[tuple[str, str, int], int]:
    """Return the committed offsets of all groups, as Kafka reports them."""
    names = tools.groups(client.servers, "--list").split()
    return {
        (group, commit.topic, commit.partition): commit.offset
        for group in names
        for commit in client.committed(group)
        if commit.offset >= 0
    }


def ours(log_dir: Path) -> dict[tuple[str, str, int], int]:
    """Return the committed offsets of all groups, as logfs reads them from the log directory."""
    with Store(log_dir, read_only=True) as store:
        return {(group, *where): commit.offset for group, where, commit in store.groups}


def test_committed_offsets_are_equal(busy: Client, broker: Broker, tools: Tools) -> None:
    """On a running broker's directory, logfs and Kafka read the same commits: of plain consumers, of members with
    both protocols, and of transactions.
    """
    found = kafkas(busy, tools)
    assert ours(broker.log_dir) == found
    assert len({group for group, *_ in found}) == 35
    assert found["committed", "orders", 1] == 4
    assert {"aborted", "open"}.isdisjoint(group for group, *_ in found)
    with Store(broker.log_dir, read_only=True) as store:
        commit = store.groups.committed("loose", "orders-0")
        assert commit is not None
        assert (commit.offset, commit.metadata) == (3, "half")


def test_every_record_is_read_and_printed_as_kafka_does(
    busy: Client, broker: Broker, tools: Tools
) -> None:
    """Keys and values of offset commits and classic groups are the JSON of `kafka-dump-log --offsets-decoder`."""
    kinds = set()
    for path in sorted(broker.log_dir.glob(f"{TOPIC}-*/*.log")):
        dumped = tools.dump(path, options="--offsets-decoder").out
        with Store(broker.log_dir, read_only=True) as store:
            for record in store[path.parent.name].read():
                assert record.key is not None
                key = parse_key(record.key)
                assert key is not None
                assert f"offset: {record.offset} " in dumped
                text = orjson.dumps(key_view(key)).decode()
                assert f" key: {text}" in dumped
                kinds.add(key.version)
                value = None if record.value is None else parse_value(key.version, record.value)
                if value is not None:
                    assert f" payload: {orjson.dumps(value_view(value)).decode()}" in dumped
    assert kinds == {1, 2, 3, 5, 6, 7, 8}


def test_files_follow_a_live_broker(
    busy: Client, broker: Broker, make_mount: Callable[..., Mount]
) -> None:
    """`groups/loose` on a read-only mount shows each commit of Kafka's consumer soon after it is made."""
    folder = make_mount("--read-only", log_dirs=[broker.log_dir]).path / "orders-0/groups"
    assert (folder / "loose").read_text() == "3\n"
    assert (folder / "loose.lag").read_text() == "7\n"
    assert (folder / "a%2Fb").read_text() == "1\n"
    assert os.getxattr(folder / "loose", "user.logfs.metadata") == b"half"
    for offset in (5, 6, 10):
        busy.commit("loose", ("orders", 0, offset))
        wait_for(lambda text=f"{offset}\n": (folder / "loose").read_text() == text)
    busy.commit("newcomer", ("orders", 0, 2))
    wait_for(lambda: "newcomer" in os.listdir(folder))


@pytest.fixture
def stopped(
    make_broker: Callable[..., Broker], connect: Callable[[Broker], Client]
) -> Iterator[tuple[Broker, Client]]:
    """A stopped broker with groups, and its clients."""
    broker = make_broker()
    client = connect(broker)
    client.create_topic("orders")
    client.produce("orders", [logfs.Record(b"%d" % n) for n in range(10)])
    for group in ("billing", "audit", "gone"):
        client.commit(group, ("orders", 0, 4))
    broker.stop()
    yield broker, client
    assert_clean(broker.log_dir)


def test_kafka_lists_offsets_committed_through_files(
    stopped: tuple[Broker, Client], make_mount: Callable[..., Mount], tools: Tools
) -> None:
    """kafka-consumer-groups lists the offsets written to files, but no removed ones, and consumers start there."""
    broker, client = stopped
    mount = make_mount(log_dirs=[broker.log_dir])
    folder = mount.path / "orders-0/groups"
    (folder / "billing").write_text("7\n")
    (folder / "new").write_text("earliest\n")
    (folder / "a%2Fb").write_text("latest\n")
    ok("groups", str(broker.log_dir), "--forget", "gone", "orders-0")
    # logfs has created no further partition of the offsets topic.
    assert len(list(broker.log_dir.glob(f"{TOPIC}-*"))) == 4
    mount.stop()
    broker.start()
    rows: list[list[str]] = []

    def are_loaded() -> bool:
        """Return whether all groups are listed. The broker answers before it has loaded its whole offsets topic."""
        printed = tools.groups(client.servers, "--describe", "--all-groups", "--offsets")
        rows[:] = [line.split() for line in printed.splitlines() if " orders " in line]
        return len(rows) >= 4

    wait_for(are_loaded, 120)
    assert sorted(row[:6] for row in rows) == [
        ["a/b", "orders", "0", "10", "10", "0"],
        ["audit", "orders", "0", "4", "10", "6"],
        ["billing", "orders", "0", "7", "10", "3"],
        ["new", "orders", "0", "0", "10", "10"],
    ]
    assert client.join("billing", ["orders"], 3) == 3
    assert client.committed("billing")[0].offset == 10
    broker.stop()
    assert ours(broker.log_dir)["billing", "orders", 0] == 10
