"""Arguments and results of a round of compaction, without the slow import of `cleaner`, which runs it."""

from __future__ import annotations

from typing import NamedTuple

from logfs.errors import LogfsError


class CleaningAborted(LogfsError):
    """The log was truncated, shortened, closed or deleted during the round. The rest of the log is unchanged."""


class Dirty(NamedTuple):
    """The part of a log to clean: offsets from `first_dirty` up to `first_uncleanable`, the base offset of a segment.

    Segments from `first_uncleanable` on are left alone, even if it is below `first_dirty`.
    """

    first_dirty: int
    first_uncleanable: int


class Cleaned(NamedTuple):
    """The result of a round: the log is clean below the offset `first_dirty`.

    The bytes (of .log files) and the numbers of segments are those of the cleaned part, before and after the round.
    `map_share` is how full the map of keys was, from 0 to 1.
    """

    first_dirty: int
    bytes_before: int
    bytes_after: int
    segments_before: int
    segments_after: int
    map_share: float
