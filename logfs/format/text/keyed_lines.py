"""Plain lines with keys, such as `KEY:VALUE`, as envelopes."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from logfs.format.text import envelope

if TYPE_CHECKING:
    from collections.abc import Sequence

_NEWLINE = b"\n"


class KeyedLines:
    """Makes envelopes of lines, which may come in pieces of any size.

    The key of a line is what comes before the first separator. A line without the separator is a value without a key.
    """

    def __init__(self, separator: bytes | None, headers: Sequence[tuple[str, bytes]]) -> None:
        """Cut lines at `separator`, or not at all if it is None, and give each record the `headers`."""
        self._separator = separator
        self._end = b""
        if headers:
            pairs = [
                b"[%s,%s]" % (envelope.text(os.fsencode(name)), envelope.text(value))
                for name, value in headers
            ]
            self._end = b',"headers":[%s]' % b",".join(pairs)
        self._unfinished = b""

    def write(self, data: bytes) -> bytes:
        """Return the envelopes of the lines that end in `data`, a line each; the rest is kept."""
        *lines, self._unfinished = (self._unfinished + data).split(_NEWLINE)
        return b"".join(map(self._envelope, lines))

    def finish(self) -> bytes:
        """Return the envelope of the unfinished line, if there is one."""
        line, self._unfinished = self._unfinished, b""
        return self._envelope(line) if line else b""

    def _envelope(self, line: bytes) -> bytes:
        value, key = line, b""
        if self._separator is not None:
            before, found, after = line.partition(self._separator)
            if found:
                key, value = b'"key":%s,' % envelope.text(before), after
        return b'{%s"value":%s%s}\n' % (key, envelope.text(value), self._end)
