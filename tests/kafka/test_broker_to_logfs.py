"""logfs reads what Kafka wrote: the directory of a running broker, of a stopped one, and a copy of a running one."""

from __future__ import annotations

import random
import shutil
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

from logfs.format.text.rendering import View
from logfs.log.read.reader import EARLIEST, LATEST, MAX_TIMESTAMP
from logfs.store.store import Store
from tests.kafka import topics
from tests.kafka.client import COMMITTED
from tests.support.requirements import DEEP
from tests.support.stores import assert_clean

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from logfs.format.batches.record import Record
    from logfs.log.read.reader import OffsetAndTimestamp
    from tests.kafka.broker import Broker
    from tests.kafka.client import Client

# The number of lookups by time in each partition.
TIMES = 1000 if DEEP else 200
EDGES = {"earliest": EARLIEST, "latest": LATEST, "max": MAX_TIMESTAMP}


@dataclass
class Said:
    """What Kafka's clients return for a partition."""

    records: list[tuple[Record, int]]
    committed: list[Record]
    edges: list[OffsetAndTimestamp | None]
    times: list[int]
    found: list[OffsetAndTimestamp | None]


@dataclass
class Written:
    """Log directories by their state (`stopped`, `live`, `torn`), and Kafka's answers for their partitions."""

    directories: dict[str, Path] = field(default_factory=dict)
    said: dict[str, dict[str, Said]] = field(default_factory=dict)


def ask(client: Client, log_dir: Path) -> dict[str, Said]:
    """Return all answers of Kafka's clients about the partitions of a broker."""
    said = {}
    for topic in client.topic_ids():
        for number in range(len(list(log_dir.glob(f"{topic}-[0-9]")))):
            records = client.consume_epochs(topic, number)
            times = some_times(topic, [record for record, _ in records])
            said[f"{topic}-{number}"] = Said(
                records,
                client.consume(topic, number, isolation=COMMITTED),
                client.list_offsets(topic, list(EDGES), number),
                times,
                client.list_offsets(topic, times, number),
            )
    return said


def some_times(topic: str, records: list[Record]) -> list[int]:
    """Return `TIMES` timestamps: those of records, 1 ms before and after them, and random ones, also out of range."""
    rng = random.Random(topic)
    known = [record.timestamp for record in records if record.timestamp is not None] or [topics.T]
    near = [rng.choice(known) + rng.choice([-1, 0, 1]) for _ in range(TIMES // 2)]
    return near + [rng.randint(min(known) - 1000, max(known) + 1000) for _ in range(TIMES // 2)]


def copy(broker: Broker, path: Path) -> Path:
    """Copy the broker's log directory, without files that are just being created."""
    return shutil.copytree(broker.log_dir, path, ignore=shutil.ignore_patterns("*.tmp"))


@pytest.fixture(scope="module")
def written(
    make_broker: Callable[..., Broker],
    connect: Callable[[Broker], Client],
    tmp_path_factory: pytest.TempPathFactory,
) -> Written:
    """The directories of a broker that has written all topics, was stopped, has written more, and still runs."""
    base = tmp_path_factory.mktemp("copies")
    broker = make_broker(log_index_size_max_bytes=1 << 16)
    client = connect(broker)
    written = Written()
    topics.create(client)
    topics.append(client, broker.log_dir, 0)
    written.said["stopped"] = ask(client, broker.log_dir)
    broker.stop()
    written.directories["stopped"] = copy(broker, base / "stopped")
    broker.start()
    topics.append(client, broker.log_dir, 1)
    written.said["live"] = written.said["torn"] = ask(client, broker.log_dir)
    written.directories["torn"] = copy(broker, base / "torn")
    written.directories["live"] = broker.log_dir
    return written


@pytest.fixture(scope="module", params=["live", "stopped", "torn"])
def store(request: pytest.FixtureRequest, written: Written) -> Iterator[Store]:
    """A store on each of the directories: it recovers the torn one, and opens the others read-only."""
    torn = request.param == "torn"
    with Store(written.directories[request.param], read_only=not torn) as store:
        assert not store.offline
        yield store
    if torn:
        assert_clean(written.directories["torn"])


@pytest.fixture(scope="module")
def said(request: pytest.FixtureRequest, written: Written, store: Store) -> dict[str, Said]:
    """Kafka's answers for the partitions of the store's directory."""
    (path,) = (log_dir.path for log_dir in store.log_dirs)
    (kind,) = (kind for kind, known in written.directories.items() if known == path)
    return written.said[kind]


def assert_same(what: str, ours: list[Any], theirs: list[Any]) -> None:
    """Assert that two lists are equal; a failure names the first difference."""
    for number, (our, their) in enumerate(zip(ours, theirs, strict=False)):
        assert our == their, f"{what}, number {number}"
    assert len(ours) == len(theirs), what


def test_topics_have_the_intended_contents(said: dict[str, Said], written: Written) -> None:
    """The topics have the contents that their names promise; otherwise the tests below would prove little."""
    stopped = written.directories["stopped"]
    assert len(list((stopped / "segments-0").glob("*.log"))) > 20
    assert said["trimmed-0"].edges[0].offset > 0
    for topic in ("compacted-0", "compacted-away-0", "compacted-transactions-0"):
        offsets = [record.offset for record, _ in said[topic].records]
        assert offsets[-1] - offsets[0] >= len(offsets)
    assert any(record.value is None for record, _ in said["compacted-0"].records)
    assert {epoch for _, epoch in written.said["live"]["odd-0"].records} > {0}
    transactions = said["transactions-0"]
    assert 0 < len(transactions.committed) < len(transactions.records)
    assert sum(len(known.records) for n, known in said.items() if n.startswith("__consumer")) > 20


def test_there_are_the_same_partitions(store: Store, said: dict[str, Said]) -> None:
    """The store has all partitions of the broker, including internal ones, but not the cluster metadata."""
    assert set(store) == set(said)


def test_records_are_equal(store: Store, said: dict[str, Said]) -> None:
    """Each record has the same offset, timestamp and its type, key, value, headers and leader epoch as in Kafka."""
    for name, known in said.items():
        partition = store[name]
        assert_same(name, list(partition.read()), [record for record, _ in known.records])
        epochs = {
            record.offset: batch.header.partition_leader_epoch
            for batch in partition.batches(partition.log_start_offset)
            for record in batch.records()
        }
        assert_same(
            name, [epochs[r.offset] for r, _ in known.records], [e for _, e in known.records]
        )


def test_committed_records_are_equal(store: Store, said: dict[str, Said]) -> None:
    """With read_committed the records are equal when read one by one, in bulk, by offset, and as text."""
    for name, known in said.items():
        committed = store[name].committed
        assert_same(name, list(committed.read()), known.committed)
        offsets = [record.offset for record in known.committed]
        assert_same(name, committed.columns().offsets.tolist(), offsets)
        there = {record.offset: record for record in known.committed}
        for offset in range(committed.log_start_offset, committed.log_end_offset):
            assert committed.record(offset) == there.get(offset), f"{name}, offset {offset}"
        text = committed.text(View.LINES)
        assert text.read(0, text.size) == b"".join(
            (r.value or b"") + b"\n" for r in known.committed
        )


def test_columns_are_equal(store: Store, said: dict[str, Said]) -> None:
    """`columns` returns the same offsets and timestamps."""
    for name, known in said.items():
        columns = store[name].columns()
        assert_same(name, columns.offsets.tolist(), [r.offset for r, _ in known.records])
        assert_same(name, columns.timestamps.tolist(), [r.timestamp for r, _ in known.records])


def test_every_record_is_found_by_its_offset(store: Store, said: dict[str, Said]) -> None:
    """A lookup by offset finds each record, and none where compaction removed a record or where a marker is."""
    for name, known in said.items():
        partition = store[name]
        there = {record.offset: record for record, _ in known.records}
        for offset in range(partition.log_start_offset, partition.log_end_offset):
            assert partition.record(offset) == there.get(offset), f"{name}, offset {offset}"


def test_lookups_by_time_are_equal(store: Store, said: dict[str, Said]) -> None:
    """Lookups of 1,000 timestamps return the same offset, timestamp and leader epoch."""
    for name, known in said.items():
        for timestamp, found in zip(known.times, known.found, strict=True):
            assert store[name].offset_for_time(timestamp) == found, f"{name}, time {timestamp}"


def test_earliest_latest_and_max_timestamp_are_equal(store: Store, said: dict[str, Said]) -> None:
    """Lookups of the earliest, the latest and the greatest timestamp are equal.

    The leader epochs are compared only on the running broker: the epoch of a leader that has written nothing is not
    known after it has ended.
    """
    live = store.log_dirs[0].live
    for name, known in said.items():
        ours = [store[name].offset_for_time(edge) for edge in EDGES.values()]
        theirs = known.edges
        if not live:
            theirs = [
                their and their._replace(leader_epoch=our.leader_epoch if our else -1)
                for our, their in zip(ours, theirs, strict=True)
            ]
        assert_same(name, ours, theirs)
