"""Kafka's log storage as files.

A *store* is one or several log directories in Kafka's own format. It holds *partitions*. A partition is a list of
*segments*: append-only files of *record batches*. Each segment has sparse indexes: by offset, by time, and by byte
position in the text form of its records, which the mount shows. Indexes and caches can be built again from the .log
files. Retention and compaction decide which data are dropped.

    import logfs

    with logfs.open("/var/lib/logfs", create=True) as store:
        orders = store.create_topic("orders", partitions=3)
        orders.append("hello", key="customer-7", headers={"source": "web"})
        orders.flush()                                     # durable from here on

        first = store["orders-0"]                          # one partition
        first.append_many([b"one", "two", logfs.Record(b"three", timestamp=1638100400000)])
        for record in first.read():
            print(record.offset, record.timestamp, record.key, record.value)
        first.offset_for_time(1638100400000)               # OffsetAndTimestamp, or None
        first.columns().to_polars()                        # also numpy, pyarrow, pandas
        for record in first.follow(timeout=1):             # as they are appended; also `async for`
            print(record.value)
        with store.consumer("orders", group="billing", timeout=1) as consumer:
            for record in consumer:                        # shares the partitions with other members
                print(record.partition, record.value)

`logfs.open(path, "r")` reads beside a broker or a mount, and changes nothing. Offsets count records, and times are
milliseconds since the epoch. docs/python.md has all of it on one page. The `logfs` command does the same at a shell
prompt (`logfs --help`), and `logfs mount` presents a store as files. docs/durability.md tells what survives a crash.
"""

from __future__ import annotations

import sys
import types
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from logfs.api.columns import PartitionColumns as Columns
    from logfs.api.consumer import Consumer
    from logfs.api.following import Following
    from logfs.api.groups import ConsumerGroups
    from logfs.api.partition import Partition
    from logfs.api.records import ConsumerRecord
    from logfs.api.serving import serve
    from logfs.api.store import Store, open
    from logfs.api.topic import Topic, TopicSettings
    from logfs.api.transaction import Transaction
    from logfs.errors import (
        CommitPending,
        Corrupt,
        InvalidName,
        InvalidProducerEpoch,
        InvalidRecord,
        InvalidSetting,
        InvalidStore,
        InvalidTransactionState,
        LogDirFailed,
        LogfsError,
        NotWritable,
        OffsetOutOfRange,
        OutOfOrderSequence,
        PartitionExists,
        PartitionFailed,
        PartitionNotEmpty,
        RecordTooLarge,
        RemoteStorageError,
        StoreClosed,
        StoreLocked,
        UnknownGroup,
        UnknownPartition,
        UnknownSetting,
        Unsupported,
    )
    from logfs.format.batches.record import Record, TimestampType
    from logfs.log.read.reader import OffsetAndTimestamp
    from logfs.log.segment.batch_iterator import DamagedRange
    from logfs.server.server import Server

    __version__: str

__all__ = [
    "Columns",
    "CommitPending",
    "Consumer",
    "ConsumerGroups",
    "ConsumerRecord",
    "Corrupt",
    "DamagedRange",
    "Following",
    "InvalidName",
    "InvalidProducerEpoch",
    "InvalidRecord",
    "InvalidSetting",
    "InvalidStore",
    "InvalidTransactionState",
    "LogDirFailed",
    "LogfsError",
    "NotWritable",
    "OffsetAndTimestamp",
    "OffsetOutOfRange",
    "OutOfOrderSequence",
    "Partition",
    "PartitionExists",
    "PartitionFailed",
    "PartitionNotEmpty",
    "Record",
    "RecordTooLarge",
    "RemoteStorageError",
    "Server",
    "Store",
    "StoreClosed",
    "StoreLocked",
    "TimestampType",
    "Topic",
    "TopicSettings",
    "Transaction",
    "UnknownGroup",
    "UnknownPartition",
    "UnknownSetting",
    "Unsupported",
    "open",
    "serve",
]

# For each public name that is not an error: its module, and its name in that module. The module is imported at the
# first use of the public name, so that `import logfs` is quick.
_HOMES = {
    "Columns": ("logfs.api.columns", "PartitionColumns"),
    "Consumer": ("logfs.api.consumer", "Consumer"),
    "ConsumerGroups": ("logfs.api.groups", "ConsumerGroups"),
    "ConsumerRecord": ("logfs.api.records", "ConsumerRecord"),
    "DamagedRange": ("logfs.log.segment.batch_iterator", "DamagedRange"),
    "Following": ("logfs.api.following", "Following"),
    "OffsetAndTimestamp": ("logfs.log.read.reader", "OffsetAndTimestamp"),
    "Partition": ("logfs.api.partition", "Partition"),
    "Record": ("logfs.format.batches.record", "Record"),
    "Server": ("logfs.server.server", "Server"),
    "Store": ("logfs.api.store", "Store"),
    "TimestampType": ("logfs.format.batches.record", "TimestampType"),
    "Topic": ("logfs.api.topic", "Topic"),
    "TopicSettings": ("logfs.api.topic", "TopicSettings"),
    "Transaction": ("logfs.api.transaction", "Transaction"),
    "open": ("logfs.api.store", "open"),
    "serve": ("logfs.api.serving", "serve"),
}


class _LazyModule(types.ModuleType):
    """The class of the module `logfs`. When a public name is used, it imports the module that defines the name.

    `__getattr__` is a method of this class, not a function of the module. Otherwise `help(logfs)` would list the
    function, and type checkers would accept any attribute of `logfs`.
    """

    def __getattr__(self, name: str) -> Any:
        if name == "__version__":
            # The version of the installed package, which `pyproject.toml` sets.
            from importlib.metadata import version

            return version("logfs")
        if name not in __all__:
            raise AttributeError(f"module 'logfs' has no attribute {name!r}")
        import importlib

        module, attribute = _HOMES.get(name, ("logfs.errors", name))
        return getattr(importlib.import_module(module), attribute)

    def __dir__(self) -> list[str]:
        return sorted({*self.__dict__, *__all__})


sys.modules[__name__].__class__ = _LazyModule
