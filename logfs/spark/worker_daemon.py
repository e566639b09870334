"""A daemon that forks Python workers as Spark's does, but prints no tracebacks for connections that Spark closed.

In a local session that `logfs.spark.session` made, Spark runs this module in place of `pyspark.daemon`. A process
that forks workers must not have threads. numpy and pyarrow start threads, so this module must not import them.
"""

from __future__ import annotations

from pyspark import daemon

from logfs.spark.workers import hide_broken_pipes

if __name__ == "__main__":
    hide_broken_pipes(daemon)
    daemon.manager()
