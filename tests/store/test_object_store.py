"""Buckets on a real S3 server, with faults: nothing wrong is shown, nothing hangs, and what can be repeated is."""

from __future__ import annotations

import os
import random
import shutil
import socket
import subprocess
import threading
import uuid
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import logfs
from logfs.errors import Corrupt, InvalidStore, LogfsError, RemoteStorageError
from logfs.log.disk.bucket_path import BucketPath
from logfs.log.remote import bucket_disk, layouts, object_store
from logfs.log.remote.object_store import AccessDenied, ObjectStore
from logfs.log.segment.batch_iterator import DamagedRange
from logfs.store.store import Store
from tests.support.bucket import put_aiven, put_local, sealed_segments
from tests.support.command_line import call
from tests.support.examples import seed_of
from tests.support.object_server import (
    BUCKET,
    SLOW_DOWN,
    Answer,
    Fault,
    ObjectServer,
    Request,
)
from tests.support.requirements import DEEP
from tests.support.stores import assert_clean, set_topic

if TYPE_CHECKING:
    from collections.abc import Callable

    from logfs.log.read.reader import Reader
    from tests.support.mounts import Mount

RECORDS = 3000
URL = f"s3://{BUCKET}/tiered-"
DENIED = b"<Error><Code>AccessDenied</Code><Message>Access Denied</Message></Error>"
FAULTS = 1000 if DEEP else 24


@pytest.fixture(scope="module")
def copied(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, bytes]]:
    """The directory of a partition, and the objects of its segments in Aiven's layout."""
    log_dir = tmp_path_factory.mktemp("copied")
    with Store(log_dir) as store:
        set_topic(store, "orders", segment_bytes=8_000, index_interval_bytes=500)
        partition = store.create("orders-0")
        for start in range(0, RECORDS, 20):
            partition.append(
                [logfs.Record(b"value %d" % n, timestamp=n) for n in range(start, start + 20)]
            )
    assert_clean(log_dir)
    objects: dict[str, bytes] = {}
    topic_id = uuid.uuid4()
    for segment in sealed_segments(log_dir / "orders-0", RECORDS):
        put_aiven(
            objects.__setitem__,
            log_dir / "orders-0",
            segment,
            topic_id,
            prefix="tiered-",
            chunk_bytes=16_000 if segment[0] % 3 else 3000,
            compressed=segment[0] % 3 == 0,
        )
    return log_dir / "orders-0", objects


@pytest.fixture
def orders(server: ObjectServer, copied: tuple[Path, dict[str, bytes]]) -> Path:
    """The directory of a partition, to be read only, whose segments are in the bucket, in Aiven's layout."""
    directory, objects = copied
    for key, data in objects.items():
        server.put(key, data)
    return directory


def open_bucket(url: str = URL) -> Store:
    return Store(url, read_only=True)


def of_object(suffix: str, answer: Answer, times: int = 1) -> Fault:
    """Return a fault of the first `times` requests for objects whose keys end in `suffix`."""
    left = [times]

    def fault(request: Request) -> Answer | None:
        if not request.key.endswith(suffix) or not left[0]:
            return None
        left[0] -= 1
        return answer

    return fault


def test_a_lookup_costs_few_requests(server: ObjectServer, orders: Path) -> None:
    """Cold: a manifest, the indexes, and a chunk of the segment; the manifest and indexes of the last, to open."""
    with open_bucket() as remote:
        partition = remote["orders-0"]
        opened = len(server.gets())
        assert opened <= 2
        assert partition.record(1234) is not None
        assert len(server.gets()) - opened <= 3
        assert partition.record(1235) is not None
        assert len(server.gets()) - opened <= 3


def test_local_tiered_storage_on_s3(server: ObjectServer, orders: Path) -> None:
    """The other layout, in a directory of the same bucket."""
    for segment in sealed_segments(orders, RECORDS):
        put_local(server.put, orders, segment, uuid.UUID(int=7), prefix="kafka/")
    with open_bucket(f"s3://{BUCKET}/kafka") as remote:
        assert [r.offset for r in remote["orders-0"].read()] == [*range(RECORDS)]


_chance = random.Random(seed_of())


def _flipped(body: bytes) -> bytes:
    """Return bytes of which one bit is wrong, each time another."""
    wrong = bytearray(body)
    wrong[_chance.randrange(len(wrong))] ^= 1 << _chance.randrange(8)
    return bytes(wrong)


PASSING = {
    "500": Answer("500 Internal Server Error"),
    "503": Answer("503 Slow Down", SLOW_DOWN.encode()),
    "cut": Answer(is_cut=True),
    "late": Answer(delay=2.5),
    "wrong bytes": Answer(change=lambda body: _flipped(body)),
}


@pytest.mark.parametrize("name", PASSING)
def test_a_passing_fault_is_overcome(server: ObjectServer, orders: Path, name: str) -> None:
    """Each object's first answer is wrong: it is asked for again, and every record is read."""
    suffix = ".log" if name == "wrong bytes" else ""
    # A chunk whose bytes cannot be decoded is fetched three times.
    times = {"late": 1, "wrong bytes": 2}.get(name, 3)
    server.fault = of_object(suffix, PASSING[name], times)
    with open_bucket() as remote:
        assert [r.offset for r in remote["orders-0"].read()] == [*range(RECORDS)]


def test_a_lasting_fault_is_an_error_in_time(
    server: ObjectServer, orders: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It names the object and the reason, without the keys; other segments are read meanwhile."""
    monkeypatch.setattr(object_store, "_RETRY_SECONDS", 2)
    with open_bucket() as remote:
        partition = remote["orders-0"]
        bad = partition.segments[2].base_offset
        server.fault = lambda request: (
            Answer("503 Slow Down", SLOW_DOWN.encode())
            if f"{bad:020}" in request.key and request.key.endswith(".log")
            else None
        )
        before = len(server.gets())
        with pytest.raises(RemoteStorageError, match="SlowDown: Please reduce") as error:
            partition.record(bad)
        assert 1 < len(server.gets()) - before < 50, "it is asked again, but not for ever"
        assert f"{bad:020}" in str(error.value)
        assert "secret" not in str(error.value)
        assert partition.record(0) is not None
        server.fault = lambda request: None
        assert partition.record(bad) is not None


def test_what_the_store_refuses_is_an_error(
    server: ObjectServer, orders: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bucket that does not exist, refused credentials, a clock that is wrong, and a server that is not there."""
    with pytest.raises(RemoteStorageError, match="NoSuchBucket"):
        open_bucket("s3://missing/tiered-")
    denied = "<Error><Code>AccessDenied</Code><Message>Access Denied</Message></Error>"
    skewed = (
        "<Error><Code>RequestTimeTooSkewed</Code><Message>The difference between the request time and the current "
        "time is too large.</Message></Error>"
    )
    for answer, words in (
        (denied, "AccessDenied: Access Denied"),
        (skewed, "RequestTimeTooSkewed: The difference"),
    ):
        server.fault = lambda request, answer=answer: Answer("403 Forbidden", answer.encode())
        with pytest.raises(RemoteStorageError, match=words):
            open_bucket()
    monkeypatch.setattr(object_store, "_RETRY_SECONDS", 0.5)
    monkeypatch.setattr(object_store, "_REQUEST_SECONDS", 1)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        for place, words in (
            ("http://127.0.0.1:9", "Connection refused"),
            ("http://missing.invalid:9", "failed to lookup address"),
            (f"http://127.0.0.1:{port}", "no answer in time"),
        ):
            monkeypatch.setenv("AWS_ENDPOINT_URL", place)
            with pytest.raises(RemoteStorageError, match=f"s3://{BUCKET}/.*{place}: {words}"):
                open_bucket()


def test_credentials_come_from_the_usual_files(
    server: ObjectServer, orders: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of the profile that `AWS_PROFILE` names; a damaged file is an error that does not show its content."""
    files = tmp_path / "credentials", tmp_path / "config"
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_REGION", "AWS_ENDPOINT_URL"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(files[0]))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(files[1]))
    monkeypatch.setenv("AWS_PROFILE", "work")
    files[0].write_text("[work]\naws_access_key_id = AKIAX\naws_secret_access_key = hidden\n")
    files[1].write_text(f"[profile work]\nregion = eu-west-1\nendpoint_url = {server.endpoint}\n")
    with open_bucket() as remote:
        assert list(remote) == ["orders-0"]
    # Without the variable, the default profile counts. In the file of settings it has either name.
    monkeypatch.delenv("AWS_PROFILE")
    files[0].write_text("[default]\naws_access_key_id = AKIAX\naws_secret_access_key = hidden\n")
    for section in ("default", "profile default"):
        files[1].write_text(
            f"[profile work]\nregion = eu-west-1\nendpoint_url = http://127.0.0.1:9\n"
            f"[{section}]\nregion = eu-west-1\nendpoint_url = {server.endpoint}\n"
        )
        with open_bucket() as remote:
            assert list(remote) == ["orders-0"]
    monkeypatch.setenv("AWS_PROFILE", "work")
    files[0].write_text("[work]\naws_access_key_id = AKIAX\naws_secret_access_key = hidden\n")
    # As in Amazon's own tools, a variable overrides the file.
    files[1].write_text("[profile work]\nregion = eu-west-1\nendpoint_url = http://127.0.0.1:9\n")
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", server.endpoint)
    with open_bucket() as remote:
        assert list(remote) == ["orders-0"]
    # The variables are one pair: the key of the environment gets no secret from the file.
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIAY")
    asked: list[Request] = []
    server.fault = lambda request: asked.append(request)
    with suppress(LogfsError):
        open_bucket().close()
    assert not asked
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    files[0].write_text("hidden")
    with pytest.raises(InvalidStore, match="not a file of AWS profiles") as error:
        open_bucket()
    assert "hidden" not in str(error.value)


@pytest.mark.parametrize("status", ["403 Forbidden", "401 Unauthorized", "400 Bad Request"])
def test_renewed_credentials_are_taken_up(
    server: ObjectServer,
    orders: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    status: str,
) -> None:
    """Those of the file, as a tool for temporary credentials replaces them, for reading and for storing."""
    expired = b"<Error><Code>ExpiredToken</Code><Message>The token has expired.</Message></Error>"
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    file = tmp_path / "credentials"
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(file))

    def renew(user: str) -> None:
        file.write_text(f"[default]\naws_access_key_id = {user}\naws_secret_access_key = hidden\n")

        def fault(request: Request) -> Answer | None:
            return None if request.user == user else Answer(status, expired)

        server.fault = fault

    renew("FIRST")
    store = ObjectStore(BucketPath(f"s3://{BUCKET}"))
    store.put("mine", lambda: [b"1"])
    renew("SECOND")
    assert bytes(store.get("mine", 0, 9)) == b"1"
    renew("THIRD")
    store.put("mine", lambda: [b"2"])
    renew("FOURTH")
    assert not store.put("mine", lambda: [b"3"], if_absent=True)
    server.fault = lambda request: Answer(status, expired)
    with pytest.raises(AccessDenied, match="ExpiredToken: The token has expired"):
        store.get("mine", 0, 9)


def test_a_policy_may_permit_to_list_below_the_prefix_only(
    server: ObjectServer, orders: Path
) -> None:
    """What is there is read; without anything there, the refusal is an error."""
    for key in server.stored_keys():
        server.put(key.replace("tiered-", "below/"), server.stored(key))

    def fault(request: Request) -> Answer | None:
        is_below = request.key or request.prefix.startswith("below/")
        return None if is_below else Answer("403 Forbidden", DENIED)

    server.fault = fault
    with open_bucket(f"s3://{BUCKET}/below") as remote:
        assert sum(1 for _ in remote["orders-0"].read()) == RECORDS
    with pytest.raises(RemoteStorageError, match="AccessDenied"):
        open_bucket()


def test_listings_that_disagree_are_no_traceback(
    server: ObjectServer, orders: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One shows a partition that the next one does not show, and then it is back."""
    monkeypatch.setattr(bucket_disk, "_LISTING_SECONDS", -1)
    find, shown = bucket_disk.find_partitions, [True]

    def disagreeing(*arguments: Any) -> Any:
        shown[0] = not shown[0]
        return {} if shown[0] else find(*arguments)

    with open_bucket() as remote:
        partition = remote["orders-0"]
        monkeypatch.setattr(bucket_disk, "find_partitions", disagreeing)
        for _ in range(6):
            with suppress(LogfsError, OSError):
                remote.refresh()
            with suppress(LogfsError, OSError):
                partition.refresh()
        disk = bucket_disk.BucketDisk(BucketPath(URL))
        for _ in range(6):
            with suppress(FileNotFoundError):
                list(disk.scan(BucketPath(f"{URL}/orders-0")))
        monkeypatch.setattr(bucket_disk, "find_partitions", find)
        remote.refresh()
        monkeypatch.setattr(bucket_disk, "_LISTING_SECONDS", 30)
        assert sum(1 for _ in remote["orders-0"].read()) == RECORDS


def test_an_object_that_is_lost_is_an_error(
    server: ObjectServer, orders: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others are read."""
    # Once the bucket is listed again, the segment counts as a copy that is not complete.
    monkeypatch.setattr(bucket_disk, "_DOUBT_SECONDS", 3600)
    with open_bucket() as remote:
        partition = remote["orders-0"]
        segment = partition.segments[2]
        (key,) = (
            k
            for k in server.stored_keys()
            if f"{segment.base_offset:020}" in k and k.endswith(".log")
        )
        server.delete(key)
        with pytest.raises(LogfsError):
            partition.record(segment.base_offset)
        assert partition.record(segment.next_offset) is not None


def test_random_faults(server: ObjectServer, orders: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the server does, a record that is shown is right, and a reader that goes on gets the others."""
    chance = random.Random(seed_of())
    kinds = [*PASSING.values(), Answer("404 Not Found"), Answer("403 Forbidden"), Answer(delay=0.2)]
    # All kinds, in a random order, several times.
    answers = (each for _ in range(FAULTS) for each in chance.sample(kinds, len(kinds)))
    injected = 0

    def fault(request: Request) -> Answer | None:
        nonlocal injected
        if not request.key or chance.random() > 0.1:
            return None
        injected += 1
        return next(answers)

    expected = {n: b"value %d" % n for n in range(RECORDS)}
    rounds = errors = 0
    # An answer that is too late is waited for that long.
    monkeypatch.setattr(object_store, "_REQUEST_SECONDS", 1)
    while injected < FAULTS:
        server.fault = fault
        rounds += 1
        _clear_cache()
        try:
            with open_bucket() as remote:
                partition = remote["orders-0"]
                for offset in chance.sample(range(RECORDS), 20):
                    try:
                        record = partition.record(offset)
                    except (LogfsError, OSError):
                        errors += 1
                        continue
                    assert record is not None
                    assert record.value == expected[offset]
        except (LogfsError, OSError):
            errors += 1
        server.fault = lambda request: None
    _clear_cache()
    monkeypatch.setattr(object_store, "_REQUEST_SECONDS", 20)
    with open_bucket() as remote:
        assert {r.offset: r.value for r in remote["orders-0"].read()} == expected
    print(f"{injected} faults in {rounds} rounds, {errors} errors")


def _clear_cache() -> None:
    shutil.rmtree(os.environ["XDG_CACHE_HOME"], ignore_errors=True)


# The mount and the command line.


def test_a_mounted_bucket(
    server: ObjectServer, orders: Path, make_mount: Callable[..., Mount]
) -> None:
    """Files read as those of the log; a slow object holds up only those who ask for it.

    And, in the kernel, other lookups in the same directory: libfuse 3.14 does not allow parallel ones.
    """
    mount = make_mount("--read-only", log_dirs=[logfs_path(URL)])
    partition = mount.path / "orders-0"
    expected = [b"value %d\n" % n for n in range(RECORDS)]
    assert (partition / "offsets/1234").read_bytes() == b"value 1234"
    assert (partition / "time/1234").read_bytes() == b"value 1234"
    log = sorted(orders.glob("*.log"))[2]
    assert (partition / "segments" / log.name).read_bytes() == log.read_bytes()
    slow = sorted(orders.glob("*.log"))[5]
    released = threading.Event()

    def hang(request: Request) -> None:
        if slow.stem in request.key and request.key.endswith(".log"):
            released.wait(60)

    server.fault = hang
    waiting = [
        subprocess.Popen(["cat", str(partition / f"offsets/{int(slow.stem) + n}")], stdout=-1)
        for n in range(20)
    ]
    try:
        other = sorted(orders.glob("*.log"))[1]
        assert (partition / "segments" / other.name).read_bytes() == other.read_bytes()
        assert (partition / "status.json").read_bytes()
        assert not released.is_set()
        assert all(process.poll() is None for process in waiting)
    finally:
        released.set()
    for n, process in enumerate(waiting):
        assert process.communicate(timeout=60)[0] == expected[int(slow.stem) + n].rstrip(b"\n")
    assert (partition / "records").read_bytes() == b"".join(expected)
    assert os.statvfs(mount.path).f_blocks == 0
    assert call("status", str(mount.path)).returncode == 0
    with pytest.raises(OSError, match="Read-only"):
        (partition / "append").write_bytes(b"x\n")


def test_a_mounted_bucket_whose_server_fails(
    server: ObjectServer, orders: Path, make_mount: Callable[..., Mount]
) -> None:
    """A reader gets EIO, and `.logfs/errors` the reason; when the server is back, so are the records."""
    mount = make_mount("--read-only", log_dirs=[logfs_path(URL)])
    partition = mount.path / "orders-0"
    assert (partition / "offsets/0").read_bytes() == b"value 0"
    denied = "<Error><Code>AccessDenied</Code><Message>Access Denied</Message></Error>"
    server.fault = lambda request: Answer("403 Forbidden", denied.encode())
    with pytest.raises(OSError, match="Input/output error"):
        (partition / "offsets/1500").read_bytes()
    assert "AccessDenied" in mount.errors()
    assert "secret" not in mount.errors()
    server.fault = lambda request: None
    assert (partition / "offsets/1500").read_bytes() == b"value 1500"


def logfs_path(url: str) -> Path:
    return BucketPath(url)


def test_commands_read_a_bucket(server: ObjectServer, orders: Path) -> None:
    """`cat`, `tail`, `describe`, `check` and `groups` take its URL; what would write refuses it."""
    target = f"{URL}/orders-0"
    lines = b"".join(b"value %d\n" % n for n in range(RECORDS))
    assert call("cat", target).stdout == lines
    assert call("tail", "-n", "2", target).stdout == b"value 2998\nvalue 2999\n"
    assert f"{RECORDS}".encode() in call("describe", URL).stdout
    assert call("status", URL).returncode == 0
    checked = call("check", URL)
    assert (checked.returncode, b"0 errors" in checked.stdout) == (0, True)
    assert call("groups", URL).returncode == 0
    for words in (
        ["append", target],
        ["create", f"{URL}/orders-1"],
        ["delete", target],
        ["compact", target],
    ):
        refused = call(*words)
        assert refused.returncode == 1
        assert b"bucket" in refused.stderr
        assert b"Traceback" not in refused.stderr
    assert call("cat", f"{URL}/missing-0").returncode == 1


# Hostile and damaged objects.

MUTATIONS = 500 if DEEP else 5


def _mutated(body: bytes, chance: random.Random) -> bytes:
    """Return bytes that are damaged in one of several ways."""
    data = bytearray(body)
    at = chance.randrange(len(data)) if data else 0
    end = min(at + chance.choice([1, 4, 60, len(data)]), len(data))
    kind = chance.randrange(6)
    if kind == 0:
        return bytes(data[:at])
    if kind == 1:
        return bytes(len(data))
    if kind == 2:
        data[at:end] = b"\xff" * (end - at)
    elif kind == 3:
        data[at:end] = chance.randbytes(end - at)
    elif kind == 4:
        data[at:end] = bytes(end - at)
    else:
        data += chance.randbytes(chance.randrange(1, 5000))
    return bytes(data)


@pytest.mark.drawn(1)
@pytest.mark.parametrize("layout", ["aiven", "local"])
def test_hostile_objects(
    server: ObjectServer, orders: Path, layout: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One object is damaged: what is read is right or an error of logfs; once it is repaired, all is read."""
    if DEEP:
        # Each step lists the bucket, which takes most of the time.
        monkeypatch.setattr(bucket_disk, "_LISTING_SECONDS", 0)
    url = URL
    if layout == "local":
        url = f"s3://{BUCKET}/kafka"
        for segment in sealed_segments(orders, RECORDS):
            put_local(server.put, orders, segment, uuid.UUID(int=7), prefix="kafka/")
    expected = {n: b"value %d" % n for n in range(RECORDS)}
    chance = random.Random(f"{seed_of()} {layout}")
    prefix = url.removeprefix(f"s3://{BUCKET}/")
    keys = sorted(key for key in server.stored_keys() if key.startswith(prefix))
    bodies = {key: server.stored(key) for key in keys}

    def read(partition: Reader) -> None:
        for offset in chance.sample(range(RECORDS), 3):
            with suppress(LogfsError):
                record = partition.record(offset)
                assert record is None or record.value == expected[offset]
        with suppress(LogfsError):
            found = {record.offset: record.value for record in partition.read()}
            # What is missing is an error, also at the end.
            assert found == expected
        with suppress(LogfsError):
            partition.offset_for_time(chance.randrange(RECORDS))
        with suppress(LogfsError):
            partition.offset_of_last(10)

    for _ in range(MUTATIONS):
        key = chance.choice([*keys, keys[-1], keys[-2], keys[-3]])
        server.put(key, _mutated(bodies[key], chance))
        with open_bucket(url) as remote:
            with suppress(LogfsError):
                read(remote["orders-0"])
            server.put(key, bodies[key])
            with monkeypatch.context() as patch:
                patch.setattr(bucket_disk, "_LISTING_SECONDS", 0)
                remote.refresh()
            with suppress(DamagedRange):
                # Damage is fetched again only so often.
                assert remote["orders-0"].record(5) is not None
        with open_bucket(url) as remote:
            found = {record.offset: record.value for record in remote["orders-0"].read()}
        assert found == expected, key


def test_damaged_cache_files_of_a_mount_are_fetched_again(
    server: ObjectServer, log_dir: Path, make_mount: Callable[..., Mount]
) -> None:
    """Whatever they hold, the text index of a copy included."""
    with Store(log_dir) as store:
        store.settings.set_broker("remote.storage.url", f"s3://{BUCKET}/cached")
        set_topic(store, "t", segment_bytes=30_000, remote_storage_enable=True)
        partition = store.create("t-0")
        for start in range(0, 3000, 20):
            partition.append([b"value %d" % n for n in range(start, start + 20)])
        store.tier("t-0")
    mount = make_mount("--read-only", log_dirs=[logfs_path(f"s3://{BUCKET}/cached")])
    directory = mount.path / "t-0"
    expected = (directory / "records").read_bytes()
    assert (directory / "offsets/100..").read_bytes()
    cache = Path(os.environ["XDG_CACHE_HOME"]) / "logfs/chunks"
    for damage in (bytes, lambda size: b"\xa5" * size):
        for path in cache.iterdir():
            with path.open("r+b") as file:
                file.write(damage(path.stat().st_size))
        for first in (150, 700):
            found = (directory / f"offsets/{first}..").read_bytes()
            assert expected.endswith(found)
            assert found.startswith(b"value %d\n" % first)
        assert (directory / "records.jsonl").read_bytes().count(b"\n") == expected.count(b"\n")


@pytest.mark.parametrize("suffix", [".indexes", ".rsm-manifest", ".log"])
def test_wrong_bytes_are_not_kept(server: ObjectServer, orders: Path, suffix: str) -> None:
    """The first answers for each object are wrong; later readers, with the same cache, see what is right."""
    for zeros, times in ((False, 2), (True, 2), (True, 1000)):
        _clear_cache()
        change = (lambda body: bytes(len(body))) if zeros else _flipped
        server.fault = of_object(suffix, Answer(change=change), times=times)
        with suppress(LogfsError), open_bucket() as remote:
            list(remote["orders-0"].read())
        server.fault = lambda request: None
        with open_bucket() as remote:
            assert [r.offset for r in remote["orders-0"].read()] == [*range(RECORDS)]
            for offset in range(0, RECORDS, 100):
                found = remote["orders-0"].offset_for_time(offset)
                assert found is not None
                assert found.offset == offset


@pytest.mark.parametrize("layout", ["aiven", "local"])
def test_huge_objects_are_not_fetched(
    server: ObjectServer, orders: Path, layout: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is too large for a manifest or an index is never asked for, and the other segments are read."""
    url = URL
    if layout == "local":
        url = f"s3://{BUCKET}/kafka"
        for segment in sealed_segments(orders, RECORDS):
            put_local(server.put, orders, segment, uuid.UUID(int=7), prefix="kafka/")
    prefix = url.removeprefix(f"s3://{BUCKET}/")
    keys = sorted(key for key in server.stored_keys() if key.startswith(prefix))
    huge = [
        key
        for key in keys
        if not key.endswith(".log") and any(f"{base:020}" in key for base in (0, 420))
    ]
    assert len(huge) >= 4
    largest = max(len(server.stored(key)) for key in keys if not key.endswith(".log"))
    monkeypatch.setattr(layouts, "_MOST_SMALL_BYTES", largest)
    for key in huge:
        server.put(key, bytes(largest + 1))
    server.requests.clear()
    with open_bucket(url) as remote:
        partition = remote["orders-0"]
        for offset in range(0, RECORDS, 50):
            with suppress(LogfsError):
                record = partition.record(offset)
                assert record is None or record.value == b"value %d" % offset
        with suppress(LogfsError):
            partition.offset_for_time(10)
        assert partition.record(RECORDS - 1) is not None
    assert not {request.key for request in server.gets()} & set(huge)


def test_a_url_with_credentials_is_refused(log_dir: Path) -> None:
    """No message shows what comes before the @ or after the scheme of a URL that is none of a bucket."""
    Store(log_dir).close()
    user = f"s3://AKIA:sEcReT@{BUCKET}/tiered-"
    urls = (
        f"s3://{BUCKET}/tiered-?secret=sEcReT",
        f"s3://{BUCKET}/tiered-#sEcReT",
        "S3://AKIA:sEcReT@bucket/x",
        "http://user:sEcReT@127.0.0.1/bucket",
    )
    for words in (
        ("cat", f"{user}/orders-0"),
        ("check", user),
        ("check", "S3://AKIA:sEcReT@bucket/x"),
        ("recover", "ftp://u:sEcReT@h/"),
        ("tail", user, "orders-0"),
        ("mount", "--read-only", user, str(log_dir / "mnt")),
        ("append", f"{user}/orders-0"),
        ("create", f"{user}/orders-0"),
        ("tier", user),
        ("dump", user),
        ("groups", user),
        ("config", str(log_dir), f"remote.storage.url={user}"),
        ("config", str(log_dir), "-t", "orders", f"remote.storage.url={user}"),
        *(("describe", url) for url in urls),
        *(("config", str(log_dir), f"remote.storage.url={url}") for url in urls),
    ):
        done = call(*words)
        assert done.returncode in (1, 2), words
        assert b"sEcReT" not in done.stdout + done.stderr, words
        assert b"Traceback" not in done.stderr, words
        assert b"NoSuchBucket" not in done.stderr, words


def test_a_damaged_manifest_is_reported_by_check(server: ObjectServer, orders: Path) -> None:
    """It is an error that names the object, and ends no command in a traceback."""
    key = sorted(k for k in server.stored_keys() if k.endswith(".rsm-manifest"))[1]
    server.put(key, b"{}")
    checked = call("check", URL)
    assert checked.returncode == 1
    assert b"Traceback" not in checked.stderr + checked.stdout
    assert b"rsm-manifest" in checked.stderr + checked.stdout
    with open_bucket() as remote, pytest.raises(Corrupt):
        list(remote["orders-0"].read())
