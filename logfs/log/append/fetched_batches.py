"""Appends batches that were fetched from another log: the bytes and the offsets stay the same, as in a follower.

A leader checks the batches of producers and assigns offsets. A follower changes nothing (kafka-storage 2.9.1): it
keeps codecs, timestamps, leader epochs, producer ids, transaction markers, and the gaps that compaction has left.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from logfs.errors import Corrupt, OffsetOutOfRange
from logfs.format.base.batch_rows import (
    MAX_TIMESTAMP,
    NEXT_OFFSET,
    POSITION,
    SIZE,
    SPAN_BASE_OFFSET,
)
from logfs.format.batches.legacy import parse_batch, whole_batches
from logfs.log.segment.batch_scanner import scan, scan_one
from logfs.log.segment.index import MAX_RELATIVE_OFFSET
from logfs.log.state.producers import deciding_batches

if TYPE_CHECKING:
    from collections.abc import Callable

    from logfs.log.append.partition import Partition
    from logfs.log.segment.batch_scanner import ScannedBatches


def append_fetched(
    partition: Partition,
    data: bytes | memoryview,
    note_gap: Callable[[], object] = lambda: None,
    source: str = "",
) -> int:
    """Append the whole batches in `data` that this log lacks, and return their size in bytes.

    `data` is what Kafka's Fetch returns for an offset. It may begin with batches that this log already has, and end
    with an incomplete batch; these are left out. The batches are readable at once, and durable after `flush`.

    If offsets are missing before a batch, as after compaction, `note_gap` is called before the batch is appended. It
    must add the partition to the cleaner checkpoint: otherwise the next load of the partition takes the missing
    offsets for damage. `source` is the value that the topic's setting `logfs.mirror.source` must have, "" for
    a setting that is not set. If the setting has another value, raises `NotWritable`.

    Raises `Corrupt` for bytes that are not a valid batch. A batch that begins before the log end and ends after it is
    appended if this log is empty; otherwise the two logs differ, and `Corrupt` is raised. Raises `OSError` if the
    disk is full, `PartitionFailed` if a write fails for another reason or has failed before, and `UnknownPartition`
    if the partition was deleted. Batches that were appended before an error stay.
    """
    view = memoryview(data)
    start, end, has_gap = _take(partition, view, source, may_have_gaps=False)
    appended = end - start
    if has_gap:
        # Called without the partition's lock, because `note_gap` takes locks that must be taken before that lock.
        note_gap()
        start, end, _ = _take(partition, view[end:], source, may_have_gaps=True)
        appended += end - start
    partition.flush_if_due()
    return appended


def _take(
    partition: Partition, view: memoryview, source: str, *, may_have_gaps: bool
) -> tuple[int, int, bool]:
    """Append the whole batches in `view` that this log lacks, one run (`ScannedBatches`) at a time.

    If offsets are missing before a run or between its batches, and `may_have_gaps` is false, this run and later ones
    are not appended. `source` is the expected value of the topic's setting `logfs.mirror.source`. Returns (start,
    end, has_gap): the appended batches are the bytes [start, end) of `view`, and `has_gap` is True if a run was
    refused because of missing offsets.
    """
    with partition.disk.hold(partition.lock):
        partition.check_mirror(source)
        partition.disk.check_may_block()
        start = position = _skip_known(partition, view)
        while (run := _valid_batches(partition, view[position:])) is not None:
            if _has_gap(run, partition.log_end_offset):
                if not may_have_gaps:
                    return start, position, True
                partition.active.gaps = True
            try:
                _append(partition, run)
            except KeyboardInterrupt as interrupt:
                partition.fail("an append was interrupted", interrupt)
                raise
            position += run.end
    return start, position, False


def _has_gap(run: ScannedBatches, end: int) -> bool:
    """Whether offsets are missing between the offset `end` and the first batch in `run`, or between its batches."""
    ends = np.concatenate(([end], run.rows[:-1, NEXT_OFFSET]))
    return bool((run.rows[:, SPAN_BASE_OFFSET] != ends).any())


def _skip_known(partition: Partition, view: memoryview) -> int:
    """Return the position of the first batch in `view` that this log lacks.

    That batch may begin before the log end and end after it. If this log has records, the two logs then differ:
    raises `Corrupt`. If this log is empty, as after Kafka's DeleteRecords, the batch is accepted, and the active
    segment is replaced by one that begins at the base offset of the batch.
    """
    end, position = partition.log_end_offset, 0
    for header in whole_batches(view):
        if header.base_offset >= end:
            break
        if header.next_offset > end:
            if partition.log_start_offset == end and not partition.active.size_bytes:
                # The log is empty and starts within the batch, as after Kafka's DeleteRecords: begin the active
                # segment at the batch. The log start stays.
                partition.begin_segment(header.base_offset, partition.now_ms())
                break
            raise Corrupt(
                f"{partition.name.directory}: the copy ends at offset {end}, within the source's batch with offsets "
                f"{header.base_offset} to {header.next_offset - 1}, so the two logs differ; delete the copy to "
                "mirror the partition again"
            )
        position += header.size_bytes
    return position


def _valid_batches(partition: Partition, view: memoryview) -> ScannedBatches | None:
    """Return the valid batches at the start of `view`; None if `view` has no whole batch.

    Raises `Corrupt` if the first batch is whole but not valid.
    """
    run, _ = scan(view, partition.log_end_offset, gaps=True)
    if len(run.rows):
        return run
    if next(whole_batches(view), None) is None:
        return None
    batch = parse_batch(view)
    if not batch.is_valid:
        raise Corrupt(
            f"{partition.name.directory}: the fetched batch at offset {batch.header.base_offset} is not valid"
        )
    # `scan` takes only batches of magic 2. A message of an older format, or a wrapper of such messages, is one batch.
    return scan_one(0, batch)


def _append(partition: Partition, run: ScannedBatches) -> None:
    """Append the batches in `run`, and roll segments as the topic's settings require (kafka-storage 4.1)."""
    now_ms, config = partition.now_ms(), partition.config
    left = run.measured()
    while len(left.rows):
        try:
            writer = partition.writer(config)
            count = writer.how_many_fit(left, config, now_ms)
            if not count:
                last = int(left.rows[0, NEXT_OFFSET]) - 1
                if last - partition.log_end_offset > MAX_RELATIVE_OFFSET:
                    # Compaction of the source log has left a gap that no segment can span.
                    partition.begin_segment(int(left.rows[0, SPAN_BASE_OFFSET]), now_ms)
                else:
                    partition.roll(now_ms)
                partition.active.gaps = _has_gap(left, partition.log_end_offset)
                writer = partition.writer(config)
                # A batch that exceeds the size limit of a segment gets a segment of its own.
                count = max(writer.how_many_fit(left, config, now_ms), 1)
            fits, left = left.select(slice(count)), left.select(slice(count, None))
            # Leader epochs are written before the batches, as in Kafka: after a crash in between, a new epoch begins
            # at the log end and has no records.
            partition.epochs.note_batches(fits.rows)
            active = partition.active
            start, position = int(fits.rows[0, POSITION]), active.size_bytes
            partition.disk.write(active.file, position, fits.data[start : fits.end - fits.position])
            written = fits._replace(position=position - start)
            writer.append_written([written], config.index_interval_bytes)
        except OSError as error:
            raise partition.failed_append(error) from None
        size = int(fits.rows[:, SIZE].sum())
        for batch in deciding_batches(fits):
            partition.note_producer(batch, size)
        partition.note_appended(fits.text.records, size, config, now_ms)
        # Publish last: readers of committed records need what `note_producer` adds to the transaction index.
        partition.publish(last_timestamp=int(fits.rows[-1, MAX_TIMESTAMP]))


def begin_at(partition: Partition, offset: int, source: str = "") -> None:
    """Drop all records and begin this log at `offset`, the log start of the source log (kafka-storage 10.5).

    The caller must first raise the log start of this log to the log end, and make the new log start durable. If
    `offset` is above the log end, leader epochs and producers are dropped too. `source` is the expected value of the
    topic's setting `logfs.mirror.source`.

    Raises `OffsetOutOfRange` if `offset` is below the log end; `NotWritable` if the setting has another value; and
    `PartitionFailed`, `UnknownPartition` or `OSError` if the log cannot be changed.
    """
    end = partition.log_end_offset
    if offset < end:
        raise OffsetOutOfRange(
            f"{partition.name.directory}: the log cannot begin at offset {offset}, which is below its end, {end}"
        )
    # Drop the old segments first: the offsets missing between them and the new segment would count as damage.
    partition.drop_oldest(len(partition.segments))
    with partition.flusher.lock, partition.disk.hold(partition.lock):
        partition.check_mirror(source)
        if offset == end:
            return
        try:
            partition.epochs.truncate_from_end(end)
        except OSError as error:
            raise partition.failed_append(error) from None
        partition.producers.clear()
        partition.begin_segment(offset, partition.now_ms(), log_start_offset=offset)
        partition.snapshots.minimum_offset = offset
