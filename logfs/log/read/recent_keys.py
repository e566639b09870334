"""The keys of the newest records, for `ls keys/`, at a cost that does not depend on the length of the log."""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING

from logfs.errors import Corrupt
from logfs.log.segment.batch_iterator import DamagedRange

if TYPE_CHECKING:
    from collections.abc import Iterator

    from logfs.format.batches.batch import Batch
    from logfs.log.read.reader import Reader
    from logfs.log.segment.segment import Segment
    from logfs.log.state.log_state import LogState

# About how many bytes at the end of the log are read.
TAIL_BYTES = 256 << 10
# At most this many segments are read.
_SEGMENTS = 4


def recent_keys(reader: Reader, limit: int) -> list[bytes]:
    """Return at most `limit` keys of the newest records, newest first, without keys whose newest value is null.

    Only about the last 256 KiB of the log are read, from at most four segments. Batches that cannot be decoded are
    left out, as in the key index. Raises `WouldBlock` in a thread that must not wait, and `OSError`.
    """
    found: dict[bytes, bool] = {}
    state = reader.state
    for batch in _newest_batches(reader, state):
        try:
            records = list(batch.records())
        except Corrupt:
            continue
        for record in reversed(records):
            inside = state.log_start_offset <= record.offset < state.log_end_offset
            if inside and record.key is not None:
                found.setdefault(record.key, record.value is not None)
    return [key for key, has_value in found.items() if has_value][:limit]


def _newest_batches(reader: Reader, state: LogState) -> Iterator[Batch]:
    """Yield the batches that readers see in about the last `TAIL_BYTES` of the log, the newest first."""
    shows = reader.shown(state)
    end, left = state.log_end_offset, TAIL_BYTES
    used = [
        segment for segment in state.segments if segment.base_offset < end and segment.size_bytes
    ]
    for segment in reversed(used[-_SEGMENTS:]):
        stop = min(end, segment.next_offset)
        start = _start(segment, stop, left)
        batches: list[Batch] = []
        while True:
            try:
                batches.extend(reader.batches(start, stop, state))
                break
            except DamagedRange as damage:
                # Continue after the damage: the key index skips it, too.
                start = damage.next_offset
        left -= sum(batch.header.size_bytes for batch in batches)
        yield from (batch for batch in reversed(batches) if shows(batch.header))
        if left <= 0:
            return


def _start(segment: Segment, stop: int, size_bytes: int) -> int:
    """Return an offset such that about `size_bytes` bytes of batches lie between it and the offset `stop`."""
    last = segment.position_of(stop - 1)
    offsets = range(segment.base_offset, stop - 1)
    return segment.base_offset + bisect_left(
        offsets, last - size_bytes + 1, key=segment.position_of
    )
