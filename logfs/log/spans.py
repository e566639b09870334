"""Many batches at once: the walk of `logfs.log.walk` for the case that nothing is wrong, at kernel speed.

A service that writes one line at a time leaves hundreds of batches in a block of the log; a Python step for each
field of each of them would cost more than all the reading.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from crc32c import crc32c

from logfs.errors import Corrupt
from logfs.format import text
from logfs.format.batch import CODEC_MASK, CONTROL_BIT, CRC_START, HEADER_SIZE, MAGIC, Batch
from logfs.format.columns import decode_columns
from logfs.format.text import TextSize
from logfs.log.walk import Damage

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from logfs.format.columns import Columns
    from logfs.log.segment import Segment

_CHUNK_BYTES = 1 << 20
# A 32-bit length never says more.
_MOST_BYTES = 2**31 + 12


class BatchInfo(NamedTuple):
    """What an index wants to know of a batch."""

    position: int
    size_bytes: int
    base_offset: int
    next_offset: int
    max_timestamp: int
    leader_epoch: int
    producer_id: int
    text: TextSize


class Stretch(NamedTuple):
    """Scanned batches: the bytes from a position of the file on, and the rows that `scan` made of them."""

    position: int
    data: memoryview
    rows: NDArray[np.int64]


def scan(data: memoryview, first_offset: int, *, gaps: bool) -> tuple[NDArray[np.int64], int]:
    """The valid batches at the start of `data` as rows of `kernels.scan_batches`, and where they end.

    `first_offset` is the lowest that the first may have, and without `gaps` the one it must have. What stopped
    the scan may be the end of `data` or anything that is not right: who must know takes the careful walk.
    """
    from logfs.format import kernels

    rows = np.empty((len(data) // HEADER_SIZE + 1, kernels.BATCH_COLUMNS), np.int64)
    count, end = kernels.scan_batches(np.frombuffer(data, np.uint8), first_offset, gaps, rows)
    for number, (start, size, crc) in enumerate(rows[:count, :3].tolist()):
        if crc32c(data[start + CRC_START : start + size]) != crc:
            return rows[:number], start
    return rows[:count], end


def are_compressed(rows: NDArray[np.int64]) -> bool:
    """Whether any of scanned batches has to be unpacked."""
    from logfs.format import kernels

    return bool((rows[:, kernels.ATTRIBUTES] & CODEC_MASK).any())


def decode(data: memoryview, rows: NDArray[np.int64]) -> Iterator[Columns]:
    """The records of scanned batches as columns, in order; neighbours that need no unpacking in one go.

    Control batches are left out. `Corrupt` as `Batch.columns`.
    """
    for columns, _ in decode_groups(data, rows):
        yield columns


def render_lines(data: memoryview, rows: NDArray[np.int64], size: int) -> memoryview | None:
    """The lines of scanned batches that need no unpacking, in one pass; None if they do, or are not of that size."""
    from logfs.format import kernels

    # A record is longer than its line: an index that tells of more is wrong, and not to be allocated for.
    if rows[:, kernels.ATTRIBUTES].any() or not 0 <= size <= len(data):
        return None
    out = np.empty(size, np.uint8)
    done = kernels.render_lines(np.frombuffer(data, np.uint8), _spans(rows), out)
    return out.data if done == size else None


def _spans(rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """What `decode_columns` wants of rows; contiguous, for numba compiles anew for every layout."""
    from logfs.format import kernels

    return np.ascontiguousarray(rows[:, kernels.SPAN_START :])


def decode_groups(
    data: memoryview, rows: NDArray[np.int64]
) -> Iterator[tuple[Columns, NDArray[np.int64]]]:
    """As `decode`, each with the rows that it is made of."""
    for group in _groups(rows):
        yield _columns(data, group), group


def decode_each(
    data: memoryview, rows: NDArray[np.int64]
) -> Iterator[tuple[Columns | Corrupt, NDArray[np.int64]]]:
    """As `decode_groups`, but a batch whose records are malformed comes alone, with what is wrong with it.

    One group is decoded at a time: all batches of a stretch together may unpack to gigabytes.
    """
    for group in _groups(rows):
        try:
            columns = _columns(data, group)
        except Corrupt as error:
            if len(group) == 1:
                yield error, group
                continue
        else:
            yield columns, group
            continue
        for number in range(len(group)):
            yield from decode_each(data, group[number : number + 1])


def _groups(rows: NDArray[np.int64]) -> Iterator[NDArray[np.int64]]:
    """Neighbours that need no unpacking in one group, every other batch alone; control batches are left out."""
    from logfs.format import kernels

    simple = rows[:, kernels.ATTRIBUTES] == 0
    cuts = np.flatnonzero(simple[1:] != simple[:-1]) + 1
    for group in np.split(rows, cuts):
        if not len(group):
            continue
        if group[0, kernels.ATTRIBUTES] == 0:
            yield group
            continue
        for row in group:
            if not row[kernels.ATTRIBUTES] & CONTROL_BIT:
                yield row[np.newaxis]


def _columns(data: memoryview, group: NDArray[np.int64]) -> Columns:
    """The records of one of `_groups`. Raises `Corrupt`."""
    from logfs.format import kernels

    if group[0, kernels.ATTRIBUTES] == 0:
        return decode_columns(data, _spans(group))
    return Batch.parse(data, int(group[0, kernels.POSITION])).columns()


def survey(segment: Segment, position: int, first_offset: int) -> Iterator[BatchInfo | Damage]:
    """Every batch of a segment from a position on, with damage told apart as `Segment.walk` does."""
    for found in stretches(segment, position, first_offset):
        if isinstance(found, Stretch):
            yield from infos(found)
        elif isinstance(found, Damage):
            yield found
        else:
            yield _careful_info(*found)


def producers_batches(segment: Segment) -> Iterator[Batch]:
    """The batches of a segment whose producer has an id; what is damaged is left out."""
    from logfs.format import kernels

    for found in stretches(segment, 0, segment.base_offset):
        if isinstance(found, Stretch):
            rows = found.rows
            wanted = rows[rows[:, kernels.PRODUCER_ID] >= 0, kernels.POSITION]
            for start in wanted.tolist():
                yield Batch.parse(found.data, start)
        elif not isinstance(found, Damage) and found[1].header.producer_id >= 0:
            yield found[1]


def stretches(
    segment: Segment, position: int, first_offset: int
) -> Iterator[Stretch | tuple[int, Batch] | Damage]:
    """All of a segment from a position on: what is right by stretches, and what is not as the careful walk says."""
    from logfs.format import kernels

    size = segment.size_bytes
    expected = first_offset
    while position < size:
        data = segment.read(position, _CHUNK_BYTES)
        rows, end = scan(data, expected, gaps=segment.gaps)
        if not len(rows) and len(data) < size - position:
            # One batch that is larger than the chunk, or nothing that is right.
            length = int.from_bytes(data[8:12], "big") + 12 if len(data) >= HEADER_SIZE else 0
            if _CHUNK_BYTES < length <= min(size - position, _MOST_BYTES):
                data = segment.read(position, length)
                rows, end = scan(data, expected, gaps=segment.gaps)
        rows, end = _without_doubtful_end(*_below(rows, end, segment.limit_offset), expected)
        if len(rows):
            yield Stretch(position, data, rows)
            position, expected = position + end, int(rows[-1, kernels.NEXT_OFFSET])
            continue
        # The careful walk says what is wrong here and where it goes on, or takes what has an old format.
        for found in segment.walk_unknown_end(position, expected):
            yield found
            if isinstance(found, Damage):
                # No CRC covers the offset of the batch after it: the careful walk looks at its successor, too.
                position, expected = found.end, found.next_offset
                continue
            position = found[0] + found[1].header.size_bytes
            expected = found[1].header.next_offset
            if found[1].header.magic == MAGIC:
                break
    if segment.next_base is not None and expected < segment.next_base and not segment.gaps:
        yield Damage(size, size, expected, segment.next_base, "the file ends too early")


def _below(rows: NDArray[np.int64], end: int, limit_offset: int) -> tuple[NDArray[np.int64], int]:
    """The batches before the first one that reaches beyond what a segment can hold."""
    from logfs.format import kernels

    is_beyond = rows[:, kernels.NEXT_OFFSET] > limit_offset
    if is_beyond.any():
        first = int(is_beyond.argmax())
        return rows[:first], int(rows[first, kernels.POSITION])
    return rows, end


def _without_doubtful_end(
    rows: NDArray[np.int64], end: int, expected: int
) -> tuple[NDArray[np.int64], int]:
    """Leave the last batch to the next look if it stands behind a gap: no CRC covers its offset, only who follows."""
    from logfs.format import kernels

    if len(rows):
        before = int(rows[-2, kernels.NEXT_OFFSET]) if len(rows) > 1 else expected
        if rows[-1, kernels.SPAN_BASE_OFFSET] != before:
            return rows[:-1], int(rows[-1, kernels.POSITION])
    return rows, end


def _careful_info(position: int, batch: Batch) -> BatchInfo:
    header = batch.header
    return BatchInfo(
        position,
        header.size_bytes,
        header.base_offset,
        header.next_offset,
        header.max_timestamp,
        header.partition_leader_epoch,
        header.producer_id,
        text_size(batch),
    )


def infos(stretch: Stretch) -> Iterator[BatchInfo]:
    """What an index wants to know of scanned batches."""
    from logfs.format import kernels

    start, data, rows = stretch
    sizes = _text_sizes(data, rows)
    wanted = (
        kernels.POSITION,
        kernels.SIZE,
        kernels.SPAN_BASE_OFFSET,
        kernels.NEXT_OFFSET,
        kernels.MAX_TIMESTAMP,
        kernels.LEADER_EPOCH,
        kernels.PRODUCER_ID,
    )
    for (position, *rest), size in zip(rows[:, wanted].tolist(), sizes, strict=True):
        yield BatchInfo._make((start + position, *rest, TextSize._make(size)))


def measured(
    data: memoryview, rows: NDArray[np.int64]
) -> Iterator[tuple[Columns | Corrupt, NDArray[np.int64], NDArray[np.int64]]]:
    """The records of scanned batches as `decode` gives them, the rows that they are of, and the text of each row.

    A text is records, bytes of lines, bytes of envelopes. A batch with a good CRC and records that are none comes
    alone, with what is wrong with it. Control batches are left out: they have no text.
    """
    from logfs.format import kernels

    for columns, group in decode_each(data, rows):
        if isinstance(columns, Corrupt):
            odd = text_size(Batch.parse(data, int(group[0, kernels.POSITION])))
            yield columns, group, np.array([odd], np.int64)
        else:
            yield columns, group, _texts(columns, group)


def _text_sizes(data: memoryview, rows: NDArray[np.int64]) -> list[list[int]]:
    """The text of each scanned batch: records, bytes of lines, bytes of envelopes."""
    from logfs.format import kernels

    sizes = np.zeros((len(rows), 3), np.int64)
    for _, group, texts in measured(data, rows):
        first = int(np.searchsorted(rows[:, kernels.POSITION], group[0, kernels.POSITION]))
        sizes[first : first + len(group)] = texts
    return sizes.tolist()


def _texts(columns: Columns, group: NDArray[np.int64]) -> NDArray[np.int64]:
    """The text of each batch whose records these are."""
    from logfs.format import kernels

    counts = group[:, kernels.SPAN_COUNT]
    ends = np.cumsum(counts)
    lines, envelopes = text.line_sizes(columns), text.envelope_sizes(columns)
    return np.column_stack((counts, _sums(lines, ends), _sums(envelopes, ends)))


def _sums(values: NDArray[np.int64], ends: NDArray[np.int64]) -> NDArray[np.int64]:
    """The sums of consecutive runs of values, each of which ends before ends[i]."""
    running = np.concatenate(([0], np.cumsum(values)))[np.concatenate(([0], ends))]
    return np.diff(running)


def text_size(found: Batch | Damage) -> TextSize:
    """The text of a batch; a damaged range is as long in the views as in the file, for readers to go past it."""
    if isinstance(found, Damage):
        return TextSize(0, found.end - found.start, found.end - found.start)
    try:
        return text.measure(found)
    except Corrupt:
        return TextSize(0, found.header.size_bytes, found.header.size_bytes)
