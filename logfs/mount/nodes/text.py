"""Files that are the text of many records: `records`, `records.jsonl`, and ranges of offsets or times."""

from __future__ import annotations

import errno
import stat
from typing import TYPE_CHECKING

from logfs.format.text import View
from logfs.log.view import NOBODY
from logfs.mount import sharers
from logfs.mount.nodes.base import (
    READ_BITS,
    Caller,
    Context,
    Directory,
    Handle,
    Stat,
    file_number_of,
)
from logfs.mount.nodes.growing import GrowingFile, GrowingHandle

if TYPE_CHECKING:
    from logfs.log.reader import Reader
    from logfs.store.modes import Modes

JSONL = ".jsonl"


def view_of(name: str) -> View:
    """Which text a file's name asks for."""
    return View.ENVELOPES if name.endswith(JSONL) else View.LINES


class TextFile(GrowingFile):
    """The text of the records [start, end) of a partition; without an end it grows with the log.

    All nodes of one name and one generation of the log are one file with one `file_number`. A file of an older
    generation lives on under its open handles, and its name leads to a new one.
    """

    allowed_bits = READ_BITS
    grows_by_appends = True

    def __init__(
        self,
        context: Context,
        name: str,
        parent: Directory,
        partition: Reader,
        modes: Modes,
        mode_name: str,
        start: int | None = None,
        end: int | None = None,
    ) -> None:
        super().__init__(context, name, parent, partition)
        self.modes = modes
        self.mode_name = mode_name
        # There are two texts of a partition, and any number of ranges.
        self.is_fleeting = name != mode_name
        self.view = partition.text(view_of(name), start, end)
        self.file_number = file_number_of(parent.inode, name, self.view.generation)
        self.let_go()

    @property
    def is_growing(self) -> bool:
        return not self.view.is_closed

    def byte_at(self, position: int) -> bytes:
        return self.view.read(position, 1)

    @property
    def is_current(self) -> bool:
        """Whether a new file of this name would show the same."""
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
            # Looked up before those who read it passed what has left the log since.
            handle.release()
            raise OSError(errno.ESTALE, f"{self.path}: begins elsewhere by now; look it up again")
        return handle

    def let_go(self) -> None:
        """Have the view keep no more of what left the log than its slowest reader may want."""
        self.view.let_go(
            min(
                (handle.position for handle in [*self.handles] if isinstance(handle, TextHandle)),
                default=NOBODY,
            )
        )


class TextHandle(GrowingHandle):
    """An open text file. What was shown once never changes, so the kernel's pages stay good.

    If this process cannot watch the thread that opened it, the kernel keeps no pages.
    """

    keep_cache = True

    def __init__(self, node: TextFile, opener: int) -> None:
        # Where the last read began that the kernel had to ask for.
        self.position = 0
        super().__init__(node, opener)
        self.direct_io = node.is_growing and not sharers.is_visible(opener)
        self._file = node
        node.let_go()

    def read(self, position: int, size: int) -> bytes:
        data = self._file.view.read(position, size)
        self._file.partition.traffic.bytes_out += len(data)
        self.position = position
        self._file.let_go()
        return data

    def release(self) -> None:
        super().release()
        self._file.let_go()
