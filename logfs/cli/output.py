"""Records on standard output: as lines, as envelopes, or by a format string."""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING

from logfs.errors import OffsetOutOfRange
from logfs.log.walk import DamagedRange

if TYPE_CHECKING:
    import argparse

    from logfs.format.record import Record
    from logfs.log.reader import Reader

_CHUNK_BYTES = 1 << 20
_TOKEN = re.compile(rb"%([skothTpSKn%])|\\([ntr0\\])")
_ESCAPES = {b"n": b"\n", b"t": b"\t", b"r": b"\r", b"0": b"\0", b"\\": b"\\"}

FORMAT_HELP = (
    "a format string: %%s value, %%k key, %%h headers, %%o offset, %%T timestamp (ms), %%t topic, %%p partition, "
    "%%S and %%K sizes of value and key (-1 for null); \\n, \\t, \\r, \\0"
)


def add_form(parser: argparse.ArgumentParser) -> None:
    """How records are printed."""
    form = parser.add_mutually_exclusive_group()
    form.add_argument("-J", "--json", action="store_true", help="JSON envelopes, one a line")
    form.add_argument("-F", "--format", metavar="FORMAT", help=FORMAT_HELP)


def print_record(record: Record, partition: Reader, arguments: argparse.Namespace) -> None:
    """Print one record."""
    _write(_shown(record, partition, arguments))
    sys.stdout.flush()


def print_records(
    partition: Reader, start: int, end: int | None, arguments: argparse.Namespace
) -> bool:
    """Print the records [start, end); whether all of them could be read.

    A damaged range is named on standard error, and what follows it is printed.
    """
    stop = partition.log_end_offset if end is None else min(end, partition.log_end_offset)
    whole = True
    while start < stop:
        try:
            if arguments.format is not None or stop - start <= _FEW:
                for record in partition.read(start, stop):
                    _write(_shown(record, partition, arguments))
                    start = record.offset + 1
            else:
                _print_text(partition, start, stop, json=arguments.json)
            break
        except DamagedRange as damage:
            sys.stdout.flush()
            print(f"logfs: {damage}", file=sys.stderr)
            whole = False
            start = max(damage.next_offset, start + 1)
        except OffsetOutOfRange:
            if start >= partition.log_start_offset:
                raise
            # They left the log, which somebody else writes, before they could be printed.
            start = partition.log_start_offset
    sys.stdout.flush()
    return whole


def _shown(record: Record, partition: Reader, arguments: argparse.Namespace) -> bytes:
    if arguments.format is not None:
        return formatted(record, arguments.format.encode(), partition)
    if arguments.json:
        from logfs.format import envelope

        return envelope.encode(record, envelope.prefix(partition.name))
    return (record.value or b"") + b"\n"


def _print_text(partition: Reader, start: int, stop: int, *, json: bool) -> None:
    from logfs.format.text import View

    view = partition.text(View.ENVELOPES if json else View.LINES, start, stop)
    position = 0
    while data := view.read(position, _CHUNK_BYTES, up_to_damage=True):
        _write(data)
        position += len(data)


# So few records are printed sooner than the compiled kernels are loaded.
_FEW = 64


def formatted(record: Record, form: bytes, partition: Reader) -> bytes:
    """A record by a format string."""
    key, value = record.key, record.value
    tokens = {
        b"s": value or b"",
        b"k": key or b"",
        b"o": b"%d" % record.offset,
        b"T": b"%d" % (-1 if record.timestamp is None else record.timestamp),
        b"t": partition.topic.encode(),
        b"p": b"%d" % partition.partition,
        b"S": b"%d" % (-1 if value is None else len(value)),
        b"K": b"%d" % (-1 if key is None else len(key)),
        b"h": b",".join(
            name.encode("utf-8", "surrogateescape") + b"=" + (b"NULL" if text is None else text)
            for name, text in record.headers
        ),
        b"%": b"%",
        b"n": b"\n",
    }
    return _TOKEN.sub(lambda m: tokens[m[1]] if m[1] else _ESCAPES[m[2]], form)


def _write(data: bytes) -> None:
    sys.stdout.buffer.write(data)
