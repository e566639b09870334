"""The rows of commands that read a whole log: `logfs cat -J` and `-F`, and `logfs check`."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from typing import TYPE_CHECKING

from harness import (
    GIB,
    MIB,
    PARTITION,
    Bench,
    Result,
    alternate,
    expect,
    faster,
    in_rounds,
    speed,
    timed,
)
from rows import CAT_BYTES, row

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from harness import Lines

# `logfs`, of this source tree; the bench sets PYTHONPATH.
LOGFS = [sys.executable, "-m", "logfs"]
# Offset, timestamp and value; and the records a second that `logfs cat -F` with it must print.
FORMAT = "%o %T %s\\n"
FORMATTED_A_SECOND = 2_000_000


@row
def cat_json(bench: Bench) -> list[Result]:
    """`logfs cat -J` and `-F` of a whole log, against `logfs cat`; wc counts what each prints."""
    count = bench.pick(GIB, 256 * MIB) // 100
    log_dir, lines = bench.log(count, CAT_BYTES)
    target = log_dir / PARTITION
    as_json = _check_output(target, lines, count, ["-J"], _of_envelope)
    formatted = _check_output(target, lines, count, ["-F", FORMAT], _of_formatted)

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

    envelopes, texts, plain = in_rounds(
        bench.pick(5, 3),
        counted(as_json, "-J"),
        counted(formatted, "-F", FORMAT),
        counted(count * lines.line_bytes),
    )
    ratio, spread = faster(envelopes, plain)
    rates = [count / statistics.median(each) for each in (envelopes, texts, plain)]
    said = [f"{each / 1e6:.2f} M records/s" for each in rates]
    what = f"logfs cat -J of {count / 1e6:.1f} M records of 100 B"
    limit = f"{FORMATTED_A_SECOND / 1e6:g} M records/s"
    return [
        Result("cat-json", what, ratio, said[0], f"{said[2]} logfs cat", spread=spread),
        Result(
            "cat-format",
            f"the same by -F '{FORMAT}', of {limit}",
            rates[1] / FORMATTED_A_SECOND,
            said[1],
            limit,
            None,
            1.0,
        ),
    ]


def _check_output(
    target: Path,
    lines: Lines,
    count: int,
    options: list[str],
    parse: Callable[[bytes], tuple[int, bytes]],
) -> int:
    """Expect the right offsets and values in what `logfs cat` prints with `options`; return its size in bytes.

    `parse` returns the offset and the value of a printed line.
    """
    size = number = 0
    with subprocess.Popen([*LOGFS, "cat", *options, target], stdout=subprocess.PIPE) as cat:
        assert cat.stdout is not None
        for number, line in enumerate(cat.stdout):
            expect("offset and value", parse(line), (number, lines.value(number)))
            size += len(line)
    expect("records", number + 1, count)
    return size


def _of_envelope(line: bytes) -> tuple[int, bytes]:
    envelope = json.loads(line)
    return envelope["offset"], envelope["value"].encode()


def _of_formatted(line: bytes) -> tuple[int, bytes]:
    offset, _, value = line.rstrip(b"\n").split(b" ", 2)
    return int(offset), value


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
