"""A log, and the readers of its two isolation levels."""

from __future__ import annotations

from contextlib import contextmanager
from itertools import islice
from typing import TYPE_CHECKING
from weakref import ref

from logfs.locks import Level, make_rlock
from logfs.log.read import key_index
from logfs.log.read.read_committed import CommittedText, Isolation, is_aborted
from logfs.log.read.reader import Reader, Traffic
from logfs.log.read.text_view import ViewRegistry
from logfs.log.state.log_state import LogState

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from logfs.config import LogConfig
    from logfs.errors import LogDirFailed, LogfsError, PartitionFailed, UnknownPartition
    from logfs.format.base.names import TopicPartition
    from logfs.format.batches.batch import Header
    from logfs.format.files.aborted_transactions import AbortedTransaction
    from logfs.format.text.rendering import View
    from logfs.log.disk.disk import Disk, Gone
    from logfs.log.read.key_index import KeyIndex
    from logfs.log.read.read_committed import Aborted
    from logfs.log.recovery import Loaded
    from logfs.log.segment.segment import Segment
    from logfs.log.state.leader_epochs import LeaderEpochs
    from logfs.log.state.producers import Producers


class Log(Reader):
    """The log of a partition: its published state, and the readers of both isolation levels.

    `state` is immutable. A change replaces it as a whole, under `lock`, once the files are as the new state says
    (rule 6 of docs/architecture.md). Readers take no lock.
    """

    disk: Disk
    directory: Path
    state: LogState
    epochs: LeaderEpochs

    # The error that every change of the log raises from now on; None while changes are accepted. Reads still succeed,
    # unless it is a `LogDirFailed`.
    failure: LogDirFailed | PartitionFailed | UnknownPartition | None = None
    # For each truncation by another process that was noticed, the base offset of the first segment that was cut.
    cuts: tuple[int, ...] = ()
    # Called after each publication of a state, while `lock` is held; they must not wait. `watch` adds one.
    _watchers: tuple[Callable[[], None], ...] = ()
    # The values below change only in a process that writes the log.

    # The time of the last compaction since the log was opened (ms); None if there was none.
    cleaned_ms: int | None = None
    # The error that prevents compaction; None if nothing does.
    uncleanable: LogfsError | OSError | None = None
    # Whether background tasks of this partition, such as retention and compaction, are paused.
    is_paused = False
    # The records and bytes appended since the partition was opened, for metrics.
    appended_records = 0
    appended_bytes = 0
    _committed: CommittedReader | None = None

    def __init__(
        self,
        disk: Disk,
        directory: Path,
        name: TopicPartition,
        config: Callable[[], LogConfig],
        clock: Callable[[], int],
        loaded: Loaded,
    ) -> None:
        super().__init__()
        self.disk = disk
        self.directory = directory
        self.name = name
        self.epochs = loaded.epochs
        self.snapshots = loaded.snapshots
        self.torn = tuple(loaded.torn)
        self.traffic = Traffic()
        self.views = ViewRegistry()
        self.lock = make_rlock(Level.PARTITION)
        self._producers = loaded.producers
        self._get_config = config
        self._clock = clock
        self.state = LogState(
            tuple(loaded.segments), loaded.log_start_offset, -1, None, loaded.last_timestamp
        )
        # Replace the placeholders -1 and None by the log end offset and `stable_end`.
        self.publish()

    @property
    def log(self) -> Log:
        """This object, which is its own log. The `log` of a `CommittedReader` is the log that it reads."""
        return self

    # The published state, which readers see (module `log_state`).

    def publish(
        self,
        *,
        segments: Sequence[Segment] | None = None,
        log_start_offset: int | None = None,
        last_timestamp: int | None = None,
        changes_text: bool = False,
    ) -> None:
        """Publish a new state of the log. For an argument that is None, the new state has the value of the old one.

        The caller must hold `lock`, and must have updated the files, the producers and the transaction indexes. The
        log end offset is the end of the last segment. `changes_text` says that a text view made from now on may have
        other bytes than an older view at the same positions.
        """
        before = self.state
        known = before.segments if segments is None else tuple(segments)
        end = known[-1].next_offset
        self.state = LogState(
            known,
            before.log_start_offset if log_start_offset is None else log_start_offset,
            end,
            self._stable_end(end),
            before.last_timestamp if last_timestamp is None else last_timestamp,
            before.generation + changes_text,
            before.truncations,
        )
        for tell in self._watchers:
            tell()

    @contextmanager
    def watched(self, tell: Callable[[], None]) -> Iterator[None]:
        """Call `tell` after each publication of a state during the `with` block. It must neither wait nor fail."""
        with self.lock:
            self._watchers = (*self._watchers, tell)
        try:
            yield
        finally:
            with self.lock:
                self._watchers = tuple(each for each in self._watchers if each is not tell)

    def _stable_end(self, end: int) -> int | None:
        """Return the first offset of the oldest open transaction; `end`, the log end offset, if none is open.

        Returns None if the log was loaded without its producers: `stable_state` then computes the value.
        """
        if self._producers is None:
            return None
        unstable = self._producers.first_unstable_offset
        return end if unstable is None else unstable

    @property
    def recovery_point(self) -> int:
        """The offset below which all records are durable; if another process writes the log, the value at loading."""
        raise NotImplementedError

    @property
    def producers(self) -> Producers:
        """The state of the idempotent and transactional producers at the log end."""
        assert self._producers is not None, "the log is loaded with its producers"
        return self._producers

    def attach_remote(self, segments: Sequence[Segment], log_start_offset: int) -> None:
        """Add `segments`, which are only in an object store, before the local ones, and set the log start offset.

        The new log start offset is the higher of `log_start_offset` and the base offset of the first of `segments`,
        but at most the log end offset. `segments` must end where the first local segment begins. If `segments` is
        empty, nothing is done. Must be called at most once, before the log is read.
        """
        if segments:
            first = max(log_start_offset, segments[0].base_offset)
            with self.lock:
                self.publish(
                    segments=(*segments, *self.local_segments),
                    log_start_offset=min(first, self.log_end_offset),
                )

    def close(self) -> bool:
        """Close the files; return whether the next opening can trust them without recovery."""
        with self.lock:
            for segment in self.segments:
                segment.close()
        return True

    @property
    def config(self) -> LogConfig:
        """The topic's settings in force."""
        return self._get_config()

    @property
    def local_segments(self) -> Sequence[Segment]:
        """The segments in the partition directory, which follow those that are only in an object store."""
        return self.state.local_segments

    @property
    def is_tiered(self) -> bool:
        """Whether the topic is tiered, or some segments are only in an object store."""
        return self.config.remote_storage_enable or self.state.segments[0].is_tiered

    @property
    def local_start_offset(self) -> int:
        """The base offset of the first segment in the partition directory (Kafka's local log start offset)."""
        return self.local_segments[0].base_offset

    @property
    def local_bytes(self) -> int:
        """The size of the .log files in the partition directory in bytes."""
        return self.state.local_bytes

    @property
    def stable_state(self) -> LogState:
        """The state of the log at this moment. Unlike in `state`, `stable_end` is never None.

        If another process writes the log, a use of this property reads the batches that were appended since the last
        use. It can therefore raise `OSError`, and `WouldBlock` in a thread that must not wait.
        """
        return self.state

    @property
    def last_stable_offset(self) -> int:
        """The first offset of the oldest open transaction, or the log end if none is open (kafka-storage 9.4).

        It is at least the log start offset.
        """
        return self.stable_state.last_stable_offset

    def await_truncation(self) -> None:
        """Wait until no truncation is in progress."""

    def look_again(self, tries_left: int, gone: Gone) -> None:
        """Prepare to repeat a read that has raised `gone`; raise `gone` if the read must not be repeated.

        `tries_left` is how many more times the caller can repeat the read. In a read-only store, this method lists
        the files of the partition again. In a `Partition`, it lists nothing, and permits only a few repetitions. They
        help if another program has cut an index file, and another thread has rebuilt the index since.
        """
        raise NotImplementedError

    def isolated(self, isolation: Isolation) -> Reader:
        """Return the log as readers of an isolation level see it."""
        return self.committed if isolation is Isolation.READ_COMMITTED else self

    @property
    def committed(self) -> CommittedReader:
        """The reader of the log without aborted transactions, up to the last stable offset."""
        if self._committed is None:
            self._committed = CommittedReader(self)
        return self._committed

    def key_indexes(self) -> Sequence[KeyIndex]:
        """Return the key indexes that lookups have used so far: at most one for each isolation level."""
        readers = filter(None, (self, self._committed))
        return [keys for each in readers if (keys := each._keys) is not None]

    def forget_keys(self) -> None:
        """Drop the key indexes, and remove their files unless the log is read-only.

        This is called before a truncation, after a truncation by another process, when the log is reindexed, and when
        the partition has moved.
        """
        for reader in filter(None, (self, self._committed)):
            reader.drop_keys()
        if self.disk.writable:
            key_index.remove_files(self)


class CommittedReader(Reader):
    """A reader with isolation level read_committed: it ends at the last stable offset, and hides aborted records."""

    log: Log

    def __init__(self, log: Log) -> None:
        super().__init__()
        self.log = log
        self.name, self.views, self.traffic = log.name, log.views, log.traffic
        # The last search for aborted transactions: the log's generation, its first and last segment, the entries in
        # the transaction index of the last one, and the result. It is replaced as a whole, so that no thread combines
        # two searches. The references to the segments are weak, because a strong reference to a segment that has left
        # the log would keep its files.
        self._aborted: (
            tuple[int, ref[Segment], ref[Segment], Sequence[AbortedTransaction], Aborted] | None
        ) = None

    @property
    def state(self) -> LogState:
        """The state of the log at this moment, but with the log's `stable_end` as its `log_end_offset`."""
        return self.log.stable_state.as_committed()

    @property
    def log_end_offset(self) -> int:
        """The last stable offset."""
        return self.log.last_stable_offset

    @property
    def disk(self) -> Disk:
        return self.log.disk

    @property
    def directory(self) -> Path:
        return self.log.directory

    @property
    def epochs(self) -> LeaderEpochs:
        return self.log.epochs

    def refresh(self) -> bool:
        return self.log.refresh()

    def shown(self, state: LogState) -> Callable[[Header], bool]:
        """Return a function that takes a batch's header and returns whether readers see the batch's records.

        Control batches and batches of aborted transactions are not seen. `state` is the state of the log when the
        read began. When the returned function is first called for a transactional batch, it may read the transaction
        indexes. It then raises `OffsetOutOfRange` if the log has been truncated below the end of `state`.
        """
        aborted: Aborted | None = None

        def shows(header: Header) -> bool:
            nonlocal aborted
            if header.is_control or not header.is_transactional:
                return not header.is_control
            if aborted is None:
                aborted = self.aborted(state)
            return not is_aborted(aborted, header.producer_id, header.base_offset)

        return shows

    def aborted(self, state: LogState) -> Aborted:
        first, last = state.segments[0], state.segments[-1]
        # If a segment between the first and the last is replaced, the generation changes. Compare the entries of the
        # last segment, and not their number, which may be the same again after a truncation and new transactions.
        key = state.generation, first, last, (newest := last.txn_index.entries)
        known = self._aborted
        if known is not None and (known[0], known[1](), known[2](), known[3]) == key:
            aborted = known[4]
        else:
            found: dict[int, list[tuple[int, int]]] = {}
            for segment in state.segments:
                entries = newest if segment is last else segment.txn_index.entries
                for entry in entries:
                    found.setdefault(entry.producer_id, []).append(entry[1:3])
            aborted = found
            self._aborted = state.generation, ref(first), ref(last), newest, found
        # Raise `OffsetOutOfRange` after a truncation: the indexes may lack transactions that were aborted in `state`.
        self._check_left(state.log_end_offset, state)
        return aborted

    def text(self, view: View, start: int | None = None, end: int | None = None) -> CommittedText:
        """Return the text of the records in [start, end) that this reader shows, by default of all of them.

        Without `end`, the text grows with the last stable offset.
        """
        return CommittedText(self, view, start, end)

    def _offset_of_last(self, count: int) -> int:
        state = self.state
        if count <= 0:
            return max(state.log_end_offset, state.log_start_offset)
        return next(islice(self._last_offsets(state), count - 1, None), state.log_start_offset)
