"""Plans the input partitions of a query in the driver, and reads their records in tasks.

The value of an input partition (a term of Spark, one for each task) is a list of splits: ranges of offsets, each in
one segment (`SegmentSplit`). Large segments are divided between tasks, if possible at entries of the offset index.
Small segments share a task.
"""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING, TypeVar

from pyspark.sql.datasource import InputPartition

from logfs.errors import Corrupt, LogfsError
from logfs.format.base.names import parse_directory
from logfs.format.encoding.arrow_batches import ArrowRun, grouped
from logfs.format.files import checkpoint
from logfs.log.disk.bucket_path import as_path
from logfs.log.disk.disk import Gone
from logfs.log.remote.disks import read_only_disk
from logfs.log.scan import scan_split
from logfs.log.segment.batch_iterator import DamagedRange
from logfs.spark import workers
from logfs.spark.filters import PushedFilters
from logfs.spark.workers import NotOnHost
from logfs.store.directory.log_dir import RECOVERY_POINTS
from logfs.store.directory.recognition import log_dirs_of
from logfs.store.store import Store

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    import pyarrow as pa

    from logfs.format.base.names import TopicPartition
    from logfs.format.batches.columns import Columns
    from logfs.format.encoding.arrow_batches import BatchMaker
    from logfs.log.disk.disk import Disk
    from logfs.log.read.reader import Reader
    from logfs.log.scan.scan_split import SegmentSplit
    from logfs.log.scan.segment_descriptor import SegmentDescriptor
    from logfs.spark.options import ReadOptions

logger = logging.getLogger(__name__)

_Item = TypeVar("_Item")

# The least and the greatest size of an input partition if the options splitBytes and minPartitions are not given.
# Smaller ones are not worthwhile: starting a task takes as long as reading some MB.
_LEAST_BYTES = 4 << 20
_MOST_BYTES = 128 << 20


class DataLoss(LogfsError):
    """Offsets that a query must read were deleted, are past the log end, or moved to another log directory."""


class NotStable(LogfsError):
    """Offsets that a query must read with read_committed are at or above the last stable offset of their log."""


def report_loss(
    message: str, *, fail: bool, otherwise: str = "to continue without the lost records"
) -> None:
    """Raise `DataLoss` if `fail` (the option failOnDataLoss) is true, else log a warning.

    `message` says what is lost. `otherwise` says what the query does if the option is false. The text of the error is
    `message`, then "set the option failOnDataLoss to false", then `otherwise`.
    """
    if fail:
        raise DataLoss(f"{message}; set the option failOnDataLoss to false {otherwise}")
    logger.warning("%s; the option failOnDataLoss is set to false %s", message, otherwise)


def inside_log(
    name: TopicPartition, reader: Reader, first: int, end: int, *, fail: bool, where: str = ""
) -> tuple[int, int]:
    """Return the part of the range [first, end) that is inside the log, and report the other offsets as a loss.

    Offsets are lost if they are below the log start offset, or at or above the log end offset. Offsets that
    compaction has removed are not lost. If no offset is inside the log, the returned range is empty: its start is at
    or above its end. A loss raises `DataLoss` if `fail` is true, otherwise it is logged as a warning. `where` is
    appended to the text of the error or warning: a task of Spark passes its host's name and the reason why it could
    not open the file of its split. Raises `NotStable` for offsets in the log that a reader of committed records must
    not see yet.
    """
    start, log_end = reader.log_start_offset, reader.log.state.log_end_offset
    stable = reader.log_end_offset
    if stable < min(end, log_end) and first < end:
        raise NotStable(
            f"offsets {max(first, stable)} to {min(end, log_end) - 1} of {name.directory} are at or above its last "
            f"stable offset, {stable}, because a transaction is open: end below it, run the query again when the "
            f"transaction has ended, or read with isolationLevel=read_uncommitted{where}"
        )
    if first < start:
        lost = f"offsets {first} to {min(end, start) - 1} of {name.directory}"
        why = "retention or delete-records deleted them"
        report_loss(
            f"{lost} are no longer in the log ({why}; it starts at {start}){where}", fail=fail
        )
    if max(first, end) > log_end:
        lost = f"offsets {max(first, log_end)} to {max(end, first + 1) - 1} of {name.directory}"
        why = "it was truncated, or deleted and recreated"
        report_loss(
            f"{lost} are not in the log, which ends at {log_end} ({why}?){where}", fail=fail
        )
    return max(first, start), min(end, log_end)


def plan(
    wanted: Sequence[tuple[TopicPartition, int, int]],
    readers: Mapping[TopicPartition, Reader],
    options: ReadOptions,
) -> list[InputPartition]:
    """Divide the offsets that a query reads into input partitions, and return these in the order of `wanted`.

    `wanted` has (partition, first, end) for each range of offsets [first, end) to read. The number and the size of
    the input partitions depend on `options`. By default, there are about as many as the driver has processors, but
    each has about 4 to 128 MiB. Raises `DataLoss` if failOnDataLoss is true and records are deleted meanwhile, and
    the errors of `Reader.until_settled`.
    """

    fail = options.fail_on_data_loss

    def splits_of(split_bytes: int, records: int | None = None) -> list[SegmentSplit]:
        return [
            split
            for name, first, end in wanted
            for split in _splits(name, readers[name], first, end, split_bytes, records, fail=fail)
        ]

    split_bytes = options.split_bytes or _MOST_BYTES
    splits = splits_of(split_bytes)
    total = sum(split.bytes for split in splits)
    if options.split_bytes is None:
        each = total // len(os.sched_getaffinity(0))
        split_bytes = min(max(each, _LEAST_BYTES), _MOST_BYTES)
    if options.min_partitions is not None:
        split_bytes = min(split_bytes, max(total // options.min_partitions, 1))
    if any(split.bytes > split_bytes for split in splits):
        splits = splits_of(split_bytes)
    limits = [options.max_records_per_partition]
    if options.min_partitions is not None and len(splits) < options.min_partitions:
        records = sum(split.end_offset - split.first_offset for split in splits)
        limits.append(max(-(-records // options.min_partitions), 1))
    most = min((limit for limit in limits if limit is not None), default=None)
    if most is not None and splits:
        # Each task has only one range of offsets, as with maxRecordsPerPartition in Kafka's source.
        return [InputPartition([split]) for split in splits_of(split_bytes, most)]
    groups = [*packed(splits, lambda split: split.bytes, split_bytes)]
    # A split ends at the end of a batch, so it may exceed `split_bytes`, and there may be fewer groups than
    # `min_partitions`. Divide the group with the most splits until there are enough groups.
    while groups and len(groups) < (options.min_partitions or 0):
        largest = max(groups, key=len)
        if len(largest) < 2:
            break
        at = groups.index(largest)
        groups[at : at + 1] = [largest[: len(largest) // 2], largest[len(largest) // 2 :]]
    # Never return an empty list: Spark would then call `read` with an input partition that has no list of splits.
    return [InputPartition(group) for group in groups or [[]]]


def _splits(
    name: TopicPartition,
    reader: Reader,
    first: int,
    end: int,
    split_bytes: int,
    records: int | None,
    *,
    fail: bool,
) -> list[SegmentSplit]:
    found = planned(reader, first, end, split_bytes, records)
    # Report records that were deleted while the splits were planned: they are in none of the splits.
    inside_log(name, reader, first, end, fail=fail)
    return found


def planned(
    reader: Reader, first: int, end: int, split_bytes: int, records: int | None = None
) -> list[SegmentSplit]:
    """Divide the part of [first, end) that is in the log into ranges, each in one segment (`SegmentSplit`).

    A range has about `split_bytes` bytes and, if `records` is given, at most `records` offsets. If a file leaves the
    log meanwhile, the reader is refreshed, and the ranges are planned again. Raises the errors of
    `Reader.until_settled`.
    """

    def plan() -> list[SegmentSplit]:
        start = max(first, reader.log_start_offset)
        found = scan_split.plan(reader, start, end, split_bytes=split_bytes)
        if records is not None:
            found = (part for some in found for part in scan_split.divide(some, records))
        return list(found)

    return reader.until_settled(plan)


def packed(
    items: Iterable[_Item], size_of: Callable[[_Item], int], limit_bytes: int
) -> Iterator[list[_Item]]:
    """Yield the items in groups of at most `limit_bytes`. An item that is larger is a group of its own.

    `size_of` returns the size of an item in bytes. The order is kept, and groups are never empty.
    """
    group: list[_Item] = []
    total = 0
    for item in items:
        size = size_of(item)
        if group and total + size > limit_bytes:
            yield group
            group, total = [], 0
        group.append(item)
        total += size
    if group:
        yield group


# The functions below run in the tasks.


def read(
    splits: Sequence[SegmentSplit],
    maker: BatchMaker,
    options: ReadOptions,
    pushed: PushedFilters | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yield the records of splits as Arrow batches: one split after the other, each by offset.

    Records whose timestamps do not pass the filters in `pushed` are left out; None stands for no filters. Raises the
    errors of the function `columns`; an `OSError` has the name of this host in its text.
    """
    pushed = pushed or PushedFilters()
    with workers.short_errors(), workers.naming_host():
        runs = (
            ArrowRun(*parse_directory(split.segment.partition), pushed.select(found))
            for split in splits
            for found in columns(split, options, pushed.since_ms)
        )
        for group in grouped(runs):
            yield maker.batch(group)
    workers.freeze_loaded_objects("read")


def columns(
    split: SegmentSplit, options: ReadOptions, since_ms: int | None = None
) -> Iterator[Columns]:
    """Yield the records of a split, in the order of their offsets.

    If `since_ms` is given, batches whose timestamps are all below it are left out. Raises `DataLoss` for records that
    were deleted after the query was planned, `Corrupt` for damage, `NotOnHost` if this machine does not have the
    planned files, and `OSError`. With failOnDataLoss=false, deleted and damaged records are skipped with a warning,
    but a partition that was moved still raises `DataLoss`.
    """
    try:
        # `scan_split.read` opens the file at once. Later, the file may be renamed or removed without harm to this
        # read.
        read = scan_split.read(split, since_ms)
    except Gone as gone:
        logger.info("%s; reading its records from the files that the log has now", gone)
        yield from _columns_again(split, gone, options, since_ms)
        return
    for found in read:
        if isinstance(found, DamagedRange):
            if options.fail_on_data_loss:
                raise found
            logger.warning("%s; failOnDataLoss is set to false to continue without it", found)
        else:
            yield found


def _columns_again(
    split: SegmentSplit, gone: Gone, options: ReadOptions, since_ms: int | None
) -> Iterator[Columns]:
    """Yield the records of a split from the current files of the log, after the planned file could not be opened.

    Compaction may have replaced the planned file, or retention may have deleted it. `gone` is the error that the
    attempt to open the planned file raised.
    """
    fail = options.fail_on_data_loss
    directory = as_path(split.segment.directory)
    where = f"; host {workers.host()}: {gone}"
    if split.segment.tiered is not None:
        # Objects are never replaced, so the records are nowhere else.
        report_loss(
            f"offsets {split.first_offset} to {split.end_offset - 1} of {directory.name} are no longer in the object "
            f"store{where}",
            fail=fail,
        )
        return
    if _is_deleted(split.segment, gone):
        for log_dir in log_dirs_of(options.paths):
            other = as_path(log_dir) / directory.name
            if other != directory and other.is_dir():
                # The records still exist and must not be skipped, so fail even with failOnDataLoss=false.
                raise DataLoss(
                    f"{directory}: the partition moved to {log_dir} after the query was planned{where}; run the "
                    "query again"
                )
        report_loss(
            f"{directory}: the partition was deleted after the query was planned{where}", fail=fail
        )
        return
    with Store(directory.parent, read_only=True, only=directory.name) as store:
        partition = store[directory.name]
        # If the segment is still in the log, only this machine lacks the segment's file. For a bucket, this
        # conclusion would be wrong: an outdated listing may still show a deleted segment.
        if not partition.disk.is_remote and not split.segment.has_left(partition):
            raise NotOnHost.because(gone)
        reader = partition.isolated(options.isolation)
        first, end = split.first_offset, split.end_offset
        first, end = inside_log(partition.name, reader, first, end, fail=fail, where=where)
        if first < end:
            split_bytes = options.split_bytes or _MOST_BYTES
            for found in _splits(partition.name, reader, first, end, split_bytes, None, fail=fail):
                yield from columns(found, options, since_ms)


def _is_deleted(planned: SegmentDescriptor, gone: Gone) -> bool:
    """Whether a partition was deleted, recreated or moved away after the query was planned.

    `planned` is a segment of the partition, and `gone` is the error of the attempt to open its file. The directories
    on this machine are compared with the planned ones by their inode numbers. There are these cases, in this order:

    - The directory of the partition is the planned one: the result is False.
    - The log directory is not the planned one: raises `NotOnHost`, with `gone` as the reason.
    - Another directory has the partition's name: the result is True.
    - No directory has this name, and the checkpoint of recovery points has no entry for the partition: the result
      is True.
    - The checkpoint has an entry, or is missing or damaged, so the partition may exist on other machines: raises
      `NotOnHost`, with `gone` as the reason.
    """
    directory = as_path(planned.directory)
    log_dir = directory.parent
    disk = read_only_disk(log_dir)
    identity = _identity(disk, directory)
    if identity == planned.directory_identity:
        return False
    if _identity(disk, log_dir) != planned.log_dir_identity:
        raise NotOnHost.because(gone)
    if identity is not None:
        return True
    # The directory of the partition is missing. logfs and Kafka remove a deleted partition's entry from the
    # checkpoint of recovery points. So if there is an entry, the partition was not deleted, but is missing on this
    # machine.
    try:
        known = checkpoint.parse_offsets(disk.read_file(log_dir / RECOVERY_POINTS))
    except (FileNotFoundError, Corrupt):
        raise NotOnHost.because(gone) from None
    if parse_directory(directory.name) in known:
        raise NotOnHost.because(gone)
    return True


def _identity(disk: Disk, path: Path) -> int | None:
    """Return the inode number of a directory (in a bucket, `Status.identity`); None if it does not exist."""
    try:
        return disk.stat(path, follow=True).identity
    except (FileNotFoundError, NotADirectoryError):
        return None
