"""`Disk`: reads in a thread that must not wait."""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import stat
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from logfs.log.disk import memory
from logfs.log.disk.checked_disk import CheckedDisk
from logfs.log.disk.disk import USUAL_MODE, Disk, WouldBlock
from tests.support.requirements import need

IN_MEMORY = Path("/dev/shm")


@pytest.mark.parametrize("in_memory", [True, False])
def test_the_event_loop_reads_a_file_in_memory(
    in_memory: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tmpfs cannot tell whether a read would wait, and it never does. Of another filesystem, nothing is assumed."""
    need(IN_MEMORY.is_dir(), "there is no /dev/shm")

    def cannot_tell(*_: object) -> int:
        raise OSError(errno.EOPNOTSUPP, "Operation not supported")

    monkeypatch.setattr(os, "preadv", cannot_tell)
    if not in_memory:
        monkeypatch.setattr(memory, "is_in_memory", lambda fd: False)
    disk = Disk()
    with TemporaryDirectory(dir=IN_MEMORY) as name:
        path = Path(name) / "file"
        path.write_bytes(b"0123456789")
        file = disk.open(path)
        disk.forbid_blocking()
        try:
            if in_memory:
                assert bytes(disk.read(file, 4, 100)) == b"456789"
                assert bytes(disk.read(file, 10, 1)) == b""
            else:
                with pytest.raises(WouldBlock):
                    disk.read(file, 4, 2)
        finally:
            disk.allow_blocking()


def test_another_filesystem_is_not_taken_for_memory() -> None:
    """Nor is another filesystem without a disk, whose reads may wait."""
    with Path("/proc/self/status").open("rb") as file:
        assert not memory.is_in_memory(file.fileno())


def test_an_error_of_a_descriptor_names_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk is met by a call on a descriptor, whose error has no path of its own."""
    disk = CheckedDisk(Disk(), tmp_path, lambda: None)
    file = disk.open(tmp_path / "file", write=True, create=True)

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(OSError, match="No space left") as caught:
        disk.write(file, 0, b"x")
    assert caught.value.filename == str(tmp_path / "file")
    with pytest.raises(FileNotFoundError) as missing:
        disk.open(tmp_path / "no" / "file", write=True, create=True)
    assert missing.value.filename == str(tmp_path / "no" / "file")


def test_the_modes_of_new_files(tmp_path: Path) -> None:
    """Other users may not read what is in a log directory; files for users get the mode that they expect."""
    before = os.umask(0o022)
    try:
        for mode, disk in ((0o640, Disk()), (0o644, Disk(USUAL_MODE))):
            path = tmp_path / f"{mode:o}"
            disk.replace_file(path, b"x")
            disk.open_locked(path.with_suffix(".lock"), lambda fd: fcntl.flock(fd, fcntl.LOCK_EX))
            modes = {stat.S_IMODE(each.stat().st_mode) for each in tmp_path.glob(f"{mode:o}*")}
            assert modes == {mode}
    finally:
        os.umask(before)


def test_a_file_that_is_removed_before_it_is_locked_is_made_again(tmp_path: Path) -> None:
    """The lock is on the file that has the name: on a removed one, it would exclude no other process."""
    disk, path, seen = Disk(), tmp_path / "lock", []

    def lock(fd: int) -> None:
        seen.append(os.fstat(fd).st_ino)
        if len(seen) == 1:
            path.unlink()
        elif len(seen) == 2:
            path.rename(tmp_path / "older")
            path.touch()

    file = disk.open_locked(path, lock)
    assert len(seen) == 3
    assert os.fstat(file.fd).st_ino == path.stat().st_ino
    assert disk.is_in_place(file)
    path.unlink()
    assert not disk.is_in_place(file)


@pytest.mark.parametrize("write", [False, True])
@pytest.mark.parametrize("kind", ["symlink", "FIFO", "directory", "socket"])
def test_only_regular_files_are_opened(tmp_path: Path, kind: str, write: bool) -> None:
    """Anything else in a log directory is an error at once: a FIFO would wait, a symlink lead elsewhere."""
    path = tmp_path / "file"
    (tmp_path / "elsewhere").write_bytes(b"secret")
    with socket.socket(socket.AF_UNIX) as bound:
        if kind == "symlink":
            path.symlink_to(tmp_path / "elsewhere")
        elif kind == "FIFO":
            os.mkfifo(path)
        elif kind == "directory":
            path.mkdir()
        else:
            bound.bind(str(path))
        before = set(os.listdir("/proc/self/fd"))
        with pytest.raises(OSError, match="file"):
            Disk().open(path, write=write)
        assert set(os.listdir("/proc/self/fd")) == before
