"""`logfs cat`: print records by offset, by time, by range or by key."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

from logfs.cli.common import add_isolation, add_target, progress_bar
from logfs.cli.output import Printer, add_form
from logfs.cli.reading import OpenLogs
from logfs.cli.selection import Bounds, add_bounds, add_filter
from logfs.errors import InvalidUsage, OffsetOutOfRange
from logfs.log.disk.disk import Gone

if TYPE_CHECKING:
    import argparse

    from logfs.cli.output import Range
    from logfs.cli.reading import OpenLog
    from logfs.format.batches.record import Record
    from logfs.log.read.reader import Reader


# The options that select records, as attributes of the parsed arguments. They cannot be combined with `--newest`.
_SELECTING = ("offset", "time", "since", "until", "key", "grep", "header", "lines")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments: TARGET, the records to print, the isolation level, and the output's form."""
    add_target(parser, topics=True)
    add_bounds(parser)
    add_filter(parser)
    parser.add_argument(
        "-n", "--lines", type=int, metavar="N", help="print only the first N of these records"
    )
    parser.add_argument(
        "--newest", metavar="KEY", help="the newest record with a key, by the key index"
    )
    add_isolation(parser)
    add_form(parser)


def run(arguments: argparse.Namespace) -> int:
    """Print the records; exit code 1 if a record could not be read, or if no record has the key of `--newest`."""
    if arguments.lines is not None and arguments.lines < 0:
        raise InvalidUsage(f"-n {arguments.lines}: give a number of records, 0 or more")
    given = [name for name in _SELECTING if getattr(arguments, name) not in (None, [])]
    if arguments.newest is not None and given:
        raise InvalidUsage(f"--newest: prints one record; leave out --{given[0]}")
    printer = Printer(arguments, arguments.lines)
    bounds = Bounds(arguments)
    with OpenLogs(arguments.target, arguments.isolation) as opened:
        if arguments.newest is not None:
            found = _print_newest(opened.logs, printer, arguments.newest)
            printer.finish()
            return found
        ranges = _ranges(opened, bounds)
        whole = printer.print_logs(list(ranges), list(ranges.values()))
        printer.finish()
        return 0 if whole else 1


def _ranges(opened: OpenLogs, bounds: Bounds) -> dict[OpenLog, Range]:
    """Return the offsets [start, end) to print of each log; an `end` of None stands for the log end.

    `bounds` is the range that the options give. If TARGET stands for several partitions, those that do not have the
    range are left out: for example, those without a record at the given offset. Raises `OffsetOutOfRange` if no
    partition is left.
    """
    ranges, refused = {}, None
    for log in opened.logs:
        try:
            ranges[log] = log.ask(bounds.of)
        except Gone:
            raise
        except OffsetOutOfRange as error:
            refused = error
    if refused is not None and not (ranges and opened.is_topic):
        raise refused
    return ranges


def _print_newest(logs: list[OpenLog], printer: Printer, key: str) -> int:
    """Print the newest record with the key, and return 0; return 1 if no partition has such a record.

    If several partitions have a record with the key, the one with the largest timestamp is printed. A partition in
    which the newest record of the key is a tombstone does not count.
    """
    found = [(record, log) for log in logs if (record := _newest(log, key)) is not None]
    if found:
        record, log = max(found, key=lambda each: each[0].timestamp or -1)
        printer.print_record(record, log.reader)
        return 0
    print(
        f"logfs: {', '.join(log.name for log in logs)}: no record has the key {key!r}, or its newest record is a "
        "tombstone",
        file=sys.stderr,
    )
    return 1


def _newest(log: OpenLog, key: str) -> Record | None:
    bar: Any = None

    def report(done: int, total: int) -> None:
        nonlocal bar
        bar = bar or progress_bar(f"reading keys of {log.name}", total)
        bar.update(done - bar.n)
        if done >= total:
            bar.close()

    def newest(reader: Reader) -> Record | None:
        reader.keys.on_progress = report
        return reader.newest(os.fsencode(key))

    return log.ask(newest)
