"""A cluster of one broker whose logs are those of a store: what a mirror asks is answered as Kafka answers it."""

from __future__ import annotations

import time
from itertools import islice
from typing import TYPE_CHECKING

from logfs.cluster.cluster import NONE, OFFSET_OUT_OF_RANGE, EpochEnd, Fetched, RemoteTopic

if TYPE_CHECKING:
    import uuid
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from logfs.cluster.cluster import Wanted
    from logfs.log.append.partition import Partition
    from logfs.store.store import Store

NODE = 0
_UNDEFINED = (-1, -1)
Place = tuple[str, int]


class FakeCluster:
    """Has the methods of `Cluster` that a mirror uses. `source` has the logs.

    `fault` is called with what is fetched, and may raise an error. `most_batches` limits the batches of an answer.
    """

    cluster_id = "source"

    def __init__(self, source: Store) -> None:
        self.source = source
        self.topic_settings: dict[str, dict[str, str]] = {}
        self.committed: dict[str, dict[Place, int]] = {}
        self.leader = NODE
        self.most_batches: int | None = None
        self.fault: Callable[[Sequence[Wanted]], None] = lambda wanted: None

    def close(self) -> None:
        """Do nothing: there is no connection."""

    def log(self, topic: str, partition: int) -> Partition:
        """Return the log of a partition."""
        return self.source[f"{topic}-{partition}"]

    def topics(self) -> list[RemoteTopic]:
        """Return the topics of the store."""
        topics: dict[str, dict[int, tuple[int, int]]] = {}
        for name in list(self.source):
            log = self.source[name]
            topics.setdefault(log.topic, {})[log.partition] = (self.leader, 0)
        return [
            RemoteTopic(each, self.source.registry.topic_id(each), leaders)
            for each, leaders in sorted(topics.items())
        ]

    def settings(self, topics: Sequence[str]) -> Mapping[str, Mapping[str, str]]:
        """Return `topic_settings`."""
        return {topic: self.topic_settings.get(topic, {}) for topic in topics}

    def groups(self) -> list[str]:
        """Return the groups of `committed`."""
        return [*self.committed]

    def group_offsets(self, group: str) -> dict[Place, int]:
        """Return the offsets of a group."""
        return self.committed[group]

    def end_offsets(self, partitions: Iterable[Place]) -> dict[Place, int]:
        """Return the ends of logs."""
        return {each: self.log(*each).log_end_offset for each in partitions}

    def offset_range(self, topic: str, partition: int) -> tuple[int, int]:
        """Return the bounds of a log."""
        log = self.log(topic, partition)
        return log.log_start_offset, log.log_end_offset

    def epoch_ends(self, node: int, wanted: Sequence[Wanted]) -> list[EpochEnd]:
        """Return where epochs end."""
        return [
            EpochEnd(*each[:2], NONE, *epoch_end(self.log(*each[:2]), each.last_epoch))
            for each in wanted
        ]

    def topic_ids(self, node: int, topics: Sequence[str]) -> dict[str, uuid.UUID | None]:
        """Return the ids of topics."""
        return {each: self.source.registry.topic_id(each) for each in topics}

    def fetch(self, node: int, wanted: Sequence[Wanted], wait_ms: int = 0) -> list[Fetched]:
        """Return the batches from each offset on, beginning with the whole batch that has the offset."""
        self.fault(wanted)
        if all(each.offset == self.log(*each[:2]).log_end_offset for each in wanted):
            # Not at once: the mirror would ask again and again.
            time.sleep(wait_ms / 1000)
        return [self._fetch(self.log(*each[:2]), each) for each in wanted]

    def _fetch(self, log: Partition, wanted: Wanted) -> Fetched:
        end = epoch_end(log, wanted.last_epoch)
        is_known = wanted.last_epoch < 0 or end != _UNDEFINED
        if not (is_known and log.log_start_offset <= wanted.offset <= log.log_end_offset):
            return Fetched(*wanted[:2], OFFSET_OUT_OF_RANGE, b"", -1, -1, None)
        differs = wanted.last_epoch >= 0 and (end[0] < wanted.last_epoch or end[1] < wanted.offset)
        batches = islice([] if differs else log.batches(wanted.offset), self.most_batches)
        return Fetched(
            *wanted[:2],
            NONE,
            b"".join(bytes(batch.data) for batch in batches),
            log.log_start_offset,
            log.log_end_offset,
            end if differs else None,
        )


def epoch_end(log: Partition, epoch: int) -> tuple[int, int]:
    """Return what a leader answers to OffsetForLeaderEpoch (kafka-storage 10.5): an epoch and its end offset."""
    entries = log.epochs.entries
    if epoch >= 0 and entries and epoch == entries[-1][0]:
        return epoch, log.log_end_offset
    higher = [start for each, start in entries if each > epoch]
    if epoch < 0 or not higher:
        return _UNDEFINED
    return max((each for each, _ in entries if each <= epoch), default=epoch), higher[0]
