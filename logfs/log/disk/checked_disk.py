"""The `Disk` of one log directory, which refuses every file operation after the first storage error.

A failure of a device or a filesystem, such as EIO, takes all partitions of the directory offline, as in Kafka. A full
disk, a missing file or damaged bytes are not storage errors.
"""

from __future__ import annotations

import errno
import logging
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from logfs.errors import LogDirFailed
from logfs.locks import Level, make_rlock
from logfs.log.disk.disk import CHANGES, Disk, Entry, File

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

logger = logging.getLogger(__name__)

STORAGE_ERRORS = frozenset(
    {
        errno.EIO,
        errno.EROFS,
        errno.ENODEV,
        errno.ENXIO,
        errno.ESTALE,
        errno.EUCLEAN,
        errno.EREMOTEIO,
        errno.ENOTCONN,
        errno.ENOMEDIUM,
        errno.ETIMEDOUT,
    }
)


class CheckedDisk(Disk):
    """A wrapper around the `Disk` of one log directory. After a storage error, file operations raise `LogDirFailed`.

    Any thread may call any method. Errors of the wrapped disk that are not storage errors are raised unchanged. Open
    descriptors stay open.
    """

    def __init__(self, disk: Disk, log_dir: Path, failed: Callable[[], object]) -> None:
        """Wrap `disk`, which holds the log directory `log_dir`.

        `failed` is called at the first storage error, and by `disown`. The thread that meets a storage error may hold
        locks when it calls `failed`.
        """
        super().__init__()
        self.disk = disk
        self.writable = disk.writable
        self.is_remote = disk.is_remote
        self.naming = disk.naming
        self.flush_times = disk.flush_times
        self.is_disowned = False
        # After `end_changes`, the error that each call of `change` raises; None before. `_changing` has the ids of
        # the threads that are in a call of `change`.
        self._ended: LogDirFailed | None = None
        self._changing: set[int] = set()
        self._log_dir = log_dir
        self._failed = failed

    def fail(self, reason: object) -> LogDirFailed:
        """Refuse every file operation from now on, and return the error that says why.

        The message of the error contains `reason`, an error or a text. Later calls of `fail` return the same error,
        and their `reason` is ignored.
        """
        if self.failure is None:
            is_read_only = isinstance(reason, OSError) and reason.errno == errno.EROFS
            # EROFS: the kernel may have made the filesystem read-only after an error of the disk.
            remedy = "make the filesystem writable" if is_read_only else "repair the disk"
            self.failure = LogDirFailed(
                f"{self._log_dir}: the log directory is offline: {reason}; {remedy}, then close the store (or "
                "unmount) and open it again, which recovers what was fsynced"
            )
            logger.error("%s", self.failure)
            self._failed()
        return self.failure

    def disown(self, owner: int) -> None:
        """Refuse every file operation from now on, because this process is a forked child without the lock.

        The parent process `owner` has the lock of the log directory.
        """
        self.is_disowned = True
        # Other threads of the parent, which may hold `naming` or be in a changing call, do not exist in the child.
        self.naming = make_rlock(Level.NAMING)
        self._changing.clear()
        if self.failure is None:
            self.failure = LogDirFailed(
                f"{self._log_dir}: process {owner} opened it and forked this process, which does not have its lock; "
                "open the store again in this process"
            )
        self._failed()

    def end_changes(self, wait_seconds: float) -> bool:
        """Make all later calls that change files raise `LogDirFailed`. Call this before the lock is released.

        Waits up to `wait_seconds` for changes that other threads have already begun, and returns whether all of them
        have ended. Reads and fsyncs are still allowed.
        """
        self._ended = LogDirFailed(
            f"{self._log_dir}: the store is closed, so nothing is written there; open it again"
        )
        until = time.monotonic() + wait_seconds
        # This thread's own entry may be left over from a change that was interrupted.
        while self._changing - {threading.get_ident()}:
            if time.monotonic() > until:
                return False
            time.sleep(0.001)
        return True

    def check_may_block(self) -> None:
        self.disk.check_may_block()

    def scan(self, path: Path) -> Iterator[Entry]:
        return iter(self.call(lambda: list(self.disk.scan(path))))

    def read(self, file: File, position: int, size: int) -> memoryview:
        # This repeats the code of `call`, to save the cost of calling it: a lookup consists of little more than
        # reads.
        if self.failure is not None:
            raise self.failure
        try:
            return self.disk.read(file, position, size)
        except OSError as error:
            self._note(error, file)
            raise

    def open(self, path: Path, *, write: bool = False, create: bool = False) -> File:
        call = self.change if create else self.call
        opened: File = call(self.disk.open, path, write=write, create=create)
        return opened

    def change(self, work: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        """Call `work`, which changes files, with the given arguments, and return its result.

        Raises `LogDirFailed` if this or an earlier call met a storage error. Also raises it after `end_changes`,
        without calling `work`.
        """
        thread = threading.get_ident()
        # Add the thread before the check: `end_changes` then either waits for this call or makes it fail.
        self._changing.add(thread)
        try:
            if self._ended is not None:
                raise self._ended
            return self.call(work, *arguments, **named)
        finally:
            self._changing.discard(thread)

    def call(self, work: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        """Call `work` and return its result. Raises `LogDirFailed` if this or an earlier call met a storage error."""
        if self.failure is not None:
            raise self.failure
        try:
            return work(*arguments, **named)
        except OSError as error:
            self._note(error, arguments[0] if arguments else None)
            raise

    def _note(self, error: OSError, subject: object) -> None:
        """Raise `LogDirFailed` if `error` is a storage error; otherwise return, and the caller raises `error`.

        If `error` names no file, and `subject`, the first argument of the call that failed, is a `File` or a `Path`,
        the path of `subject` is first added to `error`.
        """
        if error.filename is None and isinstance(subject, (File, Path)):
            # Errors of calls on descriptors have no file name.
            error.filename = str(getattr(subject, "path", subject))
        if error.errno in STORAGE_ERRORS:
            raise self.fail(error) from error


def _passed_on(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
    """Return a method for `CheckedDisk` that calls the method `name` of the wrapped disk through `call`.

    `call` is `CheckedDisk.call`, `CheckedDisk.change` or `_unchecked`.
    """

    def method(self: CheckedDisk, *arguments: Any, **named: Any) -> Any:
        return call(self, getattr(self.disk, name), *arguments, **named)

    return method


def _unchecked(_: CheckedDisk, work: Callable[..., Any], *arguments: Any) -> Any:
    """Call `work`, even after a storage error."""
    return work(*arguments)


_BLOCKING = ("forbid_blocking", "allow_blocking", "share_blocking", "check_may_fetch")
_OTHERS = (
    *("read_ahead", "fetch_again", "described_end", "is_cut", "size", "stat_file"),
    *("sync", "map", "sync_map", "sync_directory"),
    *("free_bytes", "exists", "stat", "stat_settled", "read_file", "read_all"),
)
for _call, _names in (
    (_unchecked, (*_BLOCKING, "release", "read_afresh")),
    (CheckedDisk.call, _OTHERS),
    (CheckedDisk.change, CHANGES),
):
    for _name in _names:
        setattr(CheckedDisk, _name, _passed_on(_name, _call))
