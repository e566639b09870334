"""Lists in the driver the partitions to which a write may append, and finds them on the machine of each task.

The processes in which Spark plans writes import this module. So it must not import the modules that encode rows,
whose import takes long.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

from logfs.errors import InvalidName
from logfs.format.base import names
from logfs.spark.workers import NotOnHost

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from logfs.format.files.commit_file import StagedFile

    # The path and the inode number of each partition directory, by topic and partition number.
    PlannedPartitions = Mapping[str, Mapping[int, tuple[str, int]]]

# How many times a task looks for a missing partition, and the pause between two attempts.
_LOOKS = 5
_LOOK_SECONDS = 0.1


def planned_partitions(log_dirs: Iterable[str], topic: str | None) -> PlannedPartitions:
    """In the driver: return the partitions of `topic`, or of all topics if `topic` is None. Raises `OSError`.

    The result has the path and the inode number of each partition directory, by topic and partition number.
    """
    return {
        name: {number: (str(path), path.stat().st_ino) for number, path in numbers.items()}
        for name, numbers in partitions_in(map(Path, log_dirs)).items()
        if topic in (None, name)
    }


def check_staged(log_dirs: Iterable[str], staged: Iterable[tuple[str, StagedFile]]) -> None:
    """In the driver, after a failed commit: raise `NotOnHost` if a partition lacks a staged file on this machine.

    `staged` has (host, file) for each staged file: the name of the host on which a task wrote it, and the file.
    """
    found = partitions_in(map(Path, log_dirs))
    for host, file in staged:
        topic, number = names.parse_directory(file.partition)
        directory = found.get(topic, {}).get(number)
        if directory is not None and not (directory / file.name).exists():
            reason = f"{directory / file.name}: exists on this host, where a task has staged it"
            raise NotOnHost.because(reason, host)


def found_here(log_dirs: Sequence[Path], planned: PlannedPartitions) -> dict[str, dict[int, Path]]:
    """In a task: return the directories of the partitions in the log directories, by topic and number.

    The result must include all planned partitions: otherwise this task would send some keys to other partitions than
    other tasks do. Raises `NotOnHost` if a log directory or a planned partition is missing, or if another directory
    is at the path of a planned partition. Raises `OSError`.
    """
    for left in reversed(range(_LOOKS)):
        try:
            return _look_here(log_dirs, planned)
        except NotOnHost:
            if not left:
                raise
        # A partition may be moving between log directories. It is then missing in both for a moment.
        time.sleep(_LOOK_SECONDS)
    raise AssertionError("unreachable: the last attempt returns or raises")


def _look_here(log_dirs: Sequence[Path], planned: PlannedPartitions) -> dict[str, dict[int, Path]]:
    for log_dir in log_dirs:
        if not log_dir.is_dir():
            raise NotOnHost.because(f"{log_dir}: no such directory")
    found = partitions_in(log_dirs)
    for topic, numbers in planned.items():
        for number, (path, inode) in numbers.items():
            here = found.get(topic, {}).get(number)
            if here is None:
                raise NotOnHost.because(f"{path}: the partition does not exist")
            if str(here) == path and here.stat().st_ino != inode:
                raise NotOnHost.because(
                    f"{path}: is not the directory that the write was planned for"
                )
    return found


def partitions_in(log_dirs: Iterable[Path]) -> dict[str, dict[int, Path]]:
    """Return the directories of the partitions in the log directories, by topic and number. Raises `OSError`."""
    found: dict[str, dict[int, Path]] = {}
    for log_dir in log_dirs:
        for path in log_dir.iterdir():
            try:
                kind, name = names.classify_directory(path.name)
            except InvalidName:
                continue
            if kind is names.DirectoryKind.NORMAL and path.is_dir():
                found.setdefault(name.topic, {})[name.partition] = path
    return found
