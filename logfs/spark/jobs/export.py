"""The job that exports logs to Parquet or JSON files, in folders by topic and date as in Hive and Spark.

    target/topic=orders/date=2021-11-28/part-00000-00000000000000000000.parquet

Tasks write their files under `_temporary`, which readers ignore. The driver moves the files of the successful
attempts to their final paths, and writes `_SUCCESS` last (module `export_commit`). A job that fails leaves no files.
"""

from __future__ import annotations

import errno
import json
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from pyspark.sql.datasource import CaseInsensitiveDict
from pyspark.sql.streaming.datasource import ReadAllAvailable

from logfs.errors import InvalidSetting
from logfs.format.base.names import parse_directory
from logfs.format.batches.columns import concatenate
from logfs.format.encoding.arrow_batches import ArrowRun, grouped
from logfs.spark import splits
from logfs.spark.batch import BatchReader
from logfs.spark.jobs.export_commit import OFFSETS, TEMPORARY, Folders, temporary_directory
from logfs.spark.jobs.export_files import Files, by_date, format_of
from logfs.spark.jobs.export_iceberg import CATALOG, IcebergTables, check_directory
from logfs.spark.jobs.job_runner import WorkItem, run
from logfs.spark.jobs.selection import log_dirs
from logfs.spark.kafka_schema import kafka_schema
from logfs.spark.known_names import SELECTIONS
from logfs.spark.options import local_path, read_options
from logfs.spark.stream import StreamReader
from logfs.spark.topics import (
    from_json,
    recreated_ids,
    to_json,
    topic_ids_from_json,
    with_former_ids,
)
from logfs.spark.workers import NotOnHost, naming_path

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from pyspark.sql import SparkSession

    from logfs.log.scan.scan_split import SegmentSplit
    from logfs.spark.jobs.export_files import ExportFormat, WrittenFile
    from logfs.spark.jobs.job_runner import Progress
    from logfs.spark.jobs.selection import Paths
    from logfs.spark.options import ReadOptions
    from logfs.spark.topics import OffsetsJson

_Result = TypeVar("_Result")

MODES = ("errorifexists", "append", "overwrite")


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
    values: str = "mixed",
    mode: str = "errorifexists",
    incremental: bool = False,
    progress: Progress | None = None,
) -> Exported:
    """Write the records of log directories to files below `target`, by topic and UTC date.

    `format` is one of these:

    - "parquet": the columns of `format("logfs")` with headers; the topic is in the path.
    - "json": a JSON object for each record (an envelope, as in `records.jsonl` of a mount), one per line.
    - "iceberg": a table `logfs.TOPIC` for each topic, with the same columns, in a catalog of Apache Iceberg. Such an
      export is always incremental, and atomic for each table.

    `options` are those of a read, such as its start and end (an incremental export has no end), `isolationLevel`, and
    `assign` or `subscribePattern` instead of `topics`. `compression` is none, gzip or zstd, and for the formats other
    than JSON also snappy or lz4. The default is none for JSON, and zstd for the other formats. `values` says how
    keys, values and headers are written to JSON: "mixed" (strings, and objects with base64 for bytes that are not
    UTF-8), "text" (only strings; bytes that are not UTF-8 are an error) or "base64" (only objects).

    With `mode` "append", files of earlier exports stay. With "overwrite", the new files replace those of the exported
    partitions at the end of the job. With "errorifexists", `target` must be empty or absent; for an incremental
    export, it may also hold earlier incremental exports. An incremental export continues where the last one into
    `target` ended, and reads new partitions from their log start. With "overwrite", it ignores the earlier exports.

    `progress` is called with (bytes of logs done, total bytes). Blocks until the job has ended. Raises
    `InvalidSetting` for wrong arguments and options, `FileExistsError` if `mode` does not allow the present contents
    of `target`, or if a file of this export exists already, `BlockingIOError` if another incremental export into
    `target` is running, `JobFailed`, other kinds of `LogfsError`, and `OSError`.
    """
    form = format_of(format, compression, values)
    incremental = incremental or format == "iceberg"
    anew = mode == "overwrite"
    folder = _folder(target, mode, paths, format)
    asked = _read_options(paths, topics, options)
    if incremental:
        asked.setdefault("startingOffsets", "earliest")
    chosen = _checked(lambda: read_options(asked, streaming=incremental))
    _check_contents(folder, mode, incremental=incremental, is_early=True)
    with (
        temporary_directory(folder, incremental=incremental) as temporary,
        _target(folder, temporary, format) as place,
    ):
        # Again: `temporary_directory` may have completed an export that was killed.
        _check_contents(folder, mode, incremental=incremental)
        _check_format(folder, mode, form)
        if incremental:
            known = place.offsets(chosen.selection, may_be_damaged=anew)
            plan = _checked(lambda: _plan_after(known, chosen, anew=anew))
        else:
            plan = _checked(lambda: _plan(chosen))
        works = [WorkItem(split, split.bytes) for split in plan.splits]
        task = _ExportTask(str(temporary), form, chosen, recreated_ids(plan.offsets or {}))
        done = run(spark, "logfs export", works, task, progress)
        written = [each for files in done for each in files]
        place.publish(written, plan.offsets, chosen.selection if anew else None, plan.begins)
    return Exported(
        len(written),
        sum(each.records for each in written),
        sum(each.size_bytes for each in written),
    )


def _checked(call: Callable[[], _Result]) -> _Result:
    """Return the result of `call`. If it raises `ValueError`, raise `InvalidSetting` with the same message."""
    try:
        return call()
    except ValueError as error:
        raise InvalidSetting(str(error)) from None


@contextmanager
def _target(folder: Path, temporary: Path, format: str) -> Iterator[Folders | IcebergTables]:
    """Yield the object that publishes the files of an export: `IcebergTables` for the format iceberg, else `Folders`.

    `folder` is the target of the export, and `temporary` the directory into which the tasks write. The
    `IcebergTables` are closed at the end of the context.
    """
    if format != "iceberg":
        yield Folders(folder, temporary)
        return
    tables = IcebergTables(folder)
    try:
        yield tables
    finally:
        tables.close()


def _folder(target: str | os.PathLike[str], mode: str, paths: Paths, format: str) -> Path:
    """Check the mode and the target of an export, and return the target as an absolute path.

    Raises `InvalidSetting` for a wrong mode, and for a target that is a URL, a dangling symlink, inside one of the
    log directories or, if the format is iceberg, a path that pyiceberg cannot use.
    """
    if mode not in MODES:
        raise InvalidSetting(f"mode {mode!r}: give one of {', '.join(MODES)}")
    text = local_path(str(target))
    if "://" in text:
        raise InvalidSetting(
            f"{text}: a URL cannot be the target; give a directory with the same path on all machines"
        )
    folder = Path(text).absolute()
    if folder.is_symlink() and not folder.exists():
        raise InvalidSetting(
            f"{folder}: is a symlink to {folder.readlink()}, which does not exist; create that directory, or give "
            "another target"
        )
    for log_dir in map(Path, log_dirs(paths)):
        if folder.resolve().is_relative_to(log_dir.resolve()):
            raise InvalidSetting(
                f"{folder}: is in the log directory {log_dir}; give another directory"
            )
    if format == "iceberg":
        check_directory(folder)
    return folder


def _check_contents(folder: Path, mode: str, *, incremental: bool, is_early: bool = False) -> None:
    """Raise `FileExistsError` if `mode` does not allow the contents of the target; `_temporary` is always allowed.

    An export calls this twice: first with `is_early`, and again after it has completed earlier exports that were
    killed. If the target has `_temporary`, the early call raises nothing: the contents may be those of a killed
    export, which is completed next.
    """
    held = {path.name for path in folder.iterdir()} if folder.exists() else set()
    if mode != "errorifexists" or not held - {TEMPORARY}:
        return
    if is_early and TEMPORARY in held:
        # Do not check yet: an export that was killed may have moved only some of its files. `temporary_directory`
        # moves the rest, and the contents are checked again after that.
        return
    if incremental and held & {OFFSETS, CATALOG}:
        return
    hint = ", and holds no incremental export" if incremental else ""
    raise FileExistsError(
        errno.EEXIST,
        f"the directory is not empty{hint}: give mode append or overwrite, or another directory",
        str(folder),
    )


def _check_format(folder: Path, mode: str, form: ExportFormat) -> None:
    """Raise `FileExistsError` if an earlier export has files of another format, which `mode` does not replace."""
    if mode == "overwrite":
        return
    for path in islice(folder.glob("topic=*/date=*/part-*"), 1):
        is_json = ".jsonl" in path.suffixes
        if is_json != (form.format == "json"):
            kind = "json" if is_json else "parquet"
            raise FileExistsError(
                errno.EEXIST,
                f"holds an export in the format {kind}: give this format, mode overwrite or another directory",
                str(folder),
            )


def _read_options(
    paths: Paths, topics: Iterable[str] | None, options: Mapping[str, str] | None
) -> CaseInsensitiveDict:
    found = CaseInsensitiveDict({**(options or {}), "paths": json.dumps(log_dirs(paths))})
    if topics is not None:
        found["subscribe"] = ",".join(topics)
    elif not any(name in found for name in SELECTIONS):
        found["subscribePattern"] = "."
    return found


class _Plan(NamedTuple):
    """The plan of an export: the ranges of logs that the tasks read, and the offsets of an incremental export.

    `begins` are the offsets at which this export begins, `offsets` those at which the next one begins. Both are None
    if this export is not incremental.
    """

    splits: list[SegmentSplit]
    begins: OffsetsJson | None
    offsets: OffsetsJson | None


def _plan(options: ReadOptions) -> _Plan:
    """Plan an export that is not incremental: of all records that the options select."""
    planned = BatchReader(kafka_schema(headers=True), options).partitions()
    return _Plan([split for each in planned for split in each.value], None, None)


def _plan_after(known: OffsetsJson, options: ReadOptions, *, anew: bool) -> _Plan:
    """Plan an incremental export, in the same way as a micro-batch of a streaming query.

    `known` are the offsets at which the last export ended. Partitions that are not selected keep these offsets in the
    plan. If `anew` is true, the selected partitions are exported as if there had been no earlier export.
    """
    selected = options.selection
    others = {name: end for name, end in from_json(known).items() if name not in selected}
    ids = topic_ids_from_json(known)
    of_others = {topic: ids[topic] for topic in {name.topic for name in others} & ids.keys()}
    start = {name: end for name, end in from_json(known).items() if name in selected and not anew}
    reader = StreamReader(kafka_schema(headers=True), options)
    try:
        begin = to_json(start, {name.topic: ids[name.topic] for name in start if name.topic in ids})
        begin = begin or reader.initialOffset()
        end = reader.latestOffset(begin, ReadAllAvailable())
        planned = reader.partitions(begin, end)
    finally:
        reader.stop()
    begins, offsets = (
        to_json({**others, **from_json(each)}, {**of_others, **topic_ids_from_json(each)})
        for each in (begin, end)
    )
    offsets = with_former_ids(offsets, known)
    return _Plan([split for each in planned for split in each.value], begins, offsets)


@dataclass(frozen=True)
class _ExportTask:
    """The function that tasks call for a range of a log: it writes the records to files, and returns the files.

    `topic_ids` has the id of each recreated topic. The offsets of such a topic begin again, so the names of its files
    contain the id, unless the format is iceberg.
    """

    directory: str
    form: ExportFormat
    options: ReadOptions
    topic_ids: dict[str, str]

    def __call__(self, split: SegmentSplit) -> list[WrittenFile]:
        if not Path(self.directory).is_dir():
            raise NotOnHost.because(f"{self.directory}: the target of the export does not exist")
        name = parse_directory(split.segment.partition)
        files = Files(Path(self.directory), self.form, name, self.topic_ids.get(name.topic))
        runs = (ArrowRun(*name, columns) for columns in splits.columns(split, self.options))
        for group in grouped(runs):
            columns = concatenate([each.columns for each in group])
            for date, of_date in by_date(columns, self.form.first_day):
                with naming_path(self.directory):
                    files.write(date, of_date)
        with naming_path(self.directory):
            return files.close()
