"""Which of the engine's calls that change the disk have failed in a run of the tests, or were cut by a power cut.

With `LOGFS_FAULT_SITES=FOLDER` each process of a run notes what it meets in a file in that folder, and the last lines
of the run have the shares and the calls that are missing:

    LOGFS_FAULT_SITES=$(mktemp -d) scripts/test tests/log tests/store tests/system

A call counts as failed if it has raised an error of storage or of resources, and as cut if a campaign of enumerated
power cuts had it as a step. Kills and failing system calls of other processes are not counted. A power cut at a call
of `UNSEEN` leaves nothing else than one before it.
"""

from __future__ import annotations

import ast
import errno
import os
import sys
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import logfs
from logfs.log.disk.checked_disk import CheckedDisk
from tests.support.crashdisk import FaultDisk, RecordingDisk

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

FOLDER = "LOGFS_FAULT_SITES"
FAILED, CUT = "failed", "cut"
# The engine, and what in it implements the disk itself.
ENGINE = ("log", "store")
DISK = "log/disk/"
CHANGES = frozenset(
    {"write", "truncate", "allocate", "sync", "map", "sync_map", "sync_directory", "mkdir", "rmdir"}
    | {"rename", "rename_unsynced", "unlink", "replace_file", "put_file", "ensure_file"}
)
UNSEEN = frozenset({"allocate", "map"})
FAULTS = frozenset(
    {errno.EIO, errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.ENOMEM, errno.EMFILE, errno.ENFILE}
)
PACKAGE = Path(logfs.__file__).parent


class Site(NamedTuple):
    """A call in the source: its file below logfs/, its first and its last line, and what it does."""

    file: str
    first: int
    last: int
    call: str

    def __str__(self) -> str:
        return f"{self.file}:{self.first}: {self.call}"


@cache
def sites() -> tuple[Site, ...]:
    """Return the calls of the engine that change the disk."""
    found = []
    for folder in ENGINE:
        for path in sorted((PACKAGE / folder).rglob("*.py")):
            file = path.relative_to(PACKAGE).as_posix()
            if not file.startswith(DISK):
                found += [Site(file, *call) for call in _changes(ast.parse(path.read_text()))]
    return tuple(found)


def _changes(tree: ast.AST) -> Iterator[tuple[int, int, str]]:
    for node in ast.walk(tree):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
            continue
        of = node.func.value
        name = getattr(of, "attr", getattr(of, "id", ""))
        if node.func.attr in CHANGES and name in ("disk", "_disk"):
            yield node.lineno, node.end_lineno or node.lineno, node.func.attr


def install(folder: str) -> None:
    """Have this process note the calls that fail and that are cut, in a file of its own in `folder`."""
    path = Path(folder, str(os.getpid()))
    seen: set[str] = set()

    def note(what: str) -> None:
        site = _site_of_stack()
        line = f"{what} {sites().index(site)}\n" if site else ""
        if line and line not in seen:
            seen.add(line)
            with path.open("a") as file:
                file.write(line)

    def before(owner: type, name: str, work: Callable[..., None]) -> None:
        method = getattr(owner, name)

        def called(self: object, *arguments: object, **named: object) -> object:
            work(*arguments)
            return method(self, *arguments, **named)

        setattr(owner, name, called)

    def note_error(error: OSError, *_: object) -> None:
        if error.errno in FAULTS:
            note(FAILED)

    before(CheckedDisk, "_note", note_error)
    before(RecordingDisk, "_note", lambda *_: note(CUT))
    before(FaultDisk, "inject", lambda *_: note(FAILED))


def _site_of_stack() -> Site | None:
    """Return the call of the engine that the present call of the disk comes from."""
    frame = sys._getframe(1)
    while frame is not None:
        path = frame.f_code.co_filename
        if path.startswith(f"{PACKAGE}{os.sep}"):
            file = Path(path).relative_to(PACKAGE).as_posix()
            if file.startswith(ENGINE) and not file.startswith(DISK):
                return _site(file, frame.f_lineno)
        frame = frame.f_back  # type: ignore[assignment]
    return None


@cache
def _site(file: str, line: int) -> Site | None:
    found = [each for each in sites() if each.file == file and each.first <= line <= each.last]
    return min(found, key=lambda each: each.last - each.first, default=None)


def summary(folder: str) -> Iterator[str]:
    """Yield the shares of the calls that all processes of a run have noted, and those that are missing."""
    lines = {line for path in Path(folder).iterdir() for line in path.read_text().splitlines()}
    for what in (FAILED, CUT):
        met = {number for number in range(len(sites())) if f"{what} {number}" in lines}
        wanted = [n for n, site in enumerate(sites()) if what == FAILED or site.call not in UNSEEN]
        share = len(met.intersection(wanted)) / len(wanted)
        yield f"fault sites: {share:.0%} of {len(wanted)} calls were {what}; not:"
        yield from (f"  {sites()[number]}" for number in wanted if number not in met)
