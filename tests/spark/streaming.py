"""A stream that is read to its end."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession


def streamed(spark: SparkSession, path: Path | str, table: str) -> DataFrame:
    """Stream `orders` from its beginning into a table in memory until all records are there, and return the table."""
    query = (
        spark.readStream.format("logfs")
        .options(subscribe="orders", startingOffsets="earliest")
        .load(str(path))
        .writeStream.format("memory")
        .queryName(table)
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(120)
    return spark.table(table)
