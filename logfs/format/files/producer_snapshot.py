"""Producer snapshot files: the state of each producer of a log at an offset (kafka-storage 9.7)."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, NamedTuple

from logfs.errors import Corrupt
from logfs.format.base.crc import crc32c

if TYPE_CHECKING:
    from collections.abc import Iterable

    from typing_extensions import Buffer

VERSION = 1

HEADER = struct.Struct(">hIi")
"""version, CRC-32C of every byte from the entry count on, entry count"""
ENTRY = struct.Struct(">qhiqiqiq")

# The position in the file of the first byte that the CRC covers. The CRC covers all bytes after its own field.
_CRC_START = 6


class ProducerEntry(NamedTuple):
    """One producer of a snapshot: its epoch, its last batch and its open transaction.

    `last_sequence` and `last_offset` are those of the last record in its last batch, and `offset_delta` is the
    difference between the last and the first offset of that batch. If no batch is known, `last_sequence` and
    `last_offset` are -1 and `offset_delta` is 0. `timestamp` is that of the last batch or transaction marker, in ms.
    `coordinator_epoch` is that of the last transaction marker, or -1 if it is unknown. `current_txn_first_offset` is
    the first offset of the open transaction, or -1 if none is open.
    """

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp: int
    coordinator_epoch: int
    current_txn_first_offset: int


def format_snapshot(entries: Iterable[ProducerEntry]) -> bytes:
    """Return the bytes of a snapshot file with the entries in the given order."""
    packed = [ENTRY.pack(*entry) for entry in entries]
    body = struct.pack(">i", len(packed)) + b"".join(packed)
    return struct.pack(">hI", VERSION, crc32c(body)) + body


def checksum(data: Buffer) -> int:
    """Return the CRC-32C of a snapshot file, computed over all bytes after the CRC field.

    `data` is the whole file.
    """
    return crc32c(memoryview(data)[_CRC_START:])


def parse_snapshot(data: Buffer) -> list[ProducerEntry]:
    """Return the entries of a snapshot file. Raises `Corrupt` for another version, a wrong length or a wrong CRC."""
    view = memoryview(data)
    if len(view) < HEADER.size:
        raise Corrupt(f"producer snapshot: {len(view)} bytes are too few for its header")
    version, crc, count = HEADER.unpack_from(view)
    if version != VERSION:
        raise Corrupt(f"producer snapshot: version {version} is not supported; only {VERSION} is")
    if checksum(view) != crc:
        raise Corrupt("producer snapshot: its CRC does not match its bytes")
    if len(view) != HEADER.size + count * ENTRY.size:
        raise Corrupt(
            f"producer snapshot: its size of {len(view)} bytes does not match the {count} producers in its header"
        )
    return [ProducerEntry(*fields) for fields in ENTRY.iter_unpack(view[HEADER.size :])]
