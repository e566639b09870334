"""The mutations of a log directory: each changes the content of one or two files, or one name."""

from __future__ import annotations

import os
import stat
import struct
import zlib
from typing import TYPE_CHECKING, NamedTuple

from crc32c import crc32c

from logfs.errors import Corrupt
from logfs.format.base import names, varint
from logfs.format.batches import compression
from logfs.format.batches.batch import HEADER, HEADER_SIZE, Header, parse_header, reseal
from logfs.format.batches.compression import Codec
from logfs.format.batches.legacy import is_legacy
from logfs.format.batches.record import Record, encode_record
from logfs.format.files import key_table_format, producer_snapshot

if TYPE_CHECKING:
    import random
    from collections.abc import Callable
    from pathlib import Path

    Mutator = Callable[[random.Random, bytearray], bytearray]

EXTREMES = [
    *(0, 1, 2, 5, 60, 61, 62, 127, 128, 255, 256, 32767, 32768, 65535, 2**31 - 1, 2**31, 2**32 - 1),
    *(2**32, 2**53, 2**62, 2**63 - 2, 2**63 - 1, 2**63, 2**64 - 1, 1_700_000_000_000),
]
# The fields of a batch header: position and width.
_FIELDS = {
    "base offset": (0, 8),
    "length": (8, 4),
    "leader epoch": (12, 4),
    "magic": (16, 1),
    "crc": (17, 4),
    "attributes": (21, 2),
    "last offset delta": (23, 4),
    "base timestamp": (27, 8),
    "max timestamp": (35, 8),
    "producer id": (43, 8),
    "producer epoch": (51, 2),
    "base sequence": (53, 4),
    "record count": (57, 4),
}
# Kinds of files whose content is text.
_TEXT = (
    "checkpoint",
    ".metadata",
    ".properties",
    "@p",
    "_cleanshutdown",
    ".modes",
    "logfs-commits",
)


class Done(NamedTuple):
    """A description of a mutation, and the files that it changed."""

    words: str
    files: tuple[str, ...]


def extreme(chance: random.Random, width: int) -> bytes:
    """Return an extreme number as `width` bytes, big-endian."""
    number = chance.choice(EXTREMES) + chance.choice((0, 0, 0, -1, 1))
    if chance.random() < 0.3:
        number = -number
    return (number % (1 << 8 * width)).to_bytes(width, "big")


# Bytes of any file.


def _flip(chance: random.Random, data: bytearray) -> bytearray:
    for _ in range(chance.choice((1, 1, 1, 2, 8))):
        data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    return data


def _set(chance: random.Random, data: bytearray) -> bytearray:
    at = chance.randrange(len(data))
    width = chance.choice((1, 2, 4, 8))
    data[at : at + width] = extreme(chance, width)[: len(data) - at]
    return data


def _cut(chance: random.Random, data: bytearray) -> bytearray:
    return data[: chance.randrange(len(data))]


def _zeros(chance: random.Random, data: bytearray) -> bytearray:
    at = chance.randrange(len(data))
    end = min(at + chance.choice((1, 8, 61, 512, 4096)), len(data))
    data[at:end] = bytes(end - at)
    return data


def _grow(chance: random.Random, data: bytearray) -> bytearray:
    size = chance.choice((1, 3, 11, 61, 100, 4096))
    return data + (bytes(size) if chance.random() < 0.5 else chance.randbytes(size))


def _insert(chance: random.Random, data: bytearray) -> bytearray:
    at = chance.randrange(len(data) + 1)
    return data[:at] + chance.randbytes(chance.choice((1, 2, 17, 61))) + data[at:]


def _drop(chance: random.Random, data: bytearray) -> bytearray:
    at = chance.randrange(len(data))
    return data[:at] + data[at + chance.choice((1, 4, 12, 61, 200)) :]


def _copy(chance: random.Random, data: bytearray) -> bytearray:
    """Copy some bytes of the file over others, or insert them between others."""
    start = chance.randrange(len(data))
    piece = data[start : start + chance.choice((4, 12, 61, 100, 300))]
    at = chance.randrange(len(data) + 1)
    return data[:at] + piece + data[at + chance.choice((0, len(piece))) :]


_BYTES: list[Mutator] = [
    _flip,
    _flip,
    _flip,
    _set,
    _set,
    _cut,
    _zeros,
    _grow,
    _insert,
    _drop,
    _copy,
]


# Batches.


def _starts(data: bytes | bytearray) -> list[int]:
    """Return the positions at which batches and messages begin, by their lengths."""
    found, at = [], 0
    while at + 26 <= len(data):
        size = 12 + int.from_bytes(data[at + 8 : at + 12], "big")
        if size < 26 or at + size > len(data):
            break
        found.append(at)
        at += size
    return found


def _reseal(data: bytearray, at: int) -> None:
    """Recompute the CRC of a batch or message."""
    size = 12 + int.from_bytes(data[at + 8 : at + 12], "big", signed=True)
    if is_legacy(data, at):
        body = data[at + 16 : at + size]
        struct.pack_into(">I", data, at + 12, zlib.crc32(body))
    elif HEADER_SIZE <= size <= len(data) - at:
        reseal(memoryview(data)[at : at + size])


def _header_field(chance: random.Random, data: bytearray) -> bytearray:
    at = chance.choice(_starts(data) or [0])
    for _ in range(chance.choice((1, 1, 2, 4))):
        start, width = chance.choice(list(_FIELDS.values()))
        if at + start + width <= len(data):
            value = extreme(chance, width)
            data[at + start : at + start + width] = value
    if chance.random() < 0.8:
        _reseal(data, at)
    return data


def _inside(chance: random.Random, data: bytearray) -> bytearray:
    """Change bytes of a batch's records, and make its CRC right."""
    at = chance.choice(_starts(data) or [0])
    size = 12 + int.from_bytes(data[at + 8 : at + 12], "big", signed=True)
    for _ in range(chance.choice((1, 1, 2, 6))):
        place = at + chance.randrange(16, max(size, 17))
        if place < len(data):
            value = chance.choice((0, 1, 0x7F, 0x80, 0xFF, chance.randrange(256)))
            data[place] = value
    _reseal(data, at)
    return data


def _varint(chance: random.Random, value: int, most: int) -> bytes:
    """Return a varint that is sometimes longer than necessary, or longer than `most` bytes."""
    data = bytearray(varint.encode(max(min(value, 2**63 - 1), -(2**63))))
    if chance.random() < 0.2:
        data[-1] |= 0x80
        data += b"\x80" * (chance.choice((most, most, most + 1)) - len(data) - 1) + b"\0"
    return bytes(data)


def _hostile_record(chance: random.Random, number: int) -> bytes:
    """Return a record with fields at their extremes."""

    def odd(usual: int) -> int:
        return usual if chance.random() < 0.7 else chance.choice(EXTREMES) * chance.choice((1, -1))

    def some(data: bytes | None) -> bytes:
        length = odd(-1 if data is None else len(data))
        if data is None or chance.random() < 0.8:
            length = -1 if data is None else len(data)
        return _varint(chance, length, 5) + (data or b"")

    body = chance.choice((b"\0", b"\xff")) + _varint(chance, odd(number), 10)
    body += _varint(chance, odd(number), 5)
    body += some(chance.choice((None, b"k", b"")))
    body += some(chance.choice((None, b"value", b"\0" * 9, b"\xff")))
    headers = chance.choice((0, 0, 1, 2))
    body += _varint(chance, odd(headers) if chance.random() < 0.2 else headers, 5)
    for _ in range(headers):
        body += some(b"h") + some(chance.choice((None, b"v")))
    return _varint(chance, odd(len(body)) if chance.random() < 0.1 else len(body), 5) + body


def _records(chance: random.Random, data: bytearray) -> bytearray:
    """Replace the records of a batch, with any codec and a right CRC."""
    starts = [at for at in _starts(data) if not is_legacy(data, at)]
    if not starts:
        return _inside(chance, data)
    at = chance.choice(starts)
    header = parse_header(data, at)
    count = chance.choice((0, 1, 3, 12, max(min(header.record_count, 30), 0)))
    if chance.random() < 0.5:
        payload = b"".join(_hostile_record(chance, number) for number in range(count))
    else:
        record = Record(b"forged", None, ())
        payload = b"".join(
            encode_record(record, offset_delta=n, timestamp_delta=chance.choice((0, n, -(2**63))))
            for n in range(count)
        )
    codec = chance.choice((0, 0, *range(8)))
    if 0 < codec < 5:
        payload = compression.compress(Codec(codec), payload)
        if chance.random() < 0.2 and payload:
            payload = bytes(_flip(chance, bytearray(payload)))
    told = count if chance.random() < 0.7 else chance.choice(EXTREMES) % 2**31
    new = header._replace(
        batch_length=HEADER_SIZE - 12 + len(payload),
        attributes=(header.attributes & ~7 & 0x7FFF) | codec,
        record_count=told,
        last_offset_delta=chance.choice((header.last_offset_delta, max(told - 1, 0), count)),
    )
    if chance.random() < 0.3:
        new = new._replace(base_timestamp=int.from_bytes(extreme(chance, 8), "big", signed=True))
    made = bytearray(HEADER.pack(*new)) + payload
    _reseal(made, 0)
    return data[:at] + made + data[at + header.size_bytes :]


def _whole_batches(chance: random.Random, data: bytearray) -> bytearray:
    """Repeat a batch, remove one, or reorder the batches."""
    starts = _starts(data)
    if len(starts) < 2:
        return _flip(chance, data)
    ends = [*starts[1:], len(data)]
    batches = [data[start:end] for start, end in zip(starts, ends, strict=True)]
    kind = chance.randrange(3)
    number = chance.randrange(len(batches))
    if kind == 0:
        batches.insert(number, batches[number])
    elif kind == 1:
        del batches[number]
    else:
        chance.shuffle(batches)
    return bytearray().join(batches)


def _bomb(chance: random.Random, data: bytearray) -> bytearray:
    """Add a batch that decompresses to the largest allowed size, or to more."""
    starts = [at for at in _starts(data) if not is_legacy(data, at)]
    if not starts:
        return _flip(chance, data)
    header = parse_header(data, starts[-1])
    made = bomb(header, Codec(chance.randrange(1, 5)), chance.randrange(3))
    return data[: starts[-1]] + made


def bomb(header: Header, codec: Codec, kind: int) -> bytearray:
    """Return a small batch that decompresses to a very large size.

    Kind 0 has one value of 60 MiB of control characters, kind 1 has 8 million records, and kind 2 exceeds the limit.
    """
    if kind == 0:
        record = Record(b"\1" * (60 << 20))
        payload, count = encode_record(record, offset_delta=0, timestamp_delta=0), 1
    elif kind == 1:
        count = 8_000_000
        payload = encode_record(Record(None), offset_delta=0, timestamp_delta=0) * count
    else:
        payload, count = bytes(65 << 20), 1
    new = header._replace(
        attributes=codec, record_count=count, last_offset_delta=header.last_offset_delta
    )
    made = bytearray(HEADER.pack(*new)) + compression.compress(codec, payload)
    struct.pack_into(">i", made, 8, len(made) - 12)
    reseal(memoryview(made))
    return made


_LOG: list[Mutator] = [
    *(_header_field,) * 6,
    *(_inside,) * 3,
    *(_records,) * 4,
    *(_whole_batches,) * 2,
    *_BYTES,
]
# One in `_BOMB_SHARE` mutations of a log is a bomb: each takes seconds.
_BOMB_SHARE = 50_000


# Other files.


def _lines(chance: random.Random, data: bytearray) -> bytearray:
    """Change numbers, words and lines of a text."""
    lines = bytes(data).split(b"\n")
    number = chance.randrange(len(lines))
    words = lines[number].split(b" ")
    kind = chance.randrange(6)
    if kind == 0:
        words[chance.randrange(len(words))] = b"%d" % (
            chance.choice(EXTREMES) * chance.choice((1, 1, -1))
        )
    elif kind == 1:
        words[chance.randrange(len(words))] = chance.choice(
            (b"", b"x", b"\xff", b"9" * 400, b"0x10", b"1.5", b"true", b"null", b"[" * 3000, b"\\u")
        )
    elif kind == 2:
        words.append(b"1")
    lines[number] = b" ".join(words)
    if kind == 3:
        lines.insert(number, lines[chance.randrange(len(lines))])
    elif kind == 4:
        del lines[number]
    elif kind == 5:
        chance.shuffle(lines)
    return bytearray(b"\n".join(lines))


def _entries(width: int) -> list[Mutator]:
    """Return mutations of a file whose entries have `width` bytes each."""

    def one(chance: random.Random, data: bytearray) -> bytearray:
        at = chance.randrange(max(len(data) // width, 1)) * width
        start = at + chance.randrange(width // 4) * 4
        size = chance.choice((4, 8))
        data[start : start + size] = extreme(chance, size)
        return data

    def order(chance: random.Random, data: bytearray) -> bytearray:
        entries = [data[at : at + width] for at in range(0, len(data), width)]
        chance.shuffle(entries)
        return bytearray().join(entries)

    def room(chance: random.Random, data: bytearray) -> bytearray:
        return data + bytes(width * chance.choice((1, 10, 1000)))

    return [one, one, one, order, room, *_BYTES]


def _sealed_snapshot(chance: random.Random, data: bytearray) -> bytearray:
    data = chance.choice((*_BYTES, *_entries(4)[:3]))(chance, data)
    if len(data) >= producer_snapshot.HEADER.size:
        struct.pack_into(">I", data, 2, producer_snapshot.checksum(data))
    return data


def _sealed_commits(chance: random.Random, data: bytearray) -> bytearray:
    body = bytes(data).partition(b"\n")[0]
    changed = bytearray(body)
    for _ in range(chance.choice((1, 2))):
        digits = [at for at in range(len(changed)) if 48 <= changed[at] < 58]
        if digits and chance.random() < 0.7:
            at = chance.choice(digits)
            changed[at : at + 1] = b"%d" % (chance.choice(EXTREMES) * chance.choice((1, -1)))
        elif changed:
            changed = chance.choice(_BYTES)(chance, changed)
    return changed + b"\ncrc32c %08x\n" % crc32c(changed)


def _sealed_keys(chance: random.Random, data: bytearray) -> bytearray:
    """Change a key index and correct its checksums, as far as its length allows."""
    for _ in range(chance.choice((1, 3))):
        at = chance.choice((chance.randrange(110), chance.randrange(len(data))))
        size = chance.choice((1, 4, 8))
        data[at : at + size] = extreme(chance, size)[: len(data) - at]
    if chance.random() < 0.2:
        table = len(data) - key_table_format.HEADER_BYTES
        data[key_table_format.HEADER_BYTES :] = chance.randbytes(table)
    slots = (len(data) - key_table_format.HEADER_BYTES) // (key_table_format.BLOCK_BYTES + 4) * 512
    end = key_table_format.HEADER_BYTES + slots * key_table_format.SLOT_BYTES
    crcs = key_table_format.format_crcs(data[key_table_format.HEADER_BYTES : end])
    data[end : end + len(crcs)] = crcs
    head = key_table_format._HEAD.size
    struct.pack_into(">I", data, head - 4, crc32c(crcs))
    struct.pack_into(">I", data, head, crc32c(data[:head]))
    return data


def _mutators(name: str) -> list[Mutator]:
    if name.endswith((names.LOG, ".staged")):
        return _LOG
    if name.endswith(names.TIME_INDEX):
        return _entries(12)
    if name.endswith(names.TEXT_INDEX):
        return _entries(32)
    if name.endswith(names.TXN_INDEX):
        return _entries(34)
    if name.endswith(names.OFFSET_INDEX):
        return _entries(8)
    if name.endswith(names.SNAPSHOT):
        return [_sealed_snapshot, _sealed_snapshot, *_BYTES]
    if ".keys" in name:
        return [_sealed_keys, _sealed_keys, *_BYTES]
    if name.endswith("logfs-commits"):
        return [_sealed_commits, _sealed_commits, _lines, *_BYTES]
    if any(part in name for part in _TEXT):
        return [_lines, _lines, _lines, *_BYTES]
    return _BYTES


# Half of all mutations are of logs. Each other kind of file has the same share, however many files it has.
def pick(chance: random.Random, files: dict[str, bytes]) -> str:
    """Return the name of a file to change."""
    logs = [name for name in files if name.endswith((names.LOG, ".staged"))]
    if logs and chance.random() < 0.5:
        return chance.choice(logs)
    kinds: dict[str, list[str]] = {}
    for name in files:
        base = os.path.basename(name)
        kinds.setdefault(base.lstrip("0123456789"), []).append(name)
    return chance.choice(kinds[chance.choice(sorted(kinds))])


def mutate(chance: random.Random, files: dict[str, bytes]) -> Done:
    """Change the content of one or two files of `files` in place."""
    words, changed = [], []
    for _ in range(chance.choice((1, 1, 1, 1, 2))):
        name = pick(chance, files)
        data = bytearray(files[name])
        is_log = name.endswith(names.LOG)
        if is_log and chance.randrange(_BOMB_SHARE) == 0:
            mutator: Mutator = _bomb
        elif chance.random() < 0.05:
            mutator = _from_another(files)
        elif data:
            mutator = chance.choice(_mutators(name))
        else:
            mutator = _grow
        try:
            files[name] = bytes(mutator(chance, data))
        except (IndexError, ValueError, struct.error, Corrupt):
            # The first mutation may have left the file too short for the second.
            files[name] = bytes(_grow(chance, bytearray(files[name])))
        words.append(f"{mutator.__name__.lstrip('_')} in {name}")
        changed.append(name)
    return Done(", ".join(words), tuple(changed))


def _from_another(files: dict[str, bytes]) -> Mutator:
    def spliced(chance: random.Random, data: bytearray) -> bytearray:
        other = files[chance.choice(sorted(files))]
        if chance.random() < 0.3:
            return bytearray(other)
        start = chance.randrange(len(other) + 1)
        at = chance.randrange(len(data) + 1)
        piece = other[start : start + chance.choice((12, 61, 400))]
        return data[:at] + piece + data[at + chance.choice((0, len(piece))) :]

    return spliced


# Names.

# A file beside the log directory, which no access through the log directory may reach.
OUTSIDE = "outside"

_ODD_SEGMENTS = [
    "99999999999999999999.log",
    f"{2**63 - 1:020}.log",
    f"{2**63 - 2:020}.log",
    f"{2**63:020}.log",
    "-0000000000000000001.log",
    "7.log",
    "+5.log",
    "x.log",
    ".log",
    "00000000000000000100.log.swap",
    "00000000000000000000.log.cleaned",
    "00000000000000000003.log.deleted",
    "00000000000000000003.index.swap",
    "00000000000000000003.snapshot",
    f"{2**63 - 1:020}.snapshot",
    "x.snapshot",
    "00000000000000000002.123.torn",
    "x.staged",
    "0123456789abcdef-1-x.staged",
    "logfs.moved",
    "logfs.lease",
    "logfs.modes",
    "\udcff\udcfe.log",
    "new\nline.log",
]
_ODD_PARTITIONS = [
    "orders-00",
    "orders--1",
    "-0",
    "orders-2147483647",
    "orders-2147483648",
    "orders-0.11112222333344445555666677778888-delete",
    "orders-0.11112222333344445555666677778888-future",
    "orders-0.11112222333344445555666677778888-stray",
    "pay-1.11112222333344445555666677778888-future",
    "\udcff-0",
    "new\nline-0",
    "a" * 240 + "-0",
    "lost+found",
    "__cluster_metadata-0",
    "__consumer_offsets-0",
    "..-0",
]


def rename(chance: random.Random, root: Path, files: dict[str, bytes], *, device: bool) -> Done:
    """Create an odd entry or replace a file by one: a link, FIFO, directory, device, or a file of an odd name.

    Instead, a file may be removed, or made longer than the memory.
    """
    partitions = sorted({name.partition("/")[0] for name in files if "/" in name})
    place = root / chance.choice(partitions)
    kinds = ("existing", "segment", "segment", "partition", "settings", "gone", "sparse")
    kind = chance.choice(kinds)
    if kind == "sparse":
        name, size = chance.choice(sorted(files)), 2 ** chance.choice((31, 33, 40))
        os.truncate(root / name, size)
        return Done(f"{name} is {size} bytes long and sparse", (name,))
    if kind == "gone":
        name = chance.choice(sorted(files))
        (root / name).unlink()
        return Done(f"{name} is gone", (name,))
    if kind == "existing":
        name = chance.choice(sorted(files))
        path = root / name
        path.unlink()
    elif kind == "segment":
        path = place / chance.choice(_ODD_SEGMENTS)
    elif kind == "partition":
        path = root / chance.choice(_ODD_PARTITIONS)
    else:
        path = root / chance.choice(("orders@p", "logfs.mount", ".lock", "nosuch@p", "x@p.tmp"))
    return Done(_make_odd(chance, path, root, files, device=device), (str(path.name),))


def _make_odd(
    chance: random.Random, path: Path, root: Path, files: dict[str, bytes], *, device: bool
) -> str:
    """Create an odd entry of that name, and return its description."""
    kinds = ["dangling", "loop", "link", "outside", "fifo", "directory", "file", "copy", "tree"]
    kind = chance.choice([*kinds, "device"] if device else kinds)
    if os.path.lexists(path):
        return f"{path.name} is there already"
    if kind == "dangling":
        path.symlink_to("nowhere")
    elif kind == "loop":
        path.symlink_to(path.name)
    elif kind == "link":
        path.symlink_to(root / chance.choice(sorted(files)))
    elif kind == "outside":
        path.symlink_to(chance.choice((root.parent / OUTSIDE, root.parent, "/dev/zero")))
    elif kind == "fifo":
        os.mkfifo(path)
    elif kind == "directory":
        path.mkdir()
    elif kind == "device":
        os.mknod(path, stat.S_IFCHR | 0o600, os.makedev(1, 5))
    elif kind == "tree":
        path.mkdir()
        for name, data in files.items():
            if name.startswith("orders-0/"):
                (path / os.path.basename(name)).write_bytes(data)
    else:
        data = files[chance.choice(sorted(files))] if kind == "copy" else chance.randbytes(50)
        path.write_bytes(data)
    return f"{kind} {path.relative_to(root)!s}"
