"""Whatever a crash left -> valid segments, in Kafka's order (kafka-storage 5.2, 5.3).

One deliberate difference: Kafka cuts the log at the first bad batch and deletes every later segment, which is
right where replicas hold the data and a loss on one node. Here only a torn tail is cut: bytes at or beyond the
recovery point with nothing valid behind them; and they are kept in a `.torn` file. Damage anywhere else stays where
it is, answers `Corrupt` for its offsets, and everything behind it stays readable.

Nothing here needs a loaded partition: a partition is made from what `load` returns. A read-only store goes through
the same steps in memory and changes nothing.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from logfs.errors import Corrupt, InvalidName
from logfs.format import names
from logfs.format.batch import Batch
from logfs.format.text import NO_TEXT
from logfs.log.epochs import LeaderEpochs
from logfs.log.index import TimeEntry
from logfs.log.producers import Producers
from logfs.log.rebuild import IndexBuilder
from logfs.log.segment import MAX_RELATIVE_OFFSET, UNMEASURED, Segment, Tip
from logfs.log.snapshots import Snapshots
from logfs.log.spans import survey
from logfs.log.walk import Damage

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from logfs.config import LogConfig
    from logfs.log.files import Disk
    from logfs.log.index import OffsetEntry
    from logfs.log.spans import BatchInfo

    Progress = Callable[[int], None]

logger = logging.getLogger(__name__)

TORN = ".torn"
_SEGMENT_FILES = (
    names.LOG,
    names.OFFSET_INDEX,
    names.TIME_INDEX,
    names.TXN_INDEX,
    names.TEXT_INDEX,
)
_UNFINISHED = {f"{names.KEY_MAP}.tmp", f"{names.COMMITTED_KEY_MAP}.tmp"}


class Start(NamedTuple):
    """What is known of a partition before it is loaded.

    `clean`: it was closed properly; the offsets are those of the checkpoints. `compacted`: a cleaner has been here,
    so offsets may be missing, whatever the topic's settings are. An idle producer is remembered for
    `producer_expiration_ms`.
    """

    clean: bool
    recovery_point: int = 0
    log_start_offset: int = 0
    compacted: bool = False
    producer_expiration_ms: int = 86_400_000


@dataclass(slots=True)
class Loaded:
    """A partition's files, made valid."""

    segments: list[Segment]
    log_start_offset: int
    recovery_point: int
    epochs: LeaderEpochs
    snapshots: Snapshots
    producers: Producers | None
    """Of the log end; None in a read-only store, where they are looked for by who needs them."""
    last_timestamp: int = -1
    torn: list[str] = field(default_factory=list)


def load(
    disk: Disk,
    directory: Path,
    config: LogConfig,
    start: Start,
    now_ms: int,
    progress: Progress | None = None,
    kind: type[Segment] = Segment,
) -> Loaded:
    """Load a partition directory, recovering from the recovery point on if it was not closed cleanly.

    `progress` is told the bytes of .log files as they are read; `kind` is what the segments are made as. Raises
    `OSError`, `Corrupt` for a leader epoch file that cannot be read, and `InvalidName` for a file whose stem is no
    offset.
    """
    report = progress or (lambda _: None)
    return _Loader(disk, directory, config, start, now_ms, report, kind).run()


class _Loader:
    def __init__(
        self,
        disk: Disk,
        directory: Path,
        config: LogConfig,
        start: Start,
        now_ms: int,
        progress: Progress,
        kind: type[Segment],
    ) -> None:
        self.kind = kind
        self.disk = disk
        self.directory = directory
        self.config = config
        self.start = start
        self.now_ms = now_ms
        self.progress = progress
        self.torn: list[str] = []
        self.last_timestamp = -1
        # The producers as they are at an offset that recovery has come to.
        self.producers = Producers()
        self.producers_end = -1

    def run(self) -> Loaded:
        if self.disk.writable:
            self._finish_swaps()
            self._drop_orphans()
        self.epochs = LeaderEpochs(self.disk, self.directory)
        self.snapshots = Snapshots(self.disk, self.directory, self.start.producer_expiration_ms)
        segments = self._open_segments()
        segments, log_end_offset = self._recover(segments)
        if segments and log_end_offset < self.start.log_start_offset:
            self._drop_all(segments)
            segments = []
        if not segments:
            segments = [self._new_segment(self.start.log_start_offset)]
            log_end_offset = self.start.log_start_offset
        log_start_offset = max(self.start.log_start_offset, segments[0].base_offset)
        producers = self._load_producers(segments, log_start_offset, log_end_offset)
        for segment in segments:
            # What loading had to open is opened again by who needs it: a store may have very many partitions.
            if segment.is_active:
                segment.finish()
            segment.close()
        segments[-1].created_ms = self.now_ms
        self.epochs.truncate_from_end(log_end_offset)
        self.epochs.truncate_from_start(self.start.log_start_offset)
        clean = self.start.clean and not self.torn
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
        )

    # Leftovers of deletion, compaction and swap (kafka-storage 5.2, steps 1 to 5).

    def _finish_swaps(self) -> None:
        files = self._files()
        for name in files:
            if name.endswith(names.DELETED) and not name.endswith(".checkpoint.deleted"):
                self.disk.unlink(self.directory / name)
        cleaned = [name for name in files if name.endswith(names.CLEANED)]
        swapped = [name for name in files if name.endswith(names.SWAP)]
        for name in swapped:
            names.parse_stem(name)
        if cleaned:
            smallest = min(names.parse_stem(name) for name in cleaned)
            dropped = [name for name in swapped if names.parse_stem(name) >= smallest]
            for name in dropped + cleaned:
                self.disk.unlink(self.directory / name)
            swapped = [name for name in swapped if name not in dropped]
        if swapped:
            self._complete_swap(swapped)

    def _complete_swap(self, swapped: Sequence[str]) -> None:
        logs = [name for name in swapped if name.endswith(names.LOG + names.SWAP)]
        if logs:
            lowest = min(names.parse_stem(name) for name in logs)
            highest = max(self._end_of(name) for name in logs)
            for name in self._files():
                if name.endswith(names.SWAP) or not name.endswith(
                    (*_SEGMENT_FILES, names.SNAPSHOT)
                ):
                    continue
                if lowest <= names.parse_stem(name) < highest:
                    self.disk.unlink(self.directory / name)
        for name in swapped:
            self.disk.rename(self.directory / name, self.directory / name.removesuffix(names.SWAP))

    def _end_of(self, swapped_log: str) -> int:
        """The offset behind the last batch of a .log.swap file."""
        segment = Segment(self.disk, self.directory, names.parse_stem(swapped_log))
        segment.path = self.directory / swapped_log
        end = segment.base_offset
        segment.resume(Tip(self.disk.size(segment.file), end, NO_TEXT), TimeEntry(-1, 0))
        for found in segment.walk():
            if not isinstance(found, Damage):
                end = found[1].header.next_offset
        return end

    def _drop_orphans(self) -> None:
        """Remove what a crash has left of files that were never whole, or lost their log."""
        files = set(self._files())
        for name in files & _UNFINISHED:
            self.disk.unlink(self.directory / name)
        for name in files:
            if name.endswith(_SEGMENT_FILES[1:]):
                log = names.stem(names.parse_stem(name)) + names.LOG
                if log not in files:
                    self.disk.unlink(self.directory / name)

    # Producers (kafka-storage 5.2, step 10, and 9.8).

    def _load_producers(
        self, segments: Sequence[Segment], log_start_offset: int, log_end_offset: int
    ) -> Producers | None:
        if not self.disk.writable:
            return None
        self.snapshots.drop_strays({segment.base_offset for segment in segments})
        if not self.start.clean or self.snapshots.offsets:
            return self.snapshots.restore(segments, log_start_offset, log_end_offset, self.now_ms)
        # Whoever closes a log that has known a producer leaves a snapshot, so this one has known none.
        nobody = Producers()
        for offset in [*(segment.base_offset for segment in segments[-2:]), log_end_offset]:
            self.snapshots.take(offset, nobody)
        return nobody

    def _note_producer(self, segment: Segment, info: BatchInfo) -> None:
        """Take a producer's batch of a segment under recovery; an aborted transaction goes into the index."""
        batch = Batch.parse(segment.read(info.position, info.size_bytes))
        ended = self.producers.note(batch)
        if ended is not None and ended.is_aborted:
            segment.txn_index.append(self.producers.aborted(ended))

    # Segments.

    def _open_segments(self) -> list[Segment]:
        bases = sorted(names.parse_stem(name) for name in self._files() if name.endswith(names.LOG))
        segments = [self.kind(self.disk, self.directory, base) for base in bases]
        for segment, following in pairwise(segments):
            segment.next_base = following.base_offset
        for segment in segments:
            segment.gaps = self.start.compacted
        return segments

    def _recover(self, segments: list[Segment]) -> tuple[list[Segment], int]:
        """Recover what needs it; the segments and the log end offset."""
        if not segments:
            return [], 0
        first = len(segments)
        if not self.start.clean:
            # One that ends at the point itself was durable, and its indexes perhaps not yet closed.
            below = [s for s in segments[1:] if s.base_offset < self.start.recovery_point]
            first = len(below)
        files = set(self._files())
        for number, segment in enumerate(segments[:-1]):
            if number >= first or not self._has_indexes(segment, files):
                self._rebuild(segments, segment)
        last = segments[-1]
        if first < len(segments) or not self._resume(last):
            self._rebuild(segments, last)
        if not self.last_timestamp >= 0 and len(segments) > 1:
            self.last_timestamp = segments[-2].max_timestamp.timestamp
        end = last.next_offset
        ends_damaged = bool(last.damaged) and last.damaged[-1].end == last.size_bytes
        if self.disk.writable and (ends_damaged or end < self.start.recovery_point):
            # Offsets that were durable are never given out again, and nothing may be appended behind bytes
            # that are no batches: go on in a new segment.
            end = max(end, self.start.recovery_point)
            logger.error("%s: durable records are missing below offset %d", last.path, end)
            last.seal(end)
            segments.append(self._new_segment(end))
        return segments, end

    @staticmethod
    def _has_indexes(segment: Segment, files: set[str]) -> bool:
        """Whether a sealed segment has what a lookup needs: what is missing, or cannot be, is made anew."""
        if segment.offset_index.path.name not in files or segment.time_index.path.name not in files:
            return False
        if segment.txn_index.path.name not in files:
            return True
        try:
            segment.txn_index.check_sane(segment.base_offset)
        except Corrupt as error:
            logger.warning("%s; making the indexes of its segment anew", error)
            return False
        return True

    def _resume(self, segment: Segment) -> bool:
        """Find the end of the last segment from its indexes; False if they and the log do not agree."""
        size = segment.size_bytes
        try:
            for index in segment.indexes:
                index.check_sane()
            segment.txn_index.check_sane(segment.base_offset)
        except Corrupt as error:
            logger.warning("%s; making the indexes of its segment anew", error)
            return False
        if size and not (segment.offset_index.exists() and segment.time_index.exists()):
            return False
        max_entry = segment.time_index.last
        last = segment.offset_index.lookup(segment.base_offset + MAX_RELATIVE_OFFSET)
        end = segment.base_offset
        if last.position > size:
            return False
        segment.resume(Tip(size, end, UNMEASURED), max_entry)
        first_offset = self._first_offset(segment, last)
        for found in segment.walk_unknown_end(last.position, first_offset):
            if isinstance(found, Damage):
                return False
            header = found[1].header
            end = header.next_offset
            if header.max_timestamp > max_entry.timestamp:
                max_entry = TimeEntry(header.max_timestamp, header.last_offset)
            self.last_timestamp = header.max_timestamp
        segment.resume(Tip(size, end, UNMEASURED), max_entry)
        return True

    @staticmethod
    def _first_offset(segment: Segment, entry: OffsetEntry) -> int:
        """The offset that the batch of an index entry must have; the file's own word is not under its CRC."""
        header = segment.header(entry.position) if entry.position else None
        if header is None:
            return segment.base_offset
        return max(entry.offset - header.last_offset_delta, segment.base_offset)

    def _rebuild(self, segments: Sequence[Segment], segment: Segment) -> None:
        """Walk one of the segments, make its indexes anew, and cut a torn tail if it is the log's last
        (kafka-storage 3.4)."""
        cut = segment is segments[-1]
        logger.info("%s: recovering", segment.path)
        size = self.disk.size(segment.file)
        # From the snapshot that the segment before has left; a read-only store has none, but what it has seen.
        if self.disk.writable or self.producers_end != segment.base_offset:
            self.producers = self.snapshots.restore(
                segments, self.start.log_start_offset, segment.base_offset, self.now_ms
            )
        segment.resume(Tip(size, segment.base_offset, NO_TEXT), TimeEntry(-1, 0))
        builder = IndexBuilder(segment, self.config, self.now_ms)
        damaged: list[Damage] = []
        for found in survey(segment, 0, segment.base_offset):
            if isinstance(found, Damage):
                self.progress(found.end - found.start)
                if self._is_torn(segment, found, size, cut=cut):
                    size = found.start
                    self._cut(segment, found)
                    break
                if cut and found.end == size:
                    # What was durable is among it, so the log goes on behind the recovery point.
                    after = max(found.next_offset, self.start.recovery_point)
                    found = found._replace(next_offset=after)
                damaged.append(found)
                builder.note(found)
                logger.error("%s", found.error(segment.path))
                continue
            self.progress(found.size_bytes)
            builder.note(found)
            if found.producer_id >= 0:
                self._note_producer(segment, found)
            if found.leader_epoch > self.epochs.latest:
                self.epochs.assign(found.leader_epoch, found.base_offset)
            self.last_timestamp = found.max_timestamp
        segment.damaged = tuple(damaged)
        segment.resume(Tip(size, builder.end, builder.text), builder.max_entry)
        segment.finish()
        if not cut:
            # There may be more of them than a process may have files open.
            segment.close()
        self.producers_end = builder.end
        self.snapshots.take(builder.end, self.producers)

    def _is_torn(self, segment: Segment, damage: Damage, size: int, *, cut: bool) -> bool:
        """Whether damage is a tail that was never durable: nothing behind it, at or past the recovery point.

        In a segment that is not the last it is one where no offset is missing, as the room that a preallocated
        file had when a crash cut a roll short.
        """
        if damage.end != size or damage.start == damage.end:
            return False
        if not cut:
            return damage.first_offset == segment.next_base
        return damage.first_offset >= self.start.recovery_point

    def _cut(self, segment: Segment, damage: Damage) -> None:
        """Cut a torn tail off; its bytes are kept beside the segment unless they are all zero."""
        note = f"{segment.path}: cut a torn tail of {damage.end - damage.start} bytes at {damage.start}"
        if not self.disk.writable:
            return
        data = bytes(segment.read(damage.start, damage.end - damage.start))
        if data.strip(b"\0"):
            stem = names.stem(segment.base_offset)
            keep = self.directory / f"{stem}.{damage.start}{TORN}"
            self.disk.replace_file(keep, data)
            note += f", kept in {keep.name}"
        self.disk.truncate(segment.file, damage.start)
        self.torn.append(note)
        logger.warning("%s", note)

    def _new_segment(self, base_offset: int) -> Segment:
        segment = self.kind(self.disk, self.directory, base_offset)
        if self.disk.writable:
            segment.activate(self.config, self.now_ms, create=True)
        else:
            segment.resume(Tip(0, base_offset, NO_TEXT), TimeEntry(-1, base_offset))
        return segment

    def _drop_all(self, segments: list[Segment]) -> None:
        """All that is left lies below the log start offset (kafka-storage 5.3)."""
        for segment in segments:
            segment.close()
            if self.disk.writable:
                for suffix in _SEGMENT_FILES:
                    self.disk.unlink(self.directory / (names.stem(segment.base_offset) + suffix))
        self.epochs.truncate_from_end(0)

    def _files(self) -> list[str]:
        """The names of the regular files that are ours or Kafka's; a symlink or FIFO of such a name is refused."""
        found = []
        for entry in self.disk.scan(self.directory):
            if entry.is_file(follow_symlinks=False):
                found.append(entry.name)
            elif entry.name.endswith(names.LOG):
                raise InvalidName(
                    f"{entry.path}: is not a regular file; move it out of the partition"
                )
        return sorted(found)
