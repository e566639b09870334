"""A store of which some log directories are not open or have failed: what it cannot know it refuses or leaves."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from logfs.errors import InvalidStore, LogDirFailed, UnknownPartition
from logfs.format.batches.record import Record
from logfs.log.disk.disk import Disk
from logfs.store.directory.topic_id import read_topic_id
from logfs.store.store import Store
from tests.support.command_line import fails
from tests.support.stores import Clock, abandon, assert_clean, set_topic

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

MINUTE = 61_000


@pytest.fixture
def two(tmp_path: Path) -> Iterator[list[Path]]:
    """Two log directories of one store, audited at the end."""
    paths = [tmp_path / "a", tmp_path / "b"]
    yield paths
    assert_clean(*paths)


def fail(store: Store, path: Path) -> None:
    """Let a log directory fail, as if its disk had been taken out."""
    (path / ".lock").unlink()
    store.upkeep()
    assert [failed.path for failed in store.log_dirs if failed.failure] == [path]


def place(store: Store, name: str, path: Path) -> None:
    """Move a partition to a log directory, and let its old directory be removed."""
    if store.registry.home(name) != path:
        store.move(name, path)


@pytest.mark.parametrize("which", [0, 1])
def test_a_transaction_waits_for_a_partition_that_is_not_open(
    two: list[Path], clock: Clock, which: int
) -> None:
    """Its markers are written when all log directories are open again: none is missing then."""
    store = Store(two, clock=clock)
    for name, path in (("x-0", two[0]), ("y-0", two[1])):
        store.create(name)
        place(store, name, path)
    transaction = store.transactions.begin("id")
    transaction.append("x-0", [b"x"])
    transaction.append("y-0", [b"y"])
    abandon(store)
    with Store(two[which], clock=clock) as alone:
        clock.now_ms += MINUTE
        alone.upkeep()
    with Store(two, clock=clock) as store:
        for name in ("x-0", "y-0"):
            assert store[name].last_stable_offset == store[name].log_end_offset == 2
            assert not list(store[name].committed.read())


def test_a_topic_keeps_settings_that_cannot_be_removed_everywhere(
    two: list[Path], clock: Clock
) -> None:
    """Its last partition is not deleted: a later topic of the name would have the old settings."""
    with Store(two, clock=clock) as store:
        set_topic(store, "keys", cleanup_policy="compact")
        name = store.create("keys-0").name.directory
        home = store.registry.home(name)
        other = two[home == two[0]]
        store.create("rest-0")
        fail(store, other)
        with pytest.raises(LogDirFailed, match=str(other)):
            store.delete(name)
        store[name].append([Record(b"more", b"k")])
    with Store(home, clock=clock) as store, pytest.raises(InvalidStore, match="open all log dir"):
        store.delete(name)
    with Store(two, clock=clock) as store:
        assert store["keys-0"].config.cleanup_policy == {"compact"}
        store.delete(name)
        store.create("keys-0").append([b"no key"])
        assert store["keys-0"].config.cleanup_policy == {"delete"}


def test_a_partition_that_is_not_open_is_not_made_again(two: list[Path], clock: Clock) -> None:
    """Nor does a topic get a second id."""
    with Store(two, clock=clock) as store:
        store.topic("orders").create(2)
        homes = {name: store.registry.home(name) for name in store}
        assert len({*homes.values()}) == 2
        topic_id = store.registry.topic_id("orders")
    with Store(homes["orders-0"], clock=clock) as alone:
        where = f"it is in {homes['orders-1']}, a log directory of this store that is not open"
        with pytest.raises(InvalidStore, match=f"orders-1: {where}"):
            alone.create("orders-1")
        with pytest.raises(UnknownPartition, match=f"no such partition; {where}"):
            alone["orders-1"]
        directory = alone.create("orders-2").directory
        assert read_topic_id(Disk(), directory) == topic_id
    assert f"orders-1: {where}" in fails("cat", homes["orders-0"] / "orders-1")
    with Store(two, clock=clock) as store:
        store.delete("orders-2")
        store.delete("orders-0")
        fail(store, homes["orders-1"])
        with pytest.raises(LogDirFailed):
            store.create("orders-3")
