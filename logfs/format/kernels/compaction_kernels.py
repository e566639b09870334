"""Compiled loops for compaction and key indexes: find the newest offset of each key, select and copy records.

As in `batch_kernels`, each loop is one pass without the GIL, and allocates nothing. The tests compare the loops with
plain Python (`tests/log/test_offset_map.py`, `tests/log/test_cleaner.py`). kafka-storage 8.2 to 8.7 has the rules.

A row of `spans` describes the uncompressed records of one batch: their start and end in `data`, their number, the
base offset and the base timestamp (ms). `slots` is uint64[n, 3], a hash table with open addressing. A slot has the
hash of a key (two words) and the offset + 1 of the key's newest record. An empty slot has 0 in the last word, and at
least one slot is always empty. A key index also sets NULL_BIT of the last word if the newest value is null: a key
whose newest record has offset 7 has (hash, hash, 8), or (hash, hash, 8 | NULL_BIT) if that record is a tombstone.
`secret`, uint64[2], is the secret key of the hash function. `scratch` is uint64[n, 4], working memory for n records;
`SCRATCH_SHAPE` is a good size. A BAD_ code of `batch_kernels` is a negative number that says what is malformed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from logfs.format.base.batch_rows import (
    ATTRIBUTES,
    MAX_TIMESTAMP,
    POSITION,
    SIZE,
    SPAN_COUNT,
    SPAN_START,
)
from logfs.format.kernels.batch_kernels import (
    BAD_KEY,
    BAD_LENGTH,
    BAD_VALUE,
    BAD_VARINT,
    get_varint,
    put_varint,
    varlong_size,
)
from logfs.format.kernels.kernel import kernel

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Bytes = NDArray[np.uint8]
    Int64s = NDArray[np.int64]
    UInt64s = NDArray[np.uint64]

# The outcomes of `put_keys`: all spans are done (GOOD), or the table has no room for one more key (FULL).
GOOD = 0
FULL = 1

# The last word of a slot has the offset + 1 of the key's newest record in its lower 63 bits. The top bit, NULL_BIT,
# is set if the value of that record is null.
NULL_BIT = 1 << 63

# Which records of a batch stay: none (DROP), all (KEEP), or the newest record of each key (SELECT; SELECT_EXPIRED
# also drops those with a null value).
DROP, KEEP, SELECT, SELECT_EXPIRED = 0, 1, 2, 3

# What `write_batches` writes of a batch: nothing (GONE), all bytes unchanged (COPIED), a header alone (EMPTIED), or a
# header and the records that stay (FILTERED).
GONE, COPIED, EMPTIED, FILTERED = 0, 1, 2, 3

# Working memory for 128 records: 4 KiB, which stays in the processor's first-level cache.
SCRATCH_SHAPE = (128, 4)

# The most bytes that a rewritten record grows by: the varints of its timestamp delta and length may be longer.
GROWTH = 16


# SipHash-2-4 with a result of 128 bits (by Aumasson and Bernstein). Nobody can construct two keys with the same hash
# without knowing the secret.


@kernel
def _sip_round(
    v0: np.uint64, v1: np.uint64, v2: np.uint64, v3: np.uint64
) -> tuple[np.uint64, np.uint64, np.uint64, np.uint64]:
    v0 += v1
    v2 += v3
    v1 = (v1 << np.uint64(13)) | (v1 >> np.uint64(51))
    v3 = (v3 << np.uint64(16)) | (v3 >> np.uint64(48))
    v1 ^= v0
    v3 ^= v2
    v0 = (v0 << np.uint64(32)) | (v0 >> np.uint64(32))
    v2 += v1
    v0 += v3
    v1 = (v1 << np.uint64(17)) | (v1 >> np.uint64(47))
    v3 = (v3 << np.uint64(21)) | (v3 >> np.uint64(43))
    v1 ^= v2
    v3 ^= v0
    v2 = (v2 << np.uint64(32)) | (v2 >> np.uint64(32))
    return v0, v1, v2, v3


@kernel
def _little_endian(data: Bytes, position: int, size: int) -> np.uint64:
    value = np.uint64(0)
    for index in range(size):
        value |= np.uint64(data[np.uint64(position + index)]) << np.uint64(8 * index)
    return value


@kernel
def hash_key(data: Bytes, start: int, length: int, secret: UInt64s) -> tuple[np.uint64, np.uint64]:
    """Return the 128-bit SipHash of data[start : start + length] under `secret`, as two little-endian words."""
    v0 = secret[0] ^ np.uint64(0x736F6D6570736575)
    v1 = secret[1] ^ np.uint64(0x646F72616E646F6D) ^ np.uint64(0xEE)
    v2 = secret[0] ^ np.uint64(0x6C7967656E657261)
    v3 = secret[1] ^ np.uint64(0x7465646279746573)
    whole = length & ~7
    for at in range(start, start + whole, 8):
        word = _little_endian(data, at, 8)
        v3 ^= word
        v0, v1, v2, v3 = _sip_round(v0, v1, v2, v3)
        v0, v1, v2, v3 = _sip_round(v0, v1, v2, v3)
        v0 ^= word
    word = (np.uint64(length & 255) << np.uint64(56)) | _little_endian(
        data, start + whole, length - whole
    )
    v3 ^= word
    v0, v1, v2, v3 = _sip_round(v0, v1, v2, v3)
    v0, v1, v2, v3 = _sip_round(v0, v1, v2, v3)
    v0 ^= word
    v2 ^= np.uint64(0xEE)
    for _ in range(4):
        v0, v1, v2, v3 = _sip_round(v0, v1, v2, v3)
    first = v0 ^ v1 ^ v2 ^ v3
    v1 ^= np.uint64(0xDD)
    for _ in range(4):
        v0, v1, v2, v3 = _sip_round(v0, v1, v2, v3)
    return first, v0 ^ v1 ^ v2 ^ v3


@kernel
def find_slot(slots: UInt64s, first: np.uint64, second: np.uint64) -> np.int64:
    """Return the index of the slot with the hash (`first`, `second`), or of the empty slot where the hash belongs."""
    size = len(slots)
    at = np.int64(((first >> np.uint64(32)) * np.uint64(size)) >> np.uint64(32))
    while slots[at, 2] != 0 and not (slots[at, 0] == first and slots[at, 1] == second):
        at += np.int64(1)
        if at == size:
            at = np.int64(0)
    return at


@kernel
def _skip_to_key(data: Bytes, position: int, end: int) -> tuple[int, int, int, int, int]:
    """Read the fields of a record that precede its key.

    Returns (end of the record, timestamp delta, position after the timestamp delta, offset delta, position of the
    key's length). If the bytes before the key's length violate the format, the last item is a BAD_ code, and the
    other items have no meaning.
    """
    body, position = get_varint(data, position, end, 5)
    if position < 0:
        return 0, 0, 0, 0, BAD_VARINT
    record_end = position + body
    if body < 6 or record_end > end:
        return 0, 0, 0, 0, BAD_LENGTH
    timestamp_delta, rest = get_varint(data, position + 1, record_end, 10)
    if rest < 0:
        return 0, 0, 0, 0, BAD_VARINT
    offset_delta, position = get_varint(data, rest, record_end, 5)
    return record_end, timestamp_delta, rest, offset_delta, position


@kernel
def put_keys(
    data: Bytes,
    spans: Int64s,
    first_offset: int,
    secret: UInt64s,
    slots: UInt64s,
    used: int,
    limit: int,
    scratch: UInt64s,
    null_bit: np.uint64,
) -> tuple[int, int, np.int64, int]:
    """Store in `slots` the offset of each record that has a key and an offset of at least `first_offset`.

    Records are stored in offset order: a later record replaces the earlier ones of its key. `used` is the number of
    slots in use; the loop stops before a record that would make this number exceed `limit`. `null_bit` is NULL_BIT to
    set this bit in the slots of keys whose newest value is null, or 0 to ignore values.

    Returns (number of spans done, number of slots in use, last offset stored or -1, outcome). The outcome is GOOD if
    all spans were done. Otherwise it says why the next span was not finished: FULL if `limit` was reached, or a BAD_
    code for a malformed record. `slots` may already have some records of this span.
    """
    latest = np.int64(-1)
    for number in range(len(spans)):
        position = spans[number, 0]
        end = spans[number, 1]
        left = spans[number, 2]
        while left > 0:
            block = min(left, len(scratch))
            left -= block
            count = 0
            for _ in range(block):
                record_end, _, _, delta, position = _skip_to_key(data, position, end)
                if position < 0:
                    return number, used, latest, position
                length, position = get_varint(data, position, record_end, 5)
                if position < 0 or length < -1 or position + max(length, 0) > record_end:
                    return number, used, latest, BAD_KEY
                offset = spans[number, 3] + delta
                if length >= 0 and offset >= first_offset:
                    first, second = hash_key(data, position, length, secret)
                    scratch[count, 0] = first
                    scratch[count, 1] = second
                    word = np.uint64(offset + 1)
                    if null_bit:
                        value, position = get_varint(data, position + length, record_end, 5)
                        if position < 0 or value < -1 or position + max(value, 0) > record_end:
                            return number, used, latest, BAD_VALUE
                        if value < 0:
                            word |= null_bit
                    scratch[count, 2] = word
                    count += 1
                position = record_end
            # The lookups run back to back, without other work, so that their cache misses overlap.
            for index in range(count):
                slot = find_slot(slots, scratch[index, 0], scratch[index, 1])
                if slots[slot, 2] == 0:
                    if used >= limit:
                        return number, used, latest, FULL
                    used += 1
                    slots[slot, 0] = scratch[index, 0]
                    slots[slot, 1] = scratch[index, 1]
                slots[slot, 2] = scratch[index, 2]
                latest = np.int64(scratch[index, 2] & ~null_bit) - np.int64(1)
        if position != end:
            return number, used, latest, BAD_LENGTH
    return len(spans), used, latest, GOOD


@kernel
def _look_up(scratch: UInt64s, count: int, slots: UInt64s, keep: Bytes) -> tuple[int, int]:
    """Set keep[i] to 0 if `slots` has a later record with the key of record i, otherwise to 1.

    Each of the first `count` rows of `scratch` describes a record i by four words: the hash of its key (two words),
    its offset + 1, and 2 * i or, if its value is null, 2 * i + 1. The lookups run back to back, so that their cache
    misses overlap. Returns (the number of records that stay, the number of those whose value is null).
    """
    survivors = 0
    without_value = 0
    for index in range(count):
        slot = find_slot(slots, scratch[index, 0], scratch[index, 1])
        stays = scratch[index, 2] >= slots[slot, 2]
        where = np.int64(scratch[index, 3])
        keep[where >> 1] = stays
        survivors += stays
        without_value += stays and where & 1 != 0
    return survivors, without_value


@kernel
def move_slots(old: UInt64s, slots: UInt64s, used: int) -> int:
    """Put the entries of the table `old` into the table `slots`, where they replace the entries of the same keys.

    Both tables must have the same secret. `used` is the number of keys in `slots`. Returns the number of keys that
    were new to `slots`, or -1 if `slots` has no room for all entries; some entries have then been moved. One slot
    always stays empty, because the search for a missing key ends there. The loop is fast because both tables are
    roughly in the order of the hashes: a pass over `old` also visits `slots` in the order of memory.
    """
    added = 0
    room = len(slots) - 1 - used
    for number in range(len(old)):
        word = old[number, 2]
        if word != 0:
            slot = find_slot(slots, old[number, 0], old[number, 1])
            if slots[slot, 2] == 0:
                if added >= room:
                    return -1
                added += 1
                slots[slot, 0] = old[number, 0]
                slots[slot, 1] = old[number, 1]
            slots[slot, 2] = word
    return added


@kernel
def select_records(
    data: Bytes,
    spans: Int64s,
    verdicts: Bytes,
    latest: int,
    secret: UInt64s,
    slots: UInt64s,
    keep: Bytes,
    kept: Int64s,
    nulls: Int64s,
    scratch: UInt64s,
) -> int:
    """Decide for each record i of several batches whether it stays: keep[i] becomes 1 or 0.

    The records of all spans are numbered together, from 0. verdicts[n] is the rule for span n:

    - DROP: no record stays.
    - KEEP: all records stay.
    - SELECT: a record up to the offset `latest` stays only if it has a key and is, according to `slots`, the newest
      record with this key. Records after `latest`, which `slots` does not cover, all stay.
    - SELECT_EXPIRED: as SELECT, but no record up to `latest` with a null value stays.

    kept[n] becomes the number of records of span n that stay, and nulls[n] the number of these that have a null
    value; for a DROP span both are unchanged. Returns len(spans), or the number of the first span that violates the
    format.
    """
    row = 0
    for number in range(len(spans)):
        verdict = verdicts[number]
        position = spans[number, 0]
        end = spans[number, 1]
        survivors = 0
        without_value = 0
        if verdict == DROP:
            # The batch's bytes are not read, so they need not be valid or decompressed.
            for _ in range(spans[number, 2]):
                keep[row] = 0
                row += 1
            continue
        left = spans[number, 2]
        while left > 0:
            block = min(left, len(scratch))
            left -= block
            count = 0
            for _ in range(block):
                record_end, _, _, delta, position = _skip_to_key(data, position, end)
                if position < 0:
                    return number
                length, position = get_varint(data, position, record_end, 5)
                if position < 0 or length < -1 or position + max(length, 0) > record_end:
                    return number
                value, after = get_varint(data, position + max(length, 0), record_end, 5)
                if after < 0 or value < -1 or after + max(value, 0) > record_end:
                    return number
                offset = spans[number, 3] + delta
                stays = verdict == KEEP or offset > latest
                if not stays and length >= 0 and (value >= 0 or verdict == SELECT):
                    first, second = hash_key(data, position, length, secret)
                    scratch[count, 0] = first
                    scratch[count, 1] = second
                    scratch[count, 2] = np.uint64(offset + 1)
                    scratch[count, 3] = np.uint64(row * 2 + (value < 0))
                    count += 1
                keep[row] = stays
                survivors += stays
                without_value += stays and value < 0
                row += 1
                position = record_end
            more, nothing = _look_up(scratch, count, slots, keep)
            survivors += more
            without_value += nothing
        if position != end:
            return number
        kept[number] = survivors
        nulls[number] = without_value
    return len(spans)


@kernel
def filter_records(
    data: Bytes,
    span: Int64s,
    append_time: int,
    keep: Bytes,
    first: int,
    has_base: bool,
    base: int,
    out: Bytes,
    position: int,
) -> tuple[int, int, int]:
    """Write to `out`, from `position` on, those records of one span that stay.

    Record i of the span stays if keep[first + i] is set. `span` is (start, end, record count, base offset, base
    timestamp). The records must be valid. Their timestamp deltas become relative to `base` if `has_base` is set,
    otherwise to the timestamp of the first record written. `append_time` is the timestamp of all records, or -1 if
    each has its own. Times are in ms.

    Returns (the position after the last record, base timestamp, greatest timestamp).
    """
    at = span[0]
    end = span[1]
    greatest = -1
    for row in range(first, first + span[2]):
        record_end, delta, rest, _, _ = _skip_to_key(data, at, end)
        at = record_end
        if not keep[row]:
            continue
        timestamp = append_time if append_time >= 0 else span[4] + delta
        if not has_base:
            has_base = True
            base = timestamp
        greatest = max(greatest, timestamp)
        length = record_end - rest
        position = put_varint(out, position, 1 + varlong_size(timestamp - base) + length)
        out[position] = 0
        position = put_varint(out, position + 1, timestamp - base)
        out[position : position + length] = data[rest:record_end]
        position += length
    return position, base, greatest


@kernel
def _put_big_endian(out: Bytes, position: int, size: int, value: int) -> None:
    for index in range(size):
        out[position + index] = np.uint8((value >> (8 * (size - 1 - index))) & 255)


@kernel
def write_batches(
    data: Bytes,
    rows: Int64s,
    actions: Bytes,
    with_base: Bytes,
    bases: Int64s,
    keep: Bytes,
    kept: Int64s,
    out: Bytes,
    rewritten: Int64s,
) -> tuple[int, int]:
    """Write to `out` the scanned batches that stay, each with those of its records that stay.

    A row of `rows` describes a batch in `data`, in the columns of `logfs.format.base.batch_rows`. actions[n] tells
    what to write for batch n: GONE (nothing), COPIED (the batch unchanged), EMPTIED (its header alone) or FILTERED
    (its header, and its records i with keep[i] set; i counts the records of all rows). The records of a FILTERED
    batch must be uncompressed in `data`; kept[n] is the number of those that stay. If with_base[n] is set, a FILTERED
    batch gets the delete horizon bases[n].

    Returns (the number of bytes written, the number of batches with a new header). For the i-th batch with a new
    header, rewritten[i] becomes its (start, end) in `out`; the caller must still set the CRC in that header.
    """
    written = 0
    count = 0
    first = 0
    for number in range(len(rows)):
        row = rows[number]
        action = actions[number]
        start = row[POSITION]
        if action == COPIED:
            size = row[SIZE]
            out[written : written + size] = data[start : start + size]
            written += size
        elif action != GONE:
            out[written : written + 61] = data[start : start + 61]
            position = written + 61
            attributes = row[ATTRIBUTES] & 0x38
            base = -1
            survivors = 0
            if action == FILTERED:
                append_time = row[MAX_TIMESTAMP] if attributes & 8 else -1
                horizon = with_base[number] != 0
                position, base, greatest = filter_records(
                    data,
                    row[SPAN_START:],
                    append_time,
                    keep,
                    first,
                    horizon,
                    bases[number],
                    out,
                    position,
                )
                survivors = kept[number]
                if horizon:
                    attributes |= 0x40
                if not attributes & 8:
                    _put_big_endian(out, written + 35, 8, greatest)
            _put_big_endian(out, written + 8, 4, position - written - 12)
            _put_big_endian(out, written + 21, 2, attributes)
            _put_big_endian(out, written + 27, 8, base)
            _put_big_endian(out, written + 57, 4, survivors)
            rewritten[count, 0] = written
            rewritten[count, 1] = position
            count += 1
            written = position
        first += row[SPAN_COUNT]
    return written, count


@kernel
def sketch_keys(
    data: Bytes, starts: Int64s, lengths: NDArray[np.int32], secret: UInt64s, registers: Bytes
) -> None:
    """Add the keys data[starts[i] : starts[i] + lengths[i]] to the registers of a HyperLogLog sketch.

    A null key (length -1) is skipped. The first word of a key's hash selects a register. The new value of the
    register is the maximum of its old value and 1 plus the number of trailing zero bits of the second word.
    """
    mask = np.uint64(len(registers) - 1)
    for index in range(len(starts)):
        if lengths[index] < 0:
            continue
        first, second = hash_key(data, starts[index], np.int64(lengths[index]), secret)
        run = 1
        while run < 64 and not second & np.uint64(1):
            second >>= np.uint64(1)
            run += 1
        register = np.int64(first & mask)
        registers[register] = max(registers[register], run)
