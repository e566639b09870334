"""Keys and values of the records in `__transaction_state` (kafka-storage 12).

logfs reads the versions 0 and 1 of a value, and writes version 0, which every broker reads.
"""

from __future__ import annotations

import enum
from typing import NamedTuple

from logfs.errors import Corrupt, Unsupported
from logfs.format.base.names import TopicPartition
from logfs.format.messages.message import Field, MessageSchema, parse_version

_KEY = MessageSchema("transaction record's key", (Field("transactionalId", "string"),), newest=0)
_PARTITIONS = (Field("topic", "string"), Field("partitionIds", "[]int32"))
_VALUE = MessageSchema(
    "transaction record",
    (
        Field("producerId", "int64"),
        Field("previousProducerId", "int64", first=1, tag=0, default=-1),
        Field("nextProducerId", "int64", first=1, tag=1, default=-1),
        Field("producerEpoch", "int16"),
        Field("transactionTimeoutMs", "int32"),
        Field("transactionStatus", "int8"),
        Field("transactionPartitions", "[]struct", nullable=True, fields=_PARTITIONS),
        Field("transactionLastUpdateTimestampMs", "int64"),
        Field("transactionStartTimestampMs", "int64"),
        Field("clientTransactionVersion", "int16", first=1, tag=2, default=0),
    ),
    newest=1,
    flexible=1,
)
_WRITTEN_VERSION = 0


class TransactionStatus(enum.IntEnum):
    """The status of a transactional id (Kafka's TransactionState); the values are those in the records."""

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5
    DEAD = 6
    PREPARE_EPOCH_FENCE = 7


class TransactionState(NamedTuple):
    """The state of a transactional id, as a record stores it. Times are in ms since the epoch, -1 for none.

    `partitions` are the partitions that the transaction writes to; none if its commit or abort is complete.
    """

    transactional_id: str
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    status: TransactionStatus = TransactionStatus.EMPTY
    partitions: tuple[TopicPartition, ...] = ()
    updated_ms: int = -1
    started_ms: int = -1

    def key(self) -> bytes:
        """Return the key, as bytes, of a record with this state: the transactional id.

        Raises `struct.error` for an id of more than 32767 bytes.
        """
        return _KEY.encode(0, {"transactionalId": self.transactional_id})

    def value(self) -> bytes:
        """Return the value, as bytes, of a record with this state."""
        topics: dict[str, list[int]] = {}
        for topic, number in self.partitions:
            topics.setdefault(topic, []).append(number)
        has_partitions = self.status is not TransactionStatus.EMPTY
        return _VALUE.encode(
            _WRITTEN_VERSION,
            {
                "producerId": self.producer_id,
                "producerEpoch": self.producer_epoch,
                "transactionTimeoutMs": self.timeout_ms,
                "transactionStatus": int(self.status),
                "transactionPartitions": [
                    {"topic": topic, "partitionIds": numbers} for topic, numbers in topics.items()
                ]
                if has_partitions
                else None,
                "transactionLastUpdateTimestampMs": self.updated_ms,
                "transactionStartTimestampMs": self.started_ms,
            },
        )


def parse_transactional_id(key: bytes) -> str | None:
    """Return the transactional id in a record's key, or None if logfs does not know the version of the key.

    Raises `Corrupt` if the key is malformed.
    """
    if parse_version(key, _KEY.what) > _KEY.newest:
        return None
    return str(_KEY.parse(key).fields["transactionalId"])


def parse_state(transactional_id: str, value: bytes) -> TransactionState:
    """Return the state in the value of a record whose key has `transactional_id`.

    Raises `Corrupt` if the value is malformed, and `Unsupported` for a version or a status that logfs does not know.
    """
    fields = _VALUE.parse(value).fields
    try:
        status = TransactionStatus(fields["transactionStatus"])
    except ValueError:
        raise Unsupported(f"transactional id {transactional_id!r}: unknown status") from None
    if fields["producerId"] < 0 or fields["producerEpoch"] < 0:
        raise Corrupt(f"transactional id {transactional_id!r}: a negative producer id or epoch")
    return TransactionState(
        transactional_id,
        fields["producerId"],
        fields["producerEpoch"],
        fields["transactionTimeoutMs"],
        status,
        tuple(
            TopicPartition(each["topic"], number)
            for each in fields["transactionPartitions"] or ()
            for number in each["partitionIds"]
        ),
        fields["transactionLastUpdateTimestampMs"],
        fields["transactionStartTimestampMs"],
    )
