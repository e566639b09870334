"""Recognition of log directories, and of other paths that users give by mistake in place of a log directory.

`recognise` returns what a path is. `check_log_dirs` refuses a path that is not a log directory, with one line that
says what the path is and which path was probably meant. Neither changes anything on the disk. Both read little of a
log directory, however many partitions it has. They read more only for a path that is refused, to find the path that
was meant.

A directory is a log directory if it has a file that only log directories have (a checkpoint, `meta.properties`, a
settings file of logfs), or a partition: a directory named TOPIC-NUMBER with a segment, `partition.metadata` or
`leader-epoch-checkpoint` in it. The name alone proves nothing: `firefox-128` has that form, too, and a log directory
may have a name such as `data-0`. So a path counts as a partition only if files of a partition are directly in it.
"""

from __future__ import annotations

import enum
import errno
import json
import logging
import os
import re
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from logfs.errors import InvalidName, InvalidStore, NotWritable
from logfs.format.base import names
from logfs.format.files import commit_file
from logfs.log.disk.bucket_path import BucketPath, as_path
from logfs.log.disk.disk import TEMPORARY, ReadOnlyDisk
from logfs.store import settings
from logfs.store.directory import lock, log_dir
from logfs.store.directory.lease import Lease
from logfs.store.directory.mount_table import DEAD_ERRORS, is_dead, logfs_mounts

if TYPE_CHECKING:
    from collections.abc import Iterable


logger = logging.getLogger(__name__)


class PathKind(enum.Enum):
    """The kinds of paths that may be given where a log directory is expected."""

    LOG_DIR = enum.auto()
    # The URL of a bucket. The content of the bucket is examined only when it is opened.
    BUCKET = enum.auto()
    # An empty directory, which may become a log directory.
    EMPTY = enum.auto()
    MISSING = enum.auto()
    PARTITION = enum.auto()
    MOUNTPOINT = enum.auto()
    # A path that is, or lies in, a mount of logfs whose daemon has died.
    DEAD_MOUNT = enum.auto()
    IN_MOUNT = enum.auto()
    FILE = enum.auto()
    # Any other path, such as a directory with other files.
    OTHER = enum.auto()
    # A path that cannot be examined. Opening it raises an error with the reason.
    UNKNOWN = enum.auto()


class RecognisedPath(NamedTuple):
    """What a path is, and in `meant` the paths that were probably meant instead.

    `words` continue a sentence that begins with the path: "is a file, not a log directory".
    """

    path: Path
    kind: PathKind
    words: str
    meant: tuple[str, ...] = ()

    def error(self, advice: str = "") -> InvalidStore:
        """Return an `InvalidStore` whose message is one line: the path, `words`, and the paths in `meant`.

        If `meant` is empty, the message ends in `advice`.
        """
        guess = f"; did you mean {' '.join(self.meant)}?" if self.meant else ""
        return InvalidStore(f"{self.path} {self.words}{guess or advice}")


# Files that only log directories have. Each may also be present as the `.tmp` file that will replace it.
_MARKS = frozenset(
    {
        log_dir.RECOVERY_POINTS,
        log_dir.LOG_STARTS,
        log_dir.HIGH_WATERMARKS,
        log_dir.CLEANER_OFFSETS,
        log_dir.CLEAN_SHUTDOWN,
        log_dir.META_PROPERTIES,
        log_dir.STORE_DIRS,
        commit_file.FILE_NAME,
        lock.MOUNT_FILE,
        settings.BROKER_FILE,
    }
)
# A directory that contains only these names has no data. If it contains `.lock`, a process is opening it as a new log
# directory. In a directory with other files, `.lock` does not show that it is a log directory, because other programs
# have files of this name, too.
_NOTHING = frozenset({"lost+found", lock.FILE_NAME})
# Files that only partitions have, besides segment files.
_PARTITION_MARKS = frozenset({names.PARTITION_METADATA, names.LEADER_EPOCHS})
_SEGMENT = re.compile(r"[0-9]{20}\.(log|index|timeindex|textindex|txnindex|snapshot)(\..*)?")

_MOST_CHILDREN = 100
_MOST_HINTS = 3


def recognise(path: str | os.PathLike[str]) -> RecognisedPath:
    """Return what a path is. Changes nothing. Raises `InvalidStore` only for a URL that does not name a bucket."""
    path = as_path(path).absolute()
    if isinstance(path, BucketPath):
        return RecognisedPath(path, PathKind.BUCKET, "is a bucket, not a directory")
    return _recognise_local(path)


def _recognise_local(path: Path) -> RecognisedPath:
    """Return what an absolute local path is. Changes and raises nothing."""
    try:
        found = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return _missing(path)
    except OSError as error:
        if error.errno in DEAD_ERRORS:
            return _dead(path)
        if error.errno == errno.ELOOP:
            return RecognisedPath(path, PathKind.OTHER, "is a link that leads back to itself")
        return RecognisedPath(path, PathKind.UNKNOWN, f"cannot be examined: {error.strerror}")
    mounted = _in_mount(path, found)
    if mounted is not None:
        return mounted
    if not os.path.isdir(path):
        return RecognisedPath(
            path, PathKind.FILE, "is a file, not a log directory", _log_dir_above(path)
        )
    try:
        kind = _kind_of(path)
    except OSError as error:
        return RecognisedPath(path, PathKind.UNKNOWN, f"cannot be examined: {error.strerror}")
    if kind is PathKind.EMPTY and (around := _around(path)):
        # An empty directory in a log directory, such as a partition or `lost+found`, must not become a log directory.
        named = _is_partition_name(path.name) and Path(around) == path.parent
        kind = PathKind.PARTITION if named else PathKind.OTHER
    if kind is PathKind.PARTITION:
        return _partition(path)
    if kind is PathKind.OTHER:
        return _other(path)
    is_empty = kind is PathKind.EMPTY
    words = "holds no partitions: the directory is empty" if is_empty else "is a log directory"
    return RecognisedPath(path, kind, words)


def check_log_dirs(
    paths: Iterable[str | os.PathLike[str]],
    *,
    may_be_empty: bool = False,
    may_be_made: bool = False,
) -> None:
    """Raise `InvalidStore` for the first path that is neither a log directory nor a bucket.

    With `may_be_empty` an empty directory is accepted, which then becomes a log directory. With `may_be_made` a
    missing directory is accepted if its parent directory exists. An empty or missing directory inside another log
    directory is always refused. So is one that another of the log directories names as a part of its store: its disk
    is not mounted. A path that cannot be examined is accepted: opening it raises an error with the reason.
    """
    paths = list(paths)
    for path in paths:
        # A lease is for an existing log directory. If this machine does not have the directory, it must not be
        # created.
        is_lease = isinstance(path, Lease)
        empty_may_be, missing_may_be = may_be_empty and not is_lease, may_be_made and not is_lease
        found = recognise(path)
        if found.kind in (PathKind.LOG_DIR, PathKind.BUCKET, PathKind.UNKNOWN):
            continue
        if found.kind in (PathKind.EMPTY, PathKind.MISSING):
            _check_not_in_store(found, paths)
        if found.kind is PathKind.EMPTY and empty_may_be:
            continue
        if found.kind is PathKind.EMPTY:
            raise found.error("; is the disk of this directory mounted?")
        if found.kind is PathKind.MISSING and missing_may_be and _can_be_made(found.path):
            check_place(found.path)
            continue
        if found.kind is PathKind.MISSING and (empty_may_be or missing_may_be):
            raise found.error(
                f"; a new log directory starts as an empty directory: mkdir -p {found.path}"
            )
        raise found.error()


def _check_not_in_store(found: RecognisedPath, paths: Iterable[str | os.PathLike[str]]) -> None:
    """Raise `InvalidStore` if a log directory in `paths` names the path in `found` as a part of its store."""
    here = Path(os.path.realpath(found.path))
    for path in map(as_path, paths):
        if isinstance(path, BucketPath) or os.path.realpath(path) == str(here):
            continue
        named: frozenset[Path] = frozenset()
        # A log directory that cannot be read names nothing here: opening it raises an error with the reason.
        with suppress(OSError):
            named = log_dir.store_dirs(ReadOnlyDisk(), path).all
        if here in named:
            raise found.error(
                f", but is a log directory of the store of {path}; mount its disk, leave it out or, if it is gone "
                f"for good, remove {path / log_dir.STORE_DIRS}"
            )


def check_place(path: Path) -> None:
    """Raise `InvalidStore` if a new log directory at the missing path `path` would lie in another log directory."""
    if around := _around(path):
        words = "does not exist, and a log directory cannot be created inside another one"
        raise RecognisedPath(path, PathKind.MISSING, words, (around,)).error()


def log_dirs_of(paths: Iterable[str | os.PathLike[str]], *, for_writing: bool = False) -> list[str]:
    """Return `paths`, with each mountpoint of logfs replaced by the log directories that are mounted there.

    With `for_writing`, raises `NotWritable` for the mountpoint of a read-only mount.
    """
    found: list[str] = []
    for path in paths:
        log_dirs, is_read_only = _mounted(path) or ([os.fspath(path)], False)
        if for_writing and is_read_only:
            raise NotWritable(
                f"{path}: is mounted read-only; give the log directory ({' '.join(log_dirs)}), or mount it without ro"
            )
        found += log_dirs
    return found


def _mounted(path: str | os.PathLike[str]) -> tuple[list[str], bool] | None:
    """Return the log directories mounted at a path, and whether they are mounted read-only.

    Those that have failed in the mount are left out, with a warning, unless all have. Returns None if no logfs is
    mounted there, or the mount gives no list.
    """
    absolute = os.path.realpath(path)
    mount = logfs_mounts().get(absolute)
    if mount is None or mount.root != "/":
        return None
    try:
        told = json.loads(Path(absolute, lock.STATUS_FILE).read_bytes())
        every = [str(each) for each in told["log_dirs"]]
        failed = told.get("offline_log_dirs", {})
        working = [each for each in every if each not in failed]
        for each in failed if working else ():
            logger.warning("%s: has failed in the mount, and is left out", each)
        return working or every, bool(told.get("read_only"))
    except (OSError, ValueError, KeyError, TypeError):
        return None


# The functions below find out the kind of a directory from the names in it.


def _kind_of(path: Path) -> PathKind:
    """Return the kind of a directory: LOG_DIR, PARTITION, EMPTY or OTHER. Raises `OSError` if it cannot be read."""
    inside = os.listdir(path)
    if _proves_log_dir(path, inside):
        return PathKind.LOG_DIR
    if _has_partition_files(inside):
        return PathKind.PARTITION
    rest = [name for name in inside if name not in _NOTHING]
    if not rest:
        return PathKind.LOG_DIR if lock.FILE_NAME in inside else PathKind.EMPTY
    # A partition's directory may be empty after `mkdir`, or after a crash during its creation. So `path` is a log
    # directory, too, if it has only names of partitions, and either `.lock` exists or all partitions are empty.
    named = all(map(_is_partition_name, rest))
    bare = named and (lock.FILE_NAME in inside or _all_empty(path, rest))
    return PathKind.LOG_DIR if bare else PathKind.OTHER


def _proves_log_dir(path: Path, inside: list[str]) -> bool:
    """Whether the names `inside` the directory `path` prove that it is a log directory.

    The name of a partition proves this only if its directory has files of a partition, or may not be read.
    """
    if _is_marked(inside) and not _has_partition_files(inside):
        return True
    return any(_is_partition_name(name) and _is_partition(path / name) for name in inside)


def _is_marked(inside: list[str]) -> bool:
    known = [name.removesuffix(TEMPORARY) for name in inside]
    return any(name in _MARKS or name.endswith(settings.TOPIC_SUFFIX) for name in known)


def _has_partition_files(inside: list[str]) -> bool:
    return any(
        _SEGMENT.fullmatch(name) or name.removesuffix(TEMPORARY) in _PARTITION_MARKS
        for name in inside
    )


def _is_partition_name(name: str) -> bool:
    try:
        names.classify_directory(name)
    except InvalidName:
        return False
    return True


def _is_partition(path: Path) -> bool:
    """Whether a directory with a partition's name has a partition's files; True if this process may not read it."""
    try:
        return _has_partition_files(os.listdir(path))
    except PermissionError:
        return True
    except OSError:
        return False


def _all_empty(path: Path, directories: list[str]) -> bool:
    try:
        return not any(os.listdir(path / name) for name in directories)
    except OSError:
        return False


def _is_log_dir(path: Path) -> bool:
    """Whether the content of a directory proves that it is a log directory; False if it cannot be listed."""
    try:
        return _proves_log_dir(path, os.listdir(path))
    except OSError:
        return False


# The functions below describe a path in words, and find the paths that were probably meant.


def _partition(path: Path) -> RecognisedPath:
    if _is_partition_name(path.name):
        above = (str(path.parent),) if _is_log_dir(path.parent) else ()
        return RecognisedPath(
            path, PathKind.PARTITION, "is a partition, not a log directory", above
        )
    words = (
        "holds the files of a partition, so it is not a log directory: rename it to TOPIC-NUMBER, and give its "
        "parent directory"
    )
    return RecognisedPath(path, PathKind.PARTITION, words)


def _other(path: Path) -> RecognisedPath:
    if above := _log_dir_above(path):
        return RecognisedPath(
            path, PathKind.OTHER, "is inside a log directory, but is not one itself", above
        )
    words = "is not a log directory: it has files, but no partitions"
    return RecognisedPath(path, PathKind.OTHER, words, _log_dirs_below(path))


def _missing(path: Path) -> RecognisedPath:
    if os.path.islink(path):
        return RecognisedPath(
            path, PathKind.MISSING, f"is a link to {os.readlink(path)}, which is missing"
        )
    known = next(parent for parent in path.parents if os.path.lexists(parent))
    words = "does not exist" if known == path.parent else f"does not exist, nor does {path.parent}"
    try:
        mounted = _in_mount(path, os.stat(known))
        if mounted is not None:
            return mounted
        above = (str(known),) if known.is_dir() and _is_log_dir(known) else _log_dir_above(known)
        return RecognisedPath(path, PathKind.MISSING, words, above or _similar(path, known))
    except OSError:
        return RecognisedPath(path, PathKind.MISSING, words)


def _similar(path: Path, known: Path) -> tuple[str, ...]:
    """Return the log directories of which the missing `path` may be a misspelling.

    `known` is the nearest parent directory of `path` that exists.
    """
    from difflib import get_close_matches

    wrong, *rest = path.relative_to(known).parts
    siblings = [name for name in os.listdir(known) if not name.startswith(".")]
    paths = [Path(known, name, *rest) for name in get_close_matches(wrong, siblings)]
    return tuple(str(each) for each in paths if _is_log_dir(each))


def _log_dir_above(path: Path) -> tuple[str, ...]:
    return next(((str(parent),) for parent in path.parents if _is_log_dir(parent)), ())


def _log_dirs_below(path: Path) -> tuple[str, ...]:
    """Return the first `_MOST_HINTS` log directories among the first `_MOST_CHILDREN` subdirectories of `path`."""
    try:
        with os.scandir(path) as entries:
            directories = sorted(e.name for e in entries if e.is_dir(follow_symlinks=False))
    except OSError:
        return ()
    children = (path / name for name in directories[:_MOST_CHILDREN])
    return tuple(map(str, islice(filter(_is_log_dir, children), _MOST_HINTS)))


def _in_mount(path: Path, found: os.stat_result) -> RecognisedPath | None:
    """Return what a path in a mount of logfs is; None for a path outside of all mounts of logfs.

    `found` is the result of `stat` for the path or, if the path is missing, for its nearest existing parent.
    """
    if os.major(found.st_dev):
        # The path is on a block device: the major device number of a FUSE mount is 0.
        return None
    here = {p: m for p, m in logfs_mounts().items() if m.device == found.st_dev}
    if not here:
        return None
    real = os.path.realpath(path)
    if is_dead(next(iter(here))):
        return _dead(Path(real))
    mount = here.get(real)
    if mount is not None and mount.root == "/":
        mounted = _mounted(real)
        meant = tuple(mounted[0] if mounted else filter(os.path.isdir, [mount.source]))
        return RecognisedPath(
            path, PathKind.MOUNTPOINT, "is where logfs is mounted, not a log directory", meant
        )
    whole = [p for p, m in here.items() if m.root == "/" and real.startswith(f"{p}/")]
    meant = (max(whole, key=len),) if whole else ()
    mount = next(iter(here.values()))
    source = f" of {mount.source}" if mount.source.startswith("/") else ""
    return RecognisedPath(
        path, PathKind.IN_MOUNT, f"lies in a mount of logfs{source}, not on the disk", meant
    )


def _dead(path: Path) -> RecognisedPath:
    known = [each for each in logfs_mounts() if path == Path(each) or Path(each) in path.parents]
    where = max(known, key=len, default=str(path))
    words = f"is, or lies in, a mount whose daemon has died; 'logfs umount {where}' clears it away"
    return RecognisedPath(path, PathKind.DEAD_MOUNT, words)


# The functions below find out whether a new log directory may be created at a path.


def _can_be_made(path: Path) -> bool:
    return path.parent.is_dir() and not path.is_symlink()


def _around(path: Path) -> str | None:
    """Return the log directory that contains a path, or None. A log directory must not be created in another one.

    Each directory above `path` counts as a log directory if it has a file that only log directories have. If `path`
    has a partition's name, its parent directory also counts if it holds a partition. If `path` has another name, a
    partition in the parent directory is no proof: the parent may be a home directory with a copy of a partition.
    """
    if _is_partition_name(path.name) and _is_log_dir(path.parent):
        return str(path.parent)
    for parent in path.parents:
        try:
            if _is_marked(os.listdir(parent)):
                return str(parent)
        except OSError:
            continue
    return None
