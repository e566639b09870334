"""How a process reaches the store that another process may hold: through its mount, or by opening it.

A mount writes a file with its mountpoint into each of its log directories. Below the mountpoint are files that take
requests: a line of JSON is written to one, and the answer is read from the same descriptor. A mount may begin or end
while a request is sent; the request is then sent again if that is safe.
"""

from __future__ import annotations

import errno
import json
import logging
import os
import time
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from logfs import errors
from logfs.errors import CommitPending, LogfsError, StoreLocked
from logfs.log.disk.bucket_path import as_path
from logfs.log.disk.disk import Disk
from logfs.store.directory.lock import MOUNT_FILE, holder, mountpoint

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from logfs.store.directory.log_dir import LogDir

    LogDirs = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]

_Answer = TypeVar("_Answer")

logger = logging.getLogger(__name__)

_LONGEST_PAUSE_SECONDS = 1.0
NO_MOUNT = frozenset(
    {
        errno.ENOTCONN,
        errno.ECONNABORTED,
        errno.ENOENT,
        errno.ENODEV,
        errno.EIO,
        errno.ENXIO,
        errno.ENOTDIR,
    }
)
"""The errnos that calls to a mount may raise when the mount has ended or is ending."""


class NoAnswer(Exception):
    """The mount ended before it answered. The request can be sent again."""


def announce(log_dirs: Sequence[LogDir], mountpoint: Path) -> None:
    """Write the mountpoint to a file in each log directory, for other processes. An error is logged and ignored."""
    told = to_line({"pid": os.getpid(), "mountpoint": str(mountpoint)})
    for log_dir in log_dirs:
        try:
            log_dir.disk.replace_file(log_dir.path / MOUNT_FILE, told)
        except (LogfsError, OSError) as error:
            logger.warning("%s: the mountpoint could not be recorded: %s", log_dir.path, error)


def withdraw(log_dirs: Sequence[LogDir]) -> None:
    """Remove the file with the mountpoint from each log directory. An error is logged and ignored."""
    for log_dir in log_dirs:
        try:
            log_dir.disk.unlink(log_dir.path / MOUNT_FILE)
        except (LogfsError, OSError) as error:
            logger.warning("%s: %s", log_dir.path / MOUNT_FILE, error)


def find_mount(disk: Disk, log_dir: Path) -> Path | None:
    """Return the mountpoint of the mount that holds a log directory, or None if no mount does."""
    pid = holder(disk, log_dir)
    mounted = None if pid is None else mountpoint(disk, log_dir, pid)
    try:
        return mounted if mounted is not None and (mounted / ".logfs").exists() else None
    except OSError:
        return None


def paths_of(log_dirs: LogDirs) -> list[Path]:
    """Return the absolute paths of one log directory or several."""
    named = [log_dirs] if isinstance(log_dirs, (str, os.PathLike)) else log_dirs
    return [as_path(path).absolute() for path in named]


def call_with_retries(
    log_dirs: LogDirs,
    directly: Callable[[Sequence[Path]], _Answer],
    through: Callable[[Path], _Answer],
    seconds: float,
) -> _Answer:
    """Call `through` with the mountpoint of the mount that holds the directories, or `directly` if there is none.

    Tries again, for up to `seconds`, while another process holds the directories or a mount goes away, and a few
    times after `CommitPending`. Then raises `StoreLocked` or `CommitPending`. Raises the errors of both functions.
    """
    paths = paths_of(log_dirs)
    end = time.monotonic() + seconds
    pause = 0.02
    while True:
        try:
            mounted = find_mount(Disk(), paths[0])
            return directly(paths) if mounted is None else through(mounted)
        except (StoreLocked, NoAnswer, CommitPending) as error:
            # Few retries after `CommitPending`: if the first openings do not finish the commit, a cause prevents it.
            if time.monotonic() + pause > end or (isinstance(error, CommitPending) and pause > 0.1):
                if isinstance(error, NoAnswer):
                    raise StoreLocked(f"{paths[0]}: its mount does not answer: {error}") from None
                raise
        time.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)


def to_line(told: dict[str, Any]) -> bytes:
    """Return a JSON object as one line."""
    return json.dumps(told, separators=(",", ":")).encode() + b"\n"


def describe_error(error: Exception) -> dict[str, Any]:
    """Return what another process needs to raise an error again."""
    told: dict[str, Any] = {"error": type(error).__name__, "reason": str(error)}
    if isinstance(error, OSError) and not isinstance(error, LogfsError) and error.errno:
        told |= {"errno": error.errno, "reason": error.strerror or str(error)}
        if error.filename is not None:
            told["file"] = os.fsdecode(error.filename)
    return told


def raise_described(told: dict[str, Any]) -> NoReturn:
    """Raise the error that `describe_error` has described.

    An error whose class is not in `logfs.errors` becomes an `OSError`, with EIO if it had no errno.
    """
    kind = getattr(errors, told["error"], None)
    if isinstance(kind, type) and issubclass(kind, LogfsError):
        raise kind(told["reason"])
    raise OSError(told.get("errno", errno.EIO), told["reason"], told.get("file"))
