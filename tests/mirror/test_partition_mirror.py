"""The copy of a partition takes what its leader answers, and stays a log without damage, whatever the leader lost."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

import logfs
from logfs.cluster.cluster import NONE, EpochEnd
from logfs.format.text.rendering import View
from logfs.log.append.fetched_batches import append_fetched
from logfs.log.read.text_view import TextView
from logfs.mirror.partition_mirror import PartitionMirror
from logfs.mount.nodes.offsets import first_offsets
from logfs.store.store import Store
from tests.mirror.fake_cluster import NODE, FakeCluster
from tests.support.command_line import ok
from tests.support.examples import examples
from tests.support.partitions import offsets, raw_batch
from tests.support.stores import Clock, assert_clean, set_topic

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from logfs.log.append.partition import Partition

NAME = "orders-0"
SOURCE = FakeCluster.cluster_id


class Pair(NamedTuple):
    """A log with batches of ten records, and its copy."""

    cluster: FakeCluster
    source: Partition
    copies: Store
    mirror: PartitionMirror
    clock: Clock

    @property
    def copy(self) -> Partition:
        return self.mirror.partition

    def append(self, batches: int) -> None:
        """Append batches of ten records to the source."""
        for _ in range(batches):
            first = self.source.log_end_offset
            self.source.append([logfs.Record(b"value %d" % n) for n in range(first, first + 10)])

    def turn(self) -> None:
        """Compare or fetch once, as a fetcher does."""
        wanted = [self.mirror.wanted()]
        if self.mirror.must_compare:
            (end,) = self.cluster.epoch_ends(NODE, wanted)
            self.mirror.compare(end, {"orders": None}, self.cluster)  # type: ignore[arg-type]
        else:
            self.mirror.take(*self.cluster.fetch(NODE, wanted), self.cluster)  # type: ignore[arg-type]

    def follow(self) -> None:
        """Fetch until the copy ends where the source ends."""
        for _ in range(10):
            if self.copy.log_end_offset == self.source.log_end_offset:
                break
            self.turn()
        self.turn()
        self.turn()
        assert not self.mirror.problem
        assert self.copy.log_end_offset == self.source.log_end_offset


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def stores(tmp_path: Path, clock: Clock) -> Iterator[tuple[Store, Store]]:
    """The store of the source, and that of the copy, which are audited at the end."""
    with Store(tmp_path / "source") as source, Store(tmp_path / "copy", clock=clock) as copies:
        yield source, copies
        copies.retain()
    assert_clean(tmp_path / "copy")


def mirror_of(copies: Store) -> PartitionMirror:
    """Return a mirror into a copy, as after a start."""
    mirror = PartitionMirror(copies, copies[NAME], SOURCE)
    mirror.follow(NODE, 0)
    return mirror


@pytest.fixture(params=["local", "tiered"])
def pair(
    request: pytest.FixtureRequest,
    stores: tuple[Store, Store],
    clock: Clock,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Pair:
    """A source of 80 records with its whole copy, which has several segments, most of them in a bucket if tiered."""
    source, copies = stores
    source.create(NAME)
    if request.param == "tiered":
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
        (tmp_path / "bucket").mkdir()
        copies.settings.set_broker("remote.storage.url", f"file://{tmp_path / 'bucket'}")
        set_topic(copies, "orders", remote_storage_enable="true", local_retention_bytes=600)
    set_topic(copies, "orders", segment_bytes=500, logfs_mirror_source=SOURCE)
    copies.create(NAME, mirror_of=SOURCE)
    made = Pair(FakeCluster(source), source[NAME], copies, mirror_of(copies), clock)
    made.append(8)
    made.follow()
    if request.param == "tiered":
        copies.tier(NAME)
        copies.retain()
        assert made.copy.segments[1].is_tiered
    assert len(made.copy.local_segments) > 1
    return made


def check_observers(pair: Pair, directory: Path) -> None:
    """Every way of reading shows the records of the source, and no damage."""
    # Another process learns where the log starts once that is in the checkpoint.
    pair.clock.now_ms += 61_000
    pair.copies.upkeep()
    wanted = offsets(pair.source)
    assert offsets(pair.copy) == wanted
    assert offsets(pair.copy.committed) == wanted  # type: ignore[arg-type]
    with Store(directory, read_only=True) as store:
        assert offsets(store[NAME]) == wanted
        assert list(store[NAME].read()) == list(pair.copy.read())
        assert set(first_offsets(store[NAME])) <= set(wanted)
        text = b"".join(b"value %d\n" % n for n in wanted)
        view = TextView(store[NAME], View.LINES)
        assert (view.size, view.read(0, view.size)) == (len(text), text)
    lines = "".join(f"{n} value {n}\n" for n in wanted)
    assert ok("cat", directory / NAME, "--format", "%o %s\n") == lines
    assert_clean(directory)


@pytest.mark.parametrize("start", [85, 90, 95, 100])
def test_a_copy_begins_where_the_source_begins_now(pair: Pair, tmp_path: Path, start: int) -> None:
    """Deletion at the source has passed the end of the copy, also into a batch: no reader finds a hole, ever."""
    pair.append(2)
    pair.cluster.source.delete_records(NAME, start)
    pair.follow()
    assert pair.copy.log_start_offset == start
    check_observers(pair, tmp_path / "copy")
    pair.append(1)
    pair.follow()
    check_observers(pair, tmp_path / "copy")


def reopened(pair: Pair, copies: Store) -> Pair:
    """Return the pair with the copy in a store that was opened after this one."""
    return pair._replace(copies=copies, mirror=mirror_of(copies))


def test_a_copy_begins_again_after_any_crash(pair: Pair, tmp_path: Path) -> None:
    """The process dies at each step of beginning where the source begins: the next one comes to the same log."""
    pair.append(2)
    pair.cluster.source.delete_records(NAME, 95)
    directory = tmp_path / "copy"
    for turns in range(1, 5):
        crashed = tmp_path / f"crashed-{turns}"
        pair.turn()
        shutil.copytree(directory, crashed, ignore=shutil.ignore_patterns(".lock"))
        with Store(crashed, clock=pair.clock) as store:
            assert all(record.offset >= 80 or turns == 1 for record in store[NAME].read())
            again = reopened(pair, store)
            again.follow()
            check_observers(again, crashed)


def test_a_copy_with_a_hole_is_mended(pair: Pair, tmp_path: Path) -> None:
    """A copy that earlier versions left with a hole before an empty segment goes on, without records of before."""
    directory = tmp_path / "copy"
    pair.copies.checkpoints.set_cleaner_offset(pair.copy, 0)
    pair.copies.close()
    (directory / NAME / f"{95:020}.log").touch()
    pair.append(2)
    pair.cluster.source.delete_records(NAME, 95)
    with Store(directory, clock=pair.clock) as store:
        mended = reopened(pair, store)
        assert mended.copy.log_end_offset == 95
        mended.follow()
        check_observers(mended, directory)


def test_nothing_is_dropped_if_the_leader_knows_no_such_epoch(pair: Pair) -> None:
    """A leader all of whose epochs are lower tells nothing about the records here: they stay, and it is an error."""
    pair.copy.epochs.assign(7, 40)
    for _ in range(3):
        pair.turn()
    assert "none of its leader epochs is as high as 7" in pair.mirror.problem
    assert offsets(pair.copy) == [*range(80)]
    pair.append(2)
    pair.cluster.source.delete_records(NAME, 90)
    pair.follow()
    assert offsets(pair.copy) == [*range(90, 100)]


def test_a_leader_that_tells_no_epoch_is_followed_by_the_end_offset(pair: Pair) -> None:
    """Version 0 of the request answers without an epoch: what follows the end offset is dropped, and no more."""
    end = EpochEnd("orders", 0, NONE, -1, 70)
    pair.mirror.compare(end, {"orders": None}, pair.cluster)  # type: ignore[arg-type]
    assert offsets(pair.copy) == [*range(70)]
    pair.follow()
    assert offsets(pair.copy) == [*range(80)]


# Batches of two records in each leader epoch, as (epoch, batches).
History = list[tuple[int, int]]
histories = st.lists(st.tuples(st.integers(1, 9), st.integers(1, 3)), max_size=4).map(
    lambda found: sorted(dict(found).items())
)


def write_as(partition: Partition, history: History, text: str) -> None:
    """Append the batches of a history; `text` tells them from those of another one."""
    for epoch, batches in history:
        for _ in range(batches):
            base = partition.log_end_offset
            values = [logfs.Record(f"{text} {n}".encode()) for n in (base, base + 1)]
            source = partition.config.logfs_mirror_source
            append_fetched(partition, raw_batch(values, base, epoch), source=source)


@examples(0.3)
@given(shared=histories, ours=histories, theirs=histories)
def test_two_histories_agree_again_where_they_differ(
    tmp_path_factory: pytest.TempPathFactory, shared: History, ours: History, theirs: History
) -> None:
    """Whatever leaders wrote after a common beginning: the copy becomes the source's log, and keeps the beginning."""
    directory = tmp_path_factory.mktemp("histories")
    with Store(directory / "source") as source, Store(directory / "copy") as copies:
        set_topic(copies, "orders", logfs_mirror_source=SOURCE)
        for store in (source, copies):
            store.create(NAME, mirror_of=None if store is source else SOURCE)
        copy = copies[NAME]
        common = sum(2 * batches for _, batches in shared)
        first = max((epoch for epoch, _ in shared), default=0)
        # An epoch has one leader, so its records differ nowhere. The leader of the source is the newest one.
        for log, left, text in ((copy, ours, "ours"), (source[NAME], theirs, "theirs")):
            odd = text == "ours"
            write_as(log, shared, "shared")
            write_as(log, [(2 * (first + epoch) + odd, count) for epoch, count in left], text)
        write_as(source[NAME], [(100, 1)], "newest")
        pair = Pair(FakeCluster(source), source[NAME], copies, mirror_of(copies), Clock())
        lowest = copy.log_end_offset
        for _ in range(30):
            pair.turn()
            lowest = min(lowest, copy.log_end_offset)
        assert lowest >= common
        assert list(copy.read()) == list(source[NAME].read())
        assert copy.epochs.entries == source[NAME].epochs.entries
    assert_clean(directory / "copy")
