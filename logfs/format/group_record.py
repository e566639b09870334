"""Keys and values of the records in `__consumer_offsets` (kafka-storage 12).

A key is an int16 type and its fields, a value an int16 version and its fields; a null value is a tombstone. The
tables below name the fields in Kafka's order and by Kafka's names, so what `parse_key` and `parse_value` return is
also what kafka-dump-log prints as JSON (`key_view`, `value_view`).

Offset commits (key types 0 and 1) and the metadata of classic groups (2) are read and written. The keys of the newer
protocol's records and of share groups (3 to 15) are recognised, and their values left alone.
"""

from __future__ import annotations

import base64
import struct
from typing import TYPE_CHECKING, Any, NamedTuple

from logfs.errors import Corrupt, Unsupported

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

OFFSET_COMMIT = 1
"""The key type of offset commits as they are written; type 0 is the same, and older."""
GROUP_METADATA = 2

NEWEST_VERSION = 4
# From this version on: lengths are unsigned varints, and tagged fields follow each struct.
_FLEXIBLE = 4
_WRITTEN_VERSION = 3
_EXPIRING_VERSION = 1
NO_EXPIRY = -1

_INTEGERS = {
    "int16": struct.Struct(">h"),
    "int32": struct.Struct(">i"),
    "int64": struct.Struct(">q"),
}
_INT16, _INT32 = _INTEGERS["int16"], _INTEGERS["int32"]


class _Field(NamedTuple):
    """One field: its type (integer, string, bytes, or array of structs) and the versions that have it."""

    name: str
    type: str
    first: int = 0
    last: int = NEWEST_VERSION
    default: Any = None
    nullable: bool = False
    items: Sequence[_Field] = ()


_GROUP_ID = _Field("groupId", "string")
_MEMBER_ID = _Field("memberId", "string")
_OFFSET_KEY = (_Field("group", "string"), _Field("topic", "string"), _Field("partition", "int32"))
_GROUP_KEY = (_GROUP_ID,)
_MEMBER_KEY = (_GROUP_ID, _MEMBER_ID)

_KEYS: Mapping[int, Sequence[_Field]] = {
    0: _OFFSET_KEY,
    OFFSET_COMMIT: _OFFSET_KEY,
    GROUP_METADATA: (_Field("group", "string"),),
    3: _GROUP_KEY,  # consumer group metadata
    4: _GROUP_KEY,  # consumer group partition metadata
    5: _MEMBER_KEY,  # consumer group member metadata
    6: _GROUP_KEY,  # target assignment metadata
    7: _MEMBER_KEY,  # target assignment of a member
    8: _MEMBER_KEY,  # current assignment of a member
    9: _GROUP_KEY,  # share groups, from here on: partition metadata
    10: _MEMBER_KEY,
    11: _GROUP_KEY,
    12: _GROUP_KEY,
    13: _MEMBER_KEY,
    14: _MEMBER_KEY,
    15: _GROUP_KEY,
}

_COMMIT_VALUE = (
    _Field("offset", "int64"),
    _Field("leaderEpoch", "int32", first=3, default=-1),
    _Field("metadata", "string"),
    _Field("commitTimestamp", "int64"),
    _Field("expireTimestamp", "int64", 1, 1, default=NO_EXPIRY),
)
_MEMBER = (
    _MEMBER_ID,
    _Field("groupInstanceId", "string", first=3, nullable=True),
    _Field("clientId", "string"),
    _Field("clientHost", "string"),
    _Field("rebalanceTimeout", "int32", first=1, default=-1),
    _Field("sessionTimeout", "int32"),
    _Field("subscription", "bytes"),
    _Field("assignment", "bytes"),
)
_GROUP_VALUE = (
    _Field("protocolType", "string"),
    _Field("generation", "int32"),
    _Field("protocol", "string", nullable=True),
    _Field("leader", "string", nullable=True),
    _Field("currentStateTimestamp", "int64", first=2, default=-1),
    _Field("members", "array", items=_MEMBER),
)
_VALUES = {0: _COMMIT_VALUE, OFFSET_COMMIT: _COMMIT_VALUE, GROUP_METADATA: _GROUP_VALUE}


class Message(NamedTuple):
    """A parsed key or value: its type or version, and its fields by Kafka's names.

    Values are int, str, bytes, None, and for `members` a list of such mappings.
    """

    version: int
    fields: Mapping[str, Any]


class OffsetKey(NamedTuple):
    """Whose offset it is: the key of an offset commit."""

    group: str
    topic: str
    partition: int

    def encode(self) -> bytes:
        """The key's bytes, of type 1. Raises `struct.error` for a name of more than 32767 bytes."""
        return _encode(_OFFSET_KEY, OFFSET_COMMIT, self._asdict(), flexible=False)


class OffsetCommit(NamedTuple):
    """What a group committed for a partition: its value; times in ms since the epoch.

    `offset` is the next one to read. `leader_epoch` is -1 where unknown, `expire_timestamp` -1 for none.
    """

    offset: int
    metadata: str
    commit_timestamp: int
    leader_epoch: int = -1
    expire_timestamp: int = NO_EXPIRY

    @classmethod
    def of(cls, message: Message) -> OffsetCommit:
        """The value of an offset commit's record."""
        fields = {field.name: field.default for field in _COMMIT_VALUE} | dict(message.fields)
        return cls(
            fields["offset"],
            fields["metadata"],
            fields["commitTimestamp"],
            fields["leaderEpoch"],
            fields["expireTimestamp"],
        )

    def encode(self, version: int | None = None) -> bytes:
        """The value's bytes, by default in the version that Kafka writes: 3, or 1 if it expires.

        A version that lacks a field drops it. Raises `struct.error` for metadata of more than 32767 bytes.
        """
        if version is None:
            expires = self.expire_timestamp != NO_EXPIRY
            version = _EXPIRING_VERSION if expires else _WRITTEN_VERSION
        fields = {
            "offset": self.offset,
            "leaderEpoch": self.leader_epoch,
            "metadata": self.metadata,
            "commitTimestamp": self.commit_timestamp,
            "expireTimestamp": self.expire_timestamp,
        }
        return _encode(_COMMIT_VALUE, version, fields, flexible=version >= _FLEXIBLE)


def parse_key(data: bytes) -> Message | None:
    """A key: its type and fields; None for a type of a later release, whose record is to be skipped.

    Raises `Corrupt` for bytes that are no key.
    """
    reader = _Reader(data, "key", flexible=False)
    kind = reader.integer(_INT16)
    if kind not in _KEYS:
        return None
    return Message(kind, reader.message(_KEYS[kind], 0))


def parse_value(kind: int, data: bytes) -> Message | None:
    """The value of a record whose key has that type: its version and fields; None for types that are left alone.

    Raises `Corrupt` for bytes that are no such value, and `Unsupported` for a version of a later release.
    """
    if kind not in _VALUES:
        return None
    version = _Reader(data, "value", flexible=False).integer(_INT16)
    if version < 0:
        raise Corrupt(f"group record: the value has version {version}")
    if version > NEWEST_VERSION:
        raise Unsupported(
            f"group record: version {version} of key type {kind} is newer than {NEWEST_VERSION}"
        )
    reader = _Reader(data, "value", flexible=version >= _FLEXIBLE, position=_INT16.size)
    return Message(version, reader.message(_VALUES[kind], version))


def offset_key(key: Message) -> OffsetKey | None:
    """Whose offset a record tells of; None if it is not an offset commit."""
    if key.version > OFFSET_COMMIT:
        return None
    return OffsetKey(key.fields["group"], key.fields["topic"], key.fields["partition"])


def encode_group_metadata(fields: Mapping[str, Any], version: int = _WRITTEN_VERSION) -> bytes:
    """The value of a classic group's metadata; fields that the version lacks are dropped."""
    return _encode(_GROUP_VALUE, version, fields, flexible=version >= _FLEXIBLE)


# As kafka-dump-log --offsets-decoder prints them (kafka-storage 13.1).


def key_view(key: Message) -> dict[str, Any]:
    """A key as data for JSON: `{"type": "1", "data": {"group": "g1", "topic": "t", "partition": 3}}`."""
    return {"type": str(key.version), "data": dict(key.fields)}


def value_view(value: Message) -> dict[str, Any]:
    """A value as data for JSON: `{"version": "3", "data": {…}}`, bytes as base64."""
    return {"version": str(value.version), "data": _plain(value.fields)}


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, dict):
        return {name: _plain(field) for name, field in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list) else value


# Which partition a group's records are in.


def java_string_hash(text: str) -> int:
    """`String.hashCode` of Java: over UTF-16 code units, a signed 32-bit number."""
    data = text.encode("utf-16-be", "surrogatepass")
    found = 0
    for at in range(0, len(data), 2):
        found = (31 * found + int.from_bytes(data[at : at + 2])) & 0xFFFF_FFFF
    return found - (1 << 32) if found >> 31 else found


def coordinator_partition(group: str, partitions: int) -> int:
    """The partition of `__consumer_offsets`, of so many, that a group's records belong in."""
    found = java_string_hash(group)
    # Java has no abs of its least number, so Kafka takes 0 for it.
    return 0 if found == -(1 << 31) else abs(found) % partitions


# Bytes.


class _Reader:
    """Reads fields one after the other; `Corrupt` where they do not fit the bytes."""

    def __init__(self, data: bytes, what: str, *, flexible: bool, position: int = 0) -> None:
        self._data = data
        self._what = what
        self._flexible = flexible
        self._position = position

    def message(self, fields: Sequence[_Field], version: int) -> dict[str, Any]:
        """All fields, and nothing behind them."""
        found = self._struct(fields, version)
        left = len(self._data) - self._position
        if left:
            raise Corrupt(f"group record: {left} bytes follow the fields of the {self._what}")
        return found

    def integer(self, layout: struct.Struct) -> int:
        """A big-endian integer."""
        (number,) = layout.unpack(self._take(layout.size))
        return int(number)

    def _struct(self, fields: Sequence[_Field], version: int) -> dict[str, Any]:
        found = {
            field.name: self._field(field, version)
            for field in fields
            if field.first <= version <= field.last
        }
        if self._flexible:
            for _ in range(self._varint()):
                self._varint()  # the tag
                self._take(self._varint())
        return found

    def _field(self, field: _Field, version: int) -> Any:
        if field.type in _INTEGERS:
            return self.integer(_INTEGERS[field.type])
        size = self._length(field)
        if size < 0:
            if size == -1 and field.nullable:
                return None
            raise self._nonsense(f"{field.name} has length {size}")
        if field.type == "array":
            if size > len(self._data) - self._position:
                raise self._nonsense(f"{size} {field.name} do not fit")
            return [self._struct(field.items, version) for _ in range(size)]
        data = self._take(size)
        if field.type == "bytes":
            return data
        try:
            return data.decode()
        except UnicodeDecodeError:
            raise self._nonsense(f"{field.name} is not UTF-8") from None

    def _length(self, field: _Field) -> int:
        if self._flexible:
            return self._varint() - 1
        return self.integer(_INT16 if field.type == "string" else _INT32)

    def _take(self, size: int) -> bytes:
        end = self._position + size
        if end > len(self._data):
            raise self._nonsense(f"{size} bytes at byte {self._position} do not fit")
        data = self._data[self._position : end]
        self._position = end
        return data

    def _varint(self) -> int:
        result = 0
        for shift in range(0, 35, 7):
            (byte,) = self._take(1)
            result |= (byte & 127) << shift
            if byte < 128:
                return result
        raise self._nonsense(f"no length ends before byte {self._position}")

    def _nonsense(self, what: str) -> Corrupt:
        return Corrupt(f"group record: {what} in a {self._what} of {len(self._data)} bytes")


def _encode(
    fields: Sequence[_Field], version: int, values: Mapping[str, Any], *, flexible: bool
) -> bytes:
    return _INT16.pack(version) + _encode_struct(fields, version, values, flexible)


def _encode_struct(
    fields: Sequence[_Field], version: int, values: Mapping[str, Any], flexible: bool
) -> bytes:
    out = bytearray()
    for field in fields:
        if field.first <= version <= field.last:
            out += _encode_field(field, version, values[field.name], flexible)
    return bytes(out) + (b"\0" if flexible else b"")


def _encode_field(field: _Field, version: int, value: Any, flexible: bool) -> bytes:
    if field.type in _INTEGERS:
        return _INTEGERS[field.type].pack(value)
    size, data = -1, b""
    if field.type == "array":
        size = len(value)
        data = b"".join(_encode_struct(field.items, version, item, flexible) for item in value)
    elif value is not None:
        data = value.encode() if isinstance(value, str) else value
        size = len(data)
    return _encode_length(field, size, flexible) + data


def _encode_length(field: _Field, size: int, flexible: bool) -> bytes:
    if flexible:
        return _encode_varint(size + 1)
    return (_INT16 if field.type == "string" else _INT32).pack(size)


def _encode_varint(value: int) -> bytes:
    out = bytearray()
    while value >= 128:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)
