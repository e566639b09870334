"""Sends administrative requests to the store of log directories, whichever process has it open."""

from __future__ import annotations

import json
import os
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from logfs.errors import NotWritable, RequestInterrupted
from logfs.store.admin.mount_channel import (
    NO_MOUNT,
    NoAnswer,
    call_with_retries,
    raise_described,
)
from logfs.store.admin.requests import format_request, parse_request
from logfs.store.store import Store

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from logfs.store.admin.mount_channel import LogDirs
    from logfs.store.admin.requests import Answer, Report, Request
    from logfs.store.loading import Progress

ADMIN_FILE = ".logfs/admin"
"""The file, below the mountpoint, to which requests are written."""

_READ_BYTES = 1 << 20
_WRITE_BYTES = 64 * 1024
# The pauses between two looks at an answer that is not complete.
_FIRST_PAUSE_SECONDS = 0.002
_LONGEST_PAUSE_SECONDS = 0.1


def call(
    log_dirs: LogDirs,
    request: Request,
    *,
    report: Report = lambda done, total: None,
    recovery: Progress | None = None,
    seconds: float = 1.0,
) -> Answer:
    """Execute a request in the mount that holds the log directories or, without one, in a store opened for it.

    `report` is called with the bytes that are done and the bytes in all; the request ends if `report` raises an
    error. `recovery` becomes the `progress` of a store that is opened. Waits up to `seconds` for another process that
    holds the directories. A repeatable request is sent again if a mount ends before it has answered. Raises
    `StoreLocked`, which names the process; `RequestInterrupted` if the mount ends during another request; the errors
    of the request, wherever it is executed; and those of opening a store.
    """
    return call_with_retries(
        log_dirs,
        lambda paths: _directly(paths, request, report, recovery),
        lambda mounted: _through(mounted, request, report),
        seconds,
    )


def _directly(
    paths: Sequence[Path], request: Request, report: Report, recovery: Progress | None
) -> Answer:
    with Store(paths, only=request.loads(), progress=recovery, create=False) as store:
        return request.run(store, report)


def _through(mounted: Path, request: Request, report: Report) -> Answer:
    try:
        return ask(mounted, request, report)
    except RequestInterrupted as error:
        if request.is_repeatable:
            raise NoAnswer(error) from None
        raise


def ask(mounted: Path, request: Request, report: Report = lambda done, total: None) -> Answer:
    """Have a mount execute a request, and return the answer.

    Raises as `call`, `NoAnswer` if the mount is gone, and `NotWritable` if the caller may not send requests.
    """
    line = format_request(request)
    # Checked here for the error text: a mount that refuses the line returns only an errno.
    parse_request(line)
    try:
        fd = os.open(mounted / ADMIN_FILE, os.O_RDWR | os.O_CLOEXEC)
    except PermissionError:
        raise NotWritable(
            f"{mounted}: only the owner of the log directories may do this beside their mount"
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
            f"{mounted}: the mount ended during the request, which may have been executed or not"
        ) from None
    finally:
        with suppress(OSError):
            # If the mount has ended meanwhile, the close fails. Only the answer matters.
            os.close(fd)
    if "error" in told:
        raise_described(told)
    answer: Answer = told["answer"]
    return answer


def _answer(fd: int, report: Report) -> dict[str, Any]:
    """Wait for the line with the answer or the error, and return it; report the progress lines that precede it."""
    read, rest, pause = 0, b"", _FIRST_PAUSE_SECONDS
    while True:
        data = os.pread(fd, _READ_BYTES, read)
        if not data:
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)
            continue
        read += len(data)
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            told: dict[str, Any] = json.loads(line)
            if "progress" not in told:
                return told
            report(*told["progress"])
