"""Compaction by a store: its plans, its rounds, and the loading of compacted logs (kafka-storage 8.1, 8.9)."""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING

import pytest

from logfs import errors
from logfs.cli import main
from logfs.format.batches.record import Record
from logfs.log.compaction.cleaning import CleaningAborted, Dirty
from logfs.store.directory.log_dir import CLEANER_OFFSETS
from logfs.store.maintenance.schedule import throttle
from logfs.store.observe.check import check
from logfs.store.store import Store
from tests.support.processes import wait_for
from tests.support.requirements import need_fuse
from tests.support.stores import assert_clean, set_topic

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from logfs.log.append.partition import Partition
    from tests.support.mounts import Mount
    from tests.support.stores import Clock

DAY = 86_400_000
BACKOFF = 15_000


@pytest.fixture(autouse=True)
def _compacted(request: pytest.FixtureRequest) -> None:
    """Set the policy of the topic `orders` to compact in the tests that have a store."""
    if "store" in request.fixturenames:
        set_topic(request.getfixturevalue("store"), "orders", cleanup_policy="compact")


def fill(partition: Partition, clock: Clock, segments: int, keys: int = 5, rounds: int = 4) -> None:
    """Append `segments` sealed segments, in each of which `keys` keys are written `rounds` times."""
    for _ in range(segments):
        for number in range(keys * rounds):
            key = b"%d" % (number % keys)
            partition.append([Record(b"%d" % partition.log_end_offset, key)])
        partition.roll(clock())


def checkpoint(log_dir: Path) -> str:
    """Return the text of the file with the cleaner offsets."""
    return (log_dir / CLEANER_OFFSETS).read_text()


def keys_of(partition: Partition) -> list[tuple[int, bytes | None]]:
    """Return the offset and the key of each record."""
    return [(record.offset, record.key) for record in partition.read()]


# The plan.


def test_cleanable_offsets_for_none(store: Store, clock: Clock) -> None:
    """Without a lag, everything below the active segment may be cleaned (Kafka's tests of compaction)."""
    orders = store.create("orders-0")
    assert store.compactor.plan("orders-0").dirty == Dirty(0, 0)
    fill(orders, clock, 2)
    orders.append([Record(b"x", b"active")])
    plan = store.compactor.plan("orders-0")
    assert plan.dirty == Dirty(0, 40)
    assert plan.ratio == 1.0
    store.compact("orders-0")
    plan = store.compactor.plan("orders-0")
    assert plan.dirty == Dirty(40, 40)
    assert (plan.cleanable_bytes, plan.clean_bytes) == (0, orders.segments[0].size_bytes)
    assert plan.ratio == 0.0


def test_cleanable_offsets_active_segment(store: Store, clock: Clock) -> None:
    """The active segment is never cleaned (Kafka's tests of compaction)."""
    orders = store.create("orders-0")
    for number in range(10):
        orders.append([Record(b"%d" % number, b"k")])
    assert store.compactor.plan("orders-0").dirty == Dirty(0, 0)
    store.compact("orders-0")
    assert len(keys_of(orders)) == 10
    store.compact("orders-0", roll=True)
    assert keys_of(orders) == [(9, b"k")]


def test_cleanable_offsets_for_time(store: Store, clock: Clock) -> None:
    """A segment with a record younger than min.compaction.lag.ms stays, and so do those after it.

    (Kafka's tests of compaction)
    """
    set_topic(store, "orders", min_compaction_lag_ms="3600000")
    orders = store.create("orders-0")
    fill(orders, clock, 2)
    clock.now_ms += 3_600_000
    fill(orders, clock, 2)
    assert store.compactor.plan("orders-0").dirty == Dirty(0, 40)
    clock.now_ms += 3_600_000
    assert store.compactor.plan("orders-0").dirty == Dirty(0, 80)


def test_cleanable_offsets_for_short_time(store: Store, clock: Clock) -> None:
    """If all segments are younger than min.compaction.lag.ms, nothing may be cleaned.

    (Kafka's tests of compaction)
    """
    set_topic(store, "orders", min_compaction_lag_ms="3600000")
    orders = store.create("orders-0")
    fill(orders, clock, 3)
    assert store.compactor.plan("orders-0").dirty == Dirty(0, 0)


def test_dirty_offset_reset_if_larger_than_end_offset(store: Store, clock: Clock) -> None:
    """A checkpoint beyond the log end is ignored, and cleaning begins at the log start.

    (Kafka's tests of compaction)
    """
    orders = store.create("orders-0")
    fill(orders, clock, 1)
    store.checkpoints.set_cleaner_offset(orders, 21)
    assert store.compactor.plan("orders-0").dirty == Dirty(0, 20)
    store.checkpoints.set_cleaner_offset(orders, 20)
    assert store.compactor.plan("orders-0").dirty == Dirty(20, 20)


def test_dirty_offset_reset_if_smaller_than_start_offset(store: Store, clock: Clock) -> None:
    """A checkpoint below the log start offset is raised to it (Kafka's tests of compaction)."""
    set_topic(store, "orders", cleanup_policy="compact,delete")
    orders = store.create("orders-0")
    fill(orders, clock, 3)
    store.checkpoints.set_cleaner_offset(orders, 10)
    store.delete_records("orders-0", 20)
    assert store.compactor.plan("orders-0").dirty == Dirty(20, 60)


def test_a_segment_with_the_log_start_inside_is_cleaned_whole_or_not_at_all(
    store: Store, clock: Clock
) -> None:
    """If the log starts within a segment, and an open transaction follows in that segment, nothing may be cleaned."""
    from tests.support.batches import Producer

    set_topic(store, "orders", cleanup_policy="compact,delete")
    orders = store.create("orders-0")
    orders.append([Record(b"1", b"a"), Record(b"2", b"b")])
    orders.append([Record(b"3", b"b")])
    Producer(orders, 1).send("open")
    orders.append([Record(b"4", b"b")])
    orders.roll(clock())
    store.delete_records("orders-0", 1)
    assert store.compactor.plan("orders-0").dirty == Dirty(1, 0)
    store.compact("orders-0")
    assert keys_of(orders) == [(1, b"b"), (2, b"b"), (3, b"open"), (4, b"b")]


def test_grab_filthiest_compacted_log_returns_log_with_dirtiest_ratio(
    store: Store, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    """The log with the highest ratio is cleaned first; uncleanable and paused logs are left out.

    (Kafka's tests of compaction)
    """
    for name, dirty in (("orders-0", 2), ("orders-1", 4), ("orders-2", 6), ("orders-3", 9)):
        partition = store.create(name)
        fill(partition, clock, 2, keys=20, rounds=1)
        store.compact(name)
        fill(partition, clock, dirty, keys=20, rounds=1)
    set_topic(store, "other", cleanup_policy="delete")
    fill(store.create("other-0"), clock, 3)
    store["orders-2"].is_paused = True
    store["orders-3"].uncleanable = errors.Corrupt("of old")
    with caplog.at_level(logging.INFO, "logfs.store.maintenance.compaction"):
        store.compactor.run_due()
    done = [message.partition(":")[0] for message in caplog.messages]
    # Their dirty ratios are four fifths and two thirds.
    assert done == ["orders-1", "orders-0"]


def test_max_compaction_lag_makes_a_log_due(store: Store, clock: Clock) -> None:
    """A log is due once its oldest dirty batch exceeds max.compaction.lag.ms, however low its dirty ratio is."""
    set_topic(store, "orders", max_compaction_lag_ms=str(DAY), min_cleanable_dirty_ratio="1.0")
    orders = store.create("orders-0")
    fill(orders, clock, 1)
    clock.now_ms += DAY
    store.compactor.run_due()
    assert len(keys_of(orders)) == 20
    clock.now_ms += 1 + BACKOFF
    store.compactor.run_due()
    assert len(keys_of(orders)) == 5


# Rounds of a store.


def test_upkeep_compacts_what_is_due(store: Store, clock: Clock, log_dir: Path) -> None:
    orders = store.create("orders-0")
    fill(orders, clock, 2)
    store.upkeep()
    assert keys_of(orders) == [(35 + n, b"%d" % n) for n in range(5)]
    assert checkpoint(log_dir) == "0\n1\norders 0 40\n"
    assert orders.cleaned_ms == clock()
    fill(orders, clock, 2)
    store.upkeep()
    assert len(keys_of(orders)) == 45
    clock.now_ms += BACKOFF
    store.upkeep()
    assert len(keys_of(orders)) == 5


def test_nothing_is_compacted_where_the_cleaner_is_off(store: Store, clock: Clock) -> None:
    store.settings.set_broker("log.cleaner.enable", "false")
    orders = store.create("orders-0")
    fill(orders, clock, 2)
    store.upkeep()
    assert len(keys_of(orders)) == 40
    store.compact("orders-0")
    assert len(keys_of(orders)) == 5


def test_a_log_of_another_policy_is_not_compacted(store: Store) -> None:
    store.create("other-0")
    with pytest.raises(errors.InvalidSetting, match=r"cleanup\.policy has no 'compact'"):
        store.compact("other-0")


def test_a_small_map_takes_several_rounds(
    store: Store, clock: Clock, log_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All keys are compacted, even if the map of keys has room for only a few at a time."""
    from logfs.log.compaction import cleaner

    taken: list[int] = []

    def small(*arguments: object, **options: object) -> object:
        taken.append(1)
        return clean(*arguments, **{**options, "memory_bytes": 24 * 8, "load_factor": 0.9})

    clean = cleaner.clean
    monkeypatch.setattr(cleaner, "clean", small)
    orders = store.create("orders-0")
    fill(orders, clock, 3, keys=30, rounds=2)
    before = (orders.size_bytes, len(orders.segments))
    done = store.compactor.compact("orders-0")
    assert keys_of(orders) == [(150 + n, b"%d" % n) for n in range(30)]
    assert len(taken) > 5
    # The active segment is not compacted.
    active = orders.segments[-1].size_bytes
    assert (done.bytes_before + active, done.segments_before + 1) == before
    assert (done.bytes_after + active, done.segments_after + 1) == (
        orders.size_bytes,
        len(orders.segments),
    )
    assert checkpoint(log_dir) == "0\n1\norders 0 180\n"


def test_compact_and_delete_go_together(store: Store, clock: Clock) -> None:
    set_topic(store, "orders", cleanup_policy="compact,delete", retention_ms=str(DAY))
    orders = store.create("orders-0")
    fill(orders, clock, 2)
    store.compact("orders-0")
    clock.now_ms += DAY + 1
    orders.append([Record(b"new", b"k")])
    store.retain()
    assert keys_of(orders) == [(40, b"k")]


def test_an_error_makes_one_log_uncleanable_and_the_others_go_on(
    store: Store, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    """The error is logged and shown in the status and the metrics, and the next round that succeeds clears it."""
    from logfs.store.observe.metrics import metrics
    from logfs.store.observe.status import partition_status

    bad, good = store.create("orders-0"), store.create("orders-1")
    fill(bad, clock, 2)
    fill(good, clock, 1)
    bad.flush()
    path = bad.segments[0].path
    whole = path.read_bytes()
    path.write_bytes(whole[:30] + bytes([whole[30] ^ 1]) + whole[31:])
    store.upkeep()
    assert len(keys_of(good)) == 5
    assert "orders-0: is not compacted: " in caplog.text
    assert "offsets 0 to 0 are damaged" in partition_status(bad, store)["uncleanable"]
    label = f'logdirectory="{store.log_dirs[0].path}"'
    count = f"kafka_log_logcleanermanager_uncleanable_partitions_count{{{label}}} 1\n"
    assert count.encode() in metrics(store)
    path.write_bytes(whole)
    clock.now_ms += BACKOFF
    store.upkeep()
    assert len(list(bad.read())) == 40
    store.compact("orders-0")
    assert len(keys_of(bad)) == 5
    assert bad.uncleanable is None


def test_compaction_is_retried_after_a_full_disk(
    store: Store, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    import errno

    orders = store.create("orders-0")
    fill(orders, clock, 2)
    write = store.disk.write

    def full(file: object, position: int, data: object) -> None:
        if str(file.path).endswith(".cleaned"):  # type: ignore[attr-defined]
            raise OSError(errno.ENOSPC, "No space left on device")
        write(file, position, data)  # type: ignore[arg-type]

    monkeypatch.setattr(store.disk, "write", full)
    store.upkeep()
    assert (orders.uncleanable, orders.failure) == (None, None)
    assert not list(orders.directory.glob("*.cleaned"))
    monkeypatch.undo()
    clock.now_ms += BACKOFF
    store.upkeep()
    assert len(keys_of(orders)) == 5


def test_a_round_ends_when_the_store_is_stopped_or_the_policy_changes(
    store: Store, clock: Clock
) -> None:
    orders = store.create("orders-0")
    fill(orders, clock, 2)
    with pytest.raises(CleaningAborted, match=r"cleanup\.policy no longer has 'compact'"):
        store.compactor.compact(
            "orders-0", progress=lambda _: set_topic(store, "orders", cleanup_policy="delete")
        )
    set_topic(store, "orders", cleanup_policy="compact")
    with pytest.raises(CleaningAborted, match="the store is closed"):
        store.compactor.compact("orders-0", progress=lambda _: store.compactor.stop())
    assert len(keys_of(orders)) == 40
    store.upkeep()
    assert len(keys_of(orders)) == 40


def test_the_throttle_limits_the_rate() -> None:
    """The throttle waits for bytes beyond the rate, and combines the waits for small numbers of bytes."""
    now = 0.0
    waits: list[float] = []

    def wait(seconds: float) -> None:
        nonlocal now
        waits.append(seconds)
        now += seconds

    spend = throttle(1000.0, wait, lambda: now)
    for _ in range(20):
        spend(100)
    assert sum(waits) == pytest.approx(2.0)
    now += 100
    spend(20)
    assert sum(waits) == pytest.approx(2.0)
    for _ in range(4):
        spend(20)
    assert now == pytest.approx(102.06)


def test_truncating_below_the_checkpoint_lowers_it(
    store: Store, clock: Clock, log_dir: Path
) -> None:
    """The checkpoint is lowered to the base offset of the segment that is active after the truncation (8.9)."""
    orders = store.create("orders-0")
    fill(orders, clock, 3)
    store.compact("orders-0")
    store.truncate("orders-0", 57)
    assert checkpoint(log_dir) == f"0\n1\norders 0 {orders.active.base_offset}\n"


def test_a_truncated_log_ends_where_the_next_opening_finds_its_end(
    store: Store, clock: Clock, log_dir: Path
) -> None:
    """Compaction has taken the records before the cut, so the log ends below it, now and after a restart."""
    orders = store.create("orders-0")
    orders.append([Record(b"v", b"kept")])
    orders.append([Record(str(n).encode(), b"key") for n in range(4)])
    orders.roll(clock())
    store.compact("orders-0")
    store.truncate("orders-0", 3)
    end, point = orders.log_end_offset, orders.recovery_point
    assert (end, point) == (1, 1)
    store.close()
    assert_clean(log_dir)
    with Store(log_dir, clock=clock) as again:
        assert again["orders-0"].log_end_offset == end


def test_a_deleted_partition_leaves_no_checkpoint(
    store: Store, clock: Clock, log_dir: Path
) -> None:
    fill(store.create("orders-0"), clock, 1)
    fill(store.create("orders-1"), clock, 1)
    store.compact("orders-0")
    store.delete("orders-0")
    assert checkpoint(log_dir) == "0\n0\n"
    store.compact("orders-1")
    assert checkpoint(log_dir) == "0\n1\norders 1 20\n"


# Loading.


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("lost", [False, True])
def test_gaps_are_no_damage_after_the_policy_has_changed(
    log_dir: Path, clock: Clock, *, clean: bool, lost: bool
) -> None:
    """The gaps of a log that was once compacted are never damage.

    The cleaner checkpoint shows that the log was compacted. If the checkpoint cannot be read, any log may have gaps.
    """
    store = Store(log_dir, clock=clock)
    set_topic(store, "orders", cleanup_policy="compact")
    orders = store.create("orders-0")
    fill(orders, clock, 3)
    orders.append([Record(b"end", b"k")])
    store.compact("orders-0")
    set_topic(store, "orders", cleanup_policy="delete")
    shown = keys_of(orders)
    if clean:
        store.close()
    else:
        orders.flush()
        for home in store.log_dirs:
            home.close()
    if lost:
        (log_dir / CLEANER_OFFSETS).write_bytes(b"garbage")
    with Store(log_dir, clock=clock) as store:
        assert store["orders-0"].segments[0].gaps
        assert keys_of(store["orders-0"]) == shown
        assert not store["orders-0"].segments[0].damaged
        assert store["orders-0"].log_end_offset == 61
    if lost:
        assert any(CLEANER_OFFSETS in str(finding) for finding in check(log_dir))
        # Restored for the audit at the end.
        (log_dir / CLEANER_OFFSETS).write_text("0\n1\norders 0 60\n")


def test_a_cleaner_checkpoint_that_is_made_again_has_all_partitions(
    log_dir: Path, clock: Clock
) -> None:
    """After damage, the next compaction of one log does not make the gaps of another count as damage."""
    with Store(log_dir, clock=clock) as store:
        for topic in ("orders", "users"):
            set_topic(store, topic, cleanup_policy="compact")
            fill(store.create(f"{topic}-0"), clock, 3)
            store[f"{topic}-0"].append([Record(b"end", b"k")])
            store.compact(f"{topic}-0")
    (log_dir / CLEANER_OFFSETS).write_bytes(b"garbage")
    with Store(log_dir, clock=clock) as store:
        fill(store["users-0"], clock, 3)
        store.compact("users-0")
    (log_dir / ".kafka_cleanshutdown").unlink()
    with Store(log_dir, clock=clock) as store:
        assert store["orders-0"].segments[0].gaps
        assert not store["orders-0"].segments[0].damaged


def test_a_log_that_was_never_compacted_has_no_gaps(log_dir: Path, clock: Clock) -> None:
    with Store(log_dir, clock=clock) as store:
        store.create("plain-0").append([b"x"])
    with Store(log_dir, clock=clock) as store:
        assert not store["plain-0"].segments[0].gaps


# The command line and the mount.


def test_logfs_compact(log_dir: Path, clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    with Store(log_dir, clock=clock) as store:
        set_topic(store, "orders", cleanup_policy="compact")
        orders = store.create("orders-0")
        fill(orders, clock, 2)
        orders.append([Record(b"active", b"0")])
        before = sum(segment.size_bytes for segment in orders.segments[:-1])
    assert main(["compact", str(log_dir / "orders-0")]) == 0
    out = capsys.readouterr().out
    assert out.startswith(f"orders-0: {before} bytes in 2 segments became ")
    assert out.endswith(" in 1; compacted up to offset 40\n")
    assert main(["compact", "--roll", str(log_dir), "orders-0"]) == 0
    assert capsys.readouterr().out.endswith("compacted up to offset 41\n")
    with Store(log_dir, read_only=True) as store:
        assert keys_of(store["orders-0"]) == [
            *((35 + n, b"%d" % n) for n in range(1, 5)),
            (40, b"0"),
        ]
    assert main(["compact", str(log_dir / "nothing-0")]) == 1
    assert "no partition" in capsys.readouterr().err


def test_an_open_segment_file_keeps_its_bytes_after_compaction(
    make_mount: Callable[..., Mount],
) -> None:
    """A segment file that is open keeps its bytes after compaction.

    Compaction puts another file in its place under the same name, with another inode and other bytes.
    """
    need_fuse()
    orders = make_mount().partition("orders-0")
    (orders / "config/cleanup.policy").write_text("compact")
    lines = b"".join(b'{"key":"%d","value":"%d"}\n' % (n % 3, n) for n in range(3000))
    (orders / "append.jsonl").write_bytes(lines)
    (orders / "ctl").write_text("roll")
    name = orders / "segments" / f"{0:020}.log"
    whole = name.read_bytes()
    with name.open("rb", buffering=0) as before:
        inode = os.fstat(before.fileno()).st_ino
        assert before.read(100) == whole[:100]
        (orders / "ctl").write_text("compact")
        wait_for(lambda: (orders / "records").read_bytes() == b"2997\n2998\n2999\n")
        assert name.stat().st_ino != inode
        assert os.fstat(before.fileno()).st_size == len(whole)
        assert len(name.read_bytes()) < len(whole) // 100
        assert before.read(len(whole)) == whole[100:]


def test_ctl(make_mount: Callable[..., Mount]) -> None:
    """Writing a command executes it, reading shows the state, and an open text view keeps its old text."""
    need_fuse()
    mount = make_mount()
    orders = mount.partition("orders-0")
    ctl = orders / "ctl"
    assert ctl.read_text() == "upkeep\n"
    with pytest.raises(OSError, match="Invalid argument"):
        ctl.write_text("compact")
    (orders / "config/cleanup.policy").write_text("compact")
    lines = b"".join(b'{"key":"%d","value":"%d"}\n' % (n % 3, n) for n in range(30))
    with (orders / "append.jsonl").open("wb") as append:
        append.write(lines)
    ctl.write_text("roll\n")
    ctl.write_text("pause\n")
    assert ctl.read_text().startswith("paused\ndirty from offset 0, ")
    with (orders / "records").open("rb") as old:
        inode = (orders / "records").stat().st_ino
        ctl.write_text("compact\n")
        wait_for(lambda: (orders / "records").read_bytes() == b"27\n28\n29\n")
        assert (orders / "records").stat().st_ino != inode
        assert old.read() == b"".join(b"%d\n" % n for n in range(30))
    wait_for(lambda: "ratio 0.000" in ctl.read_text())
    assert not (orders / "offsets/3").exists()
    assert (orders / "offsets/28").read_bytes() == b"28"
    ctl.write_text("resume")
    assert ctl.read_text().startswith("upkeep\n")
    ctl.write_text("retain")
    with pytest.raises(OSError, match="Invalid argument"):
        ctl.write_text("dance")
    assert "is not a command; use one of compact" in mount.errors()
