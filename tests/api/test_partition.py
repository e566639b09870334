"""One partition and one topic: what is appended and refused, what is read, and the tables of other libraries."""

from __future__ import annotations

import asyncio
import random
import sys
import threading
from contextlib import suppress
from datetime import UTC, datetime, timedelta, timezone
from itertools import count
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import logfs
from tests.support.examples import drawn, seed_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

NEXT_HOUR = timezone(timedelta(hours=1))


@pytest.fixture
def store(log_dir: Path) -> Iterator[logfs.Store]:
    """A store with the topic `orders` of two partitions."""
    with logfs.open(log_dir, create=True) as store:
        store.create_topic("orders", 2)
        yield store


@pytest.fixture
def first(store: logfs.Store) -> logfs.Partition:
    """An empty partition."""
    return store["orders-0"]


def only(partition: logfs.Partition) -> logfs.Record:
    """Return the one record of a partition."""
    (record,) = partition.read()
    return record


def test_one_record(first: logfs.Partition) -> None:
    """Every field in each type that is taken, and what is read of it."""
    moment = datetime(2021, 11, 28, 12, 53, 20, tzinfo=NEXT_HOUR)
    assert (
        first.append(
            "v", key=bytearray(b"k"), headers={"h": memoryview(b"1"), "n": None}, timestamp=moment
        )
        == 0
    )
    record = only(first)
    assert (record.value, record.key) == (b"v", b"k")
    assert [*record.headers] == [("h", b"1"), ("n", None)]
    assert (record.timestamp, record.offset) == (1638100400000, 0)
    assert record.timestamp_type is logfs.TimestampType.CREATE_TIME
    with pytest.raises(AttributeError):
        record.value = b"other"  # type: ignore[misc]
    assert first.append(None, key="k") == 1
    assert first.append(logfs.Record(b"whole", timestamp=5)) == 2
    assert [each.value for each in first.read()] == [b"v", None, b"whole"]


@pytest.mark.parametrize(
    ("append", "kind", "said"),
    [
        (lambda p: p.append(5), TypeError, "value must be bytes, str or None, not int"),
        (lambda p: p.append([b"x"]), TypeError, "use append_many"),
        (lambda p: p.append(b"x", key=5), TypeError, "key must be"),
        (lambda p: p.append(b"x", headers=5), TypeError, "headers must be a dict"),
        (lambda p: p.append(b"x", headers={"h": 5}), TypeError, "header 'h' must be"),
        (lambda p: p.append(b"x", headers={5: b""}), TypeError, "name of a header"),
        (lambda p: p.append(b"x", timestamp=1.5), TypeError, "timestamp must be an int"),
        (lambda p: p.append(b"x", timestamp=datetime(2021, 1, 1)), TypeError, "time zone"),
        (
            lambda p: p.append(b"x", timestamp=datetime(1969, 1, 1, tzinfo=UTC)),
            ValueError,
            "before 1970",
        ),
        (lambda p: p.append(b"x", timestamp=-5), ValueError, "timestamp"),
        (lambda p: p.append("\udcff"), ValueError, "value: "),
        (lambda p: p.append(logfs.Record(b"x"), key=b"k"), TypeError, "not both"),
        (lambda p: p.append_many(b"xy"), TypeError, "list of records"),
        (lambda p: p.append_many([b"x", 5]), TypeError, "a record must be"),
        (lambda p: p.append(b"x" * 2_000_000), logfs.RecordTooLarge, "max.message.bytes"),
        (
            lambda p: p.append_many([b"x" * 600_000] * 2, in_one_batch=True),
            logfs.RecordTooLarge,
            "batch",
        ),
        (lambda p: p.newest(5), TypeError, "key must be"),
        (lambda p: p.newest(None), TypeError, "key must be"),
        (lambda p: p.last(-1), ValueError, "count must be 0 or more"),
        (lambda p: p.record(1.0), TypeError, "offset must be an int"),
        (lambda p: p.read("0"), TypeError, "offset must be an int, not str"),
        (lambda p: p.columns(0, "1"), TypeError, "end must be an int, not str"),
        (lambda p: p.follow("0"), TypeError, "offset must be an int, not str"),
        (lambda p: p.append_many({"key": "value"}), TypeError, "give a list of records"),
        (lambda p: p.follow(timeout=float("nan")), ValueError, "timeout must be 0 or more"),
        (lambda p: p.follow(timeout="1"), TypeError, "timeout must be a number"),
        (lambda p: p.offset_for_time(None), TypeError, "timestamp must be"),
        (lambda p: p.read(isolation="no"), logfs.InvalidSetting, "read_committed"),
        (lambda p: p.record(7), IndexError, "offset 7 is not in"),
        (lambda p: [*p.read(7)], IndexError, "not in"),
        (lambda p: next(p.follow(7, timeout=0)), IndexError, "not in"),
        (lambda p: p.truncate(-1), IndexError, "0 or more"),
        (lambda p: p.compact(), logfs.InvalidSetting, "cleanup.policy"),
    ],
)
def test_what_is_wrong_is_named_and_changes_nothing(
    first: logfs.Partition, append: Callable[[Any], object], kind: type[Exception], said: str
) -> None:
    """Each refusal names the field or the setting, in the error that Python has for it; nothing is appended."""
    with pytest.raises(kind, match=said):
        append(first)
    assert first.log_end_offset == 0


def test_many_records(first: logfs.Partition) -> None:
    """`append_many` takes any iterable, and returns the offsets."""
    assert first.append_many([]) == range(0)
    assert first.append_many(b"%d" % n for n in range(3)) == range(3)
    assert first.append_many(["3", logfs.Record(b"4")], in_one_batch=True) == range(3, 5)
    assert [record.value for record in first.read(1, 3)] == [b"1", b"2"]
    assert [record.value for record in first.last(2)] == [b"3", b"4"]
    assert [record.offset for record in first.last(9)] == [*range(5)]
    last = first.last(2)
    first.append("5")
    assert [record.value for record in last] == [b"3", b"4"], "the last ones at the call"
    assert first.log_start_offset == 0
    assert first.log_end_offset == first.last_stable_offset == 6
    assert first.size_bytes > 0
    assert (first.name, first.topic, first.partition) == ("orders-0", "orders", 0)


def test_lookups(first: logfs.Partition) -> None:
    """By offset, by key and by time."""
    for n in range(4):
        first.append(f"{n}", key=f"{n % 2}", timestamp=1000 * n)
    found = first.record(2)
    assert found is not None
    assert found.value == b"2"
    newest = first.newest("1")
    assert newest is not None
    assert newest.offset == 3
    assert first.newest(b"9") is None
    assert first.offset_for_time(1500) == (2, 2000, 0)
    assert first.offset_for_time(datetime(1970, 1, 1, 0, 0, 3, tzinfo=UTC)) == (3, 3000, 0)
    assert first.offset_for_time(4000) is None


def test_changes_for_ever(store: logfs.Store, first: logfs.Partition) -> None:
    """`delete_records`, `truncate` and `compact` do what they say."""
    for value in ("0", "1", "2", "3"):
        first.append(value)
    assert first.delete_records(1) == 1
    first.truncate(3)
    assert [record.value for record in first.read()] == [b"1", b"2"]
    store.topic("orders").settings["cleanup.policy"] = "compact"
    second = store["orders-1"]
    for value in ("a", "b"):
        second.append(value, key="k")
    second.compact()
    assert [record.value for record in second.read()] == [b"b"]


def test_a_topic_as_one(store: logfs.Store) -> None:
    """Keys go to the partitions that Kafka's producers choose, and reading merges by time."""
    topic = store.topic("orders")
    places = [topic.append(f"{n}", key=f"{n}", timestamp=n) for n in range(10)]
    assert {partition for partition, _ in places} == {0, 1}
    assert topic.append_many([logfs.Record(b"x", key=b"3", timestamp=20)])[0][0] == places[3][0]
    topic.flush()
    records = [*topic.read()]
    assert [record.timestamp for record in records] == [*range(10), 20]
    assert [(r.partition, r.offset) for r in records[:10]] == places
    assert {record.topic for record in records} == {"orders"}
    assert isinstance(records[0], logfs.Record)


# Following.


def test_follow_begins_at_the_end_and_ends_after_its_timeout(first: logfs.Partition) -> None:
    """Without an offset only new records come; a second loop goes on where the first has ended."""
    first.append_many(["0", "1"])
    following = first.follow(timeout=0.05)
    assert [*following] == []
    first.append_many(["2", "3"])
    assert [record.value for record in following] == [b"2", b"3"]
    assert following.offsets == {"orders-0": 4}
    assert [record.value for record in first.follow(1, timeout=0)] == [b"1", b"2", b"3"]
    assert [*following] == []


def test_follow_waits_for_another_thread(store: logfs.Store, first: logfs.Partition) -> None:
    """A record that is appended while `next` waits comes at once, and `close` ends the wait."""
    following = first.follow()
    timer = threading.Timer(0.1, first.append, ["late"])
    timer.start()
    assert next(following).value == b"late"
    timer.join()
    closer = threading.Timer(0.1, store.close)
    closer.start()
    with pytest.raises(logfs.StoreClosed):
        next(following)
    closer.join()


def test_follow_in_asyncio(store: logfs.Store) -> None:
    """Several tasks follow at the same time, beside one that appends, and a task can be cancelled."""
    topic = store.topic("orders")

    async def take(count: int) -> list[bytes | None]:
        found = []
        async for record in topic.follow(begin="earliest"):
            found.append(record.value)
            if len(found) == count:
                break
        return found

    async def run() -> None:
        takers = [asyncio.create_task(take(count)) for count in (3, 5, 99)]
        for n in range(5):
            await asyncio.sleep(0.02)
            topic.append(f"{n}")
        assert [len(await taker) for taker in takers[:2]] == [3, 5]
        takers[2].cancel()
        with pytest.raises(asyncio.CancelledError):
            await takers[2]
        assert [each async for each in topic.follow(timeout=0.05)] == []

    asyncio.run(run())


def test_follow_repeats_nothing_after_a_cancellation(first: logfs.Partition) -> None:
    """A task that is cancelled while it waits loses no record, and the next one gets none twice."""

    async def run() -> list[int]:
        following = first.follow(0, timeout=1)
        got: list[int] = []
        while len(got) < 400:
            with suppress(asyncio.TimeoutError):
                got.append((await asyncio.wait_for(anext(following), 0.001)).offset)
        return got

    def write() -> None:
        for n in range(400):
            first.append(f"{n}")

    writer = threading.Thread(target=write)
    writer.start()
    assert asyncio.run(run()) == [*range(400)]
    writer.join()


def test_follow_goes_on_after_a_loss(first: logfs.Partition) -> None:
    """When retention has overtaken it, `OffsetOutOfRange` says so, and `seek` goes on."""
    first.append_many(["0", "1", "2"])
    following = first.follow(0, timeout=0)
    assert next(following).value == b"0"
    first.delete_records(2)
    # What was read before is still returned.
    values = [next(following).value, next(following).value]
    assert values == [b"1", b"2"]
    following.seek("orders-0", 1)
    with pytest.raises(logfs.OffsetOutOfRange):
        next(following)
    following.seek("orders-0", first.log_start_offset)
    assert [record.value for record in following] == [b"2"]


@pytest.mark.parametrize("grows", [False, True])
def test_follow_tells_of_a_truncation(first: logfs.Partition, grows: bool) -> None:
    """Also if the log has grown beyond the reached offset again, and at each try until `seek` goes on."""
    for value in "0123":
        first.append(value)
    following = first.follow(0, timeout=0)
    assert len([*following]) == 4
    first.truncate(2)
    first.append_many(["new"] * (3 if grows else 1))
    for _ in range(2):
        with pytest.raises(logfs.OffsetOutOfRange):
            next(following)
    following.seek("orders-0", 2)
    assert [record.value for record in following] == [b"new"] * (3 if grows else 1)


def test_follow_finds_new_partitions(store: logfs.Store) -> None:
    """A partition that is created later is read from its start."""
    topic = store.topic("orders")
    following = topic.follow(timeout=0.05)
    store.create("orders-2").append("new")
    assert [(r.partition, r.value) for r in following] == [(2, b"new")]
    with pytest.raises(logfs.InvalidName, match="earliest"):
        topic.follow(begin="now")


def test_follow_hides_what_is_not_committed(store: logfs.Store, first: logfs.Partition) -> None:
    """With `read_committed`, records come at their commit, and aborted ones never."""
    following = first.follow(0, timeout=0, isolation="read_committed")
    with store.transaction("id") as transaction:
        transaction.append("orders-0", "1")
        assert [*following] == []
    assert [record.value for record in following] == [b"1"]
    with suppress(ZeroDivisionError), store.transaction("id") as transaction:
        transaction.append("orders-0", "2")
        _ = 1 // 0
    first.append("3")
    assert [record.value for record in following] == [b"3"]


# Tables.


def test_columns_of_numpy(first: logfs.Partition) -> None:
    """Rows are records; lengths of -1 are nulls; a selection keeps the topic."""
    first.append_many([logfs.Record(b"a", key=b"k", timestamp=1), logfs.Record(None, timestamp=2)])
    columns = first.columns()
    assert isinstance(columns, logfs.Columns)
    assert columns.offsets.tolist() == [0, 1]
    assert columns.timestamps.tolist() == [1, 2]
    assert columns.key_lengths.tolist() == [1, -1]
    assert columns.value_lengths.tolist() == [1, -1]
    start = int(columns.value_starts[0])
    assert columns.data[start : start + 1].tobytes() == b"a"
    chosen = columns.select(np.array([False, True]))
    assert isinstance(chosen, logfs.Columns)
    assert (chosen.topic, chosen.partition, chosen.offsets.tolist()) == ("orders", 0, [1])
    assert [record.value for record in columns.records()] == [b"a", None]


def test_tables_of_other_libraries(store: logfs.Store, first: logfs.Partition) -> None:
    """pyarrow, polars, pandas and DuckDB get the columns of Spark's Kafka source."""
    duckdb, pa, polars = (pytest.importorskip(name) for name in ("duckdb", "pyarrow", "polars"))
    first.append("a", key="k", headers={"h": b"1"}, timestamp=1638100400000)
    first.append(None)
    columns = first.columns()
    rows = columns.to_arrow()
    names = [
        "key",
        "value",
        "topic",
        "partition",
        "offset",
        "timestamp",
        "timestampType",
        "headers",
    ]
    assert rows.column_names == names
    row = rows.to_pylist()[0]
    moment = datetime(2021, 11, 28, 11, 53, 20, tzinfo=UTC)
    assert row == dict(
        zip(
            names,
            [b"k", b"a", "orders", 0, 0, moment, 0, [{"key": "h", "value": b"1"}]],
            strict=True,
        )
    )
    assert rows["value"].to_pylist() == [b"a", None]
    assert columns.to_polars()["offset"].to_list() == [0, 1]
    assert polars.DataFrame(columns).equals(columns.to_polars())
    assert pa.table(columns).equals(rows)
    assert columns.to_pandas()["value"].tolist() == [b"a", None]
    assert duckdb.sql('select sum("offset"), count(value) from rows').fetchall() == [(1, 1)]
    assert first.columns(2).to_arrow().num_rows == 0
    store.topic("orders").settings["message.timestamp.type"] = "LogAppendTime"
    first.append("late")
    assert first.columns().to_arrow()["timestampType"].to_pylist() == [0, 0, 1]


# Ctrl-C.


def interrupted_at(number: int, work: Callable[[], object], *, after: str = "") -> bool:
    """Do work, interrupted at the n-th call of a function of the log; return whether it was.

    With `after`, calls count from the first call of the function of this name on.
    """
    calls, is_counting = 0, not after

    def trace(frame: Any, event: str, _: object) -> None:
        nonlocal calls, is_counting
        # An error in `__del__` goes to no caller.
        names = frame.f_code.co_name, frame.f_back and frame.f_back.f_code.co_name
        if event == "call" and "/logfs/log/" in frame.f_code.co_filename and "__del__" not in names:
            is_counting |= after in names
            calls += is_counting
            if calls == number and is_counting:
                raise KeyboardInterrupt

    sys.settrace(trace)
    try:
        work()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(None)
    return False


def test_an_append_that_is_interrupted_anywhere(log_dir: Path) -> None:
    """After Ctrl-C in an append, the next one works or says that the store must be reopened; then all is right."""
    with logfs.open(log_dir, create=True) as store:
        store.create_topic("a", segment_bytes=6000, max_message_bytes=2000, index_interval_bytes=0)
    expected: list[bytes | None] = []
    for number in drawn(range(1, 900), 20):
        store = logfs.open(log_dir)
        partition = store["a-0"]
        was_interrupted = interrupted_at(
            number,
            lambda p=partition: p.append_many([b"x" * 60] * 80),  # type: ignore[misc]
        )
        with suppress(logfs.PartitionFailed):
            partition.append(b"after")
            partition.flush()
        store.__exit__(None, KeyboardInterrupt() if was_interrupted else None, None)
        with logfs.open(log_dir, "r") as live:
            values = [record.value for record in live["a-0"].read()]
        assert values[: len(expected)] == expected
        assert {*values[len(expected) :]} <= {b"x" * 60, b"after"}
        expected = values


def test_a_transaction_that_is_interrupted_anywhere(log_dir: Path) -> None:
    """After Ctrl-C in an append of a transaction that is then aborted, its records are never shown as committed."""
    with logfs.open(log_dir, create=True) as store:
        store.create_topic("a", segment_bytes=3000)
        store["a-0"].append("shown")
    for number in drawn(range(1, 50), 30):
        store = logfs.open(log_dir)
        with suppress(KeyboardInterrupt, logfs.LogfsError), store.transaction("id") as transaction:
            interrupted_at(
                number,
                lambda t=transaction: t.append("a-0", b"hidden" * 20),  # type: ignore[misc]
                after="_append_noted",
            )
            raise KeyboardInterrupt
        with suppress(logfs.PartitionFailed):
            store.close()
        with logfs.open(log_dir) as store:
            committed = store["a-0"].read(isolation="read_committed")
            assert [record.value for record in committed] == [b"shown"]


def test_a_roll_that_is_interrupted_anywhere(log_dir: Path) -> None:
    """After Ctrl-C in a compaction, which begins with a roll, no record that was flushed before or after is lost."""
    with logfs.open(log_dir, create=True) as store:
        store.create_topic("a", cleanup_policy="compact")
    flushed: dict[bytes | None, bytes | None] = {}

    def put(partition: logfs.Partition, key: bytes, value: bytes) -> None:
        partition.append(value, key=key)
        partition.flush()
        flushed[key] = value

    for number in drawn(range(1, 400), 25):
        value = b"%d" % number
        store = logfs.open(log_dir)
        partition = store["a-0"]
        put(partition, b"%d" % (number % 7), value)
        interrupted_at(number, partition.compact)
        with suppress(logfs.PartitionFailed):
            for key in (b"a", b"b", b"c"):
                put(partition, key, value)
        store.__exit__(None, KeyboardInterrupt(), None)
        with logfs.open(log_dir, "r") as live:
            assert {record.key: record.value for record in live["a-0"].read()} == flushed


@pytest.mark.parametrize("number", range(4))
def test_follow_beside_random_changes_by_another_process(tmp_path: Path, number: int) -> None:
    """What was cut off or deleted is told until `seek`; else each record comes once, wherever the partition lies."""
    chance = random.Random(f"{seed_of()} {number}")
    log_dirs = [tmp_path / "one", tmp_path / "two"]
    with logfs.open(log_dirs, create=True) as writer, logfs.open(log_dirs, "r") as reader:
        writer.create_topic("a", 2)
        following = reader.topic("a").follow(begin="earliest", timeout=0)
        made = count()
        values, start = appended(writer, made, 1), 0
        reached: int | None = len([*following])
        assert reached == 1
        for _ in range(60):
            values += appended(writer, made, chance.randrange(4))
            change = chance.choice(["none", "truncate", "delete", "recreate", "move"])
            cut = None
            if change == "truncate":
                cut = chance.randint(start, len(values))
                writer["a-0"].truncate(cut)
                del values[cut:]
            elif change == "delete":
                start = writer["a-0"].delete_records(chance.randint(start, len(values)))
            elif change == "recreate":
                writer["a-0"].delete()
                writer.create("a-0")
                values, start, reached = [], 0, None
            elif change == "move":
                home = writer._engine.registry.home("a-0")
                (other,) = {*log_dirs} - {home}
                writer._engine.move("a-0", other)
            if chance.random() < 0.5:
                reader["a-0"].log_end_offset  # noqa: B018 - a look, without the reader that follows
            values += appended(writer, made, chance.randrange(4))
            # Nothing of a new partition was read yet: it is read from its log start.
            reached = start if reached is None else reached
            if start > reached or (cut is not None and cut < reached):
                for _ in range(2):
                    with pytest.raises(logfs.OffsetOutOfRange):
                        next(following)
                reached = start if start > reached else cut or 0
                following.seek("a-0", reached)
            assert [record.value for record in following] == [
                each.encode() for each in values[reached:]
            ], (change, cut, start, reached)
            # A partition without a record so far is still read from its log start.
            reached = len(values) if len(values) > reached or "a-0" in following.offsets else None


def appended(writer: logfs.Store, made: count[int], number: int) -> list[str]:
    """Append records with new values, a batch each, and return the values."""
    values = [f"value {next(made)}" for _ in range(number)]
    for value in values:
        writer["a-0"].append(value)
    return values
