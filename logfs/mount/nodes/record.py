"""One record as a file, which contains the record's value or its JSON envelope."""

from __future__ import annotations

import errno
import stat
from typing import TYPE_CHECKING

from logfs.format.text import envelope
from logfs.mount.nodes.base import (
    READ_BITS,
    Caller,
    Context,
    DirectoryNode,
    FileNode,
    Handle,
    PartitionAccess,
    Stat,
)

if TYPE_CHECKING:
    from logfs.format.batches.record import Record
    from logfs.log.read.reader import Reader
    from logfs.store.directory.permissions import PermissionTable

JSON = ".json"


class RecordFile(PartitionAccess, FileNode):
    """The file `offsets/N` with the value of a record, or `offsets/N.json` with the record's JSON envelope.

    The mtime is the record's timestamp, if it has one. The lookup of the name reads the record, and the node keeps
    the record until the file is opened. The node does not keep the record for longer, because the kernel may keep
    very many nodes in memory.
    """

    allowed_bits = READ_BITS
    attr_timeout = 3600.0
    is_evictable = True
    entry_timeout = 1.0
    # Whether an earlier open has put the content into the kernel's page cache.
    is_handed_over = False

    def __init__(
        self,
        context: Context,
        name: str,
        parent: DirectoryNode,
        partition: Reader,
        modes: PermissionTable,
        record: Record,
    ) -> None:
        super().__init__(context, name, parent)
        self.partition = partition
        self.modes = modes
        self.mode_name = parent.name
        # The generation of the log at the time when the record was read.
        self.generation = partition.generation
        self._record: Record | None = record
        self._offset = record.offset
        self._size = len(self.content(record))
        self._timestamp = -1 if record.timestamp is None else record.timestamp

    def content(self, record: Record) -> bytes:
        """Return the bytes of the file: the record's value, or its JSON envelope if the name ends in `.json`."""
        if self.name.endswith(JSON):
            return envelope.encode(record, envelope.prefix(self.partition.name))
        return record.value or b""

    @property
    def record(self) -> Record:
        """The record, read again if the node does not keep it. Raises ENOENT if the record has left the log."""
        record = self._record or self.partition.record(self._offset)
        if record is None:
            raise OSError(errno.ENOENT, f"{self.path}: the record is not in the log any more")
        return record

    def forget_record(self) -> None:
        """Release the record; the next use reads it again."""
        self._record = None

    def stat(self) -> Stat:
        access = self.access()
        timestamp = self._timestamp if self._timestamp >= 0 else self.partition.active.mtime_ms()
        mode = stat.S_IFREG | access.mode
        return Stat(mode, access.uid, access.gid, self._size, timestamp * 1_000_000)

    def open(self, flags: int, caller: Caller) -> Handle:
        self.refuse_writing(flags)
        return RecordHandle(self)

    def xattrs(self, caller: Caller) -> dict[str, bytes]:
        record = self.record
        headers = b",".join(
            b"[%s,%s]"
            % (envelope.text(name.encode("utf-8", "surrogateescape")), envelope.text(value))
            for name, value in record.headers
        )
        found = {
            "offset": b"%d" % record.offset,
            "timestamp": b"%d" % (-1 if record.timestamp is None else record.timestamp),
            "timestamp_type": record.timestamp_type.label.encode(),
            "headers": b"[%s]" % headers,
            "null": b"1" if record.value is None else b"0",
        }
        if record.key is not None:
            found["key"] = record.key
        return {f"user.logfs.{name}": value for name, value in found.items()}


class RecordHandle(Handle):
    """An open record file. Its content never changes."""

    keep_cache = True

    def __init__(self, node: RecordFile) -> None:
        super().__init__(node)
        self.file = node
        self.content = node.content(node.record)
        node.partition.traffic.bytes_out += len(self.content)
        node.forget_record()

    def read(self, position: int, size: int) -> bytes:
        return self.content[position : position + size]
