"""A log in pieces, for readers in other processes: who plans knows the log, who reads needs only files.

A piece says which records are wanted of one segment, and where in the file they begin. It is small, can be pickled,
and its bytes are read by nobody but its reader.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from logfs.format.batch import CONTROL_BIT, MAGIC, TRANSACTIONAL_BIT
from logfs.format.text import NO_TEXT
from logfs.log import spans
from logfs.log.files import Gone
from logfs.log.index import TimeEntry
from logfs.log.planned import PlannedFile, planned_files
from logfs.log.segment import Segment, Tip
from logfs.log.walk import Damage, DamagedRange

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from logfs.format.columns import Columns
    from logfs.log.reader import Reader

    # Each producer's aborted transactions: (first offset, offset of the marker), in order.
    Aborted = Mapping[int, Sequence[tuple[int, int]]]


@dataclass(frozen=True, kw_only=True)
class Piece:
    """The records [first_offset, end_offset) of a segment, from byte `position` of its file on.

    `bytes` is about how much there is to read.
    """

    file: PlannedFile
    position: int
    first_offset: int
    end_offset: int
    bytes: int
    aborted: Aborted

    def open(self) -> Segment:
        """The segment as it was planned. Raises as `PlannedFile.open`."""
        segment = self.file.open()
        segment.gaps = True
        segment.resume(Tip(self.file.size_bytes, self.end_offset, NO_TEXT), TimeEntry(-1, 0))
        return segment


def plan(
    reader: Reader, first_offset: int, end_offset: int, *, piece_bytes: int
) -> Iterator[Piece]:
    """The records [first_offset, end_offset) in pieces of about so many bytes, cut at entries of the offset index.

    Together they are exactly those records, in order. `reader` decides what is seen of transactions. Raises `Gone`
    where a file leaves the log meanwhile: plan again.
    """
    segments = reader.segments
    aborted = reader.aborted(segments)
    wanted = [
        segment
        for segment in reader.segments_from(first_offset, segments)
        if segment.base_offset < end_offset
    ]
    for segment, file in planned_files(reader, wanted):
        first = max(first_offset, segment.base_offset)
        end = min(end_offset, segment.next_offset)
        size = file.size_bytes
        if first >= end or not size:
            continue
        cuts = [(first, segment.position_of(first)), *_cuts(segment, first, end, piece_bytes)]
        stop = size if end == segment.next_offset else _position_behind(segment, end)
        for (offset, position), (next_offset, next_position) in zip(
            cuts, [*cuts[1:], (end, stop)], strict=True
        ):
            yield Piece(
                file=file,
                position=position,
                first_offset=offset,
                end_offset=next_offset,
                bytes=max(next_position - position, 0),
                aborted=_between(aborted, offset, next_offset),
            )


def as_late_as(reader: Reader, timestamp: int) -> list[tuple[int, int]]:
    """The ranges of offsets, in order, outside of which no record has a timestamp (ms) that late.

    By the time indexes. Timestamps need not rise with the offsets, so each segment is asked by itself, and nothing is
    said of how early its records may be.
    """
    found: list[tuple[int, int]] = []
    for segment in reader.segments:
        end = segment.next_offset
        first = _first_as_late_as(segment, timestamp)
        if first < end:
            start = found.pop()[0] if found and found[-1][1] == first else first
            found.append((start, end))
    return found


def _first_as_late_as(segment: Segment, timestamp: int) -> int:
    """An offset before which no record of a segment is that late; behind the last where none is."""
    index = segment.time_index
    try:
        # Of one that is being written the last entry is not of all records, and some may be from before a truncation.
        if not segment.is_active and not index.is_growing:
            if index.last.timestamp < timestamp and segment.has(index.last):
                return segment.next_offset
            entry = index.lookup(timestamp - 1)
            if segment.has(entry):
                return entry.offset + 1
    except (Gone, FileNotFoundError):
        # Who reads it will see.
        pass
    return segment.base_offset


def split(piece: Piece, records: int) -> Iterator[Piece]:
    """A piece in pieces of at most so many offsets; they begin to read at the same byte, or a little later."""
    segment = piece.open()
    count = max(piece.end_offset - piece.first_offset, 1)
    for first in range(piece.first_offset, piece.end_offset, records):
        end = min(first + records, piece.end_offset)
        position = max(segment.position_of(first), piece.position)
        share = max(piece.bytes * (end - first) // count, 1)
        yield replace(piece, first_offset=first, end_offset=end, position=position, bytes=share)
    segment.close()


def _cuts(segment: Segment, first: int, end: int, piece_bytes: int) -> Iterator[tuple[int, int]]:
    """Base offsets and positions of batches between two offsets, about so many bytes apart."""
    index = segment.offset_index
    count = len(index)
    position = segment.position_of(first)
    number = 0
    while True:
        wanted = position + piece_bytes
        number = bisect_right(range(count), wanted, lo=number, key=lambda n: index[n].position)
        if number >= count or index[number].offset >= end:
            return
        position = index[number].position
        if position >= segment.size_bytes:
            return
        header = segment.header(position)
        # An entry of a file that somebody else writes is believed where the log agrees.
        if (
            header is not None
            and header.magic == MAGIC
            and header.last_offset == index[number].offset
            and first < header.base_offset < end
        ):
            yield header.base_offset, position


def _between(aborted: Aborted, first: int, end: int) -> Aborted:
    """Those that have records between two offsets."""
    found = {
        producer: [each for each in ranges if each[0] < end and each[1] > first]
        for producer, ranges in aborted.items()
    }
    return {producer: ranges for producer, ranges in found.items() if ranges}


def _position_behind(segment: Segment, offset: int) -> int:
    """A position at or behind the batch that holds an offset, by the index."""
    index = segment.offset_index
    number = bisect_right(range(len(index)), offset, key=lambda n: index[n].offset)
    return (
        min(index[number].position, segment.size_bytes)
        if number < len(index)
        else segment.size_bytes
    )


def read(piece: Piece, since: int | None = None) -> Iterator[Columns | DamagedRange]:
    """The records of a piece as columns, in order, and what is damaged among them as the error that tells of it.

    Control records and aborted transactions are left out, and batches in which no record has a timestamp (ms) as late
    as `since`. Raises `Gone` now, if at all.
    """
    return _read(piece.open(), piece, since)


def _read(segment: Segment, piece: Piece, since: int | None) -> Iterator[Columns | DamagedRange]:
    from logfs.format.kernels import ATTRIBUTES, MAX_TIMESTAMP, NEXT_OFFSET, SPAN_BASE_OFFSET

    try:
        head = segment.header(piece.position)
        first = segment.base_offset if head is None else head.base_offset
        for found in spans.stretches(segment, piece.position, first):
            if isinstance(found, Damage):
                if found.first_offset >= piece.end_offset:
                    return
                if found.next_offset > piece.first_offset:
                    yield found.error(segment.path)
                continue
            if not isinstance(found, spans.Stretch):
                batch = found[1]
                if batch.header.base_offset >= piece.end_offset:
                    return
                if not batch.header.is_control:
                    yield from _inside(batch.columns(), piece)
                continue
            rows = found.rows
            wanted = rows[:, ATTRIBUTES] & CONTROL_BIT == 0
            wanted &= rows[:, NEXT_OFFSET] > piece.first_offset
            wanted &= rows[:, SPAN_BASE_OFFSET] < piece.end_offset
            wanted &= ~_aborted(rows, piece.aborted)
            if since is not None:
                wanted &= rows[:, MAX_TIMESTAMP] >= since
            for columns in spans.decode(found.data, rows[wanted]):
                yield from _inside(columns, piece)
            if rows[-1, NEXT_OFFSET] >= piece.end_offset:
                return
    finally:
        segment.close()


def _inside(columns: Columns, piece: Piece) -> Iterator[Columns]:
    """The rows that the piece is about, if there are any."""
    offsets = columns.offsets
    if not len(offsets):
        return
    if offsets[0] < piece.first_offset or offsets[-1] >= piece.end_offset:
        columns = columns.select((offsets >= piece.first_offset) & (offsets < piece.end_offset))
    if len(columns):
        yield columns


def _aborted(rows: NDArray[np.int64], aborted: Aborted) -> NDArray[np.bool_]:
    """Which batches belong to aborted transactions."""
    from logfs.format.kernels import ATTRIBUTES, PRODUCER_ID, SPAN_BASE_OFFSET

    found = np.zeros(len(rows), np.bool_)
    for producer, ranges in aborted.items():
        mine = (rows[:, PRODUCER_ID] == producer) & (rows[:, ATTRIBUTES] & TRANSACTIONAL_BIT != 0)
        bases = rows[:, SPAN_BASE_OFFSET]
        for first, last in ranges if mine.any() else ():
            found |= mine & (bases >= first) & (bases < last)
    return found
