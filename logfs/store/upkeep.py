"""What a store does by itself: what is due is picked by plans, run piece by piece, and tried again after errors.

Nothing here has a clock or a thread of its own (rule 5): who has the store calls `Keeper.run_due` now and then, and
`Compactor.run_due` in another thread, for a round may take minutes.
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
from logfs.log.copying import remove_directory
from logfs.store import rolling

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Container, Iterator, Mapping
    from pathlib import Path

    from logfs.config import BrokerConfig
    from logfs.log.files import Disk
    from logfs.log.partition import Partition
    from logfs.store.store import Store

logger = logging.getLogger(__name__)

_FIRST_WAIT_MS = 1_000
_LONGEST_WAIT_MS = 60_000


class Task(Enum):
    """The kinds of work, in the order in which they are done."""

    FLUSH = "flush"
    PRODUCERS = "producers"
    CHECKPOINT = "checkpoint"
    ROLL = "roll"
    RETENTION = "retention"
    REMOVAL = "removal"
    COMPACTION = "compaction"


# What a pause holds up. Durability is not upkeep: flushes that settings ask for and checkpoints go on.
HELD_UP = frozenset({Task.ROLL, Task.RETENTION, Task.REMOVAL, Task.COMPACTION})


@dataclass(slots=True, eq=False)
class Work:
    """Something that is going on: with what, since when (ms since the epoch), and how far it is, in bytes."""

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
    """Since when a task waits, and for how long, in ms; None for as long as the settings say."""

    since_ms: int
    wait_ms: int | None = None


def interval_ms(task: Task, broker: BrokerConfig) -> int:
    """How often a task is looked for; 0 is each time."""
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
    """When a task is due."""
    wait_ms = interval_ms(task, broker) if timer.wait_ms is None else timer.wait_ms
    return timer.since_ms + wait_ms


def due(
    timers: Mapping[Task, Timer], broker: BrokerConfig, now_ms: int, *, is_paused: bool
) -> list[Task]:
    """The tasks that are due, in their order. A clock that was put back makes all of them due, and none wait."""
    return [
        task
        for task, timer in timers.items()
        if not (is_paused and task in HELD_UP)
        and not timer.since_ms <= now_ms < next_due_ms(task, timer, broker)
    ]


class Backoff:
    """When what failed may be tried again: after a second, then after twice as long each time, up to a minute."""

    def __init__(self) -> None:
        self._failed: dict[tuple[Task, str], tuple[int, Timer]] = {}

    def __iter__(self) -> Iterator[tuple[Task, str]]:
        return iter(list(self._failed))

    def holds(self, task: Task, name: str, now_ms: int) -> bool:
        """Whether a piece of work has to wait."""
        if (task, name) not in self._failed:
            return False
        since_ms, wait_ms = self._failed[task, name][1]
        return since_ms <= now_ms < since_ms + (wait_ms or 0)

    def failed(self, task: Task, name: str, now_ms: int) -> int:
        """Note a failure; for how many ms the piece waits."""
        count = self._failed[task, name][0] + 1 if (task, name) in self._failed else 0
        wait_ms = min(_FIRST_WAIT_MS << min(count, 16), _LONGEST_WAIT_MS)
        self._failed[task, name] = (count, Timer(now_ms, wait_ms))
        return wait_ms

    def worked(self, task: Task, name: str) -> None:
        """Forget its failures."""
        self._failed.pop((task, name), None)

    def keep(self, names: Container[str]) -> None:
        """Forget the failures with all but these, which are not to be tried again."""
        for task, name in self:
            if name and name not in names:
                self.worked(task, name)


# The act.


class Keeper:
    """Does what is due to a store but for compaction, and knows when what is due next. Any thread may ask."""

    def __init__(self, store: Store, lock: threading.RLock) -> None:
        self._store = store
        self._lock = lock
        self.is_paused = False
        self.backoff = Backoff()
        # When a run ended, and how long it took: for those who watch.
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
        """Have tasks done at the next `run_due`."""
        for task in tasks:
            self._timers[task] = Timer(self._store.clock(), 0)

    def next_due(self) -> dict[Task, int]:
        """When each task is due next, in ms since the epoch, but for those that are looked for each time."""
        broker = self._store.settings.broker_config
        timers = {**self._timers, Task.COMPACTION: self._store.compactor.timer}
        return {
            task: next_due_ms(task, timer, broker)
            for task, timer in timers.items()
            if interval_ms(task, broker)
        }

    def run_due(self) -> None:
        """Do what is due. What fails is logged, waits longer each time, and holds up nothing else."""
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
        # Of what was deleted, or has failed for good, nothing waits any more.
        alive = {name for name, each in list(store.partitions.items()) if each.failure is None}
        self.backoff.keep(alive | {path.name for path in list(store.deletions)})
        self.last_run_ms, self.last_run_seconds = store.clock(), time.monotonic() - began

    @contextmanager
    def doing(self, what: str, name: str, total_bytes: int = 0) -> Iterator[Work]:
        """Show that something is going on, for as long as it does."""
        work = Work(what, name, self._store.clock(), total_bytes=total_bytes)
        self._store.background.append(work)
        try:
            yield work
        finally:
            self._store.background.remove(work)

    def _attempt(self, task: Task, name: str, work: Callable[[], None]) -> None:
        """Do one piece of a task, for the partition or the file of that name, unless it has to wait."""
        if self.backoff.holds(task, name, self._store.clock()):
            return
        try:
            work()
        except Exception as error:
            self.failures += 1
            wait_ms = self.backoff.failed(task, name, self._store.clock())
            known = isinstance(error, LogfsError | OSError)
            logger.error(
                "upkeep: %s %sfailed, and is tried again in %d s: %s",
                task.value,
                f"of {name} " if name else "",
                wait_ms // 1000,
                error if known else repr(error),
                exc_info=None if known else error,
            )
            # Sooner than its turn comes, but the others are not to wait for it.
            usual_ms = interval_ms(task, self._store.settings.broker_config)
            self._timers[task] = Timer(self._store.clock(), min(wait_ms, usual_ms))
        else:
            self.backoff.worked(task, name)

    def _partitions(self) -> list[tuple[str, Partition]]:
        """The partitions that upkeep may change: those that are paused or have failed it leaves alone."""
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
            # What was appended before the opening, the file's mtime tells of.
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
        """Remove the directory of a partition that was deleted, or moved away; what is still read there stays."""
        if remove_directory(disk, path, self._store.mover.still_read(path)):
            del self._store.deletions[path]
            logger.info("%s: removed", path)
