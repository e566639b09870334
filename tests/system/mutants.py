"""A `logfs` with a seeded bug, for the tests that show that a campaign finds it.

Run as a module: `python -m tests.system.mutants NAME COMMAND …` is `logfs COMMAND …` with the bug of that name.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from logfs.cli import main
from logfs.log.append.partition import Partition
from logfs.log.read.text_view import TextView
from logfs.log.segment.segment import Segment
from logfs.mount.growing_sizes import GrowingSizes
from logfs.mount.nodes.append import AppendHandle

if TYPE_CHECKING:
    from collections.abc import Callable


def one_inode_for_all() -> None:
    """All open files of a growing text share one kernel inode."""

    def may_look_up(self: GrowingSizes, node: Any, size: int, thread: int) -> bool:
        return True

    async def grow(self: GrowingSizes, node: Any, size: int, thread: int) -> int:
        return size

    GrowingSizes.may_look_up = may_look_up  # type: ignore[method-assign]
    GrowingSizes.may_open = lambda self, node, thread: True  # type: ignore[method-assign]
    GrowingSizes.grow = grow  # type: ignore[method-assign]
    GrowingSizes.timeout = lambda self, node, end_offset, thread: 0.0  # type: ignore[method-assign]


def size_told_too_early() -> None:
    """Every process that asks for the size is treated as the only reader."""
    GrowingSizes._is_alone = lambda self, node, thread: True  # type: ignore[method-assign]


def text_ends_one_byte_too_late() -> None:
    """The size of a text view is one byte too large."""
    size = TextView.size
    TextView.size = property(lambda self: size.fget(self) + 1)  # type: ignore[assignment,misc]


def size_kept_too_long() -> None:
    """The kernel keeps sizes, and an append does not invalidate them."""
    GrowingSizes.pop_stale = lambda self, partition: set()  # type: ignore[method-assign]


def no_fsync() -> None:
    """An fsync succeeds, but nothing is synced."""

    def flush(self: Partition) -> int:
        self.flusher.recovery_point = self.log_end_offset
        return self.recovery_point

    Partition.flush = flush  # type: ignore[method-assign]


def answered_before_the_sync() -> None:
    """A write through O_DSYNC is answered like any other write, without a sync."""
    AppendHandle.needs_sync = lambda self: False  # type: ignore[method-assign]


def log_not_synced() -> None:
    """A flush syncs the indexes, but not the records."""

    def flush(self: Segment, *, indexes: bool) -> None:
        if indexes:
            for index in (*self.indexes, self.txn_index):
                index.flush()

    Segment.flush = flush  # type: ignore[method-assign]


MUTANTS: dict[str, Callable[[], None]] = {
    mutant.__name__: mutant
    for mutant in (
        one_inode_for_all,
        size_told_too_early,
        text_ends_one_byte_too_late,
        size_kept_too_long,
        no_fsync,
        answered_before_the_sync,
        log_not_synced,
    )
}

if __name__ == "__main__":
    name = sys.argv.pop(1)
    MUTANTS[name]()
    sys.exit(main())
