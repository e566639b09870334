"""What a newcomer meets first: sessions of one's own, errors that are one line, and no noise on the terminal."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from logfs.errors import LogfsError
from logfs.store.store import Store
from tests.spark.conftest import need_spark
from tests.support.examples import drawn

pytest.importorskip("pyspark", reason="pyspark is not installed")

from pyspark.errors import PySparkException

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import SparkSession

# Sessions of the user's own, one for each argument, the PYSPARK_PYTHON of the environment.
OWN_SESSIONS = """
import os, sys
from pyspark.sql import SparkSession
import logfs.spark
for python in sys.argv[1:]:
    os.environ.pop("PYSPARK_PYTHON", None)
    if python:
        os.environ["PYSPARK_PYTHON"] = python
    spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
    try:
        logfs.spark.register(spark)
        print("registered")
    except Exception as error:
        print(type(error).__name__, error)
    spark.stop()
"""
SESSION_THEN_REGISTER = """
import sys
import logfs.spark
settings = {"spark.ui.enabled": "false"}
spark = logfs.spark.session("quiet", master="local[2]", settings=settings)
logfs.spark.register(spark)
orders = spark.read.format("logfs").option("subscribe", "orders").load(sys.argv[1])
for _ in range(2):
    orders.show(3)
    orders.limit(1).collect()
    orders.orderBy("offset").limit(2).collect()
print(orders.count(), "records")
"""


def run(program: str, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a Python program in a process of its own, whose PATH has another Python without logfs."""
    own = {name: value for name, value in os.environ.items() if not name.startswith("PYSPARK_")}
    return subprocess.run(
        [sys.executable, "-c", program, *words],
        env={**own, "SPARK_LOCAL_IP": "127.0.0.1", **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


def test_workers_with_another_python_are_named_before_a_task_fails(tmp_path: Path) -> None:
    """If the first python3 on the PATH has no logfs, `register` says in one line what to set."""
    need_spark()
    other = tmp_path / "python3"
    # An interpreter without any of the packages.
    other.write_text(f'#!/bin/sh\nexec "{sys.base_prefix}/bin/python3" -I -S "$@"\n')
    other.chmod(0o755)
    pythons = ("", str(tmp_path / "nowhere"), sys.executable)
    done = run(OWN_SESSIONS, *pythons, PATH=f"{tmp_path}:{os.environ['PATH']}")
    lacking, missing, right = done.stdout.splitlines()
    assert lacking == (
        "LogfsError Spark's Python workers would run python3, which has no module 'logfs': set the environment "
        f"variable PYSPARK_PYTHON={sys.executable} before the session starts"
    ), done.stderr[-2000:]
    assert "PYSPARK_PYTHON=" in missing
    assert right == "registered"


def test_a_session_prints_no_tracebacks_and_no_warnings_of_its_own(tmp_path: Path) -> None:
    """`session`, then `register`; `show` and LIMIT, of logs that are larger and smaller than the sockets' buffers."""
    need_spark()
    with Store(tmp_path / "log") as store:
        for number, size in enumerate((3, 60_000)):
            log = store.create(f"orders-{number}")
            for _ in range(size // 30):
                log.append([b"x" * 100] * 30)
    done = run(SESSION_THEN_REGISTER, str(tmp_path / "log"))
    assert done.stdout.endswith("60000 records\n"), done.stderr[-2000:]
    assert "replaced a previously registered" not in done.stderr
    assert "Traceback" not in done.stderr, done.stderr
    assert "failed to flush" not in done.stderr, done.stderr


WRONG: list[tuple[str, dict[str, str], str]] = [
    ("lg", {"subscribe": "orders"}, "lg does not exist; did you mean .*log?"),
    (
        "log",
        {"subscribe": "ordres"},
        "no such partition or topic in .*log: ordres; 'logfs desc",
    ),
    ("log", {}, "One of the following options must be specified"),
    ("log", {"subscribe": "orders", "startingOffset": "earliest"}, "mean 'startingOffsets'?"),
    (
        "log",
        {"subscribe": "orders", "columns": "valeu"},
        "no column 'valeu'; did you mean 'value'",
    ),
    ("log", {"subscribe": "orders", "columns": "value,value"}, "names the column value twice"),
]


@pytest.mark.parametrize(
    ("path", "options", "message", "kind"),
    drawn([(*case, kind) for case in WRONG for kind in ("batch", "stream")], 4),
)
def test_errors_of_planning_are_one_line(
    spark: SparkSession,
    tmp_path: Path,
    kind: str,
    path: str,
    options: Mapping[str, str],
    message: str,
) -> None:
    """A wrong path, topic, option or column is told in one line, without a traceback of Spark's Python worker."""
    with Store(tmp_path / "log") as store:
        store.create("orders-0").append([b"1"])

    def read() -> None:
        reading = (spark.read if kind == "batch" else spark.readStream).format("logfs")
        frame = reading.options(**options).load(str(tmp_path / path))
        if kind == "batch":
            frame.count()
            return
        query = frame.writeStream.format("noop").trigger(availableNow=True).start()
        query.awaitTermination()

    with pytest.raises(PySparkException, match=message) as caught:
        read()
    assert "Traceback" not in str(caught.value)
    (line,) = [
        each for each in str(caught.value).splitlines() if message.split(".*")[0][:20] in each
    ]
    assert line.startswith("[")


def test_kafka_options_are_accepted_and_their_misspelling_is_not(tmp_path: Path) -> None:
    """Options of Kafka's clients pass with a warning; the case of a name does not matter."""
    from logfs.spark.known_names import check_options

    check_options(["KAFKA.bootstrap.servers", "kafka.security.protocol", "STARTINGoffsets", "path"])
    for wrong, right in (
        ("bootstrap.servers", ""),
        ("topics", "topic"),
        ("minpartition", "minPartitions"),
        ("fail.on.data.loss", "failOnDataLoss"),
    ):
        with pytest.raises(ValueError, match=f"no option '{wrong}'.*{right}"):
            check_options([wrong])


def test_options_without_a_meaning_are_named_in_a_warning(
    caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    """Reads and writes warn of every option of Kafka's clients, except of the one that has a meaning."""
    from pyspark.sql.datasource import CaseInsensitiveDict

    from logfs.spark.options import read_options
    from logfs.spark.sink.options import write_options

    kafka = {
        "kafka.security.protocol": "SSL",
        "kafka.bootstrap.servers": "x:1",
        "groupIdPrefix": "g",
    }
    options = {"path": str(tmp_path), "subscribe": "a", "kafka.isolation.level": "read_committed"}
    read_options(CaseInsensitiveDict({**options, **kafka}), streaming=False)
    warned = [record.args for record in caplog.records]
    assert warned == [(name.lower(),) for name in kafka]
    caplog.clear()
    write_options(CaseInsensitiveDict({"path": str(tmp_path), "topic": "a", **kafka}))
    assert [record.args for record in caplog.records] == warned


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        ("file:/a/b", "/a/b"),
        ("file:///a/b", "/a/b"),
        ("file://localhost/a/b", "/a/b"),
        ("FILE:/a b", "/a b"),
        ("/a/file:/b", "/a/file:/b"),
        ("file:a", "file:a"),
        ("file://host/a", "file://host/a"),
        ("s3://bucket/a", "s3://bucket/a"),
    ],
)
def test_local_paths_in_all_spellings(text: str, plain: str) -> None:
    """`file:` with one, two or three slashes is the path after it; a host other than localhost is not."""
    from logfs.spark.options import local_path

    assert local_path(text) == plain


def test_the_check_of_an_interpreter_names_what_it_lacks(tmp_path: Path) -> None:
    """An interpreter that does not run is reported like one without logfs."""
    from logfs.spark.workers import check_python

    broken = tmp_path / "python3"
    broken.write_text("#!/bin/sh\nexit 1\n")
    broken.chmod(0o755)
    for executable in (str(broken), "no-such-python"):
        with pytest.raises(
            LogfsError, match=f"would run .*{Path(executable).name}, which does not run"
        ):
            check_python(executable)
    check_python(sys.executable)
