"""Keys and values of the records in `__consumer_offsets` (kafka-storage 12).

A key is an int16 type and its fields; what its value holds goes by that type, and a null value is a tombstone.
Offset commits (key types 0 and 1) and the metadata of classic groups (2) are read and written, all others are read;
`group_schema` has their fields. `key_view` and `value_view` are what kafka-dump-log prints of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from logfs.errors import Corrupt
from logfs.format import group_schema
from logfs.format.group_schema import GROUP_METADATA, LEGACY_OFFSET_COMMIT, OFFSET_COMMIT
from logfs.format.message import parse_version, plain

if TYPE_CHECKING:
    from collections.abc import Mapping

    from logfs.format.message import Message

NO_EXPIRY = -1
# Newer brokers write version 4, which older ones cannot read.
_WRITTEN_VERSION = 3
_EXPIRING_VERSION = 1

_COMMIT = group_schema.VALUES[OFFSET_COMMIT]
_CONSUMER = "consumer"


class OffsetKey(NamedTuple):
    """Whose offset it is: the key of an offset commit."""

    group: str
    topic: str
    partition: int

    def encode(self) -> bytes:
        """The key's bytes, of type 1. Raises `struct.error` for a name of more than 32767 bytes."""
        return group_schema.KEYS[OFFSET_COMMIT].encode(OFFSET_COMMIT, self._asdict())


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
        fields = {**_COMMIT.defaults(), **message.fields}
        return cls(
            fields["offset"],
            fields["metadata"],
            fields["commitTimestamp"],
            fields["leaderEpoch"],
            fields["expireTimestamp"],
        )

    def encode(self, version: int | None = None) -> bytes:
        """The value's bytes, by default in the version that every broker reads: 3, or 1 if it expires.

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
        return _COMMIT.encode(version, fields)


def parse_key(data: bytes) -> Message | None:
    """A key: its type, as the version, and its fields; None for a type of a later release, which is to be skipped.

    Raises `Corrupt` for bytes that are no key.
    """
    schema = group_schema.KEYS.get(parse_version(data, group_schema.KEY))
    return None if schema is None else schema.parse(data)


def parse_value(kind: int, data: bytes) -> Message | None:
    """The value of a record whose key has that type; None for a type of a later release.

    Raises `Corrupt` for bytes that are no such value, and `Unsupported` for a version of a later release.
    """
    # Older brokers did not tie a value's version to the type of its key; the tools of newer ones do.
    schema = group_schema.VALUES.get(OFFSET_COMMIT if kind == LEGACY_OFFSET_COMMIT else kind)
    return None if schema is None else schema.parse(data)


def offset_key(key: Message) -> OffsetKey | None:
    """Whose offset a record tells of; None if it is not an offset commit."""
    if key.version > OFFSET_COMMIT:
        return None
    return OffsetKey(key.fields["group"], key.fields["topic"], key.fields["partition"])


def encode_group_metadata(fields: Mapping[str, Any], version: int = _WRITTEN_VERSION) -> bytes:
    """The value of a classic group's metadata; fields that the version lacks are dropped."""
    return group_schema.VALUES[GROUP_METADATA].encode(version, fields)


# As kafka-dump-log --offsets-decoder prints them (kafka-storage 13.1).


def key_view(key: Message) -> dict[str, Any]:
    """A key as data for JSON: `{"type": "1", "data": {"group": "g1", "topic": "t", "partition": 3}}`."""
    return {"type": str(key.version), "data": plain(key.fields)}


def value_view(value: Message) -> dict[str, Any]:
    """A value as data for JSON: `{"version": "3", "data": {…}}`.

    Bytes are base64, but for what a classic group's consumers told each other, which is read.
    """
    fields = dict(value.fields)
    if fields.get("protocolType") == _CONSUMER:
        fields["members"] = [
            {name: _client_view(name, field) for name, field in member.items()}
            for member in fields["members"]
        ]
    return {"version": str(value.version), "data": plain(fields)}


def _client_view(name: str, field: Any) -> Any:
    """A member's field, read if a client wrote it; as it is where there is nothing in it, or another format."""
    schema = group_schema.CONSUMER_PROTOCOL.get(name)
    if schema is None:
        return field
    try:
        message = schema.parse_leniently(field)
    except Corrupt:
        return field
    return field if message.version > schema.newest else message.fields


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
