"""Converts lines of text to envelopes (records as lines of JSON).

A line may begin with a key (`KEY:VALUE`), and a record may have several lines.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from logfs.errors import RecordTooLarge
from logfs.format.text import envelope

if TYPE_CHECKING:
    import re
    from collections.abc import Sequence

_NEWLINE = b"\n"
# The maximum size in bytes of an unfinished record.
_MOST_BYTES = 256 << 20


class KeyedLines:
    """Converts lines to envelopes. The lines may come in pieces of any size.

    The bytes before the first separator are the key of a record. A record without the separator has no key.
    """

    def __init__(
        self,
        separator: bytes | None,
        headers: Sequence[tuple[str, bytes]],
        start: re.Pattern[bytes] | None = None,
    ) -> None:
        """Set how lines become records. `headers` are added to each record.

        Each record is split into key and value at the first `separator`; None stands for no split. With `start`, a
        line begins a record if the pattern matches at the line's beginning; other lines, such as those of a
        traceback, continue the record before them. Without `start`, each line is a record.
        """
        self._separator = separator
        self._end = b""
        if headers:
            pairs = [
                b"[%s,%s]" % (envelope.text(os.fsencode(name)), envelope.text(value))
                for name, value in headers
            ]
            self._end = b',"headers":[%s]' % b",".join(pairs)
        self._start = start
        self._unfinished = bytearray()
        # The complete lines so far of a record that further lines may continue, and their size in bytes.
        self._lines: list[bytes] = []
        self._size = 0

    @property
    def has_several_lines(self) -> bool:
        """Whether a record may have several lines."""
        return self._start is not None

    @property
    def is_waiting(self) -> bool:
        """Whether the last record has only complete lines, but may go on in the next line. `flush` would end it."""
        return bool(self._lines) and not self._unfinished

    def write(self, data: bytes) -> bytes:
        """Take the next bytes of the input. Return an envelope (a line of JSON) for each record that is now complete.

        The bytes of an unfinished record are kept. Raises `RecordTooLarge` if these are more than 256 MiB.
        """
        *lines, rest = data.split(_NEWLINE)
        if lines:
            lines[0] = bytes(self._unfinished) + lines[0]
            self._unfinished.clear()
        self._unfinished += rest
        ended = b"".join(map(self._envelope if self._start is None else self._add, lines))
        if self._size + len(self._unfinished) > _MOST_BYTES:
            raise RecordTooLarge(
                f"no line or record ends within {_MOST_BYTES} bytes of the input; is it text, and does --start "
                "match where records begin?"
            )
        return ended

    def flush(self) -> bytes:
        """End the record whose complete lines `write` has kept, and return its envelope; b"" if no such line is kept.

        Call this to end the record without waiting for the next line, which may continue it. The bytes of an
        unfinished line stay for the next `write`.
        """
        lines, self._lines, self._size = self._lines, [], 0
        return self._envelope(_NEWLINE.join(lines)) if lines else b""

    def finish(self) -> bytes:
        """End the input, and return the envelopes of all that is kept, including an unfinished line."""
        line = bytes(self._unfinished)
        self._unfinished.clear()
        if self._start is None:
            return self._envelope(line) if line else b""
        return (self._add(line) if line else b"") + self.flush()

    def _add(self, line: bytes) -> bytes:
        """Keep a line. If it begins a record, return the envelope of the record before it, otherwise b""."""
        assert self._start is not None
        ended = self.flush() if self._start.match(line) else b""
        self._lines.append(line)
        self._size += len(line) + 1
        return ended

    def _envelope(self, line: bytes) -> bytes:
        value, key = line, b""
        if self._separator is not None:
            before, found, after = line.partition(self._separator)
            if found:
                key, value = b'"key":%s,' % envelope.text(before), after
        return b'{%s"value":%s%s}\n' % (key, envelope.text(value), self._end)
