"""Kafka's log, as files.

A *store* is one or several log directories in Kafka's own format. It holds *partitions*; a partition is a list of
*segments*, append-only files of *record batches*, each with sparse indexes by offset, by time and by position in
the text. Everything else is a cache of those files, a view of them, or a policy about dropping them.

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

An empty directory becomes a new store, with `create=True` a missing one, too.
Offsets count records, positions count bytes, times are milliseconds since the epoch. `logfs --help` is the same at
a prompt, and `logfs mount` the same as files. Read next: docs/architecture.md, the house; docs/durability.md, what
write, fsync and a crash mean; docs/filesystem.md, the mount.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from logfs.errors import LogfsError
    from logfs.format.columns import Columns
    from logfs.format.record import Record, TimestampType
    from logfs.log.partition import Partition
    from logfs.log.reader import OffsetAndTimestamp
    from logfs.store.door import open_store as open
    from logfs.store.store import Store

__version__ = "0.1.0"

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

# Where each public name lives: imported at its first use, so that `import logfs` costs nothing.
_HOMES = {
    "Columns": ("logfs.format.columns", "Columns"),
    "LogfsError": ("logfs.errors", "LogfsError"),
    "OffsetAndTimestamp": ("logfs.log.reader", "OffsetAndTimestamp"),
    "Partition": ("logfs.log.partition", "Partition"),
    "Record": ("logfs.format.record", "Record"),
    "Store": ("logfs.store.store", "Store"),
    "TimestampType": ("logfs.format.record", "TimestampType"),
    "open": ("logfs.store.door", "open_store"),
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'logfs' has no attribute {name!r}")
    import importlib

    module, attribute = _HOMES[name]
    return getattr(importlib.import_module(module), attribute)
