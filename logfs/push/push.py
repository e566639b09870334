"""The push of topics into a Kafka cluster: what goes which way, in which order, with which settings and groups.

A plan is made first, for which all batches are read: what brokers would refuse is known before anything is sent. Then
topics get settings under which brokers change no batch, the batches, the settings that they have here, and the
offsets of the groups. A push that was interrupted goes on where the logs in the cluster end.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from logfs.cluster.cluster import OWN_TOPICS, Cluster
from logfs.errors import ClusterError, UnknownPartition
from logfs.format.base.names import parse_directory
from logfs.push.exact_push import exact_batches, first_offset, holds_last_batch
from logfs.push.obstacles import find_obstacles
from logfs.push.offset_map import OffsetMap
from logfs.push.sender import Sender
from logfs.push.translation import Translation
from logfs.setting import MIRROR_SOURCE

if TYPE_CHECKING:
    import re
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path
    from typing import Self

    from logfs.cluster.cluster import Outgoing, RemoteTopic
    from logfs.format.messages.group_record import OffsetCommit
    from logfs.log.append.partition import Partition
    from logfs.store.store import Store

# Under these settings brokers take any batch as it is, and delete none. A topic has them while it is pushed.
_FOR_PUSHING = {
    "cleanup.policy": "delete",
    "compression.type": "producer",
    "max.message.bytes": str(2**31 - 1),
    "message.timestamp.after.max.ms": str(2**63 - 1),
    "message.timestamp.before.max.ms": str(2**63 - 1),
    "message.timestamp.type": "CreateTime",
    "retention.bytes": "-1",
    "retention.ms": "-1",
}
# So many partitions or translated topics are sent side by side. Each has a batch in memory.
_AT_ONCE = 32


class Progress(NamedTuple):
    """What is being done, "checking" or "sending", and how far it is, in bytes."""

    work: str
    done_bytes: int
    total_bytes: int


@dataclass
class TopicPlan:
    """How a topic is pushed.

    `obstacles` say why it cannot go as it is, and `refusals` why it cannot go at all. `is_translated` means that its
    records get new offsets. `partitions` is the number of partitions in the cluster, at the end, and `there` are the
    ends of their logs; `sent_up_to` and `ends` are offsets here, by partition.
    """

    name: str
    readers: Sequence[Partition]
    partitions: int
    remote: RemoteTopic | None
    settings: Mapping[str, str]
    obstacles: list[str] = field(default_factory=list)
    refusals: list[str] = field(default_factory=list)
    is_translated: bool = False
    sent_up_to: dict[int, int] = field(default_factory=dict)
    ends: dict[int, int] = field(default_factory=dict)
    there: dict[int, int] = field(default_factory=dict)

    @property
    def is_refused(self) -> bool:
        """Whether the topic cannot be pushed in the way that was asked for."""
        return bool(self.refusals or (self.obstacles and not self.is_translated))

    @property
    def left(self) -> int:
        """How many offsets there are to push; with a translation, at most."""
        return sum(self.ends[number] - sent for number, sent in self.sent_up_to.items())


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

        `servers` are host:port separated by commas; `options` are those of `cluster.options`. With `map_path`, the
        records of topics that cannot go as they are get new offsets, which that file will tell. New topics have
        `replicas` replicas, -1 for the cluster's default. Raises `ClusterError`, and `OSError` for the map.
        """
        self._store = store
        self._topics = topics
        self._replicas = replicas
        self._sender = Sender(lambda: Cluster(servers, options))
        try:
            self._cluster_id = self._sender.ask(lambda cluster: cluster.cluster_id)
            self._map = None if map_path is None else OffsetMap(map_path, self._cluster_id)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._sender.close()

    # The plan.

    def plan(self, report: Callable[[Progress], object]) -> list[TopicPlan]:
        """Read all that is to be pushed, and return how each topic can be. Nothing is sent.

        Raises `UnknownPartition` if there is no such topic, `ClusterError`, and the errors that keep a partition
        offline.
        """
        remote = {each.name: each for each in self._sender.ask(Cluster.topics)}
        names = sorted(
            name
            for name in {parse_directory(each).topic for each in self._store.homes} - OWN_TOPICS
            if self._topics.fullmatch(name)
        )
        if not names:
            raise UnknownPartition(f"no topic here matches {self._topics.pattern!r}")
        plans = [self._topic_plan(name, remote.get(name)) for name in names]
        ends = self._sender.settled_ends(
            (plan.name, number) for plan in plans if plan.remote for number in plan.remote.leaders
        )
        total = sum(each.size_bytes for plan in plans for each in plan.readers)
        done = 0

        def checked(size: int) -> None:
            nonlocal done
            done += size
            report(Progress("checking", done, max(done, total)))

        for plan in plans:
            plan.there |= {
                number: end for (topic, number), end in ends.items() if topic == plan.name
            }
            self._try_settings(plan)
            self._examine(plan, checked)
        return plans

    def _topic_plan(self, name: str, remote: RemoteTopic | None) -> TopicPlan:
        readers = self._store.topic(name).partitions
        here = max(each.partition for each in readers) + 1
        overrides = self._store.settings.topic_overrides(name)
        settings = {n: t for n, t in overrides.items() if not n.startswith(("logfs.", "remote."))}
        partitions = here if remote is None else len(remote.leaders)
        plan = TopicPlan(name, readers, partitions, remote, settings)
        plan.there |= dict.fromkeys(range(partitions), 0)
        if overrides.get(MIRROR_SOURCE) == self._cluster_id:
            plan.refusals.append(
                "is a mirror of this very cluster; 'logfs promote' makes it a log of its own"
            )
        if plan.partitions != here:
            plan.obstacles.append(f"has {here} partitions here, but {plan.partitions} there")
        return plan

    def _try_settings(self, plan: TopicPlan) -> None:
        """Find out whether the cluster takes the topic with its settings, those at the end included."""
        for settings in ({**plan.settings, **_FOR_PUSHING}, plan.settings):
            try:
                if plan.remote is None:
                    self._create(plan, settings, is_trial=True)
                else:
                    self._alter(plan, settings, is_trial=True)
            except ClusterError as error:
                plan.refusals.append(str(error))
                return

    def _examine(self, plan: TopicPlan, checked: Callable[[int], object]) -> None:
        """Find out what is in the way of a topic, and where to begin."""
        plan.ends = {each.partition: each.log_end_offset for each in plan.readers}
        is_begun = self._map is not None and plan.name in self._map
        for each in plan.readers:
            begin = first_offset(each)
            plan.sent_up_to[each.partition] = begin
            if not is_begun and plan.partitions == len(plan.readers):
                there = plan.there[each.partition]
                plan.obstacles += self._compare(each, begin, there)
                plan.sent_up_to[each.partition] = min(max(begin, there), each.log_end_offset)
            found = find_obstacles(
                each, max(plan.sent_up_to[each.partition], each.log_start_offset), checked
            )
            name = each.name.directory
            plan.obstacles += [f"{name}: {reason}" for reason in found.reasons]
            plan.refusals += [f"{name}: {found.damage}"] if found.damage else []
        plan.is_translated = self._map is not None and (bool(plan.obstacles) or is_begun)
        if plan.is_translated:
            plan.refusals += self._check_map(plan, is_begun=is_begun)

    def _check_map(self, plan: TopicPlan, *, is_begun: bool) -> list[str]:
        """Return what is in the way of a translation: records in the cluster that are not in the map."""
        assert self._map is not None
        if is_begun:
            try:
                self._map.keep_sent(plan.name, plan.there)
            except ClusterError as error:
                return [str(error)]
            return []
        starts = {} if plan.remote is None else self._starts(plan)
        return [
            f"{topic}-{number}: has records there that the map does not know: delete the topic in the cluster, or "
            "name the map of the push that they are from"
            for (topic, number), start in starts.items()
            if start < plan.there[number]
        ]

    def _compare(self, reader: Partition, begin: int, there: int) -> list[str]:
        """Return what is in the way if the log in the cluster ends at `there`, and ours begins at `begin`."""
        name, end = reader.name.directory, reader.log_end_offset
        if there == begin:
            return []
        if there < begin:
            return [f"{name}: begins at offset {begin} here, but its log there ends at {there}"]
        if there > end:
            return [f"{name}: ends at offset {end} here, but at {there} there"]
        theirs = self._sender.last_batch((reader.name.topic, reader.partition), there)
        if not theirs:
            return [
                f"{name}: the batch before offset {there} was deleted there; it tells what was sent"
            ]
        if not holds_last_batch(reader, there, theirs):
            return [f"{name}: its log there has other records before offset {there}"]
        return []

    # The push.

    def run(self, plans: Sequence[TopicPlan], report: Callable[[Progress], object]) -> None:
        """Push topics as they were planned, but not those that are refused.

        Raises `ClusterError`; what was sent is kept, and the next push goes on after it.
        """
        plans = [plan for plan in plans if not plan.is_refused]
        for plan in plans:
            self._prepare(plan)
        self._send(plans, report)
        self._check_ends(plans)
        for plan in plans:
            self._finish(plan)
        self._commit_groups({plan.name: plan for plan in plans})

    def _check_ends(self, plans: Sequence[TopicPlan]) -> None:
        """Raise `ClusterError` if a log in the cluster does not end where it was pushed to."""
        wanted = {(plan.name, number): end for plan in plans for number, end in plan.there.items()}
        for (topic, number), end in self._sender.settled_ends(wanted).items():
            if end != wanted[topic, number]:
                raise ClusterError(
                    f"{topic}-{number}: was pushed up to offset {wanted[topic, number]}, but ends at {end} in the "
                    "cluster: another program writes to the topic, or the network has kept a batch of an earlier "
                    "push. Delete the topic in the cluster, and push again"
                )

    def _prepare(self, plan: TopicPlan) -> None:
        """Create a topic, or give it the settings under which it can be pushed, if there is something to push."""
        settings = {**plan.settings, **_FOR_PUSHING}
        if plan.remote is None:
            self._create(plan, settings)
        elif plan.left:
            self._alter(plan, _FOR_PUSHING)

    def _create(
        self, plan: TopicPlan, settings: Mapping[str, str], *, is_trial: bool = False
    ) -> None:
        name, partitions, replicas = plan.name, plan.partitions, self._replicas
        self._sender.ask(
            lambda cluster: cluster.create_topic(
                name, partitions, replicas, settings, is_trial=is_trial
            )
        )

    def _alter(
        self, plan: TopicPlan, changes: Mapping[str, str | None], *, is_trial: bool = False
    ) -> None:
        self._sender.ask(
            lambda cluster: cluster.alter_settings(plan.name, changes, is_trial=is_trial)
        )

    def _streams(self, plan: TopicPlan) -> Iterator[Iterator[Sequence[Outgoing]]]:
        """Yield what sends a topic: an iterator for each partition, or for the topic if it is translated."""
        if not plan.is_translated:
            for each in plan.readers:
                yield exact_batches(
                    each, plan.sent_up_to[each.partition], plan.ends[each.partition]
                )
            return
        assert self._map is not None
        yield Translation(self._store.topic(plan.name), plan.there, self._map).batches()

    def _send(self, plans: Sequence[TopicPlan], report: Callable[[Progress], object]) -> None:
        """Send the topics. A stream is asked for more once all that it has yielded is in the cluster."""
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
                by_name[batch.topic].there[batch.partition] = batch.offset + batch.records
                done += len(batch.data)
            report(Progress("sending", done, max(done, total)))

    def _finish(self, plan: TopicPlan) -> None:
        """Give a topic the settings and the log starts that it has here."""
        reset = {name: None for name in _FOR_PUSHING if name not in plan.settings}
        self._alter(plan, {**plan.settings, **reset})
        if plan.is_translated:
            return
        starts = self._starts(plan)
        for each in plan.readers:
            wanted = min(each.log_start_offset, plan.there[each.partition])
            if starts[plan.name, each.partition] < wanted:
                self._sender.ask(_delete_records(plan.name, each.partition, wanted))

    def _starts(self, plan: TopicPlan) -> dict[tuple[str, int], int]:
        """Return the log starts in the cluster."""
        places = [(plan.name, number) for number in plan.there]
        return self._sender.ask(lambda cluster: cluster.start_offsets(places))

    def _commit_groups(self, plans: Mapping[str, TopicPlan]) -> None:
        """Commit the offsets of groups for the topics that were pushed, where they have none in the cluster."""
        committed: dict[str, dict[str, dict[int, OffsetCommit]]] = {}
        for group, where, commit in self._store.groups:
            if where.topic in plans:
                topics = committed.setdefault(group, {})
                topics.setdefault(where.topic, {})[where.partition] = commit
        for group, topics in committed.items():
            known = self._sender.ask(_group_offsets(group))
            missing = {
                (topic, number): found
                for topic, commits in topics.items()
                for number, found in self._committed_there(plans[topic], commits).items()
                if (topic, number) not in known
            }
            if missing:
                self._sender.ask(_commit(group, missing))

    def _committed_there(
        self, plan: TopicPlan, commits: Mapping[int, OffsetCommit]
    ) -> dict[int, tuple[int, str]]:
        """Return what a group is to commit for a topic in the cluster: (offset, metadata) by partition there."""
        if not plan.is_translated:
            return {
                number: (min(commit.offset, plan.there[number]), commit.metadata)
                for number, commit in commits.items()
                if number in plan.there
            }
        assert self._map is not None
        here = {number: commit.offset for number, commit in commits.items()}
        found = self._map.translated(plan.name, here, plan.there)
        if plan.partitions != len(plan.readers):
            # The texts that came with the offsets are about other partitions.
            return {number: (offset, "") for number, offset in found.items()}
        return {number: (offset, commits[number].metadata) for number, offset in found.items()}


# What is asked in a loop.


def _delete_records(topic: str, partition: int, before: int) -> Callable[[Cluster], None]:
    return lambda cluster: cluster.delete_records(topic, partition, before)


def _group_offsets(group: str) -> Callable[[Cluster], dict[tuple[str, int], int]]:
    return lambda cluster: cluster.group_offsets(group)


def _commit(
    group: str, offsets: Mapping[tuple[str, int], tuple[int, str]]
) -> Callable[[Cluster], None]:
    return lambda cluster: cluster.commit(group, offsets)
