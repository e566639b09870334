"""The options of an import, and the base class that turns the rows of files into the columns of the sink."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_type

from logfs.errors import InvalidSetting
from logfs.spark.arrow import HEADERS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from logfs.spark.jobs.import_splits import FileRange

FORMATS = ("parquet", "json", "text")

# The schema of the batches that every `ImportFormat` yields. A null timestamp stands for the time of the import. A
# null partition stands for the partition that the key selects, or without a key for the next partition in turn.
SCHEMA = pa.schema(
    {
        "topic": pa.string(),
        "partition": pa.int32(),
        "key": pa.large_binary(),
        "value": pa.large_binary(),
        "headers": to_arrow_type(HEADERS),
        "timestamp": pa.timestamp("ms", tz="UTC"),
        "offset": pa.int64(),
    }
)
# The most rows and bytes of a batch: so many that the fixed cost of a batch is negligible.
BATCH_ROWS = 30_000
BATCH_BYTES = 16 << 20


@dataclass(frozen=True)
class ImportOptions:
    """The options of an import that apply to rows; None stands for an option that is not given.

    In Parquet files, `key` and `value` are the names of columns. In lines of text that are JSON, `key` is the name of
    a field. In other lines of text, `key_separator` separates key and value. With `repartition`, the partitions in
    the files are ignored.
    """

    format: str = "parquet"
    topic: str | None = None
    key: str | None = None
    value: str | None = None
    key_separator: str | None = None
    repartition: bool = False

    def __post_init__(self) -> None:
        """Raise `InvalidSetting` for an unknown format and for options that contradict each other."""
        if self.format not in FORMATS:
            raise InvalidSetting(f"format {self.format!r}: give one of {', '.join(FORMATS)}")
        if self.format == "json" and self.key is not None:
            raise InvalidSetting(
                "key: an envelope has its own key; for lines of JSON that are not envelopes, use format text"
            )
        if self.value is not None and self.format != "parquet":
            raise InvalidSetting(
                f"value: names a column of a Parquet file; leave it out for format {self.format}"
            )
        if self.key_separator is not None and (self.format != "text" or self.key is not None):
            raise InvalidSetting("key_separator: give it only with format text, and without key")
        if self.key_separator == "":
            raise InvalidSetting("key_separator: give at least one character")
        if self.format == "text" and self.topic is None:
            raise InvalidSetting("topic: lines of text contain no topic; give the option topic")


class ImportFormat(ABC):
    """The base class of the formats, which read files. Spark pickles the object and sends it to the tasks."""

    def __init__(self, options: ImportOptions) -> None:
        self.options = options

    @abstractmethod
    def cut(self, path: str) -> list[FileRange]:
        """Divide a file into ranges, each of which one task can read. The file is not opened. Raises `OSError`.

        Each row of the file is in exactly one of the ranges, which are in the order of the file.
        """

    @abstractmethod
    def look_bytes(self, file_range: FileRange) -> int:
        """Return the approximate number of bytes that `look` reads."""

    @abstractmethod
    def look(self, file_range: FileRange) -> list[FileRange]:
        """Find the topics, partitions and offsets of the rows in a file range; return file ranges with these rows.

        The returned file ranges have `names`, and `offsets` if these are known. Raises `InvalidRecord`, `NotOnHost`,
        `OSError`.
        """

    @abstractmethod
    def read(self, file_range: FileRange) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a file range, in the order of the file, as batches with the schema `SCHEMA`.

        Raises `InvalidRecord`, `NotOnHost`, `OSError`.
        """


def batch_of(count: int, **columns: Any) -> pa.RecordBatch:
    """Return a batch of `count` rows with the schema `SCHEMA`. `columns` are Arrow arrays; missing ones are null."""
    arrays = [
        columns[field.name] if field.name in columns else pa.nulls(count, field.type)
        for field in SCHEMA
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)
