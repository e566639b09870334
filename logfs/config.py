"""Computes the effective value of each setting, and has classes with the typed values of all settings.

A topic-level setting takes its value from the first of these that is set (kafka-storage 11.1):

1. the topic's own override
2. the broker-level synonyms of the setting, in their order
3. the default

The canonical text of a value has no unit: a number is in decimal digits, a boolean is `true` or `false`, and the
items of a list are joined by commas.

This module does not access the disk: `logfs.store.settings` stores the overrides.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from logfs.errors import InvalidSetting
from logfs.setting import (
    AFTER_MAX_MS,
    BEFORE_MAX_MS,
    BROKER_SETTINGS,
    DIFFERENCE_MAX_MS,
    HOUR_MS,
    LONG_MAX,
    MIB,
    MINUTE_MS,
    RETENTION_MS,
    TOPIC_SETTINGS,
    Value,
    broker_setting,
    topic_setting,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

# If `local.retention.ms` is set to this value, `retention.ms` applies in its place. The same holds for
# `local.retention.bytes` and `retention.bytes`.
AS_TOTAL = -2
# Milliseconds per unit of the broker-level synonyms that are in minutes or hours.
_UNIT_MS = {
    "log.retention.minutes": MINUTE_MS,
    "log.retention.hours": HOUR_MS,
    "log.roll.hours": HOUR_MS,
    "log.roll.jitter.hours": HOUR_MS,
}


# The functions below compute the value in force of one setting.


def value_in_force(name: str, topic: Mapping[str, str], broker: Mapping[str, str]) -> str:
    """Return the value that a topic-level setting has under the given overrides, as canonical text.

    `topic` and `broker` are the overrides of the two levels: texts by setting name. The docstring of this module has
    the order of precedence. There is one exception: an unlimited `message.timestamp.before.max.ms` or
    `message.timestamp.after.max.ms` gets the value of the deprecated `message.timestamp.difference.max.ms`.
    Raises `InvalidSetting` for an unknown name or an invalid override.
    """
    return topic_setting(name).format(_in_force(name, topic, broker)[0])


def broker_value_in_force(name: str, broker: Mapping[str, str]) -> str:
    """Return the value that a broker-level setting has under the given overrides, as canonical text.

    `broker` has the overrides: texts by setting name. Without an override the value is the default, or "" if there is
    none. Raises `InvalidSetting` for an unknown name or an invalid override.
    """
    setting = broker_setting(name)
    text = broker.get(name, setting.default)
    return "" if text is None else setting.format(setting.parse(text))


def describe_source(name: str, topic: Mapping[str, str], broker: Mapping[str, str]) -> str:
    """Return the source of a topic-level setting's value: `topic NAME`, `broker NAME` or `default`.

    NAME is the setting or synonym that supplies the value. `topic` and `broker` are the overrides of the two levels:
    texts by setting name. Raises `InvalidSetting` for an unknown name or an invalid override.
    """
    return _in_force(name, topic, broker)[1]


def _in_force(name: str, topic: Mapping[str, str], broker: Mapping[str, str]) -> tuple[Value, str]:
    """Return a topic-level setting's value in force, and its source: `topic NAME`, `broker NAME` or `default`.

    Two settings are an exception to the order of precedence in this module's docstring:
    `message.timestamp.before.max.ms` and `message.timestamp.after.max.ms`. If such a setting is unlimited, and the
    deprecated `message.timestamp.difference.max.ms` is not, the value and the source are those of the deprecated
    setting.
    """
    value, source = _first_set(name, topic, broker)
    if name in (BEFORE_MAX_MS, AFTER_MAX_MS) and value == LONG_MAX:
        stand_in, its_source = _first_set(DIFFERENCE_MAX_MS, topic, broker)
        if stand_in != LONG_MAX:
            return stand_in, its_source
    return value, source


def _first_set(name: str, topic: Mapping[str, str], broker: Mapping[str, str]) -> tuple[Value, str]:
    """Return a topic-level setting's value by the order of precedence in this module's docstring, and its source.

    The source is `topic NAME`, `broker NAME` or `default`.
    """
    setting = topic_setting(name)
    if name in topic:
        return setting.parse(topic[name]), f"topic {name}"
    for synonym in setting.synonyms:
        if synonym in broker:
            value: Any = BROKER_SETTINGS[synonym].parse(broker[synonym])
            if synonym in _UNIT_MS:
                value *= _UNIT_MS[synonym]
            # At the broker level, any negative retention means unlimited. At the topic level only -1 does: return -1.
            if name == RETENTION_MS:
                value = max(value, -1)
            return value, f"broker {synonym}"
    assert setting.default is not None, name
    return setting.parse(setting.default), "default"


def _check_together(values: Mapping[str, Any]) -> None:
    """Raise `InvalidSetting` if values that are valid by themselves contradict each other (kafka-storage 11.1).

    `values` has the parsed values of all topic-level settings, by setting name.
    """
    shortest, longest = values["min.compaction.lag.ms"], values["max.compaction.lag.ms"]
    if shortest > longest:
        raise InvalidSetting(
            f"min.compaction.lag.ms: {shortest} is more than max.compaction.lag.ms, {longest};"
            " lower min.compaction.lag.ms, or raise max.compaction.lag.ms"
        )
    if not values["remote.storage.enable"]:
        return
    if "compact" in values["cleanup.policy"]:
        raise InvalidSetting(
            "cleanup.policy: a tiered topic cannot be compacted;"
            " remove compact, or set remote.storage.enable to false"
        )
    for name in ("retention.bytes", RETENTION_MS):
        total, local = values[name], values[f"local.{name}"]
        if values["remote.log.copy.disable"] and local not in (AS_TOTAL, total):
            raise InvalidSetting(
                f"remote.log.copy.disable: true requires that local.{name} equals {name}={total},"
                f" but it is {local}; set local.{name} to {AS_TOTAL} first"
            )
        if total >= 0 and (local == -1 or local > total):
            raise InvalidSetting(
                f"local.{name}: {local} is more than {name}, {total} (-1 is unlimited);"
                f" give -2 to use {name}, or a number from 0 to {total}"
            )


# The classes below have the typed values of all settings of one level.


def _default(name: str) -> Any:
    """Return the default of the setting `name` as the value of an attribute of `LogConfig` or `BrokerConfig`.

    If the setting is a list, the value is a frozenset.
    """
    setting = TOPIC_SETTINGS.get(name) or BROKER_SETTINGS[name]
    assert setting.default is not None, name
    return _attribute(setting.parse(setting.default))


def _attribute(value: Value) -> Value | frozenset[str]:
    return frozenset(value) if isinstance(value, tuple) else value


def _attributes(cls: Any, values: Mapping[str, Value]) -> dict[str, Any]:
    """Return arguments for the constructor of `cls`: the values of the settings for which `cls` has an attribute.

    `cls` is `LogConfig` or `BrokerConfig`. `values` has parsed values by setting name.
    """
    names = {field.name.replace("_", "."): field.name for field in fields(cls)}
    return {names[name]: _attribute(value) for name, value in values.items() if name in names}


def _check_texts(broker: Mapping[str, str]) -> dict[str, Value]:
    """Return the parsed values of the broker's overrides, by setting name. Raises `InvalidSetting` if any is invalid.

    Overrides that `BrokerConfig` has no attribute for, such as `log.retention.hours`, are checked, too.
    """
    return {name: broker_setting(name).parse(text) for name, text in broker.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class LogConfig:
    """The typed values of the topic-level settings that control how a partition is stored.

    Settings for replication, such as `min.insync.replicas`, and deprecated settings are left out. Each attribute has
    its setting's name, with `_` for `.`; sizes are in bytes, times in milliseconds. The values of an instance made by
    `resolve` are valid and consistent; the constructor, which is for tests, checks nothing.
    """

    cleanup_policy: frozenset[str] = _default("cleanup.policy")
    compression_type: str = _default("compression.type")
    compression_gzip_level: int = _default("compression.gzip.level")
    compression_lz4_level: int = _default("compression.lz4.level")
    compression_zstd_level: int = _default("compression.zstd.level")
    delete_retention_ms: int = _default("delete.retention.ms")
    file_delete_delay_ms: int = _default("file.delete.delay.ms")
    flush_messages: int = _default("flush.messages")
    flush_ms: int = _default("flush.ms")
    index_interval_bytes: int = _default("index.interval.bytes")
    local_retention_bytes: int = _default("local.retention.bytes")
    local_retention_ms: int = _default("local.retention.ms")
    logfs_mirror_source: str = _default("logfs.mirror.source")
    logfs_retention_groups: frozenset[str] = _default("logfs.retention.groups")
    logfs_roll_quiet: str = _default("logfs.roll.quiet")
    max_compaction_lag_ms: int = _default("max.compaction.lag.ms")
    max_message_bytes: int = _default("max.message.bytes")
    message_timestamp_after_max_ms: int = _default(AFTER_MAX_MS)
    message_timestamp_before_max_ms: int = _default(BEFORE_MAX_MS)
    message_timestamp_type: str = _default("message.timestamp.type")
    min_cleanable_dirty_ratio: float = _default("min.cleanable.dirty.ratio")
    min_compaction_lag_ms: int = _default("min.compaction.lag.ms")
    preallocate: bool = _default("preallocate")
    remote_log_copy_disable: bool = _default("remote.log.copy.disable")
    remote_log_delete_on_disable: bool = _default("remote.log.delete.on.disable")
    remote_storage_enable: bool = _default("remote.storage.enable")
    retention_bytes: int = _default("retention.bytes")
    retention_ms: int = _default(RETENTION_MS)
    segment_bytes: int = _default("segment.bytes")
    segment_index_bytes: int = _default("segment.index.bytes")
    segment_jitter_ms: int = _default("segment.jitter.ms")
    segment_ms: int = _default("segment.ms")

    @classmethod
    def resolve(cls, topic: Mapping[str, str], broker: Mapping[str, str]) -> LogConfig:
        """Return the settings in force under the overrides of a topic and of the broker.

        `topic` and `broker` have the overrides: texts by setting name. Raises `InvalidSetting` for an unknown name,
        an invalid text, or valid values that contradict each other.
        """
        for name in topic:
            topic_setting(name)
        _check_texts(broker)
        values = {name: _in_force(name, topic, broker)[0] for name in TOPIC_SETTINGS}
        _check_together(values)
        return cls(**_attributes(cls, values))

    def check_change(self, before: LogConfig) -> None:
        """Raise `InvalidSetting` if the change from `before` to `self` disables tiering but keeps remote segments.

        The remote segments are kept if `remote.log.delete.on.disable` is false. KIP-950 forbids such a change,
        because nothing could read the segments afterwards.
        """
        disabled = before.remote_storage_enable and not self.remote_storage_enable
        if disabled and not self.remote_log_delete_on_disable:
            raise InvalidSetting(
                "remote.storage.enable: false would make the remote segments unreadable; to keep them without "
                "copying more, set remote.log.copy.disable to true instead; to delete them, first set "
                "remote.log.delete.on.disable to true"
            )

    @property
    def is_compacted(self) -> bool:
        """Whether the log is compacted: of the records with the same key, only the last one is kept."""
        return "compact" in self.cleanup_policy

    @property
    def compresses(self) -> bool:
        """Whether `compression.type` names a codec to compress with: it is neither `producer` nor `uncompressed`."""
        return self.compression_type not in ("producer", "uncompressed")

    @property
    def copies_segments(self) -> bool:
        """Whether sealed segments are copied to remote storage."""
        return self.remote_storage_enable and not self.remote_log_copy_disable

    @property
    def local_limits(self) -> tuple[int, int]:
        """The local retention of a tiered log: (size in bytes, age in ms). A negative number means unlimited."""
        size, age = self.local_retention_bytes, self.local_retention_ms
        return (
            self.retention_bytes if size == AS_TOTAL else size,
            self.retention_ms if age == AS_TOTAL else age,
        )

    @property
    def has_delete_policy(self) -> bool:
        """Whether `cleanup.policy` has `delete`, so that old segments are deleted by time and by size."""
        return "delete" in self.cleanup_policy


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerConfig:
    """The broker-level settings of the whole store: background work, consumer groups, new topics, tiered storage.

    Each attribute has its setting's name, with `_` for `.`; sizes are in bytes. The values of an instance made by
    `resolve` are valid and consistent; the constructor, which is for tests, checks nothing.
    """

    log_cleaner_backoff_ms: int = _default("log.cleaner.backoff.ms")
    log_cleaner_dedupe_buffer_size: int = _default("log.cleaner.dedupe.buffer.size")
    log_cleaner_enable: bool = _default("log.cleaner.enable")
    log_cleaner_io_buffer_load_factor: float = _default("log.cleaner.io.buffer.load.factor")
    log_cleaner_io_buffer_size: int = _default("log.cleaner.io.buffer.size")
    log_cleaner_io_max_bytes_per_second: float = _default("log.cleaner.io.max.bytes.per.second")
    log_cleaner_threads: int = _default("log.cleaner.threads")
    log_flush_offset_checkpoint_interval_ms: int = _default(
        "log.flush.offset.checkpoint.interval.ms"
    )
    log_flush_scheduler_interval_ms: int = _default("log.flush.scheduler.interval.ms")
    log_flush_start_offset_checkpoint_interval_ms: int = _default(
        "log.flush.start.offset.checkpoint.interval.ms"
    )
    log_initial_task_delay_ms: int = _default("log.initial.task.delay.ms")
    log_retention_check_interval_ms: int = _default("log.retention.check.interval.ms")
    num_partitions: int = _default("num.partitions")
    num_recovery_threads_per_data_dir: int = _default("num.recovery.threads.per.data.dir")
    offset_metadata_max_bytes: int = _default("offset.metadata.max.bytes")
    offsets_topic_num_partitions: int = _default("offsets.topic.num.partitions")
    offsets_topic_segment_bytes: int = _default("offsets.topic.segment.bytes")
    transaction_abort_timed_out_transaction_cleanup_interval_ms: int = _default(
        "transaction.abort.timed.out.transaction.cleanup.interval.ms"
    )
    transaction_state_log_num_partitions: int = _default("transaction.state.log.num.partitions")
    transaction_state_log_segment_bytes: int = _default("transaction.state.log.segment.bytes")
    producer_id_expiration_check_interval_ms: int = _default(
        "producer.id.expiration.check.interval.ms"
    )
    producer_id_expiration_ms: int = _default("producer.id.expiration.ms")
    remote_log_manager_copy_max_bytes_per_second: int = _default(
        "remote.log.manager.copy.max.bytes.per.second"
    )
    remote_log_manager_task_interval_ms: int = _default("remote.log.manager.task.interval.ms")
    remote_log_metadata_topic_num_partitions: int = _default(
        "remote.log.metadata.topic.num.partitions"
    )
    remote_storage_cache_bytes: int = _default("remote.storage.cache.bytes")
    remote_storage_chunk_bytes: int = _default("remote.storage.chunk.bytes")
    remote_storage_compression: bool = _default("remote.storage.compression")
    remote_storage_encryption_key: str = _default("remote.storage.encryption.key")
    remote_storage_layout: str = _default("remote.storage.layout")
    remote_storage_prefix: str = _default("remote.storage.prefix")
    remote_storage_url: str = _default("remote.storage.url")
    replica_high_watermark_checkpoint_interval_ms: int = _default(
        "replica.high.watermark.checkpoint.interval.ms"
    )

    @classmethod
    def resolve(cls, broker: Mapping[str, str]) -> BrokerConfig:
        """Return the broker-level settings in force under the overrides of the broker.

        `broker` has the overrides: texts by setting name. Raises `InvalidSetting` for an unknown name, an invalid
        text, or valid values that contradict each other (kafka-storage 11.2).
        """
        config = cls(**_attributes(cls, _check_texts(broker)))
        if config.remote_storage_layout == "local" and (
            config.remote_storage_compression or config.remote_storage_encryption_key
        ):
            raise InvalidSetting(
                "remote.storage.layout: the layout local neither compresses nor encrypts; reset "
                "remote.storage.compression and remote.storage.encryption.key, or use aiven"
            )
        threads, size = config.log_cleaner_threads, config.log_cleaner_dedupe_buffer_size
        if size <= threads * MIB:
            raise InvalidSetting(
                f"log.cleaner.dedupe.buffer.size: {size} bytes are too few for log.cleaner.threads={threads};"
                f" give more than {threads * MIB} bytes, or lower log.cleaner.threads"
            )
        return config
