"""A partition as `read_committed` shows it: without aborted transactions, up to the first open transaction.

Both isolation levels use the same files and the same text indexes. The text for `read_committed` is the text of all
records with the hidden ones cut out (kafka-storage 9.4, 9.6).
"""

from __future__ import annotations

import enum
import threading
from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING, NamedTuple, Protocol

from logfs.log.read.readable_log import ReadableLog
from logfs.log.read.reader import Reader, last_batch_before
from logfs.log.read.text_view import TextView
from logfs.log.segment.batch_iterator import DamagedRange

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path
    from typing import Any

    from logfs.format.base.names import TopicPartition
    from logfs.format.batches.batch import Header
    from logfs.format.text.rendering import View
    from logfs.log.disk.disk import Disk
    from logfs.log.read.readable_log import ViewRegistry
    from logfs.log.read.reader import T, Traffic
    from logfs.log.read.text_view import Text
    from logfs.log.segment.segment import Segment
    from logfs.log.state.leader_epochs import LeaderEpochs


class Isolation(enum.Enum):
    """Which transactions a reader sees. The values are those of Kafka's `isolation.level`."""

    READ_UNCOMMITTED = "read_uncommitted"
    READ_COMMITTED = "read_committed"


class StableLog(ReadableLog, Protocol):
    """What a `CommittedReader` needs of a partition."""

    @property
    def last_stable_offset(self) -> int:
        """The first offset of the oldest open transaction, or the log end offset (kafka-storage 9.4)."""

    @property
    def epochs(self) -> LeaderEpochs:
        """The leader epochs of the log, each with its start offset."""

    @property
    def last_timestamp(self) -> int:
        """The timestamp of the last batch (ms), -1 if there is none."""

    def settle(self) -> None:
        """Return when no truncation is in progress."""

    @property
    def traffic(self) -> Traffic:
        """Counters for metrics: bytes read through a mount, failed appends, failed reads."""

    @property
    def truncations(self) -> Sequence[int]:
        """The offsets at which this process has truncated the log since it was opened, in that order."""

    def check_readable(self, offset: int) -> None:
        """Raise `OffsetOutOfRange` unless the offset is in [log start offset, log end offset]."""

    def until_found(self, read: Callable[..., T], *arguments: Any) -> T:
        """Return `read(*arguments)`. In a log that another process writes, repeat the call while it raises `Gone`."""


class CommittedReader(Reader):
    """A reader with isolation level read_committed: it ends at the last stable offset, and hides aborted records."""

    def __init__(self, log: StableLog) -> None:
        super().__init__()
        self._log = log
        self._aborted_by: dict[int, list[tuple[int, int]]] = {}
        self._aborted_of: tuple[Sequence[Segment], int] = ((), 0)

    # The state of the log, which does not depend on the isolation level.

    @property
    def disk(self) -> Disk:
        """The disk of the log."""
        return self._log.disk

    @property
    def directory(self) -> Path:
        """The partition directory."""
        return self._log.directory

    @property
    def name(self) -> TopicPartition:
        """The topic and the number of the partition."""
        return self._log.name

    @property
    def segments(self) -> Sequence[Segment]:
        """All segments of the log."""
        return self._log.segments

    @property
    def log_start_offset(self) -> int:
        """The lowest readable offset."""
        return self._log.log_start_offset

    @property
    def epochs(self) -> LeaderEpochs:
        """The leader epochs of the log, each with its start offset."""
        return self._log.epochs

    @property
    def last_timestamp(self) -> int:
        """The timestamp of the log's last batch (ms), -1 if there is none."""
        return self._log.last_timestamp

    @property
    def generation(self) -> int:
        """The generation of the log."""
        return self._log.generation

    @property
    def truncations(self) -> Sequence[int]:
        """The truncations of the log."""
        return self._log.truncations

    def settle(self) -> None:
        self._log.settle()

    @property
    def views(self) -> ViewRegistry:
        """The registry of the text views that are in use for the log."""
        return self._log.views

    @property
    def traffic(self) -> Traffic:
        """Counters for metrics: bytes read through a mount, failed appends, failed reads."""
        return self._log.traffic

    @property
    def log(self) -> StableLog:
        """The partition itself, which also shows the records that this reader hides."""
        return self._log

    @property
    def log_end_offset(self) -> int:
        """The end of the records that this reader shows: the last stable offset, not the end of the partition."""
        return self._log.last_stable_offset

    def refresh(self) -> bool:
        """Bring a partition of a read-only store up to date with its files; return whether anything has changed."""
        return self._log.refresh()

    def until_found(self, read: Callable[..., T], *arguments: Any) -> T:
        """Return `read(*arguments)`. In a log that another process writes, repeat the call while it raises `Gone`."""
        return self._log.until_found(read, *arguments)

    def check_readable(self, offset: int) -> None:
        """Raise `OffsetOutOfRange` unless the offset is in [log start offset, log end offset] of the partition."""
        self._log.check_readable(offset)

    def shown(self, segments: Sequence[Segment]) -> Callable[[Header], bool]:
        """Return a function that takes the header of a batch of `segments`, and returns whether readers see it.

        They see neither control batches nor batches of aborted transactions.
        """
        aborted: dict[int, list[tuple[int, int]]] | None = None

        def shows(header: Header) -> bool:
            nonlocal aborted
            if header.is_control or not header.is_transactional:
                return not header.is_control
            if aborted is None:
                aborted = self.aborted(segments)
            ranges = aborted.get(header.producer_id, ())
            number = bisect_right(ranges, header.base_offset, key=lambda found: found[0]) - 1
            return number < 0 or header.base_offset >= ranges[number][1]

        return shows

    def text(self, view: View, start: int | None = None, end: int | None = None) -> Text:
        """Return the text of the records in [start, end); without `end`, it grows with the last stable offset."""
        return CommittedText(self, view, start, end)

    def _offset_of_last(self, count: int) -> int:
        segments = self.segments
        shows = self.shown(segments)
        at = self.log_end_offset
        while count > 0 and at > self.log_start_offset:
            segment = self.segments_from(at - 1, segments)[0]
            batch = last_batch_before(segment, at)
            if batch is None:
                # Do not step offset by offset: a segment may begin far above the last batch of the one before.
                at = min(at - 1, segment.base_offset)
                continue
            if shows(batch.header):
                with self._decoding(batch, segments):
                    offsets = batch.offsets()
                    del offsets[bisect_left(offsets, at) :]
                if len(offsets) >= count:
                    return max(offsets[-count], self.log_start_offset)
                count -= len(offsets)
            at = min(at - 1, batch.header.base_offset)
        return max(at, self.log_start_offset)

    def aborted(self, segments: Sequence[Segment]) -> dict[int, list[tuple[int, int]]]:
        """Return the aborted transactions in `segments` by producer id.

        Each is (first offset, offset of the marker). Those of a producer are in the order of their markers.
        """
        newest = len(segments[-1].txn_index.entries)
        known, count = self._aborted_of
        if known is segments and count == newest:
            return self._aborted_by
        found: dict[int, list[tuple[int, int]]] = {}
        for segment in segments:
            for entry in segment.txn_index.entries:
                found.setdefault(entry.producer_id, []).append(entry[1:3])
        self._aborted_by, self._aborted_of = found, (segments, newest)
        return found

    def aborted_between(
        self, start: int, end: int, segments: Sequence[Segment]
    ) -> Iterator[tuple[int, int]]:
        """Yield the aborted transactions that may have records in [start, end).

        Each is (first offset, offset of the marker). The markers may lie at or after `end` (kafka-storage 9.6).
        """
        for segment in self.segments_from(start, segments):
            for entry in segment.txn_index.entries:
                if entry.first_offset < end and entry.last_offset >= start:
                    yield entry.first_offset, entry.last_offset
                if entry.last_stable_offset >= end:
                    return


class HiddenRange(NamedTuple):
    """A part of the text of all records, bytes [start, end), that read_committed hides.

    `hidden` is the number of hidden bytes from the beginning of the text up to `end`.
    """

    start: int
    end: int
    hidden: int


class CommittedText:
    """The text of the records that a `CommittedReader` shows; otherwise like `TextView`.

    It is the text of all records without the hidden bytes, which are a list of `HiddenRange`s. All transactions below
    the last stable offset have ended, so ranges are only added at the end, and the view only grows.
    """

    def __init__(
        self, reader: CommittedReader, view: View, start: int | None = None, end: int | None = None
    ) -> None:
        self._reader = reader
        self._all = TextView(reader.log, view, start, end)
        self._end_offset = end
        self._hidden_ranges: list[HiddenRange] = []
        self._finding = threading.Lock()
        # The offset up to which the hidden ranges are known, and the size of the text up to there.
        self._searched = (self._all.first_offset, 0)

    @property
    def generation(self) -> int:
        """The log's generation when this view was made. If it has changed, a new view may have other bytes."""
        return self._all.generation

    @property
    def size(self) -> int:
        """The current size of the view in bytes."""
        return self._find_hidden()

    @property
    def is_closed(self) -> bool:
        """Whether the size is final. Only `size` and `read` update this."""
        return self._end_offset is not None and self._searched[0] >= self._end_offset

    @property
    def is_whole(self) -> bool:
        """Whether byte 0 of the view can still be read."""
        return self._all.is_whole

    def read(self, position: int, size: int, *, up_to_damage: bool = False) -> bytes:
        """Return the bytes [position, position + size), fewer at the end of the view.

        Raises `DamagedRange` if any of them is damaged; with `up_to_damage`, returns those before the damage, and
        raises only if the first is damaged. Raises `OffsetOutOfRange` for bytes whose segment is not kept any more.
        """
        stop = min(position + size, self._find_hidden())
        parts = []
        while position < stop:
            number = bisect_right(
                self._hidden_ranges, position, key=lambda each: each.end - each.hidden
            )
            at = position + (self._hidden_ranges[number - 1].hidden if number else 0)
            wanted = stop - position
            if number < len(self._hidden_ranges):
                wanted = min(wanted, self._hidden_ranges[number].start - at)
            try:
                parts.append(self._all.read(at, wanted, up_to_damage=up_to_damage))
            except DamagedRange:
                if parts and up_to_damage:
                    break
                raise
            position += len(parts[-1])
            if len(parts[-1]) < wanted:
                break
        return b"".join(parts)

    def release_before(self, position: int) -> None:
        """Note that readers have passed byte `position`: earlier segments that left the log need not be kept.

        In the text of all records, the same byte lies at `position` or later, so no segment is released too early.
        """
        self._all.release_before(position)

    def _find_hidden(self) -> int:
        """Find the hidden ranges up to the last stable offset, and return the size of the text up to there."""
        stable = self._reader.log_end_offset
        end = stable if self._end_offset is None else min(stable, self._end_offset)
        offset, size = self._searched
        if end <= offset:
            return size
        with self._reader.disk.hold(self._finding):
            offset, size = self._searched
            if end > offset:
                # Use the segments of the view, which may have left the log: they list the transactions aborted in
                # them.
                segments = self._all.segments
                aborted = list(self._reader.aborted_between(offset, end, segments))
                if aborted:
                    self._reader.check_may_block()
                    first = min(first for first, _ in aborted)
                    last = max(last for _, last in aborted)
                    self._find_hidden_between(max(first, offset), min(last, end), segments)
                hidden = self._hidden_ranges[-1].hidden if self._hidden_ranges else 0
                size = self._all.position_of(end) - hidden
                self._searched = (end, size)
        return size

    def _find_hidden_between(self, start: int, end: int, segments: Sequence[Segment]) -> None:
        """Add the ranges of the hidden batches with offsets in [start, end)."""
        shows = self._reader.shown(segments)
        at = start
        while at < end:
            try:
                for batch in self._reader.log.batches(at, end, segments):
                    at = batch.header.next_offset
                    if not batch.header.is_control and not shows(batch.header):
                        self._add_hidden_range(batch.header)
                return
            except DamagedRange as damage:
                at = damage.next_offset

    def _add_hidden_range(self, header: Header) -> None:
        start = self._all.position_of(header.base_offset)
        end = self._all.position_of(
            header.next_offset
            if self._end_offset is None
            else min(header.next_offset, self._end_offset)
        )
        hidden = end - start
        if self._hidden_ranges:
            last = self._hidden_ranges[-1]
            hidden += last.hidden
            if last.end == start:
                self._hidden_ranges[-1] = HiddenRange(last.start, end, hidden)
                return
        self._hidden_ranges.append(HiddenRange(start, end, hidden))
