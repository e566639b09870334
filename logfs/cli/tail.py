"""`logfs tail`: print the last records, and follow the log."""

from __future__ import annotations

from typing import TYPE_CHECKING

from logfs.cli.common import add_isolation, add_target, warn
from logfs.cli.output import Printer, add_form
from logfs.cli.output_pipe import pause
from logfs.cli.reading import OpenLogs
from logfs.cli.selection import add_filter
from logfs.errors import InvalidUsage

if TYPE_CHECKING:
    import argparse

_POLL_SECONDS = 0.5


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments: TARGET, the number of records, whether to follow, filters, and the output's form.

    TARGET is LOGDIR/NAME, or LOGDIR… NAME. NAME is a partition or a topic, or several of both, separated by commas.
    """
    add_target(parser, topics=True)
    parser.add_argument(
        "-n", "--lines", type=int, default=10, metavar="N", help="the last N records (10)"
    )
    parser.add_argument(
        "-f", "--follow", action="store_true", help="continue with records as they are appended"
    )
    add_filter(parser)
    add_isolation(parser)
    add_form(parser)


def run(arguments: argparse.Namespace) -> int:
    """Print the last records, and with `--follow` also later ones, even of partitions that are created later.

    To notice appends of other processes, the files are checked for changes twice a second. The exit code is 1 if a
    record could not be read.
    """
    from logfs.store.reached_offset import ReachedOffset

    if arguments.lines < 0:
        raise InvalidUsage(f"-n {arguments.lines}: give a number of records, 0 or more")
    printer = Printer(arguments)
    with OpenLogs(arguments.target, arguments.isolation) as opened:
        ends = {log: log.reader.log_end_offset for log in opened.logs}
        reached = {log: ReachedOffset(log.reader.log, ends[log]) for log in opened.logs}
        whole = printer.print_last(opened.logs, list(ends.values()), arguments.lines)
        printer.finish()
        while arguments.follow:
            pause(_POLL_SECONDS)
            new, deleted = opened.look_again()
            for log in deleted:
                warn(f"{log.name}: the partition was deleted")
            for log in new:
                # A partition that is new, or was created again, is printed from its start.
                ends[log] = log.reader.log_start_offset
                reached[log] = ReachedOffset(log.reader.log, ends[log])
            ranges = []
            for log in opened.logs:
                start = ends[log]
                cut = reached[log].truncation_below(log.reader.log, start)
                if cut is not None:
                    whole = False
                    warn(
                        f"{log.name}: the log was truncated below {start}, up to which it was printed: it continues "
                        f"at {cut.continuation}"
                    )
                    start = cut.continuation
                    reached[log] = ReachedOffset(log.reader.log, start)
                # Read the log ends before printing: records that are appended meanwhile are printed in the next turn.
                ends[log] = max(log.reader.log_end_offset, start)
                reached[log].advance(log.reader.log, ends[log])
                ranges.append((start, ends[log]))
            whole &= printer.print_logs(opened.logs, ranges)
    return 0 if whole else 1
