"""DescribeLogDirs and DescribeProducers: sizes by log directory, and the producers of partitions."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from logfs.errors import LogfsError
from logfs.format.base import names
from logfs.server.error_codes import ErrorCode, answered

if TYPE_CHECKING:
    from collections.abc import Container, Iterator, Mapping

    from logfs.server.broker import Broker, Request
    from logfs.store.directory.log_dir import LogDir

_UNKNOWN = -1


def describe_log_dirs(broker: Broker, request: Request) -> Mapping[str, Any]:
    """Answer a DescribeLogDirs request: each log directory with the sizes of its partitions, all or those named."""
    broker.refresh()
    asked = request.fields["topics"]
    wanted = (
        None
        if asked is None
        else {(each["topic"], n) for each in asked for n in each["partitions"]}
    )
    return {"results": [_log_dir(broker, each, wanted) for each in broker.store.log_dirs]}


def _log_dir(
    broker: Broker, log_dir: LogDir, wanted: Container[tuple[str, int]] | None
) -> Mapping[str, Any]:
    answer: dict[str, Any] = {"logDir": str(log_dir.path)}
    if log_dir.failure is not None:
        return {**answer, "errorCode": ErrorCode.KAFKA_STORAGE_ERROR, "topics": []}
    if not log_dir.disk.is_remote:
        found = os.statvfs(log_dir.path)
        answer["totalBytes"] = found.f_blocks * found.f_frsize
        answer["usableBytes"] = found.f_bavail * found.f_frsize
    topics: dict[str, list[Mapping[str, Any]]] = {}
    for name, size in _sizes(broker, log_dir, wanted):
        row = {"partitionIndex": name.partition, "partitionSize": size, "offsetLag": 0}
        topics.setdefault(name.topic, []).append(row)
    return {
        **answer,
        "topics": [{"name": name, "partitions": rows} for name, rows in topics.items()],
    }


def _sizes(
    broker: Broker, log_dir: LogDir, wanted: Container[tuple[str, int]] | None
) -> Iterator[tuple[names.TopicPartition, int]]:
    """Yield each partition of a log directory that is wanted (None: all), with the size of its local .log files."""
    homes = broker.store.registry.homes.copy()
    here = (names.parse_directory(name) for name, home in homes.items() if home is log_dir)
    for name in sorted(here):
        if wanted is None or tuple(name) in wanted:
            try:
                yield name, broker.log(*name).local_bytes
            except (LogfsError, OSError):
                # The partition is offline, or was deleted meanwhile.
                continue


def describe_producers(broker: Broker, request: Request) -> Mapping[str, Any]:
    """Answer a DescribeProducers request: the producers whose state partitions keep, and their transactions."""
    topics = []
    for topic in request.fields["topics"]:
        found = [
            {"partitionIndex": number, **answered(_producers, broker, topic["name"], number)}
            for number in topic["partitionIndexes"]
        ]
        topics.append({"name": topic["name"], "partitions": found})
    return {"topics": topics}


def _producers(broker: Broker, topic: str, number: int) -> Mapping[str, Any]:
    log = broker.log(topic, number)
    # A log that another process writes knows its producers once the state has been computed.
    _ = log.stable_state
    rows = [
        {
            "producerId": each.producer_id,
            "producerEpoch": each.producer_epoch,
            "lastSequence": each.last_sequence,
            "lastTimestamp": each.timestamp,
            "coordinatorEpoch": each.coordinator_epoch,
            "currentTxnStartOffset": each.current_txn_first_offset,
        }
        for each in log.producers.entries()
    ]
    return {"activeProducers": rows}
