"""The mirror of a Kafka cluster: topics, their settings and the offsets of groups, kept up to date in a store.

A `Fetcher` for each broker fetches raw batches, and a `PartitionMirror` appends them as they are
(`log.append.fetched_batches`). This module decides what is mirrored: it reads the topics, their partitions and
leaders, their settings, and the committed offsets of groups from the cluster.
"""

from __future__ import annotations

import logging
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from logfs.cluster.cluster import OWN_TOPICS, Cluster
from logfs.errors import ClusterError, InvalidSetting, LogfsError, RecordTooLarge
from logfs.format.base.names import TopicPartition, parse_directory, partitions_of
from logfs.locks import Level, make_lock
from logfs.mirror.fetcher import Fetcher
from logfs.mirror.partition_mirror import PartitionMirror, check_copy_of
from logfs.setting import MIRROR_SOURCE, RETENTION_MS, TOPIC_SETTINGS
from logfs.store.directory.topic_id import read_topic_id, write_topic_id

if TYPE_CHECKING:
    import re
    import uuid
    from collections.abc import Callable, Mapping, Sequence
    from typing import Self

    from logfs.cluster.cluster import RemoteTopic
    from logfs.store.store import Store

logger = logging.getLogger(__name__)

# How long the mirror waits between two reads of the topics, their leaders and settings, and the groups from the
# cluster.
_METADATA_SECONDS = 5.0
_TICK_SECONDS = 0.1
# A partition with this many unflushed bytes is flushed, to bound the bytes that are fetched again after a power cut.
_FLUSH_BYTES = 32 << 20
# Settings with these prefixes are not copied from the cluster: they configure logfs, and the tiered storage of the
# store that has the copy.
_OWN_SETTINGS = ("local.", "logfs.", "remote.")
# How long `run_once` repeats failed attempts for a partition before it leaves the partition incomplete.
_GIVE_UP_SECONDS = 30.0


class MirrorProgress(NamedTuple):
    """The progress of a mirror. `fetched_bytes` are the bytes of batches appended since the mirror was started.

    `lag` is the number of offsets that the copies are behind, summed over all partitions, and `partitions` is the
    number of partitions. `problems` has the texts of the present errors. Each key says what fails: a partition, a
    topic or a broker by name, or a word such as "groups".
    """

    fetched_bytes: int
    lag: int
    partitions: int
    problems: Mapping[str, str]


class Mirror:
    """Copies topics of a cluster into a store, and keeps the copies current. A context manager, which calls `close`.

    The mirror sets `logfs.mirror.source` of each copy to the id of the cluster. While a topic has this setting, only
    the mirror can append to it. The command `logfs promote` removes the setting, to make the copy an ordinary topic.
    """

    def __init__(
        self, store: Store, servers: str, topics: re.Pattern[str], options: Mapping[str, Any]
    ) -> None:
        """Connect to the cluster, and begin to mirror the topics whose whole names match `topics`.

        `servers` are host:port separated by commas; `options` are the options of the connection, named as in
        kafka-python. Raises `ClusterError`.
        """
        self._store = store
        self._topics = topics
        self._connect: Callable[[], Cluster] = lambda: Cluster(servers, options)
        self._cluster = self._connect()
        self._is_lost = False
        self._lock = make_lock(Level.MIRROR)
        self._partitions: dict[str, PartitionMirror] = {}
        self._fetchers: dict[int, Fetcher] = {}
        self._problems: dict[str, str] = {}
        # The partitions whose copies could not be opened at the last refresh, such as offline ones, with the reasons.
        self._unopened: dict[str, str] = {}
        # The topics for which it was logged that the mirror has no permission to read their settings.
        self._unread: set[str] = set()
        # The bytes fetched for partitions that are no longer mirrored, and for copies that were deleted.
        self._past_bytes = 0
        # The problems in the progress that was reported last. If they are unchanged, they are not logged again.
        self._told: Mapping[str, str] = {}
        # For each topic, the names of its partitions in the store at the last refresh.
        self._homes: dict[str, list[str]] = {}
        # The topic ids that all copies of a topic were found to have, by topic name. They are not checked again.
        self._known_ids: dict[str, uuid.UUID] = {}
        self._asked = threading.Event()
        try:
            self._cluster_id = self._cluster.cluster_id
            self.refresh()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the threads, and close the connections. The copies stay readable."""
        for fetcher in self._fetchers.values():
            fetcher.stop()
        for fetcher in self._fetchers.values():
            fetcher.join()
        self._fetchers.clear()
        self._cluster.close()

    # Methods that run the mirror and report its progress.

    def run(
        self,
        report: Callable[[MirrorProgress], object],
        is_over: Callable[[], bool] = lambda: False,
    ) -> None:
        """Mirror until `is_over` returns True, and call `report` with the progress about every 0.1 seconds.

        `report` is also called once at the end. If it raises an error, the run ends with this error. The mirror does
        not call the store's `upkeep`. The caller must do so, for example in `report`.
        """
        next_refresh = time.monotonic() + _METADATA_SECONDS
        while not is_over():
            report(self._told_progress())
            self._flush_much()
            self._asked.wait(_TICK_SECONDS)
            if self._asked.is_set() or time.monotonic() >= next_refresh:
                self._asked.clear()
                self._try_refresh()
                next_refresh = time.monotonic() + _METADATA_SECONDS
        report(self._told_progress())

    def _flush_much(self) -> None:
        """Flush each partition that has at least 32 MiB of unflushed bytes, while the fetchers go on.

        An error becomes one of the problems that `progress` returns.
        """
        for each in list(self._partitions.values()):
            if each.unflushed_bytes >= _FLUSH_BYTES:
                try:
                    each.flush()
                except (LogfsError, OSError) as error:
                    each.fail(str(error))

    def _told_progress(self) -> MirrorProgress:
        """Return the progress, and log the problems that are new."""
        progress = self.progress()
        for where, problem in progress.problems.items():
            if self._told.get(where) != problem:
                logger.error("%s: %s", where, problem)
        self._told = progress.problems
        return progress

    def run_once(self, report: Callable[[MirrorProgress], object]) -> None:
        """Mirror all batches up to the present end of each partition in the cluster, and make them durable.

        Then the offsets that groups have committed are mirrored. `report` is called with the progress about every 0.1
        seconds; if it raises an error, the mirroring ends with this error. A partition is left incomplete if it has
        no leader at the start, or if all attempts to mirror it have failed for 30 seconds; `progress` says why.
        """
        led = [each for each in self._partitions.values() if each.leader >= 0]
        for each in self._partitions.values():
            if each.leader < 0:
                each.fail("has no leader")
        ends = self._cluster.end_offsets(each.place for each in led)
        for each in led:
            each.goal = ends[each.place]

        def is_over() -> bool:
            return all(
                each.has_reached_goal or self._failing_seconds(each) > _GIVE_UP_SECONDS
                for each in self._partitions.values()
            )

        self.run(report, is_over)
        self._mirror_groups()
        for each in self._partitions.values():
            each.flush()

    def _failing_seconds(self, mirror: PartitionMirror) -> float:
        """Return for how many seconds a partition, or the fetcher of its leader, has been failing.

        The result is the greater of the two times, and 0 if the last attempts of both succeeded.
        """
        fetcher = self._fetchers.get(mirror.leader)
        of_broker = 0.0 if fetcher is None else fetcher.failing_seconds
        return max(mirror.failing_seconds, of_broker)

    def progress(self) -> MirrorProgress:
        """Return the bytes fetched, the lag, the number of partitions, and the present problems."""
        with self._lock:
            mirrors = list(self._partitions.values())
            fetched = self._past_bytes + sum(each.fetched_bytes for each in mirrors)
        problems = self._problems | self._unopened
        problems |= {f"broker {n}": f.problem for n, f in list(self._fetchers.items()) if f.problem}
        problems |= {each.name: each.problem for each in mirrors if each.problem}
        return MirrorProgress(
            fetched,
            sum(each.lag for each in mirrors),
            len(mirrors),
            problems,
        )

    def lags(self) -> dict[str, int]:
        """Return how many offsets each copy is behind its source, by the name of the partition."""
        return {name: each.lag for name, each in self._partitions.copy().items()}

    # Methods that copy topics, leaders, settings and committed offsets from the cluster.

    def _try_refresh(self) -> None:
        try:
            if self._is_lost:
                self._cluster = self._connect()
                self._is_lost = False
            self.refresh()
            self._problems.pop("cluster", None)
        except ClusterError as error:
            self._problems["cluster"] = str(error)
            # A client does not reconnect after all brokers were unreachable, so the next refresh makes a new client.
            self._is_lost = True
            with suppress(ClusterError):
                self._cluster.close()

    def refresh(self) -> None:
        """Read the topics, leaders, settings and groups of the cluster, and apply their changes to the store.

        Raises `ClusterError`. An error of one topic or partition does not stop the others: it becomes one of the
        problems that `progress` returns.
        """
        found = [
            each
            for each in self._cluster.topics()
            if self._topics.fullmatch(each.name) and each.name not in OWN_TOPICS
        ]
        if found:
            self._problems.pop("topics", None)
        else:
            self._problems["topics"] = f"no topic of the cluster matches {self._topics.pattern!r}"
        settings = self._settings([each.name for each in found])
        self._homes.clear()
        for name in list(self._store.registry.homes):
            self._homes.setdefault(parse_directory(name).topic, []).append(name)
        unopened: dict[str, str] = {}
        for topic in found:
            try:
                of_topic = None if settings is None else settings.get(topic.name)
                unopened |= self._follow_topic(topic, of_topic)
                self._problems.pop(topic.name, None)
            except (LogfsError, OSError) as error:
                self._problems[topic.name] = str(error)
        self._unopened = unopened
        self._forget_others({each.name for each in found})
        self._follow_leaders({each.leader for each in self._partitions.values()})
        self._mirror_groups()

    def _settings(self, topics: Sequence[str]) -> Mapping[str, Mapping[str, str]] | None:
        """Return the settings of topics, by topic name; None if the request fails.

        Topics whose settings the mirror has no permission to read are left out.
        """
        try:
            found = self._cluster.settings(topics)
        except ClusterError as error:
            self._problems["settings"] = str(error)
            return None
        self._problems.pop("settings", None)
        return found

    def _forget_others(self, topics: set[str]) -> None:
        """Stop mirroring all topics except `topics`, the ones that the cluster still has. The copies stay."""
        for topic in {each.partition.name.topic for each in self._partitions.values()} - topics:
            logger.warning("%s: is no longer in the cluster; its copy stays as it is", topic)
            self._forget(topic)

    def _follow_topic(
        self, topic: RemoteTopic, settings: Mapping[str, str] | None
    ) -> Mapping[str, str]:
        """Give the copy of a topic the topic's settings, partitions and leaders. New copies are created.

        `settings` is None if the settings of the topic could not be read. Returns the partitions whose copies cannot
        be opened, by name, each with the reason. Raises `InvalidSetting` if the store has another topic of this name.
        """
        store, unopened = self._store, {}
        try:
            self._check_copy(topic)
        except InvalidSetting:
            self._forget(topic.name)
            raise
        # First mark the topic as a mirror, then create its partitions: no other program may append to them, even if
        # this process is killed between the two steps.
        if MIRROR_SOURCE not in store.settings.topic_overrides(topic.name):
            store.settings.set_topic(topic.name, MIRROR_SOURCE, self._cluster_id)
        if settings is not None:
            self._follow_settings(topic.name, settings)
        elif topic.name not in self._unread and "settings" not in self._problems:
            self._unread.add(topic.name)
            logger.warning(
                "%s: its settings may not be read: grant DescribeConfigs; until then a new copy keeps all records",
                topic.name,
            )
        if settings is None and topic.name not in self._homes:
            # The settings are unknown, so let the copy keep all records: with the default of retention.ms, the store
            # would delete records that are older than a week.
            store.settings.set_topic(topic.name, RETENTION_MS, "-1")
        for number, (leader, leader_epoch) in topic.leaders.items():
            name = TopicPartition(topic.name, number).directory
            known = self._partitions.get(name)
            if known is None or store.registry.partitions.get(name) is not known.partition:
                # The partition is new, or its copy was deleted from the store.
                try:
                    if name not in store.registry.homes:
                        store.create(name, mirror_of=self._cluster_id, mirrored_id=topic.topic_id)
                    mirror = PartitionMirror(store, store.writable(name), self._cluster_id)
                except (LogfsError, OSError) as error:
                    unopened[name] = str(error)
                    continue
                with self._lock:
                    self._past_bytes += known.fetched_bytes if known is not None else 0
                    self._partitions[name] = mirror
            self._partitions[name].follow(leader, leader_epoch)
        return unopened

    def _check_copy(self, topic: RemoteTopic) -> None:
        """Raise `InvalidSetting` if the store has a topic of this name that is not a copy of `topic`.

        A copy that has no topic id, because its creation was interrupted, gets that of `topic`. A partition that
        cannot be opened is left out, and checked by a later call.
        """
        store, name = self._store, topic.name
        copies = self._homes.get(name)
        if not copies:
            return
        source = store.settings.topic_overrides(name).get(MIRROR_SOURCE, "")
        if source != self._cluster_id:
            what = f"is a mirror of {source}" if source else "is an ordinary topic"
            raise InvalidSetting(
                f"topic {name} {what} here, not a copy of the cluster's topic: delete it, or mirror "
                "into another log directory"
            )
        if topic.topic_id is None or self._known_ids.get(name) == topic.topic_id:
            return
        checked = 0
        for each in copies:
            try:
                partition = store[each]
                check_copy_of(partition, topic.topic_id)
                if read_topic_id(partition.disk, partition.directory) is None:
                    # The copy has no topic id, because a crash has interrupted the creation of the partition.
                    write_topic_id(partition.disk, partition.directory, topic.topic_id)
            except InvalidSetting:
                raise
            except (LogfsError, OSError) as error:
                logger.debug("%s: its topic id cannot be checked: %s", each, error)
            else:
                checked += 1
        if checked == len(copies):
            self._known_ids[name] = topic.topic_id

    def _forget(self, topic: str) -> None:
        with self._lock:
            for name in partitions_of(topic, self._partitions):
                self._past_bytes += self._partitions.pop(name.directory).fetched_bytes

    def _follow_settings(self, topic: str, settings: Mapping[str, str]) -> None:
        """Give the copy of a topic the settings that the topic has in the cluster, and remove its other settings.

        Settings that begin with `local.`, `logfs.` or `remote.` stay as they are, and those unknown to logfs are left
        out. Settings that the store refuses become one of the problems that `progress` returns.
        """
        here = self._store.settings
        wanted = {
            name: text
            for name, text in settings.items()
            if name in TOPIC_SETTINGS and not name.startswith(_OWN_SETTINGS)
        }
        if wanted.get("cleanup.policy") == "":
            # In Kafka, an empty policy means that nothing is deleted. In a store, an empty value means the default.
            # So set the policy `delete`, with no limit above which records are deleted.
            wanted |= {"cleanup.policy": "delete", RETENTION_MS: "-1", "retention.bytes": "-1"}
        changes: dict[str, str | None] = {
            name: wanted.get(name)
            for name in sorted({*here.topic_overrides(topic), *wanted})
            if not name.startswith(_OWN_SETTINGS)
        }
        # A setting may be refused as long as another setting has its old value. So try the refused ones again.
        while (left := self._set(topic, changes)) and len(left) < len(changes):
            changes = {name: changes[name] for name in left}
        if left:
            self._problems[f"settings of {topic}"] = "; ".join(left.values())
        else:
            self._problems.pop(f"settings of {topic}", None)

    def _set(self, topic: str, changes: Mapping[str, str | None]) -> dict[str, str]:
        """Change settings of a topic (None removes one). Return the refused settings, each with the reason."""
        here, refused = self._store.settings, {}
        for name, text in changes.items():
            setting = TOPIC_SETTINGS[name]
            try:
                wanted = None if text is None else setting.format(setting.parse(text))
                if here.topic_overrides(topic).get(name) != wanted:
                    here.set_topic(topic, name, wanted)
            except InvalidSetting as error:
                refused[name] = str(error)
        return refused

    def _follow_leaders(self, leaders: set[int]) -> None:
        for node in leaders - {-1} - {*self._fetchers}:
            self._fetchers[node] = Fetcher(node, self._connect, self._led_by, self._asked.set)

    def _led_by(self, node: int) -> Sequence[PartitionMirror]:
        with self._lock:
            return [each for each in list(self._partitions.values()) if each.leader == node]

    def _mirror_groups(self) -> None:
        """Commit in the store the offsets that groups have committed in the cluster for mirrored partitions."""
        problem = ""
        try:
            # In Kafka, a group may have an empty name. A store refuses such a group.
            for group in filter(None, self._cluster.groups()):
                try:
                    self._mirror_group(group)
                except (LogfsError, OSError) as error:
                    problem = f"group {group}: {error}"
        except ClusterError as error:
            problem = str(error)
        if problem:
            self._problems["groups"] = problem
        else:
            self._problems.pop("groups", None)

    def _mirror_group(self, group: str) -> None:
        changed = {}
        for (topic, number), offset in self._cluster.group_offsets(group).items():
            mirror = self._partitions.get(TopicPartition(topic, number).directory)
            # An offset above the end of the copy is left to a later refresh, when the copy has reached it.
            if mirror is not None and offset <= mirror.partition.log_end_offset:
                offset = max(offset, mirror.partition.log_start_offset)
                known = self._store.groups.committed(group, mirror.name)
                if known is None or known.offset != offset:
                    changed[mirror.name] = offset
        if not changed:
            return
        try:
            self._store.groups.commit_all(group, changed)
        except RecordTooLarge:
            # The offsets do not fit in one batch, so commit them one by one. They do not depend on each other.
            for name, offset in changed.items():
                self._store.groups.commit(group, name, offset)
