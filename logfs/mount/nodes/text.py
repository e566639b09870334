"""Files that are the text of many records: `records`, `records.jsonl`, and ranges of offsets or times."""

from __future__ import annotations

import stat
from typing import TYPE_CHECKING

from logfs.format.text import View
from logfs.log.view import NOBODY
from logfs.mount.nodes.base import (
    READ_BITS,
    Caller,
    Context,
    Directory,
    File,
    Handle,
    PartitionAccess,
    Stat,
)

if TYPE_CHECKING:
    from logfs.log.reader import Reader
    from logfs.store.modes import Modes

JSONL = ".jsonl"


def view_of(name: str) -> View:
    """Which text a file's name asks for."""
    return View.ENVELOPES if name.endswith(JSONL) else View.LINES


class TextFile(PartitionAccess, File):
    """The text of the records [start, end) of a partition; without an end it grows with the log.

    The kernel keeps no attributes of it (`attr_timeout` 0) and asks for the size whenever a read reaches the end
    it knows: taking attributes back at every append instead would make it drop the answers that are under way,
    and a reader beside many writers would miss what is there. A file of an older generation lives on under its
    open handles, and its name leads to a new one.
    """

    allowed_bits = READ_BITS

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
        super().__init__(context, name, parent)
        self.partition = partition
        self.modes = modes
        self.mode_name = mode_name
        # There are two texts of a partition, and any number of ranges.
        self.is_fleeting = name != mode_name
        self.view = partition.text(view_of(name), start, end)
        self.handles: set[TextHandle] = set()
        self.let_go()

    @property
    def is_current(self) -> bool:
        """Whether a new file of this name would show the same."""
        return self.view.generation == self.partition.generation

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
        return TextHandle(self)

    def let_go(self) -> None:
        """Have the view keep no more of what left the log than its slowest reader may want."""
        self.view.let_go(min((handle.position for handle in [*self.handles]), default=NOBODY))


class TextHandle(Handle):
    """An open text file. What was shown once never changes, so the kernel's pages stay good."""

    keep_cache = True

    def __init__(self, node: TextFile) -> None:
        super().__init__(node)
        self._file = node
        # Where the last read began that the kernel had to ask for.
        self.position = 0
        node.handles.add(self)
        node.let_go()

    def read(self, position: int, size: int) -> bytes:
        data = self._file.view.read(position, size)
        self._file.partition.traffic.bytes_out += len(data)
        self.position = position
        self._file.let_go()
        return data

    def release(self) -> None:
        self._file.handles.discard(self)
        self._file.let_go()
