"""The keys and values of control records, which Kafka itself writes into a log (kafka-storage 2.5)."""

from __future__ import annotations

import enum
import struct
from typing import TYPE_CHECKING, NamedTuple

from logfs.errors import Corrupt
from logfs.format.messages.message import Field, MessageSchema

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from logfs.format.batches.batch import Batch

KEY = struct.Struct(">hh")
"""version, type"""

END_TRANSACTION = struct.Struct(">hi")
"""version, coordinator epoch"""

VERSION = 0


class ControlType(enum.IntEnum):
    """The type of a control record, by the number in the record's key. UNKNOWN stands for all other numbers."""

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
        # Later releases of Kafka may add types. A reader must skip the types that it does not know.
        return cls.UNKNOWN


_VOTER = (Field("voterId", "int32"), Field("voterDirectoryId", "uuid", first=1))
_ENDPOINT = (Field("name", "string"), Field("host", "string"), Field("port", "uint16"))
_FEATURE = (Field("minSupportedVersion", "int16"), Field("maxSupportedVersion", "int16"))
_VOTER_OF_RECORD = (
    Field("voterId", "int32"),
    Field("voterDirectoryId", "uuid"),
    Field("endpoints", "[]struct", fields=_ENDPOINT),
    Field("kRaftVersionFeature", "struct", fields=_FEATURE),
)


def _new(what: str, *fields: Field, newest: int = 0) -> MessageSchema:
    return MessageSchema(what, fields, newest, flexible=0)


# The schemas of the values of KRaft's control records, which are in Kafka's metadata log. The names are those that
# kafka-dump-log prints.
MESSAGES = {
    ControlType.LEADER_CHANGE: _new(
        "LeaderChange",
        Field("leaderId", "int32"),
        Field("voters", "[]struct", fields=_VOTER),
        Field("grantingVoters", "[]struct", fields=_VOTER),
        newest=1,
    ),
    ControlType.SNAPSHOT_HEADER: _new(
        "SnapshotHeader", Field("lastContainedLogTimestamp", "int64")
    ),
    ControlType.SNAPSHOT_FOOTER: _new("SnapshotFooter"),
    ControlType.KRAFT_VERSION: _new("KRaftVersion", Field("kRaftVersion", "int16")),
    ControlType.KRAFT_VOTERS: _new(
        "KRaftVoters", Field("voters", "[]struct", fields=_VOTER_OF_RECORD)
    ),
}


class EndTransactionMarker(NamedTuple):
    """A control record that ends a producer's transaction: `control_type` is ABORT or COMMIT."""

    control_type: ControlType
    coordinator_epoch: int

    @classmethod
    def parse(cls, key: Buffer, value: Buffer) -> EndTransactionMarker:
        """Return the marker of a control record with this key and value.

        Raises `Corrupt` if the key or the value is malformed, or if the key's type is neither ABORT nor COMMIT.
        """
        control_type = parse_control_key(key)
        if control_type not in (ControlType.ABORT, ControlType.COMMIT):
            raise Corrupt(f"control record: type {control_type.name} does not end a transaction")
        _, coordinator_epoch = _unpack(END_TRANSACTION, value, "end transaction marker")
        return cls(control_type, coordinator_epoch)

    def key(self) -> bytes:
        """Return the key of the marker's record, 4 bytes."""
        return KEY.pack(VERSION, self.control_type)

    def value(self) -> bytes:
        """Return the value of the marker's record, 6 bytes."""
        return END_TRANSACTION.pack(VERSION, self.coordinator_epoch)


def parse_control_key(key: Buffer) -> ControlType:
    """Return the type in a control record's key; `UNKNOWN` for a type that this release does not know.

    Raises `Corrupt` if the key is malformed.
    """
    _, number = _unpack(KEY, key, "control record key")
    return ControlType(number)


def end_of_transaction(batch: Batch) -> EndTransactionMarker | None:
    """Return the commit or abort marker in a control batch; None if the batch has none, as after compaction.

    Raises `Corrupt` if a record, its key or a marker's value is malformed.
    """
    for record in batch.records():
        key, value = record.key or b"", record.value or b""
        if parse_control_key(key) in (ControlType.ABORT, ControlType.COMMIT):
            return EndTransactionMarker.parse(key, value)
    return None


def _unpack(layout: struct.Struct, data: Buffer, what: str) -> tuple[int, int]:
    """Return the first two fields of `data`: the version, and the field after it.

    Version 0 has only these fields, and later versions only add fields at the end. Raises `Corrupt` if `data` is too
    short or the version is negative; `what` names the data in the error.
    """
    view = memoryview(data).cast("B")
    if len(view) < layout.size:
        raise Corrupt(f"{what}: {len(view)} bytes, but at least {layout.size} are needed")
    version, field = layout.unpack_from(view)
    if version < 0:
        raise Corrupt(f"{what}: invalid version {version}")
    return version, field
