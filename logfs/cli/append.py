"""`logfs append`: append lines or envelopes from files or standard input."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from logfs.cli.common import (
    add_target,
    check_partition_exists,
    progress_bar,
    recovery_progress,
    target,
)

if TYPE_CHECKING:
    import argparse

    from logfs.store.admin.appender import Appended, Appender

_READ_BYTES = 1 << 20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments: TARGET (the partition), the input files, and the form of their lines."""
    add_target(parser)
    parser.add_argument(
        "-f",
        "--file",
        action="append",
        type=Path,
        default=[],
        help="read this file; may be repeated",
    )
    parser.add_argument("--jsonl", action="store_true", help="the lines are JSON envelopes")


def run(arguments: argparse.Namespace) -> int:
    """Append all input, flush the partition, and print the offsets [first, next) of the new records, if any.

    After an error the records that were appended before it are flushed and printed, too.
    """
    from logfs.store.admin.appender import open_appender

    wanted = target(arguments.target)
    check_partition_exists(wanted)
    appender = open_appender(
        wanted.log_dirs, wanted.name, envelopes=arguments.jsonl, recovery=recovery_progress()
    )
    with appender:
        try:
            for path in arguments.file:
                with path.open("rb") as file:
                    _append(appender, file, str(path), path.stat().st_size)
            if not arguments.file:
                _append(appender, sys.stdin.buffer, "standard input", None)
        finally:
            appender.flush()
            _print(wanted.name, appender.appended)
    return 0


def _append(appender: Appender, file: BinaryIO, name: str, size: int | None) -> None:
    with progress_bar(f"appending {name}", size) as bar:
        while data := file.read(_READ_BYTES):
            appender.write(data)
            bar.update(len(data))
        appender.finish()


def _print(name: str, appended: Appended) -> None:
    if not appended.count:
        return
    beside = "" if appended.is_contiguous else f" ({appended.count} records, beside other writers)"
    print(f"{name}: {appended.first}..{appended.next_offset}{beside}")
