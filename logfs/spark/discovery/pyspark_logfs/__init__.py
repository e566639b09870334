"""What Spark finds by itself: the `DefaultSource` of a top-level module whose name begins with `pyspark_`.

pyproject.toml installs this folder as the package `pyspark_logfs`, beside `logfs`.
"""

from logfs.spark.source import LogfsDataSource as DefaultSource

__all__ = ["DefaultSource"]
