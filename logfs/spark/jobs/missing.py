"""Segments that a task of a job could not find on its machine: the driver decides what that means.

A mount or a broker may go on while a job reads, so a segment that was planned may have left the log by the time its
task comes to it: then there is nothing to read. If the log still has it, the task's machine does not see the log.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from logfs.spark import workers
from logfs.spark.jobs.running import JobFailed
from logfs.spark.jobs.selection import opened

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from logfs.log.planned import PlannedFile
    from logfs.spark.jobs.selection import Paths


# So many segments are named in one error.
_TOLD = 3


class Missing(NamedTuple):
    """A planned file that a task did not find, the host of the task, and what the task found instead."""

    file: PlannedFile
    host: str
    reason: str

    @classmethod
    def here(cls, file: PlannedFile, error: Exception) -> Missing:
        """In a task: `error` is what opening or reading the file raised."""
        return cls(file, workers.host(), str(error))

    def __str__(self) -> str:
        return str(workers.NotOnHost.because(self.reason, self.host))

    @property
    def text(self) -> str:
        """The same for readers who know the path."""
        reason = self.reason.removeprefix(f"{self.file.path}: ")
        return str(workers.NotOnHost.because(reason, self.host))


def failure(missing: Sequence[Missing]) -> JobFailed:
    """The error for segments that are still in the log, of which there is at least one."""
    more = len(missing) - _TOLD
    rest = f"; and {more} more segments" if more > 0 else ""
    return JobFailed("; ".join(map(str, missing[:_TOLD])) + rest)


def still_in_log(paths: Paths, missing: Iterable[Missing]) -> list[Missing]:
    """In the driver: those that the log has not left behind since the plan; each of them is an error.

    Raises what opening a store read-only raises.
    """
    found: list[Missing] = []
    asked = list(missing)
    if not asked:
        return found
    with opened(paths, None) as store:
        for each in asked:
            partition = store.partitions.get(each.file.partition)
            if partition is None:
                homes = [log_dir.path.stat().st_ino for log_dir in store.log_dirs]
                if each.file.partition in store.offline or each.file.log_dir_inode not in homes:
                    found.append(each)
                continue
            with suppress(FileNotFoundError):
                # Deleted at this moment.
                if not each.file.has_left(partition):
                    found.append(each)
    return found
