"""The definitions of Kafka's storage settings: names, types, ranges, defaults and synonyms (kafka-storage 11).

Settings whose names begin with `logfs.` are specific to logfs; brokers do not have them. The module `logfs.config`
determines the values that are in force.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from enum import Enum
from types import MappingProxyType
from typing import TYPE_CHECKING

from logfs.errors import InvalidSetting, UnknownSetting, did_you_mean

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

Value = int | float | bool | str | tuple[str, ...]

INT_MAX = 2**31 - 1
LONG_MAX = 2**63 - 1
DOUBLE_MAX = 1.7976931348623157e308

MINUTE_MS = 60_000
HOUR_MS = 3_600_000
MIB = 1 << 20

# The units that a user may type after a time, with their values in ms, and after a size, with their values in bytes.
# K is 1024 and KB is 1000, as in the GNU tools.
_TIMES = {"ms": 1, "s": 1000, "m": MINUTE_MS, "h": HOUR_MS, "d": 24 * HOUR_MS, "w": 168 * HOUR_MS}
_SIZES = {"B": 1} | {
    f"{letter}{suffix}": base**power
    for power, letter in enumerate("KMGT", 1)
    for suffix, base in (("", 1024), ("iB", 1024), ("B", 1000))
}
# If a setting is a time, the last word of its name is the unit of its values. The map has each such unit in ms.
_SUFFIXES = {"ms": 1, "minutes": MINUTE_MS, "hours": HOUR_MS}


# The classes from here on define a single setting.


class Type(Enum):
    """The types of a setting's value (kafka-storage 11.1)."""

    INT = "int"  # 32-bit signed
    LONG = "long"  # 64-bit signed
    DOUBLE = "double"
    BOOLEAN = "boolean"
    STRING = "string"
    LIST = "list"  # comma separated


INT, LONG, DOUBLE, BOOLEAN, STRING, LIST = Type


@dataclass(frozen=True, slots=True)
class Range:
    """The numbers from `low` to `high`, both inclusive, and optionally the number `special`."""

    low: float
    high: float
    special: int | None = None

    def admits(self, value: Value) -> bool:
        """Whether a number is in the range or is `special`; False for NaN."""
        assert isinstance(value, int | float)
        return self.low <= value <= self.high or value == self.special

    def __str__(self) -> str:
        special = "" if self.special is None else f", or {self.special}"
        return f"from {self.low} to {self.high}{special}"


@dataclass(frozen=True, slots=True)
class Words:
    """The words that a setting allows. A value is one of them or, for a setting of type LIST, any number of them."""

    words: tuple[str, ...]

    def admits(self, value: Value) -> bool:
        """Whether a value, or every item of a list, is one of `words`."""
        items = value if isinstance(value, tuple) else (value,)
        return all(item in self.words for item in items)

    def __str__(self) -> str:
        return f"{', '.join(self.words[:-1])} or {self.words[-1]}"


@dataclass(frozen=True, slots=True)
class Pattern:
    """The values that match `regex` as a whole. The items of a list are joined by commas before they are matched.

    `form` describes the allowed values in error messages.
    """

    regex: str
    form: str

    def admits(self, value: Value) -> bool:
        """Whether a value as a whole matches `regex`. The items of a list are joined by commas first."""
        text = ",".join(value) if isinstance(value, tuple) else str(value)
        return re.fullmatch(self.regex, text) is not None

    def __str__(self) -> str:
        return self.form


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """The definition of one setting (kafka-storage 11).

    `default` is the default value as text, or None if the setting has no default. `valid` limits the values; None
    allows all values of the type. `synonyms` are the broker-level names of a topic-level setting, in order of
    priority: the first one that is set is used. `doc` says in one sentence what the setting does.
    """

    name: str
    type: Type
    default: str | None
    valid: Range | Words | Pattern | None = None
    synonyms: tuple[str, ...] = ()
    doc: str

    @property
    def is_secret(self) -> bool:
        """Whether the value may contain a password, so that it is not shown to others."""
        return self.valid in _UNSHOWN

    @property
    def allowed(self) -> str:
        """The allowed values in words, for error messages."""
        if self.type is BOOLEAN:
            return "true or false"
        return f"{_KIND_WORDS[self.type]}{self.valid}"

    def parse(self, text: str) -> Value:
        """Convert text to a value of the setting's type, ignoring whitespace around the text.

        Raises `InvalidSetting` if the text cannot be converted, or if `valid` does not allow the value.
        """
        value: Value | None
        try:
            value = _PARSERS[self.type](text.strip())
        except ValueError:
            value = None
        if isinstance(value, tuple) and isinstance(self.valid, Words):
            # As in Kafka, the case of the words does not matter in a list of words, such as cleanup.policy.
            value = tuple(item.lower() for item in value)
        if value is None or (self.valid is not None and not self.valid.admits(value)):
            # An invalid bucket URL, object prefix or key name may contain a password.
            shown = "the value" if self.is_secret else repr(text)[:80]
            raise InvalidSetting(f"{self.name}: {shown} is refused; give {self.allowed}")
        return value

    def parse_typed(self, text: str) -> Value:
        """Convert text typed by a user to a value. Unlike in `parse`, a time or a size may have a unit.

        Examples are `12h` and `1.5 d` for a time, `10GB` (10^10 bytes) and `10G` or `10GiB` (10 * 2^30 bytes) for a
        size. Do not use this for settings files, in which numbers have no unit. Raises `InvalidSetting` for the same
        reasons as `parse`, for an unknown unit, and for a time or size that is not a whole number in the setting's
        own unit, such as `0.1ms`.
        """
        unit_of_value, units = self._units
        typed = re.fullmatch(r"\s*([0-9]{1,19})(?:\.([0-9]{1,9}))?\s*([A-Za-z]+)\s*", text)
        if typed is None or not units:
            return self.parse(text)
        whole, decimals, unit = typed[1], typed[2] or "", typed[3]
        if unit not in units:
            raise InvalidSetting(
                f"{self.name}: {text[:40]!r} has an unknown unit; give one of {', '.join(units)}"
            )
        scaled = int(whole + decimals) * units[unit]
        value, rest = divmod(scaled, 10 ** len(decimals) * unit_of_value)
        if rest:
            what = "bytes" if units is _SIZES else self.name.rpartition(".")[2]
            raise InvalidSetting(f"{self.name}: {text[:40]!r} is no whole number of {what}")
        return self.parse(str(value))

    @property
    def _units(self) -> tuple[int, Mapping[str, int]]:
        """The setting's own unit, and a map of the units that a user may type, by name.

        Each unit is a number of ms if the setting is a time, and of bytes if it is a size. For any other setting, the
        unit is 1 and the map empty.
        """
        words = self.name.split(".")
        if words[-1] in _SUFFIXES:
            return _SUFFIXES[words[-1]], _TIMES
        return 1, _SIZES if "bytes" in words or words[-2:] == ["buffer", "size"] else {}

    def format(self, value: Value) -> str:
        """Convert a value to its canonical text, which `parse` converts back."""
        if isinstance(value, bool):
            return "true" if value else "false"
        return ",".join(value) if isinstance(value, tuple) else str(value)


def _check_digits(text: str) -> str:
    # Python also accepts underscores (1_000) and the digits of other scripts. In a setting, neither is valid.
    if "_" in text or not text.isascii():
        raise ValueError(text)
    return text


def _parse_int(text: str) -> int:
    return int(_check_digits(text))


def _parse_double(text: str) -> float:
    return float(_check_digits(text))


def parse_boolean(text: str) -> bool:
    """Convert `true` or `false`, in upper or lower case, to a bool. Raises `ValueError` for any other text."""
    return ("false", "true").index(text.lower()) == 1


def _parse_list(text: str) -> tuple[str, ...]:
    return tuple(item.strip() for item in text.split(",")) if text else ()


_PARSERS: Mapping[Type, Callable[[str], Value]] = {
    INT: _parse_int,
    LONG: _parse_int,
    DOUBLE: _parse_double,
    BOOLEAN: parse_boolean,
    STRING: str,
    LIST: _parse_list,
}

_KIND_WORDS = {
    INT: "an integer ",
    LONG: "an integer ",
    DOUBLE: "a number ",
    STRING: "",
    LIST: "a comma-separated list of ",
}


# The tables of all settings begin here.


def _row(
    type: Type,
    name: str,
    default: str | None,
    valid: int | Range | Words | Pattern | None,
    doc: str,
    *synonyms: str,
) -> Setting:
    """Return a `Setting`. For INT and LONG, `valid` may be the smallest value, or None for the range of the type."""
    if type in (INT, LONG) and not isinstance(valid, Range):
        assert valid is None or isinstance(valid, int), name
        most = INT_MAX if type is INT else LONG_MAX
        valid = Range(-most - 1 if valid is None else valid, most)
    assert not isinstance(valid, int), name
    return Setting(name=name, type=type, default=default, valid=valid, synonyms=synonyms, doc=doc)


RETENTION_MS = "retention.ms"
BEFORE_MAX_MS = "message.timestamp.before.max.ms"
AFTER_MAX_MS = "message.timestamp.after.max.ms"
DIFFERENCE_MAX_MS = "message.timestamp.difference.max.ms"

_POLICIES = Words(("compact", "delete"))
_CODECS = Words(("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer"))
_THROTTLED = Pattern(r"\*|([0-9]+:[0-9]+(,[0-9]+:[0-9]+)*)?", "partition:broker pairs, or *")
# The URL is stored as plain text, so the pattern does not allow access keys or passwords in it.
_BUCKET = Pattern(
    r"((s3|gs|az)://[A-Za-z0-9._-]+(/[^?#@;:%\\\s]*)?|file:///[^?#]+)?",
    "a URL such as s3://bucket/prefix, gs://…, az://… or file:///directory, without credentials",
)
# The names in the list are separated by commas. So a group with a comma in its name cannot be listed.
_GROUPS = Pattern(r"([^,]+(,[^,]+)*)?", "the names of consumer groups")
MIRROR_SOURCE = "logfs.mirror.source"
_CLUSTER = Pattern(r"[A-Za-z0-9._:,/\[\]-]*", "the addresses or the id of a cluster")
_KEY_PREFIX = Pattern(r"[A-Za-z0-9._/-]*", "letters, digits and . _ - /")
_KEY_NAME = Pattern(r"[A-Za-z0-9._-]{0,200}", "letters, digits and . _ -")
_UNSHOWN = (_BUCKET, _KEY_PREFIX, _KEY_NAME)
_VERSION = Pattern(r"[0-9]+(\.[0-9]+){1,3}(-IV[0-9]+)?", "a version such as 3.0-IV1")

_MAX = str(LONG_MAX)

# fmt: off
# The topic-level settings of kafka-storage 11.1, and those of logfs. If a later release of Kafka has changed a
# default, the row has the new default (kafka-storage 13). The first line of a row has the type, name, default and
# allowed values. The description and the synonyms follow.
_TOPIC_ROWS = (
    _row(LIST, "cleanup.policy", "delete", _POLICIES,
         "What happens to old data: delete drops segments, compact keeps each key's last record.",
         "log.cleanup.policy"),
    _row(STRING, "compression.type", "producer", _CODECS,
         "The codec of new batches; producer keeps the codec of each appended batch.",
         "compression.type"),
    _row(INT, "compression.gzip.level", "-1", Range(1, 9, special=-1),
         "The level if the codec is gzip; -1 is the codec's default.",
         "compression.gzip.level"),
    _row(INT, "compression.lz4.level", "9", Range(1, 17),
         "The level if the codec is lz4.",
         "compression.lz4.level"),
    _row(INT, "compression.zstd.level", "3", Range(-131072, 22),
         "The level if the codec is zstd.",
         "compression.zstd.level"),
    _row(LONG, "delete.retention.ms", "86400000", 0,
         "How long compaction keeps a tombstone, so that slow readers still see it.",
         "log.cleaner.delete.retention.ms"),
    _row(LONG, "file.delete.delay.ms", "60000", 0,
         "How long a deleted file stays on the disk under another name.",
         "log.segment.delete.delay.ms"),
    _row(LONG, "flush.messages", _MAX, 1,
         "After how many records the log is flushed to the disk.",
         "log.flush.interval.messages"),
    _row(LONG, "flush.ms", _MAX, 0,
         "After how long the log is flushed to the disk.",
         "log.flush.interval.ms", "log.flush.scheduler.interval.ms"),
    _row(LIST, "follower.replication.throttled.replicas", "", _THROTTLED,
         "The followers whose replication a broker throttles."),
    _row(LIST, "leader.replication.throttled.replicas", "", _THROTTLED,
         "The leaders whose replication a broker throttles."),
    _row(INT, "index.interval.bytes", "4096", 0,
         "How many bytes of log lie between two entries of an index.",
         "log.index.interval.bytes"),
    _row(LONG, "local.retention.bytes", "-2", -2,
         "How much of a tiered log stays on the local disk; -2 uses retention.bytes.",
         "log.local.retention.bytes"),
    _row(LONG, "local.retention.ms", "-2", -2,
         "How long a tiered log stays on the local disk; -2 uses retention.ms.",
         "log.local.retention.ms"),
    _row(LONG, "max.compaction.lag.ms", _MAX, 1,
         "The longest time that a record stays uncompacted.",
         "log.cleaner.max.compaction.lag.ms"),
    _row(INT, "max.message.bytes", "1048588", 0,
         "The largest record batch, after compression.",
         "message.max.bytes"),
    _row(BOOLEAN, "message.downconversion.enable", "true", None,
         "Whether a broker converts records for old consumers.",
         "log.message.downconversion.enable"),
    _row(STRING, "message.format.version", "3.0-IV1", _VERSION,
         "Deprecated, and without effect: every new batch has format version 2.",
         "log.message.format.version"),
    _row(LONG, AFTER_MAX_MS, "3600000", 0,
         "How far a record's timestamp may lie after the time of its append.",
         "log.message.timestamp.after.max.ms"),
    _row(LONG, BEFORE_MAX_MS, _MAX, 0,
         "How far a record's timestamp may lie before the time of its append.",
         "log.message.timestamp.before.max.ms"),
    _row(LONG, DIFFERENCE_MAX_MS, _MAX, 0,
         "Deprecated: replaces the before and after limits where those are unlimited.",
         "log.message.timestamp.difference.max.ms"),
    _row(STRING, "message.timestamp.type", "CreateTime", Words(("CreateTime", "LogAppendTime")),
         "Whether a record's timestamp is its producer's or the time of its append.",
         "log.message.timestamp.type"),
    _row(DOUBLE, "min.cleanable.dirty.ratio", "0.5", Range(0, 1),
         "The fraction of a log that must be uncompacted before the log is worth compacting.",
         "log.cleaner.min.cleanable.ratio"),
    _row(LONG, "min.compaction.lag.ms", "0", 0,
         "The shortest time that a record stays uncompacted.",
         "log.cleaner.min.compaction.lag.ms"),
    _row(INT, "min.insync.replicas", "1", 1,
         "How many replicas a broker needs to accept a write with acks=all.",
         "min.insync.replicas"),
    _row(BOOLEAN, "preallocate", "false", None,
         "Whether a new segment's file gets its full size at once.",
         "log.preallocate"),
    _row(BOOLEAN, "remote.log.copy.disable", "false", None,
         "Whether a tiered topic stops copying segments to remote storage."),
    _row(BOOLEAN, "remote.log.delete.on.disable", "false", None,
         "Whether the remote segments are deleted when tiering is switched off."),
    _row(BOOLEAN, "remote.storage.enable", "false", None,
         "Whether the topic is tiered, with segments in remote storage."),
    _row(LONG, "retention.bytes", "-1", None,
         "The size to which retention reduces a partition; negative is unlimited.",
         "log.retention.bytes"),
    _row(LONG, RETENTION_MS, "604800000", -1,
         "How long a record is kept; -1 is unlimited.",
         "log.retention.ms", "log.retention.minutes", "log.retention.hours"),
    # Kafka 4.0 requires at least 1048576 bytes. logfs allows less: topics of older brokers may be
    # set to less, the format does not depend on the size, and tests need small segments.
    _row(INT, "segment.bytes", "1073741824", 14,
         "The size at which a segment is full and the next one starts.",
         "log.segment.bytes"),
    _row(INT, "segment.index.bytes", "10485760", 4,
         "The largest size of an index; a segment whose index is full is full too.",
         "log.index.size.max.bytes"),
    _row(LONG, "segment.jitter.ms", "0", 0,
         "The largest random time by which segments start early, so that not all start at once.",
         "log.roll.jitter.ms", "log.roll.jitter.hours"),
    _row(LONG, "segment.ms", "604800000", 1,
         "The age at which the next segment starts, even if this one is not full.",
         "log.roll.ms", "log.roll.hours"),
    _row(BOOLEAN, "unclean.leader.election.enable", "false", None,
         "Whether a replica that lags may become leader.",
         "unclean.leader.election.enable"),
    # Settings of logfs.
    _row(STRING, MIRROR_SOURCE, "", _CLUSTER,
         "The cluster that the topic mirrors: only the mirror appends to it. Empty for a topic of its own."),
    _row(LIST, "logfs.retention.groups", "", _GROUPS,
         "The consumer groups whose unread records retention keeps, whatever their age and the size of the log.",
         "logfs.retention.groups"),
    _row(STRING, "logfs.roll.quiet", "auto", Words(("auto", "always", "never")),
         "Whether segment.ms also rolls an idle segment; Kafka never does. auto: yes, unless a broker"
         " also uses the directory.",
         "logfs.roll.quiet"),
)

# Broker-level settings: the synonyms whose unit, range or default differs from that of the topic-level setting, and
# those settings of kafka-storage 11.2 that concern the storage of one machine.
_BROKER_ROWS = (
    _row(LONG, "log.retention.ms", None, None,
         "How long a record is kept; negative is unlimited."),
    _row(INT, "log.retention.minutes", None, None,
         "How many minutes a record is kept; negative is unlimited."),
    _row(INT, "log.retention.hours", "168", None,
         "How many hours a record is kept; negative is unlimited."),
    _row(LONG, "log.roll.ms", None, 1,
         "The age at which the next segment starts."),
    _row(INT, "log.roll.hours", "168", 1,
         "The age in hours at which the next segment starts."),
    _row(LONG, "log.roll.jitter.ms", None, 0,
         "The largest random time by which segments start early."),
    _row(INT, "log.roll.jitter.hours", "0", 0,
         "The largest random number of hours by which segments start early."),
    _row(LONG, "log.flush.interval.ms", None, 0,
         "After how long a log is flushed to the disk."),
    _row(LONG, "log.flush.scheduler.interval.ms", _MAX, 0,
         "How often a broker checks for logs that are due to be flushed."),
    _row(INT, "log.flush.offset.checkpoint.interval.ms", "60000", 0,
         "How often the recovery points are written."),
    _row(INT, "log.flush.start.offset.checkpoint.interval.ms", "60000", 0,
         "How often the log start offsets are written."),
    _row(LONG, "replica.high.watermark.checkpoint.interval.ms", "5000", 0,
         "How often a broker writes the high watermarks."),
    _row(INT, "num.recovery.threads.per.data.dir", "2", 1,
         "How many threads of a broker load the logs of each log directory, and flush them at shutdown."),
    _row(LONG, "log.retention.check.interval.ms", "300000", 1,
         "How often logs are checked for segments that are due to be deleted."),
    _row(LONG, "log.initial.task.delay.ms", "30000", 0,
         "How long after the start the background work begins."),
    _row(BOOLEAN, "log.cleaner.enable", "true", None,
         "Whether logs are compacted at all."),
    _row(INT, "log.cleaner.threads", "1", 0,
         "How many threads of a broker compact logs, and share the dedupe buffer; logfs compacts in one."),
    _row(LONG, "log.cleaner.dedupe.buffer.size", "134217728", 0,
         "The bytes of memory for the keys of compactions, for all threads together."),
    _row(INT, "log.cleaner.io.buffer.size", "524288", 0,
         "The bytes of memory for the input and output of a broker's compactions, for all threads together."),
    _row(DOUBLE, "log.cleaner.io.buffer.load.factor", "0.9", Range(0, 1),
         "The fraction of the map of keys that a compaction may fill."),
    _row(DOUBLE, "log.cleaner.io.max.bytes.per.second", str(DOUBLE_MAX), Range(1, DOUBLE_MAX),
         "The highest rate at which compaction reads and writes."),
    _row(LONG, "log.cleaner.backoff.ms", "15000", 0,
         "How long the cleaner sleeps when no log needs cleaning."),
    _row(INT, "producer.id.expiration.ms", "86400000", 1,
         "How long an idle producer's sequence numbers are remembered."),
    _row(INT, "producer.id.expiration.check.interval.ms", "600000", 1,
         "How often producers are checked for expired ones."),
    _row(INT, "offset.metadata.max.bytes", "4096", 0,
         "The longest text that a group may keep with a committed offset."),
    _row(INT, "num.partitions", "1", 1,
         "How many partitions a new topic has if no number is given, as with mkdir in topics/."),
    _row(INT, "offsets.topic.num.partitions", "50", 1,
         "How many partitions __consumer_offsets has; fixed at the first commit, because the number"
         " decides which partition has a group's offsets."),
    _row(INT, "offsets.topic.segment.bytes", "104857600", 1,
         "The segment.bytes with which __consumer_offsets is created."),
    _row(INT, "transaction.abort.timed.out.transaction.cleanup.interval.ms", "10000", 1,
         "How often transactions that nobody continues are looked for, and ended."),
    _row(INT, "transaction.state.log.num.partitions", "50", 1,
         "How many partitions __transaction_state has; fixed at the first transaction, because the"
         " number decides which partition has the state of a transactional id."),
    _row(INT, "transaction.state.log.segment.bytes", "104857600", 1,
         "The segment.bytes with which __transaction_state is created."),
    # Settings of tiered storage.
    _row(LONG, "remote.log.manager.task.interval.ms", "30000", 1,
         "How often logs are checked for segments to copy to remote storage, or to delete there."),
    _row(LONG, "remote.log.manager.copy.max.bytes.per.second", _MAX, 1,
         "The highest rate at which segments are sent to remote storage and read back."),
    _row(INT, "remote.log.metadata.topic.num.partitions", "50", 1,
         "How many partitions __remote_log_metadata has; fixed when the first of them is created."),
    _row(STRING, "remote.storage.url", "", _BUCKET,
         "Where the segments of tiered topics are copied: a bucket and a prefix."),
    _row(STRING, "remote.storage.prefix", "", _KEY_PREFIX,
         "The prefix of the names of all objects, after the URL; Aiven's plugin calls it key.prefix."),
    _row(STRING, "remote.storage.layout", "aiven", Words(("aiven", "local")),
         "How objects are named and filled: as by Aiven's plugin, or as by Kafka's LocalTieredStorage."),
    _row(INT, "remote.storage.chunk.bytes", "4194304", 1024,
         "The size of the chunks of a segment that are compressed and fetched one by one."),
    _row(BOOLEAN, "remote.storage.compression", "false", None,
         "Whether the chunks are compressed with zstd; batches that are compressed already gain nothing."),
    _row(STRING, "remote.storage.encryption.key", "", _KEY_NAME,
         "The name of the RSA key that new remote segments are encrypted with; its file is outside of the store."),
    _row(LONG, "remote.storage.cache.bytes", "4294967296", 0,
         "The most bytes of fetched chunks that are cached on the disk, for each user."),
)
# fmt: on

TOPIC_SETTINGS: Mapping[str, Setting] = MappingProxyType({row.name: row for row in _TOPIC_ROWS})
BROKER_SETTINGS: Mapping[str, Setting] = MappingProxyType(
    {
        synonym: replace(row, name=synonym, synonyms=())
        for row in _TOPIC_ROWS
        for synonym in row.synonyms
    }
    | {row.name: row for row in _BROKER_ROWS}
)


def topic_setting(name: str) -> Setting:
    """Return the topic-level setting called `name`. Raises `UnknownSetting` if there is none."""
    found = TOPIC_SETTINGS.get(name)
    if found is None:
        raise _unknown("topic", name, TOPIC_SETTINGS, BROKER_SETTINGS)
    return found


def broker_setting(name: str) -> Setting:
    """Return the broker-level setting called `name`. Raises `UnknownSetting` if there is none."""
    found = BROKER_SETTINGS.get(name)
    if found is None:
        raise _unknown("broker", name, BROKER_SETTINGS, TOPIC_SETTINGS)
    return found


def _unknown(
    level: str, name: str, known: Iterable[str], of_other_level: Iterable[str]
) -> UnknownSetting:
    to_list = "'logfs config LOGDIR" + (" --topic TOPIC'" if level == "topic" else "'")
    if name in of_other_level:
        hint = "the store: give no --topic" if level == "topic" else "a topic: give --topic"
        hint = f"; it is a setting of {hint}"
    else:
        hint = did_you_mean(name, known) or f"; {to_list} lists all"
    return UnknownSetting(f"{name:.80}: there is no {level}-level setting of that name{hint}")
