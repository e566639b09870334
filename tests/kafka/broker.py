"""A real broker: one process that is broker and controller, with its own loopback ports and log directory."""

from __future__ import annotations

import base64
import os
import signal
import socket
import subprocess
import tempfile
import time
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

from logfs.format.batches.record import Record
from tests.kafka.client import Client
from tests.kafka.helper import JVM, Helper
from tests.support import class_archive
from tests.support.mounts import START_SECONDS
from tests.support.requirements import need_command

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.kafka.distribution import Distribution

STARTED = "Kafka Server started"
STOP_SECONDS = 60
# Smaller values where the defaults assume a dedicated machine. A test overrides the settings that it is about.
DEFAULTS = {
    "process.roles": "broker,controller",
    "node.id": 1,
    "controller.listener.names": "CONTROLLER",
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
    "auto.create.topics.enable": "false",
    "offsets.topic.num.partitions": 4,
    "offsets.topic.replication.factor": 1,
    "transaction.state.log.num.partitions": 1,
    "transaction.state.log.replication.factor": 1,
    "transaction.state.log.min.isr": 1,
    "group.initial.rebalance.delay.ms": 0,
    "log.cleaner.dedupe.buffer.size": 4 << 20,
    "log.cleaner.backoff.ms": 200,
    # The records of the tests are from 2023. They must not be deleted unless a test asks for it.
    "log.retention.ms": -1,
    # The work in the background begins at once, rather than after 30 s. The log start offsets are soon in their file.
    "log.initial.task.delay.ms": 0,
    # More often, an idle broker would take twice as much of a processor.
    "log.flush.start.offset.checkpoint.interval.ms": 1000,
    # A killed broker can register again only after its session has expired.
    "broker.session.timeout.ms": 2000,
    "broker.heartbeat.interval.ms": 200,
}
BOOTSTRAP = "controller.quorum.bootstrap.servers"
# Options of its log output, which leave out the values of all settings.
LOGGING = [
    "-Dorg.slf4j.simpleLogger.showShortLogName=true",
    "-Dorg.slf4j.simpleLogger.showThreadName=false",
    "-Dorg.slf4j.simpleLogger.log.org.apache.kafka.common.config.AbstractConfig=warn",
]


class Broker:
    """A broker of a test, which can be stopped or killed, and started again on the same directory and ports.

    `log_dir` is its log directory, `servers` its address for clients. Settings are passed as keyword arguments:
    `log_retention_ms=1000`. A context manager, which closes the broker.
    """

    def __init__(
        self,
        kafka: Distribution,
        directory: Path,
        jvm: Sequence[str] = JVM,
        archive: Sequence[str] | None = None,
        **settings: object,
    ) -> None:
        """Prepare the log directory `directory`/data, without starting the broker. `jvm` are options of its JVM.

        `archive` are options of this JVM and of the one that formats the directory; by default, those with which
        they start fast.
        """
        self.kafka = kafka
        self._jvm = jvm
        self._archive = _archive_options(kafka) if archive is None else archive
        self.directory = directory
        self.log_dir = directory / "data"
        self.process: subprocess.Popen[bytes] | None = None
        self._log = directory / "broker.log"
        self._log_start = 0
        self._ports = [_reserved_port(), _reserved_port()]
        own, controller = (held.getsockname()[1] for held in self._ports)
        self.servers = f"127.0.0.1:{own}"
        self.controller = f"127.0.0.1:{controller}"
        self.cluster_id = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        self.settings = {
            **DEFAULTS,
            "listeners": f"PLAINTEXT://{self.servers},CONTROLLER://{self.controller}",
            "advertised.listeners": f"PLAINTEXT://{self.servers}",
            BOOTSTRAP: self.controller,
            "log.dirs": self.log_dir,
            **{name.replace("_", "."): value for name, value in settings.items()},
        }
        self._properties = directory / "server.properties"
        self.log_dir.mkdir(parents=True)

    def __enter__(self) -> Broker:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def reserve_port(self) -> int:
        """Return one more loopback port, for another listener."""
        self._ports.append(_reserved_port())
        return int(self._ports[-1].getsockname()[1])

    def start(self, seconds: float = START_SECONDS) -> Broker:
        """Start the broker, and wait until it serves requests, for so many seconds at most."""
        self.launch()
        return self.await_start(seconds)

    def launch(self) -> None:
        """Start the broker, without waiting for it. Its log directory is formatted at the first time."""
        assert self.process is None, "it runs"
        self._write_properties()
        if not self.log_dir.joinpath("meta.properties").exists():
            self._format()
        self._log_start = self._log.stat().st_size if self._log.exists() else 0
        # The kernel kills the broker when this process ends for any reason.
        command = ["setpriv", "--pdeathsig", "KILL", *self._java(*self._jvm, *LOGGING)]
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(
                [*command, "kafka.Kafka", str(self._properties)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def await_start(self, seconds: float = START_SECONDS) -> Broker:
        """Wait until the broker serves requests, for so many seconds at most."""
        self._await(STARTED, seconds)
        return self

    def stop(self) -> None:
        """Shut the broker down cleanly, with SIGTERM."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """Kill the broker with SIGKILL, so that it closes nothing."""
        self._end(signal.SIGKILL)

    def restart(self) -> Broker:
        """Stop cleanly and start again."""
        self.stop()
        return self.start()

    def log(self) -> str:
        """Return the log output since the last start."""
        with self._log.open("rb") as log:
            log.seek(self._log_start)
            return log.read().decode()

    def log_of(self, partition: str) -> str:
        """Return the lines of the log output about one partition, such as `orders-0`, since the last start."""
        marks = (f"partition={partition},", f"partition={partition}]", f"Log {partition} ")
        return "\n".join(line for line in self.log().splitlines() if any(m in line for m in marks))

    def partition(self, name: str) -> Path:
        """Return the directory of a partition, such as `orders-0`."""
        return self.log_dir / name

    def close(self) -> None:
        """Kill the broker if it runs, and release its ports."""
        if self.process is not None:
            self.kill()
        for held in self._ports:
            held.close()

    def _await(self, text: str, seconds: float) -> None:
        """Wait until the log output since the last start contains `text`; kill the broker if it never does."""
        assert self.process is not None
        end = time.monotonic() + seconds
        last = b""
        with self._log.open("rb") as log:
            log.seek(self._log_start)
            while text.encode() not in (last := last[-len(text) :] + log.read()):
                dead = self.process.poll() is not None
                if dead or time.monotonic() > end:
                    self.kill()
                    raise AssertionError(f"the broker {'ended' if dead else 'hangs'}: {self.log()}")
                time.sleep(0.02)

    def _end(self, number: signal.Signals) -> None:
        assert self.process is not None, "it does not run"
        process, self.process = self.process, None
        process.send_signal(number)
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise AssertionError(f"the broker does not end: {self.log()}") from None

    def _java(self, *options: str) -> list[str]:
        return [need_command("java"), *self._archive, *options, "-cp", self.kafka.broker]

    def _write_properties(self) -> None:
        lines = [f"{name}={value}\n" for name, value in self.settings.items()]
        self._properties.write_text("".join(lines))

    def _format(self) -> None:
        options = [f"--cluster-id={self.cluster_id}", f"--config={self._properties}"]
        if BOOTSTRAP in self.settings:
            options.append("--standalone")
        done = subprocess.run(
            [*self._java(*JVM, "-Xmx256m"), "kafka.tools.StorageTool", "format", *options],
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "LC_ALL": "C.UTF-8"},
        )
        assert done.returncode == 0, done.stdout + done.stderr


def _archive_options(kafka: Distribution) -> tuple[str, ...]:
    """Return options with which a JVM with a broker's class path starts fast."""

    def train(option: str) -> None:
        with tempfile.TemporaryDirectory() as name:
            directory = Path(name)
            helper = Helper(kafka, directory / "helper.log")
            with Broker(kafka, directory / "broker", (*JVM, option), archive=()) as broker:
                client = Client(helper, broker.start().servers)
                client.create_topic("orders")
                with client.producer(transactional_id="writer") as producer:
                    producer.begin()
                    producer.send("orders", [Record(b"value")])
                    producer.commit()
                client.consume("orders")
                client.commit("billing", ("orders", 0, 1))
                broker.stop()
            helper.close()

    return tuple(class_archive.options(kafka.broker, train))


def _reserved_port() -> socket.socket:
    """Return a socket that reserves a loopback port. A JVM may still listen on it, because of SO_REUSEADDR."""
    held = socket.socket()
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    held.bind(("127.0.0.1", 0))
    return held
