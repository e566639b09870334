"""Work that is divided among the tasks of a Spark job: what each has to do goes out, and what it found comes back.

The bytes of the logs are read and written by the tasks themselves, and never pass through the JVM.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

from pyspark import InheritableThread

from logfs.errors import LogfsError
from logfs.spark import workers
from logfs.spark.splits import packed

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyspark import Accumulator
    from pyspark.sql import SparkSession

    # Told how many bytes are done, and how many there are.
    Progress = Callable[[int, int], object]

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")

# A task costs as much as reading some MB; of a directory of many small files it gets so many together.
TASK_BYTES = 128 << 20
_LOOK_SECONDS = 0.2


class JobFailed(LogfsError):
    """Some tasks of a job met an error; what the others did is done."""


class Work(NamedTuple, Generic[_Item]):
    """Something for a task to do, and about how many bytes it has to read or write for it."""

    item: _Item
    size_bytes: int


class _Failure(NamedTuple):
    reason: str


def run(
    spark: SparkSession,
    title: str,
    works: Sequence[Work[_Item]],
    do: Callable[[_Item], _Result],
    progress: Progress | None = None,
) -> list[_Result]:
    """What `do` gives for each work, in their order; small ones share a task.

    `do` runs in Spark's workers, so it and what it takes and gives can be pickled; it may run more than once for the
    same work, and at the same time. `progress` is told, here, how many bytes are done of how many. When all that
    could be done is done, raises `JobFailed` if `do` raised `LogfsError` or `OSError` anywhere.
    """
    if not works:
        return []
    context = spark.sparkContext
    groups = list(packed(works, lambda work: work.size_bytes, TASK_BYTES))
    done = context.accumulator(0)
    task = _Task(do, done)
    tasks = context.parallelize(groups, len(groups)).map(task)
    outcome: list[list[list[_Result | _Failure]]] = []
    failure: list[BaseException] = []

    def collect() -> None:
        context.setJobDescription(title)
        try:
            outcome.append(tasks.collect())
        except BaseException as error:
            failure.append(error)
        finally:
            context.setJobDescription(None)  # type: ignore[arg-type]

    thread = InheritableThread(target=collect, name=title, daemon=True)
    thread.start()
    total = sum(work.size_bytes for work in works)
    while thread.is_alive():
        thread.join(_LOOK_SECONDS)
        if progress is not None:
            # A task that was run twice counts twice.
            progress(min(done.value, total), total)
    if failure:
        raise failure[0]
    results = [result for group in outcome[0] for result in group]
    reasons = [result.reason for result in results if isinstance(result, _Failure)]
    if reasons:
        raise JobFailed("; ".join(reasons))
    return [result for result in results if not isinstance(result, _Failure)]


class _Task(Generic[_Item, _Result]):
    """What a worker runs for each group."""

    def __init__(self, do: Callable[[_Item], _Result], done: Accumulator[int]) -> None:
        self._do = do
        self._done = done

    def __call__(self, group: Sequence[Work[_Item]]) -> list[_Result | _Failure]:
        results: list[_Result | _Failure] = []
        for work in group:
            try:
                results.append(self._do(work.item))
            except LogfsError as error:
                results.append(_Failure(str(error)))
            except OSError as error:
                results.append(_Failure(str(workers.located(error))))
            self._done += work.size_bytes
        workers.settle("job")
        return results
