"""Helpers of both dump tests: `logfs dump` in this process, and files that are hard to dump."""

from __future__ import annotations

import contextlib
import io
import struct
import uuid
import zlib
from typing import TYPE_CHECKING, Any, NamedTuple

from logfs.cli import main
from logfs.format.batches import compression
from logfs.format.batches.batch import HEADER_SIZE, seal
from logfs.format.batches.compression import Codec
from logfs.format.batches.record import Record, encode_record
from logfs.format.files.aborted_transactions import AbortedTransaction
from logfs.format.files.producer_snapshot import ProducerEntry, checksum, format_snapshot
from logfs.format.messages import control
from logfs.format.messages.group_record import OffsetCommit, OffsetKey
from logfs.format.messages.group_schema import KEYS, VALUES
from tests.support.group_records import encode_group_metadata

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from logfs.format.messages.message import Field

T = 1_700_000_000_000
DEEP, DATA, OFFSETS = "--deep-iteration", "--print-data-log", "--offsets-decoder"
VERIFY, SANITY = "--verify-index-only", "--index-sanity-check"


class Printed(NamedTuple):
    """The exit code, output and errors of a dump."""

    code: int
    out: str
    err: str


def dump(*words: str | Path) -> Printed:
    """Run `logfs dump …` in this process."""
    out, err = io.TextIOWrapper(io.BytesIO(), "utf-8"), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(["dump", *map(str, words)])
    assert isinstance(out.buffer, io.BytesIO)
    return Printed(code, out.buffer.getvalue().decode(), err.getvalue())


# Files.


def batch(
    records: Sequence[Record],
    base: int = 0,
    *,
    codec: Codec = Codec.NONE,
    attributes: int = 0,
    body: bytes | None = None,
    last_offset_delta: int | None = None,
    **header: int,
) -> bytes:
    """Return a sealed batch; a record's offset, if it has one, is its delta. `body` replaces the encoded records."""
    stamps = [T if record.timestamp is None else record.timestamp for record in records]
    first = header.pop("base_timestamp", stamps[0] if stamps else -1)
    if body is None:
        body = b"".join(
            encode_record(
                record,
                offset_delta=number if record.offset < 0 else record.offset,
                timestamp_delta=stamp - first,
            )
            for number, (record, stamp) in enumerate(zip(records, stamps, strict=True))
        )
        body = bytes(compression.compress(codec, body)) if codec else body
    delta = len(records) - 1 if last_offset_delta is None else last_offset_delta
    data = bytearray(HEADER_SIZE) + body
    fields = {"max_timestamp": max(stamps, default=-1), "record_count": len(records), **header}
    seal(
        data,
        attributes=attributes | codec,
        base_offset=base,
        last_offset_delta=delta,
        base_timestamp=first,
        **fields,
    )
    return bytes(data)


def message(
    offset: int,
    key: bytes | None,
    value: bytes | None,
    magic: int = 1,
    attributes: int = 0,
    timestamp: int = T,
) -> bytes:
    """Return a message of an old format (kafka-storage 2.7)."""
    body = bytes([magic, attributes]) + (struct.pack(">q", timestamp) if magic else b"")
    for part in (key, value):
        body += struct.pack(">i", -1 if part is None else len(part)) + (part or b"")
    data = struct.pack(">I", zlib.crc32(body)) + body
    return struct.pack(">qi", offset, len(data)) + data


def wrapper(offset: int, codec: Codec, *inner: bytes, magic: int = 1, attributes: int = 0) -> bytes:
    """Return a compressed message that contains messages."""
    packed = bytes(compression.compress(codec, b"".join(inner)))
    return message(offset, None, packed, magic, attributes | codec, T + 99)


def patched(data: bytes, position: int, layout: str, value: int) -> bytes:
    """Return the bytes with one field changed."""
    copy = bytearray(data)
    struct.pack_into(layout, copy, position, value)
    return bytes(copy)


def offset_entries(*entries: tuple[int, int]) -> bytes:
    """Return the bytes of an offset index."""
    return b"".join(struct.pack(">ii", *entry) for entry in entries)


def time_entries(*entries: tuple[int, int]) -> bytes:
    """Return the bytes of a time index."""
    return b"".join(struct.pack(">qi", *entry) for entry in entries)


NOT_UTF8 = b"x\xff\xe2\x82\xf0\x9f\x98\xed\xa0\x80\xed\xbf|\xc0\xafy"
RECORDS = [
    Record(b"a", b"k"),
    Record(None, None),
    Record(b"", b""),
    Record(NOT_UTF8, b"\xfe"),
    Record("é\n😀".encode(), b"k", [("h", b"v"), ("h", None), ("bé", b""), ("", NOT_UTF8)], -1),
    Record(b"v", b"k", [("\udcff", b"")], T - 5),
]
PLAIN = batch(RECORDS)
TWO = batch(RECORDS[:2])
EPOCH = control.END_TRANSACTION.pack(0, 9)


def control_batch(base: int, kind: int, value: bytes | None, version: int = 0) -> bytes:
    """Return a batch with one control record."""
    record = Record(value, struct.pack(">hh", version, kind))
    return batch([record], base, attributes=0x30, producer_id=4, producer_epoch=1)


def _filled(fields: Sequence[Field], count: int) -> dict[str, Any]:
    """Return a message with `count` items in each array; if `count` is 0, each nullable field is null."""
    return {field.name: _value(field, field.type, count) for field in fields}


def _value(field: Field, kind: str, count: int) -> Any:
    if field.nullable and not count:
        return None
    if kind.startswith("[]"):
        return [_value(field, kind[2:], count) for _ in range(count)]
    if kind == "struct":
        return _filled(field.fields, count)
    if kind == "uuid":
        return uuid.UUID(int=count << 70)
    if kind in ("string", "bytes"):
        return "tä/\x1f" * count if kind == "string" else b"\0\xfb\xef" * count
    return 100 - 80 * count


def every_kind() -> bytes:
    """Return a batch with a record of every kind in __consumer_offsets, in each version, full and empty."""
    return batch(
        [
            Record(
                schema.encode(version, _filled(schema.fields, count)),
                KEYS[kind].encode(kind, _filled(KEYS[kind].fields, count)),
            )
            for kind, schema in VALUES.items()
            for version in range(schema.newest + 1)
            for count in range(2)
        ]
    )


def offsets_log() -> bytes:
    """Return commits and a group in every version, tombstones, and records that the tool must leave undecoded."""
    key = OffsetKey("g1", "tä/\x1f", 3).encode()
    commit = OffsetCommit(77, 'm"d\n\x1f\x7f', T, 5, 9)
    group = b"\0\2\0\3grp"
    names = ("memberId", "groupInstanceId", "clientId", "clientHost")
    member = dict(zip(names, ("m1", None, "c", "/h"), strict=True)) | {
        "rebalanceTimeout": 10,
        "sessionTimeout": 20,
        "subscription": b"\1\xff\0\xfb\xef",
        "assignment": b"",
    }
    fields = {
        "protocolType": "consumer",
        "generation": 2,
        "protocol": "range",
        "leader": None,
        "currentStateTimestamp": 5,
        "members": [member, member | {"groupInstanceId": "i"}],
    }
    value = commit.encode(3)
    pairs = [
        *((key, commit.encode(version)) for version in range(5)),
        *((group, encode_group_metadata(fields, version)) for version in range(5)),
        (key, None),
        (group, None),
        (b"\0\0" + key[2:], commit.encode(0)),
        (b"\0\0" + key[2:], value),
        (b"\0\3\0\1g", b"\0\0\0\0\0\7\0"),
        (b"\0\3\0\1g", b"\0\0\0\0\0\7\1\0\x08" + bytes(7) + b"\5"),
        (b"\0\5\0\1g\0\1m", b"\0\0\0\0\0"),
        (b"\0\x11\0\1g", b"\0\0" + bytes(13)),
        (b"\0\x09\0\1g", b"\0\0"),
        (b"\0\x63\0\1g", b"\0\0"),
        (b"\xff\xff", b"\0\0"),
        (b"", value),
        (b"\0\1", value),
        (key[:-1], value),
        (b"\0\1\xff\xff", value),
        (b"\0\1\0\3\xff\xed\xa0" + key[6:], None),
        (b"\0\1\0\x7fg", None),
        (key, b""),
        (key, b"\0"),
        (key, b"\0\5"),
        (key, b"\xff\xff"),
        (key, value[:-1]),
        (key, value + b"more"),
        (key, commit.encode(4)[:-1] + b"\1\5\2ab"),
        (key, commit.encode(4)[:-1] + b"\1\5\2a"),
        (group, encode_group_metadata(fields)[:-3]),
    ]
    return batch([Record(value, key) for key, value in pairs])


class Case(NamedTuple):
    """The files of a directory, the name of the one to dump, and the options."""

    files: dict[str, bytes]
    dumped: str
    options: tuple[str, ...] = ()


def _logs() -> dict[str, bytes]:
    old = [
        message(0, b"k", b"v", 0),
        message(1, None, b"v", 0),
        message(2, b"k", None),
        message(3, b"", NOT_UTF8, 1, 8, 5),
    ]
    wrapped = [
        wrapper(12, Codec.GZIP, message(0, b"k", b"a"), message(2, b"k", b"b")),
        wrapper(15, Codec.SNAPPY, message(0, b"k", b"a"), message(1, b"k", b"b"), attributes=8),
        wrapper(17, Codec.LZ4, message(0, None, b"a"), message(1, b"k", None)),
        wrapper(19, Codec.GZIP, message(18, b"k", b"a", 0), message(19, b"", b"", 0), magic=0),
    ]
    zipped = batch(RECORDS[:2], codec=Codec.GZIP)
    voters = bytes([2]) + struct.pack(">i", 1) + bytes(16)
    voters += b"\2\5NAME\5host\x71\xa5\0\0\0\0\1\0\0\0"
    return {
        "empty": b"",
        "codecs": b"".join(batch(RECORDS, 6 * codec, codec=codec) for codec in Codec),
        "producers": batch(RECORDS, producer_id=5, producer_epoch=2, base_sequence=2**31 - 3)
        + batch(RECORDS, 6, attributes=0x10, producer_id=5, producer_epoch=2, base_sequence=0),
        "kinds": batch(RECORDS, attributes=8, max_timestamp=T + 7)
        + batch(RECORDS, 6, attributes=0x40, base_timestamp=777)
        + batch([], 12, last_offset_delta=3),
        "control": control_batch(0, 0, EPOCH)
        + control_batch(1, 1, EPOCH, version=5)
        + control_batch(2, 77, None)
        + control_batch(3, 2, b"\0\0\0\0\0\1\2\0\0\0\1\0\1\0")
        + control_batch(4, 3, b"\0\0" + bytes(9))
        + control_batch(5, 4, b"\0\1\0")
        + control_batch(6, 5, b"\0\0\0\1\0")
        + control_batch(7, 6, b"\0\0" + voters),
        "jumps": b"".join(batch([Record(b"x")], base) for base in (5, 100, 50, 100, 33, 2**40, 17)),
        "old": b"".join(old) + batch(RECORDS, 4),
        "old with a wrong CRC": old[0][:-1] + b"w" + old[1],
        "old and short": old[0] + struct.pack(">qiIbb", 5, 14, 1, 1, 0) + bytes(8),
        "old with a bad length": patched(old[0], 18, ">i", 127) + old[1],
        "wrapped": b"".join(wrapped),
        "wrapped badly": wrapper(3, Codec.GZIP),
        "no offsets": batch([Record(b"v")]),
        **{f"torn at {size}": PLAIN + PLAIN[:size] for size in (1, 12, 17, 18, 60, 61, 99)},
        **{
            f"length {size}": TWO + patched(TWO, 8, ">i", size) + TWO
            for size in (-1, 13, 14, 21, 48, 49, 2**31 - 1)
        },
        **{f"magic {magic}": patched(TWO, 16, ">b", magic) + TWO for magic in (-1, 0, 1, 3)},
        "zeros": PLAIN + bytes(100),
        "wrong CRC": PLAIN + patched(TWO, 17, ">I", 1),
        "codec 6": PLAIN + batch(RECORDS, 6, attributes=6) + PLAIN,
        **{
            f"{name} with count {count}": patched(data, 57, ">i", count) + TWO
            for name, data in (("plain", TWO), ("zipped", zipped))
            for count in (-1, 0, 1, 3)
        },
        **{f"{codec.name} cut": batch(RECORDS, codec=codec)[:-3] for codec in Codec},
        "not a record": batch(RECORDS[:1], body=b"\x7f" + bytes(20)),
        **{
            f"control with {key!r}, {value!r}": batch([Record(value, key)], attributes=0x20) + TWO
            for key, value in (
                (None, b""),
                (b"", b""),
                (b"\xff\xff\0\0", EPOCH),
                (b"\0\0\0\0", b""),
                (b"\0\0\0\0", b"\xff\xff\0\0\0\0"),
                (b"\0\0\0\3", b""),
                (b"\0\0\0\6", b"\0\0\1"),
            )
        },
    }


LOG = [
    batch([Record(b"x", None, (), T + n), Record(b"y", None, (), T + n + 5)], 100 + n)
    for n in (0, 2, 4)
]
SIZE = len(LOG[0])
FIT = offset_entries((3, SIZE), (5, 2 * SIZE))
TIMES = time_entries((T + 7, 3), (T + 9, 5))


def _index_cases() -> dict[str, Case]:
    offsets = {
        "fit": FIT,
        "empty": b"",
        "short": b"abc",
        "part": FIT + b"abc",
        "padded": FIT + bytes(24),
        "zeros": bytes(24),
        "below": offset_entries((3, SIZE), (-2, 2 * SIZE)),
        "mismatch": offset_entries((9, 0), (2, SIZE), (2, 0), (50, 2 * SIZE), (3, 0)),
        "beyond": offset_entries((3, SIZE), (9, 3 * SIZE)),
        "far beyond": offset_entries((3, SIZE), (9, 4 * SIZE)),
        "between": offset_entries(
            (3, SIZE + 1),
        ),
        "negative": offset_entries((3, -1)),
    }
    times = {
        "fit": TIMES,
        "empty": b"",
        "part": TIMES + b"abc",
        "padded": TIMES + bytes(24),
        "zeros": bytes(24),
        "below": time_entries((T + 7, 3), (T + 9, -3)),
        "wrong": time_entries((T + 7, 3), (T + 8, 5)),
        "falling": time_entries((T + 9, 5), (T + 7, 3)),
        "equal": time_entries((T + 7, 3), (T + 7, 3)),
        "none": time_entries((-1, 3), (-5, 5)),
        "not found": time_entries((T + 50, 2), (T + 7, 3), (T + 9, 5), (T + 10, 12)),
    }
    stem = f"{100:020}"
    log = {f"{stem}.log": b"".join(LOG)}
    options: list[tuple[str, ...]] = [(), (VERIFY,), (SANITY,), (VERIFY, SANITY)]
    cases = {}
    for given in options:
        for name, data in offsets.items():
            files = {**log, f"{stem}.index": data}
            cases[f"index {name} {given}"] = Case(files, f"{stem}.index", given)
        for name, data in times.items():
            files = {**log, f"{stem}.index": FIT, f"{stem}.timeindex": data}
            cases[f"timeindex {name} {given}"] = Case(files, f"{stem}.timeindex", given)
    small = ("--max-message-size", str(SIZE - 1))
    files = {**log, f"{stem}.index": FIT, f"{stem}.timeindex": TIMES}
    no_log = {f"{stem}.index": FIT, f"{stem}.timeindex": TIMES}
    for kind in ("index", "timeindex"):
        cases[f"{kind} small"] = Case(files, f"{stem}.{kind}", small)
        cases[f"{kind} alone"] = Case(no_log, f"{stem}.{kind}")
        cases[f"{kind} torn"] = Case(
            {**files, f"{stem}.log": LOG[0] + LOG[1][:70]}, f"{stem}.{kind}"
        )
    alone = {**log, f"{stem}.timeindex": TIMES}
    cases["timeindex without index"] = Case(alone, f"{stem}.timeindex")
    odd = {**files, f"{stem}.index": offset_entries((3, 2 * SIZE), (9, 99999))}
    cases["timeindex with a bad index"] = Case(odd, f"{stem}.timeindex")
    return cases


PRODUCERS = [
    ProducerEntry(5, 1, 10, 100, 3, 12345, -1, -1),
    ProducerEntry(2, 0, -1, -1, 0, 777, 4, 90),
    ProducerEntry(2**40, 0, 1, 0, 2, 777, 4, -1),
    ProducerEntry(9, 3, -1, 20, 0, 5, 1, -1),
]


def _with_checksum(data: bytes) -> bytes:
    return patched(data, 2, ">I", checksum(data))


def _small_files() -> dict[str, dict[str, bytes]]:
    good = format_snapshot(PRODUCERS)
    one = AbortedTransaction(4242, 100, 110, 95).pack()
    two = AbortedTransaction(5, 1, 120, 2**62).pack()
    return {
        "snapshot": {
            "good": good,
            "without producers": format_snapshot([]),
            "empty": b"",
            "of a byte": b"\0",
            "short": good[:8],
            "cut": good[:-5],
            "cut well": _with_checksum(good[:-5]),
            "long": good + b"xx",
            "long well": _with_checksum(good + b"xx"),
            "version 0": b"\0\0" + good[2:],
            "count 3": _with_checksum(patched(good, 6, ">i", 3)),
            "count -3": _with_checksum(patched(good, 6, ">i", -3)),
            "count 2^30": _with_checksum(patched(good, 6, ">i", 2**30)),
        },
        "txnindex": {
            "empty": b"",
            "good": one + two,
            "part": one + two[:20],
            "version 1": one + b"\0\1" + two[2:],
            "version 256": one + b"\1\0" + two[2:],
            "version -1": one + b"\xff\xff" + two[2:],
        },
        "txt": {"any": b"hello"},
    }


def cases() -> dict[str, Case]:
    """Return every case that is hard to dump, by name."""
    found = {}
    first = f"{0:020}.log"
    for name, data in _logs().items():
        for options in ((), (DEEP,), (DATA,)):
            found[f"log {name} {options}"] = Case({first: data}, first, options)
    plain = {first: PLAIN + PLAIN + b"z"}
    for size in (0, 10, len(PLAIN) - 1, len(PLAIN), 2 * len(PLAIN), 2**31 - 2, 2**31 - 1):
        found[f"log up to {size}"] = Case(plain, first, ("--max-bytes", str(size)))
    skip = "--skip-record-metadata"
    many = {first: PLAIN + control_batch(6, 0, EPOCH)}
    found["log without metadata"] = Case(many, first, (DATA, skip))
    found["log without anything"] = Case(many, first, (DEEP, skip))
    offsets = {first: offsets_log() + control_batch(100, 1, EPOCH)}
    found["offsets"] = Case(offsets, first, (OFFSETS,))
    found["offsets of every kind"] = Case({first: every_kind()}, first, (OFFSETS,))
    found["offsets without metadata"] = Case(offsets, first, (OFFSETS, skip))
    found["offsets of others"] = Case({first: PLAIN}, first, (OFFSETS,))
    for name in ("x.log", "12.log", "-5.log", f"{3:020}.log.deleted", f"{10**20}.log", "nothing"):
        found[f"name {name}"] = Case({name: PLAIN}, name)
    for name in (f"{3:020}-{1:010}.checkpoint", f"{3:020}.checkpoint"):
        found[f"name {name}"] = Case({name: PLAIN}, name, (DEEP,))
    for kind, files in _small_files().items():
        for name, data in files.items():
            found[f"{kind} {name}"] = Case({f"{7:020}.{kind}": data}, f"{7:020}.{kind}", (DEEP,))
    return found | _index_cases()
