"""Arguments and results of a round of compaction, without the slow import of `cleaner`, which runs it."""

from __future__ import annotations

from typing import NamedTuple

from logfs.errors import LogfsError


class CleaningAborted(LogfsError):
    """The round has ended early, because the log was changed, closed or deleted meanwhile.

    The segments that the round had replaced before stay replaced; it changes no other segments.
    """


class Dirty(NamedTuple):
    """The part of a log whose keys a round of compaction notes: offsets [first_dirty, first_uncleanable).

    `first_uncleanable` is the base offset of a segment. The round leaves that segment and all later ones alone, even
    if `first_dirty` is above `first_uncleanable`.
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
