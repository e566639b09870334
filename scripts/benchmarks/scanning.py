"""The rows of commands that read a whole log: `logfs cat -J` and `logfs check`."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from typing import TYPE_CHECKING

from harness import GIB, MIB, PARTITION, Bench, Result, alternate, expect, faster, speed, timed
from rows import CAT_BYTES, row

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from harness import Lines

# `logfs`, of this source tree; the bench sets PYTHONPATH.
LOGFS = [sys.executable, "-m", "logfs"]


@row
def cat_json(bench: Bench) -> list[Result]:
    """`logfs cat -J` of a whole log, against `logfs cat`; both are counted by wc."""
    count = bench.pick(GIB, 256 * MIB) // 100
    log_dir, lines = bench.log(count, CAT_BYTES)
    target = log_dir / PARTITION
    size = _check_envelopes(target, lines, count)

    def counted(wanted_bytes: int, *options: str) -> Callable[[], float]:
        def once() -> float:
            found = b""

            def work() -> None:
                nonlocal found
                with subprocess.Popen(
                    [*LOGFS, "cat", *options, target], stdout=subprocess.PIPE
                ) as cat:
                    found = subprocess.run(
                        ["wc", "-lc"], stdin=cat.stdout, stdout=subprocess.PIPE, check=True
                    ).stdout
                expect("exit code", cat.returncode, 0)

            seconds = timed(work)
            expect("lines and bytes", [*map(int, found.split())], [count, wanted_bytes])
            return seconds

        return once

    ours, peer = alternate(bench.pick(5, 3), counted(size, "-J"), counted(count * lines.line_bytes))
    ratio, spread = faster(ours, peer)
    rates = [f"{count / statistics.median(each) / 1e6:.2f} M records/s" for each in (ours, peer)]
    what = f"logfs cat -J of {count / 1e6:.1f} M records of 100 B"
    return [Result("cat-json", what, ratio, rates[0], f"{rates[1]} logfs cat", spread=spread)]


def _check_envelopes(target: Path, lines: Lines, count: int) -> int:
    """Expect the right offsets and values in the output of `logfs cat -J`, and return its size in bytes."""
    size = number = 0
    with subprocess.Popen([*LOGFS, "cat", "-J", target], stdout=subprocess.PIPE) as cat:
        assert cat.stdout is not None
        for number, line in enumerate(cat.stdout):
            envelope = json.loads(line)
            found = envelope["offset"], envelope["value"].encode()
            expect("an envelope", found, (number, lines.value(number)))
            size += len(line)
    expect("records", number + 1, count)
    return size


@row
def check(bench: Bench) -> list[Result]:
    """`logfs check` of a log in the page cache, against reading the bytes."""
    count = bench.pick(GIB, 256 * MIB) // 100
    log_dir, _ = bench.log(count, CAT_BYTES)
    files = sorted(log_dir.glob("*/*.log"))
    size = sum(file.stat().st_size for file in files)
    damaged = files[0]
    _flip(damaged, size // 3)
    expect("the exit code for a damaged log", _check(log_dir)[0], 1)
    _flip(damaged, size // 3)

    def audit() -> float:
        found: tuple[int, str] = (0, "")

        def work() -> None:
            nonlocal found
            found = _check(log_dir)

        seconds = timed(work)
        expect("what check says", found, (0, "clean"))
        return seconds

    def read() -> float:
        found = b""

        def work() -> None:
            nonlocal found
            words = ["sh", "-c", 'cat "$@" | wc -c', "sh", *map(str, files)]
            found = subprocess.run(words, capture_output=True, check=True).stdout

        seconds = timed(work)
        expect("bytes read", int(found), size)
        return seconds

    ours, peer = alternate(bench.pick(5, 3), audit, read)
    ratio, spread = faster(ours, peer)
    what = f"logfs check of {size / GIB:.2g} GiB of 100 B lines"
    rates = speed(size, ours), f"{speed(size, peer)} reading the bytes"
    return [Result("check", what, ratio, *rates, spread=spread)]


def _check(log_dir: Path) -> tuple[int, str]:
    """Return the exit code and the last line of `logfs check`."""
    done = subprocess.run(
        [*LOGFS, "check", log_dir], stdout=subprocess.PIPE, text=True, check=False
    )
    return done.returncode, done.stdout.rstrip("\n").rpartition("\n")[2]


def _flip(path: Path, at: int) -> None:
    """Invert a byte of a file."""
    with path.open("r+b") as file:
        file.seek(at)
        (byte,) = file.read(1)
        file.seek(at)
        file.write(bytes([byte ^ 255]))
