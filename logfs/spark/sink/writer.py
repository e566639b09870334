"""The writers of batch and streaming queries.

In the tasks, `write` writes the records to staged files (temporary files in the partitions' directories). In the
driver, `commit` appends the staged files. Each attempt of a task has its own files; those of the successful attempts
are appended. The log accepts only one commit for each batch write, and for each micro-batch of a streaming query.
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
from logfs.spark.sink.partitions import check_staged, planned_partitions
from logfs.store.admin import commit_client
from logfs.store.directory.recognition import check_log_dirs, log_dirs_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa
    from pyspark.sql.types import StructType

    from logfs.format.files.commit_file import StagedFile

logger = logging.getLogger(__name__)

_QUERY_ID = "sql.streaming.queryId"
_BATCH_ID = "streaming.sql.batchId"


@dataclass(frozen=True)
class Staged(WriterCommitMessage):
    """The commit message of a task: the files that the task staged, and the name of its host.

    `writer` is the id of the writer to which the files belong: the id of a streaming query, of a batch write, or of
    one run of an import.
    """

    writer: str
    host: str
    files: tuple[StagedFile, ...]


class _Sink:
    """The base class of `BatchWriter` and `StreamWriter`. Spark pickles the writer, and sends it to the tasks."""

    def __init__(self, schema: StructType, options: WriteOptions) -> None:
        """Find the log directories, and store in `planned` the partitions that the tasks can write to.

        They are those of the topic in `options` or, without a topic, of all topics. With createPartitions, first
        create the topic if it is missing. Raises `ValueError` for a wrong schema, `InvalidStore` for a path that is
        not a log directory, the errors of `commit_client.create`, and `OSError`.
        """
        check_write_schema(schema, options)
        self.options = options
        # The paths may be mountpoints. Find their log directories now, because the mountpoints need not exist on the
        # machines of the tasks.
        self.log_dirs = log_dirs_of(options.paths, for_writing=True)
        check_log_dirs(map(Path, self.log_dirs), may_be_empty=options.create_partitions is not None)
        self._create_partitions()
        self.planned = planned_partitions(self.log_dirs, options.topic)

    def _create_partitions(self) -> None:
        """Create the topic of the write if it is missing and the option createPartitions is given.

        Partition 0 is created last. So a topic without partition 0 is incomplete, and the next write with
        createPartitions completes it.
        """
        topic, count = self.options.topic, self.options.create_partitions
        if topic is None or count is None:
            return
        if 0 not in planned_partitions(self.log_dirs, topic).get(topic, {}):
            wanted = [f"{topic}-{number}" for number in reversed(range(count))]
            commit_client.create(self.log_dirs, wanted)

    @workers.short_errors()
    def _stage(self, batches: Iterator[pa.RecordBatch], writer: str, sequence: int) -> Staged:
        from logfs.spark.sink.staging import StagingTask

        context = TaskContext.get()
        turn = sequence + (context.partitionId() if context is not None else 0)
        with workers.naming_host():
            task = StagingTask(
                self.log_dirs, self.planned, self.options.topic, writer, sequence, turn
            )
            staged = Staged(writer, workers.host(), tuple(task.stage(batches)))
        workers.freeze_loaded_objects("write")
        return staged

    def _commit(
        self, messages: Sequence[WriterCommitMessage | None], writer: str, sequence: int
    ) -> None:
        # `messages` are in the order of the DataFrame's partitions, so a sorted DataFrame is appended in its order.
        try:
            done = commit_client.commit(self.log_dirs, writer, sequence, _files(messages))
        except CommitPending:
            raise
        except (LogfsError, OSError):
            staged = [each for each in messages if isinstance(each, Staged)]
            check_staged(
                self.log_dirs, ((each.host, file) for each in staged for file in each.files)
            )
            raise
        if done.already:
            logger.warning(
                "commit %d of writer %s was done before: nothing is written", sequence, writer
            )

    def _abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Remove the staged files, except those of a commit that must still be completed.

        `messages` are the commit messages of the tasks, with None for a task that has failed. If the removal fails, a
        warning is logged, and the upkeep of the store removes the files later.
        """
        try:
            commit_client.discard(self.log_dirs, _files(messages))
        except (LogfsError, OSError) as error:
            logger.warning(
                "the staged files cannot be removed now, and upkeep removes them later: %s", error
            )


def _files(messages: Sequence[WriterCommitMessage | None]) -> list[StagedFile]:
    return [file for message in messages if isinstance(message, Staged) for file in message.files]


class BatchWriter(_Sink, DataSourceArrowWriter):
    """The writer of `df.write.format("logfs").mode("append")`, which makes one commit.

    If txnAppId and txnVersion are given, they identify the commit, so that it is not made twice.
    """

    def __init__(self, schema: StructType, options: WriteOptions) -> None:
        super().__init__(schema, options)
        # Set the id now: the tasks and the commit use copies of this object, which must have the same id.
        self._id = options.transaction or (str(uuid.uuid4()), 0)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        """In a task: write the rows of the task to staged files, and return the commit message.

        Raises `NotOnHost` if this machine lacks one of the partitions in `planned`, and the errors of
        `StagingTask.stage`.
        """
        return self._stage(iterator, *self._id)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """In the driver: append all staged records atomically, unless this commit was done before.

        Raises `NotOnHost` if a staged file is missing, `StoreLocked` if another process, such as a broker, keeps the
        log directories locked, `CommitPending` if the commit is durably decided but cannot be completed yet, and the
        other errors of a commit.
        """
        self._commit(messages, *self._id)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """In the driver, after a task or the commit has failed: remove the staged files."""
        self._abort(messages)


class StreamWriter(_Sink, DataSourceStreamArrowWriter):
    """The writer of `df.writeStream.format("logfs")`, which writes each micro-batch of a query exactly once.

    The query id, which Spark keeps in the checkpoint, and the batch id identify the commit.
    """

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        """In a task: write the rows of the task to staged files, and return the commit message.

        Raises `RuntimeError` outside of a streaming query, `NotOnHost` if this machine lacks one of the partitions in
        `planned`, and the errors of `StagingTask.stage`.
        """
        context = TaskContext.get()
        query = context.getLocalProperty(_QUERY_ID) if context is not None else None
        batch = context.getLocalProperty(_BATCH_ID) if context is not None else None
        if query is None or batch is None:
            raise RuntimeError(
                "Spark gives this task no query id and batch id: is it a task of a streaming query?"
            )
        return self._stage(iterator, query, int(batch))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """In the driver: append all staged records atomically, unless the micro-batch was committed before.

        Raises `NotOnHost` if a staged file is missing, `StoreLocked` if another process, such as a broker, keeps the
        log directories locked, `CommitPending` if the commit is durably decided but cannot be completed yet, and the
        other errors of a commit.
        """
        writers = {message.writer for message in messages if isinstance(message, Staged)}
        for writer in writers:
            self._commit(messages, writer, batchId)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """In the driver, after a task or the commit has failed: remove the staged files."""
        self._abort(messages)
