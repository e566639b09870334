"""`logfs compact`: keep only the newest record of each key. Compact now, however small the gain is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from logfs.cli.common import add_target, open_for_writing, progress_bar

if TYPE_CHECKING:
    import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments: TARGET (the partition), and whether to seal and compact the active segment, too."""
    add_target(parser)
    parser.add_argument(
        "--roll", action="store_true", help="seal the active segment first, so that it is compacted"
    )


def run(arguments: argparse.Namespace) -> int:
    """Compact the partition, with a progress bar on a terminal, and print its size before and after."""
    store, partition = open_for_writing(arguments.target)
    with store:
        name = partition.name.directory
        plan = store.compactor.plan(name)
        if arguments.roll:
            rolled_bytes = partition.segments[-1].size_bytes
            plan = plan._replace(cleanable_bytes=plan.cleanable_bytes + rolled_bytes)
        with progress_bar(f"compacting {name}", plan.work_bytes) as bar:
            done = store.compactor.compact(name, roll=arguments.roll, progress=bar.update)
        print(
            f"{name}: {done.bytes_before} bytes in {done.segments_before} segments became "
            f"{done.bytes_after} in {done.segments_after}; clean up to offset {done.first_dirty}"
        )
    return 0
