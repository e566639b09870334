"""One partition of a mirror: compares it with its leader's log, and appends the batches that the leader sends.

The rules are those of a follower (kafka-storage 10.5). Before the first fetch from a leader, after an error, and
whenever the leader finds a difference, the leader epochs decide up to which offset the two logs are the same. The
records of the copy from this offset on are dropped. Unlike a follower, the mirror drops nothing if the leader only
answers that the requested offset is above the leader's log end, because a new leader may lag.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from logfs.cluster.cluster import NONE, OFFSET_OUT_OF_RANGE, UNKNOWN_TOPIC, Wanted
from logfs.cluster.library import error_name
from logfs.errors import InvalidSetting
from logfs.log.append import fetched_batches
from logfs.store.directory.topic_id import read_topic_id

if TYPE_CHECKING:
    import uuid
    from collections.abc import Mapping

    from logfs.cluster.cluster import Cluster, EpochEnd, Fetched
    from logfs.log.append.partition import Partition
    from logfs.log.read.log import Log
    from logfs.store.store import Store

logger = logging.getLogger(__name__)

_NO_EPOCH = -1
_FIRST_PAUSE_SECONDS = 0.1
_LONGEST_PAUSE_SECONDS = 5.0


class PartitionMirror:
    """The copy of one partition, and what is known of its source, the log of the partition's leader in the cluster.

    The thread of the leader's `Fetcher` calls `compare` and `take`. Meanwhile, the thread of `Mirror.run` may call
    `follow`, `fail` and `flush`. `leader` is the node id of the leader, -1 if there is none. `high_watermark` is that
    of the source, -1 as long as it is unknown. `goal` is the offset at which the mirroring stops, None if the
    mirroring has no end. `problem` is the present error, or "".
    """

    def __init__(self, store: Store, partition: Partition, source: str) -> None:
        """Prepare to mirror into `partition`. `source` is the value of its topic's setting `logfs.mirror.source`."""
        self.partition = partition
        self._source = source
        self.leader = -1
        self.high_watermark = -1
        self.goal: int | None = None
        self.fetched_bytes = 0
        self._flushed_bytes = 0
        self.problem = ""
        self._leader_epoch = _NO_EPOCH
        # After an error, the leader is not asked again before the time `_not_before` (by `time.monotonic`). `_pause`
        # is how long the pause after the next error will be, in seconds.
        self._not_before = 0.0
        self._pause = _FIRST_PAUSE_SECONDS
        self._failing_since: float | None = None
        # Whether the copy is known to agree with the leader's log: both have the same records up to the copy's end.
        self._agrees = False
        self._store = store

    @property
    def name(self) -> str:
        """The name of the partition, such as "orders-0"."""
        return self.partition.name.directory

    @property
    def place(self) -> tuple[str, int]:
        """The topic and the number of the partition."""
        return self.partition.name.topic, self.partition.name.partition

    @property
    def lag(self) -> int:
        """How many offsets the copy is behind the source's high watermark; 0 as long as that is unknown."""
        return max(self.high_watermark - self.partition.log_end_offset, 0)

    @property
    def unflushed_bytes(self) -> int:
        """How many bytes were appended since the last `flush`."""
        return self.fetched_bytes - self._flushed_bytes

    def flush(self) -> None:
        """Make everything durable that was appended so far. Any thread may call this method."""
        fetched = self.fetched_bytes
        self.partition.flush()
        self._flushed_bytes = fetched

    @property
    def has_reached_goal(self) -> bool:
        """Whether the copy ends at or after `goal`, and is known to agree with the leader's log.

        Also true if there is no goal, so that `Mirror.run_once` does not wait for such a copy.
        """
        return self.goal is None or (self._agrees and self.partition.log_end_offset >= self.goal)

    @property
    def failing_seconds(self) -> float:
        """The seconds since the first error after the last success; 0 if the last attempt succeeded."""
        return 0.0 if self._failing_since is None else time.monotonic() - self._failing_since

    def follow(self, leader: int, leader_epoch: int) -> None:
        """Set the leader and its epoch. After a change, the copy is compared with the leader's log again."""
        if (leader, leader_epoch) != (self.leader, self._leader_epoch):
            self.leader, self._leader_epoch = leader, leader_epoch
            self._agrees = False
            self._not_before = 0.0
            if leader < 0:
                self.fail("has no leader")

    def fail(self, problem: str) -> None:
        """Record an error, whose text is `problem`. After a pause, the copy is compared with the leader's log again.

        The pause doubles with each error until the next success, from 0.1 up to 5 seconds.
        """
        self.problem = problem
        self._agrees = False
        self._failing_since = self._failing_since or time.monotonic()
        self._not_before = time.monotonic() + self._pause
        self._pause = min(2 * self._pause, _LONGEST_PAUSE_SECONDS)

    # Methods that decide what to request from the leader.

    @property
    def is_waiting(self) -> bool:
        """Whether the pause after an error still lasts."""
        return time.monotonic() < self._not_before

    @property
    def must_compare(self) -> bool:
        """Whether, before a fetch, the leader must be asked up to which offset the two logs are the same."""
        return not self._agrees and self.partition.epochs.latest != _NO_EPOCH

    def wanted(self) -> Wanted:
        """Return the next request for the partition: the copy's log end and last epoch, and the leader's epoch."""
        partition = self.partition
        return Wanted(
            *self.place,
            partition.log_end_offset,
            self._leader_epoch,
            partition.epochs.latest,
        )

    def asks_for(self, asked: Wanted) -> bool:
        """Whether the copy still needs the fetch request `asked`, so that the answer to it can be appended.

        This holds if the request begins at the copy's log end and has the present leader epoch, and the logs need no
        comparison.
        """
        wanted = self.wanted()
        is_same = (wanted.offset, wanted.leader_epoch) == (asked.offset, asked.leader_epoch)
        return is_same and not self.must_compare

    # Methods that process the leader's answers.

    def compare(
        self, found: EpochEnd, ids: Mapping[str, uuid.UUID | None], cluster: Cluster
    ) -> bool:
        """Drop the records that the leader's log does not have; return False if the metadata may be out of date.

        `found` is the leader's answer to the question where the copy's last epoch ends. `ids` maps topics to topic
        ids. The caller must have requested them after it received `found`, so that they reveal whether `found` is
        about another topic of the same name; `InvalidSetting` is then raised. `cluster` is used for further requests,
        and may raise `ClusterError`.

        The rules are those of kafka-storage 10.5. If the copy's last epoch is above all epochs of the leader, the
        copy may have to begin again (`_return_to_range`). If the leader does not know the last epoch of the copy, an
        earlier epoch must be compared next: `must_compare` stays True. If records are dropped, a `goal` above the
        source's present end is lowered to this end.
        """
        if found.error != NONE or found.topic not in ids:
            return self._failed(found.error or UNKNOWN_TOPIC)
        check_copy_of(self.partition, ids[found.topic])
        if found.end_offset < 0:
            # The copy's last epoch is above all epochs of the leader, so the answer has no offset for a comparison.
            self._return_to_range(cluster)
        else:
            self._agree_up_to(found.epoch, found.end_offset, cluster)
            if self.goal is not None and self.has_reached_goal:
                # At the goal, no fetch follows, and `take`, which usually clears the error, is not called.
                self._end_errors()
        return True

    def _agree_up_to(self, epoch: int, end_offset: int, cluster: Cluster) -> None:
        """Drop the records of the copy that the leader's log does not have. Raises `ClusterError`.

        `epoch` is the leader's greatest epoch that is not above the copy's last epoch. `end_offset` is the offset at
        which this epoch ends in the leader's log. The copy's records from `end_offset` on and those of later epochs
        are dropped. If the leader's version of Kafka does not report the epoch, `epoch` is -1, and only the records
        from `end_offset` on are dropped.
        """
        partition = self.partition
        end, entries = partition.log_end_offset, partition.epochs.entries
        later = [start for each, start in entries if each > epoch >= 0]
        point = min([end_offset, *later[:1]])
        if point < end:
            logger.warning(
                "%s: the copy differs from the source's log from offset %d on: dropping %d offsets of the copy",
                self.name,
                point,
                end - point,
            )
            if self.goal is not None:
                # The source has lost records, too, so its log may end below the goal now.
                self.goal = min(self.goal, cluster.end_offsets([self.place])[self.place])
            self._store.truncate(self.name, point, mirror_of=self._source)
        self._agrees = not later or partition.epochs.latest == _NO_EPOCH

    def take(self, found: Fetched, cluster: Cluster) -> bool:
        """Raise the copy's log start to that of the source, and append the fetched batches.

        If the two logs diverge, nothing is appended, and the logs are compared next. Returns False if the metadata
        may be out of date. `cluster` is asked for the offset range of the source if the requested offset was out of
        range. Raises `ClusterError`, and the errors of `fetched_batches.append_fetched` and `Store.delete_records`.
        """
        if found.error == OFFSET_OUT_OF_RANGE:
            self._return_to_range(cluster)
            return True
        if found.error != NONE:
            return self._failed(found.error)
        if found.diverging is not None:
            # Drop nothing yet. `compare` drops the records, after it has checked that the topic was not created
            # again.
            self._agrees = False
            return True
        self._agrees = True
        self.high_watermark = found.high_watermark
        # Raise the log start before the append. If the source has deleted all records that the copy has, this empties
        # the copy. Only an empty log accepts a batch that begins below its log end, as the first fetched batch may.
        self._follow_start(found.log_start_offset)
        if found.records:
            self.fetched_bytes += fetched_batches.append_fetched(
                self.partition, found.records, self._note_gap, self._source
            )
        # Clear the error only after the append, because the append may fail, too, as on a full disk.
        self._end_errors()
        return True

    def _end_errors(self) -> None:
        """Clear the problem. The pause after the next error is the shortest again."""
        self.problem, self._pause, self._failing_since = "", _FIRST_PAUSE_SECONDS, None

    def _failed(self, error: int) -> bool:
        self.fail(error_name(error))
        return False

    def _return_to_range(self, cluster: Cluster) -> None:
        """Begin the copy again at the source's log start if that is above the copy's end; otherwise record an error.

        Called after the leader has answered that the copy's log end is out of range, or that the copy's last epoch is
        above all epochs of the leader. If the source's log start is above the copy's end, the source has deleted all
        records that the copy has, so they are dropped from the copy, too (kafka-storage 10.5). Otherwise nothing is
        dropped.
        """
        first, end = cluster.offset_range(*self.place)
        ours = self.partition.log_end_offset
        self._agrees = False
        if ours < first:
            if ours > self.partition.log_start_offset:
                logger.warning(
                    "%s: the source has deleted offsets %d to %d before they were mirrored: the copy begins at %d",
                    self.name,
                    ours,
                    first - 1,
                    first,
                )
            self._follow_start(ours)
            fetched_batches.begin_at(self.partition, first, self._source)
            self.problem = ""
        elif ours > end:
            # Unlike Kafka's follower, drop nothing: a new leader may lag. Only epochs prove that records differ.
            self.fail(
                f"the source ends at offset {end}, below the end of the copy, {ours}; trying again"
            )
        else:
            latest = self.partition.epochs.latest
            self.fail(
                f"the source refuses offset {ours}, although it has offsets {first} to {end}: none of its leader "
                f"epochs is as high as {latest}, the last one here; its log seems to be an older one. If this error "
                "stays, delete the copy to mirror the topic again"
            )

    def _follow_start(self, offset: int) -> None:
        """Raise the copy's log start to `offset`, the log start of the source, but not above the copy's log end."""
        start = min(offset, self.partition.log_end_offset)
        if start > self.partition.log_start_offset:
            self._store.delete_records(self.name, start, mirror_of=self._source)

    def _note_gap(self) -> None:
        """Write an entry for the copy to the cleaner checkpoint, unless it has one.

        This is called before the append of a batch that does not begin at the log end. The entry says that offsets
        may be missing, as after compaction. Without it, the next load of the partition would take them for damage.
        """
        checkpoints = self._store.checkpoints
        if checkpoints.cleaner_offset(self.name) is None:
            checkpoints.set_cleaner_offset(self.partition, self.partition.log_start_offset)


def check_copy_of(partition: Log, topic_id: uuid.UUID | None) -> None:
    """Raise `InvalidSetting` if `partition` is a copy of a topic whose id is not `topic_id`.

    Nothing is raised if `topic_id` is None, as from brokers before Kafka 2.8, or if the copy has no topic id.
    """
    found = read_topic_id(partition.disk, partition.directory)
    if None not in (found, topic_id) and found != topic_id:
        raise InvalidSetting(
            f"topic {partition.topic} was deleted and created again in the cluster: the copy of the old topic stays; "
            "stop the mirror and delete the copy to mirror the new topic"
        )
