"""Pushes topics from a store into a Kafka cluster: their batches, their settings and the offsets of consumer groups.

The topic in the cluster first gets settings under which brokers change no batch. Then the batches are sent. At the
end, the topic gets the settings that it has in the store, and the offsets of the groups are committed. After an
interruption, the next push continues at the log end offsets in the cluster.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from logfs.cluster.cluster import Cluster
from logfs.errors import ClusterError
from logfs.push.exact_push import exact_batches
from logfs.push.plan import FOR_PUSHING, Planner, PushProgress, create_topic
from logfs.push.sender import Sender
from logfs.push.translation import Translation
from logfs.push.translation_map import TranslationMap

if TYPE_CHECKING:
    import re
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path
    from typing import Self

    from logfs.cluster.cluster import Outgoing
    from logfs.format.messages.group_record import OffsetCommit
    from logfs.push.plan import TopicPlan
    from logfs.store.store import Store

# How many partitions are sent at the same time, to limit the batches in memory. A topic whose records get new offsets
# counts as one partition.
_AT_ONCE = 32


class Push:
    """Pushes topics of a store into a cluster. A context manager, which closes the connections."""

    def __init__(
        self,
        store: Store,
        servers: str,
        topics: re.Pattern[str],
        options: Mapping[str, Any],
        *,
        map_path: Path | None = None,
        replicas: int = -1,
    ) -> None:
        """Connect to the cluster. Topics whose whole names match `topics` are pushed.

        `servers` is a list of host:port separated by commas; `options` are those of the connection, such as TLS and
        SASL, under their names in kafka-python. If `map_path` is given, topics whose batches cannot be pushed
        unchanged get new offsets, and this file maps old offsets to new ones. New topics get `replicas` replicas, or
        the cluster's default number for -1. Raises `ClusterError`, and `OSError` if the file cannot be read.
        """
        self._store = store
        self._topics = topics
        self._replicas = replicas
        self._sender = Sender(lambda: Cluster(servers, options))
        self._map: TranslationMap | None = None
        try:
            cluster_id = self._sender.ask(lambda cluster: cluster.cluster_id)
            if map_path is not None:
                self._map = TranslationMap(map_path, cluster_id)
            self._planner = Planner(store, self._sender, self._map, replicas)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections, and unlock the map file, so that another push can use it."""
        self._sender.close()
        if self._map is not None:
            self._map.close()
            self._map = None

    def plan(self, report: Callable[[PushProgress], object]) -> list[TopicPlan]:
        """Read the topics, and return how each can be pushed. No batch is sent.

        `report` is called with the progress after each batch that is read. Raises `UnknownPartition` if no topic
        matches, `ClusterError`, and, for a partition that is offline, the error that keeps it offline.
        """
        return self._planner.plan(self._topics, report)

    def run(self, plans: Sequence[TopicPlan], report: Callable[[PushProgress], object]) -> None:
        """Push the topics of `plans`, the result of `plan`. A topic whose plan has `is_refused` set is left out.

        `report` is called with the progress each time after brokers have appended some batches. Raises
        `ClusterError`, and `OSError` if the map file cannot be written. Batches sent before an error stay in the
        cluster, and the next push continues after them.
        """
        plans = [plan for plan in plans if not plan.is_refused]
        for plan in plans:
            if plan.is_translated:
                assert self._map is not None
                # Write the map before any topic is created: if this fails, nothing has changed in the cluster.
                self._map.begin(plan.name, plan.topic_id)
        for plan in plans:
            self._prepare(plan)
        self._send(plans, report)
        self._check_ends(plans)
        for plan in plans:
            self._finish(plan)
        self._commit_groups({plan.name: plan for plan in plans})

    def _check_ends(self, plans: Sequence[TopicPlan]) -> None:
        """Raise `ClusterError` if a partition in the cluster does not end at the offset up to which it was pushed.

        The reason is another program that writes to the topic, or a batch of an earlier push that arrived late.
        """
        wanted = {(plan.name, number): end for plan in plans for number, end in plan.there.items()}
        for (topic, number), end in self._sender.settled_ends(wanted).items():
            if end != wanted[topic, number]:
                raise ClusterError(
                    f"{topic}-{number}: was pushed up to offset {wanted[topic, number]}, but ends at {end} in the "
                    "cluster: another program writes to the topic, or the network has kept a batch of an earlier "
                    "push. Delete the topic in the cluster, and push again"
                )

    def _prepare(self, plan: TopicPlan) -> None:
        """Give a topic in the cluster the settings `FOR_PUSHING`, under which brokers change no batch.

        A missing topic is created with the settings that it has in the store; `FOR_PUSHING` overrides them. An
        existing topic is left unchanged if there are no records left to push.
        """
        settings = {**plan.settings, **FOR_PUSHING}
        if plan.remote is None:
            create_topic(self._sender, plan, self._replicas, settings)
        elif plan.left:
            self._alter(plan, FOR_PUSHING)

    def _alter(self, plan: TopicPlan, changes: Mapping[str, str | None]) -> None:
        self._sender.ask(partial(Cluster.alter_settings, topic=plan.name, changes=changes))

    def _streams(self, plan: TopicPlan) -> Iterator[Iterator[Sequence[Outgoing]]]:
        """Yield iterators over the batches to send: one for each local partition, or one for the whole topic.

        The topic has only one iterator if its records get new offsets. Each item of an iterator is a list of batches,
        at most one for each partition in the cluster.
        """
        if not plan.is_translated:
            for each in plan.readers:
                yield exact_batches(each, plan.begins[each.partition], plan.ends[each.partition])
            return
        assert self._map is not None
        yield Translation(self._store.topic(plan.name), plan.there, self._map).batches()

    def _send(self, plans: Sequence[TopicPlan], report: Callable[[PushProgress], object]) -> None:
        """Send the batches of the topics. The next batch of a partition is read after the previous one was sent."""
        streams = [stream for plan in plans for stream in self._streams(plan)]
        by_name = {plan.name: plan for plan in plans}
        total = sum(each.size_bytes for plan in plans for each in plan.readers)
        done = 0
        while streams:
            batches: list[Outgoing] = []
            for stream in streams[:_AT_ONCE]:
                some = next(stream, None)
                if some is None:
                    streams.remove(stream)
                else:
                    batches += some
            if batches:
                self._sender.send(batches)
            for batch in batches:
                plan = by_name[batch.topic]
                plan.there[batch.partition] = batch.offset + batch.records
                plan.sent_records += batch.records
                done += len(batch.data)
            report(PushProgress("sending", done, max(done, total)))

    def _finish(self, plan: TopicPlan) -> None:
        """Give a topic in the cluster the settings that it has in the store.

        Unless the topic's records got new offsets, also delete the records in the cluster that are below the local
        log start offsets.
        """
        reset = {name: None for name in FOR_PUSHING if name not in plan.settings}
        self._alter(plan, {**plan.settings, **reset})
        if plan.is_translated:
            return
        places = [(plan.name, number) for number in plan.there]
        starts = self._sender.ask(partial(Cluster.start_offsets, partitions=places))
        for each in plan.readers:
            place = plan.name, each.partition
            wanted = min(each.log_start_offset, plan.there[each.partition])
            if starts[place] < wanted:
                self._sender.ask(
                    partial(
                        Cluster.delete_records,
                        topic=plan.name,
                        partition=each.partition,
                        before=wanted,
                    )
                )

    def _commit_groups(self, plans: Mapping[str, TopicPlan]) -> None:
        """Commit in the cluster the offsets that groups have in the store for the topics in `plans`.

        If a group already has an offset for a partition in the cluster, this offset stays.
        """
        committed: dict[str, dict[str, dict[int, OffsetCommit]]] = {}
        for group, where, commit in self._store.groups:
            if where.topic in plans:
                topics = committed.setdefault(group, {})
                topics.setdefault(where.topic, {})[where.partition] = commit
        for group, topics in committed.items():
            known = self._sender.ask(partial(Cluster.group_offsets, group=group))
            missing = {
                (topic, number): found
                for topic, commits in topics.items()
                for number, found in self._committed_there(plans[topic], commits).items()
                if (topic, number) not in known
            }
            if missing:
                self._sender.ask(partial(Cluster.commit, group=group, offsets=missing))

    def _committed_there(
        self, plan: TopicPlan, commits: Mapping[int, OffsetCommit]
    ) -> dict[int, tuple[int, str]]:
        """Return what to commit for a group in the cluster: (offset, metadata) by the number of the partition there.

        `commits` are the group's commits in the store for the topic of `plan`, by the number of the partition in the
        store. If the topic has new offsets in the cluster, the offsets of the commits are mapped to these.
        """
        if not plan.is_translated:
            return {
                number: (min(commit.offset, plan.there[number]), commit.metadata)
                for number, commit in commits.items()
                if number in plan.there
            }
        assert self._map is not None
        here = {number: commit.offset for number, commit in commits.items()}
        found = self._map.translated(plan.name, here, plan.there)
        # The metadata of a commit may describe its local partition. If the number of partitions differs, no partition
        # in the cluster corresponds to it, so the metadata is left out.
        alike = commits if plan.has_same_partitions else {}
        return {
            number: (offset, alike[number].metadata if number in alike else "")
            for number, offset in found.items()
        }
