"""Opens the partitions of a read, selected by name, and finds the offsets at which the read begins and ends."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar, cast

from logfs.errors import InvalidName, InvalidStore
from logfs.format.base import names
from logfs.format.base.names import TopicPartition
from logfs.format.files import checkpoint
from logfs.spark import workers
from logfs.spark.options import EARLIEST_OFFSET, LATEST_OFFSET, PositionKind, check_partitions
from logfs.store.directory.recognition import log_dirs_of
from logfs.store.directory.topic_id import read_topic_id
from logfs.store.store import Store

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from logfs.log.read.reader import Reader
    from logfs.spark.options import Limit, ReadOptions

    # Offsets in the form in which Spark's checkpoints have them, with an additional entry for the id of each topic,
    # such as {"orders": {"0": 23}, "orders#ABEiM0RVZneImaq7zN3u_w": {}}.
    OffsetsJson = dict[str, dict[str, int]]
    Offsets = dict[TopicPartition, int]


Plan = TypeVar("Plan")

# The character between a topic and its id. The names of topics cannot contain it.
_ID_MARK = "#"


def to_json(
    offsets: Mapping[TopicPartition, int], topic_ids: Mapping[str, str] | None = None
) -> OffsetsJson:
    """Return offsets and topic ids in the form that Kafka's source uses in checkpoints, sorted by partition.

    `topic_ids` maps topics to their ids; None stands for no ids. Each id becomes an entry "topic#id" without
    partitions. Kafka's source ignores such an entry in a checkpoint, because it has no offsets. In the options
    startingOffsets and endingOffsets, both Kafka's source and logfs ignore it.
    """
    found: OffsetsJson = {}
    for name, offset in sorted(offsets.items()):
        found.setdefault(name.topic, {})[str(name.partition)] = offset
    for topic, topic_id in sorted((topic_ids or {}).items()):
        found[f"{topic}{_ID_MARK}{topic_id}"] = {}
    return found


def from_json(offsets: Mapping[str, Mapping[str, Any]]) -> Offsets:
    """Return the offset of each partition, from the form in checkpoints: {topic: {partition number: offset}}."""
    return {
        TopicPartition(topic, int(number)): int(offset)
        for topic, each in offsets.items()
        for number, offset in each.items()
    }


def topic_ids_from_json(offsets: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """Return the id of each topic, from the entries "topic#id" in the offsets of a checkpoint.

    A checkpoint that was written by Kafka's source or logfs 0.1 has no ids. If a topic has several, the last counts.
    """
    found = {}
    for name in offsets:
        topic, mark, topic_id = name.partition(_ID_MARK)
        if mark:
            found[topic] = topic_id
    return found


def with_former_ids(offsets: OffsetsJson, before: Mapping[str, Any]) -> OffsetsJson:
    """Return `offsets` with an entry "topic#id" for the former id of each topic that has been recreated.

    `before` are earlier offsets in the same form. An id in `before` that `offsets` lack is a former id; the last one
    of a topic is added, before the entry with the present id. For example, if `before` has "t#A" and `offsets` have
    "t#B", "t#A" is added. If `before` has "t#A" and "t#B", and `offsets` have "t#B", "t#A" is added again.
    """
    present = topic_ids_from_json(offsets)
    former: dict[str, str] = {}
    for name in before:
        topic, mark, _ = name.partition(_ID_MARK)
        if mark and topic in present and name not in offsets:
            former[topic] = name
    return {**{name: {} for name in former.values()}, **offsets}


def recreated_ids(offsets: Mapping[str, Any]) -> dict[str, str]:
    """Return the present id of each topic for which `offsets` have more than one entry "topic#id".

    The last entry of a topic has its present id, and the others have former ids: the topic was deleted and created
    again.
    """
    named = [name.partition(_ID_MARK)[0] for name in offsets if _ID_MARK in name]
    present = topic_ids_from_json(offsets)
    return {topic: present[topic] for topic in present if named.count(topic) > 1}


def describe(found: Iterable[Any]) -> str:
    """Return the sorted names of partitions as text for messages, such as "{orders-0, orders-1}"."""
    return "{" + ", ".join(sorted(name.directory for name in found)) + "}"


@dataclass(frozen=True)
class TopicSnapshot:
    """The partitions that the options of a read select, as they were at one moment.

    `topic_ids` has the topic id of each partition with a partition.metadata file (kafka-storage 1.5). `recreated` are
    the partitions whose directory has been replaced since the previous snapshot.
    """

    readers: dict[TopicPartition, Reader]
    topic_ids: dict[TopicPartition, str]
    recreated: frozenset[TopicPartition]

    def ids_by_topic(self) -> dict[str, str]:
        """Return the id of each topic, except topics whose partitions have different ids or no ids."""
        found: dict[str, set[str]] = {}
        for name, topic_id in self.topic_ids.items():
            found.setdefault(name.topic, set()).add(topic_id)
        return {topic: ids.pop() for topic, ids in found.items() if len(ids) == 1}


class Topics:
    """The log directories of a read, and the partitions in them that the options select.

    The caller must close the object after use. To see changes, call `refresh` before `look`.
    """

    def __init__(self, options: ReadOptions) -> None:
        """Open the log directories read-only. Raises the errors of opening a store read-only."""
        self._options = options
        self.store = Store(log_dirs_of(options.paths), read_only=True, only=self._is_selected)
        self._log_dirs = {
            log_dir.path: log_dir.disk.stat(log_dir.path, follow=True).identity
            for log_dir in self.store.registry.working
        }
        # The identity (`Status.identity`) of each partition directory at the last `look`.
        self._identities: dict[Path, int] = {}
        # The topic id of each partition directory, by the path and the identity of the directory.
        self._ids: dict[tuple[Path, int], str] = {}
        # The key and the result of the last plan that `planned` has made.
        self._planned: tuple[object, object] | None = None

    def planned(self, key: object, plan: Callable[[], Plan]) -> Plan:
        """Return `plan()`, or the result of the previous call of this method if that call had the same `key`.

        `plan` computes the splits of a query. `key` has all that the result depends on, except the partitions: the
        options and the filters. The previous result is still valid, because `opened` reuses a `Topics` only if its
        partitions have not changed.
        """
        last = self._planned
        if last is None or last[0] != key:
            last = self._planned = key, plan()
        return cast("Plan", last[1])

    def close(self) -> None:
        """Close the store and its files."""
        self.store.close()

    def close_files(self) -> None:
        """Close the files of all partitions. A later read opens them again."""
        for partition in self.store.registry.partitions.values():
            partition.close()

    def refresh(self) -> None:
        """Update the partitions: notice all that was appended, deleted or created since the last refresh.

        Raises `InvalidStore` if a log directory no longer exists or was replaced by another directory, and `OSError`.
        """
        for path, identity in self._log_dirs.items():
            try:
                found = self.store.disk.stat(path, follow=True).identity
            except FileNotFoundError:
                raise InvalidStore(
                    f"{path}: the log directory no longer exists; was it unmounted?"
                ) from None
            if found != identity:
                raise InvalidStore(
                    f"{path}: another directory is in the place of the log directory; was its disk unmounted?"
                )
        self.store.refresh()

    def look(self) -> TopicSnapshot:
        """Return a snapshot of the selected partitions that exist.

        Raises `OSError` and, for a selected partition that is offline, the error that keeps it offline.
        """
        readers, ids, recreated = self._present(), {}, set()
        identities: dict[Path, int] = {}
        for name, reader in readers.items():
            directory = reader.directory
            try:
                identity = self.store.disk.stat(directory, follow=True).identity
            except FileNotFoundError:
                # The directory is being deleted or moved, so it has no identity now. The next call looks at it again,
                # and must notice if another directory has taken its place.
                if directory in self._identities:
                    identities[directory] = self._identities[directory]
                continue
            identities[directory] = identity
            if self._identities.get(directory, identity) != identity:
                recreated.add(name)
            topic_id = self._topic_id(directory, identity)
            if topic_id is not None:
                ids[name] = topic_id
        self._identities = identities
        return TopicSnapshot(readers, ids, frozenset(recreated))

    def _topic_id(self, directory: Path, identity: int) -> str | None:
        known = self._ids.get((directory, identity))
        if known is None:
            topic_id = read_topic_id(self.store.disk, directory)
            if topic_id is None:
                return None
            known = checkpoint.uuid_to_text(topic_id)
            self._ids[directory, identity] = known
        return known

    def _is_selected(self, directory: str) -> bool:
        try:
            return names.parse_directory(directory) in self._options.selection
        except InvalidName:
            return False

    def readers(self) -> dict[TopicPartition, Reader]:
        """Return a reader for each selected partition, sorted by partition, with the isolation level of the options.

        Raises `ValueError` if the options name a partition or topic that does not exist and, for a selected partition
        that is offline, the error that keeps it offline.
        """
        found = self._present()
        self.check_selected(found)
        return found

    def check_selected(
        self, found: Iterable[TopicPartition], *, may_miss: Iterable[str] = ()
    ) -> None:
        """Raise `ValueError` if the options name a partition or topic that is not in `found`.

        The topics in `may_miss` are allowed to be missing.
        """
        selection, here, passed = self._options.selection, set(found), set(may_miss)
        missing = [
            name.directory for name in selection.partitions - here if name.topic not in passed
        ]
        missing += selection.topics - {name.topic for name in here} - passed
        if missing:
            raise ValueError(
                f"no such partition or topic in {', '.join(self._options.paths)}: {', '.join(sorted(missing))}; "
                "'logfs describe' lists the topics and partitions"
            )

    def _present(self) -> dict[TopicPartition, Reader]:
        selection = self._options.selection
        found: dict[TopicPartition, Reader] = {}
        for directory in sorted({*self.store.registry.partitions, *self.store.offline}):
            name = names.parse_directory(directory)
            if name in selection:
                found[name] = self.store[directory].isolated(self._options.isolation)
        return dict(sorted(found.items()))


# In a Spark process that plans queries: the key and the `Topics` of the last planned query, for the next query.
_last: tuple[object, Topics] | None = None


@contextmanager
def opened(options: ReadOptions) -> Iterator[Topics]:
    """Yield an up-to-date `Topics` for the options, to plan one batch query.

    Spark plans all queries of a session in one process. Opening a partition takes a millisecond; checking that it has
    not changed takes a fraction of that. So the process keeps the `Topics` of the last query, with its files closed.
    The next query uses this object again if the query has the same log directories, selection and isolation level,
    and if no partition has changed. If the other options and the filters are the same, too, `Topics.planned` returns
    the last plan.
    """
    global _last
    key = (tuple(map(str, log_dirs_of(options.paths))), options.selection, options.isolation)
    last = _take_last(key)
    topics = last or Topics(options)
    try:
        yield topics
    except BaseException:
        topics.close()
        raise
    if workers.is_worker() and (last is not None or _is_unchanged(topics)):
        topics.close_files()
        _last = key, topics
    else:
        topics.close()


def _take_last(key: object) -> Topics | None:
    """Return the `Topics` of the last query if its key is `key` and no partition has changed.

    Otherwise close the `Topics`, if there is one, and return None.
    """
    global _last
    last, _last = _last, None
    if last is not None and last[0] == key and _is_unchanged(last[1]):
        return last[1]
    if last is not None:
        last[1].close()
    return None


def _is_unchanged(topics: Topics) -> bool:
    try:
        return topics.store.is_unchanged()
    except OSError:
        # After False, the caller opens the partitions again, which raises the error if it persists.
        return False


def resolve(
    limit: Limit, readers: Mapping[TopicPartition, Reader], *, latest_if_no_match: bool
) -> Offsets:
    """Convert the start or the end of a read to an offset for each partition in `readers`.

    A timestamp later than all records becomes the log end offset if `latest_if_no_match` is true, else it raises
    `ValueError`. If `limit` has offsets or timestamps by partition, also raises `ValueError` unless its partitions
    are exactly those in `readers`.
    """
    if limit.kind is PositionKind.EARLIEST:
        return {name: reader.log_start_offset for name, reader in readers.items()}
    if limit.kind is PositionKind.LATEST:
        return {name: reader.log_end_offset for name, reader in readers.items()}
    check_partitions(limit, readers, describe)
    if limit.kind is PositionKind.OFFSETS:
        ends: Mapping[int, Callable[[Reader], int]] = {
            LATEST_OFFSET: lambda reader: reader.log_end_offset,
            EARLIEST_OFFSET: lambda reader: reader.log_start_offset,
        }
        return {
            name: ends[offset](readers[name]) if offset in ends else offset
            for name, offset in limit.each.items()
        }
    return {
        name: _at_time(
            name,
            reader,
            limit.each[name] if limit.timestamp is None else limit.timestamp,
            latest_if_no_match=latest_if_no_match,
        )
        for name, reader in readers.items()
    }


def _at_time(
    name: TopicPartition, reader: Reader, timestamp: int, *, latest_if_no_match: bool
) -> int:
    # Kafka searches only the first segment whose largest timestamp is at or after `timestamp`. If compaction has
    # removed the records with such timestamps there, Kafka finds nothing. With `shown`, logfs also searches later
    # segments.
    found = reader.offset_for_time(max(timestamp, 0), shown=True)
    if found is not None:
        return min(found.offset, reader.log_end_offset)
    if latest_if_no_match:
        return reader.log_end_offset
    raise ValueError(
        f"No offset matched from request of topic-partition {name.directory} and timestamp {timestamp}; "
        "set startingOffsetsByTimestampStrategy to latest to begin at the end of the log"
    )


def ranges(
    start: Mapping[TopicPartition, int], end: Mapping[TopicPartition, int]
) -> Sequence[tuple[TopicPartition, int, int]]:
    """Return (partition, start offset, end offset) for each partition in both `start` and `end`, sorted by partition.

    Partitions whose range of offsets is empty are left out.
    """
    return [
        (name, start[name], end[name])
        for name in sorted(end)
        if name in start and start[name] < end[name]
    ]
