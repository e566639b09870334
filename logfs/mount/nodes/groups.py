"""`groups/`: one file for each consumer group that has a committed offset for the partition."""

from __future__ import annotations

import errno
import os
import stat
from typing import TYPE_CHECKING

from logfs.errors import OffsetOutOfRange
from logfs.format.base.names import file_name, parse_file_name
from logfs.mount.errnos import refuse
from logfs.mount.nodes.base import (
    READ_BITS,
    WRITE_BITS,
    Caller,
    Context,
    FileNode,
    Handle,
    Node,
    Stat,
)
from logfs.mount.nodes.folder import PartitionFolder
from logfs.store.commits.groups import resolve_offset

if TYPE_CHECKING:
    from collections.abc import Iterator

    from logfs.format.messages.group_record import OffsetCommit
    from logfs.store.directory.permissions import Access

LAG = ".lag"
# The longest name that a listing shows. A longer name resolves if the system permits its length.
_NAME_BYTES = 255


class GroupsDirectory(PartitionFolder):
    """Committed offsets by group. Read permission allows seeing them, write permission committing and forgetting."""

    allowed_bits = 0o777

    def find(self, name: str) -> Node | None:
        group = _parse(name.removesuffix(LAG))
        if group is None or self.committed(group) is None:
            return None
        kind = LagFile if name.endswith(LAG) else GroupFile
        return kind(self.context, name, self, group)

    def names(self) -> Iterator[str]:
        for group in self.context.store.groups.of(self.partition.name.directory):
            name = file_name(group.encode(), (LAG,))
            if len(name.encode()) <= _NAME_BYTES:
                yield name

    def create(self, name: str, flags: int) -> Node:
        """Return the file of a group, even if the group has no committed offset. Only a write to it commits one.

        Raises EEXIST with O_EXCL if the group has a committed offset, EPERM for a lag, EINVAL for an invalid name.
        """
        group = self._writable(name)
        if flags & os.O_EXCL and self.committed(group) is not None:
            raise refuse(errno.EEXIST, f"{self.path}/{name}: the group already has an offset here")
        return GroupFile(self.context, name, self, group)

    def unlink(self, name: str) -> None:
        """Forget the committed offset of a group. Raises ENOENT if there is none."""
        group = self._writable(name)
        if not self.context.store.groups.forget(group, self.partition.name.directory):
            raise OSError(errno.ENOENT, f"{self.path}/{name}: no such group")

    def committed(self, group: str) -> OffsetCommit | None:
        """Return what a group has committed for this partition (offset, metadata, time), or None for nothing."""
        return self.context.store.groups.committed(group, self.partition.name.directory)

    def _writable(self, name: str) -> str:
        """Return the group of a name that can be written to or removed."""
        if name.endswith(LAG):
            raise refuse(errno.EPERM, f"{self.path}/{name}: lag files are read-only")
        group = _parse(name)
        if group is None:
            right = file_name(os.fsencode(name), (LAG,))
            raise refuse(
                errno.EINVAL,
                f"{self.path}/{name}: is not a valid group name; did you mean {right}?",
            )
        return group


class GroupFile(FileNode):
    """A group's committed offset. Writing an offset commits it. The mtime is the time of the commit.

    A new file has no offset until one is written. Without an offset it exists only while it is open.
    """

    allowed_bits = READ_BITS | WRITE_BITS

    def __init__(self, context: Context, name: str, parent: GroupsDirectory, group: str) -> None:
        super().__init__(context, name, parent)
        self.folder = parent
        self.group = group
        # Handles are made in any thread. `add` and `discard` of a set are atomic.
        self.openers: set[GroupHandle] = set()

    def committed(self) -> OffsetCommit | None:
        """Return the group's commit; None if there is none and the file is open.

        Raises ENOENT if there is none and the file is not open.
        """
        commit = self.folder.committed(self.group)
        if commit is None and not self.openers:
            raise OSError(errno.ENOENT, f"{self.path}: no such group")
        return commit

    def content(self, commit: OffsetCommit | None) -> bytes:
        """Return the bytes of the file: the number for `commit` and a newline, or nothing if `commit` is None."""
        return b"" if commit is None else b"%d\n" % self.number(commit)

    def number(self, commit: OffsetCommit) -> int:
        """Return the number that the file shows: the committed offset, or in a `.lag` file the lag."""
        return commit.offset

    def access(self) -> Access:
        access = self.folder.access()
        return access._replace(mode=access.mode & self.allowed_bits)

    def stat(self) -> Stat:
        access = self.access()
        commit = self.committed()
        size = len(self.content(commit))
        time_ms = self.context.store.clock() if commit is None else commit.commit_timestamp
        mode = stat.S_IFREG | access.mode
        return Stat(mode, access.uid, access.gid, size, time_ms * 1_000_000)

    def open(self, flags: int, caller: Caller) -> Handle:
        return GroupHandle(self, flags)

    def truncate(self, size: int) -> None:
        """Do nothing: every `>` sends O_TRUNC, and the offset stays until another one is written."""

    def xattrs(self, caller: Caller) -> dict[str, bytes]:
        commit = self.committed()
        if commit is None:
            return {}
        return {
            "user.logfs.metadata": commit.metadata.encode(),
            "user.logfs.leader_epoch": b"%d" % commit.leader_epoch,
        }


class LagFile(GroupFile):
    """The lag of a group: the log end offset minus the committed offset."""

    allowed_bits = READ_BITS

    def number(self, commit: OffsetCommit) -> int:
        return self.folder.partition.log_end_offset - commit.offset

    def open(self, flags: int, caller: Caller) -> Handle:
        if flags & (os.O_WRONLY | os.O_RDWR):
            raise refuse(errno.EPERM, f"{self.path}: lag files are read-only")
        return GroupHandle(self, flags)

    def truncate(self, size: int) -> None:
        raise refuse(errno.EPERM, f"{self.path}: lag files are read-only")


class GroupHandle(Handle):
    """An open group file. One write(2) is one offset.

    Reads return the content at the time of the open, or the offset that the handle has written last.
    """

    direct_io = True

    def __init__(self, node: GroupFile, flags: int) -> None:
        super().__init__(node)
        self._file = node
        self._is_sync = bool(flags & (os.O_SYNC | os.O_DSYNC))
        node.openers.add(self)
        try:
            self._bytes = node.content(node.committed())
        except BaseException:
            node.openers.discard(self)
            raise

    def read(self, position: int, size: int) -> bytes:
        return self._bytes[position : position + size]

    def write(self, data: bytes) -> int:
        """Commit the offset in `data`: a number, `earliest`, `latest`, or a time such as `@1638100400000`.

        Raises `OSError`: EINVAL if `data` is not UTF-8, ERANGE for an offset outside the log. Raises `InvalidName`
        for other words.
        """
        partition = self._file.folder.partition
        groups = self._file.context.store.groups
        try:
            words = data.decode().strip()
        except UnicodeDecodeError:
            raise refuse(errno.EINVAL, f"{self._file.path}: the value is not UTF-8") from None
        try:
            offset = resolve_offset(partition, words)
            groups.commit(self._file.group, partition.name.directory, offset)
        except OffsetOutOfRange as error:
            raise refuse(errno.ERANGE, f"{error}; nothing is committed") from None
        self.appends_to = (groups.log_of(self._file.group),)
        self._bytes = b"%d\n" % offset
        return len(data)

    def needs_sync(self) -> bool:
        return any(self._is_sync or log.flusher.is_due() for log in self.appends_to)

    def release(self) -> None:
        self._file.openers.discard(self)


def _parse(name: str) -> str | None:
    """Return the group of a file name, or None if it is not the name of a group."""
    data = parse_file_name(name, (LAG,))
    try:
        return None if data is None else data.decode()
    except UnicodeDecodeError:
        return None
