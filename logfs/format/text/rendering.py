"""The two text views of records: their sizes, and their bytes.

In the *lines* view a record is its value and a newline (a null value is an empty line). In the *envelopes* view a
record is a line with a JSON object, its envelope. Control records are in neither view.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Any, NamedTuple

from logfs.format.batches import columns
from logfs.format.batches.batch import HEADER_SIZE
from logfs.format.text import envelope

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from logfs.format.batches.batch import Batch
    from logfs.format.batches.columns import Columns


class View(enum.Enum):
    """A text view: LINES (a record is its value and a newline) or ENVELOPES (a record is a line of JSON)."""

    LINES = "lines"
    ENVELOPES = "envelopes"


class TextSize(NamedTuple):
    """The size of the text of some records: their number, and the bytes of their text in each of the two views.

    `envelopes` excludes the prefix of each envelope: the beginning of the line, with the topic and the partition. The
    method `size` adds the prefixes.
    """

    records: int
    lines: int
    envelopes: int

    def plus(self, other: TextSize) -> TextSize:
        """Return the sum of this size and `other`."""
        return TextSize(
            self.records + other.records,
            self.lines + other.lines,
            self.envelopes + other.envelopes,
        )

    def minus(self, other: TextSize) -> TextSize:
        """Return this size less `other`, the size of a part of the text."""
        return TextSize(
            self.records - other.records,
            self.lines - other.lines,
            self.envelopes - other.envelopes,
        )

    def size(self, view: View, prefix_bytes: int) -> int:
        """Return the size in bytes of the text of one view (lines or envelopes).

        `prefix_bytes` is the length of an envelope's prefix, which is added for each record of the envelopes view.
        """
        if view is View.LINES:
            return self.lines
        return self.envelopes + self.records * prefix_bytes


NO_TEXT = TextSize(0, 0, 0)


def measure(batch: Batch) -> TextSize:
    """Return the size of the text of a batch's records. Raises `Corrupt` if the records are malformed."""
    header = batch.header
    # A batch that is only a header, as compaction may leave it, has no text. If a batch of 0 records has more bytes,
    # the code below checks these.
    if header.is_control or (header.record_count == 0 and header.size_bytes == HEADER_SIZE):
        return NO_TEXT
    if columns.worthwhile(header.record_count):
        decoded = batch.columns()
        lines = int(decoded.value_lengths.clip(0).sum()) + len(decoded)
        return TextSize(len(decoded), lines, int(envelope_sizes(decoded).sum()))
    lines = envelopes = 0
    for record in batch.records():
        lines += len(record.value or b"") + 1
        envelopes += len(envelope.encode(record, b""))
    return TextSize(header.record_count, lines, envelopes)


def line_sizes(decoded: Columns) -> NDArray[np.int64]:
    """Return the size in bytes of each record in the lines view, its newline included, as int64[n]."""
    return decoded.value_lengths.clip(0).astype("int64") + 1


def envelope_sizes(decoded: Columns) -> NDArray[np.int64]:
    """Return the size in bytes of each record in the envelopes view, without the prefix, as int64[n].

    The prefix is the beginning of an envelope, with the topic and the partition.
    """
    import numpy as np

    from logfs.format.kernels import batch_kernels

    sizes = np.empty(len(decoded), np.int64)
    batch_kernels.envelope_sizes(*_fields(decoded), sizes)
    return sizes


def sizes(decoded: Columns, view: View, prefix_bytes: int) -> NDArray[np.int64]:
    """Return the size in bytes of each record in a view, as int64[n].

    `prefix_bytes` is the length of an envelope's prefix; the lines view does not use it.
    """
    if view is View.LINES:
        return line_sizes(decoded)
    return envelope_sizes(decoded) + prefix_bytes


def render(
    decoded: Columns, view: View, prefix: bytes
) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Return (the text of records as uint8[n], the end of each record's text in this array as int64[records]).

    `prefix` is the beginning of each envelope; the lines view does not use it.
    """
    import numpy as np

    from logfs.format.kernels import batch_kernels

    ends = np.empty(len(decoded), np.int64)
    if view is View.LINES:
        out = np.empty(int(line_sizes(decoded).sum()), np.uint8)
        batch_kernels.write_values(
            decoded.data, decoded.value_starts, decoded.value_lengths, out, ends
        )
    else:
        size = int(envelope_sizes(decoded).sum()) + len(prefix) * len(decoded)
        out = np.empty(size, np.uint8)
        batch_kernels.write_envelopes(np.frombuffer(prefix, np.uint8), *_fields(decoded), out, ends)
    return out, ends


def _fields(decoded: Columns) -> tuple[Any, ...]:
    return (
        decoded.data,
        decoded.offsets,
        decoded.timestamps,
        decoded.timestamp_types,
        decoded.key_starts,
        decoded.key_lengths,
        decoded.value_starts,
        decoded.value_lengths,
        decoded.header_starts,
        decoded.header_ends,
        decoded.header_counts,
    )
