"""The results of an append."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from logfs.errors import LogfsError


class Appended(NamedTuple):
    """The result of an append: the offsets assigned, how much of the input was taken, and why the rest was refused.

    `consumed` counts bytes of lines, or records. If nothing was appended, `last_offset` is `first_offset` - 1.
    `refused` is None if all of the input is in the log.
    """

    first_offset: int
    last_offset: int
    consumed: int
    refused: LogfsError | OSError | None


class AppendedBatch(NamedTuple):
    """The offsets of a producer's batch in the log. A `duplicate` was in the log before, at these offsets."""

    first_offset: int
    last_offset: int
    duplicate: bool
