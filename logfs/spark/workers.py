"""The processes in which Spark runs Python's part of a task, one task after the other."""

from __future__ import annotations

import functools
import gc

from pyspark import TaskContext


@functools.cache
def settle(kind: str) -> None:
    """At the end of a task: the first of its kind in this process has loaded what all others need, for good.

    Spark collects garbage behind each task, and to look through all that numba has loaded takes longer than to read
    100 MB. What is there by now, the collector need not look at again.
    """
    if TaskContext.get() is not None:
        gc.collect()
        gc.freeze()
