"""Commits the offsets of a streaming query for the consumer group that the option groupId names."""

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

# The least time between two commits. A commit is expensive: it opens the log directories, or sends a request to their
# mount.
_COMMIT_SECONDS = 1.0
# The pause after a failed commit. The next commit would probably fail, too: for example, all commits fail while a
# broker has locked the log directories.
_RETRY_SECONDS = 30.0
# How long a commit waits for another process to unlock the log directories.
_WAIT_SECONDS = 0.2


class GroupPosition:
    """Commits a query's offsets for a consumer group, by a request to the mount if the log directories are mounted.

    The committed offsets are for other programs; the query itself does not use them. So a failed commit is only
    logged as a warning, and a later call of `note` tries again.
    """

    def __init__(self, group: str, paths: Sequence[str]) -> None:
        """Prepare to commit for `group`; `paths` are log directories or mountpoints. Nothing is opened yet."""
        self._group = group
        self._paths = paths
        self._committed: Offsets = {}
        self._due = 0.0
        self._failure = ""

    def note(self, offsets: Offsets, *, is_last: bool) -> None:
        """Commit those of `offsets` that have changed since the last commit, in one request.

        `offsets` are the offsets at which the query continues. `is_last` is true if the query has read everything.
        Within 30 seconds after a failed commit, `note` does nothing. Within a second after a successful commit, it
        commits only if `is_last` is true. Offsets that are not committed now are left to later calls. A failure is
        logged unless the previous attempt failed for the same reason.
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
