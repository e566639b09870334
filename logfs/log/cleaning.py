"""What a round of compaction is given and gives; `logfs.log.cleaner`, which does it, takes long to import."""

from __future__ import annotations

from typing import NamedTuple

from logfs.errors import LogfsError


class CleaningAborted(LogfsError):
    """The log was truncated, shortened, closed or deleted while it was cleaned: nothing of the rest was changed."""


class Dirty(NamedTuple):
    """What to clean of a log: from offset `first_dirty` up to `first_uncleanable`, which is the base of a segment.

    Segments from the latter on are left alone, even where it is below the former.
    """

    first_dirty: int
    first_uncleanable: int


class Cleaned(NamedTuple):
    """What a round has done: where the log is dirty from now on, and what it had and has in bytes and segments.

    `map_share` is how full its map of keys was, from 0 to 1.
    """

    first_dirty: int
    bytes_before: int
    bytes_after: int
    segments_before: int
    segments_after: int
    map_share: float
