"""Segments that have left a log, by retention or compaction, until their files are removed (kafka-storage 7).

The files stay for `file.delete.delay.ms`, but not beyond a restart: `log/recovery` removes all `.deleted` files when
the partition is loaded for writing. If the process is killed before the files of a dropped segment have this suffix,
recovery removes them if compaction has replaced the segment (kafka-storage 8.8). Otherwise the segment is loaded
again, and retention drops it again.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, NamedTuple

from logfs.format.base import names

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from logfs.log.disk.disk import Disk
    from logfs.log.segment.segment import Segment
    from logfs.log.state.producer_snapshots import ProducerSnapshots


# The `base_offset` of a segment whose files were renamed a second time, to names such as `….log.1.deleted`. No other
# segment needs these names.
_NO_NAME = -1


class DeletedSegment(NamedTuple):
    """A segment that has left the log.

    Its files may be removed from `due_ms` on (ms since the epoch), if no reader holds the segment any more. `paths`
    are the present paths of its files, and of the producer snapshot that was renamed with them, if any. `base_offset`
    is -1 after the files were renamed a second time, because a later segment with the same base offset needed their
    names.
    """

    due_ms: int
    base_offset: int
    segment: weakref.ref[Segment]
    paths: Sequence[Path]


class DeletedSegments:
    """The dropped segments of one partition. Not thread-safe: the caller must make one call at a time."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._dropped: list[DeletedSegment] = []
        self._renamed = 0

    @property
    def segments(self) -> list[Segment]:
        """The dropped segments that a reader still holds."""
        found = [gone.segment() for gone in self._dropped]
        return [segment for segment in found if segment is not None]

    def move_away(
        self, segments: Sequence[Segment], snapshots: ProducerSnapshots, due_ms: int, kept: int = -1
    ) -> None:
        """Add `.deleted` to the names of the segments' files, and of the producer snapshots at their base offsets.

        The snapshot at offset `kept` keeps its name; -1 stands for none. The renamed files may be removed from
        `due_ms` on, in ms since the epoch. If a segment that was dropped earlier has the same base offset, its files
        have these names already. They are then renamed a second time if a reader holds that segment, and removed
        otherwise. The caller must sync the directory.
        """
        bases = {segment.base_offset for segment in segments}
        self._free_names([gone for gone in self._dropped if gone.base_offset in bases])
        for segment in segments:
            moved = segment.rename_suffix(names.DELETED)
            if segment.base_offset != kept:
                moved += snapshots.move_away(segment.base_offset)
            gone = DeletedSegment(due_ms, segment.base_offset, weakref.ref(segment), moved)
            self._dropped.append(gone)

    def are_due(self, now_ms: int) -> bool:
        """Whether the delay of at least one dropped segment has passed."""
        return any(gone.due_ms <= now_ms for gone in self._dropped)

    def remove(self, now_ms: int) -> int:
        """Unlink the files of dropped segments whose delay has passed; return the number of segments removed.

        The files of a segment that a reader holds stay until the reader has released the segment. If they were
        unlinked, they would have to stay open for the reader: no space would be freed, and a reader that is far
        behind would need too many descriptors.
        """
        due = [gone for gone in self._dropped if gone.due_ms <= now_ms and not gone.segment()]
        self._unlink(due)
        return len(due)

    def _free_names(self, before: Sequence[DeletedSegment]) -> None:
        """Free the file names of the dropped segments `before`, for later segments with the same base offsets.

        The files of a segment that a reader holds are renamed a second time, and all others are unlinked.
        """
        for gone in before:
            segment = gone.segment()
            if segment is not None:
                self._renamed += 1
                moved = segment.rename_suffix(f".{self._renamed}{names.DELETED}")
                self._dropped.append(gone._replace(base_offset=_NO_NAME, paths=moved))
        self._unlink(before)

    def _unlink(self, due: Sequence[DeletedSegment]) -> None:
        for gone in due:
            for path in gone.paths:
                self._disk.unlink(path)
            self._dropped.remove(gone)
