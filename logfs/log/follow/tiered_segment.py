"""Segments of a tiered log that have no local files: they are in an object store, or missing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from logfs.format.base import names
from logfs.format.text.rendering import TextSize
from logfs.log.follow.live_segment import LiveSegment
from logfs.log.remote.bucket_disk import identity_of
from logfs.log.segment.index import TimeEntry
from logfs.log.segment.segment_end import UNMEASURED, SegmentEnd

if TYPE_CHECKING:
    from pathlib import Path

    from logfs.format.tiered.custom_metadata import StoredSegment
    from logfs.format.tiered.remote_segment import RemoteSegment
    from logfs.log.remote.tiered_disk import TieredDisk


class TieredSegment(LiveSegment):
    """A sealed segment in an object store. Its size and times come from the metadata that describes the segment.

    If logfs has copied the segment, no request is sent until a reader needs bytes of the .log file or of an index.
    """

    is_tiered = True

    def __init__(
        self,
        disk: TieredDisk,
        directory: Path,
        remote: RemoteSegment,
        stored: StoredSegment | None,
    ) -> None:
        """Make the segment that `remote` describes. `directory` is the partition directory on `disk`.

        `stored` says how logfs has stored the segment. None means that another program has copied the segment. The
        bucket is then listed, and `RemoteStorageError` is raised if it has no complete copy.
        """
        super().__init__(disk, directory, remote.start_offset)
        self.remote = remote
        # Other processes pass these two values to `disks.tiered_disk` to read the segment.
        self.source = str(disk.home), disk.prefix
        found = disk.add(directory, remote, stored)
        self.identity = found.identity
        # The identity that the partition directory has in a process that opens the bucket itself as a log directory.
        self.directory_identity = identity_of(type(found).directory(remote.partition, disk.place))
        self.identify(
            {suffix: found.identity for suffix in found.files if suffix in names.SEGMENT_FILES}
        )
        self.next_base = remote.end_offset + 1
        self.first_record_offset = remote.start_offset
        text = UNMEASURED
        time_offset: int | None = remote.end_offset
        if stored is not None:
            text, time_offset = TextSize(*stored.text), stored.time_offset
            first = stored.first_offset
            self.first_record_offset = self.next_base if first is None else first
        self.set_end(SegmentEnd(remote.size_bytes, self.next_base, text))
        if time_offset is not None:
            self.max_entry = TimeEntry(remote.max_timestamp, time_offset)
        if remote.txn_index_is_empty:
            self.txn_index.follow(None)

    def mtime_ms(self) -> int:
        """Return the segment's greatest timestamp (ms), because there is no local .log file that has an mtime."""
        return self.remote.max_timestamp


# The timestamp that stands for the unknown times of missing offsets: the last ms of the year 9999. With it, every
# lookup by time includes them, and retention by time never deletes them.
_LATEST_MS = 253_402_300_799_999


class MissingSegment(LiveSegment):
    """The offsets [base_offset, next_offset) of a tiered log that belong to no known segment: they cannot be read.

    Every read of bytes of this segment raises `RemoteStorageError`. In a text view the segment counts as one byte,
    so that a reader cannot pass it without this error.
    """

    is_tiered = True

    def __init__(
        self, disk: TieredDisk, directory: Path, base_offset: int, next_offset: int
    ) -> None:
        super().__init__(disk, directory, base_offset)
        disk.note_missing(directory, base_offset, next_offset)
        self.identify(dict.fromkeys(names.SEGMENT_FILES, 0))
        self.next_base = next_offset
        self.first_record_offset = base_offset
        text = TextSize(next_offset - base_offset, 1, 1)
        self.resume(SegmentEnd(1, next_offset, text), TimeEntry(_LATEST_MS, next_offset - 1))
        self.txn_index.follow(None)

    def mtime_ms(self) -> int:
        return self.max_timestamp.timestamp
