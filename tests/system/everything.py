"""Logs that are changed at random in every way that a store offers, each beside its model.

`test_everything.py` drives a store in one process, `test_everything_mounted.py` mounts and commands.
"""

from __future__ import annotations

import os
import random
import shutil
import traceback
from collections import defaultdict
from collections.abc import Callable, Container, Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from multiprocessing.connection import Listener
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from logfs.errors import LogfsError
from logfs.format.batches.record import Record
from logfs.format.tiered.remote_segment import SegmentState
from logfs.log.read.read_committed import Isolation
from logfs.log.scan import scan_split
from logfs.store.store import Store
from tests.support.batches import Producer
from tests.support.staging import stage
from tests.support.stores import abandon, errors_of, set_topic
from tests.system.log_model import KEYS, PRODUCERS, UNCOMMITTED, Model, Sent, check_reader

if TYPE_CHECKING:
    from logfs.format.files.commit_file import StagedFile
    from logfs.log.append.partition import Partition
    from logfs.store.staged_commits import Committed
    from tests.system.log_model import Pairs

PLAIN, OTHER, COMPACTED, TIERED = LOGS = ("plain-0", "plain-1", "compacted-0", "tiered-0")
GROUP = "group"
# A change or an observer, which concerns one log; it is called with the world and the log's name.
Deed = Callable[[Any, str], None]
# Of each change the logs that it may concern, how Python makes it, and how a mount does.
Changes = dict[str, tuple[Sequence[str], Deed | None, Deed | None]]
# How much rarer a change is for which Python has to take the place of the mount, or the mount that of Python.
SWITCHING = 0.3
# How much more frequent a change is that has not yet followed the last one.
UNMET = 4
# How many steps are printed at an error.
PRINTED = int(os.environ.get("LOGFS_EVERYTHING_PRINTED", "60"))
SETTINGS = {
    "compression.type": ("uncompressed", "gzip", "lz4", "zstd", "snappy", "producer"),
    "index.interval.bytes": ("50", "300"),
    "segment.bytes": ("1200", "5000"),
    "flush.messages": ("1", "1000"),
}


class Logs:
    """Four logs in two log directories and a bucket, the model of each, and the changes of a store."""

    # Whether the daemon of a mount has the log directories, in place of `store`.
    mounted = False
    # The share of records whose value is null.
    nulls = 0.0

    def __init__(self, root: Path, seed: int, clock: Callable[[], int]) -> None:
        self.chance = random.Random(seed)
        self.clock = clock
        self.root = root
        self.log_dirs = [root / "one", root / "two"]
        self.bucket = root / "bucket"
        self.bucket.mkdir()
        self.models = {name: Model() for name in LOGS}
        self.sent = 0
        self.commits: dict[tuple[str, str], int] = {}
        self.store = self.open()
        self.store.settings.set_broker("remote.storage.url", f"file://{self.bucket}")
        for name in LOGS:
            self.configure(name)
            self.store.create(name)

    def open(self, *, recover: bool = False) -> Store:
        """Open the log directories for writing."""
        return Store(self.log_dirs, clock=self.clock, recover=recover)

    def settings_of(self, name: str) -> dict[str, object]:
        """Return the settings of a log's topic."""
        common = {"max_message_bytes": 1000, "index_interval_bytes": 100, "segment_bytes": 1500}
        common |= {"file_delete_delay_ms": 0, "retention_ms": -1}
        own: dict[str, dict[str, object]] = {
            COMPACTED: {"cleanup_policy": "compact"},
            TIERED: {"remote_storage_enable": "true", "local_retention_bytes": 1},
        }
        return {**common, **own.get(name, {})}

    def configure(self, name: str) -> None:
        """Set the settings of a log's topic."""
        set_topic(self.store, topic_of(name), **self.settings_of(name))

    def log(self, name: str) -> Partition:
        """Return the writer of a log."""
        return self.store[name]

    def home(self, name: str) -> Path:
        """Return the log directory that a log is in."""
        return next(path for path in self.log_dirs if (path / name).is_dir())

    def away(self, name: str) -> Path:
        """Return the log directory that a log is not in."""
        home = self.home(name)
        return next(path for path in self.log_dirs if path != home)

    def topic(self, name: str) -> list[Model]:
        """Return the models of all logs of a log's topic."""
        return [self.models[each] for each in LOGS if topic_of(each) == topic_of(name)]

    def forget(self, name: str) -> None:
        """Begin again with an empty log."""
        breaks = self.models[name].breaks
        self.models[name] = Model()
        self.models[name].breaks = breaks + 1
        self.commits = {key: offset for key, offset in self.commits.items() if key[1] != name}

    def records(self, most: int = 8) -> list[Record]:
        """Return some new records, at most `most`."""
        found = []
        for _ in range(self.chance.randint(1, most)):
            self.sent += 1
            time = self.clock() - self.chance.randrange(5000)
            value = None if self.chance.random() < self.nulls else b"value %d" % self.sent
            found.append(Record(value, self.key(), timestamp=time))
        return found

    def key(self) -> bytes:
        """Return one of the keys."""
        return b"k%d" % self.chance.randrange(KEYS)

    def note(self, name: str, first: int, records: Sequence[Record], producer: int = 0) -> None:
        """Add records to a model."""
        model = self.models[name]
        assert first == model.end
        for offset, record in enumerate(records, first):
            key, time = record.key or b"", record.timestamp or 0
            model.records[offset] = Sent(offset, key, record.value, time, producer)
        model.end += len(records)

    def switch(self, name: str) -> None:
        """Have the mount take the place of the store, or the other way round."""
        raise NotImplementedError

    # Changes.

    def append(self, name: str) -> None:
        records = self.records()
        self.note(name, self.log(name).append(records), records)

    def send(self, name: str) -> None:
        number, log, now = self.chance.choice(PRODUCERS), self.log(name), self.clock()
        records = [replace(each, timestamp=now) for each in self.records()[:3]]
        producer = Producer(log, number)
        producer.sequence = log.producers[number].last_sequence + 1
        self.note(name, producer.send_records(records), records, number)

    def end(self, name: str) -> None:
        model, number = self.models[name], self.chance.choice(PRODUCERS)
        commit = self.chance.random() < 0.5
        offset = self.log(name).end_transaction(number, 0, commit=commit)
        model.markers.append((number, offset, commit))
        model.end = offset + 1

    def staged(self, name: str, store: Store) -> tuple[list[StagedFile], dict[str, list[Record]]]:
        """Stage records for a log and another one, with the settings that a store shows."""
        self.sent += 1
        # Many records make a commit that begins several segments.
        most = self.chance.choice((8, 60))
        wanted = {each: self.records(most) for each in {name: 0, self.chance.choice(LOGS): 0}}
        files = [
            stage(
                store[each].directory,
                store[each].config,
                "writer",
                self.sent,
                records,
                now_ms=self.clock(),
                per_batch=self.chance.choice((1, 4)),
            )
            for each, records in wanted.items()
        ]
        return files, wanted

    def commit(self, name: str) -> None:
        """Commit staged batches to two logs at once."""
        files, wanted = self.staged(name, self.store)
        self.note_commit(self.store.commit("writer", self.sent, files), wanted)

    def note_commit(self, done: Committed, wanted: dict[str, list[Record]]) -> None:
        """Add the records of a commit to the models."""
        assert not done.already
        for each, records in wanted.items():
            first, end = done.offsets[each]
            assert end - first == len(records)
            self.note(each, first, records)

    def roll(self, name: str) -> None:
        self.log(name).roll(self.clock())

    def flush(self, name: str) -> None:
        assert self.log(name).flush() == self.models[name].end

    def truncate(self, name: str) -> None:
        model = self.models[name]
        offset = self.chance.randrange(model.start, model.end + 1)
        after = deepcopy(model)
        after.cut(offset)
        if after.begins_within_transactions() or model.opens_compacted_transaction(offset):
            # The log may have forgotten, or compacted, the beginning of a transaction that is open again.
            return
        self.store.truncate(name, offset)
        end = self.log(name).log_end_offset
        assert end <= max(offset, model.start)
        model.cut(end)

    def delete_records(self, name: str) -> None:
        offset = self.readable(name)
        self.store.delete_records(name, offset)
        self.models[name].start = offset

    def readable(self, name: str) -> int:
        """Return an offset up to which the records of a log may be deleted."""
        model = self.models[name]
        return self.chance.randrange(model.start, max(model.transactions()[1], model.start) + 1)

    def retain(self, name: str) -> None:
        model = self.models[name]
        if model.transactions()[1] < model.end:
            return
        self.store.settings.set_topic(topic_of(name), "retention.bytes", "4000")
        try:
            self.store.retain([name])
        finally:
            self.store.settings.set_topic(topic_of(name), "retention.bytes", "-1")
        start = self.log(name).log_start_offset
        assert model.start <= start <= model.end
        assert start == model.start or start in {
            each.base_offset for each in self.log(name).segments
        }
        model.start = start

    def compact(self, name: str) -> None:
        self.store.compact(name, roll=self.chance.random() < 0.5)
        self.note_compaction(name, self.store)

    def note_compaction(self, name: str, store: Store) -> None:
        """Take from a model what compaction has removed."""
        log = store[name]
        left = {record.offset for record in log.read()}
        cleaned = store.checkpoints.cleaner_offset(name) or 0
        self.models[name].compact(left, log.active.base_offset, cleaned)

    def tier(self, name: str) -> None:
        self.store.tier(name)
        if self.chance.random() < 0.7:
            self.store.retain([name])

    def move(self, name: str) -> None:
        self.store.move(name, self.away(name))

    def set(self, name: str) -> None:
        setting = self.chance.choice([*SETTINGS])
        value = self.chance.choice(SETTINGS[setting])
        self.store.settings.set_topic(topic_of(name), setting, value)

    def upkeep(self, name: str) -> None:
        self.store.upkeep()
        self.note_compaction(COMPACTED, self.store)

    def commit_offset(self, name: str) -> None:
        model = self.models[name]
        offset = self.chance.randrange(model.start, model.end + 1)
        self.store.groups.commit(GROUP, name, offset)
        self.commits[GROUP, name] = offset

    def forget_offset(self, name: str) -> None:
        found = self.store.groups.forget(GROUP, name)
        assert found == (self.commits.pop((GROUP, name), None) is not None)

    def recreate(self, name: str) -> None:
        """Delete a log, and create another one of its name."""
        self.store.delete(name)
        self.configure(name)
        self.store.create(name)
        self.forget(name)

    def undelete(self, name: str) -> None:
        """Delete a log, and bring it back, sometimes after a kill."""
        set_topic(self.store, topic_of(name), file_delete_delay_ms=60_000)
        self.store.delete(name)
        if self.chance.random() < 0.3:
            abandon(self.store)
            self.store = self.open()
        self.store.undelete(name)
        set_topic(self.store, topic_of(name), file_delete_delay_ms=0)

    def reopen(self, name: str) -> None:
        self.store.close()
        self.store = self.open(recover=self.chance.random() < 0.3)

    def alone(self, name: str) -> None:
        """Open the log directory of a log alone for its upkeep, sometimes after a kill, and then both again."""
        (abandon if self.chance.random() < 0.5 else Store.close)(self.store)
        with Store(self.home(name), clock=self.clock) as store:
            store.upkeep()
            if COMPACTED in store:
                self.note_compaction(COMPACTED, store)
        self.store = self.open()

    def kill(self, name: str) -> None:
        """Leave the store as a killed process does, and open it again; sometimes twice."""
        for _ in range(self.chance.randrange(1, 3)):
            abandon(self.store)
            self.store = self.open()

    def restore(self, name: str) -> None:
        """Put copies in the place of the log directories, as from a backup, and take over the bucket."""
        self.store.close()
        for path in self.log_dirs:
            path.rename(path.with_suffix(".old"))
            shutil.copytree(path.with_suffix(".old"), path)
            shutil.rmtree(path.with_suffix(".old"))
        self.store = self.open()
        self.store.tiered.owner.take_over()

    # Observers that need no writer.

    def cold(self, name: str) -> None:
        isolation = self.chance.choice([*Isolation])
        with Store(self.log_dirs, read_only=True, clock=self.clock, lazy=True) as store:
            check_reader(store[name].isolated(isolation), self.models[name], isolation, self.chance)

    def audit(self, name: str) -> None:
        assert errors_of(self.log_dirs) == []

    def bucket_end(self) -> int:
        """Return the offset after the last record that the bucket has; 0 while it also has what was truncated."""
        with Store(self.log_dirs, read_only=True, clock=self.clock) as store:
            copied = store.tiered.of(store[TIERED])
            segments = store.tiered.metadata.segments
            if copied is None or any(
                each.state is SegmentState.DELETE_SEGMENT_STARTED
                and each.end_offset >= self.models[TIERED].start
                for each in segments(copied.partition).values()
            ):
                return 0
            return copied.end_offset

    def check_bucket(self, found: Sequence[int], end: int) -> None:
        """Check the offsets that the bucket alone shows, up to an offset: the log's from where the bucket begins."""
        model = self.models[TIERED]
        shown = [each.offset for each in model.shown(UNCOMMITTED)]
        expected = [offset for offset in shown if found[0] <= offset < end] if found else []
        assert [offset for offset in found if offset >= model.start] == expected


def topic_of(name: str) -> str:
    return name.rpartition("-")[0]


def drive(
    world: Logs,
    steps: int,
    changes: Changes,
    weights: Mapping[str, float],
    observers: Mapping[str, Deed],
    pairs: Pairs,
    rare: Mapping[str, float] = MappingProxyType({}),
) -> None:
    """Make random changes, and ask two observers after each. At an error, print the last steps.

    `weights` and `rare` say how often a change is made and an observer is asked; 1 stands for those left out.
    """
    chances = [rare.get(name, 1) for name in observers]
    done: list[str] = []
    # Of each change, those that have followed it in this run.
    met: defaultdict[str, set[str]] = defaultdict(set)
    before = ""
    try:
        for _ in range(steps):
            name = _choose(world, changes, weights, met[before])
            logs, *ways = changes[name]
            log = world.chance.choice(logs)
            change = ways[world.mounted]
            if change is None:
                world.switch(log)
                change = ways[world.mounted]
            assert change is not None
            done.append(f"{name} {log}{' by mount' if world.mounted else ''}")
            try:
                change(world, log)
            except LogfsError as error:
                # A truncation to an offset that only the object store has.
                done[-1] += f": {error}"
                if "object store" not in str(error):
                    raise
            pairs.followed[before, name] += 1
            met[before].add(name)
            before = name
            for _ in range(2):
                (look,) = world.chance.choices([*observers], chances)
                log = world.chance.choice([log, log, *LOGS])
                done.append(f"  {look} {log}")
                observers[look](world, log)
                pairs.looked[name, look] += 1
    except BaseException:
        print(f"step {len(done)}:", *done[-PRINTED:], sep="\n")
        raise


def _choose(
    world: Logs, changes: Changes, weights: Mapping[str, float], met: Container[str]
) -> str:
    """Return a change; those that the present writer cannot make are rarer, and those not in `met` more frequent."""
    chances = [
        weights.get(name, 1)
        * (SWITCHING if ways[world.mounted] is None else 1)
        * (1 if name in met else UNMET)
        for name, (_, *ways) in changes.items()
    ]
    (name,) = world.chance.choices([*changes], chances)
    return name


def follow(address: str, *log_dirs: str) -> None:
    """In a process of its own: follow log directories, and compare what a read-only store shows with models.

    A request is the name of a log, its model, an isolation level, and a seed; or, for splits, without a model. The
    answer is what was wrong, or "", or the splits.
    """
    with (
        Listener(address) as listener,
        listener.accept() as connection,
        Store([*map(Path, log_dirs)], read_only=True) as store,
    ):
        while True:
            try:
                name, model, isolation, seed = connection.recv()
            except EOFError:
                return
            try:
                store.refresh()
                reader = store[name].isolated(isolation)
                if model is None:
                    ends = reader.log_start_offset, reader.log_end_offset
                    answer = list(scan_split.plan(reader, *ends, split_bytes=seed))
                else:
                    check_reader(reader, model, isolation, random.Random(seed))
                    answer = ""
            except Exception:
                answer = traceback.format_exc()
            connection.send(answer)
