"""Reads the records of a log, which other processes may change, and skips ranges that cannot be read."""

from __future__ import annotations

import sys
from functools import lru_cache
from typing import TYPE_CHECKING, Generic, TypeVar

from logfs.errors import OffsetOutOfRange
from logfs.format.batches.batch import FEW
from logfs.log.disk.disk import TRIES, Gone
from logfs.log.segment.batch_iterator import Damage, DamagedRange

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from logfs.cli.reading import OpenLog
    from logfs.format.text.rendering import View
    from logfs.log.read.merge import Chunk
    from logfs.log.read.reader import Reader
    from logfs.log.segment.segment import Segment

T = TypeVar("T")

if TYPE_CHECKING:
    ReadNext = Callable[[Reader, int, int, bool], Iterator[tuple[int, T]]]

_TEXT_BYTES = 1 << 20
# How many bytes of a log are read at a time as columns.
_SPLIT_BYTES = 64 << 20
# A scan reads a log in rounds: if the log was compacted during a round, the next round continues up to the new
# log end. This is the largest number of rounds.
_ROUNDS = 20


class LogScan(Generic[T]):
    """An iterable over the records at the offsets [start, end) of a log, in the parts that a function `read` yields.

    A part has the next records, for example as text or as a list. `whole` is True until a range of offsets is
    skipped.

    Damaged ranges, and ranges that retention drops before they are read, are reported on standard error and skipped.
    If the log is compacted during the scan, a record may be removed before it is read, because a newer record has its
    key. If `end` is None, the scan then continues up to the new log end, so that it reads the newer record.
    """

    def __init__(
        self,
        log: OpenLog,
        start: int,
        end: int | None,
        read: ReadNext[T],
    ) -> None:
        """Prepare a scan of `log`. Nothing is read yet. An `end` of None stands for the log end.

        The scan calls `read(reader, start, stop, by_record)`, which must yield pairs (offset, part) for the offsets
        [start, stop). A part has the next records. All records below `offset` must be in this part or in earlier
        ones, because the scan continues at `offset` if it must call `read` again. `read` may end before `stop`: the
        scan then calls it for the rest. If `by_record` is True, `read` must read record by record, because a read in
        larger pieces would meet the same damage again. `read` must raise these errors:

        - `DamagedRange` at damage.
        - `Gone` if another process has deleted or cut a file. The scan then calls `read` again.
        - `OffsetOutOfRange` instead of `Gone` if the parts so far have records at or above the last `offset`: another
          call would yield these records twice.
        """
        self.log = log
        self._start = start
        self._end = end
        self._read = read
        self.whole = True

    def __iter__(self) -> Iterator[T]:
        """Yield the parts that `read` yields.

        Raises `UnknownPartition` if the partition was deleted. Raises `Gone` or `FileNotFoundError` if the partition
        was deleted and created again, or if `TRIES` attempts in a row find that a file was deleted or cut. An
        `OffsetOutOfRange` that `read` raises is raised here, too, unless retention has dropped the next records.
        """
        log, start, end = self.log, self._start, self._end
        by_record = False
        stop, seen = start, None
        tries, rounds = TRIES, _ROUNDS
        while True:
            reader, before = log.reader, start
            try:
                if start >= stop:
                    # Compare the reader, too: a moved partition has a new reader, whose generations begin anew.
                    if (reader, reader.generation) == seen or not rounds:
                        return
                    seen, rounds = (reader, reader.generation), rounds - 1
                    stop = _stop(reader, end)
                    continue
                first = reader.log_start_offset
                if start < first:
                    self._report(
                        f"{reader.name.directory}: offsets {start} to {min(first, stop) - 1} left the log (retention "
                        "or deletion) before they could be printed"
                    )
                    start = first
                    continue
                for reached, part in self._read(reader, start, stop, by_record):
                    yield part
                    start = reached
            except DamagedRange as damage:
                self._report(str(damage))
                start = max(damage.next_offset, start)
                # Damage before the first record of a segment covers no offsets. Then `start` is the same as before
                # the read, and another read in large pieces would meet the same damage. So read by record from now
                # on: such a read starts after the damage.
                by_record |= start == before
            except (Gone, FileNotFoundError):
                # Another process has compacted or moved the partition.
                tries = tries - 1 if start == before else TRIES
                if not tries or log.look_again():
                    raise
            except OffsetOutOfRange:
                if start >= reader.log_start_offset:
                    raise

    def _report(self, what: str) -> None:
        self.whole = False
        sys.stdout.flush()
        print(f"logfs: {what}", file=sys.stderr)


def _stop(reader: Reader, end: int | None) -> int:
    return reader.log_end_offset if end is None else min(end, reader.log_end_offset)


def read_records(
    reader: Reader, start: int, stop: int, by_record: bool, *, limit: int | None = None
) -> Iterator[tuple[int, Chunk]]:
    """Yield (offset + 1, [record]) for each record at the offsets [start, stop), and (stop, []) at the end.

    With `limit`, only the first so many records are read.

    Pass this function to `LogScan` as `read`. It reads record by record whether `by_record` is True or not. The read
    continues across segment boundaries. A read that stopped at a boundary would not notice damage that follows the
    last offset of the segment.
    """
    for record in reader.read(start, stop, limit=limit):
        yield record.offset + 1, [record]
    yield stop, []


def read_chunks(
    reader: Reader, start: int, stop: int, by_record: bool, *, split_bytes: int = _SPLIT_BYTES
) -> Iterator[tuple[int, Chunk]]:
    """Yield (offset, columns) for the records at the offsets [start, stop); `offset` is that after the last record.

    A pair (offset, []) says that no more records lie below `offset`. Pass this function to `LogScan` as `read`. It
    reads about `split_bytes` of the log at a time. With `by_record`, or for at most `FEW` offsets, it reads records
    one by one, and yields each as a list.
    """
    if by_record or stop - start <= FEW:
        yield from read_records(reader, start, stop, by_record)
        return
    from logfs.log.scan import scan_split

    for split in scan_split.plan(reader, start, stop, split_bytes=split_bytes):
        for found in scan_split.read(split):
            if isinstance(found, DamagedRange):
                raise found
            yield int(found.offsets[-1]) + 1, found
        yield split.end_offset, []
    yield stop, []


def read_text(
    reader: Reader, start: int, stop: int, view: View
) -> Iterator[tuple[int, bytes]] | None:
    """Return an iterator over pairs (offset, text) for the records from `start` on, as `LogScan` expects of `read`.

    It ends at the offset `stop` or at the end of the segment of `start`, whichever comes first. `view` tells whether
    the text has lines or envelopes. The result is None if the segment has damage that a read of its text may not
    notice: the caller must then read record by record.
    """
    segment = reader.log.state.segments_from(start)[0]
    if _may_hide_damage(segment, segment.size_bytes):
        return None
    return _text(reader, start, segment, stop, view)


def _text(
    reader: Reader, start: int, segment: Segment, stop: int, view: View
) -> Iterator[tuple[int, bytes]]:
    until = stop if segment.next_base is None else min(stop, segment.next_base)
    text = reader.text(view, start, until)
    position = 0
    try:
        while data := text.read(position, _TEXT_BYTES, up_to_damage=True):
            yield start, data
            position += len(data)
    except Gone as gone:
        if position:
            raise OffsetOutOfRange(str(gone)) from None
        raise
    yield until, b""


@lru_cache(maxsize=1)
def _may_hide_damage(segment: Segment, size_bytes: int) -> bool:
    """Whether a segment has damage that a read of its text may not notice.

    A read of the text skips batches without text, such as control batches, and the damage next to them. There is no
    such damage if the text has as many records as the segment has offsets. If fewer, the segment is scanned for
    damage. A remote segment is never scanned: the result is False.

    `size_bytes` is the present size of the segment. It is only part of the key of `lru_cache`: a segment that has
    grown is scanned again.
    """
    from logfs.log.segment import batch_scanner

    if segment.disk.is_remote:
        # The scan would fetch the whole segment once more.
        return False
    if segment.end.text.records == segment.next_offset - segment.base_offset:
        return False
    found = batch_scanner.scan_segment(segment, 0, segment.base_offset)
    return any(isinstance(each, Damage) for each in found)
