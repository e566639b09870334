"""One log directory: its lock, its checkpoints and its clean-shutdown marker (kafka-storage 1.3)."""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING
from weakref import WeakSet

from logfs.errors import Corrupt, LogDirFailed, LogfsError
from logfs.format import checkpoint
from logfs.log.watched import WatchedDisk
from logfs.store.lock import Lock, holder

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path
    from types import TracebackType

    from logfs.format.names import TopicPartition
    from logfs.log.files import Disk

logger = logging.getLogger(__name__)

RECOVERY_POINTS = "recovery-point-offset-checkpoint"
LOG_STARTS = "log-start-offset-checkpoint"
HIGH_WATERMARKS = "replication-offset-checkpoint"
CLEANER_OFFSETS = "cleaner-offset-checkpoint"
CLEAN_SHUTDOWN = ".kafka_cleanshutdown"
META_PROPERTIES = "meta.properties"


class FirstError:
    """Does the same for several directories or partitions, whatever becomes of one: `with errors:`, then `throw`.

    That a directory has failed is the last to be told: whoever works in the others need not stop for it.
    """

    def __init__(self) -> None:
        self.error: BaseException | None = None
        # Nothing went wrong but for directories that have failed, in which nothing can be done any more.
        self.only_of_log_dirs = True

    def __enter__(self) -> None:
        pass

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        if not isinstance(error, (LogfsError, OSError)):
            return False
        if self.error is None or isinstance(self.error, LogDirFailed):
            self.error = error
        self.only_of_log_dirs &= isinstance(error, LogDirFailed)
        return True

    def throw(self) -> None:
        """Raise the first error that there was, if there was one."""
        if self.error is not None:
            raise self.error


class LogDir:
    """A directory of partition directories, locked for this process unless the disk is read-only.

    `clean` tells whether whoever had it last closed it properly. The marker that says so is removed as soon as
    the directory is opened for writing, so that a crash from then on counts as what it is.
    """

    def __init__(
        self, disk: Disk, path: Path, failed: Callable[[LogDir], object] = lambda _: None
    ) -> None:
        """Nothing is touched before `open`; `failed` is called once, if the directory ceases to work."""
        self.path = path
        self.disk = WatchedDisk(disk, path, lambda: failed(self))
        # As it was when it was opened: mode and owner are the mount's.
        self.found: os.stat_result | None = None
        self.live = self.clean = self.is_brokers = False
        # Whether it was read which partitions are in it.
        self.is_known = False
        self.recovery_points: dict[TopicPartition, int] = {}
        self.log_starts: dict[TopicPartition, int] = {}
        self.cleaner_offsets: dict[TopicPartition, int] = {}
        self._lock: Lock | None = None
        self._owner = os.getpid()
        self._broker_epoch = checkpoint.UNKNOWN_BROKER_EPOCH
        self._unreadable: set[str] = set()
        self._seen: int | None = None
        if disk.writable:
            _written_here.add(self)

    def open(self) -> None:
        """Lock the directory and read what is in it; `StoreLocked` if someone has it, `OSError` if it is unusable."""
        disk, path = self.disk, self.path
        self.found = disk.stat(path)
        self._lock = Lock(disk, path) if disk.writable else None
        # Somebody else has the directory and writes to it, while this process only reads.
        self.live = not disk.writable and holder(disk, path) is not None
        self.clean = disk.exists(path / CLEAN_SHUTDOWN)
        # A broker keeps its topics' settings elsewhere: what is not in our own files is not known here.
        self.is_brokers = disk.exists(path / META_PROPERTIES)
        self._broker_epoch = self._read_broker_epoch()
        self.recovery_points = self._read(RECOVERY_POINTS)
        self.log_starts = self._read(LOG_STARTS)
        # Tells which partitions a cleaner has been in: a broker keeps its topics' settings elsewhere.
        self.cleaner_offsets = self._read(CLEANER_OFFSETS)

    def begin(self) -> None:
        """From here on its files may change: the marker of the last clean shutdown goes."""
        if self.disk.writable and self.clean:
            self.disk.unlink(self.path / CLEAN_SHUTDOWN)
            self.disk.sync_directory(self.path)

    @property
    def failure(self) -> LogDirFailed | None:
        """Why the directory and all that is in it is offline; None while it works."""
        return self.disk.failure

    def check_in_place(self) -> None:
        """Fail if the directory or its lock is not the one that was opened: unmounted, moved away, replaced.

        Whatever is written by name from then on would land under an empty mountpoint. Cheap: two calls of `stat`.
        """
        if self.failure is not None or self._lock is None:
            return
        try:
            found = self.disk.stat(self.path)
            before = self.found
            assert before is not None, "opened"
            if (found.st_dev, found.st_ino) != (before.st_dev, before.st_ino):
                self.disk.fail("another directory is in its place; was it unmounted?")
            elif not self._lock.is_in_place():
                self.disk.fail("its .lock is gone or another's; was its content replaced?")
        except OSError as error:
            self.disk.fail(error)

    def has_changed(self) -> bool:
        """Whether a name in the directory may have come, gone or been replaced since the last time this was asked.

        Then what is known of it is brought up to date. For who only reads it; `OSError` if it cannot be read.
        """
        found = self.disk.stat(self.path)
        if found.st_mtime_ns == self._seen:
            return False
        self._seen = found.st_mtime_ns if self.disk.is_settled(found) else None
        self.live = holder(self.disk, self.path) is not None
        self.clean = self.disk.exists(self.path / CLEAN_SHUTDOWN)
        self.recovery_points = self._read(RECOVERY_POINTS)
        self.log_starts = self._read(LOG_STARTS)
        return True

    def look_again(self) -> None:
        """Have the next `has_changed` say yes."""
        self._seen = None

    def write_recovery_points(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Replace the recovery points of every partition here."""
        self._write(RECOVERY_POINTS, offsets)

    def write_log_starts(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Replace the log start offsets of those partitions that do not begin with their first segment."""
        self._write(LOG_STARTS, offsets)

    def write_high_watermarks(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Tell a broker that adopts the directory how far its consumers may read."""
        self._write(HIGH_WATERMARKS, offsets)

    def write_cleaner_offsets(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Replace what tells up to where each log was compacted (kafka-storage 8.9)."""
        self._write(CLEANER_OFFSETS, offsets)
        self.cleaner_offsets = dict(offsets)

    def may_have_gaps(self, name: TopicPartition) -> bool:
        """Whether a partition was ever compacted, so that offsets may be missing; so if nobody can tell.

        A broker that follows takes over what the leader has compacted, and notes nothing (kafka-storage 2.9.1).
        """
        return (
            self.is_brokers or name in self.cleaner_offsets or CLEANER_OFFSETS in self._unreadable
        )

    def mark_clean(self) -> None:
        """Promise that every file here needs no recovery (kafka-storage 5.6): the last thing before `close`."""
        marker = checkpoint.format_clean_shutdown(self._broker_epoch)
        self.disk.replace_file(self.path / CLEAN_SHUTDOWN, marker)

    def close(self) -> None:
        """Give the lock back."""
        lock, self._lock = self._lock, None
        if lock is not None:
            lock.release()

    def disown(self) -> None:
        """Refuse everything from now on, and give nothing back: in a forked child, whose parent has the lock."""
        self.disk.disown(self._owner)
        self._lock = None

    def _read_broker_epoch(self) -> int:
        """The epoch of the broker that closed the directory: its controller asks it for that when it comes back."""
        if not self.clean:
            return checkpoint.UNKNOWN_BROKER_EPOCH
        try:
            return checkpoint.parse_clean_shutdown(self.disk.read_file(self.path / CLEAN_SHUTDOWN))
        except Corrupt as error:
            logger.warning("%s: %s; it counts all the same", self.path / CLEAN_SHUTDOWN, error)
            return checkpoint.UNKNOWN_BROKER_EPOCH

    def _read(self, name: str) -> dict[TopicPartition, int]:
        """A checkpoint; damage is tolerated as Kafka does, for recovery then merely has more to do."""
        path = self.path / name
        try:
            return checkpoint.parse_offsets(self.disk.read_file(path))
        except FileNotFoundError:
            return {}
        except Corrupt as error:
            logger.warning("%s: ignored: %s", path, error)
            self._unreadable.add(name)
            # Nothing is known of what was durable or where the logs begin: recover everything.
            self.clean &= name == CLEANER_OFFSETS
            return {}

    def _write(self, name: str, offsets: Mapping[TopicPartition, int]) -> None:
        self.disk.replace_file(self.path / name, checkpoint.format_offsets(offsets))


# Those that this process may write to.
_written_here: WeakSet[LogDir] = WeakSet()


def _disown_all() -> None:
    for log_dir in _written_here:
        log_dir.disown()
    _written_here.clear()


# A record lock is not inherited: two processes would write the same files.
os.register_at_fork(after_in_child=_disown_all)
