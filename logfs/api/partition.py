"""One partition of an open store: append, read, look up, follow."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from typing import TYPE_CHECKING

from logfs.api.arguments import checked_number, checked_offset
from logfs.api.columns import PartitionColumns
from logfs.api.following import Following
from logfs.api.records import as_record
from logfs.format.base import names
from logfs.format.batches.record import as_bytes, as_ms
from logfs.log.read.read_committed import isolation_level

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from datetime import datetime

    from logfs.api.store import Store
    from logfs.format.batches.record import Headers, Record, Value
    from logfs.log.append.partition import Partition as Log
    from logfs.log.read.read_committed import IsolationLevel
    from logfs.log.read.reader import OffsetAndTimestamp, Reader


class Partition:
    """One partition of an open store, from `store["orders-0"]`. Any thread may use it.

    Each call looks the partition up by its name. So the object can still be used after the partition was moved, or
    deleted and created again.

    `isolation` is as in Kafka: "read_uncommitted" (all records) or "read_committed" (only the records below the last
    stable offset, without those of aborted transactions). Offsets count records. Times are ms since the epoch, or a
    `datetime` with a time zone.
    """

    __slots__ = ("_parsed", "_store", "name")

    def __init__(self, store: Store, name: str) -> None:
        self.name = name
        self._store = store
        self._parsed = names.parse_directory(name)

    def __repr__(self) -> str:
        return f"logfs.Partition({self.name!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Partition) and (self._store, self.name) == (
            other._store,
            other.name,
        )

    def __hash__(self) -> int:
        return hash((id(self._store), self.name))

    @property
    def topic(self) -> str:
        """The name of the topic."""
        return self._parsed.topic

    @property
    def partition(self) -> int:
        """The number of the partition in its topic."""
        return self._parsed.partition

    def _reader(self, isolation: IsolationLevel = "read_uncommitted") -> Reader:
        return self._store._log(self.name).isolated(isolation_level(isolation))

    def _writable(self) -> Log:
        return self._store._for_writing(self.name).writable(self.name)

    # The ends of the log.

    @property
    def log_start_offset(self) -> int:
        """The offset of the first record that can be read."""
        return self._reader().log_start_offset

    @property
    def log_end_offset(self) -> int:
        """The offset that the next record will get."""
        return self._reader().log_end_offset

    @property
    def last_stable_offset(self) -> int:
        """The first offset of the oldest open transaction; without one, the log end offset."""
        return self._store._log(self.name).last_stable_offset

    @property
    def size_bytes(self) -> int:
        """The size of the log in bytes, without its indexes."""
        return self._reader().size_bytes

    # Appending.

    def append(
        self,
        value: Value | Record | None,
        *,
        key: Value | None = None,
        headers: Headers = (),
        timestamp: int | datetime | None = None,
    ) -> int:
        """Append one record, and return its offset.

        A value or a key is bytes, bytearray, memoryview, a str (UTF-8), or None: a record without a value is a
        tombstone, which deletes its key in a compacted topic. `headers` is a mapping, or pairs of a name and a value.
        Without a `timestamp` the record has the time of the append. A whole `Record` may be given as the value.

        The record can be read at once, and is durable after `flush`. Raises `TypeError` or `ValueError` for a wrong
        field, `RecordTooLarge`, `InvalidRecord` if the topic's settings refuse the record, `NotWritable` if the store
        is read-only or the topic is a mirror, and `PartitionFailed` after a failed write or fsync of the partition.
        """
        return self._writable().append([as_record(value, key, headers, timestamp)])

    def append_many(
        self, records: Iterable[Value | Record], *, in_one_batch: bool = False
    ) -> range:
        """Append records, and return their offsets. An item is a value, as in `append`, or a `Record`.

        If the topic's settings refuse one of the records, none is appended. With `in_one_batch` the records form one
        batch, so that a crash leaves all of them or none. Raises the errors of `append`, also `RecordTooLarge` if the
        records do not fit in one batch.
        """
        # The engine refuses these types: each of them is one value, or has keys.
        refused = (bytes, bytearray, memoryview, str, Mapping)
        many = records if isinstance(records, refused) else [*records]
        first = self._writable().append(many, in_one_batch=in_one_batch)
        return range(first, first + len(many))

    def flush(self) -> None:
        """Make all records durable, so that they survive a power failure."""
        self._writable().flush()

    # Reading.

    def read(
        self,
        offset: int | None = None,
        end: int | None = None,
        *,
        isolation: IsolationLevel = "read_uncommitted",
    ) -> Iterator[Record]:
        """Yield the records in [offset, end), by default from the log start to the log end.

        The log start and the log end are those at the first `next`. An iteration that has begun goes on even if
        retention or compaction drops segments that it reads. The files of these segments stay on the disk until the
        iteration ends.

        Raises `OffsetOutOfRange`, `StoreClosed` and, at damage, `DamagedRange`, whose `next_offset` is the offset at
        which reading can go on.
        """
        first, stop = checked_offset("offset", offset), checked_offset("end", end)
        return self._while_open(self._reader(isolation).read(first, stop))

    def _while_open(self, records: Iterator[Record]) -> Iterator[Record]:
        store = self._store
        for record in records:
            if store._opened is None:
                _ = store._engine
            yield record

    def last(
        self, count: int, *, isolation: IsolationLevel = "read_uncommitted"
    ) -> Iterator[Record]:
        """Yield the last `count` records; all of them if there are fewer.

        Raises `ValueError` for a negative `count`, and the errors of `read`, also if damage follows the records.
        """
        if checked_number("count", count) < 0:
            raise ValueError(f"count must be 0 or more, not {count}")
        reader = self._reader(isolation)
        # Stop after `count` records: some may have been appended between these two calls.
        start, end = reader.offset_of_last(count), reader.log_end_offset

        def last() -> Iterator[Record]:
            records = reader.read(start, end)
            yield from islice(records, count)
            # Damage that follows raises its error here.
            next(records, None)

        return self._while_open(last())

    def record(
        self, offset: int, *, isolation: IsolationLevel = "read_uncommitted"
    ) -> Record | None:
        """Return the record at an offset; None if compaction has removed it, or if it is hidden from readers.

        Control records are hidden; with "read_committed", records of aborted transactions are hidden, too. Raises
        `DamagedRange` at damage, and `OffsetOutOfRange`; with "read_committed", the log ends at the last stable
        offset.
        """
        return self._reader(isolation).record(checked_number("offset", offset))

    def newest(
        self, key: Value, *, isolation: IsolationLevel = "read_uncommitted"
    ) -> Record | None:
        """Return the newest record with a key; None if there is none, or if it is a tombstone.

        The first call reads the log to build an index of the keys. If an index is saved on the disk, it reads only
        the part of the log that this index does not cover. Later calls read only the records appended since.
        """
        plain = as_bytes("key", key)
        if plain is None:
            raise TypeError("key must be bytes or str, not None")
        return self._reader(isolation).newest(plain)

    def offset_for_time(
        self, timestamp: int | datetime, *, isolation: IsolationLevel = "read_uncommitted"
    ) -> OffsetAndTimestamp | None:
        """Return the offset and the time of the first record at or after a time; None if there is none."""
        time_ms = as_ms(timestamp)
        if time_ms is None:
            raise TypeError("timestamp must be ms since 1970 or a datetime, not None")
        return self._reader(isolation).offset_for_time(time_ms, shown=True)

    def columns(
        self,
        offset: int | None = None,
        end: int | None = None,
        *,
        isolation: IsolationLevel = "read_uncommitted",
    ) -> PartitionColumns:
        """Return the records in [offset, end) as numpy arrays, by default all of them. Raises the errors of `read`.

        `to_arrow`, `to_pandas` and `to_polars` of the result convert it to a table. Libraries that read Arrow's C
        stream interface, such as polars and DuckDB, also accept the result itself.
        """
        first, stop = checked_offset("offset", offset), checked_offset("end", end)
        columns = self._reader(isolation).columns(first, stop)
        return PartitionColumns.of(self.topic, self.partition, columns)

    def follow(
        self,
        offset: int | None = None,
        *,
        timeout: float | None = None,
        isolation: IsolationLevel = "read_uncommitted",
    ) -> Following[Record]:
        """Return an iterator over the records from an offset on, including records that are appended later.

        Without `offset` the iterator begins at the log end. It ends when no record has come for `timeout` seconds;
        without a `timeout` it never ends. It works with `for` and, under asyncio, with `async for`.

        The iteration raises `StoreClosed` if another thread closes the store, `OffsetOutOfRange` if the next records
        have left the log, and `DamagedRange` at damage. After the last two, `seek` of the iterator sets the offset at
        which to continue.
        """
        first = checked_offset("offset", offset)
        if first is None:
            first = self._reader(isolation).log_end_offset
        return Following(
            self._store,
            lambda: (self,),
            {self.name: first},
            lambda _, record: record,
            timeout,
            isolation,
        )

    # Changing.

    def delete_records(self, offset: int) -> int:
        """Make the records below `offset` unreadable for ever, and return the new log start offset.

        An `offset` of -1 stands for the log end. Raises `OffsetOutOfRange` for an offset above the log end or below
        -1, `InvalidSetting` if the topic's `cleanup.policy` has no `delete`, and `NotWritable`.
        """
        return self._store._for_writing(self.name).delete_records(self.name, offset)

    def truncate(self, offset: int) -> None:
        """Remove the records at or above an offset for ever.

        As in Kafka, the batch that contains the offset is removed as a whole, earlier records included. If a finished
        transaction loses its end, but not its first records, a new end with an offset of its own is appended, and its
        records stay committed or aborted. Raises `OffsetOutOfRange` for a negative offset, and for one below the
        local segments of a tiered log.
        """
        self._store._for_writing(self.name).truncate(self.name, offset)

    def compact(self) -> None:
        """Compact the partition now, the newest records included.

        Raises `InvalidSetting` if the topic's `cleanup.policy` has no `compact`.
        """
        self._store._for_writing(self.name).compact(self.name, roll=True)

    def tier(self) -> int:
        """Copy the sealed segments that are not in the object store yet, and return how many were copied.

        Segments that reach above the last stable offset are not copied. Raises `InvalidSetting` if the topic is not
        tiered, and `RemoteStorageError`.
        """
        return self._store._for_writing(self.name).tier(self.name)

    def delete(self, *, only_empty: bool = False) -> None:
        """Delete the partition, and the offsets that groups have committed for it.

        `Store.undelete` can restore both until `file.delete.delay.ms` has passed. With `only_empty`, raises
        `PartitionNotEmpty` if the partition has records.
        """
        self._store._for_writing(self.name).delete(self.name, only_empty=only_empty)
