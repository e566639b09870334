"""The names of Kafka's files and partition directories (kafka-storage 1.1, 1.2 and 1.9)."""

from __future__ import annotations

import enum
import re
from typing import NamedTuple

from logfs.errors import InvalidName

# Suffixes of the files in a partition directory (kafka-storage 1.1).

LOG = ".log"
OFFSET_INDEX = ".index"
TIME_INDEX = ".timeindex"
TXN_INDEX = ".txnindex"
TEXT_INDEX = ".textindex"
"""Ours alone: a third sparse index. Kafka ignores files with suffixes that it does not know."""
SNAPSHOT = ".snapshot"
SEGMENT_FILES = (LOG, OFFSET_INDEX, TIME_INDEX, TXN_INDEX, TEXT_INDEX)
"""Those of one segment."""
# A position is an int32 in the indexes, and Kafka opens no .log that is longer (kafka-storage 1.1).
MAX_SEGMENT_BYTES = 2**31 - 1

# Ours, too, and one for each isolation level: where the newest record of each key is (`logfs.log.key_map`).
KEY_MAP = "logfs.keys"
COMMITTED_KEY_MAP = "logfs.keys.committed"

# These follow one of the suffixes above: `<base>.log.deleted`.
DELETED = ".deleted"
CLEANED = ".cleaned"
SWAP = ".swap"

INT32_MAX = 2**31 - 1
INT64_MAX = 2**63 - 1
STEM_DIGITS = 20
TOPIC_LENGTH = 249
FILE_NAME_LENGTH = 255

# Leading zeros stay out of the group, so that `int` is given few digits, however long the name.
STEM = re.compile(r"([+-]?)0*([0-9]{1,19})")
PARTITION = re.compile(r"0|[1-9][0-9]{0,9}")
NOT_IN_TOPIC = re.compile(r"[^a-zA-Z0-9._-]")


class TopicPartition(NamedTuple):
    """One partition of a topic: a plain value, whose names the functions below judge."""

    topic: str
    partition: int

    @property
    def directory(self) -> str:
        """The name of the partition's directory, `orders-0`."""
        return f"{self.topic}-{self.partition}"


class DirectoryKind(enum.Enum):
    """What a partition directory is for; the value is the end of its name (kafka-storage 1.2)."""

    NORMAL = ""
    DELETED = "-delete"
    FUTURE = "-future"
    STRAY = "-stray"


def stem(offset: int) -> str:
    """The numeric part of a file's name: the offset as 20 digits.

    Raises `InvalidName` unless the offset is in 0..2^63-1.
    """
    if not 0 <= offset <= INT64_MAX:
        raise InvalidName(f"offset {offset} is not in 0..{INT64_MAX}")
    return f"{offset:0{STEM_DIGITS}d}"


def parse_stem(name: str) -> int:
    """The offset that a file's name begins with: everything before the first dot, padded or not.

    A signed 64-bit decimal as in Kafka, so a negative one is returned too. Raises `InvalidName` for
    anything else.
    """
    digits, _, _ = name.partition(".")
    number = STEM.fullmatch(digits)
    if number is None:
        raise InvalidName(f"{name!r} does not begin with an offset and a dot")
    offset = int(number[1] + number[2])
    if not -INT64_MAX - 1 <= offset <= INT64_MAX:
        raise InvalidName(f"the offset that {name!r} begins with does not fit in 64 bits")
    return offset


def check_topic(name: str) -> None:
    """Raise `InvalidName` unless Kafka allows a topic of that name (kafka-storage 1.9)."""
    if not name:
        raise InvalidName("a topic's name may not be empty")
    if name in {".", ".."}:
        raise InvalidName(f"a topic's name may not be {name!r}")
    if len(name) > TOPIC_LENGTH:
        raise InvalidName(
            f"a topic's name may have {TOPIC_LENGTH} characters; {name[:20]!r}... has {len(name)}"
        )
    if wrong := NOT_IN_TOPIC.search(name):
        raise InvalidName(
            f"the topic name {name!r} has {wrong[0]!r} in it; "
            "only ASCII letters, digits, '.', '_' and '-' are allowed"
        )


def check_partition(number: int) -> None:
    """Raise `InvalidName` unless `number` is in 0..2^31-1."""
    if not 0 <= number <= INT32_MAX:
        raise InvalidName(f"partition {number} is not in 0..{INT32_MAX}")


def parse_directory(name: str) -> TopicPartition:
    """The partition whose directory is called `name`, split at the last dash.

    Only the canonical name is accepted, the one that `TopicPartition.directory` gives back. Java
    would read `orders-01`, `orders-+1` and other scripts' digits as partition 1 too; then two
    directories could claim to be one partition.

    Raises `InvalidName`.
    """
    topic, dash, number = name.rpartition("-")
    if not dash:
        raise InvalidName(f"{name!r} is not <topic>-<partition>: it has no dash")
    if not PARTITION.fullmatch(number):
        raise InvalidName(
            f"{name!r} is not <topic>-<partition>: "
            f"{number!r} is not a number in plain digits without leading zeros"
        )
    check_topic(topic)
    partition = TopicPartition(topic, int(number))
    check_partition(partition.partition)
    return partition


def deleted_directory(partition: TopicPartition, uuid_hex: str) -> str:
    """The name that a partition's directory gets when it is scheduled for deletion.

    `uuid_hex` is a random UUID as 32 hex digits, so that a topic can be deleted, made and deleted
    again. The topic is cut where the whole would pass 255 characters, the longest name that
    filesystems allow.
    """
    end = f"-{partition.partition}.{uuid_hex}{DirectoryKind.DELETED.value}"
    return partition.topic[: FILE_NAME_LENGTH - len(end)] + end


def future_directory(partition: TopicPartition, uuid_hex: str) -> str:
    """The name of a copy that is to take a partition's place in another log directory. Never cut, as in Kafka."""
    return f"{partition.directory}.{uuid_hex}{DirectoryKind.FUTURE.value}"


def stray_directory(future: str) -> str:
    """The name that the original gets when the copy in the directory called `future` takes its place."""
    return future.removesuffix(DirectoryKind.FUTURE.value) + DirectoryKind.STRAY.value


def unique_part(directory: str) -> str:
    """What tells the directory of a move or a deletion from others of that partition: the UUID in its name."""
    return directory.rpartition(".")[2].partition("-")[0]


def classify_directory(name: str) -> tuple[DirectoryKind, TopicPartition]:
    """What the partition directory called `name` is for, and its partition.

    For a deleted or stray directory the topic may be cut short; see `deleted_directory`. Raises
    `InvalidName`.
    """
    for kind in (DirectoryKind.DELETED, DirectoryKind.FUTURE, DirectoryKind.STRAY):
        if name.endswith(kind.value):
            directory, dot, unique = name.removesuffix(kind.value).rpartition(".")
            if not dot or not unique or re.search(r"\s", unique):
                raise InvalidName(f"{name!r} is not <topic>-<partition>.<unique id>{kind.value}")
            return kind, parse_directory(directory)
    return DirectoryKind.NORMAL, parse_directory(name)


# Bytes as file names: a group's, a key's.

PERCENT = re.compile(rb"[/%\0]|[^\0-\x7f]+")
ESCAPE = re.compile(rb"%([0-9A-F]{2})")


def file_name(data: bytes, reserved: tuple[str, ...] = ()) -> str:
    """A file's name that stands for any bytes, each of its own: text stays as it is, the rest is percent-encoded.

    Encoded (`%2F`) are `/`, NUL, `%`, a dot in front, what is not UTF-8, and the dot of an end that is in `reserved`
    (`.lag`), which is kept for files beside this one. No bytes at all are a lone `%`.
    """
    name = PERCENT.sub(_percent, data).decode()
    if name.startswith("."):
        name = "%2E" + name[1:]
    for end in reserved:
        if name.endswith(end):
            name = name.removesuffix(end) + end.replace(".", "%2E", 1)
    return name or "%"


def parse_file_name(name: str, reserved: tuple[str, ...] = ()) -> bytes | None:
    """The bytes that a name of `file_name` stands for; None for a name that it does not give."""
    try:
        data = ESCAPE.sub(lambda match: bytes([int(match[1], 16)]), name.encode())
    except UnicodeEncodeError:
        # Bytes that are not UTF-8 would be encoded.
        return None
    data = b"" if name == "%" else data
    return data if file_name(data, reserved) == name else None


def _percent(match: re.Match[bytes]) -> bytes:
    data = match[0]
    if data[0] >= 128:
        try:
            return data.decode().encode()
        except UnicodeDecodeError:
            pass
    return b"".join(b"%%%02X" % byte for byte in data)
