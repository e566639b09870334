"""The records of several logs merged by time, as text."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from logfs.format.base.lazy_numpy import np

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from numpy.typing import NDArray

    from logfs.format.batches.columns import Columns
    from logfs.format.batches.record import Record

    Chunk = Columns | list[Record]

# The text of up to this many records is joined without the compiled kernels: loading the kernels would take longer.
_FEW = 64


class MergedRows(NamedTuple):
    """Records of one or several logs as text, with the times by which the logs are merged.

    `text` (uint8[bytes]) has the records one after the other. The text of record i ends before byte `ends[i]`
    (int64[records]). `times` (int64[records], ms) never decrease. The time of a record is the greatest timestamp in
    its log up to and including this record.
    """

    times: NDArray[np.int64]
    text: NDArray[np.uint8]
    ends: NDArray[np.int64]

    def cut(self, first: int, end: int) -> MergedRows:
        """Return the records with the numbers [first, end)."""
        if first == 0 and end >= len(self.ends):
            return self
        start = int(self.ends[first - 1]) if first else 0
        ends = self.ends[first:end]
        stop = int(ends[-1]) if len(ends) else start
        return MergedRows(self.times[first:end], self.text[start:stop], ends - start)


def rising(chunk: Chunk, reached: int) -> NDArray[np.int64]:
    """Return for each record of a chunk the greatest timestamp (ms) in its log up to this record, as int64[records].

    `reached` is the greatest timestamp before the chunk, -1 if there is none.
    """
    if isinstance(chunk, list):
        times = np.array([-1 if r.timestamp is None else r.timestamp for r in chunk], np.int64)
    else:
        times = chunk.timestamps
    return np.maximum(np.maximum.accumulate(times), reached)


def merge(streams: Sequence[Iterable[MergedRows]]) -> Iterator[MergedRows]:
    """Yield the records of several logs in the order of (time, number of the log in `streams`, offset).

    The order of each log's records is kept. Each log is read ahead only as far as the order requires.
    """
    waiting = [_Waiting(number, iter(stream)) for number, stream in enumerate(streams)]
    while waiting := [each for each in waiting if each.fill()]:
        # Compare the last row that was read of each log, and find the earliest: all rows not yet read come after it.
        last = min(waiting, key=lambda each: (each.rows.times[-1], each.number))
        end = last.rows.times[-1]
        parts = [(each.number, each.take(end, ties=each.number <= last.number)) for each in waiting]
        yield _in_order([(number, rows) for number, rows in parts if len(rows.ends)])


class _Waiting:
    """The rows of a log that have been read but not merged yet."""

    def __init__(self, number: int, stream: Iterator[MergedRows]) -> None:
        self.number = number
        self._stream = stream
        self.rows = MergedRows(np.empty(0, np.int64), np.empty(0, np.uint8), np.empty(0, np.int64))

    def fill(self) -> bool:
        """Read more rows if none is left; return False at the end of the log."""
        while not len(self.rows.ends):
            rows = next(self._stream, None)
            if rows is None:
                return False
            self.rows = rows
        return True

    def take(self, end: int, *, ties: bool) -> MergedRows:
        """Remove and return the rows with a time before `end` (ms) and, with `ties`, those with the time `end`."""
        count = int(np.searchsorted(self.rows.times, end, side="right" if ties else "left"))
        taken, self.rows = self.rows.cut(0, count), self.rows.cut(count, len(self.rows.ends))
        return taken


def _in_order(parts: Sequence[tuple[int, MergedRows]]) -> MergedRows:
    if len(parts) == 1:
        return parts[0][1]
    times = np.concatenate([rows.times for _, rows in parts])
    numbers = np.concatenate([np.full(len(rows.ends), number) for number, rows in parts])
    # This sort is stable, so the rows of a log stay in their order.
    order = np.lexsort((numbers, times))
    text = np.concatenate([rows.text for _, rows in parts])
    shifts = np.cumsum([0, *(len(rows.text) for _, rows in parts)])
    ends = np.concatenate(
        [rows.ends + shift for (_, rows), shift in zip(parts, shifts[:-1], strict=True)]
    )
    starts = np.concatenate(([0], ends[:-1]))
    sizes = (ends - starts)[order]
    return MergedRows(times[order], _gathered(text, starts, ends, order), np.cumsum(sizes))


def _gathered(
    text: NDArray[np.uint8],
    starts: NDArray[np.int64],
    ends: NDArray[np.int64],
    order: NDArray[np.int64],
) -> NDArray[np.uint8]:
    """Return the parts text[starts[n]:ends[n]] for each n of `order`, one after the other."""
    if len(order) <= _FEW:
        return np.concatenate([text[starts[number] : ends[number]] for number in order])
    from logfs.format.kernels import text_kernels

    out = np.empty(len(text), np.uint8)
    text_kernels.gather(text, starts, ends, order, out)
    return out


def last(rows: Iterable[MergedRows], count: int) -> list[MergedRows]:
    """Return the last `count` records of `rows`, or all if there are fewer."""
    kept: list[MergedRows] = []
    total = 0
    for each in rows:
        kept.append(each)
        total += len(each.ends)
        while kept and total - len(kept[0].ends) >= count:
            total -= len(kept.pop(0).ends)
    if total > count:
        kept[0] = kept[0].cut(total - count, len(kept[0].ends))
    return kept
