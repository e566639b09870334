"""Kafka as the peer of a row: brokers and clients with its defaults, and its command line tools that measure."""

from __future__ import annotations

import functools
import shutil
import subprocess
from contextlib import ExitStack
from typing import TYPE_CHECKING, NamedTuple

from harness import MIB, Bench, Failed, Result, expect
from rows import row
from upkeep import BROKER_JVM, skipped

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.kafka.broker import Broker
    from tests.kafka.client import Client
    from tests.kafka.distribution import Distribution

# The options with which kafka-run-class starts every JVM.
SCRIPT_OPTIONS = (
    "-server",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent",
)
# Those of kafka-producer-perf-test and kafka-consumer-perf-test.
CLIENT_JVM = ("-Xmx512m", *SCRIPT_OPTIONS)
# Kafka's defaults, where the brokers of the tests have smaller values.
DEFAULTS = {
    "broker_heartbeat_interval_ms": 2000,
    "broker_session_timeout_ms": 9000,
    "group_initial_rebalance_delay_ms": 3000,
    "log_cleaner_backoff_ms": 15_000,
    "log_cleaner_dedupe_buffer_size": 128 * MIB,
    "offsets_topic_num_partitions": 50,
}
TOOL_SECONDS = 3600


class Consumed(NamedTuple):
    """What kafka-consumer-perf-test reports: its records, the bytes of their values, and seconds."""

    records: int
    value_mib: float
    seconds: float  # with its start and the rebalance, without that of its JVM
    fetch_seconds: float


class Kafka:
    """Kafka for one row: the brokers and the JVM with clients that it starts end with the row."""

    def __init__(self, distribution: Distribution, directory: Path, stack: ExitStack) -> None:
        from tests.kafka.helper import Helper

        self.distribution = distribution
        self.directory = directory
        self._stack = stack
        self.helper = Helper(distribution, directory / "helper-errors", CLIENT_JVM)
        stack.callback(self.helper.close)

    def broker(self, name: str = "broker", **settings: object) -> Broker:
        """Return a broker that has not been started, with the heap and collector of Kafka's scripts."""
        from tests.kafka.broker import Broker

        directory = self.directory / name
        directory.mkdir()
        jvm = (*BROKER_JVM, *SCRIPT_OPTIONS)
        made = Broker(self.distribution, directory, jvm, **{**DEFAULTS, **settings})
        return self._stack.enter_context(made)

    def client(self, broker: Broker) -> Client:
        """Return Kafka's own clients for a broker."""
        from tests.kafka.client import Client

        return Client(self.helper, broker.servers)

    def produce(
        self, broker: Broker, topic: str, count: int, payload: Path, **properties: str
    ) -> float:
        """Send `count` random lines of a file by kafka-producer-perf-test; return the seconds that it reports."""
        pairs = [f"{name.replace('_', '.')}={value}" for name, value in properties.items()]
        said = self._tool(
            "ProducerPerformance",
            *("--bootstrap-server", broker.servers, "--topic", topic),
            *("--num-records", count, "--throughput", -1, "--payload-file", payload),
            *(["--command-property", *pairs] if pairs else []),
        )
        # "5000000 records sent, 250000.1 records/sec (23.8 MB/sec), …": the last line is about all of them.
        words = said.splitlines()[-1].split()
        expect(
            "what the producer says", words[1:3] + words[4:5], ["records", "sent,", "records/sec"]
        )
        expect("records sent", int(words[0]), count)
        return count / float(words[3])

    def consume(self, broker: Broker, topic: str, count: int) -> Consumed:
        """Read the first `count` records of a topic by kafka-consumer-perf-test, with a new group."""
        said = self._tool(
            "ConsumerPerformance",
            *("--bootstrap-server", broker.servers, "--topic", topic, "--num-records", count),
        )
        header, values = (line.split(", ") for line in said.splitlines()[-2:])
        found = dict(zip(header, values, strict=True))
        records = int(found["data.consumed.in.nMsg"])
        return Consumed(
            records,
            float(found["data.consumed.in.MB"]),
            records / float(found["nMsg.sec"]),
            records / float(found["fetch.nMsg.sec"]),
        )

    def _tool(self, main: str, *arguments: object) -> str:
        """Run a tool in a JVM of its own, as its script does; return its output."""
        java = ["java", *CLIENT_JVM, "-cp", self.distribution.tools]
        done = subprocess.run(
            [*java, f"org.apache.kafka.tools.{main}", *map(str, arguments)],
            capture_output=True,
            text=True,
            check=False,
            timeout=TOOL_SECONDS,
        )
        if done.returncode or not done.stdout.strip():
            raise Failed(f"{main}: {done.stdout}{done.stderr}")
        return done.stdout


def kafka_row(function: Callable[[Bench, Kafka], list[Result]]) -> Callable[[Bench], list[Result]]:
    """Register a function that takes a `Kafka` as a row; without Java or Kafka it is skipped, with the reason."""

    @functools.wraps(function)
    def measured(bench: Bench) -> list[Result]:
        name = function.__name__.replace("_", "-")
        found = _distribution()
        if isinstance(found, str):
            return [skipped(name, str(function.__doc__).partition(",")[0], found, "-")]
        directory = bench.directory(name)
        try:
            with ExitStack() as stack:
                return function(bench, Kafka(found, directory, stack))
        finally:
            shutil.rmtree(directory, ignore_errors=True)

    return row(measured)


def _distribution() -> Distribution | str:
    """Return Kafka, or the reason why it is not available."""
    import pytest

    from tests.kafka.distribution import distribution

    try:
        return distribution()
    except (pytest.skip.Exception, pytest.fail.Exception) as reason:
        return str(reason)
