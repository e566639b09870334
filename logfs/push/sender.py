"""Sends batches to the leaders of their partitions, so that each is in the log exactly once, at a known offset.

Most batches have no producer id, so brokers cannot recognise a duplicate. Therefore each partition has at most one
batch in flight. The offset that this batch must get is known before it is sent: it is the log end offset. If the
broker does not answer, the log end offset shows later whether the batch was appended.
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar

from logfs.cluster.cluster import NONE, OFFSET_OUT_OF_RANGE, Wanted
from logfs.cluster.library import describe_error, error_name, may_pass
from logfs.errors import ClusterError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from typing import Self

    from logfs.cluster.cluster import Cluster, Fetched, Outgoing, Produced

    Place = tuple[str, int]

_REQUEST_BYTES = 8 << 20
_BROKERS_AT_ONCE = 16
# If a log end offset has not changed for this time, it is assumed that no produce request is in flight any more, not
# even one that a killed push has sent.
_QUIET_SECONDS = 2.0
_PAUSE_SECONDS = 0.3
# How long a batch is sent again and again, or how long `settled_ends` waits, before an error is raised.
_GIVE_UP_SECONDS = 120.0
# How long `ask` repeats a request after transient errors.
_ASK_SECONDS = 60.0
_NO_EPOCH = -1

_Result = TypeVar("_Result")


class Sender:
    """Connections to the brokers of a cluster, for one thread. A context manager, which closes them.

    In arguments and results, a place is a pair (topic, partition number). The methods raise `ClusterError`.
    """

    def __init__(self, connect: Callable[[], Cluster]) -> None:
        """Connect to a cluster; `connect` is called again after a transient error."""
        self._connect = connect
        self.cluster = connect()
        self._pool = ThreadPoolExecutor(_BROKERS_AT_ONCE, "sender")
        # For each partition the node id of its leader and the leader epoch, from the last metadata response.
        self._leaders: dict[Place, tuple[int, int]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._pool.shutdown(cancel_futures=True)
        with suppress(ClusterError):
            self.cluster.close()

    def ask(self, work: Callable[[Cluster], _Result]) -> _Result:
        """Call `work` with the cluster, and return its result. After transient errors, retry for up to a minute.

        Errors for which `may_pass` is true are transient, such as a broken connection or a change of leaders.
        """
        deadline = time.monotonic() + _ASK_SECONDS
        while True:
            try:
                return work(self.cluster)
            except ClusterError as error:
                if not may_pass(error) or time.monotonic() > deadline:
                    raise
            time.sleep(_PAUSE_SECONDS)
            self._reconnect()

    # The methods from here on ask where the logs in the cluster end.

    def settled_ends(self, places: Iterable[Place]) -> dict[Place, int]:
        """Return the log end offset of each partition, once all of them have been unchanged for two seconds.

        All batches below the returned offsets are on all in-sync replicas. Raises `ClusterError` if the offsets still
        change after two minutes, or cannot be determined.
        """
        wanted = list(places)
        if not wanted:
            return {}
        deadline = time.monotonic() + _GIVE_UP_SECONDS
        seen, since = None, 0.0
        problem = "the log ends still change, or replicas lag: stop programs that append there, and push again"
        while time.monotonic() < deadline:
            try:
                found = self._ends(wanted)
            except ClusterError as error:
                found, problem = None, str(error)
                self._reconnect()
            if found is None or found != seen:
                seen, since = found, time.monotonic()
            elif time.monotonic() - since >= _QUIET_SECONDS:
                return found
            time.sleep(_PAUSE_SECONDS)
        names = ", ".join(f"{topic}-{number}" for topic, number in wanted[:3])
        names += ", …" if len(wanted) > 3 else ""
        raise ClusterError(f"{self.cluster.servers}: {names}: {problem}")

    def _ends(self, places: Sequence[Place]) -> dict[Place, int] | None:
        """Return the log end offset of each place, or None if a high watermark has not reached its log end offset."""
        self._find_leaders()
        by_node: dict[int, list[Wanted]] = {}
        for place in places:
            node, epoch = self._leader(place)
            by_node.setdefault(node, []).append(Wanted(*place, -1, epoch, epoch))
        found = {}
        for node, wanted in by_node.items():
            for end in self.cluster.epoch_ends(node, wanted):
                if end.error != NONE:
                    raise ClusterError(f"{end.topic}-{end.partition}: {error_name(end.error)}")
                found[end.topic, end.partition] = end.end_offset
        return found if found == self.cluster.end_offsets(places) else None

    def _find_leaders(self) -> None:
        self._leaders = {
            (topic.name, number): leader
            for topic in self.cluster.topics()
            for number, leader in topic.leaders.items()
        }

    def _leader(self, place: Place) -> tuple[int, int]:
        node, epoch = self._leaders.get(place, (-1, _NO_EPOCH))
        if node < 0:
            raise ClusterError(f"{place[0]}-{place[1]}: has no leader in the cluster")
        return node, epoch

    def last_batch(self, place: Place, end: int) -> bytes:
        """Return the bytes of the batch that contains the offset `end` - 1, and of batches after it.

        Returns b"" if this offset is outside of the log. Raises `ClusterError` if the batch cannot be read.
        """

        def fetch(cluster: Cluster) -> Fetched:
            self._find_leaders()
            node, epoch = self._leader(place)
            (found,) = cluster.fetch(node, [Wanted(*place, end - 1, epoch, _NO_EPOCH)], wait_ms=0)
            return found

        found = self.ask(fetch)
        if found.error not in (NONE, OFFSET_OUT_OF_RANGE):
            what = f"{place[0]}-{place[1]}: the batch before offset {end} cannot be read"
            raise ClusterError(f"{self.cluster.servers}: {what}: {error_name(found.error)}")
        return found.records

    def _reconnect(self) -> None:
        """Close the client and make a new one: a client does not reconnect after all brokers were unreachable."""
        with suppress(ClusterError):
            self.cluster.close()
        with suppress(ClusterError):
            self.cluster = self._connect()

    # The methods from here on send Produce requests.

    def send(self, batches: Sequence[Outgoing]) -> None:
        """Send batches, at most one for each partition, and wait until all in-sync replicas have them.

        Raises `ClusterError` if brokers refuse a batch, if no answer comes for two minutes, or if a batch does not
        get the offset `Outgoing.offset`, because another program writes to the partition.
        """
        deadline = time.monotonic() + _GIVE_UP_SECONDS
        left = list(batches)
        while left:
            unsure = {(batch.topic, batch.partition): batch for batch in left}
            problem = "no answer"
            for answer in self._produce(left):
                batch = unsure[answer.topic, answer.partition]
                if answer.is_unsure:
                    problem = error_name(answer.error)
                    continue
                self._check(batch, answer)
                del unsure[answer.topic, answer.partition]
            if unsure and time.monotonic() > deadline:
                batch = next(iter(unsure.values()))
                raise ClusterError(
                    f"{self.cluster.servers}: {batch.topic}-{batch.partition}: offset {batch.offset} could not be "
                    f"sent: {problem}; push again once the cluster works"
                )
            left = self._missing(list(unsure.values()))

    def _produce(self, batches: Sequence[Outgoing]) -> list[Produced]:
        """Send each batch once, to the leader of its partition, and return the answers of all leaders.

        The leaders get their batches at the same time. A batch has no answer if its partition has no leader, or if
        its request or an earlier request to the same leader has failed.
        """
        if any((batch.topic, batch.partition) not in self._leaders for batch in batches):
            self.ask(lambda _: self._find_leaders())
        by_node: dict[int, list[Outgoing]] = {}
        for batch in batches:
            node, _ = self._leaders.get((batch.topic, batch.partition), (-1, _NO_EPOCH))
            if node >= 0:
                by_node.setdefault(node, []).append(batch)
        sent = [self._pool.submit(self._send_to, node, some) for node, some in by_node.items()]
        return [answer for each in sent for answer in each.result()]

    def _send_to(self, node: int, batches: Sequence[Outgoing]) -> list[Produced]:
        """Send batches to the broker with the id `node`, and return the answers received.

        The batches go in several requests of limited size. After a request that fails, no further one is sent.
        """
        answers: list[Produced] = []
        some: list[Outgoing] = []
        size = 0
        with suppress(ClusterError):
            for batch in batches:
                if some and size + len(batch.data) > _REQUEST_BYTES:
                    answers += self.cluster.produce(node, some)
                    some, size = [], 0
                some.append(batch)
                size += len(batch.data)
            answers += self.cluster.produce(node, some)
        return answers

    def _check(self, batch: Outgoing, answer: Produced) -> None:
        where = f"{self.cluster.servers}: {batch.topic}-{batch.partition}"
        if answer.error != NONE:
            reason = describe_error(answer.error, answer.message)
            raise ClusterError(f"{where}: the batch at offset {batch.offset} is refused: {reason}")
        if answer.base_offset != batch.offset:
            raise ClusterError(_NOT_ALONE.format(where, batch.offset, answer.base_offset))

    def _missing(self, unsure: Sequence[Outgoing]) -> list[Outgoing]:
        """Return those of the batches `unsure` that were not appended, as the log end offsets show.

        Raises `ClusterError` if another program has written to one of the partitions.
        """
        ends = self.settled_ends([(batch.topic, batch.partition) for batch in unsure])
        missing = []
        for batch in unsure:
            end = ends[batch.topic, batch.partition]
            if end == batch.offset:
                missing.append(batch)
            elif end != batch.offset + batch.records:
                where = f"{self.cluster.servers}: {batch.topic}-{batch.partition}"
                raise ClusterError(_NOT_ALONE.format(where, batch.offset, end))
        return missing


_NOT_ALONE = (
    "{}: the next batch must have offset {}, but the log has reached {}: another program writes to the topic. Stop "
    "that program, delete the topic in the cluster, and push again"
)
