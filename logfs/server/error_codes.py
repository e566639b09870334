"""The error codes of Kafka's protocol, and which of them tells a client of an error of logfs."""

from __future__ import annotations

import enum
import logging

from logfs.errors import (
    Corrupt,
    InvalidName,
    LogfsError,
    OffsetOutOfRange,
    UnknownPartition,
    Unsupported,
)
from logfs.log.disk.disk import Gone

logger = logging.getLogger(__name__)


class ErrorCode(enum.IntEnum):
    """The error codes that logfs sends. The names and the numbers are those of Kafka's class `Errors`."""

    UNKNOWN_SERVER_ERROR = -1
    NONE = 0
    OFFSET_OUT_OF_RANGE = 1
    CORRUPT_MESSAGE = 2
    UNKNOWN_TOPIC_OR_PARTITION = 3
    LEADER_NOT_AVAILABLE = 5
    INVALID_TOPIC_EXCEPTION = 17
    TOPIC_AUTHORIZATION_FAILED = 29
    UNSUPPORTED_VERSION = 35
    INVALID_REQUEST = 42
    UNSUPPORTED_FOR_MESSAGE_FORMAT = 43
    KAFKA_STORAGE_ERROR = 56
    FETCH_SESSION_ID_NOT_FOUND = 70
    FENCED_LEADER_EPOCH = 74
    UNKNOWN_LEADER_EPOCH = 75
    UNKNOWN_TOPIC_ID = 100


# The first class that an error is an instance of decides.
_CODES: tuple[tuple[type[Exception], ErrorCode], ...] = (
    # Another process is changing the files of the log: the client asks again.
    (Gone, ErrorCode.LEADER_NOT_AVAILABLE),
    (OffsetOutOfRange, ErrorCode.OFFSET_OUT_OF_RANGE),
    (UnknownPartition, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    (InvalidName, ErrorCode.INVALID_REQUEST),
    (Corrupt, ErrorCode.CORRUPT_MESSAGE),
    (Unsupported, ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT),
    (LogfsError, ErrorCode.KAFKA_STORAGE_ERROR),
    (OSError, ErrorCode.KAFKA_STORAGE_ERROR),
)
# Errors that a wrong request causes. The others are errors of the data or of the disk, and are logged.
_CLIENTS = frozenset(
    {
        ErrorCode.OFFSET_OUT_OF_RANGE,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.LEADER_NOT_AVAILABLE,
    }
)


def code_of(error: LogfsError | OSError) -> ErrorCode:
    """Return the code that tells a client of `error`. An error that no client has caused is logged."""
    code = next(code for kind, code in _CODES if isinstance(error, kind))
    if code not in _CLIENTS:
        logger.warning("%s", error)
    return code
