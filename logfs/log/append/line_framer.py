"""Framing: cuts the writes of one file handle into lines or envelopes, and appends these.

`append` and `append.jsonl` use the same framing, which does not depend on FUSE: it takes bytes, appends to a
`Partition`, and returns the number of bytes taken.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from logfs.errors import InvalidEnvelope, LogfsError, RecordTooLarge
from logfs.format.text import envelope
from logfs.log.append.partition import Appended
from logfs.log.append.validator import batch_format

if TYPE_CHECKING:
    from logfs.log.append.partition import Partition


class Taken(NamedTuple):
    """The result of a write: bytes taken, last offset assigned (None if none), and the error that stopped it.

    With an error and `taken` 0, the write fails with it. With an error and `taken` above 0, the caller writes the
    rest again.
    """

    taken: int
    last_offset: int | None = None
    refused: LogfsError | OSError | None = None


class LineFramer:
    """Splits one handle's writes into lines, whatever their sizes, and appends them.

    `carry` is the unfinished line. `skipped` is the error of a line that was refused before its newline arrived. The
    rest of that line is refused too. Good lines after it are not lost: a write that holds both is cut short after
    the newline, so that the next write begins with the good lines.
    """

    def __init__(self, partition: Partition) -> None:
        self.partition = partition
        self.carry = b""
        self.skipped: LogfsError | None = None

    def write(self, data: bytes) -> Taken:
        """Take the data of one write(2). Raises as `Partition.check_appendable`."""
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
            # The line that begins here is too long already. The next write begins with it, and fails.
            self.carry = b""
            return Taken(end, last_offset)
        self.carry = data[end:]
        return Taken(len(data), last_offset)

    def finish(self) -> Taken:
        """Append the unfinished line as a record, after the last descriptor was closed."""
        if not self.carry:
            return Taken(0)
        done = self.append(self.carry + b"\n")
        taken, self.carry = len(self.carry), b""
        return Taken(taken, done.last_offset, done.refused)

    @property
    def limit(self) -> int:
        """The length in bytes of the longest line that fits a batch."""
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
            f"{self.partition.name.directory}: a line exceeds {self.limit} bytes, the limit of "
            "max.message.bytes or segment.bytes; the line is refused up to its newline"
        )
        return self.skipped

    def _skip(self, data: bytes) -> Taken:
        """Refuse the rest of a refused line, and leave good lines after it for the next write."""
        reason = self.skipped
        newline = data.find(b"\n")
        if newline < 0:
            return Taken(0, None, reason)
        self.skipped = None
        if newline + 1 == len(data):
            return Taken(0, None, reason)
        return Taken(newline + 1, None, reason)

    def _refuse_carried(self, lines: bytes, done: Appended) -> Taken:
        """Refuse a line that earlier writes began. Its beginning was taken, so its rest is dropped."""
        if not isinstance(done.refused, LogfsError):
            # A full disk may have room later: the unfinished line is kept, and the write can be repeated.
            return Taken(0, None, done.refused)
        rest = lines[len(self.carry) :]
        self.carry, self.skipped = b"", done.refused
        return self._skip(rest)


class EnvelopeFramer(LineFramer):
    """A `LineFramer` whose lines are JSON envelopes."""

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
        # Escapes and base64 make the text longer than the record, by a factor of six at most.
        return super().limit * 6 + 4096
