"""Staged batches: batches in separate files of a partition directory, which a commit appends to the log.

Staged batches are complete, with base offsets from 0 on. A commit rewrites only fields of their headers: staged
batches of 3 and 2 records have the base offsets 0 and 3, and get 100 and 103 in a log that ends at 100. A
`StagedAppend` writes the batches after the log end, where they are invisible. It then makes all of them visible at
once: it moves the end of the active segment, or adds new segments to the log. In each segment, the header of the
first of these batches is written after all other bytes; until then, the segment ends before that batch for processes
that read the files. The store decides when the commit takes place.
"""

from __future__ import annotations

import uuid
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from logfs.errors import Corrupt
from logfs.format.base import names
from logfs.format.base.batch_rows import (
    CRC,
    MAX_TIMESTAMP,
    POSITION,
    SIZE,
    SPAN_BASE_OFFSET,
    SPAN_COUNT,
)
from logfs.format.base.lazy_numpy import np
from logfs.format.batches.batch import HEADER_SIZE, assign_offset, parse_header, stamp
from logfs.format.batches.record import TimestampType
from logfs.format.files.commit_file import NO_APPEND_TIME, CommitPart, StagedFile, staged_name
from logfs.log.append.partition import LEADER_EPOCH
from logfs.log.append.validator import check_staged
from logfs.log.segment.batch_iterator import Damage
from logfs.log.segment.batch_scanner import ScannedBatches, scan, scan_at, scan_segment
from logfs.log.segment.segment import Segment

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from logfs.config import LogConfig
    from logfs.format.encoding.batch_builder import NewBatch
    from logfs.log.append.partition import Partition
    from logfs.log.disk.disk import Disk


class StagedWriter:
    """Writes complete batches to a new file in a partition directory, for a later commit.

    After `close`, the file can be part of a commit.
    """

    def __init__(self, disk: Disk, directory: Path, writer: str, sequence: int) -> None:
        """Create the file in the partition directory. Raises `FileNotFoundError` if there is no such directory.

        The file is for commit number `sequence` of the writer whose name in the commit file is `writer`
        (`CommitLog`).
        """
        self._disk = disk
        self._path = directory / staged_name(writer, sequence, uuid.uuid4().hex)
        self._file = disk.open(self._path, write=True, create=True)
        self._size_bytes = 0
        self._record_count = 0

    def write(self, batch: NewBatch) -> None:
        """Append a batch to the file. The batch's base offset becomes the number of records before it in the file."""
        assign_offset(batch.data, self._record_count, -1)
        self._disk.write(self._file, self._size_bytes, batch.data)
        self._size_bytes += len(batch.data)
        self._record_count += batch.record_count

    def close(self) -> StagedFile:
        """Make the file durable, and return its description."""
        self._disk.sync(self._file)
        self._file.close()
        self._disk.sync_directory(self._path.parent)
        name = self._path.name
        return StagedFile(self._path.parent.name, name, self._size_bytes, self._record_count)

    def discard(self) -> None:
        """Remove the file."""
        self._file.close()
        self._disk.unlink(self._path)


# Reading staged files.


def read_staged(disk: Disk, directory: Path, staged: StagedFile) -> Iterator[ScannedBatches]:
    """Yield the batches of the file that `staged` describes, in the partition directory `directory`, many at a time.

    Raises `Corrupt` if the file does not match its description, and `FileNotFoundError` if the file is missing.
    """
    file = disk.open(directory / staged.name)
    try:
        position = offset = 0
        while position < staged.size_bytes:
            found, end = scan_at(
                partial(disk.read, file), position, staged.size_bytes, offset, gaps=False
            )
            if not len(found.rows):
                raise Corrupt(
                    f"{file.path}: the file is damaged: it has no valid batch at byte {position}"
                )
            yield found
            position, offset = end, found.next_offset
        size_bytes = disk.size(file)
        if offset != staged.record_count or size_bytes != staged.size_bytes:
            raise Corrupt(
                f"{file.path}: the file is damaged: it has {offset} records in {size_bytes} bytes, but "
                f"{staged.record_count} records in {staged.size_bytes} bytes were staged"
            )
    finally:
        file.close()


class StagedSize(NamedTuple):
    """The size of staged batches in bytes and in records, and their greatest timestamp (ms; -1 without batches)."""

    size_bytes: int
    record_count: int
    max_timestamp: int


def measure_staged(
    disk: Disk,
    directory: Path,
    files: Sequence[StagedFile],
    checked_for: LogConfig | None = None,
    now_ms: int = 0,
    *,
    skip: int = 0,
) -> StagedSize:
    """Read staged files in a partition directory, and return the total size of all but the first `skip` batches.

    If `checked_for` (the topic's settings) is given, all batches are also checked: raises `RecordTooLarge` or
    `InvalidRecord` if the settings do not allow a batch. `now_ms`, the present time, is needed to check the
    timestamps. Raises `Corrupt` if a file does not match its description or has malformed records, and
    `FileNotFoundError` if a file is missing.
    """
    columns = (SIZE, SPAN_COUNT, MAX_TIMESTAMP)
    found = [np.empty((0, 3), np.int64)]
    for staged in files:
        for scanned in read_staged(disk, directory, staged):
            found.append(scanned.rows[:, columns])
            if checked_for is not None:
                for batch in scanned.batches():
                    check_staged(batch, checked_for, now_ms)
    sizes, counts, timestamps = np.concatenate(found)[skip:].T
    return StagedSize(int(sizes.sum()), int(counts.sum()), int(timestamps.max(initial=-1)))


def final_batches(disk: Disk, directory: Path, part: CommitPart) -> Iterator[ScannedBatches]:
    """Yield the batches of `part`, the part of a commit for one partition, as the log will have them.

    Many batches are yielded at a time. The first `part.skip` batches are left out. Offsets, leader epoch and, for
    LogAppendTime, timestamps are set. Each item has the `position` 0, because its bytes are a copy and not a part of
    a file. Raises `Corrupt` if a staged file does not match its description, and `FileNotFoundError` if it is
    missing.
    """
    offset, skip = part.base_offset, part.skip
    for staged in part.files:
        for scanned in read_staged(disk, directory, staged):
            data, rows = scanned.data, scanned.rows
            skipped, skip = min(skip, len(rows)), max(skip - len(rows), 0)
            if skipped == len(rows):
                continue
            start = int(rows[skipped, POSITION])
            end = int(rows[-1, POSITION] + rows[-1, SIZE])
            first = int(rows[skipped, SPAN_BASE_OFFSET])
            out = memoryview(bytearray(data[start:end]))
            wanted = (POSITION, SIZE, SPAN_BASE_OFFSET)
            for at, size, base in rows[skipped:, wanted].tolist():
                batch = out[at - start : at - start + size]
                assign_offset(batch, offset + base - first, part.leader_epoch)
                if part.append_time != NO_APPEND_TIME:
                    stamp(batch, part.append_time)
            final, _ = scan(out.toreadonly(), offset, gaps=False)
            yield final
            offset = final.next_offset


# Appending staged batches.


class _SegmentRun:
    """The batches of a commit that go into one segment: the bytes [start, end) of its .log file.

    `header` is the header of the first of these batches. It is written after all other bytes.
    """

    def __init__(self, segment: Segment, position: int) -> None:
        self.segment = segment
        self.start = position
        self.end = position
        self.header = b""
        # The batches without their bytes, because the bytes of all batches together may exceed the memory.
        self.batches: list[ScannedBatches] = []


class StagedAppend:
    """Appends staged batches to a partition: call `write`, then `publish` or `undo`.

    The caller must hold `Flusher.lock` and the partition's `lock`.
    """

    def __init__(self, partition: Partition, part: CommitPart, size: StagedSize) -> None:
        """Prepare to append the batches of `part`; `size` is their total size, without the first `part.skip` batches.

        `part` must be a result of `assign_place`, and the log must not have changed since that call.
        """
        self.partition = partition
        self.part = part
        self._size = size
        self._config = partition.config
        self._runs: list[_SegmentRun] = []

    def write(self) -> None:
        """Write the batches after the log end, still invisible. After an `OSError`, `undo` restores the log."""
        part, partition = self.part, self.partition
        active = partition.active
        if part.segment != active.base_offset:
            self._begin(part.segment)
        else:
            self._runs.append(_SegmentRun(active, part.position))
        for scanned in final_batches(partition.disk, partition.directory, part):
            left = scanned.measured()
            while len(left.rows):
                count = self._how_many_fit(left)
                if count:
                    self._put(left.select(slice(count)))
                left = left.select(slice(count, None))
                if len(left.rows):
                    self._seal(int(left.rows[0, SPAN_BASE_OFFSET]))
        if self._runs[-1].segment is not active:
            partition.disk.sync_directory(partition.directory)

    def _how_many_fit(self, batches: ScannedBatches) -> int:
        """Return how many of `batches` go in the last segment: all that fit, at least one if the segment is empty."""
        run = self._runs[-1]
        if run.start:
            # The segment had batches before: `assign_place` has checked that all batches of the commit fit in it.
            return len(batches.rows)
        writer = run.segment.writer
        assert writer is not None, "assign_place and _begin activate the segment"
        now_ms = self.partition.now_ms()
        count = writer.how_many_fit(batches, self._config, now_ms, run.batches)
        return count if run.batches else max(count, 1)

    def _begin(self, base_offset: int) -> None:
        segment = Segment(self.partition.disk, self.partition.directory, base_offset)
        self._runs.append(_SegmentRun(segment, 0))
        segment.begin(self._config, self.partition.now_ms())

    def _put(self, batches: ScannedBatches) -> None:
        """Write batches at the end of the last segment. They must have text sizes (`ScannedBatches.measured`).

        The header of the first batch in the segment's run is not written, but kept in the run; zeros take its place.
        """
        run = self._runs[-1]
        start = int(batches.rows[0, POSITION])
        part = batches.data[start : batches.end]
        if run.end == run.start:
            run.header = bytes(part[:HEADER_SIZE])
            part = memoryview(bytes(HEADER_SIZE) + part[HEADER_SIZE:])
        self.partition.disk.write(run.segment.file, run.end, part)
        run.batches.append(batches._replace(position=run.end - start, data=memoryview(b"")))
        run.end += len(part)

    def _seal(self, next_base: int) -> None:
        """Seal the last segment, and begin the next one at the offset `next_base`.

        First writes the header that `_put` has left out, because the file of a sealed segment must be complete.
        """
        run = self._runs[-1]
        if run.segment is self.partition.active:
            # Seal a copy of the segment object. Readers have the original, which is empty, and must see nothing in it
            # before all later segments are written.
            run.segment = run.segment.detached()
        self._complete()
        run.segment.seal(next_base)
        self._begin(next_base)

    def _complete(self) -> None:
        run = self._runs[-1]
        self.partition.disk.write(run.segment.file, run.start, run.header)
        writer = run.segment.writer
        assert writer is not None, "assign_place and _begin activate the segment"
        writer.append_written(run.batches, self._config.index_interval_bytes)

    def undo(self) -> None:
        """Remove the batches and segments that `write` has written."""
        partition = self.partition
        for run in reversed(self._runs):
            segment = run.segment
            if segment.base_offset != partition.active.base_offset:
                segment.discard()
            elif segment is partition.active:
                segment.cut_back()
            else:
                active = partition.active
                cut = active.end_before(segment.base_offset)
                active.truncate(cut, self._config, partition.now_ms())
        self._runs.clear()

    def publish(self, now_ms: int) -> None:
        """Make the batches that `write` has written visible to readers; `now_ms` is the time of the append.

        Raises `PartitionFailed` for an `OSError`: how much was written is unknown, so the log takes no more appends.
        """
        partition, active = self.partition, self.partition.active
        first, last = self._runs[0], self._runs[-1]
        try:
            self._complete()
            segments = partition.state.segments
            if first.segment is not active:
                new = tuple(run.segment for run in self._runs)
                kept = segments[:-1]
                if first.segment.base_offset != active.base_offset:
                    active.seal(first.segment.base_offset)
                    kept = segments
                segments = kept + new
                for segment in new:
                    partition.snapshots.write(segment.base_offset, partition.producers)
            timestamp = int(last.batches[-1].rows[-1, MAX_TIMESTAMP])
            size = self._size
            partition.note_appended(size.record_count, size.size_bytes, self._config, now_ms)
            partition.publish(segments=segments, last_timestamp=timestamp)
        except KeyboardInterrupt as interrupt:
            partition.fail("a commit was interrupted", interrupt)
            raise
        except OSError as error:
            raise partition.fail("a commit could not be made visible", error) from error
        if active not in segments:
            # Text views that have reached the empty active segment continue with the segment that has replaced it.
            active.next_base = active.base_offset


def assign_place(
    partition: Partition, part: CommitPart, size: StagedSize, now_ms: int
) -> CommitPart:
    """Return `part` with its place (the log end), its leader epoch and, for LogAppendTime, its append time.

    The place (`base_offset`, `segment`, `position`) is that of the first batch to be written: the first `part.skip`
    batches are in the log already. `size` is the total size of the other batches. The caller must hold
    `Flusher.lock` and the partition's `lock`.
    """
    active, config = partition.active, partition.config
    writer = partition.writer(config)
    if partition.epochs.latest < 0:
        partition.epochs.assign(LEADER_EPOCH, partition.log_end_offset)
    end = partition.log_end_offset
    late = config.message_timestamp_type == TimestampType.LOG_APPEND_TIME.label
    newest = now_ms if late else size.max_timestamp
    last = end + size.record_count - 1
    rolls = writer.should_roll(size.size_bytes, last, newest, config, now_ms)
    in_new = rolls and active.size_bytes > 0
    return replace(
        part,
        base_offset=end,
        segment=end if in_new else active.base_offset,
        position=0 if in_new else active.size_bytes,
        leader_epoch=partition.epochs.latest,
        append_time=now_ms if late else NO_APPEND_TIME,
    )


# The functions below find out how much of a commit is in the files of a partition, after a crash and before the
# partition is opened.


def reconcile(disk: Disk, directory: Path, part: CommitPart) -> tuple[CommitPart, bool]:
    """Compare `part`, the part of a commit for one partition, with the .log files of the partition.

    Returns an updated part, and whether the log must end at the part's place. The first of these cases that applies
    decides:

    - All batches of the part are in the log, or the log now begins above the place: returns the part with `done` set,
      and False.
    - Batches of another writer are at or after the place: changes no file, and returns the part with `skip` set to
      the number of its batches that are in the log, and False. The other batches of the part get a new place later.
    - At or after the place are at most some of the part's batches, whole or cut short, as a crash leaves them: on a
      writable disk, cuts these off. Returns the part unchanged, and True.

    Raises `Corrupt` if a staged file does not match its description or if the place is within an existing batch,
    `FileNotFoundError` if a staged file is missing, and `OSError`.
    """
    bases = sorted(
        names.parse_stem(entry.name)
        for entry in disk.scan(directory)
        if entry.name.endswith(names.LOG)
    )
    if bases and bases[0] > part.base_offset:
        # The part was appended, and its records were deleted since.
        return replace(part, done=True), False
    bases = [base for base in bases if base >= part.segment]
    existing = _ExistingBatches(disk, directory, bases, part)
    ours: set[tuple[int, int]] = set()
    for scanned in final_batches(disk, directory, part):
        wanted = (POSITION, SIZE, CRC, SPAN_BASE_OFFSET)
        for at, size, crc, offset in scanned.rows[:, wanted].tolist():
            ours.add((offset, crc))
            existing.compare(offset, scanned.data[at : at + size])
    if not existing.differs:
        return replace(part, done=True), False
    if existing.has_others(ours):
        return replace(part, skip=part.skip + existing.matched), False
    existing.check_place(part)
    if disk.writable:
        existing.cut(part)
    return part, True


class _ExistingBatches:
    """Compares the batches of `part`, the part of a commit for one partition, with the partition's .log files.

    The comparison begins at the place of the part; `bases` has the base offsets of the segments from there on.
    `matched` is the number of batches of the part that were found in the files. `differs` becomes True at the first
    batch that was not found; later batches are not compared.
    """

    def __init__(self, disk: Disk, directory: Path, bases: Sequence[int], part: CommitPart) -> None:
        self._disk = disk
        self._directory = directory
        self._segments = {base: Segment(disk, directory, base) for base in bases}
        self._base = part.segment
        self._position = part.position
        self._next_offset = part.base_offset
        self.matched = 0
        self.differs = False

    def compare(self, offset: int, batch: memoryview) -> None:
        """Compare the next batch of the part with the files, unless an earlier batch differed.

        `batch` has the batch's bytes as the log is to have them, and `offset` is its base offset in the log.
        """
        if self.differs:
            return
        segment = self._segments.get(self._base)
        if segment is not None and self._position == segment.size_bytes and offset > self._base:
            segment = self._segments.get(offset, segment)
            if segment.base_offset == offset:
                self._base, self._position = offset, 0
        if segment is None or segment.read(self._position, len(batch)) != batch:
            self.differs = True
            return
        self.matched += 1
        self._position += len(batch)
        self._next_offset = parse_header(batch).next_offset

    def has_others(self, ours: set[tuple[int, int]]) -> bool:
        """Return whether the files have a batch of another writer after the matched batches of the part.

        `ours` has the pair (offset, CRC) of each batch of the part.
        """
        for base, segment in self._segments.items():
            if base < self._base:
                continue
            position = self._position if base == self._base else 0
            segment.resume_unread(segment.size_bytes)
            first = max(base, self._next_offset)
            for found in segment.walk(position, first_offset=first, is_end_known=False):
                if isinstance(found, Damage):
                    continue
                header = found[1].header
                if (header.base_offset, header.crc) not in ours:
                    return True
        return False

    def check_place(self, part: CommitPart) -> None:
        """Raise `Corrupt` if the part's place is within a batch. Such a place was assigned in another log."""
        segment = self._segments.get(part.segment)
        if segment is None:
            return
        segment.resume_unread(segment.size_bytes)
        for found in scan_segment(segment, 0, segment.base_offset):
            if (
                not isinstance(found, Damage)
                and found.position < part.position < found.end
                and part.position not in found.positions
            ):
                raise Corrupt(
                    f"{segment.path}: a commit would begin at byte {part.position}, which is within a batch; "
                    "restore the log and the file logfs-commits from the same copy"
                )

    def cut(self, part: CommitPart) -> None:
        """Truncate the log where the batches of `part` begin: at byte `part.position` of segment `part.segment`."""
        for base, segment in reversed(self._segments.items()):
            if base > part.segment:
                segment.discard()
            elif segment.size_bytes > part.position:
                self._disk.truncate(segment.file, part.position)
                self._disk.sync(segment.file)
        self._disk.sync_directory(self._directory)
