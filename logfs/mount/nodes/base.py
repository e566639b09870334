"""The base classes of nodes and handles: the interface that `logfs.mount.protocol` calls."""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple
from weakref import WeakValueDictionary

from logfs.log.disk.disk import WouldBlock
from logfs.log.read.read_committed import Isolation
from logfs.mount.errnos import refuse
from logfs.store.directory.permissions import Access

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from logfs.log.append.partition import Partition
    from logfs.log.disk.disk import Status
    from logfs.log.read.reader import Reader
    from logfs.mount.admin_requests import AdminRequests
    from logfs.mount.errnos import ErrorLog
    from logfs.mount.mounted_mirror import MountedMirror
    from logfs.store.directory.permissions import PermissionTable
    from logfs.store.store import Store

READ_BITS = 0o444
WRITE_BITS = 0o222
DIRECTORY_BITS = 0o555


def first_found(store: Store) -> Status:
    """Return the `stat` of the first log directory that is readable now.

    If none is readable, return the `stat` that the first one had when it was opened.
    """
    for log_dir in store.log_dirs:
        with suppress(OSError):
            return log_dir.disk.stat(log_dir.path, follow=True)
    (first, *_) = (log_dir.found for log_dir in store.log_dirs if log_dir.found is not None)
    return first


def file_number_of(*identity: object) -> int:
    """Return an `st_ino` that is a hash of `identity`; it is at least 2**62, above the inode numbers of all nodes."""
    digest = hashlib.blake2b(repr(identity).encode(), digest_size=7).digest()
    return 2**62 + int.from_bytes(digest, "big")


class Stat(NamedTuple):
    """The result of `stat` on a node; `mtime_ns` is in ns since the epoch."""

    mode: int
    uid: int
    gid: int
    size: int = 0
    mtime_ns: int = 0


class Caller(NamedTuple):
    """The caller of a request. The ids are those that the caller has in the daemon's user and PID namespaces.

    `pid` is the id of the thread that made the request: FUSE does not report the process.
    """

    uid: int
    gid: int
    pid: int
    umask: int = 0


class Context(NamedTuple):
    """The state that all nodes of a mount share.

    `version` is the version of logfs. `requests` are the administrative requests in progress. `isolation` decides
    whether files show the records of open and aborted transactions. `mirror` is None if the mount mirrors no cluster.
    With `is_sync` (the mount option `sync`), every open file is used as if it had been opened with O_SYNC.
    """

    store: Store
    errors: ErrorLog
    version: str
    requests: AdminRequests
    isolation: Isolation = Isolation.READ_UNCOMMITTED
    mirror: MountedMirror | None = None
    is_sync: bool = False


class Node:
    """An object that a path leads to: a file, a directory or a symbolic link.

    `InodeTable` assigns `inode`, which identifies the node to the kernel. The `st_ino` is `file_number`, or `inode`
    if `file_number` is 0; nodes with the same `file_number` are one file. Most directories hold only weak references
    to their nodes, so a node is freed once the kernel has forgotten it and none of its handles is open.
    """

    inode: int = 0
    file_number: int = 0
    # For how many seconds the kernel may keep the name; `attr_timeout` is the same for the attributes.
    entry_timeout: float = 0
    # Whether a mount may have very many nodes of this kind. If it has, the kernel is asked to forget the oldest.
    is_evictable = False
    attr_timeout: float = 0

    def __init__(self, context: Context, name: str, parent: DirectoryNode | None) -> None:
        self.context = context
        self.name = name
        self.parent = parent

    @property
    def path(self) -> str:
        """The path below the mountpoint, for messages."""
        if self.parent is None:
            return "/"
        return self.parent.path_of(self.name)

    @property
    def is_deleted(self) -> bool:
        """Whether the node's partition was deleted, unloaded or taken offline. Its path may lead to another node."""
        return self.parent is not None and self.parent.is_deleted

    def stat(self) -> Stat:
        """Return the attributes of the node: file type and permission bits, owner, size (bytes) and mtime."""
        raise NotImplementedError

    def access(self) -> Access:
        """Return the permission bits and the owner; by default those of the first log directory."""
        found = first_found(self.context.store)
        return Access(stat.S_IMODE(found.mode), found.uid, found.gid)

    def set_access(self, access: Access) -> None:
        """Store new permission bits or a new owner. Raises EPERM for a node that cannot store them."""
        raise refuse(errno.EPERM, f"{self.path}: mode and owner cannot be changed here")

    def truncate(self, size: int) -> None:
        """Serve `truncate(2)`. Raises EPERM by default: the log is append-only."""
        raise refuse(errno.EPERM, f"{self.path}: the log is append-only")

    def xattrs(self, caller: Caller) -> dict[str, bytes]:
        """Return the extended attributes that a caller sees, by name."""
        return {}


class Handle:
    """An open file. Reads and writes that a subclass does not define are refused."""

    # With direct_io the kernel sends every read and write to the daemon. Without it the kernel caches pages, and
    # `keep_cache` keeps the pages of earlier opens.
    direct_io = False
    keep_cache = False
    # The partitions to which writes through this handle may have appended. fsync makes these appends durable.
    appends_to: Sequence[Partition] = ()

    def __init__(self, node: FileNode) -> None:
        self.node = node

    def read(self, position: int, size: int) -> bytes:
        """Return up to `size` bytes at `position`; fewer only at the end of the file. Raises EBADF by default."""
        raise refuse(errno.EBADF, f"{self.node.path}: this file can only be written")

    def write(self, data: bytes) -> int:
        """Accept `data`, and return the number of bytes accepted. Raises EBADF by default.

        The position of the write has no effect.
        """
        raise refuse(errno.EBADF, f"{self.node.path}: this file can only be read")

    def check_position(self, position: int, data: bytes) -> None:
        """Raise `OSError` if a write of `data` at `position` (bytes) must be refused. By default, do nothing."""

    def grown(self) -> Sequence[Reader]:
        """Return the partitions to which records may have been appended through this handle; none by default.

        The caller must make the kernel forget the sizes of the files of these partitions.
        """
        return ()

    def needs_sync(self) -> bool:
        """Whether the last write must be durable before it is answered."""
        return False

    def release(self) -> None:
        """Release what the handle uses. Called after the last descriptor of this open file was closed."""


class FileNode(Node):
    """A regular file."""

    def open(self, flags: int, caller: Caller) -> Handle:
        """Open the file and return a handle. Raises EPERM if a file that can only be read is opened for writing."""
        raise NotImplementedError

    def refuse_writing(self, flags: int) -> None:
        """Raise EPERM if `flags` ask for writing. Files that are views of the log call this when they are opened."""
        if flags & (os.O_WRONLY | os.O_RDWR):
            raise refuse(errno.EPERM, f"{self.path}: is a view of the log; write to 'append'")


class SymlinkNode(Node):
    """A symbolic link. Its mtime is `timestamp`, or 0 if `timestamp` is negative."""

    def timestamp(self) -> int:
        """Return the time of the link in ms since the epoch: the timestamp of the record that it leads to.

        The result is negative if the record has no timestamp. For a link to a partition, the result is the mtime of
        the first readable log directory.
        """
        raise NotImplementedError

    def target(self) -> str:
        """Return the path of the target. Raises ENOENT if there is no target."""
        raise NotImplementedError

    def stat(self) -> Stat:
        access = self.access()
        size, time_ns = len(self.target()), max(self.timestamp(), 0) * 1_000_000
        return Stat(stat.S_IFLNK | 0o777, access.uid, access.gid, size, time_ns)


class DirectoryNode(Node):
    """A directory. Most names are parsed when they are looked up, so names that `ls` does not show can exist.

    The kernel may keep the directory's attributes for a second. Otherwise it would ask for them each time a path
    leads through the directory, to check the search permission.
    """

    attr_timeout = 1.0

    def __init__(self, context: Context, name: str, parent: DirectoryNode | None) -> None:
        super().__init__(context, name, parent)
        self._alive: WeakValueDictionary[str, Node] = WeakValueDictionary()

    def known(self, name: str) -> Node | None:
        """Return the node that an earlier lookup of `name` made; None if there is no such node, or it is out of date.

        On the trio thread, the result is also None if the check of the node would have to wait for the disk.
        """
        alive = self._alive.get(name)
        try:
            return alive if alive is not None and self.is_current(alive) else None
        except WouldBlock:
            return None

    def find(self, name: str) -> Node | None:
        """Return a new node for a name, or None for an unknown name.

        Any thread may call this, because it stores nothing in the directory; `adopt` stores the node.
        """
        raise NotImplementedError

    def path_of(self, name: str) -> str:
        """Return the path (below the mountpoint) of a name in the directory, for messages."""
        return f"{self.path.rstrip('/')}/{name}"

    def adopt(self, name: str, node: Node | None) -> Node:
        """Store `node`, which `find` made for `name`, and return it.

        If another request has stored a current node since `find`, return that one instead. Raises ENOENT if `node` is
        None.
        """
        if node is None:
            raise OSError(errno.ENOENT, f"{self.path_of(name)}: no such file")
        known = self.known(name)
        if known is not None:
            return known
        return self.renew(name, node)

    def renew(self, name: str, node: Node) -> Node:
        """Make a name lead to `node`, and return `node`. Handles of the old node still work."""
        self._alive[name] = node
        return node

    def lookup(self, name: str) -> Node:
        """Return the node of a name: the one that `known` returns, or else a new one.

        Raises ENOENT for an unknown name.
        """
        return self.known(name) or self.adopt(name, self.find(name))

    def is_current(self, node: Node) -> bool:
        """Whether a lookup of the name of `node` may return `node` again. If not, the lookup makes a new node."""
        return True

    def names(self) -> Iterator[str]:
        """Yield the names that `ls` shows. In some directories, such as `offsets/`, `lookup` finds more names."""
        raise NotImplementedError

    def disown(self, name: str) -> None:
        """Forget the node of a name, so that the next lookup makes a new one. Handles of the old node still work."""
        self._alive.pop(name, None)

    def create(self, name: str, flags: int) -> Node:
        """Make and return the node of a new file. Raises EPERM by default."""
        raise refuse(
            errno.EPERM,
            f"{self.path}: files cannot be created here; mkdir at the root creates a partition",
        )

    def mkdir(self, name: str, mode: int, caller: Caller) -> None:
        """Make a directory. Raises EPERM by default."""
        raise refuse(
            errno.EPERM,
            f"{self.path}: directories can only be created at the root, as partitions, or in topics, as topics",
        )

    def rmdir(self, name: str) -> None:
        """Remove a directory. Raises EPERM by default."""
        raise refuse(
            errno.EPERM, f"{self.path_of(name)}: only partitions and topics can be removed"
        )

    def unlink(self, name: str) -> None:
        """Remove a file. Raises EPERM by default."""
        raise refuse(
            errno.EPERM,
            f"{self.path_of(name)}: the log is append-only; nothing here can be removed",
        )


class PartitionAccess(Node):
    """A node whose mode and owner are in the permission table `modes` of a partition, under the name `mode_name`.

    Files inside a subdirectory such as `offsets/` share the mode and owner of that subdirectory, and cannot have
    their own. A mode that is derived from a directory's mode has only the bits in `allowed_bits`.
    """

    modes: PermissionTable
    mode_name: str
    allowed_bits: int

    def access(self) -> Access:
        """Return the mode and owner that were set for `mode_name`, or else those of the partition directory.

        A mode that was not set for this very node is limited to `allowed_bits`.
        """
        found = self.modes.get(self.mode_name, self.allowed_bits)
        if self.mode_name == self.name:
            return found
        return found._replace(mode=found.mode & self.allowed_bits)

    def follows(self, modes: PermissionTable) -> bool:
        """Whether the mode and owner of this node depend on the permission table `modes`."""
        return self.modes is modes

    def set_access(self, access: Access) -> None:
        """Store mode and owner durably. Raises EPERM for a file that has the mode and owner of its subdirectory."""
        if self.mode_name != self.name:
            super().set_access(access)
        self.modes.set(self.mode_name, access)
