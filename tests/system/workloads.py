"""What the campaigns of power cuts and of failing disks do with a store, each in some dozens of disk calls."""

from __future__ import annotations

import tempfile
from functools import cache
from typing import TYPE_CHECKING

from tests.support import crashdisk
from tests.support.crashdisk import RecordingDisk, Workload
from tests.support.examples import drawn

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.crashdisk import State

# The directories that stand for buckets. The files that a workload leaves refer to them: `buckets` removes them.
BUCKETS: list[str] = []


def line(number: int) -> bytes:
    """Return a line whose length depends on `number`."""
    return b"line %d " % number + b"x" * (number * 7 % 40)


def one_by_one(work: Workload) -> None:
    work.create("a-0")
    for number in range(9):
        work.append("a-0", line(number))
        if number % 3 == 2:
            work.flush("a-0")
    work.append("a-0", line(9))


def several_at_once(work: Workload) -> None:
    work.create("a-0")
    work.append("a-0", *map(line, range(4)))
    work.flush("a-0")
    work.append("a-0", *map(line, range(4, 6)))
    work.append("a-0", *map(line, range(6, 14)))
    work.flush("a-0")
    work.append("a-0", b"", b"y" * 500)


def rolling(work: Workload) -> None:
    work.create("a-0")
    for number in range(18):
        work.append("a-0", line(number), line(number + 1))
        if number % 7 == 6:
            work.flush("a-0")
            work.checkpoint()
        if number == 10:
            work.roll("a-0")


def rolling_without_flush(work: Workload) -> None:
    work.create("a-0")
    work.append("a-0", b"first")
    work.flush("a-0")
    for number in range(12):
        work.append("a-0", line(number) * 3)


def create_and_delete(work: Workload) -> None:
    work.create("a-0")
    work.append("a-0", b"one")
    work.flush("a-0")
    work.create("b-0")
    work.append("b-0", b"two")
    work.flush("b-0")
    work.delete("a-0")
    work.append("b-0", b"three")
    work.create("a-0")
    work.append("a-0", b"again")
    work.flush("a-0")


def deleting(work: Workload) -> None:
    work.create("a-0")
    work.create("b-0")
    for number in range(4):
        work.append("a-0", line(number) * 3)
        work.append("b-0", line(number))
    work.flush("a-0")
    work.flush("b-0")
    work.checkpoint()
    work.roll("a-0")
    work.append("a-0", b"unflushed")
    work.delete("a-0")
    work.create("a-0")
    work.append("a-0", b"another history")
    work.flush("a-0")
    work.checkpoint()
    work.delete("b-0")
    work.delete("a-0")
    work.close()
    work.reopen()
    work.create("a-0")
    work.append("a-0", b"the third", b"and last")
    work.flush("a-0")
    work.upkeep(100_000)


def undeleting(work: Workload) -> None:
    work.configure("a", "segment.bytes", "300")
    work.create("a-0")
    for number in range(5):
        work.append("a-0", line(number) * 3)
    work.flush("a-0")
    work.undelete("a-0")
    work.append("a-0", b"after that")
    work.flush("a-0")
    work.checkpoint()
    work.append("a-0", b"unflushed")
    work.undelete("a-0")
    work.close()
    work.reopen()
    work.append("a-0", b"at the end")
    work.flush("a-0")


def undeleting_later(work: Workload) -> None:
    """A deletion is undone after the store was opened again."""
    work.create("a-0")
    work.append("a-0", line(1), line(2))
    work.flush("a-0")
    work.undelete("a-0", later=True)
    work.append("a-0", line(3))
    work.flush("a-0")


def spreading(work: Workload) -> None:
    """The second partition of a topic is in another log directory, which gets the settings, too."""
    work.create("a-0")
    work.append("a-0", b"one")
    work.flush("a-0")
    work.add_log_dir()
    work.create("a-1")
    work.append("a-1", b"two")
    work.flush("a-1")
    work.configure("a", "flush.ms", "1000")
    work.append("a-1", b"three")


def settings_change(work: Workload) -> None:
    work.create("a-0")
    work.append("a-0", b"one")
    work.configure("a", "compression.type", "zstd")
    work.append("a-0", *[b"squeezed" * 6] * 3)
    work.flush("a-0")
    work.configure("a", "segment.bytes", "300")
    work.append("a-0", b"small segments")
    work.append("a-0", *map(line, range(4)))
    work.flush("a-0")
    work.permit("a-0", "append", 0o200)
    work.configure("a", "preallocate", "true")
    work.roll("a-0")
    work.append("a-0", b"preallocated")
    work.permit("a-0", "append", 0o600)


def truncating(work: Workload) -> None:
    work.create("a-0")
    for number in range(12):
        work.append("a-0", b"before %02d" % number)
    work.flush("a-0")
    work.checkpoint()
    work.truncate("a-0", 9)
    work.append("a-0", b"after  09")
    work.flush("a-0")
    work.truncate("a-0", 3)
    work.append("a-0", b"after  03")
    work.append("a-0", b"after  04")
    work.flush("a-0")


def transacting(work: Workload) -> None:
    work.create("a-0")
    work.append("a-0", b"before")
    work.transact("a-0", b"aborted", b"as a whole", commit=False)
    work.transact("a-0", b"committed", commit=True)
    work.flush("a-0")
    for number in range(4):
        work.transact("a-0", line(number) * 3, commit=number % 2 == 1)
        work.append("a-0", line(number))
    work.roll("a-0")
    work.transact("a-0", b"in the next segment", commit=False)
    work.flush("a-0")
    # After the second transaction of the four.
    work.truncate("a-0", 11)
    work.transact("a-0", b"after the truncation", commit=False)
    work.append("a-0", b"after that")
    work.close()
    work.reopen()
    work.transact("a-0", b"flushed", commit=False)
    work.flush("a-0")
    work.transact("a-0", b"not flushed", commit=True)
    work.transact("a-0", b"not flushed, either", commit=False)


def following(work: Workload) -> None:
    """One partition gets the batches of another one, in two pieces and again after a truncation."""
    work.create("a-0")
    work.create("b-0")
    for number in range(6):
        work.append("a-0", line(number), line(number) * 2)
    work.fetch("b-0", "a-0")
    work.flush("b-0")
    work.append("a-0", line(7) * 4)
    work.append("a-0", line(8))
    work.fetch("b-0", "a-0")
    work.truncate("b-0", 8)
    work.fetch("b-0", "a-0")
    work.flush("b-0")
    work.checkpoint()


def closing(work: Workload) -> None:
    work.create("a-0")
    for number in range(8):
        work.append("a-0", line(number) * 2)
    work.close()
    work.reopen()
    work.append("a-0", b"more", b"and more")
    work.flush("a-0")
    work.append("a-0", b"unflushed")
    work.close()
    work.reopen()
    work.append("a-0", b"the end")
    work.close()


def retaining(work: Workload) -> None:
    work.create("a-0")
    for number in range(14):
        work.append("a-0", line(number), line(number + 1))
    work.retain("a-0", 900)
    work.append("a-0", b"more")
    work.upkeep(100_000)
    work.flush("a-0")
    work.append("a-0", *map(line, range(20)))
    work.retain("a-0", 300)
    work.upkeep(100_000)


def retaining_once(work: Workload) -> None:
    work.create("a-0")
    # One segment for each record: the more are dropped, the more of the states lack one in their middle.
    for _ in range(8):
        work.append("a-0", b"x" * 300)
    work.flush("a-0")
    work.since = len(work.disk.ops)
    work.retain("a-0", 300)


def compacting(work: Workload) -> None:
    work.create("a-0")
    work.configure("a", "cleanup.policy", "compact")
    work.configure("a", "delete.retention.ms", "50000")
    for number in range(8):
        pairs = [(b"%d" % (each % 5), line(number)) for each in range(number, number + 3)]
        work.put("a-0", *pairs)
    work.put("a-0", (b"1", None), (b"9", b"once"))
    work.roll("a-0")
    work.put("a-0", (b"2", b"active"))
    work.compact("a-0")
    work.put("a-0", (b"3", b"more"), (b"2", b"x" * 300))
    work.put("a-0", (b"2", b"y" * 300))
    work.flush("a-0")
    work.upkeep(100_000)
    work.put("a-0", (b"2", b"z"))
    work.compact("a-0")
    work.put("a-0", (b"4", b"unflushed"))
    work.roll("a-0")
    work.compact("a-0")


def committing(work: Workload) -> None:
    work.create("a-0")
    work.create("b-0")
    work.append("a-0", b"before")
    work.commit("q", 0, {"a-0": (b"a0", b"a1", b"a2"), "b-0": (b"b0",)})
    work.append("b-0", b"between")
    work.commit("q", 1, {"a-0": tuple(b"a1.%d" % n + b"x" * 90 for n in range(9)), "b-0": (b"b1",)})
    work.replay(1)
    work.commit("other", 5, {"b-0": (b"b2", b"b3", b"b4")})
    work.append("a-0", b"after")
    work.replay(0)


def committing_over_segments(work: Workload) -> None:
    work.create("a-0")
    work.create("b-0")
    work.commit("q", 0, {"a-0": tuple(b"a.%d" % n + b"x" * 90 for n in range(11)), "b-0": (b"b",)})
    work.append("a-0", b"between")
    work.commit("r", 0, {"a-0": tuple(b"c.%d" % n + b"x" * 60 for n in range(11))})


def committing_late(work: Workload) -> None:
    work.create("a-0")
    work.create("b-0")
    work.append("a-0", b"before")
    work.append("b-0", b"truncated")
    work.hold_up("q", 0, {"a-0": (b"a0", b"a1", b"a2"), "b-0": (b"b0",)})
    for number in range(12):
        work.append("a-0", line(number) * 3)
    # The place where the commit was to begin leaves the log.
    work.retain("a-0", 500)
    work.append("a-0", b"after")
    work.truncate("b-0", 0)
    work.append("b-0", b"more")
    work.make_room()
    work.append("a-0", b"the end")


def looking_up(work: Workload) -> None:
    work.create("a-0")
    for number in range(6):
        pairs = [(b"%d" % each, line(number)) for each in range(number, number + 3)]
        work.put("a-0", *pairs)
        work.look("a-0", b"0", b"%d" % number, b"nobody's")
        if number % 3 == 1:
            work.flush("a-0")
    work.put("a-0", (b"2", None), (b"a", b"one"), (b"b", b"two"))
    work.look("a-0", b"2", b"a")
    work.flush("a-0")
    work.truncate("a-0", 12)
    work.put("a-0", *[(b"again %d" % each, line(each)) for each in range(4)])
    work.look("a-0", b"a", b"again 3")
    work.close()
    work.reopen()
    work.look("a-0", b"again 0", b"4")
    work.put("a-0", *[(b"new %d" % each, line(each)) for each in range(3)])
    work.look("a-0", b"new 1", b"again 1")
    work.put("a-0", *[(b"newer %d" % each, b"unflushed") for each in range(3)])
    work.look("a-0", b"newer 1")


def moving_once(work: Workload) -> None:
    work.add_log_dir()
    work.create("a-0")
    work.append("a-0", b"one")
    work.flush("a-0")
    work.move("a-0", crashdisk.OTHER)


def moving(work: Workload) -> None:
    work.add_log_dir()
    work.create("a-0")
    work.append("a-0", line(1) * 9)
    work.append("a-0", line(2) * 9)
    work.flush("a-0")
    work.append("a-0", b"unflushed")
    work.move("a-0", crashdisk.OTHER)
    work.append("a-0", line(3))
    work.move("a-0", crashdisk.LOG)
    work.upkeep(100_000)
    work.append("a-0", b"back again")
    work.flush("a-0")


def tiering(work: Workload) -> None:
    """Segments are copied, and then dropped from the disk. The bucket is as it is at the end: it only gets more."""
    bucket = tempfile.mkdtemp(dir=crashdisk.fast_directory())
    BUCKETS.append(bucket)
    settings = work.store.settings
    work.step(lambda: settings.set_broker("remote.storage.url", f"file://{bucket}"))
    for name, value in {**crashdisk.SMALL, "retention.ms": "-1"}.items():
        work.configure("__remote_log_metadata", name, value)
    work.create("a-0")
    work.configure("a", "remote.storage.enable", "true")
    work.configure("a", "local.retention.bytes", "0")
    for number in range(8):
        work.append("a-0", line(number) * 3)
    work.since = len(work.disk.ops)
    work.tier("a-0")
    work.append("a-0", line(8), line(9))
    work.flush("a-0")
    work.append("a-0", line(10) * 5)
    work.upkeep(100_000)
    work.tier("a-0")
    work.append("a-0", b"not flushed")


WORKLOADS: dict[str, Callable[[Workload], None]] = {
    workload.__name__: workload
    for workload in (
        one_by_one,
        several_at_once,
        rolling,
        rolling_without_flush,
        create_and_delete,
        deleting,
        undeleting,
        undeleting_later,
        spreading,
        settings_change,
        truncating,
        transacting,
        following,
        closing,
        retaining,
        compacting,
        committing,
        committing_over_segments,
        committing_late,
        looking_up,
        moving,
        tiering,
    )
}


def states_of(workload: Callable[[Workload], None]) -> list[State]:
    """Run a workload, and return every state that a crash during it can leave."""
    with crashdisk.scratch() as root:
        disk = RecordingDisk(root)
        try:
            workload(work := Workload(disk))
            assert not work.failures, work.failures
            return crashdisk.crash_states(disk, since=work.since)
        finally:
            disk.close()


@cache
def first_states(count: int, seed: int) -> list[State]:
    """Return some crash states of each of six workloads, for a second crash to start from; in a campaign, of all."""
    return [
        state
        for name in drawn(WORKLOADS, 6)
        for state in crashdisk.sample(states_of(WORKLOADS[name]), count, seed)
    ]
