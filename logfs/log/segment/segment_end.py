"""The end of a segment: the size in bytes, the next offset and the text size up to which readers see the segment."""

from __future__ import annotations

from typing import NamedTuple

from logfs.format.text.rendering import TextSize

# The text size of a segment that has not been measured yet.
UNMEASURED = TextSize(-1, -1, -1)


class SegmentEnd(NamedTuple):
    """The end of a segment: its length in bytes, the offset after the segment, and its text size.

    An end is replaced as a whole, so its three fields are always of the same moment.
    """

    size_bytes: int
    next_offset: int
    text: TextSize
