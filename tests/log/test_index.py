"""The sparse indexes: offset, time and text (kafka-storage 3)."""

from __future__ import annotations

import errno
import itertools
import os
import random
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from logfs.errors import Corrupt, NotWritable
from logfs.format.batches.record import Record
from logfs.format.text.rendering import NO_TEXT, TextSize, View
from logfs.log.disk.disk import Disk, Gone, ReadOnlyDisk, WouldBlock
from logfs.log.segment import index_entries
from logfs.log.segment.index import OffsetEntry, OffsetIndex, SparseIndex, TimeEntry, TimeIndex
from logfs.log.segment.text_index import TextEntry, TextIndex
from logfs.store.store import Store

if TYPE_CHECKING:
    from collections.abc import Callable

    from logfs.log.disk.disk import File

BASE = 45
MIB10 = 10 * 1024 * 1024


def make(kind: type[SparseIndex], path: Path, max_bytes: int, base: int = BASE):
    """Return an index of an active segment, with preallocated space."""
    index = kind(Disk(), path / f"{kind.__name__}", base)
    index.reset()
    index.preallocate(max_bytes)
    return index


def offsets(path: Path, slots: int = 30, base: int = BASE) -> OffsetIndex:
    return make(OffsetIndex, path, slots * 8, base)


def times(path: Path, slots: int = 30, base: int = BASE) -> TimeIndex:
    return make(TimeIndex, path, slots * 12, base)


def texts(path: Path, slots: int = 30, base: int = BASE) -> TextIndex:
    return make(TextIndex, path, slots * 32, base)


@pytest.mark.parametrize(("first_ms", "can_be"), [(0, True), (1, False), (-1, False)])
def test_an_entry_of_zeros_is_that_of_a_segment_of_1970(
    tmp_path: Path, first_ms: int, can_be: bool
) -> None:
    """A time index whose one entry is zero was either written for the timestamp 0, or never."""
    index = times(tmp_path)
    index.maybe_append(0, BASE, closing=True)
    index.trim()
    assert index.can_be(BASE + 10, first_ms) is can_be


def test_the_blocks_of_an_index_end_with_its_space(tmp_path: Path) -> None:
    """What is allocated for entries, page by page, never makes the file larger than its preallocated space."""
    index = offsets(tmp_path, slots=3 * 512)
    for number in range(3 * 512):
        index.append(BASE + 1 + number, 1 + number)
        assert index.path.stat().st_size == 3 * 4096


# Sizes (3.6).


@pytest.mark.parametrize(
    ("kind", "asked", "size"),
    [
        (OffsetIndex, 1000, 1000),
        (TimeIndex, 1000, 996),
        (OffsetIndex, MIB10, 10485760),
        (TimeIndex, MIB10, 10485756),
        (OffsetIndex, 48, 48),
        (TimeIndex, 48, 48),
        (TextIndex, 100, 96),
    ],
)
def test_preallocation_has_kafkas_sizes(
    tmp_path: Path, kind: type[SparseIndex], asked: int, size: int
) -> None:
    """A new index is a zero-filled file of as many whole entries as segment.index.bytes holds (kafka-storage 3.6)."""
    index = make(kind, tmp_path, asked)
    assert index.path.stat().st_size == size
    assert not index.path.read_bytes().strip(b"\0")
    assert index.room + index.reserved == size // kind.entry.size
    assert len(index) == index.size_bytes == 0


def test_trimming_cuts_the_file_to_its_entries(tmp_path: Path) -> None:
    """The file of a trimmed index has exactly its entries; without entries it is empty (kafka-storage 3.5)."""
    index = offsets(tmp_path)
    index.append(50, 100)
    index.append(60, 200)
    index.trim()
    assert index.path.read_bytes().hex() == "0000000500000064" + "0000000f000000c8"
    assert index.to_bytes() == index.path.read_bytes()
    empty = times(tmp_path)
    empty.trim()
    assert empty.path.read_bytes() == b""


def test_an_append_during_a_flush_leaves_an_index_that_can_be_trimmed(
    tmp_path: Path,
) -> None:
    """Space that an append preallocates during a sync is trimmed all the same, and the entry is synced later."""

    class SlowDisk(Disk):
        during: Callable[[], None] | None = None

        def sync(self, file: File) -> None:
            super().sync(file)
            during, self.during = self.during, None
            if during is not None:
                during()

    disk = SlowDisk()
    path = tmp_path / "00000000000000000000.index"
    index = OffsetIndex(disk, path, 0)
    index.collect()
    index.append(5, 100)
    index.save(sync=False)

    def append() -> None:
        index.preallocate(4096)
        index.append(9, 200)

    _ = len(index)
    disk.during = append
    index.flush()
    index.append(12, 300)
    index.trim()
    assert path.stat().st_size == 3 * 8
    assert [entry.offset for entry in index] == [5, 9, 12]
    synced = []
    disk.during = lambda: synced.append(True)
    index.flush()
    assert synced


def test_a_reopened_index_has_its_entries_and_is_full(tmp_path: Path) -> None:
    """Trimming leaves only entries, and opening counts every slot as an entry (Kafka's testReopen)."""
    index = offsets(tmp_path)
    index.append(51, 0)
    index.append(52, 1)
    index.trim()
    index.close()
    again = OffsetIndex(Disk(), index.path, BASE)
    assert list(again) == [(51, 0), (52, 1)]
    assert again.is_full
    with pytest.raises(ValueError, match="full"):
        again.append(53, 2)
    again.preallocate(80)
    again.append(53, 2)
    assert list(again) == [(51, 0), (52, 1), (53, 2)]


def test_an_untrimmed_file_is_all_entries(tmp_path: Path) -> None:
    """A file that a crash left preallocated appears full of zero entries until it is reset (kafka-storage 3.6)."""
    index = offsets(tmp_path, slots=6)
    index.append(50, 9)
    index.close()
    again = OffsetIndex(Disk(), index.path, BASE)
    assert len(again) == 6
    assert list(again)[1:] == [(BASE, 0)] * 5
    again.reset()
    assert len(again) == 0
    assert again.path.stat().st_size == 0


def test_resizing_keeps_the_entries(tmp_path: Path) -> None:
    """Growing and shrinking lose no entry; the file never becomes too small for them (Kafka's tests of indexes)."""
    for index, slot in ((offsets(tmp_path, 4), 8), (times(tmp_path, 4), 12)):
        for n in range(3):
            index.append(50 + n, n) if slot == 8 else index.maybe_append(n, 50 + n)
        before = list(index)
        for slots in (100, 5, 3, 1, 50):
            index.preallocate(slots * slot + 3)
            assert list(index) == before
            assert len(index) + index.room + index.reserved == max(slots, 3)


def test_an_index_without_a_file_is_empty(tmp_path: Path) -> None:
    """A missing index behaves like an empty one, and lookups create no file (Kafka's tests of segments)."""
    for kind in (OffsetIndex, TimeIndex, TextIndex):
        index = kind(Disk(), tmp_path / "none", BASE)
        assert len(index) == 0
        assert not index.exists()
    assert OffsetIndex(Disk(), tmp_path / "none", BASE).lookup(99) == (BASE, 0)
    assert TimeIndex(Disk(), tmp_path / "none", BASE).lookup(99) == (-1, BASE)
    assert not (tmp_path / "none").exists()


# Offset index.


def test_the_golden_offset_index(tmp_path: Path) -> None:
    """An entry is a relative offset and a position, both int32 big-endian."""
    index = offsets(tmp_path, base=100)
    for offset, position in ((111, 1164), (120, 2328), (129, 3492)):
        index.append(offset, position)
    assert index.to_bytes().hex() == "0000000b0000048c" + "0000001400000918" + "0000001d00000da4"


def test_the_golden_time_index(tmp_path: Path) -> None:
    """An entry is an int64 timestamp and an int32 relative offset."""
    index = times(tmp_path, base=100)
    for timestamp, offset in ((5032, 111), (5052, 117), (5062, 129)):
        index.maybe_append(timestamp, offset)
    assert index.to_bytes().hex() == (
        "00000000000013a80000000b" + "00000000000013bc00000011" + "00000000000013c60000001d"
    )


@pytest.mark.parametrize("seed", range(5))
def test_random_lookups_give_the_last_entry_at_or_below_the_target(
    tmp_path: Path, seed: int
) -> None:
    """Each lookup in random sparse entries is right; below the first entry it gives (base, 0).

    This is Kafka's randomLookupTest.
    """
    rng = random.Random(seed)
    entries = sorted(rng.sample(range(BASE + 1, BASE + 5000), 1500))
    index = offsets(tmp_path, slots=1500)
    for number, offset in enumerate(entries):
        index.append(offset, number * 7)
    for target in [*range(BASE, BASE + 60), *rng.sample(range(BASE, BASE + 6000), 500), *entries]:
        below = [n for n, offset in enumerate(entries) if offset <= target]
        expected = (entries[below[-1]], below[-1] * 7) if below else (BASE, 0)
        assert index.lookup(target) == expected


def test_an_empty_offset_index_answers_its_base(tmp_path: Path) -> None:
    """Any lookup in an empty index gives (base, 0) (Kafka's lookupExtremeCases)."""
    index = offsets(tmp_path)
    for target in (0, BASE, BASE + 1, 2**62):
        assert index.lookup(target) == OffsetEntry(BASE, 0)
    index.append(BASE + 10, 77)
    assert index.lookup(2**62) == (BASE + 10, 77)
    assert index.lookup(BASE + 9) == (BASE, 0)


def test_a_full_offset_index_refuses_another_entry(tmp_path: Path) -> None:
    """An entry beyond the capacity is refused, and the index is unchanged (Kafka's appendTooMany)."""
    index = offsets(tmp_path, slots=4)
    for n in range(4):
        assert not index.is_full
        index.append(BASE + 1 + n, n)
    assert index.is_full
    before = index.to_bytes()
    with pytest.raises(ValueError, match="full"):
        index.append(BASE + 10, 10)
    assert index.to_bytes() == before


@pytest.mark.parametrize("offset", [51, 50])
def test_offsets_out_of_order_are_refused(tmp_path: Path, offset: int) -> None:
    """An offset at or below the last is refused; nothing changes (Kafka's appendOutOfOrder)."""
    index = offsets(tmp_path)
    index.append(51, 0)
    with pytest.raises(ValueError, match="not beyond"):
        index.append(offset, 1)
    assert list(index) == [(51, 0)]


@pytest.mark.parametrize(("base", "offset"), [(100, 10), (0, 2**31), (5, 2**31 + 5)])
def test_offsets_out_of_range_overflow(tmp_path: Path, base: int, offset: int) -> None:
    """A relative offset outside 0..2^31-1 is refused (kafka-storage 3.1)."""
    for index in (offsets(tmp_path, base=base), times(tmp_path, base=base)):
        with pytest.raises((OverflowError, ValueError)):
            index.append(offset, 0) if isinstance(index, OffsetIndex) else index.maybe_append(
                1, offset
            )
        assert len(index) == 0


def test_the_last_offset_in_range_fits(tmp_path: Path) -> None:
    """The relative offset 2^31-1 is the last legal one (kafka-storage 3.1)."""
    index = offsets(tmp_path, base=7)
    index.append(7 + 2**31 - 1, 1)
    assert index.lookup(2**40) == (7 + 2**31 - 1, 1)


def test_truncation_drops_the_entry_at_the_offset(tmp_path: Path) -> None:
    """Entries at or above the offset are dropped; above the end nothing changes (Kafka's truncate)."""
    index = offsets(tmp_path, base=0)
    for offset in range(1, 10):
        index.append(offset, offset)
    for target, left in ((12, 9), (10, 9), (9, 8), (5, 4), (5, 4), (1, 0), (0, 0)):
        index.truncate(target)
        assert [entry.offset for entry in index] == list(range(1, left + 1))
    index.append(1, 1)
    assert list(index) == [(1, 1)]


# Time index.


def test_time_lookups(tmp_path: Path) -> None:
    """A lookup gives the last entry at or before the time, or (-1, base) (Kafka's testLookUp)."""
    index = times(tmp_path)
    assert index.lookup(100) == TimeEntry(-1, BASE)
    for n in range(30 - 1):
        index.maybe_append((n + 1) * 10, BASE + (n + 1) * 10)
    assert index.lookup(9) == (-1, 45)
    assert index.lookup(25) == (20, 65)
    assert index.lookup(30) == (30, 75)
    assert index.last == (290, 335)


def test_a_full_time_index_takes_only_the_closing_entry(tmp_path: Path) -> None:
    """The last slot is reserved: the index is full before it, and one closing entry fits.

    (Kafka's tests of indexes)
    """
    index = times(tmp_path, slots=5)
    for n in range(4):
        assert not index.is_full
        index.maybe_append(10 + n, BASE + n)
    assert index.is_full
    with pytest.raises(ValueError, match="full"):
        index.maybe_append(100, BASE + 100)
    index.maybe_append(100, BASE + 100, closing=True)
    assert index.last == (100, BASE + 100)
    assert len(index) == 5


def test_time_entries_never_go_back(tmp_path: Path) -> None:
    """A lower offset or timestamp is refused, and an equal timestamp is skipped (kafka-storage 3.2)."""
    index = times(tmp_path)
    index.maybe_append(1000, 100)
    with pytest.raises(ValueError, match="offset 99"):
        index.maybe_append(2000, 99)
    with pytest.raises(ValueError, match="timestamp 999"):
        index.maybe_append(999, 101)
    index.maybe_append(1000, 100)
    index.maybe_append(1000, 105)
    assert list(index) == [(1000, 100)]


def test_a_record_without_a_timestamp_makes_no_time_entry(tmp_path: Path) -> None:
    """Records without timestamps leave the time index empty (kafka-storage 3.2)."""
    index = times(tmp_path)
    index.maybe_append(-1, 50)
    index.maybe_append(-1, 60, closing=True)
    assert len(index) == 0
    assert index.last == (-1, BASE)


def test_time_truncation_goes_by_offset(tmp_path: Path) -> None:
    """Truncation keeps the entries with offsets below the given one (Kafka's testTruncate)."""
    index = times(tmp_path)
    for n in range(10):
        index.maybe_append(n + 1, BASE + 10 * n)
    index.truncate(BASE + 50)
    assert [entry.timestamp for entry in index] == [1, 2, 3, 4, 5]
    index.truncate(BASE + 41)
    assert len(index) == 5
    index.truncate(BASE)
    assert len(index) == 0


# Sanity (3.8).


def test_an_entry_at_the_base_passes_the_sanity_check(tmp_path: Path) -> None:
    """A first offset equal to the base is legal (Kafka's testSanityLastOffsetEqualToBaseOffset)."""
    index = offsets(tmp_path)
    index.append(BASE, 0)
    index.trim()
    index.check_sane()
    times(tmp_path).check_sane()


@pytest.mark.parametrize("kind", [OffsetIndex, TimeIndex, TextIndex])
def test_a_file_of_broken_length_fails_the_sanity_check(
    tmp_path: Path, kind: type[SparseIndex]
) -> None:
    """A length that is not a multiple of the entry size is detected (kafka-storage 3.8)."""
    path = tmp_path / "index"
    path.write_bytes(bytes(kind.entry.size + 1))
    with pytest.raises(Corrupt, match="not a multiple of"):
        kind(Disk(), path, 0).check_sane()


def test_a_last_offset_below_the_base_fails_the_sanity_check(tmp_path: Path) -> None:
    """A negative relative offset at the end is detected in both indexes (kafka-storage 3.8)."""
    path = tmp_path / "index"
    path.write_bytes(OffsetIndex.entry.pack(-1, 0))
    with pytest.raises(Corrupt, match="below the segment's base"):
        OffsetIndex(Disk(), path, BASE).check_sane()
    path.write_bytes(TimeIndex.entry.pack(10, -1))
    with pytest.raises(Corrupt, match="below the segment's base"):
        TimeIndex(Disk(), path, BASE).check_sane()


def test_a_last_timestamp_below_the_first_fails_the_sanity_check(tmp_path: Path) -> None:
    """Timestamps that go back are detected (Kafka's testSanityCheck)."""
    path = tmp_path / "index"
    path.write_bytes(TimeIndex.entry.pack(10, 1) + TimeIndex.entry.pack(9, 2))
    with pytest.raises(Corrupt, match="last timestamp"):
        TimeIndex(Disk(), path, BASE).check_sane()


# Text index.


def sized(n: int) -> TextSize:
    return TextSize(n, 10 * n, 100 * n)


def test_a_text_entry_holds_the_text_size_before_a_batch(tmp_path: Path) -> None:
    """An entry has 32 bytes: offset, position, the records and the bytes of both views before it, and a CRC."""
    index = texts(tmp_path)
    index.append(50, 400, TextSize(5, 60, 700))
    assert list(index) == [TextEntry(50, 400, TextSize(5, 60, 700))]
    assert index.last == index[0]
    assert index.to_bytes().hex() == (
        "00000004" + "00000190" + "00000005" + "000000000000003c" + "00000000000002bc" + "4457c5c7"
    )


def test_a_damaged_or_foreign_text_entry_is_refused(tmp_path: Path) -> None:
    """Any flipped bit is detected, and so is an index of another segment."""
    index = texts(tmp_path)
    index.append(50, 400, TextSize(5, 60, 700))
    index.append(60, 800, TextSize(9, 90, 900))
    index.trim()
    data = index.path.read_bytes()
    assert index.check_entries(data) is None
    for bit in range(32 * 8, 64 * 8):
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        assert index.check_entries(bytes(damaged)) == 1
        index.path.write_bytes(damaged)
        index.close()
        assert index[0].position == 400
        with pytest.raises(Corrupt, match="entry 1 is damaged"):
            _ = index.last
    (tmp_path / "other").mkdir()
    other = TextIndex(Disk(), tmp_path / "other" / index.path.name, BASE + 1)
    other.path.write_bytes(data)
    with pytest.raises(Corrupt, match="entry 0 is damaged"):
        _ = other[0]


def test_an_empty_text_index_leads_to_the_start_of_the_segment(tmp_path: Path) -> None:
    """Without entries every lookup gives the start of the segment."""
    index = texts(tmp_path)
    start = TextEntry(BASE, 0, NO_TEXT)
    assert index.last == index[-1] == start
    assert index.number_of_offset(10**6) == index.number_of_record(10**6) == -1
    assert index.number_of_position(10**6) == -1
    assert index.number_of_text(10**6, View.LINES, 0) == -1


@given(st.lists(st.tuples(*[st.integers(1, 50)] * 3), max_size=30), st.integers(0, 400))
def test_text_lookups_agree_with_a_plain_search(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[int, int, int]], target: int
) -> None:
    """A lookup by offset, position, record or byte of either view gives the last entry at or before the target."""
    index = texts(tmp_path_factory.mktemp("text"), slots=len(steps) + 1, base=0)
    offset, position, before = 0, 0, NO_TEXT
    entries = []
    for records, size, length in steps:
        offset, position = offset + records, position + size
        before = before.plus(TextSize(records, length, 2 * length))
        entries.append(TextEntry(offset, position, before))
        index.append(*entries[-1])

    def last(key) -> int:
        return max((n for n, entry in enumerate(entries) if key(entry) <= target), default=-1)

    assert list(index) == entries
    assert index.number_of_offset(target) == last(lambda e: e.offset)
    assert index.number_of_position(target) == last(lambda e: e.position)
    assert index.number_of_record(target) == last(lambda e: e.before.records)
    assert index.number_of_text(target, View.LINES, 9) == last(lambda e: e.before.lines)
    assert index.number_of_text(target, View.ENVELOPES, 3) == last(
        lambda e: e.before.envelopes + 3 * e.before.records
    )
    index.truncate(target)
    assert list(index) == [entry for entry in entries if entry.position <= target]


def test_a_search_beside_a_damaged_text_entry_is_never_wrong(tmp_path: Path) -> None:
    """Whichever bit of an offset is flipped, `around` gives the true entries or raises `Corrupt`."""
    entries = 7
    index = texts(tmp_path, slots=entries)
    for number in range(entries):
        index.append(BASE + 1000 * (number + 1), 50 * (number + 1), sized(number))
    index.trim()
    index.close()
    data = index.path.read_bytes()
    around = {offset: index.around(offset) for offset in range(BASE, BASE + 8000, 500)}
    assert around[BASE] == (BASE, 0, 50)
    assert around[BASE + 1000] == (BASE + 1000, 50, 100)
    assert around[BASE + 7500] == (BASE + 7000, 350, -1)
    refused = 0
    for number, bit in itertools.product(range(entries), range(32)):
        damaged = bytearray(data)
        damaged[number * 32 + bit // 8] ^= 1 << bit % 8
        index.path.write_bytes(damaged)
        index.close()
        for offset, expected in around.items():
            try:
                assert index.around(offset) == expected
            except Corrupt:
                refused += 1
    assert refused


def test_a_position_gets_one_text_entry(tmp_path: Path) -> None:
    """A second entry for a position is ignored, and so is an entry before the last one."""
    index = texts(tmp_path)
    index.append(50, 400, sized(1))
    index.append(50, 400, sized(2))
    index.append(49, 300, sized(3))
    index.append(60, 500, sized(4))
    assert [entry.before for entry in index] == [sized(1), sized(4)]


# Read-only.


def test_a_read_only_index_changes_no_file(tmp_path: Path) -> None:
    """On a read-only disk an index is rebuilt in memory, and its file stays as it is."""
    index = offsets(tmp_path)
    index.append(50, 1)
    index.append(60, 2)
    index.close()
    before = index.path.read_bytes()
    reader = OffsetIndex(ReadOnlyDisk(), index.path, BASE)
    assert list(reader)[:2] == [(50, 1), (60, 2)]
    reader.reset()
    reader.preallocate(100)
    reader.append(99, 3)
    reader.trim()
    assert list(reader) == [(99, 3)]
    assert len(reader) + reader.room == 2**31 - 1
    assert index.path.read_bytes() == before
    with pytest.raises(NotWritable):
        ReadOnlyDisk().unlink(index.path)


# Where the entries are read.


class ColdDisk(Disk):
    """A disk on which no byte is in the page cache."""

    def read(self, file: File, position: int, size: int) -> memoryview:
        self.check_may_block()
        return super().read(file, position, size)


def in_a_thread(work: Callable[[], object]) -> object:
    found: list[object] = []
    thread = threading.Thread(target=lambda: found.append(work()))
    thread.start()
    thread.join()
    return found[0]


def mapped() -> str:
    """Return the mappings of this process."""
    return Path("/proc/self/maps").read_text()


def test_a_lookup_on_the_event_loop_waits_for_no_cold_entry(tmp_path: Path) -> None:
    """It raises `WouldBlock`; repeated in another thread it works, and what was read is then at hand."""
    written = offsets(tmp_path, slots=3000)
    written.append_all((BASE + 1 + n, n) for n in range(3000))
    written.trim()
    written.close()
    disk = ColdDisk()
    disk.forbid_blocking()
    index = OffsetIndex(disk, written.path, BASE)
    for _ in range(2):
        with pytest.raises(WouldBlock):
            index.lookup(BASE + 2000)
    assert in_a_thread(lambda: index.lookup(BASE + 2000)) == (BASE + 2000, 1999)
    assert index.lookup(BASE + 2000) == (BASE + 2000, 1999)
    with pytest.raises(WouldBlock):
        index.lookup(BASE + 1)
    with pytest.raises(WouldBlock):
        index.to_bytes()


def test_an_append_on_the_event_loop_waits_for_no_cold_entry(tmp_path: Path) -> None:
    """The writer has the last block in memory, also after an entry that completes it."""
    disk = ColdDisk()
    index = OffsetIndex(disk, tmp_path / "index", BASE)
    index.reset()
    index.preallocate(MIB10)
    disk.forbid_blocking()
    for n in range(1100):
        index.append(BASE + 1 + n, n)
        assert index[n] == (BASE + 1 + n, n)
    index.trim()


def test_only_the_index_of_an_active_segment_is_mapped(tmp_path: Path) -> None:
    index = offsets(tmp_path)
    index.append(50, 1)
    assert str(index.path) in mapped()
    index.trim()
    assert index.lookup(60) == (50, 1)
    assert str(index.path) not in mapped()
    again = OffsetIndex(Disk(), index.path, BASE)
    assert again.lookup(60) == (50, 1)
    assert str(index.path) not in mapped()


def test_no_file_of_a_sealed_segment_is_mapped(tmp_path: Path) -> None:
    """After lookups by offset, by time and in the text, the process has mappings of the active segment alone."""
    now_ms = 1_700_000_000_000
    with Store(tmp_path, clock=lambda: now_ms) as store:
        store.settings.set_topic("orders", "index.interval.bytes", "0")
        orders = store.create("orders-0")
        for number in range(30):
            orders.append([Record(b"%d" % number, timestamp=now_ms + number)])
            if number % 10 == 9:
                orders.roll(now_ms)
        orders.append([b"last"])
        for number in range(30):
            assert next(iter(orders.read(number))).value == b"%d" % number
            assert orders.offset_for_time(now_ms + number).offset == number
        assert orders.text(View.LINES).read(0, 1 << 20).startswith(b"0\n1\n2\n")
        for segment in orders.segments:
            stem = str(segment.path.with_suffix(""))
            assert (stem in mapped()) == segment.is_active


@pytest.mark.parametrize("most", [1, 2, 1000])
@pytest.mark.parametrize("is_active", [True, False])
def test_lookups_in_an_index_of_many_blocks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int, is_active: bool
) -> None:
    """Each entry is found in an index longer than the memory for its blocks, which grows while it is read."""
    monkeypatch.setattr(index_entries, "_MOST_KEPT", most)
    chosen = random.Random(most)
    made = (offsets(tmp_path, 4000, 0), times(tmp_path, 4000, 0), texts(tmp_path, 4000, 0))
    offset_index, time_index, text_index = made
    count = 0
    while count < 2500:
        if chosen.random() < 0.2:
            for index in made:
                index.preallocate(4000 * index.entry.size)
        new = range(count, count + chosen.choice([1, 2, 300, 1000]))
        offset_index.append_all((10 * n + 9, n) for n in new)
        time_index.append_all(TimeEntry(7 * n, n) for n in new)
        text_index.append_all((10 * n + 10, n + 1, sized(n)) for n in new)
        count = new.stop
        if not is_active and count >= 2500:
            for index in made:
                index.trim()
        for n in {0, count - 1, *chosen.choices(range(count), k=5)}:
            assert offset_index.lookup(10 * n + 12) == (10 * n + 9, n)
            assert time_index.lookup(7 * n + 6) == (7 * n, n)
            assert text_index.around(10 * n + 13) == (
                10 * n + 10,
                n + 1,
                -1 if n == count - 1 else n + 2,
            )
    for index in made:
        assert len(index.to_bytes()) == count * index.entry.size
        assert index.path.read_bytes().startswith(index.to_bytes())
        left = chosen.randrange(count)
        index.keep(left)
        assert len(list(index)) == left
        assert not index.path.read_bytes()[left * index.entry.size :].strip(b"\0")


@pytest.mark.parametrize("call", ["map", "read"])
def test_space_that_could_not_be_used_is_cut_off_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    """An index file that was enlarged, but not opened for appends, has its entries alone after it is trimmed."""
    index = offsets(tmp_path, slots=10)
    index.append(BASE + 3, 100)
    index.trim()
    with monkeypatch.context() as patch:

        def fail(*_: object) -> None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        patch.setattr(Disk, call, fail)
        with pytest.raises(OSError, match="No space left"):
            index.preallocate(800)
    index.trim()
    assert index.path.read_bytes() == index.to_bytes() == index.entry.pack(3, 100)
    index.preallocate(800)
    index.append(BASE + 5, 200)
    assert list(index) == [(BASE + 3, 100), (BASE + 5, 200)]


def test_an_index_that_is_cut_while_it_is_read_is_gone(tmp_path: Path) -> None:
    """Another process may cut a file that a read-only store has opened; a reader is told to look again."""
    index = offsets(tmp_path, slots=3000)
    index.append_all((BASE + 1 + n, n) for n in range(3000))
    index.trim()
    reader = OffsetIndex(ReadOnlyDisk(), index.path, BASE)
    assert reader.lookup(BASE + 9) == (BASE + 9, 8)
    index.path.write_bytes(index.path.read_bytes()[:8000])
    with pytest.raises(Gone):
        reader.lookup(BASE + 2900)
    with pytest.raises(Gone):
        _ = reader[2900]
