"""Plans a push before any batch is sent: how and from which offset each topic is pushed, or why it cannot be."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from logfs.cluster.cluster import OWN_TOPICS, Cluster
from logfs.errors import ClusterError, UnknownPartition
from logfs.format.base.names import parse_directory
from logfs.format.files.checkpoint import uuid_to_text
from logfs.push.exact_push import first_offset, holds_last_batch
from logfs.push.obstacles import find_obstacles
from logfs.setting import MIRROR_SOURCE

if TYPE_CHECKING:
    import re
    from collections.abc import Callable, Mapping, Sequence

    from logfs.cluster.cluster import RemoteTopic
    from logfs.log.read.log import Log
    from logfs.push.sender import Sender
    from logfs.push.translation_map import TranslationMap
    from logfs.store.store import Store

# The settings of a topic in the cluster while it is pushed. With them, brokers do not change batches, do not refuse
# them because of their size or timestamps, and do not delete them.
FOR_PUSHING = {
    "cleanup.policy": "delete",
    "compression.type": "producer",
    "max.message.bytes": str(2**31 - 1),
    "message.timestamp.after.max.ms": str(2**63 - 1),
    "message.timestamp.before.max.ms": str(2**63 - 1),
    "message.timestamp.type": "CreateTime",
    "retention.bytes": "-1",
    "retention.ms": "-1",
}


class PushProgress(NamedTuple):
    """The current step of a push, "checking" or "sending", with the bytes done in this step and their total."""

    work: str
    done_bytes: int
    total_bytes: int


@dataclass
class TopicPlan:
    """How a topic is pushed.

    `readers` are the local partitions. `topic_id` is the id of the local topic, "-" if it has none. `remote` is the
    topic in the cluster, None if the push must create it. `settings` are the settings that the topic in the cluster
    gets at the end of the push. `obstacles` say why the local batches cannot be pushed unchanged; `refusals` say why
    the topic cannot be pushed at all. `is_translated` means that the records are sent in new batches with new
    offsets. `sent_records` counts the records sent.

    `partitions` is the number of partitions in the cluster after the push. `there` maps each partition in the cluster
    to its log end offset there, and is updated during the push. `begins` maps each local partition to the local
    offset at which the push begins, and `ends` maps each local partition to its local log end offset.
    """

    name: str
    readers: Sequence[Log]
    topic_id: str
    partitions: int
    remote: RemoteTopic | None
    settings: Mapping[str, str]
    obstacles: list[str] = field(default_factory=list)
    refusals: list[str] = field(default_factory=list)
    is_translated: bool = False
    begins: dict[int, int] = field(default_factory=dict)
    ends: dict[int, int] = field(default_factory=dict)
    there: dict[int, int] = field(default_factory=dict)
    sent_records: int = 0

    @property
    def has_same_partitions(self) -> bool:
        """Whether the topic has as many partitions in the cluster as in the store.

        The number in the store is the greatest partition number plus one: 3 if only partitions 0 and 2 exist.
        """
        return self.partitions == max(each.partition for each in self.readers) + 1

    @property
    def is_refused(self) -> bool:
        """Whether the topic is not pushed: it has refusals, or obstacles while the push has no `TranslationMap`."""
        return bool(self.refusals or (self.obstacles and not self.is_translated))

    @property
    def left(self) -> int:
        """The number of local offsets from `begins` to `ends`, in all partitions together.

        If `is_translated`, an earlier push may have sent records at some of these offsets.
        """
        return sum(self.ends[number] - sent for number, sent in self.begins.items())


def create_topic(
    sender: Sender,
    plan: TopicPlan,
    replicas: int,
    settings: Mapping[str, str],
    *,
    is_trial: bool = False,
) -> None:
    """Create the topic of a plan with `settings`, and wait until its partitions have leaders.

    Each partition gets `replicas` replicas, or the cluster's default number for -1. If `is_trial` is true, only ask
    the cluster whether it would create the topic. Raises `ClusterError` if the cluster refuses.
    """
    sender.ask(
        partial(
            Cluster.create_topic,
            topic=plan.name,
            partitions=plan.partitions,
            replicas=replicas,
            settings=settings,
            is_trial=is_trial,
        )
    )


class Planner:
    """Makes the plan of a push from the logs in the store and those in the cluster."""

    def __init__(
        self, store: Store, sender: Sender, offsets: TranslationMap | None, replicas: int
    ) -> None:
        """Prepare to plan pushes from `store` to the cluster of `sender`.

        `offsets` is the file that maps old offsets to new ones; if it is None, no topic may get new offsets. New
        topics get `replicas` replicas, or the cluster's default number for -1.
        """
        self._store = store
        self._sender = sender
        self._map = offsets
        self._replicas = replicas
        self._cluster_id = sender.ask(lambda cluster: cluster.cluster_id)

    def plan(
        self, topics: re.Pattern[str], report: Callable[[PushProgress], object]
    ) -> list[TopicPlan]:
        """Read the topics whose whole names match `topics`, and return how each can be pushed.

        `report` is called with the progress after each batch that is read. Raises `UnknownPartition` if no topic
        matches, `ClusterError`, and, for a partition that is offline, the error that keeps it offline.
        """
        remote = {each.name: each for each in self._sender.ask(Cluster.topics)}
        names = sorted(
            name
            for name in {parse_directory(each).topic for each in self._store.registry.homes}
            - OWN_TOPICS
            if topics.fullmatch(name)
        )
        if not names:
            raise UnknownPartition(
                f"no topic in the log directories matches {topics.pattern!r}; 'logfs describe' lists the topics"
            )
        plans = [self._topic_plan(name, remote.get(name)) for name in names]
        ends = self._sender.settled_ends(
            (plan.name, number) for plan in plans if plan.remote for number in plan.remote.leaders
        )
        total = sum(each.size_bytes for plan in plans for each in plan.readers)
        done = 0

        def checked(size: int) -> None:
            nonlocal done
            done += size
            report(PushProgress("checking", done, max(done, total)))

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
        topic_id = self._store.registry.topic_id(name)
        id_text = "-" if topic_id is None else uuid_to_text(topic_id)
        plan = TopicPlan(name, readers, id_text, partitions, remote, settings)
        plan.there |= dict.fromkeys(range(partitions), 0)
        if overrides.get(MIRROR_SOURCE) == self._cluster_id:
            plan.refusals.append(
                "is a mirror of this cluster, which has its records already; 'logfs promote' makes it an ordinary "
                "topic"
            )
        if not plan.has_same_partitions:
            plan.obstacles.append(
                f"has {here} partitions here, but {plan.partitions} in the cluster"
            )
        return plan

    def _try_settings(self, plan: TopicPlan) -> None:
        """Ask the cluster whether it would accept the settings that the topic gets for the push, and after the push.

        For the push, the settings `FOR_PUSHING` override those of the topic. Nothing is changed in the cluster. If
        the cluster refuses settings, its reason is added to `plan.refusals`.
        """
        for settings in ({**plan.settings, **FOR_PUSHING}, plan.settings):
            try:
                if plan.remote is None:
                    create_topic(self._sender, plan, self._replicas, settings, is_trial=True)
                else:
                    self._sender.ask(
                        partial(
                            Cluster.alter_settings,
                            topic=plan.name,
                            changes=settings,
                            is_trial=True,
                        )
                    )
            except ClusterError as error:
                plan.refusals.append(str(error))
                return

    def _examine(self, plan: TopicPlan, checked: Callable[[int], object]) -> None:
        """Set `begins`, `ends` and `is_translated` of the plan, and add to its obstacles and refusals.

        The batches from `begins` on are read; `checked` is called with the size in bytes of each of them.
        """
        plan.ends = {each.partition: each.log_end_offset for each in plan.readers}
        is_begun = self._map is not None and plan.name in self._map
        for each in plan.readers:
            begin = first_offset(each)
            plan.begins[each.partition] = begin
            if not is_begun and plan.has_same_partitions:
                there = plan.there[each.partition]
                plan.obstacles += self._reasons_not_to_continue(each, begin, there)
                plan.begins[each.partition] = min(max(begin, there), each.log_end_offset)
            found = find_obstacles(
                each, max(plan.begins[each.partition], each.log_start_offset), checked
            )
            name = each.name.directory
            plan.obstacles += [f"{name}: {reason}" for reason in found.reasons]
            plan.refusals += [f"{name}: {found.damage}"] if found.damage else []
        plan.is_translated = self._map is not None and (bool(plan.obstacles) or is_begun)
        if plan.is_translated:
            plan.refusals += self._check_map(plan, is_begun=is_begun)

    def _check_map(self, plan: TopicPlan, *, is_begun: bool) -> list[str]:
        """Return the reasons why the map of offsets cannot be used for a topic; an empty list if it can be used.

        For example, the map was written for another local topic, or it lacks records that are in the cluster.
        `is_begun` tells whether the map has lines for the topic. Lines for records that were not sent are removed
        from the map.
        """
        assert self._map is not None
        if is_begun:
            try:
                self._map.check_source(plan.name, plan.topic_id, plan.ends)
                self._map.keep_sent(plan.name, plan.there)
            except ClusterError as error:
                return [str(error)]
        unknown = sorted(plan.there.keys() - self._map.partitions_of(plan.name))
        places = [] if plan.remote is None else [(plan.name, number) for number in unknown]
        starts = self._sender.ask(partial(Cluster.start_offsets, partitions=places))
        what = (
            "restore the map from a copy" if is_begun else "name the map of the push that sent them"
        )
        return [
            f"{topic}-{number}: has records in the cluster that the map does not know: {what}, or delete the topic "
            "in the cluster, and the map"
            for (topic, number), start in starts.items()
            if start < plan.there[number]
        ]

    def _reasons_not_to_continue(self, reader: Log, begin: int, there: int) -> list[str]:
        """Return the reasons why a push cannot continue the log in the cluster; an empty list if it can.

        The local log begins at the offset `begin`; the log in the cluster ends at the offset `there`.
        """
        name, end = reader.name.directory, reader.log_end_offset
        if there == begin:
            return []
        if there < begin:
            return [
                f"{name}: begins at offset {begin} here, but its log in the cluster ends at {there}"
            ]
        if there > end:
            return [f"{name}: ends at offset {end} here, but at {there} in the cluster"]
        theirs = self._sender.last_batch((reader.name.topic, reader.partition), there)
        if not theirs:
            # The cluster has deleted the last batch before `there`, so it cannot be compared. This does not matter if
            # all batches were sent before: then the push sends nothing.
            return (
                []
                if there == end
                else [
                    f"{name}: the cluster has deleted the batch before offset {there}, so it is unknown whether its "
                    "log has the same records; delete the topic in the cluster, and push again"
                ]
            )
        if not holds_last_batch(reader, there, theirs):
            return [f"{name}: its log in the cluster has other records before offset {there}"]
        return []
