"""The rows of starting: a mount of very many partitions, closed cleanly and killed."""

from __future__ import annotations

import json
import shutil
import statistics
import time
from typing import TYPE_CHECKING

from harness import Bench, Failed, Result, expect, logfs, say, settle
from rows import in_child, row

if TYPE_CHECKING:
    from pathlib import Path

    from harness import Daemon

SEGMENTS = 10
RECORDS_A_SEGMENT = 20
MOST_SECONDS = 2.0
MOST_MB = 300.0


@row
def open_many(bench: Bench) -> list[Result]:
    """A mount of 10,000 partitions of ten segments, after a close and after a kill: first answer, memory."""
    scratch = bench.directory("open-many")
    count = bench.pick(10_000, 1_000)
    clean, killed = scratch / "clean", scratch / "killed"
    for path, ends_well in ((clean, True), (killed, False)):
        say(f"  making {count:,} partitions")
        in_child(lambda path=path, ends_well=ends_well: _make(path, count, ends_well=ends_well))
    settle()
    first, memory, started = [], [], []
    for number in range(bench.pick(5, 3)):
        say(f"  {number + 1}")
        start = time.perf_counter()
        with logfs(scratch, clean, waits_until_idle=False) as mount:
            started.append(time.perf_counter() - start)
            _read_one(mount, count - 1)
            first.append(time.perf_counter() - start)
            if not number:
                wait_until_loaded(mount, count)
                memory.append(mount.memory())
    start = time.perf_counter()
    with logfs(scratch, killed, waits_until_idle=False) as mount:
        _read_one(mount, count - 1)
        answered = time.perf_counter() - start
        recovered_bytes = wait_until_loaded(mount, count)
        recovered = time.perf_counter() - start
    bench.directory("open-many")
    expect("whether recovery has read the logs", recovered_bytes > 0, True)
    what = f"{count:,} partitions of {SEGMENTS} segments"
    middle = statistics.median(first)
    each = recovered / count * 1000
    more = {"ready_seconds": statistics.median(started), "recovered_seconds": recovered}
    limits = {"floor": None, "target": 1.0, "at_most": True}
    return [
        Result(
            "open-many first",
            f"{what}, closed cleanly: first answer",
            middle / MOST_SECONDS,
            f"{middle:.2f} s",
            f"{MOST_SECONDS:g} s",
            **limits,
            more=more,
        ),
        Result(
            "open-many memory",
            "the same, all loaded: memory",
            memory[0] / MOST_MB,
            f"{memory[0]:.0f} MB",
            f"{MOST_MB:g} MB",
            **limits,
        ),
        Result(
            "open-many killed",
            "the same after a kill: first answer",
            answered / middle,
            f"{answered:.2f} s; all recovered after {recovered:.1f} s, {each:.1f} ms each",
            f"{middle:.2f} s after a clean close",
            None,
            2.0,
            at_most=True,
        ),
    ]


def _make(log_dir: Path, count: int, *, ends_well: bool) -> float:
    """Make a store of `count` partitions with the same content; nothing is flushed unless it `ends_well`."""
    from logfs.format.base.names import parse_directory
    from logfs.format.files import checkpoint
    from logfs.store.directory.log_dir import HIGH_WATERMARKS, RECOVERY_POINTS
    from logfs.store.store import Store

    # The present time: retention must not delete anything.
    store = Store(log_dir)
    seed = store.create(_name(0))
    for number in range(SEGMENTS):
        if number:
            seed.roll(store.clock())
        seed.append_lines(b"x" * 99 * RECORDS_A_SEGMENT + b"\n")
    end = seed.log_end_offset
    if ends_well:
        store.close()
    files = {path.name: path for path in seed.directory.iterdir()}
    for number in range(1, count):
        other = log_dir / _name(number)
        other.mkdir()
        for name, path in files.items():
            # The preallocated indexes of the killed store stay sparse.
            if path.stat().st_size > 1 << 20:
                with (other / name).open("wb") as file:
                    file.truncate(path.stat().st_size)
            else:
                shutil.copyfile(path, other / name)
    points = {parse_directory(_name(n)): end if ends_well else 0 for n in range(count)}
    for name in (RECOVERY_POINTS, HIGH_WATERMARKS):
        (log_dir / name).write_bytes(checkpoint.format_offsets(points))
    return 0.0


def _name(number: int) -> str:
    return f"many-{number // 100}-{number % 100}"


def _read_one(mount: Daemon, number: int) -> None:
    value = (mount.path / _name(number) / f"offsets/{SEGMENTS - 1}").read_bytes()
    expect("the last record", value, b"x" * 99 * RECORDS_A_SEGMENT)


def wait_until_loaded(mount: Daemon, count: int) -> int:
    """Wait until all partitions are loaded; return the bytes that recovery has read."""
    end = time.monotonic() + 600
    while time.monotonic() < end:
        status = json.loads((mount.path / ".logfs/status.json").read_text())
        if not status["unloaded"]:
            expect("partitions", (status["partitions"], status["offline"]), (count, {}))
            return int(status["recovered_bytes"])
        time.sleep(0.2)
    raise Failed("not all partitions were loaded in ten minutes")
