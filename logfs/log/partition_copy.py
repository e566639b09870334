"""Copies a partition to another directory while the partition is in use. The copy then replaces the original.

Sealed segments never change (rule 4 of docs/architecture.md) and the active segment only grows, so `catch_up` needs
no lock. The caller of `complete` or `take_over` must hold `PartitionRegistry.lock`, `Flusher.lock` and the
partition's `lock`. The caller of `take_over` must also hold `Disk.naming`, because files get other paths. If
retention, compaction or a truncation removes or changes a segment meanwhile, the segment's copy is removed or made
again.
"""

from __future__ import annotations

import stat
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from logfs.errors import Corrupt
from logfs.format.base import names
from logfs.log.segment.segment import Segment
from logfs.log.segment.segment_files import relocate
from logfs.log.segment.text_index import TextIndex
from logfs.log.state.producer_snapshots import ProducerSnapshots

if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from pathlib import Path

    from logfs.log.append.partition import Partition
    from logfs.log.disk.disk import Disk, File
    from logfs.log.segment.index import SparseIndex
    from logfs.log.segment.txn_index import TransactionIndex

# The name of the file that marks a complete copy until the move ends. The file contains the UUID that is also in the
# names of the directories: `orders-0.UUID-future` is the copy, and the original becomes `orders-0.UUID-stray`.
MOVED = "logfs.moved"

_CHUNK_BYTES = 1024 * 1024
# The ends of the names of files that `_copy_other_files` leaves out: the files of segments, which are copied
# separately, caches, and files that a crash or a compaction left.
_NOT_COPIED = (
    *names.SEGMENT_FILES,
    *(names.DELETED, names.CLEANED, names.SWAP, ".tmp"),
    *(names.KEY_INDEX, names.COMMITTED_KEY_INDEX, MOVED),
)


@dataclass(slots=True, eq=False)
class _Copied:
    """How much of a segment is copied: `size_bytes` bytes of its .log file and, if `whole`, all of its files."""

    size_bytes: int = 0
    whole: bool = False


class PartitionCopy:
    """A copy of a partition that is being made.

    Call `catch_up` any number of times, then `complete` and `take_over`; or `discard` at any time. Only one thread
    may use the object. `spend` is called after each chunk that is copied: with the size of the chunk in bytes if the
    chunk belongs to a .log file, and otherwise with 0. It may raise an error to stop the copy.
    """

    def __init__(
        self, partition: Partition, disk: Disk, directory: Path, spend: Callable[[int], object]
    ) -> None:
        """Create `directory` on `disk`, with the permissions of the partition's directory. Nothing is copied yet."""
        self.directory = directory
        # Whether the copy has become the partition, and must not be discarded.
        self.is_needed = False
        self._partition = partition
        self._disk = disk
        self._spend = spend
        # How much of each segment is copied. The key is a segment and its `content`, an object that is replaced when
        # the segment is truncated: the copy is then made again.
        self._copied: dict[tuple[Segment, object], _Copied] = {}
        # The copied files that belong to no segment, by name: the inode number, size and mtime of the original when
        # it was copied. None if a later change of the file may leave these values the same.
        self._others: dict[str, tuple[int, int, int] | None] = {}
        self._segments: list[Segment] = []
        # After `take_over`: the segments of the original, each with its copy.
        self.copies: dict[Segment, Segment] = {}
        self._snapshot_offsets: list[int] = []
        mode = stat.S_IMODE(partition.disk.stat(partition.directory).mode)
        disk.mkdir(directory, mode=mode)

    @property
    def missing_bytes(self) -> int:
        """The number of bytes of .log files that have not been copied yet."""
        none = _Copied()
        return sum(
            segment.size_bytes - self._copied.get((segment, segment.content), none).size_bytes
            for segment in self._partition.local_segments
        )

    def catch_up(self) -> None:
        """Copy the data that is new since the last call; remove copies of files that have left the partition."""
        segments = self._partition.local_segments
        contents = {segment: segment.content for segment in segments}
        for segment, content in list(self._copied):
            if contents.get(segment) is not content:
                del self._copied[segment, content]
                Segment(self._disk, self.directory, segment.base_offset).discard()
        for segment, content in contents.items():
            copied = self._copied.setdefault((segment, content), _Copied())
            try:
                self._copy(segment, copied, is_sealed=segment is not segments[-1])
            except FileNotFoundError:
                if segment in self._partition.local_segments:
                    raise
        self._copy_other_files()

    def _copy_other_files(self) -> None:
        """Copy the files that belong to no segment, such as snapshots, if they are new or have changed."""
        source, directory = self._partition.disk, self._partition.directory
        found = {
            entry.name
            for entry in source.scan(directory)
            if entry.is_file and not entry.name.endswith(_NOT_COPIED)
        }
        for name in self._others.keys() - found:
            del self._others[name]
            self._disk.unlink(self.directory / name)
        for name in sorted(found):
            with suppress(FileNotFoundError):
                status, is_settled = source.stat_settled(directory / name)
                seen = status.identity, status.size_bytes, status.mtime_ns
                if self._others.get(name) == seen:
                    continue
                # If the mtime is so recent that a change might not alter it, let the next call copy the file again.
                self._others[name] = seen if is_settled else None
                # Files of staged batches and of torn tails may be large, so call `spend`, which may stop the copy.
                # It counts the bytes of .log files only, so pass 0.
                old = source.open(directory / name)
                self._copy_bytes(
                    old, self.directory / name, 0, source.size(old), lambda _: self._spend(0)
                )

    def _copy(self, segment: Segment, copied: _Copied, *, is_sealed: bool) -> None:
        if copied.whole:
            return
        self._copy_log(segment, copied)
        if not is_sealed or copied.size_bytes < segment.size_bytes:
            return
        for part in (*segment.indexes, segment.txn_index):
            with suppress(FileNotFoundError):
                self._copy_index(segment, part)
        self._disk.set_mtime(self._path(segment, names.LOG), segment.mtime_ms())
        copied.whole = True

    def _path(self, segment: Segment, suffix: str) -> Path:
        return self.directory / (names.stem(segment.base_offset) + suffix)

    def _copy_log(self, segment: Segment, copied: _Copied) -> None:
        """Copy the bytes of the .log file that are not copied yet, up to its current end, and sync the copy.

        Copies fewer bytes if the file is truncated meanwhile.
        """
        source, end = self._partition.disk, segment.size_bytes

        def note(size: int) -> None:
            copied.size_bytes += size
            self._spend(size)

        with source.naming:
            old = source.open(segment.path)
        self._copy_bytes(old, self._path(segment, names.LOG), copied.size_bytes, end, note)

    def _copy_bytes(
        self, old: File, path: Path, position: int, end: int, note: Callable[[int], object]
    ) -> None:
        """Copy bytes [position, end) of `old` to `path`, in chunks, durably; fewer if `old` has become shorter.

        Closes `old`. `note` is called with the size of each chunk.
        """
        new = self._disk.open(path, write=True, create=True)
        try:
            self._disk.truncate(new, position)
            while position < end:
                data = self._partition.disk.read(old, position, min(_CHUNK_BYTES, end - position))
                if not data:
                    break
                self._disk.write(new, position, data)
                position += len(data)
                note(len(data))
            self._disk.sync(new)
        finally:
            old.close()
            new.close()

    def _copy_index(self, segment: Segment, part: SparseIndex | TransactionIndex) -> None:
        """Copy one index of a sealed segment. An incomplete text index is left out, because it can be rebuilt."""
        source = self._partition.disk
        with source.naming:
            path = part.path
            data = source.read_file(path)
        if isinstance(part, TextIndex):
            width = TextIndex.entry.size
            if len(data) < width or len(data) % width:
                return
            if TextIndex.entry.unpack(data[-width:])[1] != segment.size_bytes:
                return
        kind = path.name.removesuffix(names.DELETED).rpartition(".")[2]
        self._disk.put_file(self._path(segment, f".{kind}"), data, sync=True)

    # The last steps. The caller blocks all changes of the partition until they are done.

    def complete(self, unique: str, now_ms: int) -> None:
        """Copy the rest and make the whole copy durable; the original stays as it is.

        `unique` is the UUID in the name of the copy's directory; it is written to the file `logfs.moved` there. The
        copy of the active segment is sealed, unless it is empty, and a new active segment follows. For readers, the
        move therefore looks like a roll. Raises `Corrupt` if a .log file has become shorter.
        """
        self.catch_up()
        if self.missing_bytes:
            raise Corrupt(
                f"{self._partition.directory}: a .log file was truncated during the copy; move the partition again"
            )
        partition = self._partition
        active, end = partition.active, partition.log_end_offset
        self._segments = [self._twin(segment) for segment in partition.local_segments[:-1]]
        if end > active.base_offset:
            self._segments.append(self._seal(active))
        fresh = Segment(self._disk, self.directory, end)
        fresh.begin(partition.config, now_ms)
        fresh.flush(indexes=False)
        self._segments.append(fresh)
        snapshots = ProducerSnapshots(self._disk, self.directory, 0)
        snapshots.minimum_offset = partition.snapshots.minimum_offset
        snapshots.write(end, partition.producers)
        snapshots.flush()
        self._snapshot_offsets = snapshots.offsets
        self._disk.put_file(self.directory / MOVED, unique.encode(), sync=True)
        self._disk.sync_directory(self.directory)

    def _twin(self, segment: Segment) -> Segment:
        """Return a `Segment` object for the copy of `segment`, with the same attributes."""
        copied = Segment(self._disk, self.directory, segment.base_offset)
        copied.next_base, copied.gaps = segment.next_base, segment.gaps
        copied.content, copied.damaged = segment.content, segment.damaged
        copied.created_ms, copied.max_entry = segment.created_ms, segment.max_entry
        return copied

    def _seal(self, active: Segment) -> Segment:
        """Seal the copy of the segment `active`, and return a `Segment` object for the copy."""
        for index in active.indexes:
            self._disk.put_file(self.directory / index.path.name, index.to_bytes(), sync=True)
        with suppress(FileNotFoundError):
            self._copy_index(active, active.txn_index)
        sealed = self._twin(active)
        sealed.resume(active.end, active.max_entry)
        sealed.activate(self._partition.config)
        sealed.seal(active.next_offset)
        sealed.flush(indexes=True)
        return sealed

    def take_over(self, directory: Path) -> list[Segment]:
        """Make the partition use the copy. The copy's directory must have been renamed to `directory` before.

        Returns the segments of the original, followed by segments that left the log earlier but that readers still
        hold.
        """
        partition = self._partition
        old = partition.local_segments
        relocate(self._segments, directory)
        left = partition.switch_to_copies(
            self._disk, directory, self._segments, self._snapshot_offsets
        )
        # A reader that reaches the end of the original's last segment continues at this offset, in the copy.
        old[-1].next_base = self._segments[-1].base_offset
        self.copies = dict(zip(old, self._segments, strict=False))
        partition.forget_keys()
        return left

    def discard(self) -> None:
        """Remove the copy."""
        remove_directory(self._disk, self.directory)


def remove_directory(disk: Disk, path: Path, kept: Collection[int] = ()) -> bool:
    """Remove a partition's directory with its files. Returns whether the directory no longer exists.

    If `kept` is not empty, the directory stays, with the files of the segments that have the base offsets in `kept`.
    Raises `OSError`, for example if there is a subdirectory, which a partition never has.
    """
    if not disk.exists(path):
        return True
    stems = tuple(map(names.stem, kept))
    for entry in list(disk.scan(path)):
        if not entry.name.startswith(stems):
            disk.unlink(path / entry.name)
    if stems:
        return False
    disk.rmdir(path)
    disk.sync_directory(path.parent)
    return True
