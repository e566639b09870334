"""Batches with a valid CRC whose headers and records have extreme fields: every kernel stays in bounds.

`tests/format/test_kernel_bounds.py` runs this file again with numba's bounds checks on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from logfs.errors import Corrupt
from logfs.format.base import varint
from logfs.format.base.batch_rows import NEXT_OFFSET, SPAN_BASE_OFFSET, SPAN_START
from logfs.format.batches import columns as columns_module
from logfs.format.batches import compression
from logfs.format.batches.batch import HEADER_SIZE, Batch, seal
from logfs.format.batches.columns import concatenate
from logfs.format.batches.compression import Codec
from logfs.format.batches.record import Record, decode_records
from logfs.format.encoding.arrow_layout import gather, gather_headers
from logfs.format.encoding.hyperloglog import KeySketch
from logfs.format.files.key_table_format import slots_for
from logfs.format.kernels import compaction_kernels
from logfs.format.text import envelope, rendering
from logfs.format.text.rendering import View
from logfs.log.compaction.offset_map import OffsetMap
from logfs.log.compaction.record_filter import CleanedTransactions, RecordFilter
from logfs.log.read.key_tables import MemoryTable
from logfs.log.segment import batch_scanner
from tests.support.examples import examples

if TYPE_CHECKING:
    from collections.abc import Sequence

INT64 = st.sampled_from(
    [
        *(-(2**63), -(2**63) + 1, -(2**62), -(10**18), -(2**31), -2, -1, 0, 1, 9, 10, 2**31),
        *(1_700_000_000_000, 10**18 - 1, 10**18, 2**62, 2**63 - 2, 2**63 - 1),
    ]
) | st.integers(-(2**63), 2**63 - 1)
INT32 = st.sampled_from([-(2**31), -1, 0, 1, 63, 64, 8191, 8192, 2**31 - 1]) | st.integers(
    -(2**31), 2**31 - 1
)
SMALL = st.integers(0, 12)
FIELD = st.none() | st.binary(max_size=9) | st.sampled_from([b"\0" * 9, b"\xff" * 7, b'"\\\n'])
PREFIX = b'{"topic":"t","partition":0,"offset":'
NOW = 1_700_000_000_000


def padded(value: int, size: int) -> bytes:
    """Return a varint of at least `size` bytes, padded with redundant bytes if it needs fewer."""
    data = bytearray(varint.encode(value))
    if size > len(data):
        data[-1] |= 0x80
        data += b"\x80" * (size - len(data) - 1) + b"\0"
    return bytes(data)


class Draft(NamedTuple):
    """A record to encode: its deltas, the sizes of their varints, and its key, value and headers."""

    timestamp_delta: int
    offset_delta: int
    time_bytes: int
    offset_bytes: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[bytes, bytes | None]]

    def encode(self) -> bytes:
        body = b"\0" + padded(self.timestamp_delta, self.time_bytes)
        body += padded(self.offset_delta, self.offset_bytes)
        for field in (self.key, self.value):
            body += b"\1" if field is None else varint.encode(len(field)) + field
        body += varint.encode(len(self.headers))
        for name, value in self.headers:
            body += varint.encode(len(name)) + name
            body += b"\1" if value is None else varint.encode(len(value)) + value
        return varint.encode(len(body)) + body


DRAFTS = st.builds(
    Draft,
    INT64,
    INT32 | SMALL,
    st.sampled_from([1, 10]),
    st.sampled_from([1, 5]),
    FIELD,
    FIELD,
    st.lists(st.tuples(st.binary(max_size=5), FIELD), max_size=2),
)


@st.composite
def batches(draw: st.DrawFn) -> bytes:
    """Draw a batch with a valid CRC. The record count in the header is correct in most batches."""
    drafts = draw(st.lists(DRAFTS, max_size=14))
    payload = b"".join(draft.encode() for draft in drafts)
    if payload and draw(st.integers(0, 9)) == 0:
        at = draw(st.integers(0, len(payload) - 1))
        payload = payload[:at] + bytes([draw(st.integers(0, 255))]) + payload[at + 1 :]
    codec = draw(st.sampled_from([0, 0, 0, 0, *range(8)]))
    packed = payload
    if 0 < codec < 5:
        packed = compression.compress(Codec(codec), payload)
    attributes = codec | draw(st.sampled_from([0, 0, 0, 0x08, 0x10, 0x40, 0x48, -(2**15)]))
    count = draw(st.sampled_from([len(drafts)] * 4) | INT32)
    data = bytearray(HEADER_SIZE) + packed
    seal(
        data,
        attributes=attributes,
        base_offset=draw(st.sampled_from([0, 2**63 - 1, 2**63 - 2**31]) | INT64),
        last_offset_delta=draw(st.just(max(count - 1, 0)) | INT32),
        base_timestamp=draw(INT64),
        max_timestamp=draw(INT64),
        record_count=count,
        leader_epoch=draw(INT32),
        producer_id=draw(INT64),
        producer_epoch=draw(st.integers(-(2**15), 2**15 - 1)),
        base_sequence=draw(INT32),
    )
    return bytes(data)


def one(base_timestamp: int, delta: int = 0, *, base_offset: int = 0, count: int = 1) -> bytes:
    """Return a batch of `count` records without keys or headers."""
    draft = Draft(delta, 0, 1, 1, None, b"v", ())
    records = (draft._replace(offset_delta=number).encode() for number in range(count))
    data = bytearray(HEADER_SIZE) + b"".join(records)
    seal(
        data,
        base_offset=base_offset,
        last_offset_delta=count - 1,
        base_timestamp=base_timestamp,
        max_timestamp=base_timestamp,
        record_count=count,
    )
    return bytes(data)


def plain(batch: Batch) -> list[Record] | None:
    """Return the records by the plain decoder alone; None if they are malformed."""
    header = batch.header
    try:
        found = list(
            decode_records(
                batch.payload,
                header.record_count,
                base_offset=header.base_offset,
                base_timestamp=header.base_timestamp,
            )
        )
    except Corrupt:
        return None
    return [batch._stamped(record) for record in found]


@given(batches())
@example(one(-(2**63)))
@example(one(-(2**63), count=12))
@example(one(2**63 - 1, 1))
@example(one(-(2**63), -1, count=12))
@example(one(0, -(2**63), base_offset=2**63 - 1, count=12))
@examples(4)
def test_both_texts_equal_those_of_the_plain_decoder(data: bytes) -> None:
    """Lines and envelopes have the right sizes and bytes with any timestamps, deltas, counts and offsets."""
    batch = Batch.parse(data)
    assert batch.is_valid
    expected = plain(batch)
    if expected is None:
        with pytest.raises(Corrupt):
            batch.columns()
        return
    columns = batch.columns()
    assert [*columns.records()] == expected
    lines = [(record.value or b"") + b"\n" for record in expected]
    envelopes = [envelope.encode(record, PREFIX) for record in expected]
    for view, texts, prefix in ((View.LINES, lines, b""), (View.ENVELOPES, envelopes, PREFIX)):
        assert rendering.sizes(columns, view, len(prefix)).tolist() == list(map(len, texts))
        out, ends = rendering.render(columns, view, prefix)
        assert out.tobytes() == b"".join(texts)
        assert ends.tolist() == np.cumsum([0, *map(len, texts)])[1:].tolist()
    both = concatenate([columns, columns])
    assert rendering.render(both, View.ENVELOPES, PREFIX)[0].tobytes() == b"".join(envelopes * 2)
    if not batch.header.is_control and expected:
        size = rendering.measure(batch)
        assert size.lines == len(b"".join(lines))
        assert size.envelopes == len(b"".join(envelopes)) - len(PREFIX) * len(expected)


@given(batches(), INT64)
@examples(2)
def test_a_record_is_found_alike_with_and_without_kernels(data: bytes, timestamp: int) -> None:
    """Lookups by offset and by time find the same with and without kernels, or both raise `Corrupt`."""
    batch = Batch.parse(data)

    def found() -> object:
        header = batch.header
        last = max(min(header.last_offset_delta, 20), 0)
        answers: list[object] = []
        for delta in {0, 1, last, header.last_offset_delta}:
            try:
                answers.append(batch.record_at(header.base_offset + delta))
            except Corrupt:
                answers.append(Corrupt)
        try:
            answers.append(batch.first_at(timestamp, header.base_offset))
        except Corrupt:
            answers.append(Corrupt)
        return answers

    by_kernels = found()
    few = columns_module._FEW
    try:
        columns_module._FEW = 2**40
        assert found() == by_kernels
    finally:
        columns_module._FEW = few


@given(st.lists(batches(), min_size=1, max_size=3), INT64, st.booleans())
@examples(3)
def test_scanned_batches_go_through_every_kernel(
    many: list[bytes], first_offset: int, gaps: bool
) -> None:
    """The scan, lines, columns, keys, headers, sketches and compaction of any batches succeed or raise `Corrupt`."""
    data = memoryview(b"".join(many))
    scanned, end = batch_scanner.scan(data, first_offset, gaps=gaps)
    rows = scanned.rows
    assert 0 <= end <= len(data)
    if not len(rows):
        return
    assert (rows[:, NEXT_OFFSET] > rows[:, SPAN_BASE_OFFSET]).all()
    sketch = KeySketch()
    whole = True
    for columns, group in scanned.decode():
        if isinstance(columns, Corrupt):
            assert len(group) == 1
            whole = False
            continue
        sketch.add(columns)
        gather(columns.data, columns.key_starts, columns.key_lengths)
        offsets, keys, values = gather_headers(columns)
        assert len(keys.offsets) == len(values.offsets) == offsets[-1] + 1
    for _, group, texts in scanned.measure():
        assert len(texts) == len(group)
        size = int(texts[:, 1].sum())
        part = scanned._replace(rows=group)
        lines = part.render_lines(size)
        assert lines is None or len(lines) == size
        size = int(texts[:, 0].sum() + texts[:, 2].sum())
        envelopes = part.render_envelopes(b"{", size)
        assert envelopes is None or len(envelopes) == size
    known = OffsetMap(1 << 12, 0.9, 1 << 12)
    table = MemoryTable(bytes(16))
    spans_ = np.ascontiguousarray(rows[:, SPAN_START:])
    array = np.frombuffer(data, np.uint8)
    for put in (known.put, table.put):
        try:
            put(array, spans_, 0)
        except Corrupt:
            pass
    limit = int(rows[-1, NEXT_OFFSET])
    record_filter = RecordFilter(known, CleanedTransactions([]), NOW, 0, limit, {})
    try:
        left = b"".join(map(bytes, record_filter.apply(scanned)))
    except Corrupt:
        return
    if whole and left:
        again, done = batch_scanner.scan(memoryview(left), -(2**63), gaps=True)
        assert done == len(left)
        for columns, _ in again.decode():
            assert not isinstance(columns, Corrupt)


def test_a_table_with_more_keys_than_its_header_states_is_refused() -> None:
    """`move_slots` returns -1 before a table is full, where a search never ends, and `put_table` raises `Corrupt`."""
    full: np.ndarray = np.ones((slots_for(1), 3), np.uint64)
    full[:, 0] = np.arange(len(full), dtype=np.uint64) << np.uint64(40)
    for slots in (2, 3, 100):
        target = np.zeros((slots, 3), np.uint64)
        assert compaction_kernels.move_slots(full, target, 0) == -1
        assert (target[:, 2] == 0).sum() == 1
    table = MemoryTable(bytes(16), 10)
    many = np.ones((len(table.slots) + 1, 3), np.uint64)
    many[:, 0] = np.arange(len(many), dtype=np.uint64) << np.uint64(40)
    with pytest.raises(Corrupt, match="more keys than its header"):
        table.put_table(many)
