"""Segments that have left a log, by retention or compaction, until their files go (kafka-storage 7)."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, NamedTuple

from logfs.format import names

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from logfs.log.files import Disk
    from logfs.log.segment import Segment
    from logfs.log.snapshots import Snapshots


# Instead of a base offset: of a segment whose files have names that nobody else will want.
_NO_NAME = -1


class Dropped(NamedTuple):
    """A segment that has left the log: when its files go, who may still read them, and where they are."""

    due_ms: int
    base_offset: int
    segment: weakref.ref[Segment]
    paths: Sequence[Path]


class DroppedSegments:
    """The dropped segments of one partition. Not for two threads at a time."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._dropped: list[Dropped] = []
        self._renamed = 0

    @property
    def segments(self) -> list[Segment]:
        """Those that somebody still reads."""
        found = [gone.segment() for gone in self._dropped]
        return [segment for segment in found if segment is not None]

    def move_away(
        self, segments: Sequence[Segment], snapshots: Snapshots, due_ms: int, kept: int = -1
    ) -> None:
        """Rename segments' files, and snapshots but for that at offset `kept`, until their delay is over.

        The directory is for the caller to sync.
        """
        bases = {segment.base_offset for segment in segments}
        self._make_way([gone for gone in self._dropped if gone.base_offset in bases])
        for segment in segments:
            moved = segment.move(names.DELETED)
            if segment.base_offset != kept:
                moved += snapshots.move_away(segment.base_offset)
            gone = Dropped(due_ms, segment.base_offset, weakref.ref(segment), moved)
            self._dropped.append(gone)

    def are_due(self, now_ms: int) -> bool:
        """Whether the delay of any is over."""
        return any(gone.due_ms <= now_ms for gone in self._dropped)

    def remove(self, now_ms: int) -> int:
        """Unlink the files whose delay is over, of how many segments; those that somebody reads stay until then.

        To keep them open instead would take as much of the disk, and more descriptors than a process has, once a
        reader is far behind.
        """
        due = [gone for gone in self._dropped if gone.due_ms <= now_ms and not gone.segment()]
        self._unlink(due)
        return len(due)

    def _make_way(self, before: Sequence[Dropped]) -> None:
        """Free the names of segments, for they are needed again: who is still read gets others, the rest goes."""
        for gone in before:
            segment = gone.segment()
            if segment is not None:
                self._renamed += 1
                moved = segment.move(f".{self._renamed}{names.DELETED}")
                self._dropped.append(gone._replace(base_offset=_NO_NAME, paths=moved))
        self._unlink(before)

    def _unlink(self, due: Sequence[Dropped]) -> None:
        for gone in due:
            for path in gone.paths:
                self._disk.unlink(path)
            self._dropped.remove(gone)
