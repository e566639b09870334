"""The position of a streaming query as the committed offsets of a consumer group (the option groupId)."""

from __future__ import annotations

import logging
import time
from pathlib import Path
from typing import TYPE_CHECKING

from logfs.errors import LogfsError
from logfs.store.admin import client
from logfs.store.admin.requests import CommitOffsets
from logfs.store.directory.recognition import log_dirs_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from logfs.spark.topics import Offsets

logger = logging.getLogger(__name__)

# The least time between two commits, because each opens the log directories or sends a request to their mount.
_COMMIT_SECONDS = 1.0
# The pause after a failed commit. While a broker holds the log directories, every commit fails.
_RETRY_SECONDS = 30.0
# How long a commit waits for another process that holds the log directories.
_WAIT_SECONDS = 0.2


class GroupPosition:
    """Commits the offsets of a query for a group, through the mount if one holds the log directories.

    Other programs read these offsets; the query itself does not use them. So a failed commit is only logged as a
    warning, and a later call of `note` tries again.
    """

    def __init__(self, group: str, paths: Sequence[str]) -> None:
        """Prepare to commit for `group`; `paths` are log directories or mountpoints. Nothing is opened yet."""
        self._group = group
        self._paths = paths
        self._committed: Offsets = {}
        self._due = 0.0
        self._failure = ""

    def note(self, offsets: Offsets, *, is_last: bool) -> None:
        """Commit the changed ones of `offsets`, at which the query continues, in one request.

        Commits are at least a second apart, unless `is_last` is true, which means that the query has read everything.
        After a failure, the next attempt comes after 30 seconds. A failure is logged unless the previous attempt
        failed for the same reason.
        """
        changed = {
            name.directory: str(offset)
            for name, offset in offsets.items()
            if self._committed.get(name) != offset
        }
        is_due = time.monotonic() >= self._due or (is_last and not self._failure)
        if not (changed and is_due):
            return
        self._due = time.monotonic() + _COMMIT_SECONDS
        try:
            log_dirs = [Path(path) for path in log_dirs_of(self._paths)]
            request = CommitOffsets(self._group, changed, skips_missing=True)
            client.call(log_dirs, request, seconds=_WAIT_SECONDS)
        except (LogfsError, OSError) as error:
            if str(error) != self._failure:
                self._failure = str(error)
                logger.warning(
                    "the offsets of the query cannot be committed for group %s; trying again in 30 s: %s",
                    self._group,
                    error,
                )
            self._due = time.monotonic() + _RETRY_SECONDS
            return
        self._failure, self._committed = "", offsets
