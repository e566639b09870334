"""A mirror and a push while processes are killed, leaders change, partitions move, elections lose records, and the
network breaks.

The suite has one turn, a deep campaign two. A long one has more, and three brokers in place of one:
LOGFS_TROUBLE_TURNS=100 LOGFS_TROUBLE_BROKERS=3.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest

from logfs.format.batches.record import Record
from logfs.store.store import Store
from tests.kafka.client import Client
from tests.kafka.cluster import BrokerCluster
from tests.kafka.copies import MirrorCommand, contents, log_bytes, values, without_epochs
from tests.support.processes import wait_for
from tests.support.requirements import DEEP
from tests.support.stores import assert_clean

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.kafka.distribution import Distribution
    from tests.kafka.helper import Helper

pytestmark = pytest.mark.campaign

TURNS = int(os.environ.get("LOGFS_TROUBLE_TURNS", "2" if DEEP else "1"))
BROKERS = int(os.environ.get("LOGFS_TROUBLE_BROKERS", "1"))
PARTITIONS = 3
SMALL = {"internal_segment_bytes": 200_000}


@pytest.fixture
def cluster(kafka: Distribution, tmp_path: Path) -> Iterator[BrokerCluster]:
    """A cluster whose leaders go back to their preferred brokers soon."""
    settings = {
        "leader_imbalance_check_interval_seconds": 3,
        "leader_imbalance_per_broker_percentage": 0,
        "replica_lag_time_max_ms": 3000,
        "controlled_shutdown_enable": "false",
    }
    with BrokerCluster(kafka, tmp_path / "cluster", BROKERS, **settings) as found:
        yield found.start()


@pytest.fixture
def chance() -> random.Random:
    """What decides about the trouble; its seed is printed."""
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    return random.Random(seed)


class Trouble:
    """Causes one trouble after the other for a command and the cluster that it works with."""

    def __init__(
        self, cluster: BrokerCluster, client: Client, topic: str, chance: random.Random
    ) -> None:
        """Make trouble; partitions of `topic` are moved to other brokers."""
        self._cluster = cluster
        self._client = client
        self._topic = topic
        self._chance = chance
        self.counts: dict[str, int] = {}

    def cause(self, kill_command: Callable[[], object], produce: Callable[[], object]) -> None:
        """Cause one, chosen at random. `produce` is called while a broker is away, if another one is there."""
        kinds = ["command", "broker", "both", "cut", "stop"]
        if BROKERS > 1:
            kinds += ["loss", "loss", "move"]
        kind = self._chance.choice(kinds)
        self.counts[kind] = self.counts.get(kind, 0) + 1
        if kind in ("command", "both"):
            kill_command()
        if kind in ("broker", "both"):
            self._chance.choice(self._cluster.brokers).kill()
            produce()
        elif kind == "loss":
            # The first of two replicas misses what comes now, and then is the only one that is left.
            first, second = self._chance.sample(self._cluster.brokers, 2)
            first.kill()
            produce()
            time.sleep(self._chance.random() * 2)
            second.kill()
            first.start()
            time.sleep(3)
        elif kind == "move":
            numbers = [int(each.settings["node.id"]) for each in self._cluster.brokers]
            for number in range(PARTITIONS):
                replicas = self._chance.sample(numbers, 2)
                self._client.move_partition(self._topic, number, replicas)
        elif kind == "cut":
            for _ in range(self._chance.randrange(1, 10)):
                self._chance.choice(self._cluster.proxies).cut()
                time.sleep(self._chance.random() / 3)
        elif kind == "stop":
            proxy = self._chance.choice(self._cluster.proxies)
            proxy.stop()
            time.sleep(self._chance.random() * 6)
            if self._chance.random() < 0.5:
                proxy.cut()
            proxy.resume()
        self._cluster.start()


def test_a_mirror_has_what_its_cluster_has(
    cluster: BrokerCluster, helper: Helper, tmp_path: Path, chance: random.Random
) -> None:
    """All records that were acknowledged by all replicas; and the bytes of the leaders, whatever they have lost."""
    client = Client(helper, cluster.servers)
    client.create_topic("safe", PARTITIONS, **SMALL)
    replicas = [sorted({1 + n % BROKERS, 1 + (n + 1) % BROKERS}) for n in range(PARTITIONS)]
    client.place_topic(
        "unsafe",
        replicas,
        min_insync_replicas=1,
        unclean_leader_election_enable="true",
        **SMALL,
    )
    log_dir = tmp_path / "mirror"
    log_dir.mkdir()
    sent: list[list[bytes | None]] = [[] for _ in range(PARTITIONS)]
    count = 0

    def produce(topic: str, **configs: object) -> None:
        nonlocal count
        for number in range(PARTITIONS):
            count += 1
            records = [Record(b"%d-%d " % (count, n) * 20) for n in range(300)]
            batches = [records[n : n + 30] for n in range(0, 300, 30)]
            client.produce(topic, *batches, partition=number, **configs)
            if topic == "safe":
                sent[number] += [record.value for record in records]

    def produce_unsafe() -> None:
        if BROKERS > 1:
            produce("unsafe", acks=1, enable_idempotence="false")

    trouble = Trouble(cluster, client, "unsafe", chance)
    command = MirrorCommand(cluster.remote_servers, log_dir)
    try:
        for _ in range(TURNS):
            produce("safe")
            produce("unsafe", acks=1, enable_idempotence="false")
            time.sleep(chance.random() * 2)
            trouble.cause(lambda: command.end(signal.SIGKILL), produce_unsafe)
            if command.process.poll() is not None:
                # It was killed, or has found no broker when it began.
                command.process.communicate()
                command.start()
        for number in range(PARTITIONS):
            wait_for(lambda n=number: values(log_dir, f"safe-{n}") == sent[n], 120)
        wait_for(lambda: is_equal(cluster, log_dir), 120)
        command.end()
    finally:
        if command.process.poll() is None:
            command.end(signal.SIGKILL)
    print(trouble.counts)
    assert_clean(log_dir)


def is_equal(cluster: BrokerCluster, log_dir: Path) -> bool:
    """Return whether all replicas have the bytes of the copy."""
    for topic in ("safe", "unsafe"):
        for number in range(PARTITIONS):
            name = f"{topic}-{number}"
            homes = [each.partition(name) for each in cluster.brokers]
            ours = log_bytes(log_dir / name)
            if any(log_bytes(home) != ours for home in homes if home.exists()):
                return False
    return True


@pytest.mark.drawn(1)
@pytest.mark.parametrize("is_translated", [False, True])
def test_a_push_loses_and_doubles_nothing(
    cluster: BrokerCluster,
    helper: Helper,
    tmp_path: Path,
    chance: random.Random,
    *,
    is_translated: bool,
) -> None:
    """It is started again until it ends well; then the cluster has the same records, once, in the same order."""
    log_dir = tmp_path / "log"
    client = Client(helper, cluster.servers)
    client.create_topic("pushed", PARTITIONS, **SMALL)
    words = ["--translate", str(tmp_path / "map")] if is_translated else []
    command = [sys.executable, "-m", "logfs", "push", "--to", cluster.remote_servers, *words]
    trouble = Trouble(cluster, client, "pushed", chance)
    for turn in range(TURNS):
        with Store(log_dir) as store:
            for number in range(PARTITIONS):
                name = f"pushed-{number}"
                partition = store[name] if name in store else store.create(name)
                for n in range(300):
                    partition.append([Record(b"%d-%d-%d " % (turn, n, m) * 20) for m in range(20)])
            if is_translated and turn == 0:
                # The log of the cluster begins elsewhere.
                store.delete_records("pushed-0", 7)
                client.produce("pushed", [Record(b"was there")] * 3)
                client.delete_records("pushed", 3)
                # A broker that is killed before it has stored the log start forgets it.
                for broker in cluster.brokers:
                    starts = broker.log_dir / "log-start-offset-checkpoint"
                    wait_for(lambda path=starts: "pushed 0 3" in path.read_text())
        process = subprocess.Popen([*command, log_dir], stderr=subprocess.PIPE, text=True)
        try:
            time.sleep(2.5 + chance.random() * 3)
            trouble.cause(process.kill, lambda: None)
            process.communicate(timeout=300)
        finally:
            process.kill()
            process.communicate()
    done = subprocess.run([*command, log_dir], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    print(trouble.counts)
    with Store(log_dir, read_only=True) as store:
        for number in range(PARTITIONS):
            name = f"pushed-{number}"
            theirs = [
                each for each in client.consume("pushed", number) if each.value != b"was there"
            ]
            ours = list(store[name].read())
            assert contents(theirs) == contents(ours), name
            if not is_translated:
                homes = [each.partition(name) for each in cluster.brokers]
                for home in homes:
                    wait_for(lambda h=home: not h.exists() or same_batches(log_dir / h.name, h))
    assert_clean(log_dir)


def same_batches(ours: Path, theirs: Path) -> bool:
    """Return whether two partition directories have the same batches, but for their leader epochs."""
    return without_epochs(ours) == without_epochs(theirs)
