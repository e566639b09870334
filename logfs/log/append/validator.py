"""Checks appends against the topic's settings, and determines the format of the topic's batches.

This is Kafka's LogValidator (kafka-storage 2.9).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from logfs.errors import InvalidRecord, InvalidTimestamp, RecordTooLarge, Unsupported
from logfs.format.base.names import INT64_MAX
from logfs.format.batches.batch import MAGIC
from logfs.format.batches.compression import Codec
from logfs.format.batches.record import NO_TIMESTAMP, TimestampType
from logfs.format.encoding.batch_builder import BatchFormat, rebuild

if TYPE_CHECKING:
    from logfs.config import LogConfig
    from logfs.format.batches.batch import Batch, Header
    from logfs.format.batches.columns import Columns
    from logfs.format.batches.record import Record
    from logfs.format.encoding.batch_builder import NewBatch


def check_record(record: Record, config: LogConfig, now_ms: int) -> InvalidRecord | None:
    """Return why the topic refuses a record, or None if it accepts the record.

    A compacted topic refuses a record without a key. Every topic refuses a negative timestamp other than -1 (none)
    and, unless the log sets the timestamps (LogAppendTime), a timestamp too far from `now_ms`.
    """
    if config.is_compacted and record.key is None:
        return InvalidRecord(
            "a compacted topic needs a key in every record; append envelopes with a key (append.jsonl)"
        )
    timestamp = record.timestamp
    if timestamp is None or timestamp == NO_TIMESTAMP:
        return None
    if not 0 <= timestamp <= INT64_MAX:
        return InvalidTimestamp(
            f"timestamp {timestamp} is negative, or too large; give ms since 1970"
        )
    if config.message_timestamp_type == TimestampType.LOG_APPEND_TIME.label:
        return None
    if now_ms - timestamp > config.message_timestamp_before_max_ms:
        return InvalidTimestamp(
            f"timestamp {timestamp} is further in the past than "
            f"message.timestamp.before.max.ms={config.message_timestamp_before_max_ms} allows"
        )
    if timestamp - now_ms > config.message_timestamp_after_max_ms:
        return InvalidTimestamp(
            f"timestamp {timestamp} is further in the future than "
            f"message.timestamp.after.max.ms={config.message_timestamp_after_max_ms} allows"
        )
    return None


def batch_format(config: LogConfig) -> BatchFormat:
    """Return the format of the batches that logfs builds for the topic.

    With `compression.type=producer` the batches are not compressed, because records arrive uncompressed.
    """
    codec = Codec[config.compression_type.upper()] if config.compresses else Codec.NONE
    levels = {
        Codec.GZIP: config.compression_gzip_level,
        Codec.LZ4: config.compression_lz4_level,
        Codec.ZSTD: config.compression_zstd_level,
    }
    late = config.message_timestamp_type == TimestampType.LOG_APPEND_TIME.label
    return BatchFormat(
        codec,
        levels.get(codec),
        min(config.max_message_bytes, config.segment_bytes),
        TimestampType.LOG_APPEND_TIME if late else TimestampType.CREATE_TIME,
    )


def check_batch(batch: Batch, config: LogConfig, now_ms: int, *, trusted: bool) -> NewBatch:
    """Check a producer's batch as the leader of a Kafka partition does, and return it in the format of the topic.

    `trusted` means that the batch comes from a group coordinator, and may have no sequence numbers. Raises `Corrupt`
    for bytes that are not a valid batch, `Unsupported` for an old format, and `RecordTooLarge` or `InvalidRecord` for
    a batch that the topic refuses.
    """
    header = batch.header
    if header.magic != MAGIC:
        raise Unsupported(
            f"a batch of magic {header.magic}: this log accepts magic {MAGIC}; send with a newer client"
        )
    _check_size(len(batch.data), config)
    batch.check()
    _check_header(header, trusted=trusted)
    _check_columns(batch.columns(), config, now_ms)
    form = batch_format(config)
    if config.compression_type == "producer":
        form = form._replace(codec=header.codec)
    built = rebuild(batch, form, now_ms)
    _check_size(len(built.data), config)
    return built


def check_staged(batch: Batch, config: LogConfig, now_ms: int) -> None:
    """Raise an error for a staged batch that does not fit the topic's present settings.

    The checks of the header and of the records are those for a producer's batch, but the base offset may have any
    value. In addition, the batch must have the codec of the topic (any codec with `compression.type=producer`),
    because a commit does not compress a batch again, and it must have no producer id. Raises `RecordTooLarge`,
    `InvalidRecord`, and `Corrupt` for malformed records.
    """
    header = batch.header
    _check_size(len(batch.data), config)
    _check_header(header._replace(base_offset=0), trusted=False)
    if header.producer_id >= 0:
        raise InvalidRecord("the batch has a producer id, which a staged batch must not have")
    codec = batch_format(config).codec
    if config.compression_type != "producer" and header.codec is not codec:
        raise InvalidRecord(
            f"the batch has codec {header.codec.name.lower()}, but compression.type is "
            f"{config.compression_type}: the setting was changed after staging; stage the batch again"
        )
    _check_columns(batch.columns(), config, now_ms)


def _check_size(size: int, config: LogConfig) -> None:
    limit = min(config.max_message_bytes, config.segment_bytes)
    if size > limit:
        raise RecordTooLarge(
            f"a batch of {size} bytes, but max.message.bytes or segment.bytes allows {limit}: raise the "
            "setting, or send less at once"
        )


def _check_header(header: Header, *, trusted: bool) -> None:
    """Raise `InvalidRecord` for a batch header that a producer may not send.

    With `trusted`, the batch is from a group coordinator, and may have a producer id without a sequence.
    """
    if header.is_control:
        raise InvalidRecord(
            "the batch is a control batch: end a transaction with 'end_transaction'"
        )
    if header.base_offset != 0:
        raise InvalidRecord(f"base offset {header.base_offset} is not 0: the log assigns offsets")
    if not header.is_whole:
        raise InvalidRecord(
            f"record count {header.record_count} differs from offset count {header.last_offset_delta + 1}"
        )
    if header.timestamp_type is TimestampType.LOG_APPEND_TIME:
        raise InvalidRecord("the batch has timestamp type LogAppendTime, which only the log sets")
    if header.delete_horizon_ms is not None:
        raise InvalidRecord("the batch has a delete horizon, which only the log cleaner sets")
    if header.is_transactional and header.producer_id < 0:
        raise InvalidRecord("the batch is transactional, but has no producer id")
    sequenced = header.base_sequence >= 0 or trusted
    if header.producer_id >= 0 and not (header.producer_epoch >= 0 and sequenced):
        raise InvalidRecord(
            f"producer {header.producer_id} has epoch {header.producer_epoch} and sequence "
            f"{header.base_sequence} (-1 means none): the batch needs an epoch and, unless a group coordinator sends "
            "it, a sequence"
        )


def _check_columns(decoded: Columns, config: LogConfig, now_ms: int) -> None:
    """Check the records of a batch: raise the error of `check_record` for the first record that it refuses."""
    times = decoded.timestamps
    suspect = (times < NO_TIMESTAMP) | (now_ms - times > config.message_timestamp_before_max_ms)
    suspect |= times - now_ms > config.message_timestamp_after_max_ms
    suspect &= times != NO_TIMESTAMP
    if config.is_compacted:
        suspect |= decoded.key_lengths < 0
    if suspect.any():
        for record in decoded.select(suspect).records():
            refused = check_record(record, config, now_ms)
            if refused is not None:
                raise refused
