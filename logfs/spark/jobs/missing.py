"""Handles segments that a task could not open on its machine: the driver decides whether this is an error.

A mount or a broker can change the log while a job reads it. If it has removed a planned segment from the log before
the task opens the segment, this is not an error: there is nothing to read. But if the log still has the segment, the
machine of the task does not have the files of the log, which is an error.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from logfs.spark import workers
from logfs.spark.jobs.job_runner import JobFailed
from logfs.spark.jobs.selection import opened

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from logfs.log.scan.segment_descriptor import SegmentDescriptor
    from logfs.spark.jobs.selection import Paths


# The most segments that are named in an error message.
_MAX_NAMED = 3


class UnreadableSegment(NamedTuple):
    """A planned segment that a task could not open, the host of the task, and the text of the error."""

    segment: SegmentDescriptor
    host: str
    reason: str

    @classmethod
    def here(cls, segment: SegmentDescriptor, error: Exception) -> UnreadableSegment:
        """In a task: return an object for a segment that this host could not open or read; `error` says why."""
        return cls(segment, workers.host(), str(error))

    def __str__(self) -> str:
        return str(workers.NotOnHost.because(self.reason, self.host))

    @property
    def text(self) -> str:
        """The text of the error without the path of the file, for messages that have the path already."""
        reason = self.reason.removeprefix(f"{self.segment.path}: ")
        return str(workers.NotOnHost.because(reason, self.host))


def failure(missing: Sequence[UnreadableSegment]) -> JobFailed:
    """Return the error for the segments in `missing`, which must not be empty.

    These are segments that the log still has, but that tasks could not open on their machines.
    """
    more = len(missing) - _MAX_NAMED
    rest = f"; and {more} more segments" if more > 0 else ""
    return JobFailed("; ".join(map(str, missing[:_MAX_NAMED])) + rest)


def still_in_log(paths: Paths, missing: Iterable[UnreadableSegment]) -> list[UnreadableSegment]:
    """In the driver: return those segments in `missing` that the log still has.

    Each of them is an error: the machine of the task does not have the files of the log. The other segments were
    removed from the log after the job was planned, which is not an error. Raises the errors of opening a store
    read-only.
    """
    found: list[UnreadableSegment] = []
    asked = list(missing)
    if not asked:
        return found
    with opened(paths, None) as store:
        for each in asked:
            partition = store.registry.partitions.get(each.segment.partition)
            if partition is None:
                homes = [log_dir.path.stat().st_ino for log_dir in store.log_dirs]
                if (
                    each.segment.partition in store.offline
                    or each.segment.log_dir_identity not in homes
                ):
                    found.append(each)
                continue
            with suppress(FileNotFoundError):
                # `FileNotFoundError` means that the partition is being deleted, so its segment leaves the log, too.
                if not each.segment.has_left(partition):
                    found.append(each)
    return found
