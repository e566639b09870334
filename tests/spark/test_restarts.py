"""A query that is killed repeatedly with all its processes: every record is in the sink once, and in order.

The query reads a mount that is appended to, rolled, expired and compacted at the same time, and writes to a directory
that is mounted at some times and not at others. LOGFS_SPARK_KILLS is the number of kills: 1 in the suite, at a
moment that changes by commit; 10 in scripts/crash.
"""

from __future__ import annotations

import json
import os
import re
import signal
import threading
import time
from itertools import cycle, islice
from typing import TYPE_CHECKING, NamedTuple

import pytest

from logfs.format.files.commit_file import STAGED, CommitLog
from logfs.log.disk.disk import Disk
from logfs.store.staged_commits import read_commits
from logfs.store.store import Store
from tests.spark.conftest import need_spark, spark_settings
from tests.spark.program import Program
from tests.support.examples import seed_of
from tests.support.requirements import DEEP, need_fuse

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from logfs.format.batches.record import Record
    from tests.support.mounts import Mount

pytestmark = pytest.mark.campaign

KILLS = int(os.environ.get("LOGFS_SPARK_KILLS", "1"))
# The most records of a batch, and about the most that the query has not copied.
LIMIT, BACKLOG = (1200, 7200) if DEEP else (600, 2400)
PARTITIONS = ("events-0", "events-1", "states-0")
KEYS = 40


class At(NamedTuple):
    """The progress of a query: the newest planned and done batch, and the sink's commits and staged files."""

    planned: int
    done: int
    log: CommitLog
    staged: frozenset[Path]

    @property
    def is_inside(self) -> bool:
        return self.planned > self.done

    @property
    def committed(self) -> int:
        return max((writer.sequence for writer in self.log.writers.values()), default=-1)


# The moments at which a query is killed. All but the last are inside a batch.
MOMENTS: dict[str, Callable[[At], bool]] = {
    "staged": lambda at: at.is_inside and at.committed < at.planned and bool(at.staged),
    "decided": lambda at: at.log.pending is not None,
    "committed": lambda at: at.is_inside and at.committed == at.planned,
    "planned": lambda at: at.is_inside and at.committed < at.planned and not at.staged,
    "between": lambda at: not at.is_inside and at.done > 0,
}


def newest(directory: Path) -> int:
    """Return the newest batch that has a file in a directory of a checkpoint."""
    if not directory.is_dir():
        return -1
    return max((int(path.name) for path in directory.iterdir() if path.name.isdigit()), default=-1)


class Pipeline:
    """A log that changes, and the queries that copy it, one after the other."""

    def __init__(self, mount: Mount, target: Path, state: Path) -> None:
        self.mount = mount
        self.target = target
        self.state = state
        self.checkpoint = state / "checkpoint"
        self.threads: list[threading.Thread] = []
        self.over = threading.Event()
        self.errors: list[BaseException] = []
        self.expected: dict[str, list[tuple[bytes | None, bytes, tuple[object, ...]]]] = {}
        # The number of events that the sink has.
        self.taken = 0
        self.started = 0
        for name in PARTITIONS:
            mount.partition(name)
            settings = {"segment.bytes": "30000", "file.delete.delay.ms": "0"}
            if name.startswith("states"):
                settings |= {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "1.0"}
            for setting, value in settings.items():
                (mount.path / name / "config" / setting).write_text(value)
            self.expected[name] = []
        with Store(target) as store:
            for name in PARTITIONS:
                store.create(f"copy-{name}")

    # The work beside the queries.

    def begin(self) -> None:
        """Start the threads that write to the log and maintain it."""

        def guarded(work: Callable[[], None]) -> None:
            try:
                work()
            except BaseException as error:
                self.errors.append(error)

        for work in (self.write, self.keep):
            self.threads.append(threading.Thread(target=guarded, args=[work]))
            self.threads[-1].start()

    def end(self) -> None:
        """End these threads."""
        self.over.set()
        for thread in self.threads:
            thread.join()

    def write(self) -> None:
        """Write lines, and envelopes with keys and headers. The states use a few keys repeatedly."""
        paths = [self.mount.path / name for name in PARTITIONS]
        with (
            (paths[0] / "append").open("ab", buffering=0) as plain,
            (paths[1] / "append.jsonl").open("ab", buffering=0) as events,
            (paths[2] / "append.jsonl").open("ab", buffering=0) as states,
        ):
            number = 0
            while not self.over.is_set():
                lines = [b"line %d " % (number + n) + b"x" * (n * 9) for n in range(6)]
                plain.write(b"".join(line + b"\n" for line in lines))
                self.expected["events-0"] += [(None, line, ()) for line in lines]
                key, value = b"key %d" % (number % 99), b"event %d" % number
                envelope = b'{"key":"%b","value":"%b","headers":[["n","%d"]]}\n'
                events.write(envelope % (key, value, number))
                self.expected["events-1"].append((key, value, (("n", b"%d" % number),)))
                key, value = b"%d" % (number % KEYS), b"state %d" % number
                states.write(b'{"key":"%b","value":"%b"}\n' % (key, value))
                self.expected["states-0"].append((key, value, ()))
                number += 6
                written = len(self.expected["events-0"]) + len(self.expected["events-1"])
                while not self.over.wait(0.006) and written > self.taken + BACKLOG:
                    # The backlog of a slow or dead query must not grow without bound.
                    pass

    def keep(self) -> None:
        """Roll and compact the states, and delete the events that the sink has."""
        states = self.mount.path / "states-0"
        while not self.over.wait(0.2):
            (states / "ctl").write_text("roll")
            (states / "ctl").write_text("compact")
            done = newest(self.checkpoint / "commits")
            if done < 0:
                continue
            ends = json.loads((self.checkpoint / f"offsets/{done}").read_text().splitlines()[-1])
            self.taken = sum(ends["events"].values())
            for number, end in ends["events"].items():
                events = self.mount.path / f"events-{number}"
                (events / "log-start-offset").write_text(str(end))
                (events / "ctl").write_text("retain")

    # The queries.

    def program(self) -> Program:
        """Start a session that waits until it is told to begin."""
        self.started += 1
        told: dict[str, object] = {
            "settings": spark_settings() | {"spark.sql.warehouse.dir": str(self.state / "none")},
            "source": str(self.mount.path),
            "subscribe": "events,states",
            "target": str(self.target),
            "checkpoint": str(self.checkpoint),
            "limit": LIMIT,
        }
        return Program("tests.spark.driver", told, self.state / f"driver-{self.started}.log")

    def staged(self) -> frozenset[Path]:
        """Return the staged files in the sink."""
        return frozenset(self.target.glob("*/*" + STAGED))

    def at(self, before: frozenset[Path]) -> At:
        """Return the query's progress. `before` are the staged files that earlier queries left behind."""
        done = newest(self.checkpoint / "commits")
        staged = self.staged() - before
        log = read_commits(Disk(), self.target)
        return At(newest(self.checkpoint / "offsets"), done, log, staged)

    def kill(self, program: Program, moment: str, batches: int, *, workers: bool) -> At:
        """Let a query begin and complete some batches, kill it at a moment of the next, and return its progress.

        Without `workers`, the workers lose their driver, but still run when the next query begins.
        """
        before = self.staged()
        program.tell()
        program.expect("begun")
        end = time.monotonic() + 180
        first = newest(self.checkpoint / "commits")
        while True:
            assert not self.errors, self.errors[0]
            assert program.process.poll() is None, program.errors()
            at = self.at(before)
            assert time.monotonic() < end, f"{moment}: {at}"
            if at.done >= first + batches and MOMENTS[moment](at):
                # The query may have continued until all processes stopped.
                program.signal(signal.SIGSTOP)
                at = self.at(before)
                if MOMENTS[moment](at):
                    program.kill() if workers else program.kill_driver()
                    return at
                program.signal(signal.SIGCONT)
            time.sleep(0.002)


def copied(target: Path, name: str) -> list[Record]:
    """Return the sink's records of a partition, which must have no gap."""
    with Store(target, read_only=True) as store:
        found = list(store[f"copy-{name}"].read())
    assert [record.offset for record in found] == list(range(len(found)))
    return found


@pytest.fixture
def pipeline(make_mount: Callable[..., Mount], log_dir: Path, tmp_path: Path) -> Iterator[Pipeline]:
    """A pipeline and its threads, which are always stopped at the end."""
    need_fuse()
    need_spark()
    state = tmp_path / "state"
    state.mkdir()
    mount = make_mount(name="source", log_dirs=[tmp_path / "source-logs"])
    pipeline = Pipeline(mount, log_dir, state)
    pipeline.begin()
    yield pipeline
    pipeline.end()


def test_a_query_that_is_killed_repeatedly_copies_each_record_once(
    pipeline: Pipeline, make_mount: Callable[..., Mount]
) -> None:
    """The copies are equal to the log after kills at moments inside a batch, some of them together with the mount."""
    target = make_mount(name="target", log_dirs=[pipeline.target])
    programs = [pipeline.program()]
    moments = list(islice(cycle(MOMENTS), first := seed_of() % len(MOMENTS), first + KILLS))
    killed: list[At] = []
    try:
        for number, moment in enumerate(moments):
            programs[-1].expect("ready")
            # A mount would finish a commit whose driver is dead. Without a mount the commit stays as it is.
            if moment == "decided":
                target.stop()
            elif target.process is None:
                target.start()
            # The next program starts its session while this one works.
            programs.append(pipeline.program())
            workers = number % 3 < 2
            killed.append(pipeline.kill(programs[-2], moment, 1 + number % 3, workers=workers))
            if not workers and target.process is not None:
                target.kill()
        last = programs[-1]
        last.expect("ready")
        last.tell()
        last.expect("begun")
        pipeline.end()
        last.tell()
        last.expect("over")
        assert last.process.wait(60) == 0
    finally:
        for program in programs:
            program.kill()
    assert not pipeline.errors, pipeline.errors[0]
    target.stop()
    hold(pipeline)
    inside = sum(at.is_inside for at in killed)
    counts = {name: len(each) for name, each in pipeline.expected.items()}
    print(f"{KILLS} kills, {inside} of them inside a batch; written: {counts}")
    for moment, at in zip(moments, killed, strict=True):
        print(f"  {moment}: planned {at.planned}, done {at.done}, in the sink {at.committed}")
    assert inside >= KILLS * 3 // 5


def hold(pipeline: Pipeline) -> None:
    """Check that the sink has each event once and in order, and the newest state of each key, none of them twice."""
    starts = {}
    with Store(pipeline.target) as store:
        store.upkeep()
    assert not list(pipeline.target.rglob("*" + STAGED))
    for name in PARTITIONS:
        folder = pipeline.mount.path / name
        starts[name] = int((folder / "log-start-offset").read_text())
        found = copied(pipeline.target, name)
        seen = [(record.key, record.value, tuple(record.headers)) for record in found]
        expected = pipeline.expected[name]
        if name.startswith("events"):
            assert seen == expected
            assert starts[name] > 0, "nothing has expired"
            continue
        order = {each: number for number, each in enumerate(expected)}
        places = [order[each] for each in seen]
        assert places == sorted(set(places))
        newest_of = {key: value for key, value, _ in expected}
        assert {key: value for key, value, _ in seen} == newest_of
        cleaned = re.search(r"^dirty from offset (\d+)", (folder / "ctl").read_text(), re.M)
        assert cleaned is not None
        assert int(cleaned[1]) > 0, "nothing was compacted"
