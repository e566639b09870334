"""Copies a sealed segment into a bucket, in either layout, and reads it back.

The objects are stored in the order in which Aiven's plugin or `LocalTieredStorage` stores them. After each object is
stored, it is read back in full, and its size and CRC are compared with those of the bytes sent. The manifest of
Aiven's layout comes last, so that an interrupted copy has no manifest.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from logfs.errors import RemoteStorageError
from logfs.format.base import names
from logfs.format.base.crc import crc32c
from logfs.format.batches.compression import zstd_frame
from logfs.format.tiered import custom_metadata, manifest, object_keys
from logfs.format.tiered.chunk_index import ChunkIndex
from logfs.format.tiered.custom_metadata import MANIFEST, Layout, StoredSegment
from logfs.log.remote.encryption import OVERHEAD_BYTES, new_data_key
from logfs.log.remote.layouts import CHUNK_BYTES, IN_MANIFEST, LAYOUTS, plain_chunks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from typing_extensions import Buffer

    from logfs.config import BrokerConfig
    from logfs.format.tiered.remote_segment import RemoteSegment
    from logfs.log.remote.tiered_disk import TieredDisk

# How many bytes are requested at once when an object is read back.
_READ_BYTES = 8 << 20


class SegmentContent(NamedTuple):
    """The content of a segment that is to be copied.

    `read(position, size)` returns bytes of the .log file. `files` maps the suffixes of the segment's other files
    (".index") to their contents. `first_offset` is the offset of the first record that is not a control record, None
    if there is no such record. `time_offset` is the last offset of the batch with the greatest timestamp, None if no
    record has a timestamp. `text` tells how many records the segment has, and how many bytes they take as lines of
    text and as JSON envelopes (without topic and partition).
    """

    read: Callable[[int, int], Buffer]
    files: Mapping[str, bytes]
    first_offset: int | None
    time_offset: int | None
    text: tuple[int, int, int]


def upload(
    disk: TieredDisk,
    segment: RemoteSegment,
    content: SegmentContent,
    broker: BrokerConfig,
    spend: Callable[[int], None],
) -> StoredSegment:
    """Copy a segment as the settings of `broker` say, read it back, and return how it is stored.

    `spend` is called before each read of the .log file and before each read of a stored object, with the number of
    bytes to read; it may wait, or raise an error to stop the copy. Raises `RemoteStorageError`, also if the bytes
    read back differ from those sent. After an error, the objects stored so far stay in the bucket.
    """
    sender = _Sender(disk, segment, content, spend, Layout(broker.remote_storage_layout))
    if sender.layout is Layout.LOCAL:
        return sender.send_files()
    # These settings are only for Aiven's layout, whose manifest tells readers how chunks are compressed and
    # encrypted.
    sender.chunk_bytes = broker.remote_storage_chunk_bytes
    sender.compress = broker.remote_storage_compression
    sender.key_id = broker.remote_storage_encryption_key
    return sender.send_objects()


def delete_copy(disk: TieredDisk, segment: RemoteSegment) -> None:
    """Delete the objects of a segment in the reverse order of their upload; missing objects are no error.

    If the layout is not known, as after an interrupted copy, the objects of all `LAYOUTS` are deleted.
    """
    stored = custom_metadata.parse(segment.custom)
    for layout in LAYOUTS.values() if stored is None else [LAYOUTS[stored.layout]]:
        for suffix in reversed(layout.stored):
            disk.objects.delete(layout.key(segment, suffix, disk.place))


@dataclass(slots=True, eq=False)
class _Sender:
    disk: TieredDisk
    segment: RemoteSegment
    content: SegmentContent
    spend: Callable[[int], None]
    layout: Layout
    chunk_bytes: int = CHUNK_BYTES
    # Whether the chunks are compressed with zstd.
    compress: bool = False
    # The id of the RSA key that encrypts the segment's key; "" for no encryption. The manifest is never encrypted.
    key_id: str = ""
    # For the suffix of each object: its CRC-32Cs. The .log file has one for each chunk, any other object only one.
    crcs: dict[str, list[int]] = field(default_factory=dict)

    def send_files(self) -> StoredSegment:
        """Store each file as an object, as `LocalTieredStorage` does."""
        for suffix in LAYOUTS[Layout.LOCAL].stored:
            if suffix == names.LOG:
                self._send(suffix, self._chunks)
            elif suffix in self.content.files:
                self._send_whole(suffix, self.content.files[suffix])
        return self._stored({})

    def send_objects(self) -> StoredSegment:
        """Store the .log file in chunks, the joined indexes, the text index and the manifest, like Aiven's plugin."""
        files, size = self.content.files, self.segment.size_bytes
        key = new_data_key(self.key_id) if self.key_id else None

        def sealed(data: bytes) -> bytes:
            return key.encrypt(data) if key is not None and data else data

        def transformed() -> Iterator[Buffer]:
            for chunk in self._chunks():
                data = zstd_frame(chunk) if self.compress else chunk
                yield data if key is None else key.encrypt(data)

        sizes = self._send(object_keys.LOG, transformed)
        if self.compress:
            chunks = ChunkIndex(self.chunk_bytes, size, sizes, sizes[-1] if sizes else 0)
        else:
            longer = OVERHEAD_BYTES if key is not None and size else 0
            chunks = plain_chunks(self.chunk_bytes, size, longer)
        indexes, slices = manifest.join_indexes(
            {name: sealed(files[suffix]) for suffix, name in IN_MANIFEST.items() if suffix in files}
        )
        self._send_whole(object_keys.INDEXES, indexes)
        text = files.get(names.TEXT_INDEX)
        if text:
            self._send_whole(object_keys.TEXT, sealed(text))
        encryption = None if key is None else key.fields()
        described = manifest.encode(
            manifest.Manifest(chunks, slices, self.compress, encryption, self.segment)
        )
        self._send_whole(object_keys.MANIFEST, described)
        return self._stored({MANIFEST: len(described)})

    def _stored(self, more: Mapping[str, int]) -> StoredSegment:
        content = self.content
        sizes = {suffix: len(data) for suffix, data in content.files.items()}
        log, *small = LAYOUTS[self.layout].stored
        return StoredSegment(
            self.layout,
            self.chunk_bytes,
            self.compress,
            bool(self.key_id),
            {**sizes, **more},
            content.first_offset,
            content.time_offset,
            content.text,
            [*(self.crcs.get(each, [0])[0] for each in small), *self.crcs[log]],
        )

    def _chunks(self) -> Iterator[Buffer]:
        """Yield the .log file in chunks. Raises `RemoteStorageError` if the file is shorter than `segment` says."""
        size, chunk_bytes = self.segment.size_bytes, self.chunk_bytes
        for position in range(0, size, chunk_bytes):
            count = min(chunk_bytes, size - position)
            self.spend(count)
            data = memoryview(self.content.read(position, count))
            if len(data) != count:
                place = self.segment.partition
                raise RemoteStorageError(
                    f"{place.topic}-{place.partition}: the .log file with base offset {self.segment.start_offset} "
                    f"has only {position + len(data)} bytes, but should have {size}; the segment is not copied"
                )
            yield data

    def _send_whole(self, suffix: str, data: bytes) -> None:
        self._send(suffix, lambda: [data])

    def _send(self, suffix: str, body: Callable[[], Iterable[Buffer]]) -> list[int]:
        """Store an object in the parts that `body` yields, read it back, and return the sizes of the parts."""
        store = self.disk.objects
        key = LAYOUTS[self.layout].key(self.segment, suffix, self.disk.place)
        sizes: list[int] = []
        crcs = self.crcs.setdefault(suffix, [])
        crc = 0

        def counted() -> Iterator[Buffer]:
            nonlocal crc
            # Start from zero: a repeated upload sends all bytes again.
            sizes.clear()
            crcs.clear()
            crc = 0
            for data in body():
                sizes.append(len(memoryview(data)))
                crcs.append(crc32c(data))
                crc = crc32c(data, crc)
                yield data

        store.put(key, counted)
        sent = sum(sizes), crc
        try:
            found = self._read_back(key, sent[0])
        except FileNotFoundError:
            raise RemoteStorageError(
                f"{store.url(key)}: was stored, but does not exist when it is read back; find out what deletes "
                "objects, and copy again"
            ) from None
        if found != sent:
            raise RemoteStorageError(
                f"{store.url(key)}: {sent[0]} bytes with the CRC-32C {sent[1]:08x} were stored, but "
                f"{found[0]} bytes with {found[1]:08x} were read back; copy again"
            )
        return sizes

    def _read_back(self, key: str, size: int) -> tuple[int, int]:
        stored = self.disk.objects.size(key)
        crc = 0
        for position in range(0, min(stored, size), _READ_BYTES):
            count = min(_READ_BYTES, size - position)
            self.spend(count)
            crc = crc32c(self.disk.objects.get(key, position, count), crc)
        return stored, crc
