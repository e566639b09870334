"""Every topic-level setting takes effect, at once and after a restart; a value out of range is refused."""

from __future__ import annotations

import errno
import random
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest

from logfs.config import value_in_force
from logfs.errors import InvalidRecord, InvalidSetting, NotWritable, RecordTooLarge
from logfs.format.batches.record import Record
from logfs.setting import BOOLEAN, TOPIC_SETTINGS, Range, Setting
from logfs.store.store import Store

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from logfs.log.append.partition import Partition
    from tests.support.mounts import Mount
    from tests.support.stores import Clock

NAME = "orders-0"
WORDS = b" ".join(b"%x" % random.Random(7).randrange(5000) for _ in range(9)) + b" "
TEXT = b"".join(
    WORDS[n : n + 9] + b"%d" % (n * n % 977) for n in random.Random(5).choices(range(40), k=3000)
)
COMPACT = {"cleanup.policy": "compact"}


@dataclass(frozen=True)
class World:
    """A store with one partition, and the clock of both."""

    store: Store
    clock: Clock

    @property
    def log(self) -> Partition:
        return self.store[NAME]

    def fresh(self) -> Partition:
        """Return the log with an empty active segment."""
        self.log.roll(self.clock())
        return self.log

    def sealed(self) -> Partition:
        """Return the log with one more sealed segment of two records with the same key."""
        log = self.fresh()
        for _ in range(2):
            log.append([Record(b"x", b"key")])
        log.roll(self.clock())
        return log


@dataclass(frozen=True)
class Case:
    """A value of a setting, what is seen of a log by default and with it, and the other settings that this needs."""

    value: str
    see: Callable[[World], object]
    before: object
    after: object
    beside: Mapping[str, str] = field(default_factory=dict)


def refuses(record: Callable[[World], Record], error: type[Exception]) -> Callable[[World], bool]:
    """Return a function that tells whether an append of this record is refused."""

    def see(world: World) -> bool:
        try:
            world.log.append([record(world)])
        except error:
            return True
        return False

    return see


def at(shift_ms: int) -> Callable[[World], bool]:
    """Return a function that tells whether a record with a timestamp `shift_ms` from now is refused."""
    return refuses(lambda world: Record(b"x", timestamp=world.clock() + shift_ms), InvalidRecord)


def codec(world: World) -> str:
    """Return the codec of a new batch."""
    offset = world.log.append([b"x" * 1000])
    (batch,) = world.log.batches(offset)
    return batch.header.codec.name.lower()


def smaller_than(level: str) -> Callable[[World], bool]:
    """Return a function that tells whether a batch is smaller than the codec makes it at another level."""

    def see(world: World) -> bool:
        sizes = []
        config = world.store.settings
        kind = str(world.log.config.compression_type)
        name = f"compression.{kind}.level"
        was = config.topic_overrides("orders").get(name)
        for text in (was, level):
            config.set_topic("orders", name, text)
            before = world.log.size_bytes
            world.log.append([TEXT])
            sizes.append(world.log.size_bytes - before)
        config.set_topic("orders", name, was)
        return sizes[0] < sizes[1]

    return see


def tombstone_stays(world: World) -> bool:
    """Whether a tombstone is still in the log after two rounds of compaction."""
    key = b"%d" % world.log.log_end_offset
    offset = world.log.append([Record(None, key)])
    for _ in range(2):
        world.fresh()
        world.store.compact(NAME)
        world.clock.now_ms += 1000
    return offset in {record.offset for record in world.log.read(offset, offset + 1)}


def deleted_files(world: World) -> bool:
    """Whether the files of a dropped segment still exist; those of earlier ones are removed before."""
    world.clock.now_ms += 60_000
    world.store.upkeep()
    log = world.fresh()
    log.append([b"x"])
    log.roll(world.clock())
    world.store.delete_records(NAME, -1)
    world.store.retain()
    world.store.upkeep()
    return any(log.directory.glob("*.deleted"))


def unflushed(world: World) -> int:
    """Return the number of unflushed messages after an append."""
    world.log.flush()
    world.log.append([b"x"])
    return world.log.log_end_offset - world.log.recovery_point


def unflushed_after_upkeep(world: World) -> int:
    """Return the number of unflushed messages after an append and upkeep."""
    unflushed(world)
    world.store.upkeep()
    return world.log.log_end_offset - world.log.recovery_point


def index_entries(world: World) -> int:
    """Return the number of entries in the offset index of four batches."""
    log = world.fresh()
    for _ in range(4):
        log.append([b"x"])
    return log.active.offset_index.size_bytes // 8


def is_due(world: World) -> bool:
    """Whether compaction is due 10 s after a segment was sealed."""
    world.sealed()
    world.clock.now_ms += 10_000
    return world.store.compactor.plan(NAME).is_due(world.log.config)


def cleanable(world: World) -> bool:
    """Whether any bytes may be cleaned."""
    world.sealed()
    return world.store.compactor.plan(NAME).cleanable_bytes > 0


def file_size(world: World) -> int:
    """Return the size of the file of a new active segment."""
    world.log.append([b"x"])
    return int(world.fresh().active.path.stat().st_size)


def timestamp(world: World) -> int:
    """Return the timestamp of a record from 5 ms ago, relative to the clock."""
    offset = world.log.append([Record(b"x", timestamp=world.clock() - 5)])
    record = world.log.record(offset)
    assert record is not None
    return int(record.timestamp or 0) - world.clock()


def retained(world: World) -> bool:
    """Whether retention deletes a segment a second after its record."""
    log = world.fresh()
    log.append([b"x"])
    log.roll(world.clock())
    world.clock.now_ms += 1000
    return world.store.retain() > 0


def rolls(count: int, each_ms: int = 0) -> Callable[[World], bool]:
    """Return a function that tells whether `count` appends, `each_ms` apart, take more than one segment."""

    def see(world: World) -> bool:
        log = world.fresh()
        first = log.active.base_offset
        for number in range(count):
            log.append([Record(b"x", timestamp=world.clock() + number * each_ms)])
        return log.active.base_offset != first

    return see


def rolls_early(world: World) -> bool:
    """Whether any of forty segments rolls at half its age."""
    return any(rolls(2, 500)(world) for _ in range(40))


def rolled_when_quiet(world: World) -> bool:
    """Whether upkeep rolls a segment ten minutes after its last append."""
    log = world.fresh()
    log.append([b"x"])
    world.clock.now_ms += 600_000
    world.store.upkeep()
    return log.active.size_bytes == 0


CASES = {
    "cleanup.policy": Case("compact", refuses(lambda _: Record(b"x"), InvalidRecord), False, True),
    "compression.type": Case("zstd", codec, "none", "zstd"),
    "compression.gzip.level": Case(
        "1", smaller_than("1"), True, False, {"compression.type": "gzip"}
    ),
    # Level 9 is the fast compressor, all other levels are the high-compression one.
    "compression.lz4.level": Case(
        "17", smaller_than("9"), False, True, {"compression.type": "lz4"}
    ),
    "compression.zstd.level": Case(
        "-50", smaller_than("-50"), True, False, {"compression.type": "zstd"}
    ),
    "delete.retention.ms": Case("0", tombstone_stays, True, False, COMPACT),
    "file.delete.delay.ms": Case("0", deleted_files, True, False),
    "flush.messages": Case("1", unflushed, 1, 0),
    "flush.ms": Case("0", unflushed_after_upkeep, 1, 0),
    "index.interval.bytes": Case("0", index_entries, 0, 3),
    "max.compaction.lag.ms": Case(
        "1000", is_due, False, True, {**COMPACT, "min.cleanable.dirty.ratio": "1"}
    ),
    "max.message.bytes": Case(
        "100", refuses(lambda _: Record(b"x" * 200), RecordTooLarge), False, True
    ),
    "message.timestamp.after.max.ms": Case("1000", at(10_000), False, True),
    "message.timestamp.before.max.ms": Case("1000", at(-10_000), False, True),
    "message.timestamp.difference.max.ms": Case("1000", at(-10_000), False, True),
    "message.timestamp.type": Case("LogAppendTime", timestamp, -5, 0),
    "min.cleanable.dirty.ratio": Case("1.0", is_due, True, False, COMPACT),
    "min.compaction.lag.ms": Case("3600000", cleanable, True, False, COMPACT),
    "preallocate": Case("true", file_size, 0, 65536, {"segment.bytes": "65536"}),
    "retention.bytes": Case("0", retained, False, True),
    "retention.ms": Case("10", retained, False, True),
    "segment.bytes": Case("100", rolls(3), False, True),
    "segment.index.bytes": Case("48", rolls(10), False, True, {"index.interval.bytes": "0"}),
    "segment.jitter.ms": Case("1000", rolls_early, False, True, {"segment.ms": "1000"}),
    "segment.ms": Case("1000", rolls(2, 2000), False, True),
    "logfs.mirror.source": Case(
        "a-cluster", refuses(lambda _: Record(b"x"), NotWritable), False, True
    ),
    "logfs.retention.groups": Case("Jobs", retained, True, False, {"retention.ms": "10"}),
    "logfs.roll.quiet": Case("never", rolled_when_quiet, True, False, {"segment.ms": "1000"}),
}
# Settings without an effect on the log of one machine: they are kept and shown for a broker.
NOT_HERE = {
    "follower.replication.throttled.replicas": "replication",
    "leader.replication.throttled.replicas": "replication",
    "min.insync.replicas": "replication",
    "unclean.leader.election.enable": "replication",
    "local.retention.bytes": "tests/store/test_tiering.py",
    "local.retention.ms": "tests/store/test_tiering.py",
    "remote.log.copy.disable": "tests/store/test_tiering.py",
    "remote.log.delete.on.disable": "tests/store/test_tiering.py",
    "remote.storage.enable": "tests/store/test_tiering.py",
    "message.downconversion.enable": "old consumers of a broker",
    "message.format.version": "nothing, since Kafka 3.0",
}


def test_every_setting_has_a_case() -> None:
    """A new setting needs a case, which shows its effect, or an entry in `NOT_HERE`."""
    assert {*CASES} | {*NOT_HERE} == {*TOPIC_SETTINGS}
    assert not {*CASES} & {*NOT_HERE}


@pytest.mark.parametrize("name", CASES)
def test_a_setting_takes_effect_at_once_and_after_a_restart(
    name: str, log_dir: Path, clock: Clock
) -> None:
    """A log that stays open changes its behaviour as soon as the setting is written."""
    case = CASES[name]
    with Store(log_dir, clock=clock) as store:
        for other, value in case.beside.items():
            store.settings.set_topic("orders", other, value)
        store.create(NAME)
        assert case.see(World(store, clock)) == case.before
        store.settings.set_topic("orders", name, case.value)
        assert case.see(World(store, clock)) == case.after
    with Store(log_dir, clock=clock) as store:
        clock.now_ms += 60_000
        assert case.see(World(store, clock)) == case.after
        store.settings.set_topic("orders", name, None)
        assert case.see(World(store, clock)) == case.before


def out_of_range(setting: Setting) -> list[str]:
    """Return texts that a setting must refuse."""
    # The name of a group may be any text.
    bad = ["one,,other" if setting.name == "logfs.retention.groups" else "no such thing!"]
    if isinstance(setting.valid, Range):
        edges = (setting.valid.low - 1, setting.valid.high + 1)
        bad += [str(edge) for edge in edges if edge != setting.valid.special]
    return [*bad, "1"] if setting.type is BOOLEAN else bad


def other_value(setting: Setting) -> str:
    """Return a valid text that is not the default."""
    if setting.name in CASES:
        return CASES[setting.name].value
    if setting.type is BOOLEAN:
        return "false" if setting.default == "true" else "true"
    with suppress(ValueError):
        return str(int(setting.default or "") + 1)
    return "*" if "throttled" in setting.name else "2.8"


def test_the_files_of_settings_on_a_mount(mount: Mount, tmp_path: Path) -> None:
    """A text that is written to a setting's file is in force, also after a restart; a bad text is EINVAL."""
    # A tiered topic needs a bucket, and loses its remote segments knowingly.
    (mount.path / ".logfs/config/remote.storage.url").write_text(f"file://{tmp_path}/bucket")
    for number, (name, setting) in enumerate(TOPIC_SETTINGS.items()):
        path = mount.partition(f"topic{number}-0") / "config" / name
        assert path.read_text() == f"{value_in_force(name, {}, {})}\n"
        path.write_text(other_value(setting))
        assert path.read_text() == f"{other_value(setting)}\n"
        for bad in out_of_range(setting):
            with pytest.raises(OSError, match="Invalid argument") as caught:
                path.write_text(bad)
            assert caught.value.errno == errno.EINVAL
            reason = mount.errors().splitlines()[-1]
            assert f"{name}: '{bad}' is refused; give {setting.allowed}" in reason
            assert path.read_text() == f"{other_value(setting)}\n"
    mount.remount()
    for number, (name, setting) in enumerate(TOPIC_SETTINGS.items()):
        path = mount.path / f"topic{number}-0/config" / name
        assert path.read_text() == f"{other_value(setting)}\n"
        if name == "remote.storage.enable":
            path.with_name("remote.log.delete.on.disable").write_text("true")
        path.write_text("\n")
        assert path.read_text() == f"{value_in_force(name, {}, {})}\n"


def test_settings_that_contradict_are_refused_with_both_names(store: Store) -> None:
    store.settings.set_topic("orders", "max.compaction.lag.ms", "1000")
    with pytest.raises(InvalidSetting, match=r"min\.compaction\.lag\.ms: 2000 is more than max"):
        store.settings.set_topic("orders", "min.compaction.lag.ms", "2000")
