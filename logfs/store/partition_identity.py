"""Tells whether a name still stands for the same partition, or for one that was created after a deletion."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING
from weakref import ref

from logfs.errors import LogfsError
from logfs.format.base import names
from logfs.format.base.names import DirectoryKind
from logfs.format.files.key_table_format import anchor_of
from logfs.log.follow.live_partition import LivePartition
from logfs.log.follow.live_segment import LiveSegment
from logfs.store.directory.mark import DELETION
from logfs.store.directory.topic_id import read_topic_id

if TYPE_CHECKING:
    from logfs.format.files.key_table_format import Anchor
    from logfs.log.read.log import Log


class PartitionIdentity:
    """Distinguishes a partition from a later one with the same name, even if both have the same topic id.

    A partition stays the same when it is moved to another log directory, or deleted and restored. In a store to which
    another process writes, the last known batch tells a moved partition from one that was created again.
    """

    def __init__(self, log: Log) -> None:
        self._log = ref(log)
        self._topic_id = read_topic_id(log.disk, log.directory)
        self._log_dir = log.directory.parent
        # The inode number of the directory; None if another process has removed the directory.
        self._inode: int | None = None
        # The log end offset, and the last batch below it (None if that is not known).
        self._end = log.state.log_end_offset
        self._last: Anchor | None = None
        if isinstance(log, LivePartition):
            self._inode = log.identity
            if not log.disk.is_remote:
                # In a bucket nothing is moved: the batch is read when it is needed, because a read costs requests.
                self._last = last_below(log, self._end)
        else:
            with suppress(FileNotFoundError):
                self._inode = log.disk.stat(log.directory).identity

    def is_of(self, log: Log) -> bool:
        """Whether `log` is a log of the same partition. If so, this object keeps it for the next comparison.

        The first comparison is with the log that was given to the constructor. If `log` is the kept object itself, no
        file is read.
        """
        if self._log() is log:
            end = log.state.log_end_offset
            if end != self._end and (last := known_last_below(log, end)) is not None:
                self._end, self._last = end, last
            return True
        now = PartitionIdentity(log)
        is_same = self._is_same(now, log)
        if is_same:
            self._log, self._log_dir, self._inode = now._log, now._log_dir, now._inode
            self._end, self._last = now._end, now._last
        return is_same

    def _is_same(self, now: PartitionIdentity, log: Log) -> bool:
        if None not in (self._topic_id, now._topic_id) and self._topic_id != now._topic_id:
            return False
        is_there = self._log_dir == now._log_dir
        if is_there and self._inode is not None and self._inode == now._inode:
            return True
        if not (is_there or isinstance(log, LivePartition)):
            # A writable store keeps the `Log` object of a partition that it moves, so `log` is another partition.
            return False
        was_deleted = self._was_deleted(log)
        if was_deleted is not None and (was_deleted or log.config.is_compacted):
            return not was_deleted
        # The partition was moved by another process, perhaps there and back, or it was created again.
        return self._goes_on_in(log) if is_there else self._may_go_on_in(log)

    def _was_deleted(self, log: Log) -> bool | None:
        """Whether this partition was deleted, as its former directory shows; False if it was moved.

        Returns None if this is unknown: the directory is gone after `file.delete.delay.ms`, and a broker leaves the
        same kind of directory after a move and after a deletion. `log` is the partition that has the name now.
        """
        disk, name = log.disk, log.name.directory
        if disk.is_remote or self._inode is None:
            return None
        try:
            for entry in disk.scan(self._log_dir):
                if entry.identity == self._inode and entry.name.startswith(f"{name}."):
                    kind, left = names.classify_directory(entry.name)[0], self._log_dir / entry.name
                    if kind is DirectoryKind.STRAY:
                        return False
                    if disk.exists(left / DELETION):
                        return True
                    # A move removes the topic id from the directory that it leaves.
                    return None if disk.exists(left / names.PARTITION_METADATA) else False
        except (LogfsError, OSError):
            return None
        return None

    def _goes_on_in(self, log: Log) -> bool:
        """Whether `log` has the last known batch of this partition; False if none is known or can be read.

        Also True if the batch in `log` cannot be read, for example because the partition is being moved once more.
        """
        last, before = self._last, self._log()
        if last is None and before is not None:
            last = last_below(before, self._end)
        if last is None or not log.log_start_offset < self._end <= log.state.log_end_offset:
            return False
        try:
            return _last_below(log, self._end) == last
        except (LogfsError, OSError):
            return True

    def _may_go_on_in(self, log: Log) -> bool:
        """Whether `log`, in another log directory, may be this partition at a later time.

        True in these cases:

        - This partition was empty.
        - Its last known batch may have been removed: `log` starts at or above the known end, or is compacted.
        - `log` has this batch or, if no batch is known, reaches at least the known end.
        """
        if not self._end or log.log_start_offset >= self._end or log.config.is_compacted:
            return True
        if self._last is None:
            return log.state.log_end_offset >= self._end
        return self._goes_on_in(log)


def last_below(log: Log, offset: int) -> Anchor | None:
    """Return the header fields that identify the batch with `offset` - 1, the last offset below `offset`.

    If compaction has removed this offset, the next batch in the segment counts. Returns None if `offset` - 1 is below
    the log start or not below the log end, if there is no such batch, or if the batch cannot be read.
    """
    if not log.log_start_offset < offset <= log.state.log_end_offset:
        return None
    try:
        return _last_below(log, offset)
    except (LogfsError, OSError):
        return None


def _last_below(log: Log, offset: int) -> Anchor | None:
    """Return the same as `last_below` for an `offset` in the log. Raises `LogfsError` or `OSError` in a read."""
    known = known_last_below(log, offset)
    if known is not None:
        return known
    batch = log.state.segments_from(offset - 1)[0].find_batch(offset - 1)
    return None if batch is None else anchor_of(batch.header)


def known_last_below(log: Log, offset: int) -> Anchor | None:
    """Return what `last_below` returns if this is known without reading a file, otherwise None.

    It is known if another process writes the log, and `offset` is the end of the last batch. The log keeps the header
    of that batch in memory, so it is known even after the files were moved or deleted.
    """
    segment = log.state.segments[-1]
    header = segment.last_header if isinstance(segment, LiveSegment) else None
    return None if header is None or header.next_offset != offset else anchor_of(header)
