"""Checks that refuse invalid files of a partition directory before they are read."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from logfs.errors import Corrupt, InvalidName
from logfs.format.base import names
from logfs.log.disk.disk import Gone
from logfs.log.segment.batch_iterator import Damage
from logfs.log.segment.segment import Segment

if TYPE_CHECKING:
    from pathlib import Path

    from logfs.log.disk.disk import Disk

_SWAP = names.LOG + names.SWAP


def check_files(disk: Disk, directory: Path) -> None:
    """Refuse files that have the name of a segment's file or of a producer snapshot, but cannot be such a file.

    Raises `InvalidName` for a symlink, a FIFO or a directory, and for a `.log`, `.log.swap` or `.cleaned` file whose
    stem is not an offset. Raises `Corrupt` for a `.log` or `.log.swap` file that is longer than a segment may be, and
    for a `.log.swap` file that would replace valid records although compaction cannot have written it. The content
    and the size of `.log.swap` files that recovery would remove are not checked.
    """
    found: set[str] = set()
    unfinished: list[int] = []
    for entry in disk.scan(directory):
        if entry.name.endswith(names.CLEANED):
            unfinished.append(names.parse_stem(entry.name))
        if entry.name.endswith((*names.SEGMENT_FILES, names.SNAPSHOT, _SWAP)):
            if not entry.is_file:
                raise InvalidName(
                    f"{directory / entry.name}: is not a regular file; move it out of the partition"
                )
            found.add(entry.name)
    bases = {names.parse_stem(name) for name in found if name.endswith(names.LOG)}
    # A file that another process removes meanwhile needs no check.
    for name in found:
        with suppress(FileNotFoundError, Gone):
            if name.endswith(names.LOG):
                _check_size(disk, directory / name)
            elif name.endswith(_SWAP) and names.parse_stem(name) < min(
                unfinished, default=names.INT64_MAX
            ):
                # Check only the swap files whose base offsets are below those of all .cleaned files. Compaction has
                # not committed the other swap files, so recovery removes them (kafka-storage 5.2).
                _check_swap(disk, directory, names.parse_stem(name), bases)


def _check_size(disk: Disk, path: Path) -> None:
    size = disk.stat(path).size_bytes
    if size > names.MAX_SEGMENT_BYTES:
        raise Corrupt(
            f"{path}: is {size} bytes long, but a segment has at most {names.MAX_SEGMENT_BYTES}; move it out of "
            "the partition, or cut off the bytes that do not belong to it"
        )


def _check_swap(disk: Disk, directory: Path, base_offset: int, bases: set[int]) -> None:
    """Raise `Corrupt` for a .log.swap file that compaction cannot have written, and that would replace good records.

    `base_offset` is that of the swap file, and `bases` are those of the .log files in the directory. A swap file from
    compaction begins with a whole batch, and the segment before it has only offsets below `base_offset`. Both still
    hold after a crash, because compaction fsyncs the swap file and that segment before the swap file gets its name
    (kafka-storage 8.8). Also raises `Corrupt` for a swap file that is longer than a segment may be.
    """
    swap = Segment(disk, directory, base_offset, names.SWAP)
    _check_size(disk, swap.path)
    first = next(swap.walk(is_end_known=False), None)
    hides = isinstance(first, Damage) and base_offset in bases
    before = max((base for base in bases if base < base_offset), default=None)
    if before is not None:
        for found in Segment(disk, directory, before).walk(is_end_known=False):
            hides |= not isinstance(found, Damage) and found[1].header.last_offset >= base_offset
    if hides:
        raise Corrupt(
            f"{swap.path}: compaction did not write this file, and it would replace good records; move it out of the "
            "partition"
        )
