"""Cuts the writes to one file handle into lines or JSON envelopes, and appends these. Independent of FUSE."""

from __future__ import annotations

from typing import TYPE_CHECKING

from logfs.errors import InvalidEnvelope, LogfsError, RecordTooLarge
from logfs.format.text import envelope
from logfs.log.append.result import AppendResult

if TYPE_CHECKING:
    from collections.abc import Sequence

    from logfs.log.append.partition import Partition

# The kernel divides a large write(2) into parts, all but the last of at least this size (docs/durability.md, P3).
_PART_BYTES = (1 << 20) - 4096


class LineFramer:
    """Splits the writes of one file handle, of any size, into lines and appends the lines.

    `carry` is the beginning of a line whose newline has not arrived yet. If a line is refused before its newline has
    arrived, `skipped` becomes the error, and the rest of the line is skipped: each further write fails with the same
    error, up to the one that has the newline. If bytes follow the newline in that write, it does not fail. It then
    consumes the bytes up to the newline without an append, and the program writes the bytes after it again.

    The kernel divides a write(2) of about 1 MiB or more into parts. If the first part is refused, write(2) fails, and
    the kernel does not send the other parts. The newline of the refused line may be in one of these parts, and would
    never arrive. `skipped` is therefore None after such a refusal, and the next write(2) begins a new line.

    If a later part is refused, write(2) returns the size of the parts before it, and the program writes the rest
    again, perhaps in smaller pieces. `refused_rest` are the bytes of the refused line that are in the refused part.
    For example, if one part ends with "ab" and the next begins with "cd" and a newline, and the line "abcd" is
    refused, `refused_rest` is "cd" and the newline. These bytes are refused each time that the program writes them:
    otherwise "cd" would be appended as a line.
    """

    def __init__(self, partition: Partition) -> None:
        self.partition = partition
        # The partitions that lines may go to.
        self.partitions: Sequence[Partition] = (partition,)
        self.carry = b""
        self.skipped: LogfsError | None = None
        self.refused_rest = b""
        # The positions in `refused_rest` at which the program's next write may begin: where the last refused write
        # began, if the program repeats it, or where that write ended. After a write that begins elsewhere,
        # `refused_rest` is forgotten.
        self._rest_from = {0}
        self._refusal: LogfsError | None = None
        # The size of the last write, or 0 if it was not consumed to its end: the kernel then sends no further part.
        self._last_size = 0

    def write(self, data: bytes) -> AppendResult:
        """Append the lines that one write(2) completes, and keep the unfinished line at the end of `data`.

        In the result, `consumed` counts bytes of `data`. If `refused` is set and `consumed` is 0, write(2) must fail
        with the error `refused`. Otherwise write(2) must return `consumed`; the program then writes the rest again.
        Raises `WouldBlock`, with nothing changed, if the append would wait in a thread that must not wait. Raises
        `NotWritable`, `PartitionFailed` or `UnknownPartition` if no append can succeed.
        """
        self.partition.check_appendable()
        done = self._take(data)
        self._last_size = len(data) if done.consumed == len(data) else 0
        return done

    def _take(self, data: bytes) -> AppendResult:
        if self.refused_rest and self._is_refused_rest(data):
            return self._nothing_appended(0, self._refusal)
        if self.skipped is not None:
            return self._skip(data)
        end = data.rfind(b"\n") + 1
        if end == 0:
            return self._hold(data)
        lines = data
        if self.carry or end < len(data):
            lines = b"".join((self.carry, memoryview(data)[:end]))
        done = self.append(lines)
        if done.consumed < len(lines):
            taken = max(done.consumed - len(self.carry), 0)
            if done.consumed:
                self.carry = b""
            elif self.carry:
                return self._refuse_carried(lines, done)
            return done._replace(consumed=taken)
        if end < len(data) and len(data) - end > self.limit:
            # The unfinished line at `end` is already too long. The next write begins with this line, and fails.
            self.carry = b""
            return done._replace(consumed=end)
        self.carry = data[end:]
        return done._replace(consumed=len(data))

    def finish(self) -> AppendResult:
        """Append the unfinished line, if there is one, as a record. Called after the last descriptor was closed.

        If the line was refused, `refused` in the result says why. Raises the errors of `write`.
        """
        if not self.carry:
            return self._nothing_appended(0)
        done = self.append(self.carry + b"\n")
        self.carry = b""
        return done

    _limit_name = "the limit of max.message.bytes or segment.bytes"

    @property
    def limit(self) -> int:
        """The length in bytes of the longest line that fits a batch."""
        return self.partition.line_limit

    def append(self, lines: bytes) -> AppendResult:
        """Append `lines`, which must end with a newline, up to the first that is refused.

        `consumed` in the result counts bytes.
        """
        return self.partition.append_lines(lines)

    def _nothing_appended(
        self, consumed: int, refused: LogfsError | OSError | None = None
    ) -> AppendResult:
        end = self.partition.log_end_offset
        return AppendResult(end, end - 1, consumed, refused)

    def _hold(self, data: bytes) -> AppendResult:
        """Add `data`, which has no newline, to `carry`; or refuse the unfinished line if it is too long already."""
        if len(self.carry) + len(data) <= self.limit:
            self.carry += data
            return self._nothing_appended(len(data))
        refused = RecordTooLarge(
            f"{self.partition.name.directory}: a line exceeds {self.limit} bytes, {self._limit_name}; the line is "
            "refused up to its newline"
        )
        # If the line began in the first part of a divided write(2), the write fails, and the kernel does not send the
        # rest of the line: there is nothing to skip.
        has_rest = self.carry or len(data) < _PART_BYTES
        self.carry, self.skipped = b"", refused if has_rest else None
        return self._nothing_appended(0, refused)

    def _skip(self, data: bytes) -> AppendResult:
        """Consume `data` up to the newline of the refused line (`skipped`), if more bytes follow; else refuse `data`.

        `skipped` becomes None at the newline. It also becomes None if `data` is a large part of a divided write(2):
        the kernel then sends no further part.
        """
        reason, end = self.skipped, data.find(b"\n") + 1
        if end or len(data) >= _PART_BYTES:
            self.skipped = None
        return self._nothing_appended(end if end < len(data) else 0, reason)

    def _refuse_carried(self, lines: bytes, done: AppendResult) -> AppendResult:
        """Refuse a write because the line that begins with `carry` was not appended. Consume no byte of the write.

        `lines` are `carry` and the bytes of the write up to its last newline, and `done` is the result of their
        append. If the append failed with an `OSError`, as on a full disk, `carry` is kept, so that the program can
        repeat the write. If the line itself was refused, `carry` is dropped.
        """
        if isinstance(done.refused, LogfsError):
            if self._last_size >= _PART_BYTES:
                self.refused_rest = lines[len(self.carry) : lines.index(b"\n") + 1]
                self._rest_from = {0}
                self._refusal = done.refused
            self.carry = b""
        # After another error, such as a full disk, the unfinished line is kept, and the write can be repeated.
        return self._nothing_appended(0, done.refused)

    def _is_refused_rest(self, data: bytes) -> bool:
        """Whether `data`, up to its first newline, is `refused_rest` or a part of it. If not, forget `refused_rest`.

        The program may repeat the last refused write, or go on after it. So the part must begin in `refused_rest`
        where that write began or where it ended (`_rest_from`).
        """
        rest, end = self.refused_rest, data.find(b"\n") + 1
        piece = data[:end] if end else data
        found = {
            at
            for at in self._rest_from
            if rest.startswith(piece, at) and (not end or at + end == len(rest))
        }
        if not found:
            self.refused_rest = b""
        elif not end:
            self._rest_from = found | {at + len(piece) for at in found}
        return bool(found)


class EnvelopeFramer(LineFramer):
    """A `LineFramer` whose lines are JSON envelopes."""

    def append(self, lines: bytes) -> AppendResult:
        records = []
        refused: LogfsError | OSError | None = None
        envelopes = lines[:-1].split(b"\n")
        for line in envelopes:
            try:
                records.append(envelope.decode(line))
            except InvalidEnvelope as error:
                name = self.partition.name.directory
                refused = InvalidEnvelope(f"{name}: {error}, in {line[:40]!r}")
                break
        done = self.partition.append_records(records)
        consumed = sum(len(line) + 1 for line in envelopes[: done.consumed])
        return done._replace(consumed=consumed, refused=done.refused or refused)

    _limit_name = "the longest that may fit max.message.bytes or segment.bytes"

    @property
    def limit(self) -> int:
        # Escapes and base64 make the fields of a record at most six times as long. 4096 bytes are added for what an
        # envelope has besides: names of fields, punctuation, topic, partition and offset.
        return super().limit * 6 + 4096
