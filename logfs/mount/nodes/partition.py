"""`orders-0/`: the directory of one partition."""

from __future__ import annotations

import errno
import json
import re
import stat
from typing import TYPE_CHECKING

from logfs.errors import InvalidName, LogfsError
from logfs.log.append.partition import writable
from logfs.mount.nodes.append import AppendFile, EnvelopeAppendFile, LastOffsets
from logfs.mount.nodes.base import READ_BITS, Context, DirectoryNode, Node, PartitionAccess, Stat
from logfs.mount.nodes.config import TopicConfigDirectory
from logfs.mount.nodes.generated import GeneratedFile
from logfs.mount.nodes.groups import GroupsDirectory
from logfs.mount.nodes.keys import KeysDirectory
from logfs.mount.nodes.offsets import OffsetsDirectory
from logfs.mount.nodes.segments import SegmentsDirectory
from logfs.mount.nodes.text_file import TextFile
from logfs.mount.nodes.time import TimeDirectory
from logfs.store.directory.permissions import Access, PermissionTable
from logfs.store.observe.status import partition_status
from logfs.store.registry import UnloadedPartition

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from logfs.log.read.log import Log

_APPENDS = {"append": AppendFile, "append.jsonl": EnvelopeAppendFile}
_TEXTS = ("records", "records.jsonl")
_FOLDERS = {
    "offsets": OffsetsDirectory,
    "time": TimeDirectory,
    "keys": KeysDirectory,
    "segments": SegmentsDirectory,
    "config": TopicConfigDirectory,
    "groups": GroupsDirectory,
}
_STATUS = "status.json"
_LOG_START = "log-start-offset"
_CTL = "ctl"
_OFFSET = re.compile(r"-1|0|[1-9][0-9]{0,18}")
_COMMANDS = ("compact", "retain", "roll", "move LOGDIR", "pause", "resume")


class PartitionDirectory(PartitionAccess, DirectoryNode):
    """The directory of one partition.

    By default, the files in it have the owner of the directory, and a mode derived from the directory's mode.
    """

    allowed_bits = 0o777
    mode_name = ""
    entry_timeout = 1.0

    def __init__(
        self,
        context: Context,
        name: str,
        parent: DirectoryNode,
        partition: Log | UnloadedPartition,
    ) -> None:
        """Make the directory of a partition. An unloaded partition is loaded at the first use of a file in it."""
        super().__init__(context, name, parent)
        self._partition = partition
        self.modes = PermissionTable(partition)
        # The newest node of each name. These are strong references, so that the node of a name keeps its inode number
        # as long as the node is current.
        self._children: dict[str, Node] = {}
        self._last_offsets = {name: LastOffsets() for name in _APPENDS}

    @property
    def partition(self) -> Log:
        """The partition, which is loaded first if necessary. Raises EIO if it cannot be loaded."""
        if isinstance(self._partition, UnloadedPartition):
            try:
                self._partition = self.context.store.registry.loader.load(self._partition)
            except (LogfsError, OSError) as error:
                raise offline_error(error) from error
        return self._partition

    @property
    def is_deleted(self) -> bool:
        """Whether the store no longer has this partition: it was deleted, unloaded or taken offline."""
        registry, known = self.context.store.registry, self._partition
        loaded: Log | None
        if isinstance(known, UnloadedPartition):
            if registry.unloaded.get(self.name) is known:
                return False
            loaded = known.partition
        else:
            loaded = known
        return loaded is None or loaded is not registry.partitions.get(self.name)

    def access(self) -> Access:
        return self.modes.get("")

    def set_access(self, access: Access) -> None:
        self.modes.set("", access)

    def stat(self) -> Stat:
        access, known = self.access(), self._partition
        if isinstance(known, UnloadedPartition) and known.partition is None:
            # Do not read the last timestamp: that would load the partition, and `ls -l` of the root would load all.
            timestamp = known.mtime_ms()
        else:
            self.partition.refresh()
            timestamp = self.partition.last_timestamp
            if timestamp < 0:
                timestamp = self.partition.active.mtime_ms()
        return Stat(stat.S_IFDIR | access.mode, access.uid, access.gid, 0, timestamp * 1_000_000)

    def renew(self, name: str, node: Node) -> Node:
        self._children[name] = node
        return super().renew(name, node)

    def is_current(self, node: Node) -> bool:
        if isinstance(node, AppendFile):
            return not node.handles
        return not isinstance(node, TextFile) or node.is_current

    def find(self, name: str) -> Node | None:
        context, modes = self.context, self.modes
        if name in _APPENDS:
            return _APPENDS[name](
                context, name, self, self.partition, modes, self._last_offsets[name]
            )
        reader = self.partition.isolated(context.isolation)
        if name in _TEXTS:
            return TextFile(context, name, self, reader, modes, name)
        if name in _FOLDERS:
            return _FOLDERS[name](context, name, self, reader, modes)
        if name == _STATUS:
            return PartitionFile(context, name, self, self._status)
        if name == _LOG_START:
            return PartitionFile(context, name, self, self._log_start, self._delete_records)
        if name == _CTL:
            return PartitionFile(context, name, self, self._doing, self._command)
        return None

    def names(self) -> Iterator[str]:
        # Load the partition: `ls` fails with EIO if it cannot be loaded.
        _ = self.partition
        yield from (*_APPENDS, *_TEXTS, *_FOLDERS, _STATUS, _LOG_START, _CTL)

    def _log_start(self) -> bytes:
        self.partition.refresh()
        return b"%d\n" % self.partition.log_start_offset

    def _delete_records(self, text: str) -> None:
        # A regular expression, because `int` also accepts 1_000, +7, and the digits of every script.
        if not _OFFSET.fullmatch(text):
            raise InvalidName(
                f"{text[:40]!r} is not an offset: write the first offset to keep, or -1 for the log end"
            )
        store = self.context.store
        # `delete_records` finds the partition by its name. If it was deleted, another one may have this name now.
        store.registry.check_current(self.partition)
        store.delete_records(self.name, int(text))

    def _doing(self) -> bytes:
        """Return the content of `ctl`: lines about the background work on the partition (compaction, moves …)."""
        store, name = self.context.store, self.name
        lines = ["paused" if self.partition.is_paused else "upkeep"]
        lines += [str(work) for work in list(store.registry.background) if work.name == name]
        if name in store.compactor.requested:
            lines.append("compaction is requested")
        if self.partition.config.is_compacted:
            dirty = store.compactor.plan(name)
            lines.append(
                f"dirty from offset {dirty.dirty.first_dirty}, {dirty.cleanable_bytes} bytes, "
                f"ratio {dirty.ratio:.3f}"
            )
        if name in store.mover.requested:
            lines.append("a move is requested")
        if name in store.mover.errors:
            lines.append(f"not moved: {store.mover.errors[name]}")
        if self.partition.uncleanable is not None:
            lines.append(f"not compacted: {self.partition.uncleanable}")
        return "".join(f"{line}\n" for line in lines).encode()

    def _command(self, text: str) -> None:
        """Execute a command that was written to `ctl`.

        `compact` and `move` continue in the background. The other commands are done when this returns. Raises
        `InvalidName` for an unknown command.
        """
        self.partition.check_may_block()
        store = self.context.store
        partition = writable(self.partition)
        partition.check_appendable()
        if text == "compact":
            store.compactor.request(self.name)
        elif text == "retain":
            store.retain([self.name])
        elif text == "roll":
            partition.roll(store.clock())
        elif text.startswith("move "):
            store.mover.request(self.name, text.removeprefix("move ").strip())
        elif text in ("pause", "resume"):
            partition.is_paused = text == "pause"
        else:
            raise InvalidName(f"{text[:40]!r} is not a command; use one of {', '.join(_COMMANDS)}")

    def _status(self) -> bytes:
        self.partition.refresh()
        status = partition_status(self.partition, self.context.store)
        return json.dumps(status, indent=2).encode() + b"\n"


def offline_error(reason: LogfsError | OSError) -> OSError:
    """Return the `OSError` (EIO) for the use of an offline partition; `reason` is the error that took it offline."""
    return OSError(errno.EIO, f"the partition is offline: {reason}")


class PartitionFile(PartitionAccess, GeneratedFile):
    """A generated file in a partition directory, with its own mode and owner."""

    def __init__(
        self,
        context: Context,
        name: str,
        parent: PartitionDirectory,
        make: Callable[[], bytes],
        write: Callable[[str], None] | None = None,
    ) -> None:
        super().__init__(context, name, parent, make, write)
        self.modes = parent.modes
        self.mode_name = name
        self.allowed_bits = READ_BITS | (0o200 if write else 0)
