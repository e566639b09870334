"""Transactions over several partitions: atomic, durable, fenced, and ended after a crash (kafka-storage 9, 12)."""

from __future__ import annotations

import errno
import random
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from logfs.errors import (
    InvalidName,
    InvalidProducerEpoch,
    InvalidTransactionState,
    NotWritable,
    PartitionFailed,
)
from logfs.format.base.names import TopicPartition
from logfs.format.messages.transaction_record import (
    TransactionState,
    TransactionStatus,
    parse_state,
    parse_transactional_id,
)
from logfs.log.append.partition import Partition
from logfs.log.segment.batch_iterator import DamagedRange
from logfs.store.store import Store
from tests.support import crashdisk
from tests.support.batches import Producer
from tests.support.examples import seed_of
from tests.support.requirements import DEEP
from tests.support.stores import Clock, errors_of, set_topic

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from logfs.log.read.log import Log

TOPIC = "__transaction_state"
SEED = seed_of("LOGFS_TRANSACTIONS_SEED")


def committed(log: Log) -> list[bytes | None]:
    """Return the values that readers of committed records see."""
    return [record.value for record in log.committed.read()]


def states(store: Store) -> dict[str, TransactionState]:
    """Return the last state of each transactional id, from the records themselves."""
    found = {}
    for name in store.registry.partitions_of(TOPIC):
        for record in store[name].read():
            assert record.key is not None
            transactional_id = parse_transactional_id(record.key)
            assert transactional_id is not None
            assert record.value is not None
            found[transactional_id] = parse_state(transactional_id, record.value)
    return found


@pytest.fixture
def pair(store: Store) -> tuple[Partition, Partition]:
    """Two partitions."""
    return store.create("a-0"), store.create("b-0")


def test_a_commit_shows_all_and_an_abort_nothing(
    store: Store, pair: tuple[Partition, Partition]
) -> None:
    """Readers of committed records see a transaction from its commit on in all partitions, and never if it aborts."""
    first, second = pair
    first.append([b"plain"])
    for commit in (True, False):
        transaction = store.transactions.begin("id")
        transaction.append("a-0", [b"a %d" % commit])
        transaction.append("b-0", [b"b %d" % commit])
        transaction.commit_offsets("group", {"a-0": 1 + commit})
        assert committed(second) == ([] if commit else [b"b 1"])
        (transaction.commit if commit else transaction.abort)()
    assert committed(first) == [b"plain", b"a 1"]
    assert committed(second) == [b"b 1"]
    found = store.groups.committed("group", "a-0")
    assert found is not None
    assert found.offset == 2
    assert [log.last_stable_offset == log.log_end_offset for log in pair] == [True, True]
    state = states(store)["id"]
    assert (state.status, state.partitions) == (TransactionStatus.COMPLETE_ABORT, ())


def test_upkeep_leaves_a_running_transaction_alone(store: Store) -> None:
    """Only transactions that an earlier process has left are aborted."""
    log = store.create("a-0")
    transaction = store.transactions.begin("id")
    for number in range(3):
        transaction.append("a-0", [b"%d" % number])
        store.transactions.finish()
        store.upkeep()
        assert log.last_stable_offset == 0
    transaction.commit()
    assert committed(log) == [b"0", b"1", b"2"]


def test_records_of_several_batches_have_following_sequences(store: Store) -> None:
    """A transaction may have any number of batches in a partition."""
    log = store.create("a-0")
    values = [b"%03d" % n + b"x" * 400_000 for n in range(6)]
    transaction = store.transactions.begin("id")
    assert transaction.append("a-0", values) == 0
    assert transaction.append("a-0", [b"end"]) == 6
    transaction.commit()
    assert committed(log) == [*values, b"end"]
    assert len(list(log.batches(0))) > 3


def test_a_later_transaction_fences_an_earlier_one(
    store: Store, pair: tuple[Partition, Partition]
) -> None:
    """With the same id, the earlier transaction is aborted at once, and its object can do nothing any more."""
    before = store.transactions.begin("id")
    before.append("a-0", [b"zombie"])
    after = store.transactions.begin("id")
    assert after.state.producer_id == before.state.producer_id
    assert after.epoch > before.epoch
    for act in (lambda: before.append("b-0", [b"x"]), before.commit, before.abort):
        with pytest.raises(InvalidProducerEpoch):
            act()
    after.append("b-0", [b"new"])
    after.commit()
    for act in (lambda: after.append("b-0", [b"x"]), after.commit, after.abort):
        with pytest.raises(InvalidTransactionState):
            act()
    assert [committed(log) for log in pair] == [[], [b"new"]]


def test_a_transaction_that_wrote_nothing_is_fenced_as_well(store: Store) -> None:
    """An object that has not appended anything yet is fenced, too, and its epoch is not used twice."""
    store.create("a-0")
    first, second = store.transactions.begin("id"), store.transactions.begin("id")
    assert second.epoch > first.epoch
    with pytest.raises(InvalidProducerEpoch):
        first.append("a-0", [b"x"])
    second.append("a-0", [b"y"])
    second.commit()
    assert store.transactions.begin("id").epoch > second.epoch


def test_epochs_end_with_another_producer(store: Store) -> None:
    """When no higher epoch fits an int16, the id gets another producer id, and transactions go on."""
    log = store.create("a-0")
    transaction = store.transactions.begin("id")
    transaction.state = transaction.state._replace(producer_epoch=2**15 - 3)
    transaction.append("a-0", [b"1"])
    transaction.commit()
    producers = {transaction.state.producer_id}
    for value in (b"2", b"3", b"4"):
        transaction = store.transactions.begin("id")
        transaction.append("a-0", [value])
        producers.add(transaction.state.producer_id)
        if value != b"3":
            transaction.commit()
    assert len(producers) == 2
    assert committed(log) == [b"1", b"2", b"4"]


@pytest.mark.parametrize("name", ["", "x" * 32768])
def test_wrong_ids_are_refused(store: Store, name: str) -> None:
    """An id that does not fit a record is refused, and so is an append to a partition that takes none."""
    with pytest.raises(InvalidName, match="transactional id"):
        store.transactions.begin(name)


def test_a_mirror_is_refused_before_anything_is_noted(store: Store) -> None:
    """A partition that takes no appends takes no marker either, so it must not become part of a transaction."""
    store.create("a-0")
    store.create("b-0")
    store.settings.set_topic("b", "logfs.mirror.source", "cluster")
    transaction = store.transactions.begin("id")
    transaction.append("a-0", [b"x"])
    with pytest.raises(NotWritable):
        transaction.append("b-0", [b"y"])
    transaction.commit()
    assert committed(store["a-0"]) == [b"x"]
    store.settings.set_topic("b", "logfs.mirror.source", None)


def test_a_partition_that_is_deleted_meanwhile_holds_nothing_up(store: Store) -> None:
    """A transaction over a partition that was deleted is committed in the others."""
    store.create("a-0")
    store.create("b-0")
    transaction = store.transactions.begin("id")
    transaction.append("a-0", [b"x"])
    transaction.append("b-0", [b"y"])
    store.delete("b-0")
    transaction.commit()
    assert committed(store["a-0"]) == [b"x"]


@pytest.mark.parametrize("commit", [True, False])
def test_a_partition_that_is_deleted_and_comes_back_has_no_open_transaction(
    store: Store, pair: tuple[Partition, Partition], *, commit: bool
) -> None:
    """What it has of a transaction that has ended without it is aborted; one that runs goes on in it."""
    store.settings.set_topic("a", "file.delete.delay.ms", "60000")
    ended = store.transactions.begin("ended")
    ended.append("a-0", [b"gone"])
    ended.append("b-0", [b"there"])
    running = store.transactions.begin("running")
    running.append("a-0", [b"later"])
    store.delete("a-0")
    ended.commit() if commit else ended.abort()
    first = store.undelete("a-0")
    assert first.last_stable_offset == 1
    running.commit()
    assert committed(first) == [b"later"]
    assert committed(pair[1]) == ([b"there"] if commit else [])
    with_first = store.transactions.begin("ended")
    with_first.append("a-0", [b"next"])
    with_first.commit()
    assert committed(first) == [b"later", b"next"]
    assert first.last_stable_offset == first.log_end_offset


def test_what_a_process_leaves_open_is_aborted_by_the_next(log_dir: Path, clock: Clock) -> None:
    """After a clean close and after a kill, an open transaction is aborted, and a new one with its id begins."""
    for clean in (True, False):
        store = Store(log_dir, clock=clock)
        log = store.registry.partitions.get("a-0") or store.create("a-0")
        store.transactions.begin("id").append("a-0", [b"left"])
        assert log.last_stable_offset < log.log_end_offset
        (store.close if clean else store.leave)()
    with Store(log_dir, clock=clock) as store:
        log = store["a-0"]
        assert log.last_stable_offset == log.log_end_offset
        transaction = store.transactions.begin("id")
        transaction.append("a-0", [b"new"])
        transaction.commit()
        assert committed(log) == [b"new"]


def test_the_number_of_partitions_can_change(log_dir: Path, clock: Clock) -> None:
    """The newest state of an id counts, wherever it is, also after a restart."""
    ids = [f"id {number}" for number in range(12)]
    with Store(log_dir, clock=clock) as store:
        log = store.create("a-0")
        for name in ids:
            transaction = store.transactions.begin(name)
            transaction.append("a-0", [b"1"])
            store.settings.set_broker("transaction.state.log.num.partitions", "10")
            transaction.commit()
            for _ in range(3):
                transaction = store.transactions.begin(name)
                transaction.append("a-0", [b"1"])
                transaction.commit()
            store.settings.set_broker("transaction.state.log.num.partitions", "50")
    with Store(log_dir, clock=clock) as store:
        log = store["a-0"]
        assert log.last_stable_offset == log.log_end_offset
        for name in ids:
            transaction = store.transactions.begin(name)
            transaction.append("a-0", [b"2"])
            transaction.commit()
        assert committed(log) == [b"1"] * 48 + [b"2"] * 12


@pytest.mark.parametrize("lazy", [False, True])
def test_a_brokers_transaction_is_aborted_after_its_timeout(
    log_dir: Path, clock: Clock, lazy: bool
) -> None:
    """A transaction of a broker's producer may go on when the broker starts again, until its timeout has passed."""
    with Store(log_dir, clock=clock) as store:
        store.create("a-0")
        transaction = store.transactions.begin("id", timeout_ms=60_000)
        # A producer id as brokers give them.
        transaction.state = transaction.state._replace(producer_id=7)
        transaction.append("a-0", [b"pending"])
    with Store(log_dir, clock=clock, lazy=lazy) as store:
        store.upkeep()
        assert store["a-0"].last_stable_offset == 0
        clock.now_ms += 60_001
        store.upkeep()
        assert store["a-0"].last_stable_offset == store["a-0"].log_end_offset
        assert committed(store["a-0"]) == []


@pytest.mark.parametrize("way", ["upkeep", "opening", "lazy"])
def test_an_error_at_a_marker_leaves_the_transaction_committed(
    log_dir: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """Once the commit is decided, nothing undoes it: upkeep, or the next opening, writes the markers."""
    real = Partition.end_transaction

    def failing(self: Partition, *arguments: int, **options: bool) -> int:
        if self.name.directory == "b-0":
            raise PartitionFailed("b-0: no")
        return real(self, *arguments, **options)  # type: ignore[arg-type]

    with Store(log_dir, clock=clock) as store:
        store.create("a-0")
        store.create("b-0")
        transaction = store.transactions.begin("id")
        transaction.append("a-0", [b"x"])
        transaction.append("b-0", [b"y"])
        with monkeypatch.context() as patch:
            patch.setattr(Partition, "end_transaction", failing)
            with pytest.raises(PartitionFailed, match="b-0: no"):
                transaction.commit()
            with pytest.raises(PartitionFailed, match="b-0: no"):
                store.transactions.begin("id")
        assert not transaction.is_open
        for call in (
            transaction.commit,
            transaction.abort,
            lambda: transaction.append("a-0", [b"z"]),
        ):
            with pytest.raises(InvalidTransactionState, match="has ended"):
                call()
        assert committed(store["b-0"]) == []
        if way == "upkeep":
            clock.now_ms += 60_000
            store.upkeep()
            assert [committed(store[name]) for name in ("a-0", "b-0")] == [[b"x"], [b"y"]]
    with Store(log_dir, clock=clock, lazy=way == "lazy") as store:
        if way == "lazy":
            store.upkeep()
        assert [committed(store[name]) for name in ("a-0", "b-0")] == [[b"x"], [b"y"]]


def test_after_a_failed_append_only_an_abort_is_possible(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk is full after the first of two batches: the rest cannot be appended later, nor the first committed."""
    log = store.create("a-0")
    store.settings.set_topic("a", "max.message.bytes", "2000")
    records = [b"x" * 500] * 6
    real, calls = Partition._append_noted, iter(range(9))

    def fills_up(self: Partition, *arguments: Any) -> Any:
        if next(calls) == 1:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(self, *arguments)

    transaction = store.transactions.begin("id")
    with monkeypatch.context() as patch:
        patch.setattr(Partition, "_append_noted", fills_up)
        with pytest.raises(OSError, match="No space"):
            transaction.append("a-0", records)
    assert log.log_end_offset > 0
    for call in (lambda: transaction.append("a-0", records), transaction.commit):
        with pytest.raises(InvalidTransactionState, match="only be aborted"):
            call()
    transaction.abort()
    assert committed(log) == []
    again = store.transactions.begin("id")
    again.append("a-0", records)
    again.commit()
    assert committed(log) == records


def test_a_read_only_store_begins_none(log_dir: Path, clock: Clock) -> None:
    """Nothing is written through a store that is open read-only."""
    Store(log_dir, clock=clock).close()
    with Store(log_dir, clock=clock, read_only=True) as store, pytest.raises(NotWritable):
        store.transactions.begin("id")


@pytest.mark.parametrize("status", TransactionStatus)
def test_records_are_read_as_they_are_written(status: TransactionStatus) -> None:
    """A state survives its record, in the partitions' order by topic."""
    partitions = (TopicPartition("a", 0), TopicPartition("a", 2), TopicPartition("b", 1))
    here = () if status is TransactionStatus.EMPTY else partitions
    state = TransactionState("id", 2**62 + 5, 7, 60_000, status, here, 5, 4)
    assert parse_transactional_id(state.key()) == "id"
    assert parse_state("id", state.value()) == state


# Power cuts.


class Promise(NamedTuple):
    """What held when a step began: the transactions that were committed, and the one that may be."""

    done: tuple[int, ...]
    maybe: int | None


def committed_past_damage(log: Log) -> list[bytes | None]:
    """Return the values that readers of committed records see; damaged ranges are skipped."""
    values: list[bytes | None] = []
    at = log.log_start_offset
    while True:
        try:
            for record in log.committed.read(at):
                values.append(record.value)
                at = record.offset + 1
            return values
        except DamagedRange as damage:
            at = damage.next_offset


def check_image(root: Path, promise: Promise, names: Sequence[str]) -> None:
    """Open a store after a power cut: what was committed is there, whole, and nothing is open.

    A batch that was not flushed may be damaged, if a later one had reached the disk before it.
    """
    with Store(root / crashdisk.LOG) as store:
        assert not store.offline
        seen = {name: log for name, log in store.registry.partitions.items() if name in names}
        found = {name: committed_past_damage(log) for name, log in seen.items()}
        for name, values in found.items():
            assert seen[name].last_stable_offset == seen[name].log_end_offset
            allowed = [[b"%d" % n for n in promise.done]]
            if promise.maybe is not None:
                allowed.append([b"%d" % n for n in (*promise.done, promise.maybe)])
            assert values in allowed, (name, values)
        assert len({*map(tuple, found.values())}) <= 1, found
    errors = errors_of([root / crashdisk.LOG])
    assert all("damaged" in str(each) for each in errors), errors


@pytest.mark.usefixtures("quiet_log")
def test_a_power_cut_at_any_step_leaves_all_or_nothing() -> None:
    """After a power cut at any step, a transaction is whole in both partitions or in none, and never left open."""
    names = ("a-0", "b-0")
    with crashdisk.scratch() as root:
        disk = crashdisk.RecordingDisk(root)
        try:
            store = Store(root / crashdisk.LOG, disk=disk)
            for topic in ("a", "b", TOPIC):
                store.settings.change_topic(topic, crashdisk.SMALL)
            for name in names:
                store.create(name)
            done: tuple[int, ...] = ()
            for number in range(3):
                transaction = store.transactions.begin("id")
                commits = number != 1
                disk.note(Promise(done, number if commits else None))  # type: ignore[arg-type]
                for name in names:
                    transaction.append(name, [b"%d" % number])
                (transaction.commit if commits else transaction.abort)()
                done += (number,) if commits else ()
                disk.note(Promise(done, None))  # type: ignore[arg-type]
            found = crashdisk.crash_states(disk)
        finally:
            disk.close()
        chosen = found if DEEP else crashdisk.sample(found, 60, SEED)
    assert len(found) > 200
    for state in chosen:
        with crashdisk.scratch() as root:
            crashdisk.write_image(root, state.image)
            check_image(root, state.oracle, names)  # type: ignore[arg-type]


def append_in(store: Store, name: str, *values: bytes, commit: bool) -> None:
    """Append records in a transaction of the id "id", and end it."""
    transaction = store.transactions.begin("id")
    transaction.append(name, values)
    (transaction.commit if commit else transaction.abort)()


@pytest.mark.drawn(12)
@pytest.mark.parametrize("seed", range(60))
def test_a_truncation_keeps_how_transactions_have_ended(
    log_dir: Path, clock: Clock, seed: int
) -> None:
    """Each record that is left is shown or hidden as before, whatever the same id does next, also after a restart."""
    chance = random.Random(seed)
    # The value, whether it is shown, and the offset of each record.
    model: list[tuple[bytes, bool, int]] = []
    with Store(log_dir, clock=clock) as store:
        store.create("a-0")
        set_topic(store, "a", segment_bytes=chance.choice((200, 10_000)))
    for number in range(4):
        with Store(log_dir, clock=clock) as store:
            log = store["a-0"]
            for step in range(8):
                values = [b"%d %d %d" % (number, step, n) for n in range(chance.randint(1, 3))]
                commit, first = chance.random() < 0.5, log.log_end_offset
                if chance.random() < 0.5:
                    append_in(store, "a-0", *values, commit=commit)
                elif chance.random() < 0.5:
                    commit, first = True, log.append(values)
                elif chance.random() < 0.3:
                    start = chance.randrange(log.log_start_offset, log.log_end_offset + 1)
                    store.delete_records("a-0", start)
                    model, values = [each for each in model if each[2] >= start], []
                else:
                    at, end = chance.randrange(log.log_end_offset + 1), log.log_end_offset
                    store.truncate("a-0", at)
                    cut = log.state.truncations[-1] if at < end else end
                    model = [each for each in model if each[2] < cut]
                    values = []
                model += [(value, commit, first + n) for n, value in enumerate(values)]
                expected = [value for value, shown, _ in model if shown]
                with Store(log_dir, clock=clock, read_only=True) as beside:
                    for seen in (log, beside["a-0"]):
                        assert committed(seen) == expected
                        assert seen.last_stable_offset == seen.log_end_offset
        assert errors_of([log_dir]) == []


@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize("later", [None, True, False])
def test_a_transaction_without_its_marker_is_ended_by_the_next_opening(
    log_dir: Path, clock: Clock, *, commit: bool, later: bool | None
) -> None:
    """As its state says, which a power cut after a truncation leaves; an earlier one of the same id is aborted."""
    with Store(log_dir, clock=clock) as store:
        store.create("a-0")
        store.create("b-0")
        append_in(store, "a-0", b"x", commit=commit)
        if later is not None:
            append_in(store, "b-0", b"y", commit=later)
        # A truncation as a crash leaves it before the marker is appended again.
        store["a-0"].truncate(1)
        store["a-0"].append([b"behind"])
        assert committed(store["a-0"]) == []
    with Store(log_dir, clock=clock) as store:
        is_shown = commit and later is None
        expected = [b"x", b"behind"] if is_shown else [b"behind"]
        assert committed(store["a-0"]) == expected
        append_in(store, "a-0", b"next", commit=True)
        assert committed(store["a-0"]) == [*expected, b"next"]
    assert errors_of([log_dir]) == []


@pytest.mark.parametrize("commit", [True, False])
def test_the_next_transaction_of_an_id_does_not_end_one_that_hangs(
    store: Store, *, commit: bool
) -> None:
    """A transaction without its marker is ended before the next one of its id appends to the partition."""
    store.create("a-0")
    append_in(store, "a-0", b"x", commit=commit)
    store["a-0"].truncate(1)
    append_in(store, "a-0", b"y", commit=not commit)
    assert committed(store["a-0"]) == ([b"x"] if commit else [b"y"])


@pytest.mark.parametrize(("earlier", "cut"), [(False, 0), (False, 1), (True, 2), (True, 3)])
def test_a_transaction_that_loses_records_can_only_be_aborted(
    store: Store, *, earlier: bool, cut: int
) -> None:
    """A truncation of the records of a transaction that runs ends in an abort, not in a part of the records."""
    log = store.create("a-0")
    if earlier:
        append_in(store, "a-0", b"kept", commit=True)
    transaction = store.transactions.begin("id")
    for value in (b"one", b"two"):
        transaction.append("a-0", [value])
    store.truncate("a-0", log.log_end_offset)
    transaction.append("a-0", [b"three"])
    store.truncate("a-0", cut)
    for call in (lambda: transaction.append("a-0", [b"four"]), transaction.commit):
        with pytest.raises(InvalidTransactionState, match="some of its records were truncated"):
            call()
    transaction.abort()
    append_in(store, "a-0", b"next", commit=True)
    assert committed(log) == [*([b"kept"] if earlier else []), b"next"]


def test_a_brokers_transaction_without_its_marker_stays_open(store: Store) -> None:
    """As in Kafka: nothing here tells how it has ended."""
    orders = store.create("a-0")
    producer = Producer(orders, 7)
    producer.send("k")
    producer.end(commit=True)
    store.truncate("a-0", 1)
    store.transactions.finish()
    assert orders.log_end_offset == 1
    assert orders.last_stable_offset == 0


@pytest.mark.parametrize(
    ("damage", "is_last"),
    [
        ("a flipped bit", True),
        ("a flipped bit", False),
        ("a missing byte", True),
        ("nothing left", True),
    ],
)
def test_aborted_records_stay_hidden_if_their_marker_is_damaged(
    tmp_path: Path, clock: Clock, damage: str, *, is_last: bool
) -> None:
    """The transaction index tells how the transaction has ended, for every way to open the log."""
    path, shown = tmp_path / "damaged", [b"shown"]
    with Store(path, clock=clock, create=True) as store:
        log = store.create("a-0")
        log.append(shown)
        append_in(store, "a-0", b"hidden", commit=False)
        file, size = log.active.path, log.size_bytes
        if not is_last:
            shown.append(b"behind")
            log.append([b"behind"])
    data = bytearray(file.read_bytes())
    if damage == "a flipped bit":
        data[size - 1] ^= 1
    else:
        del data[size - (1 if damage == "a missing byte" else 78) :]
    file.write_bytes(data)
    for read_only in (True, False, True, False):
        with Store(path, clock=clock, read_only=read_only) as store:
            assert committed_past_damage(store["a-0"]) == shown
    with Store(path, clock=clock, recover=True) as store:
        append_in(store, "a-0", b"next", commit=True)
        assert committed_past_damage(store["a-0"]) == [*shown, b"next"]
    errors = errors_of([path])
    assert len(errors) == 1, errors
    assert "offsets 2 to 2 are damaged" in str(errors[0])
