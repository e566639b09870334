"""A worker that does not see the driver's files: every job reports this with host and path, and changes nothing.

The worker runs in its own mount namespace (`tests.spark.apart`), in which one log directory is missing, one is empty,
one has all but one segment file, and one is a copy that has less data in its last segment.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import socket
import subprocess
from typing import TYPE_CHECKING, Any

import pytest

from logfs.format.batches.record import Record
from logfs.store.store import Store
from tests.spark.conftest import need_spark, spark_settings
from tests.spark.program import Program, unshare
from tests.support.examples import drawn
from tests.support.mounts import alone_with_mounts
from tests.support.requirements import need
from tests.support.stores import assert_clean

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.campaign

# The jobs for each kind of fault.
JOBS = {
    "lacking": (
        "verify",
        "stats",
        "load",
        "load, losses allowed",
        "stream",
        "export",
        "write",
        "import",
        "reindex",
        "compact",
    ),
    "empty": ("verify", "stats", "load, losses allowed", "write", "reindex"),
    "hole": ("verify", "stats", "load", "stream", "write", "import", "compact"),
    "copy": ("verify", "load", "write", "reindex"),
}
CASES = drawn([(kind, job) for kind, jobs in JOBS.items() for job in jobs], 8)
RECORDS = 60


def make(log_dir: Path) -> None:
    """Create two partitions of three segments, which may be compacted."""
    with Store(log_dir) as store:
        store.settings.set_topic("orders", "cleanup.policy", "compact")
        for number in range(2):
            partition = store.create(f"orders-{number}")
            for first in range(0, RECORDS, 20):
                partition.append([Record(b"v%d" % n, b"k%d" % n) for n in range(first, first + 20)])
                if first < 40:
                    partition.roll(store.clock())


def state(log_dir: Path) -> dict[str, str]:
    """Return the hashes of all files that a job must leave unchanged."""
    return {
        str(path.relative_to(log_dir)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(log_dir.rglob("*"))
        if path.is_file() and path.suffix in (".log", ".index", ".timeindex", ".txnindex")
    }


def can_mount(root: Path) -> bool:
    """Whether a process can have its own mounts here, including overlays."""
    for name in ("lower", "upper", "scratch", "merged"):
        (root / "try" / name).mkdir(parents=True)
    script = f"cd {root}/try && mount -t overlay overlay -o lowerdir=lower,upperdir=upper,workdir=scratch merged"
    done = subprocess.run([*unshare(), "sh", "-c", script], capture_output=True, check=False)
    return done.returncode == 0


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, dict[str, Any]]]:
    """The outcome of each job, by fault and by job."""
    need_spark()
    root = tmp_path_factory.mktemp("apart")
    need(shutil.which("unshare"), "unshare is not installed")
    need(can_mount(root), "a process cannot have mounts of its own here, an overlay among them")
    log_dirs = {kind: root / kind / "logs" for kind in (*JOBS, "seen")}
    for log_dir in log_dirs.values():
        log_dir.parent.mkdir()
        make(log_dir)
    shutil.copytree(log_dirs["copy"], root / "copied", symlinks=True)
    last = sorted((root / "copied/orders-0").glob("*.log"))[-1]
    os.truncate(last, last.stat().st_size - 1)
    for name in ("upper", "scratch", "nothing"):
        (root / name).mkdir()
    hole = sorted((log_dirs["hole"] / "orders-1").glob("*.log"))[1]
    (root / "text.txt").write_text("line\n" * 10)
    (root / "sources").mkdir()
    (root / "sources/text.txt").write_text("line\n" * 10)
    (root / "shorter.txt").write_text("line\n" * 10)
    (root / "less.txt").write_text("line\n" * 9)
    (root / "target").mkdir()
    overlay = f"lowerdir={log_dirs['hole']},upperdir={root}/upper,workdir={root}/scratch"
    mounts = [
        ["mount", "-t", "tmpfs", "none", str(log_dirs["lacking"].parent)],
        ["mount", "-t", "tmpfs", "none", str(log_dirs["empty"])],
        ["mount", "-t", "overlay", "overlay", "-o", overlay, str(log_dirs["hole"])],
        ["rm", str(hole)],
        ["mount", "--bind", str(root / "copied"), str(log_dirs["copy"])],
        ["mount", "--bind", str(root / "nothing"), str(root / "sources")],
        ["mount", "--bind", str(root / "less.txt"), str(root / "shorter.txt")],
        ["mount", "--bind", str(root / "nothing"), str(root / "target")],
    ]
    before = {kind: state(log_dir) for kind, log_dir in log_dirs.items()}
    told: dict[str, object] = {
        "settings": spark_settings(),
        "root": str(root),
        "log_dirs": {kind: str(log_dirs[kind]) for kind in JOBS},
        "jobs": {kind: [job for each, job in CASES if each == kind] for kind in JOBS},
        "seen": str(log_dirs["seen"]),
        "source": str(root / "sources/text.txt"),
        "shorter": str(root / "shorter.txt"),
        "target": str(root / "target"),
        "mounts": mounts,
    }
    with alone_with_mounts(tmp_path_factory):
        program = Program("tests.spark.apart", told, root / "apart.log")
        try:
            program.expect("over")
        finally:
            program.kill()
    outcomes: dict[str, dict[str, Any]] = json.loads((root / "outcomes.json").read_text())
    outcomes["paths"] = {kind: str(log_dir) for kind, log_dir in log_dirs.items()}
    yield outcomes
    assert {kind: state(log_dir) for kind, log_dir in log_dirs.items()} == before
    for log_dir in log_dirs.values():
        assert_clean(log_dir)


@pytest.mark.parametrize(("kind", "job"), CASES)
def test_files_that_a_worker_lacks_are_an_error(
    found: dict[str, dict[str, Any]], kind: str, job: str
) -> None:
    """Files that a worker lacks are an error that names its host and the path.

    Nothing counts as read, and nothing is changed.
    """
    outcome = found[kind][job]
    texts = outcome.get("returned") or [outcome.get("text")]
    assert outcome.get("raised") or job in ("verify", "reindex", "compact"), outcome
    said = [text for text in texts if text and "host " + socket.gethostname() in text]
    assert said, outcome
    assert all(found["paths"][kind] in text for text in said)


@pytest.mark.parametrize(
    ("job", "path"),
    [("import", "sources/text.txt"), ("import, shorter", "shorter.txt"), ("export", "target")],
)
def test_sources_and_targets_that_a_worker_lacks_are_an_error(
    found: dict[str, dict[str, Any]], job: str, path: str
) -> None:
    """Files to import that a worker lacks or has less of are an error, and so is a missing folder to export to."""
    outcome = found["apart"][job]
    assert outcome.get("raised") == "JobFailed", outcome
    assert f"host {socket.gethostname()}: " in outcome["text"]
    assert f"/{path}" in outcome["text"]
    # The worker does see the log.
    assert found["apart"]["stats"] == {"returned": 2 * RECORDS}


def test_the_command_fails_for_a_directory_that_is_empty_on_a_worker(
    found: dict[str, dict[str, Any]],
) -> None:
    """`logfs spark verify` of a directory that is empty on the worker fails, and names the host and the path."""
    outcome = found["command"]["verify"]
    assert outcome["code"] == 1
    assert f"host {socket.gethostname()}: " in outcome["out"]
    assert found["paths"]["empty"] in outcome["out"]
