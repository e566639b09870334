"""Fixtures of the tests against Kafka: its classes, one helper JVM, and brokers that are always ended."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.kafka import topics
from tests.kafka.broker import Broker
from tests.kafka.client import Client
from tests.kafka.distribution import Distribution, distribution
from tests.kafka.helper import Helper
from tests.kafka.tools import Tools

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@pytest.fixture(scope="session")
def kafka() -> Distribution:
    """Apache Kafka, in the release that `pom.xml` names. Tests that use it are skipped where it is not available."""
    return distribution()


@pytest.fixture(scope="session")
def helper(kafka: Distribution, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Helper]:
    """The only JVM of a worker with Kafka's clients and tools."""
    helper = Helper(kafka, tmp_path_factory.mktemp("helper") / "stderr")
    yield helper
    helper.close()


@pytest.fixture(scope="session")
def tools(helper: Helper) -> Tools:
    """Kafka's command line tools."""
    return Tools(helper)


@pytest.fixture(scope="module")
def make_broker(
    kafka: Distribution, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[..., Broker]]:
    """Return a function that starts a broker: `make_broker(log_retention_ms=1000)`. Brokers end with the module."""
    brokers: list[Broker] = []

    def make(**settings: object) -> Broker:
        brokers.append(Broker(kafka, tmp_path_factory.mktemp("broker"), **settings))
        return brokers[-1].start()

    yield make
    for broker in brokers:
        broker.close()


@pytest.fixture(scope="session")
def stopped_source(
    kafka: Distribution, helper: Helper, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Broker]:
    """The only broker of a worker with topics of every kind. It is stopped."""
    with Broker(kafka, tmp_path_factory.mktemp("source")) as broker:
        client = Client(helper, broker.start().servers)
        topics.create(client)
        for turn in range(2):
            topics.append(client, broker.log_dir, turn)
        broker.stop()
        yield broker


@pytest.fixture(scope="module")
def source(stopped_source: Broker) -> Iterator[Broker]:
    """That broker. It runs, and tests of a module may add topics of other names."""
    yield stopped_source.start()
    stopped_source.stop()


@pytest.fixture(scope="session")
def connect(helper: Helper) -> Callable[[Broker], Client]:
    """Return a function that returns Kafka's clients for a broker."""
    return lambda broker: Client(helper, broker.servers)


@pytest.fixture(scope="module")
def broker(make_broker: Callable[..., Broker]) -> Broker:
    """A broker that the tests of a module share."""
    return make_broker()


@pytest.fixture(scope="module")
def client(broker: Broker, connect: Callable[[Broker], Client]) -> Client:
    """Kafka's clients for the shared broker."""
    return connect(broker)
