"""Readers of a growing file see only bytes of the log, even while many processes read, write and ask for sizes."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import zlib
from typing import TYPE_CHECKING

import pytest

from tests.support.examples import seed_of
from tests.support.mounts import Mount
from tests.support.processes import run
from tests.support.requirements import need_fuse
from tests.system import growing_reader, mutants

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

# The long form reads 10^9 bytes: see scripts/crash.
BYTES = int(os.environ.get("LOGFS_GROWING_BYTES", "12_000_000"))
READERS = int(os.environ.get("LOGFS_GROWING_READERS", "12"))
WRITERS = int(os.environ.get("LOGFS_GROWING_WRITERS", "4"))
SEED = seed_of("LOGFS_GROWING_SEED")
ROUND_SECONDS = 5.0
MUTANT_ROUNDS = 5
MODES = (
    *("read_on", "open_again", "read_on", "open_again", "threads", "children"),
    *("read_on", "orphans", "splice", "send", "open_again", "mapped"),
)
# Files of the active segment cannot be mapped while they grow.
SEGMENT = "00000000000000000000.log"
SEGMENT_MODES = ("read_on", "open_again", "send", "splice", "children")

# Each write has five lines. From time to time all writers pause for long enough that the kernel may keep the size.
WRITER = """
import os, random, sys, time
path, name, seconds, seed = sys.argv[1:]
rng, end = random.Random(int(seed)), time.monotonic() + float(seconds)
out = os.open(path, os.O_WRONLY | os.O_APPEND)
number = 0
while time.monotonic() < end:
    lines = "".join(f"{name} {number + i} {'x' * rng.randrange(80)}\\n" for i in range(5))
    os.write(out, lines.encode())
    number += 5
    time.sleep(rng.random() * 0.004 + max(0.4 - time.time() % 2.5, 0))
"""
STAT = """
import os, sys, time
path, seconds = sys.argv[1:]
end = time.monotonic() + float(seconds)
while time.monotonic() < end:
    os.stat(path)
"""


def _programs(mount: Path, notes: Path, rng: random.Random) -> Iterator[list[str]]:
    seconds = str(ROUND_SECONDS)
    for number in range(WRITERS):
        yield ["-c", WRITER, str(mount / "a-0/append"), f"w{number}", seconds, _seed(rng)]
    for number in range(max(WRITERS // 2, 2)):
        name = "records.jsonl" if number % 4 == 3 else "records"
        yield ["-c", STAT, str(mount / "a-0" / name), seconds]
    for number in range(READERS):
        mode = MODES[number % len(MODES)]
        file = mount / "a-0" / ("offsets/5.." if number % 7 == 6 else "records")
        if number % 11 == 10:
            file = mount / "a-0/records.jsonl"
        side = notes / f"{number}-{mode}-{file.name}"
        yield [growing_reader.__file__, mode, str(file), str(side), seconds, _seed(rng)]
    for number in range(max(READERS // 3, 2)):
        mode = SEGMENT_MODES[(number + rng.randrange(9)) % len(SEGMENT_MODES)]
        file = mount / "a-0/segments" / SEGMENT
        side = notes / f"segment{number}-{mode}-{SEGMENT}"
        yield [growing_reader.__file__, mode, str(file), str(side), seconds, _seed(rng)]


def _seed(rng: random.Random) -> str:
    return str(rng.randrange(2**31))


def _check(notes: Path, expected: bytes) -> tuple[int, list[str]]:
    """Return how many bytes a reader read, and the reads that returned other bytes than the log has."""
    total, wrong = 0, []
    for position, length, crc in growing_reader.NOTE.iter_unpack(notes.read_bytes()):
        total += length
        if zlib.crc32(expected[position : position + length]) != crc:
            wrong.append(f"{notes.name}: {length} bytes at {position}")
    return total, wrong


def _round(mount: Mount, notes: Path, rng: random.Random, load: int) -> tuple[int, list[str]]:
    """Run writers, readers and `stat` loops for some seconds. Return the number of bytes read, and the errors."""
    notes.mkdir()
    wrong = []
    burning = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(load)]
    programs = []
    try:
        for program in _programs(mount.path, notes, rng):
            command = [sys.executable, "-I", "-S", *program]
            programs.append(subprocess.Popen(command, stderr=subprocess.PIPE))
        for each in programs:
            _, error = each.communicate(timeout=ROUND_SECONDS * 10 + 60)
            if each.returncode:
                wrong.append(error.decode().strip().rpartition("\n")[2])
    finally:
        for each in [*burning, *programs]:
            if each.poll() is None:
                each.kill()
            each.wait()
    total = 0
    expected = _expected(mount.log_dirs[0] / "a-0")
    for side in sorted(notes.iterdir()):
        read, bad = _check(side, expected[side.name.split("-", 2)[2]])
        total += read
        wrong += bad
    return total, wrong


def _expected(partition: Path) -> dict[str, bytes]:
    """Return the expected content of each file, as another process reads it from the log."""
    lines = run(sys.executable, "-m", "logfs", "cat", partition).encode()
    envelopes = run(sys.executable, "-m", "logfs", "cat", "--json", partition).encode()
    tail = b"\n".join(lines.split(b"\n")[5:])
    segment = (partition / SEGMENT).read_bytes()
    return {"records": lines, "records.jsonl": envelopes, "5..": tail, SEGMENT: segment}


@pytest.mark.parametrize("load", [0, 2], ids=["quiet", "busy"])
def test_readers_see_only_bytes_of_the_log(mount: Mount, tmp_path: Path, load: int) -> None:
    """Readers of growing files see only bytes of the log, with and without other load on the machine.

    The rounds go on until half of LOGFS_GROWING_BYTES have been read.
    """
    mount.partition("a-0")
    rng = random.Random(SEED)
    total, rounds = 0, 0
    wrong: list[str] = []
    while total < BYTES // 2 and not wrong:
        rounds += 1
        read, wrong = _round(mount, tmp_path / f"notes-{rounds}", rng, load)
        total += read
    print(
        f"growing files: seed {SEED}, {rounds} rounds, {total} bytes read, {len(wrong)} wrong reads"
    )
    assert not wrong, f"{len(wrong)} reads, the first: {wrong[:5]}"
    assert total, "nothing was read"


@pytest.mark.drawn(2)
@pytest.mark.parametrize(
    "mutant",
    [
        mutants.one_inode_for_all,
        mutants.size_told_too_early,
        mutants.text_ends_one_byte_too_late,
        mutants.size_kept_too_long,
    ],
    ids=lambda mutant: mutant.__name__,
)
def test_the_campaign_catches_a_broken_mount(mutant: Callable[[], None], tmp_path: Path) -> None:
    """The campaign finds each seeded bug within `MUTANT_ROUNDS` rounds."""
    need_fuse()
    program = ("tests.system.mutants", mutant.__name__)
    mount = Mount(tmp_path / "mnt", [tmp_path / "log"], program=program)
    rng = random.Random(SEED)
    try:
        mount.start().partition("a-0")
        for number in range(MUTANT_ROUNDS):
            if _round(mount, tmp_path / f"notes-{number}", rng, load=0)[1]:
                return
    finally:
        mount.stop()
    pytest.fail(f"{mutant.__name__} was not found in {MUTANT_ROUNDS} rounds")
