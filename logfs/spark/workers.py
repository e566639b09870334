"""Python workers: the processes in which Spark plans reads and writes, and runs the Python part of tasks."""

from __future__ import annotations

import functools
import gc
import os
import shutil
import socket
import subprocess
import sys
import traceback
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark import TaskContext

from logfs.errors import LogfsError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import ModuleType


# The module that forks the workers, in place of `pyspark.daemon`, in a local session from `logfs.spark.session`.
WORKER_DAEMON = "logfs.spark.worker_daemon"


class NotOnHost(LogfsError):
    """A file or directory differs between the driver and the machine of a task, or is missing on one of them."""

    @classmethod
    def because(cls, reason: object, host_name: str | None = None) -> NotOnHost:
        """Return a `NotOnHost` that names a host, by default this host.

        `reason` names a file, and says what is wrong with the file on that host. The message is the name of the
        host, then `reason`, then advice.
        """
        return cls(
            f"host {host_name or host()}: {reason}, unlike on the driver: mount the same files under the same path "
            "on this host, or find out what removed them"
        )


@contextmanager
def short_errors() -> Iterator[None]:
    """In a worker: make Spark show a `LogfsError`, `ValueError` or `OSError` by its message, without a traceback.

    Use it as a context manager or as a decorator. At such an error it sets an environment variable of this process.
    This affects no later error, because Spark reports the error and then ends the process. In a batch query, Spark
    shows the traceback nevertheless if the setting spark.sql.execution.pyspark.udf.simplifiedTraceback.enabled is
    false.
    """
    try:
        yield
    except (LogfsError, ValueError, OSError):
        is_of_stream = _main_module().startswith("pyspark.sql.streaming.")
        if is_of_stream or "SPARK_SIMPLIFIED_TRACEBACK" in os.environ:
            os.environ["SPARK_HIDE_TRACEBACK"] = "1"
        raise


def is_worker() -> bool:
    """Whether this process is one of Spark's Python workers, which plan queries and run tasks."""
    return _main_module().startswith(("pyspark.", WORKER_DAEMON))


def _main_module() -> str:
    """Return the name of this process's main module: in Spark's workers, a module of pyspark or `WORKER_DAEMON`."""
    spec = sys.modules["__main__"].__spec__
    return "" if spec is None else spec.name


def check_python(executable: str) -> None:
    """In the driver: raise `LogfsError` unless the workers' Python runs and has logfs, numpy and pyarrow."""
    # Nothing needs to be checked if the workers run this Python. Two virtual environments may link to the same
    # interpreter, so the directories must be equal, too.
    ours, found = Path(sys.executable), shutil.which(executable)
    if found is not None and Path(found).parent == ours.parent and Path(found).samefile(ours):
        return
    needed = ("logfs", "numpy", "pyarrow")
    asked = f"import importlib.util as u; print(*[n for n in {needed} if u.find_spec(n) is None])"
    try:
        done = subprocess.run([executable, "-c", asked], capture_output=True, text=True, check=True)
        missing = done.stdout.split()
    except (OSError, subprocess.CalledProcessError) as error:
        raise LogfsError(
            _PYTHON.format(executable, f"does not run: {error}", sys.executable)
        ) from None
    if missing:
        reason = f"has no module {missing[0]!r}"
        raise LogfsError(_PYTHON.format(executable, reason, sys.executable))


_PYTHON = (
    "Spark's Python workers would run {}, which {}: set the environment variable PYSPARK_PYTHON={} before the "
    "session starts"
)


def hide_broken_pipes(daemon: ModuleType) -> None:
    """Keep this process and its forks from printing tracebacks of writes to connections that Spark has closed.

    Spark closes the connection to a worker when a query needs no more rows, as with `show()` and LIMIT. This ends the
    worker with an error, which `daemon` (Spark's daemon module) prints. No setting of Spark prevents this.
    """

    def unless_broken(output: Callable[..., None]) -> Callable[..., None]:
        def print_others(*words: Any, **named: Any) -> None:
            if not isinstance(sys.exc_info()[1], BrokenPipeError):
                output(*words, **named)

        return print_others

    traceback.print_exc = unless_broken(traceback.print_exc)
    daemon.__dict__["print"] = unless_broken(print)


@functools.cache
def freeze_loaded_objects(kind: str) -> None:
    """At the end of a task: exempt all objects that exist in this process from garbage collection.

    `kind` is the kind of task, such as "read"; only the first call for each kind has an effect. Outside of a task the
    function does nothing. Spark collects garbage after each task, and a scan of all objects of numba takes longer
    than reading 100 MB. The scan would be in vain, because the process keeps these objects for later tasks.
    """
    if TaskContext.get() is not None:
        gc.collect()
        gc.freeze()


def host() -> str:
    """Return the name of this machine, for the messages of errors."""
    return socket.gethostname()


@contextmanager
def naming_path(path: str | os.PathLike[str]) -> Iterator[None]:
    """Add `path` to an `OSError` that is raised in the context and names no file, such as that for a full disk."""
    try:
        yield
    except OSError as error:
        if error.errno is not None and error.filename is None:
            error.filename = os.fspath(path)
        raise


@contextmanager
def naming_host() -> Iterator[None]:
    """Add the name of this host to an `OSError` raised in the context: other hosts may have different files."""
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


# If Spark's own daemon has forked this worker, the main module is a module of pyspark, and the daemon has not called
# `hide_broken_pipes`. So this module calls it: a worker imports this module before it runs any function of logfs.
if _main_module().startswith("pyspark."):
    hide_broken_pipes(sys.modules["__main__"])
