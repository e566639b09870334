"""The rows of compaction and retention, against Kafka's on copies of the same directory."""

from __future__ import annotations

import ctypes
import os
import shutil
import statistics
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from harness import (
    FIRST_MS,
    MIB,
    Bench,
    Result,
    Ticking,
    expect,
    faster,
    say,
    settle,
    speed,
    timed,
)
from rows import in_child, row

if TYPE_CHECKING:
    from collections.abc import Iterator

    from logfs.log.append.partition import Partition
    from tests.kafka.helper import Helper

TOPIC = "bench"
PARTITION = f"{TOPIC}-0"
# Both get Kafka's defaults: log.cleaner.dedupe.buffer.size and log.cleaner.io.buffer.load.factor.
BUFFER_BYTES = 128 * MIB
LOAD_FACTOR = 0.9
# How much the memory may grow beyond the buffer, in MB.
ALLOWED_MB = 200
# A broker's JVM: all of its compilers, and the heap and collector that Kafka's scripts start it with.
BROKER_JVM = ("-Xmx1g", "-Xms1g", "-XX:+UseG1GC", "-Dfile.encoding=UTF-8")
RECORDS_A_BATCH = 128
VALUE_BYTES = 90
# Segments that were written stay open until the store is closed, and the number of open files is limited.
SEGMENTS_AT_ONCE = 1000
LATER_MS = 100 * 365 * 86_400_000


# Kafka.


@contextmanager
def kafka(bench: Bench) -> Iterator[Helper | str]:
    """Start a JVM with Kafka's storage classes, and yield it, or the reason why there is none."""
    import pytest

    from tests.kafka.distribution import distribution
    from tests.kafka.helper import Helper

    try:
        found = distribution()
    except (pytest.skip.Exception, pytest.fail.Exception) as reason:
        yield str(reason)
        return
    helper = Helper(found, bench.root / "kafka-errors", BROKER_JVM)
    try:
        yield helper
    finally:
        helper.close()


def kafka_step(helper: Helper, directory: Path, now_ms: int, *step: object) -> list[int]:
    """Open a copy with Kafka's LogManager, do one step on its log, and close it; return the result of the step."""
    settings = {"cleanup.policy": "compact", "retention.ms": 1, "file.delete.delay.ms": 60_000}
    if step[0] == "retain":
        settings |= {"cleanup.policy": "delete", "file.delete.delay.ms": 0}
    helper.call(
        "openStorage",
        directory=str(directory),
        topic=TOPIC,
        partition=0,
        now=now_ms,
        configs=settings,
    )
    ((answer, _),) = helper.call("storageSteps", directory=str(directory), steps=[step])
    helper.call("closeStorage", directory=str(directory))
    return list(answer)


def skipped(name: str, what: str, reason: str, measured: str) -> Result:
    """Return the line of a comparison that could not be made."""
    return Result(name, what, None, measured, f"skipped: {reason}")


# Compaction.


def fill_with_keys(log_dir: Path, count: int, keys: int) -> None:
    """Make a log of `count` records with random keys, in batches as a producer makes them; its segment is sealed."""
    import numpy as np

    from logfs.format.batches.batch import HEADER_SIZE, Batch, seal
    from logfs.format.batches.record import Record
    from logfs.format.encoding.batch_builder import BatchFormat, build_records
    from logfs.store.store import Store

    clock = Ticking()
    value = (b"status=200 path=/orders " * 8)[:VALUE_BYTES]
    key = b"%08d"
    records = [Record(value, key % number) for number in range(RECORDS_A_BATCH)]
    template = bytearray(build_records(records, BatchFormat(), FIRST_MS).batches[0].data)
    at = [template.index(key % number, HEADER_SIZE) for number in range(RECORDS_A_BATCH)]
    digits = np.add.outer(np.array(at), np.arange(8))
    batch = np.frombuffer(template, np.uint8)
    chosen = np.random.default_rng(11)
    header = Batch.parse(template).header
    with Store(log_dir, clock=clock) as store:
        store.settings.set_topic(TOPIC, "cleanup.policy", "compact")
        store.settings.set_topic(TOPIC, "segment.bytes", str(128 * MIB))
        store.settings.set_topic(TOPIC, "file.delete.delay.ms", "60000")
        partition = store.create(PARTITION)
        for _ in range(count // RECORDS_A_BATCH):
            numbers = chosen.integers(0, keys, RECORDS_A_BATCH)
            batch[digits] = ord("0") + numbers[:, None] // 10 ** np.arange(7, -1, -1) % 10
            seal(
                template,
                last_offset_delta=header.last_offset_delta,
                base_timestamp=header.base_timestamp,
                max_timestamp=header.max_timestamp,
                record_count=RECORDS_A_BATCH,
            )
            partition.append_batch(template)
        partition.roll(clock())


def survivors(partition: Partition) -> tuple[int, int]:
    """Return the number of records in a log, and the sum of their offsets: cleaners that agree leave the same."""
    offsets = partition.columns().offsets
    return len(offsets), int(offsets.sum())


def survivors_of(log_dir: Path) -> tuple[int, int]:
    """Return the `survivors` in a log directory, opened read-only."""
    from logfs.store.store import Store

    with Store(log_dir, read_only=True) as store:
        return survivors(store[PARTITION])


def compact_here(log_dir: Path, *, memory: bool) -> float:
    """Compact in this process; return the seconds, or with `memory` the growth of its memory at the peak, in MB."""
    from logfs.store.store import Store

    with Store(log_dir) as store:
        store.settings.set_broker("log.cleaner.threads", "1")
        # What the rows before have freed is no memory of this one.
        ctypes.CDLL(None).malloc_trim(0)
        before = resident_mb("VmRSS")
        Path("/proc/self/clear_refs").write_text("5")
        seconds = timed(lambda: store.compactor.compact(PARTITION))
        return resident_mb("VmHWM") - before if memory else seconds


def resident_mb(field: str) -> float:
    """Return this process's resident memory now (VmRSS), or its maximum so far (VmHWM), in MB."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024 / 1e6
    raise AssertionError(field)


def copy_of(log_dir: Path, to: Path) -> Path:
    """Make a copy in the page cache and on the disk, so that no measurement includes its writing; return it."""
    shutil.rmtree(to, ignore_errors=True)
    shutil.copytree(log_dir, to)
    settle()
    return to


def copy_bytes(log_dir: Path, to: Path) -> float:
    """Return the seconds of copying the .log files."""
    shutil.rmtree(to, ignore_errors=True)
    to.mkdir()
    files = sorted(log_dir.glob("*/*.log"))
    settle()
    return timed(lambda: [shutil.copyfile(file, to / file.name) for file in files])


@row
def compaction(bench: Bench) -> list[Result]:
    """Compaction of a log in which each key has ten values, against Kafka's cleaner and against copying the bytes."""
    from logfs.format.kernel_warmup import warm_up

    warm_up()
    count = bench.pick(10_000_000, 2_000_000)
    scratch = bench.directory("compaction")
    source, small, copy = scratch / "source", scratch / "small", scratch / "copy"
    say("  filling the log")
    fill_with_keys(source, count, count // 10)
    fill_with_keys(small, 500_000, 50_000)
    size = sum(file.stat().st_size for file in source.glob("*/*.log"))
    compact_here(copy_of(small, copy), memory=False)
    now_ms = FIRST_MS + LATER_MS
    ours: list[float] = []
    theirs: list[float] = []
    plain: list[float] = []
    with kafka(bench) as helper:
        if not isinstance(helper, str):
            for _ in range(3):
                step = ("clean", BUFFER_BYTES, LOAD_FACTOR)
                kafka_step(helper, copy_of(small, copy), now_ms, *step)
        repeats = bench.pick(5, 3)
        left = None
        for number in range(repeats):
            say(f"  {number + 1}/{repeats}")
            copy_of(source, copy)
            ours.append(in_child(lambda: compact_here(copy, memory=False)))
            found = survivors_of(copy)
            left = left or found
            expect("what we leave", found, left)
            if not isinstance(helper, str):
                copy_of(source, copy)
                nanoseconds, end = kafka_step(helper, copy, now_ms, *step)
                theirs.append(nanoseconds / 1e9)
                # Kafka's cleaner manager writes this afterwards: the checkpoint tells readers that there are gaps.
                (copy / "cleaner-offset-checkpoint").write_text(f"0\n1\n{TOPIC} 0 {end}\n")
                expect("what Kafka leaves", survivors_of(copy), left)
            plain.append(copy_bytes(source, copy))
        reason = helper if isinstance(helper, str) else ""
    copy_of(source, copy)
    grown = in_child(lambda: compact_here(copy, memory=True))
    bench.directory("compaction")
    return _compaction_results(count, size, (ours, theirs, plain), grown, reason)


def _compaction_results(
    count: int,
    size: int,
    seconds: tuple[list[float], list[float], list[float]],
    grown: float,
    reason: str,
) -> list[Result]:
    ours, theirs, plain = seconds
    what = f"compaction of {count / 1e6:g} M records, {count / 1e7:g} M keys"
    rate = f"{count / statistics.median(ours) / 1e6:.2f} M records/s, {speed(size, ours)}"
    results = []
    if reason:
        results.append(skipped("compaction kafka", what, reason, rate))
    else:
        ratio, spread = faster(ours, theirs)
        peer = f"{speed(size, theirs)} Kafka's cleaner"
        results.append(Result("compaction kafka", what, ratio, rate, peer, 1.0, 3.0, spread=spread))
    ratio, spread = faster(ours, plain)
    peer = f"{speed(size, plain)} copying the bytes"
    results.append(
        Result(
            "compaction copy",
            "the same against copying the bytes",
            ratio,
            speed(size, ours),
            peer,
            None,
            0.2,
            spread=spread,
        )
    )
    limit = BUFFER_BYTES / 1e6 + ALLOWED_MB
    results.append(
        Result(
            "compaction memory",
            "its memory, of the buffer and 200 MB",
            grown / limit,
            f"{grown:.0f} MB more than before",
            f"{limit:.0f} MB",
            1.0,
            at_most=True,
        )
    )
    return results


# Retention.


def fill_with_segments(log_dir: Path, count: int) -> None:
    """Make a log of `count` sealed segments, each of one record."""
    from logfs.store.store import Store

    clock = Ticking()
    for first in range(0, count, SEGMENTS_AT_ONCE):
        with Store(log_dir, clock=clock) as store:
            if not first:
                store.settings.set_topic(TOPIC, "file.delete.delay.ms", "0")
                store.settings.set_topic(TOPIC, "retention.ms", "1")
                store.settings.set_topic(TOPIC, "segment.index.bytes", "1000")
                store.create(PARTITION)
            for number in range(first, first + SEGMENTS_AT_ONCE):
                store[PARTITION].append([b"record %d" % number])
                store[PARTITION].roll(clock())


def retain_here(log_dir: Path, now_ms: int, count: int) -> float:
    """Return the seconds until the expired segments are gone from the log and from the disk."""
    from logfs.store.store import Store

    with Store(log_dir, clock=lambda: now_ms) as store:

        def work() -> None:
            expect("segments dropped", store.retain(), count)
            store[PARTITION].remove_dropped(now_ms)

        seconds = timed(work)
        expect("files left", len(list(log_dir.glob("*/*.log*"))), 1)
        return seconds


@row
def retention(bench: Bench) -> list[Result]:
    """Retention by time of a log of 10,000 segments, against Kafka's and against unlinking the files."""
    count = bench.pick(10_000, 2_000)
    scratch = bench.directory("retention")
    source, copy = scratch / "source", scratch / "copy"
    say("  making the segments")
    fill_with_segments(source, count)
    now_ms = FIRST_MS + LATER_MS
    ours: list[float] = []
    theirs: list[float] = []
    plain: list[float] = []

    def unlink() -> None:
        for entry in list(os.scandir(copy / PARTITION)):
            os.unlink(entry.path)

    with kafka(bench) as helper:
        # Copying this many files takes far longer than the measured work.
        repeats = 3
        for number in range(-1, repeats):
            say(f"  {max(number + 1, 1)}/{repeats}")
            copy_of(source, copy)
            ours.append(in_child(lambda: retain_here(copy, now_ms, count)))
            if not isinstance(helper, str):
                copy_of(source, copy)
                nanoseconds, dropped = kafka_step(helper, copy, now_ms, "retain")
                expect("segments that Kafka dropped", dropped, count)
                theirs.append(nanoseconds / 1e9)
            copy_of(source, copy)
            plain.append(timed(unlink))
        reason = helper if isinstance(helper, str) else ""
    bench.directory("retention")
    # The first turn was the warm-up of both.
    del ours[0], theirs[:1], plain[0]
    what = f"time retention of {count:,} segments"
    rate = f"{statistics.median(ours):.2f} s"
    results = []
    if reason:
        results.append(skipped("retention kafka", what, reason, rate))
    else:
        ratio, spread = faster(ours, theirs)
        peer = f"{statistics.median(theirs):.2f} s Kafka"
        results.append(Result("retention kafka", what, ratio, rate, peer, None, 1.0, spread=spread))
    ratio, spread = faster(ours, plain)
    peer = f"{statistics.median(plain):.2f} s unlinking as many files"
    results.append(
        Result(
            "retention unlink",
            "the same against unlinking the files",
            ratio,
            rate,
            peer,
            None,
            0.8,
            spread=spread,
        )
    )
    return results
