"""Finishes or undoes moves between log directories that a crash interrupted, before partitions are loaded.

A move copies a partition to a directory `<name>.<uuid>-future`. When the copy is complete and durable, it holds a
file `logfs.moved` with that UUID. The copy becomes the partition when the original directory is renamed to
`<name>.<uuid>-stray`, with the same UUID. After a crash before this rename, the move is undone; after a later crash,
it is finished. docs/durability.md ("Moving a partition") has the state after each step.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from logfs.errors import InvalidName, InvalidStore, LogfsError
from logfs.format.base import names
from logfs.format.base.names import DirectoryKind
from logfs.log.partition_copy import MOVED, remove_directory
from logfs.log.segment.segment_listing import log_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from logfs.format.base.names import TopicPartition
    from logfs.store.directory.log_dir import LogDir
    from logfs.store.registry import PartitionRegistry

logger = logging.getLogger(__name__)


class FoundDirectories(NamedTuple):
    """The partition directories in a log directory, by kind.

    `partitions` has (name, path, inode number) of each partition. `futures` has (name, path) of each copy that an
    unfinished move has made. `strays` are the directories of partitions that were moved away, or that a broker has
    set aside.
    """

    partitions: list[tuple[TopicPartition, Path, int]]
    futures: list[tuple[TopicPartition, Path]]
    strays: list[Path]


def futures(log_dir: LogDir) -> Iterator[tuple[TopicPartition, int]]:
    """Yield the name of each partition that is being moved into a log directory, and the .log bytes copied so far."""
    if log_dir.failure is not None:
        return
    for entry in log_dir.disk.scan(log_dir.path):
        with suppress(InvalidName, FileNotFoundError):
            kind, name = names.classify_directory(entry.name)
            if kind is DirectoryKind.FUTURE:
                yield name, log_bytes(log_dir.disk, log_dir.path / entry.name)


def finish_or_undo(
    registry: PartitionRegistry,
    found: dict[LogDir, FoundDirectories],
    wanted: Callable[[str], bool],
) -> None:
    """Finish or undo the unfinished moves of the partitions that `wanted` selects.

    `found` maps each log directory to the partition directories in it. For a finished move, this function adds the
    partition's new directory to `FoundDirectories.partitions` of the new log directory, and schedules the original
    for removal. If a move can be neither finished nor undone, an error is logged. Then the partition is loaded from
    the directory with its name; if there is no such directory, it is offline.
    """
    homes = {name: log_dir for log_dir, each in found.items() for name, *_ in each.partitions}
    strays = {path: log_dir for log_dir, each in found.items() for path in each.strays}
    names_of_strays = {path.name for path in strays}
    for log_dir, each in found.items():
        for name, path in each.futures:
            if not wanted(name.directory):
                registry.homes.setdefault(name.directory, homes.get(name, log_dir))
                continue
            try:
                stray = names.stray_directory(path.name)
                has_original_left = stray in names_of_strays and _is_noted(log_dir, path, path)
                final = _finish_or_undo(
                    registry,
                    log_dir,
                    path,
                    is_there=name in homes,
                    has_original_left=has_original_left,
                )
                if final is not None:
                    each.partitions.append((name, final, log_dir.disk.stat(final).identity))
                    homes[name] = log_dir
            except (LogfsError, OSError) as error:
                logger.error("%s: the move is neither finished nor undone: %s", path, error)
                if name not in homes:
                    registry.homes[name.directory] = log_dir
                    registry.offline[name.directory] = error
    if not registry.read_only:
        for path, log_dir in strays.items():
            _, name = names.classify_directory(path.name)
            if name in homes and wanted(name.directory):
                _remove_original(registry, log_dir, path, homes[name], name)


def _finish_or_undo(
    registry: PartitionRegistry,
    log_dir: LogDir,
    path: Path,
    *,
    is_there: bool,
    has_original_left: bool,
) -> Path | None:
    """Finish or undo one move, whose copy is at `path`. Return the directory of a finished move, else None.

    `is_there` tells whether a directory with the partition's name exists in one of the log directories.
    `has_original_left` tells whether the copy is complete and the original was renamed to `-stray`. The first
    of these cases that applies decides:

    - Both are true: the move can be neither undone nor finished. Raises `InvalidStore`.
    - `is_there` is true: the move is undone.
    - Another process may still be moving the partition (`LogDir.live`): nothing is done.
    - Both are false: the move can be neither undone nor finished. Raises `InvalidStore`.
    - `has_original_left` is true: the move is finished.

    A read-only store changes no files; in the last case it returns `path`.
    """
    if is_there and has_original_left:
        raise InvalidStore(
            f"{path}: the move that made this copy cannot be finished, because another directory has the partition's "
            "name; move that directory away to use the copy, or move the copy away to use that directory"
        )
    if is_there:
        if not registry.read_only:
            logger.warning("%s: an unfinished move is undone", path)
            remove_directory(log_dir.disk, path)
        return None
    if log_dir.live:
        # Another process may still be moving the partition: the next `refresh` finds the result.
        return None
    if not has_original_left:
        raise InvalidStore(
            f"{path}: a move into {log_dir.path} is not finished; open the store with all of its log directories. If "
            "the log directory that the partition came from is lost for good, rename this directory to "
            f"{path.name.rpartition('.')[0]}"
        )
    if registry.read_only:
        return path
    logger.warning("%s: a move is finished: the copy is the partition now", path)
    final = path.with_name(path.name.rpartition(".")[0])
    log_dir.disk.rename(path, final)
    return final


def _is_noted(log_dir: LogDir, copy: Path, named: Path) -> bool:
    """Whether `copy` is a complete copy, made by the move whose UUID is in the name of the directory `named`."""
    try:
        note = log_dir.disk.read_file(copy / MOVED)
    except FileNotFoundError:
        return False
    return note == names.unique_part(named.name).encode()


def _remove_original(
    registry: PartitionRegistry, log_dir: LogDir, path: Path, home: LogDir, name: TopicPartition
) -> None:
    """Schedule a `-stray` directory for removal if a move left it there; keep one that a broker has set aside.

    `path` is this directory, in the log directory `log_dir`. `name` is the partition that was in it, and `home` the
    log directory where this partition is now. An error is logged, and the next opening of the store tries again.
    """
    final = home.path / name.directory
    try:
        if _is_noted(home, final, path):
            doomed = path.with_name(names.deleted_directory(name, names.unique_part(path.name)))
            # Remove the topic id first, for the reason given in `Mover._schedule_removal`.
            log_dir.disk.unlink(path / names.PARTITION_METADATA)
            log_dir.disk.rename(path, doomed)
            registry.deletions[doomed] = registry.clock()
            home.disk.unlink(final / MOVED)
    except (LogfsError, OSError) as error:
        what = "is not removed after the move to"
        logger.error("%s: %s %s; the next opening retries: %s", path, what, home.path, error)
