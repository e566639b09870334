"""The file of commits: what each writer has committed last, and a commit that is decided and may not be done yet.

Two lines of text: a JSON object, and the CRC-32C of the bytes of the first line.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields
from hashlib import sha256
from typing import Any, NamedTuple, TypeVar

import orjson
from crc32c import crc32c

from logfs.errors import Corrupt

FILE_NAME = "logfs-commits"
VERSION = 0
# Of a staged file: plain files with a suffix that a broker does not know are ignored by it (kafka-storage 1.1).
STAGED = ".staged"
NO_APPEND_TIME = -1
# The base offset of a part that has no place in its log, and of which nothing is there but what is skipped.
NO_PLACE = -1

# Of whole numbers that have fewer than 64 in a log.
_BITS = {"leader_epoch": 32}


@dataclass(frozen=True, slots=True)
class StagedFile:
    """Sealed record batches in a file of a partition's directory, with base offsets from 0 on.

    `name` is the file's name there, `size_bytes` its length, `record_count` how many offsets it takes.
    """

    partition: str
    name: str
    size_bytes: int
    record_count: int


class Writer(NamedTuple):
    """The last commit of a writer, and when it was, in ms since the epoch."""

    sequence: int
    time_ms: int


@dataclass(frozen=True, slots=True)
class Part:
    """What a commit does to one partition: its batches, in the order of `files`, begin at `base_offset`.

    The first lies at byte `position` of the segment with base offset `segment`. `skip` batches are in the log
    already, elsewhere; with `done`, all are; with `base_offset` NO_PLACE, none of the others is. `append_time` (ms)
    stamps every batch where the topic says LogAppendTime. `log_dir` is where the partition was, "" for the directory
    that the file of commits is in.
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
    """A commit that is decided: it will be done, by whoever opens the directories for writing next."""

    writer: str
    sequence: int
    time_ms: int
    parts: tuple[Part, ...]


_Made = TypeVar("_Made", StagedFile, Part, Pending)


@dataclass(frozen=True, slots=True)
class CommitLog:
    """What a file of commits says."""

    writers: dict[str, Writer] = field(default_factory=dict)
    pending: Pending | None = None


def format_commits(commits: CommitLog) -> bytes:
    """The bytes of a file of commits."""
    body = orjson.dumps(
        {
            "version": VERSION,
            "writers": {name: list(writer) for name, writer in commits.writers.items()},
            "pending": None if commits.pending is None else asdict(commits.pending),
        }
    )
    return b"%b\ncrc32c %08x\n" % (body, crc32c(body))


def parse_commits(data: bytes) -> CommitLog:
    """What the bytes of a file of commits say; `Corrupt` if they are none, or not whole."""
    body, _, rest = data.partition(b"\n")
    if rest != b"crc32c %08x\n" % crc32c(body):
        raise Corrupt("its checksum does not match what it says")
    try:
        told = orjson.loads(body)
        if told["version"] != VERSION:
            raise Corrupt(f"version {told['version']} is not {VERSION}: a newer logfs wrote it")
        writers = {name: _writer(*writer) for name, writer in told["writers"].items()}
        pending = None if told["pending"] is None else _pending(told["pending"])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise Corrupt(f"it cannot be read: {error!r}") from None
    return CommitLog(writers, pending)


def _writer(sequence: int, time_ms: int) -> Writer:
    return Writer(checked("int", sequence), checked("int", time_ms))


def _pending(told: dict[str, Any]) -> Pending:
    parts = [
        typed(Part(**{**part, "files": tuple(typed(StagedFile(**f)) for f in part["files"])}))
        for part in told["parts"]
    ]
    return typed(Pending(told["writer"], told["sequence"], told["time_ms"], tuple(parts)))


def typed(made: _Made) -> _Made:
    """The same, if its fields are of the types that its class says; `TypeError` or `ValueError` if not."""
    for each in fields(made):
        checked(str(each.type), getattr(made, each.name), bits=_BITS.get(each.name, 64))
    return made


def checked(kind: str, value: Any, bits: int = 64) -> Any:
    """A value of one of the types that JSON has, too; others are not looked at. Whole numbers fit their bits."""
    if kind == "int":
        # A bool is an int, too.
        if not isinstance(value, int) or isinstance(value, bool):
            raise TypeError(f"{value!r} is no whole number")
        if not -(1 << bits - 1) <= value < 1 << bits - 1:
            raise ValueError(f"{value} is not a number in {bits} bits")
    elif not isinstance(value, {"str": str, "bool": bool}.get(kind, object)):
        raise TypeError(f"{value!r} is no {kind}")
    return value


# The names of staged files tell whose they are, so that those of a commit that is over can go.


def staged_name(writer: str, sequence: int, unique: str) -> str:
    """The name of a file that a writer stages for a commit; `unique` tells attempts at the same apart."""
    return f"{_digest(writer)}-{sequence}-{unique}{STAGED}"


def is_over(name: str, writers: dict[str, Writer]) -> bool:
    """Whether a staged file is of a commit that its writer has made, or of an earlier one."""
    digest, _, rest = name.partition("-")
    sequence = rest.partition("-")[0]
    return sequence.isdecimal() and any(
        _digest(writer) == digest and int(sequence) <= last.sequence
        for writer, last in writers.items()
    )


def _digest(writer: str) -> str:
    return sha256(writer.encode()).hexdigest()[:16]
