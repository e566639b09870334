"""Batches as producers send them, emptied batches, and the batches of a buffer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from logfs.format.batches.batch import (
    CODEC_MASK,
    DELETE_HORIZON_BIT,
    HEADER_SIZE,
    NO_TIMESTAMP,
    Batch,
    Header,
    parse_header,
    seal,
)
from logfs.format.batches.record import Record, encode_record
from logfs.format.encoding.batch_builder import BatchFormat, build_records

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from logfs.log.append.partition import Partition

NOW = 1_700_000_000_000


def batch(
    producer_id: int,
    sequence: int,
    *values: bytes,
    epoch: int = 0,
    transactional: bool = False,
    timestamp: int = NOW,
    key: bytes | None = None,
) -> bytes:
    """Return a batch as an idempotent producer sends it; all of its records have the same key."""
    data = bytearray(HEADER_SIZE)
    for delta, value in enumerate(values):
        data += encode_record(Record(value, key), offset_delta=delta, timestamp_delta=0)
    seal(
        data,
        attributes=0x10 if transactional else 0,
        last_offset_delta=len(values) - 1,
        base_timestamp=timestamp,
        max_timestamp=timestamp,
        record_count=len(values),
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=sequence,
    )
    return bytes(data)


E_COMMIT = bytes.fromhex(
    "000000000000000a000000420000000102e314eb360030000000000000018bcfe568000000018bcfe568000000"
    "0000000010920007ffffffff000000012000000008000000010c00000000000900"
)


class Producer:
    """A producer that sends a batch of keys in each call, in transactions unless `transactional` is false."""

    def __init__(self, orders: Partition, producer_id: int, *, transactional: bool = True) -> None:
        self.orders = orders
        self.producer_id = producer_id
        self.transactional = transactional
        self.sequence = 0
        self.sent = b""

    def send(self, *keys: str) -> int:
        return self.send_records(
            [Record(f"{key} of {self.producer_id}".encode(), key.encode()) for key in keys]
        )

    def send_records(self, records: Sequence[Record]) -> int:
        """Send records in a batch. All have the time of the first one, or the present time."""
        now_ms = records[0].timestamp or self.orders._clock()
        data = bytearray(build_records(records, BatchFormat(), now_ms).batches[0].data)
        seal(
            data,
            attributes=0x10 if self.transactional else 0,
            last_offset_delta=len(records) - 1,
            base_timestamp=now_ms,
            max_timestamp=now_ms,
            record_count=len(records),
            producer_id=self.producer_id,
            producer_epoch=0,
            base_sequence=self.sequence,
        )
        self.sequence += len(records)
        self.sent = bytes(data)
        return self.orders.append_batch(self.sent).first_offset

    def end(self, *, commit: bool) -> int:
        return self.orders.end_transaction(self.producer_id, 0, commit=commit)


def empty_batch(header: Header) -> bytes:
    """Return the bare header that compaction keeps of a batch if no record survives (kafka-storage 2.6)."""
    data = bytearray(HEADER_SIZE)
    seal(
        data,
        attributes=header.attributes & ~(CODEC_MASK | DELETE_HORIZON_BIT),
        base_offset=header.base_offset,
        last_offset_delta=header.last_offset_delta,
        base_timestamp=NO_TIMESTAMP,
        max_timestamp=header.max_timestamp,
        record_count=0,
        leader_epoch=header.partition_leader_epoch,
        producer_id=header.producer_id,
        producer_epoch=header.producer_epoch,
        base_sequence=header.base_sequence,
    )
    return bytes(data)


class Batches:
    """Whole batches one after the other in a buffer, found by their length fields (kafka-storage 2.8)."""

    def __init__(self, data: bytes | memoryview) -> None:
        self.data = memoryview(data)
        self.end = 0

    def __iter__(self) -> Iterator[Batch]:
        """Yield the whole batches in order. `end` is the position after the last one."""
        size = len(self.data)
        while self.end + HEADER_SIZE <= size:
            header = parse_header(self.data, self.end)
            if header.size_bytes < HEADER_SIZE or header.size_bytes > size - self.end:
                return
            batch = Batch(header, self.data[self.end : self.end + header.size_bytes])
            self.end += header.size_bytes
            yield batch
