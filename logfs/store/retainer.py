"""Retention at work: drops the segments that have had their time, and remembers what it did (kafka-storage 7)."""

from __future__ import annotations

import logging
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from logfs.store import retention
from logfs.store.log_dir import FirstError

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Iterable

    from logfs.store.retention import Cause, Plan
    from logfs.store.store import Store

    Attempt = Callable[[str, Callable[[], None]], object]

logger = logging.getLogger(__name__)


class Retained(NamedTuple):
    """What retention took of a partition the last time that it took anything; the time in ms since the epoch."""

    when_ms: int
    segments: int
    size_bytes: int
    log_start_offset: int


def _do(_: str, work: Callable[[], None]) -> None:
    work()


class Retainer:
    """Drops what has had its time. Any thread may ask."""

    def __init__(self, store: Store, lock: threading.RLock) -> None:
        self._store = store
        self._lock = lock
        # Since the store was opened.
        self.segments: Counter[Cause] = Counter()
        self.size_bytes: Counter[Cause] = Counter()
        self.last: dict[str, Retained] = {}

    def plan(self, name: str) -> Plan:
        """What `retain` would do to a partition now, and why; nothing is done."""
        store = self._store
        partition = store[name]
        overrides = store.settings.topic_overrides(partition.topic)
        config = partition.config if overrides or not store.is_brokers(name) else None
        start = partition.log_start_offset
        return retention.plan(partition.segments, config, start, store.clock())

    def retain(self, names: Iterable[str] | None = None, attempt: Attempt = _do) -> int:
        """Drop every segment that has had its time, of these partitions or all; how many.

        All are those that are neither paused nor failed. What concerns one partition is done by `attempt`, which may
        keep its errors from the others.
        """
        store = self._store
        plans: dict[str, Plan] = {}

        def look(name: str) -> None:
            plan = self.plan(name)
            if plan:
                store.commits.give_up_place(name)
                store[name].advance_log_start(plan.log_start_offset)
                plans[name] = plan

        with self._lock:
            if names is None:
                names = [
                    name
                    for name, each in store.partitions.items()
                    if not each.is_paused and each.failure is None
                ]
            errors = FirstError()
            before = self.segments.total()
            for name in names:
                with errors:
                    attempt(name, partial(look, name))
            if plans:
                # Before a name changes: after a crash in between, nothing that was dropped may come back.
                with errors:
                    store.write_checkpoints()
            for name, plan in plans.items() if errors.only_of_log_dirs else ():
                with errors:
                    attempt(name, partial(self._drop, name, plan))
            errors.throw()
            return self.segments.total() - before

    def _drop(self, name: str, plan: Plan) -> None:
        partition = self._store[name]
        sizes = {gone.segment.base_offset: gone.segment.size_bytes for gone in plan.expired}
        dropped = {segment.base_offset for segment in partition.drop_oldest(len(plan.expired))}
        expired = [gone for gone in plan.expired if gone.segment.base_offset in dropped]
        if not expired:
            return
        for gone in expired:
            self.segments[gone.cause] += 1
            self.size_bytes[gone.cause] += sizes[gone.segment.base_offset]
            logger.debug("%s: dropped: %s", gone.segment.path, gone.reason)
        start = partition.log_start_offset
        total = sum(sizes[gone.segment.base_offset] for gone in expired)
        self.last[name] = Retained(self._store.clock(), len(expired), total, start)
        logger.info(
            "%s: dropped %d segments of %d bytes by %s; the log starts at offset %d",
            name,
            len(expired),
            total,
            ", ".join(dict.fromkeys(gone.cause.value for gone in expired)),
            start,
        )
