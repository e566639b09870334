"""`logfs tail`: print the last records, and follow the log."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from logfs.cli.common import add_isolation, add_target
from logfs.cli.output import add_form, print_records
from logfs.cli.reading import OpenTarget

if TYPE_CHECKING:
    import argparse

_POLL_SECONDS = 0.5


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments: TARGET (the partition), the number of records, whether to follow, and the output's form."""
    add_target(parser)
    parser.add_argument(
        "-n", "--lines", type=int, default=10, metavar="N", help="the last N records (10)"
    )
    parser.add_argument(
        "-f", "--follow", action="store_true", help="continue with records as they are appended"
    )
    add_isolation(parser)
    add_form(parser)


def run(arguments: argparse.Namespace) -> int:
    """Print the last records, and with `--follow` also those appended later.

    Another process may append to the partition: the files are checked for changes twice a second. The exit code is 1
    if a record could not be read.
    """
    log = OpenTarget(arguments.target, arguments.isolation)
    with log.store:
        start = log.ask(lambda reader: reader.offset_of_last(arguments.lines))
        end = log.reader.log_end_offset
        whole = print_records(log, start, end, arguments)
        while arguments.follow:
            time.sleep(_POLL_SECONDS)
            if log.look_again():
                # The partition was deleted and created again.
                end = log.reader.log_start_offset
            # Read the end before printing: records appended during the output belong to the next turn. The end is
            # lower than before if the log was truncated.
            start, end = end, log.reader.log_end_offset
            whole &= print_records(log, start, end, arguments)
    return 0 if whole else 1
