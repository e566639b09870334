"""The format of a key index file: a hash table that has, for each key of a log, the offset of its newest record.

An index covers the records of the log below one offset, which the header contains. The parts of the file are:

| bytes | content |
|---|---|
| 0 to 4095 | the header below, padded with zeros |
| 24 for each slot | little-endian: a key's hash (16 bytes); offset + 1, bit 63 set if the value is null (8 bytes) |
| 4 for each block of 512 slots | the CRC-32C of the block's bytes, big-endian |

The fields of the header are big-endian: magic, version, isolation (0 read_uncommitted, 1 read_committed), number of
slots, number of slots in use, the first offset that is not covered, the secret key of the hash function, the last
batch that is covered (base offset, last offset, leader epoch, size, CRC), the CRC-32C of the block CRCs, and the
CRC-32C of all header bytes before this field. A file is written under a temporary name, then renamed, and never
changed afterwards.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, NamedTuple

from logfs.errors import Corrupt
from logfs.format.base.crc import crc32c

if TYPE_CHECKING:
    from collections.abc import Sequence

    from typing_extensions import Buffer

    from logfs.format.batches.batch import Header

HEADER_BYTES = 4096
SLOT_BYTES = 24
BLOCK_SLOTS = 512
BLOCK_BYTES = BLOCK_SLOTS * SLOT_BYTES

_MAGIC = b"logfskey"
_VERSION = 1
_HEAD = struct.Struct(">8sIIQQQ16sqqiiII")
_CRC = struct.Struct(">I")


class Anchor(NamedTuple):
    """The fields of a batch header that identify the last batch covered by a key index.

    If the log is truncated and other records are appended, the batch that the log then has at the anchor's offsets
    differs from the anchor in at least one field. The difference shows that the index is outdated.
    """

    base_offset: int
    last_offset: int
    leader_epoch: int
    size_bytes: int
    crc: int


class TableHeader(NamedTuple):
    """The header of a key index's file.

    `isolation` is 0 for read_uncommitted, 1 for read_committed. `slots` is the number of slots, `used` how many of
    them are in use. The index covers the offsets below `covered`; `anchor` identifies the last batch that it covers.
    `secret` is the key of the hash function, 16 bytes.
    """

    isolation: int
    slots: int
    used: int
    covered: int
    secret: bytes
    anchor: Anchor


def anchor_of(header: Header) -> Anchor:
    """Return the fields of a batch's header that identify the batch."""
    return Anchor(
        header.base_offset,
        header.last_offset,
        header.partition_leader_epoch,
        header.size_bytes,
        header.crc,
    )


def format_header(header: TableHeader, crcs: bytes) -> bytes:
    """Return the header as the first bytes of the file, without the zeros that fill it up to 4096 bytes.

    `crcs` are the CRCs of the table's blocks, as `format_crcs` returns them.
    """
    isolation, slots, used, covered, secret, anchor = header
    head = _HEAD.pack(
        _MAGIC, _VERSION, isolation, slots, used, covered, secret, *anchor, crc32c(crcs)
    )
    return head + _CRC.pack(crc32c(head))


def parse_header(data: Buffer, size_bytes: int) -> TableHeader:
    """Return the header of a key index's file that is `size_bytes` long; `data` is the beginning of the file.

    Raises `Corrupt` if the file is not a key index, is of another version, or has a wrong header CRC, or if its size
    does not match the number of slots.
    """
    view = memoryview(data)
    if len(view) < _HEAD.size + _CRC.size or view[: len(_MAGIC)] != _MAGIC:
        raise Corrupt("is not a key index")
    _, version, isolation, slots, used, covered, secret, *rest = _HEAD.unpack_from(view)
    if version != _VERSION:
        raise Corrupt(
            f"is a key index of version {version}, but this release supports {_VERSION}; delete it to have it rebuilt"
        )
    if _CRC.unpack_from(view, _HEAD.size)[0] != crc32c(view[: _HEAD.size]):
        raise Corrupt("the CRC of the header does not match its bytes")
    if slots % BLOCK_SLOTS or not used < slots or size_bytes != file_bytes(slots):
        raise Corrupt(
            f"the header ({slots} slots, {used} in use) does not match the file size of {size_bytes} bytes"
        )
    return TableHeader(isolation, slots, used, covered, secret, Anchor(*rest[:5]))


def parse_crcs(head: Buffer, crcs: Buffer) -> Sequence[int]:
    """Return the CRC of each block of a key index's file.

    `head` is the beginning of the file, `crcs` are its last bytes, after the table. Raises `Corrupt` if `crcs` does
    not match the CRC of the block CRCs in the header.
    """
    view = memoryview(crcs)
    if _HEAD.unpack_from(head)[-1] != crc32c(view):
        raise Corrupt("the block CRCs do not match their CRC in the header")
    return struct.unpack(f">{len(view) // 4}I", view)


def format_crcs(slots: Buffer) -> bytes:
    """Return the CRCs of a table's blocks as the bytes to write to the file, 4 for each block.

    `slots` has the bytes of the whole table.
    """
    view = memoryview(slots)
    crcs = [crc32c(view[at : at + BLOCK_BYTES]) for at in range(0, len(view), BLOCK_BYTES)]
    return struct.pack(f">{len(crcs)}I", *crcs)


def check_block(data: Buffer, crc: int) -> None:
    """Raise `Corrupt` unless the bytes of a block match its CRC."""
    if crc32c(data) != crc:
        raise Corrupt("the CRC of a block of the hash table does not match its bytes")


def slots_for(keys: int) -> int:
    """Return the number of slots of a table for `keys` keys: a multiple of BLOCK_SLOTS.

    At least a third of the slots stay empty.
    """
    return (keys * 3 // 2 // BLOCK_SLOTS + 1) * BLOCK_SLOTS


def file_bytes(slots: int) -> int:
    """Return the size in bytes of a key index file whose table has `slots` slots."""
    return HEADER_BYTES + slots * SLOT_BYTES + 4 * (slots // BLOCK_SLOTS)
