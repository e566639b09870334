"""Tiered logs: segments are copied into an object store, and the log reads as if they had stayed."""

from __future__ import annotations

import functools
import os
import random
import shutil
import subprocess
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest
from Cryptodome.PublicKey import RSA

import logfs
from logfs.errors import (
    Corrupt,
    InvalidSetting,
    InvalidStore,
    LogfsError,
    OffsetOutOfRange,
    RemoteStorageError,
)
from logfs.format.text.rendering import View
from logfs.format.tiered.metadata_record import TOPIC
from logfs.log.append import partition as partition_module
from logfs.log.disk.bucket_path import as_path
from logfs.log.disk.disk import Disk
from logfs.log.follow.tiered_segment import MissingSegment
from logfs.log.read.read_committed import Isolation
from logfs.log.remote import encryption, object_store, segment_upload
from logfs.log.remote.object_store import ObjectStore
from logfs.mount.nodes.offsets import first_offsets
from logfs.store.maintenance.retention import RetentionCause
from logfs.store.observe.check import Severity, check
from logfs.store.observe.metrics import metrics
from logfs.store.observe.status import partition_status
from logfs.store.store import Store
from logfs.store.tiering.bucket_owner import FILE_NAME
from logfs.store.tiering.metadata import RemoteLogMetadata
from logfs.store.tiering.tiered_logs import TieredLogs
from tests.support.batches import NOW, Producer
from tests.support.command_line import call, ok
from tests.support.examples import drawn, seed_of
from tests.support.object_server import BUCKET, SLOW_DOWN, Answer, Request
from tests.support.partitions import flip
from tests.support.processes import wait_for
from tests.support.requirements import DEEP
from tests.support.stores import Clock, abandon, assert_clean, set_topic

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from logfs.log.append.partition import Partition
    from tests.support.mounts import Mount
    from tests.support.object_server import ObjectServer


STORED = {
    "aiven": {},
    "compressed": {"remote.storage.compression": "true", "remote.storage.chunk.bytes": "3000"},
    "local": {"remote.storage.layout": "local"},
    "encrypted": {"remote.storage.encryption.key": "first"},
    "both": {
        "remote.storage.encryption.key": "second",
        "remote.storage.compression": "true",
        "remote.storage.chunk.bytes": "3000",
    },
}


@functools.cache
def key(name: str) -> bytes:
    """Return an RSA key, of a size that wraps a segment's key, but is made in a moment."""
    return bytes(RSA.generate(1536).export_key(pkcs=8))


@pytest.fixture(autouse=True)
def keys(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> Path:
    """The directory of the RSA keys, with two where a test needs them."""
    directory = tmp_path_factory.mktemp("keys")
    if {"keys", "stored"} & set(request.node.fixturenames):
        for name in ("first", "second"):
            (directory / f"{name}.pem").write_bytes(key(name))
    monkeypatch.setenv("LOGFS_KEYS", str(directory))
    return directory


MINUTE = 61_000
# How often a copy is killed at a random step.
ROUNDS = 600 if DEEP else 30


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache directory that is empty at first."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def bucket(tmp_path: Path) -> Path:
    """The directory that stands for the bucket."""
    path = tmp_path / "bucket"
    path.mkdir()
    return path


def tiered(store: Store, bucket: Path | str, **settings: object) -> Partition:
    """Create `orders-0` with small segments, whose topic is tiered."""
    url = bucket if isinstance(bucket, str) else f"file://{bucket}"
    store.settings.set_broker("remote.storage.url", url)
    known = {
        "segment_bytes": 4000,
        "index_interval_bytes": 300,
        "remote_storage_enable": "true",
        "local_retention_bytes": 5000,
        "file_delete_delay_ms": 0,
        "retention_ms": -1,
        "local_retention_ms": -1,
        **settings,
    }
    if known["retention_ms"] != -1:
        known["local_retention_ms"] = -2
    set_topic(store, "orders", **known)
    return store.create("orders-0")


def fill(partition: Partition, count: int = 1000, word: bytes = b"value") -> None:
    """Append records with times that go back and forth, in batches of 20. Values begin with `word`."""
    first = partition.log_end_offset
    for start in range(first, first + count, 20):
        partition.append(
            [
                logfs.Record(
                    b"%b %d" % (word, n),
                    key=b"%d" % (n % 50),
                    timestamp=NOW - 10**6 + n - n % 7 * 30,
                )
                for n in range(start, start + 20)
            ]
        )


def tier(store: Store, name: str = "orders-0") -> None:
    """Copy what is due, and drop and delete what retention asks for."""
    store.tier(name)
    store.retain()
    store.remote_log_manager.expire()


def objects(bucket: Path) -> list[str]:
    """Return the names of all objects of segments in a directory that stands for a bucket."""
    files = [path for path in bucket.rglob("*") if path.is_file() and path.name != FILE_NAME]
    return sorted(str(path.relative_to(bucket)) for path in files)


def segment_keys(server: ObjectServer) -> list[str]:
    """Return the keys of all objects of segments."""
    return [key for key in server.stored_keys() if not key.endswith(FILE_NAME)]


def start_offsets(bucket: Path) -> list[int]:
    """Return the first offsets of the segments that are in a bucket."""
    return sorted({int(path.rpartition("/")[2].split("-")[0]) for path in objects(bucket)})


# Reading.


@pytest.mark.drawn(1)
@pytest.mark.parametrize("stored", STORED)
def test_a_tiered_log_reads_as_one_that_never_was(
    log_dir: Path, bucket: Path, tmp_path: Path, clock: Clock, stored: str
) -> None:
    """Two segments are local: records by offset and by time, texts, keys, ranges and the last records.

    In the default layout there are 200 segments, and every record and time is looked up.

    The same with another process's view of it, after a clean close, and after a crash.
    """
    with Store(log_dir, clock=clock) as store:
        for name, value in STORED[stored].items():
            store.settings.set_broker(name, value)
        partition = tiered(store, bucket, segment_bytes=500, local_retention_bytes=500)
        fill(partition, 4200 if stored == "aiven" else 1000)
        assert len(partition.segments) >= (200 if stored == "aiven" else 50)
        partition.flush()
        # A copy that was never tiered.
        plain = tmp_path / "plain"
        shutil.copytree(log_dir, plain)
        (plain / "orders@p").write_bytes(b"retention.ms=-1\n")
        tier(store)
        assert len(partition.local_segments) == 2
        with Store(plain, clock=clock) as other:
            twin = other["orders-0"]
            assert_same(partition, twin, every=stored == "aiven")
            with Store(log_dir, read_only=True, clock=clock) as reading:
                assert_same(reading["orders-0"], twin)
    with Store(log_dir, clock=clock) as store, Store(plain, clock=clock) as other:
        assert_same(store["orders-0"], other["orders-0"])
        fill(store["orders-0"], 100)
        fill(other["orders-0"], 100)
        store["orders-0"].flush()
        abandon(store)
        with Store(log_dir, clock=clock) as again:
            assert len(again["orders-0"].local_segments) < 20
            assert_same(again["orders-0"], other["orders-0"])


def assert_same(log: Partition, twin: Partition, *, every: bool = False) -> None:
    """Assert that two logs read the same."""
    chance = random.Random(1)
    assert (log.log_start_offset, log.log_end_offset) == (
        twin.log_start_offset,
        twin.log_end_offset,
    )
    assert log.size_bytes == twin.size_bytes
    records = list(twin.read())
    assert list(log.read()) == records
    end = twin.log_end_offset
    for offset in range(end) if every else chance.sample(range(end), 60):
        assert log.record(offset) == records[offset]
    times = [r.timestamp for r in (records if every else chance.sample(records, 60))]
    for time in times:
        assert time is not None
        assert log.offset_for_time(time) == twin.offset_for_time(time)
        assert log.offset_for_time(time, shown=True) == twin.offset_for_time(time, shown=True)
    for special in (-1, -2, -3):
        assert log.offset_for_time(special) == twin.offset_for_time(special)
    for view in (View.LINES, View.ENVELOPES):
        text, expected = log.text(view), twin.text(view)
        assert text.size == expected.size
        for position in [0, *(chance.randrange(text.size) for _ in range(30))]:
            assert text.read(position, 500) == expected.read(position, 500)
    for key in (b"0", b"7", b"49"):
        assert log.newest(key) == twin.newest(key)
    assert log.offset_of_last(10) == twin.offset_of_last(10)
    assert log.last_offset() == twin.last_offset()
    first = chance.randrange(end)
    assert list(log.read(first, first + 100)) == records[first : first + 100]
    assert log.epochs.entries == twin.epochs.entries


def test_what_needs_no_object(log_dir: Path, server: ObjectServer, clock: Clock) -> None:
    """The size of the text, the last records, the list of segments and the status: not one request."""
    with Store(log_dir, clock=clock) as store:
        partition = tiered(store, f"s3://{BUCKET}/tiered")
        fill(partition)
        expected = partition.text(View.LINES).size
        tier(store)
    server.requests.clear()
    for read_only in (False, True):
        with Store(log_dir, clock=clock, read_only=read_only) as store:
            partition = store["orders-0"]
            assert len(partition.local_segments) < len(partition.segments)
            assert partition.text(View.LINES).size == expected
            assert partition.record(partition.offset_of_last(10)) is not None
            assert partition.offset_for_time(NOW + 1) is None
            assert partition.size_bytes > 5000
            assert len(list(first_offsets(partition))) == len(partition.segments)
            status = partition_status(partition, store)
            assert status["local_segments"] == len(partition.local_segments)
    assert not server.requests


@pytest.mark.drawn(2)
@pytest.mark.parametrize("stored", STORED)
def test_a_cold_lookup_needs_three_requests(
    log_dir: Path, server: ObjectServer, clock: Clock, stored: str
) -> None:
    """By offset: at most the manifest, the indexes and a chunk; the same chunk serves its neighbours."""
    with Store(log_dir, clock=clock) as store:
        for name, value in STORED[stored].items():
            if name != "remote.storage.chunk.bytes":
                store.settings.set_broker(name, value)
        fill(tiered(store, f"s3://{BUCKET}/tiered"))
        tier(store)
    server.requests.clear()
    with Store(log_dir, clock=clock) as store:
        partition = store["orders-0"]
        for offset in (50, 333, 600):
            before = len(server.requests)
            assert partition.record(offset) is not None
            assert 0 < len(server.requests) - before <= 3
            before = len(server.requests)
            assert partition.record(offset) is not None
            assert len(server.requests) == before


def test_transactions_are_hidden_across_tiers(log_dir: Path, bucket: Path, clock: Clock) -> None:
    """Aborted ones of remote segments are hidden; an open one keeps its segments from being copied."""
    with Store(log_dir, clock=clock) as store:
        partition = tiered(store, bucket, segment_bytes=500)
        producer = Producer(partition, 7)
        for number in range(60):
            producer.send(f"key {number}")
            producer.end(commit=number % 3 > 0)
        expected = list(partition.committed.read())
        tier(store)
        assert len(partition.segments) - len(partition.local_segments) > 5
        assert list(partition.committed.read()) == expected
        unstable = producer.send("open")
        for _ in range(20):
            Producer(partition, 8, transactional=False).sequence = 0
            partition.append([b"x" * 100])
        tier(store)
        copied = store.tiered.of(partition)
        assert copied is not None
        assert copied.end_offset <= unstable
        assert "transaction" in store.remote_log_manager.plan("orders-0").stays
    with Store(log_dir, read_only=True) as store:
        assert list(store["orders-0"].isolated(Isolation.READ_COMMITTED).read()) == expected


def test_producers_survive_a_crash_when_only_the_active_segment_is_local(
    log_dir: Path, bucket: Path, clock: Clock
) -> None:
    """A batch that its producer sends again is recognised, although the first copy is only in the object store."""
    with Store(log_dir, clock=clock) as store:
        partition = tiered(store, bucket, local_retention_bytes=0)
        producer = Producer(partition, 7, transactional=False)
        first = producer.send("once")
        sent = producer.sent
        partition.roll(clock())
        tier(store)
        assert partition.local_start_offset == partition.log_end_offset
        abandon(store)
        with Store(log_dir, clock=clock) as again:
            found = again["orders-0"].append_batch(sent)
            assert (found.first_offset, found.duplicate) == (first, True)


def test_remote_segments_are_looked_at_while_others_are_copied(
    log_dir: Path, bucket: Path, clock: Clock
) -> None:
    """What a reader has asked for does not change under it: retention looks at all segments while one is copied."""
    with Store(log_dir, clock=clock) as store:
        orders = tiered(store, bucket)
        fill(orders)
        store.tier("orders-0")
        remote = store.tiered.identify(orders)
        assert remote is not None
        known = len(store.tiered.metadata.segments(remote))
        for _ in store.tiered.metadata.segments(remote).values():
            fill(orders, 200)
            store.tier("orders-0")
        assert len(store.tiered.metadata.segments(remote)) > known


def test_a_reader_goes_on_while_its_segments_leave(
    log_dir: Path, bucket: Path, clock: Clock
) -> None:
    """A text that was opened before, in this process and in another, reads the same bytes."""
    with Store(log_dir, clock=clock) as store:
        partition = tiered(store, bucket)
        fill(partition)
        partition.flush()
        with Store(log_dir, read_only=True) as other:
            text, seen = partition.text(View.LINES), other["orders-0"].text(View.LINES)
            whole = text.read(0, text.size)
            assert text.read(0, 100) == seen.read(0, 100) == whole[:100]
            tier(store)
            clock.now_ms += 1000
            store.upkeep()
            for view in (text, seen, partition.text(View.LINES)):
                assert view.read(0, len(whole)) == whole
            other.refresh()
            assert other["orders-0"].text(View.LINES).read(0, len(whole)) == whole
            assert len(list(other["orders-0"].read())) == 1000


# Copying.


def test_the_number_of_metadata_partitions_is_fixed(
    log_dir: Path, bucket: Path, clock: Clock
) -> None:
    """It can be chosen until the first copy; a later change, which would lose the remote segments, is refused."""
    name = "remote.log.metadata.topic.num.partitions"
    with Store(log_dir, clock=clock) as store:
        for count in ("9", None, "20"):
            store.settings.set_broker(name, count)
        fill(tiered(store, bucket))
        tier(store)
    with Store(log_dir, clock=clock) as store:
        partition = store["orders-0"]
        assert partition.local_start_offset > 0
        for count in ("7", "50", None):
            with pytest.raises(InvalidSetting, match=r"num\.partitions: is fixed at 20"):
                store.settings.set_broker(name, count)
        store.settings.change_broker({name: "20", "log.retention.ms": "-1"})
        assert partition.record(0) is not None


def test_objects_are_those_of_the_layout(log_dir: Path, bucket: Path, clock: Clock) -> None:
    """What is in the bucket alone reads as the sealed part of the log, byte for byte."""
    with Store(log_dir, clock=clock) as store:
        partition = tiered(store, bucket)
        fill(partition)
        logs = {s.base_offset: s.path.read_bytes() for s in partition.segments[:-1]}
        expected = list(partition.read(0, partition.active.base_offset))
        tier(store)
        named = store.tiered.identify(partition)
    assert start_offsets(bucket) == sorted(logs)
    for path in bucket.rglob("*.log"):
        assert path.read_bytes() == logs[int(path.name.split("-")[0])]
    assert named is not None
    with Store(f"file://{bucket}", read_only=True) as alone:
        assert list(alone["orders-0"].read()) == expected
        assert alone["orders-0"].text(View.LINES).size == sum(
            len(r.value or b"") + 1 for r in expected
        )


def test_encrypted_segments_need_their_key(
    log_dir: Path, bucket: Path, clock: Clock, keys: Path
) -> None:
    """Nothing of the records is in the bucket; without the key the error names its file, and not its content."""
    with Store(log_dir, clock=clock) as store:
        store.settings.set_broker("remote.storage.encryption.key", "first")
        partition = tiered(store, bucket)
        partition.append([b"secret words"] * 100)
        fill(partition, 400)
        tier(store)
        records = list(partition.read())
        for path in objects(bucket):
            assert b"secret words" not in (bucket / path).read_bytes()
        with pytest.raises(InvalidSetting, match="neither compresses nor encrypts"):
            store.settings.set_broker("remote.storage.layout", "local")
    url = f"file://{bucket}"
    with Store(url, read_only=True) as alone:
        found = list(alone["orders-0"].read())
        assert found == records[: len(found)]
        assert len(found) > 300
    encryption._oaep.cache_clear()
    (keys / "first.pem").write_bytes(key("second"))
    with Store(log_dir, clock=clock) as store:
        (bucket.parent / "cache").rename(bucket.parent / "warm")
        with pytest.raises(Corrupt, match=r"first\.pem"):
            store["orders-0"].record(0)
    encryption._oaep.cache_clear()
    (keys / "first.pem").unlink()
    with Store(log_dir, clock=clock) as store:
        with pytest.raises(InvalidStore, match=r"first\.pem.*LOGFS_KEYS"):
            store["orders-0"].record(0)
        assert store["orders-0"].record(records[-1].offset) == records[-1]
    (keys / "first.pem").write_bytes(key("first"))
    encryption._oaep.cache_clear()


@pytest.mark.drawn(2)
@pytest.mark.parametrize("stored", STORED)
def test_nothing_is_fetched_twice(
    log_dir: Path, server: ObjectServer, clock: Clock, keys: Path, stored: str
) -> None:
    """Of a bucket alone, in any form: no bytes are asked for again while they are in the cache."""
    with Store(log_dir, clock=clock) as store:
        for name, value in STORED[stored].items():
            store.settings.set_broker(name, value)
        fill(tiered(store, f"s3://{BUCKET}/tiered"))
        tier(store)
    server.requests.clear()
    for _ in range(2):
        with Store(f"s3://{BUCKET}/tiered", read_only=True) as alone:
            partition = alone["orders-0"]
            assert partition.record(100) is not None
            assert len(list(partition.read())) > 300
    asked = [(request.key, request.range) for request in server.gets()]
    assert len(asked) == len(set(asked))


class Killed(BaseException):
    """Stands for the end of the process at this point."""


def test_a_kill_at_any_step_leaves_neither_loss_nor_garbage(
    log_dir: Path, bucket: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before and after each request and each record, twice in a row; then everything is copied, and nothing else."""
    with Store(log_dir, clock=clock) as store:
        fill(tiered(store, bucket), 500)
        expected = list(store["orders-0"].read())
    left = [0]

    def counted(call: Callable[..., object]) -> Callable[..., object]:
        def stopping(*arguments: object, **more: object) -> object:
            left[0] -= 1
            if left[0] == 0:
                raise Killed
            found = call(*arguments, **more)
            left[0] -= 1
            if left[0] == 0:
                raise Killed
            return found

        return stopping

    for owner, name in (
        (ObjectStore, "put"),
        (ObjectStore, "get"),
        (ObjectStore, "delete"),
        (RemoteLogMetadata, "add"),
    ):
        monkeypatch.setattr(owner, name, counted(getattr(owner, name)))
    chance = random.Random(seed_of())
    kills = 0
    for _ in range(ROUNDS):
        left[0] = chance.randrange(1, 25)
        store = Store(log_dir, clock=clock)
        try:
            tier(store)
            clock.now_ms += 1000
        except Killed:
            kills += 1
            abandon(store)
        else:
            store.close()
    left[0] = -1
    assert kills > ROUNDS // 4, seed_of()
    with Store(log_dir, clock=clock) as store:
        tier(store)
        clock.now_ms += 1000
        store.remote_log_manager.expire()
        partition = store["orders-0"]
        assert list(partition.read()) == expected
        log = store.tiered.of(partition)
        assert log is not None
        # Four objects of each segment, and no other.
        assert len(objects(bucket)) == 4 * len(log.finished())
        assert log.end_offset == partition.active.base_offset


def test_a_conflict_in_the_store_is_an_error(
    log_dir: Path, server: ObjectServer, clock: Clock
) -> None:
    """An object that could not be overwritten (409) is not taken for stored."""
    conflict = (
        b"<Error><Code>OperationAborted</Code><Message>A conflicting operation</Message></Error>"
    )
    with Store(log_dir, clock=clock) as store:
        partition = tiered(store, f"s3://{BUCKET}/tiered")
        fill(partition, 400)
        store.tiered.owner.claim()
        answer = Answer("409 Conflict", conflict)
        server.fault = lambda request: answer if request.method == "PUT" else None
        with pytest.raises(RemoteStorageError, match="OperationAborted"):
            tier(store)
        server.fault = lambda request: None
        tier(store)


@pytest.mark.drawn(1)
@pytest.mark.parametrize("layout", ["aiven", "local"])
def test_faults_of_the_server(
    log_dir: Path, server: ObjectServer, clock: Clock, layout: str
) -> None:
    """500, SlowDown, answers that are cut, and wrong bytes: no local segment goes before its copy is right."""
    chance = random.Random(seed_of())
    kinds = [
        Answer("500 Internal Server Error"),
        Answer("503 Slow Down", SLOW_DOWN.encode()),
        Answer("403 Forbidden"),
        Answer("404 Not Found"),
        Answer(is_cut=True),
        Answer(change=lambda body: bytes([body[0] ^ 1]) + body[1:] if body else body),
    ]
    with Store(log_dir, clock=clock) as store:
        store.settings.set_broker("remote.storage.layout", layout)
        partition = tiered(store, f"s3://{BUCKET}/tiered")
        fill(partition, 400)
        expected = list(partition.read())
        errors = 0
        # In the first round every request fails, so that there is an error whatever is drawn.
        for share in [1, *[0.3] * 11]:
            server.fault = lambda _, share=share: (
                chance.choice(kinds) if chance.random() < share else None
            )
            try:
                tier(store)
            except RemoteStorageError:
                errors += 1
            server.fault = lambda request: None
            assert list(partition.read()) == expected
            clock.now_ms += 1000
        assert errors
        tier(store)
        clock.now_ms += 1000
        store.remote_log_manager.expire()
        log = store.tiered.of(partition)
        assert log is not None
        assert log.end_offset == partition.active.base_offset
        assert {int(k.rpartition("/")[2][:20]) for k in segment_keys(server)} == {
            each.start_offset for each in log.finished()
        }
        count = {"aiven": 4, "local": 6}[layout]
        assert len(segment_keys(server)) == count * len(log.finished())


def test_a_copy_that_reads_back_wrong_does_not_count(
    log_dir: Path, server: ObjectServer, clock: Clock
) -> None:
    """It is an error that names the object, and the local segment stays."""
    with Store(log_dir, clock=clock) as store:
        partition = tiered(store, f"s3://{BUCKET}/tiered")
        fill(partition)
        files = len(partition.local_segments)

        def fault(request: Request) -> Answer | None:
            wrong = Answer(change=lambda body: body[:-1] + bytes([body[-1] ^ 1]))
            return wrong if request.method == "GET" and request.key.endswith(".log") else None

        server.fault = fault
        with pytest.raises(RemoteStorageError, match=r"s3://.*\.log: .* CRC-32C"):
            store.tier("orders-0")
        store.retain()
        assert len(partition.local_segments) == files
        server.fault = lambda request: None
        tier(store)
        assert len(partition.local_segments) < files


@pytest.mark.drawn(1)
@pytest.mark.parametrize("stored", STORED)
def test_bytes_that_arrive_wrong_are_never_shown(
    log_dir: Path, server: ObjectServer, clock: Clock, stored: str
) -> None:
    """A lookup by offset or time, or a text, is right or an error; it is right again once the server is."""
    chance = random.Random(seed_of())

    def flipped(body: bytes) -> bytes:
        wrong = bytearray(body)
        for _ in range(3):
            wrong[chance.randrange(len(wrong))] ^= 1 << chance.randrange(8)
        return bytes(wrong)

    with Store(log_dir, clock=clock) as store:
        for name, value in STORED[stored].items():
            store.settings.set_broker(name, value)
        partition = tiered(store, f"s3://{BUCKET}/tiered")
        fill(partition, 1000)
        records = list(partition.read())
        times = [r.timestamp for r in records if r.timestamp is not None]
        found = {time: partition.offset_for_time(time) for time in times}
        text = partition.text(View.LINES).read(0, 10**6)
        tier(store)
        assert partition.local_start_offset > 500
    errors = 0
    for _ in range(5):
        shutil.rmtree(log_dir.parent / "cache", ignore_errors=True)
        with Store(log_dir, clock=clock, read_only=True) as store:
            partition = store["orders-0"]
            server.fault = lambda request: (
                Answer(change=flipped)
                if request.method == "GET" and chance.random() < 0.8
                else None
            )
            for record in chance.sample(records, 15):
                try:
                    assert partition.record(record.offset) == record
                    assert record.timestamp is not None
                    assert partition.offset_for_time(record.timestamp) == found[record.timestamp]
                    at = chance.randrange(len(text))
                    assert partition.text(View.LINES).read(at, 100) == text[at : at + 100]
                except (LogfsError, OSError):
                    errors += 1
            server.fault = lambda request: None
            assert list(partition.read()) == records
            for time in drawn(times, 100):
                assert partition.offset_for_time(time) == found[time]
            assert partition.text(View.LINES).read(0, 10**6) == text
    assert errors


def test_upkeep_copies_and_waits_after_an_error(
    log_dir: Path, bucket: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every `remote.log.manager.task.interval.ms`; what fails is tried again after a wait, and counted."""
    with Store(log_dir, clock=clock) as store:
        partition = tiered(store, bucket)
        fill(partition)
        manager = store.remote_log_manager
        monkeypatch.setattr(object_store, "_RETRY_SECONDS", 0)
        bucket.rmdir()
        store.upkeep()
        assert manager.copy_errors == 1
        assert list(manager.backoff)
        # The claim of the bucket, and the copies of the partition.
        text = metrics(store)
        assert b"\nlogfs_upkeep_waiting 2\n" in text
        assert b"\nlogfs_upkeep_failures_total 2\n" in text
        lag, place = manager.plan_of(partition), b'{topic="orders",partition="0"}'
        assert len(lag.segments) == len(partition.segments) - 1
        assert b"remotecopylagbytes%s %d\n" % (place, lag.size_bytes) in text
        assert b"remotecopylagsegments%s %d\n" % (place, len(lag.segments)) in text
        # Retries after one second, then two, although the interval is 30 s.
        for wait_ms in (1000, 2000):
            clock.now_ms += wait_ms - 1
            store.upkeep()
            errors = manager.copy_errors
            clock.now_ms += 1
            store.upkeep()
            assert manager.copy_errors == errors + 1
        bucket.mkdir()
        clock.now_ms += 3999
        store.upkeep()
        assert manager.copied_segments == 0
        clock.now_ms += 1
        store.upkeep()
        assert manager.copied_segments == len(partition.segments) - 1
        assert not list(manager.backoff)
        assert not manager.plan_of(partition).segments
        text = metrics(store)
        assert b"remotecopylagbytes%s 0\n" % place in text
        assert b"remotelogsizebytes%s %d\n" % (place, lag.size_bytes) in text


# Retention (KIP-405).


def test_nothing_is_dropped_without_a_topic_id(log_dir: Path, bucket: Path, clock: Clock) -> None:
    """A partition that has lost its topic id cannot be copied, so neither limit drops its segments."""
    with Store(log_dir, clock=clock) as store:
        fill(tiered(store, bucket, retention_ms=1000, remote_log_copy_disable="false"))
    (log_dir / "orders-0/partition.metadata").unlink()
    with Store(log_dir, clock=clock) as store:
        with pytest.raises(InvalidSetting):
            store.tier("orders-0")
        assert store.retain() == 0
        assert next(store["orders-0"].read()).offset == 0
        assert "not in the object store yet" in store.retention_plan("orders-0").stays


def test_a_plan_names_what_is_not_copied(log_dir: Path, bucket: Path, clock: Clock) -> None:
    """What is old enough but not copied stays for that reason, and not until a time in the past."""
    with Store(log_dir, clock=clock) as store:
        fill(tiered(store, bucket, retention_ms=1000, remote_log_copy_disable="false"))
        assert "is older than retention.ms=1000, but it is not in the object store yet" in (
            store.retention_plan("orders-0").stays
        )
        store.settings.set_topic("orders", "retention.ms", str(10**12))
        assert "may be deleted after" in store.retention_plan("orders-0").stays
        store.settings.set_topic("orders", "retention.ms", "-1")
        store.settings.set_topic("orders", "retention.bytes", "5000")
        assert "the log exceeds retention.bytes=5000 by" in store.retention_plan("orders-0").stays
        store.tier("orders-0")
        assert store.retention_plan("orders-0").expired


def test_what_is_not_copied_stays(log_dir: Path, bucket: Path, clock: Clock) -> None:
    """Neither total nor local retention drops a segment before it is copied; without copying, the total does."""
    with Store(log_dir, clock=clock) as store:
        partition = tiered(store, bucket, retention_bytes=9000, local_retention_bytes=5000)
        fill(partition)
        store.retain()
        assert partition.log_start_offset == 0
        tier(store)
        assert partition.log_start_offset > 0
        assert partition.size_bytes - partition.segments[0].size_bytes <= 9000
        assert partition.local_bytes < 9000
        start = partition.log_start_offset
        with pytest.raises(InvalidSetting, match=r"set local\.retention\.bytes to -2 first"):
            set_topic(store, "orders", remote_log_copy_disable="true")
        set_topic(store, "orders", local_retention_bytes=-2, remote_log_copy_disable="true")
        fill(partition)
        local = partition.local_start_offset
        assert store.tier("orders-0") == 0
        store.retain()
        # Only as much as the whole log may have stays, although the newest segments are not copied.
        assert partition.log_start_offset > max(start, local)
        assert not partition.segments[0].is_tiered


def test_local_segments_go_by_time(log_dir: Path, bucket: Path, clock: Clock) -> None:
    """Those that were copied, when their newest record is older than `local.retention.ms`; no record goes."""
    with Store(log_dir, clock=clock) as store:
        partition = tiered(store, bucket, local_retention_bytes=-1, local_retention_ms=1000)
        fill(partition)
        records = list(partition.read())
        clock.now_ms += 10**9
        store.retain()
        assert partition.local_start_offset == 0
        assert store.tier("orders-0")
        count = len(partition.segments)
        store.retain()
        *sealed, active = partition.segments
        assert all(segment.is_tiered for segment in sealed)
        assert (len(sealed), active.is_tiered) == (count - 1, False)
        assert store.retainer.segments == {RetentionCause.LOCAL_TIME: count - 1}
        assert partition.log_start_offset == 0
        assert list(partition.read()) == records


def test_remote_segments_go_with_the_log_start(log_dir: Path, bucket: Path, clock: Clock) -> None:
    """`delete_records` and retention by time: the log start moves first, then objects go, after the delay."""
    with Store(log_dir, clock=clock) as store:
        partition = tiered(store, bucket, file_delete_delay_ms=60_000, retention_ms=10 * 10**6)
        fill(partition)
        tier(store)
        records = list(partition.read())
        before = start_offsets(bucket)
        store.delete_records("orders-0", 500)
        text = partition.text(View.LINES)
        store.retain()
        store.remote_log_manager.expire()
        assert start_offsets(bucket) == before
        clock.now_ms += 60_001
        store.remote_log_manager.expire()
        assert start_offsets(bucket)[0] == partition.segments[0].base_offset <= 500
        assert text.read(0, 10) == b"value 500\n"
        assert list(partition.read()) == records[500:]
    with Store(log_dir, clock=clock) as store:
        assert list(store["orders-0"].read()) == records[500:]
        clock.now_ms += 10 * 10**6
        tier(store)
        assert store["orders-0"].log_start_offset == store["orders-0"].local_start_offset
        clock.now_ms += 60_001
        store.remote_log_manager.expire()
        log = store.tiered.of(store["orders-0"])
        assert log is not None
        assert not log.finished() or log.end_offset > store["orders-0"].log_start_offset


def test_deleted_records_stay_deleted_where_the_local_segments_begin(
    log_dir: Path, bucket: Path
) -> None:
    """The log start is durable also if it is the first local offset: after a crash no remote record comes back."""
    with Store(log_dir) as store:
        orders = tiered(store, bucket)
        fill(orders)
        store.tier("orders-0")
        store.retain()
        start = orders.local_start_offset
        assert orders.log_start_offset == 0 < start
        store.delete_records("orders-0", start)
        abandon(store)
    with Store(log_dir) as store:
        assert store["orders-0"].log_start_offset == start


def test_a_deleted_partition_leaves_no_object(log_dir: Path, bucket: Path, clock: Clock) -> None:
    """And another one of the same name, also of the same topic id, has nothing of it."""
    with Store(log_dir, clock=clock) as store:
        fill(tiered(store, bucket))
        second = store.create("orders-1")
        fill(second)
        for name in ("orders-0", "orders-1"):
            tier(store, name)
        kept = list(second.read())
        store.delete("orders-0")
        again = store.create("orders-0")
        assert again.log_start_offset == again.log_end_offset == 0
        fill(again, 300)
        tier(store)
        clock.now_ms += 1000
        store.upkeep()
        store.remote_log_manager.expire()
        assert [r.offset for r in again.read()] == [*range(300)]
        assert list(second.read()) == kept
        store.delete("orders-0")
        store.delete("orders-1")
        # Until the files are removed, the partitions may be brought back.
        clock.now_ms += 1001
        store.upkeep()
        # With the topic's settings, its own delay is gone.
        clock.now_ms += 60_001
        store.remote_log_manager.expire()
        assert not objects(bucket)
        assert not store.tiered.metadata.partitions()


def test_a_crash_in_a_deletion_leaves_no_object(
    log_dir: Path, bucket: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the delay, and before the deletion of its remote segments was recorded."""
    store = Store(log_dir, clock=clock)
    fill(tiered(store, bucket))
    tier(store)
    store.delete("orders-0")
    clock.now_ms += 60_001

    def kill(*_: object) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(RemoteLogMetadata, "mark_deleted", kill)
        with pytest.raises(Killed):
            store.upkeep()
    abandon(store)
    with Store(log_dir, clock=clock) as store:
        store.upkeep()
        clock.now_ms += 60_001
        store.remote_log_manager.expire()
        assert not objects(bucket)


def test_a_deleted_partition_comes_back_with_its_objects(
    log_dir: Path, bucket: Path, clock: Clock
) -> None:
    """What only the object store has of it is read, and is deleted neither before nor after that."""
    with Store(log_dir, clock=clock) as store:
        fill(tiered(store, bucket, file_delete_delay_ms=1000))
        tier(store)
        store.retain()
        before = list(store["orders-0"].read())
        local = store["orders-0"].local_start_offset
        assert local > 0
        store.delete("orders-0")
        clock.now_ms += 999
        store.upkeep()
        store.remote_log_manager.expire()
        assert list(store.undelete("orders-0").read()) == before
        clock.now_ms += 100_000
        store.upkeep()
        store.remote_log_manager.expire()
    with Store(log_dir, clock=clock) as store:
        assert list(store["orders-0"].read()) == before
        assert store["orders-0"].local_start_offset == local


def test_tiering_is_switched_off(log_dir: Path, bucket: Path, clock: Clock) -> None:
    """Only with `remote.log.delete.on.disable`, which deletes the remote segments; the log begins locally then."""
    with Store(log_dir, clock=clock) as store:
        partition = tiered(store, bucket)
        fill(partition)
        tier(store)
        with pytest.raises(InvalidSetting, match=r"remote\.log\.copy\.disable"):
            set_topic(store, "orders", remote_storage_enable="false")
        set_topic(store, "orders", remote_log_delete_on_disable="true")
        local = partition.local_start_offset
        set_topic(store, "orders", remote_storage_enable="false")
        store.remote_log_manager.expire()
        assert partition.log_start_offset == local == partition.segments[0].base_offset
        clock.now_ms += 1000
        store.remote_log_manager.expire()
        assert not objects(bucket)
    with Store(log_dir, clock=clock) as store:
        assert store["orders-0"].log_start_offset == local
        assert [r.offset for r in store["orders-0"].read()] == [*range(local, 1000)]


@pytest.mark.parametrize("is_deleted", [False, True])
def test_tiering_is_switched_off_in_a_log_that_is_not_open(
    log_dir: Path, bucket: Path, clock: Clock, is_deleted: bool
) -> None:
    """The next opening deletes the remote segments; read-only ones, and the audit, then begin at the local ones."""
    with Store(log_dir, clock=clock) as store:
        partition = tiered(store, bucket, remote_log_delete_on_disable="true")
        fill(partition)
        tier(store)
        local = partition.local_start_offset
        assert local > 0
    with Store(log_dir, clock=clock, only="") as store:
        set_topic(store, "orders", remote_storage_enable="false")
    with Store(log_dir, clock=clock) as store:
        store.remote_log_manager.expire()
        if is_deleted:
            clock.now_ms += 1000
            store.remote_log_manager.expire()
            assert not objects(bucket)
    with Store(log_dir, clock=clock, read_only=True) as store:
        assert store["orders-0"].log_start_offset == local
        assert [r.offset for r in store["orders-0"].read()] == [*range(local, 1000)]
    assert_clean(log_dir)


def test_a_bucket_is_named_anew_while_nothing_is_copied(
    log_dir: Path, bucket: Path, clock: Clock, tmp_path: Path
) -> None:
    """A corrected URL is used at once; while there are copies, a changed one only by the next opening."""
    with Store(log_dir, clock=clock) as store:
        partition = tiered(store, bucket)
        fill(partition)
        store.settings.set_broker("remote.storage.url", f"file://{tmp_path}/missing")
        with pytest.raises((OSError, LogfsError), match="missing"):
            store.tier("orders-0")
        store.settings.set_broker("remote.storage.url", f"file://{bucket}")
        assert store.tier("orders-0") > 0
        copied = objects(bucket)
        assert copied
        other = tmp_path / "other"
        other.mkdir()
        store.settings.set_broker("remote.storage.url", f"file://{other}")
        fill(partition)
        assert store.tier("orders-0") > 0
        assert len(objects(bucket)) > len(copied)
        assert not objects(other)


def test_a_truncation_takes_copies_with_it(log_dir: Path, bucket: Path, clock: Clock) -> None:
    """Those that hold a dropped record; a log cannot end where only the object store has it."""
    with Store(log_dir, clock=clock) as store:
        partition = tiered(store, bucket, local_retention_bytes=9000)
        fill(partition)
        tier(store)
        local = partition.local_start_offset
        with pytest.raises(OffsetOutOfRange, match="object store"):
            store.truncate("orders-0", local - 10)
        log = store.tiered.of(partition)
        assert log is not None
        assert log.end_offset == partition.active.base_offset
        store.truncate("orders-0", local + 10)
        assert log.end_offset <= local + 10
        fill(partition, 400)
        records = list(partition.read())
        tier(store)
        clock.now_ms += 1000
        store.remote_log_manager.expire()
        assert list(partition.read()) == records
    with Store(log_dir, clock=clock) as store:
        assert list(store["orders-0"].read()) == records


# Settings, and the store as a whole.


def test_settings_are_checked(log_dir: Path, bucket: Path, clock: Clock) -> None:
    """Kafka's checks, a bucket before a tiered topic, and no credentials in a URL."""
    with Store(log_dir, clock=clock) as store:
        store.create("orders-0")
        with pytest.raises(InvalidSetting, match=r"remote\.storage\.url"):
            set_topic(store, "orders", remote_storage_enable="true")
        for url in ("s3://key:hidden@bucket/x", "http://bucket", "bucket", "s3://b?X-Key=hidden"):
            with pytest.raises(InvalidSetting, match="s3://") as refused:
                store.settings.set_broker("remote.storage.url", url)
            assert "hidden" not in str(refused.value)
        store.settings.set_broker("remote.storage.url", f"file://{bucket}")
        set_topic(store, "orders", remote_storage_enable="true")
        with pytest.raises(InvalidSetting, match="compact"):
            set_topic(store, "orders", cleanup_policy="compact")
        with pytest.raises(InvalidSetting, match=r"local\.retention"):
            set_topic(store, "orders", local_retention_ms=10**12)
        store.create("plain-0")
        with pytest.raises(InvalidSetting, match="not tiered"):
            store.tier("plain-0")


def test_a_store_that_is_opened_for_one_partition(
    log_dir: Path, bucket: Path, clock: Clock
) -> None:
    """It has the remote segments, too, and its close forgets neither them nor the log start."""
    with Store(log_dir, clock=clock) as store:
        fill(tiered(store, bucket))
        tier(store)
        store.delete_records("orders-0", 30)
    with Store(log_dir, clock=clock, only="orders-0") as store:
        assert len(list(store["orders-0"].read())) == 970
        assert list(store) == ["orders-0"]
        store["orders-0"].append([b"more"])
    with Store(log_dir, clock=clock) as store:
        assert [r.offset for r in store["orders-0"].read()] == [*range(30, 1001)]


def test_a_bucket_that_cannot_be_used(
    log_dir: Path, bucket: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Missing credentials, or a directory that is not mounted, concern remote records alone; nothing is deleted."""
    with Store(log_dir, clock=clock) as store:
        fill(tiered(store, bucket))
        tier(store)
        end = store["orders-0"].log_end_offset
        store.delete_records("orders-0", 500)
        kept = objects(bucket)
        bucket.rename(bucket.with_name("away"))
        clock.now_ms += 1000
        store.retain()
        assert store.remote_log_manager.delete_errors
        with pytest.raises(RemoteStorageError):
            store["orders-0"].record(510)
        assert not bucket.exists()
        bucket.with_name("away").rename(bucket)
        assert objects(bucket) == kept
        clock.now_ms += 1000
        store.retain()
        assert len(objects(bucket)) < len(kept)
        store.settings.set_broker("remote.storage.url", "gs://bucket/x")
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", "/nonexistent.json")
    with Store(log_dir, clock=clock) as store:
        assert store["orders-0"].append([b"more"]) == end
        assert store["orders-0"].record(end - 1) is not None
        with pytest.raises((InvalidStore, RemoteStorageError)):
            store["orders-0"].record(510)
        store.settings.set_broker("remote.storage.url", f"file://{bucket}")


def test_a_local_log_that_is_behind_its_copies(
    log_dir: Path, bucket: Path, tmp_path: Path, clock: Clock
) -> None:
    """It is read up to its end, as a follower's; a store that writes does not assign the same offsets again."""
    with Store(log_dir, clock=clock) as store:
        partition = tiered(store, bucket, local_retention_bytes=12_000)
        fill(partition)
        tier(store)
        first = partition.local_segments[1].base_offset
        records = list(partition.read(0, first))
    behind = tmp_path / "behind"
    shutil.copytree(log_dir, behind)
    for path in (behind / "orders-0").iterdir():
        if path.name[:20].isdigit() and int(path.name[:20]) >= first:
            path.unlink()
    with Store(behind, clock=clock, read_only=True) as store:
        assert list(store["orders-0"].read()) == records
    with Store(behind, clock=clock) as store:
        assert store["orders-0"].append([b"new"]) >= 1000


def test_a_tiered_partition_is_moved(
    log_dir: Path, bucket: Path, tmp_path: Path, clock: Clock
) -> None:
    """Its local segments go to the other log directory, and the remote ones stay its own."""
    other = tmp_path / "other"
    with Store([log_dir, other], clock=clock) as store:
        partition = tiered(store, bucket)
        fill(partition)
        tier(store)
        records = list(partition.read())
        store.move("orders-0", other if store.registry.home("orders-0") == log_dir else log_dir)
        assert list(partition.read()) == records
        clock.now_ms += 1000
        store.upkeep()
        store.remote_log_manager.expire()
        assert list(partition.read()) == records
    with Store([log_dir, other], clock=clock) as store:
        assert list(store["orders-0"].read()) == records


@pytest.mark.parametrize("is_killed", [True, False])
def test_a_moved_partition_keeps_its_objects(
    log_dir: Path, bucket: Path, tmp_path: Path, clock: Clock, *, is_killed: bool
) -> None:
    """The directory that it was moved from is removed while the one that it was moved to is not open."""
    dirs = [log_dir, tmp_path / "other"]
    store = Store(dirs, clock=clock)
    fill(tiered(store, bucket))
    tier(store)
    for name in ("orders-0", *store.registry.partitions_of("__remote_log_metadata")):
        if store.registry.home(name) != log_dir:
            store.move(name, log_dir)
    clock.now_ms += MINUTE
    store.upkeep()
    there = objects(bucket)
    records = list(store["orders-0"].read())
    store.move("orders-0", dirs[1])
    abandon(store) if is_killed else store.close()
    with Store(log_dir, clock=clock) as alone:
        for _ in range(3):
            clock.now_ms += MINUTE
            alone.upkeep()
            alone.remote_log_manager.expire()
    assert objects(bucket) == there
    with Store(dirs, clock=clock) as store:
        assert list(store["orders-0"].read()) == records


@pytest.mark.parametrize("moves", [True, False])
def test_a_partition_that_comes_back_keeps_its_objects(
    log_dir: Path, bucket: Path, tmp_path: Path, clock: Clock, *, moves: bool
) -> None:
    """The removal of a directory that it was in before is not the end of its deletion."""
    dirs = [log_dir, tmp_path / "other"]
    with Store(dirs, clock=clock) as store:
        fill(tiered(store, bucket, file_delete_delay_ms=MINUTE))
        store.create("orders-1")
        tier(store)
        there, records = objects(bucket), list(store["orders-0"].read())
        if moves:
            store.move("orders-0", dirs[store.registry.home("orders-0") == log_dir])
        else:
            store.delete("orders-0")
            store.undelete("orders-0")
            store.delete("orders-1")
        clock.now_ms += MINUTE - 10_000
        store.delete("orders-0")
        clock.now_ms += 20_000
        store.upkeep()
        store.remote_log_manager.expire()
        store.undelete("orders-0")
        clock.now_ms += MINUTE
        store.upkeep()
        store.remote_log_manager.expire()
        assert {*there} <= {*objects(bucket)}
        assert list(store["orders-0"].read()) == records


def test_a_lost_object_is_an_error_of_its_records(
    log_dir: Path, bucket: Path, clock: Clock
) -> None:
    """The error names the object; all other records are read, and appended."""
    with Store(log_dir, clock=clock) as store:
        partition = tiered(store, bucket)
        fill(partition)
        tier(store)
        base = partition.segments[2].base_offset
        for path in list(bucket.rglob(f"{base:020}-*")):
            path.unlink()
        with pytest.raises(RemoteStorageError, match=f"{base:020}"):
            partition.record(base)
        assert partition.record(base - 1) is not None
        assert partition.record(partition.segments[2].next_offset) is not None
        partition.append([b"more"])
        with Store(log_dir, read_only=True) as other:
            with pytest.raises(RemoteStorageError, match=f"{base:020}"):
                other["orders-0"].record(base)
            assert other["orders-0"].record(base - 1) is not None
        found = call("check", log_dir)
        assert found.returncode == 1
        assert f"{base:020}".encode() in found.stdout + found.stderr
        shutil.rmtree(log_dir)


@pytest.mark.parametrize("suffix", [".log", ".indexes"])
@pytest.mark.parametrize("harm", ["delete", "cut", "flip"])
def test_check_reads_the_bucket_and_not_the_cache(
    log_dir: Path, bucket: Path, clock: Clock, suffix: str, harm: str
) -> None:
    """Records that were read before stay readable: the cache may have all that is left of an object."""
    with Store(log_dir, clock=clock) as store:
        partition = tiered(store, bucket)
        fill(partition)
        tier(store)
    assert not list(check(log_dir))
    with Store(log_dir, read_only=True) as store:
        records = list(store["orders-0"].read())
        base = store["orders-0"].segments[2].base_offset
    (path,) = bucket.rglob(f"{base:020}-*{suffix}")
    whole = path.read_bytes()
    if harm == "delete":
        path.unlink()
    else:
        middle = len(whole) // 2
        flipped = whole[:middle] + bytes([whole[middle] ^ 4]) + whole[middle + 1 :]
        path.write_bytes(whole[:middle] if harm == "cut" else flipped)
    for _ in range(2):
        found = [each for each in check(log_dir) if each.severity is Severity.ERROR]
        assert found
        assert all(f"{base:020}" in str(each) for each in found)
        with Store(log_dir, read_only=True) as store:
            assert list(store["orders-0"].read()) == records
    path.write_bytes(whole)


@pytest.mark.parametrize("layout", ["aiven", "local"])
def test_check_of_a_bucket_neither_uses_nor_fills_the_cache(
    log_dir: Path, bucket: Path, cache: Path, clock: Clock, layout: str
) -> None:
    """Bit rot in a small object is found, although its size and its mtime stay the same."""
    with Store(log_dir, clock=clock) as store:
        for name, value in STORED[layout].items():
            store.settings.set_broker(name, value)
        fill(tiered(store, bucket))
        tier(store)
    url = f"file://{bucket}"
    assert not [each for each in check(as_path(url)) if each.severity is Severity.ERROR]
    assert not [path for path in cache.rglob("*") if path.is_file()]
    with Store(url, read_only=True) as alone:
        assert list(alone["orders-0"].read())
    assert [path for path in cache.rglob("*") if path.is_file()]
    suffix = ".rsm-manifest" if layout == "aiven" else ".snapshot"
    for path in bucket.rglob(f"*{suffix}"):
        before = path.stat()
        flip(path, before.st_size // 2)
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert [each for each in check(as_path(url)) if each.severity is Severity.ERROR]


# Damaged descriptions.


@pytest.mark.parametrize("suffix", [".log", ".rsm-manifest"])
def test_an_object_that_is_missing_for_a_moment_is_read(
    log_dir: Path, server: ObjectServer, clock: Clock, suffix: str
) -> None:
    """A store may answer 404 in passing; if it goes on so, the object is lost."""
    with Store(log_dir, clock=clock) as store:
        store.settings.set_broker("remote.storage.compression", "true")
        fill(tiered(store, f"s3://{BUCKET}/tiered"))
        tier(store)
        left = [2]

        def fault(request: Request) -> Answer | None:
            if not request.key.endswith(suffix) or not left[0]:
                return None
            left[0] -= 1
            return Answer("404 Not Found")

        server.fault = fault
        assert store["orders-0"].record(50) is not None
        assert not left[0]
        left[0] = -1
        with pytest.raises(RemoteStorageError, match="lost"):
            store["orders-0"].record(600)


def test_a_chunk_whose_thread_cannot_start_is_fetched_later(
    log_dir: Path, bucket: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reader gets an error, and no other waits for the chunk; what is fetched ahead is left out."""
    real = threading.Thread.start
    failing = [1]

    def start(thread: threading.Thread) -> None:
        if failing[0] and "_fetch" in repr(getattr(thread, "_target", "")):
            failing[0] -= 1
            raise RuntimeError("can't start new thread")
        real(thread)

    with Store(log_dir, clock=clock) as store:
        store.settings.set_broker("remote.storage.chunk.bytes", "1024")
        fill(tiered(store, bucket))
        tier(store)
        partition = store["orders-0"]
        monkeypatch.setattr(threading.Thread, "start", start)
        with pytest.raises(RemoteStorageError, match="can't start new thread"):
            partition.record(50)
        found: list[object] = []
        readers = [
            threading.Thread(target=lambda: found.append(partition.record(50)), daemon=True)
            for _ in range(3)
        ]
        for reader in readers:
            reader.start()
        for reader in readers:
            reader.join(30)
        assert len(found) == 3
        for count in range(3):
            # The first thread after the needed chunk's, and later ones.
            failing[0] = 0
            records = partition.read(200 * count)
            assert next(records) is not None
            failing[0] = 1
            with suppress(RemoteStorageError):
                list(records)
        failing[0] = 0
        assert [record.offset for record in partition.read()] == list(range(1000))


def test_descriptions_are_appended_under_no_lock_of_a_partition(
    log_dir: Path, bucket: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither appended nor flushed: appends to the log go on meanwhile, and no two threads wait for each other."""
    held: list[str] = []
    done: list[str] = []

    def checked(name: str) -> None:
        real = getattr(partition_module.Partition, name)

        def call(log: Partition, *arguments: object) -> object:
            if log.topic == TOPIC:
                done.append(name)
                others = [each for each in store.registry.partitions.values() if each is not log]
                looking = threading.Thread(target=lambda: held.extend(map(locks_held, others)))
                looking.start()
                looking.join()
            return real(log, *arguments)

        monkeypatch.setattr(partition_module.Partition, name, call)

    with Store(log_dir, clock=clock) as store:
        fill(tiered(store, bucket))
        store.create("sales-0")
        checked("append")
        checked("flush")
        tier(store)
        store.delete_records("orders-0", 300)
        clock.now_ms += 1000
        store.retain()
        store.truncate("orders-0", store["orders-0"].local_start_offset + 1)
        store.delete("orders-0")
        clock.now_ms += 120_000
        store.upkeep()
        tiered(store, bucket)
        monkeypatch.undo()
    assert {"append", "flush"} == set(done)
    assert not any(held)


def locks_held(partition: Partition) -> str:
    """Return the name of a partition if another thread has one of its locks, or else ""."""
    for lock in (partition.flusher.lock, partition.lock):
        if not lock.acquire(blocking=False):
            return partition.name.directory
        lock.release()
    return ""


@pytest.mark.parametrize("kept", [0, 20])
def test_a_copy_that_ends_during_a_truncation_does_not_count(
    log_dir: Path, bucket: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch, kept: int
) -> None:
    """No copy that counts has a record that the truncation has dropped."""
    forgot, ended = threading.Event(), threading.Event()
    forget, send = TieredLogs.forget_from, segment_upload.upload

    def forget_from(self: TieredLogs, partition: Partition, offset: int) -> None:
        forget(self, partition, offset)
        forgot.set()
        # A copy that does not wait for the truncation ends now.
        ended.wait(0.5)

    def upload(*arguments: Any) -> Any:
        stored = send(*arguments)
        forgot.wait(20)
        return stored

    with Store(log_dir, clock=clock) as store:
        partition = tiered(store, bucket)
        fill(partition, 400)
        store.tier("orders-0")
        fill(partition, 400)
        log = store.tiered.of(partition)
        assert log is not None
        # Within the segment that is copied next, or at its beginning.
        end = log.end_offset + kept
        monkeypatch.setattr(TieredLogs, "forget_from", forget_from)
        monkeypatch.setattr(segment_upload, "upload", upload)

        def copy() -> None:
            suppressed(store)
            ended.set()

        copying = threading.Thread(target=copy)
        copying.start()
        store.truncate("orders-0", end)
        copying.join(30)
        assert log.end_offset <= partition.log_end_offset == end
        monkeypatch.undo()


def metadata_log(store: Store) -> Partition:
    """Return the partition of `__remote_log_metadata` that is in use."""
    (name,) = (name for name in store.registry.homes if name.startswith("__remote_log_metadata-"))
    partition = store.registry.include(name)
    assert partition is not None
    return partition


def flip_batch(path: Path, number: int) -> None:
    """Change a bit of one batch of a .log file."""
    data = bytearray(path.read_bytes())
    position = 0
    for _ in range(number):
        position += 12 + int.from_bytes(data[position + 8 : position + 12], "big")
    data[position + 70] ^= 1
    path.write_bytes(data)


@pytest.mark.drawn(2)
@pytest.mark.parametrize("number", [0, 1, 2, 3, 6, 7])
def test_a_damaged_description_loses_nothing(
    log_dir: Path, bucket: Path, clock: Clock, number: int
) -> None:
    """Its records are an error, never silently left out; no object is deleted; what is restored is read again."""
    with Store(log_dir, clock=clock) as store:
        partition = tiered(store, bucket)
        fill(partition)
        tier(store)
        records = list(partition.read())
        path = metadata_log(store).segments[0].path
    kept = path.read_bytes()
    stored = objects(bucket)
    flip_batch(path, number)
    with Store(log_dir, clock=clock) as store:
        partition = store["orders-0"]
        (lost,) = (s for s in partition.segments if type(s) is MissingSegment)
        first, end = lost.base_offset, lost.next_offset
        later = max((record.timestamp for record in records[:first]), default=0) + 1
        for read in (
            lambda: list(partition.read()),
            lambda: partition.record(first),
            lambda: list(partition.read(max(first - 5, 0), end + 5)),
            lambda: partition.text(View.LINES).read(0, 10**6),
            lambda: partition.offset_for_time(later),
        ):
            with pytest.raises(
                RemoteStorageError, match=f"offsets {first} to {end - 1} are missing"
            ):
                read()
        assert list(partition.read(0, first)) == records[:first]
        assert list(partition.read(end)) == records[end:]
        tier(store)
        clock.now_ms += 100_000
        store.upkeep()
        tier(store)
        assert objects(bucket) == stored
        partition.append([b"more"])
    for words in (("check",), ("cat",), ("cat", "-o", f"{max(first - 3, 0)}..")):
        target = log_dir if words == ("check",) else log_dir / "orders-0"
        done = call(*words, target)
        assert done.returncode == 1
        assert b"are missing" in done.stdout + done.stderr
    damaged = path.read_bytes()
    path.write_bytes(kept + damaged[len(kept) :])
    with Store(log_dir, clock=clock) as store:
        assert [*store["orders-0"].read()][:-1] == records
    # Its indexes were written for the damaged log.
    shutil.rmtree(log_dir)


@pytest.mark.parametrize("left", [0, 1, 2, 5])
def test_descriptions_that_are_cut_off_lose_nothing(
    log_dir: Path, bucket: Path, clock: Clock, left: int
) -> None:
    """What they described is an error, and no object of it is deleted, whatever is copied and retained then."""
    with Store(log_dir, clock=clock) as store:
        partition = tiered(store, bucket)
        fill(partition)
        tier(store)
        local = partition.local_start_offset
        path = metadata_log(store).segments[0].path
    stored = objects(bucket)
    data = path.read_bytes()
    end = 0
    for _ in range(left):
        end += 12 + int.from_bytes(data[end + 8 : end + 12], "big")
    path.write_bytes(data[:end])
    for _ in range(2):
        with Store(log_dir, clock=clock, read_only=True) as store:
            with pytest.raises(RemoteStorageError, match=f"to {local - 1} are missing"):
                store["orders-0"].record(local - 1)
            with pytest.raises(RemoteStorageError, match="are missing"):
                list(store["orders-0"].read())
        with Store(log_dir, clock=clock) as store:
            tier(store)
            clock.now_ms += 100_000
            store.upkeep()
            tier(store)
            assert store["orders-0"].log_start_offset == 0
            assert set(stored) <= set(objects(bucket))
    shutil.rmtree(log_dir)


def test_a_replayed_description_changes_nothing(log_dir: Path, bucket: Path, clock: Clock) -> None:
    """Every record of the metadata, once more at the end of its log: nothing is lost, and no object is deleted."""
    with Store(log_dir, clock=clock) as store:
        partition = tiered(store, bucket)
        fill(partition)
        tier(store)
        records, stored = list(partition.read()), objects(bucket)
        log = metadata_log(store)
        for record in list(log.read()):
            log.append([record])
            tier(store)
            assert objects(bucket) == stored
        assert list(partition.read()) == records
    with Store(log_dir, clock=clock) as store:
        tier(store)
        assert list(store["orders-0"].read()) == records
    assert objects(bucket) == stored


def test_the_command(log_dir: Path, bucket: Path, clock: Clock) -> None:
    """`logfs tier` shows what it would do, and does it."""
    with Store(log_dir) as store:
        fill(tiered(store, bucket))
    dry = ok("tier", "-n", log_dir)
    assert dry.count("would be copied") > 3
    assert not objects(bucket)
    assert "segments (" in ok("tier", log_dir)
    assert start_offsets(bucket)[0] == 0
    assert ok("tier", log_dir).startswith("orders-0: 0 segments")
    assert ok("cat", "-o", "3..5", f"{log_dir}/orders-0") == "value 3\nvalue 4\n"
    assert ok("tail", "-n", "1", f"{log_dir}/orders-0") == "value 999\n"
    assert_clean(log_dir)


def test_a_mount_tiers_by_itself(
    log_dir: Path, server: ObjectServer, make_mount: Callable[..., Mount]
) -> None:
    """Segments leave the disk while records are written; reads go on, and an unreachable server is EIO for some."""
    with Store(log_dir) as store:
        store.settings.set_broker("remote.log.manager.task.interval.ms", "200")
        store.settings.set_broker("log.retention.check.interval.ms", "200")
        store.settings.set_broker("log.initial.task.delay.ms", "0")
        tiered(store, f"s3://{BUCKET}/tiered")
    mount = make_mount()
    orders = mount.path / "orders-0"
    lines = b"".join(b"line %04d\n" % n for n in range(3000))
    for at in range(0, len(lines), 3000):
        with (orders / "append").open("ab") as append:
            append.write(lines[at : at + 3000])
    wait_for(lambda: len(list((log_dir / "orders-0").glob("*.log"))) <= 3, 60)
    assert (orders / "records").stat().st_size == len(lines)
    assert (orders / "records").read_bytes() == lines
    assert (orders / "offsets/0").read_bytes() == b"line 0000"


@pytest.mark.parametrize("read_only", [False, True])
def test_a_mount_lists_without_a_request(
    log_dir: Path, server: ObjectServer, make_mount: Callable[..., Mount], read_only: bool
) -> None:
    """`ls`, `stat` and `tail` of a tiered log, also the first after a mount, read no object."""
    with Store(log_dir) as store:
        store.settings.set_broker("remote.log.manager.task.interval.ms", "3600000")
        partition = tiered(store, f"s3://{BUCKET}/tiered")
        fill(partition)
        tier(store)
        assert len(partition.local_segments) < len(partition.segments)
    server.requests.clear()
    mount = make_mount(*(["--read-only"] if read_only else []))
    orders = mount.path / "orders-0"
    places = (mount.path, orders, orders / "segments")
    subprocess.run(["ls", "-la", *places], check=True, stdout=subprocess.DEVNULL)
    subprocess.run(["stat", *orders.iterdir()], check=True, stdout=subprocess.DEVNULL)
    assert (orders / "status.json").read_bytes()
    assert (mount.path / ".logfs/status.json").read_bytes()
    assert (mount.path / ".logfs/metrics").read_bytes()
    subprocess.run(["tail", "-n", "10", orders / "records"], check=True, stdout=subprocess.DEVNULL)
    assert not [each for each in server.gets() if not each.key.endswith(FILE_NAME)]


@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("suffix", [".log", ".indexes", ".rsm-manifest"])
def test_a_partition_that_is_deleted_while_it_is_copied_leaves_no_object(
    log_dir: Path, server: ObjectServer, clock: Clock, suffix: str, again: bool
) -> None:
    """Whatever object was being sent; also if the partition is created again at once."""
    sending, goes_on = threading.Event(), threading.Event()

    def wait(request: Request) -> None:
        if request.method == "PUT" and request.key.endswith(suffix):
            sending.set()
            goes_on.wait(20)

    with Store(log_dir, clock=clock) as store:
        fill(tiered(store, f"s3://{BUCKET}/tiered"))
        server.fault = wait
        copying = threading.Thread(target=lambda: suppressed(store))
        copying.start()
        assert sending.wait(20)
        store.delete("orders-0")
        if again:
            tiered(store, f"s3://{BUCKET}/tiered")
        goes_on.set()
        copying.join(20)
        server.fault = lambda request: None
        clock.now_ms += 60_001
        store.upkeep()
        store.remote_log_manager.expire()
        clock.now_ms += 60_001
        store.remote_log_manager.expire()
        assert not segment_keys(server)


def test_a_segment_whose_records_are_deleted_meanwhile_is_not_copied(
    log_dir: Path, bucket: Path, clock: Clock
) -> None:
    """Also if the deletion comes during the copy of an earlier segment; that is no error."""
    with Store(log_dir, clock=clock) as store:
        partition = tiered(store, bucket)
        fill(partition, 400)
        fill(partition, 400)
        first, _, *_, last = store.remote_log_manager.plan("orders-0").segments

        def delete(_: int) -> None:
            store.delete_records("orders-0", last.base_offset)

        copied = store.remote_log_manager.copy("orders-0", delete).segments
        assert copied == [first, last]
        assert store.remote_log_manager.copy_errors == 0
        assert not store.remote_log_manager.plan("orders-0").segments


def test_retention_does_not_wait_for_a_copy(
    log_dir: Path, server: ObjectServer, clock: Clock
) -> None:
    """While a topic is being copied, another one is retained, and the copy's own objects are left to it."""
    sending, goes_on = threading.Event(), threading.Event()

    def wait(request: Request) -> None:
        if request.method == "PUT" and request.key.endswith(".log"):
            sending.set()
            goes_on.wait(60)

    def retain() -> None:
        store.retain(["other-0"])
        retained.set()

    retained = threading.Event()
    with Store(log_dir, clock=clock) as store:
        orders = tiered(store, f"s3://{BUCKET}/tiered")
        fill(orders)
        set_topic(store, "other", segment_bytes=4000, retention_bytes=5000)
        other = store.create("other-0")
        fill(other)
        server.fault = wait
        copying = threading.Thread(target=lambda: suppressed(store))
        copying.start()
        assert sending.wait(60)
        retaining = threading.Thread(target=retain)
        retaining.start()
        was_retained = retained.wait(20)
        goes_on.set()
        copying.join()
        retaining.join()
        assert was_retained
        assert other.size_bytes <= 9000
        # What was being sent then is a finished copy now.
        remote = store.tiered.identify(orders)
        assert remote is not None
        segments = store.tiered.metadata.segments(remote).values()
        assert len(segments) == len(orders.segments) - 1
        log = store.tiered.of(orders)
        assert log is not None
        assert len(log.finished()) == len(segments)


def test_a_copy_of_a_deleted_partition_is_deleted_only_when_it_has_ended(
    log_dir: Path, server: ObjectServer, clock: Clock
) -> None:
    """Otherwise the copy would store further objects, which nothing names any more."""
    sending, goes_on = threading.Event(), threading.Event()

    def wait(request: Request) -> None:
        if request.method == "PUT" and request.key.endswith(".log"):
            sending.set()
            goes_on.wait(60)

    with Store(log_dir, clock=clock) as store:
        fill(tiered(store, f"s3://{BUCKET}/tiered"))
        server.fault = wait
        copying = threading.Thread(target=lambda: suppressed(store))
        copying.start()
        assert sending.wait(60)
        store.delete("orders-0")
        clock.now_ms += 60_001
        store.remote_log_manager.expire()
        assert store.remote_log_manager.deleted_segments == 0
        goes_on.set()
        copying.join()
        server.fault = lambda request: None
        store.remote_log_manager.expire()
        assert not segment_keys(server)


def test_a_move_needs_room_for_the_local_segments(
    log_dir: Path, bucket: Path, tmp_path: Path, clock: Clock
) -> None:
    """The remote segments stay where they are, so they count neither for the free space nor for the progress."""

    class Small(Disk):
        """A disk that has room for the local segments alone."""

        free = 0

        def free_bytes(self, path: Path) -> int:
            return self.free

    disk = Small()
    (other := tmp_path / "other").mkdir()
    with Store([log_dir, other], clock=clock, disk=disk) as store:
        orders = tiered(store, bucket)
        fill(orders)
        store.tier("orders-0")
        clock.now_ms += 60_001
        store.settings.set_topic("orders", "local.retention.bytes", "5000")
        store.retain()
        disk.free = orders.local_bytes
        assert disk.free < orders.size_bytes
        moved: list[int] = []
        target = other if store.registry.home("orders-0") == log_dir else log_dir
        store.mover.move("orders-0", target, moved.append)
        assert sum(moved) == orders.local_bytes


def suppressed(store: Store) -> None:
    with suppress(LogfsError):
        store.tier("orders-0")


def test_a_truncation_while_tiering_is_off_forgets_the_copies(
    log_dir: Path, bucket: Path, clock: Clock
) -> None:
    """The copies of the truncated records never come back, however soon tiering is switched on again."""
    with Store(log_dir, clock=clock) as store:
        partition = tiered(store, bucket, remote_log_delete_on_disable="true")
        fill(partition)
        store.tier("orders-0")
        set_topic(store, "orders", remote_storage_enable="false")
        assert store.truncate("orders-0", 500)
        fill(partition, word=b"other")
        set_topic(store, "orders", remote_storage_enable="true", local_retention_bytes=0)
        for _ in range(2):
            tier(store)
        values = [record.value for record in partition.read()]
        assert values[500:] == [b"other %d" % number for number in range(500, 1500)]
    assert_clean(log_dir)
    with Store(log_dir, clock=clock) as store:
        assert [record.value for record in store["orders-0"].read()] == values


def test_no_remote_segment_is_compacted(log_dir: Path, bucket: Path, clock: Clock) -> None:
    """A tiered topic that becomes a compacted one is first cleaned when its remote segments have left the log."""
    with Store(log_dir, clock=clock) as store:
        partition = tiered(store, bucket, remote_log_delete_on_disable="true")
        fill(partition)
        tier(store)
        set_topic(
            store,
            "orders",
            local_retention_bytes=-2,
            remote_storage_enable="false",
            cleanup_policy="compact",
            min_cleanable_dirty_ratio=0,
        )
        store.compactor.run_due()
        store.compact("orders-0", roll=True)
        assert len(list(partition.read())) == 1000
        store.remote_log_manager.expire()
        start = partition.log_start_offset
        assert start > 0
        store.compact("orders-0", roll=True)
        values = [record.value for record in partition.read()]
        assert len(values) == 50
        assert not list(log_dir.rglob("*.swap"))
    with Store(log_dir, clock=clock) as store:
        assert store["orders-0"].log_start_offset == start
        assert [record.value for record in store["orders-0"].read()] == values


def test_a_log_that_was_compacted_before_it_was_tiered_is_sound(
    log_dir: Path, bucket: Path, clock: Clock
) -> None:
    """Offsets that compaction has removed are not missing, also at the ends of remote segments."""
    with Store(log_dir, clock=clock) as store:
        partition = tiered(store, bucket, remote_storage_enable="false", cleanup_policy="compact")
        for number in range(200):
            # Each segment keeps the record of its first batch, and loses those of its last ones.
            if number % 5 == 0:
                partition.append([logfs.Record(b"%d" % number, key=b"of %d" % number)])
            partition.append([logfs.Record(b"x" * 500, key=b"k")])
        store.compact("orders-0")
        set_topic(store, "orders", cleanup_policy="delete", remote_storage_enable="true")
        set_topic(store, "orders", local_retention_bytes=0)
        records = list(partition.read())
        tier(store)
        assert len(partition.local_segments) == 1
        assert list(partition.read()) == records
    assert_clean(log_dir)
