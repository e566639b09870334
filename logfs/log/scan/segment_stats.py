"""The contents of a segment, counted in one pass: records, bytes, keys, times, and the effect of compression."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from logfs.errors import Corrupt
from logfs.format.base.batch_rows import ATTRIBUTES, SIZE
from logfs.format.batches.batch import CODEC_MASK, CONTROL_BIT, HEADER_SIZE
from logfs.format.batches.compression import Codec
from logfs.format.encoding.hyperloglog import KeySketch
from logfs.log.disk.disk import Gone
from logfs.log.segment import batch_scanner
from logfs.log.segment.batch_iterator import Damage

if TYPE_CHECKING:
    from collections.abc import Sequence

    from logfs.format.batches.columns import Columns
    from logfs.log.read.reader import Reader
    from logfs.log.segment.segment import Segment

# A batch may also have one of the codec numbers 5 to 7, which belong to no codec: it counts as "unknown".
_CODEC_NAMES = {codec.value: codec.name.lower() for codec in Codec}
_SECOND = 1000
_MINUTE, _HOUR, _DAY = 60 * _SECOND, 3600 * _SECOND, 86_400 * _SECOND
_WIDTHS_MS = (_SECOND, 10 * _SECOND, _MINUTE, 10 * _MINUTE, _HOUR, 6 * _HOUR, _DAY, 7 * _DAY)
# At most this many time buckets: a chart has no room for more bars.
_MOST_BUCKETS = 200


@dataclass
class SegmentStats:
    """The counts of one segment, or of several whose counts were merged.

    - `log_bytes`: the size of the .log files.
    - `plain_bytes`: the size that they would have without compression.
    - `value_bytes`: the bytes of keys, values and headers alone.
    - `damaged`: the bytes that are not valid batches, or are batches with malformed records.
    - `codecs`: the bytes of the .log files by codec.
    - `times`: the number of records by time. A key is the start of a time bucket (ms), or -1 for records without a
      timestamp.
    - `keys`: an estimate of the number of distinct keys.
    """

    log_bytes: int = 0
    plain_bytes: int = 0
    value_bytes: int = 0
    batches: int = 0
    records: int = 0
    null_keys: int = 0
    null_values: int = 0
    damaged: int = 0
    codecs: Counter[str] = field(default_factory=Counter)
    times: Counter[int] = field(default_factory=Counter)
    keys: KeySketch = field(default_factory=KeySketch)

    def merge(self, other: SegmentStats) -> None:
        """Add the counts of `other`."""
        self.log_bytes += other.log_bytes
        self.plain_bytes += other.plain_bytes
        self.value_bytes += other.value_bytes
        self.batches += other.batches
        self.records += other.records
        self.null_keys += other.null_keys
        self.null_values += other.null_values
        self.damaged += other.damaged
        self.codecs += other.codecs
        self.times += other.times
        self.keys.merge(other.keys)


def count_segment(segment: Segment, bucket_ms: int) -> SegmentStats:
    """Return the counts of a segment; the time buckets of `times` are `bucket_ms` long. Raises `OSError`.

    Records of aborted transactions count, because they use space. Control batches add to the bytes and batches, but
    not to the records.
    """
    counts = SegmentStats(log_bytes=segment.size_bytes)
    for found in batch_scanner.scan_segment(segment, 0, segment.base_offset):
        if isinstance(found, Damage):
            counts.damaged += found.end - found.start
            continue
        rows = found.rows
        attributes, sizes = rows[:, ATTRIBUTES], rows[:, SIZE]
        is_control = attributes & CONTROL_BIT != 0
        for codec in np.unique(attributes & CODEC_MASK).tolist():
            of_it = attributes & CODEC_MASK == codec
            counts.codecs[_CODEC_NAMES.get(codec, "unknown")] += int(sizes[of_it].sum())
        counts.batches += len(rows)
        counts.plain_bytes += int(sizes[is_control].sum())
        # To the size of decompressed records, add that of the batch header. In the old formats there is none to add:
        # each message has a header of its own, which counts as a part of the message.
        header_size = HEADER_SIZE if found.legacy is None else 0
        for columns, group in found.decode():
            plain = int(group[:, SIZE].sum())
            if isinstance(columns, Corrupt):
                # The CRC of the batch is right, but its records are malformed; `logfs check` reports the batch.
                counts.damaged += plain
                continue
            if group[0, ATTRIBUTES] & CODEC_MASK:
                plain = header_size + len(columns.data)
            _note_columns(counts, columns, plain, bucket_ms)
    return counts


def _note_columns(counts: SegmentStats, columns: Columns, plain_bytes: int, bucket_ms: int) -> None:
    counts.plain_bytes += plain_bytes
    counts.records += len(columns)
    counts.null_keys += int((columns.key_lengths < 0).sum())
    counts.null_values += int((columns.value_lengths < 0).sum())
    lengths = np.maximum(columns.key_lengths, 0).sum(dtype=np.int64)
    lengths += np.maximum(columns.value_lengths, 0).sum(dtype=np.int64)
    lengths += (columns.header_ends - columns.header_starts).sum()
    counts.value_bytes += int(lengths)
    times = columns.timestamps
    begins = np.where(times < 0, -1, times - times % bucket_ms)
    for begin, records in zip(*np.unique(begins, return_counts=True), strict=True):
        counts.times[int(begin)] += int(records)
    counts.keys.add(columns)


def times_by_index(segment: Segment, bucket_ms: int) -> Counter[int]:
    """Estimate the number of records in each time bucket from the time index of a segment.

    A key of the result is the start of a bucket of `bucket_ms`, or -1 for records without a timestamp. Offsets are
    counted in place of records. Each offset is counted at the timestamp of the first entry of the time index at or
    after this offset. Offsets after the last entry are counted at the greatest timestamp of the segment.
    """
    index, base = segment.time_index, segment.base_offset
    closing = segment.max_timestamp.timestamp, segment.next_offset - 1 - base
    counted: Counter[int] = Counter()
    first = 0
    for time, last in (*index.entry.iter_unpack(index.to_bytes()), closing):
        if last >= first:
            counted[-1 if time < 0 else time - time % bucket_ms] += last + 1 - first
        first = last + 1
    return counted


def bucket_width_ms(partitions: Sequence[Reader]) -> int:
    """Return a time bucket width (ms) with which at most 200 buckets cover the timestamps of the partitions.

    The timestamps are taken from the first batch of each partition and from the last entry of each time index.
    """
    first: list[int] = []
    last: list[int] = []
    for partition in partitions:
        # If a file is missing, its segment was deleted or replaced. The buckets need not cover its timestamps.
        with suppress(FileNotFoundError, Gone):
            header = partition.segments[0].header(0)
            if header is not None and header.base_timestamp >= 0:
                first.append(header.base_timestamp)
        for segment in partition.segments:
            with suppress(FileNotFoundError, Gone):
                last.append(segment.max_timestamp.timestamp)
    known = [time for time in last if time >= 0]
    return width_for(max(known, default=0) - min(first or known, default=0))


def width_for(span_ms: int) -> int:
    """Return a time bucket width (ms) with which at most 200 buckets cover any span of `span_ms`."""
    # A span of n bucket widths touches n + 1 buckets if it begins within a bucket.
    most = _MOST_BUCKETS - 1
    fitting = (width for width in _WIDTHS_MS if -(-span_ms // width) <= most)
    return next(fitting, -(-span_ms // most // _DAY) * _DAY)
