"""Deletes partitions as Kafka does, and restores deleted partitions while their files still exist.

A deletion renames the directory of a partition to a name that ends in `-delete`. `Upkeep` removes the directory after
`file.delete.delay.ms`. Until then the file `deletion.json` in the directory keeps what the store removes at once: the
log start, the cleaner offset, the settings of the topic, and the committed offsets of groups. The file also has the
time at which the removal is due, which `PartitionLoader` reads when the store is opened.
"""

from __future__ import annotations

import logging
import struct
import uuid
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakValueDictionary

from logfs.errors import (
    InvalidStore,
    LogfsError,
    PartitionExists,
    PartitionFailed,
    UnknownPartition,
)
from logfs.format.base import names
from logfs.format.files.commit_file import checked
from logfs.format.messages.group_record import OffsetCommit
from logfs.store.directory.log_dir import FirstError
from logfs.store.directory.mark import DELETION, read_mark, write_mark
from logfs.store.directory.topic_id import read_topic_id
from logfs.store.groups import TOPIC as GROUPS_TOPIC
from logfs.store.maintenance.context import Maintenance
from logfs.store.registry import UnloadedPartition

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from logfs.format.base.names import TopicPartition
    from logfs.log.append.partition import Partition
    from logfs.log.disk.disk import Disk
    from logfs.log.read.log import Log
    from logfs.store.directory.log_dir import LogDir
    from logfs.store.maintenance.context import MaintenanceContext

logger = logging.getLogger(__name__)

_NEVER_CLEANED = -1


class Deletion(NamedTuple):
    """The content of `deletion.json`: what is needed, beside the files, to restore a deleted partition.

    The partition was deleted at `deleted_ms`, and its files are kept until `due_ms` (ms since the epoch).
    `cleaner_offset` is -1 for a log that was never compacted. `commits` has the committed offset of each group. If
    `is_finished` is False, the store may still have the settings and committed offsets, as after a crash;
    `Deleter.finish` removes them.
    """

    partition: str
    deleted_ms: int
    due_ms: int
    log_start: int
    cleaner_offset: int
    settings: Mapping[str, str]
    commits: Mapping[str, OffsetCommit]
    is_finished: bool

    @classmethod
    def read(cls, disk: Disk, directory: Path) -> Deletion | None:
        """Return the content of `deletion.json` in a directory; None if the file is missing, damaged or a copy.

        The file counts as a copy if the inode number in it is not its own, as after `cp -a` of the directory. Raises
        `OSError`.
        """
        mark = read_mark(disk, directory / DELETION)
        if mark is None or mark.is_copy:
            return None
        told = mark.told
        try:
            return cls(
                names.parse_directory(told["partition"]).directory,
                checked("int", told["deleted_ms"]),
                checked("int", told["due_ms"]),
                checked("int", told["log_start"]),
                checked("int", told["cleaner_offset"]),
                {name: checked("str", value) for name, value in told["settings"].items()},
                {group: _commit(fields) for group, fields in told["commits"].items()},
                checked("bool", told["is_finished"]),
            )
        except (LogfsError, AttributeError, KeyError, TypeError, ValueError, struct.error):
            return None

    def write(self, disk: Disk, directory: Path, *, is_finished: bool) -> None:
        """Write this object as `deletion.json` into a directory, durably. Raises `OSError`.

        The file gets the value of the argument `is_finished`, not that of this object's field.
        """
        told = {**self._asdict(), "settings": dict(self.settings), "is_finished": is_finished}
        write_mark(disk, directory / DELETION, told)


class _Found(NamedTuple):
    """A deleted partition that can be restored: its log directory, its own directory, `Deletion` and topic id."""

    home: LogDir
    path: Path
    kept: Deletion
    topic_id: uuid.UUID | None


def _commit(fields: Any) -> OffsetCommit:
    """Return the commit that has these fields in JSON. Raises `TypeError` or `struct.error` for invalid fields."""
    commit = OffsetCommit(*fields)
    commit.encode()
    return commit


class Deleter(Maintenance):
    """Deletes partitions, and restores deleted ones."""

    def __init__(self, context: MaintenanceContext) -> None:
        super().__init__(context)
        # The deleted partitions that readers may still use, by the `-delete` directory of each.
        self._left: WeakValueDictionary[Path, Partition] = WeakValueDictionary()

    def check_deletable(self, wanted: Sequence[str]) -> list[Partition]:
        """Return the partitions named in `wanted`, if all can be deleted. Raises the errors of `Store.delete`."""
        partitions = [self._registry.writable(name) for name in wanted]
        for topic in {partition.topic for partition in partitions}:
            if topic != GROUPS_TOPIC:
                self._groups.check_open()
            if {*self._registry.partitions_of(topic)} <= {*wanted}:
                self._registry.settings.check_removable(topic)
        return partitions

    def delete(self, name: str, *, only_empty: bool = False) -> int | None:
        """Delete a partition, and return until when it can be restored (ms since the epoch), None if it cannot.

        With `only_empty`, a partition that has records is not deleted, and `PartitionNotEmpty` is raised.
        `deletion.json` is written before the directory is renamed, so that a crash leaves the partition either
        undeleted or restorable. If the directory cannot be renamed, raises `OSError`, and the partition is not
        deleted. Also raises the errors of `Store.delete`.
        """
        registry = self._registry
        (partition,) = self.check_deletable([name])
        commits: Mapping[str, OffsetCommit] = {}
        if partition.topic != GROUPS_TOPIC:
            commits = self._groups.of(name)
        with registry.lock:
            if registry.written().get(name) is not partition:
                raise registry.offline.get(name) or UnknownPartition(f"{name}: no such partition")
            home, now_ms = registry.homes[name], registry.clock()
            kept = Deletion(
                name,
                now_ms,
                now_ms + partition.config.file_delete_delay_ms,
                partition.log_start_offset,
                home.cleaner_offsets.get(partition.name, _NEVER_CLEANED),
                registry.settings.topic_overrides(partition.topic),
                commits,
                is_finished=False,
            )
            with partition.flusher.lock, partition.lock:
                if only_empty:
                    partition.check_empty()
                is_closed = partition.close(UnknownPartition(f"{name}: the partition was deleted"))
            can_return = is_closed and kept.due_ms > now_ms and self._keep(kept, partition)
            doomed = partition.directory.with_name(
                names.deleted_directory(partition.name, uuid.uuid4().hex)
            )
            self._rename(partition, home, doomed, is_closed=is_closed)
            del registry.partitions[name], registry.homes[name]
            registry.deletions[doomed] = kept.due_ms
            self._left[doomed] = partition
            # From here on the partition is deleted, even if a step below fails. A checkpoint entry that cannot be
            # removed now is removed by `Store.create`.
            self._forget(partition.name, home)
        self._forget_commits(name)
        if can_return:
            try:
                kept.write(home.disk, doomed, is_finished=True)
            except OSError as error:
                logger.warning("%s: the next opening finishes its deletion: %s", name, error)
        return kept.due_ms if can_return else None

    def _rename(self, partition: Partition, home: LogDir, doomed: Path, *, is_closed: bool) -> None:
        """Rename the directory of a partition that is being deleted to `doomed`. Raises the `OSError` of the rename.

        `is_closed` tells whether `Partition.close` has flushed and closed the files. After an error the partition is
        not deleted. If `is_closed` is true, its next use loads it again, without recovery. Otherwise it takes no
        appends until the store is opened again, but can be deleted. If only the sync after the rename fails, the
        error is logged. The caller must hold the registry's lock.
        """
        name, directory = partition.name, partition.directory
        try:
            partition.rename_directory(doomed)
        except OSError as error:
            if home.failure is None and partition.directory == doomed:
                logger.error("%s: is deleted, but a power cut may undo it: %s", directory, error)
                return
            if home.failure is None:
                partition.failure = PartitionFailed(
                    f"{name.directory}: its deletion failed; open it again"
                )
                if is_closed:
                    home.log_starts[name] = partition.log_start_offset
                    home.recovery_points[name] = partition.recovery_point
                    self._registry.unload(UnloadedPartition(name, home, directory))
                with suppress(OSError):
                    partition.disk.unlink(directory / DELETION)
            raise

    def _keep(self, kept: Deletion, partition: Partition) -> bool:
        """Write `kept` as `deletion.json` into the directory of `partition`; return whether this succeeded.

        After an error, which is logged, a `deletion.json` that an earlier deletion may have left there is removed.
        """
        try:
            kept.write(partition.disk, partition.directory, is_finished=False)
        except OSError as error:
            logger.warning("%s: is deleted, and cannot be brought back: %s", kept.partition, error)
            # Remove a file that a crash may have left from an earlier deletion: its content is outdated.
            with suppress(OSError):
                partition.disk.unlink(partition.directory / DELETION)
            return False
        return True

    def finish(self) -> None:
        """Finish deletions that a crash has interrupted: remove committed offsets and settings. Errors are logged.

        Does nothing unless all log directories of the store are open: one that is not open may have a new partition
        with the name of the deleted one.
        """
        registry = self._registry
        if not registry.is_whole:
            return
        homes = {log_dir.path: log_dir for log_dir in registry.working}
        for path in list(registry.deletions):
            home = homes.get(path.parent)
            try:
                kept = Deletion.read(home.disk, path) if home is not None else None
                if home is None or kept is None or kept.is_finished:
                    continue
                if kept.partition not in registry.homes:
                    self._forget_commits(kept.partition)
                    with registry.lock:
                        self._forget(names.parse_directory(kept.partition), home)
                kept.write(home.disk, path, is_finished=True)
            except (LogfsError, OSError) as error:
                logger.error("%s: its deletion is not finished: %s", path, error)

    def _forget(self, name: TopicPartition, home: LogDir) -> None:
        """Remove a deleted partition's checkpoint entries and, if its topic has no partition left, the settings.

        The partition's remote segments are marked for deletion when its directory is removed
        (`Upkeep._forget_remote`).
        """
        errors = FirstError()
        with errors:
            home.set_cleaner_offset(name, None)
        if not self._registry.partitions_of(name.topic):
            with errors:
                self._registry.settings.remove_topic(name.topic)
        with errors:
            self._checkpoints.write()
        if errors.error is not None:
            logger.error(
                "%s: deleted, but some of its settings or checkpoint entries are left: %s",
                name.directory,
                errors.error,
            )

    def _forget_commits(self, name: str) -> None:
        try:
            self._groups.forget_partition(name)
        except (LogfsError, OSError) as error:
            logger.error(
                "%s: deleted, but offsets that groups committed for it stay until it is created again: %s",
                name,
                error,
            )

    def deleted(self, name: str) -> list[str]:
        """Return the names to give to `undelete`, one for each partition to restore.

        `name` tells what to restore: it is the name of a deleted partition, of a deleted topic, or of the `-delete`
        directory of a partition. For a topic that was deleted several times, only the partitions with its last topic
        id are returned. Raises `PartitionExists` if the partition exists, or if the topic exists and none of its
        partitions can be restored, and `UnknownPartition` if there is nothing to restore.
        """
        chosen = self._chosen(name)
        if [each.path.name for each in chosen] == [name]:
            return [name]
        return sorted(each.kept.partition for each in chosen)

    def _chosen(self, name: str) -> list[_Found]:
        """Return the deleted partitions to restore for the name of a partition, a topic or a `-delete` directory.

        The name of a directory selects the partition in it. If a partition was deleted several times, only the last
        deletion counts; of a topic, only the partitions with its last topic id. Raises `PartitionExists` if the
        partition exists, or if the topic exists and none of its partitions can be restored, and `UnknownPartition` if
        there is nothing to restore.
        """
        found, there = self._found(), self._registry.homes
        if named := [each for each in found if each.path.name == name]:
            return named
        if name in there or (not self._of(name, found) and self._registry.partitions_of(name)):
            others = ", ".join(str(each.path) for each in self._of(name, found, there=True))
            raise PartitionExists(
                f"{name}: exists; delete it first"
                + (f", and then name the directory to bring back: {others}" if others else "")
            )
        wanted = self._of(name, found)
        if not wanted:
            where = ", ".join(str(log_dir.path) for log_dir in self._registry.working)
            others = ", ".join(sorted({each.kept.partition for each in found} - there.keys()))
            raise UnknownPartition(
                f"{where}: {name} cannot be brought back: it was not deleted, or its file.delete.delay.ms has "
                "passed; " + (f"these can: {others}" if others else "no partition can")
            )
        last = _newest(wanted).topic_id
        alike = [each for each in wanted if each.topic_id == last]
        partitions = {each.kept.partition for each in alike}
        return [_newest([e for e in alike if e.kept.partition == one]) for one in partitions]

    def undelete(self, name: str) -> Log:
        """Restore a deleted partition, and return it when the restoration is durable.

        `name` is the name of the partition, or of its `-delete` directory. The directory is renamed last, so that a
        crash leaves the partition either deleted or completely restored. Raises the errors of `Store.undelete`.
        """
        registry = self._registry
        first = self._find(name)
        home, kept = first.home, first.kept
        parsed = names.parse_directory(kept.partition)
        # Write `is_finished=False`: after a crash before the rename, `finish` removes what was restored until then.
        kept.write(home.disk, first.path, is_finished=False)
        for group, commit in kept.commits.items():
            self._groups.restore(group, kept.partition, commit)
        with registry.lock:
            if self._find(name).path != first.path:
                raise PartitionExists(
                    f"{name}: not restored: another partition of this name was created and deleted meanwhile; "
                    "try again"
                )
            if not registry.partitions_of(parsed.topic):
                registry.settings.change_topic(parsed.topic, self._settings_of(first))
            if kept.cleaner_offset != _NEVER_CLEANED:
                home.set_cleaner_offset(parsed, kept.cleaner_offset)
            path = home.path / parsed.directory
            home.log_starts[parsed] = kept.log_start
            home.recovery_points.pop(parsed, None)
            registry.homes[parsed.directory] = home
            try:
                self._checkpoints.write_one(home)
                self._rename_back(first, path)
            except BaseException:
                del registry.homes[parsed.directory]
                raise
            del registry.deletions[first.path]
            registry.unloaded[parsed.directory] = UnloadedPartition(parsed, home, path)
        home.disk.unlink(path / DELETION)
        return registry[parsed.directory]

    def _rename_back(self, found: _Found, path: Path) -> None:
        """Rename the directory of a deleted partition to `path`. An error of the sync after the rename is logged."""
        left, disk = self._left.get(found.path), found.home.disk
        try:
            if left is None:
                disk.rename(found.path, path)
            else:
                # Readers may still use the closed `Partition`: rename through it, so that they find the files.
                left.rename_directory(path)
        except OSError as error:
            if found.home.failure is not None or disk.exists(found.path):
                raise
            logger.error("%s: is back, but a power cut may undo it: %s", path, error)
        self._left.pop(found.path, None)

    def _find(self, name: str) -> _Found:
        """Return the deleted partition to restore; `name` names the partition or its `-delete` directory."""
        chosen, *others = self._chosen(name)
        if others or name not in (chosen.kept.partition, chosen.path.name):
            raise UnknownPartition(f"{name}: is a topic; name one of its partitions")
        there, topic = self._registry.homes, names.parse_directory(chosen.kept.partition).topic
        if chosen.kept.partition in there:
            raise PartitionExists(f"{chosen.kept.partition}: exists; delete it first")
        if self._registry.topic_id(topic) not in (None, chosen.topic_id):
            raise InvalidStore(
                f"{name}: belongs to a deleted topic, but a new topic {topic} exists; delete the new one first"
            )
        return chosen

    def _settings_of(self, found: _Found) -> Mapping[str, str]:
        """Return the settings of a deleted partition's topic, as kept by the last deletion of one of its partitions.

        Deletions that can no longer be undone are left out.
        """
        topic = names.parse_directory(found.kept.partition).topic
        alike = [each for each in self._of(topic, self._found()) if each.topic_id == found.topic_id]
        return _newest([found, *alike]).kept.settings

    def _found(self) -> list[_Found]:
        """Return the deleted partitions whose `file.delete.delay.ms` has not passed, so that they can be restored."""
        registry, now_ms = self._registry, self._registry.clock()
        homes = {log_dir.path: log_dir for log_dir in registry.working}
        found = []
        for path, due_ms in registry.deletions.copy().items():
            home = homes.get(path.parent)
            kept = Deletion.read(home.disk, path) if home and due_ms > now_ms else None
            if home is not None and kept is not None:
                found.append(_Found(home, path, kept, read_topic_id(home.disk, path)))
        return found

    def _of(self, name: str, found: list[_Found], *, there: bool = False) -> list[_Found]:
        """Return the deleted partitions in `found` that belong to the partition or topic `name`.

        If some of them have the id that the topic has now, only these are returned. A deleted partition is left out
        if a partition with its name exists now, unless `there` is true.
        """
        chosen = []
        for each in found:
            parsed = names.parse_directory(each.kept.partition)
            if name in (parsed.directory, parsed.topic) and (
                there or parsed.directory not in self._registry.homes
            ):
                chosen.append(each)
        topics = {names.parse_directory(each.kept.partition).topic for each in chosen}
        ids = {self._registry.topic_id(topic) for topic in topics} - {None}
        return [each for each in chosen if each.topic_id in ids] or chosen


def _newest(found: Sequence[_Found]) -> _Found:
    """Return the partition that was deleted last."""
    return max(reversed(found), key=lambda each: each.kept.deleted_ms)
