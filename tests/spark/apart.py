"""A program whose tasks run on a worker that sees other files than the driver: `python -m tests.spark.apart JSON`.

For `test_apart`: a master, and one worker in its own mount namespace, in which the log directories are hidden. Each
job runs on each of them. The value that it returned or the error that it raised is written to a file as JSON.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark import SparkConf, SparkContext

import logfs.cli
import logfs.spark
from logfs.spark import jobs
from tests.spark.program import unshare

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

HOST = "127.0.0.1"
SETTINGS = {
    "spark.executor.cores": "1",
    "spark.executor.memory": "600m",
    "spark.task.maxFailures": "1",
}


def start_master(settings: dict[str, str]) -> str:
    """Start a master in this program's JVM, and return its address."""
    SparkContext._ensure_initialized(conf=SparkConf().setAll(list(settings.items())))
    jvm = SparkContext._jvm
    assert jvm is not None
    deploy, conf = jvm.org.apache.spark.deploy, jvm.org.apache.spark.SparkConf()
    master = deploy.master.Master.startRpcEnvAndEndpoint(HOST, 0, 0, conf)._1()
    return f"spark://{HOST}:{master.address().port()}"


def start_worker(address: str, scratch: Path, mounts: list[list[str]]) -> subprocess.Popen[bytes]:
    """Start a worker after some mount commands, which take effect for the worker's processes only."""
    # The class path that archives of classes are for.
    home = os.environ["SPARK_HOME"]
    options = os.environ["SPARK_SUBMIT_OPTS"].split()
    java = ["java", *options, "-cp", f"{home}/conf/:{home}/jars/*", "-Xmx256m"]
    worker = ["org.apache.spark.deploy.worker.Worker", "-h", HOST, "-p", "0", "--webui-port", "0"]
    command = [*java, *worker, "-c", "1", "-m", "700M", "-d", str(scratch), address]
    script = " && ".join(map(shlex.join, mounts)) + " && exec " + shlex.join(command)
    return subprocess.Popen(
        [*unshare(), "sh", "-c", script],
        stdout=sys.stderr,
        # Without the version Spark looks for the folders of its own build.
        env={**os.environ, "SPARK_SCALA_VERSION": "2.13"},
    )


def outcome(do: Callable[[], Any]) -> dict[str, Any]:
    """Return the value that a job returned, or the error that it raised."""
    try:
        return {"returned": do()}
    except Exception as error:
        return {"raised": type(error).__name__, "text": str(error)}


def job_functions(spark: SparkSession, log_dir: str, out: Path) -> dict[str, Callable[[], Any]]:
    """Return each job by name."""

    def read(**options: str) -> int:
        reading = spark.read.format("logfs").option("subscribe", "orders").options(**options)
        return reading.load(log_dir).count()

    def stream() -> bool:
        reading = spark.readStream.format("logfs").option("subscribe", "orders")
        frame = reading.option("startingOffsets", "earliest").load(log_dir)
        writing = frame.writeStream.format("noop").trigger(availableNow=True)
        return writing.start().awaitTermination(120) is not None

    def write() -> None:
        rows = spark.range(0, 10, 1, 1).selectExpr("'k' key", "'v' value")
        rows.write.format("logfs").option("topic", "orders").mode("append").save(log_dir)

    def import_() -> list[int]:
        done = jobs.import_(spark, out.parent / "text.txt", log_dir, format="text", topic="orders")
        return [done.files, done.records]

    def verify() -> list[str]:
        return [str(found) for found in jobs.verify(spark, log_dir).findings]

    def stats() -> int:
        return sum(topic.counts.records for topic in jobs.stats(spark, log_dir).topics)

    return {
        "verify": verify,
        "stats": stats,
        "load": read,
        "load, losses allowed": lambda: read(failOnDataLoss="false"),
        "stream": stream,
        "export": lambda: jobs.export(spark, log_dir, out).records,
        "write": write,
        "import": import_,
        "reindex": lambda: [each.reason for each in jobs.reindex(spark, log_dir)],
        "compact": lambda: [each.reason for each in jobs.compact(spark, log_dir)],
    }


def command(job: str, address: str, log_dir: str) -> dict[str, Any]:
    """Return the output and the exit code of `logfs spark JOB`."""
    settings = {**SETTINGS, "spark.driver.host": HOST}
    words = ["spark", job, "--master", address, log_dir]
    words += [f"--conf={name}={value}" for name, value in settings.items()]
    with redirect_stdout(StringIO()) as out:
        return {"code": logfs.cli.main(words), "out": out.getvalue()}


def main() -> None:
    """Run all jobs, and write the outcomes."""
    told = json.loads(sys.argv[1])
    root = Path(told["root"])
    settings = {**told["settings"], **SETTINGS}
    address = start_master(settings)
    worker = start_worker(address, root / "work", told["mounts"])
    try:
        spark = logfs.spark.session("apart", master=address, settings=settings)
        found: dict[str, Any] = {}
        for kind, wanted in told["jobs"].items():
            log_dir = told["log_dirs"][kind]
            functions = job_functions(spark, log_dir, root / f"export-{kind}")
            found[kind] = {job: outcome(functions[job]) for job in wanted}
        # Sources of an import, and the target of an export, that the worker does not see.
        seen = told["seen"]
        found["apart"] = {
            "import": outcome(
                lambda: (
                    jobs.import_(spark, told["source"], seen, format="text", topic="orders").records
                )
            ),
            "import, shorter": outcome(
                lambda: (
                    jobs.import_(
                        spark, told["shorter"], seen, format="text", topic="orders"
                    ).records
                )
            ),
            "export": outcome(lambda: jobs.export(spark, seen, told["target"]).records),
            "stats": outcome(lambda: jobs.stats(spark, seen).topics[0].counts.records),
        }
        spark.stop()
        found["command"] = {"verify": command("verify", address, told["log_dirs"]["empty"])}
        (root / "outcomes.json").write_text(json.dumps(found))
    finally:
        worker.terminate()
        worker.wait()
    print("over", flush=True)


if __name__ == "__main__":
    main()
