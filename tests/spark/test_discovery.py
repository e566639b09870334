"""Spark finds an installed logfs: `format("logfs")` works in a session without any setup."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from logfs.store.store import Store
from tests.support.requirements import need

ROOT = Path(__file__).parents[2]
# The oldest version that can build the project (pyproject.toml).
SETUPTOOLS = 77
# A session with Spark's defaults, except for the settings that keep it on this machine.
PROGRAM = textwrap.dedent("""
    import sys, pyspark_logfs, logfs, logfs.spark
    from pyspark.sql import SparkSession

    target, logs = sys.argv[1:]
    assert logfs.__file__.startswith(target) and pyspark_logfs.__file__.startswith(target)
    settings = {
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",
    }
    spark = SparkSession.builder.master("local[1]").config(map=settings).getOrCreate()
    assert spark.conf.get("spark.sql.python.filterPushdown.enabled") == "false"
    orders = spark.read.format("logfs").option("subscribe", "orders").load(logs)
    print("FOUND", [row.value for row in orders.where("offset > 0").collect()])
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    orders = spark.read.format("logfs").option("subscribe", "orders").option("pushDownPredicate", "true")
    print("PUSHED", [row.value for row in orders.load(logs).where("offset > 1").collect()])
    logfs.spark.register(spark)
    print("REGISTERED", orders.load(logs).count())
""")

pytestmark = pytest.mark.campaign


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory in which only a wheel of the project is installed."""
    for package in ("pip", "pyspark", "pyarrow", "setuptools"):
        need(importlib.util.find_spec(package), f"{package} is not installed")
    found = importlib.metadata.version("setuptools")
    need(int(found.split(".")[0]) >= SETUPTOOLS, f"setuptools is older than {SETUPTOOLS}: {found}")
    # Building writes beside the sources.
    sources = tmp_path_factory.mktemp("sources")
    shutil.copytree(ROOT / "logfs", sources / "logfs", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, sources)
    path = tmp_path_factory.mktemp("installed")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
    alone = ["--no-deps", "--no-build-isolation", "--no-index", "--no-compile"]
    subprocess.run([*pip, *alone, "--target", str(path), str(sources)], check=True)
    return path


def test_the_wheel_has_every_module_once(target: Path) -> None:
    """The wheel has every module once. The package that Spark looks for is at the top only, not also in logfs."""
    assert {path.name for path in target.glob("*") if not path.name.endswith(".dist-info")} == {
        "bin", "logfs", "pyspark_logfs",
    }  # fmt: skip
    assert (target / "pyspark_logfs/__init__.py").is_file()
    assert (target / "logfs/mount/README").is_file()
    assert not (target / "logfs/spark/discovery").exists()
    sources = {path.relative_to(ROOT) for path in (ROOT / "logfs").rglob("*.py")}
    installed = {path.relative_to(target) for path in (target / "logfs").rglob("*.py")}
    assert {path for path in sources if "discovery" not in path.parts} == installed


def test_spark_finds_the_installed_format(target: Path, tmp_path: Path) -> None:
    """A separate process finds the format without an import of logfs, with filter push-down enabled or not.

    Its Spark is the package pyspark as it stands. To register the format after that causes no warning.
    """
    need(shutil.which("java"), "java is not installed")
    with Store(tmp_path / "logs") as store:
        store.create("orders-0").append([b"one", b"two", b"three"])
    own = {name: value for name, value in os.environ.items() if not name.startswith("SPARK_")}
    environment = {**own, "PYTHONPATH": str(target), "PYSPARK_PYTHON": sys.executable}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(target), str(tmp_path / "logs")],
        env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    said = [line for line in done.stdout.splitlines() if re.match("[A-Z]+ ", line)]
    assert said == ["FOUND [b'two', b'three']", "PUSHED [b'three']", "REGISTERED 3"]
    assert "WARN DataSourceManager" not in done.stderr
