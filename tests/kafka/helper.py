"""The helper of tests/kafka/java: one JVM for many calls. Requests and answers are lines of JSON."""

from __future__ import annotations

import base64
import os
import subprocess
from select import select
from typing import TYPE_CHECKING, Any

import orjson

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from tests.kafka.distribution import Distribution

# Options for a fast start and little memory: the tests run at the same time, on few processors.
JVM = (
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-Xshare:auto",
    "-Dfile.encoding=UTF-8",
    "-Xmx512m",
)


CALL_SECONDS = 180


class KafkaError(Exception):
    """An exception of Kafka's clients. `name` is the simple name of its Java class."""

    def __init__(self, name: str, message: str, trace: str) -> None:
        super().__init__(f"{name}: {message}\n{trace}")
        self.name = name


class Helper:
    """A JVM with Kafka's clients and tools.

    It ends when its standard input is closed, and therefore with this process at the latest.
    """

    def __init__(self, kafka: Distribution, log: Path, jvm: Sequence[str] = JVM) -> None:
        self.log = log
        class_path = os.pathsep.join([kafka.helper, kafka.broker])
        quiet = "-Dorg.slf4j.simpleLogger.defaultLogLevel=error"
        options = [*jvm, quiet, f"-Doracle.tools={kafka.tools}", "-cp", class_path]
        with log.open("ab") as errors:
            self.process = subprocess.Popen(
                ["java", *options, "oracle.Oracle"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
            )

    def call(self, name: str, **arguments: object) -> Any:
        """Call a function of the helper, and return its answer. Raises `KafkaError` for an exception of Kafka."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        request = {"call": name, **arguments}
        self.process.stdin.write(orjson.dumps(request, default=_base64) + b"\n")
        self.process.stdin.flush()
        if not select([self.process.stdout], [], [], CALL_SECONDS)[0]:
            self.process.kill()
            raise AssertionError(f"no answer to {name} within {CALL_SECONDS} s")
        line = self.process.stdout.readline()
        assert line, f"the helper is gone: {self.log.read_text()}"
        answer = orjson.loads(line)
        if "error" in answer:
            raise KafkaError(answer["error"], answer["message"], answer["trace"])
        return answer["answer"]

    def close(self) -> None:
        """End the JVM. Open transactions stay open."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise
        finally:
            self.process.stdout.close()


def _base64(value: object) -> str:
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    raise TypeError(type(value))


def decoded(text: str | None) -> bytes | None:
    """Decode bytes (base64, or None) of an answer of the helper."""
    return None if text is None else base64.b64decode(text)
