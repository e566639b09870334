"""Commits and new partitions from a process that does not have the store open.

They go through the mount that holds the log directories or, without one, through a store opened for the purpose.
A mount accepts commits at `.logfs/commit`. It may begin or end while a commit is sent. The commit is then sent again,
which is safe because no commit is made twice.
"""

from __future__ import annotations

import json
import logging
import os
from typing import TYPE_CHECKING, Any, NamedTuple

from logfs import errors
from logfs.errors import LogfsError
from logfs.format.base import names
from logfs.format.files.commit_file import StagedFile, checked, typed
from logfs.store.admin.mount_channel import (
    NO_MOUNT,
    READ_BYTES,
    NoAnswer,
    call_with_retries,
    describe_error,
    paths_of,
    raise_described,
    request_file,
    send,
    to_line,
)
from logfs.store.commits.commit import Committed, partitions_of_pending_commits
from logfs.store.directory.recognition import check_log_dirs
from logfs.store.store import Store

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from logfs.store.admin.mount_channel import LogDirs

logger = logging.getLogger(__name__)

COMMIT_FILE = ".logfs/commit"


# Requests and answers.


class CommitRequest(NamedTuple):
    """A request to a store: staged files to commit or, with `discards`, to remove."""

    writer: str
    sequence: int
    staged: tuple[StagedFile, ...]
    discards: bool = False


def format_request(request: CommitRequest) -> bytes:
    """Return a request as one line of JSON."""
    files = [[f.partition, f.name, f.size_bytes, f.record_count] for f in request.staged]
    return to_line({**request._asdict(), "staged": files})


def parse_request(line: bytes) -> CommitRequest:
    """Return the request that a line holds. Raises `InvalidRecord` if it holds none."""
    try:
        told = json.loads(line)
        staged = tuple(typed(StagedFile(*file)) for file in told["staged"])
        writer, sequence = checked("str", told["writer"]), checked("int", told["sequence"])
        return CommitRequest(writer, sequence, staged, checked("bool", told.get("discards", False)))
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise errors.InvalidRecord(f"not a commit request: {error}") from None


def serve(store: Store, request: CommitRequest) -> Committed:
    """Commit the staged files of a request, or remove them if it `discards`, and return the outcome.

    After a removal `already` is False, and `offsets` is empty. Raises the errors of `Commits.commit` or
    `Commits.discard`.
    """
    if not request.discards:
        return store.commit(request.writer, request.sequence, request.staged)
    store.commits.discard(request.staged)
    return Committed(False, {})


def format_answer(outcome: Committed | Exception) -> bytes:
    """Return the answer to a request, its outcome or the error that it raised, as one line of JSON."""
    if isinstance(outcome, Committed):
        answer: dict[str, Any] = {"already": outcome.already, "offsets": outcome.offsets}
    else:
        answer = describe_error(outcome)
    return to_line(answer)


def parse_answer(line: bytes) -> Committed:
    """Return the outcome that an answer holds, or raise the error that it holds.

    An error whose class is not in `logfs.errors` becomes an `OSError` with EIO.
    """
    told = json.loads(line)
    if "error" not in told:
        offsets = {name: (first, end) for name, (first, end) in told["offsets"].items()}
        return Committed(told["already"], offsets)
    raise_described(told)


# Commits from outside.


def commit(
    log_dirs: LogDirs,
    writer: str,
    sequence: int,
    staged: Sequence[StagedFile],
    *,
    seconds: float = 60.0,
) -> Committed:
    """Commit files that were staged in log directories, all or none, through a mount or directly.

    `writer` is the name of the writer, and `sequence` the writer's own number of this commit. If the number is not
    above that of the writer's last commit, nothing is appended. Waits up to `seconds` for another process that holds
    the directories. Raises `StoreLocked` if the process keeps them, as a broker does, which accepts no commits. Also
    raises `InvalidStore`, and the errors of opening a store and of `Commits.commit`.
    """
    return _send(log_dirs, CommitRequest(writer, sequence, tuple(staged)), seconds)


def discard(log_dirs: LogDirs, staged: Sequence[StagedFile], *, seconds: float = 5.0) -> None:
    """Remove staged files that will not be committed; the files of a decided commit stay.

    Waits up to `seconds` for another process that holds the directories. Raises `StoreLocked` if the process keeps
    them, `InvalidStore`, and the errors of opening a store.
    """
    if staged:
        _send(log_dirs, CommitRequest("", 0, tuple(staged), discards=True), seconds)


def create(log_dirs: LogDirs, partitions: Sequence[str], *, seconds: float = 60.0) -> None:
    """Create the partitions that do not exist yet, through a mount or directly.

    A log directory may be empty, but must exist. Waits up to `seconds` for another process that holds the
    directories. Raises `StoreLocked` if the process keeps them, `InvalidName`, and the errors of opening a store.
    """
    for name in partitions:
        names.parse_directory(name)
    if partitions:
        check_log_dirs(paths_of(log_dirs), may_be_empty=True)
        call_with_retries(
            log_dirs,
            lambda paths: _create_directly(paths, partitions),
            lambda mounted: _create_through(mounted, partitions),
            seconds,
        )


def _send(log_dirs: LogDirs, request: CommitRequest, seconds: float) -> Committed:
    def through(mounted: Path) -> Committed:
        with request_file(mounted / COMMIT_FILE) as fd:
            return _ask(fd, format_request(request))

    check_log_dirs(paths_of(log_dirs))
    return call_with_retries(
        log_dirs,
        lambda paths: _send_directly(paths, request),
        through,
        seconds,
    )


def _create_directly(paths: Sequence[Path], partitions: Sequence[str]) -> None:
    with Store(paths, only=frozenset(partitions).__contains__, create=False) as store:
        for name in partitions:
            if name not in store.homes:
                store.create(name)


def _create_through(mounted: Path, partitions: Sequence[str]) -> None:
    for name in partitions:
        try:
            (mounted / name).mkdir(exist_ok=True)
        except OSError as error:
            if error.errno in NO_MOUNT:
                raise NoAnswer(error) from None
            raise


def _send_directly(paths: Sequence[Path], request: CommitRequest) -> Committed:
    """Execute a request in a store opened for it.

    The store loads the partitions of the request, and those of commits that are decided and not done.
    """
    wanted = {file.partition for file in request.staged} | partitions_of_pending_commits(paths)
    with Store(paths, only=wanted.__contains__, create=False) as store:
        done = serve(store, request)
        try:
            store.commits.upkeep(store.clock())
        except (LogfsError, OSError) as error:
            logger.warning("%s", error)
        return done


def _ask(fd: int, request: bytes) -> Committed:
    failure: OSError | None = None
    answer = b""
    try:
        send(fd, request)
    except OSError as error:
        failure = error
    try:
        while data := os.pread(fd, READ_BYTES, len(answer)):
            answer += data
    except OSError as error:
        failure = failure or error
    if answer.endswith(b"\n"):
        return parse_answer(answer)
    if failure is None or failure.errno in NO_MOUNT:
        raise NoAnswer(failure or "end of file before a complete answer")
    raise failure
