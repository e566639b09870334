"""The indexes that are built of whole runs of batches, against the rule for one batch after the other."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from logfs.format.base.batch_rows import (
    BATCH_COLUMNS,
    MAX_TIMESTAMP,
    NEXT_OFFSET,
    POSITION,
    SIZE,
    SPAN_BASE_OFFSET,
)
from logfs.format.text.rendering import NO_TEXT, TextSize
from logfs.log.disk.disk import Disk
from logfs.log.segment.batch_scanner import ScannedBatches
from logfs.log.segment.index import OffsetIndex, TimeEntry, TimeIndex
from logfs.log.segment.index_builder import IndexBuilder
from logfs.log.segment.text_index import TextEntry, TextIndex

BASE = 1000
# Nothing is read or written there: the entries are collected in memory.
NOWHERE = Path("/nonexistent")


class Batch(NamedTuple):
    """A batch: its size in bytes, its number of offsets, its greatest timestamp, and its text."""

    size: int
    offsets: int
    timestamp: int
    text: TextSize


BATCHES = st.lists(
    st.builds(
        Batch,
        st.integers(61, 300),
        st.integers(1, 3),
        st.integers(-1, 6),
        st.builds(TextSize, st.integers(0, 3), st.integers(0, 99), st.integers(0, 99)),
    ),
    max_size=40,
)


class Segment:
    """A segment that has only indexes."""

    def __init__(self) -> None:
        self.base_offset = BASE
        self.indexes = (
            OffsetIndex(Disk(), NOWHERE / "0.index", BASE),
            TimeIndex(Disk(), NOWHERE / "0.timeindex", BASE),
            TextIndex(Disk(), NOWHERE / "0.textindex", BASE),
        )


def runs(batches: list[Batch], cuts: set[int]) -> list[ScannedBatches]:
    """Return the batches as measured runs; a run begins at each of the numbers in `cuts`."""
    found: list[ScannedBatches] = []
    position, offset, start = 0, BASE, 0
    rows: list[np.ndarray] = []
    for number, batch in enumerate(batches):
        row = np.zeros(BATCH_COLUMNS, np.int64)
        row[POSITION], row[SIZE] = position - start, batch.size
        row[SPAN_BASE_OFFSET], row[NEXT_OFFSET] = offset, offset + batch.offsets
        row[MAX_TIMESTAMP] = batch.timestamp
        rows.append(row)
        position, offset = position + batch.size, offset + batch.offsets
        if number + 1 in cuts or number + 1 == len(batches):
            sizes = np.array([each.text for each in batches[: number + 1][-len(rows) :]], np.int64)
            found.append(ScannedBatches(start, memoryview(b""), np.array(rows), None, sizes))
            rows, start = [], position
    return found


@given(BATCHES, st.sets(st.integers(1, 40)), st.integers(0, 700), st.integers(8, 90))
@example([Batch(100, 1, 5, NO_TEXT)] * 9, set(), 0, 24)
@example([Batch(100, 1, 5, NO_TEXT)] * 9, set(), 99, 90)
@example([Batch(100, 1, number, NO_TEXT) for number in range(9)], {4}, 0, 36)
def test_indexes_follow_the_rule_for_each_batch(
    batches: list[Batch], cuts: set[int], interval_bytes: int, max_bytes: int
) -> None:
    """However the batches come in runs, each gets the entries that are due (kafka-storage 3.3), as far as they fit.

    An entry is due more than `interval_bytes` after the one before. The offset index takes `max_bytes`, and so does
    the time index but for its closing entry. The text index takes one entry more than the offset index.
    """
    segment = Segment()
    builder = IndexBuilder(segment, interval_bytes, max_bytes)  # type: ignore[arg-type]
    for run in runs(batches, cuts):
        builder.add(run)
    offsets: list[tuple[int, int]] = []
    times: list[TimeEntry] = []
    texts: list[TextEntry] = []
    position, offset, text, last, last_text = 0, BASE, NO_TEXT, 0, 0
    greatest = TimeEntry(-1, BASE)
    for batch in batches:
        if position - last_text > interval_bytes and len(texts) < max_bytes // 8 + 1:
            texts.append(TextEntry(offset, position, text))
            last_text = position
        text = text.plus(batch.text)
        end = offset + batch.offsets
        if batch.timestamp > greatest.timestamp:
            greatest = TimeEntry(batch.timestamp, end - 1)
        has_room = len(offsets) < max_bytes // 8 and len(times) < max_bytes // 12 - 1
        if position - last > interval_bytes and has_room:
            offsets.append((end - 1, position))
            if greatest.timestamp > (times[-1].timestamp if times else -1):
                times.append(greatest)
            last = position
        position, offset = position + batch.size, end
    assert [tuple(entry) for entry in segment.indexes[0]] == offsets
    assert list(segment.indexes[1]) == times
    assert list(segment.indexes[2]) == texts
    assert (builder.end, builder.text, builder.max_entry) == (offset, text, greatest)
