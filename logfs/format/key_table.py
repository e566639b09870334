"""The file of a key map: where the newest record of each key is, up to some offset of a log.

| bytes | what |
|---|---|
| 0 to 4095 | the header below, and zeros |
| 24 a slot | the table of `logfs.format.sieve`: hash, hash, offset + 1 with NULL_BIT; little-endian |
| 4 a block | the CRC-32C of each 512 slots, big-endian |

The header is big-endian: magic, version, isolation (0 read_uncommitted, 1 read_committed), slots, slots in use, the
first offset that is not covered, the secret of the hash, the last batch that is (base offset, last offset, leader
epoch, size, CRC), the CRC-32C of the block CRCs, and that of the header before it. A file is written once, under
another name, and never changed.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, NamedTuple

from crc32c import crc32c

from logfs.errors import Corrupt

if TYPE_CHECKING:
    from collections.abc import Sequence

    from typing_extensions import Buffer

    from logfs.format.batch import Header

HEADER_BYTES = 4096
SLOT_BYTES = 24
BLOCK_SLOTS = 512
BLOCK_BYTES = BLOCK_SLOTS * SLOT_BYTES

_MAGIC = b"logfskey"
_VERSION = 1
_HEAD = struct.Struct(">8sIIQQQ16sqqiiII")
_CRC = struct.Struct(">I")


class Anchor(NamedTuple):
    """What tells a batch from any other that may come to lie at its offsets."""

    base_offset: int
    last_offset: int
    leader_epoch: int
    size_bytes: int
    crc: int


class TableHeader(NamedTuple):
    """What a key map's file says of itself; `covered` is the first offset that it knows nothing of."""

    isolation: int
    slots: int
    used: int
    covered: int
    secret: bytes
    anchor: Anchor


def anchor_of(header: Header) -> Anchor:
    """The anchor that a batch is."""
    return Anchor(
        header.base_offset,
        header.last_offset,
        header.partition_leader_epoch,
        header.size_bytes,
        header.crc,
    )


def format_header(header: TableHeader, crcs: bytes) -> bytes:
    """The first bytes of the file, up to the zeros."""
    isolation, slots, used, covered, secret, anchor = header
    head = _HEAD.pack(
        _MAGIC, _VERSION, isolation, slots, used, covered, secret, *anchor, crc32c(crcs)
    )
    return head + _CRC.pack(crc32c(head))


def parse_header(data: Buffer, size_bytes: int) -> TableHeader:
    """The header of a file of that length; `Corrupt` if it is none, or of another version, or of another length."""
    view = memoryview(data)
    if len(view) < _HEAD.size + _CRC.size or view[: len(_MAGIC)] != _MAGIC:
        raise Corrupt("is no key map")
    _, version, isolation, slots, used, covered, secret, *rest = _HEAD.unpack_from(view)
    if version != _VERSION:
        raise Corrupt(f"is a key map of version {version}, and this release knows {_VERSION}")
    if _CRC.unpack_from(view, _HEAD.size)[0] != crc32c(view[: _HEAD.size]):
        raise Corrupt("the header's checksum is wrong")
    if slots % BLOCK_SLOTS or not used < slots or size_bytes != file_bytes(slots):
        raise Corrupt(f"{slots} slots, {used} of them used, are not in {size_bytes} bytes")
    return TableHeader(isolation, slots, used, covered, secret, Anchor(*rest[:5]))


def parse_crcs(head: Buffer, crcs: Buffer) -> Sequence[int]:
    """The CRC of each block, held against the header's first bytes; `Corrupt` if they are not what was written."""
    view = memoryview(crcs)
    if _HEAD.unpack_from(head)[-1] != crc32c(view):
        raise Corrupt("the checksum of the checksums is wrong")
    return struct.unpack(f">{len(view) // 4}I", view)


def format_crcs(slots: Buffer) -> bytes:
    """The CRC of each block of a table's bytes."""
    view = memoryview(slots)
    crcs = [crc32c(view[at : at + BLOCK_BYTES]) for at in range(0, len(view), BLOCK_BYTES)]
    return struct.pack(f">{len(crcs)}I", *crcs)


def check_block(data: Buffer, crc: int) -> None:
    """Raise `Corrupt` unless a block is what was written."""
    if crc32c(data) != crc:
        raise Corrupt("the checksum of a block is wrong")


def slots_for(keys: int) -> int:
    """How many slots a table of so many keys has: a third or more stay empty, and the last block is whole."""
    return (keys * 3 // 2 // BLOCK_SLOTS + 1) * BLOCK_SLOTS


def file_bytes(slots: int) -> int:
    """The length of the file of a table of so many slots."""
    return HEADER_BYTES + slots * SLOT_BYTES + 4 * (slots // BLOCK_SLOTS)
