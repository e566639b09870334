"""`segments/`: the partition's real files, read-only, for cp, rsync and Kafka's own tools."""

from __future__ import annotations

import stat
from typing import TYPE_CHECKING

from logfs.format import names
from logfs.mount.nodes.base import (
    READ_BITS,
    Caller,
    Context,
    File,
    Handle,
    Node,
    PartitionAccess,
    Stat,
)
from logfs.mount.nodes.folder import PartitionFolder

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from logfs.log.files import Disk
    from logfs.log.files import File as DiskFile
    from logfs.log.segment import Segment

# What stays ours: a crash leaves these, and no copy of the log needs them.
_HIDDEN = (
    ".tmp",
    names.DELETED,
    names.CLEANED,
    names.SWAP,
    names.KEY_MAP,
    names.COMMITTED_KEY_MAP,
)


class SegmentsDirectory(PartitionFolder):
    """The files of the partition directory under the names they have there."""

    def find(self, name: str) -> Node | None:
        if name in self.names():
            return SegmentFile(self.context, name, self)
        return None

    def names(self) -> Iterator[str]:
        for entry in self.partition.disk.scan(self.partition.directory):
            if entry.is_file(follow_symlinks=False) and not entry.name.endswith(_HIDDEN):
                yield entry.name

    def is_current(self, node: Node) -> bool:
        return not isinstance(node, SegmentFile) or node.is_current

    def segment(self, name: str) -> Segment | None:
        """The active segment, if the file is one of its; the files of the others are what they are."""
        active = self.partition.active
        return active if name.startswith(names.stem(active.base_offset) + ".") else None


class SegmentFile(PartitionAccess, File):
    """One real file. Of an active segment's it shows what is written, not the room that is preallocated."""

    allowed_bits = READ_BITS
    # Nobody asks again for the name of a segment that is gone.
    is_fleeting = True

    def __init__(self, context: Context, name: str, parent: SegmentsDirectory) -> None:
        super().__init__(context, name, parent)
        self._folder = parent
        self.modes = parent.modes
        self.mode_name = parent.name
        self._disk = parent.partition.disk
        self._inode = self._disk.stat(self._real).st_ino
        # Of those who read it: they see the file that they opened, whatever its name leads to now.
        self.files: list[DiskFile] = []

    @property
    def _real(self) -> Path:
        return self._folder.partition.directory / self.name

    @property
    def is_current(self) -> bool:
        """Whether the name still leads to this file: compaction puts another one in its place."""
        try:
            return self._disk.stat(self._real).st_ino == self._inode
        except FileNotFoundError:
            return False

    def size(self) -> int:
        """The bytes that make sense to a reader now."""
        if not self.is_current and self.files:
            return self._disk.size(self.files[0])
        segment = self._folder.segment(self.name)
        if segment is not None:
            if self.name.endswith(names.LOG):
                return segment.size_bytes
            for index in segment.indexes:
                if index.path.name == self.name:
                    return index.size_bytes
        return self._disk.stat(self._real).st_size

    def stat(self) -> Stat:
        self._folder.partition.refresh()
        access = self.access()
        opened = self.files[:1]
        found = self._disk.stat_file(opened[0]) if opened else self._disk.stat(self._real)
        mode = stat.S_IFREG | access.mode
        return Stat(mode, access.uid, access.gid, self.size(), found.st_mtime_ns)

    def open(self, flags: int, caller: Caller) -> Handle:
        self.refuse_writing(flags)
        file = self._disk.open(self._real)
        found = self._disk.stat_file(file).st_ino
        if found != self._inode and self.files:
            # Replaced since the name was looked up, while somebody else reads what it was.
            return OtherHandle(self, file, self._disk)
        self._inode = found
        return SegmentHandle(self, file, self._disk)


class OtherHandle(Handle):
    """An open real file other than the one whose pages the kernel has: it asks for every read of this one."""

    direct_io = True

    def __init__(self, node: SegmentFile, file: DiskFile, disk: Disk) -> None:
        super().__init__(node)
        self._file = file
        self._disk = disk

    def read(self, position: int, size: int) -> bytes:
        return bytes(self._disk.read(self._file, position, size))

    def release(self) -> None:
        self._file.close()


class SegmentHandle(OtherHandle):
    """An open real file; the descriptor outlives the file's deletion by retention."""

    direct_io = False

    def __init__(self, node: SegmentFile, file: DiskFile, disk: Disk) -> None:
        super().__init__(node, file, disk)
        self._node = node
        node.files.append(file)

    def read(self, position: int, size: int) -> bytes:
        return super().read(position, max(min(size, self._node.size() - position), 0))

    def release(self) -> None:
        self._node.files.remove(self._file)
        super().release()
