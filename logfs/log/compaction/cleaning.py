"""The arguments and results of a round of compaction.

They are not in `cleaner`, which runs the round, because `cleaner` is slow to import.
"""

from __future__ import annotations

from typing import NamedTuple

from logfs.errors import LogfsError


class CleaningAborted(LogfsError):
    """Raised if a round of compaction ends early, because the log was changed, closed or deleted meanwhile.

    Segments that the round has already replaced stay replaced; all other segments are unchanged.
    """


class Dirty(NamedTuple):
    """The offsets [first_dirty, first_uncleanable), from whose records a round of compaction fills its map of keys.

    `first_uncleanable` is the base offset of a segment. The round changes neither this segment nor later ones. The
    range is empty if `first_dirty` is not below `first_uncleanable`: for example, if the log starts within a segment
    that cannot be cleaned yet.
    """

    first_dirty: int
    first_uncleanable: int


class Cleaned(NamedTuple):
    """The result of a round of compaction: the log is clean below the offset `first_dirty`.

    `bytes_before` and `bytes_after` are the sizes of the clean part's .log files before and after the round, and
    `segments_before` and `segments_after` the numbers of its segments. `map_share` is how full the map of keys was,
    from 0 to 1.
    """

    first_dirty: int
    bytes_before: int
    bytes_after: int
    segments_before: int
    segments_after: int
    map_share: float
