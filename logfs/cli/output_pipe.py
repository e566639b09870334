"""Standard output as a pipe: how many of the written bytes have been read from it, and whether it has a reader."""

from __future__ import annotations

import errno
import fcntl
import io
import os
import select
import stat
import struct
import sys
import termios
import time
from contextlib import suppress
from typing import TYPE_CHECKING, BinaryIO

if TYPE_CHECKING:
    from typing_extensions import Buffer

_INT = struct.Struct("i")
_POLL_SECONDS = 0.005
# What `poll` reports without a reader: POLLERR for a pipe, POLLHUP for a socket or a terminal.
_GONE = select.POLLERR | select.POLLHUP


class OutputPipe:
    """Standard output of a command that has to know what its reader, such as `head`, has taken.

    The command writes to the buffered file `out`. Bytes count as written when they leave its buffer. If standard
    output is not a pipe, all written bytes count as taken.
    """

    def __init__(self) -> None:
        self._raw = _CountedOutput(sys.stdout.fileno())
        self.out: BinaryIO = io.BufferedWriter(self._raw)
        self.is_pipe = stat.S_ISFIFO(os.fstat(self._raw.fileno()).st_mode)

    @property
    def written(self) -> int:
        """The number of bytes that were written."""
        return self._raw.count

    def taken(self) -> int:
        """Return how many of the written bytes the reader has taken out of the pipe."""
        if not self.is_pipe:
            return self.written
        # If another process also writes to the pipe, the unread bytes of both processes are subtracted. A record may
        # then be consumed twice, but no record is lost.
        (unread,) = _INT.unpack(fcntl.ioctl(self._raw.fileno(), termios.FIONREAD, bytes(_INT.size)))
        return max(self.written - int(unread), 0)

    def await_reader(self, seconds: float) -> bool:
        """Wait until the reader has taken all bytes or exits, but at most `seconds`.

        Return False if the reader exits before it has taken all bytes. Otherwise return True, also if `seconds` have
        passed.
        """
        end = time.monotonic() + seconds
        while self.taken() < self.written:
            if not has_reader():
                return False
            if time.monotonic() >= end:
                break
            time.sleep(_POLL_SECONDS)
        return True


class _CountedOutput(io.RawIOBase):
    """Writes to a file descriptor, and counts the bytes that were written."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self.count = 0

    def fileno(self) -> int:
        return self._fd

    def writable(self) -> bool:
        return True

    def write(self, data: Buffer) -> int:
        try:
            done = os.write(self._fd, data)
        except OSError as error:
            raise OSError(error.errno, error.strerror, "standard output") from None
        self.count += done
        return done


def has_reader() -> bool:
    """Whether standard output still has a reader: False once the reader of a pipe or a socket has exited."""
    with suppress(OSError, ValueError):
        poll = select.poll()
        # `poll` reports errors even if no event is requested.
        poll.register(sys.stdout.fileno(), 0)
        return not any(found & _GONE for _, found in poll.poll(0))
    return True


def pause(seconds: float) -> None:
    """Sleep. Raises `BrokenPipeError` if the reader of standard output has exited.

    A command that waits for new records would otherwise notice the exit only when it prints the next record.
    """
    if not has_reader():
        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))
    time.sleep(seconds)
