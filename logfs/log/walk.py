"""Walking the batches of a .log file, past damage (reliability rules of docs/durability.md).

A batch that fails its checks does not end the log: the walk looks for the next batch that passes them, and what
lies between is one `Damage`. Whether damage at the very end is a torn tail is for recovery to say.
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, NamedTuple

from logfs.errors import Corrupt, Unsupported
from logfs.format.batch import HEADER_SIZE, MAGIC, Batch, Header, parse_header

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Read = Callable[[int, int], memoryview]

CHUNK_BYTES = 256 * 1024
_MAGIC_AT = 16
_MAX_BATCH_BYTES = 2**31 - 1


class Damage(NamedTuple):
    """Bytes [start, end) of a .log file that are no valid batches, where offsets [first, next) belong."""

    start: int
    end: int
    first_offset: int
    next_offset: int
    reason: str

    def error(self, path: object) -> DamagedRange:
        """What a reader of these offsets is told."""
        return DamagedRange(
            self,
            f"{path}: offsets {self.first_offset} to {self.next_offset - 1} are damaged (bytes {self.start} "
            f"to {self.end - 1}: {self.reason}); restore the file from a copy, or read on behind them",
        )


class DamagedRange(Corrupt):
    """Offsets [first_offset, next_offset) of a partition cannot be read; what follows them can."""

    def __init__(self, damage: Damage, message: str) -> None:
        super().__init__(message)
        self.first_offset = damage.first_offset
        self.next_offset = damage.next_offset


class Walk(NamedTuple):
    """What to walk: bytes [start, end) that `read(position, size)` gives, and which offsets may lie there.

    `first_offset` is the lowest offset the first batch may have; it is exact if `exact`. `next_offset` is the
    one behind the last batch, None where nobody knows it (a tail under recovery). `limit_offset` bounds every
    offset (the next segment's base). With `gaps`, offsets may be missing between batches, as compaction leaves
    them; otherwise a batch whose offsets fit neither neighbour has a damaged header (the CRC does not cover it).
    """

    read: Read
    start: int
    end: int
    first_offset: int
    limit_offset: int
    next_offset: int | None = None
    exact: bool = False
    gaps: bool = True
    chunk_bytes: int = CHUNK_BYTES


def walk(what: Walk) -> Iterator[tuple[int, Batch] | Damage]:
    """Every valid batch with its position, in order, and each stretch of damage between them.

    Raises `Unsupported` at a valid batch of magic 0 or 1.
    """
    window = _Window(what.read, what.end, what.chunk_bytes)
    position = what.start
    expected = what.first_offset
    known = what.exact
    while position < what.end:
        try:
            batch = _valid_batch(window, position, expected, what, known)
        except Corrupt as error:
            damage = _resynchronise(window, position, expected, what, str(error))
            yield damage
            position, expected, known = damage.end, damage.next_offset, False
            continue
        yield position, batch
        position += batch.header.size_bytes
        expected = batch.header.next_offset
        known = True
    if what.next_offset == what.limit_offset > expected and not what.gaps:
        # The next segment begins further on: the end of this one never reached the disk.
        yield Damage(what.end, what.end, expected, what.limit_offset, "the file ends too early")


class _Window:
    """A file read ahead by chunks, so that neighbouring batches cost one read."""

    def __init__(self, read: Read, end: int, chunk_bytes: int) -> None:
        self.end = end
        self._read = read
        self._chunk_bytes = chunk_bytes
        self._start = 0
        self._data = memoryview(b"")

    def get(self, position: int, size: int) -> memoryview:
        """Up to `size` bytes at a position, fewer only at the end."""
        size = min(size, self.end - position)
        at = position - self._start
        if at < 0 or at + size > len(self._data):
            ahead = min(max(size, self._chunk_bytes), self.end - position)
            self._start, at = position, 0
            self._data = self._read(position, ahead)
        return self._data[at : at + size]

    def header(self, position: int) -> Header | None:
        """The header at a position, None if fewer than its 61 bytes are left."""
        data = self.get(position, HEADER_SIZE)
        return parse_header(data) if len(data) == HEADER_SIZE else None


def _valid_batch(window: _Window, position: int, expected: int, what: Walk, known: bool) -> Batch:
    # A message of an old format may be shorter than a header, and has its magic at the same place.
    if bytes(window.get(position, HEADER_SIZE)[_MAGIC_AT : _MAGIC_AT + 1]) in (b"\0", b"\1"):
        _refuse_legacy(window, position)
    header = window.header(position)
    if header is None:
        raise Corrupt(f"{window.end - position} bytes are too few for a batch")
    if header.magic != MAGIC:
        raise Corrupt(f"magic {header.magic} is not {MAGIC}")
    if not HEADER_SIZE <= header.size_bytes <= window.end - position:
        raise Corrupt(f"a batch of {header.size_bytes} bytes, with {window.end - position} left")
    if not expected <= header.base_offset <= header.last_offset < what.limit_offset:
        raise Corrupt(
            f"offsets {header.base_offset} to {header.last_offset}, not from {expected} on"
        )
    batch = Batch(header, window.get(position, header.size_bytes))
    batch.check()
    if not (known and header.base_offset == expected):
        _check_successor(window, position, header, what, known)
    return batch


def _check_successor(
    window: _Window, position: int, header: Header, what: Walk, known: bool
) -> None:
    """A batch that does not follow its forerunner must at least lead to its successor."""
    after = position + header.size_bytes
    successor = window.header(after) if after < window.end else None
    follows = successor.base_offset if successor else what.next_offset
    if follows is None:
        # Nothing is known of either side: only a lone batch, or one of a log with gaps, can be right.
        leads = what.gaps or not known
    else:
        leads = follows == header.next_offset or (what.gaps and follows > header.next_offset)
    if not leads and successor and not known:
        # A successor that is damaged itself says nothing against this one.
        leads = _plausible(window, after, what.first_offset, what) is None
    if not leads:
        raise Corrupt(f"offsets {header.base_offset} to {header.last_offset} fit neither neighbour")


def _refuse_legacy(window: _Window, position: int) -> None:
    """Tell a whole message of an old format from damage, which must never be mistaken for it."""
    data = window.get(position, 12)
    size = int.from_bytes(data[8:12], "big", signed=True)
    if 14 <= size <= window.end - position - 12:
        message = window.get(position + 12, size)
        if zlib.crc32(message[4:]) == int.from_bytes(message[:4], "big"):
            raise Unsupported(
                f"byte {position} holds a message of magic {message[4]}, and this release reads magic 2 only"
            )


def _resynchronise(window: _Window, start: int, expected: int, what: Walk, reason: str) -> Damage:
    """The damage from `start` to the next valid batch, or to the end."""
    chunk_start = start + 1
    while chunk_start + HEADER_SIZE <= window.end:
        chunk = bytes(window.get(chunk_start, CHUNK_BYTES + HEADER_SIZE))
        at = chunk.find(MAGIC, _MAGIC_AT)
        while 0 <= at < len(chunk):
            position = chunk_start + at - _MAGIC_AT
            if position >= chunk_start + CHUNK_BYTES:
                break
            found = _plausible(window, position, expected, what)
            if found is not None:
                return Damage(start, position, expected, found.base_offset, reason)
            at = chunk.find(MAGIC, at + 1)
        chunk_start += CHUNK_BYTES
    following = what.next_offset if what.next_offset is not None else expected
    return Damage(start, window.end, expected, max(following, expected), reason)


def _plausible(window: _Window, position: int, expected: int, what: Walk) -> Header | None:
    header = window.header(position)
    if (
        header is None
        or header.magic != MAGIC
        or not HEADER_SIZE <= header.size_bytes <= window.end - position
        or not expected <= header.base_offset <= header.last_offset < what.limit_offset
    ):
        return None
    batch = Batch(header, window.get(position, header.size_bytes))
    return header if batch.is_valid else None
