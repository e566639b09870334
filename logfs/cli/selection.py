"""The options that select records: ranges of offsets or times, and filters by key, value and headers."""

from __future__ import annotations

import os
import re
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from logfs.cli.common import not_empty, regular_expression
from logfs.cli.human_times import moment
from logfs.errors import InvalidUsage, OffsetOutOfRange

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray

    from logfs.format.batches.columns import Columns
    from logfs.format.batches.record import Record
    from logfs.log.read.reader import Reader

EARLIEST, LATEST = "earliest", "latest"

_BOUND = rf"-?[0-9]{{1,19}}|{EARLIEST}|{LATEST}"
_SINGLE = re.compile(_BOUND)
_RANGE = re.compile(rf"({_BOUND})?\.\.({_BOUND})?")


def add_bounds(parser: argparse.ArgumentParser) -> None:
    """Add the options for ranges of offsets and times. If several are given, a record must lie in all of them."""
    parser.add_argument(
        "-o",
        "--offset",
        metavar="N|A..B",
        type=not_empty,
        help="one record, a range (also A.. or ..B), or the last N (-N); A and B may be earliest, latest or -N, the "
        "Nth from the end; for a topic, the offsets of each partition",
    )
    parser.add_argument(
        "-t",
        "--time",
        type=not_empty,
        metavar="T|A..B",
        help="from a time on, or between two times: ms since 1970, ISO 8601, or words such as 'yesterday', in UTC",
    )
    parser.add_argument(
        "--since",
        type=not_empty,
        metavar="T",
        help="from a time on, such as '10 minutes ago', in UTC",
    )
    parser.add_argument("--until", type=not_empty, metavar="T", help="before a time, in UTC")


def add_filter(parser: argparse.ArgumentParser) -> None:
    """Add the options that filter records by key, value and headers."""
    parser.add_argument(
        "-k", "--key", metavar="KEY", help="only records with this key; '' is the empty key"
    )
    parser.add_argument(
        "--grep",
        type=not_empty,
        metavar="REGEX",
        help="only records with a match of the regular expression in the value",
    )
    parser.add_argument(
        "--header",
        action="append",
        type=not_empty,
        default=[],
        metavar="NAME[=VALUE]",
        help="only records with this header; may be repeated",
    )


class Bounds:
    """The range of offsets and times that the options of `add_bounds` give."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        """Parse the options. Raises `InvalidUsage` for a malformed offset or time."""
        self._offsets = None if arguments.offset is None else _offsets(arguments.offset)
        self.is_single = self._offsets is not None and self._offsets[2]
        now_ms = time.time_ns() // 1_000_000
        ranges = []
        if arguments.time is not None:
            first, _, last = arguments.time.partition("..")
            ranges.append((first, last))
        ranges.append((arguments.since, arguments.until))
        self._times = [
            tuple(moment(text, now_ms) if text else None for text in each) for each in ranges
        ]

    def of(self, reader: Reader) -> tuple[int, int | None]:
        """Return the offsets [start, end) that lie in all given ranges, for one log; an `end` of None is the log end.

        The range is empty if `end` is not above `start`. If the options give a single offset, raises
        `OffsetOutOfRange` unless readers see a record at it. `earliest` and `latest` stand for the first and the last
        record, and raise `OffsetOutOfRange` in a log without records. As the last bound of a range, `latest` stands
        for the log end, and never raises.
        """
        start, end = reader.log_start_offset, None
        if self._offsets is not None:
            first, last, is_single = self._offsets
            if is_single:
                at = _resolve(first, reader)
                if reader.record(at) is None:
                    raise OffsetOutOfRange(
                        f"{reader.name.directory}: offset {at} has no visible record: it was removed by compaction, "
                        "or aborted, or is a transaction marker"
                    )
                start, end = at, at + 1
            else:
                start = max(_resolve(first, reader), start) if first else start
                if last:
                    end = reader.log_end_offset if last == LATEST else _resolve(last, reader)
        for since, until in self._times:
            if since is not None:
                start = max(start, _at_time(reader, since))
            if until is not None:
                before = _at_time(reader, until)
                end = before if end is None else min(end, before)
        return start, end


def _offsets(text: str) -> tuple[str, str, bool]:
    """Parse the value of `--offset`, and return (first bound, last bound, is_single).

    The bounds are texts; a bound that is not given is "". The value N, `earliest` or `latest` is a single offset: it
    is the first bound, and `is_single` is True. The value -N, the last N records, gives only the first bound. The
    value A..B, A.. or ..B gives the bounds A and B. Raises `InvalidUsage` for any other value.
    """
    if _SINGLE.fullmatch(text):
        # `-N` stands for a range, the last N records.
        is_single = not text.startswith("-")
        if text.strip("-0") or is_single:
            return text, "", is_single
    found = _RANGE.fullmatch(text)
    if found is None or text == "..":
        raise InvalidUsage(
            f"--offset: {text!r} is not an offset: give N, A..B, A.., ..B, or -N for the last N; A and B may be "
            f"{EARLIEST}, {LATEST} or -N"
        )
    return found[1] or "", found[2] or "", False


def _resolve(text: str, reader: Reader) -> int:
    """Return the offset that the text of a bound stands for.

    The text is an offset, `earliest`, `latest`, or -N, the Nth record from the end. Raises `OffsetOutOfRange` for
    `earliest` and `latest` if the log has no records.
    """
    if text == EARLIEST:
        offset = reader.first_offset_from(reader.log_start_offset)
    elif text == LATEST:
        offset = reader.last_offset()
    elif text.startswith("-"):
        offset = reader.offset_of_last(-int(text))
    else:
        offset = int(text)
    if offset is None:
        raise OffsetOutOfRange(f"{reader.name.directory}: {text}: the partition has no records")
    return offset


def _at_time(reader: Reader, timestamp: int) -> int:
    """Return the offset of the first visible record at or after a time (ms); the log end offset if there is none."""
    found = reader.offset_for_time(timestamp, shown=True)
    return reader.log_end_offset if found is None else found.offset


@dataclass(frozen=True)
class RecordSelector:
    """A filter for records: by a key, by a regular expression to find in the value, and by headers.

    A `key` or `pattern` of None admits all records. `headers` has pairs of a name and a value that a record must
    have; the value None admits any value.
    """

    key: bytes | None
    pattern: re.Pattern[bytes] | None
    headers: Sequence[tuple[str, bytes | None]]

    @classmethod
    def of(cls, arguments: argparse.Namespace) -> RecordSelector | None:
        """Return the filter for the options of `add_filter`; None if no such option is given.

        Raises `InvalidUsage` for a malformed regular expression.
        """
        if arguments.key is None and arguments.grep is None and not arguments.header:
            return None
        pattern = None
        if arguments.grep is not None:
            pattern = regular_expression("--grep", os.fsencode(arguments.grep))
        headers = []
        for word in arguments.header:
            name, equals, value = word.partition("=")
            headers.append((name, os.fsencode(value) if equals else None))
        key = None if arguments.key is None else os.fsencode(arguments.key)
        return cls(key, pattern, headers)

    def admits(self, record: Record) -> bool:
        """Whether a record has the wanted key, a match of the pattern in its value, and all wanted headers."""
        if self.key is not None and record.key != self.key:
            return False
        if self.pattern is not None and not self.pattern.search(record.value or b""):
            return False
        return self._has_headers(record)

    def _has_headers(self, record: Record) -> bool:
        return all(
            any(name == wanted and value in (None, text) for name, text in record.headers)
            for wanted, value in self.headers
        )

    def rows(self, chunk: Columns | list[Record]) -> NDArray[np.int64]:
        """Return the indexes of the records of a chunk that `admits` accepts, ascending, as int64[matches]."""
        import numpy as np

        if isinstance(chunk, list):
            found = [number for number, record in enumerate(chunk) if self.admits(record)]
            return np.array(found, np.int64)
        return self._rows_of(chunk)

    def _rows_of(self, columns: Columns) -> NDArray[np.int64]:
        import numpy as np

        rows = np.arange(len(columns))
        if self.key is not None:
            rows = rows[columns.key_lengths == len(self.key)]
            places = columns.key_starts[rows][:, None] + np.arange(len(self.key))
            wanted = np.frombuffer(self.key, np.uint8)
            rows = rows[(columns.data[places] == wanted).all(axis=1)]
        if self.pattern is not None:
            data, search = columns.data.data, self.pattern.search
            starts = columns.value_starts[rows].tolist()
            lengths = columns.value_lengths[rows].tolist()
            matches = [
                search(data[start : start + max(length, 0)]) is not None
                for start, length in zip(starts, lengths, strict=True)
            ]
            rows = rows[np.array(matches, bool)]
        if self.headers:
            rows = rows[columns.header_counts[rows] > 0]
            found = columns.select(rows).records()
            rows = rows[np.array([self._has_headers(record) for record in found], bool)]
        return rows
