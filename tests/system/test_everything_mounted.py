"""One model of everything, through mounts and commands: the same logs and the same models as in one process.

The writer is the daemon of a mount, whose files and commands make the changes. It is killed, stopped and mounted
again; in between Python has the log directories, for what no mount offers: transactions and truncation. Observers are
the writer, a read-only and a read_committed mount, files that stay open, a follower in another process, commands,
Spark's splits, copies and the bucket. `scripts/crash -k everything` runs it for long, and prints the pairs.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import time
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from logfs.format.batches.columns import Columns
from logfs.log.read.read_committed import Isolation
from logfs.log.scan import scan_split
from logfs.store.store import Store
from tests.support.crashdisk import fast_directory
from tests.support.examples import seed_of
from tests.support.processes import wait_for
from tests.support.requirements import DEEP, need_fuse
from tests.system.everything import (
    COMPACTED,
    GROUP,
    LOGS,
    OTHER,
    PLAIN,
    TIERED,
    Changes,
    Deed,
    drive,
    topic_of,
)
from tests.system.log_model import (
    COMMITTED,
    KEYS,
    UNCOMMITTED,
    Pairs,
    Sent,
    check_reader,
    lines,
    merged,
)
from tests.system.mount_questions import (
    CACHED,
    QUESTIONS,
    Asked,
    Question,
    ask_envelopes,
    ask_records,
    bare,
    rows,
)
from tests.system.mounted_logs import END_SECONDS, MountedLogs, Shown, Tail, envelope

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.support.spawner import Spawner

STEPS = int(os.environ.get("LOGFS_EVERYTHING_MOUNTED_STEPS", "40" if DEEP else "20"))
SEED = seed_of("LOGFS_EVERYTHING_SEED")
RUNS = int(os.environ.get("LOGFS_EVERYTHING_MOUNTED_RUNS", "1"))


class Mounted(MountedLogs):
    """The logs, and those who look at them."""

    def agree(self, ask: Callable[[], object], wanted: object, *, follows: bool) -> None:
        """Compare an answer with the model's, for as long as the one who answers may be behind."""
        end = time.monotonic() + END_SECONDS
        while True:
            try:
                found = ask()
            except FileNotFoundError:
                found = None
            if found == wanted:
                return
            assert follows, f"{found!r}, not {wanted!r}"
            assert time.monotonic() < end, f"still {found!r}, not {wanted!r}"
            time.sleep(0.02)

    def look(self, shown: Shown, name: str) -> None:
        """Ask a mount one of the questions."""
        asked = self.about(shown, name)
        question = self.chance.choice([*QUESTIONS, *self.questions(shown, name)])
        ask, wanted = question(asked)
        self.agree(ask, wanted, follows=shown.is_follower or question in CACHED)
        if question in (ask_records, ask_envelopes):
            shown.agreed[name] = self.models[name].breaks

    def about(self, shown: Shown, name: str) -> Asked:
        """Return what questions to a mount about a log need to know."""
        model = self.models[name]
        records, hidden = model.shown(shown.isolation), set()
        if shown.agreed.get(name) == model.breaks:
            # Nothing was truncated since: what is hidden now was never shown.
            hidden = {each.offset for each in model.shown(UNCOMMITTED)}
            hidden -= {each.offset for each in records}
        return Asked(shown.path / name, model, records, hidden, self.chance)

    def questions(self, shown: Shown, name: str) -> list[Callable[[Asked], Question]]:
        """Return the questions that are about more than the records of one log."""
        model, path = self.models[name], shown.path / name
        topic = shown.path / "topics" / topic_of(name)
        stable = model.transactions()[1]

        def status(asked: Asked) -> Question:
            told = ("log_start_offset", "log_end_offset", "last_stable_offset")

            def ask() -> object:
                found = json.loads((path / "status.json").read_text())
                return [found[field] for field in told]

            return ask, [model.start, model.end, stable]

        def mode(asked: Asked) -> Question:
            wanted = self.modes.get(name)
            return lambda: (path / "records").stat().st_mode & 0o777 if wanted else None, wanted

        def group(asked: Asked) -> Question:
            wanted = self.commits.get((GROUP, name))
            return lambda: int((path / "groups" / GROUP).read_text()), wanted

        def lag(asked: Asked) -> Question:
            wanted = self.commits.get((GROUP, name))
            end = stable if shown.isolation is COMMITTED else model.end
            return (
                lambda: int((path / "groups" / (GROUP + ".lag")).read_text()),
                None if wanted is None else end - wanted,
            )

        def of_topic(asked: Asked) -> Question:
            wanted = merged(self.topic(name), shown.isolation)
            if self.chance.random() < 0.5:
                return (topic / "records").read_bytes, lines(wanted)
            return lambda: rows((topic / "records.jsonl").read_bytes()), bare(wanted)

        return [status, mode, group, lag, of_topic, of_topic]

    def writer(self, name: str) -> None:
        if self.mounted:
            self.look(self.writing, name)
        else:
            isolation = self.chance.choice([*Isolation])
            reader = self.log(name).isolated(isolation)
            check_reader(reader, self.models[name], isolation, self.chance)

    def read_only(self, name: str) -> None:
        self.look(self.following[0], name)

    def read_committed(self, name: str) -> None:
        self.look(self.following[1], name)

    def tail(self, name: str) -> None:
        """Files that stay open show what comes, and nothing else."""
        shown = self.chance.choice([*self.following, *([self.writing] if self.mounted else [])])
        model = self.models[name]
        records = model.shown(shown.isolation)
        has_come = records and records[-1].offset >= self.arrived.get(name, 0)
        # A file that was open over a compaction shows also what that has dropped and the file had not read.
        self.drop(lambda tail: self.models[tail.name].dropped > tail.last)
        if len(self.tails) < 6 and (has_come or not shown.is_follower):
            self.agree(*ask_records(self.about(shown, name)), follows=shown.is_follower)
            self.tails.append(Tail(shown, name, model.breaks))
        self.drop(lambda tail: tail.breaks != self.models[tail.name].breaks)
        self.drop(lambda tail: self.models[tail.name].start > tail.last + 1)
        for tail in self.tails:
            records = self.models[tail.name].shown(tail.shown.isolation)
            new = [each for each in records if each.offset > tail.last]
            wanted, tail.new = lines(new), b""

            self.agree(partial(tail.read_on, wanted), wanted, follows=tail.shown.is_follower)
            tail.last = new[-1].offset if new else tail.last

    def ask_follower(self, *request: object) -> Any:
        self.connection.send(request)
        answer = self.connection.recv()
        assert not isinstance(answer, str) or not answer, answer
        return answer

    def remote_follower(self, name: str) -> None:
        isolation = self.chance.choice([*Isolation])
        self.ask_follower(name, self.models[name], isolation, self.chance.randrange(1 << 30))

    def splits(self, name: str) -> None:
        """Splits that one process plans are read by another one, as in Spark."""
        isolation = self.chance.choice([*Isolation])
        found: list[int] = []
        for piece in self.ask_follower(name, None, isolation, self.chance.choice([200, 1 << 20])):
            for columns in scan_split.read(piece):
                assert isinstance(columns, Columns), columns
                found += [record.offset for record in columns.records()]
        assert found == [each.offset for each in self.models[name].shown(isolation)]

    def command(self, name: str) -> None:
        """`cat` and `tail` print what they are asked for, in every form."""
        isolation, target = self.chance.choice([*Isolation]), self.target(name)
        shown = self.models[name].shown(isolation)
        key = f"k{self.chance.randrange(KEYS)}"
        one = self.chance.choice(shown) if shown else Sent(0, b"", b"", 1, 0)
        count = self.chance.randrange(1, 6)
        newest = [each for each in shown if each.key.decode() == key][-1:]
        at_time = next((n for n, each in enumerate(shown) if each.timestamp >= one.timestamp), 0)
        value = one.value.decode()
        forms: list[tuple[list[object], list[Sent]]] = [
            (["cat"], shown),
            (
                ["cat", "-o", f"{one.offset}.."],
                [each for each in shown if each.offset >= one.offset],
            ),
            (
                ["cat", "-o", f"..{one.offset}"],
                [each for each in shown if each.offset < one.offset],
            ),
            (["cat", "-o", f"-{count}"], shown[-count:]),
            (["cat", "-t", f"{one.timestamp}.."], shown[at_time:]),
            (["cat", "--until", one.timestamp], shown[:at_time]),
            (["cat", "-k", key], [each for each in shown if each.key.decode() == key]),
            (["cat", "--grep", f"^{value}$"], [each for each in shown if each.value == one.value]),
            (["cat", "-n", count], shown[:count]),
            (["cat", "--newest", key], newest),
            (["tail", "-n", count], shown[-count:]),
        ]
        words, wanted = self.chance.choice(forms[1:] if shown else forms[:1])
        code = 1 if "--newest" in words and not newest else 0
        words = [*words, "--isolation", isolation.value, *target]
        if self.chance.random() < 0.5:
            assert self.run(*words, code=code) == lines(wanted), words
        else:
            assert rows(self.run(*words, "--json", code=code)) == bare(wanted), words

    def topic_command(self, name: str) -> None:
        isolation = self.chance.choice([*Isolation])
        words = ["cat", *self.log_dirs, topic_of(name), "--isolation", isolation.value]
        assert self.run(*words) == lines(merged(self.topic(name), isolation))

    def consume(self, name: str) -> None:
        """A member of the group takes what the group has not taken, and commits it."""
        isolation, model = self.chance.choice([*Isolation]), self.models[name]
        stable = model.transactions()[1]
        end = stable if isolation is COMMITTED else model.end
        # A group goes on at the end of a log that was truncated, and tells which records have left the log.
        begin = min(self.commits.get((GROUP, name), model.start), model.end)
        wanted = [each for each in model.shown(isolation) if each.offset >= begin]
        code = 1 if begin < model.start < end else 0
        words = ["consume", "-g", GROUP, "--idle-exit", 0, "--isolation", isolation.value]
        if not self.mounted:
            # A member without a mount needs the log directories for its commits.
            self.store.close()
        # All log directories: the commits of a group may be in another one than the log.
        printed = self.run(*words, "--json", *self.log_dirs, name, code=code)
        assert rows(printed) == bare(wanted), (begin, model.start, end, model.end)
        if not self.mounted:
            self.store = self.open()
        self.commits[GROUP, name] = end if end > max(begin, model.start) else begin
        with Store(self.log_dirs, read_only=True) as store:
            committed = store.groups.committed(GROUP, name)
        assert committed is not None
        assert committed.offset == self.commits[GROUP, name]

    def bucket_alone(self, name: str) -> None:
        while (end := self.bucket_end()) > self.models[TIERED].start:
            printed = self.run("cat", f"file://{self.bucket}/{TIERED}", "-F", "%o\\n")
            # Again, if the mount has copied a segment meanwhile.
            if self.bucket_end() == end:
                self.check_bucket([*map(int, printed.split())], end)
                return

    def copy(self, name: str) -> None:
        """A copy beside the original shows the same and can be written; nothing of it is seen in the original."""
        isolation = self.chance.choice([*Isolation])
        there = self.root / "copy"
        copies = [there / path.name for path in self.log_dirs]
        wait_for(lambda: self.copy_to(there))
        home = there / self.home(name).name / name
        words = ["cat", "--isolation", isolation.value]
        assert self.run(*words, *copies, name) == self.models[name].text(isolation)
        self.run("append", "--jsonl", home, stdin=envelope(self.records()[0]))
        with Store(copies) as store:
            store.retain()
            assert store[name].log_end_offset == self.models[name].end + 1
        self.run("check", *copies)
        shutil.rmtree(there)

    def copy_to(self, there: Path) -> bool:
        """Copy the log directories, once the mount has loaded all logs. Return False if a file went meanwhile."""
        status = self.writing.path / ".logfs/status.json"
        if self.mounted and json.loads(status.read_text())["unloaded"]:
            return False
        shutil.rmtree(there, ignore_errors=True)
        try:
            for path in self.log_dirs:
                shutil.copytree(path, there / path.name)
        except (shutil.Error, FileNotFoundError):
            return False
        return True

    def audit(self, name: str) -> None:
        self.run("check", *self.log_dirs)


CHANGES: Changes = {
    "append": (LOGS, Mounted.append, Mounted.append_by_mount),
    "send": (LOGS, Mounted.send, None),
    "end": (LOGS, Mounted.end, None),
    "commit": (LOGS, Mounted.commit, Mounted.commit_by_mount),
    "roll": (LOGS, Mounted.roll, Mounted.roll_by_mount),
    "flush": (LOGS, Mounted.flush, Mounted.flush_by_mount),
    "truncate": (LOGS, Mounted.truncate, None),
    "delete-records": (
        (PLAIN, OTHER, TIERED),
        Mounted.delete_records,
        Mounted.delete_records_by_mount,
    ),
    "retain": ((PLAIN, OTHER, TIERED), Mounted.retain, Mounted.retain_by_mount),
    "compact": ((COMPACTED,), Mounted.compact, Mounted.compact_by_mount),
    "tier": ((TIERED,), Mounted.tier, Mounted.tier_by_mount),
    "move": (LOGS, Mounted.move, Mounted.move_by_mount),
    "set": (LOGS, Mounted.set, Mounted.set_by_mount),
    "commit-offset": (LOGS, Mounted.commit_offset, Mounted.commit_offset_by_mount),
    "forget-offset": (LOGS, Mounted.forget_offset, Mounted.forget_offset_by_mount),
    "recreate": (LOGS, Mounted.recreate, Mounted.recreate_by_mount),
    "chmod": (LOGS, None, Mounted.chmod_by_mount),
    "reopen": (LOGS, Mounted.reopen, Mounted.reopen_by_mount),
    "kill": (LOGS, Mounted.kill, Mounted.kill_by_mount),
    "restore": (LOGS, Mounted.restore, None),
    "follow-again": (LOGS, Mounted.follow_again, Mounted.follow_again),
    "switch": (LOGS, Mounted.switch, Mounted.switch),
}
OBSERVERS: dict[str, Deed] = {
    "writer": Mounted.writer,
    "read-only": Mounted.read_only,
    "read-committed": Mounted.read_committed,
    "tail": Mounted.tail,
    "follower": Mounted.remote_follower,
    "splits": Mounted.splits,
    "cold": Mounted.cold,
    "command": Mounted.command,
    "topic": Mounted.topic_command,
    "consume": Mounted.consume,
    "bucket-alone": Mounted.bucket_alone,
    "copy": Mounted.copy,
    "check": Mounted.audit,
}
WEIGHTS = {
    "append": 8,
    "send": 4,
    "end": 3,
    "recreate": 0.7,
    "restore": 0.7,
    "retain": 1.5,
    "compact": 1.5,
    "chmod": 2,
    "switch": 2,
}
pairs = Pairs(CHANGES, OBSERVERS)


@pytest.fixture(scope="module", autouse=True)
def table() -> Iterator[None]:
    """Print how often each pair was met."""
    yield
    pairs.print()


@pytest.mark.parametrize("run", range(RUNS))
def test_every_mount_and_command_agrees_with_the_model(spawner: Spawner, run: int) -> None:
    """After any changes by mounts, commands and Python, every observer sees the records of the model."""
    need_fuse()
    seed = SEED * 1000 + run
    print(f"LOGFS_EVERYTHING_SEED={SEED}, run {run}")
    with tempfile.TemporaryDirectory(dir=fast_directory()) as root:
        world = Mounted(spawner, Path(root), seed)
        try:
            world.start()
            world.to_mount()
            drive(world, STEPS, CHANGES, WEIGHTS, OBSERVERS, pairs)
            world.close()
        except BaseException:
            for shown in (world.writing, *world.following):
                print(f"{shown.path.name}:", shown.daemon.child.output[-2000:])
                with suppress(OSError):
                    print((shown.path / ".logfs/errors").read_text()[-2000:])
            raise
        finally:
            world.release()
