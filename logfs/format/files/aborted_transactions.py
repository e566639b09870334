"""The entries of a .txnindex file: transactions whose abort marker lies in the segment (kafka-storage 9.5)."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, NamedTuple

from logfs.errors import Corrupt

if TYPE_CHECKING:
    from typing_extensions import Buffer

VERSION = 0

ENTRY = struct.Struct(">hqqqq")
"""version, then the fields of `AbortedTransaction`"""


class AbortedTransaction(NamedTuple):
    """A transaction that was aborted. Its records have offsets in [first_offset, last_offset].

    Other records may also lie in this range. `last_offset` is the offset of the abort marker. `last_stable_offset` is
    the smallest first offset of the other transactions that were open when the marker was written, or the offset
    after the marker if none was open.
    """

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int

    def pack(self) -> bytes:
        """Return the 34 bytes of the transaction's entry in a .txnindex file: the version 0 and the fields."""
        return ENTRY.pack(VERSION, *self)


def parse_aborted(data: Buffer) -> list[AbortedTransaction]:
    """Return the entries of a .txnindex file; an incomplete last entry is ignored.

    Raises `Corrupt` for a version above 0. As in Kafka, an entry with a negative version is returned like any other.
    """
    return [entry for _, entry in parse_entries(data)]


def parse_entries(data: Buffer) -> list[tuple[int, AbortedTransaction]]:
    """Return the entries of a .txnindex file as (version, entry); an incomplete last entry is ignored.

    `version` is the first of the two bytes of the version, as a signed number: Kafka reads only this byte. It is 0
    for a valid entry, and negative for an invalid one. Raises `Corrupt` for a version above 0.
    """
    view = memoryview(data)
    found: list[tuple[int, AbortedTransaction]] = []
    for number, *fields in ENTRY.iter_unpack(view[: len(view) // ENTRY.size * ENTRY.size]):
        version = number >> 8
        if version > VERSION:
            raise Corrupt(f"transaction index: entry {len(found)} has version {version}, not 0")
        found.append((version, AbortedTransaction(*fields)))
    return found
