"""Whatever the files of a log directory contain: no crash, no hang, no unexpected exception, no wrong record.

`LOGFS_MUTATIONS=1000000` selects the long form, and `LOGFS_MUTATION_SEED` another campaign. The report of a finding
includes the command that repeats it.
"""

from __future__ import annotations

import itertools
import os
from pathlib import Path

import pytest

from logfs.store.observe.check import Severity, check
from logfs.store.store import Store
from tests.support.command_line import call
from tests.support.examples import seed_of
from tests.support.requirements import DEEP
from tests.system.hostile import campaign

MUTATIONS = int(os.environ.get("LOGFS_MUTATIONS", "300" if DEEP else "120"))
SEED = seed_of("LOGFS_MUTATION_SEED")
JOBS = int(os.environ.get("LOGFS_MUTATION_JOBS", "1"))

# Known findings that are not fixed yet, by their first words. None of them is a crash or a hang.
KNOWN = {
    "a valid batch is gone": "a decided commit cuts a log within a batch",
    "another time": "a decided commit goes to where a cut log ends",
    "moved record": "damage is followed by a batch whose offset nothing confirms",
}


def test_mutated_files_give_no_new_finding() -> None:
    """Mutated files of every kind give no new finding through any interface."""
    outcome = campaign(MUTATIONS, SEED, jobs=JOBS)
    print(outcome)
    assert outcome.mutations == MUTATIONS
    new = [key for key in outcome.findings if not key.startswith(tuple(KNOWN))]
    assert not new, str(outcome)


_ODD = itertools.product(
    ("dangling", "loop", "fifo", "directory"),
    (".log", ".index", ".timeindex", ".textindex", ".txnindex"),
)


@pytest.mark.parametrize(("kind", "suffix"), [*_ODD, ("bytes", ".log")])
def test_odd_names_do_not_end_an_audit(log_dir: Path, kind: str, suffix: str) -> None:
    """`check` reports an entry that has the name of a segment file but is none, and audits the other partitions."""
    with Store(log_dir) as store:
        for name in ("a-0", "z-0"):
            store.create(name).append([b"value"])
    bad = log_dir / "a-0" / f"{0 if suffix == '.textindex' else 7:020}{suffix}"
    bad.unlink(missing_ok=True)
    if kind == "dangling":
        bad.symlink_to("nowhere")
    elif kind == "loop":
        bad.symlink_to(bad.name)
    elif kind == "fifo":
        os.mkfifo(bad)
    elif kind == "directory":
        bad.mkdir()
    else:
        bad = Path(os.fsdecode(os.fsencode(bad.parent) + b"/\xff\xfe.log"))
        bad.write_bytes(b"")
    damaged = log_dir / "z-0" / f"{0:020}.log"
    data = damaged.read_bytes()
    damaged.write_bytes(data[:-1] + b"!")
    done = call("check", log_dir)
    damaged.write_bytes(data)
    bad.rmdir() if kind == "directory" else bad.unlink()
    assert done.returncode == 1, done.stderr
    assert b"Traceback" not in done.stderr
    assert os.fsencode(bad) in done.stdout or kind == "bytes"
    assert b"/z-0" in done.stdout


def test_a_view_that_begins_after_damage_begins_with_a_whole_record(log_dir: Path) -> None:
    """A text view that begins after a damaged batch begins with a whole record.

    The text of a damaged record has the length that the index gives it, also in a view that begins after it.
    """
    with Store(log_dir) as store:
        orders = store.create("a-0")
        for number in range(9):
            orders.append([b"value %d" % number])
    path = log_dir / "a-0" / f"{0:020}.log"
    data = path.read_bytes()
    size = len(data) // 9
    path.write_bytes(data[: 3 * size - 2] + b"!" + data[3 * size - 1 :])
    for start in range(3, 9):
        done = call("cat", "-o", f"{start}..", str(log_dir / "a-0"))
        assert done.stdout == b"".join(b"value %d\n" % number for number in range(start, 9))
        with Store(log_dir, read_only=True) as store:
            from logfs.format.text.rendering import View

            text = store["a-0"].text(View.LINES, start)
            assert text.read(0, 1000) == done.stdout
    path.write_bytes(data)
    assert not [each for each in check(log_dir) if each.severity is Severity.ERROR]
