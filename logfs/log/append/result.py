"""The results of appends."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from logfs.errors import LogfsError


class AppendResult(NamedTuple):
    """The result of an append or a write: the offsets assigned, how much was consumed, and why the rest was refused.

    `consumed` counts bytes if the input was lines, else records. If nothing was appended, `last_offset` is
    `first_offset` - 1. `refused` is None if no part of the input was refused.
    """

    first_offset: int
    last_offset: int
    consumed: int
    refused: LogfsError | OSError | None = None

    @property
    def is_empty(self) -> bool:
        """Whether nothing was appended."""
        return self.last_offset < self.first_offset


class AppendedBatch(NamedTuple):
    """The offsets of a producer's batch in the log, and its greatest timestamp there (ms).

    `duplicate` is True if the log already had the batch, at these offsets, and nothing was appended.
    """

    first_offset: int
    last_offset: int
    max_timestamp: int
    duplicate: bool
