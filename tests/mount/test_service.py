"""The unit for systemd: its syntax, the message that the mount is ready, and the privileges that it keeps."""

from __future__ import annotations

import os
import re
import shlex
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.processes import NOBODY
from tests.support.requirements import need, need_command, need_fuse

UNIT = Path(__file__).parents[2] / "scripts/packaging/systemd/logfs@.service"


@pytest.mark.usefixtures("mounts_alone")
@pytest.mark.parametrize("kind", ["path", "abstract"])
def test_the_service_manager_is_told_when_the_mount_answers(
    tmp_path: Path,
    public: Path,
    python_for_all: tuple[str, str],
    kind: str,
) -> None:
    """As another user than root, with the capabilities and options of the unit, and without new privileges.

    Then root can use the files at once, and the user of the service can end the mount. /dev/fuse may be closed to
    ordinary users, so the test creates an open one in a mount namespace of its own.
    """
    need_fuse()
    address = str(public / f"notify-{kind}")
    manager = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    manager.bind(address if kind == "path" else f"\0{address}")
    manager.settimeout(30)
    if kind == "path":
        os.chmod(address, 0o666)
    own = public / kind
    for name in ("log", "mnt", "dev"):
        (own / name).mkdir(parents=True)
    os.chown(own / "log", NOBODY, NOBODY)
    python, path = python_for_all
    ambient = capabilities(setting("AmbientCapabilities"))
    confined = [need_command("setpriv"), "--no-new-privs", "--reuid", str(NOBODY)]
    confined += ["--regid", str(NOBODY), "--clear-groups", "--inh-caps", ambient]
    confined += ["--ambient-caps", ambient]
    confined += ["--bounding-set", capabilities(setting("CapabilityBoundingSet"))]
    logfs = shlex.join([*confined, "env", f"PYTHONPATH={path}", python, "-m", "logfs"])
    options = setting("Environment").strip('"').removeprefix("OPTIONS=")
    script = f"""
        set -e
        mount -t tmpfs tmpfs {own}/dev
        mknod -m 666 {own}/dev/fuse c 10 229
        mount --bind {own}/dev/fuse /dev/fuse
        NOTIFY_SOCKET={"@" * (kind == "abstract")}{address} {logfs} mount --foreground {options} \\
            {own}/log {own}/mnt >/dev/null &
        read -r ready
        mkdir {own}/mnt/orders-0
        echo line >> {own}/mnt/orders-0/append
        cat {own}/mnt/orders-0/records
        stat -c %u {own}/log/orders-0
        {logfs} umount {own}/mnt
        wait $!
        echo ended
    """
    with subprocess.Popen(
        ["unshare", "-m", "--propagation", "private", "sh", "-c", script],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as service:
        try:
            told = manager.recv(4096).decode()
            assert told == f"READY=1\nSTATUS=mounted on {own}/mnt"
            said, errors = service.communicate("ready\n", timeout=60)
            assert said == f"line\n{NOBODY}\nended\n", errors
        finally:
            service.kill()
            manager.close()


def setting(name: str) -> str:
    """Return the last value of a setting of the unit."""
    return re.findall(rf"^{name}=(.*)$", UNIT.read_text(), re.MULTILINE)[-1]


def capabilities(names: str) -> str:
    """Return the argument of setpriv that keeps only the capabilities of a setting of the unit."""
    kept = [f"+{name.removeprefix('CAP_').lower()}" for name in names.split()]
    return ",".join(["-all", *kept])


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
