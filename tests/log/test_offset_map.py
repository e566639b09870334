"""The offset map of compaction: the newest offset of each key in bounded memory, compared with plain Python."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from logfs.errors import Corrupt
from logfs.format.batches.batch import Batch
from logfs.format.batches.record import Record
from logfs.format.encoding.batch_builder import BatchFormat, build_records
from logfs.format.kernels import compaction_kernels
from logfs.log.compaction.offset_map import SLOT_BYTES, OffsetMap

MASK = 2**64 - 1
# More keys than any of the maps has slots.
MANY = 2**40


def plain_hash(key: bytes, secret: tuple[int, int]) -> tuple[int, int]:
    """Return SipHash-2-4-128 of a key, as its authors define it."""

    def left(value: int, bits: int) -> int:
        return (value << bits | value >> (64 - bits)) & MASK

    v = [
        secret[0] ^ 0x736F6D6570736575,
        secret[1] ^ 0x646F72616E646F6D ^ 0xEE,
        secret[0] ^ 0x6C7967656E657261,
        secret[1] ^ 0x7465646279746573,
    ]

    def rounds(count: int) -> None:
        for _ in range(count):
            v[0] = v[0] + v[1] & MASK
            v[1] = left(v[1], 13) ^ v[0]
            v[0] = left(v[0], 32)
            v[2] = v[2] + v[3] & MASK
            v[3] = left(v[3], 16) ^ v[2]
            v[0] = v[0] + v[3] & MASK
            v[3] = left(v[3], 21) ^ v[0]
            v[2] = v[2] + v[1] & MASK
            v[1] = left(v[1], 17) ^ v[2]
            v[2] = left(v[2], 32)

    padded = key + bytes(-(len(key) + 1) % 8) + bytes([len(key) & 255])
    for at in range(0, len(padded), 8):
        word = int.from_bytes(padded[at : at + 8], "little")
        v[3] ^= word
        rounds(2)
        v[0] ^= word
    v[2] ^= 0xEE
    rounds(4)
    first = v[0] ^ v[1] ^ v[2] ^ v[3]
    v[1] ^= 0xDD
    rounds(4)
    return first, v[0] ^ v[1] ^ v[2] ^ v[3]


def hashed(key: bytes, secret: bytes) -> bytes:
    data = np.frombuffer(b"before" + key + b"after", np.uint8)
    words = compaction_kernels.hash_key(data, 6, len(key), np.frombuffer(secret, np.uint64))
    return b"".join(int(word).to_bytes(8, "little") for word in words)


def test_the_hash_is_the_published_one() -> None:
    """The hash gives the first test vectors of the reference implementation."""
    assert hashed(b"", bytes(range(16))).hex() == "a3817f04ba25a8e66df67214c7550293"
    assert hashed(b"\0", bytes(range(16))).hex() == "da87c1d86b99af44347659119b22fc45"


@given(st.binary(max_size=300), st.binary(min_size=16, max_size=16))
def test_the_hash_agrees_with_plain_python(key: bytes, secret: bytes) -> None:
    words = int.from_bytes(secret[:8], "little"), int.from_bytes(secret[8:], "little")
    expected = b"".join(word.to_bytes(8, "little") for word in plain_hash(key, words))
    assert hashed(key, secret) == expected


def spans_of(*batches: list[bytes | None], base: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Return the records of consecutive batches with these keys, from offset `base` on, and their spans."""
    data = b""
    spans = []
    for keys in batches:
        records = [Record(b"value", key, timestamp=0) for key in keys]
        built = build_records(records, BatchFormat(), 0).batches[0]
        payload = bytes(Batch.parse(built.data).payload)
        spans.append((len(data), len(data) + len(payload), len(keys), base, 0))
        data += payload
        base += len(keys)
    return np.frombuffer(data, np.uint8), np.array(spans, np.int64)


def newest(known: OffsetMap, key: bytes) -> int:
    """Return the offset in the slot at which compaction looks for a key; -1 if there is none."""
    data = np.frombuffer(key, np.uint8)
    words = compaction_kernels.hash_key(data, 0, len(key), known.secret)
    slot = compaction_kernels.find_slot(known.slots, *map(np.uint64, words))
    return int(known.slots[slot, 2]) - 1


def count(known: OffsetMap) -> int:
    return int(np.count_nonzero(known.slots[:, 2]))


KEYS = st.none() | st.binary(max_size=2) | st.binary(max_size=40)


@given(
    st.lists(st.lists(KEYS, min_size=1, max_size=8), min_size=1, max_size=8),
    st.integers(0, 2**40),
    st.integers(0, 20),
    st.integers(1, 12),
)
@example([[b"a", b"b"], [b"a"], [b"c", b"a"]], 0, 0, 2)
def test_the_map_equals_a_dict(
    batches: list[list[bytes | None]], base: int, dirty: int, capacity: int
) -> None:
    """The map holds the newest offset of each key from the dirty offset on, up to the first key that does not fit."""
    data, spans = spans_of(*batches, base=base)
    known = OffsetMap(SLOT_BYTES * (capacity + 1), 1.0, MANY)
    assert known.capacity == capacity
    done = known.put(data, spans, base + dirty)
    expected: dict[bytes, int] = {}
    latest = -1
    finished = 0
    offset = base
    for keys in batches:
        for key in keys:
            if key is not None and offset >= base + dirty:
                if key not in expected and len(expected) == capacity:
                    break
                latest = expected[key] = offset
            offset += 1
        else:
            finished += 1
            continue
        break
    assert (done, count(known), known.latest_offset) == (finished, len(expected), latest)
    for key in {key for keys in batches for key in keys if key is not None}:
        assert newest(known, key) == expected.get(key, -1)


def test_build_partial_offset_map() -> None:
    """With room for 2 keys, from offset 2 on, the map has the offsets 2 and 3 (Kafka's tests of compaction)."""
    data, spans = spans_of(*[[b"%d" % n] for n in range(5)])
    known = OffsetMap(SLOT_BYTES * 4, 0.5, MANY)
    assert known.put(data, spans, 2) == 4
    assert [newest(known, b"%d" % n) for n in range(5)] == [-1, -1, 2, 3, -1]
    assert (count(known), known.latest_offset) == (2, 3)


def test_a_full_map_takes_newer_offsets_of_the_keys_it_has() -> None:
    data, spans = spans_of([b"a", b"a", b"a", b"b", b"a"])
    known = OffsetMap(SLOT_BYTES * 2, 1.0, MANY)
    assert known.put(data, spans, 0) == 0
    assert (newest(known, b"a"), newest(known, b"b"), known.latest_offset) == (2, -1, 2)


def test_the_map_stays_within_its_memory() -> None:
    """128 MiB hold 5592405 slots of 24 bytes, as in Kafka, and the load factor limits how many are used."""
    known = OffsetMap(134217728, 0.9, MANY)
    assert len(known.slots) == 5592405
    assert known.slots.nbytes <= 134217728
    assert known.capacity == 5033164


def test_the_map_takes_no_more_memory_than_its_keys_need() -> None:
    """A map for a few keys allocates only what they need; its share is still relative to all the memory."""
    known = OffsetMap(134217728, 0.9, 5)
    assert known.slots.nbytes < 1024
    data, spans = spans_of([b"%d" % number for number in range(5)])
    assert known.put(data, spans, 0) == 1
    assert known.share == 5 / 5592405
    assert len(OffsetMap(2400, 0.9, 1000).slots) == 100
    assert OffsetMap(2400, 0.0, 1000).capacity == 1


def test_many_keys_are_found_at_a_high_load() -> None:
    """Every key is found at a high load, also where a search wraps around the end of the table."""
    keys = [b"%d" % number for number in range(20_000)]
    data, spans = spans_of(keys, keys[::2])
    known = OffsetMap(SLOT_BYTES * 20_400, 0.999, MANY)
    assert known.put(data, spans, 0) == 2
    assert count(known) == 20_000
    for number in (0, 1, 2, 777, 9999, 19_998, 19_999):
        expected = 20_000 + number // 2 if number % 2 == 0 else number
        assert newest(known, keys[number]) == expected


def test_two_maps_have_two_secrets() -> None:
    assert OffsetMap(1024, 0.9, MANY).secret.tolist() != OffsetMap(1024, 0.9, MANY).secret.tolist()


def test_malformed_records_are_refused() -> None:
    data, spans = spans_of([b"a"], [b"b"])
    for change in ((1, 1, -1), (1, 2, 2), (0, 1, -1)):
        row, column, by = change
        wrong = spans.copy()
        wrong[row, column] += by
        with pytest.raises(Corrupt, match=f"batch at offset {row}: its records are malformed"):
            OffsetMap(1024, 0.9, MANY).put(data, wrong, 0)
