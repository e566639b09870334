"""The base class of the FUSE handlers of main mounts and write-behind mounts: inodes, errors, refused changes."""

from __future__ import annotations

import errno
import os
import stat
from typing import TYPE_CHECKING, Any, Generic

import pyfuse3

from logfs.mount.errnos import refuse
from logfs.mount.inode_table import InodeTable, N

if TYPE_CHECKING:
    from collections.abc import Sequence

    from logfs.mount.errnos import ErrorLog
    from logfs.mount.nodes.base import Stat

_BLOCK = 512
_INT64_MAX = 2**63 - 1
# The handlers whose first argument is the handle of an open file or directory, except `fsyncdir`, which never fails.
_BY_HANDLE = frozenset({"read", "write", "flush", "fsync", "release", "readdir", "releasedir"})
# The handlers whose second argument is a name in a directory.
_BY_NAME = frozenset({"lookup", "mkdir", "create", "mknod", "symlink", "unlink", "rmdir", "rename"})


class Handlers(pyfuse3.Operations, Generic[N]):
    """The base class of the FUSE handlers of a mount, whose nodes are of type `N`.

    All handlers run on the trio thread (architecture.md, rule 6).
    """

    supports_dot_lookup = False

    def __init__(self, root: N, errors: ErrorLog) -> None:
        super().__init__()
        self._errors = errors
        self._inodes: InodeTable[N] = InodeTable(root, pyfuse3.ROOT_INODE)
        self._next_handle = 1

    def _new_handle(self) -> int:
        handle = self._next_handle
        self._next_handle += 1
        return handle

    # Methods that record errors.

    def failed(self, name: str, arguments: tuple[Any, ...], error: Exception) -> int:
        """Return the errno of an error, and record the error and the path of the request for `.logfs/errors`.

        `name` is the name of the handler that failed, and `arguments` are those of the call.
        """
        return self._errors.note(self._path_of(name, arguments), error)

    def _node_of(self, name: str, arguments: tuple[Any, ...]) -> N | None:
        """Return the node on which the handler `name` was called; None if there is no such inode or open file."""
        key = arguments[0] if arguments else None
        if name not in _BY_HANDLE:
            return self._inodes.get(key)
        return self._opened(key) if isinstance(key, int) else None

    def _opened(self, handle: int) -> N | None:
        """Return the node of an open file; None if the handle is unknown, or if it is the handle of a directory."""
        raise NotImplementedError

    def _path_of(self, name: str, arguments: tuple[Any, ...]) -> str:
        node = self._node_of(name, arguments)
        if node is None:
            kind = "handle" if name in _BY_HANDLE else "inode"
            return f"{kind} {arguments[0] if arguments else ''}"
        if name in _BY_NAME and len(arguments) > 1:
            return f"{node.path.rstrip('/')}/{os.fsdecode(arguments[1])}"
        return node.path

    # Methods that describe and forget inodes, and the handler `fsyncdir`.

    @staticmethod
    def _entry(node: N, found: Stat) -> pyfuse3.EntryAttributes:
        entry = pyfuse3.EntryAttributes()
        entry.st_ino = pyfuse3.InodeT(node.inode)
        entry.generation = 0
        entry.entry_timeout = node.entry_timeout
        entry.attr_timeout = node.attr_timeout
        entry.st_mode = pyfuse3.ModeT(found.mode)
        entry.st_nlink = 2 if stat.S_ISDIR(found.mode) else 1
        entry.st_uid = found.uid
        entry.st_gid = found.gid
        entry.st_size = found.size
        entry.st_blksize = 4096
        entry.st_blocks = -(-found.size // _BLOCK)
        time_ns = max(0, min(found.mtime_ns, _INT64_MAX))
        entry.st_atime_ns = entry.st_mtime_ns = entry.st_ctime_ns = time_ns
        return entry

    async def forget(self, inode_list: Sequence[tuple[int, int]]) -> None:
        self._inodes.forget(inode_list)

    async def fsyncdir(self, fh: int, datasync: bool) -> None:
        """Do nothing: a call that creates or removes a name makes the change durable before it returns."""

    # Handlers of changes that every mount refuses.

    def _refusal(self, directory: int, name: bytes, why: str) -> OSError:
        """Return the `OSError` (EPERM) for a refused change of `name` in the directory with inode `directory`.

        `why` is the reason, which the message of the error tells the caller.
        """
        return refuse(errno.EPERM, f"{self._inodes.node(directory).path}: {why}")

    async def mknod(
        self, parent_inode: int, name: bytes, mode: int, rdev: int, ctx: pyfuse3.RequestContext
    ) -> pyfuse3.EntryAttributes:
        why = "files cannot be created here; mkdir at the root creates a partition"
        raise self._refusal(parent_inode, name, why)

    async def symlink(
        self, parent_inode: int, name: bytes, target: bytes, ctx: pyfuse3.RequestContext
    ) -> pyfuse3.EntryAttributes:
        raise self._refusal(parent_inode, name, "links cannot be created here")

    async def link(
        self, inode: int, new_parent_inode: int, new_name: bytes, ctx: pyfuse3.RequestContext
    ) -> pyfuse3.EntryAttributes:
        raise self._refusal(new_parent_inode, new_name, "links cannot be created here")

    async def rename(
        self,
        parent_inode_old: int,
        name_old: bytes,
        parent_inode_new: int,
        name_new: bytes,
        flags: int,
        ctx: pyfuse3.RequestContext,
    ) -> None:
        raise self._refusal(parent_inode_old, name_old, "nothing can be renamed here")
