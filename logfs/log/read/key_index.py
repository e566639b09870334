"""The key index: the offset of the newest record of each key, for `Reader.newest` and the mount's `keys/`.

A key index has two tables of hashes. One is in a file and covers the log up to some offset; the other is in memory
and covers the records from that offset on. When a log is opened again, only these records have to be read. The file
is written whole and renamed into place (`key_tables`), and never changed, so a crash leaves a valid file. A new file
replaces it when the log has grown by the size of the file and by at least 16 MiB, or when the table in memory is
full. The file is `logfs.keys` in the partition directory, or `logfs.keys.committed` for the index of committed
records. A read-only store keeps its own files in the user's cache directory.

Three checks keep the answers right. The checksum of each block of the file is verified when the block is read. The
last batch that the tables cover must still be in the log at the same offsets; it is not if the log was truncated, or
if the file belongs to another log. The record at the offset that a table has for a key must have this key. If a check
fails, the index is rebuilt.

Compaction keeps the newest record of each key, so the index usually stays valid. The exception is a key of the
read_uncommitted index whose newest record was transactional: compaction removes this record if its transaction was
aborted, or if it is a tombstone. The next lookup of the key finds no record at the offset, and rebuilds the index.
"""

from __future__ import annotations

import logging
import os
from contextlib import suppress
from functools import cache, partial
from itertools import chain
from typing import TYPE_CHECKING

from logfs.errors import Corrupt, LogfsError, OffsetOutOfRange
from logfs.format.base import names
from logfs.format.base.batch_rows import ATTRIBUTES, NEXT_OFFSET, SPAN_BASE_OFFSET
from logfs.format.base.lazy_numpy import np
from logfs.format.batches.batch import CONTROL_BIT, TRANSACTIONAL_BIT
from logfs.format.files.key_table_format import Anchor, TableHeader, anchor_of
from logfs.locks import Level, make_lock
from logfs.log.disk.cache_directory import cache_directory, remove_oldest
from logfs.log.disk.disk import Disk, Gone
from logfs.log.read.read_committed import aborted_rows
from logfs.log.segment.batch_iterator import Damage, DamagedRange
from logfs.log.segment.batch_scanner import position_to_scan_from, scan_from

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from numpy.typing import NDArray

    from logfs.format.batches.batch import Header
    from logfs.format.batches.record import Record
    from logfs.log.read.key_tables import FileTable, MemoryTable
    from logfs.log.read.read_committed import Aborted
    from logfs.log.read.reader import Reader
    from logfs.log.segment.batch_scanner import ScannedBatches
    from logfs.log.segment.segment import Segment
    from logfs.log.state.log_state import LogState

logger = logging.getLogger(__name__)

# Up to this many bytes of the log are indexed even in a thread that must not wait for the disk, so that the call does
# not have to be repeated in another thread.
INLINE_BYTES = 256 << 10
# The table in memory is not written to a file before it covers this many bytes of the log, unless it is full. Bytes
# that only a table in memory covers are read again when the log is opened the next time.
SMALLEST_BYTES = 16 << 20
# A table in memory with this many keys takes 48 MiB. It is then full, and is written to a file.
MEMORY_KEYS = 1_350_000
# The limit for the total size of the index files in the user's cache directory, enough for about 100 million keys.
CACHE_BYTES = 4 << 30
# An index without a lookup for this long (ms) is no longer extended after appends: the next lookup extends it.
IDLE_MS = 3_600_000

_NULL_BIT = 1 << 63
_NOTHING = Anchor(-1, -1, -1, -1, 0)
_TRIES = 5


class KeyIndex:
    """An index of the newest record of each key, as readers of one isolation level see the log.

    Any thread may use it. Nothing is read or kept before the first lookup.
    """

    def __init__(self, reader: Reader, *, is_kept: bool = True) -> None:
        """Make the index of the records that `reader` sees. The index is written to a file only if `is_kept`."""
        self._reader = reader
        self._isolation = int(reader is not reader.log)
        self._lock = make_lock(Level.KEYS)
        self._base: FileTable | None = None
        self._tail: MemoryTable | None = None
        # The first offset that the tables do not cover.
        self._end = 0
        # The last batch that the tables cover.
        self._anchor = _NOTHING
        # The log's `generation` when `_anchor` was last checked.
        self._generation = -1
        self._secret = os.urandom(16)
        # The secrets of index files that have failed a check: such a file is not used again.
        self._distrusted: set[bytes] = set()
        # How many bytes of the log the table in memory covers.
        self._tail_bytes = 0
        self.is_kept = is_kept
        self._was_asked = False
        self._asked_ms: int | None = None
        # While more than `INLINE_BYTES` of the log are indexed: the number of bytes done, and that of all bytes to
        # index. Otherwise None. `on_progress` is called with the same two numbers.
        self.progress: tuple[int, int] | None = None
        self.on_progress: Callable[[int, int], None] = lambda done, total: None

    def newest(self, key: bytes) -> Record | None:
        """Return the newest record with `key`; None if the log has no such record, or if its value is null.

        Once the index is built, the cost does not depend on the length of the log. Raises the errors of
        `Reader.newest`, and `Gone` if each of several tries needs a file that another process has deleted.
        """
        self._was_asked = True
        for left in reversed(range(_TRIES)):
            self._reader.refresh()
            try:
                offset, end = self._find(key)
                if offset < self._reader.log.state.log_start_offset:
                    return None
                record = self._record(offset)
            except OffsetOutOfRange:
                # The log was truncated in `_find`, or another process has deleted a file.
                if not left:
                    raise
                continue
            if record is not None and record.key == key:
                return None if record.value is None else record
            if (
                self._reader.state.log_end_offset == end
                and offset >= self._reader.log.state.log_start_offset
            ):
                # The log has not grown since `_find`: the entry is wrong, and not only outdated by a newer record of
                # the key. So rebuild the index.
                with self._reader.disk.hold(self._lock):
                    self._reset(f"offset {offset} has no record with the expected key")
        raise Corrupt(
            f"{self._reader.log.directory}: the key index leads to no record with the key {key[:40]!r} "
            f"(tried {_TRIES} times); run 'logfs reindex'"
        )

    def keep_up(self, now_ms: int) -> None:
        """Add new records to the index if there was a lookup in the hour before `now_ms`. This may take long."""
        if self._was_asked:
            self._was_asked, self._asked_ms = False, now_ms
        if self._asked_ms is not None and now_ms - self._asked_ms < IDLE_MS:
            with self._reader.disk.hold(self._lock), suppress(OffsetOutOfRange):
                self._bring_up()

    def _record(self, offset: int) -> Record | None:
        """Return the record at `offset`, which `_find` has returned; None if the log has no record at this offset.

        None means that compaction has removed the record, that the log start or the log end has moved since `_find`,
        or that the entry is wrong.
        """
        try:
            return self._reader.record(offset)
        except Gone:
            raise
        except OffsetOutOfRange:
            return None

    def _find(self, key: bytes) -> tuple[int, int]:
        """Return the offset that the tables have for a key, and the offset up to which they cover the log.

        The first offset is -1 if the tables lack the key, or if the key's entry says that the newest value is null.
        """
        disk = self._reader.disk
        with disk.hold(self._lock):
            while True:
                self._bring_up()
                first, second = self._memory.hash_key(key)
                word = self._memory.get(first, second)
                try:
                    if not word and self._base is not None:
                        word = self._base.get(disk, first, second)
                except Corrupt as error:
                    self._reset(error)
                    continue
                return -1 if not word or word & _NULL_BIT else word - 1, self._end

    # Bringing the tables up to date. The caller holds `_lock`.

    def _bring_up(self) -> None:
        """Extend the tables up to the end of the log. A call continues where an interrupted one has stopped."""
        log = self._reader.log
        while True:
            state = self._reader.state
            generation = state.generation
            if (
                self._tail is None
                or (generation != self._generation and not self._is_anchored(self._anchor))
                # Or the tables cover offsets above the last stable offset: a truncation has cut off the end marker of
                # a transaction, which is open again.
                or self._end > max(state.log_end_offset, state.log_start_offset)
            ):
                log.check_may_block()
                self._load()
            self._generation = generation
            if self._end < state.log_end_offset:
                try:
                    self._catch_up(state)
                except Corrupt as error:
                    if self._base is None:
                        # No index file was read: the damage is in the log itself, and rebuilding would not help.
                        raise
                    self._reset(error)
                    continue
            if log.state.generation == generation:
                return

    def _load(self) -> None:
        """Use the valid index file that covers the most of the log; if there is none, begin with empty tables."""
        from logfs.log.read.key_tables import FileTable, MemoryTable, warm_up

        warm_up()
        self._base = None
        for path, disk in self._sources():
            try:
                found = FileTable(disk, path)
            except FileNotFoundError:
                continue
            except (Corrupt, OSError) as error:
                logger.warning(
                    "%s: the key index file is not used; another file or the log is read: %s",
                    path,
                    error,
                )
                continue
            header = found.header
            is_beyond = header.covered > self._reader.state.log_end_offset
            if (
                is_beyond
                or header.isolation != self._isolation
                or not self._is_anchored(header.anchor)
            ):
                logger.info("%s: the key index file is not used: it does not fit the log", path)
            elif header.secret not in self._distrusted and (
                self._base is None or header.covered > self._base.header.covered
            ):
                self._base = found
        if self._base is not None:
            header = self._base.header
            self._anchor, self._end, self._secret = header.anchor, header.covered, header.secret
        else:
            self._anchor, self._end = _NOTHING, self._reader.log.state.log_start_offset
        self._tail_bytes = 0
        self._tail = MemoryTable(self._secret)

    def _sources(self) -> Iterator[tuple[Path, Disk]]:
        """Yield the paths at which the index file may be, each with the `Disk` that accesses it."""
        log = self._reader.log
        yield file_path(self._reader), log.disk
        if not log.disk.writable and self.is_kept:
            cached = self._cached_path()
            if cached is not None:
                yield cached, Disk()

    def _cached_path(self) -> Path | None:
        """Return the path of the index file in the user's cache directory.

        Returns None if there is no cache directory, or if the partition directory is not accessible.
        """
        import hashlib

        home = cache_directory("keys")
        log = self._reader.log
        try:
            found = log.disk.stat(log.directory)
        except OSError:
            return None
        state = (found.device, found.identity, log.name.directory, self._isolation)
        digest = hashlib.sha256(repr(state).encode()).hexdigest()
        return None if home is None else home / digest[:40]

    def _reset(self, why: object) -> None:
        """Drop the tables, so that the next lookup rebuilds them, and remove the index files on writable disks.

        `why` is logged: an error if something is damaged, otherwise a text.
        """
        log = self._reader.log
        log.check_may_block()
        # If `why` is no error, nothing is damaged: compaction may have removed a record of an aborted transaction.
        level = logging.WARNING if isinstance(why, Exception) else logging.INFO
        logger.log(level, "%s: the key index is rebuilt: %s", log.directory, why)
        if self._base is not None:
            # A read-only store cannot remove the file in the partition directory: remember not to use it again.
            self._distrusted.add(self._base.header.secret)
        self._secret = os.urandom(16)
        self._tail = None
        for path, disk in self._sources():
            if disk.writable:
                with suppress(OSError):
                    disk.unlink(path)

    def _is_anchored(self, anchor: Anchor) -> bool:
        """Whether the log still has the batch that `anchor` describes, or now starts after this batch.

        The batch is the last one that an index covers. If the result is True, no truncation of the log has removed
        records that this index covers.
        """
        state = self._reader.log.state
        if anchor.last_offset < state.log_start_offset:
            # All offsets that the index covers are below the log start.
            return True
        if anchor.last_offset >= state.log_end_offset:
            return False
        try:
            batch = state.segments_from(anchor.base_offset)[0].find_batch(anchor.base_offset)
        except DamagedRange:
            return False
        return batch is not None and anchor_of(batch.header) == anchor

    def _catch_up(self, state: LogState) -> None:
        """Add the keys of the records that the tables do not cover yet, up to the log end offset of `state`."""
        end = state.log_end_offset
        start = max(self._end, state.log_start_offset)
        segments = [each for each in state.segments_from(start) if each.base_offset < end]
        total = sum(each.size_bytes - position_to_scan_from(each, start) for each in segments)
        if total > INLINE_BYTES:
            self._reader.check_may_block()
            self.progress = (0, total)
        aborted = cache(partial(self._reader.aborted, state))
        done = 0
        try:
            for segment in segments:
                for size, last in self._take(segment, start, end, aborted):
                    done += size
                    self._tail_bytes += size
                    if last is not None and last.last_offset < end:
                        self._anchor, self._end = anchor_of(last), max(self._end, last.next_offset)
                    if total > INLINE_BYTES:
                        self.progress = (done, total)
                        self.on_progress(done, total)
                    if self.is_kept and self._memory.used >= MEMORY_KEYS:
                        self._write()
        finally:
            self.progress = None
        self._end = end
        table_bytes = self._base.size_bytes if self._base else 0
        if self.is_kept and self._tail_bytes >= max(SMALLEST_BYTES, table_bytes):
            self._write()

    def _take(
        self, segment: Segment, start: int, end: int, aborted: Callable[[], Aborted]
    ) -> Iterator[tuple[int, Header | None]]:
        """Put the keys of a segment's records with offsets in [start, end) into the table in memory.

        `aborted` returns the aborted transactions, whose records are skipped. Yields a pair for each part of the
        segment that was read: the size of the part in bytes, and the header of the last batch in it whose keys were
        put into the table (None if there is none).
        """
        for found in scan_from(segment, start):
            if isinstance(found, Damage):
                logger.warning("%s", found.error(segment.path))
                yield found.end - found.start, None
                continue
            rows = found.rows
            inside = (rows[:, SPAN_BASE_OFFSET] < end) & (rows[:, NEXT_OFFSET] > self._end)
            last = None
            if inside.any():
                self._put(found.select(inside), aborted)
                (batch,) = found._replace(rows=rows[inside][-1:]).batches()
                last = batch.header
            yield found.end - found.position, last
            if found.next_offset >= end:
                return

    def _put(self, scanned: ScannedBatches, aborted: Callable[[], Aborted]) -> None:
        """Put the keys of scanned batches into the table in memory; skip batches that cannot be decoded.

        The batches of the transactions that `aborted` returns are skipped, too. It is called only if they are needed.
        """
        attributes = scanned.rows[:, ATTRIBUTES]
        wanted = attributes & CONTROL_BIT == 0
        if (wanted & (attributes & TRANSACTIONAL_BIT != 0)).any():
            wanted &= ~aborted_rows(scanned.rows, aborted())
        try:
            for part in scanned.plain_batches(wanted):
                # A transaction may be aborted later. Compaction then removes its records, and older records of the
                # keys become the newest. So the entry of a transactional record never says that the value is null:
                # `newest` reads the record, and notices if it was removed.
                may_abort = attributes[part.first : part.end] & TRANSACTIONAL_BIT != 0
                may_abort &= self._reader is self._reader.log
                cuts = np.flatnonzero(may_abort[1:] != may_abort[:-1]) + 1
                for spans, first in zip(np.split(part.spans, cuts), (0, *cuts), strict=True):
                    self._memory.put(part.data, spans, self._end, nulls=not may_abort[first])
        except Corrupt as error:
            if len(wanted) == 1:
                logger.warning(
                    "%s: the keys of a batch cannot be read, so lookups do not find them: %s",
                    self._reader.log.directory,
                    error,
                )
                return
            for number in range(len(wanted)):
                self._put(scanned.select(slice(number, number + 1)), aborted)

    @property
    def _memory(self) -> MemoryTable:
        """The table in memory, which must exist."""
        assert self._tail is not None
        return self._tail

    # Writing the index file.

    def _write(self) -> None:
        """Merge both tables into a new file, and begin an empty table in memory. If that fails, keep both tables."""
        from logfs.log.read.key_tables import MemoryTable, write_table

        log = self._reader.log
        log.check_may_block()
        *_, (path, disk) = self._sources()
        if not disk.writable:
            # This is a read-only store without a cache directory, so the index stays in memory.
            self.is_kept = False
            return
        # The cache directory has no lock, so several processes may write the same index file at the same time: give
        # the temporary file of this process a name of its own.
        own = "" if log.disk.writable else f".{os.getpid()}"
        temporary = path.with_name(f"{path.name}{own}.tmp")
        base, tail = self._base, self._memory
        parts = [tail.slots] if base is None else chain(base.chunks(), [tail.slots])
        keys = tail.used + (base.header.used if base else 0)
        header = TableHeader(self._isolation, 0, keys, self._end, self._secret, self._anchor)
        try:
            if not log.disk.writable:
                path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._base = write_table(disk, path, temporary, parts, header)
            if not log.disk.writable:
                remove_oldest(disk, path.parent, CACHE_BYTES)
        except OSError as error:
            logger.warning("%s: the key index is kept in memory only: %s", path, error)
            self.is_kept = False
            return
        self._tail_bytes = 0
        self._tail = MemoryTable(self._secret)

    # Used by `audit`.

    def _words(self) -> NDArray[np.uint64]:
        """Bring the index up to date, and return its entries as uint64[keys, 3], in the order of the offsets.

        An entry is the hash of the key (two numbers), and the offset + 1 of the newest record with the key. Leaves
        out keys whose entry says that the newest value is null, or whose newest record is below the log start offset.
        """
        from logfs.log.read.key_tables import MemoryTable

        with self._lock:
            self._bring_up()
            base, tail = self._base, self._memory
            merged = MemoryTable(self._secret, tail.used + (base.header.used if base else 0))
            for part in (*(base.chunks() if base else ()), tail.slots):
                merged.put_table(part)
        start = self._reader.log.state.log_start_offset
        found = merged.slots[(merged.slots[:, 2] > start) & (merged.slots[:, 2] < _NULL_BIT)]
        return found[np.lexsort(found.T)]


def file_path(reader: Reader) -> Path:
    """Return the path of the file of a reader's key index, whether it exists or not."""
    is_all = reader is reader.log
    return reader.log.directory / (names.KEY_INDEX if is_all else names.COMMITTED_KEY_INDEX)


def remove_files(log: Reader) -> None:
    """Remove the files of the key indexes of a log."""
    for name in (names.KEY_INDEX, names.COMMITTED_KEY_INDEX):
        log.disk.unlink(log.directory / name)
        log.disk.unlink(log.directory / f"{name}.tmp")


def audit(reader: Reader) -> str | None:
    """Compare the key index file of a log with the log; return a message if they disagree, None if they agree.

    Also returns None if the log has no such file, or if lookups do not use the file because it belongs to another
    log. Raises `Corrupt` if the file cannot be parsed, and `OSError`.
    """
    from logfs.log.read.key_tables import FileTable

    try:
        for _ in FileTable(reader.disk, file_path(reader)).chunks():
            pass
    except FileNotFoundError:
        return None
    index = KeyIndex(reader, is_kept=False)
    words = index._words()
    if index._base is None:
        return None
    whole = KeyIndex(reader, is_kept=False)
    whole._secret = index._secret
    whole._distrusted.add(index._secret)
    right = whole._words()
    if np.array_equal(words, right) or _differ_by_removed(reader, words, right):
        return None
    return "does not agree with the log; run 'logfs reindex'"


def _differ_by_removed(
    reader: Reader, named: NDArray[np.uint64], right: NDArray[np.uint64]
) -> bool:
    """Whether all differences between two key indexes come from records that compaction has removed.

    `named` are the entries (`_words`) of the audited index, `right` those of an index that was built from the log.
    Compaction removes the newest record of a key if its transaction was aborted, or if it is a tombstone. If `named`
    still has an entry for this record, that is no error: a lookup that does not find the record rebuilds the index.
    """
    rows, right_rows = set(map(tuple, named.tolist())), set(map(tuple, right.tolist()))
    wrong = rows - right_rows
    # Stop at the first record that exists: each lookup reads the log, and a damaged index may have millions of keys.
    if not all(_is_removed(reader, offset - 1) for *_, offset in wrong):
        return False
    removed = {row[:2] for row in wrong}
    return all(row[:2] in removed for row in right_rows - rows)


def _is_removed(reader: Reader, offset: int) -> bool:
    """Whether the log has no record at an offset because compaction has removed it. Raises `Gone`."""
    try:
        return reader.record(offset) is None
    except Gone:
        raise
    except LogfsError:
        # The offset lies outside of the log, or in a damaged range.
        return False
