"""Many batches at once: a version of `batch_iterator` in compiled kernels, for data in which nothing is wrong.

A service that appends one line at a time leaves hundreds of batches in a block of the log. A Python step for each
field of each batch would cost more than reading the block.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np
from crc32c import crc32c

from logfs.errors import Corrupt
from logfs.format.batches.batch import CODEC_MASK, CONTROL_BIT, CRC_START, HEADER_SIZE, MAGIC, Batch
from logfs.format.batches.columns import decode_columns
from logfs.format.batches.record import SMALLEST_RECORD
from logfs.format.text import rendering
from logfs.format.text.rendering import TextSize
from logfs.log.segment.batch_iterator import Damage

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from logfs.format.batches.columns import Columns

_CHUNK_BYTES = 1 << 20
# The greatest size of a batch that a 32-bit length can express.
_MOST_BYTES = 2**31 + 12


class ScannableSegment(Protocol):
    """What a scan needs of a segment."""

    @property
    def base_offset(self) -> int:
        """The lowest offset that the segment may hold."""

    @property
    def limit_offset(self) -> int:
        """An offset above all those that may be in the segment."""

    @property
    def next_base(self) -> int | None:
        """The base offset of the next segment; None for the last one."""

    @property
    def size_bytes(self) -> int:
        """The size of the whole batches in the .log file, in bytes."""

    @property
    def gaps(self) -> bool:
        """Whether offsets may be missing between batches."""

    def read(self, position: int, size: int) -> memoryview:
        """Return raw bytes of the .log file, up to the end of the last whole batch."""

    def walk_unknown_end(
        self, position: int, first_offset: int
    ) -> Iterator[tuple[int, Batch] | Damage]:
        """Yield the batches from a position on one by one, past damage."""


class BatchInfo(NamedTuple):
    """The facts about a batch that the indexes need."""

    position: int
    size_bytes: int
    base_offset: int
    next_offset: int
    max_timestamp: int
    leader_epoch: int
    producer_id: int
    text: TextSize


class ScannedBatches(NamedTuple):
    """A run of scanned batches: the bytes from a position of the file on, and the rows that `scan` made of them."""

    position: int
    data: memoryview
    rows: NDArray[np.int64]


def scan(data: memoryview, first_offset: int, *, gaps: bool) -> tuple[NDArray[np.int64], int]:
    """Return the valid batches at the start of `data`, as rows of `kernels.scan_batches`, and where they end.

    `first_offset` is the lowest base offset that the first batch may have; without `gaps`, the one that it must have.
    The scan stops at the end of `data` or at anything invalid. The careful walk (`batch_iterator`) tells which.
    """
    from logfs.format.kernels import batch_kernels

    rows = np.empty((len(data) // HEADER_SIZE + 1, batch_kernels.BATCH_COLUMNS), np.int64)
    count, end = batch_kernels.scan_batches(np.frombuffer(data, np.uint8), first_offset, gaps, rows)
    for number, (start, size, crc) in enumerate(rows[:count, :3].tolist()):
        if crc32c(data[start + CRC_START : start + size]) != crc:
            return rows[:number], start
    return rows[:count], end


def _scan_one(position: int, batch: Batch) -> ScannedBatches:
    """Return a valid batch of magic 2, which begins at `position` of its file, as a scanned run of one."""
    rows, _ = scan(batch.data, batch.header.base_offset, gaps=True)
    return ScannedBatches(position, batch.data, rows)


def are_compressed(rows: NDArray[np.int64]) -> bool:
    """Return whether any of the scanned batches is compressed."""
    from logfs.format.kernels import batch_kernels

    return bool((rows[:, batch_kernels.ATTRIBUTES] & CODEC_MASK).any())


def decode(data: memoryview, rows: NDArray[np.int64]) -> Iterator[Columns]:
    """Yield the records of scanned batches as columns, in order.

    Neighbours without compression come together. Control batches are left out. Raises `Corrupt` as `Batch.columns`.
    """
    for columns, _ in decode_groups(data, rows):
        yield columns


def render_lines(data: memoryview, rows: NDArray[np.int64], size: int) -> memoryview | None:
    """Return the lines of scanned batches, made in one pass.

    Returns None if any of the batches has attributes set, or if the lines do not have exactly `size` bytes.
    """
    from logfs.format.kernels import batch_kernels

    # A record is longer than its line, so a greater size comes from a wrong index: do not allocate it.
    if rows[:, batch_kernels.ATTRIBUTES].any() or not 0 <= size <= len(data):
        return None
    out = np.empty(size, np.uint8)
    done = batch_kernels.render_lines(np.frombuffer(data, np.uint8), _spans(rows), out)
    return out.data if done == size else None


def _spans(rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the columns that `decode_columns` needs; contiguous, for numba compiles again for every layout."""
    from logfs.format.kernels import batch_kernels

    return np.ascontiguousarray(rows[:, batch_kernels.SPAN_START :])


def decode_groups(
    data: memoryview, rows: NDArray[np.int64]
) -> Iterator[tuple[Columns, NDArray[np.int64]]]:
    """Yield the same as `decode`, each with the rows that it was made from."""
    for group in _groups(rows):
        yield _columns(data, group), group


def decode_each(
    data: memoryview, rows: NDArray[np.int64]
) -> Iterator[tuple[Columns | Corrupt, NDArray[np.int64]]]:
    """Yield the same as `decode_groups`, but each batch with malformed records alone, as its error and its row.

    One group is decoded at a time: all batches of a `ScannedBatches` together may decompress to gigabytes.
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
    """Yield neighbours without attributes as one group, every other batch alone, and control batches not at all."""
    from logfs.format.kernels import batch_kernels

    simple = rows[:, batch_kernels.ATTRIBUTES] == 0
    cuts = np.flatnonzero(simple[1:] != simple[:-1]) + 1
    for group in np.split(rows, cuts):
        if not len(group):
            continue
        if group[0, batch_kernels.ATTRIBUTES] == 0:
            yield group
            continue
        for row in group:
            if not row[batch_kernels.ATTRIBUTES] & CONTROL_BIT:
                yield row[np.newaxis]


def _columns(data: memoryview, group: NDArray[np.int64]) -> Columns:
    """Return the records of one of the groups of `_groups`. Raises `Corrupt`."""
    from logfs.format.kernels import batch_kernels

    if group[0, batch_kernels.ATTRIBUTES] == 0:
        return decode_columns(data, _spans(group))
    return Batch.parse(data, int(group[0, batch_kernels.POSITION])).columns()


class PlainBatches(NamedTuple):
    """Neighbouring batches [first, end) of scanned ones: their uncompressed bytes, and a span in these for each."""

    first: int
    end: int
    data: NDArray[np.uint8]
    spans: NDArray[np.int64]


def plain_batches(scanned: ScannedBatches, wanted: NDArray[np.bool_]) -> Iterator[PlainBatches]:
    """Yield runs of batches that need no decompression, and each batch between them alone, decompressed.

    A batch that is not wanted is not decompressed, and has a span without records. Raises `Corrupt`.
    """
    from logfs.format.kernels.batch_kernels import ATTRIBUTES, POSITION, SPAN_COUNT, SPAN_START

    rows = scanned.rows
    array: NDArray[np.uint8] = np.frombuffer(scanned.data, np.uint8)
    packed = (rows[:, ATTRIBUTES] & CODEC_MASK != 0) & (rows[:, SPAN_COUNT] != 0) & wanted
    spans = np.ascontiguousarray(rows[:, SPAN_START:])
    spans[~wanted, 2] = 0
    spans[~wanted, 1] = spans[~wanted, 0]
    room = spans[:, 1] - spans[:, 0]
    if ((spans[:, 2] < 0) | (~packed & (spans[:, 2] * SMALLEST_RECORD > room))).any():
        raise Corrupt("a batch's records do not fit in its bytes")
    first = 0
    for number in [*np.flatnonzero(packed).tolist(), len(rows)]:
        if number > first:
            yield PlainBatches(first, number, array, spans[first:number])
        if number < len(rows):
            payload = Batch.parse(scanned.data, int(rows[number, POSITION])).payload
            span = spans[number : number + 1].copy()
            span[0, :2] = 0, len(payload)
            yield PlainBatches(number, number + 1, np.frombuffer(payload, np.uint8), span)
        first = number + 1


def survey(
    segment: ScannableSegment, position: int, first_offset: int
) -> Iterator[BatchInfo | Damage]:
    """Yield the `BatchInfo` of every batch of a segment from a position on, and `Damage` as `Segment.walk` does."""
    for found in scan_segment(segment, position, first_offset):
        if isinstance(found, ScannedBatches):
            yield from infos(found)
        elif isinstance(found, Damage):
            yield found
        else:
            yield _legacy_info(*found)


def producers_batches(segment: ScannableSegment) -> Iterator[Batch]:
    """Yield the batches of a segment that have a producer id. Damage is skipped."""
    from logfs.format.kernels import batch_kernels

    for found in scan_segment(segment, 0, segment.base_offset):
        if isinstance(found, ScannedBatches):
            rows = found.rows
            wanted = rows[rows[:, batch_kernels.PRODUCER_ID] >= 0, batch_kernels.POSITION]
            for start in wanted.tolist():
                yield Batch.parse(found.data, start)


def scan_segment(
    segment: ScannableSegment, position: int, first_offset: int
) -> Iterator[ScannedBatches | tuple[int, Batch] | Damage]:
    """Yield all of a segment from a position on: valid batches in `ScannedBatches`es, and `Damage`.

    A batch of an old format comes alone, with its position in the file. `first_offset` is as for `scan`.
    """
    from logfs.format.kernels import batch_kernels

    size = segment.size_bytes
    expected = first_offset
    while position < size:
        data = segment.read(position, _CHUNK_BYTES)
        rows, end = scan(data, expected, gaps=segment.gaps)
        if not len(rows) and len(data) < size - position:
            # Either one batch is larger than the chunk, or nothing here is valid.
            length = int.from_bytes(data[8:12], "big") + 12 if len(data) >= HEADER_SIZE else 0
            if _CHUNK_BYTES < length <= min(size - position, _MOST_BYTES):
                data = segment.read(position, length)
                rows, end = scan(data, expected, gaps=segment.gaps)
        rows, end = _without_doubtful_end(*_below(rows, end, segment.limit_offset), expected)
        if len(rows):
            yield ScannedBatches(position, data, rows)
            position, expected = position + end, int(rows[-1, batch_kernels.NEXT_OFFSET])
            continue
        # The careful walk finds what is wrong here and where batches go on, or reads messages of an old format.
        for found in segment.walk_unknown_end(position, expected):
            if isinstance(found, Damage):
                yield found
                # No CRC covers the offset of the next batch: the careful walk checks it against its successor, too.
                position, expected = found.end, found.next_offset
                continue
            header = found[1].header
            yield _scan_one(*found) if header.magic == MAGIC else found
            position, expected = found[0] + header.size_bytes, header.next_offset
            if header.magic == MAGIC:
                break
    if segment.next_base is not None and expected < segment.next_base and not segment.gaps:
        yield Damage(size, size, expected, segment.next_base, "the file ends too early")


def _below(rows: NDArray[np.int64], end: int, limit_offset: int) -> tuple[NDArray[np.int64], int]:
    """Return the batches before the first that reaches beyond what a segment can hold, and where they end."""
    from logfs.format.kernels import batch_kernels

    is_beyond = rows[:, batch_kernels.NEXT_OFFSET] > limit_offset
    if is_beyond.any():
        first = int(is_beyond.argmax())
        return rows[:first], int(rows[first, batch_kernels.POSITION])
    return rows, end


def _without_doubtful_end(
    rows: NDArray[np.int64], end: int, expected: int
) -> tuple[NDArray[np.int64], int]:
    """Return the batches without the last one if that follows a gap, and where they end.

    No CRC covers its offset and only its successor can confirm it, so it is left to the next scan.
    """
    from logfs.format.kernels import batch_kernels

    if len(rows):
        before = int(rows[-2, batch_kernels.NEXT_OFFSET]) if len(rows) > 1 else expected
        if rows[-1, batch_kernels.SPAN_BASE_OFFSET] != before:
            return rows[:-1], int(rows[-1, batch_kernels.POSITION])
    return rows, end


def _legacy_info(position: int, batch: Batch) -> BatchInfo:
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


def infos(scanned: ScannedBatches) -> Iterator[BatchInfo]:
    """Yield the `BatchInfo` of each scanned batch."""
    from logfs.format.kernels import batch_kernels

    start, data, rows = scanned
    sizes = _text_sizes(data, rows)
    wanted = (
        batch_kernels.POSITION,
        batch_kernels.SIZE,
        batch_kernels.SPAN_BASE_OFFSET,
        batch_kernels.NEXT_OFFSET,
        batch_kernels.MAX_TIMESTAMP,
        batch_kernels.LEADER_EPOCH,
        batch_kernels.PRODUCER_ID,
    )
    for (position, *rest), size in zip(rows[:, wanted].tolist(), sizes, strict=True):
        yield BatchInfo._make((start + position, *rest, TextSize._make(size)))


def measured(
    data: memoryview, rows: NDArray[np.int64]
) -> Iterator[tuple[Columns | Corrupt, NDArray[np.int64], NDArray[np.int64]]]:
    """Yield the records of scanned batches as `decode` does, with their rows and the text size of each row.

    The text sizes are int64[rows, 3]: records, bytes of lines, bytes of envelopes. A batch with a good CRC and
    malformed records comes alone, with its error. Control batches are left out, for they have no text.
    """
    from logfs.format.kernels import batch_kernels

    for columns, group in decode_each(data, rows):
        if isinstance(columns, Corrupt):
            odd = text_size(Batch.parse(data, int(group[0, batch_kernels.POSITION])))
            yield columns, group, np.array([odd], np.int64)
        else:
            yield columns, group, _texts(columns, group)


def _text_sizes(data: memoryview, rows: NDArray[np.int64]) -> list[list[int]]:
    """Return the text size of each scanned batch: records, bytes of lines, bytes of envelopes."""
    from logfs.format.kernels import batch_kernels

    sizes = np.zeros((len(rows), 3), np.int64)
    for _, group, texts in measured(data, rows):
        first = int(
            np.searchsorted(rows[:, batch_kernels.POSITION], group[0, batch_kernels.POSITION])
        )
        sizes[first : first + len(group)] = texts
    return sizes.tolist()


def _texts(columns: Columns, group: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the text size of each batch of a group, whose records are `columns`: int64[batches, 3]."""
    from logfs.format.kernels import batch_kernels

    counts = group[:, batch_kernels.SPAN_COUNT]
    ends = np.cumsum(counts)
    lines, envelopes = rendering.line_sizes(columns), rendering.envelope_sizes(columns)
    return np.column_stack((counts, _sums(lines, ends), _sums(envelopes, ends)))


def _sums(values: NDArray[np.int64], ends: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the sums of consecutive runs of values; run i ends before ends[i]."""
    running = np.concatenate(([0], np.cumsum(values)))[np.concatenate(([0], ends))]
    return np.diff(running)


def text_size(found: Batch | Damage) -> TextSize:
    """Return the text size of a batch or of damage.

    Damage is as long in the views as in the file, so that readers can go past it. A batch whose records cannot be
    decoded counts as damage.
    """
    if isinstance(found, Damage):
        return TextSize(0, found.end - found.start, found.end - found.start)
    try:
        return rendering.measure(found)
    except Corrupt:
        return TextSize(0, found.header.size_bytes, found.header.size_bytes)
