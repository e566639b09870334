"""`segments/`: the real files of the partition, read-only, for cp, rsync and Kafka's own tools."""

from __future__ import annotations

import errno
import stat
from typing import TYPE_CHECKING

from logfs.format.base import names
from logfs.mount.nodes.base import (
    READ_BITS,
    Caller,
    Context,
    Handle,
    Node,
    Stat,
    file_number_of,
)
from logfs.mount.nodes.folder import PartitionFolder
from logfs.mount.nodes.growing import GrowingFile, GrowingHandle

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from logfs.log.disk.disk import Disk
    from logfs.log.disk.disk import File as DiskFile
    from logfs.log.segment.segment import Segment

# Suffixes of the store's temporary files and caches, which a copy of the log does not need.
_HIDDEN = (
    ".tmp",
    names.DELETED,
    names.CLEANED,
    names.SWAP,
    names.KEY_INDEX,
    names.COMMITTED_KEY_INDEX,
)


class SegmentsDirectory(PartitionFolder):
    """The directory `segments/`, with the files of the partition directory except temporary ones and caches."""

    def find(self, name: str) -> Node | None:
        if name.endswith(_HIDDEN):
            return None
        try:
            found = self.partition.disk.stat(self.partition.directory / name)
        except FileNotFoundError:
            return None
        return SegmentFile(self.context, name, self) if stat.S_ISREG(found.mode) else None

    def names(self) -> Iterator[str]:
        for entry in self.partition.disk.scan(self.partition.directory):
            if entry.is_file and not entry.name.endswith(_HIDDEN):
                yield entry.name

    def is_current(self, node: Node) -> bool:
        return not isinstance(node, SegmentFile) or node.is_current

    def segment(self, name: str) -> Segment | None:
        """Return the active segment, whose files grow, if `name` is one of its files. Otherwise return None."""
        active = self.partition.active
        return active if name.startswith(names.stem(active.base_offset) + ".") else None


class SegmentFile(GrowingFile):
    """A file of the partition directory. The sizes of files of the active segment exclude preallocated space.

    A growing file is opened with direct_io: reads go to the daemon, and mmap(2) with MAP_SHARED fails. Once the
    segment is sealed, the name leads to a new node.
    """

    allowed_bits = READ_BITS
    # The names of a deleted segment are not looked up again. The kernel would keep their nodes if it were not asked
    # to forget these names.
    is_evictable = True

    def __init__(self, context: Context, name: str, parent: SegmentsDirectory) -> None:
        super().__init__(context, name, parent, parent.partition)
        self._folder = parent
        self.modes = parent.modes
        self.mode_name = parent.name
        self._disk = parent.partition.disk
        self._inode = self._disk.stat(self._real).identity
        self.file_number = file_number_of(parent.inode, self._inode)
        self._grows = parent.segment(name) is not None

    @property
    def is_growing(self) -> bool:
        return self._grows

    def byte_at(self, position: int) -> bytes:
        for file in self._opened():
            return bytes(self._disk.read(file, position, 1))
        raise OSError(errno.ENOENT, f"{self.path}: is no longer open")

    def _opened(self) -> Iterator[DiskFile]:
        """Yield the open file of each `SegmentHandle` of the node.

        These files may differ from the one at the path, where compaction may have put another file since.
        """
        return (each.file for each in [*self.handles] if isinstance(each, SegmentHandle))

    @property
    def _real(self) -> Path:
        return self._folder.partition.directory / self.name

    @property
    def is_current(self) -> bool:
        """Whether the name still leads to this node.

        The name leads to a new node once the file is replaced or its segment is sealed.
        """
        return self._is_in_place and self._grows == (self._folder.segment(self.name) is not None)

    @property
    def _is_in_place(self) -> bool:
        """Whether the path still leads to the node's file: compaction may have put another file there."""
        try:
            return self._disk.stat(self._real).identity == self._inode
        except FileNotFoundError:
            return False

    def size(self) -> int:
        """Return the number of bytes that readers may read now."""
        if not self._is_in_place:
            for file in self._opened():
                return self._disk.size(file)
        segment = self._folder.segment(self.name)
        if segment is not None:
            if self.name.endswith(names.LOG):
                return segment.size_bytes
            for index in segment.indexes:
                if index.path.name == self.name:
                    return index.size_bytes
        return self._disk.stat(self._real).size_bytes

    def stat(self) -> Stat:
        self._folder.partition.refresh()
        access = self.access()
        opened = next(self._opened(), None)
        found = self._disk.stat_file(opened) if opened else self._disk.stat(self._real)
        mode = stat.S_IFREG | access.mode
        return Stat(mode, access.uid, access.gid, self.size(), found.mtime_ns)

    def open(self, flags: int, caller: Caller) -> Handle:
        self.refuse_writing(flags)
        file = self._disk.open(self._real)
        found = self._disk.stat_file(file).identity
        if found != self._inode and self.handles:
            # The file was replaced since the lookup, and other handles of this node still have the old file open.
            return OtherHandle(self, file, self._disk)
        self._inode = found
        self.file_number = file_number_of(self._folder.inode, found)
        return SegmentHandle(self, caller.pid, file, self._disk)


class OtherHandle(Handle):
    """A handle for the new file at the path of a node, while older handles of the node still read the replaced file.

    The kernel's page cache for the node has the pages of the replaced file. So this handle uses direct_io: every read
    goes to the daemon.
    """

    direct_io = True

    def __init__(self, node: SegmentFile, file: DiskFile, disk: Disk) -> None:
        super().__init__(node)
        self._file = file
        self._disk = disk

    def read(self, position: int, size: int) -> bytes:
        return bytes(self._disk.read(self._file, position, size))

    def release(self) -> None:
        self._file.close()


class SegmentHandle(GrowingHandle):
    """An open file of the partition directory. Its descriptor stays valid after retention has deleted the file.

    The descriptor is closed with its last reference, not by `release`: another thread may ask for the file's size
    during `release`.
    """

    def __init__(self, node: SegmentFile, opener: int, file: DiskFile, disk: Disk) -> None:
        self.file = file
        super().__init__(node, opener)
        self.direct_io = node.is_growing
        self._disk = disk
        self._segment_file = node

    def read(self, position: int, size: int) -> bytes:
        size = max(min(size, self._segment_file.size() - position), 0)
        return bytes(self._disk.read(self.file, position, size))
