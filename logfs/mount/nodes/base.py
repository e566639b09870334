"""The kinds of node, and what the protocol asks of them."""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple
from weakref import WeakValueDictionary

from logfs.log.committed import Isolation
from logfs.mount.errnos import refuse
from logfs.store.modes import Access

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from logfs.log.partition import Partition
    from logfs.log.reader import Reader
    from logfs.mount.errnos import ErrorLog
    from logfs.store.modes import Modes
    from logfs.store.store import Store

READ_BITS = 0o444
WRITE_BITS = 0o222
DIRECTORY_BITS = 0o555


def first_found(store: Store) -> os.stat_result:
    """The first log directory that works, as it is; where none does any more, the first as it was."""
    for log_dir in store.log_dirs:
        with suppress(OSError):
            return log_dir.disk.stat(log_dir.path)
    (first, *_) = (log_dir.found for log_dir in store.log_dirs if log_dir.found is not None)
    return first


def file_number_of(*identity: object) -> int:
    """The `st_ino` of a file, made of what tells it from others; never one of the small numbers that nodes get."""
    digest = hashlib.blake2b(repr(identity).encode(), digest_size=7).digest()
    return 2**62 + int.from_bytes(digest, "big")


class Stat(NamedTuple):
    """What `stat` shows of a node; times in ns since the epoch."""

    mode: int
    uid: int
    gid: int
    size: int = 0
    mtime_ns: int = 0


class Caller(NamedTuple):
    """Who asks: ids as the daemon's namespaces see them; `pid` may be a thread's."""

    uid: int
    gid: int
    pid: int
    umask: int = 0


class Context(NamedTuple):
    """What all nodes of a mount share."""

    store: Store
    errors: ErrorLog
    version: str
    isolation: Isolation = Isolation.READ_UNCOMMITTED


class Node:
    """Something that a path leads to.

    `inode` is the protocol's to give: the kernel names the node by it. It is the `st_ino` of a node without a
    `file_number`; several nodes with one `file_number` are one file. A `parent` holds its nodes by name only as
    long as somebody else holds them, so a tree of every offset there ever was costs nothing.
    """

    inode: int = 0
    file_number: int = 0
    # How long the kernel may keep the name and the attributes without asking, in seconds.
    entry_timeout: float = 0
    # One of very many names: the kernel is asked to forget those that were looked up longest ago.
    is_fleeting = False
    attr_timeout: float = 0

    def __init__(self, context: Context, name: str, parent: Directory | None) -> None:
        self.context = context
        self.name = name
        self.parent = parent

    @property
    def path(self) -> str:
        """The path below the mount, for messages."""
        if self.parent is None:
            return "/"
        return f"{self.parent.path.rstrip('/')}/{self.name}"

    def stat(self) -> Stat:
        """Type, mode, owner, size and time."""
        raise NotImplementedError

    def access(self) -> Access:
        """Permission bits and owner, by default those of the store's first log directory."""
        found = first_found(self.context.store)
        return Access(stat.S_IMODE(found.st_mode), found.st_uid, found.st_gid)

    def set_access(self, access: Access) -> None:
        """Keep other permission bits or another owner; EPERM where there is nowhere to keep them."""
        raise refuse(errno.EPERM, f"{self.path}: mode and owner cannot be changed here")

    def truncate(self, size: int) -> None:
        """`truncate(2)`: the log is append-only."""
        raise refuse(errno.EPERM, f"{self.path}: the log is append-only")

    def xattrs(self, caller: Caller) -> dict[str, bytes]:
        """The extended attributes that a caller sees."""
        return {}


class Handle:
    """An open file. What it does not do, it refuses."""

    # With direct_io the kernel asks for every read and write; without, it caches pages, and `keep_cache` lets
    # those of earlier opens serve.
    direct_io = False
    keep_cache = False
    # The partition that what was written has gone to: an fsync makes its end durable.
    appends_to: Partition | None = None

    def __init__(self, node: File) -> None:
        self.node = node

    def read(self, position: int, size: int) -> bytes:
        """Up to `size` bytes at a position, fewer at the end of the file."""
        raise refuse(errno.EBADF, f"{self.node.path}: cannot be read")

    def write(self, data: bytes) -> int:
        """Take bytes, at whatever position; how many were taken."""
        raise refuse(errno.EBADF, f"{self.node.path}: cannot be written")

    def grown(self) -> Sequence[Reader]:
        """The logs that what was written has gone to: the kernel forgets what sizes it knows of them."""
        return ()

    def needs_sync(self) -> bool:
        """Whether what the last write did must be durable before it is answered."""
        return False

    def release(self) -> None:
        """The last descriptor of this open file is gone."""


class File(Node):
    """A regular file."""

    def open(self, flags: int, caller: Caller) -> Handle:
        """Open it; EPERM for writing where the file is only ever read."""
        raise NotImplementedError

    def refuse_writing(self, flags: int) -> None:
        """For the files that are views of the log."""
        if flags & (os.O_WRONLY | os.O_RDWR):
            raise refuse(errno.EPERM, f"{self.path}: is a view of the log; write to 'append'")


class Symlink(Node):
    """A symbolic link; its mtime is that of what it leads to."""

    def timestamp(self) -> int:
        """The time of what it leads to, in ms since the epoch."""
        raise NotImplementedError

    def target(self) -> str:
        """Where it leads; ENOENT if nowhere."""
        raise NotImplementedError

    def stat(self) -> Stat:
        access = self.access()
        size, time_ns = len(self.target()), max(self.timestamp(), 0) * 1_000_000
        return Stat(stat.S_IFLNK | 0o777, access.uid, access.gid, size, time_ns)


class Directory(Node):
    """A directory, whose names are parsed rather than listed.

    Its attributes may be a second old: permission to enter is asked of each directory on the way to every file.
    """

    attr_timeout = 1.0

    def __init__(self, context: Context, name: str, parent: Directory | None) -> None:
        super().__init__(context, name, parent)
        self._alive: WeakValueDictionary[str, Node] = WeakValueDictionary()

    def known(self, name: str) -> Node | None:
        """The living node of a name; None if there is none, or it is not what the name means any more."""
        alive = self._alive.get(name)
        return alive if alive is not None and self.is_current(alive) else None

    def find(self, name: str) -> Node | None:
        """Make the node of a name; None if it means nothing. Changes nothing, so any thread may do it."""
        raise NotImplementedError

    def adopt(self, name: str, node: Node | None) -> Node:
        """Keep what `find` made, unless somebody was quicker; ENOENT if it made nothing."""
        if node is None:
            raise OSError(errno.ENOENT, f"{self.path.rstrip('/')}/{name}: no such file")
        known = self.known(name)
        if known is not None:
            return known
        return self.renew(name, node)

    def renew(self, name: str, node: Node) -> Node:
        """Have a name lead to another node from now on; those who have the old one keep it."""
        self._alive[name] = node
        return node

    def lookup(self, name: str) -> Node:
        """The node of a name, the same one as long as it lives; ENOENT if the name means nothing."""
        return self.known(name) or self.adopt(name, self.find(name))

    def is_current(self, node: Node) -> bool:
        """Whether a living node is still what its name means."""
        return True

    def names(self) -> Iterator[str]:
        """What `ls` shows: never more than a few names for each segment."""
        raise NotImplementedError

    def disown(self, name: str) -> None:
        """Let a name lead to a new node; who has the old one keeps it."""
        self._alive.pop(name, None)

    def create(self, name: str, flags: int) -> Node:
        """Make the node of a new file."""
        raise refuse(
            errno.EPERM, f"{self.path}: only partitions can be made here, by mkdir at the root"
        )

    def mkdir(self, name: str, mode: int, caller: Caller) -> None:
        """Make a directory."""
        raise refuse(
            errno.EPERM, f"{self.path}: directories are made at the root, one for each partition"
        )

    def rmdir(self, name: str) -> None:
        """Remove a directory."""
        raise refuse(errno.EPERM, f"{self.path}/{name}: cannot be removed")

    def unlink(self, name: str) -> None:
        """Remove a file."""
        raise refuse(
            errno.EPERM, f"{self.path}/{name}: the log is append-only; nothing here can be removed"
        )


class PartitionAccess(Node):
    """Access of a node below a partition directory: kept with the partition, by the node's name there.

    The files inside `offsets/` and its like share what that directory has, and cannot have their own.
    """

    modes: Modes
    mode_name: str
    allowed_bits: int

    def access(self) -> Access:
        """What was set, or what follows from the partition directory."""
        found = self.modes.get(self.mode_name, self.allowed_bits)
        if self.mode_name == self.name:
            return found
        return found._replace(mode=found.mode & self.allowed_bits)

    def set_access(self, access: Access) -> None:
        """Keep it durably; EPERM for a file inside a directory that has access of its own."""
        if self.mode_name != self.name:
            super().set_access(access)
        self.modes.set(self.mode_name, access)
