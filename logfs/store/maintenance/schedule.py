"""When each periodic task of a store is due, how long failed work waits, and how fast upkeep reads and writes."""

from __future__ import annotations

import logging
import time
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

from logfs.errors import LogfsError

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterator, Mapping

    from logfs.config import BrokerConfig

logger = logging.getLogger(__name__)

_FIRST_WAIT_MS = 1_000
_LONGEST_WAIT_MS = 60_000
# `throttle` postpones waits shorter than this, and adds them to the next one.
_LEAST_WAIT_SECONDS = 0.05


class MaintenanceTask(Enum):
    """The periodic tasks of a store, in the order in which they are done."""

    FLUSH = "flush"
    COMMIT = "commit"
    TRANSACTIONS = "transactions"
    PRODUCERS = "producers"
    CHECKPOINT = "checkpoint"
    ROLL = "roll"
    RETENTION = "retention"
    REMOVAL = "removal"
    COMPACTION = "compaction"
    TIERING = "tiering"


# The tasks that are not done while upkeep is paused. Tasks for durability go on (flushes that settings require,
# commits, transactions and checkpoints), and so does the expiry of idle producers.
PAUSABLE = frozenset(MaintenanceTask) - {
    MaintenanceTask.FLUSH,
    MaintenanceTask.COMMIT,
    MaintenanceTask.TRANSACTIONS,
    MaintenanceTask.PRODUCERS,
    MaintenanceTask.CHECKPOINT,
}


class Timer(NamedTuple):
    """When a task began to wait (ms since the epoch), and how long it waits (ms).

    If `wait_ms` is None, the task waits for the interval in the settings (`interval_ms`).
    """

    since_ms: int
    wait_ms: int | None = None


def interval_ms(task: MaintenanceTask, broker: BrokerConfig) -> int:
    """Return the interval (ms) of a task in the settings; 0 for a task without one, which is always due."""
    if task is MaintenanceTask.PRODUCERS:
        return broker.producer_id_expiration_check_interval_ms
    if task is MaintenanceTask.CHECKPOINT:
        return min(
            broker.log_flush_offset_checkpoint_interval_ms,
            broker.log_flush_start_offset_checkpoint_interval_ms,
        )
    if task in (MaintenanceTask.ROLL, MaintenanceTask.RETENTION):
        return broker.log_retention_check_interval_ms
    if task is MaintenanceTask.TIERING:
        return broker.remote_log_manager_task_interval_ms
    return broker.log_cleaner_backoff_ms if task is MaintenanceTask.COMPACTION else 0


def next_due_ms(task: MaintenanceTask, timer: Timer, broker: BrokerConfig) -> int:
    """Return when a task is due, in ms since the epoch."""
    wait_ms = interval_ms(task, broker) if timer.wait_ms is None else timer.wait_ms
    return timer.since_ms + wait_ms


def due(
    timers: Mapping[MaintenanceTask, Timer], broker: BrokerConfig, now_ms: int, *, is_paused: bool
) -> list[MaintenanceTask]:
    """Return the tasks of `timers` that are due at `now_ms` (ms since the epoch), in the order of `timers`.

    If the clock was set back, so that a task began to wait after `now_ms`, the task is due, too. While upkeep is
    paused (`is_paused`), the tasks in `PAUSABLE` are left out.
    """
    return [
        task
        for task, timer in timers.items()
        if not (is_paused and task in PAUSABLE)
        and not timer.since_ms <= now_ms < next_due_ms(task, timer, broker)
    ]


class Failure(NamedTuple):
    """Failed work: how often it failed, when it failed last (ms since the epoch), how long it waits (ms), and why."""

    times: int
    since_ms: int
    wait_ms: int
    reason: str


class Backoff:
    """The time for which failed work waits until it is retried: a second, doubled at each failure, up to a minute.

    `failures` is the number of all failures so far. Work is identified by its task and a name: that of the partition
    or directory that the work is for, or "" if it is the whole task.
    """

    def __init__(self, clock: Callable[[], int]) -> None:
        """Begin without any failed work; `clock` returns the time in ms since the epoch."""
        self._clock = clock
        self.failures = 0
        # By task and name.
        self._failed: dict[tuple[MaintenanceTask, str], Failure] = {}

    def __iter__(self) -> Iterator[tuple[MaintenanceTask, str]]:
        return iter(list(self._failed))

    def describe(self) -> Iterator[str]:
        """Yield a line for each piece of work that waits for a retry, such as "tiering orders-0: no such bucket"."""
        for task, name in self:
            failure = self._failed.get((task, name))
            if failure is not None:
                yield f"{f'{task.value} {name}'.strip()}: {failure.reason}"

    def attempt(self, task: MaintenanceTask, name: str, work: Callable[[], object]) -> None:
        """Call `work`, unless it failed before and still has to wait. If `work` fails, the error is logged."""
        before = self._failed.get((task, name), Failure(0, 0, 0, ""))
        if before.since_ms <= self._clock() < before.since_ms + before.wait_ms:
            return
        try:
            work()
        except Exception as error:
            self.failures += 1
            wait_ms = min(_FIRST_WAIT_MS << min(before.times, 16), _LONGEST_WAIT_MS)
            known = isinstance(error, LogfsError | OSError)
            reason = str(error) if known else repr(error)
            self._failed[task, name] = Failure(before.times + 1, self._clock(), wait_ms, reason)
            logger.error(
                "upkeep: %s %sfailed, and is retried in %d s: %s",
                task.value,
                f"of {name} " if name else "",
                wait_ms // 1000,
                reason,
                exc_info=None if known else error,
            )
        else:
            self._failed.pop((task, name), None)

    def timer(self, task: MaintenanceTask, broker: BrokerConfig) -> Timer:
        """Return the timer of a task that has just run.

        If work of the task waits for a retry, the task runs again after the shortest of these waits. It never waits
        longer than its usual interval, so that its work for other partitions is not delayed.
        """
        now_ms = self._clock()
        ends_ms = [
            failure.since_ms + failure.wait_ms
            for (each, _), failure in self._failed.items()
            if each is task
        ]
        # Leave out work whose wait has ended: the task did not attempt it, for example because its partition is
        # paused.
        waits_ms = [end_ms - now_ms for end_ms in ends_ms if end_ms > now_ms]
        return Timer(now_ms, min([*waits_ms, interval_ms(task, broker)]) if waits_ms else None)

    def keep(self, names: Container[str]) -> None:
        """Forget the failures for partitions and directories that are not in `names`; keep those of whole tasks."""
        for task, name in self:
            if name and name not in names:
                self._failed.pop((task, name), None)


def throttle(
    bytes_per_second: float,
    wait: Callable[[float], object],
    clock: Callable[[], float] = time.monotonic,
) -> Callable[[int], None]:
    """Return a function that limits the rate of reads and writes to `bytes_per_second`.

    The function must be called with the size of each read or write (bytes). If the rate is too high, the function
    calls `wait` with the number of seconds to pause. `clock` returns the time in seconds.
    """
    paid_until = clock()

    def spend(size: int) -> None:
        nonlocal paid_until
        now = clock()
        paid_until = max(paid_until, now) + size / bytes_per_second
        if paid_until - now >= _LEAST_WAIT_SECONDS:
            wait(paid_until - now)

    return spend
