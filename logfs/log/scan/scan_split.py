"""Split a log into parts (splits) that other processes read. A process needs only the files of its split's segment.

A split names the wanted records of one segment, and the position in the file at which they begin. It is small and
can be pickled. The records are read only by the process that reads the split, not by `plan`.
"""

from __future__ import annotations

from bisect import bisect_right
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING

from logfs.errors import Corrupt
from logfs.format.base.batch_rows import (
    ATTRIBUTES,
    MAX_TIMESTAMP,
    NEXT_OFFSET,
    POSITION,
    SPAN_BASE_OFFSET,
)
from logfs.format.batches.batch import CONTROL_BIT, MAGIC
from logfs.log.disk.disk import Gone
from logfs.log.read.read_committed import aborted_rows
from logfs.log.scan.segment_descriptor import describe_segments
from logfs.log.segment import batch_scanner
from logfs.log.segment.batch_iterator import Damage, DamagedRange, unreadable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from logfs.format.batches.columns import Columns
    from logfs.log.read.read_committed import Aborted
    from logfs.log.read.reader import Reader
    from logfs.log.scan.segment_descriptor import SegmentDescriptor
    from logfs.log.segment.segment import Segment


@dataclass(frozen=True, kw_only=True)
class SegmentSplit:
    """The records [first_offset, end_offset) of a segment, to be read by another process.

    About `bytes` bytes of the .log file have to be read, from byte `position` on. `aborted` has the aborted
    transactions to leave out, by producer id. Those of one producer are in ascending order.
    """

    segment: SegmentDescriptor
    position: int
    first_offset: int
    end_offset: int
    bytes: int
    aborted: Aborted


def plan(
    reader: Reader, first_offset: int, end_offset: int, *, split_bytes: int
) -> Iterator[SegmentSplit]:
    """Split the records [first_offset, end_offset) of a partition; yield splits of about `split_bytes` bytes each.

    A segment is cut at entries of its offset index. Together, the splits cover exactly the given records, by
    ascending offset. `reader` decides which transactions are visible. Raises `Gone` or `FileNotFoundError` if a file
    leaves the log meanwhile: refresh the reader and call again.
    """
    state = reader.state
    aborted = reader.aborted(state)
    wanted = [
        segment for segment in state.segments_from(first_offset) if segment.base_offset < end_offset
    ]
    for segment, planned in describe_segments(reader, wanted):
        first = max(first_offset, segment.base_offset)
        end = min(end_offset, segment.next_offset)
        if first >= end:
            continue
        # A whole segment begins at byte 0. No index is needed for this, so a plan of many small segments opens none.
        position = 0 if first == segment.base_offset else segment.position_of(first)
        cuts = [(first, position)]
        if position + split_bytes < planned.size_bytes:
            cuts += _cuts(segment, first, end, split_bytes)
        stop = planned.size_bytes if end == segment.next_offset else _position_after(segment, end)
        for (offset, position), (next_offset, next_position) in pairwise([*cuts, (end, stop)]):
            yield SegmentSplit(
                segment=planned,
                position=position,
                first_offset=offset,
                end_offset=next_offset,
                bytes=max(next_position - position, 0),
                aborted=_between(aborted, offset, next_offset),
            )


def ranges_reaching(reader: Reader, timestamp: int) -> list[tuple[int, int]]:
    """Return ranges [first, end) of offsets, ascending, that hold every record of `timestamp` (ms) or later.

    The ranges come from the time indexes. Timestamps need not rise with the offsets, so each segment is looked up
    separately, and the ranges may contain earlier records too.
    """
    found: list[tuple[int, int]] = []
    for segment in reader.segments:
        end = segment.next_offset
        first = _first_reaching(segment, timestamp)
        if first < end:
            start = found.pop()[0] if found and found[-1][1] == first else first
            found.append((start, end))
    return found


def _first_reaching(segment: Segment, timestamp: int) -> int:
    """Return an offset below which all records of a segment are earlier than `timestamp`.

    If the time index shows that all records of the segment are earlier, this is the end offset of the segment.
    """
    if segment.is_tiered:
        # The metadata of the segment tells its greatest timestamp, so no request to the bucket is needed.
        return segment.next_offset if segment.largest_timestamp < timestamp else segment.base_offset
    index = segment.time_index
    try:
        # Do not use the time index of a segment that is being written: its last entry does not cover all records, and
        # some entries may be of truncated records.
        if not segment.is_active and not index.is_growing:
            if index.last.timestamp < timestamp and segment.has_batch_of(index.last):
                return segment.next_offset
            entry = index.lookup(timestamp - 1)
            if segment.has_batch_of(entry):
                return entry.offset + 1
    except (Gone, FileNotFoundError):
        # The process that reads the segment reports the missing file.
        pass
    return segment.base_offset


def divide(segment_split: SegmentSplit, records: int) -> Iterator[SegmentSplit]:
    """Divide a split into splits of at most `records` offsets each.

    The offset index gives the position of each new split. Raises `Gone` if the segment's file is missing or has
    become shorter.
    """
    count = max(segment_split.end_offset - segment_split.first_offset, 1)
    if count <= records:
        yield segment_split
        return
    with closing(segment_split.segment.open()) as segment:
        for first in range(segment_split.first_offset, segment_split.end_offset, records):
            end = min(first + records, segment_split.end_offset)
            position = max(segment.position_of(first), segment_split.position)
            share = max(segment_split.bytes * (end - first) // count, 1)
            yield replace(
                segment_split, first_offset=first, end_offset=end, position=position, bytes=share
            )


def _cuts(segment: Segment, first: int, end: int, split_bytes: int) -> Iterator[tuple[int, int]]:
    """Yield (base offset, position) of batches between the offsets `first` and `end`, about `split_bytes` apart."""
    index = segment.offset_index
    count = len(index)
    position = segment.position_of(first)
    number = 0
    while True:
        wanted = position + split_bytes
        number = bisect_right(range(count), wanted, lo=number, key=lambda n: index[n].position)
        if number >= count or index[number].offset >= end:
            return
        position = index[number].position
        if position >= segment.size_bytes:
            return
        header = segment.header(position)
        # Another process may be writing the index, so use an entry only if the batch in the log agrees with it.
        if (
            header is not None
            and header.magic == MAGIC
            and header.last_offset == index[number].offset
            and first < header.base_offset < end
        ):
            yield header.base_offset, position


def _between(aborted: Aborted, first: int, end: int) -> Aborted:
    """Return those of the `aborted` transactions whose range of offsets overlaps [first, end)."""
    found = {
        producer: [each for each in ranges if each[0] < end and each[1] > first]
        for producer, ranges in aborted.items()
    }
    return {producer: ranges for producer, ranges in found.items() if ranges}


def _position_after(segment: Segment, offset: int) -> int:
    """Return the position of the first offset index entry above `offset`; the .log file's size if there is none."""
    index = segment.offset_index
    number = bisect_right(range(len(index)), offset, key=lambda n: index[n].offset)
    size = segment.size_bytes
    return min(index[number].position, size) if number < len(index) else size


def read(segment_split: SegmentSplit, since: int | None = None) -> Iterator[Columns | DamagedRange]:
    """Return an iterator over the records of a split, as columns by ascending offset.

    The iterator yields a `DamagedRange` for each damaged range. It leaves out control records and aborted
    transactions. With `since` (ms), it also leaves out batches of magic 2 whose records are all earlier than `since`.
    Of the other batches it yields all records in the split, so the caller may still get records earlier than `since`.

    If the segment's file is gone, `read` raises `Gone` at once, and not the iterator. The iterator raises `Gone` only
    if an object of a remote segment is deleted during the iteration.
    """
    segment = segment_split.segment.open()
    if segment.is_tiered:
        # No request has shown yet whether the object exists. Read a header, so that this call raises `Gone`.
        segment.header(segment_split.position)
    return _read(segment, segment_split, since)


def _read(
    segment: Segment, segment_split: SegmentSplit, since: int | None
) -> Iterator[Columns | DamagedRange]:
    try:
        for found in batch_scanner.scan_segment(segment, *_start(segment, segment_split)):
            if isinstance(found, Damage):
                if found.first_offset >= segment_split.end_offset:
                    return
                if found.next_offset > segment_split.first_offset:
                    yield found.error(segment.path)
            else:
                yield from _scanned(segment, found, segment_split, since)
                if found.next_offset >= segment_split.end_offset:
                    return
    finally:
        segment.close()


def _start(segment: Segment, segment_split: SegmentSplit) -> tuple[int, int]:
    """Return the position at which the scan of a split begins, and the base offset of the batch at this position.

    The position is that of the split. If no batch begins there, or if the base offset of the batch is above the
    split's first offset, the scan begins at the start of the segment: returns 0 and the segment's base offset.
    """
    head = segment.header(segment_split.position) if segment_split.position else None
    if head is not None and segment.base_offset <= head.base_offset <= segment_split.first_offset:
        return segment_split.position, head.base_offset
    return 0, segment.base_offset


def _scanned(
    segment: Segment,
    run: batch_scanner.ScannedBatches,
    segment_split: SegmentSplit,
    since: int | None,
) -> Iterator[Columns | DamagedRange]:
    """Yield the split's records in scanned batches, and a `DamagedRange` for each batch with malformed records.

    `run` has the scanned batches. With `since` (ms), batches of magic 2 whose records are all earlier are left out.
    """
    rows = run.rows
    wanted = rows[:, ATTRIBUTES] & CONTROL_BIT == 0
    first, end = segment_split.first_offset, segment_split.end_offset
    wanted &= (rows[:, NEXT_OFFSET] > first) & (rows[:, SPAN_BASE_OFFSET] < end)
    wanted &= ~aborted_rows(rows, segment_split.aborted)
    # Do not skip messages of old formats: a compressed message may have a lower timestamp than the messages in it.
    if since is not None and run.legacy is None:
        wanted &= rows[:, MAX_TIMESTAMP] >= since
    for columns, group in run.select(wanted).decode():
        if isinstance(columns, Corrupt):
            (batch,) = run._replace(rows=group).batches()
            position = run.position + int(group[0, POSITION])
            yield unreadable(position, batch, columns).error(segment.path)
        else:
            offsets = columns.offsets
            if len(offsets) and (offsets[0] < first or offsets[-1] >= end):
                columns = columns.select((offsets >= first) & (offsets < end))
            if len(columns):
                yield columns
