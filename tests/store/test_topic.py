"""A topic as one thing: which partition a record goes to, what is refused, and the order of a merged read."""

from __future__ import annotations

import errno
import random
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from logfs.errors import (
    InvalidEnvelope,
    InvalidRecord,
    NotWritable,
    PartitionExists,
    PartitionFailed,
    UnknownPartition,
)
from logfs.format.base.murmur2 import murmur2, partition_of
from logfs.format.batches.record import Record
from logfs.log.append.line_framer import EnvelopeFramer, LineFramer
from logfs.log.append.topic_framer import (
    BATCH_BYTES,
    Partitioner,
    TopicEnvelopeFramer,
    TopicLineFramer,
)
from logfs.log.disk.disk import Disk, WouldBlock
from logfs.store.admin.requests import Create, CreateTopic, Request
from logfs.store.store import Store
from tests.support.disks import event_loop
from tests.support.stores import assert_clean, set_topic

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from logfs.store.topic import Topic


@pytest.fixture
def store(log_dir: Path) -> Iterator[Store]:
    """A store with the topic `orders` of three partitions."""
    with Store(log_dir) as store:
        store.topic("orders").create(3)
        yield store
    assert_clean(log_dir)


@pytest.fixture
def orders(store: Store) -> Topic:
    """The topic."""
    return store.topic("orders")


# Known hashes of Kafka.
VECTORS = {
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}


@pytest.mark.parametrize("key", VECTORS)
def test_the_hash_of_a_key(key: bytes) -> None:
    """It is Kafka's."""
    assert murmur2(key) == VECTORS[key] % 2**32


@given(st.lists(st.binary(max_size=40), min_size=1, max_size=30), st.integers(1, 100))
def test_one_key_and_a_column_of_keys_are_partitioned_alike(keys: list[bytes], count: int) -> None:
    """The compiled loop, which Spark's sink uses, finds the same partitions."""
    from logfs.format.encoding.columnar_encoder import _partition

    offsets = np.cumsum([0, *map(len, keys)])
    found = np.empty(len(keys), np.int32)
    data = np.frombuffer(b"".join(keys) or b"\0", np.uint8)
    _partition(data, offsets, np.zeros(len(keys), np.bool_), count, found)
    assert found.tolist() == [partition_of(key, count) for key in keys]


def test_records_without_a_key_stay_until_they_fill_a_batch(orders: Topic) -> None:
    """Then another partition is chosen at random; with keys, the hash decides, and nothing is counted."""
    choices = iter([1, 0, 0, 2, 1])
    partitioner = Partitioner(3, lambda count: next(choices))
    framer = TopicLineFramer(orders.partitions, partitioner)
    line = b"x" * 1023 + b"\n"
    done = framer.write(line * 70)
    assert (done.consumed, done.last_offset) == (70 * 1024, 69)
    assert [p.log_end_offset for p in orders.partitions] == [32, 22, 16]
    assert BATCH_BYTES == 16 * 1024


def test_a_partition_that_fails_ends_a_write_after_the_lines_before(orders: Topic) -> None:
    """What other partitions have taken is consumed, so that a program that goes on repeats no line."""
    choices = iter([0, 1, 1])
    framer = TopicLineFramer(orders.partitions, Partitioner(3, lambda count: next(choices)))
    line = b"x" * 1023 + b"\n"
    assert framer.write(line[:10]).consumed == 10
    orders.partitions[1].failure = failure = PartitionFailed("broken")
    done = framer.write(line[10:] + line * 40)
    orders.partitions[1].failure = None
    assert done.refused is failure
    assert done.consumed == 16 * 1024 - 10
    assert [p.log_end_offset for p in orders.partitions] == [16, 0, 0]
    assert framer.write(line * 25).consumed == 25 * 1024
    assert [p.log_end_offset for p in orders.partitions[:2]] == [16, 25]


def test_lines_in_pieces_of_any_size(orders: Topic) -> None:
    """Each line is one record in one partition, and each partition has its lines in order."""
    chance = random.Random(5)
    lines = [b"line %d %s" % (n, b"y" * chance.randrange(300)) for n in range(3000)]
    text = b"".join(line + b"\n" for line in lines)
    framer = TopicLineFramer(orders.partitions, Partitioner(3, random.Random(7).randrange))
    at = 0
    while at < len(text):
        done = framer.write(text[at : at + chance.randrange(1, 40_000)])
        assert done.refused is None
        at += done.consumed
    found = [[record.value for record in p.read()] for p in orders.partitions]
    assert all(found)
    assert sorted(value for values in found for value in values if value) == sorted(lines)
    number = {line: n for n, line in enumerate(lines)}
    for values in found:
        assert values == sorted(values, key=lambda value: number[value or b""])


def test_envelopes_go_where_their_keys_say(orders: Topic) -> None:
    """In order for each key; those without a key stay together."""
    framer = TopicEnvelopeFramer(orders.partitions, Partitioner(3, lambda count: 2))
    lines = [
        b'{"key":"k%d","value":"%d"}\n' % (n % 10, n) if n % 3 else b'{"value":"%d"}\n' % n
        for n in range(300)
    ]
    done = framer.write(b"".join(lines))
    assert done.refused is None
    assert done.consumed == sum(map(len, lines))
    for number, partition in enumerate(orders.partitions):
        wanted = [
            n for n in range(300) if number == (partition_of(b"k%d" % (n % 10), 3) if n % 3 else 2)
        ]
        assert [int(record.value or b"") for record in partition.read()] == wanted


LARGE = b"".join(b"line %d %s\n" % (n, b"x" * 100) for n in range(400))
KEYED = b"".join(b'{"key":"k%d","value":"v%d"}\n' % (n % 7, n) for n in range(60))
WRITES: dict[str, tuple[Callable[[Store], LineFramer], bytes]] = {
    "lines in several batches": (lambda store: LineFramer(store["small-0"]), LARGE),
    "envelopes in several batches": (lambda store: EnvelopeFramer(store["small-0"]), KEYED),
    "lines of a topic": (
        lambda store: TopicLineFramer(store.topic("orders").partitions, Partitioner(3)),
        LARGE,
    ),
    "envelopes of a topic": (
        lambda store: TopicEnvelopeFramer(store.topic("orders").partitions, Partitioner(3)),
        KEYED,
    ),
    "one envelope of a topic": (
        lambda store: TopicEnvelopeFramer(store.topic("orders").partitions, Partitioner(3)),
        b'{"key":"k","value":"v"}\n',
    ),
}


@pytest.mark.drawn(2)
@pytest.mark.parametrize("name", WRITES)
def test_a_write_that_is_repeated_has_appended_nothing(store: Store, name: str) -> None:
    """In the thread that must not wait, a write succeeds as a whole, or `WouldBlock` leaves the logs as they were.

    Each lock and each directory may be busy at that time: those of each partition in turn, and those of the disk.
    """
    set_topic(store, "small", segment_bytes=4096, max_message_bytes=1024)
    store.create("small-0").append([b"x"])
    make, data = WRITES[name]
    for _ in range(10):
        for busy in (store.disk.naming, *(store[each].lock for each in sorted(store))):
            framer = make(store)
            before = {each: store[each].log_end_offset for each in store}
            taken, freed = threading.Event(), threading.Event()

            def hold(busy: Any = busy, taken: Any = taken, freed: Any = freed) -> None:
                with busy:
                    taken.set()
                    freed.wait()

            def write(framer: LineFramer = framer) -> bool:
                store.disk.forbid_blocking()
                try:
                    return framer.write(data).consumed == len(data)
                except WouldBlock:
                    return False
                finally:
                    store.disk.allow_blocking()

            with ThreadPoolExecutor(2) as threads:
                holding = threads.submit(hold)
                taken.wait()
                done = threads.submit(write).result()
                freed.set()
                holding.result()
            if not done:
                assert {each: store[each].log_end_offset for each in store} == before
                assert framer.write(data).consumed == len(data)
            added = sum(store[each].log_end_offset - before[each] for each in store)
            assert added == data.count(b"\n")


def test_a_repeated_call_does_not_count_its_bytes_twice(orders: Topic) -> None:
    """Records without a key stay in one partition until they have filled a batch there, repeated calls or not."""
    first, second, third = orders.partitions
    partitioner = Partitioner(3, lambda count: int(first.log_end_offset > 0))
    framer = TopicEnvelopeFramer(orders.partitions, partitioner)
    line = b'{"value":"' + b"x" * 1012 + b'"}\n'
    with event_loop() as loop:
        for _ in range(32):
            assert loop.call(lambda: framer.write(line), 0).consumed == len(line)
            assert loop.waited
    assert len(line) == 1025
    assert [first.log_end_offset, second.log_end_offset, third.log_end_offset] == [16, 16, 0]


def test_what_was_appended_before_an_envelope_that_fails_is_consumed(orders: Topic) -> None:
    """A program that goes on after a full disk repeats only lines from the first one that is in no log."""
    keys = {partition_of(b"%d" % n, 3): b"%d" % n for n in range(20)}
    lines = [
        b'{"key":"%s","value":"%d"}\n' % (keys[number], n) for n, number in enumerate((0, 2, 1, 0))
    ]
    orders.partitions[2].failure = failure = PartitionFailed("broken")
    framer = TopicEnvelopeFramer(orders.partitions, Partitioner(3, lambda count: 0))
    done = framer.write(b"".join(lines))
    orders.partitions[2].failure = None
    assert done.refused is failure
    assert done.consumed == len(lines[0])
    assert [p.log_end_offset for p in orders.partitions] == [2, 1, 0]
    assert framer.write(b"".join(lines[1:])).refused is None
    assert [p.log_end_offset for p in orders.partitions] == [3, 2, 1]


@pytest.mark.parametrize(
    ("line", "error"),
    [
        (b"no envelope", InvalidEnvelope),
        (b'{"value":"' + b"x" * 3000 + b'"}', None),
        (b'{"value":"x","timestamp":-7}', InvalidRecord),
    ],
)
def test_nothing_after_a_refused_envelope_is_appended(
    store: Store, orders: Topic, line: bytes, error: type[Exception] | None
) -> None:
    """Whatever partition the envelopes around it go to; what is before it is taken."""
    set_topic(store, "orders", max_message_bytes=2000)
    framer = TopicEnvelopeFramer(orders.partitions, Partitioner(3))
    before = [b'{"key":"%d","value":"%d"}\n' % (n, n) for n in range(50)]
    after = [b'{"key":"%d","value":"late"}\n' % n for n in range(50)]
    done = framer.write(b"".join([*before, line, b"\n", *after]))
    assert done.consumed == sum(map(len, before))
    assert done.refused is not None
    assert error is None or isinstance(done.refused, error)
    values = [found.record.value for found in orders.read()]
    assert sorted(values, key=lambda value: int(value or b"")) == [b"%d" % n for n in range(50)]


def test_append_returns_where_each_record_is(orders: Topic) -> None:
    """With its partition and offset; records of one key are in one partition, in order."""
    records = [Record(b"%d" % n, b"k%d" % (n % 7) if n % 2 else None) for n in range(500)]
    places = orders.append(records)
    for (number, offset), record in zip(places, records, strict=True):
        found = orders.partitions[number].record(offset)
        assert found is not None
        assert (found.key, found.value) == (record.key, record.value)
        if record.key is not None:
            assert number == partition_of(record.key, 3)
    assert Counter(number for number, _ in places).total() == 500
    orders.flush()
    assert all(p.recovery_point == p.log_end_offset for p in orders.partitions)


def test_records_go_to_partitions_that_are_added(store: Store, orders: Topic) -> None:
    """A key is hashed by the present number of partitions, as by a producer of Kafka with new metadata."""
    records = [Record(b"v", b"k%d" % n) for n in range(40)]
    for count in (3, 4):
        if count == 4:
            store.create("orders-3")
        numbers = [number for number, _ in orders.append(records)]
        assert numbers == [partition_of(record.key or b"", count) for record in records]


def test_a_merged_read_is_a_sort(orders: Topic) -> None:
    """By the greatest time so far in the partition, the partition, and the offset."""
    chance = random.Random(3)
    expected = []
    for partition in orders.partitions:
        reached = -1
        for offset in range(300):
            time = 1000 + offset * 5 + chance.randrange(-60, 60)
            partition.append([Record(b"v", timestamp=time)])
            reached = max(reached, time)
            expected.append((reached, partition.partition, offset))
    found = [(each.partition, each.record.offset) for each in orders.read()]
    assert found == [(number, offset) for _, number, offset in sorted(expected)]
    assert len([*orders.read(committed=True)]) == 900


def test_topics_are_created_and_deleted(store: Store) -> None:
    """Missing partitions are added; without partition 0, or without any, nothing can be appended."""
    topic = store.topic("new")
    with pytest.raises(UnknownPartition, match="no such topic"):
        topic.append([b"x"])
    assert len(topic.create(2)) == 2
    assert [p.name.partition for p in topic.create(4)] == [2, 3]
    with pytest.raises(PartitionExists):
        topic.create(4)
    topic.append([b"x"])
    store.delete("new-1")
    with pytest.raises(UnknownPartition, match="new-1"):
        topic.append([b"x"])
    topic.delete()
    assert not topic.partitions


CREATIONS = [
    Create("orders-3", {"retention.ms": "1000"}),
    CreateTopic("orders", 4, {"retention.ms": "1000"}),
]


def run(request: Request, store: Store) -> None:
    """Execute a request to a store."""
    request.run(store, lambda *_: None)


@pytest.mark.parametrize("request_", CREATIONS, ids=lambda each: each.operation)
def test_a_creation_that_is_refused_changes_no_setting(store: Store, request_: Request) -> None:
    """Not even for a moment, in which retention would delete the records of a mirrored topic."""
    set_topic(store, "orders", logfs_mirror_source="cluster")
    version = store.settings.version
    with pytest.raises(NotWritable, match="promote"):
        run(request_, store)
    assert store.settings.version == version
    assert store.settings.topic_overrides("orders") == {"logfs.mirror.source": "cluster"}


@pytest.mark.parametrize("before", [{}, {"retention.ms": "7000"}], ids=["none", "some"])
@pytest.mark.parametrize("request_", CREATIONS, ids=lambda each: each.operation)
def test_a_creation_that_fails_leaves_the_former_settings(
    store: Store,
    log_dir: Path,
    monkeypatch: pytest.MonkeyPatch,
    request_: Request,
    before: dict[str, str],
) -> None:
    """In force at once, and in the files."""
    store.settings.change_topic("orders", before)

    def refuse(*_: object) -> None:
        raise OSError(errno.EACCES, "not permitted")

    with monkeypatch.context() as patch:
        patch.setattr(Disk, "mkdir", refuse)
        with pytest.raises(PermissionError):
            run(request_, store)
    assert store.settings.topic_overrides("orders") == before
    assert store["orders-0"].config.retention_ms == int(before.get("retention.ms", 604_800_000))
    assert (log_dir / "orders@p").exists() == bool(before)
    with Store(log_dir, read_only=True) as again:
        assert again.settings.topic_overrides("orders") == before
    run(request_, store)
    assert store.settings.topic_overrides("orders") == {"retention.ms": "1000"}
