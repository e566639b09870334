"""Keys and values of the records in `__consumer_offsets` (kafka-storage 12).

A key is a type (int16) and the fields of this type. The type also decides which fields the value has; a null value is
a tombstone. logfs reads all types, whose fields are in `group_schema`, and writes only offset commits, with keys of
type 1. `key_view` and `value_view` return what kafka-dump-log prints of a key and of a value.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from logfs.errors import Corrupt
from logfs.format.messages import group_schema
from logfs.format.messages.group_schema import LEGACY_OFFSET_COMMIT, OFFSET_COMMIT
from logfs.format.messages.message import parse_version, plain

if TYPE_CHECKING:
    from logfs.format.messages.message import Message

NO_EXPIRY = -1
# The versions of an offset commit that logfs writes, without and with an expiry time. logfs does not write version 4,
# as newer brokers do, because older brokers cannot read it.
_WRITTEN_VERSION = 3
_EXPIRING_VERSION = 1

_COMMIT = group_schema.VALUES[OFFSET_COMMIT]
_CONSUMER = "consumer"


class OffsetKey(NamedTuple):
    """The key of an offset commit: a group, and a partition of a topic."""

    group: str
    topic: str
    partition: int

    def encode(self) -> bytes:
        """Return the key of an offset commit as bytes. The first two bytes are the key's type, 1.

        Raises `struct.error` if the name of the group or of the topic has more than 32767 bytes.
        """
        return group_schema.KEYS[OFFSET_COMMIT].encode(OFFSET_COMMIT, self._asdict())


class OffsetCommit(NamedTuple):
    """The value of an offset commit: an offset that a group committed. Times are in ms since the epoch.

    `offset` is the next offset to read. `leader_epoch` is -1 if it is unknown, and `expire_timestamp` is -1 if the
    commit does not expire.
    """

    offset: int
    metadata: str
    commit_timestamp: int
    leader_epoch: int = -1
    expire_timestamp: int = NO_EXPIRY

    @classmethod
    def of(cls, message: Message) -> OffsetCommit:
        """Return the commit in a parsed value; fields that the value's version lacks have their defaults."""
        fields = {**_COMMIT.defaults(), **message.fields}
        return cls(
            fields["offset"],
            fields["metadata"],
            fields["commitTimestamp"],
            fields["leaderEpoch"],
            fields["expireTimestamp"],
        )

    def encode(self, version: int | None = None) -> bytes:
        """Return the value's bytes, by default in the version that every broker reads: 3, or 1 if the commit expires.

        Fields that the version lacks are dropped. Raises `struct.error` for metadata of more than 32767 bytes.
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


def lag_of(offset: int, log_end_offset: int) -> int:
    """Return how many offsets lie between a committed offset and the end of the log.

    Not every offset has a record, so fewer records may be left to read. The result is 0 if the log ends before the
    committed offset, for example after a truncation.
    """
    return max(log_end_offset - offset, 0)


def parse_key(data: bytes) -> Message | None:
    """Return the parsed key of a record, with the key's type as its `version`; None for an unknown type.

    A later release may add types; records with an unknown type must be skipped. Raises `Corrupt` for bytes that are
    not a key.
    """
    schema = group_schema.KEYS.get(parse_version(data, group_schema.KEY))
    return None if schema is None else schema.parse(data)


def parse_value(kind: int, data: bytes) -> Message | None:
    """Return the parsed value of a record whose key has the type `kind`; None for an unknown type.

    Raises `Corrupt` for bytes that are not such a value, and `Unsupported` for a version of a later release.
    """
    # With a key of type 0, accept every version of the value: newer tools expect version 0, but older brokers wrote
    # other versions, too.
    schema = group_schema.VALUES.get(OFFSET_COMMIT if kind == LEGACY_OFFSET_COMMIT else kind)
    return None if schema is None else schema.parse(data)


def offset_key(key: Message) -> OffsetKey | None:
    """Return the group and partition in the key of an offset commit (type 0 or 1); None for a key of another type."""
    if key.version > OFFSET_COMMIT:
        return None
    return OffsetKey(key.fields["group"], key.fields["topic"], key.fields["partition"])


# The functions that return keys and values as kafka-dump-log --offsets-decoder prints them.


def key_view(key: Message) -> dict[str, Any]:
    """Return a parsed key as data for JSON.

    For example: `{"type": "1", "data": {"group": "g1", "topic": "t", "partition": 3}}`.
    """
    return {"type": str(key.version), "data": plain(key.fields)}


def value_view(value: Message) -> dict[str, Any]:
    """Return a parsed value as data for JSON: `{"version": "3", "data": {…}}`.

    Bytes become base64, except the subscriptions and assignments of a classic consumer group, which are decoded.
    """
    fields = dict(value.fields)
    if fields.get("protocolType") == _CONSUMER:
        fields["members"] = [
            {name: _client_view(name, field) for name, field in member.items()}
            for member in fields["members"]
        ]
    return {"version": str(value.version), "data": plain(fields)}


def _client_view(name: str, field: Any) -> Any:
    """Return a field of a group member, decoded if its name is `subscription` or `assignment`.

    The bytes of these two are in Kafka's consumer protocol. They are returned unchanged if they are empty, malformed
    or of a later version. Any other field is returned unchanged.
    """
    schema = group_schema.CONSUMER_PROTOCOL.get(name)
    if schema is None:
        return field
    try:
        message = schema.parse_leniently(field)
    except Corrupt:
        return field
    return field if message.version > schema.newest else message.fields


# The functions that find the partition which stores a group's records.


def java_string_hash(text: str) -> int:
    """Return Java's `String.hashCode`: a signed 32-bit number over the UTF-16 code units."""
    data = text.encode("utf-16-be", "surrogatepass")
    found = 0
    for at in range(0, len(data), 2):
        found = (31 * found + int.from_bytes(data[at : at + 2])) & 0xFFFF_FFFF
    return found - (1 << 32) if found >> 31 else found


def coordinator_partition(group: str, partitions: int) -> int:
    """Return the number of the partition of `__consumer_offsets` that has a group's records.

    `partitions` is the number of partitions of that topic.
    """
    found = java_string_hash(group)
    # In Java the absolute value of the lowest int does not fit an int, so Kafka uses 0.
    return 0 if found == -(1 << 31) else abs(found) % partitions
