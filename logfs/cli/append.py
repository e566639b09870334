"""`logfs append`: append lines or envelopes from files or standard input, without a mount."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from logfs.cli.common import add_target, open_for_writing, progress_bar

if TYPE_CHECKING:
    import argparse

    from logfs.log.append.line_framer import LineFramer

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
    from logfs.log.append.line_framer import EnvelopeFramer, LineFramer

    store, partition = open_for_writing(arguments.target)
    with store:
        first = partition.log_end_offset
        framer = (EnvelopeFramer if arguments.jsonl else LineFramer)(partition)
        try:
            for path in arguments.file:
                with path.open("rb") as file:
                    _append(framer, file, str(path), path.stat().st_size)
            if not arguments.file:
                _append(framer, sys.stdin.buffer, "standard input", None)
        finally:
            partition.flush()
            if partition.log_end_offset > first:
                print(f"{partition.name.directory}: {first}..{partition.log_end_offset}")
    return 0


def _append(framer: LineFramer, file: BinaryIO, name: str, size: int | None) -> None:
    with progress_bar(f"appending {name}", size) as bar:
        while data := file.read(_READ_BYTES):
            rest = memoryview(data)
            while rest:
                done = framer.write(bytes(rest))
                if done.refused is not None and not done.consumed:
                    raise done.refused
                rest = rest[done.consumed :]
            framer.partition.flush_if_due()
            bar.update(len(data))
        done = framer.finish()
        if done.refused is not None:
            raise done.refused
