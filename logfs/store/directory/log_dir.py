"""One log directory: its lock, its checkpoints and its clean-shutdown marker (kafka-storage 1.3)."""

from __future__ import annotations

import logging
import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from weakref import WeakSet

from logfs.errors import Corrupt, InvalidName, LogDirFailed, LogfsError
from logfs.format.base import names
from logfs.format.files import checkpoint
from logfs.log.disk.checked_disk import CheckedDisk
from logfs.store.directory.lock import Lock, Turn, holder, keep
from logfs.store.directory.mark import read_mark, write_mark

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from logfs.format.base.names import TopicPartition
    from logfs.log.disk.disk import Disk, Status

logger = logging.getLogger(__name__)

RECOVERY_POINTS = "recovery-point-offset-checkpoint"
LOG_STARTS = "log-start-offset-checkpoint"
HIGH_WATERMARKS = "replication-offset-checkpoint"
CLEANER_OFFSETS = "cleaner-offset-checkpoint"
# How long `close` waits for threads that are still writing: longer than any one write takes, even on a busy disk.
PATIENCE_SECONDS = 10.0

CLEAN_SHUTDOWN = ".kafka_cleanshutdown"
META_PROPERTIES = "meta.properties"
STORE_DIRS = "logfs.dirs"
"""The file that lists all log directories of a store. If the store has several, each of them has this file."""


class StoreDirs(NamedTuple):
    """The paths in the file `logfs.dirs` of a log directory. Symlinks in the paths are resolved.

    `here` is the path that the log directory had when the file was written. `all` has the paths of all log
    directories of the store, and always the present path of this log directory. If the file is missing, damaged or a
    copy of another file (`Mark.is_copy`), `here` and `all` have only the present path.
    """

    here: Path
    all: frozenset[Path]


def store_dirs(disk: Disk, path: Path) -> StoreDirs:
    """Return the paths in the file `logfs.dirs` of the log directory at `path`; only `path` if there is no such file.

    A file that is damaged or a copy counts as missing. Raises `OSError` if the file cannot be read.
    """
    mark = read_mark(disk, path / STORE_DIRS)
    here = os.path.realpath(path)
    told = {} if mark is None or mark.is_copy else mark.told
    listed = told.get("log_dirs")
    paths = [each for each in listed if isinstance(each, str)] if isinstance(listed, list) else []
    before = told.get("here")
    return StoreDirs(
        Path(before if isinstance(before, str) else here), frozenset(map(Path, [*paths, here]))
    )


def whole_store(log_dirs: Iterable[tuple[Disk, Path]]) -> frozenset[Path]:
    """Return the paths (symlinks resolved) of all log directories of the store that `log_dirs` belong to.

    A file `logfs.dirs` that cannot be read is ignored. If a log directory in `log_dirs` was renamed or moved, its
    earlier path is left out.
    """
    told = {}
    for disk, path in log_dirs:
        with suppress(OSError):
            told[Path(os.path.realpath(path))] = store_dirs(disk, path)
    found = frozenset[Path]().union(*(each.all for each in told.values()))
    left = {each.here for each in told.values()} - told.keys()
    return found - left


class FirstError:
    """A collector of the errors of several pieces of work. Do each piece in `with errors:`, then call `throw`.

    The context manager suppresses each `LogfsError` and `OSError`, and keeps the first one in `error`. If the kept
    error is a `LogDirFailed`, which concerns only one log directory, the next error replaces it.
    """

    def __init__(self) -> None:
        self.error: BaseException | None = None
        # Whether every error so far is a `LogDirFailed`, so that work in the other log directories can go on.
        self.only_of_log_dirs = True

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> bool:
        if not isinstance(error, (LogfsError, OSError)):
            return False
        if self.error is None or isinstance(self.error, LogDirFailed):
            self.error = error
        self.only_of_log_dirs &= isinstance(error, LogDirFailed)
        return True

    def throw(self) -> None:
        """Raise the error that was kept, if there is one."""
        if self.error is not None:
            raise self.error


class LogDir:
    """A directory of partition directories, locked for this process unless the disk is read-only.

    `clean` is true if the last process that wrote to the directory shut it down cleanly. When the directory is
    opened for writing, its clean-shutdown marker is removed, so that the directory counts as unclean after a crash.
    """

    def __init__(
        self, disk: Disk, path: Path, failed: Callable[[LogDir], object] = lambda _: None
    ) -> None:
        """Make an object for the directory at `path`; nothing is read or written before `open`.

        `failed` is called with this object if the directory fails.
        """
        self.path = path
        self.disk = CheckedDisk(disk, path, lambda: failed(self))
        # The result of `stat` for the directory when it was opened; a mount of it shows this mode and owner.
        self.found: Status | None = None
        self.live = self.clean = self.is_brokers = False
        # Whether the names of the partitions in the directory have been read.
        self.is_known = False
        # The names of the partitions whose deletion a kill has ended, so that their committed offsets may be left.
        self.half_deleted: set[str] = set()
        self.recovery_points: dict[TopicPartition, int] = {}
        self.log_starts: dict[TopicPartition, int] = {}
        self.cleaner_offsets: dict[TopicPartition, int] = {}
        self._lock: Lock | Turn | None = None
        self._owner = os.getpid()
        self._broker_epoch = checkpoint.UNKNOWN_BROKER_EPOCH
        # The directory's mtime (ns) when the directory was read. None if the mtime was so recent that another change
        # of the directory could leave it the same.
        self._seen: int | None = None
        if disk.writable:
            _written_here.add(self)

    def open(self) -> None:
        """Lock the directory (`lock.Lock`) if the disk is writable, and read its checkpoints and markers.

        Raises `StoreLocked` if another process holds the lock, `OSError` if the directory is unusable.
        """
        disk, path = self.disk, self.path
        # `follow`, because the directory may be given as a symlink.
        self.found, is_settled = disk.stat_settled(path, follow=True)
        self._seen = self.found.mtime_ns if is_settled else None
        # Give the lock the underlying disk, because `close` makes `disk` refuse changes before it removes `.lock`.
        self._lock = Lock(disk.disk, path) if disk.writable else None
        self.live = self._is_live()
        self.clean = disk.exists(path / CLEAN_SHUTDOWN)
        # Whether a broker uses the directory. Settings of topics may then be only in the broker's metadata log.
        self.is_brokers = disk.is_remote or disk.exists(path / META_PROPERTIES)
        self._broker_epoch = self._read_broker_epoch()
        self._read_checkpoints()

    def _is_live(self) -> bool:
        """Whether this process only reads the directory, and another process may write to it. True for a bucket."""
        disk = self.disk
        return disk.is_remote or (not disk.writable and holder(disk, self.path) is not None)

    def begin(self) -> None:
        """Remove the clean-shutdown marker durably, if the disk is writable.

        This must be called before any other file in the directory is changed.
        """
        if self.disk.writable and self.clean:
            self.disk.unlink(self.path / CLEAN_SHUTDOWN)
            self.disk.sync_directory(self.path)

    @property
    def failure(self) -> LogDirFailed | None:
        """The error that took the directory and its partitions offline; None while the directory works."""
        return self.disk.failure

    def check_in_place(self) -> None:
        """Take the directory offline if it is no longer at its path, or if its lock file was removed or replaced.

        For example, after an unmount of /data, the path /data leads to the directory that was below the mount.
        Without this check, writes would go to that directory. The check costs two calls of `stat`.
        """
        if self.failure is not None or not isinstance(self._lock, Lock):
            return
        try:
            found = self.disk.stat(self.path, follow=True)
            before = self.found
            assert before is not None, "opened"
            if (found.device, found.identity) != (before.device, before.identity):
                self.disk.fail("another directory is at its path, as after an unmount")
            elif not self._lock.is_in_place():
                self.disk.fail("its .lock is missing or was replaced by another process")
        except OSError as error:
            self.disk.fail(error)

    def has_changed(self) -> bool:
        """Return whether the directory may have changed since the last read; if so, bring this object up to date.

        The update reads the checkpoints again, and checks if the clean-shutdown marker exists and if another process
        holds the lock. The result is False only if the directory's mtime proves that no name in it was added, removed
        or replaced. Only read-only stores call this. Raises `OSError` if the directory cannot be read.
        """
        found, is_settled = self.disk.stat_settled(self.path, follow=True)
        if found.mtime_ns == self._seen:
            return False
        self._seen = found.mtime_ns if is_settled else None
        self.live = self._is_live()
        self.clean = self.disk.exists(self.path / CLEAN_SHUTDOWN)
        self._read_checkpoints()
        return True

    def read_log_start(self, name: TopicPartition) -> int:
        """Read the checkpoint, and return a partition's log start offset, 0 without an entry. Raises `OSError`."""
        return self._read(LOG_STARTS).get(name, 0)

    def is_unchanged(self) -> bool:
        """Whether the directory is still at its path, and certainly no name in it has changed since the last read.

        The last read is that of `open` or `has_changed`. Compares the device, the inode number and the mtime.
        False also if the mtime was too recent at the last read to show later changes. Raises `OSError`.
        """
        found, before = self.disk.stat(self.path, follow=True), self.found
        assert before is not None, "opened"
        is_same = (found.device, found.identity) == (before.device, before.identity)
        return is_same and found.mtime_ns == self._seen

    def look_again(self) -> None:
        """Make the next call of `has_changed` return True, even if the directory's mtime is the same."""
        self._seen = None

    def write_offsets(
        self, points: Mapping[TopicPartition, int], starts: Mapping[TopicPartition, int]
    ) -> None:
        """Replace the checkpoints of recovery points, high watermarks and log start offsets.

        `points` has the recovery point of each partition in this directory, which is also written as its high
        watermark. `starts` has the log start offset of each partition of a tiered topic, and of each other partition
        whose log start offset is above the base offset of its first segment.
        """
        self._write(RECOVERY_POINTS, points)
        self._write(HIGH_WATERMARKS, points)
        self._write(LOG_STARTS, starts)
        self.recovery_points, self.log_starts = dict(points), dict(starts)

    def set_cleaner_offset(self, name: TopicPartition, offset: int | None) -> None:
        """Record durably the offset up to which a log was compacted (kafka-storage 8.9). None removes the entry."""
        if self.cleaner_offsets.get(name) != offset:
            offsets = {each: at for each, at in self.cleaner_offsets.items() if each != name}
            self.set_cleaner_offsets(offsets if offset is None else {**offsets, name: offset})

    def set_cleaner_offsets(self, offsets: dict[TopicPartition, int]) -> None:
        """Replace all entries of the checkpoint of cleaner offsets by `offsets`, durably."""
        self._write(CLEANER_OFFSETS, offsets)
        self.cleaner_offsets = offsets

    def may_have_gaps(self, name: TopicPartition) -> bool:
        """Whether offsets may be missing from a partition without damage, because compaction has removed them.

        True if the partition has a cleaner offset, and for every partition in a broker's directory: a follower copies
        its leader's log with the gaps that compaction left there, and no file records this (kafka-storage 2.9.1).
        """
        return self.is_brokers or name in self.cleaner_offsets

    def note_store(self, every: frozenset[Path]) -> None:
        """Write `every`, the paths of the store's log directories, durably to `logfs.dirs`, if the file differs."""
        here = Path(os.path.realpath(self.path))
        if store_dirs(self.disk, self.path) != (here, every):
            told = {"here": str(here), "log_dirs": sorted(map(str, every))}
            write_mark(self.disk, self.path / STORE_DIRS, told)

    def mark_clean(self) -> None:
        """Write the clean-shutdown marker: no partition in the directory needs recovery (kafka-storage 5.6).

        Call this last, just before `close`.
        """
        marker = checkpoint.format_clean_shutdown(self._broker_epoch)
        self.disk.replace_file(self.path / CLEAN_SHUTDOWN, marker)

    def close(self, wait_seconds: float = PATIENCE_SECONDS, *, is_idle: bool = True) -> None:
        """Refuse all further changes, close the disk's open files, and release the lock of the directory.

        In a `LeasedLogDir`, the lock is that of the leased partition (`Turn`). If changes that other threads have
        begun do not end within `wait_seconds`, or if `is_idle` is False (another thread may still write), the lock is
        kept until this process ends, so that no other process writes meanwhile.
        """
        is_idle &= self.disk.end_changes(wait_seconds)
        self.disk.release()
        lock, self._lock = self._lock, None
        if lock is not None and is_idle:
            lock.release()
        elif lock is not None:
            keep(lock)
            logger.error(
                "%s: another thread is still writing, so the directory stays locked until this process ends",
                self.path,
            )

    def disown(self) -> None:
        """Give up the directory in a forked child: changes raise `LogDirFailed` there. The parent keeps the lock."""
        self.disk.disown(self._owner)
        self._lock = None

    def _read_broker_epoch(self) -> int:
        """Return the broker epoch in the clean-shutdown marker, -1 for none.

        A broker that starts sends this epoch to its controller.
        """
        path = self.path / CLEAN_SHUTDOWN
        try:
            if self.clean:
                return checkpoint.parse_clean_shutdown(self.disk.read_file(path))
        except FileNotFoundError:
            # Another process has opened the directory for writing, and so has removed the marker.
            self.clean, self.live = False, self._is_live()
        except Corrupt as error:
            logger.warning("%s: %s; the shutdown still counts as clean", path, error)
        return checkpoint.UNKNOWN_BROKER_EPOCH

    def _read_checkpoints(self) -> None:
        self.recovery_points = self._read(RECOVERY_POINTS)
        self.log_starts = self._read(LOG_STARTS)
        # A partition with an entry was compacted, so offsets may be missing from its log (`may_have_gaps`).
        self.cleaner_offsets = self._read(CLEANER_OFFSETS)

    def _read(self, name: str) -> dict[TopicPartition, int]:
        """Return the offsets in a checkpoint file. As in Kafka, a damaged file counts as empty, and `clean` is False.

        But if the checkpoint of cleaner offsets is damaged, every partition in the directory has the offset 0.
        """
        path = self.path / name
        try:
            return checkpoint.parse_offsets(self.disk.read_file(path))
        except FileNotFoundError:
            return {}
        except Corrupt as error:
            logger.warning("%s: the checkpoint is ignored: %s", path, error)
            if name == CLEANER_OFFSETS:
                # Any partition may have been compacted. The next checkpoint must still tell that (`may_have_gaps`).
                return dict.fromkeys(self._partitions(), 0)
            # Without recovery points or log start offsets, all partitions must be recovered, as after a crash.
            self.clean = False
            return {}

    def _partitions(self) -> Iterator[TopicPartition]:
        """Yield the names of the partitions in the directory, also of those that are being moved or were deleted."""
        for entry in self.disk.scan(self.path):
            if entry.is_directory:
                with suppress(InvalidName):
                    yield names.classify_directory(entry.name)[1]

    def _write(self, name: str, offsets: Mapping[TopicPartition, int]) -> None:
        self.disk.replace_file(self.path / name, checkpoint.format_offsets(offsets))


# The log directories that this process may write to.
_written_here: WeakSet[LogDir] = WeakSet()


def _disown_all() -> None:
    for log_dir in _written_here:
        log_dir.disown()
    _written_here.clear()


# A forked child does not inherit the record lock. It must not write, or two processes would write the same files.
os.register_at_fork(after_in_child=_disown_all)
