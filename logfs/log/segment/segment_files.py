"""The files of a segment: their names, and which of them are open.

A process has a limited number of descriptors (1,024 is usual). A log has any number of segments, with up to five
files each. Files are therefore opened at the first use, and only a limited number of sealed segments stay open. To
free descriptors, the files of durable segments are closed. A segment that is not durable yet must stay open: if there
are too many of these, a flush is due (`too_many_unflushed`).
"""

from __future__ import annotations

import resource
from collections import deque
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any
from weakref import WeakSet, ref

from logfs.format.base import names
from logfs.locks import Level, make_lock
from logfs.log.disk.bucket_path import as_path
from logfs.log.disk.named_file import NamedFile
from logfs.log.segment.index import OffsetIndex, TimeIndex
from logfs.log.segment.text_index import TextIndex
from logfs.log.segment.txn_index import TransactionIndex

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from logfs.log.disk.disk import Disk, File
    from logfs.log.segment.segment_listing import Files

# Sealed segments use at most one half (1 / `SHARE`) of the descriptors that the process may have.
SHARE = 2
# The most descriptors that a durable segment uses: for the .log file and the three sparse indexes.
_DURABLE_DESCRIPTORS = 4
# The most descriptors of an unflushed segment: for the .log file, the three sparse indexes and the transaction index.
_UNFLUSHED_DESCRIPTORS = 5

# The attributes that `SegmentFiles.__getattr__` makes.
_INDEXES = frozenset({"offset_index", "time_index", "text_index", "txn_index"})
# Held while the index objects are made, so that all threads get the same objects.
_making = make_lock(Level.MAKING_FILES)


class SegmentFiles(NamedFile):
    """The .log file of a segment, its three sparse indexes and its transaction index. Any thread may open them.

    The objects of the indexes are made at the first use of one of them: a store may have 100,000 segments, most of
    which are never read.
    """

    offset_index: OffsetIndex
    time_index: TimeIndex
    text_index: TextIndex
    txn_index: TransactionIndex

    def __init__(self, disk: Disk, directory: Path, base_offset: int, suffix: str = "") -> None:
        """Name the files after `base_offset`; each name ends in `suffix`, such as ".swap" (kafka-storage 1.1)."""
        self.base_offset = base_offset
        self.put(directory, names.stem(base_offset) + names.LOG + suffix)
        # The base offset of the next segment; None if this segment is the last.
        self.next_base: int | None = None
        self._disk = disk
        self._file: File | None = None
        # Held while indexes are rebuilt, and while files are released.
        self._rebuilding = make_lock(Level.REBUILDING)
        # The files may be closed to free descriptors only if they are durable and `hold_open` was not called.
        self._is_durable = True
        self._is_held_open = False
        # Whether the segment is in `_open_segments`.
        self._is_counted = False

    def __getattr__(self, name: str) -> Any:
        """Return the index object `name`, such as `time_index`. Python calls this only if the attribute is missing.

        The objects of all four indexes are then made, and become attributes.
        """
        if name not in _INDEXES:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        with _making:
            if not self._has_index_objects:
                self.txn_index = TransactionIndex(self._disk, self._index_path(names.TXN_INDEX))
                offset_index, self.time_index, self.text_index = self.new_indexes()
                # Set last, because `_has_index_objects` tests for it.
                self.offset_index = offset_index
                self._watch_indexes()
        return self.__dict__[name]

    @property
    def _has_index_objects(self) -> bool:
        return "offset_index" in self.__dict__

    @property
    def disk(self) -> Disk:
        """The disk, or the bucket, of the files."""
        return self._disk

    def identify(self, files: Files) -> None:
        """Tell the segment the identities (inode numbers) of its files, by suffix (".log").

        A `LiveSegment` opens only files with these identities from now on. This base class does nothing: it opens
        each file that has the right name.
        """

    def new_indexes(self) -> tuple[OffsetIndex, TimeIndex, TextIndex]:
        """Return new index objects for the three index files. Their callbacks, such as `on_open`, are not set."""
        return (
            OffsetIndex(self._disk, self._index_path(names.OFFSET_INDEX), self.base_offset),
            TimeIndex(self._disk, self._index_path(names.TIME_INDEX), self.base_offset),
            TextIndex(self._disk, self._index_path(names.TEXT_INDEX), self.base_offset),
        )

    def _index_path(self, kind: str) -> Path:
        """Return the path of the index file `kind` (".index"), with the suffix of the .log file (".swap"), if any."""
        directory, log = self._place
        stem = names.stem(self.base_offset)
        return as_path(directory) / (stem + kind + log.removeprefix(stem + names.LOG))

    def _watch_indexes(self) -> None:
        """Set the callback `on_open` of the index objects, which registers the segment as one that has files open.

        `Segment` also sets the callbacks `repair` and `recreate`.
        """
        for index in self.indexes:
            index.on_open = partial(_count, ref(self))

    @property
    def indexes(self) -> tuple[OffsetIndex, TimeIndex, TextIndex]:
        """The offset, the time and the text index, in this order."""
        return self.offset_index, self.time_index, self.text_index

    @property
    def file(self) -> File:
        """The .log file, opened at the first use."""
        file = self._file
        if file is None:
            file = self._file = self._open()
            _count(ref(self))
        return file

    def _open(self) -> File:
        with self._disk.hold(self._disk.naming):
            # Read `_file` again under the lock: a truncation that drops this segment opens the file before it unlinks
            # the path. So if the path is gone, the file is open.
            file = self._file
            if file is None:
                file = self._file = self._disk.open(self.path, write=self._disk.writable)
            return file

    @property
    def files(self) -> Iterator[Path]:
        """The paths of the files, whether they exist or not; the .log first."""
        yield self.path
        for index in (*self.indexes, self.txn_index):
            yield index.path

    def rename_suffix(self, suffix: str) -> list[Path]:
        """Rename the files to names that end in `suffix`, the .log first; return the new paths (kafka-storage 8.8).

        `suffix` replaces the suffix `.cleaned`, `.swap` or `.deleted` that a name may have. Readers that hold the
        segment find the files under the new names. The caller must sync the directory.
        """
        known = (names.CLEANED, names.SWAP, names.DELETED)
        with self._disk.naming:
            moved = []
            for part in (self, *self.indexes, self.txn_index):
                old = part.path
                stem = old.stem if old.suffix in known else old.name
                new = old.with_name(stem + suffix)
                if self._disk.exists(old):
                    self._disk.rename_unsynced(old, new)
                    moved.append(new)
                part.path = new
            return moved

    def hold_open(self, *, indexes: bool = True) -> None:
        """Open the .log file and, if `indexes` is true, the indexes. They stay open after their names are removed."""
        with self._disk.hold(self._rebuilding):
            # `_release` holds this lock, too: a `_release` in progress ends before the file is opened below.
            self._is_held_open = True
        _ = self.file
        if indexes:
            _ = [len(index) for index in self.indexes], self.txn_index.entries

    def close(self) -> None:
        """Release the files. A reader that still uses the segment opens them again."""
        if self._has_index_objects:
            for index in (*self.indexes, self.txn_index):
                index.close()
        self._file = None
        self._is_durable = True
        _unflushed.discard(self)

    def forget_indexes(self) -> None:
        """Drop the index objects to free memory; the next use makes them again.

        Call this only if all entries are in the files and no reader has the objects.
        """
        with _making:
            for name in _INDEXES if self._has_index_objects else ():
                del self.__dict__[name]

    def discard(self) -> None:
        """Remove the files."""
        self.close()
        for path in self.files:
            self._disk.unlink(path)

    def _begin_writing(self) -> None:
        """Keep the files open from now on, until they are durable."""
        with self._disk.hold(self._rebuilding):
            self._is_durable = False
            _unflushed.discard(self)

    def _await_flush(self) -> None:
        """Note that the segment is sealed: its files must stay open only until they are flushed."""
        if not self._is_durable:
            _unflushed.add(self)

    def _end_writing(self) -> None:
        """Note that all files are durable: they may now be closed to free descriptors."""
        self._is_durable = True
        _unflushed.discard(self)
        _count(ref(self))

    def _release(self) -> bool:
        """Close the files to free descriptors. Return False if the lock `_rebuilding` is held: try again later.

        Another thread holds this lock while it rebuilds the indexes, for example. The files stay open, and the result
        is True, if the segment is the log's last one, if the files are not durable, or if `hold_open` was called.
        Readers go on with the descriptors that they have, or open the files again.
        """
        if not self._rebuilding.acquire(blocking=False):
            return False
        try:
            self._is_counted = False
            if self._is_durable and not self._is_held_open and self.next_base is not None:
                self._file = None
                if self._has_index_objects:
                    for index in (*self.indexes, self.txn_index):
                        index.release()
            return True
        finally:
            self._rebuilding.release()


def relocate(segments: Iterable[SegmentFiles], directory: Path) -> None:
    """Change the directory in the paths of the segments' files; no file is moved.

    The caller must hold `Disk.naming`. All code that opens these files by name holds this lock, too.
    """
    for segment in segments:
        for part in (segment, *segment.indexes, segment.txn_index):
            part.path = directory / part.path.name


# The sealed segments of this process that stay open because they are not durable.
_unflushed: WeakSet[SegmentFiles] = WeakSet()


def _for_sealed() -> int:
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0] // SHARE


def too_many_unflushed() -> bool:
    """Whether the sealed segments that wait for a flush use more than half of the descriptors for sealed segments."""
    return len(_unflushed) * _UNFLUSHED_DESCRIPTORS > _for_sealed() // 2


# The sealed segments of this process that have files open, in the order in which they were opened. No lock protects
# the deque, because a thread that opens a file may hold any lock. So only atomic operations are used on it.
_open_segments: deque[ref[SegmentFiles]] = deque()


def _count(opened: ref[SegmentFiles]) -> None:
    """Register a sealed segment that has files open. If too many are registered, close the files of the oldest."""
    segment = opened()
    if segment is None or segment.next_base is None or segment._is_counted:
        return
    segment._is_counted = True
    _open_segments.append(opened)
    left = _for_sealed() - len(_unflushed) * _UNFLUSHED_DESCRIPTORS
    for _ in range(len(_open_segments) - max(left // _DURABLE_DESCRIPTORS, 1)):
        with suppress(IndexError):
            other = _open_segments.popleft()
            oldest = other()
            if oldest is not None and not oldest._release():
                _open_segments.append(other)
