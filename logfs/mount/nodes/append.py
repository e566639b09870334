"""`append` and `append.jsonl`: the files that take new records."""

from __future__ import annotations

import errno
import os
import stat
from collections import OrderedDict
from pathlib import Path
from typing import TYPE_CHECKING

from logfs.log.append.line_framer import EnvelopeFramer, LineFramer
from logfs.log.append.partition import writable
from logfs.mount.errnos import refuse
from logfs.mount.nodes.base import (
    READ_BITS,
    WRITE_BITS,
    Caller,
    Context,
    DirectoryNode,
    FileNode,
    Handle,
    PartitionAccess,
    Stat,
    file_number_of,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from logfs.log.append.partition import Partition
    from logfs.log.read.log import Log
    from logfs.log.read.reader import Reader
    from logfs.store.directory.permissions import PermissionTable

# If a write has at most this many bytes of lines, they are encoded and written to the kernel's page cache on the trio
# thread. This takes less time than a switch to a worker thread and back, also with lz4 or snappy. Larger writes go to
# a worker thread.
INLINE_BYTES = 160 * 1024
# The same limit for JSON envelopes, which have to be parsed, and for lines that are compressed with a slow codec.
INLINE_SLOW_BYTES = 4 * 1024
_SLOW_CODECS = frozenset({"gzip", "zstd"})
# For each file, the number of writing processes of which the last offset is remembered.
_REMEMBERED = 10_000


class LastOffsets:
    """The offset of the last record that each process has appended through one file.

    Only the 10,000 processes that were the last to append are remembered.
    """

    def __init__(self) -> None:
        self._offsets: OrderedDict[int, int] = OrderedDict()

    def note(self, process: int, offset: int) -> None:
        """Store the offset of the last record that a process has appended."""
        self._offsets[process] = offset
        self._offsets.move_to_end(process)
        if len(self._offsets) > _REMEMBERED:
            self._offsets.popitem(last=False)

    def get(self, process: int) -> int | None:
        """Return the offset of the last record that a process has appended; None if none is remembered."""
        return self._offsets.get(process)


class AppendFile(PartitionAccess, FileNode):
    """A file that appends the lines written to it, and reads as empty. `>` and `>>` have the same effect.

    While the newest node of the file has open handles, a lookup makes a new node: the kernel serialises the writes to
    one inode, so writers with the same node would wait for each other. All nodes of the file have the same
    `file_number`, which is their `st_ino`.
    """

    framer = LineFramer
    # Whether each line is parsed as JSON, which takes longer than appending the line as a value.
    is_parsed = False
    # The bits include read permission: Linux shows `user.` attributes only to users who may read the file, and a
    # writer must be able to see the attribute with its last offset.
    allowed_bits = READ_BITS | WRITE_BITS

    def __init__(
        self,
        context: Context,
        name: str,
        parent: DirectoryNode,
        partition: Log,
        modes: PermissionTable,
        last_offsets: LastOffsets,
    ) -> None:
        super().__init__(context, name, parent)
        self.partition = partition
        self.modes = modes
        self.mode_name = name
        self.file_number = file_number_of(parent.inode, name, 0)
        self.handles: set[AppendHandle] = set()
        self._last_offsets = last_offsets

    def stat(self) -> Stat:
        access = self.access()
        mtime_ns = self.partition.last_timestamp * 1_000_000
        return Stat(stat.S_IFREG | access.mode, access.uid, access.gid, 0, mtime_ns)

    def open(self, flags: int, caller: Caller) -> Handle:
        if flags & (os.O_WRONLY | os.O_RDWR):
            self.check_appendable()
        elif self.context.store.read_only:
            return EmptyHandle(self)
        return AppendHandle(self, flags, process_of(caller.pid))

    def make_framer(self) -> LineFramer:
        """Return a new framer, which splits the writes of one open file into lines and appends the lines."""
        return self.framer(writable(self.partition))

    def check_appendable(self) -> None:
        """Raise the error of the first partition that takes no appends at present, if there is one."""
        for log in self.logs():
            log.check_appendable()

    def logs(self) -> Sequence[Partition]:
        """Return the partitions to which writes to this file append. Raises `NotWritable` in a read-only store."""
        return (writable(self.partition),)

    def truncate(self, size: int) -> None:
        """Do nothing: every `>` sends O_TRUNC, and the file always reads as empty."""

    def xattrs(self, caller: Caller) -> dict[str, bytes]:
        last = self._last_offsets.get(process_of(caller.pid))
        return {} if last is None else {"user.logfs.last_offset": b"%d" % last}

    def note_last_offset(self, process: int, offset: int) -> None:
        """Store the offset of the last record that a process has appended.

        The process sees this offset as the xattr `user.logfs.last_offset` of the file.
        """
        self._last_offsets.note(process, offset)


class EnvelopeAppendFile(AppendFile):
    """The file `append.jsonl`. It takes records as JSON objects (envelopes), one per line."""

    framer = EnvelopeFramer
    is_parsed = True


class EmptyHandle(Handle):
    """A handle that reads as empty: an `append` file that is open for reading in a read-only store.

    `AppendHandle` inherits from this class, because every other open `append` file reads as empty, too.
    """

    direct_io = True

    def read(self, position: int, size: int) -> bytes:
        return b""


class AppendHandle(EmptyHandle):
    """An open `append` file. Each handle keeps its own unfinished line until a write or the close ends it.

    The kernel sends the writes to one inode one after the other (it holds the inode's lock during a direct write), so
    a handle is never in two calls at the same time.
    """

    def __init__(self, node: AppendFile, flags: int, process: int) -> None:
        super().__init__(node)
        self.file = node
        self.appends_to = node.logs()
        self._framer = node.make_framer()
        self._process = process
        # With direct_io, the kernel sends no FSYNC after the writes of a file opened with O_SYNC or O_DSYNC. So the
        # open flags decide.
        self._is_sync = bool(flags & (os.O_SYNC | os.O_DSYNC))
        # The positions where the last write began and where it ended. None with O_APPEND: the position of a write is
        # then the file size that the kernel knows.
        self._positions: tuple[int, int] | None = None if flags & os.O_APPEND else (0, 0)
        node.handles.add(self)

    def grown(self) -> Sequence[Reader]:
        return self.appends_to

    def check_position(self, position: int, data: bytes) -> None:
        """Raise `OSError` (EOPNOTSUPP) for a write that seems to reserve space for the file.

        The C library emulates `posix_fallocate` by writing one NUL into each block. A write of a single NUL is
        therefore refused, except at the position where the last write began or ended (0 before the first write).
        Other data is accepted at any position. With O_APPEND everything is accepted.
        """
        if self._positions is None:
            return
        if data == b"\0" and position not in self._positions:
            raise refuse(
                errno.EOPNOTSUPP,
                f"{self.file.path}: space cannot be reserved in a file that takes records",
            )
        self._positions = position, position + len(data)

    def write(self, data: bytes) -> int:
        if len(data) > INLINE_SLOW_BYTES:
            codec = self.file.partition.config.compression_type
            is_slow = self.file.is_parsed or codec in _SLOW_CODECS
            if is_slow or len(data) > INLINE_BYTES:
                self.file.partition.check_may_block()
        done = self._framer.write(data)
        if not done.is_empty:
            self.file.note_last_offset(self._process, done.last_offset)
        if done.refused is not None and not done.consumed:
            raise done.refused
        # If only a part of `data` was accepted, the error `done.refused` is raised when the caller writes the rest.
        return done.consumed

    def needs_sync(self) -> bool:
        return self._is_sync

    def release(self) -> None:
        """Append the unfinished line. The kernel does not wait for this, so an error is only in `.logfs/errors`."""
        self.file.handles.discard(self)
        done = self._framer.finish()
        if done.refused is not None:
            raise done.refused
        if not done.is_empty:
            self.file.note_last_offset(self._process, done.last_offset)


def process_of(thread: int) -> int:
    """Return the id of the process that a thread belongs to, or `thread` itself if the thread has ended.

    FUSE reports the thread that made a request, not its process.
    """
    try:
        status = Path(f"/proc/{thread}/status").read_bytes()
    except OSError:
        return thread
    at = status.find(b"\nTgid:\t") + 7
    return int(status[at : status.find(b"\n", at)]) if at >= 7 else thread
