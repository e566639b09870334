"""Record batches of magic 2: the header, the CRC, parsing a batch and sealing a new one (kafka-storage 2.1 to 2.6).

To seal a batch is to write its header and its CRC. A table in `docs/kafka-storage.md` describes the layout. The tests
check that the table agrees with `Header`.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from logfs.errors import Corrupt
from logfs.format.base import varint
from logfs.format.base.crc import crc32c
from logfs.format.batches import compression
from logfs.format.batches.compression import Codec
from logfs.format.batches.record import (
    MOST_RECORDS,
    NO_TIMESTAMP,
    SMALLEST_RECORD,
    Record,
    TimestampType,
    decode_headers,
    decode_record,
    decode_records,
    find_record,
    skip_records,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from logfs.format.batches.columns import Columns

HEADER = struct.Struct(">qiibIhiqqqhii")
HEADER_SIZE = HEADER.size
MAGIC = 2
# The position of the magic, both in a batch and in a message of an old format.
MAGIC_AT = 16

# The number of bytes of a batch that its length field does not count: those of the base offset and the length field.
LENGTH_OVERHEAD = 12
# The position of the attributes. The CRC covers all bytes from there on (kafka-storage 2.1).
CRC_START = 21

CODEC_MASK = 0x07
LOG_APPEND_TIME_BIT = 0x08
TRANSACTIONAL_BIT = 0x10
CONTROL_BIT = 0x20
DELETE_HORIZON_BIT = 0x40

NO_PRODUCER_ID = -1
NO_PRODUCER_EPOCH = -1
NO_SEQUENCE = -1
NO_LEADER_EPOCH = -1

# Up to this many records are read one by one: loading the compiled kernels would take longer.
FEW = 64
# How many records are skipped, and of how many the deltas are read, in the time that it takes to decode one.
_SKIPS, _DELTAS = 16, 8

# The first fields of a batch or message of any magic: its offset (the base offset of a batch), and the number of
# bytes after these two fields.
START = struct.Struct(">qi")
# The header fields needed to step over a batch: base offset, batch length, magic, last offset delta.
STEP = struct.Struct(">qi4xb6xi")

_BASE_OFFSET = struct.Struct(">q")
_LEADER_EPOCH = struct.Struct(">i")
_CRC = struct.Struct(">I")
_ATTRIBUTES = struct.Struct(">h")
_MAX_SEQUENCE = 2**31 - 1


class Header(NamedTuple):
    """The fields of the 61 bytes before a batch's records (kafka-storage 2.1)."""

    base_offset: int
    batch_length: int
    partition_leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def size_bytes(self) -> int:
        """The size in bytes of the whole batch, header included."""
        return LENGTH_OVERHEAD + self.batch_length

    @property
    def last_offset(self) -> int:
        """The offset of the last record that the batch was built with, even if compaction has removed that record."""
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        """The first offset after the batch: `last_offset` + 1, even if compaction has removed the last record."""
        return self.base_offset + self.last_offset_delta + 1

    @property
    def has_holes(self) -> bool:
        """Whether the number of records differs from the number of offsets. Compaction removes records, not offsets.

        Always False for magic 0 and 1.
        """
        return self.magic == MAGIC and self.record_count != self.last_offset_delta + 1

    @property
    def is_whole(self) -> bool:
        """Whether the header says that the batch has at least one record, and a record at each of its offsets."""
        return 0 < self.record_count == self.last_offset_delta + 1

    @property
    def codec(self) -> Codec:
        """The codec of the records. Raises `Corrupt` for a codec that does not exist."""
        try:
            return Codec(self.attributes & CODEC_MASK)
        except ValueError:
            raise Corrupt(
                f"batch {self.base_offset}: unknown codec {self.attributes & 7}"
            ) from None

    @property
    def timestamp_type(self) -> TimestampType:
        """The meaning of the records' timestamps: set by the producer, set by the log, or none (magic 0)."""
        if self.magic == 0:
            return TimestampType.NO_TIMESTAMP_TYPE
        return TimestampType(bool(self.attributes & LOG_APPEND_TIME_BIT))

    @property
    def is_transactional(self) -> bool:
        """Whether the batch belongs to a transaction."""
        return bool(self.attributes & TRANSACTIONAL_BIT)

    @property
    def is_control(self) -> bool:
        """Whether the batch holds control records, which consumers never receive."""
        return bool(self.attributes & CONTROL_BIT)

    @property
    def delete_horizon_ms(self) -> int | None:
        """The time, in ms since the epoch, from which the batch's tombstones or transaction marker may be removed.

        None if the batch has no delete horizon.
        """
        return self.base_timestamp if self.attributes & DELETE_HORIZON_BIT else None

    @property
    def last_sequence(self) -> int:
        """The producer's sequence number of the last record; -1 if the batch has no sequence numbers."""
        if self.base_sequence == NO_SEQUENCE:
            return NO_SEQUENCE
        return increment_sequence(self.base_sequence, self.last_offset_delta)


def increment_sequence(sequence: int, by: int) -> int:
    """Return a producer's sequence number advanced by `by`. 2^31 - 1 is followed by 0 (kafka-storage 2.1)."""
    if sequence > _MAX_SEQUENCE - by:
        return by - (_MAX_SEQUENCE - sequence) - 1
    return sequence + by


def decrement_sequence(sequence: int, by: int) -> int:
    """Return a producer's sequence number moved back by `by`. 0 is preceded by 2^31 - 1 (kafka-storage 2.1)."""
    if sequence < by:
        return _MAX_SEQUENCE - (by - sequence) + 1
    return sequence - by


def parse_header(data: bytes | memoryview | bytearray, position: int = 0) -> Header:
    """Return the header at `position`. Raises `struct.error` for fewer than 61 bytes; nothing else is checked."""
    return Header._make(HEADER.unpack_from(data, position))


@dataclass(frozen=True)
class Batch:
    """One batch as it lies in a log: its parsed header, and all of its bytes, header included.

    `parse` checks only the length in the header. `check` verifies the magic and the CRC.
    """

    header: Header
    data: memoryview

    @classmethod
    def parse(cls, data: bytes | bytearray | memoryview, position: int = 0) -> Batch:
        """Return the batch at `position` of a buffer.

        Raises `Corrupt` if the buffer does not hold the whole batch, or if the batch's length is too small for a
        header.
        """
        if len(data) - position < HEADER_SIZE:
            raise Corrupt(
                f"{len(data) - position} bytes are too few for a batch header of {HEADER_SIZE} bytes"
            )
        header = parse_header(data, position)
        size = header.size_bytes
        if size < HEADER_SIZE or size > len(data) - position:
            raise Corrupt(
                f"a batch size of {size} bytes is too small, or more than the {len(data) - position} bytes left"
            )
        return cls(header, memoryview(data)[position : position + size].toreadonly())

    @property
    def is_valid(self) -> bool:
        """Whether the magic is 2 and the CRC matches."""
        header = self.header
        return header.magic == MAGIC and crc32c(self.data[CRC_START:]) == header.crc

    def check(self) -> None:
        """Raise `Corrupt` unless the magic is 2 and the CRC matches."""
        if not self.is_valid:
            raise Corrupt(
                f"batch {self.header.base_offset}: its magic is not 2, or its CRC does not match its bytes"
            )

    @cached_property
    def payload(self) -> bytes | memoryview:
        """The bytes of the records, uncompressed.

        Raises `Corrupt` if the batch's codec does not exist, if the bytes are not a valid stream of the codec, or if
        they decompress to more than `compression.DEFAULT_LIMIT` bytes. Also raises `Corrupt` if the header's record
        count is negative, above `MOST_RECORDS`, or more than the bytes can hold.
        """
        header = self.header
        payload: bytes | memoryview = self.data[HEADER_SIZE:]
        if header.attributes & CODEC_MASK:
            payload = compression.decompress(header.codec, payload, limit=compression.DEFAULT_LIMIT)
        count = header.record_count
        if count < 0 or count * SMALLEST_RECORD > len(payload):
            raise Corrupt(
                f"batch {header.base_offset}: a record count of {count} is impossible for {len(payload)} bytes"
            )
        if count > MOST_RECORDS:
            raise Corrupt(
                f"batch {header.base_offset}: {count} records exceed the limit of logfs, {MOST_RECORDS} records"
            )
        return payload

    @property
    def base_timestamp(self) -> int:
        """The timestamp that the records' timestamp deltas are relative to, in ms since the epoch."""
        return self.header.base_timestamp

    def records(self) -> Iterator[Record]:
        """Yield the records in offset order, control records included.

        Raises `Corrupt` if the payload is malformed, or does not hold exactly the header's number of records.
        """
        from logfs.format.batches import columns

        if columns.worthwhile(self.header.record_count):
            yield from self.columns().records()
            return
        for record in decode_records(
            self.payload,
            self.header.record_count,
            base_offset=self.header.base_offset,
            base_timestamp=self.header.base_timestamp,
        ):
            yield self._stamped(record)

    def records_between(self, first: int, stop: int, limit: int | None = None) -> list[Record]:
        """Return the records at the offsets [first, stop), in order, control records included; at most `limit`.

        Raises `Corrupt` in the cases of `records`. If only a few records of a large batch are wanted, other records
        are not decoded, and malformed ones among these may go unnoticed.
        """
        from logfs.format.batches import columns

        header = self.header
        first, stop = max(first, header.base_offset), min(stop, header.next_offset)
        is_large = header.magic == MAGIC and header.record_count > FEW
        if is_large and not (columns.is_loaded() or header.has_holes):
            wanted = max(stop - first, 0)
            few = wanted if limit is None else min(wanted, limit)
            if few <= FEW:
                return self._few_records(first, first + few)
        if header.magic == MAGIC and columns.worthwhile(header.record_count):
            found = self.columns()
            found = found.select((found.offsets >= first) & (found.offsets < stop))
            return list(found.select(slice(limit)).records())
        return [record for record in self.records() if first <= record.offset < stop][:limit]

    def _few_records(self, first: int, stop: int) -> list[Record]:
        """Return the records at the offsets [first, stop) of a batch without holes. The others are not decoded."""
        base = self.header.base_offset
        bases = {"base_offset": base, "base_timestamp": self.header.base_timestamp}
        skipped = min(first - base, self.header.record_count)
        position, found = skip_records(self.payload, skipped), []
        for offset in range(first, stop):
            record, position = decode_record(self.payload, position, **bases)
            if record.offset != offset:
                raise Corrupt(f"batch {base}: the offsets of its records are not in order")
            found.append(self._stamped(record))
        return found

    def offsets(self) -> list[int]:
        """Return the offsets of the records, in order. A large batch is decoded as columns, without `Record` objects.

        Raises `Corrupt` if the payload is malformed, or does not hold exactly the header's number of records.
        """
        from logfs.format.batches import columns

        if columns.worthwhile(self.header.record_count):
            offsets: list[int] = self.columns().offsets.tolist()
            return offsets
        return [record.offset for record in self.records()]

    def columns(self) -> Columns:
        """Return the records as columns; all positions in them are positions in `payload`.

        With LogAppendTime the timestamps of all records are the batch's `max_timestamp`. Raises `Corrupt` if the
        payload is malformed, or does not hold exactly the header's number of records.
        """
        import numpy as np

        from logfs.format.batches.columns import decode_columns

        header = self.header
        payload = self.payload
        span = (0, len(payload), header.record_count, header.base_offset, header.base_timestamp)
        spans = np.array([span], np.int64)
        columns = decode_columns(payload, spans, header.timestamp_type)
        if header.timestamp_type is TimestampType.LOG_APPEND_TIME:
            columns.timestamps.fill(header.max_timestamp)
        return columns

    def record_at(self, offset: int) -> Record | None:
        """Return the record at `offset`, without decoding the other records.

        Returns None if compaction has removed the record, and for an offset outside the batch. Raises `Corrupt` in
        the cases of `payload`, if the record is malformed, or if the offsets of the records are not in order. Of an
        earlier record only the length is read, and in a batch with holes also the deltas; if these are
        malformed, `Corrupt` is raised, too.
        """
        header = self.header
        delta = offset - header.base_offset
        if not 0 <= delta <= header.last_offset_delta:
            return None
        position, skipped = 0, delta
        if header.has_holes:
            found = self._find(delta)
            if found is None:
                return None
            position, skipped = found, 0
        record = self._record_after(position, skipped)
        if record.offset != offset:
            raise Corrupt(
                f"batch {header.base_offset}: the offsets of its records are not in order"
            )
        return self._stamped(record)

    def _record_after(self, position: int, skipped: int) -> Record:
        """Skip `skipped` records from the byte `position` of the payload on, and return the next record."""
        from logfs.format.batches import columns

        header, payload = self.header, self.payload
        if columns.is_loaded() or columns.worthwhile(skipped // _SKIPS):
            import numpy as np

            from logfs.format.kernels import batch_kernels

            data = np.frombuffer(payload, np.uint8)
            numbers = np.empty(batch_kernels.FIELDS, np.int64)
            if batch_kernels.find_fields(data, position, len(data), skipped, numbers) >= 0:
                return self._record_of(numbers.tolist())
        # Skip the records in a plain Python loop. This is also done after the compiled loop has failed, because the
        # Python code raises an error that says what is malformed.
        position += skip_records(payload[position:], skipped)
        bases = {"base_offset": header.base_offset, "base_timestamp": header.base_timestamp}
        return decode_record(payload, position, **bases)[0]

    def _record_of(self, numbers: list[int]) -> Record:
        """Return the record whose fields `numbers` describes. Raises `Corrupt` if its headers are malformed.

        `numbers` are the record's timestamp delta and offset delta, and positions and sizes in `payload`: the
        position and the size of the key, those of the value (a size of -1 stands for null), the position of the
        headers, and the end of the record.
        """
        timestamp, offset, key, key_size, value, value_size, headers_start, end = numbers
        payload = self.payload
        headers, after = decode_headers(payload[:end], headers_start)
        if after != end:
            raise Corrupt(f"a record of the batch has {end - after} bytes after its last field")
        return Record(
            None if value_size < 0 else bytes(payload[value : value + value_size]),
            None if key_size < 0 else bytes(payload[key : key + key_size]),
            headers,
            varint.wrap(self.header.base_timestamp + timestamp),
            varint.wrap(self.header.base_offset + offset),
        )

    def _find(self, offset_delta: int) -> int | None:
        """Return the position in the payload of the record with `offset_delta`; None if compaction has removed it."""
        from logfs.format.batches import columns

        header = self.header
        if not columns.worthwhile(header.record_count // _DELTAS):
            return find_record(self.payload, header.record_count, offset_delta)
        import numpy as np

        from logfs.format.kernels import batch_kernels

        data = np.frombuffer(self.payload, np.uint8)
        position = batch_kernels.find_record(data, 0, len(data), header.record_count, offset_delta)
        if position < -1:
            raise Corrupt(f"batch {header.base_offset}: its records are malformed")
        return None if position == -1 else int(position)

    def first_at(self, timestamp: int, offset: int) -> tuple[int, int] | None:
        """Return (offset, timestamp) of the first record at or after `offset` with a timestamp >= `timestamp`.

        Returns None if the batch has no such record. Timestamps are in ms. The header can show that the first record
        is the result: no record is missing, and the base offset and the base timestamp (with LogAppendTime the max
        timestamp) are high enough. Then only this record is decoded, unless its own timestamp is too low. In all
        other cases all records are decoded. Raises `Corrupt` if a decoded record is malformed.
        """
        from logfs.format.batches import columns

        header = self.header
        is_late = header.timestamp_type is TimestampType.LOG_APPEND_TIME
        likely = header.max_timestamp if is_late else header.base_timestamp
        if header.is_whole and likely >= timestamp and header.base_offset >= offset:
            # By the header, the first record should be the result, so decode only this record, and check its
            # timestamp.
            record = self.record_at(header.base_offset)
            at = NO_TIMESTAMP if record is None or record.timestamp is None else record.timestamp
            if at >= timestamp:
                return header.base_offset, at
        if not columns.worthwhile(header.record_count):
            # Decode all records before the search, because `columns` below also decodes all. So both ways raise
            # `Corrupt` for the same batches.
            for record in [*self.records()]:
                at = NO_TIMESTAMP if record.timestamp is None else record.timestamp
                if at >= timestamp and record.offset >= offset:
                    return record.offset, at
            return None
        decoded = self.columns()
        fits = (decoded.timestamps >= timestamp) & (decoded.offsets >= offset)
        row = int(fits.argmax())
        return (int(decoded.offsets[row]), int(decoded.timestamps[row])) if fits[row] else None

    def _stamped(self, record: Record) -> Record:
        if not self.header.attributes & LOG_APPEND_TIME_BIT:
            return record
        return Record(
            record.value,
            record.key,
            record.headers,
            self.header.max_timestamp,
            record.offset,
            TimestampType.LOG_APPEND_TIME,
        )


def seal(
    data: bytearray | memoryview,
    *,
    attributes: int = 0,
    base_offset: int = 0,
    last_offset_delta: int,
    base_timestamp: int,
    max_timestamp: int,
    record_count: int,
    leader_epoch: int = NO_LEADER_EPOCH,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = NO_PRODUCER_EPOCH,
    base_sequence: int = NO_SEQUENCE,
) -> None:
    """Write the header of a new batch, CRC included, into the first 61 bytes of `data`.

    The records must already follow these bytes, compressed with the codec in `attributes`. Timestamps are in ms.
    """
    HEADER.pack_into(
        data,
        0,
        base_offset,
        len(data) - LENGTH_OVERHEAD,
        leader_epoch,
        MAGIC,
        0,
        attributes,
        last_offset_delta,
        base_timestamp,
        max_timestamp,
        producer_id,
        producer_epoch,
        base_sequence,
        record_count,
    )
    reseal(memoryview(data))


def reseal(batch: memoryview) -> None:
    """Compute and write the CRC of a batch whose bytes have changed."""
    _CRC.pack_into(batch, 17, crc32c(batch[CRC_START:]))


def assign_offset(data: bytearray | memoryview, base_offset: int, leader_epoch: int) -> None:
    """Set the base offset and the leader epoch of a sealed batch. The CRC covers neither (kafka-storage 2.1)."""
    _BASE_OFFSET.pack_into(data, 0, base_offset)
    _LEADER_EPOCH.pack_into(data, 12, leader_epoch)


def stamp(batch: memoryview, append_time: int) -> None:
    """Set the timestamp type of a sealed batch to LogAppendTime, and its max timestamp to `append_time` (ms).

    The batch is changed in place, with a new CRC. The timestamp deltas of the records stay: readers take the max
    timestamp for every record (kafka-storage 2.9.2).
    """
    attributes = _ATTRIBUTES.unpack_from(batch, 21)[0]
    _ATTRIBUTES.pack_into(batch, 21, attributes | LOG_APPEND_TIME_BIT)
    _BASE_OFFSET.pack_into(batch, 35, append_time)
    reseal(batch)
