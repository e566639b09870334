"""Where a commit goes: into the log directories, under Kafka's lock, or through the mount that holds them.

A mount leaves a file in each of its log directories that tells where it is, and takes commits at `.logfs/commit`.
Mounts come and go; a commit that met one on its way is simply sent again, for none is made twice.
"""

from __future__ import annotations

import errno
import json
import logging
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from logfs import errors
from logfs.errors import CommitPending, LogfsError, StoreLocked
from logfs.format import names
from logfs.format.commits import StagedFile, checked, typed
from logfs.log.files import Disk
from logfs.store.commit import Committed, held_up
from logfs.store.lock import MOUNT_FILE, holder, mountpoint
from logfs.store.recognition import check_log_dirs, mounted_log_dirs
from logfs.store.store import Store, now_ms

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from logfs.store.loading import Only, Progress
    from logfs.store.log_dir import LogDir

    LogDirs = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]

_Answer = TypeVar("_Answer")

logger = logging.getLogger(__name__)

DOOR = ".logfs/commit"

_WRITE_BYTES = 64 * 1024
_READ_BYTES = 1 << 20
_LONGEST_PAUSE_SECONDS = 1.0
# What a mount that goes away leaves its callers with.
_NO_MOUNT = frozenset(
    {
        errno.ENOTCONN,
        errno.ECONNABORTED,
        errno.ENOENT,
        errno.ENODEV,
        errno.EIO,
        errno.ENXIO,
        errno.ENOTDIR,
    }
)


class _NoAnswer(Exception):
    """The mount has gone away: nobody knows whether the commit was made."""


def announce(log_dirs: Sequence[LogDir], mountpoint: Path) -> None:
    """Tell in the log directories where they are mounted; one that is full is not a reason to mount none."""
    told = _to_line({"pid": os.getpid(), "mountpoint": str(mountpoint)})
    for log_dir in log_dirs:
        try:
            log_dir.disk.replace_file(log_dir.path / MOUNT_FILE, told)
        except (LogfsError, OSError) as error:
            logger.warning("nobody who asks for %s is told of the mount: %s", log_dir.path, error)


def withdraw(log_dirs: Sequence[LogDir]) -> None:
    """Take back what `announce` told."""
    for log_dir in log_dirs:
        try:
            log_dir.disk.unlink(log_dir.path / MOUNT_FILE)
        except (LogfsError, OSError) as error:
            logger.warning("%s: %s", log_dir.path / MOUNT_FILE, error)


def find_door(disk: Disk, log_dir: Path) -> Path | None:
    """The file that takes commits for a log directory; None if no mount holds it."""
    pid = holder(disk, log_dir)
    mounted = None if pid is None else mountpoint(disk, log_dir, pid)
    try:
        return mounted / DOOR if mounted is not None and (mounted / DOOR).exists() else None
    except OSError:
        return None


def log_dirs_of(paths: Iterable[str | os.PathLike[str]]) -> list[str]:
    """Log directories; where a path is a mountpoint of logfs, those that are mounted there."""
    found: list[str] = []
    for path in paths:
        found += mounted_log_dirs(path) or [os.fspath(path)]
    return found


def check_there(log_dirs: Iterable[str | os.PathLike[str]], *, may_be_empty: bool = False) -> None:
    """Raise `InvalidStore` for a path that is no log directory, or only with `may_be_empty` may become one.

    See `logfs.store.recognition`: the error says what the path is, and nothing in it is touched.
    """
    check_log_dirs(log_dirs, may_be_empty=may_be_empty)


def open_store(
    log_dirs: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
    *,
    create: bool = False,
    read_only: bool = False,
    clock: Callable[[], int] = now_ms,
    progress: Progress | None = None,
    only: Only | None = None,
    recover: bool = False,
) -> Store:
    """Open log directories as a `Store`; the arguments, and the errors, are those of its constructor.

    An empty directory becomes a new store; a missing one only with `create`, so that a misspelt path is an error
    (`InvalidStore`) and not a new store.
    """
    return Store(
        log_dirs,
        read_only=read_only,
        clock=clock,
        progress=progress,
        only=only,
        recover=recover,
        create=create,
    )


# The words that pass the door.


class Request(NamedTuple):
    """What passes the door: staged files to commit, or, with `discards`, to remove."""

    writer: str
    sequence: int
    staged: tuple[StagedFile, ...]
    discards: bool = False


def format_request(request: Request) -> bytes:
    """The one line that asks for it."""
    files = [[f.partition, f.name, f.size_bytes, f.record_count] for f in request.staged]
    return _to_line({**request._asdict(), "staged": files})


def parse_request(line: bytes) -> Request:
    """What a line asks for; `InvalidRecord` if for nothing."""
    try:
        told = json.loads(line)
        staged = tuple(typed(StagedFile(*file)) for file in told["staged"])
        writer, sequence = checked("str", told["writer"]), checked("int", told["sequence"])
        return Request(writer, sequence, staged, checked("bool", told.get("discards", False)))
    except (ValueError, KeyError, TypeError) as error:
        raise errors.InvalidRecord(f"this asks for no commit: {error}") from None


def serve(store: Store, request: Request) -> Committed:
    """Do what is asked for in a store that is open for writing."""
    if not request.discards:
        return store.commit(request.writer, request.sequence, request.staged)
    store.commits.discard(request.staged)
    return Committed(False, {})


def format_answer(outcome: Committed | Exception) -> bytes:
    """What is read after a request."""
    if isinstance(outcome, Committed):
        answer: dict[str, Any] = {"already": outcome.already, "offsets": outcome.offsets}
    else:
        answer = {"error": type(outcome).__name__, "reason": str(outcome)}
    return _to_line(answer)


def parse_answer(line: bytes) -> Committed:
    """What came of a request; raises the error that it met."""
    told = json.loads(line)
    if "error" not in told:
        offsets = {name: (first, end) for name, (first, end) in told["offsets"].items()}
        return Committed(told["already"], offsets)
    kind = getattr(errors, told["error"], None)
    if isinstance(kind, type) and issubclass(kind, LogfsError):
        raise kind(told["reason"])
    raise OSError(errno.EIO, told["reason"])


def _to_line(told: dict[str, Any]) -> bytes:
    return json.dumps(told, separators=(",", ":")).encode() + b"\n"


# A commit from outside.


def commit(
    log_dirs: LogDirs,
    writer: str,
    sequence: int,
    staged: Sequence[StagedFile],
    *,
    seconds: float = 60.0,
) -> Committed:
    """Commit what was staged in log directories, whoever has them; see `Commits.commit` for what is promised.

    Waits up to `seconds` for another process that holds them; `StoreLocked` if that is a broker, or it takes longer.
    """
    return _send(log_dirs, Request(writer, sequence, tuple(staged)), seconds)


def discard(log_dirs: LogDirs, staged: Sequence[StagedFile], *, seconds: float = 5.0) -> None:
    """Remove what was staged and is not going to be committed; see `Commits.discard`. Raises as `commit`."""
    if staged:
        _send(log_dirs, Request("", 0, tuple(staged), discards=True), seconds)


def create(log_dirs: LogDirs, partitions: Sequence[str], *, seconds: float = 60.0) -> None:
    """Make those partitions that are not there yet, whoever has the log directories.

    A log directory may be empty, and may not be missing. Raises `InvalidName`, what opening a store raises, and
    `StoreLocked` as `commit`.
    """
    for name in partitions:
        names.parse_directory(name)
    if partitions:
        check_there(_paths(log_dirs), may_be_empty=True)
        _through_whoever(
            log_dirs,
            lambda paths: _create_directly(paths, partitions),
            lambda door: _create_through(door, partitions),
            seconds,
        )


def _send(log_dirs: LogDirs, request: Request, seconds: float) -> Committed:
    check_there(_paths(log_dirs))
    return _through_whoever(
        log_dirs,
        lambda paths: _send_directly(paths, request),
        lambda door: _send_through(door, format_request(request)),
        seconds,
    )


def _paths(log_dirs: LogDirs) -> list[Path]:
    named = [log_dirs] if isinstance(log_dirs, (str, os.PathLike)) else log_dirs
    return [Path(path).absolute() for path in named]


def _through_whoever(
    log_dirs: LogDirs,
    directly: Callable[[Sequence[Path]], _Answer],
    through: Callable[[Path], _Answer],
    seconds: float,
) -> _Answer:
    """Do something by a store of our own, or by the door of the mount that holds the directories."""
    paths = _paths(log_dirs)
    end = time.monotonic() + seconds
    pause = 0.02
    while True:
        try:
            door = find_door(Disk(), paths[0])
            return directly(paths) if door is None else through(door)
        except (StoreLocked, _NoAnswer, CommitPending) as error:
            # A commit that is decided is done at the next opening, if that is all it waits for.
            if time.monotonic() + pause > end or (isinstance(error, CommitPending) and pause > 0.1):
                if isinstance(error, StoreLocked):
                    raise StoreLocked(
                        f"{error}. Commits go through a mount of logfs, or need nobody else: a broker takes none"
                    ) from None
                if isinstance(error, _NoAnswer):
                    raise StoreLocked(f"{paths[0]}: its mount does not answer: {error}") from None
                raise
        time.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)


def _create_directly(paths: Sequence[Path], partitions: Sequence[str]) -> None:
    with Store(paths, only=frozenset(partitions).__contains__, create=False) as store:
        for name in partitions:
            if name not in store.homes:
                store.create(name)


def _create_through(door: Path, partitions: Sequence[str]) -> None:
    for name in partitions:
        try:
            (door.parents[1] / name).mkdir(exist_ok=True)
        except OSError as error:
            if error.errno in _NO_MOUNT:
                raise _NoAnswer(error) from None
            raise


def _send_directly(paths: Sequence[Path], request: Request) -> Committed:
    """Open the directories for this alone: its partitions, and those of a commit that is not done."""
    wanted = {file.partition for file in request.staged} | held_up(paths)
    with Store(paths, only=wanted.__contains__, create=False) as store:
        done = serve(store, request)
        try:
            store.commits.upkeep(store.clock())
        except (LogfsError, OSError) as error:
            logger.warning("%s", error)
        return done


def _send_through(door: Path, request: bytes) -> Committed:
    try:
        fd = os.open(door, os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        raise _NoAnswer(error) from None
    try:
        return _ask(fd, request)
    finally:
        os.close(fd)


def _ask(fd: int, request: bytes) -> Committed:
    failure: OSError | None = None
    answer = b""
    try:
        done = 0
        while done < len(request):
            done += os.write(fd, request[done : done + _WRITE_BYTES])
    except OSError as error:
        failure = error
    try:
        while data := os.pread(fd, _READ_BYTES, len(answer)):
            answer += data
    except OSError as error:
        failure = failure or error
    if answer.endswith(b"\n"):
        return parse_answer(answer)
    if failure is None or failure.errno in _NO_MOUNT:
        raise _NoAnswer(failure or "it was read to its end")
    raise failure
