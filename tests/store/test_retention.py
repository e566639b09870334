"""Retention: which segments are deleted, which stay, and what is left of the deleted ones (kafka-storage 7)."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest

from logfs import errors
from logfs.format.base import names
from logfs.format.batches.record import Record
from logfs.format.text.rendering import View
from logfs.log.disk.disk import Disk
from logfs.log.read.text_view import NO_READER
from logfs.store.observe.check import check
from logfs.store.store import Store
from tests.support import lock_order
from tests.support.partitions import bases
from tests.support.stores import set_topic

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from logfs.log.append.partition import Partition

NAME = "orders-0"
NOW = 1_700_000_000_000
DAY = 86_400_000
WEEK = 7 * DAY


class Clock:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.now = NOW

    def __call__(self) -> int:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def log_dir(tmp_path: Path) -> Iterator[Path]:
    """A log directory, audited at the end."""
    path = tmp_path / "log"
    yield path
    assert not list(check(path))


@pytest.fixture
def store(log_dir: Path, clock: Clock) -> Iterator[Store]:
    with Store(log_dir, clock=clock) as store:
        yield store


@pytest.fixture
def orders(store: Store, clock: Clock) -> Partition:
    """A partition of four segments, 0..10, 10..20, 20..30 and the active 30..35, a day apart."""
    orders = store.create(NAME)
    fill(orders, clock, 4)
    return orders


def fill(orders: Partition, clock: Clock, segments: int) -> None:
    """Append `segments` segments, a day apart, of 10 records each, and of 5 in the last one."""
    for number in range(segments):
        if number:
            clock.now += DAY
            orders.roll(clock.now)
        for _ in range(10 if number < segments - 1 else 5):
            orders.append([b"%d" % orders.log_end_offset])


def logs(orders: Partition) -> list[str]:
    """Return the names of the .log files, also of deleted ones, without their leading zeros."""
    return sorted(path.name.removeprefix("0" * 18) for path in orders.directory.glob("*.log*"))


# Which segments are deleted.


def test_time_based_segments_ready_to_be_deleted(
    store: Store, orders: Partition, clock: Clock
) -> None:
    """A segment is deleted once its newest record is older than retention.ms, and not earlier."""
    clock.now = NOW + WEEK
    assert store.retain() == 0
    clock.now += 1
    assert store.retain() == 1
    assert bases(orders) == [10, 20, 30]
    assert orders.log_start_offset == 10


@pytest.mark.parametrize("reason", ["paused", "failed"])
def test_a_partition_that_takes_no_changes_is_left_alone(
    store: Store, orders: Partition, clock: Clock, reason: str
) -> None:
    """Retention of the whole store leaves out a partition that is paused or has failed, and does the others."""
    other = store.create("other-0")
    other.append([b"old"])
    other.roll(clock())
    set_topic(store, "orders", retention_ms=1)
    set_topic(store, "other", retention_ms=1)
    clock.now += WEEK
    if reason == "paused":
        orders.is_paused = True
    else:
        orders.failure = errors.PartitionFailed("broken")
    before = bases(orders)
    assert store.retain() == 1
    assert bases(orders) == before
    orders.is_paused, orders.failure = False, None
    assert store.retain() > 0


def test_none_ready_to_be_deleted(store: Store, orders: Partition) -> None:
    """If no record is older than retention.ms, no segment is deleted (Kafka's tests of the log)."""
    assert store.retain() == 0
    assert bases(orders) == [0, 10, 20, 30]


def test_when_all_has_expired_one_new_empty_segment_is_left(
    store: Store, orders: Partition, clock: Clock
) -> None:
    """The active segment is deleted with the others, and offsets go on (Kafka's tests of the log)."""
    clock.now += 2 * WEEK
    assert store.retain() == 4
    assert bases(orders) == [35]
    assert (orders.log_start_offset, orders.log_end_offset) == (35, 35)
    assert orders.append([b"next"]) == 35
    assert orders.epochs.entries == [(0, 35)]


def test_records_appended_during_retention_stay(
    store: Store, orders: Partition, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All segments have expired, and a record is appended to the last of them before they are deleted."""
    set_topic(store, "orders", segment_ms=str(100 * WEEK))
    clock.now += 2 * WEEK
    write = store.checkpoints.write

    def append_before() -> None:
        monkeypatch.undo()
        orders.append([b"new"])
        write()

    monkeypatch.setattr(store.checkpoints, "write", append_before)
    assert store.retain() == 3
    assert [(record.offset, record.value) for record in orders.read()] == [(35, b"new")]
    clock.now += 2 * WEEK
    assert store.retain() == 1
    assert bases(orders) == [36]


def test_segments_that_compaction_merges_during_retention_stay(
    store: Store, orders: Partition, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two expired segments are merged with others before they are deleted, and records of the result stay."""
    set_topic(store, "orders", cleanup_policy="compact,delete")
    orders.append([Record(b"%d" % number, b"%d" % number) for number in range(35, 50)])
    orders.roll(clock.now)
    write = store.checkpoints.write

    def compact_before() -> None:
        monkeypatch.undo()
        with lock_order.elsewhere():
            store.compact(NAME)
        write()

    set_topic(
        store, "orders", retention_bytes=str(sum(each.size_bytes for each in orders.segments[2:]))
    )
    monkeypatch.setattr(store.checkpoints, "write", compact_before)
    store.retain()
    assert orders.log_start_offset == 20
    assert [record.value for record in orders.read()] == [b"%d" % n for n in range(35, 50)]


def test_an_empty_active_segment_is_never_deleted(
    store: Store, orders: Partition, clock: Clock
) -> None:
    orders.roll(clock.now)
    clock.now += 2 * WEEK
    assert store.retain() == 4
    assert store.retain() == 0
    assert bases(orders) == [35]


def test_segments_that_compaction_has_emptied_do_not_hold_retention_up(
    store: Store, clock: Clock
) -> None:
    """Only an empty segment at the end stays."""
    set_topic(store, "orders", cleanup_policy="compact,delete", segment_bytes=1 << 20)
    orders = store.create(NAME)
    for _ in range(3):
        orders.append([Record(b"x" * 700_000, b"key")])
        orders.roll(clock.now)
    store.compact(NAME)
    assert [segment.size_bytes > 0 for segment in orders.segments] == [False, False, True, False]
    clock.now = time.time_ns() // 1_000_000 + 2 * WEEK
    assert store.retain() == 3
    assert bases(orders) == [3]


def test_a_newer_record_protects_all_that_follow(store: Store, clock: Clock) -> None:
    orders = store.create(NAME)
    set_topic(store, "orders", message_timestamp_after_max_ms=str(100 * WEEK))
    orders.append([b"old"])
    orders.roll(clock.now)
    orders.append([Record(b"from the future", timestamp=NOW + 3 * WEEK)])
    orders.roll(clock.now)
    orders.append([b"old"])
    clock.now += 2 * WEEK
    assert store.retain() == 1
    assert [record.value for record in orders.read()] == [b"from the future", b"old"]


def test_size_based_segments(store: Store, orders: Partition) -> None:
    """As many segments are deleted as leave at least retention.bytes."""
    sizes = [segment.size_bytes for segment in orders.segments]
    set_topic(store, "orders", retention_bytes=str(sum(sizes[1:]) + 1))
    assert store.retain() == 0
    set_topic(store, "orders", retention_bytes=str(sum(sizes[1:])))
    assert store.retain() == 1
    set_topic(store, "orders", retention_bytes=str(sizes[-1]))
    assert store.retain() == 2
    assert bases(orders) == [30]


def test_log_deletion_after_delete_records(store: Store, orders: Partition) -> None:
    """Moving the log start into a segment frees exactly the segments wholly below it (Kafka's tests of the log)."""
    assert store.delete_records(NAME, 15) == 15
    assert store.retain() == 1
    assert bases(orders) == [10, 20, 30]
    assert next(orders.read()).offset == 15
    store.delete_records(NAME, 20)
    assert store.retain() == 1
    assert bases(orders) == [20, 30]
    assert store.delete_records(NAME, 3) == 20
    assert store.delete_records(NAME, -1) == 35
    with pytest.raises(errors.OffsetOutOfRange):
        store.delete_records(NAME, 36)


def test_a_compacted_log_loses_only_what_lies_below_its_start(
    store: Store, orders: Partition, clock: Clock
) -> None:
    set_topic(store, "orders", cleanup_policy="compact", retention_bytes="0")
    clock.now += 2 * WEEK
    assert store.retain() == 0
    with pytest.raises(errors.InvalidSetting, match=r"cleanup\.policy"):
        store.delete_records(NAME, 10)
    orders.advance_log_start(25)
    assert store.retain() == 2
    assert bases(orders) == [20, 30]


def test_compact_delete_does_both(store: Store, orders: Partition, clock: Clock) -> None:
    set_topic(store, "orders", cleanup_policy="compact,delete")
    clock.now += 2 * WEEK
    assert store.retain() == 4
    assert orders.log_start_offset == 35


def test_a_brokers_log_is_not_deleted_by_age_without_a_setting(
    log_dir: Path, store: Store, orders: Partition, clock: Clock
) -> None:
    """The broker may compact the topic or keep it for ever, so logfs deletes only what it is told to delete."""
    (log_dir / "meta.properties").write_text("version=1\ncluster.id=x\nnode.id=1\n")
    store.close()
    clock.now += 2 * WEEK
    with Store(log_dir, clock=clock) as store:
        assert "a broker's" in store.retention_plan(NAME).stays
        assert store.retain() == 0
        store.delete_records(NAME, 10)
        assert store.retain() == 1
        set_topic(store, "orders", retention_ms=str(WEEK))
        assert store.retain() == 3


# Their files.


def test_files_are_renamed_at_once_and_removed_later(
    store: Store, orders: Partition, clock: Clock
) -> None:
    clock.now = NOW + WEEK + DAY + 1
    store.retain()
    assert logs(orders) == ["00.log.deleted", "10.log.deleted", "20.log", "30.log"]
    assert not list(orders.directory.glob("*10" + names.SNAPSHOT))
    clock.now += 59_999
    store.upkeep()
    assert len(logs(orders)) == 4
    clock.now += 1
    store.upkeep()
    assert logs(orders) == ["20.log", "30.log"]
    assert not list(orders.directory.glob("*.deleted"))


def test_old_views_keep_deleted_records_and_new_ones_begin_later(
    store: Store, orders: Partition, clock: Clock
) -> None:
    text = orders.text(View.LINES)
    whole = text.read(0, 1000)
    untouched = orders.text(View.LINES)
    records = orders.read()
    assert next(records).offset == 0
    clock.now += WEEK - 60_001
    assert store.retain() == 3
    clock.now += 60_000
    store.upkeep()
    assert text.read(0, 1000) == whole == untouched.read(0, 1000)
    assert [record.offset for record in records] == list(range(1, 35))
    orders.append([b"new"])
    assert text.read(0, 1000) == whole + b"new\n"
    assert orders.text(View.LINES).read(0, 1000).startswith(b"30\n")
    # The files stay until these views release them.
    assert logs(orders) == ["00.log.deleted", "10.log.deleted", "20.log.deleted", "30.log"]
    untouched.release_before(NO_READER)
    text.release_before(NO_READER)
    store.upkeep()
    assert logs(orders) == ["30.log"]


@pytest.mark.parametrize("clean", [True, False])
def test_deleted_records_do_not_come_back(
    log_dir: Path, store: Store, orders: Partition, clock: Clock, clean: bool
) -> None:
    store.delete_records(NAME, 15)
    store.retain()
    store.close()
    if not clean:
        (log_dir / ".kafka_cleanshutdown").unlink()
    with Store(log_dir, clock=clock) as again:
        assert again[NAME].log_start_offset == 15
        assert bases(again[NAME]) == [10, 20, 30]
        assert not list(orders.directory.glob("*.deleted"))


def test_upkeep_runs_retention_when_due_and_when_a_setting_changes(
    store: Store, orders: Partition, clock: Clock
) -> None:
    clock.now += 29_999 - 3 * DAY
    store.upkeep()
    set_topic(store, "orders", retention_ms="1")
    clock.now += 3 * DAY
    store.upkeep()
    assert bases(orders) == [35]
    fill(orders, clock, 2)
    clock.now += 299_999
    assert len(orders.segments) == 2
    store.upkeep()
    assert bases(orders) == [50]


# Reasons and commands.


def test_a_dry_run_reports_what_would_be_deleted_and_why_the_next_stays(
    log_dir: Path, store: Store, orders: Partition, clock: Clock
) -> None:
    store.close()
    run = subprocess.run(
        [sys.executable, "-m", "logfs", "retain", "--dry-run", str(log_dir)],
        capture_output=True,
        text=True,
        check=True,
    )
    lines = run.stdout.splitlines()
    assert lines[0] == NAME
    assert "00000000000000000000.log (0..10, " in lines[1]
    assert "would be dropped: its newest record, of 2023-11-14T22:13:20.000Z, is older" in lines[1]
    assert logs(orders) == ["00.log", "10.log", "20.log", "30.log"]
    with Store(log_dir, clock=clock) as again:
        plan = again.retention_plan(NAME)
    assert not plan
    assert "may be deleted after 2023-11-21T22:13:20.000Z (retention.ms=604800000)" in plan.stays


def test_commands_drop_segments_and_records(log_dir: Path, store: Store, orders: Partition) -> None:
    set_topic(store, "orders", retention_ms="-1")
    store.close()

    def logfs(*words: str) -> str:
        command = [sys.executable, "-m", "logfs", *words]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout

    assert (
        logfs("delete-records", str(log_dir / NAME), "--before", "12")
        == f"{NAME}: the log start offset is 12\n"
    )
    assert "set no limit" in logfs("retain", str(log_dir))
    assert logfs("cat", str(log_dir / NAME), "--offset", "12") == "12\n"
    assert logs(orders) == ["10.log", "20.log", "30.log"]


# On a mount.


def test_log_start_offset_is_a_file(make_mount: Callable[..., object]) -> None:
    mount = make_mount()
    folder = mount.partition(NAME)  # type: ignore[attr-defined]
    with (folder / "append").open("ab") as stream:
        stream.write(b"a\nb\nc\n")
    tail = (folder / "records").open("rb")
    assert tail.read() == b"a\nb\nc\n"
    (folder / "log-start-offset").write_text("2")
    assert (folder / "log-start-offset").read_text() == "2\n"
    deadline = time.monotonic() + 10
    while (folder / "records").read_bytes() != b"c\n" and time.monotonic() < deadline:
        time.sleep(0.05)
    assert (folder / "records").read_bytes() == b"c\n"
    tail.seek(0)
    assert tail.read() == b"a\nb\nc\n"
    tail.close()
    for wrong in ("99", "x"):
        with pytest.raises(OSError, match=r"No such file|Invalid argument"):
            (folder / "log-start-offset").write_text(wrong)


class FullDisk(Disk):
    """A disk without room for files whose names end with `lacking`."""

    lacking = ""

    def rename_unsynced(self, old: Path, new: Path) -> None:
        self._check(new)
        super().rename_unsynced(old, new)

    def replace_file(self, path: Path, data: bytes) -> None:
        self._check(path)
        super().replace_file(path, data)

    def _check(self, path: Path) -> None:
        if self.lacking and path.name.endswith(self.lacking):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))


@pytest.mark.parametrize("lacking", [".log.deleted", ".index.deleted", "leader-epoch-checkpoint"])
@pytest.mark.parametrize("has_room_again", [False, True])
def test_a_full_disk_brings_nothing_back(
    lacking: str, has_room_again: bool, log_dir: Path, clock: Clock
) -> None:
    """The log goes on whichever file has no room, and what was durably deleted stays deleted."""

    def drop(store: Store) -> None:
        store.delete_records(NAME, 25)
        store.retain()

    disk = FullDisk()
    with Store(log_dir, clock=clock, disk=disk) as store:
        orders = store.create(NAME)
        for number in range(50):
            orders.append([b"%d" % number])
            if number % 10 == 9:
                orders.roll(clock())
        disk.lacking = lacking
        with pytest.raises(OSError, match="No space"):
            drop(store)
        gone = orders.log_start_offset
        assert gone == (0 if lacking == "leader-epoch-checkpoint" else 25)
        assert orders.append([b"more"]) == 50
        if has_room_again:
            disk.lacking = ""
            drop(store)
            gone = 25
            assert orders.segments[0].base_offset == 20
    disk.lacking = ""
    assert list(check(log_dir)) == []
    with Store(log_dir, clock=clock) as store:
        assert store["orders-0"].log_start_offset == gone
        assert [record.offset for record in store["orders-0"].read()] == [*range(gone, 51)]


# Groups whose unread records stay.


def test_what_a_group_has_not_read_stays(store: Store, orders: Partition, clock: Clock) -> None:
    """With logfs.retention.groups, segments go by age once every named group has read past them."""
    set_topic(store, "orders", retention_ms=100 * WEEK, logfs_retention_groups="Billing,audit")
    assert "may be deleted after" in store.retention_plan(NAME).stays, "no group is the reason"
    set_topic(store, "orders", retention_ms=1000)
    clock.now += WEEK
    assert store.retain() == 0, "a group that has committed nothing has read nothing"
    assert "has read it only up to offset 0" in store.retention_plan(NAME).stays
    store.groups.commit("Billing", NAME, 35)
    store.groups.commit("audit", NAME, 19)
    assert store.retain() == 1
    assert bases(orders) == [10, 20, 30]
    assert "the group audit of logfs.retention.groups" in store.retention_plan(NAME).stays
    store.groups.commit("audit", NAME, 20)
    assert store.retain() == 1
    set_topic(store, "orders", logfs_retention_groups="")
    assert store.retain() == 2
    assert orders.log_start_offset == 35


def test_groups_hold_retention_by_size_but_not_delete_records(
    store: Store, orders: Partition
) -> None:
    """A log above retention.bytes keeps what a group has not read; a log start that is set by hand is obeyed."""
    set_topic(store, "orders", retention_bytes=0, logfs_retention_groups="slow")
    store.groups.commit("slow", NAME, 10)
    assert store.retain() == 1
    store.delete_records(NAME, 25)
    store.retain()
    assert bases(orders) == [20, 30]
    assert orders.log_start_offset == 25


def test_retention_waits_while_the_groups_cannot_be_read(log_dir: Path, clock: Clock) -> None:
    """If a partition of __consumer_offsets is offline, records are kept: the group's commit may be in it."""
    with Store(log_dir, clock=clock) as store:
        orders = store.create(NAME)
        fill(orders, clock, 4)
        set_topic(store, "orders", retention_ms=1000, logfs_retention_groups="billing")
        store.groups.commit("billing", NAME, 35)
        epochs = store.groups.log_of("billing").directory / "leader-epoch-checkpoint"
    clock.now += WEEK
    content = epochs.read_text()
    epochs.write_text("nonsense")
    with Store(log_dir, clock=clock) as store:
        with pytest.raises(errors.LogfsError, match="leader-epoch"):
            store.retain([NAME])
        assert bases(store[NAME]) == [0, 10, 20, 30]
    epochs.write_text(content)
    with Store(log_dir, clock=clock) as store:
        assert store.retain([NAME])
