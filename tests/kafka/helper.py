"""The helper of tests/kafka/java: one JVM for many calls, a line of JSON each way."""

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

# Quick to start and small: the tests run next to it, on few processors.
JVM = (
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-Xshare:auto",
    "-Dfile.encoding=UTF-8",
    "-Xmx512m",
)


CALL_SECONDS = 180


class KafkaError(Exception):
    """What Kafka's clients threw: `name` is the simple name of the Java class."""

    def __init__(self, name: str, message: str, trace: str) -> None:
        super().__init__(f"{name}: {message}\n{trace}")
        self.name = name


class Helper:
    """A JVM with Kafka's clients and tools. It ends with its standard input, so with us at the latest."""

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
        """One call and its answer. Raises `KafkaError` with what Kafka threw."""
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
        """End it; open transactions stay open."""
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
    """Bytes as the helper answers them."""
    return None if text is None else base64.b64decode(text)
