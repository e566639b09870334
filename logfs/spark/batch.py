"""`spark.read.format("logfs")`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader

from logfs.spark import splits
from logfs.spark.arrow import BatchMaker, arrow_schema, check_schema
from logfs.spark.filters import Pushed
from logfs.spark.topics import Topics, ranges, resolve

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa
    from pyspark.sql.datasource import Filter
    from pyspark.sql.types import StructType

    from logfs.format.names import TopicPartition
    from logfs.log.reader import Reader
    from logfs.spark.options import ReadOptions
    from logfs.spark.splits import Split


class BatchReader(DataSourceReader):
    """Reads what there is when the query is planned; the end is fixed then, and the same for every task."""

    def __init__(self, schema: StructType, options: ReadOptions) -> None:
        check_schema(schema)
        self.schema = schema
        self.options = options
        self.pushed = Pushed()

    def partitions(self) -> list[Split]:
        """The splits. Raises `ValueError`, `DataLoss`, `LogfsError`, `OSError`."""
        topics = Topics(self.options)
        try:
            readers = topics.readers()
            return splits.plan(self._wanted(readers), readers, self.options)
        finally:
            topics.close()

    def _wanted(
        self, readers: dict[TopicPartition, Reader]
    ) -> list[tuple[TopicPartition, int, int]]:
        options = self.options
        starting = resolve(options.starting, readers, latest_if_no_match=options.latest_if_no_match)
        # As in Kafka's source: nothing as late as an ending timestamp means the end of the log.
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
        # Only now: what is an error without filters is one with them.
        return [
            (name, *wanted)
            for name, first, end in inside
            for wanted in self.pushed.wanted(readers[name], first, end)
        ]

    def read(self, partition: Split) -> Iterator[pa.RecordBatch]:  # type: ignore[override]
        """The records of a split, in order."""
        return splits.read(
            partition, BatchMaker(arrow_schema(self.schema)), self.options, self.pushed
        )


class FilteredReader(BatchReader):
    """The same, taking in filters; where push-down is off, Spark refuses to read by a reader that does.

    Spark up to 4.3 gives what the last filters left to every other use of the same `load`, also to one without any:
    so this reader is only for who asks for it.
    """

    def pushFilters(self, filters: list[Filter]) -> Iterator[Filter]:
        """Take filters in; yields those that Spark has to look at again."""
        return self.pushed.push(filters)
