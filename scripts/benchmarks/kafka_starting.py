"""The row of starting: a broker and a mount on the same directory, which the broker made, stopped and killed."""

from __future__ import annotations

import os
import re
import resource
import shutil
import statistics
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from harness import GIB, MIB, Bench, Lines, Result, expect, faster, in_rounds, logfs, say, settle
from kafka_peer import kafka_row
from kafka_rows import end_of
from rows import evict, read_path
from starting import wait_until_loaded

if TYPE_CHECKING:
    from kafka_peer import Kafka

    from tests.kafka.broker import Broker

TOPIC = "bench"
LINE_BYTES = 100
# The bytes that a record takes in a batch of the producer's size.
RECORD_BYTES = 107
SEGMENTS = 10
RECORDS_A_SEGMENT = 20
# One batch of that many records, and not two. Kafka 4 refuses a segment.bytes below 1 MiB.
SEGMENT_BYTES = 3000
PARTITIONS_A_TOPIC = 100
START_SECONDS = 3600
# Files of this size are not saved: they must not change.
LARGE = 64 * MIB
SETTINGS = {
    # Nothing counts as flushed: the recovery points are never written before a clean stop.
    "log_flush_offset_checkpoint_interval_ms": 3_600_000,
    "log_initial_task_delay_ms": 3_600_000,
    # A killed broker can register again only after its session, which would be part of its start.
    "broker_session_timeout_ms": 1000,
    "broker_heartbeat_interval_ms": 200,
}


class Last(NamedTuple):
    """The last record of a partition, by which both sides are checked."""

    topic: str
    partition: int
    offset: int
    value: bytes


class Saved:
    """A directory as it was: `restore` puts back what was changed, added or removed, and copies no large file."""

    def __init__(self, directory: Path, copies: Path) -> None:
        settle()
        self._directory, self._copies = directory, copies
        self._states: dict[Path, tuple[int, ...] | None] = {}
        for path in _files(directory):
            name = path.relative_to(directory)
            self._states[name] = _state(path)
            if not _large(path):
                copy_sparse(path, copies / name)

    def restore(self) -> None:
        """Make the directory what it was; raises `Failed` if a large file is not."""
        for path in _files(self._directory):
            if path.relative_to(self._directory) not in self._states:
                path.unlink()
        for name, state in self._states.items():
            path = self._directory / name
            if _state(path) != state:
                expect(f"whether {name} was saved", (self._copies / name).exists(), True)
                path.unlink(missing_ok=True)
                copy_sparse(self._copies / name, path)
                self._states[name] = _state(path)


def _files(directory: Path) -> list[Path]:
    return [Path(place, name) for place, _, names in os.walk(directory) for name in names]


def _state(path: Path) -> tuple[int, ...] | None:
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns


def _large(path: Path) -> bool:
    return path.stat().st_blocks * 512 >= LARGE


def copy_sparse(path: Path, to: Path) -> None:
    """Copy a file with its times, without the holes of an index that is allocated in advance."""
    to.parent.mkdir(parents=True, exist_ok=True)
    with path.open("rb", buffering=0) as source, to.open("wb", buffering=0) as target:
        size = os.fstat(source.fileno()).st_size
        target.truncate(size)
        at = 0
        while at < size:
            try:
                at = os.lseek(source.fileno(), at, os.SEEK_DATA)
            except OSError:
                break
            end = os.lseek(source.fileno(), at, os.SEEK_HOLE)
            os.pwrite(target.fileno(), os.pread(source.fileno(), end - at, at), at)
            at = end
    shutil.copystat(path, to)


def forget(directory: Path) -> None:
    """Empty the page cache and the caches of names; without the permission, only drop the files of the directory."""
    settle()
    try:
        Path("/proc/sys/vm/drop_caches").write_text("3")
    except OSError:
        evict(_files(directory))


class Starts:
    """Both sides on the directory of one broker, as it is now; each start begins with the same files."""

    def __init__(
        self, kafka: Kafka, broker: Broker, last: Last, count: int, *, killed: bool
    ) -> None:
        self.kafka = kafka
        self.broker = broker
        self.last = last
        self.count = count
        self.killed = killed
        self.segments = sorted(broker.log_dir.glob("[!_]*/*.log"))
        self.size = sum(path.stat().st_size for path in self.segments)
        copies = kafka.directory / "saved"
        shutil.rmtree(copies, ignore_errors=True)
        say("  saving")
        self._saved = Saved(broker.log_dir, copies)
        self.loaded: list[float] = []
        self.logs_loaded: list[float] = []

    def ours(self) -> float:
        """Return the seconds from the start of the mount until the last record has been read."""
        self._prepare()
        start = time.perf_counter()
        with logfs(self.kafka.directory, self.broker.log_dir, waits_until_idle=False) as mount:
            partition = mount.path / f"{self.last.topic}-{self.last.partition}"
            value = read_path(f"{partition}/offsets/{self.last.offset}")
            seconds = time.perf_counter() - start
            recovered = wait_until_loaded(mount, self.count)
            self.loaded.append(time.perf_counter() - start)
            expect("whether all bytes were recovered", recovered >= self.size, self.killed)
            expect("the last record", value, self.last.value)
            expect("the end of the log", end_of(partition), self.last.offset + 1)
        return seconds

    def theirs(self) -> float:
        """Return the seconds from the start of the broker until it says that it has started."""
        self._prepare()
        start = time.perf_counter()
        self.broker.start(START_SECONDS)
        seconds = time.perf_counter() - start
        client = self.kafka.client(self.broker)
        topic, partition, offset, value = self.last
        (found,) = client.consume(topic, partition, offset)
        expect("Kafka's last record", (found.offset, found.value), (offset, value))
        log = self.broker.log()
        # The log of the cluster's metadata is not one of ours.
        recovered = re.findall(r"partition=[^_].*Recovering unflushed segment", log)
        wanted = len(self.segments) if self.killed else 0
        expect("the segments that Kafka recovered", len(recovered), wanted)
        said = re.search(r"Loaded (\d+) logs in (\d+)ms", log)
        expect("whether the broker says what it loaded", said is not None, True)
        assert said is not None
        self.logs_loaded.append(int(said[2]) / 1000)
        self.broker.kill()
        return seconds

    def _prepare(self) -> None:
        self._saved.restore()
        forget(self.broker.log_dir)


def _compared(name: str, what: str, starts: Starts, repeats: int) -> list[Result]:
    """Measure both sides, and return the lines of the first answer, and with many partitions of all of them."""
    ours, theirs = in_rounds(repeats, starts.ours, starts.theirs)
    logs = statistics.median(starts.logs_loaded)
    peer = f"{statistics.median(theirs):.2f} s the broker's start, its logs alone {logs:.2f} s"
    results = []
    for label, words, mine in (
        ("first", what, ours),
        ("all", "the same until all partitions are loaded", starts.loaded),
    ):
        if label == "all" and starts.count == 1:
            continue
        ratio, spread = faster(mine, theirs)
        measured = f"{statistics.median(mine):.2f} s"
        more = {"logs_seconds": logs}
        results.append(
            Result(f"{name} {label}", words, ratio, measured, peer, None, 5.0, False, spread, more)
        )
    return results


def _both(
    kafka: Kafka, broker: Broker, name: str, what: str, last: Last, count: int, repeats: int
) -> list[Result]:
    """Kill the broker and measure; then let it end cleanly, and measure."""
    broker.kill()
    clean_marker = broker.log_dir / ".kafka_cleanshutdown"
    expect("whether the kill left a clean marker", clean_marker.exists(), False)
    killed = Starts(kafka, broker, last, count, killed=True)
    results = _compared(f"{name} killed", f"{what}, after a kill", killed, repeats)
    broker.start(START_SECONDS).stop()
    expect("whether the stop left a clean marker", clean_marker.exists(), True)
    clean = Starts(kafka, broker, last, count, killed=False)
    return results + _compared(f"{name} stopped", f"{what}, after a clean stop", clean, repeats)


@kafka_row
def kafka_start(bench: Bench, kafka: Kafka) -> list[Result]:
    """A start on 10 GiB in one partition, and on 100,000 segments, after a kill and a stop, against a broker."""
    return _one_partition(bench, kafka) + _many_partitions(bench, kafka)


def _one_partition(bench: Bench, kafka: Kafka) -> list[Result]:
    size = bench.pick(10 * GIB, GIB)
    count = size // RECORD_BYTES
    say(f"  filling a topic with {count:,} records")
    payload, lines = kafka.directory / "payload", Lines(LINE_BYTES)
    lines.file(payload, lines.per_block * LINE_BYTES)
    broker = kafka.broker("one", **SETTINGS).start()
    client = kafka.client(broker)
    client.create_topic(TOPIC)
    kafka.produce(broker, TOPIC, count, payload)
    (record,) = client.consume(TOPIC, 0, count - 1)
    assert record.value is not None
    last = Last(TOPIC, 0, count - 1, record.value)
    what = f"start on {size / GIB:g} GiB in one partition"
    results = _both(kafka, broker, "kafka-start one", what, last, 1, bench.pick(3, 2))
    shutil.rmtree(broker.log_dir)
    return results


def most_partitions() -> int:
    """Return how many partitions a broker can hold: a segment takes a descriptor, and two mappings."""
    descriptors = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    mappings = int(Path("/proc/sys/vm/max_map_count").read_text())
    return min(descriptors - 2000, (mappings - 5000) // 2) // SEGMENTS


def _many_partitions(bench: Bench, kafka: Kafka) -> list[Result]:
    from logfs.format.batches.record import Record

    count = min(bench.pick(10_000, 300), most_partitions()) // PARTITIONS_A_TOPIC
    broker = kafka.broker("many", **SETTINGS).start()
    client = kafka.client(broker)
    batches = [
        [
            Record(b"%08d" % (batch * RECORDS_A_SEGMENT + n) + b"x" * 91)
            for n in range(RECORDS_A_SEGMENT)
        ]
        for batch in range(SEGMENTS)
    ]
    with client.producer() as producer:
        for topic in range(count):
            say(f"  filling topic {topic + 1} of {count}")
            name = f"many-{topic}"
            client.create_topic(name, PARTITIONS_A_TOPIC, internal_segment_bytes=SEGMENT_BYTES)
            for partition in range(PARTITIONS_A_TOPIC):
                producer.send(name, *batches, partition=partition)
    count *= PARTITIONS_A_TOPIC
    found = len(list(broker.log_dir.glob("many-*/*.log")))
    expect("segments", found, count * SEGMENTS)
    value = batches[-1][-1].value
    last = Last(name, PARTITIONS_A_TOPIC - 1, SEGMENTS * RECORDS_A_SEGMENT - 1, value)
    what = f"start on {count:,} partitions of {SEGMENTS} segments"
    return _both(kafka, broker, "kafka-start many", what, last, count, bench.pick(3, 2))
