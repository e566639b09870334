"""The table of mode bits and owners of a partition's virtual files."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from logfs.store.directory.permissions import FILE_NAME, Access, PermissionTable
from logfs.store.store import Store

if TYPE_CHECKING:
    from pathlib import Path

NAMES = [f"file-{number}" for number in range(8)]
TIMES = 30


def test_threads_change_the_access_of_files_at_the_same_time(store: Store) -> None:
    """No change fails or is lost, in memory and on the disk."""
    orders = store.create("orders-0")
    table = PermissionTable(orders)

    def change(name: str) -> None:
        for mode in range(TIMES):
            table.set(name, Access(mode, 1, 2))

    with ThreadPoolExecutor(len(NAMES)) as threads:
        list(threads.map(change, NAMES))
    for read in (table, PermissionTable(orders)):
        assert [read.get(name) for name in NAMES] == [Access(TIMES - 1, 1, 2)] * len(NAMES)


def test_a_read_only_store_follows_the_changes(store: Store, log_dir: Path) -> None:
    """Every change of the process that writes counts at once, a damaged table does not."""
    writer = PermissionTable(store.create("orders-0"))
    with Store(log_dir, read_only=True) as reading:
        table = PermissionTable(reading["orders-0"])
        for mode in (0o600, 0o640, 0o644, 0o640):
            writer.set("records", Access(mode, 1, 2))
            assert table.get("records") == Access(mode, 1, 2)
        writer.set("", Access(0o700, 3, 4))
        assert table.get("time", 0o555) == Access(0o500, 3, 4)
        (log_dir / "orders-0" / FILE_NAME).write_bytes(b"{")
        assert table.get("records") == Access(0o640, 1, 2)
        (log_dir / "orders-0" / FILE_NAME).unlink()
        assert table.get("records", 0o444).uid == os.getuid()
