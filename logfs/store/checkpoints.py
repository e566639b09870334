"""The writer of the checkpoint files in all log directories of a store (kafka-storage 1.3)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from logfs.format.base import names
from logfs.store.directory.log_dir import FirstError

if TYPE_CHECKING:
    from logfs.log.append.partition import Partition
    from logfs.store.directory.log_dir import LogDir
    from logfs.store.registry import PartitionRegistry


class Checkpoints:
    """The writer of the checkpoint files in the log directories of a registry.

    The files hold the recovery points, log start offsets, high watermarks and cleaner offsets of the partitions.
    Callers of `write` and `write_one` must hold the registry's lock.
    """

    def __init__(self, registry: PartitionRegistry) -> None:
        self._registry = registry
        # The moves that only the next opening of the store can finish: the target log directory and the partition, by
        # the name of the partition. The partition is kept here, because it leaves the registry if the log directory
        # from which it is moved fails.
        self.unfinished: dict[str, tuple[LogDir, Partition]] = {}

    def write(self) -> None:
        """Write the recovery points, log start offsets and high watermarks to each log directory that works.

        If one directory cannot be written, the others are written before the error is raised.
        """
        errors = FirstError()
        for log_dir in self._registry.working:
            with errors:
                self.write_one(log_dir)
        errors.throw()

    def write_one(self, log_dir: LogDir, *coming: Partition) -> None:
        # The last loop must use this copy, too: it then keeps the entries of a partition that another thread loads
        # meanwhile. Otherwise these entries would be lost, because the partition is not in `here`.
        loaded = dict(self._registry.partitions)
        here = [p for n, p in loaded.items() if self._registry.homes[n] is log_dir]
        here += coming
        # Write entries also for the partitions that unfinished moves have copied to `log_dir`: at the next opening,
        # the copy becomes the partition.
        here += [copy for home, copy in self.unfinished.copy().values() if home is log_dir]
        points = {partition.name: partition.recovery_point for partition in here}
        starts = {
            partition.name: partition.log_start_offset
            for partition in here
            # Without an entry, a log starts at its first segment. In a tiered log, this may be a remote segment below
            # the log start that is not deleted yet. So always write the entry of a tiered log.
            if partition.config.remote_storage_enable
            or partition.log_start_offset != partition.local_start_offset
        }
        for directory, home in self._registry.homes.copy().items():
            # A partition that is offline or was not loaded keeps its entries.
            if home is log_dir and directory not in loaded:
                name = names.parse_directory(directory)
                points[name] = log_dir.recovery_points.get(name, 0)
                if name in log_dir.log_starts:
                    starts[name] = log_dir.log_starts[name]
        log_dir.write_offsets(points, starts)

    def cleaner_offset(self, name: str) -> int | None:
        """Return the first offset that compaction has not reached yet, or None if the partition was never compacted.

        Kafka keeps it in `cleaner-offset-checkpoint` (kafka-storage 8.9).
        """
        return self._registry.homes[name].cleaner_offsets.get(self._registry[name].name)

    def set_cleaner_offset(self, partition: Partition, offset: int) -> None:
        """Record that a partition was compacted up to an offset, unless the partition was deleted meanwhile."""
        with self._registry.lock:
            if self._registry.partitions.get(partition.name.directory) is partition:
                log_dir = self._registry.homes[partition.name.directory]
                log_dir.set_cleaner_offset(partition.name, offset)
