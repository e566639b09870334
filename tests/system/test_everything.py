"""One model of everything, in one process: random changes of a store, and every observer beside it.

The machine has four logs: two of a plain topic, one compacted, one tiered. It changes them in every way that a store
offers. After each change it asks observers for the records, which must be those of the model. `scripts/crash -k
everything` runs it for long, and prints which pairs of changes, and of a change and an observer, were met.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from contextlib import redirect_stdout
from io import BytesIO, TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from logfs.cli import main
from logfs.errors import OffsetOutOfRange
from logfs.format.text.rendering import View
from logfs.log.read.merged_text import MergedText
from logfs.log.read.read_committed import Isolation
from logfs.store.store import Store
from tests.support.crashdisk import fast_directory
from tests.support.examples import seed_of
from tests.support.partitions import by_splits
from tests.support.stores import Clock, errors_of
from tests.system.everything import (
    COMPACTED,
    GROUP,
    LOGS,
    OTHER,
    PLAIN,
    TIERED,
    Changes,
    Deed,
    Logs,
    drive,
    topic_of,
)
from tests.system.log_model import COMMITTED, UNCOMMITTED, Pairs, check_reader, lines, merged

if TYPE_CHECKING:
    from collections.abc import Iterator

    from logfs.log.read.read_committed import Text
    from logfs.log.read.reader import Reader

STEPS = int(os.environ.get("LOGFS_EVERYTHING_STEPS", "150"))
SEED = seed_of("LOGFS_EVERYTHING_SEED")
RUNS = int(os.environ.get("LOGFS_EVERYTHING_RUNS", "2"))


class Everything(Logs):
    """A store with four logs, a read-only one beside it, and texts that stay open."""

    nulls = 0.15

    def __init__(self, root: Path, seed: int) -> None:
        self.still = Clock()
        super().__init__(root, seed, self.still)
        self.texts: list[tuple[Reader, str, Text, int, int]] = []
        # The open texts of topics, each with what was read of it.
        self.merged_texts: list[tuple[str, MergedText, bytes]] = []
        self.beside = Store(self.log_dirs, read_only=True, clock=self.clock)

    def close(self) -> None:
        self.beside.close()
        self.store.close()
        assert errors_of(self.log_dirs) == []

    # Changes that concern what is open.

    def truncate(self, name: str) -> None:
        super().truncate(name)
        self.texts = [each for each in self.texts if each[1] != name]
        for number, (topic, opened, known) in enumerate(self.merged_texts):
            # Sometimes look at a text between the truncation and the next append, sometimes only later.
            if topic == topic_of(name) and self.chance.random() < 0.5:
                read = self._read_merged(opened, known)
                # The text may have grown by records that the next truncation cuts off.
                self.merged_texts[number] = topic, opened, known if read is None else read

    def _read_merged(self, opened: MergedText, known: bytes) -> bytes | None:
        """Return what an open text of a topic has now; None if a record that was read of it was cut off."""
        try:
            read = opened.read(0, 1 << 22)
        except OffsetOutOfRange:
            assert opened.size == len(known)
            return None
        assert (len(read), read[: len(known)]) == (opened.size, known)
        return read

    def recreate(self, name: str) -> None:
        super().recreate(name)
        self.forget_texts(name)

    def undelete(self, name: str) -> None:
        super().undelete(name)
        self.forget_texts()

    def forget_texts(self, name: str = "") -> None:
        """Close the texts of a log and of its topic, by default all."""
        self.texts = [each for each in self.texts if name and each[1] != name]
        self.merged_texts = [
            each for each in self.merged_texts if name and each[0] != topic_of(name)
        ]

    def upkeep(self, name: str) -> None:
        self.still.now_ms += 600_000
        super().upkeep(name)

    def reopen(self, name: str) -> None:
        super().reopen(name)
        self.forget_texts()

    def alone(self, name: str) -> None:
        self.still.now_ms += 600_000
        super().alone(name)
        self.forget_texts()

    def kill(self, name: str) -> None:
        super().kill(name)
        self.forget_texts()

    def restore(self, name: str) -> None:
        super().restore(name)
        self.forget_texts()
        self.beside.close()
        self.beside = Store(self.log_dirs, read_only=True, clock=self.clock)

    # Observers: each compares all that it sees of a log.

    def _check(self, store: Store, name: str) -> None:
        isolation = self.chance.choice([*Isolation])
        check_reader(store[name].isolated(isolation), self.models[name], isolation, self.chance)

    def writer(self, name: str) -> None:
        self._check(self.store, name)

    def follower(self, name: str) -> None:
        self.beside.refresh()
        self._check(self.beside, name)

    def open_text(self, name: str) -> None:
        """Texts that stay open are whole and grow; the part that was read before does not change."""
        isolation = self.chance.choice([*Isolation])
        model, log = self.models[name], self.log(name)
        if len(self.texts) < 6:
            reader = log.isolated(isolation)
            self.texts.append((reader, name, reader.text(View.LINES), model.start, log.generation))
        for reader, its_name, text, start, generation in self.texts:
            its = self.models[its_name]
            if reader.generation != generation or its.start != start:
                # After a deletion or compaction a text keeps what it has shown.
                continue
            wanted = its.text(UNCOMMITTED if reader is reader.log else COMMITTED)
            at = self.chance.randrange(len(wanted) + 1)
            assert text.size == len(wanted)
            assert text.read(at, 1 << 20) == wanted[at:]

    def merged(self, name: str) -> None:
        """A new text of a topic is a sort by time. One that stays open keeps what was read of it, and grows."""
        isolation = self.chance.choice([*Isolation])
        names = [each for each in LOGS if topic_of(each) == topic_of(name)]
        wanted = lines(merged(self.topic(name), isolation))
        text = MergedText([self.log(each).isolated(isolation) for each in names], View.LINES)
        assert (text.size, text.read(0, 1 << 20)) == (len(wanted), wanted)
        read = [
            (topic, opened, self._read_merged(opened, known))
            for topic, opened, known in self.merged_texts
        ]
        whole = [(topic, opened, known) for topic, opened, known in read if known is not None]
        self.merged_texts = [*whole[-3:], (topic_of(name), text, wanted)]

    def splits(self, name: str) -> None:
        isolation = self.chance.choice([*Isolation])
        store = self.chance.choice([self.store, self.beside])
        store.refresh()
        found = by_splits(store[name].isolated(isolation), self.chance.choice([200, 1 << 20]))
        expected = [each.offset for each in self.models[name].shown(isolation)]
        assert [record.offset for record in found] == expected

    def command(self, name: str) -> None:
        isolation = self.chance.choice([*Isolation])
        output = TextIOWrapper(BytesIO(), write_through=True)
        with redirect_stdout(output):
            assert main(["cat", str(self.home(name) / name), "--isolation", isolation.value]) == 0
        printed = output.buffer.getvalue()
        assert printed == self.models[name].text(isolation)

    def bucket_alone(self, name: str) -> None:
        """What is only in the bucket is a part of the log."""
        end = self.bucket_end()
        if end > self.models[TIERED].start:
            with Store(f"file://{self.bucket}", read_only=True, clock=self.clock) as store:
                found = [record.offset for record in store[TIERED].read()]
            self.check_bucket(found, end)

    def copy(self, name: str) -> None:
        """A copy of the log directories shows the same, and changes nothing of the original."""
        self.store.close()
        there = self.root / "copy"
        copies = [shutil.copytree(path, there / path.name) for path in self.log_dirs]
        with Store(copies, read_only=True, clock=self.clock) as store:
            self._check(store, name)
        with Store(copies, clock=self.clock) as store:
            store.retain()
            self._check(store, name)
        shutil.rmtree(there)
        self.store = self.open()
        self.forget_texts()
        for other in LOGS:
            check_reader(self.log(other), self.models[other], UNCOMMITTED, self.chance)

    def status(self, name: str) -> None:
        model, log = self.models[name], self.log(name)
        assert log.state[1:4] == (model.start, model.end, model.transactions()[1])
        found = self.store.groups.committed(GROUP, name)
        assert (found and found.offset) == self.commits.get((GROUP, name))


CHANGES: Changes = {
    "append": (LOGS, Everything.append, None),
    "send": (LOGS, Everything.send, None),
    "end": (LOGS, Everything.end, None),
    "commit": (LOGS, Everything.commit, None),
    "roll": (LOGS, Everything.roll, None),
    "flush": (LOGS, Everything.flush, None),
    "truncate": (LOGS, Everything.truncate, None),
    "delete-records": ((PLAIN, OTHER, TIERED), Everything.delete_records, None),
    "retain": ((PLAIN, OTHER, TIERED), Everything.retain, None),
    "compact": ((COMPACTED,), Everything.compact, None),
    "tier": ((TIERED,), Everything.tier, None),
    "move": (LOGS, Everything.move, None),
    "set": (LOGS, Everything.set, None),
    "upkeep": (LOGS, Everything.upkeep, None),
    "commit-offset": (LOGS, Everything.commit_offset, None),
    "forget-offset": (LOGS, Everything.forget_offset, None),
    "recreate": (LOGS, Everything.recreate, None),
    "undelete": (LOGS, Everything.undelete, None),
    "reopen": (LOGS, Everything.reopen, None),
    "alone": (LOGS, Everything.alone, None),
    "kill": (LOGS, Everything.kill, None),
    "restore": (LOGS, Everything.restore, None),
}
OBSERVERS: dict[str, Deed] = {
    "writer": Everything.writer,
    "follower": Everything.follower,
    "cold": Everything.cold,
    "open-text": Everything.open_text,
    "merged": Everything.merged,
    "splits": Everything.splits,
    "command": Everything.command,
    "bucket-alone": Everything.bucket_alone,
    "copy": Everything.copy,
    "status": Everything.status,
    "audit": Everything.audit,
}
WEIGHTS = {"append": 6, "send": 5, "end": 4, "roll": 2, "recreate": 0.3}
# What opens stores takes far longer than the others.
WEIGHTS |= {"undelete": 0.3, "reopen": 0.3, "alone": 0.3, "kill": 0.3, "restore": 0.1}
RARE = {"copy": 0.03, "audit": 0.05, "bucket-alone": 0.1, "cold": 0.2, "command": 0.2}
pairs = Pairs(CHANGES, OBSERVERS)


@pytest.fixture(scope="module", autouse=True)
def table() -> Iterator[None]:
    """Print how often each pair was met."""
    yield
    pairs.print()


@pytest.mark.parametrize("run", range(RUNS))
def test_every_observer_agrees_with_the_model(run: int) -> None:
    """After any changes in any order, every observer sees the records of the model."""
    print(f"LOGFS_EVERYTHING_SEED={SEED}, run {run}")
    with tempfile.TemporaryDirectory(dir=fast_directory()) as root:
        world = Everything(Path(root), SEED * 1000 + run)
        drive(world, STEPS, CHANGES, WEIGHTS, OBSERVERS, pairs, RARE)
        world.close()
