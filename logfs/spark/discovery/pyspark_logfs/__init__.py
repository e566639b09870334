"""The module by which Spark discovers the data source.

Spark registers the `DefaultSource` of each top-level module whose name begins with `pyspark_`.

pyproject.toml installs this folder as the package `pyspark_logfs`, beside `logfs`.
"""

from logfs.spark.source import LogfsDataSource as DefaultSource

__all__ = ["DefaultSource"]
