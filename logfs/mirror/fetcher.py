"""A thread that fetches, from one broker, the partitions that this broker leads (Kafka's ReplicaFetcherThread)."""

from __future__ import annotations

import logging
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING

from logfs.cluster.cluster import FETCH_WAIT_MS, NONE
from logfs.errors import ClusterError, LogfsError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from concurrent.futures import Future

    from logfs.cluster.cluster import Cluster, Fetched, Wanted
    from logfs.mirror.partition_mirror import PartitionMirror

logger = logging.getLogger(__name__)

_FIRST_PAUSE_SECONDS = 0.1
_LONGEST_PAUSE_SECONDS = 5.0
# If an answer has at least this many bytes of batches for one partition, the next fetch is sent before the answer is
# appended.
_MANY_BYTES = 1 << 18
# The pause between two looks for partitions to fetch, while there are none: because the broker leads none, or because
# all wait after an error or have reached their goal.
_IDLE_SECONDS = 0.1


class Fetcher:
    """A thread that fetches from one broker until `stop` is called.

    `problem` is the error of the last attempt, "" if the attempt succeeded.
    """

    def __init__(
        self,
        node: int,
        connect: Callable[[], Cluster],
        led: Callable[[int], Sequence[PartitionMirror]],
        ask_metadata: Callable[[], object],
    ) -> None:
        """Start the thread.

        `node` is the node id of the broker. `connect` opens a connection for this thread alone. `led(node)` returns
        the partitions that the broker leads at present. The thread calls `ask_metadata` when the metadata (topics and
        leaders) may be out of date; the function must request new metadata without waiting for it.
        """
        self.node = node
        self.problem = ""
        self._failing_since: float | None = None
        self._connect = connect
        self._led = led
        self._ask_metadata = ask_metadata
        self._stopped = threading.Event()
        # The fetch that was sent before the last answers were appended, if any: the partitions and offsets that it
        # asks for, and the future with its answers.
        self._ahead: tuple[Sequence[Wanted], Future[list[Fetched]]] | None = None
        self._sender = ThreadPoolExecutor(1, f"fetcher-{node}-sender")
        self._thread = threading.Thread(target=self._run, name=f"fetcher-{node}", daemon=True)
        self._thread.start()

    @property
    def failing_seconds(self) -> float:
        """The seconds since the first failure after the last success; 0 if the last attempt succeeded."""
        since = self._failing_since
        return 0.0 if since is None else time.monotonic() - since

    def stop(self) -> None:
        """Tell the thread to end after its present round of requests. Does not wait for the end: `join` does."""
        self._stopped.set()

    def join(self) -> None:
        """Wait for the end of the thread."""
        self._thread.join()

    def _run(self) -> None:
        pause = _FIRST_PAUSE_SECONDS
        cluster: Cluster | None = None
        while not self._stopped.is_set():
            try:
                cluster = cluster or self._connect()
                is_current = self._turn(cluster)
                self.problem, self._failing_since = "", None
            except Exception as error:
                # An unexpected error must not end the thread: its partitions would silently no longer be mirrored.
                self.problem, is_current = (
                    _explain(error, f"broker {self.node}", self.problem),
                    False,
                )
                self._failing_since = self._failing_since or time.monotonic()
                self._ahead = None
                _close(cluster)
                cluster = None
            if not is_current:
                self._ask_metadata()
            if self._failing_since is None:
                pause = _FIRST_PAUSE_SECONDS
            else:
                self._stopped.wait(pause)
                pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)
        self._sender.shutdown(cancel_futures=True)
        _close(cluster)

    def _turn(self, cluster: Cluster) -> bool:
        """Send one round of requests for the partitions that the broker leads.

        A partition is left out while it waits after an error, and once its copy has reached the offset at which its
        mirroring stops (`PartitionMirror.goal`). If none remain, this only waits for 0.1 seconds. First, each copy
        that may differ from the leader's log is compared with it. Then batches are fetched and appended for the
        copies that need no further comparison. Returns False if the metadata may be out of date.
        """
        led = [each for each in self._led(self.node) if not each.is_waiting]
        mine = [each for each in led if each.goal is None or not each.has_reached_goal]
        if not mine:
            self._stopped.wait(_IDLE_SECONDS)
            return True
        by_place = {each.wanted()[:2]: each for each in mine}
        is_current = True
        compared = [each.wanted() for each in mine if each.must_compare]
        if compared:
            ends = cluster.epoch_ends(self.node, compared)
            # Ask for the topic ids after the ends of the epochs. If a topic was deleted and created again since the
            # last refresh, `ends` may be those of the new topic. Then `ids` has the id of the new topic, too, and
            # `compare` refuses it.
            ids = cluster.topic_ids(self.node, [each.topic for each in compared])
            for end in ends:
                mirror = by_place[end[:2]]
                is_current &= self._guarded(
                    mirror,
                    lambda m=mirror, e=end: m.compare(e, ids, cluster),  # type: ignore[misc]
                )
        ready = [each.wanted() for each in mine if not each.must_compare]
        if not ready:
            return is_current
        goals = {each.place: each.goal for each in mine if each.goal is not None}
        for asked, found in self._fetched(cluster, ready, goals):
            taker = by_place.get(found[:2])
            # An answer to a fetch that was sent ahead cannot be used if the append before it has failed, or if the
            # leader has changed.
            if taker is not None and taker.asks_for(asked):
                is_current &= self._guarded(taker, lambda m=taker, f=found: m.take(f, cluster))  # type: ignore[misc]
        return is_current

    def _fetched(
        self, cluster: Cluster, ready: Sequence[Wanted], goals: Mapping[tuple[str, int], int]
    ) -> list[tuple[Wanted, Fetched]]:
        """Return the answers to one fetch, as pairs (request, answer), one for each partition in the fetch.

        If the previous call has sent this fetch ahead, this call only waits for the answers. Otherwise it sends a
        fetch for `ready`. If an answer is large, this call sends the next fetch ahead, so that the broker works while
        the caller appends the answers. `goals` maps partitions to the offsets at which their mirroring stops. If
        `goals` is not empty, each new fetch asks the broker to answer at once, even without new records.
        """
        wait_ms = 0 if goals else FETCH_WAIT_MS
        if self._ahead is None:
            asked, answers = ready, cluster.fetch(self.node, ready, wait_ms)
        else:
            asked, waiting = self._ahead
            self._ahead = None
            answers = waiting.result()
        by_place = {each[:2]: each for each in asked}
        pairs = [(by_place[found[:2]], found) for found in answers]
        has_all = {each[:2] for each in ready} <= by_place.keys()
        if has_all and any(len(found.records) >= _MANY_BYTES for found in answers):
            following = [each.after(found) for each, found in pairs if found.error == NONE]
            wanted = [
                each
                for each in following
                if each is not None and each.offset < goals.get(each[:2], each.offset + 1)
            ]
            if wanted:
                fetch = self._sender.submit(cluster.fetch, self.node, wanted, wait_ms)
                self._ahead = wanted, fetch
        return pairs

    def _guarded(self, mirror: PartitionMirror, work: Callable[[], bool]) -> bool:
        """Call `work` for a partition, and return its result: False if the metadata may be out of date.

        A `ClusterError` of `work` is passed on. Any other error is recorded as the problem of the partition, and the
        result is then True, because new metadata would not help.
        """
        try:
            return work()
        except ClusterError:
            raise
        except Exception as error:
            mirror.fail(_explain(error, mirror.name, mirror.problem))
            return True


def _explain(error: Exception, where: str, before: str) -> str:
    """Return the text of an error. An unexpected error is logged with its traceback.

    `where` names the broker or the partition that failed. `before` is the text of the previous error there, or "".
    The same text is not logged twice in a row.
    """
    if isinstance(error, (LogfsError, OSError)):
        return str(error)
    problem = f"unexpected error: {error!r}"
    if problem != before:
        logger.error("%s: %s", where, problem, exc_info=error)
    return problem


def _close(cluster: Cluster | None) -> None:
    """Close a connection, and ignore errors: it may be broken already."""
    if cluster is not None:
        with suppress(Exception):
            cluster.close()
