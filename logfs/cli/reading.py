"""The partition that `cat` and `tail` read. Another process may compact, delete or move it during the read."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, TypeVar

from logfs.cli.common import isolation_level, partition, recovery_progress, target
from logfs.log.disk.disk import TRIES, Gone

if TYPE_CHECKING:
    import uuid
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from logfs.cli.common import Target
    from logfs.log.append.partition import Partition
    from logfs.log.read.reader import Reader
    from logfs.store.store import Store

T = TypeVar("T")

# The wait between two searches for a partition that is being moved to another log directory.
_WAIT_SECONDS = 0.1
_ON_THE_WAY = ("-stray", "-future")


class OpenTarget:
    """The partition that a TARGET argument names, in a store opened read-only. Only one thread may use it."""

    def __init__(self, words: Sequence[str], isolation: str) -> None:
        """Open the store, and find the partition.

        `words` are those of a TARGET, `isolation` is the name of an isolation level. Raises `InvalidSetting` for an
        unknown level, `UnknownPartition`, the error that keeps the partition offline, and the errors of opening a
        store read-only.
        """
        from logfs.store.store import Store

        self._target = target(words)
        self._isolation = isolation_level(isolation)
        self.store: Store = Store(
            self._target.log_dirs,
            read_only=True,
            only=self._target.name,
            progress=recovery_progress(),
        )
        try:
            self._log = self._find()
            self._id = self._topic_id()
        except BaseException:
            self.store.close()
            raise
        self.reader: Reader = self._log.isolated(self._isolation)

    def ask(self, question: Callable[[Reader], T]) -> T:
        """Return the result of `question`, which is called with the partition's reader.

        If files leave the log meanwhile (`Gone`), the reader is brought up to date and `question` is called again, up
        to `TRIES` times in all. Raises `Gone` if the last call also fails, and `UnknownPartition` if the partition is
        gone.
        """
        for left in reversed(range(TRIES)):
            try:
                return question(self.reader)
            except Gone:
                if not left:
                    raise
                self.look_again()
        raise AssertionError("the last try returns or raises")

    def look_again(self) -> bool:
        """Bring the reader up to date. Return True if the reader now reads another log, else False.

        A partition that was deleted and created again is another log; one that was moved is the same. Raises
        `UnknownPartition` if the partition is gone.
        """
        self.store.refresh()
        before, self._log = self._log, self._find()
        if self._log is before:
            return False
        self.reader = self._log.isolated(self._isolation)
        before_id, self._id = self._id, self._topic_id()
        if before_id is None or self._id is None:
            return self._log.directory == before.directory
        return before_id != self._id

    def _topic_id(self) -> uuid.UUID | None:
        return self.store.topic_id(self._log.topic)

    def _find(self) -> Partition:
        for _ in range(TRIES):
            if self._target.name in self.store:
                break
            # Look for the move before the refresh: if the move ends in between, the refresh finds the partition.
            is_moving = _is_moving(self._target)
            self.store.refresh()
            if not is_moving:
                break
            time.sleep(_WAIT_SECONDS)
        return partition(self.store, self._target)


def _is_moving(wanted: Target) -> bool:
    """Return whether a log directory has the partition under a name that is used only during a move."""

    def is_on_the_way(entry: str) -> bool:
        return entry.startswith(f"{wanted.name}.") and entry.endswith(_ON_THE_WAY)

    def entries(path: Path) -> list[str]:
        try:
            return os.listdir(path)
        except OSError:
            return []

    return any(is_on_the_way(entry) for path in wanted.log_dirs for entry in entries(path))
