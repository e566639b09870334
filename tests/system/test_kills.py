"""kill -9, SIGTERM and SIGINT during commands and mounts: the log is right before any repair.

A command works on a copy of a scene (`tests/system/scenes.py`) and is killed, at a random time or by strace when it
enters a system call; so is its second run; the third finishes. After each kill a read-only store shows every
acknowledged record at its offset, every time lookup is right, and `logfs check` finds no error.

LOGFS_KILLS is the number of kills of commands, LOGFS_MOUNT_KILLS that of mounts. LOGFS_KILLS_SEED repeats a run,
and LOGFS_KILLS_SCENE, which a failure prints, one scene of it.
"""

from __future__ import annotations

import os
import pickle
import random
import shutil
import time
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from logfs.format.tiered import object_keys
from logfs.format.tiered.metadata_record import TOPIC as METADATA
from logfs.store.store import Store, now_ms
from logfs.store.tiering.bucket_owner import FILE_NAME
from tests.support.examples import seed_of
from tests.support.processes import wait_for
from tests.support.requirements import DEEP, need_fuse
from tests.system import oracle
from tests.system.commands import CHANGING, COMMANDS, END_SECONDS, Command, Trial
from tests.system.findings import Findings
from tests.system.load import KEYS, PARTITIONS, TOPICS, line
from tests.system.mounts import Daemon
from tests.system.scenes import make_scene
from tests.system.strace import Fault, Strace, need_strace

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.spawner import Spawner
    from tests.system.load import Acknowledged

KILLS = int(os.environ.get("LOGFS_KILLS", "18" if DEEP else "12"))
SEED = seed_of("LOGFS_KILLS_SEED")
# A seed and a command: all kills of commands are of this one.
SCENE = os.environ.get("LOGFS_KILLS_SCENE", "")
# Kills of one command on one scene. A short run meets more commands, and a long one more moments of each.
PER_COMMAND = 10 if DEEP else 2


def test_a_killed_command_leaves_a_correct_log(spawner: Spawner, tmp_path: Path) -> None:
    """After a kill of a command the log is right. A further run finishes, also if the second run was killed."""
    need_strace()
    need_fuse()
    chooser = random.Random(SEED)
    findings = Findings()
    counts: Counter[str] = Counter()
    by_command: Counter[str] = Counter()
    number = 0
    order: list[Command] = []
    try:
        while counts["kills"] < KILLS and not findings.are_too_many:
            number += 1
            if not order:
                order = chooser.sample(COMMANDS, len(COMMANDS))
            command, seed = order.pop(), chooser.randrange(2**31)
            if SCENE:
                chosen, _, name = SCENE.partition(",")
                seed, command = int(chosen), next(c for c in COMMANDS if c.name == name)
            work = tmp_path / f"scene-{number}"
            told = f"LOGFS_KILLS_SCENE='{seed},{command.name}'"
            make_scene(spawner, work, seed)
            with findings.collect(told):
                trial = Trial(spawner, command, work, random.Random(seed), counts)
                for _ in range(PER_COMMAND if trial.prepare() else 0):
                    with findings.collect(told):
                        trial.kill()
                        by_command[command.name] += 1
            shutil.rmtree(work)
    finally:
        # Also after Ctrl-C: a long run is not lost.
        print(f"\nkills of commands: seed {SEED}, {dict(counts)}, right: {dict(by_command)}")
        findings.report()


# Mounts.

# Two of the topics are tiered: their segments are copied, dropped here and deleted there while the mount is killed.
TIERING = {
    "remote.log.manager.task.interval.ms": "50",
    "log.retention.check.interval.ms": "50",
    "log.initial.task.delay.ms": "0",
}
TIERED = {
    "grow": {"remote.storage.enable": "true", "local.retention.bytes": "9000"},
    "short": {"remote.storage.enable": "true", "local.retention.bytes": "4000"},
}
# After this number of kills, a fresh log is made.
PER_LOG = 5
MOUNT_KILLS = int(os.environ.get("LOGFS_MOUNT_KILLS", str(max(KILLS // 6, 1))))


class MountKills:
    """A log under load on a mount that is killed repeatedly, also during recovery."""

    def __init__(self, spawner: Spawner, directory: Path, seed: int, counts: Counter[str]) -> None:
        self.spawner = spawner
        self.directory = directory
        self.log_dirs = [directory / "log", directory / "other"]
        self.random = random.Random(seed)
        self.seed = seed
        self.counts = counts
        self.cycle = 0
        self.told: list[str] = []
        self.lines: dict[str, int] = {}
        self.offsets: dict[str, dict[int, bytes]] = {}
        self.keys: dict[int, tuple[int, int]] = {}
        self.commits = -1

    def make(self) -> None:
        """Create an empty log with the partitions that the load needs."""
        for path in self.log_dirs:
            path.mkdir(parents=True)
        with Store(self.log_dirs) as store:
            bucket = self.directory / "bucket"
            bucket.mkdir()
            for name, value in {**TIERING, "remote.storage.url": f"file://{bucket}"}.items():
                store.settings.set_broker(name, value)
            for topic, settings in TOPICS.items():
                for name, value in {**settings, **TIERED.get(topic, {})}.items():
                    store.settings.set_topic(topic, name, value)
            for name in PARTITIONS:
                store.create(name)

    def kill(self) -> None:
        """Kill the mount under load, in some runs also its recovery, and check the log after each kill."""
        self.cycle += 1
        daemon = Daemon(self.spawner, self.directory / "mnt", self.log_dirs).start()
        answer = self.directory / "acknowledged"
        try:
            self._expect(daemon.wait_until_ready(), f"no mount: {daemon.child.output[-1000:]}")
            load = self.spawner.call(
                "tests.system.load:run_load",
                *(daemon.path, answer, self.cycle, self.seed, self.commits + 1),
            )
            try:
                wait_for(lambda: "started" in load.output or load.poll() is not None)
                seconds = self.random.uniform(0.05, 0.8)
                time.sleep(seconds)
                self._expect(load.poll() is None, f"the load ended: {load.output[-1500:]}")
                name = self.random.choice(("KILL", "KILL", "KILL", "TERM", "INT"))
                daemon.child.kill({"KILL": 9, "TERM": 15, "INT": 2}[name])
                self.told.append(f"{name} after {seconds:.3f} s")
                daemon.child.wait(END_SECONDS)
                if name == "KILL":
                    with pytest.raises(OSError, match=r"not connected|aborted"):
                        os.listdir(daemon.path)
                self.counts["kills of mounts"] += 1
                self._expect(load.wait(END_SECONDS) == 0, f"the load failed: {load.output[-1500:]}")
            finally:
                load.close()
        finally:
            daemon.close()
        done: Acknowledged = pickle.loads(answer.read_bytes())
        said = daemon.child.output[-1500:]
        self._expect(not done.errors, f"errors before the kill: {said}\n{done.errors}")
        self._take(done)
        self._hold()
        for _ in range(2):
            if self.random.random() < 0.4:
                self._kill_recovery()
                self._hold()

    def _kill_recovery(self) -> None:
        """Start a mount or `logfs recover`, and kill it when it enters a system call that changes something."""
        syscall = self.random.choice(sorted(CHANGING))
        fault = Fault(syscall, "KILL", int(self.random.lognormvariate(2, 1.2)) + 1)
        daemon = Daemon(self.spawner, self.directory / "mnt", self.log_dirs)
        strace = None
        try:
            if self.random.random() < 0.5:
                daemon.start(hold=True)
            else:
                daemon.child = self.spawner.command("recover", *self.log_dirs, hold=True)
            strace = Strace(daemon.child.pid, self.directory / "trace", [], fault)
            daemon.child.go()
            if daemon.is_started and daemon.wait_until_ready():
                daemon.child.kill()
            daemon.child.wait(END_SECONDS)
        finally:
            daemon.close()
            if strace is not None:
                strace.wait()
        self.counts["kills of recoveries"] += 1
        self.told.append(f"{'mount' if daemon.is_started else 'recover'} {fault}")

    def _take(self, done: Acknowledged) -> None:
        for writer, count in done.lines.items():
            self.lines[writer] = count
            self.counts["acknowledged lines"] += count
        for name, lines in done.offsets.items():
            self.offsets.setdefault(name, {}).update(lines)
        for key, number in done.keys.items():
            self.keys[key] = self.cycle, number
        self.commits = max([self.commits, *done.commits])
        self.counts["acknowledged commits"] += len(done.commits)
        for word, count in done.asked.items():
            self.counts[word] += count

    def _expect(self, condition: object, what: str) -> None:
        if not condition:
            raise oracle.Wrong(f"{what} ({' > '.join(self.told)})")

    def _hold(self) -> None:
        try:
            found = oracle.look(self.log_dirs)
        except oracle.Wrong as error:
            raise oracle.Wrong(f"{error} ({' > '.join(self.told)})") from None
        here = {name for name in found if not name.startswith(METADATA)}
        self._expect(here == set(PARTITIONS), f"there is {sorted(found)}")
        for name in ("grow-0", "room-0", "moved-0", "short-0"):
            self._hold_lines(name, found[name])
        self._hold_keys(found["keys-0"])
        for name in ("commit-0", "commit-1"):
            self._hold_commits(name, found[name])

    def hold_bucket(self) -> None:
        """Check that a further run leaves in the bucket what the logs need, and nothing else."""
        later = [now_ms()]
        with Store(self.log_dirs, clock=lambda: later[0]) as store:
            needed = set()
            for name in ("grow-0", "short-0"):
                store.tier(name)
                store.retain([name])
            later[0] += 3_600_000
            store.remote_log_manager.expire()
            for name in ("grow-0", "short-0"):
                log = store.tiered.of(store[name])
                assert log is not None
                needed |= {each.segment_id for each in log.finished()}
                self.counts["segments copied"] += len(log.finished())
                local = store[name].segments
                self.counts["segments only in the bucket"] += sum(s.is_tiered for s in local)
        bucket = self.directory / "bucket"
        keys = [str(path.relative_to(bucket)) for path in bucket.rglob("*") if path.is_file()]
        # Nothing is copied, and the bucket has no owner, if no segment was sealed before the kills.
        self._expect((FILE_NAME in keys) == bool(keys), f"objects without an owner: {sorted(keys)}")
        keys = [key for key in keys if key != FILE_NAME]
        parsed = [object_keys.parse_aiven_key(key) for key in keys]
        there = Counter(each[1] for each in parsed if each is not None)
        self._expect(None not in parsed, f"there are other objects: {sorted(keys)}")
        self._expect(there == dict.fromkeys(needed, 4), f"the bucket has {there}, not {needed}")

    def _hold_lines(self, name: str, log: oracle.Log) -> None:
        """Check that each writer's lines are 0, 1, 2, … up to those acknowledged, or those of one more write."""
        writers = {writer for writer in self.lines if writer.split("-", 1)[1].startswith(name)}
        seen = dict.fromkeys(writers, 0)
        if name != "short-0":
            self._expect(log.start == 0, f"{name} starts at {log.start}")
        expected = log.start
        for offset, (_, _, value) in log.records.items():
            self._expect(offset == expected, f"{name}: offset {offset}, and {expected} was due")
            expected += 1
            writer, number = (value or b"").split(b" ")[:2]
            who, count = writer.decode(), int(number)
            self._expect(who in seen, f"{name}: an invented line {value!r}")
            if name == "short-0" and not seen[who]:
                seen[who] = count
            self._expect(count == seen[who], f"{name}: line {count} of {who}, {seen[who]} was due")
            self._expect(value == line(who, count), f"{name}: line {value!r}")
            seen[who] += 1
        self.counts["lines in flight"] += sum(
            max(count - self.lines[writer], 0)
            for writer, count in seen.items()
            if writer.split("-")[0] == str(self.cycle)
        )
        for writer, count in seen.items():
            least = self.lines[writer]
            if name == "short-0" and writer.split("-")[0] != str(self.cycle):
                continue
            self._expect(
                least <= count <= least + 5 or (name == "short-0" and not count),
                f"{name}: {count} lines of {writer}; {least} were acknowledged",
            )
        for offset, value in self.offsets.get(name, {}).items():
            if offset >= log.start:
                content = log.records.get(offset)
                self._expect(content and content[2] == value, f"{name}: {offset} is {content}")

    def _hold_keys(self, log: oracle.Log) -> None:
        """Check the order, and that each key has at least the newest acknowledged record."""
        newest: dict[int, tuple[int, int]] = {}
        last = (0, -1)
        for _, key, value in log.records.values():
            cycle, number = map(int, (value or b"").split(b" "))
            self._expect((cycle, number) > last, f"keys-0: {value!r} after {last}")
            last = (cycle, number)
            self._expect(key == b"k%d" % (number % KEYS), f"keys-0: {key!r} has {value!r}")
            newest[number % KEYS] = last
        for key_number, acknowledged in self.keys.items():
            found = newest.get(key_number)
            self._expect(
                found is not None and found >= acknowledged,
                f"keys-0: of key {key_number} the newest is {found}, {acknowledged} was acknowledged",
            )

    def _hold_commits(self, name: str, log: oracle.Log) -> None:
        """Check that all of each commit is there, once and in order, and that every acknowledged commit is there.

        One more commit may be there that was not acknowledged, perhaps in one partition only: the next process that
        opens the log for writing finishes it, and the load sends it again.
        """
        values = [value for _, _, value in log.records.values()]
        count = len(values) // 6
        wanted = [b"%d %d %s" % (s, n, b"." * 40) for s in range(count) for n in range(6)]
        self._expect(values == wanted, f"{name}: commits are not all there, once and in order")
        self._expect(
            self.commits < count <= self.commits + 2,
            f"{name}: {count} commits, and {self.commits + 1} were acknowledged",
        )


def test_a_killed_mount_leaves_a_correct_log(spawner: Spawner, tmp_path: Path) -> None:
    """After a kill of a mount during appends, rolls, retention, compaction, moves or commits the log is right.

    So it is after a kill during recovery.
    """
    need_strace()
    need_fuse()
    chooser = random.Random(SEED)
    findings = Findings()
    counts: Counter[str] = Counter()
    number = 0
    try:
        while counts["kills of mounts"] < MOUNT_KILLS and number < 2 * MOUNT_KILLS:
            number += 1
            seed = chooser.randrange(2**31)
            kills = MountKills(spawner, tmp_path / f"log-{number}", seed, counts)
            with findings.collect(f"mount, seed {seed}"):
                kills.make()
                for _ in range(min(PER_LOG, MOUNT_KILLS - counts["kills of mounts"])):
                    kills.kill()
                kills.hold_bucket()
            shutil.rmtree(kills.directory)
    finally:
        print(f"\nkills of mounts: seed {SEED}, {dict(counts)}")
        findings.report()
    for what in (
        "acknowledged lines",
        "acknowledged commits",
        "lines in flight",
        "compact",
        "move",
        "segments only in the bucket",
    ):
        assert counts[what] or MOUNT_KILLS < 10, f"no kill met {what}"
