"""Writes the records of one export task to files, one for each date, as Parquet or as JSON objects (envelopes)."""

from __future__ import annotations

import re
import uuid
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from logfs.errors import InvalidRecord, InvalidSetting
from logfs.format.base.names import TopicPartition
from logfs.format.encoding.arrow_batches import ArrowRun, BatchMaker
from logfs.format.text import envelope, rendering
from logfs.log.disk.disk import Disk
from logfs.spark.kafka_schema import arrow_schema, kafka_schema

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from numpy.typing import NDArray

    from logfs.format.batches.columns import Columns

# The name of the folder that Hive and Spark use for a null value of a partition column.
NO_DATE = "__HIVE_DEFAULT_PARTITION__"
# The namespace of the Iceberg tables, which is also the name of their folder.
NAMESPACE = "logfs"
# The prefix of the name of a topic's folder.
_TOPIC = "topic="
_DAY_MS = 86_400_000
# The first and the last date that readers of the files support, 0001-01-01 and 9999-12-31, in days since the epoch.
_FIRST_DAY, _LAST_DAY = -719_162, 2_932_896
_NO_DAY = np.iinfo(np.int64).min
# The most bytes of records that are buffered in memory: for one Parquet file, whose buffer becomes a row group, and
# for all files of a task together.
_ROW_GROUP_BYTES = 64 << 20
_HELD_BYTES = 256 << 20
# The most files that are open at once. If timestamps are not in order, files for several dates are open.
_OPEN_FILES = 64


@dataclass(frozen=True)
class WrittenFile:
    """A file of an export, which has records of one partition of `topic`.

    `path` is where a task wrote it. `place` is its final path, relative to the target.
    """

    path: str
    place: str
    topic: str
    records: int
    size_bytes: int


@dataclass(frozen=True)
class ExportFormat:
    """The format of the files of an export.

    `format` is "parquet", "json" or "iceberg". `compression` is the name of the codec or "none". `values` says how
    keys, values and headers are written to JSON: "mixed" (strings, and objects with base64 for bytes that are not
    UTF-8), "text" (only strings) or "base64" (only objects).
    """

    format: str
    compression: str
    values: str

    @property
    def suffix(self) -> str:
        """The suffix of the file names, with its dot, such as ".parquet" or ".jsonl.gz"."""
        if self.format != "json":
            return ".parquet"
        return ".jsonl" + _JSON_SUFFIXES[self.compression]

    @property
    def first_day(self) -> int:
        """The first day with its own date folder, in days since the epoch. Earlier records are under `NO_DATE`.

        It is 0001-01-01 for the format iceberg, and 1970-01-01 for the others.
        """
        return _FIRST_DAY if self.format == "iceberg" else 0


VALUES = ("mixed", "text", "base64")
_JSON_SUFFIXES = {"none": "", "gzip": ".gz", "zstd": ".zst"}
_COMPRESSIONS = {
    "parquet": ("zstd", "none", "snappy", "gzip", "lz4"),
    "json": ("none", "gzip", "zstd"),
    "iceberg": ("zstd", "none", "snappy", "gzip", "lz4"),
}


def format_of(format: str, compression: str | None, values: str) -> ExportFormat:
    """Check the arguments that describe the format of an export, and return the format. Raises `InvalidSetting`.

    If `compression` is None, the codec is "none" for the format "json", and "zstd" for the other formats.
    """
    known = _COMPRESSIONS.get(format)
    if known is None:
        raise InvalidSetting(f"format {format!r}: give one of {', '.join(_COMPRESSIONS)}")
    chosen = known[0] if compression is None else compression
    if chosen not in known:
        raise InvalidSetting(f"compression {chosen!r} for {format}: give one of {', '.join(known)}")
    if values not in VALUES:
        raise InvalidSetting(f"values {values!r}: give one of {', '.join(VALUES)}")
    if format != "json" and values != VALUES[0]:
        raise InvalidSetting(
            f"values {values!r}: only for JSON, not for {format}; give the format json"
        )
    return ExportFormat(format, chosen, values)


def partition_of(path: Path) -> TopicPartition | None:
    """Return the partition in the path of an exported file, or None if the path is not that of an exported file."""
    topic, _, file = path.parts[-3:]
    found = re.match(r"part-([0-9]+)-[0-9]{20}(-[A-Za-z0-9_-]+)?\.", file)
    if found is None or not topic.startswith(_TOPIC):
        return None
    return TopicPartition(topic.removeprefix(_TOPIC), int(found[1]))


def parquet_schema() -> pa.Schema:
    """Return the schema of the Parquet files of an export.

    It has the columns of `format("logfs")` with headers, but without the topic. Timestamps are in ms, as in the log.
    """
    schema = arrow_schema(kafka_schema(headers=True))
    schema = schema.remove(schema.get_field_index("topic"))
    at = schema.get_field_index("timestamp")
    return schema.set(at, pa.field("timestamp", pa.timestamp("ms", tz="UTC")))


def iceberg_schema() -> pa.Schema:
    """Return the schema of the files of an Iceberg table: `parquet_schema` with timestamps in microseconds."""
    schema = parquet_schema()
    at = schema.get_field_index("timestamp")
    return schema.set(at, pa.field("timestamp", pa.timestamp("us", tz="UTC")))


def by_date(columns: Columns, first_day: int) -> Iterator[tuple[str, Columns]]:
    """Yield (date, records) for each UTC date in `columns`, which must not be empty. Dates have the form YYYY-MM-DD.

    Records before `first_day` (in days since the epoch) or after the year 9999 are yielded first, with `NO_DATE` as
    their date. A record without a timestamp has the time -1 ms, and so the day 1969-12-31. The records of a date keep
    their order.
    """
    days = columns.timestamps // _DAY_MS
    days[(days < first_day) | (days > _LAST_DAY)] = _NO_DAY
    if (days == days[0]).all():
        yield _date(days[0]), columns
        return
    order = np.argsort(days, kind="stable")
    cuts = np.flatnonzero(np.diff(days[order])) + 1
    for rows in np.split(order, cuts):
        yield _date(days[rows[0]]), columns.select(rows)


def _date(day: np.int64) -> str:
    return NO_DATE if day == _NO_DAY else str(np.datetime64(int(day), "D"))


class Files:
    """Writes the records of one partition to files, by date, in a task of an export.

    The names of the files are unique, so that several attempts of a task do not conflict. The driver renames them.
    """

    def __init__(
        self, directory: Path, form: ExportFormat, name: TopicPartition, topic_id: str | None = None
    ) -> None:
        """Prepare to write the files of the partition `name`.

        The files are written into `directory`, which must exist. Only this export may use it. `topic_id` is given for
        a recreated topic. The final names of the files contain it, unless the format is iceberg.
        """
        self._directory = directory
        self._form = form
        self._name = name
        self._suffix = form.suffix if topic_id is None else f"-{topic_id}{form.suffix}"
        self._open: dict[str, _OpenFile] = {}
        self._written: list[WrittenFile] = []

    def write(self, date: str, columns: Columns) -> None:
        """Write records of one date to the file of this date. `date` is YYYY-MM-DD or `NO_DATE`. Raises `OSError`."""
        if date not in self._open:
            if len(self._open) >= _OPEN_FILES:
                self._close_all()
            self._open[date] = self._make(date, int(columns.offsets[0]))
        self._open[date].write(columns)
        if sum(file.held_bytes for file in self._open.values()) > _HELD_BYTES:
            for file in self._open.values():
                file.flush()

    def close(self) -> list[WrittenFile]:
        """Finish all files, make them durable, and return them. Raises `OSError`."""
        self._close_all()
        return self._written

    def _make(self, date: str, first_offset: int) -> _OpenFile:
        unique = uuid.uuid4().hex
        path = self._directory / unique
        name = f"part-{self._name.partition:05}-{first_offset:020}"
        if self._form.format == "iceberg":
            # A failed commit may have left another file with the same records, so the name must be unique. Readers
            # use only the files that are listed in the catalog.
            place = f"{NAMESPACE}/{self._name.topic}/data/date={date}/{name}-{unique}{self._form.suffix}"
            return _IcebergFile(path, place, self._form, self._name)
        # The final name depends only on the records, so it is the same if a task runs again.
        place = f"{_TOPIC}{self._name.topic}/date={date}/{name}{self._suffix}"
        kind = _ParquetFile if self._form.format == "parquet" else _JsonFile
        return kind(path, place, self._form, self._name)

    def _close_all(self) -> None:
        self._written += [file.close() for file in self._open.values()]
        self._open.clear()


class _OpenFile(ABC):
    # The number of bytes that are buffered in memory, and are not in the file yet.
    held_bytes = 0

    def __init__(self, path: Path, place: str, form: ExportFormat, name: TopicPartition) -> None:
        self._path = path
        self._place = place
        self._form = form
        self._name = name
        self._records = 0
        self._begin()

    @abstractmethod
    def _begin(self) -> None: ...

    @abstractmethod
    def _add(self, columns: Columns) -> None: ...

    @abstractmethod
    def _end(self) -> None: ...

    @abstractmethod
    def flush(self) -> None:
        """Write the buffered records to the file."""

    def write(self, columns: Columns) -> None:
        """Add records to the file. They may be buffered."""
        self._add(columns)
        self._records += len(columns)

    def close(self) -> WrittenFile:
        """Finish the file, make it durable, and return it."""
        self._end()
        disk = Disk()
        file = disk.open(self._path)
        disk.sync(file)
        size = disk.size(file)
        file.close()
        return WrittenFile(str(self._path), self._place, self._name.topic, self._records, size)


class _ParquetFile(_OpenFile):
    """A Parquet file. Records are buffered, and written as one row group at a time."""

    schema = staticmethod(parquet_schema)

    def _begin(self) -> None:
        schema = self.schema()
        self._maker = BatchMaker(schema)
        self._batches: list[pa.RecordBatch] = []
        # Offsets and timestamps grow by small steps, for which delta encoding is best. The column of values has no
        # dictionary, because values rarely repeat, and no statistics, because queries do not filter it by a range.
        self._writer = pq.ParquetWriter(
            self._path,
            schema,
            compression=self._form.compression,
            use_dictionary=["key", "partition", "timestampType", "headers.list.element.key"],
            column_encoding={"offset": "DELTA_BINARY_PACKED", "timestamp": "DELTA_BINARY_PACKED"},
            write_statistics=["partition", "offset", "timestamp"],
        )

    def _add(self, columns: Columns) -> None:
        batch = self._batch(columns)
        self._batches.append(batch)
        self.held_bytes += batch.nbytes
        if self.held_bytes >= _ROW_GROUP_BYTES:
            self.flush()

    def _batch(self, columns: Columns) -> pa.RecordBatch:
        return self._maker.batch([ArrowRun(*self._name, columns)])

    def flush(self) -> None:
        if self._batches:
            table = pa.Table.from_batches(self._batches)
            self._writer.write_table(table, row_group_size=len(table))
            self._batches, self.held_bytes = [], 0

    def _end(self) -> None:
        self.flush()
        self._writer.close()


class _IcebergFile(_ParquetFile):
    """A data file of an Iceberg table. Timestamps outside the years 1 to 9999 (Python's range) become null."""

    schema = staticmethod(iceberg_schema)

    def _batch(self, columns: Columns) -> pa.RecordBatch:
        batch = super()._batch(columns)
        at = batch.schema.get_field_index("timestamp")
        days = columns.timestamps // _DAY_MS
        is_date = pa.array((days >= _FIRST_DAY) & (days <= _LAST_DAY))
        return batch.set_column(
            at, batch.schema.field(at), pc.if_else(is_date, batch.column(at), None)
        )


class _JsonFile(_OpenFile):
    """A file with one line for each record: a JSON object, as in `records.jsonl` of a mount."""

    def _begin(self) -> None:
        self._prefix = envelope.prefix(self._name)
        codec = None if self._form.compression == "none" else self._form.compression
        self._stream = pa.output_stream(str(self._path), compression=codec)

    def _add(self, columns: Columns) -> None:
        if self._form.values == "mixed":
            lines: NDArray[np.uint8] = rendering.render(
                columns, rendering.View.ENVELOPES, self._prefix
            )[0]
            self._stream.write(lines)
            return
        as_json = envelope.only_text if self._form.values == "text" else envelope.only_base64
        for record in columns.records():
            try:
                self._stream.write(envelope.encode(record, self._prefix, as_json))
            except InvalidRecord as error:
                raise InvalidRecord(
                    f"{self._name.directory}, offset {record.offset}: {error}; give values base64 or mixed"
                ) from None

    def flush(self) -> None:
        self._stream.flush()

    def _end(self) -> None:
        self._stream.close()
