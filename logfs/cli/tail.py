"""`logfs tail`: the last records, and those to come."""

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
    log = OpenTarget(arguments.target, arguments.isolation)
    with log.store:
        start = log.ask(lambda reader: reader.offset_of_last(arguments.lines))
        end = log.reader.log_end_offset
        whole = print_records(log, start, end, arguments)
        while arguments.follow:
            time.sleep(_POLL_SECONDS)
            if log.look_again():
                # Deleted and made again.
                end = log.reader.log_start_offset
            # Asked before it prints: what is appended meanwhile is the next turn's. Less than it was, if the log was
            # truncated.
            start, end = end, log.reader.log_end_offset
            whole &= print_records(log, start, end, arguments)
    return 0 if whole else 1
