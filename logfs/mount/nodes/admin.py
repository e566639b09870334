"""`.logfs/admin`: takes administrative requests, one line of JSON each (`logfs.store.admin`)."""

from __future__ import annotations

import errno
import os
import stat
from typing import TYPE_CHECKING

from logfs.errors import NotWritable
from logfs.log.disk.disk import DIRECTORY_MODE
from logfs.mount.errnos import refuse
from logfs.mount.nodes.base import Caller, FileNode, Handle, Stat
from logfs.store.admin.requests import Create, Request, parse_request
from logfs.store.directory.permissions import Access, PermissionTable

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from logfs.log.read.reader import Reader
    from logfs.mount.admin_requests import RunningRequest


# The most bytes of a request: enough for a commit of several hundred thousand staged files.
_MAX_BYTES = 64 * 1024 * 1024


class AdminFile(FileNode):
    """The file `.logfs/admin`. Only its owner has access, because a request can change every partition."""

    def access(self) -> Access:
        access = super().access()
        return access._replace(mode=access.mode & 0o600)

    def stat(self) -> Stat:
        access = self.access()
        now_ns = self.context.store.clock() * 1_000_000
        return Stat(stat.S_IFREG | access.mode, access.uid, access.gid, 0, now_ns)

    def open(self, flags: int, caller: Caller) -> Handle:
        """Open the file. Raises `NotWritable` if it is opened for writing and the store is read-only."""
        if flags & (os.O_WRONLY | os.O_RDWR) and self.context.store.read_only:
            raise NotWritable(
                f"{self.path}: the store is open read-only; mount it without --read-only"
            )
        return AdminHandle(self, caller)

    def truncate(self, size: int) -> None:
        """Do nothing: a shell's `>` opens the file with O_TRUNC, which must not fail."""


class AdminHandle(Handle):
    """An open `admin` file, which takes requests by writes and returns their answers by reads.

    A request may arrive in several writes. The first write that ends with a newline completes and starts the request,
    and returns while the request runs. The answer begins at position 0 of the file: lines of progress, then a line
    with the result or the error. A read at the end of the present answer returns no bytes; repeat it until the last
    line is there. A close or a new request cancels the running request.
    """

    direct_io = True

    def __init__(self, node: AdminFile, caller: Caller) -> None:
        super().__init__(node)
        self._file = node
        self._caller = caller
        self._asked = bytearray()
        self._running: RunningRequest | None = None
        self._is_noted = False
        self._grows: Collection[str] = ()

    def read(self, position: int, size: int) -> bytes:
        running = self._running
        if running is None:
            return b""
        if running.error is not None and not self._is_noted:
            self._is_noted = True
            self._file.context.errors.note(self._file.path, running.error)
        return running.answer[position : position + size]

    def write(self, data: bytes) -> int:
        if len(self._asked) + len(data) > _MAX_BYTES:
            self._asked.clear()
            raise refuse(
                errno.EMSGSIZE,
                f"{self._file.path}: the request is too long; a request is one line of at most {_MAX_BYTES} bytes",
            )
        if not data.endswith(b"\n"):
            self._asked += data
            return len(data)
        self._file.context.store.disk.check_may_block()
        asked, self._asked = self._asked + data, bytearray()
        request = parse_request(asked)
        self._cancel()
        self._is_noted = False
        self._grows = request.grows()
        self._running = self._file.context.requests.start(
            self._file.context.store, request, lambda: self._give_to_caller(request)
        )
        return len(data)

    def grown(self) -> Sequence[Reader]:
        partitions = self._file.context.store.registry.partitions
        return [partitions[name] for name in self._grows if name in partitions]

    def release(self) -> None:
        self._cancel()
        if self._asked:
            raise refuse(
                errno.EINVAL,
                f"{self._file.path}: closed before the newline that ends a request; the request was not executed",
            )

    def _cancel(self) -> None:
        if self._running is not None:
            self._running.cancel()

    def _give_to_caller(self, request: Request) -> None:
        """If `request` is a `Create`, make the caller the owner of the new partition, as after a `mkdir`."""
        if isinstance(request, Create):
            partition = self._file.context.store[request.partition]
            access = Access(DIRECTORY_MODE, self._caller.uid, self._caller.gid)
            PermissionTable(partition).set("", access)
