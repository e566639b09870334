"""Moving partitions between log directories while they are in use (Kafka's AlterReplicaLogDirs).

The names of the directories show how far a move is. First the copy is made, as `<partition>.<uuid>-future`. Then the
original directory is renamed to `-stray`, which is the point of no return. Then the copy gets the name of the
partition. Finally the original is renamed to `-delete`. It is removed after `file.delete.delay.ms`, once no reader
uses it. docs/durability.md has the steps, and what a crash leaves after each.
"""

from __future__ import annotations

import errno
import logging
import os
import uuid
from pathlib import Path
from typing import TYPE_CHECKING
from weakref import WeakSet

from logfs.errors import InvalidName, LogfsError, NotWritable, PartitionExists, PartitionFailed
from logfs.format.base import names
from logfs.locks import Level, make_lock
from logfs.log.partition_copy import MOVED, PartitionCopy
from logfs.log.segment.segment_files import relocate
from logfs.store.maintenance.context import Maintenance, MaintenanceContext

if TYPE_CHECKING:
    from collections.abc import Callable

    from logfs.log.append.partition import Partition
    from logfs.log.segment.segment import Segment
    from logfs.store.directory.log_dir import LogDir
    from logfs.store.maintenance.compaction import Compactor
    from logfs.store.maintenance.context import Progress

logger = logging.getLogger(__name__)

# A move copies in rounds, each of which copies what was appended during the round before. Appends wait only for the
# last round. It begins once at most `_LITTLE_BYTES` are left to copy, or after `_ROUNDS` earlier rounds.
_LITTLE_BYTES = 1024 * 1024
_ROUNDS = 16


class MoveAborted(LogfsError):
    """A move was stopped before it took effect: the partition is still in its old log directory."""


class Mover(Maintenance):
    """Moves partitions between the log directories of a store. Any thread may call it; one move runs at a time."""

    def __init__(self, context: MaintenanceContext, compactor: Compactor) -> None:
        super().__init__(context)
        self._compactor = compactor
        self._running = make_lock(Level.MOVE)
        # The requested moves that have not ended, in order of request: the target log directory by partition name.
        self.requested: dict[str, Path] = {}
        # Why requested moves have failed, by partition name.
        self.errors: dict[str, str] = {}
        # By the old directory of each moved partition: the partition, and the segments there that readers may use.
        self._left: dict[Path, tuple[Partition, WeakSet[Segment]]] = {}

    def request(self, name: str, log_dir: str | os.PathLike[str]) -> None:
        """Request that the next `run_due` moves a partition to `log_dir`.

        Raises the errors of `move` if it is already known that the partition cannot be moved there.
        """
        self._check(name, log_dir)
        self.errors.pop(name, None)
        self.requested[name] = Path(log_dir)
        self.wake()

    def run_due(self) -> None:
        """Do the requested moves. The error of a move is logged and kept in `errors`; the other moves are done."""
        while self.requested and not self._stopped.is_set():
            name, log_dir = next(iter(self.requested.items()))
            try:
                self.move(name, log_dir)
            except (LogfsError, OSError) as error:
                self.errors[name] = str(error)
                logger.error("%s: was not moved to %s: %s", name, log_dir, error)
            finally:
                # If another move of the partition was requested meanwhile, keep that request.
                if self.requested.get(name) == log_dir:
                    del self.requested[name]

    def move(
        self, name: str, log_dir: str | os.PathLike[str], progress: Progress = lambda _: None
    ) -> None:
        """Move a partition to another log directory of the store; appends and reads go on meanwhile.

        `progress` is called with the number of bytes that were copied since the last call. After an error before the
        copy replaces the original, the partition stays where it is, and the copy is removed. Raises these errors:

        - `InvalidName` if the store does not have the log directory, or the partition is in it already;
        - `InvalidSetting` if the topic's settings file in the log directory differs from the store's settings;
        - `PartitionExists` if the log directory already has an entry with the partition's name;
        - `MoveAborted` after `stop`, if the partition was deleted, or if a decided commit (`Commits`) must still
          append to it;
        - `OSError` (ENOSPC), before anything is copied, if the log directory has too little free space;
        - `NotWritable`, `PartitionFailed`, `LogDirFailed` and other `OSError`.
        """
        with self._running:
            target = self._check(name, log_dir)
            registry, partition = self._registry, self._registry.writable(name)
            size = partition.local_bytes
            with registry.doing("moving", name, size) as work:

                def spend(size: int) -> None:
                    work.done_bytes += size
                    progress(size)
                    if self._stopped.is_set():
                        raise MoveAborted(f"{name}: not moved: the store is being closed")
                    if partition.failure is not None:
                        raise partition.failure

                self._move(partition, target, spend)
            logger.info("%s: moved to %s, %d bytes", name, target.path, size)

    def _check(self, name: str, log_dir: str | os.PathLike[str]) -> LogDir:
        """Return the `LogDir` with the path `log_dir`. Raises the errors of `move` if the move is not possible."""
        registry = self._registry
        if registry.read_only:
            raise NotWritable(f"{name}: not moved: the store is open read-only")
        partition = registry.writable(name)
        partition.check_changeable()
        wanted = Path(os.path.abspath(log_dir))
        found = [each for each in registry.log_dirs if each.path in (wanted, Path(log_dir))]
        if not found:
            known = ", ".join(str(each.path) for each in registry.log_dirs)
            raise InvalidName(
                f"{name}: {wanted} is not a log directory of this store; give one of {known}"
            )
        target = found[0]
        if target.failure is not None:
            raise target.failure
        # Hold the lock under which another move changes `homes` and renames the directory, so that these checks do
        # not see such a move half-way.
        with registry.disk.hold(registry.lock):
            if target is registry.homes.get(name):
                raise InvalidName(f"{name}: not moved: it is in {target.path} already")
            if target.disk.exists(target.path / name):
                raise PartitionExists(f"{target.path / name}: already exists; move it away")
        registry.settings.check_copy(partition.topic, target.disk, target.path)
        # A move copies only the local segments; remote segments stay in the object store.
        free, size = target.disk.free_bytes(target.path), partition.local_bytes
        if free < size:
            raise OSError(
                errno.ENOSPC,
                f"{size} bytes must be moved, but only {free} are free; free some space",
                str(target.path),
            )
        return target

    def _move(self, partition: Partition, target: LogDir, spend: Callable[[int], None]) -> None:
        directory = target.path / names.future_directory(partition.name, uuid.uuid4().hex)
        copy = PartitionCopy(partition, target.disk, directory, spend)
        try:
            copy.catch_up()
            # Let no compaction run until the swap is over: the swap renames the directory that compaction writes to.
            with self._compactor.running:
                for _ in range(_ROUNDS):
                    if copy.missing_bytes <= _LITTLE_BYTES:
                        break
                    copy.catch_up()
                with self._registry.lock, partition.flusher.lock, partition.lock:
                    self._swap(partition, target, copy)
            partition.views.exchange(copy.copies)
        except BaseException:
            if not copy.is_needed:
                try:
                    copy.discard()
                except (LogfsError, OSError) as error:
                    what = "could not be removed; the next opening removes it"
                    logger.error("%s: %s: %s", directory, what, error)
            raise

    def _swap(self, partition: Partition, target: LogDir, copy: PartitionCopy) -> None:
        """Replace the original by the copy, in the steps that docs/durability.md describes ("Moving a partition").

        The caller must hold `Compactor.running`, the registry's lock, and `flusher.lock` and `lock` of the partition.
        Raises `MoveAborted` if the partition was deleted, or if a decided commit (`Commits`) must still append to it.
        If a step fails after the original was renamed, raises `PartitionFailed`; the next opening of the store then
        finishes the move.
        """
        registry, name = self._registry, partition.name.directory
        if registry.partitions.get(name) is not partition:
            raise MoveAborted(f"{name}: not moved: it was deleted meanwhile")
        if name in self._commits.partitions():
            raise MoveAborted(f"{name}: not moved: a commit to it is unfinished; retry later")
        partition.check_changeable()
        source = registry.homes[name]
        copy.complete(names.unique_part(copy.directory.name), registry.clock())
        self._prepare(partition, target)
        stray = source.path / names.stray_directory(copy.directory.name)
        with registry.disk.naming:
            source.disk.rename_unsynced(partition.directory, stray)
            # From here on the copy is the partition: after a crash, the next opening finishes the move.
            copy.is_needed = True
            partition.directory = stray
            try:
                source.disk.sync_directory(source.path)
                target.disk.rename(copy.directory, target.path / name)
                left = copy.take_over(target.path / name)
            except BaseException as error:
                self._checkpoints.unfinished[name] = target, partition
                why = str(error) or "interrupted"
                partition.failure = PartitionFailed(
                    f"{name}: its move to {target.path} is unfinished ({why}); close the store (or unmount) and open "
                    "it again with both log directories to finish it"
                )
                raise partition.failure from error
            relocate(left, stray)
            registry.homes[name] = target
        self._schedule_removal(partition, source, stray, WeakSet(left))

    def _prepare(self, partition: Partition, target: LogDir) -> None:
        """Write a partition's checkpoint entries and settings to the log directory that it is about to move to."""
        registry, checkpoints = self._registry, self._checkpoints
        is_new = target not in list(registry.homes.values())
        registry.settings.copy_to(partition.topic, target.disk, target.path, is_new=is_new)
        offset = registry.homes[partition.name.directory].cleaner_offsets.get(partition.name)
        target.set_cleaner_offset(partition.name, offset)
        checkpoints.write_one(target, partition)

    def _schedule_removal(
        self, partition: Partition, source: LogDir, stray: Path, left: WeakSet[Segment]
    ) -> None:
        """Schedule the old directory of a moved partition for removal after `file.delete.delay.ms`.

        `stray` is this directory, in the log directory `source`. `left` are its segments, which readers may still
        use. An error is logged and not raised; the next opening of the store then removes the directory.
        """
        registry = self._registry
        unique = names.unique_part(stray.name)
        doomed = source.path / names.deleted_directory(partition.name, unique)
        try:
            # Remove the topic id: without it, upkeep does not take this directory for that of a deleted partition,
            # and deletes no remote segments.
            source.disk.unlink(stray / names.PARTITION_METADATA)
            with registry.disk.naming:
                source.disk.rename_unsynced(stray, doomed)
                relocate(left, doomed)
            source.disk.sync_directory(source.path)
            self._left[doomed] = partition, left
            registry.deletions[doomed] = registry.clock() + partition.config.file_delete_delay_ms
            # The move is complete: remove `logfs.moved` from the new directory.
            partition.disk.unlink(partition.directory / MOVED)
            self._checkpoints.write()
            source.set_cleaner_offset(partition.name, None)
        except (LogfsError, OSError) as error:
            logger.error("%s: moved, but the original is not removed yet: %s", stray, error)

    def still_read(self, directory: Path) -> set[int]:
        """Return the base offsets of the segments that readers still use in the old directory of a moved partition.

        `directory` is any directory that is scheduled for removal. If it is not the old directory of a move, the
        result is empty.
        """
        if directory not in self._left:
            return set()
        partition, left = self._left[directory]
        partition.views.pin()
        found = {segment.base_offset for segment in left}
        if not found:
            del self._left[directory]
        return found
