"""`groups/` of a partition or a topic: one file for each consumer group that has a committed offset there."""

from __future__ import annotations

import errno
import os
import stat
from typing import TYPE_CHECKING

from logfs.errors import InvalidName, OffsetOutOfRange
from logfs.format.base.names import file_name, parse_file_name
from logfs.format.messages.group_record import lag_of
from logfs.mount.errnos import refuse
from logfs.mount.nodes.base import (
    READ_BITS,
    WRITE_BITS,
    Caller,
    Context,
    DirectoryNode,
    FileNode,
    Handle,
    Node,
    Stat,
)
from logfs.mount.nodes.folder import PartitionFolder
from logfs.store.groups import resolve_offset

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from logfs.format.messages.group_record import OffsetCommit
    from logfs.log.read.reader import Reader
    from logfs.store.directory.permissions import Access

    Commits = list[tuple[Reader, OffsetCommit]]

LAG = ".lag"
# The longest name (bytes) that a listing shows. A longer name can be looked up if the kernel permits its length.
_NAME_BYTES = 255


class GroupsFolder(DirectoryNode):
    """A directory with a file for each group that has a committed offset for one of the partitions `readers`.

    The files have the owner and the mode of the directory, without the execute bits. So read permission on the
    directory lets a user see the offsets, and write permission on it lets a user commit offsets.
    """

    allowed_bits = 0o777

    @property
    def readers(self) -> Sequence[Reader]:
        """The partitions whose committed offsets the files show, at least one."""
        raise NotImplementedError

    def text(self, commits: Commits) -> bytes:
        """Return the content of a group's file: the committed offset of each partition in `commits`."""
        raise NotImplementedError

    def parse(self, text: str) -> Mapping[Reader, str]:
        """Parse `text`, which was written to a group's file, and return the value to commit for each partition.

        In a partition's `groups/`, `text` is one value. In a topic's `groups/`, it is one value for all partitions,
        or has lines with a partition number and a value. A value is an offset, `earliest`, `latest` or `@TIME`; it is
        not checked here, but in `resolve_offset`. Raises `InvalidName` if the lines of `text` are malformed.
        """
        raise NotImplementedError

    def find(self, name: str) -> Node | None:
        group = _parse(name.removesuffix(LAG))
        if group is None or not self.commits(group):
            return None
        kind = LagFile if name.endswith(LAG) else GroupFile
        return kind(self.context, name, self, group)

    def names(self) -> Iterator[str]:
        groups = self.context.store.groups
        found = {group for each in self.readers for group in groups.of(each.name.directory)}
        for group in sorted(found):
            name = file_name(group.encode(), (LAG,))
            if len(name.encode()) <= _NAME_BYTES:
                yield name

    def create(self, name: str, flags: int) -> Node:
        """Return a new node for a group's file. This commits no offset; a write to the file does.

        Raises `OSError`: EEXIST if `flags` have O_EXCL and the group has a committed offset, EPERM for the name of a
        file that shows a lag (`LagFile`), EINVAL for an invalid name.
        """
        group = self._writable(name)
        if flags & os.O_EXCL and self.commits(group):
            raise refuse(errno.EEXIST, f"{self.path}/{name}: the group already has an offset here")
        return GroupFile(self.context, name, self, group)

    def unlink(self, name: str) -> None:
        """Raise EPERM, because `rm -r` of a partition must not delete the offsets of its groups."""
        group, log_dirs = self._writable(name), self.context.store.log_dirs
        assert self.parent is not None
        paths = " ".join(str(log_dir.path) for log_dir in log_dirs)
        raise refuse(
            errno.EPERM,
            f"{self.path}/{name}: cannot be removed, because 'rm -r' must not delete committed offsets; 'logfs "
            f"groups {paths} --forget {group} {self.parent.name}' deletes them",
        )

    def commits(self, group: str) -> Commits:
        """Return the group's commit for each partition that has one, in the order of the partitions."""
        groups = self.context.store.groups
        found = [(each, groups.committed(group, each.name.directory)) for each in self.readers]
        return [(each, commit) for each, commit in found if commit is not None]

    def _writable(self, name: str) -> str:
        """Return the group whose committed offsets are the content of the file `name`.

        Raises `OSError`: EPERM if the file shows the lag of the group (`LagFile`), EINVAL for an invalid name.
        """
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


class GroupsDirectory(GroupsFolder, PartitionFolder):
    """`groups/` of a partition: for each consumer group a file with the offset that it has committed there."""

    @property
    def readers(self) -> Sequence[Reader]:
        return (self.partition,)

    def text(self, commits: Commits) -> bytes:
        return b"".join(b"%d\n" % commit.offset for _, commit in commits)

    def parse(self, text: str) -> Mapping[Reader, str]:
        return {self.partition: text.strip()}


class TopicGroups(GroupsFolder):
    """`groups/` of a topic. A file has a line for each partition: its number and the committed offset."""

    def text(self, commits: Commits) -> bytes:
        return b"".join(b"%d %d\n" % (each.partition, commit.offset) for each, commit in commits)

    def parse(self, text: str) -> Mapping[Reader, str]:
        """Return the value that `text` commits for each partition: an offset, `earliest`, `latest` or `@TIME`.

        `text` is one value for all partitions, or has lines with a partition number and a value. Raises `InvalidName`
        for another form, or for a partition that the topic does not have.
        """
        readers = self.readers
        lines = [line.split() for line in text.splitlines() if line.strip()]
        if len(lines) == 1 and len(lines[0]) == 1:
            return dict.fromkeys(readers, lines[0][0])
        numbered = {str(each.partition): each for each in readers}
        found: dict[Reader, str] = {}
        for line in lines:
            if len(line) != 2 or line[0] not in numbered:
                raise InvalidName(
                    f"{' '.join(line)[:40]!r} is not a partition of {readers[0].topic} and its offset: give lines "
                    "such as '0 1234', or one of earliest, latest and @TIME for all partitions"
                )
            found[numbered[line[0]]] = line[1]
        if not found:
            raise InvalidName(
                "the text is empty: write an offset; 'logfs groups --forget' deletes the group's offsets"
            )
        return found


class GroupFile(FileNode):
    """A group's committed offsets. Writing offsets commits them. The mtime is the time of the newest commit.

    A new file is empty until an offset is written. A file without an offset exists only while it is open.
    """

    allowed_bits = READ_BITS | WRITE_BITS

    def __init__(self, context: Context, name: str, parent: GroupsFolder, group: str) -> None:
        super().__init__(context, name, parent)
        self.folder = parent
        self.group = group
        # Worker threads change this set, too. No lock is needed, because `add` and `discard` are atomic.
        self.openers: set[GroupHandle] = set()

    def commits(self) -> Commits:
        """Return the group's commits. Raises `OSError` (ENOENT) if there are none and the file is not open."""
        commits = self.folder.commits(self.group)
        if not commits and not self.openers:
            raise OSError(errno.ENOENT, f"{self.path}: the group has no committed offset here")
        return commits

    def content(self, commits: Commits) -> bytes:
        """Return the content of the file for the given commits; it is empty if there are none."""
        return self.folder.text(commits)

    def access(self) -> Access:
        access = self.folder.access()
        return access._replace(mode=access.mode & self.allowed_bits)

    def stat(self) -> Stat:
        access = self.access()
        commits = self.commits()
        size = len(self.content(commits))
        times = [commit.commit_timestamp for _, commit in commits]
        time_ms = max(times, default=self.context.store.clock())
        mode = stat.S_IFREG | access.mode
        return Stat(mode, access.uid, access.gid, size, time_ms * 1_000_000)

    def open(self, flags: int, caller: Caller) -> Handle:
        return GroupHandle(self, flags)

    def truncate(self, size: int) -> None:
        """Do nothing. A shell's `>` truncates the file before it writes; the old offset stays until the write."""

    def xattrs(self, caller: Caller) -> dict[str, bytes]:
        commits = self.commits()
        if len(commits) != 1:
            return {}
        ((_, commit),) = commits
        return {
            "user.logfs.metadata": commit.metadata.encode(),
            "user.logfs.leader_epoch": b"%d" % commit.leader_epoch,
        }


class LagFile(GroupFile):
    """The lag of a group: how many offsets lie between its commits and the ends of the logs, summed over partitions.

    A partition without a commit does not count. If the isolation level of the mount is read_committed, the last
    stable offset is the end of a log.
    """

    allowed_bits = READ_BITS

    def content(self, commits: Commits) -> bytes:
        if not commits:
            return b""
        return b"%d\n" % sum(lag_of(commit.offset, each.log_end_offset) for each, commit in commits)

    def open(self, flags: int, caller: Caller) -> Handle:
        if flags & (os.O_WRONLY | os.O_RDWR):
            raise refuse(errno.EPERM, f"{self.path}: lag files are read-only")
        return GroupHandle(self, flags)

    def truncate(self, size: int) -> None:
        raise refuse(errno.EPERM, f"{self.path}: lag files are read-only")


class GroupHandle(Handle):
    """An open group file. One write(2) is one commit.

    Reads return the content as it was when the file was opened, or after the last write through this handle.
    """

    direct_io = True

    def __init__(self, node: GroupFile, flags: int) -> None:
        super().__init__(node)
        self._file = node
        self._is_sync = bool(flags & (os.O_SYNC | os.O_DSYNC))
        node.openers.add(self)
        try:
            self._bytes = node.content(node.commits())
        except BaseException:
            node.openers.discard(self)
            raise

    def read(self, position: int, size: int) -> bytes:
        return self._bytes[position : position + size]

    def write(self, data: bytes) -> int:
        """Commit the offsets in `data`, all or none.

        In a partition's `groups/`, `data` is one value. In a topic's `groups/`, it is one value for all partitions,
        or has a line for each partition to commit: its number, a space and a value, such as `0 1234`. A value is an
        offset, `earliest`, `latest`, or a time such as `@1638100400000`, which stands for the first record at or
        after this time.

        Raises `OSError`: EINVAL if `data` is not UTF-8, ERANGE for an offset outside of the log. Raises `InvalidName`
        for any other text, `UnknownPartition` if a partition was deleted, and the errors of an append to
        `__consumer_offsets`.
        """
        folder, group = self._file.folder, self._file.group
        store = self._file.context.store
        groups = store.groups
        try:
            text = data.decode()
        except UnicodeDecodeError:
            raise refuse(errno.EINVAL, f"{self._file.path}: the value is not UTF-8") from None
        try:
            parsed = folder.parse(text)
            for each in parsed:
                # `commit_all` finds a partition by its name. If the partition was deleted, another one may have this
                # name now.
                store.registry.check_current(each.log)
            offsets = {
                each.name.directory: resolve_offset(each, words) for each, words in parsed.items()
            }
            groups.commit_all(group, offsets)
        except OffsetOutOfRange as error:
            raise refuse(errno.ERANGE, f"{error}; nothing is committed") from None
        self.appends_to = (groups.log_of(group),)
        self._bytes = folder.text(folder.commits(group))
        return len(data)

    def needs_sync(self) -> bool:
        return any(self._is_sync or log.flusher.is_due() for log in self.appends_to)

    def release(self) -> None:
        self._file.openers.discard(self)


def _parse(name: str) -> str | None:
    """Return the group whose file has the name `name`; None if no group's file can have this name."""
    data = parse_file_name(name, (LAG,))
    try:
        return None if data is None else data.decode()
    except UnicodeDecodeError:
        return None
