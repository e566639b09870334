"""The fields of every record in `__consumer_offsets`, by key type (kafka-storage 12, and Kafka's schema files).

A key consists of its type (int16) and the fields in `KEYS`. A value consists of its version (int16) and the fields in
`VALUES`.
"""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

from logfs.format.messages.message import Field, MessageSchema

if TYPE_CHECKING:
    from collections.abc import Sequence

LEGACY_OFFSET_COMMIT = 0
OFFSET_COMMIT = 1
"""The key type of offset commits that are written now; the older type 0 has the same fields."""
GROUP_METADATA = 2

KEY = "group record's key"

_OFFSET_KEY = (Field("group", "string"), Field("topic", "string"), Field("partition", "int32"))
_GROUP_KEY = (Field("groupId", "string"),)
_MEMBER_KEY = (*_GROUP_KEY, Field("memberId", "string"))

_OFFSET_COMMIT = (
    Field("offset", "int64"),
    Field("leaderEpoch", "int32", first=3, default=-1),
    Field("metadata", "string"),
    Field("commitTimestamp", "int64"),
    Field("expireTimestamp", "int64", first=1, last=1, default=-1),
    Field("topicId", "uuid", first=4, tag=0, default=uuid.UUID(int=0)),
)
_CLASSIC_MEMBER = (
    Field("memberId", "string"),
    Field("groupInstanceId", "string", first=3, nullable=True),
    Field("clientId", "string"),
    Field("clientHost", "string"),
    Field("rebalanceTimeout", "int32", first=1, default=-1),
    Field("sessionTimeout", "int32"),
    Field("subscription", "bytes"),
    Field("assignment", "bytes"),
)
_CLASSIC_GROUP = (
    Field("protocolType", "string"),
    Field("generation", "int32"),
    Field("protocol", "string", nullable=True),
    Field("leader", "string", nullable=True),
    Field("currentStateTimestamp", "int64", first=2, default=-1),
    Field("members", "[]struct", fields=_CLASSIC_MEMBER),
)

# The contents of `subscription` and `assignment` in a classic group whose protocol type is `consumer`.

_OWNED = (Field("topic", "string"), Field("partitions", "[]int32"))
CONSUMER_PROTOCOL = {
    "subscription": MessageSchema(
        "subscription",
        (
            Field("topics", "[]string"),
            Field("userData", "bytes", nullable=True),
            Field("ownedPartitions", "[]struct", fields=_OWNED, first=1),
            Field("generationId", "int32", first=2),
            Field("rackId", "string", first=3, nullable=True),
        ),
        newest=3,
    ),
    "assignment": MessageSchema(
        "assignment",
        (
            Field("assignedPartitions", "[]struct", fields=_OWNED),
            Field("userData", "bytes", nullable=True),
        ),
        newest=3,
    ),
}

# The fields of the values of consumer groups that use Kafka's newer group protocol.

_EPOCHS = Field("assignmentEpochs", "[]int32", nullable=True, tag=0, default=[])
_TOPIC = (Field("topicId", "uuid"), Field("partitions", "[]int32"))
_MEMBER_STATE = (
    Field("memberEpoch", "int32"),
    Field("previousMemberEpoch", "int32"),
    Field("state", "int8"),
)
_ASSIGNMENT_EPOCH = (
    Field("assignmentEpoch", "int32"),
    Field("assignmentTimestamp", "int64", tag=0, default=0),
)
_CONSUMER_GROUP = (Field("epoch", "int32"), Field("metadataHash", "int64", tag=0, default=0))
_PARTITION_METADATA = (Field("partition", "int32"), Field("racks", "[]string"))
_CONSUMER_TOPICS = (
    Field(
        "topics",
        "[]struct",
        fields=(
            Field("topicId", "uuid"),
            Field("topicName", "string"),
            Field("numPartitions", "int32"),
            Field("partitionMetadata", "[]struct", fields=_PARTITION_METADATA),
        ),
    ),
)
_SUPPORTED_PROTOCOL = (Field("name", "string"), Field("metadata", "bytes"))
_CLASSIC_METADATA = (
    Field("sessionTimeoutMs", "int32"),
    Field("supportedProtocols", "[]struct", fields=_SUPPORTED_PROTOCOL),
)
_CONSUMER_MEMBER = (
    Field("instanceId", "string", nullable=True),
    Field("rackId", "string", nullable=True),
    Field("clientId", "string"),
    Field("clientHost", "string"),
    Field("subscribedTopicNames", "[]string"),
    Field("subscribedTopicRegex", "string", nullable=True),
    Field("rebalanceTimeoutMs", "int32"),
    Field("serverAssignor", "string", nullable=True),
    Field(
        "classicMemberMetadata",
        "struct",
        fields=_CLASSIC_METADATA,
        nullable=True,
        tag=0,
        default={"sessionTimeoutMs": 0, "supportedProtocols": []},
    ),
)
_CONSUMER_ASSIGNMENT = (
    *_MEMBER_STATE,
    Field("assignedPartitions", "[]struct", fields=(*_TOPIC, _EPOCHS)),
    Field("partitionsPendingRevocation", "[]struct", fields=(*_TOPIC, _EPOCHS)),
)
_TARGET = (Field("topicPartitions", "[]struct", fields=_TOPIC),)
_REGULAR_EXPRESSION = (
    Field("topics", "[]string"),
    Field("version", "int64"),
    Field("timestamp", "int64"),
)

# The fields of the values of share groups.

_SHARE_MEMBER = (
    Field("rackId", "string", nullable=True),
    Field("clientId", "string"),
    Field("clientHost", "string"),
    Field("subscribedTopicNames", "[]string"),
)
_HASHED_GROUP = (Field("epoch", "int32"), Field("metadataHash", "int64"))
_SHARE_ASSIGNMENT = (*_MEMBER_STATE, Field("assignedPartitions", "[]struct", fields=_TOPIC))
_TOPIC_NAME = (Field("topicId", "uuid"), Field("topicName", "string"))
_NAMED_TOPIC = (*_TOPIC_NAME, Field("partitions", "[]int32"))
_SHARE_STATE = (
    Field("initializingTopics", "[]struct", fields=_NAMED_TOPIC),
    Field("initializedTopics", "[]struct", fields=_NAMED_TOPIC),
    Field("deletingTopics", "[]struct", fields=_TOPIC_NAME),
)

# The fields of the values of streams groups.

_PAIR = (Field("key", "string"), Field("value", "string"))
_STREAMS_GROUP = (
    *_HASHED_GROUP,
    Field("validatedTopologyEpoch", "int32", tag=0, default=-1),
    Field("lastAssignmentConfigs", "[]struct", fields=_PAIR, nullable=True, tag=1, default=[]),
)
_ENDPOINT = (Field("host", "string"), Field("port", "uint16"))
_STREAMS_MEMBER = (
    Field("instanceId", "string", nullable=True),
    Field("rackId", "string", nullable=True),
    Field("clientId", "string"),
    Field("clientHost", "string"),
    Field("rebalanceTimeoutMs", "int32"),
    Field("topologyEpoch", "int32"),
    Field("processId", "string"),
    Field("userEndpoint", "struct", nullable=True, fields=_ENDPOINT),
    Field("clientTags", "[]struct", fields=_PAIR),
)
_TASKS = (Field("subtopologyId", "string"), Field("partitions", "[]int32"))
_STREAMS_TARGET = tuple(
    Field(name, "[]struct", fields=_TASKS)
    for name in ("activeTasks", "standbyTasks", "warmupTasks")
)
_STREAMS_ASSIGNMENT = (
    *_MEMBER_STATE,
    *(
        Field(name, "[]struct", fields=(*_TASKS, _EPOCHS))
        for name in (
            "activeTasks",
            "standbyTasks",
            "warmupTasks",
            "activeTasksPendingRevocation",
            "standbyTasksPendingRevocation",
            "warmupTasksPendingRevocation",
        )
    ),
)
_INTERNAL_TOPIC = (
    Field("name", "string"),
    Field("partitions", "int32"),
    Field("replicationFactor", "int16"),
    Field("topicConfigs", "[]struct", fields=_PAIR),
)
_COPARTITION_GROUP = tuple(
    Field(name, "[]int16")
    for name in ("sourceTopics", "sourceTopicRegex", "repartitionSourceTopics")
)
_SUBTOPOLOGY = (
    Field("subtopologyId", "string"),
    Field("sourceTopics", "[]string"),
    Field("sourceTopicRegex", "[]string"),
    Field("stateChangelogTopics", "[]struct", fields=_INTERNAL_TOPIC),
    Field("repartitionSinkTopics", "[]string"),
    Field("repartitionSourceTopics", "[]struct", fields=_INTERNAL_TOPIC),
    Field("copartitionGroups", "[]struct", fields=_COPARTITION_GROUP),
)
_TOPOLOGY = (Field("epoch", "int32"), Field("subtopologies", "[]struct", fields=_SUBTOPOLOGY))

# The schemas of keys by type. Types 9 and 18 were never released.

_GROUP = MessageSchema(KEY, _GROUP_KEY)
_MEMBER = MessageSchema(KEY, _MEMBER_KEY)

KEYS = {
    LEGACY_OFFSET_COMMIT: MessageSchema(KEY, _OFFSET_KEY),
    OFFSET_COMMIT: MessageSchema(KEY, _OFFSET_KEY),
    GROUP_METADATA: MessageSchema(KEY, (Field("group", "string"),)),
    3: _GROUP,
    4: _GROUP,
    5: _MEMBER,
    6: _GROUP,
    7: _MEMBER,
    8: _MEMBER,
    10: _MEMBER,
    11: _GROUP,
    12: _GROUP,
    13: _MEMBER,
    14: _MEMBER,
    15: _GROUP,
    16: MessageSchema(KEY, (*_GROUP_KEY, Field("regularExpression", "string"))),
    17: _GROUP,
    19: _MEMBER,
    20: _GROUP,
    21: _MEMBER,
    22: _MEMBER,
    23: _GROUP,
}


def _new(what: str, fields: Sequence[Field]) -> MessageSchema:
    """Return the schema of a value whose key has type 3 or more. The schema has one version, 0, which is flexible."""
    return MessageSchema(what, fields, newest=0, flexible=0)


VALUES = {
    LEGACY_OFFSET_COMMIT: MessageSchema("offset commit", _OFFSET_COMMIT, newest=0),
    OFFSET_COMMIT: MessageSchema("offset commit", _OFFSET_COMMIT, newest=4, flexible=4),
    GROUP_METADATA: MessageSchema("group metadata", _CLASSIC_GROUP, newest=4, flexible=4),
    3: _new("group epoch", _CONSUMER_GROUP),
    4: _new("group's topics", _CONSUMER_TOPICS),
    5: _new("group member", _CONSUMER_MEMBER),
    6: _new("target assignment", _ASSIGNMENT_EPOCH),
    7: _new("member's target assignment", _TARGET),
    8: _new("member's assignment", _CONSUMER_ASSIGNMENT),
    10: _new("share group member", _SHARE_MEMBER),
    11: _new("share group epoch", _HASHED_GROUP),
    12: _new("share group's target assignment", _ASSIGNMENT_EPOCH),
    13: _new("share group member's target assignment", _TARGET),
    14: _new("share group member's assignment", _SHARE_ASSIGNMENT),
    15: _new("share group's topics", _SHARE_STATE),
    16: _new("topics of a regular expression", _REGULAR_EXPRESSION),
    17: _new("streams group epoch", _STREAMS_GROUP),
    19: _new("streams group member", _STREAMS_MEMBER),
    20: _new("streams group's target assignment", _ASSIGNMENT_EPOCH),
    21: _new("streams group member's target assignment", _STREAMS_TARGET),
    22: _new("streams group member's assignment", _STREAMS_ASSIGNMENT),
    23: _new("streams group's topology", _TOPOLOGY),
}
