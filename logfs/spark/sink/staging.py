"""The work of a task in a write: assigns rows to partitions, and writes them as record batches to staged files.

Staged files are temporary files that the driver appends to the logs later.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from logfs.errors import UnknownPartition
from logfs.format.base import names
from logfs.format.batches.record import TimestampType
from logfs.format.encoding.columnar_encoder import Binary, Rows, build_rows, partitions_of
from logfs.log.append.staged_batches import StagedWriter
from logfs.log.append.validator import batch_format
from logfs.log.disk.disk import Disk
from logfs.spark.sink.partitions import found_here
from logfs.spark.workers import naming_path
from logfs.store.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from numpy.typing import NDArray

    from logfs.format.files.commit_file import StagedFile
    from logfs.spark.sink.partitions import PlannedPartitions

_Item = TypeVar("_Item", bound=np.generic)

# The rows of a task are encoded in chunks. A chunk is complete when it has `_CHUNK_BYTES_EACH` for each partition, so
# that the batches of each partition are large. Fewer than four partitions count as four. To save memory, a chunk is
# also complete when it has `_CHUNK_BYTES`.
_CHUNK_BYTES_EACH = 1 << 20
_CHUNK_BYTES = 32 << 20
# This many successive records without a key go to the same partition, the next ones to the next partition.
_STICKY_ROWS = 1024
_PER_MS = {"ms": 1, "us": 1000}


class StagingTask:
    """Stages the rows of one Spark task: writes them as batches to temporary files in the partitions' directories.

    The files belong to one commit: the one with the number `sequence` of the writer with the id `writer`.
    """

    def __init__(
        self,
        log_dirs: Sequence[str],
        planned: PlannedPartitions,
        topic: str | None,
        writer: str,
        sequence: int,
        turn: int,
    ) -> None:
        """Look up the planned partitions on this machine.

        `planned` is the result of `planned_partitions` in the driver. `topic` is the topic of all rows; None if the
        column `topic` has the topics. `turn`, modulo the number of partitions, selects the partition for the first
        records without keys. Raises `NotOnHost` if this machine does not have the planned partitions, other kinds of
        `LogfsError`, and `OSError`.
        """
        self._disk = Disk()
        self._topic = topic
        self._writer = writer
        self._sequence = sequence
        self._turn = turn
        paths = [Path(log_dir) for log_dir in log_dirs]
        self._settings = Settings([(self._disk, path) for path in paths])
        self._partitions = found_here(paths, planned)
        count = sum(map(len, self._partitions.values()))
        self._chunk_bytes = min(max(count, 4) * _CHUNK_BYTES_EACH, _CHUNK_BYTES)
        self._open: dict[str, StagedWriter] = {}

    def stage(self, batches: Iterable[pa.RecordBatch]) -> list[StagedFile]:
        """Stage all rows and return the staged files, which are durable. If that fails, the files are removed.

        Raises `ValueError` for a row without a topic and for a header without a key, `UnknownPartition` for a topic
        or partition that does not exist, `RecordTooLarge`, `InvalidRecord` for a timestamp below -1 ms, and
        `OSError`.
        """
        try:
            for chunk in _chunks(batches, self._chunk_bytes):
                self._stage(chunk)
            return [self._open[name].close() for name in sorted(self._open)]
        except BaseException:
            for staged in self._open.values():
                staged.discard()
            raise

    def _stage(self, chunk: pa.RecordBatch) -> None:
        rows = _rows(chunk, time.time_ns() // 1_000_000)
        for topic, of_topic in self._by_topic(chunk):
            numbers = self._numbers(chunk, rows, topic, of_topic)
            # The sort is stable, so the rows of each partition keep their order.
            order = np.argsort(numbers, kind="stable")
            cuts = np.flatnonzero(np.diff(numbers[order])) + 1
            config = self._settings.log_config(topic)
            # Stage with CreateTime in any case: the commit sets the timestamps of a topic with LogAppendTime.
            form = batch_format(config)._replace(timestamp_type=TimestampType.CREATE_TIME)
            for part in np.split(order, cuts):
                if not len(part):
                    continue
                name = names.TopicPartition(topic, int(numbers[part[0]])).directory
                directory = self._partitions[topic][int(numbers[part[0]])]
                if name not in self._open:
                    self._open[name] = StagedWriter(
                        self._disk, directory, self._writer, self._sequence
                    )
                with naming_path(directory):
                    for batch in build_rows(rows, of_topic[part], form):
                        self._open[name].write(batch)

    def _by_topic(self, chunk: pa.RecordBatch) -> Iterator[tuple[str, NDArray[np.int64]]]:
        """Yield each topic and the indexes of its rows in `chunk`. Raises `ValueError` for a row without a topic."""
        if self._topic is not None:
            yield self._topic, np.arange(len(chunk))
            return
        column = chunk.column("topic")
        if column.null_count:
            raise ValueError(
                "the data contains a null topic. Use the `topic` option for setting a default topic."
            )
        coded = column.dictionary_encode()
        codes = coded.indices.to_numpy(zero_copy_only=False)
        for code, topic in enumerate(coded.dictionary.to_pylist()):
            yield topic, np.flatnonzero(codes == code)

    def _numbers(
        self, chunk: pa.RecordBatch, rows: Rows, topic: str, of_topic: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """Return the partition number for each row of a topic; `of_topic` are the indexes of these rows in `chunk`.

        `rows` are all rows of `chunk`, converted to arrays. The number is taken from the column `partition`. If the
        column is missing, or null in a row, the hash of the key selects the partition. Rows without a key are
        distributed over the partitions. Raises `UnknownPartition` if the topic has no partitions, or if it lacks a
        partition that the column names.
        """
        known = self._partitions.get(topic)
        if not known:
            raise UnknownPartition(
                f"{topic}: the topic has no partition; 'logfs create -n 1 LOGDIR/{topic}' creates one, or the option "
                "createPartitions"
            )
        there = np.array(sorted(known), np.int64)
        hashed = partitions_of(rows.keys, len(there))[of_topic]
        without = np.flatnonzero(hashed < 0)
        turns = self._turn + np.arange(len(without)) // _STICKY_ROWS
        self._turn += -(-len(without) // _STICKY_ROWS)
        found = there[hashed]
        found[without] = there[turns % len(there)]
        if "partition" in chunk.schema.names:
            column = chunk.column("partition").take(pa.array(of_topic))
            asked = column.fill_null(-1).to_numpy(zero_copy_only=False)
            is_asked = ~column.is_null().to_numpy(zero_copy_only=False)
            missing = np.setdiff1d(asked[is_asked], there)
            if len(missing):
                name = f"{topic}-{missing[0]}"
                raise UnknownPartition(
                    f"{name}: no such partition; 'logfs create LOGDIR/{name}' creates it"
                )
            found[is_asked] = asked[is_asked]
        return found


def _chunks(batches: Iterable[pa.RecordBatch], chunk_bytes: int) -> Iterator[pa.RecordBatch]:
    """Combine the batches into larger ones, of at least `chunk_bytes` each. Only the last one may be smaller."""
    held: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        held.append(batch)
        size += batch.nbytes
        if size >= chunk_bytes:
            yield held[0] if len(held) == 1 else pa.concat_batches(held)
            held, size = [], 0
    if size:
        yield pa.concat_batches(held)


# Functions that convert Arrow columns to arrays for the compiled kernels. The arrays always have the same types,
# because numba compiles a kernel again for each combination of types.


def _rows(chunk: pa.RecordBatch, now_ms: int) -> Rows:
    count = len(chunk)
    held = set(chunk.schema.names)
    keys = _binary(chunk.column("key")) if "key" in held else _nulls(count)
    offsets, header_keys, header_values = np.zeros(count + 1, np.int64), _nulls(0), _nulls(0)
    if "headers" in held:
        headers = chunk.column("headers")
        lengths = pc.list_value_length(headers).fill_null(0).to_numpy(zero_copy_only=False)
        np.cumsum(lengths, out=offsets[1:])
        flat = headers.flatten()
        header_keys, header_values = _binary(flat.field(0)), _binary(flat.field(1))
        if header_keys.nulls.any():
            raise ValueError(
                "the column 'headers' has a header with a null key: a header in Kafka needs a key"
            )
    times = np.full(count, now_ms, np.int64)
    if "timestamp" in held:
        column = chunk.column("timestamp")
        per_ms = _PER_MS[column.type.unit]
        units = column.cast(pa.int64()).fill_null(now_ms * per_ms)
        times = units.to_numpy(zero_copy_only=False) // per_ms
    values = _binary(chunk.column("value"))
    return Rows(keys, values, _fixed(times), _fixed(offsets), header_keys, header_values)


def _binary(column: pa.Array) -> Binary:
    """Convert a column of strings or bytes to arrays for compiled functions. The bytes of values are not copied."""
    plain = column.cast(pa.binary()) if pa.types.is_string(column.type) else column
    large = plain.cast(pa.large_binary())
    _, offsets, data = large.buffers()
    ends = np.frombuffer(offsets, np.int64)[large.offset : large.offset + len(large) + 1]
    if not len(ends):
        ends = np.zeros(1, np.int64)
    nulls = column.is_null().to_numpy(zero_copy_only=False)
    return Binary(np.frombuffer(data or b"", np.uint8), _fixed(ends), _fixed(nulls))


def _nulls(count: int) -> Binary:
    data, offsets, nulls = Binary.all_null(count)
    return Binary(data, _fixed(offsets), _fixed(nulls))


def _fixed(array: NDArray[_Item]) -> NDArray[_Item]:
    """Convert an array to the form for which functions are compiled: contiguous and read-only."""
    plain = np.ascontiguousarray(array).view()
    plain.flags.writeable = False
    return plain
