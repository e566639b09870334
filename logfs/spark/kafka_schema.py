"""The columns of Spark's Kafka source, as Spark's types and as Arrow's."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from logfs.spark.known_names import unknown_column

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa

HEADERS = ArrayType(
    StructType([StructField("key", StringType()), StructField("value", BinaryType())])
)
FIXED_FIELDS = (
    StructField("key", BinaryType()),
    StructField("value", BinaryType()),
    StructField("topic", StringType()),
    StructField("partition", IntegerType()),
    StructField("offset", LongType()),
    StructField("timestamp", TimestampType()),
    StructField("timestampType", IntegerType()),
)


def kafka_schema(*, headers: bool, columns: Sequence[str] | None = None) -> StructType:
    """Return the columns of Spark's Kafka source. If `headers` is true, the last one is the column `headers`.

    If `columns` is given, return the columns with these names, in this order, and ignore `headers`. Raises
    `ValueError` for a name that is not a column, or that occurs twice.
    """
    fields = {field.name: field for field in (*FIXED_FIELDS, StructField("headers", HEADERS))}
    if columns is None:
        return StructType([*FIXED_FIELDS, *([fields["headers"]] if headers else [])])
    for name in columns:
        if name not in fields:
            raise unknown_column(name, fields, "logfs source")
        if columns.count(name) > 1:
            raise ValueError(f"the option 'columns' names the column {name} twice")
    return StructType([fields[name] for name in columns])


def check_schema(schema: StructType) -> None:
    """Raise `ValueError` unless each column of `schema` is, by name and type, a column of Spark's Kafka source."""
    known = {field.name: field.dataType for field in kafka_schema(headers=True)}
    for field in schema:
        if known.get(field.name) != field.dataType:
            columns = ", ".join(f"{name} {kind.simpleString()}" for name, kind in known.items())
            raise ValueError(
                f"the logfs source has no column {field.name} {field.dataType.simpleString()}; "
                f"its columns are {columns}"
            )


def arrow_schema(schema: StructType) -> pa.Schema:
    """Convert a Spark schema to the Arrow schema that the Arrow batches of a reader must have."""
    return to_arrow_schema(schema, timezone="UTC")
