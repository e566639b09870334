"""Builds sealed batches from lines and records (kafka-storage 2.3). Their base offset is 0 until the log assigns one.

`build_lines` and `build_records` stop at the first record that is too large. They return the error together with the
batches of all earlier records, so that the caller can append those batches.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from logfs.errors import RecordTooLarge
from logfs.format.base.crc import crc32c
from logfs.format.base.varint import encode as encode_varint
from logfs.format.batches import compression
from logfs.format.batches.batch import (
    CONTROL_BIT,
    CRC_START,
    HEADER_SIZE,
    LENGTH_OVERHEAD,
    LOG_APPEND_TIME_BIT,
    MAGIC,
    NO_LEADER_EPOCH,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    TRANSACTIONAL_BIT,
    Batch,
    seal,
)
from logfs.format.batches.compression import Codec
from logfs.format.batches.record import Record, TimestampType, encode_record
from logfs.format.text import envelope, rendering
from logfs.format.text.rendering import NO_TEXT, TextSize

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray
    from typing_extensions import Buffer

    from logfs.errors import LogfsError
    from logfs.format.messages.control import EndTransactionMarker

# The largest number of bytes that a record has in addition to its line: three varints of up to five bytes, one of up
# to ten (the timestamp delta), and three single bytes.
_RECORD_OVERHEAD = 28
# For input of at most this many lines, and at most this many bytes, a Python loop is faster than a call of the
# compiled loop.
_FEW_LINES = 4
_FEW_LINES_BYTES = 4096
# Compression lengthens incompressible records by at most 1/64. A batch of several records leaves room for this
# growth.
_EXPANSION = 64
# The largest number of bytes that the frame of a codec adds, even to a very short stream.
_FRAME_BYTES = 64

# The size in bytes of an envelope with CreateTime, a null key and no headers. Its prefix, offset, timestamp and value
# are not counted.
_LINE_ENVELOPE = len(envelope.encode(Record(b"", timestamp=0, offset=0), b"")) - len('0""0')


class BatchFormat(NamedTuple):
    """The settings of a topic that determine the form of its batches.

    `level` is the compression level, None for the codec's default. `limit_bytes` is the largest size of a batch with
    its header: the lower of `max.message.bytes` and `segment.bytes`.
    """

    codec: Codec = Codec.NONE
    level: int | None = None
    limit_bytes: int = 1048588
    timestamp_type: TimestampType = TimestampType.CREATE_TIME

    @property
    def attributes(self) -> int:
        """The header attributes of a batch in this format: the bits for its codec and its timestamp type."""
        late = self.timestamp_type is TimestampType.LOG_APPEND_TIME
        return self.codec | (LOG_APPEND_TIME_BIT if late else 0)

    @property
    def records_limit(self) -> int:
        """The largest size in bytes of the uncompressed records of a batch that has more than one record.

        With a codec this is less than the room in the batch, because compression can make the records larger. The
        limit does not apply to a record that is alone in its batch.
        """
        room = self.limit_bytes - HEADER_SIZE
        if self.codec is Codec.NONE:
            return room
        return max(room - room // _EXPANSION - _FRAME_BYTES, 0)

    @property
    def line_limit(self) -> int:
        """The length in bytes, without the newline, of the longest line that fits in a batch.

        With a codec the result is `limit_bytes`. This is only an estimate, because whether a line fits depends on its
        size after compression.
        """
        if self.codec is not Codec.NONE:
            return self.limit_bytes
        longest = max(self.records_limit - _RECORD_OVERHEAD, 0)
        while HEADER_SIZE + len(_line_prefix(longest + 1)) + longest + 2 <= self.limit_bytes:
            longest += 1
        return longest


@dataclass(slots=True)
class NewBatch:
    """A sealed batch (complete, with header and CRC) that has no base offset yet.

    `max_timestamp` is in ms. `text` is the size of the records as text: as lines, and as JSON envelopes. The digits
    of the offsets in the envelopes are not counted; the log adds them to the size when it assigns the offsets.
    """

    data: bytearray | memoryview
    record_count: int
    max_timestamp: int
    text: TextSize


@dataclass(slots=True)
class Built:
    """The result of building batches: the batches, how much of the input they hold, and the error that stopped it.

    `of_lines` is true if the input was lines, and false if it was records. `consumed` is the number of bytes of the
    lines in the batches, newlines included, or the number of records. `refused` is the error for the first line or
    record that is in no batch; it is None if the batches hold the whole input.
    """

    batches: list[NewBatch]
    consumed: int
    refused: LogfsError | None = None
    of_lines: bool = False

    def consumed_by(self, batch: NewBatch) -> int:
        """Return the part of `consumed` that is in `batch`: bytes if the input was lines, otherwise records."""
        return batch.text.lines if self.of_lines else batch.record_count


def build_lines(data: bytes, form: BatchFormat, now_ms: int) -> Built:
    """Build batches in which each line of `data` is the value of a record. `data` must end with a newline.

    The records have no key, and the timestamp `now_ms`. The result's `consumed` counts bytes. If a line is too large
    even alone in a batch of `form.limit_bytes`, building stops there, and the result's `refused` is a
    `RecordTooLarge`.
    """
    lines = data.count(b"\n") if len(data) <= _FEW_LINES_BYTES else _FEW_LINES + 1
    if lines == 1 and form.codec is Codec.NONE:
        return _build_line(data, form, now_ms)
    if lines <= _FEW_LINES:
        built = build_records([Record(line) for line in data[:-1].split(b"\n")], form, now_ms)
        done = sum(batch.text.lines for batch in built.batches)
        return Built(built.batches, done, built.refused, of_lines=True)
    return _build_many_lines(data, form, now_ms)


def _build_line(data: bytes, form: BatchFormat, now_ms: int) -> Built:
    """Build the batch of a single line, the most frequent write, in as few Python steps as possible.

    `data` is the line with its newline. `form` must have no codec. If the batch would exceed `form.limit_bytes`, the
    result has no batch, and its `refused` is a `RecordTooLarge`.
    """
    value = data[:-1]
    length = len(value)
    tail, envelope_bytes = _line_constants(form.timestamp_type, now_ms)
    covered = b"".join((tail, _line_prefix(length), value, b"\0"))
    size = CRC_START + len(covered)
    if size > form.limit_bytes:
        return Built([], 0, too_large(size, form), of_lines=True)
    batch = bytearray(
        _UNCOVERED.pack(0, size - LENGTH_OVERHEAD, NO_LEADER_EPOCH, MAGIC, crc32c(covered))
    )
    batch += covered
    text = TextSize(1, length + 1, envelope_bytes + envelope.text_size(value))
    return Built([NewBatch(batch, 1, now_ms, text)], len(data), of_lines=True)


# The header fields up to and including the CRC. The CRC does not cover them.
_UNCOVERED = struct.Struct(">qiibI")
# The header fields after the CRC. The CRC covers them.
_COVERED = struct.Struct(">hiqqqhii")


@lru_cache(maxsize=16)
def _line_constants(timestamp_type: TimestampType, now_ms: int) -> tuple[bytes, int]:
    """Return the parts of a batch of a single line that depend only on its timestamp and its timestamp type.

    The first item is the part of the batch header that the CRC covers. The second item is the size in bytes of the
    record's JSON envelope, without the topic, the partition, the offset and the value.
    """
    form = BatchFormat(timestamp_type=timestamp_type)
    none = (NO_PRODUCER_ID, NO_PRODUCER_EPOCH, NO_SEQUENCE)
    tail = _COVERED.pack(form.attributes, 0, now_ms, now_ms, *none, 1)
    return tail, _LINE_ENVELOPE + len(str(now_ms)) + _label_growth(form)


@lru_cache(maxsize=4096)
def _line_prefix(length: int) -> bytes:
    """Return the bytes before the value in a record, for a line of `length` bytes that is alone in its batch."""
    fields = b"\0\0\0\1" + encode_varint(length)
    return encode_varint(len(fields) + length + 1) + fields


def _build_many_lines(data: bytes, form: BatchFormat, now_ms: int) -> Built:
    import numpy as np

    from logfs.format.kernels import batch_kernels

    array = np.frombuffer(data, np.uint8)
    ends = line_ends(array)
    # The kernel writes without bounds checks, so `out` must have room for all records and headers. The number of
    # batches has two upper bounds, because two successive batches together exceed `form.records_limit`, and because
    # each batch has at least one record.
    records_bytes = len(data) + len(ends) * _RECORD_OVERHEAD
    batches_at_most = min(2 + 2 * records_bytes // max(form.records_limit, 1), len(ends))
    out = np.empty(records_bytes + batches_at_most * HEADER_SIZE, np.uint8)
    per_record = _LINE_ENVELOPE + len(str(now_ms)) + _label_growth(form)
    built = Built([], 0, of_lines=True)
    first = start = position = 0
    while first < len(ends):
        records_start = position + HEADER_SIZE
        count, end, json_bytes = batch_kernels.encode_lines(
            array, ends, first, start, records_start + form.records_limit, out, records_start
        )
        if count == 0:
            # No record fitted. A record that is alone in its batch may use the room that is reserved for growth in
            # compression.
            single = build_records([Record(data[start : ends[first]])], form, now_ms)
            if single.refused:
                built.refused = single.refused
                break
            built.batches += single.batches
            count = 1
        else:
            stop = int(ends[first + count - 1]) + 1
            text = TextSize(count, stop - start, json_bytes + count * per_record)
            built.batches.append(sealed(out[position:end].data, form, count, now_ms, now_ms, text))
            position = end
        first += count
        start = int(ends[first - 1]) + 1
        built.consumed = start
    return built


def line_ends(data: NDArray[np.uint8]) -> NDArray[np.int64]:
    """Return the positions of all newlines in `data`."""
    import numpy as np

    from logfs.format.kernels import batch_kernels

    ends = np.empty(len(data), np.int64)
    words = data[: len(data) // 8 * 8].view(np.uint64)
    return ends[: batch_kernels.find_newlines(words, data, ends)]


def build_records(records: Sequence[Record], form: BatchFormat, now_ms: int) -> Built:
    """Build batches with as many records in each as `form.records_limit` allows.

    A record without a timestamp (None) gets `now_ms`. The result's `consumed` counts records. If a record is too
    large even alone in a batch of `form.limit_bytes`, building stops there, and the result's `refused` is a
    `RecordTooLarge`.
    """
    built = Built([], 0)
    buffer = bytearray(HEADER_SIZE)
    pending: list[Record] = []
    base_timestamp = 0
    for record in records:
        timestamp = now_ms if record.timestamp is None else record.timestamp
        for _ in range(2):
            if not pending:
                base_timestamp = timestamp
            encoded = encode_record(
                record, offset_delta=len(pending), timestamp_delta=timestamp - base_timestamp
            )
            if not pending or len(buffer) - HEADER_SIZE + len(encoded) <= form.records_limit:
                break
            _flush(built, buffer, pending, form, now_ms)
            buffer, pending = bytearray(HEADER_SIZE), []
            if built.refused:
                return built
        buffer += encoded
        pending.append(record)
    if pending:
        _flush(built, buffer, pending, form, now_ms)
    return built


def _flush(
    built: Built, buffer: bytearray, records: list[Record], form: BatchFormat, now_ms: int
) -> None:
    timestamps = [now_ms if record.timestamp is None else record.timestamp for record in records]
    late = form.timestamp_type is TimestampType.LOG_APPEND_TIME
    maximum = now_ms if late else max(timestamps)
    lines = envelopes = 0
    for record, timestamp in zip(records, timestamps, strict=True):
        lines += len(record.value or b"") + 1
        envelopes += _envelope_size(record, maximum if late else timestamp)
    text = TextSize(len(records), lines, envelopes + len(records) * _label_growth(form))
    batch = sealed(buffer, form, len(records), timestamps[0], maximum, text)
    if len(batch.data) > form.limit_bytes:
        built.refused = too_large(len(batch.data), form)
        return
    built.batches.append(batch)
    built.consumed += len(records)


def _envelope_size(record: Record, timestamp: int) -> int:
    if not record.headers:
        size = envelope.text_size(record.key) + envelope.text_size(record.value) - len("null")
        return _LINE_ENVELOPE + len(str(timestamp)) + size
    stamped = Record(record.value, record.key, record.headers, timestamp, 0)
    return len(envelope.encode(stamped, b"")) - len("0")


def sealed(
    data: bytearray | memoryview,
    form: BatchFormat,
    count: int,
    base_timestamp: int,
    max_timestamp: int,
    text: TextSize,
) -> NewBatch:
    """Return a sealed batch of `count` records. `data` has `HEADER_SIZE` free bytes, then the uncompressed records.

    If `form` has a codec, the records are compressed into a new buffer. Otherwise the header is written into the free
    bytes, and `data` becomes the batch. Timestamps are in ms. `text` is the size of the records as text.
    """
    if form.codec is not Codec.NONE:
        packed = compression.compress(form.codec, data[HEADER_SIZE:], form.level)
        data = bytearray(HEADER_SIZE) + packed
    seal(
        data,
        attributes=form.attributes,
        last_offset_delta=count - 1,
        base_timestamp=base_timestamp,
        max_timestamp=max_timestamp,
        record_count=count,
    )
    return NewBatch(data, count, max_timestamp, text)


def of_transaction(
    data: bytearray | memoryview, producer_id: int, producer_epoch: int, sequence: int
) -> bytearray:
    """Return a copy of the sealed batch `data` as a transactional batch of a producer, with a new header and CRC.

    `sequence` is the sequence number of the first record. The base offset of the copy is 0.
    """
    header = Batch.parse(data).header
    copy = bytearray(data)
    seal(
        copy,
        attributes=header.attributes | TRANSACTIONAL_BIT,
        last_offset_delta=header.last_offset_delta,
        base_timestamp=header.base_timestamp,
        max_timestamp=header.max_timestamp,
        record_count=header.record_count,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=sequence,
    )
    return copy


def rebuild(batch: Batch, form: BatchFormat, now_ms: int) -> NewBatch:
    """Return a producer's batch, converted to `form`, the format of a topic's batches (kafka-storage 2.9.2).

    If the offsets of the records have gaps, the records are encoded again, without gaps. If the codec changes, the
    base timestamp must become that of the first record; if it differs, the records are encoded again, too. Otherwise
    their bytes stay as they are, and a batch that already has the topic's codec keeps its compressed stream. The
    producer's id, epoch and sequence are always kept. With LogAppendTime the records get the timestamp `now_ms`. The
    batch must have at least one record. Raises `Corrupt` for records that are malformed.
    """
    header = batch.header
    decoded = batch.columns()
    count = len(decoded)
    base_timestamp = int(decoded.timestamps[0])
    has_gaps = bool((decoded.offsets - header.base_offset != range(count)).any())
    if has_gaps or (header.codec is not form.codec and base_timestamp != header.base_timestamp):
        records = list(decoded.records())
        payload: Buffer = b"".join(
            encode_record(record, offset_delta=number, timestamp_delta=stamp - base_timestamp)
            for number, (record, stamp) in enumerate(
                zip(records, decoded.timestamps.tolist(), strict=True)
            )
        )
    else:
        payload, base_timestamp = batch.payload, header.base_timestamp
    if payload is batch.payload and header.codec is form.codec:
        packed: Buffer = batch.data[HEADER_SIZE:]
    elif form.codec is Codec.NONE:
        packed = payload
    else:
        packed = compression.compress(form.codec, payload, form.level)
    data = bytearray(HEADER_SIZE) + packed
    late = form.timestamp_type is TimestampType.LOG_APPEND_TIME
    maximum = now_ms if late else int(decoded.timestamps.max())
    seal(
        data,
        attributes=form.attributes | (header.attributes & TRANSACTIONAL_BIT),
        last_offset_delta=count - 1,
        base_timestamp=base_timestamp,
        max_timestamp=maximum,
        record_count=count,
        producer_id=header.producer_id,
        producer_epoch=header.producer_epoch,
        base_sequence=header.base_sequence,
    )
    size = rendering.measure(Batch.parse(data))
    return NewBatch(
        data, count, maximum, size._replace(envelopes=size.envelopes - offset_digits(0, count))
    )


def build_marker(
    marker: EndTransactionMarker,
    producer_id: int,
    producer_epoch: int,
    timestamp_type: TimestampType,
    now_ms: int,
) -> NewBatch:
    """Return the control batch that ends a producer's transaction (kafka-storage 2.5). It is never compressed."""
    record = Record(marker.value(), marker.key(), timestamp=now_ms)
    data = bytearray(HEADER_SIZE) + encode_record(record, offset_delta=0, timestamp_delta=0)
    seal(
        data,
        attributes=BatchFormat(timestamp_type=timestamp_type).attributes
        | TRANSACTIONAL_BIT
        | CONTROL_BIT,
        last_offset_delta=0,
        base_timestamp=now_ms,
        max_timestamp=now_ms,
        record_count=1,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
    )
    return NewBatch(data, 1, now_ms, NO_TEXT)


def _label_growth(form: BatchFormat) -> int:
    """Return by how many bytes an envelope is longer with the timestamp type of `form` than with CreateTime.

    The result is 3 for LogAppendTime, whose name is longer, and 0 for CreateTime.
    """
    return len(form.timestamp_type.label) - len(TimestampType.CREATE_TIME.label)


def too_large(size: int, form: BatchFormat) -> RecordTooLarge:
    """Return the error for a record whose batch, with `size` bytes, is larger than `form` allows."""
    return RecordTooLarge(
        f"a batch of this record alone has {size} bytes, but max.message.bytes or segment.bytes "
        f"allows {form.limit_bytes}: raise the setting, or send less"
    )


def offset_digits(first: int, count: int) -> int:
    """Return the sum of the decimal lengths of the offsets first, first + 1, … first + count - 1."""
    if count == 1:
        return len(str(first))
    digits = 0
    end = first + count
    while first < end:
        length = len(str(first))
        stop = min(end, 10**length)
        digits += (stop - first) * length
        first = stop
    return digits
