"""The compiled loops that measure and write the text of records without decoding them to columns."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from logfs.errors import Corrupt
from logfs.format.base.names import TopicPartition
from logfs.format.batches.columns import decode_columns
from logfs.format.batches.record import Record, TimestampType
from logfs.format.kernels import text_kernels
from logfs.format.text import envelope, rendering
from tests.format.test_batch_kernels import (
    HOSTILE,
    RECORDS,
    guarded,
    payload,
    room,
    untouched,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

LABEL_BYTES = len(TimestampType.CREATE_TIME.label)
# Records as the mount makes them of lines: no key, no headers, and hardly any time between them.
LINES = st.lists(
    st.builds(Record, st.binary(max_size=300), timestamp=st.integers(0, 9000)), max_size=20
)
BASES = st.integers(0, 2**62) | st.integers(0, 20).map(lambda power: 10 ** min(power, 18) - 3)


def measured(data: NDArray[np.uint8], spans: NDArray[np.int64]) -> list[list[int]] | None:
    """Return the sizes and the outer offsets that the kernel finds, or None if it finds a malformed record."""
    sizes = np.full((len(spans), 3), -1, np.int64)
    edges = np.full((len(spans), 2), -1, np.int64)
    good = text_kernels.measure_spans(data, spans, LABEL_BYTES, sizes, edges)
    edges[sizes[:, 0] == 0] = -1
    return np.column_stack((sizes, edges)).tolist() if good else None


def expected(data: bytes, spans: NDArray[np.int64]) -> list[list[int]] | None:
    """Return the same of the decoded records; None if they cannot be decoded, or if their offsets do not rise."""
    found = []
    for number in range(len(spans)):
        try:
            columns = decode_columns(data, spans[number : number + 1])
        except Corrupt:
            return None
        if (np.diff(columns.offsets) <= 0).any():
            return None
        lines, envelopes = rendering.line_sizes(columns), rendering.envelope_sizes(columns)
        edges = columns.offsets[[0, -1]].tolist() if len(columns) else [-1, -1]
        found.append([len(columns), int(lines.sum()), int(envelopes.sum()), *edges])
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


PREFIX = envelope.prefix(TopicPartition("orders", 3))
# Records that leave the fast ways: JSON, text that is not ASCII, long values, timestamps with more or fewer digits.
TEXTS = st.lists(
    st.builds(
        Record,
        st.none()
        | st.sampled_from(HOSTILE)
        | st.text('a"\\\né日\x7f', max_size=90).map(str.encode),
        st.none() | st.binary(max_size=80) | st.sampled_from([b"", b"key", b"k" * 9000]),
        st.lists(st.tuples(st.text(max_size=3), st.none() | st.binary(max_size=70)), max_size=2),
        st.integers(-1, 2**62) | st.integers(9990, 10_010),
    ),
    max_size=6,
)


@given(
    st.lists(RECORDS | LINES | TEXTS, max_size=4),
    BASES,
    st.booleans(),
    st.none() | st.tuples(st.floats(0, 1), st.integers(1, 255)),
    st.integers(-300, 300),
)
def test_envelopes_are_those_of_the_decoded_records(
    groups: list[list[Record]],
    base: int,
    is_stamped: bool,
    damage: tuple[float, int] | None,
    spare: int,
) -> None:
    """The kernel writes what `envelope.encode` returns for each record. It finds damage, and stays in its room."""
    data, spans = bytearray(), []
    for number, group in enumerate(groups):
        raw = payload(group, number)
        spans.append((len(data), len(data) + len(raw), len(group), base + number, number))
        data += raw
    if damage is not None and data:
        data[int(damage[0] * (len(data) - 1))] ^= damage[1]
    table = np.array(spans, np.int64).reshape(-1, 5)
    kind = TimestampType(is_stamped)
    wanted: bytes | None = b""
    for number in range(len(table)):
        try:
            columns = decode_columns(bytes(data), table[number : number + 1], kind)
        except Corrupt:
            wanted = None
            break
        if is_stamped:
            columns.timestamps.fill(number)
        wanted += b"".join(envelope.encode(record, PREFIX) for record in columns.records())
    array, _ = guarded(bytes(data))
    out, whole = room(max((len(wanted or b"") or 2000) + text_kernels.ENVELOPE_ROOM + spare, 0))
    done = text_kernels.render_envelopes(
        array,
        table,
        is_stamped,
        np.frombuffer(PREFIX, np.uint8),
        np.frombuffer(kind.label.encode(), np.uint8),
        out,
        0,
    )
    assert untouched(whole)
    if wanted is None or (spare < -text_kernels.ENVELOPE_ROOM and wanted):
        assert done < 0
    elif spare >= 0 or done >= 0:
        assert out[:done].tobytes() == wanted


def test_every_changed_byte_of_a_line_is_found_as_by_decoding() -> None:
    """Each byte of two records made from lines takes all 256 values."""
    good = payload([Record(b"abc", timestamp=100), Record(b"d" * 70, timestamp=101)], 100)
    table = np.array([(0, len(good), 2, 998, 9_999)], np.int64)
    for at in range(len(good)):
        for byte in range(256):
            data = good[:at] + bytes([byte]) + good[at + 1 :]
            array, _ = guarded(data)
            assert measured(array, table) == expected(data, table), (at, byte)
