"""The text index of a segment: it maps bytes of the segment's text views to positions in its .log file.

Kafka has no such index.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from typing import TYPE_CHECKING, NamedTuple

from logfs.errors import Corrupt
from logfs.format.base.crc import crc32c
from logfs.format.text.rendering import NO_TEXT, TextSize, View
from logfs.log.segment.index import MAX_RELATIVE_OFFSET, SparseIndex

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path

    from logfs.log.disk.disk import Disk, File

# How many entries `last_before` searches: at the default index.interval.bytes (4 KiB), they cover 1 MiB of log, which
# is the most that a text view renders at once.
_NEAR = 256


class TextEntry(NamedTuple):
    """A text index entry for byte `position` of the .log file, where a batch begins or the file ends.

    The batches before `position` have offsets below `offset`, and `before` is the size of their text.
    """

    offset: int
    position: int
    before: TextSize


class TextIndex(SparseIndex):
    """The sparse index that maps bytes of a segment's text views to positions in its .log file. Kafka has none.

    An entry stands for the start of a batch. The closing entry, which is added when the segment is sealed, stands for
    the end of the .log file, so that the text size of a sealed segment is known without reading the log. An entry has
    32 bytes, big-endian: the int32 relative offset of the last record before the position, the int32 position, and
    the size of the segment's text before it (int32 number of records, int64 bytes of the lines view, int64 bytes of
    the envelopes view). The last field is the uint32 CRC-32C of the segment's base offset (int64) and the other
    fields, so an entry of another segment is rejected.
    """

    entry = struct.Struct(">iiiqqI")
    first_field = struct.Struct(">i")
    _facts = struct.Struct(">iiiqq")
    # Called for `count` damaged entries between two valid ones (`before`, `after`): returns new entries made from the
    # log. The result is empty or None if they cannot be made.
    recreate: Callable[[TextEntry, TextEntry | None, int], Sequence[TextEntry] | None] = (
        staticmethod(lambda before, after, count: None)
    )

    def __init__(self, disk: Disk, path: Path, base_offset: int) -> None:
        super().__init__(disk, path, base_offset)
        self._seed = crc32c(base_offset.to_bytes(8, "big"))
        # The rebuilt fields of damaged entries. A key is the entry's number followed by its damaged fields.
        self._remade: dict[tuple[int, ...], tuple[int, ...]] = {}

    def check_entries(self, entries: bytes) -> int | None:
        """Return the number of the first damaged entry in `entries`, bytes of the file; None if none is damaged."""
        size, width, view = self._facts.size, self.entry.size, memoryview(entries)
        for start in range(0, len(entries), width):
            end = start + size
            if view[end : start + width] != crc32c(view[start:end], self._seed).to_bytes(4, "big"):
                return start // width
        return None

    def _crc(self, facts: Iterable[int]) -> int:
        return crc32c(self._facts.pack(*facts), self._seed)

    def _get(self, number: int) -> tuple[int, ...]:
        *facts, crc = fields = super()._get(number)
        if crc == self._crc(facts):
            return tuple(facts)
        return self._remade.get((number, *fields)) or self._recreate(number)

    def _recreate(self, number: int) -> tuple[int, ...]:
        """Rebuild a damaged entry and its damaged neighbours from the log, and return the fields of the entry.

        Reads the log between the nearest valid entries, or up to the segment's end if no valid entry follows. The
        index file is not changed: `logfs check` reports the damage, and `logfs reindex` repairs it. Raises `Corrupt`
        if the entries cannot be made from the log.
        """
        first, behind = number, number + 1
        while first and not self._is_right(first - 1):
            first -= 1
        while behind < len(self) and not self._is_right(behind):
            behind += 1
        after = self[behind] if behind < len(self) else None
        entries = self.recreate(self[first - 1], after, behind - first)
        if not entries:
            file = self._file
            if file is not None and self._disk.fetch_again(file, 0, self._disk.size(file)):
                # The index is in a bucket, and only this computer's copy of the file was damaged.
                self.read_again()
                return self._get(number)
            raise Corrupt(f"{self.path}: entry {number} is damaged; run 'logfs reindex'")
        recreated = {
            at: (entry.offset - 1 - self.base_offset, entry.position, *entry.before)
            for at, entry in enumerate(entries, first)
        }
        self._remade.update(
            ((at, *super(TextIndex, self)._get(at)), recreated[at]) for at in recreated
        )
        return recreated[number]

    @property
    def is_end_right(self) -> bool:
        """Whether the last entry in the file is valid, or the file has no entries."""
        return not len(self) or self._is_right(len(self) - 1)

    def _is_right(self, number: int) -> bool:
        *facts, crc = super()._get(number)
        return crc == self._crc(facts)

    def _written(self, file: File) -> int:
        """Return the number of entries in a file. A damaged last entry is not counted: it may be half written."""
        count = super()._written(file)
        width = self.entry.size
        last = self._disk.read(file, max(count - 1, 0) * width, width) if count else b""
        return count if self.check_entries(bytes(last)) is None else count - 1

    def packed(self, offset: int, position: int, before: Sequence[int]) -> bytes:
        """Return the bytes of an entry for the byte `position` of the .log file.

        `offset` is the offset after the batches before `position`, and `before` has the fields of their `TextSize`.
        """
        # `offset` may be the base offset of the next segment. If that segment is a stray file, `offset` may be too
        # far above this segment's base offset for an int32, so limit it.
        offset = min(offset, self.base_offset + MAX_RELATIVE_OFFSET + 1)
        # -1 means that no record lies before the entry: there may be only damaged bytes, which hold no offset.
        last = self._relative(offset - 1) if offset > self.base_offset else -1
        facts = self._facts.pack(last, position, *before)
        return facts + crc32c(facts, self._seed).to_bytes(4, "big")

    def append(self, offset: int, position: int, before: TextSize) -> None:
        """Add an entry for the byte `position` of the .log file, unless the last entry is at or after it.

        `offset` is the offset after the batches before `position`, and `before` is their text size. Raises
        `ValueError` if the index is full.
        """
        if position > self.last.position:
            self.extend(self.packed(offset, position, before))

    def append_all(self, entries: Iterable[tuple[int, int, TextSize]]) -> None:
        """Add an entry for each (offset, position, text size before the position); `entries` must be ascending.

        Entries at or before the position of the last entry in the index are left out.
        """
        last = self.last.position
        self.extend(b"".join([self.packed(*each) for each in entries if each[1] > last]))

    @property
    def last(self) -> TextEntry:
        """The last entry; if there is none, one for the start of the segment."""
        return self[len(self) - 1]

    def number_of_position(self, position: int) -> int:
        """Return the number of the last entry at or before a position of the .log file; -1 if there is none."""
        return bisect_right(range(len(self)), position, key=lambda i: self._get(i)[1]) - 1

    def last_before(self, position: int, number: int) -> int:
        """Search the 256 entries from `number` on; return the number of the last one at or before `position`.

        `position` is a position in the .log file. `number` is at most the number of entries in the index. If all of
        the 256 entries lie after `position`, the result is `number - 1`. That entry may lie after `position`, too.
        """
        high = min(number + _NEAR, len(self))
        return (
            bisect_right(range(high), position, lo=min(number, high), key=lambda i: self._get(i)[1])
            - 1
        )

    def number_of_offset(self, offset: int) -> int:
        """Return the number of the last entry at or before an offset; -1 if there is none."""
        relative = offset - 1 - self.base_offset
        return bisect_right(range(len(self)), relative, key=lambda i: self._get(i)[0]) - 1

    def around(self, offset: int) -> tuple[int, int, int] | None:
        """Return (start offset, position, next position) for a search for `offset`; None if the index is empty.

        The start offset and the position are those of the last entry at or before `offset`, or of the segment's
        start. The next position is that of the entry after it, -1 if there is none.
        """
        wanted = offset - 1 - self.base_offset
        # This search does not check the CRC of the entries that it compares; `_around` checks the two that are used.
        number, _ = self._last_up_to(wanted)
        if not len(self):
            return None
        found = self._around(number)
        if not found[0] <= wanted < found[2]:
            found = self._around(self.number_of_offset(offset))
        start, position, _, after = found
        return self.base_offset + start + 1, position, after

    def _around(self, number: int) -> tuple[int, int, int, int]:
        """Return the relative offset and the position of entry `number`, then those of the next entry.

        If `number` is -1, the first two are those of the segment's start. If there is no next entry, the last two are
        an offset above all offsets of the segment and the position -1.
        """
        start, position = self._get(number)[:2] if number >= 0 else (-1, 0)
        end, after = MAX_RELATIVE_OFFSET + 1, -1
        if number + 1 < len(self):
            end, after = self._get(number + 1)[:2]
        return start, position, end, after

    def number_of_text(self, at: int, view: View, prefix_bytes: int) -> int:
        """Return the number of the last entry at or before byte `at` of a view; -1 if there is none.

        `at` counts from the start of the segment's text. `prefix_bytes` is the size of the prefix of each JSON
        envelope, which the sizes in the entries exclude (`TextSize.size`).
        """

        def size_before(number: int) -> int:
            return TextSize._make(self._get(number)[2:]).size(view, prefix_bytes)

        return bisect_right(range(len(self)), at, key=size_before) - 1

    def number_of_record(self, record: int) -> int:
        """Return the number of the last entry with at most `record` records before it; -1 if there is none."""
        return bisect_right(range(len(self)), record, key=lambda i: self._get(i)[2]) - 1

    def __getitem__(self, number: int) -> TextEntry:
        if number < 0:
            return TextEntry(self.base_offset, 0, NO_TEXT)
        relative, position, *before = self._get(number)
        return TextEntry(self.base_offset + relative + 1, position, TextSize._make(before))

    def truncate(self, position: int) -> None:
        """Drop the entries after a position of the .log file."""
        self.keep(self.number_of_position(position) + 1)

    def __iter__(self) -> Iterator[TextEntry]:
        return (self[number] for number in range(len(self)))
