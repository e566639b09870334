"""What the tests with Spark share: one session, whose workers are this Python."""

from __future__ import annotations

import importlib.util
import shutil
from typing import TYPE_CHECKING

import pytest

# The broker that `format("kafka")` reads from, those who write to it, and Kafka's tools.
from tests.kafka.conftest import connect, helper, kafka, make_broker, tools  # noqa: F401
from tests.spark.connector import connector
from tests.support.requirements import need

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

SETTINGS = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.session.timeZone": "UTC",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    # Tests are many short queries: the second compiler, and threads that collect, cost more than they give.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}


def spark_settings() -> dict[str, str]:
    """The settings of the session, for those who add to them (jars) before it is made."""
    return dict(SETTINGS)


def need_spark() -> None:
    """The test has a session."""
    need(shutil.which("java"), "java is not installed")
    for package in ("pyspark", "pyarrow"):
        need(importlib.util.find_spec(package), f"{package} is not installed")


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """The one Spark session of a run, with `format("logfs")`; skipped without Java or pyspark."""
    need_spark()
    import logfs.spark

    settings = spark_settings()
    # `format("kafka")`, where it can be had; the tests that need it ask for `kafka_source`.
    settings["spark.jars"] = ",".join(connector().jars)
    settings["spark.sql.warehouse.dir"] = str(tmp_path_factory.mktemp("warehouse"))
    session = logfs.spark.session("tests", master="local[2]", settings=settings)
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()


@pytest.fixture(scope="session")
def kafka_source(spark: SparkSession) -> SparkSession:
    """The session, if it has `format("kafka")`."""
    need(connector().jars, connector().missing)
    return spark
