"""Check and scan many batches at once in compiled kernels, up to the first that is damaged: a fast `batch_iterator`.

A service that appends one line at a time leaves thousands of batches in each MiB of the log. A Python step for each
field of each batch would cost more than reading the log.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, TypeVar

from logfs.errors import Corrupt
from logfs.format.base.batch_rows import (
    ATTRIBUTES,
    BATCH_COLUMNS,
    CRC,
    LEADER_EPOCH,
    MAX_TIMESTAMP,
    NEXT_OFFSET,
    POSITION,
    PRODUCER_ID,
    SIZE,
    SPAN_BASE_OFFSET,
    SPAN_BASE_TIMESTAMP,
    SPAN_COUNT,
    SPAN_START,
)
from logfs.format.base.crc import crc32c
from logfs.format.base.lazy_numpy import np
from logfs.format.batches.batch import (
    CODEC_MASK,
    CONTROL_BIT,
    CRC_START,
    HEADER_SIZE,
    LENGTH_OVERHEAD,
    LOG_APPEND_TIME_BIT,
    MAGIC,
    START,
    Batch,
)
from logfs.format.batches.columns import decode_columns
from logfs.format.batches.record import (
    MOST_RECORDS,
    NO_TIMESTAMP,
    SMALLEST_RECORD,
    TimestampType,
    encode_record,
)
from logfs.format.text import rendering
from logfs.format.text.rendering import TextSize
from logfs.log.segment.batch_iterator import Damage
from logfs.log.segment.pipeline import map_ahead

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray

    from logfs.format.batches.columns import Columns
    from logfs.log.segment.segment import Segment

T = TypeVar("T")

_CHUNK_BYTES = 1 << 20
# How many bytes the operating system is asked to read ahead of a scan.
_AHEAD_BYTES = 8 << 20
# The CRCs of batches up to this size (bytes) are checked in compiled code, in one call for all.
_SMALL_BYTES = 1024
# Scans of at least this many bytes use other threads too (`scan_ahead`).
_LARGE_BYTES = 8 << 20
# `render_envelopes` renders at most this many bytes, and returns None for a greater size: the size may come from a
# wrong index, so no buffer of that size is allocated.
_MOST_TEXT_BYTES = 32 << 20
# The greatest size of a batch that a 32-bit length can express.
_MOST_BYTES = 2**31 - 1 + LENGTH_OVERHEAD


class ScannedBatches(NamedTuple):
    """A run of valid batches, each of which begins where the one before ends in the file.

    `data` are the bytes of the file from `position` on. `rows`, int64[batches, BATCH_COLUMNS], has one row of header
    values for each batch; the module `batch_rows` names the columns. The positions in `rows` count from the start of
    `data`. A batch of an old format is a run of its own: `legacy` is the batch, and `rows` has one row.

    `sizes`, int64[batches, 3], has one row for each batch, with the numbers of a `TextSize`: how many records the
    batch has, and how many bytes they take as lines of text and as JSON envelopes (without topic and partition). A
    scan leaves `sizes` None; the method `measured` adds them.
    """

    position: int
    data: memoryview
    rows: NDArray[np.int64]
    legacy: Batch | None = None
    sizes: NDArray[np.int64] | None = None

    @property
    def next_offset(self) -> int:
        """The offset after the last batch."""
        return int(self.rows[-1, NEXT_OFFSET])

    @property
    def end(self) -> int:
        """The position in the file after the last batch."""
        return self.position + int(self.rows[-1, POSITION] + self.rows[-1, SIZE])

    @property
    def positions(self) -> NDArray[np.int64]:
        """The positions of the batches in the file, as int64[batches]."""
        return self.rows[:, POSITION] + self.position

    @property
    def are_compressed(self) -> bool:
        """Whether at least one of the batches is compressed."""
        return bool((self.rows[:, ATTRIBUTES] & CODEC_MASK).any())

    def select(self, wanted: NDArray[np.bool_] | slice) -> ScannedBatches:
        """Return the batches that `wanted` (bool[batches] or a slice) selects. They need not be adjacent."""
        sizes = None if self.sizes is None else self.sizes[wanted]
        return self._replace(rows=self.rows[wanted], sizes=sizes)

    def batches(self) -> Iterator[Batch]:
        """Yield the batches one by one."""
        if self.legacy is not None:
            yield from (self.legacy for _ in self.rows)
            return
        for position in self.rows[:, POSITION].tolist():
            yield Batch.parse(self.data, position)

    def decode(self) -> Iterator[tuple[Columns | Corrupt, NDArray[np.int64]]]:
        """Decode the records in groups of batches, and yield (columns, rows) for each group, in file order.

        `columns` are the records of the group, and `rows` its part of `self.rows`. Neighbouring batches with
        attributes 0 (uncompressed, create time, no transaction) are one group, and each remaining batch is a group of
        its own. If records of a group are malformed, its batches are yielded one by one, the malformed ones with a
        `Corrupt` in place of the columns. Control batches are left out. One group is decoded at a time, because all
        groups together may decompress to gigabytes.
        """
        for group in self._groups():
            try:
                columns = self._columns(group)
            except Corrupt as error:
                if len(group) == 1:
                    yield error, group
                    continue
            else:
                yield columns, group
                continue
            for number in range(len(group)):
                yield from self._replace(rows=group[number : number + 1]).decode()

    @property
    def text(self) -> TextSize:
        """The text size of all batches together: the sum of `sizes`, which `measured` must have added."""
        assert self.sizes is not None
        return TextSize(*self.sizes.sum(axis=0).tolist())

    def measured(self) -> ScannedBatches:
        """Return the same batches with their text sizes in `sizes`."""
        return self._replace(sizes=self.text_sizes())

    def measure(
        self,
    ) -> Iterator[tuple[Columns | Corrupt, NDArray[np.int64], NDArray[np.int64]]]:
        """Decode and measure the records in groups of batches, and yield (columns, rows, sizes) for each group.

        A group is one batch, or neighbouring batches with attributes 0; control batches are left out. `columns` are
        the records of the group, and `rows` is the group's part of `self.rows`. `sizes`, int64[batches, 3], are the
        text sizes of the group's batches. If records are malformed, their batch is a group of its own, with a
        `Corrupt` in place of the columns; its text size is 0 records and, for each text view, the batch's own size.
        """
        for columns, group in self.decode():
            if isinstance(columns, Corrupt):
                size = int(group[0, SIZE])
                yield columns, group, np.array([(0, size, size)], np.int64)
            else:
                yield columns, group, _texts(columns, group)

    def text_sizes(self) -> NDArray[np.int64]:
        """Return the text size of each batch, as int64[batches, 3] like `sizes`; 0 for control batches."""
        found = self.measure_plainly()
        if found is not None:
            return found[0]
        rows = self.rows
        sizes = np.zeros((len(rows), 3), np.int64)
        for _, group, texts in self.measure():
            first = int(np.searchsorted(rows[:, POSITION], group[0, POSITION]))
            sizes[first : first + len(group)] = texts
        return sizes

    def measure_plainly(self) -> tuple[NDArray[np.int64], NDArray[np.int64]] | None:
        """Return the text size of each batch, and the offsets of its first and last record, without making `Columns`.

        The sizes are int64[batches, 3], as from `text_sizes`. The offsets are int64[batches, 2], and have no meaning
        for control batches and batches without records. Returns None if records are malformed, if a batch has
        LogAppendTime timestamps or more than `MOST_RECORDS` records, and for a batch of an old format: use `measure`
        for these.
        """
        from logfs.format.kernels import text_kernels

        rows = self.rows
        attributes = rows[:, ATTRIBUTES]
        wanted = attributes & CONTROL_BIT == 0
        is_odd = (attributes & LOG_APPEND_TIME_BIT != 0) | (rows[:, SPAN_COUNT] > MOST_RECORDS)
        if self.legacy is not None or (is_odd & wanted).any():
            return None
        sizes = np.zeros((len(rows), 3), np.int64)
        edges = np.zeros((len(rows), 2), np.int64)
        label = len(TimestampType.CREATE_TIME.label)
        try:
            for plain in self.plain_batches(wanted):
                at = slice(plain.first, plain.end)
                if not text_kernels.measure_spans(
                    plain.data, plain.spans, label, sizes[at], edges[at]
                ):
                    return None
        except Corrupt:
            return None
        return sizes, edges

    def render_lines(self, size: int) -> memoryview | None:
        """Return the lines of all records in the batches.

        `size` is the total size of the lines in bytes, according to the text index. Returns None if the lines have
        another size, if at least one batch has attributes set, such as a codec, or for a batch of an old format.
        """
        from logfs.format.kernels import batch_kernels

        # A record is longer than its line, so a `size` above the size of `data` comes from a wrong index: do not
        # allocate so many bytes.
        if self.rows[:, ATTRIBUTES].any() or not 0 <= size <= len(self.data):
            return None
        out = np.empty(size, np.uint8)
        array: NDArray[np.uint8] = np.frombuffer(self.data, np.uint8)
        done = batch_kernels.render_lines(array, _spans(self.rows), out)
        return out.data if done == size else None

    def render_envelopes(self, prefix: bytes, size: int) -> memoryview | None:
        """Return all records as JSON envelopes, each of which begins with `prefix`.

        `size` is the total size of the envelopes in bytes, according to the text index. Returns None if the envelopes
        have another size, if `size` is above 32 MiB, if records are malformed, if a batch has more than
        `MOST_RECORDS` records, if some batches have CreateTime and others LogAppendTime timestamps, or for a batch of
        an old format.
        """
        from logfs.format.kernels import text_kernels

        # A size above the limit may come from a wrong index: do not allocate so many bytes.
        if self.legacy is not None or not 0 <= size <= _MOST_TEXT_BYTES:
            return None
        rows = self.rows
        wanted = rows[:, ATTRIBUTES] & CONTROL_BIT == 0
        if (rows[wanted, SPAN_COUNT] > MOST_RECORDS).any():
            return None
        has_one_time = rows[wanted, ATTRIBUTES] & LOG_APPEND_TIME_BIT != 0
        is_stamped = bool(has_one_time.any())
        if is_stamped:
            if not has_one_time.all():
                return None
            rows = rows.copy()
            rows[:, SPAN_BASE_TIMESTAMP] = rows[:, MAX_TIMESTAMP]
        label = np.frombuffer(TimestampType(is_stamped).label.encode(), np.uint8)
        beginning = np.frombuffer(prefix, np.uint8)
        out = np.empty(size + text_kernels.ENVELOPE_ROOM, np.uint8)
        written = 0
        try:
            for plain in self._replace(rows=rows).plain_batches(wanted):
                written = text_kernels.render_envelopes(
                    plain.data, plain.spans, is_stamped, beginning, label, out, written
                )
                if written < 0:
                    return None
        except Corrupt:
            return None
        return out[:size].data if written == size else None

    def plain_batches(self, wanted: NDArray[np.bool_]) -> Iterator[PlainBatches]:
        """Yield the records of all batches, decompressed: adjacent uncompressed batches together, others one by one.

        `wanted` is bool[batches]. A batch that is not wanted keeps its row in `PlainBatches.spans`, with 0 bytes and
        0 records, and is not decompressed. Raises `Corrupt` if records do not fit in their batch or cannot be
        decompressed.
        """
        if self.legacy is not None:
            yield from _plain_legacy(self.legacy, wanted)
            return
        rows = self.rows
        array: NDArray[np.uint8] = np.frombuffer(self.data, np.uint8)
        packed = (rows[:, ATTRIBUTES] & CODEC_MASK != 0) & (rows[:, SPAN_COUNT] != 0) & wanted
        spans = _spans(rows)
        spans[~wanted, 2] = 0
        spans[~wanted, 1] = spans[~wanted, 0]
        room = spans[:, 1] - spans[:, 0]
        if ((spans[:, 2] < 0) | (~packed & (spans[:, 2] * SMALLEST_RECORD > room))).any():
            raise Corrupt("the record count in a batch's header does not fit the batch's size")
        first = 0
        for number in [*np.flatnonzero(packed).tolist(), len(rows)]:
            if number > first:
                yield PlainBatches(first, number, array, spans[first:number])
            if number < len(rows):
                payload = Batch.parse(self.data, int(rows[number, POSITION])).payload
                span = spans[number : number + 1].copy()
                span[0, :2] = 0, len(payload)
                yield PlainBatches(number, number + 1, np.frombuffer(payload, np.uint8), span)
            first = number + 1

    def _groups(self) -> Iterator[NDArray[np.int64]]:
        """Yield the rows of batches in groups: adjacent batches with attributes 0 together, the others one by one.

        Control batches are left out.
        """
        rows = self.rows
        simple = rows[:, ATTRIBUTES] == 0
        if len(rows) and simple.all():
            yield rows
            return
        cuts = np.flatnonzero(simple[1:] != simple[:-1]) + 1
        for group in np.split(rows, cuts):
            if len(group) and group[0, ATTRIBUTES] == 0:
                yield group
                continue
            for row in group:
                if not row[ATTRIBUTES] & CONTROL_BIT:
                    yield row[np.newaxis]

    def _columns(self, group: NDArray[np.int64]) -> Columns:
        """Return the records of one of the groups of `_groups`. Raises `Corrupt` if they are malformed."""
        if self.legacy is not None:
            return self.legacy.columns()
        if group[0, ATTRIBUTES] == 0:
            return decode_columns(self.data, _spans(group))
        return Batch.parse(self.data, int(group[0, POSITION])).columns()


class PlainBatches(NamedTuple):
    """The uncompressed records of neighbouring batches: rows [first, end) of a `ScannedBatches`.

    `data` is uint8[bytes]. `spans` is int64[batches, 5]: start and end of each batch's records in `data`, record
    count, base offset, base timestamp (ms).
    """

    first: int
    end: int
    data: NDArray[np.uint8]
    spans: NDArray[np.int64]


def _plain_legacy(batch: Batch, wanted: NDArray[np.bool_]) -> Iterator[PlainBatches]:
    """Yield one item: the records of a batch of an old format, encoded as in magic 2.

    `wanted` is bool[1]. If it is False, the item has no records.
    """
    base_offset = batch.header.base_offset
    records = list(batch.records()) if wanted.all() else []
    payload = b"".join(
        encode_record(
            record,
            offset_delta=record.offset - base_offset,
            timestamp_delta=NO_TIMESTAMP if record.timestamp is None else record.timestamp,
        )
        for record in records
    )
    spans = np.array([(0, len(payload), len(records), base_offset, 0)], np.int64)
    yield PlainBatches(0, 1, np.frombuffer(payload, np.uint8), spans)


def scan_at(
    read: Callable[[int, int], memoryview],
    position: int,
    end: int,
    first_offset: int,
    *,
    gaps: bool,
) -> tuple[ScannedBatches, int]:
    """Return the valid batches at `position` of a file, and the position in the file after the last of them.

    `read(position, size)` reads the file; its bytes from `end` on are ignored. The first batch must have the base
    offset `first_offset`, and each later batch the offset after the batch before it; with `gaps`, a base offset may
    also be higher. The scan stops at the first batch that breaks this rule, is incomplete, invalid, or of an old
    format. If it stops at the very first batch, the result has no rows, and the returned position is `position`.
    Otherwise the result has up to 1 MiB of batches, or one larger batch.
    """
    left = end - position
    data = read(position, min(_CHUNK_BYTES, left))
    found, stop = scan(data, first_offset, gaps=gaps)
    if not len(found.rows) and len(data) < left:
        # Either the first batch is larger than the chunk, or there is no valid batch.
        length = START.unpack_from(data)[1] + LENGTH_OVERHEAD if len(data) >= HEADER_SIZE else 0
        if _CHUNK_BYTES < length <= min(left, _MOST_BYTES):
            found, stop = scan(read(position, length), first_offset, gaps=gaps)
    return found._replace(position=position), position + stop


def scan(data: memoryview, first_offset: int, *, gaps: bool) -> tuple[ScannedBatches, int]:
    """Return the valid batches at the start of `data`, and the position in `data` after the last of them.

    The first batch must have the base offset `first_offset`, and each later batch the offset after the batch before
    it; with `gaps`, a base offset may also be higher. The scan stops at the first batch that breaks this rule, is
    incomplete, invalid, or of an old format; `batch_iterator.Walk` tells the reason. If it stops at the very
    first batch, the result has no rows, and the position is 0.
    """
    from logfs.format.kernels import batch_kernels

    rows = np.empty((len(data) // HEADER_SIZE + 1, BATCH_COLUMNS), np.int64)
    count, end = batch_kernels.scan_batches(np.frombuffer(data, np.uint8), first_offset, gaps, rows)
    rows = rows[:count]
    wrong = _first_wrong_crc(data, rows)
    if wrong < count:
        rows, end = rows[:wrong], int(rows[wrong, POSITION])
    return ScannedBatches(0, data, rows), end


def _first_wrong_crc(data: memoryview, rows: NDArray[np.int64]) -> int:
    """Return the index in `rows` of the first batch whose CRC is wrong; `len(rows)` if every CRC is right."""
    from logfs.format.kernels import batch_kernels

    wrong = len(rows)
    numbers: Sequence[int] = range(wrong)
    checked = rows
    large = rows[:, SIZE] > _SMALL_BYTES
    if not large.all():
        wrong = int(batch_kernels.check_crcs(np.frombuffer(data, np.uint8), rows, _SMALL_BYTES))
        numbers = np.flatnonzero(large[:wrong]).tolist()
        checked = rows[numbers]
    headers = checked[:, (POSITION, SIZE, CRC)].tolist()
    for number, (start, size, crc) in zip(numbers, headers, strict=True):
        if crc32c(data[start + CRC_START : start + size]) != crc:
            return number
    return wrong


def scan_one(position: int, batch: Batch) -> ScannedBatches:
    """Return a valid batch at `position` of its file as a run of one batch, which may be of an old format."""
    header = batch.header
    if header.magic == MAGIC:
        return scan(batch.data, header.base_offset, gaps=True)[0]._replace(position=position)
    row = np.zeros((1, BATCH_COLUMNS), np.int64)
    row[0, SIZE] = header.size_bytes
    row[0, CRC] = header.crc
    row[0, ATTRIBUTES] = header.attributes
    row[0, NEXT_OFFSET] = header.next_offset
    row[0, MAX_TIMESTAMP] = header.max_timestamp
    row[0, LEADER_EPOCH] = header.partition_leader_epoch
    row[0, PRODUCER_ID] = header.producer_id
    row[0, SPAN_COUNT] = header.record_count
    row[0, SPAN_BASE_OFFSET] = header.base_offset
    row[0, SPAN_BASE_TIMESTAMP] = header.base_timestamp
    return ScannedBatches(position, memoryview(batch.data), row, batch)


def _spans(rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the columns from SPAN_START on, which `decode_columns` and the kernels need, as a contiguous array.

    numba would compile each kernel a second time for an array that is not contiguous.
    """
    return np.ascontiguousarray(rows[:, SPAN_START:])


def survey(segment: Segment, position: int, first_offset: int) -> Iterator[ScannedBatches | Damage]:
    """Yield the valid batches of a segment in runs, with their text sizes, and each `Damage` between them.

    The scan begins at `position`. `first_offset` is the lowest base offset that the first batch may have.
    """
    return scan_ahead(segment, position, first_offset, ScannedBatches.measured)


def scan_ahead(
    segment: Segment,
    position: int,
    first_offset: int,
    work: Callable[[ScannedBatches], T],
) -> Iterator[T | Damage]:
    """Call `work` with each run of valid batches of a segment; yield its results, and each `Damage` between the runs.

    The scan begins at `position`. `first_offset` is the lowest base offset that the first batch may have. For a large
    segment, `work` is called in other threads too, while the calling thread reads ahead. The order stays that of the
    file.
    """

    def done(found: ScannedBatches | Damage) -> T | Damage:
        return found if isinstance(found, Damage) else work(found)

    scanned = scan_segment(segment, position, first_offset)
    is_large = segment.size_bytes - position >= _LARGE_BYTES
    return map_ahead(done, scanned) if is_large else map(done, scanned)


def scan_segment(
    segment: Segment, position: int, first_offset: int
) -> Iterator[ScannedBatches | Damage]:
    """Yield the valid batches of a segment from `position` on, in runs, and each `Damage` between them.

    `first_offset` is the lowest base offset that the first batch may have. Without `segment.gaps`, a higher base
    offset means that batches are missing, which is damage. If a truncation cuts the segment, the iteration ends.
    """
    size = segment.size_bytes
    expected = first_offset
    asked = position
    while position < size:
        # Request read-ahead: the kernel itself does not detect a sequential scan, because the chunks overlap.
        asked = max(asked, position)
        segment.read_ahead(asked, position + _AHEAD_BYTES - asked)
        asked = position + _AHEAD_BYTES
        found, _ = scan_at(segment.read, position, size, expected, gaps=segment.gaps)
        rows = _without_doubtful_end(_below(found.rows, segment.limit_offset), expected)
        if len(rows):
            found = found._replace(rows=rows)
            yield found
            position, expected = found.end, found.next_offset
            continue
        # At `position` is damage, a message of an old format, or a batch after missing offsets, whose base offset the
        # scan cannot confirm. The walk handles all of these, and then yields the next valid batch.
        before = position
        for walked in segment.walk(position, first_offset=expected, is_end_known=False):
            if isinstance(walked, Damage):
                if walked.end >= size:
                    # The walk does not know how many offsets the end of the segment has.
                    reached = max(walked.next_offset, segment.next_offset)
                    walked = walked._replace(next_offset=reached)
                yield walked
                # Let the walk yield the next batch, too. No CRC covers the offset of that batch, but the walk checks
                # the offset by the batch after it.
                position, expected = walked.end, walked.next_offset
                continue
            yield scan_one(*walked)
            header = walked[1].header
            position, expected = walked[0] + header.size_bytes, header.next_offset
            if header.magic == MAGIC:
                break
        if position == before:
            # A truncation has cut the segment meanwhile: it ends at or before `position`.
            return
    if segment.next_base is not None and expected < segment.next_base and not segment.gaps:
        yield Damage(size, size, expected, segment.next_base, "the file ends too early")


def position_to_scan_from(segment: Segment, offset: int) -> int:
    """Return a position at or shortly before the batch of `offset`; 0 if the segment begins at or above `offset`."""
    return segment.position_of(offset) if offset > segment.base_offset else 0


def scan_from(segment: Segment, offset: int) -> Iterator[ScannedBatches | Damage]:
    """Yield the batches of a segment in runs, and each `Damage`, up to the end of the segment.

    The first batch is that of `offset`, or one shortly before it.
    """
    position = position_to_scan_from(segment, offset)
    head = segment.header(position) if position else None
    first = segment.base_offset if head is None else head.base_offset
    return scan_segment(segment, position if head else 0, first)


def _below(rows: NDArray[np.int64], limit_offset: int) -> NDArray[np.int64]:
    """Return the batches before the first batch that has an offset of `limit_offset` or higher."""
    is_beyond = rows[:, NEXT_OFFSET] > limit_offset
    return rows[: int(is_beyond.argmax())] if is_beyond.any() else rows


def _without_doubtful_end(rows: NDArray[np.int64], expected: int) -> NDArray[np.int64]:
    """Return `rows` without the last batch if offsets are missing just before it.

    `expected` is the offset at which the first row begins if no offsets are missing before it. No CRC covers the base
    offset of a batch: only the batch that follows can confirm it. The next scan therefore begins with the batch that
    was left out, and reads the following batch, too.
    """
    if len(rows):
        before = int(rows[-2, NEXT_OFFSET]) if len(rows) > 1 else expected
        if rows[-1, SPAN_BASE_OFFSET] != before:
            return rows[:-1]
    return rows


def _texts(columns: Columns, group: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the text size of each batch of a group, whose records are `columns`: int64[batches, 3]."""
    counts = group[:, SPAN_COUNT]
    ends = np.cumsum(counts)
    lines, envelopes = rendering.line_sizes(columns), rendering.envelope_sizes(columns)
    return np.column_stack((counts, _sums(lines, ends), _sums(envelopes, ends)))


def _sums(values: NDArray[np.int64], ends: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the sums of consecutive groups of values; group i ends before index ends[i]."""
    running = np.concatenate(([0], np.cumsum(values)))[np.concatenate(([0], ends))]
    return np.diff(running)


def text_size(found: tuple[int, Batch] | Damage) -> TextSize:
    """Return the text size of a batch or of damage: the number of records, and the bytes in each text view.

    `found` is what a `batch_iterator.Walk` yields: (position, batch) or damage. Damage has no records, and as many
    bytes in the views as in the file, so that readers can go past the damage. A batch whose records cannot be decoded
    counts as damage.
    """
    if isinstance(found, Damage):
        return TextSize(0, found.end - found.start, found.end - found.start)
    _, batch = found
    try:
        return rendering.measure(batch)
    except Corrupt:
        return TextSize(0, batch.header.size_bytes, batch.header.size_bytes)
