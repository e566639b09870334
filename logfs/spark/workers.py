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
    """A file or directory that the driver planned is not found on the machine of the task."""

    @classmethod
    def because(cls, reason: object, host_name: str | None = None) -> NotOnHost:
        """Return the error for `reason`, which was met on host `host_name`, by default on this host."""
        return cls(
            f"host {host_name or host()}: {reason}, unlike on the driver: mount the same files under the same path "
            "on this host, or find out what removed them"
        )


@functools.cache
def freeze_loaded_objects(kind: str) -> None:
    """Exempt the existing objects from garbage collection at the end of the first task of a `kind` in this process.

    Spark collects garbage after each task, and a scan of everything that numba has loaded takes longer than reading
    100 MB. After its first task of a kind, the process has loaded all that further tasks of that kind need, and keeps
    it, so the collector need not scan it again. Outside of a task the function does nothing.
    """
    if TaskContext.get() is not None:
        gc.collect()
        gc.freeze()


def host() -> str:
    """Return the name of this machine, for errors that depend on the machine."""
    return socket.gethostname()


@contextmanager
def naming_host() -> Iterator[None]:
    """Add the name of this host to an `OSError`: the same path may be another file on another machine."""
    try:
        yield
    except OSError as error:
        raise located(error) from error


def located(error: OSError) -> OSError:
    """Return the same error with the name of this host in its text."""
    if error.errno is None:
        return type(error)(f"{error} (on host {host()})")
    text = f"{error.strerror} (on host {host()})"
    return OSError(error.errno, text, error.filename, None, error.filename2)
