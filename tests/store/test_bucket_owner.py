"""One store changes the objects of a bucket: a copy of a log directory, or another store, only reads them."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any

import pytest

import logfs
from logfs.errors import InvalidSetting, LogfsError, NotWritable, RemoteStorageError
from logfs.log.remote import object_store
from logfs.log.remote.object_store import ObjectStore
from logfs.store.admin.requests import Tier
from logfs.store.observe.check import check
from logfs.store.observe.status import upkeep_status, upkeep_text
from logfs.store.store import Store
from logfs.store.tiering.bucket_owner import FILE_NAME
from tests.support import lock_order
from tests.support.batches import NOW
from tests.support.object_server import BUCKET, Answer, Request
from tests.support.stores import Clock, set_topic

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

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


def make(store: Store, url: str, name: str = "orders-0") -> None:
    """Create a tiered partition with small segments, and fill it."""
    store.settings.set_broker("remote.storage.url", url)
    settings = {"remote_storage_enable": "true", "retention_ms": -1, "local_retention_ms": -1}
    more = {"segment_bytes": 4000, "local_retention_bytes": 5000, "file_delete_delay_ms": 0}
    set_topic(store, name.rpartition("-")[0], **settings, **more)
    store.create(name)
    fill(store, name)


def fill(store: Store, name: str = "orders-0") -> None:
    partition = store[name]
    first = partition.log_end_offset
    for start in range(first, first + 1000, 20):
        partition.append(
            [logfs.Record(b"value %d" % n, timestamp=NOW) for n in range(start, start + 20)]
        )


def owned(log_dir: Path, bucket: Path, clock: Clock) -> set[str]:
    """Make a store that owns the bucket; return the objects of its segments."""
    with Store(log_dir, clock=clock) as store:
        make(store, f"file://{bucket}")
        store.tier("orders-0")
        store.retain()
    return objects(bucket)


def objects(bucket: Path) -> set[str]:
    return {str(path) for path in bucket.rglob("*") if path.is_file() and path.name != FILE_NAME}


def expire_half(store: Store, clock: Clock) -> None:
    """Let retention delete remote segments."""
    store.settings.set_topic("orders", "local.retention.bytes", None)
    store.settings.set_topic("orders", "retention.bytes", str(store["orders-0"].size_bytes // 2))
    store.retain()
    clock.now_ms += 120_000
    store.remote_log_manager.expire()


def delete_records(store: Store, clock: Clock) -> None:
    store.delete_records("orders-0", 900)
    clock.now_ms += 1000
    store.retain()


def delete(store: Store, clock: Clock) -> None:
    store.delete("orders-0")
    for _ in range(2):
        # The objects are deleted after the local files.
        clock.now_ms += 120_000
        store.upkeep()
        store.remote_log_manager.expire()


def truncate(store: Store, clock: Clock) -> None:
    store.truncate("orders-0", store["orders-0"].local_start_offset + 1)
    clock.now_ms += 1000
    store.remote_log_manager.expire()


def switch_off(store: Store, clock: Clock) -> None:
    store.settings.set_topic("orders", "remote.log.delete.on.disable", "true")
    store.settings.set_topic("orders", "remote.storage.enable", "false")
    store.remote_log_manager.expire()
    clock.now_ms += 120_000
    store.remote_log_manager.expire()


def copy(store: Store, clock: Clock) -> None:
    fill(store)
    with pytest.raises(NotWritable):
        store.tier("orders-0")


def upkeep(store: Store, clock: Clock) -> None:
    fill(store)
    for _ in range(3):
        store.upkeep()
        clock.now_ms += 400_000


CHANGES = [expire_half, delete_records, delete, truncate, switch_off, copy, upkeep]


@pytest.mark.parametrize("change", CHANGES)
def test_a_copy_of_a_log_directory_changes_nothing_in_the_bucket(
    log_dir: Path, bucket: Path, tmp_path: Path, clock: Clock, change: Callable[..., None]
) -> None:
    """By retention, deletions, truncation, copying or upkeep; it reads on, and keeps what is local."""
    before = owned(log_dir, bucket, clock)
    twin = tmp_path / "twin"
    shutil.copytree(log_dir, twin)
    with Store(twin, clock=clock) as store:
        records = list(store["orders-0"].read())
        assert len(records) == 1000
        change(store, clock)
        assert objects(bucket) == before
        if change in (copy, upkeep):
            assert list(store["orders-0"].read())[:1000] == records
            assert str(log_dir) in store.tiered.owner.refusal
    with Store(log_dir, clock=clock) as store:
        assert list(store["orders-0"].read()) == records
        change_of_owner = copy_of_owner if change is copy else change
        change_of_owner(store, clock)
        assert objects(bucket) != before


def copy_of_owner(store: Store, clock: Clock) -> None:
    fill(store)
    assert store.tier("orders-0")


def test_a_copy_keeps_its_local_segments(
    log_dir: Path, bucket: Path, tmp_path: Path, clock: Clock
) -> None:
    """Those that the owner has copied: the owner may delete its copies."""
    with Store(log_dir, clock=clock) as store:
        make(store, f"file://{bucket}")
        store.tier("orders-0")
    twin = tmp_path / "twin"
    shutil.copytree(log_dir, twin)
    for path, drops in ((twin, False), (log_dir, True)):
        with Store(path, clock=clock) as store:
            before = len(store["orders-0"].local_segments)
            assert bool(store.retention_plan("orders-0").released) == drops
            store.retain()
            assert (len(store["orders-0"].local_segments) < before) == drops


def test_the_user_is_told_and_can_take_the_bucket_over(
    log_dir: Path, bucket: Path, tmp_path: Path, clock: Clock
) -> None:
    """By the errors, the status and the audit; after the command the other directory is the one that only reads."""
    owned(log_dir, bucket, clock)
    twin = tmp_path / "twin"
    shutil.copytree(log_dir, twin)
    with Store(twin, clock=clock) as store:
        with pytest.raises(NotWritable, match=rf"--take-over {twin}") as raised:
            Tier([str(twin)]).run(store, lambda *_: None)
        assert str(log_dir) in str(raised.value)
        assert str(raised.value) in upkeep_text(store)
        assert upkeep_status(store)["bucket_refused"] == str(raised.value)
        assert [str(each) for each in check(twin) if str(raised.value) in str(each)]
        fill(store)
        store.create("plain-0")
        with pytest.raises(InvalidSetting):
            Tier([str(twin)], ["plain-0"], take_over=True).run(store, lambda *_: None)
        assert upkeep_status(store)["bucket_refused"], "a refused request takes nothing over"
        done = Tier([str(twin)], take_over=True).run(store, lambda *_: None)
        assert done["partitions"][0]["segments"]
        assert not upkeep_status(store)["bucket_refused"]
    assert not list(check(twin))
    with Store(log_dir, clock=clock) as store:
        fill(store)
        with pytest.raises(NotWritable, match=str(twin)):
            store.tier("orders-0")
    with Store(twin, clock=clock) as store:
        fill(store)
        assert store.tier("orders-0")


def test_an_older_state_of_the_same_files_is_not_the_owner(
    log_dir: Path, bucket: Path, tmp_path: Path, clock: Clock
) -> None:
    """As after the rollback of a snapshot, or on a cloned machine: the inode numbers are the same."""
    owned(log_dir, bucket, clock)
    mark = log_dir / FILE_NAME
    before = mark.read_bytes()
    inode = mark.stat().st_ino
    with Store(log_dir, clock=clock) as store:
        fill(store)
        assert store.tier("orders-0")
    old = before.replace(b": %d}" % inode, b": %d}" % mark.stat().st_ino)
    mark.write_bytes(old)
    with Store(log_dir, clock=clock) as store:
        fill(store)
        with pytest.raises(NotWritable):
            store.tier("orders-0")


def test_another_store_under_the_prefix_is_refused(
    log_dir: Path, bucket: Path, tmp_path: Path, clock: Clock
) -> None:
    """With a topic of the same name, or of another; below another prefix it is not."""
    before = owned(log_dir, bucket, clock)
    with Store(tmp_path / "other", clock=clock) as store:
        make(store, f"file://{bucket}")
        make(store, f"file://{bucket}", "sales-0")
        for name in ("orders-0", "sales-0"):
            with pytest.raises(NotWritable, match=str(log_dir)):
                store.tier(name)
        assert objects(bucket) == before
    with Store(tmp_path / "third", clock=clock) as store:
        store.settings.set_broker("remote.storage.prefix", "third-")
        make(store, f"file://{bucket}")
        assert store.tier("orders-0")
    assert objects(bucket) > before


def test_log_directories_of_one_store_share_a_bucket(
    log_dir: Path, bucket: Path, tmp_path: Path, clock: Clock
) -> None:
    """Opened together or alone, and after a move; a copy of one of them does not."""
    other = tmp_path / "other"
    with Store([log_dir, other], clock=clock) as store:
        make(store, f"file://{bucket}", "orders-0")
        make(store, f"file://{bucket}", "sales-0")
        places = {name: store.registry.home(name) for name in store}
        assert set(places.values()) == {log_dir, other}
        assert store.tier("orders-0")
        assert store.tier("sales-0")
    twin = tmp_path / "twin"
    shutil.copytree(places["sales-0"], twin)
    for name in ("orders-0", "sales-0", "orders-0"):
        with Store(places[name], clock=clock) as store:
            store.tiered.owner.claim()
    with Store([log_dir, other], clock=clock) as store:
        store.move("orders-0", places["sales-0"])
        fill(store)
        assert store.tier("orders-0")
    with Store(twin, clock=clock) as store, pytest.raises(NotWritable, match="is a copy"):
        store.tiered.owner.claim()


def test_a_log_directory_is_added_to_an_owner(
    log_dir: Path, bucket: Path, tmp_path: Path, clock: Clock
) -> None:
    """It has no file at first. Once it has been open beside the owner, it may be opened alone."""
    owned(log_dir, bucket, clock)
    other = tmp_path / "other"
    with Store([log_dir, other], clock=clock) as store:
        make(store, f"file://{bucket}", "sales-0")
        assert store.registry.home("sales-0") == other
        assert store.tier("sales-0")
    with Store(other, clock=clock) as store:
        store.tiered.owner.claim()


def test_a_bucket_without_an_owner_is_claimed(log_dir: Path, bucket: Path, clock: Clock) -> None:
    """As one that an earlier release has filled."""
    owned(log_dir, bucket, clock)
    (log_dir / FILE_NAME).unlink()
    (bucket / FILE_NAME).unlink()
    with Store(log_dir, clock=clock) as store:
        store.upkeep()
        assert store.tiered.owner.is_claimed
    assert (bucket / FILE_NAME).exists()
    assert (log_dir / FILE_NAME).exists()


def test_a_log_directory_that_is_renamed_stays_the_owner(
    log_dir: Path, bucket: Path, tmp_path: Path, clock: Clock
) -> None:
    owned(log_dir, bucket, clock)
    log_dir.rename(tmp_path / "renamed")
    with Store(tmp_path / "renamed", clock=clock) as store:
        fill(store)
        assert store.tier("orders-0")
    (tmp_path / "renamed").rename(log_dir)


@pytest.mark.parametrize("is_stored", [False, True])
@pytest.mark.parametrize("is_first", [False, True])
def test_a_crash_while_the_token_is_replaced_leaves_the_owner(
    log_dir: Path,
    bucket: Path,
    clock: Clock,
    monkeypatch: pytest.MonkeyPatch,
    is_stored: bool,
    is_first: bool,
) -> None:
    """Before and after the bucket has it; also if the answer was an error."""
    if not is_first:
        owned(log_dir, bucket, clock)
    real = ObjectStore.put

    def fail(self: ObjectStore, *arguments: Any, **named: Any) -> None:
        if is_stored:
            real(self, *arguments, **named)
        raise RemoteStorageError("the answer was lost")

    with Store(log_dir, clock=clock) as store:
        if is_first:
            make(store, f"file://{bucket}")
        else:
            fill(store)
        with monkeypatch.context() as patch:
            patch.setattr(ObjectStore, "put", fail)
            with pytest.raises(RemoteStorageError):
                store.tier("orders-0")
        assert store.tier("orders-0")
    with Store(log_dir, clock=clock) as store:
        store.tiered.owner.claim()


def test_two_stores_that_claim_a_bucket_at_once(
    log_dir: Path,
    server: ObjectServer,
    tmp_path: Path,
    clock: Clock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One becomes the owner, and the other is refused."""
    url = f"s3://{BUCKET}/tiered"
    real = ObjectStore.put
    with Store(log_dir, clock=clock) as store, Store(tmp_path / "other", clock=clock) as other:
        make(store, url)
        make(other, url)

        def second(self: ObjectStore, *arguments: Any, **named: Any) -> bool:
            monkeypatch.setattr(ObjectStore, "put", real)
            with lock_order.elsewhere():
                assert store.tier("orders-0")
            return real(self, *arguments, **named)

        monkeypatch.setattr(ObjectStore, "put", second)
        with pytest.raises(NotWritable, match=str(log_dir)):
            other.tier("orders-0")
        fill(store)
        assert store.tier("orders-0")
    keys = [key for key in server.stored_keys() if key.endswith(FILE_NAME)]
    assert keys == [f"tiered/{FILE_NAME}"]


def test_an_object_that_is_out_of_sight_for_a_moment_stays_valid(
    log_dir: Path, bucket: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when the disk of the bucket is not mounted: the store is its owner later."""
    owned(log_dir, bucket, clock)
    monkeypatch.setattr(object_store, "_RETRY_SECONDS", 0)
    with Store(log_dir, clock=clock) as store:
        fill(store)
        bucket.rename(bucket.with_name("away"))
        for _ in range(3):
            with pytest.raises(RemoteStorageError):
                store.tier("orders-0")
        bucket.with_name("away").rename(bucket)
        assert store.tier("orders-0")


@pytest.mark.parametrize(
    "data", [b"", b"no JSON", b"[]", b'{"members": 1}', b'{"members": {"": 1}}']
)
@pytest.mark.parametrize("here", [False, True])
def test_a_damaged_file_or_object_is_no_owner(
    log_dir: Path, bucket: Path, clock: Clock, data: bytes, here: bool
) -> None:
    """Nothing is changed then, until the user takes the bucket over."""
    before = owned(log_dir, bucket, clock)
    ((log_dir if here else bucket) / FILE_NAME).write_bytes(data)
    with Store(log_dir, clock=clock) as store:
        fill(store)
        with pytest.raises(LogfsError):
            store.tier("orders-0")
        assert objects(bucket) == before
        store.tiered.owner.take_over()
        assert store.tier("orders-0")


@pytest.mark.parametrize("position", [20, 80, 150, -2])
def test_an_object_that_arrives_wrong_is_no_other_owner(
    log_dir: Path, server: ObjectServer, clock: Clock, position: int
) -> None:
    """It is an error of the store that may pass."""

    def flipped(body: bytes) -> bytes:
        changed = bytearray(body)
        changed[position] ^= 1
        return bytes(changed)

    def fault(request: Request) -> Answer | None:
        is_read = request.method == "GET" and request.key.endswith(FILE_NAME)
        return Answer(change=flipped) if is_read else None

    with Store(log_dir, clock=clock) as store:
        make(store, f"s3://{BUCKET}/tiered")
        assert store.tier("orders-0")
        fill(store)
        server.fault = fault
        with pytest.raises(RemoteStorageError, match="damaged"):
            store.tier("orders-0")
        assert not store.tiered.owner.refusal
        server.fault = lambda request: None
        assert store.tier("orders-0")


def test_a_bucket_that_may_not_be_listed_has_an_owner(
    log_dir: Path, server: ObjectServer, tmp_path: Path, clock: Clock
) -> None:
    """S3 denies a missing object then, in place of saying that it is missing."""
    denied = Answer("403 Forbidden", b"<Error><Code>AccessDenied</Code></Error>")

    def fault(request: Request) -> Answer | None:
        stored = request.key in server.stored_keys()
        return denied if request.method != "PUT" and not stored else None

    server.fault = fault
    with Store(log_dir, clock=clock) as store:
        make(store, f"s3://{BUCKET}/tiered")
        assert store.tier("orders-0")
        fill(store)
        assert store.tier("orders-0")
    # Not even the object of the owner may be read.
    server.fault = lambda request: denied if request.method == "GET" else None
    with Store(tmp_path / "other", clock=clock) as store:
        make(store, f"s3://{BUCKET}/tiered")
        with pytest.raises(RemoteStorageError, match="cannot be read"):
            store.tier("orders-0")
    server.fault = lambda request: None
