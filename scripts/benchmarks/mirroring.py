"""The row of a mirror: a topic of a running broker into a log directory, against a consumer that keeps nothing."""

from __future__ import annotations

import filecmp
import shutil
import sys

from harness import Bench, Result, expect, faster, in_rounds, settle, shell, timed
from kafka_peer import Kafka, kafka_row
from kafka_rows import TOPIC, TURNS, Filled, load
from pipeline import rate

WHAT = "mirror of 5 M records, its start and the flush included"


@kafka_row
def kafka_mirror(bench: Bench, kafka: Kafka) -> list[Result]:
    """`logfs mirror --once` of 5 M records, durable at its end, against kafka-consumer-perf-test."""
    filled = Filled(bench, kafka)
    target = kafka.directory / "mirror"

    def ours() -> float:
        target.mkdir()
        load(filled.broker.log_dir)
        settle()
        command = '"$1" -m logfs mirror --once --from "$2" --topics "$3" "$4"'
        words = (sys.executable, filled.broker.servers, TOPIC, target)
        seconds = timed(lambda: shell(command, *words))
        (log,) = filled.broker.partition(filled.partition).glob("*.log")
        same = filecmp.cmp(log, target / filled.partition / log.name, shallow=False)
        expect("whether the .log files are equal", same, True)
        shutil.rmtree(target)
        return seconds

    fetching = []

    def theirs() -> float:
        consumed = filled.consume()
        fetching.append(consumed.fetch_seconds)
        return consumed.seconds

    mine, whole = in_rounds(bench.pick(5, TURNS), ours, theirs)
    return [
        _result(WHAT, filled.count, mine, whole, 2.0),
        _result("the same against the consumer while it fetches", filled.count, mine, fetching),
    ]


def _result(
    what: str, count: int, mine: list[float], peer: list[float], target: float | None = None
) -> Result:
    """Return the ratio of two series of seconds for so many records."""
    ratio, spread = faster(mine, peer)
    said = f"{rate(count, peer)} kafka-consumer-perf-test"
    return Result("kafka-mirror", what, ratio, rate(count, mine), said, None, target, spread=spread)
