"""Buckets that are filled from a log directory, as Aiven's plugin and Kafka's `LocalTieredStorage` fill them."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from logfs.format.base import names
from logfs.format.batches.compression import zstd_frame
from logfs.format.tiered import manifest, object_keys
from logfs.format.tiered.chunk_index import ChunkIndex
from logfs.format.tiered.remote_segment import RemotePartition, RemoteSegment, SegmentState

if TYPE_CHECKING:
    from pathlib import Path

Put = Callable[[str, bytes], object]
Segment = tuple[int, int]


def sealed_segments(partition: Path, end_offset: int) -> Iterator[Segment]:
    """Yield (first offset, next offset) of the segments in a partition directory; the last one ends at an offset."""
    bases = sorted(int(path.stem) for path in partition.glob("*.log"))
    yield from zip(bases, [*bases[1:], end_offset], strict=True)


def new_copy(partition: Path, segment: Segment, topic_id: uuid.UUID) -> RemoteSegment:
    """Return the description of a new copy of a segment in a partition directory."""
    topic, _, number = partition.name.rpartition("-")
    base, following = segment
    return RemoteSegment(
        RemotePartition(topic_id, topic, int(number)),
        uuid.uuid4(),
        base,
        following - 1,
        0,
        0,
        0,
        [(0, base)],
        (partition / (names.stem(base) + names.LOG)).stat().st_size,
        state=SegmentState.COPY_SEGMENT_FINISHED,
    )


def put_aiven(
    put: Put,
    partition: Path,
    segment: Segment,
    topic_id: uuid.UUID,
    *,
    prefix: str = "",
    chunk_bytes: int = 4 << 20,
    compressed: bool = False,
    copy: RemoteSegment | None = None,
) -> RemoteSegment:
    """Store a segment as Aiven's plugin does: log, indexes, manifest."""
    copy = copy or new_copy(partition, segment, topic_id)
    files = _files(partition, *segment)
    log = files.pop(names.LOG)
    chunks = [log[at : at + chunk_bytes] for at in range(0, len(log), chunk_bytes)]
    stored = [zstd_frame(chunk) for chunk in chunks] if compressed else chunks
    sizes = [len(each) for each in stored]
    index = ChunkIndex(
        chunk_bytes,
        len(log),
        sizes if compressed else min(chunk_bytes, len(log)),
        sizes[-1] if sizes else 0,
    )
    by_name = {
        manifest.OFFSET: files[names.OFFSET_INDEX],
        manifest.TIMESTAMP: files[names.TIME_INDEX],
        manifest.PRODUCER_SNAPSHOT: files.get(names.SNAPSHOT, b""),
        manifest.LEADER_EPOCH: files[".leader_epoch_checkpoint"],
    }
    if names.TXN_INDEX in files:
        by_name[manifest.TRANSACTION] = files[names.TXN_INDEX]
    indexes, slices = manifest.join_indexes(by_name)
    content = manifest.Manifest(index, slices, compressed, None, copy)
    put(object_keys.aiven_key(copy, object_keys.LOG, prefix), b"".join(stored))
    put(object_keys.aiven_key(copy, object_keys.INDEXES, prefix), indexes)
    put(object_keys.aiven_key(copy, object_keys.MANIFEST, prefix), manifest.encode(content))
    return copy


def put_local(
    put: Put, partition: Path, segment: Segment, topic_id: uuid.UUID, *, prefix: str = ""
) -> RemoteSegment:
    """Store a segment as Kafka's `LocalTieredStorage` does: a file each."""
    copy = new_copy(partition, segment, topic_id)
    files = {names.SNAPSHOT: b"", **_files(partition, *segment)}
    for suffix, content in files.items():
        put(prefix + object_keys.local_key(copy, suffix), content)
    return copy


def _files(partition: Path, base: int, following: int) -> dict[str, bytes]:
    found = {}
    for suffix in (names.LOG, names.OFFSET_INDEX, names.TIME_INDEX, names.TXN_INDEX):
        path = partition / (names.stem(base) + suffix)
        if path.exists():
            found[suffix] = path.read_bytes()
    snapshot = partition / (names.stem(following) + names.SNAPSHOT)
    if snapshot.exists():
        found[names.SNAPSHOT] = snapshot.read_bytes()
    found[".leader_epoch_checkpoint"] = (partition / "leader-epoch-checkpoint").read_bytes()
    return found
