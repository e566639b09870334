"""`logfs umount` while others have the mount, too: it says who, and ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from logfs.errors import InvalidStore
from logfs.mount.session import Options, check_paths
from logfs.store.directory import mount_table
from tests.support.mounts import Mount, is_mounted
from tests.support.processes import run, wait_for
from tests.support.requirements import need_command, need_root

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

LOGFS = (sys.executable, "-m", "logfs")
SERVED_ELSEWHERE = 3

pytestmark = pytest.mark.usefixtures("mounts_alone")


def umount(path: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*LOGFS, "umount", path], capture_output=True, text=True, check=False, timeout=100
    )


def is_closed(mount: Mount) -> bool:
    return (mount.log_dirs[0] / ".kafka_cleanshutdown").exists()


def test_a_copy_in_another_namespace(make_mount: Callable[..., Mount]) -> None:
    """The process that sees it is named; the store is closed once that one has ended."""
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
    """Of a partition, as for a container: it is named by its path."""
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


def test_a_mount_that_nobody_else_has(make_mount: Callable[..., Mount]) -> None:
    """It is closed when the command returns, which says nothing."""
    mount = make_mount()
    done = umount(mount.path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert is_closed(mount)


@pytest.mark.parametrize("is_lazy", [False, True])
def test_a_mount_whose_daemon_is_stopped(make_mount: Callable[..., Mount], is_lazy: bool) -> None:
    """With -l the name goes at once; without, it is said what is waited for."""
    need_root()
    mount = make_mount()
    mount.partition("orders-0")
    assert mount.process is not None
    mount.process.send_signal(signal.SIGSTOP)
    words = [*LOGFS, "umount", *["-l"] * is_lazy, mount.path]
    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        try:
            if is_lazy:
                assert process.wait(60) == 0
                assert not is_mounted(mount.path)
            else:
                # The first line comes while it waits.
                assert "its daemon does not respond" in process.stderr.readline()
                assert process.poll() is None
        finally:
            mount.process.send_signal(signal.SIGCONT)
        assert process.wait(60) == 0
    assert mount.process.wait(60) == 0
    assert is_closed(mount)


def test_mounting_over_a_mount_whose_daemon_is_stopped(
    make_mount: Callable[..., Mount], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It is a mount that lives, and nobody waits for it."""
    monkeypatch.setattr(mount_table, "PATIENCE_SECONDS", 1.0)
    mount = make_mount()
    (tmp_path / "other").mkdir()
    assert mount.process is not None
    mount.process.send_signal(signal.SIGSTOP)
    try:
        with pytest.raises(InvalidStore, match="logfs is already mounted here"):
            check_paths(Options(log_dirs=[tmp_path / "other"], mountpoint=mount.path))
    finally:
        mount.process.send_signal(signal.SIGCONT)
