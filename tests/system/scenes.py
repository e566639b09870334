"""Scenes: log directories in many states, made from a seed, on which commands are killed.

`build` runs in a process of its own, which may end by SIGKILL, so that the directory is as a dead process left it.
The acknowledged records are written to a ledger beside it.
"""

from __future__ import annotations

import os
import pickle
import random
import signal
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from logfs.format.batches.batch import HEADER_SIZE, seal
from logfs.format.batches.record import Record, encode_record
from logfs.store.store import Store

if TYPE_CHECKING:
    from logfs.log.append.partition import Partition
    from tests.support.spawner import Spawner

NAMES = ("plain-0", "keys-0", "txn-0")
# The timestamps of a scene are around `_NEW_MS` or, where retention by time must drop the records, `_OLD_MS`.
_OLD_MS = 1_600_000_000_000
_NEW_MS = 1_700_000_000_000
_BETWEEN_MS = 1_650_000_000_000

# One record: timestamp, key, value.
Content = tuple[int, bytes | None, bytes | None]


@dataclass
class Ledger:
    """The acknowledged records of each partition by offset, and its log end offset."""

    records: dict[str, dict[int, Content]] = field(default_factory=dict)
    ends: dict[str, int] = field(default_factory=dict)
    description: str = ""


def log_dirs(root: Path) -> list[Path]:
    """Return the two log directories of a scene. The second is empty, for moves."""
    return [root / "log", root / "other"]


def make_scene(spawner: Spawner, work: Path, seed: int) -> None:
    """Make a scene in `work/scene` in another process."""
    work.mkdir()
    child = spawner.call("tests.system.scenes:build", work / "scene", seed)
    code = child.wait(60)
    output = child.output
    child.close()
    assert code in (0, -signal.SIGKILL), output


def read_ledger(root: Path) -> Ledger:
    """Return the ledger of a scene."""
    found = pickle.loads((root / "ledger").read_bytes())
    assert isinstance(found, Ledger)
    return found


def build(root: str, seed: int) -> None:
    """Make the scene of a seed. This process may end by SIGKILL."""
    _Builder(Path(root), seed).run()


class _Builder:
    def __init__(self, root: Path, seed: int) -> None:
        self.root = root
        self.random = random.Random(seed)
        self.ledger = Ledger()
        self.ending = self.random.choice(("closed", "killed", "killed", "flushed", "reopened"))
        self.appends = self.random.choice((0, 5, 15, 30, 30, 60))
        self.number = 0
        self.time_ms = _NEW_MS
        self.sequences: dict[int, int] = {}
        self.open: set[int] = set()

    def run(self) -> None:
        """Fill the partitions, and end in the way that the seed gives."""
        for path in log_dirs(self.root):
            path.mkdir(parents=True)
        store = self._fill(Store(log_dirs(self.root)[0]))
        if self.ending == "reopened":
            # Closed cleanly, opened again, and killed after a few appends.
            store.close()
            store = Store(log_dirs(self.root)[0])
            for name in NAMES:
                for _ in range(self.random.randrange(4)):
                    self._append(store[name])
        if self.ending == "flushed":
            for name in NAMES:
                if self.random.random() < 0.7:
                    store[name].flush()
            store.checkpoints.write()
        if self.ending == "closed":
            store.close()
        for name in NAMES:
            self.ledger.ends[name] = store[name].log_end_offset
        (self.root / "ledger").write_bytes(pickle.dumps(self.ledger))
        if self.ending != "closed":
            os.kill(os.getpid(), signal.SIGKILL)

    def _fill(self, store: Store) -> Store:
        told = [self.ending]
        for name in NAMES:
            settings = self._settings(name)
            for setting, value in settings.items():
                store.settings.set_topic(name.rpartition("-")[0], setting, value)
            partition = store.create(name)
            self.ledger.records[name] = {}
            told.append(f"{name}: {settings}")
            is_old = self.random.random() < 0.5
            at = {self.random.randrange(self.appends + 1) for _ in range(2)}
            for number in range(self.appends):
                base = _OLD_MS if is_old and number < self.appends // 2 else _NEW_MS
                self.time_ms = base + number * 1000
                self._append(partition)
                if self.random.random() < 0.05:
                    partition.roll(store.clock())
                if self.random.random() < 0.05:
                    partition.flush()
                if name == "keys-0" and number in at:
                    store.compact(name, roll=self.random.random() < 0.5)
            if self.random.random() < 0.2 and partition.active.size_bytes:
                partition.roll(store.clock())
            if self.random.random() < 0.3:
                store.settings.set_topic(
                    name.rpartition("-")[0], "retention.bytes", str(partition.size_bytes // 2)
                )
        self.ledger.description = "; ".join(told)
        return store

    def _settings(self, name: str) -> dict[str, str]:
        choose = self.random.choice
        retention = int(time.time() * 1000) - _BETWEEN_MS
        return {
            "segment.bytes": str(choose((1000, 2000, 5000, 20000))),
            "segment.index.bytes": str(choose((120, 1024, 65536))),
            "index.interval.bytes": str(choose((0, 100, 400))),
            "preallocate": choose(("true", "false", "false")),
            "compression.type": choose(("producer", "producer", "zstd", "lz4")),
            "cleanup.policy": "compact" if name == "keys-0" else "delete",
            # Only a command that asks for it compacts a log.
            "min.cleanable.dirty.ratio": "1",
            "retention.ms": str(choose((-1, retention))),
            "file.delete.delay.ms": str(choose((0, 60000))),
        }

    def _append(self, partition: Partition) -> None:
        if partition.topic == "txn" and self.random.random() < 0.7:
            self._append_transactional(partition)
            return
        records = []
        for _ in range(self.random.choice((1, 1, 2, 5, 9))):
            key = b"key %d" % self.random.randrange(20) if partition.topic == "keys" else None
            value: bytes | None = self._value()
            if key is not None and self.random.random() < 0.1:
                value = None
            records.append(Record(value, key, [], self._time()))
        first = partition.append(records)
        for number, record in enumerate(records):
            self._note(partition, first + number, record)

    def _append_transactional(self, partition: Partition) -> None:
        producer = self.random.randrange(1, 4)
        if producer in self.open and self.random.random() < 0.4:
            partition.end_transaction(producer, 0, commit=self.random.random() < 0.6)
            self.open.discard(producer)
            return
        is_transaction = producer != 3
        count = self.random.randrange(1, 4)
        now_ms = self._time()
        records = [Record(self._value(), None, [], now_ms) for _ in range(count)]
        sequence = self.sequences.get(producer, 0)
        data = bytearray(HEADER_SIZE)
        for delta, record in enumerate(records):
            data += encode_record(record, offset_delta=delta, timestamp_delta=0)
        seal(
            data,
            attributes=0x10 if is_transaction else 0,
            last_offset_delta=count - 1,
            base_timestamp=now_ms,
            max_timestamp=now_ms,
            record_count=count,
            producer_id=producer,
            producer_epoch=0,
            base_sequence=sequence,
        )
        done = partition.append_batch(bytes(data))
        self.sequences[producer] = sequence + count
        if is_transaction:
            self.open.add(producer)
        for number, record in enumerate(records):
            self._note(partition, done.first_offset + number, record)

    def _note(self, partition: Partition, offset: int, record: Record) -> None:
        assert record.timestamp is not None
        content = (record.timestamp, record.key, record.value)
        self.ledger.records[partition.name.directory][offset] = content

    def _value(self) -> bytes:
        self.number += 1
        return b"value %d " % self.number + b"." * self.random.choice((0, 20, 60, 200))

    def _time(self) -> int:
        """Return a timestamp. Most are in order."""
        jitter = self.random.randrange(-5000, 5000) if self.random.random() < 0.2 else 0
        self.time_ms += 10
        return self.time_ms + jitter
