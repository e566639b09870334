"""The row of a mirror: a topic of a running broker into a log directory, against a consumer that keeps nothing."""

from __future__ import annotations

import filecmp
import shutil
import sys

from harness import Bench, Result, expect, faster, in_rounds, settle, shell, timed
from kafka_peer import Kafka, kafka_row
from kafka_rows import TOPIC, TURNS, Filled, load
from pipeline import rate


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

    mine, peer = in_rounds(bench.pick(5, TURNS), ours, lambda: filled.consume().seconds)
    ratio, spread = faster(mine, peer)
    measured, said = rate(filled.count, mine), f"{rate(filled.count, peer)} consumer-perf-test"
    what = "mirror of 5 M records, its start and the flush included"
    return [Result("kafka-mirror", what, ratio, measured, said, None, 2.0, spread=spread)]
