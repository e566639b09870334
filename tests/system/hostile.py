"""The campaign of hostile files. Mutations run in groups, each group in a process of its own.

    python -m tests.system.hostile --mutations 1000000 --seed 1     runs all, and prints the findings
    python -m tests.system.hostile --seed 1 --number 4711           repeats one, with a traceback

The parent process notices a process that crashes, hangs or uses too much memory. It knows which mutation was being
tested, and continues the group in another process.
"""

from __future__ import annotations

import argparse
import copy
import faulthandler
import json
import mmap
import os
import pickle
import random
import resource
import shutil
import struct
import subprocess
import sys
import tempfile
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

HANG_SECONDS = 20
MOST_MEMORY = 1_500_000_000
_BATCH = 2000
_ADDRESS_SPACE = 3 << 30
_PROGRESS = struct.Struct("<q")
_RENAMED_SHARE = 0.06
_LIVE_SHARE = 0.1


@dataclass
class Finding:
    """A kind of error, the number of mutations that led to it, and the first of them."""

    number: int
    words: str
    details: str
    count: int = 1


@dataclass
class Outcome:
    """The findings of a campaign, by a key that tells one from another."""

    seed: int
    mutations: int = 0
    seconds: float = 0
    findings: dict[str, Finding] = field(default_factory=dict)

    def add(self, key: str, number: int, words: str, details: str) -> None:
        known = self.findings.get(key)
        if known is None:
            self.findings[key] = Finding(number, words, details)
        else:
            known.count += 1
            if number < known.number:
                known.number, known.words, known.details = number, words, details

    def __str__(self) -> str:
        lines = [
            f"hostile files: {self.mutations} mutations, seed {self.seed}, {self.seconds:.0f} s, "
            f"{len(self.findings)} findings"
        ]
        for key, found in sorted(self.findings.items(), key=lambda each: -each[1].count):
            lines.append(
                f"{found.count} x {key}; first: --seed {self.seed} --number {found.number} "
                f"({found.words})\n{found.details}"
            )
        return "\n".join(lines)


# One mutation.


class Worker:
    """Makes mutations and tests all interfaces with them, in this process."""

    def __init__(self, templates: list[object], seed: int, work: Path) -> None:
        self.templates = templates
        self.seed = seed
        self.work = work
        self.work.mkdir(parents=True, exist_ok=True)
        # A lock file that another process holds. Linked into a log directory, it makes the directory look in use.
        self.held = work / "held.lock"
        self.held.touch()
        # A record lock is not inherited, so another process must take it.
        self.holder = subprocess.Popen(
            [sys.executable, "-c", _HOLD, str(self.held)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert self.holder.stdout is not None
        self.holder.stdout.readline()

    def close(self) -> None:
        assert self.holder.stdin is not None
        self.holder.stdin.close()
        self.holder.wait()
        shutil.rmtree(self.work, ignore_errors=True)

    def run(self, number: int) -> tuple[str, dict[str, str]]:
        """Run a mutation. Return its description, and the findings."""
        from tests.system import hostile_mutations
        from tests.system.hostile_doors import Doors, Findings

        chance = random.Random(f"{self.seed} {number}")
        # Copied, because the template also records what is appended.
        template = chance.choice(self.templates)
        template = copy.deepcopy(template)
        files = dict(template.files)
        is_clean, live = chance.random() < 0.5, chance.random() < _LIVE_SHARE
        if not is_clean:
            files.pop(".kafka_cleanshutdown", None)
        if chance.random() < 0.3:
            drop = chance.choice((".textindex", ".timeindex", ".snapshot", "index"))
            files = {name: data for name, data in files.items() if not name.endswith(drop)}
        renames = chance.random() < _RENAMED_SHARE
        words = "" if renames else hostile_mutations.mutate(chance, files).words
        root = self.work / "log"
        outside = self.work / hostile_mutations.OUTSIDE
        _clear(root)
        outside.write_bytes(b"outside")
        _write(root, files)
        if renames:
            device = os.geteuid() == 0
            words = hostile_mutations.rename(chance, root, files, device=device).words
        if live and not (root / ".lock").exists() and not (root / ".lock").is_symlink():
            os.link(self.held, root / ".lock")
        words = f"{template.name}, {'clean' if is_clean else 'not clean'}{', live' * live}: {words}"
        findings = Findings()
        Doors(root, template, chance, findings).go_through(live=live)
        if outside.read_bytes() != b"outside":
            findings.add("wrote outside of the log directory", words)
        return words, findings.found


_HOLD = """
import fcntl, sys
file = open(sys.argv[1], "r+b")
fcntl.lockf(file, fcntl.LOCK_EX)
print("held", flush=True)
sys.stdin.read()
"""


def _write(root: Path, files: dict[str, bytes]) -> None:
    root.mkdir()
    made = set()
    for name, data in files.items():
        directory = name.rpartition("/")[0]
        if directory and directory not in made:
            (root / directory).mkdir()
            made.add(directory)
        with open(root / name, "wb") as file:
            file.write(data)


def _clear(root: Path) -> None:
    shutil.rmtree(root, ignore_errors=True)


# A group of mutations, in a process of its own.


def work(arguments: argparse.Namespace) -> None:
    """Run a group. Print each finding on standard output, and write the current number to the progress file."""
    # Wrong results that numpy would only warn of must be seen.
    warnings.simplefilter("ignore")
    warnings.simplefilter("error", RuntimeWarning)
    import logging

    from logfs.format import kernel_warmup
    from logfs.log.segment import text_index_cache

    logging.lastResort = None
    kernel_warmup.warm_up()
    text_index_cache.SMALLEST_BYTES = 0
    templates = pickle.loads(Path(arguments.corpus).read_bytes())
    size = _virtual_bytes() + _ADDRESS_SPACE
    resource.setrlimit(resource.RLIMIT_AS, (size, size))
    with open(arguments.progress, "r+b") as file:
        progress = mmap.mmap(file.fileno(), _PROGRESS.size)
    worker = Worker(templates, arguments.seed, Path(arguments.work))
    os.environ["XDG_CACHE_HOME"] = str(worker.work / "cache")
    try:
        for number in range(arguments.first, arguments.last):
            _PROGRESS.pack_into(progress, 0, number)
            faulthandler.dump_traceback_later(HANG_SECONDS, exit=True)
            words, found = worker.run(number)
            for key, details in found.items():
                print(json.dumps([number, key, words, details]), flush=True)
            peak = _peak_bytes()
            if peak > MOST_MEMORY:
                print(json.dumps([number, "too much memory", words, f"{peak} bytes"]), flush=True)
                # The peak of this process cannot go down, so the next mutation runs in another process.
                _PROGRESS.pack_into(progress, 0, number + 1)
                os._exit(77)
            if number % 500 == 0:
                _clear(worker.work / "cache")
        faulthandler.cancel_dump_traceback_later()
        _PROGRESS.pack_into(progress, 0, arguments.last)
    finally:
        worker.close()


def _peak_bytes() -> int:
    """Return the most memory that this process has had. `ru_maxrss` counts that of the process that started it."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) * 1024


def _virtual_bytes() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmSize:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no VmSize")


# The whole campaign.


def campaign(mutations: int, seed: int, *, jobs: int = 1, first: int = 0) -> Outcome:
    """Run a campaign. The same seed makes the same mutations."""
    from tests.system.hostile_corpus import corpus

    began = time.monotonic()
    outcome = Outcome(seed)
    shm = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=shm if shm.is_dir() else None, prefix="hostile-") as base:
        path = Path(base, "corpus")
        path.write_bytes(pickle.dumps(corpus()))
        batches = [
            (start, min(start + _BATCH, first + mutations))
            for start in range(first, first + mutations, _BATCH)
        ]
        with ThreadPoolExecutor(jobs) as pool:
            for _ in pool.map(lambda each: _run_batch(outcome, Path(base), path, *each), batches):
                pass
    outcome.seconds = time.monotonic() - began
    return outcome


def _run_batch(outcome: Outcome, base: Path, corpus: Path, first: int, last: int) -> None:
    """Run all mutations of a group, in as many processes as necessary."""
    progress = base / f"progress-{first}"
    retried: set[int] = set()
    at = first
    while at < last:
        progress.write_bytes(_PROGRESS.pack(at))
        done = subprocess.run(
            [
                *(sys.executable, "-m", "tests.system.hostile", "--work", str(base / f"w{first}")),
                *("--seed", str(outcome.seed), "--corpus", str(corpus)),
                *("--progress", str(progress), "--first", str(at), "--last", str(last)),
            ],
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            cwd=Path(__file__).parent.parent.parent,
        )
        reached = _PROGRESS.unpack(progress.read_bytes())[0]
        for line in done.stdout.splitlines():
            number, key, words, details = json.loads(line)
            outcome.add(key, number, words, details)
        shutil.rmtree(base / f"w{first}", ignore_errors=True)
        if done.returncode not in (0, 77):
            is_hang = "Timeout (" in done.stderr
            if is_hang and reached not in retried:
                # The machine may have been busy, or kernels were being compiled: try once more, from this mutation
                # on.
                retried.add(reached)
            else:
                what = "hang" if is_hang else f"ended with {done.returncode}"
                outcome.add(what, reached, "the process is gone", done.stderr[-3000:])
                reached += 1
        outcome.mutations += reached - at
        at = reached


def main() -> int:
    """Run a campaign, or part of one."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--mutations", type=int, default=2000)
    parser.add_argument("--start", type=int, default=0, help="the number of the first mutation")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--number", type=int, help="this one again, in this process")
    parser.add_argument("--keep", type=Path, help="where its directory is to be left")
    for name in ("corpus", "progress", "work"):
        parser.add_argument(f"--{name}")
    for name in ("first", "last"):
        parser.add_argument(f"--{name}", type=int)
    arguments = parser.parse_args()
    if arguments.corpus is not None:
        work(arguments)
        return 0
    if arguments.number is not None:
        return _again(arguments)
    outcome = campaign(
        arguments.mutations, arguments.seed, jobs=arguments.jobs, first=arguments.start
    )
    print(outcome)
    return 1 if outcome.findings else 0


def _again(arguments: argparse.Namespace) -> int:
    from logfs.log.segment import text_index_cache
    from tests.system.hostile_corpus import corpus

    warnings.simplefilter("error", RuntimeWarning)
    text_index_cache.SMALLEST_BYTES = 0
    faulthandler.enable()
    templates = corpus()
    with tempfile.TemporaryDirectory() as directory:
        os.environ["XDG_CACHE_HOME"] = f"{directory}/cache"
        worker = Worker(templates, arguments.seed, Path(directory, "work"))
        if arguments.keep is not None:
            worker.close()
            worker = Worker(templates, arguments.seed, arguments.keep)
        words, found = worker.run(arguments.number)
        print(words)
        for key, details in found.items():
            print(f"\n{key}\n{details}")
        if arguments.keep is None:
            worker.close()
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
