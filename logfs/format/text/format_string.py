"""The format strings of the option -F of `logfs cat`, `tail` and `consume`, such as `%o %T %s\\n`."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from logfs.errors import InvalidName
from logfs.format.base.quantities import format_time

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np
    from numpy.typing import NDArray

    from logfs.format.base.names import TopicPartition
    from logfs.format.batches.columns import Columns
    from logfs.format.batches.record import Record

_TOKEN = re.compile(rb"%T\{([^}]*)\}|%(.?)|\\([ntr0\\])", re.DOTALL)
_ESCAPES = {b"n": b"\n", b"t": b"\t", b"r": b"\r", b"0": b"\0", b"\\": b"\\"}

HELP = (
    "a format string: %%s value, %%k key, %%h headers, %%o offset, %%T timestamp (ms), %%T{%%H:%%M:%%S} time in UTC "
    "by the letters of strftime (%%T{}: ISO 8601), %%t topic, %%p partition, %%S and %%K sizes of value and key (-1 "
    "for null); \\n, \\t, \\r, \\0"
)


def _headers(record: Record) -> bytes:
    return b",".join(
        name.encode("utf-8", "surrogateescape") + b"=" + (b"NULL" if text is None else text)
        for name, text in record.headers
    )


# The tokens whose text differs from record to record, by letter, each with the function that returns its text.
_FIELDS: dict[bytes, Callable[[Record], bytes]] = {
    b"s": lambda record: record.value or b"",
    b"k": lambda record: record.key or b"",
    b"h": _headers,
    b"o": lambda record: b"%d" % record.offset,
    b"T": lambda record: b"%d" % (-1 if record.timestamp is None else record.timestamp),
    b"S": lambda record: b"%d" % (-1 if record.value is None else len(record.value)),
    b"K": lambda record: b"%d" % (-1 if record.key is None else len(record.key)),
}


# The beginning of the year 10000 (UTC), which `datetime` cannot represent, in ms since the epoch.
_TOO_LATE_MS = 253_402_300_800_000


@dataclass(frozen=True)
class _Time:
    """A token `%T{FORM}`. `form` is a `strftime` format, or "" for ISO 8601."""

    form: str

    def format(self, timestamp: int) -> bytes:
        """Return a timestamp (ms) as text in UTC, or `-` if it is negative.

        A timestamp that is too late for `datetime` is returned as its decimal number.
        """
        if timestamp < 0 or not self.form:
            return format_time(timestamp).encode()
        try:
            moment = datetime.fromtimestamp(timestamp // 1000, UTC)
            moment = moment.replace(microsecond=timestamp % 1000 * 1000)
            return os.fsencode(moment.strftime(self.form))
        except (OverflowError, ValueError, OSError):
            return b"%d" % timestamp

    def texts(self, timestamps: NDArray[np.int64]) -> tuple[bytes, NDArray[np.int64]]:
        """Return the joined texts of timestamps (ms), and the start and end of each timestamp's text, as int64[n, 2].

        Timestamps with the same text share it: their starts and ends are equal.
        """
        import numpy as np

        # Each distinct time is formatted once. Without %f a format shows whole seconds only, so first round the times
        # down to seconds, which leaves fewer distinct times.
        unit = 1 if not self.form or "f" in self.form else 1000
        # A time that `datetime` cannot hold is shown as its number of ms, so it is not rounded.
        is_shown = (timestamps >= 0) & (timestamps < _TOO_LATE_MS)
        floored = np.where(is_shown, timestamps - timestamps % unit, timestamps)
        different, rows = np.unique(floored, return_inverse=True)
        texts = [self.format(timestamp) for timestamp in different.tolist()]
        sizes = np.array([len(text) for text in texts], np.int64)
        ends = sizes.cumsum()
        starts = ends - sizes
        return b"".join(texts), np.column_stack((starts, ends))[rows]


class FormatString:
    """Turns the records of one partition into text by a format string.

    `HELP` lists the tokens. Besides these, `%n` stands for a newline, `%%` for "%", and `\\\\` for a backslash.
    """

    def __init__(self, form: bytes, partition: TopicPartition) -> None:
        """Parse the format string `form`. The tokens `%t` and `%p` give the topic and the number of `partition`.

        Raises `InvalidName` for an unknown token, such as `%x` or a `%` at the end.
        """
        fixed = {
            b"t": partition.topic.encode(),
            b"p": b"%d" % partition.partition,
            b"%": b"%",
            b"n": b"\n",
        }
        # The parts of the format string in order: a literal (bytes), the letter of a token (str), or a `_Time`.
        self._pieces: list[bytes | str | _Time] = []
        literal, at = b"", 0
        for found in _TOKEN.finditer(form):
            literal += form[at : found.start()]
            at = found.end()
            time, letter, escape = found.groups()
            if time is not None or letter in _FIELDS:
                self._pieces += [
                    literal,
                    letter.decode() if time is None else _Time(os.fsdecode(time)),
                ]
                literal = b""
            elif letter in fixed:
                literal += fixed[letter]
            elif escape:
                literal += _ESCAPES[escape]
            else:
                known = b" ".join(b"%" + letter for letter in (*_FIELDS, *fixed)).decode()
                raise InvalidName(
                    f"{os.fsdecode(found[0])!r} in the format string is not a token; the tokens are {known}"
                )
        self._pieces.append(literal + form[at:])

    def format(self, record: Record) -> bytes:
        """Return the text of one record."""
        return b"".join(self._text(piece, record) for piece in self._pieces)

    @staticmethod
    def _text(piece: bytes | str | _Time, record: Record) -> bytes:
        if isinstance(piece, bytes):
            return piece
        if isinstance(piece, _Time):
            return piece.format(-1 if record.timestamp is None else record.timestamp)
        return _FIELDS[piece.encode()](record)

    def render(self, columns: Columns) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
        """Return (the text of records as uint8[n], the end of each record's text in this array as int64[records])."""
        import numpy as np

        from logfs.format.kernels import text_kernels

        literals, pieces = self._compiled()
        extra, ranges = self._times(columns.timestamps)
        out = np.empty(self._room(columns, ranges), np.uint8)
        ends = np.empty(len(columns), np.int64)
        size = text_kernels.write_formatted(
            pieces,
            literals,
            columns.data,
            columns.offsets,
            columns.timestamps,
            columns.key_starts,
            columns.key_lengths,
            columns.value_starts,
            columns.value_lengths,
            columns.header_starts,
            columns.header_ends,
            columns.header_counts,
            np.frombuffer(extra, np.uint8),
            ranges,
            out,
            ends,
        )
        return out[:size], ends

    def _times(self, timestamps: NDArray[np.int64]) -> tuple[bytes, NDArray[np.int64]]:
        """Return the joined texts of all tokens `%T{FORM}` for all records, and the start and end of each text.

        The starts and ends are int64[tokens, records, 2].
        """
        import numpy as np

        texts = b""
        ranges = np.empty(
            (sum(isinstance(p, _Time) for p in self._pieces), len(timestamps), 2), np.int64
        )
        for number, piece in enumerate(p for p in self._pieces if isinstance(p, _Time)):
            found, rows = piece.texts(timestamps)
            ranges[number] = rows + len(texts)
            texts += found
        return texts, ranges

    def _compiled(self) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
        """Return the format string as `literals` (uint8[n]) and `pieces` (int64[pieces, 3]) for `write_formatted`.

        `literals` has the bytes of all literals. A row of `pieces` is for one literal or token: its kind, and two
        numbers. The numbers are the start and end in `literals` for a literal, (i, 0) for the i-th token `%T{FORM}`,
        and (0, 0) for any other token.
        """
        import numpy as np

        from logfs.format.kernels import text_kernels as kernels

        kinds = {
            "s": kernels.VALUE,
            "k": kernels.KEY,
            "h": kernels.HEADERS,
            "o": kernels.OFFSET,
            "T": kernels.TIMESTAMP,
            "S": kernels.VALUE_SIZE,
            "K": kernels.KEY_SIZE,
        }
        literals, rows, times = b"", [], 0
        for piece in self._pieces:
            if isinstance(piece, _Time):
                rows.append((kernels.EXTRA, times, 0))
                times += 1
            elif isinstance(piece, str):
                rows.append((kinds[piece], 0, 0))
            elif piece:
                rows.append((kernels.LITERAL, len(literals), len(literals) + len(piece)))
                literals += piece
        return np.frombuffer(literals, np.uint8), np.array(rows, np.int64).reshape(-1, 3)

    def _room(self, columns: Columns, times: NDArray[np.int64]) -> int:
        """Return an upper bound of the size in bytes of the records' text.

        `times` has the starts and ends that `_times` returned.
        """
        from logfs.format.kernels.text_kernels import HEADER_ROOM, INTEGER_ROOM

        headers = int((columns.header_ends - columns.header_starts).sum())
        of = {
            "s": int(columns.value_lengths.clip(0).sum(dtype="int64")),
            "k": int(columns.key_lengths.clip(0).sum(dtype="int64")),
            "h": headers + HEADER_ROOM * int(columns.header_counts.sum()),
        }
        room = int((times[..., 1] - times[..., 0]).sum())
        for piece in self._pieces:
            if isinstance(piece, bytes):
                room += len(piece) * len(columns)
            elif isinstance(piece, str):
                room += of.get(piece, INTEGER_ROOM * len(columns))
        return room
