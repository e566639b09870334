"""The two texts of records: their sizes, and their bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st

from logfs.format.batches.batch import Batch, assign_offset
from logfs.format.batches.compression import Codec
from logfs.format.batches.record import Record, TimestampType
from logfs.format.encoding.batch_builder import BatchFormat, build_records
from logfs.format.text import envelope, rendering
from logfs.format.text.rendering import NO_TEXT, TextSize, View
from tests.format.test_batch import G_CLEANED, A, B
from tests.support.batches import E_COMMIT, empty_batch

if TYPE_CHECKING:
    import pytest

PREFIX = b'{"topic":"t","partition":0,"offset":'
MAYBE_BYTES = st.none() | st.binary(max_size=30) | st.text(max_size=10).map(str.encode)
RECORDS = st.lists(
    st.builds(
        Record,
        MAYBE_BYTES,
        MAYBE_BYTES,
        st.lists(st.tuples(st.text(max_size=4), MAYBE_BYTES), max_size=2),
        st.integers(-1, 2**60),
    ),
    min_size=1,
    max_size=20,
)
FORMATS = st.builds(
    BatchFormat,
    st.sampled_from(list(Codec)),
    st.none(),
    st.just(1 << 20),
    st.sampled_from([TimestampType.CREATE_TIME, TimestampType.LOG_APPEND_TIME]),
)


def line_of(record: Record) -> bytes:
    return (record.value or b"") + b"\n"


def envelope_of(record: Record) -> bytes:
    return envelope.encode(record, PREFIX)


@given(RECORDS, FORMATS, st.integers(0, 2**50))
def test_text_is_measured_before_it_is_written(
    records: list[Record], form: BatchFormat, base: int
) -> None:
    """The measured size of each view is the length of its bytes; the size of envelopes includes their prefixes."""
    (new,) = build_records(records, form, 9).batches
    assign_offset(new.data, base, 0)
    batch = Batch.parse(new.data)
    size = rendering.measure(batch)
    found = list(batch.records())
    assert size.records == len(records)
    assert size.size(View.LINES, len(PREFIX)) == len(b"".join(map(line_of, found)))
    assert size.size(View.ENVELOPES, len(PREFIX)) == len(b"".join(map(envelope_of, found)))


@given(RECORDS, FORMATS)
def test_text_is_rendered_record_by_record(records: list[Record], form: BatchFormat) -> None:
    """The rendered bytes are those of the plain loop, with the end and the size of each record's text."""
    (new,) = build_records(records, form, 9).batches
    batch = Batch.parse(new.data)
    for view, plain in ((View.LINES, line_of), (View.ENVELOPES, envelope_of)):
        pieces = [plain(record) for record in batch.records()]
        columns = batch.columns()
        out, ends = rendering.render(columns, view, PREFIX)
        assert out.tobytes() == b"".join(pieces)
        assert rendering.sizes(columns, view, len(PREFIX)).tolist() == [len(p) for p in pieces]
        assert ends.tolist() == [len(b"".join(pieces[: n + 1])) for n in range(len(pieces))]


def test_the_plain_and_the_bulk_measure_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    """The code for few records and the code for many measure a batch alike."""
    records = [Record(bytes([n, 255 - n]) * n, b"k" * n, (), n) for n in range(40)]
    (new,) = build_records(records, BatchFormat(), 0).batches
    batch = Batch.parse(new.data)
    sizes = set()
    for worthwhile in (True, False):
        monkeypatch.setattr("logfs.format.batches.columns.worthwhile", lambda _, w=worthwhile: w)
        sizes.add(rendering.measure(batch))
    assert len(sizes) == 1


def test_control_and_empty_batches_have_no_text() -> None:
    """Control records are never shown, and an emptied batch has no text."""
    assert rendering.measure(Batch.parse(E_COMMIT)) == NO_TEXT
    assert rendering.measure(Batch.parse(empty_batch(Batch.parse(B).header))) == NO_TEXT


def test_compacted_batches_show_the_remaining_records() -> None:
    """A batch with missing records has the text of the remaining ones (the golden batch G-cleaned)."""
    assert rendering.measure(Batch.parse(G_CLEANED))[:2] == (2, len(b"\n" + b"z\n"))
    assert rendering.measure(Batch.parse(A))[:2] == (2, len(b"value\n" + b"\n"))


def test_sizes_add_and_subtract() -> None:
    """Text sizes are added, and subtracting a size undoes its addition."""
    a, b = TextSize(1, 20, 300), TextSize(2, 3, 4)
    assert a.plus(b) == TextSize(3, 23, 304)
    assert a.plus(b).minus(b) == a
    assert a.plus(NO_TEXT) == a
    assert (a.size(View.LINES, 9), a.size(View.ENVELOPES, 9)) == (20, 309)
