"""The text of a topic: that of a sort by time, whose bytes do not change while it grows."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from logfs.errors import OffsetOutOfRange
from logfs.format.batches.record import Record
from logfs.format.text import envelope
from logfs.format.text.rendering import View
from logfs.log.read import merged_text
from logfs.log.read.merged_text import MergedText
from logfs.log.read.read_committed import Isolation
from logfs.store.store import Store
from tests.support.batches import batch
from tests.support.examples import seed_of
from tests.support.requirements import DEEP
from tests.support.stores import Clock, assert_clean, set_topic

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from logfs.log.read.reader import Reader


@pytest.fixture
def store(log_dir: Path, clock: Clock) -> Iterator[Store]:
    """A store with a topic of three partitions in small segments."""
    with Store(log_dir, clock=clock) as store:
        set_topic(store, "orders", segment_bytes=20_000, index_interval_bytes=500)
        store.topic("orders").create(3)
        yield store
    assert_clean(log_dir)


def fill(
    store: Store,
    chance: random.Random,
    count: int,
    *,
    transactions: bool = False,
    keys: Sequence[bytes | None] = (None, b"k", b"k"),
) -> None:
    """Append batches whose times go back and forth, some in transactions that are committed or aborted.

    The records have the `keys` in turn.
    """
    for partition in store.topic("orders").partitions:
        while (at := partition.log_end_offset) < count:
            if transactions and chance.random() < 0.2:
                value, time = b"of a transaction %d" % at, 1000 + at * 10
                sequence = partition.producers[1].last_sequence + 1
                partition.append_batch(
                    batch(1, sequence, value, transactional=True, timestamp=time, key=keys[-1])
                )
                # A marker has the time of its append. One far later than the records makes each lookup of a time read
                # the rest of its segment.
                assert isinstance(store.clock, Clock)
                store.clock.now_ms = time if chance.random() < 0.99 else 1_700_000_000_000
                partition.end_transaction(1, 0, commit=chance.random() < 0.5)
                continue
            size = min(chance.randrange(1, 30), count - at)
            partition.append(
                [
                    Record(
                        b"%d:%d\n%s" % (partition.partition, n, b"x" * chance.randrange(60)),
                        keys[n % len(keys)],
                        timestamp=1000 + n * 10 + chance.randrange(-200, 200),
                    )
                    for n in range(at, at + size)
                ]
            )


def sorted_text(
    partitions: Sequence[Reader], view: View, firsts: Sequence[int], reached: list[int]
) -> bytes:
    """Return the text of the records from `firsts` on by a sort; `reached` has the times before, and is updated."""
    found = []
    for number, partition in enumerate(partitions):
        for record in partition.read(firsts[number]):
            assert record.timestamp is not None
            reached[number] = max(reached[number], record.timestamp)
            line = (record.value or b"") + b"\n"
            if view is View.ENVELOPES:
                line = envelope.encode(record, envelope.prefix(partition.name))
            found.append(((reached[number], number, record.offset), line))
        # What comes later is not before a record that these readers do not see, either.
        hidden = partition.log.state.segments_from(firsts[number])
        reached[number] = max(reached[number], *(s.max_timestamp.timestamp for s in hidden))
    return b"".join(line for _, line in sorted(found))


@pytest.mark.drawn(1)
@pytest.mark.parametrize("isolation", list(Isolation))
@pytest.mark.parametrize("view", list(View))
def test_the_text_is_a_sort(
    store: Store, view: View, isolation: Isolation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From wherever one reads; what was seen once stays, and what was appended since comes after it."""
    monkeypatch.setattr(merged_text, "_FEW", 50)
    monkeypatch.setattr(merged_text, "_SKIP_BYTES", 2000)
    monkeypatch.setattr(merged_text, "_STEP", 64)
    chance = random.Random(f"{seed_of()} {view.name}")
    set_topic(store, "orders", segment_bytes=7000)
    partitions = [each.isolated(isolation) for each in store.topic("orders").partitions]
    has_transactions = isolation is Isolation.READ_COMMITTED
    first = 1500 if DEEP else 500
    fill(store, chance, first, transactions=has_transactions)
    text = MergedText(partitions, view)
    expected = b""
    firsts, reached = [0, 0, 0], [-1, -1, -1]
    for count in (first, first + 1, first + 100, first + 500):
        fill(store, chance, count, transactions=has_transactions)
        assert text.size >= len(expected)
        expected += sorted_text(partitions, view, firsts, reached)
        firsts = [partition.log_end_offset for partition in partitions]
        assert text.size == len(expected)
        assert text.read(0, len(expected) + 10) == expected
        for _ in range(60 if DEEP else 15):
            at = chance.randrange(len(expected))
            size = chance.choice([1, 50, 3000, 40_000])
            assert text.read(at, size) == expected[at : at + size]
        assert text.read(len(expected), 100) == b""
        # A new text would merge what has come since.
        assert text.is_current == (count == first)
    assert MergedText(partitions, view).size == len(expected)


def test_equal_times_and_none(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """All at one time, before it, and an empty partition: by partition, then by offset."""
    monkeypatch.setattr(merged_text, "_FEW", 5)
    monkeypatch.setattr(merged_text, "_SKIP_BYTES", 10)
    partitions = store.topic("orders").partitions
    for number in (0, 2):
        partitions[number].append([Record(b"%d" % n, timestamp=7) for n in range(200)])
    text = MergedText(partitions, View.LINES)
    expected = b"".join(b"%d\n" % n for n in range(200)) * 2
    assert text.read(0, 10_000) == expected
    for at in range(0, len(expected), 37):
        assert text.read(at, 20) == expected[at : at + 20]


def test_an_empty_topic_grows(store: Store) -> None:
    """From nothing."""
    partitions = store.topic("orders").partitions
    text = MergedText(partitions, View.LINES)
    assert (text.size, text.read(0, 10)) == (0, b"")
    partitions[1].append([b"first"])
    assert (text.size, text.read(0, 10)) == (6, b"first\n")
    partitions[0].append([b"second"])
    assert text.read(0, 100) == b"first\nsecond\n"


@pytest.mark.drawn(1)
@pytest.mark.parametrize("isolation", list(Isolation))
@pytest.mark.parametrize("view", list(View))
def test_an_open_text_keeps_what_leaves_the_logs(
    store: Store, view: View, isolation: Isolation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compaction, retention and deletions take records from the logs, not from a text that is open."""
    monkeypatch.setattr(merged_text, "_FEW", 50)
    monkeypatch.setattr(merged_text, "_SKIP_BYTES", 2000)
    monkeypatch.setattr(merged_text, "_STEP", 64)
    chance = random.Random(view.name)
    set_topic(store, "orders", segment_bytes=5000, cleanup_policy="compact,delete")
    set_topic(store, "orders", retention_ms=-1)
    names = ["orders-0", "orders-1", "orders-2"]
    partitions = [store[name].isolated(isolation) for name in names]
    has_transactions = isolation is Isolation.READ_COMMITTED
    text = MergedText(partitions, view)
    expected = b""
    firsts, reached = [0, 0, 0], [-1, -1, -1]
    keys = [b"k%d" % number for number in range(40)]
    for count in range(200, 1000, 200):
        fill(store, chance, count, transactions=has_transactions, keys=keys)
        expected += sorted_text(partitions, view, firsts, reached)
        firsts = [partition.log_end_offset for partition in partitions]
        assert text.size == len(expected)
        for _ in range(10):
            at = chance.randrange(len(expected))
            assert text.read(at, 3000) == expected[at : at + 3000]
        for name in names:
            store.compact(name, roll=True)
        if count == 600:
            store.delete_records("orders-1", 300)
        assert not text.is_current
        for at in (0, *(chance.randrange(len(expected)) for _ in range(20))):
            assert text.read(at, 3000) == expected[at : at + 3000]
    assert text.read(0, len(expected) + 1) == expected


def test_a_new_text_begins_at_the_log_starts(store: Store) -> None:
    """It has what is left of each log, and a text made before keeps what it has shown."""
    chance = random.Random(1)
    fill(store, chance, 600)
    partitions = store.topic("orders").partitions
    text = MergedText(partitions, View.LINES)
    whole = text.read(0, text.size)
    store.delete_records("orders-1", 300)
    assert not text.is_current
    assert text.read(0, len(whole) + 1) == whole
    fresh = MergedText(partitions, View.LINES)
    reached = [-1, -1, -1]
    assert fresh.read(0, len(whole)) == sorted_text(partitions, View.LINES, [0, 300, 0], reached)


@pytest.mark.parametrize("isolation", list(Isolation))
def test_a_text_follows_a_truncation(store: Store, isolation: Isolation) -> None:
    """If nothing was cut off that the text has, it goes on; otherwise reading is an error, and the size stays."""
    partition = store["orders-0"]
    text = MergedText(
        [each.isolated(isolation) for each in store.topic("orders").partitions], View.LINES
    )
    partition.append([b"old %d" % number for number in range(5)])
    shown = text.read(0, 1000)
    assert shown.count(b"\n") == 5
    partition.append([b"old %d" % number for number in range(5, 10)])
    assert store.truncate("orders-0", 5)
    for number in range(5, 8):
        partition.append([b"new %d" % number])
        partition.roll(0)
    shown += b"new 5\nnew 6\nnew 7\n"
    assert (text.size, text.read(0, 1000)) == (len(shown), shown)
    assert store.truncate("orders-0", 5)
    partition.append([b"now %d" % number for number in range(5, 10)])
    assert text.size == len(shown)
    for _ in range(2):
        with pytest.raises(
            OffsetOutOfRange, match="a partition was truncated; open the file again"
        ):
            text.read(0, 1000)
    store["orders-1"].append([b"other"])
    assert text.size == len(shown)
