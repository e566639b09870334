"""The unit for systemd: its syntax, the message that the mount is ready, and the privileges that it keeps."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.requirements import need, need_command, need_fuse, need_root

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
            assert b"cannot tell systemd" in daemon.communicate(timeout=30)[1]
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


def test_systemd_makes_units_of_the_fstab_lines_of_the_docs(tmp_path: Path) -> None:
    """Each line becomes a mount unit of the type logfs that is well-formed; the options of systemd are in force."""
    generator = Path("/lib/systemd/system-generators/systemd-fstab-generator")
    need(generator.exists(), "systemd is not installed")
    page = (UNIT.parents[3] / "docs/filesystem.md").read_text()
    section = page.split("\n### fstab\n")[1].split("\n### ")[0]
    lines = [
        line
        for block in re.findall(r"^```\n(.*?)^```", section, re.MULTILINE | re.DOTALL)
        for line in block.splitlines()
    ]
    fstab, made = tmp_path / "fstab", tmp_path / "units"
    fstab.write_text("\n".join(lines) + "\n")
    made.mkdir()
    environment = {**os.environ, "SYSTEMD_FSTAB": str(fstab)}
    subprocess.run([generator, made, made, made], env=environment, check=True)
    units = {unit.name: unit.read_text() for unit in made.glob("*.mount")}
    assert len(units) == len(lines) == 5
    for line in lines:
        source, mountpoint = line.split()[:2]
        name = subprocess.run(
            ["systemd-escape", "--path", "--suffix=mount", mountpoint],
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
        assert f"What={source}\nWhere={mountpoint}\nType=logfs\n" in units[name]
    assert "RequiresMountsFor=/data" in units["mnt-orders.mount"]
    assert (made / "mnt-archive.automount").exists()
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", *made.glob("*.mount")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
