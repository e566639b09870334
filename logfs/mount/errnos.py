"""The mapping from errors to errno, and the list of the last errors that were given to callers."""

from __future__ import annotations

import errno
import logging
import os
from collections import deque
from typing import TYPE_CHECKING

from logfs.errors import (
    CommitPending,
    Corrupt,
    InvalidEnvelope,
    InvalidName,
    InvalidRecord,
    InvalidSetting,
    InvalidStore,
    LogDirFailed,
    NotWritable,
    OffsetOutOfRange,
    PartitionExists,
    PartitionFailed,
    PartitionNotEmpty,
    RecordTooLarge,
    RemoteStorageError,
    StoreLocked,
    UnknownPartition,
    Unsupported,
)
from logfs.format.base.quantities import format_time

if TYPE_CHECKING:
    from collections.abc import Callable

logger = logging.getLogger(__name__)

# docs/filesystem.md shows this table; a test checks that both are equal.
ERRNO: dict[type[Exception], int] = {
    CommitPending: errno.EAGAIN,
    Corrupt: errno.EIO,
    InvalidEnvelope: errno.EINVAL,
    InvalidName: errno.EINVAL,
    InvalidRecord: errno.EINVAL,
    InvalidSetting: errno.EINVAL,
    InvalidStore: errno.EIO,
    LogDirFailed: errno.EIO,
    NotWritable: errno.EROFS,
    OffsetOutOfRange: errno.ENOENT,
    PartitionExists: errno.EEXIST,
    PartitionFailed: errno.EIO,
    PartitionNotEmpty: errno.ENOTEMPTY,
    RecordTooLarge: errno.EMSGSIZE,
    RemoteStorageError: errno.EIO,
    StoreLocked: errno.EBUSY,
    UnknownPartition: errno.ENOENT,
    Unsupported: errno.EOPNOTSUPP,
    MemoryError: errno.ENOMEM,
}

# The number of errors that `ErrorLog` keeps.
_KEPT = 1000
# Lines of `.logfs/errors` are cut to this number of characters.
_LONGEST = 4000


def errno_of(error: BaseException) -> int:
    """Return the errno that a caller gets for an error; EIO for an unexpected error."""
    if isinstance(error, OSError) and error.errno:
        return error.errno
    for kind in type(error).__mro__:
        if kind in ERRNO:
            return ERRNO[kind]
    return errno.EIO


# Errnos of ordinary answers, which `ErrorLog` does not record.
_EVERYDAY = frozenset({errno.ENOENT, errno.ESTALE})


class ErrorLog:
    """The last 1,000 errors given to callers, except ENOENT and ESTALE, newest last, for `.logfs/errors`.

    `count` is the number of all errors recorded so far. `clock` returns the time in ms since the epoch.
    """

    def __init__(self, clock: Callable[[], int]) -> None:
        self._clock = clock
        self._lines: deque[str] = deque(maxlen=_KEPT)
        self.count = 0

    def note(self, path: str, error: BaseException) -> int:
        """Record the error of a request for `path`, and return the errno that the caller gets.

        ENOENT and ESTALE are not recorded: ENOENT is an ordinary answer, and ESTALE makes the kernel repeat a lookup.
        An unexpected error is a bug, so it is also logged, with its traceback.
        """
        number = errno_of(error)
        known = isinstance(error, OSError) or any(kind in ERRNO for kind in type(error).__mro__)
        if not known:
            logger.error("%s: internal error: %r", path, error, exc_info=error)
        if number not in _EVERYDAY:
            reason = str(error) if known else f"internal error: {error!r}"
            if isinstance(error, OSError) and error.strerror:
                # `str(error)` would repeat the path and the errno, which have their own columns.
                reason = error.strerror
            name = errno.errorcode.get(number, str(number))
            when = format_time(self._clock())
            # A path with newlines must not break the line.
            shown = path.replace("\n", "\\n")
            line = f"{when} {shown} {name} {' '.join(reason.split())}"
            self._lines.append(line if len(line) <= _LONGEST else f"{line[:_LONGEST]}…")
            self.count += 1
        return number

    def text(self) -> bytes:
        """Return the text of `.logfs/errors`: one line per error, with time, path, errno and the reason."""
        return "".join(line + "\n" for line in self._lines).encode("utf-8", "backslashreplace")


def refuse(number: int, what: str) -> OSError:
    """Return an `OSError` with errno `number`. Its message is `what`, followed by the system's text for the errno."""
    return OSError(number, f"{what} ({os.strerror(number)})")
