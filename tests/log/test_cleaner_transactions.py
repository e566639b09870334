"""Compaction of transactions, markers, and the last batch of a producer (kafka-storage 8.5, 8.6)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from logfs.format.batches.batch import Batch
from logfs.format.batches.record import Record
from logfs.format.text.rendering import View
from logfs.log.compaction.cleaner import clean
from logfs.log.compaction.cleaning import Dirty
from logfs.store.store import Store
from tests.support.batches import Producer

if TYPE_CHECKING:
    from pathlib import Path

    from logfs.log.append.partition import Partition
    from tests.support.stores import Clock

NAME = "orders-0"
DAY = 86_400_000
# What `shape` shows for a bare header and for a marker; for a batch of records it shows the keys.
EMPTY, MARKER = "empty", "marker"


@pytest.fixture
def orders(store: Store) -> Partition:
    store.settings.set_topic("orders", "cleanup.policy", "compact")
    orders = store.create(NAME)
    store.checkpoints.set_cleaner_offset(orders, 0)
    return orders


def put(orders: Partition, *keys: str) -> int:
    return orders.append([Record(b"plain", key.encode()) for key in keys])


def run(orders: Partition, clock: Clock, first_dirty: int = 0) -> int:
    """Roll, clean the segments below the last stable offset, and return the first dirty offset."""
    orders.roll(clock())
    bound = min(orders.active.base_offset, orders.last_stable_offset)
    bound = max(s.base_offset for s in orders.segments if s.base_offset <= bound)
    return clean(orders, Dirty(first_dirty, bound), clock(), memory_bytes=1 << 20).first_dirty


def shape(orders: Partition) -> list[tuple[int, str]]:
    """Return (base offset, keys) of every batch, with `EMPTY` or `MARKER` in place of the keys of such a batch."""
    found = []
    for batch in orders.batches(orders.log_start_offset):
        keys = ",".join((record.key or b"").decode() for record in batch.records())
        what = MARKER if batch.header.is_control else keys
        found.append((batch.header.base_offset, what if batch.header.record_count else EMPTY))
    return found


def committed(orders: Partition) -> list[tuple[int, bytes | None]]:
    return [(record.offset, record.key) for record in orders.committed.read()]


def test_basic_transaction_aware_cleaning(orders: Partition, clock: Clock) -> None:
    """Aborted records replace nothing and are removed at once; markers stay until their horizon.

    (Kafka's tests of compaction)
    """
    one, two = Producer(orders, 1), Producer(orders, 2)
    put(orders, "1", "2", "3")
    one.send("1", "2")
    two.send("2", "3")
    one.send("3")
    abort = one.end(commit=False)
    commit = two.end(commit=True)
    put(orders, "9")
    run(orders, clock)
    # Only an aborted record overwrote key 1. The last batch of its producer leaves its header.
    assert shape(orders) == [
        (0, "1"),
        (5, "2,3"),
        (7, EMPTY),
        (abort, MARKER),
        (commit, MARKER),
        (10, "9"),
    ]
    assert committed(orders) == [(0, b"1"), (5, b"2"), (6, b"3"), (10, b"9")]
    # The aborted transaction stays in the index as long as that header exists.
    assert [entry[:3] for entry in orders.segments[0].txn_index.entries] == [(1, 3, abort)]


def test_commit_marker_removal(orders: Partition, clock: Clock) -> None:
    """A marker whose records an earlier pass removed stays for delete.retention.ms, and then goes.

    (Kafka's tests of compaction)
    """
    producer = Producer(orders, 1)
    producer.send("1", "2")
    commit = producer.end(commit=True)
    producer.send("1", "2")
    second = producer.end(commit=True)
    put(orders, "0")
    run(orders, clock)
    assert shape(orders) == [(commit, MARKER), (3, "1,2"), (second, MARKER), (6, "0")]
    # This pass still saw the records, so it sets no delete horizon.
    assert [batch.header.delete_horizon_ms for batch in orders.batches(0)] == [None] * 4
    run(orders, clock, 7)
    first, *_ = orders.batches(0)
    assert first.header.delete_horizon_ms == clock() + DAY
    clock.now_ms += DAY - 1
    run(orders, clock, 7)
    assert shape(orders)[0] == (commit, MARKER)
    clock.now_ms += 1
    run(orders, clock, 7)
    assert shape(orders) == [(3, "1,2"), (second, MARKER), (6, "0")]


def test_a_marker_goes_though_the_producer_has_records_before_it(
    orders: Partition, clock: Clock
) -> None:
    """What counts for a commit marker are the records of its own transaction, not those of an earlier one."""
    producer = Producer(orders, 1)
    producer.send("1")
    producer.end(commit=True)
    producer.send("2")
    second = producer.end(commit=True)
    producer.send("3")
    producer.end(commit=True)
    put(orders, "2")
    run(orders, clock)
    wanted = [(0, "1"), (1, MARKER), (second, MARKER), (4, "3"), (5, MARKER), (6, "2")]
    assert shape(orders) == wanted
    run(orders, clock, 7)
    clock.now_ms += DAY
    run(orders, clock, 7)
    wanted.remove((second, MARKER))
    assert shape(orders) == wanted


def test_abort_marker_removal(orders: Partition, clock: Clock) -> None:
    """An abort marker goes like a commit marker, its index entry once a pass finds no batch of it.

    (Kafka's tests of compaction)
    """
    producer = Producer(orders, 1)
    producer.send("1")
    abort = producer.end(commit=False)
    producer.send("2")
    commit = producer.end(commit=True)
    put(orders, "0")
    run(orders, clock)
    assert shape(orders) == [(abort, MARKER), (2, "2"), (commit, MARKER), (4, "0")]
    # This pass still saw the aborted batch; the next does not.
    assert [entry.last_offset for entry in orders.segments[0].txn_index.entries] == [abort]
    run(orders, clock, 5)
    assert not orders.segments[0].txn_index.entries
    marker, *_ = orders.batches(0)
    assert marker.header.delete_horizon_ms == clock() + DAY
    clock.now_ms += DAY
    run(orders, clock, 5)
    assert shape(orders) == [(2, "2"), (commit, MARKER), (4, "0")]


def test_records_after_an_abort_below_the_dirty_part_replace_others(
    orders: Partition, clock: Clock
) -> None:
    """The pass that notes keys does not read that abort's marker; its producer's next transaction is committed."""
    producer = Producer(orders, 1)
    producer.send("1")
    producer.end(commit=False)
    orders.roll(clock())
    put(orders, "1")
    dirty = run(orders, clock)
    producer.send("1", "2")
    producer.send_records([Record(None, b"1")])
    producer.end(commit=True)
    put(orders, "9")
    assert committed(orders) == [(2, b"1"), (3, b"1"), (4, b"2"), (5, b"1"), (7, b"9")]
    dirty = run(orders, clock, dirty)
    assert committed(orders) == [(4, b"2"), (5, b"1"), (7, b"9")]
    clock.now_ms += DAY
    run(orders, clock, dirty)
    assert committed(orders) == [(4, b"2"), (7, b"9")]


def test_commit_marker_retention_with_empty_batch(orders: Partition, clock: Clock) -> None:
    """A marker stays as long as the header of a batch of its transaction stays (Kafka's tests of compaction)."""
    producer = Producer(orders, 1)
    producer.send("1")
    producer.end(commit=True)
    put(orders, "1")
    run(orders, clock)
    assert shape(orders) == [(0, EMPTY), (1, MARKER), (2, "1")]
    clock.now_ms += 10 * DAY
    run(orders, clock, 3)
    assert shape(orders) == [(0, EMPTY), (1, MARKER), (2, "1")]
    # Once the producer sends again, the old header is no longer that of its last batch.
    producer.send("7")
    producer.end(commit=True)
    run(orders, clock, 3)
    assert shape(orders) == [(1, MARKER), (2, "1"), (3, "7"), (4, MARKER)]
    clock.now_ms += DAY
    run(orders, clock, 5)
    run(orders, clock, 5)
    clock.now_ms += DAY
    run(orders, clock, 5)
    assert shape(orders) == [(2, "1"), (3, "7"), (4, MARKER)]


def test_clean_empty_control_batch(orders: Partition, clock: Clock) -> None:
    """The last marker of a round stays as long as the records of its transaction, and is then removed.

    (Kafka's tests of compaction)
    """
    producer = Producer(orders, 1)
    producer.send("1")
    producer.send("1")
    producer.end(commit=True)
    put(orders, "1")
    producer.send("1")
    last = producer.end(commit=True)
    orders.roll(clock())
    bound = orders.active.base_offset
    orders.expire_producers(clock() + 10 * DAY, DAY)
    for _ in range(3):
        run(orders, clock, bound)
        clock.now_ms += DAY
    assert shape(orders)[-1] == (last, MARKER)
    put(orders, "1")
    for _ in range(4):
        run(orders, clock, bound)
        clock.now_ms += DAY
    assert shape(orders) == [(last + 1, "1")]


def test_multi_pass_segment_cleaning_with_aborted_transactions(
    orders: Partition, clock: Clock
) -> None:
    """An aborted transaction stays aborted over several passes, and its records stay hidden.

    (Kafka's tests of compaction)
    """
    one, two = Producer(orders, 1), Producer(orders, 2)
    one.send("1")
    two.send("1")
    two.end(commit=False)
    one.send("2")
    one.end(commit=True)
    two.send("3")
    two.end(commit=True)
    put(orders, "9")
    for first_dirty in (0, 8, 8):
        run(orders, clock, first_dirty)
        assert committed(orders) == [(0, b"1"), (3, b"2"), (5, b"3"), (7, b"9")]
        clock.now_ms += DAY
    run(orders, clock, 8)
    assert [what for _, what in shape(orders)].count(MARKER) == 2


def test_aborted_transaction_spanning_segments(orders: Partition, clock: Clock) -> None:
    """Aborted records are removed even if the marker is in a later segment that is not cleaned.

    (Kafka's tests of compaction)
    """
    producer = Producer(orders, 1)
    put(orders, "1")
    producer.send("1")
    orders.roll(clock())
    producer.send("1")
    producer.end(commit=False)
    bound = orders.active.base_offset
    clean(orders, Dirty(0, bound), clock(), memory_bytes=1 << 20)
    assert shape(orders) == [(0, "1"), (1, EMPTY), (2, "1"), (3, MARKER)]
    assert committed(orders) == [(0, b"1")]
    assert [entry[:3] for entry in orders.active.txn_index.entries] == [(1, 1, 3)]
    put(orders, "2")
    run(orders, clock)
    assert shape(orders) == [(0, "1"), (2, EMPTY), (3, MARKER), (4, "2")]


def test_undecided_transactional_data_not_cleanable(
    orders: Partition, store: Store, clock: Clock
) -> None:
    """The first uncleanable offset does not pass an open transaction until it ends (Kafka's tests of compaction)."""
    producer = Producer(orders, 1)
    put(orders, "1", "1")
    orders.roll(clock())
    producer.send("1")
    orders.roll(clock())
    put(orders, "2")
    orders.roll(clock())
    assert store.compactor.plan(NAME).dirty.first_uncleanable == 2
    producer.end(commit=True)
    orders.roll(clock())
    assert store.compactor.plan(NAME).dirty.first_uncleanable == orders.log_end_offset


@pytest.mark.parametrize("clean_start", [True, False])
def test_duplicate_check_after_cleaning(log_dir: Path, clock: Clock, *, clean_start: bool) -> None:
    """A batch that is sent again is a duplicate even after its records were compacted."""
    store = Store(log_dir, clock=clock)
    store.settings.set_topic("orders", "cleanup.policy", "compact")
    orders = store.create(NAME)
    producers = [Producer(orders, n, transactional=False) for n in (1, 2, 3)]
    for producer in producers:
        producer.send("1", "2")
        producer.send("3", "1", "2")
    put(orders, "1", "2", "3")
    store.compact(NAME, roll=True)
    assert shape(orders) == [(2, EMPTY), (7, EMPTY), (12, EMPTY), (15, "1,2,3")]
    if clean_start:
        store.close()
    else:
        orders.flush()
        for home in store.log_dirs:
            home.close()
        for path in orders.directory.glob("*.snapshot"):
            path.unlink()
    with Store(log_dir, clock=clock) as store:
        orders = store[NAME]
        for producer in producers:
            first = 5 * (producer.producer_id - 1) + 2
            done = orders.append_batch(producer.sent)
            assert (done.first_offset, done.last_offset) == (first, first + 2)
            assert done.duplicate
            header = Batch.parse(producer.sent).header
            assert orders.producers[producer.producer_id].last_sequence == header.last_sequence


def test_committed_readers_keep_hiding_aborted_records_after_compaction(
    orders: Partition, clock: Clock
) -> None:
    """An iterator and text views over the old segments hide aborted records whose index entries are gone."""
    producer = Producer(orders, 1)
    for number in range(6):
        put(orders, f"{number}")
        producer.send("aborted")
        producer.end(commit=False)
        orders.roll(clock())
    late = orders.committed.text(View.LINES)
    early = orders.committed.text(View.LINES)
    size = early.size
    reading = orders.committed.read()
    next(reading)
    for _ in range(3):
        run(orders, clock, 0)
        clock.now_ms += DAY
        orders.remove_dropped(clock())
    put(orders, "end")
    assert [(r.offset, r.key) for r in reading] == [(3 * n, b"%d" % n) for n in range(1, 6)]
    for text in (early, late):
        assert text.read(0, 1000) == b"plain\n" * 7
        assert text.size == size + 6
    assert len(committed(orders)) == 7
