"""The format strings of `logfs cat -F` and `logfs tail -F`, such as `%o %T %s\\n`."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

from logfs.errors import InvalidName

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np
    from numpy.typing import NDArray

    from logfs.format.base.names import TopicPartition
    from logfs.format.batches.columns import Columns
    from logfs.format.batches.record import Record

_TOKEN = re.compile(rb"%(.?)|\\([ntr0\\])", re.DOTALL)
_ESCAPES = {b"n": b"\n", b"t": b"\t", b"r": b"\r", b"0": b"\0", b"\\": b"\\"}

HELP = (
    "a format string: %%s value, %%k key, %%h headers, %%o offset, %%T timestamp (ms), %%t topic, %%p partition, "
    "%%S and %%K sizes of value and key (-1 for null); \\n, \\t, \\r, \\0"
)


def _headers(record: Record) -> bytes:
    return b",".join(
        name.encode("utf-8", "surrogateescape") + b"=" + (b"NULL" if text is None else text)
        for name, text in record.headers
    )


# The text of each token that differs from record to record.
_FIELDS: dict[bytes, Callable[[Record], bytes]] = {
    b"s": lambda record: record.value or b"",
    b"k": lambda record: record.key or b"",
    b"h": _headers,
    b"o": lambda record: b"%d" % record.offset,
    b"T": lambda record: b"%d" % (-1 if record.timestamp is None else record.timestamp),
    b"S": lambda record: b"%d" % (-1 if record.value is None else len(record.value)),
    b"K": lambda record: b"%d" % (-1 if record.key is None else len(record.key)),
}


class FormatString:
    """A format string for the records of one partition. `HELP` lists its tokens; other text stands for itself."""

    def __init__(self, form: bytes, partition: TopicPartition) -> None:
        """Parse a format string. Raises `InvalidName` for an unknown letter after a percent sign."""
        fixed = {
            b"t": partition.topic.encode(),
            b"p": b"%d" % partition.partition,
            b"%": b"%",
            b"n": b"\n",
        }
        # Literals, and the letters of tokens as a `str`, in the order of the format string.
        self._pieces: list[bytes | str] = []
        literal, at = b"", 0
        for found in _TOKEN.finditer(form):
            literal += form[at : found.start()]
            at = found.end()
            if found[1] in _FIELDS:
                self._pieces += [literal, found[1].decode()]
                literal = b""
            elif found[1] in fixed:
                literal += fixed[found[1]]
            elif found[2]:
                literal += _ESCAPES[found[2]]
            else:
                known = b" ".join(b"%" + letter for letter in (*_FIELDS, *fixed)).decode()
                raise InvalidName(
                    f"{os.fsdecode(found[0])!r} in the format string: the letters are {known}"
                )
        self._pieces.append(literal + form[at:])

    def format(self, record: Record) -> bytes:
        """Return the text of one record."""
        return b"".join(
            piece if isinstance(piece, bytes) else _FIELDS[piece.encode()](record)
            for piece in self._pieces
        )

    def render(self, columns: Columns) -> memoryview:
        """Return the text of all records in `columns`, one after the other."""
        import numpy as np

        from logfs.format.kernels import text_kernels

        literals, pieces = self._compiled()
        out = np.empty(self._room(columns), np.uint8)
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
            out,
        )
        return out[:size].data

    def _compiled(self) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
        """Return the literals as uint8[n], and the pieces as int64[pieces, 3], as the kernel takes them."""
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
        literals, rows = b"", []
        for piece in self._pieces:
            if isinstance(piece, str):
                rows.append((kinds[piece], 0, 0))
            elif piece:
                rows.append((kernels.LITERAL, len(literals), len(literals) + len(piece)))
                literals += piece
        return np.frombuffer(literals, np.uint8), np.array(rows, np.int64).reshape(-1, 3)

    def _room(self, columns: Columns) -> int:
        """Return how many bytes the text of the records has at most."""
        from logfs.format.kernels.text_kernels import HEADER_ROOM, INTEGER_ROOM

        headers = int((columns.header_ends - columns.header_starts).sum())
        of = {
            "s": int(columns.value_lengths.clip(0).sum(dtype="int64")),
            "k": int(columns.key_lengths.clip(0).sum(dtype="int64")),
            "h": headers + HEADER_ROOM * int(columns.header_counts.sum()),
        }
        room = 0
        for piece in self._pieces:
            if isinstance(piece, bytes):
                room += len(piece) * len(columns)
            else:
                room += of.get(piece, INTEGER_ROOM * len(columns))
        return room
