"""One segment: index intervals, limits for rolling, truncation, time lookups (kafka-storage 3.3, 4.1)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from logfs.config import LogConfig
from logfs.format.base import names
from logfs.format.batches.batch import Batch, assign_offset, parse_header
from logfs.format.batches.record import Record
from logfs.format.encoding.batch_builder import BatchFormat, build_records, offset_digits
from logfs.format.files.aborted_transactions import AbortedTransaction
from logfs.format.text.rendering import NO_TEXT, measure
from logfs.log import recovery
from logfs.log.disk.disk import Disk
from logfs.log.segment import batch_scanner
from logfs.log.segment.batch_iterator import Damage
from logfs.log.segment.segment import Segment
from logfs.store.store import Store

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.stores import Clock

NOW = 1_700_000_000_000
CONFIG = LogConfig()


def batch_bytes(records: list[Record], base: int) -> bytearray:
    (new,) = build_records(records, BatchFormat(), NOW).batches
    assign_offset(new.data, base, 0)
    return new.data


def put(segment: Segment, base: int, *records: Record, interval: int = 4096) -> int:
    """Append one batch at an offset, and return its size."""
    (new,) = build_records(records, BatchFormat(), NOW).batches
    assign_offset(new.data, base, 0)
    text = new.text._replace(envelopes=new.text.envelopes + offset_digits(base, new.record_count))
    header = parse_header(new.data)
    assert segment.writer is not None
    segment.writer.append(new.data, header.last_offset, header.max_timestamp, text, interval)
    return len(new.data)


def fresh(path: Path, base: int, config: LogConfig = CONFIG) -> Segment:
    segment = Segment(Disk(), path, base)
    segment.begin(config, NOW)
    return segment


def found_offsets(segment: Segment, offset: int) -> list[int]:
    """Return the offsets of all records of the batches that a read at `offset` gives."""
    offsets = []
    for found in segment.batches_from(offset):
        assert not isinstance(found, Damage)
        offsets += [record.offset for record in found[1].records()]
    return offsets


def reload(path: Path, config: LogConfig = CONFIG, **start: object) -> recovery.Loaded:
    return recovery.load(Disk(), path, config, recovery.LoadStart(**start), NOW)  # type: ignore[arg-type]


def raw_segment(path: Path, base: int, *batches: bytes | bytearray) -> None:
    (path / f"{base:020}.log").write_bytes(b"".join(batches))


def index_bytes(path: Path, base: int) -> list[bytes]:
    stem = path / f"{base:020}"
    return [stem.with_suffix(end).read_bytes() for end in (".index", ".timeindex")]


# Index intervals.


def fill_example(segment: Segment) -> None:
    """Append batches of 3 records and 388 bytes from offset 100 on (kafka-storage 3.3)."""
    for n in range(12):
        base = 100 + 3 * n
        records = [Record(b"v" * 100, timestamp=5000 + base + i - 100) for i in range(3)]
        assert put(segment, base, *records, interval=1000) == 388


def test_a_new_segment_takes_over_no_aborted_transaction(tmp_path: Path) -> None:
    """A `.txnindex` that is left at its base offset is removed with the other contents."""
    left = tmp_path / (names.stem(7) + names.TXN_INDEX)
    left.write_bytes(AbortedTransaction(1, 7, 8, 9).pack())
    segment = fresh(tmp_path, 7)
    assert not segment.txn_index.entries
    assert not left.exists()
    segment.close()


def test_entries_are_added_as_in_the_example(tmp_path: Path) -> None:
    """Batches of 388 bytes at interval 1000 get 111@1164, 120@2328, 129@3492 (kafka-storage 3.3)."""
    segment = fresh(tmp_path, 100)
    fill_example(segment)
    assert list(segment.offset_index) == [(111, 1164), (120, 2328), (129, 3492)]
    assert segment.offset_index.to_bytes().hex() == "0000000b0000048c0000001400000918" + (
        "0000001d00000da4"
    )
    assert [entry.offset for entry in segment.time_index] == [111, 120, 129]
    assert [entry.position for entry in segment.text_index] == [1164, 2328, 3492]
    for entry in segment.text_index:
        texts = [measure(found[1]) for found in segment.walk(0, entry.position)]
        total = NO_TEXT
        for text in texts:
            total = total.plus(text)
        assert entry.before == total


def test_a_rebuild_gives_the_same_bytes(tmp_path: Path) -> None:
    """Recovery uses the same interval and makes byte-identical indexes (kafka-storage 3.4)."""
    (tmp_path / "live").mkdir()
    segment = fresh(tmp_path / "live", 100)
    fill_example(segment)
    segment.finish()
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / segment.path.name).write_bytes(segment.path.read_bytes())
    loaded = reload(tmp_path / "new", LogConfig(index_interval_bytes=1000), closed=False)
    assert index_bytes(tmp_path / "new", 100) == index_bytes(tmp_path / "live", 100)
    assert loaded.segments[0].end == segment.end


def test_the_first_batch_never_gets_an_entry_and_the_interval_is_strict(tmp_path: Path) -> None:
    """An entry is due when more bytes than the interval were written since the last one (kafka-storage 3.3)."""
    segment = fresh(tmp_path, 0)
    size = put(segment, 0, Record(b"v", timestamp=1), interval=0)
    assert len(segment.offset_index) == 0
    put(segment, 1, Record(b"v", timestamp=2), interval=size)
    assert len(segment.offset_index) == 0
    put(segment, 2, Record(b"v", timestamp=3), interval=2 * size - 1)
    assert list(segment.offset_index) == [(2, 2 * size)]


def test_a_time_entry_names_the_batch_with_the_greatest_timestamp(tmp_path: Path) -> None:
    """The entry has the last offset of that batch, and on ties of the earliest such batch (kafka-storage 2.9.2)."""
    segment = fresh(tmp_path, 0)
    put(segment, 0, Record(b"", timestamp=9), Record(b"", timestamp=50), Record(b"", timestamp=7))
    put(segment, 3, Record(b"", timestamp=50), interval=0)
    put(segment, 4, Record(b"", timestamp=20), interval=0)
    assert segment.max_timestamp == (50, 2)
    assert list(segment.time_index) == [(50, 2)]
    assert [entry.offset for entry in segment.offset_index] == [3, 4]


def test_sealing_writes_the_closing_entries_and_trims(tmp_path: Path) -> None:
    """A sealed segment's last time entry is its greatest timestamp, and no file is padded (kafka-storage 3.5)."""
    segment = fresh(tmp_path, 0)
    size = put(segment, 0, Record(b"a", timestamp=70), Record(b"b", timestamp=60))
    segment.seal(2)
    assert list(segment.time_index) == [(70, 1)]
    assert segment.time_index.path.stat().st_size == 12
    assert segment.offset_index.path.stat().st_size == 0
    assert segment.text_index.path.stat().st_size == 32
    assert segment.text_index.last[:2] == (2, size)
    assert segment.path.stat().st_size == size


def test_records_without_timestamps_leave_the_time_index_empty(tmp_path: Path) -> None:
    """Records without timestamps get no time entry, not even when the segment is sealed (kafka-storage 3.2)."""
    segment = fresh(tmp_path, 0)
    for n in range(5):
        put(segment, n, Record(b"v", timestamp=-1), interval=0)
    segment.seal(5)
    assert len(segment.time_index) == 0
    assert len(segment.offset_index) == 4
    assert segment.largest_timestamp == segment.mtime_ms()


# Reading.


def test_an_empty_segment_gives_nothing(tmp_path: Path) -> None:
    """A read of an empty segment gives no batch (Kafka's tests of segments)."""
    segment = fresh(tmp_path, 40)
    assert found_offsets(segment, 40) == []
    assert segment.find_batch(40) is None
    assert segment.next_offset == 40


def test_reads_before_the_first_and_after_the_last_record(tmp_path: Path) -> None:
    """Below the first record a read begins at it, past the last it gives nothing (Kafka's tests of segments)."""
    segment = fresh(tmp_path, 40)
    segment.gaps = True
    put(segment, 50, Record(b"a"), Record(b"b"), Record(b"c"))
    assert found_offsets(segment, 41) == [50, 51, 52]
    assert found_offsets(segment, 52) == [50, 51, 52]
    assert found_offsets(segment, 53) == []


def test_a_read_in_a_gap_begins_after_it(tmp_path: Path) -> None:
    """With batches 50-51 and 60-61, a read at 55 starts at 60 (Kafka's tests of segments)."""
    compacted = LogConfig(cleanup_policy=frozenset({"compact"}))
    first = batch_bytes([Record(b"a", b"k"), Record(b"b", b"k")], 50)
    second = batch_bytes([Record(b"c", b"k"), Record(b"d", b"k")], 60)
    raw_segment(tmp_path, 40, first, second)
    (segment,) = reload(tmp_path, compacted, closed=False, compacted=True).segments
    assert found_offsets(segment, 55) == [60, 61]
    assert found_offsets(segment, 52) == [60, 61]
    assert found_offsets(segment, 51) == [50, 51, 60, 61]
    batch = segment.find_batch(55)
    assert batch is not None
    assert batch.header.base_offset == 60
    assert segment.next_offset == 62, "the next offset is the last record's + 1 (item 12)"


@pytest.mark.parametrize(
    ("timestamp", "offset"),
    [(420, 42), (421, 43), (430, 43), (431, 44), (491, None), (401, 41), (399, 40)],
)
def test_time_lookups_give_kafkas_results(
    tmp_path: Path, timestamp: int, offset: int | None
) -> None:
    """With timestamps 10 * offset at offsets 40 to 49, lookups give Kafka's results (Kafka's tests of segments)."""
    from logfs.format.base.names import TopicPartition
    from logfs.log.append.partition import Partition

    raw_segment(
        tmp_path, 40, *(batch_bytes([Record(b"v", timestamp=10 * i)], i) for i in range(40, 50))
    )
    loaded = reload(tmp_path, closed=False)
    name = TopicPartition("t", 0)
    partition = Partition(Disk(), tmp_path, name, lambda: CONFIG, lambda: NOW, loaded)
    found = partition.offset_for_time(timestamp)
    assert (found and found.offset) == offset


# Rolling.


def rolls(segment: Segment, size: int, last: int, timestamp: int, now: int = NOW, **config) -> bool:
    assert segment.writer is not None
    return segment.writer.should_roll(size, last, timestamp, LogConfig(**config), now)


def test_a_segment_rolls_when_a_batch_does_not_fit(tmp_path: Path) -> None:
    """With 70 bytes, 70 more roll the segment at segment.bytes 139 and not at 140 (kafka-storage 4.1)."""
    segment = fresh(tmp_path, 0)
    assert put(segment, 0, Record(b"v", b"k")) == 70
    assert rolls(segment, 70, 1, NOW, segment_bytes=139)
    assert not rolls(segment, 70, 1, NOW, segment_bytes=140)


def test_a_segment_rolls_by_record_time(tmp_path: Path) -> None:
    """A difference of 500 ms rolls at segment.ms 499, not at 500, at any wall-clock time (kafka-storage 4.1)."""
    segment = fresh(tmp_path, 0)
    put(segment, 0, Record(b"v", timestamp=1000))
    for now in (NOW, NOW + 10**9):
        assert rolls(segment, 70, 1, 1500, now, segment_ms=499)
        assert not rolls(segment, 70, 1, 1500, now, segment_ms=500)
        assert not rolls(segment, 70, 1, -1, now, segment_ms=1)


def test_a_segment_without_timestamps_rolls_by_the_clock(tmp_path: Path) -> None:
    """Without a first timestamp the time since the segment was opened counts (kafka-storage 4.1)."""
    segment = fresh(tmp_path, 0)
    put(segment, 0, Record(b"v", timestamp=-1))
    assert not rolls(segment, 70, 1, -1, NOW + 500, segment_ms=500)
    assert rolls(segment, 70, 1, -1, NOW + 501, segment_ms=500)


def test_an_empty_segment_never_rolls_by_time(tmp_path: Path) -> None:
    """An empty segment has no first timestamp to roll by (kafka-storage 4.1)."""
    segment = fresh(tmp_path, 0)
    assert not rolls(segment, 70, 0, 10**15, NOW + 10**12, segment_ms=1)


def test_compaction_lag_rolls_compacted_topics(tmp_path: Path) -> None:
    """A compacted topic rolls at the lesser of max.compaction.lag.ms and segment.ms (kafka-storage 4.1)."""
    segment = fresh(tmp_path, 0)
    put(segment, 0, Record(b"v", b"k", timestamp=1000))
    compacted = frozenset({"compact"})
    short = {"segment_ms": 10**6, "max_compaction_lag_ms": 499}
    assert rolls(segment, 70, 1, 1500, cleanup_policy=compacted, **short)
    assert not rolls(segment, 70, 1, 1500, **short)


def test_jitter_brings_the_roll_forward(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit is segment.ms minus the segment's jitter, which is drawn once (kafka-storage 4.1)."""
    monkeypatch.setattr("random.randrange", lambda _: 1020)
    config = LogConfig(segment_ms=500, segment_jitter_ms=100)
    segment = fresh(tmp_path, 0, config)
    put(segment, 0, Record(b"v", timestamp=1000))
    assert not rolls(segment, 70, 1, 1480, segment_ms=500, segment_jitter_ms=100)
    assert rolls(segment, 70, 1, 1481, segment_ms=500, segment_jitter_ms=100)


def test_offsets_that_do_not_fit_roll(tmp_path: Path) -> None:
    """On base 0, offset 2147483648 rolls and 2147483647 does not; an offset below the base rolls, too.

    See kafka-storage 4.1.
    """
    segment = fresh(tmp_path, 0)
    assert rolls(segment, 70, 2**31, NOW)
    assert not rolls(segment, 70, 2**31 - 1, NOW)
    (tmp_path / "b").mkdir()
    assert rolls(fresh(tmp_path / "b", 100), 70, 10, NOW)


@pytest.mark.parametrize("size", [4, 8, 11, 12, 24])
def test_an_index_of_any_size_that_is_accepted_works(
    log_dir: Path, clock: Clock, size: int
) -> None:
    """Also one without room for a single entry: `segment.index.bytes` may be 4, as in Kafka."""
    with Store(log_dir, clock=clock) as store:
        store.settings.set_topic("orders", "segment.index.bytes", str(size))
        orders = store.create("orders-0")
        for number in range(4):
            orders.append([b"%d" % number])
            orders.roll(clock())
    with Store(log_dir, clock=clock) as store:
        store["orders-0"].append([b"4"])
        assert [record.value for record in store["orders-0"].read()] == [
            b"%d" % n for n in range(5)
        ]


def test_a_full_index_rolls(tmp_path: Path) -> None:
    """segment.index.bytes 48 gives 6 offset and 4 time slots: 3 time entries roll the segment (kafka-storage 4.1)."""
    config = LogConfig(segment_index_bytes=48)
    segment = fresh(tmp_path, 0, config)
    assert (segment.offset_index.room, segment.time_index.room) == (6, 4 - 1)
    for n in range(4):
        assert not rolls(segment, 70, n, n)
        put(segment, n, Record(b"v", timestamp=n), interval=0)
    assert len(segment.time_index) == 3
    assert rolls(segment, 70, 4, 4)
    # Without timestamps the offset index becomes full.
    (tmp_path / "b").mkdir()
    other = fresh(tmp_path / "b", 0, config)
    for n in range(7):
        assert not rolls(other, 70, n, -1)
        put(other, n, Record(b"v", timestamp=-1), interval=0)
    assert len(other.offset_index) == 6
    assert rolls(other, 70, 7, -1)


# Truncation.


def test_truncation_keeps_the_records_below(tmp_path: Path) -> None:
    """Each round appends two records and truncates the second: the first ones stay (Kafka's tests of segments)."""
    segment = fresh(tmp_path, 40)
    for offset in range(40, 70):
        put(segment, offset, Record(b"keep"), interval=0)
        put(segment, offset + 1, Record(b"drop"), interval=0)
        segment.truncate(segment.end_before(offset + 1), CONFIG, NOW)
        assert found_offsets(segment, 40) == list(range(40, offset + 1))
        assert segment.next_offset == offset + 1
        assert segment.path.stat().st_size == segment.size_bytes
    texts = [measure(found[1]) for found in segment.walk()]
    assert segment.end.text == texts[0]._replace(
        records=30, lines=30 * texts[0].lines, envelopes=30 * texts[0].envelopes
    )


@pytest.mark.parametrize("kept", range(4))
def test_a_truncation_ends_a_scan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kept: int
) -> None:
    """A scan that has yielded batches which a truncation then drops ends, whatever was appended since."""
    monkeypatch.setattr(batch_scanner, "_CHUNK_BYTES", 200)
    for more in range(3):
        with Store(tmp_path / str(more)) as store:
            log = store.create("a-0")
            for number in range(9):
                log.append([b"%d" % number * 20])
            scanned = batch_scanner.scan_segment(log.active, 0, 0)
            first = next(scanned)
            assert not isinstance(first, Damage)
            assert first.next_offset == 2
            log.truncate(kept)
            for _ in range(more):
                log.append([b"new" * 7])
            assert sum(1 for _ in scanned) <= more + max(kept - 2, 0)


def test_truncation_resets_the_timestamp_and_the_next_offset(tmp_path: Path) -> None:
    """30 messages at interval 2 * size - 1 have 14 time entries; after a truncation to 41 there are none.

    The largest timestamp is then 400, and the next offset 41 (Kafka's tests of segments).
    """
    segment = fresh(tmp_path, 40)
    size = len(batch_bytes([Record(b"hello", timestamp=400)], 40))
    for offset in range(40, 70):
        put(segment, offset, Record(b"hello", timestamp=10 * offset), interval=2 * size - 1)
    assert segment.next_offset == 70
    assert len(segment.time_index) == 14
    segment.truncate(segment.end_before(41), CONFIG, NOW)
    assert len(segment.time_index) == 0
    assert segment.largest_timestamp == 400
    assert segment.next_offset == 41


def test_truncation_preallocates_the_indexes_again(tmp_path: Path) -> None:
    """A sealed, trimmed segment can be appended to after a truncation (Kafka's tests of segments)."""
    segment = fresh(tmp_path, 0)
    for n in range(5):
        put(segment, n, Record(b"v", timestamp=n), interval=0)
    segment.seal(5)
    assert segment.offset_index.is_full
    segment.truncate(segment.end_before(3), CONFIG, NOW)
    assert segment.offset_index.path.stat().st_size == 10 * 1024 * 1024
    assert segment.time_index.path.stat().st_size == 10485756
    assert [entry.offset for entry in segment.offset_index] == [1, 2]
    put(segment, 3, Record(b"again", timestamp=9), interval=0)
    assert found_offsets(segment, 0) == [0, 1, 2, 3]


def test_full_truncation_restarts_the_segment(tmp_path: Path) -> None:
    """Truncation to the base offset empties the segment, restarts its age, and allows appends.

    (Kafka's tests of segments)
    """
    segment = fresh(tmp_path, 40)
    put(segment, 40, Record(b"a", timestamp=-1))
    put(segment, 41, Record(b"b", timestamp=-1))
    assert rolls(segment, 70, 42, -1, NOW + 600, segment_ms=500)
    segment.truncate(segment.end_before(40), CONFIG, NOW + 1000)
    assert segment.size_bytes == segment.path.stat().st_size == 0
    assert segment.end.text == NO_TEXT
    assert not rolls(segment, 70, 40, -1, NOW + 10**9, segment_ms=500)
    assert rolls(segment, 70, 40 + 2**31, -1, NOW)
    put(segment, 40, Record(b"again", timestamp=-1))
    assert not rolls(segment, 70, 41, -1, NOW + 1500, segment_ms=500)
    assert rolls(segment, 70, 41, -1, NOW + 1501, segment_ms=500)
    assert found_offsets(segment, 40) == [40]


def test_truncation_into_a_batch_drops_it_whole(tmp_path: Path) -> None:
    """A batch that straddles the offset goes, and leaves no gap (kafka-storage 10.4, as after a restart there)."""
    segment = fresh(tmp_path, 0)
    put(segment, 0, Record(b"a"), Record(b"b"))
    put(segment, 2, Record(b"c"), Record(b"d"), Record(b"e"))
    segment.truncate(segment.end_before(3), CONFIG, NOW)
    assert found_offsets(segment, 0) == [0, 1]
    assert segment.next_offset == 2


@pytest.mark.parametrize("target", [55, 58, 60])
def test_truncation_into_a_gap_cuts_at_the_next_batch(tmp_path: Path, target: int) -> None:
    """In a gap that compaction left, the cut is at the batch after it (Kafka's tests of segments).

    The segment then ends where the next opening finds its end, whatever the offset was.
    """
    compacted = LogConfig(cleanup_policy=frozenset({"compact"}))
    parts = [batch_bytes([Record(b"v", b"k")] * 2, base) for base in (50, 60, 70)]
    raw_segment(tmp_path, 40, *parts)
    (segment,) = reload(tmp_path, compacted, closed=False, compacted=True).segments
    segment.truncate(segment.end_before(target), compacted, NOW)
    assert found_offsets(segment, 40) == [50, 51]
    assert segment.size_bytes == len(parts[0])
    assert segment.next_offset == 52
    segment.finish()
    (again,) = reload(tmp_path, compacted, closed=True, compacted=True).segments
    assert again.next_offset == 52


# Files.


def test_a_preallocated_file_is_logically_empty(tmp_path: Path) -> None:
    """A preallocated file has segment.bytes at once, its segment has size 0, and closing trims it.

    (Kafka's tests of segments)
    """
    config = LogConfig(preallocate=True, segment_bytes=1 << 20)
    segment = fresh(tmp_path, 0, config)
    assert segment.path.stat().st_size == 1 << 20
    assert segment.size_bytes == 0
    size = put(segment, 0, Record(b"v"))
    assert segment.size_bytes == size
    assert segment.path.stat().st_size == 1 << 20
    segment.finish()
    assert segment.path.stat().st_size == size
    loaded = reload(tmp_path, config, closed=True)
    assert loaded.segments[0].size_bytes == size
    assert segment.path.stat().st_size == size


def test_a_reader_keeps_a_segment_that_was_unlinked(tmp_path: Path) -> None:
    """An open segment stays readable after its file is unlinked (rule 4)."""
    segment = fresh(tmp_path, 0)
    put(segment, 0, Record(b"still here"))
    segment.path.unlink()
    ((_, batch),) = segment.walk()
    assert isinstance(batch, Batch)
    assert [record.value for record in batch.records()] == [b"still here"]
