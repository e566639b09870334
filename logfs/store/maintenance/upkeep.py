"""The periodic tasks of a store: runs the tasks that are due, and retries failed work.

This module has no clock and no thread of its own (docs/architecture.md, rule 5). The store's owner calls
`Store.upkeep` periodically. The owner may call `Compactor.run_due` in another thread, because a round of compaction
may take minutes.
"""

from __future__ import annotations

import logging
import time
from functools import partial
from typing import TYPE_CHECKING

from logfs.errors import LogfsError
from logfs.format.base import names
from logfs.format.tiered.metadata_record import TOPIC as METADATA_TOPIC
from logfs.log.partition_copy import remove_directory
from logfs.log.segment.segment_writer import is_roll_overdue
from logfs.store.directory.topic_id import read_topic_id
from logfs.store.maintenance.context import Maintenance, MaintenanceContext
from logfs.store.maintenance.schedule import (
    Backoff,
    MaintenanceTask,
    Timer,
    due,
    interval_ms,
    next_due_ms,
)
from logfs.store.registry import BackgroundOperation

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from logfs.log.append.partition import Partition
    from logfs.log.disk.disk import Disk
    from logfs.store.maintenance.compaction import Compactor
    from logfs.store.maintenance.mover import Mover
    from logfs.store.maintenance.retention import Retainer
    from logfs.store.registry import PartitionRegistry

logger = logging.getLogger(__name__)


class Upkeep(Maintenance):
    """Runs the periodic tasks of a store when they are due, except compaction, moves and tiering.

    These three may take long, so `Compactor`, `Mover` and `RemoteLogManager` each have a `run_due` of their own. Only
    one thread at a time may call `run_due` of this class; any thread may call the other methods.
    """

    def __init__(
        self, context: MaintenanceContext, retainer: Retainer, compactor: Compactor, mover: Mover
    ) -> None:
        super().__init__(context)
        self._retainer = retainer
        self._compactor = compactor
        self._mover = mover
        self.backoff = Backoff(context.registry.clock)
        # When the last `run_due` ended (ms since the epoch), and how long it took.
        self.last_run_ms: int | None = None
        self.last_run_seconds = 0.0
        self._seen_version = context.registry.settings.version
        self._acts: dict[MaintenanceTask, Callable[[int], None]] = {
            MaintenanceTask.FLUSH: self._flush,
            MaintenanceTask.COMMIT: self._commits.upkeep,
            MaintenanceTask.TRANSACTIONS: context.transactions.upkeep,
            MaintenanceTask.PRODUCERS: self._expire_producers,
            MaintenanceTask.CHECKPOINT: lambda _: self.checkpoint(),
            MaintenanceTask.ROLL: self._roll,
            MaintenanceTask.RETENTION: self._retain,
            MaintenanceTask.REMOVAL: self._remove,
        }
        self._timers = dict.fromkeys(self._acts, Timer(context.registry.opened_ms))
        delay_ms = context.registry.settings.broker_config.log_initial_task_delay_ms
        for task in (MaintenanceTask.CHECKPOINT, MaintenanceTask.ROLL, MaintenanceTask.RETENTION):
            self._timers[task] = Timer(context.registry.opened_ms, delay_ms)

    def ask(self, *tasks: MaintenanceTask) -> None:
        """Make tasks due at the next `run_due`."""
        for task in tasks:
            self._timers[task] = Timer(self._registry.clock(), 0)

    def next_due(self) -> dict[MaintenanceTask, int]:
        """Return when each task is due next (ms since the epoch), except tiering and tasks without an interval."""
        broker = self._registry.settings.broker_config
        timers = {**self._timers, MaintenanceTask.COMPACTION: self._compactor.timer}
        return {
            task: next_due_ms(task, timer, broker)
            for task, timer in timers.items()
            if interval_ms(task, broker)
        }

    def run_due(self) -> None:
        """Do the tasks that are due.

        Failed work is logged, and retried after a wait that grows with each failure. It does not stop other work.
        """
        registry = self._registry
        if registry.settings.version != self._seen_version:
            self._seen_version = registry.settings.version
            self.ask(MaintenanceTask.ROLL, MaintenanceTask.RETENTION)
        began = time.monotonic()
        broker = registry.settings.broker_config
        for task in due(self._timers, broker, registry.clock(), is_paused=registry.is_paused):
            now_ms = registry.clock()
            self._timers[task] = Timer(now_ms)
            self.backoff.attempt(task, "", partial(self._acts[task], now_ms))
            retry = self.backoff.timer(task, broker)
            if next_due_ms(task, retry, broker) < next_due_ms(task, self._timers[task], broker):
                self._timers[task] = retry
        # Do not retry work for partitions that were deleted or have failed for good.
        alive = {name for name, each in registry.partitions.copy().items() if each.failure is None}
        self.backoff.keep(alive | {path.name for path in list(registry.deletions)})
        self.last_run_ms, self.last_run_seconds = registry.clock(), time.monotonic() - began

    def _partitions(self) -> list[tuple[str, Partition]]:
        """Return the partitions that upkeep may change: those that are neither paused nor failed."""
        return [
            (name, partition)
            for name, partition in self._registry.written().items()
            if not partition.is_paused and partition.failure is None
        ]

    def _attempt_each(
        self,
        task: MaintenanceTask,
        partitions: Iterable[tuple[str, Partition]],
        work: Callable[[str, Partition], None],
    ) -> None:
        for name, partition in partitions:
            self.backoff.attempt(task, name, partial(work, name, partition))

    def _flush(self, now_ms: int) -> None:
        def flush(name: str, partition: Partition) -> None:
            logger.debug("%s: flushed up to offset %d", name, partition.flush())

        written = self._registry.written().items()
        overdue = (each for each in written if each[1].flusher.is_overdue(now_ms))
        self._attempt_each(MaintenanceTask.FLUSH, overdue, flush)

    def _expire_producers(self, now_ms: int) -> None:
        expiration_ms = self._registry.settings.broker_config.producer_id_expiration_ms

        def expire(_: str, partition: Partition) -> None:
            partition.expire_producers(now_ms, expiration_ms)

        self._attempt_each(MaintenanceTask.PRODUCERS, self._registry.written().items(), expire)

    def checkpoint(self) -> None:
        """Write the checkpoints of all log directories now."""
        with self._registry.lock:
            self._checkpoints.write()
        logger.debug("checkpoints written")

    def _roll(self, now_ms: int) -> None:
        """Roll active segments that are older than `segment.ms`, even if nothing is appended to them.

        Kafka checks `segment.ms` only at the next append (kafka-storage 4.1), so the last segment of a partition
        without appends stays active forever, and is never compacted. With `logfs.roll.quiet` at its default, `auto`,
        no segment in a log directory that a broker uses is rolled.
        """

        def roll(name: str, partition: Partition) -> None:
            quiet, home = partition.config.logfs_roll_quiet, self._registry.homes.get(name)
            if home is None:
                # The partition was deleted meanwhile.
                return
            if quiet != "always" and (quiet != "auto" or home.is_brokers):
                return
            with partition.lock:
                active = partition.active
                # If nothing was appended since the store was opened, the mtime of the file counts as the time of
                # the last append.
                since_ms = partition.appended_ms
                idle_ms = now_ms - (active.mtime_ms() if since_ms is None else since_ms)
                if is_roll_overdue(active, partition.config, idle_ms, now_ms):
                    partition.roll(now_ms)
                    logger.info("%s: rolled, because of its age", active.path)

        self._attempt_each(MaintenanceTask.ROLL, self._partitions(), roll)

    def _retain(self, now_ms: int) -> None:
        names = [name for name, _ in self._partitions()]
        self._retainer.retain(names, partial(self.backoff.attempt, MaintenanceTask.RETENTION))

    def _remove(self, now_ms: int) -> None:
        def remove(name: str, partition: Partition) -> None:
            count = partition.remove_dropped(now_ms)
            if count:
                logger.info("%s: removed the files of %d dropped segments", name, count)

        self._attempt_each(MaintenanceTask.REMOVAL, self._partitions(), remove)
        disks = {log_dir.path: log_dir.disk for log_dir in self._registry.working}
        for path, due_ms in self._registry.deletions.copy().items():
            disk = disks.get(path.parent)
            if disk is not None and due_ms <= now_ms:
                work = partial(self._remove_directory, disk, path)
                self.backoff.attempt(MaintenanceTask.REMOVAL, path.name, work)

    def _remove_directory(self, disk: Disk, path: Path) -> None:
        """Remove the directory of a deleted or moved partition.

        After a move, the segments that readers still use are kept, and the directory with them.
        """
        with self._registry.lock:
            if path not in self._registry.deletions:
                # The partition was restored meanwhile.
                return
            # From here on, the partition cannot be restored.
            self._registry.deletions[path] = 0
        if not self._forget_remote(disk, path):
            return
        if remove_directory(disk, path, self._mover.still_read(path)):
            del self._registry.deletions[path]
            logger.info("%s: removed", path)

    def _forget_remote(self, disk: Disk, path: Path) -> bool:
        """Record that a deleted partition's remote segments are to be deleted; return whether `path` may be removed.

        `path` is the `-delete` directory of the partition. If the store has remote segments, and the partition may
        exist in a log directory that is not open, this records nothing, and returns False. Otherwise it returns True.

        If the partition exists again or was deleted twice, other directories may have it with the same topic id. Then
        nothing is recorded, because the remote segments are also those of the partition in these directories.
        """
        registry, name = self._registry, names.classify_directory(path.name)[1]
        topic_id = read_topic_id(disk, path)
        if topic_id is None:
            # The old directory of a moved partition has no topic id.
            return True
        if name.directory not in registry.homes and not registry.is_whole:
            return not registry.partitions_of(METADATA_TOPIC)
        places = {log_dir.path: log_dir.disk for log_dir in registry.working}
        others = [
            each
            for each in registry.deletions.copy()
            if each != path
            and each.parent in places
            and names.classify_directory(each.name)[1] == name
        ]
        home = registry.homes.get(name.directory)
        if home is not None:
            others.append(home.path / name.directory)
        if all(read_topic_id(places[each.parent], each) != topic_id for each in others):
            self._tiered.forget_partition(topic_id, name.directory)
        return True


def update_key_indexes(registry: PartitionRegistry) -> None:
    """Extend each recently used key index to the end of its log; this may take long. Errors are logged."""
    for name, partition in registry.partitions.copy().items():
        for keys in partition.key_indexes():
            try:
                keys.keep_up(registry.clock())
            except (LogfsError, OSError) as error:
                logger.error("%s: its key index cannot be updated: %s", name, error)


def key_index_progress(registry: PartitionRegistry) -> Iterator[BackgroundOperation]:
    """Yield the progress of each key index that is being extended now. Extending an index reads its log."""
    for name, partition in sorted(registry.partitions.copy().items()):
        for keys in partition.key_indexes():
            progress = keys.progress
            if progress is not None:
                yield BackgroundOperation("reading keys of", name, registry.clock(), "", *progress)
