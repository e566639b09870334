"""Layouts of a segment in a bucket: an object for each file (Kafka's), or Aiven's objects that join several files."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from logfs.errors import Corrupt, InvalidStore, Unsupported
from logfs.format.base import names
from logfs.format.tiered import manifest, object_keys
from logfs.format.tiered.chunk_index import ChunkIndex
from logfs.format.tiered.custom_metadata import EPOCHS, MANIFEST, Layout
from logfs.format.tiered.object_keys import LOCAL_TEXT
from logfs.locks import Level, make_lock
from logfs.log.remote.chunk_reader import StoredFile
from logfs.log.remote.encryption import OVERHEAD_BYTES, unwrap
from logfs.log.remote.object_store import StoredObject

if TYPE_CHECKING:
    import uuid
    from collections.abc import Mapping, Sequence
    from typing import Self

    from logfs.format.tiered.custom_metadata import StoredSegment
    from logfs.format.tiered.remote_segment import RemotePartition, RemoteSegment
    from logfs.log.remote.bucket_disk import BucketDisk
    from logfs.log.remote.encryption import DataKey

# A .log file without a manifest is fetched in chunks of this size, which is the default of Aiven's plugin.
CHUNK_BYTES = 4 << 20

# Larger objects, other than .log files, are refused, because they are read whole into memory.
_MOST_SMALL_BYTES = 1 << 30

# For the suffix of each file of a segment: the name of this file in Aiven's manifest.
IN_MANIFEST = {
    names.OFFSET_INDEX: manifest.OFFSET,
    names.TIME_INDEX: manifest.TIMESTAMP,
    names.SNAPSHOT: manifest.PRODUCER_SNAPSHOT,
    EPOCHS: manifest.LEADER_EPOCH,
    names.TXN_INDEX: manifest.TRANSACTION,
}


def plain_chunks(chunk_bytes: int, file_bytes: int, longer: int = 0) -> ChunkIndex:
    """Return the chunk index of a file of `file_bytes` that is stored in chunks of `chunk_bytes`, not compressed.

    `longer` is the number of bytes by which encryption makes each chunk larger in the object, 0 without encryption.
    """
    last = file_bytes % chunk_bytes or min(file_bytes, chunk_bytes)
    size = min(chunk_bytes, file_bytes)
    return ChunkIndex(chunk_bytes, file_bytes, size + longer, last + longer)


class BucketSegment:
    """A segment in a bucket: the objects of one copy. Any thread may call any method.

    `start_offset` is the segment's first offset, `identity` is a number that no other copy has, and `modified_ms` is
    the time when the last object was stored (ms).
    """

    # The suffixes of the files that a segment may have.
    suffixes: ClassVar[Sequence[str]]
    # The suffixes of a copy's objects: `stored` has all, `.log` first; `required` has those of every complete copy.
    stored: ClassVar[Sequence[str]]
    required: ClassVar[frozenset[str]]
    # The functions of `object_keys` for the layout; the last argument of each is the prefix of the keys.
    directory: ClassVar[staticmethod[[RemotePartition, str], str]]
    key: ClassVar[staticmethod[[RemoteSegment, str, str], str]]
    parse: ClassVar[staticmethod[[str, str], tuple[int, uuid.UUID, str] | None]]

    def __init__(
        self, start_offset: int, segment_id: uuid.UUID, objects: Mapping[str, StoredObject]
    ) -> None:
        """Make a segment of `objects`, which maps the suffixes of their keys to the objects."""
        self.start_offset = start_offset
        self.identity = segment_id.int >> 65 or 1
        self.modified_ms = max(each.modified_ms for each in objects.values())
        self.objects = objects
        # Kafka's description of the segment; None if the segment is known only from a listing of the bucket.
        self.remote: RemoteSegment | None = None
        # The last offset of the segment; None if it is not known without reading the .log file.
        self.end_offset: int | None = None
        # For the suffix of each object: the CRC-32C of its chunks. Objects whose CRCs are not known are left out.
        self.crcs: Mapping[str, Sequence[int]] = {}
        # The size of the .log file up to where the next segment begins; None until it is computed.
        self.shown_bytes: int | None = None

    @classmethod
    def of(cls, segment: RemoteSegment, stored: StoredSegment, place: str) -> Self:
        """Return the `BucketSegment` of a segment that is in the bucket, without a request to the bucket.

        `segment` describes it, `stored` has the sizes of its objects, and `place` is the prefix of their keys.
        """
        copy = cls(
            segment.start_offset,
            segment.segment_id,
            {
                suffix: StoredObject(cls.key(segment, suffix, place), size, segment.event_timestamp)
                for suffix, size in cls._sizes(segment, stored).items()
            },
        )
        copy.end_offset = segment.end_offset
        if stored.crcs:
            small = cls.stored[1:]
            copy.crcs = {suffix: [crc] for suffix, crc in zip(small, stored.crcs, strict=False)}
            copy.crcs[cls.stored[0]] = stored.crcs[len(small) :]
        return copy

    @property
    def files(self) -> Sequence[str]:
        """The suffixes of the files that the segment can have; without the text index if the copy has none."""
        if {object_keys.TEXT, LOCAL_TEXT} & self.objects.keys():
            return self.suffixes
        return [suffix for suffix in self.suffixes if suffix != names.TEXT_INDEX]

    def _whole(self, suffix: str) -> StoredFile:
        """Return the whole object whose key has the suffix `suffix`, as a `StoredFile` of one chunk.

        Raises `Corrupt` if the object is larger than 1 GiB and is not the .log file.
        """
        found = self.objects[suffix]
        size = found.size
        if suffix != self.stored[0] and size > _MOST_SMALL_BYTES:
            raise Corrupt(
                f"{found.key}: has {size} bytes, but a manifest or the indexes of a segment have at most 1 GiB"
            )
        chunks = ChunkIndex(max(size, 1), size, size, size)
        crcs = self.crcs.get(suffix, ())
        return StoredFile(found.key, 0, size, chunks, False, crcs=crcs, version=found.version)

    @staticmethod
    def _sizes(segment: RemoteSegment, stored: StoredSegment) -> dict[str, int]:
        """Return the size of each object of a copy, by suffix. Objects that the copy lacks are left out."""
        raise NotImplementedError

    def description(self, disk: BucketDisk) -> RemoteSegment | None:
        """Return Kafka's description of the segment from its manifest; None if the copy has no description.

        Also returns None if the description's first offset is not that of the segment, or if its end offset is out of
        range. `disk` reads the manifest. Raises `Corrupt` for a malformed manifest, `Unsupported` for a manifest of a
        later release, `InvalidStore` if the key of encrypted objects is missing, and `RemoteStorageError`,
        `WouldBlock` or `FileNotFoundError` if the manifest cannot be read.
        """
        return None

    def file(self, suffix: str, disk: BucketDisk) -> StoredFile | None:
        """Return where the file with a suffix (".log") is; None if the segment has none.

        `disk` reads the manifest, if the layout has one. Raises `Corrupt` for a malformed manifest, `Unsupported` for
        a manifest of a later release, `InvalidStore` if the key of encrypted objects is missing, and
        `RemoteStorageError`, `WouldBlock` or `FileNotFoundError` if the manifest cannot be read.
        """
        raise NotImplementedError


class AivenSegment(BucketSegment):
    """A copy as Aiven's plugin makes it: two objects with the files, and a manifest that tells where the files are.

    The text index, which logfs adds, is an object of its own.
    """

    suffixes = (names.LOG, *IN_MANIFEST, names.TEXT_INDEX)
    stored = (
        object_keys.LOG,
        object_keys.INDEXES,
        object_keys.TEXT,
        object_keys.MANIFEST,
    )
    required = frozenset(object_keys.AIVEN_SUFFIXES)
    directory = staticmethod(object_keys.aiven_directory)
    key = staticmethod(object_keys.aiven_key)
    parse = staticmethod(object_keys.parse_aiven_key)

    def __init__(
        self, start_offset: int, segment_id: uuid.UUID, objects: Mapping[str, StoredObject]
    ) -> None:
        super().__init__(start_offset, segment_id, objects)
        self._manifest: manifest.Manifest | None = None
        self._data_key: DataKey | None = None
        self._reading = make_lock(Level.MANIFESTS)

    @classmethod
    def of(cls, segment: RemoteSegment, stored: StoredSegment, place: str) -> Self:
        copy = super().of(segment, stored, place)
        if not stored.is_compressed and not stored.is_encrypted:
            # The chunks are neither compressed nor encrypted, so the manifest can be computed. Otherwise `file` reads
            # the manifest in the bucket for the positions of the chunks and for the key.
            chunks = plain_chunks(stored.chunk_bytes, segment.size_bytes)
            copy._manifest = manifest.Manifest(chunks, _slices(stored), False, None, segment)
        return copy

    @staticmethod
    def _sizes(segment: RemoteSegment, stored: StoredSegment) -> dict[str, int]:
        longer = OVERHEAD_BYTES if stored.is_encrypted else 0
        sizes = {
            object_keys.LOG: segment.size_bytes,
            object_keys.INDEXES: sum(
                each.size + longer for each in _slices(stored).values() if each.size
            ),
            object_keys.MANIFEST: stored.sizes.get(MANIFEST, 0),
        }
        text = stored.sizes.get(names.TEXT_INDEX)
        return sizes | ({object_keys.TEXT: text + longer} if text else {})

    def file(self, suffix: str, disk: BucketDisk) -> StoredFile | None:
        if suffix == names.TEXT_INDEX and object_keys.TEXT not in self.objects:
            return None
        described = self._manifest or self._read_manifest(disk)
        if suffix == names.LOG:
            return self._whole(object_keys.LOG)._replace(
                size=described.chunks.file_bytes,
                chunks=described.chunks,
                is_compressed=described.is_compressed,
                data_key=self._data_key,
            )
        if suffix == names.TEXT_INDEX:
            stored = self._whole(object_keys.TEXT)
            found = manifest.Slice(0, stored.size)
        else:
            stored = self._whole(object_keys.INDEXES)
            found = described.indexes.get(IN_MANIFEST[suffix], manifest.Slice(0, 0))
        if not found.size:
            return None
        if found.position + found.size > stored.size:
            raise Corrupt(f"{stored.key}: has {stored.size} bytes, fewer than the manifest states")
        if self._data_key is None:
            # Read the whole object as one chunk, so that one request fetches all the indexes in it.
            return stored._replace(position=found.position, size=found.size)
        size = max(found.size - OVERHEAD_BYTES, 0)
        alone = ChunkIndex(max(size, 1), size, found.size, found.size)
        return stored._replace(
            size=size,
            chunks=alone,
            begin=found.position,
            data_key=self._data_key,
            crcs=(),
            is_part=True,
        )

    def description(self, disk: BucketDisk) -> RemoteSegment | None:
        found = (self._manifest or self._read_manifest(disk)).segment
        first = self.start_offset
        if (
            found is None
            or found.start_offset != first
            or not first <= found.end_offset <= first + names.INT32_MAX
        ):
            return None
        return found

    def _parse(self, data: bytes) -> manifest.Manifest:
        try:
            described = manifest.parse(data)
            if described.encryption is not None:
                self._data_key = unwrap(described.encryption)
        except (Corrupt, Unsupported, InvalidStore) as error:
            key = self.objects[object_keys.MANIFEST].key
            raise type(error)(f"{key}: {error}") from None
        return described

    def _read_manifest(self, disk: BucketDisk) -> manifest.Manifest:
        with disk.hold(self._reading):
            if self._manifest is None:
                stored = self._whole(object_keys.MANIFEST)
                try:
                    described = self._parse(disk.read_small(stored))
                except Corrupt:
                    # The manifest in the cache may have been damaged on the way from the bucket: fetch it again.
                    described = self._parse(disk.read_small(stored, again=True))
                if described.segment is not None:
                    self.end_offset = described.segment.end_offset
                self._manifest = described
            return self._manifest


def _slices(stored: StoredSegment) -> dict[str, manifest.Slice]:
    slices, position = {}, 0
    for suffix, name in IN_MANIFEST.items():
        size = stored.sizes.get(suffix, 0)
        if size or suffix != names.TXN_INDEX:
            slices[name] = manifest.Slice(position, size)
            position += size
    return slices


class LocalSegment(BucketSegment):
    """A remote segment as Kafka's `LocalTieredStorage` lays it out: each file of the segment is an object."""

    suffixes = stored = (*object_keys.LOCAL_SUFFIXES, LOCAL_TEXT)
    required = frozenset(object_keys.LOCAL_SUFFIXES) - {names.TXN_INDEX}
    directory = staticmethod(object_keys.local_directory)
    key = staticmethod(object_keys.local_key)
    parse = staticmethod(object_keys.parse_local_key)

    @staticmethod
    def _sizes(segment: RemoteSegment, stored: StoredSegment) -> dict[str, int]:
        # `stored.sizes` leaves out empty files, but each required file has an object, even if it is empty.
        empty = dict.fromkeys(LocalSegment.required, 0)
        return empty | {names.LOG: segment.size_bytes, **stored.sizes}

    def file(self, suffix: str, disk: BucketDisk) -> StoredFile | None:
        found = self.objects.get(suffix)
        if found is None:
            return None
        stored = self._whole(suffix)
        if suffix != names.LOG:
            return stored
        return stored._replace(chunks=plain_chunks(CHUNK_BYTES, found.size))


LAYOUTS: Mapping[Layout, type[BucketSegment]] = {
    Layout.AIVEN: AivenSegment,
    Layout.LOCAL: LocalSegment,
}
"""The class of the segments of each layout."""
