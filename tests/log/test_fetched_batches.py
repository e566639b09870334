"""Appends of a follower: any pieces of another log's bytes make the same log; what is not that log is refused."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from logfs.errors import Corrupt, OffsetOutOfRange
from logfs.format.batches.batch import assign_offset
from logfs.format.batches.compression import Codec
from logfs.format.batches.record import Record
from logfs.log.append.fetched_batches import append_fetched, begin_at
from logfs.store.store import Store
from tests.kafka.story import batch
from tests.support.examples import examples
from tests.support.legacy_encoder import Old, as_read, message, wrapper
from tests.support.stores import Clock, assert_clean

if TYPE_CHECKING:
    from logfs.log.append.partition import Partition
    from logfs.log.state.producers import SentBatch

NAME = "orders-0"
# Some batches get an index entry, and some do not.
INTERVAL_BYTES = "300"
PRODUCERS = (1000, 1001, 1002)


class Leader(NamedTuple):
    """A log that is followed: its log directory, its bytes, and the batches that it remembers of its producers."""

    directory: Path
    data: bytes
    batches: list[tuple[SentBatch, ...]]


def remembered(partition: Partition) -> list[tuple[SentBatch, ...]]:
    """Return the batches of each producer that are remembered."""
    return [partition.producers[producer].batches for producer in PRODUCERS]


def write_leader(directory: Path, records: int = 240) -> Leader:
    """Write a log with several codecs, sizes and transactions."""
    with Store(directory, clock=Clock()) as store:
        store.settings.set_topic("orders", "index.interval.bytes", INTERVAL_BYTES)
        leader = store.create(NAME)
        for number in range(0, records, 4):
            values = [
                Record(b"%d " % n * (n % 50), timestamp=1_700_000_000_000 + n)
                for n in range(number, number + 4)
            ]
            codec = [*Codec][number // 4 % len(Codec)]
            producer = PRODUCERS[number % 3]
            known = leader.producers[producer]
            is_transactional = number % 8 == 0
            if known.transaction_start is not None and not is_transactional:
                leader.end_transaction(producer, 0, commit=number % 3 == 0)
            leader.append_batch(
                batch(
                    values,
                    codec=codec,
                    producer=producer,
                    epoch=0,
                    sequence=known.last_sequence + 1,
                    transactional=is_transactional,
                )
            )
        return Leader(directory, log_bytes(leader), remembered(leader))


def index_bytes(directory: Path) -> dict[str, bytes]:
    """Return the files of the indexes of a partition by their names."""
    return {path.name: path.read_bytes() for path in (directory / NAME).glob("*index")}


def log_bytes(partition: Partition) -> bytes:
    """Return the bytes of a log."""
    return b"".join(segment.path.read_bytes() for segment in partition.segments)


@pytest.fixture(scope="module")
def leader(tmp_path_factory: pytest.TempPathFactory) -> Leader:
    """The log that the tests follow."""
    return write_leader(tmp_path_factory.mktemp("leader"))


@given(
    cuts=st.lists(st.integers(0, 1 << 16), max_size=12),
    segment_bytes=st.sampled_from([400, 2000, 1 << 20]),
)
@examples(0.4)
def test_any_pieces_make_the_same_log(
    leader: Leader,
    tmp_path_factory: pytest.TempPathFactory,
    cuts: list[int],
    segment_bytes: int,
) -> None:
    """Fetched bytes begin at or before the log end, and end anywhere: records, producers and indexes are equal."""
    source, data, batches = leader
    directory = tmp_path_factory.mktemp("follower")
    with Store(directory, clock=Clock()) as store:
        store.settings.set_topic("orders", "segment.bytes", str(segment_bytes))
        store.settings.set_topic("orders", "index.interval.bytes", INTERVAL_BYTES)
        follower = store.create(NAME)
        taken = 0
        for cut in [*sorted(cut % (len(data) + 1) for cut in cuts), len(data)]:
            # From a batch that the follower has already, to the middle of another.
            taken += append_fetched(follower, data[:cut])
        assert taken == len(data)
        assert append_fetched(follower, data) == 0
        assert log_bytes(follower).startswith(data)
        with Store(source, read_only=True, clock=Clock()) as theirs:
            original = theirs[NAME]
            assert list(follower.read()) == list(original.read())
            assert list(follower.committed.read()) == list(original.committed.read())
            assert follower.producers.entries() == original.producers.entries()
        assert remembered(follower) == batches
    if len(list((directory / NAME).glob("*.log"))) == 1:
        assert index_bytes(directory) == index_bytes(source)
    assert_clean(directory)


def test_gaps_are_told_before_they_are_in_the_log(leader: Leader, tmp_path: Path) -> None:
    """Without its second batch, a log has a gap: the caller hears of it first, once for each call."""
    data = leader.data
    first = int.from_bytes(data[8:12], "big") + 12
    second = first + int.from_bytes(data[first + 8 : first + 12], "big") + 12
    heard: list[int] = []
    with Store(tmp_path) as store:
        follower = store.create(NAME)

        def note() -> None:
            heard.append(follower.log_end_offset)
            store.checkpoints.set_cleaner_offset(follower, 0)

        assert append_fetched(follower, data[:first], note) == first
        assert not heard
        assert append_fetched(follower, data[second:], note) == len(data) - second
        assert heard == [4]
        found = [record.offset for record in follower.read()]
        assert found[:8] == [0, 1, 2, 3, 8, 9, 10, 11]
    assert_clean(tmp_path)
    with Store(tmp_path, recover=True) as store:
        assert [record.offset for record in store[NAME].read()] == found
    assert_clean(tmp_path)


def test_a_compacted_log_that_rolls_within_a_run_has_no_damage(tmp_path: Path) -> None:
    """Offsets that compaction has removed are no damage in any segment of the copy."""
    with Store(tmp_path / "source") as store:
        store.settings.set_topic("orders", "cleanup.policy", "compact")
        source = store.create(NAME)
        for number in range(60):
            key = b"k%d" % (number % 7 if number % 3 else number)
            source.append([Record(b"value %d" % number, key=key)])
        store.compact(NAME, roll=True)
        expected = [record.offset for record in source.read()]
        data = b"".join(segment.path.read_bytes() for segment in source.segments)
    with Store(tmp_path / "copy") as store:
        store.settings.set_topic("orders", "cleanup.policy", "compact")
        store.settings.set_topic("orders", "segment.bytes", "300")
        copy = store.create(NAME)
        append_fetched(copy, data, lambda: None)
        assert len(copy.segments) > 5
        assert [record.offset for record in copy.read()] == expected
        assert [copy.record(offset).offset for offset in expected] == expected
        store.compact(NAME, roll=True)
        assert [record.offset for record in copy.read()] == expected
    assert_clean(tmp_path / "copy")


@given(st.sets(st.integers(1, 400), max_size=6), st.sampled_from((0, 1)))
@examples(3)
def test_messages_of_the_old_formats_are_appended_as_they_are(ends: set[int], magic: int) -> None:
    """Single messages, a wrapper and then batches, as of a log that an older broker began, fetched up to any byte."""
    olds = [Old(n, b"%d" % n, b"k" * n, 1_700_000_000_000 + n) for n in range(6)]
    parts = [message(magic, olds[n]) for n in (0, 1, 5)]
    parts.insert(2, wrapper(magic, Codec.GZIP, olds[2:5]))
    newer = batch([Record(b"6", timestamp=5), Record(b"7", timestamp=6)])
    # Its base offset and leader epoch are those that a broker sets.
    data = b"".join(parts) + (6).to_bytes(8, "big") + newer[8:12] + bytes(4) + newer[16:]
    with TemporaryDirectory() as name, Store(name) as store:
        follower = store.create(NAME)
        for end in sorted({*ends, len(data)}):
            append_fetched(follower, data[:end])
        assert log_bytes(follower) == data
        found = [*follower.read()]
        assert found[:6] == [as_read(magic, old) for old in olds]
        assert [record.value for record in found[6:]] == [b"6", b"7"]
        damaged = message(magic, Old(8, b"8"))
        with pytest.raises(Corrupt, match="CRC"):
            append_fetched(follower, damaged[:-1] + b"x")
        assert_clean(Path(name))


def test_what_is_not_that_log_is_refused(leader: Leader, tmp_path: Path) -> None:
    """A flipped bit, and a batch that begins below the log end: nothing of it is appended, what is good stays."""
    data = leader.data
    first = int.from_bytes(data[8:12], "big") + 12
    with Store(tmp_path) as store:
        follower = store.create(NAME)
        append_fetched(follower, data[:first])
        wrong = bytearray(data)
        wrong[first + 70] ^= 1
        with pytest.raises(Corrupt):
            append_fetched(follower, bytes(wrong))
        assert follower.log_end_offset == 4
        other = batch([Record(b"x", timestamp=1)] * 6)
        with pytest.raises(Corrupt, match="within the source's batch"):
            append_fetched(follower, other)
        append_fetched(follower, data)
        assert log_bytes(follower).startswith(data)
    assert_clean(tmp_path)


def test_a_log_begins_where_the_other_one_begins(leader: Leader, tmp_path: Path) -> None:
    """The log begins at the offset, also inside of a batch; what it had before is dropped, transactions included."""
    data = leader.data
    sizes, position = [], 0
    while position < len(data):
        size = int.from_bytes(data[position + 8 : position + 12], "big") + 12
        sizes.append(size)
        position += size
    with Store(tmp_path) as store:
        follower = store.create(NAME)
        begin_at(follower, 6)
        assert (follower.log_start_offset, follower.log_end_offset) == (6, 6)
        append_fetched(follower, data[sizes[0] :])
        assert [record.offset for record in follower.read()][:3] == [6, 7, 8]
        end = follower.log_end_offset
        assert follower.producers.open_transactions()
        with pytest.raises(OffsetOutOfRange):
            begin_at(follower, end - 1)
        store.delete_records(NAME, end)
        begin_at(follower, end + 10)
        assert not follower.producers.entries()
        assert not follower.epochs.entries
        assert [segment.base_offset for segment in follower.segments] == [end + 10]
        assert follower.append([b"later"]) == end + 10
        assert follower.last_stable_offset == end + 11
    assert_clean(tmp_path)
    with Store(tmp_path, recover=True) as store:
        assert store[NAME].log_end_offset == end + 11
        assert store[NAME].log_start_offset == end + 10
        assert not store[NAME].producers.open_transactions()
    assert_clean(tmp_path)


def test_a_gap_that_no_segment_can_span(store: Store, clock: Clock) -> None:
    """A compacted log may lack more offsets in a row than a relative offset has; its copy reads and goes on."""
    store.settings.set_topic("orders", "cleanup.policy", "compact")
    copy, offsets = store.create(NAME), [0, 3_000_000_000, 3_000_000_001, 9_000_000_000]
    for offset in offsets:
        data = bytearray(batch([Record(b"%d" % offset, b"%d" % offset)]))
        assign_offset(data, offset, 0)
        append_fetched(copy, data, lambda: store.checkpoints.set_cleaner_offset(copy, 1))
        assert copy.record(offset).value == b"%d" % offset
    assert [record.offset for record in copy.read()] == offsets
    store.close()
    for read_only in (True, False):
        with Store(copy.directory.parent, clock=clock, read_only=read_only) as again:
            assert [record.offset for record in again[NAME].read()] == offsets
            assert again[NAME].log_end_offset == offsets[-1] + 1
