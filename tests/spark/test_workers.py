"""Spark's Python processes: the costs of a task besides its work."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING

from logfs.spark.jobs.job_runner import TASK_BYTES, WorkItem, run

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def frozen(_: int) -> int:
    """Return how many objects the garbage collector of a worker ignores."""
    return gc.get_freeze_count()


def test_loaded_objects_are_exempt_from_garbage_collection(spark: SparkSession) -> None:
    """Spark collects garbage after each task. After a worker's first task, its loaded objects are exempt."""
    works = [WorkItem(number, TASK_BYTES) for number in range(4)]
    run(spark, "first tasks", works, frozen)
    assert max(run(spark, "later tasks", works, frozen)) > 10_000
