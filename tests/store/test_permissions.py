"""The table of mode bits and owners of a partition's virtual files."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from logfs.store.directory.permissions import Access, PermissionTable

if TYPE_CHECKING:
    from logfs.store.store import Store

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
