"""A partition that is worked on by one process while another holds the lock of its log directory.

The holder lends what it knows of the partition as a `Lease`, which can be pickled. Who gets it opens a `Store` of it,
in which there is that partition alone; what the checkpoints are to say of it goes back, for the files of the
directory itself are the holder's.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from logfs.store.lock import Turn
from logfs.store.log_dir import LogDir

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from logfs.format.names import TopicPartition
    from logfs.log.files import Disk


@dataclass(frozen=True)
class Lease:
    """What the holder of a log directory's lock knows of a partition; stands for the directory where it is opened.

    `recovery_point`, `log_start` and `cleaner_offset` are those of the checkpoints, None where these say nothing.
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
        """What is known of a partition in a log directory that is open."""
        # A broker's partitions may have gaps without an entry that says so.
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


class Returned(NamedTuple):
    """What the checkpoints are to say of a partition, and whether it was closed cleanly."""

    recovery_point: int
    log_start: int | None
    cleaner_offset: int | None
    clean: bool


class LeasedLogDir(LogDir):
    """A log directory whose lock another process has for this one: none of its own files is written.

    Two that have the same lease, as two attempts of a task, take turns. One that ended in the middle has left what a
    crash leaves, so the next one recovers the partition.
    """

    def __init__(self, disk: Disk, lease: Lease, failed: Callable[[LogDir], object]) -> None:
        super().__init__(disk, Path(lease.log_dir), failed)
        self.lease = lease
        self._closed_cleanly = False
        self._turn: Turn | None = None

    def open(self) -> None:
        """Wait for the turn, and take what the lease says; `OSError` if the directory is unusable."""
        lease = self.lease
        self.found = self.disk.stat(self.path)
        self._turn = Turn(self.disk, self.path / lease.partition.directory)
        self.clean = lease.clean and not self._turn.was_left_behind
        self.is_brokers = lease.is_brokers
        for known, value in (
            (self.recovery_points, lease.recovery_point),
            (self.log_starts, lease.log_start),
            (self.cleaner_offsets, lease.cleaner_offset),
        ):
            if value is not None:
                known[lease.partition] = value

    def returned(self) -> Returned:
        """What the holder is to note, once the store is closed."""
        name = self.lease.partition
        return Returned(
            self.recovery_points.get(name, 0),
            self.log_starts.get(name),
            self.cleaner_offsets.get(name),
            self._closed_cleanly,
        )

    def write_recovery_points(self, offsets: Mapping[TopicPartition, int]) -> None:
        """To be returned."""
        self.recovery_points = dict(offsets)

    def write_log_starts(self, offsets: Mapping[TopicPartition, int]) -> None:
        """To be returned."""
        self.log_starts = dict(offsets)

    def write_high_watermarks(self, offsets: Mapping[TopicPartition, int]) -> None:
        """They are the recovery points."""

    def write_cleaner_offsets(self, offsets: Mapping[TopicPartition, int]) -> None:
        """To be returned."""
        self.cleaner_offsets = dict(offsets)

    def mark_clean(self) -> None:
        """To be returned."""
        self._closed_cleanly = True

    def close(self) -> None:
        """Give the turn to the next."""
        turn, self._turn = self._turn, None
        if turn is not None:
            turn.release()

    def disown(self) -> None:
        """See `LogDir.disown`; the turn is the parent's, too."""
        super().disown()
        self._turn = None
