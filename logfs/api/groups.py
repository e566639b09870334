"""The committed offsets of consumer groups, as a mapping."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from logfs.api.arguments import checked_name, checked_offsets
from logfs.errors import UnknownGroup, did_you_mean
from logfs.format.messages.group_record import lag_of
from logfs.store.groups import TOPIC

if TYPE_CHECKING:
    from collections.abc import Iterator

    from logfs.api.store import Store
    from logfs.store.groups import Groups


class ConsumerGroups(Mapping[str, Mapping[str, int]]):
    """The committed offsets of all groups: `store.groups["billing"]` maps names of partitions to offsets.

    A committed offset is that of the next record that the group will read. The offsets are stored in the topic
    `__consumer_offsets` in Kafka's format, so Kafka's consumers see them, too.
    """

    def __init__(self, store: Store) -> None:
        self._store = store

    def _refreshed(self) -> Groups:
        """Return the committed offsets of all groups, up to date with the commits of other processes."""
        engine = self._store._refreshed()
        for name in engine.registry.partitions_of(TOPIC):
            engine.refresh(name)
        return engine.groups

    def _all(self) -> dict[str, dict[str, int]]:
        found: dict[str, dict[str, int]] = {}
        for group, partition, commit in self._refreshed():
            found.setdefault(group, {})[partition.directory] = commit.offset
        return found

    def __getitem__(self, group: str) -> Mapping[str, int]:
        """Return the offsets of a group, by partition. Raises `UnknownGroup` (a `KeyError`) if it has none."""
        found = self._all()
        if group not in found:
            raise UnknownGroup(
                f"{group!r}: no group of this name has committed offsets{did_you_mean(group, found)}"
            )
        return found[group]

    def __iter__(self) -> Iterator[str]:
        return iter(self._all())

    def __len__(self) -> int:
        return len(self._all())

    def commit(self, group: str, offsets: Mapping[str, int], metadata: str = "") -> None:
        """Commit offsets of a group, all or none. The commits are durable when this returns.

        `offsets` maps partition names to the next offset that the group will read. Raises `UnknownPartition`,
        `OffsetOutOfRange` for an offset outside of the log, `InvalidName` for an invalid name of a group,
        `InvalidRecord` for metadata that is too long, and `NotWritable` if the store is read-only.
        """
        groups = self._store._for_writing(checked_name("group", group)).groups
        groups.commit_all(group, checked_offsets(offsets), checked_name("metadata", metadata))
        groups.log_of(group).flush()

    def forget(self, group: str, partition: str) -> bool:
        """Remove the committed offset of a group for a partition, durably. Return whether there was one."""
        groups = self._store._for_writing(checked_name("group", group)).groups
        return groups.forget(group, checked_name("partition", partition))

    def lag(self, group: str) -> dict[str, int]:
        """Return, by partition name, how many offsets lie between the group's committed offset and the log end.

        Partitions that the store does not have are left out. Raises `UnknownGroup`.
        """
        return {
            name: lag_of(offset, self._store[name].log_end_offset)
            for name, offset in self[group].items()
            if name in self._store
        }
