"""Records as Arrow batches with the columns of Spark's Kafka source, without a Python object per record.

This module imports pyarrow, which may not be installed. Therefore this module is imported only by `logfs.spark`, and
by `PartitionColumns` when it makes a table.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa

from logfs.format.batches.columns import concatenate

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from logfs.format.batches.columns import Columns
    from logfs.format.encoding.arrow_layout import GatheredField

    Maker = Callable[[pa.DataType], pa.Array]

SCHEMA = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("ms", "UTC")),
        ("timestampType", pa.int32()),
        ("headers", pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
    ]
)
"""All columns of Spark's Kafka source."""

# The limits of an Arrow batch. The number of rows is large enough that the fixed cost of a batch is negligible. The
# number of bytes is small enough that the allocator reuses the memory of the previous batch.
_BATCH_ROWS = 20_000
_BATCH_BYTES = 2 << 20
# How many units of an Arrow timestamp a millisecond has, by the name of the unit.
_PER_MS = {"ms": 1, "us": 1000}
# The least and the greatest time, in ms, that fit Spark's type of timestamps, an int64 in microseconds.
FIRST_MS, LAST_MS = -(2**63) // 1000 + 1, (2**63 - 1) // 1000


class ArrowRun(NamedTuple):
    """Records of one partition, in the order of their offsets."""

    topic: str
    partition: int
    columns: Columns


class BatchMaker:
    """Makes Arrow record batches with a given schema. Columns that are not in this schema are not built."""

    def __init__(self, schema: pa.Schema) -> None:
        """Set the schema of the batches.

        `schema` has some or all columns of `SCHEMA`. The unit of `timestamp` is ms or us.
        """
        self._schema = schema

    def batch(self, runs: Sequence[ArrowRun]) -> pa.RecordBatch:
        """Return the records of `runs` as one Arrow batch.

        Raises `ValueError` if the keys, the values, the header keys or the header values have 2 GiB or more in total.
        Raises `Corrupt` for malformed headers.
        """
        # Imported here, not at the top of the module, because `arrow_layout` loads numba.
        from logfs.format.encoding.arrow_layout import gather

        counts = [len(run.columns) for run in runs]
        # Concatenate only if the schema has a column of bytes (key, value or headers), and then only once.
        joined = functools.cache(lambda: concatenate([run.columns for run in runs]))

        def numbers(name: str) -> np.ndarray:
            return np.concatenate([getattr(run.columns, name) for run in runs])

        def binary(kind: str) -> pa.Array:
            columns = joined()
            starts, lengths = (getattr(columns, f"{kind}_{end}") for end in ("starts", "lengths"))
            return binary_array(gather(columns.data, starts, lengths))

        def each(values: Sequence[int]) -> pa.Array:
            return _numbers(np.repeat(np.array(values, np.int32), counts))

        makers: dict[str, Maker] = {
            "key": lambda _: binary("key"),
            "value": lambda _: binary("value"),
            "topic": lambda _: _repeated([run.topic.encode() for run in runs], counts),
            "partition": lambda _: each([run.partition for run in runs]),
            "offset": lambda _: _numbers(numbers("offsets")),
            "timestamp": lambda kind: _timestamps(numbers("timestamps"), kind),
            "timestampType": lambda _: _numbers(numbers("timestamp_types").astype(np.int32)),
            "headers": lambda kind: _headers(joined(), kind),
        }
        arrays = [makers[field.name](field.type) for field in self._schema]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)


def table(topic: str, partition: int, columns: Columns) -> pa.Table:
    """Return records of a partition as a table with the columns of `SCHEMA`.

    Raises `ValueError` if the keys, the values, the header keys or the header values have 2 GiB or more in total.
    Raises `Corrupt` for malformed headers.
    """
    return pa.Table.from_batches([BatchMaker(SCHEMA).batch([ArrowRun(topic, partition, columns)])])


def grouped(runs: Iterable[ArrowRun]) -> Iterator[list[ArrowRun]]:
    """Split runs into groups, and yield these in the order of `runs`. Each group is to become one Arrow batch.

    A group has at most 20,000 records and about 2 MiB of keys, values and headers. A run that exceeds this by itself
    is split into parts of equal numbers of records, so a part with a few very large records may exceed 2 MiB.
    """
    waiting: list[ArrowRun] = []
    rows = size = 0
    for run in runs:
        for columns, bytes_here in _bounded(run.columns):
            if waiting and (rows + len(columns) > _BATCH_ROWS or size + bytes_here > _BATCH_BYTES):
                yield waiting
                waiting, rows, size = [], 0, 0
            waiting.append(run._replace(columns=columns))
            rows += len(columns)
            size += bytes_here
    if waiting:
        yield waiting


def _payload(columns: Columns) -> int:
    """Return the total size in bytes of the keys, values and headers of the records.

    The result is slightly low: a null key or value counts as -1 byte, because `Columns` has the length -1 for it.
    """
    payload = columns.key_lengths.sum(dtype=np.int64) + columns.value_lengths.sum(dtype=np.int64)
    return int(payload + columns.header_ends.sum() - columns.header_starts.sum())


def _bounded(columns: Columns) -> Iterator[tuple[Columns, int]]:
    """Yield the records in one or more parts, each for at most one Arrow batch, as (part, its size in bytes).

    The limits of a part are those of a group in `grouped`.
    """
    size = _payload(columns)
    parts = max(-(-len(columns) // _BATCH_ROWS), -(-size // _BATCH_BYTES), 1)
    rows = max(-(-len(columns) // parts), 1)
    if rows >= len(columns):
        yield columns, size
        return
    for first in range(0, len(columns), rows):
        part = columns.select(slice(first, first + rows))
        yield part, _payload(part)


def _numbers(values: np.ndarray, kind: pa.DataType | None = None) -> pa.Array:
    kind = kind or pa.from_numpy_dtype(values.dtype)
    return pa.Array.from_buffers(
        kind, len(values), [None, pa.py_buffer(np.ascontiguousarray(values))]
    )


def _timestamps(times_ms: np.ndarray, kind: pa.DataType) -> pa.Array:
    """Return times as an Arrow array of the type `kind`. A time that does not fit the type becomes null."""
    factor = _PER_MS[kind.unit]
    fits = (times_ms >= FIRST_MS) & (times_ms <= LAST_MS)
    if factor == 1 or fits.all():
        return _numbers(times_ms * factor, kind)
    values = np.where(fits, times_ms, 0) * factor
    validity = np.packbits(fits, bitorder="little")
    buffers = [pa.py_buffer(validity), pa.py_buffer(values)]
    return pa.Array.from_buffers(kind, len(values), buffers, int((~fits).sum()))


def binary_array(field: GatheredField, kind: pa.DataType | None = None) -> pa.Array:
    """Return the values of one field as an Arrow array of the type `kind`; None stands for the type binary.

    `kind` must have the same memory layout as the type binary, like the type string.
    """
    validity = pa.py_buffer(field.validity) if field.nulls else None
    buffers = [validity, pa.py_buffer(field.offsets), pa.py_buffer(field.data)]
    return pa.Array.from_buffers(kind or pa.binary(), len(field.offsets) - 1, buffers, field.nulls)


def _repeated(texts: Sequence[bytes], counts: Sequence[int]) -> pa.Array:
    """Return an Arrow array of strings in which texts[i] is repeated counts[i] times.

    Raises `ValueError` if the strings have 2 GiB or more in total.
    """
    from logfs.format.encoding.arrow_layout import check_fits

    lengths = np.repeat(np.array([*map(len, texts)], np.int64), counts)
    check_fits(int(lengths.sum()))
    offsets = np.zeros(len(lengths) + 1, np.int32)
    np.cumsum(lengths, out=offsets[1:])
    data = b"".join(text * count for text, count in zip(texts, counts, strict=True))
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.string(), sum(counts), buffers)


def _headers(columns: Columns, kind: pa.DataType) -> pa.Array:
    """Return an Arrow array of the type `kind`, with the headers of each record as a list of (key, value).

    As in Spark's Kafka source, the list of a record without headers is null.
    """
    from logfs.format.encoding.arrow_layout import gather_headers

    count = len(columns)
    offsets, keys, values = gather_headers(columns)
    none = columns.header_counts == 0
    validity = np.packbits(~none, bitorder="little")
    pairs = pa.StructArray.from_arrays(
        [binary_array(keys, pa.string()), binary_array(values)], fields=list(kind.value_type)
    )
    buffers = [pa.py_buffer(validity), pa.py_buffer(offsets)]
    return pa.Array.from_buffers(kind, count, buffers, int(none.sum()), children=[pairs])
