"""The rows against a running broker: appends, reads, lookups, and clients that wait for each record."""

from __future__ import annotations

import functools
import itertools
import json
import os
import random
import shutil
import statistics
import time
from typing import TYPE_CHECKING

from harness import (
    MIB,
    Bench,
    Lines,
    Result,
    expect,
    faster,
    in_rounds,
    logfs,
    percentile,
    remove,
    say,
    settle,
    shell,
    timed,
)
from kafka_peer import kafka_row
from pipeline import named, rate
from rows import crc_of, read_path

if TYPE_CHECKING:
    from pathlib import Path

    from harness import Daemon
    from kafka_peer import Consumed, Kafka

    from tests.kafka.broker import Broker

    # The microseconds of each lookup, of logfs and of the peer.
    Sides = tuple[list[float], list[float]]

TOPIC = "bench"
LINE_BYTES = 100
TURNS = 3
# The first records of a broker, which are slower than the others and are not measured.
FIRST_RECORDS = 500_000
# The lookups after which the sides change. The first of them are not measured.
CHUNK = 250
# A consumer that is told to fetch no more than one batch and to return no more than one record.
ONE_RECORD = {"max.partition.fetch.bytes": 1, "max.poll.records": 1}
CODECS = ("none", "lz4", "zstd")


def end_of(partition: Path) -> int:
    """Return the log end offset of a partition of a mount."""
    return int(json.loads((partition / "status.json").read_text())["log_end_offset"])


def shuffled(lines: Lines, path: Path, count: int) -> None:
    """Write `count` lines chosen at random, as kafka-producer-perf-test chooses them from its payload."""
    import numpy as np

    rows = np.frombuffer(lines.block, np.uint8).reshape(-1, LINE_BYTES)
    random_numbers = np.random.default_rng(13)
    with path.open("wb") as file:
        for at in range(0, count, 100_000):
            chosen = random_numbers.integers(0, len(rows), min(100_000, count - at))
            file.write(rows[chosen].tobytes())


# Appending.


class Appends:
    """The same lines into a new partition in each turn, which is removed afterwards; the seconds of either side."""

    def __init__(self, bench: Bench, kafka: Kafka, broker: Broker, mount: Daemon) -> None:
        self.kafka = kafka
        self.broker = broker
        self.client = kafka.client(broker)
        self.mount = mount
        self.source = kafka.directory / "source"
        self.payload = kafka.directory / "payload"
        lines = Lines(LINE_BYTES)
        self.count = bench.pick(5_000_000, 1_000_000)
        lines.file(self.payload, lines.per_block * LINE_BYTES)
        shuffled(lines, self.source, self.count)
        self.crc = crc_of(self.source)
        self._topics = (f"append-{number}" for number in itertools.count())

    def ours(self, codec: str) -> float:
        """Append by `cat` through the mount; the records are compared with the lines."""
        partition = self.mount.path / f"{next(self._topics)}-0"
        partition.mkdir()
        (partition / "config/compression.type").write_text(codec.replace("none", "uncompressed"))
        (partition / "config/file.delete.delay.ms").write_text("0")
        settle()
        seconds = timed(lambda: shell('cat "$1" >> "$2"', self.source, partition / "append"))
        expect("records in the log", end_of(partition), self.count)
        expect("CRC of the records", crc_of(partition / "records"), self.crc)
        remove(partition)
        return seconds

    def theirs(self, codec: str, count: int = 0) -> float:
        """Send by kafka-producer-perf-test; return the seconds by its own rate."""
        topic, count = next(self._topics), count or self.count
        config = {"compression_type": codec.replace("none", "uncompressed")}
        self.client.create_topic(topic, file_delete_delay_ms=0, **config)
        settle()
        seconds = self.kafka.produce(
            self.broker, topic, count, self.payload, compression_type=codec
        )
        ((end, _, _),) = self.client.list_offsets(topic, ["latest"])
        expect("records in Kafka's log", end, count)
        size = sum(path.stat().st_size for path in self.broker.log_dir.glob(f"{topic}-0/*.log"))
        compressed = size < count * (LINE_BYTES - 1)
        expect(f"whether {codec} has compressed Kafka's log", compressed, codec != "none")
        self.client.delete_topic(topic)
        return seconds


@kafka_row
def kafka_append(bench: Bench, kafka: Kafka) -> list[Result]:
    """`cat f >> append` of 5 M lines, plain, lz4 and zstd, against kafka-producer-perf-test."""
    results = []
    broker = kafka.broker().start()
    with logfs(kafka.directory, kafka.directory / "log") as mount:
        sides = Appends(bench, kafka, broker, mount)
        for codec in CODECS:
            sides.theirs(codec, FIRST_RECORDS)
            ours, theirs = in_rounds(
                TURNS, functools.partial(sides.ours, codec), functools.partial(sides.theirs, codec)
            )
            ratio, spread = faster(ours, theirs)
            results.append(
                Result(
                    f"kafka-append {codec}",
                    f"bulk append, {named(sides.count, LINE_BYTES)}"
                    + ("" if codec == "none" else f", {codec}"),
                    ratio,
                    rate(sides.count, ours),
                    f"{rate(sides.count, theirs)} kafka-producer-perf-test",
                    target=10.0 if codec == "none" else 5.0,
                    spread=spread,
                )
            )
    return results


# Reading.


class Filled:
    """A topic that kafka-producer-perf-test filled, a copy of its files for logfs, and its records as lines."""

    def __init__(self, bench: Bench, kafka: Kafka) -> None:
        self.kafka = kafka
        self.count = bench.pick(5_000_000, 1_000_000)
        self.broker = kafka.broker().start()
        self.client = kafka.client(self.broker)
        self.log_dir = kafka.directory / "theirs"
        self.partition = f"{TOPIC}-0"
        self.text = kafka.directory / "text"
        say(f"  filling a topic with {self.count:,} records")
        payload, lines = kafka.directory / "payload", Lines(LINE_BYTES)
        lines.file(payload, lines.per_block * LINE_BYTES)
        self.client.create_topic(TOPIC)
        kafka.produce(self.broker, TOPIC, self.count, payload)
        shutil.copytree(self.broker.partition(self.partition), self.log_dir / self.partition)
        with logfs(kafka.directory, self.log_dir) as mount:
            shell('cat "$1" > "$2"', mount.path / self.partition / "records", self.text)
        expect("bytes of the lines", self.text.stat().st_size, self.count * LINE_BYTES)
        self.crc = crc_of(self.text)

    def with_larger_batches(self) -> Path:
        """Append the same records by `cat`; return the log directory."""
        log_dir = self.kafka.directory / "ours"
        with logfs(self.kafka.directory, log_dir) as mount:
            partition = mount.path / self.partition
            partition.mkdir()
            shell('cat "$1" >> "$2"', self.text, partition / "append")
            expect("records in the log", end_of(partition), self.count)
        return log_dir

    def read(self, log_dir: Path) -> float:
        """Return the seconds of `cat records` on a fresh mount of a log directory, which is in the page cache."""
        load(log_dir)
        with logfs(self.kafka.directory, log_dir) as mount:
            path = mount.path / self.partition / "records"
            expect("size of the records", path.stat().st_size, self.count * LINE_BYTES)
            seconds = timed(lambda: shell('cat "$1" > /dev/null', path))
            expect("CRC of the records", crc_of(path), self.crc)
        return seconds

    def consume(self) -> Consumed:
        """Read all records by kafka-consumer-perf-test, with the log in the page cache."""
        load(self.broker.log_dir)
        consumed = self.kafka.consume(self.broker, TOPIC, self.count)
        expect("records consumed", consumed.records, self.count)
        wanted = self.count * (LINE_BYTES - 1) / MIB
        expect("MiB consumed", round(consumed.value_mib, 2), round(wanted, 2))
        return consumed


def load(log_dir: Path) -> None:
    """Bring all .log files of a log directory into the page cache."""
    shell('cat "$@" > /dev/null', *log_dir.glob("*/*.log"))


@kafka_row
def kafka_read(bench: Bench, kafka: Kafka) -> list[Result]:
    """`cat records` of 5 M records on a fresh mount, against kafka-consumer-perf-test."""
    filled = Filled(bench, kafka)
    own = filled.with_larger_batches()
    filled.consume()
    ours, same, theirs = [], [], []
    for number in range(bench.pick(5, TURNS)):
        say(f"  {number + 1}")
        ours.append(filled.read(own))
        theirs.append(filled.consume())
        same.append(filled.read(filled.log_dir))
    fetching = [each.fetch_seconds for each in theirs]
    whole = [each.seconds for each in theirs]
    fetch_rate = f"{rate(filled.count, fetching)} kafka-consumer-perf-test while it fetches"
    sides = (
        ("fetch", f"cat records, {named(filled.count, LINE_BYTES)}", ours, fetching, fetch_rate),
        ("files", "the same from the broker's own files", same, fetching, fetch_rate),
        (
            "start",
            "the same against the consumer with its start and rebalance",
            ours,
            whole,
            f"{rate(filled.count, whole)} kafka-consumer-perf-test",
        ),
    )
    results = []
    for name, what, mine, peer, said in sides:
        ratio, spread = faster(mine, peer)
        target = 10.0 if name == "fetch" else None
        measured = rate(filled.count, mine)
        results.append(
            Result(f"kafka-read {name}", what, ratio, measured, said, None, target, spread=spread)
        )
    return results


# Looking up.


def chunks_of(numbers: list[int]) -> list[list[int]]:
    """Return the numbers in chunks, after each of which the sides change."""
    return [numbers[at : at + CHUNK] for at in range(0, len(numbers), CHUNK)]


def compared(name: str, what: str, peer: str, times: Sides, target: float | None) -> list[Result]:
    """Return the lines of the p50 and the p99 of two sides: how many times as long the peer takes."""
    results = []
    for label, share in (("p50", 0.5), ("p99", 0.99)):
        ours, theirs = (percentile(each, share) for each in times)
        said = f"{ours:,.0f} µs", f"{theirs:,.0f} µs {peer}"
        results.append(
            Result(f"{name} {label}", f"{what}, {label}", theirs / ours, *said, None, target)
        )
    return results


@kafka_row
def kafka_seek(bench: Bench, kafka: Kafka) -> list[Result]:
    """`offsets/N` and `time/T` for random N and T, against the seek and offsetsForTimes of a warm consumer."""
    filled = Filled(bench, kafka)
    with logfs(kafka.directory, filled.log_dir) as mount:
        results = _seeks(filled, mount, bench.pick(6_000, 1_500))
        return results + _times(filled, mount, bench.pick(6_000, 1_500))


def _seeks(filled: Filled, mount: Daemon, count: int) -> list[Result]:
    from tests.kafka.helper import decoded

    call = functools.partial(filled.client.call, "timedSeeks", topic=TOPIC, partition=0)
    sides = {
        "seek and poll": functools.partial(call, client="default", configs={}),
        "one record a poll": functools.partial(call, client="one record", configs=ONE_RECORD),
    }
    numbers = random.Random(5).sample(range(filled.count), count + CHUNK)
    ours: list[float] = []
    theirs: dict[str, list[float]] = {name: [] for name in sides}
    with filled.text.open("rb") as text:
        for chunk in chunks_of(numbers):
            wanted = [os.pread(text.fileno(), LINE_BYTES - 1, n * LINE_BYTES) for n in chunk]
            found = []
            for number in chunk:
                start = time.perf_counter_ns()
                found.append(read_path(f"{mount.path}/{filled.partition}/offsets/{number}"))
                ours.append((time.perf_counter_ns() - start) / 1000)
            expect("the records", found == wanted, True)
            for name, side in sides.items():
                rows = side(offsets=chunk)
                expect(f"the offsets of {name}", [row[1] for row in rows], chunk)
                expect(f"the records of {name}", [decoded(row[2]) for row in rows] == wanted, True)
                theirs[name] += [row[0] / 1000 for row in rows]
    what = f"random offsets/N of {filled.count / 1e6:g} M: open, read, close"
    first, second = ((ours[CHUNK:], times[CHUNK:]) for times in theirs.values())
    return [
        *compared("kafka-seek offsets", what, "seek and poll", first, 25.0),
        *compared(
            "kafka-seek one", "the same, with one record a poll", "seek and poll", second, None
        ),
    ]


def _times(filled: Filled, mount: Daemon, count: int) -> list[Result]:
    import numpy as np

    from logfs.store.store import Store

    with Store(filled.log_dir, read_only=True) as store:
        timestamps = store[filled.partition].columns().timestamps
    expect("whether the timestamps ascend", bool((np.diff(timestamps) >= 0).all()), True)
    between = range(int(timestamps[0]), int(timestamps[-1]) + 1)
    # Each time once: what was asked before is in the caches of the kernel.
    times = random.Random(6).sample(between, min(count, len(between) // 2))
    links: list[float] = []
    ours: list[float] = []
    theirs: list[float] = []
    for chunk in chunks_of(times):
        wanted = np.searchsorted(timestamps, chunk).tolist()
        found = []
        for when in chunk:
            path = f"{mount.path}/{filled.partition}/time/{when}"
            start = time.perf_counter_ns()
            target = os.readlink(path)
            links.append((time.perf_counter_ns() - start) / 1000)
            os.close(os.open(path, os.O_RDONLY))
            ours.append((time.perf_counter_ns() - start) / 1000)
            found.append(int(target.rpartition("/")[2]))
        expect("the offsets", found, wanted)
        rows = filled.client.call(
            "timedLookups", topic=TOPIC, partition=0, client="default", timestamps=chunk
        )
        expect("the offsets of offsetsForTimes", [row[1] for row in rows], wanted)
        theirs += [row[0] / 1000 for row in rows]
    what = f"random time/T of {filled.count / 1e6:g} M: readlink, open"
    peer = "offsetsForTimes"
    both, alone = ((side[CHUNK:], theirs[CHUNK:]) for side in (ours, links))
    return [
        *compared("kafka-seek time", what, peer, both, 10.0),
        *compared("kafka-seek link", "the same, readlink alone", peer, alone, None),
    ]


# Clients that wait for each record.


class Senders:
    """Writers and producers that wait for each record; each side has a partition, and counts what it got."""

    def __init__(self, kafka: Kafka, broker: Broker, mount: Daemon, number: int) -> None:
        self.client = kafka.client(broker)
        self.number = number
        self.topic = f"send-{number}"
        self.partition = mount.path / f"{self.topic}-0"
        self.partition.mkdir()
        self.client.create_topic(self.topic)
        self.lines = Lines(LINE_BYTES)
        self.written: list[bytes] = []
        self.sent = 0

    def ours(self, count: int) -> float:
        """Return the seconds a line of all writers together, if each writes `count` lines."""
        values = [self.lines.value(number) + b"\n" for number in range(self.number * count)]
        shares = [values[at : at + count] for at in range(0, len(values), count)]
        seconds = written_by_processes(self.partition / "append", shares)
        self.written += values
        return seconds / len(values)

    def theirs(self, linger_ms: int | None, count: int) -> float:
        """Return the seconds a record of all producers together, if each sends `count` records."""
        nanoseconds = self.client.call(
            "timedSends",
            topic=self.topic,
            partition=0,
            client=f"{self.topic} {linger_ms}",
            producers=self.number,
            values=[self.lines.value(number) for number in range(count)],
            configs={} if linger_ms is None else {"linger.ms": linger_ms},
        )
        self.sent += self.number * count
        return float(nanoseconds) / 1e9 / (self.number * count)

    def check(self) -> None:
        """Compare the lines in the log with those written, and the end of Kafka's log with the records sent."""
        found = (self.partition / "records").read_bytes().splitlines(keepends=True)
        expect("lines in the log", sorted(found) == sorted(self.written), True)
        ((end, _, _),) = self.client.list_offsets(self.topic, ["latest"])
        expect("records in Kafka's log", end, self.sent)


def written_by_processes(path: Path, shares: list[list[bytes]]) -> float:
    """Return the seconds in which as many processes as there are shares write theirs, one write(2) a line."""
    ready, say_ready = os.pipe()
    wait_for_go, go = os.pipe()
    children = []
    for share in shares:
        child = os.fork()
        if not child:
            status = 1
            try:
                os.close(go)
                fd = os.open(path, os.O_WRONLY | os.O_APPEND)
                os.write(say_ready, b"r")
                os.read(wait_for_go, 1)
                for line in share:
                    os.write(fd, line)
                status = 0
            finally:
                os._exit(status)
        children.append(child)
    os.close(wait_for_go)
    os.close(say_ready)
    for _ in shares:
        expect("whether a writer is ready", os.read(ready, 1), b"r")
    start = time.perf_counter()
    # Every writer waits for the end of this pipe.
    os.close(go)
    statuses = [os.waitpid(child, 0)[1] for child in children]
    seconds = time.perf_counter() - start
    os.close(ready)
    expect("what the writers end with", set(statuses), {0})
    return seconds


@kafka_row
def kafka_send(bench: Bench, kafka: Kafka) -> list[Result]:
    """One write(2) a line from one process and from sixteen, against producers that wait for each record."""
    broker = kafka.broker().start()
    results = []
    with logfs(kafka.directory, kafka.directory / "log") as mount:
        for number, target in ((1, 15.0), (16, 10.0)):
            senders = Senders(kafka, broker, mount, number)
            # The side that is slower by far gets fewer records, and the rates are compared.
            count, fewer = bench.pick(30_000, 10_000) // number, bench.pick(6_000, 1_500) // number
            sides = (
                functools.partial(senders.ours, count),
                functools.partial(senders.theirs, 0, fewer),
                functools.partial(senders.theirs, None, fewer),
            )
            in_rounds(1, *sides)
            ours, *theirs = in_rounds(bench.pick(5, TURNS), *sides)
            senders.check()
            who = "one process" if number == 1 else f"{number} processes"
            what = f"one write(2) a line of {LINE_BYTES} B, {who}"
            for label, seconds in zip(("linger.ms=0", "by default"), theirs, strict=True):
                ratio, spread = faster(ours, seconds)
                rates = [f"{1 / statistics.median(each):,.0f}/s" for each in (ours, seconds)]
                results.append(
                    Result(
                        f"kafka-send {number} {label}",
                        what if label != "by default" else "the same against linger.ms=5",
                        ratio,
                        rates[0],
                        f"{rates[1]} send().get(), {label}",
                        None,
                        target if label != "by default" else None,
                        spread=spread,
                    )
                )
    return results
