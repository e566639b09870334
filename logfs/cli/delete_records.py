"""`logfs delete-records`: make the records below an offset permanently unreadable."""

from __future__ import annotations

from typing import TYPE_CHECKING

from logfs.cli.common import add_target, open_for_writing

if TYPE_CHECKING:
    import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments: TARGET (the partition), and the first offset that stays readable."""
    add_target(parser)
    parser.add_argument(
        "--before",
        type=int,
        required=True,
        metavar="OFFSET",
        help="the first offset that stays readable; -1 for the log end",
    )


def run(arguments: argparse.Namespace) -> int:
    """Raise the log start offset to the given offset, and drop the segments that lie below it.

    Retention runs too, so segments that have expired by the topic's settings are also dropped.
    """
    store, partition = open_for_writing(arguments.target)
    with store:
        name = partition.name.directory
        store.delete_records(name, arguments.before)
        # Retention also drops the segments that are expired by the topic's settings.
        store.retain()
        print(f"{name}: starts at {partition.log_start_offset}")
    return 0
