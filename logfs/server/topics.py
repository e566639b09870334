"""CreateTopics, DeleteTopics, CreatePartitions and DeleteRecords."""

from __future__ import annotations

import uuid
from collections import Counter
from typing import TYPE_CHECKING, Any

from logfs.errors import InvalidName
from logfs.format.base import names
from logfs.server.configs import settings_of
from logfs.server.error_codes import ErrorCode, Refused, answered
from logfs.store.topic import check_partition_count

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from logfs.server.broker import Broker, Request

_NO_ID = uuid.UUID(int=0)
# What a request gives for the default number of partitions or replicas.
_DEFAULT = -1
# The first version of a DeleteTopics request that may name topics by their ids.
_TOPIC_IDS = 6
_NO_OFFSET = -1


def create_topics(broker: Broker, request: Request) -> Mapping[str, Any]:
    """Create topics with their settings; with `validateOnly`, only say whether they could be created."""
    asked = request.fields["topics"]
    twice = {name for name, count in Counter(each["name"] for each in asked).items() if count > 1}
    validate = request.fields["validateOnly"]

    def create(topic: Mapping[str, Any]) -> Mapping[str, Any]:
        if topic["name"] in twice:
            raise Refused(ErrorCode.INVALID_REQUEST, "the request names the topic twice")
        return _create(broker, topic, validate=validate)

    named = {each["name"]: each for each in asked}
    return {"topics": [{"name": name, **answered(create, each)} for name, each in named.items()]}


def _create(broker: Broker, asked: Mapping[str, Any], *, validate: bool) -> Mapping[str, Any]:
    name, store = asked["name"], broker.store
    try:
        names.check_topic(name)
    except InvalidName as error:
        raise Refused(ErrorCode.INVALID_TOPIC_EXCEPTION, str(error)) from None
    if broker.partitions_of(name):
        raise Refused(ErrorCode.TOPIC_ALREADY_EXISTS, f"topic '{name}' exists already")
    replicas = asked["replicationFactor"]
    count = asked["numPartitions"]
    if asked["assignments"]:
        if (count, replicas) != (_DEFAULT, _DEFAULT):
            raise Refused(
                ErrorCode.INVALID_REQUEST, "give the replicas or their number, and not both"
            )
        count = len(asked["assignments"])
        numbers = sorted(each["partitionIndex"] for each in asked["assignments"])
        if numbers != list(range(count)):
            raise Refused(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT, "the partitions must be numbered from 0 on"
            )
        _check_replicas(broker, asked["assignments"])
    elif replicas not in (_DEFAULT, 1):
        raise Refused(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"{replicas} replicas: there is one node, so give 1",
        )
    elif count == _DEFAULT:
        count = store.settings.broker_config.num_partitions
    try:
        check_partition_count(name, count)
    except InvalidName as error:
        raise Refused(ErrorCode.INVALID_PARTITIONS, str(error)) from None
    changes = {each["name"]: each["value"] for each in asked["configs"]}
    if None in changes.values():
        raise Refused(ErrorCode.INVALID_CONFIG, "a setting has no value")
    if validate:
        store.check_creatable(f"{name}-0")
        store.settings.check_topic(name, changes)
    else:
        store.topic(name).create(count, changes)
    topic_id = None if validate else broker.topic_id(name, [0])
    return {
        "topicId": topic_id or _NO_ID,
        "numPartitions": count,
        "replicationFactor": 1,
        "configs": settings_of(broker, name),
    }


def _check_replicas(broker: Broker, assignments: Sequence[Mapping[str, Any]]) -> None:
    if any(each["brokerIds"] != [broker.node_id] for each in assignments):
        raise Refused(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"there is one node, so the replicas of each partition are [{broker.node_id}]",
        )


def delete_topics(broker: Broker, request: Request) -> Mapping[str, Any]:
    """Delete topics, by name or by id."""
    if request.version >= _TOPIC_IDS:
        asked = request.fields["topics"]
    else:
        asked = [{"name": name, "topicId": _NO_ID} for name in request.fields["topicNames"]]

    def delete(topic: Mapping[str, Any]) -> Mapping[str, Any]:
        name = topic["name"]
        if name is None:
            name = broker.topic_name(topic["topicId"])
            if name is None:
                raise Refused(ErrorCode.UNKNOWN_TOPIC_ID, "no topic has this id")
        partitions = broker.partitions_of(name)
        if not partitions:
            raise Refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic '{name}'")
        topic_id = broker.topic_id(name, partitions) or _NO_ID
        broker.store.topic(name).delete()
        return {"name": name, "topicId": topic_id}

    return {
        "responses": [
            {"name": each["name"], "topicId": each["topicId"], **answered(delete, each)}
            for each in asked
        ]
    }


def create_partitions(broker: Broker, request: Request) -> Mapping[str, Any]:
    """Add partitions to topics; with `validateOnly`, only say whether they could be added."""
    validate = request.fields["validateOnly"]

    def add(topic: Mapping[str, Any]) -> Mapping[str, Any]:
        name, count = topic["name"], topic["count"]
        known = broker.partitions_of(name)
        if not known:
            raise Refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic '{name}'")
        if count <= known[-1] + 1:
            raise Refused(
                ErrorCode.INVALID_PARTITIONS,
                f"topic '{name}' has {known[-1] + 1} partitions, so {count} adds none",
            )
        if topic["assignments"] is not None:
            if len(topic["assignments"]) != count - known[-1] - 1:
                raise Refused(
                    ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                    f"{count - known[-1] - 1} partitions are new, but there are replicas for "
                    f"{len(topic['assignments'])}",
                )
            _check_replicas(broker, topic["assignments"])
        try:
            check_partition_count(name, count)
        except InvalidName as error:
            raise Refused(ErrorCode.INVALID_PARTITIONS, str(error)) from None
        if not validate:
            broker.store.topic(name).create(count)
        return {}

    return {
        "results": [
            {"name": each["name"], **answered(add, each)} for each in request.fields["topics"]
        ]
    }


def delete_records(broker: Broker, request: Request) -> Mapping[str, Any]:
    """Raise the log start of partitions; the offset -1 stands for the log end."""
    topics = []
    for topic in request.fields["topics"]:

        def delete(asked: Mapping[str, Any], name: str = topic["name"]) -> Mapping[str, Any]:
            log = broker.log(name, asked["partitionIndex"])
            if not log.config.has_delete_policy:
                raise Refused(ErrorCode.POLICY_VIOLATION, "cleanup.policy has no 'delete'")
            start = broker.store.delete_records(log.name.directory, asked["offset"])
            return {"lowWatermark": start}

        found = [
            {
                "partitionIndex": each["partitionIndex"],
                "lowWatermark": _NO_OFFSET,
                **answered(delete, each),
            }
            for each in topic["partitions"]
        ]
        topics.append({"name": topic["name"], "partitions": found})
    return {"topics": topics}
