"""The .txnindex file of a segment: the aborted transactions whose markers lie in the segment (kafka-storage 9.5)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from logfs.errors import Corrupt
from logfs.format.files.aborted_transactions import ENTRY, AbortedTransaction, parse_aborted
from logfs.log.disk.named_file import NamedFile

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from logfs.log.disk.disk import Disk, File
    from logfs.log.segment.batch_iterator import Damage


class TransactionIndex(NamedFile):
    """The aborted transactions of a segment in the order of their markers. The first entry creates the file.

    There is one writer; any thread may read `entries`. Recovery rebuilds this index together with the other indexes.
    In a read-only store, the rebuilt entries stay in memory.
    """

    def __init__(self, disk: Disk, path: Path) -> None:
        self.path = path
        self._disk = disk
        self._file: File | None = None
        self._entries: tuple[AbortedTransaction, ...] | None = None
        # Whether new entries stay in memory until `save`.
        self._is_collecting = False
        # Whether the file may hold entries that a power cut would lose.
        self._is_dirty = False

    @property
    def entries(self) -> Sequence[AbortedTransaction]:
        """The aborted transactions in the order of their markers.

        Reads the file if the entries are not in memory. The read raises `OSError`, `Corrupt` if the file has a later
        version of its format, and `WouldBlock` in a thread that must not wait.
        """
        entries = self._entries
        if entries is None:
            self._disk.check_may_block()
            with self._disk.naming:
                # Check again: a reading thread must not replace entries that an appending thread has set since.
                entries = self._entries
                if entries is None:
                    entries = self._entries = self._load()
        return entries

    def _load(self) -> tuple[AbortedTransaction, ...]:
        try:
            return tuple(parse_aborted(self._read()))
        except FileNotFoundError:
            return ()

    def _read(self) -> bytes:
        return self._disk.read_file(self.path)

    def to_bytes(self) -> bytes:
        """Return the bytes of all entries."""
        return b"".join(entry.pack() for entry in self.entries)

    def check_sane(self, base_offset: int) -> None:
        """Raise `Corrupt` if a marker lies below `base_offset`, or markers are out of order (kafka-storage 3.8)."""
        before = base_offset - 1
        for entry in self.entries:
            if entry.last_offset <= before:
                raise Corrupt(
                    f"{self.path}: entries are out of order, or of another segment: a transaction ends at offset "
                    f"{entry.last_offset}, which must be above {before}"
                )
            before = entry.last_offset

    def append(self, aborted: AbortedTransaction) -> None:
        """Add the transaction that the newest abort marker has ended."""
        entries = self.entries
        if self._disk.writable and not self._is_collecting:
            if self._file is None:
                self._file = self._disk.open(self.path, write=True, create=True)
            self._is_dirty = True
            self._disk.write(self._file, len(entries) * ENTRY.size, aborted.pack())
        self._entries = (*entries, aborted)

    def supplement(self, aborted: AbortedTransaction) -> None:
        """Note an aborted transaction that was found in the log, in case the file lacks it. Here, do nothing.

        The file may lack transactions only while a broker writes the log. For such a log, `LiveSegment` uses a
        subclass of this class, whose `supplement` adds the transaction to the entries in memory.
        """

    def truncate(self, offset: int) -> None:
        """Drop the transactions whose markers lie at or after `offset`."""
        entries = self.entries
        kept = tuple(entry for entry in entries if entry.last_offset < offset)
        if len(kept) == len(entries):
            return
        self._entries = kept
        if self._disk.writable and self._disk.exists(self.path):
            if self._file is None:
                self._file = self._disk.open(self.path, write=True)
            self._is_dirty = True
            self._disk.truncate(self._file, len(kept) * ENTRY.size)

    def collect(self) -> None:
        """Forget all entries, and collect new ones in memory until `save`. The file does not change."""
        self._file, self._entries, self._is_collecting = None, (), True

    def save(self, *, sync: bool) -> None:
        """Replace the file with the collected entries; in a read-only store they stay in memory.

        Creates no file if the index is empty. With `sync`, a power cut leaves the old file or the new one. The caller
        must sync the directory.
        """
        self._is_collecting = False
        if self._disk.writable and (self.entries or self._disk.exists(self.path)):
            self._disk.put_file(self.path, self.to_bytes(), sync=sync)
            self._is_dirty = not sync

    def remove(self) -> None:
        """Drop all entries and unlink the file, which an earlier segment with the same base offset may have left."""
        self._file, self._entries, self._is_dirty = None, (), False
        if self._disk.exists(self.path):
            self._disk.unlink(self.path)

    def flush(self) -> None:
        """Make the entries durable."""
        if not self._is_dirty:
            return
        # Cleared before the sync: an entry that is written meanwhile needs another flush.
        self._is_dirty = False
        try:
            self._disk.sync(self._file or self._disk.open(self.path, write=True))
        except BaseException:
            self._is_dirty = True
            raise

    def release(self) -> None:
        """Close the open file of an index that is not written any more; the entries in memory stay."""
        self._file = None

    def close(self) -> None:
        """Close the file and, on a writable disk, forget the entries in memory; `entries` then reads them again."""
        self._file = None
        if self._disk.writable:
            self._entries = None


def aborted_in(
    entries: Sequence[AbortedTransaction], damage: Damage
) -> Iterator[AbortedTransaction]:
    """Yield the transactions whose abort markers are in the damaged offsets, where only the entries tell of them."""
    for entry in entries:
        if damage.first_offset <= entry.last_offset < damage.next_offset:
            yield entry
