"""ListOffsets and OffsetForLeaderEpoch: offsets by time, and the ends of leader epochs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from logfs.errors import LogfsError
from logfs.format.batches.record import NO_TIMESTAMP
from logfs.log.read.read_committed import Isolation
from logfs.log.read.reader import OffsetAndTimestamp
from logfs.server.broker import epoch_error
from logfs.server.error_codes import ErrorCode, code_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from logfs.log.read.log import Log
    from logfs.server.broker import Broker, Request

# The special times of a ListOffsets request that `Reader.offset_for_time` does not know.
_EARLIEST_LOCAL = -4
_LATEST_TIERED = -5
_EARLIEST_NOT_TIERED = -6
_NOTHING = OffsetAndTimestamp(-1, NO_TIMESTAMP)
ISOLATION = (Isolation.READ_UNCOMMITTED, Isolation.READ_COMMITTED)
"""The isolation levels by their numbers in requests."""


def list_offsets(broker: Broker, request: Request) -> Mapping[str, Any]:
    """Answer a ListOffsets request: for each partition, the first offset at or after a time, or a special offset."""
    broker.refresh()
    isolation = ISOLATION[request.fields["isolationLevel"] == 1]
    topics = []
    for topic in request.fields["topics"]:
        found = [_found(broker, topic["name"], each, isolation) for each in topic["partitions"]]
        topics.append({"name": topic["name"], "partitions": found})
    return {"topics": topics}


def _found(
    broker: Broker, topic: str, asked: Mapping[str, Any], isolation: Isolation
) -> Mapping[str, Any]:
    number = asked["partitionIndex"]
    try:
        log = broker.log(topic, number)
        error = epoch_error(log, asked["currentLeaderEpoch"])
        found = _NOTHING if error else _offset(log, asked["timestamp"], isolation) or _NOTHING
    except (LogfsError, OSError) as failure:
        error, found = code_of(failure), _NOTHING
    return {
        "partitionIndex": number,
        "errorCode": error,
        "timestamp": found.timestamp,
        "offset": found.offset,
        "leaderEpoch": found.leader_epoch,
    }


def _offset(log: Log, timestamp: int, isolation: Isolation) -> OffsetAndTimestamp | None:
    """Return the offset for a time in a ListOffsets request; None if there is none. Raises the errors of a read."""
    state = log.state
    local = max(log.local_start_offset, state.log_start_offset)
    if timestamp in (_EARLIEST_LOCAL, _EARLIEST_NOT_TIERED):
        return OffsetAndTimestamp(local, NO_TIMESTAMP, log.epochs.epoch_for(local))
    if timestamp == _LATEST_TIERED:
        if local <= state.log_start_offset:
            return None
        return OffsetAndTimestamp(local - 1, NO_TIMESTAMP, log.epochs.epoch_for(local - 1))
    return log.isolated(isolation).offset_for_time(timestamp)


def offset_for_leader_epoch(broker: Broker, request: Request) -> Mapping[str, Any]:
    """Answer an OffsetForLeaderEpoch request: for each partition, the end of the newest epoch up to the given one."""
    topics = []
    for topic in request.fields["topics"]:
        found = [_end_of_epoch(broker, topic["topic"], each) for each in topic["partitions"]]
        topics.append({"topic": topic["topic"], "partitions": found})
    return {"topics": topics}


def _end_of_epoch(broker: Broker, topic: str, asked: Mapping[str, Any]) -> Mapping[str, Any]:
    epoch = end = -1
    try:
        log = broker.log(topic, asked["partition"])
        error = epoch_error(log, asked["currentLeaderEpoch"])
        if error is ErrorCode.NONE:
            epoch, end = log.epochs.end_of(asked["leaderEpoch"], log.state.log_end_offset)
    except (LogfsError, OSError) as failure:
        error = code_of(failure)
    return {
        "partition": asked["partition"],
        "errorCode": error,
        "leaderEpoch": epoch,
        "endOffset": end,
    }
