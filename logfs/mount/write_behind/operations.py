"""The FUSE handlers of a write-behind mount, and its tree: the `append` files of partitions, and `.logfs`.

A write-behind mount lets the kernel collect small writes to an `append` file. It then sends whole lines to the same
file of the main mount, which is another process and serves the store.
"""

from __future__ import annotations

import errno
import os
import stat
from collections import Counter
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakValueDictionary

import orjson
import pyfuse3
import trio

import logfs
from logfs.errors import InvalidName
from logfs.format.base.names import parse_directory
from logfs.mount.errnos import refuse
from logfs.mount.handler_guard import guarded
from logfs.mount.handlers import Handlers
from logfs.mount.mounting import forget_attributes, statvfs_of
from logfs.mount.nodes.base import Stat
from logfs.mount.threads import run_in_thread
from logfs.mount.write_behind.stream import Stream
from logfs.store.directory.mount_table import FILESYSTEM_TYPE, logfs_mounts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from logfs.mount.errnos import ErrorLog
    from logfs.mount.write_behind.linger import Linger

_T = TypeVar("_T")

APPEND_FILES = ("append", "append.jsonl")
SELF = ".logfs"
_PASSED_ON = os.O_ACCMODE | os.O_SYNC | os.O_DSYNC
# The most requests that wait for the main mount at a time.
_WORKERS = 32
# The kernel keeps attributes for this many seconds. A later write(2) asks the daemon for them again, and fails if the
# daemon has ended. Without this request, the page cache would accept data that no daemon sends on.
_ATTR_SECONDS = 1.0


class _Node:
    """A file or directory that the kernel knows: its path in the mount, and its attributes in the main mount."""

    inode = 0
    entry_timeout = attr_timeout = _ATTR_SECONDS
    is_evictable = False
    # The type of the file, and the permission bits that it can have.
    kind = stat.S_IFREG
    bits = 0o444

    def __init__(self, path: str, found: os.stat_result) -> None:
        self.path = path
        self.found = found

    def stat(self) -> Stat:
        """Return the attributes of the node. The size is always 0, so a writer with O_APPEND begins at byte 0."""
        found = self.found
        mode = self.kind | (stat.S_IMODE(found.st_mode) & self.bits)
        return Stat(mode, found.st_uid, found.st_gid, 0, found.st_mtime_ns)


class _Directory(_Node):
    """The root, a partition, or `.logfs`."""

    kind = stat.S_IFDIR
    bits = 0o777


class _Generated(_Node):
    """A file in `.logfs`. `make` returns its content, which is made again at each open."""

    def __init__(self, path: str, found: os.stat_result, make: Callable[[], bytes]) -> None:
        super().__init__(path, found)
        self.make = make


class _AppendFile(_Node):
    """The node that one lookup of an `append` file made, and the `Stream` that takes the bytes written to it."""

    # Each lookup of an `append` file gives a new inode, so each open file has pages and a stream of its own.
    entry_timeout = 0.0
    bits = 0o666

    def __init__(self, path: str, found: os.stat_result, stream: Stream) -> None:
        super().__init__(path, found)
        self.stream = stream
        self.lock = trio.Lock()
        self.writers = 0
        self.all_append = True


@guarded
class WriteBehindOperations(Handlers[_Node]):
    """The FUSE handlers of a write-behind mount, which pyfuse3 calls. `mount` is the mountpoint of the main mount.

    Every method runs on the trio thread. Calls that wait for the main mount run in worker threads.
    """

    enable_writeback_cache = True

    def __init__(self, mount: Path, linger: Linger, linger_ms: int, errors: ErrorLog) -> None:
        self.mount = mount
        self._device = 0
        self._root = _Directory("/", self._stat())
        super().__init__(self._root, errors)
        self.linger = linger
        self._linger_ms = linger_ms
        self._workers = trio.CapacityLimiter(_WORKERS)
        # Directories and generated files by path. A node keeps its inode number while the kernel knows the node.
        self._known: WeakValueDictionary[str, _Node] = WeakValueDictionary()
        self._files: dict[int, tuple[_AppendFile, int]] = {}
        # Files opened for writing with O_SYNC or O_DSYNC, each with its descriptor of the file in the main mount.
        self._direct: dict[int, tuple[_AppendFile, int]] = {}
        self._contents: dict[int, bytes] = {}
        self._listings: dict[int, list[_Node]] = {}
        self._totals: Counter[str] = Counter()

    def _opened(self, handle: int) -> _Node | None:
        opened = self._files.get(handle) or self._direct.get(handle)
        return opened[0] if opened else None

    async def _run(self, work: Callable[..., _T], *arguments: Any) -> _T:
        return await run_in_thread(work, *arguments, limiter=self._workers)

    # The methods from here on handle requests about names, attributes and directories.

    def _stat(self, *parts: str) -> os.stat_result:
        """Return the `stat` of a path in the main mount; `parts` are its components, none for the root of the mount.

        Raises `OSError`: ENOTCONN if no store is mounted on `mount`.
        """
        root = os.stat(self.mount)
        if root.st_dev != self._device:
            check_main_mount(self.mount)
            self._device = root.st_dev
        return os.stat(Path(self.mount, *parts)) if parts else root

    def _find(self, parent: _Node, name: str) -> _Node:
        """Return a new node for a name. Call it in a worker thread. Raises `OSError`: ENOENT for an unknown name."""
        path = f"{parent.path.rstrip('/')}/{name}"
        if parent is self._root and name == SELF:
            return _Directory(path, self._stat())
        if parent is self._root:
            self._stat(_partition(name), APPEND_FILES[0])
            return _Directory(path, self._stat(name))
        if parent.path == f"/{SELF}":
            make = {"errors": self._errors.text, "status.json": self._status}.get(name)
            if make is not None:
                return _Generated(path, self._stat(), make)
        elif name in APPEND_FILES:
            found = self._stat(parent.path[1:], name)
            target = Path(self.mount, parent.path[1:], name)
            return _AppendFile(path, found, Stream(target, lambda error: self._note(path, error)))
        raise refuse(errno.ENOENT, path)

    def _note(self, path: str, error: OSError) -> None:
        self._totals["errors"] += 1
        self._errors.note(path, error)

    def _names(self, node: _Node) -> list[str]:
        if node is self._root:
            partitions = [name for name in os.listdir(self.mount) if _is_partition(name)]
            return [SELF, *sorted(partitions)]
        return ["errors", "status.json"] if node.path == f"/{SELF}" else list(APPEND_FILES)

    def _numbered(self, node: _Node) -> _Node:
        """Return the node to use in the answer to the kernel, with an inode number. `node` is a result of `_find`.

        If the kernel already knows a node with the same path, the result is this older node, with the attributes of
        `node`. Otherwise the result is `node`, and so it always is for an `append` file.
        """
        if not isinstance(node, _AppendFile):
            known = self._known.setdefault(node.path, node)
            known.found = node.found
            node = known
        self._inodes.number(node)
        return node

    async def lookup(
        self, parent_inode: int, name: bytes, ctx: pyfuse3.RequestContext
    ) -> pyfuse3.EntryAttributes:
        parent = self._inodes.node(parent_inode)
        node = self._numbered(await self._run(self._find, parent, os.fsdecode(name)))
        self._inodes.remember(node)
        return self._entry(node, node.stat())

    async def getattr(self, inode: int, ctx: pyfuse3.RequestContext) -> pyfuse3.EntryAttributes:
        node = self._inodes.node(inode)
        if isinstance(node, _AppendFile):
            # A write(2) asks for attributes that the kernel has forgotten. An error raised here makes the write fail.
            with _noted():
                node.stream.check()
            if node.writers:
                self._refuse_when_stopping(node)
                self.linger.wake(inode)
        else:
            node.found = await self._run(self._stat_of, node)
        return self._entry(node, node.stat())

    def _stat_of(self, node: _Node) -> os.stat_result:
        own = node is self._root or node.path.startswith(f"/{SELF}")
        return self._stat() if own else self._stat(node.path[1:])

    async def setattr(
        self,
        inode: int,
        attr: pyfuse3.EntryAttributes,
        fields: pyfuse3.SetattrFields,
        fh: int | None,
        ctx: pyfuse3.RequestContext,
    ) -> pyfuse3.EntryAttributes:
        node = self._inodes.node(inode)
        if fields.update_mode or fields.update_uid or fields.update_gid:
            path = f"{self.mount}{node.path}"
            raise refuse(
                errno.EPERM,
                f"{node.path}: a write-behind mount cannot change owner or permissions; change those of {path}",
            )
        if fields.update_size and not (isinstance(node, _AppendFile) and not node.writers):
            # At a truncation, the kernel would drop pages that it has not sent yet.
            raise refuse(
                errno.EPERM,
                f"{node.path}: only an append file that no process has open for writing can be truncated",
            )
        # A request to set the times of a file succeeds but changes nothing, as in the main mount.
        return self._entry(node, node.stat())

    async def statfs(self, ctx: pyfuse3.RequestContext) -> pyfuse3.StatvfsData:
        return await self._run(statvfs_of, self.mount)

    async def opendir(self, inode: int, ctx: pyfuse3.RequestContext) -> int:
        node = self._inodes.node(inode)
        handle = self._new_handle()
        # `Linger` opens the root every few ms without reading it, so only the first readdir makes the listing.
        self._listings[handle] = [node]
        return handle

    async def readdir(self, fh: int, start_id: int, token: pyfuse3.ReaddirToken) -> None:
        listing = self._listings[fh]
        if start_id == 0:
            listing[1:] = await self._run(self._children, listing[0])
        for number in range(start_id + 1, len(listing)):
            node = self._numbered(listing[number])
            name = pyfuse3.FileNameT(os.fsencode(node.path.rpartition("/")[2]))
            if not pyfuse3.readdir_reply(token, name, self._entry(node, node.stat()), number):
                return
            self._inodes.remember(node)

    def _children(self, node: _Node) -> list[_Node]:
        children = []
        for name in self._names(node):
            try:
                children.append(self._find(node, name))
            except OSError as error:
                # ENOENT: the partition was deleted after it was listed. EIO: it is offline. Leave it out.
                if error.errno not in (errno.ENOENT, errno.EIO):
                    raise
        return children

    async def releasedir(self, fh: int) -> None:
        self._listings.pop(fh, None)

    async def getxattr(self, inode: int, name: bytes, ctx: pyfuse3.RequestContext) -> bytes:
        """Refuse with ENOSYS, after which the kernel no longer asks for `security.capability` at each write(2)."""
        raise pyfuse3.FUSEError(errno.ENOSYS)

    # The methods from here on refuse changes that only the main mount can make.

    async def mkdir(
        self, parent_inode: int, name: bytes, mode: int, ctx: pyfuse3.RequestContext
    ) -> pyfuse3.EntryAttributes:
        raise self._refusal(parent_inode, name)

    async def create(
        self, parent_inode: int, name: bytes, mode: int, flags: int, ctx: pyfuse3.RequestContext
    ) -> tuple[pyfuse3.FileInfo, pyfuse3.EntryAttributes]:
        raise self._refusal(parent_inode, name)

    async def unlink(self, parent_inode: int, name: bytes, ctx: pyfuse3.RequestContext) -> None:
        raise self._refusal(parent_inode, name)

    async def rmdir(self, parent_inode: int, name: bytes, ctx: pyfuse3.RequestContext) -> None:
        raise self._refusal(parent_inode, name)

    def _refusal(self, directory: int, name: bytes, why: str = "") -> OSError:
        where = Path(self.mount, self._inodes.node(directory).path[1:], os.fsdecode(name))
        return refuse(
            errno.EPERM, f"a write-behind mount takes appends only; use {where} in the main mount"
        )

    # The methods from here on handle requests about files.

    async def open(self, inode: int, flags: int, ctx: pyfuse3.RequestContext) -> pyfuse3.FileInfo:
        node = self._inodes.node(inode)
        handle = self._new_handle()
        number = pyfuse3.FileHandleT(handle)
        if isinstance(node, _Generated):
            self._contents[handle] = node.make()
            return pyfuse3.FileInfo(fh=number, direct_io=True)
        if not isinstance(node, _AppendFile):
            raise refuse(errno.EISDIR, f"{node.path}: is a directory")
        if flags & os.O_DIRECT:
            raise refuse(
                errno.EINVAL,
                f"{node.path}: O_DIRECT is not supported by a write-behind mount; open the file without it",
            )
        writes = flags & (os.O_WRONLY | os.O_RDWR)
        if writes and flags & (os.O_SYNC | os.O_DSYNC):
            # Each write must be durable before write(2) returns, so it goes to the main mount at once.
            target = await self._run(os.open, node.stream.target, flags & _PASSED_ON | os.O_CLOEXEC)
            self._direct[handle] = (node, target)
            return pyfuse3.FileInfo(fh=number, direct_io=True, nonseekable=True)
        if writes:
            await self._open_for_writing(node, flags)
        self._files[handle] = (node, flags)
        # A second open must not drop pages that the kernel has not sent yet.
        return pyfuse3.FileInfo(fh=number, keep_cache=True, nonseekable=True)

    async def _open_for_writing(self, node: _AppendFile, flags: int) -> None:
        """Open the stream of a node for a writer. Raises `OSError`: ENOTCONN if the mount is being stopped.

        Each lookup makes a new node, so a second writer can open the node only through /proc/PID/fd. The second
        writer gets EBUSY unless both writers use O_APPEND and the second one does not use O_TRUNC.
        """
        appends = bool(flags & os.O_APPEND)
        self._refuse_when_stopping(node)
        async with node.lock:
            if node.writers and (flags & os.O_TRUNC or not appends or not node.all_append):
                raise refuse(
                    errno.EBUSY,
                    f"{node.path}: is open for writing; several writers must all use O_APPEND and no O_TRUNC",
                )
            await self._run(node.stream.open)
            node.all_append = appends and (node.all_append or not node.writers)
            node.writers += 1
        self.linger.wake(node.inode)

    def _refuse_when_stopping(self, node: _AppendFile) -> None:
        """Raise `OSError` (ENOTCONN) if the mount is being stopped."""
        if self.linger.is_stopping:
            raise refuse(errno.ENOTCONN, f"{node.path}: the mount is being stopped")

    async def read(self, fh: int, off: int, size: int) -> bytes:
        """Return up to `size` bytes, from byte `off` on, of a generated file or of an append file.

        Of an append file, only the last bytes that were written are kept, and earlier bytes are returned as zeros. A
        file opened for writing with O_SYNC or O_DSYNC reads as empty, because its writes bypass the stream.
        """
        if fh in self._contents:
            return self._contents[fh][off : off + size]
        if fh in self._direct:
            return b""
        node, _ = self._files[fh]
        async with node.lock:
            return node.stream.read(off, size)

    async def write(self, fh: int, off: int, buf: bytes) -> int:
        if fh in self._direct:
            return await self._run(os.write, self._direct[fh][1], buf)
        node, _ = self._files[fh]
        stream = node.stream
        self.linger.wake(node.inode)
        had_error = stream.has_error
        async with node.lock:
            before = stream.position
            await self._run(stream.write, off, buf)
        self._totals["bytes"] += stream.position - before
        if stream.has_error and not had_error:
            # Without attributes, the kernel asks for them at the next write(2), which gets the error from `getattr`.
            forget_attributes(node.inode)
        return len(buf)

    async def flush(self, fh: int) -> None:
        """Raise the error of the stream, if there is one, so that close(2) returns it.

        An unfinished line stays in the stream: the file may still be open through another descriptor.
        """
        if fh not in self._files:
            return
        node, flags = self._files[fh]
        if flags & (os.O_WRONLY | os.O_RDWR):
            await self.linger.wait_for_round(node.inode)
            async with node.lock:
                with _noted():
                    node.stream.check()

    async def fsync(self, fh: int, datasync: bool) -> None:
        if fh in self._direct:
            await self._run(os.fsync, self._direct[fh][1])
        elif fh in self._files:
            node, _ = self._files[fh]
            async with node.lock:
                with _noted():
                    await self._run(node.stream.sync)

    async def release(self, fh: int) -> None:
        if self._contents.pop(fh, None) is not None:
            return
        if fh in self._direct:
            await self._run(os.close, self._direct.pop(fh)[1])
            return
        node, flags = self._files.pop(fh)
        if not flags & (os.O_WRONLY | os.O_RDWR):
            return
        node.writers -= 1
        if not node.writers:
            self.linger.forget(node.inode)
            async with node.lock:
                await self._run(node.stream.close)

    def _status(self) -> bytes:
        writers = [
            node for node, flags in self._files.values() if flags & (os.O_WRONLY | os.O_RDWR)
        ]
        status = {
            "version": logfs.__version__,
            "pid": os.getpid(),
            "write_behind": str(self.mount),
            "linger_ms": self._linger_ms,
            "open_files": len(writers),
            "failed_files": sum(node.stream.failure is not None for node in writers),
            "accepted_bytes": self._totals["bytes"],
            "errors": self._totals["errors"],
            "rounds": self.linger.rounds,
        }
        return orjson.dumps(status, option=orjson.OPT_INDENT_2) + b"\n"


@contextmanager
def _noted() -> Iterator[None]:
    """Return a context that raises an `OSError` of a node's `Stream` as `FUSEError`, which is not noted again.

    The stream noted the error in `.logfs/errors` when it happened.
    """
    try:
        yield
    except OSError as error:
        raise pyfuse3.FUSEError(error.errno or errno.EIO) from None


def check_main_mount(mount: Path) -> None:
    """Raise `OSError` (ENOTCONN) unless `mount` is the mountpoint of a store."""
    entry = logfs_mounts().get(str(mount))
    if entry is None or entry.kind != FILESYSTEM_TYPE or entry.root != "/":
        raise OSError(errno.ENOTCONN, f"{mount}: no store is mounted here", str(mount))


def _partition(name: str) -> str:
    """Return `name` if it is the name of a partition. Raises `OSError` (ENOENT) for any other name."""
    if not _is_partition(name):
        raise refuse(errno.ENOENT, name)
    return name


def _is_partition(name: str) -> bool:
    try:
        parse_directory(name)
    except InvalidName:
        return False
    return True
