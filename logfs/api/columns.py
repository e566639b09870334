"""The records of a partition as numpy arrays, and as tables of pyarrow, pandas and polars."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from logfs.format.batches.columns import Columns

if TYPE_CHECKING:
    import pandas
    import polars


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionColumns(Columns):
    """Records of one partition as numpy arrays: `Columns` with the topic's name and the partition's number.

    The `to_` methods return tables with the columns of Spark's Kafka source: key, value, topic, partition, offset,
    timestamp, timestampType, headers. Keys and values are bytes, and `timestamp` is a time in UTC in milliseconds.
    A library that reads Arrow's C stream interface also accepts the object itself: `polars.DataFrame(columns)`.

    Each conversion needs pyarrow; `to_pandas` also needs pandas, and `to_polars` polars. The conversions raise
    `ModuleNotFoundError` if a package that they need is not installed, and `ValueError` if the keys, the values, the
    header keys or the header values have 2 GiB or more in total.
    """

    topic: str
    partition: int

    @staticmethod
    def of(topic: str, partition: int, columns: Columns) -> PartitionColumns:
        """Return `columns`, the records of one partition, as `PartitionColumns`. The arrays are not copied."""
        fields = {name: getattr(columns, name) for name in Columns.__dataclass_fields__}
        return PartitionColumns(topic=topic, partition=partition, **fields)

    def to_arrow(self) -> Any:
        """Return a `pyarrow.Table`. (The declared type is `Any`, because pyarrow has no type annotations.)"""
        from logfs.format.encoding.arrow_batches import table

        return table(self.topic, self.partition, self)

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """Return a PyCapsule with Arrow's C stream of the rows (the Arrow PyCapsule interface).

        `requested_schema` is a PyCapsule with the Arrow schema to cast the rows to; None keeps their own schema.
        """
        return self.to_arrow().__arrow_c_stream__(requested_schema)

    def to_pandas(self) -> pandas.DataFrame:
        """Return a DataFrame of pandas."""
        return self.to_arrow().to_pandas()

    def to_polars(self) -> polars.DataFrame:
        """Return a DataFrame of polars."""
        import polars

        return polars.DataFrame(self)
