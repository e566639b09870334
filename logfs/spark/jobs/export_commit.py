"""Moves the files of an export to their final paths, all or none, and keeps the offsets of an incremental export.

The driver first writes the list of all moves to a journal, and then moves the files. If it is killed meanwhile, the
next export into the same target moves the remaining files. If a file cannot be moved, the driver moves all files
back.

    target/_temporary/ID.lock       locked while the export with the id ID runs
    target/_temporary/incremental.lock
                                    locked while an incremental export runs
    target/_temporary/publish.lock  locked while an export moves its files
    target/_temporary/ID/           the files that the tasks of the export have written, and its journal
    target/_offsets.json            where the next incremental export begins, in the form of Spark's checkpoints
    target/_SUCCESS                 an empty file, written last
"""

from __future__ import annotations

import errno
import fcntl
import json
import shutil
import time
import uuid
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from logfs.errors import InvalidSetting
from logfs.log.disk.disk import USUAL_MODE, Disk
from logfs.spark.jobs.export_files import partition_of
from logfs.spark.topics import from_json

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from logfs.log.disk.disk import File
    from logfs.spark.jobs.export_files import WrittenFile
    from logfs.spark.options import Selection
    from logfs.spark.topics import OffsetsJson

SUCCESS = "_SUCCESS"
OFFSETS = "_offsets.json"
TEMPORARY = "_temporary"
_JOURNAL = "journal.json"
_REPLACED = "replaced"
_LOCK = ".lock"
# The name of the lock that an incremental export holds while it runs: each target has at most one at a time.
_INCREMENTAL = "incremental"
# The name of the lock that an export holds while it moves its files: only one export moves files at a time.
_PUBLISH = "publish"
# How many times the creation of a lock file is tried. An attempt can fail because another export ends at the same
# time and removes the empty directory of the locks. The number is limited, because with a wrong path every attempt
# fails.
_ATTEMPTS = 1000
# How many times an incremental export tries to get its lock, and the pause between two attempts.
_TRIES = 10
_PAUSE_SECONDS = 0.05


@dataclass(frozen=True)
class FileMove:
    """A file to move, from the path `old` to the path `new`."""

    old: Path
    new: Path


@contextmanager
def temporary_directory(target: Path, *, incremental: bool) -> Iterator[Path]:
    """Yield a new directory below the target for the files of one export, and remove it at the end.

    First, earlier exports into this target that were killed are cleaned up: those with a journal are completed, and
    the files of the others are removed. At the end, the directory is kept if it still has a journal, so that the next
    export completes it. Raises `OSError`, and `BlockingIOError` if `incremental` is true and another incremental
    export into the target is running.
    """
    parent = target / TEMPORARY
    is_new = not target.exists()
    name = uuid.uuid4().hex
    try:
        # Wait for the lock: another export locks this file for a moment to check whether this export was killed.
        with _locked(parent / f"{name}{_LOCK}", wait=True), _alone(target, incremental=incremental):
            _complete_killed(target)
            directory = parent / name
            directory.mkdir()
            try:
                yield directory
            finally:
                if not (directory / _JOURNAL).exists():
                    shutil.rmtree(directory, ignore_errors=True)
    finally:
        with suppress(OSError):
            # This fails while another export into the same target runs, because the directory is then not empty.
            parent.rmdir()
            if is_new:
                target.rmdir()


@contextmanager
def _alone(target: Path, *, incremental: bool) -> Iterator[None]:
    if not incremental:
        yield
        return
    for left in reversed(range(_TRIES)):
        with _locked(target / TEMPORARY / f"{_INCREMENTAL}{_LOCK}") as is_ours:
            if is_ours:
                yield
                return
        if left:
            # Another export may have locked the file only for a moment, while it looks for exports that were killed.
            time.sleep(_PAUSE_SECONDS)
    raise BlockingIOError(
        errno.EAGAIN,
        "another incremental export is writing to this directory; wait for its end, or give another directory",
        str(target),
    )


def _publishing(target: Path) -> AbstractContextManager[bool]:
    """Return a context that holds `publish.lock`, so that no other export moves files below the target."""
    return _locked(target / TEMPORARY / f"{_PUBLISH}{_LOCK}", wait=True)


@contextmanager
def _locked(path: Path, *, wait: bool = False) -> Iterator[bool]:
    """Create a file and lock it during the context. Yield whether this process has the lock.

    The directory of the file is created if it is missing. At the end of the context, the file is removed and
    unlocked. If another process has the lock, yield False, and leave the file in place. If `wait` is true, wait for
    the lock instead, and yield True.
    """
    file = _lock(path, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    if file is None:
        yield False
        return
    with closing(file):
        try:
            yield True
        finally:
            path.unlink(missing_ok=True)


def _lock(path: Path, operation: int) -> File | None:
    """Create a file and its directory, and lock the file by `flock`. Return None if another process has the lock."""
    for left in reversed(range(_ATTEMPTS)):
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            return Disk(USUAL_MODE).open_locked(path, lambda fd: fcntl.flock(fd, operation))
        except BlockingIOError:
            return None
        except (FileNotFoundError, FileExistsError):
            if not left:
                raise
    raise AssertionError("unreachable")


def _complete_killed(target: Path) -> None:
    """Complete each killed export that has a journal, and remove the files of each killed export that has none.

    An export that is still running holds its lock, and is left alone.
    """
    parent = target / TEMPORARY
    for name in sorted({path.name.removesuffix(_LOCK) for path in parent.iterdir()}):
        with _locked(parent / f"{name}{_LOCK}") as is_ours:
            if not is_ours:
                continue
            journal = parent / name / _JOURNAL
            if journal.exists():
                told = json.loads(journal.read_bytes())
                moves = [FileMove(target / old, target / new) for old, new in told["moves"]]
                with _publishing(target):
                    _apply(target, moves)
                    _end(journal)
            shutil.rmtree(parent / name, ignore_errors=True)


def _apply(target: Path, moves: Sequence[FileMove]) -> None:
    """Move the files durably, except those that were moved before. The last item of `moves` must move `_SUCCESS`."""
    disk = Disk()
    if moves[-1].old.exists():
        (target / SUCCESS).unlink(missing_ok=True)
    for move in moves[:-1]:
        _make(disk, move)
    places = {path for move in moves for path in (move.old.parent, move.new.parent)}
    inside = {each for place in places for each in (place, place.parent)} - {target}
    for directory in sorted(inside, key=lambda path: -len(path.parts)):
        # Remove directories whose files have all been moved away. `rmdir` fails for the others.
        with suppress(OSError):
            directory.rmdir()
        if directory.exists():
            disk.sync_directory(directory)
    disk.sync_directory(target)
    _make(disk, moves[-1])
    disk.sync_directory(target)


def _make(disk: Disk, move: FileMove) -> None:
    # If there is a file at the new path, it is the file to move: it was moved there before. It cannot be the file of
    # an older export, because such files are moved away first.
    if not move.new.exists():
        move.new.parent.mkdir(parents=True, exist_ok=True)
        disk.rename_unsynced(move.old, move.new)


def _undo(target: Path, moves: Sequence[FileMove]) -> bool:
    """Move files back, and remove empty directories. Return False if a file could not be moved back."""
    is_undone = True
    for move in reversed(moves):
        try:
            if move.new.exists() and not move.old.exists():
                move.old.parent.mkdir(parents=True, exist_ok=True)
                Disk().rename_unsynced(move.new, move.old)
        except OSError:
            is_undone = False
        for directory in (move.new.parent, move.new.parent.parent):
            if directory != target:
                with suppress(OSError):
                    directory.rmdir()
    return is_undone


def _end(journal: Path) -> None:
    """Remove the journal of an export, durably. The caller must have made or undone all moves in the journal."""
    Disk().unlink(journal)
    Disk().sync_directory(journal.parent)


class Folders:
    """Moves the files of an export to folders by topic and date below the directory `target`."""

    def __init__(self, target: Path, temporary: Path) -> None:
        """Prepare to publish the files that tasks write into `temporary`, a directory below `target`."""
        self._target = target
        self._temporary = temporary

    def offsets(self, selected: Selection, *, may_be_damaged: bool = False) -> OffsetsJson:
        """Return the offsets at which the last incremental export into the target ended, or {} if there was none.

        They are in the form of Spark's checkpoints, such as {"orders": {"0": 23}}. One file has the offsets of all
        topics, whether they are `selected` or not. If it is damaged, return {} if `may_be_damaged` is true, else
        raise `InvalidSetting`.
        """
        path = self._target / OFFSETS
        try:
            found: OffsetsJson = json.loads(path.read_bytes())
            from_json(found)
        except FileNotFoundError:
            return {}
        except (ValueError, TypeError, AttributeError) as error:
            if may_be_damaged:
                return {}
            raise InvalidSetting(
                f"{path}: the offsets at which the last export ended cannot be read: {error}; export all "
                "again with mode overwrite"
            ) from None
        return found

    def publish(
        self,
        written: Sequence[WrittenFile],
        offsets: OffsetsJson | None,
        replaced: Selection | None,
        begins: OffsetsJson | None = None,
    ) -> None:
        """Move the files of the tasks, `written`, to their final paths, all or none, and store `offsets` in a file.

        The older files of the partitions `replaced` are removed; if `replaced` is None, all older files stay.
        `offsets` replace the offsets that an earlier incremental export has stored. If `offsets` is None, the earlier
        offsets stay if all older files stay. Otherwise they are removed, because they do not fit the new files.

        If a file cannot be moved, the files moved before are moved back, but the file `_SUCCESS` of an earlier export
        is not restored. `begins` is not used; only `IcebergTables` needs it. Raises `FileExistsError` if there is a
        file at a final path and it is not one of the removed files, and `OSError`.
        """
        with _publishing(self._target):
            self._publish(written, offsets, replaced)

    def _publish(
        self,
        written: Sequence[WrittenFile],
        offsets: OffsetsJson | None,
        replaced: Selection | None,
    ) -> None:
        target = self._target
        old = set() if replaced is None else _files_of(target, replaced)
        moves = [FileMove(Path(each.path), target / each.place) for each in written]
        taken = next(
            (each.new for each in moves if each.new.exists() and each.new not in old), None
        )
        if taken is not None:
            raise FileExistsError(
                errno.EEXIST,
                "these records were exported before: use startingOffsets to set where to begin, or an incremental "
                "export",
                str(taken),
            )
        if replaced is not None or offsets is not None:
            # Move the stored offsets of the last export away. If this export has offsets, they replace the old ones.
            # If it has none, no offsets are stored, because the old ones do not fit the files of this export.
            old |= {target / OFFSETS} & {*target.iterdir()}
        away = [
            FileMove(path, self._temporary / _REPLACED / path.relative_to(target)) for path in old
        ]
        # Write these files before the journal. Once the journal exists, files are only renamed, which needs no disk
        # space.
        if offsets is not None:
            moves.append(self._staged(OFFSETS, json.dumps(offsets).encode()))
        moves.append(self._staged(SUCCESS, b""))
        every = [*away, *moves]
        journal = self._temporary / _JOURNAL
        named = [
            [str(each.old.relative_to(target)), str(each.new.relative_to(target))] for each in every
        ]
        try:
            Disk().replace_file(journal, json.dumps({"moves": named}).encode())
            _apply(target, every)
        except BaseException:
            # Remove the journal only if all files are moved back. Otherwise, the next export completes this one.
            if _undo(target, every):
                _end(journal)
            raise
        _end(journal)

    def _staged(self, name: str, data: bytes) -> FileMove:
        """Write a file into the temporary directory, and return the move that puts it into the target."""
        Disk().replace_file(self._temporary / name, data)
        return FileMove(self._temporary / name, self._target / name)


def _files_of(target: Path, selected: Selection) -> set[Path]:
    """Return the files of earlier exports that hold records of the selected partitions."""
    return {
        path
        for path in target.glob("topic=*/date=*/part-*")
        if (name := partition_of(path)) is not None and name in selected
    }
