"""Kafka's lock on a log directory (kafka-storage 1.8): a POSIX record lock on `.lock`.

`fcntl.lockf`, never `flock`: the latter neither excludes a broker nor is excluded by one.
"""

from __future__ import annotations

import errno
import fcntl
import json
import logging
import os
import struct
from pathlib import Path
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

from logfs.errors import StoreLocked

if TYPE_CHECKING:
    from logfs.log.files import Disk, File

logger = logging.getLogger(__name__)

FILE_NAME = ".lock"
TURN_NAME = "logfs.lease"
# Where a log directory is mounted, and by which process.
MOUNT_FILE = "logfs.mount"
# Below a mountpoint: what tells which log directories are mounted there.
STATUS_FILE = ".logfs/status.json"

# struct flock of Linux on 64-bit machines: l_type, l_whence, l_start, l_len, l_pid.
_FLOCK = struct.Struct("hhqqi4x")


class Lock:
    """The lock of one log directory, held from construction to `release`."""

    def __init__(self, disk: Disk, log_dir: Path) -> None:
        """Take the lock; `StoreLocked` names the process that has it."""
        self._disk = disk
        self._path = log_dir / FILE_NAME
        if _identity(disk, self._path) in _held:
            raise StoreLocked(
                f"{log_dir}: in use by this very process; close the other store first"
            )
        self._file: File = disk.open(self._path, write=True, create=True)
        try:
            fcntl.lockf(self._file.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = _holder(self._file.fd)
            self._file.close()
            if error.errno not in (errno.EACCES, errno.EAGAIN):
                raise
            mounted = None if holder is None else mountpoint(disk, log_dir, holder)
            advice = "stop it, or open the directory read-only"
            if mounted is not None:
                advice = (
                    f"work with the files at {mounted}, where it is mounted, or unmount it first"
                )
            raise StoreLocked(f"{log_dir}: in use by {_describe(holder)}; {advice}") from None
        found = disk.stat_file(self._file)
        self.identity = found.st_dev, found.st_ino
        _held[self.identity] = self

    def release(self) -> None:
        """Give the lock back, and remove its file as a broker does, if it is still there and ours."""
        try:
            if self.is_in_place():
                self._disk.unlink(self._path)
        except OSError as error:
            # The directory has failed: what matters is that the descriptor, and with it the lock, goes.
            logger.warning("%s: is left behind: %s", self._path, error)
        finally:
            _held.pop(self.identity, None)
            self._file.close()

    def is_in_place(self) -> bool:
        """Whether the file that is locked still has its name."""
        return _identity(self._disk, self._path) == self.identity


# What this process holds, by device and inode of the file. The system knows only processes: it would grant a second
# lock to this one, and take the first away as soon as any descriptor of the file is closed.
_held: WeakValueDictionary[tuple[int, int], Lock] = WeakValueDictionary()


class Turn:
    """The turn of one process among those that are to work on a partition; the others wait for it.

    Who ends without `release`, as a process that is killed, leaves a file behind by which the next one knows.
    """

    def __init__(self, disk: Disk, directory: Path) -> None:
        """Wait for the turn, and take it."""
        self._disk = disk
        self._path = directory / TURN_NAME
        while True:
            self._file: File = disk.open(self._path, write=True, create=True)
            fcntl.lockf(self._file.fd, fcntl.LOCK_EX)
            found = disk.stat_file(self._file)
            if _identity(disk, self._path) == (found.st_dev, found.st_ino):
                break
            # Who had it before has removed the file that was waited for.
            self._file.close()
        self.was_left_behind = found.st_size > 0
        disk.write(self._file, 0, b"%d\n" % os.getpid())

    def release(self) -> None:
        """Give the turn to the next: the work is done."""
        self._disk.unlink(self._path)
        self._file.close()


def holder(disk: Disk, log_dir: Path) -> int | None:
    """The pid of the process that has the lock of a log directory; None if nobody has it.

    None is taken or given back.
    """
    path = log_dir / FILE_NAME
    if _identity(disk, path) in _held:
        return os.getpid()
    try:
        file = disk.open(path)
    except FileNotFoundError:
        return None
    try:
        return _holder(file.fd)
    finally:
        file.close()


def mountpoint(disk: Disk, log_dir: Path, pid: int) -> Path | None:
    """Where the process of a pid, which has the lock, has mounted a log directory; None if it has not.

    What a mount left that was killed tells nothing: then another process has the lock.
    """
    try:
        told = json.loads(disk.read_file(log_dir / MOUNT_FILE))
        # A process of another pid namespace has the number 0 here.
        return Path(told["mountpoint"]) if pid in (0, told["pid"]) else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _identity(disk: Disk, path: Path) -> tuple[int, int]:
    """What tells a file from all others; (0, 0) for one that is not there."""
    try:
        found = disk.stat(path)
    except FileNotFoundError:
        return 0, 0
    return found.st_dev, found.st_ino


def _holder(fd: int) -> int | None:
    request = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
    kind, _, _, _, pid = _FLOCK.unpack(fcntl.fcntl(fd, fcntl.F_GETLK, request))
    return None if kind == fcntl.F_UNLCK else int(pid)


def _describe(pid: int | None) -> str:
    if not pid:
        return "another process"
    try:
        command = Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return f"process {pid}"
    return f"process {pid} ({command})"
