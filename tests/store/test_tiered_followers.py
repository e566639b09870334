"""Readers beside a tiered store find its remote segments, whenever and with whichever directories they are opened."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

from logfs.errors import InvalidStore, RemoteStorageError
from logfs.store.store import Store
from logfs.store.tiering.bucket_owner import FILE_NAME
from tests.store.test_tiering import fill, tier, tiered
from tests.support.command_line import ok
from tests.support.stores import Clock, abandon, set_topic

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from logfs.log.append.partition import Partition


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache directory that is empty at first."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def bucket(tmp_path: Path) -> Path:
    """The directory that stands for the bucket."""
    path = tmp_path / "bucket"
    path.mkdir()
    return path


@pytest.fixture
def spread(log_dir: Path, bucket: Path, tmp_path: Path, clock: Clock) -> Iterator[Store]:
    """A store with two log directories: a tiered partition in one, and its descriptions in the other."""
    with Store([log_dir, tmp_path / "other"], clock=clock) as store:
        fill(tiered(store, bucket))
        tier(store)
        if store.home("orders-0") == store.home(described(store)):
            store.move("orders-0", other_than(store, store.home("orders-0")))
        assert store["orders-0"].local_start_offset
        yield store


def described(store: Store) -> str:
    """Return the name of the partition with the descriptions."""
    return next(name for name in store.homes if name.startswith("__remote_log_metadata-"))


def other_than(store: Store, path: Path) -> Path:
    return next(each.path for each in store.log_dirs if each.path != path)


def values(partition: Partition) -> list[bytes | None]:
    return [record.value for record in partition.read()]


@pytest.mark.parametrize("is_live", [True, False])
def test_descriptions_in_another_log_directory_are_found(
    spread: Store, clock: Clock, is_live: bool
) -> None:
    """By a read-only store of the partition's own directory, also when it is opened for this partition alone.

    It follows what is copied and dropped later.
    """
    home = spread.home("orders-0")
    expected = values(spread["orders-0"])
    if not is_live:
        spread.close()
    for only in (None, "orders-0"):
        with Store(home, read_only=True, clock=clock, only=only) as reading:
            assert list(reading) == ["orders-0"]
            assert values(reading["orders-0"]) == expected
            if is_live:
                fill(spread["orders-0"])
                tier(spread)
                expected = values(spread["orders-0"])
                reading["orders-0"].refresh()
                assert values(reading["orders-0"]) == expected
                spread.move(described(spread), other_than(spread, spread.home(described(spread))))
                spread.move(described(spread), other_than(spread, home))
                fill(spread["orders-0"])
                tier(spread)
                expected = values(spread["orders-0"])
                reading["orders-0"].refresh()
                assert values(reading["orders-0"]) == expected


def test_the_command_prints_all_of_a_log(spread: Store) -> None:
    """`logfs cat` of a partition whose descriptions are in another log directory."""
    path = spread.home("orders-0") / "orders-0"
    expected = b"".join(b"%s\n" % value for value in values(spread["orders-0"]) if value)
    assert ok("cat", path).encode() == expected


@pytest.mark.parametrize("is_live", [True, False])
def test_descriptions_that_are_out_of_reach_are_an_error(
    spread: Store, tmp_path: Path, clock: Clock, is_live: bool
) -> None:
    """As in a copy of one log directory: what is not there is never passed over in silence."""
    spread["orders-0"].flush()
    twin = tmp_path / "twin"
    shutil.copytree(spread.home("orders-0"), twin)
    (twin / FILE_NAME).unlink()
    with Store(twin, clock=clock) as holder:
        if not is_live:
            holder.close()
        with Store(twin, read_only=True, clock=clock) as reading:
            partition = reading["orders-0"]
            assert partition.log_start_offset == 0
            with pytest.raises(RemoteStorageError, match="open the log directory with the one"):
                list(partition.read())
            with pytest.raises(RemoteStorageError):
                partition.record(10)
        if is_live:
            abandon(holder)


def test_descriptions_are_not_begun_twice(spread: Store, clock: Clock) -> None:
    """A store that is opened for writing without the log directory that has them copies nothing."""
    paths = [each.path for each in spread.log_dirs]
    home, name = spread.home("orders-0"), described(spread)
    expected = values(spread["orders-0"])
    spread.close()
    with Store(home, clock=clock) as alone:
        fill(alone["orders-0"])
        with pytest.raises(InvalidStore, match=name):
            alone.tier("orders-0")
    with Store(paths, clock=clock) as again:
        assert values(again["orders-0"])[: len(expected)] == expected
        assert again.tier("orders-0")


@pytest.mark.parametrize("only", [None, "orders-0"])
@pytest.mark.parametrize("since", ["nothing", "url", "settings"])
@pytest.mark.parametrize("refreshes", [False, True])
def test_a_reader_that_was_opened_before_the_first_copy_learns_of_it(
    log_dir: Path, bucket: Path, clock: Clock, only: str | None, since: str, refreshes: bool
) -> None:
    """Whatever was set by then, and whether the partition is looked at alone or the whole store is refreshed."""
    with Store(log_dir, clock=clock) as store:
        if since == "nothing":
            set_topic(store, "orders", segment_bytes=4000, index_interval_bytes=300)
            store.create("orders-0")
        elif since == "url":
            store.settings.set_broker("remote.storage.url", f"file://{bucket}")
            set_topic(store, "orders", segment_bytes=4000, index_interval_bytes=300)
            store.create("orders-0")
        else:
            tiered(store, bucket)
        fill(store["orders-0"])
        with Store(log_dir, read_only=True, clock=clock, only=only) as reading:
            partition = reading["orders-0"]
            expected = values(partition)
            store.settings.set_broker("remote.storage.url", f"file://{bucket}")
            set_topic(store, "orders", retention_ms=-1, local_retention_ms=-1)
            set_topic(store, "orders", remote_storage_enable="true", local_retention_bytes=5000)
            tier(store)
            assert store["orders-0"].local_start_offset
            if refreshes:
                reading.refresh()
            partition.refresh()
            assert partition.log_start_offset == 0
            assert values(partition) == expected
            fill(store["orders-0"])
            tier(store)
            partition.refresh()
            assert values(partition) == values(store["orders-0"])
