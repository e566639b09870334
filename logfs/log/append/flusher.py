"""The flushes of a partition: which records are durable, when a flush is due, and the flush itself.

The flush follows rule 7 of docs/architecture.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from logfs.locks import Level, make_rlock
from logfs.log.disk.disk import NO_DESCRIPTOR
from logfs.log.segment.segment_files import too_many_unflushed
from logfs.log.state.log_state import segments_from

if TYPE_CHECKING:
    from collections.abc import Sequence

    from logfs.config import LogConfig
    from logfs.log.append.partition import Partition
    from logfs.log.recovery import Loaded
    from logfs.log.segment.segment import Segment

# A flush is due if none of the last 16 segments has a durable record, because files that are not flushed stay open.
_MOST_UNFLUSHED = 16


class Flusher:
    """The recovery point of a partition, and the flushes that raise it. Times are ms since the epoch.

    Records below the recovery point are durable. A flush holds `Flusher.lock`. The partition has another lock,
    `Partition.lock`; a thread that needs both takes `Flusher.lock` first. A commit of staged batches, a move to
    another log directory, closing and truncation hold both locks. Code that drops or replaces segments holds
    `Flusher.lock` throughout, and `Partition.lock` during the change that readers see.
    """

    def __init__(self, log: Partition, loaded: Loaded) -> None:
        self.lock = make_rlock(Level.FLUSH)
        self.recovery_point = loaded.recovery_point
        self._log = log
        # The segments whose files were changed while the partition was loaded.
        self._unsynced: Sequence[Segment] = loaded.unsynced
        self._directory_is_dirty = bool(loaded.unsynced)
        self._unflushed_since_ms: int | None = None
        self._flush_messages = log.config.flush_messages

    # When a flush is due. The Python API, the command line, maintenance and the mount follow the same rules.

    def is_due(self) -> bool:
        """Whether a flush is due.

        It is due if one of these holds:

        - At least `flush.messages` records are not flushed. The setting has the value that it had at the last append
          or, if nothing was appended since the partition was opened, at the opening.
        - None of the last 16 segments has a durable record.
        - A sealed segment is not flushed, and the unflushed sealed segments of all partitions use more than half of
          the file descriptors that sealed segments may have open.
        """
        state, point = self._log.state, self.recovery_point
        segments = state.segments
        if point < segments[-1].base_offset:
            most = 1 if too_many_unflushed() else _MOST_UNFLUSHED
            if len(segments) > most and segments[-most].base_offset >= point:
                return True
        return state.log_end_offset - point >= self._flush_messages

    def is_overdue(self, now_ms: int) -> bool:
        """Whether the first unflushed append is at least `flush.ms` old, or a sealed segment is not flushed.

        Always False if nothing was appended since the last flush, or if the partition has failed.
        """
        log, since = self._log, self._unflushed_since_ms
        if since is None or log.log_end_offset == self.recovery_point or log.failure is not None:
            return False
        return self.recovery_point < log.active.base_offset or now_ms - since >= log.config.flush_ms

    # The partition and the store call these methods after a change.

    def note_append(self, config: LogConfig, now_ms: int) -> None:
        """Note an append at `now_ms`: `is_due` then uses the value of `flush.messages` in `config`.

        The time of the first append after a flush is kept for `is_overdue`.
        """
        self._flush_messages = config.flush_messages
        if self._unflushed_since_ms is None:
            self._unflushed_since_ms = now_ms

    def note_new_files(self) -> None:
        """Remember that the directory has new files: the next flush syncs the directory."""
        self._directory_is_dirty = True

    def note_durable_copies(self) -> None:
        """Raise the recovery point to the log end, because a move has replaced all files by durable copies."""
        self.recovery_point = self._log.log_end_offset
        self._directory_is_dirty, self._unflushed_since_ms = False, None

    def lower_recovery_point(self, offset: int) -> None:
        """Lower the recovery point to `offset`, so that records at and after it are flushed again."""
        with self.lock:
            self.recovery_point = min(self.recovery_point, offset)

    # The flush itself.

    def flush(self) -> int:
        """Make everything that is in the log now durable, and return the new recovery point (an offset).

        Appends go on during the sync: the partition's lock is held only to note where the log ends. Callers share a
        sync: a caller that has waited for another caller's sync returns at once if that sync covered its records.
        Raises `PartitionFailed` if the sync fails. If the partition has failed before, raises that failure again and
        syncs nothing. Raises `OSError` for too many open files; nothing has failed then, and a later flush may
        succeed.
        """
        log = self._log
        with self.lock:
            if log.failure is not None:
                raise log.failure
            with log.lock:
                end_offset = log.log_end_offset
                segments = log.local_segments
                directory_is_dirty, self._directory_is_dirty = self._directory_is_dirty, False
                since_ms, self._unflushed_since_ms = self._unflushed_since_ms, None
            if end_offset <= self.recovery_point and not directory_is_dirty:
                return self.recovery_point
            try:
                with log.disk.flush_times.timed():
                    self._sync(segments, directory_is_dirty)
            except OSError as error:
                if error.errno in NO_DESCRIPTOR:
                    # A file could not be opened for its fsync, so no fsync has failed.
                    with log.lock:
                        self._directory_is_dirty |= directory_is_dirty
                        # Restore the earlier time: an append during the flush may have set a later one.
                        self._unflushed_since_ms = since_ms or self._unflushed_since_ms
                    raise
                raise log.fail("an fsync failed", error) from error
            self._unsynced = ()
            self.recovery_point = max(self.recovery_point, end_offset)
            return self.recovery_point

    def _sync(self, segments: Sequence[Segment], directory_is_dirty: bool) -> None:
        # Include a segment that ends at the recovery point: index entries that its sealing added may be unflushed.
        changed = [segment for segment in self._unsynced if segment in segments]
        newest = segments_from(segments, self.recovery_point - 1)
        for segment in dict.fromkeys([*changed, *newest]):
            segment.flush(indexes=not segment.is_active)
        self._log.snapshots.flush()
        if directory_is_dirty:
            self._log.disk.sync_directory(self._log.directory)
