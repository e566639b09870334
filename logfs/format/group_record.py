"""Keys and values of the records in `__consumer_offsets` (kafka-storage 12).

A key is an int16 type and its fields; what its value holds goes by that type, and a null value is a tombstone.
Offset commits (key types 0 and 1) and the metadata of classic groups (2) are read and written. The keys of the newer
protocol's groups and of share groups (3 to 15) are recognised, the values of 3 and 5 to 8 are read, and the others
left alone. `key_view` and `value_view` are what kafka-dump-log prints of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from logfs.errors import Corrupt, Unsupported
from logfs.format.message import Field, Message, Schema, parse_version, plain

if TYPE_CHECKING:
    from collections.abc import Mapping

OFFSET_COMMIT = 1
"""The key type of offset commits as they are written; type 0 is the same, and older."""
GROUP_METADATA = 2
NO_EXPIRY = -1
# Newer brokers write version 4, which older ones cannot read.
_WRITTEN_VERSION = 3
_EXPIRING_VERSION = 1

# The keys.

_WHAT = "group record's key"
_GROUP_ID = Field("groupId", "string")
_MEMBER_ID = Field("memberId", "string")
_OFFSET_KEY = Schema(
    _WHAT, (Field("group", "string"), Field("topic", "string"), Field("partition", "int32"))
)
_GROUP_KEY = Schema(_WHAT, (_GROUP_ID,))
_MEMBER_KEY = Schema(_WHAT, (_GROUP_ID, _MEMBER_ID))

_KEYS: Mapping[int, Schema] = {
    0: _OFFSET_KEY,
    OFFSET_COMMIT: _OFFSET_KEY,
    GROUP_METADATA: Schema(_WHAT, (Field("group", "string"),)),
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

# The values.

_COMMIT_VALUE = Schema(
    "offset commit",
    (
        Field("offset", "int64"),
        Field("leaderEpoch", "int32", first=3, default=-1),
        Field("metadata", "string"),
        Field("commitTimestamp", "int64"),
        Field("expireTimestamp", "int64", 1, 1, default=NO_EXPIRY),
        Field("topicId", "uuid", first=4, tag=0),
    ),
    newest=4,
    flexible=4,
)
_MEMBER = (
    _MEMBER_ID,
    Field("groupInstanceId", "string", first=3, nullable=True),
    Field("clientId", "string"),
    Field("clientHost", "string"),
    Field("rebalanceTimeout", "int32", first=1, default=-1),
    Field("sessionTimeout", "int32"),
    Field("subscription", "bytes"),
    Field("assignment", "bytes"),
)
_GROUP_VALUE = Schema(
    "group metadata",
    (
        Field("protocolType", "string"),
        Field("generation", "int32"),
        Field("protocol", "string", nullable=True),
        Field("leader", "string", nullable=True),
        Field("currentStateTimestamp", "int64", first=2, default=-1),
        Field("members", "[]struct", fields=_MEMBER),
    ),
    newest=4,
    flexible=4,
)
_CLASSIC_MEMBER = (
    Field("sessionTimeoutMs", "int32"),
    Field(
        "supportedProtocols",
        "[]struct",
        fields=(Field("name", "string"), Field("metadata", "bytes")),
    ),
)
_MEMBER_VALUE = (
    Field("instanceId", "string", nullable=True),
    Field("rackId", "string", nullable=True),
    Field("clientId", "string"),
    Field("clientHost", "string"),
    Field("subscribedTopicNames", "[]string"),
    Field("subscribedTopicRegex", "string", nullable=True),
    Field("rebalanceTimeoutMs", "int32"),
    Field("serverAssignor", "string", nullable=True),
    Field("classicMemberMetadata", "struct", nullable=True, tag=0, fields=_CLASSIC_MEMBER),
)
_TOPIC_PARTITIONS = (Field("topicId", "uuid"), Field("partitions", "[]int32"))
_ASSIGNED = (*_TOPIC_PARTITIONS, Field("assignmentEpochs", "[]int32", tag=0))
_CURRENT = (
    Field("memberEpoch", "int32"),
    Field("previousMemberEpoch", "int32"),
    Field("state", "int8"),
    Field("assignedPartitions", "[]struct", fields=_ASSIGNED),
    Field("partitionsPendingRevocation", "[]struct", fields=_ASSIGNED),
)


def _new(what: str, *fields: Field) -> Schema:
    """A value of the newer protocol: flexible from its only version on."""
    return Schema(what, fields, newest=0, flexible=0)


_VALUES: Mapping[int, Schema] = {
    0: _COMMIT_VALUE,
    OFFSET_COMMIT: _COMMIT_VALUE,
    GROUP_METADATA: _GROUP_VALUE,
    3: _new("group epoch", Field("epoch", "int32"), Field("metadataHash", "int64", tag=0)),
    5: _new("group member", *_MEMBER_VALUE),
    6: _new(
        "target assignment",
        Field("assignmentEpoch", "int32"),
        Field("assignmentTimestamp", "int64", tag=0),
    ),
    7: _new(
        "member's target assignment",
        Field("topicPartitions", "[]struct", fields=_TOPIC_PARTITIONS),
    ),
    8: _new("member's assignment", *_CURRENT),
}

# What clients keep in a classic group's `subscription` and `assignment`, where the protocol type is `consumer`.

_CONSUMER = "consumer"
_NAMED_PARTITIONS = (Field("topic", "string"), Field("partitions", "[]int32"))
_CLIENTS: Mapping[str, Schema] = {
    "subscription": Schema(
        "subscription",
        (
            Field("topics", "[]string"),
            Field("userData", "bytes", nullable=True),
            Field("ownedPartitions", "[]struct", first=1, fields=_NAMED_PARTITIONS),
            Field("generationId", "int32", first=2),
            Field("rackId", "string", first=3, nullable=True),
        ),
        newest=3,
    ),
    "assignment": Schema(
        "assignment",
        (
            Field("assignedPartitions", "[]struct", fields=_NAMED_PARTITIONS),
            Field("userData", "bytes", nullable=True),
        ),
        newest=3,
    ),
}


class OffsetKey(NamedTuple):
    """Whose offset it is: the key of an offset commit."""

    group: str
    topic: str
    partition: int

    def encode(self) -> bytes:
        """The key's bytes, of type 1. Raises `struct.error` for a name of more than 32767 bytes."""
        return _OFFSET_KEY.encode(OFFSET_COMMIT, self._asdict())


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
        fields = {**_COMMIT_VALUE.defaults(), **message.fields}
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
        return _COMMIT_VALUE.encode(version, fields)


def parse_key(data: bytes) -> Message | None:
    """A key: its type, as the version, and its fields; None for a type of a later release, which is to be skipped.

    Raises `Corrupt` for bytes that are no key.
    """
    schema = _KEYS.get(parse_version(data, _WHAT))
    return None if schema is None else schema.parse(data)


def parse_value(kind: int, data: bytes) -> Message | None:
    """The value of a record whose key has that type; None for types that are left alone.

    Raises `Corrupt` for bytes that are no such value, and `Unsupported` for a version of a later release.
    """
    schema = _VALUES.get(kind)
    return None if schema is None else schema.parse(data)


def offset_key(key: Message) -> OffsetKey | None:
    """Whose offset a record tells of; None if it is not an offset commit."""
    if key.version > OFFSET_COMMIT:
        return None
    return OffsetKey(key.fields["group"], key.fields["topic"], key.fields["partition"])


def encode_group_metadata(fields: Mapping[str, Any], version: int = _WRITTEN_VERSION) -> bytes:
    """The value of a classic group's metadata; fields that the version lacks are dropped."""
    return _GROUP_VALUE.encode(version, fields)


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
    if name not in _CLIENTS or not field:
        return field
    try:
        return _CLIENTS[name].parse(field).fields
    except (Corrupt, Unsupported):
        return field


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
