"""Spark's Python processes: the costs of a task besides its work."""

from __future__ import annotations

import gc
import time
from typing import TYPE_CHECKING

import pytest

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


def test_an_interrupted_job_is_cancelled(spark: SparkSession) -> None:
    """After Ctrl-C the call ends once the job has ended, so that Spark can be stopped, and later jobs run."""
    began = time.monotonic()

    def interrupt(_: int, __: int) -> None:
        raise KeyboardInterrupt

    works = [WorkItem(600, TASK_BYTES)]
    with pytest.raises(KeyboardInterrupt):
        run(spark, "interrupted", works, time.sleep, interrupt)
    assert not spark.sparkContext.statusTracker().getActiveJobsIds()
    assert time.monotonic() - began < 300
    assert len(run(spark, "later", [WorkItem(0, 1)], frozen)) == 1
