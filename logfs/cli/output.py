"""Records on standard output: as lines, as envelopes, or formatted by a format string."""

from __future__ import annotations

import fcntl
import os
import sys
from contextlib import suppress
from functools import lru_cache
from typing import TYPE_CHECKING

from logfs.errors import OffsetOutOfRange
from logfs.format.text.format_string import HELP, FormatString
from logfs.log.disk.disk import TRIES, Gone
from logfs.log.disk.memory import keep_memory
from logfs.log.segment.batch_iterator import Damage, DamagedRange

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from logfs.cli.reading import OpenTarget
    from logfs.format.batches.record import Record
    from logfs.log.read.reader import Reader
    from logfs.log.segment.segment import Segment

_CHUNK_BYTES = 1 << 20
# The reader of a pipe of the default size (64 KiB) would be woken sixteen times as often.
_PIPE_BYTES = 1 << 20
# The limit on rounds of printing. Each round after the first prints up to the new end of a log that was compacted
# during the round before.
_ROUNDS = 20
# The bytes of a log that are read and printed at a time for a format string.
_SPLIT_BYTES = 64 << 20


def add_form(parser: argparse.ArgumentParser) -> None:
    """Add `--json` and `--format`, which select how records are printed; the default is a line with the value."""
    form = parser.add_mutually_exclusive_group()
    form.add_argument("-J", "--json", action="store_true", help="JSON envelopes, one per line")
    form.add_argument("-F", "--format", metavar="FORMAT", help=HELP)


def print_record(record: Record, partition: Reader, arguments: argparse.Namespace) -> None:
    """Print one record in the form that the options of `add_form` select."""
    _write(_shown(record, partition, arguments))
    sys.stdout.flush()


def print_records(
    log: OpenTarget, start: int, end: int | None, arguments: argparse.Namespace
) -> bool:
    """Print the records [start, end), and return True if all of them could be read.

    An `end` of None stands for the log end. Damaged ranges, and ranges that retention drops before they are printed,
    are reported on standard error and skipped. If the log is compacted meanwhile, a record may be removed before it
    is printed; without an `end`, printing then goes on to the new log end, where the key has a newer record.

    Raises `Gone` if files leave the log in `TRIES` attempts in a row, or if the partition was deleted and created
    again, and `OffsetOutOfRange` if the files of a segment are replaced or moved after a part of it was printed.
    """
    _prepare_bulk()
    whole, by_record = True, False
    stop, generation = start, -1
    tries, rounds = TRIES, _ROUNDS
    while True:
        partition, before = log.reader, start
        try:
            if start >= stop:
                if partition.generation == generation or not rounds:
                    break
                generation, rounds = partition.generation, rounds - 1
                stop = _stop(partition, end)
                continue
            first = partition.log_start_offset
            if start < first:
                sys.stdout.flush()
                print(
                    f"logfs: {partition.name.directory}: offsets {start} to {min(first, stop) - 1} left the log "
                    "before they could be printed",
                    file=sys.stderr,
                )
                start, whole = first, False
                continue
            for reached in _print_next(partition, start, stop, by_record, arguments):
                start = reached
        except DamagedRange as damage:
            sys.stdout.flush()
            print(f"logfs: {damage}", file=sys.stderr)
            whole = False
            start = max(damage.next_offset, start)
            # Damage before a segment's first record covers no offsets. The text view begins with the damage, so it
            # would fail again; a read by record begins after it.
            by_record |= start == before
        except Gone:
            # Another process has compacted or moved the partition.
            tries = tries - 1 if start == before else TRIES
            if not tries or log.look_again():
                raise
        except OffsetOutOfRange:
            if start >= partition.log_start_offset:
                raise
    sys.stdout.flush()
    return whole


def _prepare_bulk() -> None:
    """Keep the memory of buffers, and enlarge the pipe that the output goes to, if it is one."""
    keep_memory()
    # Another kind of file refuses, and so may the system's limit for pipes.
    with suppress(OSError):
        fcntl.fcntl(sys.stdout.fileno(), fcntl.F_SETPIPE_SZ, _PIPE_BYTES)


def _stop(partition: Reader, end: int | None) -> int:
    return partition.log_end_offset if end is None else min(end, partition.log_end_offset)


def _shown(record: Record, partition: Reader, arguments: argparse.Namespace) -> bytes:
    if arguments.format is not None:
        return _parsed(os.fsencode(arguments.format), partition.name).format(record)
    if arguments.json:
        from logfs.format.text import envelope

        return envelope.encode(record, envelope.prefix(partition.name))
    return (record.value or b"") + b"\n"


@lru_cache(maxsize=1)
def _may_hide_damage(segment: Segment, size_bytes: int) -> bool:
    """Return whether there is damage among batches without text, such as control batches.

    `size_bytes` is the segment's present size: the answer is remembered until it grows.

    The text view skips these batches, and the damage with them. A segment with fewer records in its text than offsets
    has such batches, or has lost batches, and is searched. A segment with `gaps` is not searched, because it always
    has fewer records than offsets.
    """
    from logfs.log.segment import batch_scanner

    if segment.gaps or segment.end.text.records == segment.next_offset - segment.base_offset:
        return False
    found = batch_scanner.scan_segment(segment, 0, segment.base_offset)
    return any(isinstance(each, Damage) for each in found)


def _print_next(
    partition: Reader, start: int, stop: int, by_record: bool, arguments: argparse.Namespace
) -> Iterator[int]:
    """Print the next of the records [start, stop); yield, again and again, the offset up to which all are printed.

    With `by_record`, and if they are few, they are read one by one. Raises `DamagedRange`; `Gone` if files have left
    the log; `OffsetOutOfRange` if they leave it after a part of a segment was printed.
    """
    if not by_record and stop - start > _FEW:
        if arguments.format is not None:
            yield from _print_columns(partition, start, stop, arguments)
            return
        segment = partition.log.segments_from(start)[0]
        if not _may_hide_damage(segment, segment.size_bytes):
            until = stop if segment.next_base is None else min(stop, segment.next_base)
            _print_text(partition, start, until, json=arguments.json)
            yield until
            return
    # Do not stop at segment boundaries: damage after a segment's last record lies before the first record of the next
    # segment.
    for record in partition.read(start, stop):
        _write(_shown(record, partition, arguments))
        yield record.offset + 1
    yield stop


def _print_text(partition: Reader, start: int, end: int, *, json: bool) -> None:
    """Print the records [start, end) of one segment.

    Raises `Gone` if the segment's files have left the log and nothing is printed yet, and `OffsetOutOfRange` if they
    leave it later.
    """
    from logfs.format.text.rendering import View

    view = partition.text(View.ENVELOPES if json else View.LINES, start, end)
    position = 0
    try:
        while data := view.read(position, _CHUNK_BYTES, up_to_damage=True):
            _write(data)
            position += len(data)
    except Gone as gone:
        if position:
            raise OffsetOutOfRange(str(gone)) from None
        raise


def _print_columns(
    partition: Reader, start: int, stop: int, arguments: argparse.Namespace
) -> Iterator[int]:
    """Print records by a format string, whole columns of them at a time, as `_print_next` describes."""
    from logfs.log.transfer import scan_split

    form = _parsed(os.fsencode(arguments.format), partition.name)
    for split in scan_split.plan(partition, start, stop, split_bytes=_SPLIT_BYTES):
        for found in scan_split.read(split):
            if isinstance(found, DamagedRange):
                raise found
            _write(form.render(found)[0].data)
            yield int(found.offsets[-1]) + 1
        yield split.end_offset
    yield stop


_parsed = lru_cache(maxsize=1)(FormatString)

# Up to this many records are printed one by one, which takes less time than loading the compiled kernels.
_FEW = 64


def _write(data: bytes | memoryview) -> None:
    sys.stdout.buffer.write(data)
