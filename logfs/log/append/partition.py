"""One partition: an ordered list of segments that grows at its end (Kafka's UnifiedLog)."""

from __future__ import annotations

import errno
from contextlib import suppress
from operator import attrgetter
from typing import TYPE_CHECKING

from logfs.errors import (
    Corrupt,
    InvalidRecord,
    LogDirFailed,
    LogfsError,
    NotWritable,
    OffsetOutOfRange,
    PartitionFailed,
    PartitionNotEmpty,
    RecordTooLarge,
    StoreClosed,
    UnknownPartition,
)
from logfs.format.base import names
from logfs.format.batches.batch import Batch, assign_offset
from logfs.format.batches.record import Record, Value, as_records
from logfs.format.encoding.batch_builder import (
    Built,
    build_lines,
    build_marker,
    build_records,
    of_transaction,
    offset_digits,
)
from logfs.format.messages.control import ControlType, EndTransactionMarker
from logfs.format.text.rendering import TextSize
from logfs.log.append.flusher import Flusher
from logfs.log.append.result import AppendedBatch, AppendResult
from logfs.log.append.validator import batch_format, check_batch, check_record
from logfs.log.disk.disk import EXHAUSTED, NO_DESCRIPTOR, TRIES
from logfs.log.read.log import Log
from logfs.log.segment.segment import Segment
from logfs.log.segment.segment_files import relocate
from logfs.log.state.deleted_segments import DeletedSegments

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

    from typing_extensions import Buffer

    from logfs.config import LogConfig
    from logfs.format.base.names import TopicPartition
    from logfs.format.encoding.batch_builder import BatchFormat, NewBatch
    from logfs.log.disk.disk import Disk, Gone
    from logfs.log.recovery import Loaded
    from logfs.log.segment.segment_writer import SegmentWriter

_extent = attrgetter("base_offset", "next_offset", "size_bytes")
# A read that finds a file shorter than expected, such as an index that was cut, is repeated this many times.
_REBUILDS = 3
# The first leader epoch of a log, because no broker assigns one. The CRC of a batch does not cover its leader epoch,
# so an audit compares it with the epoch file.
LEADER_EPOCH = 0


class Partition(Log):
    """A partition's log that this process writes.

    One append runs at a time, under `lock`; readers take no lock. After a failed fsync, or a failed write whose errno
    is not in `EXHAUSTED`, appends are refused until the store is opened again (docs/architecture.md, rule 7). Times
    are ms since the epoch, from the `clock` that the store was given (rule 5).
    """

    # These are class attributes until the first append. A store may have 10,000 partitions, and an object with more
    # than 30 attributes of its own takes 1.4 KB more.
    appended_ms: int | None = None
    _format: tuple[LogConfig, BatchFormat, int] | None = None

    def __init__(
        self,
        disk: Disk,
        directory: Path,
        name: TopicPartition,
        config: Callable[[], LogConfig],
        clock: Callable[[], int],
        loaded: Loaded,
    ) -> None:
        super().__init__(disk, directory, name, config, clock, loaded)
        self._dropped = DeletedSegments(disk)
        self.flusher = Flusher(self, loaded)

    def expire_producers(self, now_ms: int, expiration_ms: int) -> None:
        """Forget the producers that have been idle for `expiration_ms`, except those with an open transaction."""
        with self.lock:
            self.producers.expire(now_ms, expiration_ms)

    # Appending.

    def append(self, records: Iterable[Value | Record], *, in_one_batch: bool = False) -> int:
        """Append records and return the offset of the first. A bytes or str item becomes a record without a key.

        The records are readable at once, and durable after `flush`. `RecordTooLarge` and `InvalidRecord` leave the
        log unchanged. A crash or the `OSError` of a full disk leaves only whole batches: if the records need several
        batches, the first ones may stay. With `in_one_batch`, raises `RecordTooLarge` if the records need several
        batches. Raises `NotWritable`, `PartitionFailed` or `UnknownPartition` if the partition takes no appends at
        all, and `PartitionFailed` also if the write or a due flush fails.
        """
        wanted = as_records(records)
        now_ms, config = self._clock(), self.config
        built = self._build(wanted, config, now_ms)
        if built.refused is not None:
            raise built.refused
        if in_one_batch and len(built.batches) > 1:
            raise RecordTooLarge(
                f"{self.name.directory}: {len(wanted)} records that belong together do not fit in one batch; append "
                "fewer, or raise max.message.bytes or segment.bytes"
            )
        done = self._append(built, config, now_ms)
        if done.refused is not None:
            raise done.refused
        self.flush_if_due()
        return done.first_offset

    def append_lines(self, data: bytes) -> AppendResult:
        """Append each line of `data` as a record's value, up to the first that is refused.

        `data` must end with a newline. `consumed` in the result counts bytes. Raises `NotWritable`, `PartitionFailed`
        or `UnknownPartition` if the partition takes no appends at all.
        """
        now_ms, config = self._clock(), self.config
        if config.is_compacted:
            built = Built([], 0, self.refusal_of(Record(b""), config, now_ms))
        else:
            built = build_lines(data, self._format_for(config)[1], now_ms)
        return self._append(built, config, now_ms)

    def append_records(self, records: Sequence[Record]) -> AppendResult:
        """Append records up to the first that is refused; `consumed` in the result counts records.

        Raises `NotWritable`, `PartitionFailed` or `UnknownPartition` if the partition takes no appends at all.
        """
        now_ms, config = self._clock(), self.config
        return self._append(self._build(records, config, now_ms), config, now_ms)

    def refusal_of(self, record: Record, config: LogConfig, now_ms: int) -> InvalidRecord | None:
        """Return why the topic's settings refuse a record, or None if they accept it. Sizes are not checked."""
        refused = check_record(record, config, now_ms)
        return InvalidRecord(f"{self.name.directory}: {refused}") if refused else None

    def append_batch(self, data: Buffer, *, coordinator: bool = False) -> AppendedBatch:
        """Append one record batch that a producer made, with the checks of a leader (kafka-storage 2.9, 9.2).

        The log assigns the offsets, the leader epoch and, for LogAppendTime, the timestamps. The batch is compressed
        again only if `compression.type` names another codec. A repetition of one of the producer's last five batches
        is not appended again. With `coordinator`, the batch comes from a group coordinator, and its sequence numbers
        are not checked.

        Raises `Corrupt`, `Unsupported`, `RecordTooLarge` or `InvalidRecord` for a batch that the topic refuses;
        `InvalidProducerEpoch`, `OutOfOrderSequence` or `InvalidTransactionState` for one that does not fit the state
        of its producer; and `NotWritable`, `PartitionFailed`, `UnknownPartition` or `OSError`, as `append` does.
        """
        now_ms, config = self._clock(), self.config
        batch = Batch.parse(bytes(data))
        if len(batch.data) != len(memoryview(data)):
            raise Corrupt(
                f"{self.name.directory}: bytes follow the batch; append one batch at a time"
            )
        new = check_batch(batch, config, now_ms, trusted=coordinator)
        with self.disk.hold(self.lock):
            self._prepare(new, config, now_ms)
            if batch.header.producer_id >= 0:
                sent = self.producers.check_batch(batch.header, trusted=coordinator)
                if sent is not None:
                    return AppendedBatch(*sent.offsets, sent.timestamp, duplicate=True)
            done = self._append_noted(new, config, now_ms)
        self.flush_if_due()
        return done

    def append_transactional(
        self,
        records: Iterable[Value | Record],
        producer_id: int,
        producer_epoch: int,
        sequence: int,
        *,
        coordinator: bool = False,
    ) -> tuple[int, int]:
        """Append records of a producer's transaction; return the offset of the first, and the next sequence number.

        `sequence` is the sequence number of the first record; it is not checked if a group coordinator appends the
        records (`coordinator`). After an error, the first batches may have been appended; the transaction must then
        be aborted. Raises the errors of `append` and `append_batch`.
        """
        now_ms, config = self._clock(), self.config
        built = self._build(as_records(records), config, now_ms)
        if built.refused is not None:
            raise built.refused
        with self.disk.hold(self.lock):
            first = self.log_end_offset
            for new in built.batches:
                new.data = of_transaction(new.data, producer_id, producer_epoch, sequence)
                header = Batch.parse(new.data).header
                self._prepare(new, config, now_ms)
                self.producers.check_batch(header, trusted=coordinator)
                self._append_noted(new, config, now_ms)
                sequence += new.record_count
        self.flush_if_due()
        return first, sequence

    def end_transaction(
        self, producer_id: int, producer_epoch: int, *, commit: bool, coordinator_epoch: int = 0
    ) -> int:
        """Append the marker that commits or aborts a producer's transaction; return its offset (kafka-storage 9.3).

        Raises `InvalidProducerEpoch` or `CoordinatorFenced` for an outdated epoch, and the errors of `append_batch`.
        """
        now_ms, config = self._clock(), self.config
        kind = ControlType.COMMIT if commit else ControlType.ABORT
        marker = EndTransactionMarker(kind, coordinator_epoch)
        stamped = self._format_for(config)[1].timestamp_type
        new = build_marker(marker, producer_id, producer_epoch, stamped, now_ms)
        with self.disk.hold(self.lock):
            self._prepare(new, config, now_ms)
            self.producers.check_marker(producer_id, producer_epoch, coordinator_epoch)
            done = self._append_noted(new, config, now_ms)
        self.flush_if_due()
        return done.first_offset

    def _prepare(self, new: NewBatch, config: LogConfig, now_ms: int) -> None:
        """Check that an append can succeed, and roll if the batch needs a new segment.

        As in Kafka, the roll comes before the check of the producer's epoch and sequence: a batch that this check
        refuses may cause a roll. Raises the errors of `check_appendable` and of a failed write.
        """
        self.check_appendable()
        try:
            self._make_room(new, config, now_ms)
        except OSError as error:
            raise self.failed_append(error) from None

    def _append_noted(self, new: NewBatch, config: LogConfig, now_ms: int) -> AppendedBatch:
        """Append a batch, update the state of its producer, and then make the batch visible to readers."""
        first = self.log_end_offset
        try:
            self._append_batch(new, config, now_ms)
            self.note_producer(Batch.parse(new.data), len(new.data))
            self.publish(last_timestamp=new.max_timestamp)
        except KeyboardInterrupt as interrupt:
            self.fail("an append was interrupted", interrupt)
            raise
        except OSError as error:
            raise self.failed_append(error) from None
        return AppendedBatch(first, self.log_end_offset - 1, new.max_timestamp, duplicate=False)

    def note_producer(self, batch: Batch, size: int) -> None:
        """Update the state of a batch's producer. The batch must be among the last `size` bytes that were appended.

        If the batch aborts a transaction, adds an entry to the transaction index. If the entry cannot be written,
        cuts off the last `size` bytes and raises `PartitionFailed`: without the entry, other processes would treat
        the aborted records as committed.
        """
        aborted = self.producers.update(batch)
        if aborted is not None:
            try:
                self.active.txn_index.append(aborted)
            except OSError as error:
                with suppress(OSError, LogDirFailed):
                    self.disk.truncate(self.active.file, self.active.size_bytes - size)
                raise self.fail("an aborted transaction could not be indexed", error) from error

    def _build(self, records: Sequence[Record], config: LogConfig, now_ms: int) -> Built:
        """Build batches of the records up to the first that the topic refuses; `refused` in the result says why."""
        form = self._format_for(config)[1]
        for number, record in enumerate(records):
            refused = self.refusal_of(record, config, now_ms)
            if refused is not None:
                built = build_records(records[:number], form, now_ms)
                built.refused = built.refused or refused
                return built
        return build_records(records, form, now_ms)

    @property
    def line_limit(self) -> int:
        """The length in bytes of the longest line that fits a batch, by the settings in force."""
        return self._format_for(self.config)[2]

    def _format_for(self, config: LogConfig) -> tuple[LogConfig, BatchFormat, int]:
        """Return (`config`, its batch format, the length limit of a line in bytes); cached until settings change."""
        known = self._format
        if known is None or known[0] is not config:
            form = batch_format(config)
            known = self._format = (config, form, form.line_limit)
        return known

    def _append(self, built: Built, config: LogConfig, now_ms: int) -> AppendResult:
        """Write batches one by one, and then make all visible to readers. A batch written only in part is cut off."""
        with self.disk.hold(self.lock):
            self.check_appendable()
            if len(built.batches) > 1:
                self.check_may_block()  # before anything is appended: the caller repeats the whole call
            first_offset, consumed = self.log_end_offset, built.consumed
            refused: LogfsError | OSError | None = built.refused
            timestamp = self.state.last_timestamp
            try:
                for number, batch in enumerate(built.batches):
                    try:
                        self._append_batch(batch, config, now_ms)
                    except OSError as error:
                        refused = self.failed_append(error)
                        consumed -= sum(map(built.consumed_by, built.batches[number:]))
                        break
                    timestamp = batch.max_timestamp
                self.publish(last_timestamp=timestamp)
            except KeyboardInterrupt as interrupt:
                self.fail("an append was interrupted", interrupt)
                raise
            return AppendResult(first_offset, self.log_end_offset - 1, consumed, refused)

    def check_empty(self) -> None:
        """Raise `PartitionNotEmpty` if the log has records."""
        count = self.log_end_offset - self.log_start_offset
        if count:
            raise PartitionNotEmpty(
                f"{self.name.directory}: has {count} records; to delete them too, run 'logfs delete {self.directory}'"
            )

    def check_appendable(self) -> None:
        """Raise `NotWritable`, `PartitionFailed` or `UnknownPartition` if no append can succeed."""
        self.check_changeable()
        source = self.config.logfs_mirror_source
        if source:
            raise NotWritable.of_mirror(self.name.directory, source)

    def check_mirror(self, source: str) -> None:
        """Call `check_changeable`; raise `NotWritable` if `logfs.mirror.source` is not `source`. Requires `lock`."""
        self.check_changeable()
        if self.config.logfs_mirror_source != source:
            raise NotWritable(f"{self.name.directory}: logfs.mirror.source is no longer {source!r}")

    def check_changeable(self) -> None:
        """Raise `PartitionFailed` or `UnknownPartition` if the log takes no changes at all.

        The log of a mirror passes this check, unlike `check_appendable`.
        """
        if self.failure is not None:
            raise self.failure

    def _make_room(self, batch: NewBatch, config: LogConfig, now_ms: int) -> SegmentWriter:
        """Return the writer of the active segment, or of a new one if the batch needs a roll (kafka-storage 4.1)."""
        writer = self.writer(config)
        last_offset = self.active.next_offset + batch.record_count - 1
        if writer.should_roll(len(batch.data), last_offset, batch.max_timestamp, config, now_ms):
            self.check_may_block()
            self.roll(now_ms)
            return self.writer(config)
        return writer

    def now_ms(self) -> int:
        """Return the time, in ms since the epoch."""
        return self._clock()

    def writer(self, config: LogConfig) -> SegmentWriter:
        """Return the writer of the active segment; create the writer if the segment has none."""
        active = self.state.segments[-1]
        return active.writer or active.activate(config)

    def _append_batch(self, batch: NewBatch, config: LogConfig, now_ms: int) -> None:
        # Do not use the log end in `state`: it moves only after `_append` has written all batches of the call.
        base_offset = self.active.next_offset
        if self.epochs.latest < 0:
            self.check_may_block()
            self.epochs.assign(LEADER_EPOCH, base_offset)
        writer = self._make_room(batch, config, now_ms)
        count, size, timestamp = batch.record_count, len(batch.data), batch.max_timestamp
        assign_offset(batch.data, base_offset, self.epochs.latest)
        records, lines, envelopes = batch.text
        text = TextSize(records, lines, envelopes + offset_digits(base_offset, records))
        writer.append(
            batch.data, base_offset + count - 1, timestamp, text, config.index_interval_bytes
        )
        self.note_appended(count, size, config, now_ms)

    def note_appended(self, records: int, size_bytes: int, config: LogConfig, now_ms: int) -> None:
        """Add to the counts of appended records and bytes, and remember `now_ms`, the time of the append."""
        self.appended_records += records
        self.appended_bytes += size_bytes
        self.appended_ms = now_ms
        self.flusher.note_append(config, now_ms)

    def failed_append(self, error: OSError) -> OSError | PartitionFailed:
        """Undo the write that failed with `error`, and return the error to report.

        Later appends are refused if the errno of `error` is not in `EXHAUSTED`, or if the undo fails too.
        """
        try:
            self.active.cut_back()
        except OSError as second:
            return self.fail("a write failed and could not be undone", second)
        return error if error.errno in EXHAUSTED else self.fail("a write failed", error)

    def fail(self, what: str, error: BaseException) -> PartitionFailed:
        """Refuse all further appends (docs/architecture.md, rule 7), and return the error that they will raise.

        The message has `what` and the cause `error`. If the log directory has failed, returns `disk.failure` instead.
        """
        if self.disk.failure is not None:
            self.failure = self.disk.failure
            return self.failure
        why = str(error) or type(error).__name__
        self.failure = PartitionFailed(
            f"{self.directory}: {what} ({why}); records fsynced before are safe, and appends are "
            "refused until the store is unmounted and mounted again, which recovers it"
        )
        self.failure.__cause__ = error
        return self.failure

    def roll(self, now_ms: int) -> Segment:
        """Seal the active segment and return the next one (kafka-storage 4.2); an empty active segment is reused.

        After an `OSError` the log is as it was. Unless the error is for a full disk or too many open files
        (`EXHAUSTED`), the log refuses further appends.
        """
        with self.lock:
            self.check_changeable()
            sealed = self.active
            if sealed.next_offset == sealed.base_offset:
                sealed.created_ms = now_ms
                sealed.txn_index.remove()
                return sealed
            return self.begin_segment(sealed.next_offset, now_ms)

    def begin_segment(
        self, base_offset: int, now_ms: int, *, log_start_offset: int | None = None
    ) -> Segment:
        """Seal the active segment, and begin and return the next one.

        `base_offset` is the log end or, for a mirror, any offset above it. An empty active segment is removed.
        `log_start_offset` is the new log start; None keeps it. Raises the errors of `roll`. The caller must hold
        `lock`.
        """
        before = self.active
        is_empty = not before.size_bytes
        try:
            segment = self._begin_next(base_offset, now_ms)
            self.flusher.note_new_files()
            kept = self.segments[:-1] if is_empty else self.segments
            self.publish(
                segments=(*kept, segment), log_start_offset=log_start_offset, changes_text=is_empty
            )
        except KeyboardInterrupt as interrupt:
            self.fail("a roll was interrupted", interrupt)
            raise
        except OSError as error:
            self.failed_append(error)
            raise
        if is_empty:
            before.discard()
        return segment

    def _begin_next(self, base_offset: int, now_ms: int) -> Segment:
        """Seal the active segment, write a producer snapshot at its end, and return the next segment.

        After an `OSError`, the old segment stays active, and the files of the next segment are removed. They stay if
        the log directory has failed (`LogDirFailed`), or if the removal fails, which the error then says.
        """
        sealed, snapshots = self.active, self.snapshots
        segment = Segment(self.disk, self.directory, base_offset)
        try:
            segment.begin(self.config, now_ms)
            snapshots.write(base_offset, self.producers)
            sealed.seal(base_offset)
        except LogDirFailed:
            raise
        except OSError as error:
            try:
                snapshots.drop(base_offset)
                segment.discard()
            except LogDirFailed:
                raise
            except OSError as second:
                what = f"a roll failed ({error.strerror}) and could not be undone: {second}"
                raise OSError(errno.EIO, what) from None
            raise
        return segment

    # Durability.

    @property
    def recovery_point(self) -> int:
        """The offset below which all records are durable."""
        return self.flusher.recovery_point

    def flush(self) -> int:
        """Make everything that is in the log now durable, and return the new recovery point (an offset).

        Raises `PartitionFailed` if a sync fails now or has failed before, `UnknownPartition` for a deleted partition,
        and `OSError` for too many open files.
        """
        return self.flusher.flush()

    def flush_if_due(self) -> None:
        """Flush if a flush is due (`Flusher.is_due`). Raises `PartitionFailed`; too many open files are no error."""
        if self.flusher.is_due():
            try:
                self.flush()
            except OSError as error:
                # With too many open files, the next append tries again.
                if error.errno not in NO_DESCRIPTOR:
                    raise

    def close(self, ended: UnknownPartition | None = None) -> bool:
        """Flush the files, trim preallocated space, and close them; return whether the next load skips recovery.

        Writes a producer snapshot at the log end if there is none. If a step fails, returns False and leaves the
        files open. Later appends raise `ended`, or `PartitionFailed` if `ended` is None.
        """
        closed = ended or StoreClosed(f"{self.directory}: the store is closed; open it again")
        with self.flusher.lock, self.lock:
            try:
                self.flush()
                if self.active.has_preallocated_space:
                    self.active.finish()
                    self.active.flush(indexes=True)
                if self.snapshots.latest < self.log_end_offset:
                    # With this snapshot, a start after a clean close need not read the log to restore the producers.
                    self.snapshots.write(self.log_end_offset, self.producers)
                    self.snapshots.flush()
                    self.disk.sync_directory(self.directory)
            except (OSError, PartitionFailed):
                self.failure = ended or self.failure or closed
                return False
            self.failure = closed
            return super().close()

    # Moving the log start and the log end.

    def advance_log_start(self, offset: int) -> None:
        """Make all below `offset` unreadable; retention drops the segments that lie wholly below it.

        No record goes if `offset` is not above the log start. Raises `OffsetOutOfRange` if it is beyond the log end,
        the errors of `check_changeable`, and `OSError`, after which the log is as it was.
        """
        self.check_changeable()
        with self.flusher.lock, self.lock:
            if offset > self.log_end_offset:
                raise OffsetOutOfRange(
                    f"{self.name.directory}: offset {offset} is beyond the log end {self.log_end_offset}"
                )
            if offset >= self.log_start_offset:
                # The epochs may begin earlier: the log was loaded without its remote segments, or segments are lost.
                self.epochs.truncate_from_start(offset)
            if offset > self.log_start_offset:
                self.snapshots.minimum_offset = offset
                self.publish(log_start_offset=offset, changes_text=True)

    def truncate(self, offset: int) -> bool:
        """Drop every record at or after `offset` (kafka-storage 10.4); return whether `offset` was below the log end.

        A batch that straddles `offset` is dropped whole. The log then ends after the last batch left, perhaps below
        `offset`. The caller must first lower the recovery point in the checkpoint file. Raises `PartitionFailed`,
        `UnknownPartition`, or `OffsetOutOfRange` if `offset` is below the first local segment of a tiered log.
        """
        self.check_changeable()
        with self.flusher.lock, self.lock:
            if offset >= self.log_end_offset:
                self.epochs.truncate_from_end(self.log_end_offset)
                return False
            self.check_truncatable(offset)
            try:
                self._truncate(offset)
            except OSError as error:
                raise self.fail("a truncation failed", error) from error
            return True

    def look_again(self, tries_left: int, gone: Gone) -> None:
        # Permit a few repetitions: if another program has cut an index, another thread may have rebuilt it since.
        if tries_left < TRIES - _REBUILDS:
            raise gone

    def await_truncation(self) -> None:
        with self.disk.hold(self.lock):
            pass

    def check_truncatable(self, offset: int) -> None:
        """Raise `OffsetOutOfRange` if the log has remote segments and `offset` is below the first local segment."""
        if self.state.segments[0].is_tiered and offset < self.local_start_offset:
            raise OffsetOutOfRange(
                f"{self.name.directory}: offset {offset} is below {self.local_start_offset}, where the local "
                "segments begin; a log cannot be truncated to an end in the object store"
            )

    def _truncate(self, offset: int) -> None:
        now_ms, before = self._clock(), self.state
        self.forget_keys()
        kept = [segment for segment in before.segments if segment.base_offset <= offset]
        dropped = before.segments[len(kept) :]
        cut = kept[-1].end_before(offset) if kept else None
        if cut is None:
            fresh = Segment(self.disk, self.directory, offset)
            fresh.begin(self.config, now_ms)
            kept = [fresh]
        else:
            offset = cut.next_offset
        start = min(before.log_start_offset, offset)
        local = [segment for segment in kept if not segment.is_tiered]
        begin = local[0].base_offset
        self._producers = self.snapshots.restore(local, start, offset, now_ms, begin=begin)
        # Show readers the shorter log before its files are cut. A transaction whose marker is cut off is open again.
        self.state = before._replace(
            segments=tuple(kept),
            log_start_offset=start,
            log_end_offset=offset,
            stable_end=self._stable_end(offset),
            generation=before.generation + 1,
            truncations=(*before.truncations, offset),
        )
        # Segments are removed newest first, before the last kept one is cut: a crash then leaves no gap in the log.
        for segment in reversed(dropped):
            # Keep the files open for readers that still use the segment.
            segment.hold_open()
            for path in segment.files:
                self.disk.unlink(path)
        self.disk.sync_directory(self.directory)
        if cut is not None:
            kept[-1].truncate(cut, self.config, now_ms)
        self.flusher.lower_recovery_point(offset)
        self.epochs.truncate_from_end(offset)
        # Raise the generation again: a text view made after `state` was set may have shown bytes that are now gone.
        self.publish(changes_text=True)

    # Dropping segments (kafka-storage 7).

    def drop_oldest(self, count: int) -> Sequence[Segment]:
        """Drop up to `count` of the oldest segments, and return them; their files stay for `file.delete.delay.ms`.

        The caller must first make the new log start offset durable. A segment that ends above the log start is kept:
        an append or compaction may have extended it since the caller counted. A log that would lose all its segments
        gets an empty one at the log end. After an error, the segments whose files were not renamed stay in the log.
        The objects of remote segments stay in the bucket until `store/maintenance/remote_log_manager` deletes them.
        """
        self.check_changeable()
        self.views.pin()
        with self.flusher.lock:
            with self.lock:
                now_ms = self._clock()
                start = self.log_start_offset
                if count >= len(self.segments) and start == self.log_end_offset:
                    self.roll(now_ms)
                segments = self.segments
                most = min(count, len(segments) - 1)
                dropped = tuple(s for s in segments[:most] if s.next_offset <= start)
                self.publish(segments=segments[len(dropped) :])
                try:
                    due_ms = now_ms + self.config.file_delete_delay_ms
                    local = [segment for segment in dropped if not segment.is_tiered]
                    self._dropped.move_away(local, self.snapshots, due_ms)
                except OSError as error:
                    left = (each for each in dropped if each.path.suffix != names.DELETED)
                    self.publish(segments=(*left, *self.segments))
                    if error.errno in EXHAUSTED:
                        raise
                    raise self.fail("segments could not be renamed", error) from error
            self._sync_renames()
        return dropped

    def _sync_renames(self) -> None:
        """Make the renames of dropped files durable. Appends go on meanwhile. The caller must hold `Flusher.lock`."""
        try:
            self.disk.sync_directory(self.directory)
        except OSError as error:
            if error.errno in EXHAUSTED:
                # The next flush syncs the directory.
                self.flusher.note_new_files()
                raise
            raise self.fail("the renames of dropped segments could not be synced", error) from error

    def release_local(self, copies: Sequence[Segment]) -> Sequence[Segment]:
        """Replace the oldest local segments by `copies`, which are in an object store, and drop the local files.

        Returns the segments that were dropped; their files stay for `file.delete.delay.ms`, and longer if a reader
        holds them. Raises `Corrupt` unless the copies are adjacent, begin with the first local segment, and leave out
        the active segment. If the first rename fails, the log is as before. If a later one fails, the log reads from
        the copies and refuses appends. If the sync after the renames fails, the segments are dropped all the same.
        """
        self.check_changeable()
        self.views.pin()
        with self.flusher.lock:
            with self.lock:
                before = self.segments
                local = self.local_segments
                dropped = local[: len(copies)]
                differs = [*map(_extent, copies)] != [*map(_extent, dropped)]
                if differs or dropped[-1] is self.active:
                    raise Corrupt(
                        f"{self.directory}: the remote copies do not match the oldest sealed local segments, so no "
                        "local segment is deleted"
                    )
                remote = before[: len(before) - len(local)]
                self.publish(segments=(*remote, *copies, *local[len(copies) :]))
                try:
                    due_ms = self._clock() + self.config.file_delete_delay_ms
                    self._dropped.move_away(dropped, self.snapshots, due_ms)
                except OSError as error:
                    if any(each.path.suffix == names.DELETED for each in dropped):
                        raise self.fail("segments could not be renamed", error) from error
                    self.publish(segments=before)
                    raise
            self._sync_renames()
        return dropped

    def detach_remote(self) -> None:
        """Drop the segments that are only in an object store. All of these must lie below the log start offset."""
        self.views.pin()
        with self.flusher.lock, self.lock:
            if self.segments[0].is_tiered:
                self.publish(segments=self.local_segments, changes_text=True)

    def holds(self, segments: Sequence[Segment]) -> bool:
        """Whether `segments` are still adjacent sealed segments of the log.

        False also if the log was closed or deleted, or has failed.
        """
        found = self.state.segments_from(segments[0].base_offset)[:-1]
        return list(found[: len(segments)]) == list(segments) and self.failure is None

    def replace(self, old: Sequence[Segment], new: Segment, check: Callable[[], None]) -> None:
        """Replace the adjacent segments `old` by `new`, which compaction has made of them.

        The files of `new` must be durable, and have names that end in `.cleaned`. The renames are those of Kafka
        (kafka-storage 8.8): after a crash, recovery deletes `new` if a name still ends in `.cleaned`, and otherwise
        finishes the replacement. `check` is called first, under `Flusher.lock`; it must raise an error if the old
        segments have changed since `new` was made. Raises `PartitionFailed` if a rename or a sync fails.
        """
        self.views.pin()
        # While this lock is held, nothing else changes sealed segments. Appends go on while the renames are synced.
        with self.flusher.lock:
            check()
            try:
                new.rename_suffix(names.SWAP)
                # Sync before an old file is renamed: otherwise a power cut could leave neither old nor new files.
                self.disk.sync_directory(self.directory)
                with self.lock:
                    due_ms = self._clock() + self.config.file_delete_delay_ms
                    self._dropped.move_away(old, self.snapshots, due_ms, new.base_offset)
                self.disk.sync_directory(self.directory)
                new.rename_suffix("")
                self.disk.sync_directory(self.directory)
            except OSError as error:
                raise self.fail("a cleaned segment could not be put in place", error) from error
            with self.lock:
                number = self.segments.index(old[0])
                after = self.segments[number + len(old) :]
                self.publish(segments=(*self.segments[:number], new, *after), changes_text=True)

    def switch_to_copies(
        self, disk: Disk, directory: Path, segments: Sequence[Segment], snapshots: list[int]
    ) -> list[Segment]:
        """Let the partition continue with `segments`, durable copies of all its local segments; return the old ones.

        The copies are in `directory` on `disk`. `snapshots` are the offsets of the producer snapshots there. The
        result also has the segments that were dropped earlier but that readers still hold. The caller must hold
        `Flusher.lock` and `lock`.
        """
        local = self.local_segments
        left = [*local, *self._dropped.segments]
        remote = self.segments[: len(self.segments) - len(local)]
        self.directory, self.disk, self._dropped = directory, disk, DeletedSegments(disk)
        self.epochs.rebind(disk, directory)
        self.snapshots.rebind(disk, directory, snapshots)
        self.publish(segments=(*remote, *segments))
        self.flusher.note_durable_copies()
        return left

    def rename_directory(self, directory: Path) -> None:
        """Rename the partition's directory to `directory`.

        Readers of this log find its files in the renamed directory, even if a new partition takes the old name.
        """
        with self.disk.naming:
            self.disk.rename_unsynced(self.directory, directory)
            relocate([*self.local_segments, *self._dropped.segments], directory)
            self.directory = directory
        self.disk.sync_directory(directory.parent)

    def remove_dropped(self, now_ms: int) -> int:
        """Unlink the files of dropped segments whose delay has passed and that no reader holds.

        Returns the number of segments whose files were unlinked.
        """
        if self._dropped.are_due(now_ms):
            self.views.pin()
        with self.lock:
            return self._dropped.remove(now_ms)


def writable(log: Log) -> Partition:
    """Return `log` as a `Partition`, which can be changed. Raises `NotWritable` if the store is open read-only."""
    if not isinstance(log, Partition):
        raise NotWritable(f"{log.directory}: cannot be changed: the store is open read-only")
    return log
