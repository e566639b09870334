"""`logfs compact`: keep only the newest record of each key, whatever the partition's dirty ratio."""

from __future__ import annotations

from typing import TYPE_CHECKING

from logfs.cli.common import add_target, ask, existing_target

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
    from logfs.store.admin.requests import Compact

    wanted = existing_target(arguments.target)
    done = ask(
        wanted.log_dirs, Compact(wanted.name, arguments.roll), title=f"compacting {wanted.name}"
    )
    print(
        f"{wanted.name}: {done['bytes_before']} bytes in {done['segments_before']} segments became "
        f"{done['bytes_after']} in {done['segments_after']}; compacted up to offset {done['first_dirty']}"
    )
    return 0
