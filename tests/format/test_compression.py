"""Compression: streams are written in Kafka's framing, any valid stream is read, and memory is bounded."""

from __future__ import annotations

import gzip
import struct
import subprocess
import sys
import tracemalloc

import cramjam
import lz4.frame
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from logfs.errors import Corrupt, InvalidSetting
from logfs.format.batches import compression
from logfs.format.batches.compression import DEFAULT_LIMIT, Codec, compress, decompress
from tests.support.examples import examples

MIB = 1024 * 1024
COMPRESSED = [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD]
STREAMED = [Codec.GZIP, Codec.LZ4, Codec.ZSTD]

# The records of the golden vectors D: the bytes after the 61 bytes of the header.
GOLDEN = {
    Codec.GZIP: (
        "1f8b08000000000000ffdbc4c6c0c0c0926db8802d31293925352d3d23336b943518580c9bd8"
        "18989858b28d46a366b0b11800c7aa854336030000"
    ),
    Codec.SNAPPY: (
        "82534e415050590000000001000000010000004ab6064cb206000000046b31a0066162636465"
        "666768696afe0a00fe0a00fe0a00fe0a00fe0a00fe0a00090a2000b206000202046b32fe9b01"
        "fe9b01fe9b01fe9b01fe9b01fe9b014a9b01"
    ),
    Codec.LZ4: (
        "04224d186040822e000000ff05b206000000046b31a0066162636465666768696a0a00ff749f"
        "00b206000202046b329b01ff7c506768696a0000000000"
    ),
    Codec.ZSTD: (
        "28b52ffd0058440100e8b206000000046b31a0066162636465666768696a00b206000202046b"
        "320200909e4b3d06ab1626010000"
    ),
}
VALUE = b"abcdefghij" * 40
GOLDEN_RECORDS = (
    bytes.fromhex("b206000000046b31a006") + VALUE + b"\0"
    + bytes.fromhex("b206000202046b32a006") + VALUE + b"\0"
)  # fmt: skip

# Long repeats as well as random bytes, so that streams of several blocks and of every kind occur.
payloads = st.one_of(
    st.binary(max_size=2000),
    st.builds(lambda part, times: part * times, st.binary(max_size=50), st.integers(0, 4000)),
    st.builds(bytes, st.integers(0, 200_000)),
)


@given(st.sampled_from(Codec), payloads)
@examples(1.5)
def test_compressed_data_round_trips(codec: Codec, data: bytes) -> None:
    """Every codec decompresses its stream to the original data, within a limit of exactly that size."""
    assert decompress(codec, compress(codec, data), limit=len(data)) == data


@pytest.mark.parametrize("codec", COMPRESSED)
def test_kafkas_own_bytes_are_read(codec: Codec) -> None:
    """The four golden streams hold the same records, and are read from any kind of buffer."""
    stream = bytes.fromhex(GOLDEN[codec])
    assert decompress(codec, stream, limit=DEFAULT_LIMIT) == GOLDEN_RECORDS
    assert decompress(codec, memoryview(bytearray(stream)), limit=1000) == GOLDEN_RECORDS


@pytest.mark.parametrize(
    ("codec", "start"),
    [
        (Codec.GZIP, "1f8b080000000000"),
        (Codec.SNAPPY, "82534e41505059000000000100000001"),
        (Codec.LZ4, "04224d18604082"),
        (Codec.ZSTD, "28b52ffd00"),
    ],
)
def test_streams_begin_as_kafkas_do(codec: Codec, start: str) -> None:
    """Each stream begins with the header that Kafka writes, without sizes, checksums or a time."""
    assert compress(codec, VALUE).hex().startswith(start)


def test_snappy_blocks_hold_32_kib() -> None:
    """A snappy stream is split into blocks of 32 KiB of input, each after its length."""
    stream = compress(Codec.SNAPPY, bytes(80 * 1024))
    position, lengths = 16, []
    while position < len(stream):
        (size,) = struct.unpack_from(">i", stream, position)
        lengths.append(len(cramjam.snappy.decompress_raw(stream[position + 4 :][:size])))
        position += 4 + size
    assert lengths == [32 * 1024, 32 * 1024, 16 * 1024]


@pytest.mark.parametrize("codec", COMPRESSED)
def test_an_empty_input_is_an_error(codec: Codec) -> None:
    """Every codec refuses a stream of zero bytes."""
    with pytest.raises(Corrupt, match=codec.kafka_name):
        decompress(codec, b"", limit=10)


@pytest.mark.parametrize("codec", Codec)
def test_empty_data_round_trips(codec: Codec) -> None:
    """Empty data becomes a valid stream, which is decompressed within a limit of 0."""
    assert decompress(codec, compress(codec, b""), limit=0) == b""


@pytest.mark.parametrize("codec", COMPRESSED)
def test_a_short_stream_is_corrupt(codec: Codec) -> None:
    """A truncated stream is refused, except between snappy blocks, where truncation cannot be detected."""
    stream = compress(codec, VALUE)
    for size in range(len(stream)):
        if codec is Codec.SNAPPY and size == 16:
            continue
        with pytest.raises(Corrupt):
            decompress(codec, stream[:size], limit=DEFAULT_LIMIT)


@pytest.mark.parametrize("codec", COMPRESSED)
@pytest.mark.parametrize("garbage", [b"\0", b"\0" * 20, b"more", b"\x1f\x8b\x08", b"\xff" * 9])
def test_bytes_after_a_stream_are_corrupt(codec: Codec, garbage: bytes) -> None:
    """Bytes after a stream must be another stream."""
    with pytest.raises(Corrupt):
        decompress(codec, compress(codec, VALUE) + garbage, limit=DEFAULT_LIMIT)


@given(st.sampled_from(COMPRESSED), st.binary(max_size=200), st.integers(0, 300))
@examples(2)
def test_any_bytes_are_read_or_corrupt(codec: Codec, data: bytes, limit: int) -> None:
    """Random bytes give output within the limit or raise `Corrupt`, and no other error."""
    try:
        assert len(decompress(codec, data, limit=limit)) <= limit
    except Corrupt:
        pass


@given(
    st.sampled_from(COMPRESSED),
    st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255)), min_size=1, max_size=4),
)
@examples(2)
def test_damaged_streams_are_read_or_corrupt(codec: Codec, damage: list[tuple[int, int]]) -> None:
    """A stream with changed bytes gives output within the limit or raises `Corrupt`, and no other error."""
    stream = bytearray.fromhex(GOLDEN[codec])
    for position, byte in damage:
        stream[position % len(stream)] = byte
    try:
        assert len(decompress(codec, stream, limit=2000)) <= 2000
    except Corrupt:
        pass


@pytest.mark.parametrize("codec", Codec)
def test_the_limit_is_exact(codec: Codec) -> None:
    """A limit one byte below the size of the data raises `Corrupt`, and the message has the limit."""
    stream = compress(codec, VALUE)
    assert decompress(codec, stream, limit=len(VALUE)) == VALUE
    with pytest.raises(Corrupt, match=f"{codec.kafka_name} .* more than {len(VALUE) - 1} bytes"):
        decompress(codec, stream, limit=len(VALUE) - 1)


def bomb(codec: Codec, size: int) -> bytes:
    """Return a stream of `size` zeros; that of LZ4 has the largest blocks."""
    if codec is Codec.LZ4:
        frame: bytes = lz4.frame.compress(bytes(size), block_size=lz4.frame.BLOCKSIZE_MAX4MB)
        return frame
    return compress(codec, bytes(size))


@pytest.mark.parametrize("codec", COMPRESSED)
def test_a_bomb_costs_little_memory(codec: Codec) -> None:
    """64 MiB of zeros are refused with a limit of 1 MiB, at a peak of memory far below the 64 MiB."""
    stream = bomb(codec, 64 * MIB)
    tracemalloc.start()
    try:
        with pytest.raises(Corrupt):
            decompress(codec, stream, limit=MIB)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 12 * MIB


PEAK = """
import resource, sys
from logfs.errors import Corrupt
from logfs.format.batches.compression import Codec, decompress
codec, stream = Codec(int(sys.argv[1])), sys.stdin.buffer.read()
decompress(codec, bytes.fromhex(sys.argv[2]), limit=1000)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
try:
    decompress(codec, stream, limit=1 << 20)
except Corrupt:
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@pytest.mark.parametrize("codec", COMPRESSED)
def test_a_bomb_costs_the_process_little_memory(codec: Codec) -> None:
    """The resident memory of a process, with the codec library's own allocations, grows little for such a stream."""
    child = subprocess.run(
        [sys.executable, "-c", PEAK, str(codec.value), GOLDEN[codec]],
        input=bomb(codec, 64 * MIB),
        capture_output=True,
        check=True,
    )
    assert int(child.stdout) < 24 * 1024  # KiB


def test_a_declared_size_above_the_limit_is_refused() -> None:
    """A raw snappy block of six bytes that declares 4 GiB, or a malformed size, is refused."""
    with pytest.raises(Corrupt, match="more than 1048576 bytes"):
        decompress(Codec.SNAPPY, b"\xff\xff\xff\xff\x0f\x00", limit=MIB)
    with pytest.raises(Corrupt, match="malformed snappy"):
        decompress(Codec.SNAPPY, b"\xff\xff\xff\xff\xff\x0f", limit=MIB)


def test_a_zstd_window_is_bounded() -> None:
    """A zstd frame with a window of 256 MiB is refused, as in Kafka."""
    with pytest.raises(Corrupt, match="too much memory"):
        decompress(Codec.ZSTD, bytes.fromhex("28b52ffd 00 90 010000"), limit=MIB)


@pytest.mark.parametrize("length", [-1, 0, 100, 2**31 - 1])
def test_a_snappy_block_has_to_fit(length: int) -> None:
    """A snappy block's length must be at least 1, and at most the rest of the stream."""
    header = compress(Codec.SNAPPY, b"")
    with pytest.raises(Corrupt, match=f"a block of {length} bytes at byte 20 does not fit in 29"):
        decompress(Codec.SNAPPY, header + struct.pack(">i", length) + bytes(9), limit=MIB)


def test_snappy_stream_headers_are_checked() -> None:
    """A snappy stream of version 0 is refused."""
    stream = bytearray(compress(Codec.SNAPPY, VALUE))
    stream[11] = 0
    with pytest.raises(Corrupt, match="version 0"):
        decompress(Codec.SNAPPY, stream, limit=MIB)


@pytest.mark.parametrize("codec", COMPRESSED)
def test_streams_may_follow_one_another(codec: Codec) -> None:
    """Concatenated gzip members, snappy headers, and LZ4 or zstd frames are read as one stream."""
    stream = compress(codec, b"one ") + compress(codec, b"") + compress(codec, b"two")
    assert decompress(codec, stream, limit=7) == b"one two"
    with pytest.raises(Corrupt):
        decompress(codec, stream, limit=6)


@pytest.mark.parametrize("codec", STREAMED)
def test_steps_may_end_anywhere(codec: Codec, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream is read in steps, which may end anywhere; here each step is one byte."""
    monkeypatch.setattr(compression, f"{codec.name}_STEP_BYTES", 1)
    data = VALUE + bytes(300_000) + VALUE
    stream = compress(codec, data) + compress(codec, b"") + compress(codec, VALUE)
    assert decompress(codec, stream, limit=DEFAULT_LIMIT) == data + VALUE


def test_raw_snappy_is_read() -> None:
    """Without the framing's magic, the whole input is one raw snappy block."""
    assert decompress(Codec.SNAPPY, bytes(cramjam.snappy.compress_raw(VALUE)), limit=MIB) == VALUE


def test_other_gzip_writers_are_read() -> None:
    """A gzip member may have a time and any compression level."""
    assert decompress(Codec.GZIP, gzip.compress(VALUE, 1, mtime=1_700_000_000), limit=MIB) == VALUE


@pytest.mark.parametrize("block_size", [4, 5, 6, 7])
@pytest.mark.parametrize("extras", [False, True])
def test_other_lz4_writers_are_read(block_size: int, extras: bool) -> None:
    """LZ4 frames of every block size are read, with or without linked blocks, sizes and checksums."""
    data = VALUE * 700
    frame = lz4.frame.compress(
        data,
        block_size=block_size,
        block_linked=extras,
        content_checksum=extras,
        block_checksum=extras,
        store_size=extras,
    )
    assert decompress(Codec.LZ4, frame, limit=len(data)) == data


def test_other_zstd_writers_are_read() -> None:
    """Zstd frames with a size, a checksum, or the 128 MiB window of level 22 are read."""
    plain = zstandard.ZstdCompressor(write_checksum=True, write_content_size=True).compress(VALUE)
    parameters = zstandard.ZstdCompressionParameters.from_level(1, window_log=27)
    stream = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    wide = stream.compress(VALUE) + stream.flush()
    assert zstandard.get_frame_parameters(wide).window_size == 128 * MIB
    assert decompress(Codec.ZSTD, plain + wide, limit=2 * len(VALUE)) == VALUE * 2


@pytest.mark.parametrize(
    ("codec", "level"),
    [(Codec.GZIP, level) for level in (-1, 1, 9)]
    + [(Codec.LZ4, level) for level in range(1, 18)]
    + [(Codec.ZSTD, level) for level in (-131072, -1, 1, 3, 22)]
    + [(Codec.SNAPPY, 5), (Codec.NONE, 5)],
)
def test_kafkas_levels_are_accepted(codec: Codec, level: int) -> None:
    """Every level on Kafka's scale gives a stream that is read back."""
    assert decompress(codec, compress(codec, VALUE, level), limit=MIB) == VALUE


def test_lz4_is_fast_at_kafkas_default_only() -> None:
    """LZ4 level 9 means Kafka's default, the fast compressor; every other level compresses better."""
    data = b"".join(b"%d," % (number * number % 7919) for number in range(20_000))
    fast = compress(Codec.LZ4, data)
    assert compress(Codec.LZ4, data, 9) == fast
    assert len(compress(Codec.LZ4, data, 1)) < len(fast)
    assert len(compress(Codec.LZ4, data, 17)) < len(fast)


@pytest.mark.parametrize(
    ("codec", "level"),
    [(Codec.GZIP, 0), (Codec.GZIP, 10), (Codec.LZ4, 0), (Codec.LZ4, 18), (Codec.ZSTD, 23)],
)
def test_other_levels_are_refused(codec: Codec, level: int) -> None:
    """A level outside Kafka's scale is an `InvalidSetting` that names the scale."""
    with pytest.raises(InvalidSetting, match=f"{codec.kafka_name} has no level {level}"):
        compress(codec, b"", level)


def test_codecs_have_kafkas_numbers_and_names() -> None:
    """The codec numbers are those of a batch's attributes, and the names those of the settings."""
    names = ["none", "gzip", "snappy", "lz4", "zstd"]
    assert [codec.kafka_name for codec in sorted(Codec)] == names
    assert [Codec.named(name) for name in names] == [0, 1, 2, 3, 4]
    with pytest.raises(InvalidSetting, match="'brotli' is not a compression codec"):
        Codec.named("brotli")


def test_no_library_is_loaded_before_it_is_needed() -> None:
    """Importing the module imports no codec library, so that every command starts fast."""
    program = (
        "import sys, logfs.format.batches.compression;"
        "sys.exit(bool({'cramjam', 'lz4', 'zstandard'} & set(sys.modules)))"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
