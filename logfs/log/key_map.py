"""Where the newest record of each key is: what `keys/` and `newest` answer from.

Two tables of hashes: one in a file, which covers the log up to some offset, and one in memory for what came after.
The file is written whole and renamed into place (`logfs.log.key_table`), and never changed; a new one takes its place
when the log has grown by as much as writing it costs. So a crash leaves a good file, and to open a log again means to
read no more than what came after it. In the partition directory it is `logfs.keys`; a store that only reads keeps its
own in the user's cache directory.

What makes it right: every block read is checked; the last batch that a table covers must still be where it was, so a
log that was truncated, or another log, is told; and the record that a table leads to must have the key. Where one of
these fails, the map is made anew. Compaction keeps the newest record of each key, so it does the map no harm.
"""

from __future__ import annotations

import hashlib
import logging
import os
import secrets
import threading
from contextlib import suppress
from itertools import chain
from typing import TYPE_CHECKING

from logfs.errors import Corrupt
from logfs.format import names
from logfs.format.batch import CONTROL_BIT, MAGIC, TRANSACTIONAL_BIT, Batch
from logfs.format.key_table import Anchor, anchor_of
from logfs.log import text_cache
from logfs.log.files import Disk, Gone
from logfs.log.walk import Damage, DamagedRange

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    import numpy as np
    from numpy.typing import NDArray

    from logfs.format.batch import Header
    from logfs.format.record import Record
    from logfs.log.key_table import FileTable, MemoryTable
    from logfs.log.reader import Reader
    from logfs.log.segment import Segment
    from logfs.log.spans import Stretch

    Shows = Callable[[Header], bool]

logger = logging.getLogger(__name__)

# So much of the log is read where the caller is, on a mount without a hop to a thread.
INLINE_BYTES = 256 << 10
# A smaller piece of log is read again sooner than a file is written for it.
SMALLEST_BYTES = 16 << 20
# With so many keys a table in memory, which takes 48 MiB then, becomes one in a file.
MEMORY_KEYS = 1_350_000
# Of all files in the cache directory: of about 100 million keys.
CACHE_BYTES = 4 << 30
# A map that nobody has asked for so long is not kept up any more; the next who asks waits for it.
IDLE_MS = 3_600_000

_NULL_BIT = 1 << 63
_NOTHING = Anchor(-1, -1, -1, -1, 0)
_TRIES = 5


class KeyMap:
    """The newest record of each key, as readers of one isolation level see it. Any thread may ask.

    Nothing is read or kept before the first question.
    """

    def __init__(self, reader: Reader, *, is_kept: bool = True) -> None:
        """The map of what a reader sees; one that is not kept writes no file."""
        self._reader = reader
        self._isolation = int(reader is not reader.log)
        self._lock = threading.Lock()
        self._base: FileTable | None = None
        self._tail: MemoryTable | None = None
        # The first offset that is not covered, the last batch before it, and the generation that this holds for.
        self._end = 0
        self._anchor = _NOTHING
        self._generation = -1
        self._secret = secrets.token_bytes(16)
        # The secrets of files that were found to be wrong.
        self._distrusted: set[bytes] = set()
        # Bytes of log in the table in memory.
        self._tail_bytes = 0
        self._is_kept = is_kept
        self._was_asked = False
        self._asked_ms: int | None = None
        # While much is read: bytes done, bytes in all. `on_progress` is told the same.
        self.progress: tuple[int, int] | None = None
        self.on_progress: Callable[[int, int], None] = lambda done, total: None

    def newest(self, key: bytes) -> Record | None:
        """The newest record with a key; None if there is none, it has no value, or it has left the log.

        Costs the same however long the log is, once the map is made. Raises `Corrupt` for a record that lies in a
        damaged range, `WouldBlock` where there is more to read than the calling thread may wait for, `OSError`.
        """
        self._was_asked = True
        for left in reversed(range(_TRIES)):
            self._reader.refresh()
            try:
                offset, end = self._find(key)
                if offset is None or offset < self._reader.log_start_offset:
                    return None
                record = self._reader.record(offset)
            except Gone:
                if not left:
                    raise
                continue
            if record is not None and record.key == key:
                return record
            if self._reader.log_end_offset == end:
                # No newer record has taken its place.
                self._start_anew(f"offset {offset} does not hold the key that it should")
        raise Corrupt(f"{self._reader.log.directory}: its keys cannot be told; run 'logfs check'")

    def keep_up(self, now_ms: int) -> None:
        """Take in what the log has gained, if anybody has asked lately; may take long."""
        if self._was_asked:
            self._was_asked, self._asked_ms = False, now_ms
        if self._asked_ms is not None and now_ms - self._asked_ms < IDLE_MS:
            with self._reader.disk.hold(self._lock), suppress(Gone):
                self._bring_up()

    def drop(self) -> None:
        """Leave the place to a new map: the log is not what it was."""
        self._is_kept = False
        self._reader.__dict__.pop("keys", None)

    def _find(self, key: bytes) -> tuple[int | None, int]:
        """The offset that the tables give for a key, None if none or without a value; where they ended then."""
        from logfs.log.key_table import hash_key

        disk = self._reader.disk
        with disk.hold(self._lock):
            while True:
                self._bring_up()
                first, second = hash_key(key, self._memory.secret)
                word = self._memory.get(first, second)
                try:
                    if not word and self._base is not None:
                        word = self._base.get(disk, first, second)
                except Corrupt as error:
                    self._reset(error)
                    continue
                return None if not word or word & _NULL_BIT else word - 1, self._end

    # Being up to date. All of it under the lock.

    def _bring_up(self) -> None:
        """Cover the log up to its end. The next call goes on with what was stopped."""
        log = self._reader.log
        while True:
            generation = log.generation
            if self._tail is None or (
                generation != self._generation and not self._is_anchored(self._anchor)
            ):
                log.check_may_block()
                self._load()
            self._generation = generation
            end = self._reader.log_end_offset
            if self._end < end:
                try:
                    self._catch_up(end)
                except Corrupt as error:
                    if self._base is None:
                        # It is a file of the log that is damaged: no other map would go past it.
                        raise
                    self._reset(error)
                    continue
            if log.generation == generation:
                return

    def _load(self) -> None:
        """Begin with what is kept in a file, or with nothing."""
        from logfs.log.key_table import FileTable, MemoryTable, warm_up

        warm_up()
        self._base = None
        for path, disk in self._sources():
            try:
                found = FileTable(disk, path)
            except FileNotFoundError:
                continue
            except (Corrupt, OSError) as error:
                logger.warning("%s: is not used, and made anew: %s", path, error)
                continue
            header = found.header
            if header.isolation != self._isolation or not self._is_anchored(header.anchor):
                logger.info("%s: belongs to another log, or to what was truncated", path)
            elif header.secret not in self._distrusted and (
                self._base is None or header.covered > self._base.header.covered
            ):
                self._base = found
        if self._base is not None:
            header = self._base.header
            self._anchor, self._end, self._secret = header.anchor, header.covered, header.secret
        else:
            self._anchor, self._end = _NOTHING, self._reader.log.log_start_offset
        self._tail_bytes = 0
        self._tail = MemoryTable(self._secret)

    def _sources(self) -> Iterator[tuple[Path, Disk]]:
        """Where files may be, and the door to each."""
        log = self._reader.log
        yield file_path(self._reader), log.disk
        if not log.disk.writable and self._is_kept:
            cached = self._cached_path()
            if cached is not None:
                yield cached, Disk()

    def _cached_path(self) -> Path | None:
        """The file in the user's cache directory; None where there is none."""
        home = text_cache.directory("keys")
        log = self._reader.log
        try:
            found = log.disk.stat(log.directory)
        except OSError:
            return None
        state = (found.st_dev, found.st_ino, log.name.directory, self._isolation)
        digest = hashlib.sha256(repr(state).encode()).hexdigest()
        return None if home is None else home / digest[:40]

    def _reset(self, why: object) -> None:
        """Forget everything, the files included."""
        log = self._reader.log
        log.check_may_block()
        logger.warning("%s: the key map is made anew: %s", log.directory, why)
        if self._base is not None:
            # One that another process wrote cannot be removed, and is not to be taken again.
            self._distrusted.add(self._base.header.secret)
        self._secret = secrets.token_bytes(16)
        self._tail = None
        for path, disk in self._sources():
            if disk.writable:
                with suppress(OSError):
                    disk.unlink(path)

    def _start_anew(self, why: str) -> None:
        with self._reader.disk.hold(self._lock):
            self._reset(why)

    def _is_anchored(self, anchor: Anchor) -> bool:
        """Whether the log still has a batch where it was, so that nothing up to there was truncated."""
        log = self._reader.log
        if anchor.last_offset < log.log_start_offset:
            # Nothing that was noted can be read any more.
            return True
        if anchor.last_offset >= log.log_end_offset:
            return False
        try:
            batch = log.segments_from(anchor.base_offset)[0].find_batch(anchor.base_offset)
        except DamagedRange:
            return False
        return batch is not None and anchor_of(batch.header) == anchor

    def _catch_up(self, end: int) -> None:
        """Take in the log from where the tables end up to an offset."""
        log = self._reader.log
        start = max(self._end, log.log_start_offset)
        segments = log.segments
        places = list(_places(log.segments_from(start, segments), start, end))
        total = sum(segment.size_bytes - position for segment, position in places)
        if total > INLINE_BYTES:
            log.check_may_block()
            self.progress = (0, total)
        shows = self._reader.shown(segments)
        done = 0
        try:
            for segment, position in places:
                for size, last in self._take(segment, position, end, shows):
                    done += size
                    self._tail_bytes += size
                    if last is not None and last.last_offset < end:
                        self._anchor, self._end = anchor_of(last), max(self._end, last.next_offset)
                    if total > INLINE_BYTES:
                        self.progress = (done, total)
                        self.on_progress(done, total)
                    if self._is_kept and self._memory.used >= MEMORY_KEYS:
                        self._write()
        finally:
            self.progress = None
        self._end = end
        table_bytes = self._base.size_bytes if self._base else 0
        if self._is_kept and self._tail_bytes >= max(SMALLEST_BYTES, table_bytes):
            self._write()

    def _take(
        self, segment: Segment, position: int, end: int, shows: Shows
    ) -> Iterator[tuple[int, Header | None]]:
        """Put the keys of a segment from a position on; the bytes of each piece, and its last batch if it has any."""
        from logfs.format.kernels import NEXT_OFFSET, POSITION, SIZE, SPAN_BASE_OFFSET
        from logfs.log import spans

        head = segment.header(position) if position else None
        first = segment.base_offset if head is None else head.base_offset
        for found in spans.stretches(segment, position if head else 0, first):
            if isinstance(found, Damage):
                logger.warning("%s", found.error(segment.path))
                yield found.end - found.start, None
                continue
            if not isinstance(found, spans.Stretch):
                batch = found[1]
                if batch.header.base_offset >= end:
                    return
                if batch.header.magic != MAGIC:
                    self._put_old(batch)
                    yield batch.header.size_bytes, batch.header
                    continue
                rows, _ = spans.scan(batch.data, batch.header.base_offset, gaps=True)
                found = spans.Stretch(found[0], batch.data, rows)
            rows = found.rows
            rows = rows[(rows[:, SPAN_BASE_OFFSET] < end) & (rows[:, NEXT_OFFSET] > self._end)]
            last = None
            if len(rows):
                self._put(found._replace(rows=rows), shows)
                last = Batch.parse(found.data, int(rows[-1, POSITION])).header
            yield int(found.rows[-1, POSITION] + found.rows[-1, SIZE]), last
            if found.rows[-1, NEXT_OFFSET] >= end:
                return

    def _put(self, stretch: Stretch, shows: Shows) -> None:
        """Put the keys of scanned batches; a batch that cannot be decoded is passed over."""
        from logfs.format.kernels import ATTRIBUTES, POSITION
        from logfs.log import sifter

        rows = stretch.rows
        attributes = rows[:, ATTRIBUTES]
        wanted = attributes & CONTROL_BIT == 0
        if self._isolation:
            for number in (wanted & (attributes & TRANSACTIONAL_BIT != 0)).nonzero()[0].tolist():
                header = Batch.parse(stretch.data, int(rows[number, POSITION])).header
                wanted[number] = shows(header)
        try:
            for part in sifter.parts(stretch, wanted):
                self._memory.put(part.data, part.spans, self._end)
        except Corrupt as error:
            if len(rows) == 1:
                logger.warning("%s: %s", self._reader.log.directory, error)
                return
            for number in range(len(rows)):
                self._put(stretch._replace(rows=rows[number : number + 1]), shows)

    def _put_old(self, batch: Batch) -> None:
        """Put the keys of messages of an old format; what cannot be decoded is passed over."""
        try:
            for record in batch.records():
                if record.key is not None and record.offset >= self._end:
                    self._memory.put_one(record.key, record.offset, is_null=record.value is None)
        except Corrupt as error:
            logger.warning("%s: %s", self._reader.log.directory, error)

    @property
    def _memory(self) -> MemoryTable:
        """The table in memory, once there is one."""
        assert self._tail is not None
        return self._tail

    # Keeping it.

    def _write(self) -> None:
        """Make a file of both tables, and go on with an empty one in memory; or with this one where that fails."""
        from logfs.log.key_table import Coverage, MemoryTable, write_table

        log = self._reader.log
        log.check_may_block()
        disk, path = log.disk, file_path(self._reader)
        temporary = path.with_name(path.name + ".tmp")
        if not disk.writable:
            cached = self._cached_path()
            if cached is None:
                self._is_kept = False
                return
            # Others may be writing the same: there is no lock.
            disk, path = Disk(), cached
            temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
        base, tail = self._base, self._memory
        parts = [tail.slots] if base is None else chain(base.chunks(), [tail.slots])
        keys = tail.used + (base.header.used if base else 0)
        coverage = Coverage(self._isolation, self._end, self._anchor)
        try:
            if not log.disk.writable:
                path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._base = write_table(disk, path, temporary, parts, keys, self._secret, coverage)
            if not log.disk.writable:
                text_cache.remove_oldest(disk, path.parent, CACHE_BYTES)
        except OSError as error:
            logger.warning("%s: the key map is kept in memory alone: %s", path, error)
            self._is_kept = False
            return
        self._tail_bytes = 0
        self._tail = MemoryTable(self._secret)

    # For the audit.

    def audit(self) -> str | None:
        """What is wrong with the file: what it says is held against the whole log. None where there is nothing."""
        import numpy as np

        words = self._words()
        if self._base is None:
            # It belongs to another log, and is not used.
            return None
        whole = KeyMap(self._reader, is_kept=False)
        whole._secret = self._secret
        whole._distrusted.add(self._secret)
        same = np.array_equal(words, whole._words())
        return None if same else "does not agree with the log; run 'logfs reindex'"

    def _words(self) -> NDArray[np.uint64]:
        """What can be found, in the order of the hashes: uint64[keys, 3]."""
        import numpy as np

        from logfs.log.key_table import MemoryTable

        with self._lock:
            self._bring_up()
            base, tail = self._base, self._memory
            merged = MemoryTable(self._secret, tail.used + (base.header.used if base else 0))
            for part in (*(base.chunks() if base else ()), tail.slots):
                merged.put_table(part)
        start = self._reader.log_start_offset
        found = merged.slots[(merged.slots[:, 2] > start) & (merged.slots[:, 2] < _NULL_BIT)]
        return found[np.lexsort(found.T)]


def file_path(reader: Reader) -> Path:
    """Where the file of a reader's key map is, if there is one."""
    is_all = reader is reader.log
    return reader.log.directory / (names.KEY_MAP if is_all else names.COMMITTED_KEY_MAP)


def in_use(log: Reader) -> Iterator[KeyMap]:
    """The key maps of a log that somebody has asked for."""
    for reader in (log, log.__dict__.get("committed")):
        if reader is not None and "keys" in reader.__dict__:
            yield reader.keys


def forget(log: Reader) -> None:
    """Drop the key maps of a log, and their files: its end is about to go back, or it is indexed anew."""
    for keys in list(in_use(log)):
        keys.drop()
    for name in (names.KEY_MAP, names.COMMITTED_KEY_MAP):
        log.disk.unlink(log.directory / name)
        log.disk.unlink(log.directory / f"{name}.tmp")


def audit(reader: Reader) -> str | None:
    """What is wrong with the file of a key map; None where all is well, or there is no file.

    Raises `Corrupt` for a file that is damaged, `OSError`.
    """
    from logfs.log.key_table import FileTable

    try:
        for _ in FileTable(reader.disk, file_path(reader)).chunks():
            pass
    except FileNotFoundError:
        return None
    return KeyMap(reader, is_kept=False).audit()


def _places(segments: Sequence[Segment], start: int, end: int) -> Iterator[tuple[Segment, int]]:
    """The segments with offsets in [start, end), and at which byte of each to begin."""
    for segment in segments:
        if segment.base_offset >= end:
            return
        yield segment, segment.position_of(start) if start > segment.base_offset else 0
