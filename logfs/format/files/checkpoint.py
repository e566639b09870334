"""Kafka's small text files: checkpoints, partition.metadata, meta.properties, the clean-shutdown marker.

Each kind has a `format_` function that returns the file's bytes, and a `parse_` function that reads them. A `parse_`
function raises `Corrupt`, with the line and the reason, for bytes that are not such a file. The layouts are those of
kafka-storage 1.4 to 1.7.
"""

from __future__ import annotations

import base64
import re
import uuid
from typing import TYPE_CHECKING, TypeVar

from logfs.errors import Corrupt
from logfs.format.base.names import INT32_MAX, INT64_MAX, TopicPartition

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

VERSION = 0

# Line ends and blanks as Java defines them. Python's `splitlines` and `split` also accept other characters, so they
# are not used here.
LINE_END = re.compile(r"\r\n|\r|\n")
BLANKS = re.compile(r"[ \t\v\f]+")
# A decimal number. Group 1 has no leading zeros, because `int` refuses text of more than 4300 digits.
NUMBER = re.compile(r"0*([0-9]{1,19})")
# Zero bytes to search for in a file: a crash during a write can leave very many, and a valid file has none.
_HOLE = bytes(64)

T = TypeVar("T")


def _decoded(data: bytes) -> str:
    hole = data.find(_HOLE)
    if hole >= 0:
        # Refuse the file before its text is searched: there may be very many zero bytes, and matching the regular
        # expressions would take much memory.
        line = data.count(b"\n", 0, hole) + 1
        raise Corrupt(f"line {line}: zero bytes, as a crash leaves them")
    try:
        return data.decode()
    except UnicodeDecodeError as problem:
        line = data.count(b"\n", 0, problem.start) + 1
        raise Corrupt(f"line {line}: not UTF-8") from None


def _lines(data: bytes) -> list[str]:
    """Return the lines of a file without their line ends. The last line need not have a line end."""
    lines = LINE_END.split(_decoded(data))
    return lines if lines[-1] else lines[:-1]


def _number(text: str, *, most: int, what: str, line: int) -> int:
    """Return the decimal number `text`. Raises `Corrupt` unless it is in 0..`most`.

    The error shows `what`, the meaning of the number, and `line`, its line in the file.
    """
    digits = NUMBER.fullmatch(text)
    if digits is None or int(digits[1]) > most:
        raise Corrupt(f"line {line}: {what} {text[:30]!r} is not a number in 0..{most}")
    return int(digits[1])


# A checkpoint (kafka-storage 1.4) has a line with the version, a line with the number of entries, and a line for each
# entry.


def format_offsets(offsets: Mapping[TopicPartition, int]) -> bytes:
    """Return an offset checkpoint file: an offset for each partition, sorted by topic and partition."""
    return _format_entries(
        f"{topic} {partition} {offset}" for (topic, partition), offset in sorted(offsets.items())
    )


def parse_offsets(data: bytes) -> dict[TopicPartition, int]:
    """Return the offset of each partition in an offset checkpoint file; {} for an empty file.

    Raises `Corrupt` if the file is malformed.
    """
    return dict(_parse_entries(data, fields=3, parse=_offset_entry))


def _offset_entry(fields: list[str], line: int) -> tuple[TopicPartition, int]:
    topic, partition, offset = fields
    return (
        TopicPartition(topic, _number(partition, most=INT32_MAX, what="partition", line=line)),
        _number(offset, most=INT64_MAX, what="offset", line=line),
    )


def format_epochs(epochs: Sequence[tuple[int, int]]) -> bytes:
    """Return a leader-epoch-checkpoint file with (epoch, start offset) pairs, which must be in ascending order."""
    return _format_entries(f"{epoch} {start_offset}" for epoch, start_offset in epochs)


def parse_epochs(data: bytes) -> list[tuple[int, int]]:
    """Return the (epoch, start offset) pairs of a leader-epoch-checkpoint file, in the order of its lines.

    Raises `Corrupt` if the file is malformed.
    """
    return _parse_entries(data, fields=2, parse=_epoch_entry)


def _epoch_entry(fields: list[str], line: int) -> tuple[int, int]:
    epoch, start_offset = fields
    return (
        _number(epoch, most=INT32_MAX, what="epoch", line=line),
        _number(start_offset, most=INT64_MAX, what="start offset", line=line),
    )


def _format_entries(entries: Iterable[str]) -> bytes:
    entries = list(entries)
    lines = [str(VERSION), str(len(entries)), *entries]
    return "".join(f"{line}\n" for line in lines).encode()


def _parse_entries(data: bytes, *, fields: int, parse: Callable[[list[str], int], T]) -> list[T]:
    lines = _lines(data)
    if lines and lines[0] != str(VERSION):
        raise Corrupt(f"line 1: version {lines[0][:30]!r} is not supported; only {VERSION} is")
    # A file without the number of entries is not damaged: Kafka creates the file before it writes to it.
    if len(lines) < 2:
        return []
    count = _number(lines[1], most=INT32_MAX, what="entry count", line=2)
    entries = []
    for number, line in enumerate(lines[2:], start=3):
        words = BLANKS.split(line)
        if len(words) != fields or not all(words):
            raise Corrupt(f"line {number}: {line[:300]!r} does not have {fields} fields")
        entries.append(parse(words, number))
    if len(entries) != count:
        raise Corrupt(f"line 2: {count} entries announced, but {len(entries)} follow")
    return entries


# UUIDs are written as 16 bytes in URL-safe base64, without padding.

ZERO_ID = uuid.UUID(int=0)
METADATA_TOPIC_ID = uuid.UUID(int=1)
RESERVED_IDS = 100
"""Kafka reserves the ids 0..99: no log directory and no topic but `__cluster_metadata` has one of them."""

UUID_TEXT = re.compile(r"[A-Za-z0-9_-]{22}(==)?")


def uuid_to_text(value: uuid.UUID) -> str:
    """Return a UUID as text in Kafka's form, which has 22 characters (kafka-storage 1.5)."""
    return base64.urlsafe_b64encode(value.bytes).rstrip(b"=").decode()


def text_to_uuid(text: str) -> uuid.UUID:
    """Return the id that Kafka writes as `text`: 22 characters of URL-safe base64.

    Also accepts 24 characters, of which the last two are the padding `==`. Raises `Corrupt` for any other text.
    """
    if not UUID_TEXT.fullmatch(text):
        raise Corrupt(f"{text[:30]!r} is not a Kafka id: 22 letters, digits, '-' and '_'")
    return uuid.UUID(bytes=base64.urlsafe_b64decode(text[:22] + "=="))


def is_reserved(value: uuid.UUID) -> bool:
    """Whether Kafka reserves the id, so that no new topic or log directory may have it."""
    return value.int < RESERVED_IDS


def random_uuid(draw: Callable[[], uuid.UUID] = uuid.uuid4) -> uuid.UUID:
    """Return a new id for a topic, directory or cluster.

    The id is not reserved, and its text does not begin with `-`, so that no command takes it for an option. `draw`
    returns a random id, and is called until the id is suitable.
    """
    while True:
        value = draw()
        if not is_reserved(value) and not uuid_to_text(value).startswith("-"):
            return value


# A partition.metadata file (kafka-storage 1.5) has two lines of the form `key: value`, the last one without a line
# end.


def format_partition_metadata(topic_id: uuid.UUID) -> bytes:
    """Return the content of a partition.metadata file, which records the topic's id."""
    return f"version: {VERSION}\ntopic_id: {uuid_to_text(topic_id)}".encode()


def parse_partition_metadata(data: bytes) -> uuid.UUID:
    """Return the topic id of a partition.metadata file of any version.

    Raises `Corrupt` if the file is malformed or the id is zero.
    """
    lines = _lines(data)
    _number(_metadata_value(lines, 1, "version"), most=INT32_MAX, what="version", line=1)
    text = _metadata_value(lines, 2, "topic_id")
    try:
        topic_id = text_to_uuid(text)
    except Corrupt as problem:
        raise Corrupt(f"line 2: {problem}") from None
    if topic_id == ZERO_ID:
        raise Corrupt("line 2: the topic id is zero, which means none")
    return topic_id


def _metadata_value(lines: list[str], number: int, key: str) -> str:
    line = lines[number - 1] if number <= len(lines) else ""
    found = re.fullmatch(rf"{key}:[ \t\v\f]+([^ \t\v\f]+)", line)
    if found is None:
        raise Corrupt(f"line {number}: {line[:300]!r} is not '{key}: <value>'")
    return found[1]


# A meta.properties file (kafka-storage 1.6) is a file of Java properties.

PROPERTY_BLANKS = " \t\f"
PROPERTY = re.compile(r"((?:[^\\=: \t\f]|\\.)*)[ \t\f]*[=:]?[ \t\f]*(.*)", re.DOTALL)
ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|.)", re.DOTALL)
LETTER_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
ESCAPED = str.maketrans(
    {character: f"\\{letter}" for letter, character in LETTER_ESCAPES.items()}
    | {character: f"\\{character}" for character in "\\=:#!"}
)


def format_meta_properties(properties: Mapping[str, str]) -> bytes:
    """Return a meta.properties file: a line `key=value` for each property, sorted by key, in UTF-8.

    The file has no date, so equal properties give equal bytes.
    """
    return "".join(
        f"{_escaped_key(key)}={_escaped_value(value)}\n"
        for key, value in sorted(properties.items())
    ).encode()


def _escaped_key(key: str) -> str:
    return key.translate(ESCAPED).replace(" ", "\\ ")


def _escaped_value(value: str) -> str:
    # A parser skips blanks after the separator, so a blank at the beginning of the value must be escaped.
    escaped = value.translate(ESCAPED)
    return f"\\{escaped}" if escaped.startswith(" ") else escaped


def parse_properties(data: bytes) -> dict[str, str]:
    """Return the keys and values of a file of Java properties in UTF-8; a repeated key has its last value.

    Raises `Corrupt` if the file is malformed.
    """
    properties = {}
    for number, line in _property_lines(_decoded(data)):
        found = PROPERTY.fullmatch(line)
        assert found is not None, "the pattern takes any line without a lone backslash at its end"
        key, value = found.groups()
        properties[_unescaped(key, number)] = _unescaped(value, number)
    return properties


def _property_lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield (number, line) for each line that is neither a comment nor empty.

    A line that ends in a backslash is joined with the next line. A joined line has the number of its first part.
    """
    lines = enumerate(LINE_END.split(text), start=1)
    for number, line in lines:
        joined = line.lstrip(PROPERTY_BLANKS)
        if joined.startswith(("#", "!")):
            continue
        while _continues(joined):
            _, line = next(lines, (0, ""))
            joined = joined[:-1] + line.lstrip(PROPERTY_BLANKS)
        if joined:
            yield number, joined


def _continues(line: str) -> bool:
    """Whether a line ends in a backslash that is not itself escaped."""
    return (len(line) - len(line.rstrip("\\"))) % 2 == 1


def _unescaped(text: str, line: int) -> str:
    def replacement(escape: re.Match[str]) -> str:
        code = escape[1]
        if code == "u":
            raise Corrupt(f"line {line}: \\u without four hex digits")
        if code.startswith("u"):
            return chr(int(code[1:], 16))
        return LETTER_ESCAPES.get(code, code)

    return _paired(ESCAPE.sub(replacement, text), line)


def _paired(text: str, line: int) -> str:
    """Return `text` with each surrogate pair joined to one character, because escapes in Java are UTF-16 code units.

    Raises `Corrupt` for a surrogate that is not part of a pair. The error shows `line`, the line in the file.
    """
    try:
        return text.encode("utf-16", "surrogatepass").decode("utf-16")
    except UnicodeDecodeError:
        raise Corrupt(f"line {line}: an escape \\uD800 to \\uDFFF without its other half") from None


# The existence of .kafka_cleanshutdown shows that the shutdown was clean, whatever the file contains (kafka-storage
# 1.7). It may contain a broker epoch.

UNKNOWN_BROKER_EPOCH = -1


def format_clean_shutdown(broker_epoch: int = UNKNOWN_BROKER_EPOCH) -> bytes:
    """Return the content of `.kafka_cleanshutdown`, the marker that a clean shutdown leaves in a log directory.

    `broker_epoch` is -1 if it is not known.
    """
    return f'{{"version":{VERSION},"brokerEpoch":{broker_epoch}}}'.encode()


def parse_clean_shutdown(data: bytes) -> int:
    """Return the broker epoch of a clean-shutdown marker: -1 if unknown, as in an older, empty marker.

    Raises `Corrupt` for any other content. The caller may ignore this error and treat the shutdown as clean, because
    only the existence of the marker counts.
    """
    import orjson

    if not data:
        return UNKNOWN_BROKER_EPOCH
    try:
        marker = orjson.loads(data)
    except orjson.JSONDecodeError as problem:
        raise Corrupt(f"line {problem.lineno}: {problem.msg}") from None
    epoch = marker.get("brokerEpoch") if isinstance(marker, dict) else None
    if type(epoch) is not int or not UNKNOWN_BROKER_EPOCH <= epoch <= INT64_MAX:
        raise Corrupt("line 1: not a JSON object with a brokerEpoch of -1 or more")
    return epoch
