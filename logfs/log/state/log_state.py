"""The state of a log at one moment, as readers see it."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

    from logfs.log.segment.batch_iterator import Damage
    from logfs.log.segment.segment import Segment


class LogState(NamedTuple):
    """The state of a log at one moment. It is immutable: a log that changes publishes a new state, by one assignment.

    `segments` are in order, and there is at least one. Records with offsets in [log_start_offset, log_end_offset) can
    be read. `stable_end` is the first offset of the oldest open transaction, or the log end offset if none is open.
    It is None if it has not been computed yet, as for a log that another process writes. It is below the log start
    offset if the first records of the transaction were deleted. All transactions aborted below `stable_end` are in
    the transaction indexes of `segments`. `last_timestamp` is the greatest timestamp of the last batch (ms), -1 if it
    is not known.

    `generation` grows when the log changes so that bytes of a text view may differ from those read before, as by a
    truncation; an append changes no such bytes. `truncations` are the offsets to which this process has truncated the
    log since it was opened, the oldest truncation first.

    For example, a log of two segments at the offsets 0 and 100 that ends at 130, with a transaction open since 120,
    has `log_end_offset` 130 and `stable_end` 120.
    """

    segments: tuple[Segment, ...]
    log_start_offset: int
    log_end_offset: int
    stable_end: int | None
    last_timestamp: int
    generation: int = 0
    truncations: tuple[int, ...] = ()

    def segments_from(self, offset: int) -> Sequence[Segment]:
        """Return the segment that holds `offset` and all after it; if `offset` is below all, return all segments."""
        return segments_from(self.segments, offset)

    @property
    def local_segments(self) -> Sequence[Segment]:
        """The segments in the partition directory, which follow those that are only in an object store."""
        if not self.segments[0].is_tiered:
            return self.segments
        first = bisect_left(self.segments, True, key=lambda segment: not segment.is_tiered)
        return self.segments[first:]

    @property
    def size_bytes(self) -> int:
        """The size of all .log files in bytes."""
        return sum(segment.size_bytes for segment in self.segments)

    @property
    def local_bytes(self) -> int:
        """The size of the .log files in the partition directory in bytes."""
        return sum(segment.size_bytes for segment in self.local_segments)

    @property
    def damaged(self) -> Sequence[Damage]:
        """The known damage of all segments, in order: bytes of .log files, and offsets, that cannot be read."""
        return [damage for segment in self.segments for damage in segment.damaged]

    @property
    def last_stable_offset(self) -> int:
        """`stable_end`, but not below the log start offset (kafka-storage 9.4)."""
        return max(self.as_committed().log_end_offset, self.log_start_offset)

    def as_committed(self) -> LogState:
        """Return the state as readers of committed records see it: it ends at `stable_end`, which must be known."""
        stable = self.stable_end
        assert stable is not None, "the caller has computed it"
        return self if stable == self.log_end_offset else self._replace(log_end_offset=stable)


def segments_from(segments: Sequence[Segment], offset: int) -> Sequence[Segment]:
    """Return the segment that holds `offset` and all after it; if `offset` is below all, return all segments."""
    number = bisect_right(segments, offset, key=lambda segment: segment.base_offset)
    return segments[max(number - 1, 0) :]
