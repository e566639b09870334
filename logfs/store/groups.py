"""The committed offsets of consumer groups, without the rest of Kafka's group coordinator (members, rebalances).

As in Kafka, committed offsets are records in the partitions of the topic `__consumer_offsets` (kafka-storage 12), but
they never expire. The first query reads these partitions completely, and later queries read only the new records. So
a read-only store beside a broker sees the offsets that the broker's consumers commit.
"""

from __future__ import annotations

import logging
import re
import struct
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

from logfs.errors import Corrupt, InvalidName, InvalidRecord, NotWritable, Unsupported
from logfs.format.base import names
from logfs.format.base.names import TopicPartition
from logfs.format.base.quantities import parse_time
from logfs.format.batches.record import Record
from logfs.format.messages import group_record
from logfs.format.messages.control import ControlType, parse_control_key
from logfs.format.messages.group_record import OffsetCommit, OffsetKey, coordinator_partition
from logfs.locks import Level, make_rlock
from logfs.log.append.partition import writable
from logfs.store.internal_topic import InternalTopic, Replay

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from logfs.format.batches.batch import Batch
    from logfs.log.append.partition import Partition
    from logfs.log.read.log import Log
    from logfs.log.read.reader import Reader
    from logfs.store.registry import PartitionRegistry

logger = logging.getLogger(__name__)

TOPIC = "__consumer_offsets"
# The maximum length (bytes) of a string in the records of `__consumer_offsets`.
INT16_MAX = 2**15 - 1
_OFFSET = re.compile(r"0|[1-9][0-9]{0,18}")


class GroupOffset(NamedTuple):
    """A committed offset: the group and the partition it is for, and the commit itself."""

    group: str
    partition: TopicPartition
    commit: OffsetCommit


class Groups:
    """The committed offsets of consumer groups in a store, available as `store.groups`.

    A partition is given by the name of its directory, such as `orders-0`. Any thread may call the methods. In a
    thread that must not wait for the disk, calls that would wait raise `WouldBlock`, and so do all calls that change
    commits. A damaged range of `__consumer_offsets` is skipped with a warning. An older commit may then be returned,
    so that the group reads some records again.
    """

    def __init__(self, registry: PartitionRegistry, create: Callable[[str], Partition]) -> None:
        """Make the object without reading anything. `create` creates the named partition, and returns it."""
        self._registry = registry
        self._topic = InternalTopic(
            registry,
            create,
            TOPIC,
            "offsets.topic.num.partitions",
            # Kafka gives the topic these settings.
            lambda: {
                "cleanup.policy": "compact",
                "compression.type": "producer",
                "segment.bytes": str(registry.settings.broker_config.offsets_topic_segment_bytes),
            },
            "the committed offsets of groups",
        )
        self._lock = make_rlock(Level.GROUPS)
        # The commits in each partition of `__consumer_offsets`. A thread must hold `_lock` to use them.
        self._replays: Sequence[_Replay] = ()

    def committed(self, group: str, name: str) -> OffsetCommit | None:
        """Return the commit of a group for a partition, or None if there is none.

        Raises `InvalidName` and `OSError`. If no commit is found, but a partition of `__consumer_offsets` cannot be
        read, an error is raised, because that partition may have the commit. The error is `PartitionFailed` if the
        partition is offline. It is `InvalidStore` if the partition is in a log directory of the store that was not
        opened, or may be in a log directory of the store that is missing from the disk.
        """
        wanted = names.parse_directory(name)
        with self._following():
            found = self._find(group, wanted)
        if found is None:
            self._topic.check_online()
            self._topic.check_open()
        return found

    def of(self, name: str) -> dict[str, OffsetCommit]:
        """Return the commits of all groups for a partition. The keys are the names of the groups, in sorted order.

        Raises `InvalidName` and `OSError`. Partitions of `__consumer_offsets` that are offline are left out.
        """
        wanted = names.parse_directory(name)
        with self._following():
            return self._find_all(wanted)

    def __iter__(self) -> Iterator[GroupOffset]:
        """Iterate over all committed offsets, sorted by group, topic and partition.

        The partition of a committed offset need not be in this store.
        """
        with self._following():
            partitions = {where for replay in self._replays for where in replay.commits}
            found = [
                GroupOffset(group, where, commit)
                for where in partitions
                for group, commit in self._find_all(where).items()
            ]
        return iter(sorted(found))

    def _find_all(self, wanted: TopicPartition) -> dict[str, OffsetCommit]:
        groups = {group for replay in self._replays for group in replay.commits.get(wanted, ())}
        found = ((group, self._find(group, wanted)) for group in sorted(groups))
        return {group: commit for group, commit in found if commit is not None}

    def _find(self, group: str, wanted: TopicPartition) -> OffsetCommit | None:
        """Return the commit of a group for the partition `wanted`, or None if there is none.

        After a change of the number of partitions of `__consumer_offsets`, several of them may have a commit of the
        group. Then the newest commit is returned. If two are equally new, the commit in the partition that the
        group's hash selects now is returned.
        """
        holders = self._holders(group, wanted)
        if len(holders) > 1:
            selected = self._partition_of(group)

            def age(replay: _Replay) -> tuple[int, bool]:
                commit = replay.commits[wanted][group].commit
                return commit.commit_timestamp, replay.log.partition == selected

            holders.sort(key=age)
        return holders[-1].commits[wanted][group].commit if holders else None

    def commit(self, group: str, name: str, offset: int, metadata: str = "") -> OffsetCommit:
        """Commit `offset`, the next offset that the group will read in the partition `name`, and return the commit.

        `metadata` is any text. The commit is durable after `log_of(group).flush()`. Raises the errors of
        `commit_all`.
        """
        return self.commit_all(group, {name: offset}, metadata)[name]

    def commit_all(
        self, group: str, offsets: Mapping[str, int], metadata: str = ""
    ) -> dict[str, OffsetCommit]:
        """Commit offsets of several partitions in one batch, so that a crash leaves all of them or none.

        `offsets` maps each partition to the next offset that the group will read; `metadata` is any text. The commits
        are durable after `log_of(group).flush()`. They go to the partition of `__consumer_offsets` that Kafka's hash
        selects for the group; if that partition is missing, it is created. Raises `UnknownPartition`,
        `OffsetOutOfRange` for an offset outside of [log start offset, log end offset], `InvalidName` for an invalid
        group name, `InvalidRecord` for metadata longer than `offset.metadata.max.bytes` or 32767 bytes,
        `NotWritable`, `RecordTooLarge` if the batch would be larger than the settings allow (Kafka:
        INVALID_COMMIT_OFFSET_SIZE), and the errors of `log_of` and of an append.
        """
        commits = self._commits_of(group, offsets, metadata)
        with self._writing(group):
            self.log_of(group).append(self._encoded(group, commits), in_one_batch=True)
        return commits

    def records_of(self, group: str, offsets: Mapping[str, int]) -> list[Record]:
        """Return the records that commit `offsets` of a group, for the caller to append in a transaction.

        `offsets` maps each partition to the next offset that the group will read. Raises the errors of `commit_all`.
        """
        return self._encoded(group, self._commits_of(group, offsets, ""))

    def _commits_of(
        self, group: str, offsets: Mapping[str, int], metadata: str
    ) -> dict[str, OffsetCommit]:
        for name, offset in offsets.items():
            self._registry[name].check_readable(offset)
        if not group:
            raise InvalidName("the name of the group is empty; give a name")
        longest = self._registry.settings.broker_config.offset_metadata_max_bytes
        if len(metadata.encode()) > min(longest, INT16_MAX):
            raise InvalidRecord(
                f"group {group:.40}: metadata exceeds offset.metadata.max.bytes={longest} or 32767 bytes; shorten it"
            )
        now_ms = self._registry.clock()
        return {
            name: OffsetCommit(
                offset, metadata, now_ms, self._registry[name].epochs.epoch_for(offset)
            )
            for name, offset in offsets.items()
        }

    def _encoded(self, group: str, commits: Mapping[str, OffsetCommit]) -> list[Record]:
        return [
            Record(commit.encode(), _encode_key(group, self._registry[name].name))
            for name, commit in commits.items()
        ]

    def restore(self, group: str, name: str, commit: OffsetCommit) -> None:
        """Append again, durably and unchanged, a commit that was removed when its partition was deleted.

        Raises the errors of `forget` and `log_of`.
        """
        record = Record(commit.encode(), _encode_key(group, names.parse_directory(name)))
        with self._writing(group):
            log = self.log_of(group)
            log.append([record])
        log.flush()

    def forget(self, group: str, name: str) -> bool:
        """Remove the commit of a group for a partition, durably, and return whether there was a commit.

        A commit in an open transaction is removed, too. Raises `InvalidName`, `NotWritable`, and the errors of an
        append and of a flush.
        """
        return self._forget([group], name)

    def forget_partition(self, name: str) -> None:
        """Remove the commits of all groups for a partition, durably, as Kafka does for a deleted partition.

        Commits in open transactions are removed, too. Commits in an offline partition of `__consumer_offsets` are
        not removed; `check_open` finds such a partition before a deletion.
        """
        wanted = names.parse_directory(name)
        with self._following():
            groups = {group for replay in self._replays for group in replay.groups_of(wanted)}
        self._forget(sorted(groups), name)

    def check_open(self) -> None:
        """Raise an error if some commits are unknown, because a partition of `__consumer_offsets` cannot be read.

        Raises `InvalidStore` if such a partition is in a log directory of the store that was not opened, `OSError` if
        that directory cannot be listed, and `PartitionFailed` if such a partition is offline. A log directory that is
        missing from the disk is ignored.
        """
        self._topic.check_open(may_be_absent=True)
        # Load the partitions that are not loaded yet.
        self._topic.logs()
        self._topic.check_online()

    def _forget(self, groups: Iterable[str], name: str) -> bool:
        wanted = names.parse_directory(name)
        changed: set[Partition] = set()
        for group in groups:
            key = _encode_key(group, wanted)
            with self._writing(group), self._following():
                for replay in self._replays:
                    if group not in replay.groups_of(wanted):
                        continue
                    log = writable(replay.log)
                    log.append([Record(None, key)])
                    changed.add(log)
        for log in changed:
            log.flush()
        return bool(changed)

    def log_of(self, group: str) -> Partition:
        """Return the partition of `__consumer_offsets` for a group's commits; create it if it is missing.

        Raises the errors of `InternalTopic.log`.
        """
        with self._registry.disk.hold(self._lock):
            return self._topic.log(self._partition_of(group))

    @contextmanager
    def _writing(self, group: str) -> Iterator[None]:
        """Hold `_lock` while the caller appends commits of a group.

        Raises `WouldBlock` in a thread that must not wait, and `NotWritable` in a read-only store.
        """
        self._registry.disk.check_may_block()
        if self._registry.read_only:
            raise NotWritable(
                f"group {group}: offsets not changed: the store is open read-only; open or mount it for writing"
            )
        with self._registry.disk.hold(self._lock):
            yield

    def _partition_of(self, group: str) -> int:
        return coordinator_partition(group, self._topic.partition_count())

    @contextmanager
    def _following(self) -> Iterator[None]:
        """Read the new records of `__consumer_offsets`, and hold `_lock` while the caller uses `_replays`."""
        with self._registry.disk.hold(self._lock):
            known = {replay.log: replay for replay in self._replays}
            self._replays = [known.get(log) or _Replay(log) for log in self._topic.logs()]
            for replay in self._replays:
                replay.catch_up()
            yield

    def _holders(self, group: str, wanted: TopicPartition) -> list[_Replay]:
        if self._registry.is_half_deleted(wanted.directory):
            return []
        return [replay for replay in self._replays if group in replay.commits.get(wanted, ())]


class _Entry(NamedTuple):
    """A commit, and the offset of its record."""

    commit: OffsetCommit
    record_offset: int


class _Replay(Replay):
    """The commits in one partition of `__consumer_offsets`, read up to the offset `end`."""

    def __init__(self, log: Log) -> None:
        super().__init__(log, "groups")
        self.commits: dict[TopicPartition, dict[str, _Entry]] = {}
        # The commits in the open transaction of each producer, by producer id.
        self._pending: dict[int, dict[OffsetKey, _Entry]] = {}

    def forget(self) -> None:
        self.commits, self._pending = {}, {}

    def groups_of(self, wanted: TopicPartition) -> set[str]:
        """Return the groups that have a commit for a partition, also one in an open transaction."""
        pending = (key for commits in self._pending.values() for key in list(commits))
        found = {key.group for key in pending if (key.topic, key.partition) == wanted}
        return found | self.commits.get(wanted, {}).keys()

    def apply(self, batch: Batch) -> None:
        header = batch.header
        for record in batch.records():
            if header.is_control:
                self._end_transaction(record, header.producer_id)
            elif record.offset >= self.end:
                try:
                    self._apply_record(record, header.producer_id, header.is_transactional)
                except (Corrupt, Unsupported) as error:
                    self.leave_out(record.offset, error)

    def _apply_record(self, record: Record, producer_id: int, transactional: bool) -> None:
        if record.key is None:
            raise Corrupt("the record has no key")
        message = group_record.parse_key(record.key)
        key = None if message is None else group_record.offset_key(message)
        if message is None or key is None:
            return  # group metadata, or a key of a later Kafka release
        if record.value is None:
            self._remove(key)
            return
        value = group_record.parse_value(message.version, record.value)
        assert value is not None, "every version of an offset commit is known or refused"
        entry = _Entry(OffsetCommit.of(value), record.offset)
        if transactional:
            self._pending.setdefault(producer_id, {})[key] = entry
        else:
            self._put(key, entry)

    def _end_transaction(self, marker: Record, producer_id: int) -> None:
        control = parse_control_key(marker.key or b"")
        if control not in (ControlType.ABORT, ControlType.COMMIT):
            return
        pending = self._pending.pop(producer_id, {})
        if control is ControlType.COMMIT:
            for key, entry in pending.items():
                self._put(key, entry)

    def _put(self, key: OffsetKey, entry: _Entry) -> None:
        """Keep a commit, unless a later record for its key has been applied already."""
        groups = self.commits.setdefault(TopicPartition(key.topic, key.partition), {})
        known = groups.get(key.group)
        if known is None or known.record_offset < entry.record_offset:
            groups[key.group] = entry

    def _remove(self, key: OffsetKey) -> None:
        """Apply a tombstone: remove the commit for a key, also from the transactions that are open."""
        for pending in self._pending.values():
            pending.pop(key, None)
        where = TopicPartition(key.topic, key.partition)
        groups = self.commits.get(where, {})
        groups.pop(key.group, None)
        if not groups:
            self.commits.pop(where, None)


def _encode_key(group: str, partition: TopicPartition) -> bytes:
    try:
        return OffsetKey(group, *partition).encode()
    except (struct.error, UnicodeEncodeError):
        raise InvalidName(
            f"{group[:20]!r}... is not a valid group name: it must be UTF-8 of at most 32767 bytes"
        ) from None


def resolve_offset(partition: Reader, words: str) -> int:
    """Return the offset that the text `words` means in a partition: a number, `earliest`, `latest`, or a time.

    A time is written as `@1638100400000` (ms since the epoch) or in ISO 8601. As in Kafka's tools, it stands for the
    offset of the first record at or after this time, or for the log end offset if there is no such record. Raises
    `InvalidName` for any other text.
    """
    if _OFFSET.fullmatch(words):
        return int(words)
    if words == "earliest":
        return partition.log_start_offset
    if words == "latest":
        return partition.log_end_offset
    timestamp = parse_time(words.removeprefix("@"))
    if timestamp is None:
        raise InvalidName(
            f"{words[:40]!r} is not an offset: give a number, earliest, latest, or a time as @1638100400000 or "
            "@2021-11-28T11:53:20Z"
        )
    found = partition.offset_for_time(timestamp)
    return partition.log_end_offset if found is None else found.offset
