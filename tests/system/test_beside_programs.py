"""What reads a log directory beside programs that open, change and close it: no false alarm, and no true silence."""

from __future__ import annotations

import os
import random
from collections import Counter
from typing import TYPE_CHECKING

from logfs.cli import main
from logfs.report.contents import read_report
from logfs.store.observe.check import Finding, Severity, check
from tests.support.busy_programs import LOGS, busy_programs, make_logs
from tests.support.examples import seed_of

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    import pytest

SEED = seed_of("LOGFS_BESIDE_SEED")
ROUNDS = int(os.environ.get("LOGFS_BESIDE_ROUNDS", "40"))


def test_what_reads_beside_programs_finds_the_damage_and_nothing_else(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """`check`, `describe` and `report`, in random order, beside three programs that take turns."""
    path = tmp_path / "log"
    index = make_logs(path)
    chance = random.Random(SEED)
    done: Counter[str] = Counter()

    def the_damage(findings: Iterable[Finding]) -> None:
        errors = [each for each in findings if each.severity is Severity.ERROR]
        assert [each.path for each in errors] == [index], (errors, done)

    with busy_programs(path, SEED):
        for _ in range(ROUNDS):
            observer = chance.choices(("check", "describe", "report"), (4, 3, 2))[0]
            if observer == "check":
                the_damage(check([path]))
            elif observer == "describe":
                assert main(["describe", str(path)]) == 0
                out, err = capfd.readouterr()
                assert (err, LOGS - {*out.split()}) == ("", set()), (out, done)
            else:
                report = read_report([path], full=True, progress=lambda _: None)
                the_damage(report.findings or ())
                names = {each.name for each in report.partitions}
                assert (report.problems, LOGS - names) == ([], set()), done
            done[observer] += 1
    print(f"beside programs: seed {SEED}, {dict(done)}")
