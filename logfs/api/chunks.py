"""Records of partitions, read a chunk at a time, for those who follow and for members of groups."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias, TypeVar

from logfs.errors import LogfsError

if TYPE_CHECKING:
    from collections.abc import Callable, MutableSequence

    from logfs.api.partition import Partition
    from logfs.format.batches.record import Record
    from logfs.log.read.reader import Reader

R = TypeVar("R")

# The name of a partition, the offset after a record, and the record. The last entry of a chunk has no record, because
# records that readers do not see may follow the last one.
Entry: TypeAlias = tuple[str, int, R | None]

# How many offsets of a partition are read at a time.
_OFFSETS = 1000


def add_chunk(
    entries: MutableSequence[Entry[R]],
    partition: Partition,
    reader: Reader,
    start: int,
    make: Callable[[Partition, Record], R],
) -> bool:
    """Read the next chunk of a partition from offset `start` on, and add its entries; `make` makes what they hold.

    Returns False after an error if there are entries: the caller must not add more, and the next chunk meets the
    error at its start. If there are none, raises the error: `OffsetOutOfRange`, `DamagedRange` or another
    `LogfsError`.
    """
    end = min(reader.log_end_offset, start + _OFFSETS)
    if end <= start:
        return True
    try:
        for record in reader.read(start, end):
            entries.append((partition.name, record.offset + 1, make(partition, record)))
    except LogfsError:
        if not entries:
            raise
        return False
    entries.append((partition.name, end, None))
    return True
