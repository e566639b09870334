"""`logfs append`: append lines of text, or records as JSON objects (envelopes), from files or standard input."""

from __future__ import annotations

import fcntl
import os
import select
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, cast

from logfs.cli.common import (
    add_partition_or_topic,
    check_partition_exists,
    not_empty,
    partitions_in,
    progress_bar,
    recovery_progress,
    regular_expression,
    target,
)
from logfs.errors import InvalidUsage, LogfsError, PartitionFailed
from logfs.format.base import names

if TYPE_CHECKING:
    import argparse
    from io import BufferedReader

    from logfs.format.text.keyed_lines import KeyedLines
    from logfs.store.admin.appender import Appended, Appender

_READ_BYTES = 1 << 20
_PAUSE_SECONDS = 1.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments: TARGET (a partition or a topic), the input files, and the form of their lines."""
    add_partition_or_topic(parser)
    parser.add_argument(
        "-f",
        "--file",
        action="append",
        type=Path,
        default=[],
        help="read this file; may be repeated",
    )
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--jsonl", action="store_true", help="the lines are JSON envelopes")
    form.add_argument(
        "-K",
        "--key-separator",
        type=not_empty,
        metavar="TEXT",
        help="cut each line at the first TEXT into key and value",
    )
    parser.add_argument(
        "--start",
        type=not_empty,
        metavar="REGEX",
        help="a record has several lines: one that REGEX matches at its beginning, and the lines before the next one",
    )
    parser.add_argument(
        "-H",
        "--header",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a header of every record; may be repeated; not with --jsonl",
    )


def run(arguments: argparse.Namespace) -> int:
    """Append all input, flush it, and print the offsets [first, next) of the new records, if any.

    If TARGET is a topic, the records go to several partitions, and only the number of records is printed. After an
    error, the records that were appended before the error are also flushed, and their offsets printed. The exit code
    is 0 if all records are durable.
    """
    from logfs.store.admin.appender import open_appender

    lines = _keyed_lines(arguments)
    wanted = target(arguments.target, for_writing=True)
    is_topic = names.partitions_named(wanted.name, partitions_in(wanted.log_dirs)) != [wanted.name]
    if not is_topic:
        check_partition_exists(wanted)
    appender = open_appender(
        wanted.log_dirs,
        wanted.name,
        is_topic=is_topic,
        envelopes=arguments.jsonl or lines is not None,
        recovery=recovery_progress(),
    )
    is_done = False
    try:
        with appender:
            try:
                for path in arguments.file:
                    with path.open("rb") as file:
                        _append(appender, lines, file, str(path), path.stat().st_size)
                if not arguments.file:
                    _append(appender, lines, _standard_input(), "standard input", None)
            finally:
                appender.flush()
                _print(wanted.name, appender.appended, is_topic=is_topic)
            is_done = True
    except OSError as error:
        if not is_done:
            raise
        # Only closing the store failed. Return 0: if the command failed, a caller might append the records again.
        print(
            f"logfs: the records are durable, but the log directory could not be closed ({error}); the next opening "
            "recovers it",
            file=sys.stderr,
        )
    return 0


def _keyed_lines(arguments: argparse.Namespace) -> KeyedLines | None:
    """Return the converter of lines to JSON envelopes; None if each line is already a value or an envelope.

    Raises `InvalidUsage` for a malformed option, or for one that cannot be combined with `--jsonl`.
    """
    if arguments.key_separator is None and not arguments.header and arguments.start is None:
        return None
    from logfs.format.text.keyed_lines import KeyedLines

    if arguments.jsonl:
        raise InvalidUsage(
            "--jsonl: an envelope is one line and has its own headers; leave out -H and --start"
        )
    headers = []
    for word in arguments.header:
        name, equals, value = word.partition("=")
        if not equals:
            raise InvalidUsage(f"-H {word!r}: give a header as NAME=VALUE")
        headers.append((name, os.fsencode(value)))
    start = None
    if arguments.start is not None:
        start = regular_expression("--start", os.fsencode(arguments.start))
    separator = arguments.key_separator
    return KeyedLines(None if separator is None else os.fsencode(separator), headers, start)


def _standard_input() -> BufferedReader:
    # A larger pipe gives larger batches. The call fails if standard input is not a pipe.
    with suppress(OSError):
        fcntl.fcntl(sys.stdin.fileno(), fcntl.F_SETPIPE_SZ, _READ_BYTES)
    return cast("BufferedReader", sys.stdin.buffer)


def _append(
    appender: Appender, lines: KeyedLines | None, file: BufferedReader, name: str, size: int | None
) -> None:
    before = appender.appended.count
    try:
        with progress_bar(f"appending {name}", size) as bar:
            # Append each piece of input without waiting for more: the writer of a pipe may pause for hours.
            while data := _read(file, appender, lines):
                appender.write(data if lines is None else lines.write(data))
                bar.update(len(data))
            if lines is not None:
                appender.write(lines.finish())
            appender.finish()
    except PartitionFailed:
        # The partition takes no more writes, so no line is at fault. Do not name a line from which to go on: if
        # TARGET is a topic, later lines may already be in its other partitions.
        raise
    except LogfsError as error:
        number = appender.appended.count - before + 1
        what, rest = "line", f"'tail -n +{number} FILE | logfs append …'"
        if lines is not None and lines.has_several_lines:
            what, rest = "record", "the rest of the input"
        done = f"everything before it is appended: correct it, and go on with {rest}"
        raise LogfsError(f"{name}, {what} {number}: {error}; {done}") from error


def _read(file: BufferedReader, appender: Appender, lines: KeyedLines | None) -> bytes:
    """Return the next bytes of `file`, b"" at the end of the file. If the input pauses, append a waiting record.

    With the option `--start`, a record can have several lines, which wait in `lines` until the first line of the next
    record arrives. If `file` has no input for a second after a complete line, the record counts as complete: this
    function takes it from `lines` and appends it. `lines` is None if the lines need no conversion.
    """
    if lines is not None and lines.is_waiting:
        ready, _, _ = select.select([file], [], [], _PAUSE_SECONDS)
        if not ready:
            appender.write(lines.flush())
    return file.read1(_READ_BYTES)


def _print(name: str, appended: Appended, *, is_topic: bool) -> None:
    if not appended.count:
        return
    if is_topic:
        print(f"{name}: {appended.count} records")
        return
    beside = (
        ""
        if appended.is_contiguous
        else f" ({appended.count} records, among those of other writers)"
    )
    print(f"{name}: {appended.first}..{appended.next_offset}{beside}")
