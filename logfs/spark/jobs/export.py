"""The job that exports a log to Parquet files or JSON envelopes, in folders by topic and date as in Hive and Spark.

    target/topic=orders/date=2021-11-28/part-00000-00000000000000000000.parquet

Tasks write under `_temporary`, which readers ignore. The driver moves the files of the successful attempts to their
places, and writes `_SUCCESS` last. A job that fails leaves no files of its own.
"""

from __future__ import annotations

import errno
import json
import shutil
import uuid
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql.datasource import CaseInsensitiveDict

from logfs.errors import InvalidSetting
from logfs.format.base.names import TopicPartition
from logfs.log.disk.disk import Disk
from logfs.spark import splits
from logfs.spark.arrow import kafka_schema, sized
from logfs.spark.batch import BatchReader
from logfs.spark.jobs.export_files import Files, by_date, format_of
from logfs.spark.jobs.job_runner import WorkItem, run
from logfs.spark.jobs.selection import log_dirs
from logfs.spark.options import SELECTIONS, read_options
from logfs.spark.workers import NotOnHost

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Mapping, Sequence

    from pyspark.sql import SparkSession

    from logfs.spark.jobs.export_files import ExportFormat, WrittenFile
    from logfs.spark.jobs.job_runner import Progress
    from logfs.spark.jobs.selection import Paths
    from logfs.spark.options import ReadOptions
    from logfs.spark.splits import SplitPart

MODES = ("errorifexists", "append", "overwrite")
SUCCESS = "_SUCCESS"
_TEMPORARY = "_temporary"


@dataclass(frozen=True)
class Exported:
    """The result of an export: the number of files, records and bytes that it wrote."""

    files: int
    records: int
    size_bytes: int


def export(
    spark: SparkSession,
    paths: Paths,
    target: str | os.PathLike[str],
    *,
    format: str = "parquet",
    topics: Iterable[str] | None = None,
    options: Mapping[str, str] | None = None,
    compression: str | None = None,
    mode: str = "errorifexists",
    progress: Progress | None = None,
) -> Exported:
    """Write the records of log directories to files below `target`, by topic and UTC date.

    `format` is "parquet" (the columns of `format("logfs")` with headers; the topic is in the path) or "json"
    (envelopes, one per line). `options` are those of a read: start and end, `isolationLevel`, and `assign` or
    `subscribePattern` instead of `topics`. `compression` is zstd (the default for Parquet), none (the default for
    JSON), gzip, or for Parquet also snappy and lz4. With `mode` "append", files of an earlier export stay. With
    "overwrite", the new files replace all folders `topic=…` in `target` at the end of the job. With "errorifexists",
    `target` must be empty or absent. `progress` is called with (bytes of logs done, bytes in all).

    Blocks until the job has ended. Raises `InvalidSetting` for wrong arguments and options, `FileExistsError` if the
    mode does not allow the contents of `target` or a file of this export is there already, `DataLoss`, and
    `JobFailed`.
    """
    form = format_of(format, compression)
    folder = _folder(target, mode)
    try:
        chosen = read_options(_read_options(paths, topics, options), streaming=False)
        planned = BatchReader(kafka_schema(headers=True), chosen).partitions()
    except ValueError as error:
        raise InvalidSetting(str(error)) from None
    works = [WorkItem(part, part.segment_split.bytes) for split in planned for part in split.parts]
    temporary = folder / _TEMPORARY / uuid.uuid4().hex
    temporary.mkdir(parents=True)
    try:
        task = _ExportTask(str(temporary), form, chosen)
        written = [
            each for files in run(spark, "logfs export", works, task, progress) for each in files
        ]
        _publish(folder, temporary, written, replaces=mode == "overwrite")
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
        with suppress(OSError):
            # The folder is not empty while another export into the same target runs.
            temporary.parent.rmdir()
    return Exported(
        len(written),
        sum(each.records for each in written),
        sum(each.size_bytes for each in written),
    )


def _folder(target: str | os.PathLike[str], mode: str) -> Path:
    """Return the target as a path. Raises `InvalidSetting`, and `FileExistsError` if `mode` forbids its contents."""
    if mode not in MODES:
        raise InvalidSetting(f"mode {mode!r}: give one of {', '.join(MODES)}")
    text = str(target).removeprefix("file://")
    if "://" in text:
        raise InvalidSetting(f"{text}: give a directory that all machines have under the same path")
    folder = Path(text).absolute()
    if mode == "errorifexists" and folder.exists() and any(folder.iterdir()):
        raise FileExistsError(
            errno.EEXIST,
            "the directory is not empty: give mode append or overwrite, or another directory",
            str(folder),
        )
    return folder


def _read_options(
    paths: Paths, topics: Iterable[str] | None, options: Mapping[str, str] | None
) -> CaseInsensitiveDict:
    found = CaseInsensitiveDict({**(options or {}), "paths": json.dumps(log_dirs(paths))})
    if topics is not None:
        found["subscribe"] = ",".join(topics)
    elif not any(name in found for name in SELECTIONS):
        found["subscribePattern"] = "."
    return found


@dataclass(frozen=True)
class _ExportTask:
    """The function of a task: write the records of a part of a log, and return the files."""

    directory: str
    form: ExportFormat
    options: ReadOptions

    def __call__(self, part: SplitPart) -> list[WrittenFile]:
        if not Path(self.directory).is_dir():
            raise NotOnHost.because(f"{self.directory}: the target of the export does not exist")
        name = TopicPartition(part.topic, part.partition)
        files = Files(Path(self.directory), self.form, name)
        for columns in sized(splits.columns(part, self.options)):
            for date, of_date in by_date(columns):
                files.write(date, of_date)
        return files.close()


def _publish(
    folder: Path, temporary: Path, written: Sequence[WrittenFile], *, replaces: bool
) -> None:
    """Move the written files to their places, then write `_SUCCESS`.

    If a move fails, the moves before it are undone. A `_SUCCESS` of an earlier export stays removed in that case.
    """
    disk = Disk()
    moved: list[tuple[Path, Path]] = []

    def move(old: Path, new: Path) -> None:
        if new.exists():
            raise FileExistsError(
                errno.EEXIST,
                "these records were exported before: use startingOffsets to set where to begin",
                str(new),
            )
        new.parent.mkdir(parents=True, exist_ok=True)
        disk.rename_unsynced(old, new)
        moved.append((old, new))

    try:
        (folder / SUCCESS).unlink(missing_ok=True)
        if replaces:
            for old in sorted(folder.glob("topic=*")):
                move(old, temporary / "replaced" / old.name)
        for each in written:
            move(Path(each.path), folder / each.place)
    except BaseException:
        for old, new in reversed(moved):
            with suppress(OSError):
                disk.rename_unsynced(new, old)
        raise
    dates = {(folder / each.place).parent for each in written}
    for directory in dates | {date.parent for date in dates} | {folder}:
        disk.sync_directory(directory)
    disk.replace_file(folder / SUCCESS, b"")
