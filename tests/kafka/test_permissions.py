"""A mirror and a push with just the permissions that docs/mirror.md names, and without each of them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from logfs.format.batches.record import Record
from logfs.store.store import Store
from tests.kafka import impatient
from tests.kafka.broker import Broker

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Iterator

    from tests.kafka.client import Client
    from tests.kafka.distribution import Distribution

DOCUMENT = Path(__file__).parents[2] / "docs/mirror.md"
LOGIN = "org.apache.kafka.common.security.plain.PlainLoginModule required"
USERS = ("mirror", "push")
KINDS = {"topics": "TOPIC", "groups": "GROUP", "cluster": "CLUSTER"}


def permissions(user: str) -> list[tuple[str, str]]:
    """Return (operation, kind of resource) of each row of the user's table in docs/mirror.md."""
    _, _, table = DOCUMENT.read_text().partition(f"The user of the {user} needs these permissions")
    rows = re.findall(r"^\| (`.*?) \| (.*?) \|", table.partition("\n\n## ")[0], re.MULTILINE)
    return [
        (re.sub(r"(?<=[a-z])(?=[A-Z])", "_", operation).upper(), kind)
        for operations, resources in rows
        for operation in re.findall(r"`(\w+)`", operations)
        for word, kind in KINDS.items()
        if word in resources
    ]


@pytest.fixture(scope="module")
def broker(kafka: Distribution, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A broker with a second listener, whose users may do only what they are granted."""
    users = " ".join(f'user_{user}="{user}"' for user in USERS)
    broker = Broker(
        kafka,
        tmp_path_factory.mktemp("broker"),
        **{
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": "User:ANONYMOUS",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SECURE:SASL_PLAINTEXT",
            "sasl.enabled.mechanisms": "PLAIN",
            "listener.name.secure.plain.sasl.jaas.config": f"{LOGIN} {users};",
        },
    )
    secure = f"127.0.0.1:{broker.reserve_port()}"
    for name in ("listeners", "advertised.listeners"):
        broker.settings[name] = f"{broker.settings[name]},SECURE://{secure}"
    with broker:
        yield broker.start()


def grant(broker: Broker, user: str, granted: list[tuple[str, str]]) -> None:
    """Let a user do this, and nothing else."""
    from kafka.admin import (
        ACL,
        ACLFilter,
        ACLOperation,
        ACLPermissionType,
        ACLResourcePatternType,
        KafkaAdminClient,
        ResourcePattern,
        ResourcePatternFilter,
        ResourceType,
    )

    admin = KafkaAdminClient(bootstrap_servers=broker.servers)
    principal = f"User:{user}"
    everything = ResourcePatternFilter(ResourceType.ANY, None, ACLResourcePatternType.ANY)
    admin.delete_acls(
        [ACLFilter(principal, "*", ACLOperation.ANY, ACLPermissionType.ANY, everything)]
    )
    admin.create_acls(
        [
            ACL(
                principal,
                "*",
                ACLOperation[operation],
                ACLPermissionType.ALLOW,
                ResourcePattern(ResourceType[kind], "kafka-cluster" if kind == "CLUSTER" else "*"),
            )
            for operation, kind in granted
        ]
    )
    admin.close()


@pytest.fixture
def run(broker: Broker, tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Return a function that runs a command of logfs as the user of its name."""

    def run(command: str, *words: str) -> subprocess.CompletedProcess[str]:
        options = tmp_path / "client.properties"
        options.write_text(
            "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\nbootstrap.timeout.ms=5000\n"
            f"sasl.plain.username={command}\nsasl.plain.password={command}\n"
        )
        servers = broker.settings["advertised.listeners"].rpartition("//")[2]
        return impatient.run(command, servers, "--command-config", options, *words)

    return run


def test_a_mirror_needs_what_is_documented(
    broker: Broker,
    client: Client,
    run: Callable[..., subprocess.CompletedProcess[str]],
    tmp_path: Path,
) -> None:
    """With all of it records, settings and groups come along; without any one, an error says what is missing."""
    client.create_topic("orders", retention_ms=86_400_000)
    client.produce("orders", [Record(b"x")] * 3)
    client.commit("billing", ("orders", 0, 2))
    needed = permissions("mirror")
    assert len(needed) == 4
    grant(broker, "mirror", needed)
    log_dir = tmp_path / "log"
    log_dir.mkdir()
    done = run("mirror", "--once", "--topics", "orders", str(log_dir))
    assert (done.returncode, done.stderr) == (0, "")
    with Store(log_dir, read_only=True) as store:
        assert store["orders-0"].log_end_offset == 3
        assert store.settings.log_config("orders").retention_ms == 86_400_000
        committed = store.groups.committed("billing", "orders-0")
        assert committed is not None
        assert committed.offset == 2
    for without in needed:
        if without == ("DESCRIBE", "TOPIC"):
            # It comes with every other operation on a topic.
            continue
        grant(broker, "mirror", [each for each in needed if each != without])
        client.produce("orders", [Record(b"y")])
        client.commit("billing", ("orders", 0, store_end(log_dir)))
        done = run("mirror", "--once", "--topics", "orders", str(log_dir))
        if without == ("DESCRIBE", "GROUP"):
            # Brokers leave out such groups, so nothing can be said.
            with Store(log_dir, read_only=True) as store:
                committed = store.groups.committed("billing", "orders-0")
                assert committed is not None
                assert committed.offset < store["orders-0"].log_end_offset - 1
            continue
        assert done.returncode == (0 if without == ("DESCRIBE_CONFIGS", "TOPIC") else 1), without
        said = "may not be read" if done.returncode == 0 else "authorization"
        assert said in done.stderr.lower(), (without, done.stderr)
        assert "Traceback" not in done.stderr


def store_end(log_dir: Path) -> int:
    """Return the end of the copy."""
    with Store(log_dir, read_only=True) as store:
        return store["orders-0"].log_end_offset


def test_a_push_needs_what_is_documented(
    broker: Broker,
    client: Client,
    run: Callable[..., subprocess.CompletedProcess[str]],
    tmp_path: Path,
) -> None:
    """With all of it records, settings and groups arrive; without any one, an error says what is missing."""
    needed = permissions("push")
    assert len(needed) >= 8
    for number, without in enumerate([None, *needed]):
        topic, log_dir = f"pushed-{number}", tmp_path / f"log-{number}"
        with Store(log_dir) as store:
            store.settings.set_topic(topic, "retention.ms", "86400000")
            partition = store.create(f"{topic}-0")
            partition.append([b"x"] * 3)
            partition.append([b"y"] * 3)
            store.delete_records(f"{topic}-0", 1)
            store.groups.commit(f"readers-{number}", f"{topic}-0", 4)
        grant(broker, "push", [each for each in needed if each != without])
        done = run("push", str(log_dir))
        assert "Traceback" not in done.stderr
        if without is None:
            assert (done.returncode, done.stderr) == (0, "")
            assert [each.value for each in client.consume(topic)] == [b"x"] * 2 + [b"y"] * 3
            assert client.topic_settings(topic) == {"retention.ms": "86400000"}
            assert [each.offset for each in client.committed(f"readers-{number}")] == [4]
        elif done.returncode == 0:
            # What another permission has with it, or what only a later push needs.
            implied = {("DESCRIBE", "TOPIC"), ("DESCRIBE", "GROUP"), ("DESCRIBE_CONFIGS", "TOPIC")}
            assert without in {*implied, ("READ", "TOPIC")}
        else:
            assert "authorization" in done.stderr.lower(), (without, done.stderr)
