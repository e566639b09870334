"""`segments/`: the partition's real files, read-only, for cp, rsync and Kafka's own tools."""

from __future__ import annotations

import errno
import stat
from typing import TYPE_CHECKING

from logfs.format import names
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


class SegmentFile(GrowingFile):
    """One real file. Of an active segment's it shows what is written, not the room that is preallocated.

    The kernel is asked to cache no pages of a file that grows, which therefore cannot be mapped shared. Once it is
    sealed its name leads to a new node.
    """

    allowed_bits = READ_BITS
    # Nobody asks again for the name of a segment that is gone.
    is_fleeting = True

    def __init__(self, context: Context, name: str, parent: SegmentsDirectory) -> None:
        super().__init__(context, name, parent, parent.partition)
        self._folder = parent
        self.modes = parent.modes
        self.mode_name = parent.name
        self._disk = parent.partition.disk
        self._inode = self._disk.stat(self._real).st_ino
        self.file_number = file_number_of(parent.inode, self._inode)
        self._grows = parent.segment(name) is not None

    @property
    def is_growing(self) -> bool:
        return self._grows

    def byte_at(self, position: int) -> bytes:
        for file in self._opened():
            return bytes(self._disk.read(file, position, 1))
        raise OSError(errno.ENOENT, f"{self.path}: nobody has it open any more")

    def _opened(self) -> Iterator[DiskFile]:
        """What those who read it have opened: they see that file, whatever its name leads to now."""
        return (each.file for each in [*self.handles] if isinstance(each, SegmentHandle))

    @property
    def _real(self) -> Path:
        return self._folder.partition.directory / self.name

    @property
    def is_current(self) -> bool:
        """Whether the name still leads to this node: it does not once the file was replaced or sealed."""
        return self._is_in_place and self._grows == (self._folder.segment(self.name) is not None)

    @property
    def _is_in_place(self) -> bool:
        """Whether the name still leads to this file: compaction puts another one in its place."""
        try:
            return self._disk.stat(self._real).st_ino == self._inode
        except FileNotFoundError:
            return False

    def size(self) -> int:
        """The bytes that make sense to a reader now."""
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
        return self._disk.stat(self._real).st_size

    def stat(self) -> Stat:
        self._folder.partition.refresh()
        access = self.access()
        opened = next(self._opened(), None)
        found = self._disk.stat_file(opened) if opened else self._disk.stat(self._real)
        mode = stat.S_IFREG | access.mode
        return Stat(mode, access.uid, access.gid, self.size(), found.st_mtime_ns)

    def open(self, flags: int, caller: Caller) -> Handle:
        self.refuse_writing(flags)
        file = self._disk.open(self._real)
        found = self._disk.stat_file(file).st_ino
        if found != self._inode and self.handles:
            # Replaced since the name was looked up, while somebody else reads what it was.
            return OtherHandle(self, file, self._disk)
        self._inode = found
        self.file_number = file_number_of(self._folder.inode, found)
        return SegmentHandle(self, caller.pid, file, self._disk)


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


class SegmentHandle(GrowingHandle):
    """An open real file; the descriptor outlives the file's deletion by retention.

    It is closed with the last reference: another thread may ask for the file's size while this is released.
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
