"""Rolling: seal the active segment and begin the next one, or change nothing (kafka-storage 4.2)."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

from logfs.errors import LogDirFailed
from logfs.log.segment import Segment

if TYPE_CHECKING:
    from logfs.log.partition import Partition


def begin_next(partition: Partition, now_ms: int) -> Segment:
    """Seal the active segment and return the next one, made together with the producer snapshot at its base offset.

    Raises `OSError`. Unless it is `LogDirFailed`, or says that the roll could not be undone, the files are as before,
    and the next append makes the old segment active again. A file of the next segment that stayed would hold the same
    offsets as later appends to the old segment.
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
            raise OSError(errno.EIO, f"a failed roll could not be undone: {second}") from None
        raise
    return segment
