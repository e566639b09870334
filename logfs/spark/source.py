"""The data source that is registered in Spark as `logfs`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

from logfs.spark.batch import BatchReader, FilteredReader
from logfs.spark.catalog import options_of_table, options_to_create, with_options
from logfs.spark.kafka_schema import kafka_schema
from logfs.spark.known_names import check_options
from logfs.spark.options import check_columns, columns_of, flag, read_options
from logfs.spark.sink.options import write_options
from logfs.spark.sink.writer import BatchWriter, StreamWriter
from logfs.spark.stream import RefusedStream, StreamReader
from logfs.spark.workers import short_errors

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


class LogfsDataSource(DataSource):
    """A data source that reads and writes log directories, with the columns and options of Spark's Kafka source."""

    @classmethod
    def name(cls) -> str:
        """Return "logfs", the name of the data source in `spark.read.format` and `df.write.format`."""
        return "logfs"

    @short_errors()
    def schema(self) -> StructType:
        """Return the columns of Spark's Kafka source; with includeHeaders=true also `headers`.

        If the option `columns` is given, return only the columns that it names. At CREATE TABLE, the metadata of the
        first column also gets the options of the table, because Spark does not pass them to later reads. Raises
        `ValueError` for an unknown option, for a wrong value of `includeHeaders` or `columns`, and for a table
        without a path.
        """
        table = options_to_create(self.options)
        options = self.options if table is None else table
        check_options(options)
        headers = flag(options, "includeHeaders", default=False)
        found = kafka_schema(headers=headers, columns=columns_of(options))
        return found if table is None else with_options(found, table)

    @short_errors()
    def reader(self, schema: StructType) -> BatchReader:
        """Return the reader of a batch query. If `schema` has only some of the source's columns, only these are read.

        Raises `ValueError` for a wrong schema or option.
        """
        found = options_of_table(self.options, schema)
        check_columns(found, schema.names)
        options = read_options(found, streaming=False)
        kind = FilteredReader if options.push_down_predicate else BatchReader
        return kind(schema, options)

    def streamReader(self, schema: StructType) -> StreamReader | RefusedStream:
        """Return the reader of a streaming query. Its methods raise `ValueError` for a wrong schema or option."""
        options = options_of_table(self.options, schema)
        try:
            check_columns(options, schema.names)
            return StreamReader(schema, read_options(options, streaming=True))
        except ValueError as error:
            return RefusedStream(error)

    @short_errors()
    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:
        """Return the writer of a batch write.

        Raises `ValueError` if `overwrite` is true or if the schema or an option is wrong, `InvalidStore` for a path
        that is not a log directory, and `OSError`. With createPartitions, also raises the errors of
        `commit_client.create`.
        """
        if overwrite:
            raise ValueError(
                "Save mode Overwrite not allowed for logfs: a log is append-only; use .mode('append'), and free "
                "space with 'logfs delete-records' or retention"
            )
        return BatchWriter(schema, write_options(self.options))

    @short_errors()
    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:
        """Return the writer of a streaming query. Like Kafka's sink, it always appends: `overwrite` is ignored.

        Raises `ValueError` for a wrong schema or option, `InvalidStore` for a path that is not a log directory, and
        `OSError`. With createPartitions, also raises the errors of `commit_client.create`.
        """
        return StreamWriter(schema, write_options(self.options))
