"""Which partitions a bucket holds, and which files of their segments: what the keys of its objects tell.

Both layouts are recognised, that of Aiven's plugin and that of Kafka's `LocalTieredStorage`, also side by side. A
segment counts if its copy is complete: in Aiven's layout if it has a manifest, in the other if it has a .log file and
its two indexes. Of several copies that begin at the same offset, the newest counts.
"""

from __future__ import annotations

import re
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from logfs.errors import Corrupt, LogfsError, Unsupported
from logfs.format.base import names
from logfs.format.base.names import INT32_MAX, TopicPartition
from logfs.format.files.checkpoint import text_to_uuid
from logfs.format.tiered import manifest, object_keys
from logfs.format.tiered.chunk_index import ChunkIndex
from logfs.format.tiered.object_keys import SegmentKey, parse_aiven_key, parse_local_key
from logfs.log.remote.chunk_reader import StoredFile

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from logfs.log.remote.object_store import ObjectStore, StoredObject

EPOCHS = ".leader_epoch_checkpoint"
"""The suffix of the leader epochs that were copied with a segment."""

# A .log file without a manifest is fetched in chunks of this size, which is the default of Aiven's plugin.
_CHUNK_BYTES = 4 << 20

_ID = "[A-Za-z0-9_-]{22}"
_AIVEN_TOPIC = re.compile(rf"(.+)-({_ID})")
_LOCAL_PARTITION = re.compile(rf"(.+)-(0|[1-9][0-9]{{0,9}})-({_ID})")
# The files of a segment by the names that Aiven's manifest has for them.
_IN_MANIFEST = {
    names.OFFSET_INDEX: manifest.OFFSET,
    names.TIME_INDEX: manifest.TIMESTAMP,
    names.TXN_INDEX: manifest.TRANSACTION,
    names.SNAPSHOT: manifest.PRODUCER_SNAPSHOT,
    EPOCHS: manifest.LEADER_EPOCH,
}


def whole(found: StoredObject) -> StoredFile:
    """Return all of an object as a file of one chunk."""
    size = found.size
    return StoredFile(found.key, 0, size, ChunkIndex(max(size, 1), size, size, size), False)


class PartitionPlace(NamedTuple):
    """Where objects of a partition are: all keys that begin with `prefix`, which ends in a slash.

    `place` is what the bucket's own prefix is, up to which the layout ignores the keys.
    """

    name: TopicPartition
    topic_id: str
    prefix: str
    place: str
    layout: type[BucketSegment]


class BucketSegment:
    """A segment in a bucket: the objects of one copy. Any thread may call any method.

    `start_offset` is its first offset, `inode` a number that no other copy has, and `modified_ms` when the last of
    its objects was stored (ms since the epoch).
    """

    # The suffixes of the files that a segment may have.
    suffixes: ClassVar[Sequence[str]]
    # The objects without which a copy is not complete.
    required: ClassVar[frozenset[str]]

    def __init__(self, key: SegmentKey, objects: Mapping[str, StoredObject]) -> None:
        """Make a segment of `objects`, by the suffixes of their keys."""
        self.start_offset = key.start_offset
        self.inode = key.segment_id.int >> 65 or 1
        self.modified_ms = max(each.modified_ms for each in objects.values())
        self.objects = objects
        # The last offset, None if only the log tells it.
        self.end_offset: int | None = None
        # The size of the .log file up to where the next segment begins; None until somebody has asked for it.
        self.shown_bytes: int | None = None

    @staticmethod
    def parse(key: str, place: str) -> tuple[SegmentKey, str] | None:
        """Return the segment and the suffix of a key below the prefix `place`; None for another object's."""
        raise NotImplementedError

    def file(self, suffix: str, read: Callable[[StoredFile], bytes]) -> StoredFile | None:
        """Return where the file with a suffix (".log") is; None if the segment has none.

        `read` returns the content of a small file, and raises what a request raises. Raises `Corrupt` for a malformed
        manifest, `Unsupported` for encrypted objects.
        """
        raise NotImplementedError


class AivenSegment(BucketSegment):
    """A copy by Aiven's plugin: a manifest tells which bytes of two other objects are which file."""

    suffixes = (names.LOG, *_IN_MANIFEST)
    required = frozenset(object_keys.AIVEN_SUFFIXES)

    def __init__(self, key: SegmentKey, objects: Mapping[str, StoredObject]) -> None:
        super().__init__(key, objects)
        self._manifest: manifest.Manifest | None = None
        self._reading = threading.Lock()

    @staticmethod
    def parse(key: str, place: str) -> tuple[SegmentKey, str] | None:
        return parse_aiven_key(key, place)

    def file(self, suffix: str, read: Callable[[StoredFile], bytes]) -> StoredFile | None:
        described = self._manifest or self._read_manifest(read)
        if suffix == names.LOG:
            chunks = described.chunks
            log = self.objects[object_keys.LOG]
            return StoredFile(log.key, 0, chunks.file_bytes, chunks, described.is_compressed)
        found = described.indexes.get(_IN_MANIFEST[suffix])
        if found is None or not found.size:
            return None
        stored = whole(self.objects[object_keys.INDEXES])
        if found.position + found.size > stored.size:
            raise Corrupt(f"{stored.key}: has {stored.size} bytes, less than the manifest says")
        return stored._replace(position=found.position, size=found.size)

    def _read_manifest(self, read: Callable[[StoredFile], bytes]) -> manifest.Manifest:
        with self._reading:
            if self._manifest is None:
                found = self.objects[object_keys.MANIFEST]
                try:
                    described = manifest.parse(read(whole(found)))
                    if described.encryption is not None:
                        raise Unsupported("the segment is encrypted, which logfs does not read yet")
                except (Corrupt, Unsupported) as error:
                    raise type(error)(f"{found.key}: {error}") from None
                if described.segment is not None:
                    self.end_offset = described.segment.end_offset
                self._manifest = described
            return self._manifest


class LocalSegment(BucketSegment):
    """A copy by Kafka's `LocalTieredStorage`: each file is an object."""

    suffixes = object_keys.LOCAL_SUFFIXES
    required = frozenset(suffixes) - {names.TXN_INDEX}

    @staticmethod
    def parse(key: str, place: str) -> tuple[SegmentKey, str] | None:
        return parse_local_key(key.removeprefix(place))

    def file(self, suffix: str, read: Callable[[StoredFile], bytes]) -> StoredFile | None:
        found = self.objects.get(suffix)
        if found is None:
            return None
        stored = whole(found)
        if suffix != names.LOG:
            return stored
        last = found.size % _CHUNK_BYTES or min(found.size, _CHUNK_BYTES)
        chunks = ChunkIndex(_CHUNK_BYTES, found.size, _CHUNK_BYTES, last)
        return stored._replace(chunks=chunks)


def find_partitions(store: ObjectStore, place: str) -> dict[TopicPartition, list[PartitionPlace]]:
    """Return the partitions below the key `place`, each with its places: one for each id that the topic has had.

    `place` may be a directory of keys, or what the names of the topics' directories begin with.
    """
    found: dict[TopicPartition, list[PartitionPlace]] = {}
    for prefix, directory in _directories(store, place):
        for each in _partitions_in(store, prefix, directory):
            found.setdefault(each.name, []).append(each)
    return found


def _directories(store: ObjectStore, place: str) -> list[tuple[str, str]]:
    """Return (prefix, directory) of what may be a topic or a partition below `place`."""
    below = f"{place}/" if place else ""
    found = [(below, each) for each in store.level(place)[0]]
    parent, _, beginning = place.rpartition("/")
    if beginning:
        siblings = store.level(parent)[0]
        found += [(place, each) for each in siblings if each.startswith(place) and each != place]
    return found


def _partitions_in(store: ObjectStore, prefix: str, directory: str) -> Iterator[PartitionPlace]:
    name = directory.removeprefix(prefix)
    topic, partition = _AIVEN_TOPIC.fullmatch(name), _LOCAL_PARTITION.fullmatch(name)
    if topic is None:
        return
    directories, objects = store.level(directory)
    if partition and any(LocalSegment.parse(each.key, prefix) for each in objects):
        numbered = [(partition[1], partition[2], partition[3], directory)]
        layout: type[BucketSegment] = LocalSegment
    else:
        numbered = [(topic[1], path.rpartition("/")[2], topic[2], path) for path in directories]
        layout = AivenSegment
    for topic_name, number, topic_id, path in numbered:
        with suppress(LogfsError):
            names.check_topic(topic_name)
            text_to_uuid(topic_id)
            if names.PARTITION.fullmatch(number) and int(number) <= INT32_MAX:
                which = TopicPartition(topic_name, int(number))
                yield PartitionPlace(which, topic_id, f"{path}/", prefix, layout)


def list_segments(
    store: ObjectStore, places: Iterable[PartitionPlace]
) -> tuple[PartitionPlace, list[BucketSegment]]:
    """Return the segments of a partition in the order of their offsets, and their place.

    Of several places, that with the newest object counts: the topic was deleted and created again.
    """
    found = [(place, _segments_in(store, place)) for place in places]
    return max(found, key=lambda each: max((s.modified_ms for s in each[1]), default=-1))


def _segments_in(store: ObjectStore, place: PartitionPlace) -> list[BucketSegment]:
    copies: dict[SegmentKey, dict[str, StoredObject]] = {}
    for each in store.objects(place.prefix):
        parsed = place.layout.parse(each.key, place.place)
        if parsed is not None:
            copies.setdefault(parsed[0], {})[parsed[1]] = each
    newest: dict[int, BucketSegment] = {}
    for key, objects in copies.items():
        if not place.layout.required <= objects.keys():
            continue
        segment = place.layout(key, objects)
        other = newest.get(key.start_offset)
        if other is None or other.modified_ms <= segment.modified_ms:
            newest[key.start_offset] = segment
    return [newest[offset] for offset in sorted(newest)]
