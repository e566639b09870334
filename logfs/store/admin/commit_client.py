"""Commits staged batches, discards staged files and creates partitions, from a process without an open store.

Each function uses the mount of the log directories or, if they are not mounted, opens a `Store` for the call. While
another process, such as a broker, holds the directories, a function waits for a limited time, and then raises
`StoreLocked`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from logfs.format.base import names
from logfs.store.admin import client
from logfs.store.admin.client import paths_of
from logfs.store.admin.requests import Commit, CreateMissing, Discard
from logfs.store.directory.recognition import check_log_dirs
from logfs.store.staged_commits import Committed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from logfs.format.files.commit_file import StagedFile
    from logfs.store.admin.client import LogDirs
    from logfs.store.admin.requests import Answer, Request


def commit(
    log_dirs: LogDirs,
    writer: str,
    sequence: int,
    staged: Sequence[StagedFile],
    *,
    seconds: float = 60.0,
) -> Committed:
    """Append the batches of staged files to their partitions, all or none, and return when they are durable.

    `writer` is the id of the writer, and `sequence` the writer's own number of this commit. If the number is not
    above that of the writer's last commit, the log is not changed, the staged files are removed, and `already` of the
    result is true.

    Waits up to `seconds` while another process holds the log directories. Raises the errors of `Store` and of
    `Store.commit`.
    """
    answer = _call(log_dirs, Commit(writer, sequence, tuple(staged)), seconds)
    offsets = {name: (first, end) for name, (first, end) in answer["offsets"].items()}
    return Committed(answer["already"], offsets)


def discard(log_dirs: LogDirs, staged: Sequence[StagedFile]) -> None:
    """Remove staged files that will not be committed.

    A file is kept if it belongs to a commit that is already recorded in the log directory, but whose batches are not
    all appended yet. Waits up to five seconds while another process holds the log directories. Raises the errors of
    `Store`.
    """
    if staged:
        _call(log_dirs, Discard(tuple(staged)), 5.0)


def _call(log_dirs: LogDirs, request: Request, seconds: float) -> Answer:
    # An empty directory, such as a mountpoint on which no disk is mounted, must not become a log directory.
    check_log_dirs(paths_of(log_dirs))
    return client.call(log_dirs, request, seconds=seconds)


def create(log_dirs: LogDirs, partitions: Sequence[str], *, seconds: float = 60.0) -> None:
    """Create those of `partitions` that do not exist yet.

    Each log directory must exist, but may be empty. Waits up to `seconds` while another process holds the
    directories. Raises `InvalidName`, and the errors of `Store` and of `Store.create`.
    """
    for name in partitions:
        names.parse_directory(name)
    if partitions:
        check_log_dirs(paths_of(log_dirs), may_be_empty=True)
        client.call(log_dirs, CreateMissing([*partitions]), seconds=seconds)
