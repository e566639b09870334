"""The options of an import, and the base class of the formats, which convert rows of files to the sink's columns."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_type

from logfs.errors import InvalidSetting
from logfs.spark.kafka_schema import HEADERS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from logfs.spark.jobs.import_splits import FileRange

FORMATS = ("parquet", "json", "text")

# The schema of the batches that every `ImportFormat` yields. A null timestamp stands for the time of the import. If
# the partition is null, the key selects the partition. If the key is null, too, the row may go to any partition.
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
# The most rows and bytes in an Arrow batch. They are large enough that the fixed cost of a batch is negligible.
BATCH_ROWS = 30_000
BATCH_BYTES = 16 << 20


@dataclass(frozen=True)
class ImportOptions:
    """The options of an import that apply to rows; None stands for an option that is not given.

    `topic` is the topic of all rows, and takes precedence over the topics in the files. For the format "parquet",
    `key` and `value` are the names of columns. For the format "text", `key` is the name of a field of lines that are
    JSON, or `key_separator` is the text between the key and the value of a line. If `repartition` is true, the
    partitions in the files are ignored.
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
                "key: a JSON envelope (format json) has its own key; leave key out, or use format text for other JSON"
            )
        if self.value is not None and self.format != "parquet":
            raise InvalidSetting(
                f"value: names a column of a Parquet file; leave it out for format {self.format}"
            )
        if self.key_separator is not None and (self.format != "text" or self.key is not None):
            raise InvalidSetting(
                "key_separator: needs format text, and cannot be combined with the option key"
            )
        if self.key_separator == "":
            raise InvalidSetting("key_separator: give at least one character")
        if self.format == "text" and self.topic is None:
            raise InvalidSetting("topic: lines of text contain no topic; give the option topic")


class ImportFormat(ABC):
    """The base class of the formats of imported files. Spark pickles the instance, and sends it to the tasks."""

    def __init__(self, options: ImportOptions) -> None:
        self.options = options

    @abstractmethod
    def cut(self, path: str) -> list[FileRange]:
        """Divide a file into ranges, each for one task, without opening the file. Raises `OSError`.

        Each row of the file is in exactly one of the ranges. The ranges are in the order of the file.
        """

    @abstractmethod
    def look_bytes(self, file_range: FileRange) -> int:
        """Return the approximate number of bytes that `look` reads."""

    @abstractmethod
    def look(self, file_range: FileRange) -> list[FileRange]:
        """Find the topics, partitions and offsets of the rows in a file range, to plan the import.

        Return file ranges that together have all rows of `file_range`. In each of them, `names` has the topics and
        partitions of the rows, and `offsets` is set if the offsets of the rows are known. Raises `InvalidRecord` if
        the file does not have the format, `NotOnHost` if it is missing or shorter than planned on this machine, and
        `OSError`.
        """

    @abstractmethod
    def read(self, file_range: FileRange) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a file range, in the order of the file, as Arrow batches with the schema `SCHEMA`.

        Raises `InvalidRecord` if the file does not have the format, `NotOnHost` if it is missing or shorter than
        planned on this machine, and `OSError`.
        """


def batch_of(count: int, **columns: Any) -> pa.RecordBatch:
    """Return an Arrow batch of `count` rows with the schema `SCHEMA`. Columns that are not in `columns` are null."""
    arrays = [
        columns[field.name] if field.name in columns else pa.nulls(count, field.type)
        for field in SCHEMA
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)
