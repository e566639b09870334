"""The names of the objects of a segment, in the layout of Aiven's plugin and in that of Kafka's `LocalTieredStorage`.

Aiven's plugin: `{prefix}{topic}-{topic id}/{partition}/{first offset, 20 digits}-{segment id}.{suffix}`, with nothing
between the prefix and the topic. `LocalTieredStorage`: `{prefix}{topic}-{partition}-{topic id}/{first offset, 20
digits}-{segment id}{suffix}`, where the prefix is a directory. Ids are UUIDs in Kafka's form of 22 characters.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from logfs.errors import Corrupt
from logfs.format.base.names import INT32_MAX
from logfs.format.files.checkpoint import text_to_uuid, uuid_to_text

if TYPE_CHECKING:
    import uuid

    from logfs.format.tiered.remote_segment import RemotePartition, RemoteSegment

LOG = "log"
INDEXES = "indexes"
MANIFEST = "rsm-manifest"
AIVEN_SUFFIXES = (LOG, INDEXES, MANIFEST)
"""The objects of a segment in the order in which they are stored: a segment with a manifest is complete."""

TEXT = "textindex"
"""The object that logfs adds to a segment: its text index. Other programs ignore it."""

LOCAL_SUFFIXES = (
    ".log",
    ".index",
    ".timeindex",
    ".txnindex",
    ".snapshot",
    ".leader_epoch_checkpoint",
)
"""The files of a segment in `LocalTieredStorage`. `.txnindex` exists only if the segment has aborted transactions."""

LOCAL_TEXT = f".{TEXT}"
"""The suffix of the text index, the file that logfs adds to a segment in `LocalTieredStorage`."""

_ID = "([A-Za-z0-9_-]{22})"
_SEGMENT = rf"([0-9]{{20}})-{_ID}"
_AIVEN = re.compile(
    rf"(?P<topic>[^/]+)-{_ID}/(0|[1-9][0-9]{{0,9}})/{_SEGMENT}\.({'|'.join((*AIVEN_SUFFIXES, TEXT))})"
)
_FILE = "|".join(map(re.escape, (*LOCAL_SUFFIXES, LOCAL_TEXT)))
_LOCAL = re.compile(rf"(?P<topic>[^/]+)-(0|[1-9][0-9]{{0,9}})-{_ID}/{_SEGMENT}({_FILE})")


def aiven_key(segment: RemoteSegment, suffix: str, prefix: str = "") -> str:
    """Return the name of an object of a segment in the layout of Aiven's plugin; it begins with `prefix`.

    `suffix` says which object of the segment, such as "log" for the .log file.
    """
    directory = aiven_directory(segment.partition, prefix)
    return f"{directory}{segment.start_offset:020}-{uuid_to_text(segment.segment_id)}.{suffix}"


def aiven_directory(partition: RemotePartition, prefix: str = "") -> str:
    """Return the common beginning of the names of a partition's objects in the layout of Aiven's plugin."""
    topic = f"{partition.topic}-{uuid_to_text(partition.topic_id)}"
    return f"{prefix}{topic}/{partition.partition}/"


def local_key(segment: RemoteSegment, suffix: str, prefix: str = "") -> str:
    """Return the name of an object of a segment in the layout of `LocalTieredStorage`; it begins with `prefix`.

    `suffix` says which object of the segment, such as ".log" for the .log file.
    """
    name = f"{segment.start_offset:020}-{uuid_to_text(segment.segment_id)}"
    return f"{local_directory(segment.partition, prefix)}{name}{suffix}"


def local_directory(partition: RemotePartition, prefix: str = "") -> str:
    """Return the common beginning of the names of a partition's objects in the layout of `LocalTieredStorage`."""
    return f"{prefix}{partition.topic}-{partition.partition}-{uuid_to_text(partition.topic_id)}/"


def parse_aiven_key(key: str, prefix: str = "") -> tuple[int, uuid.UUID, str] | None:
    """Return a segment's first offset and id, and the suffix, from the name of an object of Aiven's plugin.

    Returns None for any other name.
    """
    match = _AIVEN.fullmatch(key.removeprefix(prefix)) if key.startswith(prefix) else None
    if match is None:
        return None
    _, topic_id, partition, offset, segment_id, suffix = match.groups()
    return _checked(topic_id, partition, offset, segment_id, suffix)


def parse_local_key(key: str, prefix: str = "") -> tuple[int, uuid.UUID, str] | None:
    """Return a segment's first offset and id, and the suffix, from the name of an object of `LocalTieredStorage`.

    Returns None for any other name.
    """
    match = _LOCAL.fullmatch(key.removeprefix(prefix)) if key.startswith(prefix) else None
    if match is None:
        return None
    _, partition, topic_id, offset, segment_id, suffix = match.groups()
    return _checked(topic_id, partition, offset, segment_id, suffix)


def _checked(
    topic_id: str, partition: str, offset: str, segment_id: str, suffix: str
) -> tuple[int, uuid.UUID, str] | None:
    try:
        text_to_uuid(topic_id)
        found = text_to_uuid(segment_id)
    except Corrupt:
        return None
    return (int(offset), found, suffix) if int(partition) <= INT32_MAX else None
