"""The FUSE handlers of the main mount: each finds the node of a request, calls a method of the node, and answers."""

from __future__ import annotations

import errno
import logging
import os
import stat
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakKeyDictionary

import pyfuse3
import trio

from logfs.log.disk.disk import WouldBlock, run_without_network
from logfs.mount.errnos import refuse
from logfs.mount.growing_sizes import GrowingSizes
from logfs.mount.handler_guard import guarded
from logfs.mount.handlers import Handlers
from logfs.mount.mounting import forget_attributes, statvfs_of
from logfs.mount.nodes.append import AppendFile
from logfs.mount.nodes.base import (
    Caller,
    DirectoryNode,
    FileNode,
    Handle,
    Node,
    PartitionAccess,
    SymlinkNode,
)
from logfs.mount.nodes.folder import PartitionFolder
from logfs.mount.nodes.growing import GrowingFile
from logfs.mount.nodes.record import RecordFile, RecordHandle
from logfs.mount.nodes.text_file import TextFile
from logfs.mount.threads import run_in_thread

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from logfs.log.append.partition import Partition
    from logfs.mount.nodes.root import RootDirectory

logger = logging.getLogger(__name__)

_T = TypeVar("_T")

# The most requests that run in worker threads at the same time, if they change nothing and need no network.
_WORKERS = 8
# The most requests that run in worker threads at the same time, if they change something. This does not include
# fsync, which has a limit of its own.
_CHANGING_WORKERS = 8
# The most requests that run in worker threads at the same time, if they change nothing and may wait for the network.
_FETCHING_WORKERS = 384
# If the content of a record's file has at most this many bytes, it is put into the kernel's page cache at the first
# open. The reader of a larger record may want only a part of it.
_HANDED_OVER_BYTES = 128 * 1024
# After this number of directory entries, a `readdir` lets other requests run.
_ENTRIES_A_STEP = 16


@guarded
class Operations(Handlers[Node]):
    """The handlers that pyfuse3 calls.

    Every method runs on the trio thread (architecture.md, rule 6) and does not block it: a call that would have to
    wait for the disk runs in a worker thread (`_run`).
    """

    enable_writeback_cache = False

    def __init__(self, root: RootDirectory) -> None:
        super().__init__(root, root.context.errors)
        self.context = root.context
        self._handles: dict[int, Handle] = {}
        self._listings: dict[int, tuple[DirectoryNode, list[str], int]] = {}
        self._sizes = GrowingSizes()
        # True until the compiled code is loaded.
        self.is_cold = True
        self._workers = trio.CapacityLimiter(_WORKERS)
        self._changers = trio.CapacityLimiter(_CHANGING_WORKERS)
        self._fetchers = trio.CapacityLimiter(_FETCHING_WORKERS)
        self._syncers = trio.CapacityLimiter(256)
        self._sync_locks: WeakKeyDictionary[Partition, trio.Lock] = WeakKeyDictionary()

    def failed(self, name: str, arguments: tuple[Any, ...], error: Exception) -> int:
        """Record the error of a failed request, and return its errno.

        `name` is the name of the handler that failed, and `arguments` are those of the call. Unless the errno is
        ENOENT, failed appends and reads are counted in the metrics. Any failed request on an `append` file counts as
        an append. A failed GETATTR, LOOKUP, OPEN or READ counts as a read if its node is the file of a record, a file
        with the text of a partition's records, or a directory in a partition directory, such as `keys/`. The node of
        a LOOKUP is the directory in which it looks up a name.
        """
        number = super().failed(name, arguments, error)
        node = self._node_of(name, arguments)
        if number == errno.ENOENT:
            pass
        elif isinstance(node, AppendFile):
            node.partition.traffic.failed_appends += 1
        elif name in _READS and isinstance(node, (TextFile, RecordFile, PartitionFolder)):
            node.partition.traffic.failed_reads += 1
        return number

    def _opened(self, handle: int) -> Node | None:
        found = self._handles.get(handle)
        return found.node if found else None

    async def _run(self, work: Callable[..., _T], *arguments: Any) -> _T:
        """Call `work` on this thread or, if it raises `WouldBlock` there, in a worker thread, and return its result.

        `work` must change nothing (architecture.md, rule 8). Until the compiled loops over batches and keys are
        loaded, each call runs in a worker thread, because a call that needs the loops waits for them.
        """
        if self.is_cold:
            return await self._look(work, *arguments)
        try:
            return work(*arguments)
        except WouldBlock as blocked:
            on_network = blocked.on_network
        if on_network:
            return await self._fetch(work, *arguments)
        return await self._look(work, *arguments)

    async def _look(self, work: Callable[..., _T], *arguments: Any) -> _T:
        """Call `work`, which must change nothing, in a worker thread, and return its result.

        If `work` raises `WouldBlock`, because it needs the network or waits long for a lock, call it again in a
        thread that may wait for the network (`_fetch`).
        """
        try:
            return await run_in_thread(run_without_network, work, *arguments, limiter=self._workers)
        except WouldBlock:
            pass
        return await self._fetch(work, *arguments)

    async def _fetch(self, work: Callable[..., _T], *arguments: Any) -> _T:
        return await run_in_thread(work, *arguments, limiter=self._fetchers, fetches=True)

    async def _change(self, work: Callable[..., _T], *arguments: Any) -> _T:
        """Call `work`, which may change something, on this thread; if it must wait, repeat it in a worker thread.

        `work` must raise `WouldBlock` only before it has changed anything, so that nothing is changed twice. In the
        worker thread, `work` may also wait for the network.
        """
        if not self.is_cold:
            with suppress(WouldBlock):
                return work(*arguments)
        return await self._change_in_thread(work, *arguments)

    async def _change_in_thread(self, work: Callable[..., _T], *arguments: Any) -> _T:
        return await run_in_thread(work, *arguments, limiter=self._changers)

    # The methods from here on handle requests about nodes and attributes.

    def _remember(self, node: Node) -> None:
        """Count one more lookup of a node. Call this for each answer to the kernel that contains the node.

        If the kernel then knows too many of the nodes that are `is_evictable`, ask it to forget the names of the
        oldest ones.
        """
        for old in self._inodes.remember(node):
            if old.parent is not None:
                name = pyfuse3.FileNameT(os.fsencode(old.name))
                pyfuse3.invalidate_entry_async(
                    pyfuse3.InodeT(old.parent.inode), name, ignore_enoent=True
                )

    async def stop_growth(self) -> None:
        """Stop telling the kernel the new sizes of those growing files whose descriptors several threads may share.

        Waits at most 20 s for worker threads that are just telling the kernel a size. They wait in the kernel for
        readers, and the readers wait for answers of the mount. So call this while the mount still answers requests.
        """
        await self._sizes.stop()

    async def _attributes(self, node: Node) -> pyfuse3.EntryAttributes:
        """Return the attributes of a node. A node that is new to the kernel gets its inode number first."""
        self._inodes.number(node)
        return self._entry(node, await self._run(node.stat))

    async def _look_up(
        self, directory: DirectoryNode, name: str, thread: int
    ) -> tuple[Node, pyfuse3.EntryAttributes]:
        """Return the node of a name and its attributes. Raises ENOENT for an unknown name.

        `thread` is the id of the thread that made the request. The result for a growing file is a new node if the
        node of an earlier lookup belongs to an open file or is reserved for another thread, or if the file's size has
        changed since the kernel was told it (module `growing_sizes`).
        """
        node = await self._find(directory, name)
        entry = await self._attributes(node)
        while isinstance(node, GrowingFile) and not self._sizes.may_look_up(
            node, entry.st_size, thread
        ):
            found = await self._run(directory.find, name)
            node = directory.renew(name, found) if found else directory.adopt(name, found)
            entry = await self._attributes(node)
        return node, entry

    def _directory(self, inode: int) -> DirectoryNode:
        """Return the directory of an inode. Raises `OSError`: ESTALE for an unknown inode, or ENOTDIR."""
        node = self._inodes.node(inode)
        if not isinstance(node, DirectoryNode):
            raise refuse(errno.ENOTDIR, f"{node.path}: is not a directory")
        return node

    async def lookup(
        self, parent_inode: int, name: bytes, ctx: pyfuse3.RequestContext
    ) -> pyfuse3.EntryAttributes:
        directory = self._directory(parent_inode)
        _check_path(directory)
        if name in (b".", b".."):
            node: Node = directory if name == b"." else directory.parent or directory
            entry = await self._attributes(node)
        else:
            node, entry = await self._look_up(directory, _text(name, directory), ctx.pid)
        self._remember(node)
        return entry

    async def _find(self, directory: DirectoryNode, name: str) -> Node:
        """Return the node that an earlier lookup of the name made, or else a new one.

        A worker thread may make the new node, but only the trio thread stores it in `directory`. Raises ENOENT for an
        unknown name.
        """
        return directory.known(name) or directory.adopt(name, await self._run(directory.find, name))

    async def getattr(self, inode: int, ctx: pyfuse3.RequestContext) -> pyfuse3.EntryAttributes:
        return await self._attributes_for(self._inodes.node(inode), ctx)

    async def _attributes_for(
        self, node: Node, ctx: pyfuse3.RequestContext
    ) -> pyfuse3.EntryAttributes:
        """Return the attributes of `node`, which the kernel has looked up before.

        For a growing file, this waits until the kernel may be told the present size: if the kernel got this size too
        early, readers would see zeros that are not in the file. After `stop_growth`, this does not wait, and the size
        may be the smaller one that the kernel was told before.
        """
        if isinstance(node, GrowingFile):
            end_offset = node.partition.log.state.log_end_offset
            entry = await self._attributes(node)
            entry.st_size = await self._sizes.grow(node, entry.st_size, ctx.pid)
            entry.attr_timeout = self._sizes.timeout(node, end_offset, ctx.pid)
        else:
            entry = await self._attributes(node)
        entry.st_ino = pyfuse3.InodeT(node.file_number or node.inode)
        return entry

    async def setattr(
        self,
        inode: int,
        attr: pyfuse3.EntryAttributes,
        fields: pyfuse3.SetattrFields,
        fh: int | None,
        ctx: pyfuse3.RequestContext,
    ) -> pyfuse3.EntryAttributes:
        node = self._inodes.node(inode)
        if fields.update_size:
            await self._change(node.truncate, attr.st_size)
        if fields.update_mode or fields.update_uid or fields.update_gid:
            await self._change_in_thread(self._change_access, node, attr, fields, ctx.uid)
            # Other nodes may get their mode and owner from the table `node.modes`, too. The kernel must forget their
            # attributes.
            assert isinstance(node, PartitionAccess)
            for other in self._inodes:
                if isinstance(other, PartitionAccess) and other.follows(node.modes):
                    forget_attributes(other.inode)
        # The times of files come from records. A request to set times succeeds, as `touch` and `cp -p` expect, but
        # changes nothing.
        return await self._attributes_for(node, ctx)

    @staticmethod
    def _change_access(
        node: Node, attr: pyfuse3.EntryAttributes, fields: pyfuse3.SetattrFields, uid: int
    ) -> None:
        access = node.access()
        if uid not in (0, access.uid):
            raise refuse(
                errno.EPERM,
                f"{node.path}: only its owner, uid {access.uid}, and root may change its mode or group",
            )
        if uid != 0 and fields.update_uid and attr.st_uid != access.uid:
            raise refuse(errno.EPERM, f"{node.path}: only root may change its owner")
        if fields.update_mode:
            access = access._replace(mode=stat.S_IMODE(attr.st_mode))
        if fields.update_uid:
            access = access._replace(uid=attr.st_uid)
        if fields.update_gid:
            access = access._replace(gid=attr.st_gid)
        node.set_access(access)

    async def readlink(self, inode: int, ctx: pyfuse3.RequestContext) -> bytes:
        node = self._inodes.node(inode)
        _check_path(node)
        if not isinstance(node, SymlinkNode):
            raise refuse(errno.EINVAL, f"{node.path}: not a symbolic link")
        return os.fsencode(await self._run(node.target))

    async def statfs(self, ctx: pyfuse3.RequestContext) -> pyfuse3.StatvfsData:
        store = self.context.store
        if not store.registry.working:
            raise store.registry.failed[0]
        path = store.registry.working[0].path
        return await self._look(statvfs_of, path)

    # The methods from here on handle requests about directories.

    async def opendir(self, inode: int, ctx: pyfuse3.RequestContext) -> int:
        directory = self._directory(inode)
        _check_path(directory)
        # A directory of keys or offsets may have very many names, so a worker thread lists them.
        names = await self._look(lambda: list(directory.names()))
        handle = self._new_handle()
        self._listings[handle] = (directory, names, ctx.pid)
        return handle

    async def readdir(self, fh: int, start_id: int, token: pyfuse3.ReaddirToken) -> None:
        directory, names, thread = self._listings[fh]
        for number in range(start_id, len(names)):
            if number % _ENTRIES_A_STEP == 0:
                # The answer may have thousands of entries. Let other requests run in between.
                await trio.lowlevel.checkpoint()
            try:
                node, entry = await self._look_up(directory, names[number], thread)
            except FileNotFoundError:
                # The file was removed after `opendir` had listed it.
                continue
            except Exception as error:
                self._errors.note(directory.path_of(names[number]), error)
                continue
            name = pyfuse3.FileNameT(os.fsencode(names[number]))
            if not pyfuse3.readdir_reply(token, name, entry, number + 1):
                return
            self._remember(node)

    async def releasedir(self, fh: int) -> None:
        self._listings.pop(fh, None)

    async def mkdir(
        self, parent_inode: int, name: bytes, mode: int, ctx: pyfuse3.RequestContext
    ) -> pyfuse3.EntryAttributes:
        directory = self._directory(parent_inode)
        # A name that is not UTF-8 fails the check of Kafka's rules for names, like any other invalid name.
        text = os.fsdecode(name)
        await self._change_in_thread(directory.mkdir, text, mode, _caller(ctx))
        node = await self._find(directory, text)
        entry = await self._attributes(node)
        self._remember(node)
        return entry

    async def rmdir(self, parent_inode: int, name: bytes, ctx: pyfuse3.RequestContext) -> None:
        directory = self._directory(parent_inode)
        await self._change_in_thread(directory.rmdir, _text(name, directory))

    async def unlink(self, parent_inode: int, name: bytes, ctx: pyfuse3.RequestContext) -> None:
        directory = self._directory(parent_inode)
        text = _text(name, directory)
        await self._change(directory.unlink, text)
        directory.disown(text)

    async def create(
        self,
        parent_inode: int,
        name: bytes,
        mode: int,
        flags: int,
        ctx: pyfuse3.RequestContext,
    ) -> tuple[pyfuse3.FileInfo, pyfuse3.EntryAttributes]:
        directory = self._directory(parent_inode)
        text = _text(name, directory)
        made = await self._change(directory.create, text, flags)
        directory.disown(text)
        node = directory.adopt(text, made)
        info = await self._open(node, flags, ctx)
        entry = await self._attributes(node)
        self._remember(node)
        return info, entry

    # The methods from here on handle requests about files.

    async def open(self, inode: int, flags: int, ctx: pyfuse3.RequestContext) -> pyfuse3.FileInfo:
        node = self._inodes.node(inode)
        _check_path(node)
        return await self._open(node, flags, ctx)

    async def _open(self, node: Node, flags: int, ctx: pyfuse3.RequestContext) -> pyfuse3.FileInfo:
        if not isinstance(node, FileNode):
            raise refuse(errno.EISDIR, f"{node.path}: is a directory")
        if isinstance(node, PartitionAccess):
            # Refuse the open if the log directory has failed. After an open, the kernel could answer reads from its
            # page cache, and the caller would not learn of the failure.
            node.modes.check_available()
        if isinstance(node, GrowingFile) and not self._sizes.may_open(node, ctx.pid):
            # At ESTALE the kernel looks the name up again.
            raise pyfuse3.FUSEError(errno.ESTALE)
        if self.context.is_sync:
            # With direct_io, the kernel sends no FSYNC after a write, although it knows the option.
            flags |= os.O_SYNC
        handle = await self._run(node.open, flags, _caller(ctx))
        number = self._new_handle()
        self._handles[number] = handle
        if isinstance(handle, RecordHandle):
            self._hand_over(handle)
        return pyfuse3.FileInfo(
            fh=pyfuse3.FileHandleT(number),
            direct_io=handle.direct_io,
            keep_cache=handle.keep_cache,
        )

    @staticmethod
    def _hand_over(handle: RecordHandle) -> None:
        """Put a record into the kernel's page cache at the first open of its file, so that no READ has to follow.

        Later opens must not do this: a reader may have locked the page, and this thread would wait in the kernel for
        the reader, which waits for an answer of this thread. At the first open there are no readers.
        """
        file, content = handle.file, handle.content
        if file.is_handed_over or not 0 < len(content) <= _HANDED_OVER_BYTES:
            return
        file.is_handed_over = True
        try:
            pyfuse3.notify_store(pyfuse3.InodeT(file.inode), 0, content)
        except OSError as error:
            # The record did not get into the page cache, so the kernel will send a READ for it.
            logger.debug("%s: %s", file.path, error)

    async def read(self, fh: int, off: int, size: int) -> bytes:
        position, handle = off, self._handles[fh]
        found = await self._run(handle.read, position, size)
        # The answer may be that of an administrative request that has appended records. The kernel must forget
        # the old sizes of files before the caller reads in the answer that the records are in the log.
        self._grown(handle)
        return found

    async def write(self, fh: int, off: int, buf: bytes) -> int:
        # Every write appends to the log, as with O_APPEND. The position `off` is only checked.
        handle = self._handles[fh]
        handle.check_position(off, buf)
        try:
            taken = await self._change(handle.write, buf)
        finally:
            self._grown(handle)
        must = handle.needs_sync()
        if must or any(partition.flusher.is_due() for partition in handle.appends_to):
            await self._sync(handle, must=must)
        return taken

    async def fsync(self, fh: int, datasync: bool) -> None:
        await self._sync(self._handles[fh])

    async def _sync(self, handle: Handle, *, must: bool = True) -> None:
        """Make data appended through `handle` durable. Calls that wait for the same partition share one sync.

        If `must` is false, only flushes that are due are done (`Partition.flush_if_due`).
        """
        for partition, end_offset in [(each, each.log_end_offset) for each in handle.appends_to]:
            lock = self._sync_locks.setdefault(partition, trio.Lock())
            async with lock:
                if partition.failure is None and partition.recovery_point >= end_offset:
                    continue
                flush = partition.flush if must else partition.flush_if_due
                await run_in_thread(flush, limiter=self._syncers)

    async def flush(self, fh: int) -> None:
        """Refuse with ENOSYS, after which the kernel sends no more FLUSH requests.

        FLUSH means that one descriptor of an open file was closed. Nothing has to be done then: other descriptors may
        be open, so the close does not end an unfinished line, and a close makes nothing durable.
        """
        raise pyfuse3.FUSEError(errno.ENOSYS)

    async def release(self, fh: int) -> None:
        handle = self._handles[fh]
        try:
            await self._change(handle.release)
        except Exception as error:
            # The answer to a RELEASE reaches no caller, so only `.logfs/errors` can show the error. Record it before
            # the handle is removed: the handle has the path of the file.
            self._errors.note(handle.node.path, error)
        finally:
            self._grown(handle)
            del self._handles[fh]

    def _grown(self, handle: Handle) -> None:
        """Make the kernel forget the sizes of files that may have grown through `handle`.

        This must happen before the writer is told that its records are in the log.
        """
        for partition in handle.grown():
            for inode in self._sizes.pop_stale(partition):
                forget_attributes(inode)

    # The methods from here on handle requests about extended attributes.

    async def getxattr(self, inode: int, name: bytes, ctx: pyfuse3.RequestContext) -> bytes:
        if not name.startswith(b"user.logfs."):
            # The kernel asks for `security.*` very often, so answer at once: no node has such an attribute.
            raise pyfuse3.FUSEError(errno.ENODATA)
        found = await self._run(self._inodes.node(inode).xattrs, _caller(ctx))
        try:
            return found[name.decode()]
        except (KeyError, UnicodeDecodeError):
            raise pyfuse3.FUSEError(errno.ENODATA) from None

    async def listxattr(self, inode: int, ctx: pyfuse3.RequestContext) -> Sequence[bytes]:
        found = await self._run(self._inodes.node(inode).xattrs, _caller(ctx))
        return [name.encode() for name in found]

    async def setxattr(
        self, inode: int, name: bytes, value: bytes, ctx: pyfuse3.RequestContext
    ) -> None:
        raise refuse(errno.EPERM, f"{self._inodes.node(inode).path}: xattrs cannot be changed")

    async def removexattr(self, inode: int, name: bytes, ctx: pyfuse3.RequestContext) -> None:
        raise refuse(errno.EPERM, f"{self._inodes.node(inode).path}: xattrs cannot be changed")


_READS = frozenset({"lookup", "getattr", "open", "read"})


def _check_path(node: Node) -> None:
    """Raise ESTALE if the partition of a node was deleted, unloaded or taken offline.

    The kernel keeps names for a second. During this second, a name may lead to such a partition. At ESTALE, the
    kernel looks up all names of the path again.
    """
    if node.is_deleted:
        raise pyfuse3.FUSEError(errno.ESTALE)


def _caller(ctx: pyfuse3.RequestContext) -> Caller:
    return Caller(ctx.uid, ctx.gid, ctx.pid, ctx.umask)


def _text(name: bytes, directory: DirectoryNode) -> str:
    try:
        return name.decode()
    except UnicodeDecodeError:
        raise OSError(errno.ENOENT, f"{directory.path}: names must be UTF-8") from None
