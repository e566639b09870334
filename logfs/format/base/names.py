"""The names of Kafka's files and partition directories (kafka-storage 1.1, 1.2 and 1.9)."""

from __future__ import annotations

import enum
import re
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from logfs.errors import InvalidName

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

# Suffixes of the files in a partition directory (docs/kafka-storage.md 1.1).

LOG = ".log"
OFFSET_INDEX = ".index"
TIME_INDEX = ".timeindex"
TXN_INDEX = ".txnindex"
TEXT_INDEX = ".textindex"
"""The text index: a sparse index by byte of the text views. Kafka does not have it, and ignores unknown suffixes."""
SNAPSHOT = ".snapshot"
SEGMENT_FILES = (LOG, OFFSET_INDEX, TIME_INDEX, TXN_INDEX, TEXT_INDEX)
"""The suffixes of the files of a segment."""
# The largest size of a .log file: Kafka does not open a larger one, and a position in an index is an int32
# (kafka-storage 1.1).
MAX_SEGMENT_BYTES = 2**31 - 1

# The files of the key index (module `key_index`), one for each isolation level. Kafka has no such files.
KEY_INDEX = "logfs.keys"
COMMITTED_KEY_INDEX = "logfs.keys.committed"

# The files in a partition directory that hold the topic's id and the leader epochs (kafka-storage 1.5, 10.1).
PARTITION_METADATA = "partition.metadata"
LEADER_EPOCHS = "leader-epoch-checkpoint"

INTERNAL_TOPICS = frozenset({"__consumer_offsets", "__transaction_state", "__share_group_state"})
"""The topics that Kafka calls internal: a consumer that subscribes to a pattern does not get them."""

# Suffixes that follow another suffix, as in `<base>.log.deleted`. DELETED marks a file that will be removed, CLEANED
# the incomplete output of a compaction, and SWAP its complete output.
DELETED = ".deleted"
CLEANED = ".cleaned"
SWAP = ".swap"

INT32_MAX = 2**31 - 1
INT64_MAX = 2**63 - 1
# The number of digits in a segment file's name, the most characters in a topic's name, and those in a file's name.
STEM_DIGITS = 20
TOPIC_LENGTH = 249
FILE_NAME_LENGTH = 255

# Group 2 of STEM has no leading zeros and at most 19 digits, because `int` refuses text of more than 4300 digits.
STEM = re.compile(r"([+-]?)0*([0-9]{1,19})")
PARTITION = re.compile(r"0|[1-9][0-9]{0,9}")
NOT_IN_TOPIC = re.compile(r"[^a-zA-Z0-9._-]")


class TopicPartition(NamedTuple):
    """One partition of a topic. The constructor does not check the values; `check_topic` and `check_partition` do."""

    topic: str
    partition: int

    @property
    def directory(self) -> str:
        """The name of the partition's directory, such as `orders-0`."""
        return f"{self.topic}-{self.partition}"


class DirectoryKind(enum.Enum):
    """The purpose of a partition directory. The value is the suffix of the directory's name (kafka-storage 1.2).

    NORMAL is a partition in use. DELETED waits for the removal of its files. FUTURE is the copy of a partition that
    is being moved to this log directory. STRAY is an original that has been replaced by its copy in another log
    directory, or a partition that Kafka has not assigned to the broker.
    """

    NORMAL = ""
    DELETED = "-delete"
    FUTURE = "-future"
    STRAY = "-stray"


def stem(offset: int) -> str:
    """Return the offset as 20 digits: the name of a segment file or a producer snapshot, up to the first dot.

    Raises `InvalidName` unless the offset is in 0..2^63-1.
    """
    if not 0 <= offset <= INT64_MAX:
        raise InvalidName(
            f"offset {offset} is not in 0..{INT64_MAX}, the offsets that a log can have"
        )
    return f"{offset:0{STEM_DIGITS}d}"


def parse_stem(name: str) -> int:
    """Return the offset at the beginning of a file's name: the number before the first dot.

    As in Kafka the number may have a sign and any number of leading zeros; a negative offset is returned as it is.
    Raises `InvalidName` if the text before the dot is not a decimal number of at most 64 bits.
    """
    digits, _, _ = name.partition(".")
    number = STEM.fullmatch(digits)
    if number is None:
        raise InvalidName(f"the file name {name!r} does not begin with a decimal offset and a dot")
    offset = int(number[1] + number[2])
    if not -INT64_MAX - 1 <= offset <= INT64_MAX:
        raise InvalidName(
            f"the offset at the beginning of the file name {name!r} does not fit in 64 bits"
        )
    return offset


def check_topic(name: str) -> None:
    """Raise `InvalidName` unless Kafka allows a topic of that name (kafka-storage 1.9)."""
    if not name:
        raise InvalidName("a topic's name may not be empty")
    if name in {".", ".."}:
        raise InvalidName(f"a topic's name may not be {name!r}")
    if len(name) > TOPIC_LENGTH:
        raise InvalidName(
            f"a topic's name may have at most {TOPIC_LENGTH} characters; {name[:20]!r}... has {len(name)}"
        )
    if wrong := NOT_IN_TOPIC.search(name):
        raise InvalidName(
            f"the topic name {name!r} contains {wrong[0]!r}; "
            "only ASCII letters, digits, '.', '_' and '-' are allowed"
        )


def check_partition(number: int) -> None:
    """Raise `InvalidName` unless `number` is in 0..2^31-1."""
    if not 0 <= number <= INT32_MAX:
        raise InvalidName(
            f"partition {number} is not in 0..{INT32_MAX}, the partition numbers that a topic can have"
        )


def parse_directory(name: str) -> TopicPartition:
    """Return the partition whose directory is called `name`. The name is split at the last dash.

    Raises `InvalidName` unless `name` is the directory name of a partition in use, such as `orders-0`. Unlike in
    Kafka, the number must be in ASCII digits, without a sign or leading zeros. Otherwise `orders-1`, `orders-01` and
    `orders-+1` would all be directories of one partition.
    """
    topic, dash, number = name.rpartition("-")
    if not dash:
        raise InvalidName(
            f"{name!r} is not a partition's name, <topic>-<partition>: it has no dash"
        )
    if not PARTITION.fullmatch(number):
        raise InvalidName(
            f"{name!r} is not a partition's name, <topic>-<partition>: "
            f"{number!r} is not a number in plain digits without leading zeros"
        )
    check_topic(topic)
    partition = TopicPartition(topic, int(number))
    check_partition(partition.partition)
    return partition


def partitions_named(name: str, existing: Collection[str]) -> list[str]:
    """Return the names of the partitions that `name` stands for: one partition, or all partitions of a topic.

    `existing` has the names of all partition directories. If it contains `name`, the result is [`name`]. Otherwise
    `name` is taken as a topic, and the result has the topic's partitions in the order of their numbers. If the topic
    has no partitions, the result is [`name`], too.
    """
    if name in existing:
        return [name]
    return [each.directory for each in partitions_of(name, existing)] or [name]


def partitions_of(topic: str, existing: Iterable[str]) -> list[TopicPartition]:
    """Return the partitions of a topic among the directories called `existing`, in the order of their numbers."""
    found = []
    # Iterate over a copy, because other threads may add and remove directories.
    for name in list(existing):
        # Test the prefix first: there may be very many partitions, and parsing every name takes long.
        if name.startswith(f"{topic}-"):
            with suppress(InvalidName):
                found.append(parse_directory(name))
    return sorted(each for each in found if each.topic == topic)


def deleted_directory(partition: TopicPartition, uuid_hex: str) -> str:
    """Return the name that a partition's directory gets when it is scheduled for deletion.

    `uuid_hex` is a random UUID as 32 hex digits. It makes the name unique even if a topic is deleted, created and
    deleted again. The topic is truncated if the name would exceed 255 characters, the limit of filesystems.
    """
    end = f"-{partition.partition}.{uuid_hex}{DirectoryKind.DELETED.value}"
    return partition.topic[: FILE_NAME_LENGTH - len(end)] + end


def future_directory(partition: TopicPartition, uuid_hex: str) -> str:
    """Return the name of the directory to which a partition is copied when it moves to another log directory.

    `uuid_hex` is a random UUID as 32 hex digits. As in Kafka, and unlike in `deleted_directory`, a long topic is not
    truncated.
    """
    return f"{partition.directory}.{uuid_hex}{DirectoryKind.FUTURE.value}"


def stray_directory(future: str) -> str:
    """Return the name that a partition's original directory gets when a copy replaces it.

    `future` is the name of the copy's directory, as `future_directory` returns it.
    """
    return future.removesuffix(DirectoryKind.FUTURE.value) + DirectoryKind.STRAY.value


def unique_part(directory: str) -> str:
    """Return the UUID in the name of a deleted, future or stray directory.

    Each deletion and each move has a UUID of its own.
    """
    return directory.rpartition(".")[2].partition("-")[0]


def classify_directory(name: str) -> tuple[DirectoryKind, TopicPartition]:
    """Return the purpose and the partition of the partition directory called `name`.

    The topic of a deleted or stray directory may be truncated, because a directory's name has at most 255 characters.
    Raises `InvalidName` if `name` is not the name of a partition directory.
    """
    for kind in (DirectoryKind.DELETED, DirectoryKind.FUTURE, DirectoryKind.STRAY):
        if name.endswith(kind.value):
            directory, dot, unique = name.removesuffix(kind.value).rpartition(".")
            if not dot or not unique or re.search(r"\s", unique):
                raise InvalidName(
                    f"the directory name {name!r} is not <topic>-<partition>.<unique id>{kind.value}"
                )
            return kind, parse_directory(directory)
    return DirectoryKind.NORMAL, parse_directory(name)


# The functions below convert arbitrary bytes, such as names of groups and keys, to file names and back.

PERCENT = re.compile(rb"[/%\0]|[^\0-\x7f]+")
ESCAPE = re.compile(rb"%([0-9A-F]{2})")


def file_name(data: bytes, reserved: tuple[str, ...] = ()) -> str:
    """Return a file name for any bytes, such as a key. Different bytes get different names.

    UTF-8 text stays as it is, except for `/`, NUL, `%` and a leading dot. These, and each sequence of non-ASCII bytes
    that is not UTF-8, are percent-encoded (`/` as `%2F`). Empty bytes become a lone `%`. `reserved` has endings of
    names that are kept for other files: if the name has such an ending, the dot in it is encoded. With `reserved` =
    (".lag",), `a.lag` becomes `a%2Elag`.
    """
    name = PERCENT.sub(_percent, data).decode()
    if name.startswith("."):
        name = "%2E" + name[1:]
    for end in reserved:
        if name.endswith(end):
            name = name.removesuffix(end) + end.replace(".", "%2E", 1)
    return name or "%"


def parse_file_name(name: str, reserved: tuple[str, ...] = ()) -> bytes | None:
    """Return the bytes for which `file_name` returns `name`; None if there are none.

    `reserved` must be the same as in the call of `file_name`.
    """
    try:
        data = ESCAPE.sub(lambda match: bytes([int(match[1], 16)]), name.encode())
    except UnicodeEncodeError:
        # The name has bytes that are not UTF-8. `file_name` percent-encodes such bytes, so it does not return this
        # name.
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
