"""A Python data source for Spark that has nothing to do: its records are Arrow batches in files. None is faster."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.cloudpickle import register_pickle_by_value
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from pyspark.sql import DataFrame

# As many as a query of logfs has on two processors.
_TASKS = 2
_BATCH_ROWS = 20_000


class _ReadyBatches(DataSource):
    """Reads files of one column; there is one for each column and task."""

    @classmethod
    def name(cls) -> str:
        return "ready"

    def schema(self) -> str:
        return f"{self.options['column']} {self.options['type']}"

    def reader(self, schema: object) -> _Reader:
        return _Reader(self.options["path"], self.options["column"])


class _Reader(DataSourceReader):
    def __init__(self, path: str, column: str) -> None:
        self.path, self.column = path, column

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(number) for number in range(_TASKS)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:  # type: ignore[override]
        with pa.memory_map(f"{self.path}/{self.column}-{partition.value}") as file:
            reader = pa.ipc.open_file(file)
            yield from map(reader.get_batch, range(reader.num_record_batches))


def prepare(records: DataFrame, directory: Path) -> Callable[[str], DataFrame]:
    """Write the records into files below `directory`; return a function that loads one column of them by its name."""
    # The workers do not have this module.
    register_pickle_by_value(sys.modules[__name__])
    directory.mkdir()
    table = records.toArrow()
    each = -(-len(table) // _TASKS)
    for column in table.column_names:
        for number in range(_TASKS):
            part = table.select([column]).slice(number * each, each).combine_chunks()
            with pa.ipc.new_file(directory / f"{column}-{number}", part.schema) as file:
                file.write_table(part, max_chunksize=_BATCH_ROWS)
    types = {field.name: field.dataType.simpleString() for field in records.schema}
    records.sparkSession.dataSource.register(_ReadyBatches)

    def load(column: str) -> DataFrame:
        reader = records.sparkSession.read.format("ready").option("column", column)
        return reader.option("type", types[column]).load(str(directory))

    return load
