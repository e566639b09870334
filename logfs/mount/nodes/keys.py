"""`keys/`: each key is a link to its newest record; `ls` shows the keys that were written last."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

from logfs.format.base.names import FILE_NAME_LENGTH, file_name, parse_file_name
from logfs.log.read.reader import OffsetAndTimestamp
from logfs.log.read.recent_keys import recent_keys
from logfs.mount.nodes.base import Context, Node, SymlinkNode
from logfs.mount.nodes.folder import PartitionFolder
from logfs.mount.nodes.record import JSON

if TYPE_CHECKING:
    from collections.abc import Iterator

    from logfs.format.batches.record import Record
    from logfs.store.directory.permissions import Access

# The number of keys that `ls` shows. Every key can be looked up.
_LISTED = 1000
# Endings that the names of keys cannot have: the key `a.json` has the name `a%2Ejson`. So a name that ends in `.json`
# always links to the JSON envelope of a record.
_RESERVED = (JSON,)


class KeysDirectory(PartitionFolder):
    """A directory with a link to the newest record of each key."""

    def find(self, name: str) -> Node | None:
        key = parse_file_name(name.removesuffix(JSON), _RESERVED)
        if key is None:
            return None
        record = self.partition.newest(key)
        return None if record is None else KeyLink(self.context, name, self, key, record)

    def is_current(self, node: Node) -> bool:
        # Look each name up again: every append may change the target of a link.
        return False

    def names(self) -> Iterator[str]:
        self.partition.refresh()
        for key in recent_keys(self.partition, _LISTED):
            name = file_name(key, _RESERVED)
            if len(name.encode()) <= FILE_NAME_LENGTH:
                yield name


class KeyLink(SymlinkNode):
    """A link to the newest record with a key. If the log has changed, the next use looks the record up again."""

    is_evictable = True

    def __init__(
        self, context: Context, name: str, parent: KeysDirectory, key: bytes, record: Record
    ) -> None:
        super().__init__(context, name, parent)
        self._folder = parent
        self._key = key
        # Keep only the offset and the timestamp of the record: the kernel may keep very many names in memory, and
        # each name keeps its node.
        self._found = _place_of(record), self._state()

    def access(self) -> Access:
        return self._folder.modes.get("")

    def target(self) -> str:
        suffix = JSON if self.name.endswith(JSON) else ""
        return f"../offsets/{self._place().offset}{suffix}"

    def timestamp(self) -> int:
        return self._place().timestamp

    def _place(self) -> OffsetAndTimestamp:
        """Return the offset and timestamp of the key's newest record. Raises ENOENT if the key has no record now."""
        self._folder.partition.refresh()
        place, state = self._found
        now = self._state()
        if now != state:
            found = self._folder.partition.newest(self._key)
            if found is None:
                raise OSError(errno.ENOENT, f"{self.path}: no record has this key any more")
            place = _place_of(found)
            self._found = place, now
        return place

    def _state(self) -> tuple[int, int, int]:
        """Return the log's generation, start offset and end offset. If the log changes, the result changes, too."""
        partition = self._folder.partition
        log = partition.log
        return log.state.generation, partition.log_start_offset, partition.log_end_offset


def _place_of(record: Record) -> OffsetAndTimestamp:
    timestamp = -1 if record.timestamp is None else record.timestamp
    return OffsetAndTimestamp(record.offset, timestamp)
