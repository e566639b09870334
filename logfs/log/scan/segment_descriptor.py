"""Descriptions of segments. With a description, another process that shares only the files can open the segment.

A description has the identities (inode numbers) of files. They show a process on another machine whether it sees the
same files as the process that made the description. On the other machine, the log directory may not be mounted, or
may be an old copy, or may lack a file. A file is also missing if the segment has left the log since it was described;
`SegmentDescriptor.has_left` tells whether this is the cause.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from logfs.format.base import names
from logfs.format.text.rendering import NO_TEXT
from logfs.format.tiered import custom_metadata
from logfs.log.disk.bucket_path import BucketPath, as_path
from logfs.log.disk.disk import Gone
from logfs.log.follow.tiered_segment import TieredSegment
from logfs.log.remote.bucket_disk import ROOT_IDENTITY
from logfs.log.remote.disks import read_only_disk, tiered_disk
from logfs.log.segment.index import TimeEntry
from logfs.log.segment.segment import Segment
from logfs.log.segment.segment_end import SegmentEnd
from logfs.log.segment.segment_listing import open_by_identity

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from logfs.format.tiered.remote_segment import RemoteSegment
    from logfs.log.disk.disk import Disk, File
    from logfs.log.read.reader import Reader

# How many times, at most, a segment is looked up: a try fails if a file leaves the log meanwhile.
_TRIES = 5


class TieredSource(NamedTuple):
    """The metadata of a remote segment (`remote`), and where its objects are.

    `home` is the URL of a directory, and `prefix` the beginning of the objects' names in this directory. They are the
    settings remote.storage.url and remote.storage.prefix.
    """

    home: str
    prefix: str
    remote: RemoteSegment


@dataclass(frozen=True, kw_only=True)
class SegmentDescriptor:
    """A description of a segment and its .log file at the time when a scan or job was planned. It can be pickled.

    `next_offset` is the offset after the segment, and `size_bytes` the valid length of the file. `is_last` means that
    no segment followed it, and `gaps` that offsets may be missing in it. `identity`, `directory_identity` and
    `log_dir_identity` are the identities (`disk.Status`) of the file, its partition directory and its log directory;
    `identity` is None for the segment of an empty log that has no file yet. `previous` is the base offset and the
    identity of the segment before this one, None for the first segment of the log. `tiered` says how to find a
    segment in an object store, None for a local file.
    """

    directory: str
    base_offset: int
    next_offset: int
    size_bytes: int
    is_last: bool
    gaps: bool
    identity: int | None
    directory_identity: int
    log_dir_identity: int
    previous: tuple[int, int | None] | None
    tiered: TieredSource | None = None

    @property
    def partition(self) -> str:
        """The name of the partition directory."""
        return as_path(self.directory).name

    @property
    def path(self) -> Path:
        """The path of the .log file."""
        return as_path(self.directory) / (names.stem(self.base_offset) + names.LOG)

    def open(self) -> Segment:
        """Return the segment; the file of a local segment is open and checked. Close the segment after use.

        Raises `Gone` if the file is missing, is another file, or is shorter than planned, and `OSError`. For a remote
        segment that logfs copied, no request is sent; if another program copied it, the bucket is listed.
        """
        segment = self._open()
        segment.gaps = self.gaps
        segment.next_base = None if self.is_last else self.next_offset
        segment.resume(SegmentEnd(self.size_bytes, self.next_offset, NO_TEXT), TimeEntry(-1, 0))
        return segment

    def _open(self) -> Segment:
        directory = as_path(self.directory)
        if self.tiered is not None:
            home, prefix, remote = self.tiered
            bucket = tiered_disk(as_path(home), prefix)
            return TieredSegment(bucket, directory, remote, custom_metadata.parse(remote.custom))
        disk = read_only_disk(directory.parent)
        segment = _SegmentByIdentity(disk, directory, self.base_offset, self.identity)
        if self.identity is None:
            return segment
        try:
            size = disk.size(segment.file)
        except (Gone, NotADirectoryError):
            raise Gone(self._why_gone(disk)) from None
        if size < self.size_bytes:
            segment.close()
            raise Gone(
                f"{self.path}: has {size} bytes, but had {self.size_bytes} when the scan was planned"
            )
        return segment

    def _why_gone(self, disk: Disk) -> str:
        found = _identity_at(disk, self.path)
        if found is None:
            return f"{self.path}: the planned segment file does not exist"
        return (
            f"{self.path}: is not the planned segment file (inode {found}, planned {self.identity})"
        )

    def check_in_place(self) -> None:
        """Raise `Gone` unless the described .log file is still there, under its own name or with the suffix `.swap`.

        A segment in an object store is not looked up, because its objects are never replaced.
        """
        if self.tiered is not None:
            return
        disk = read_only_disk(self.path.parent.parent)
        swapped = self.path.with_name(self.path.name + names.SWAP)
        # The .swap file may get its final name between the two lookups, so the final name is looked up last.
        found = [_identity_at(disk, each) for each in (swapped, self.path)]
        if self.identity not in (None, *found):
            raise Gone(self._why_gone(disk))

    def has_left(self, reader: Reader) -> bool:
        """Whether this segment has left the log: by retention, compaction or truncation, or with its partition.

        The segment has also left if its partition was moved to another log directory, or deleted and created again.
        `reader` shows the partition as it is now. False means that the segment is still there: if another process
        does not find its file, that process has another directory at the same path. Raises `OSError`.
        """
        is_tiered = isinstance(as_path(self.directory), BucketPath) and not reader.disk.is_remote
        if not is_tiered and reader.disk.stat(reader.directory).identity != self.directory_identity:
            # The partition was deleted and recreated, or moved to another log directory.
            return True
        for _ in range(_TRIES):
            reader.refresh()
            with suppress(FileNotFoundError, Gone):
                return self._has_left(reader)
        # All tries have failed: the files change faster than they can be listed.
        return True

    def _has_left(self, reader: Reader) -> bool:
        state = reader.log.state
        if state.log_start_offset >= self.next_offset or state.log_end_offset <= self.base_offset:
            return True
        # Find the segment that holds `base_offset` now. Compaction may have merged several segments into a new file,
        # which is named after the first of them.
        holder = state.segments_from(self.base_offset)[0]
        identity = holder.base_offset, _identity(reader.log, holder)
        if identity == (self.base_offset, self.identity):
            # The file is the same, so the segment has left only if the log was truncated within it. Then the segment
            # is the last of the log, and its file is shorter than before.
            return holder is state.segments[-1] and holder.size_bytes < self.size_bytes
        return identity != self.previous


class _SegmentByIdentity(Segment):
    """A segment whose .log file is recognised by its inode number (`identity`), and not only by its name.

    The file may still have the suffix `.swap`: compaction gives it to a segment that it has written, and removes it
    later (kafka-storage 8.8). A segment that compaction has replaced counts as gone even while its file still exists,
    because the new segment has its records.
    """

    def __init__(self, disk: Disk, directory: Path, base_offset: int, identity: int | None) -> None:
        super().__init__(disk, directory, base_offset)
        self._identity = identity

    def _open(self) -> File:
        return open_by_identity(self._disk, self.path, self._identity, may_have_left=False)


def _identity_at(disk: Disk, path: Path) -> int | None:
    try:
        return disk.stat(path).identity
    except (FileNotFoundError, NotADirectoryError):
        return None


def _identity(reader: Reader, segment: Segment) -> int | None:
    """Return the identity of a segment's .log file; None if the log is empty and has no file.

    Raises `Gone` or `FileNotFoundError` if the file is missing although the log is not empty, and `OSError`.
    """
    if isinstance(segment, TieredSegment):
        return segment.identity
    try:
        return reader.disk.stat_file(segment.file).identity
    except (FileNotFoundError, Gone):
        if segment.size_bytes or len(reader.log.state.segments) > 1:
            raise
        return None


def describe_segments(
    reader: Reader, segments: Sequence[Segment]
) -> Iterator[tuple[Segment, SegmentDescriptor]]:
    """Yield (segment, description for other processes) for each of `segments`.

    The segments must be adjacent segments of the reader's log, in order. Raises `Gone` or `FileNotFoundError` if a
    file leaves the log meanwhile: refresh the reader and call again.
    """
    disk, directory = reader.disk, reader.directory
    directory_identity = disk.stat(directory).identity
    # Use ".." to get the status of the log directory itself: its path may be a symlink, which `stat` does not follow.
    parent = directory.parent if disk.is_remote else directory / ".."
    log_dir_identity = disk.stat(parent).identity
    every = reader.log.state.segments
    previous: tuple[int, int | None] | None = None
    for segment in segments:
        if previous is None and segment is not every[0] and segment in every:
            before = every[every.index(segment) - 1]
            previous = before.base_offset, _identity(reader, before)
        # Read `next_base` before `next_offset`: otherwise, a segment that is sealed in between would be described as
        # sealed, with an end that is too low.
        is_last = segment.next_base is None
        identity = _identity(reader, segment)
        described = SegmentDescriptor(
            directory=str(directory),
            base_offset=segment.base_offset,
            next_offset=segment.next_offset,
            size_bytes=segment.size_bytes,
            is_last=is_last,
            gaps=segment.gaps,
            identity=identity,
            directory_identity=directory_identity,
            log_dir_identity=log_dir_identity,
            previous=previous,
        )
        if isinstance(segment, TieredSegment):
            # Other processes read a remote segment from the bucket, not through this log directory.
            described = replace(
                described,
                tiered=TieredSource(*segment.source, segment.remote),
                directory=str(segment.path.parent),
                directory_identity=segment.directory_identity,
                log_dir_identity=ROOT_IDENTITY,
            )
        yield segment, described
        previous = segment.base_offset, identity


def describe_segment(reader: Reader) -> list[tuple[Segment, SegmentDescriptor]]:
    """Return all segments of a partition, in order, each with its description for other processes.

    If a file leaves the log meanwhile, the reader is refreshed and the segments are described again. Raises
    `OSError`; `Gone` and `FileNotFoundError` only if the fifth attempt fails, too.
    """
    return reader.until_settled(lambda: list(describe_segments(reader, reader.segments)))
