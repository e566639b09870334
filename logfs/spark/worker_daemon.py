"""Spark's daemon that forks Python workers, but prints no tracebacks for connections that Spark has closed.

In a session that `logfs.spark.session` made, Spark runs this module in place of `pyspark.daemon`. It must not start a
thread, because it forks the workers, and so imports neither numpy nor pyarrow.
"""

from __future__ import annotations

from pyspark import daemon

from logfs.spark.workers import hide_broken_pipes

if __name__ == "__main__":
    hide_broken_pipes(daemon)
    daemon.manager()
