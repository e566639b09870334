"""`logfs tail`: the last records, and those to come."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from logfs.cli.common import add_isolation, add_target, isolation_level, open_for_reading
from logfs.cli.output import add_form, print_records

if TYPE_CHECKING:
    import argparse

_POLL_SECONDS = 0.5


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """TARGET, how many, whether to follow, and how."""
    add_target(parser)
    parser.add_argument(
        "-n", "--lines", type=int, default=10, metavar="N", help="the last N records (10)"
    )
    parser.add_argument("-f", "--follow", action="store_true", help="go on with what is appended")
    add_isolation(parser)
    add_form(parser)


def run(arguments: argparse.Namespace) -> int:
    """Print them. Following works beside whoever appends: the files are looked at again twice a second."""
    isolation = isolation_level(arguments.isolation)
    store, log = open_for_reading(arguments.target)
    with store:
        partition = log.isolated(isolation)
        start = partition.offset_of_last(arguments.lines)
        whole = print_records(partition, start, None, arguments)
        end = partition.log_end_offset
        while arguments.follow:
            time.sleep(_POLL_SECONDS)
            store.refresh()
            before, log = log, store[log.name.directory]
            if log is not before:
                # Deleted and made again.
                partition = log.isolated(isolation)
                end = partition.log_start_offset
            if partition.log_end_offset > end:
                whole &= print_records(partition, end, None, arguments)
            # Less than it was, if the log was truncated.
            end = partition.log_end_offset
    return 0 if whole else 1
