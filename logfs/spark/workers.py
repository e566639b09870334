"""Python workers: the processes in which Spark runs the Python part of tasks, one task after the other."""

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
    """A file or directory of the driver's plan is missing on the machine of a task, or is another one there."""

    @classmethod
    def because(cls, reason: object, host_name: str | None = None) -> NotOnHost:
        """Return the error for a host, by default this one. `reason` names a file and what is wrong with it."""
        return cls(
            f"host {host_name or host()}: {reason}, unlike on the driver: mount the same files under the same path "
            "on this host, or find out what removed them"
        )


@functools.cache
def freeze_loaded_objects(kind: str) -> None:
    """At the end of a task: exempt all objects that exist in this process from garbage collection.

    `kind` names the kind of task, such as "read"; only the first call for a kind does anything. By then the process
    has loaded what later tasks of that kind need, and keeps it, so the collector need not scan it again. Spark
    collects garbage after each task, and a scan of all that numba has loaded takes longer than reading 100 MB.
    Outside of a task the function does nothing.
    """
    if TaskContext.get() is not None:
        gc.collect()
        gc.freeze()


def host() -> str:
    """Return the name of this machine, for errors that depend on the machine."""
    return socket.gethostname()


@contextmanager
def naming_host() -> Iterator[None]:
    """Add the name of this host to an `OSError` raised in the context: the same path may differ between machines."""
    try:
        yield
    except OSError as error:
        raise located(error) from error


def located(error: OSError) -> OSError:
    """Return a copy of the error with the name of this host added to its text."""
    if error.errno is None:
        return type(error)(f"{error} (on host {host()})")
    text = f"{error.strerror} (on host {host()})"
    return OSError(error.errno, text, error.filename, None, error.filename2)
