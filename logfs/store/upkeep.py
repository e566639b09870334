"""The periodic tasks of a store: plans select those that are due, and work that fails is tried again later.

Nothing here has a clock or a thread of its own (rule 5). The owner of the store calls `Keeper.run_due` periodically,
and `Compactor.run_due` in another thread, for a round of compaction may take minutes.
"""

from __future__ import annotations

import logging
import time
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from logfs.errors import LogfsError
from logfs.log.transfer.partition_copy import remove_directory
from logfs.store import rolling

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Container, Iterator, Mapping
    from pathlib import Path

    from logfs.config import BrokerConfig
    from logfs.log.append.partition import Partition
    from logfs.log.disk.disk import Disk
    from logfs.store.store import Store

logger = logging.getLogger(__name__)

_FIRST_WAIT_MS = 1_000
_LONGEST_WAIT_MS = 60_000


class Task(Enum):
    """The kinds of tasks, in the order in which they are done."""

    FLUSH = "flush"
    PRODUCERS = "producers"
    CHECKPOINT = "checkpoint"
    ROLL = "roll"
    RETENTION = "retention"
    REMOVAL = "removal"
    COMPACTION = "compaction"


# The tasks that a pause stops. Tasks for durability go on: flushes that settings ask for, and checkpoints.
HELD_UP = frozenset({Task.ROLL, Task.RETENTION, Task.REMOVAL, Task.COMPACTION})


@dataclass(slots=True, eq=False)
class Work:
    """A background operation: its kind, its object, its start (ms since the epoch), and its progress in bytes."""

    what: str
    name: str
    since_ms: int
    phase: str = ""
    done_bytes: int = 0
    total_bytes: int = 0

    def __str__(self) -> str:
        phase = f", {self.phase}" if self.phase else ""
        if not self.total_bytes:
            return f"{self.what} {self.name}{phase}"
        share = min(self.done_bytes / self.total_bytes, 1)
        return f"{self.what} {self.name}{phase}: {share:.0%} of {self.total_bytes} bytes"


# The plans.


class Timer(NamedTuple):
    """When a task began to wait (ms since the epoch), and for how many ms; None for the interval in the settings."""

    since_ms: int
    wait_ms: int | None = None


def interval_ms(task: Task, broker: BrokerConfig) -> int:
    """Return the interval of a task in ms; 0 means at each `run_due`."""
    if task is Task.PRODUCERS:
        return broker.producer_id_expiration_check_interval_ms
    if task is Task.CHECKPOINT:
        return min(
            broker.log_flush_offset_checkpoint_interval_ms,
            broker.log_flush_start_offset_checkpoint_interval_ms,
        )
    if task in (Task.ROLL, Task.RETENTION):
        return broker.log_retention_check_interval_ms
    return broker.log_cleaner_backoff_ms if task is Task.COMPACTION else 0


def next_due_ms(task: Task, timer: Timer, broker: BrokerConfig) -> int:
    """Return when a task is due, in ms since the epoch."""
    wait_ms = interval_ms(task, broker) if timer.wait_ms is None else timer.wait_ms
    return timer.since_ms + wait_ms


def due(
    timers: Mapping[Task, Timer], broker: BrokerConfig, now_ms: int, *, is_paused: bool
) -> list[Task]:
    """Return the tasks that are due, in their order. After the clock was set back, all of them are due."""
    return [
        task
        for task, timer in timers.items()
        if not (is_paused and task in HELD_UP)
        and not timer.since_ms <= now_ms < next_due_ms(task, timer, broker)
    ]


class Backoff:
    """The waits of failed work: a second, then twice as long after each further failure, up to a minute."""

    def __init__(self) -> None:
        self._failed: dict[tuple[Task, str], tuple[int, Timer]] = {}

    def __iter__(self) -> Iterator[tuple[Task, str]]:
        return iter(list(self._failed))

    def holds(self, task: Task, name: str, now_ms: int) -> bool:
        """Whether the work of a task for `name` has to wait after a failure."""
        if (task, name) not in self._failed:
            return False
        since_ms, wait_ms = self._failed[task, name][1]
        return since_ms <= now_ms < since_ms + (wait_ms or 0)

    def failed(self, task: Task, name: str, now_ms: int) -> int:
        """Record a failure, and return how many ms the work has to wait."""
        count = self._failed[task, name][0] + 1 if (task, name) in self._failed else 0
        wait_ms = min(_FIRST_WAIT_MS << min(count, 16), _LONGEST_WAIT_MS)
        self._failed[task, name] = (count, Timer(now_ms, wait_ms))
        return wait_ms

    def worked(self, task: Task, name: str) -> None:
        """Forget the failures of a task for `name`."""
        self._failed.pop((task, name), None)

    def keep(self, names: Container[str]) -> None:
        """Forget the failures for all names but these: work for other names will not be tried again."""
        for task, name in self:
            if name and name not in names:
                self.worked(task, name)


# Execution.


class Keeper:
    """The periodic tasks of a store except compaction, and when each is due next. Any thread may call it."""

    def __init__(self, store: Store, lock: threading.RLock) -> None:
        self._store = store
        self._lock = lock
        self.is_paused = False
        self.backoff = Backoff()
        # When the last run ended and how long it took, for status and metrics.
        self.last_run_ms: int | None = None
        self.last_run_seconds = 0.0
        self.failures = 0
        broker = store.settings.broker_config
        delay = Timer(store.opened_ms, broker.log_initial_task_delay_ms)
        self._timers = {
            Task.FLUSH: Timer(store.opened_ms),
            Task.PRODUCERS: Timer(store.opened_ms),
            Task.CHECKPOINT: delay,
            Task.ROLL: delay,
            Task.RETENTION: delay,
            Task.REMOVAL: Timer(store.opened_ms),
        }
        self._seen_version = store.settings.version
        self._acts: dict[Task, Callable[[int], None]] = {
            Task.FLUSH: self._flush,
            Task.PRODUCERS: self._expire_producers,
            Task.CHECKPOINT: self._checkpoint,
            Task.ROLL: self._roll,
            Task.RETENTION: self._retain,
            Task.REMOVAL: self._remove,
        }

    def ask(self, *tasks: Task) -> None:
        """Make tasks due at the next `run_due`."""
        for task in tasks:
            self._timers[task] = Timer(self._store.clock(), 0)

    def next_due(self) -> dict[Task, int]:
        """Return when each task is due next, in ms since the epoch, except those that are due at each `run_due`."""
        broker = self._store.settings.broker_config
        timers = {**self._timers, Task.COMPACTION: self._store.compactor.timer}
        return {
            task: next_due_ms(task, timer, broker)
            for task, timer in timers.items()
            if interval_ms(task, broker)
        }

    def run_due(self) -> None:
        """Do the tasks that are due. Work that fails is logged, waits longer each time, and delays no other work."""
        store = self._store
        if store.settings.version != self._seen_version:
            self._seen_version = store.settings.version
            self.ask(Task.ROLL, Task.RETENTION)
        began = time.monotonic()
        broker = store.settings.broker_config
        for task in due(self._timers, broker, store.clock(), is_paused=self.is_paused):
            now_ms = store.clock()
            self._timers[task] = Timer(now_ms)
            self._attempt(task, "", partial(self._acts[task], now_ms))
        # Partitions that were deleted or have failed for good are not tried again.
        alive = {name for name, each in list(store.partitions.items()) if each.failure is None}
        self.backoff.keep(alive | {path.name for path in list(store.deletions)})
        self.last_run_ms, self.last_run_seconds = store.clock(), time.monotonic() - began

    @contextmanager
    def doing(self, what: str, name: str, total_bytes: int = 0) -> Iterator[Work]:
        """Show an operation in the store's `background` while the context lasts."""
        work = Work(what, name, self._store.clock(), total_bytes=total_bytes)
        self._store.background.append(work)
        try:
            yield work
        finally:
            self._store.background.remove(work)

    def _attempt(self, task: Task, name: str, work: Callable[[], None]) -> None:
        """Do the work of a task for the partition or file of that name, unless it has to wait after a failure."""
        if self.backoff.holds(task, name, self._store.clock()):
            return
        try:
            work()
        except Exception as error:
            self.failures += 1
            wait_ms = self.backoff.failed(task, name, self._store.clock())
            known = isinstance(error, LogfsError | OSError)
            logger.error(
                "upkeep: %s %sfailed, and is retried in %d s: %s",
                task.value,
                f"of {name} " if name else "",
                wait_ms // 1000,
                error if known else repr(error),
                exc_info=None if known else error,
            )
            # Try again after the wait, but never later than usual: the other partitions must not wait longer.
            usual_ms = interval_ms(task, self._store.settings.broker_config)
            self._timers[task] = Timer(self._store.clock(), min(wait_ms, usual_ms))
        else:
            self.backoff.worked(task, name)

    def _partitions(self) -> list[tuple[str, Partition]]:
        """Return the partitions that upkeep may change: those that are neither paused nor failed."""
        return [
            (name, partition)
            for name, partition in list(self._store.partitions.items())
            if not partition.is_paused and partition.failure is None
        ]

    def _flush(self, now_ms: int) -> None:
        for name, partition in list(self._store.partitions.items()):
            if partition.flush_overdue(now_ms):
                self._attempt(Task.FLUSH, name, partial(self._flush_one, name, partition))
        self._attempt(Task.FLUSH, "", partial(self._store.commits.upkeep, now_ms))

    def _flush_one(self, name: str, partition: Partition) -> None:
        logger.debug("%s: flushed up to offset %d", name, partition.flush())

    def _expire_producers(self, now_ms: int) -> None:
        expiration_ms = self._store.settings.broker_config.producer_id_expiration_ms
        for name, partition in list(self._store.partitions.items()):
            work = partial(partition.expire_producers, now_ms, expiration_ms)
            self._attempt(Task.PRODUCERS, name, work)

    def _checkpoint(self, now_ms: int) -> None:
        self.checkpoint()

    def checkpoint(self) -> None:
        """Write the checkpoints of all log directories now."""
        with self._lock:
            self._store.write_checkpoints()
        logger.debug("checkpoints written")

    def _roll(self, now_ms: int) -> None:
        for name, partition in self._partitions():
            self._attempt(Task.ROLL, name, partial(self._roll_one, name, partition, now_ms))

    def _roll_one(self, name: str, partition: Partition, now_ms: int) -> None:
        if not rolling.is_wanted(partition.config, is_brokers=self._store.is_brokers(name)):
            return
        with partition.lock:
            active = partition.active
            # For records that were appended before the opening, the file's mtime counts.
            since_ms = partition.appended_ms
            idle_ms = now_ms - (active.mtime_ms() if since_ms is None else since_ms)
            if rolling.is_overdue(active, partition.config, idle_ms, now_ms):
                partition.roll(now_ms)
                limit = partition.config.segment_ms
                logger.info("%s: rolled: older than segment.ms=%d", active.path, limit)

    def _retain(self, now_ms: int) -> None:
        with self._lock:
            names = [name for name, _ in self._partitions()]
            self._store.retainer.retain(names, partial(self._attempt, Task.RETENTION))

    def _remove(self, now_ms: int) -> None:
        for name, partition in self._partitions():
            self._attempt(Task.REMOVAL, name, partial(self._remove_files, name, partition, now_ms))
        disks = {log_dir.path: log_dir.disk for log_dir in self._store.working}
        for path, due_ms in list(self._store.deletions.items()):
            disk = disks.get(path.parent)
            if disk is not None and due_ms <= now_ms:
                work = partial(self._remove_directory, disk, path)
                self._attempt(Task.REMOVAL, path.name, work)

    def _remove_files(self, name: str, partition: Partition, now_ms: int) -> None:
        count = partition.remove_dropped(now_ms)
        if count:
            logger.info("%s: removed the files of %d dropped segments", name, count)

    def _remove_directory(self, disk: Disk, path: Path) -> None:
        """Remove the directory of a partition that was deleted or moved; segments that are still read stay."""
        if remove_directory(disk, path, self._store.mover.still_read(path)):
            del self._store.deletions[path]
            logger.info("%s: removed", path)
