"""The segments in a partition directory that another process is changing.

The other process may rename or replace a file at any time. A file is therefore identified by its inode number
(`identity`). To open a file, each name that the file may have by now is tried. The names of a compacted segment's
files end in `.swap` at first, and then lose this suffix. If a segment leaves the log, its files get names that end in
`.deleted` before they are removed (kafka-storage 7, 8.8).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from logfs.format.base import names
from logfs.log.disk.disk import Gone

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from logfs.log.disk.disk import Disk, File

    # `Files` maps the suffixes of a segment's files (".log", ".index") to the identities of the files. `Listing` maps
    # the base offsets of all segments to such maps.
    Files = Mapping[str, int]
    Listing = dict[int, dict[str, int]]

_NAME = re.compile(
    r"([0-9]{20})(\.log|\.index|\.timeindex|\.txnindex|\.textindex)(\.swap|\.cleaned)?"
)
# The limit of repeated scans. It is reached only if a process renames files without end.
_SCANS = 10


def list_segments(disk: Disk, directory: Path, end_of: Callable[[int, Files], int]) -> Listing:
    """Return the identities of the segments' files, by base offset (ascending) and suffix (such as ".log").

    The segments are those that recovery would find after a crash at this moment. If a compacted segment is replacing
    other segments (a swap, kafka-storage 8.8), either the old segments or the new one are listed, never parts of
    both. `end_of` takes the base offset and the files of such a new segment, and must return the offset after its
    last batch. Raises `OSError`, the errors of `end_of`, and `Gone` if files are renamed faster than the
    directory can be listed.
    """
    plain: Listing = {}
    swapped: Listing = {}
    cleaned: list[int] = []
    for name, identity in _names(disk, directory).items():
        match = _NAME.fullmatch(name)
        assert match is not None
        base_offset = int(match[1])
        if match[3] == names.CLEANED:
            cleaned.append(base_offset)
        else:
            kept = swapped if match[3] else plain
            kept.setdefault(base_offset, {})[match[2]] = identity
    if cleaned:
        swapped = {base: files for base, files in swapped.items() if base < min(cleaned)}
    ends = {base: end_of(base, files) for base, files in swapped.items() if names.LOG in files}
    if ends:
        # A new segment without batches still replaces the old segment that has the same base offset.
        low, high = min(ends), max(max(end, base + 1) for base, end in ends.items())
        plain = {base: files for base, files in plain.items() if not low <= base < high}
    for base, files in swapped.items():
        plain.setdefault(base, {}).update(files)
    return {base: files for base, files in sorted(plain.items()) if names.LOG in files}


def _names(disk: Disk, directory: Path) -> dict[str, int]:
    """Return the inode number of each segment file, by name.

    A rename during a scan may hide a file, or show it twice. If the directory may have changed during the scan, scan
    again until two scans agree. Raises `Gone` if none of ten more scans agrees with the one before it.
    """
    before, is_settled = disk.stat_settled(directory)
    seen = _look(disk, directory)
    if is_settled and disk.stat(directory).mtime_ns == before.mtime_ns:
        return seen
    for _ in range(_SCANS):
        again = _look(disk, directory)
        if again == seen:
            return seen
        seen = again
    # Use none of the scans: if one has missed a file, the log would seem to begin or to end elsewhere.
    raise Gone(f"{directory}: its files are renamed faster than they can be listed; read again")


def _look(disk: Disk, directory: Path) -> dict[str, int]:
    return {
        entry.name: entry.identity
        for entry in disk.scan(directory)
        if _NAME.fullmatch(entry.name) and entry.is_file
    }


def log_bytes(disk: Disk, directory: Path) -> int:
    """Return the total size (bytes) of a directory's .log files.

    Raises `FileNotFoundError` if one of them is removed during the call.
    """
    logs = [entry.name for entry in disk.scan(directory) if entry.name.endswith(names.LOG)]
    return sum(disk.stat(directory / name).size_bytes for name in logs)


def open_by_identity(
    disk: Disk, path: Path, identity: int | None, *, may_have_left: bool = True
) -> File:
    """Open the file that was listed as `path` with `identity`, even if compaction has renamed it since.

    The file is searched at `path`, at `path` with the suffix `.swap` and, with `may_have_left`, at `path` with the
    suffix `.deleted`. If `identity` is None, the first file that exists is opened. Raises `Gone` if there is no file,
    or if no file has this identity.
    """
    # The last try uses `path` again, because the file may have been renamed to `path` after the first try.
    for suffix in ("", names.SWAP, *([names.DELETED] if may_have_left else []), ""):
        try:
            file = disk.open(path.with_name(path.name + suffix) if suffix else path)
        except FileNotFoundError:
            continue
        if identity is None or disk.stat_file(file).identity == identity:
            return file
    raise Gone(f"{path}: has left the log since the directory was listed; read again")
