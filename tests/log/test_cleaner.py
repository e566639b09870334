"""Compaction of one partition: what survives, byte for byte (kafka-storage 8), with golden vectors."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from logfs.errors import Unsupported
from logfs.format.batches.batch import Batch
from logfs.format.batches.compression import Codec
from logfs.format.batches.record import Record
from logfs.format.encoding.batch_builder import BatchFormat, build_records
from logfs.log.compaction.cleaner import clean, groups
from logfs.log.compaction.cleaning import Cleaned, CleaningAborted, Dirty
from logfs.log.compaction.offset_map import SLOT_BYTES, OffsetMap
from logfs.log.compaction.record_filter import CleanedTransactions, RecordFilter
from logfs.log.segment import batch_scanner
from logfs.store.store import Store
from tests.support.legacy_encoder import Old, message
from tests.support.stores import set_topic

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from logfs.log.append.partition import Partition
    from tests.support.stores import Clock

NAME = "orders-0"
T = 1_700_000_000_000
DAY = 86_400_000
MEMORY = 1 << 20

G_SOURCE = bytes.fromhex(
    "00000000000000140000004b0000000002adcf2f350000000000020000018bcfe568000000018bcfe56803ffffffffffffffff"
    "ffffffffffff000000031000000002610278000e00040202620100100006040263027a00"
)
G_CLEANED = bytes.fromhex(
    "00000000000000140000004800000000028bc4fb7d0040000000020000018bd50bc7e80000018bcfe56803ffffffffffffffff"
    "ffffffffffff000000021400cbffb25202026201001600c9ffb252040263027a00"
)
H = bytes.fromhex(
    "00000000000000140000003a000000000294c1174b0000000000020000018bcfe568000000018bcfe56800ffffffffffffffff"
    "ffffffffffff00000001100000000261027800"
)
I = bytes.fromhex(  # noqa: E741
    "0000000000000014000000310000000002af83c9f1000000000002ffffffffffffffff0000018bcfe56803ffffffffffffffff"
    "ffffffffffff00000000"
)


def sift(data: bytes, newest: dict[bytes, int], *, now: int, first_uncleanable: int = 99) -> bytes:
    """Return the bytes that compaction leaves of one batch, if `newest` has the newest offset of each key."""
    known = OffsetMap(MEMORY, 0.9, len(newest))
    for key, offset in newest.items():
        batch = Batch.parse(build_records([Record(b"v", key)], BatchFormat(), 0).batches[0].data)
        span = np.array([(0, len(batch.payload), 1, offset, 0)], np.int64)
        assert known.put(np.frombuffer(batch.payload, np.uint8), span, 0) == 1
    scanned, end = batch_scanner.scan(memoryview(data), 0, gaps=True)
    assert end == len(data)
    transactions = CleanedTransactions([])
    record_filter = RecordFilter(known, transactions, now, DAY, first_uncleanable, {})
    return b"".join(map(bytes, record_filter.apply(scanned)))


def test_golden_vector_g() -> None:
    """An overwritten value goes, a kept tombstone sets the delete horizon, and record timestamps stay.

    (Kafka's tests of records)
    """
    left = sift(G_SOURCE, {b"a": 23, b"b": 21, b"c": 22}, now=T + 1000)
    assert left == G_CLEANED
    # A second pass before the horizon changes nothing; at the horizon the tombstone is removed.
    newest = {b"a": 23, b"b": 21, b"c": 22}
    assert sift(left, newest, now=T + 1000 + DAY - 1) == left
    later = Batch.parse(sift(left, newest, now=T + 1000 + DAY))
    assert [(record.offset, record.timestamp) for record in later.records()] == [(22, T + 3)]
    assert later.header.delete_horizon_ms == T + 1000 + DAY


def test_golden_vector_h() -> None:
    """A batch keeps its last offset, and its max timestamp becomes the greatest of the surviving records."""
    assert sift(G_SOURCE, {b"a": 20, b"b": 23, b"c": 24}, now=T) == H


def test_golden_vector_i() -> None:
    """An emptied batch keeps its bare header if the round ends with it, and is removed otherwise."""
    newest = {b"a": 23, b"b": 24, b"c": 25}
    assert sift(G_SOURCE, newest, now=T, first_uncleanable=23) == I
    assert sift(G_SOURCE, newest, now=T, first_uncleanable=24) == b""


@pytest.fixture
def orders(store: Store) -> Partition:
    set_topic(store, "orders", cleanup_policy="compact", file_delete_delay_ms="0")
    orders = store.create(NAME)
    # The store does the same before the first round, so that the audit allows gaps in the offsets.
    store.checkpoints.set_cleaner_offset(orders, 0)
    return orders


def put(orders: Partition, *pairs: tuple[object, object]) -> int:
    """Append (key, value) pairs in one batch, and return the first offset; a value of None makes a tombstone."""
    return orders.append(
        [
            Record(None if value is None else str(value).encode(), str(key).encode())
            for key, value in pairs
        ]
    )


def roll(orders: Partition, clock: Clock) -> None:
    orders.roll(clock())


def run(orders: Partition, clock: Clock, first_dirty: int = 0, keys: int = 1000) -> Cleaned:
    """Run one round up to the active segment, with room for `keys` keys in the offset map."""
    dirty = Dirty(first_dirty, orders.active.base_offset)
    memory = SLOT_BYTES * (keys + 1)
    return clean(orders, dirty, clock(), memory_bytes=memory, load_factor=1.0)


def shown(orders: Partition) -> list[tuple[int, str, str | None]]:
    """Return (offset, key, value) of every record, in order; bulk reads and reads by offset must agree."""
    records = list(orders.read())
    columns = orders.columns()
    assert columns.offsets.tolist() == [record.offset for record in records]
    by_offset = {record.offset: record for record in records}
    for offset in range(orders.log_start_offset, orders.log_end_offset):
        assert orders.record(offset) == by_offset.get(offset)
    return [
        (r.offset, (r.key or b"").decode(), None if r.value is None else r.value.decode())
        for r in records
    ]


def keys_of(orders: Partition) -> list[str]:
    return [key for _, key, _ in shown(orders)]


def files(orders: Partition) -> list[str]:
    return sorted(path.name for path in orders.directory.iterdir() if path.name[0] == "0")


def test_clean_segments(orders: Partition, clock: Clock) -> None:
    """Only the newest record of each key stays, at its offset, and the log shrinks (Kafka's tests of compaction)."""
    for number in range(40):
        put(orders, (number % 5, number))
        if number % 10 == 9:
            roll(orders, clock)
    put(orders, (0, "dirty"))
    before = orders.size_bytes
    cleaned = run(orders, clock)
    assert shown(orders) == [
        *((35 + n, str(n), str(35 + n)) for n in range(5)),
        (40, "0", "dirty"),
    ]
    assert orders.size_bytes < before
    assert cleaned.first_dirty == 40
    assert (cleaned.segments_before, cleaned.segments_after) == (4, 1)
    assert [segment.base_offset for segment in orders.segments] == [0, 40]
    orders.remove_dropped(clock())
    assert [name for name in files(orders) if name.endswith(".log")] == [
        f"{0:020}.log",
        f"{40:020}.log",
    ]
    assert not [n for n in files(orders) if n.endswith((".deleted", ".swap", ".cleaned"))]


@pytest.mark.parametrize("codec", [codec.name.lower() for codec in Codec if codec])
def test_compressed_batches_are_cleaned_like_uncompressed_ones(
    orders: Partition, clock: Clock, store: Store, codec: str
) -> None:
    set_topic(store, "orders", compression_type=codec)
    for number in range(6):
        put(orders, *((key, f"{key}{number}" * 20) for key in range(number, number + 4)))
    put(orders, ("gone", None), ("kept", "x"))
    roll(orders, clock)
    run(orders, clock)
    expected = [(4 * n, str(n), f"{n}{n}" * 20) for n in range(5)]
    expected += [(20 + n, str(5 + n), f"{5 + n}5" * 20) for n in range(4)]
    assert shown(orders) == [*expected, (24, "gone", None), (25, "kept", "x")]
    batches = list(orders.batches(0))
    assert {batch.header.codec for batch in batches} == {Codec[codec.upper()]}
    assert [batch.header.last_offset_delta for batch in batches] == [3, 3, 3, 3, 3, 3, 1]
    assert batches[-1].header.delete_horizon_ms == clock() + DAY


def test_old_formats_are_left_alone(log_dir: Path, clock: Clock) -> None:
    """A log with messages of magic 1 is refused, and none of its records is lost."""
    with Store(log_dir, clock=clock) as store:
        set_topic(store, "orders", cleanup_policy="compact")
        store.checkpoints.set_cleaner_offset(store.create(NAME), 0)
        directory = store[NAME].directory
    old = b"".join(message(1, Old(n, b"%d" % n, b"k", T)) for n in range(3))
    (directory / f"{0:020}.log").write_bytes(old)
    with Store(log_dir, clock=clock, recover=True) as store:
        orders = store[NAME]
        put(orders, ("k", "new"))
        roll(orders, clock)
        before = shown(orders)
        assert len(before) == 4
        with pytest.raises(Unsupported, match="magic 1"):
            run(orders, clock)
        assert shown(orders) == before
        assert not [name for name in files(orders) if name.endswith((".cleaned", ".deleted"))]


def test_size_trimmed_for_preallocated_and_compacted_topic(
    orders: Partition, clock: Clock, store: Store
) -> None:
    """A cleaned file has no preallocated space after its batches (Kafka's tests of compaction)."""
    set_topic(store, "orders", preallocate="true", segment_bytes="100000")
    roll(orders, clock)
    for number in range(10):
        put(orders, ("k", number))
    roll(orders, clock)
    run(orders, clock)
    path = orders.segments[0].path
    assert path.stat().st_size == orders.segments[0].size_bytes < 200


def test_deleted_batches_with_no_messages_read(orders: Partition, clock: Clock) -> None:
    """Cleaning handles chunks of which no record survives, and batches about as large as a chunk.

    (Kafka's tests of compaction)
    """
    for number in range(3):
        put(orders, ("big", "x" * 700_000), ("big2", "y" * (300_000 + number)))
    put(orders, ("big", "last"))
    roll(orders, clock)
    run(orders, clock)
    assert [(o, k, len(v or "")) for o, k, v in shown(orders)] == [
        (5, "big2", 300_002),
        (6, "big", 4),
    ]


def test_cleaning_with_deletes(orders: Partition, clock: Clock) -> None:
    """A tombstone removes its key's value at once, and goes in a pass after delete.retention.ms.

    (Kafka's tests of compaction)
    """
    put(orders, *((key, key) for key in range(4)))
    put(orders, (0, None), (2, None))
    roll(orders, clock)
    run(orders, clock)
    assert shown(orders) == [(1, "1", "1"), (3, "3", "3"), (4, "0", None), (5, "2", None)]
    clock.now_ms += DAY - 1
    run(orders, clock, 6)
    assert keys_of(orders) == ["1", "3", "0", "2"]
    clock.now_ms += 1
    run(orders, clock, 6)
    assert keys_of(orders) == ["1", "3"]


def test_clean_tombstone(orders: Partition, clock: Clock) -> None:
    """The first pass sets the delete horizon of a tombstone, and later rewrites keep it.

    (Kafka's tests of compaction)
    """
    put(orders, ("k", None), ("other", 1))
    roll(orders, clock)
    run(orders, clock)
    (batch,) = orders.batches(0)
    assert batch.header.delete_horizon_ms == clock() + DAY
    assert [record.timestamp for record in batch.records()] == [T, T]
    horizon = clock() + DAY
    clock.now_ms += 1000
    put(orders, ("other", 2))
    roll(orders, clock)
    run(orders, clock, 2)
    first, _ = orders.batches(0)
    assert first.header.delete_horizon_ms == horizon
    assert shown(orders) == [(0, "k", None), (2, "other", "2")]


def test_log_append_time_is_kept(orders: Partition, clock: Clock, store: Store) -> None:
    """Records with LogAppendTime keep the append time of their batch, with and without a delete horizon."""
    set_topic(store, "orders", message_timestamp_type="LogAppendTime")
    put(orders, ("a", 1), ("b", 1), ("c", None))
    put(orders, ("a", 2))
    roll(orders, clock)
    run(orders, clock)
    assert [(r.offset, r.timestamp) for r in orders.read()] == [(1, T), (2, T), (3, T)]
    first, _ = orders.batches(0)
    assert first.header.max_timestamp == T
    assert first.header.delete_horizon_ms == T + DAY


@pytest.mark.parametrize("compression", ["uncompressed", "lz4"])
def test_the_greatest_timestamp_is_that_of_the_records_that_are_left(
    orders: Partition, clock: Clock, store: Store, compression: str
) -> None:
    """A batch that loses its newest record has a lower greatest timestamp, as Kafka's cleaner writes it."""
    set_topic(store, "orders", compression_type=compression)
    orders.append([Record(b"1", b"a", (), T - 4), Record(b"1", b"b", (), T - 1)])
    put(orders, ("b", 2))
    roll(orders, clock)
    run(orders, clock)
    first, second = orders.batches(0)
    assert (first.header.max_timestamp, first.header.record_count) == (T - 4, 1)
    assert [r.timestamp for r in first.records()] == [T - 4]
    assert second.header.max_timestamp == T


def test_partial_segment_clean(orders: Partition, clock: Clock) -> None:
    """With room for one key in the map, each round advances the first dirty offset by one.

    (Kafka's tests of compaction)
    """
    for number, key in enumerate((0, 1, 0, 1, 0)):
        put(orders, (key, number))
    roll(orders, clock)
    assert run(orders, clock, 2, keys=1).first_dirty == 3
    assert [(offset, key) for offset, key, _ in shown(orders)] == [
        (1, "1"),
        (2, "0"),
        (3, "1"),
        (4, "0"),
    ]
    assert run(orders, clock, 3, keys=1).first_dirty == 4
    assert [offset for offset, _, _ in shown(orders)] == [2, 3, 4]
    assert run(orders, clock, 4, keys=1).first_dirty == 5
    assert [offset for offset, _, _ in shown(orders)] == [3, 4]


def test_cleaning_with_uncleanable_section(orders: Partition, clock: Clock) -> None:
    """Records from the first uncleanable offset on stay, and remove no earlier record.

    (Kafka's tests of compaction)
    """
    for number in range(6):
        put(orders, (number % 2, number))
    roll(orders, clock)
    bound = orders.active.base_offset
    for number in range(6, 10):
        put(orders, (number % 2, number))
    roll(orders, clock)
    cleaned = clean(orders, Dirty(0, bound), clock(), memory_bytes=MEMORY)
    assert cleaned.first_dirty == bound
    assert [offset for offset, _, _ in shown(orders)] == [4, 5, 6, 7, 8, 9]


def test_cleaning_with_unkeyed_messages(store: Store, orders: Partition, clock: Clock) -> None:
    """Records without a key, from before the topic was compacted, are removed (Kafka's tests of compaction)."""
    set_topic(store, "orders", cleanup_policy="delete")
    orders.append([b"unkeyed", Record(b"keyed", b"k"), b"unkeyed"])
    orders.append([b"unkeyed"])
    set_topic(store, "orders", cleanup_policy="compact")
    roll(orders, clock)
    run(orders, clock)
    assert shown(orders) == [(1, "k", "keyed")]
    assert list(orders.batches(0))[-1].header.record_count == 0


def test_clean_segments_retaining_last_empty_batch(orders: Partition, clock: Clock) -> None:
    """The last offset of a round survives as a batch header without records (Kafka's tests of compaction)."""
    put(orders, ("a", 1))
    put(orders, ("a", None))
    roll(orders, clock)
    run(orders, clock)
    clock.now_ms += DAY
    run(orders, clock, 2)
    (batch,) = orders.batches(0)
    header = batch.header
    assert (header.base_offset, header.last_offset, header.record_count) == (1, 1, 0)
    assert header.delete_horizon_ms is None
    assert orders.log_end_offset == 2


def fill_segments(orders: Partition, clock: Clock, count: int, records: int = 5) -> None:
    for number in range(count):
        for record in range(records):
            put(orders, (f"{number}/{record}", "x"))
        roll(orders, clock)


def grouped(orders: Partition, **limits: int) -> list[list[int]]:
    import dataclasses

    config = dataclasses.replace(orders.config, **limits)
    sealed = orders.segments[:-1]
    return [
        [segment.base_offset for segment in group]
        for group in groups(sealed, config, orders.active.base_offset)
    ]


def test_segment_grouping(orders: Partition, clock: Clock, store: Store) -> None:
    """Groups of segments stay within segment.bytes and segment.index.bytes (Kafka's tests of compaction)."""
    set_topic(store, "orders", index_interval_bytes="1")
    fill_segments(orders, clock, 6)
    every = [segment.base_offset for segment in orders.segments[:-1]]
    size = orders.segments[0].size_bytes
    entries = orders.segments[0].offset_index.size_bytes
    assert entries > 8
    assert grouped(orders) == [every]
    assert grouped(orders, segment_bytes=1) == [[base] for base in every]
    assert grouped(orders, segment_bytes=2 * size) == [every[:2], every[2:4], every[4:]]
    assert grouped(orders, segment_index_bytes=3 * entries - 1) == [
        every[:2],
        every[2:4],
        every[4:],
    ]
    assert list(groups([], orders.config, 0)) == []


def test_segment_grouping_with_sparse_offsets(orders: Partition) -> None:
    """A group spans at most 2^31-1 offsets from its first, except for an empty segment.

    (Kafka's tests of compaction)
    """

    class Sparse:
        def __init__(self, base_offset: int, size: int) -> None:
            self.base_offset = base_offset
            self.size_bytes = size
            index = type("Index", (), {"size_bytes": 0})()
            self.indexes = (index, index, index)

    far = 2**31
    segments = [Sparse(0, 10), Sparse(10, 10), Sparse(far, 10), Sparse(far + 10, 0)]
    found = groups(segments, orders.config, far + 20)  # type: ignore[arg-type]
    # The segment at 10 may reach up to 2^31 - 1, which is just within the limit; the next one is beyond it.
    assert [[s.base_offset for s in group] for group in found] == [[0, 10], [far, far + 10]]


def test_cleaning_beyond_missing_offsets(orders: Partition, clock: Clock) -> None:
    """Offsets that are missing at the end of a segment do not hold back the first dirty offset.

    (Kafka's tests of compaction)
    """
    put(orders, ("a", 1), ("b", 1))
    roll(orders, clock)
    put(orders, ("a", None), ("b", 2))
    put(orders, ("a", None))
    roll(orders, clock)
    bound = orders.active.base_offset
    put(orders, ("c", 1))
    roll(orders, clock)
    assert run(orders, clock).first_dirty == 6
    clock.now_ms += DAY
    run(orders, clock, 6)
    # The tombstone at `bound` - 1 is gone, and the next segment begins after it.
    assert bound == 5
    assert run(orders, clock, 0).first_dirty == 6
    assert shown(orders) == [(3, "b", "2"), (5, "c", "1")]


def test_a_cleaned_segment_has_the_time_of_its_last_source(orders: Partition, clock: Clock) -> None:
    import os

    fill_segments(orders, clock, 2)
    os.utime(orders.segments[0].path, (1000, 1000))
    os.utime(orders.segments[1].path, (2000, 2000))
    run(orders, clock)
    assert orders.segments[0].path.stat().st_mtime == 2000


def test_compaction_deletes_producer_state_snapshots(orders: Partition, clock: Clock) -> None:
    """The producer snapshot of a segment that was merged into another is deleted (Kafka's tests of the log)."""
    fill_segments(orders, clock, 3)
    assert orders.snapshots.offsets == [5, 10, 15]
    run(orders, clock)
    orders.remove_dropped(clock())
    assert orders.snapshots.offsets == [15]
    assert [n for n in files(orders) if "snapshot" in n] == [f"{15:020}.snapshot"]


@pytest.mark.parametrize("what", ["truncate", "retain", "close", "delete"])
def test_a_round_is_aborted_cleanly_if_the_log_changes(
    store: Store, orders: Partition, clock: Clock, what: str
) -> None:
    """If the log changes during a round, the round is aborted, the other records stay, and no file is left over."""
    set_topic(store, "orders", cleanup_policy="compact,delete")
    fill_segments(orders, clock, 3)
    if what != "truncate":
        put(orders, ("later", 1))

    def change(_: int) -> None:
        nonlocal done
        if done:
            return
        done = True
        if what == "truncate":
            store.truncate(NAME, 7)
        elif what == "retain":
            store.delete_records(NAME, 6)
            store.retain()
        elif what == "close":
            orders.close()
        else:
            store.delete(NAME)

    done = False
    with pytest.raises(CleaningAborted, match="while it was compacted"):
        clean(orders, Dirty(0, 15), clock(), memory_bytes=MEMORY, spend=change)
    left = [path.name for path in orders.directory.iterdir()]
    assert not [name for name in left if name.endswith((".cleaned", ".swap"))]
    if what == "truncate":
        assert keys_of(orders) == [*(f"0/{n}" for n in range(5)), "1/0", "1/1"]


def test_damage_ends_a_round_before_it_changes_anything(orders: Partition, clock: Clock) -> None:
    from logfs.errors import Corrupt

    fill_segments(orders, clock, 2)
    orders.flush()
    path = orders.segments[1].path
    whole = path.read_bytes()
    path.write_bytes(whole[:70] + bytes([whole[70] ^ 1]) + whole[71:])
    before = files(orders)
    with pytest.raises(Corrupt, match="offsets 5 to 5 are damaged"):
        run(orders, clock)
    assert files(orders) == before
    path.write_bytes(whole)


def values(records: Sequence[Record]) -> list[bytes | None]:
    return [record.value for record in records]


def test_readers_keep_the_old_records_after_compaction(
    orders: Partition, clock: Clock, tmp_path: Path
) -> None:
    """An iterator and a text view from before a compaction show all old records; the view also shows later ones."""
    from logfs.format.text.rendering import View

    for number in range(30):
        put(orders, (number % 3, number))
        if number % 10 == 9:
            roll(orders, clock)
    view = orders.text(View.LINES)
    reading = orders.read()
    first = [next(reading), next(reading)]
    run(orders, clock)
    orders.remove_dropped(clock())
    put(orders, (0, 30))
    roll(orders, clock)
    put(orders, (0, 31))
    run(orders, clock, 30)
    orders.remove_dropped(clock())
    assert values([*first, *reading]) == [b"%d" % n for n in range(30)]
    assert view.read(0, view.size) == b"".join(b"%d\n" % n for n in range(32))
    assert view.generation != orders.generation
    fresh = orders.text(View.LINES)
    assert fresh.read(0, fresh.size) == b"28\n29\n30\n31\n"


def test_a_compacted_log_that_is_truncated_to_nothing_ends_at_its_base(store: Store) -> None:
    """If no batch is left before the offset, the log ends at the segment's base offset, as after an opening."""
    set_topic(store, "orders", cleanup_policy="compact")
    orders = store.create(NAME)
    put(orders, ("k", 1), ("k", 2))
    store.compact(NAME, roll=True)
    assert [record.offset for record in orders.read()] == [1]
    assert store.truncate(NAME, 1)
    assert (orders.log_end_offset, orders.recovery_point) == (0, 0)
    assert put(orders, ("k", 3)) == 0
