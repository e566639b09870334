"""What all requests of clients have in common: the store, and the names and ids of its topics."""

from __future__ import annotations

import base64
import logging
import os
import threading
import time
import uuid
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, NamedTuple
from weakref import WeakKeyDictionary

from logfs.errors import LogfsError, UnknownPartition
from logfs.format.base import names
from logfs.format.files.checkpoint import parse_properties
from logfs.server.error_codes import ErrorCode
from logfs.store.directory.log_dir import META_PROPERTIES
from logfs.store.directory.topic_id import read_topic_id

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from typing import Any

    from logfs.log.read.log import Log
    from logfs.store.registry import UnloadedPartition
    from logfs.store.store import Store

logger = logging.getLogger(__name__)

# The id of the node if there is no `meta.properties`: that of a new broker of Kafka.
_NODE_ID = 1
# How often the files of a store that other processes write are looked at: all of them, and those of a partition for
# whose records a client waits. In seconds.
_REFRESH_SECONDS = 0.5
WAITING_SECONDS = 0.05


class CloseConnection(Exception):
    """Raised by a handler to end the connection of its client without an answer; the message is logged."""


class Address(NamedTuple):
    """The host, by its numeric address, and the port at which a client reaches this process."""

    host: str
    port: int


class Request(NamedTuple):
    """A request of a client: its version, its fields, and the address at which the client has reached this process.

    `stopping` is set when the server stops: a handler that waits must then return.
    """

    version: int
    fields: Mapping[str, Any]
    address: Address
    stopping: threading.Event


class Broker:
    """The store that clients read, seen as the only broker of a cluster. Any thread may call its methods.

    The ids of the cluster and of the node are those of the broker whose disk this is, if `meta.properties` has them.
    Topics of which the store has not all partitions, as on the disk of one broker of several, are shown with all
    partitions up to the last; those that are missing have no leader.
    """

    def __init__(self, store: Store) -> None:
        """Take the store, which must stay open. Raises `Corrupt` or `OSError` if `meta.properties` cannot be read."""
        self.store = store
        told: Mapping[str, str] = {}
        for log_dir in store.log_dirs:
            path = log_dir.path / META_PROPERTIES
            if log_dir.disk.exists(path):
                told = parse_properties(log_dir.disk.read_file(path))
        self.cluster_id = told.get("cluster.id") or _cluster_id(store)
        self.node_id = int(told.get("node.id") or told.get("broker.id") or _NODE_ID)
        # The topic ids in the directories of partitions: one that is created again is another object.
        self._ids: WeakKeyDictionary[Log | UnloadedPartition, uuid.UUID | None] = (
            WeakKeyDictionary()
        )
        # A partition of the topic with an id. An entry is checked when it is used.
        self._names: dict[uuid.UUID, tuple[str, int]] = {}
        # The logs for whose changes a request waits, by the event that wakes it.
        self._waiting: dict[threading.Event, Sequence[Log]] = {}
        self._refreshed = time.monotonic()

    @contextmanager
    def awaiting(self, logs: Sequence[Log]) -> Iterator[threading.Event]:
        """Yield an event that is set whenever one of `logs` changes, or by `wake`, during the `with` block."""
        changed = threading.Event()
        tell = changed.set
        with ExitStack() as stack:
            for log in logs:
                stack.enter_context(log.watched(tell))
            self._waiting[changed] = logs
            try:
                yield changed
            finally:
                del self._waiting[changed]

    def wake(self) -> None:
        """Set the events of all requests that wait."""
        for changed in list(self._waiting):
            changed.set()

    def refresh(self) -> None:
        """Bring a read-only store up to date with its files, unless that was done within the last 0.5 s."""
        if self.store.read_only and time.monotonic() - self._refreshed >= _REFRESH_SECONDS:
            self._refreshed = time.monotonic()
            self.store.refresh()

    def refresh_awaited(self) -> None:
        """Bring the logs for which requests wait up to date with their files, in a read-only store."""
        waiting = list(self._waiting.values())
        for log in {id(log): log for logs in waiting for log in logs}.values():
            try:
                log.refresh()
            except (LogfsError, OSError) as error:
                logger.warning("%s: cannot be refreshed: %s", log.name.directory, error)
        if waiting:
            self.refresh()

    def topics(self) -> dict[str, list[int]]:
        """Return the numbers of the partitions that the store has, in ascending order, by topic, in sorted order."""
        found: dict[str, list[int]] = {}
        for topic, number in sorted(map(names.parse_directory, list(self.store.registry.homes))):
            found.setdefault(topic, []).append(number)
        return found

    def partitions_of(self, topic: str) -> list[int]:
        """Return the numbers of the partitions of a topic that the store has, in ascending order."""
        homes = list(self.store.registry.homes)
        return [each.partition for each in names.partitions_of(topic, homes)]

    def log(self, topic: str, partition: int) -> Log:
        """Return a partition. Raises `UnknownPartition`, or the error that keeps it offline."""
        name = f"{topic}-{partition}"
        if name not in self.store.registry.homes:
            raise UnknownPartition(f"{name}: no such partition")
        return self.store[name]

    def loaded(self, topic: str, partition: int) -> Log | None:
        """Return a partition, or None if it is not loaded yet. Raises the errors of `log`."""
        is_unloaded = f"{topic}-{partition}" in self.store.registry.unloaded
        return None if is_unloaded else self.log(topic, partition)

    def topic_id(self, topic: str, partitions: Sequence[int]) -> uuid.UUID | None:
        """Return the id of a topic with these partitions; None if it has none, as one made before Kafka 2.8."""
        found = (self._id_at(f"{topic}-{number}") for number in partitions)
        return next(filter(None, found), None)

    def _id_at(self, name: str) -> uuid.UUID | None:
        """Return the topic id in the directory of a partition; None if it has none or the partition is offline."""
        registry = self.store.registry
        place = registry.partitions.get(name) or registry.unloaded.get(name)
        if place is None:
            return None
        if place not in self._ids:
            self._ids[place] = read_topic_id(place.disk, place.directory)
        return self._ids[place]

    def topic_name(self, topic_id: uuid.UUID) -> str | None:
        """Return the name of the topic with an id; None if there is no such topic."""
        known = self._names.get(topic_id)
        if known is None or self._id_at(f"{known[0]}-{known[1]}") != topic_id:
            self._names = {
                found: (topic, number)
                for topic, numbers in self.topics().items()
                for number in numbers
                if (found := self._id_at(f"{topic}-{number}"))
            }
            known = self._names.get(topic_id)
        return None if known is None else known[0]

    def named(self, topic: Mapping[str, Any], version: int, first_with_id: int) -> str | None:
        """Return the name of the topic in a request, which gives its id from version `first_with_id` on; or None."""
        if version >= first_with_id:
            return self.topic_name(topic["topicId"])
        name: str = topic["topic"]
        return name


def epoch_error(log: Log, epoch: int) -> ErrorCode:
    """Return the error for a request by a client that believes in the leader epoch `epoch`, -1 for none."""
    latest = log.epochs.latest
    if epoch < 0 or latest < 0 or epoch == latest:
        return ErrorCode.NONE
    if epoch < latest:
        return ErrorCode.FENCED_LEADER_EPOCH
    return ErrorCode.UNKNOWN_LEADER_EPOCH


def numbered(partitions: list[int]) -> Iterator[tuple[int, bool]]:
    """Yield (number, whether the store has it) for each partition of a topic up to the last that the store has."""
    there = set(partitions)
    for number in range(max(there, default=-1) + 1):
        yield number, number in there


def _cluster_id(store: Store) -> str:
    """Return an id, in Kafka's form, for a store without `meta.properties`. It depends on the paths of the store."""
    paths = sorted(os.path.realpath(log_dir.path) for log_dir in store.log_dirs)
    made = uuid.uuid5(uuid.NAMESPACE_URL, "\n".join(["logfs", *paths]))
    return base64.urlsafe_b64encode(made.bytes).decode().rstrip("=")
