"""The rows of latency: lookups in one partition while others are appended to, compacted and followed."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from bisect import bisect_right
from contextlib import contextmanager
from typing import TYPE_CHECKING

from harness import (
    FIRST_MS,
    MIB,
    STEP_MS,
    Bench,
    Failed,
    Lines,
    Result,
    expect,
    logfs,
    percentile,
    say,
)
from keys import fill
from rows import CAT_BYTES, first_offsets, follow_time, read_path, row

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from harness import Daemon

FOLLOWERS = 64
MOST = 3.0
# Lookups before those that count, and the time until a load runs.
FIRST_LOOKUPS = 300
LOAD_SECONDS = 1.0


@row
def latency(bench: Bench) -> list[Result]:
    """The p99 of `offsets/N` and `time/T` beside a bulk append, a compaction and 64 `tail -f`, against idle."""
    count = 1_000_000
    log_dir, lines = bench.log(count, CAT_BYTES)
    scratch = bench.directory("latency")
    source = scratch / "source"
    lines.file(source, 64 * MIB)
    with logfs(scratch, log_dir) as mount:
        keyed = mount.path / "keyed-0"
        if not keyed.exists():
            fill(keyed, bench.pick(1_000_000, 200_000))
            (keyed / "config/cleanup.policy").write_text("compact")
        for name in ("bulk-0", "followed-0"):
            (mount.path / name).mkdir(exist_ok=True)
        (mount.path / "bulk-0/config/retention.bytes").write_text(str(256 * MIB))
        loads: dict[str, Callable[[], object]] = {
            "a bulk append": lambda: _bulk(source, mount.path / "bulk-0/append"),
            "a compaction": lambda: _compaction(keyed),
            f"{FOLLOWERS} tail -f": lambda: _followers(mount.path / "followed-0"),
        }
        results = []
        for name, look_up in _lookups(mount, lines, count).items():
            numbers = _numbers(count)
            each = bench.pick(5_000, 1_200)
            for load, start in loads.items():
                say(f"  {name} beside {load}")
                idle = _times(look_up, numbers, each)
                with start():  # type: ignore[attr-defined]
                    busy = _times(look_up, numbers, each)
                results.append(_result(name, load, idle, busy))
    bench.directory("latency")
    return results


def _numbers(count: int) -> Iterator[int]:
    """Yield numbers below `count`, in the same random order in each run, none of them twice."""
    yield from random.Random(11).sample(range(count), count)


def _lookups(mount: Daemon, lines: Lines, count: int) -> dict[str, Callable[[int], None]]:
    firsts = first_offsets(lines, count, CAT_BYTES // lines.line_bytes)

    def offset(number: int) -> None:
        if read_path(f"{mount.partition}/offsets/{number}") != lines.value(number):
            raise Failed(f"offset {number} is another record")

    def link(number: int) -> None:
        batch = bisect_right(firsts, number)
        found = follow_time(f"{mount.partition}/time/{FIRST_MS + batch * STEP_MS}")
        expect("the first offset at a time", found, firsts[batch - 1])

    return {"offsets/N": offset, "time/T": link}


def _times(look_up: Callable[[int], None], numbers: Iterator[int], count: int) -> list[float]:
    """Return the seconds of `count` lookups."""
    times = []
    for _, number in zip(range(FIRST_LOOKUPS + count), numbers, strict=False):
        start = time.perf_counter()
        look_up(number)
        times.append(time.perf_counter() - start)
    return times[FIRST_LOOKUPS:]


def _result(name: str, load: str, idle: list[float], busy: list[float]) -> Result:
    shares = [percentile(each, share) * 1e6 for each in (idle, busy) for share in (0.5, 0.99)]
    return Result(
        f"latency {name} {load}",
        f"{name} beside {load}, p99 against idle",
        shares[3] / shares[1],
        f"{shares[3]:.0f} µs, p50 {shares[2]:.0f} µs",
        f"idle {shares[1]:.0f} µs, p50 {shares[0]:.0f} µs",
        None,
        MOST,
        at_most=True,
    )


@contextmanager
def _running(*commands: list[str]) -> Iterator[None]:
    """Run programs, each with its children in a process group of its own, during the context."""
    started = [
        subprocess.Popen(command, stdout=subprocess.DEVNULL, start_new_session=True)
        for command in commands
    ]
    try:
        time.sleep(LOAD_SECONDS)
        yield
        if any(process.poll() is not None for process in started):
            raise Failed("a load has ended too early")
    finally:
        for process in started:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _bulk(source: Path, append: Path) -> object:
    return _running(
        ["sh", "-c", 'while cat "$1"; do :; done >> "$2"', "sh", str(source), str(append)]
    )


def _compaction(keyed: Path) -> object:
    """Compact again and again; appended keys make each round one with work."""
    script = (
        "import sys, time\n"
        "while True:\n"
        "    with open(sys.argv[1] + '/append.jsonl', 'ab', buffering=0) as file:\n"
        "        for first in range(0, 100_000, 1000):\n"
        '            lines = (b\'{"key":"%08d","value":"again"}\' % (first + n) for n in range(1000))\n'
        "            file.write(b'\\n'.join(lines) + b'\\n')\n"
        "    for word in ('roll', 'compact'):\n"
        "        with open(sys.argv[1] + '/ctl', 'w') as file: file.write(word)\n"
        "    time.sleep(1)\n"
    )
    return _running([sys.executable, "-c", script, str(keyed)])


def _followers(partition: Path) -> object:
    append = 'while echo line; do sleep 0.02; done >> "$1"'
    followers = [["tail", "-n", "0", "-f", str(partition / "records")]] * FOLLOWERS
    return _running(["sh", "-c", append, "sh", str(partition / "append")], *followers)
