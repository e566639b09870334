"""The custom metadata (Kafka's term) that logfs adds to the description of a remote segment that it has copied.

The metadata have the sizes of the segment's objects, and the size of the text that its records are rendered to. A
reader thus knows these sizes without a request to the object store. Kafka does not interpret custom metadata.

The bytes are a section of tagged fields, as in Kafka's flexible messages. logfs stores all values in one field with a
tag of its own. Aiven's plugin also writes such a section, with other tags.
"""

from __future__ import annotations

import struct
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

from logfs.errors import Corrupt
from logfs.format.base import names
from logfs.format.base.varint import VARLONG_BYTES, decode, decode_unsigned, encode_unsigned
from logfs.format.base.varint import encode as encode_number
from logfs.format.tiered import object_keys

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_TAG = 9000
_VERSION = 0
_CRC_BYTES = 4

EPOCHS = ".leader_epoch_checkpoint"
"""The suffix of the leader epochs that are copied with a segment."""

MANIFEST = f".{object_keys.MANIFEST}"
"""The suffix of the manifest, which only the layout of Aiven's plugin has."""

# The files whose sizes are in the custom metadata, in this order. The .log file is not listed, because its size is in
# the field `segmentSizeInBytes` of Kafka's metadata record.
_FILES = (
    names.OFFSET_INDEX,
    names.TIME_INDEX,
    names.SNAPSHOT,
    EPOCHS,
    names.TXN_INDEX,
    names.TEXT_INDEX,
    MANIFEST,
)


class Layout(Enum):
    """The layout of a segment's objects: that of Aiven's plugin or that of Kafka's `LocalTieredStorage`."""

    AIVEN = "aiven"
    LOCAL = "local"


_LAYOUTS = (Layout.AIVEN, Layout.LOCAL)


class StoredSegment(NamedTuple):
    """How logfs has stored a segment. All sizes are those before compression and encryption.

    - `chunk_bytes` is the size of a chunk of the .log file. The chunks are compressed if `is_compressed`. Everything
      but the manifest is encrypted if `is_encrypted`.
    - `sizes` maps the suffix of each file except the .log file (such as ".index") to its size in bytes. A file that
      is empty or does not exist is left out.
    - `first_offset` is the offset of the first record that is not a control record; None if the segment has no such
      record.
    - `time_offset` is the last offset of the batch with the greatest timestamp; None if no record has a timestamp.
    - `text` has the three numbers of a `TextSize`: how many records the segment has, and how many bytes they take as
      lines of text and as JSON envelopes (without topic and partition).
    - `crcs` has CRC-32Cs of the stored bytes: first one for each object except the .log file, in the order of
      `BucketSegment.stored` (0 for a missing object), then one for each chunk of the .log file. It is empty if the
      CRCs are not known.
    """

    layout: Layout
    chunk_bytes: int
    is_compressed: bool
    is_encrypted: bool
    sizes: Mapping[str, int]
    first_offset: int | None
    time_offset: int | None
    text: tuple[int, int, int]
    crcs: Sequence[int] = ()


def encode(stored: StoredSegment) -> bytes:
    """Return the custom metadata of a segment: about 100 bytes, and four for each chunk.

    Kafka limits the custom metadata that a plugin returns. This limit does not apply here, because logfs writes the
    metadata record itself.
    """
    numbers = (
        _VERSION,
        _LAYOUTS.index(stored.layout),
        stored.chunk_bytes,
        stored.is_compressed | stored.is_encrypted << 1,
        _or_zero(stored.first_offset),
        _or_zero(stored.time_offset),
        *stored.text,
        *(stored.sizes.get(suffix, 0) for suffix in _FILES),
    )
    sizes = b"".join(map(encode_number, numbers))
    crcs = b"".join(crc.to_bytes(_CRC_BYTES, "big") for crc in stored.crcs)
    field = encode_unsigned(len(sizes)) + sizes + crcs
    return b"".join(map(encode_unsigned, (1, _TAG, len(field)))) + field


def parse(custom: bytes | None) -> StoredSegment | None:
    """Return the `StoredSegment` that the custom metadata of a remote segment describe.

    Returns None if there are no metadata, or if another program or a later logfs wrote them. Raises `Corrupt` if the
    metadata are malformed.
    """
    field = _field(custom or b"\0")
    if field is None:
        return None
    numbers = []
    length, at = decode_unsigned(field, 0)
    end = at + length
    if end > len(field) or (len(field) - end) % _CRC_BYTES:
        raise Corrupt(
            f"custom metadata: the lengths in the field do not match its size of {len(field)} bytes"
        )
    while at < end:
        number, at = decode(field, at, VARLONG_BYTES)
        numbers.append(number)
    if not numbers or numbers[0] != _VERSION:
        return None
    try:
        _, layout, chunk_bytes, changes, first_offset, time_offset, *text = numbers[:9]
        sizes = dict(zip(_FILES, numbers[9:], strict=True))
        if min(numbers) < 0 or not chunk_bytes:
            raise ValueError
        return StoredSegment(
            _LAYOUTS[layout],
            chunk_bytes,
            bool(changes & 1),
            bool(changes & 2),
            {suffix: size for suffix, size in sizes.items() if size},
            first_offset - 1 if first_offset else None,
            time_offset - 1 if time_offset else None,
            (text[0], text[1], text[2]),
            struct.unpack(f">{(len(field) - end) // _CRC_BYTES}I", field[end:]),
        )
    except (ValueError, IndexError):
        raise Corrupt(
            f"custom metadata: its {len(numbers)} numbers do not describe a segment: there are too few or too many, "
            "one is negative, the chunks have no size, or the layout is unknown"
        ) from None


def _or_zero(offset: int | None) -> int:
    return 0 if offset is None else offset + 1


def _field(custom: bytes) -> bytes | None:
    """Return the bytes of logfs's field in a section of tagged fields; None if the section has no such field.

    Raises `Corrupt` if the section is malformed.
    """
    count, at = decode_unsigned(custom, 0)
    for _ in range(count):
        tag, at = decode_unsigned(custom, at)
        size, at = decode_unsigned(custom, at)
        if at + size > len(custom):
            raise Corrupt(
                f"custom metadata: a field of {size} bytes does not fit in {len(custom)} bytes"
            )
        if tag == _TAG:
            return custom[at : at + size]
        at += size
    return None
