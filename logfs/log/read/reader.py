"""Reading a log: by offset, by time, in bulk. `Partition` extends this with appends."""

from __future__ import annotations

import time
from bisect import bisect_left
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from logfs.errors import Corrupt, InvalidRecord, OffsetOutOfRange
from logfs.format.batches.columns import Columns, concatenate
from logfs.format.batches.record import NO_TIMESTAMP
from logfs.locks import Level, make_lock
from logfs.log.disk.disk import TRIES, Gone
from logfs.log.read.key_index import KeyIndex
from logfs.log.read.text_view import TextView, ViewRegistry
from logfs.log.segment.batch_iterator import Damage, unreadable
from logfs.log.segment.segment import POINT_READ_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path

    from logfs.format.base.names import TopicPartition
    from logfs.format.batches.batch import Batch, Header
    from logfs.format.batches.record import Record
    from logfs.format.text.rendering import View
    from logfs.log.disk.disk import Disk
    from logfs.log.read.log import Log
    from logfs.log.read.read_committed import Aborted, Text
    from logfs.log.segment.segment import Segment
    from logfs.log.state.leader_epochs import LeaderEpochs
    from logfs.log.state.log_state import LogState

T = TypeVar("T")

# Special values that `offset_for_time` takes in place of a timestamp (kafka-storage 3.10).
LATEST = -1
EARLIEST = -2
MAX_TIMESTAMP = -3
# How many attempts `Reader.until_settled` makes, and the pause between two of them.
_SETTLING_TRIES = 5
_SETTLING_SECONDS = 0.05


class OffsetAndTimestamp(NamedTuple):
    """The result of a lookup by time.

    `timestamp` (ms) is that of the record at `offset`. As in Kafka, it is -1 in the result for `LATEST` and
    `EARLIEST`, and in the result for `MAX_TIMESTAMP` if no record has a timestamp. `leader_epoch` is -1 if it is
    unknown.
    """

    offset: int
    timestamp: int
    leader_epoch: int = -1


def _is_data(header: Header) -> bool:
    return not header.is_control


def _is_any(header: Header) -> bool:
    return True


def _last_batch_before(segment: Segment, offset: int) -> Batch | None:
    """Return the last batch of a segment with a base offset below `offset`; None if the segment has none.

    Raises `DamagedRange` if the range just before `offset` is damaged.
    """
    batch = segment.find_batch(offset - 1)
    if batch is not None and batch.header.base_offset < offset:
        return batch
    # Compaction has left a gap before `offset`. Search from the last index entry before the gap.
    before: Batch | Damage | None = None
    for found in segment.walk(segment.position_of(offset - 1)):
        first = found.first_offset if isinstance(found, Damage) else found[1].header.base_offset
        if first >= offset:
            break
        before = found if isinstance(found, Damage) else found[1]
    if isinstance(before, Damage):
        raise before.error(segment.path)
    return before


def _counted(segment: Segment, entry_number: int) -> Iterator[tuple[int, Batch | Damage]]:
    """Yield (count, batch) for the batches of a segment, from the text index entry `entry_number` on.

    `count` is the number of the segment's records before the batch. An `entry_number` of -1 stands for the start of
    the segment. Control batches are left out. A `Damage` is yielded in the place of a batch; its records are not
    counted.
    """
    entry = segment.text_index[entry_number]
    count = entry.before.records
    for found in segment.walk(entry.position, first_offset=entry.offset):
        if isinstance(found, Damage):
            yield count, found
        elif not found[1].header.is_control:
            yield count, found[1]
            count += found[1].header.record_count


def _offset_of_record(segment: Segment, number: int) -> int:
    """Return the offset of record `number` (from 0) of a segment.

    If the segment has no such record, the record may be damaged. The result is then the offset at which the first
    damage begins, so that a read from there raises its error; without damage it is `next_offset`.
    """
    damaged: int | None = None
    for before, found in _counted(segment, segment.text_index.number_of_record(number)):
        if isinstance(found, Damage):
            damaged = found.first_offset if damaged is None else damaged
        elif before + found.header.record_count > number:
            if found.header.is_whole:
                return found.header.base_offset + number - before
            return int(found.columns().offsets[number - before])
    return segment.next_offset if damaged is None else damaged


def _records_before(segment: Segment, offset: int) -> int:
    """Return how many records a segment has before a batch that begins at `offset`."""
    number = segment.text_index.number_of_offset(offset)
    count = segment.text_index[number].before.records
    for before, found in _counted(segment, number):
        if isinstance(found, Damage):
            continue
        if found.header.base_offset >= offset:
            break
        count = before + found.header.record_count
    return count


@dataclass(slots=True)
class Traffic:
    """The counters of one partition for the metrics of a mount: bytes read, failed appends and failed reads.

    They begin at 0 when the partition is opened.
    """

    bytes_out: int = 0
    failed_appends: int = 0
    failed_reads: int = 0


class Reader:
    """A reader of a log at one isolation level. Records in [log_start_offset, log_end_offset) are readable.

    Any thread may read without a lock: each call takes the log's `state` once, sealed segments never change (rule 4
    of docs/architecture.md), and the active segment is read only up to the end that the writer has published.
    """

    if TYPE_CHECKING:
        # A `Log` has these as attributes of its own. A `CommittedReader` takes them from its log.
        name: TopicPartition
        views: ViewRegistry
        traffic: Traffic

        @property
        def disk(self) -> Disk:
            """The disk that holds the partition directory."""

        @property
        def directory(self) -> Path:
            """The partition directory."""

        @property
        def log(self) -> Log:
            """The `Log` with all records: for a `Log`, itself; for a `CommittedReader`, the log that it reads."""

        @property
        def state(self) -> LogState:
            """The state of the log at this moment; `log_end_offset` is the end of the records that this reader shows.

            In a `CommittedReader`, `log_end_offset` is `LogState.stable_end`. If it is below the log start, no record
            is shown.
            """

        @property
        def epochs(self) -> LeaderEpochs:
            """The leader epochs of the log, each with its start offset."""

    def __init__(self) -> None:
        self._keys: KeyIndex | None = None
        self._making_keys = make_lock(Level.MAKING_KEYS)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self.directory)!r})"

    @property
    def topic(self) -> str:
        """The topic's name."""
        return self.name.topic

    @property
    def partition(self) -> int:
        """The partition's number."""
        return self.name.partition

    # Single values of the current state. The log may change between two uses: a caller that needs several values of
    # the same moment must take them from one `state`.

    @property
    def segments(self) -> Sequence[Segment]:
        """All segments in order."""
        return self.log.state.segments

    @property
    def active(self) -> Segment:
        """The segment that appends go to."""
        return self.log.state.segments[-1]

    @property
    def log_start_offset(self) -> int:
        """The lowest readable offset."""
        return self.log.state.log_start_offset

    @property
    def log_end_offset(self) -> int:
        """Where this reader ends: at the log end offset or, for a `CommittedReader`, at the last stable offset."""
        return self.state.log_end_offset

    @property
    def last_timestamp(self) -> int:
        """The greatest timestamp of the last batch (ms); -1 if the batch has none, or if there is no batch."""
        return self.log.state.last_timestamp

    @property
    def generation(self) -> int:
        """A number that grows when a new text view may have other bytes at the same positions than an older view.

        Truncation, compaction and the deletion of records change it. Appends do not.
        """
        return self.log.state.generation

    @property
    def size_bytes(self) -> int:
        """The size of all .log files in bytes."""
        return self.log.state.size_bytes

    def shown(self, state: LogState) -> Callable[[Header], bool]:
        """Return a function that takes a batch's header and returns whether readers see the batch's records.

        Control batches are never seen. `state` is the state of the log when the read began.
        """
        return _is_data

    def aborted(self, state: LogState) -> Aborted:
        """Return the aborted transactions that this reader hides, at least those below the end of `state`.

        A `Log` hides none. The result has (first offset, offset of the abort marker) of each transaction, by producer
        id.
        """
        return {}

    def text(self, view: View, start: int | None = None, end: int | None = None) -> Text:
        """Return the text of the records in [start, end), by default of all; without `end`, it grows with the log."""
        return TextView(self, view, start, end)

    def refresh(self) -> bool:
        """Bring a partition of a read-only store up to date with its files; return whether anything has changed.

        Returns False for a partition that this process writes, which is always up to date.
        """
        return False

    def check_may_block(self) -> None:
        """Raise `WouldBlock` in a thread that must not wait for the disk."""
        self.disk.check_may_block()

    def check_readable(self, offset: int, state: LogState | None = None) -> None:
        """Raise `OffsetOutOfRange` unless `offset` is at least the log start offset and at most the log end offset.

        Both offsets are those of `state`. Without `state`, they are those of the whole log at this moment, even for a
        `CommittedReader`, which may end below the log end offset.
        """
        state = state or self.log.state
        if not state.log_start_offset <= offset <= state.log_end_offset:
            raise OffsetOutOfRange(
                f"{self.name.directory}: offset {offset} is not in "
                f"[{state.log_start_offset}, {state.log_end_offset}]"
            )

    def committable(self, offset: int) -> int | None:
        """Return the offset that a group can commit after it has read the records below `offset`.

        The result is the greater of `offset` and the log start offset; None if a truncation has cut the log below
        `offset`.
        """
        state = self.log.state
        return max(offset, state.log_start_offset) if offset <= state.log_end_offset else None

    def _range(self, offset: int | None, end: int | None) -> tuple[LogState, int, int]:
        """Return the state of the log, and the first and the end offset to read in it, for a read of [offset, end).

        None stands for the log start or the log end. Raises `OffsetOutOfRange` if `offset` is outside the log.
        """
        log, state = self.log.state, self.state
        first = log.log_start_offset if offset is None else offset
        self.check_readable(first, log)
        return state, first, state.log_end_offset if end is None else min(end, state.log_end_offset)

    def batches(
        self, offset: int, end: int | None = None, state: LogState | None = None
    ) -> Iterator[Batch]:
        """Yield whole batches: from the one that holds `offset` to the last that begins before `end` or the log end.

        Control batches are included. With `state`, reads the log as of that state instead of the current one;
        `offset` is then not checked. If another process has deleted a file of the log, reading continues with the
        current state; `Gone` is raised if this happens many times in a row. Raises `OffsetOutOfRange` if `offset` is
        outside the log, or if a truncation during the read cuts off the next batch or a part of it. Raises
        `DamagedRange` (a `Corrupt`) at damage; reading can continue after the damage, at the error's `next_offset`.
        """
        at, left = offset, TRIES
        while True:
            if state is None:
                state = self.state
                self.check_readable(at)
            stop = state.log_end_offset if end is None else min(end, state.log_end_offset)
            try:
                for batch in self._batches(at, stop, state):
                    yield batch
                    at, left = batch.header.next_offset, TRIES
                return
            except Gone as gone:
                left -= 1
                self.log.look_again(left, gone)
                state = None

    def _batches(self, offset: int, stop: int, state: LogState) -> Iterator[Batch]:
        for segment in state.segments_from(offset):
            if segment.base_offset >= stop:
                return
            for found in segment.batches_from(offset):
                if isinstance(found, Damage):
                    # Bytes that a truncation is cutting off look like damage. Wait for the end of a truncation and,
                    # if there was one, report it in place of the damage.
                    self.log.await_truncation()
                    self._check_left(found.next_offset, state)
                    if found.first_offset >= stop:
                        return
                    raise found.error(segment.path)
                batch = found[1]
                self._check_left(batch.header.next_offset, state)
                if batch.header.base_offset >= stop:
                    return
                yield batch

    def _check_left(self, reached: int, state: LogState) -> None:
        """Raise `OffsetOutOfRange` if the log was truncated since `state` to an end below the offset `reached`."""
        known, now = len(state.truncations), self.log.state.truncations
        if len(now) > known and reached > (end := min(now[known:])):
            raise OffsetOutOfRange(
                f"{self.name.directory}: the log was truncated to offset {end} while it was read; read again"
            )

    def read(
        self, offset: int | None = None, end: int | None = None, *, limit: int | None = None
    ) -> Iterator[Record]:
        """Yield the records in [offset, end), by default from the log start to the log end as it is now.

        With `limit`, yields at most so many. Records that readers do not see, such as control records, are left out.
        Raises `OffsetOutOfRange` if `offset` is outside the log, or if a truncation during the read cuts off the next
        record. Raises `DamagedRange` at damage; reading can continue after the damage, at the error's `next_offset`.
        """
        state, first, stop = self._range(offset, end)
        shows = self.shown(state)
        for batch in [] if limit == 0 else self.batches(first, stop, state):
            if not shows(batch.header):
                continue
            with self._decoding(batch, state):
                records = batch.records_between(first, stop, limit)
            for record in records:
                if self.log.state.truncations is not state.truncations:
                    # The log was truncated after this read began: do not yield a record that was cut off.
                    self._check_left(record.offset + 1, state)
                yield record
            if limit is not None:
                limit -= len(records)
                if not limit:
                    return

    def columns(self, offset: int | None = None, end: int | None = None) -> Columns:
        """Return the records in [offset, end) as numpy arrays, by default from the log start to the log end.

        Records that readers do not see are left out. Raises `OffsetOutOfRange`, and `DamagedRange` at damage.
        """
        state, first, stop = self._range(offset, end)
        return self._columns(self.batches(first, stop, state), first, stop, state)

    def columns_as_of(self, state: LogState, offset: int, end: int) -> Columns:
        """Return the records in [offset, end) of the log as it was in `state`, as numpy arrays.

        Includes records in segments that have since left the log. Raises `OffsetOutOfRange` if a truncation since
        `state` has cut off some of the records, `DamagedRange` at damage, and `Gone` if another process has deleted
        the file of such a segment.
        """
        return self._columns(self._batches(offset, end, state), offset, end, state)

    def _columns(self, batches: Iterable[Batch], first: int, stop: int, state: LogState) -> Columns:
        """Return the records of `batches` with offsets in [first, stop) that readers of `state` see."""
        shows = self.shown(state)
        parts = []
        for batch in batches:
            if shows(batch.header):
                with self._decoding(batch, state):
                    rows = batch.columns()
                inside = (rows.offsets >= first) & (rows.offsets < stop)
                parts.append(rows if inside.all() else rows.select(inside))
        return concatenate(parts)

    def record(self, offset: int) -> Record | None:
        """Return the record at `offset`; None if compaction removed it or readers do not see it.

        Raises `OffsetOutOfRange`, and `DamagedRange` if the offset lies in a damaged range.
        """
        return self.until_found(self._record, offset)

    def _record(self, offset: int) -> Record | None:
        state = self.state
        self.check_readable(offset)
        if offset >= state.log_end_offset:
            last = f"the last is {state.log_end_offset - 1}"
            if state.log_end_offset <= state.log_start_offset:
                last = f"the log is empty, and its next offset is {state.log_start_offset}"
            raise OffsetOutOfRange(
                f"{self.name.directory}: there is no offset {offset} yet: {last}"
            )
        batch = state.segments_from(offset)[0].find_batch(offset)
        if (
            batch is None
            or not self.shown(state)(batch.header)
            or batch.header.base_offset > offset
        ):
            return None
        try:
            return batch.record_at(offset)
        except Corrupt as error:
            raise self._damage_of(batch, state, error) from None

    @contextmanager
    def _decoding(self, batch: Batch, state: LogState) -> Iterator[None]:
        """Raise `DamagedRange` if the `with` block raises `Corrupt` because the records of `batch` are malformed."""
        try:
            yield
        except Corrupt as error:
            raise self._damage_of(batch, state, error) from None

    def _damage_of(self, batch: Batch, state: LogState, error: Corrupt) -> Corrupt:
        """Return a `DamagedRange` for `batch`, whose records could not be decoded because of `error`.

        Returns `error` itself if the segment has no valid batch at or after the base offset of `batch` any more.
        """
        segment = state.segments_from(batch.header.base_offset)[0]
        for found in segment.batches_from(batch.header.base_offset):
            if not isinstance(found, Damage):
                return unreadable(*found, error).error(segment.path)
        return error

    @property
    def keys(self) -> KeyIndex:
        """The key index, which finds the newest record of each key. It is made at the first use."""
        with self._making_keys:
            if self._keys is None:
                self._keys = KeyIndex(self)
            return self._keys

    def drop_keys(self) -> None:
        """Drop the key index because the log has changed. The next use of `keys` makes a new one."""
        with self._making_keys:
            if self._keys is not None:
                # A thread that still uses the dropped index must not write its file again.
                self._keys.is_kept = False
            self._keys = None

    def until_found(self, read: Callable[..., T], *arguments: Any) -> T:
        """Return `read(*arguments)`; repeat the call if it raises `Gone`, because a file is missing or was cut.

        In a read-only store, the partition is refreshed before each repetition, and at most 100 calls are made. For a
        partition that this process writes, only a few calls are made. They help if another program has cut an index
        file, and another thread has rebuilt the index since. The last call may raise `Gone`.
        """
        for left in reversed(range(TRIES)):
            try:
                return read(*arguments)
            except Gone as gone:
                self.log.look_again(left, gone)
        raise AssertionError("unreachable: the last attempt returns or raises")

    def until_settled(self, look: Callable[[], T]) -> T:
        """Return `look()`, which looks at the files of the log; repeat the call if a file leaves the log meanwhile.

        The log is refreshed before each repetition. If the refresh finds no change, this method waits 0.05 s before
        it repeats the call, because a file or the directory is then being replaced. Raises `OSError`; `Gone` and
        `FileNotFoundError` only if the fifth attempt fails, too. Unlike `until_found`, this is for calls that look at
        many files.
        """
        for _ in range(_SETTLING_TRIES - 1):
            with suppress(FileNotFoundError, Gone):
                return look()
            if not self.refresh():
                # A file or the directory is being replaced or removed, but `refresh` has not seen this yet: wait.
                time.sleep(_SETTLING_SECONDS)
        return look()

    def newest(self, key: bytes) -> Record | None:
        """Return the newest record with `key`; None if there is no such record, or if its value is null.

        The first call reads the whole log or, if the key index has a file, the part of the log that the file does not
        cover. It skips damaged ranges: their records are not found. Raises `Corrupt` if the record was damaged after
        the index had read it, `WouldBlock` in a thread that must not wait, and `OSError`.
        """
        return self.until_found(self.keys.newest, key)

    def first_offset_from(self, offset: int) -> int | None:
        """Return the offset of the first record at or after `offset`; None if there is none.

        A damaged range counts as a record: the result is then the first offset of the range, but at least `offset`.
        """
        return self.until_found(self._first_offset_from, offset)

    def _first_offset_from(self, offset: int) -> int | None:
        state = self.state
        shows = self.shown(state)
        for segment in state.segments_from(offset):
            for found in segment.batches_from(offset):
                if isinstance(found, Damage):
                    return max(found.first_offset, offset)
                header = found[1].header
                if header.base_offset >= state.log_end_offset:
                    return None
                if not shows(header):
                    continue
                if header.is_whole and offset <= header.last_offset:
                    # The batch has a record at each of its offsets, so do not decode it: that may take long.
                    return max(header.base_offset, offset)
                try:
                    offsets = found[1].offsets()
                except Corrupt:
                    return max(header.base_offset, offset)
                number = bisect_left(offsets, offset)
                if number < len(offsets):
                    return offsets[number]
        return None

    def last_offset(self) -> int | None:
        """Return the offset of the last record; None if there is none.

        Raises `DamagedRange` if the log ends in damage: the damaged range may have contained the last record.
        """
        return self.until_found(self._last_offset)

    def _last_offset(self) -> int | None:
        return next(self._last_offsets(self.state), None)

    def _last_offsets(self, state: LogState) -> Iterator[int]:
        """Yield the offsets of the records that readers of `state` see, the last one first."""
        shows = self.shown(state)
        at, first = state.log_end_offset, state.log_start_offset
        while at > first:
            segment = state.segments_from(at - 1)[0]
            batch = _last_batch_before(segment, at)
            if batch is None:
                # Continue in the segment before. Its last batch may end far below the base offset of this segment.
                at = min(at - 1, segment.base_offset)
                continue
            if shows(batch.header):
                with self._decoding(batch, state):
                    offsets = batch.offsets()
                yield from reversed(offsets[bisect_left(offsets, first) : bisect_left(offsets, at)])
            at = min(at - 1, batch.header.base_offset)

    def offset_for_time(self, timestamp: int, *, shown: bool = False) -> OffsetAndTimestamp | None:
        """Return the first offset with a timestamp (ms) of at least `timestamp`, as Kafka's offsetsForTimes does.

        Returns None if no offset is found. Without `shown`, only the first segment whose largest timestamp is at
        least `timestamp` is searched, and the result may be a control record, as in Kafka (kafka-storage 3.10). With
        `shown`, later segments are searched too, and records that readers do not see are skipped. `timestamp` may
        also be `LATEST`, `EARLIEST` or `MAX_TIMESTAMP`, for which `shown` changes nothing. Raises `InvalidRecord` for
        other negative values.
        """
        return self.until_found(self._offset_for_time, timestamp, shown)

    def _offset_for_time(self, timestamp: int, shown: bool) -> OffsetAndTimestamp | None:
        if timestamp == LATEST:
            return OffsetAndTimestamp(self.log_end_offset, NO_TIMESTAMP, self.epochs.latest)
        if timestamp == EARLIEST:
            start = self.log_start_offset
            return OffsetAndTimestamp(start, NO_TIMESTAMP, self.epochs.epoch_for(start))
        if timestamp == MAX_TIMESTAMP:
            return self._offset_of_max_timestamp()
        if timestamp < 0:
            raise InvalidRecord(
                f"timestamp {timestamp} is negative: give ms since 1970, "
                "-1 (latest), -2 (earliest) or -3 (max-timestamp)"
            )
        state = self.state
        return self.offset_for_time_as_of(state, timestamp, self.shown(state) if shown else None)

    def offset_for_time_as_of(
        self, state: LogState, timestamp: int, shows: Callable[[Header], bool] | None
    ) -> OffsetAndTimestamp | None:
        """Return the first offset with a timestamp (ms) of at least `timestamp` in the log as it was in `state`.

        Returns None if no offset is found. `shows` takes a batch's header and returns whether readers see the batch.
        Batches that they do not see are skipped. If `shows` is None, no batch is skipped, but only the first segment
        whose largest timestamp is at least `timestamp` is searched, as in Kafka (kafka-storage 3.10).
        """
        # Skip records below the log start: they were deleted, even if their files are not removed yet.
        for segment in state.segments_from(state.log_start_offset):
            if not segment.size_bytes and not segment.gaps:
                # The segment is empty, but not because of compaction: it is new, or its records are lost. Skip it,
                # because `largest_timestamp` is the mtime of its file, which is not the time of a record.
                continue
            # For a segment that compaction has emptied, `largest_timestamp` is the mtime of its file. If the mtime is
            # at least `timestamp` and `shows` is None, later segments are not searched, as in Kafka.
            if segment.largest_timestamp >= timestamp:
                found = self._first_at(segment, timestamp, state.log_start_offset, shows or _is_any)
                if found is not None and found.offset >= state.log_end_offset:
                    return None
                if found is not None or shows is None:
                    return found
        return None

    def offset_of_last(self, count: int) -> int:
        """Return the offset at which the last `count` records of the log begin; the log start if it has fewer."""
        return self.until_found(self._offset_of_last, count)

    def _offset_of_last(self, count: int) -> int:
        state = self.log.state
        left = count
        for segment in reversed(state.segments):
            if segment.next_offset <= state.log_start_offset:
                break
            segment_end = segment.end
            records = segment_end.text.records
            if segment_end.next_offset > state.log_end_offset:
                # The segment already has a batch that `state` does not include: its append is not published yet.
                records = _records_before(segment, state.log_end_offset)
            if records < left:
                left -= records
                continue
            return max(_offset_of_record(segment, records - left), state.log_start_offset)
        return state.log_start_offset

    @staticmethod
    def _first_at(
        segment: Segment, timestamp: int, start: int, shows: Callable[[Header], bool]
    ) -> OffsetAndTimestamp | None:
        """Return the first record of a segment from offset `start` on with a time of at least `timestamp`, or None.

        Skips batches for which `shows` returns False. Damage is skipped in a local segment; in a remote segment, it
        raises `DamagedRange`, because the bytes may be right in the object store.
        """
        position, batch = segment.find_batch_at(timestamp, start)
        # Look in `batch` first. If it has the record, the walk does not begin, and reads nothing.
        walked = segment.walk(position, chunk_bytes=POINT_READ_BYTES)
        for found in walked if batch is None else chain([(position, batch)], walked):
            if isinstance(found, Damage):
                if segment.disk.is_remote:
                    # The bytes may have been damaged on the way from the object store: a retry may succeed.
                    raise found.error(segment.path)
                continue
            header = found[1].header
            if header.max_timestamp < timestamp or header.last_offset < start or not shows(header):
                continue
            with suppress(Corrupt):
                first = found[1].first_at(timestamp, start)
                if first is not None:
                    return OffsetAndTimestamp(*first, header.partition_leader_epoch)
        return None

    def _offset_of_max_timestamp(self) -> OffsetAndTimestamp | None:
        found = self._max_timestamp_now()
        if found is not None and found.offset < self.state.log_end_offset:
            return found
        # During an append, the greatest timestamp may be that of a record that readers do not see yet. Wait for the
        # end of the append, and look again.
        with self.disk.hold(self.log.lock):
            found = self._max_timestamp_now()
            return found if found is not None and found.offset < self.state.log_end_offset else None

    def _max_timestamp_now(self) -> OffsetAndTimestamp | None:
        """Return the first record with the greatest timestamp in the segments; None if there is none.

        The record may be at or above the end of this reader: for example, its append may not be published yet. If no
        record has a timestamp, returns the log start offset with timestamp -1, or None for messages of magic 0.
        """
        state = self.state
        start = state.log_start_offset
        filled = [segment for segment in state.segments_from(start) if segment.size_bytes]
        if not filled:
            return None
        segment = max(filled, key=lambda s: s.max_timestamp.timestamp)
        entry = segment.max_timestamp
        if entry.timestamp < 0:
            header = segment.header(0)
            if header is not None and header.magic == 0:
                # Messages of magic 0 have no timestamps, so there is no greatest timestamp.
                return None
            return OffsetAndTimestamp(start, NO_TIMESTAMP)
        return self._first_at(segment, entry.timestamp, start, _is_any)
