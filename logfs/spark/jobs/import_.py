"""The job that imports files into logs: Parquet, JSON objects for records (envelopes), or lines of text.

The tasks read the files, and write batches to temporary (staged) files, as the tasks of the sink do
(`logfs.spark.sink`). The driver then appends the batches of all tasks in one commit, so an import appends all rows
or none.
"""

from __future__ import annotations

import os
import uuid
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from logfs.errors import CommitPending, InvalidRecord, InvalidSetting, LogfsError
from logfs.format.base.names import INTERNAL_TOPICS
from logfs.format.files import commit_file
from logfs.log.disk.disk import Disk
from logfs.spark.jobs.import_formats import ImportOptions
from logfs.spark.jobs.import_lines import EnvelopeFormat, TextFormat
from logfs.spark.jobs.import_parquet import ParquetFormat
from logfs.spark.jobs.import_splits import find_files, in_order, merged
from logfs.spark.jobs.job_runner import TASK_BYTES, WorkItem, run
from logfs.spark.jobs.selection import log_dirs
from logfs.spark.sink.partitions import check_staged, partitions_in, planned_partitions
from logfs.spark.sink.staging import StagingTask
from logfs.spark.sink.writer import Staged
from logfs.spark.splits import packed
from logfs.spark.workers import NotOnHost, host
from logfs.store.admin import commit_client
from logfs.store.directory.recognition import check_log_dirs
from logfs.store.staged_commits import read_commits

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from pyspark.sql import SparkSession

    from logfs.format.files.commit_file import StagedFile
    from logfs.spark.jobs.import_formats import ImportFormat
    from logfs.spark.jobs.import_splits import FileRange
    from logfs.spark.jobs.job_runner import Progress
    from logfs.spark.jobs.selection import Paths
    from logfs.spark.sink.partitions import PlannedPartitions
    from logfs.store.staged_commits import Committed

_FORMS: dict[str, type[ImportFormat]] = {
    "parquet": ParquetFormat,
    "json": EnvelopeFormat,
    "text": TextFormat,
}


@dataclass(frozen=True)
class Imported:
    """The result of an import: the number of files and records, and the offsets that the records got.

    `offsets` maps the name of each partition to (first offset, last offset + 1). `already` is true if an import with
    the same id was done before, so that this import has changed nothing. The numbers are then 0, and `offsets` is
    empty.
    """

    files: int
    records: int
    offsets: dict[str, tuple[int, int]]
    already: bool = False


def import_(
    spark: SparkSession,
    sources: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
    paths: Paths,
    *,
    format: str = "parquet",
    topic: str | None = None,
    key: str | None = None,
    value: str | None = None,
    key_separator: str | None = None,
    partitions: int | None = None,
    repartition: bool = False,
    id: str | None = None,
    progress: Progress | None = None,
) -> Imported:
    """Append the rows of files to log directories in one commit: all of them, or none.

    `sources` are files, directories and globs. `format` is one of these:

    - "parquet": files with the columns of `format("logfs")`. `key` and `value` may name other columns.
    - "json": a JSON object for each record (an envelope), one per line, as in an export.
    - "text": each line is a value. If `key_separator` is given, the text before it is the key, the text after it the
      value. If `key` is given, each line is a JSON object, and `key` names the field that has the record's key: a
      string is used as it is, any other value as its JSON text.

    `topic` takes precedence over the topics in the files. With `repartition`, the partitions in the files are
    ignored. For a row without a partition, the hash of the key selects one; rows without keys are distributed. If
    `partitions` is given, missing log directories and topics are created. A new topic has this number of partitions,
    or more if the files name more. An import with an `id` is done once: another import with the same id changes
    nothing, as long as the log remembers the id (at least seven days). Rows keep their order within a file. If all
    files specify partitions and ascending offsets, like those of an export, the rows are appended in their order.
    `progress` is called with (bytes done, total bytes), which include the bytes read to plan the import.

    Blocks until the job has ended. Raises `InvalidSetting` for wrong arguments, `InvalidStore` for a path that is no
    log directory, `FileNotFoundError` for a missing source, `JobFailed` if a task fails, and the errors of a commit:
    `StoreLocked`, other kinds of `LogfsError`, and `CommitPending` if the commit is durably decided, but not done.
    """
    options = ImportOptions(format, topic, key, value, key_separator, repartition)
    if partitions is not None and partitions < 1:
        raise InvalidSetting(f"partitions is {partitions}: give 1 or more")
    if id is not None and not id.strip():
        raise InvalidSetting("id is empty: give a name")
    form = _FORMS[format](options)
    files = find_files([sources] if isinstance(sources, (str, os.PathLike)) else sources)
    directories = log_dirs(paths, for_writing=True)
    _make_log_dirs(directories, may_create=partitions is not None)
    writer = None if id is None else f"import-{id}"
    if writer is not None and _is_committed(directories, writer):
        return Imported(0, 0, {}, already=True)
    looks = [
        WorkItem(file_range, form.look_bytes(file_range))
        for file in files
        for file_range in form.cut(file)
    ]
    size = sum(work.item.size_bytes for work in looks)
    looked = sum(work.size_bytes for work in looks)
    tell = _told(progress, 0, looked + size)
    found = [
        each for some in run(spark, "logfs import: plan", looks, form.look, tell) for each in some
    ]
    _check_topics(directories, options, found, partitions)
    # Each run of an import has its own id for its staged files. If a run fails, it removes only its own files.
    staging = str(uuid.uuid4())
    task = _Stage(form, directories, planned_partitions(directories, topic), staging)
    staged = _stage(spark, task, in_order(found), _told(progress, looked, looked + size))
    done = _commit(directories, writer or staging, staged)
    if done.already:
        # Another import with the same id has been done since the check above.
        return Imported(0, 0, {}, already=True)
    return Imported(len(files), sum(file.record_count for _, file in staged), done.offsets)


def _make_log_dirs(directories: Sequence[str], *, may_create: bool) -> None:
    """Check the log directories, and create missing ones if `may_create`. Raises `InvalidStore` and `OSError`."""
    check_log_dirs(directories, may_be_empty=True, may_be_made=may_create)
    for directory in map(Path, directories):
        if not directory.exists():
            Disk().mkdir(directory)


def _is_committed(directories: Sequence[str], writer: str) -> bool:
    """Whether the import with the id `writer` was done before. If its commit is unfinished, first finish it."""
    logs = [read_commits(Disk(), Path(directory)) for directory in directories]
    if any(log.pending is not None and log.pending.writer == writer for log in logs):
        return commit_client.commit(directories, writer, 0, []).already
    return any(writer in log.writers for log in logs)


def _told(progress: Progress | None, before: int, total: int) -> Progress | None:
    """Return the progress callback for one of several jobs, or None if `progress` is None.

    The callback calls `progress` with (bytes done in all jobs so far, `total`). `before` is the number of bytes of
    the jobs before this one, and `total` the number of bytes of all jobs.
    """
    if progress is None:
        return None
    return lambda done, _: progress(before + done, total)


def _size(group: Sequence[FileRange]) -> int:
    return sum(file_range.size_bytes for file_range in group)


def _check_topics(
    directories: Sequence[str],
    options: ImportOptions,
    found: Sequence[FileRange],
    partitions: int | None,
) -> None:
    """Check that every row has a topic, and create the missing topics, with at least `partitions` partitions.

    `found` are all file ranges of the import, with the topics and partitions of their rows. Raises `InvalidSetting`
    if a row has no topic, if files have the records of an internal topic, and if `partitions` is None and a topic is
    missing.
    """
    there = partitions_in(Path(path) for path in directories if Path(path).is_dir())
    wanted: dict[str, int] = {}
    for file_range in found:
        for topic, partition in file_range.names:
            if topic is None:
                raise InvalidSetting(
                    f"{file_range.path}: has no topic for its records; give the option topic"
                )
            if topic in INTERNAL_TOPICS and options.topic is None:
                raise InvalidSetting(
                    f"{file_range.path}: its records are of {topic}, and would change the groups or transactions of "
                    "this log; leave the file out, or give the option topic"
                )
            if topic not in there:
                highest = -1 if partition is None or options.repartition else partition
                wanted[topic] = max(wanted.get(topic, 0), partitions or 0, highest + 1)
    if partitions is None:
        for topic in wanted:
            raise InvalidSetting(
                f"{', '.join(directories)}: has no topic {topic!r}; give the option partitions to create it"
            )
    commit_client.create(
        directories,
        [f"{topic}-{number}" for topic in sorted(wanted) for number in range(wanted[topic])],
    )


@dataclass(frozen=True)
class _Stage:
    """The function that tasks call: it writes the rows of some groups of file ranges to staged files.

    Its argument is (number, groups): the number of the work item, from 0, and its groups of file ranges. `planned`
    has the partitions that existed when the import was planned. `writer` is the id of this run of the import, to
    which the staged files belong.

    A `LogfsError` except `NotOnHost`, a `ValueError` or a `pa.ArrowException` becomes an `InvalidRecord` that names
    the file, or the first and the last of several files.
    """

    form: ImportFormat
    log_dirs: Sequence[str]
    planned: PlannedPartitions
    writer: str

    def __call__(self, item: tuple[int, Sequence[Sequence[FileRange]]]) -> Staged:
        turn, groups = item
        topic = self.form.options.topic
        task = StagingTask(self.log_dirs, self.planned, topic, self.writer, 0, turn)
        try:
            return Staged(self.writer, host(), tuple(task.stage(self._rows(groups))))
        except NotOnHost:
            raise
        except (LogfsError, ValueError, pa.ArrowException) as error:
            files = sorted({file_range.path for group in groups for file_range in group})
            text = str(error)
            if any(text.startswith(file) for file in files):
                raise InvalidRecord(text) from None
            where = files[0] if len(files) == 1 else f"{files[0]} to {files[-1]}"
            raise InvalidRecord(f"{where}: {text}") from None

    def _rows(self, groups: Sequence[Sequence[FileRange]]) -> Iterator[pa.RecordBatch]:
        for group in groups:
            yield from merged(group, self.form.read)


def _stage(
    spark: SparkSession,
    task: _Stage,
    ordered: Sequence[Sequence[FileRange]],
    progress: Progress | None,
) -> list[tuple[str, StagedFile]]:
    """Run the tasks that write the rows to staged files; return (host, staged file) for each of these files.

    `ordered` are all file ranges of the import, in the order of import. They are in groups: the rows of a group are
    merged by offset. If a task fails, the staged files of all tasks are removed.
    """
    groups = packed(ordered, _size, TASK_BYTES)
    works = [WorkItem((turn, some), sum(map(_size, some))) for turn, some in enumerate(groups)]
    try:
        outcomes = run(spark, "logfs import", works, task, progress)
    except BaseException:
        _remove_staged(task.log_dirs, task.writer)
        raise
    return [(each.host, file) for each in outcomes for file in each.files]


def _commit(
    directories: Sequence[str], writer: str, staged: Sequence[tuple[str, StagedFile]]
) -> Committed:
    """Append the batches in the staged files in one commit. `staged` has (host, file) for each file.

    `host` is the name of the host on which a task wrote the file. `writer` is the id of the commit. If a commit with
    this id was done before, the log is not changed, and `already` of the result is true. If the commit fails, the
    files are removed, except after `CommitPending`.
    """
    files = [file for _, file in staged]
    try:
        return commit_client.commit(directories, writer, 0, files)
    except CommitPending:
        # The commit will be completed later, so it still needs the staged files.
        raise
    except BaseException:
        try:
            check_staged(directories, staged)
        finally:
            with suppress(LogfsError, OSError):
                commit_client.discard(directories, files)
        raise


def _remove_staged(directories: Sequence[str], writer: str) -> None:
    """Remove the staged files that the tasks of a failed import have written. No commit will use them.

    `writer` is the id that this run of the import gave to its staged files.
    """
    disk = Disk()
    known = {writer: commit_file.Writer(0, 0)}
    for numbers in partitions_in(Path(path) for path in directories).values():
        for directory in numbers.values():
            for entry in disk.scan(directory):
                if entry.name.endswith(commit_file.STAGED) and commit_file.is_over(
                    entry.name, known
                ):
                    disk.unlink(directory / entry.name)
