"""The data written to one open file: bytes arrive from the kernel's page cache; whole lines go to the main mount."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

from logfs.mount.errnos import refuse

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

# The most bytes of lines in one write to the main mount, so that it is one FUSE request: a request holds 1 MiB of
# pages, and the data may begin inside of a page. A write has whole lines only: if a line were split between two
# requests, it would not be clear which line the main mount refuses.
_REQUEST_BYTES = (1 << 20) - 4096
# An unfinished line of more bytes than this is refused by the write-behind mount. Shorter lines are refused by the
# main mount if they are too long for `max.message.bytes`.
LONGEST_LINE = 64 << 20
# How many of the last accepted bytes are kept. Bytes that the kernel sends again are compared with them.
_COMPARED_BYTES = 64 * 1024
# With one of these errnos, the main mount refuses only one line. The lines after it can still be sent.
_REFUSALS = frozenset({errno.EINVAL, errno.EMSGSIZE})
_NEWLINE = b"\n"


class Stream:
    """Puts the bytes of one open file in order, and sends whole lines to `target`, an `append` file.

    The kernel sends pages, not writes: a page that was sent when it was half full is sent again, from its beginning,
    when it has more bytes, and requests may overtake each other. Bytes are therefore identified by their position in
    the file.

    The log gets the written lines in order. A line is left out if it is longer than `LONGEST_LINE`, or if the main
    mount refuses it. After any other error, nothing more is sent, and each call of `check` raises this error. `note`
    is called once for each error, when the error happens.

    Not thread-safe: the caller must make one call at a time. Methods other than `check` and `read` may wait for the
    main mount.
    """

    def __init__(self, target: Path, note: Callable[[OSError], object]) -> None:
        self.target = target
        # The number of bytes accepted so far, which is the position in the file of the next new byte.
        self.position = 0
        self.refused_lines = 0
        self.failure: OSError | None = None
        self._note = note
        self._file = -1
        # Data that has arrived too early, by its position in the file: the bytes before it have not all arrived.
        self._early: dict[int, bytes] = {}
        # The last bytes before `position`: at most `_COMPARED_BYTES`.
        self._accepted = b""
        self._unfinished = bytearray()
        # Whether the bytes up to the next newline are left out, because they belong to a line refused for its length.
        self._skips = False
        # The first refusal of a line that `check` has not raised yet.
        self._refusal: OSError | None = None

    def open(self) -> None:
        """Open the target for writing, unless it is open. Raises the `OSError` of open(2)."""
        if self._file < 0:
            self._file = os.open(self.target, os.O_WRONLY | os.O_CLOEXEC)

    def close(self) -> None:
        """Send the unfinished line, if there is one, with a newline, and close the target."""
        if self._unfinished and not self._skips and self.failure is None:
            self._send(bytes(self._unfinished) + _NEWLINE)
        self._unfinished.clear()
        self._close_target()

    def _close_target(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def write(self, position: int, data: bytes) -> None:
        """Accept `data`, which the kernel writes at `position` in the file.

        If bytes before `position` are missing, `data` is kept until they arrive, and accepted then. The bytes of
        `data` before `self.position` were accepted earlier. They are only compared with the accepted bytes that are
        still in memory; a difference is an error. Errors are saved for `check`, not raised.
        """
        if position > self.position:
            # If the kernel sends a page again with more bytes, the longer version may arrive before the shorter one.
            shorter, longer = sorted((self._early.get(position, b""), data), key=len)
            if not longer.startswith(shorter):
                self._fail(self._overwritten(position + len(longer)))
            self._early[position] = longer
            return
        self._accept(data, position)
        while self._early and (first := min(self._early)) <= self.position:
            self._accept(self._early.pop(first), first)

    def read(self, position: int, size: int) -> bytes:
        """Return up to `size` accepted bytes from `position` on. Bytes that are no longer kept are returned as zeros.

        The kernel needs this if a write(2) changes a part of a page that the kernel has dropped.
        """
        known = self.position - len(self._accepted)
        end = min(position + size, self.position)
        zeros = b"\0" * (min(end, known) - position)
        return zeros + self._accepted[max(position - known, 0) : max(end - known, 0)]

    @property
    def has_error(self) -> bool:
        """Whether `check` would raise an error."""
        return self.failure is not None or self._refusal is not None

    def check(self) -> None:
        """Raise the error that an earlier call has kept, if there is one.

        A `failure`, after which nothing more is sent, is raised at each call. The refusal of a line is raised once;
        of several refusals since the last call, only the first is raised.
        """
        error = self.failure or self._refusal
        self._refusal = None
        if error is not None:
            # Drop the error's traceback, which would otherwise grow each time the error is raised.
            raise error.with_traceback(None)

    def sync(self) -> None:
        """Make all lines that were sent durable. Raises the errors of `check`, and `OSError` if the sync fails.

        This also works through a descriptor that is open for reading only, such as that of sync(1). The kernel sends
        all data before it sends an FSYNC. So if bytes before the last received byte are still missing, they will not
        come: `sync` raises EIO, and the stream sends nothing more.
        """
        if self._early:
            missing = f"bytes {self.position} to {min(self._early) - 1} were not written"
            reason = f"{missing}, so the bytes after them are not appended; write without seeking"
            self._fail(refuse(errno.EIO, f"{self.target}: {reason}"))
        self.check()
        was_open = self._file >= 0
        self.open()
        try:
            os.fsync(self._file)
        except OSError as error:
            self._fail(error)
            raise
        finally:
            if not was_open:
                self._close_target()

    def _accept(self, data: bytes, position: int) -> None:
        if not self._agrees(data, position):
            self._fail(self._overwritten(self.position))
        new = memoryview(data)[self.position - position :]
        if not new:
            return
        self.position += len(new)
        self._accepted = (self._accepted + bytes(new[-_COMPARED_BYTES:]))[-_COMPARED_BYTES:]
        if self.failure is not None:
            return
        end = data.rfind(_NEWLINE) + 1 - (len(data) - len(new))
        if end <= 0:
            self._hold(new)
            return
        lines = bytes(new[:end])
        if self._skips:
            lines = lines[lines.index(_NEWLINE) + 1 :]
            self._skips = False
        elif self._unfinished:
            lines = bytes(self._unfinished) + lines
        self._unfinished.clear()
        self._send(lines)
        self._hold(new[end:])

    def _overwritten(self, end: int) -> OSError:
        reason = f"bytes before {end}, which were sent already, were overwritten"
        return refuse(errno.EIO, f"{self.target}: {reason}; open it with O_APPEND")

    def _agrees(self, data: bytes, position: int) -> bool:
        """Whether `data` equals the bytes that were accepted at the same positions, as far as they are still kept."""
        known = self.position - len(self._accepted)
        start, end = max(position, known), min(position + len(data), self.position)
        if start >= end:
            return True
        return (
            data[start - position : end - position] == self._accepted[start - known : end - known]
        )

    def _hold(self, data: memoryview) -> None:
        """Keep `data`, a part of a line, until the line's newline arrives. Refuse a line beyond `LONGEST_LINE`."""
        if self._skips:
            return
        self._unfinished += data
        if len(self._unfinished) > LONGEST_LINE:
            self._refuse(errno.EMSGSIZE, len(self._unfinished))
            self._unfinished.clear()
            self._skips = True

    def _send(self, lines: bytes) -> None:
        """Send whole lines to the target. Leave out a refused line; after any other error, send nothing more."""
        position = 0
        while position < len(lines) and self.failure is None:
            end = _end_of_lines(lines, position)
            try:
                position += os.write(self._file, memoryview(lines)[position:end])
            except OSError as error:
                if error.errno not in _REFUSALS:
                    self._fail(error)
                    return
                end = lines.index(_NEWLINE, position) + 1
                self._refuse(error.errno, end - position - 1)
                position = end
                self._open_again()

    def _open_again(self) -> None:
        """Open the target again, after the main mount has refused a line.

        If the old descriptor were used, the main mount might take the next bytes for the rest of the refused line.
        """
        os.close(self._file)
        self._file = -1
        try:
            self.open()
        except OSError as error:
            self._fail(error)

    def _refuse(self, number: int, size: int) -> None:
        self.refused_lines += 1
        error = refuse(
            number,
            f"{self.target}: a line of {size} bytes or more was refused; .logfs/errors of the main mount "
            f"has the reason, unless the line is longer than {LONGEST_LINE} bytes",
        )
        self._refusal = self._refusal or error
        self._note(error)

    def _fail(self, error: OSError) -> None:
        if self.failure is None:
            self.failure = error
            self._note(error)


def _end_of_lines(lines: bytes, start: int) -> int:
    """Return the position in `lines` at which a write that begins at `start` must end.

    The write has as many whole lines as fit into one request. If not even the first line fits, it has this line only.
    """
    if len(lines) - start <= _REQUEST_BYTES:
        return len(lines)
    end = lines.rfind(_NEWLINE, start, start + _REQUEST_BYTES) + 1
    return end or lines.index(_NEWLINE, start) + 1
