"""Readers beside a tiered store find its remote segments, whenever and with whichever directories they are opened."""

from __future__ import annotations

import os
import pickle
import shutil
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from logfs.errors import InvalidStore, RemoteStorageError
from logfs.log.disk.disk import Gone
from logfs.log.remote import disks
from logfs.log.scan import scan_split
from logfs.log.segment.batch_iterator import DamagedRange
from logfs.store.store import Store
from logfs.store.tiering.bucket_owner import FILE_NAME
from tests.store.test_tiering import fill, tier, tiered
from tests.support.bucket import put_aiven, sealed_segments
from tests.support.command_line import ok
from tests.support.examples import seed_of
from tests.support.object_server import BUCKET
from tests.support.requirements import DEEP
from tests.support.stores import Clock, abandon, set_topic

if TYPE_CHECKING:
    from collections.abc import Iterator

    from logfs.log.append.partition import Partition
    from tests.support.object_server import ObjectServer


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
        if store.registry.home("orders-0") == store.registry.home(described(store)):
            store.move("orders-0", other_than(store, store.registry.home("orders-0")))
        assert store["orders-0"].local_start_offset
        yield store


def described(store: Store) -> str:
    """Return the name of the partition with the descriptions."""
    return next(name for name in store.registry.homes if name.startswith("__remote_log_metadata-"))


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
    home = spread.registry.home("orders-0")
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
                spread.move(
                    described(spread), other_than(spread, spread.registry.home(described(spread)))
                )
                spread.move(described(spread), other_than(spread, home))
                fill(spread["orders-0"])
                tier(spread)
                expected = values(spread["orders-0"])
                reading["orders-0"].refresh()
                assert values(reading["orders-0"]) == expected


def test_the_command_prints_all_of_a_log(spread: Store) -> None:
    """`logfs cat` of a partition whose descriptions are in another log directory."""
    path = spread.registry.home("orders-0") / "orders-0"
    expected = b"".join(b"%s\n" % value for value in values(spread["orders-0"]) if value)
    assert ok("cat", path).encode() == expected


@pytest.mark.parametrize("is_live", [True, False])
def test_descriptions_that_are_out_of_reach_are_an_error(
    spread: Store, tmp_path: Path, clock: Clock, is_live: bool
) -> None:
    """As in a copy of one log directory: what is not there is never passed over in silence."""
    spread["orders-0"].flush()
    twin = tmp_path / "twin"
    shutil.copytree(spread.registry.home("orders-0"), twin)
    (twin / FILE_NAME).unlink()
    with Store(twin, clock=clock) as holder:
        if not is_live:
            holder.close()
        with Store(twin, read_only=True, clock=clock) as reading:
            partition = reading["orders-0"]
            assert partition.log_start_offset == 0
            with pytest.raises(RemoteStorageError, match="also open the log directory"):
                list(partition.read())
            with pytest.raises(RemoteStorageError):
                partition.record(10)
        if is_live:
            abandon(holder)


def test_descriptions_are_not_begun_twice(spread: Store, clock: Clock) -> None:
    """A store that is opened for writing without the log directory that has them copies nothing."""
    paths = [each.path for each in spread.log_dirs]
    home, name = spread.registry.home("orders-0"), described(spread)
    expected = values(spread["orders-0"])
    spread.close()
    with Store(home, clock=clock) as alone:
        fill(alone["orders-0"])
        with pytest.raises(InvalidStore, match=name):
            alone.tier("orders-0")
    with Store(paths, clock=clock) as again:
        assert values(again["orders-0"])[: len(expected)] == expected
        assert again.tier("orders-0")


@pytest.mark.drawn(4)
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


def test_records_that_were_deleted_before_they_were_copied_are_not_missing(
    log_dir: Path, bucket: Path, clock: Clock
) -> None:
    """A reader that looks at the partition alone still has the old log start; nothing describes these records."""
    with Store(log_dir, clock=clock) as store:
        orders = tiered(store, bucket)
        fill(orders)
        tier(store)
        with Store(log_dir, read_only=True, clock=clock) as reading:
            partition = reading["orders-0"]
            assert values(partition) == values(orders)
            fill(orders)
            start = orders.segments[-1].base_offset
            copied = store.tiered.of(orders)
            assert copied is not None
            assert copied.end_offset < orders.segments[-2].base_offset
            store.delete_records("orders-0", start)
            # Before the copies are deleted in the bucket.
            store.retainer.retain(["orders-0"])
            assert orders.segments[0].base_offset == start
            partition.refresh()
            assert partition.log_start_offset == start
            assert values(partition) == values(orders)


def test_the_command_asks_only_for_what_it_reads(
    log_dir: Path, server: ObjectServer, clock: Clock
) -> None:
    """`logfs cat` of a tiered log lists nothing, and reads no topic of the same name in the bucket."""
    url = f"s3://{BUCKET}/tiered"
    with Store(log_dir, clock=clock) as store:
        store.settings.set_broker("remote.storage.prefix", "first-")
        fill(tiered(store, url))
        tier(store)
        expected = values(store["orders-0"])
        count = len(store["orders-0"].segments)
    _put_newer_topic(server, log_dir)
    ways: tuple[tuple[str, ...], ...] = (
        (),
        ("--since", "1970-01-02"),
        ("--grep", "value"),
        ("-F", "%s\n"),
    )
    for number, words in enumerate(ways, seed_of()):
        # In a deep campaign, each way with both; otherwise with one.
        for target in ("orders-0", "orders") if DEEP else (("orders-0", "orders")[number % 2],):
            server.requests.clear()
            _clear_cache()
            printed = ok("cat", log_dir / target, *words)
            assert printed.encode() == b"".join(b"%s\n" % value for value in expected if value)
            assert not [each for each in server.requests if not each.key], (words, target)
            assert all("first-orders-" in each.key for each in server.requests)
            assert len(server.requests) <= 4 * count


def _put_newer_topic(server: ObjectServer, log_dir: Path) -> None:
    """Store the copies of another topic of the same name, as a broker does, after those of the store."""
    segment = next(sealed_segments(log_dir / "orders-0", 1000))
    for prefix in ("tiered/first-", "tiered/", ""):
        put_aiven(server.put, log_dir / "orders-0", segment, uuid.uuid4(), prefix=prefix)


def _clear_cache() -> None:
    shutil.rmtree(Path(os.environ["XDG_CACHE_HOME"]), ignore_errors=True)


def test_a_description_is_read_in_another_process(
    log_dir: Path, server: ObjectServer, clock: Clock
) -> None:
    """A split can be pickled, and reads the described segment; it is `Gone` once the object was deleted."""
    with Store(log_dir, clock=clock) as store:
        partition = tiered(store, f"s3://{BUCKET}/tiered")
        fill(partition)
        tier(store)
        splits = list(scan_split.plan(partition, 0, 1000, split_bytes=1000))
        assert sum(each.segment.tiered is not None for each in splits) > 5
        loaded = [pickle.loads(pickle.dumps(each)) for each in splits]
        assert loaded == splits
        server.requests.clear()
        found: list[int] = []
        for each in loaded:
            for columns in scan_split.read(each):
                assert not isinstance(columns, DamagedRange)
                found += columns.offsets.tolist()
        assert found == list(range(1000))
        assert not [each for each in server.requests if not each.key]
        _clear_cache()
        stored = {key: server.stored(key) for key in server.stored_keys()}
        for key in stored:
            server.delete(key)
        disks.tiered_disk.cache_clear()
        with pytest.raises(Gone):
            scan_split.read(loaded[0])
        for key, data in stored.items():
            server.put(key, data)
        assert not loaded[0].segment.has_left(partition)
        store.delete_records("orders-0", 500)
        store.retain()
        assert loaded[0].segment.has_left(partition)
