"""The `Disk` of remote segments that are known from their metadata.

Unlike a `BucketDisk`, it does not list the bucket to find its segments: `TieredDisk.add` adds each of them. It lists
objects only for a segment that another program copied, because the metadata of such a segment do not tell how its
objects are stored.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from logfs.errors import RemoteStorageError
from logfs.format.base import names
from logfs.format.tiered.metadata_record import TOPIC
from logfs.log.disk.bucket_path import BucketPath
from logfs.log.disk.disk import Gone
from logfs.log.remote.bucket_disk import BucketDisk, BucketFile, in_bucket, missing
from logfs.log.remote.bucket_listing import copies_in
from logfs.log.remote.layouts import LAYOUTS

if TYPE_CHECKING:
    import uuid
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from logfs.format.tiered.custom_metadata import StoredSegment
    from logfs.format.tiered.remote_segment import RemotePartition, RemoteSegment
    from logfs.log.disk.disk import File
    from logfs.log.remote.layouts import BucketSegment


class TieredDisk(BucketDisk):
    """The bucket of a tiered store. Its files are those of the segments that were passed to `add`."""

    def __init__(
        self,
        home: BucketPath,
        prefix: str,
        is_finished: Callable[[RemoteSegment], bool],
        cache_bytes: int,
    ) -> None:
        """Prepare to read the objects in the directory `home` (a URL) whose names begin with `prefix`.

        `home` and `prefix` are the settings remote.storage.url and remote.storage.prefix. `cache_bytes` is the size
        limit of the cache of chunks. `is_finished` returns whether a segment's metadata says that its copy is
        complete. A read of a missing object raises `RemoteStorageError` if the copy is complete. Otherwise another
        process has deleted the object, and the read raises `Gone`.
        """
        # A `BucketDisk` lists again if an object is missing. This disk requests the object again instead.
        super().__init__(BucketPath(f"{home}/{prefix}"), cache_bytes, home, looks_again=True)
        self.home, self.prefix = home, prefix
        # The beginning of the keys of all objects.
        self.place = f"{home.key}/{prefix}" if home.key else prefix
        self._is_finished = is_finished
        # The segments, by the directory of their partition and their first offset.
        self._segments: dict[Path, dict[int, BucketSegment]] = {}
        # The ends of the missing ranges of offsets (`note_missing`), by the directory and the first missing offset.
        self._missing: dict[tuple[Path, int], int] = {}
        self._listed = cache(self._list)

    def add(
        self, directory: Path, segment: RemoteSegment, stored: StoredSegment | None
    ) -> BucketSegment:
        """Add a segment to the directory of its partition, and return the `BucketSegment` made for it.

        The segment replaces one with the same base offset. `stored` says how logfs has stored the segment, or is None
        if another program has copied it. For None, this method looks for the segment in a listing of the partition's
        objects. It raises `RemoteStorageError` if the listing has no complete copy, and `WouldBlock` in a thread that
        must not wait.
        """
        if stored is not None:
            found = LAYOUTS[stored.layout].of(segment, stored, self.place)
        else:
            self.check_may_block()
            which = segment.start_offset, segment.segment_id
            listed = self._listed(segment.partition).get(which)
            if listed is None:
                self._listed.cache_clear()
                listed = self._listed(segment.partition).get(which)
            if listed is None:
                raise RemoteStorageError(
                    f"{directory}: the segment with base offset {segment.start_offset} is not in the bucket; set "
                    "remote.storage.url and remote.storage.prefix as they are in the settings of the broker's plugin"
                )
            found = listed
            found.end_offset = segment.end_offset
        found.remote = segment
        self._segments.setdefault(directory, {})[segment.start_offset] = found
        return found

    def note_missing(self, directory: Path, first: int, end: int) -> None:
        """Note that the offsets [first, end) are missing: no remote segment is known for them.

        A segment with the base offset `first` stands for this range. From now on, `open` raises `RemoteStorageError`
        for each file of this segment.
        """
        self._missing[directory, first] = end

    def _list(self, partition: RemotePartition) -> Mapping[tuple[int, uuid.UUID], BucketSegment]:
        found: dict[tuple[int, uuid.UUID], BucketSegment] = {}
        for layout in LAYOUTS.values():
            directory = layout.directory(partition, self.place)
            found |= copies_in(self.objects, layout, directory, self.place)
        return found

    def open(self, path: Path, *, write: bool = False, create: bool = False) -> File:
        if write or create:
            return super().open(path, write=write, create=create)
        known = self._segments.get(path.parent, {})
        base, suffix = names.parse_stem(path.name), path.suffix
        segment = known.get(base)
        end = self._missing.get((path.parent, base))
        if segment is None and end is not None:
            raise RemoteStorageError(
                f"{path.parent}: offsets {base} to {end - 1} are missing: no remote segment in {TOPIC} covers them; "
                "also open the log directory that has this topic, or restore the topic from a copy"
            )
        if segment is None or suffix not in segment.files:
            raise missing(path)
        end = segment.end_offset
        following = None if end is None else known.get(end + 1)
        return BucketFile(path, -1, segment, suffix, following)

    def lost(self, file: File, error: FileNotFoundError) -> Exception:
        segment = in_bucket(file).segment
        remote = None if segment is None else segment.remote
        if remote is None or not self._is_finished(remote):
            return Gone(f"{error.filename}: was deleted in the bucket; read again")
        return RemoteStorageError(
            f"{error.filename}: the object is lost; restore it, or correct remote.storage.url"
        )
