"""Apache Kafka, installed once: its class paths, resolved by Maven, and the helper, compiled against it."""

from __future__ import annotations

import fcntl
import functools
import hashlib
import os
import shutil
import subprocess
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tests.support.requirements import need, need_command

if TYPE_CHECKING:
    from collections.abc import Iterator

HERE = Path(__file__).parent
POM = HERE / "pom.xml"
SOURCES = sorted((HERE / "java").rglob("*.java"))
# Ignored by git. Each entry is named by the hash of the files from which it was created.
CACHE = HERE.parents[1] / "build" / "kafka"
INSTALL = "'apt-get install default-jdk-headless maven' brings it"


@dataclass(frozen=True)
class Distribution:
    """The class paths of Kafka's classes, as `java -cp` takes them."""

    broker: str  # the broker and its clients
    tools: str  # the command line tools, with the libraries of their own release
    helper: str  # tests/kafka/java, compiled against the broker's


@functools.cache
def distribution() -> Distribution:
    """Return Kafka in the release that `pom.xml` names. The first call resolves and compiles it."""
    for name in ("java", "javac", "mvn"):
        need(shutil.which(name), f"{name} is not installed ({INSTALL})")
    with turn():
        broker = _class_path("broker")
        return Distribution(broker, _class_path("tools"), _helper(broker))


@functools.cache
def tiered_class_path() -> str:
    """Return the class path of a broker with `LocalTieredStorage`, of the newest release that publishes that."""
    distribution()
    with turn():
        return _class_path("tiered")


@contextmanager
def turn() -> Iterator[None]:
    """Hold the lock of the cache: one process at a time fills it, and the others then find it filled."""
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _hash(*paths: Path) -> str:
    return hashlib.sha256(b"\0".join(path.read_bytes() for path in paths)).hexdigest()[:16]


def class_path(pom: Path, profile: str) -> tuple[str, str]:
    """Return the class path of a profile of a pom, and Maven's error; one of the two is empty.

    The class path that was resolved last is returned if all of its files exist.
    """
    known = CACHE / f"{_hash(pom)}.{profile}"
    if known.exists():
        path = known.read_text()
        if all(os.path.exists(jar) for jar in path.split(os.pathsep)):
            return path, ""
    new = known.with_suffix(".new")
    # Artifacts that are installed already need no network.
    said = _resolve(pom, profile, new, "--offline") and _resolve(pom, profile, new)
    if said:
        return "", said
    new.replace(known)
    return known.read_text(), ""


def _class_path(profile: str) -> str:
    path, said = class_path(POM, profile)
    need(path, f"Maven cannot bring Apache Kafka: {said}")
    return path


def _resolve(pom: Path, profile: str, output: Path, *options: str) -> str:
    """Let Maven write the class path to `output`, and return its first error, or "" if there is none."""
    command = [need_command("mvn"), "-q", "-B", *options, "-f", str(pom), f"-P{profile}"]
    done = subprocess.run(
        [*command, "dependency:build-classpath", f"-Dmdep.outputFile={output}"],
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    if done.returncode == 0 and output.exists():
        return ""
    lines = (done.stdout + done.stderr).splitlines()
    return next((line for line in lines if "ERROR" in line), "it says nothing")


def _helper(broker: str) -> str:
    """Return the directory of the helper's classes, which are compiled if necessary."""
    classes = CACHE / f"{_hash(POM, *SOURCES)}.classes"
    if not classes.exists():
        new = classes.with_suffix(".new")
        shutil.rmtree(new, ignore_errors=True)
        options = ["-Xlint:all", "-Werror", "-encoding", "UTF-8", "-d", str(new), "-cp", broker]
        done = subprocess.run(
            [need_command("javac"), *options, *map(str, SOURCES)],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        new.rename(classes)
    return str(classes)
