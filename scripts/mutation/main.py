"""Mutants of the engine: `scripts/mutants` describes the commands."""

from __future__ import annotations

import argparse
import csv
import os
import random
import shutil
import subprocess
import sys
import time
from bisect import bisect_left
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, NamedTuple

import coverage

sys.path.insert(0, str(Path(__file__).parent))

from changes import Change, changes

if TYPE_CHECKING:
    from collections.abc import Sequence

ROOT = Path(__file__).resolve().parents[2]
STATE = ROOT / ".mutants"
DATA = STATE / "coverage"
DURATIONS = STATE / "durations.csv"
# The seed with which tests drew their cases when they were noted. Another seed draws cases of other names.
SEED = STATE / "seed"
ENGINE = ("logfs/log", "logfs/store", "logfs/format")
# Compiled loops are not traced.
LEFT_OUT = "logfs/format/kernels"
TESTS = ("tests/log", "tests/store", "tests/format")
# The tests of a line are run in these parts, by their usual time together in seconds, the likeliest first. Most
# mutants are killed by the first tests.
PARTS = (3.0, 40.0, 300.0)
# A test that a change makes slow kills its mutant after this many times the usual time, and 60 seconds.
SLOWER = 4
FLAGS = ("-q", "-x", "-p", "no:cacheprovider", "-p", "no:randomly", "--no-header", "--tb=no")


class Mutant(NamedTuple):
    """A change of a file, and the tests that run its line, in parts, the likeliest to notice the change first."""

    file: str
    change: Change
    parts: tuple[list[str], ...]

    def __str__(self) -> str:
        line = (ROOT / self.file).read_text().split("\n")[self.change.line - 1].strip()
        return f"{self.file}:{self.change.line}: {line}  ->  {self.change.text.strip()}"


def collect(tests: Sequence[str]) -> None:
    """Run tests of the engine, and note which test runs which line, and for how long."""
    STATE.mkdir(exist_ok=True)
    config = STATE / "coveragerc"
    config.write_text(f"[run]\nsource = {','.join(ENGINE)}\ndata_file = {DATA}\n")
    seed = os.environ.get("LOGFS_SEED", str(random.randrange(1_000_000)))
    SEED.write_text(seed)
    environment = {
        **os.environ,
        "LOGFS_MUTANTS_DURATIONS": str(DURATIONS),
        "LOGFS_SEED": seed,
    }
    DURATIONS.unlink(missing_ok=True)
    command = [sys.executable, "-m", "pytest", "-q", "-n", str(os.cpu_count()), "-p", "durations"]
    command += [f"--cov-config={config}", "--cov", "--cov-context=test", "--cov-report=", *tests]
    environment["PYTHONPATH"] = f"{Path(__file__).parent}:{os.environ['PYTHONPATH']}"
    subprocess.run(command, cwd=ROOT, env=environment, check=False)


def mutants_of_lines(most: float) -> list[Mutant]:
    """Return the mutants of all lines that tests run.

    A mutant has the likeliest of its tests, whose usual time together is at most `most` seconds.
    """
    data = coverage.CoverageData(str(DATA))
    data.read()
    # The name of a test with large parameters is long.
    csv.field_size_limit(1 << 20)
    with DURATIONS.open() as file:
        seconds = {test: float(each) for test, each in csv.reader(file)}
    found: list[Mutant] = []
    for path in sorted(path for folder in ENGINE for path in (ROOT / folder).rglob("*.py")):
        file = path.relative_to(ROOT).as_posix()
        if file.startswith(LEFT_OUT):
            continue
        by_line = {
            line: {each.partition("|")[0] for each in contexts} & seconds.keys()
            for line, contexts in data.contexts_by_lineno(str(path)).items()
        }
        lines_of = Counter(test for tests in by_line.values() for test in tests)
        for change in changes(path.read_text()):
            # First the tests that bear the module's name, then those that run many of its lines: a line that is run
            # at each opening of a store has a thousand tests, of which few look at what it does.
            tests = sorted(
                by_line.get(change.line, ()),
                key=lambda test: (
                    f"test_{path.stem}" not in test,
                    -4 * lines_of[test] // max(lines_of.values()),
                    seconds[test],
                ),
            )
            parts: list[list[str]] = [[] for _ in PARTS]
            total = 0.0
            for test in tests:
                if total + seconds[test] <= min(most, PARTS[-1]):
                    total += seconds[test]
                    parts[bisect_left(PARTS, total)].append(test)
            if tests:
                found.append(Mutant(file, change, tuple(parts)))
    print(f"{len(found)} changes of lines that tests run")
    return found


def named(mutants: Sequence[Mutant], known: Sequence[str]) -> list[Mutant]:
    """Return those of `mutants` that `known` has as text."""
    files = {line.partition(":")[0] for line in known}
    return [each for each in mutants if each.file in files and str(each) in known]


def run(mutant: Mutant, clone: Path, also: list[str]) -> str:
    """Run the tests of a mutant in a clone, those of `also` first; return "killed", "timeout" or "survived"."""
    path = clone / mutant.file
    source = path.read_text()
    path.write_text(mutant.change.apply(source))
    environment = {
        **os.environ,
        "PYTHONPATH": str(clone),
        "PYTHONDONTWRITEBYTECODE": "1",
        "LOGFS_SEED": SEED.read_text(),
    }
    try:
        for limit, tests in [(PARTS[-1], also), *zip(PARTS, mutant.parts, strict=True)]:
            if not tests:
                continue
            done = subprocess.run(
                [sys.executable, "-m", "pytest", *FLAGS, *tests],
                cwd=clone,
                env=environment,
                capture_output=True,
                timeout=60 + SLOWER * limit,
                check=False,
            )
            if done.returncode > 1:
                # The mutant cannot be imported, or the tests cannot be run at all.
                path.write_text(source)
                subprocess.run(done.args, cwd=clone, env=environment, check=True)
            if done.returncode:
                return "killed"
        return "survived"
    except subprocess.TimeoutExpired:
        return "timeout"
    finally:
        path.write_text(source)


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/mutants")
    parser.add_argument("--collect", action="store_true", help="note which tests run which line")
    parser.add_argument(
        "--tests",
        nargs="+",
        default=TESTS,
        metavar="FOLDER",
        help="with --collect: whose tests run",
    )
    parser.add_argument("--count", type=int, default=300, help="how many mutants (300)")
    parser.add_argument("--seed", type=int, default=1, help="which mutants (1)")
    parser.add_argument("--again", action="store_true", help="only those that survived before")
    parser.add_argument(
        "--also", nargs="+", default=[], metavar="TEST", help="run these tests of each mutant, too"
    )
    parser.add_argument(
        "--seconds", type=float, default=PARTS[-1], help="of the tests of each mutant (300)"
    )
    parser.add_argument("--minutes", type=float, default=1e6, help="stop after this time")
    arguments = parser.parse_args()
    if arguments.collect:
        collect(arguments.tests)
        return 0
    survivors = STATE / f"survivors.{arguments.seed}"
    mutants = mutants_of_lines(arguments.seconds)
    if arguments.again:
        mutants = named(mutants, survivors.read_text().splitlines())
    else:
        drawn = random.Random(arguments.seed)
        mutants = drawn.sample(mutants, min(arguments.count, len(mutants)))
    clones: SimpleQueue[Path] = SimpleQueue()
    workers = os.cpu_count() or 1
    for number in range(workers):
        clone = STATE / f"clone{number}"
        shutil.rmtree(clone, ignore_errors=True)
        clone.mkdir()
        # With the compiled kernels. Byte code is never of a mutant, because no process here writes any.
        shutil.copytree(ROOT / "logfs", clone / "logfs")
        for path in ROOT.iterdir():
            if path.name not in ("logfs", STATE.name, ".git"):
                (clone / path.name).symlink_to(path)
        clones.put(clone)
    until = time.monotonic() + arguments.minutes * 60
    counts: Counter[str] = Counter()

    def each(mutant: Mutant) -> None:
        if time.monotonic() > until:
            return
        clone = clones.get()
        try:
            outcome = run(mutant, clone, arguments.also)
        finally:
            clones.put(clone)
        counts[outcome] += 1
        if outcome == "survived":
            with survivors.open("a") as file:
                file.write(f"{mutant}\n")
            print(f"survived: {mutant}", flush=True)

    survivors.unlink(missing_ok=True)
    with ThreadPoolExecutor(workers) as pool:
        list(pool.map(each, mutants))
    total = counts.total()
    killed = total - counts["survived"]
    print(
        f"seed {arguments.seed}: {total} mutants, {killed} killed ({killed / max(total, 1):.1%}), {dict(counts)}"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
