"""What the files of an import hold, and how the rows in it become the columns that the sink takes."""

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

    from logfs.spark.jobs.portions import Portion

FORMATS = ("parquet", "json", "text")

# What every form makes of its rows. A null timestamp is the time of the import, a null partition the key's.
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
# Enough that a batch's own cost is nothing.
BATCH_ROWS = 30_000
BATCH_BYTES = 16 << 20


@dataclass(frozen=True)
class ImportOptions:
    """How rows are taken; None where an option is not given.

    `key` and `value` name columns of Parquet, `key` also a field of lines that are JSON. `key_separator` stands
    between key and value in a line of text. With `repartition`, what a file says of partitions does not count.
    """

    format: str = "parquet"
    topic: str | None = None
    key: str | None = None
    value: str | None = None
    key_separator: str | None = None
    repartition: bool = False

    def __post_init__(self) -> None:
        """Raises `InvalidSetting` for options that do not go together."""
        if self.format not in FORMATS:
            raise InvalidSetting(f"format {self.format!r}: give one of {', '.join(FORMATS)}")
        if self.format == "json" and self.key is not None:
            raise InvalidSetting(
                "key: an envelope has its own key; lines of JSON that are no envelopes are format text"
            )
        if self.value is not None and self.format != "parquet":
            raise InvalidSetting(f"value: names a column of parquet; not for format {self.format}")
        if self.key_separator is not None and (self.format != "text" or self.key is not None):
            raise InvalidSetting("key_separator: goes with format text, and not with key")
        if self.key_separator == "":
            raise InvalidSetting("key_separator: give at least one character")
        if self.format == "text" and self.topic is None:
            raise InvalidSetting("topic: lines of text do not tell theirs: give one")


class Form(ABC):
    """Reads portions of files of one format; goes to the tasks."""

    def __init__(self, options: ImportOptions) -> None:
        self.options = options

    @abstractmethod
    def cut(self, path: str) -> list[Portion]:
        """A file in portions, without opening it."""

    @abstractmethod
    def look_bytes(self, portion: Portion) -> int:
        """About how many bytes `look` has to read."""

    @abstractmethod
    def look(self, portion: Portion) -> list[Portion]:
        """The same rows in portions that tell their names and offsets. Raises `InvalidRecord`, `OSError`."""

    @abstractmethod
    def read(self, portion: Portion) -> Iterator[pa.RecordBatch]:
        """The rows of a portion, in order, by `SCHEMA`. Raises `InvalidRecord`, `OSError`."""


def batch_of(count: int, **columns: Any) -> pa.RecordBatch:
    """A batch by `SCHEMA`, of so many rows; columns that are not given are null."""
    arrays = [
        columns[field.name] if field.name in columns else pa.nulls(count, field.type)
        for field in SCHEMA
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)
