"""Builds sealed batches from columns of records, without an object for each record: the reverse of `batches.columns`.

Columns of byte strings have Arrow's layout: the bytes of all values in one array, and the positions in it where each
value starts and ends. Positions and lengths are in bytes, timestamps in ms since the epoch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from logfs.errors import InvalidRecord
from logfs.format.batches.batch import HEADER_SIZE
from logfs.format.batches.record import NO_TIMESTAMP
from logfs.format.encoding.batch_builder import BatchFormat, sealed, too_large
from logfs.format.kernels.batch_kernels import put_varint, varlong_size
from logfs.format.kernels.kernel import kernel
from logfs.format.text.rendering import TextSize

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from logfs.format.encoding.batch_builder import NewBatch

    Bytes = NDArray[np.uint8]
    Int64s = NDArray[np.int64]
    Flags = NDArray[np.bool_]

# The largest size in bytes of the uncompressed records in a batch of several records. A batch is read, checked and
# decompressed as a whole: this size is large enough to compress well, and small enough to be read for one record.
TARGET_BYTES = 128 * 1024
# The largest size in bytes of a record without its key, value and headers: record length, attributes, timestamp
# delta, offset delta, key length, value length, header count.
_FIXED_BYTES = 5 + 1 + 10 + 5 + 5 + 5 + 5
# The largest size in bytes of a header without its name and value: the lengths of both.
_HEADER_BYTES = 5 + 5


class Binary(NamedTuple):
    """A column of byte strings: value i is data[offsets[i]:offsets[i + 1]], or null if nulls[i] is set."""

    data: Bytes
    offsets: Int64s
    nulls: Flags

    @classmethod
    def all_null(cls, count: int) -> Binary:
        """Return a column of `count` nulls."""
        return cls(
            np.frombuffer(b"", np.uint8), np.zeros(count + 1, np.int64), np.ones(count, np.bool_)
        )


class Rows(NamedTuple):
    """Records as columns: each has a key, a value, a timestamp (-1 for none), and any number of headers.

    `header_keys` and `header_values` have one value for each header. The headers of record i are those with the
    numbers from header_offsets[i] up to but excluding header_offsets[i + 1].
    """

    keys: Binary
    values: Binary
    timestamps: Int64s
    header_offsets: Int64s
    header_keys: Binary
    header_values: Binary


def build_rows(rows: Rows, order: Int64s, form: BatchFormat) -> Iterator[NewBatch]:
    """Yield complete batches (with header and CRC) of the rows whose numbers are in `order`, in that order.

    `form` has the codec, the timestamp type and the size limits of the batches. The bytes of a batch are valid until
    the next batch is requested. The records of a batch take at most `TARGET_BYTES` before compression; a larger
    record is alone in its batch. The sizes of the records as text are not measured: `NewBatch.text` has only the
    number of records, and 0 for both sizes. Raises `RecordTooLarge` for a batch that is larger than
    `form.limit_bytes`, and `InvalidRecord` for a timestamp below -1.
    """
    times = rows.timestamps[order]
    if len(order) and times.min() < NO_TIMESTAMP:
        raise InvalidRecord(f"timestamp {times.min()} of a record is negative; give ms since 1970")
    bounds = np.empty(len(rows.timestamps), np.int64)
    _bound_rows(
        rows.keys.offsets,
        rows.values.offsets,
        rows.header_offsets,
        rows.header_keys.offsets,
        rows.header_values.offsets,
        bounds,
    )
    target = min(TARGET_BYTES, form.records_limit)
    out = np.empty(HEADER_SIZE + max(target, int(bounds[order].max(initial=0))), np.uint8)
    first = 0
    while first < len(order):
        count, end = _encode_rows(
            order, first, HEADER_SIZE + target, bounds, *rows.keys, *rows.values, rows.timestamps,
            rows.header_offsets, *rows.header_keys, *rows.header_values, out, HEADER_SIZE,
        )  # fmt: skip
        stamps = times[first : first + count]
        batch = sealed(
            out[:end].data,
            form,
            count,
            int(stamps[0]),
            int(stamps.max()),
            TextSize(count, 0, 0),
        )
        if len(batch.data) > form.limit_bytes:
            raise too_large(len(batch.data), form)
        yield batch
        first += count


def partitions_of(keys: Binary, count: int) -> NDArray[np.int32]:
    """Return the partition that Kafka's default partitioner chooses for each key, as int32[n].

    `count` is the number of partitions. For a null key the result is -1.
    """
    found = np.empty(len(keys.nulls), np.int32)
    _partition(*keys, count, found)
    return found


# The functions below are compiled loops.


@kernel
def _bound_rows(
    key_offsets: Int64s,
    value_offsets: Int64s,
    header_offsets: Int64s,
    header_key_offsets: Int64s,
    header_value_offsets: Int64s,
    bounds: Int64s,
) -> None:
    """Set bounds[row], for each row, to an upper bound of its record's size in bytes."""
    for row in range(len(bounds)):
        size = _FIXED_BYTES + key_offsets[row + 1] - key_offsets[row]
        size += value_offsets[row + 1] - value_offsets[row]
        first, last = header_offsets[row], header_offsets[row + 1]
        size += header_key_offsets[last] - header_key_offsets[first]
        size += header_value_offsets[last] - header_value_offsets[first]
        bounds[row] = size + (last - first) * _HEADER_BYTES


@kernel
def _put_bytes(out: Bytes, position: int, data: Bytes, start: int, length: int) -> int:
    """Write the varint `length` and the bytes data[start : start + length] to `out`. Return the position after them.

    A length of -1 stands for null, which has no bytes.
    """
    position = put_varint(out, position, length)
    if length > 32:
        out[position : position + length] = data[start : start + length]
        return position + length
    for index in range(length):
        out[np.uint64(position + index)] = data[np.uint64(start + index)]
    return position + max(length, 0)


@kernel
def _length(offsets: Int64s, nulls: Flags, row: int) -> int:
    return -1 if nulls[row] else int(offsets[row + 1] - offsets[row])


@kernel
def _encode_rows(
    order: Int64s,
    first: int,
    limit: int,
    bounds: Int64s,
    key_data: Bytes,
    key_offsets: Int64s,
    key_nulls: Flags,
    value_data: Bytes,
    value_offsets: Int64s,
    value_nulls: Flags,
    timestamps: Int64s,
    header_offsets: Int64s,
    header_key_data: Bytes,
    header_key_offsets: Int64s,
    header_key_nulls: Flags,
    header_value_data: Bytes,
    header_value_offsets: Int64s,
    header_value_nulls: Flags,
    out: Bytes,
    position: int,
) -> tuple[int, int]:
    """Write the records of the rows order[first], order[first + 1], … to `out` at `position` (kafka-storage 2.2).

    The first record is always written. Each further one is written only if it is certain to end at or before the
    position `limit` of `out`: bounds[row] is an upper bound of the size of a row's record. The other arrays are the
    columns of `Rows`. Returns (number of records written, position after the last of them).
    """
    base = timestamps[order[first]]
    count = 0
    for number in range(first, len(order)):
        row = order[number]
        if count and position + bounds[row] > limit:
            break
        delta = timestamps[row] - base
        key_length = _length(key_offsets, key_nulls, row)
        value_length = _length(value_offsets, value_nulls, row)
        start, end = header_offsets[row], header_offsets[row + 1]
        size = 1 + varlong_size(delta) + varlong_size(count) + varlong_size(end - start)
        size += (
            varlong_size(key_length)
            + max(key_length, 0)
            + varlong_size(value_length)
            + max(value_length, 0)
        )
        for header in range(start, end):
            length = header_key_offsets[header + 1] - header_key_offsets[header]
            size += varlong_size(length) + length
            length = _length(header_value_offsets, header_value_nulls, header)
            size += varlong_size(length) + max(length, 0)
        position = put_varint(out, position, size)
        out[position] = 0
        position = put_varint(out, position + 1, delta)
        position = put_varint(out, position, count)
        position = _put_bytes(out, position, key_data, key_offsets[row], key_length)
        position = _put_bytes(out, position, value_data, value_offsets[row], value_length)
        position = put_varint(out, position, end - start)
        for header in range(start, end):
            at = header_key_offsets[header]
            length = header_key_offsets[header + 1] - at
            position = _put_bytes(out, position, header_key_data, at, length)
            length = _length(header_value_offsets, header_value_nulls, header)
            at = header_value_offsets[header]
            position = _put_bytes(out, position, header_value_data, at, length)
        count += 1
    return count, position


@kernel
def _murmur2(data: Bytes, start: int, length: int) -> int:
    """Return Kafka's 32-bit murmur2 hash of data[start : start + length]."""
    mask = np.uint64(0xFFFFFFFF)
    factor = np.uint64(0x5BD1E995)
    result = np.uint64(0x9747B28C) ^ np.uint64(length)
    for block in range(length // 4):
        at = start + 4 * block
        word = np.uint64(data[at]) | np.uint64(data[at + 1]) << np.uint64(8)
        word |= np.uint64(data[at + 2]) << np.uint64(16) | np.uint64(data[at + 3]) << np.uint64(24)
        word = (word * factor) & mask
        word ^= word >> np.uint64(24)
        result = ((result * factor) & mask) ^ ((word * factor) & mask)
    at = start + length // 4 * 4
    left = length % 4
    if left > 2:
        result ^= np.uint64(data[at + 2]) << np.uint64(16)
    if left > 1:
        result ^= np.uint64(data[at + 1]) << np.uint64(8)
    if left > 0:
        result = ((result ^ np.uint64(data[at])) * factor) & mask
    result ^= result >> np.uint64(13)
    result = (result * factor) & mask
    return int(result ^ (result >> np.uint64(15)))


@kernel
def _partition(
    data: Bytes, offsets: Int64s, nulls: Flags, count: int, found: NDArray[np.int32]
) -> None:
    for row in range(len(nulls)):
        if nulls[row]:
            found[row] = -1
        else:
            length = offsets[row + 1] - offsets[row]
            found[row] = (_murmur2(data, offsets[row], length) & 0x7FFFFFFF) % count
