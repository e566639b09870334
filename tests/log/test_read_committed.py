"""Reading with isolation level read_committed: by offset, by time, in bulk, as text, on a mount, by commands."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from copy import deepcopy
from typing import TYPE_CHECKING

import pytest

from logfs.errors import OffsetOutOfRange
from logfs.format.batches.record import Record
from logfs.format.text.rendering import View
from logfs.log.disk.disk import Disk, Gone, WouldBlock
from logfs.log.read import read_committed
from logfs.log.read.read_committed import Isolation
from logfs.log.segment.batch_iterator import DamagedRange
from logfs.log.segment.batch_scanner import scan_from
from logfs.store.store import Store
from tests.support.batches import NOW, Producer, batch
from tests.support.partitions import by_splits, flip, log
from tests.support.stores import errors_of, set_topic

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from logfs.log.append.partition import Partition
    from logfs.log.read.reader import Reader
    from logfs.log.segment.segment import Segment
    from tests.support.stores import Clock

NAME = "orders-0"


@pytest.fixture
def orders(store: Store) -> Partition:
    """A log with offsets 0 a, 1 B (aborted), 2 c, 3 abort; 4 D, 5 commit; 6 e, 7 F (open), 8 g."""
    orders = store.create(NAME)
    orders.append([b"a"])
    orders.append_batch(batch(1, 0, b"B", transactional=True))
    orders.append([b"c"])
    orders.end_transaction(1, 0, commit=False)
    orders.append_batch(batch(1, 1, b"D", transactional=True))
    orders.end_transaction(1, 0, commit=True)
    orders.append([b"e"])
    orders.append_batch(batch(2, 0, b"F", transactional=True))
    orders.append([b"g"])
    return orders


def values(partition: Partition) -> list[bytes | None]:
    return [record.value for record in partition.committed.read()]


def lines(partition: Partition, start: int | None = None, end: int | None = None) -> bytes:
    text = partition.committed.text(View.LINES, start, end)
    data = text.read(0, 1 << 20)
    assert len(data) == text.size
    return data


def test_only_committed_records_below_the_stable_offset_are_read(orders: Partition) -> None:
    assert values(orders) == [b"a", b"c", b"D", b"e"]
    assert orders.committed.log_end_offset == 7
    assert [record.offset for record in orders.committed.read(2)] == [2, 4, 6]
    assert orders.committed.columns().offsets.tolist() == [0, 2, 4, 6]
    assert orders.isolated(Isolation.READ_COMMITTED) is orders.committed
    assert orders.isolated(Isolation.READ_UNCOMMITTED) is orders


def test_a_hidden_record_is_none_and_the_end_is_out_of_range(orders: Partition) -> None:
    record = orders.committed.record(2)
    assert record is not None
    assert record.value == b"c"
    assert orders.committed.record(1) is None
    assert orders.committed.record(3) is None
    for offset in (7, 8):
        with pytest.raises(OffsetOutOfRange):
            orders.committed.record(offset)
    assert list(orders.committed.read(8)) == []
    assert orders.committed.first_offset_from(1) == 2
    assert orders.committed.first_offset_from(7) is None
    assert orders.committed.last_offset() == 6


@pytest.mark.parametrize(
    ("count", "offset"), [(0, 7), (1, 6), (2, 4), (3, 2), (4, 0), (5, 0), (99, 0)]
)
def test_the_last_records_are_counted_without_hidden_ones(
    orders: Partition, count: int, offset: int
) -> None:
    assert orders.committed.offset_of_last(count) == offset


def test_the_text_omits_hidden_records_and_grows_as_transactions_end(
    orders: Partition,
) -> None:
    text = orders.committed.text(View.LINES)
    assert text.read(0, 100) == b"a\nc\nD\ne\n"
    orders.append_batch(batch(3, 0, b"H", transactional=True))
    orders.end_transaction(2, 0, commit=False)
    assert (text.read(0, 100), text.size) == (b"a\nc\nD\ne\ng\n", 10)
    orders.end_transaction(3, 0, commit=True)
    assert text.read(4, 100) == b"D\ne\ng\nH\n"
    assert lines(orders) == text.read(0, 100)


@pytest.mark.parametrize("offset", [0, 2, 4, 6])
def test_the_text_before_damage_is_read(log_dir: Path, orders: Partition, offset: int) -> None:
    """With `up_to_damage` a read returns what it has, also if the damage follows a hidden record."""
    committed = orders.committed
    before = sum(len(record.value or b"") + 1 for record in committed.read(0, offset))
    position = next(position for position, _ in orders.segments[0].batches_from(offset))
    # Measure the text first, as an opened view has done.
    text = committed.text(View.LINES)
    assert text.size == 8
    flip(log_dir / NAME / log(0), position + 65)
    with pytest.raises(DamagedRange):
        text.read(0, 100)
    with pytest.raises(DamagedRange):
        text.read(before, 100, up_to_damage=True)
    if before:
        assert text.read(0, 100, up_to_damage=True) == b"a\nc\nD\ne\n"[:before]
    # Undo the damage for the audit.
    flip(log_dir / NAME / log(0), position + 65)


@pytest.mark.parametrize("start", range(9))
@pytest.mark.parametrize("end", [None, *range(10)])
def test_ranges(orders: Partition, start: int, end: int | None) -> None:
    wanted = b"".join(
        (record.value or b"") + b"\n"
        for record in orders.committed.read(0)
        if start <= record.offset < (99 if end is None else end)
    )
    assert lines(orders, start, end) == wanted


def test_a_search_for_hidden_records_that_has_to_wait_begins_anew(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A part of the log may be in a bucket: the thread that must not wait for it has found some ranges by then."""
    orders = store.create("orders-0")
    for number in range(6):
        orders.append([b"%d" % number])
        orders.append_batch(batch(1, number, b"hidden", transactional=True))
        orders.end_transaction(1, 0, commit=False)
        orders.roll(NOW)
    expected = lines(orders)
    assert expected == b"0\n1\n2\n3\n4\n5\n"
    for wait_at in range(6):
        calls = 0

        def waiting(segment: Segment, offset: int) -> Iterator[object]:
            nonlocal calls
            calls += 1
            if calls == wait_at + 1:  # noqa: B023
                raise WouldBlock(on_network=True)
            yield from scan_from(segment, offset)

        text = orders.committed.text(View.LINES)
        with monkeypatch.context() as patch:
            patch.setattr(read_committed, "scan_from", waiting)
            with pytest.raises(WouldBlock):
                _ = text.size
        assert text.read(0, 100) == expected
        assert text.size == len(expected)


def test_a_committed_batch_after_a_hidden_one_is_found_by_time(store: Store) -> None:
    """The text of a batch that begins where that of an aborted one ends is not hidden."""
    orders = store.create(NAME)
    orders.append_batch(batch(1, 0, b"aborted", transactional=True))
    orders.end_transaction(1, 0, commit=False)
    orders.append_batch(batch(1, 1, b"committed", transactional=True))
    orders.end_transaction(1, 0, commit=True)
    text = orders.committed.text(View.LINES)
    assert text.read(0, 100) == b"committed\n"
    assert text.offset_for_time(0, 0, 4) == 2


def test_a_time_lookup_can_skip_hidden_records(store: Store) -> None:
    orders = store.create(NAME)
    orders.append_batch(batch(1, 0, b"A", transactional=True, timestamp=NOW - 9))
    orders.end_transaction(1, 0, commit=False)
    orders.append([b"b"])
    assert orders.offset_for_time(NOW - 9) == (0, NOW - 9, 0)
    assert orders.committed.offset_for_time(NOW - 9) == (0, NOW - 9, 0)
    found = orders.committed.offset_for_time(NOW - 9, shown=True)
    assert found is not None
    assert found.offset == 2
    found = orders.offset_for_time(NOW - 8, shown=True)
    assert found is not None
    assert found.offset == 2


class OpenText:
    """A text that stays open, and what it must show: it ends where a truncation has removed what it has shown."""

    def __init__(self, reader: Reader, start: int) -> None:
        self.reader = reader
        self.start = start
        self.text = reader.text(View.LINES, start)
        self.told = b""
        # Once a truncation has ended the text: the model of before, which tells what it had shown.
        self.ended: Model | None = None

    def lines(self, model: Model, end: int = 1 << 60) -> bytes:
        return model.lines(self.start, end, is_committed=self.reader is not self.reader.log)

    def cut(self, before: Model, after: Model) -> None:
        """Note a truncation of the log, which `before` and `after` describe."""
        is_kept = after.end >= self.start and self.lines(after).startswith(self.told)
        if self.ended is None and not is_kept:
            self.ended = before
        if self.ended is not None:
            self.told = self.told[: len(self.lines(self.ended, after.end))]

    def check(self, model: Model, chance: random.Random) -> None:
        self.reader.refresh()
        wanted = self.lines(model) if self.ended is None else self.told
        assert self.text.size == len(wanted)
        at = chance.randrange(len(wanted) + 1)
        assert self.text.read(at, 1 << 20) == wanted[at:]
        self.told = wanted


@pytest.mark.drawn(4)
@pytest.mark.parametrize("seed", range(12))
def test_random_transactions_agree_with_a_plain_model(log_dir: Path, seed: int) -> None:
    """With many producers, rolls, deletions, truncations and restarts, every kind of read agrees with a model.

    Texts that were opened before stay right, those of a read-only store beside the writer, too.
    """
    chance = random.Random(seed)
    model = Model(chance)
    for _ in range(4):
        with (
            Store(log_dir, clock=lambda: NOW, recover=chance.random() < 0.5) as store,
            Store(log_dir, read_only=True) as beside,
        ):
            orders = store[NAME] if NAME in store else store.create(NAME)
            interval = chance.choice([0, 100, 4096])
            store.settings.set_topic("orders", "index.interval.bytes", str(interval))
            beside.refresh()
            texts: list[OpenText] = []
            for _ in range(60):
                if chance.random() < 0.05:
                    store.delete_records(NAME, chance.randrange(orders.log_end_offset + 1))
                elif chance.random() < 0.05:
                    before, offset = deepcopy(model), chance.randrange(orders.log_end_offset + 1)
                    model.cut(offset)
                    is_forgotten = model.stable() < orders.log_start_offset
                    model = deepcopy(before)
                    if is_forgotten:
                        # As Kafka, the log then knows nothing of a transaction that began below its start.
                        continue
                    store.truncate(NAME, offset)
                    model.cut(orders.log_end_offset)
                    # Another process cannot tell a truncated file from another one: its open texts end with an error.
                    texts = [each for each in texts if each.reader.disk is orders.disk]
                    for each in texts:
                        each.cut(before, model)
                else:
                    model.step(orders)
                if chance.random() < 0.2:
                    partition = chance.choice((orders, beside[NAME]))
                    partition.refresh()
                    first, last = partition.log_start_offset, partition.log_end_offset
                    reader: Reader = chance.choice((partition, partition.committed))
                    texts.append(OpenText(reader, chance.randrange(first, last + 1)))
                for each in chance.sample(texts, min(len(texts), 3)):
                    each.check(model, chance)
            # An opening forgets the transactions that began below the log start.
            model.end_those_below(orders)
            check_reads(orders, model, chance)
        with Store(log_dir, read_only=True) as store:
            shown = model.shown(orders.log_start_offset)
            assert {r.offset: r.value for r in store[NAME].committed.read()} == shown


def check_reads(orders: Partition, model: Model, chance: random.Random) -> None:
    start = orders.log_start_offset
    stable, shown = max(model.stable(), start), model.shown(start)
    assert orders.last_stable_offset == stable
    assert {r.offset: r.value for r in orders.committed.read()} == shown
    assert orders.committed.columns().offsets.tolist() == sorted(shown)
    pieces = by_splits(orders.committed, chance.choice([1, 300, 1 << 20]))
    assert {r.offset: r.value for r in pieces} == shown
    assert lines(orders) == model.lines(start, is_committed=True)
    for count in range(8):
        last = sorted(shown)[-count:] if count else []
        at = orders.committed.offset_of_last(count)
        assert [o for o in sorted(shown) if o >= at] == last
        found = orders.committed.read(limit=count)
        assert [record.offset for record in found] == sorted(shown)[:count]
    for offset in model.records:
        if start <= offset < stable:
            record = orders.committed.record(offset)
            assert (record is None) == (offset in model.aborted)


class Model:
    """The records of a log by offset, and what became of the transactions of six producers."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.records: dict[int, bytes] = {}
        self.end = 0
        # The producer of each record of a transaction, and the markers: producer, offset, whether it commits.
        self._producers: dict[int, int] = {}
        self._markers: list[tuple[int, int, bool]] = []

    def _fates(self) -> tuple[set[int], int]:
        """Return the offsets of aborted records, and the first offset of an open transaction or the log end."""
        aborted, unstable = set(), self.end
        for offset, producer in self._producers.items():
            ends = [commit for who, at, commit in self._markers if who == producer and at > offset]
            if not ends:
                unstable = min(unstable, offset)
            elif not ends[0]:
                aborted.add(offset)
        return aborted, unstable

    @property
    def aborted(self) -> set[int]:
        return self._fates()[0]

    def stable(self) -> int:
        return self._fates()[1]

    def shown(self, start: int = 0) -> dict[int, bytes]:
        aborted, stable = self._fates()
        return {o: v for o, v in self.records.items() if start <= o < stable and o not in aborted}

    def lines(self, start: int, end: int = 1 << 60, *, is_committed: bool) -> bytes:
        found = self.shown() if is_committed else self.records
        return b"".join(found[offset] + b"\n" for offset in sorted(found) if start <= offset < end)

    def cut(self, end: int) -> None:
        self.end = end
        self.records = {offset: value for offset, value in self.records.items() if offset < end}
        self._producers = {offset: who for offset, who in self._producers.items() if offset < end}
        self._markers = [each for each in self._markers if each[1] < end]

    def end_those_below(self, orders: Partition) -> None:
        """Commit the open transactions that begin below the log start."""
        while (first := self.stable()) < orders.log_start_offset:
            self._end_transaction(orders, self._producers[first], commit=True)

    def _end_transaction(self, orders: Partition, producer: int, *, commit: bool) -> None:
        offset = orders.end_transaction(producer, 0, commit=commit)
        self._markers.append((producer, offset, commit))
        self.end = orders.log_end_offset

    def step(self, orders: Partition) -> None:
        """Append, begin, continue or end a transaction, or roll."""
        chance, kind = self.chance, self.chance.random()
        producer = chance.randrange(6)
        value = b"%d" % chance.randrange(10**6)
        if kind < 0.3:
            self.records[orders.append([value])] = value
        elif kind < 0.7:
            data = [b"%s-%d" % (value, number) for number in range(chance.randrange(1, 5))]
            sequence = orders.producers[producer].last_sequence + 1
            done = orders.append_batch(batch(producer, sequence, *data, transactional=True))
            for offset, item in enumerate(data, done.first_offset):
                self.records[offset] = item
                self._producers[offset] = producer
        elif kind < 0.92:
            self._end_transaction(orders, producer, commit=chance.random() < 0.5)
        else:
            orders.roll(NOW)
        self.end = orders.log_end_offset


def test_cat_and_tail_accept_the_isolation_level(log_dir: Path, orders: Partition) -> None:
    store_of = [sys.executable, "-m", "logfs"]

    def logfs(*words: str) -> bytes:
        return subprocess.run([*store_of, *words], check=True, capture_output=True).stdout

    target = str(log_dir / NAME)
    level = ("--isolation", "read_committed")
    assert logfs("cat", target) == b"a\nB\nc\nD\ne\nF\ng\n"
    assert logfs("cat", target, *level) == b"a\nc\nD\ne\n"
    assert logfs("tail", "-n", "2", target, *level) == b"D\ne\n"
    done = subprocess.run(
        [*store_of, "cat", target, "--isolation", "serializable"], capture_output=True, check=False
    )
    assert done.returncode == 1
    assert b"read_uncommitted, read_committed" in done.stderr


def test_a_mount_hides_uncommitted_records(
    log_dir: Path, store: Store, orders: Partition, request: pytest.FixtureRequest
) -> None:
    store.close()
    make_mount = request.getfixturevalue("make_mount")
    folder = make_mount("-o", "isolation=read_committed", log_dirs=[log_dir]).path / NAME
    assert (folder / "records").read_bytes() == b"a\nc\nD\ne\n"
    assert (folder / "records").stat().st_size == 8
    assert (folder / "offsets" / "2..").read_bytes() == b"c\nD\ne\n"
    assert (folder / "offsets" / "-2..").read_bytes() == b"D\ne\n"
    assert (folder / "offsets" / "latest").readlink().name == "6"
    assert (folder / "offsets" / "4").read_bytes() == b"D"
    for hidden in ("1", "3", "7", "8"):
        assert not (folder / "offsets" / hidden).exists()
    with (folder / "append").open("ab") as stream:
        stream.write(b"after\n")
    assert (folder / "records").read_bytes() == b"a\nc\nD\ne\n"


def txn_index_of(log_dir: Path) -> Path:
    return log_dir / NAME / "00000000000000000000.txnindex"


def test_an_aborted_transaction_is_hidden_without_its_index_entry(
    log_dir: Path, tmp_path: Path
) -> None:
    """A broker writes the entry after the marker, and may be killed in between: the marker alone suffices."""
    away = tmp_path / "away"
    with Store(log_dir, clock=lambda: NOW) as store, Store(log_dir, read_only=True) as beside:
        orders = store.create(NAME)
        orders.append_batch(batch(1, 0, b"B", transactional=True))
        beside.refresh()
        seen = beside[NAME]
        assert values(seen) == []
        text = seen.committed.text(View.LINES)
        orders.end_transaction(1, 0, commit=False)
        orders.append([b"c"])
        txn_index_of(log_dir).rename(away)
        beside.refresh()
        assert (seen.committed.log_end_offset, values(seen)) == (3, [b"c"])
        assert (text.size, text.read(0, 10)) == (2, b"c\n")
        with Store(log_dir, read_only=True) as cold:
            assert values(cold[NAME]) == [b"c"]
            assert [r.value for r in by_splits(cold[NAME].committed)] == [b"c"]
        away.rename(txn_index_of(log_dir))


def test_a_roll_does_not_wait_for_the_transaction_index(log_dir: Path, tmp_path: Path) -> None:
    """Records after a marker without an entry are shown, although a sealed segment is not looked at again."""
    away = tmp_path / "away"
    with Store(log_dir, clock=lambda: NOW) as store, Store(log_dir, read_only=True) as beside:
        orders = store.create(NAME)
        orders.append([b"a"])
        beside.refresh()
        orders.append_batch(batch(1, 0, b"B", transactional=True))
        orders.end_transaction(1, 0, commit=False)
        orders.append([b"c"])
        txn_index_of(log_dir).rename(away)
        beside.refresh()
        orders.roll(NOW)
        orders.append([b"d"])
        beside.refresh()
        assert [record.value for record in beside[NAME].read()] == [b"a", b"B", b"c", b"d"]
        away.rename(txn_index_of(log_dir))


@pytest.mark.parametrize("commit", [True, False])
def test_a_follower_learns_of_an_end_in_a_segment_that_it_never_saw(
    log_dir: Path, commit: bool
) -> None:
    """A transaction that ended in a segment that was dropped between two looks is not open any more."""
    with Store(log_dir, clock=lambda: NOW) as store, Store(log_dir, read_only=True) as beside:
        orders = store.create(NAME)
        producer = Producer(orders, 7)
        producer.send("a")
        beside.refresh()
        assert [*beside[NAME].committed.read()] == []
        producer.end(commit=commit)
        orders.roll(NOW)
        orders.append([b"later"])
        store.delete_records(NAME, 2)
        store.retain()
        assert orders.segments[0].base_offset == 2
        beside.refresh()
        assert [record.value for record in beside[NAME].committed.read()] == [b"later"]
        assert beside[NAME].committed.text(View.LINES).read(0, 100) == b"later\n"


def age(log_dir: Path) -> None:
    """Make the .log files of the partition ten seconds old, so that their mtimes show every later change."""
    then = time.time() - 10
    for path in (log_dir / NAME).glob("*.log"):
        os.utime(path, (then, then))


@pytest.mark.parametrize("commits", [True, False])
def test_a_follower_sees_a_segment_that_was_cut_and_sealed_again(
    log_dir: Path, commits: bool
) -> None:
    """A truncation and a roll at the same offset between two looks: the follower shows what is in the log now."""
    with Store(log_dir, clock=lambda: NOW) as store, Store(log_dir, read_only=True) as beside:
        orders = store.create(NAME)
        producer = Producer(orders, 1)
        orders.append([b"one"])
        producer.send("k")
        producer.end(commit=not commits)
        orders.roll(NOW)
        age(log_dir)
        beside.refresh()
        seen = beside[NAME]
        assert len([*seen.committed.read()]) == (1 if commits else 2)
        store.truncate(NAME, 2)
        producer.end(commit=commits)
        orders.roll(NOW)
        orders.append([b"more"])
        beside.refresh()
        expected = [record.value for record in orders.committed.read()]
        assert [record.value for record in seen.committed.read()] == expected
        assert expected == ([b"one", b"k of 1", b"more"] if commits else [b"one", b"more"])


def test_a_follower_reads_other_bytes_in_a_segment_that_was_sealed_again(log_dir: Path) -> None:
    """The segment ends at the same offset as before, but has longer records."""
    with Store(log_dir, clock=lambda: NOW) as store, Store(log_dir, read_only=True) as beside:
        orders = store.create(NAME)
        orders.append([b"one"])
        orders.append([b"two", b"three"])
        orders.roll(NOW)
        age(log_dir)
        beside.refresh()
        assert len([*beside[NAME].read()]) == 3
        store.truncate(NAME, 1)
        orders.append([b"TWO" + b"x" * 50, b"THREE" + b"x" * 50])
        orders.roll(NOW)
        beside.refresh()
        assert [r.value for r in beside[NAME].read()] == [r.value for r in orders.read()]


@pytest.mark.parametrize("commits_first", [True, False])
def test_the_keys_of_a_follower_after_a_truncation_that_opens_a_transaction(
    log_dir: Path, commits_first: bool
) -> None:
    """Committed records are looked up as they are now: while the transaction is open, and after its other end."""
    with Store(log_dir, clock=lambda: NOW) as store, Store(log_dir, read_only=True) as beside:
        orders = store.create(NAME)
        orders.append([Record(b"old", key=b"k")])
        first, second = Producer(orders, 1), Producer(orders, 2)
        first.send("k")
        orders.append([b"x"])
        second.send("j")
        marker = first.end(commit=commits_first)
        beside.refresh()
        committed = beside[NAME].committed
        assert committed.newest(b"k").value == (b"k of 1" if commits_first else b"old")
        store.truncate(NAME, marker)
        beside.refresh()
        assert committed.newest(b"k").value == b"old"
        first.end(commit=not commits_first)
        second.end(commit=True)
        for _ in range(5):
            orders.append([Record(b"z", key=b"q")])
        beside.refresh()
        assert committed.newest(b"k").value == (b"old" if commits_first else b"k of 1")
        assert orders.committed.newest(b"k").value == committed.newest(b"k").value


@pytest.mark.parametrize("is_committed", [True, False])
def test_an_open_text_of_a_follower_loses_no_record_silently(
    log_dir: Path, is_committed: bool
) -> None:
    """Records that compaction has merged into a segment that the text has passed are an error of the text."""
    with Store(log_dir, clock=lambda: NOW) as store, Store(log_dir, read_only=True) as beside:
        store.settings.set_topic("orders", "cleanup.policy", "compact")
        orders = store.create(NAME)
        for number, key in enumerate([b"a", b"b", b"a"]):
            orders.append([Record(b"%d" % number, key=key)])
        beside.refresh()
        log = beside[NAME]
        text = (log.committed if is_committed else log).text(View.LINES)
        assert text.read(0, 100) == b"0\n1\n2\n"
        orders.roll(NOW)
        orders.append([Record(b"X", key=b"c")])
        store.compact(NAME, roll=True)
        orders.append([Record(b"Y", key=b"d")])
        beside.refresh()
        with pytest.raises(Gone):
            text.read(0, 100)
        again = (log.committed if is_committed else log).text(View.LINES)
        assert again.read(0, 100) == b"1\n2\nX\nY\n"


def test_a_look_during_a_truncation_does_not_outlive_it(
    orders: Partition, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a truncation whose markers were replaced by others, exactly the records committed then are shown."""
    sync_directory = Disk.sync_directory
    assert orders.truncate(7)
    orders.append_batch(batch(3, 0, b"H", transactional=True))
    orders.end_transaction(3, 0, commit=False)
    assert values(orders) == [b"a", b"c", b"D", b"e"]

    def look(disk: Disk, path: Path) -> None:
        monkeypatch.undo()
        values(orders)
        sync_directory(disk, path)

    monkeypatch.setattr(Disk, "sync_directory", look)
    assert orders.truncate(8)
    orders.end_transaction(3, 0, commit=True)
    orders.append_batch(batch(4, 0, b"I", transactional=True))
    orders.end_transaction(4, 0, commit=False)
    assert values(orders) == [b"a", b"c", b"D", b"e", b"H"]


def test_a_look_keeps_no_file_of_a_segment_that_left_the_log(store: Store, clock: Clock) -> None:
    """Retention gives space back, also if nobody reads the log again."""
    set_topic(store, "orders", segment_bytes=1000)
    orders = store.create(NAME)
    for number in range(20):
        orders.append_batch(batch(1, number, b"x" * 400, transactional=True))
    orders.end_transaction(1, 0, commit=False)
    assert values(orders) == []
    store.delete_records(NAME, -1)
    store.retain()
    clock.now_ms += 24 * 3600 * 1000
    store.upkeep()
    assert not list(orders.directory.glob("*.deleted"))
    assert len(list(orders.directory.glob("*.log"))) == 1


def test_a_wrong_stable_offset_in_a_transaction_index_hides_no_abort(
    store: Store, orders: Partition, log_dir: Path
) -> None:
    """The text is that of before, and the check tells of it."""
    for number in range(2, 12):
        orders.append_batch(batch(1, number, b"x%d" % number, transactional=True))
        orders.end_transaction(1, 0, commit=number % 3 != 0)
    orders.end_transaction(2, 0, commit=False)
    shown = lines(orders)
    path = orders.segments[-1].txn_index.path
    store.close()
    # The last stable offset of the first entry.
    whole = path.read_bytes()
    flip(path, 26)
    with Store(log_dir, read_only=True) as live:
        reader = live[NAME].committed
        assert reader.text(View.LINES).read(0, 1 << 20) == shown
    assert any("last stable offset" in each for each in errors_of([log_dir]))
    path.write_bytes(whole)
