"""`logfs compact`: keep only the newest record of each key, now, however little there is to gain."""

from __future__ import annotations

from typing import TYPE_CHECKING

from logfs.cli.common import add_target, open_for_writing, progress_bar

if TYPE_CHECKING:
    import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """TARGET, and whether the newest records are to be compacted too."""
    add_target(parser)
    parser.add_argument(
        "--roll", action="store_true", help="seal the active segment first, so that it is compacted"
    )


def run(arguments: argparse.Namespace) -> int:
    """Compact, with a bar on a terminal; say what it had and what it has."""
    store, partition = open_for_writing(arguments.target)
    with store:
        name = partition.name.directory
        plan = store.compactor.plan(name)
        rolled_bytes = partition.segments[-1].size_bytes if arguments.roll else 0
        # The dirty part is read twice, and the new segments are written.
        total_bytes = plan.clean_bytes + 2 * (plan.cleanable_bytes + rolled_bytes)
        with progress_bar(f"compacting {name}", total_bytes) as bar:
            done = store.compactor.compact(name, roll=arguments.roll, progress=bar.update)
        print(
            f"{name}: {done.bytes_before} bytes in {done.segments_before} segments became "
            f"{done.bytes_after} in {done.segments_after}; clean up to offset {done.first_dirty}"
        )
    return 0
