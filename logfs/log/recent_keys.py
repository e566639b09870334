"""The keys that a log has seen last: what `ls keys/` shows, at the same cost however long the log is."""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING

from logfs.log.walk import DamagedRange

if TYPE_CHECKING:
    from collections.abc import Iterator

    from logfs.format.batch import Batch
    from logfs.log.reader import Reader
    from logfs.log.segment import Segment

# What is read of the log, from its end back, and how many of its last segments that may concern.
STRETCH_BYTES = 256 << 10
_SEGMENTS = 4


def recent_keys(reader: Reader, limit: int) -> list[bytes]:
    """The keys of the newest records, newest first, at most so many; those whose newest record is null are left out.

    Of the last 256 KiB of the log, to the nearest index entry. Raises `WouldBlock`.
    """
    found: dict[bytes, bool] = {}
    for batch in _newest_batches(reader):
        for record in reversed(list(batch.records())):
            inside = reader.log_start_offset <= record.offset < reader.log_end_offset
            if inside and record.key is not None:
                found.setdefault(record.key, record.value is not None)
    return [key for key, has_value in found.items() if has_value][:limit]


def _newest_batches(reader: Reader) -> Iterator[Batch]:
    """The batches of the last stretch that readers see, the newest first."""
    segments = reader.segments
    shows = reader.shown(segments)
    end, left = reader.log_end_offset, STRETCH_BYTES
    used = [segment for segment in segments if segment.base_offset < end and segment.size_bytes]
    for segment in reversed(used[-_SEGMENTS:]):
        stop = min(end, segment.next_offset)
        start = _start(segment, stop, left)
        batches: list[Batch] = []
        while True:
            try:
                batches.extend(reader.log.batches(start, stop, [segment]))
                break
            except DamagedRange as damage:
                # As the map does, go on behind it.
                start = damage.next_offset
        left -= sum(batch.header.size_bytes for batch in batches)
        yield from (batch for batch in reversed(batches) if shows(batch.header))
        if left <= 0:
            return


def _start(segment: Segment, stop: int, size_bytes: int) -> int:
    """The lowest offset at most so many bytes before `stop`, as far as the sparse index knows; always below it."""
    last = segment.position_of(stop - 1)
    offsets = range(segment.base_offset, stop - 1)
    return segment.base_offset + bisect_left(
        offsets, last - size_bytes + 1, key=segment.position_of
    )
