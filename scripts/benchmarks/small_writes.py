"""The rows of small writes: one write(2) for each line, by one process and by sixteen, and through a second mount."""

from __future__ import annotations

import os
import statistics
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING

from harness import (
    Bench,
    Daemon,
    Lines,
    Result,
    alternate,
    expect,
    faster,
    logfs,
    nullfs,
    timed,
)
from rows import in_child, row

if TYPE_CHECKING:
    from pathlib import Path

WRITERS = 16
# The write(2) a second of one process that a write-behind mount must reach, and those that are wanted.
BEHIND_FLOOR, BEHIND_TARGET = 500_000, 1_000_000
FAIR = 1.5


@row
def write_line(bench: Bench) -> list[Result]:
    """One write(2) for each line of 100 bytes, one process."""
    scratch = bench.directory("write-line")
    lines = Lines(100)
    count = bench.pick(30_000, 10_000)
    data = [lines.value(number) + b"\n" for number in range(count)]
    with logfs(scratch, scratch / "log") as mount, nullfs(scratch) as null:
        mount.partition.mkdir()
        repeats = bench.pick(9, 5)
        ours, peer = alternate(
            repeats,
            lambda: _write(mount.partition / "append", data),
            lambda: _write(null.partition / "append", data),
        )
        text = (mount.partition / "records").read_bytes()
        expect("lines in the log", text == b"".join(data) * repeats, True)
    ratio, spread = faster(ours, peer)
    rates = [_rate(count, each) for each in (ours, peer)]
    what = "one write(2) a line of 100 B"
    return [
        Result("write-line", what, ratio, rates[0], f"{rates[1]} nullfs", 0.6, 0.85, spread=spread)
    ]


@row
def write_line_16(bench: Bench) -> list[Result]:
    """One write(2) for each line of 100 bytes, sixteen processes into one partition: rate, and fairness."""
    scratch = bench.directory("write-line-16")
    lines = Lines(100)
    count = bench.pick(5_000, 1_000)
    data = [lines.value(number) + b"\n" for number in range(count)]
    unfair: list[float] = []

    def write_all(path: Path, times: list[float]) -> float:
        """Return the time until the last of the writers has ended; add how long the slowest took to `times`."""
        go_reading, go_writing = os.pipe()
        with ThreadPoolExecutor(WRITERS) as threads:
            work = partial(_write_when_told, go_reading, path, data)
            writers = [threads.submit(in_child, work) for _ in range(WRITERS)]
            # The processes exist before the clock starts.
            time.sleep(0.2)
            start = time.perf_counter()
            os.write(go_writing, bytes(WRITERS))
            each = [writer.result() for writer in writers]
            seconds = time.perf_counter() - start
        for end in (go_reading, go_writing):
            os.close(end)
        times.append(max(each) / min(each))
        return seconds

    with logfs(scratch, scratch / "log") as mount, nullfs(scratch) as null:
        mount.partition.mkdir()
        repeats = bench.pick(7, 3)
        ours, peer = alternate(
            repeats,
            lambda: write_all(mount.partition / "append", unfair),
            lambda: write_all(null.partition / "append", []),
        )
        size = (mount.partition / "records").stat().st_size
        expect("bytes in the log", size, 100 * count * WRITERS * repeats)
    ratio, spread = faster(ours, peer)
    rates = [_rate(count * WRITERS, each) for each in (ours, peer)]
    slowest = statistics.median(unfair)
    what = f"one write(2) a line of 100 B, {WRITERS} processes"
    return [
        Result(
            "write-line-16", what, ratio, rates[0], f"{rates[1]} nullfs", None, 0.85, spread=spread
        ),
        Result(
            "write-line-16 fair",
            "the same: the slowest process against the fastest",
            slowest,
            f"{slowest:.2f} times as long",
            f"{FAIR:g}",
            None,
            FAIR,
            at_most=True,
        ),
    ]


@row
def write_behind(bench: Bench) -> list[Result]:
    """One write(2) for each line of 100 bytes through a write-behind mount, one process, until fsync has returned."""
    scratch = bench.directory("write-behind")
    lines = Lines(100)
    count = bench.pick(3_000_000, 500_000)
    block = [lines.value(number) + b"\n" for number in range(10_000)]
    with ExitStack() as stack:
        mount = stack.enter_context(logfs(scratch, scratch / "log"))
        mount.partition.mkdir()
        place = scratch / "behind"
        command = ["-m", "logfs", "mount", "-f", "--write-behind", str(mount.path), str(place)]
        behind = stack.enter_context(Daemon([sys.executable, *command], place))
        repeats = bench.pick(5, 3)
        seconds = [
            _write(behind.partition / "append", block, count // len(block), sync=True)
            for _ in range(repeats)
        ]
        memory = behind.memory("VmHWM")
        size = (mount.partition / "records").stat().st_size
        expect("bytes in the log", size, 100 * count * repeats)
        tail = (mount.partition / f"offsets/-{len(block)}..").read_bytes()
        expect("the last lines", tail == b"".join(block), True)
    rate = count / statistics.median(seconds)
    return [
        Result(
            "write-behind",
            "one write(2) a line of 100 B through a write-behind mount, until fsync",
            rate / BEHIND_FLOOR,
            f"{rate:,.0f}/s, {memory:.0f} MB",
            f"{BEHIND_FLOOR:,}/s; {BEHIND_TARGET:,}/s is the target",
            1.0,
            BEHIND_TARGET / BEHIND_FLOOR,
        )
    ]


def _write(path: Path, data: list[bytes], times: int = 1, *, sync: bool = False) -> float:
    """Write each line with a write(2) of its own, all of them `times` times; return the seconds."""
    fd = os.open(path, os.O_WRONLY | os.O_APPEND)

    def write() -> None:
        for _ in range(times):
            for line in data:
                os.write(fd, line)
        if sync:
            os.fsync(fd)

    try:
        return timed(write)
    finally:
        os.close(fd)


def _write_when_told(go: int, path: Path, data: list[bytes]) -> float:
    os.read(go, 1)
    return _write(path, data)


def _rate(count: int, seconds: list[float]) -> str:
    return f"{count / statistics.median(seconds):,.0f}/s"
