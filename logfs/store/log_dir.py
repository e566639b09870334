"""One log directory: its lock, its checkpoints and its clean-shutdown marker (kafka-storage 1.3)."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from logfs.errors import Corrupt
from logfs.format import checkpoint
from logfs.store.lock import Lock, holder

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from logfs.format.names import TopicPartition
    from logfs.log.files import Disk

logger = logging.getLogger(__name__)

RECOVERY_POINTS = "recovery-point-offset-checkpoint"
LOG_STARTS = "log-start-offset-checkpoint"
HIGH_WATERMARKS = "replication-offset-checkpoint"
CLEANER_OFFSETS = "cleaner-offset-checkpoint"
CLEAN_SHUTDOWN = ".kafka_cleanshutdown"
META_PROPERTIES = "meta.properties"


class LogDir:
    """A directory of partition directories, locked for this process unless the disk is read-only.

    `clean` tells whether whoever had it last closed it properly. The marker that says so is removed as soon as
    the directory is opened for writing, so that a crash from then on counts as what it is.
    """

    def __init__(self, disk: Disk, path: Path) -> None:
        """Open the directory; `StoreLocked` if someone has it, `OSError` if it cannot be used."""
        self.path = path
        self._disk = disk
        self._lock = Lock(disk, path) if disk.writable else None
        # Somebody else has the directory and writes to it, while this process only reads.
        self.live = not disk.writable and holder(disk, path) is not None
        self.clean = disk.exists(path / CLEAN_SHUTDOWN)
        # A broker keeps its topics' settings elsewhere: what is not in our own files is not known here.
        self.is_brokers = disk.exists(path / META_PROPERTIES)
        self._broker_epoch = self._read_broker_epoch()
        self._unreadable: set[str] = set()
        self.recovery_points = self._read(RECOVERY_POINTS)
        self.log_starts = self._read(LOG_STARTS)
        # Tells which partitions a cleaner has been in: a broker keeps its topics' settings elsewhere.
        self.cleaner_offsets = self._read(CLEANER_OFFSETS)
        self._seen: int | None = None
        if disk.writable and self.clean:
            disk.unlink(path / CLEAN_SHUTDOWN)
            disk.sync_directory(path)

    def has_changed(self) -> bool:
        """Whether a name in the directory may have come, gone or been replaced since the last time this was asked.

        Then what is known of it is brought up to date. For who only reads it; `OSError` if it cannot be read.
        """
        found = self._disk.stat(self.path)
        if found.st_mtime_ns == self._seen:
            return False
        self._seen = found.st_mtime_ns if self._disk.is_settled(found) else None
        self.live = holder(self._disk, self.path) is not None
        self.clean = self._disk.exists(self.path / CLEAN_SHUTDOWN)
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
        """Whether a partition was ever compacted, so that offsets may be missing; so if nobody can tell."""
        return name in self.cleaner_offsets or CLEANER_OFFSETS in self._unreadable

    def mark_clean(self) -> None:
        """Promise that every file here needs no recovery (kafka-storage 5.6): the last thing before `close`."""
        marker = checkpoint.format_clean_shutdown(self._broker_epoch)
        self._disk.replace_file(self.path / CLEAN_SHUTDOWN, marker)

    def close(self) -> None:
        """Give the lock back."""
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def _read_broker_epoch(self) -> int:
        """The epoch of the broker that closed the directory: its controller asks it for that when it comes back."""
        if not self.clean:
            return checkpoint.UNKNOWN_BROKER_EPOCH
        try:
            return checkpoint.parse_clean_shutdown(self._disk.read_file(self.path / CLEAN_SHUTDOWN))
        except Corrupt as error:
            logger.warning("%s: %s; it counts all the same", self.path / CLEAN_SHUTDOWN, error)
            return checkpoint.UNKNOWN_BROKER_EPOCH

    def _read(self, name: str) -> dict[TopicPartition, int]:
        """A checkpoint; damage is tolerated as Kafka does, for recovery then merely has more to do."""
        path = self.path / name
        try:
            return checkpoint.parse_offsets(self._disk.read_file(path))
        except FileNotFoundError:
            return {}
        except Corrupt as error:
            logger.warning("%s: ignored: %s", path, error)
            self._unreadable.add(name)
            # Nothing is known of what was durable or where the logs begin: recover everything.
            self.clean &= name == CLEANER_OFFSETS
            return {}

    def _write(self, name: str, offsets: Mapping[TopicPartition, int]) -> None:
        self._disk.replace_file(self.path / name, checkpoint.format_offsets(offsets))
