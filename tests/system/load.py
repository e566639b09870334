"""Writers and other work on a log while it is killed: a commit, which has no command line, and load on a mount.

All of it runs in processes of its own (`tests.support.spawner`), and the acknowledged data is in files when they end.
"""

from __future__ import annotations

import errno
import json
import os
import pickle
import random
import sys
import threading
import time
import traceback
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from logfs.errors import LogfsError
from logfs.format.batches.record import Record
from logfs.log.disk.disk import Disk
from logfs.store.admin import commit_client
from logfs.store.directory.mount_table import DEAD_ERRORS, is_dead
from logfs.store.settings import Settings
from tests.support.staging import commit_through, stage
from tests.system.scenes import log_dirs

if TYPE_CHECKING:
    from collections.abc import Callable

    from logfs.format.files.commit_file import StagedFile

# The partitions under load, with the settings of their topics.
TOPICS = {
    "grow": {"segment.bytes": "6000", "index.interval.bytes": "500"},
    "room": {"segment.bytes": "8000", "index.interval.bytes": "300", "preallocate": "true"},
    "short": {
        "segment.bytes": "2000",
        "index.interval.bytes": "200",
        "retention.bytes": "9000",
        "file.delete.delay.ms": "0",
    },
    "keys": {
        "segment.bytes": "3000",
        "index.interval.bytes": "200",
        "cleanup.policy": "compact",
        "file.delete.delay.ms": "0",
    },
    "moved": {"segment.bytes": "3000", "index.interval.bytes": "300"},
    "commit": {"segment.bytes": "4000", "index.interval.bytes": "300", "retention.ms": "-1"},
}
PARTITIONS = ("grow-0", "room-0", "short-0", "keys-0", "moved-0", "commit-0", "commit-1")
KEYS = 17
# The pause between writes, so that what is written can be checked in the available time.
_PAUSE_SECONDS = 0.002
_DYING_SECONDS = 0.2


def stage_values(
    log_dir: Path,
    writer: str,
    sequence: int,
    wanted: dict[str, list[bytes]],
    timestamp: int = 1_700_000_000_000,
) -> list[StagedFile]:
    """Stage values for partitions of a log directory, as a task of a data pipeline does."""
    settings = Settings([(Disk(), log_dir)])
    return [
        stage(
            log_dir / name,
            settings.log_config(name.rpartition("-")[0]),
            writer,
            sequence,
            [Record(value, None, [], timestamp + sequence) for value in values],
            now_ms=timestamp,
        )
        for name, values in wanted.items()
    ]


def commit(root: str) -> None:
    """Commit staged batches to two partitions of a scene."""
    log_dir = log_dirs(Path(root))[0]
    wanted = {
        name: [b"%s %d %s" % (name.encode(), number, b"." * 50) for number in range(25)]
        for name in ("plain-0", "txn-0")
    }
    try:
        commit_client.commit(log_dir, "writer", 0, stage_values(log_dir, "writer", 0, wanted))
    except (LogfsError, OSError) as error:
        sys.exit(f"logfs: {error}")


# Load on a mount.


@dataclass
class Acknowledged:
    """What a mount has acknowledged to the load of one cycle."""

    lines: dict[str, int] = field(default_factory=dict)
    """Of each writer, how many of its lines are in the log: the write returned."""
    offsets: dict[str, dict[int, bytes]] = field(default_factory=dict)
    """Lines of which the mount has told the offset, by partition."""
    keys: dict[int, int] = field(default_factory=dict)
    """Of each key, the number of the newest record."""
    commits: list[int] = field(default_factory=list)
    """Sequence numbers of commits that were answered."""
    errors: list[str] = field(default_factory=list)
    """Errors of calls while the mount was alive."""
    asked: dict[str, int] = field(default_factory=dict)
    """How often upkeep was asked for what."""


def run_load(mountpoint: str, answer: str, cycle: int, seed: int, first_commit: int) -> None:
    """Write, read and ask for upkeep until the mount is dead; then save what was acknowledged."""
    load = _Load(Path(mountpoint), cycle, seed, first_commit)
    load.run()
    Path(answer).write_bytes(pickle.dumps(load.done))


def line(writer: str, number: int) -> bytes:
    """Return a writer's line of that number."""
    return b"%s %d %s" % (writer.encode(), number, b"." * (number % 50))


class _Load:
    def __init__(self, mountpoint: Path, cycle: int, seed: int, first_commit: int) -> None:
        self.mountpoint = mountpoint
        self.cycle = cycle
        self.seed = seed
        self.first_commit = first_commit
        self.done = Acknowledged()
        told = json.loads((mountpoint / ".logfs/status.json").read_bytes())
        self.log_dirs = [
            Path(each["path"] if isinstance(each, dict) else each) for each in told["log_dirs"]
        ]
        self.ended = threading.Event()

    def run(self) -> None:
        works: list[Callable[[], None]] = [
            lambda: self._write_lines("grow-0", "a"),
            lambda: self._write_lines("grow-0", "b"),
            lambda: self._write_lines("room-0", "a"),
            lambda: self._write_lines("short-0", "a"),
            lambda: self._write_lines("moved-0", "a"),
            self._write_keys,
            self._commit,
            self._ask,
        ]
        threads = [threading.Thread(target=self._guarded, args=(work,)) for work in works]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        except OSError as error:
            is_dead = error.errno in DEAD_ERRORS or (error.errno == errno.EIO and self._dies())
            if not is_dead and not self.ended.is_set():
                self.done.errors.append(traceback.format_exc())
        except Exception:
            self.done.errors.append(traceback.format_exc())
            raise
        finally:
            self.ended.set()

    def _dies(self) -> bool:
        """Whether the mount dies now: the kernel returns EIO for a read that a killed daemon had begun."""
        time.sleep(_DYING_SECONDS)
        return is_dead(self.mountpoint)

    def _write_lines(self, name: str, suffix: str) -> None:
        writer = f"{self.cycle}-{name}-{suffix}"
        chooser = random.Random(f"{self.seed} {writer}")
        offsets = self.done.offsets.setdefault(name, {})
        self.done.lines[writer] = number = 0
        flags = os.O_WRONLY | (os.O_DSYNC if suffix == "b" else 0)
        fd = os.open(self.mountpoint / name / "append", flags)
        while True:
            count = chooser.choice((1, 1, 2, 5))
            lines = [line(writer, number + i) for i in range(count)]
            data = b"".join(line + b"\n" for line in lines)
            if os.write(fd, data) != len(data):
                self.done.errors.append(f"{writer}: a short write")
                return
            if not number and suffix == "a":
                print("started", flush=True)
            number += count
            self.done.lines[writer] = number
            if chooser.random() < 0.3:
                told = os.getxattr(self.mountpoint / name / "append", "user.logfs.last_offset")
                if suffix == "a" and name != "grow-0":
                    # Another thread of this process writes to grow-0 too.
                    offsets[int(told)] = lines[-1]
            if chooser.random() < 0.1:
                os.fsync(fd)
            time.sleep(_PAUSE_SECONDS * chooser.random() * 2)

    def _write_keys(self) -> None:
        fd = os.open(self.mountpoint / "keys-0/append.jsonl", os.O_WRONLY)
        number = 0
        while True:
            envelope = {"key": f"k{number % KEYS}", "value": f"{self.cycle} {number}"}
            data = json.dumps(envelope).encode() + b"\n"
            if os.write(fd, data) != len(data):
                self.done.errors.append("keys-0: a short write")
                return
            self.done.keys[number % KEYS] = number
            number += 1
            time.sleep(_PAUSE_SECONDS)

    def _commit(self) -> None:
        sequence = self.first_commit
        while True:
            wanted = {
                name: [b"%d %d %s" % (sequence, n, b"." * 40) for n in range(6)]
                for name in ("commit-0", "commit-1")
            }
            # Both partitions are in one log directory, and stay there.
            home = next(each for each in self.log_dirs if (each / "commit-0").is_dir())
            staged = stage_values(home, "load", sequence, {"commit-0": wanted["commit-0"]})
            home = next(each for each in self.log_dirs if (each / "commit-1").is_dir())
            staged += stage_values(home, "load", sequence, {"commit-1": wanted["commit-1"]})
            commit_through(self.mountpoint, "load", sequence, staged)
            self.done.commits.append(sequence)
            sequence += 1
            time.sleep(_PAUSE_SECONDS)

    def _ask(self) -> None:
        chooser = random.Random(f"{self.seed} ask {self.cycle}")
        while True:
            path, word = chooser.choice(
                (
                    ("short-0/ctl", "retain"),
                    ("keys-0/ctl", "roll"),
                    ("keys-0/ctl", "compact"),
                    ("keys-0/ctl", "compact"),
                    ("grow-0/ctl", "roll"),
                    ("moved-0/ctl", "move"),
                    ("moved-0/ctl", "move"),
                    (".logfs/ctl", "checkpoint"),
                )
            )
            text = word
            if word == "move":
                text = f"move {chooser.choice(self.log_dirs)}"
            try:
                (self.mountpoint / path).write_text(text + "\n")
                self.done.asked[word] = self.done.asked.get(word, 0) + 1
            except OSError:
                # A move to where the partition is, or while another one runs, is refused.
                if word != "move":
                    raise
                os.stat(self.mountpoint)
            time.sleep(chooser.random() * 0.03)
