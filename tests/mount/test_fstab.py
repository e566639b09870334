"""Lines of fstab with mount(8): repeated `mount -a`, remounts, `df`, `findmnt`, and mounts by ordinary users.

Each test runs in a mount namespace of its own, in which `mount.logfs` is where mount(8) looks for it.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.examples import drawn
from tests.support.processes import run, wait_for
from tests.support.requirements import DEEP, need, need_command, need_fuse, need_root
from tests.support.stores import assert_clean

if TYPE_CHECKING:
    from collections.abc import Iterator

NOBODY = 65534
LOGFS = (sys.executable, "-m", "logfs")

pytestmark = pytest.mark.usefixtures("mounts_alone")


class Machine:
    """A mount namespace with an fstab of its own.

    Its methods run programs in the namespace.
    """

    def __init__(self, path: Path) -> None:
        """Create the namespace. `path` is an empty directory."""
        self.path = path
        self.fstab = path / "fstab"
        self.fstab.touch()
        self._shell = subprocess.Popen(["unshare", "--mount", "sleep", "infinity"])
        namespace = os.readlink("/proc/self/ns/mnt")
        wait_for(lambda: os.readlink(f"/proc/{self._shell.pid}/ns/mnt") != namespace)
        helpers = path / "helpers"
        helpers.mkdir()
        for name in ("mount.logfs", "mount.fuse.logfs"):
            (helpers / name).symlink_to(Path(sys.executable).with_name("mount.logfs"))
        sbin = os.path.realpath("/sbin")
        self.ok("mount", "-t", "overlay", "overlay", "-o", f"lowerdir={helpers}:{sbin}", sbin)

    def call(self, *command: str | Path, uid: int = 0) -> subprocess.CompletedProcess[str]:
        """Run a program."""
        inside = ["nsenter", f"--target={self._shell.pid}", "--mount", "--"]
        if uid:
            inside += ["setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups"]
        return subprocess.run(
            [*inside, *map(str, command)], capture_output=True, text=True, check=False, timeout=120
        )

    def ok(self, *command: str | Path, uid: int = 0) -> str:
        """Run a program that must succeed, and return its output."""
        done = self.call(*command, uid=uid)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def line(self, source: str | Path, mountpoint: Path, options: str = "defaults") -> Path:
        """Add a line to fstab, create the mount point and return it."""
        mountpoint.mkdir(parents=True)
        escaped = str(source).replace(" ", "\\040")
        with self.fstab.open("a") as file:
            file.write(f"{escaped}  {mountpoint}  logfs  {options}  0  0\n")
        return mountpoint

    def mount(self, *words: str | Path) -> subprocess.CompletedProcess[str]:
        """Run mount(8) with the fstab."""
        return self.call("mount", "--fstab", self.fstab, *words)

    def flags(self, mountpoint: Path) -> set[str]:
        """Return the options that findmnt shows for a mount."""
        return set(self.ok("findmnt", "-n", "-o", "OPTIONS", mountpoint).strip().split(","))

    def mounts(self) -> list[tuple[str, str]]:
        """Return mount point and source of all logfs mounts below `path`."""
        listed = self.call("findmnt", "-rn", "-t", "fuse.logfs", "-o", "TARGET,SOURCE").stdout
        rows = (line.split(" ") for line in listed.splitlines())
        found = [(target, source.replace("\\x20", " ")) for target, source in rows]
        return sorted(row for row in found if row[0].startswith(str(self.path)))

    def umount(self, mountpoint: str | Path) -> None:
        """Unmount, and wait for the daemon."""
        self.ok(*LOGFS, "umount", mountpoint)

    def close(self) -> None:
        """Unmount the remaining mounts, and end the namespace."""
        for mountpoint, _ in self.mounts():
            self.call("umount", "-l", mountpoint)
        self._shell.kill()
        self._shell.wait()


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    """A `Machine` with an empty fstab."""
    need_fuse()
    need_root()
    for command in ("unshare", "nsenter", "findmnt", "mount", "setpriv"):
        need_command(command)
    need("overlay" in Path("/proc/filesystems").read_text(), "the kernel has no overlayfs")
    need(Path(sys.executable).with_name("mount.logfs").exists(), "mount.logfs is not installed")
    made = Machine(tmp_path)
    yield made
    made.close()


def test_mount_a_may_run_again_and_again(machine: Machine, tmp_path: Path) -> None:
    """A repeated `mount -a` recognizes each line as mounted. The source of a mount is the log directory, with links
    resolved, or the list of log directories; `df` and findmnt show it.
    """
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    (tmp_path / "b\\s").mkdir()
    (tmp_path / "com,ma").mkdir()
    sources = ["log", "one,two", "link", "sp ace", "com,ma", "b\\s"]
    wanted = []
    for number, source in enumerate(sources):
        names = [source] if source == "com,ma" else source.split(",")
        whole = ",".join(f"{tmp_path}/{name}" for name in names)
        mountpoint = machine.line(whole, tmp_path / f"mnt{number}")
        wanted.append((str(mountpoint), whole.replace("/link", "/real")))
    first = machine.mount("-a")
    assert (first.returncode, first.stderr) == (0, "")
    shown = [(target, source.replace("\\x5c", "\\")) for target, source in machine.mounts()]
    assert shown == wanted
    for _ in range(2 if DEEP else 1):
        again = machine.mount("-a", "-v")
        assert again.returncode == 0
        assert again.stdout.count("already mounted") == len(sources)
    assert len(machine.mounts()) == len(sources)
    for where, source in wanted:
        described = machine.ok("df", "--output=source,target", where).splitlines()[1]
        assert described.split() == f"{source} {where}".split()
        machine.umount(where)
    assert machine.mounts() == []
    assert_clean(tmp_path / "one", tmp_path / "two")


def test_nofail_ignores_a_missing_disk(machine: Machine, tmp_path: Path) -> None:
    """As mount(8) does for a device that does not exist; without the option, the missing directory is named."""
    for options in ("nofail", "ro,nofail"):
        machine.line(tmp_path / "disk/log", tmp_path / f"mnt-{options}", options)
    done = machine.mount("-a")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    machine.line(tmp_path / "disk/log", tmp_path / "mnt", "ro")
    done = machine.mount("-a")
    assert done.returncode != 0
    assert f"{tmp_path}/disk/log" in done.stderr
    assert machine.mounts() == []


def test_flags_of_a_mount_change(machine: Machine, tmp_path: Path) -> None:
    """`mount -o remount,…` changes ro and rw, noexec and access times, with and without a line in fstab, and leaves
    `sync` and `dirsync`; `ro` is refused while a file is open for writing.
    """
    log = tmp_path / "log"
    options = "allow_other,sync,dirsync,isolation=read_committed"
    mnt = machine.line(log, tmp_path / "mnt", options)
    log.mkdir()
    log.chmod(0o755)
    mounted = machine.mount(mnt)
    assert (mounted.returncode, mounted.stderr) == (0, "")
    before = machine.flags(mnt)
    machine.ok("mkdir", mnt / "orders-0")
    (tmp_path / "empty").touch()
    for fstab in (machine.fstab, tmp_path / "empty"):
        machine.fstab = fstab
        assert machine.mount("-o", "remount,ro,noatime,noexec", mnt).returncode == 0
        changed = {"ro", "noatime", "noexec"}
        assert changed | {"sync", "dirsync", "nosuid", "nodev", "allow_other"} <= machine.flags(mnt)
        refused = machine.call("sh", "-c", f"echo a >{mnt}/orders-0/append")
        assert "Read-only file system" in refused.stderr
        assert machine.ok("cat", mnt / "orders-0/records") == ""
        assert machine.mount("-o", "remount,rw,relatime,exec", mnt).returncode == 0
        assert machine.flags(mnt) == before
    machine.ok("sh", "-c", f"echo a >{mnt}/orders-0/append")
    status = json.loads(machine.ok("cat", mnt / "orders-0/status.json"))
    assert status["recovery_point"] == 1
    holding = machine.call(
        "sh", "-c", f"exec 3>>{mnt}/orders-0/append; {' '.join(LOGFS)} mount -o remount,ro {mnt}"
    )
    assert "a file is open for writing" in holding.stderr
    machine.umount(mnt)


def test_remount_refuses_other_options_with_a_reason(machine: Machine, tmp_path: Path) -> None:
    """A remount with an option that is fixed at the mount, with `rw` for a store that is open read-only, or with an
    unknown option is refused with the reason, and changes nothing.
    """
    mnt = machine.line(tmp_path / "log", tmp_path / "mnt")
    run(*LOGFS, "create", "-p", tmp_path / "other/orders-0")
    closed = machine.line(tmp_path / "other", tmp_path / "closed", "ro")
    assert machine.mount("-a").returncode == 0
    before = machine.flags(mnt), machine.flags(closed)
    for where, words, reason in (
        (mnt, "allow_other", "allow_other cannot change while mounted"),
        (mnt, "isolation=read_committed", "isolation cannot change while mounted"),
        (mnt, "linger_ms=9", "linger_ms cannot change while mounted"),
        (mnt, "nonsense", "no such mount option"),
        (closed, "rw", "open read-only, which a remount cannot change"),
    ):
        refused = machine.mount("-o", f"remount,{words}", where)
        assert refused.returncode != 0
        assert reason in refused.stderr
    assert (machine.flags(mnt), machine.flags(closed)) == before
    none = machine.call(*LOGFS, "mount", "-o", "remount,ro", tmp_path)
    assert "no logfs is mounted here" in none.stderr
    machine.umount(mnt)
    machine.umount(closed)


def test_a_remount_knows_every_option_of_the_help(machine: Machine, tmp_path: Path) -> None:
    """Each option of `logfs mount --help` changes the mount, changes nothing, or cannot change while mounted.

    A new mount takes all of them.
    """
    text = " ".join(machine.ok(*LOGFS, "mount", "--help").split())
    listed = re.search(r"as in mount\(8\): ([\w, ]+?) --read-only", text)
    assert listed is not None
    every = ",".join(word for word in listed[1].split(", ") if word != "ro")
    mnt = machine.line(tmp_path / "log", tmp_path / "mnt", every)
    done = machine.mount("-a")
    assert (done.returncode, done.stderr) == (0, "")
    others = ["allow_other", "isolation=read_committed", "nonempty", "write_behind", "linger_ms=9"]
    for word in drawn([*listed[1].split(", "), *others], 8):
        done = machine.mount("-o", f"remount,{word}", mnt)
        assert not done.stderr or "cannot change while mounted" in done.stderr, word
    assert machine.mount("-o", "remount,rw", mnt).returncode == 0
    machine.umount(mnt)


def test_fake_mounts_nothing(machine: Machine, tmp_path: Path) -> None:
    """`mount -f` only simulates the mount: nothing is mounted, and no log directory is created."""
    mnt = machine.line(tmp_path / "log", tmp_path / "mnt")
    assert machine.mount("-f", mnt).returncode == 0
    assert machine.mounts() == []
    assert not (tmp_path / "log").exists()


def test_umount_and_mount_again(machine: Machine, tmp_path: Path) -> None:
    """umount(8) unmounts logfs as any filesystem, and the next `mount -a` mounts it again."""
    log = tmp_path / "log"
    mnt = machine.line(log, tmp_path / "mnt")
    for _ in range(2):
        assert machine.mount("-a").returncode == 0
        machine.ok("umount", mnt)
        assert machine.mounts() == []
        # umount(8) does not wait for the daemon.
        wait_for(lambda: (log / ".kafka_cleanshutdown").exists())


def open_to_all(machine: Machine, path: str) -> None:
    """Make a path reachable for ordinary users of the namespace, if a parent directory such as /root is closed."""
    for parent in [*Path(path).parents][::-1]:
        if parent.stat().st_mode & 0o001:
            continue
        below = Path(path).relative_to(parent).parts[0]
        kept = machine.path / f"kept{parent.name}"
        kept.mkdir(exist_ok=True)
        machine.ok("mount", "--bind", parent / below, kept)
        machine.ok("mount", "-t", "tmpfs", "-o", "mode=755", "tmpfs", parent)
        machine.ok("mkdir", parent / below)
        machine.ok("mount", "--bind", kept, parent / below)
        return


def test_a_user_may_mount_his_own(
    tmp_path_factory: pytest.TempPathFactory, machine: Machine
) -> None:
    """With the option `user` in fstab, an ordinary user can mount, create a partition and unmount."""
    top = Path("/tmp") / f"logfs-user-{os.getpid()}"
    top.mkdir(mode=0o755)
    try:
        log = top / "log"
        mnt = machine.line(log, top / "mnt", "user,noauto")
        log.mkdir()
        for path in (mnt, log):
            os.chown(path, NOBODY, NOBODY)
        # mount(8) refuses `--fstab` for ordinary users, so the file is mounted over /etc/fstab.
        machine.ok("mount", "--bind", machine.fstab, "/etc/fstab")
        devices = machine.path / "devices"
        devices.mkdir()
        machine.ok("mount", "-t", "tmpfs", "-o", "mode=755,dev", "tmpfs", devices)
        machine.ok("mknod", "-m", "666", devices / "fuse", "c", "10", "229")
        machine.ok("mount", "--bind", devices / "fuse", "/dev/fuse")
        open_to_all(machine, os.path.realpath(sys.executable))
        try:
            machine.ok("mount", mnt, uid=NOBODY)
            assert {"nosuid", "nodev", "noexec", f"user_id={NOBODY}"} <= machine.flags(mnt)
            machine.ok("mkdir", mnt / "orders-0", uid=NOBODY)
            machine.ok("umount", mnt, uid=NOBODY)
            wait_for(lambda: (log / ".kafka_cleanshutdown").exists())
        finally:
            machine.call("umount", "-l", mnt)
        assert_clean(log)
    finally:
        run("rm", "-r", top)
