"""Files whose content a function returns: status, metrics, settings."""

from __future__ import annotations

import errno
import os
import stat
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import logfs
from logfs.mount.errnos import refuse
from logfs.mount.nodes.base import READ_BITS, Caller, Context, DirectoryNode, FileNode, Handle, Stat

if TYPE_CHECKING:
    from collections.abc import Callable

    from logfs.store.directory.permissions import Access


@cache
def installed_ns() -> int:
    """Return the time at which this release was installed, in ns since the epoch.

    Files whose content comes with the release, such as the README, have this time as their mtime.
    """
    return Path(logfs.__file__).stat().st_mtime_ns


class GeneratedFile(FileNode):
    """A file whose content a function returns. While the file is open, only a write to it changes the content.

    Therefore, a process that has the file open can read as many bytes as `stat` shows.
    """

    def __init__(
        self,
        context: Context,
        name: str,
        parent: DirectoryNode,
        make: Callable[[], bytes],
        write: Callable[[str], None] | None = None,
        access: Callable[[], Access] | None = None,
        changed_ns: Callable[[], int] | None = None,
    ) -> None:
        """Make a file whose content is returned by `make`.

        `write` sets a new value; without it the file is read-only. `access` returns the mode and owner; without it
        they are those of the first log directory. `changed_ns` returns the time of the content's last change (ns
        since the epoch); without it, the mtime is always now.
        """
        super().__init__(context, name, parent)
        self._make = make
        self._write = write
        self._access = access
        self._changed_ns = changed_ns or self._now_ns
        # The content while the file is open, and the file's open handles. Worker threads change both.
        self._content: bytes | None = None
        self._handles: set[GeneratedHandle] = set()

    def content(self) -> bytes:
        """Return the content that `hold` has kept, or new content if none is kept.

        Content is kept while a handle is open, until a write sets a new value.
        """
        content = self._content
        if content is None or not self._handles:
            # Making the content may take long, as for the metrics of very many partitions.
            self.context.store.disk.check_may_block()
            content = self._make()
        return content

    def hold(self, handle: GeneratedHandle) -> bytes:
        """Add an open handle, and return the content, which is kept until the last handle is dropped."""
        # Add the handle before the content is made. Otherwise a thread that drops the last other handle meanwhile
        # would drop the new content, too.
        self._handles.add(handle)
        try:
            self._content = content = self.content()
        except BaseException:
            self.drop(handle)
            raise
        return content

    def drop(self, handle: GeneratedHandle) -> None:
        """Remove an open handle. If it was the last one, the content is not kept any longer."""
        self._handles.discard(handle)
        if not self._handles:
            self._content = None

    def access(self) -> Access:
        base = self._access() if self._access else super().access()
        bits = READ_BITS | (0o200 if self._write else 0)
        return base._replace(mode=base.mode & bits)

    def stat(self) -> Stat:
        access = self.access()
        size = len(self.content())
        return Stat(stat.S_IFREG | access.mode, access.uid, access.gid, size, self._changed_ns())

    def _now_ns(self) -> int:
        return self.context.store.clock() * 1_000_000

    def open(self, flags: int, caller: Caller) -> Handle:
        if flags & (os.O_WRONLY | os.O_RDWR) and self._write is None:
            raise refuse(errno.EPERM, f"{self.path}: is read-only")
        return GeneratedHandle(self)

    def truncate(self, size: int) -> None:
        if self._write is None:
            super().truncate(size)

    def write_value(self, data: bytes) -> None:
        """Set a new value. One write is one whole value, as in sysfs.

        Raises `OSError` (EINVAL) if `data` is not UTF-8 or has a NUL, and the errors of the function `write`,
        which sets the value.
        """
        assert self._write is not None
        # `_write` waits for the disk, and may wait for a lock of the store (architecture.md, rule 8).
        self.context.store.disk.check_may_block()
        try:
            text = data.decode()
        except UnicodeDecodeError:
            raise refuse(errno.EINVAL, f"{self.path}: the value is not UTF-8") from None
        if "\0" in text:
            # If a filesystem cannot reserve space, posix_fallocate(3) writes NULs, which must not become a value.
            raise refuse(errno.EINVAL, f"{self.path}: the value contains a NUL")
        self._write(text.strip())
        self._content = None


class GeneratedHandle(Handle):
    """An open generated file, with direct_io: each read goes to the daemon, whatever size the kernel knows.

    Without direct_io, the file would read as empty after a shell's `>` truncated it, and two readers that opened the
    file with different contents would share pages of the kernel's cache.
    """

    direct_io = True

    def __init__(self, node: GeneratedFile) -> None:
        super().__init__(node)
        self._node = node
        self._bytes = node.hold(self)

    def read(self, position: int, size: int) -> bytes:
        return self._bytes[position : position + size]

    def write(self, data: bytes) -> int:
        self._node.write_value(data)
        self._bytes = self._node.hold(self)
        return len(data)

    def release(self) -> None:
        self._node.drop(self)
