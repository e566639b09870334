"""Leases: one process works on a partition while another process holds the lock of the log directory.

The holder of the lock makes a `Lease`, which has the checkpoint entries of the partition and can be pickled. The
process that gets the lease opens it as a `Store`, which contains only that partition. This process returns the new
checkpoint entries to the holder, because only the holder writes the checkpoints and markers of the log directory.
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

    `Store` accepts a lease in place of a path. `clean` tells whether the log directory was shut down cleanly,
    `is_brokers` whether a broker also uses the directory. `recovery_point`, `log_start` and `cleaner_offset` are the
    partition's entries in the checkpoints, None for a missing entry.

    A partition with a cleaner offset was compacted, so missing offsets are no damage. If the checkpoint of cleaner
    offsets is damaged, the partition may have been compacted, so `cleaner_offset` is 0 instead of None. In a broker's
    directory, missing offsets never count as damage.
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
        """Return a lease of a partition, with its entries in the checkpoints of `log_dir`, which must be open."""
        # The cleaner offset 0 permits missing offsets in the log. With `is_brokers` they are permitted anyway.
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

    This object does not write the checkpoints and markers of the directory: `returned` has the partition's new
    entries. Processes with the same lease, such as two attempts of a Spark task, work one after the other: each holds
    an exclusive lock on the partition (`Turn`) while it works. If a process ends without releasing this lock, the
    next process recovers the partition, as after a crash.
    """

    def __init__(self, disk: Disk, lease: Lease, failed: Callable[[LogDir], object]) -> None:
        super().__init__(disk, Path(lease.log_dir), failed)
        self.lease = lease
        self._closed_cleanly = False

    def open(self) -> None:
        """Wait until no other process works on the leased partition, then lock it (`Turn`). Raises `OSError`.

        The attributes of this object, such as `recovery_points`, are set from the lease.
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
        """Return a copy of the lease with the new checkpoint entries of the partition.

        The `clean` of the copy tells whether the store has closed the partition cleanly.
        """
        name = self.lease.partition
        return replace(
            self.lease,
            clean=self._closed_cleanly,
            recovery_point=self.recovery_points.get(name, 0),
            log_start=self.log_starts.get(name),
            cleaner_offset=self.cleaner_offsets.get(name),
        )

    def _write(self, name: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Do nothing: only the holder of the lock writes the checkpoints, with the offsets from `returned`."""

    def mark_clean(self) -> None:
        """Note that the store has closed the partition cleanly; `returned` then returns a lease with `clean` true."""
        self._closed_cleanly = True
