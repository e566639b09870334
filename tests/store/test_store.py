"""A store: log directories, lock, checkpoints, clean shutdown, deletion (kafka-storage 1, 5, 6)."""

from __future__ import annotations

import errno
import gc
import os
import shutil
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest

from logfs.errors import (
    Corrupt,
    InvalidName,
    InvalidSetting,
    InvalidStore,
    LogDirFailed,
    LogfsError,
    NotWritable,
    OffsetOutOfRange,
    PartitionExists,
    StoreLocked,
    UnknownPartition,
)
from logfs.format.base.names import TopicPartition
from logfs.format.batches.record import Record
from logfs.format.files import checkpoint
from logfs.format.text.rendering import View
from logfs.log.disk.disk import Disk, File, ReadOnlyDisk
from logfs.log.read.reader import MAX_TIMESTAMP
from logfs.store.checkpoints import Checkpoints
from logfs.store.directory import lock
from logfs.store.directory.log_dir import (
    CLEAN_SHUTDOWN,
    CLEANER_OFFSETS,
    HIGH_WATERMARKS,
    LOG_STARTS,
    RECOVERY_POINTS,
)
from logfs.store.directory.topic_id import read_topic_id
from logfs.store.observe.check import check
from logfs.store.store import Store
from tests.support.batches import Producer
from tests.support.processes import wait_for
from tests.support.stores import abandon, assert_clean, fingerprint, locks_below, set_topic

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.stores import Clock

NAME = "orders-0"
ORDERS = TopicPartition("orders", 0)


def points(log_dir: Path, name: str = RECOVERY_POINTS) -> dict[TopicPartition, int]:
    """Return the offsets in a checkpoint file."""
    return checkpoint.parse_offsets((log_dir / name).read_bytes())


def values(store: Store, name: str = NAME) -> list[bytes | None]:
    """Return the values of a partition's records."""
    return [record.value for record in store[name].read()]


# Partitions.


def test_a_new_partition_is_a_kafka_directory(store: Store, log_dir: Path) -> None:
    """The log, epoch file and topic id of a partition exist before its first record (kafka-storage 1.1, 1.5)."""
    orders = store.create(NAME)
    assert orders.directory == log_dir / NAME
    names = {path.name for path in orders.directory.iterdir()}
    stem = "0" * 20
    assert {f"{stem}.log", "leader-epoch-checkpoint", "partition.metadata"} <= names
    # A leader writes its epoch before any record (kafka-storage 10.1).
    assert (orders.directory / "leader-epoch-checkpoint").read_bytes() == b"0\n1\n0 0\n"
    text = (orders.directory / "partition.metadata").read_bytes()
    assert text.startswith(b"version: 0\ntopic_id: ")
    assert not text.endswith(b"\n")
    assert list(store) == [NAME]
    assert NAME in store
    assert len(store) == 1
    assert store[NAME] is orders
    assert (orders.topic, orders.partition) == ("orders", 0)


def test_partitions_of_a_topic_share_its_id(store: Store) -> None:
    """All partitions of a topic have the same topic id, and another topic has another one (kafka-storage 1.5)."""
    for name in ("orders-0", "orders-7", "payments-0"):
        store.create(name)
    ids = {name: (store[name].directory / "partition.metadata").read_bytes() for name in store}
    assert ids["orders-0"] == ids["orders-7"] != ids["payments-0"]


@pytest.mark.parametrize(
    "name",
    ["", "orders", "orders-", "-0", "orders-x", "or/ders-0", ".-0", "..-0", "orders-01", "ö-0"],
)
def test_names_that_kafka_refuses_are_refused(store: Store, log_dir: Path, name: str) -> None:
    """A bad partition name is `InvalidName`, and no directory is created (kafka-storage 1.2, 1.9)."""
    before = fingerprint(log_dir)
    with pytest.raises(InvalidName):
        store.create(name)
    assert fingerprint(log_dir) == before


def test_an_overly_long_topic_is_made_and_deleted(
    store: Store, log_dir: Path, clock: Clock
) -> None:
    """A topic of 249 characters fits, also into the name of a deleted directory (Kafka's tests of loading)."""
    name = "x" * 249 + "-0"
    store.create(name).append([b"v"])
    store.delete(name)
    (doomed,) = log_dir.glob("*-delete")
    assert len(doomed.name) == 255
    clock.now_ms += 60_000
    store.upkeep()
    assert not doomed.exists()
    with pytest.raises(InvalidName):
        store.create("x" * 250 + "-0")


def test_a_partition_is_made_once(store: Store) -> None:
    """A second partition of the same name is refused, and the first one is unchanged."""
    store.create(NAME).append([b"v"])
    with pytest.raises(PartitionExists):
        store.create(NAME)
    assert values(store) == [b"v"]


def test_an_unknown_partition_is_an_error(store: Store) -> None:
    """Looking up or deleting a partition that does not exist is `UnknownPartition`, a `KeyError`."""
    with pytest.raises(UnknownPartition, match="no such partition"):
        store["orders-9"]
    with pytest.raises(KeyError):
        store.delete("orders-9")
    assert "orders-9" not in store


# Deleting.


def test_deletion_renames_at_once_and_removes_later(
    store: Store, log_dir: Path, clock: Clock
) -> None:
    """A directory is renamed to `-delete`, removed after file.delete.delay.ms (kafka-storage 1.2)."""
    store.settings.set_topic("orders", "file.delete.delay.ms", "1000")
    store.create(NAME).append([b"v"])
    store.create("other-0")
    store.delete(NAME)
    assert NAME not in store
    assert not (log_dir / NAME).exists()
    (doomed,) = log_dir.glob("orders-0.*-delete")
    assert len(doomed.name) == len("orders-0.") + 32 + len("-delete")
    assert set(points(log_dir)) == {TopicPartition("other", 0)}
    clock.now_ms += 999
    store.upkeep()
    assert doomed.exists()
    clock.now_ms += 1
    store.upkeep()
    assert not doomed.exists()
    assert list(store) == ["other-0"]


def test_an_unfinished_deletion_is_completed_after_the_next_opening(
    log_dir: Path, clock: Clock
) -> None:
    """A `-delete` directory is no partition, and upkeep of a writable store removes it (kafka-storage 5.1).

    One that Kafka has left goes at once, one that `Store.undelete` can bring back after the delay.
    """
    with Store(log_dir, clock=clock) as store:
        store.create(NAME).append([b"v"])
        store.delete(NAME)
        store.create("orders-1").append([b"v"])
        store.delete("orders-1")
    (doomed,) = log_dir.glob(f"{NAME}.*-delete")
    (left,) = log_dir.glob("orders-1.*-delete")
    (left / "deletion.json").unlink()
    with Store(log_dir, clock=clock, read_only=True) as store:
        assert len(store) == 0
        store.upkeep()
    assert doomed.exists()
    with Store(log_dir, clock=clock) as store:
        assert len(store) == 0
        store.upkeep()
        assert doomed.exists()
        assert not left.exists()
        clock.now_ms += 60_000
        store.upkeep()
        assert not doomed.exists()


def test_a_name_can_be_used_again(store: Store, log_dir: Path, clock: Clock) -> None:
    """A new partition with the name of a deleted one starts empty, with the default settings."""
    store.settings.set_topic("orders", "segment.bytes", "200")
    first = store.create(NAME)
    first.append([b"old"])
    store.delete(NAME)
    again = store.create(NAME)
    assert (again.log_end_offset, values(store)) == (0, [])
    assert again.config.segment_bytes == 1 << 30
    again.append([b"new"])
    clock.now_ms += 60_000
    store.upkeep()
    assert values(store) == [b"new"]


def test_a_new_partition_takes_nothing_from_an_unfinished_deletion(
    log_dir: Path, tmp_path: Path, clock: Clock
) -> None:
    """After a crash between the rename and the checkpoints, a new partition of the name begins at offset 0."""
    with Store(log_dir, clock=clock) as store:
        store.create(NAME).append([b"old"] * 30)
        store[NAME].advance_log_start(20)
    (log_dir / NAME).rename(log_dir / f"{NAME}.{'0' * 32}-delete")
    with Store(log_dir, clock=clock) as store:
        store.create(NAME).append([b"a", b"b"])
        store[NAME].flush()
        shutil.copytree(log_dir, tmp_path / "copy")
    with Store(tmp_path / "copy", clock=clock) as store:
        assert values(store) == [b"a", b"b"]
        assert (store[NAME].log_start_offset, store[NAME].log_end_offset) == (0, 2)


def test_readers_outlive_a_deletion(store: Store, clock: Clock) -> None:
    """A reader that began before the deletion goes on reading the open files (rule 4)."""
    orders = store.create(NAME)
    orders.append([b"a", b"b"])
    reading = orders.read()
    assert next(reading).value == b"a"
    store.delete(NAME)
    clock.now_ms += 60_000
    store.upkeep()
    assert next(reading).value == b"b"


def test_readers_of_a_deleted_log_do_not_read_a_new_log_of_its_name(
    store: Store, clock: Clock
) -> None:
    """A reader that opens files again gets those of the deleted log, until they are removed."""
    store.settings.set_topic("orders", "file.delete.delay.ms", "60000")
    old = store.create(NAME)
    for value in (b"a", b"b"):
        old.append([value])
        old.roll(clock.now_ms)
    text = old.text(View.LINES)
    store.delete(NAME)
    new = store.create(NAME)
    for value in (b"c", b"d"):
        new.append([value])
        new.roll(clock.now_ms)
    assert [record.value for record in old.read()] == [b"a", b"b"]
    assert text.read(0, text.size) == b"a\nb\n"
    clock.now_ms += 60_000
    store.upkeep()
    for segment in old.segments:
        segment.close()
    with pytest.raises(FileNotFoundError):
        list(old.read())
    assert values(store) == [b"c", b"d"]


# Several log directories.


@pytest.fixture
def two(tmp_path: Path) -> Iterator[list[Path]]:
    """Two log directories, audited at the end if both exist."""
    paths = [tmp_path / "a", tmp_path / "b"]
    yield paths
    if all(path.is_dir() for path in paths):
        assert_clean(*paths)


def test_a_new_partition_goes_to_the_log_dir_with_the_fewest(two: list[Path], clock: Clock) -> None:
    """Several log directories are filled evenly (kafka-storage 11.2)."""
    with Store(two, clock=clock) as store:
        for n in range(5):
            store.create(f"t-{n}")
        assert [store.registry.home(f"t-{n}").name for n in range(5)] == ["a", "b", "a", "b", "a"]
        store.delete("t-0")
        store.delete("t-2")
        assert store.registry.home(store.create("t-9").name.directory).name == "a"
    with Store(two, clock=clock) as store:
        assert list(store) == ["t-1", "t-3", "t-4", "t-9"]
        assert set(points(two[1])) == {TopicPartition("t", 1), TopicPartition("t", 3)}


def test_a_partition_in_two_directories_is_refused(two: list[Path], clock: Clock) -> None:
    """Two directories of one partition are a fatal error that names both log directories (kafka-storage 5.1)."""
    for path in two:
        with Store(path, clock=clock) as store:
            store.create(NAME)
    with pytest.raises(InvalidStore, match=f"{NAME} is in two log directories.*a.*b"):
        Store(two, clock=clock)
    for path in two:
        # It may be moved now by who has one of them open; a reader takes one of them.
        with Store(path, clock=clock), Store(two, clock=clock, read_only=True) as reader:
            assert list(reader) == [NAME]
            assert reader[NAME].log_end_offset == 0
        with pytest.raises(InvalidStore, match=f"{NAME} is in two log directories.*a.*b"):
            Store(two, clock=clock, read_only=True)
    shutil.rmtree(two[1])


def test_a_log_directory_cannot_be_named_twice(tmp_path: Path) -> None:
    """The same directory under two names is refused before anything is opened; so is an empty list."""
    (tmp_path / "a").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "a")
    with pytest.raises(InvalidStore, match="twice"):
        Store([tmp_path / "a", tmp_path / "link"])
    with pytest.raises(InvalidStore, match="at least one"):
        Store([])


def test_a_log_directory_must_be_a_directory(tmp_path: Path) -> None:
    """A file is refused as a log directory.

    A missing directory is created, but not by a reader, with `create=False`, or where its parent is missing.
    """
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(InvalidStore, match="is a file, not a log directory"):
        Store(tmp_path / "file")
    with pytest.raises(InvalidStore, match="does not exist"):
        Store(tmp_path / "new", read_only=True)
    with pytest.raises(InvalidStore, match="does not exist"):
        Store(tmp_path / "new", create=False)
    with pytest.raises(InvalidStore, match=r"does not exist, nor does .*deep; .*mkdir -p"):
        Store(tmp_path / "deep" / "new")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    Store(tmp_path / "new").close()
    assert (tmp_path / "new").is_dir()


def test_other_files_and_directories_are_left_alone(log_dir: Path, clock: Clock) -> None:
    """lost+found, plain files, `-stray` directories and the metadata log are kept, and are not partitions."""
    others = ["lost+found", "orders-0.0123-stray", "__cluster_metadata-0"]
    Store(log_dir, clock=clock).close()
    for name in others:
        (log_dir / name).mkdir()
    (log_dir / "orders-7").write_bytes(b"a file")
    with Store(log_dir, clock=clock) as store:
        store.create(NAME)
        store.upkeep()
        assert list(store) == [NAME]
        assert not store.offline
    assert all((log_dir / name).is_dir() for name in others)


def test_a_lookup_beyond_the_end_reports_the_end(store: Store) -> None:
    """The error gives the last offset, or the next offset of a log that is empty or has lost all of its records."""
    log = store.create(NAME)
    with pytest.raises(
        OffsetOutOfRange, match="no offset 0 yet: the log is empty, and its next offset is 0"
    ):
        log.record(0)
    log.append([b"a", b"b"])
    with pytest.raises(OffsetOutOfRange, match="no offset 2 yet: the last is 1"):
        log.record(2)
    store.delete_records(NAME, -1)
    with pytest.raises(OffsetOutOfRange, match="the log is empty, and its next offset is 2"):
        log.record(2)


# The lock.

HOLDER = """
import fcntl, sys
file = open(sys.argv[1], "w")
fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def holder(log_dir: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that holds the lock as a broker does."""
    log_dir.mkdir(exist_ok=True)
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(log_dir / ".lock")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield process
        assert process.stdin is not None
        process.stdin.close()


def test_a_locked_directory_names_its_holder(
    log_dir: Path, holder: subprocess.Popen[str], clock: Clock
) -> None:
    """A POSIX lock of another process prevents opening; the error has its pid (kafka-storage 1.8)."""
    with pytest.raises(StoreLocked, match=rf"process {holder.pid} \("):
        Store(log_dir, clock=clock)
    assert lock.holder(Disk(), log_dir) == holder.pid
    Store(log_dir, clock=clock, read_only=True).close()
    assert (log_dir / ".lock").exists()


def test_of_two_threads_one_gets_the_lock(tmp_path: Path) -> None:
    """Two threads that open one log directory at the same time do not both get it."""
    for number in range(100):
        path = tmp_path / str(number)
        Store(path).close()
        together = threading.Barrier(2)
        opened: list[Store] = []
        refused: list[StoreLocked] = []

        def open_it(path: Path = path) -> None:
            together.wait(10)  # noqa: B023
            try:
                opened.append(Store(path))  # noqa: B023
            except StoreLocked as error:
                refused.append(error)  # noqa: B023

        openers = [threading.Thread(target=open_it) for _ in range(2)]
        for opener in openers:
            opener.start()
        for opener in openers:
            opener.join()
        assert (len(opened), len(refused)) == (1, 1)
        opened[0].close()


class LockGoes(Disk):
    """A disk on which `.lock` is removed right after it was opened, `times` times, as a process that ends does."""

    times = 3

    def open(self, path: Path, *, write: bool = False, create: bool = False) -> File:
        file = super().open(path, write=write, create=create)
        if path.name == ".lock" and self.times:
            self.times -= 1
            path.unlink()
        return file


def test_the_lock_of_a_removed_file_is_not_enough(log_dir: Path, clock: Clock) -> None:
    """A process that ends removes the file between the opening and the locking; another one would get a new file."""
    with Store(log_dir, clock=clock, disk=LockGoes()):
        assert lock.holder(Disk(), log_dir) == os.getpid()
        command = [sys.executable, "-c", HOLDER, str(log_dir / ".lock")]
        done = subprocess.run(command, input="", capture_output=True, text=True, check=False)
        assert "BlockingIOError" in done.stderr


IN_TURN = """
import sys
from logfs.errors import StoreLocked
from logfs.store.store import Store
path, me, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
while count:
    try:
        store = Store(path, create=False)
    except StoreLocked:
        continue
    with store:
        offset = store["orders-0"].append([f"{me} {count}".encode()])
        store["orders-0"].flush()
    print(offset, me, count)
    count -= 1
"""


def test_processes_that_open_a_directory_in_turn(log_dir: Path) -> None:
    """Each record that was flushed is at its offset, though other processes wait for the lock all the time."""
    Store(log_dir).close()
    with Store(log_dir) as store:
        store.create(NAME)
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", IN_TURN, str(log_dir), f"p{number}", "40"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for number in range(4)
    ]
    told = {}
    for process in processes:
        out, err = process.communicate(timeout=240)
        assert process.returncode == 0, err
        told |= dict(line.split(" ", 1) for line in out.splitlines())
    with Store(log_dir, read_only=True) as store:
        found = {str(record.offset): record.value.decode() for record in store[NAME].read()}
    assert len(found) == 4 * 40
    assert found == told
    assert_clean(log_dir)


def test_a_failed_opening_releases_its_locks(
    tmp_path: Path, log_dir: Path, holder: subprocess.Popen[str], clock: Clock
) -> None:
    """If one of two log directories is locked, the lock of the other is released."""
    other = tmp_path / "other"
    with pytest.raises(StoreLocked):
        Store([other, log_dir], clock=clock)
    assert lock.holder(Disk(), other) is None
    assert not (other / ".lock").exists()
    Store(other, clock=clock).close()


def test_an_open_store_excludes_others_as_a_broker_does(log_dir: Path, clock: Clock) -> None:
    """While a store is open, lockf of others fails; closing removes the file (kafka-storage 1.8)."""
    command = [sys.executable, "-c", HOLDER, str(log_dir / ".lock")]
    with Store(log_dir, clock=clock):
        done = subprocess.run(command, input="", capture_output=True, text=True, check=False)
        assert "BlockingIOError" in done.stderr
    assert not (log_dir / ".lock").exists()
    done = subprocess.run(command, input="", capture_output=True, text=True, check=False)
    assert done.stdout == "held\n"


# Clean shutdown and checkpoints.


def test_a_reader_in_the_same_process_does_not_release_the_lock(
    log_dir: Path, clock: Clock
) -> None:
    """The lock persists, although the kernel drops a process's lock on a file when it closes any descriptor of it."""
    with Store(log_dir, clock=clock) as store:
        store.create(NAME)
        for _ in range(2):
            with Store(log_dir, read_only=True) as reader:
                assert NAME in reader
            with pytest.raises(StoreLocked, match="in use by this process"):
                Store(log_dir, clock=clock)
        program = (
            "import sys; from logfs.store.store import Store; Store(sys.argv[1], create=False)"
        )
        done = subprocess.run(
            [sys.executable, "-c", program, str(log_dir)], capture_output=True, check=False
        )
        assert b"StoreLocked" in done.stderr


def test_a_reader_that_looks_for_the_holder_does_not_release_the_lock(log_dir: Path) -> None:
    """A reader has `.lock` open when another thread opens the store: closing it must not release the new lock."""
    Store(log_dir).close()
    (log_dir / ".lock").touch()
    opened: list[Store] = []
    opener = threading.Thread(target=lambda: opened.append(Store(log_dir)))

    class Meanwhile(ReadOnlyDisk):
        """A disk on which the other thread opens the store while `.lock` is open, unless it has to wait."""

        def open(self, path: Path, *, write: bool = False, create: bool = False) -> File:
            file = super().open(path, write=write, create=create)
            if path.name == ".lock" and opener.ident is None:
                opener.start()
                opener.join(1)
            return file

    Store(log_dir, read_only=True, disk=Meanwhile()).close()
    opener.join()
    assert locks_below(log_dir)
    opened[0].close()


def test_the_clean_marker_exists_only_while_the_store_is_closed(
    log_dir: Path, clock: Clock
) -> None:
    """The marker is removed when a store opens, and written last on closing (kafka-storage 1.7)."""
    marker = log_dir / CLEAN_SHUTDOWN
    with Store(log_dir, clock=clock) as store:
        assert not marker.exists()
        store.create(NAME).append([b"v"])
        assert not marker.exists()
    assert marker.read_bytes() == b'{"version":0,"brokerEpoch":-1}'
    with Store(log_dir, clock=clock) as store:
        assert not marker.exists()
        assert values(store) == [b"v"]
    assert marker.exists()


def test_an_offline_partition_leaves_no_clean_marker(log_dir: Path, clock: Clock) -> None:
    """The marker is not written, because a partition that was not loaded is not closed either (kafka-storage 1.7)."""
    with Store(log_dir, clock=clock) as store:
        store.create(NAME).append([b"v"])
        store.create("good-0").append([b"w"])
    epochs = log_dir / NAME / "leader-epoch-checkpoint"
    good = epochs.read_bytes()
    epochs.write_bytes(b"nonsense")
    before = fingerprint(log_dir / NAME)
    with Store(log_dir, clock=clock) as store:
        assert list(store) == ["good-0"]
        assert isinstance(store.offline[NAME], Corrupt)
        with pytest.raises(Corrupt, match="leader-epoch-checkpoint"):
            store[NAME]
        store["good-0"].append([b"x"])
        assert values(store, "good-0") == [b"w", b"x"]
        with pytest.raises(PartitionExists):
            store.create(NAME)
        with pytest.raises(Corrupt, match="leader-epoch-checkpoint"):
            store.delete(NAME)
    assert not (log_dir / CLEAN_SHUTDOWN).exists()
    assert points(log_dir) == {ORDERS: 1, TopicPartition("good", 0): 2}
    assert fingerprint(log_dir / NAME) == before
    epochs.write_bytes(good)
    with Store(log_dir, clock=clock) as store:
        assert values(store) == [b"v"]


def test_a_failed_flush_leaves_no_clean_marker(log_dir: Path, clock: Clock) -> None:
    """The marker is not written if the last flush fails, because recovery is needed then (kafka-storage 1.7)."""

    class Failing(Disk):
        fails = False

        def sync(self, file) -> None:
            if self.fails:
                raise OSError(5, "Input/output error")
            super().sync(file)

    disk = Failing()
    store = Store(log_dir, clock=clock, disk=disk)
    store.create(NAME).append([b"v"])
    disk.fails = True
    with pytest.raises((LogfsError, OSError)):
        store[NAME].flush()
    disk.fails = False
    store.close()
    assert not (log_dir / CLEAN_SHUTDOWN).exists()


def test_partitions_are_recovered_without_free_inodes(log_dir: Path, clock: Clock) -> None:
    """A filesystem can be out of inodes, and a recovery that needs no new file but caches must not fail for that."""

    class NoInodes(Disk):
        refused = 0

        def open(self, path: Path, *, write: bool = False, create: bool = False) -> File:
            if create and path.name != ".lock" and not path.exists():
                self.refused += 1
                raise OSError(errno.ENOSPC, "No space left on device", str(path))
            return super().open(path, write=write, create=create)

    store = Store(log_dir, clock=clock)
    names = [f"t-{number}" for number in range(3)]
    for name in names:
        partition = store.create(name)
        producer = Producer(partition, 7, transactional=False)
        producer.send("first")
        partition.roll(clock())
        producer.send("second")
        partition.append([b"x" * 5000] * 3)
    abandon(store)
    disk = NoInodes()
    store = Store(log_dir, clock=clock, disk=disk)
    assert disk.refused
    assert not store.offline
    for name in names:
        assert len(values(store, name)) == 5
        store[name].append([b"third"])
        store[name].flush()
    with pytest.raises(OSError, match="No space left"):
        store.close()
    assert not (log_dir / CLEAN_SHUTDOWN).exists()
    with Store(log_dir, clock=clock) as store:
        for name in names:
            assert len(values(store, name)) == 6
            assert store[name].producers.entries()


def test_closing_twice_is_harmless(log_dir: Path, clock: Clock) -> None:
    """A second close changes nothing."""
    store = Store(log_dir, clock=clock)
    store.close()
    before = fingerprint(log_dir)
    store.close()
    assert fingerprint(log_dir) == before


def test_a_clean_close_trims_files_and_checkpoints_the_ends(log_dir: Path, clock: Clock) -> None:
    """Closing flushes, trims every file to its content, and checkpoints the log end offsets (kafka-storage 5.7)."""
    with Store(log_dir, clock=clock) as store:
        store.settings.set_topic("orders", "preallocate", "true")
        store.settings.set_topic("orders", "segment.bytes", "100000")
        orders = store.create(NAME)
        orders.append([Record(b"v", timestamp=5)] * 3)
        size = orders.size_bytes
    sizes = {path.suffix: path.stat().st_size for path in (log_dir / NAME).glob("0*")}
    assert sizes == {
        ".log": size,
        ".index": 0,
        ".timeindex": 12,
        ".textindex": 32,
        ".snapshot": 10,
    }
    assert points(log_dir) == points(log_dir, HIGH_WATERMARKS) == {ORDERS: 3}
    assert points(log_dir, LOG_STARTS) == {}


def test_checkpoints_are_written_on_their_interval(
    store: Store, log_dir: Path, clock: Clock
) -> None:
    """Checkpoints are written after 30 s, then every 60 s, and contain only durable offsets (kafka-storage 6)."""
    orders = store.create(NAME)
    orders.append([b"a"])
    orders.flush()
    clock.now_ms += 29_999
    store.upkeep()
    assert not (log_dir / RECOVERY_POINTS).exists()
    clock.now_ms += 1
    store.upkeep()
    assert points(log_dir) == {ORDERS: 1}
    orders.append([b"b"])
    orders.flush()
    orders.append([b"c"])
    clock.now_ms += 59_999
    store.upkeep()
    assert points(log_dir) == {ORDERS: 1}
    clock.now_ms += 1
    store.upkeep()
    assert points(log_dir) == {ORDERS: 2}
    assert orders.log_end_offset - orders.recovery_point == 1, "a checkpoint does not itself flush"


def test_only_log_starts_that_moved_are_checkpointed(log_dir: Path, clock: Clock) -> None:
    """A log start is listed only above the first segment's base offset (kafka-storage 1.3)."""
    with Store(log_dir, clock=clock) as store:
        store.create(NAME).append([b"a", b"b", b"c"])
        store.create("other-0").append([b"a"])
        store[NAME].advance_log_start(2)
        store.checkpoints.write()
        assert points(log_dir, LOG_STARTS) == {ORDERS: 2}
    with Store(log_dir, clock=clock) as store:
        assert store[NAME].log_start_offset == 2
        assert values(store) == [b"c"]


def test_truncation_lowers_the_checkpoint_at_once(store: Store, log_dir: Path) -> None:
    """A truncation also lowers the recovery point on the disk (kafka-storage 6)."""
    orders = store.create(NAME)
    for value in (b"a", b"b", b"c"):
        orders.append([value])
    orders.flush()
    store.checkpoints.write()
    assert points(log_dir) == {ORDERS: 3}
    store.truncate(NAME, 1)
    assert points(log_dir) == {ORDERS: 1}


@pytest.mark.parametrize("name", [RECOVERY_POINTS, LOG_STARTS])
def test_a_damaged_checkpoint_is_tolerated(log_dir: Path, clock: Clock, name: str) -> None:
    """A corrupt checkpoint is treated as empty, and recovery reads all segments (kafka-storage 1.4)."""
    with Store(log_dir, clock=clock) as store:
        store.create(NAME).append([b"a", b"b"])
    (log_dir / name).write_bytes(b"\xff nonsense")
    with Store(log_dir, clock=clock) as store:
        assert not store.offline
        assert values(store) == [b"a", b"b"]
    points(log_dir, name)


@pytest.mark.parametrize(
    ("name", "recovered"), [(RECOVERY_POINTS, 1), (LOG_STARTS, 1), (CLEANER_OFFSETS, 0)]
)
def test_a_damaged_checkpoint_of_recovery_makes_a_clean_close_unclean(
    log_dir: Path, clock: Clock, name: str, recovered: int
) -> None:
    """Without recovery points or log starts nothing is known to be whole. Cleaner offsets say nothing of that."""
    with Store(log_dir, clock=clock) as store:
        store.create(NAME).append([b"a"])
    (log_dir / name).write_bytes(b"\xff nonsense")
    with Store(log_dir, clock=clock) as store:
        assert store.registry.loader.recovered_partitions == recovered
    # Nothing writes it again before the first compaction.
    (log_dir / CLEANER_OFFSETS).unlink(missing_ok=True)


def test_only_segments_that_end_at_or_after_the_recovery_point_are_recovered(
    log_dir: Path, tmp_path: Path, clock: Clock
) -> None:
    """Older segments are not read (Kafka's tests of loading).

    The segment that ends at the recovery point is read, because its indexes may lack their closing entries.
    """
    copy = tmp_path / "copy"
    with Store(log_dir, clock=clock) as store:
        orders = store.create(NAME)
        for n in range(3):
            orders.append([b"%d" % n * 1000])
            orders.roll(clock())
        orders.flush()
        store.checkpoints.write()
        orders.append([b"last"])
        last = sum(segment.size_bytes for segment in orders.segments[-2:])
        shutil.copytree(log_dir, copy)
    read: list[int] = []
    with Store(copy, clock=clock, progress=lambda _n, done, _t: read.append(done)) as store:
        assert max(read) == last < store[NAME].size_bytes
        assert len(values(store)) == 4


def test_progress_reports_the_bytes_that_recovery_reads(log_dir: Path, clock: Clock) -> None:
    """The callback gets the partition, the bytes read so far and the total bytes."""
    with Store(log_dir, clock=clock) as store:
        orders = store.create(NAME)
        for n in range(20):
            orders.append([b"%d" % n])
        size = orders.size_bytes
    heard: list[tuple[str, int, int]] = []
    Store(log_dir, clock=clock, recover=True, progress=lambda *a: heard.append(a)).close()
    assert heard[-1] == (NAME, size, size)
    assert {name for name, _, _ in heard} == {NAME}


# One partition alone.


def test_one_partition_can_be_opened_alone(log_dir: Path, clock: Clock) -> None:
    """`only` loads one partition, and leaves the files and checkpoints of the others as they are."""
    with Store(log_dir, clock=clock) as store:
        for name in ("a-0", "b-0"):
            store.create(name).append([b"v", b"w"])
    before = fingerprint(log_dir / "b-0")
    with Store(log_dir, clock=clock, only="a-0") as store:
        assert list(store) == ["a-0"]
        store["a-0"].append([b"x"])
        with pytest.raises(PartitionExists):
            store.create("b-0")
    assert fingerprint(log_dir / "b-0") == before
    assert points(log_dir) == {TopicPartition("a", 0): 3, TopicPartition("b", 0): 2}
    assert (log_dir / CLEAN_SHUTDOWN).exists()
    (log_dir / CLEAN_SHUTDOWN).unlink()
    Store(log_dir, clock=clock, only="a-0").close()
    assert not (log_dir / CLEAN_SHUTDOWN).exists(), "the other one was not looked at"


# Read-only.


@pytest.mark.parametrize("state", ["clean", "unclean", "torn", "leftovers", "no indexes"])
def test_reading_touches_nothing(log_dir: Path, tmp_path: Path, clock: Clock, state: str) -> None:
    """A read-only store changes no byte, name or time in its directory, whatever its state."""
    copy = tmp_path / "copy"
    with Store(log_dir, clock=clock) as store:
        store.settings.set_topic("orders", "index.interval.bytes", "0")
        orders = store.create(NAME)
        for n in range(20):
            orders.append([Record(b"%d" % n, timestamp=1000 + n)])
            if n == 9:
                orders.roll(clock())
        shutil.copytree(log_dir, copy)
    place = log_dir if state == "clean" else copy
    directory = place / NAME
    if state == "torn":
        with (directory / f"{10:020}.log").open("ab") as file:
            file.write(b"torn")
    if state == "leftovers":
        (directory / f"{0:020}.log.deleted").write_bytes(b"x")
        (directory / f"{5:020}.index").write_bytes(b"orphan!!")
        (place / f"{NAME}.0123-delete").mkdir()
    if state == "no indexes":
        for path in directory.glob("*index"):
            path.unlink()
    before = fingerprint(place)
    with Store(place, clock=clock, read_only=True) as store:
        orders = store[NAME]
        assert values(store) == [b"%d" % n for n in range(20)]
        assert orders.offset_for_time(1015).offset == 15
        assert orders.record(7).value == b"7"
        assert sum(segment.end.text.records for segment in orders.segments) == 20
        for change in (
            lambda: store.create("new-0"),
            lambda: store.delete(NAME),
            lambda: store.settings.set_topic("orders", "segment.bytes", "1000"),
            lambda: store.truncate(NAME, 0),
            lambda: store.delete_records(NAME, 1),
            lambda: store.compact(NAME),
            lambda: store.tier(NAME),
            lambda: store.move(NAME, place),
        ):
            with pytest.raises(NotWritable):
                change()
        store.upkeep()
    assert fingerprint(place) == before
    shutil.rmtree(copy)


def test_a_reader_beside_a_writer_sees_all_written_records(log_dir: Path, clock: Clock) -> None:
    """A read-only store opens while another store has the lock, and reads all that was written before."""
    with Store(log_dir, clock=clock) as writer:
        writer.create(NAME).append([b"a", b"b"])
        with Store(log_dir, clock=clock, read_only=True) as reader:
            assert values(reader) == [b"a", b"b"]
        writer[NAME].append([b"c"])
        with Store(log_dir, clock=clock, read_only=True) as reader:
            assert values(reader) == [b"a", b"b", b"c"]


# Settings.


def test_settings_are_in_force_at_once_and_after_reopening(log_dir: Path, clock: Clock) -> None:
    """The settings of a topic are in force for its partitions at once, and after reopening."""
    with Store(log_dir, clock=clock) as store:
        orders = store.create(NAME)
        store.settings.set_topic("orders", "segment.bytes", "1000")
        assert orders.config.segment_bytes == 1000
    with Store(log_dir, clock=clock) as store:
        assert store[NAME].config.segment_bytes == 1000


def test_a_damaged_settings_file_takes_its_topic_offline(log_dir: Path, clock: Clock) -> None:
    """A topic with a damaged settings file goes offline, and other topics keep working."""
    with Store(log_dir, clock=clock) as store:
        for name in (NAME, "good-0"):
            store.create(name).append([b"v"])
    (log_dir / "orders@p").write_bytes(b"segment.bytes=lots\n")
    with Store(log_dir, clock=clock) as store:
        assert list(store) == ["good-0"]
        assert isinstance(store.offline[NAME], InvalidSetting)
    (log_dir / "orders@p").unlink()


# Many partitions.


def test_many_partitions_keep_few_descriptors(log_dir: Path, clock: Clock) -> None:
    """Opening 300 partitions leaves almost no file open, because files are opened at their first use."""
    with Store(log_dir, clock=clock) as store:
        for n in range(300):
            store.create(f"t-{n}")
        store["t-5"].append([b"v"])
    before = len(os.listdir("/proc/self/fd"))
    with Store(log_dir, clock=clock) as store:
        assert len(store) == 300
        assert len(os.listdir("/proc/self/fd")) - before < 10
        assert values(store, "t-5") == [b"v"]
    assert len(os.listdir("/proc/self/fd")) <= before


def test_appends_of_many_threads_are_whole(store: Store) -> None:
    """Eight threads append at once: every batch is in the log once, and the records of a thread are in its order."""
    orders = store.create(NAME)

    def write(number: int) -> None:
        for n in range(50):
            orders.append([b"%d %d" % (number, n), b"%d %d'" % (number, n)])

    threads = [threading.Thread(target=write, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = values(store)
    assert len(found) == 800
    for number in range(8):
        mine = [value for value in found if value.startswith(b"%d " % number)]
        assert mine == [b"%d %d%b" % (number, n, end) for n in range(50) for end in (b"", b"'")]
    assert [record.offset for record in orders.read()] == list(range(800))


@pytest.mark.parametrize("read_only", [False, True])
def test_a_closed_store_holds_no_descriptor(log_dir: Path, *, read_only: bool) -> None:
    """Closing closes every file without waiting for the garbage collector, however much was read."""
    with Store(log_dir) as store:
        store.create("orders-0").append([b"x"] * 100)
    gc.disable()
    try:
        before = len(os.listdir("/proc/self/fd"))
        with Store(log_dir, read_only=read_only) as store:
            partition = store["orders-0"]
            assert len(list(partition.read())) == 100
            assert partition.offset_for_time(0) is not None
            assert len(os.listdir("/proc/self/fd")) > before
        assert len(os.listdir("/proc/self/fd")) == before
    finally:
        gc.enable()


def test_an_interrupted_store_leaves_no_clean_marker(log_dir: Path, clock: Clock) -> None:
    """Ctrl-C may come in the middle of a roll, so the next opening recovers the log, as after a kill."""

    def interrupted() -> None:
        with Store(log_dir, clock=clock) as store:
            store.create(NAME).append([b"a"])
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert not (log_dir / CLEAN_SHUTDOWN).exists()
    with Store(log_dir, clock=clock) as store:
        assert store.recovered_bytes
        assert [record.value for record in store[NAME].read()] == [b"a"]
    assert (log_dir / CLEAN_SHUTDOWN).exists()


def refused_in_a_child(store: Store, log_dir: Path) -> int:
    """Return how many of six attempts a forked child is refused, or -SIGALRM if it hangs."""
    orders = store[NAME]
    child = os.fork()
    if not child:
        signal.alarm(20)
        refused = 0
        for attempt in (
            lambda: orders.append([b"child"]),
            orders.flush,
            lambda: store[NAME].append([b"child"]),
            lambda: store.create("other-0"),
            lambda: store.delete(NAME),
            lambda: Store(log_dir),
        ):
            try:
                attempt()
            except LogfsError:
                refused += 1
        store.close()
        os._exit(refused)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_a_forked_child_cannot_use_the_store(log_dir: Path, clock: Clock) -> None:
    """A forked child has the parent's descriptors but not its lock: its calls are errors, and change nothing."""
    with Store(log_dir, clock=clock) as store:
        orders = store.create(NAME)
        orders.append([b"before"])
        assert refused_in_a_child(store, log_dir) == 6
        assert orders.append([b"after"]) == 1
        with pytest.raises(StoreLocked):
            Store(log_dir)
    assert_clean(log_dir)
    with Store(log_dir, read_only=True) as store:
        assert [record.value for record in store[NAME].read()] == [b"before", b"after"]


def test_a_forked_child_waits_for_no_thread_of_its_parent(log_dir: Path, clock: Clock) -> None:
    """A child does not wait for the partition's lock, which one of the appending threads holds at most forks."""
    over = threading.Event()
    with Store(log_dir, clock=clock) as store:
        orders = store.create(NAME)

        def write() -> None:
            while not over.is_set():
                orders.append([b"x" * 1000] * 100)
                orders.flush()

        threads = [threading.Thread(target=write) for _ in range(3)]
        for thread in threads:
            thread.start()
        try:
            assert [refused_in_a_child(store, log_dir) for _ in range(10)] == [6] * 10
        finally:
            over.set()
            for thread in threads:
                thread.join()
    assert_clean(log_dir)


def test_negative_offsets_are_refused_and_change_nothing(store: Store, log_dir: Path) -> None:
    store.create(NAME).append([b"a", b"b"])
    store.checkpoints.write()
    before = points(log_dir)
    with pytest.raises(OffsetOutOfRange, match="orders-0: cannot truncate at offset -1"):
        store.truncate(NAME, -1)
    with pytest.raises(OffsetOutOfRange, match="orders-0: cannot delete up to offset -2"):
        store.delete_records(NAME, -2)
    assert points(log_dir) == before
    assert store[NAME].log_end_offset == 2


@pytest.mark.parametrize("suffix", [".log", ".log.swap"])
def test_a_file_that_is_longer_than_a_segment_is_refused_unread(
    log_dir: Path, clock: Clock, suffix: str
) -> None:
    """The partition goes offline at once: reading a sparse file of a terabyte would take hours."""
    with Store(log_dir, clock=clock) as store:
        store.create(NAME).append([b"a"])
    path = log_dir / NAME / f"{0:020}{suffix}"
    before = path.stat().st_size if path.exists() else 0
    with path.open("ab") as file:
        file.truncate(1 << 40)
    for read_only in (True, False):
        with Store(log_dir, clock=clock, read_only=read_only) as store:
            assert f"{path}: is {1 << 40} bytes long" in str(store.offline[NAME])
    with path.open("ab") as file:
        file.truncate(before)
    if not before:
        path.unlink()
    assert_clean(log_dir)


@pytest.mark.parametrize(("marker", "epoch"), [('{"version":0,"brokerEpoch":77}', 77), ("", -1)])
def test_the_epoch_of_the_broker_that_closed_a_log_directory_is_kept(
    log_dir: Path, marker: str, epoch: int
) -> None:
    """A clean close keeps the epoch, because the controller treats another one as an unclean shutdown."""
    with Store(log_dir) as store:
        store.create(NAME)
    (log_dir / ".kafka_cleanshutdown").write_text(marker)
    with Store(log_dir) as store:
        store[NAME].append([b"a"])
    kept = (log_dir / ".kafka_cleanshutdown").read_bytes()
    assert kept == b'{"version":0,"brokerEpoch":%d}' % epoch


@pytest.mark.parametrize("number", [0, 1])
def test_a_change_in_any_log_directory_is_noticed(tmp_path: Path, number: int) -> None:
    """`is_unchanged` is true only if nothing has changed in any of the log directories."""
    log_dirs = [tmp_path / "one", tmp_path / "two"]
    Store(log_dirs).close()
    with Store(log_dirs, read_only=True) as reader:
        # A change that is as recent as the clock of the file system can tell leaves it open.
        wait_for(lambda: (reader.refresh(), reader.is_unchanged())[1])
        (log_dirs[number] / "orders-0").mkdir()
        assert not reader.is_unchanged()


def test_a_log_directory_may_be_a_symlink(tmp_path: Path) -> None:
    """New partitions are seen through it, and another directory in its place is noticed."""
    log_dir, link = tmp_path / "log", tmp_path / "link"
    with Store(log_dir) as store:
        store.create("orders-0").append([b"x"])
    link.symlink_to(log_dir)
    with Store(link, read_only=True) as reader:
        assert [*reader] == ["orders-0"]
        with Store(log_dir) as store:
            store.create("orders-1").append([b"x"])
        assert not reader.is_unchanged()
        reader.refresh()
        assert [*reader] == ["orders-0", "orders-1"]
    (tmp_path / "other").mkdir()
    with Store(link) as store:
        link.unlink()
        link.symlink_to(tmp_path / "other")
        store.upkeep()
        assert store.registry.failed
        with pytest.raises(LogDirFailed):
            store["orders-0"].append([b"y"])


@pytest.mark.parametrize("left", [[], ["partition.metadata.tmp"]])
def test_a_partition_whose_creation_was_ended_by_a_kill_is_completed(
    log_dir: Path, clock: Clock, left: list[str]
) -> None:
    """It gets the id of its topic, without which a broker would take it for stray."""
    store = Store(log_dir, clock=clock)
    store.create("orders-0")
    abandon(store)
    (log_dir / "orders-1").mkdir()
    for name in left:
        (log_dir / "orders-1" / name).touch()
    with Store(log_dir, clock=clock) as store:
        store["orders-1"].append([b"value"])
        assert read_topic_id(store.disk, log_dir / "orders-1") == store.registry.topic_id("orders")
    assert [*check(log_dir)] == []


class Killed(BaseException):
    """Stands for the end of the process at this point."""


@pytest.mark.parametrize("written", range(3))
def test_a_truncation_within_a_batch_that_is_killed(
    log_dir: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch, written: int
) -> None:
    """Whichever checkpoint was written last, the log ends where a batch does, and has no hole."""
    store = Store(log_dir, clock=clock)
    partition = store.create(NAME)
    for _ in range(3):
        partition.append([b"x" * 10] * 10)
    partition.flush()
    store.checkpoints.write()
    write_one, left = Checkpoints.write_one, written

    def killed_after(*arguments: Any) -> None:
        nonlocal left
        if not left:
            raise Killed
        left -= 1
        write_one(*arguments)

    with monkeypatch.context() as patch, suppress(Killed):
        patch.setattr(Checkpoints, "write_one", killed_after)
        store.truncate(NAME, 15)
    abandon(store)
    with Store(log_dir, clock=clock) as again:
        end = 10 if written else 30
        assert again[NAME].log_end_offset == end
        assert len(list(again[NAME].read())) == end
    assert_clean(log_dir)


@pytest.mark.parametrize("size", [4, 11, 12, 40])
def test_a_tiny_index_after_a_kill(log_dir: Path, clock: Clock, size: int) -> None:
    """Kafka accepts 4 bytes for `segment.index.bytes`; an index then has room for one entry."""
    store = Store(log_dir, clock=clock)
    set_topic(store, "orders", segment_index_bytes=size, index_interval_bytes=0)
    partition = store.create(NAME)
    for _ in range(20):
        partition.append([b"x"])
    partition.flush()
    abandon(store)
    with Store(log_dir, clock=clock) as again:
        assert not again.offline
        assert [record.offset for record in again[NAME].read()] == list(range(20))


def test_the_greatest_timestamp_beside_appends(store: Store, clock: Clock) -> None:
    """It is that of a record which can be read, also while others are appended."""
    partition = store.create(NAME)
    partition.append([b"first"])

    def append() -> None:
        for _ in range(3):
            clock.now_ms += 1000
            partition.append([b"x" * 500] * 40_000)

    writer = threading.Thread(target=append)
    writer.start()
    try:
        while writer.is_alive():
            found = partition.offset_for_time(MAX_TIMESTAMP)
            assert found is not None
            assert partition.record(found.offset) is not None
    finally:
        writer.join()
