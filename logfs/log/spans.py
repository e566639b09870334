"""Many small batches at once: the walk of `logfs.log.walk` for the case that nothing is wrong, at kernel speed.

A service that writes one line at a time leaves hundreds of batches in a block of the log; a Python step for each
field of each of them would cost more than all the reading.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from crc32c import crc32c

from logfs.format.batch import CONTROL_BIT, CRC_START, HEADER_SIZE, Batch, parse_header
from logfs.format.columns import decode_columns

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from logfs.format.columns import Columns
    from logfs.log.segment import Segment


def scan(
    data: bytes, segment: Segment, position: int, first_offset: int
) -> NDArray[np.int64] | None:
    """The batches that fill `data`, read at a position of a segment, as rows of `kernels.scan_batches`.

    `first_offset` is the lowest that the first may have, and in a log without gaps the one it must have. None
    unless every check of the careful walk passes; who gets None takes the careful walk.
    """
    from logfs.format import kernels

    rows = np.empty((len(data) // HEADER_SIZE + 1, kernels.BATCH_COLUMNS), np.int64)
    count = kernels.scan_batches(np.frombuffer(data, np.uint8), first_offset, segment.gaps, rows)
    if count < 0:
        return None
    rows = rows[:count]
    view = memoryview(data)
    for start, size, crc in rows[:, :3].tolist():
        if crc32c(view[start + CRC_START : start + size]) != crc:
            return None
    expected = int(rows[-1, kernels.NEXT_OFFSET]) if count else first_offset
    return rows if _leads_on(segment, position + len(data), expected) else None


def _leads_on(segment: Segment, position: int, expected: int) -> bool:
    """Whether the last batch leads to what follows: its offsets are not under the CRC."""
    if segment.gaps:
        return True
    if position >= segment.size_bytes:
        return expected == segment.next_offset
    following = segment.read(position, HEADER_SIZE)
    return len(following) < HEADER_SIZE or parse_header(following).base_offset == expected


def decode(data: bytes, rows: NDArray[np.int64]) -> Iterator[Columns]:
    """The records of scanned batches as columns, in order; neighbours that need no unpacking in one go.

    Control batches are left out. `Corrupt` as `Batch.columns`.
    """
    from logfs.format import kernels

    simple = rows[:, kernels.ATTRIBUTES] == 0
    cuts = np.flatnonzero(simple[1:] != simple[:-1]) + 1
    for group in np.split(rows, cuts):
        if not len(group):
            continue
        if group[0, kernels.ATTRIBUTES] == 0:
            yield decode_columns(data, group[:, kernels.SPAN_START :])
            continue
        for position, attributes in group[:, [kernels.POSITION, kernels.ATTRIBUTES]].tolist():
            if not attributes & CONTROL_BIT:
                yield Batch.parse(data, position).columns()
