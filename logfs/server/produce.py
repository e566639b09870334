"""Produce and InitProducerId: batches of clients, and the ids of idempotent producers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from logfs.errors import LogfsError
from logfs.format.base import names
from logfs.format.batches.batch import HEADER_SIZE, MAGIC, parse_header
from logfs.format.batches.compression import Codec
from logfs.format.batches.record import NO_TIMESTAMP, TimestampType
from logfs.server.broker import CloseConnection
from logfs.server.error_codes import ErrorCode, Refused, answered, code_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from logfs.server.broker import Broker, Request

# The first versions of a Produce request that name topics by their ids, and that may have batches with zstd.
_TOPIC_IDS = 13
_ZSTD = 7
_ACKS = (-1, 0, 1)
_UNKNOWN_START = frozenset(
    {
        ErrorCode.MESSAGE_TOO_LARGE,
        ErrorCode.CORRUPT_MESSAGE,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
)
_READ_ONLY = "the log directory is open read-only"


def produce(broker: Broker, request: Request) -> Mapping[str, Any] | None:
    """Append the batch of each partition; return None if the client expects no answer (`acks=0`).

    The answer is sent when the batches are in the log. They are durable then if `flush.messages` or `flush.ms` of the
    topic say so, as in Kafka, where `acks=all` waits for replicas and not for the disk. Raises `CloseConnection` if a
    batch without acknowledgement is refused.
    """
    acks = request.fields["acks"]
    topics = []
    for topic in request.fields["topicData"]:
        found = [
            {
                "index": each["index"],
                "baseOffset": -1,
                **answered(_append, broker, request, topic, each),
            }
            for each in topic["partitionData"]
        ]
        named = {name: topic[name] for name in ("name", "topicId")}
        topics.append({**named, "partitionResponses": found})
        if not acks and any(each["errorCode"] for each in found):
            raise CloseConnection("a batch with acks=0 was refused")
    return {"responses": topics} if acks else None


def _append(
    broker: Broker, request: Request, topic: Mapping[str, Any], data: Mapping[str, Any]
) -> Mapping[str, Any]:
    """Append a batch, and return the offset of its first record, its append time and the log start."""
    if request.fields["acks"] not in _ACKS:
        raise Refused(ErrorCode.INVALID_REQUIRED_ACKS, "acks must be -1, 0 or 1")
    if broker.store.read_only:
        raise Refused(ErrorCode.TOPIC_AUTHORIZATION_FAILED, _READ_ONLY)
    if request.version >= _TOPIC_IDS:
        name = broker.topic_name(topic["topicId"])
        if name is None:
            raise Refused(ErrorCode.UNKNOWN_TOPIC_ID, "no topic has this id")
    else:
        name = topic["name"]
    if name in names.INTERNAL_TOPICS:
        raise Refused(ErrorCode.INVALID_TOPIC_EXCEPTION, f"{name} is an internal topic")
    batch = data["records"]
    _check(batch, request.version)
    log = broker.log(name, data["index"])
    try:
        done = broker.store.writable(log.name.directory).append_batch(batch)
    except LogfsError as error:
        code = code_of(error)
        # For these errors, as for those above, a broker does not tell where the log starts.
        start = -1 if code in _UNKNOWN_START else log.log_start_offset
        return {"errorCode": code, "errorMessage": str(error), "logStartOffset": start}
    is_stamped = log.config.message_timestamp_type == TimestampType.LOG_APPEND_TIME.label
    return {
        "baseOffset": done.first_offset,
        # For a repeated batch, a broker tells its timestamp.
        "logAppendTimeMs": done.max_timestamp if is_stamped or done.duplicate else NO_TIMESTAMP,
        "logStartOffset": log.log_start_offset,
    }


def _check(data: memoryview | None, version: int) -> None:
    """Raise `Refused` unless `data` is exactly one batch that a request of this version may have."""
    if data is None or len(data) < HEADER_SIZE:
        raise Refused(ErrorCode.INVALID_RECORD, "a request must have a batch for each partition")
    header = parse_header(data)
    if header.magic > MAGIC:
        raise Refused(ErrorCode.CORRUPT_MESSAGE, f"there are no batches of magic {header.magic}")
    if header.magic < MAGIC:
        raise Refused(ErrorCode.INVALID_RECORD, f"a batch has magic {header.magic}, not {MAGIC}")
    if header.codec is Codec.ZSTD and version < _ZSTD:
        raise Refused(
            ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, f"zstd needs version {_ZSTD} of the request"
        )
    if header.size_bytes < len(data):
        raise Refused(ErrorCode.INVALID_RECORD, "a partition may have only one batch in a request")
    if header.is_transactional:
        raise Refused(ErrorCode.INVALID_TXN_STATE, "transactions are not answered yet")


def init_producer_id(broker: Broker, request: Request) -> Mapping[str, Any]:
    """Answer an InitProducerId request with a new producer id; with a transactional id it is refused."""
    if request.fields["transactionalId"] is not None:
        return {"errorCode": ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, "producerEpoch": -1}
    return {"producerId": broker.store.transactions.new_producer_id(), "producerEpoch": 0}
