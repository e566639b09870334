"""The rows of starting: short commands, and a mount of very many partitions, closed cleanly and killed."""

from __future__ import annotations

import json
import resource
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from harness import PARTITION, Bench, Failed, Result, expect, in_rounds, logfs, say, settle
from rows import CAT_BYTES, in_child, row

if TYPE_CHECKING:
    from harness import Daemon

SEGMENTS = 10
RECORDS_A_SEGMENT = 20
MOST_SECONDS = 2.0
MOST_MB = 300.0
# The processor time of a short command, and of an import of the package.
COMMAND_MS, IMPORT_MS = 150, 60
# The time from the start of a small mount to its first answer.
MOUNT_MS = 300


@row
def short_commands(bench: Bench) -> list[Result]:
    """The processor time of commands that print or append one record, beside kcat's; the first answer of a mount."""
    scratch = bench.directory("short-commands")
    log_dir, lines = bench.log(1_000_000, CAT_BYTES)
    whole, own = f"{log_dir}/{PARTITION}", f"{scratch}/log/{PARTITION}"
    command = str(Path(sys.executable).with_name("logfs"))
    kcat = shutil.which("kcat") or shutil.which("kafkacat")
    _processor_ms([command, "create", "-p", own])
    commands = {
        "cat -n 1": ([command, "cat", "-n", "1", whole], COMMAND_MS),
        "tail -n 1": ([command, "tail", "-n", "1", whole], COMMAND_MS),
        "describe": ([command, "describe", whole], COMMAND_MS),
        "append": ([command, "append", own], COMMAND_MS),
        "import logfs": ([sys.executable, "-c", "import logfs"], IMPORT_MS),
        "python -c pass": ([sys.executable, "-c", "pass"], None),
        "kcat -V": ([kcat, "-V"] if kcat else None, None),
    }
    sides = {name: words for name, (words, _) in commands.items() if words}
    found = in_rounds(
        bench.pick(11, 5), *(lambda words=words: _processor_ms(words) for words in sides.values())
    )
    middle = {name: statistics.median(each) for name, each in zip(sides, found, strict=True)}
    peers = ", ".join(f"{name} {middle[name]:.0f} ms" for name in sides if not commands[name][1])
    last = subprocess.run(commands["tail -n 1"][0], check=True, capture_output=True).stdout
    expect("the last record", last.rstrip(b"\n"), lines.value(999_999))
    mounted = statistics.median(_mount_ms(scratch) for _ in range(bench.pick(11, 5)))
    answer = Result(
        "short mount",
        f"logfs mount: first answer, of {MOUNT_MS} ms",
        mounted / MOUNT_MS,
        f"{mounted:.0f} ms",
        f"{MOUNT_MS} ms",
        None,
        1.0,
        at_most=True,
    )
    return [
        Result(
            f"short {name}",
            f"{name}: processor time, of {limit} ms",
            middle[name] / limit,
            f"{middle[name]:.0f} ms",
            f"{limit} ms; {peers}",
            None,
            1.0,
            at_most=True,
        )
        for name, (_, limit) in commands.items()
        if limit
    ] + [answer]


def _mount_ms(scratch: Path) -> float:
    """Mount a small log, and return the time until a record was read, in ms."""
    start = time.perf_counter()
    with logfs(scratch, scratch / "log", waits_until_idle=False) as mount:
        (mount.path / PARTITION / "offsets/0").read_bytes()
        return (time.perf_counter() - start) * 1000


def _processor_ms(words: list[str]) -> float:
    """Run a command, which may read a line, and return its processor time in ms."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(words, check=True, input=b"a line\n", stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime) * 1000


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
