"""The `Disk` of a bucket: its objects as the directory tree of a log directory, which can only be read.

    s3://bucket/prefix/             the log directory
        orders-0/                   a partition
            00000000000000000000.log, .index, .timeindex, .txnindex
            00000000000000002000.snapshot
            leader-epoch-checkpoint, partition.metadata

A broker copies segments into a bucket, and deletes them there. So a bucket is read as a log directory that another
process writes: each copy of a segment has files with different identities (inode numbers), and a directory gets a new
modification time when a later listing shows different files. Two replicas may have rolled at different offsets, so
that their copies of segments overlap: a .log file is then shown only up to the first offset of the next segment.
"""

from __future__ import annotations

import errno
import hashlib
import logging
import math
import os
import stat
import time
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

import numpy as np

from logfs.errors import Corrupt, LogfsError
from logfs.format.base import names
from logfs.format.batches.batch import LENGTH_OVERHEAD, START
from logfs.format.files.checkpoint import format_partition_metadata, text_to_uuid
from logfs.format.tiered.custom_metadata import EPOCHS
from logfs.locks import Level, make_lock
from logfs.log.disk.disk import Disk, Entry, File, Gone, ReadOnlyDisk, Status, WouldBlock
from logfs.log.remote.bucket_listing import PartitionPlace, find_partitions, list_segments
from logfs.log.remote.chunk_cache import LIMIT_BYTES, ChunkCache
from logfs.log.remote.chunk_reader import ChunkReader, StoredFile
from logfs.log.remote.object_store import ObjectStore

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from logfs.log.disk.bucket_path import BucketPath
    from logfs.log.remote.layouts import BucketSegment

logger = logging.getLogger(__name__)

T = TypeVar("T")

# How old a listing may become, in seconds. The time is long, because a list request costs as much as ten reads of an
# object.
_LISTING_SECONDS = 30.0
# A listing is not repeated within this time (seconds), even if it seems to be outdated.
_DOUBT_SECONDS = 1.0
_SECOND_NS = 1_000_000_000


class _NoLock(nullcontext[None]):
    """A lock that does nothing. It serves as `Disk.naming` of a bucket, in which objects are never renamed."""

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        return True

    def release(self) -> None:
        pass


class _Listing(Generic[T]):
    """A cached listing. `get` lists again if the listing is older than 30 s.

    `get` returns the old listing if listing again fails, if the calling thread must not wait, and while another
    thread lists again.
    """

    def __init__(self, disk: Disk, what: Path, look: Callable[[], T]) -> None:
        """Cache the results of `look`, which lists the directory `what`.

        `look` waits for the object store, so it is called only in threads in which `disk.check_may_block` permits it.
        """
        self._disk = disk
        self._what = what
        self._look = look
        self._lock = make_lock(Level.LISTING)
        # The last listing, None before the first.
        self.found: T | None = None
        self._when = -math.inf
        # When a listing last differed from the one before it (ns since the epoch).
        self.changed_ns = 0

    def get(self) -> T:
        """Return the listing. If there is none yet, raises the errors of `look`, and may raise `WouldBlock`."""
        found = self.found
        if found is not None and not self._is_old():
            return found
        try:
            self._disk.check_may_block()
        except WouldBlock:
            if found is None:
                raise
            return found
        if not self._lock.acquire(blocking=found is None):
            assert found is not None
            return found
        try:
            return self.found if self.found is not None and not self._is_old() else self._renew()
        finally:
            self._lock.release()

    def doubt(self) -> None:
        """Note that the listing may be outdated: the next use lists again if the listing is over 1 s old."""
        if time.monotonic() - self._when > _DOUBT_SECONDS:
            self._when = -math.inf

    def _is_old(self) -> bool:
        return time.monotonic() - self._when > _LISTING_SECONDS

    def _renew(self) -> T:
        before = self.found
        try:
            found = self._look()
        except (LogfsError, OSError) as error:
            if before is None:
                raise
            logger.warning("%s: the last listing stays in use: %s", self._what, error)
            found = before
        self._when = time.monotonic()
        if found != before:
            self.found = found
            # Set the time of the change to a second ago: readers do not trust an mtime close to now (`stat_settled`).
            self.changed_ns = time.time_ns() - _SECOND_NS
        return found


@dataclass(slots=True, eq=False)
class BucketFile(File):
    """A file of a partition: the file of `segment` with `suffix` or, if `segment` is None, the bytes `content`.

    `following` is the segment after `segment`; None if `segment` is the last. There is no file descriptor (`fd` is
    -1), so all openings of a file share one object.
    """

    segment: BucketSegment | None
    suffix: str
    following: BucketSegment | None = None
    content: bytes = b""

    @property
    def identity(self) -> int:
        """The identity of the file in its `Status`."""
        if self.segment is None:
            return identity_of(self.content.decode())
        return self.segment.identity


class _Partition(NamedTuple):
    """A partition as it was listed: its segments, and its files by name.

    `identity` changes when the topic is deleted and created again.
    """

    identity: int
    segments: Sequence[BucketSegment]
    files: Mapping[str, BucketFile]


def _partition_of(
    directory: Path, place: PartitionPlace, segments: Sequence[BucketSegment]
) -> _Partition:
    metadata = format_partition_metadata(text_to_uuid(place.topic_id))
    path = directory / names.PARTITION_METADATA
    found = [BucketFile(path, -1, None, "", content=metadata)]
    # Not strict: if there are no segments, the second list still has one item.
    for segment, following in zip(segments, [*segments[1:], None], strict=False):
        for suffix in segment.files:
            if suffix in names.SEGMENT_FILES:
                base = segment.start_offset
            elif suffix == names.SNAPSHOT and following is not None:
                # The snapshot has the state of the producers after the segment, so its name has the offset at which
                # the next segment begins.
                base = following.start_offset
            else:
                continue
            path = directory / (names.stem(base) + suffix)
            found.append(BucketFile(path, -1, segment, suffix, following))
    if segments:
        found.append(BucketFile(directory / names.LEADER_EPOCHS, -1, segments[-1], EPOCHS))
    return _Partition(identity_of(place.prefix), segments, {each.path.name: each for each in found})


class BucketDisk(ReadOnlyDisk):
    """The directory tree of a bucket. Every method may raise `RemoteStorageError`.

    In the thread that called `forbid_blocking`, and within `run_without_network`, no method waits for the network. A
    method then raises `WouldBlock` if it needs a listing that is not in memory, or bytes of an object that are in
    none of the chunks that `ChunkReader` keeps open.
    """

    is_remote = True

    def __init__(
        self,
        root: BucketPath,
        cache_bytes: int = LIMIT_BYTES,
        home: BucketPath | None = None,
        *,
        looks_again: bool = False,
    ) -> None:
        """Prepare to read the bucket at `root`. No request is sent before the first access.

        `cache_bytes` is the size limit of the cache of chunks. If `root` ends in the beginning of object names, as in
        s3://b/kafka/prod-, `home` must be the directory, s3://b/kafka; None stands for `root`. With `looks_again`, an
        object counts as missing only if the store says so three times. The first request raises `InvalidStore` if the
        bucket cannot be used.
        """
        super().__init__()
        self.naming = _NoLock()  # type: ignore[assignment]
        self.root = root
        self.objects = ObjectStore(home or root, looks_again=looks_again)
        # Reads and writes the files of the cache.
        self._local = Disk()
        self.share_blocking(self._local)
        self.chunks = ChunkReader(self.objects, self._local, ChunkCache(cache_bytes))
        self._places = _Listing(self, root, self._find_places)
        self._partitions: dict[str, _Listing[_Partition]] = {}

    def check_may_block(self) -> None:
        """Raise `WouldBlock` in the thread that called `forbid_blocking`, and within `run_without_network`.

        The method of `Disk` does not raise it within `run_without_network`. This one does, because most long calls of
        this disk wait for the network.
        """
        self.check_may_fetch()

    def release(self) -> None:
        self.chunks.release()

    def read_afresh(self) -> None:
        self.chunks.read_afresh()

    # Methods for names and directories.

    def scan(self, path: Path) -> Iterator[Entry]:
        below = self._below(path)
        if not below:
            found = [(name, identity_of(str(p))) for name, p in self._places.get().items()]
        elif len(below) == 1:
            files = self._partition(path).get().files
            found = [(name, each.identity) for name, each in files.items()]
        else:
            raise missing(path)
        return (Entry(*each, bool(below), not below) for each in found)

    def exists(self, path: Path) -> bool:
        try:
            self.stat(path)
        except FileNotFoundError:
            return False
        return True

    def stat(self, path: Path, *, follow: bool = False) -> Status:
        below = self._below(path)
        if len(below) > 1:
            return self.stat_file(self.open(path))
        if not below:
            self._places.get()
            return _status(_DIRECTORY, ROOT_IDENTITY, 0, self._places.changed_ns)
        partition = self._partition(path)
        identity = partition.get().identity
        return _status(_DIRECTORY, identity, 0, partition.changed_ns)

    def open(self, path: Path, *, write: bool = False, create: bool = False) -> File:
        if write or create:
            return super().open(path, write=write, create=create)
        if len(self._below(path)) != 2:
            raise missing(path)
        listing = self._partition(path.parent)
        file = listing.get().files.get(path.name)
        if file is None:
            # The name may come from a process with a newer listing: list again.
            listing.doubt()
            file = listing.get().files.get(path.name)
        if file is None:
            raise missing(path)
        return file

    def _below(self, path: Path) -> tuple[str, ...]:
        return path.relative_to(self.root).parts

    def _find_places(self) -> dict[str, list[PartitionPlace]]:
        found = find_partitions(self.objects, self.root.key)
        return {name.directory: places for name, places in sorted(found.items())}

    def _partition(self, path: Path) -> _Listing[_Partition]:
        """Return the listing of the partition at a path. Raises `FileNotFoundError` if there is no such partition."""
        name = path.name
        if name not in self._places.get():
            self._places.doubt()
            if name not in self._places.get():
                raise missing(path)
        listing = self._partitions.get(name)
        if listing is None:
            look = partial(self._list_partition, path)
            listing = self._partitions.setdefault(name, _Listing(self, path, look))
        return listing

    def _list_partition(self, path: Path) -> _Partition:
        places = self._places.get().get(path.name)
        if places is None:
            # A later listing of the bucket does not show the partition any more.
            raise missing(path)
        place, segments = list_segments(self.objects, places)
        listing = self._partitions[path.name]
        known = {each.identity: each for each in listing.found.segments} if listing.found else {}
        for number, segment in enumerate(segments):
            before = known.get(segment.identity)
            if before is not None and before.objects == segment.objects:
                # Keep the `BucketSegment` of a copy that was listed before: it may have read its manifest already.
                segments[number] = before
        found = _partition_of(path, place, segments)
        # The same segments have the same files.
        last = listing.found
        return found if last is None or last[:2] != found[:2] else last

    # Methods for files.

    def read(self, file: File, position: int, size: int) -> memoryview:
        stored = self._stored(file)
        if isinstance(stored, bytes):
            return memoryview(stored)[position : position + size]
        size = max(min(size, self.size(file) - position), 0)
        if not size:
            return memoryview(b"")
        with self._noticing_loss(file):
            return self.chunks.read(stored, position, size, partial(self._following, file))

    def read_ahead(self, file: File, position: int, size: int) -> None:
        """Do nothing: `ChunkReader` fetches ahead for sequential readers by itself."""

    def fetch_again(self, file: File, start: int, end: int) -> bool:
        stored = self._stored(file)
        return not isinstance(stored, bytes) and self.chunks.fetch_again(stored, start, end)

    def size(self, file: File) -> int:
        stored = self._stored(file)
        if isinstance(stored, bytes):
            return len(stored)
        found = in_bucket(file)
        if found.suffix == names.LOG and not stored.size:
            raise Corrupt(
                f"{stored.key}: the object is empty, but a segment has at least one batch; restore the object"
            )
        segment, following = found.segment, found.following
        if found.suffix != names.LOG or segment is None or following is None:
            return stored.size
        if segment.shown_bytes is None:
            with self._noticing_loss(file):
                segment.shown_bytes = self._end_before(segment, stored, following.start_offset)
        return segment.shown_bytes

    def described_end(self, file: File) -> tuple[int, int] | None:
        found = in_bucket(file)
        if found.segment is None or found.following is not None:
            return None
        with self._noticing_loss(file):
            described = found.segment.description(self)
        return None if described is None else (described.end_offset + 1, described.max_timestamp)

    def is_cut(self, file: File) -> bool:
        stored = self._stored(file)
        return not isinstance(stored, bytes) and self.size(file) < stored.size

    def stat_file(self, file: File) -> Status:
        found = in_bucket(file)
        changed_ns = found.segment.modified_ms * 1_000_000 if found.segment else 0
        return _status(_FILE, found.identity, self.size(file), changed_ns)

    def read_all(self, file: File) -> bytes:
        return bytes(self.read(file, 0, self.size(file)))

    def _stored(self, file: File) -> StoredFile | bytes:
        """Return where in the bucket a file is stored, or the bytes of the file if no object contains it.

        Reads the manifest of the segment, if the layout has one. Raises `WouldBlock` in a thread that must not wait;
        `Corrupt`, `Unsupported` or `InvalidStore` if the manifest cannot be used; and `Gone`, or another result of
        `lost`, if it is missing.
        """
        found = in_bucket(file)
        if found.segment is None:
            return found.content
        with self._noticing_loss(file):
            return found.segment.file(found.suffix, self) or b""

    @contextmanager
    def _noticing_loss(self, file: File) -> Iterator[None]:
        """Replace a `FileNotFoundError` in the `with` block, raised for a missing object, by the result of `lost`.

        For a `BucketDisk` this is `Gone`, so that the reader lists the partition again.
        """
        try:
            yield
        except FileNotFoundError as error:
            raise self.lost(file, error) from None

    def lost(self, file: File, error: FileNotFoundError) -> Exception:
        """Return the error to raise for a file whose object is missing; let the next use list the partition again.

        `error` is the error of the request for the object; its `filename` is the object's URL.
        """
        self._partition(file.path.parent).doubt()
        return Gone(f"{error.filename}: was deleted in the bucket; read again")

    def read_small(self, stored: StoredFile, *, again: bool = False) -> bytes:
        """Return the content of a small file of a segment. With `again`, fetch it even if it is cached."""
        if again:
            self.chunks.fetch_again(stored, 0, stored.size)
        return bytes(self.chunks.read(stored, 0, stored.size, lambda: None))

    def _following(self, file: File) -> StoredFile | None:
        """Return the .log file of the next segment; None if `file` is no .log file, or if its segment is the last."""
        found = in_bucket(file)
        if found.following is None or found.suffix != names.LOG:
            return None
        return found.following.file(names.LOG, self)

    def _end_before(self, segment: BucketSegment, log: StoredFile, offset: int) -> int:
        """Return the position in a .log file of the first batch with a base offset of at least `offset`.

        `offset` is the first offset of the next segment. Usually the file has no such batch, and the result is the
        size of the file. The result is also the size of the file if a batch before `offset` is damaged.
        """
        if segment.end_offset is not None and segment.end_offset < offset:
            return log.size
        index = segment.file(names.OFFSET_INDEX, self)
        data = b"" if index is None else self.read_small(index)
        # A damaged index may end within an entry: leave out the rest.
        entries = np.frombuffer(data[: len(data) // 8 * 8], ">i4").reshape(-1, 2)
        number = np.searchsorted(entries[:, 0], offset - segment.start_offset)
        position = int(entries[number - 1, 1]) if number else 0
        if not 0 <= position < log.size:
            # The index entry is damaged: search from the beginning.
            position = 0
        while position < log.size:
            head = self.chunks.read(log, position, LENGTH_OVERHEAD, lambda: None)
            if len(head) < LENGTH_OVERHEAD:
                return log.size
            first, length = START.unpack_from(head)
            if length <= 0:
                # The batch is damaged. Show the whole file: readers of the log find the damage and report it.
                return log.size
            if first >= offset:
                return position
            position += LENGTH_OVERHEAD + length
        return log.size


# The identity of the root directory of every bucket.
ROOT_IDENTITY = 1

_FILE = stat.S_IFREG | 0o444
_DIRECTORY = stat.S_IFDIR | 0o755


def in_bucket(file: File) -> BucketFile:
    """Return `file`, which a `BucketDisk` has opened, as a `BucketFile`."""
    assert isinstance(file, BucketFile)
    return file


def missing(path: Path) -> FileNotFoundError:
    """Return the error for a path for which the bucket has no object."""
    return FileNotFoundError(errno.ENOENT, "no such object", str(path))


def identity_of(text: str) -> int:
    """Return a number that identifies the file or directory with the unique name `text`, like an inode number."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:7], "big") | 1


def _status(mode: int, identity: int, size: int, changed_ns: int) -> Status:
    return Status(identity, size, changed_ns, changed_ns, mode, os.geteuid(), os.getegid())
