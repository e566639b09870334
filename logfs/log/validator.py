"""What a topic's settings make of a record to append: whether it is taken, and in what kind of batch (Kafka's
LogValidator, kafka-storage 2.9.2)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from logfs.errors import InvalidRecord
from logfs.format.builder import BatchFormat
from logfs.format.compression import Codec
from logfs.format.record import NO_TIMESTAMP, TimestampType

if TYPE_CHECKING:
    from logfs.config import LogConfig
    from logfs.format.record import Record


def check_record(record: Record, config: LogConfig, now_ms: int) -> InvalidRecord | None:
    """Why a record is refused, None if it is not: no key where one is needed, a timestamp out of bounds."""
    if config.is_compacted and record.key is None:
        return InvalidRecord(
            "a compacted topic needs a key in every record; append envelopes with a key (append.jsonl)"
        )
    timestamp = record.timestamp
    if timestamp is None or timestamp == NO_TIMESTAMP:
        return None
    if timestamp < 0:
        return InvalidRecord(f"timestamp {timestamp} is negative; give ms since 1970, or none")
    if config.message_timestamp_type == TimestampType.LOG_APPEND_TIME.label:
        return None
    if now_ms - timestamp > config.message_timestamp_before_max_ms:
        return InvalidRecord(
            f"timestamp {timestamp} is further in the past than "
            f"message.timestamp.before.max.ms={config.message_timestamp_before_max_ms} allows"
        )
    if timestamp - now_ms > config.message_timestamp_after_max_ms:
        return InvalidRecord(
            f"timestamp {timestamp} is further in the future than "
            f"message.timestamp.after.max.ms={config.message_timestamp_after_max_ms} allows"
        )
    return None


def batch_format(config: LogConfig) -> BatchFormat:
    """How the topic wants its batches; `producer` as compression means none, for lines come uncompressed."""
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
