"""Record batches: Kafka's golden vectors field by field, and malformed batches (kafka-storage 2.1 to 2.6)."""

from __future__ import annotations

from itertools import product

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from logfs.errors import Corrupt
from logfs.format.batches import batch as batch_module
from logfs.format.batches import columns
from logfs.format.batches.batch import (
    HEADER_SIZE,
    Batch,
    Header,
    assign_offset,
    decrement_sequence,
    increment_sequence,
    parse_header,
    seal,
)
from logfs.format.batches.compression import Codec, compress
from logfs.format.batches.record import Record, TimestampType, encode_record
from logfs.format.encoding.batch_builder import BatchFormat, build_records
from logfs.format.messages.control import ControlType, EndTransactionMarker
from tests.support.batches import E_COMMIT, Batches, empty_batch
from tests.support.examples import examples

T = 1_700_000_000_000
LATE = TimestampType.LOG_APPEND_TIME

A = bytes.fromhex(
    "00000000000000000000004dffffffff02e50752f20000000000010000018bcfe568000000018bcfe56805ffff"
    "ffffffffffffffffffffffff0000000218000000026b0a76616c7565001c000a020101040468310276026e01"
)
B = bytes.fromhex(
    "00000000000000640000004500000003026305d3170000000000010000018bcfe568000000018bcfe568000000"
    "00000000109200070000000c0000000216000000066b6579047631000e00cf0f02000000"
)
C = bytes.fromhex(
    "00000000000000050000003a0000000002f749f8a90008000000000000018bcfe568000000018bcfe56863ffff"
    "ffffffffffffffffffffffff0000000110000000026b027600"
)
D = {
    Codec.GZIP: bytes.fromhex(
        "00000000000000070000006c0000000002adfed1cd0001000000010000018bcfe568000000018bcfe56801"
        "ffffffffffffffffffffffffffff000000021f8b08000000000000ffdbc4c6c0c0c0926db8802d31293925"
        "352d3d23336b943518580c9bd818989858b28d46a366b0b11800c7aa854336030000"
    ),
    Codec.SNAPPY: bytes.fromhex(
        "00000000000000070000008f00000000022f3c04770002000000010000018bcfe568000000018bcfe56801"
        "ffffffffffffffffffffffffffff0000000282534e415050590000000001000000010000004ab6064cb206"
        "000000046b31a0066162636465666768696afe0a00fe0a00fe0a00fe0a00fe0a00fe0a00090a2000b20600"
        "0202046b32fe9b01fe9b01fe9b01fe9b01fe9b01fe9b014a9b01"
    ),
    Codec.LZ4: bytes.fromhex(
        "00000000000000070000006e000000000241afb31b0003000000010000018bcfe568000000018bcfe56801"
        "ffffffffffffffffffffffffffff0000000204224d186040822e000000ff05b206000000046b31a0066162"
        "636465666768696a0a00ff749f00b206000202046b329b01ff7c506768696a0000000000"
    ),
    Codec.ZSTD: bytes.fromhex(
        "000000000000000700000065000000000223991ca70004000000010000018bcfe568000000018bcfe56801"
        "ffffffffffffffffffffffffffff0000000228b52ffd0058440100e8b206000000046b31a0066162636465"
        "666768696a00b206000202046b320200909e4b3d06ab1626010000"
    ),
}
E_ABORT = bytes.fromhex(
    "000000000000000b000000420000000102172a3d7e0030000000000000018bcfe568000000018bcfe568000000"
    "0000000010920007ffffffff000000012000000008000000000c00000000000900"
)
F = bytes.fromhex(
    "0000000000000064000000310000000302db7fe40a000000000001ffffffffffffffff0000018bcfe568000000"
    "00000000109200070000000c00000000"
)
G_SOURCE = bytes.fromhex(
    "00000000000000140000004b0000000002adcf2f350000000000020000018bcfe568000000018bcfe56803ffff"
    "ffffffffffffffffffffffff000000031000000002610278000e00040202620100100006040263027a00"
)
G_CLEANED = bytes.fromhex(
    "00000000000000140000004800000000028bc4fb7d0040000000020000018bd50bc7e80000018bcfe56803ffff"
    "ffffffffffffffffffffffff000000021400cbffb25202026201001600c9ffb252040263027a00"
)
H = bytes.fromhex(
    "00000000000000140000003a000000000294c1174b0000000000020000018bcfe568000000018bcfe56800ffff"
    "ffffffffffffffffffffffff00000001100000000261027800"
)
I_EMPTY = bytes.fromhex(
    "0000000000000014000000310000000002af83c9f1000000000002ffffffffffffffff0000018bcfe56803ffff"
    "ffffffffffffffffffffffff00000000"
)
J_IN = bytes.fromhex(
    "000000000000000000000046ffffffff0258d6f04c0000000000010000018bcfe568000000018bcfe56805ffff"
    "ffffffffffffffffffffffff0000000218000000026b0a76616c7565000e000a02026a0100"
)
J_OUT = bytes.fromhex(
    "000000000000002a00000046000000060258d6f04c0000000000010000018bcfe568000000018bcfe56805ffff"
    "ffffffffffffffffffffffff0000000218000000026b0a76616c7565000e000a02026a0100"
)

NONE = (-1, -1, -1)
"""producer id, producer epoch and base sequence of a batch without a producer"""
HORIZON = T + 1000 + 86_400_000

HEADERS = {
    "A": (A, Header(0, 77, -1, 2, 0xE50752F2, 0, 1, T, T + 5, *NONE, 2)),
    "B": (B, Header(100, 69, 3, 2, 0x6305D317, 0, 1, T, T, 4242, 7, 12, 2)),
    "C": (C, Header(5, 58, 0, 2, 0xF749F8A9, 8, 0, T, T + 99, *NONE, 1)),
    "D-gzip": (D[Codec.GZIP], Header(7, 108, 0, 2, 0xADFED1CD, 1, 1, T, T + 1, *NONE, 2)),
    "D-snappy": (D[Codec.SNAPPY], Header(7, 143, 0, 2, 0x2F3C0477, 2, 1, T, T + 1, *NONE, 2)),
    "D-lz4": (D[Codec.LZ4], Header(7, 110, 0, 2, 0x41AFB31B, 3, 1, T, T + 1, *NONE, 2)),
    "D-zstd": (D[Codec.ZSTD], Header(7, 101, 0, 2, 0x23991CA7, 4, 1, T, T + 1, *NONE, 2)),
    "E-commit": (E_COMMIT, Header(10, 66, 1, 2, 0xE314EB36, 0x30, 0, T, T, 4242, 7, -1, 1)),
    "E-abort": (E_ABORT, Header(11, 66, 1, 2, 0x172A3D7E, 0x30, 0, T, T, 4242, 7, -1, 1)),
    "F": (F, Header(100, 49, 3, 2, 0xDB7FE40A, 0, 1, -1, T, 4242, 7, 12, 0)),
    "G-source": (G_SOURCE, Header(20, 75, 0, 2, 0xADCF2F35, 0, 2, T, T + 3, *NONE, 3)),
    "G-cleaned": (G_CLEANED, Header(20, 72, 0, 2, 0x8BC4FB7D, 0x40, 2, HORIZON, T + 3, *NONE, 2)),
    "H": (H, Header(20, 58, 0, 2, 0x94C1174B, 0, 2, T, T, *NONE, 1)),
    "I": (I_EMPTY, Header(20, 49, 0, 2, 0xAF83C9F1, 0, 2, -1, T + 3, *NONE, 0)),
    "J-in": (J_IN, Header(0, 70, -1, 2, 0x58D6F04C, 0, 1, T, T + 5, *NONE, 2)),
    "J-out": (J_OUT, Header(42, 70, 6, 2, 0x58D6F04C, 0, 1, T, T + 5, *NONE, 2)),
}

LONG = b"abcdefghij" * 40
A_RECORDS = [
    Record(b"value", b"k", (), T, 0),
    Record(None, None, [("h1", b"v"), ("n", None)], T + 5, 1),
]
RECORDS = {
    "A": A_RECORDS,
    "B": [Record(b"v1", b"key", (), T, 100), Record(b"", b"", (), T - 1000, 101)],
    "C": [Record(b"v", b"k", (), T + 99, 5, LATE)],
    **{
        f"D-{codec.kafka_name}": [
            Record(LONG, b"k1", (), T, 7),
            Record(LONG, b"k2", (), T + 1, 8),
        ]
        for codec in D
    },
    "E-commit": [Record(bytes.fromhex("000000000009"), bytes.fromhex("00000001"), (), T, 10)],
    "E-abort": [Record(bytes.fromhex("000000000009"), bytes.fromhex("00000000"), (), T, 11)],
    "F": [],
    "G-source": [
        Record(b"x", b"a", (), T, 20),
        Record(None, b"b", (), T + 2, 21),
        Record(b"z", b"c", (), T + 3, 22),
    ],
    "G-cleaned": [Record(None, b"b", (), T + 2, 21), Record(b"z", b"c", (), T + 3, 22)],
    "H": [Record(b"x", b"a", (), T, 20)],
    "I": [],
    "J-in": [Record(b"value", b"k", (), T, 0), Record(None, b"j", (), T + 5, 1)],
    "J-out": [Record(b"value", b"k", (), T, 42), Record(None, b"j", (), T + 5, 43)],
}


def encoded(*records: tuple[Record, int, int]) -> bytearray:
    """Return zeros for a header, and after them the records, each given with its offset delta and timestamp delta."""
    data = bytearray(HEADER_SIZE)
    for record, offset_delta, timestamp_delta in records:
        data += encode_record(record, offset_delta=offset_delta, timestamp_delta=timestamp_delta)
    return data


@pytest.mark.parametrize("name", HEADERS)
def test_every_header_field_of_a_golden_batch_is_read(name: str) -> None:
    """All thirteen header fields of every golden batch are read."""
    data, header = HEADERS[name]
    batch = Batch.parse(data)
    assert batch.header == header
    assert batch.is_valid
    assert bytes(batch.data) == data
    assert header.size_bytes == len(data)


@pytest.mark.parametrize("name", RECORDS)
def test_every_record_of_a_golden_batch_is_read(name: str) -> None:
    """The keys, values, headers, timestamps and offsets of every golden batch are Kafka's."""
    assert list(Batch.parse(HEADERS[name][0]).records()) == RECORDS[name]


@pytest.mark.parametrize("name", RECORDS)
def test_columns_of_a_golden_batch_are_its_records(name: str) -> None:
    """The columns of every golden batch hold the same records as the plain decoder returns."""
    assert list(Batch.parse(HEADERS[name][0]).columns().records()) == RECORDS[name]


@pytest.mark.parametrize("name", RECORDS)
def test_one_record_of_a_golden_batch_is_found_by_offset(name: str) -> None:
    """`record_at` returns each record of a golden batch, and None for an offset without a record."""
    batch = Batch.parse(HEADERS[name][0])
    by_offset = {record.offset: record for record in RECORDS[name]}
    for offset in range(batch.header.base_offset, batch.header.next_offset):
        assert batch.record_at(offset) == by_offset.get(offset)


@pytest.mark.parametrize("is_loaded", [False, True])
@pytest.mark.parametrize("name", RECORDS)
def test_some_records_of_a_golden_batch(
    name: str, is_loaded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`records_between` returns the records of any range, at most so many, with and without the kernels."""
    monkeypatch.setattr(columns, "worthwhile", lambda records: True)
    monkeypatch.setattr(columns, "is_loaded", lambda: is_loaded)
    monkeypatch.setattr(batch_module, "FEW", 1)
    batch = Batch.parse(HEADERS[name][0])
    offsets = range(batch.header.base_offset - 1, batch.header.next_offset + 2)
    for first, stop in product(offsets, offsets):
        expected = [record for record in RECORDS[name] if first <= record.offset < stop]
        assert batch.records_between(first, stop) == expected
        for limit in range(3):
            assert batch.records_between(first, stop, limit) == expected[:limit]


def test_derived_fields_of_the_golden_batches() -> None:
    """The last and next offset, codec, flags, delete horizon and last sequence follow kafka-storage 2.1."""
    b = Batch.parse(B).header
    assert (b.last_offset, b.next_offset, b.last_sequence) == (101, 102, 13)
    assert Batch.parse(A).header.last_sequence == -1
    assert Batch.parse(C).header.timestamp_type is LATE
    assert [Batch.parse(data).header.codec for data in D.values()] == list(D)
    commit = Batch.parse(E_COMMIT).header
    assert commit.is_control
    assert commit.is_transactional
    assert not b.is_control
    assert not b.is_transactional
    assert Batch.parse(G_CLEANED).header.delete_horizon_ms == HORIZON
    assert Batch.parse(G_SOURCE).header.delete_horizon_ms is None


@pytest.mark.parametrize(
    ("data", "kind"), [(E_COMMIT, ControlType.COMMIT), (E_ABORT, ControlType.ABORT)]
)
def test_golden_markers_are_read_as_markers(data: bytes, kind: ControlType) -> None:
    """The record of a golden control batch is parsed as a marker of coordinator epoch 9 (kafka-storage 2.5)."""
    (record,) = Batch.parse(data).records()
    assert EndTransactionMarker.parse(record.key, record.value) == (kind, 9)


def test_the_builder_writes_golden_a_and_j() -> None:
    """The public builder writes the exact bytes of A and J-in (kafka-storage 2.3)."""
    for golden, name in ((A, "A"), (J_IN, "J-in")):
        (built,) = build_records(RECORDS[name], BatchFormat(), 0).batches
        assert bytes(built.data) == golden


def test_golden_j_keeps_its_crc_when_the_leader_assigns_offsets() -> None:
    """A new base offset and leader epoch alone turn J-in into J-out (kafka-storage 2.1: neither is under the CRC)."""
    data = bytearray(J_IN)
    assign_offset(data, 42, 6)
    assert bytes(data) == J_OUT
    assert Batch.parse(data).is_valid


def test_the_builder_writes_golden_c() -> None:
    """LogAppendTime keeps the producer's base timestamp and sets the maximum (kafka-storage 2.9.2)."""
    form = BatchFormat(timestamp_type=LATE)
    (built,) = build_records([Record(b"v", b"k", timestamp=T)], form, T + 99).batches
    assign_offset(built.data, 5, 0)
    assert bytes(built.data) == C
    assert built.max_timestamp == T + 99


def test_golden_b_is_sealed_to_the_byte() -> None:
    """`seal` with a producer's id, epoch and sequence gives the exact bytes of B."""
    data = encoded((Record(b"v1", b"key"), 0, 0), (Record(b"", b""), 1, -1000))
    seal(
        data,
        base_offset=100,
        last_offset_delta=1,
        base_timestamp=T,
        max_timestamp=T,
        record_count=2,
        leader_epoch=3,
        producer_id=4242,
        producer_epoch=7,
        base_sequence=12,
    )
    assert bytes(data) == B


@pytest.mark.parametrize(
    ("golden", "kind", "offset"),
    [(E_COMMIT, ControlType.COMMIT, 10), (E_ABORT, ControlType.ABORT, 11)],
)
def test_golden_e_is_sealed_to_the_byte(golden: bytes, kind: ControlType, offset: int) -> None:
    """`seal` of a marker with its key and value gives the exact bytes of E (kafka-storage 2.5)."""
    marker = EndTransactionMarker(kind, 9)
    data = encoded((Record(marker.value(), marker.key()), 0, 0))
    seal(
        data,
        attributes=batch_module.CONTROL_BIT | batch_module.TRANSACTIONAL_BIT,
        base_offset=offset,
        last_offset_delta=0,
        base_timestamp=T,
        max_timestamp=T,
        record_count=1,
        leader_epoch=1,
        producer_id=4242,
        producer_epoch=7,
    )
    assert bytes(data) == golden


def test_empty_batch_writes_golden_f_and_i() -> None:
    """`empty_batch` keeps the fields of kafka-storage 2.6 and gives the bytes of F and I."""
    assert empty_batch(parse_header(B)) == F
    assert empty_batch(parse_header(G_SOURCE)) == I_EMPTY


def test_an_empty_header_drops_codec_and_horizon_and_keeps_the_flags() -> None:
    """An emptied batch loses its codec and delete horizon, and keeps its timestamp type and its transactional and
    control bits (kafka-storage 2.6).
    """
    for attributes, kept in ((0x44, 0), (0x4C, 0x08), (0x73, 0x30), (0x7F & ~7, 0x38)):
        data = bytearray(D[Codec.ZSTD])
        batch_module.HEADER.pack_into(data, 0, *parse_header(data)._replace(attributes=attributes))
        left = Batch.parse(empty_batch(parse_header(data)))
        assert left.header.attributes == kept
        assert left.is_valid
        assert left.header.delete_horizon_ms is None


@pytest.mark.parametrize("codec", D)
def test_compressed_golden_batches_survive_recompression(codec: Codec) -> None:
    """The golden records, compressed again by each codec, make an equal batch."""
    payload = bytes(Batch.parse(D[codec]).payload)
    plain = [Record(LONG, b"k1", (), T), Record(LONG, b"k2", (), T + 1)]
    assert payload == bytes(encoded((plain[0], 0, 0), (plain[1], 1, 1))[HEADER_SIZE:])
    (built,) = build_records(plain, BatchFormat(codec), 0).batches
    assign_offset(built.data, 7, 0)
    batch = Batch.parse(built.data)
    assert batch.header._replace(crc=0, batch_length=0) == HEADERS[f"D-{codec.kafka_name}"][
        1
    ]._replace(crc=0, batch_length=0)
    assert list(batch.records()) == RECORDS[f"D-{codec.kafka_name}"]


@pytest.mark.parametrize("position", range(61))
@pytest.mark.parametrize("flip", [0x01, 0x80, 0xFF])
def test_a_flipped_header_byte_is_detected_unless_outside_the_crc(position: int, flip: int) -> None:
    """The offset and the epoch are outside the CRC, a wrong length breaks the framing, any other flip is detected."""
    data = bytearray(A)
    data[position] ^= flip
    if 8 <= position < 12:
        try:
            batch = Batch.parse(data)
        except Corrupt:
            return
        assert batch.header.size_bytes != len(A)
        assert not batch.is_valid
        return
    batch = Batch.parse(data)
    outside_crc = position < 8 or 12 <= position < 16
    assert (crc32c(batch.data[21:]) == batch.header.crc) == (outside_crc or position == 16)
    assert batch.is_valid == outside_crc
    if not outside_crc:
        with pytest.raises(Corrupt, match="CRC"):
            batch.check()
    else:
        batch.check()


@pytest.mark.parametrize("position", range(61, len(A)))
def test_a_flipped_record_byte_fails_the_crc(position: int) -> None:
    """The CRC covers the records to the last byte (kafka-storage 2.1)."""
    data = bytearray(A)
    data[position] ^= 1
    assert not Batch.parse(data).is_valid


@pytest.mark.parametrize("size", range(len(A)))
def test_a_short_buffer_is_corrupt(size: int) -> None:
    """A buffer that holds only part of a batch is refused, whatever its length."""
    with pytest.raises(Corrupt):
        Batch.parse(A[:size])


def test_a_batch_is_parsed_at_any_position() -> None:
    """`parse` reads the batch at a position of the buffer, and takes only the bytes of that batch."""
    data = b"xyz" + A + B
    assert Batch.parse(data, 3).header == HEADERS["A"][1]
    assert bytes(Batch.parse(memoryview(data), 3 + len(A)).data) == B


@pytest.mark.parametrize(
    ("start", "by", "result"), [(2**31 - 1, 1, 0), (0, 5, 5), (2**31 - 2, 4, 2)]
)
def test_sequences_wrap(start: int, by: int, result: int) -> None:
    """Sequence 0 follows 2147483647, and 2147483647 precedes 0 (kafka-storage 2.1)."""
    assert increment_sequence(start, by) == result
    assert decrement_sequence(result, by) == start


@given(st.integers(0, 2**31 - 1), st.integers(0, 2**31 - 1))
def test_decrementing_a_sequence_undoes_incrementing_it(sequence: int, by: int) -> None:
    """A sequence that is incremented and decremented by the same number is unchanged, and stays in 0..2^31-1."""
    there = increment_sequence(sequence, by)
    assert 0 <= there <= 2**31 - 1
    assert decrement_sequence(there, by) == sequence


def test_the_crc_is_castagnoli() -> None:
    """CRC-32C of 123456789 is e3069283 (kafka-storage 2.1)."""
    assert crc32c(b"123456789") == 0xE3069283


@pytest.mark.parametrize("codec", list(Codec))
@pytest.mark.parametrize("count", [1, 3, -1, 2**31 - 1, 20])
def test_a_wrong_record_count_is_corrupt(codec: Codec, count: int) -> None:
    """A record count that is too low, too high or impossible is `Corrupt`, in compressed and uncompressed batches
    (Kafka's tests of records).
    """
    (built,) = build_records([Record(b"a" * 9), Record(b"b" * 9)], BatchFormat(codec), T).batches
    data = bytearray(built.data)
    header = parse_header(data)
    batch_module.HEADER.pack_into(data, 0, *header._replace(record_count=count))
    batch = Batch.parse(data)
    with pytest.raises(Corrupt):
        list(batch.records())
    with pytest.raises(Corrupt):
        Batch.parse(data).columns()


@pytest.mark.parametrize("number", [5, 6, 7])
def test_codecs_that_do_not_exist_are_corrupt_on_use(number: int) -> None:
    """Codec numbers 5 to 7 raise `Corrupt` when the records are read, and not before (kafka-storage 2.1)."""
    data = bytearray(A)
    batch_module.HEADER.pack_into(data, 0, *parse_header(data)._replace(attributes=number))
    batch = Batch.parse(data)
    with pytest.raises(Corrupt, match=f"unknown codec {number}"):
        list(batch.records())


@pytest.mark.parametrize("codec", list(D))
def test_bytes_that_are_no_stream_are_corrupt(codec: Codec) -> None:
    """A payload that is not a stream of its codec raises `Corrupt`, and no other error."""
    data = bytearray(HEADER_SIZE) + b"this is no stream of any codec"
    fields = {"last_offset_delta": 0, "base_timestamp": T, "max_timestamp": T, "record_count": 1}
    seal(data, attributes=codec, **fields)
    batch = Batch.parse(data)
    assert batch.is_valid
    with pytest.raises(Corrupt):
        _ = batch.payload


@pytest.mark.parametrize("codec", list(D))
def test_the_decompressed_size_of_a_batch_is_bounded(
    codec: Codec, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch whose records decompress to more than the limit is refused, so it cannot fill the memory."""
    monkeypatch.setattr("logfs.format.batches.compression.DEFAULT_LIMIT", 1 << 20)
    data = bytearray(HEADER_SIZE) + compress(codec, bytes(2 << 20))
    fields = {"last_offset_delta": 0, "base_timestamp": T, "max_timestamp": T, "record_count": 1}
    seal(data, attributes=codec, **fields)
    with pytest.raises(Corrupt):
        _ = Batch.parse(data).payload


def test_batches_are_walked_by_their_lengths() -> None:
    """`Batches` yields each whole batch of a buffer, and ends without error at a short tail (kafka-storage 2.8)."""
    data = A + B + C
    for cut in (len(data), len(data) - 1, len(A) + len(B) + HEADER_SIZE, len(A) + len(B) + 5):
        batches = Batches(data[:cut])
        found = [bytes(batch.data) for batch in batches]
        assert found == ([A, B, C] if cut == len(data) else [A, B])
        assert batches.end == sum(map(len, found))


def test_an_impossible_length_ends_the_walk() -> None:
    """Zeros and impossible lengths (negative, below a header, beyond the buffer) end the walk; it does not loop."""
    assert list(Batches(bytes(200))) == []
    for length in (-1, -(2**31), 0, 48, 2**31 - 1):
        bad = bytearray(A)
        bad[8:12] = length.to_bytes(4, "big", signed=True)
        batches = Batches(B + bytes(bad))
        assert len(list(batches)) == 1
        assert batches.end == len(B)


@given(st.binary(max_size=200))
def test_any_bytes_are_a_batch_or_corrupt(data: bytes) -> None:
    """Parsing, checking and decoding random bytes raises no error but `Corrupt`."""
    try:
        batch = Batch.parse(data)
        batch.check()
        list(batch.records())
    except Corrupt:
        pass


@given(st.data())
def test_any_record_bytes_under_a_valid_crc_are_records_or_corrupt(data: st.DataObject) -> None:
    """Hostile records under a valid CRC are read alike by the plain and the bulk decoder, or both raise `Corrupt`."""
    count = data.draw(st.integers(0, 12))
    body = data.draw(st.binary(max_size=120))
    attributes = data.draw(st.sampled_from([0, 1, 2, 3, 4, 7, 8, 0x20]))
    raw = bytearray(HEADER_SIZE) + body
    fields = {
        "last_offset_delta": 0,
        "base_timestamp": T,
        "max_timestamp": T,
        "record_count": count,
    }
    seal(raw, attributes=attributes, **fields)
    batch = Batch.parse(raw)
    verdicts = []
    for read in (lambda: list(batch.records()), lambda: list(batch.columns().records())):
        try:
            verdicts.append(read())
        except Corrupt:
            verdicts.append(None)
    assert verdicts[0] == verdicts[1]


@pytest.mark.parametrize("codec", list(Codec))
@pytest.mark.parametrize("late", [False, True])
@given(st.data())
@examples(0.4)
def test_records_round_trip_through_a_batch(codec: Codec, late: bool, data: st.DataObject) -> None:
    """Any records are read from a batch of any codec as they were written, with their offsets (kafka-storage 2.2)."""
    maybe_bytes = st.none() | st.binary(max_size=40)
    headers = st.lists(st.tuples(st.text(max_size=5), maybe_bytes), max_size=3)
    stamps = st.integers(-1, 2**62)
    drawn = data.draw(
        st.lists(
            st.builds(Record, maybe_bytes, maybe_bytes, headers, stamps), min_size=1, max_size=12
        )
    )
    form = BatchFormat(codec, timestamp_type=TimestampType(late))
    (built,) = build_records(drawn, form, T).batches
    assign_offset(built.data, 1000, 0)
    batch = Batch.parse(built.data)
    batch.check()
    assert batch.header.max_timestamp == (T if late else max(r.timestamp for r in drawn))
    assert batch.header.base_timestamp == drawn[0].timestamp
    assert [
        (r.value, r.key, list(r.headers), r.timestamp, r.offset, r.timestamp_type)
        for r in batch.records()
    ] == [
        (r.value, r.key, r.headers, T if late else r.timestamp, 1000 + i, TimestampType(late))
        for i, r in enumerate(drawn)
    ]


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
@pytest.mark.parametrize("distance", [-1000, -5, 0, 5, 1000])
def test_the_first_record_at_a_time(codec: Codec, distance: int) -> None:
    """The first record that is late enough is found, whatever the distance of the base timestamp from the first."""
    times = [1000, 1005, 1003, 1010]
    base = times[0] + distance
    records = b"".join(
        encode_record(Record(b"v"), offset_delta=number, timestamp_delta=at - base)
        for number, at in enumerate(times)
    )
    data = bytearray(HEADER_SIZE) + compress(codec, records)
    seal(
        data,
        attributes=codec,
        base_offset=70,
        last_offset_delta=len(times) - 1,
        base_timestamp=base,
        max_timestamp=max(times),
        record_count=len(times),
    )
    found = Batch.parse(bytes(data))
    for wanted in range(998, 1012):
        later = [(70 + number, at) for number, at in enumerate(times) if at >= wanted]
        assert found.first_at(wanted, 0) == (later[0] if later else None)
