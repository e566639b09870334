"""The keys and values of control records, Kafka's own marks in a log (kafka-storage 2.5)."""

from __future__ import annotations

import enum
import struct
from typing import TYPE_CHECKING, NamedTuple

from logfs.errors import Corrupt

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from logfs.format.batch import Batch

KEY = struct.Struct(">hh")
"""version, type"""

END_TRANSACTION = struct.Struct(">hi")
"""version, coordinator epoch"""

VERSION = 0


class ControlType(enum.IntEnum):
    """What a control record says; the number is that of its key."""

    UNKNOWN = -1
    ABORT = 0
    COMMIT = 1
    LEADER_CHANGE = 2
    SNAPSHOT_HEADER = 3
    SNAPSHOT_FOOTER = 4
    KRAFT_VERSION = 5
    KRAFT_VOTERS = 6

    @classmethod
    def _missing_(cls, value: object) -> ControlType:
        # Later releases add types: a reader has to step over those that it does not know.
        return cls.UNKNOWN


class EndTransactionMarker(NamedTuple):
    """A control record that ends a producer's transaction: `control_type` is ABORT or COMMIT."""

    control_type: ControlType
    coordinator_epoch: int

    @classmethod
    def parse(cls, key: Buffer, value: Buffer) -> EndTransactionMarker:
        """Read a marker's key and value. Raises `Corrupt`, also for a key of another type."""
        control_type = parse_control_key(key)
        if control_type not in (ControlType.ABORT, ControlType.COMMIT):
            raise Corrupt(f"control record: {control_type.name} does not end a transaction")
        _, coordinator_epoch = _unpack(END_TRANSACTION, value, "end transaction marker")
        return cls(control_type, coordinator_epoch)

    def key(self) -> bytes:
        """The marker's record key, 4 bytes."""
        return KEY.pack(VERSION, self.control_type)

    def value(self) -> bytes:
        """The marker's record value, 6 bytes."""
        return END_TRANSACTION.pack(VERSION, self.coordinator_epoch)


def parse_control_key(key: Buffer) -> ControlType:
    """The type of a control record, `UNKNOWN` for one of a later release. Raises `Corrupt`."""
    _, number = _unpack(KEY, key, "control record key")
    return ControlType(number)


def end_of_transaction(batch: Batch) -> EndTransactionMarker | None:
    """The marker in a control batch; None if it is of another kind, or compaction has emptied it.

    Raises `Corrupt` for a record that is no control record.
    """
    for record in batch.records():
        key, value = record.key or b"", record.value or b""
        if parse_control_key(key) in (ControlType.ABORT, ControlType.COMMIT):
            return EndTransactionMarker.parse(key, value)
    return None


def _unpack(layout: struct.Struct, data: Buffer, what: str) -> tuple[int, int]:
    """Two fields, the first a version. A later version only adds fields, so it is read as ours."""
    view = memoryview(data).cast("B")
    if len(view) < layout.size:
        raise Corrupt(f"{what}: {len(view)} bytes, of at least {layout.size}")
    version, field = layout.unpack_from(view)
    if version < 0:
        raise Corrupt(f"{what}: version {version}")
    return version, field
