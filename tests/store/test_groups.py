"""Consumer groups: the committed offsets of a store in Python, as files of a mount, and on the command line."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import time
from contextlib import suppress
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import orjson
import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

import logfs
from logfs.errors import (
    InvalidName,
    InvalidRecord,
    InvalidStore,
    NotWritable,
    OffsetOutOfRange,
    PartitionFailed,
    RecordTooLarge,
    UnknownPartition,
)
from logfs.format.batches.batch import HEADER_SIZE, TRANSACTIONAL_BIT, assign_offset, seal
from logfs.format.batches.compression import Codec
from logfs.format.encoding.batch_builder import BatchFormat, build_records
from logfs.format.messages.group_record import OffsetCommit, OffsetKey
from logfs.log.disk.disk import Disk
from logfs.log.segment.segment import Segment
from logfs.store.directory.log_dir import STORE_DIRS, store_dirs
from logfs.store.groups import TOPIC, GroupOffset, Groups, resolve_offset
from logfs.store.store import Store
from tests.support.command_line import call, fails, ok
from tests.support.examples import examples
from tests.support.processes import run, wait_for
from tests.support.requirements import need_command, need_root
from tests.support.stores import assert_clean

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from logfs.log.append.partition import Partition
    from tests.support.mounts import Mount
    from tests.support.stores import Clock

T = 1_700_000_000_000
NOON = 1638100400000


@pytest.fixture
def topic(store: Store) -> Partition:
    """A partition `orders-0` of twenty records, a second apart from noon on."""
    orders = store.create("orders-0")
    orders.append([logfs.Record(b"%d" % n, timestamp=NOON + n * 1000) for n in range(20)])
    return orders


def offsets(store: Store, name: str = "orders-0") -> dict[str, int]:
    """Return the committed offset of each group."""
    return {group: commit.offset for group, commit in store.groups.of(name).items()}


def key(group: str, name: str = "orders", number: int = 0) -> bytes:
    """Return the key of an offset commit."""
    return OffsetKey(group, name, number).encode()


def value(offset: int, version: int = 3) -> bytes:
    """Return the value of an offset commit."""
    return OffsetCommit(offset, "", T).encode(version)


# The engine.


def test_a_commit_is_kafkas_record_in_kafkas_partition(
    store: Store, topic: Partition, clock: Clock
) -> None:
    """A commit has key type 1, value version 3 and the store's time, in the partition that the hash selects."""
    assert store.groups.committed("my-group", "orders-0") is None
    clock.now_ms += 5
    commit = store.groups.commit("my-group", "orders-0", 12, "half")
    assert commit == OffsetCommit(12, "half", T + 5, 0)
    assert store.groups.committed("my-group", "orders-0") == commit
    # kafka-storage 12: my-group is in partition 12 of 50.
    assert list(store) == [f"{TOPIC}-12", "orders-0"]
    (record,) = store[f"{TOPIC}-12"].read()
    assert record.timestamp == T + 5
    assert record.key == bytes.fromhex("0001 0008") + b"my-group\0\6orders" + bytes(4)
    assert record.value == (
        bytes.fromhex("0003 000000000000000c 00000000 0004") + b"half" + (T + 5).to_bytes(8)
    )
    assert store.groups.log_of("my-group") is store[f"{TOPIC}-12"]


def test_the_topic_has_kafkas_settings(store: Store, topic: Partition, log_dir: Path) -> None:
    """The topic is compacted, in segments of `offsets.topic.segment.bytes`, and its settings are in plain files."""
    store.settings.set_broker("offsets.topic.segment.bytes", "1000000")
    store.groups.commit("g1", "orders-0", 1)
    assert (log_dir / f"{TOPIC}@p").read_text().splitlines()[1:] == [
        "cleanup.policy=compact",
        "compression.type=producer",
        "segment.bytes=1000000",
    ]
    assert store[f"{TOPIC}-42"].config.is_compacted
    # A new default must not move the groups to other partitions.
    assert store.settings.broker_overrides["offsets.topic.num.partitions"] == "50"


def test_commits_outlive_the_store(log_dir: Path) -> None:
    """The last commit of each group and partition counts, and is kept over a reopening."""
    with Store(log_dir) as store:
        for name in ("orders-0", "orders-1", "pay-0"):
            store.create(name).append([b"x"] * 9)
        for offset in (3, 9, 0):
            store.groups.commit("a", "orders-0", offset)
        store.groups.commit("b", "orders-0", 4)
        store.groups.commit("a", "pay-0", 5)
    with Store(log_dir) as store:
        assert offsets(store) == {"a": 0, "b": 4}
        assert offsets(store, "orders-1") == {}
        rows = [(group, *partition, commit.offset) for group, partition, commit in store.groups]
        assert rows == [("a", "orders", 0, 0), ("a", "pay", 0, 5), ("b", "orders", 0, 4)]


def test_forgetting_is_a_tombstone(store: Store, topic: Partition) -> None:
    """Forgetting a group deletes its offset of that partition only, and the group can commit again."""
    store.create("orders-1")
    store.groups.commit("g1", "orders-0", 7)
    store.groups.commit("g1", "orders-1", 0)
    assert store.groups.forget("g1", "orders-0")
    assert not store.groups.forget("g1", "orders-0")
    assert not store.groups.forget("nobody", "orders-0")
    assert store.groups.committed("g1", "orders-0") is None
    assert store.groups.committed("g1", "orders-1") is not None
    *_, last = store[f"{TOPIC}-42"].read()
    assert (last.key, last.value) == (key("g1"), None)
    store.groups.commit("g1", "orders-0", 8)
    assert offsets(store) == {"g1": 8}


def test_a_deleted_partition_is_forgotten(store: Store, topic: Partition) -> None:
    """The committed offsets are deleted with the partition, and a new partition of its name has none."""
    store.create("orders-1")
    for group in ("a", "b"):
        store.groups.commit(group, "orders-0", 7)
        store.groups.commit(group, "orders-1", 0)
    store.delete("orders-0")
    store.create("orders-0")
    assert offsets(store) == {}
    assert offsets(store, "orders-1") == {"a": 0, "b": 0}


def test_commits_in_open_transactions_are_forgotten_with_the_partition(log_dir: Path) -> None:
    """A transaction that ends later commits no offset for a new partition of the name, and those for others."""
    with logfs.open(log_dir, create=True) as store:
        for name in ("orders-0", "orders-1"):
            store.create(name).append_many(["old"] * 100)
        store.groups.commit("both", {"orders-0": 50})
        transaction = store.transaction("id")
        for group in ("pending", "both"):
            transaction.commit_offsets(group, {"orders-0": 100, "orders-1": 100})
        store["orders-0"].delete()
        store.create("orders-0").append_many(["new"] * 10)
        transaction.commit()
        expected = {"orders-1": 100}
        assert dict(store.groups) == {"pending": expected, "both": expected}
    with logfs.open(log_dir) as store:
        assert dict(store.groups) == {"pending": expected, "both": expected}


@pytest.mark.parametrize("offset", [-1, 4, 21])
def test_offsets_outside_the_log_are_refused(store: Store, topic: Partition, offset: int) -> None:
    """Only an offset from the log start to the log end, both included, can be committed."""
    topic.advance_log_start(5)
    with pytest.raises(OffsetOutOfRange, match=r"not in \[5, 20\]"):
        store.groups.commit("g1", "orders-0", offset)
    assert offsets(store) == {}
    for end in (5, 20):
        store.groups.commit("g1", "orders-0", end)
        assert offsets(store) == {"g1": end}


def test_invalid_commits_are_refused(store: Store, topic: Partition) -> None:
    """An unknown partition, an invalid group name and metadata that is too long are refused with the reason."""
    with pytest.raises(UnknownPartition):
        store.groups.commit("g1", "nothing-0", 0)
    with pytest.raises(InvalidName, match="name of the group is empty"):
        store.groups.commit("", "orders-0", 0)
    with pytest.raises(InvalidName, match="32767"):
        store.groups.commit("g" * 32768, "orders-0", 0)
    store.settings.set_broker("offset.metadata.max.bytes", "3")
    with pytest.raises(InvalidRecord, match=r"offset\.metadata\.max\.bytes=3"):
        store.groups.commit("g1", "orders-0", 0, "four")
    store.groups.commit("g1", "orders-0", 0, "t\N{LATIN SMALL LETTER E WITH ACUTE}")
    store.groups.commit("g" * 32767, "orders-0", 1)
    assert sorted(offsets(store).values()) == [0, 1]


def test_offsets_that_do_not_fit_in_one_batch_are_refused(store: Store) -> None:
    """Offsets that are committed together are in one batch, so that a crash leaves all of them or none."""
    for number in range(30):
        store.create(f"spread-{number}").append([b"a", b"b"])
    wanted = {f"spread-{number}": 1 for number in range(30)}
    log = store.groups.log_of("g")
    store.groups.commit_all("g", wanted)
    assert len(list(log.batches(0))) == 1
    store.settings.set_topic(TOPIC, "max.message.bytes", "1000")
    with pytest.raises(RecordTooLarge, match="30 records that belong together do not fit"):
        store.groups.commit_all("g", dict.fromkeys(wanted, 2))
    assert {offsets(store, name)["g"] for name in wanted} == {1}
    store.groups.commit_all("g", {"spread-0": 2, "spread-1": 2})
    assert offsets(store, "spread-1") == {"g": 2}


def test_a_read_only_store_refuses_commits(log_dir: Path) -> None:
    """The groups of a read-only store can be read, and not changed."""
    with Store(log_dir) as store:
        store.create("orders-0")
        store.groups.commit("g1", "orders-0", 0)
    with Store(log_dir, read_only=True) as store:
        assert offsets(store) == {"g1": 0}
        with pytest.raises(NotWritable):
            store.groups.commit("g1", "orders-0", 0)
        with pytest.raises(NotWritable):
            store.groups.forget("g1", "orders-0")


def test_every_version_is_read_and_other_records_are_skipped(
    store: Store, topic: Partition, caplog: pytest.LogCaptureFixture
) -> None:
    """Commits of all versions and both key types count; group metadata, later kinds and invalid records do not."""
    log = store.groups.log_of("g1")
    for version in range(5):
        log.append([logfs.Record(value(version, version), key(f"v{version}"))])
    log.append([logfs.Record(value(5), b"\0\0" + key("old")[2:])])
    log.append([logfs.Record(b"\0\3whatever", b"\0\2\0\2g1")])
    log.append([logfs.Record(b"whatever", b"\0\5\0\1g\0\1m"), logfs.Record(b"x", b"\x7f\xff")])
    assert not caplog.records
    log.append([logfs.Record(b"", key("broken")), logfs.Record(value(1), b"\0\1nonsense")])
    log.append([logfs.Record(b"\0\x09", key("newer"))])
    assert offsets(store) == {f"v{n}": n for n in range(5)} | {"old": 5}
    assert [record.message.split(" is skipped")[0] for record in caplog.records] == [
        f"groups: {log.directory}: offset {offset}" for offset in (9, 10, 11)
    ]


# Transactions.


class Coordinator:
    """A group coordinator that commits offsets in transactions, as a broker's does."""

    def __init__(self, log: Partition) -> None:
        self.log = log

    def commit(self, producer: int, *offsets: tuple[str, int]) -> None:
        """Commit offsets as part of a producer's transaction."""
        records = [logfs.Record(value(at), key(group)) for group, at in offsets]
        (built,) = build_records(records, BatchFormat(Codec.NONE, None, 10**6), T).batches
        batch = bytearray(built.data)
        attributes = int.from_bytes(batch[21:23]) | TRANSACTIONAL_BIT
        batch[21:23] = attributes.to_bytes(2)
        batch[43:57] = producer.to_bytes(8) + (0).to_bytes(2) + (-1).to_bytes(4, signed=True)
        batch[17:21] = crc32c(bytes(batch[21:])).to_bytes(4)
        self.log.append_batch(batch, coordinator=True)

    def end(self, producer: int, *, commit: bool) -> None:
        """Commit or abort a producer's transaction."""
        self.log.end_transaction(producer, 0, commit=commit)


def test_transactions_commit_abort_and_stay_open(store: Store, topic: Partition) -> None:
    """The commits of a transaction count from its COMMIT marker on, and never after an ABORT marker."""
    log = store.groups.log_of("g1")
    for group in ("both", "done", "failed", "open"):
        log.append([logfs.Record(value(1), key(group))])
    ones = offsets(store)
    assert ones == dict.fromkeys(("both", "done", "failed", "open"), 1)
    coordinator = Coordinator(log)
    coordinator.commit(7, ("done", 2), ("both", 2))
    coordinator.commit(8, ("failed", 3), ("new", 3))
    coordinator.commit(9, ("open", 4))
    assert offsets(store) == ones
    coordinator.end(8, commit=False)
    assert offsets(store) == ones
    coordinator.end(7, commit=True)
    assert offsets(store) == {"both": 2, "done": 2, "failed": 1, "open": 1}
    # A producer's next transaction contains nothing of the one before.
    coordinator.commit(8, ("done", 5))
    coordinator.end(8, commit=True)
    coordinator.end(7, commit=True)
    assert offsets(store) == {"both": 2, "done": 5, "failed": 1, "open": 1}


def test_a_later_commit_and_a_tombstone_override_a_transaction(
    store: Store, topic: Partition
) -> None:
    """COMMIT applies only offsets that no later record has replaced; a tombstone also removes them."""
    log = store.groups.log_of("g1")
    coordinator = Coordinator(log)
    coordinator.commit(7, ("later", 2), ("forgotten", 2), ("kept", 2))
    log.append([logfs.Record(value(9), key("later")), logfs.Record(None, key("forgotten"))])
    assert offsets(store) == {"later": 9}
    coordinator.end(7, commit=True)
    assert offsets(store) == {"kept": 2, "later": 9}


def test_transactions_read_the_same_followed_or_from_the_beginning(log_dir: Path) -> None:
    """Following the log and reading it from the beginning give the same offsets."""
    with Store(log_dir) as store:
        store.create("orders-0").append([b"x"] * 20)
        coordinator = Coordinator(store.groups.log_of("g1"))
        coordinator.commit(7, ("a", 2), ("b", 2))
        coordinator.commit(8, ("b", 3), ("c", 3))
        coordinator.end(7, commit=True)
        coordinator.commit(7, ("a", 4), ("d", 4))
        coordinator.end(8, commit=False)
        followed = offsets(store)
        assert followed == {"a": 2, "b": 2}
    with Store(log_dir, read_only=True) as store:
        assert offsets(store) == followed


GROUPS = st.sampled_from("abc")
STEPS = st.one_of(
    st.tuples(st.just("commit"), GROUPS, st.integers(0, 20)),
    st.tuples(st.just("forget"), GROUPS, st.none()),
    st.tuples(st.just("pend"), GROUPS, st.integers(0, 20)),
    st.tuples(st.just("end"), st.none(), st.booleans()),
    st.tuples(st.just("look"), st.none(), st.none()),
    st.tuples(st.just("roll"), st.none(), st.none()),
    st.tuples(st.just("cut"), st.none(), st.integers(0, 3)),
)


@given(st.lists(STEPS, max_size=25))
@examples(0.15)
def test_following_equals_reading_from_the_beginning(steps: list[tuple[str, str, int]]) -> None:
    """After any steps and reads, a follower has the offsets that a new reader has, and those of a model."""
    with TemporaryDirectory() as directory, Store(directory, clock=lambda: T) as store:
        store.create("orders-0").append([b"x"] * 20)
        store.settings.set_broker("offsets.topic.num.partitions", "1")
        log = store.groups.log_of("a")
        coordinator = Coordinator(log)
        model: list[tuple[int, dict[str, int], dict[str, int]]] = [(0, {}, {})]
        for step, group, number in steps:
            _, committed, pending = (dict(c) if isinstance(c, dict) else c for c in model[-1])
            if step == "commit":
                store.groups.commit(group, "orders-0", number)
                # A commit takes precedence over an earlier one in an open transaction.
                committed[group] = number
                pending.pop(group, None)
            elif step == "forget":
                log.append([logfs.Record(None, key(group))])
                committed.pop(group, None)
                pending.pop(group, None)
            elif step == "pend":
                coordinator.commit(7, (group, number))
                pending[group] = number
            elif step == "end":
                coordinator.end(7, commit=bool(number))
                committed |= pending if number else {}
                pending = {}
            elif step == "roll":
                log.roll(T)
            elif step == "cut":
                model = model[: max(len(model) - number, 1)]
                store.truncate(log.name.directory, model[-1][0])
                continue
            else:
                assert offsets(store) == committed
            model.append((log.log_end_offset, committed, pending))
        assert offsets(store) == model[-1][1]
        assert Groups(store.registry, store.create).of("orders-0") == store.groups.of("orders-0")


# Changes to the log while it is followed.


def test_new_records_are_seen_across_rolls(store: Store, topic: Partition) -> None:
    """Records that any writer has appended are seen by the next read, in any number of segments."""
    log = store.groups.log_of("g1")
    for n in range(6):
        log.append([logfs.Record(value(n), key("g1"))])
        assert offsets(store)["g1"] == n
        log.append([logfs.Record(value(n), key(f"other{n}"))])
        log.roll(T)
    assert len(offsets(store)) == 7


def test_a_truncation_takes_commits_back(store: Store, topic: Partition) -> None:
    """After a truncation older commits count again, even if the log has its old length again."""
    log = store.groups.log_of("g1")
    for n in range(4):
        log.append([logfs.Record(value(n), key("g1"))])
    assert offsets(store) == {"g1": 3}
    store.truncate(log.name.directory, 2)
    assert offsets(store) == {"g1": 1}
    store.truncate(log.name.directory, 1)
    for _ in range(2):
        log.append([logfs.Record(value(8), key("g2"))])
    store.truncate(log.name.directory, 2)
    assert offsets(store) == {"g1": 0, "g2": 8}


def test_a_recreated_offsets_partition_starts_empty(store: Store, topic: Partition) -> None:
    """A new offsets partition has no commits of a deleted partition of its name."""
    store.groups.commit("g1", "orders-0", 1)
    name = store.groups.log_of("g1").name.directory
    store.delete(name)
    assert offsets(store) == {}
    store.groups.commit("g1", "orders-0", 2)
    assert offsets(store) == {"g1": 2}
    assert store[name].config.is_compacted


def test_a_tombstone_that_was_compacted_away_before_the_next_read(
    store: Store, topic: Partition
) -> None:
    """A commit and its tombstone leave no offset if compaction removes both before the next read."""
    log = store.groups.log_of("g1")
    log.append([logfs.Record(value(1), key("g1")), logfs.Record(value(2), key("g2"))])
    assert offsets(store) == {"g1": 1, "g2": 2}
    log.append([logfs.Record(None, key("g1"))])
    log.append([logfs.Record(value(3), key("g2"))])
    log.roll(T)
    # The sealed segment after a compaction that keeps no tombstones.
    store.log_dirs[0].set_cleaner_offsets({log.name: 4})
    sealed = log.segments[0]
    data = sealed.path.read_bytes()
    *_, last = (batch for batch in log.batches(0))
    sealed.path.with_name("cleaned").write_bytes(data[-len(last.data) :])
    sealed.path.with_name("cleaned").rename(sealed.path)
    for index in sealed.indexes:
        index.path.unlink()
    cleaned = Segment(store.disk, log.directory, 0)
    cleaned.next_base = sealed.next_base
    log.publish(segments=(cleaned, *log.segments[1:]))
    assert offsets(store) == {"g2": 3}


def test_damage_is_skipped(log_dir: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The readable commits of a damaged log count, and a warning names the damage."""
    with Store(log_dir) as store:
        store.create("orders-0").append([b"x"] * 9)
        for offset in range(3):
            store.groups.commit("g1", "orders-0", offset)
            store.groups.commit(f"h{offset}", "orders-0", offset)
        path = store.groups.log_of("g1").active.path
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with Store(log_dir, read_only=True) as store:
        assert offsets(store)["g1"] == 2
    assert any("damaged" in record.message for record in caplog.records)
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def test_a_batch_with_malformed_records_is_skipped(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A batch with a right CRC and malformed records hides nothing but itself."""
    with Store(tmp_path) as store:
        store.create("orders-0").append([b"x"] * 9)
        store.groups.commit("g1", "orders-0", 3)
        path = store.groups.log_of("g1").active.path
    batch = bytearray(HEADER_SIZE) + b"\xff" * 20
    seal(
        batch,
        attributes=0,
        last_offset_delta=0,
        base_timestamp=T,
        max_timestamp=T,
        record_count=1,
    )
    assign_offset(batch, 1, 0)
    path.write_bytes(path.read_bytes() + batch)
    (tmp_path / ".kafka_cleanshutdown").unlink()
    with Store(tmp_path, read_only=True) as store:
        assert offsets(store) == {"g1": 3}
    assert any("groups: " in record.message for record in caplog.records)


# The number of partitions.


def test_the_number_of_partitions_follows_a_brokers_partitions(log_dir: Path) -> None:
    """If exactly the partitions 0 to 3 exist, the groups are spread over these four."""
    with Store(log_dir) as store:
        store.create("orders-0").append([b"x"] * 9)
        for number in range(4):
            store.create(f"{TOPIC}-{number}")
        store.groups.commit("g1", "orders-0", 5)
        assert store.groups.log_of("g1").partition == 3242 % 4
        assert store.groups.log_of("g1").config.is_compacted
        assert len(store) == 5


def test_the_setting_counts_if_partitions_of_a_broker_are_missing(log_dir: Path) -> None:
    """If some partitions are missing, the setting counts, and the partition that the hash selects is created."""
    with Store(log_dir) as store:
        store.create("orders-0").append([b"x"] * 9)
        for number in (1, 3):
            store.create(f"{TOPIC}-{number}")
        store.groups.commit("g1", "orders-0", 5)
        assert store.groups.log_of("g1").partition == 42
        assert store.registry.topic_id(TOPIC) is not None
        ids = {
            (store[name].directory / "partition.metadata").read_text()
            for name in store
            if name != "orders-0"
        }
        assert len(ids) == 1


def test_the_number_of_partitions_can_change(store: Store, topic: Partition) -> None:
    """Old commits are found after the number has changed, new ones take precedence, and forgetting deletes both."""
    store.groups.commit("g1", "orders-0", 5)
    store.groups.commit("g2", "orders-0", 6)
    store.settings.set_broker("offsets.topic.num.partitions", "7")
    assert offsets(store) == {"g1": 5, "g2": 6}
    store.groups.commit("g1", "orders-0", 4)
    assert store.groups.log_of("g1").partition == 3242 % 7
    assert offsets(store) == {"g1": 4, "g2": 6}
    assert store.groups.forget("g1", "orders-0")
    assert offsets(store) == {"g2": 6}


def test_the_newest_commit_counts_after_changes_of_the_number(
    store: Store, topic: Partition, clock: Clock
) -> None:
    """It does so if the number changes to and fro: the partition of the group now may have an older commit."""
    for count, offset in (("50", 10), ("7", 20), ("50", None)):
        clock.now_ms += 1
        store.settings.set_broker("offsets.topic.num.partitions", count)
        if offset is not None:
            store.groups.commit("g1", "orders-0", offset)
        assert offsets(store) == {"g1": offset or 20}
    # Of two commits of the same time, that in the partition of the group counts.
    store.groups.commit("g1", "orders-0", 5)
    clock.now_ms += 1
    store.groups.commit("g1", "orders-0", 6)
    store.settings.set_broker("offsets.topic.num.partitions", "7")
    store.groups.commit("g1", "orders-0", 7)
    assert offsets(store) == {"g1": 7}


def test_a_new_partition_has_no_committed_offsets(log_dir: Path) -> None:
    """Also if an earlier one of its name was removed without them, as by an interrupted deletion."""
    with Store(log_dir) as store:
        store.create("orders-0").append([b"a", b"b"])
        store.groups.commit("g", "orders-0", 2)
    shutil.rmtree(log_dir / "orders-0")
    with Store(log_dir) as store:
        store.create("orders-0").append([b"c"])
        assert store.groups.committed("g", "orders-0") is None


def test_an_offline_partition_counts(log_dir: Path) -> None:
    """A group commits where it has committed before, also while another partition, the last one, is offline."""
    with Store(log_dir) as store:
        store.create("orders-0").append([b"a", b"b", b"c"])
        for number in range(5):
            store.create(f"__consumer_offsets-{number}")
        groups = [f"g{n}" for n in range(20)]
        for group in groups:
            store.groups.commit(group, "orders-0", 1)
    (epochs := log_dir / "__consumer_offsets-4/leader-epoch-checkpoint").write_text("nonsense")
    with Store(log_dir) as store:
        assert [*store.offline] == ["__consumer_offsets-4"]
        written = []
        for group in groups:
            with suppress(PartitionFailed):
                store.groups.commit(group, "orders-0", 3)
                written.append(group)
        assert 0 < len(written) < len(groups)
    epochs.unlink()
    with Store(log_dir) as store:
        assert offsets(store) == {group: 3 if group in written else 1 for group in groups}


def test_an_offline_partition_is_named(log_dir: Path) -> None:
    """A commit names the damage of an offsets partition that is offline, and does not create it a second time."""
    with Store(log_dir) as store:
        store.create("orders-0")
        store.groups.commit("g1", "orders-0", 0)
        epochs = store.groups.log_of("g1").directory / "leader-epoch-checkpoint"
    content = epochs.read_text()
    epochs.write_text("nonsense")
    with (
        Store(log_dir) as store,
        pytest.raises(logfs.LogfsError, match="leader-epoch"),
    ):
        store.groups.commit("g1", "orders-0", 0)
    epochs.write_text(content)


@pytest.mark.parametrize(
    ("words", "offset"),
    [
        ("0", 0),
        ("12", 12),
        ("99", 99),
        ("earliest", 3),
        ("latest", 20),
        (f"@{NOON + 7000}", 7),
        (f"@{NOON + 6001}", 7),
        ("@0", 3),
        (f"@{NOON * 2}", 20),
        ("@2021-11-28T11:53:25Z", 5),
        ("2021-11-28T11:53:25Z", 5),
    ],
)
def test_offsets_in_words(topic: Partition, words: str, offset: int) -> None:
    """A number, an end, or a time is accepted; a time is the first record at or after it, or else the log end."""
    topic.advance_log_start(3)
    assert resolve_offset(topic, words) == offset


@pytest.mark.parametrize(
    "words", ["", "-1", "01", "1_0", "1.5", "newest", "@", "@noon", "1\n2", "9" * 20]
)
def test_words_that_are_no_offset(topic: Partition, words: str) -> None:
    """Any other text is refused, and the error says what to give."""
    with pytest.raises(InvalidName, match="give a number, earliest, latest, or a time"):
        resolve_offset(topic, words)


# The mount.


@pytest.fixture
def groups(orders: Path) -> Path:
    """The directory `orders-0/groups` of a mounted partition of twenty records, a second apart from noon on."""
    # The records are years old: retention would delete them during a slow test.
    (orders / "config/retention.ms").write_text("-1")
    lines = [orjson.dumps({"value": f"{n}", "timestamp": NOON + n * 1000}) for n in range(20)]
    (orders / "append.jsonl").write_bytes(b"\n".join(lines) + b"\n")
    return orders / "groups"


def test_files_of_groups(mount: Mount, groups: Path) -> None:
    """`echo 5 > groups/new` commits, cat and ls show the offsets, and `rm` deletes none."""
    assert os.listdir(groups) == []
    before = time.time()
    run("sh", "-c", "echo 5 > new; echo 12 >> billing; echo 13 > billing", cwd=groups)
    after = time.time()
    assert sorted(os.listdir(groups)) == ["billing", "new"]
    assert run("cat", groups / "billing", groups / "new") == "13\n5\n"
    found = (groups / "billing").stat()
    assert found.st_size == 3
    assert before - 0.01 <= found.st_mtime <= after
    assert (groups / "billing.lag").read_text() == "7\n"
    assert (groups / "billing.lag").stat().st_size == 2
    forget(mount, "billing")
    assert os.listdir(groups) == ["new"]
    for name in ("billing", "billing.lag", "nobody", "nobody.lag"):
        with pytest.raises(FileNotFoundError):
            (groups / name).read_bytes()
    run("sh", "-c", "echo 6 > billing", cwd=groups)
    with pytest.raises(PermissionError):
        (groups / "billing").unlink()
    assert (groups / "billing").read_text() == "6\n"


def test_the_lag_grows_with_the_log(groups: Path) -> None:
    """The lag is the log end less the committed offset at every read, even while another handle is open."""
    (groups / "g").write_text("latest")
    lag = groups / "g.lag"
    with lag.open() as held:
        assert held.read() == "0\n"
        (groups.parent / "append").write_text("a\n" * 15)
        assert lag.read_text() == "15\n"
        assert lag.stat().st_size == 3
    (groups / "g").write_text("earliest")
    assert lag.read_text() == "35\n"


def test_writing_commits(groups: Path) -> None:
    """Each way to write an offset commits it, for an existing group and for a new one."""
    ways = {
        "7": 7,
        "7\n": 7,
        " 20 \n": 20,
        "earliest\n": 0,
        "latest": 20,
        f"@{NOON + 7000}\n": 7,
        "@2021-11-28T11:53:25Z\n": 5,
        "@2121-11-28\n": 20,
    }
    for words, offset in ways.items():
        for name in ("old", str(hash(words))):
            (groups / name).write_text(words)
            assert (groups / name).read_text() == f"{offset}\n"
            assert (groups / f"{name}.lag").read_text() == f"{20 - offset}\n"
    assert len(os.listdir(groups)) == len(ways) + 1


def test_a_refused_commit_changes_nothing(mount: Mount, groups: Path) -> None:
    """The writer gets an errno, `.logfs/errors` the reason; the old offset stays, and no new file appears."""
    (groups / "old").write_text("3")
    for words, number, reason in (
        (b"21\n", errno.ERANGE, "orders-0: offset 21 is not in [0, 20]; nothing is committed"),
        (b"-1\n", errno.EINVAL, "'-1' is not an offset: give a number, earliest"),
        (b"\n", errno.EINVAL, "'' is not an offset"),
        (b"1\n2\n", errno.EINVAL, "is not an offset"),
        (b"\xff\n", errno.EINVAL, "is not UTF-8"),
    ):
        for name in ("old", "new"):
            with pytest.raises(OSError, match=os.strerror(number)):
                (groups / name).write_bytes(words)
            assert reason in mount.errors().splitlines()[-1]
    assert os.listdir(groups) == ["old"]
    assert (groups / "old").read_text() == "3\n"


def test_a_lag_can_only_be_read(mount: Mount, groups: Path) -> None:
    """Writing to, creating or removing a lag file is EPERM, with a reason in `.logfs/errors`."""
    (groups / "g").write_text("3")
    for name in ("g.lag", "new.lag"):
        with pytest.raises(PermissionError):
            (groups / name).write_text("3")
    with pytest.raises(PermissionError):
        (groups / "g.lag").unlink()
    assert "lag files are read-only" in mount.errors()
    assert (groups / "g").read_text() == "3\n"


def test_a_group_exists_once_it_has_an_offset(groups: Path) -> None:
    """`touch` creates nothing that stays; a file that is open and empty has size 0."""
    run("touch", groups / "g")
    assert not (groups / "g").exists()
    with (groups / "g").open("w") as file:
        assert (groups / "g").stat().st_size == 0
        assert os.listdir(groups) == []
        file.write("4")
        file.flush()
        assert (groups / "g").read_text() == "4\n"
        file.write("5")
        file.flush()
        assert (groups / "g").read_text() == "5\n"
    assert (groups / "g").read_text() == "5\n"
    with pytest.raises(FileExistsError):
        (groups / "g").open("x")
    with (groups / "h").open("x") as file:
        file.write("6")
    assert (groups / "h").read_text() == "6\n"


def test_a_group_can_be_forgotten_while_its_file_is_open(mount: Mount, groups: Path) -> None:
    """An open file of a forgotten group keeps its text; the file is empty then, and gone when it is closed."""
    (groups / "g").write_text("4")
    with (groups / "g").open() as held:
        forget(mount, "g")
        assert held.read() == "4\n"
        assert (groups / "g").read_text() == ""
    wait_for(lambda: not (groups / "g").exists())
    (groups / "g").write_text("5")
    assert (groups / "g").read_text() == "5\n"


def test_names_of_groups(mount: Mount, groups: Path) -> None:
    """A group name that cannot be a file name is percent-encoded; Kafka's records have the original name."""
    files = {
        "a/b": "a%2Fb",
        ".hidden": "%2Ehidden",
        "x.lag": "x%2Elag",
        "100%": "100%25",
        "groups": "groups",
        "two words": "two words",
        "caf\N{LATIN SMALL LETTER E WITH ACUTE}": "caf\N{LATIN SMALL LETTER E WITH ACUTE}",
    }
    for name in files.values():
        (groups / name).write_text("3")
        assert (groups / name).read_text() == "3\n"
        assert (groups / f"{name}.lag").read_text() == "17\n"
        assert (groups / name).stat().st_mode & 0o111 == 0
    assert sorted(os.listdir(groups)) == sorted(files.values())
    mount.stop()
    with Store(mount.log_dirs, read_only=True) as store:
        assert offsets(store) == dict.fromkeys(files, 3)


def forget(mount: Mount, group: str) -> None:
    """Delete the offset of a group for orders-0 by the command."""
    ok("groups", mount.log_dirs[0], "--forget", group, "orders-0")


def test_invalid_file_names_of_groups_are_refused(mount: Mount, groups: Path) -> None:
    """A file name that encodes no group is refused, and the reason suggests the right name."""
    for name, right in ((".swp", "%2Eswp"), ("50%", "50%25"), ("%41", "%2541"), ("%2f", "%252f")):
        with pytest.raises(OSError, match="Invalid argument"):
            (groups / name).write_text("3")
        assert f"is not a valid group name; did you mean {right}? (" in mount.errors()
    assert os.listdir(groups) == []


def test_attributes(groups: Path) -> None:
    """A group's file has the commit's metadata and leader epoch as extended attributes."""
    (groups / "g").write_text("4")
    names = os.listxattr(groups / "g")
    assert sorted(names) == ["user.logfs.leader_epoch", "user.logfs.metadata"]
    assert os.getxattr(groups / "g", "user.logfs.leader_epoch") == b"0"
    assert os.getxattr(groups / "g", "user.logfs.metadata") == b""


def test_commits_survive_the_daemon(mount: Mount, groups: Path) -> None:
    """A commit is permanent after fsync, with O_SYNC or after a clean end; kill -9 loses nothing that was written."""
    (groups / "g").write_text("4")
    with (groups / "synced").open("w") as file:
        file.write("5")
        file.flush()
        os.fsync(file.fileno())
    fd = os.open(groups / "sync", os.O_WRONLY | os.O_CREAT | os.O_SYNC, 0o644)
    os.write(fd, b"6\n")
    os.close(fd)
    mount.kill()
    mount.start()
    assert {name: (groups / name).read_text() for name in os.listdir(groups)} == {
        "g": "4\n",
        "sync": "6\n",
        "synced": "5\n",
    }


def test_fsync_flushes_the_partition_of_the_commit(mount: Mount, groups: Path) -> None:
    """fsync of a group's file raises the recovery point of the offsets partition that has the commit."""

    def recovery_point() -> int:
        status = orjson.loads((mount.path / f"{TOPIC}-42/status.json").read_bytes())
        return int(status["recovery_point"])

    with (groups / "g1").open("w") as file:
        file.write("5")
        file.flush()
        assert recovery_point() == 0
        os.fsync(file.fileno())
        assert recovery_point() == 1


def test_the_mode_of_the_directory_decides_who_may_commit(
    mount: Mount, groups: Path, make_mount: Callable[..., Mount]
) -> None:
    """The modes of the files follow the mode of the directory, which is kept over a remount."""
    (groups / "g").write_text("4")
    assert groups.stat().st_mode & 0o777 == 0o755
    assert (groups / "g").stat().st_mode & 0o777 == 0o644
    groups.chmod(0o777)
    assert (groups / "g").stat().st_mode & 0o777 == 0o666
    assert (groups / "g.lag").stat().st_mode & 0o777 == 0o444
    mount.remount()
    assert groups.stat().st_mode & 0o777 == 0o777
    with pytest.raises(PermissionError):
        (groups / "g").chmod(0o600)


def test_other_users_may_read_and_not_commit(
    make_mount: Callable[..., Mount],
) -> None:
    """Without w on the directory another user can read offsets, but not commit them; nobody can remove a file."""
    need_root()
    setpriv = need_command("setpriv")
    mount = make_mount("-o", "allow_other")
    groups = mount.partition("orders-0") / "groups"
    (groups / "g").write_text("0")
    other = [setpriv, "--reuid=65534", "--regid=65534", "--clear-groups", "sh", "-c"]
    script = "cat g; echo 0 > g || echo no; echo 0 > h || echo no; rm -f g || echo no"
    assert run(*other, script, cwd=groups) == "0\nno\nno\nno\n"
    groups.chmod(0o777)
    assert run(*other, "echo 0 > h && ls; rm g || ls", cwd=groups) == "g\nh\n" * 2


def test_a_read_only_mount(mount: Mount, groups: Path, make_mount: Callable[..., Mount]) -> None:
    """On a read-only mount offsets can be read; writing, creating and removing are EROFS."""
    (groups / "g").write_text("4")
    mount.stop()
    folder = make_mount("--read-only", name="ro", log_dirs=mount.log_dirs).path / "orders-0/groups"
    assert os.listdir(folder) == ["g"]
    assert (folder / "g").read_text() == "4\n"
    assert (folder / "g.lag").read_text() == "16\n"
    for change in (
        lambda: (folder / "g").write_text("5"),
        lambda: (folder / "new").write_text("5"),
        lambda: (folder / "g").unlink(),
    ):
        with pytest.raises(OSError, match="Read-only") as caught:
            change()
        assert caught.value.errno == errno.EROFS


def test_a_deletion_forgets(mount: Mount, groups: Path) -> None:
    """A partition that is created again after its deletion has no groups."""
    (groups / "g").write_text("4")
    ok("delete", f"{mount.log_dirs[0]}/orders-0")
    assert os.listdir(mount.partition("orders-0") / "groups") == []


def test_the_commits_are_records_of_a_partition(mount: Mount, groups: Path) -> None:
    """`__consumer_offsets-42` is a partition like any other, and its `records.jsonl` is never stale."""
    (groups / "g1").write_text("4")
    folder = mount.path / f"{TOPIC}-42"
    records = folder / "records.jsonl"
    for count in range(1, 4):
        for _ in range(3):
            assert len(records.read_bytes().splitlines()) == count
            time.sleep(0.06)
        (groups / "g1").write_text(str(count))
    forget(mount, "g1")
    *_, last = (orjson.loads(line) for line in records.read_bytes().splitlines())
    assert last["value"] is None
    assert (folder / "config/cleanup.policy").read_text() == "compact\n"


def test_many_writers(mount: Mount, groups: Path) -> None:
    """Eight writers commit at once, the last commit of each counts, and appends are served at the same time."""
    script = "for n in $(seq 0 20); do echo $n > $0; done"
    writers = [
        subprocess.Popen(["sh", "-c", script, f"group{number}"], cwd=groups) for number in range(8)
    ]
    (groups.parent / "append").write_text("beside\n")
    assert [writer.wait(60) for writer in writers] == [0] * 8
    assert {(groups / name).read_text() for name in os.listdir(groups)} == {"20\n"}
    assert len(os.listdir(groups)) == 8


# The command line.


def test_logfs_groups(log_dir: Path) -> None:
    """`logfs groups` prints the table of kafka-consumer-groups, or the same as JSON; it also commits and forgets."""
    with Store(log_dir) as store:
        for name in ("orders-0", "orders-1", "pay-0"):
            store.create(name).append([b"x"] * 9)
        store.groups.commit("billing", "orders-0", 2, "half")
        store.groups.commit("billing", "pay-0", 9)
        store.groups.commit("audit", "orders-0", 0)
    expected = [
        ["GROUP", "TOPIC", "PARTITION", "CURRENT-OFFSET", "LOG-END-OFFSET", "LAG"],
        ["audit", "orders", "0", "0", "9", "9"],
        ["billing", "orders", "0", "2", "9", "7"],
        ["billing", "pay", "0", "9", "9", "0"],
    ]
    assert [line.split() for line in ok("groups", log_dir).splitlines()] == expected
    assert [
        line.split() for line in ok("groups", log_dir, "-p", "orders-0").splitlines()
    ] == expected[:3]
    assert ok("groups", log_dir, "-p", "orders") == ok("groups", log_dir, "-p", "orders-0")
    shown = ok("groups", log_dir, "-g", "billing")
    assert [line.split() for line in shown.splitlines()] == [expected[0], *expected[2:]]
    row = orjson.loads(ok("groups", log_dir, "-p", "orders-0", "--json").splitlines()[1])
    assert row.pop("commitTimestamp") > T
    assert row == {
        "group": "billing",
        "topic": "orders",
        "partition": 0,
        "offset": 2,
        "logEndOffset": 9,
        "lag": 7,
        "leaderEpoch": 0,
        "metadata": "half",
    }
    assert (
        ok("groups", log_dir, "--commit", "new", "orders-1", "latest")
        == "committed offset 9 of new for orders-1\n"
    )
    assert (
        ok("groups", log_dir, "--forget", "audit", "orders-0")
        == "deleted the offset of audit for orders-0\n"
    )
    rows = [line.split() for line in ok("groups", log_dir).splitlines()[1:]]
    assert rows == [*expected[2:], ["new", "orders", "1", "9", "9", "0"]]
    assert ok("groups", log_dir, "--commit", "new", "orders", "earliest") == (
        "committed offset 0 of new for orders-0\ncommitted offset 0 of new for orders-1\n"
    )
    assert "not in [0, 9]" in fails("groups", log_dir, "--commit", "new", "orders", "10")
    assert ok("groups", log_dir, "--forget", "new", "orders").count("deleted the offset") == 2
    rows = [line.split() for line in ok("groups", log_dir).splitlines()[1:]]
    assert rows == expected[2:]


def test_logfs_groups_of_partitions_that_are_elsewhere(log_dir: Path) -> None:
    """A broker's log directory has commits of groups for partitions that it does not hold."""
    with Store(log_dir) as store:
        store.create("orders-0")
        store.groups.log_of("g").append([logfs.Record(value(4), key("g", "far", 7))])
        assert GroupOffset("g", ("far", 7), OffsetCommit(4, "", T)) in list(store.groups)  # type: ignore[arg-type]
    assert ok("groups", log_dir).splitlines()[1].split() == ["g", "far", "7", "4", "-", "-"]
    assert orjson.loads(ok("groups", log_dir, "--json"))["lag"] is None


def test_logfs_groups_errors(log_dir: Path, tmp_path: Path) -> None:
    """An error is one line with what failed, where, and what to do."""
    with Store(log_dir) as store:
        store.create("orders-0").append([b"x"] * 9)
    assert "none does not exist" in fails("groups", tmp_path / "none")
    assert "no such partition" in fails("groups", log_dir, "-p", "none-0")
    assert "not in [0, 9]" in fails("groups", log_dir, "--commit", "g", "orders-0", "10")
    assert "'ten' is not an offset" in fails("groups", log_dir, "--commit", "g", "orders-0", "ten")
    done = call("groups", log_dir, "--forget", "g", "orders-0")
    assert (done.returncode, done.stderr) == (1, b"")
    assert done.stdout == b"g has no offset committed for orders-0\n"
    assert ok("groups", log_dir).split() == [
        "GROUP",
        "TOPIC",
        "PARTITION",
        "CURRENT-OFFSET",
        "LOG-END-OFFSET",
        "LAG",
    ]


def test_logfs_delete_forgets(log_dir: Path) -> None:
    """`logfs delete` also deletes the offsets that groups have committed for the partition."""
    with Store(log_dir) as store:
        store.create("orders-0")
        store.groups.commit("g", "orders-0", 0)
    ok("delete", log_dir / "orders-0")
    assert len(ok("groups", log_dir).splitlines()) == 1


def test_a_commit_in_an_offline_partition_is_an_error_and_not_missing(log_dir: Path) -> None:
    """If the commit were reported as missing, a consumer would begin at the start again."""
    with Store(log_dir) as store:
        store.create("orders-0").append([b"one"])
        store.groups.commit("billing", "orders-0", 1)
        home = store.groups.log_of("billing").directory
    log = next(home.glob("*.log"))
    log.rename(log.with_suffix(".kept"))
    log.mkdir()
    with Store(log_dir) as store:
        with pytest.raises(PartitionFailed, match="offline"):
            store.groups.committed("billing", "orders-0")
        with pytest.raises(PartitionFailed, match="offline"):
            store.groups.commit("billing", "orders-0", 0)
    log.rmdir()
    log.with_suffix(".kept").rename(log)
    with Store(log_dir) as store:
        found = store.groups.committed("billing", "orders-0")
        assert found is not None
        assert found.offset == 1


def test_no_partition_is_deleted_while_offsets_are_offline(tmp_path: Path) -> None:
    """Offsets that were committed for it cannot be removed then, and would count for a new partition of the name."""
    holder, other, orders = split_store(tmp_path)
    with Store([holder, other]) as store:
        store.groups.commit("a", orders, 1)
        offsets_name = store.groups.log_of("a").name.directory
    with Store([holder, other]) as store:
        next(each for each in store.log_dirs if each.path == holder).disk.fail("broken")
        store.registry.take_failed_offline()
        with pytest.raises(PartitionFailed, match=f"{offsets_name}: the committed .* offline"):
            store.delete(orders)
        assert orders in store
        store.create("rest-0")
    with Store([holder, other]) as store:
        store.delete(orders)
        store.create(orders)
        assert store.groups.committed("a", orders) is None


def test_a_topic_with_a_similar_name_that_is_offline_hides_no_commit(log_dir: Path) -> None:
    """`__consumer_offsets-old` is another topic, although its partitions' names begin alike."""
    with Store(log_dir) as store:
        store.create("orders-0").append([b"one"])
        store.create("__consumer_offsets-old-0")
    log = next((log_dir / "__consumer_offsets-old-0").glob("*.log"))
    log.unlink()
    log.mkdir()
    with Store(log_dir) as store:
        assert [*store.offline] == ["__consumer_offsets-old-0"]
        assert store.groups.committed("billing", "orders-0") is None
        store.groups.commit("billing", "orders-0", 1)
    log.rmdir()
    log.touch()


def test_a_store_that_is_opened_without_one_of_its_log_directories(tmp_path: Path) -> None:
    """A commit that may be elsewhere is an error and not missing, and no second partition is made for it."""
    one, two = tmp_path / "one", tmp_path / "two"
    with Store([one, two]) as store:
        for n in range(4):
            store.create(f"orders-{n}").append([b"value"])
        store.groups.commit("a", "orders-0", 1)
        log = store.groups.log_of("a")
        away, name = store.registry.home(log.name.directory), log.name.directory
    here = two if away == one else one
    orders = next(path.name for path in here.glob("orders-*"))
    for read_only in (False, True):
        with Store(here, read_only=read_only) as store:
            with pytest.raises(
                InvalidStore, match=rf"{away / name}: .* name the log directories together"
            ):
                store.groups.committed("a", orders)
            if not read_only:
                with pytest.raises(InvalidStore, match=str(away / name)):
                    store.groups.commit("a", orders, 1)
    assert not (here / name).exists()
    with Store([two, one]) as store:
        assert store.groups.committed("a", "orders-0") is not None
        assert store.groups.committed("b", orders) is None


def split_store(tmp_path: Path) -> tuple[Path, Path, str]:
    """Make a store of two log directories and a group `a` there.

    Returns the directory with the offsets of the group, the other one, and a partition in that one.
    """
    one, two = tmp_path / "one", tmp_path / "two"
    with Store([one, two]) as store:
        for n in range(4):
            store.create(f"orders-{n}").append([b"value"])
        store.groups.commit("a", "orders-0", 1)
        holder = store.registry.home(store.groups.log_of("a").name.directory)
    other = two if holder == one else one
    return holder, other, next(path.name for path in other.glob("orders-*"))


def test_a_copy_of_a_log_directory_is_a_store_of_its_own(tmp_path: Path) -> None:
    """What a log directory says of the others of its store does not hold for a copy."""
    holder, other, orders = split_store(tmp_path)
    copy = tmp_path / "copy"
    shutil.copytree(other, copy)
    with Store(copy) as store:
        assert store.groups.committed("a", orders) is None
        store.groups.commit("a", orders, 1)
    assert_clean(copy)
    assert_clean(holder, other)


def test_log_directories_that_have_changed_their_names_are_still_one_store(tmp_path: Path) -> None:
    """Each is at the path where the other one was."""
    holder, other, _ = split_store(tmp_path)
    between = holder.rename(tmp_path / "between")
    other.rename(holder)
    between.rename(other)
    with Store([holder, other]):
        pass
    for path in (holder, other):
        assert store_dirs(Disk(), path) == (path, {holder, other})


@pytest.mark.parametrize("how", ["renamed", "with a new one", "without the other"])
def test_a_log_directory_stays_part_of_its_store(tmp_path: Path, how: str) -> None:
    """Also renamed, after it was open with some of the others only, and while another one is away."""
    holder, other, orders = split_store(tmp_path)
    if how == "renamed":
        other = other.rename(tmp_path / "renamed")
    elif how == "with a new one":
        with Store([other, tmp_path / "new"]) as store:
            store.create("more-0")
    else:
        away = holder.rename(tmp_path / "away")
    for path in [other, tmp_path / "new"][: 1 + (how == "with a new one")]:
        with Store(path) as store:
            name = next(iter(store))
            with pytest.raises(InvalidStore, match=str(holder)):
                store.groups.committed("a", name)
            with pytest.raises(InvalidStore, match=str(holder)):
                store.groups.commit("a", name, 0)
    if how == "without the other":
        away.rename(holder)
    with Store([holder, other]) as store:
        assert store.groups.committed("a", "orders-0") is not None
        store.groups.commit("b", orders, 1)
    for path in (holder, other):
        with Store([path, *({holder, other} - {path})], read_only=True) as store:
            assert store.groups.committed("b", orders) is not None


def test_a_log_directory_that_is_gone_for_good_can_be_forgotten(tmp_path: Path) -> None:
    """The message says how."""
    holder, other, orders = split_store(tmp_path)
    shutil.rmtree(holder)
    with (
        Store(other) as store,
        pytest.raises(InvalidStore, match=f"remove {STORE_DIRS} in {other}"),
    ):
        store.groups.commit("a", orders, 1)
    (other / STORE_DIRS).unlink()
    with Store(other) as store:
        store.groups.commit("a", orders, 1)


def test_a_partition_is_not_deleted_without_what_groups_have_committed(tmp_path: Path) -> None:
    """A partition of that name that is created later would have the old offsets."""
    holder, other, orders = split_store(tmp_path)
    with Store(other) as store, pytest.raises(InvalidStore, match=str(holder)):
        store.delete(orders)
    with Store([holder, other]) as store:
        store.groups.commit("a", orders, 1)
    ok("delete", other / orders)
    with Store([holder, other]) as store:
        assert orders not in store
        assert store.groups.committed("a", orders) is None
