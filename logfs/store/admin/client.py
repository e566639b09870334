"""Executes requests in a store: through its mount or, if the store is not mounted, by opening it.

A mount writes a file with its mountpoint into each of its log directories. A request is a line of JSON, which is
written to `.logfs/admin` below the mountpoint; the answer is read from the same file descriptor. If the mount ends
before it answers, the request is sent again, provided that a second execution would change nothing. There is no
timeout: if the mount is stopped or waits for its disk, the caller waits, too.
"""

from __future__ import annotations

import errno
import json
import os
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

from logfs.errors import CommitPending, NotWritable, RequestInterrupted, StoreLocked
from logfs.log.disk.bucket_path import as_path
from logfs.log.disk.disk import Disk
from logfs.store.admin.requests import format_request, parse_request, raise_described
from logfs.store.directory.lock import holder, mountpoint
from logfs.store.store import Store

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from logfs.store.admin.requests import Answer, Report, Request
    from logfs.store.loading import Progress

    LogDirs = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]

_Answer = TypeVar("_Answer")

_READ_BYTES = 1 << 20
_WRITE_BYTES = 64 * 1024
# The limits of the pause between two attempts to read an answer. Between these limits, the pause is a tenth of the
# time since the request, so that it delays the caller by at most about 10 %.
_SHORTEST_PAUSE_SECONDS = 0.002
_LONGEST_PAUSE_SECONDS = 0.1
# The longest pause before `call_with_retries` tries again.
_LONGEST_WAIT_SECONDS = 1.0
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
"""The errnos that system calls on files of a mount may give when the mount has ended or is ending."""


class NoAnswer(Exception):
    """A mount ended before it answered. The caller may try again.

    No request was sent yet, or only one that is safe to execute twice (`Request.is_repeatable`).
    """


def find_mount(log_dir: Path) -> Path | None:
    """Return the mountpoint of the live mount that holds a log directory, or None if there is no such mount."""
    disk = Disk()
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
    """Call `through` with the mountpoint if the directories are mounted, otherwise call `directly` with their paths.

    While another process holds the directories, or the mount is ending, tries again for up to `seconds`, and then
    raises `StoreLocked`. After `CommitPending`, tries again only a few times, and then raises this error. Any other
    error is raised at once.
    """
    paths = paths_of(log_dirs)
    end = time.monotonic() + seconds
    pause = 0.02
    while True:
        try:
            mounted = find_mount(paths[0])
            return directly(paths) if mounted is None else through(mounted)
        except (StoreLocked, NoAnswer, CommitPending) as error:
            # Give up sooner after `CommitPending`: each attempt tries to complete the commit, and probably fails
            # again.
            if time.monotonic() + pause > end or (isinstance(error, CommitPending) and pause > 0.1):
                if isinstance(error, NoAnswer):
                    raise StoreLocked(f"{paths[0]}: its mount is ending: {error}; retry") from None
                raise
        time.sleep(pause)
        pause = min(2 * pause, _LONGEST_WAIT_SECONDS)


def call(
    log_dirs: LogDirs,
    request: Request,
    *,
    report: Report = lambda done, total: None,
    recovery: Progress | None = None,
    seconds: float = 1.0,
) -> Answer:
    """Execute a request: in the mount that holds the log directories or, without a mount, in a store opened for it.

    `report` is called with (bytes done, total bytes); the request ends if `report` raises an error. If a store is
    opened and recovers partitions, `recovery` is called with (partition, bytes read, total bytes), perhaps by several
    threads at the same time.

    If another process holds the directories, waits up to `seconds`, and then raises `StoreLocked`, which names the
    process. If the mount ends before it answers, a request with `is_repeatable` is sent again, but not later than
    `seconds` after the call began: then `StoreLocked` is raised. For any other request, `RequestInterrupted` is
    raised. An error in the execution of the request is raised here, too, even if a mount executes it. Other kinds of
    `LogfsError`, or `OSError`, are raised if the store cannot be opened.
    """

    def directly(paths: Sequence[Path]) -> Answer:
        with Store(paths, only=request.loads(), progress=recovery, create=False) as store:
            return request.run(store, report)

    def through(mounted: Path) -> Answer:
        try:
            return ask(mounted, request, report)
        except RequestInterrupted as error:
            if request.is_repeatable:
                raise NoAnswer(error) from None
            raise

    return call_with_retries(log_dirs, directly, through, seconds)


def ask(mounted: Path, request: Request, report: Report = lambda done, total: None) -> Answer:
    """Send a request to the mount at the mountpoint `mounted`, and return the answer.

    Until the answer comes, `report` is called with (bytes done, total bytes). If the request fails in the mount, its
    error is raised here. Raises `NoAnswer` if the mount has ended before the request was sent. Raises
    `RequestInterrupted` if the mount ends later: the request may have been executed or not. Raises `NotWritable` if
    this user may not send requests.
    """
    line = format_request(request)
    # Check the request before it is sent, for a clear error: a mount that refuses it returns only an errno.
    parse_request(line)
    try:
        fd = os.open(mounted / ".logfs/admin", os.O_RDWR | os.O_CLOEXEC)
    except PermissionError:
        raise NotWritable(
            f"{mounted}: only the owner of the log directories may send requests to their mount; run the command as "
            "that user"
        ) from None
    except OSError as error:
        if error.errno not in NO_MOUNT:
            raise
        raise NoAnswer(error) from None
    try:
        rest = memoryview(line)
        while rest:
            rest = rest[os.write(fd, rest[:_WRITE_BYTES]) :]
        told = _answer(fd, report)
    except OSError as error:
        if error.errno not in NO_MOUNT:
            raise
        raise RequestInterrupted(
            f"{mounted}: the mount ended during the request, which may have been executed or not; check the result"
        ) from None
    finally:
        with suppress(OSError):
            # Ignore the error of a mount that has ended meanwhile: the answer has been read.
            os.close(fd)
    if "error" in told:
        raise_described(told)
    answer: Answer = told["answer"]
    return answer


def _answer(fd: int, report: Report) -> dict[str, Any]:
    """Wait until the mount sends an answer or an error, and return its JSON object.

    Progress that the mount sends before the answer is passed to `report`.
    """
    read, rest, began = 0, b"", time.monotonic()
    while True:
        data = os.pread(fd, _READ_BYTES, read)
        if not data:
            pause = max((time.monotonic() - began) / 10, _SHORTEST_PAUSE_SECONDS)
            time.sleep(min(pause, _LONGEST_PAUSE_SECONDS))
            continue
        read += len(data)
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            told: dict[str, Any] = json.loads(line)
            if "progress" not in told:
                return told
            report(*told["progress"])
