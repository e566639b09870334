"""Compaction: which log to compact next and how much of it, and the rounds that do it (kafka-storage 8.1)."""

from __future__ import annotations

import logging
import time
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from logfs.errors import InvalidSetting, InvalidStore, LogfsError
from logfs.locks import Level, make_lock
from logfs.log.compaction.cleaning import Cleaned, CleaningAborted, Dirty
from logfs.log.disk.disk import EXHAUSTED
from logfs.store.maintenance.context import Maintenance, MaintenanceContext
from logfs.store.maintenance.schedule import MaintenanceTask, Timer, due, throttle

if TYPE_CHECKING:
    from collections.abc import Callable

    from logfs.config import LogConfig
    from logfs.log.append.partition import Partition
    from logfs.log.state.log_state import LogState
    from logfs.store.maintenance.context import Progress
    from logfs.store.registry import BackgroundOperation

logger = logging.getLogger(__name__)


class CompactionPlan(NamedTuple):
    """What one round of compaction would clean in a log, and how overdue the round is.

    `dirty` is the range of offsets that the round would clean, and `cleanable_bytes` the size of the segments in this
    range. `clean_bytes` is the size of the sealed segments before this range. `delay_ms` is the time (ms) by which
    the age of the oldest dirty batch exceeds `max.compaction.lag.ms`, or 0.
    """

    dirty: Dirty
    clean_bytes: int
    cleanable_bytes: int
    delay_ms: int

    @property
    def ratio(self) -> float:
        """`cleanable_bytes` divided by `clean_bytes` + `cleanable_bytes`; 0 if both are 0 (Kafka's dirty ratio)."""
        total = self.clean_bytes + self.cleanable_bytes
        return self.cleanable_bytes / total if total else 0.0

    @property
    def work_bytes(self) -> int:
        """The maximum number of bytes that a round reads and writes.

        A round reads dirty segments twice and clean segments once, and writes all of them once.
        """
        return 2 * self.clean_bytes + 3 * self.cleanable_bytes

    def is_due(self, config: LogConfig) -> bool:
        """Whether the log is to be compacted: it is dirty enough, or it is overdue and has bytes to clean.

        It is dirty enough if `ratio` exceeds `min.cleanable.dirty.ratio`.
        """
        overdue = self.delay_ms > 0 and self.cleanable_bytes > 0
        return overdue or self.ratio > config.min_cleanable_dirty_ratio


def plan_compaction(
    log: LogState, config: LogConfig, checkpoint: int | None, now_ms: int
) -> CompactionPlan:
    """Return which part of a log a round of compaction would clean at the time `now_ms` (ms since the epoch).

    `checkpoint` is the offset up to which the log was cleaned, None if it never was. A checkpoint outside of the log
    is ignored: the log then counts as never cleaned. A log that still has remote segments, after tiering was switched
    off, is not cleaned at all.
    """
    first_dirty = log.log_start_offset
    if log.segments[0].is_tiered:
        return CompactionPlan(Dirty(first_dirty, first_dirty), 0, 0, 0)
    if checkpoint is not None and first_dirty <= checkpoint <= log.segments[-1].next_offset:
        first_dirty = checkpoint
    sealed = log.segments[:-1]
    dirty = [segment for segment in sealed if segment.next_offset > first_dirty]
    # The range to clean ends before the first open transaction, before the first segment that is younger than
    # `min.compaction.lag.ms`, and before the active segment.
    bound = min(log.last_stable_offset, log.segments[-1].base_offset)
    lag_ms = config.min_compaction_lag_ms
    if lag_ms > 0:
        young = (s.base_offset for s in dirty if s.largest_timestamp > now_ms - lag_ms)
        bound = min(bound, next(young, bound))
    bound = max(bound, first_dirty)
    # Only whole segments are cleaned, so lower the bound to the base offset of the segment that it lies in. If the
    # first dirty offset lies in this segment, too, the bound is now at or below it, and nothing is cleanable.
    bound = max(s.base_offset for s in log.segments if s.base_offset <= bound)
    cleanable = sum(segment.size_bytes for segment in dirty if segment.base_offset < bound)
    clean = sum(segment.size_bytes for segment in sealed if segment.base_offset < first_dirty)
    times = [time for segment in dirty if (time := segment.first_batch_timestamp) > 0]
    delay_ms = max(now_ms - config.max_compaction_lag_ms - min(times, default=now_ms), 0)
    return CompactionPlan(Dirty(first_dirty, bound), clean, cleanable, delay_ms)


class CompactionResult(NamedTuple):
    """The result of a round of compaction: when it ended (ms since the epoch), and what it read and changed."""

    when_ms: int
    seconds: float
    bytes_read: int
    cleaned: Cleaned


class Compactor(Maintenance):
    """Compacts the logs of a store. Any thread may call it; one round runs at a time, in the calling thread."""

    def __init__(self, context: MaintenanceContext) -> None:
        super().__init__(context)
        self.running = make_lock(Level.COMPACTION)
        # The time of the last search for logs to compact, and the wait until the next search.
        self.timer = Timer(context.registry.opened_ms, 0)
        # Since the store was opened: the finished rounds, the aborted rounds, and the bytes read and written. `last`
        # has the last result of each partition, by name; `is_dead` tells whether the last `run_due` failed.
        self.rounds = 0
        self.aborted = 0
        self.bytes_read = 0
        self.bytes_written = 0
        self.last: dict[str, CompactionResult] = {}
        self.is_dead = False
        # The names of the partitions whose compaction was requested and has not begun yet.
        self.requested: set[str] = set()

    def request(self, name: str) -> None:
        """Request that the next `run_due` compacts a partition, whatever its dirty ratio.

        Raises the errors of `PartitionRegistry.__getitem__`, and `InvalidSetting` if `cleanup.policy` has no
        `compact`.
        """
        self._check(name)
        self.requested.add(name)
        self.wake()

    def request_all(self) -> None:
        """Request the compaction of each log whose `cleanup.policy` has `compact`; failed partitions are left out."""
        for name in self._registry:
            partition = self._registry.find(name)
            if partition is not None and partition.config.is_compacted and not partition.failure:
                self.requested.add(name)
        self.wake()

    def plan(self, name: str) -> CompactionPlan:
        """Return which part of a partition's log a round of compaction would clean now, without cleaning it."""
        partition = self._registry[name]
        state = partition.stable_state
        checkpoint = self._checkpoints.cleaner_offset(name)
        return plan_compaction(state, partition.config, checkpoint, self._registry.clock())

    def run_due(self) -> None:
        """Compact the requested logs and, every `log.cleaner.backoff.ms`, the logs that are due.

        Each log that is due is compacted once, the dirtiest log first. While upkeep is paused, or without
        `log.cleaner.enable`, only the requested logs are compacted.
        """
        try:
            self._run_due()
        except BaseException:
            self.is_dead = True
            raise
        self.is_dead = False

    def _run_due(self) -> None:
        while self.requested and not self._stopped.is_set():
            name = self.requested.pop()
            if name in self._registry:
                self._try(name, partial(self.compact, name))
        registry = self._registry
        broker = registry.settings.broker_config
        is_paused = registry.is_paused or not broker.log_cleaner_enable
        timers = {MaintenanceTask.COMPACTION: self.timer}
        if not due(timers, broker, registry.clock(), is_paused=is_paused):
            return
        passed: set[str] = set()
        while not self._stopped.is_set() and not registry.is_paused:
            dirtiest = self._dirtiest(passed)
            if dirtiest is None:
                break
            # Compact each log only once: a log without progress would otherwise be chosen again at once.
            passed.add(dirtiest)
            self._try(dirtiest, partial(self._round, dirtiest))
        self.timer = Timer(registry.clock())

    def compact(
        self, name: str, *, roll: bool = False, progress: Progress = lambda _: None
    ) -> Cleaned:
        """Compact a partition now, whatever its dirty ratio, and return the result of all rounds together.

        More than one round is needed if the keys do not all fit in memory. With `roll` the active segment is sealed
        first, so that it is compacted, too. `progress` is called with the number of bytes of each read and write.
        Raises `InvalidSetting` if `cleanup.policy` has no `compact`; `CleaningAborted` if meanwhile the log is
        truncated, segments or the partition are deleted, `compact` is removed from `cleanup.policy`, or the store is
        closed; `Corrupt` for damaged records; `Unsupported` for records in old formats; `PartitionFailed`; and
        `OSError`.
        """
        self._check(name)
        partition = self._registry.writable(name)
        if roll:
            partition.roll(self._registry.clock())
        total = self._round(name, progress)
        bound = self.plan(name).dirty.first_uncleanable
        while total.first_dirty < bound:
            done = self._round(name, progress)
            # The sizes before this round include what the earlier rounds left: do not count that twice.
            total = done._replace(
                bytes_before=total.bytes_before + done.bytes_before - total.bytes_after,
                segments_before=total.segments_before + done.segments_before - total.segments_after,
            )
        return total

    def _check(self, name: str) -> None:
        if not self._registry[name].config.is_compacted:
            raise InvalidSetting(
                f"{name}: cleanup.policy has no 'compact'; add it (compaction removes records without a key)"
            )

    def _dirtiest(self, passed: set[str]) -> str | None:
        """Return the partition with the highest dirty ratio that is due and not in `passed`; None if none is due."""
        ratios: dict[str, float] = {}

        def look(name: str, partition: Partition) -> None:
            if partition.config.is_compacted:
                plan = self.plan(name)
                if plan.is_due(partition.config):
                    ratios[name] = plan.ratio

        for name, partition in self._registry.written().items():
            if (
                partition.uncleanable is None
                and partition.failure is None
                and not partition.is_paused
                and name not in passed
            ):
                self._try(name, partial(look, name, partition))
        return max(ratios, key=ratios.__getitem__, default=None)

    def _try(self, name: str, work: Callable[[], object]) -> None:
        """Call `work` for the partition `name`. An error is only logged, so that other partitions are compacted.

        After an error the partition counts as uncleanable, except after `CleaningAborted` and after exhausted
        resources (an errno in `EXHAUSTED`, such as ENOSPC).
        """
        partition = self._registry.partitions.get(name)
        try:
            work()
        except CleaningAborted as error:
            logger.info("%s", error)
        except (LogfsError, OSError) as error:
            logger.error("%s: is not compacted: %s", name, error)
            is_passing = isinstance(error, OSError) and error.errno in EXHAUSTED
            if partition is not None and not is_passing:
                partition.uncleanable = error
        except Exception as error:
            logger.exception("%s: is not compacted", name)
            if partition is not None:
                partition.uncleanable = InvalidStore(f"{name}: cannot be compacted: {error!r}")

    def _round(self, name: str, progress: Progress = lambda _: None) -> Cleaned:
        with self.running:
            registry = self._registry
            partition = registry.writable(name)
            self._commits.clear_place(name)
            plan = self.plan(name)
            if self._checkpoints.cleaner_offset(name) is None:
                # Record a cleaner offset before the round removes records: for a log without a cleaner offset,
                # recovery would take the missing offsets for damage.
                self._checkpoints.set_cleaner_offset(partition, plan.dirty.first_dirty)
            began = time.monotonic()
            with registry.doing("compacting", name, plan.work_bytes) as work:
                try:
                    cleaned = self._clean(partition, plan.dirty, work, progress)
                except CleaningAborted:
                    self.aborted += 1
                    raise
                # Write the checkpoint within `doing`, so that it is written before status stops listing the round.
                self._checkpoints.set_cleaner_offset(partition, cleaned.first_dirty)
            partition.uncleanable = None
            partition.cleaned_ms = registry.clock()
            read = max(work.done_bytes - cleaned.bytes_after, 0)
            seconds = time.monotonic() - began
            self.last[name] = CompactionResult(registry.clock(), seconds, read, cleaned)
            self.rounds += 1
            self.bytes_read += read
            self.bytes_written += cleaned.bytes_after
            logger.info(
                "%s: compacted up to offset %d: %d bytes in %d segments became %d in %d",
                name,
                cleaned.first_dirty,
                cleaned.bytes_before,
                cleaned.segments_before,
                cleaned.bytes_after,
                cleaned.segments_after,
            )
            return cleaned

    def _clean(
        self, partition: Partition, dirty: Dirty, work: BackgroundOperation, progress: Progress
    ) -> Cleaned:
        from logfs.log.compaction.cleaner import clean

        broker = self._registry.settings.broker_config
        throttled = throttle(broker.log_cleaner_io_max_bytes_per_second, self._stopped.wait)

        def begin(phase: str) -> None:
            work.phase = phase

        def spend(size: int) -> None:
            work.done_bytes += size
            progress(size)
            throttled(size)
            if self._stopped.is_set():
                raise CleaningAborted(f"{partition.directory}: not compacted: the store is closed")
            if not partition.config.is_compacted:
                raise CleaningAborted(
                    f"{partition.directory}: not compacted: cleanup.policy no longer has 'compact'"
                )

        return clean(
            partition,
            dirty,
            self._registry.clock(),
            memory_bytes=broker.log_cleaner_dedupe_buffer_size
            // max(broker.log_cleaner_threads, 1),
            load_factor=broker.log_cleaner_io_buffer_load_factor,
            spend=spend,
            begin=begin,
        )
