"""The reader of streaming queries: `spark.readStream.format("logfs")`.

The offsets in checkpoints have the same JSON form as those of Spark's Kafka source. Options limit the size of
micro-batches.
"""

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

from logfs.format.encoding.arrow_batches import BatchMaker
from logfs.spark import splits
from logfs.spark.group_position import GroupPosition
from logfs.spark.kafka_schema import arrow_schema, check_schema
from logfs.spark.topics import (
    Topics,
    from_json,
    ranges,
    resolve,
    to_json,
    topic_ids_from_json,
)
from logfs.spark.workers import short_errors

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    import pyarrow as pa
    from pyspark.sql.datasource import InputPartition
    from pyspark.sql.types import StructType

    from logfs.format.base.names import TopicPartition
    from logfs.log.read.reader import Reader
    from logfs.spark.options import ReadOptions
    from logfs.spark.topics import Offsets, OffsetsJson, TopicSnapshot

# How many times missing partitions are looked up again, and the pause before each lookup.
_LOOKS = 10
_LOOK_SECONDS = 0.1


def share(backlog: Mapping[TopicPartition, int], limit: int) -> dict[TopicPartition, int]:
    """Divide a limit among the partitions in proportion to their backlogs, and return the share of each.

    The limit and the backlogs have the same unit: offsets or bytes. If the limit is at least the sum of the backlogs,
    each share is the whole backlog. As in Kafka's source, a share between zero and one is rounded up to one, so that
    a small partition does not starve.
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
    """The reader of one streaming query. Spark keeps it while the query runs, and sends copies of it to the tasks."""

    def __init__(self, schema: StructType, options: ReadOptions) -> None:
        check_schema(schema)
        self.schema = schema
        self.options = options
        self._topics: Topics | None = None
        # The offsets at which a query with Trigger.AvailableNow ends.
        self._target: Offsets | None = None
        # The time (`time.monotonic`) when `latestOffset` last planned a micro-batch instead of waiting for more
        # records. maxTriggerDelay counts from this time.
        self._triggered: float | None = None
        # Partitions that were deleted and recreated under the same name. Each stays in this set, and is not read,
        # while the query's offsets still have the offset of the deleted partition.
        self._remade: set[TopicPartition] = set()
        # The partitions that were missing in the last call of `_report_gone`. `_settled_look` does not wait for them.
        self._lost: frozenset[TopicPartition] = frozenset()
        # The messages of losses that were logged: each is logged once.
        self._reported: set[str] = set()
        self._position: GroupPosition | None = None
        if options.group is not None:
            self._position = GroupPosition(options.group, options.paths)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_topics": None, "_position": None}

    # The methods below determine offsets.

    def _look(self) -> TopicSnapshot:
        if self._topics is None:
            self._topics = Topics(self.options)
        else:
            self._topics.refresh()
        look = self._topics.look()
        self._remade |= look.recreated
        return look

    def _report(self, message: str, **words: str) -> None:
        """Report a loss: raise `DataLoss` or, if failOnDataLoss is false, log `message`. Log each message only once.

        `message` says what is lost. `words` may have `otherwise`, a text that says how the query goes on if
        failOnDataLoss is false; by default, it continues without the lost records.
        """
        if message not in self._reported:
            splits.report_loss(message, fail=self.options.fail_on_data_loss, **words)
            self._reported.add(message)

    @short_errors()
    def initialOffset(self) -> OffsetsJson:
        """Return the offsets at which a new query begins.

        Spark calls this again if the query failed before its first micro-batch was committed. If the option
        `initialOffsetsPath` is given, the first call stores the offsets in this file, and later calls return those in
        the file.

        Raises `LogfsError` or `OSError` if the log directories cannot be read. Raises `ValueError` if

        - the options name a topic or partition that does not exist,
        - an option gives offsets or timestamps by partition, but not for exactly the partitions that are read,
        - a starting timestamp is later than all records, unless startingOffsetsByTimestampStrategy is latest, or
        - the file `initialOffsetsPath` is not JSON.
        """
        path = self.options.initial_offsets_path
        if path is not None and os.path.exists(path):
            found: OffsetsJson = json.loads(Path(path).read_bytes())
            return found
        look = self._look()
        self._check_selected(look, {})
        starting = resolve(
            self.options.starting,
            look.readers,
            latest_if_no_match=self.options.latest_if_no_match,
        )
        offsets = to_json(starting, look.ids_by_topic())
        return offsets if path is None else _kept(Path(path), offsets)

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return the limit of a micro-batch that the options set; `ReadAllAvailable` if they set none.

        If the options set several limits, return the first of maxOffsetsPerTrigger, maxBytesPerTrigger and
        minOffsetsPerTrigger. `latestOffset` applies all of them nevertheless.
        """
        options = self.options
        if options.max_offsets_per_trigger is not None:
            return ReadMaxRows(options.max_offsets_per_trigger)
        if options.max_bytes_per_trigger is not None:
            return ReadMaxBytes(options.max_bytes_per_trigger)
        if options.min_offsets_per_trigger is not None:
            return ReadMinRows(options.min_offsets_per_trigger)
        return ReadAllAvailable()

    @short_errors()
    def latestOffset(
        self, start: Mapping[str, Any] | None = None, limit: ReadLimit | None = None
    ) -> OffsetsJson:
        """Return the offsets at which the next micro-batch ends. It begins at the offsets `start`.

        If there is nothing to read, or too little for minOffsetsPerTrigger, the micro-batch is empty. The limits in
        the options do not apply if `start` is None or `limit` is `ReadAllAvailable`. With the option groupId, the
        call also commits the offsets `start` for the consumer group. It also looks for lost records, at every
        trigger, even if there are no new records. Raises `DataLoss` for a loss if failOnDataLoss is true,
        `ValueError` if the options name a topic or partition that does not exist, and other kinds of `LogfsError` or
        `OSError` if the log directories cannot be read.
        """
        known = {} if start is None else start
        look = self._settled_look(from_json(known))
        begins, topic_ids = self._begins(known, look)
        self._check_selected(look, known)
        readers = {name: look.readers[name] for name in begins}
        ends = {name: reader.log_end_offset for name, reader in readers.items()}
        if self._target is not None:
            # A partition without a target was created after `prepareForTriggerAvailableNow`. Leave it to the next run
            # of the query.
            ends = {
                name: min(end, self._target[name]) if name in self._target else begins[name]
                for name, end in ends.items()
            }
        # With read_committed, `log_end_offset` is the last stable offset. It may be below the offset in `start`,
        # which the query has reached earlier with read_uncommitted.
        ends = {name: max(end, begins[name]) for name, end in ends.items()}
        if start is None:
            return to_json(ends, topic_ids)
        backlog = {name: ends[name] - begins[name] for name in ends}
        if self._position is not None:
            # The query has processed all records before `start`, so commit these offsets for the group. The method
            # `commit` cannot do this: at the end of Trigger.AvailableNow, Spark ends this process without calling it.
            self._position.note(from_json(start), is_last=not any(backlog.values()))
        if isinstance(limit, ReadAllAvailable):
            return to_json(ends, topic_ids)
        if self._is_too_little(sum(backlog.values())):
            return dict(start)
        self._triggered = time.monotonic()
        return to_json(self._limited(begins, ends, backlog, readers), topic_ids)

    def _settled_look(self, known: Offsets) -> TopicSnapshot:
        """Return a snapshot of the partitions, after a wait of at most one second for missing partitions.

        A partition is missing for a moment while it is moved between log directories. The wait ends when all
        partitions in `known` exist. There is no wait for a partition in `_lost`, which has been reported as missing
        already.
        """
        look = self._look()
        for _ in range(_LOOKS):
            if known.keys() <= look.readers.keys() | self._lost:
                break
            time.sleep(_LOOK_SECONDS)
            look = self._look()
        return look

    def _begins(
        self, start: Mapping[str, Any], look: TopicSnapshot
    ) -> tuple[Offsets, dict[str, str]]:
        """Return the offsets at which the next micro-batch begins in the existing partitions, and the topic ids.

        `start` are the offsets at which the previous micro-batch ended. The next one begins there, except in these
        cases:

        - A partition that is not in `start` is new, and is read from its log start offset.
        - If a topic was deleted and recreated, its partitions are read from the log start offset. This is a loss.
        - A deleted partition has no offset in the result. This is a loss. If it is created again later, it is new.
        - If the log ends below the offset in `start`, the partition is read from its log end. This is a loss.

        Raises `DataLoss` for a loss if failOnDataLoss is true.
        """
        known, known_ids = from_json(start), topic_ids_from_json(start)
        now_ids = look.ids_by_topic()
        replaced = _changed(known_ids, now_ids)
        for topic in sorted(replaced & {name.topic for name in known}):
            self._report_replaced(topic, known_ids[topic], now_ids[topic])
        # Partitions in `_remade` are not read. Remove those whose topic was replaced, and those that are not in
        # `start` any more: they are read as new partitions.
        self._remade = {
            name for name in self._remade if name.topic not in replaced and name in known
        }
        known = {name: offset for name, offset in known.items() if name.topic not in replaced}
        readable = self._readable(look, known_ids)
        self._report_gone(known.keys() - readable.keys(), look)
        begins = {}
        for name, reader in readable.items():
            begins[name] = known.get(name, reader.log_start_offset)
            end = reader.log.state.log_end_offset
            if begins[name] > end:
                self._report(
                    f"{name.directory}: the query has read it up to offset {begins[name]}, but the log ends at "
                    f"{end}; was it truncated, or deleted and recreated?"
                )
                begins[name] = end
        return begins, {**known_ids, **now_ids}

    def _readable(
        self, look: TopicSnapshot, topic_ids: Mapping[str, str]
    ) -> dict[TopicPartition, Reader]:
        """Return a reader of each existing partition that can be read now.

        `topic_ids` has the id of each topic in the query's offsets. Two kinds of partitions are left out:

        - The partition was recreated, but the query still has an offset of the deleted partition (see `_remade`).
        - The topic is being recreated, so its partitions have different topic ids, and the id of this partition is
          not the one in `topic_ids`.
        """
        agreed = look.ids_by_topic()
        return {
            name: reader
            for name, reader in look.readers.items()
            if name not in self._remade
            # While a topic is being recreated, some of its partitions have the old id and others the new id. Then
            # leave out the partitions whose id is not the one in `topic_ids`.
            and (
                name.topic in agreed
                or look.topic_ids.get(name) in (None, topic_ids.get(name.topic))
                or name.topic not in topic_ids
            )
        }

    def _report_replaced(self, topic: str, before: str, now: str) -> None:
        self._report(
            f"topic {topic} was deleted and recreated: the query has read the topic with the id {before}, but "
            f"now the id is {now}",
            otherwise="to begin at the earliest offset of the new topic",
        )

    def _report_gone(self, gone: Iterable[TopicPartition], look: TopicSnapshot) -> None:
        self._lost = frozenset(gone)
        for name in sorted(self._lost):
            why = ": it was deleted and recreated" if name in look.readers else ""
            self._report(f"{name.directory} is no longer in the log directories{why}")

    def _check_selected(self, look: TopicSnapshot, start: Mapping[str, Any]) -> None:
        """Raise `ValueError` if the options name a topic or partition that does not exist.

        `start` are the offsets up to which the query has read, in JSON form. If failOnDataLoss is false, the topics
        in `start` are allowed to be missing.
        """
        assert self._topics is not None, "there was a look"
        seen: set[str] = set()
        if not self.options.fail_on_data_loss:
            seen = {name.topic for name in from_json(start)} | topic_ids_from_json(start).keys()
        self._topics.check_selected(look.readers, may_miss=seen)

    def _is_too_little(self, backlog: int) -> bool:
        """Whether the query must wait for more records: `backlog` (offsets) is less than minOffsetsPerTrigger.

        It waits for at most maxTriggerDelay. As in Kafka's source, the first micro-batch never waits, but the last
        micro-batch of Trigger.AvailableNow waits like any other.
        """
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
        """Return the offsets at which a micro-batch ends if maxOffsetsPerTrigger and maxBytesPerTrigger limit it.

        Without these options it would go from `begins` to `ends`. The result is at most `ends` in each partition.
        `backlog` has the number of offsets from `begins` to `ends` in each partition.
        """
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

    @short_errors()
    def prepareForTriggerAvailableNow(self) -> None:
        """Let the query end at the current log end offsets. Spark calls this at the start of Trigger.AvailableNow."""
        readers = self._look().readers
        self._target = {name: reader.log_end_offset for name, reader in readers.items()}

    @short_errors()
    def reportLatestOffset(self) -> OffsetsJson:
        """Return the log end offsets for Spark's progress events, which show how far the query is behind them."""
        look = self._look()
        ends = {name: reader.log_end_offset for name, reader in look.readers.items()}
        return to_json(ends, look.ids_by_topic())

    # The methods below plan and read a micro-batch.

    @short_errors()
    def partitions(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> list[InputPartition]:
        """Return the input partitions of the micro-batch from `start` to `end`, which are offsets in JSON form.

        Raises `DataLoss` for a loss if failOnDataLoss is true, and other kinds of `LogfsError` or `OSError` if the
        log directories cannot be read.
        """
        known, ends = from_json(start), from_json(end)
        start_ids, end_ids = topic_ids_from_json(start), topic_ids_from_json(end)
        look = self._settled_look({**known, **ends})
        replaced = _changed(start_ids, end_ids)
        for topic in sorted(replaced & {name.topic for name in known}):
            self._report_replaced(topic, start_ids[topic], end_ids[topic])
        known = {name: offset for name, offset in known.items() if name.topic not in replaced}
        # If a topic was recreated after the end of the micro-batch was set, its old records can no longer be read.
        now_ids = look.ids_by_topic()
        over = _changed(end_ids, now_ids)
        for topic in sorted(over & {name.topic for name in ends}):
            self._report_replaced(topic, end_ids[topic], now_ids[topic])
        readers = {
            name: reader
            for name, reader in self._readable(look, end_ids).items()
            if name.topic not in over
        }
        gone = (known.keys() | ends.keys()) - readers.keys()
        self._report_gone({name for name in gone if name.topic not in over}, look)
        begins = {name: known.get(name, readers[name].log_start_offset) for name in readers}
        for name in (ends.keys() & readers.keys()) - known.keys():
            # The partition was created after the previous micro-batch, so the query should have read it from offset
            # 0. As in Kafka's source, the deleted offsets are a loss.
            if begins[name]:
                self._report(
                    f"{name.directory} is new to the query, but its offsets 0 to {begins[name] - 1} were deleted"
                )
        for name in ends.keys() & begins.keys():
            if begins[name] > ends[name]:
                self._report(
                    f"{name.directory}: the batch begins at offset {begins[name]}, after its end {ends[name]}; was "
                    "the log truncated, or did the query fail before its first batch was committed, with "
                    "startingOffsets=latest and no initialOffsetsPath?"
                )
        fail = self.options.fail_on_data_loss
        wanted = [
            (name, *splits.inside_log(name, readers[name], first, stop, fail=fail))
            for name, first, stop in ranges(begins, ends)
        ]
        return splits.plan(wanted, readers, self.options)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """In a task: return the records of an input partition as Arrow batches, in the order of its splits.

        Raises `DataLoss` for records that were deleted after the micro-batch was planned, `Corrupt` for damage,
        `NotOnHost` if this machine does not have the planned files, and `OSError`.
        """
        return splits.read(partition.value, BatchMaker(arrow_schema(self.schema)), self.options)

    def commit(self, end: Mapping[str, Any]) -> None:
        """Do nothing: Spark keeps the offsets in its checkpoint.

        If the query commits offsets for a consumer group, `latestOffset` does so.
        """

    def stop(self) -> None:
        """Close the log directories and their files."""
        if self._topics is not None:
            self._topics.close()
            self._topics = None


class RefusedStream(DataSourceStreamReader):
    """The reader of a query with a wrong option or schema.

    `initialOffset`, `latestOffset`, `partitions` and `read` raise `error`. `LogfsDataSource.streamReader` returns
    this object instead of raising the error, because Spark 4.3 hides errors of `streamReader`, but shows errors of
    the reader's methods.
    """

    def __init__(self, error: ValueError) -> None:
        self._error = error

    @short_errors()
    def initialOffset(self) -> OffsetsJson:
        """Raise the error that was given to `__init__`, so that Spark shows it."""
        raise self._error

    @short_errors()
    def latestOffset(
        self, start: Mapping[str, Any] | None = None, limit: ReadLimit | None = None
    ) -> OffsetsJson:
        """Raise the error that was given to `__init__`, so that Spark shows it."""
        raise self._error

    @short_errors()
    def partitions(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> list[InputPartition]:
        """Raise the error that was given to `__init__`, so that Spark shows it."""
        raise self._error

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Raise the error that was given to `__init__`, so that Spark shows it."""
        raise self._error


def _changed(before: Mapping[str, str], now: Mapping[str, str]) -> set[str]:
    """Return the topics whose ids in `before` and `now` differ; a topic that has no id in one of them is left out."""
    return {topic for topic, topic_id in before.items() if now.get(topic, topic_id) != topic_id}


def _kept(path: Path, offsets: OffsetsJson) -> OffsetsJson:
    """Store `offsets` in the file `path`, unless the file exists, and return the offsets in the file.

    If another process creates the file at the same time, both processes return the same offsets.
    """
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
    """Return the approximate size in bytes of the records in [first, end) in the .log files."""
    found = splits.planned(reader, first, end, _MEASURED_BYTES)
    return sum(segment_split.bytes for segment_split in found)


def _offset_after(reader: Reader, first: int, end: int, size: int) -> int:
    """Return an offset X above `first` such that the offsets [first, X) take about `size` bytes in the .log files.

    If the offsets [first, end) take fewer bytes, X is about `end`.
    """
    found = splits.planned(reader, first, end, max(size, 1))
    left = size
    offset = first
    for segment_split in found:
        if segment_split.bytes > left and offset > first:
            break
        offset, left = segment_split.end_offset, left - segment_split.bytes
        if left <= 0:
            break
    return max(offset, first + 1)
