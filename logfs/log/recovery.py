"""Recovery: make valid segments of the files that a crash left, in Kafka's order (kafka-storage 5.2, 5.3).

One difference is deliberate. Kafka cuts the log at the first bad batch and deletes every later segment, which is
right if replicas hold the data, but loses data on a single node. Here only a torn tail is cut off
(`_LogLoader._is_torn`): invalid bytes at the end of a segment that do not begin with a whole batch, in a log that was
not closed properly. In the last segment, the offset after the last batch must be at or above the recovery point. In
an earlier segment, the next segment must begin at the offset after the last batch. A torn tail is kept in a `.torn`
file, unless it is all zeros. Segments at the end of the log that contain no batch are deleted if they begin at or
after the recovery point and the log before them has lost its end (`_LogLoader._ends_early`). Damage anywhere else
stays where it is: reading its offsets raises `Corrupt`, and everything after it stays readable.

For example, the offsets 0 to 19 are in the bytes 0 to 799 of the last segment, and 200 bytes of an unfinished batch
follow. With a recovery point of 20, these 200 bytes are a torn tail, and the next append gets offset 20. With a
recovery point of 30, they are damage at the offsets 20 to 29, which were durable, and the log continues at offset 30
in a new segment.

`load` returns what a `Partition` is made from. For a read-only store it takes the same steps in memory, and changes
no file.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from logfs.errors import Corrupt
from logfs.format.base import names
from logfs.format.base.batch_rows import MAX_TIMESTAMP
from logfs.format.batches.batch import Batch
from logfs.log.disk.disk import TEMPORARY
from logfs.log.segment.batch_iterator import CHUNK_BYTES, Damage
from logfs.log.segment.batch_scanner import scan_segment, survey
from logfs.log.segment.index import MAX_RELATIVE_OFFSET, TimeEntry
from logfs.log.segment.index_builder import IndexBuilder
from logfs.log.segment.segment import Segment
from logfs.log.segment.segment_end import UNMEASURED, SegmentEnd
from logfs.log.segment.segment_listing import list_segments
from logfs.log.segment.txn_index import aborted_in
from logfs.log.state.leader_epochs import LeaderEpochs
from logfs.log.state.producer_snapshots import ProducerSnapshots
from logfs.log.state.producers import Producers, deciding_batches

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path

    from logfs.config import LogConfig
    from logfs.format.files.aborted_transactions import AbortedTransaction
    from logfs.log.disk.disk import Disk
    from logfs.log.segment.batch_scanner import ScannedBatches
    from logfs.log.segment.segment_listing import Files

logger = logging.getLogger(__name__)

TORN = ".torn"
_TEMPORARY_INDEXES = tuple(
    suffix + kind + TEMPORARY for suffix in names.SEGMENT_FILES[1:] for kind in ("", names.CLEANED)
)
_UNFINISHED = {f"{names.KEY_INDEX}.tmp", f"{names.COMMITTED_KEY_INDEX}.tmp"}


class FilePosition(NamedTuple):
    """A byte position in the .log file of the segment that begins at `base_offset`."""

    base_offset: int
    position: int


class LoadStart(NamedTuple):
    """What is known of a partition before it is loaded.

    - `closed`: the partition was closed properly: all bytes that its files had then are durable, and it has no torn
      tail.
    - `recovery_point`, `log_start_offset`: the offsets in the checkpoint files, 0 if these have none.
    - `compacted`: compaction may have removed records, so a missing offset is not damage.
    - `rebuild`: read all of the log and rebuild every index, even if it was closed properly.
    - `producer_expiration_ms`: how long an idle producer is remembered.
    - `end`: the file position at which a read-only store ends the log, ignoring all later bytes; None if the log
      ends with its files.
    - `is_tiered`: the log may begin below its first local segment, in an object store.
    """

    closed: bool
    recovery_point: int = 0
    log_start_offset: int = 0
    compacted: bool = False
    rebuild: bool = False
    producer_expiration_ms: int = 86_400_000
    end: FilePosition | None = None
    is_tiered: bool = False

    @property
    def is_clean(self) -> bool:
        """Whether the log needs no recovery: it was closed properly, and `rebuild` is False."""
        return self.closed and not self.rebuild


@dataclass(slots=True)
class Loaded:
    """The valid files of a partition, after recovery if it was needed.

    `producers` has the producers at the log end. It is None in a read-only store that has not recovered the end of
    the log: such a store loads them on demand. `last_timestamp` (ms) is the greatest timestamp of the last batch or,
    if the last segment is empty, of the segment before it; -1 if it is not known. `torn` has a message for each torn
    tail that was cut off. The files of the segments in `unsynced` were changed: flush them before relying on their
    durability.
    """

    segments: list[Segment]
    log_start_offset: int
    recovery_point: int
    epochs: LeaderEpochs
    snapshots: ProducerSnapshots
    producers: Producers | None
    last_timestamp: int = -1
    torn: list[str] = field(default_factory=list)
    unsynced: list[Segment] = field(default_factory=list)


def _is_whole(segment: Segment, position: int) -> bool:
    """Whether a batch with a right checksum is at `position`, whatever its offsets are."""
    header = segment.header(position)
    if header is not None and header.size_bytes <= segment.size_bytes - position:
        with suppress(Corrupt):
            return Batch.parse(segment.read(position, header.size_bytes)).is_valid
    return False


def load(
    disk: Disk,
    directory: Path,
    config: LogConfig,
    start: LoadStart,
    now_ms: int,
    progress: Callable[[int], None] = lambda _: None,
    kind: type[Segment] = Segment,
) -> Loaded:
    """Load a partition directory. If it was not closed properly, recover it from the recovery point on.

    Segments without usable indexes are recovered in any case. `start` is what is known of the partition. `now_ms` is
    the present time, which decides whether idle producers have expired. `progress` is called while .log files are
    recovered, each time with the number of bytes read since its last call. `kind` is the class of the segments.
    Raises `Corrupt` for a malformed leader epoch file, `InvalidName` for a .log file that is not named after an
    offset, and `OSError` if a file cannot be read or written.
    """
    return _LogLoader(disk, directory, config, start, now_ms, progress, kind).run()


@dataclass(eq=False)
class _LogLoader:
    disk: Disk
    directory: Path
    config: LogConfig
    start: LoadStart
    now_ms: int
    progress: Callable[[int], None]
    kind: type[Segment]
    torn: list[str] = field(default_factory=list)
    unsynced: list[Segment] = field(default_factory=list)
    last_timestamp: int = -1
    # The state of the producers at the offset `producers_end`, which recovery has reached.
    producers: Producers = field(default_factory=Producers)
    producers_end: int = -1
    # The log end offset of a log that was closed properly, from its snapshots and indexes; 0 if unknown.
    closed_at: int = 0

    def run(self) -> Loaded:
        if self.disk.writable:
            self._finish_interrupted()
        self.listing = list_segments(self.disk, self.directory, self._end_of)
        if self.start.end is not None:
            last = self.start.end.base_offset
            self.listing = {base: files for base, files in self.listing.items() if base <= last}
        self.epochs = LeaderEpochs(self.disk, self.directory)
        self.snapshots = ProducerSnapshots(
            self.disk, self.directory, self.start.producer_expiration_ms
        )
        segments, log_end_offset = self._recover(self._open_segments())
        # The log start offset: the records below it were deleted.
        deleted = self.start.log_start_offset
        if segments and log_end_offset < deleted:
            if self.start.is_clean:
                what = "%s: log start offset %d of the checkpoint is beyond the log end %d: ignored"
                logger.error(what, self.directory, deleted, log_end_offset)
                deleted = 0
            else:
                # A crash lost the records that followed the deleted records. Everything that is left lies below the
                # log start offset (kafka-storage 5.3).
                for segment in segments:
                    segment.close()
                    if self.disk.writable:
                        segment.discard()
                self.epochs.truncate_from_end(0)
                segments = []
        if not segments:
            # Offsets that were durable are never assigned again, even if their files are lost.
            log_end_offset = max(deleted, self.start.recovery_point)
            segments = [self._new_segment(log_end_offset)]
        log_start_offset = max(deleted, segments[0].base_offset)
        # In a tiered log, the snapshot at the first local offset has the producers of the remote segments: keep it.
        first = deleted if self.start.is_tiered else log_start_offset
        producers = self._load_producers(segments, first, log_end_offset)
        for segment in segments:
            # Close the files that loading opened: a store may have very many partitions. Later uses open them again.
            if segment.is_active:
                segment.finish()
            segment.close()
            if self.disk.writable and segment not in self.unsynced:
                segment.forget_indexes()
        segments[-1].created_ms = self.now_ms
        self.epochs.truncate_from_end(log_end_offset)
        self.epochs.truncate_from_start(deleted)
        clean = self.start.is_clean and not self.torn
        point = log_end_offset if clean else min(self.start.recovery_point, log_end_offset)
        return Loaded(
            segments,
            log_start_offset,
            point,
            self.epochs,
            self.snapshots,
            producers,
            self.last_timestamp,
            self.torn,
            self.unsynced,
        )

    # Completing or removing what deletion, compaction and swap left unfinished (kafka-storage 5.2, steps 1 to 5).

    def _finish_interrupted(self) -> None:
        """Do the steps below. Each takes the names of the files, and returns whether it has changed some."""
        files = self._files()
        for finish in (self._remove_deleted, self._finish_swaps, self._drop_orphans):
            if finish(files):
                files = self._files()

    def _remove_deleted(self, files: Sequence[str]) -> bool:
        """Remove the `.deleted` files of segments that left the log, without waiting for `file.delete.delay.ms`."""
        return self._unlink(
            name
            for name in files
            if name.endswith(names.DELETED) and not name.endswith(".checkpoint.deleted")
        )

    def _finish_swaps(self, files: Sequence[str]) -> bool:
        """Finish or undo a compaction that a crash has interrupted (kafka-storage 8.8).

        Files with the suffix `.cleaned` are incomplete and are removed. If there are any, the `.swap` files with base
        offsets at or above the lowest base offset of a `.cleaned` file are removed, too. The other `.swap` files
        replace the segments whose offsets they cover.
        """
        cleaned = [name for name in files if name.endswith(names.CLEANED)]
        swapped = [name for name in files if name.endswith(names.SWAP)]
        for name in swapped:
            names.parse_stem(name)
        if cleaned:
            smallest = min(names.parse_stem(name) for name in cleaned)
            dropped = [name for name in swapped if names.parse_stem(name) >= smallest]
            self._unlink(dropped + cleaned)
            swapped = [name for name in swapped if name not in dropped]
        self._complete_swap(files, swapped)
        return bool(cleaned or swapped)

    def _complete_swap(self, files: Sequence[str], swapped: Sequence[str]) -> None:
        logs = [name for name in swapped if name.endswith(names.LOG + names.SWAP)]
        if logs:
            lowest = min(names.parse_stem(name) for name in logs)
            highest = max(
                self._end_of(names.parse_stem(name), {names.LOG: -1}, self.directory / name)
                for name in logs
            )
            old = [name for name in files if name.endswith((*names.SEGMENT_FILES, names.SNAPSHOT))]
            self._unlink(name for name in old if lowest <= names.parse_stem(name) < highest)
        for name in swapped:
            self.disk.rename(self.directory / name, self.directory / name.removesuffix(names.SWAP))

    def _end_of(self, base_offset: int, files: Files, path: Path | None = None) -> int:
        """Return the offset after the last batch of a compacted segment that is to replace other segments.

        `files` maps the suffixes of the segment's files (".log") to their inode numbers. A read-only store finds the
        .log file by its inode number. In a writable store, `path` is the path of the .log file, and still ends in
        `.swap`.
        """
        segment = self._open_segment(base_offset, files)
        segment.path = path or segment.path
        return self._end(segment)

    def _drop_orphans(self, files: Sequence[str]) -> bool:
        """Remove index files that have no .log file, and temporary files that a crash left."""
        logs = {names.parse_stem(name) for name in files if name.endswith(names.LOG)}
        return self._unlink(
            name
            for name in files
            if (name.endswith(names.SEGMENT_FILES[1:]) and names.parse_stem(name) not in logs)
            or name in _UNFINISHED
            or name.endswith(_TEMPORARY_INDEXES)
        )

    def _unlink(self, files: Iterable[str]) -> bool:
        """Remove files of the partition directory; return whether there were any."""
        removed = [*files]
        for name in removed:
            self.disk.unlink(self.directory / name)
        return bool(removed)

    # Loading the producers (kafka-storage 5.2, step 10, and 9.8).

    def _load_producers(
        self, segments: Sequence[Segment], log_start_offset: int, log_end_offset: int
    ) -> Producers | None:
        if not self.disk.writable:
            # Of a recovered log, keep the producers that recovery has found. A snapshot in the log may know more,
            # such as the end of a transaction whose marker is damaged, and the recovered indexes would not fit it.
            return self.producers if self.producers_end == log_end_offset else None
        self.snapshots.drop_aside()
        self.snapshots.drop_strays({segment.base_offset for segment in segments})
        if not self.start.is_clean or self.snapshots.offsets:
            return self.snapshots.restore(segments, log_start_offset, log_end_offset, self.now_ms)
        # A clean close leaves a snapshot unless the log is empty. Without any snapshot, nothing is replayed, as in
        # Kafka (kafka-storage 9.8).
        no_producers = Producers()
        for offset in [*(segment.base_offset for segment in segments[-2:]), log_end_offset]:
            self.snapshots.write_if_room(offset, no_producers)
        return no_producers

    def _note_batches(self, segment: Segment, batches: ScannedBatches) -> None:
        """Update the producers, the leader epochs and `last_timestamp` for batches that are being recovered.

        Each transaction that these batches abort is added to the segment's transaction index.
        """
        for batch in deciding_batches(batches):
            aborted = self.producers.update(batch)
            if aborted is not None:
                segment.txn_index.append(aborted)
        self.epochs.note_batches(batches.rows)
        self.last_timestamp = int(batches.rows[-1, MAX_TIMESTAMP])

    # Opening and recovering segments.

    def _open_segments(self) -> list[Segment]:
        found = [self._open_segment(base, files) for base, files in self.listing.items()]
        segments = self._without_empty_inside(found)
        for segment, following in pairwise(segments):
            segment.next_base = following.base_offset
        return segments

    def _open_segment(self, base_offset: int, files: Files) -> Segment:
        segment = self.kind(self.disk, self.directory, base_offset)
        segment.identify(files)
        segment.gaps = self.start.compacted
        return segment

    def _without_empty_inside(self, segments: list[Segment]) -> list[Segment]:
        """Return the segments without the empty ones whose base offset is below the end of the segment before."""
        kept = segments[:1]
        for segment in segments[1:]:
            before = kept[-1]
            # In a read-only store, a compacted segment's file may still have the suffix `.swap`, so the path may not
            # exist.
            with suppress(FileNotFoundError):
                is_empty = not self.disk.stat(segment.path).size_bytes
                if is_empty and self._ends_after(before.base_offset, segment.base_offset):
                    what = "%s: is empty and ignored: %s contains its base offset"
                    logger.error(what, segment.path, before.path.name)
                    continue
            kept.append(segment)
        return kept

    def _ends_after(self, base_offset: int, offset: int) -> bool:
        """Whether the segment with `base_offset` has an offset of at least `offset`.

        Reads the end of the segment or, if it has no offset index, all of it.
        """
        segment = self._open_segment(base_offset, self.listing[base_offset])
        try:
            position = segment.position_of(base_offset + MAX_RELATIVE_OFFSET)
        except (Corrupt, OSError):
            position = 0
        header = segment.header(position)
        start = (position, header.base_offset) if header else (0, base_offset)
        return self._end(segment, *start) > offset

    def _where_closed(self, last: Segment, snapshots: Sequence[int]) -> int:
        """Return the log end offset of a log that was closed properly, as far as snapshots and indexes show it.

        `last` is the last segment. `snapshots` are the offsets of the producer snapshots, ascending. The result is
        the greatest of these offsets that is not above the segment's `limit_offset`, or 0 if there is none:

        - the offset of the newest snapshot;
        - the offset after the last entry of the offset index, and that after the last entry of the time index (an
          empty index counts as one with an entry at the base offset);
        - the offset of the last entry of the text index.
        """
        known = [0, *snapshots[-1:]]
        limit = last.limit_offset
        with suppress(Corrupt, OSError):
            known.append(last.offset_index.lookup(limit).offset + 1)
        with suppress(Corrupt, OSError):
            known.append(last.time_index.last.offset + 1)
        with suppress(Corrupt, OSError):
            known.append(last.text_index.last.offset)
        return max(offset for offset in known if offset <= limit)

    def _drop_empty_end(self, segments: list[Segment]) -> None:
        """Drop trailing segments that hold no batch, if the log before them has lost its end (`_ends_early`).

        A power cut after a roll can lead to this: the new file is on the disk, for example because another process
        has synced the directory, but the unflushed end of the file before it is lost. No durable record is lost then.
        Only segments at or above the recovery point are dropped. Except in a read-only store, their files are
        deleted; bytes that are not all zero are kept in a `.torn` file.
        """
        while len(segments) > 1:
            before, last = segments[-2:]
            if (
                last.base_offset < self.start.recovery_point
                or any(not isinstance(found, Damage) for found in self._survey(last, 0, 0))
                or not self._ends_early(segments[:-1], last.base_offset)
            ):
                return
            size = self.disk.size(last.file)
            if size:
                self._cut(last, Damage(0, size, last.base_offset, last.base_offset, "no batch"))
            logger.warning(
                "%s: contains no batch, and %s ends before its base offset: dropped",
                last.path,
                before.path.name,
            )
            segments.pop()
            before.next_base = None
            if self.disk.writable:
                last.discard()
                self.snapshots.drop(last.base_offset)

    def _ends_early(self, segments: Sequence[Segment], next_base: int) -> bool:
        """Whether the log of `segments` has lost its end. `next_base` is the base offset of the segment after them.

        A log that is not compacted has lost its end if it ends below `next_base`. A compacted log can end below
        `next_base` without a loss: compaction removes records, and can leave empty segments. Its end is lost if the
        last segment that is not empty ends in damage. Compaction flushes each segment before the next, so the empty
        segments after this damage are not a result of compaction.
        """
        if not self.start.compacted:
            return self._end(segments[-1]) < next_base
        for segment in reversed(segments):
            ends_in_damage = [isinstance(found, Damage) for found in self._survey(segment)][-1:]
            if ends_in_damage:
                return ends_in_damage[0]
        return False

    def _survey(
        self, segment: Segment, position: int = 0, first_offset: int | None = None
    ) -> Iterator[ScannedBatches | Damage]:
        """Yield the batches and the damage of a segment whose end is not known. Missing offsets are not damage.

        The scan begins at `position`. `first_offset` is the lowest base offset that the first batch may have; None
        means the base offset of the segment.
        """
        segment.resume_unread(self.disk.size(segment.file))
        gaps, segment.gaps = segment.gaps, True
        try:
            first = segment.base_offset if first_offset is None else first_offset
            yield from scan_segment(segment, position, first)
        finally:
            segment.gaps = gaps

    def _end(self, segment: Segment, position: int = 0, first_offset: int | None = None) -> int:
        """Return the offset after the last batch of a segment; the segment's base offset if no batch is found.

        The batches are read from `position` on. `first_offset` is the lowest base offset that the first of them may
        have; None means the base offset of the segment.
        """
        end = segment.base_offset
        for found in self._survey(segment, position, first_offset):
            if not isinstance(found, Damage):
                end = found.next_offset
        return end

    def _recover(self, segments: list[Segment]) -> tuple[list[Segment], int]:
        """Recover the segments that need recovery; return the segments and the log end offset."""
        if not segments:
            return [], 0
        if not self.start.closed:
            self._drop_empty_end(segments)
        snapshots = list(self.snapshots.offsets)
        # After a crash, segments below the recovery point are not checked. The segment that ends exactly at the
        # recovery point is checked: its records were durable, but its indexes may lack the entries that a roll adds.
        durable = len([s for s in segments[1:] if s.base_offset < self.start.recovery_point])
        first = len(segments) if self.start.is_clean else 0 if self.start.rebuild else durable
        if first < len(segments):
            self.snapshots.set_aside(segments[first].base_offset)
        for number, segment in enumerate(segments[:-1]):
            if number >= first or not self._has_indexes(segment):
                self._rebuild(segments, segment, sync=number < durable)
        last = segments[-1]
        if first < len(segments) or not self._resume(last):
            if self.start.closed:
                self.closed_at = self._where_closed(last, snapshots)
            self._rebuild(segments, last, sync=False)
        if self.last_timestamp < 0 and len(segments) > 1:
            self.last_timestamp = segments[-2].max_timestamp.timestamp
        end = last.next_offset
        ends_damaged = bool(last.damaged) and last.damaged[-1].end == last.size_bytes
        if self.disk.writable and (ends_damaged or end < self.start.recovery_point):
            # Durable offsets are never assigned again, and appends must not follow bytes that are no batches: the log
            # continues in a new segment. The base offset must differ from that of `last`, which stays even if it has
            # no batch.
            end = max(end, self.start.recovery_point, last.base_offset + 1)
            logger.error("%s: durable records are missing below offset %d", last.path, end)
            last.seal(end)
            segments.append(self._new_segment(end))
        return segments, end

    def _has_indexes(self, segment: Segment) -> bool:
        """Whether a sealed segment has an offset and a time index, and no corrupt transaction index."""
        files = self.listing[segment.base_offset]
        if names.OFFSET_INDEX not in files or names.TIME_INDEX not in files:
            return False
        if names.TXN_INDEX not in files:
            return True
        try:
            segment.txn_index.check_sane(segment.base_offset)
        except Corrupt as error:
            logger.warning("%s; rebuilding the indexes of its segment", error)
            return False
        return True

    def _resume(self, segment: Segment) -> bool:
        """Find and set the end of the last segment by its indexes and the batches after their last entry.

        Returns True, or False if the indexes do not agree with the .log file: the segment must then be recovered.
        """
        size = segment.size_bytes
        try:
            for index in segment.indexes:
                index.check_sane()
            segment.txn_index.check_sane(segment.base_offset)
        except Corrupt as error:
            logger.warning("%s; rebuilding the indexes of its segment", error)
            return False
        files = self.listing[segment.base_offset]
        if size and not (names.OFFSET_INDEX in files and names.TIME_INDEX in files):
            return False
        max_entry = segment.time_index.last
        last = segment.offset_index.lookup(segment.base_offset + MAX_RELATIVE_OFFSET)
        end = segment.base_offset
        if not 0 <= last.position <= size:
            return False
        segment.resume(SegmentEnd(size, end, UNMEASURED), max_entry)
        # No CRC covers the base offset in a batch's header. So take the first offset from the last index entry: the
        # walk reports damage if the batch at this entry begins below it.
        header = segment.header(last.position) if last.position else None
        first_offset = max(last.offset - header.last_offset_delta, end) if header else end
        for found in segment.walk(last.position, first_offset=first_offset, is_end_known=False):
            if isinstance(found, Damage):
                return False
            header = found[1].header
            end = header.next_offset
            if header.max_timestamp > max_entry.timestamp:
                max_entry = TimeEntry(header.max_timestamp, header.last_offset)
            self.last_timestamp = header.max_timestamp
        segment.resume(SegmentEnd(size, end, UNMEASURED), max_entry)
        if not size:
            return not any(map(len, segment.indexes))
        if max_entry.offset < segment.time_index.last.offset:
            # The time index is wrong: a batch before its last entry has a later timestamp than that entry.
            return False
        newest = segment.time_index.last
        if len(segment.time_index) and not segment.has_batch_of(newest, if_damaged=True):
            return False
        return segment.offset_index.can_be(end, size) and segment.time_index.can_be(
            end, segment.first_batch_timestamp
        )

    def _rebuild(self, segments: Sequence[Segment], segment: Segment, *, sync: bool) -> None:
        """Read `segment`, one of `segments`, rebuild its indexes, and cut off a torn tail (kafka-storage 3.4).

        With `sync`, each new index is durable before it replaces the old one. With or without `sync`, the segment is
        added to `unsynced`, because its other changes are not durable yet.
        """
        is_last = segment is segments[-1]
        logger.debug("%s: recovering", segment.path)
        size = self.disk.size(segment.file)
        if self.start.end is not None and segment.base_offset == self.start.end.base_offset:
            size = min(size, self.start.end.position)
        # Start with the producer snapshot at the end of the segment before. A read-only store writes no snapshots: if
        # it has just recovered the segment before, continue with the producers in memory.
        if self.disk.writable or self.producers_end != segment.base_offset:
            self.producers = self.snapshots.restore(
                segments, self.start.log_start_offset, segment.base_offset, self.now_ms
            )
        segment.resume_unread(size)
        config = self.config
        builder = IndexBuilder(segment, config.index_interval_bytes, config.segment_index_bytes)
        before = self._aborted(segment)
        segment.txn_index.collect()
        damaged: list[Damage] = []
        for found in survey(segment, 0, segment.base_offset):
            if isinstance(found, Damage):
                self.progress(found.end - found.start)
                if self._is_torn(segment, found, size, is_last=is_last):
                    size = found.start
                    self._cut(segment, found)
                    break
                if is_last and found.end == size:
                    # Offsets below the recovery point were durable, and those of a properly closed log, too: the
                    # damage extends at least to their end.
                    after = max(found.next_offset, self.start.recovery_point, self.closed_at)
                    found = found._replace(next_offset=after)
                damaged.append(found)
                builder.add(found)
                for aborted in aborted_in(before, found):
                    if self.producers.abort(aborted):
                        segment.txn_index.append(aborted)
                logger.error("%s", found.error(segment.path))
                continue
            self.progress(found.end - found.position)
            builder.add(found)
            self._note_batches(segment, found)
        segment.damaged = tuple(damaged)
        segment.resume(SegmentEnd(size, builder.end, builder.text), builder.max_entry)
        segment.finish()
        segment.save_indexes(sync=sync)
        self.unsynced.append(segment)
        if not is_last:
            # Close the files now: a log may have more segments than a process may have open files.
            segment.close()
        self.producers_end = builder.end
        self.snapshots.write_if_room(builder.end, self.producers)

    def _aborted(self, segment: Segment) -> Sequence[AbortedTransaction]:
        """Return the entries of a segment's transaction index before it is rebuilt; none if it is malformed."""
        if names.TXN_INDEX not in self.listing[segment.base_offset]:
            return ()
        try:
            return segment.txn_index.entries
        except Corrupt:
            return ()

    def _is_torn(self, segment: Segment, damage: Damage, size: int, *, is_last: bool) -> bool:
        """Whether `damage` is a torn tail of a segment: what a crash left at the end of a file of `size` bytes.

        The log must not have been closed properly, and the bytes must not begin with a whole batch. In the last
        segment (`is_last`), the first damaged offset must be at or above the recovery point. In an earlier segment,
        it must be the base offset of the next segment; there the bytes can also be preallocated space that a crash
        during a roll left.
        """
        if self.start.closed or damage.end != size or damage.start == damage.end:
            return False
        # Neither an unfinished append nor preallocated space begins with a whole batch.
        if _is_whole(segment, damage.start):
            return False
        if not is_last:
            return damage.first_offset == segment.next_base
        return damage.first_offset >= self.start.recovery_point

    def _cut(self, segment: Segment, damage: Damage) -> None:
        """Cut the bytes of `damage` off a segment's file; keep them in a `.torn` file unless they are all zero.

        Does nothing in a read-only store.
        """
        if not self.disk.writable:
            return
        note = f"{segment.path}: cut a torn tail of {damage.end - damage.start} bytes at {damage.start}"
        # Leave out the chunks of zeros at the end, of which a preallocated file may have very many.
        end = damage.start
        for start in range(damage.start, damage.end, CHUNK_BYTES):
            chunk = bytes(segment.read(start, min(CHUNK_BYTES, damage.end - start)))
            if chunk.strip(b"\0"):
                end = start + len(chunk)
        if end > damage.start:
            keep = self.directory / f"{names.stem(segment.base_offset)}.{damage.start}{TORN}"
            self.disk.replace_file(keep, bytes(segment.read(damage.start, end - damage.start)))
            note += f", kept in {keep.name}"
        self.disk.truncate(segment.file, damage.start)
        self.torn.append(note)
        logger.warning("%s", note)

    def _new_segment(self, base_offset: int) -> Segment:
        segment = self.kind(self.disk, self.directory, base_offset)
        if self.disk.writable:
            segment.begin(self.config, self.now_ms)
        else:
            segment.resume_unread(0)
        return segment

    def _files(self) -> list[str]:
        """Return the names of the regular files in the partition directory, sorted."""
        entries = self.disk.scan(self.directory)
        return sorted(entry.name for entry in entries if entry.is_file)
