"""`logfs reindex`: rebuild all indexes of a partition from its log."""

from __future__ import annotations

from typing import TYPE_CHECKING

from logfs.cli.common import add_target, open_for_writing

if TYPE_CHECKING:
    import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the TARGET argument: the partition whose indexes are rebuilt."""
    add_target(parser)


def run(arguments: argparse.Namespace) -> int:
    """Recover the partition from its beginning, which rebuilds every index; exit code 1 if a segment is damaged."""

    store, partition = open_for_writing(arguments.target, recover=True)
    with store:
        # Delete the key indexes, too: the next lookup by key rebuilds them.
        partition.forget_keys()
        name = partition.name.directory
        print(
            f"{name}: {len(partition.segments)} segments, log end offset {partition.log_end_offset}"
        )
        return 1 if partition.state.damaged else 0
