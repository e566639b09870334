"""Fixtures of the tests with Spark: one session, whose Python workers use this interpreter."""

from __future__ import annotations

import importlib.util
import os
import shutil
from typing import TYPE_CHECKING

import pytest

# The broker that `format("kafka")` reads from, the clients that write to it, and Kafka's tools.
from tests.kafka.conftest import (  # noqa: F401
    connect,
    helper,
    kafka,
    make_broker,
    source,
    stopped_source,
    tools,
)
from tests.spark.connector import connector
from tests.spark.home import spark_home
from tests.support.requirements import need

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

SETTINGS = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.session.timeZone": "UTC",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}
# Tests are many short queries: the second compiler and parallel garbage collection cost more time than they save.
JVM = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")


def spark_settings() -> dict[str, str]:
    """Return the settings of a session, to which tests add others, such as jars, before the session is created."""
    return {**SETTINGS, "spark.executor.extraJavaOptions": jvm_options()}


def need_spark() -> None:
    """Require Java and the packages that a session needs, and make the processes of all sessions start fast."""
    need(shutil.which("java"), "java is not installed")
    for package in ("pyspark", "pyarrow"):
        need(importlib.util.find_spec(package), f"{package} is not installed")
    # The sessions of programs that tests start have this home and these options, too.
    os.environ["SPARK_HOME"] = str(spark_home())
    os.environ["SPARK_SUBMIT_OPTS"] = jvm_options()
    os.environ["SPARK_LAUNCHER_OPTS"] = " ".join(JVM)


def jvm_options() -> str:
    """Return the options of Spark's JVMs."""
    from tests.spark.class_loading import archive_options

    return " ".join([*JVM, *archive_options(JVM)])


def need_iceberg() -> None:
    """Require the package that writes tables of Apache Iceberg."""
    need(importlib.util.find_spec("pyiceberg"), "pyiceberg is not installed")


@pytest.fixture(scope="session")
def aws_files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of the files `credentials` and `config` that the Python workers of Spark use, none at first.

    The workers have the environment with which the session began, so that a test can only write these files.
    """
    directory = tmp_path_factory.mktemp("aws")
    os.environ["AWS_SHARED_CREDENTIALS_FILE"] = str(directory / "credentials")
    os.environ["AWS_CONFIG_FILE"] = str(directory / "config")
    return directory


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory, aws_files: Path) -> Iterator[SparkSession]:
    """The only Spark session of a worker, with `format("logfs")`. Skipped without Java or pyspark."""
    need_spark()
    import logfs.spark

    settings = spark_settings()
    # `format("kafka")`, where it is available. The tests that need it request `kafka_source`.
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
