"""Failing system calls of daemons and commands: no acknowledged data is lost, nothing hangs, callers get an error.

strace makes calls of the daemon fail (EIO, ENOSPC, EINTR, EMFILE, ENOMEM, …), once or from then on, while a script of
about 300 calls runs on the mount. Then the daemon ends, and the logs are checked without faults against the journal
of the script. The same is done to daemons that start on a log left by a crash, and to commands on scenes.

LOGFS_SYSCALL_FAULTS is the number of runs on mounts, a third of which fail at the start, and the number of runs of
commands. LOGFS_SYSCALL_FAULTS_SEED repeats a run.
"""

from __future__ import annotations

import errno
import os
import pickle
import random
import re
import shutil
import signal
import time
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from logfs.errors import LogfsError
from logfs.store.store import Store
from tests.support.examples import seed_of
from tests.support.requirements import DEEP, need_fuse
from tests.system import oracle
from tests.system.commands import COMMANDS, ERRORS, Trial, make_fault
from tests.system.fault_script import KEYS, is_between
from tests.system.findings import Findings
from tests.system.mounts import END_SECONDS, Daemon
from tests.system.scenes import make_scene
from tests.system.strace import Fault, Strace, need_strace

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.spawner import Spawner
    from tests.system.fault_script import Journal

RUNS = int(os.environ.get("LOGFS_SYSCALL_FAULTS", "6" if DEEP else "3"))
SEED = seed_of("LOGFS_SYSCALL_FAULTS_SEED")
# Failing calls per command and scene. A short run meets more commands, and a long one more calls of each.
PER_COMMAND = 10 if DEEP else 2
# A call on the mount must return within this time.
CALL_SECONDS = 20
# About how often a thread of the daemon makes each call while the script runs.
POINTS = {
    "pwrite64": 150,
    "fsync": 120,
    "fdatasync": 100,
    "msync": 30,
    "rename": 60,
    "openat": 300,
    "ftruncate": 40,
    "fallocate": 30,
    "mmap": 120,
    "unlink": 60,
    "mkdir": 4,
    "pread64": 200,
    "clone3": 8,
}
# The errnos that a failed call may lead to besides its own: docs/filesystem.md.
CONSEQUENCES = frozenset({errno.EIO, errno.EAGAIN})
GONE = frozenset({errno.ENOTCONN, errno.ECONNABORTED, errno.ENODEV})
# Python or the C library repeats these calls, or can do without them.
_NOBODY_IS_TOLD = re.compile(r"MAP_ANONYMOUS|/proc/|/sys/|\.pyc|\.so|/etc/|EINTR")


def choose_fault(chooser: random.Random) -> Fault:
    """Choose a syscall, an errno, and the number of the call."""
    syscall = chooser.choice(sorted(ERRORS))
    # Evenly on a logarithmic scale: the first calls of a thread are those of the rarely used paths.
    when = int(POINTS[syscall] ** chooser.random())
    return make_fault(chooser, syscall, max(when, 1))


class Run:
    """A mount with a fault, and the checks afterwards."""

    def __init__(
        self, spawner: Spawner, directory: Path, seed: int, findings: Findings, counts: Counter[str]
    ) -> None:
        self.spawner = spawner
        self.directory = directory
        self.log_dirs = [directory / "log", directory / "other"]
        self.random = random.Random(seed)
        self.seed = seed
        self.counts = counts
        self.findings = findings
        self.fault = choose_fault(self.random)
        self.name = f"seed {seed}, {self.fault}"
        self.journal: Journal | None = None
        self.log = ""
        self.is_killed = False

    def wrong(self, what: str) -> None:
        """Record a finding, and continue."""
        self.findings.add(self.name, what)

    def serve(self) -> None:
        """Run the script with a fault that is in force from the moment when the mount is ready."""
        daemon = Daemon(self.spawner, self.directory / "mnt", self.log_dirs).start()
        strace = None
        try:
            assert daemon.wait_until_ready(), daemon.child.output[-1000:]
            strace = Strace(daemon.child.pid, self.directory / "trace", [], self.fault)
            self._script(daemon)
            self._stop(daemon)
        finally:
            self.log = daemon.child.output
            daemon.close()
            if strace is not None:
                strace.wait(10)
        assert strace is not None
        self._judge(strace)
        self._hold()

    def start(self) -> None:
        """Kill the daemon after the script, and start one with the fault."""
        self.name += " (start)"
        daemon = Daemon(self.spawner, self.directory / "mnt", self.log_dirs).start()
        try:
            assert daemon.wait_until_ready(), daemon.child.output[-1000:]
            self._script(daemon)
            daemon.child.kill()
        finally:
            before = daemon.child.output
            daemon.close()
        strace = None
        try:
            daemon.start(hold=True)
            strace = Strace(daemon.child.pid, self.directory / "trace", [], self.fault)
            daemon.child.go()
            try:
                if daemon.wait_until_ready():
                    self.counts["ready all the same"] += 1
                    os.stat(daemon.path)
                    self._stop(daemon)
                else:
                    self.counts["not started"] += 1
            except (TimeoutError, OSError) as error:
                self.wrong(f"hang at the start: {error}\n{daemon.child.dump_stacks()}")
        finally:
            self.log = before + daemon.child.output
            daemon.close()
            if strace is not None:
                strace.wait(10)
        assert strace is not None
        self._judge(strace)
        self._hold()

    def _script(self, daemon: Daemon) -> None:
        steps = self.directory / "steps"
        script = self.spawner.call(
            "tests.system.fault_script:run_script",
            *(daemon.path, ":".join(map(str, self.log_dirs)), self.directory, self.seed),
        )
        try:
            began = time.monotonic()
            told = ""
            while script.poll() is None:
                time.sleep(0.02)
                known = steps.read_text() if steps.exists() else ""
                if known != told:
                    told, began = known, time.monotonic()
                elif time.monotonic() - began > CALL_SECONDS:
                    last = told.splitlines()[-1].split(" ", 1)[1] if told else "the first call"
                    stacks = daemon.child.dump_stacks()
                    self.wrong(f"hang: {last}\n{stacks}")
                    daemon.child.kill()
                    daemon.child.wait(END_SECONDS)
                    script.wait(10)
                    self.is_killed = True
            if script.poll() != 0:
                raise oracle.Wrong(f"the script failed: {script.output[-1500:]}")
        finally:
            script.close()
        path = self.directory / "journal"
        if path.exists():
            self.journal = pickle.loads(path.read_bytes())

    def _stop(self, daemon: Daemon) -> None:
        code = daemon.child.poll()
        if self.is_killed:
            return
        if code == -signal.SIGABRT and self.fault.syscall == "mmap":
            # A compiled library such as LLVM aborts if it gets no memory. The records are checked as after a kill.
            self.counts["aborted without memory"] += 1
            return
        if code is not None:
            self.wrong(f"the daemon ended with {code}: {daemon.child.output[-1500:]}")
            return
        try:
            code = daemon.stop()
        except TimeoutError:
            self.wrong(f"hang: SIGTERM\n{daemon.child.dump_stacks()}")
            return
        self.counts[f"daemon's exit code {code}"] += 1
        if code not in (0, 1):
            self.wrong(f"the daemon ended with {code}: {daemon.child.output[-1500:]}")

    def _judge(self, strace: Strace) -> None:
        """Check which callers got an error, and which errno."""
        self.counts["runs"] += 1
        injected = [call for call in strace.calls() if call.is_injected]
        steps = self.journal.steps if self.journal is not None else []
        self.counts["calls"] += len(steps)
        # A log may be shorter than the offset that a group commits.
        expected = {errno.EEXIST, errno.ERANGE}
        failed = [step for step in steps if step.errno and step.errno not in expected]
        self.counts["calls that failed"] += len(failed)
        if "unexpected" in self.log or "Traceback" in self.log:
            last = [
                line for line in self.log.splitlines() if re.match(r"\w*(Error|Exception)", line)
            ]
            at = max(self.log.rfind("unexpected"), self.log.rfind("Traceback"), 0)
            self.wrong(f"a bug: {last[-1:] or ''}\n{self.log[max(at - 500, 0) : at + 2500]}")
        if not injected:
            self.counts["not hit"] += 1
            for step in failed[:1]:
                name = errno.errorcode[step.errno]
                self.wrong(f"no fault, and {step.what} ended with {name}\n{self.log[-3000:]}")
            return
        self.counts["hit"] += 1
        allowed = CONSEQUENCES | GONE | {getattr(errno, self.fault.effect)}
        missing = self.journal is None or any(s.errno for s in steps if s.what.startswith("mkdir"))
        # A topic whose cleanup.policy could not be set is not compacted.
        is_lacking = any(s.errno for s in steps if s.what == "config k-0 cleanup.policy")
        # A log directory with other settings of a topic does not take a partition of that topic.
        is_unlike = any(s.errno for s in steps if s.what.startswith("config a-0"))
        for step in failed:
            if step.errno in allowed or (missing and step.errno == errno.ENOENT):
                continue
            if step.what == "ctl k-0 compact" and step.errno == errno.EINVAL and is_lacking:
                continue
            if step.what.startswith("ctl a-0 move") and step.errno == errno.EINVAL and is_unlike:
                continue
            name = errno.errorcode.get(step.errno, str(step.errno))
            self.wrong(
                f"{re.sub('[0-9]+', 'N', step.what)} ended with {name} after {self.fault.effect}"
            )
            break
        is_silent = not failed and " ERROR " not in self.log and " WARNING " not in self.log
        if is_silent and not all(_NOBODY_IS_TOLD.search(call.text) for call in injected):
            self.counts["nobody was told"] += 1
            what = next(c for c in injected if not _NOBODY_IS_TOLD.search(c.text))
            path = re.sub(r"[0-9a-f]{32}|[0-9]+", "N", re.sub(r".*/(log|other)/", "", what.text))
            self.counts[f"silent: {what.name} {path[:70]}"] += 1

    def _hold(self) -> None:
        """Check without faults, before and after a repair, that all acknowledged data is there."""
        if self.journal is None:
            return
        for wrong in self.journal.wrong[:3]:
            self.wrong(f"wrong answer: {wrong}")
        self._look(self.journal, "before a repair")
        try:
            with Store(self.log_dirs) as store:
                for name, error in store.offline.items():
                    raise oracle.Wrong(f"offline after a new opening: {name}: {error}")
                self._hold_rest(self.journal, store)
        except (LogfsError, OSError) as error:
            raise oracle.Wrong(f"a new opening: {type(error).__name__}: {error}") from error
        self._look(self.journal, "after a repair")

    def _look(self, journal: Journal, when: str) -> None:
        try:
            found = oracle.look(self.log_dirs)
            for name, is_there in journal.partitions.items():
                if (name in found) != is_there:
                    raise oracle.Wrong(f"{name.split('-')[0]}: is there: {name in found}")
            for name in journal.acknowledged.keys() & found.keys():
                hold_records(journal, name, found[name])
            if "c-0" in found:
                hold_commits(journal, found["c-0"])
        except oracle.Wrong as error:
            self.wrong(f"{when}: {error}")

    @staticmethod
    def _hold_rest(journal: Journal, store: Store) -> None:
        for key, value in journal.settings.items():
            name, setting = key.split(" ")
            found = store.settings.topic_overrides(name.rpartition("-")[0]).get(setting)
            if found != value:
                raise oracle.Wrong(f"setting {setting} is {found!r}, not {value!r}")
        for group, text in journal.groups.items():
            committed = store.groups.committed(group, "a-0")
            if committed is None or committed.offset != int(text):
                raise oracle.Wrong(f"group {group} has committed {committed!r}, not {text}")


def hold_records(journal: Journal, name: str, log: oracle.Log) -> None:
    """Check that all acknowledged records are in a log, in order, at the reported offsets, and no invented ones."""
    least, most = journal.acknowledged[name], journal.tried[name]
    values = [value or b"" for _, _, value in log.records.values()]
    if name == "k-0":
        # For each key, the log must have the newest acknowledged value, or a later one that was not acknowledged.
        newest = {int(value) % KEYS: value for value in least}
        there = {int(value) % KEYS: value for value in values}
        lost = [v for key, v in newest.items() if int(there.get(key, b"-1")) < int(v)]
        least = []
    elif name == "b-0":
        # Retention removes the first records.
        lost = [value for value in least[-5:] if value not in values]
        least = [value for value in least if value in values]
    else:
        lost = [value for value in least if value not in values]
    invented = [value for value in values if value not in most]
    if lost or invented or not is_between(least, values, most):
        raise oracle.Wrong(f"{name}: lost {lost[:3]!r}, invented {invented[:3]!r}")
    for offset, value in journal.offsets.get(name, {}).items():
        content = log.records.get(offset)
        if offset >= log.start and (content is None or content[2] != value):
            raise oracle.Wrong(f"{name}: offset {offset} is {content!r}, not {value!r}")


def hold_commits(journal: Journal, log: oracle.Log) -> None:
    """Check that every acknowledged commit is there, and none twice."""
    values = [value for _, _, value in log.records.values()]
    lost = [number for number in journal.commits if b"commit %d" % number not in values]
    if lost or len(set(values)) < len(values):
        raise oracle.Wrong(f"c-0: lost commits {lost} of {values!r}")


@pytest.mark.parametrize(
    "fault",
    [
        Fault("clone3", "EAGAIN", 1, persistent=True),
        # This call is in a new thread, which then dies before it runs.
        Fault("mmap", "ENOMEM", 2),
    ],
    ids=str,
)
def test_requests_are_served_without_new_threads(
    spawner: Spawner, tmp_path: Path, fault: Fault
) -> None:
    """If threads cannot be started or die as they start, the mount's existing threads serve every call."""
    need_strace()
    need_fuse()
    daemon = Daemon(spawner, tmp_path / "mnt", [tmp_path / "log"]).start()
    strace = None
    try:
        assert daemon.wait_until_ready(), daemon.child.output
        strace = Strace(daemon.child.pid, tmp_path / "trace", [], fault)
        load = spawner.call("tests.system.fault_script:write_with_threads", daemon.path, 12, 30)
        assert load.wait(CALL_SECONDS) == 0, load.output
        failures = load.output.split()
        load.close()
        assert daemon.stop() == 0, daemon.child.output
        assert "Traceback" not in daemon.child.output
    finally:
        daemon.close()
        if strace is not None:
            strace.wait(10)
    # Callers get an error if an index has no memory. A missing thread leads to no error.
    assert not failures or fault.syscall == "mmap"
    with Store(tmp_path / "log", read_only=True) as store:
        assert failures or sum(store[name].log_end_offset for name in store) == 12 * 30


def test_a_mount_that_cannot_start_threads_does_not_start(spawner: Spawner, tmp_path: Path) -> None:
    """A mount that cannot start threads does not start, and its last line of output says why."""
    need_strace()
    need_fuse()
    daemon = Daemon(spawner, tmp_path / "mnt", [tmp_path / "log"]).start(hold=True)
    strace = Strace(
        daemon.child.pid, tmp_path / "trace", [], Fault("clone3", "EAGAIN", 1, persistent=True)
    )
    try:
        daemon.child.go()
        assert not daemon.wait_until_ready()
        assert daemon.child.poll() == 1
        assert daemon.child.output.splitlines()[-1].startswith("logfs: the mount cannot start")
        assert "Traceback" not in daemon.child.output
    finally:
        daemon.close()
        strace.wait()


def test_a_failing_system_call_of_a_mount_is_survived(spawner: Spawner, tmp_path: Path) -> None:
    """A failing system call of a mount loses no acknowledged data and hangs nothing. The caller gets the error."""
    need_strace()
    need_fuse()
    chooser = random.Random(SEED)
    findings = Findings()
    counts: Counter[str] = Counter()
    for number in range(RUNS):
        directory = tmp_path / f"run-{number}"
        directory.mkdir()
        run = Run(spawner, directory, chooser.randrange(2**31), findings, counts)
        with findings.collect(run.name):
            if number % 3 == 2:
                run.start()
            else:
                run.serve()
        shutil.rmtree(directory)
    lines = "\n".join(f"  {count:6} {what}" for what, count in sorted(counts.items()))
    print(f"\nfaults of mounts: seed {SEED}\n{lines}")
    findings.report()


def test_a_failing_system_call_of_a_command_is_survived(spawner: Spawner, tmp_path: Path) -> None:
    """After a system call of a command failed, the log is right at once, and the command succeeds when run again."""
    need_strace()
    need_fuse()
    chooser = random.Random(SEED)
    findings = Findings()
    counts: Counter[str] = Counter()
    number = 0
    while counts["runs"] < RUNS and not findings.are_too_many:
        number += 1
        seed, command = chooser.randrange(2**31), chooser.choice(COMMANDS)
        work = tmp_path / f"scene-{number}"
        told = f"scene {seed}, {command.name}"
        make_scene(spawner, work, seed)
        with findings.collect(told):
            trial = Trial(spawner, command, work, random.Random(seed), counts)
            for _ in range(PER_COMMAND if trial.prepare() else 0):
                with findings.collect(told):
                    trial.fail()
        shutil.rmtree(work)
    lines = "\n".join(f"  {count:6} {what}" for what, count in sorted(counts.items()))
    print(f"\nfaults of commands: seed {SEED}\n{lines}")
    findings.report()
