"""The processes in which Spark runs Python's part of a task, one task after the other."""

from __future__ import annotations

import functools
import gc
import socket
from contextlib import contextmanager
from typing import TYPE_CHECKING

from pyspark import TaskContext

from logfs.errors import LogfsError

if TYPE_CHECKING:
    from collections.abc import Iterator


class NotOnHost(LogfsError):
    """A task does not find on its machine what the driver planned."""

    @classmethod
    def because(cls, reason: object, host_name: str | None = None) -> NotOnHost:
        """The error for what was missed on a host, by default on this one."""
        return cls(
            f"host {host_name or host()}: {reason}, unlike on the driver: mount the same files under the same path "
            "on this host, or see who removed them"
        )


@functools.cache
def settle(kind: str) -> None:
    """At the end of a task: the first of its kind in this process has loaded what all others need, for good.

    Spark collects garbage behind each task, and to look through all that numba has loaded takes longer than to read
    100 MB. What is there by now, the collector need not look at again.
    """
    if TaskContext.get() is not None:
        gc.collect()
        gc.freeze()


def host() -> str:
    """The name of the machine that this process runs on, for errors that depend on the machine."""
    return socket.gethostname()


@contextmanager
def naming_host() -> Iterator[None]:
    """Add the host's name to an `OSError`: the same path may be another file on another machine."""
    try:
        yield
    except OSError as error:
        raise located(error) from error


def located(error: OSError) -> OSError:
    """The same error with the name of this host in its text."""
    if error.errno is None:
        return type(error)(f"{error} (on host {host()})")
    text = f"{error.strerror} (on host {host()})"
    return OSError(error.errno, text, error.filename, None, error.filename2)
