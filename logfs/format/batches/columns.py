"""Records as columns: numpy arrays over the encoded bytes, never a list of objects (rule 1 of docs/architecture.md).

Importing the compiled kernels takes a quarter of a second, so this module imports them only in `decode_columns`.
`worthwhile` tells a caller whether there are enough records to outweigh this time.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING, Any

from logfs.errors import Corrupt
from logfs.format.base.lazy_numpy import np
from logfs.format.base.varint import encode as encode_varint
from logfs.format.batches.record import SMALLEST_RECORD, Record, TimestampType, decode_headers

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import Self

    from numpy.typing import NDArray
    from typing_extensions import Buffer

# How many rows `Columns.records` converts at a time: Python's numbers take five times the memory of numpy's.
_ROWS = 1 << 16
# If the compiled kernels are already imported, they are faster than a plain loop for more records than this.
_FEW = 8
# If the kernels must first be imported, they are faster, import included, for more records than this.
_FEW_BEFORE_IMPORT = 32768


def worthwhile(records: int) -> bool:
    """Whether the compiled kernels are faster than a plain loop for this many records.

    The time to import the kernels counts, too, if they are not imported yet.
    """
    return records > (_FEW if is_loaded() else _FEW_BEFORE_IMPORT)


def is_loaded() -> bool:
    """Whether the compiled kernels are imported."""
    return "logfs.format.kernels.batch_kernels" in sys.modules


@dataclass(frozen=True, slots=True, kw_only=True)
class Columns:
    """Records as columns: row i of every array belongs to the same record. The rows are in offset order.

    `data` has the encoded bytes; all starts and ends are positions in it. A key or value with the length -1 is null.
    `header_starts` and `header_ends` delimit the encoded headers of a record, `header_counts` is the number of its
    headers. Timestamps are in ms since the epoch. `timestamp_types` has each record's `TimestampType`: the type may
    change within a log.
    """

    data: NDArray[np.uint8]
    offsets: NDArray[np.int64]
    timestamps: NDArray[np.int64]
    timestamp_types: NDArray[np.int8]
    key_starts: NDArray[np.int64]
    key_lengths: NDArray[np.int32]
    value_starts: NDArray[np.int64]
    value_lengths: NDArray[np.int32]
    header_starts: NDArray[np.int64]
    header_ends: NDArray[np.int64]
    header_counts: NDArray[np.int32]

    def __len__(self) -> int:
        return len(self.offsets)

    def select(self, rows: slice | NDArray[np.bool_] | NDArray[np.int64]) -> Self:
        """Return columns with only some of the rows, in the given order. `data` is shared, not copied.

        `rows` is a slice, a boolean mask with an item for each row, or an array of row numbers.
        """
        chosen = {name: getattr(self, name)[rows] for name in _ROW_FIELDS}
        return replace(self, **chosen)

    def records(self) -> Iterator[Record]:
        """Yield the rows as `Record` objects, for callers that need them one by one."""
        data = self.data.tobytes()
        rows = chain.from_iterable(
            zip(
                *(getattr(self, name)[first : first + _ROWS].tolist() for name in _ROW_FIELDS),
                strict=True,
            )
            for first in range(0, len(self), _ROWS)
        )
        for offset, timestamp, kind, key, key_size, value, value_size, start, end, count in rows:
            headers: Sequence[tuple[str, bytes | None]] = ()
            if count:
                headers, _ = decode_headers(encode_varint(count) + data[start:end], 0)
            yield Record(
                None if value_size < 0 else data[value : value + value_size],
                None if key_size < 0 else data[key : key + key_size],
                headers,
                timestamp,
                offset,
                _TYPES[kind],
            )


_ROW_FIELDS = (
    "offsets",
    "timestamps",
    "timestamp_types",
    "key_starts",
    "key_lengths",
    "value_starts",
    "value_lengths",
    "header_starts",
    "header_ends",
    "header_counts",
)
_DTYPES = {
    name: "int32" if name.endswith(("lengths", "counts")) else "int64" for name in _ROW_FIELDS
} | {"timestamp_types": "int8"}
# The timestamp types, indexed by their values: the value -1 of NO_TIMESTAMP_TYPE is the index of the last item.
_TYPES = (
    TimestampType.CREATE_TIME,
    TimestampType.LOG_APPEND_TIME,
    TimestampType.NO_TIMESTAMP_TYPE,
)


def decode_columns(
    data: Buffer,
    spans: NDArray[np.int64],
    timestamp_type: TimestampType = TimestampType.CREATE_TIME,
) -> Columns:
    """Return the records of one or more batches as columns that refer to `data`.

    `spans` is int64[batches, 5]: where the uncompressed records of each batch start and end in `data`, the record
    count, the base offset and the base timestamp. All records of the result get the type `timestamp_type`. Raises
    `Corrupt` if the bytes of a batch are not exactly that many records.
    """
    from logfs.format.kernels import batch_kernels

    counts = spans[:, 2]
    if ((counts < 0) | (counts * SMALLEST_RECORD > spans[:, 1] - spans[:, 0])).any():
        raise Corrupt("a batch's number of records is negative or too large for its bytes")
    array: NDArray[np.uint8] = np.frombuffer(data, np.uint8)  # type: ignore[call-overload]
    total = int(counts.sum())
    columns: dict[str, Any] = {name: np.empty(total, dtype) for name, dtype in _DTYPES.items()}
    types = columns.pop("timestamp_types")
    types[:] = timestamp_type
    number, stopped = batch_kernels.decode_spans(array, spans, *columns.values())
    if number < len(spans):
        _, end, count, base_offset, _ = spans[number].tolist()
        raise Corrupt(f"batch {base_offset}: {_reason(stopped, end, count)}")
    return Columns(data=array, timestamp_types=types, **columns)


def concatenate(parts: Sequence[Columns]) -> Columns:
    """Return the rows of all parts, in order, as one `Columns` with a joined copy of their bytes.

    A single part is returned as it is.
    """
    if len(parts) == 1:
        return parts[0]
    base = np.cumsum([0, *(len(part.data) for part in parts)])
    joined: dict[str, Any] = {}
    for name in _ROW_FIELDS:
        arrays = [getattr(part, name) for part in parts]
        if name.endswith(("starts", "ends")):
            arrays = [array + start for array, start in zip(arrays, base[:-1], strict=True)]
        joined[name] = np.concatenate(arrays) if arrays else np.empty(0, _DTYPES[name])
    data = np.concatenate([part.data for part in parts]) if parts else np.empty(0, np.uint8)
    return Columns(data=data, **joined)


def _reason(stopped: int, end: int, count: int) -> str:
    reasons = {
        -1: "a number in a record is not a varint",
        -2: "a record's length does not match its fields",
        -3: "a key does not fit its record",
        -4: "a value does not fit its record",
        -5: "headers do not fit their record",
    }
    return reasons.get(stopped, f"{end - stopped} bytes follow the last of {count} records")
