"""Commands on scenes that are disturbed while they run: killed, or given a system call that fails."""

from __future__ import annotations

import json
import re
import shutil
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NoReturn

from tests.system import oracle, scenes
from tests.system.mounts import mounted_view
from tests.system.strace import Fault, Strace

if TYPE_CHECKING:
    import random
    from collections.abc import Callable
    from pathlib import Path

    from tests.support.spawner import Child, Spawner

SYSCALLS = [
    *("rename", "ftruncate", "pwrite64", "fsync", "fdatasync", "unlink", "openat", "msync"),
    *("mkdir", "rmdir", "fallocate", "utimensat", "mmap", "close", "pread64", "clone3"),
]
# The calls before which the files can differ from their state before the preceding call.
CHANGING = frozenset(SYSCALLS) - {"openat", "mmap", "close", "pread64", "clone3"}
# The errors that calls of a command or of a mount are made to return.
ERRORS = {
    "pwrite64": ("EIO", "ENOSPC", "EINTR"),
    "fsync": ("EIO", "ENOSPC", "EINTR"),
    "fdatasync": ("EIO", "ENOSPC", "EINTR"),
    "msync": ("EIO", "ENOMEM"),
    "rename": ("EIO", "ENOSPC", "EINTR"),
    "openat": ("EIO", "EMFILE", "ENOMEM", "ENOSPC", "EINTR"),
    "ftruncate": ("EIO", "ENOSPC", "EINTR"),
    "fallocate": ("EIO", "ENOSPC", "EINTR"),
    "mmap": ("ENOMEM", "EIO"),
    "unlink": ("EIO", "ENOMEM"),
    "mkdir": ("EIO", "ENOSPC"),
    "pread64": ("EIO", "EINTR"),
    "clone3": ("EAGAIN", "ENOMEM"),
}
# A command must end within this time after a signal or an error.
END_SECONDS = 30

Words = list[object]


@dataclass(frozen=True)
class Command:
    """A command line on a scene.

    `settled` matches the output of a further run that has nothing left to do, which ends with exit code 1. Where a
    further run would do something else, `again` is run instead. Words that begin with `module:function` are a
    function call.
    """

    name: str
    words: Callable[[Path], Words]
    settled: str | None = None
    again: Callable[[Path], Words] | None = None


def _log(root: Path, name: str = "") -> Path:
    return scenes.log_dirs(root)[0] / name


def _lines(root: Path) -> Path:
    path = root / "lines"
    if not path.exists():
        with path.open("w") as file:
            for number in range(200):
                envelope = {"value": f"line {number}", "timestamp": 1_700_000_000_000 + number}
                file.write(json.dumps(envelope) + "\n")
    return path


def _move(name: str) -> Command:
    return Command(
        f"move {name}",
        lambda root: ["move", _log(root, name), "--to", scenes.log_dirs(root)[1]],
        settled=r"is in .* already",
    )


COMMANDS = [
    Command("recover", lambda root: ["recover", *scenes.log_dirs(root)]),
    Command("reindex plain", lambda root: ["reindex", _log(root, "plain-0")]),
    Command("reindex keys", lambda root: ["reindex", _log(root, "keys-0")]),
    Command("reindex txn", lambda root: ["reindex", _log(root, "txn-0")]),
    Command("compact", lambda root: ["compact", _log(root, "keys-0")]),
    Command("compact --roll", lambda root: ["compact", "--roll", _log(root, "keys-0")]),
    _move("plain-0"),
    _move("keys-0"),
    _move("txn-0"),
    Command("retain", lambda root: ["retain", _log(root)]),
    Command("delete-records", lambda root: ["delete-records", "--before", 20, _log(root, "txn-0")]),
    Command(
        "create",
        lambda root: [
            "create",
            _log(root, "new-0"),
            "-c",
            "preallocate=true",
            "-c",
            "segment.bytes=9999",
        ],
        settled="the partition exists",
    ),
    Command(
        "delete",
        lambda root: ["delete", _log(root, "plain-0")],
        settled="no such partition|has no partition",
    ),
    Command(
        "append",
        lambda root: ["append", _log(root, "plain-0"), "--jsonl", "--file", _lines(root)],
        again=lambda root: ["recover", _log(root)],
    ),
    Command("commit", lambda root: ["tests.system.load:commit", root]),
    Command("config", lambda root: ["config", _log(root), "--topic", "plain", "flush.ms", "1000"]),
]


def _lines_of(log: oracle.Log) -> bytes:
    return b"".join((value or b"") + b"\n" for _, _, value in log.records.values())


def make_fault(chooser: random.Random, syscall: str, when: int) -> Fault:
    """Return an error of a syscall, once or from then on. EINTR comes once, because Python then repeats the call."""
    effect = chooser.choice(ERRORS[syscall])
    return Fault(syscall, effect, when, effect != "EINTR" and chooser.random() < 0.4)


@dataclass
class Trial:
    """Runs of one command on copies of one scene."""

    spawner: Spawner
    command: Command
    work: Path
    """Holds the scene, and the copy that is worked on."""
    random: random.Random
    counts: Counter[str]
    before: dict[str, oracle.Log] = field(default_factory=dict)
    after: dict[str, oracle.Log] = field(default_factory=dict)
    points: Counter[str] = field(default_factory=Counter)
    """How often the command makes each system call."""
    seconds: float = 0.1
    told: list[str] = field(default_factory=list)
    """What was done to the copy."""

    @property
    def root(self) -> Path:
        """The copy of the scene."""
        return self.work / "root"

    def prepare(self) -> bool:
        """Run the command once without a fault, and return whether it works on this scene. Raises `Wrong`."""
        ledger = scenes.read_ledger(self.work / "scene")
        self._begin("the scene")
        self.before = self._look()
        oracle.check_ledger(self.before, ledger)
        child = self._start(self.command.words, hold=True)
        strace = Strace(child.pid, self.work / "trace", SYSCALLS, None)
        child.go()
        code = self._end(child, "without a fault")
        strace.wait()
        if code != 0:
            # For example delete-records beyond the end of the log.
            self.counts["not on this scene"] += 1
            return False
        self.points = Counter(call.name for call in strace.calls())
        self.after = self._look()
        self._begin("timed")
        began = time.monotonic()
        self._end(self._start(self.command.words), "timed")
        self.seconds = time.monotonic() - began
        return True

    def kill(self) -> None:
        """Kill the command and, in some runs, its second run; then run it to its end."""
        self._begin()
        effect = self.random.choice(("KILL", "KILL", "KILL", "TERM", "INT"))
        self._kill(self.command.words, effect)
        self._hold(is_done=False)
        if self.random.random() < 0.5:
            self._kill(self.command.again or self.command.words, effect)
            self._hold(is_done=False)
        self._finish()

    def fail(self) -> None:
        """Make a system call of the command fail; then run the command to its end without faults."""
        self._begin()
        syscall = self.random.choice(sorted(ERRORS.keys() & self.points.keys()))
        fault = make_fault(self.random, syscall, self.random.randint(1, self.points[syscall]))
        child = self._start(self.command.words, hold=True)
        strace = Strace(child.pid, self.work / "trace", [], fault)
        child.go()
        try:
            code = self._end(child, f"{self.command.name} {fault}")
        finally:
            strace.wait()
        self.counts["runs"] += 1
        injected = [call for call in strace.calls() if call.is_injected]
        if not injected:
            self.counts["not hit"] += 1
        elif code:
            self.counts["failed"] += 1
        else:
            # A cache could not be written, or Python or the C library repeated the call.
            self.counts["succeeded all the same"] += 1
            if fault.effect != "EINTR":
                path = re.sub(r"[0-9a-f]{32}|[0-9]+", "N", injected[0].text.split(" = ")[0])
                path = re.sub(r".*/(log|other)\b", "", path)
                self.counts[f"{self.command.name}: {fault.syscall} {fault.effect} {path}"] += 1
        self._hold(is_done=False)
        self._finish()

    def _finish(self) -> None:
        """Run the command to its end, and check the logs; in some runs through a mount, too."""
        if self.random.random() < 0.3:
            self._mount()
        is_done = self.command.again is None
        child = self._start(self.command.again or self.command.words)
        output_path = child.output_path
        code = self._end(child, "finished")
        output = output_path.read_text()
        is_settled = self.command.settled and re.search(self.command.settled, output)
        if code != 0 and not is_settled:
            self._wrong(f"the last run ended with {code}: {output[-500:]}")
        self._hold(is_done=is_done)
        if self.random.random() < 0.3:
            self._mount()
            self._hold(is_done=is_done)

    def _begin(self, *told: str) -> None:
        shutil.rmtree(self.root, ignore_errors=True)
        shutil.copytree(self.work / "scene", self.root)
        self.told = list(told)

    def _start(self, words: Callable[[Path], Words], *, hold: bool = False) -> Child:
        first, *rest = words(self.root)
        if ":" in str(first):
            return self.spawner.call(str(first), *map(str, rest), hold=hold)
        return self.spawner.command(first, *rest, hold=hold)

    def _kill(self, words: Callable[[Path], Words], effect: str) -> None:
        """Run a command, and kill it at a random time or at a system call."""
        name = words(self.root)[0]
        if self.random.random() < 0.3:
            child = self._start(words)
            seconds = self.random.uniform(0, 0.75 * self.seconds)
            time.sleep(seconds)
            child.kill({"KILL": 9, "TERM": 15, "INT": 2}[effect])
            code = self._end(child, f"{name} {effect} after {seconds * 1000:.1f} ms")
        else:
            names = sorted(CHANGING & self.points.keys())
            if not names or self.random.random() < 0.15:
                names = sorted(self.points)
            syscall = self.random.choice(names)
            fault = Fault(syscall, effect, self.random.randint(1, self.points[syscall]))
            child = self._start(words, hold=True)
            strace = Strace(child.pid, self.work / "trace", [], fault)
            child.go()
            code = self._end(child, f"{name} {fault}")
            strace.wait()
        self.counts["kills"] += 1
        self.counts["finished before" if code in (0, 1) else "killed in the middle"] += 1

    def _end(self, child: Child, told: str) -> int:
        """Wait until a command ends, and return its exit code."""
        self.told.append(told)
        try:
            code = child.wait(END_SECONDS)
        except TimeoutError:
            stacks = child.dump_stacks()
            child.close()
            self._wrong(f"it does not end\n{stacks}")
        output = child.output
        child.close()
        # Before the command begins and after it ends, SIGINT has Python's own handler. The error of a library that
        # cannot be mapped is printed as it is.
        is_told = "KeyboardInterrupt" in output or "failed to map segment" in output
        if "Traceback" in output and not is_told:
            self._wrong(f"a traceback: {output.splitlines()[-1]}\n{output[-3000:]}")
        return code

    def _look(self) -> dict[str, oracle.Log]:
        try:
            return oracle.look(scenes.log_dirs(self.root))
        except oracle.Wrong as error:
            self._wrong(str(error))

    def _hold(self, *, is_done: bool) -> None:
        found = self._look()
        try:
            oracle.compare(found, self.before, self.after, is_done=is_done)
        except oracle.Wrong as error:
            self._wrong(str(error))

    def _mount(self) -> None:
        """Check that a mount shows the lines of a read-only store, or those after a commit that it finishes."""
        found = self._look()
        self.told.append("mounted")
        self.counts["mounts"] += 1
        with mounted_view(self.spawner, self.work / "mnt", scenes.log_dirs(self.root)) as shown:
            for name, log in found.items():
                known = [log]
                if self.command.name == "commit":
                    known.append(self.after[name])
                if shown(name) not in map(_lines_of, known):
                    self._wrong(f"{name}: the mount shows other lines")

    def _wrong(self, what: str) -> NoReturn:
        first, *rest = what.split("\n")
        raise oracle.Wrong("\n".join([f"{first} ({' > '.join(self.told)})", *rest]))
