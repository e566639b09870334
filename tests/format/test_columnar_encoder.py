"""The encoder of columns, compared with the plain builder, and the default partitioner, with kafka-python's."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from logfs.errors import InvalidRecord, RecordTooLarge
from logfs.format.batches.batch import Batch
from logfs.format.batches.compression import Codec
from logfs.format.batches.record import Record
from logfs.format.encoding import columnar_encoder
from logfs.format.encoding.batch_builder import BatchFormat, build_records
from logfs.format.encoding.columnar_encoder import Binary, Rows, build_rows, partitions_of
from tests.support.examples import examples

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from kafka.partitioner.default import murmur2

MAYBE_BYTES = st.none() | st.binary(max_size=80)
HEADERS = st.lists(st.tuples(st.text(max_size=8), MAYBE_BYTES), max_size=3)
TIMES = st.integers(-1, 2**60)
RECORDS = st.lists(st.builds(Record, MAYBE_BYTES, MAYBE_BYTES, HEADERS, TIMES), min_size=1)


def binary(values: list[bytes | None]) -> Binary:
    """Return the values as a column."""
    data = b"".join(value or b"" for value in values)
    offsets = np.cumsum([0, *(len(value or b"") for value in values)], dtype=np.int64)
    return Binary(
        np.frombuffer(data, np.uint8), offsets, np.array([v is None for v in values], np.bool_)
    )


def columns(records: list[Record]) -> Rows:
    """Return the records as columns."""
    headers = [header for record in records for header in record.headers]
    return Rows(
        binary([record.key for record in records]),
        binary([record.value for record in records]),
        np.array([record.timestamp for record in records], np.int64),
        np.cumsum([0, *(len(record.headers) for record in records)], dtype=np.int64),
        binary([key.encode() for key, _ in headers]),
        binary([value for _, value in headers]),
    )


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.LZ4])
@given(records=RECORDS, data=st.data())
@examples(0.5)
def test_columns_and_records_make_the_same_batches(
    codec: Codec, records: list[Record], data: st.DataObject
) -> None:
    """`build_rows` makes the same bytes as the plain builder of the same records, in the requested order."""
    order = data.draw(st.permutations(range(len(records))))
    form = BatchFormat(codec)
    plain = build_records([records[number] for number in order], form, 0)
    built = build_rows(columns(records), np.array(order, np.int64), form)
    assert [(bytes(b.data), b.record_count, b.max_timestamp) for b in built] == [
        (bytes(b.data), b.record_count, b.max_timestamp) for b in plain.batches
    ]


@pytest.mark.parametrize("codec", list(Codec))
def test_many_records_go_into_many_batches(codec: Codec, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each batch has about the target size, and together the batches hold all records in order."""
    monkeypatch.setattr(columnar_encoder, "TARGET_BYTES", 1000)
    records = [Record(b"%d" % n * (n % 70), b"k%d" % n, timestamp=n) for n in range(500)]
    built = build_rows(columns(records), np.arange(500), BatchFormat(codec))
    batches = [bytes(batch.data) for batch in built]
    found = [record for batch in batches for record in Batch.parse(batch).records()]
    assert [(r.key, r.value, r.timestamp) for r in found] == [
        (r.key, r.value, r.timestamp) for r in records
    ]
    assert len(batches) > 30
    if codec is Codec.NONE:
        assert all(800 < len(batch) <= 1061 for batch in batches[:-1])


def test_records_too_large_and_bad_timestamps_are_refused() -> None:
    """A record that is too large is refused after those before it are built, and a timestamp below -1 is refused."""
    records = [
        Record(b"x", timestamp=0),
        Record(b"y" * 300, timestamp=0),
        Record(b"z", timestamp=0),
    ]
    built = build_rows(columns(records), np.arange(3), BatchFormat(limit_bytes=200))
    assert next(built).record_count == 1
    with pytest.raises(RecordTooLarge):
        next(built)
    odd = build_rows(columns([Record(b"x", timestamp=-2)]), np.arange(1), BatchFormat())
    with pytest.raises(InvalidRecord):
        next(odd)


@given(keys=st.lists(MAYBE_BYTES | st.binary(max_size=9), min_size=1), count=st.integers(1, 200))
def test_keys_get_the_partitions_of_kafkas_partitioner(
    keys: list[bytes | None], count: int
) -> None:
    """`partitions_of` hashes keys with murmur2 as kafka-python does; for a key of None it gives -1, any partition."""
    found = partitions_of(binary(keys), count).tolist()
    assert found == [-1 if key is None else (murmur2(key) & 0x7FFFFFFF) % count for key in keys]


def test_murmur2_of_known_keys() -> None:
    """The hashes of known keys are those in Kafka's own tests."""
    known = {b"21": -973932308, b"foobar": -790332482, b"a-little-bit-long-string": -985981536}
    for key, value in known.items():
        assert partitions_of(binary([key]), 2**31 - 1)[0] == (value & 0x7FFFFFFF) % (2**31 - 1)
