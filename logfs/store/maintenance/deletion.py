"""Deletes partitions as Kafka does, and brings them back while their files are still there.

A deletion renames the directory of a partition to a name that ends in `-delete`. Its files are removed after
`file.delete.delay.ms`. Until then the file `deletion.json` in the directory has what the store forgets at once: the
log start, the cleaner offset, the settings of the topic, and the commits of groups.
"""

from __future__ import annotations

import logging
import struct
import uuid
from typing import TYPE_CHECKING, Any, NamedTuple

from logfs.errors import InvalidStore, LogfsError, PartitionExists, UnknownPartition
from logfs.format.base import names
from logfs.format.files.commit_file import checked
from logfs.format.messages.group_record import OffsetCommit
from logfs.store.directory.log_dir import FirstError
from logfs.store.directory.mark import read_mark, write_mark
from logfs.store.directory.topic_id import read_topic_id
from logfs.store.groups import TOPIC as GROUPS_TOPIC
from logfs.store.maintenance.context import Maintenance
from logfs.store.registry import UnloadedPartition

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from pathlib import Path

    from logfs.log.append.partition import Partition
    from logfs.log.disk.disk import Disk
    from logfs.log.read.log import Log
    from logfs.store.directory.log_dir import LogDir

logger = logging.getLogger(__name__)

_MARK = "deletion.json"
_NEVER_CLEANED = -1


class Deletion(NamedTuple):
    """What is kept of a deleted partition beside its files.

    The files are kept until `due_ms` (ms since the epoch). `cleaner_offset` is -1 for a log that was never compacted.
    `commits` has the commit of each group.
    """

    partition: str
    due_ms: int
    log_start: int
    cleaner_offset: int
    settings: Mapping[str, str]
    commits: Mapping[str, OffsetCommit]

    @classmethod
    def read(cls, disk: Disk, directory: Path) -> Deletion | None:
        """Return what is kept in a directory; None if the file is missing, damaged or a copy. Raises `OSError`."""
        mark = read_mark(disk, directory / _MARK)
        if mark is None or mark.is_copy:
            return None
        told = mark.told
        try:
            return cls(
                names.parse_directory(told["partition"]).directory,
                checked("int", told["due_ms"]),
                checked("int", told["log_start"]),
                checked("int", told["cleaner_offset"]),
                {name: checked("str", value) for name, value in told["settings"].items()},
                {group: _commit(fields) for group, fields in told["commits"].items()},
            )
        except (LogfsError, AttributeError, KeyError, TypeError, ValueError, struct.error):
            return None

    def write(self, disk: Disk, directory: Path) -> None:
        """Write the file into a directory, durably. Raises `OSError`."""
        write_mark(disk, directory / _MARK, {**self._asdict(), "settings": dict(self.settings)})


def _commit(fields: Any) -> OffsetCommit:
    """Return the commit with these fields from JSON. Raises `TypeError` or `struct.error` for other values."""
    commit = OffsetCommit(*fields)
    commit.encode()
    return commit


class Deleter(Maintenance):
    """Deletes partitions, and brings deleted ones back."""

    def delete(self, name: str, *, only_empty: bool = False) -> int | None:
        """Delete a partition, and return until when it can be brought back (ms since the epoch), None if it cannot.

        Raises as `Store.delete`.
        """
        registry = self._registry
        partition = registry.writable(name)
        commits: Mapping[str, OffsetCommit] = {}
        if partition.topic != GROUPS_TOPIC:
            self._groups.check_open()
            commits = self._groups.of(name)
        with registry.lock:
            if registry.written().get(name) is not partition:
                raise registry.offline.get(name) or UnknownPartition(f"{name}: no such partition")
            home = registry.homes[name]
            kept = Deletion(
                name,
                registry.clock() + partition.config.file_delete_delay_ms,
                partition.log_start_offset,
                home.cleaner_offsets.get(partition.name, _NEVER_CLEANED),
                registry.settings.topic_overrides(partition.topic),
                commits,
            )
            with partition.flusher.lock, partition.lock:
                if only_empty:
                    partition.check_empty()
                is_closed = partition.close(UnknownPartition(f"{name}: the partition was deleted"))
            doomed = partition.directory.with_name(
                names.deleted_directory(partition.name, uuid.uuid4().hex)
            )
            partition.rename_directory(doomed)
            del registry.partitions[name], registry.homes[name]
            registry.deletions[doomed] = kept.due_ms
            # The partition is deleted now, whatever fails below. `create` removes entries that cannot be removed now.
            self._forget(partition, home)
            can_return = is_closed and kept.due_ms > registry.clock()
            if can_return:
                try:
                    kept.write(home.disk, doomed)
                except OSError as error:
                    can_return = False
                    logger.warning("%s: deleted, and cannot be brought back: %s", name, error)
        try:
            self._groups.forget_partition(name)
        except (LogfsError, OSError) as error:
            logger.error(
                "%s: deleted, but offsets that groups committed for it stay until it is created again: %s",
                name,
                error,
            )
        return kept.due_ms if can_return else None

    def _forget(self, partition: Partition, home: LogDir) -> None:
        """Remove the entries of a deleted partition in checkpoints, and the settings of a topic without partitions.

        Remote segments are forgotten when the directory is removed (`MaintenanceScheduler._forget_remote`).
        """
        errors = FirstError()
        with errors:
            home.set_cleaner_offset(partition.name, None)
        if not self._registry.partitions_of(partition.topic):
            with errors:
                self._registry.settings.remove_topic(partition.topic)
        with errors:
            self._checkpoints.write()
        if errors.error is not None:
            logger.error(
                "%s: deleted, but some of its settings or checkpoint entries are left: %s",
                partition.name.directory,
                errors.error,
            )

    def deleted(self, name: str) -> list[str]:
        """Return the deleted partitions that `undelete` brings back for `name`, a partition or a topic.

        Of a topic that was deleted several times, these are the partitions with its last topic id. Raises
        `PartitionExists`, and `UnknownPartition` if there are none.
        """
        found = self._kept()
        if name in self._registry.homes:
            raise PartitionExists(f"{name}: the partition exists; delete or move it first")
        chosen = names.partitions_named(name, found)
        wanted = sorted((found[each][2].due_ms, each) for each in chosen if each in found)
        if not wanted:
            raise self._unknown(name, found)
        ids = {each: read_topic_id(found[each][0].disk, found[each][1]) for _, each in wanted}
        last = ids[wanted[-1][1]]
        return sorted(each for each, topic_id in ids.items() if topic_id == last)

    def undelete(self, name: str) -> Log:
        """Bring a deleted partition back, and return it once that is durable. Raises as `Store.undelete`.

        The rename of the directory comes last, so that a crash leaves the partition deleted, or with all that it had.
        """
        registry, parsed = self._registry, names.parse_directory(name)
        _, doomed, kept = self._find(name)
        for group, commit in kept.commits.items():
            self._groups.restore(group, name, commit)
        with registry.lock:
            home, found, _ = self._find(name)
            if found != doomed:
                raise PartitionExists(f"{name}: was created and deleted meanwhile; try again")
            if not registry.partitions_of(parsed.topic):
                registry.settings.change_topic(parsed.topic, kept.settings)
            if kept.cleaner_offset != _NEVER_CLEANED:
                home.set_cleaner_offset(parsed, kept.cleaner_offset)
            home.log_starts[parsed] = kept.log_start
            home.recovery_points.pop(parsed, None)
            registry.homes[name] = home
            try:
                self._checkpoints.write_one(home)
                home.disk.rename(doomed, home.path / name)
            except BaseException:
                del registry.homes[name]
                raise
            del registry.deletions[doomed]
            registry.unloaded[name] = UnloadedPartition(parsed, home, home.path / name)
        home.disk.unlink(home.path / name / _MARK)
        return registry[name]

    def _find(self, name: str) -> tuple[LogDir, Path, Deletion]:
        """Return the log directory, the directory and the deletion of a partition that can be brought back now."""
        self.deleted(name)
        kept = self._kept()
        home, doomed, _ = kept[name]
        topic = names.parse_directory(name).topic
        if self._registry.topic_id(topic) not in (None, read_topic_id(home.disk, doomed)):
            raise InvalidStore(
                f"{name}: belongs to a deleted topic, and another topic {topic} exists; delete that first"
            )
        return kept[name]

    def _kept(self) -> dict[str, tuple[LogDir, Path, Deletion]]:
        """Return by name the partitions that can be brought back, each from its last deletion."""
        registry, now_ms = self._registry, self._registry.clock()
        homes = {log_dir.path: log_dir for log_dir in registry.working}
        found: dict[str, tuple[LogDir, Path, Deletion]] = {}
        for path, due_ms in registry.deletions.copy().items():
            home = homes.get(path.parent)
            if home is not None and due_ms > now_ms:
                kept = Deletion.read(home.disk, path)
                if kept is None or kept.partition in registry.homes:
                    continue
                last = found.get(kept.partition)
                if last is None or last[2].due_ms < kept.due_ms:
                    found[kept.partition] = home, path, kept
        return found

    def _unknown(self, name: str, others: Collection[str]) -> UnknownPartition:
        """Return the error for a partition or topic that cannot be brought back; `others` can be."""
        where = ", ".join(str(log_dir.path) for log_dir in self._registry.working)
        can = f"these can: {', '.join(sorted(others))}" if others else "no partition can"
        return UnknownPartition(
            f"{where}: {name} cannot be brought back: it was not deleted, or its file.delete.delay.ms has passed; "
            f"{can}"
        )
