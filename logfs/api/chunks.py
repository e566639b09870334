"""Read the records of partitions a chunk at a time, for `Following` and `Consumer`."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias, TypeVar

from logfs.errors import LogfsError

if TYPE_CHECKING:
    from collections.abc import Callable, MutableSequence

    from logfs.api.partition import Partition
    from logfs.format.batches.record import Record
    from logfs.log.read.reader import Reader

R = TypeVar("R")

# An entry of a chunk: the name of the partition, the offset at which to go on after the entry, and the record. The
# last entry of a chunk has None in place of a record. Its offset is the end of the chunk, which may lie beyond the
# last record, because control records have offsets, too.
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
    """Read up to 1000 offsets of a partition, from `start` on, and append an entry for each record to `entries`.

    An entry is (partition name, offset after the record, item). `make(partition, record)` returns the item. `reader`
    must be a reader of `partition`. After the entries of the records comes one whose item is None, and whose offset
    is the start of the next read. If `start` is at or above the log end, nothing is appended.

    Returns True if the read succeeds. If it fails while `entries` is still empty, raises the error:
    `OffsetOutOfRange`, `DamagedRange` or another `LogfsError`. If it fails when `entries` has entries, of this or of
    other partitions, returns False. The caller must then consume all entries, and call this function again from the
    partition's next offset: this second call raises the error.
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
