"""Tasks that die after or during their work, speculative attempts, and other writers: each record is there once.

Spark itself retries and speculates, on a cluster of two executors (`tests.spark.cluster`): local sessions do neither.
The cluster is started once. In a deep campaign it runs the query twice, into a directory and into a mount.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import pytest

from logfs.format.batches.record import Record
from logfs.format.files.commit_file import STAGED
from logfs.store.store import Store
from tests.spark.conftest import need_iceberg, need_spark, spark_settings
from tests.spark.program import Program
from tests.support.examples import drawn
from tests.support.mounts import Mount
from tests.support.requirements import need_fuse
from tests.support.stores import assert_clean, set_topic

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.kafka.tools import Tools

pytestmark = pytest.mark.campaign

T = 1_700_000_000_000
INPUT = [(b"k%d" % (n % 11), b"v%03d" % n, T + n) for n in range(240)]
# The query writes into a log directory or into a mount.
KINDS = drawn(["directory", "mount"], 1)
BESIDE = [*(b"job %d" % n for n in range(30)), *[b"plain"] * 3]


class Outcome(NamedTuple):
    """A log directory that the query wrote to, and the events of the run."""

    log_dir: Path
    notes: frozenset[str]

    def records(self) -> list[list[Record]]:
        """Return the records of each partition. Their offsets have no gap."""
        with Store(self.log_dir, read_only=True) as store:
            found = [list(store[f"out-{number}"].read()) for number in range(3)]
        for records in found:
            assert [record.offset for record in records] == list(range(len(records)))
        return found


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Outcome]]:
    """The outcomes for `KINDS` and "pipeline". The audit finds no error in any."""
    need_spark()
    need_iceberg()
    need_fuse()
    root = tmp_path_factory.mktemp("cluster")
    with Store(root / "source") as store:
        store.create("in-0").append([Record(value, key, [], time) for key, value, time in INPUT])
    mount = Mount(root / "mnt", [root / "mount-logs"])
    targets = []
    for kind in KINDS:
        log_dir = root / f"{kind}-logs"
        with Store(log_dir) as store:
            # The records are from 2023. The upkeep of the mount must not delete them.
            set_topic(store, "out", retention_ms=-1)
            for number in range(3):
                store.create(f"out-{number}")
        state = root / f"{kind}-state"
        state.mkdir()
        at = str(mount.path) if kind == "mount" else None
        targets.append({"path": str(log_dir), "state": str(state), "mount": at})
    told: dict[str, object] = {
        "settings": spark_settings(),
        "scratch": str(root / "work"),
        "source": str(root / "source"),
        "targets": targets,
        "pipeline": {"log": str(root / "pipeline"), "lake": str(root / "lake")},
    }
    (root / "pipeline").mkdir()
    (root / "lake").mkdir()
    try:
        mount.start()
        program = Program("tests.spark.cluster", told, root / "cluster.log")
        try:
            program.expect("over")
        finally:
            program.kill()
    finally:
        mount.stop()
    found = {}
    for kind in KINDS:
        notes = frozenset(path.name for path in (root / f"{kind}-state").iterdir())
        found[kind] = Outcome(root / f"{kind}-logs", notes)
    found["pipeline"] = Outcome(root / "pipeline", frozenset())
    yield found
    for outcome in found.values():
        assert_clean(outcome.log_dir)


@pytest.mark.parametrize("kind", KINDS)
def test_tasks_that_die_or_straggle_change_nothing(outcomes: dict[str, Outcome], kind: str) -> None:
    """Key, value and time of each row are there once, in the order of its partition, beside the others' records."""
    found = outcomes[kind].records()
    own = [[record for record in each if record.value not in BESIDE] for each in found]
    seen = [[(r.key, r.value, r.timestamp) for r in each] for each in own]
    assert sorted(row for each in seen for row in each) == sorted(INPUT)
    for each in seen:
        assert each == [row for row in INPUT if row in each]
    others = [r.value for each in found for r in each if r.value in BESIDE]
    assert sorted(others) == sorted(BESIDE)


@pytest.mark.parametrize("kind", KINDS)
def test_the_tasks_did_die_and_straggle(outcomes: dict[str, Outcome], kind: str) -> None:
    """Attempts did fail after all or half of their work, and two attempts at one task did the same work."""
    notes = outcomes[kind].notes

    def attempts(what: str, task: str) -> set[int]:
        return {int(name[-1]) for name in notes if name.startswith(f"{what}-{task}-")}

    for task in ("0-1", "1-3"):
        assert attempts("failed", task) == {0}
        assert {0} < attempts("staged", task)
    assert attempts("failed", "2-2") == {0}
    assert attempts("staged", "2-2")
    assert 0 not in attempts("staged", "2-2")
    assert attempts("failed", "1-0") == set()
    assert len(attempts("staged", "1-0")) > 1


@pytest.mark.parametrize("kind", KINDS)
def test_leftover_staged_files_are_removed(outcomes: dict[str, Outcome], kind: str) -> None:
    """The next upkeep removes the staged files of finished commits."""
    log_dir = outcomes[kind].log_dir
    with Store(log_dir) as store:
        store.upkeep()
    assert not list(log_dir.rglob("*" + STAGED))


@pytest.mark.parametrize("kind", KINDS)
def test_kafka_agrees(outcomes: dict[str, Outcome], kind: str, tools: Tools) -> None:
    """kafka-dump-log finds the same offsets, keys and values, and no invalid batch."""
    outcome = outcomes[kind]
    for number, records in enumerate(outcome.records()):
        logs = sorted((outcome.log_dir / f"out-{number}").glob("*.log"))
        dumped = tools.dump(*logs, options="--deep-iteration --print-data-log")
        assert dumped.code == 0, dumped.err
        assert "isvalid: false" not in dumped.out
        lines = [line for line in dumped.out.splitlines() if line.startswith("| offset: ")]
        for line, record in zip(lines, records, strict=True):
            assert line.startswith(f"| offset: {record.offset} CreateTime: {record.timestamp} ")
            assert line.endswith(f" payload: {(record.value or b'').decode()}")


def test_pipelines_go_on_on_a_cluster(outcomes: dict[str, Outcome]) -> None:
    """A topic that a write created, two exports of what was new, an import that was sent twice: each record once."""
    from pyarrow import parquet
    from pyiceberg.catalog.sql import SqlCatalog

    log = outcomes["pipeline"].log_dir
    wanted = sorted(b"%d" % number for number in range(200))
    with Store(log, read_only=True) as store:
        for topic in ("made", "back"):
            found = [r.value or b"" for n in range(3) for r in store[f"{topic}-{n}"].read()]
            assert sorted(found) == wanted
    exported = parquet.read_table(log.with_name("lake") / "parquet").column("value").to_pylist()
    assert sorted(exported) == wanted
    catalog = SqlCatalog("logfs", uri=f"sqlite:///{log.with_name('lake')}/iceberg/catalog.db")
    table = catalog.load_table("logfs.made")
    assert sorted(table.scan().to_arrow().column("value").to_pylist()) == wanted
    assert len(table.snapshots()) == 2
