"""Walk over the batches of a .log file, and continue after damage (docs/durability.md, "Recovery").

A batch that fails its checks does not end the log: the walk searches for the next batch that passes them, and the
bytes between are one `Damage`. For example, batches with the offsets 0 to 9, 10 to 19 and 20 to 29 begin at the bytes
0, 400 and 800. If a bit of the second is flipped, the walk yields the first, `Damage(400, 800, 10, 20, …)` and the
third. Recovery decides whether damage at the very end is a torn tail.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from logfs.errors import Corrupt
from logfs.format.base.lazy_numpy import np
from logfs.format.batches.batch import (
    HEADER_SIZE,
    LENGTH_OVERHEAD,
    MAGIC,
    Batch,
    Header,
    parse_header,
)
from logfs.format.batches.legacy import SMALLEST_BYTES, LegacyBatch, is_legacy, parse_message

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    Read = Callable[[int, int], memoryview]

CHUNK_BYTES = 256 * 1024
# Offsets must be below this limit, so that the offset after a batch fits in an int64, too.
_LIMIT_OFFSET = 2**63 - 1
# The first fields of a batch or of a message of an old format. `offset` is the offset of the first record of a batch,
# or of the last record of a message. `unchecked` is a field that the search for batches ignores. This is a list,
# because an `np.dtype` would import numpy (`lazy_numpy`).
_HEAD = [("offset", ">i8"), ("size", ">i4"), ("unchecked", ">i4"), ("magic", "u1")]
_HEAD_BYTES = 17


class Damage(NamedTuple):
    """Bytes [start, end) of a .log file that hold no valid batches.

    Therefore the offsets [first_offset, next_offset) cannot be read. Either range may be empty: for example, `start`
    is `end` if batches are missing and have left no bytes. `reason` says what is wrong.
    """

    start: int
    end: int
    first_offset: int
    next_offset: int
    reason: str

    def __str__(self) -> str:
        """Say what is damaged, where in the file, why, and what to do."""
        where = f"bytes {self.start} to {self.end - 1}"
        if self.end == self.start:
            where = f"byte {self.start}"
        what = f"offsets {self.first_offset} to {self.next_offset - 1} are damaged"
        if self.next_offset <= self.first_offset:
            what = f"there is damage before offset {self.first_offset}"
        return f"{what} ({where}: {self.reason}); restore the file from a copy, or continue reading after it"

    def error(self, path: object) -> DamagedRange:
        """Return the error to raise for a read of the damaged offsets. Its message names `path`, the .log file."""
        return DamagedRange(self, f"{path}: {self}")


class DamagedRange(Corrupt):
    """Raised by a read that meets the damaged offsets [first_offset, next_offset); reading can go on after them."""

    def __init__(self, damage: Damage, message: str) -> None:
        super().__init__(message)
        self.first_offset = damage.first_offset
        self.next_offset = damage.next_offset


def unreadable(position: int, batch: Batch, error: Corrupt) -> Damage:
    """Return the `Damage` for a batch at `position` whose records cannot be decoded, although its checksum is valid.

    `error` says why. The damage covers all bytes and offsets of the batch.
    """
    header = batch.header
    scanned = position, position + header.size_bytes
    return Damage(*scanned, header.base_offset, header.next_offset, str(error))


@dataclass
class Walk:
    """A walk over bytes of a .log file, which yields (position, batch) for every valid batch, and each `Damage`.

    The bytes are [start, end), read by `read(position, size)`, about `chunk_bytes` at a time. The first batch must
    have no offset below `first_offset`. If `exact` is true, a first batch that begins above `first_offset` means that
    offsets are missing. `next_offset` is the offset after the last batch, None if it is unknown, as in recovery. All
    offsets in the file are at least `base_offset`, and below `limit_offset` (the base offset of the next segment).

    With `gaps`, offsets may be missing, as after compaction; otherwise missing offsets are damage. No CRC covers a
    base offset. Therefore a batch also counts as damaged if its offsets agree neither with those of the batch before
    it nor with those of the batch after it.

    `fetch_again` is called with the range (start, end) of damaged bytes; if it returns True, the bytes have changed,
    and the walk reads the range again.
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
    base_offset: int = 0
    fetch_again: Callable[[int, int], bool] = lambda start, end: False

    def __post_init__(self) -> None:
        self.limit_offset = min(self.limit_offset, _LIMIT_OFFSET)
        # The bytes of the last read, which may hold several batches, and their position in the file.
        self._data, self._start = memoryview(b""), 0

    def __iter__(self) -> Iterator[tuple[int, Batch] | Damage]:
        position = self.start
        expected = self.first_offset
        known = self.exact
        while position < self.end:
            try:
                batch = self._valid_batch(position, expected, known)
            except Corrupt as error:
                damage = self._resynchronise(position, expected, str(error))
                if self.fetch_again(damage.start, damage.end):
                    self._data = memoryview(b"")
                    continue
                yield damage
                position, expected, known = damage.end, damage.next_offset, False
                continue
            if known and batch.header.base_offset > expected and not self.gaps:
                yield Damage(
                    position, position, expected, batch.header.base_offset, "batches are missing"
                )
            yield position, batch
            position += batch.header.size_bytes
            expected = batch.header.next_offset
            known = True
        if self.next_offset == self.limit_offset > expected and not self.gaps:
            # The next segment begins at a later offset: the end of this segment never reached the disk.
            yield Damage(self.end, self.end, expected, self.limit_offset, "the file ends too early")

    def _get(self, position: int, size: int) -> memoryview:
        """Return `size` bytes at a position, fewer if `end` or the end of the file comes first."""
        size = min(size, self.end - position)
        at = position - self._start
        if at < 0 or at + size > len(self._data):
            ahead = min(max(size, self.chunk_bytes), self.end - position)
            self._start, at = position, 0
            self._data = self.read(position, ahead)
        return self._data[at : at + size]

    def _batch(self, position: int) -> Batch:
        """Return the batch at a position. Raises `Corrupt` if there is none. The CRC of magic 2 is not checked."""
        head = self._get(position, HEADER_SIZE)
        left = self.end - position
        if is_legacy(head):
            size = _size_at(head)
            if not SMALLEST_BYTES <= size <= left:
                raise Corrupt(f"message size {size} is invalid with {left} bytes left")
            return LegacyBatch.parse(self._get(position, size))
        if len(head) < HEADER_SIZE:
            # A file that is being truncated may have fewer bytes left than when its size was read.
            raise Corrupt(f"{min(left, len(head))} bytes are too few for a batch")
        header = parse_header(head)
        if header.magic != MAGIC:
            raise Corrupt(f"magic {header.magic} is not {MAGIC}")
        if not HEADER_SIZE <= header.size_bytes <= left:
            raise Corrupt(f"batch size {header.size_bytes} is invalid with {left} bytes left")
        return Batch(header, self._get(position, header.size_bytes))

    def _base_offset(self, position: int) -> int | None:
        """Return the base offset of the batch at a position, unchecked; None if the bytes are too few for a batch."""
        head = self._get(position, HEADER_SIZE)
        if is_legacy(head):
            with suppress(Corrupt):
                return self._batch(position).header.base_offset
        return _offset_at(head) if len(head) >= HEADER_SIZE else None

    def _valid_batch(self, position: int, expected: int, known: bool) -> Batch:
        batch = self._batch(position)
        header = batch.header
        if not expected <= header.base_offset <= header.last_offset < self.limit_offset:
            raise Corrupt(
                f"offsets {header.base_offset} to {header.last_offset} are outside the range that begins at "
                f"{expected}"
            )
        batch.check()
        if not (known and header.base_offset == expected):
            self._check_successor(position, header, known)
        if header.has_holes:
            # Refuse a batch that claims offsets of the next batch: otherwise the next one would be refused.
            behind = self._plausible(position + header.size_bytes, self.base_offset)
            if behind is not None and behind.base_offset < header.next_offset:
                raise Corrupt(
                    f"offsets {header.base_offset} to {header.last_offset} overlap the next batch, which begins at "
                    f"{behind.base_offset}"
                )
        return batch

    def _check_successor(self, position: int, header: Header, known: bool) -> None:
        """Raise `Corrupt` if the offsets in `header` do not agree with the next batch.

        `header` is that of the batch at `position`. The next batch must begin at the offset after this one or, with
        `gaps`, above it. At the end of the bytes, `next_offset` stands for the base offset of the next batch.

        If the next batch is damaged, or its base offset is unknown, it proves nothing, and the batch passes. This
        does not apply if `known` is true and `gaps` is false. `known` means that the offset after the previous batch
        is known, and that this batch begins above it: offsets are missing, so the next batch must confirm this one.
        """
        after = position + header.size_bytes
        successor = self._base_offset(after) if after < self.end else None
        follows = self.next_offset if successor is None else successor
        if follows is None:
            # The offset of what follows is unknown. Accept the batch, except if offsets are missing before the batch,
            # and `gaps` does not permit this.
            leads = self.gaps or not known
        else:
            leads = follows == header.next_offset or (self.gaps and follows > header.next_offset)
        if not leads and successor is not None and (self.gaps or not known):
            # A successor that is damaged itself is no evidence against this batch.
            leads = self._plausible(after, self.base_offset) is None
        if not leads:
            raise Corrupt(
                f"offsets {header.base_offset} to {header.last_offset} fit neither neighbouring batch"
            )

    def _resynchronise(self, start: int, expected: int, reason: str) -> Damage:
        """Return the damage from `start` to the next valid batch, or to the end.

        `expected` is the first offset of the damage. `reason` says what is wrong at `start`.
        """
        inside_end, inside_offset, is_length_right = self._contents(start, expected)
        astray: set[int] = set()
        for chunk_start in range(start + 1, self.end - SMALLEST_BYTES + 1, CHUNK_BYTES):
            chunk = bytes(self._get(chunk_start, CHUNK_BYTES + _HEAD_BYTES - 1))
            for at in _candidates(chunk, expected, self.limit_offset):
                position = chunk_start + at
                found = self._plausible(position, expected)
                if found is None:
                    continue
                found_end = position + found.size_bytes
                is_inside = found_end <= inside_end and found.last_offset <= inside_offset
                if is_inside and (
                    is_length_right
                    or found.magic != MAGIC
                    or not self._leads_to_the_end(position, astray)
                ):
                    continue
                # The next batch must confirm this one: a wrong offset would make the following batches look damaged.
                with suppress(Corrupt):
                    self._check_successor(position, found, False)
                    return Damage(start, position, expected, found.base_offset, reason)
        following = self.next_offset if self.next_offset is not None else expected
        return Damage(start, self.end, expected, max(following, expected), reason)

    def _leads_to_the_end(self, position: int, astray: set[int]) -> bool:
        """Return whether valid batches follow one another from a position up to `end`.

        A record's value may contain the bytes of a batch. Such a batch does not lead to `end`: the rest of the record
        follows it. A real batch of the log leads to `end`, if nothing after it is damaged. `astray` collects the
        positions that do not lead to `end`, so that each position is examined once.
        """
        expected, is_first = self.first_offset, True
        seen: set[int] = set()
        while position < self.end and position not in astray:
            seen.add(position)
            header = self._plausible(position, expected)
            if header is None or not (is_first or self.gaps or header.base_offset == expected):
                break
            position, expected, is_first = position + header.size_bytes, header.next_offset, False
        if position < self.end:
            astray |= seen
        return position >= self.end

    def _contents(self, position: int, expected: int) -> tuple[int, int, bool]:
        """Return the probable end position of a damaged batch, its last offset, and whether its length is reliable.

        The damaged batch may contain bytes that look like a batch. The result tells the caller how far to skip these:
        up to the returned position and last offset. `expected` is the lowest offset that the damaged batch may have.
        If its header has no possible offset, returns `position` and `expected`, so that nothing is skipped.

        For example, a compressed message of an old format contains messages, and snappy and LZ4 store bytes unchanged
        that they cannot shorten. If the lengths of the outer message's fields agree with its own length, this length
        is reliable: the result has `limit_offset` as the last offset, so that every message within the length is
        skipped. Otherwise the outer message may end anywhere up to `end`. The result then has `end` and the offset of
        the outer message, which the messages in it do not exceed.
        """
        head = self._get(position, HEADER_SIZE)
        end = position + _size_at(head)
        offsets = [_offset_at(head)]
        is_length_right = end <= self.end
        if is_legacy(head):
            if position < end <= self.end:
                with suppress(Corrupt):
                    parse_message(self._get(position, end - position))
                    return end, self.limit_offset, True
            end, is_length_right = self.end, False
        elif len(head) == HEADER_SIZE:
            offsets.append(parse_header(head).last_offset)
        believable = [offset for offset in offsets if expected <= offset < self.limit_offset]
        if not believable:
            return position, expected, is_length_right
        return end, max(believable), is_length_right

    def _plausible(self, position: int, expected: int) -> Header | None:
        try:
            batch = self._batch(position)
            batch.check()
        except Corrupt:
            return None
        header = batch.header
        fits = expected <= header.base_offset <= header.last_offset < self.limit_offset
        return header if fits else None


def _offset_at(head: memoryview) -> int:
    return int.from_bytes(head[:8], "big", signed=True)


def _size_at(head: memoryview) -> int:
    return LENGTH_OVERHEAD + int.from_bytes(head[8:12], "big", signed=True)


def _candidates(chunk: bytes, expected: int, limit_offset: int) -> Sequence[int]:
    """Return the positions in a chunk at which the magic, size and offset may be those of a batch of any format.

    An offset may be that of a batch if it is in [expected, limit_offset).
    """
    if len(chunk) < _HEAD_BYTES or not chunk.strip(b"\0"):
        # Zeros contain no batch. They are skipped quickly, because a preallocated file may have very many at its end.
        return []
    # A head may begin at every byte, so the items of this array overlap.
    heads = np.ndarray(len(chunk) - _HEAD_BYTES + 1, _HEAD, chunk, strides=(1,))
    at = np.flatnonzero(heads["magic"] <= MAGIC)
    at = at[heads["size"][at] >= SMALLEST_BYTES - LENGTH_OVERHEAD]
    offsets = heads["offset"][at]
    found: list[int] = at[(offsets >= expected) & (offsets < limit_offset)].tolist()
    return found
