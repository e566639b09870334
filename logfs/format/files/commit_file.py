"""The commit file in a log directory: the last completed commit of each writer, and at most one commit in progress.

A writer stages batches in files. A commit appends all of these batches, or none, to one or several partitions. The
commit is decided by the rename that replaces the commit file: after this rename, a crash does not undo the commit,
and the next process completes it. The file has two lines of text: a JSON object, and the CRC-32C of the bytes of the
first line.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, fields
from typing import Any, NamedTuple, TypeVar

from logfs.errors import Corrupt
from logfs.format.base.crc import crc32c

FILE_NAME = "logfs-commits"
VERSION = 0
# The suffix of files with staged batches. A broker ignores files with a suffix that it does not know (kafka-storage
# 1.1).
STAGED = ".staged"
# The `append_time` of a `CommitPart` whose topic does not have LogAppendTime.
NO_APPEND_TIME = -1
# The `base_offset` of a `CommitPart` whose batches, except the first `skip`, have no offsets in the log yet.
NO_PLACE = -1

# The valid values of integer fields, by the name of the field. Other integer fields may have any int64.
_RANGES = {
    **dict.fromkeys(("size_bytes", "record_count", "segment", "position", "skip"), range(2**63)),
    "base_offset": range(NO_PLACE, 2**63),
    "leader_epoch": range(-1, 2**31),
    "append_time": range(NO_APPEND_TIME, 2**63),
}


@dataclass(frozen=True, slots=True)
class StagedFile:
    """A file of record batches in a partition's directory, which a commit appends to the partition.

    The base offsets in the file begin at 0. `partition` is the name of the directory, such as `orders-0`; `name` is
    the name of the file in the directory. `size_bytes` is the file's length, `record_count` the number of records in
    it, each of which gets one offset.
    """

    partition: str
    name: str
    size_bytes: int
    record_count: int


class Writer(NamedTuple):
    """The last completed commit of a writer. The name of the writer is the key of this entry in `CommitLog.writers`.

    `sequence` is the writer's number for the commit, which rises from commit to commit. `time_ms` is the time of the
    commit, in ms since the epoch.
    """

    sequence: int
    time_ms: int


@dataclass(frozen=True, slots=True)
class CommitPart:
    """The part of a commit that concerns one partition: the staged batches, and their place in the log.

    `partition` is the name of the partition's directory. `log_dir` is the path of the log directory that had the
    partition when the commit was recorded; it is "" if this log directory also has the commit file.

    The batches are those of `files`, one file after the other. The first `skip` batches are in the log already: a
    process appended them before it crashed, and batches of another writer follow them. The place of the remaining
    batches begins at offset `base_offset`, at byte `position` of the segment whose base offset is `segment`. If
    `base_offset` is NO_PLACE, they have no place yet, and are not in the log. They get the leader epoch
    `leader_epoch` and, if the topic has LogAppendTime, the timestamp `append_time` (ms).

    If `done` is set, the part needs no more work: its batches are durable, or its partition was deleted.
    """

    partition: str
    files: tuple[StagedFile, ...]
    base_offset: int
    segment: int
    position: int
    leader_epoch: int
    append_time: int = NO_APPEND_TIME
    skip: int = 0
    done: bool = False
    log_dir: str = ""


@dataclass(frozen=True, slots=True)
class Pending:
    """A commit that is durably recorded, but not completed: some of its batches may not be in the log yet.

    The next process that opens the log directories for writing completes the commit. `writer` is the name of the
    writer, `sequence` the writer's number for the commit, `time_ms` the time of the commit, in ms since the epoch.
    `parts` has one part for each partition.
    """

    writer: str
    sequence: int
    time_ms: int
    parts: tuple[CommitPart, ...]


_Made = TypeVar("_Made", StagedFile, CommitPart, Pending)


@dataclass(frozen=True, slots=True)
class CommitLog:
    """The content of a commit file.

    `writers` maps the name of each writer to its last completed commit. `pending` is the commit in progress, or None.
    """

    writers: dict[str, Writer] = field(default_factory=dict)
    pending: Pending | None = None


def format_commits(commits: CommitLog) -> bytes:
    """Return the bytes of a commit file with this content: a line of JSON, and a line with its CRC-32C."""
    told = {
        "version": VERSION,
        "writers": commits.writers,
        "pending": None if commits.pending is None else asdict(commits.pending),
    }
    # Use `json`, because orjson refuses text that is not UTF-8, such as the paths of some log directories.
    body = json.dumps(told, separators=(",", ":")).encode()
    return b"%b\ncrc32c %08x\n" % (body, crc32c(body))


def parse_commits(data: bytes) -> CommitLog:
    """Return the content of a commit file.

    Raises `Corrupt` if the file is incomplete or malformed, has a wrong CRC, or is of another version.
    """
    body, _, rest = data.partition(b"\n")
    if rest != b"crc32c %08x\n" % crc32c(body):
        raise Corrupt("the CRC-32C in line 2 does not match line 1")
    try:
        told = json.loads(body)
        if told["version"] != VERSION:
            raise Corrupt(
                f"version {told['version']} is not {VERSION}: a newer logfs wrote the file; open it with that logfs"
            )
        writers = {_text(name): _writer(*writer) for name, writer in told["writers"].items()}
        pending = None if told["pending"] is None else _pending(told["pending"])
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        kind = type(error).__name__
        raise Corrupt(
            f"line 1: a field is missing or has a wrong value: {kind}: {str(error)[:60]}"
        ) from None
    return CommitLog(writers, pending)


def _writer(sequence: int, time_ms: int) -> Writer:
    return Writer(checked("int", sequence), checked("int", time_ms))


def _text(text: str) -> str:
    """Return `text` unchanged. Raises `ValueError` if it has surrogates, which stand for bytes that are not UTF-8.

    This function checks all names in a commit file. It does not check `CommitPart.log_dir`, a path that a user has
    chosen, which may have surrogates.
    """
    text.encode()
    return text


def _pending(told: dict[str, Any]) -> Pending:
    parts = [
        typed(CommitPart(**{**part, "files": tuple(typed(StagedFile(**f)) for f in part["files"])}))
        for part in told["parts"]
    ]
    for part in parts:
        for text in (part.partition, *(t for f in part.files for t in (f.partition, f.name))):
            _text(text)
    return typed(Pending(_text(told["writer"]), told["sequence"], told["time_ms"], tuple(parts)))


def typed(made: _Made) -> _Made:
    """Check the fields of `made`, an object with values from JSON, and return it unchanged.

    Raises `TypeError` if an int, str or bool field has a value of another type, and `ValueError` for an integer out
    of range. Fields of other types are not checked.
    """
    for each in fields(made):
        value = checked(str(each.type), getattr(made, each.name))
        if each.name in _RANGES and value not in _RANGES[each.name]:
            raise ValueError(f"{each.name}: {value} is out of range")
    return made


def checked(kind: str, value: Any) -> Any:
    """Check that `value`, which was read from JSON, has the type with the name `kind`, and return it unchanged.

    Only the types "int", "str" and "bool" are checked; with any other `kind`, every value is accepted. Raises
    `TypeError` for a value of another type, and `ValueError` for an integer that does not fit in 64 bits.
    """
    if kind == "int":
        # In Python a bool is also an int, but here it is the wrong type.
        if not isinstance(value, int) or isinstance(value, bool):
            raise TypeError(f"{value!r} is not an integer")
        if not -(2**63) <= value < 2**63:
            raise ValueError(f"{value} does not fit in 64 bits")
    elif not isinstance(value, {"str": str, "bool": bool}.get(kind, object)):
        raise TypeError(f"{value!r} is not a {kind}")
    return value


# The name of a staged file identifies its writer and commit, so that the files of a finished commit can be deleted.


def staged_name(writer: str, sequence: int, unique: str) -> str:
    """Return a name for a new staged file, which holds batches for a commit.

    `writer` is the name of the writer, `sequence` the writer's number for the commit. `unique` distinguishes several
    attempts at the same commit.
    """
    return f"{_digest(writer)}-{sequence}-{unique}{STAGED}"


def is_writer(name: str) -> bool:
    """Whether `name` can be the name of a writer: it is not empty, and UTF-8 can encode it."""
    return name != "" and name.encode(errors="ignore").decode() == name


def is_staged_name(name: str) -> bool:
    """Whether `name` can be the name of a staged file in a partition's directory."""
    return name.endswith(STAGED) and name.isascii() and name.isprintable() and "/" not in name


def is_over(name: str, writers: dict[str, Writer]) -> bool:
    """Whether a staged file is no longer needed: its commit, or a later commit of the same writer, is complete.

    `name` is the name of the file, which identifies the writer and the commit (`staged_name`). `writers` maps the
    name of each writer to the writer's last completed commit. The result is False if the file's writer is not in
    `writers`.
    """
    digest, _, rest = name.partition("-")
    sequence = rest.partition("-")[0]
    return sequence.isdecimal() and any(
        _digest(writer) == digest and int(sequence) <= last.sequence
        for writer, last in writers.items()
    )


def _digest(writer: str) -> str:
    from hashlib import sha256

    return sha256(writer.encode()).hexdigest()[:16]
