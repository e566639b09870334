"""Spark's Python processes: what a task costs beyond its work."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING

from logfs.spark.jobs.job_runner import TASK_BYTES, WorkItem, run

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def frozen(_: int) -> int:
    """How many objects the collector does not look at in a worker."""
    return gc.get_freeze_count()


def test_what_a_worker_has_loaded_is_no_garbage_to_look_for(spark: SparkSession) -> None:
    """Spark collects garbage after each task: from the second on, all that is loaded is left alone."""
    works = [WorkItem(number, TASK_BYTES) for number in range(4)]
    run(spark, "first tasks", works, frozen)
    assert max(run(spark, "later tasks", works, frozen)) > 10_000
