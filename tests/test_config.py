"""The tables of settings, the parsing of their values, and which value is in force."""

from __future__ import annotations

import dataclasses

import pytest

from logfs.config import (
    BrokerConfig,
    LogConfig,
    broker_value_in_force,
    describe_source,
    value_in_force,
)
from logfs.errors import InvalidSetting
from logfs.format.batches.compression import LEVELS, Codec
from logfs.setting import BROKER_SETTINGS, INT_MAX, LONG_MAX, TOPIC_SETTINGS, Type

INT_MIN, LONG_MIN = -INT_MAX - 1, -LONG_MAX - 1
MAX = str(LONG_MAX)

# kafka-storage 11.1, copied by hand: name, type, default, synonyms.
TOPIC_ROWS = [
    ("cleanup.policy", "list", "delete", "log.cleanup.policy"),
    ("compression.type", "string", "producer", "compression.type"),
    ("compression.gzip.level", "int", "-1", "compression.gzip.level"),
    ("compression.lz4.level", "int", "9", "compression.lz4.level"),
    ("compression.zstd.level", "int", "3", "compression.zstd.level"),
    ("delete.retention.ms", "long", "86400000", "log.cleaner.delete.retention.ms"),
    ("file.delete.delay.ms", "long", "60000", "log.segment.delete.delay.ms"),
    ("flush.messages", "long", MAX, "log.flush.interval.messages"),
    ("flush.ms", "long", MAX, "log.flush.interval.ms log.flush.scheduler.interval.ms"),
    ("follower.replication.throttled.replicas", "list", "", ""),
    ("leader.replication.throttled.replicas", "list", "", ""),
    ("index.interval.bytes", "int", "4096", "log.index.interval.bytes"),
    ("local.retention.bytes", "long", "-2", "log.local.retention.bytes"),
    ("local.retention.ms", "long", "-2", "log.local.retention.ms"),
    ("max.compaction.lag.ms", "long", MAX, "log.cleaner.max.compaction.lag.ms"),
    ("max.message.bytes", "int", "1048588", "message.max.bytes"),
    ("message.downconversion.enable", "boolean", "true", "log.message.downconversion.enable"),
    ("message.format.version", "string", "3.0-IV1", "log.message.format.version"),
    ("message.timestamp.after.max.ms", "long", "3600000", "log.message.timestamp.after.max.ms"),
    ("message.timestamp.before.max.ms", "long", MAX, "log.message.timestamp.before.max.ms"),
    ("message.timestamp.difference.max.ms", "long", MAX, "log.message.timestamp.difference.max.ms"),
    ("message.timestamp.type", "string", "CreateTime", "log.message.timestamp.type"),
    ("min.cleanable.dirty.ratio", "double", "0.5", "log.cleaner.min.cleanable.ratio"),
    ("min.compaction.lag.ms", "long", "0", "log.cleaner.min.compaction.lag.ms"),
    ("min.insync.replicas", "int", "1", "min.insync.replicas"),
    ("preallocate", "boolean", "false", "log.preallocate"),
    ("remote.log.copy.disable", "boolean", "false", ""),
    ("remote.log.delete.on.disable", "boolean", "false", ""),
    ("remote.storage.enable", "boolean", "false", ""),
    ("retention.bytes", "long", "-1", "log.retention.bytes"),
    (
        "retention.ms",
        "long",
        "604800000",
        "log.retention.ms log.retention.minutes log.retention.hours",
    ),
    ("segment.bytes", "int", "1073741824", "log.segment.bytes"),
    ("segment.index.bytes", "int", "10485760", "log.index.size.max.bytes"),
    ("segment.jitter.ms", "long", "0", "log.roll.jitter.ms log.roll.jitter.hours"),
    ("segment.ms", "long", "604800000", "log.roll.ms log.roll.hours"),
    ("unclean.leader.election.enable", "boolean", "false", "unclean.leader.election.enable"),
]

# The least and the greatest value of each integer setting. The next value beyond each end must be refused.
TOPIC_RANGES = {
    "compression.lz4.level": (1, 17),
    "compression.zstd.level": (-131072, 22),
    "delete.retention.ms": (0, LONG_MAX),
    "file.delete.delay.ms": (0, LONG_MAX),
    "flush.messages": (1, LONG_MAX),
    "flush.ms": (0, LONG_MAX),
    "index.interval.bytes": (0, INT_MAX),
    "local.retention.bytes": (-2, LONG_MAX),
    "local.retention.ms": (-2, LONG_MAX),
    "max.compaction.lag.ms": (1, LONG_MAX),
    "max.message.bytes": (0, INT_MAX),
    "message.timestamp.after.max.ms": (0, LONG_MAX),
    "message.timestamp.before.max.ms": (0, LONG_MAX),
    "message.timestamp.difference.max.ms": (0, LONG_MAX),
    "min.compaction.lag.ms": (0, LONG_MAX),
    "min.insync.replicas": (1, INT_MAX),
    "retention.bytes": (LONG_MIN, LONG_MAX),
    "retention.ms": (-1, LONG_MAX),
    "segment.bytes": (14, INT_MAX),
    "segment.index.bytes": (4, INT_MAX),
    "segment.jitter.ms": (0, LONG_MAX),
    "segment.ms": (1, LONG_MAX),
}
BROKER_RANGES = {
    "log.retention.ms": (LONG_MIN, LONG_MAX),
    "log.retention.minutes": (INT_MIN, INT_MAX),
    "log.retention.hours": (INT_MIN, INT_MAX),
    "log.roll.ms": (1, LONG_MAX),
    "log.roll.hours": (1, INT_MAX),
    "log.roll.jitter.ms": (0, LONG_MAX),
    "log.roll.jitter.hours": (0, INT_MAX),
    "log.segment.bytes": (14, INT_MAX),
    "num.partitions": (1, INT_MAX),
    "num.recovery.threads.per.data.dir": (1, INT_MAX),
    "offset.metadata.max.bytes": (0, INT_MAX),
    "offsets.topic.num.partitions": (1, INT_MAX),
    "offsets.topic.segment.bytes": (1, INT_MAX),
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": (1, INT_MAX),
    "transaction.state.log.num.partitions": (1, INT_MAX),
    "transaction.state.log.segment.bytes": (1, INT_MAX),
}
# kafka-storage 11.2.
BROKER_DEFAULTS = {
    "num.partitions": 1,
    "num.recovery.threads.per.data.dir": 2,
    "log.retention.check.interval.ms": 300_000,
    "log.flush.scheduler.interval.ms": LONG_MAX,
    "log.flush.offset.checkpoint.interval.ms": 60_000,
    "log.flush.start.offset.checkpoint.interval.ms": 60_000,
    "log.initial.task.delay.ms": 30_000,
    "replica.high.watermark.checkpoint.interval.ms": 5_000,
    "log.cleaner.enable": True,
    "log.cleaner.threads": 1,
    "log.cleaner.dedupe.buffer.size": 134_217_728,
    "log.cleaner.io.buffer.size": 524_288,
    "log.cleaner.io.buffer.load.factor": 0.9,
    "log.cleaner.io.max.bytes.per.second": 1.7976931348623157e308,
    "log.cleaner.backoff.ms": 15_000,
    "producer.id.expiration.ms": 86_400_000,
    "producer.id.expiration.check.interval.ms": 600_000,
    "offset.metadata.max.bytes": 4096,
    "offsets.topic.num.partitions": 50,
    "offsets.topic.segment.bytes": 104_857_600,
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": 10_000,
    "transaction.state.log.num.partitions": 50,
    "transaction.state.log.segment.bytes": 104_857_600,
    # Of tiered storage; those of `remote.storage` are of logfs.
    "remote.log.manager.copy.max.bytes.per.second": LONG_MAX,
    "remote.log.manager.task.interval.ms": 30_000,
    "remote.log.metadata.topic.num.partitions": 50,
    "remote.storage.cache.bytes": 4 << 30,
    "remote.storage.chunk.bytes": 4 << 20,
    "remote.storage.compression": False,
    "remote.storage.encryption.key": "",
    "remote.storage.layout": "aiven",
    "remote.storage.prefix": "",
    "remote.storage.url": "",
}
# Topic-level settings that have no meaning for the storage of one machine, or that are merged into another setting.
NOT_STORAGE = {
    "follower.replication.throttled.replicas",
    "leader.replication.throttled.replicas",
    "message.downconversion.enable",
    "message.format.version",
    "message.timestamp.difference.max.ms",
    "min.insync.replicas",
    "unclean.leader.election.enable",
}
# The integer settings that are attributes of LogConfig.
LOG_CONFIG_NUMBERS = TOPIC_RANGES.keys() - NOT_STORAGE


# The tables.


def test_every_topic_setting_of_the_reference_is_known():
    """The table has the rows of the reference, with their types, defaults and synonyms, in the same order."""
    assert [
        (s.name, s.type.value, s.default, " ".join(s.synonyms))
        for s in TOPIC_SETTINGS.values()
        if not s.name.startswith("logfs.")
    ] == TOPIC_ROWS


@pytest.mark.parametrize("name", [row[0] for row in TOPIC_ROWS])
def test_a_setting_is_its_default_when_nothing_is_set(name):
    """Without an override, the value in force is the reference's default, and its source is `default`."""
    assert value_in_force(name, {}, {}) == TOPIC_SETTINGS[name].default
    assert describe_source(name, {}, {}) == "default"


def test_every_synonym_is_a_broker_setting():
    """Every synonym of a topic-level setting is a broker-level setting, without synonyms of its own."""
    for setting in TOPIC_SETTINGS.values():
        for synonym in setting.synonyms:
            assert BROKER_SETTINGS[synonym].name == synonym
            assert not BROKER_SETTINGS[synonym].synonyms


@pytest.mark.parametrize("table", [TOPIC_SETTINGS, BROKER_SETTINGS], ids=["topic", "broker"])
def test_every_setting_is_explained_and_its_default_valid(table):
    """Each setting has a description and a text of its allowed values, and accepts its own default."""
    for name, setting in table.items():
        assert setting.name == name
        assert setting.doc.endswith(".")
        assert "None" not in setting.allowed
        if setting.default is not None:
            assert setting.format(setting.parse(setting.default)) == setting.default


def test_tables_cannot_be_changed():
    """The tables cannot be modified: a process may have several stores, and all of them use the same tables."""
    with pytest.raises(TypeError):
        TOPIC_SETTINGS["x"] = TOPIC_SETTINGS["retention.ms"]


# Values.


def test_every_number_has_a_tested_range():
    """Every integer setting of the topic table is in `TOPIC_RANGES`, and so in the test of the bounds below."""
    integers = {n for n, s in TOPIC_SETTINGS.items() if s.type in (Type.INT, Type.LONG)}
    assert integers == TOPIC_RANGES.keys() | {"compression.gzip.level"}


def test_the_codecs_of_the_settings_are_those_of_the_format():
    """`compression.type` and the levels accept exactly the codecs and levels of `compression`."""
    words = TOPIC_SETTINGS["compression.type"].valid.words
    assert set(words) == {codec.kafka_name for codec in Codec} - {"none"} | {
        "uncompressed",
        "producer",
    }
    for codec, (levels, default) in LEVELS.items():
        setting = TOPIC_SETTINGS[f"compression.{codec.kafka_name}.level"]
        assert (setting.valid.low, setting.valid.high) == (levels[0], levels[-1])
        assert int(setting.default) == default


@pytest.mark.parametrize(
    ("setting", "least", "most"),
    [(TOPIC_SETTINGS[name], *ends) for name, ends in TOPIC_RANGES.items()]
    + [(BROKER_SETTINGS[name], *ends) for name, ends in BROKER_RANGES.items()],
    ids=lambda value: value.name if hasattr(value, "name") else "",
)
def test_a_range_ends_where_the_reference_says(setting, least, most):
    """Both ends of a range are accepted. The next value beyond each is refused; the error names setting and range."""
    for value in (least, most):
        assert setting.parse(str(value)) == value
        assert setting.format(value) == str(value)
    for value in (least - 1, most + 1):
        with pytest.raises(InvalidSetting) as caught:
            setting.parse(str(value))
        for part in (setting.name, str(value), f"from {least} to {most}"):
            assert part in str(caught.value)


@pytest.mark.parametrize("text", ["-1", "1", "9"])
def test_gzip_level_has_a_gap(text):
    """The level of gzip is from 1 to 9, or -1."""
    assert TOPIC_SETTINGS["compression.gzip.level"].parse(text) == int(text)


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("segment.bytes", " 1048576\n", 1048576),
        ("segment.bytes", "+1048576", 1048576),
        ("preallocate", "TRUE", True),
        ("preallocate", "false\n", False),
        ("min.cleanable.dirty.ratio", "0", 0.0),
        ("min.cleanable.dirty.ratio", "1.0", 1.0),
        ("min.cleanable.dirty.ratio", "5e-1", 0.5),
        ("cleanup.policy", "", ()),
        ("cleanup.policy", "Compact , DELETE", ("compact", "delete")),
        ("compression.type", "zstd", "zstd"),
        ("message.timestamp.type", "LogAppendTime", "LogAppendTime"),
        ("message.format.version", "0.10.2", "0.10.2"),
        ("leader.replication.throttled.replicas", "*", ("*",)),
        ("leader.replication.throttled.replicas", "0:101, 1:102", ("0:101", "1:102")),
    ],
)
def test_a_text_is_parsed_by_its_type(name, text, value):
    """A text is parsed to a value of the setting's type; the canonical text of the value gives the same value."""
    setting = TOPIC_SETTINGS[name]
    parsed = setting.parse(text)
    assert (parsed, type(parsed)) == (value, type(value))
    assert setting.parse(setting.format(value)) == value


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("segment.bytes", ""),
        ("segment.bytes", "1e6"),
        ("segment.bytes", "1_000_000"),
        ("segment.bytes", "١٠٠"),
        ("segment.bytes", "1048576.0"),
        ("segment.bytes", "1 GiB"),
        ("segment.bytes", "9" * 5000),
        ("compression.gzip.level", "0"),
        ("compression.gzip.level", "-2"),
        ("compression.gzip.level", "10"),
        ("preallocate", "yes"),
        ("preallocate", "1"),
        ("preallocate", ""),
        ("min.cleanable.dirty.ratio", "-0.001"),
        ("min.cleanable.dirty.ratio", "1.001"),
        ("min.cleanable.dirty.ratio", "nan"),
        ("min.cleanable.dirty.ratio", "inf"),
        ("min.cleanable.dirty.ratio", "0.5_0"),
        ("cleanup.policy", "compress"),
        ("cleanup.policy", "compact,"),
        ("cleanup.policy", "compact;delete"),
        ("compression.type", "ZSTD"),
        ("compression.type", "none"),
        ("message.timestamp.type", "createtime"),
        ("message.format.version", "latest"),
        ("follower.replication.throttled.replicas", "0"),
        ("follower.replication.throttled.replicas", "*,0:1"),
    ],
)
def test_a_text_of_the_wrong_kind_is_refused(name, text):
    """The error names the setting, the beginning of the text, and the allowed values."""
    setting = TOPIC_SETTINGS[name]
    with pytest.raises(InvalidSetting) as caught:
        setting.parse(text)
    message = str(caught.value)
    assert message.startswith(f"{name}: {text[:40]!r}"[:40])
    assert message.endswith(setting.allowed)
    assert len(message) < 300


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("retention.ms", "1d", 86_400_000),
        ("retention.ms", " 1.5 h ", 5_400_000),
        ("retention.ms", "250ms", 250),
        ("retention.ms", "2w", 1_209_600_000),
        ("retention.ms", "-1", -1),
        ("log.retention.hours", "7d", 168),
        ("log.retention.minutes", "0.5h", 30),
        ("segment.bytes", "100MB", 100_000_000),
        ("segment.bytes", "1.5KiB", 1536),
        ("segment.bytes", "1G", 1 << 30),
        ("retention.bytes", "2TB", 2 * 10**12),
        ("log.cleaner.dedupe.buffer.size", "64M", 64 << 20),
        ("log.cleaner.io.max.bytes.per.second", "10MB", 1e7),
    ],
)
def test_times_and_sizes_may_be_typed_with_a_unit(name, text, value):
    """A typed text may have a unit, which a file of settings may not: Kafka's have plain numbers."""
    setting = TOPIC_SETTINGS.get(name) or BROKER_SETTINGS[name]
    assert setting.parse_typed(text) == value
    if text.strip()[-1].isalpha():
        with pytest.raises(InvalidSetting):
            setting.parse(text)


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("retention.ms", "1y", "unknown unit; give one of ms, s, m, h, d, w"),
        ("retention.ms", "1D", "unknown unit"),
        ("retention.ms", "0.1ms", "no whole number of ms"),
        ("retention.ms", "-1d", "is refused"),
        ("log.retention.hours", "90m", "no whole number of hours"),
        ("segment.bytes", "1d", "unknown unit; give one of B, K, KiB, KB"),
        ("segment.bytes", "0.3B", "no whole number of bytes"),
        ("segment.bytes", "3G", "give an integer from 14 to 2147483647"),
        ("retention.bytes", "9" * 19 + "T", "is refused"),
        ("retention.bytes", "9" * 4000 + "T", "is refused"),
        ("compression.zstd.level", "3K", "is refused"),
    ],
)
def test_a_wrong_unit_is_refused(name, text, reason):
    """The error names the setting, and the units or the range."""
    setting = TOPIC_SETTINGS.get(name) or BROKER_SETTINGS[name]
    with pytest.raises(InvalidSetting, match=reason) as caught:
        setting.parse_typed(text)
    assert str(caught.value).startswith(f"{name}: ")
    assert len(str(caught.value)) < 300


def test_error_messages_in_full():
    """The complete error message of one setting for each form of allowed values."""
    expected = {
        ("segment.bytes", "13"): "give an integer from 14 to 2147483647",
        ("compression.gzip.level", "0"): "give an integer from 1 to 9, or -1",
        ("min.cleanable.dirty.ratio", "2"): "give a number from 0 to 1",
        ("preallocate", "on"): "give true or false",
        ("message.timestamp.type", "x"): "give CreateTime or LogAppendTime",
        ("cleanup.policy", "x"): "give a comma-separated list of compact or delete",
        ("message.format.version", "x"): "give a version such as 3.0-IV1",
    }
    for (name, text), advice in expected.items():
        with pytest.raises(InvalidSetting) as caught:
            TOPIC_SETTINGS[name].parse(text)
        assert str(caught.value) == f"{name}: {text!r} is refused; {advice}"


# Which value is in force.


@pytest.mark.parametrize(
    ("name", "topic", "broker", "value", "source"),
    [
        # The topic's own value takes precedence, in whatever form it was written.
        (
            "retention.ms",
            {"retention.ms": " 5"},
            {"log.retention.ms": "6"},
            "5",
            "topic retention.ms",
        ),
        ("retention.ms", {}, {"log.retention.ms": "6"}, "6", "broker log.retention.ms"),
        # Synonyms have a fixed priority, independent of the order in which they were written.
        (
            "retention.ms",
            {},
            {"log.retention.hours": "1", "log.retention.minutes": "2", "log.retention.ms": "3"},
            "3",
            "broker log.retention.ms",
        ),
        (
            "retention.ms",
            {},
            {"log.retention.hours": "1", "log.retention.minutes": "2"},
            "120000",
            "broker log.retention.minutes",
        ),
        (
            "segment.ms",
            {},
            {"log.roll.hours": "1", "log.roll.ms": "7"},
            "7",
            "broker log.roll.ms",
        ),
        (
            "segment.jitter.ms",
            {},
            {"log.roll.jitter.hours": "1", "log.roll.jitter.ms": "7"},
            "7",
            "broker log.roll.jitter.ms",
        ),
        (
            "flush.ms",
            {},
            {"log.flush.scheduler.interval.ms": "9", "log.flush.interval.ms": "8"},
            "8",
            "broker log.flush.interval.ms",
        ),
        (
            "flush.ms",
            {},
            {"log.flush.scheduler.interval.ms": "9"},
            "9",
            "broker log.flush.scheduler.interval.ms",
        ),
        # Units.
        (
            "retention.ms",
            {},
            {"log.retention.hours": "168"},
            "604800000",
            "broker log.retention.hours",
        ),
        ("segment.ms", {}, {"log.roll.hours": "2"}, "7200000", "broker log.roll.hours"),
        (
            "segment.jitter.ms",
            {},
            {"log.roll.jitter.hours": "3"},
            "10800000",
            "broker log.roll.jitter.hours",
        ),
        (
            "retention.ms",
            {},
            {"log.retention.hours": str(INT_MAX)},
            str(INT_MAX * 3_600_000),
            "broker log.retention.hours",
        ),
        # Any negative retention means unlimited, and is written as -1.
        ("retention.ms", {}, {"log.retention.hours": "-1"}, "-1", "broker log.retention.hours"),
        ("retention.ms", {}, {"log.retention.minutes": "-7"}, "-1", "broker log.retention.minutes"),
        ("retention.ms", {}, {"log.retention.ms": str(LONG_MIN)}, "-1", "broker log.retention.ms"),
        # The same name at both levels.
        ("compression.type", {}, {"compression.type": "lz4"}, "lz4", "broker compression.type"),
        ("cleanup.policy", {"cleanup.policy": "COMPACT"}, {}, "compact", "topic cleanup.policy"),
        # The deprecated limit replaces an unlimited one, and no other.
        (
            "message.timestamp.before.max.ms",
            {"message.timestamp.difference.max.ms": "1000"},
            {},
            "1000",
            "topic message.timestamp.difference.max.ms",
        ),
        (
            "message.timestamp.before.max.ms",
            {},
            {"log.message.timestamp.difference.max.ms": "1000"},
            "1000",
            "broker log.message.timestamp.difference.max.ms",
        ),
        (
            "message.timestamp.before.max.ms",
            {"message.timestamp.difference.max.ms": "1000"},
            {"log.message.timestamp.before.max.ms": "5"},
            "5",
            "broker log.message.timestamp.before.max.ms",
        ),
        (
            "message.timestamp.after.max.ms",
            {"message.timestamp.difference.max.ms": "1000"},
            {},
            "3600000",
            "default",
        ),
        (
            "message.timestamp.after.max.ms",
            {"message.timestamp.after.max.ms": MAX, "message.timestamp.difference.max.ms": "1000"},
            {},
            "1000",
            "topic message.timestamp.difference.max.ms",
        ),
        (
            "message.timestamp.after.max.ms",
            {"message.timestamp.after.max.ms": MAX},
            {},
            MAX,
            "topic message.timestamp.after.max.ms",
        ),
    ],
)
def test_the_value_with_the_highest_priority_is_in_force(name, topic, broker, value, source):
    """The topic's value precedes the synonyms, by their priority, and the default; values are converted to ms."""
    assert value_in_force(name, topic, broker) == value
    assert describe_source(name, topic, broker) == source
    if name in LOG_CONFIG_NUMBERS:
        attribute = getattr(LogConfig.resolve(topic, broker), name.replace(".", "_"))
        assert attribute == int(value)


def test_a_broker_setting_in_force():
    """The value of a broker-level setting is its override, its default, or "" where Kafka has no default."""
    assert broker_value_in_force("log.retention.hours", {}) == "168"
    assert broker_value_in_force("log.retention.hours", {"log.retention.hours": " 5 "}) == "5"
    assert broker_value_in_force("log.retention.ms", {}) == ""
    with pytest.raises(InvalidSetting, match=r"log\.dir: there is no broker-level setting"):
        broker_value_in_force("log.dir", {})


def test_unknown_names_are_refused():
    """A name that is not a setting of the level is refused by every function that takes one."""
    with pytest.raises(InvalidSetting, match=r"no\.such: there is no topic-level setting"):
        value_in_force("no.such", {}, {})
    with pytest.raises(InvalidSetting, match="topic-level"):
        LogConfig.resolve({"log.segment.bytes": "100"}, {})
    with pytest.raises(InvalidSetting, match="broker-level"):
        LogConfig.resolve({}, {"segment.bytes": "100"})
    with pytest.raises(InvalidSetting, match="broker-level"):
        BrokerConfig.resolve({"segment.bytes": "100"})


# The typed values.


def test_log_config_is_the_storage_part_of_the_table():
    """LogConfig() equals the result of resolving no overrides, and has an attribute for each storage setting."""
    assert LogConfig() == LogConfig.resolve({}, {})
    names = {field.name.replace("_", ".") for field in dataclasses.fields(LogConfig)}
    assert names == TOPIC_SETTINGS.keys() - NOT_STORAGE
    for name in names - {"cleanup.policy", "logfs.retention.groups"}:
        setting = TOPIC_SETTINGS[name]
        assert getattr(LogConfig(), name.replace(".", "_")) == setting.parse(setting.default)
    assert LogConfig().logfs_retention_groups == frozenset()
    assert LogConfig().cleanup_policy == frozenset({"delete"})


@pytest.mark.parametrize(
    ("text", "compacted", "deleted"),
    [
        ("delete", False, True),
        ("compact", True, False),
        ("Compact,Delete", True, True),
        ("delete,compact", True, True),
        ("", False, False),
    ],
)
def test_cleanup_policy_sets_compacted_and_deleted(text, compacted, deleted):
    """`is_compacted` and `has_delete_policy` follow `cleanup.policy`, in any order, case and number of policies."""
    config = LogConfig.resolve({"cleanup.policy": text}, {})
    assert (config.is_compacted, config.has_delete_policy) == (compacted, deleted)


@pytest.mark.parametrize(
    ("topic", "broker"),
    [
        ({"min.compaction.lag.ms": "11", "max.compaction.lag.ms": "10"}, {}),
        ({"min.compaction.lag.ms": "11"}, {"log.cleaner.max.compaction.lag.ms": "10"}),
        ({"remote.storage.enable": "true", "cleanup.policy": "compact,delete"}, {}),
        ({"remote.storage.enable": "true"}, {"log.cleanup.policy": "compact"}),
        ({"remote.storage.enable": "true", "local.retention.ms": "604800001"}, {}),
        ({"remote.storage.enable": "true", "local.retention.ms": "-1"}, {}),
        (
            {
                "remote.storage.enable": "true",
                "remote.log.copy.disable": "true",
                "local.retention.ms": "1",
            },
            {},
        ),
        (
            {
                "remote.storage.enable": "true",
                "retention.bytes": "9",
                "local.retention.bytes": "10",
            },
            {},
        ),
        (
            {"retention.bytes": "9", "remote.storage.enable": "true"},
            {"log.local.retention.bytes": "-1"},
        ),
        # A broker's value must be valid even if the topic overrides it.
        ({"segment.bytes": "100"}, {"log.segment.bytes": "13"}),
        ({"segment.bytes": "13"}, {}),
        ({"unclean.leader.election.enable": "maybe"}, {}),
    ],
)
def test_contradictory_and_invalid_settings_are_refused(topic, broker):
    """Valid settings that contradict each other are refused, as are invalid values."""
    with pytest.raises(InvalidSetting):
        LogConfig.resolve(topic, broker)


@pytest.mark.parametrize(
    "topic",
    [
        {"min.compaction.lag.ms": "10", "max.compaction.lag.ms": "10"},
        {"remote.storage.enable": "true", "local.retention.ms": "604800000"},
        {"remote.storage.enable": "true", "local.retention.ms": "0"},
        {"remote.storage.enable": "true", "local.retention.bytes": "-1"},
        {"remote.storage.enable": "true", "retention.bytes": "-5", "local.retention.bytes": "7"},
        {"remote.storage.enable": "true", "retention.ms": "-1", "local.retention.ms": "-1"},
        {"remote.storage.enable": "false", "cleanup.policy": "compact"},
        {"remote.storage.enable": "false", "local.retention.ms": "-1"},
    ],
)
def test_settings_at_the_edge_of_a_contradiction_are_accepted(topic):
    """Equal limits and unlimited totals are consistent; local retention is checked only for tiered topics."""
    assert isinstance(LogConfig.resolve(topic, {}), LogConfig)


def test_broker_config_is_the_rest_of_the_broker_table():
    """BrokerConfig has an attribute, with the reference's default, for each setting that is not a topic's synonym."""
    names = {field.name.replace("_", ".") for field in dataclasses.fields(BrokerConfig)}
    synonyms = {name for setting in TOPIC_SETTINGS.values() for name in setting.synonyms}
    # This setting is both: the interval of the checks for `flush.ms`, and a synonym of `flush.ms`.
    assert names == (BROKER_SETTINGS.keys() - synonyms) | {"log.flush.scheduler.interval.ms"}
    assert BrokerConfig() == BrokerConfig.resolve({})
    assert {name: getattr(BrokerConfig(), name.replace(".", "_")) for name in names} == (
        BROKER_DEFAULTS
    )


def test_broker_config_takes_overrides():
    """A broker-level override changes BrokerConfig; a default for topics does not."""
    config = BrokerConfig.resolve({"log.cleaner.enable": "false", "log.segment.bytes": "100"})
    assert config == BrokerConfig(log_cleaner_enable=False)


def test_the_dedupe_buffer_must_exceed_a_mebibyte_a_thread():
    """A buffer of exactly 1 MiB per cleaner thread is refused; one byte more is accepted."""
    threads = {"log.cleaner.threads": "2"}
    with pytest.raises(InvalidSetting, match="give more than 2097152"):
        BrokerConfig.resolve(threads | {"log.cleaner.dedupe.buffer.size": "2097152"})
    BrokerConfig.resolve(threads | {"log.cleaner.dedupe.buffer.size": "2097153"})


def test_configs_are_values():
    """A config cannot be modified, so every holder may keep it, and equal configs have equal hashes."""
    with pytest.raises(dataclasses.FrozenInstanceError):
        LogConfig().segment_bytes = 1
    assert len({LogConfig(), LogConfig(), LogConfig(segment_bytes=100)}) == 2
