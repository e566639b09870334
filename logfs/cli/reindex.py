"""`logfs reindex`: make all indexes of a partition anew from its log."""

from __future__ import annotations

from typing import TYPE_CHECKING

from logfs.cli.common import add_target, open_for_writing

if TYPE_CHECKING:
    import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """TARGET."""
    add_target(parser)


def run(arguments: argparse.Namespace) -> int:
    """Open the one partition through recovery from its beginning, which makes every index anew."""
    from logfs.log import key_map

    store, partition = open_for_writing(arguments.target, recover=True)
    with store:
        # What the key maps knew is made anew by the next who asks for a key.
        key_map.forget(partition)
        name = partition.name.directory
        print(f"{name}: {len(partition.segments)} segments, {partition.log_end_offset} offsets")
        return 1 if any(segment.damaged for segment in partition.segments) else 0
