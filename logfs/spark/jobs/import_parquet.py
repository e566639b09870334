"""The import format for Parquet files. A file range has one or several of the row groups that the footer lists."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from logfs.errors import InvalidRecord
from logfs.spark.jobs.import_formats import BATCH_BYTES, BATCH_ROWS, SCHEMA, ImportFormat, batch_of
from logfs.spark.jobs.import_splits import FileRange, from_path
from logfs.spark.jobs.job_runner import TASK_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from logfs.spark.jobs.import_splits import Name

# A file range of at most this many uncompressed bytes is read as a whole, and its file is closed before the rows are
# used. So a merge of many small file ranges keeps only a few files open.
_SMALL_BYTES = 4 << 20
# How many bytes could be read in the time that it takes to open a file and read its footer; an estimate for progress.
_FOOTER_BYTES = 1 << 20


class ParquetFormat(ImportFormat):
    """Reads Parquet files. The columns have the names of those of `format("logfs")`, or the names in the options.

    If a folder in the path is named `topic=…` or `partition=…`, it takes precedence over the column of this name.
    """

    def cut(self, path: str) -> list[FileRange]:
        size = Path(path).stat().st_size
        return [FileRange(path, 0, None, size, file_bytes=size)]

    def look_bytes(self, file_range: FileRange) -> int:
        return min(file_range.size_bytes, _FOOTER_BYTES)

    def look(self, file_range: FileRange) -> list[FileRange]:
        file_range.check_here()
        with _named(file_range.path), pq.ParquetFile(file_range.path) as file:
            self._check(file_range.path, file.schema_arrow)
            found = [
                self._group(file_range, file, number)
                for number in range(file.metadata.num_row_groups)
                if file.metadata.row_group(number).num_rows
            ]
        return list(_joined(found))

    def read(self, file_range: FileRange) -> Iterator[pa.RecordBatch]:
        options = self.options
        file_range.check_here()
        with _named(file_range.path), pq.ParquetFile(file_range.path) as file:
            groups = range(file_range.start, file_range.end or 0)
            held = self._check(file_range.path, file.schema_arrow)
            metas = [file.metadata.row_group(number) for number in groups]
            size = sum(meta.total_byte_size for meta in metas)
            rows = max(sum(meta.num_rows for meta in metas), 1)
            batch_rows = min(max(BATCH_BYTES * rows // max(size, 1), 1), BATCH_ROWS)
            if size <= _SMALL_BYTES:
                batches = iter(file.read_row_groups(groups, columns=held).to_batches())
                file.close()
            else:
                batches = file.iter_batches(batch_rows, groups, held)
            constants = {
                "topic": options.topic or from_path(file_range.path, "topic"),
                "partition": from_path(file_range.path, "partition"),
            }
            for batch in batches:
                yield self._conformed(batch, constants)

    def _source(self, column: str) -> str:
        """Return the name that a column of `SCHEMA` has in the files."""
        return {"key": self.options.key, "value": self.options.value}.get(column) or column

    def _check(self, path: str, schema: pa.Schema) -> list[str]:
        """Return the names of the columns to read from the file at `path`, whose columns are those of `schema`.

        Raises `InvalidRecord` if the column for the value is missing, or the column that the option `key` names.
        """
        held = [self._source(name) for name in SCHEMA.names if self._source(name) in schema.names]
        for name in ("value", *(["key"] if self.options.key else [])):
            if self._source(name) not in held:
                raise InvalidRecord(
                    f"{path}: has no column {self._source(name)!r} for the {name}; it has "
                    f"{', '.join(schema.names)}"
                )
        return list(dict.fromkeys(held))

    def _conformed(self, batch: pa.RecordBatch, constants: dict[str, str | None]) -> pa.RecordBatch:
        columns = {}
        for field in SCHEMA:
            constant = constants.get(field.name)
            source = self._source(field.name)
            if field.name == "partition" and self.options.repartition:
                continue
            if constant is not None:
                columns[field.name] = pa.repeat(constant, len(batch)).cast(field.type)
            elif source in batch.schema.names:
                kind = batch.schema.field(source).type
                if field.name == "offset" and not pa.types.is_integer(kind):
                    # Ignore a column `offset` without integers: it does not have Kafka's offsets. The import works
                    # without them, because they only order the rows.
                    continue
                try:
                    columns[field.name] = _cast(batch.column(source), field)
                except pa.ArrowException as error:
                    raise InvalidRecord(f"column {source!r}: {error}") from None
        return batch_of(len(batch), **columns)

    def _group(self, whole: FileRange, file: pq.ParquetFile, number: int) -> FileRange:
        path = whole.path
        meta = file.metadata.row_group(number)
        columns = {meta.column(n).path_in_schema: meta.column(n) for n in range(meta.num_columns)}
        size = sum(column.total_compressed_size for column in columns.values())
        names = self._names(path, file, number, columns)
        offsets = _bounds(columns.get("offset"))
        alone = len(names) == 1 and None not in {partition for _, partition in names}
        alone &= offsets is not None and isinstance(offsets[0], int)
        return replace(
            whole,
            start=number,
            end=number + 1,
            size_bytes=size,
            names=names,
            offsets=offsets if alone else None,
        )

    def _names(
        self, path: str, file: pq.ParquetFile, number: int, columns: dict[str, Any]
    ) -> frozenset[Name]:
        """Return the (topic, partition) pairs of the rows in a row group. An unknown topic or partition is None.

        `number` is the number of the row group in the file. `columns` maps the names of the columns to their
        metadata for this row group, which is in the footer. The topic comes from the first of these places that has
        it: the option `topic`; the path; the footer, if it shows that all rows have the same value; the column. The
        partition comes from the same places except the option.
        """
        known: dict[str, str | None] = {
            "topic": self.options.topic or from_path(path, "topic"),
            "partition": from_path(path, "partition"),
        }
        asked = []
        for name in known:
            bounds = _bounds(columns.get(name))
            if known[name] is None and bounds is not None and bounds[0] == bounds[1]:
                known[name] = _text(bounds[0])
            elif known[name] is None and name in columns:
                asked.append(name)
        if not asked:
            return frozenset([_name(known["topic"], known["partition"])])
        table = file.read_row_group(number, columns=asked).group_by(asked).aggregate([])
        return frozenset(
            _name(_text(row.get("topic", known["topic"])), row.get("partition", known["partition"]))
            for row in table.to_pylist()
        )


def _text(value: object) -> str | None:
    """Return a topic or a partition number from a column as text; None stays None. Bytes are decoded as UTF-8."""
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    return None if value is None else str(value)


def _name(topic: str | None, partition: object) -> Name:
    number = str(partition)
    return topic, int(number) if number.isdecimal() else None


def _bounds(column: Any) -> tuple[Any, Any] | None:
    """Return the least and greatest value of a column in a row group, from the statistics in the footer.

    Return None if the footer has no statistics for the column, or if the column may have a null.
    """
    statistics = None if column is None else column.statistics
    if statistics is None or not statistics.has_min_max or statistics.null_count != 0:
        return None
    return statistics.min, statistics.max


def _joined(file_ranges: list[FileRange]) -> Iterator[FileRange]:
    """Join neighbouring file ranges, up to the size of a task, and yield the results.

    Neighbours are joined if they have the same topics and partitions, and if neither has offsets, or the offsets of
    the second are above those of the first.
    """
    held: FileRange | None = None
    for file_range in file_ranges:
        if held is not None and _belong_together(held, file_range):
            offsets = None
            if held.offsets and file_range.offsets:
                offsets = held.offsets[0], file_range.offsets[1]
            size = held.size_bytes + file_range.size_bytes
            held = replace(held, end=file_range.end, size_bytes=size, offsets=offsets)
            continue
        if held is not None:
            yield held
        held = file_range
    if held is not None:
        yield held


def _belong_together(first: FileRange, second: FileRange) -> bool:
    if first.names != second.names or first.size_bytes + second.size_bytes > TASK_BYTES:
        return False
    if first.offsets is None or second.offsets is None:
        return first.offsets is second.offsets
    return first.offsets[1] < second.offsets[0]


def _cast(column: pa.Array, field: pa.Field) -> pa.Array:
    """Cast a column to the type that the sink requires. Keys and values that are numbers or dates become text.

    Raises `pa.ArrowException` if the column cannot be cast.
    """
    kind = column.type
    if field.name in ("key", "value"):
        if not (pa.types.is_string(kind) or pa.types.is_binary(kind)):
            column = column.cast(
                pa.large_binary()
                if pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind)
                else pa.large_string()
            )
        return column.cast(pa.large_binary())
    if field.name == "timestamp" and pa.types.is_timestamp(kind):
        # Truncate nanoseconds and microseconds to ms. Seconds that are too large for an int64 in ms are an error.
        return column.cast(field.type, safe=kind.unit == "s")
    if field.name == "timestamp":
        return pc.cast(column, pa.int64()).cast(field.type)
    return column.cast(field.type)


@contextmanager
def _named(path: str) -> Iterator[None]:
    try:
        yield
    except InvalidRecord as error:
        text = str(error)
        raise InvalidRecord(text if text.startswith(path) else f"{path}: {text}") from None
    except (pa.ArrowException, ValueError) as error:
        raise InvalidRecord(f"{path}: {error}") from None
