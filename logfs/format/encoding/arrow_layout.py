"""Fields of records copied to contiguous memory, in Arrow's layout for columns of byte strings.

A column of n values has int32 offsets[n + 1] into its bytes, and a bitmap with one bit per row, lowest bit first. The
bit of a row is set if its value is not null. The loops are compiled by numba. Import this module only for bulk work,
because numba takes a quarter of a second to load.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from logfs.errors import Corrupt
from logfs.format.kernels.batch_kernels import get_varint
from logfs.format.kernels.kernel import copy_bytes, kernel

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from logfs.format.batches.columns import Columns

# The most bytes that one column can have: its offsets are int32.
_MOST_BYTES = 2**31 - 1


class GatheredField(NamedTuple):
    """One field of n rows in Arrow's layout: value i is data[offsets[i] : offsets[i + 1]].

    `offsets` is int32[n + 1]. `validity` is a bitmap, lowest bit first; bit i is set if value i is not null. `nulls`
    is the number of rows that are null.
    """

    offsets: NDArray[np.int32]
    data: NDArray[np.uint8]
    validity: NDArray[np.uint8]
    nulls: int


def check_fits(total_bytes: int) -> None:
    """Raise `ValueError` if the values of one column have 2 GiB or more in total."""
    if total_bytes > _MOST_BYTES:
        raise ValueError(
            f"{total_bytes} bytes do not fit in one column, whose offsets are int32; read fewer records at a time"
        )


@kernel
def _gather(
    data: NDArray[np.uint8],
    starts: NDArray[np.int64],
    lengths: NDArray[np.int32],
    offsets: NDArray[np.int32],
    out: NDArray[np.uint8],
    validity: NDArray[np.uint8],
) -> int:
    """Copy the values data[starts[i] : starts[i] + lengths[i]] to `out`, one after the other.

    A length of -1 stands for null. Writes where each value begins in `out`, and where the last one ends, to
    `offsets`. Sets the bit of each value that is not null in `validity`, which must be zero before. Returns the
    number of nulls.
    """
    position = np.int64(0)
    nulls = 0
    offsets[0] = 0
    for row in range(len(starts)):
        length = np.int64(lengths[row])
        if length < 0:
            nulls += 1
        else:
            validity[row >> 3] |= np.uint8(1 << (row & 7))
            copy_bytes(out, position, data, starts[row], length)
            position += length
        offsets[row + 1] = position
    return nulls


def gather(
    data: NDArray[np.uint8], starts: NDArray[np.int64], lengths: NDArray[np.int32]
) -> GatheredField:
    """Copy the values data[starts[i] : starts[i] + lengths[i]] into one field; a length of -1 stands for null.

    Raises `ValueError` if the values have 2 GiB or more in total.
    """
    total = int(np.maximum(lengths, 0).sum(dtype=np.int64))
    check_fits(total)
    offsets = np.empty(len(starts) + 1, np.int32)
    out = np.empty(total, np.uint8)
    validity = np.zeros((len(starts) + 7) // 8, np.uint8)
    nulls = int(_gather(data, starts, lengths, offsets, out, validity))
    return GatheredField(offsets, out, validity, nulls)


@kernel
def _locate_headers(
    data: NDArray[np.uint8],
    starts: NDArray[np.int64],
    ends: NDArray[np.int64],
    counts: NDArray[np.int32],
    key_starts: NDArray[np.int64],
    key_lengths: NDArray[np.int32],
    value_starts: NDArray[np.int64],
    value_lengths: NDArray[np.int32],
) -> int:
    """Find the key and the value of each header of all rows: their start positions in `data`, and their lengths.

    Row i has counts[i] headers in data[starts[i] : ends[i]]. The result is written to the last four arrays, an item
    for each header; a null value gets the length -1. Returns the number of the first row whose headers are malformed,
    or len(starts) if there is none.
    """
    number = 0
    for row in range(len(starts)):
        position, end = starts[row], ends[row]
        for _ in range(counts[row]):
            length, position = get_varint(data, position, end, 5)
            if position < 0 or length < 0 or position + length > end:
                return row
            key_starts[number], key_lengths[number] = position, length
            length, position = get_varint(data, position + length, end, 5)
            if position < 0 or length < -1 or position + max(length, 0) > end:
                return row
            value_starts[number], value_lengths[number] = position, length
            position += max(length, 0)
            number += 1
        if position != end:
            return row
    return len(starts)


def gather_headers(columns: Columns) -> tuple[NDArray[np.int32], GatheredField, GatheredField]:
    """Return the headers of all rows as (offsets, keys, values).

    `offsets` is int32[n + 1]: row i has the headers from offsets[i] up to offsets[i + 1]. `keys` and `values` have
    one value for each header. Raises `Corrupt` for malformed headers, and `ValueError` if the keys or the values have
    2 GiB or more in total.
    """
    counts = columns.header_counts
    total = int(counts.sum(dtype=np.int64))
    # The shortest header has two bytes. Without this check, wrong header counts could cause an allocation of any
    # size.
    if total * 2 > int((columns.header_ends - columns.header_starts).sum()):
        raise Corrupt(
            "the header counts of the records add up to more headers than fit in their bytes"
        )
    offsets = np.zeros(len(counts) + 1, np.int32)
    np.cumsum(counts, out=offsets[1:])
    key_starts, value_starts = np.empty(total, np.int64), np.empty(total, np.int64)
    key_lengths, value_lengths = np.empty(total, np.int32), np.empty(total, np.int32)
    places = key_starts, key_lengths, value_starts, value_lengths
    done = _locate_headers(
        columns.data, columns.header_starts, columns.header_ends, counts, *places
    )
    if done < len(counts):
        raise Corrupt(f"the headers of the record at offset {columns.offsets[done]} are malformed")
    keys = gather(columns.data, key_starts, key_lengths)
    return offsets, keys, gather(columns.data, value_starts, value_lengths)
