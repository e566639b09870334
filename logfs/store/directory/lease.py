"""Leases: one process works on a partition while another process holds the lock of its log directory.

The holder of the lock passes the known state of the partition on as a `Lease`, which can be pickled. The process that
gets the lease opens it as a `Store`, which contains that partition alone. The new checkpoint entries of the partition
go back to the holder, because only the holder writes the files of the log directory itself.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from logfs.store.directory.lock import Turn
from logfs.store.directory.log_dir import LogDir

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from logfs.format.base.names import TopicPartition
    from logfs.log.disk.disk import Disk


@dataclass(frozen=True)
class Lease:
    """A permission to work on one partition of a log directory that another process has locked.

    `Store` accepts it in place of the directory. `clean` tells whether the directory was shut down cleanly,
    `is_brokers` whether a broker also uses it. `recovery_point`, `log_start` and `cleaner_offset` are the partition's
    entries in the checkpoints, or None. If the checkpoint of cleaner offsets is unreadable, offsets may be missing in
    the log: `cleaner_offset` is then 0, or None in a broker's directory, because `is_brokers` already implies this.
    """

    log_dir: str
    partition: TopicPartition
    clean: bool
    is_brokers: bool
    recovery_point: int | None
    log_start: int | None
    cleaner_offset: int | None

    @classmethod
    def of(cls, log_dir: LogDir, partition: TopicPartition) -> Lease:
        """Make a lease of a partition from its entries in the checkpoints of a log directory that is open here."""
        # A cleaner offset of 0 says that offsets may be missing in the log. With `is_brokers` they always may be.
        cleaned = 0 if log_dir.may_have_gaps(partition) and not log_dir.is_brokers else None
        return cls(
            str(log_dir.path),
            partition,
            log_dir.clean,
            log_dir.is_brokers,
            log_dir.recovery_points.get(partition),
            log_dir.log_starts.get(partition),
            log_dir.cleaner_offsets.get(partition, cleaned),
        )

    def __fspath__(self) -> str:
        return self.log_dir


class LeasedLogDir(LogDir):
    """A log directory that another process has locked, opened for work on one leased partition.

    Checkpoints and markers of the directory are not written: `returned` has the partition's new entries instead.
    Processes that have the same lease, such as two attempts of a task, take turns. A process that ended during its
    turn may have left the partition as a crash does, so the next process recovers the partition.
    """

    def __init__(self, disk: Disk, lease: Lease, failed: Callable[[LogDir], object]) -> None:
        super().__init__(disk, Path(lease.log_dir), failed)
        self.lease = lease
        self._closed_cleanly = False

    def open(self) -> None:
        """Wait until no other process works on the leased partition, then begin the turn. Raises `OSError`.

        The attributes of this directory, such as its recovery points, are set from the lease.
        """
        lease = self.lease
        self.found = self.disk.stat(self.path)
        self._lock = turn = Turn(self.disk.disk, self.path / lease.partition.directory)
        self.clean = lease.clean and not turn.was_left_behind
        self.is_brokers = lease.is_brokers
        for known, value in (
            (self.recovery_points, lease.recovery_point),
            (self.log_starts, lease.log_start),
            (self.cleaner_offsets, lease.cleaner_offset),
        ):
            if value is not None:
                known[lease.partition] = value

    def returned(self) -> Lease:
        """Return the lease with the partition's new entries; `clean` tells whether the store closed it cleanly."""
        name = self.lease.partition
        return replace(
            self.lease,
            clean=self._closed_cleanly,
            recovery_point=self.recovery_points.get(name, 0),
            log_start=self.log_starts.get(name),
            cleaner_offset=self.cleaner_offsets.get(name),
        )

    def _write(self, name: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Write nothing: only the holder of the lock writes checkpoints. `returned` has the offsets for it."""

    def mark_clean(self) -> None:
        """Record for `returned` that the partition was closed cleanly."""
        self._closed_cleanly = True
