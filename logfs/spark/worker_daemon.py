"""A daemon that forks Spark's Python workers and, unlike Spark's own, prints no tracebacks for closed connections.

In a local session from `logfs.spark.session`, Spark runs this module in place of `pyspark.daemon`. A process that
forks workers must not have threads. numpy and pyarrow start threads, so this module must not import them.
"""

from __future__ import annotations

from pyspark import daemon

from logfs.spark.workers import hide_broken_pipes

if __name__ == "__main__":
    hide_broken_pipes(daemon)
    daemon.manager()
