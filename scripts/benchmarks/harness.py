"""Helpers of all rows: scratch space, daemons, lines, logs, comparisons in alternating order, and the table."""

from __future__ import annotations

import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

MIB = 1 << 20
GIB = 1 << 30
HERE = Path(__file__).parent
PARTITION = "bench-0"
# The first timestamp of the logs that are built here, and the time between two appends.
FIRST_MS = 1_700_000_000_000
# A daemon that used no more processor time than this, in a period of that length, is idle.
_IDLE_CPU_SECONDS = 0.03
_IDLE_SECONDS = 0.5
STEP_MS = 1000


@dataclass
class Result:
    """One line of the table.

    The ratio must be at least `floor` and should be at least `target`; with `at_most` both are upper limits instead.
    """

    name: str
    what: str
    ratio: float | None
    measured: str
    peer: str
    floor: float | None = None
    target: float | None = None
    at_most: bool = False
    spread: tuple[float, float] | None = None
    more: dict[str, object] = field(default_factory=dict)
    # The row that measured it, as `scripts/bench --list` names it.
    row: str = ""
    failed: bool = False

    @property
    def verdict(self) -> str:
        """Whether the ratio reaches floor and target; in capitals if it is below the floor."""
        if self.ratio is None or (self.floor is None and self.target is None):
            return "-"
        if self.floor is not None and not self._reaches(self.floor):
            return "BELOW THE FLOOR"
        if self.target is not None and not self._reaches(self.target):
            return "floor reached, not the target" if self.floor is not None else "not the target"
        return "ok"

    def _reaches(self, limit: float) -> bool:
        assert self.ratio is not None
        return self.ratio <= limit if self.at_most else self.ratio >= limit


class Failed(Exception):
    """The failure of a row, such as data other than expected."""


def expect(what: str, found: object, wanted: object) -> None:
    """Raise `Failed` if `found` is not `wanted`: a benchmark must check the data that it moved."""
    if found != wanted:
        raise Failed(f"{what}: {found!r} instead of {wanted!r}")


# Comparing.


def in_rounds(repeats: int, *sides: Callable[[], float]) -> list[list[float]]:
    """Return the seconds of each side, measured in turns, so that a disturbance of the machine affects all sides."""
    rounds = []
    for number in range(repeats):
        say(f"  {number + 1}/{repeats}")
        rounds.append([side() for side in sides])
    return [list(each) for each in zip(*rounds, strict=True)]


def alternate(
    repeats: int, ours: Callable[[], float], peer: Callable[[], float]
) -> tuple[list[float], list[float]]:
    """Return the seconds of two sides, measured in turns."""
    first, second = in_rounds(repeats, ours, peer)
    return first, second


def faster(ours: list[float], peer: list[float]) -> tuple[float, tuple[float, float]]:
    """Return our speed as a multiple of the peer's, by the medians, and the least and greatest ratio of the pairs."""
    pairs = [b / a for a, b in zip(ours, peer, strict=True)]
    return statistics.median(peer) / statistics.median(ours), (min(pairs), max(pairs))


def timed(work: Callable[[], object]) -> float:
    """Return the seconds that a call of `work` takes."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def percentile(values: list[float], share: float) -> float:
    """Return the value that this share of all values does not exceed."""
    return sorted(values)[min(int(len(values) * share), len(values) - 1)]


def speed(size: int, seconds: list[float]) -> str:
    """Return the speed at the median time, in MB/s."""
    return f"{size / statistics.median(seconds) / 1e6:,.0f} MB/s"


def shell(command: str, *arguments: object) -> str:
    """Run a shell command that must succeed, and return its output; $1, $2 … are the arguments."""
    words = ["sh", "-c", command, "sh", *map(str, arguments)]
    return subprocess.run(words, check=True, capture_output=True, text=True).stdout


def settle() -> None:
    """Wait until all writes are on the disk, so that no measurement includes earlier ones."""
    os.sync()


# Progress.


def say(text: str) -> None:
    """Show a line of progress, which the next one replaces; print nothing if standard error is not a terminal."""
    if sys.stderr.isatty():
        print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)


# Lines.


class Lines:
    """Numbered lines of one length, printable and about as compressible as a service's log; the same in each run."""

    def __init__(self, line_bytes: int) -> None:
        import numpy as np

        self.line_bytes = line_bytes
        self.per_block = 16 * MIB // line_bytes
        rows = np.full((self.per_block, line_bytes), ord(" "), np.uint8)
        random = np.random.default_rng(7)
        words = np.frombuffer(
            b"request accepted by worker in pool, status=200 path=/orders ", np.uint8
        )
        rows[:] = np.resize(words, line_bytes)
        numbers = np.arange(self.per_block)
        for digit in range(8):
            rows[:, 7 - digit] = ord("0") + numbers // 10**digit % 10
        hexadecimal = np.frombuffer(b"0123456789abcdef", np.uint8)
        for start in range(12, line_bytes - 20, 60):
            rows[:, start : start + 16] = hexadecimal[random.integers(0, 16, (self.per_block, 16))]
        rows[:, -1] = ord("\n")
        self.block = rows.tobytes()

    def value(self, number: int) -> bytes:
        """Return the line of a number, without its newline."""
        at = number % self.per_block * self.line_bytes
        return self.block[at : at + self.line_bytes - 1]

    def buffers(self, count: int, buffer_bytes: int) -> Iterator[bytes]:
        """Yield the first `count` lines in buffers of whole lines."""
        each = max(buffer_bytes // self.line_bytes, 1)
        at = 0
        while at < count:
            first = at % self.per_block
            many = min(each, self.per_block - first, count - at)
            yield self.block[first * self.line_bytes : (first + many) * self.line_bytes]
            at += many

    def file(self, path: Path, size: int) -> int:
        """Write a file of about that size; return the number of its lines."""
        count = size // self.line_bytes
        with path.open("wb") as file:
            for buffer in self.buffers(count, self.per_block * self.line_bytes):
                file.write(buffer)
        return count


class Ticking:
    """A clock that advances by STEP_MS with every call."""

    def __init__(self) -> None:
        self.now_ms = FIRST_MS

    def __call__(self) -> int:
        self.now_ms += STEP_MS
        return self.now_ms


def build(log_dir: Path, name: str, lines: Lines, count: int, buffer_bytes: int) -> None:
    """Make a partition of `count` lines with the engine; each buffer becomes a batch with a timestamp of its own."""
    from logfs.store.store import Store

    clock = Ticking()
    with Store(log_dir, clock=clock) as store:
        partition = store.create(name)
        clock.now_ms = FIRST_MS
        for buffer in lines.buffers(count, buffer_bytes):
            expect("bytes appended", partition.append_lines(buffer).consumed, len(buffer))
        expect("records appended", partition.log_end_offset, count)
        store.settings.set_topic(partition.topic, "retention.ms", "-1")


# Daemons.


def remove(partition: Path) -> None:
    """Delete a partition of a mount with its records."""
    end = json.loads((partition / "status.json").read_text())["log_end_offset"]
    (partition / "log-start-offset").write_text(str(end))
    partition.rmdir()


class Daemon:
    """A mount with a process of its own; as a context manager it always unmounts at the end."""

    def __init__(self, command: list[str], mountpoint: Path) -> None:
        mountpoint.mkdir(exist_ok=True)
        self.path = mountpoint
        self.partition = mountpoint / PARTITION
        environment = {**os.environ, "PYTHONPATH": str(HERE.parent.parent)}
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
        )
        assert self.process.stdout is not None
        if not self.process.stdout.readline().endswith("ready\n"):
            assert self.process.stderr is not None
            raise Failed(f"no mount: {self.process.stderr.read()}")

    def __enter__(self) -> Daemon:
        return self

    def __exit__(self, *_: object) -> None:
        subprocess.run(["umount", self.path], check=False, capture_output=True)
        if self.path.is_mount():
            subprocess.run(["fusermount3", "-uz", self.path], check=False, capture_output=True)
        try:
            self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        for pipe in (self.process.stdout, self.process.stderr):
            assert pipe is not None
            pipe.close()

    def memory(self, field_name: str = "VmRSS") -> float:
        """Return the resident memory of the process now, or its maximum so far with VmHWM, in MB."""
        for line in Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
            if line.startswith(field_name + ":"):
                return int(line.split()[1]) * 1024 / 1e6
        raise Failed(f"no {field_name}")

    def wait_until_idle(self) -> None:
        """Wait until the daemon works no more."""
        used = -1.0
        while (now := self._cpu_seconds()) - used > _IDLE_CPU_SECONDS:
            used = now
            time.sleep(_IDLE_SECONDS)

    def _cpu_seconds(self) -> float:
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def read_ahead_knob(self) -> Path:
        """Return the path of the kernel's read-ahead setting of this mount."""
        device = os.stat(self.path).st_dev
        return Path(f"/sys/class/bdi/{os.major(device)}:{os.minor(device)}/read_ahead_kb")


def logfs(
    scratch: Path, log_dir: Path, name: str = "mnt", *, waits_until_idle: bool = True
) -> Daemon:
    """Mount a log directory, and wait until the daemon is idle: after it is ready, it loads its compiled code."""
    mountpoint = scratch / name
    command = [sys.executable, "-m", "logfs", "mount", "-f", str(log_dir), str(mountpoint)]
    daemon = Daemon(command, mountpoint)
    if waits_until_idle:
        daemon.wait_until_idle()
    return daemon


def nullfs(scratch: Path, size: int = 0) -> Daemon:
    """Mount the empty filesystem, with the read-ahead that logfs sets for itself if it is allowed to."""
    mountpoint = scratch / "null"
    daemon = Daemon(
        [sys.executable, str(HERE / "nullfs.py"), str(size), str(mountpoint)], mountpoint
    )
    try:
        daemon.read_ahead_knob().write_text("1024")
    except OSError:
        pass
    return daemon


# The run.


class Bench:
    """The argument of a row: the sizes to use, and the directory to write to."""

    def __init__(self, scratch: Path, *, quick: bool) -> None:
        self.quick = quick
        self.root = Path(tempfile.mkdtemp(prefix="logfs-bench-", dir=scratch))
        self._logs: dict[tuple[object, ...], Path] = {}

    def pick(self, full: int, quick: int) -> int:
        """Return the size for a full or a quick run."""
        return quick if self.quick else full

    def directory(self, name: str) -> Path:
        """Make an empty directory and return it."""
        path = self.root / name
        shutil.rmtree(path, ignore_errors=True)
        path.mkdir(parents=True)
        return path

    def log(self, count: int, buffer_bytes: int) -> tuple[Path, Lines]:
        """Return a log directory with `count` records of 99 bytes in bench-0, and the lines.

        The log is built once for all rows.
        """
        lines = Lines(100)
        key = (count, buffer_bytes)
        if key not in self._logs:
            say(f"  building a log of {count:,} records")
            path = self.directory(f"log-{count}-{buffer_bytes}")
            build(path, PARTITION, lines, count, buffer_bytes)
            self._logs[key] = path
        return self._logs[key], lines

    def clean(self) -> None:
        """Remove everything."""
        shutil.rmtree(self.root, ignore_errors=True)


def machine(scratch: Path) -> dict[str, object]:
    """Describe the machine of the measurements, without host names or paths."""
    from importlib.metadata import version

    memory = next(
        line for line in Path("/proc/meminfo").read_text().splitlines() if "MemTotal" in line
    )
    return {
        "cores": os.cpu_count(),
        "memory_gb": round(int(memory.split()[1]) / 1e6),
        "kernel": platform.release().split("-")[0],
        "python": platform.python_version(),
        "numpy": version("numpy"),
        "numba": version("numba"),
        "pyfuse3": version("pyfuse3"),
        "filesystem": shell('stat -f -c %T "$1"', scratch).strip(),
        "root": os.geteuid() == 0,
    }


def table(results: list[Result]) -> str:
    """Return the results as a Markdown table."""
    lines = [
        "| row | ratio | spread | floor | target | verdict | logfs | peer |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for result in results:
        sign = "<= " if result.at_most else ">= "
        ratio = "-" if result.ratio is None else f"**{result.ratio:.2f}**"
        spread = "-" if result.spread is None else "{:.2f} to {:.2f}".format(*result.spread)
        floor = "-" if result.floor is None else f"{sign}{result.floor:g}"
        target = "-" if result.target is None else f"{sign}{result.target:g}"
        cells = [
            result.what,
            ratio,
            spread,
            floor,
            target,
            result.verdict,
            result.measured,
            result.peer,
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def as_json(
    results: list[Result], described: dict[str, object], *, quick: bool
) -> dict[str, object]:
    """Return the results and the machine, to be written as JSON."""
    rows = [{**asdict(result), "verdict": result.verdict} for result in results]
    return {"machine": described, "quick": quick, "results": rows}


def from_json(content: dict[str, Any]) -> list[Result]:
    """Return the results that `as_json` described."""
    names = {each.name for each in fields(Result)}
    return [
        Result(**{name: value for name, value in each.items() if name in names})
        for each in content["results"]
    ]
