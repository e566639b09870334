"""The mirror of a Kafka cluster in the process of a mount. An error of the cluster ends neither mirror nor mount."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Any, NamedTuple

from logfs.errors import LogfsError
from logfs.format.base.names import parse_directory
from logfs.store.observe.metrics import Family, Sample

if TYPE_CHECKING:
    import re
    from collections.abc import Iterator, Mapping

    from logfs.mirror.mirror import Mirror
    from logfs.store.store import Store

logger = logging.getLogger(__name__)

# The timeout is short, because an unmount waits until an attempt to reach the cluster ends.
_BOOTSTRAP = {"bootstrap_timeout_ms": 3000}
# The first and the longest pause before the mirror restarts. Each failed restart doubles the pause.
_FIRST_PAUSE_SECONDS = 1.0
_LONGEST_PAUSE_SECONDS = 30.0


class MirrorOptions(NamedTuple):
    """The options of a mirror: the brokers' addresses, a pattern of topic names, the options of the connection."""

    servers: str
    topics: re.Pattern[str]
    connection: Mapping[str, Any]


class MountedMirror:
    """The mirror of a mount. The cluster may be unreachable when the mount begins, and at any time later."""

    def __init__(self, store: Store, options: MirrorOptions) -> None:
        self._store = store
        self._options = options
        self._stopped = threading.Event()
        self._problem = ""
        # The running `Mirror`, and how many bytes of batches the earlier ones have appended. Replaced as a whole,
        # because other threads read it (`families`).
        self._running: tuple[Mirror | None, int] = None, 0

    def stop(self) -> None:
        """Make `run` return soon."""
        self._stopped.set()

    def run(self) -> None:
        """Mirror the Kafka cluster until `stop` is called. After an error, start the mirror again.

        An expected error that repeats is logged once; an unexpected error is logged each time.
        """
        from logfs.mirror.mirror import Mirror

        pause = _FIRST_PAUSE_SECONDS
        while not self._stopped.is_set():
            try:
                servers, topics, connection = self._options
                with Mirror(self._store, servers, topics, {**_BOOTSTRAP, **connection}) as mirror:
                    self._running = mirror, self._running[1]
                    self._problem, pause = "", _FIRST_PAUSE_SECONDS
                    mirror.run(lambda _: None, self._stopped.is_set)
            except (LogfsError, OSError) as error:
                if self._problem != str(error):
                    logger.error(
                        "mirror of %s: %s; the mirror restarts", self._options.servers, error
                    )
                self._problem = str(error)
            except Exception as error:
                # The error is unexpected, and must not end the mount.
                logger.exception(
                    "mirror of %s: unexpected error; the mirror restarts", self._options.servers
                )
                self._problem = repr(error)
            finally:
                last, fetched = self._running
                if last is not None:
                    self._running = None, fetched + last.progress().fetched_bytes
            self._stopped.wait(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)

    def status(self) -> dict[str, Any]:
        """Return what is mirrored, the problems by what fails, and how many offsets the copies are behind.

        The last is None while there is no connection.
        """
        mirror, _ = self._running
        problems = {"cluster": self._problem} if self._problem else {}
        lag = None
        if mirror is not None:
            progress = mirror.progress()
            lag, problems = progress.lag, dict(progress.problems)
        return {"from": self._options.servers, "lag": lag, "problems": problems}

    def families(self) -> Iterator[Family]:
        """Yield the metrics of the mirror: its lags, the bytes that it has appended, and its current problems."""
        mirror, fetched = self._running
        problems = int(bool(self._problem))
        lags: Mapping[str, int] = {}
        if mirror is not None:
            progress = mirror.progress()
            fetched, problems = fetched + progress.fetched_bytes, len(progress.problems)
            lags = mirror.lags()
        text = "Offsets of the cluster's partition that the mirror has not appended yet."
        samples = [Sample(lag, _labels(name)) for name, lag in sorted(lags.items())]
        yield Family("logfs_mirror_lag", text, samples)
        text = "Bytes of batches that the mirror has appended."
        yield Family("logfs_mirror_bytes_total", text, [Sample(fetched)])
        text = "Topics, partitions and brokers that cannot be mirrored at the moment."
        yield Family("logfs_mirror_problems", text, [Sample(problems)])


def _labels(name: str) -> dict[str, object]:
    topic, number = parse_directory(name)
    return {"topic": topic, "partition": number}
