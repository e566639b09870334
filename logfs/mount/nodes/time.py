"""`time/`: links to records by time, and files with the text of the records in a range of times.

The name of a link is a time; its target is the first record at or after this time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from logfs.format.base.quantities import parse_time
from logfs.mount.nodes.base import Context, Node, SymlinkNode
from logfs.mount.nodes.folder import PartitionFolder
from logfs.mount.nodes.offsets import first_offsets
from logfs.mount.nodes.record import JSON
from logfs.mount.nodes.text_file import JSONL, TextFile

if TYPE_CHECKING:
    from collections.abc import Iterator

    from logfs.log.read.reader import OffsetAndTimestamp, Reader
    from logfs.store.directory.permissions import Access


class TimeDirectory(PartitionFolder):
    """A directory in which the name of each link is a time, and its target the first record at or after this time.

    A range of times `A..B` is the text of the records from the target of A up to but excluding the target of B.
    """

    def find(self, name: str) -> Node | None:
        self.partition.refresh()
        timestamp = parse_time(name.removesuffix(JSON))
        if timestamp is not None:
            return self._link(name, timestamp)
        first, dots, last = name.removesuffix(JSONL).partition("..")
        if not dots or not (first or last):
            return None
        start = parse_time(first) if first else 0
        end = parse_time(last) if last else -1
        if start is None or end is None:
            return None
        return self._range(name, start, end)

    def is_current(self, node: Node) -> bool:
        # Appends and deletions of records may change the target of a time, and the begin and end of a range.
        return False

    def names(self) -> Iterator[str]:
        records = map(self.partition.record, first_offsets(self.partition))
        times = [record.timestamp for record in records if record is not None]
        # Several segments may begin with the same timestamp: yield it once.
        yield from dict.fromkeys(str(time) for time in times if time is not None and time >= 0)

    def _link(self, name: str, timestamp: int) -> Node | None:
        found = self.partition.offset_for_time(timestamp, shown=True)
        if found is None:
            return None
        return TimeLink(self.context, name, self, found)

    def _range(self, name: str, start: int, end: int) -> Node:
        partition: Reader = self.partition
        first = partition.offset_for_time(start, shown=True)
        last = partition.offset_for_time(end, shown=True) if end >= 0 else None
        begin = partition.log_end_offset if first is None else first.offset
        stop = None if last is None else max(last.offset, begin)
        return TextFile(self.context, name, self, partition, self.modes, self.name, begin, stop)


class TimeLink(SymlinkNode):
    """A link to the first record at or after a time. The record is found when the link is looked up.

    Each lookup makes a new node, because the target can change.
    """

    is_evictable = True
    entry_timeout = 1.0
    attr_timeout = 1.0

    def __init__(
        self, context: Context, name: str, parent: TimeDirectory, found: OffsetAndTimestamp
    ) -> None:
        super().__init__(context, name, parent)
        self._modes = parent.modes
        self._found = found

    def access(self) -> Access:
        return self._modes.get("")

    def timestamp(self) -> int:
        return self._found.timestamp

    def target(self) -> str:
        suffix = JSON if self.name.endswith(JSON) else ""
        return f"../offsets/{self._found.offset}{suffix}"
