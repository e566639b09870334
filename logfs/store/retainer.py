"""Execution of retention: segments eligible for deletion are dropped and counted (kafka-storage 7)."""

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
    """The last retention of a partition that dropped segments; `when_ms` is in ms since the epoch."""

    when_ms: int
    segments: int
    size_bytes: int
    log_start_offset: int


def _do(_: str, work: Callable[[], None]) -> None:
    work()


class Retainer:
    """The retention of a store's partitions. Any thread may call it."""

    def __init__(self, store: Store, lock: threading.RLock) -> None:
        self._store = store
        self._lock = lock
        # Totals since the store was opened, and the last retention of each partition.
        self.segments: Counter[Cause] = Counter()
        self.size_bytes: Counter[Cause] = Counter()
        self.last: dict[str, Retained] = {}

    def plan(self, name: str) -> Plan:
        """Return what `retain` would do to a partition now, and why, without doing it."""
        store = self._store
        partition = store[name]
        overrides = store.settings.topic_overrides(partition.topic)
        config = partition.config if overrides or not store.is_brokers(name) else None
        start = partition.log_start_offset
        return retention.plan(partition.segments, config, start, store.clock())

    def retain(self, names: Iterable[str] | None = None, attempt: Attempt = _do) -> int:
        """Drop all segments eligible for deletion, and return how many were dropped.

        Without `names`, all partitions that are neither paused nor failed are examined. Each step for one partition
        is done by `attempt`, which may keep its errors from the other partitions.
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
                # Before a file is renamed: after a crash in between, no dropped record may come back.
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
