"""Random appends, tombstones, transactions, deletions, rolls and clean passes, compared with a dict."""

from __future__ import annotations

import random
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from logfs.format.batches.record import Record
from logfs.format.text.rendering import View
from logfs.store.store import Store
from tests.support.batches import Producer
from tests.support.crashdisk import fast_directory
from tests.support.partitions import by_splits
from tests.support.stores import Clock, assert_clean

if TYPE_CHECKING:
    from logfs.log.append.partition import Partition

NAME = "orders-0"
DAY = 86_400_000
CODECS = ("uncompressed", "gzip", "lz4", "zstd", "snappy")


class Machine:
    """A compacted log, and a model of its records.

    `sent` maps offsets to (key, value), for all records that are neither aborted nor in an open transaction. The log
    must have the newest of them for each key, unless it is a tombstone. It may have the others at and above the
    cleaner offset, and nothing else.
    """

    def __init__(self, log_dir: Path, seed: int) -> None:
        self.random = random.Random(seed)
        self.clock = Clock()
        self.log_dir = log_dir
        self.store = Store(log_dir, clock=self.clock)
        for name, value in (
            ("cleanup.policy", "compact,delete"),
            ("segment.bytes", "3000"),
            ("index.interval.bytes", "200"),
            ("segment.index.bytes", "1200"),
            ("retention.ms", "-1"),
            ("min.cleanable.dirty.ratio", "0.0"),
        ):
            self.store.settings.set_topic("orders", name, value)
        self.store.create(NAME)
        self.sent: dict[int, tuple[bytes, bytes | None]] = {}
        self.aborted: set[int] = set()
        self.producers = {1: 0, 2: 0, 3: 0}
        self.open: dict[int, dict[int, tuple[bytes, bytes | None]]] = {}

    @property
    def log(self) -> Partition:
        return self.store[NAME]

    def key(self) -> bytes:
        return b"k%d" % self.random.randrange(12)

    def pairs(self, most: int) -> list[tuple[bytes, bytes | None]]:
        """Return some keys and values, some of which are null."""
        pairs = []
        for _ in range(self.random.randrange(1, most)):
            null = self.random.random() < 0.15
            value = None if null else b"%d" % self.random.randrange(10**6)
            pairs.append((self.key(), value))
        return pairs

    def append(self) -> None:
        pairs = self.pairs(12)
        first = self.log.append([Record(value, key) for key, value in pairs])
        self.sent.update(enumerate(pairs, start=first))

    def transact(self) -> None:
        number = self.random.choice([1, 2, 3])
        producer = Producer(self.log, number)
        producer.sequence = self.producers[number]
        if number in self.open and self.random.random() < 0.5:
            commit = self.random.random() < 0.5
            producer.end(commit=commit)
            records = self.open.pop(number)
            if commit:
                self.sent.update(records)
            else:
                self.aborted.update(records)
            return
        pairs = self.pairs(4)
        first = producer.send_records([Record(value, key) for key, value in pairs])
        self.producers[number] = producer.sequence
        self.open.setdefault(number, {}).update(enumerate(pairs, start=first))

    def roll(self) -> None:
        self.log.roll(self.clock())

    def wait(self) -> None:
        self.clock.now_ms += self.random.choice([1, 1000, DAY // 2, DAY])

    def codec(self) -> None:
        self.store.settings.set_topic("orders", "compression.type", self.random.choice(CODECS))

    def compact(self) -> None:
        self.store.compact(NAME, roll=self.random.random() < 0.5)

    def upkeep(self) -> None:
        self.store.upkeep()

    def delete(self) -> None:
        start, end = self.log.log_start_offset, self.log.last_stable_offset
        if end > start:
            self.store.delete_records(NAME, start + self.random.randrange((end - start) // 4 + 1))
            self.store.retain()

    def reopen(self) -> None:
        if self.random.random() < 0.5:
            self.store.close()
        else:
            self.log.flush()
            for home in self.store.log_dirs:
                home.close()
        self.store = Store(self.log_dir, clock=self.clock)

    def check(self) -> None:
        log = self.log
        shown = {record.offset: (record.key, record.value) for record in log.committed.read()}
        pieces = by_splits(log.committed, self.random.choice([1, 300, 1 << 20]))
        assert {record.offset: (record.key, record.value) for record in pieces} == shown
        start, stable = log.log_start_offset, log.last_stable_offset
        for offset, pair in shown.items():
            assert self.sent.get(offset) == pair
        newest: dict[bytes, int] = {}
        for offset in sorted(self.sent):
            if offset < stable:
                newest[self.sent[offset][0]] = offset
        for offset in newest.values():
            if offset >= start and self.sent[offset][1] is not None:
                assert offset in shown, f"offset {offset}, the newest of its key, is gone"
        # Below the cleaner offset, a round has removed all but the newest record of each key.
        cleaned = self.store.checkpoints.cleaner_offset(NAME) or 0
        newest_cleaned = {self.sent[o][0]: o for o in sorted(self.sent) if o < cleaned}
        for offset in shown:
            if offset < cleaned:
                assert newest_cleaned[shown[offset][0] or b""] == offset
        # The last value of a key that a reader of the whole log sees is the newest one.
        final: dict[bytes, bytes | None] = {}
        for offset in sorted(shown):
            final[shown[offset][0]] = shown[offset][1]
        expected = {key: self.sent[o][1] for key, o in newest.items() if o >= start}
        for key, value in final.items():
            assert expected.get(key) == value
        every = {record.offset: record.value for record in log.read()}
        hidden = {offset for offset in every if offset < stable} - set(shown)
        assert hidden <= self.aborted | {o for r in self.open.values() for o in r}
        text = log.text(View.LINES)
        lines = b"".join((every[offset] or b"") + b"\n" for offset in sorted(every))
        assert text.read(0, len(lines) + 1) == lines
        assert text.size == len(lines)
        some = self.random.sample(
            range(start, log.log_end_offset), min(20, log.log_end_offset - start)
        )
        for offset in some:
            record = log.record(offset)
            assert (None if record is None else record.value) == every.get(offset)


STEPS = (
    *["append"] * 8,
    *["transact"] * 6,
    *["roll"] * 2,
    "wait",
    "codec",
    *["compact"] * 3,
    "upkeep",
    "delete",
    "reopen",
)


@pytest.mark.drawn(5)
@pytest.mark.parametrize("seed", range(60))
def test_random_operations_agree_with_a_dict(seed: int) -> None:
    """Each key has its newest value, no aborted or overwritten value reappears, and the audit finds no error."""
    with tempfile.TemporaryDirectory(dir=fast_directory()) as root:
        machine = Machine(Path(root) / "log", seed)
        for _ in range(150):
            step = machine.random.choice(STEPS)
            getattr(machine, step)()
            if step in ("compact", "upkeep", "delete", "reopen"):
                machine.check()
        machine.check()
        machine.store.close()
        assert_clean(machine.log_dir)
