"""`logfs umount` while other processes use the mount, too: the command names them, and ends."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from logfs.errors import InvalidStore
from logfs.mount.session import MountOptions, check_paths
from logfs.store.directory import mount_table
from tests.support.command_line import call
from tests.support.mounts import Mount, is_mounted
from tests.support.processes import run, stopped, wait_for
from tests.support.requirements import need_command, need_root

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

LOGFS = (sys.executable, "-m", "logfs")
SERVED_ELSEWHERE = 3

pytestmark = pytest.mark.usefixtures("mounts_alone")


def umount(path: Path) -> subprocess.CompletedProcess[str]:
    """Run `logfs umount`."""
    done = call("umount", path)
    printed = done.stdout.decode(), done.stderr.decode()
    return subprocess.CompletedProcess(done.args, done.returncode, *printed)


def is_closed(mount: Mount) -> bool:
    """Whether the store of a mount was closed cleanly."""
    return (mount.log_dirs[0] / ".kafka_cleanshutdown").exists()


def test_a_process_that_takes_the_directory_next(make_mount: Callable[..., Mount]) -> None:
    """What another process does with the directory after the unmount is no error of the unmount."""
    mount = make_mount()
    mount.partition("orders-0")
    script = (
        "import sys, time\n"
        "from logfs.errors import StoreLocked\n"
        "from logfs.store.store import Store\n"
        "while True:\n"
        "    try:\n"
        "        with Store(sys.argv[1]):\n"
        "            print('taken', flush=True)\n"
        "            sys.stdin.read()\n"
        "            break\n"
        "    except StoreLocked:\n"
        "        time.sleep(0.001)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script, mount.log_dirs[0]],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as other:
        done = umount(mount.path)
        assert (done.returncode, done.stderr) == (0, "")
        assert other.stdout is not None
        assert other.stdout.readline() == b"taken\n"
        other.communicate(timeout=60)
    mount.stop()


def test_a_copy_in_another_namespace(make_mount: Callable[..., Mount]) -> None:
    """The process that sees the copy is named; the store is closed once that process has ended."""
    need_root()
    need_command("unshare")
    mount = make_mount()
    mount.partition("orders-0")
    with subprocess.Popen(["unshare", "--mount", "sleep", "infinity"]) as other:
        own = os.readlink("/proc/self/ns/mnt")
        wait_for(lambda: os.readlink(f"/proc/{other.pid}/ns/mnt") != own)
        done = umount(mount.path)
        assert done.returncode == SERVED_ELSEWHERE
        assert done.stderr.count("\n") == 1
        assert f"{mount.path}: unmounted here, but still mounted at {mount.path}" in done.stderr
        assert f" for process {other.pid}: " in done.stderr
        assert mount.process is not None
        assert f"process {mount.process.pid} serves it" in done.stderr
        assert os.listdir(mount.path) == []
        assert not is_closed(mount)
        other.kill()
    wait_for(lambda: is_closed(mount))
    assert mount.process.wait(20) == 0


def test_a_bind_mount(make_mount: Callable[..., Mount], tmp_path: Path) -> None:
    """A bind mount of a partition, as for a container, is named by its path."""
    need_root()
    mount = make_mount()
    folder = mount.partition("orders-0")
    (tmp_path / "bound").mkdir()
    run("mount", "--bind", folder, tmp_path / "bound")
    try:
        done = umount(mount.path)
    finally:
        run("umount", tmp_path / "bound")
    assert done.returncode == SERVED_ELSEWHERE
    assert f"still mounted at {tmp_path}/bound: process" in done.stderr
    wait_for(lambda: is_closed(mount))


def test_a_mount_without_other_users(make_mount: Callable[..., Mount]) -> None:
    """The store is closed when the command returns, which prints nothing."""
    mount = make_mount()
    done = umount(mount.path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert is_closed(mount)


@pytest.mark.parametrize("is_lazy", [False, True])
def test_a_mount_whose_daemon_is_stopped(make_mount: Callable[..., Mount], is_lazy: bool) -> None:
    """With -l the mountpoint is free at once; without it, the command reports what it waits for."""
    need_root()
    mount = make_mount()
    mount.partition("orders-0")
    assert mount.process is not None
    words = [*LOGFS, "umount", *["-l"] * is_lazy, mount.path]
    with stopped(mount.process.pid):
        process = subprocess.Popen(words, stderr=subprocess.PIPE, text=True)
        assert process.stderr is not None
        if is_lazy:
            assert process.wait(60) == 0
            assert not is_mounted(mount.path)
        else:
            # The first line comes while it waits.
            assert "its daemon does not respond" in process.stderr.readline()
            assert process.poll() is None
    with process:
        assert process.wait(60) == 0
    assert mount.process.wait(60) == 0
    assert is_closed(mount)


def test_mounting_over_a_mount_whose_daemon_is_stopped(
    make_mount: Callable[..., Mount], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Such a mount is alive: mounting over it is refused without waiting for its daemon."""
    monkeypatch.setattr(mount_table, "PATIENCE_SECONDS", 1.0)
    mount = make_mount()
    (tmp_path / "other").mkdir()
    assert mount.process is not None
    with (
        stopped(mount.process.pid),
        pytest.raises(InvalidStore, match="logfs is already mounted here"),
    ):
        check_paths(MountOptions(log_dirs=[tmp_path / "other"], mountpoint=mount.path))
