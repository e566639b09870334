"""Parses and checks the options of reads. Those of Spark's Kafka source have the same names and meanings.

`path` takes the place of `kafka.bootstrap.servers`. Names are not case-sensitive. A wrong option raises `ValueError`,
with the message of Spark's Kafka source if it has one for this error.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any

from logfs.format.base.names import INTERNAL_TOPICS, TopicPartition
from logfs.log.read.read_committed import Isolation
from logfs.spark.known_names import SELECTIONS, check_options, warn_of_ignored
from logfs.store.directory.recognition import PathKind, recognise

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

# The numbers that stand for the latest and the earliest offset in the JSON offsets of Kafka's source.
LATEST_OFFSET = -1
EARLIEST_OFFSET = -2
_DEFAULT_TRIGGER_DELAY_MS = 15 * 60 * 1000
# Options of Kafka's consumer that a read refuses, as Spark's Kafka source does, each with what a user can do.
_NOT_SUPPORTED = {
    "auto.offset.reset": "use startingOffsets to set where a read begins",
    "key.deserializer": "keys are bytes; convert the column in Spark",
    "value.deserializer": "values are bytes; convert the column in Spark",
    "enable.auto.commit": "Spark keeps the offsets of a query in its checkpoint",
    "interceptor.classes": "records are read from files, without a consumer; leave it out",
}
_UNITS_MS = {"ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}


class PositionKind(Enum):
    """The ways to give the start or end of a read: the earliest or latest offset, offsets, or timestamps."""

    EARLIEST = "earliest"
    LATEST = "latest"
    OFFSETS = "offsets"
    TIMESTAMPS = "timestamps"


@dataclass(frozen=True)
class Limit:
    """The start or the end of a read.

    If `kind` is OFFSETS, `each` maps partitions to offsets, which may be `LATEST_OFFSET` or `EARLIEST_OFFSET`. If
    `kind` is TIMESTAMPS, either `timestamp` (ms) is set and applies to all partitions, or `each` maps partitions to
    timestamps in ms. For the other kinds, `each` is empty and `timestamp` is None.
    """

    kind: PositionKind
    each: Mapping[TopicPartition, int] = field(default_factory=dict)
    timestamp: int | None = None


@dataclass(frozen=True, kw_only=True)
class Selection:
    """The partitions to read. `name in selection` tells whether the partition `name` is one of them.

    `kind` is the option that selects them, one of `SELECTIONS`. It determines which field is set: `partitions` for
    `assign`, `topics` for `subscribe`, or `pattern` for `subscribePattern`. The pattern is a regular expression that
    may match anywhere in a topic's name; it selects no internal topic.
    """

    kind: str
    topics: frozenset[str] = frozenset()
    partitions: frozenset[TopicPartition] = frozenset()
    pattern: str = ""

    def __contains__(self, name: TopicPartition) -> bool:
        if self.kind == "assign":
            return name in self.partitions
        return self.has_topic(name.topic)

    def has_topic(self, topic: str) -> bool:
        """Whether the selection has the topic, or at least one of its partitions."""
        if self.kind == "assign":
            return any(name.topic == topic for name in self.partitions)
        if self.kind == "subscribe":
            return topic in self.topics
        # As in Kafka's source, the pattern may match anywhere in the name, and internal topics must be named.
        return topic not in INTERNAL_TOPICS and re.search(self.pattern, topic) is not None


@dataclass(frozen=True, kw_only=True)
class ReadOptions:
    """The options of a read, parsed. Sizes are in bytes, times in ms; None means that an option is not given."""

    paths: tuple[str, ...]
    selection: Selection
    starting: Limit
    ending: Limit
    # What happens if a timestamp in `starting` is later than all records. True: begin at the log end. False: fail.
    latest_if_no_match: bool
    fail_on_data_loss: bool
    isolation: Isolation
    min_partitions: int | None
    max_records_per_partition: int | None
    max_offsets_per_trigger: int | None
    min_offsets_per_trigger: int | None
    max_bytes_per_trigger: int | None
    max_trigger_delay_ms: int
    split_bytes: int | None
    initial_offsets_path: str | None
    group: str | None
    push_down_predicate: bool


def paths_of(options: Mapping[str, str]) -> tuple[str, ...]:
    """Return the paths in the options `path` (from `load(a)`) and `paths` (from `load([a, b])`).

    Each is a log directory, a mountpoint of logfs, or the URL of a bucket. Raises `ValueError` if no path is given.
    """
    found = json.loads(options["paths"]) if "paths" in options else []
    if "path" in options:
        found.append(options["path"])
    if not found:
        raise ValueError(
            "the logfs source needs a path: the log directory, as in .load('/var/lib/logfs') or "
            ".option('path', '/var/lib/logfs'); it takes the place of 'kafka.bootstrap.servers'. Spark does not pass "
            "the options of a catalog table to INSERT INTO, nor those of a table that was created with columns: give "
            "them by WITH (path='…', …) after the table's name, or use a temporary view. CREATE TABLE … AS SELECT "
            "passes no options at all: create the table, and then insert"
        )
    return tuple(local_log_dir(str(path)) for path in found)


def local_path(path: str) -> str:
    """Return the plain path in a `file:` URL of any spelling: `file:/a`, `file:///a`, `file://localhost/a`.

    Escapes such as `%20` are not decoded, as in Spark's file sources. Anything else is returned unchanged.
    """
    found = re.fullmatch(r"file:(?://(?:localhost)?)?(/(?!/).*)", path, re.IGNORECASE | re.DOTALL)
    return path if found is None else found[1]


def local_log_dir(path: str) -> str:
    """Return the plain path in a `file:` URL of a log directory. Anything but a `file:` URL is returned unchanged.

    If a `file:` URL leads to a directory that has files but is no log directory, logfs takes the directory for a
    bucket whose objects are files. A bucket must be opened by a URL, so the result is then a `file://` URL.
    """
    plain = local_path(path)
    is_bucket = plain != path and recognise(plain).kind is PathKind.OTHER
    return f"file://{plain}" if is_bucket else plain


def read_options(options: Mapping[str, str], *, streaming: bool) -> ReadOptions:
    """Parse the options of a read, and check them as Spark's Kafka source does.

    If `streaming` is true, the defaults and the checks are those of a streaming query, else those of a batch query.
    Raises `ValueError` for a wrong option.
    """
    check_options(options)
    warn_of_ignored(options, used=["kafka.isolation.level"])
    for name, advice in _NOT_SUPPORTED.items():
        if f"kafka.{name}" in options:
            raise ValueError(f"Kafka option '{name}' is not supported: {advice}")
    if streaming:
        for name in ("endingOffsets", "endingOffsetsByTimestamp", "endingTimestamp"):
            if name in options:
                word = "offset" if name == "endingOffsets" else "timestamp"
                raise ValueError(
                    f"ending {word} not valid in streaming queries: leave out the option {name}"
                )
    default = PositionKind.LATEST if streaming else PositionKind.EARLIEST
    starting = _limit(options, "starting", default)
    ending = _limit(options, "ending", PositionKind.LATEST)
    if not streaming:
        _check_batch(starting, ending)
    strategy = options.get("startingOffsetsByTimestampStrategy", "error").lower()
    if strategy not in ("error", "latest"):
        raise ValueError("startingOffsetsByTimestampStrategy must be one of: error, latest")
    most = positive_number(options, "maxOffsetsPerTrigger")
    least = positive_number(options, "minOffsetsPerTrigger")
    if most is not None and least is not None and least > most:
        raise ValueError(
            f"The value of minOffsetPerTrigger({least}) is higher than the maxOffsetsPerTrigger({most})."
        )
    isolation = options.get("isolationLevel") or options.get("kafka.isolation.level")
    return ReadOptions(
        paths=paths_of(options),
        selection=_selection(options),
        starting=starting,
        ending=ending,
        latest_if_no_match=strategy == "latest",
        fail_on_data_loss=flag(options, "failOnDataLoss", default=True),
        isolation=_isolation(isolation),
        min_partitions=positive_number(options, "minPartitions"),
        max_records_per_partition=positive_number(options, "maxRecordsPerPartition"),
        max_offsets_per_trigger=most,
        min_offsets_per_trigger=least,
        max_bytes_per_trigger=positive_number(options, "maxBytesPerTrigger"),
        max_trigger_delay_ms=_duration_ms(options.get("maxTriggerDelay")),
        split_bytes=positive_number(options, "splitBytes"),
        initial_offsets_path=options.get("initialOffsetsPath"),
        group=_group(options),
        push_down_predicate=flag(options, "pushDownPredicate", default=False),
    )


def flag(options: Mapping[str, str], name: str, *, default: bool) -> bool:
    """Return the value of the boolean option `name`, or `default` if the option is not given.

    Raises `ValueError` if the value is neither true nor false.
    """
    text = options.get(name)
    if text is None:
        return default
    if text.lower() not in ("true", "false"):
        raise ValueError(f"option {name} must be true or false, not {text!r}")
    return text.lower() == "true"


def columns_of(options: Mapping[str, str]) -> list[str] | None:
    """Return the column names in the option `columns`, or None if the option is not given."""
    text = options.get("columns")
    return None if text is None else [name.strip() for name in text.split(",")]


def check_columns(options: Mapping[str, str], names: Sequence[str]) -> None:
    """Raise `ValueError` if the option `columns` is given and differs from `names`, the columns of the schema."""
    columns = columns_of(options)
    if columns is not None and columns != list(names):
        raise ValueError(
            f"the option 'columns' is {','.join(columns)!r}, but the schema has {', '.join(names)}: give only the "
            "option or only the schema; a table of the catalog keeps the columns of its creation"
        )


def _group(options: Mapping[str, str]) -> str | None:
    group = options.get("groupId")
    if group is not None and not group.strip():
        raise ValueError("groupId must be the name of a consumer group, but is empty")
    return group


def _isolation(text: str | None) -> Isolation:
    try:
        return Isolation(text.lower()) if text else Isolation.READ_UNCOMMITTED
    except ValueError:
        raise ValueError(
            f"isolationLevel must be read_uncommitted or read_committed, not {text!r}"
        ) from None


def positive_number(options: Mapping[str, str], name: str) -> int | None:
    """Return the value of the option `name`, or None if the option is not given.

    Raises `ValueError` if the value is not a positive integer.
    """
    text = options.get(name)
    if text is None:
        return None
    try:
        number = int(text)
    except ValueError:
        number = 0
    if number <= 0:
        raise ValueError(f"{name} must be positive: give a whole number of 1 or more, not {text!r}")
    return number


def _duration_ms(text: str | None) -> int:
    if text is None:
        return _DEFAULT_TRIGGER_DELAY_MS
    match = re.fullmatch(r"\s*([0-9]+)\s*([a-z]*)\s*", text.lower())
    if match is None or (match[2] or "ms") not in _UNITS_MS:
        raise ValueError(f"maxTriggerDelay must be a time like 15m or 30s, not {text!r}")
    return int(match[1]) * _UNITS_MS[match[2] or "ms"]


# The functions from here on parse the options that select partitions.


def _selection(options: Mapping[str, str]) -> Selection:
    given = [name for name in SELECTIONS if name in options]
    if not given:
        raise ValueError(
            f"One of the following options must be specified for the logfs source: {', '.join(SELECTIONS)}. "
            "See docs/spark.md for more details."
        )
    if len(given) > 1:
        raise ValueError(
            "Only one of the following options can be specified for the logfs source: "
            f"{', '.join(SELECTIONS)}. See docs/spark.md for more details."
        )
    (name,) = given
    text = options[name]
    if name == "assign":
        if not text.strip().startswith("{"):
            raise ValueError(
                "No topicpartitions to assign as specified value for option 'assign' is "
                f"'{text}': give JSON like {{\"orders\":[0,1]}}"
            )
        return Selection(kind=name, partitions=frozenset(_assigned(text)))
    if name == "subscribe":
        topics = frozenset(filter(None, map(str.strip, text.split(","))))
        if not topics:
            raise ValueError(
                f"No topics to subscribe to as specified value for option 'subscribe' is '{text}'"
            )
        return Selection(kind=name, topics=topics)
    if not text.strip():
        raise ValueError(
            f"Pattern to subscribe is empty as specified value for option 'subscribePattern' is '{text}'"
        )
    try:
        re.compile(text)
    except (re.error, OverflowError, RecursionError) as error:
        raise ValueError(
            f"option subscribePattern: {text!r} is not a valid pattern: {error}"
        ) from None
    return Selection(kind=name, pattern=text)


def _assigned(text: str) -> list[TopicPartition]:
    shape = 'Expected e.g. {"topicA":[0,1],"topicB":[0,1]}'
    found = _json(text, shape)
    try:
        return [TopicPartition(topic, int(n)) for topic, numbers in found.items() for n in numbers]
    except (TypeError, ValueError):
        raise ValueError(f"{shape}, got {text}") from None


# The code from here on parses the options for the start and the end of a read.

_OFFSETS_SHAPE = 'Expected e.g. {"topicA":{"0":23,"1":-1},"topicB":{"0":-2}}'
_TIMESTAMPS_SHAPE = (
    'Expected e.g. {"topicA": {"0": 123456789, "1": 123456789},\n'
    '"topicB": {"0": 123456789, "1": 123456789}}'
)


def _limit(options: Mapping[str, str], which: str, default: PositionKind) -> Limit:
    """Return the start or the end of a read; `which` is "starting" or "ending". Raises `ValueError`.

    If several options are given, the precedence is that of Kafka's source: one timestamp for all partitions, then
    timestamps by partition, then offsets. If none is given, the result has the kind `default`.
    """
    text = options.get(f"{which}Timestamp")
    if text is not None:
        return Limit(PositionKind.TIMESTAMPS, timestamp=_timestamp(f"{which}Timestamp", text))
    text = options.get(f"{which}OffsetsByTimestamp")
    if text is not None:
        return Limit(PositionKind.TIMESTAMPS, _by_partition(text, _TIMESTAMPS_SHAPE))
    text = options.get(f"{which}Offsets")
    if text is None:
        return Limit(default)
    if text.strip().lower() in (PositionKind.EARLIEST.value, PositionKind.LATEST.value):
        return Limit(PositionKind(text.strip().lower()))
    each = _by_partition(text, _OFFSETS_SHAPE)
    if min(each.values(), default=0) < EARLIEST_OFFSET:
        raise ValueError(
            f"{_OFFSETS_SHAPE}, where -1 is the latest offset and -2 the earliest, got {text}"
        )
    return Limit(PositionKind.OFFSETS, each)


def _timestamp(name: str, text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ValueError(
            f"Expected a single long value, got {text}: option {name} is a timestamp in ms"
        ) from None


def _by_partition(text: str, shape: str) -> dict[TopicPartition, int]:
    found = _json(text, shape)
    try:
        return {
            TopicPartition(topic, int(number)): int(value)
            for topic, each in found.items()
            for number, value in each.items()
        }
    except (AttributeError, TypeError, ValueError):
        raise ValueError(f"{shape}, got {text}") from None


def _json(text: str, shape: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise ValueError(f"{shape}, got {text}")
    return found


def _check_batch(starting: Limit, ending: Limit) -> None:
    """Raise `ValueError` for a batch query that begins at the latest offset or ends at the earliest."""
    _forbid(starting, PositionKind.LATEST, LATEST_OFFSET, ("starting offset", "startingOffsets"))
    _forbid(ending, PositionKind.EARLIEST, EARLIEST_OFFSET, ("ending offset", "ending offset"))


def _forbid(limit: Limit, kind: PositionKind, offset: int, words: tuple[str, str]) -> None:
    """Raise `ValueError` if `limit` is `kind` (EARLIEST or LATEST) for all partitions, or for one of them.

    `offset` is the offset that stands for `kind` where `limit` gives offsets by partition: `EARLIEST_OFFSET` or
    `LATEST_OFFSET`. `words` has the beginning of the message for all partitions, and of that for one partition.
    """
    after = f" can't be {kind.value} for batch queries on Kafka"
    if limit.kind is kind:
        raise ValueError(words[0] + after)
    if limit.kind is PositionKind.OFFSETS:
        for name, found in limit.each.items():
            if found == offset:
                raise ValueError(f"{words[1]} for {name.directory}{after}")


def check_partitions(
    limit: Limit,
    found: Mapping[TopicPartition, object],
    describe: Callable[[Iterable[TopicPartition]], str],
) -> None:
    """Raise `ValueError` unless a limit names exactly the partitions that the query reads, which are in `found`.

    `limit` must have the kind OFFSETS or TIMESTAMPS. A limit with one timestamp for all partitions always passes.
    `describe` returns partitions as text for the error.
    """
    if limit.timestamp is None and limit.each.keys() != found.keys():
        timestamps = limit.kind is PositionKind.TIMESTAMPS
        raise ValueError(
            f"Partitions specified for Kafka {'timestamp based ' if timestamps else ''}start offsets don't match "
            "what are assigned: name exactly the partitions that are read, for the start and for the end"
            f"{'' if timestamps else '. Use -1 for latest, -2 for earliest'}.\n"
            f"Specified: {describe(limit.each)} Assigned: {describe(found)}"
        )
