"""`logfs cat`: print records by offset, by time, by range or by key."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

from logfs.cli.common import (
    add_isolation,
    add_target,
    not_empty,
    offset_range,
    progress_bar,
    time_range,
)
from logfs.cli.output import add_form, print_record, print_records
from logfs.cli.reading import OpenTarget
from logfs.errors import OffsetOutOfRange

if TYPE_CHECKING:
    import argparse

    from logfs.format.batches.record import Record
    from logfs.log.read.reader import Reader


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments: TARGET (the partition), the records to print, the isolation level, and the output's form."""
    add_target(parser)
    what = parser.add_mutually_exclusive_group()
    what.add_argument(
        "-o",
        "--offset",
        metavar="N|A..B",
        help="one record, a range (also A.. or ..B), or the last N (-N)",
    )
    what.add_argument(
        "-t",
        "--time",
        type=not_empty,
        metavar="T|A..B",
        help="from a time on, or between two times: ms or ISO 8601",
    )
    what.add_argument("-k", "--key", metavar="KEY", help="the newest record with that key")
    add_isolation(parser)
    add_form(parser)


def run(arguments: argparse.Namespace) -> int:
    """Print the records; exit code 1 if a record could not be read, or no record has the key."""
    log = OpenTarget(arguments.target, arguments.isolation)
    with log.store:
        if arguments.key is not None:
            return _print_newest(log, arguments)
        start, end = log.ask(lambda reader: _range(reader, arguments))
        return 0 if print_records(log, start, end, arguments) else 1


def _range(reader: Reader, arguments: argparse.Namespace) -> tuple[int, int | None]:
    """Return the offsets [start, end) that the arguments select; an `end` of None stands for the log end.

    Raises `OffsetOutOfRange` if a single offset is selected that has no record, and as `offset_range` and
    `time_range`.
    """
    start: int | None = None
    end: int | None = None
    if arguments.offset is not None:
        start, end = offset_range(arguments.offset)
        if start is not None and end == start + 1 and reader.record(start) is None:
            raise OffsetOutOfRange(
                f"{reader.name.directory}: offset {start} was compacted away, or is not the offset of a record"
            )
    elif arguments.time is not None:
        start, end = time_range(arguments.time, reader)
    if start is None:
        return reader.log_start_offset, end
    if start < 0:
        return reader.offset_of_last(-start), end
    return max(start, reader.log_start_offset), end


def _print_newest(log: OpenTarget, arguments: argparse.Namespace) -> int:
    """Print the newest record with the key, and return the exit code, which is 1 if there is no such record."""
    bar: Any = None

    def report(done: int, total: int) -> None:
        nonlocal bar
        bar = bar or progress_bar(f"reading keys of {log.reader.name.directory}", total)
        bar.update(done - bar.n)
        if done >= total:
            bar.close()

    def newest(reader: Reader) -> Record | None:
        reader.keys.on_progress = report
        return reader.newest(os.fsencode(arguments.key))

    record = log.ask(newest)
    if record is not None:
        print_record(record, log.reader, arguments)
        return 0
    print(
        f"logfs: {log.reader.name.directory}: no record has the key {arguments.key!r}, or its newest record "
        "is a tombstone",
        file=sys.stderr,
    )
    return 1
