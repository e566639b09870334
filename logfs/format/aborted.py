"""Entries of a .txnindex file: the aborted transactions whose marker lies in the segment (kafka-storage 9.5)."""

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
    """A transaction that was given up: its records lie in [first_offset, last_offset], among others' records.

    `last_offset` is the abort marker's own. `last_stable_offset` is where the next open transaction began when
    the marker was written, or the offset behind the marker.
    """

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int

    def pack(self) -> bytes:
        """The entry's 34 bytes."""
        return ENTRY.pack(VERSION, *self)


def parse_aborted(data: Buffer) -> list[AbortedTransaction]:
    """The entries of a .txnindex file, as far as they are whole. Raises `Corrupt` for a later version."""
    view = memoryview(data)
    found: list[AbortedTransaction] = []
    for version, *fields in ENTRY.iter_unpack(view[: len(view) // ENTRY.size * ENTRY.size]):
        if version > VERSION:
            raise Corrupt(f"transaction index: entry {len(found)} has version {version}, not 0")
        found.append(AbortedTransaction(*fields))
    return found
