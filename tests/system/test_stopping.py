"""A mount is stopped, or its daemon killed, while readers of growing files share descriptors.

At that moment a thread of the daemon may be waiting in the kernel for a page. A reader that itself waits for an
answer of the daemon may have locked that page.
"""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from logfs.store.directory.log_dir import CLEAN_SHUTDOWN
from tests.support.mounts import Mount, clear, is_mounted
from tests.support.processes import wait_for
from tests.support.requirements import DEEP, need_fuse
from tests.support.stores import assert_clean

NAME = "orders-0"
ENOUGH_BYTES = 300_000
# The program starts writers, processes that ask for the size, and groups of three readers that share a descriptor.
PROGRAM = """
import os, random, sys, time
os.chdir(sys.argv[1])

def again(work):
    if not os.fork():
        try:
            while True:
                work()
        except OSError:
            os._exit(0)

def write():
    with open("append", "wb", buffering=0) as file:
        file.write((b"x" * random.choice([10, 100, 1000]) + b"\\n") * random.choice([1, 10]))
    time.sleep(random.random() * 0.005)

def read():
    size = os.fstat(fd).st_size
    os.pread(fd, random.choice([4096, 65536]), max(0, size - random.choice([10, 3000, 50000])))

for _ in range(4):
    again(write)
for name in ("records", "records.jsonl"):
    again(lambda: os.stat(name))
    for _ in range(2):
        fd = os.open(name, os.O_RDONLY)
        for _ in range(3):
            again(read)
while True:
    time.sleep(1)
"""


@pytest.mark.parametrize("turn", range(2 if DEEP else 1))
@pytest.mark.parametrize("killed", [True, False])
def test_a_daemon_ends_while_readers_are_active(mount: Mount, killed: bool, turn: int) -> None:
    """After a daemon with active readers stops or is killed, no process hangs, and the log can be mounted again."""
    partition = mount.partition(NAME)
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM, partition], start_new_session=True
    ) as program:
        try:
            wait_for(lambda: (partition / "records").stat().st_size > ENOUGH_BYTES, seconds=120)
            if killed:
                mount.kill()
            else:
                mount.stop()
        finally:
            os.killpg(program.pid, signal.SIGKILL)
    mount.start()
    with (partition / "records").open("rb") as records:
        assert all(not line.strip(b"x\n") for line in records)


def test_a_mount_that_ends_does_not_wait_for_the_compiler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mount that is stopped while its code is being compiled ends in between, and closes the store cleanly."""
    need_fuse()
    compiled = tmp_path / "compiled"
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(compiled))
    log_dir = tmp_path / "log"
    mount = Mount(tmp_path / "mnt", [log_dir])
    mount.start()
    try:
        mount.partition(NAME)
    finally:
        mount.stop()
    assert (log_dir / CLEAN_SHUTDOWN).exists()
    # The loop that is compiled last.
    assert not list(compiled.rglob("*write_batches*"))
    assert_clean(log_dir)


@pytest.mark.drawn(1)
@pytest.mark.parametrize("seed", range(3))
def test_more_signals_while_a_mount_stops_change_nothing(tmp_path: Path, seed: int) -> None:
    """However many signals follow the first one, the daemon unmounts, closes the store cleanly, and ends with 0."""
    need_fuse()
    chance = random.Random(seed)
    log_dir, mountpoint = tmp_path / "log", tmp_path / "mnt"
    for each in (log_dir, mountpoint):
        each.mkdir()
    for _ in range(3):
        command = [sys.executable, "-m", "logfs", "mount", "-f", log_dir, mountpoint]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as daemon:
            assert daemon.stdout is not None
            assert daemon.stdout.readline()
            (mountpoint / NAME).mkdir(exist_ok=True)
            (mountpoint / NAME / "append").write_bytes(b"a line\n" * 1000)
            while daemon.poll() is None:
                daemon.send_signal(chance.choice([signal.SIGTERM, signal.SIGINT, signal.SIGHUP]))
                time.sleep(chance.random() * 0.01)
            assert daemon.returncode == 0
        assert not is_mounted(mountpoint)
        assert (log_dir / CLEAN_SHUTDOWN).exists()
    assert_clean(log_dir)


@pytest.mark.parametrize("ignored", ["HUP", "INT", "HUP INT TERM"])
def test_a_signal_that_is_ignored_from_the_start_stops_no_mount(
    tmp_path: Path, ignored: str
) -> None:
    """As SIGHUP under `nohup`: the daemon keeps ignoring it, and serves on until it is unmounted or stopped."""
    need_fuse()
    from logfs.mount.mounting import unmount

    log_dir, mountpoint = tmp_path / "log", tmp_path / "mnt"
    for each in (log_dir, mountpoint):
        each.mkdir()
    command = ["sh", "-c", f"trap '' {ignored}; exec \"$@\"", "sh"]
    command += [sys.executable, "-m", "logfs", "mount", "-f", str(log_dir), str(mountpoint)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as daemon:
        assert daemon.stdout is not None
        assert daemon.stdout.readline()
        try:
            status = Path(f"/proc/{daemon.pid}/status").read_text()
            (mask,) = re.findall(r"SigIgn:\s*([0-9a-f]+)", status)
            for name in ignored.split():
                number = signal.Signals[f"SIG{name}"]
                assert int(mask, 16) >> number - 1 & 1
                daemon.send_signal(number)
            (mountpoint / NAME).mkdir()
            (mountpoint / NAME / "append").write_bytes(b"a line\n")
            if "TERM" in ignored:
                unmount(mountpoint)
            else:
                daemon.send_signal(signal.SIGTERM)
            assert daemon.wait(60) == 0
        finally:
            daemon.kill()
            clear(mountpoint)
    assert not is_mounted(mountpoint)
    assert (log_dir / CLEAN_SHUTDOWN).exists()
    assert_clean(log_dir)
