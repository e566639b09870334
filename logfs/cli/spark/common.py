"""Code shared by the commands of Spark jobs: the session, the option for topics, the progress bar, results."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from logfs.cli.common import progress_bar
from logfs.errors import LogfsError
from logfs.interrupts import delayed_interrupts

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterable, Iterator

    from pyspark.sql import SparkSession

    from logfs.spark.jobs.partition_leases import Visited

_Result = TypeVar("_Result")

_QUIET = {
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.extraJavaOptions": (
        f"-Dlog4j2.configurationFile={Path(__file__).with_name('log4j2.properties').as_uri()}"
    ),
}
# Settings of a local session: Spark's servers listen on the loopback interface only.
_LOCAL = {
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
}


def add_session(parser: argparse.ArgumentParser) -> None:
    """Add the options for the Spark session that a job runs in."""
    group = parser.add_argument_group("Spark")
    group.add_argument(
        "--master",
        default="local[*]",
        metavar="URL",
        help="local[N], spark://HOST:PORT, yarn, k8s://… (default: all cores of this machine)",
    )
    group.add_argument(
        "--conf",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a setting of Spark; may be given several times",
    )


@contextmanager
def session(arguments: argparse.Namespace, job: str) -> Iterator[SparkSession]:
    """Start a Spark session for the job named `job`, and stop the session at the end of the context.

    `arguments` has the options `--master` and `--conf`. Raises `LogfsError` if Spark or Java is missing (the message
    has the command that installs it), for a malformed `--conf`, and if Spark does not start.
    """
    if any(importlib.util.find_spec(name) is None for name in ("pyspark", "pyarrow")):
        raise LogfsError("Spark is not installed: install the wheel with its extra, logfs[spark]")
    if shutil.which("java") is None:
        raise LogfsError(
            "Spark needs Java, but 'java' is not on the PATH: apt-get install default-jre-headless"
        )
    import logfs.spark

    settings = dict(_QUIET)
    if arguments.master.startswith("local"):
        settings |= _LOCAL
        os.environ.setdefault("SPARK_LOCAL_IP", _LOCAL["spark.driver.host"])
    for setting in arguments.conf:
        name, equals, value = setting.partition("=")
        if not equals:
            raise LogfsError(f"--conf {setting}: give a setting of Spark as NAME=VALUE")
        settings[name] = value
    if sys.stderr.isatty():
        print("starting Spark …", end="\r", file=sys.stderr, flush=True)
    from pyspark.errors import PySparkException

    spark = None
    try:
        # If Ctrl-C interrupted the start of a JVM, the JVM would never end.
        with delayed_interrupts():
            try:
                spark = logfs.spark.session(
                    f"logfs {job}", master=arguments.master, settings=settings
                )
            except PySparkException as error:
                raise LogfsError(f"Spark does not start on {arguments.master}: {error}") from None
        yield spark
    finally:
        if spark is not None:
            spark.stop()


def add_topics(parser: argparse.ArgumentParser) -> None:
    """Add the option `--topics`, which limits a job to the named topics."""
    parser.add_argument(
        "--topics",
        type=lambda text: text.split(","),
        metavar="TOPIC,…",
        help="only these topics (default: all)",
    )


@contextmanager
def bar(title: str) -> Iterator[Callable[[int, int], None]]:
    """Show a progress bar in bytes on a terminal, and yield the callback that updates it.

    The callback takes two numbers of bytes: those done, and the total. Until its first call, the bar shows no total.
    """
    with progress_bar(title, None) as shown:

        def progress(done: int, total: int) -> None:
            shown.total = total
            shown.update(done - shown.n)

        yield progress


def print_visits(visits: Iterable[Visited[_Result]], describe: Callable[[_Result], str]) -> int:
    """Print the result of a job for each partition, and return the number of partitions that failed.

    `visits` has one item for each partition, and `describe` returns the text of its result. The reason of a failure
    is printed to standard error.
    """
    failed = 0
    for visit in visits:
        if visit.result is None:
            failed += 1
            print(f"logfs: {visit.name}: {visit.reason}", file=sys.stderr)
        else:
            print(f"{visit.name}: {describe(visit.result)}")
    return failed
