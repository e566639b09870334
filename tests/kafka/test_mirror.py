"""A mirror of a real broker: its batches, byte for byte; its readers, groups and settings; what changes meanwhile."""

from __future__ import annotations

import errno
import re
import socket
import subprocess
from typing import TYPE_CHECKING

import pytest

from logfs.errors import NotWritable
from logfs.format.batches.record import Record
from logfs.format.files import checkpoint
from logfs.store.store import Store
from tests.kafka import topics
from tests.kafka.broker import Broker
from tests.kafka.client import COMMITTED, UNCOMMITTED
from tests.kafka.copies import MirrorCommand, log_bytes, values
from tests.support.command_line import call
from tests.support.mounts import refuses
from tests.support.processes import wait_for
from tests.support.stores import assert_clean

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.kafka.client import Client
    from tests.kafka.distribution import Distribution
    from tests.support.mounts import Mount


def mirror_once(store: Store, servers: str, pattern: str = ".*") -> None:
    """Mirror what a cluster has now."""
    from logfs.mirror.mirror import Mirror

    with Mirror(store, servers, re.compile(pattern), {}) as mirror:
        mirror.run_once(lambda progress: None)
        assert not mirror.progress().problems
        assert not mirror.progress().lag


def epochs_of(directory: Path, end: int = 1 << 62) -> list[int]:
    """Return the leader epochs in a partition directory that begin before the offset `end`."""
    data = directory.joinpath("leader-epoch-checkpoint").read_bytes()
    return [epoch for epoch, start in checkpoint.parse_epochs(data) if start < end]


@pytest.fixture(scope="module")
def broker(source: Broker) -> Broker:
    return source


def test_a_mirror_has_the_same_batches(broker: Broker, client: Client, tmp_path: Path) -> None:
    """All codecs, transactions, compaction, deleted records: equal bytes, epochs, ids, and records for readers."""
    log_dir = tmp_path / "mirror"
    with Store(log_dir) as store:
        mirror_once(store, broker.servers)
        assert {name.rpartition("-")[0] for name in store} >= {*topics.CONFIGS}
        for topic in topics.CONFIGS:
            copy, original = store[f"{topic}-0"], broker.partition(f"{topic}-0")
            assert copy.directory.joinpath("partition.metadata").read_bytes() == (
                original.joinpath("partition.metadata").read_bytes()
            )
            for isolation, reader in ((UNCOMMITTED, copy), (COMMITTED, copy.committed)):
                assert list(reader.read()) == client.consume(topic, isolation=isolation), topic
            # The mirror has batches that the broker deletes only with their segment.
            ours = log_bytes(copy.directory)
            assert ours in log_bytes(original), topic
            # A follower knows an epoch from its first batch on.
            known = epochs_of(original, copy.log_end_offset) if ours else []
            assert epochs_of(copy.directory) == known, topic
    assert_clean(log_dir)


@pytest.fixture
def follow(broker: Broker, tmp_path: Path) -> Iterator[Callable[[str], tuple[MirrorCommand, Path]]]:
    """Return a function that starts the mirror of topics into a new directory; it is killed if it does not end."""
    started: list[MirrorCommand] = []

    def start(pattern: str) -> tuple[MirrorCommand, Path]:
        log_dir = tmp_path / "followed"
        log_dir.mkdir()
        started.append(MirrorCommand(broker.servers, log_dir, "--topics", pattern))
        return started[-1], log_dir

    yield start
    for command in started:
        if command.process.poll() is None:
            command.process.kill()
            command.process.communicate()


def offsets_of(log_dir: Path, group: str) -> dict[str, int]:
    """Return the offsets that a group has committed in the mirror."""
    with Store(log_dir, read_only=True) as store:
        found = {name: store.groups.committed(group, name) for name in store}
        return {name: commit.offset for name, commit in found.items() if commit is not None}


def test_a_mirror_follows_what_changes(
    client: Client, follow: Callable[[str], tuple[MirrorCommand, Path]]
) -> None:
    """Records, topics, partitions, settings and groups that come while the mirror runs; then a promotion."""
    client.create_topic("live-orders")
    client.produce("live-orders", [Record(b"first")])
    command, log_dir = follow("live-.*")
    wait_for(lambda: values(log_dir, "live-orders-0") == [b"first"])
    client.produce("live-orders", [Record(b"second")])
    client.grow_topic("live-orders", 2)
    client.produce("live-orders", [Record(b"in the new partition")], partition=1)
    client.create_topic("live-payments", segment_ms=5000)
    client.create_topic("other")
    client.produce("live-payments", [Record(b"paid")])
    client.commit("billing", ("live-orders", 0, 1), ("live-payments", 0, 1))
    client.alter_topic("live-orders", retention_ms=86_400_000)
    client.delete_records("live-orders", 1)
    wait_for(lambda: values(log_dir, "live-orders-0") == [b"second"])
    wait_for(lambda: values(log_dir, "live-orders-1") == [b"in the new partition"])
    wait_for(lambda: values(log_dir, "live-payments-0") == [b"paid"])
    wanted = {"live-orders-0": 1, "live-payments-0": 1}
    wait_for(lambda: offsets_of(log_dir, "billing") == wanted)

    def retention() -> str | None:
        with Store(log_dir, read_only=True) as store:
            return store.settings.topic_overrides("live-orders").get("retention.ms")

    wait_for(lambda: retention() == "86400000")
    assert command.end() == ""
    assert command.process.returncode == 130
    with Store(log_dir) as store:
        assert not [name for name in store if name.startswith("other")]
        assert store.settings.log_config("live-payments").segment_ms == 5000
        for change in (
            lambda: store["live-orders-0"].append([b"x"]),
            lambda: store.truncate("live-orders-0", 1),
            lambda: store.delete_records("live-orders-0", -1),
            lambda: store.create("live-orders-7"),
        ):
            with pytest.raises(NotWritable, match=r"is a mirror of .*'logfs promote'"):
                change()
    run(log_dir, "promote", "live-orders")
    with Store(log_dir) as store:
        assert store["live-orders-0"].append([b"ours"]) == 2
        with pytest.raises(NotWritable):
            store["live-payments-0"].append([b"x"])
    assert_clean(log_dir)


def run(log_dir: Path, command: str, *words: str) -> None:
    """Run a command of logfs on a log directory."""
    done = call(command, log_dir, *words)
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def stoppable(make_broker: Callable[..., Broker]) -> Broker:
    """A broker that tests stop, and start again."""
    return make_broker()


def test_what_the_source_loses_is_dropped(
    stoppable: Broker, connect: Callable[[Broker], Client], tmp_path: Path
) -> None:
    """An unclean election: the broker comes back without its last batches, and others take their offsets."""
    broker, client = stoppable, connect(stoppable)
    client.create_topic("lossy")
    for number in range(10):
        client.produce("lossy", [Record(b"%d" % number)] * 3)
    log_dir = tmp_path / "mirror"
    with Store(log_dir) as store:
        mirror_once(store, broker.servers, "lossy")
        assert store["lossy-0"].log_end_offset == 30
    broker.stop()
    (file,) = broker.partition("lossy-0").glob("*.log")
    with Store(log_dir, read_only=True) as store:
        kept = [b for b in store["lossy-0"].batches(0) if b.header.next_offset <= 21]
    # What its disk lost in a power cut, while no other replica was left.
    with file.open("r+b") as opened:
        opened.truncate(sum(len(batch.data) for batch in kept))
    for other in broker.partition("lossy-0").glob("*.snapshot"):
        other.unlink()
    broker.log_dir.joinpath(".kafka_cleanshutdown").unlink()
    broker.start()
    client.produce("lossy", [Record(b"after the loss")] * 2)
    with Store(log_dir) as store:
        mirror_once(store, broker.servers, "lossy")
        copy = store["lossy-0"]
        assert [record.value for record in copy.read()][21:] == [b"after the loss"] * 2
        assert log_bytes(copy.directory) == log_bytes(broker.partition("lossy-0"))
        assert epochs_of(copy.directory) == epochs_of(broker.partition("lossy-0"))
    assert_clean(log_dir)


def test_a_mirror_begins_again_where_the_source_does(
    broker: Broker, client: Client, tmp_path: Path
) -> None:
    """The source deletes what comes next, up to the middle of a batch: the copy begins there, as a follower does."""
    client.create_topic("deleted")
    client.produce("deleted", [Record(b"%d" % number) for number in range(10)])
    log_dir = tmp_path / "mirror"
    with Store(log_dir) as store:
        mirror_once(store, broker.servers, "deleted")
        assert store["deleted-0"].log_end_offset == 10
        client.produce("deleted", [Record(b"%d" % number) for number in range(10, 20)])
        client.delete_records("deleted", 15)
        mirror_once(store, broker.servers, "deleted")
        copy = store["deleted-0"]
        assert copy.log_start_offset == 15
        assert [record.offset for record in copy.read()] == [*range(15, 20)]
        assert list(copy.read()) == client.consume("deleted")
    assert_clean(log_dir)


def test_a_topic_that_is_not_a_mirror_is_left_alone(
    broker: Broker, client: Client, tmp_path: Path
) -> None:
    """A log of one's own, a mirror of another cluster, and a topic that was created again are said, and stay."""
    for topic in ("own", "foreign", "again"):
        client.create_topic(topic)
        client.produce(topic, [Record(b"theirs")])
    log_dir = tmp_path / "mirror"
    with Store(log_dir) as store:
        store.create("own-0").append([b"ours"])
        store.settings.set_topic("foreign", "logfs.mirror.source", "elsewhere")
        store.create("foreign-0", mirror_of="elsewhere")
        mirror_once(store, broker.servers, "again")
        client.delete_topic("again")
        client.create_topic("again")
        from logfs.mirror.mirror import Mirror

        with Mirror(store, broker.servers, re.compile("own|foreign|again"), {}) as mirror:
            mirror.run_once(lambda progress: None)
            problems = mirror.progress().problems
        assert "is an ordinary topic here" in problems["own"]
        assert "is a mirror of elsewhere here" in problems["foreign"]
        assert "was deleted and created again" in problems["again"]
        assert [record.value for record in store["own-0"].read()] == [b"ours"]
        assert [record.value for record in store["again-0"].read()] == [b"theirs"]
        client.produce("again", [Record(b"new")] * 2)
        with Mirror(store, broker.servers, re.compile("again"), {}) as mirror:
            store.delete("again-0")
            mirror.refresh()
            mirror.run_once(lambda progress: None)
            assert not mirror.progress().problems
        assert [record.value for record in store["again-0"].read()] == [b"new"] * 2
    assert_clean(log_dir)


def test_a_mount_follows_a_cluster(
    stoppable: Broker,
    connect: Callable[[Broker], Client],
    make_mount: Callable[..., Mount],
) -> None:
    """`tail -f` of a mounted mirror shows what is produced, also after the broker was away; appends are refused."""
    broker, client = stoppable, connect(stoppable)
    client.create_topic("orders")
    client.create_topic("other")
    broker.stop()
    # The mount need not wait for the cluster.
    mount = make_mount("--mirror", broker.servers, "--topics", "orders")
    assert (mount.path / ".logfs/metrics").exists()
    broker.start()
    client.produce("orders", [Record(b"first")])
    records = mount.path / "orders-0/records"
    wait_for(lambda: records.exists() and records.read_bytes() == b"first\n", 60)
    with subprocess.Popen(["tail", "-n+1", "-f", records], stdout=subprocess.PIPE) as tail:
        assert tail.stdout is not None
        assert tail.stdout.readline() == b"first\n"
        client.produce("orders", [Record(b"second")])
        assert tail.stdout.readline() == b"second\n"
        broker.restart()
        client.produce("orders", [Record(b"third")])
        wait_for(lambda: records.read_bytes().endswith(b"third\n"), 30)
        assert tail.stdout.readline() == b"third\n"
        tail.kill()
    with refuses(errno.EROFS):
        (mount.path / "orders-0/append").write_text("ours\n")
    assert not (mount.path / "other-0").exists()
    metrics = (mount.path / ".logfs/metrics").read_text()
    assert 'logfs_mirror_lag{topic="orders",partition="0"} 0' in metrics
    assert "logfs_mirror_problems 0" in metrics
    run(mount.log_dirs[0], "promote", "orders")
    # The mirror may look at the topic's settings only seconds later: until then, it must not touch the log either.
    (mount.path / "orders-0/append").write_text("ours\n")
    client.produce("orders", [Record(b"theirs")] * 5)
    broker.restart()
    client.produce("orders", [Record(b"theirs")] * 5)
    wait_for(lambda: "problems 1" in (mount.path / ".logfs/metrics").read_text())
    assert records.read_bytes() == b"first\nsecond\nthird\nours\n"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--topics", "orders"], "need --mirror HOST:PORT"),
        (["--read-only", "--mirror", "localhost:1"], "a read-only mount cannot mirror"),
        (["--mirror", "localhost:1", "--topics", "("], "is not a Python regular expression"),
        (["--mirror", "localhost:1", "--command-config", "nowhere"], "nowhere"),
    ],
)
def test_a_mount_refuses_options_that_do_not_fit(
    tmp_path: Path, words: list[str], message: str
) -> None:
    """Wrong options are said before anything is mounted."""
    (tmp_path / "log").mkdir()
    done = call("mount", *words, tmp_path / "log", tmp_path / "mnt")
    assert done.returncode == (1 if message == "nowhere" else 2)
    assert message in done.stderr.decode()


PASSWORD = "not-to-be-shown"


@pytest.fixture
def secured(kafka: Distribution, tmp_path: Path) -> Iterator[tuple[Broker, str, Path]]:
    """A broker with a listener that asks for TLS and SASL; its address, and the certificate of its authority."""
    store, certificate = tmp_path / "keys.p12", tmp_path / "ca.pem"
    key = ["keytool", "-keystore", str(store), "-storepass", PASSWORD, "-alias", "broker"]
    run_tool(
        *key, "-genkeypair", "-keyalg", "RSA", "-dname", "CN=broker", "-ext", "SAN=ip:127.0.0.1"
    )
    run_tool(*key, "-exportcert", "-rfc", "-file", str(certificate))
    login = "org.apache.kafka.common.security.plain.PlainLoginModule required"
    secure = f"127.0.0.1:{free_port()}"
    broker = Broker(
        kafka,
        tmp_path / "broker",
        **{
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SECURE:SASL_SSL",
            "sasl.enabled.mechanisms": "PLAIN",
            "listener.name.secure.plain.sasl.jaas.config": f'{login} user_mirror="{PASSWORD}";',
            "listener.name.secure.ssl.keystore.location": store,
            "listener.name.secure.ssl.keystore.password": PASSWORD,
            "listener.name.secure.ssl.keystore.type": "PKCS12",
        },
    )
    for name in ("listeners", "advertised.listeners"):
        broker.settings[name] = f"{broker.settings[name]},SECURE://{secure}"
    with broker:
        broker.start()
        yield broker, secure, certificate


def run_tool(*words: str) -> None:
    """Run a tool of the JDK."""
    subprocess.run(words, check=True, capture_output=True)


def free_port() -> int:
    """Return a port that nobody uses."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def test_tls_and_sasl_by_a_file_of_properties(
    secured: tuple[Broker, str, Path], connect: Callable[[Broker], Client], tmp_path: Path
) -> None:
    """The right options mirror; wrong ones are errors, which show neither user nor password."""
    broker, servers, certificate = secured
    client = connect(broker)
    client.create_topic("orders")
    client.produce("orders", [Record(b"secret business")])
    right = {
        "security.protocol": "SASL_SSL",
        "ssl.cafile": str(certificate),
        "sasl.mechanism": "PLAIN",
        "sasl.plain.username": "mirror",
        "sasl.plain.password": PASSWORD,
        "bootstrap.timeout.ms": "30000",
    }
    # The reason does not matter, so it need not be found on a busy machine.
    soon = {"bootstrap.timeout.ms": "2000"}
    changes: list[tuple[dict[str, str], str]] = [
        ({"sasl.plain.password": "wrong-" + PASSWORD, **soon}, "no broker answers"),
        ({"security.protocol": "PLAINTEXT", **soon}, "no broker answers"),
        ({"security.protocol": "SASL_PLAINTEXT", **soon}, "no broker answers"),
        ({"ssl.cafile": str(tmp_path / "nowhere.pem")}, "names a file that cannot be read"),
        ({"sasl.mechanism": "PLAIN-TEXT", **soon}, "no broker answers"),
        ({}, ""),
    ]
    for change, message in changes:
        options = tmp_path / "client.properties"
        options.write_text("".join(f"{n}={text}\n" for n, text in {**right, **change}.items()))
        log_dir = tmp_path / "mirror"
        log_dir.mkdir(exist_ok=True)
        words = ["--from", servers, "--command-config", str(options), "--topics", "orders"]
        done = call("mirror", "--once", *words, log_dir)
        said = (done.stdout + done.stderr).decode()
        assert message in done.stderr.decode(), change
        assert PASSWORD not in said
        assert "Traceback" not in said
        assert done.returncode == (1 if message else 0), said
        assert bool(message) != (log_dir / "orders-0").exists()
    assert values(log_dir, "orders-0") == [b"secret business"]
