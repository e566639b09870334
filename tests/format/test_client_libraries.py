"""kafka-python and aiokafka read batches of logfs, and logfs reads theirs, field by field."""

from __future__ import annotations

import warnings

import pytest
from hypothesis import given
from hypothesis import strategies as st

from logfs.format.batches.batch import Batch, assign_offset
from logfs.format.batches.compression import Codec
from logfs.format.batches.record import Record, TimestampType
from logfs.format.encoding.batch_builder import BatchFormat, build_lines, build_records
from tests.support.batches import Batches
from tests.support.examples import examples

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from aiokafka.record import default_records as aio
    from aiokafka.record.memory_records import MemoryRecords as AioMemoryRecords
    from kafka.record import MemoryRecords
    from kafka.record import default_records as kp

T = 1_700_000_000_000
MAYBE_BYTES = st.none() | st.binary(max_size=200)
RECORDS = st.lists(
    st.builds(
        Record,
        MAYBE_BYTES,
        MAYBE_BYTES,
        st.lists(st.tuples(st.text(max_size=8), st.binary(max_size=20)), max_size=3),
        st.integers(0, 2**50),
    ),
    min_size=1,
    max_size=15,
)
NULL_HEADER = [("n", None), ("e", b""), ("n", b"again")]


def runnable(module, codec: Codec) -> bool:
    """Whether the compression library that the client library needs for the codec is installed."""
    checks = {
        Codec.GZIP: "has_gzip",
        Codec.SNAPPY: "has_snappy",
        Codec.LZ4: "has_lz4",
        Codec.ZSTD: "has_zstd",
    }
    if codec is Codec.NONE:
        return True
    package = "kafka.codec" if module is kp else "aiokafka.codec"
    codecs = __import__(package, fromlist=["codec"])
    return bool(getattr(codecs, checks[codec])())


LIBRARIES = {"kafka-python": kp, "aiokafka": aio, "aiokafka in Python": aio}
CASES = [
    pytest.param(name, codec, id=f"{name}-{codec.kafka_name}")
    for name, module in LIBRARIES.items()
    for codec in Codec
    if runnable(module, codec)
]


def reader(name: str):
    return {
        "kafka-python": kp.DefaultRecordBatch,
        "aiokafka": aio.DefaultRecordBatch,
        "aiokafka in Python": aio._DefaultRecordBatchPy,
    }[name]


def builder(name: str, **fields):
    kinds = {
        "kafka-python": kp.DefaultRecordBatchBuilder,
        "aiokafka": aio.DefaultRecordBatchBuilder,
        "aiokafka in Python": aio._DefaultRecordBatchBuilderPy,
    }
    return kinds[name](**fields)


def fields_of(record: Record) -> tuple[object, ...]:
    return (record.offset, record.timestamp, record.key, record.value, list(record.headers))


def test_every_codec_has_an_oracle() -> None:
    """Each codec is tested with at least one client library."""
    assert {case.values[1] for case in CASES} == set(Codec)


@pytest.mark.parametrize(("name", "codec"), CASES)
@pytest.mark.parametrize("late", [False, True])
@given(records=RECORDS)
@examples(0.25)
def test_client_libraries_read_our_batches(
    name: str, codec: Codec, late: bool, records: list[Record]
) -> None:
    """The client libraries read the offsets, timestamps, keys, values, headers and header fields of our batches."""
    form = BatchFormat(codec, timestamp_type=TimestampType(late))
    (new,) = build_records(records, form, T).batches
    assign_offset(new.data, 1000, 7)
    ours = Batch.parse(bytes(new.data))
    theirs = reader(name)(bytes(new.data))
    header = ours.header
    assert theirs.validate_crc()
    assert theirs.base_offset == 1000
    assert theirs.magic == 2
    assert theirs.crc == header.crc
    assert theirs.attributes == header.attributes
    assert theirs.compression_type == codec
    assert theirs.timestamp_type == late
    assert theirs.last_offset_delta == len(records) - 1
    assert theirs.first_timestamp == records[0].timestamp
    assert theirs.max_timestamp == header.max_timestamp
    assert (theirs.producer_id, theirs.producer_epoch, theirs.base_sequence) == (-1, -1, -1)
    assert not theirs.is_control_batch
    assert not theirs.is_transactional
    assert theirs.next_offset == header.next_offset
    found = [
        (r.offset, r.timestamp, r.key, r.value, [(n, v) for n, v in r.headers]) for r in theirs
    ]
    assert found == [fields_of(record) for record in ours.records()]
    assert [row[2:] for row in found] == [(r.key, r.value, list(r.headers)) for r in records]


@pytest.mark.parametrize(("name", "codec"), CASES)
def test_client_libraries_read_null_headers(name: str, codec: Codec) -> None:
    """The client libraries read a header with a null value, one with an empty value, and a repeated header name."""
    form = BatchFormat(codec)
    (new,) = build_records([Record(None, b"", NULL_HEADER, T)], form, T).batches
    (record,) = list(reader(name)(bytes(new.data)))
    assert (record.key, record.value) == (b"", None)
    assert [(n, v) for n, v in record.headers] == NULL_HEADER


@pytest.mark.parametrize(("name", "codec"), CASES)
def test_client_libraries_read_batches_of_lines(name: str, codec: Codec) -> None:
    """The client libraries read batches of the line kernel, which have thousands of records each."""
    lines = [b"line %d" % n for n in range(5000)]
    built = build_lines(b"".join(line + b"\n" for line in lines), BatchFormat(codec), T)
    found = []
    for new in built.batches:
        batch = reader(name)(bytes(new.data))
        assert batch.validate_crc()
        found += [record.value for record in batch]
    assert found == lines


@pytest.mark.parametrize(("name", "codec"), CASES)
@given(records=RECORDS)
@examples(0.25)
def test_batches_of_client_libraries_are_read(
    name: str, codec: Codec, records: list[Record]
) -> None:
    """The plain and the bulk decoder read every field of batches that the client libraries write."""
    made = builder(
        name,
        magic=2,
        compression_type=int(codec),
        is_transactional=0,
        producer_id=4242,
        producer_epoch=7,
        base_sequence=12,
        batch_size=1 << 20,
    )
    for number, record in enumerate(records):
        assert (
            made.append(
                number,
                timestamp=record.timestamp,
                key=record.key,
                value=record.value,
                headers=list(record.headers),
            )
            is not None
        )
    data = bytearray(made.build())
    assign_offset(data, 500, 3)
    batch = Batch.parse(data)
    batch.check()
    header = batch.header
    assert (header.base_offset, header.partition_leader_epoch, header.magic) == (500, 3, 2)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (4242, 7, 12)
    assert header.record_count == len(records) == header.last_offset_delta + 1
    assert header.base_timestamp == records[0].timestamp
    assert header.max_timestamp == max(record.timestamp for record in records)
    # The libraries leave a batch uncompressed if compression would make it longer.
    assert header.codec in (codec, Codec.NONE)
    expected = [
        (500 + n, r.timestamp, r.key, r.value, list(r.headers)) for n, r in enumerate(records)
    ]
    assert [fields_of(record) for record in batch.records()] == expected
    assert [fields_of(record) for record in batch.columns().records()] == expected


@pytest.mark.parametrize(("name", "codec"), CASES)
def test_compressed_batches_of_client_libraries_are_read(name: str, codec: Codec) -> None:
    """A batch that compresses well is in the library's own framing of the codec, and is read (kafka-storage 2.4)."""
    made = builder(
        name,
        magic=2,
        compression_type=int(codec),
        is_transactional=0,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        batch_size=1 << 20,
    )
    for n in range(500):
        made.append(n, timestamp=T + n, key=b"k", value=b"value " * 30, headers=[])
    batch = Batch.parse(bytes(made.build()))
    batch.check()
    assert batch.header.codec is codec
    assert [(r.offset, r.timestamp, r.value) for r in batch.records()] == [
        (n, T + n, b"value " * 30) for n in range(500)
    ]


@pytest.mark.parametrize("memory_records", [MemoryRecords, AioMemoryRecords])
def test_client_libraries_read_a_whole_log(memory_records) -> None:
    """The client libraries read a file of our batches as a fetch response, from the first batch to the last."""
    data, base, values = b"", 0, []
    for codec in (Codec.NONE, Codec.GZIP, Codec.NONE):
        records = [Record(b"value %d" % (base + n)) for n in range(10)]
        for new in build_records(records, BatchFormat(codec, limit_bytes=200), T).batches:
            assign_offset(new.data, base, 0)
            base += new.record_count
            data += bytes(new.data)
        values += [record.value for record in records]
    found = []
    walked = memory_records(data)
    while walked.has_next():
        batch = walked.next_batch()
        found += [(record.offset, record.value) for record in batch]
    assert found == list(enumerate(values))
    assert sum(1 for _ in Batches(data)) > 3
