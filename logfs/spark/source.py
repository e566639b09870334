"""The data source that is registered in Spark as `logfs`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

from logfs.spark.arrow import kafka_schema
from logfs.spark.batch import BatchReader, FilteredReader
from logfs.spark.options import flag, read_options
from logfs.spark.sink.options import write_options
from logfs.spark.sink.writer import BatchWriter, StreamWriter
from logfs.spark.stream import StreamReader

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


class LogfsDataSource(DataSource):
    """A data source that shows log directories as Spark's Kafka source shows topics, without a broker."""

    @classmethod
    def name(cls) -> str:
        """Return "logfs", the name by which `spark.read.format` and its like find the source."""
        return "logfs"

    def schema(self) -> StructType:
        """Return the columns of Spark's Kafka source; with includeHeaders=true also `headers`.

        Raises `ValueError` if includeHeaders is neither true nor false.
        """
        return kafka_schema(headers=flag(self.options, "includeHeaders", default=False))

    def reader(self, schema: StructType) -> BatchReader:
        """Return the reader of a batch query. If `schema` has only some of the source's columns, only these are read.

        Raises `ValueError` for a wrong schema or option.
        """
        options = read_options(self.options, streaming=False)
        kind = FilteredReader if options.push_down_predicate else BatchReader
        return kind(schema, options)

    def streamReader(self, schema: StructType) -> StreamReader:
        """Return the reader of a streaming query. Raises `ValueError` for a wrong schema or option."""
        return StreamReader(schema, read_options(self.options, streaming=True))

    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:
        """Return the writer of a batch.

        Raises `ValueError` with `overwrite` and for a wrong schema or option, `InvalidStore` for a path that is not a
        log directory, and `OSError`.
        """
        if overwrite:
            raise ValueError(
                "Save mode Overwrite not allowed for logfs: a log is append-only; use .mode('append'), and free "
                "space with 'logfs delete-records' or retention"
            )
        return BatchWriter(schema, write_options(self.options))

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:
        """Return the writer of a streaming query, which always appends, as Kafka's sink does: `overwrite` is ignored.

        Raises `ValueError` for a wrong schema or option, `InvalidStore` for a path that is not a log directory, and
        `OSError`.
        """
        return StreamWriter(schema, write_options(self.options))
