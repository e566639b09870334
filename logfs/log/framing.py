"""Lines and envelopes out of a stream of writes: what one open file handle has not finished yet.

The same framing serves `append` and `append.jsonl`, and knows nothing of FUSE: bytes in, `Partition` appends, the
number of bytes taken out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from logfs.errors import InvalidEnvelope, LogfsError, RecordTooLarge
from logfs.format import envelope
from logfs.log.appended import Appended
from logfs.log.validator import batch_format

if TYPE_CHECKING:
    from logfs.log.partition import Partition


class Taken(NamedTuple):
    """What came of a write: bytes taken, the last offset given (None if none), and what stopped it.

    With `taken` 0 and a reason, the write fails with it; with both, the caller comes again with the rest.
    """

    taken: int
    last_offset: int | None = None
    refused: LogfsError | OSError | None = None


class Framer:
    """Cuts one handle's writes into lines, whatever their sizes, and appends them.

    `carry` is the unfinished line. A line that was refused before its newline came is `skipped`: the rest of it
    is refused too, and what follows it is not lost: a write that holds good lines behind the rest is cut short
    after the newline, so that the next one begins with them.
    """

    def __init__(self, partition: Partition) -> None:
        self.partition = partition
        self.carry = b""
        self.skipped: LogfsError | None = None

    def write(self, data: bytes) -> Taken:
        """Take what a write(2) brings."""
        self.partition.check_appendable()
        if self.skipped is not None:
            return self._skip(data)
        end = data.rfind(b"\n") + 1
        if end == 0:
            return self._hold(data)
        lines = data
        if self.carry or end < len(data):
            lines = b"".join((self.carry, memoryview(data)[:end]))
        done = self.append(lines)
        last_offset = done.last_offset if done.last_offset >= done.first_offset else None
        if done.consumed < len(lines):
            taken = max(done.consumed - len(self.carry), 0)
            if done.consumed:
                self.carry = b""
            elif self.carry:
                return self._refuse_carried(lines, done)
            return Taken(taken, last_offset, done.refused)
        if len(data) - end > self.limit:
            # The line that begins here is too long already; the next write, which begins with it, is told.
            self.carry = b""
            return Taken(end, last_offset)
        self.carry = data[end:]
        return Taken(len(data), last_offset)

    def finish(self) -> Taken:
        """Make what is left after the last newline a record: the last descriptor is gone."""
        if not self.carry:
            return Taken(0)
        done = self.append(self.carry + b"\n")
        taken, self.carry = len(self.carry), b""
        return Taken(taken, done.last_offset, done.refused)

    @property
    def limit(self) -> int:
        """The bytes of the longest line that fits a batch."""
        return batch_format(self.partition.config).line_limit

    def append(self, lines: bytes) -> Appended:
        """Append whole lines up to the first that is refused; `consumed` counts bytes."""
        return self.partition.append_lines(lines)

    def _hold(self, data: bytes) -> Taken:
        if len(self.carry) + len(data) > self.limit:
            return Taken(0, None, self._give_up_line())
        self.carry += data
        return Taken(len(data))

    def _give_up_line(self) -> RecordTooLarge:
        self.carry = b""
        self.skipped = RecordTooLarge(
            f"{self.partition.name.directory}: a line of more than {self.limit} bytes, which is what "
            "max.message.bytes or segment.bytes allow; the line is refused up to its newline"
        )
        return self.skipped

    def _skip(self, data: bytes) -> Taken:
        """The rest of a refused line fails; good lines behind it are left for the next write."""
        reason = self.skipped
        newline = data.find(b"\n")
        if newline < 0:
            return Taken(0, None, reason)
        self.skipped = None
        if newline + 1 == len(data):
            return Taken(0, None, reason)
        return Taken(newline + 1, None, reason)

    def _refuse_carried(self, lines: bytes, done: Appended) -> Taken:
        """The line that earlier writes began is refused: its beginning was taken, so its rest is dropped."""
        if not isinstance(done.refused, LogfsError):
            # A full disk refuses nothing for good: the carry waits, and the write can come again.
            return Taken(0, None, done.refused)
        rest = lines[len(self.carry) :]
        self.carry, self.skipped = b"", done.refused
        return self._skip(rest)


class EnvelopeFramer(Framer):
    """The same for lines that are JSON envelopes."""

    def append(self, lines: bytes) -> Appended:
        records = []
        ends = []
        refused: LogfsError | OSError | None = None
        position = 0
        for line in lines[:-1].split(b"\n"):
            try:
                records.append(envelope.decode(line))
            except InvalidEnvelope as error:
                refused = InvalidEnvelope(f"{self.partition.name.directory}: {error}")
                break
            position += len(line) + 1
            ends.append(position)
        done = self.partition.append_records(records)
        consumed = ends[done.consumed - 1] if done.consumed else 0
        return Appended(done.first_offset, done.last_offset, consumed, done.refused or refused)

    @property
    def limit(self) -> int:
        # Escapes and base64 make the text longer than the record; six to one is the most.
        return super().limit * 6 + 4096
