"""Files with the text of many records: `records`, `records.jsonl`, and ranges of offsets or times."""

from __future__ import annotations

import errno
import stat
from typing import TYPE_CHECKING

from logfs.format.text.rendering import View
from logfs.log.read.text_view import NO_READER
from logfs.mount import sharers
from logfs.mount.nodes.base import (
    READ_BITS,
    Caller,
    Context,
    DirectoryNode,
    Handle,
    Stat,
    file_number_of,
)
from logfs.mount.nodes.growing import GrowingFile, GrowingHandle

if TYPE_CHECKING:
    from logfs.log.read.reader import Reader
    from logfs.store.directory.permissions import PermissionTable

JSONL = ".jsonl"


def view_of(name: str) -> View:
    """Return `View.ENVELOPES` for a file name that ends in `.jsonl`, and `View.LINES` for any other."""
    return View.ENVELOPES if name.endswith(JSONL) else View.LINES


class TextFile(GrowingFile):
    """The text of the records [start, end) of a partition. It grows with the log, up to `end` if there is one.

    All nodes with the same name and the same generation of the log are one file, and have the same `file_number`
    (`st_ino`). After the generation has changed, a file remains readable through its open handles, but its name leads
    to a new file.
    """

    allowed_bits = READ_BITS
    grows_by_appends = True

    def __init__(
        self,
        context: Context,
        name: str,
        parent: DirectoryNode,
        partition: Reader,
        modes: PermissionTable,
        mode_name: str,
        start: int | None = None,
        end: int | None = None,
    ) -> None:
        super().__init__(context, name, parent, partition)
        self.modes = modes
        self.mode_name = mode_name
        # The kernel may be asked to forget ranges, because `offsets/` and `time/` may have any number of them. A
        # partition has only one `records` and one `records.jsonl`.
        self.is_evictable = name != mode_name
        self.view = partition.text(view_of(name), start, end)
        self.file_number = file_number_of(parent.inode, name, self.view.generation)
        self.release_before()

    @property
    def is_growing(self) -> bool:
        return not self.view.is_closed

    def byte_at(self, position: int) -> bytes:
        return self.view.read(position, 1)

    @property
    def is_current(self) -> bool:
        """Whether a new node of this name would have the same content."""
        return self.view.generation == self.partition.generation and self.view.is_whole

    def stat(self) -> Stat:
        self.partition.refresh()
        access = self.access()
        timestamp = self.partition.last_timestamp
        if timestamp < 0:
            timestamp = self.partition.active.mtime_ms()
        size = self.view.size
        return Stat(stat.S_IFREG | access.mode, access.uid, access.gid, size, timestamp * 1_000_000)

    def open(self, flags: int, caller: Caller) -> Handle:
        self.refuse_writing(flags)
        handle = TextHandle(self, caller.pid)
        if not self.view.is_whole:
            # Since the lookup, the first segment of the view has left the log, and the view has released it.
            handle.release()
            raise OSError(
                errno.ESTALE, f"{self.path}: now begins at a later offset; look it up again"
            )
        return handle

    def release_before(self) -> None:
        """Allow the view to release segments that have left the log and that no reader needs.

        A reader needs the segments from the position of its last read on, and, to seek back, the last few before it.
        The view is told the lowest of these positions (bytes). If no handle is open, no segment is needed.
        """
        self.view.release_before(
            min(
                (handle.position for handle in [*self.handles] if isinstance(handle, TextHandle)),
                default=NO_READER,
            )
        )


class TextHandle(GrowingHandle):
    """An open text file. Bytes that were read once never change, so the kernel's pages remain valid.

    If the file may grow, and this process cannot see in `/proc` the thread that opened the file, the handle uses
    direct_io, so that the kernel keeps no pages: `GrowingSizes` cannot tell when such a thread has left a read.
    """

    keep_cache = True

    def __init__(self, node: TextFile, opener: int) -> None:
        # The position of the last read that the daemon answered. The kernel answers other reads from its page cache.
        self.position = 0
        super().__init__(node, opener)
        self.direct_io = node.is_growing and not sharers.is_visible(opener)
        self._file = node
        node.release_before()

    def read(self, position: int, size: int) -> bytes:
        data = self._file.view.read(position, size)
        self._file.partition.traffic.bytes_out += len(data)
        self.position = position
        self._file.release_before()
        return data

    def release(self) -> None:
        super().release()
        self._file.release_before()
