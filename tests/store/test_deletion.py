"""Deleted partitions: they come back, with all that belongs to them, until `file.delete.delay.ms` has passed."""

from __future__ import annotations

import errno
import shutil
import uuid
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from logfs.errors import (
    Corrupt,
    InvalidStore,
    NotWritable,
    PartitionExists,
    PartitionFailed,
    UnknownPartition,
)
from logfs.format.batches.record import Record
from logfs.format.text.rendering import View
from logfs.log.disk.disk import Disk
from logfs.store.admin.requests import Delete, Undelete
from logfs.store.maintenance.deletion import Deleter, Deletion
from logfs.store.store import Store
from tests.support.examples import drawn
from tests.support.partitions import offsets
from tests.support.stores import Clock, abandon, assert_clean, set_topic

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

DELAY = 60_000


def fill(store: Store) -> None:
    """Make a topic with settings, commits, deleted and compacted records."""
    set_topic(store, "keys", cleanup_policy="compact,delete", segment_bytes=1000)
    set_topic(store, "keys", min_cleanable_dirty_ratio="1.0")
    for number in range(2):
        keys = store.create(f"keys-{number}")
        for n in range(40):
            keys.append([Record(b"%d" % n, b"k%d" % (n % 7))])
        store.delete_records(f"keys-{number}", 20)
        store.compact(f"keys-{number}")
        store.groups.commit("g", f"keys-{number}", 30 + number, "where")
    store.topic("keys").flush()


def state(store: Store) -> dict[str, object]:
    """Return what a deletion takes away."""
    return {
        name: (
            offsets(store[name]),
            store[name].log_start_offset,
            store.checkpoints.cleaner_offset(name),
            store.groups.of(name),
            dict(store.settings.topic_overrides(store[name].topic)),
            store.registry.topic_id(store[name].topic),
        )
        for name in ("keys-0", "keys-1")
    }


@pytest.mark.parametrize("between", ["nothing", "reopened", "killed"])
def test_a_topic_comes_back_as_it_was(log_dir: Path, clock: Clock, between: str) -> None:
    """Records, log start, cleaner offset, commits, settings and topic id, also in a store that was opened again."""
    store = Store(log_dir, clock=clock)
    fill(store)
    before = state(store)
    store.topic("keys").delete()
    assert "keys-0" not in store
    assert not store.settings.topic_overrides("keys")
    assert not store.groups.of("keys-1")
    clock.now_ms += DELAY - 1
    store.upkeep()
    if between != "nothing":
        abandon(store) if between == "killed" else store.close()
        store = Store(log_dir, clock=clock)
        store.upkeep()
    with store:
        assert [each.name.directory for each in store.topic("keys").undelete()] == [
            "keys-0",
            "keys-1",
        ]
        assert state(store) == before
        store["keys-0"].append([Record(b"more", b"k")])
        after = state(store)
        clock.now_ms += DELAY
        store.upkeep()
    assert not list(log_dir.glob("*-delete"))
    with Store(log_dir, clock=clock) as store:
        assert state(store) == after
        assert not list(log_dir.rglob("deletion.json"))


class Killed(BaseException):
    """Ends a store as a kill of its process would."""


def changes_until_killed(log_dir: Path, clock: Clock, most: int, *, deletes: bool) -> int:
    """Delete a topic, or bring it back, killed after `most` changes on the disk; return how many there were."""
    store = Store(log_dir, clock=clock)
    fill(store)
    before = state(store)
    if not deletes:
        store.topic("keys").delete()
    count = 0

    def counted(do: Callable[..., object]) -> Callable[..., object]:
        def step(*words: object, **more: object) -> object:
            nonlocal count
            if count == most:
                raise Killed
            count += 1
            return do(*words, **more)

        return step

    with pytest.MonkeyPatch.context() as patch, suppress(Killed):
        for change in ("write", "sync", "rename_unsynced", "sync_directory", "unlink"):
            patch.setattr(Disk, change, counted(getattr(Disk, change)))
        store.topic("keys").delete() if deletes else store.topic("keys").undelete()
    abandon(store)
    with Store(log_dir, clock=clock, read_only=True) as store:
        shown = sorted(store), list(store.groups)
    with Store(log_dir, clock=clock) as store:
        # A store that was opened read-only shows what the next opening for writing leaves.
        assert (sorted(store), list(store.groups)) == shown
        if not store.registry.partitions_of("keys"):
            # Nothing is left that another topic of the name would inherit.
            assert not store.settings.topic_overrides("keys")
            assert not store.groups.of("keys-0")
        for name in before:
            if name not in store:
                store.undelete(name)
        assert state(store) == before
    assert_clean(log_dir)
    return count


@pytest.mark.parametrize("deletes", [True, False], ids=["delete", "undelete"])
def test_a_kill_leaves_a_partition_deleted_or_with_all_that_it_had(
    tmp_path: Path, clock: Clock, *, deletes: bool
) -> None:
    """Killed before some of the changes on the disk, and then opened again; in both cases it comes back as it was."""
    total = changes_until_killed(tmp_path / "whole", clock, 1_000_000, deletes=deletes)
    assert total > 20
    for number in drawn(range(total), 5):
        found = changes_until_killed(tmp_path / str(number), clock, number, deletes=deletes)
        assert found == number


def test_nothing_comes_back_after_the_delay(store: Store, clock: Clock, log_dir: Path) -> None:
    """At the end of the delay the partition is lost, whether or not its files are removed already."""
    store.create("orders-0").append([b"x"])
    store.delete("orders-0")
    clock.now_ms += DELAY
    with pytest.raises(UnknownPartition, match=r"cannot be brought back.*no partition can"):
        store.undelete("orders-0")
    store.upkeep()
    assert not list(log_dir.glob("*-delete"))


def test_a_name_that_is_taken_again_is_not_brought_back(store: Store, clock: Clock) -> None:
    """A partition of the name, or a topic with another id, must be deleted first; then the last deletion counts."""
    for value in (b"first", b"second"):
        store.create("orders-0").append([value])
        if value == b"first":
            store.create("orders-1").append([value])
            store.topic("orders").delete()
            clock.now_ms += 1
    with pytest.raises(PartitionExists):
        store.undelete("orders-0")
    with pytest.raises(InvalidStore, match="a new topic orders exists"):
        store.undelete("orders-1")
    store.topic("orders").delete()
    (found,) = store.topic("orders").undelete()
    assert [record.value for record in found.read()] == [b"second"]
    with pytest.raises(UnknownPartition, match="these can: orders-1"):
        store.undelete("orders-9")
    # The directory of the first one can be named.
    with pytest.raises(
        PartitionExists, match=r"delete it first, and then name .*orders-0\.[0-9a-f]+-delete"
    ):
        store.undelete("orders-0")
    (first,) = store.registry.home("orders-0").glob("orders-0.*-delete")
    with pytest.raises(PartitionExists):
        store.undelete(first.name)
    clock.now_ms += 1
    store.delete("orders-0")
    store.undelete(first.name)
    assert [record.value for record in store["orders-0"].read()] == [b"first"]
    # Its topic has the other partition, of the same id.
    assert [each.name.directory for each in store.topic("orders").undelete()] == ["orders-1"]


def test_a_deletion_is_not_finished_without_all_log_directories(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The partition may have been created again in one that is not open now, and its commits are its own."""
    log_dirs = [tmp_path / "a", tmp_path / "b"]
    with Store(log_dirs, clock=clock) as store:
        store.create("orders-0").append([b"x"])
        home = store.registry.home("orders-0")
        other = next(path for path in log_dirs if path != home)
        with monkeypatch.context() as patch:
            # As after a kill: the deletion is not finished.
            patch.setattr(Deleter, "_forget_commits", lambda *_: None)
            write = Deletion.write
            patch.setattr(
                Deletion,
                "write",
                lambda kept, disk, path, **_: write(kept, disk, path, is_finished=False),
            )
            store.delete("orders-0")
        store.create("orders-0").append([b"y"])
        if store.registry.home("orders-0") == home:
            store.move("orders-0", other)
        store.groups.commit("g", "orders-0", 1)
        if store.registry.home("__consumer_offsets-3") == other:
            store.move("__consumer_offsets-3", home)
    with Store(home, clock=clock) as store:
        assert "orders-0" not in store
        assert store.groups.committed("g", "orders-0") is not None
    with Store(log_dirs, clock=clock) as store:
        assert store.groups.committed("g", "orders-0") is not None


@pytest.mark.parametrize("count", [1, 2])
def test_a_topic_is_no_partition(store: Store, count: int) -> None:
    """`Store.undelete` takes the name of a partition, and brings nothing back for that of a topic."""
    for number in range(count):
        store.create(f"orders-{number}")
    store.topic("orders").delete()
    with pytest.raises(UnknownPartition, match="orders: is a topic"):
        store.undelete("orders")
    assert len(store.topic("orders").undelete()) == count


def test_the_last_settings_of_a_topic_come_back(store: Store, clock: Clock) -> None:
    """They may have changed between the deletions of its partitions."""
    store.create("orders-0")
    store.create("orders-1")
    set_topic(store, "orders", retention_ms=1_000_000_001)
    store.delete("orders-0")
    clock.now_ms += 1
    set_topic(store, "orders", retention_ms=1_000_000_002)
    store.delete("orders-1")
    store.topic("orders").undelete()
    assert store.settings.topic_overrides("orders") == {"retention.ms": "1000000002"}


def test_readers_go_on_when_a_partition_comes_back(store: Store) -> None:
    """Also in segments that they have not opened yet."""
    set_topic(store, "orders", segment_bytes=200)
    orders = store.create("orders-0")
    for number in range(40):
        orders.append([b"%d" % number * 20])
    text = orders.text(View.LINES)
    whole = text.read(0, 1 << 20)
    store.delete("orders-0")
    assert text.read(0, 1 << 20) == whole
    store.undelete("orders-0")
    assert text.read(0, 1 << 20) == whole
    assert len(list(orders.read())) == 40


def test_what_cannot_come_back_is_told(
    store: Store, monkeypatch: pytest.MonkeyPatch, clock: Clock
) -> None:
    """Neither without a delay, nor if the disk has no room for what must be kept."""
    store.create("orders-0")
    assert store.deleter.delete("orders-0") == clock.now_ms + DELAY
    set_topic(store, "orders", file_delete_delay_ms=0)
    store.create("orders-0")
    assert store.deleter.delete("orders-0") is None
    store.create("orders-0")

    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "full")

    with monkeypatch.context() as patch:
        patch.setattr(Deletion, "write", refuse)
        assert store.deleter.delete("orders-0") is None


def test_a_mirrored_topic_comes_back(store: Store, clock: Clock) -> None:
    """With the setting that keeps others from appending to it."""
    store.settings.change_topic("orders", {"logfs.mirror.source": "cluster"})
    store.create("orders-0", mirror_of="cluster", mirrored_id=uuid.UUID(int=77))
    store.delete("orders-0")
    store.undelete("orders-0")
    assert store.registry.topic_id("orders") == uuid.UUID(int=77)
    with pytest.raises(NotWritable):
        store.writable("orders-0").append([b"x"])


def test_a_copy_of_the_log_directory_brings_nothing_back(
    store: Store, log_dir: Path, tmp_path: Path, clock: Clock
) -> None:
    """What `cp -a` has copied of a deleted partition is removed at once, as before."""
    store.create("orders-0").append([b"x"])
    store.delete("orders-0")
    shutil.copytree(log_dir, tmp_path / "copy", symlinks=True)
    (tmp_path / "copy/.lock").unlink()
    with Store(tmp_path / "copy", clock=clock) as copy:
        with pytest.raises(UnknownPartition):
            copy.undelete("orders-0")
        copy.upkeep()
    assert not list((tmp_path / "copy").glob("*-delete"))


def test_a_read_only_store_brings_nothing_back(store: Store, log_dir: Path) -> None:
    """It changes nothing."""
    store.create("orders-0").append([b"x"])
    store.delete("orders-0")
    with Store(log_dir, read_only=True) as reader, pytest.raises(NotWritable):
        reader.undelete("orders-0")


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"inode":%d}', '{"inode":%d,"partition":"x/y-0"}']
)
def test_a_damaged_file_brings_nothing_back(
    store: Store, log_dir: Path, clock: Clock, text: str
) -> None:
    """The partition is then removed by the next opening."""
    store.create("orders-0").append([b"x"])
    store.delete("orders-0")
    (path,) = log_dir.rglob("deletion.json")
    with path.open("r+") as file:
        file.truncate()
        file.write(text % path.stat().st_ino if "%" in text else text)
    with pytest.raises(UnknownPartition):
        store.undelete("orders-0")
    store.close()
    with Store(log_dir, clock=clock) as again:
        again.upkeep()
    assert not list(log_dir.glob("*-delete"))


def damage(directory: Path) -> None:
    """Damage a file of a partition, so that the partition cannot be loaded."""
    (directory / "leader-epoch-checkpoint").write_bytes(b"damaged")


@pytest.mark.parametrize(
    "delete",
    [
        lambda store: Delete("orders").run(store, lambda *_: None),
        lambda store: store.topic("orders").delete(),
    ],
    ids=["request", "topic"],
)
def test_a_topic_is_deleted_only_as_a_whole(
    tmp_path: Path, clock: Clock, delete: Callable[[Store], object]
) -> None:
    """If one of its partitions cannot be deleted, because it is offline, none is."""
    with Store(tmp_path, clock=clock) as store:
        store.topic("orders").create(3)
    damage(tmp_path / "orders-1")
    with Store(tmp_path, clock=clock) as store:
        with pytest.raises(Corrupt) as caught:
            delete(store)
        assert caught.value is store.offline["orders-1"]
        assert store.registry.partitions_of("orders") == ["orders-0", "orders-1", "orders-2"]
    assert not list(tmp_path.glob("*-delete"))


@pytest.mark.parametrize(
    "undelete",
    [
        lambda store: Undelete("orders").run(store, lambda *_: None),
        lambda store: store.topic("orders").undelete(),
    ],
    ids=["request", "topic"],
)
def test_a_topic_comes_back_as_a_whole(
    tmp_path: Path, clock: Clock, undelete: Callable[[Store], object]
) -> None:
    """If one of its partitions comes back damaged, and is offline, the others come back, too."""
    with Store(tmp_path, clock=clock) as store:
        store.topic("orders").create(3)
        store.topic("orders").delete()
        (path,) = tmp_path.glob("orders-1.*-delete")
        damage(path)
        with pytest.raises(Corrupt) as caught:
            undelete(store)
        assert list(store) == ["orders-0", "orders-2"]
        assert store.offline == {"orders-1": caught.value}
    assert not list(tmp_path.glob("*-delete"))


def refuse_renames(patch: pytest.MonkeyPatch, number: int) -> None:
    """Let the renames of deleted partitions fail with an errno that is no storage error."""
    rename = Disk.rename_unsynced

    def refuse(disk: Disk, old: Path, new: Path) -> None:
        if new.name.endswith("-delete"):
            raise OSError(number, "injected")
        rename(disk, old, new)

    patch.setattr(Disk, "rename_unsynced", refuse)


@pytest.mark.parametrize("number", [errno.EBUSY, errno.EACCES, errno.ENOSPC])
@pytest.mark.parametrize("is_clean", [True, False], ids=["clean", "crashed"])
def test_a_partition_that_cannot_be_renamed_stays_as_it_is(
    log_dir: Path, clock: Clock, number: int, *, is_clean: bool
) -> None:
    """It takes appends, and it can be deleted later; what its deletion takes away is still there."""
    store = Store(log_dir, clock=clock)
    fill(store)
    if not is_clean:
        abandon(store)
        store = Store(log_dir, clock=clock)
    with store:
        before = state(store)
        for name in before:
            with pytest.MonkeyPatch.context() as patch:
                refuse_renames(patch, number)
                with pytest.raises(OSError, match="injected") as caught:
                    store.delete(name)
            assert caught.value.errno == number
            assert name in store
            with pytest.raises(PartitionExists):
                store.create(name)
        # The checkpoints have their entries, although nothing has loaded the partitions yet.
        store.checkpoints.write()
        assert state(store) == before
        assert not list(log_dir.rglob("deletion.json"))
        for name in before:
            store.writable(name).append([Record(b"next", b"k")])
        before = state(store)
    with Store(log_dir, clock=clock) as store:
        assert state(store) == before
        store.writable("keys-0").append([Record(b"more", b"k")])
        after = state(store)
        store.topic("keys").delete()
        assert not store.registry.partitions_of("keys")
        store.topic("keys").undelete()
        assert state(store) == after


def test_what_an_earlier_deletion_left_brings_nothing_back(
    store: Store, log_dir: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """If `deletion.json` cannot be written, one that a crash has left there does not count for the new deletion."""
    partition = store.create("orders-0")
    partition.append([b"a"])
    left = Deletion("orders-0", store.clock(), 2**60, 0, -1, {}, {}, True)
    left.write(partition.disk, partition.directory, is_finished=False)

    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "injected")

    monkeypatch.setattr(Deletion, "write", refuse)
    store.delete("orders-0")
    assert "cannot be brought back: [Errno 28] injected" in caplog.text
    assert not list(log_dir.rglob("deletion.json"))
    with pytest.raises(UnknownPartition):
        store.undelete("orders-0")


def test_a_failed_partition_that_cannot_be_renamed_can_be_deleted_later(store: Store) -> None:
    """Until then it takes no appends, because its last records may not be durable."""
    orders = store.create("orders-0")
    orders.append([b"x"])

    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, "injected")

    with pytest.MonkeyPatch.context() as patch:
        refuse_renames(patch, errno.EBUSY)
        patch.setattr(Disk, "sync", fail)
        with pytest.raises(OSError, match="injected") as caught:
            store.delete("orders-0")
    assert caught.value.errno == errno.EBUSY
    assert store["orders-0"] is orders
    with pytest.raises(PartitionFailed):
        orders.append([b"y"])
    store.delete("orders-0")
    assert "orders-0" not in store


def test_a_deletion_whose_rename_is_not_synced_is_a_deletion(
    store: Store, log_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The name is free, the partition can come back, and the error is logged."""
    store.create("orders-0").append([b"x"])
    sync = Disk.sync_directory

    def fail(disk: Disk, path: Path) -> None:
        if path == log_dir and list(log_dir.glob("*-delete")):
            raise OSError(errno.ENOSPC, "injected")
        sync(disk, path)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Disk, "sync_directory", fail)
        store.deleter.delete("orders-0")
    assert "injected" in caplog.text
    assert "orders-0" not in store
    store.undelete("orders-0")
    assert offsets(store["orders-0"]) == [0]


def test_a_rename_that_is_not_synced_brings_a_partition_back(
    store: Store, log_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The partition can be used at once, and the error is logged."""
    store.create("orders-0").append([b"x"])
    store.delete("orders-0")
    rename, sync = Disk.rename_unsynced, Disk.sync_directory
    renamed: set[Path] = set()

    def note(disk: Disk, old: Path, new: Path) -> None:
        rename(disk, old, new)
        renamed.add(new)

    def fail(disk: Disk, path: Path) -> None:
        if log_dir / "orders-0" in renamed:
            raise OSError(errno.ENOSPC, "injected")
        sync(disk, path)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Disk, "rename_unsynced", note)
        patch.setattr(Disk, "sync_directory", fail)
        store.undelete("orders-0")
    assert "injected" in caplog.text
    store.writable("orders-0").append([b"y"])
    assert offsets(store["orders-0"]) == [0, 1]
    store.delete("orders-0")
    store.create("orders-0")


def test_a_partition_that_cannot_be_renamed_stays_deleted(store: Store) -> None:
    """Its readers go on, and it can come back later."""
    orders = store.create("orders-0")
    orders.append([b"x"])
    store.delete("orders-0")
    rename = Disk.rename_unsynced

    def refuse(disk: Disk, old: Path, new: Path) -> None:
        if old.name.endswith("-delete"):
            raise OSError(errno.EBUSY, "injected")
        rename(disk, old, new)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Disk, "rename_unsynced", refuse)
        with pytest.raises(OSError, match="injected"):
            store.undelete("orders-0")
    assert "orders-0" not in store
    assert store.undelete("orders-0").directory == orders.directory
