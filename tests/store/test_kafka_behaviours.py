"""Behaviours that Kafka's own tests pin for rolling, retention, deletion and cleaning, and that fit no one module.

Tests of such behaviours that belong to one module are beside the tests of that module, and name their source in
brackets, as the tests here do. One behaviour differs: damage does not cut a log here (docs/durability.md), so no
snapshot of producers goes for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from logfs import errors
from logfs.format.base import names
from logfs.format.batches.record import Record
from logfs.log.segment.batch_iterator import Damage
from logfs.store.store import Store
from tests.support.batches import Producer
from tests.support.partitions import bases, log, raw_batch, raw_partition, snapshots
from tests.support.stores import abandon, assert_clean, set_topic

if TYPE_CHECKING:
    from pathlib import Path

    from logfs.log.append.partition import Partition
    from tests.support.stores import Clock

NAME = "orders-0"
DAY = 86_400_000


def append(orders: Partition, count: int, key: bytes | None = None) -> None:
    """Append `count` records, each in a batch of the same size."""
    for _ in range(count):
        orders.append([Record(b"%04d" % orders.log_end_offset, key)])


def fill(orders: Partition, clock: Clock, segments: int, records: int) -> None:
    """Append `segments` sealed segments of `records` records each, and an empty active segment."""
    for _ in range(segments):
        append(orders, records)
        orders.roll(clock())


@pytest.fixture
def orders(store: Store) -> Partition:
    set_topic(store, "orders", file_delete_delay_ms=1000)
    return store.create(NAME)


# Segments and producers.


def test_filter_to_empty_batch_retention_and_deletion(
    store: Store, orders: Partition, clock: Clock
) -> None:
    """The header that stays of an empty batch has the last offset and the greatest timestamp of the batch.

    (Kafka's tests of records)

    The time of the segment follows from the header. A later round that does not need the header removes it.
    """
    set_topic(store, "orders", cleanup_policy="compact", message_timestamp_after_max_ms=2 * DAY)
    producer = Producer(orders, 1, transactional=False)
    clock.now_ms += DAY
    producer.send("a", "b")
    clock.now_ms -= DAY
    append(orders, 1, b"a")
    append(orders, 1, b"b")
    store.compact(NAME, roll=True)
    empty, *_ = orders.batches(0)
    header = empty.header
    assert (header.size_bytes, header.record_count, header.last_offset) == (61, 0, 1)
    assert header.max_timestamp == clock() + DAY
    assert orders.segments[0].max_timestamp == (clock() + DAY, 1)
    producer.send("c")
    append(orders, 1, b"c")
    store.compact(NAME, roll=True)
    shapes = [(b.header.last_offset, b.header.record_count) for b in orders.batches(0)]
    assert shapes == [(2, 1), (3, 1), (4, 0), (5, 1)]


def test_skip_snapshot_if_offset_unchanged(store: Store, orders: Partition, clock: Clock) -> None:
    """A roll takes no second snapshot at the same offset, and none at 0 (Kafka's tests of producers)."""
    orders.roll(clock())
    assert snapshots(orders) == []
    append(orders, 2)
    orders.roll(clock())
    (path,) = orders.directory.glob("*" + names.SNAPSHOT)
    inode = path.stat().st_ino
    orders.roll(clock())
    store.close()
    assert snapshots(orders) == [2]
    assert path.stat().st_ino == inode


@pytest.mark.parametrize("clean", [True, False])
def test_loading_log_keeps_largest_stray_producer_state_snapshot(
    log_dir: Path, clock: Clock, *, clean: bool
) -> None:
    """With segments 0, 1 and 2, a log end of 4 and snapshots 1, 2, 3 and 4, loading removes 3.

    (Kafka's tests of loading)
    """
    store = Store(log_dir, clock=clock)
    orders = store.create(NAME)
    producer = Producer(orders, 1, transactional=False)
    for key in "abcd":
        producer.send(key)
        if key in "ab":
            orders.roll(clock())
        if key == "c":
            orders.snapshots.write(3, orders.producers)
    store.close()
    assert snapshots(orders) == [1, 2, 3, 4]
    if not clean:
        (log_dir / ".kafka_cleanshutdown").unlink()
    with Store(log_dir, clock=clock) as again:
        assert bases(again[NAME]) == [0, 1, 2]
        assert snapshots(orders) == [1, 2, 4]
        assert again[NAME].append_batch(producer.sent).duplicate


def reloaded_after(
    store: Store, orders: Partition, log_dir: Path, clock: Clock, start: int
) -> tuple[set[int], set[int]]:
    """Delete the records below `start`, and return the producer ids before and after the log is loaded again."""
    store.delete_records(NAME, start)
    store.retain()
    before = {entry.producer_id for entry in orders.producers.entries()}
    orders.flush()
    abandon(store)
    for path in orders.directory.glob("*" + names.SNAPSHOT):
        path.unlink()
    with Store(log_dir, clock=clock) as again:
        after = {entry.producer_id for entry in again[NAME].producers.entries()}
    return before, after


def test_load_producers_after_delete_records_mid_segment(log_dir: Path, clock: Clock) -> None:
    """A producer of a segment that still exists is known after a reload, too (Kafka's tests of loading)."""
    store = Store(log_dir, clock=clock)
    orders = store.create(NAME)
    for number in (1, 2):
        Producer(orders, number, transactional=False).send("a")
    orders.roll(clock())
    assert reloaded_after(store, orders, log_dir, clock, 1) == ({1, 2}, {1, 2})


def test_load_producers_after_delete_records_on_segment(log_dir: Path, clock: Clock) -> None:
    """Moving the log start drops no producer; a reload drops one whose only segment is gone.

    (Kafka's tests of loading)
    """
    store = Store(log_dir, clock=clock)
    orders = store.create(NAME)
    for number in (1, 2):
        Producer(orders, number, transactional=False).send("a")
        orders.roll(clock())
    assert reloaded_after(store, orders, log_dir, clock, 1) == ({1, 2}, {2})
    assert bases(orders) == [1, 2]


@pytest.mark.parametrize("clean", [True, False])
def test_rebuild_producer_id_map_with_compacted_data(
    log_dir: Path, clock: Clock, *, clean: bool
) -> None:
    """The last sequence is that of the batch's last offset, even if the record at that offset is gone.

    (Kafka's tests of the log)
    """
    store = Store(log_dir, clock=clock)
    set_topic(store, "orders", cleanup_policy="compact")
    orders = store.create(NAME)
    producer = Producer(orders, 1, transactional=False)
    producer.send("a", "b", "c")
    append(orders, 1, b"c")
    store.compact(NAME, roll=True)
    assert [record.offset for record in orders.read()] == [0, 1, 3]
    if clean:
        store.close()
    else:
        orders.flush()
        abandon(store)
        for path in orders.directory.glob("*" + names.SNAPSHOT):
            path.unlink()
    with Store(log_dir, clock=clock) as again:
        producer.orders = again[NAME]
        assert again[NAME].producers[1].last_sequence == 2
        assert producer.send("d") == 4


# Retention and deletion.


def test_retention_deletes_producer_state_snapshots(
    store: Store, orders: Partition, clock: Clock
) -> None:
    """A snapshot is renamed with its segment at once, and removed from the disk later.

    (Kafka's tests of the log)
    """
    fill(orders, clock, 3, 5)
    assert snapshots(orders) == [5, 10, 15]
    store.delete_records(NAME, 10)
    assert store.retain() == 2
    assert snapshots(orders) == [10, 15]
    assert orders.snapshots.path(5).with_suffix(".snapshot.deleted").exists()
    clock.now_ms += 1000
    store.upkeep()
    assert not [*orders.directory.glob("*.deleted")]


def test_should_delete_size_based_segments(store: Store, orders: Partition, clock: Clock) -> None:
    """With 15 records, 5 in a segment, a limit of the bytes of 10 records leaves 2 segments.

    (Kafka's tests of the log)
    """
    append(orders, 1)
    each = orders.size_bytes
    set_topic(store, "orders", segment_bytes=5 * each, retention_bytes=10 * each)
    append(orders, 14)
    assert bases(orders) == [0, 5, 10]
    assert store.retain() == 1
    assert bases(orders) == [5, 10]
    assert orders.log_start_offset == 5


def test_should_not_delete_segments_when_policy_does_not_include_delete(
    store: Store, orders: Partition, clock: Clock
) -> None:
    """Without `delete` in the policy, segments are deleted neither by age nor by size.

    (Kafka's tests of the log)
    """
    set_topic(store, "orders", cleanup_policy="compact", retention_ms=1, retention_bytes=1)
    append(orders, 5, b"k")
    orders.roll(clock())
    append(orders, 5, b"k")
    clock.now_ms += DAY
    assert store.retain() == 0
    assert bases(orders) == [0, 5]


def test_should_delete_start_offset_breached_segments_when_policy_does_not_include_delete(
    store: Store, orders: Partition, clock: Clock
) -> None:
    """A segment that lies wholly below the log start is deleted, whatever the policy (Kafka's tests of the log)."""
    fill(orders, clock, 3, 5)
    store.delete_records(NAME, 12)
    set_topic(store, "orders", cleanup_policy="compact")
    assert store.retain() == 2
    assert bases(orders) == [10, 15]


def test_delete_old_segments(store: Store, orders: Partition, clock: Clock) -> None:
    """After all has expired at a log end of 100 in epoch 1, the only epoch entry is (1, 100).

    (Kafka's tests of the log)
    """
    append(orders, 50)
    orders.roll(clock())
    orders.epochs.assign(1, 50)
    append(orders, 50)
    set_topic(store, "orders", retention_ms=DAY)
    clock.now_ms += DAY + 1
    assert store.retain() == 2
    assert bases(orders) == [100]
    assert orders.epochs.entries == [(1, 100)]
    text = (orders.directory / "leader-epoch-checkpoint").read_bytes()
    assert text == b"0\n1\n1 100\n"
    assert store.retain() == 0


def test_cannot_increment_log_start_offset_past_high_watermark(
    store: Store, orders: Partition, clock: Clock
) -> None:
    """The log start cannot pass the high watermark, which is the log end without replicas.

    (Kafka's tests of the log)
    """
    fill(orders, clock, 2, 5)
    with pytest.raises(errors.OffsetOutOfRange):
        store.delete_records(NAME, 11)
    assert orders.log_start_offset == 0
    assert store.delete_records(NAME, 10) == 10


def test_cannot_delete_segments_at_or_above_high_watermark(
    store: Store, orders: Partition, clock: Clock
) -> None:
    """The empty segment at the log end stays; once it has records, it is deleted and a new one follows.

    (Kafka's tests of the log)
    """
    fill(orders, clock, 2, 5)
    set_topic(store, "orders", retention_bytes=0)
    assert store.retain() == 2
    assert bases(orders) == [10]
    append(orders, 3)
    assert store.retain() == 1
    assert (orders.log_start_offset, orders.log_end_offset, bases(orders)) == (13, 13, [13])


def test_async_delete(store: Store, orders: Partition, clock: Clock) -> None:
    """Files get `.deleted` at once, and are removed after the delay and after their readers have ended.

    (Kafka's tests of the log)
    """
    fill(orders, clock, 2, 5)
    reading = orders.read()
    next(reading)
    store.delete_records(NAME, 5)
    store.retain()
    doomed = sorted(path.name for path in orders.directory.glob("*.deleted"))
    suffixes = (".index", ".log", ".textindex", ".timeindex")
    assert doomed == [f"{log(0, suffix)}.deleted" for suffix in suffixes]
    clock.now_ms += 999
    store.upkeep()
    assert len([*orders.directory.glob("*.deleted")]) == 4
    clock.now_ms += 1
    store.upkeep()
    assert len([*orders.directory.glob("*.deleted")]) == 4
    assert [record.offset for record in reading] == list(range(1, 10))
    store.upkeep()
    assert not [*orders.directory.glob("*.deleted")]


def test_cleanup_expired_segments(store: Store, orders: Partition, clock: Clock) -> None:
    """Upkeep drops the expired segments of all logs, and appends go on (Kafka's tests of loading)."""
    others = [store.create(f"orders-{number}") for number in (1, 2)]
    for partition in (orders, *others):
        fill(partition, clock, 3, 5)
        append(partition, 1)
    set_topic(store, "orders", retention_ms=DAY)
    clock.now_ms += DAY + 1
    store.upkeep()
    for partition in (orders, *others):
        assert bases(partition) == [16]
        assert partition.append([b"next"]) == 16


# Loading.


@pytest.mark.parametrize("clean", [True, False])
def test_over_compacted_log_recovery(log_dir: Path, clock: Clock, *, clean: bool) -> None:
    """Segments whose offsets are more than 2^31 apart are loaded as they are, and are not merged.

    (Kafka's tests of loading)
    """
    far = 2**31 + 5
    batches = {0: [Record(b"a", b"a")], far: [Record(b"b", b"b")], far + 1: [Record(b"c", b"b")]}
    files = {base: raw_batch(records, base) for base, records in batches.items()}
    raw_partition(log_dir, {log(0): files[0], log(far): files[far] + files[far + 1]})
    (log_dir / "cleaner-offset-checkpoint").write_bytes(b"0\n1\norders 0 1\n")
    if clean:
        Store(log_dir, clock=clock).close()
    with Store(log_dir, clock=clock) as store:
        set_topic(store, "orders", cleanup_policy="compact")
        orders = store[NAME]
        assert [record.offset for record in orders.read()] == [0, far, far + 1]
        store.compact(NAME, roll=True)
        assert [record.offset for record in orders.read()] == [0, far + 1]
        assert bases(orders) == [0, far, far + 2]
        assert not any(isinstance(found, Damage) for s in orders.segments for found in s.walk())
    assert_clean(log_dir)
