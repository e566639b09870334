"""The files of a partition directory that somebody else is changing: which segments they make at this moment.

A name may lead to another file at the next look, so a file is known by its inode number, and is found again under
whatever name it has by then: a compacted segment arrives as `.swap` and loses that suffix, and one that leaves is
renamed to `.deleted` before it is removed (kafka-storage 7, 8.8).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from logfs.format import names
from logfs.log.files import Gone

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from logfs.log.files import Disk, File

    # Of a segment's files, by suffix (".log", ".index"), the inode numbers; and of all segments, by base offset.
    Files = Mapping[str, int]
    Listing = dict[int, dict[str, int]]

_NAME = re.compile(
    r"([0-9]{20})(\.log|\.index|\.timeindex|\.txnindex|\.textindex)(\.swap|\.cleaned)?"
)
# More looks than renames can come between, unless somebody renames without end.
_LOOKS = 10


def list_segments(disk: Disk, directory: Path, end_of: Callable[[int, Files], int]) -> Listing:
    """The segments in order of their base offsets, as they would be after a crash at this moment.

    So a swap that is under way (kafka-storage 8.8) is seen as not begun or as done, never as half of it. `end_of`
    tells the offset behind the last batch of a segment that is being swapped in. Raises `OSError`, and what
    `end_of` raises.
    """
    plain: Listing = {}
    swapped: Listing = {}
    cleaned: list[int] = []
    for name, inode in _names(disk, directory).items():
        match = _NAME.fullmatch(name)
        assert match is not None
        base_offset = int(match[1])
        if match[3] == names.CLEANED:
            cleaned.append(base_offset)
        else:
            kept = swapped if match[3] else plain
            kept.setdefault(base_offset, {})[match[2]] = inode
    if cleaned:
        swapped = {base: files for base, files in swapped.items() if base < min(cleaned)}
    ends = {base: end_of(base, files) for base, files in swapped.items() if names.LOG in files}
    if ends:
        # One that nothing is left of still takes its own place.
        low, high = min(ends), max(max(end, base + 1) for base, end in ends.items())
        plain = {base: files for base, files in plain.items() if not low <= base < high}
    for base, files in swapped.items():
        plain.setdefault(base, {}).update(files)
    return {base: files for base, files in sorted(plain.items()) if names.LOG in files}


def _names(disk: Disk, directory: Path) -> dict[str, int]:
    """The names of segments' files with their inode numbers.

    A rename during the look may hide a file, or show it twice: then looked at until two looks agree.
    """
    before = disk.stat(directory)
    seen = _look(disk, directory)
    if disk.is_settled(before) and disk.stat(directory).st_mtime_ns == before.st_mtime_ns:
        return seen
    for _ in range(_LOOKS):
        again = _look(disk, directory)
        if again == seen:
            break
        seen = again
    return seen


def _look(disk: Disk, directory: Path) -> dict[str, int]:
    return {
        entry.name: entry.inode()
        for entry in disk.scan(directory)
        if _NAME.fullmatch(entry.name) and entry.is_file(follow_symlinks=False)
    }


def open_by_inode(disk: Disk, path: Path, inode: int | None) -> File:
    """Open a segment's file, wherever a swap or a deletion has moved it by now; None stands for any inode.

    `Gone` if it is none of these any more.
    """
    for suffix in ("", names.SWAP, names.DELETED, ""):
        try:
            file = disk.open(path.with_name(path.name + suffix))
        except FileNotFoundError:
            continue
        if inode is None or disk.stat_file(file).st_ino == inode:
            return file
    raise Gone(f"{path}: has left the log since the directory was looked at; read again")
