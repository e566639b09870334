"""`offsets/`: records and ranges by offset; `ls` shows only `earliest`, `latest` and each segment's first offset."""

from __future__ import annotations

import errno
import re
from typing import TYPE_CHECKING

from logfs.mount.nodes.base import Context, DirectoryNode, Node, SymlinkNode
from logfs.mount.nodes.folder import PartitionFolder
from logfs.mount.nodes.record import JSON, RecordFile
from logfs.mount.nodes.text_file import JSONL, TextFile

if TYPE_CHECKING:
    from collections.abc import Iterator

    from logfs.log.read.reader import Reader
    from logfs.store.directory.permissions import Access, PermissionTable

# Each offset has exactly one name: the digits without leading zeros.
_OFFSET = re.compile(r"(0|[1-9][0-9]{0,18})")
_RANGE = re.compile(r"(-?(?:0|[1-9][0-9]{0,18}))?\.\.(0|[1-9][0-9]{0,18})?")

EARLIEST = "earliest"
LATEST = "latest"


class OffsetsDirectory(PartitionFolder):
    """A directory in which `N` is the record at offset N, and `A..B` the text of the records [A, B).

    `A..` has no upper bound, `..B` has no lower bound, and `-N..` has the last N records. `N.json` and `A..B.jsonl`
    have the records as JSON envelopes. `earliest` and `latest` are links to the first and the last readable record.
    """

    def find(self, name: str) -> Node | None:
        self.partition.refresh()
        if name in (EARLIEST, LATEST):
            return EndLink(self.context, name, self, self.partition, self.modes)
        match = _OFFSET.fullmatch(name.removesuffix(JSON))
        if match:
            return self._record(name, int(match[1]))
        match = _RANGE.fullmatch(name.removesuffix(JSONL))
        if match and name.strip(".") and (match[1] or match[2]):
            return self._range(name, match[1], match[2])
        return None

    def is_current(self, node: Node) -> bool:
        if isinstance(node, TextFile):
            # The range `-N..` has the last N records, so its start changes with every append.
            return node.is_current and not node.name.startswith("-")
        if isinstance(node, RecordFile):
            # Another process may have truncated the log, and may have written another record at this offset.
            self.partition.refresh()
            return (
                node.generation == self.partition.generation
                and int(node.name.removesuffix(JSON)) >= self.partition.log_start_offset
            )
        return True

    def names(self) -> Iterator[str]:
        first = self.partition.first_offset_from(self.partition.log_start_offset)
        if first is None:
            return
        yield EARLIEST
        yield LATEST
        for offset in first_offsets(self.partition):
            yield str(offset)

    def _record(self, name: str, offset: int) -> Node | None:
        partition = self.partition
        if not partition.log_start_offset <= offset < partition.log_end_offset:
            return None
        record = partition.record(offset)
        if record is None:
            return None
        return RecordFile(self.context, name, self, partition, self.modes, record)

    def _range(self, name: str, first: str | None, last: str | None) -> Node | None:
        partition = self.partition
        end = None if last is None else int(last)
        if first is None:
            start = partition.log_start_offset
        elif first.startswith("-"):
            if end is not None:
                return None
            start = partition.offset_of_last(-int(first))
        else:
            start = int(first)
        if end is not None and end < start and first is not None:
            return None
        return TextFile(self.context, name, self, partition, self.modes, self.name, start, end)


class EndLink(SymlinkNode):
    """`earliest` or `latest`: a link to the first or the last readable record."""

    def __init__(
        self,
        context: Context,
        name: str,
        parent: DirectoryNode,
        partition: Reader,
        modes: PermissionTable,
    ) -> None:
        super().__init__(context, name, parent)
        self._partition = partition
        self._modes = modes

    def access(self) -> Access:
        return self._modes.get("")

    def timestamp(self) -> int:
        record = self._partition.record(int(self.target()))
        return -1 if record is None or record.timestamp is None else record.timestamp

    def target(self) -> str:
        partition = self._partition
        partition.refresh()
        if self.name == EARLIEST:
            offset = partition.first_offset_from(partition.log_start_offset)
        else:
            offset = partition.last_offset()
        if offset is None:
            raise OSError(errno.ENOENT, f"{self.path}: the partition is empty")
        return str(offset)


def first_offsets(partition: Reader) -> Iterator[int]:
    """Yield the offset of the first readable record of each segment that has one."""
    last = -1
    for segment in partition.segments:
        start = max(segment.base_offset, partition.log_start_offset)
        if start >= segment.next_offset:
            continue
        offset = segment.first_record_offset if start == segment.base_offset else None
        if offset is None:
            offset = partition.first_offset_from(start)
        if offset is not None and last < offset < segment.next_offset:
            last = offset
            yield offset
