"""Metadata, DescribeCluster and DescribeTopicPartitions: the node, and the topics with their partitions."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

from logfs.errors import InvalidName, LogfsError
from logfs.format.base import names
from logfs.server.broker import numbered
from logfs.server.error_codes import ErrorCode, code_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from logfs.server.broker import Broker, Request

_NO_ID = uuid.UUID(int=0)
_NO_NODE = -1
_NO_EPOCH = -1
# The first version of a Metadata request in which an empty list of topics stands for none, and not for all.
_EMPTY_IS_NONE = 1
# What a client may do with a topic, and with the cluster, as a bit for each AclOperation: read, describe, and
# describe settings.
_TOPIC_OPERATIONS = 1 << 3 | 1 << 8 | 1 << 10
_CLUSTER_OPERATIONS = 1 << 8 | 1 << 10
# What is told if the request does not ask for the operations.
_NOT_TOLD = -(1 << 31)
# The most partitions in one answer to DescribeTopicPartitions (max.request.partition.size.limit).
_MOST_PARTITIONS = 2000


def metadata(broker: Broker, request: Request) -> Mapping[str, Any]:
    """Answer a Metadata request: the node, and the topics that are asked for by name or id, or all."""
    broker.refresh()
    host, port = request.address
    asked = request.fields["topics"]
    if asked is None or (not asked and request.version < _EMPTY_IS_NONE):
        found = [
            _topic(broker, name, partitions, request)
            for name, partitions in broker.topics().items()
        ]
    else:
        found = [_asked_topic(broker, each, request) for each in asked]
    return {
        "brokers": [{"nodeId": broker.node_id, "host": host, "port": port}],
        "clusterId": broker.cluster_id,
        "controllerId": broker.node_id,
        "topics": found,
        "clusterAuthorizedOperations": _cluster_operations(request),
    }


def describe_cluster(broker: Broker, request: Request) -> Mapping[str, Any]:
    """Answer a DescribeCluster request."""
    host, port = request.address
    return {
        "clusterId": broker.cluster_id,
        "controllerId": broker.node_id,
        "endpointType": request.fields["endpointType"],
        "brokers": [{"brokerId": broker.node_id, "host": host, "port": port}],
        "clusterAuthorizedOperations": _cluster_operations(request),
    }


def describe_topic_partitions(broker: Broker, request: Request) -> Mapping[str, Any]:
    """Answer a DescribeTopicPartitions request, from its cursor on, with at most 2,000 partitions."""
    broker.refresh()
    asked = {each["name"] for each in request.fields["topics"]}
    cursor = request.fields["cursor"] or {"topicName": "", "partitionIndex": 0}
    limit = min(max(request.fields["responsePartitionLimit"], 1), _MOST_PARTITIONS)
    found: list[Mapping[str, Any]] = []
    after = None
    topics = broker.topics()
    for name in sorted(asked or topics):
        if name < cursor["topicName"]:
            continue
        if not limit:
            after = {"topicName": name, "partitionIndex": 0}
            break
        first = cursor["partitionIndex"] if name == cursor["topicName"] else 0
        topic = _topic(broker, name, topics.get(name, []), request)
        rest = [each for each in topic.get("partitions", ()) if each["partitionIndex"] >= first]
        found.append({**topic, "partitions": rest[:limit]})
        if len(rest) > limit:
            after = {"topicName": name, "partitionIndex": rest[limit]["partitionIndex"]}
            break
        limit -= len(rest)
    return {"topics": found, "nextCursor": after}


def list_partition_reassignments(broker: Broker, request: Request) -> Mapping[str, Any]:
    """Answer a ListPartitionReassignments request, which kafka-topics sends: on one node, there is none."""
    return {"topics": []}


def _cluster_operations(request: Request) -> int:
    return (
        _CLUSTER_OPERATIONS if request.fields["includeClusterAuthorizedOperations"] else _NOT_TOLD
    )


def _asked_topic(broker: Broker, asked: Mapping[str, Any], request: Request) -> Mapping[str, Any]:
    name, topic_id = asked["name"], asked["topicId"]
    if name is None:
        name = broker.topic_name(topic_id)
    if name is None:
        return {"errorCode": ErrorCode.UNKNOWN_TOPIC_ID, "name": None, "topicId": topic_id}
    return _topic(broker, name, broker.partitions_of(name), request)


def _topic(broker: Broker, name: str, partitions: list[int], request: Request) -> Mapping[str, Any]:
    """Return what a client is told of a topic with these partitions, or the error if there is no such topic."""
    try:
        names.check_topic(name)
    except InvalidName:
        return {"errorCode": ErrorCode.INVALID_TOPIC_EXCEPTION, "name": name}
    if not partitions:
        return {"errorCode": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "name": name}
    return {
        "name": name,
        "topicId": broker.topic_id(name, partitions) or _NO_ID,
        "isInternal": name in names.INTERNAL_TOPICS,
        "partitions": list(_partitions(broker, name, partitions)),
        # DescribeTopicPartitions always tells the operations.
        "topicAuthorizedOperations": _TOPIC_OPERATIONS
        if request.fields.get("includeTopicAuthorizedOperations", True)
        else _NOT_TOLD,
    }


def _partitions(broker: Broker, topic: str, partitions: list[int]) -> Iterable[Mapping[str, Any]]:
    for number, is_there in numbered(partitions):
        error, epoch = ErrorCode.LEADER_NOT_AVAILABLE, _NO_EPOCH
        if is_there:
            try:
                log = broker.loaded(topic, number)
                # To load a log only for its epoch would take seconds on a disk of many partitions.
                epoch = _NO_EPOCH if log is None else log.epochs.latest
                error = ErrorCode.NONE
            except (LogfsError, OSError) as failure:
                error = code_of(failure)
        leads = error is ErrorCode.NONE
        nodes = [broker.node_id] if is_there else []
        yield {
            "errorCode": error,
            "partitionIndex": number,
            "leaderId": broker.node_id if leads else _NO_NODE,
            "leaderEpoch": epoch,
            "replicaNodes": nodes,
            "isrNodes": nodes if leads else [],
            "offlineReplicas": [] if leads else nodes,
            # Java's client needs lists, though the field may be null.
            "eligibleLeaderReplicas": [],
            "lastKnownElr": [],
        }
