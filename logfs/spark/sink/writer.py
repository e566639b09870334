"""The two ends of a write: `write` runs in tasks and stages, `commit` in the driver and decides.

What two attempts of a task, or two runs of a batch, have staged is two sets of files; the driver names those that
count, and of each query's batch, or each batch write, the log takes one commit (`logfs.store.commit`).
"""

from __future__ import annotations

import logging
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from logfs.errors import CommitPending, LogfsError
from logfs.spark import workers
from logfs.spark.sink.options import WriteOptions, check_write_schema
from logfs.spark.sink.staging import Task, check_staged, planned_partitions
from logfs.store import door

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa
    from pyspark.sql.types import StructType

    from logfs.format.commits import StagedFile

logger = logging.getLogger(__name__)

_QUERY_ID = "sql.streaming.queryId"
_BATCH_ID = "streaming.sql.batchId"


@dataclass(frozen=True)
class Staged(WriterCommitMessage):
    """What a task has staged, for whose commit, and on which host."""

    writer: str
    host: str
    files: tuple[StagedFile, ...]


class _Sink:
    """What writing a batch and writing a stream have in common."""

    def __init__(self, schema: StructType, options: WriteOptions) -> None:
        """Raises `ValueError` as `check_write_schema`."""
        check_write_schema(schema, options)
        self.options = options
        # Of the driver: a mountpoint need not be there on the machines of the tasks.
        self.log_dirs = door.log_dirs_of(options.paths)
        door.check_there(map(Path, self.log_dirs))
        self.planned = planned_partitions(self.log_dirs, options.topic)

    def _stage(self, batches: Iterator[pa.RecordBatch], writer: str, sequence: int) -> Staged:
        context = TaskContext.get()
        turn = sequence + (context.partitionId() if context is not None else 0)
        with workers.naming_host():
            task = Task(self.log_dirs, self.planned, self.options.topic, writer, sequence, turn)
            staged = Staged(writer, workers.host(), tuple(task.stage(batches)))
        workers.settle("write")
        return staged

    def _commit(
        self, messages: Sequence[WriterCommitMessage | None], writer: str, sequence: int
    ) -> None:
        # In the order of Spark's partitions, so that a sorted frame is appended as it is sorted.
        try:
            done = door.commit(self.log_dirs, writer, sequence, _files(messages))
        except CommitPending:
            raise
        except (LogfsError, OSError):
            staged = [each for each in messages if isinstance(each, Staged)]
            check_staged(
                self.log_dirs, ((each.host, file) for each in staged for file in each.files)
            )
            raise
        if done.already:
            logger.warning("commit %d of %s was made before: nothing is written", sequence, writer)

    def _abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Remove what was staged, unless a commit is decided that needs it; what is left, upkeep removes."""
        try:
            door.discard(self.log_dirs, _files(messages))
        except (LogfsError, OSError) as error:
            logger.warning("staged files are left for upkeep to remove: %s", error)


def _files(messages: Sequence[WriterCommitMessage | None]) -> list[StagedFile]:
    return [file for message in messages if isinstance(message, Staged) for file in message.files]


class BatchWriter(_Sink, DataSourceArrowWriter):
    """`df.write.format("logfs").mode("append")`: one commit, by txnAppId and txnVersion where they are given."""

    def __init__(self, schema: StructType, options: WriteOptions) -> None:
        super().__init__(schema, options)
        # The same object goes to the tasks and to the commit.
        self._id = options.transaction or (str(uuid.uuid4()), 0)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        """In a task: stage its rows."""
        return self._stage(iterator, *self._id)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """In the driver: append what was staged, all at once."""
        self._commit(messages, *self._id)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """In the driver, when a task or the commit has failed."""
        self._abort(messages)


class StreamWriter(_Sink, DataSourceStreamArrowWriter):
    """`df.writeStream.format("logfs")`: exactly once for each batch of a query, which its checkpoint names."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        """In a task: stage its rows."""
        context = TaskContext.get()
        query = context.getLocalProperty(_QUERY_ID) if context is not None else None
        batch = context.getLocalProperty(_BATCH_ID) if context is not None else None
        if query is None or batch is None:
            raise RuntimeError(
                "Spark does not tell this task its query and batch: is it of a stream?"
            )
        return self._stage(iterator, query, int(batch))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """In the driver: append what was staged, all at once, unless the batch was committed before."""
        writers = {message.writer for message in messages if isinstance(message, Staged)}
        for writer in writers:
            self._commit(messages, writer, batchId)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """In the driver, when a task or the commit has failed."""
        self._abort(messages)
