"""The last phase of an export, step by step: each step fails, is interrupted, or is the last before a kill."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from itertools import product
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark", reason="pyspark is not installed")
pytest.importorskip("pyarrow", reason="pyarrow is not installed")

from logfs.spark.jobs.export_commit import OFFSETS, SUCCESS, TEMPORARY, Folders, temporary_directory
from logfs.spark.jobs.export_files import WrittenFile
from logfs.spark.options import Selection
from tests.support.examples import drawn

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    State = dict[str, str]

CALLS = ("rename", "mkdir", "unlink", "rmdir", "open", "fsync")
# More steps than any of the exports below has.
MOST_STEPS = 200


class Stepped:
    """Lets the calls of the operating system that change files count down to a failure."""

    def __init__(self, step: int, fail: Callable[[], object]) -> None:
        self.left = step
        self._fail = fail
        self._calls = {name: getattr(os, name) for name in CALLS}

    def __enter__(self) -> Stepped:
        for name in CALLS:
            setattr(os, name, self._counted(name, self._calls[name]))
        return self

    def __exit__(self, *_: object) -> None:
        for name in CALLS:
            setattr(os, name, self._calls[name])

    def _counted(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*words: Any, **named: Any) -> Any:
            self.left -= 1
            is_lasting = self._fail is broken and name in ("rename", "mkdir")
            if self.left == 0 or (self.left < 0 and is_lasting):
                self._fail()
            return call(*words, **named)

        return counted


def full() -> None:
    """Fail as on a full disk."""
    raise OSError(28, "No space left on device")


def broken() -> None:
    """Fail as on a disk that takes no more names: later calls that make names fail, too."""
    raise OSError(5, "Input/output error")


def interrupted() -> None:
    """Fail as after Ctrl-C."""
    raise KeyboardInterrupt


def killed() -> None:
    """End the process as SIGKILL does."""
    os._exit(9)


def export(target: Path, first: int, *, anew: bool, stepped: Stepped | None = None) -> None:
    """Publish the files of an incremental export of two partitions, which begins at the offset `first`."""
    chosen = Selection(kind="subscribe", topics=frozenset({"t"})) if anew else None
    with temporary_directory(target, incremental=True) as temporary:
        written = []
        for partition in range(2):
            path = temporary / f"task-{partition}"
            path.write_text(f"{first}")
            place = f"topic=t/date=2024-01-0{first + 1}/part-{partition:05}-{first:020}.jsonl"
            written.append(WrittenFile(str(path), place, "t", 1, 1))
        folders = Folders(target, temporary)
        offsets = {"t": {"0": first + 1, "1": first + 1}}
        if stepped is None:
            folders.publish(written, offsets, chosen)
            return
        with stepped:
            folders.publish(written, offsets, chosen)


def state_of(target: Path) -> State:
    """Return the files of a target, with their contents, without `_SUCCESS` and what is below `_temporary`."""
    found = {}
    for root, _, files in os.walk(target):
        for name in files if TEMPORARY not in root else ():
            with open(f"{root}/{name}") as file:
                found[f"{os.path.relpath(root, target)}/{name}"] = file.read()
    found.pop(f"./{SUCCESS}", None)
    return found


@pytest.mark.drawn(2)
@pytest.mark.parametrize(
    ("kind", "fail"),
    drawn(product(("first", "second", "anew"), (full, broken, interrupted, killed)), 4),
)
def test_an_export_is_whole_or_not_there(
    tmp_path: Path, kind: str, fail: Callable[[], object]
) -> None:
    """Whatever step is the last: the target is as before or as after, and the next exports go on from there."""
    for step in range(1, MOST_STEPS):
        target, wanted = tmp_path / f"{step}", tmp_path / f"{step}-wanted"
        first = 0 if kind == "first" else 1
        for each in (target, wanted):
            each.mkdir()
            if first:
                export(each, 0, anew=False)
        before = state_of(target)
        export(wanted, first, anew=kind == "anew")
        after = state_of(wanted)
        stepped = Stepped(step, fail)
        if fail is killed:
            child = os.fork()
            if not child:
                export(target, first, anew=kind == "anew", stepped=stepped)
                os._exit(0)
            stepped.left = 1 - os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            with temporary_directory(target, incremental=True):
                # This completes what was killed.
                pass
        else:
            with suppress(OSError, KeyboardInterrupt):
                export(target, first, anew=kind == "anew", stepped=stepped)
            if fail is broken and stepped.left <= 0:
                with temporary_directory(target, incremental=True):
                    # This completes what could not be undone.
                    pass
        found = state_of(target)
        if stepped.left > 0:
            assert found == after
            assert step > 20, "few steps were counted"
            return
        assert found in (before, after), f"step {step}"
        if found == before:
            assert not [path for path in target.glob("topic=*/**") if not [*path.iterdir()]]
            export(target, first, anew=kind == "anew")
            assert state_of(target) == after
        export(target, first + 1, anew=False)
        assert json.loads((target / OFFSETS).read_text())["t"]["0"] == first + 2
        assert (target / SUCCESS).exists()
        assert not (target / TEMPORARY).exists()
    raise AssertionError("there are more steps")
