"""Moves the files of an export to their places, all or none, and keeps the offsets of an incremental export.

The driver first writes all moves to a journal. Once the journal is written, the export is decided. Then the driver
moves the files. If it is killed meanwhile, the next export into the same target makes the remaining moves.

    target/_temporary/ID.lock       locked while the export ID runs
    target/_temporary/incremental.lock
                                    locked while an incremental export runs
    target/_temporary/publish.lock  locked while an export moves its files
    target/_temporary/ID/           the files of its tasks, and its journal
    target/_offsets.json            where the next incremental export begins, in the form of Spark's checkpoints
    target/_SUCCESS                 comes last
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shutil
import time
import uuid
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from logfs.errors import InvalidSetting
from logfs.log.disk.disk import Disk
from logfs.spark.jobs.export_files import partition_of
from logfs.spark.topics import from_json

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from logfs.spark.jobs.export_files import WrittenFile
    from logfs.spark.options import Selection
    from logfs.spark.topics import OffsetsJson

SUCCESS = "_SUCCESS"
OFFSETS = "_offsets.json"
TEMPORARY = "_temporary"
_JOURNAL = "journal.json"
_REPLACED = "replaced"
_LOCK = ".lock"
# The name of the lock of an incremental export: only one at a time may run into a target.
_INCREMENTAL = "incremental"
# The name of the lock that an export holds while it moves its files: only one export moves files at a time.
_PUBLISH = "publish"
# The most attempts to create a lock file. An attempt fails if another export has just ended and removed the empty
# directory of the locks. If the path is wrong, every attempt fails.
_ATTEMPTS = 1000
# How many times the lock of an incremental export is tried, and the pause between two tries.
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

    First, killed exports into this target are completed if they were decided; the files of other killed exports are
    removed. At the end, a directory that still has its journal is kept, so that the next export completes it.
    Raises `BlockingIOError` if `incremental` is true and another incremental export is running, and `OSError`.
    """
    parent = target / TEMPORARY
    is_new = not target.exists()
    name = uuid.uuid4().hex
    try:
        # Wait, because another export may lock the new file for a moment, to check whether its export was killed.
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
            # The directory is not empty while another export into the same target runs.
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
            # Another export holds the lock for a moment while it looks for killed exports.
            time.sleep(_PAUSE_SECONDS)
    raise BlockingIOError(
        errno.EAGAIN,
        "another incremental export is writing to this directory; wait for its end, or give another directory",
        str(target),
    )


def _publishing(target: Path) -> AbstractContextManager[bool]:
    """Return a context in which no other export moves files to places below the target."""
    return _locked(target / TEMPORARY / f"{_PUBLISH}{_LOCK}", wait=True)


@contextmanager
def _locked(path: Path, *, wait: bool = False) -> Iterator[bool]:
    """Create and lock a file, and yield whether this process got the lock. Then unlock and remove the file.

    If another process has the lock, the file stays. The directory of the file is created, too, if it is missing. With
    `wait`, wait for the lock, and yield True.
    """
    while True:
        fd = _open_lock(path)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            os.close(fd)
            yield False
            return
        except BaseException:
            os.close(fd)
            raise
        if os.fstat(fd).st_nlink:
            break
        # The process that held the lock before has removed the file: lock the new file instead.
        os.close(fd)
    try:
        yield True
    finally:
        try:
            path.unlink(missing_ok=True)
        finally:
            os.close(fd)


def _open_lock(path: Path) -> int:
    attempts = _ATTEMPTS
    while True:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        except (FileNotFoundError, FileExistsError):
            attempts -= 1
            if not attempts:
                raise


def _complete_killed(target: Path) -> None:
    """Make the remaining moves of decided exports that were killed, and remove the other files of killed exports."""
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
    """Make those of the moves that were not made yet. The last one must be that of `_SUCCESS`."""
    disk = Disk()
    if moves[-1].old.exists():
        (target / SUCCESS).unlink(missing_ok=True)
    for move in moves[:-1]:
        _make(disk, move)
    places = {path for move in moves for path in (move.old.parent, move.new.parent)}
    inside = {each for place in places for each in (place, place.parent)} - {target}
    for directory in sorted(inside, key=lambda path: -len(path.parts)):
        # The directory is empty if all its files were moved away. Otherwise `rmdir` fails.
        with suppress(OSError):
            directory.rmdir()
        if directory.exists():
            disk.sync_directory(directory)
    disk.sync_directory(target)
    _make(disk, moves[-1])
    disk.sync_directory(target)


def _make(disk: Disk, move: FileMove) -> None:
    # If the new path exists, this move was made before. An older file would not be there: it was moved away first.
    if not move.new.exists():
        move.new.parent.mkdir(parents=True, exist_ok=True)
        disk.rename_unsynced(move.old, move.new)


def _undo(target: Path, moves: Sequence[FileMove]) -> bool:
    """Undo the moves that were made, and remove empty directories; return False if a move could not be undone."""
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
    """Remove a journal whose moves have all been made or undone."""
    Disk().unlink(journal)
    Disk().sync_directory(journal.parent)


class Folders:
    """Publishes the files of an export in folders by topic and date below the directory `target`."""

    def __init__(self, target: Path, temporary: Path) -> None:
        """Prepare to publish what tasks write into `temporary`, a directory below `target`."""
        self._target = target
        self._temporary = temporary

    def offsets(self, *, may_be_damaged: bool = False) -> OffsetsJson:
        """Return where the last incremental export into the target ended; empty if there was none.

        If the file of offsets is damaged, returns {} with `may_be_damaged`, and raises `InvalidSetting` without it.
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
    ) -> None:
        """Move files to their places, remove older ones of `replaced` partitions, store `offsets`: all or nothing.

        If `replaced` is None, all older files stay. If `offsets` is None as well, the offsets of the last incremental
        export stay, too. If a move fails, the moves before it are undone, but a removed `_SUCCESS` of an earlier
        export is not restored. Raises `FileExistsError` for a place that is taken, and `OSError`.
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
            # The stored offsets would be wrong for records that are exported again, so their file is replaced or
            # removed.
            old |= {target / OFFSETS} & {*target.iterdir()}
        away = [
            FileMove(path, self._temporary / _REPLACED / path.relative_to(target)) for path in old
        ]
        # These files are written before the journal: afterwards they are only renamed, which needs no disk space.
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
            # If a move cannot be undone, the journal stays, and the next export makes the remaining moves.
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
