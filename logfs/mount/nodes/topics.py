"""`topics/`: a directory for each topic, with files that append to its partitions and read them merged by time."""

from __future__ import annotations

import errno
import stat
from typing import TYPE_CHECKING

from logfs.errors import UnknownPartition
from logfs.format.base import names
from logfs.log.append.partition import writable
from logfs.log.append.topic_framer import (
    Partitioner,
    TopicEnvelopeFramer,
    TopicLineFramer,
    check_partitions,
)
from logfs.log.read.merged_text import MergedText
from logfs.mount import sharers
from logfs.mount.errnos import refuse
from logfs.mount.nodes.append import AppendFile, LastOffsets
from logfs.mount.nodes.base import (
    DIRECTORY_BITS,
    READ_BITS,
    Caller,
    Context,
    DirectoryNode,
    Handle,
    Node,
    PartitionAccess,
    Stat,
    SymlinkNode,
    file_number_of,
    first_found,
)
from logfs.mount.nodes.config import TopicConfigDirectory
from logfs.mount.nodes.groups import TopicGroups
from logfs.mount.nodes.growing import GrowingFile, GrowingHandle
from logfs.mount.nodes.text_file import view_of
from logfs.store.directory.permissions import Access, PermissionTable
from logfs.store.topic import Topic

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from logfs.log.append.line_framer import LineFramer
    from logfs.log.append.partition import Partition
    from logfs.log.read.log import Log
    from logfs.log.read.reader import Reader

_FRAMERS = {"append": TopicLineFramer, "append.jsonl": TopicEnvelopeFramer}
_TEXTS = ("records", "records.jsonl")
_CONFIG = "config"
_GROUPS = "groups"
_PARTITIONS = "partitions"


class _Folder(DirectoryNode):
    """A directory with the owner and the mode of the mount's root, without write permission for group and others."""

    entry_timeout = 1.0

    def stat(self) -> Stat:
        found = first_found(self.context.store)
        mode = stat.S_IFDIR | stat.S_IMODE(found.mode) & (DIRECTORY_BITS | 0o200)
        return Stat(mode, found.uid, found.gid, 0, found.mtime_ns)


class TopicsDirectory(_Folder):
    """The directory `topics/`. A `mkdir` in it creates a topic with `num.partitions` partitions."""

    def find(self, name: str) -> Node | None:
        is_there = self.context.store.registry.partitions_of(name)
        return TopicDirectory(self.context, name, self) if is_there else None

    def is_current(self, node: Node) -> bool:
        return bool(self.context.store.registry.partitions_of(node.name))

    def names(self) -> Iterator[str]:
        yield from sorted({parsed.topic for parsed in _partitions(self.context)})

    def mkdir(self, name: str, mode: int, caller: Caller) -> None:
        """Create a topic. Its partitions belong to the caller, with the permissions `mode` less the umask."""
        store = self.context.store
        if self.find(name) is not None:
            raise refuse(errno.EEXIST, f"{self.path}/{name}: the topic exists already")
        access = Access(mode & ~caller.umask & 0o7777, caller.uid, caller.gid)
        count = store.settings.broker_config.num_partitions
        for partition in Topic(store, name).create(count):
            PermissionTable(partition).set("", access)

    def rmdir(self, name: str) -> None:
        """Delete all partitions of a topic. If any has records, raise `PartitionNotEmpty` and delete none."""
        if self.find(name) is None:
            raise OSError(errno.ENOENT, f"{self.path}/{name}: no such topic")
        Topic(self.context.store, name).delete(only_empty=True)


class TopicDirectory(_Folder):
    """The directory of one topic."""

    def __init__(self, context: Context, name: str, parent: DirectoryNode) -> None:
        super().__init__(context, name, parent)
        self.topic = Topic(context.store, name)

    def find(self, name: str) -> Node | None:
        if name == _PARTITIONS:
            return PartitionsDirectory(self.context, name, self)
        if name not in self.names():
            return None
        partitions = self.topic.partitions
        if not partitions:
            # Another process has deleted the partitions, or is moving them, since this directory was looked up.
            return None
        if name in _FRAMERS:
            return TopicAppendFile(self.context, name, self, partitions)
        if name in _TEXTS:
            return TopicTextFile(self.context, name, self, partitions)
        if name == _CONFIG:
            return TopicSettingsDirectory(self.context, name, self, partitions)
        return TopicGroupsDirectory(self.context, name, self, partitions)

    def is_current(self, node: Node) -> bool:
        if not isinstance(node, _TopicAccess):
            return True
        # Partitions may have been created or deleted since the lookup.
        if [*node.partitions] != [*self.topic.partitions]:
            return False
        if isinstance(node, TopicTextFile):
            return node.is_current
        return not isinstance(node, TopicAppendFile) or not node.handles

    def names(self) -> Iterator[str]:
        yield from (*_FRAMERS, *_TEXTS, _CONFIG, _GROUPS, _PARTITIONS)


class PartitionsDirectory(_Folder):
    """A directory with a link to each partition of a topic; the names are the numbers of the partitions."""

    def find(self, name: str) -> Node | None:
        return PartitionLink(self.context, name, self) if name in [*self.names()] else None

    def names(self) -> Iterator[str]:
        assert self.parent is not None
        topic = self.parent.name
        for name in names.partitions_of(topic, self.context.store.registry.homes):
            yield str(name.partition)


class PartitionLink(SymlinkNode):
    """A link from the number of a partition to its directory."""

    def timestamp(self) -> int:
        return first_found(self.context.store).mtime_ns // 1_000_000

    def target(self) -> str:
        assert self.parent is not None
        assert self.parent.parent is not None
        return f"../../../{self.parent.parent.name}-{self.name}"


class _TopicAccess(PartitionAccess):
    """The base of those nodes of a topic whose names, such as `append`, also exist in each partition directory.

    A topic's node has the mode and owner of the nodes of this name in the partition directories. If these differ from
    each other, only the owner of the first log directory has access to the topic's node.
    """

    partitions: Sequence[Log]

    def access(self) -> Access:
        found = {
            PermissionTable(partition).get(self.name, self.allowed_bits)
            for partition in self.partitions
        }
        if len(found) == 1:
            return found.pop()
        owner = first_found(self.context.store)
        return Access(self.allowed_bits & 0o700, owner.uid, owner.gid)

    def follows(self, modes: PermissionTable) -> bool:
        return any(partition.directory == modes.directory for partition in self.partitions)

    def set_access(self, access: Access) -> None:
        raise refuse(
            errno.EPERM,
            f"{self.path}: mode and owner are those of {self.name} in each partition; change them there",
        )


class TopicSettingsDirectory(_TopicAccess, TopicConfigDirectory):
    """The directory `config/` of a topic, with a file for each setting."""

    def __init__(
        self, context: Context, name: str, parent: TopicDirectory, partitions: Sequence[Log]
    ) -> None:
        first, *_ = partitions
        super().__init__(context, name, parent, first, PermissionTable(first))
        self.partitions = partitions


class TopicGroupsDirectory(TopicGroups, _TopicAccess):
    """The directory `groups/` of a topic, with a file for each consumer group."""

    # With 0, the kernel does not cache the name `groups`, but looks it up at each use. If partitions were created
    # meanwhile, the lookup returns a new directory node, and the group files in it include these partitions.
    entry_timeout = 0

    def __init__(
        self, context: Context, name: str, parent: TopicDirectory, partitions: Sequence[Log]
    ) -> None:
        super().__init__(context, name, parent)
        self.mode_name = name
        self.partitions = partitions

    @property
    def readers(self) -> Sequence[Reader]:
        return [partition.isolated(self.context.isolation) for partition in self.partitions]

    def stat(self) -> Stat:
        access = self.access()
        found = first_found(self.context.store)
        mode = stat.S_IFDIR | access.mode
        return Stat(mode, access.uid, access.gid, 0, found.mtime_ns)


class TopicAppendFile(_TopicAccess, AppendFile):
    """A file to which lines or JSON envelopes are written: each is appended to one of the topic's partitions.

    Kafka's default partitioner chooses the partition.
    """

    def __init__(
        self, context: Context, name: str, parent: TopicDirectory, partitions: Sequence[Log]
    ) -> None:
        first, *_ = partitions
        super().__init__(context, name, parent, first, PermissionTable(first), LastOffsets())
        self.partitions = partitions
        self.is_parsed = _FRAMERS[name] is TopicEnvelopeFramer

    def make_framer(self) -> LineFramer:
        return _FRAMERS[self.name](self.logs(), Partitioner(len(self.partitions)))

    def check_appendable(self) -> None:
        assert self.parent is not None
        try:
            check_partitions(self.parent.name, self.partitions)
        except UnknownPartition as error:
            # `UnknownPartition` would become ENOENT, at which the kernel would try to create the file.
            raise OSError(errno.EIO, str(error)) from None
        super().check_appendable()

    def logs(self) -> Sequence[Partition]:
        return [writable(partition) for partition in self.partitions]

    def xattrs(self, caller: Caller) -> dict[str, bytes]:
        """Return no attributes: the last append has no single offset, because it may go to several partitions."""
        return {}


class TopicTextFile(_TopicAccess, GrowingFile):
    """`records` or `records.jsonl` of a topic: the records of all partitions, merged by time.

    While the file is open, bytes that were read once do not change. A file that is opened later may have the records
    in another order, because records that were appended meanwhile may have earlier timestamps.
    """

    allowed_bits = READ_BITS

    def __init__(
        self, context: Context, name: str, parent: TopicDirectory, partitions: Sequence[Log]
    ) -> None:
        first, *_ = partitions
        super().__init__(context, name, parent, first)
        self.partitions = partitions
        self.modes, self.mode_name = PermissionTable(first), name
        logs = [partition.isolated(context.isolation) for partition in partitions]
        # `MergedText` reads and merges the logs, which may wait for the disk.
        first.check_may_block()
        self.text = MergedText(logs, view_of(name))
        self.file_number = file_number_of(parent.inode, name, self.text.identity)

    @property
    def is_growing(self) -> bool:
        return True

    @property
    def is_current(self) -> bool:
        """Whether a new file of this name would have the same bytes."""
        return self.text.is_current

    def byte_at(self, position: int) -> bytes:
        return self.text.read(position, 1)

    def stat(self) -> Stat:
        for partition in self.partitions:
            partition.refresh()
        if not self.text.is_up_to_date:
            self.partition.check_may_block()
        access = self.access()
        timestamp = max(partition.last_timestamp for partition in self.partitions)
        if timestamp < 0:
            timestamp = max(partition.active.mtime_ms() for partition in self.partitions)
        mode = stat.S_IFREG | access.mode
        return Stat(mode, access.uid, access.gid, self.text.size, timestamp * 1_000_000)

    def open(self, flags: int, caller: Caller) -> Handle:
        self.refuse_writing(flags)
        return TopicTextHandle(self, caller.pid)


class TopicTextHandle(GrowingHandle):
    """An open `records` or `records.jsonl` of a topic.

    Bytes that were read once never change, so the kernel's pages remain valid. If this process cannot see in `/proc`
    the thread that opened the file, the handle uses direct_io, so that the kernel keeps no pages: `GrowingSizes`
    cannot tell when such a thread has left a read.
    """

    keep_cache = True

    def __init__(self, node: TopicTextFile, opener: int) -> None:
        super().__init__(node, opener)
        self.direct_io = not sharers.is_visible(opener)
        self._file = node

    def read(self, position: int, size: int) -> bytes:
        self._file.partition.check_may_block()
        data = self._file.text.read(position, size)
        self._file.partition.traffic.bytes_out += len(data)
        return data


def _partitions(context: Context) -> list[names.TopicPartition]:
    """Return all partitions of the store, also those that are offline or not loaded."""
    store = context.store
    return [names.parse_directory(name) for name in {*store, *store.offline}]
