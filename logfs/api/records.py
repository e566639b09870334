"""Makes records from the arguments of `append`, and has the class of records with a topic and a partition."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from logfs.format.batches.record import Record

if TYPE_CHECKING:
    from datetime import datetime

    from logfs.api.partition import Partition
    from logfs.format.batches.record import Headers, Value


def as_record(
    value: Value | Record | None,
    key: Value | None,
    headers: Headers,
    timestamp: int | datetime | None,
) -> Record:
    """Return a record with the given fields, or `value` itself if it is a `Record`.

    The fields are neither checked nor converted; `as_records`, which every append calls, does that. `key` None is a
    null key, and `timestamp` None stands for the time of the append. Raises `TypeError` if `value` is a list or a
    tuple, or if it is a `Record` and another argument is given, too.
    """
    if isinstance(value, Record):
        if key is not None or headers or timestamp is not None:
            raise TypeError("append takes a Record, or the fields of one, not both")
        return value
    if isinstance(value, (list, tuple)):
        raise TypeError(f"append takes one record; for a {type(value).__name__}, use append_many")
    # `as_records`, which every append calls, checks and converts the fields.
    return Record(value, key, headers, timestamp)


@dataclass(frozen=True, slots=True)
class ConsumerRecord(Record):
    """A record that was read, with the name of its topic and the number of its partition."""

    topic: str = ""
    partition: int = -1

    @staticmethod
    def of(topic: str, partition: int, record: Record) -> ConsumerRecord:
        """Return a `ConsumerRecord` with the fields of `record`, the topic, and the number of the partition."""
        return ConsumerRecord(
            record.value,
            record.key,
            record.headers,
            record.timestamp,
            record.offset,
            record.timestamp_type,
            topic,
            partition,
        )

    @staticmethod
    def of_partition(partition: Partition, record: Record) -> ConsumerRecord:
        """Return a `ConsumerRecord` with the fields of `record`, and the topic and the number of `partition`."""
        return ConsumerRecord.of(partition.topic, partition.partition, record)
