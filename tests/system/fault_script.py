"""About 300 calls on a mount whose system calls fail, and a journal of the outcome of each.

The script runs in a process of its own, so that a call that never returns is noticed.
"""

from __future__ import annotations

import errno
import json
import os
import pickle
import random
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from tests.support.staging import commit_through
from tests.system.load import stage_values

if TYPE_CHECKING:
    from collections.abc import Callable

SETTINGS = {
    "a-0": {"segment.bytes": "2500", "index.interval.bytes": "200", "segment.index.bytes": "2000"},
    "b-0": {
        "segment.bytes": "3000",
        "index.interval.bytes": "200",
        "retention.bytes": "6000",
        "file.delete.delay.ms": "0",
        "preallocate": "true",
    },
    "k-0": {
        "segment.bytes": "1500",
        "index.interval.bytes": "200",
        "cleanup.policy": "compact",
        "file.delete.delay.ms": "0",
    },
    "c-0": {"segment.bytes": "2000"},
}
KEYS = 7


class Step(NamedTuple):
    """One call: its description, its errno (0 if it did not fail), and its duration."""

    what: str
    errno: int
    seconds: float


@dataclass
class Journal:
    """The calls on a mount, and what it acknowledged."""

    steps: list[Step] = field(default_factory=list)
    tried: dict[str, list[bytes]] = field(default_factory=dict)
    """Values of each partition, in the order in which they were written, whatever became of it."""
    acknowledged: dict[str, list[bytes]] = field(default_factory=dict)
    """Those of them whose write returned."""
    offsets: dict[str, dict[int, bytes]] = field(default_factory=dict)
    """The offsets that the mount has told of them."""
    commits: list[int] = field(default_factory=list)
    partitions: dict[str, bool] = field(default_factory=dict)
    """Whether the last mkdir or rmdir of a name that succeeded was a mkdir."""
    settings: dict[str, str] = field(default_factory=dict)
    groups: dict[str, str] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)
    """Answers that are no errors, and not right."""


def run_script(mountpoint: str, log_dirs: str, directory: str, seed: int) -> None:
    """Make all calls, one after the other. `steps` names each before it begins, so that one that hangs is known."""
    script = _Script(
        Path(mountpoint), [Path(p) for p in log_dirs.split(":")], Path(directory), seed
    )
    try:
        script.run()
    finally:
        (Path(directory) / "journal").write_bytes(pickle.dumps(script.journal))


class _Script:
    def __init__(self, mountpoint: Path, log_dirs: list[Path], directory: Path, seed: int) -> None:
        self.mountpoint = mountpoint
        self.log_dirs = log_dirs
        self.journal = Journal()
        self.random = random.Random(seed)
        self.steps = (directory / "steps").open("w", buffering=1)
        self.number = 0
        self.sequence = 0

    def call(self, what: str, work: Callable[[], object]) -> object:
        """Make one call, and return its result, or None if it failed."""
        self.steps.write(f"{time.time()} {what}\n")
        began = time.monotonic()
        number = 0
        result: object = None
        try:
            result = work()
        except OSError as error:
            number = error.errno or errno.EIO
        self.journal.steps.append(Step(what, number, time.monotonic() - began))
        return True if result is None and not number else result

    def run(self) -> None:
        """Create the partitions and their settings, then make all kinds of calls in an order that the seed gives."""
        for name, settings in SETTINGS.items():
            self.make(name)
            for setting, value in settings.items():
                self.configure(name, setting, value)
        kinds: list[Callable[[], object]] = [
            *([lambda: self.append("a-0", 1)] * 40),
            *([lambda: self.append("a-0", 6)] * 15),
            *([lambda: self.append("b-0", 3)] * 30),
            *([self.append_key] * 30),
            *([lambda: self.append("a-0", 2, os.O_DSYNC)] * 6),
            *([lambda: self.sync("a-0")] * 8),
            *([lambda: self.sync("b-0")] * 4),
            *([self.read_offset] * 20),
            *([self.read_time] * 10),
            *([self.read_key] * 10),
            *([self.read_all] * 6),
            *([self.commit] * 4),
            *([self.commit_group] * 6),
            *([lambda: self.control("a-0", "roll")] * 3),
            *([lambda: self.control("k-0", "roll")] * 3),
            *([lambda: self.control("k-0", "compact")] * 3),
            *([lambda: self.control("b-0", "retain")] * 4),
            *([self.move] * 2),
            *([lambda: self.configure("c-0", "flush.ms", str(self.next_number() + 1000))] * 4),
            *([self.make_and_remove] * 3),
            *([lambda: self.call("ls", lambda: os.listdir(self.mountpoint / "a-0/offsets"))] * 4),
            *([self.read_small] * 8),
        ]
        self.random.shuffle(kinds)
        for kind in kinds:
            kind()
        # Leave a little time for work in the background.
        time.sleep(0.2)
        self.call("stat", lambda: os.stat(self.mountpoint))

    def next_number(self) -> int:
        self.number += 1
        return self.number

    def make(self, name: str) -> None:
        if self.call(f"mkdir {name}", lambda: os.mkdir(self.mountpoint / name)):
            self.journal.partitions[name] = True

    def configure(self, name: str, setting: str, value: str) -> None:
        path = self.mountpoint / name / "config" / setting
        if self.call(f"config {name} {setting}", lambda: _write(path, f"{value}\n".encode())):
            self.journal.settings[f"{name} {setting}"] = value
        else:
            self.journal.settings.pop(f"{name} {setting}", None)

    def append(self, name: str, count: int, flags: int = 0) -> None:
        values = [
            b"%d %s" % (self.next_number(), b"." * self.random.randrange(90)) for _ in range(count)
        ]
        data = b"".join(value + b"\n" for value in values)
        path = self.mountpoint / name / "append"
        done = self.call(f"append {name} {flags}", lambda: _write(path, data, flags))
        self.note(name, values, data, done)

    def note(self, name: str, values: list[bytes], data: bytes, done: object) -> None:
        """Record the values that a write took. A partial write must be whole records."""
        self.journal.tried.setdefault(name, []).extend(values)
        taken = done if isinstance(done, int) and done is not True else 0
        if taken != len(data):
            if taken and data[taken - 1 : taken] != b"\n":
                self.journal.wrong.append(f"{name}: a write of {len(data)} bytes took {taken}")
            values = data[:taken].split(b"\n")[:-1]
        self.journal.acknowledged.setdefault(name, []).extend(values)
        if not values or name == "k-0":
            return
        path = self.mountpoint / name / "append"
        told = self.call(f"getxattr {name}", lambda: os.getxattr(path, "user.logfs.last_offset"))
        if isinstance(told, bytes):
            self.journal.offsets.setdefault(name, {})[int(told)] = values[-1]

    def append_key(self) -> None:
        number = self.next_number()
        value = b"%d" % number
        envelope = {"key": f"k{number % KEYS}", "value": value.decode()}
        data = json.dumps(envelope).encode() + b"\n"
        path = self.mountpoint / "k-0/append.jsonl"
        done = self.call("append k-0", lambda: _write(path, data))
        self.note("k-0", [value], value + b"\n", len(value) + 1 if done == len(data) else done)

    def sync(self, name: str) -> None:
        def work() -> None:
            fd = os.open(self.mountpoint / name / "append", os.O_WRONLY)
            try:
                os.fsync(fd)
            finally:
                os.close(fd)

        self.call(f"fsync {name}", work)

    def read_offset(self) -> None:
        known = self.journal.offsets.get("a-0", {})
        if not known:
            return
        offset = self.random.choice(sorted(known))
        path = self.mountpoint / f"a-0/offsets/{offset}"
        found = self.call("read offset", path.read_bytes)
        if isinstance(found, bytes) and found != known[offset]:
            self.journal.wrong.append(
                f"offset {offset} is read as {found!r}, not {known[offset]!r}"
            )

    def read_time(self) -> None:
        wanted = int(time.time() * 1000) - self.random.randrange(2000)
        path = self.mountpoint / f"a-0/time/{wanted}"
        self.call("read time", lambda: None if _missing(path) else os.readlink(path))

    def read_key(self) -> None:
        path = self.mountpoint / f"k-0/keys/k{self.random.randrange(KEYS)}"
        self.call("read key", lambda: None if _missing(path) else path.read_bytes())

    def read_all(self) -> None:
        found = self.call("read records", (self.mountpoint / "a-0/records").read_bytes)
        if not isinstance(found, bytes):
            return
        lines = found.split(b"\n")[:-1]
        acknowledged = self.journal.acknowledged.get("a-0", [])
        tried = self.journal.tried.get("a-0", [])
        if not is_between(acknowledged, lines, tried):
            self.journal.wrong.append(
                f"records shows {lines[-3:]!r}, {acknowledged[-3:]!r} was due"
            )

    def read_small(self) -> None:
        name = self.random.choice(
            ("a-0/status.json", ".logfs/status.json", ".logfs/metrics", ".logfs/errors", "a-0/ctl")
        )
        self.call(f"read {name}", (self.mountpoint / name).read_bytes)

    def commit(self) -> None:
        """Stage a value without faults, and commit it through the mount."""
        self.sequence += 1
        sequence = self.sequence
        value = b"commit %d" % sequence
        home = next((each for each in self.log_dirs if (each / "c-0").is_dir()), None)
        if home is None:
            return
        now_ms = int(time.time() * 1000)
        staged = stage_values(home, "faults", sequence, {"c-0": [value]}, now_ms)
        if self.call("commit", lambda: commit_through(self.mountpoint, "faults", sequence, staged)):
            self.journal.commits.append(sequence)

    def commit_group(self) -> None:
        text = self.random.choice(("0", "1", "2"))
        path = self.mountpoint / "a-0/groups/billing"
        flags = os.O_CREAT | os.O_SYNC
        if self.call("group", lambda: _write(path, f"{text}\n".encode(), flags)):
            self.journal.groups["billing"] = text
        else:
            self.journal.groups.pop("billing", None)

    def control(self, name: str, word: str) -> None:
        path = self.mountpoint / name / "ctl"
        self.call(f"ctl {name} {word}", lambda: _write(path, word.encode() + b"\n"))

    def move(self) -> None:
        for log_dir in self.log_dirs:
            if not (log_dir / "a-0").is_dir():
                self.control("a-0", f"move {log_dir}")
                last = self.journal.steps[-1]
                if last.errno == errno.EINVAL and (log_dir / "a-0").is_dir():
                    # An earlier move ended between the look and the request.
                    self.journal.steps[-1] = Step(last.what, 0, last.seconds)
                return

    def make_and_remove(self) -> None:
        name = f"tmp-{self.next_number()}"
        self.make(name)
        if self.call(f"rmdir {name}", lambda: os.rmdir(self.mountpoint / name)):
            self.journal.partitions[name] = False
        elif name in self.journal.partitions:
            # The partition may or may not be gone.
            del self.journal.partitions[name]


def is_between(least: list[bytes], found: list[bytes], most: list[bytes]) -> bool:
    """Whether all of `least` is in `found`, and all of `found` in `most`, each in order and once."""
    return _is_within(least, found) and _is_within(found, most)


def _is_within(part: list[bytes], whole: list[bytes]) -> bool:
    rest = iter(whole)
    return all(item in rest for item in part)


def _missing(path: Path) -> bool:
    """Whether there is no such name. Other errors are raised."""
    try:
        os.lstat(path)
    except FileNotFoundError:
        return True
    return False


def _write(path: Path, data: bytes, flags: int = 0) -> int:
    """Make one write(2), and return how many bytes it took."""
    fd = os.open(path, os.O_WRONLY | flags, 0o644)
    try:
        return os.write(fd, data)
    finally:
        os.close(fd)


def write_with_threads(mountpoint: str, partitions: int, lines: int) -> None:
    """Create partitions, write and fsync lines to all of them at the same time, and print the errnos of failures."""
    failures: list[OSError] = []

    def work(number: int) -> None:
        try:
            path = Path(mountpoint) / f"p{number}-0"
            path.mkdir()
            fd = os.open(path / "append", os.O_WRONLY)
            for line in range(lines):
                os.write(fd, b"%d\n" % line)
                os.fsync(fd)
            os.close(fd)
            os.statvfs(path)
        except OSError as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(partitions)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print(*(error.errno for error in failures))
