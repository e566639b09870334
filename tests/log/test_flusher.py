"""Flushes of a partition: callers share one sync, and a caller whose records are durable makes none."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from logfs.store.store import Store
from tests.support.disks import HeldDisk
from tests.support.processes import wait_for

if TYPE_CHECKING:
    from pathlib import Path


NAME = "orders-0"
CALLERS = 8


def test_concurrent_flushes_share_one_sync(log_dir: Path) -> None:
    """While a sync runs, any number of callers append, which need not wait, and flush, which one more sync serves."""
    disk = HeldDisk()
    with Store(log_dir, disk=disk) as store:
        orders = store.create(NAME)
        orders.append([b"first"])
        disk.released.clear()
        points: list[int] = []
        first = threading.Thread(target=lambda: points.append(orders.flush()))
        first.start()
        wait_for(lambda: disk.syncs == 1)
        appended = threading.Barrier(CALLERS + 1)

        def append_and_flush() -> None:
            offset = orders.append([b"later"])
            appended.wait(60)
            point = orders.flush()
            assert point > offset
            points.append(point)

        callers = [threading.Thread(target=append_and_flush) for _ in range(CALLERS)]
        for caller in callers:
            caller.start()
        appended.wait(60)
        disk.released.set()
        for thread in (first, *callers):
            thread.join(60)
        assert points.count(CALLERS + 1) == CALLERS
        assert disk.syncs == 2
        assert sum(orders.disk.flush_times.counts) == 2


def test_a_flush_of_durable_records_syncs_nothing(log_dir: Path) -> None:
    """A flush with nothing new since the last one returns the recovery point and makes no call to the disk."""
    disk = HeldDisk()
    with Store(log_dir, disk=disk) as store:
        orders = store.create(NAME)
        orders.append([b"a", b"b"])
        assert orders.flush() == 2
        assert orders.flush() == 2
        assert disk.syncs == 1
