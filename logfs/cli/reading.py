"""The partitions that `cat`, `tail` and `consume` read. Other processes may compact, delete or move them."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING, TypeVar

from logfs.cli.common import (
    entries,
    partition,
    partitions_in,
    recovery_progress,
    target,
    with_whole_store,
)
from logfs.errors import UnknownPartition
from logfs.format.base import names
from logfs.log.disk.bucket_path import BucketPath
from logfs.log.disk.disk import TRIES, Gone

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path
    from typing import Any, Self

    from logfs.cli.common import Target
    from logfs.log.read.log import Log
    from logfs.log.read.read_committed import Isolation
    from logfs.log.read.reader import Reader
    from logfs.store.partition_identity import PartitionIdentity
    from logfs.store.store import Store

T = TypeVar("T")

# The time between two searches for a partition that is being moved to another log directory.
_WAIT_SECONDS = 0.1
_ON_THE_WAY = ("-stray", "-future")
_NUMBERED = re.compile(rf".+-({names.PARTITION.pattern})")


class OpenLogs:
    """The partitions that a TARGET argument names, in a store opened read-only. Only one thread may use it.

    A name in TARGET is that of a partition or, if no partition has that name, of a topic, which stands for all of its
    partitions. `logs` has the partitions in the order of the names in TARGET, those of a topic in the order of their
    numbers.
    """

    def __init__(self, words: Sequence[str], isolation: str, *, groups: bool = False) -> None:
        """Open the store, and find the partitions.

        `words` are the words of a TARGET, `isolation` is the name of an isolation level. With `groups`, all log
        directories of the store are opened, because the committed offsets of a group may be in any of them. Raises
        `InvalidSetting` for an unknown level, `NotWritable` for a read-only mount with `groups`, `UnknownPartition`,
        the errors of opening a store read-only and, for an offline partition, the error that made it offline.
        """
        from logfs.log.read.read_committed import isolation_level
        from logfs.store.store import Store

        self._target = target(words, for_writing=groups)
        if groups:
            self._target = self._target._replace(log_dirs=with_whole_store(self._target.log_dirs))
        self._isolation = isolation_level(isolation)
        self._names = self._target.name.split(",")
        # Open only one partition if possible: opening all partitions of a large directory takes long.
        only = self._names[0] if self._is_one_partition() else None
        self.store: Store = Store(
            self._target.log_dirs, read_only=True, only=only, progress=recovery_progress()
        )
        self.logs: list[OpenLog] = []
        try:
            self.find_new()
        except BaseException:
            self.store.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: Any) -> None:
        self.store.__exit__(*error)

    @property
    def log_dirs(self) -> Sequence[Path]:
        """The log directories in the TARGET; with `groups`, all log directories of the store."""
        return self._target.log_dirs

    @property
    def is_topic(self) -> bool:
        """Whether the TARGET is a topic, or several names joined by commas, and not the name of one partition."""
        return len(self._names) > 1 or self._names[0] != self.logs[0].name

    def find_new(self) -> Sequence[OpenLog]:
        """Open the partitions of the TARGET that are not open yet, and return them.

        If partitions are open already, a name that the store lacks is left out: the partition was deleted, and a
        later call opens it if it is created again. If none is open, such a name raises `UnknownPartition`. Also
        raises the error of an offline partition.
        """
        known = {log.name for log in self.logs}
        existing = {*self.store, *self.store.offline}
        new = [
            OpenLog(self.store, self._target._replace(name=name), self._isolation)
            for wanted in self._names
            for name in names.partitions_named(wanted, existing)
            if name not in known and (name in existing or not known)
        ]
        self.logs += new
        return new

    def look_again(self) -> tuple[Sequence[OpenLog], Sequence[OpenLog]]:
        """Refresh the store, find new partitions of the TARGET, and leave out deleted ones.

        Returns the partitions that are new or were created again, and those that were deleted. Raises
        `UnknownPartition` if the last one was deleted.
        """
        self.store.refresh()
        new, deleted = [*self.find_new()], []
        for log in [*self.logs]:
            try:
                if log.look_again(refresh=False):
                    new.append(log)
            except UnknownPartition:
                if len(self.logs) == 1:
                    raise
                self.logs.remove(log)
                deleted.append(log)
        return new, deleted

    def _is_one_partition(self) -> bool:
        if len(self._names) > 1:
            return False
        name = self._names[0]
        if any(isinstance(path, BucketPath) for path in self._target.log_dirs):
            # Listing a bucket costs requests, so only look whether the name has the form of a partition's name.
            return _NUMBERED.fullmatch(name) is not None
        found = partitions_in(self._target.log_dirs)
        return not found or names.partitions_named(name, found) == [name]


class OpenLog:
    """A partition that a command reads, even while other processes change, move or recreate it.

    The caller must not close the store while this object is in use. Only one thread may use the object.
    """

    def __init__(self, store: Store, wanted: Target, isolation: Isolation) -> None:
        """Find the partition in an open store.

        Raises `UnknownPartition` or, for an offline partition, the error that made it offline.
        """
        self.store = store
        self.name = wanted.name
        self._target = wanted
        self._isolation = isolation
        self._log = self._find()
        self._identity = self._identify()
        self.reader: Reader = self._log.isolated(isolation)

    def ask(self, question: Callable[[Reader], T]) -> T:
        """Call `question` with the partition's reader, and return the result.

        If the call raises `Gone`, because another process has deleted or cut a file of the log, the reader is
        refreshed and `question` is called again, up to `TRIES` times in all. Raises `Gone` if the last call also
        fails, and `UnknownPartition` if the partition was deleted.
        """
        for left in reversed(range(TRIES)):
            try:
                return question(self.reader)
            except Gone:
                if not left:
                    raise
                self.look_again()
        raise AssertionError("unreachable: the last attempt returns or raises")

    def look_again(self, *, refresh: bool = True) -> bool:
        """Refresh the reader. Return True if the partition was deleted and created again, so that it has a new log.

        Pass False as `refresh` if the store was refreshed just before. Returns False for a partition that was moved
        to another log directory: its log is the same. Raises `UnknownPartition` if the partition was deleted.
        """
        if refresh:
            self.store.refresh(self.name)
        before, self._log = self._log, self._find()
        if self._log is before:
            return False
        self.reader = self._log.isolated(self._isolation)
        if self._identity.is_of(self._log):
            return False
        self._identity = self._identify()
        return True

    def _identify(self) -> PartitionIdentity:
        from logfs.store.partition_identity import PartitionIdentity

        return PartitionIdentity(self._log)

    def _find(self) -> Log:
        for _ in range(TRIES):
            if self._target.name in self.store:
                break
            # Check for a move before the refresh, not after it: if the move ends in between, the refresh finds the
            # partition.
            is_moving = _is_moving(self._target)
            self.store.refresh()
            if not is_moving:
                break
            time.sleep(_WAIT_SECONDS)
        return partition(self.store, self._target)


def _is_moving(wanted: Target) -> bool:
    """Whether the partition is being moved: a log directory has a `-future` or `-stray` directory of it."""

    def is_on_the_way(entry: str) -> bool:
        return entry.startswith(f"{wanted.name}.") and entry.endswith(_ON_THE_WAY)

    return any(is_on_the_way(entry) for path in wanted.log_dirs for entry in entries(path))
