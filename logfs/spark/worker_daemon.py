"""Spark's daemon that forks Python workers, without tracebacks of connections that Spark has closed.

Spark runs this module in place of `pyspark.daemon`, in a session that `logfs.spark.session` made. It must not start
a thread, and so imports neither numpy nor pyarrow: the workers are forked from it.
"""

from __future__ import annotations

from pyspark import daemon

from logfs.spark.workers import hide_broken_pipes

if __name__ == "__main__":
    hide_broken_pipes(daemon)
    daemon.manager()
