"""kafka-python: its import, its errors as `ClusterError`, and the reasons of failures that only its log tells."""

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

# The messages of kafka-python about a connection that has failed.
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
    """Return the name of an error code, with the text that a broker has sent with it."""
    return ": ".join(filter(None, [error_name(code), message]))


def may_pass(error: ClusterError) -> bool:
    """Whether the cause of an error may pass, so that the same request should be sent again."""
    cause = error.__cause__
    return isinstance(cause, OSError) or bool(getattr(cause, "retriable", False))


def kafka_python() -> Any:
    """Return kafka-python. Raises `ClusterError` if it is not installed."""
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
    """Return the option by which kafka-python reads large pieces from a connection without TLS.

    The library itself reads 4 KiB at a time: between two reads it waits for the interpreter if other threads append.
    It selects a class of sockets by the scheme of a proxy. The class here connects to the broker itself.
    """
    from kafka.net.inet import KafkaNetSocket

    class LargeReads(KafkaNetSocket):  # type: ignore[misc]
        SCHEMES = (_LARGE_READS,)

        def socket(self, *kind: int) -> socket.socket:
            return _Socket(*kind)

    return {"proxy_url": f"{_LARGE_READS}://"}


class _Socket(socket.socket):
    """A socket that reads more than it is asked for, if more is there."""

    def recv(self, size: int, flags: int = 0) -> bytes:
        """Return what is there, up to 256 KiB."""
        return super().recv(max(size, _PIECE_BYTES), flags)


class Failures(logging.Handler):
    """Takes the messages of kafka-python, and keeps why the last connection has failed: its errors do not say it."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.last = ""

    def attach(self) -> None:
        """Take the place of the handlers of kafka-python's logger."""
        logger = logging.getLogger("kafka")
        logger.handlers, logger.propagate = [self], False
        self.last = ""

    def emit(self, record: logging.LogRecord) -> None:
        """Keep the reason in a message about a failed connection, unless it says less than the one before."""
        found = _FAILURE.match(record.getMessage())
        if found is not None and not (self.last and _SAYS_LITTLE.search(found[1])):
            self.last = found[1]


failures = Failures()


@contextmanager
def naming_cluster(servers: str) -> Iterator[None]:
    """Raise errors of kafka-python in the context as `ClusterError`, with the addresses of the cluster."""
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
