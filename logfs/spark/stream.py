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
from logfs.spark.topics import (
    Topics,
    from_json,
    ranges,
    resolve,
    to_json,
    topic_ids_from_json,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    import pyarrow as pa
    from pyspark.sql.types import StructType

    from logfs.format.names import TopicPartition
    from logfs.log.reader import Reader
    from logfs.spark.options import ReadOptions
    from logfs.spark.splits import Split
    from logfs.spark.topics import Look, Offsets, OffsetsJson

# How often a partition is looked for that is not there, and how long to wait in between.
_LOOKS = 10
_LOOK_SECONDS = 0.1


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
        # Partitions that others of the same name have replaced, until the query's offsets are without them.
        self._remade: set[TopicPartition] = set()
        # Partitions that were missed at the last look, and the losses that were told.
        self._lost: frozenset[TopicPartition] = frozenset()
        self._reported: set[str] = set()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_topics": None}

    # Offsets.

    def _look(self) -> Look:
        if self._topics is None:
            self._topics = Topics(self.options)
        else:
            self._topics.refresh()
        look = self._topics.look()
        self._remade |= look.remade
        return look

    def _report(self, message: str, **words: str) -> None:
        """A loss, as the option failOnDataLoss says; what goes on in spite of it is told once."""
        if message not in self._reported:
            splits.report_loss(message, fail=self.options.fail_on_data_loss, **words)
            self._reported.add(message)

    def initialOffset(self) -> OffsetsJson:
        """Where a new query begins.

        Spark asks again when a query failed before its first batch was committed. With the option
        `initialOffsetsPath` the first answer is kept in that file, and stays the answer.
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
        """How far the next batch goes; `start` itself if there is nothing for it, or not enough yet.

        Spark asks at every trigger, so a query without new data notices here what is gone. Raises `DataLoss`,
        `ValueError`, `LogfsError`, `OSError`.
        """
        known = {} if start is None else start
        look = self._settled_look(from_json(known))
        begins, topic_ids = self._begins(known, look)
        self._check_selected(look, known)
        readers = {name: look.readers[name] for name in begins}
        ends = {name: reader.log_end_offset for name, reader in readers.items()}
        if self._target is not None:
            # What is not among it was made since, and is for the next run.
            ends = {
                name: min(end, self._target[name]) if name in self._target else begins[name]
                for name, end in ends.items()
            }
        if start is None:
            return to_json(ends, topic_ids)
        backlog = {name: max(ends[name] - begins[name], 0) for name in ends}
        if isinstance(limit, ReadAllAvailable):
            return to_json(ends, topic_ids)
        if self._is_too_little(sum(backlog.values())):
            return dict(start)
        self._triggered = time.monotonic()
        return to_json(self._limited(begins, ends, backlog, readers), topic_ids)

    def _settled_look(self, known: Offsets) -> Look:
        """A look that does not miss a partition only because it moves to another log directory."""
        look = self._look()
        for _ in range(_LOOKS):
            if known.keys() <= look.readers.keys() | self._lost:
                break
            time.sleep(_LOOK_SECONDS)
            look = self._look()
        return look

    def _begins(self, start: Mapping[str, Any], look: Look) -> tuple[Offsets, dict[str, str]]:
        """Where the partitions that are there are read from, after `start`, and the ids of their topics.

        A new partition begins at its log start, and so does each partition of a topic that was deleted and made
        again, which is a loss. A partition that is gone is a loss, too, and has no offset from then on: if one of its
        name is made, it is new. Raises `DataLoss`.
        """
        known, known_ids = from_json(start), topic_ids_from_json(start)
        now_ids = look.ids_by_topic()
        replaced = _changed(known_ids, now_ids)
        for topic in sorted(replaced & {name.topic for name in known}):
            self._report_replaced(topic, known_ids[topic], now_ids[topic])
        # The id tells it of all partitions of the topic.
        self._remade = {
            name for name in self._remade if name.topic not in replaced and name in known
        }
        known = {name: offset for name, offset in known.items() if name.topic not in replaced}
        readable = self._readable(look, known_ids)
        self._report_gone(known.keys() - readable.keys(), look)
        begins = {}
        for name, reader in readable.items():
            begins[name] = known.get(name, reader.log_start_offset)
            end = reader.log.log_end_offset
            if begins[name] > end:
                self._report(
                    f"{name.directory}: the query has read it up to offset {begins[name]}, and the log ends at "
                    f"{end}; was it truncated, or deleted and made again?"
                )
                begins[name] = end
        return begins, {**known_ids, **now_ids}

    def _readable(self, look: Look, topic_ids: Mapping[str, str]) -> dict[TopicPartition, Reader]:
        """The partitions that are there, without those that took the place of one that the query reads."""
        agreed = look.ids_by_topic()
        return {
            name: reader
            for name, reader in look.readers.items()
            if name not in self._remade
            # While a topic is made again, its partitions may have the old id and the new one.
            and (
                name.topic in agreed
                or look.topic_ids.get(name) in (None, topic_ids.get(name.topic))
                or name.topic not in topic_ids
            )
        }

    def _report_replaced(self, topic: str, before: str, now: str) -> None:
        self._report(
            f"topic {topic} was deleted and made again: the query has read the topic with the id {before}, and now "
            f"the id is {now}",
            otherwise="to begin at the earliest offset of the new topic",
        )

    def _report_gone(self, gone: Iterable[TopicPartition], look: Look) -> None:
        self._lost = frozenset(gone)
        for name in sorted(self._lost):
            why = ": it was deleted and made again" if name in look.readers else ""
            self._report(f"{name.directory} is in the log directories no more{why}")

    def _check_selected(self, look: Look, start: Mapping[str, Any]) -> None:
        """Raise `ValueError` for what the options name and nobody has ever seen.

        Where losses are allowed, what the query knew may have gone.
        """
        assert self._topics is not None, "there was a look"
        seen: set[str] = set()
        if not self.options.fail_on_data_loss:
            seen = {name.topic for name in from_json(start)} | topic_ids_from_json(start).keys()
        self._topics.check_selected(look.readers, may_miss=seen)

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
        readers = self._look().readers
        self._target = {name: reader.log_end_offset for name, reader in readers.items()}

    def reportLatestOffset(self) -> OffsetsJson:
        """The ends of the log, for the lag in the progress of the query."""
        look = self._look()
        ends = {name: reader.log_end_offset for name, reader in look.readers.items()}
        return to_json(ends, look.ids_by_topic())

    # Reading.

    def partitions(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> list[Split]:
        """The splits of a batch. Raises `DataLoss`, `ValueError`, `LogfsError`, `OSError`."""
        known, ends = from_json(start), from_json(end)
        start_ids, end_ids = topic_ids_from_json(start), topic_ids_from_json(end)
        look = self._settled_look({**known, **ends})
        replaced = _changed(start_ids, end_ids)
        for topic in sorted(replaced & {name.topic for name in known}):
            self._report_replaced(topic, start_ids[topic], end_ids[topic])
        known = {name: offset for name, offset in known.items() if name.topic not in replaced}
        # Made again after the batch was planned: of these topics nothing is left to read.
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
            # As in Kafka's source: a query that had been there before would have read it from its beginning.
            if begins[name]:
                self._report(
                    f"{name.directory} is new to the query, and offsets 0 to {begins[name] - 1} are gone already"
                )
        for name in ends.keys() & begins.keys():
            if begins[name] > ends[name]:
                self._report(
                    f"{name.directory}: the batch begins at offset {begins[name]}, behind its end {ends[name]}; was "
                    "the log truncated, or did the query fail before its first batch was committed, with "
                    "startingOffsets=latest and no initialOffsetsPath?"
                )
        fail = self.options.fail_on_data_loss
        wanted = [
            (name, *splits.inside_log(name, readers[name], first, stop, fail=fail))
            for name, first, stop in ranges(begins, ends)
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


def _changed(before: Mapping[str, str], now: Mapping[str, str]) -> set[str]:
    """The topics whose id is another one now; those without an id, before or now, are not known to be."""
    return {topic for topic, topic_id in before.items() if now.get(topic, topic_id) != topic_id}


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
