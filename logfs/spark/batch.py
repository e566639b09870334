"""The reader of batch queries: `spark.read.format("logfs")`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader

from logfs.format.encoding.arrow_batches import BatchMaker
from logfs.spark import splits
from logfs.spark.filters import PushedFilters
from logfs.spark.kafka_schema import arrow_schema, check_schema
from logfs.spark.topics import opened, ranges, resolve
from logfs.spark.workers import short_errors

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa
    from pyspark.sql.datasource import Filter, InputPartition
    from pyspark.sql.types import StructType

    from logfs.format.base.names import TopicPartition
    from logfs.log.read.reader import Reader
    from logfs.spark.options import ReadOptions


class BatchReader(DataSourceReader):
    """The reader of one batch query. `partitions` fixes the end offsets, so records appended later are not read."""

    def __init__(self, schema: StructType, options: ReadOptions) -> None:
        check_schema(schema)
        self.schema = schema
        self.options = options
        self.pushed = PushedFilters()

    @short_errors()
    def partitions(self) -> list[InputPartition]:
        """Return the input partitions of the query, one for each task.

        Raises `ValueError` if

        - a partition or topic does not exist,
        - the start offset of a partition is greater than its end offset,
        - an option gives offsets or timestamps by partition, but not for exactly the partitions that are read, or
        - a starting timestamp is later than all records, unless startingOffsetsByTimestampStrategy is latest.

        Raises `DataLoss` for offsets outside of the log if failOnDataLoss is true, other kinds of `LogfsError`, and
        `OSError`.
        """
        with opened(self.options) as topics:
            return topics.planned((self.options, self.pushed), lambda: self._plan(topics.readers()))

    def _plan(self, readers: dict[TopicPartition, Reader]) -> list[InputPartition]:
        return splits.plan(self._wanted(readers), readers, self.options)

    def _wanted(
        self, readers: dict[TopicPartition, Reader]
    ) -> list[tuple[TopicPartition, int, int]]:
        options = self.options
        starting = resolve(options.starting, readers, latest_if_no_match=options.latest_if_no_match)
        # As in Kafka's source, an ending timestamp later than all records means the end of the log.
        ending = resolve(options.ending, readers, latest_if_no_match=True)
        for name, first in starting.items():
            if first > ending[name]:
                raise ValueError(
                    f"The specified start offset {first} is greater than the end offset {ending[name]} for topic "
                    f"{name.topic} partition {name.partition}."
                )
        fail = options.fail_on_data_loss
        inside = [
            (name, *splits.inside_log(name, readers[name], first, end, fail=fail))
            for name, first, end in ranges(starting, ending)
        ]
        # Apply the filters last, so that a query with filters raises the same errors as a query without.
        return [
            (name, *wanted)
            for name, first, end in inside
            for wanted in self.pushed.wanted(readers[name], first, end)
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """In a task: return the records of an input partition as Arrow batches, in the order of its splits.

        Raises `DataLoss` for records that were deleted after the query was planned, `Corrupt` for damage, `NotOnHost`
        if this machine does not have the planned files, and `OSError`.
        """
        return splits.read(
            partition.value, BatchMaker(arrow_schema(self.schema)), self.options, self.pushed
        )


class FilteredReader(BatchReader):
    """A batch reader that accepts filters. If filter push-down is off in Spark, Spark refuses to use such a reader.

    This class is used only if the option pushDownPredicate of the source is true. The default is false, because
    Spark up to 4.3 has an error: if several queries, or several places in a query, use the DataFrame of one `load`,
    Spark reads for all of them what the filters that were pushed last select, even where there are no filters.
    """

    def pushFilters(self, filters: list[Filter]) -> Iterator[Filter]:
        """Add filters to the read, and yield all of them, so that Spark evaluates them again.

        Otherwise Spark's error would also return rows that do not pass the filters of their query.
        """
        for each in filters:
            self.pushed.push(each)
            yield each
