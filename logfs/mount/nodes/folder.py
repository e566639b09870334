"""The base class of the directories inside a partition directory."""

from __future__ import annotations

import stat
from typing import TYPE_CHECKING

from logfs.mount.nodes.base import DIRECTORY_BITS, Context, DirectoryNode, PartitionAccess, Stat

if TYPE_CHECKING:
    from logfs.log.read.reader import Reader
    from logfs.store.directory.permissions import PermissionTable


class PartitionFolder(PartitionAccess, DirectoryNode):
    """The base of `offsets/`, `time/`, `keys/`, `segments/`, `config/` and `groups/` in a partition directory."""

    allowed_bits = DIRECTORY_BITS
    entry_timeout = 1.0

    def __init__(
        self,
        context: Context,
        name: str,
        parent: DirectoryNode,
        partition: Reader,
        modes: PermissionTable,
    ) -> None:
        super().__init__(context, name, parent)
        self.partition = partition
        self.modes = modes
        self.mode_name = name

    def stat(self) -> Stat:
        self.partition.refresh()
        access = self.access()
        timestamp = self.partition.last_timestamp
        if timestamp < 0:
            timestamp = self.partition.active.mtime_ms()
        return Stat(stat.S_IFDIR | access.mode, access.uid, access.gid, 0, timestamp * 1_000_000)
