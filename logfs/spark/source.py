"""The data source that Spark knows as `logfs`."""

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
    """Log directories as Spark's Kafka source shows topics, with no broker."""

    @classmethod
    def name(cls) -> str:
        """What `format` is given."""
        return "logfs"

    def schema(self) -> StructType:
        """The columns of Spark's Kafka source; `headers` with includeHeaders=true."""
        return kafka_schema(headers=flag(self.options, "includeHeaders", default=False))

    def reader(self, schema: StructType) -> BatchReader:
        """Of a batch; `schema` may name fewer columns, and then only these are read."""
        options = read_options(self.options, streaming=False)
        kind = FilteredReader if options.push_down_predicate else BatchReader
        return kind(schema, options)

    def streamReader(self, schema: StructType) -> StreamReader:
        """Of a stream."""
        return StreamReader(schema, read_options(self.options, streaming=True))

    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:
        """Of a batch."""
        if overwrite:
            raise ValueError(
                "Save mode Overwrite not allowed for logfs: a log is append-only; say .mode('append'), and make room "
                "with 'logfs delete-records' or retention"
            )
        return BatchWriter(schema, write_options(self.options))

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:
        """Of a stream; as in Kafka's sink, every output mode appends."""
        return StreamWriter(schema, write_options(self.options))
