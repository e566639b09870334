"""The producers of a log: sequences, epochs, transactions and snapshots (kafka-storage 9)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from logfs import errors
from logfs.format.base import names
from logfs.format.batches.batch import Batch
from logfs.format.batches.record import TimestampType
from logfs.format.files.aborted_transactions import AbortedTransaction, parse_aborted
from logfs.format.files.producer_snapshot import ProducerEntry, format_snapshot, parse_snapshot
from logfs.log.disk.disk import Disk
from logfs.store.observe.check import Severity, check
from logfs.store.store import Store
from tests.support.batches import NOW, batch
from tests.support.partitions import snapshots
from tests.support.stores import set_topic

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from logfs.log.append.partition import Partition
    from logfs.log.append.result import AppendedBatch

NAME = "orders-0"
LAST_SEQUENCE = 2**31 - 1


@pytest.fixture
def orders(store: Store) -> Partition:
    return store.create(NAME)


def offsets(done: AppendedBatch) -> tuple[int, int]:
    assert not done.duplicate
    return done.first_offset, done.last_offset


# Sequences and epochs.


def test_an_unknown_producer_may_begin_anywhere_and_goes_on_without_a_gap(
    orders: Partition,
) -> None:
    assert offsets(orders.append_batch(batch(1, 7, b"a", b"b"))) == (0, 1)
    assert offsets(orders.append_batch(batch(1, 9, b"c"))) == (2, 2)
    for sequence in (0, 8, 11):
        with pytest.raises(
            errors.OutOfOrderSequence, match=rf"sequence number {sequence} \(epoch 0\)"
        ):
            orders.append_batch(batch(1, sequence, b"x"))
    assert [record.value for record in orders.read()] == [b"a", b"b", b"c"]


def test_sequences_wrap_around(orders: Partition) -> None:
    orders.append_batch(batch(1, LAST_SEQUENCE - 1, b"a", b"b"))
    with pytest.raises(errors.OutOfOrderSequence):
        orders.append_batch(batch(1, 1, b"x"))
    assert offsets(orders.append_batch(batch(1, 0, b"c"))) == (2, 2)


def test_a_new_epoch_begins_at_zero_and_an_old_one_is_fenced(orders: Partition) -> None:
    orders.append_batch(batch(1, 0, b"a", epoch=3))
    with pytest.raises(errors.OutOfOrderSequence):
        orders.append_batch(batch(1, 1, b"x", epoch=4))
    orders.append_batch(batch(1, 0, b"b", epoch=4))
    with pytest.raises(
        errors.InvalidProducerEpoch, match="epoch 3 is older than the current epoch 4"
    ):
        orders.append_batch(batch(1, 1, b"x", epoch=3))


@pytest.mark.parametrize("age", range(5))
def test_the_last_five_batches_are_recognised_as_duplicates(orders: Partition, age: int) -> None:
    sent = [batch(1, 2 * n, b"a", b"b") for n in range(7)]
    done = [orders.append_batch(data) for data in sent]
    again = orders.append_batch(sent[6 - age])
    assert again == done[6 - age]._replace(duplicate=True)
    assert orders.log_end_offset == 14


def test_older_and_overlapping_repetitions_are_out_of_order(orders: Partition) -> None:
    for number in range(6):
        orders.append_batch(batch(1, 2 * number, b"a", b"b"))
    for sequence, values in ((0, (b"a", b"b")), (10, (b"a",)), (9, (b"a", b"b"))):
        with pytest.raises(errors.OutOfOrderSequence):
            orders.append_batch(batch(1, sequence, *values))


def test_producers_do_not_mix(orders: Partition) -> None:
    orders.append_batch(batch(1, 0, b"a"))
    orders.append_batch(batch(2, 5, b"b"))
    orders.append([b"no producer"])
    assert offsets(orders.append_batch(batch(1, 1, b"c"))) == (3, 3)
    assert offsets(orders.append_batch(batch(2, 6, b"d"))) == (4, 4)


def test_a_coordinator_need_not_keep_to_sequences(orders: Partition) -> None:
    orders.append_batch(batch(1, 5, b"a", epoch=1), coordinator=True)
    orders.append_batch(batch(1, 2, b"b", epoch=1), coordinator=True)
    assert orders.log_end_offset == 2
    with pytest.raises(errors.InvalidProducerEpoch):
        orders.append_batch(batch(1, 3, b"c", epoch=0), coordinator=True)


# Transactions.


def test_a_transaction_holds_the_stable_offset_until_its_marker(orders: Partition) -> None:
    orders.append([b"before"])
    assert orders.last_stable_offset == 1
    orders.append_batch(batch(1, 0, b"a", transactional=True))
    orders.append([b"between"])
    orders.append_batch(batch(2, 0, b"b", transactional=True))
    assert orders.last_stable_offset == 1
    assert orders.end_transaction(1, 0, commit=True) == 4
    assert orders.last_stable_offset == 3
    assert orders.end_transaction(2, 0, commit=False) == 5
    assert orders.last_stable_offset == 6
    (aborted,) = orders.active.txn_index.entries
    assert aborted == AbortedTransaction(2, 3, 5, 6)


def test_a_marker_that_does_not_fit_begins_a_segment(store: Store, orders: Partition) -> None:
    set_topic(store, "orders", segment_bytes=200)
    orders.append_batch(batch(1, 0, b"a" * 60, transactional=True))
    assert orders.end_transaction(1, 0, commit=True) == 1
    assert [segment.base_offset for segment in orders.segments] == [0, 1]


def test_index_entries_hold_the_last_stable_offset(orders: Partition) -> None:
    orders.append_batch(batch(1, 0, b"a", transactional=True))
    orders.append_batch(batch(2, 0, b"b", transactional=True))
    orders.end_transaction(2, 0, commit=False)
    orders.end_transaction(1, 0, commit=False)
    path = orders.active.txn_index.path
    assert parse_aborted(path.read_bytes()) == [
        AbortedTransaction(2, 1, 2, 0),
        AbortedTransaction(1, 0, 3, 4),
    ]
    for rest in (b"\0", bytes(33)):
        assert len(parse_aborted(path.read_bytes() + rest)) == 2, "an entry that was cut off"


@pytest.mark.parametrize("change", ["append", "truncate"])
def test_a_flush_makes_the_index_durable(
    orders: Partition, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    """Each change of the transaction index is synced by the next flush, and by no later one."""
    synced: list[str] = []
    sync = Disk.sync
    monkeypatch.setattr(
        Disk, "sync", lambda disk, file: (synced.append(file.path.suffix), sync(disk, file))
    )
    for number in range(2):
        orders.append_batch(batch(1, number, b"a", transactional=True))
        orders.end_transaction(1, 0, commit=False)
    index = orders.active.txn_index
    if change == "truncate":
        index.flush()
        synced.clear()
        orders.truncate(2)
    assert ".txnindex" not in synced
    for _ in range(2):
        index.flush()
        assert synced.count(".txnindex") == 1


def test_a_batch_outside_an_open_transaction_is_refused(orders: Partition) -> None:
    orders.append_batch(batch(1, 0, b"a", transactional=True))
    with pytest.raises(errors.InvalidTransactionState, match="since offset 0"):
        orders.append_batch(batch(1, 1, b"b"))
    orders.end_transaction(1, 0, commit=True)
    orders.append_batch(batch(1, 1, b"b"))


def test_a_marker_may_raise_the_epoch_and_sequences_then_restart(orders: Partition) -> None:
    orders.append_batch(batch(1, 0, b"a", b"b", transactional=True))
    orders.end_transaction(1, 1, commit=False)
    with pytest.raises(errors.OutOfOrderSequence):
        orders.append_batch(batch(1, 2, b"x", epoch=1))
    with pytest.raises(errors.InvalidProducerEpoch):
        orders.append_batch(batch(1, 2, b"x", epoch=0))
    orders.append_batch(batch(1, 0, b"c", epoch=1))


def test_a_lone_marker_ends_nothing_but_is_remembered(orders: Partition) -> None:
    orders.end_transaction(1, 0, commit=False, coordinator_epoch=4)
    assert not orders.active.txn_index.entries
    with pytest.raises(errors.CoordinatorFenced, match="coordinator epoch 3"):
        orders.end_transaction(1, 0, commit=True, coordinator_epoch=3)
    orders.end_transaction(1, 0, commit=True, coordinator_epoch=4)
    with pytest.raises(errors.OutOfOrderSequence):
        orders.append_batch(batch(1, 3, b"x"))
    orders.append_batch(batch(1, 0, b"a"))


def test_duplicates_are_recognised_after_the_commit(orders: Partition) -> None:
    sent = batch(1, 0, b"a", transactional=True)
    orders.append_batch(sent)
    orders.end_transaction(1, 0, commit=True)
    assert orders.append_batch(sent).duplicate


# What a leader refuses.


def refusals() -> Sequence[tuple[bytes, type[Exception]]]:
    good = bytearray(batch(1, 0, b"a"))
    broken = bytearray(good)
    broken[-1] ^= 1
    moved = bytearray(good)
    moved[7] = 9
    magic = bytearray(good)
    magic[16] = 1
    return [
        (bytes(broken), errors.Corrupt),
        (bytes(good[:-1]), errors.Corrupt),
        (bytes(good) + b"\0", errors.Corrupt),
        (bytes(moved), errors.InvalidRecord),
        (bytes(magic), errors.Unsupported),
        (batch(1, -1, b"a"), errors.InvalidRecord),
        (batch(1, 0, b"a", epoch=-1), errors.InvalidRecord),
        (batch(-1, -1, b"a", epoch=-1, transactional=True), errors.InvalidRecord),
        (batch(1, 0, b"a", timestamp=-5), errors.InvalidRecord),
        (batch(1, 0, b"a", timestamp=NOW + 3_600_001), errors.InvalidRecord),
        (batch(1, 0, b"a" * 2_000_000), errors.RecordTooLarge),
    ]


@pytest.mark.parametrize("number", range(11))
def test_a_bad_batch_changes_nothing(orders: Partition, number: int) -> None:
    data, error = refusals()[number]
    with pytest.raises(error):
        orders.append_batch(data)
    assert orders.log_end_offset == 0
    assert len(orders.producers) == 0


def test_a_batch_keeps_its_bytes_except_offset_and_epoch(orders: Partition) -> None:
    orders.append([b"before"])
    data = batch(4242, 12, b"value", epoch=7)
    orders.append_batch(data)
    (found,) = orders.batches(1)
    assert found.header.base_offset == 1
    assert found.data[12 + 4 :] == data[12 + 4 :]
    assert found.data[8:12] == data[8:12]


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd", "uncompressed"])
def test_a_batch_compressed_again_keeps_its_producer(store: Store, codec: str) -> None:
    orders = store.create(NAME)
    store.settings.set_topic("orders", "compression.type", codec)
    orders.append_batch(batch(4242, 12, b"value" * 50, b"w", epoch=7, transactional=True))
    (found,) = orders.batches(0)
    header = found.header
    assert header.codec.kafka_name.replace("none", "uncompressed") == codec
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (4242, 7, 12)
    assert header.is_transactional
    assert [record.value for record in orders.read()] == [b"value" * 50, b"w"]


def test_log_append_time_replaces_the_time_of_the_producer(store: Store) -> None:
    orders = store.create(NAME)
    store.settings.set_topic("orders", "message.timestamp.type", "LogAppendTime")
    orders.append_batch(batch(1, 0, b"a", timestamp=5))
    assert [record.timestamp for record in orders.read()] == [NOW]


# Snapshots and recovery.


def test_a_roll_and_a_clean_close_leave_snapshots(log_dir: Path) -> None:
    with Store(log_dir, clock=lambda: NOW) as store:
        orders = store.create(NAME)
        orders.append_batch(batch(4242, 13, b"a", b"b", epoch=7, transactional=True))
        orders.roll(NOW)
        assert snapshots(orders) == [2]
        orders.append([b"c"])
    assert snapshots(orders) == [2, 3]
    entry = ProducerEntry(4242, 7, 14, 1, 1, NOW, -1, 0)
    assert parse_snapshot(orders.snapshots.path(3).read_bytes()) == [entry]


@pytest.mark.parametrize("clean", [True, False])
def test_producers_are_known_after_a_restart(log_dir: Path, clean: bool) -> None:
    with Store(log_dir, clock=lambda: NOW) as store:
        orders = store.create(NAME)
        orders.append_batch(batch(1, 0, b"a", b"b"))
        orders.append_batch(batch(2, 0, b"c", transactional=True))
        orders.end_transaction(2, 0, commit=False)
        orders.roll(NOW)
        orders.append_batch(batch(1, 2, b"d"))
        orders.append_batch(batch(3, 0, b"e", transactional=True))
    if not clean:
        (log_dir / ".kafka_cleanshutdown").unlink()
    with Store(log_dir, clock=lambda: NOW, recover=not clean) as store:
        orders = store[NAME]
        assert orders.last_stable_offset == 5
        assert orders.append_batch(batch(1, 2, b"d")).duplicate
        with pytest.raises(errors.OutOfOrderSequence):
            orders.append_batch(batch(1, 4, b"x"))
        assert offsets(orders.append_batch(batch(1, 3, b"f"))) == (6, 6)
        orders.end_transaction(3, 0, commit=True)
        assert orders.last_stable_offset == 8
        assert list(orders.segments[0].txn_index.entries) == [AbortedTransaction(2, 2, 3, 4)]


@pytest.mark.parametrize("damage", [b"", b"\0", b"\0\1\0\0", bytes(10), b"\0\2" + bytes(8)])
def test_a_damaged_snapshot_is_rebuilt_from_the_log(log_dir: Path, damage: bytes) -> None:
    with Store(log_dir, clock=lambda: NOW) as store:
        orders = store.create(NAME)
        orders.append_batch(batch(1, 0, b"a"))
        orders.roll(NOW)
        orders.append_batch(batch(1, 1, b"b"))
    orders.snapshots.path(2).write_bytes(damage)
    with Store(log_dir, clock=lambda: NOW) as store:
        orders = store[NAME]
        assert orders.append_batch(batch(1, 1, b"b")).duplicate
    assert snapshots(orders) == [1, 2]


def test_stray_snapshots_and_those_beyond_the_end_are_removed(log_dir: Path) -> None:
    """Of the snapshots at no base offset only the newest stays, if it is above all base offsets.

    (Kafka's tests of producers)
    """
    with Store(log_dir, clock=lambda: NOW) as store:
        orders = store.create(NAME)
        for number in range(4):
            orders.append_batch(batch(1, number, b"a"))
        orders.roll(NOW)
        orders.append([b"b"])
    for offset in (1, 3, 9):
        orders.snapshots.path(offset).write_bytes(format_snapshot([]))
    with Store(log_dir, clock=lambda: NOW):
        assert snapshots(orders) == [4, 5]


def test_truncation_restores_the_producers(store: Store) -> None:
    orders = store.create(NAME)
    orders.append_batch(batch(1, 0, b"a"))
    orders.append_batch(batch(2, 0, b"b", transactional=True))
    orders.roll(NOW)
    orders.append_batch(batch(1, 1, b"c"))
    orders.end_transaction(2, 0, commit=False)
    orders.roll(NOW)
    store.truncate(NAME, 3)
    assert orders.last_stable_offset == 1
    assert not orders.active.txn_index.entries
    assert orders.append_batch(batch(1, 1, b"c")).duplicate
    orders.end_transaction(2, 0, commit=True)
    store.truncate(NAME, 0)
    assert orders.last_stable_offset == 0
    assert len(orders.producers) == 0
    assert snapshots(orders) == []


def test_a_log_is_flushed_after_an_aborted_transaction_was_cut_off(store: Store) -> None:
    """The roll of the empty segment removes the transaction index, which then needs no fsync."""
    orders = store.create(NAME)
    orders.append_batch(batch(1, 0, b"a", transactional=True))
    orders.end_transaction(1, 0, commit=False)
    store.truncate(NAME, 0)
    orders.roll(NOW)
    assert not orders.active.txn_index.path.exists()
    orders.append([b"b"])
    orders.roll(NOW)
    assert orders.flush() == 1
    assert orders.failure is None


def test_idle_producers_expire_and_open_transactions_do_not(log_dir: Path) -> None:
    now = NOW
    with Store(log_dir, clock=lambda: now) as store:
        orders = store.create(NAME)
        orders.append_batch(batch(1, 0, b"a"))
        orders.append_batch(batch(2, 0, b"b", transactional=True))
        now += 86_399_999
        store.upkeep()
        assert len(orders.producers) == 2
        now += 600_000
        store.upkeep()
        assert [entry.producer_id for entry in orders.producers.entries()] == [2]
        orders.append_batch(batch(1, 77, b"c", timestamp=now))


@pytest.mark.parametrize("recover", [False, True])
def test_idle_producers_are_not_loaded_from_a_snapshot(log_dir: Path, recover: bool) -> None:
    with Store(log_dir, clock=lambda: NOW) as store:
        orders = store.create(NAME)
        orders.append_batch(batch(1, 0, b"a"))
        orders.append_batch(batch(2, 0, b"b", transactional=True))
    with Store(log_dir, clock=lambda: NOW + 86_400_000, recover=recover) as store:
        assert [entry.producer_id for entry in store[NAME].producers.entries()] == [2]


def test_a_duplicate_may_roll_the_log(store: Store) -> None:
    """The log rolls before the producer's sequence is checked, as in Kafka."""
    store.settings.set_topic("orders", "segment.bytes", "100")
    orders = store.create(NAME)
    again = batch(1, 0, b"a" * 30)
    assert orders.append_batch(again).first_offset == 0
    assert orders.append_batch(again).duplicate
    assert [segment.base_offset for segment in orders.segments] == [0, 1]


def test_a_store_without_snapshots_that_was_closed_cleanly_gets_empty_ones(log_dir: Path) -> None:
    """A log of a release without snapshots gets them at the last two base offsets and the log end.

    (Kafka's tests of the log)
    """
    with Store(log_dir, clock=lambda: NOW) as store:
        orders = store.create(NAME)
        orders.append([b"a"])
        orders.roll(NOW)
        orders.append([b"b"])
    for path in orders.directory.glob("*" + names.SNAPSHOT):
        path.unlink()
    with Store(log_dir, clock=lambda: NOW):
        assert snapshots(orders) == [1, 2]


def test_a_read_only_store_writes_no_snapshot(log_dir: Path) -> None:
    with Store(log_dir, clock=lambda: NOW) as store:
        orders = store.create(NAME)
        orders.append_batch(batch(1, 0, b"a"))
        orders.append_batch(batch(2, 0, b"b", transactional=True))
    for path in orders.directory.glob("*" + names.SNAPSHOT):
        path.unlink()
    with Store(log_dir, read_only=True) as store:
        assert store[NAME].last_stable_offset == 1
    assert snapshots(orders) == []


def test_an_impossible_transaction_index_is_rebuilt(log_dir: Path) -> None:
    with Store(log_dir, clock=lambda: NOW) as store:
        orders = store.create(NAME)
        orders.append_batch(batch(1, 0, b"a", transactional=True))
        orders.end_transaction(1, 0, commit=False)
        orders.roll(NOW)
        orders.append([b"b"])
        path = orders.segments[0].txn_index.path
    good = path.read_bytes()
    path.write_bytes(AbortedTransaction(1, -9, -5, 0).pack())
    with Store(log_dir, clock=lambda: NOW):
        assert path.read_bytes() == good


@pytest.mark.parametrize("entry", [(1, 0, 2, 3), (2, 0, 2, 3), (1, 2, 3, 4)])
def test_an_abort_that_the_log_does_not_have_is_an_error(
    log_dir: Path, entry: tuple[int, int, int, int]
) -> None:
    """The audit reports an index entry without its marker, which hides committed records; a reindex repairs it."""
    with Store(log_dir, clock=lambda: NOW) as store:
        orders = store.create(NAME)
        orders.append_batch(batch(1, 0, b"a", transactional=True))
        orders.end_transaction(1, 0, commit=False)
        orders.append_batch(batch(1, 1, b"b", transactional=True))
        orders.end_transaction(1, 0, commit=True)
        orders.roll(NOW)
        path = orders.segments[0].txn_index.path
    assert list(check(log_dir)) == []
    path.write_bytes(path.read_bytes() + AbortedTransaction(*entry).pack())
    (found,) = check(log_dir)
    assert (found.severity, found.path) == (Severity.ERROR, path)
    with Store(log_dir, clock=lambda: NOW, recover=True):
        pass
    assert list(check(log_dir)) == []


def test_a_marker_has_the_timestamp_type_of_the_topic(store: Store) -> None:
    store.settings.set_topic("orders", "message.timestamp.type", "LogAppendTime")
    orders = store.create(NAME)
    orders.end_transaction(1, 0, commit=True)
    (found,) = orders.active.walk()
    assert isinstance(found, tuple)
    assert found[1].header.timestamp_type is TimestampType.LOG_APPEND_TIME


def test_an_index_without_room_stays_sparse(log_dir: Path) -> None:
    """Recovery would make an entry for each batch, but the index has space for three."""
    with Store(log_dir, clock=lambda: NOW) as store:
        orders = store.create(NAME)
        for value in range(9):
            orders.append([b"%d" % value])
        store.settings.set_topic("orders", "index.interval.bytes", "0")
        store.settings.set_topic("orders", "segment.index.bytes", "24")
    with Store(log_dir, clock=lambda: NOW, recover=True) as store:
        assert store[NAME].log_end_offset == 9
        assert 0 < len(store[NAME].segments[0].offset_index) <= 3


def test_a_marker_is_a_batch_as_kafka_writes_it(orders: Partition) -> None:
    orders.end_transaction(4242, 7, commit=True, coordinator_epoch=9)
    (found,) = orders.batches(0)
    assert isinstance(found, Batch)
    assert found.header.attributes == 0x30
    assert (found.header.producer_id, found.header.producer_epoch) == (4242, 7)
    assert found.header.base_sequence == -1
    assert [(r.key, r.value) for r in found.records()] == [(b"\0\0\0\1", b"\0\0\0\0\0\t")]
    assert list(orders.read()) == []
