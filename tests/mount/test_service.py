"""The unit for systemd: its syntax, the message that the mount is ready, and the privileges that it keeps."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.requirements import need_command, need_fuse, need_root

if TYPE_CHECKING:
    from collections.abc import Iterator

UNIT = Path(__file__).parents[2] / "scripts/packaging/systemd/logfs@.service"


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[socket.socket]:
    """The socket of a service manager, below the directory of the test."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as found:
        found.bind(str(tmp_path / "notify"))
        found.settimeout(30)
        yield found


@pytest.mark.parametrize("kind", ["path", "abstract"])
def test_the_service_manager_is_told_when_the_mount_answers(
    tmp_path: Path, manager: socket.socket, kind: str
) -> None:
    """With the capabilities of the unit, and without new privileges; then files can be read and written at once."""
    need_fuse()
    need_root()
    address = str(tmp_path / "notify")
    if kind == "abstract":
        manager.close()
        manager = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        manager.bind(f"\0{address}")
        manager.settimeout(30)
        address = f"@{address}"
    mountpoint = tmp_path / "mnt"
    mountpoint.mkdir()
    (bounding,) = re.findall(r"^CapabilityBoundingSet=(.*)$", UNIT.read_text(), re.MULTILINE)
    kept = ",".join(f"+{name.removeprefix('CAP_').lower()}" for name in bounding.split())
    confined = [need_command("setpriv"), "--no-new-privs", "--bounding-set", f"-all,{kept}"]
    command = [sys.executable, "-m", "logfs", "mount", "--foreground", tmp_path / "log", mountpoint]
    with subprocess.Popen(
        ["env", f"NOTIFY_SOCKET={address}", *confined, *command], stdout=subprocess.DEVNULL
    ) as daemon:
        try:
            assert manager.recv(4096).decode() == f"READY=1\nSTATUS=mounted on {mountpoint}"
            (mountpoint / "orders-0").mkdir()
            (mountpoint / "orders-0/append").write_text("line\n")
            assert (mountpoint / "orders-0/records").read_text() == "line\n"
            subprocess.run(
                [sys.executable, "-m", "logfs", "umount", mountpoint], check=True, timeout=60
            )
            assert daemon.wait(30) == 0
        finally:
            daemon.kill()
            subprocess.run(["umount", "-l", mountpoint], check=False, stderr=subprocess.DEVNULL)
            manager.close()


def test_a_service_manager_that_is_gone_stops_no_mount(tmp_path: Path) -> None:
    """A shell may have the variable of the service that has started it."""
    need_fuse()
    mountpoint = tmp_path / "mnt"
    mountpoint.mkdir()
    command = [sys.executable, "-m", "logfs", "mount", "--foreground", tmp_path / "log", mountpoint]
    with subprocess.Popen(
        ["env", f"NOTIFY_SOCKET={tmp_path / 'gone'}", *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as daemon:
        try:
            assert daemon.stdout is not None
            assert daemon.stdout.readline().endswith(b"ready\n")
            (mountpoint / "orders-0").mkdir()
            done = [sys.executable, "-m", "logfs", "umount", mountpoint]
            subprocess.run(done, check=True, timeout=60)
            assert b"the service manager cannot be told" in daemon.communicate(timeout=30)[1]
            assert daemon.returncode == 0
        finally:
            daemon.kill()
            subprocess.run(["umount", "-l", mountpoint], check=False, stderr=subprocess.DEVNULL)


def test_the_unit_is_well_formed(tmp_path: Path) -> None:
    """systemd finds nothing to complain about, once the program is where the unit expects it."""
    program = need_command("systemd-analyze")
    unit = tmp_path / "logfs@orders.service"
    unit.write_text(UNIT.read_text().replace("/usr/bin/logfs", "/bin/true"))
    done = subprocess.run(
        [program, "verify", "--man=no", unit], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
