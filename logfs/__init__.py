"""Kafka's log storage as files.

A *store* is one or several log directories in Kafka's own format. It holds *partitions*. A partition is a list of
*segments*: append-only files of *record batches*. Each segment has sparse indexes: by offset, by time, and by byte
position in the text form of its records, which the mount shows. Indexes and caches can be built again from the .log
files. Retention and compaction decide which data are dropped.

    import logfs

    with logfs.open("/var/lib/logfs") as store:
        orders = store.create("orders-0")
        first = orders.append([b"hello", logfs.Record(b"world", key=b"k", headers=[("h", b"1")])])
        orders.flush()                                # durable from here on
        for record in orders.read(offset=first):
            print(record.offset, record.timestamp, record.value)
        orders.offset_for_time(1638100400000)         # OffsetAndTimestamp, or None
        columns = orders.columns(offset=0)            # numpy arrays: offsets, timestamps, value positions, …
        store.groups.commit("billing", "orders-0", first)     # a consumer group's offset, where Kafka keeps it

`open` turns an empty directory into a new store; with `create=True` it also creates a missing directory. Offsets
count records, positions count bytes, and times are milliseconds since the epoch.

The `logfs` command does the same at a shell prompt (`logfs --help`), and `logfs mount` presents a store as files.
Read next: docs/architecture.md (the modules and their rules), docs/durability.md (what survives a crash) and
docs/filesystem.md (the mount).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from logfs.errors import LogfsError
    from logfs.format.batches.columns import Columns
    from logfs.format.batches.record import Record, TimestampType
    from logfs.log.append.partition import Partition
    from logfs.log.read.reader import OffsetAndTimestamp
    from logfs.store.store import Store
    from logfs.store.store import open_store as open

    __version__: str

__all__ = [
    "Columns",
    "LogfsError",
    "OffsetAndTimestamp",
    "Partition",
    "Record",
    "Store",
    "TimestampType",
    "open",
]

# The module and attribute of each public name. A module is imported when its name is first used.
_HOMES = {
    "Columns": ("logfs.format.batches.columns", "Columns"),
    "LogfsError": ("logfs.errors", "LogfsError"),
    "OffsetAndTimestamp": ("logfs.log.read.reader", "OffsetAndTimestamp"),
    "Partition": ("logfs.log.append.partition", "Partition"),
    "Record": ("logfs.format.batches.record", "Record"),
    "Store": ("logfs.store.store", "Store"),
    "TimestampType": ("logfs.format.batches.record", "TimestampType"),
    "open": ("logfs.store.store", "open_store"),
}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        # The version of the installed package, which `pyproject.toml` sets.
        from importlib.metadata import version

        return version("logfs")
    if name not in _HOMES:
        raise AttributeError(f"module 'logfs' has no attribute {name!r}")
    import importlib

    module, attribute = _HOMES[name]
    return getattr(importlib.import_module(module), attribute)
