"""`spark.readStream.format("logfs")`: offsets in the shape of Kafka's source, and how much each trigger takes."""

from __future__ import annotations

import json
import math
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from logfs.log import pieces
from logfs.spark import splits
from logfs.spark.arrow import BatchMaker, arrow_schema, check_schema
from logfs.spark.topics import Topics, from_json, ranges, resolve, to_json

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import pyarrow as pa
    from pyspark.sql.types import StructType

    from logfs.format.names import TopicPartition
    from logfs.log.reader import Reader
    from logfs.spark.options import ReadOptions
    from logfs.spark.splits import Split
    from logfs.spark.topics import Offsets, OffsetsJson


def share(backlog: Mapping[TopicPartition, int], limit: int) -> dict[TopicPartition, int]:
    """How much of each partition's backlog a limit for all of them lets through, in proportion.

    As Kafka's source does: a share below one is one, so that a small partition does not starve.
    """
    total = sum(backlog.values())
    if total <= limit:
        return dict(backlog)
    shares = {name: limit * size / total for name, size in backlog.items()}
    return {
        name: min(math.ceil(found) if found < 1 else math.floor(found), backlog[name])
        for name, found in shares.items()
    }


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads a log as it grows. One object lives as long as the query; tasks get copies of it."""

    def __init__(self, schema: StructType, options: ReadOptions) -> None:
        check_schema(schema)
        self.schema = schema
        self.options = options
        self._topics: Topics | None = None
        # What Trigger.AvailableNow is to reach.
        self._target: Offsets | None = None
        self._triggered: float | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_topics": None}

    # Offsets.

    def _readers(self) -> dict[TopicPartition, Reader]:
        if self._topics is None:
            self._topics = Topics(self.options)
        else:
            self._topics.refresh()
        return self._topics.readers()

    def _ends(self) -> Offsets:
        return {name: reader.log_end_offset for name, reader in self._readers().items()}

    def initialOffset(self) -> OffsetsJson:
        """Where a new query begins.

        Spark asks again when a query failed before its first batch was committed. With the option
        `initialOffsetsPath` the first answer is kept in that file, and stays the answer.
        """
        path = self.options.initial_offsets_path
        if path is not None and os.path.exists(path):
            found: OffsetsJson = json.loads(Path(path).read_bytes())
            return found
        offsets = to_json(
            resolve(
                self.options.starting,
                self._readers(),
                latest_if_no_match=self.options.latest_if_no_match,
            )
        )
        return offsets if path is None else _kept(Path(path), offsets)

    def getDefaultReadLimit(self) -> ReadLimit:
        """What the options say of a trigger, as far as Spark has a word for it."""
        options = self.options
        if options.max_offsets_per_trigger is not None:
            return ReadMaxRows(options.max_offsets_per_trigger)
        if options.max_bytes_per_trigger is not None:
            return ReadMaxBytes(options.max_bytes_per_trigger)
        if options.min_offsets_per_trigger is not None:
            return ReadMinRows(options.min_offsets_per_trigger)
        return ReadAllAvailable()

    def latestOffset(
        self, start: Mapping[str, Any] | None = None, limit: ReadLimit | None = None
    ) -> OffsetsJson:
        """How far the next batch goes; `start` itself if there is nothing for it, or not enough yet."""
        readers = self._readers()
        ends = {name: reader.log_end_offset for name, reader in readers.items()}
        if self._target is not None:
            ends = {
                name: min(end, self._target[name])
                for name, end in ends.items()
                if name in self._target
            }
        if start is None:
            return to_json(ends)
        begins = self._begins(from_json(start), readers)
        # What has left the log keeps its offsets until it is reported as lost.
        ends = {**begins, **ends}
        backlog = {name: max(ends[name] - begins[name], 0) for name in ends}
        if isinstance(limit, ReadAllAvailable):
            return to_json(ends)
        if self._is_too_little(sum(backlog.values())):
            return dict(start)
        self._triggered = time.monotonic()
        return to_json(self._limited(begins, ends, backlog, readers))

    def _begins(self, start: Offsets, readers: Mapping[TopicPartition, Reader]) -> Offsets:
        """`start`, and the log start of partitions that are new."""
        new = {name: readers[name].log_start_offset for name in readers if name not in start}
        return {**start, **new}

    def _is_too_little(self, backlog: int) -> bool:
        """Whether a batch waits for more; as in Kafka's source the first never does, a last one may."""
        least = self.options.min_offsets_per_trigger
        if least is None or self._triggered is None or backlog >= least:
            return False
        waited_ms = (time.monotonic() - self._triggered) * 1000
        return waited_ms < self.options.max_trigger_delay_ms

    def _limited(
        self,
        begins: Offsets,
        ends: Offsets,
        backlog: Offsets,
        readers: Mapping[TopicPartition, Reader],
    ) -> Offsets:
        most = self.options.max_offsets_per_trigger
        if most is not None:
            shares = share(backlog, most)
            ends = {name: begins[name] + shares[name] for name in ends}
        most = self.options.max_bytes_per_trigger
        if most is None:
            return ends
        sizes = {
            name: _bytes_between(readers[name], begins[name], ends[name]) if name in readers else 0
            for name in ends
        }
        if sum(sizes.values()) <= most:
            return ends
        shares = share(sizes, most)
        return {
            name: _offset_after(readers[name], begins[name], ends[name], shares[name])
            if sizes[name]
            else ends[name]
            for name in ends
        }

    def prepareForTriggerAvailableNow(self) -> None:
        """Fix the end that the query is to reach, and then to stop."""
        self._target = self._ends()

    def reportLatestOffset(self) -> OffsetsJson:
        """The ends of the log, for the lag in the progress of the query."""
        return to_json(self._ends())

    # Reading.

    def partitions(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> list[Split]:
        """The splits of a batch. Raises `DataLoss`, `ValueError`, `LogfsError`, `OSError`."""
        readers = self._readers()
        fail = self.options.fail_on_data_loss
        known, ends = from_json(start), from_json(end)
        begins = self._begins(known, readers)
        for name in (ends.keys() & readers.keys()) - known.keys():
            # As in Kafka's source: a query that had been there before would have read it from its beginning.
            if begins[name]:
                splits.report_loss(
                    f"{name.directory} is new to the query, and offsets 0 to {begins[name] - 1} are gone already",
                    fail=fail,
                )
        for name in begins.keys() - readers.keys():
            splits.report_loss(f"{name.directory} is in the log directories no more", fail=fail)
        for name in ends.keys() & begins.keys():
            if begins[name] > ends[name]:
                splits.report_loss(
                    f"{name.directory}: the batch begins at offset {begins[name]}, behind its end {ends[name]}; was "
                    "the log truncated, or did the query fail before its first batch was committed, with "
                    "startingOffsets=latest and no initialOffsetsPath?",
                    fail=fail,
                )
        wanted = [
            (name, *splits.inside_log(name, readers[name], first, stop, fail=fail))
            for name, first, stop in ranges(begins, ends)
            if name in readers
        ]
        return splits.plan(wanted, readers, self.options)

    def read(self, partition: Split) -> Iterator[pa.RecordBatch]:  # type: ignore[override]
        """The records of a split, in order."""
        return splits.read(partition, BatchMaker(arrow_schema(self.schema)), self.options)

    def commit(self, end: Mapping[str, Any]) -> None:
        """Nothing: the offsets are in the query's checkpoint."""

    def stop(self) -> None:
        """Give the files back."""
        if self._topics is not None:
            self._topics.close()
            self._topics = None


def _kept(path: Path, offsets: OffsetsJson) -> OffsetsJson:
    """Write the first answer; if somebody else was first, his is it."""
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    with temporary.open("w") as file:
        json.dump(offsets, file)
        file.flush()
        os.fsync(file.fileno())
    try:
        os.link(temporary, path)
    except FileExistsError:
        pass
    finally:
        temporary.unlink()
    found: OffsetsJson = json.loads(path.read_bytes())
    return found


_MEASURED_BYTES = 1 << 30


def _bytes_between(reader: Reader, first: int, end: int) -> int:
    """About how many bytes of the .log files hold these offsets, by the indexes."""
    found = pieces.plan(
        reader, max(first, reader.log_start_offset), end, piece_bytes=_MEASURED_BYTES
    )
    return sum(piece.bytes for piece in found)


def _offset_after(reader: Reader, first: int, end: int, size: int) -> int:
    """The offset that about so many bytes reach from another, at least one batch further."""
    found = pieces.plan(reader, max(first, reader.log_start_offset), end, piece_bytes=max(size, 1))
    left = size
    offset = first
    for piece in found:
        if piece.bytes > left and offset > first:
            break
        offset, left = piece.end_offset, left - piece.bytes
        if left <= 0:
            break
    return max(offset, first + 1)
