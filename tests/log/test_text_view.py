"""The text view of a partition as one long file, compared with text that is joined record by record."""

from __future__ import annotations

import random
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from logfs.errors import OffsetOutOfRange
from logfs.format.base.names import TopicPartition
from logfs.format.batches.batch import HEADER_SIZE, assign_offset
from logfs.format.batches.record import Record
from logfs.format.encoding.batch_builder import BatchFormat, build_records
from logfs.format.text import envelope
from logfs.format.text.rendering import View
from logfs.log.disk.disk import WouldBlock
from logfs.log.read.read_committed import Isolation
from logfs.log.read.text_renderer import BlockCache, RenderedRange
from logfs.log.read.text_view import (
    KEPT_SEGMENTS,
    NO_READER,
    TextView,
)
from logfs.log.segment.batch_iterator import DamagedRange
from logfs.log.segment.text_index import TextIndex
from logfs.store.observe.check import check
from logfs.store.store import Store
from tests.support.batches import E_COMMIT
from tests.support.examples import examples
from tests.support.partitions import flip
from tests.support.stores import set_topic

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from logfs.log.append.partition import Partition
    from tests.support.stores import Clock

NAME = "orders-0"
PREFIX = envelope.prefix(TopicPartition("orders", 0))
CODECS = ["producer", "gzip", "snappy", "lz4", "zstd"]


def text_of(records: list[Record], view: View) -> bytes:
    """Return the text that a view of these records must show."""
    if view is View.LINES:
        return b"".join((record.value or b"") + b"\n" for record in records)
    return b"".join(envelope.encode(record, PREFIX) for record in records)


def noise(rng: random.Random, count: int) -> list[Record]:
    """Return records of every kind: nulls, binary, escapes, keys, headers, long ones."""
    records = []
    for n in range(count):
        value = rng.choice(
            [
                b"line %d" % n,
                b"",
                None,
                b'q"\\\x01',
                b"\xff\xfe",
                "grün".encode(),
                b"x" * rng.randrange(900),
            ]
        )
        key = rng.choice([None, None, b"k%d" % n, b"\x80"])
        headers = rng.choice([(), (("h", b"v"),), (("a", None), ("b", b"\xff"))])
        records.append(Record(value, key, headers, 1000 + n))
    return records


def filled(store: Store, seed: int = 0, *, mixed: bool = True) -> Partition:
    """Return a log of several segments, with batches of various sizes and codecs, some of them appended as lines."""
    rng = random.Random(seed)
    orders = store.create(NAME)
    set_topic(store, "orders", segment_bytes=2000, index_interval_bytes=200)
    for _ in range(40):
        set_topic(store, "orders", compression_type=rng.choice(CODECS) if mixed else "producer")
        if rng.random() < 0.3:
            orders.append_lines(b"bulk line\n" * rng.randrange(1, 60))
        else:
            orders.append(noise(rng, rng.choice([1, 2, 9, 40])))
    assert len(orders.segments) > 3
    return orders


@pytest.fixture(scope="module")
def readable(tmp_path_factory: pytest.TempPathFactory):
    """One filled store for the tests that only read."""
    with Store(tmp_path_factory.mktemp("views"), clock=lambda: 10_000) as store:
        yield filled(store)


@pytest.fixture(scope="module", params=list(View), ids=lambda view: view.value)
def both(request: pytest.FixtureRequest, readable: Partition) -> tuple[TextView, bytes]:
    """Return a view and its whole text."""
    return TextView(readable, request.param), text_of(list(readable.read()), request.param)


def test_the_size_is_that_of_the_text(both: tuple[TextView, bytes]) -> None:
    """The size is what a read to the end returns."""
    view, text = both
    assert view.size == len(text)
    assert view.read(0, 1 << 30) == text
    assert view.read(len(text), 100) == b""
    assert view.read(len(text) + 5, 100) == b""


@given(st.data())
@examples(2)
def test_any_read_agrees_with_the_joined_text(
    both: tuple[TextView, bytes], data: st.DataObject
) -> None:
    """A read at any position and of any size gives the same bytes as a slice of the whole text."""
    view, text = both
    position = data.draw(st.integers(0, len(text)))
    size = data.draw(st.integers(0, 200) | st.integers(0, len(text)))
    assert view.read(position, size) == text[position : position + size]


@given(st.data())
@examples(1)
def test_a_range_shows_exactly_its_records(readable: Partition, data: st.DataObject) -> None:
    """A view of [start, end) is the text of those records, wherever the range begins and ends."""
    records = list(readable.read())
    start = data.draw(st.integers(0, len(records)))
    end = data.draw(st.integers(start, len(records)))
    for kind in View:
        view = TextView(readable, kind, start, end)
        expected = text_of(records[start:end], kind)
        assert view.size == len(expected)
        assert view.read(0, 1 << 30) == expected
        if len(expected) > 3:
            assert view.read(2, len(expected) - 3) == expected[2:-1]


def test_reads_by_blocks_give_the_whole_text(both: tuple[TextView, bytes]) -> None:
    """Reads of 4 KiB each give the whole text."""
    view, text = both
    parts = []
    while chunk := view.read(sum(map(len, parts)), 4096):
        parts.append(chunk)
    assert b"".join(parts) == text


@pytest.mark.parametrize("kinds", [["LogAppendTime"], ["CreateTime", "LogAppendTime"]], ids=str)
@pytest.mark.parametrize("codec", CODECS)
def test_envelopes_have_the_timestamps_that_the_log_gave(
    store: Store, codec: str, kinds: list[str]
) -> None:
    """With LogAppendTime, all envelopes of a batch have its timestamp; a block may hold both types of timestamps."""
    orders, rng = store.create(NAME), random.Random(3)
    set_topic(store, "orders", compression_type=codec)
    for _ in range(3):
        for kind in kinds:
            set_topic(store, "orders", message_timestamp_type=kind)
            orders.append(noise(rng, 30))
    records = list(orders.read(0, orders.log_end_offset))
    assert {record.timestamp_type.label for record in records} == set(kinds)
    view = TextView(orders, View.ENVELOPES)
    assert view.read(0, view.size) == text_of(records, View.ENVELOPES)


def test_views_survive_reopening(log_dir: Path, clock: Clock) -> None:
    """The text is the same after a clean close, after recovery, and in a read-only store."""
    with Store(log_dir, clock=clock) as store:
        filled(store, 1)
        expected = {view: text_of(list(store[NAME].read()), view) for view in View}
    for options in ({}, {"recover": True}, {"read_only": True}):
        with Store(log_dir, clock=clock, **options) as store:
            for view in View:
                found = TextView(store[NAME], view)
                assert found.size == len(expected[view])
                assert found.read(0, 1 << 30) == expected[view]


def test_a_view_grows_with_the_log(store: Store) -> None:
    """New records are at the end of an open view, after rolls too, and nothing before them moves."""
    orders = store.create(NAME)
    set_topic(store, "orders", segment_bytes=300)
    views = {kind: TextView(orders, kind) for kind in View}
    assert [view.size for view in views.values()] == [0, 0]
    for n in range(30):
        orders.append([Record(b"line %d" % n, b"k", timestamp=n)])
        for kind, view in views.items():
            expected = text_of(list(orders.read()), kind)
            assert view.size == len(expected)
            assert view.read(0, 1 << 20) == expected
    assert len(orders.segments) > 5


def test_a_range_beyond_the_log_end_grows_up_to_its_end(store: Store) -> None:
    """A range that ends beyond the log end grows with the log, up to its own end and no further."""
    orders = store.create(NAME)
    orders.append([b"0", b"1"])
    view = TextView(orders, View.LINES, 1, 4)
    assert view.read(0, 99) == b"1\n"
    orders.append([b"2"])
    assert (view.size, view.read(0, 99)) == (4, b"1\n2\n")
    orders.append([b"3", b"4", b"5"])
    assert (view.size, view.read(0, 99)) == (6, b"1\n2\n3\n")
    orders.append([b"6"])
    assert view.size == 6


def test_a_range_from_the_log_end_on_is_empty(store: Store) -> None:
    """A view from the log end on is empty until records are appended."""
    orders = store.create(NAME)
    orders.append([b"0", b"1"])
    view = TextView(orders, View.LINES, 2)
    assert (view.size, view.read(0, 9)) == (0, b"")
    orders.append([b"2"])
    assert view.read(0, 9) == b"2\n"


def test_a_view_begins_at_the_log_start(store: Store) -> None:
    """An advance of the log start makes a new generation: old views keep their text.

    New views begin at the new log start.
    """
    orders = store.create(NAME)
    set_topic(store, "orders", segment_bytes=300)
    for n in range(30):
        orders.append([b"line %d" % n])
    old = TextView(orders, View.LINES)
    before = old.read(0, 1 << 20)
    generation = orders.generation
    orders.advance_log_start(17)
    assert orders.generation == generation + 1
    assert old.generation == generation
    new = TextView(orders, View.LINES)
    assert new.generation == generation + 1
    expected = b"".join(b"line %d\n" % n for n in range(17, 30))
    assert (new.size, new.read(0, 1 << 20)) == (len(expected), expected)
    assert TextView(orders, View.LINES, 3, 19).read(0, 99) == b"line 17\nline 18\n"
    assert old.read(0, 1 << 20) == before
    orders.append([b"more"])
    assert old.read(0, 1 << 20) == before + b"more\n"


@pytest.mark.parametrize(
    ("passed", "first"),
    [(0, 0), (200, 23 - KEPT_SEGMENTS), (10**9, 101 - KEPT_SEGMENTS), (NO_READER, 90)],
)
def test_a_view_releases_segments_that_its_readers_have_passed(
    store: Store, passed: int, first: int
) -> None:
    """Only segments that left the log are released, except for the last few; the text of the others stays."""
    orders = store.create(NAME)
    text = orders.text(View.LINES)
    for number in range(100):
        orders.append([b"%08d" % number])
        orders.roll(number)
    whole = text.read(0, 1000)
    text.release_before(passed)
    orders.advance_log_start(90)
    for _ in range(90):
        orders.drop_oldest(1)
    assert text.segments[0].base_offset == first
    assert text.size == 900
    assert text.read(first * 9, 1000) == whole[first * 9 :]
    if first:
        with pytest.raises(OffsetOutOfRange, match="open the file again"):
            text.read(0, 10)


def test_truncation_is_a_new_generation(store: Store) -> None:
    """After a truncation a new view shows the remaining records, and those appended since."""
    orders = store.create(NAME)
    orders.append([b"a"])
    orders.append([b"b"])
    assert TextView(orders, View.LINES).read(0, 99) == b"a\nb\n"
    generation = orders.generation
    store.truncate(NAME, 1)
    assert orders.generation > generation
    assert TextView(orders, View.LINES).read(0, 99) == b"a\n"
    orders.append([b"c"])
    assert TextView(orders, View.LINES).read(0, 99) == b"a\nc\n"


@pytest.mark.parametrize("isolation", list(Isolation))
@pytest.mark.parametrize("has_shown", [False, True])
def test_segments_leave_a_log_beside_a_view_from_before_a_truncation(
    store: Store, isolation: Isolation, has_shown: bool
) -> None:
    """The view then ends at the truncation if it has shown what was cut off; otherwise it goes on."""
    orders = store.create(NAME)
    text = orders.isolated(isolation).text(View.LINES)
    for number in range(9):
        if number % 4 == 0:
            orders.roll(number)
        orders.append([b"%d" % number])
    orders.views.pin()
    assert not has_shown or text.size == 18
    # The last segment that the view knows of is sealed, and then cut off.
    orders.roll(0)
    store.truncate(NAME, 3)
    orders.append([b"new"] * 9)
    orders.roll(0)
    orders.append([b"last"])
    store.delete_records(NAME, 12)
    assert store.retain([NAME]) == 1
    kept = b"0\n1\n2\n"
    new = b"" if has_shown else b"new\n" * 9 + b"last\n"
    assert (text.size, text.read(0, 100)) == (len(kept + new), kept + new)


def test_a_new_partition_shows_nothing_of_an_old_one_of_its_name(store: Store) -> None:
    """Text that was rendered for a deleted partition is never shown for the next one of the same name."""
    store.create(NAME).append([b"old"])
    assert TextView(store[NAME], View.LINES).read(0, 99) == b"old\n"
    store.delete(NAME)
    store.create(NAME).append([b"new"])
    assert TextView(store[NAME], View.LINES).read(0, 99) == b"new\n"


@pytest.mark.parametrize("count", [0, 1, 2, 5, 39, 200, 10**6])
def test_the_last_records_are_found(readable: Partition, count: int) -> None:
    """`offset_of_last` gives the offset at which the last n records begin, or the log start if there are fewer."""
    assert readable.offset_of_last(count) == max(readable.log_end_offset - count, 0)


def test_the_last_records_leave_out_markers(log_dir: Path, clock: Clock) -> None:
    """Control records do not appear in a view, and do not count among the last n records."""
    marker = bytearray(E_COMMIT)
    assign_offset(marker, 2, 0)
    data = b""
    for base, values in ((0, [b"a", b"b"]), (3, [b"c"])):
        (new,) = build_records([Record(v) for v in values], BatchFormat(), 0).batches
        assign_offset(new.data, base, 0)
        data += bytes(new.data) + (bytes(marker) if base == 0 else b"")
    directory = log_dir / NAME
    directory.mkdir(parents=True)
    (directory / f"{0:020}.log").write_bytes(data)
    with Store(log_dir, clock=clock) as store:
        orders = store[NAME]
        assert TextView(orders, View.LINES).read(0, 99) == b"a\nb\nc\n"
        assert [orders.offset_of_last(n) for n in range(5)] == [4, 3, 1, 0, 0]
        assert TextView(orders, View.LINES, 2).read(0, 99) == b"c\n"
        assert TextView(orders, View.LINES, 1, 3).read(0, 99) == b"b\n"


@pytest.mark.parametrize("change", ["missing", "empty", "garbage", "zeros", "cut"])
def test_a_missing_or_wrong_text_index_is_rebuilt(log_dir: Path, clock: Clock, change: str) -> None:
    """The text is the same without a text index, or with one that does not belong to the log."""
    with Store(log_dir, clock=clock) as store:
        filled(store, 2)
        expected = {view: text_of(list(store[NAME].read()), view) for view in View}
    for path in (log_dir / NAME).glob("*.textindex"):
        data = path.read_bytes()
        path.unlink()
        if change != "missing":
            new = {
                "empty": b"",
                "garbage": b"garbage!" * 7,
                "zeros": bytes(32 * 50),
                "cut": data[:-32],
            }[change]
            path.write_bytes(new)
    with Store(log_dir, clock=clock) as store:
        for view in View:
            found = TextView(store[NAME], view)
            assert found.size == len(expected[view])
            assert found.read(0, 1 << 30) == expected[view]


@pytest.mark.parametrize("opening", ["writable", "read-only", "beside a writer"])
@pytest.mark.parametrize("damaged", ["the first", "every second", "a run", "all but the last"])
def test_damaged_entries_of_a_text_index_change_no_text(
    tmp_path: Path, clock: Clock, opening: str, damaged: str
) -> None:
    """Damaged entries are rebuilt from the log: the text, every range and every count are the same."""
    log_dir = tmp_path / "damaged"
    with ExitStack() as stack:
        writer = stack.enter_context(Store(log_dir, clock=clock))
        records = list(filled(writer, 4).read())
        if opening != "beside a writer":
            stack.close()
        for path in (log_dir / NAME).glob("*.textindex"):
            entries = path.stat().st_size // TextIndex.entry.size
            numbers = {
                "the first": range(1),
                "every second": range(1, entries - 2, 2),
                "a run": range(2, entries - 2),
                "all but the last": range(entries - 1),
            }[damaged]
            # An index with preallocated space is that of the segment that is being written.
            for number in numbers if entries < 1000 else ():
                flip(path, number * TextIndex.entry.size + number * 5 % TextIndex.entry.size)
        assert opening == "beside a writer" or any(
            "textindex" in str(finding) for finding in check([log_dir])
        )
        reader = Store(log_dir, clock=clock, read_only=opening != "writable")
        orders = stack.enter_context(reader)[NAME]
        offsets = [record.offset for record in records]
        for view in View:
            expected = text_of(records, view)
            whole = TextView(orders, view)
            assert whole.size == len(expected)
            assert b"".join(whole.read(at, 700) for at in range(0, len(expected), 700)) == expected
            for first in range(0, len(records), 7):
                some = TextView(orders, view, offsets[first], offsets[first] + 20)
                assert some.read(0, 1 << 30) == text_of(records[first : first + 20], view)
        assert [orders.offset_of_last(n) for n in range(1, len(offsets) + 1)] == offsets[::-1]


@pytest.mark.parametrize("clean", [True, False])
def test_a_log_that_a_broker_appended_to(log_dir: Path, clock: Clock, clean: bool) -> None:
    """A broker may append to the last segment and leave its text index; the text is complete."""
    with Store(log_dir, clock=clock) as store:
        orders = store.create(NAME)
        orders.append([b"ours %d" % n for n in range(20)])
        end = orders.log_end_offset
    path = log_dir / NAME / f"{0:020}.log"
    data = b""
    for n in range(30):
        (new,) = build_records([Record(b"theirs %d" % n)], BatchFormat(), 0).batches
        assign_offset(new.data, end + n, 0)
        data += bytes(new.data)
    with path.open("ab") as file:
        file.write(data)
    if not clean:
        (log_dir / ".kafka_cleanshutdown").unlink()
    expected = [b"ours %d" % n for n in range(20)] + [b"theirs %d" % n for n in range(30)]
    with Store(log_dir, clock=clock) as store:
        orders = store[NAME]
        assert orders.log_end_offset == end + 30
        assert TextView(orders, View.LINES).read(0, 1 << 20) == b"\n".join([*expected, b""])
        assert [record.value for record in orders.read()] == expected
        orders.roll(clock())
        orders.append([b"again"])
        text = TextView(orders, View.LINES)
        assert text.read(0, 1 << 20) == b"\n".join([*expected, b"again", b""])
        assert text.size == len(text.read(0, 1 << 20))


def test_a_sealed_segment_that_was_replaced_is_measured_again(log_dir: Path, clock: Clock) -> None:
    """A sealed .log that was replaced by one of another length is read again; its old text index is not used."""
    with Store(log_dir, clock=clock) as store:
        orders = store.create(NAME)
        orders.append([b"short"] * 3)
        orders.roll(clock())
        orders.append([b"tail"])
    (new,) = build_records([Record(b"a longer value")] * 3, BatchFormat(), 0).batches
    assign_offset(new.data, 0, 0)
    (log_dir / NAME / f"{0:020}.log").write_bytes(new.data)
    for suffix in (".index", ".timeindex"):
        (log_dir / NAME / f"{0:020}{suffix}").unlink()
    with Store(log_dir, clock=clock) as store:
        expected = b"a longer value\n" * 3 + b"tail\n"
        view = TextView(store[NAME], View.LINES)
        assert (view.size, view.read(0, 999)) == (len(expected), expected)


def ten_lines(path: Path, clock: Clock) -> tuple[Path, int]:
    """Write ten batches of one line, nine of them in a sealed segment; return its .log and the size of a batch."""
    with Store(path, clock=clock) as store:
        orders = store.create(NAME)
        set_topic(store, "orders", index_interval_bytes=0)
        for n in range(9):
            orders.append([b"line %d" % n])
        orders.roll(clock())
        orders.append([b"line 9"])
        return path / NAME / f"{0:020}.log", orders.segments[0].size_bytes // 9


@pytest.fixture
def damaged(tmp_path: Path, clock: Clock) -> Iterator[Store]:
    """A store with ten lines, of which the batch of the line 4 is damaged."""
    path = tmp_path / "damaged"
    log, size = ten_lines(path, clock)
    flip(log, 4 * size + 70)
    with Store(path, clock=clock) as store:
        yield store


def test_damage_is_reported_and_the_text_around_it_is_shown(damaged: Store) -> None:
    """A read that meets damage raises; the text before and after it can be read (docs/durability.md)."""
    view = TextView(damaged[NAME], View.LINES)
    whole = b"".join(b"line %d\n" % n for n in range(10))
    assert view.read(0, 28) == whole[:28]
    with pytest.raises(DamagedRange) as caught:
        view.read(0, 1 << 20)
    assert (caught.value.first_offset, caught.value.next_offset) == (4, 5)
    assert view.read(0, 1 << 20, up_to_damage=True) == whole[:28]
    assert TextView(damaged[NAME], View.LINES, 5).read(0, 1 << 20) == whole[35:]
    assert TextView(damaged[NAME], View.LINES, 0, 4).read(0, 1 << 20) == whole[:28]


def test_damage_is_not_read_on_the_event_loop(damaged: Store) -> None:
    """The batches around it are read one by one, which takes long: `WouldBlock`, and a worker thread repeats it."""
    view = TextView(damaged[NAME], View.LINES)
    assert view.size
    damaged.disk.forbid_blocking()
    with pytest.raises(WouldBlock):
        view.read(0, 1)
    damaged.disk.allow_blocking()


@pytest.mark.parametrize("is_written", [False, True])
@pytest.mark.parametrize("base_offset", [2**31 + 3, 2**63 - 2])
def test_a_stray_file_far_beyond_the_log_end_hides_no_text(
    tmp_path: Path, clock: Clock, is_written: bool, base_offset: int
) -> None:
    """A .log file with a base offset far beyond the log end hides no text, with a writer and without one."""
    path = tmp_path / "log"
    with ExitStack() as stack:
        orders = stack.enter_context(Store(path, clock=clock)).create(NAME)
        orders.append([b"a", b"b"])
        orders.flush()
        if not is_written:
            stack.close()
        log = path / NAME / f"{0:020}.log"
        log.with_name(f"{base_offset:020}.log").write_bytes(log.read_bytes())
        reader = stack.enter_context(Store(path, clock=clock, read_only=True))[NAME]
        assert TextView(reader, View.LINES, 0, 2).read(0, 100) == b"a\nb\n"


@pytest.mark.parametrize("entries", [range(3, 4), range(4, 5), range(2, 7), range(8)])
@pytest.mark.parametrize("at", [61, 70])
def test_damage_in_a_log_and_in_its_text_index(
    tmp_path: Path, clock: Clock, entries: range, at: int
) -> None:
    """The text around damage in the log is shown even if text index entries around it are damaged, too."""
    path = tmp_path / "damaged"
    log, size = ten_lines(path, clock)
    flip(log, 4 * size + at)
    for number in entries:
        flip(log.with_suffix(".textindex"), number * TextIndex.entry.size + 20)
    with Store(path, clock=clock) as store:
        view = TextView(store[NAME], View.LINES)
        whole = b"".join(b"line %d\n" % n for n in range(10))
        assert view.size == len(whole)
        assert view.read(0, 1 << 20, up_to_damage=True) == whole[:28]
        with pytest.raises(DamagedRange):
            view.read(28, 7)
        assert view.read(35, 1 << 20) == whole[35:]
        assert TextView(store[NAME], View.LINES, 5).read(0, 1 << 20) == whole[35:]
        assert TextView(store[NAME], View.LINES, 0, 4).read(0, 1 << 20) == whole[:28]


@pytest.mark.parametrize("view", View)
def test_a_batch_that_cannot_be_decompressed_hides_only_itself(
    tmp_path: Path, clock: Clock, view: View
) -> None:
    """The checksum of the batch is valid, and the text index was made while the batch could be read."""
    path = tmp_path / "damaged"
    records = [Record(b"line %d" % n * 9, timestamp=clock()) for n in range(9)]
    with Store(path, clock=clock) as store:
        orders = store.create(NAME)
        set_topic(store, "orders", compression_type="gzip")
        for record in records:
            orders.append([record])
        orders.roll(clock())
        size = orders.segments[0].size_bytes // 9
        whole = TextView(orders, view).read(0, 1 << 20)
        step = len(whole) // 9
    log = path / NAME / f"{0:020}.log"
    data = bytearray(log.read_bytes())
    start, end = 4 * size, 5 * size
    data[start + HEADER_SIZE + 12 : end] = bytes(size - HEADER_SIZE - 12)
    data[start + 17 : start + 21] = crc32c(data[start + 21 : end]).to_bytes(4, "big")
    log.write_bytes(data)
    with Store(path, clock=clock) as store:
        first = TextView(store[NAME], view)
        assert first.read(0, 1 << 20, up_to_damage=True) == whole[: 4 * step]
        with pytest.raises(DamagedRange) as caught:
            first.read(4 * step, 1)
        assert (caught.value.first_offset, caught.value.next_offset) == (4, 5)
        assert first.read(5 * step, 1 << 20) == whole[5 * step :]
        for offset in (1, 4, 5, 8):
            begin = 5 if offset == 4 else offset
            found = TextView(store[NAME], view, offset)
            assert found.size == len(whole) - offset * step
            assert found.read((begin - offset) * step, step) == whole[begin * step :][:step]


def test_small_blocks_leave_the_cache_as_well() -> None:
    """The limit counts the overhead of a block as well as its bytes; the last blocks put are kept."""
    cache = BlockCache(limit_bytes=100 * 1024)
    for number in range(1000):
        cache.put((number,), [RenderedRange(0, 1, memoryview(b"x"))])
    kept = [number for number in range(1000) if cache.get((number,)) is not None]
    assert 50 <= len(kept) <= 100
    assert kept == list(range(1000 - len(kept), 1000))
