"""What an append gives back."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from logfs.errors import LogfsError


class Appended(NamedTuple):
    """What came of an append: the offsets given, how much of the input is in the log, and why it is not all.

    `consumed` counts bytes of lines, or records. With nothing appended, `last_offset` is `first_offset` - 1.
    """

    first_offset: int
    last_offset: int
    consumed: int
    refused: LogfsError | OSError | None


class AppendedBatch(NamedTuple):
    """Where a producer's batch is in the log; a `duplicate` was there already, with these offsets."""

    first_offset: int
    last_offset: int
    duplicate: bool
