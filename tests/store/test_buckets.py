"""Buckets as log directories: what brokers have copied there reads as the log that they copied."""

from __future__ import annotations

import os
import shutil
import threading
import uuid
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

import logfs
from logfs.errors import (
    Corrupt,
    InvalidSetting,
    InvalidStore,
    LogfsError,
    NotWritable,
    OffsetOutOfRange,
)
from logfs.format.text.rendering import View
from logfs.log.disk.bucket_path import BucketPath, as_path
from logfs.log.disk.disk import WouldBlock, run_without_network
from logfs.log.read.read_committed import Isolation
from logfs.log.remote import bucket_disk
from logfs.store.observe.check import Severity, check
from logfs.store.store import Store
from tests.support.batches import NOW, batch
from tests.support.bucket import Put, put_aiven, put_local, sealed_segments
from tests.support.command_line import call
from tests.support.stores import Clock, set_topic

if TYPE_CHECKING:
    from pathlib import Path

RECORDS = 3000
Copy = Callable[..., object]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache directory that is empty at first."""
    path = tmp_path / "cache"
    monkeypatch.setenv("XDG_CACHE_HOME", str(path))
    return path / "logfs/chunks"


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """The directory that stands for the bucket."""
    return tmp_path / "bucket"


@pytest.fixture
def put(place: Path) -> Put:
    """A function that stores an object."""

    def write(key: str, data: bytes) -> None:
        path = place / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)

    return write


@pytest.fixture
def partition(log_dir: Path) -> Path:
    """The directory of a partition with several segments."""
    with Store(log_dir) as store:
        fill(store)
    return log_dir / "orders-0"


def fill(store: Store, first: int = 0, count: int = RECORDS) -> None:
    """Append records with times that go back and forth, in batches of 20."""
    set_topic(store, "orders", segment_bytes=8_000, index_interval_bytes=500)
    orders = store["orders-0"] if "orders-0" in store else store.create("orders-0")
    for start in range(first, first + count, 20):
        orders.append(
            [
                logfs.Record(b"value %d" % n, key=b"%d" % (n % 50), timestamp=1000 + n - n % 7 * 30)
                for n in range(start, start + 20)
            ]
        )


def copy(put: Put, partition: Path, kind: str, topic_id: uuid.UUID | None = None) -> None:
    """Copy all segments of a partition into the bucket."""
    topic_id = topic_id or uuid.uuid4()
    with Store(partition.parent, read_only=True) as store:
        end = store[partition.name].log_end_offset
    for segment in sealed_segments(partition, end):
        match kind:
            case "local":
                put_local(put, partition, segment, topic_id)
            case "aiven":
                put_aiven(put, partition, segment, topic_id, chunk_bytes=3000)
            case "compressed":
                put_aiven(put, partition, segment, topic_id, chunk_bytes=3000, compressed=True)


@pytest.mark.parametrize("kind", ["local", "aiven"])
def test_damage_of_the_last_segment_is_told(tmp_path: Path, kind: str) -> None:
    """Whatever way the last records are read, damage that has taken their place is an error."""
    place = tmp_path / "bucket"
    with Store(tmp_path / "log") as store:
        fill(store)

    def put(key: str, data: bytes) -> None:
        (place / key).parent.mkdir(parents=True, exist_ok=True)
        (place / key).write_bytes(data)

    copy(put, tmp_path / "log/orders-0", kind)
    log = max(place.rglob("*.log"), key=lambda path: path.name)
    log.write_bytes(bytes(byte ^ 0x55 for byte in log.read_bytes()))
    first = int(log.name[:20])
    target = f"{url(place)}/orders-0"
    for words in (
        ["cat"],
        ["cat", "-o", f"{first - 5}.."],
        ["cat", "-o", "-5"],
        ["tail", "-n", "5"],
    ):
        for form in ([], ["-F", "%o\\n"], ["-J"]):
            done = call(*words, *form, target)
            assert (done.returncode, b"are damaged" in done.stderr) == (1, True), (
                words,
                form,
                done,
            )
    with logfs.open(url(place), "r") as opened, pytest.raises(logfs.DamagedRange):
        list(opened["orders-0"].last(5))


def url(place: Path) -> str:
    return f"file://{place}"


def open_bucket(place: Path) -> Store:
    return Store(url(place), read_only=True)


KINDS = ("aiven", "compressed", "local")


@pytest.mark.parametrize("kind", KINDS)
def test_a_bucket_reads_as_the_log_that_was_copied(
    put: Put, partition: Path, place: Path, kind: str
) -> None:
    """Records by offset and by time, both texts, keys, ids and epochs are those of the log directory."""
    copy(put, partition, kind)
    with Store(partition.parent, read_only=True) as local, open_bucket(place) as remote:
        ours, theirs = local["orders-0"], remote["orders-0"]
        assert len(theirs.segments) > 5
        assert list(theirs.read()) == list(ours.read())
        for offset in range(0, RECORDS, 37):
            assert theirs.record(offset) == ours.record(offset)
        for timestamp in range(900, 1000 + RECORDS, 41):
            assert theirs.offset_for_time(timestamp) == ours.offset_for_time(timestamp)
        for view in View:
            text = theirs.text(view)
            assert text.size == ours.text(view).size
            assert bytes(text.read(0, text.size)) == bytes(ours.text(view).read(0, text.size))
        assert theirs.newest(b"7") == ours.newest(b"7")
        assert theirs.epochs.entries == ours.epochs.entries
        assert remote.registry.topic_id("orders") is not None


@pytest.mark.parametrize("kind", KINDS)
def test_transactions_of_a_bucket_are_read_committed(
    put: Put, log_dir: Path, place: Path, kind: str
) -> None:
    """Aborted records are hidden by the transaction indexes that were copied."""
    with Store(log_dir, clock=Clock(NOW)) as store:
        set_topic(store, "orders", segment_bytes=2_000)
        orders = store.create("orders-0")
        for number in range(60):
            orders.append_batch(batch(1, number, b"%d" % number, transactional=True))
            orders.end_transaction(1, 0, commit=number % 3 != 0)
    copy(put, log_dir / "orders-0", kind)
    with Store(log_dir, read_only=True) as local, open_bucket(place) as remote:
        committed = Isolation.READ_COMMITTED
        expected = list(local["orders-0"].isolated(committed).read())
        assert list(remote["orders-0"].isolated(committed).read()) == expected
        assert len(expected) == 40


def test_only_complete_copies_count_and_the_newest_of_each(
    put: Put, partition: Path, place: Path
) -> None:
    """A copy without its manifest is ignored, as is an older copy of the same segment."""
    copy(put, partition, "aiven")
    topic = next(place.iterdir())
    before = sorted(topic.rglob("*.rsm-manifest"))
    first = before[0]
    for name in (first, first.with_suffix(".log"), first.with_suffix(".indexes")):
        stem, _, suffix = name.name.partition("-")
        other = "A" * 21 + "Q"
        if not name.name.endswith(".rsm-manifest"):
            name.with_name(f"{stem}-{other}.{suffix.rpartition('.')[2]}").write_bytes(b"unfinished")
    with open_bucket(place) as remote:
        assert [r.offset for r in remote["orders-0"].read()] == [*range(RECORDS)]


def test_a_partition_without_a_complete_copy_is_empty(
    put: Put, partition: Path, place: Path
) -> None:
    """While the first copy is not complete, as after a kill, the partition has no records; `check` finds no error."""
    copy(put, partition, "aiven")
    for manifest in place.rglob("*.rsm-manifest"):
        manifest.unlink()
    with open_bucket(place) as remote:
        for name in remote:
            assert [*remote[name].read()] == []
    assert [
        each for each in check(as_path(f"file://{place}")) if each.severity is Severity.ERROR
    ] == []


def test_copies_that_overlap_are_read_once(
    put: Put, partition: Path, place: Path, tmp_path: Path
) -> None:
    """Two replicas rolled at different offsets: the copies of the second leader begin within one of the first."""
    other = tmp_path / "other/orders-0"
    other.mkdir(parents=True)
    shutil.copy(partition / "leader-epoch-checkpoint", other)
    with Store(partition.parent, read_only=True) as store:
        for number, each in enumerate(store["orders-0"].batches(0)):
            if number % 17 == 0:
                log = other / f"{each.header.base_offset:020}.log"
            with log.open("ab") as file:
                file.write(each.data)
    Store(other.parent).close()
    topic_id = uuid.uuid4()
    half = [*sealed_segments(partition, RECORDS)][:4]
    rest = [s for s in sealed_segments(other, RECORDS) if s[1] > half[-1][1]]
    assert rest[0][0] < half[-1][1], "they overlap"
    for segment in half:
        put_aiven(put, partition, segment, topic_id)
    for segment in rest:
        put_aiven(put, other, segment, topic_id)
    with open_bucket(place) as remote:
        orders = remote["orders-0"]
        assert [record.offset for record in orders.read()] == [*range(RECORDS)]
        text = orders.text(View.LINES)
        assert bytes(text.read(0, text.size)).count(b"\n") == RECORDS


def test_the_newest_topic_of_a_name_is_read(put: Put, partition: Path, place: Path) -> None:
    """A topic that was deleted and created again has another id; its old objects may still be there."""
    copy(put, partition, "aiven")
    for path in place.rglob("*"):
        os.utime(path, (1, 1))
    segment = next(iter(sealed_segments(partition, RECORDS)))
    put_aiven(put, partition, segment, uuid.uuid4())
    with open_bucket(place) as remote:
        assert remote["orders-0"].log_end_offset == segment[1]


@pytest.mark.parametrize("prefix", ["", "tiered-", "deep/er/", "deep/tiered-"])
def test_a_prefix_may_be_a_directory_or_the_beginning_of_names(
    put: Put, partition: Path, place: Path, prefix: str
) -> None:
    """Aiven's plugin puts nothing between its prefix and the topic."""
    segment = next(iter(sealed_segments(partition, RECORDS)))
    put_aiven(put, partition, segment, uuid.uuid4(), prefix=prefix)
    put("unrelated/file", b"")
    with Store(f"{url(place)}/{prefix}", read_only=True) as remote:
        assert list(remote) == ["orders-0"]
        assert remote["orders-0"].log_end_offset == segment[1]


def test_a_bucket_is_followed(
    put: Put, log_dir: Path, partition: Path, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A refresh shows segments that a broker has copied since, and drops those that it has deleted."""
    monkeypatch.setattr(bucket_disk, "_LISTING_SECONDS", 0.0)
    topic_id = uuid.uuid4()
    segments = [*sealed_segments(partition, RECORDS)]
    for segment in segments[:3]:
        put_aiven(put, partition, segment, topic_id)
    with open_bucket(place) as remote:
        orders = remote["orders-0"]
        assert orders.log_end_offset == segments[2][1]
        for segment in segments[3:]:
            put_aiven(put, partition, segment, topic_id)
        first = sorted(place.rglob("*.rsm-manifest"))[0]
        for path in first.parent.glob(first.stem + "*"):
            path.unlink()
        remote.refresh()
        assert (orders.log_start_offset, orders.log_end_offset) == (segments[1][0], RECORDS)
        assert [r.offset for r in orders.read()] == [*range(segments[1][0], RECORDS)]
        with pytest.raises(OffsetOutOfRange):
            orders.record(0)


def test_a_topic_that_is_created_again_takes_the_place_of_the_old_one(
    put: Put, partition: Path, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store that is open shows the new partition after a refresh."""
    monkeypatch.setattr(bucket_disk, "_LISTING_SECONDS", 0.0)
    first, second = [*sealed_segments(partition, RECORDS)][:2]
    put_aiven(put, partition, first, uuid.uuid4())
    for path in place.rglob("*"):
        os.utime(path, (1, 1))
    with open_bucket(place) as remote:
        assert remote["orders-0"].log_end_offset == first[1]
        put_aiven(put, partition, second, uuid.uuid4())
        remote.refresh()
        assert remote["orders-0"].log_start_offset == second[0]
        assert [r.offset for r in remote["orders-0"].read()] == [*range(*second)]


def test_a_segment_that_was_deleted_since_the_listing_is_noticed(
    put: Put, partition: Path, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader that finds an object missing looks at the bucket again: the offsets have left the log."""
    monkeypatch.setattr(bucket_disk, "_DOUBT_SECONDS", 0.0)
    copy(put, partition, "aiven")
    with open_bucket(place) as remote:
        orders = remote["orders-0"]
        for path in sorted(place.rglob("*.rsm-manifest"))[:2]:
            for each in path.parent.glob(path.stem + "*"):
                each.unlink()
        second = orders.segments[2].base_offset
        with pytest.raises(OffsetOutOfRange):
            orders.record(5)
        assert orders.log_start_offset == second
        assert len(list(orders.read())) == RECORDS - second


def test_what_was_fetched_is_not_fetched_again(
    put: Put, partition: Path, place: Path, cache: Path
) -> None:
    """The next process finds the chunks in the cache; a damaged one is fetched again."""
    copy(put, partition, "compressed")
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(2):
        with open_bucket(place) as remote:
            records = list(remote["orders-0"].read())
    assert remote.disk.chunks.requests == 0
    # Descriptors that were open before may be closed meanwhile.
    assert len(os.listdir("/proc/self/fd")) <= before, "a store that is closed keeps nothing open"
    for path in sorted(cache.iterdir())[::3]:
        damaged = bytearray(path.read_bytes())
        damaged[len(damaged) // 2] ^= 1
        path.write_bytes(damaged)
    with open_bucket(place) as remote:
        assert list(remote["orders-0"].read()) == records
        assert remote.disk.chunks.requests > 0


@pytest.mark.parametrize("size", [0, 100])
def test_a_cache_file_that_is_cut_in_use_is_fetched_again(
    put: Put, partition: Path, place: Path, cache: Path, size: int
) -> None:
    """By whatever cleans the cache directory."""
    copy(put, partition, "aiven")
    with open_bucket(place) as remote:
        orders = remote["orders-0"]
        before = list(orders.read())
        for path in cache.iterdir():
            os.truncate(path, size)
        assert orders.record(5) == before[5]
        assert list(orders.read()) == before


def test_without_a_cache_directory_a_bucket_is_read(
    put: Put, partition: Path, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Chunks are then kept in memory."""
    copy(put, partition, "aiven")
    monkeypatch.setenv("XDG_CACHE_HOME", "/proc/nothing")
    with open_bucket(place) as remote:
        assert len(list(remote["orders-0"].read())) == RECORDS


def test_wrong_objects_are_errors_that_name_them(put: Put, partition: Path, place: Path) -> None:
    """A manifest that is no manifest, encrypted objects, and a .log object that was cut."""
    copy(put, partition, "aiven")
    manifests = sorted(place.rglob("*.rsm-manifest"))
    manifests[1].write_bytes(b'{"version": "1"')
    encrypted = manifests[2].read_bytes().removesuffix(b"}") + b',"encryption":{"dataKey":"x"}}'
    manifests[2].write_bytes(encrypted)
    log = manifests[3].with_suffix(".log")
    log.write_bytes(log.read_bytes()[:-1])
    with open_bucket(place) as remote:
        orders = remote["orders-0"]
        wrong = [orders.segments[number].base_offset for number in (1, 2, 3)]
        for offset, what in zip(wrong, ("rsm-manifest", "encryption", "too short"), strict=True):
            with pytest.raises(LogfsError, match=what):
                list(orders.read(offset))
        assert list(orders.read(orders.segments[4].base_offset))[-1].offset == RECORDS - 1


def test_bytes_that_stay_damaged_are_reported_as_damage(
    put: Put, partition: Path, place: Path
) -> None:
    """They are fetched again a few times, and what is around them is read."""
    copy(put, partition, "aiven")
    log = sorted(place.rglob("*.log"))[1]
    data = bytearray(log.read_bytes())
    data[5000] ^= 1
    log.write_bytes(data)
    with open_bucket(place) as remote:
        orders = remote["orders-0"]
        with pytest.raises(Corrupt) as error:
            list(orders.read())
        assert log.name.partition("-")[0] in str(error.value)
        after = error.value.next_offset  # type: ignore[attr-defined]
        assert [r.offset for r in orders.read(after)] == [*range(after, RECORDS)]


def test_the_thread_that_must_not_wait_does_not(put: Put, partition: Path, place: Path) -> None:
    """What is not here raises `WouldBlock` there; in another thread it is fetched, and then it is here."""
    copy(put, partition, "aiven")
    with Store(url(place), read_only=True, lazy=True) as remote:
        remote.disk.forbid_blocking()

        def ask() -> object:
            return remote["orders-0"].record(1234)

        waits = 0
        found: list[object] = []
        while not found:
            try:
                found.append(ask())
            except WouldBlock:
                waits += 1
                thread = threading.Thread(target=ask)
                thread.start()
                thread.join()
            assert waits < 10
        assert waits >= 1
        remote.disk.allow_blocking()
        assert found == [remote["orders-0"].record(1234)]


def test_a_call_that_must_not_use_the_network_asks_nothing(
    put: Put, partition: Path, place: Path
) -> None:
    """What is not here raises `WouldBlock`, which says so; what is here is read; and nothing stays of the call."""
    copy(put, partition, "aiven")
    with Store(url(place), read_only=True, lazy=True) as remote:

        def ask() -> object:
            return remote["orders-0"].record(1234)

        with pytest.raises(WouldBlock) as raised:
            run_without_network(ask)
        assert raised.value.on_network
        found = ask()
        assert run_without_network(ask) == found


def test_a_call_that_must_not_use_the_network_waits_for_a_lock_for_a_moment(store: Store) -> None:
    """The owner of the lock may wait for the network; the thread waits as before in other calls."""
    lock = threading.Lock()

    def take() -> bool:
        with store.disk.hold(lock):
            return lock.locked()

    with lock, pytest.raises(WouldBlock) as raised:
        run_without_network(take)
    assert raised.value.on_network
    assert run_without_network(take)
    lock.acquire()
    threading.Timer(0.3, lock.release).start()
    assert take()


def test_a_bucket_is_read_only(put: Put, partition: Path, place: Path) -> None:
    """Opening it for writing is refused before anything is asked of it, and so is every change."""
    copy(put, partition, "aiven")
    with pytest.raises(NotWritable, match="bucket"):
        Store(url(place), create=False)
    with open_bucket(place) as remote:
        with pytest.raises(NotWritable):
            remote.writable("orders-0")
        with pytest.raises(NotWritable):
            remote.create("orders-1")
    with pytest.raises(InvalidStore, match="alone"):
        Store([url(place), str(partition.parent)], read_only=True)


def test_a_bucket_without_segments_is_an_error(place: Path) -> None:
    """A wrong prefix is far more likely than an empty bucket."""
    place.mkdir()
    with pytest.raises(InvalidStore, match="prefix"):
        open_bucket(place)


def test_the_url_of_a_bucket_is_a_path() -> None:
    """It stays what it is under the operations of paths."""
    path = as_path("s3://bucket/a/b-")
    assert isinstance(path, BucketPath)
    assert str(path / "orders-0") == "s3://bucket/a/b-/orders-0"
    assert (path.scheme, path.bucket, path.key) == ("s3", "bucket", "a/b-")
    assert str(path.absolute().parent.with_name("c")) == "s3://bucket/c"
    local = as_path("file:///var/tiered")
    assert isinstance(local, BucketPath)
    assert (str(local), local.bucket, local.key) == ("file:///var/tiered", "", "var/tiered")
    assert not isinstance(as_path("/s3:/bucket"), BucketPath)
    assert not isinstance(as_path("c:d"), BucketPath)


@pytest.mark.parametrize("scheme", ["S3", "s3a", "s3n", "http", "https", "hdfs", "file", " s3"])
def test_other_urls_are_refused_and_not_shown(log_dir: Path, scheme: str) -> None:
    """Neither as a path nor as a setting: it may have a password."""
    text = f"{scheme}://user:sEcReT@host/prefix?key=sEcReT#sEcReT"
    with pytest.raises(InvalidStore) as error:
        Store(text, read_only=True)
    assert "sEcReT" not in str(error.value)
    with Store(log_dir) as store, pytest.raises(InvalidSetting) as refused:
        store.settings.set_broker("remote.storage.url", text)
    assert "sEcReT" not in str(refused.value)
    assert not isinstance(as_path("s3:bucket"), BucketPath)


def damages(place: Path, kind: str) -> list[tuple[str, Callable[[], object]]]:
    """What may be wrong with the last segment of a bucket: the name of each kind of damage, and what makes it."""
    log = sorted(place.rglob("*.log"))[-1]
    data = log.read_bytes()
    found: list[tuple[str, Callable[[], object]]] = [
        ("zeros", lambda: log.write_bytes(bytes(len(data)))),
        ("no bytes", lambda: log.write_bytes(b"")),
        ("half", lambda: log.write_bytes(data[: len(data) // 2 + 7])),
        ("zeros at the end", lambda: log.write_bytes(data[:-300] + bytes(300))),
    ]
    if kind != "local":
        manifest = sorted(place.rglob("*.rsm-manifest"))[-1]
        text = manifest.read_bytes()
        found += [
            ("half a manifest", lambda: manifest.write_bytes(text[: len(text) // 2])),
            ("an empty manifest", lambda: manifest.write_bytes(b"")),
        ]
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_damage_at_the_end_does_not_end_the_log(
    put: Put, partition: Path, place: Path, kind: str
) -> None:
    """Whatever is wrong with the last segment: everything before it is read, and then there is an error."""
    copy(put, partition, kind)
    before = sorted(place.rglob("*.log"))[-1].read_bytes()
    last = int(sorted(place.rglob("*.log"))[-1].name[:20])
    objects = {path: path.read_bytes() for path in place.rglob("*") if path.is_file()}
    for name, damage in damages(place, kind):
        damage()
        with open_bucket(place) as remote:
            orders = remote["orders-0"]
            found: list[int] = []
            with pytest.raises(LogfsError):
                found.extend(record.offset for record in orders.read())
            assert found[:last] == [*range(last)], name
            assert orders.log_end_offset > found[-1] + 1, name
            # The text does not end silently, either.
            text = orders.text(View.LINES)
            with pytest.raises(LogfsError):
                assert bytes(text.read(0, text.size)) is None, name
        assert any(finding.severity for finding in check(as_path(url(place)))), name
        for path, data in objects.items():
            path.write_bytes(data)
    assert len(before) > 1000
    with open_bucket(place) as remote:
        assert [r.offset for r in remote["orders-0"].read()] == [*range(RECORDS)]


def test_a_copy_that_was_cut_between_batches_is_found_by_the_audit(
    put: Put, partition: Path, place: Path
) -> None:
    """In Kafka's layout nothing else tells where a segment ends."""
    copy(put, partition, "local")
    log = sorted(place.rglob("*.log"))[-1]
    with open_bucket(place) as remote:
        positions = [found[0] for found in remote["orders-0"].segments[-1].walk()]
        position = positions[len(positions) // 2]
    log.write_bytes(log.read_bytes()[:position])
    assert any(finding.severity for finding in check(as_path(url(place))))


@pytest.mark.parametrize("kind", KINDS)
def test_damage_in_the_middle_is_never_silent(
    put: Put, partition: Path, place: Path, kind: str
) -> None:
    """An empty .log object is an error of its records, and what is before it is printed; a lost one is found."""
    copy(put, partition, kind)
    log = sorted(place.rglob("*.log"))[2]
    data, base = log.read_bytes(), int(log.name[:20])
    log.write_bytes(b"")
    with open_bucket(place) as remote:
        found: list[int] = []
        with pytest.raises(LogfsError):
            found.extend(record.offset for record in remote["orders-0"].read())
        assert found == [*range(base)]
        with pytest.raises(LogfsError):
            remote["orders-0"].record(base)
    for form in ((), ("-F", "%s\\n"), ("-J",)):
        done = call("cat", f"{url(place)}/orders-0", *form)
        assert done.returncode == 1
        assert done.stdout.count(b"\n") == base
    assert any(finding.severity for finding in check(as_path(url(place))))
    log.unlink()
    assert any("are missing" in str(finding) for finding in check(as_path(url(place))))
    log.write_bytes(data)
    assert not [finding for finding in check(as_path(url(place))) if finding.severity]


@pytest.mark.parametrize("kind", KINDS)
def test_the_audit_knows_copies_that_overlap(
    put: Put, partition: Path, place: Path, kind: str, tmp_path: Path
) -> None:
    """Their indexes go on where the next copy counts, which is no problem."""
    topic_id = uuid.uuid4()
    copy(put, partition, kind, topic_id)
    with Store(tmp_path / "other", create=True) as store:
        set_topic(store, "orders", segment_bytes=6_500, index_interval_bytes=500)
        orders = store.create("orders-0")
        with Store(partition.parent, read_only=True) as first:
            for batch in first["orders-0"].batches(0):
                orders.append([*batch.records()])
    copy(put, tmp_path / "other/orders-0", kind, topic_id)
    with open_bucket(place) as remote:
        assert [r.offset for r in remote["orders-0"].read()] == [*range(RECORDS)]
    assert not [finding for finding in check(as_path(url(place))) if finding.severity]


def test_the_audit_reads_the_small_files_of_a_bucket(
    put: Put, partition: Path, place: Path
) -> None:
    """Damaged leader epochs, snapshots and indexes are reported, and nothing else is."""
    copy(put, partition, "local")
    assert not [finding for finding in check(as_path(url(place))) if finding.severity]
    for suffix, number in (
        (".leader_epoch_checkpoint", -1),
        (".snapshot", 1),
        (".index", 1),
        (".timeindex", -1),
    ):
        path = sorted(place.rglob(f"*{suffix}"))[number]
        data = path.read_bytes()
        path.write_bytes(b"\xff" * (len(data) + 8))
        assert any(finding.severity for finding in check(as_path(url(place)))), suffix
        path.write_bytes(data)
