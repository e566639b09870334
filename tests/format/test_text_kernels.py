"""The compiled loop that measures the text of records without decoding them to columns."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from logfs.errors import Corrupt
from logfs.format.batches.columns import decode_columns
from logfs.format.batches.record import Record, TimestampType
from logfs.format.kernels import text_kernels
from logfs.format.text import rendering
from tests.format.test_batch_kernels import RECORDS, guarded, payload

if TYPE_CHECKING:
    from numpy.typing import NDArray

LABEL_BYTES = len(TimestampType.CREATE_TIME.label)
# Records as the mount makes them of lines: no key, no headers, and hardly any time between them.
LINES = st.lists(
    st.builds(Record, st.binary(max_size=300), timestamp=st.integers(0, 9000)), max_size=20
)
BASES = st.integers(0, 2**62) | st.integers(0, 20).map(lambda power: 10 ** min(power, 18) - 3)


def measured(data: NDArray[np.uint8], spans: NDArray[np.int64]) -> list[list[int]] | None:
    """Return the sizes that the kernel measures, or None if it finds a malformed record."""
    sizes = np.full((len(spans), 3), -1, np.int64)
    good = text_kernels.measure_spans(data, spans, LABEL_BYTES, sizes)
    return [list(map(int, row)) for row in sizes] if good else None


def expected(data: bytes, spans: NDArray[np.int64]) -> list[list[int]] | None:
    """Return the sizes of the decoded records, or None if they cannot be decoded."""
    found = []
    for number in range(len(spans)):
        try:
            columns = decode_columns(data, spans[number : number + 1])
        except Corrupt:
            return None
        lines, envelopes = rendering.line_sizes(columns), rendering.envelope_sizes(columns)
        found.append([len(columns), int(lines.sum()), int(envelopes.sum())])
    return found


@given(
    st.lists(RECORDS | LINES, max_size=4),
    BASES,
    st.none() | st.tuples(st.floats(0, 1), st.integers(1, 255)),
)
def test_text_is_measured_as_it_is_decoded(
    groups: list[list[Record]], base: int, damage: tuple[float, int] | None
) -> None:
    """Good records have the sizes of their text; a changed byte is found if, and only if, decoding finds it."""
    data, spans = bytearray(), []
    for number, group in enumerate(groups):
        raw = payload(group, number)
        spans.append((len(data), len(data) + len(raw), len(group), base + number, number))
        data += raw
    if damage is not None and data:
        data[int(damage[0] * (len(data) - 1))] ^= damage[1]
    table = np.array(spans, np.int64).reshape(-1, 5)
    array, _ = guarded(bytes(data))
    assert measured(array, table) == expected(bytes(data), table)


def test_every_changed_byte_of_a_line_is_found_as_by_decoding() -> None:
    """Each byte of two records made from lines takes all 256 values."""
    good = payload([Record(b"abc", timestamp=100), Record(b"d" * 70, timestamp=101)], 100)
    table = np.array([(0, len(good), 2, 998, 9_999)], np.int64)
    for at in range(len(good)):
        for byte in range(256):
            data = good[:at] + bytes([byte]) + good[at + 1 :]
            array, _ = guarded(data)
            assert measured(array, table) == expected(data, table), (at, byte)
