"""Find the partitions of a bucket, and their segments, by the keys of its objects.

Both layouts are recognised, that of Aiven's plugin and that of Kafka's `LocalTieredStorage`, also side by side. Only
complete copies of segments count. In Aiven's layout, a complete copy has the log, the indexes and the manifest. In
the other layout, it has every file except the `.txnindex` and the text index, which are optional. Of several copies
that begin at the same offset, the newest is used.
"""

from __future__ import annotations

import re
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from logfs.errors import LogfsError
from logfs.format.base import names
from logfs.format.base.names import INT32_MAX, TopicPartition
from logfs.format.files.checkpoint import text_to_uuid
from logfs.log.remote.layouts import AivenSegment, BucketSegment, LocalSegment
from logfs.log.remote.object_store import AccessDenied

if TYPE_CHECKING:
    import uuid
    from collections.abc import Iterable, Iterator

    from logfs.log.remote.object_store import ObjectStore, StoredObject

_ID = "[A-Za-z0-9_-]{22}"
_AIVEN_TOPIC = re.compile(rf"(.+)-({_ID})")
_LOCAL_PARTITION = re.compile(rf"(.+)-(0|[1-9][0-9]{{0,9}})-({_ID})")


class PartitionPlace(NamedTuple):
    """Where objects of a partition are: all keys that begin with `prefix`, which ends in a slash.

    `place` is the part of `prefix` before the name of the topic: "a/prod-" for the prefix "a/prod-orders-ID/0/".
    """

    name: TopicPartition
    topic_id: str
    prefix: str
    place: str
    layout: type[BucketSegment]


def find_partitions(store: ObjectStore, place: str) -> dict[TopicPartition, list[PartitionPlace]]:
    """Return the partitions whose objects have keys that begin with `place`, each with a list of its places.

    A partition has one place for each topic id and layout. The argument `place` is the part of the keys before the
    names of the topics, without a slash at its end: "a" for "a/orders-ID/0/", "a/b-" for "a/b-orders-ID/0/", and ""
    for "orders-ID/0/".
    """
    found: dict[TopicPartition, list[PartitionPlace]] = {}
    for prefix, directory in _directories(store, place):
        for each in _partitions_in(store, prefix, directory):
            found.setdefault(each.name, []).append(each)
    return found


def _directories(store: ObjectStore, place: str) -> list[tuple[str, str]]:
    """Return (prefix, key) for each directory whose key may be a prefix and the name of a topic or partition.

    `place` may be a directory, or the beginning of names of directories, so both kinds are returned. For the place
    "a/b", they are the directories in the directory "a/b", with the prefix "a/b/", and the others in the directory
    "a" whose names begin with "b", with the prefix "a/b". The caller must check whether the rest of the key is the
    name of a topic, of a partition, or neither.
    """
    below = f"{place}/" if place else ""
    found = [(below, each) for each in store.level(place)[0]]
    parent, _, beginning = place.rpartition("/")
    if beginning:
        try:
            siblings = store.level(parent)[0]
        except AccessDenied:
            # The credentials may permit listings only below `place`: then `found` has all that can be listed.
            if not found:
                raise
            siblings = []
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
    """Return the place of a partition, and the segments at this place in the order of their offsets.

    If there are several places, as after the topic was deleted and created again, the one with the newest object is
    used.
    """
    found = [(place, _segments_in(store, place)) for place in places]
    return max(found, key=lambda each: max((s.modified_ms for s in each[1]), default=-1))


def _segments_in(store: ObjectStore, place: PartitionPlace) -> list[BucketSegment]:
    copies = copies_in(store, place.layout, place.prefix, place.place).values()
    in_order = sorted(copies, key=lambda each: (each.start_offset, each.modified_ms))
    return list({each.start_offset: each for each in in_order}.values())


def copies_in(
    store: ObjectStore, layout: type[BucketSegment], prefix: str, place: str
) -> dict[tuple[int, uuid.UUID], BucketSegment]:
    """Return the complete copies of segments in a partition's directory `prefix`, by first offset and segment id.

    `layout` parses the keys of the objects. `place` is the part of `prefix` before the name of the topic.
    """
    copies: dict[tuple[int, uuid.UUID], dict[str, StoredObject]] = {}
    for each in store.objects(prefix):
        parsed = layout.parse(each.key, place)
        if parsed is not None:
            start_offset, segment_id, suffix = parsed
            copies.setdefault((start_offset, segment_id), {})[suffix] = each
    return {
        which: layout(*which, objects)
        for which, objects in copies.items()
        if layout.required <= objects.keys()
    }
