"""`logfs delete-records`: make the records below an offset permanently unreadable."""

from __future__ import annotations

from typing import TYPE_CHECKING

from logfs.cli.common import add_target, ask, existing_target

if TYPE_CHECKING:
    import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments: TARGET, and the first offset that stays readable.

    TARGET names the partition: LOGDIR/PARTITION, or LOGDIR… PARTITION.
    """
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

    This runs retention, which also drops segments that have expired by the topic's settings.
    """
    from logfs.store.admin.requests import DeleteRecords

    wanted = existing_target(arguments.target)
    done = ask(wanted.log_dirs, DeleteRecords(wanted.name, arguments.before))
    print(f"{wanted.name}: the log start offset is {done['log_start_offset']}")
    return 0
