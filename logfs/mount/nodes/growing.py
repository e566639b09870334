"""The base classes of files that may grow at their end while they are open, and change in no other way."""

from __future__ import annotations

from typing import TYPE_CHECKING

from logfs.mount.nodes.base import FileNode, Handle, PartitionAccess

if TYPE_CHECKING:
    from logfs.log.read.reader import Reader
    from logfs.mount.nodes.base import Context, DirectoryNode


class GrowingFile(PartitionAccess, FileNode):
    """A file that may grow with the log of a partition.

    While the file may grow, each open file description has a node of its own, and the kernel keeps no attributes
    from lookups (`attr_timeout` 0). The module `logfs.mount.growing_sizes` explains why.
    """

    # Whether the file grows only by appends to `partition`, so that the kernel may keep its size until an append.
    grows_by_appends = False

    def __init__(
        self, context: Context, name: str, parent: DirectoryNode, partition: Reader
    ) -> None:
        super().__init__(context, name, parent)
        self.partition = partition
        self.handles: set[GrowingHandle] = set()

    @property
    def is_growing(self) -> bool:
        """Whether the size may still change."""
        raise NotImplementedError

    def byte_at(self, position: int) -> bytes:
        """Return the byte at `position`, as `bytes` of length 1.

        `GrowingSizes` gets the file's last byte by this method, and stores it in the kernel's page cache, so that the
        kernel sees that the file has grown.
        """
        raise NotImplementedError


class GrowingHandle(Handle):
    """An open file that may grow; `opener` is the id of the thread that opened it."""

    def __init__(self, node: GrowingFile, opener: int) -> None:
        super().__init__(node)
        self.opener = opener
        self._handles = node.handles
        self._handles.add(self)

    def release(self) -> None:
        self._handles.discard(self)
