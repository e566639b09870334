"""A roll: the active segment is sealed and the next one begins, or everything is as it was (kafka-storage 4.2)."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

from logfs.errors import LogDirFailed
from logfs.log.segment import Segment

if TYPE_CHECKING:
    from logfs.log.partition import Partition


def begin_next(partition: Partition, now_ms: int) -> Segment:
    """Seal the active segment, and make the one behind it, with the snapshot of the producers at its base.

    Raises `OSError`, after which the files are those that there were, and the next append makes the segment active
    again: a file of a next segment that stayed would hold the same offsets as what is appended to this one.
    """
    sealed, snapshots = partition.active, partition.snapshots
    base_offset = sealed.next_offset
    segment = Segment(partition.disk, partition.directory, base_offset)
    try:
        segment.activate(partition.config, now_ms, create=True)
        snapshots.take(base_offset, partition.producers)
        sealed.seal(base_offset)
    except LogDirFailed:
        raise
    except OSError:
        try:
            snapshots.drop(base_offset)
            segment.discard()
        except LogDirFailed:
            raise
        except OSError as second:
            raise OSError(errno.EIO, f"a roll that failed could not be undone: {second}") from None
        raise
    return segment
