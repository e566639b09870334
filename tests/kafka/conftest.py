"""What the tests against Kafka share: its classes, one helper JVM, brokers that always end."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.kafka.broker import Broker
from tests.kafka.client import Client
from tests.kafka.distribution import Distribution, distribution
from tests.kafka.helper import Helper
from tests.kafka.tools import Tools

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@pytest.fixture(scope="session")
def kafka() -> Distribution:
    """Apache Kafka's newest release; tests that ask for it are skipped where it cannot be had."""
    return distribution()


@pytest.fixture(scope="session")
def helper(kafka: Distribution, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Helper]:
    """The one JVM with Kafka's clients and tools."""
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
    """Brokers, running, with settings as in `make_broker(log_retention_ms=1000)`; they end with the module."""
    brokers: list[Broker] = []

    def make(**settings: object) -> Broker:
        brokers.append(Broker(kafka, tmp_path_factory.mktemp("broker"), **settings))
        return brokers[-1].start()

    yield make
    for broker in brokers:
        broker.close()


@pytest.fixture(scope="module")
def connect(helper: Helper) -> Callable[[Broker], Client]:
    """Kafka's clients for a broker."""
    return lambda broker: Client(helper, broker.servers)


@pytest.fixture(scope="module")
def broker(make_broker: Callable[..., Broker]) -> Broker:
    """The broker that the tests of a module share."""
    return make_broker()


@pytest.fixture(scope="module")
def client(broker: Broker, connect: Callable[[Broker], Client]) -> Client:
    """Kafka's clients for the shared broker."""
    return connect(broker)
