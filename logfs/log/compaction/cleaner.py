"""One round of compaction of one partition: keep the newest record of each key (kafka-storage 8.3 to 8.8).

A round first notes the last offset of each key in the dirty part, in a map of bounded size. It then rewrites the log
from its start up to the last offset that the map covers, several segments into one. Each new segment replaces its old
segments by renames, which recovery can finish or undo at any point. Readers and appends go on meanwhile.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from logfs.errors import LogfsError, PartitionFailed, Unsupported
from logfs.format.base import names
from logfs.format.base.batch_rows import ATTRIBUTES, NEXT_OFFSET
from logfs.format.batches.batch import CONTROL_BIT
from logfs.log.compaction.cleaning import Cleaned, CleaningAborted, Dirty
from logfs.log.compaction.offset_map import OffsetMap
from logfs.log.compaction.record_filter import CleanedTransactions, RecordFilter
from logfs.log.segment import batch_scanner
from logfs.log.segment.batch_iterator import Damage
from logfs.log.segment.index import MAX_RELATIVE_OFFSET
from logfs.log.segment.index_builder import IndexBuilder
from logfs.log.segment.segment import Segment
from logfs.log.segment.segment_end import SegmentEnd

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from logfs.config import LogConfig
    from logfs.log.append.partition import Partition
    from logfs.log.segment.batch_scanner import ScannedBatches

    Spend = Callable[[int], None]


def clean(
    partition: Partition,
    dirty: Dirty,
    now_ms: int,
    *,
    memory_bytes: int,
    load_factor: float = 0.9,
    spend: Spend = lambda _: None,
    begin: Callable[[str], None] = lambda _: None,
) -> Cleaned:
    """Run one round of compaction: note the newest offset of each key in the part `dirty`, then rewrite the log.

    Returns the offset below which the log is clean now, and the sizes before and after. `now_ms` is the present time,
    by which delete horizons are set and tombstones removed.

    The map of keys takes at most `memory_bytes`, of which the share `load_factor` is used. If the map fills up, the
    round cleans the log only up to the last offset in the map.

    `spend` is called with the number of bytes of each read and write. It may wait, and may raise to end the round;
    the segments that were replaced before that stay valid. `begin` is called with the name of each phase.

    Raises `CleaningAborted`, `Corrupt` for damage, `Unsupported` for a log of old formats, `PartitionFailed` after a
    failed fsync or rename, and `OSError`.
    """
    most_keys = max(dirty.first_uncleanable - dirty.first_dirty, 0)
    known = OffsetMap(memory_bytes, load_factor, most_keys)
    return _Round(partition, dirty, now_ms, known, spend, begin).run()


@dataclass(eq=False)
class _Round:
    partition: Partition
    dirty: Dirty
    now_ms: int
    known: OffsetMap
    spend: Spend
    begin: Callable[[str], None]

    def __post_init__(self) -> None:
        partition, limit = self.partition, self.dirty.first_uncleanable
        self.config = partition.config
        if partition.recovery_point < limit:
            # A durable record must not be dropped in favour of a newer one that is only in the page cache.
            partition.flush()
        self.segments = [each for each in partition.segments if each.base_offset < limit]
        self.contents = {segment: segment.content for segment in self.segments}

    def run(self) -> Cleaned:
        try:
            return self._run()
        except (CleaningAborted, PartitionFailed):
            raise
        except (LogfsError, OSError):
            # The files may be missing or cut because the log was changed or deleted: `_check` then raises
            # `CleaningAborted` instead of this error.
            self._check(self.segments)
            raise

    def _run(self) -> Cleaned:
        self.begin("noting keys")
        end = self._fill()
        self.begin("writing")
        old = [segment for segment in self.segments if segment.base_offset < end]
        bytes_before = sum(segment.size_bytes for segment in old)
        with self.partition.lock:
            producers = {
                entry.producer_id: (entry.last_offset, entry.producer_epoch)
                for entry in self.partition.producers.entries()
            }
        limit, retention_ms = self.dirty.first_uncleanable, self.config.delete_retention_ms
        record_filter = RecordFilter(
            self.known, self._transactions(), self.now_ms, retention_ms, limit, producers
        )
        new = [self._clean_group(group, record_filter) for group in groups(old, self.config, limit)]
        bytes_after = sum(segment.size_bytes for segment in new)
        return Cleaned(end, bytes_before, bytes_after, len(old), len(new), self.known.share)

    def _transactions(self) -> CleanedTransactions:
        return CleanedTransactions(
            entry for segment in self.partition.segments for entry in segment.txn_index.entries
        )

    def _check(self, segments: Sequence[Segment]) -> None:
        """Raise `CleaningAborted` unless the segments are unchanged since the round began, and still in the log."""
        if any(segment.content is not self.contents[segment] for segment in segments):
            raise CleaningAborted(
                f"{self.partition.directory}: was truncated while it was compacted"
            )
        if not self.partition.holds(segments):
            raise CleaningAborted(
                f"{self.partition.directory}: was changed, closed or deleted while it was compacted"
            )

    def _read(self, segment: Segment) -> Iterator[ScannedBatches]:
        """Yield all batches of a segment.

        Raises `Corrupt` for damage, `Unsupported` for messages of an old format, and the error of `_check`.
        """
        for found in batch_scanner.scan_segment(segment, 0, segment.base_offset):
            self._check([segment])
            if isinstance(found, Damage):
                raise found.error(segment.path)
            if found.legacy is not None:
                raise Unsupported(
                    f"{segment.path}: contains messages of magic {found.legacy.header.magic}, which can be read but "
                    "not compacted"
                )
            self.spend(len(found.data))
            yield found

    # Filling the map of keys (kafka-storage 8.3).

    def _fill(self) -> int:
        """Put the keys of the dirty part into the map, and return the offset below which the map is complete."""
        transactions = self._transactions()
        known = self.known
        # Set `latest_offset` even if nothing is dirty: the round still drops the tombstones up to this offset whose
        # delete horizon has passed.
        known.latest_offset = self.dirty.first_dirty - 1
        for segment in self.segments:
            if segment.next_offset <= self.dirty.first_dirty:
                continue
            for scanned in self._read(segment):
                if not self._put(scanned, transactions):
                    return known.latest_offset + 1
            known.latest_offset = max(known.latest_offset, segment.next_offset - 1)
        return known.latest_offset + 1

    def _put(self, scanned: ScannedBatches, transactions: CleanedTransactions) -> bool:
        """Put the keys of the records in `scanned` into the map, and return whether all of them fitted.

        Control records, and the records that `transactions` reports as aborted, are left out.
        """
        rows = scanned.rows
        first_dirty = self.dirty.first_dirty
        wanted = ~transactions.discarded(scanned) & (rows[:, ATTRIBUTES] & CONTROL_BIT == 0)
        for part in scanned.plain_batches(wanted):
            done = part.first + self.known.put(part.data, part.spans, first_dirty)
            if done:
                last_offset = int(rows[done - 1, NEXT_OFFSET]) - 1
                if last_offset >= first_dirty:
                    self.known.latest_offset = max(self.known.latest_offset, last_offset)
            if done < part.end:
                return False
        return True

    # Writing the new segments (kafka-storage 8.5 to 8.8).

    def _clean_group(self, group: Sequence[Segment], record_filter: RecordFilter) -> Segment:
        partition, transactions = self.partition, record_filter.transactions
        base_offset = group[0].base_offset
        new = Segment(partition.disk, partition.directory, base_offset, names.CLEANED)
        new.gaps = True
        new.next_base = group[-1].next_base
        try:
            new.discard()
            transactions.kept.clear()
            self._write(new, group, record_filter)
            self._index(new)
            new.txn_index.collect()
            for entry in transactions.kept:
                new.txn_index.append(entry)
            new.save_indexes(sync=True)
            new.flush(indexes=False)
            partition.disk.set_mtime(new.path, group[-1].mtime_ms())
            new.close()
            partition.replace(group, new, lambda: self._check(group))
            self.segments = self.segments[len(group) :]
        except PartitionFailed:
            # Keep the new files, some of which may be renamed already: recovery finishes or undoes the renames.
            raise
        except BaseException:
            # Remove the new files only if the renames have not begun: otherwise recovery finishes the renames.
            if new.path.suffix == names.CLEANED:
                new.discard()
            raise
        return new

    def _write(self, new: Segment, group: Sequence[Segment], record_filter: RecordFilter) -> None:
        disk = self.partition.disk
        file = disk.open(new.path, write=True, create=True)
        size = 0
        for segment in group:
            for scanned in self._read(segment):
                for left in record_filter.apply(scanned):
                    length = memoryview(left).nbytes
                    if size + length > names.MAX_SEGMENT_BYTES:
                        raise Unsupported(
                            f"{new.path}: the compacted segment would exceed 2 GiB; lower segment.bytes"
                        )
                    if length:
                        disk.write(file, size, left)
                        self.spend(length)
                    size += length
        file.close()
        new.resume_unread(size)

    def _index(self, new: Segment) -> None:
        config = self.config
        builder = IndexBuilder(new, config.index_interval_bytes, config.segment_index_bytes)
        for found in batch_scanner.survey(new, 0, new.base_offset):
            if isinstance(found, Damage):
                raise found.error(new.path)
            builder.add(found)
        new.resume(SegmentEnd(new.size_bytes, builder.end, builder.text), builder.max_entry)
        new.finish()


def groups(
    segments: Sequence[Segment], config: LogConfig, first_uncleanable: int
) -> Iterator[list[Segment]]:
    """Yield groups of adjacent segments. Compaction makes one segment of each group (kafka-storage 8.4).

    If a group has several segments, the sums of the sizes of their .log files and of their indexes are within the
    limits in `config`, and all their offsets fit in one segment, relative to its base offset. The offsets of a
    segment are taken to end at the next base offset, and those of the last segment at `first_uncleanable`.
    """
    limits = (config.segment_bytes, config.segment_index_bytes, config.segment_index_bytes)
    ends = [segment.base_offset for segment in segments[1:]] + [first_uncleanable][: len(segments)]
    group: list[Segment] = []
    for segment, end in zip(segments, ends, strict=True):
        if group:
            sizes = zip(*map(_sizes, (*group, segment)), strict=True)
            fits = all(sum(each) <= limit for each, limit in zip(sizes, limits, strict=True))
            reach = end - 1 - group[0].base_offset
            if not fits or (segment.size_bytes and reach > MAX_RELATIVE_OFFSET):
                yield group
                group = []
        group.append(segment)
    if group:
        yield group


def _sizes(segment: Segment) -> tuple[int, int, int]:
    """Return the sizes in bytes of the .log file, the offset index and the time index, without unused space."""
    offset_index, time_index, _ = segment.indexes
    return segment.size_bytes, offset_index.size_bytes, time_index.size_bytes
