"""One model of everything: random changes of a store, and every observer beside it, against lists of records.

The machine has three logs: one plain, one compacted, one tiered. It changes them in every way that a store offers.
After each change it asks observers for the records, which must be those of the model. `scripts/crash -k everything`
runs it for long, and prints which pairs of changes, and of a change and an observer, were met.
"""

from __future__ import annotations

import os
import random
import shutil
import tempfile
from collections import Counter
from contextlib import redirect_stdout
from copy import deepcopy
from io import BytesIO, TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest

from logfs.cli import main
from logfs.errors import LogfsError
from logfs.format.batches.record import Record
from logfs.format.text.rendering import View
from logfs.log.read.merged_text import MergedText
from logfs.log.read.read_committed import Isolation
from logfs.store.store import Store
from tests.support.batches import Producer
from tests.support.crashdisk import fast_directory
from tests.support.partitions import by_splits
from tests.support.stores import Clock, abandon, errors_of, set_topic

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from logfs.log.append.partition import Partition
    from logfs.log.read.reader import Reader
    from logfs.log.read.text_view import Text

STEPS = int(os.environ.get("LOGFS_EVERYTHING_STEPS", "150"))
SEED = int(os.environ.get("LOGFS_EVERYTHING_SEED", "0"))
RUNS = int(os.environ.get("LOGFS_EVERYTHING_RUNS", "4"))
PLAIN, COMPACTED, TIERED = "plain-0", "compacted-0", "tiered-0"
PRODUCERS = (1, 2, 3)
CODECS = ("uncompressed", "gzip", "lz4", "zstd", "snappy", "producer")

# How often a change was followed by another, and how often an observer looked after a change.
pairs: Counter[tuple[str, str]] = Counter()
looks: Counter[tuple[str, str]] = Counter()


class Sent(NamedTuple):
    """A record of a log. `producer` is the id of the producer whose transaction it belongs to, or 0."""

    offset: int
    key: bytes
    value: bytes
    timestamp: int
    producer: int


class Model:
    """What a log must have: its records, the markers of its transactions, and its two ends."""

    def __init__(self) -> None:
        self.start = self.end = 0
        self.records: dict[int, Sent] = {}
        # The markers in order: producer id, offset, whether it commits.
        self.markers: list[tuple[int, int, bool]] = []
        # The offset below which compaction may have dropped records.
        self.cleaned = 0

    def transactions(self) -> tuple[set[int], int]:
        """Return the offsets of aborted records, and the last stable offset."""
        aborted: set[int] = set()
        unstable = self.end
        for producer in PRODUCERS:
            own = [each.offset for each in self.records.values() if each.producer == producer]
            before = -1
            for number, marker, commit in self.markers:
                if number == producer:
                    inside = [offset for offset in own if before < offset < marker]
                    aborted.update(() if commit else inside)
                    before = marker
            unstable = min([unstable, *(offset for offset in own if offset > before)])
        return aborted, max(unstable, self.start)

    def begins_within_transactions(self) -> bool:
        """Whether records of an open transaction lie below the log start: an opening forgets these."""
        start, self.start = self.start, 0
        unstable = self.transactions()[1]
        self.start = start
        return unstable < start

    def shown(self, isolation: Isolation) -> list[Sent]:
        """Return the records that readers of an isolation level see, in order."""
        found = sorted(each for each in self.records.values() if each.offset >= self.start)
        if isolation is Isolation.READ_UNCOMMITTED:
            return found
        aborted, stable = self.transactions()
        return [each for each in found if each.offset < stable and each.offset not in aborted]

    def cut(self, end: int) -> None:
        """Drop everything from an offset on."""
        self.end, self.start = end, min(self.start, end)
        self.records = {offset: each for offset, each in self.records.items() if offset < end}
        self.markers = [marker for marker in self.markers if marker[1] < end]

    def compact(self, left: set[int], bound: int) -> None:
        """Drop the records that compaction has removed; `left` has those that it has left below an offset."""
        aborted, stable = self.transactions()
        self.cleaned = max(self.cleaned, min(bound, stable))
        newest: dict[bytes, int] = {}
        for each in sorted(self.records.values()):
            if each.offset < min(stable, bound) and each.offset not in aborted:
                newest[each.key] = each.offset
        kept = {offset for offset in self.records if offset >= bound or offset >= stable}
        wanted = {offset for offset in kept | set(newest.values()) if offset >= self.start}
        assert wanted <= left <= set(self.records), (wanted - left, left - set(self.records))
        self.records = {offset: each for offset, each in self.records.items() if offset in left}


class Everything:
    """A store with three logs in two log directories and a bucket, and the model of each log."""

    def __init__(self, root: Path, seed: int) -> None:
        self.chance = random.Random(seed)
        self.clock = Clock()
        self.root = root
        self.log_dirs = [root / "one", root / "two"]
        self.bucket = root / "bucket"
        self.bucket.mkdir()
        self.models = {name: Model() for name in (PLAIN, COMPACTED, TIERED)}
        self.sent = 0
        self.texts: list[tuple[Reader, str, Text, int, int]] = []
        self.commits: dict[str, int] = {}
        self.store = self._open()
        self.store.settings.set_broker("remote.storage.url", f"file://{self.bucket}")
        common = {
            "segment_bytes": 1500,
            "max_message_bytes": 1000,
            "index_interval_bytes": 100,
            "file_delete_delay_ms": 0,
            "retention_ms": -1,
        }
        set_topic(self.store, "plain", **common)
        set_topic(self.store, "compacted", cleanup_policy="compact", **common)
        set_topic(
            self.store, "tiered", remote_storage_enable="true", local_retention_bytes=1, **common
        )
        for name in self.models:
            self.store.create(name)
        self.beside = Store(self.log_dirs, read_only=True, clock=self.clock)

    def _open(self, *, recover: bool = False) -> Store:
        return Store(self.log_dirs, clock=self.clock, recover=recover)

    def close(self) -> None:
        self.beside.close()
        self.store.close()
        assert errors_of(self.log_dirs) == []

    def log(self, name: str) -> Partition:
        return self.store[name]

    # Changes.

    def _value(self) -> tuple[bytes, bytes]:
        self.sent += 1
        return b"k%d" % self.chance.randrange(12), b"value %d" % self.sent

    def append(self, name: str) -> None:
        model = self.models[name]
        records = []
        for _ in range(self.chance.randrange(1, 9)):
            key, value = self._value()
            time = self.clock() - self.chance.randrange(5000)
            records.append(Record(value, key, timestamp=time))
        first = self.log(name).append(records)
        assert first == model.end
        for offset, record in enumerate(records, first):
            assert record.key is not None
            assert record.value is not None
            assert record.timestamp is not None
            model.records[offset] = Sent(offset, record.key, record.value, record.timestamp, 0)
        model.end = first + len(records)

    def send(self, name: str) -> None:
        model, number = self.models[name], self.chance.choice(PRODUCERS)
        keys = [f"k{self.chance.randrange(12)}" for _ in range(self.chance.randrange(1, 4))]
        producer = Producer(self.log(name), number)
        producer.sequence = self.log(name).producers[number].last_sequence + 1
        first = producer.send(*keys)
        for offset, key in enumerate(keys, first):
            value = f"{key} of {number}".encode()
            model.records[offset] = Sent(offset, key.encode(), value, self.clock(), number)
        model.end = first + len(keys)

    def end(self, name: str) -> None:
        model, number = self.models[name], self.chance.choice(PRODUCERS)
        commit = self.chance.random() < 0.5
        offset = self.log(name).end_transaction(number, 0, commit=commit)
        model.markers.append((number, offset, commit))
        model.end = offset + 1

    def roll(self, name: str) -> None:
        self.log(name).roll(self.clock())

    def flush(self, name: str) -> None:
        assert self.log(name).flush() == self.models[name].end

    def truncate(self, name: str) -> None:
        model = self.models[name]
        offset = self.chance.randrange(model.start, model.end + 1)
        after = deepcopy(model)
        after.cut(offset)
        if after.begins_within_transactions() or offset < model.cleaned:
            # The log may have forgotten, or compacted, the beginning of a transaction that is open again.
            return
        self.store.truncate(name, offset)
        end = self.log(name).log_end_offset
        assert end <= max(offset, model.start)
        if self.log(name).state.truncations:
            self.texts = [each for each in self.texts if each[1] != name]
        model.cut(end)

    def delete_records(self, name: str) -> None:
        model = self.models[name]
        offset = self.chance.randrange(model.start, max(model.transactions()[1], model.start) + 1)
        self.store.delete_records(name, offset)
        model.start = max(model.start, offset)

    def retain(self, name: str) -> None:
        model = self.models[name]
        if model.transactions()[1] < model.end:
            return
        topic = name.removesuffix("-0")
        self.store.settings.set_topic(topic, "retention.bytes", "4000")
        try:
            self.store.retain([name])
        finally:
            self.store.settings.set_topic(topic, "retention.bytes", "-1")
        start = self.log(name).log_start_offset
        assert model.start <= start <= model.end
        assert start == model.start or start in {
            each.base_offset for each in self.log(name).segments
        }
        model.start = start

    def compact(self, name: str) -> None:
        roll = self.chance.random() < 0.5
        self.store.compact(name, roll=roll)
        log = self.log(name)
        left = {record.offset for record in log.read()}
        self.models[name].compact(left, log.active.base_offset)

    def tier(self, name: str) -> None:
        self.store.tier(name)
        if self.chance.random() < 0.7:
            self.store.retain([name])

    def move(self, name: str) -> None:
        home = self.store.homes[name].path
        self.store.move(name, next(path for path in self.log_dirs if path != home))

    def set(self, name: str) -> None:
        topic = name.removesuffix("-0")
        setting, values = self.chance.choice(
            [
                ("compression.type", CODECS),
                ("index.interval.bytes", ("50", "300")),
                ("segment.bytes", ("1200", "5000")),
                ("flush.messages", ("1", "1000")),
            ]
        )
        self.store.settings.set_topic(topic, setting, self.chance.choice(values))

    def upkeep(self, name: str) -> None:
        self.clock.now_ms += 600_000
        self.store.upkeep()
        log = self.log(COMPACTED)
        left = {record.offset for record in log.read()}
        self.models[COMPACTED].compact(left, log.active.base_offset)

    def commit_offset(self, name: str) -> None:
        model = self.models[name]
        offset = self.chance.randrange(model.start, model.end + 1)
        self.store.groups.commit("group", name, offset)
        self.commits[name] = offset

    def reopen(self, name: str) -> None:
        self.store.close()
        self.store = self._open(recover=self.chance.random() < 0.3)
        self.texts = [each for each in self.texts if each[0].disk is not self.log(name).disk]
        self.texts.clear()

    def kill(self, name: str) -> None:
        """Leave the store as a killed process does, and open it again; sometimes twice."""
        for _ in range(self.chance.randrange(1, 3)):
            abandon(self.store)
            self.store = self._open()
        self.texts.clear()

    # Observers: each compares all that it sees of a log.

    def _check_reader(self, reader: Reader, name: str, isolation: Isolation) -> None:
        model, chance = self.models[name], self.chance
        shown = model.shown(isolation)
        pairs = [(each.offset, each.value) for each in shown]
        kind = chance.randrange(7)
        if kind == 0:
            assert [(r.offset, r.value) for r in reader.read()] == pairs
        elif kind == 1:
            first = chance.randrange(model.start, model.end + 1)
            last = chance.randrange(first, model.end + 1)
            found = reader.columns(first, last)
            expected = [each.offset for each in shown if first <= each.offset < last]
            assert found.offsets.tolist() == expected
        elif kind == 2:
            wanted = b"".join(each.value + b"\n" for each in shown)
            text = reader.text(View.LINES)
            assert (text.size, text.read(0, 1 << 20)) == (len(wanted), wanted)
        elif kind == 3 and model.end > model.start:
            known = {each.offset: each.value for each in shown}
            offset = chance.randrange(model.start, model.end)
            if offset < reader.log_end_offset:
                record = reader.record(offset)
                assert (record.value if record else None) == known.get(offset)
        elif kind == 4:
            self._check_time(reader, shown)
        elif kind == 5:
            count = chance.randrange(6)
            at = reader.offset_of_last(count)
            last_ones = shown[-count:] if count else []
            assert [each.offset for each in shown if each.offset >= at] == [
                each.offset for each in last_ones
            ]
        else:
            newest = {each.key: each.value for each in shown}
            key = b"k%d" % chance.randrange(12)
            record = reader.newest(key)
            assert (record.value if record else None) == newest.get(key)

    def _check_time(self, reader: Reader, shown: list[Sent]) -> None:
        times = [each.timestamp for each in shown] or [self.clock()]
        time = self.chance.choice(times) + self.chance.randrange(-1, 2)
        found = reader.offset_for_time(time, shown=True)
        expected = [each.offset for each in shown if each.timestamp >= time]
        assert (found.offset if found else None) == (expected[0] if expected else None)

    def writer(self, name: str) -> None:
        isolation = self.chance.choice([*Isolation])
        self._check_reader(self.log(name).isolated(isolation), name, isolation)

    def follower(self, name: str) -> None:
        isolation = self.chance.choice([*Isolation])
        self.beside.refresh()
        self._check_reader(self.beside[name].isolated(isolation), name, isolation)

    def cold(self, name: str) -> None:
        isolation = self.chance.choice([*Isolation])
        with Store(self.log_dirs, read_only=True, clock=self.clock, lazy=True) as store:
            self._check_reader(store[name].isolated(isolation), name, isolation)

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
            level = Isolation.READ_UNCOMMITTED
            if reader is not reader.log:
                level = Isolation.READ_COMMITTED
            wanted = b"".join(each.value + b"\n" for each in its.shown(level))
            at = self.chance.randrange(len(wanted) + 1)
            assert text.size == len(wanted)
            assert text.read(at, 1 << 20) == wanted[at:]

    def merged(self, name: str) -> None:
        isolation = self.chance.choice([*Isolation])
        shown = self.models[name].shown(isolation)
        text = MergedText([self.log(name).isolated(isolation)], View.LINES)
        assert text.size == sum(len(each.value) + 1 for each in shown)
        assert text.read(0, 1 << 20) == b"".join(each.value + b"\n" for each in shown)

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
        target = str(self.store.homes[name].path / name)
        with redirect_stdout(output):
            assert main(["cat", target, "--isolation", isolation.value]) == 0
        shown = self.models[name].shown(isolation)
        printed = output.buffer.getvalue()  # type: ignore[attr-defined]
        assert printed == b"".join(each.value + b"\n" for each in shown)

    def bucket_alone(self, name: str) -> None:
        """What is only in the bucket is a part of the log."""
        copied = self.store.tiered.of(self.log(TIERED)) if name == TIERED else None
        if copied is None or copied.end_offset <= self.models[name].start:
            return
        shown = self.models[name].shown(Isolation.READ_UNCOMMITTED)
        with Store(f"file://{self.bucket}", read_only=True, clock=self.clock) as store:
            found = [record.offset for record in store[name].read()]
        first = found[0] if found else 0
        expected = [each.offset for each in shown if first <= each.offset < copied.end_offset]
        assert [offset for offset in found if offset >= self.models[name].start] == expected

    def copy(self, name: str) -> None:
        """A copy of the log directories shows the same, and changes nothing of the original."""
        isolation = self.chance.choice([*Isolation])
        self.store.close()
        there = self.root / "copy"
        copies = [shutil.copytree(path, there / path.name) for path in self.log_dirs]
        with Store(copies, read_only=True, clock=self.clock) as store:
            self._check_reader(store[name].isolated(isolation), name, isolation)
        with Store(copies, clock=self.clock) as store:
            store.retain()
            self._check_reader(store[name].isolated(isolation), name, isolation)
        shutil.rmtree(there)
        self.store = self._open()
        self.texts.clear()
        for other in self.models:
            self._check_reader(self.log(other), other, Isolation.READ_UNCOMMITTED)

    def status(self, name: str) -> None:
        model, log = self.models[name], self.log(name)
        assert log.state[1:4] == (model.start, model.end, model.transactions()[1])
        if name in self.commits:
            found = self.store.groups.committed("group", name)
            assert found is not None
            assert found.offset == self.commits[name]

    def audit(self, name: str) -> None:
        assert errors_of(self.log_dirs) == []


CHANGES: dict[str, tuple[Callable[[Everything, str], None], tuple[str, ...]]] = {
    "append": (Everything.append, (PLAIN, COMPACTED, TIERED)),
    "send": (Everything.send, (PLAIN, COMPACTED, TIERED)),
    "end": (Everything.end, (PLAIN, COMPACTED, TIERED)),
    "roll": (Everything.roll, (PLAIN, COMPACTED, TIERED)),
    "flush": (Everything.flush, (PLAIN, COMPACTED, TIERED)),
    "truncate": (Everything.truncate, (PLAIN, COMPACTED, TIERED)),
    "delete-records": (Everything.delete_records, (PLAIN, TIERED)),
    "retain": (Everything.retain, (PLAIN, TIERED)),
    "compact": (Everything.compact, (COMPACTED,)),
    "tier": (Everything.tier, (TIERED,)),
    "move": (Everything.move, (PLAIN, COMPACTED, TIERED)),
    "set": (Everything.set, (PLAIN, COMPACTED, TIERED)),
    "upkeep": (Everything.upkeep, (PLAIN, COMPACTED, TIERED)),
    "commit-offset": (Everything.commit_offset, (PLAIN, COMPACTED)),
    "reopen": (Everything.reopen, (PLAIN, COMPACTED, TIERED)),
    "kill": (Everything.kill, (PLAIN, COMPACTED, TIERED)),
}
OBSERVERS: dict[str, Callable[[Everything, str], None]] = {
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
WEIGHTS = {"append": 6, "send": 5, "end": 4, "roll": 2}


@pytest.fixture(scope="module", autouse=True)
def table() -> Iterator[None]:
    """Print how often each pair was met."""
    yield
    for title, counted, columns in (
        ("a change after a change", pairs, CHANGES),
        ("an observer after a change", looks, OBSERVERS),
    ):
        print(
            f"\n{title}: {sum(counted.values())}, {len(counted)} pairs of {len(CHANGES) * len(columns)}"
        )
        for row in CHANGES:
            cells = " ".join(f"{counted[row, column]:6}" for column in columns)
            print(f"{row:>15} {cells}")


@pytest.mark.parametrize("run", range(RUNS))
def test_every_observer_agrees_with_the_model(run: int) -> None:
    """After any changes in any order, every observer sees the records of the model."""
    seed = SEED * 1000 + run
    done: list[str] = []
    with tempfile.TemporaryDirectory(dir=fast_directory()) as root:
        world = Everything(Path(root), seed)
        weights = [WEIGHTS.get(name, 1) for name in CHANGES]
        before = "append"
        try:
            for _ in range(STEPS):
                (name,) = world.chance.choices([*CHANGES], weights)
                change, logs = CHANGES[name]
                log = world.chance.choice(logs)
                done.append(f"{name} {log}")
                try:
                    change(world, log)
                except LogfsError as error:
                    done[-1] += f": {error}"
                    if "object store" not in str(error):
                        raise
                pairs[before, name] += 1
                before = name
                for _ in range(2):
                    look = world.chance.choice([*OBSERVERS])
                    at = world.chance.choice([log, log, *world.models])
                    done.append(f"  {look} {at}")
                    OBSERVERS[look](world, at)
                    looks[name, look] += 1
        except BaseException:
            print(f"seed {seed}, step {len(done)}:", *done[-40:], sep="\n")
            raise
        world.close()
