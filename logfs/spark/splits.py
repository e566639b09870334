"""What each task reads: records by offset, cut at the entries of the indexes, small segments packed together."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from pyspark.sql.datasource import InputPartition

from logfs.errors import LogfsError
from logfs.log import pieces
from logfs.log.files import Gone
from logfs.log.walk import DamagedRange
from logfs.spark import workers
from logfs.spark.arrow import sized
from logfs.spark.filters import Pushed
from logfs.store.store import Store

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    import pyarrow as pa

    from logfs.format.columns import Columns
    from logfs.format.names import TopicPartition
    from logfs.log.pieces import Piece
    from logfs.log.reader import Reader
    from logfs.spark.arrow import BatchMaker
    from logfs.spark.options import ReadOptions

logger = logging.getLogger(__name__)

_Item = TypeVar("_Item")

# How often a plan is made anew when files leave the log while it is made.
_TRIES = 5


class DataLoss(LogfsError):
    """Offsets that were asked for are in the log no more, or not yet."""


class Part(NamedTuple):
    """A piece of a partition's log."""

    topic: str
    partition: int
    piece: Piece


@dataclass
class Split(InputPartition):
    """What one task reads, in order."""

    parts: list[Part]

    def __post_init__(self) -> None:
        super().__init__(None)


def report_loss(message: str, *, fail: bool) -> None:
    """Raise `DataLoss`, or only warn where failOnDataLoss is false."""
    if fail:
        raise DataLoss(
            f"{message}; set the option failOnDataLoss to false to go on without what is lost"
        )
    logger.warning("%s; going on without", message)


def inside_log(
    name: TopicPartition, reader: Reader, first: int, end: int, *, fail: bool
) -> tuple[int, int]:
    """What of [first, end) the log still has; what it has no more, or not, is told as a loss.

    Offsets that compaction took, control records and aborted ones are no loss: they are inside the log.
    """
    start, log_end = reader.log_start_offset, reader.log.log_end_offset
    if first < start:
        lost = f"offsets {first} to {min(end, start) - 1} of {name.directory}"
        why = "retention or delete-records took them"
        report_loss(f"{lost} are in the log no more ({why}; it starts at {start})", fail=fail)
    if max(first, end) > log_end:
        lost = f"offsets {max(first, log_end)} to {max(end, first + 1) - 1} of {name.directory}"
        why = "it was truncated, or deleted and made again"
        report_loss(f"{lost} are not in the log, which ends at {log_end} ({why}?)", fail=fail)
    return max(first, start), min(end, log_end)


def plan(
    wanted: Sequence[tuple[TopicPartition, int, int]],
    readers: Mapping[TopicPartition, Reader],
    options: ReadOptions,
) -> list[Split]:
    """Splits of the records [first, end) of each partition, in order. Raises `DataLoss`, `OSError`."""
    piece_bytes = options.split_bytes
    if options.min_partitions is not None:
        total = sum(
            part.piece.bytes
            for name, first, end in wanted
            for part in _parts(name, readers[name], first, end, piece_bytes)
        )
        piece_bytes = min(piece_bytes, max(total // options.min_partitions, 1))
    parts = [
        part
        for name, first, end in wanted
        for part in _parts(name, readers[name], first, end, piece_bytes)
    ]
    most = options.max_records_per_partition
    if most is not None and parts:
        # As in Kafka's source, one range of one partition each.
        cut = (_cut(part, most) for part in parts)
        return [Split([part]) for some in cut for part in some]
    if options.min_partitions is not None and 0 < len(parts) < options.min_partitions:
        records = sum(part.piece.end_offset - part.piece.first_offset for part in parts)
        each = max(-(-records // options.min_partitions), 1)
        return [Split([part]) for some in parts for part in _cut(some, each)]
    groups = packed(parts, lambda part: part.piece.bytes, piece_bytes)
    # Of a plan without splits Spark makes one of its own, of which nothing is known here.
    return [Split(group) for group in groups] or [Split([])]


def _cut(part: Part, records: int) -> Iterator[Part]:
    if part.piece.end_offset - part.piece.first_offset <= records:
        yield part
        return
    for piece in pieces.split(part.piece, records):
        yield part._replace(piece=piece)


def _parts(
    name: TopicPartition, reader: Reader, first: int, end: int, piece_bytes: int
) -> list[Part]:
    for tries_left in range(_TRIES - 1, -1, -1):
        try:
            found = pieces.plan(reader, first, end, piece_bytes=piece_bytes)
            return [Part(name.topic, name.partition, piece) for piece in found]
        except (Gone, FileNotFoundError):
            if not tries_left:
                raise
            reader.refresh()
    raise AssertionError


def packed(
    items: Iterable[_Item], size_of: Callable[[_Item], int], limit_bytes: int
) -> Iterator[list[_Item]]:
    """Neighbours together as long as they are no more bytes than the limit; in order, and no group is empty."""
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


# In the tasks.


def read(
    split: Split, maker: BatchMaker, options: ReadOptions, pushed: Pushed | None = None
) -> Iterator[pa.RecordBatch]:
    """The records of a split as Arrow batches. Raises `DataLoss`, and `Corrupt` for damage."""
    pushed = pushed or Pushed()
    for part in split.parts:
        for found in sized(map(pushed.select, columns(part, options, pushed.since_ms))):
            yield maker.batch(part.topic, part.partition, found)
    workers.settle("read")


def columns(part: Part, options: ReadOptions, since_ms: int | None = None) -> Iterator[Columns]:
    """The records of a part, in order, but for batches before a time. Raises as `read`."""
    try:
        # From here on the file is open, whatever becomes of its name.
        read = pieces.read(part.piece, since_ms)
    except Gone as gone:
        logger.info("%s; looking for its records anew", gone)
        yield from _columns_anew(part, options, since_ms)
        return
    for found in read:
        if isinstance(found, DamagedRange):
            if options.fail_on_data_loss:
                raise found
            logger.warning("%s; going on without", found)
        else:
            yield found


def _columns_anew(part: Part, options: ReadOptions, since_ms: int | None) -> Iterator[Columns]:
    """The same records, where the file has been replaced by compaction or dropped by retention since the plan."""
    piece = part.piece
    log_dir, name = piece.path.parent.parent, piece.path.parent.name
    with Store(log_dir, read_only=True, only=name) as store:
        reader = store[name].isolated(options.isolation)
        first, end = inside_log(
            store[name].name,
            reader,
            piece.first_offset,
            piece.end_offset,
            fail=options.fail_on_data_loss,
        )
        if first < end:
            for found in _parts(store[name].name, reader, first, end, options.split_bytes):
                yield from columns(found, options, since_ms)
