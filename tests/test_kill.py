"""kill -9 of the daemon under load: every fsync that returned was true, and the rest is a prefix of each writer's."""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest

from logfs.store.store import Store
from tests.conftest import Mount, assert_clean

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

KILLS = int(os.environ.get("LOGFS_KILLS", "50"))
WRITERS = 4

# A writer: numbered lines, now and then an fsync, and after it a note of what is durable now. It ends with the mount.
WRITER = """
import os, sys
path, side, name, flags, every = sys.argv[1:]
out = os.open(path, os.O_WRONLY | os.O_APPEND | int(flags))
acks = os.open(side, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
number = 0
try:
    while True:
        count = 1 + number % 3
        lines = "".join(f"{name} {number + i} {'.' * ((number + i) % 50)}\\n" for i in range(count))
        data = lines.encode()
        if os.write(out, data) != len(data):
            break
        number += count
        if int(flags) & os.O_DSYNC:
            os.write(acks, b"%d\\n" % number)
        elif number % int(every) < count:
            os.fsync(out)
            os.write(acks, b"%d\\n" % number)
except OSError:
    pass
"""
LINE = re.compile(rb"(\S+) (\d+) (\.*)")


class Writers:
    """Some processes that append to one partition until the mount dies under them."""

    def __init__(self, mount: Mount, cycle: int, directory: Path) -> None:
        self.sides: dict[bytes, Path] = {}
        self.processes = []
        for number in range(WRITERS):
            name = f"{cycle}-{number}"
            side = directory / f"acks-{name}"
            side.touch()
            self.sides[name.encode()] = side
            flags = os.O_DSYNC if number == 0 else 0
            command = [sys.executable, "-I", "-S", "-c", WRITER, str(mount.path / "a-0/append")]
            arguments = [str(side), name, str(flags), str(3 + 4 * number)]
            self.processes.append(subprocess.Popen(command + arguments))

    def acknowledged(self) -> dict[bytes, int]:
        """How many lines of each writer are durable, by its own word."""
        found = {}
        for name, side in self.sides.items():
            words = side.read_bytes().split(b"\n")[:-1]
            found[name] = int(words[-1]) if words else 0
        return found

    def wait_for_acks(self, count: int) -> None:
        """Let them work until so many lines are durable."""
        end = time.monotonic() + 20
        while sum(self.acknowledged().values()) < count:
            assert time.monotonic() < end, "the writers do not get on"
            assert any(process.poll() is None for process in self.processes)
            time.sleep(0.002)

    def end(self) -> None:
        """They end by themselves when the mount is dead; the stuck are killed, which is a failure."""
        for process in self.processes:
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
                pytest.fail("a writer hung on a dead mount")

    def kill(self) -> None:
        """Whatever happened, nobody stays."""
        for process in self.processes:
            if process.poll() is None:
                process.kill()
            process.wait()


def check_lines(lines: Iterator[bytes], acknowledged: dict[bytes, int]) -> dict[bytes, int]:
    """Each writer's lines are 0, 1, 2, … up to at least what was acknowledged, and nothing else is there."""
    seen = dict.fromkeys(acknowledged, 0)
    for line in lines:
        found = LINE.fullmatch(line)
        assert found is not None, f"an invented line: {line!r}"
        name, number = found[1], int(found[2])
        assert number == seen[name], f"writer {name!r}: line {number}, and {seen[name]} was due"
        assert len(found[3]) == number % 50
        seen[name] += 1
    for name, count in acknowledged.items():
        assert seen[name] >= count, (
            f"writer {name!r}: {count} lines were fsynced, {seen[name]} are there"
        )
    return seen


def test_what_was_fsynced_survives_a_killed_daemon(
    make_mount: Callable[..., Mount], tmp_path: Path
) -> None:
    """After each of many kills under load, all fsynced lines are there, and of the rest a prefix per writer."""
    mount = make_mount()
    topic = mount.partition("a-0")
    (topic / "config/segment.bytes").write_text("100000\n")
    (topic / "config/segment.index.bytes").write_text("8192\n")
    random_number = random.Random(4)
    side = tmp_path / "acks"
    side.mkdir()
    acknowledged: dict[bytes, int] = {}
    checked = 0
    durable = unacknowledged = 0
    for cycle in range(KILLS):
        assert mount.process is not None
        pid = mount.process.pid
        command = (os.fsdecode(b"/proc/%d/cmdline" % pid), str(mount.path))
        with open(command[0], "rb") as file:
            assert os.fsencode(command[1]) in file.read(), "that is not the mount's daemon"
        writers = Writers(mount, cycle, side)
        try:
            writers.wait_for_acks(random_number.randrange(20, 400))
            os.kill(pid, signal.SIGKILL)
            mount.kill()
            with pytest.raises(OSError, match=r"not connected|aborted"):
                os.listdir(topic)
            writers.end()
        finally:
            writers.kill()
        new = writers.acknowledged()
        assert sum(new.values()) > 0, "nothing was acknowledged"
        mount.remount()
        with (topic / "records").open("rb") as records:
            records.seek(checked)
            data = records.read()
        assert data.endswith(b"\n")
        seen = check_lines(iter(data.split(b"\n")[:-1]), new)
        durable += sum(new.values())
        unacknowledged += sum(seen.values()) - sum(new.values())
        checked += len(data)
        acknowledged |= new
        assert (topic / "records").stat().st_size == checked
    mount.stop()
    assert_clean(*mount.log_dirs)
    with Store(mount.log_dirs, read_only=True) as store:
        check_lines((record.value or b"" for record in store["a-0"].read()), acknowledged)
        offsets = [batch.header.base_offset for batch in store["a-0"].batches(0)]
        assert offsets == sorted(offsets)
    print(f"{KILLS} kills: {durable} fsynced lines, 0 lost; {unacknowledged} others in flight")
    assert unacknowledged > 0, "no kill met anything in flight"
