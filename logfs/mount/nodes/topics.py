"""`topics/`: each topic as one thing, with files that append to all of its partitions."""

from __future__ import annotations

import errno
import stat
from typing import TYPE_CHECKING

from logfs.errors import UnknownPartition
from logfs.format.base import names
from logfs.log.append.topic_framer import (
    Partitioner,
    TopicEnvelopeFramer,
    TopicLineFramer,
    check_partitions,
)
from logfs.mount.errnos import refuse
from logfs.mount.nodes.append import AppendFile, LastOffsets
from logfs.mount.nodes.base import (
    DIRECTORY_BITS,
    WRITE_BITS,
    Caller,
    Context,
    DirectoryNode,
    Node,
    Stat,
    SymlinkNode,
    first_found,
)
from logfs.mount.nodes.config import TopicConfigDirectory
from logfs.store.directory.permissions import Access, PermissionTable
from logfs.store.topic import Topic

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from logfs.log.append.line_framer import LineFramer
    from logfs.log.append.partition import Partition

_FRAMERS = {"append": TopicLineFramer, "append.jsonl": TopicEnvelopeFramer}
_CONFIG = "config"
_PARTITIONS = "partitions"


class _Folder(DirectoryNode):
    """A directory with the mode and the owner of the mount's root, in which nothing can be made."""

    entry_timeout = 1.0

    def stat(self) -> Stat:
        found = first_found(self.context.store)
        mode = stat.S_IFDIR | stat.S_IMODE(found.st_mode) & (DIRECTORY_BITS | 0o200)
        return Stat(mode, found.st_uid, found.st_gid, 0, found.st_mtime_ns)


class TopicsDirectory(_Folder):
    """All topics. A new directory here is a topic with `num.partitions` partitions."""

    def find(self, name: str) -> Node | None:
        is_there = any(parsed.topic == name for parsed in _partitions(self.context))
        return TopicDirectory(self.context, name, self) if is_there else None

    def is_current(self, node: Node) -> bool:
        return any(parsed.topic == node.name for parsed in _partitions(self.context))

    def names(self) -> Iterator[str]:
        yield from sorted({parsed.topic for parsed in _partitions(self.context)})

    def mkdir(self, name: str, mode: int, caller: Caller) -> None:
        """Create a topic. Its partitions belong to the caller."""
        store = self.context.store
        if self.find(name) is not None:
            raise refuse(errno.EEXIST, f"{self.path}/{name}: the topic exists")
        access = Access(mode & ~caller.umask & 0o7777, caller.uid, caller.gid)
        count = store.settings.broker_config.num_partitions
        for partition in Topic(store, name).create(count):
            PermissionTable(partition).set("", access)

    def rmdir(self, name: str) -> None:
        """Delete all partitions of a topic, in the same way as Kafka does."""
        if self.find(name) is None:
            raise OSError(errno.ENOENT, f"{self.path}/{name}: no such topic")
        Topic(self.context.store, name).delete()


class TopicDirectory(_Folder):
    """One topic."""

    def __init__(self, context: Context, name: str, parent: DirectoryNode) -> None:
        super().__init__(context, name, parent)
        self.topic = Topic(context.store, name)

    def find(self, name: str) -> Node | None:
        if name in _FRAMERS:
            return TopicAppendFile(self.context, name, self, self.topic.partitions)
        if name == _CONFIG:
            first, *_ = self.topic.partitions
            modes = PermissionTable(first)
            return TopicConfigDirectory(self.context, name, self, first, modes)
        return PartitionsDirectory(self.context, name, self) if name == _PARTITIONS else None

    def is_current(self, node: Node) -> bool:
        # Partitions may have been created since.
        return not isinstance(node, TopicAppendFile) or (
            not node.handles and [*node.partitions] == [*self.topic.partitions]
        )

    def names(self) -> Iterator[str]:
        yield from (*_FRAMERS, _CONFIG, _PARTITIONS)


class PartitionsDirectory(_Folder):
    """A link to the directory of each partition of a topic, by its number."""

    def find(self, name: str) -> Node | None:
        return PartitionLink(self.context, name, self) if name in [*self.names()] else None

    def names(self) -> Iterator[str]:
        assert self.parent is not None
        topic = self.parent.name
        numbers = [each.partition for each in _partitions(self.context) if each.topic == topic]
        yield from map(str, sorted(numbers))


class PartitionLink(SymlinkNode):
    """A link from the number of a partition to its directory."""

    def timestamp(self) -> int:
        return first_found(self.context.store).st_mtime_ns // 1_000_000

    def target(self) -> str:
        assert self.parent is not None
        assert self.parent.parent is not None
        return f"../../../{self.parent.parent.name}-{self.name}"


class TopicAppendFile(AppendFile):
    """A file that takes lines or envelopes for the partitions of a topic.

    Who may write to the `append` file of every partition alike may write to it, otherwise only the owner of the log
    directory.
    """

    def __init__(
        self, context: Context, name: str, parent: TopicDirectory, partitions: Sequence[Partition]
    ) -> None:
        first, *_ = partitions
        super().__init__(context, name, parent, first, PermissionTable(first), LastOffsets())
        self.partitions = partitions
        self.is_parsed = _FRAMERS[name] is TopicEnvelopeFramer

    def access(self) -> Access:
        found = {
            PermissionTable(partition).get(self.name, self.allowed_bits)
            for partition in self.partitions
        }
        if len(found) == 1:
            return found.pop()
        owner = first_found(self.context.store)
        return Access(WRITE_BITS & 0o200 | 0o400, owner.st_uid, owner.st_gid)

    def set_access(self, access: Access) -> None:
        raise refuse(
            errno.EPERM, f"{self.path}: has the mode of the partitions' files; change it there"
        )

    def make_framer(self) -> LineFramer:
        return _FRAMERS[self.name](self.partitions, Partitioner(len(self.partitions)))

    def check_appendable(self) -> None:
        assert self.parent is not None
        try:
            check_partitions(self.parent.name, self.partitions)
        except UnknownPartition as error:
            # ENOENT would have the kernel create the file.
            raise OSError(errno.EIO, str(error)) from None
        for partition in self.partitions:
            partition.check_appendable()

    def logs(self) -> Sequence[Partition]:
        return self.partitions

    def xattrs(self, caller: Caller) -> dict[str, bytes]:
        """Return none: the records of a write have offsets in several partitions."""
        return {}


def _partitions(context: Context) -> list[names.TopicPartition]:
    """Return all partitions of the store, also those that are offline or not loaded."""
    store = context.store
    return [names.parse_directory(name) for name in {*store, *store.offline}]
