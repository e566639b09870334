"""`logfs cat`: records by offset, by time, by range, by key."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

from logfs.cli.common import (
    add_isolation,
    add_target,
    isolation_level,
    offset_range,
    open_for_reading,
    progress_bar,
    time_range,
)
from logfs.cli.output import add_form, print_record, print_records
from logfs.errors import OffsetOutOfRange

if TYPE_CHECKING:
    import argparse

    from logfs.log.reader import Reader


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """TARGET, what, and how."""
    add_target(parser)
    what = parser.add_mutually_exclusive_group()
    what.add_argument(
        "-o", "--offset", metavar="N|A..B", help="one record, a range (A.. and ..B too), or -N"
    )
    what.add_argument(
        "-t", "--time", metavar="T|A..B", help="from a time on, or between two: ms or ISO 8601"
    )
    what.add_argument("-k", "--key", metavar="KEY", help="the newest record with that key")
    add_isolation(parser)
    add_form(parser)


def run(arguments: argparse.Namespace) -> int:
    """Print them."""
    store, log = open_for_reading(arguments.target)
    with store:
        partition = log.isolated(isolation_level(arguments.isolation))
        start: int | None = None
        end: int | None = None
        if arguments.key is not None:
            return _print_newest(partition, arguments)
        if arguments.offset is not None:
            start, end = offset_range(arguments.offset)
            if start is not None and end == start + 1 and partition.record(start) is None:
                raise OffsetOutOfRange(
                    f"{partition.name.directory}: offset {start} was compacted away, or is no record"
                )
        elif arguments.time is not None:
            start, end = time_range(arguments.time, partition)
        if start is None or start < partition.log_start_offset:
            back = start is not None and start < 0
            start = (
                partition.offset_of_last(-start) if back and start else partition.log_start_offset
            )
        return 0 if print_records(partition, start, end, arguments) else 1


def _print_newest(partition: Reader, arguments: argparse.Namespace) -> int:
    """Print the newest record with a key, if there is one; the exit code."""
    bar: Any = None

    def report(done: int, total: int) -> None:
        nonlocal bar
        bar = bar or progress_bar(f"reading keys of {partition.name.directory}", total)
        bar.update(done - bar.n)
        if done >= total:
            bar.close()

    partition.keys.on_progress = report
    record = partition.newest(os.fsencode(arguments.key))
    if record is not None:
        print_record(record, partition, arguments)
        return 0
    print(
        f"logfs: {partition.name.directory}: no record has the key {arguments.key!r}, or the newest of them "
        "deletes it",
        file=sys.stderr,
    )
    return 1
