"""A program whose JVM loads the classes that sessions need: `python -m tests.spark.class_loading`.

It ends after its JVM, which then has written what it was told to write at its exit.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark import SparkContext

import logfs.spark
from logfs.spark import jobs
from logfs.store.store import Store
from tests.spark.home import spark_home
from tests.spark.program import ROOT
from tests.spark.streaming import streamed
from tests.support import class_archive

if TYPE_CHECKING:
    from collections.abc import Sequence


def archive_options(options: Sequence[str]) -> list[str]:
    """Return options of a JVM with Spark's class path, which has `options`, too: it starts faster with them."""
    home = spark_home()

    def train(option: str) -> None:
        subprocess.run(
            [sys.executable, "-m", "tests.spark.class_loading"],
            cwd=ROOT,
            env={
                **os.environ,
                "SPARK_HOME": str(home),
                "PYSPARK_PYTHON": sys.executable,
                "SPARK_LOCAL_IP": "127.0.0.1",
                "SPARK_SUBMIT_OPTS": " ".join([*options, option]),
            },
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
        )

    jars = [home / "conf", *sorted((home / "jars").iterdir())]
    return class_archive.options(os.pathsep.join(map(str, jars)), train)


def main() -> None:
    """Read, write, stream and run jobs, and wait for the end of the JVM."""
    with tempfile.TemporaryDirectory() as directory:
        log_dir = Path(directory, "log")
        with Store(log_dir) as store:
            store.create("orders-0").append([b"line"] * 10)
        settings = {
            "spark.ui.enabled": "false",
            "spark.sql.shuffle.partitions": "2",
            "spark.sql.warehouse.dir": directory,
        }
        spark = logfs.spark.session("class loading", master="local[2]", settings=settings)
        rows = spark.createDataFrame([("key", "value")], "key string, value string")
        rows.write.format("logfs").options(topic="orders").mode("append").save(str(log_dir))
        copy = streamed(spark, log_dir, "copy")
        copy.groupBy("partition").count().orderBy("partition").collect()
        jobs.stats(spark, log_dir)
        spark.stop()
        gateway = SparkContext._gateway
        assert gateway is not None
        # The JVM ends with its standard input.
        gateway.proc.stdin.close()
        gateway.proc.wait()


if __name__ == "__main__":
    main()
