"""Imports kafka-python, and converts its errors to `ClusterError`.

kafka-python writes the reasons of failed connections only to its log, so `Failures` takes the reasons from this log.
"""

from __future__ import annotations

import functools
import logging
import re
import socket
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from logfs.errors import ClusterError

if TYPE_CHECKING:
    from collections.abc import Iterator

# Messages about a failed connection in the log of kafka-python. Group 1 is the reason.
_FAILURE = re.compile(
    r"(?:Connection|Bootstrap connection to \S+) failed: (.*?)(?: \(backoff .*)?$"
)

_LARGE_READS = "large-reads"
_PIECE_BYTES = 256 << 10
_SAYS_LITTLE = re.compile("disconnected|[Tt]imeout")


def error_name(code: int) -> str:
    """Return the name of an error code, such as TOPIC_AUTHORIZATION_FAILED."""
    found = kafka_python().errors.for_code(code)
    return str(getattr(found, "message", found.__name__))


def describe_error(code: int, message: str | None) -> str:
    """Return the name of an error code, followed by the broker's `message` about it if there is one."""
    return ": ".join(filter(None, [error_name(code), message]))


def may_pass(error: ClusterError) -> bool:
    """Whether the error is temporary, such as a broken connection: the same request may succeed later."""
    cause = error.__cause__
    return isinstance(cause, OSError) or bool(getattr(cause, "retriable", False))


def kafka_python() -> Any:
    """Import and return the package `kafka` (kafka-python). Raises `ClusterError` if it is not installed."""
    try:
        import kafka
        import kafka.admin
        import kafka.errors
    except ImportError as error:
        raise ClusterError(
            f"Kafka clusters need kafka-python ({error}); install logfs[mirror]"
        ) from None
    return kafka


@functools.cache
def large_reads() -> dict[str, str]:
    """Return a keyword argument that makes kafka-python's clients read up to 256 KiB at a time, except over TLS.

    By default kafka-python reads 4 KiB at a time. While other threads append, it has to wait for the GIL after each
    read, so few large reads are faster. The argument is `proxy_url`, by whose scheme kafka-python selects its socket
    class. The scheme given here selects the class `LargeReads` below; no proxy is used.
    """
    from kafka.net.inet import KafkaNetSocket

    class LargeReads(KafkaNetSocket):  # type: ignore[misc]
        SCHEMES = (_LARGE_READS,)

        def socket(self, *kind: int) -> socket.socket:
            return _Socket(*kind)

    return {"proxy_url": f"{_LARGE_READS}://"}


class _Socket(socket.socket):
    """A socket that returns up to 256 KiB from each `recv`, even if the caller asks for less."""

    def recv(self, size: int, flags: int = 0) -> bytes:
        """Return the bytes that have arrived: up to 256 KiB, or up to `size` if that is more."""
        return super().recv(max(size, _PIECE_BYTES), flags)


class Failures(logging.Handler):
    """Keeps the reason of the last failed connection, which kafka-python only writes to its log."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.last = ""

    def attach(self) -> None:
        """Make this the only handler of kafka-python's logger, and clear the last reason."""
        logger = logging.getLogger("kafka")
        logger.handlers, logger.propagate = [self], False
        self.last = ""

    def emit(self, record: logging.LogRecord) -> None:
        """Keep the reason if `record`, a record of kafka-python's log, reports a failed connection.

        A mere "disconnected" or "timeout" does not replace an earlier reason, which says more.
        """
        found = _FAILURE.match(record.getMessage())
        if found is not None and not (self.last and _SAYS_LITTLE.search(found[1])):
            self.last = found[1]


failures = Failures()


@contextmanager
def naming_cluster(servers: str) -> Iterator[None]:
    """Convert errors of kafka-python in the `with` block to `ClusterError`, whose message begins with `servers`.

    An `OSError` or a `ValueError` is converted, too.
    """
    from kafka.errors import KafkaError, KafkaTimeoutError

    try:
        yield
    except KafkaTimeoutError as error:
        raise ClusterError(
            f"{servers}: no broker answers ({failures.last or error}): check the addresses, the network, and the "
            "options of --command-config, such as security.protocol"
        ) from error
    except (KafkaError, OSError, ValueError) as error:
        reason = str(error) or type(error).__name__
        raise ClusterError(f"{servers}: {reason}") from error
