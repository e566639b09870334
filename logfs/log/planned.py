"""Segments as they were when a job was planned, for processes that have only their files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from logfs.format.text import NO_TEXT
from logfs.log.files import ReadOnlyDisk
from logfs.log.index import TimeEntry
from logfs.log.segment import Segment, Tip

if TYPE_CHECKING:
    from collections.abc import Iterator

    from logfs.log.reader import Reader


@dataclass(frozen=True)
class PlannedSegment:
    """What a reader must know of a segment; it can be pickled.

    `next_offset` is the one behind it, and `size_bytes` how far its log was valid when it was planned.
    """

    directory: str
    base_offset: int
    next_offset: int
    size_bytes: int
    is_last: bool
    gaps: bool

    @property
    def partition(self) -> str:
        """The name of its partition's directory."""
        return Path(self.directory).name

    def open(self) -> Segment:
        """The segment, for reading; close it after use. Its files open at the first use, if they are still there."""
        segment = Segment(ReadOnlyDisk(), Path(self.directory), self.base_offset)
        segment.gaps = self.gaps
        segment.next_base = None if self.is_last else self.next_offset
        segment.resume(Tip(self.size_bytes, self.next_offset, NO_TEXT), TimeEntry(-1, 0))
        return segment


def planned(reader: Reader) -> Iterator[PlannedSegment]:
    """The segments of a partition as they are now, in order."""
    segments = reader.segments
    for segment in segments:
        yield PlannedSegment(
            str(reader.directory),
            segment.base_offset,
            segment.next_offset,
            segment.size_bytes,
            segment is segments[-1],
            segment.gaps,
        )
