"""Kafka's lock on a log directory (kafka-storage 1.8): a POSIX record lock on `.lock`.

The lock is taken with `fcntl.lockf`, never with `flock`, which neither excludes a broker nor is excluded by one.
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

from logfs.errors import LogfsError, StoreLocked
from logfs.locks import Level, make_lock

if TYPE_CHECKING:
    from collections.abc import Sequence

    from logfs.log.disk.disk import Disk
    from logfs.store.directory.log_dir import LogDir

logger = logging.getLogger(__name__)

FILE_NAME = ".lock"
TURN_NAME = "logfs.lease"
# The file in a log directory that holds its mountpoint and the pid of the mount.
MOUNT_FILE = "logfs.mount"
# The file below a mountpoint that lists the log directories mounted there.
STATUS_FILE = ".logfs/status.json"

# The main class in the command line of a Kafka broker.
_BROKER = b"kafka.Kafka"

# struct flock of Linux on 64-bit machines: l_type, l_whence, l_start, l_len, l_pid.
FLOCK = struct.Struct("hhqqi4x")


class Lock:
    """The lock of one log directory, held from construction to `release`."""

    def __init__(self, disk: Disk, log_dir: Path) -> None:
        """Take the lock without waiting. Raises `StoreLocked`, which names the process that holds the lock."""
        self._disk = disk
        path = log_dir / FILE_NAME

        def lock(fd: int) -> None:
            try:
                fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                if error.errno not in (errno.EACCES, errno.EAGAIN):
                    raise
                holder = _holder(fd)
                mounted = None if holder is None else mountpoint(disk, log_dir, holder)
                advice = "stop it, or open the directory read-only"
                if mounted is not None:
                    advice = f"it is mounted at {mounted}: use the files there, or unmount it first"
                raise StoreLocked(f"{log_dir}: in use by {_describe(holder)}; {advice}") from None

        with _taking:
            if _identity(disk, path) in _held:
                raise StoreLocked(f"{log_dir}: in use by this process; close the other store first")
            self._file = disk.open_locked(path, lock)
            found = disk.stat_file(self._file)
            self._identity = found.device, found.identity
            _held[self._identity] = self

    def release(self) -> None:
        """Release the lock, after removing the lock file as a broker does. A file that has replaced it is kept."""
        try:
            if self.is_in_place():
                self._disk.unlink(self._file.path)
        except OSError as error:
            # Closing the descriptor below releases the lock, even if the file remains.
            logger.warning("%s: the lock file could not be removed: %s", self._file.path, error)
        finally:
            # Hold `_taking`: if the file was not removed, another thread of this process could lock it before the
            # close, which would release that lock, too.
            with _taking:
                _held.pop(self._identity, None)
                self._file.close()

    def is_in_place(self) -> bool:
        """Whether `.lock` in the log directory is still the file that was locked."""
        return self._disk.is_in_place(self._file)


# The locks that this process holds, by device and inode of the file. A POSIX record lock belongs to a process: the
# kernel would grant this process a second lock on the same file, and would release both locks as soon as the process
# closes any descriptor of the file.
_held: WeakValueDictionary[tuple[int, int], Lock] = WeakValueDictionary()
# The locks and turns that this process holds until it ends (see `keep`).
_kept: list[Lock | Turn] = []
# Held from the check of `_held` until the new lock is in `_held`, so that only one thread of this process gets the
# lock. Also held while `holder` has the file open: closing the file would release a lock that was taken meanwhile.
_taking = make_lock(Level.DESCRIPTORS)


def _after_fork() -> None:
    """In a forked child: replace `_taking`, a lock between threads, which may be held forever.

    The thread that held it in the parent does not exist in the child, so it would never release the lock.
    """
    global _taking
    _taking = make_lock(Level.DESCRIPTORS)


os.register_at_fork(after_in_child=_after_fork)


class Turn:
    """A lock on a leased partition for one process; the other processes with the lease wait for its release.

    `was_left_behind` is true if the previous process ended without `release`, for example because it was killed.
    """

    def __init__(self, disk: Disk, directory: Path) -> None:
        """Wait until no other process has the turn for the partition in `directory`, then take the turn."""
        self._disk = disk
        self._file = disk.open_locked(
            directory / TURN_NAME, lambda fd: fcntl.lockf(fd, fcntl.LOCK_EX)
        )
        self.was_left_behind = disk.size(self._file) > 0
        disk.write(self._file, 0, b"%d\n" % os.getpid())

    def release(self) -> None:
        """End the turn after the work is done, so that the next process can take it."""
        self._disk.unlink(self._file.path)
        self._file.close()


def keep(held: Lock | Turn) -> None:
    """Keep a lock or a turn until the process ends, because a thread may still write to the log directory."""
    _kept.append(held)


def holder(disk: Disk, log_dir: Path) -> int | None:
    """Return the pid of the process that holds the lock of a log directory, or None if no process does.

    The pid is 0 for a process in another pid namespace. No lock is taken or released.
    """
    path = log_dir / FILE_NAME
    with _taking:
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
    """Return the recorded mountpoint of a log directory whose lock the process `pid` holds, or None.

    The result is None if no mountpoint is recorded, or if another process recorded it, such as a mount that was
    killed. If `pid` is 0 (a process in another pid namespace), any recorded mountpoint is returned.
    """
    try:
        told = json.loads(disk.read_file(log_dir / MOUNT_FILE))
        return Path(told["mountpoint"]) if pid in (0, told["pid"]) else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def announce(log_dirs: Sequence[LogDir], mountpoint: Path) -> None:
    """Write the mountpoint to `logfs.mount` in each log directory, for other processes. Errors are only logged."""
    told = json.dumps({"pid": os.getpid(), "mountpoint": str(mountpoint)}, separators=(",", ":"))
    for log_dir in log_dirs:
        try:
            log_dir.disk.replace_file(log_dir.path / MOUNT_FILE, told.encode() + b"\n")
        except (LogfsError, OSError) as error:
            logger.warning("%s: the mountpoint could not be recorded: %s", log_dir.path, error)


def withdraw(log_dirs: Sequence[LogDir]) -> None:
    """Remove `logfs.mount` from each log directory when the mount ends. Errors are only logged."""
    for log_dir in log_dirs:
        try:
            log_dir.disk.unlink(log_dir.path / MOUNT_FILE)
        except (LogfsError, OSError) as error:
            logger.warning("%s: cannot be removed: %s", log_dir.path / MOUNT_FILE, error)


def _identity(disk: Disk, path: Path) -> tuple[int, int]:
    """Return the device and inode numbers of a file, or (0, 0) if it is missing."""
    try:
        found = disk.stat(path)
    except FileNotFoundError:
        return 0, 0
    return found.device, found.identity


def _holder(fd: int) -> int | None:
    request = FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
    kind, _, _, _, pid = FLOCK.unpack(fcntl.fcntl(fd, fcntl.F_GETLK, request))
    return None if kind == fcntl.F_UNLCK else int(pid)


def _describe(pid: int | None) -> str:
    if not pid:
        return "another process"
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        command = Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return f"process {pid}"
    return f"process {pid} ({'a Kafka broker' if _BROKER in words else command})"
