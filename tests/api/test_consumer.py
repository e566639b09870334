"""Members of a consumer group, in threads and processes, and transactions with their offsets."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
import time
from collections import deque
from contextlib import nullcontext, suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest

import logfs
from tests.support.command_line import ok
from tests.support.partitions import flip
from tests.support.processes import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


@pytest.fixture
def store(log_dir: Path) -> Iterator[logfs.Store]:
    """A store with the topic `orders` of four partitions, with five records in each."""
    with logfs.open(log_dir, create=True) as store:
        for partition in store.create_topic("orders", 4).partitions:
            partition.append_many([f"{partition.partition} {n}" for n in range(5)])
        yield store


def test_a_group_reads_each_record_once(store: logfs.Store) -> None:
    """A second consumer goes on where the first has ended."""
    with store.consumer("orders", group="g", timeout=0) as consumer:
        seen = [(record.topic, record.partition, record.offset) for record in consumer]
        assert sorted(consumer.partitions) == [f"orders-{n}" for n in range(4)]
    assert sorted(seen) == [("orders", p, n) for p in range(4) for n in range(5)]
    assert store.groups["g"] == {f"orders-{n}": 5 for n in range(4)}
    store["orders-2"].append("new")
    with store.consumer("orders", group="g", timeout=0) as consumer:
        assert [record.value for record in consumer] == [b"new"]


def test_what_is_in_hand_is_committed_only_by_a_commit(store: logfs.Store) -> None:
    """An error in the block leaves the record in hand to the next consumer; `commit` takes it."""
    with suppress(ZeroDivisionError), store.consumer("orders-0", group="g") as consumer:
        assert next(consumer).offset == 0
        assert next(consumer).offset == 1
        consumer.commit()
        assert store.groups["g"] == {"orders-0": 2}
        assert next(consumer).offset == 2
        _ = 1 // 0
    assert store.groups["g"] == {"orders-0": 2}
    with store.consumer("orders-0", group="g", auto_commit=False) as consumer:
        assert next(consumer).offset == 2
    assert store.groups["g"] == {"orders-0": 2}
    with store.consumer("orders-0", group="g") as consumer:
        assert next(consumer).offset == 2
    assert store.groups["g"] == {"orders-0": 3}


def test_automatic_commits(store: logfs.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """While it runs, what came before the record in hand is committed."""
    from logfs.api import consumer as module

    monkeypatch.setattr(module, "_COMMIT_SECONDS", 0.0)
    with store.consumer("orders-0", group="g") as consumer:
        for _ in range(3):
            next(consumer)
        assert store.groups["g"] == {"orders-0": 2}


@pytest.mark.parametrize(
    ("begin", "first"),
    [
        ("earliest", 0),
        ("latest", 5),
        (2, 2),
        (99, 5),
        (datetime(2100, 1, 1, tzinfo=UTC), 5),
        (datetime(1970, 1, 2, tzinfo=UTC), 0),
    ],
)
def test_where_to_begin(store: logfs.Store, begin: object, first: int) -> None:
    """Without a commit, `begin` decides; a commit comes before it."""
    with store.consumer("orders-0", group="g", begin=begin, timeout=0) as consumer:  # type: ignore[arg-type]
        assert [record.offset for record in consumer] == [*range(first, 5)]
    with store.consumer("orders-0", group="g", begin="earliest", timeout=0) as consumer:
        assert [*consumer] == []


def test_wrong_arguments(store: logfs.Store) -> None:
    """Unknown topics, empty names and strange beginnings are refused at once, and leave no member behind."""
    with pytest.raises(logfs.UnknownPartition, match="nothing"):
        store.consumer(["orders", "nothing"], group="g")
    with pytest.raises(logfs.InvalidName, match="topics"):
        store.consumer([], group="g")
    for begin in ("earliest", "latest"):
        with pytest.raises(logfs.InvalidSetting, match="isolation"):
            store.topic("orders").follow(begin=begin, isolation="no")
    with pytest.raises(logfs.InvalidName, match="group"):
        store.consumer("orders", group="")
    with pytest.raises(logfs.InvalidName, match="begin"):
        store.consumer("orders", group="g", begin="now")  # type: ignore[arg-type]
    with pytest.raises(logfs.InvalidSetting, match="isolation"):
        store.consumer("orders", group="g", isolation="no")
    with store.consumer("orders", group="g", timeout=0) as consumer:
        assert len([*consumer]) == 20


def test_members_share_the_partitions(store: logfs.Store) -> None:
    """Two members in threads have two partitions each; when one leaves, the other gets all. Nothing is read twice."""
    taken: dict[str, list[tuple[int, int]]] = {"one": [], "two": []}
    shares: dict[str, list[str]] = {}
    leave = threading.Event()

    def consume(name: str) -> None:
        with store.consumer("orders", group="g", begin="latest", timeout=0.05) as consumer:
            while not leave.is_set() or name == "two":
                for record in consumer:
                    taken[name].append((record.partition, record.offset))
                shares[name] = consumer.partitions
                if leave.is_set() and len(shares["two"]) == 4:
                    return

    threads = [threading.Thread(target=consume, args=(name,)) for name in taken]
    for thread in threads:
        thread.start()
    wait_for(lambda: [len(shares.get(name, [])) for name in taken] == [2, 2])
    for partition in store.topic("orders").partitions:
        partition.append("x")
    wait_for(lambda: len(taken["one"]) == len(taken["two"]) == 2)
    leave.set()
    for thread in threads:
        thread.join(20)
        assert not thread.is_alive()
    assert sorted(taken["one"] + taken["two"]) == [(n, 5) for n in range(4)]
    assert store.groups["g"] == {f"orders-{n}": 6 for n in range(4)}


def test_members_of_a_read_only_store_and_of_the_command(store: logfs.Store, log_dir: Path) -> None:
    """Consumers beside a mount or alone, in other processes and as `logfs consume`, are one group."""
    store.close()
    program = (
        "import logfs, sys\n"
        "with logfs.open(sys.argv[1], 'r') as store:\n"
        "    with store.consumer('orders', group='g', timeout=2) as consumer:\n"
        "        for record in consumer:\n"
        "            print(record.partition, record.offset, flush=True)\n"
    )
    two = [
        subprocess.Popen(
            [sys.executable, "-c", program, log_dir], stdout=subprocess.PIPE, text=True
        )
        for _ in range(2)
    ]
    lines = [line for each in two for line in each.communicate(timeout=60)[0].splitlines()]
    assert [each.returncode for each in two] == [0, 0]
    # A record may come twice while the partitions change hands, but none is missing.
    assert {*lines} == {f"{p} {n}" for p in range(4) for n in range(5)}
    assert ok("consume", log_dir / "orders", "-g", "g", "--idle-exit", "0") == ""
    with logfs.open(log_dir, "r") as live:
        assert live.groups["g"] == {f"orders-{n}": 5 for n in range(4)}


def test_a_writer_that_holds_the_directory_delays_commits(
    store: logfs.Store, log_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """While another process has the store, a read-only consumer reads on; its `commit` says why it cannot."""
    with logfs.open(log_dir, "r") as live:
        with (
            pytest.raises(logfs.StoreLocked),
            live.consumer("orders-0", group="g", timeout=0) as consumer,
        ):
            assert len([*consumer]) == 5
        with live.consumer("orders-0", group="g", timeout=0) as consumer:
            assert len([*consumer]) == 5
            store.close()
    assert "nothing is committed" in caplog.text
    with logfs.open(log_dir) as again:
        assert again.groups["g"] == {"orders-0": 5}


def test_a_consumer_notices_losses_and_new_partitions(
    store: logfs.Store, caplog: pytest.LogCaptureFixture
) -> None:
    """Records that have left the log are warned of; a partition made anew is read from its start."""
    partition = store["orders-0"]
    with store.consumer("orders", group="g", timeout=0.2) as consumer:
        assert len([*consumer]) == 20
        partition.append_many(["5", "6", "7"])
        partition.delete_records(7)
        assert [record.value for record in consumer] == [b"7"]
        assert "offsets 5 to 6 have left the log" in caplog.text
        partition.truncate(7)
        partition.append("again")
        store.create("orders-4").append("new")
        values = {record.value for record in consumer}
        assert b"new" in values


@pytest.mark.parametrize("read_only", [False, True])
def test_a_group_goes_on_in_a_truncated_log(
    store: logfs.Store, log_dir: Path, read_only: bool
) -> None:
    """What has left the log since it was returned is not committed; that of the other partitions is."""
    store["orders-0"].append("lost")
    if read_only:
        store.close()
        store = logfs.open(log_dir, "r")
    with store.consumer("orders", group="g", timeout=0, auto_commit=False) as consumer:
        while next(consumer).value != b"lost":
            pass
        assert next(consumer).partition == 1
        with logfs.open(log_dir) if read_only else nullcontext(store) as writer:
            writer["orders-0"].truncate(5)
        consumer.commit()
        assert store.groups["g"]["orders-1"] == 1
        assert {record.partition for record in consumer} >= {1, 2, 3}
        consumer.commit()
    assert store.groups["g"] == {f"orders-{n}": 5 for n in range(4)}
    store.close()


@pytest.mark.parametrize("grown", [0, 1, 3, 6])
@pytest.mark.parametrize("read_only", [False, True])
def test_a_group_goes_back_in_a_truncated_log(
    store: logfs.Store, log_dir: Path, read_only: bool, grown: int
) -> None:
    """It reads the new records, also if the log has grown beyond its offset again, and commits no lost offset."""
    for n in range(5):
        store["orders-0"].append(f"{n}")
    if read_only:
        store.close()
        store = logfs.open(log_dir, "r")
    with store.consumer("orders-0", group="g", timeout=0, auto_commit=False) as consumer:
        assert len([*consumer]) == 10
        with logfs.open(log_dir) if read_only else nullcontext(store) as writer:
            writer["orders-0"].truncate(7)
            writer._engine["orders-0"].epochs.assign(3, 7)
            for _ in range(grown):
                writer["orders-0"].append("new")
        consumer.commit()
        assert store.groups.get("g", {}) == {}
        assert [record.value for record in consumer] == [b"new"] * grown
        consumer.commit()
    assert store.groups["g"] == {"orders-0": 7 + grown}
    store.close()


@pytest.mark.parametrize("read_only", [False, True])
def test_a_group_goes_on_without_a_deleted_partition(
    store: logfs.Store, log_dir: Path, read_only: bool
) -> None:
    """Its records that were read before are not committed; those of the other partitions are."""
    if read_only:
        store.close()
        store = logfs.open(log_dir, "r")
    seen = []
    with store.consumer("orders", group="g", timeout=0) as consumer:
        while len(seen) < 7:
            seen.append(next(consumer))
        if read_only:
            ok("delete", f"{log_dir}/orders-0")
        else:
            store["orders-0"].delete()
        consumer.commit()
        seen += consumer
        assert sorted(consumer.partitions) == ["orders-1", "orders-2", "orders-3"]
    assert [(each.partition, each.offset) for each in seen if each.partition] == [
        (p, n) for p in (1, 2, 3) for n in range(5)
    ]
    assert store.groups["g"] == {f"orders-{n}": 5 for n in (1, 2, 3)}
    store.close()


def _recreate(store: logfs.Store, names: list[str], count: int) -> None:
    for name in names:
        store[name].delete()
    for name in names:
        store.create(name).append_many([f"new{n}" for n in range(count)])


@pytest.mark.parametrize("read_only", [False, True])
@pytest.mark.parametrize("names", [["orders-0"], [f"orders-{n}" for n in range(4)]])
def test_a_partition_that_is_created_again_is_read_from_its_start(
    store: logfs.Store, log_dir: Path, names: list[str], read_only: bool
) -> None:
    """A consumer and a follower of the old one get all records of the new one, also if the topic is the same."""
    seen = store if not read_only else logfs.open(log_dir, "r")
    with seen.consumer("orders-0", group="g", timeout=0, auto_commit=not read_only) as consumer:
        following = seen["orders-0"].follow(0, timeout=0)
        for _ in range(3):
            next(consumer), next(following)
        _recreate(store, names, 10)
        new = [b"new%d" % n for n in range(10)]
        assert [each.value for each in consumer][-10:] == new
        assert [each.value for each in following][-10:] == new
    if read_only:
        seen.close()


@pytest.mark.parametrize("read_only", [False, True])
@pytest.mark.parametrize("is_moved", [False, True])
def test_a_partition_that_is_moved_or_restored_is_read_on(
    tmp_path: Path, is_moved: bool, read_only: bool
) -> None:
    """No record is read again after a move to another log directory, or after a deletion that was undone."""
    paths = [tmp_path / "one", tmp_path / "two"]
    with logfs.open(paths, create=True) as store:
        store.create("t-0").append_many([f"{n}" for n in range(5)])
        seen = logfs.open(paths, "r") if read_only else store
        consumer = seen.consumer("t-0", group="g", timeout=0, auto_commit=False)
        following = seen["t-0"].follow(0, timeout=0)
        assert len([*consumer]) == len([*following]) == 5
        engine = store._engine
        if is_moved:
            homes = {each.path for each in engine.log_dirs} - {engine.registry.home("t-0")}
            engine.move("t-0", *homes)
        else:
            store["t-0"].delete()
            store.undelete("t-0")
        store["t-0"].append("new")
        assert [each.value for each in consumer] == [b"new"]
        assert [each.value for each in following] == [b"new"]
        consumer.close()
        if read_only:
            seen.close()


@pytest.mark.parametrize("names", [["orders-0"], [f"orders-{n}" for n in range(4)]])
def test_what_was_read_of_a_deleted_partition_is_not_committed(
    store: logfs.Store, names: list[str]
) -> None:
    """The end of the block commits nothing for a partition that was deleted and created again in it."""
    with store.consumer(["orders-0", "orders-1"], group="g", timeout=0) as consumer:
        assert len([*consumer]) == 10
        _recreate(store, names, 10)
    assert store.groups.get("g", {}) == ({} if len(names) > 1 else {"orders-1": 5})
    with store.consumer("orders-0", group="g", timeout=0) as consumer:
        assert len([*consumer]) == 10


def test_a_read_only_consumer_commits_nothing_for_a_deleted_partition(
    store: logfs.Store, log_dir: Path
) -> None:
    """A commit beside other programs leaves out a partition that they have deleted and created again."""
    store.close()
    with logfs.open(log_dir, "r") as live:
        with live.consumer(["orders-0", "orders-1"], group="g", timeout=0) as consumer:
            assert len([*consumer]) == 10
            with logfs.open(log_dir) as other:
                _recreate(other, ["orders-0"], 10)
        assert live.groups["g"] == {"orders-1": 5}


@pytest.mark.parametrize("read_only", [False, True])
def test_a_commit_of_an_offset_that_has_left_the_log(
    store: logfs.Store, log_dir: Path, read_only: bool
) -> None:
    """The log start is committed in its place, nothing after a truncation, and the other partitions are committed."""
    names = ["orders-0", "orders-1", "orders-2"]
    store.close()
    live = logfs.open(log_dir, "r" if read_only else "r+")
    with live, live.consumer(names, group="g", timeout=0, auto_commit=False) as consumer:
        assert len([*consumer]) == 15
        with logfs.open(log_dir) if read_only else nullcontext(live) as writer:
            writer["orders-1"].append_many(["5", "6", "7", "8"])
            writer["orders-1"].delete_records(8)
            writer["orders-2"].truncate(0)
        consumer.commit()
        assert live.groups["g"] == {"orders-0": 5, "orders-1": 8}


def test_a_consumer_in_a_transaction(store: logfs.Store) -> None:
    """Read, transform, write, commit the offsets together: after an abort the group reads the same again."""
    out = store.create_topic("out")
    for attempt in range(2):
        with store.consumer("orders-0", group="g", timeout=0, auto_commit=False) as consumer:
            try:
                with store.transaction("etl") as transaction:
                    for record in consumer:
                        transaction.append("out", record.value, key=record.key)
                        transaction.commit_offsets("g", {"orders-0": record.offset + 1})
                    if not attempt:
                        raise ConnectionError
            except ConnectionError:
                assert "g" not in store.groups
    assert store.groups["g"] == {"orders-0": 5}
    assert len([*out.read(isolation="read_committed")]) == 5
    assert len([*out.read()]) == 10


def test_transactions_from_python(store: logfs.Store) -> None:
    """Topics and partitions by name; the places are returned; a second end is an error; fencing is named."""
    store.create_topic("out", 2)
    with store.transaction("id") as transaction:
        number, offset = transaction.append("out", "x", key="k", headers={"h": "1"})
        assert transaction.append("out-1", "y")[0] == 1
        assert transaction.append_many("out-0", ["a", "b"])[1][0] == 0
    record = store[f"out-{number}"].record(offset)
    assert record is not None
    assert (record.value, [*record.headers]) == (b"x", [("h", b"1")])
    with pytest.raises(logfs.InvalidTransactionState):
        transaction.commit()
    with store.transaction("id") as transaction:
        transaction.append("out", "z")
        transaction.abort()
    with suppress(logfs.InvalidProducerEpoch), store.transaction("id") as transaction:
        transaction.append("out", "zombie")
        store.transaction("id").abort()
        for act in (lambda: transaction.append("out", "zombie"), transaction.commit):
            with pytest.raises(logfs.InvalidProducerEpoch):
                act()
    values = {each.value for each in store.topic("out").read(isolation="read_committed")}
    assert values == {b"x", b"y", b"a", b"b"}


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        (lambda each: each.append("ouut", "x"), "did you mean 'out'"),
        (lambda each: each.append("out", 5), "must be bytes"),
        (lambda each: each.append_many("out", "ab"), "list of records"),
        (lambda each: each.commit_offsets("g", {"orders-0": 99}), "99"),
    ],
)
def test_after_a_failed_call_a_transaction_can_only_be_aborted(
    store: logfs.Store, wrong: Callable[[logfs.Transaction], object], error: str
) -> None:
    """A block that catches the error and goes on must not commit a part of what it wanted."""
    out = store.create_topic("out")

    def block() -> None:
        with store.transaction("id") as transaction:
            transaction.append("out", "part")
            with pytest.raises((logfs.LogfsError, TypeError), match=error):
                wrong(transaction)
            with pytest.raises(logfs.InvalidTransactionState, match="only be aborted"):
                transaction.append("out", "the rest")

    with pytest.raises(logfs.InvalidTransactionState, match="only be aborted"):
        block()
    assert [*out.read(isolation="read_committed")] == []
    with store.transaction("id") as transaction:
        transaction.append("out", "again")
    assert [each.value for each in out.read(isolation="read_committed")] == [b"again"]


def test_a_closed_store_has_no_consumers(log_dir: Path) -> None:
    """A consumer that outlives its store returns nothing more, and keeps no partition from others."""
    with logfs.open(log_dir, create=True) as store:
        store.create_topic("orders").append_many(["a", "b", "c"])
        left = store.consumer("orders", group="g", timeout=0)
        next(left)
    for call in (left.__next__, left.commit):
        with pytest.raises(logfs.StoreClosed):
            call()
    with logfs.open(log_dir) as store, store.consumer("orders", group="g", timeout=0) as consumer:
        assert [each.value for each in consumer] == [b"a", b"b", b"c"]
    with pytest.raises(logfs.StoreClosed):
        left.close()


def test_a_store_is_closed_beside_its_consumer(log_dir: Path) -> None:
    """Whatever a consumer does while another thread closes the store, it ends with `StoreClosed`."""
    ended: list[type[BaseException]] = []

    def read(consumer: logfs.Consumer) -> None:
        try:
            deque(consumer, 0)
        except BaseException as error:
            ended.append(type(error))

    with logfs.open(log_dir, create=True) as store:
        store.create_topic("p", 3).append_many(["x"] * 300)
    for number in range(20):
        with logfs.open(log_dir) as store:
            consumer = store.consumer("p", group=f"g{number}", auto_commit=False)
            reader = threading.Thread(target=read, args=[consumer])
            reader.start()
            time.sleep(0.001 * number)
        reader.join(60)
    assert ended == [logfs.StoreClosed] * 20


def test_a_slow_program_keeps_its_partitions(store: logfs.Store) -> None:
    """A member that is busy with a record for long stays a member: its locks are the kernel's."""
    with (
        store.consumer("orders", group="g", timeout=0) as slow,
        store.consumer("orders", group="g", timeout=0) as other,
    ):
        next(slow)
        time.sleep(0.3)
        mine = {*slow.partitions}
        assert {record.partition for record in other}.isdisjoint(
            int(name.rpartition("-")[2]) for name in mine
        )


def test_without_auto_commit_a_released_partition_is_read_again(store: logfs.Store) -> None:
    """What the program has not committed is not committed when another member joins either."""
    with store.consumer("orders", group="g", timeout=0, auto_commit=False) as first:
        assert len([*first]) == 20
        with store.consumer("orders", group="g", timeout=2, auto_commit=False) as second:
            wait_for(lambda: next(first, None) is None and len(first.partitions) == 2)
            assert "g" not in store.groups
            assert len({(next(second).partition, n) for n in range(10)}) == 10


def test_a_partition_that_cannot_be_read_is_told_beside_busy_ones(
    store: logfs.Store, log_dir: Path
) -> None:
    """Its error comes at the next read, although the partition before it has new records at each read."""
    damaged = log_dir / "orders-1" / f"{0:020}.log"
    flip(damaged, 70)

    def read(records: Iterator[object]) -> None:
        for _ in zip(records, range(20), strict=False):
            store["orders-0"].append("more")

    with store.consumer("orders", group="g", timeout=0, auto_commit=False) as consumer:
        for records in (consumer, store.topic("orders").follow(begin="earliest", timeout=0)):
            with pytest.raises(logfs.DamagedRange):
                read(records)
    flip(damaged, 70)


def append_six(store: logfs.Store) -> logfs.Partition:
    """Append the records 0 to 5, each in a batch of its own, to a partition, and return it."""
    partition = store.create_topic("orders", 1).partitions[0]
    for n in range(6):
        partition.append(f"{n}")
    return partition


def test_the_last_records_before_damage_are_followed_by_its_error(log_dir: Path) -> None:
    """`last` does not hide that newer records are damaged."""
    with logfs.open(log_dir, create=True) as store:
        append_six(store)
    path = log_dir / "orders-0" / f"{0:020}.log"
    flip(path, path.stat().st_size - 2)
    with logfs.open(log_dir, "r") as store:
        partition = store["orders-0"]
        for count in (1, 2, 10):
            found = []
            with pytest.raises(logfs.DamagedRange):
                found.extend(record.offset for record in partition.last(count))
            assert found == [*range(5)][-count:], count
    flip(path, path.stat().st_size - 2)


def test_a_consumer_goes_on_after_damage(log_dir: Path) -> None:
    """A damaged range raises one error. The next call returns the records after it, and a commit passes it."""
    with logfs.open(log_dir, create=True) as store:
        append_six(store)
        damaged = log_dir / "orders-0" / f"{0:020}.log"
        size = damaged.stat().st_size // 6
        flip(damaged, 2 * size - 1)
        flip(damaged, 3 * size - 1)
        flip(damaged, 5 * size - 1)
        values: list[bytes | None] = []
        errors: list[tuple[int, int]] = []
        with store.consumer("orders", group="g", timeout=0, auto_commit=False) as consumer:
            for _ in range(3):
                try:
                    values.extend(record.value for record in consumer)
                except logfs.DamagedRange as error:
                    errors.append((error.first_offset, error.next_offset))
            consumer.commit()
        assert values == [b"0", b"3", b"5"]
        assert errors == [(1, 3), (4, 5)]
        assert store.groups["g"]["orders-0"] == 6
        for n in (2, 3, 5):
            flip(damaged, n * size - 1)


def test_a_consumer_of_many_partitions(store: logfs.Store) -> None:
    """A member of a group with a hundred partitions reads them all, and commits each."""
    topic = store.create_topic("many", 100)
    for partition in topic.partitions:
        partition.append("x")
    with store.consumer("many", group="g", timeout=0) as consumer:
        assert len({record.partition for record in consumer}) == 100
    assert {*store.groups["g"].values()} == {1}


@pytest.mark.parametrize("auto_commit", [True, False])
def test_a_consumer_that_is_closed_or_dropped_leaves_its_group(
    store: logfs.Store, auto_commit: bool
) -> None:
    """Closing twice is harmless, a closed one cannot be read, and one that is dropped keeps no partition."""
    with store.consumer("orders", group="g", timeout=0) as consumer:
        next(consumer)
        consumer.close()
        consumer.close()
        assert consumer.partitions == []
        for call in (consumer.__next__, consumer.commit):
            with pytest.raises(ValueError, match="closed"):
                call()
    failed = store.consumer("orders", group="g", timeout=0, auto_commit=auto_commit)
    next(failed)
    with pytest.raises(ZeroDivisionError), failed:
        raise ZeroDivisionError
    failed.close()
    assert sum(store.groups["g"].values()) == 1
    dropped = store.consumer("orders", group="g", timeout=0)
    next(dropped)
    del dropped
    with pytest.warns(ResourceWarning):
        gc.collect()
    with store.consumer("orders", group="g", timeout=0) as consumer:
        assert len([*consumer]) == 19
