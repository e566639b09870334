"""The error codes of Kafka's protocol, and which of them tells a client of an error of logfs."""

from __future__ import annotations

import enum
import logging
from typing import TYPE_CHECKING, Any

from logfs.errors import (
    Corrupt,
    InvalidName,
    InvalidProducerEpoch,
    InvalidRecord,
    InvalidSetting,
    InvalidTimestamp,
    InvalidTransactionState,
    LogfsError,
    NotWritable,
    OffsetOutOfRange,
    OutOfOrderSequence,
    PartitionExists,
    RecordTooLarge,
    UnknownPartition,
    Unsupported,
)
from logfs.log.disk.disk import Gone

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

logger = logging.getLogger(__name__)


class ErrorCode(enum.IntEnum):
    """The error codes that logfs sends. The names and the numbers are those of Kafka's class `Errors`."""

    UNKNOWN_SERVER_ERROR = -1
    NONE = 0
    OFFSET_OUT_OF_RANGE = 1
    CORRUPT_MESSAGE = 2
    UNKNOWN_TOPIC_OR_PARTITION = 3
    LEADER_NOT_AVAILABLE = 5
    MESSAGE_TOO_LARGE = 10
    INVALID_TOPIC_EXCEPTION = 17
    INVALID_REQUIRED_ACKS = 21
    TOPIC_AUTHORIZATION_FAILED = 29
    INVALID_TIMESTAMP = 32
    UNSUPPORTED_VERSION = 35
    TOPIC_ALREADY_EXISTS = 36
    INVALID_PARTITIONS = 37
    INVALID_REPLICATION_FACTOR = 38
    INVALID_REPLICA_ASSIGNMENT = 39
    INVALID_CONFIG = 40
    INVALID_REQUEST = 42
    UNSUPPORTED_FOR_MESSAGE_FORMAT = 43
    POLICY_VIOLATION = 44
    OUT_OF_ORDER_SEQUENCE_NUMBER = 45
    INVALID_PRODUCER_EPOCH = 47
    INVALID_TXN_STATE = 48
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 53
    KAFKA_STORAGE_ERROR = 56
    FETCH_SESSION_ID_NOT_FOUND = 70
    FENCED_LEADER_EPOCH = 74
    UNKNOWN_LEADER_EPOCH = 75
    UNSUPPORTED_COMPRESSION_TYPE = 76
    INVALID_RECORD = 87
    UNKNOWN_TOPIC_ID = 100


class Refused(Exception):
    """Raised for a part of a request that a rule of the protocol refuses: the error code, and the reason."""

    def __init__(self, code: ErrorCode, reason: str) -> None:
        super().__init__(reason)
        self.code = code


# The first class that an error is an instance of decides.
_CODES: tuple[tuple[type[Exception], ErrorCode], ...] = (
    # Another process is changing the files of the log: the client asks again.
    (Gone, ErrorCode.LEADER_NOT_AVAILABLE),
    (OffsetOutOfRange, ErrorCode.OFFSET_OUT_OF_RANGE),
    (UnknownPartition, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    (PartitionExists, ErrorCode.TOPIC_ALREADY_EXISTS),
    (InvalidName, ErrorCode.INVALID_REQUEST),
    (InvalidSetting, ErrorCode.INVALID_CONFIG),
    (NotWritable, ErrorCode.POLICY_VIOLATION),
    (RecordTooLarge, ErrorCode.MESSAGE_TOO_LARGE),
    (InvalidTimestamp, ErrorCode.INVALID_TIMESTAMP),
    (InvalidRecord, ErrorCode.INVALID_RECORD),
    (OutOfOrderSequence, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER),
    (InvalidProducerEpoch, ErrorCode.INVALID_PRODUCER_EPOCH),
    (InvalidTransactionState, ErrorCode.INVALID_TXN_STATE),
    (Corrupt, ErrorCode.CORRUPT_MESSAGE),
    (Unsupported, ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT),
    (LogfsError, ErrorCode.KAFKA_STORAGE_ERROR),
    (OSError, ErrorCode.KAFKA_STORAGE_ERROR),
)
# Errors of the data and of the disk, which are logged. A wrong request, or a change meanwhile, causes the others.
_LOGGED = frozenset({ErrorCode.CORRUPT_MESSAGE, ErrorCode.KAFKA_STORAGE_ERROR})


def code_of(error: LogfsError | OSError) -> ErrorCode:
    """Return the code that tells a client of `error`. An error that no client has caused is logged."""
    code = next(code for kind, code in _CODES if isinstance(error, kind))
    if code in _LOGGED:
        logger.warning("%s", error)
    return code


def answered(work: Callable[..., Mapping[str, Any]], *arguments: object) -> Mapping[str, Any]:
    """Return the fields that `work` returns for a part of a request, or the code and the message of its error."""
    try:
        return {"errorCode": ErrorCode.NONE, **work(*arguments)}
    except Refused as refused:
        return {"errorCode": refused.code, "errorMessage": str(refused)}
    except (LogfsError, OSError) as error:
        return {"errorCode": code_of(error), "errorMessage": str(error)}
