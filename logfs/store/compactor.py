"""Compaction at work: the rounds that are due or asked for, one at a time (Kafka's LogCleaner and its manager)."""

from __future__ import annotations

import logging
import threading
import time
from functools import partial
from typing import TYPE_CHECKING

from logfs.errors import InvalidSetting, LogfsError
from logfs.log.cleaning import Cleaned, CleaningAborted
from logfs.log.files import NO_SPACE
from logfs.store import compaction

if TYPE_CHECKING:
    from collections.abc import Callable

    from logfs.log.partition import Partition
    from logfs.store.compaction import Plan
    from logfs.store.store import Store

    Progress = Callable[[int], None]

logger = logging.getLogger(__name__)

# A wait that is shorter is put off, and comes with the next.
_LEAST_WAIT_SECONDS = 0.05


class Throttle:
    """Keeps what goes through it, reads and writes together, to so many bytes a second, by waiting."""

    def __init__(
        self,
        bytes_per_second: float,
        wait: Callable[[float], object],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._bytes_per_second = bytes_per_second
        self._wait = wait
        self._clock = clock
        self._paid_until = clock()

    def spend(self, size: int) -> None:
        """Let so many bytes through, and wait for as long as they are worth."""
        now = self._clock()
        self._paid_until = max(self._paid_until, now) + size / self._bytes_per_second
        if self._paid_until - now >= _LEAST_WAIT_SECONDS:
            self._wait(self._paid_until - now)


class Compactor:
    """Compacts the logs of a store. Any thread may ask; one round runs at a time, in the thread that calls."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._running = threading.Lock()
        self._stopped = threading.Event()
        self._next_ms = 0
        # Asked for, and whether the active segment is to be rolled before.
        self._wanted: dict[str, bool] = {}

    def stop(self) -> None:
        """End the round that is running, if one is, and begin no other."""
        self._stopped.set()

    def request(self, name: str, *, roll: bool = False) -> None:
        """Have a log compacted at the next `run_due`, whatever its dirty ratio; raises as `compact`."""
        self._check(name)
        self._wanted[name] = roll

    def is_requested(self, name: str) -> bool:
        """Whether a log waits for what `request` asked."""
        return name in self._wanted

    def plan(self, name: str) -> Plan:
        """How dirty a log is now."""
        partition = self._store[name]
        log = compaction.Log(
            partition.segments,
            partition.config,
            partition.log_start_offset,
            partition.last_stable_offset,
            self._store.cleaner_offset(name),
        )
        return compaction.plan(log, self._store.clock())

    def run_due(self) -> None:
        """Do what was asked for, and then, every `log.cleaner.backoff.ms`, the dirtiest logs until none is due."""
        while self._wanted and not self._stopped.is_set():
            name, roll = self._wanted.popitem()
            if name in self._store:
                self._try(name, partial(self.compact, name, roll=roll))
        broker = self._store.settings.broker_config
        if not broker.log_cleaner_enable or self._store.clock() < self._next_ms:
            return
        passed: set[str] = set()
        while not self._stopped.is_set() and (dirtiest := self._dirtiest(passed)) is not None:
            # Each log once: a round that could not get on would otherwise be chosen again at once.
            passed.add(dirtiest)
            self._try(dirtiest, partial(self._round, dirtiest))
        self._next_ms = self._store.clock() + broker.log_cleaner_backoff_ms

    def compact(
        self, name: str, *, roll: bool = False, progress: Progress | None = None
    ) -> Cleaned:
        """Compact a log now, in as many rounds as its keys need, whatever its dirty ratio.

        With `roll` the active segment is sealed before, so that it is compacted too. `progress` is told the bytes
        that are read and written. Raises `InvalidSetting` where `cleanup.policy` has no `compact`, and as `clean`.
        """
        self._check(name)
        partition = self._store[name]
        if roll:
            partition.roll(self._store.clock())
        total = done = self._round(name, progress)
        bound = self.plan(name).dirty.first_uncleanable
        while done.first_dirty < bound:
            done = self._round(name, progress)
            total = total._replace(
                first_dirty=done.first_dirty,
                bytes_after=done.bytes_after,
                segments_after=done.segments_after,
            )
        return total

    def _check(self, name: str) -> None:
        if not self._store[name].config.is_compacted:
            raise InvalidSetting(
                f"{name}: cleanup.policy has no 'compact'; add it, and mind that records without a key go"
            )

    def _dirtiest(self, passed: set[str]) -> str | None:
        partitions = {
            name: partition
            for name, partition in list(self._store.partitions.items())
            if partition.config.is_compacted
            and partition.uncleanable is None
            and partition.failure is None
            and not partition.is_paused
            and name not in passed
        }
        plans = {name: self.plan(name) for name in partitions}
        return compaction.choose(plans, {name: p.config for name, p in partitions.items()})

    def _try(self, name: str, work: Callable[[], object]) -> None:
        """Do something to one log; what goes wrong with it does not keep the others from being compacted."""
        partition = self._store.partitions.get(name)
        try:
            work()
        except CleaningAborted as error:
            logger.info("%s", error)
        except (LogfsError, OSError) as error:
            logger.error("%s: is not compacted: %s", name, error)
            if partition is not None and not (
                isinstance(error, OSError) and error.errno in NO_SPACE
            ):
                partition.uncleanable = error

    def _round(self, name: str, progress: Progress | None = None) -> Cleaned:
        with self._running:
            store = self._store
            partition = store[name]
            plan = self.plan(name)
            if store.cleaner_offset(name) is None:
                # Before offsets are missing for the first time: it is by this that loading knows.
                store.set_cleaner_offset(partition, plan.dirty.first_dirty)
            store.background.append(f"compacting {name}")
            try:
                cleaned = self._clean(partition, plan, progress)
            finally:
                store.background.remove(f"compacting {name}")
            store.set_cleaner_offset(partition, cleaned.first_dirty)
            partition.uncleanable = None
            partition.cleaned_ms = store.clock()
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

    def _clean(self, partition: Partition, plan: Plan, progress: Progress | None) -> Cleaned:
        from logfs.log.cleaner import clean

        broker = self._store.settings.broker_config
        throttle = Throttle(broker.log_cleaner_io_max_bytes_per_second, self._stopped.wait)

        def spend(size: int) -> None:
            if progress is not None:
                progress(size)
            throttle.spend(size)
            if self._stopped.is_set():
                raise CleaningAborted(f"{partition.directory}: the store is being closed")
            if not partition.config.is_compacted:
                raise CleaningAborted(f"{partition.directory}: is not to be compacted any more")

        return clean(
            partition,
            plan.dirty,
            self._store.clock(),
            memory_bytes=broker.log_cleaner_dedupe_buffer_size
            // max(broker.log_cleaner_threads, 1),
            load_factor=broker.log_cleaner_io_buffer_load_factor,
            spend=spend,
        )
