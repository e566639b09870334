"""The harness of the power-cut campaign: power cuts of a real file system under a real mount.

A chain is the history of one fresh disk image: a live mount under load whose power is cut, then one or two more cuts,
during or after recovery, a clean unmount, `reindex`, a compaction, a move or retention, and at last the verification
(`tests.system.power_oracle`). The shutdown ioctl of XFS and ext4 cuts the power: from then on nothing reaches the
image, and data that was not yet durable is lost.

Data that is known to be durable is recorded outside the image (`tests.system.power_load`).
"""

from __future__ import annotations

import fcntl
import json
import os
import random
import re
import shutil
import signal
import struct
import subprocess
import sys
import time
import traceback
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from logfs.store.directory.mount_table import mounts
from tests.support.mounts import is_mounted
from tests.system.launcher import ROOT, Executed, Launcher, Process, wait_until
from tests.system.power_load import Profile

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

# XFS_IOC_GOINGDOWN and EXT4_IOC_SHUTDOWN, _IOR('X', 125, __u32), without a flush of the journal.
_SHUTDOWN = 0x8004587D
_NOLOGFLUSH = struct.pack("=I", 2)
# mkfs.xfs needs at least 300 MB. The file is sparse.
_IMAGE_BYTES = 320 << 20
_END_SECONDS = 30.0
_EXT4_OPTIONS = ("", "commit=1", "commit=1000", "data=writeback")
# One in `_EXECUTED_SHARE` live mounts is started as a user starts it, the others by fork (`tests.system.launcher`).
_EXECUTED_SHARE = 8
_ONE_CALL_SHARE = 0.15
# The parts in which problems of one class may differ.
_NUMBERS = re.compile(
    r"[0-9a-f]{32}|\d+|(?<=[ /])[ab](?=/)|'.*'"
    r"|\b(plain|timed|sized|keyed|staged|trimmed|__consumer_offsets)\b"
)


class Image:
    """A fresh file system in an image file. Its loop device is always detached when the mount ends."""

    def __init__(self, directory: Path, kind: str, options: str = "") -> None:
        """Make the file system and mount it at `directory`/disk. `kind` is xfs or ext4."""
        self.kind = kind
        self.mountpoint = directory / "disk"
        self._file = directory / "image"
        self._options = options
        self._is_mounted = False
        with self._file.open("wb") as file:
            file.truncate(_IMAGE_BYTES)
        if kind == "xfs":
            _run("mkfs.xfs", "-q", "-K", self._file)
        else:
            _run("mkfs.ext4", "-q", "-F", "-E", "nodiscard", self._file)
        self.mountpoint.mkdir()
        try:
            self._mount()
        except BaseException:
            self.close()
            raise

    def cut(self) -> float:
        """Cut the power, and return the time just before the cut, of `time.monotonic`."""
        fd = os.open(self.mountpoint, os.O_RDONLY | os.O_DIRECTORY)
        try:
            now = time.monotonic()
            fcntl.ioctl(fd, _SHUTDOWN, _NOLOGFLUSH)
            return now
        finally:
            os.close(fd)

    def restore(self) -> None:
        """Unmount and mount again, which replays the journal. No process may still use the file system."""
        self._unmount()
        self._mount()

    def close(self) -> None:
        """Unmount, and remove the image."""
        try:
            if self._is_mounted:
                self._unmount()
        finally:
            self._file.unlink(missing_ok=True)

    def _mount(self) -> None:
        device = _run("losetup", "-f", "--show", self._file).strip()
        options = ["-o", self._options] if self._options else []
        try:
            _run("mount", "-t", self.kind, *options, device, self.mountpoint)
            self._is_mounted = True
        finally:
            # The kernel detaches the device when the file system is unmounted.
            _run("losetup", "-d", device)

    def _unmount(self) -> None:
        end = time.monotonic() + _END_SECONDS
        while True:
            done = subprocess.run(
                ["umount", str(self.mountpoint)], check=False, capture_output=True, text=True
            )
            if done.returncode == 0:
                break
            if time.monotonic() > end:
                _run("umount", "-l", self.mountpoint)
                self._is_mounted = False
                raise TimeoutError(f"the image stays busy: {done.stderr.strip()}")
            time.sleep(0.01)
        self._is_mounted = False
        # A mount before the device is detached would be of the file system that was shut down.
        wait_until(
            lambda: not _run("losetup", "-j", self._file),
            _END_SECONDS,
            f"the loop device of {self._file} to be detached",
        )


def _run(*command: str | Path) -> str:
    done = subprocess.run(list(map(str, command)), check=False, capture_output=True, timeout=120)
    if done.returncode:
        raise OSError(f"{' '.join(map(str, command))}: {done.stderr.decode().strip()}")
    return str(done.stdout.decode())


@dataclass
class Totals:
    """The cuts, counts and problems of a campaign."""

    cuts: Counter[str] = field(default_factory=Counter)
    chains: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)

    def add(self, other: Totals) -> None:
        """Add the totals of one chain."""
        self.cuts += other.cuts
        self.chains += other.chains
        self.counts += other.counts
        self.problems += other.problems

    def classes(self) -> Iterator[str]:
        """Yield one line for each class of problems: the number of problems and chains, and the first problem.

        Problems that differ only in numbers and names form a class.
        """
        found: dict[str, list[str]] = {}
        for problem in self.problems:
            _, _, text = problem.partition("] ")
            found.setdefault(_NUMBERS.sub("#", text.partition("\n")[0]), []).append(problem)
        for same in sorted(found.values(), key=len, reverse=True):
            chains = {problem.partition(":")[0] for problem in same}
            yield f"{len(same)} times in {len(chains)} chains: {same[0]}"

    def lines(self) -> Iterator[str]:
        """Yield the lines of the report."""
        kinds = ", ".join(f"{kind} {count}" for kind, count in sorted(self.cuts.items()))
        yield f"{self.cuts.total()} cuts in {self.chains} chains ({kinds})"
        yield ", ".join(f"{name} {count}" for name, count in sorted(self.counts.items()))
        yield f"{len(self.problems)} problems"


class Pace:
    """The delays before the cuts: about half of the cuts come before an operation ends, on any machine."""

    def __init__(self) -> None:
        self._seconds: dict[str, float] = {}

    def delay(self, what: str, numbers: random.Random) -> float:
        """Return how long to wait, in seconds. All moments from the start on are equally likely."""
        return numbers.random() * self._seconds.get(what, 0.2)

    def note(self, what: str, *, had_ended: bool) -> None:
        """Adjust the time by whether a cut came too late."""
        seconds = self._seconds.get(what, 0.2) * (0.8 if had_ended else 1.25)
        self._seconds[what] = min(max(seconds, 0.02), 5.0)


class Chain:
    """One image from its creation to the verification. A seed determines all choices."""

    def __init__(
        self, directory: Path, launcher: Launcher, pace: Pace, kind: str, seed: str
    ) -> None:
        """Make the image. `directory` is empty, and keeps everything but the image."""
        self.totals = Totals(chains=1)
        self._pace = pace
        self._directory = directory
        self._launcher = launcher
        self._seed = seed
        self._random = random.Random(seed)
        self._history: list[str] = []
        self._round = 0
        self._acks = directory / "acks"
        self._acks.mkdir()
        self._mountpoint = directory / "mnt"
        self._mountpoint.mkdir()
        self._out = directory / "out"
        self._errors = directory / "errors"
        self._errors_before = 0
        self._processes: list[Process] = []
        options = self._random.choice(_EXT4_OPTIONS) if kind == "ext4" else ""
        self._image = Image(directory, kind, options)
        count = self._random.choice((1, 2, 2, 2))
        self._log_dirs = [self._image.mountpoint / name for name in ("a", "b")[:count]]
        self._profile = Profile.choose(self._random)

    def run(self) -> None:
        """Run all stages, verify, and clean up. The problems are in `totals`."""
        try:
            self._live()
            for name in self._next_stages():
                _STAGES[name](self)
            self._verify()
        except (OSError, AssertionError) as error:
            self._problem(f"{type(error).__name__}: {error}")
        except Exception:
            self._problem(traceback.format_exc())
        finally:
            self.close()

    def _next_stages(self) -> list[str]:
        """Return the names of the stages after the first cut."""
        chosen = os.environ.get("LOGFS_POWER_STAGES")
        if not chosen and self._random.random() < _ONE_CALL_SHARE:
            return ["one call"] * 3
        names = chosen.split(",") if chosen else list(_STAGES)
        return self._random.choices(names, k=self._random.choice((1, 1, 2)))

    def close(self) -> None:
        """End every process of the chain, unmount and detach, whatever happened before."""
        try:
            for process in self._processes:
                process.kill()
            self._clear_mount()
            self._image.close()
        except OSError as error:
            self._problem(f"cannot clean up: {error}")

    # Stages. Each of them cuts the power, and leaves the image mounted again.

    def _live(self) -> None:
        """Run load on a live mount, and cut at a random time."""
        mount = self._mount(prepare=self._round == 0)
        load = self._load()
        self._wait_for_acks(load)
        time.sleep(self._random.choice((0.3, 1.0, 2.0)) * self._random.random())
        assert mount.poll() is None, "the daemon ended before the cut"
        assert load.poll() is None, "the load ended before the cut"
        self._cut("live", mount, load)

    def _recovering(self) -> None:
        """Cut while a mount or `logfs recover` recovers, or after `logfs recover`, which closes cleanly."""
        if self._random.random() < 0.5:
            self._during_or_after("recover", *self._log_dirs)
            return
        mount = self._start_mount()
        time.sleep(self._pace.delay("mount", self._random))
        is_ready = self._is_ready()
        self._pace.note("mount", had_ended=is_ready)
        self._cut("after mount" if is_ready else "during mount", mount)

    def _ready(self) -> None:
        """Cut as soon as a mount is ready."""
        self._cut("ready", self._mount())

    def _recovered(self) -> None:
        """Cut some time after a mount has recovered, with nothing written since."""
        mount = self._mount()
        time.sleep(2.5 * self._random.random() ** 2)
        self._cut("recovered", mount)

    def _unmounted(self) -> None:
        """Recover, in some runs write for a while, unmount cleanly, and cut at once."""
        mount = self._mount()
        if self._random.random() < 0.5:
            load = self._load(seconds=0.6 * self._random.random())
            load.wait(_END_SECONDS)
        if self._random.random() < 0.5:
            self._command("umount", self._mountpoint)
        else:
            mount.signal(signal.SIGTERM)
        code = mount.wait(_END_SECONDS)
        assert code == 0, f"the daemon ended with {code} at a clean unmount"
        self._cut("unmounted")

    def _reindex(self) -> None:
        """Cut during or after `logfs reindex`, in a directory that was closed cleanly or not."""
        if self._random.random() < 0.5:
            self._command("recover", *self._log_dirs)
        self._during_or_after("reindex", *self._log_dirs, self._partition())

    def _compact(self) -> None:
        """Cut during or after `logfs compact`."""
        roll = ["--roll"] if self._random.random() < 0.7 else []
        self._during_or_after("compact", *roll, *self._log_dirs, "keyed-0")

    def _move(self) -> None:
        """Cut during or after `logfs move`."""
        if len(self._log_dirs) < 2:
            self._compact()
            return
        name = self._partition()
        there = [path for path in self._log_dirs if not (path / name).is_dir()]
        assert len(there) == 1, f"{name} is in {2 - len(there)} log directories before the move"
        self._during_or_after("move", *self._log_dirs, name, "--to", there[0])

    def _retain(self) -> None:
        """Cut during or after `logfs retain`."""
        self._during_or_after("retain", *self._log_dirs)

    def _one_call(self) -> None:
        """Make one call that is durable when it returns, and cut at once, so that no other fsync contributes."""
        mount = self._mount()
        load = self._load(once=True)
        load.wait(_END_SECONDS)
        self._cut("after one call", mount, load)

    def _during_or_after(self, *words: str | Path) -> None:
        process, what = self._start(*words), str(words[0])
        if self._random.random() < 0.7:
            time.sleep(self._pace.delay(what, self._random))
            self._pace.note(what, had_ended=process.poll() is not None)
        else:
            self._end_well(process, words)
        self._cut(f"{'during' if process.poll() is None else 'after'} {what}", process)

    # Mounts and commands.

    def _mount(self, *, prepare: bool = False) -> Process:
        """Mount, and wait until the mount answers."""
        process = self._start_mount()
        wait_until(
            lambda: self._is_ready() or process.poll() is not None,
            60,
            "the mount to be ready",
        )
        assert process.poll() is None, f"no mount:\n{self._last_errors()}"
        status = json.loads((self._mountpoint / ".logfs/status.json").read_bytes())
        assert status["pid"] == process.pid, "another process serves the mount"
        assert not status["offline"], f"offline after a cut: {status['offline']}"
        if prepare:
            self._profile.prepare(self._mountpoint)
        return process

    def _is_ready(self) -> bool:
        return b"ready\n" in self._out.read_bytes()

    def _start_mount(self) -> Process:
        self._clear_mount()
        self._out.unlink(missing_ok=True)
        self._out.touch()
        words = ("mount", "-f", *map(str, self._log_dirs), str(self._mountpoint))
        if self._random.randrange(_EXECUTED_SHARE):
            return self._start(*words)
        process = Executed(*words, out=self._out, errors=self._errors)
        self._processes.append(process)
        return process

    def _start(self, *words: str | Path) -> Process:
        self._errors_before = self._errors.stat().st_size if self._errors.exists() else 0
        process = self._launcher.start(
            "logfs.cli:main", [*map(str, words)], out=self._out, errors=self._errors
        )
        self._processes.append(process)
        return process

    def _command(self, *words: str | Path) -> None:
        self._end_well(self._start(*words), words)

    def _end_well(self, process: Process, words: Sequence[str | Path]) -> None:
        code = process.wait(_END_SECONDS)
        errors = self._last_errors()
        # On a slow machine a mount may still recover; its end is as good as that of a finished recovery.
        if code and not (words[0] == "umount" and "before all of its partitions" in errors):
            self._problem(f"logfs {words[0]} ended with {code}:\n{errors}")

    def _load(self, seconds: float | None = None, *, once: bool = False) -> Process:
        """Start the workers of another round. They end after `seconds`, if given, or with `once` after one action."""
        self._round += 1
        spec = {
            "mountpoint": str(self._mountpoint),
            "log_dirs": [*map(str, self._log_dirs)],
            "acks": str(self._acks),
            "round": self._round,
            "seed": self._random.randrange(2**32),
            "seconds": seconds,
            "once": once,
        }
        load = self._launcher.start(
            "tests.system.power_load:run", spec, out=self._out, errors=self._errors
        )
        self._processes.append(load)
        return load

    def _wait_for_acks(self, load: Process) -> None:
        """Wait until something of this round is durable."""
        names = f"{self._round}-*"

        def acknowledged() -> bool:
            assert load.poll() is None, f"the load ended:\n{self._last_errors()}"
            return any(b"\ns " in path.read_bytes() for path in self._acks.glob(names))

        wait_until(acknowledged, 60, "the first acknowledgement")

    def _partition(self) -> str:
        return self._random.choice(self._profile.partitions)

    # The cut.

    def _cut(self, what: str, mount: Process | None = None, load: Process | None = None) -> None:
        """Cut the power, kill the running processes, and mount the image again."""
        self.totals.cuts[what] += 1
        self._history.append(what)
        when = self._image.cut()
        if self._random.random() < 0.5:
            # Writes after the cut fail. Whatever the daemon does about that must not matter.
            time.sleep(0.03 * self._random.random())
        if mount is not None:
            mount.kill()
        if load is not None:
            self._end_load(load, when)
        self._clear_mount()
        with (self._acks / "cuts").open("a") as file:
            file.write(f"{when!r} {self._round} {what}\n")
        self._image.restore()

    def _end_load(self, load: Process, when: float) -> None:
        """Wait until the writers end by themselves on the dead mount. No call may have failed before the cut."""
        try:
            load.wait(_END_SECONDS)
        except TimeoutError:
            os.killpg(load.pid, signal.SIGKILL)
            load.kill()
            self._problem("a writer hangs on a dead mount")
        for path in sorted(self._acks.glob(f"{self._round}-*")):
            for line in path.read_text().splitlines():
                if line.startswith("e ") and float(line.split(" ", 2)[1]) < when:
                    self._problem(f"before the cut, {path.name}: {line.split(' ', 2)[2]}")

    def _clear_mount(self) -> None:
        while is_mounted(self._mountpoint):
            _run("umount", "-l", self._mountpoint)

    # Verification.

    def _verify(self) -> None:
        keep = os.environ.get("LOGFS_POWER_KEEP")
        result = self._directory / "result"
        spec = {
            "log_dirs": [*map(str, self._log_dirs)],
            "acks": str(self._acks),
            "profile": self._profile.to_json(),
            "result": str(result),
            "copy": str(self._directory / "copy") if keep else None,
        }
        process = self._launcher.start(
            "tests.system.power_oracle:run", spec, out=self._out, errors=self._errors
        )
        self._processes.append(process)
        code = process.wait(300)
        if code:
            self._problem(f"the verification ended with {code}:\n{self._last_errors()}")
        else:
            found: dict[str, Any] = json.loads(result.read_bytes())
            self.totals.counts.update(found["counts"])
            for problem in found["problems"]:
                self._problem(problem)
        if keep and self.totals.problems:
            self._keep(Path(keep) / self._seed.replace("/", "-"))

    def _keep(self, target: Path) -> None:
        """Copy the files that a diagnosis needs."""
        for path in (self._directory / "copy", self._acks):
            if path.exists():
                shutil.copytree(path, target / path.name, dirs_exist_ok=True)
        shutil.copy(self._errors, target / "errors")
        (target / "problems").write_text("\n".join([*self._history, *self.totals.problems]))

    def _problem(self, text: str) -> None:
        self.totals.problems.append(f"[{self._seed}: {' > '.join(self._history)}] {text}")

    def _last_errors(self) -> str:
        if not self._errors.exists():
            return ""
        text = self._errors.read_bytes()[self._errors_before :]
        return text[-2000:].decode(errors="replace")


_STAGES: dict[str, Callable[[Chain], None]] = {
    "live": Chain._live,
    "recovering": Chain._recovering,
    "ready": Chain._ready,
    "recovered": Chain._recovered,
    "unmounted": Chain._unmounted,
    "one call": Chain._one_call,
    "reindex": Chain._reindex,
    "compact": Chain._compact,
    "move": Chain._move,
    "retain": Chain._retain,
}


def campaign(directory: Path, kind: str, cuts: int, seed: str, mutant: str = "") -> Totals:
    """Run chains until `cuts` cuts were made. With the seed of one chain, `SEED/KIND/NUMBER`, run that chain only.

    With a seeded bug, `mutant`, the campaign ends at the first problem.

    The campaign runs in a process with its own mount namespace: no other process can hold a copy of a mount, and
    nothing stays mounted or attached, however the process ends.
    """
    spec = {"directory": str(directory), "kind": kind, "cuts": cuts, "seed": seed, "mutant": mutant}
    words = ["unshare", "--mount", "--propagation", "private", sys.executable, "-m", __name__]
    with subprocess.Popen([*words, json.dumps(spec)], cwd=ROOT) as process:
        try:
            code = process.wait()
        except BaseException:
            process.kill()
            raise
    result = directory / f"{kind}.totals"
    if code or not result.exists():
        raise RuntimeError(f"the campaign on {kind} ended with {code}")
    found = json.loads(result.read_bytes())
    found |= {name: Counter(found[name]) for name in ("cuts", "counts")}
    return Totals(**found)


def _campaign(directory: Path, kind: str, cuts: int, seed: str, mutant: str) -> Totals:
    totals = Totals()
    launcher = Launcher(directory / "launcher.log", mutant)
    pace = Pace()
    number = 0
    try:
        while totals.cuts.total() < cuts:
            chain_seed = seed if "/" in seed else f"{seed}/{kind}/{number}"
            where = directory / f"{kind}-{number}"
            where.mkdir()
            chain = Chain(where, launcher, pace, kind, chain_seed)
            chain.run()
            totals.add(chain.totals)
            for problem in chain.totals.problems:
                print(problem, flush=True)
            shutil.rmtree(where, ignore_errors=True)
            number += 1
            if number % 50 == 0:
                done = f"{totals.cuts.total()} cuts, {len(totals.problems)} problems"
                print(f"{kind}: {done}", flush=True)
            if "/" in seed or (mutant and totals.problems):
                break
    finally:
        launcher.close()
    return totals


def _leave_other_mounts() -> None:
    """Unmount, in this namespace only, the mounts of other processes: a copy here would keep them busy."""
    for mount in mounts():
        if mount.kind.startswith("fuse") or mount.source.startswith("/dev/loop"):
            subprocess.run(["umount", "-l", mount.mountpoint], check=False, capture_output=True)


def _main() -> None:
    spec = json.loads(sys.argv[1])
    _leave_other_mounts()
    directory = Path(spec["directory"])
    totals = _campaign(directory, *(spec[key] for key in ("kind", "cuts", "seed", "mutant")))
    (directory / f"{spec['kind']}.totals").write_text(json.dumps(vars(totals)))


if __name__ == "__main__":
    _main()
