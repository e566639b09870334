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

# A commit opens the log directories, or asks their mount, so short micro-batches share one.
_COMMIT_SECONDS = 1.0
# The pause after a commit that failed, as beside a broker, and how long a commit waits for another process.
_RETRY_SECONDS = 30.0
_WAIT_SECONDS = 0.2


class GroupPosition:
    """Commits the offsets of a query for a group, through the mount if one holds the log directories.

    The position is for others to see: the query does not use it. So a commit that fails is a warning, and the next
    one is tried.
    """

    def __init__(self, group: str, paths: Sequence[str]) -> None:
        """Prepare to commit for `group`; `paths` are log directories or mountpoints. Nothing is opened yet."""
        self._group = group
        self._paths = paths
        self._committed: Offsets = {}
        self._due = 0.0
        self._failure = ""

    def note(self, offsets: Offsets, *, is_last: bool) -> None:
        """Commit the offsets at which the query continues, in one batch.

        Unless `is_last`, because nothing more is there to read, nothing is committed within a second of the last
        commit. A failure is logged once for each reason, and tried again after half a minute.
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
            client.call(log_dirs, CommitOffsets(self._group, changed), seconds=_WAIT_SECONDS)
        except (LogfsError, OSError) as error:
            if str(error) != self._failure:
                self._failure = str(error)
                logger.warning(
                    "the position of the query was not committed for group %s, and is tried again later: %s",
                    self._group,
                    error,
                )
            self._due = time.monotonic() + _RETRY_SECONDS
            return
        self._failure, self._committed = "", offsets
