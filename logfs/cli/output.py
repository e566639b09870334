"""Prints records to standard output: as lines, as JSON envelopes, or by a format string."""

from __future__ import annotations

import fcntl
import os
import sys
from contextlib import suppress
from functools import cache, lru_cache, partial
from typing import TYPE_CHECKING, cast

from logfs.cli.decoding import RecordDecoder, add_schemas
from logfs.cli.scanning import LogScan, read_chunks, read_records, read_text
from logfs.cli.selection import RecordSelector
from logfs.format.batches.batch import FEW
from logfs.format.text import envelope
from logfs.format.text.format_string import HELP, FormatString
from logfs.log.disk.memory import keep_memory
from logfs.log.segment.batch_iterator import DamagedRange

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable, Iterator, Sequence
    from typing import BinaryIO

    import numpy as np
    from numpy.typing import NDArray

    from logfs.cli.reading import OpenLog
    from logfs.cli.scanning import ReadNext
    from logfs.format.base.names import TopicPartition
    from logfs.format.batches.record import Record
    from logfs.log.read.merge import Chunk, MergedRows
    from logfs.log.read.reader import Reader

    Range = tuple[int, int | None]

# The size of the pipe to which output goes. With the default size of 64 KiB, its reader would be woken 16 times as
# often.
_PIPE_BYTES = 1 << 20
# A log is read in pieces of _SMALL_SPLIT_BYTES, instead of larger ones, if its records are decoded, or if fewer than
# _FEW_OF_MANY records are to be printed: most of a larger piece would be read in vain.
_FEW_OF_MANY = 10_000
_SMALL_SPLIT_BYTES = 1 << 20


def add_form(parser: argparse.ArgumentParser) -> None:
    """Add the options for the form of printed records (by default a line with the value), and for decoding."""
    form = parser.add_mutually_exclusive_group()
    form.add_argument("-J", "--json", action="store_true", help="JSON envelopes, one per line")
    form.add_argument("-F", "--format", metavar="FORMAT", help=HELP)
    add_schemas(parser)


class Printer:
    """Prints the records that the filter options admit, in the form that the options of `add_form` select.

    `left` is the number of records that may still be printed, None for no limit. `out` is the file to print to.
    """

    def __init__(
        self, arguments: argparse.Namespace, most: int | None = None, out: BinaryIO | None = None
    ) -> None:
        """Prepare to print to `out`, by default standard output.

        `most` is the largest number of records to print, None for no limit. Raises the errors of `RecordSelector.of`
        and `RecordDecoder.of`.
        """
        self._json = arguments.json
        self._format = None if arguments.format is None else os.fsencode(arguments.format)
        self._filter = RecordSelector.of(arguments)
        self._decoder = RecordDecoder.of(arguments)
        self.left = most
        self.out = sys.stdout.buffer if out is None else out

    @property
    def is_done(self) -> bool:
        """Whether the limit of records is reached."""
        return self.left is not None and self.left <= 0

    def print_record(self, record: Record, reader: Reader) -> None:
        """Print one record, even if the filter does not admit it. The record does not count towards the limit."""
        if self._decoder is not None:
            record = self._decoder.record(record, reader.name)
        self.out.write(self._shown(record, reader.name))
        self.out.flush()

    def print_logs(self, logs: Sequence[OpenLog], ranges: Sequence[Range]) -> bool:
        """Print the records at the offsets [start, end) of each log, and return True if all could be read.

        `ranges` has (start, end) for each of `logs`, in the same order; an `end` of None stands for the log end. The
        records of several logs are merged by their timestamps. Raises the errors of `LogScan`.
        """
        is_plain = not (self._format or self._filter or self._decoder)
        if len(logs) == 1 and is_plain and self.left is None:
            return self._print_text(logs[0], *ranges[0])
        read = self._reader_of(ranges)
        if len(logs) == 1 and self._filter is None and self._are_few(ranges):
            return self._print_one_by_one(LogScan(logs[0], *ranges[0], read))
        scans = [LogScan(log, *each, read) for log, each in zip(logs, ranges, strict=True)]
        self.print_rows(self._merged(scans))
        return all(scan.whole for scan in scans)

    def _print_one_by_one(self, scan: LogScan[Chunk]) -> bool:
        """Print the records of one log, at most `left`, and return True if all could be read.

        Unlike `print_rows` this uses no array: importing numpy takes longer than printing a few records.
        """
        # Read nothing beyond the last record to print, because there may be damage.
        chunks = iter(scan)
        while not self.is_done and (chunk := next(chunks, None)) is not None:
            name = scan.log.reader.name
            for record in cast("list[Record]", self._decoded(chunk, name)):
                self.out.write(self._shown(record, name))
                if self.left is not None:
                    self.left -= 1
        self.out.flush()
        return scan.whole

    def print_last(self, logs: Sequence[OpenLog], ends: Sequence[int], count: int) -> bool:
        """Print the last `count` records of all logs together, and return True if all could be read.

        `ends` has the end offset of each log: only records at lower offsets are printed.
        """
        from logfs.log.read.merge import last

        ranges = [
            (log.ask(partial(self._start_of_last, end=end, count=count)), end)
            for log, end in zip(logs, ends, strict=True)
        ]
        if len(logs) == 1 and self._filter is None:
            return self.print_logs(logs, ranges)
        scans = [
            LogScan(log, *each, self._reader_of(ranges))
            for log, each in zip(logs, ranges, strict=True)
        ]
        self.print_rows(last(self._merged(scans), count))
        return all(scan.whole for scan in scans)

    def finish(self) -> None:
        """Print to standard error how many keys and values could not be decoded."""
        if self._decoder is not None:
            self._decoder.report()

    def print_rows(self, rows: Iterable[MergedRows]) -> None:
        """Print the text of records, at most `left` of them, and lower `left` by the number of printed records."""
        _prepare_bulk()
        for each in rows:
            shown = each
            if self.left is not None:
                shown = each.cut(0, self.left)
                self.left -= len(shown.ends)
            self.out.write(shown.text.data)
            if self.is_done:
                break
        self.out.flush()

    def _start_of_last(self, reader: Reader, end: int, count: int) -> int:
        """Return the offset of the first of the last `count` records below `end`; `end` for a `count` of 0.

        If there are fewer records, returns the log start offset. With a filter, only the records that it admits
        count, and the result may be too low: at least `count` of them lie in [result, end). Without a filter, the
        result for a `count` above `FEW` is not checked: it may be wrong if the log has damage, and is too high if
        records were appended at or above `end`, because these count, too.
        """
        if self._filter is None:
            with suppress(DamagedRange):
                start = reader.offset_of_last(count) if count > 0 else end
                # Beside damage, the text index may count more or fewer records than can be read. Check only a small
                # count, because a check reads the records.
                if count > FEW or sum(1 for _ in reader.read(start, end)) == count:
                    return start
        start, step, found = end, 1024, 0
        while start > reader.log_start_offset and found < count:
            stop, start = start, max(start - step, reader.log_start_offset)
            step = min(step * 4, 1 << 20)
            for _, chunk in _past_damage(reader, start, stop):
                if self._filter is None:
                    found += len(chunk)
                else:
                    decoded = self._decoded(chunk, reader.name, is_counted=False)
                    found += len(self._filter.rows(decoded))
        if self._filter is None and found > count:
            return _nth_offset(reader, start, end, found - count)
        return start

    def _are_few(self, ranges: Sequence[Range]) -> bool:
        """Whether at most `FEW` records of each log are read."""
        if self._filter is None and self.left is not None and self.left <= FEW:
            return True
        return all(end is not None and end - start <= FEW for start, end in ranges)

    def _reader_of(self, ranges: Sequence[Range]) -> ReadNext[Chunk]:
        if self._are_few(ranges):
            return partial(read_records, limit=None if self._filter else self.left)
        if self._decoder is not None or (self.left is not None and self.left < _FEW_OF_MANY):
            return partial(read_chunks, split_bytes=_SMALL_SPLIT_BYTES)
        return read_chunks

    def _merged(self, scans: Sequence[LogScan[Chunk]]) -> Iterator[MergedRows]:
        from logfs.log.read.merge import merge

        streams = [self._rows(scan) for scan in scans]
        return streams[0] if len(streams) == 1 else merge(streams)

    def _rows(self, scan: LogScan[Chunk]) -> Iterator[MergedRows]:
        from logfs.log.read.merge import MergedRows, rising

        reached = -1
        for chunk in scan:
            # Compute the times for the merge from all records, so that the order of the output does not depend on the
            # filter.
            times = rising(chunk, reached)
            reached = int(times[-1]) if len(times) else reached
            admitted = decoded = self._decoded(chunk, scan.log.reader.name)
            if self._filter is not None:
                numbers = self._filter.rows(decoded)
                times = times[numbers]
                admitted = (
                    [decoded[number] for number in numbers]
                    if isinstance(decoded, list)
                    else decoded.select(numbers)
                )
            if len(times):
                yield MergedRows(times, *self._rendered(admitted, scan.log.reader.name))

    def _decoded(self, chunk: Chunk, name: TopicPartition, *, is_counted: bool = True) -> Chunk:
        if self._decoder is None:
            return chunk
        return self._decoder.decoded(chunk, name, is_counted=is_counted)

    def _rendered(
        self, chunk: Chunk, name: TopicPartition
    ) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
        """Return the text of a chunk, uint8[bytes], and the end position of each record in it, int64[records]."""
        import numpy as np

        from logfs.format.text.rendering import View, render

        if isinstance(chunk, list):
            texts = [self._shown(record, name) for record in chunk]
            return np.frombuffer(b"".join(texts), np.uint8), np.cumsum([len(t) for t in texts])
        if self._format is not None:
            return _parsed(self._format, name).render(chunk)
        view = View.ENVELOPES if self._json else View.LINES
        return render(chunk, view, envelope.prefix(name) if self._json else b"")

    def _shown(self, record: Record, name: TopicPartition) -> bytes:
        if self._format is not None:
            return _parsed(self._format, name).format(record)
        if self._json:
            return envelope.encode(record, envelope.prefix(name))
        return (record.value or b"") + b"\n"

    def _print_text(self, log: OpenLog, start: int, end: int | None) -> bool:
        """Print the records at the offsets [start, end) of one log, and return True if all could be read.

        An `end` of None stands for the log end. If possible, the records are read as text (`Reader.text`), which is
        faster than record by record.
        """
        from logfs.format.text.rendering import View

        view = View.ENVELOPES if self._json else View.LINES

        def read(
            reader: Reader, start: int, stop: int, by_record: bool
        ) -> Iterator[tuple[int, bytes]]:
            text = None
            if not by_record and stop - start > FEW:
                _prepare_bulk()
                text = read_text(reader, start, stop, view)
            if text is not None:
                yield from text
                return
            for record in reader.read(start, stop):
                yield record.offset + 1, self._shown(record, reader.name)
            yield stop, b""

        scan = LogScan(log, start, end, read)
        for part in scan:
            self.out.write(part)
        self.out.flush()
        return scan.whole


def _past_damage(reader: Reader, start: int, stop: int) -> Iterator[tuple[int, Chunk]]:
    """Yield (offset from which to read on, chunk) for the records at the offsets [start, stop).

    Damage is skipped, and not reported: the caller reports it when it reads the records again to print them.
    """
    at, by_record = start, False
    while at < stop:
        before = at
        try:
            for reached, chunk in read_chunks(reader, at, stop, by_record):
                yield reached, chunk
                at = reached
        except DamagedRange as damage:
            at = max(damage.next_offset, at)
            # If the damage covers no offsets, read by record from now on, to get past it, as `LogScan` does.
            by_record |= at == before


def _nth_offset(reader: Reader, start: int, stop: int, number: int) -> int:
    """Return the offset of record `number` (from 0) of those that can be read at the offsets [start, stop)."""
    for _, chunk in _past_damage(reader, start, stop):
        if number < len(chunk):
            return chunk[number].offset if isinstance(chunk, list) else int(chunk.offsets[number])
        number -= len(chunk)
    return stop


@cache
def _prepare_bulk() -> None:
    """Make large outputs faster: keep freed buffers in this process, and enlarge the pipe to which output goes."""
    keep_memory()
    # The call fails if standard output is not a pipe, or if the system's limit for pipes is reached.
    with suppress(OSError):
        fcntl.fcntl(sys.stdout.fileno(), fcntl.F_SETPIPE_SZ, _PIPE_BYTES)


_parsed = lru_cache(maxsize=1024)(FormatString)
