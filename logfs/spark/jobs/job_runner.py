"""Runs work as a Spark job: sends work items to tasks, and returns their results.

The tasks read and write the logs themselves, so the records never pass through the JVM.
"""

from __future__ import annotations

import time
import uuid
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

from pyspark import InheritableThread

from logfs.errors import LogfsError
from logfs.spark import workers
from logfs.spark.splits import packed

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyspark import Accumulator
    from pyspark.sql import SparkSession

    # Called with the number of bytes done and the total number of bytes.
    Progress = Callable[[int, int], object]

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")

# Small work items share a task, up to this total size, because starting a task takes as long as reading some MB.
TASK_BYTES = 128 << 20
_LOOK_SECONDS = 0.2
# After an interruption, `run` waits at most this long for the end of the cancelled job.
_CANCEL_SECONDS = 10


class JobFailed(LogfsError):
    """Some work items of a job failed, or the commit to an Iceberg table failed.

    If a work item fails, the other items are still done. But `export` and `import_` then discard all results.
    """


class WorkItem(NamedTuple, Generic[_Item]):
    """An argument for the function `do` of `run`, and the approximate number of bytes that `do` reads or writes."""

    item: _Item
    size_bytes: int


class _Failure(NamedTuple):
    reason: str


def run(
    spark: SparkSession,
    title: str,
    works: Sequence[WorkItem[_Item]],
    do: Callable[[_Item], _Result],
    progress: Progress | None = None,
) -> list[_Result]:
    """Call `do(work.item)` in tasks for each of `works`, and return the results in the same order.

    `title` is the name of the job in Spark's UI. Small items share a task. `do` runs in Spark's Python workers, so
    `do`, its argument and its result must be picklable. Spark may call `do` more than once for the same item, even at
    the same time. `progress` is called in the calling thread with (bytes done, total bytes). Blocks until the job has
    ended. If the call is interrupted, or `progress` raises an error, the job is cancelled. If `do` raises
    `LogfsError` or `OSError` for an item, the other items are still done, and then `JobFailed` is raised.
    """
    if not works:
        return []
    context = spark.sparkContext
    groups = list(packed(works, lambda work: work.size_bytes, TASK_BYTES))
    done = context.accumulator(0)
    task = _WorkTask(do, done)
    tasks = context.parallelize(groups, len(groups)).map(task)
    outcome: list[list[list[_Result | _Failure]]] = []
    failure: list[BaseException] = []

    tag = f"logfs-{uuid.uuid4().hex}"

    def collect() -> None:
        try:
            context.setJobDescription(title)
            context.addJobTag(tag)
            outcome.append(tasks.collect())
        except BaseException as error:
            failure.append(error)

    # Run the job in a thread of its own: the job description and the tag belong to the thread that sets them, so they
    # do not affect later jobs of the session.
    thread = InheritableThread(target=collect, name=title, daemon=True)
    thread.start()
    total = sum(work.size_bytes for work in works)
    try:
        while thread.is_alive():
            thread.join(_LOOK_SECONDS)
            if progress is not None:
                # The accumulator may exceed the total, because it counts the bytes of a task twice if it runs twice.
                progress(min(done.value, total), total)
    except BaseException:
        # Ctrl-C, or an error of `progress`. Cancel the job, and wait until it has ended, because the caller may stop
        # Spark next.
        deadline = time.monotonic() + _CANCEL_SECONDS
        while thread.is_alive() and time.monotonic() < deadline:
            # Cancel repeatedly, because the job may not have been submitted yet.
            context.cancelJobsWithTag(tag)
            thread.join(_LOOK_SECONDS)
        raise
    if failure:
        raise failure[0]
    results = [result for group in outcome[0] for result in group]
    reasons = [result.reason for result in results if isinstance(result, _Failure)]
    if reasons:
        raise JobFailed("; ".join(dict.fromkeys(reasons)))
    return [result for result in results if not isinstance(result, _Failure)]


class _WorkTask(Generic[_Item, _Result]):
    """The function that a Python worker runs for each group of work items. It returns one result for each item.

    The result is that of `do`, or a `_Failure` if `do` raised `LogfsError` or `OSError`. After each item, its size in
    bytes is added to the accumulator `done`, which the driver reads to report progress.
    """

    def __init__(self, do: Callable[[_Item], _Result], done: Accumulator[int]) -> None:
        self._do = do
        self._done = done

    def __call__(self, group: Sequence[WorkItem[_Item]]) -> list[_Result | _Failure]:
        results: list[_Result | _Failure] = []
        for work in group:
            try:
                results.append(self._do(work.item))
            except LogfsError as error:
                results.append(_Failure(str(error)))
            except OSError as error:
                results.append(_Failure(str(workers.located(error))))
            self._done += work.size_bytes
        workers.freeze_loaded_objects("job")
        return results
