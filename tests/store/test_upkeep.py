"""Upkeep: which tasks are due, errors that delay no other task, pauses, and the rolling of quiet segments."""

from __future__ import annotations

import errno
import logging
import os
from typing import TYPE_CHECKING

import orjson
import pytest

from logfs.config import BrokerConfig, LogConfig
from logfs.format.batches.record import Record
from logfs.log.segment.segment_writer import age_limit_ms, is_roll_overdue
from logfs.store.maintenance.schedule import Backoff, MaintenanceTask, Timer, due, next_due_ms
from logfs.store.observe.status import partition_status
from logfs.store.store import Store
from tests.support.processes import wait_for
from tests.support.stores import set_topic

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from logfs.log.append.partition import Partition
    from tests.support.mounts import Mount
    from tests.support.stores import Clock

HOUR = 3_600_000
BROKER = BrokerConfig(log_retention_check_interval_ms=1000)
SLOW = BrokerConfig(log_retention_check_interval_ms=HOUR)


def old_segment(store: Store, clock: Clock, name: str) -> Partition:
    """Return a partition with a segment that has expired, and one that has not."""
    partition = store.create(name)
    partition.append([b"old"])
    partition.roll(clock())
    clock.now_ms += 8 * 24 * HOUR
    partition.append([b"new"])
    clock.now_ms += HOUR
    return partition


# The plans.


@pytest.mark.parametrize(
    ("timer", "now_ms", "is_due"),
    [
        (Timer(0), 999, False),
        (Timer(0), 1000, True),
        (Timer(0, 30_000), 1000, False),
        (Timer(0, 30_000), 30_000, True),
        (Timer(0, 0), 0, True),
        (Timer(5000), 4999, True),  # the clock was set back
    ],
)
def test_the_tasks_that_are_due(timer: Timer, now_ms: int, is_due: bool) -> None:
    """A task is due when its interval, or a given wait, is over; a clock that was set back stops no task."""
    timers = {MaintenanceTask.RETENTION: timer}
    assert due(timers, BROKER, now_ms, is_paused=False) == [MaintenanceTask.RETENTION] * is_due
    assert due(timers, BROKER, now_ms, is_paused=True) == []
    assert next_due_ms(MaintenanceTask.RETENTION, Timer(7), BROKER) == 1007


def test_durability_is_not_paused() -> None:
    """A pause stops the tasks that change the log; flushes, commits, transactions and checkpoints go on."""
    timers = {task: Timer(0, 0) for task in MaintenanceTask}
    assert due(timers, BROKER, 1, is_paused=True) == [
        MaintenanceTask.FLUSH,
        MaintenanceTask.COMMIT,
        MaintenanceTask.TRANSACTIONS,
        MaintenanceTask.PRODUCERS,
        MaintenanceTask.CHECKPOINT,
    ]


def test_backoff_doubles_up_to_a_minute_for_each_task_and_partition() -> None:
    """Work that fails waits longer each time, and only this work; a success ends that."""
    calls = []
    now_ms, is_broken = 0, True
    backoff = Backoff(lambda: now_ms)

    def work() -> None:
        calls.append(now_ms)
        if is_broken:
            raise OSError(errno.EIO, "broken")

    waits = []
    for _ in range(8):
        backoff.attempt(MaintenanceTask.RETENTION, "orders-0", work)
        waits.append(backoff.timer(MaintenanceTask.RETENTION, SLOW).wait_ms)
        now_ms += waits[-1]
    assert waits == [1000, 2000, 4000, 8000, 16_000, 32_000, 60_000, 60_000]
    calls.clear()
    is_broken = False
    now_ms -= 1
    backoff.attempt(MaintenanceTask.RETENTION, "orders-0", work)
    assert not calls
    assert backoff.timer(MaintenanceTask.RETENTION, SLOW).wait_ms == 1, "it still waits"
    assert backoff.timer(MaintenanceTask.ROLL, SLOW).wait_ms is None
    assert list(backoff) == [(MaintenanceTask.RETENTION, "orders-0")]
    backoff.attempt(MaintenanceTask.RETENTION, "orders-1", work)
    backoff.attempt(MaintenanceTask.ROLL, "orders-0", work)
    assert len(calls) == 2
    now_ms = -1
    backoff.attempt(MaintenanceTask.RETENTION, "orders-0", work)
    assert calls[-1] == -1, "the clock was put back"
    assert not list(backoff)
    is_broken = True
    backoff.attempt(MaintenanceTask.RETENTION, "orders-0", work)
    assert backoff.timer(MaintenanceTask.RETENTION, SLOW) == Timer(-1, 1000)
    now_ms = 999
    assert backoff.timer(MaintenanceTask.RETENTION, SLOW) == Timer(999), "it was not attempted"


# The loop.


def test_a_partition_that_fails_delays_no_other(
    store: Store, clock: Clock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The error is one line of the log, and the task is tried again after a wait.

    Retention of the other partitions and deletions go on.
    """
    for name in ("orders-0", "orders-1", "orders-2"):
        old_segment(store, clock, name)
    store.create("gone-0")
    store.delete("gone-0")
    bad = store["orders-1"]
    monkeypatch.setattr(
        bad, "advance_log_start", lambda _: (_ for _ in ()).throw(OSError(errno.EIO, "broken"))
    )
    clock.now_ms += 8 * 24 * HOUR
    store.upkeep()
    # The quiet segments are rolled, and nothing of the bad partition is deleted.
    assert [len(store[name].segments) for name in store] == [1, 3, 1]
    assert not list(store.log_dirs[0].path.glob("gone*"))
    failed = [message for message in caplog.messages if "failed" in message]
    assert len(failed) == 1
    assert failed[0].startswith(
        "upkeep: retention of orders-1 failed, and is retried in 1 s: [Errno 5]"
    )
    clock.now_ms += 500
    store.scheduler.ask(MaintenanceTask.RETENTION)
    store.upkeep()
    assert store.scheduler.backoff.failures == 1, "it waits"
    clock.now_ms += 500
    store.upkeep()
    assert store.scheduler.backoff.failures == 2
    monkeypatch.undo()
    clock.now_ms += 2000
    store.upkeep()
    assert len(bad.segments) == 1
    assert not list(store.scheduler.backoff)


def test_a_task_that_fails_as_a_whole_backs_off_and_the_rest_is_done(
    store: Store, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Checkpoints that cannot be written delay no removal, and an unexpected error is treated like any other."""
    store.create("gone-0")
    store.delete("gone-0")
    calls = []
    monkeypatch.setattr(store.checkpoints, "write", lambda: calls.append(1) or 1 / 0)
    clock.now_ms += HOUR
    store.upkeep()
    store.upkeep()
    assert len(calls) == 1
    assert not list(store.log_dirs[0].path.glob("gone*"))
    for _ in range(5):
        clock.now_ms += 60_000
        store.upkeep()
    assert len(calls) == 6


def test_commits_that_cannot_be_finished_wait_longer_each_time(
    store: Store, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is tried in vain is tried after 1, 2 and 4 seconds, whatever else upkeep does meanwhile."""
    orders = store.create("orders-0")
    tries = []
    monkeypatch.setattr(store.commits, "finish", lambda: tries.append(clock.now_ms) or 1 / 0)
    monkeypatch.setattr(store.commits, "pending", lambda: {store.log_dirs[0]: None})
    began = clock.now_ms
    for _ in range(80):
        orders.append([b"a"])
        store.upkeep()
        clock.now_ms += 100
    assert [each - began for each in tries] == [0, 1000, 3000, 7000]


def test_a_deleted_partition_has_no_backoff(
    store: Store, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    orders = old_segment(store, clock, "orders-0")
    monkeypatch.setattr(orders, "advance_log_start", lambda _: 1 / 0)
    clock.now_ms += 8 * 24 * HOUR
    store.upkeep()
    assert [*store.scheduler.backoff] == [(MaintenanceTask.RETENTION, "orders-0")]
    store.delete("orders-0")
    store.upkeep()
    assert not [*store.scheduler.backoff]


def test_the_status_names_a_failure(store: Store) -> None:
    """The reason for which a partition takes no appends is in its status; without one, there is none."""
    orders = store.create("orders-0")
    assert partition_status(orders, store)["failure"] is None
    failure = orders.fail("a write failed", OSError(errno.EIO, "broken"))
    assert partition_status(orders, store)["failure"] == str(failure)
    orders.failure = None


def test_the_status_lists_the_background_work_of_its_partition(store: Store) -> None:
    """`background` of a partition's status has the operations on this partition, and no others."""
    partitions = [store.create(f"orders-{number}") for number in range(2)]
    with store.registry.doing("compacting", "orders-0", total_bytes=50) as work:
        work.done_bytes = 20
        shown = [partition_status(partition, store)["background"] for partition in partitions]
    assert [(each["what"], each["done_bytes"], each["total_bytes"]) for each in shown[0]] == [
        ("compacting", 20, 50)
    ]
    assert shown[1] == []


def test_each_action_is_logged_in_one_line(
    store: Store, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    orders = store.create("orders-0")
    for _ in range(5):
        orders.append([b"x"])
        orders.roll(clock())
    clock.now_ms += 8 * 24 * HOUR
    with caplog.at_level(logging.INFO, "logfs.store"):
        store.upkeep()
        clock.now_ms += 60_000
        store.upkeep()
    assert [message.partition(": ")[2] for message in caplog.messages] == [
        f"dropped 5 segments of {5 * 69} bytes by retention.ms; the log starts at offset 5",
        "removed the files of 5 dropped segments",
    ]


def test_a_pause_stops_everything_but_durability(store: Store, clock: Clock) -> None:
    """A pause applies to the whole store; after it, the tasks that became due are done."""
    orders = old_segment(store, clock, "orders-0")
    set_topic(store, "keys", cleanup_policy="compact", flush_ms=1)
    keys = store.create("keys-0")
    keys.append([Record(b"1", b"k")])
    keys.append([Record(b"2", b"k")])
    keys.roll(clock())
    store.create("gone-0")
    store.delete("gone-0")
    store.registry.is_paused = True
    keys.append([Record(b"3", b"k")])
    clock.now_ms += HOUR
    store.upkeep()
    assert len(orders.segments) == 2
    assert list(store.log_dirs[0].path.glob("gone*"))
    assert len(list(keys.read())) == 3
    assert keys.recovery_point == 3
    store.compactor.request("keys-0")
    store.upkeep()
    assert [record.value for record in keys.read()] == [b"2", b"3"], "what is asked for is done"
    store.registry.is_paused = False
    store.upkeep()
    assert len(orders.segments) == 1
    assert not list(store.log_dirs[0].path.glob("gone*"))


def test_a_paused_partition_is_left_alone(store: Store, clock: Clock) -> None:
    """Files of dropped segments stay, too, so that a copy that is being made does not lose them."""
    one, other = (old_segment(store, clock, name) for name in ("orders-0", "orders-1"))
    clock.now_ms += HOUR
    store.upkeep()
    one.is_paused = True
    clock.now_ms += HOUR
    store.upkeep()
    assert list(one.directory.glob("*.deleted"))
    assert not list(other.directory.glob("*.deleted"))


# Quiet segments.


@pytest.mark.parametrize(
    ("times", "idle_ms", "limit_ms", "rolls"),
    [
        ((0, 400), 100, 499, True),
        ((0, 400), 100, 500, False),  # strict, as Kafka's (4.1)
        ((0,), 500, 499, True),
        ((0, 400), -900, 399, True),  # the clock was set back
        ((400, 0), 100, 99, True),  # the first batch counts, and the newest timestamp
        ((), 10**9, 1, False),  # an empty segment never rolls
    ],
)
def test_the_age_of_a_quiet_segment(
    store: Store, clock: Clock, times: tuple[int, ...], idle_ms: int, limit_ms: int, rolls: bool
) -> None:
    """The age is the newest timestamp less that of the first batch, plus the time since the last append."""
    orders = store.create("orders-0")
    for time in times:
        orders.append([Record(b"x", timestamp=clock() + time)])
    config = LogConfig(segment_ms=limit_ms)
    assert is_roll_overdue(orders.active, config, idle_ms, clock()) is rolls


def test_max_compaction_lag_bounds_a_compacted_segment_and_jitter_lets_it_roll_early(
    store: Store, clock: Clock
) -> None:
    set_topic(store, "orders", segment_jitter_ms=1000)
    orders = store.create("orders-0")
    orders.append([b"x"])
    compacted = LogConfig(cleanup_policy=frozenset({"compact"}), max_compaction_lag_ms=5000)
    active = orders.active
    limit = age_limit_ms(compacted, active.writer)
    assert 4000 < limit <= 5000
    assert not is_roll_overdue(active, compacted, limit, clock())
    assert is_roll_overdue(active, compacted, limit + 1, clock())


def test_a_quiet_partition_is_rolled_in_time_for_retention_and_compaction(
    store: Store, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    """Otherwise the newest values would stay uncompacted for ever, a well-known surprise in Kafka."""
    set_topic(store, "keys", cleanup_policy="compact", segment_ms=HOUR)
    keys = store.create("keys-0")
    for value in (b"1", b"2"):
        keys.append([Record(value, b"k")])
    clock.now_ms += HOUR
    store.upkeep()
    assert len(keys.segments) == 1
    clock.now_ms += HOUR
    with caplog.at_level(logging.INFO, "logfs.store.maintenance.upkeep"):
        store.upkeep()
    assert "rolled, because of its age" in caplog.text
    assert [record.value for record in keys.read()] == [b"2"]
    store.upkeep()
    assert len(keys.segments) == 2, "an empty one stays"


def test_an_import_of_old_records_is_not_rolled_at_each_upkeep(store: Store, clock: Clock) -> None:
    """The age counts by the records' own timestamps, also for records that are years old."""
    set_topic(store, "orders", segment_ms=HOUR, retention_ms=-1)
    orders = store.create("orders-0")
    for minute in range(5):
        orders.append([Record(b"x", timestamp=1_000_000_000_000 + minute)])
        clock.now_ms += HOUR // 2
        store.upkeep()
    assert len(orders.segments) == 1
    clock.now_ms += HOUR
    store.upkeep()
    assert len(orders.segments) == 2


def test_the_age_of_a_segment_continues_after_a_restart(log_dir: Path, clock: Clock) -> None:
    """After a restart the mtime of the segment's file is the time of the last append."""
    with Store(log_dir, clock=clock) as store:
        set_topic(store, "orders", segment_ms=HOUR)
        path = store.create("orders-0").directory
        store["orders-0"].append([b"x"])
    log = next(path.glob("*.log"))
    os.utime(log, ns=(clock() * 10**6, clock() * 10**6))
    clock.now_ms += 2 * HOUR
    with Store(log_dir, clock=clock) as store:
        store.upkeep()
        assert len(store["orders-0"].segments) == 1, "the first look comes after a delay"
        clock.now_ms += 30_000
        store.upkeep()
        assert len(store["orders-0"].segments) == 2


@pytest.mark.parametrize(
    ("setting", "brokers", "rolls"),
    [
        ("auto", False, True),
        ("auto", True, False),
        ("always", True, True),
        ("never", False, False),
    ],
)
def test_the_setting_for_rolling_quiet_segments(
    log_dir: Path, clock: Clock, setting: str, brokers: bool, rolls: bool
) -> None:
    """By default, quiet segments roll in time; where a broker also uses the directory, they roll as in Kafka."""
    log_dir.mkdir()
    if brokers:
        (log_dir / "meta.properties").write_text("version=1\n")
    with Store(log_dir, clock=clock) as store:
        store.settings.set_broker("logfs.roll.quiet", setting)
        set_topic(store, "orders", segment_ms=HOUR)
        orders = store.create("orders-0")
        orders.append([b"x"])
        clock.now_ms += 2 * HOUR
        store.upkeep()
        assert len(orders.segments) == 1 + rolls


# On the mount.


def test_ctl_of_the_whole_store(make_mount: Callable[..., Mount]) -> None:
    """Reading shows what upkeep does and what is due next; commands apply to every partition."""
    mount = make_mount()
    own = mount.path / ".logfs"
    ctl = own / "ctl"
    text = ctl.read_text()
    assert text.startswith("upkeep\n")
    for task in ("checkpoint", "roll", "retention", "compaction"):
        assert f"\n{task}: due in " in text
    keys = [mount.partition(f"keys-{n}") for n in range(2)]
    (keys[0] / "config/cleanup.policy").write_text("compact")
    ctl.write_text("pause\n")
    text = ctl.read_text()
    assert text.startswith("paused\n")
    assert "retention: paused\n" in text
    assert orjson.loads((own / "status.json").read_bytes())["upkeep"]["paused"] is True
    for path in keys:
        with (path / "append.jsonl").open("wb") as append:
            append.write(b'{"key":"k","value":"1"}\n{"key":"k","value":"2"}\n')
        (path / "ctl").write_text("roll")
    ctl.write_text("compact")
    for path in keys:
        wait_for(lambda path=path: (path / "records").read_bytes() == b"2\n")
    other = mount.partition("other-0")
    with (other / "append").open("wb") as append:
        append.write(b"x\n")
        append.flush()
        os.fsync(append.fileno())
    (other / "ctl").write_text("roll")
    (other / "config/retention.bytes").write_text("0")
    ctl.write_text("retain")
    assert (other / "log-start-offset").read_text() == "1\n"
    (mount.path / "new-0").mkdir()
    points = mount.log_dirs[0] / "recovery-point-offset-checkpoint"
    assert "new" not in points.read_text()
    ctl.write_text("checkpoint")
    assert "other 0 1\n" in points.read_text()
    assert "new 0 0\n" in points.read_text()
    ctl.write_text("resume")
    assert ctl.read_text().startswith("upkeep\n")
    with pytest.raises(OSError, match="Invalid argument"):
        ctl.write_text("dance")
    assert "use one of compact, retain, checkpoint, pause, resume" in mount.errors()
