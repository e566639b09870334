"""Tells whether a name still stands for the same partition, or for one that was created after a deletion."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING
from weakref import ref

from logfs.errors import LogfsError
from logfs.format.files.key_table_format import anchor_of
from logfs.log.follow.live_partition import LivePartition
from logfs.store.directory.topic_id import read_topic_id

if TYPE_CHECKING:
    from logfs.format.files.key_table_format import Anchor
    from logfs.log.read.log import Log


class PartitionIdentity:
    """Distinguishes a partition from a later one with the same name, even if the later one has its topic id.

    A partition stays the same when it is moved to another log directory, or deleted and restored.
    """

    def __init__(self, log: Log) -> None:
        self._log = ref(log)
        self._topic_id = read_topic_id(log.disk, log.directory)
        self._log_dir = log.directory.parent
        # The inode number of the directory; None if another process has removed the directory.
        self._inode: int | None = None
        if isinstance(log, LivePartition):
            self._inode = log.identity
        else:
            with suppress(FileNotFoundError):
                self._inode = log.disk.stat(log.directory).identity

    def is_of(self, log: Log) -> bool:
        """Whether `log` is a log of the same partition. If so, this object keeps `log` for the next comparison.

        The first comparison is with the log that was given to the constructor. If `log` is the kept object itself, no
        file is read.
        """
        before = self._log()
        if before is log:
            return True
        now = PartitionIdentity(log)
        is_same = None in (self._topic_id, now._topic_id) or self._topic_id == now._topic_id
        if self._log_dir == now._log_dir:
            # Another directory at the same path: the partition was created again, or it was moved there and back.
            is_same &= (self._inode is not None and self._inode == now._inode) or (
                before is not None and _goes_on(before, log)
            )
        else:
            # The partition was moved by another process, or created again in another log directory. In a writable
            # store, a move keeps the object.
            is_same &= isinstance(log, LivePartition) and (
                before is None or _may_go_on(before, log)
            )
        if is_same:
            self._log, self._log_dir, self._inode = now._log, now._log_dir, now._inode
        return is_same


def last_below(log: Log, offset: int) -> Anchor | None:
    """Return the header fields that identify the batch with `offset` - 1, the last offset below `offset`.

    If compaction has removed this offset, the next batch in the segment counts. Returns None if `offset` - 1 is below
    the log start or not below the log end, if there is no such batch, or if the batch cannot be read.
    """
    state = log.state
    if not state.log_start_offset < offset <= state.log_end_offset:
        return None
    try:
        batch = state.segments_from(offset - 1)[0].find_batch(offset - 1)
    except (LogfsError, OSError):
        return None
    return None if batch is None else anchor_of(batch.header)


def _may_go_on(before: Log, log: Log) -> bool:
    """Whether `log`, in another log directory, may be the same partition as `before`, at a later time.

    True if `before` was empty, or if `log` has the last batch of `before`. Also True if this batch may have been
    removed meanwhile: by retention, because `log` starts at or after the end of `before`, or because `log` is
    compacted.
    """
    end = before.state.log_end_offset
    return (
        not end or log.log_start_offset >= end or log.config.is_compacted or _goes_on(before, log)
    )


def _goes_on(before: Log, log: Log) -> bool:
    """Whether `log` has the last batch of the log `before`; False if `before` has none, or if one cannot be read."""
    end = before.state.log_end_offset
    last = last_below(before, end)
    return last is not None and last_below(log, end) == last
