"""The tutorial docs/kafka-and-back.md, with a real broker and Kafka's own command line tools."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.requirements import need_command, need_fuse
from tests.system.test_tutorials import follow

if TYPE_CHECKING:
    from pathlib import Path

    from tests.kafka.broker import Broker
    from tests.kafka.distribution import Distribution

TOOLS = {
    "kafka-topics.sh": "TopicCommand",
    "kafka-console-producer.sh": "ConsoleProducer",
    "kafka-console-consumer.sh": "consumer.ConsoleConsumer",
}
OPTIONS = ["-Xmx128m", "-XX:TieredStopAtLevel=1", "-Dorg.slf4j.simpleLogger.defaultLogLevel=off"]


@pytest.mark.usefixtures("mounts_alone")
def test_the_tutorial_runs_as_it_is_written(
    kafka: Distribution, broker: Broker, tmp_path: Path
) -> None:
    """Every command of the page prints what the page shows beside it."""
    need_fuse()
    programs = tmp_path / "bin"
    programs.mkdir()
    java = " ".join([need_command("java"), *OPTIONS, "-cp", f"'{kafka.tools}'"])
    for name, main in TOOLS.items():
        script = programs / name
        script.write_text(f'#!/bin/sh\nexec {java} org.apache.kafka.tools.{main} "$@"\n')
        script.chmod(0o755)
    follow("kafka-and-back.md", tmp_path, broker.servers)
