"""The load on a live mount until its power is cut. It records outside the image what is durable.

Each worker is a process. It appends lines to a file `ROUND-NAME` outside the image. A time is `time.monotonic`:

    w N C        write returned: records N to N+C-1 of this writer can be read
    o L          the last of them has offset L
    s TIME       fsync returned: every `w` before is durable
    try …        the request that follows
    done TIME …  the request succeeded, and is durable
    retry …      the request was refused for now, and is repeated
    e TIME …     a call failed: the worker ends
"""

from __future__ import annotations

import ctypes
import errno
import hashlib
import json
import os
import random
import signal
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

GROUP_PARTITION = "plain-0"
CONFIGURED = "timed-0/config/delete.retention.ms"
STAGED = ("staged-0", "staged-1")
COMMITTER = "power"
KEYS = 7
_PR_SET_PDEATHSIG = 1
# The errnos of a dead mount, and of a file system without power.
_DEAD = {errno.ENOTCONN, errno.ECONNABORTED, errno.EIO, errno.ENODEV, errno.EROFS}


# The data: all of it is derived from the writer's name and a number.


def padding(text: str, most: int = 200) -> str:
    """Return up to `most` hexadecimal digits derived from a text."""
    digest = hashlib.blake2b(text.encode()).hexdigest()
    return (digest * 4)[: int(digest[:4], 16) % most]


def value_of(name: str, number: int) -> str:
    """Return the value of a writer's record."""
    return f"{name} {number} {padding(f'{name} {number}')}"


def keyed(name: str, number: int) -> tuple[str, str | None]:
    """Return key and value of a writer's record in the compacted topic. Every eleventh is a tombstone.

    The key names the worker without its round, so a key has one writer in all rounds.
    """
    key = f"{name.partition('-')[2]}.{number * 3 % KEYS}"
    return key, None if number % 11 == 5 else value_of(name, number)


def staged_values(sequence: int, partition: str) -> list[str]:
    """Return the values of a commit for a partition."""
    count = 1 + (3 * sequence + STAGED.index(partition)) % 7
    return [value_of(f"commit:{partition}:{sequence}", number) for number in range(count)]


# The settings of the topics.


@dataclass(frozen=True)
class Profile:
    """Partitions and settings of one chain."""

    topics: dict[str, dict[str, str]]
    broker: dict[str, str]

    @classmethod
    def choose(cls, numbers: random.Random) -> Profile:
        """Choose small segments and short intervals, so that everything happens within seconds."""
        size = numbers.choice((2048, 4096, 8192, 16384, 65536))

        def topic(**more: str) -> dict[str, str]:
            settings = {
                "segment.bytes": str(size),
                "index.interval.bytes": numbers.choice(("64", "256", "1024")),
                "segment.index.bytes": numbers.choice(("2048", "8192", "1000000")),
                **{name.replace("_", "."): value for name, value in more.items()},
            }
            codec = numbers.choice(("", "", "zstd", "lz4"))
            if codec:
                settings["compression.type"] = codec
            if numbers.random() < 0.15:
                settings["preallocate"] = "true"
            if numbers.random() < 0.2:
                settings["flush.messages"] = "10"
            return settings

        topics = {
            "plain": topic(),
            "timed": topic(),
            "sized": topic(retention_bytes=str(8 * size)),
            "trimmed": topic(),
            "keyed": topic(cleanup_policy="compact", min_cleanable_dirty_ratio="0.01"),
            "staged": topic(),
        }
        if numbers.random() < 0.2:
            topics["plain"]["message.timestamp.type"] = "LogAppendTime"
        broker = {
            "log.initial.task.delay.ms": "0",
            "log.retention.check.interval.ms": "300",
            "log.flush.offset.checkpoint.interval.ms": numbers.choice(("200", "60000")),
            "log.cleaner.backoff.ms": "200",
            "log.cleaner.min.cleanable.ratio": "0.01",
            "log.segment.delete.delay.ms": numbers.choice(("0", "500", "60000")),
            "offsets.topic.num.partitions": "2",
            "offsets.topic.segment.bytes": "2048",
        }
        return cls(topics, broker)

    @property
    def partitions(self) -> list[str]:
        """The names of the partitions."""
        return [f"{topic}-0" for topic in self.topics] + [STAGED[1]]

    def prepare(self, mountpoint: Path) -> None:
        """Create the partitions and change all settings, through the mount."""
        for name, value in self.broker.items():
            (mountpoint / ".logfs/config" / name).write_text(value + "\n")
        for name in self.partitions:
            (mountpoint / name).mkdir()
        for topic, settings in self.topics.items():
            for name, value in settings.items():
                (mountpoint / f"{topic}-0/config" / name).write_text(value + "\n")

    def to_json(self) -> dict[str, Any]:
        """Return the profile as JSON, for another process."""
        return asdict(self)


# The workers.


class Worker:
    """The mount, the round, the name and the file of acknowledgements of a worker."""

    def __init__(self, spec: dict[str, Any], kind: str, number: int) -> None:
        self.mountpoint = Path(spec["mountpoint"])
        self.log_dirs = [Path(path) for path in spec["log_dirs"]]
        self.acks = Path(spec["acks"])
        self.name = f"{spec['round']}-{kind}{number}"
        self.random = random.Random(f"{spec['seed']}/{self.name}")
        # Whether the worker does one thing, and ends once that is durable.
        self.once: bool = spec["once"]
        self._rounds = 0
        self._end = None if spec["seconds"] is None else time.monotonic() + spec["seconds"]
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        self._notes = os.open(self.acks / self.name, flags, 0o644)

    @property
    def goes_on(self) -> bool:
        """Whether the worker must not end yet. Asked before each round of work."""
        self._rounds += 1
        if self.once:
            return self._rounds == 1
        return self._end is None or time.monotonic() < self._end

    def note(self, *words: object) -> None:
        """Write a line of acknowledgement."""
        os.write(self._notes, " ".join(map(str, words)).encode() + b"\n")

    def rest(self, milliseconds: float) -> None:
        """Sleep for at most `milliseconds`."""
        time.sleep(self.random.random() * milliseconds / 1000)

    def control(self, path: str, words: str) -> None:
        """Write one value to a file of the mount, durably."""
        fd = os.open(self.mountpoint / path, os.O_WRONLY | os.O_CREAT)
        try:
            os.write(fd, words.encode() + b"\n")
            os.fsync(fd)
        finally:
            os.close(fd)

    def status(self, partition: str) -> dict[str, Any]:
        """Return the `status.json` of a partition."""
        found: dict[str, Any] = json.loads(
            (self.mountpoint / partition / "status.json").read_bytes()
        )
        return found


def _append(
    worker: Worker, path: str, make: Callable[[int], str], flags: int, every: int, pause: float
) -> None:
    """Append lines, and fsync about every `every` writes. 0 means never; with O_DSYNC each write syncs."""
    fd = os.open(worker.mountpoint / path, os.O_WRONLY | os.O_APPEND | flags)
    number = 0
    while worker.goes_on:
        count = worker.random.choice((1, 1, 2, 5))
        data = "".join(make(number + n) + "\n" for n in range(count)).encode()
        done = os.write(fd, data)
        if done != len(data):
            raise OSError(errno.EIO, f"write took {done} of {len(data)} bytes")
        now = time.monotonic()
        worker.note("w", number, count)
        if flags & os.O_DSYNC:
            worker.note("s", now)
        worker.note("o", os.getxattr(fd, "user.logfs.last_offset").decode())
        number += count
        if every and (worker.once or not worker.random.randrange(every)):
            os.fsync(fd)
            worker.note("s", time.monotonic())
        worker.rest(pause)
    os.close(fd)


def _lines(topic: str, flags: int, every: int, pause: float) -> Callable[[Worker], None]:
    def work(worker: Worker) -> None:
        make = lambda number: value_of(worker.name, number)  # noqa: E731
        _append(worker, f"{topic}-0/append", make, flags, every, pause)

    return work


def _timed(worker: Worker) -> None:
    """Append records with their own timestamps, which vary by up to 2 s in both directions."""
    base = time.time_ns() // 1_000_000 - 60_000

    def make(number: int) -> str:
        timestamp = base + 5 * number + worker.random.randrange(-2000, 2000)
        return json.dumps({"value": value_of(worker.name, number), "timestamp": timestamp})

    _append(worker, "timed-0/append.jsonl", make, 0, 3, 3)


def _keyed(worker: Worker) -> None:
    """Append keys that are overwritten all the time, and sometimes deleted."""

    def make(number: int) -> str:
        key, value = keyed(worker.name, number)
        headers = [["id", f"{worker.name} {number}"]]
        return json.dumps({"key": key, "value": value, "headers": headers})

    # With rare syncs, a newer version is only in memory when compaction could drop the durable one.
    every = worker.random.choice((3, 100, 100))
    _append(worker, "keyed-0/append.jsonl", make, 0, every, 3)


def _delete(worker: Worker) -> None:
    """Raise the log start offset of `trimmed-0`, up to the log end offset."""
    while worker.goes_on:
        worker.rest(300)
        status = worker.status("trimmed-0")
        start, end = status["log_start_offset"], status["log_end_offset"]
        offset = end if worker.random.random() < 0.1 else worker.random.randint(start, end)
        worker.note("try", offset)
        worker.control("trimmed-0/log-start-offset", str(offset))
        worker.note("done", time.monotonic(), offset)


def _groups(worker: Worker) -> None:
    """Append a line durably, and commit the offset after it for a group."""
    fd = os.open(worker.mountpoint / GROUP_PARTITION / "append", os.O_WRONLY | os.O_DSYNC)
    number = 0
    while worker.goes_on:
        os.write(fd, value_of(worker.name, number).encode() + b"\n")
        now = time.monotonic()
        worker.note("w", number, 1)
        worker.note("s", now)
        number += 1
        last = int(os.getxattr(fd, "user.logfs.last_offset"))
        worker.note("o", last)
        group = f"group{worker.random.randrange(3)}"
        worker.note("try", group, last + 1)
        worker.control(f"{GROUP_PARTITION}/groups/{group}", str(last + 1))
        worker.note("done", time.monotonic(), group, last + 1)
        worker.rest(10)
    os.close(fd)


def _commit(worker: Worker) -> None:
    """Commit staged batches to two partitions at once. An unanswered commit is sent again with the same number."""
    from logfs.log.disk.disk import Disk
    from logfs.store.settings import Settings

    sequence = next_sequence(worker.acks)
    while worker.goes_on:
        worker.note("try", sequence)
        settings = Settings([(Disk(), path) for path in worker.log_dirs])
        if _commit_once(worker, sequence, settings):
            sequence += 1
        worker.rest(30)


def _commit_once(worker: Worker, sequence: int, settings: Any) -> bool:
    from logfs.format.batches.record import Record
    from tests.support.staging import commit_through, stage

    try:
        files = []
        for name in STAGED:
            home = next(path / name for path in worker.log_dirs if (path / name).is_dir())
            values = [Record(value.encode()) for value in staged_values(sequence, name)]
            config = settings.log_config(name.rpartition("-")[0])
            now_ms = time.time_ns() // 1_000_000
            files.append(stage(home, config, COMMITTER, sequence, values, now_ms=now_ms))
    except (FileNotFoundError, StopIteration) as error:
        # The partition is being moved to another log directory.
        worker.note("retry", sequence, repr(error))
        return False
    try:
        done = commit_through(worker.mountpoint, COMMITTER, sequence, files)
    except OSError as error:
        worker.note("retry", sequence, repr(error))
        if error.errno not in (errno.EAGAIN, errno.ENOENT):
            raise
        return False
    worker.note("done", time.monotonic(), sequence, json.dumps(done["offsets"]))
    return True


def next_sequence(acks: Path) -> int:
    """Return the first sequence number without an acknowledged commit."""
    done = [line.split(" ") for line in notes_of(acks, "commit") if line.startswith("done ")]
    return max((int(words[2]) for words in done), default=-1) + 1


def notes_of(acks: Path, kind: str) -> list[str]:
    """Return all lines of the workers of a kind, in the order of their rounds."""
    paths = [path for path in acks.glob("*-*") if path.name.partition("-")[2].startswith(kind)]
    paths.sort(key=lambda path: int(path.name.partition("-")[0]))
    return [line for path in paths for line in path.read_text().splitlines()]


def _move(worker: Worker) -> None:
    """Move partitions between the log directories."""
    names = ["plain-0", "timed-0", "sized-0", "trimmed-0", "keyed-0", "staged-0"]
    while worker.goes_on:
        worker.rest(200)
        name = worker.random.choice(names)
        there = next((path for path in worker.log_dirs if not (path / name).is_dir()), None)
        if there is None:
            continue
        worker.note("try", name, there.name)
        worker.control(f"{name}/ctl", f"move {there}")
        end = time.monotonic() + 3
        while not (there / name).is_dir() and time.monotonic() < end:
            time.sleep(0.01)
            os.stat(worker.mountpoint / ".logfs")
        if (there / name).is_dir():
            worker.note("moved", name)


def _configure(worker: Worker) -> None:
    """Change a setting that has no effect here. It is durable when write returns."""
    while worker.goes_on:
        worker.rest(300)
        value = str(1000 + worker.random.randrange(10**6))
        worker.note("try", value)
        (worker.mountpoint / CONFIGURED).write_text(value + "\n")
        worker.note("done", time.monotonic(), value)


def _make(worker: Worker) -> None:
    """Create partitions. They are durable when mkdir returns."""
    number = 0
    while worker.goes_on:
        worker.rest(600)
        name = f"extra-{1000 * int(worker.name.partition('-')[0]) + number}"
        worker.note("try", name)
        os.mkdir(worker.mountpoint / name)
        worker.note("done", time.monotonic(), name)
        number += 1


def _nudge(worker: Worker) -> None:
    """Ask for rolls, compaction, retention and checkpoints, and look up keys."""
    requests = [
        ("keyed-0/ctl", "compact"),
        (".logfs/ctl", "retain"),
        (".logfs/ctl", "checkpoint"),
        *((f"{name}-0/ctl", "roll") for name in ("plain", "timed", "sized", "keyed", "staged")),
    ]
    while worker.goes_on:
        worker.rest(150)
        path, words = worker.random.choice(requests)
        worker.note("try", path, words)
        worker.control(path, words)
        for name in os.listdir(worker.mountpoint / "keyed-0/keys")[:3]:
            try:
                os.readlink(worker.mountpoint / "keyed-0/keys" / name)
            except FileNotFoundError:
                # Deleted or replaced in the meantime.
                pass


def run(spec: dict[str, Any]) -> int:
    """Start the workers of a round, and wait until all have ended."""
    numbers = random.Random(spec["seed"])
    dsync = os.O_DSYNC
    always: list[tuple[str, Callable[[Worker], None]]] = [
        ("line", _lines("plain", 0, 1, 4)),
        ("line", _lines("plain", dsync, 0, 4)),
    ]
    durable: list[tuple[str, Callable[[Worker], None]]] = [
        ("timed", _timed),
        ("sized", _lines("sized", 0, 1, 2)),
        ("sized", _lines("sized", dsync, 0, 2)),
        ("trimmed", _lines("trimmed", 0, 2, 4)),
        ("delete", _delete),
        ("keyed", _keyed),
        ("keyed", _keyed),
        ("group", _groups),
        ("commit", _commit),
        ("single", _lines("staged", 0, 2, 8)),
        ("configure", _configure),
        ("make", _make),
    ]
    if len(spec["log_dirs"]) > 1:
        durable.append(("move", _move))
    others: list[tuple[str, Callable[[Worker], None]]] = [
        ("line", _lines("plain", 0, 20, 8)),
        ("lazy", _lines("plain", 0, 0, 20)),
        ("nudge", _nudge),
    ]
    if spec["once"]:
        chosen = [numbers.choice(always + durable)]
    else:
        chosen = always + [each for each in durable + others if numbers.random() < 0.7]
    libc = ctypes.CDLL(None)
    pids = []
    for number, (kind, work) in enumerate(chosen):
        pid = os.fork()
        if not pid:
            libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            _work(Worker(spec, kind, number), work)
        pids.append(pid)
    for pid in pids:
        os.waitpid(pid, 0)
    return 0


def _work(worker: Worker, work: Callable[[Worker], None]) -> None:
    try:
        work(worker)
    except BaseException as error:
        worker.note("e", time.monotonic(), repr(error).replace("\n", " "))
    finally:
        os._exit(0)
