"""Small JSON files that contain their own inode number, which shows whether a file is a copy (as by `cp -a`)."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple

from logfs.log.disk.disk import TEMPORARY

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from logfs.log.disk.disk import Disk


class Mark(NamedTuple):
    """The object in a file (empty if it is damaged), and whether the file is a copy of the one that was written."""

    told: Mapping[str, Any]
    is_copy: bool


def read_mark(disk: Disk, path: Path) -> Mark | None:
    """Return the mark at `path`, or None if there is no file. A damaged mark is a copy. Raises `OSError`."""
    try:
        data, inode = disk.read_file(path), disk.stat(path).identity
    except (FileNotFoundError, NotADirectoryError):
        return None
    told = parse_object(data)
    return Mark(told, told.get("inode") != inode)


def parse_object(data: bytes) -> dict[str, Any]:
    """Return the JSON object in `data`; an empty object if `data` is damaged or something else."""
    try:
        told = json.loads(data)
    except ValueError:
        return {}
    return told if isinstance(told, dict) else {}


def write_mark(disk: Disk, path: Path, told: Mapping[str, Any]) -> None:
    """Replace the mark at `path` atomically and durably; the inode number of the new file is added to `told`."""
    with disk.replacing(path, path.with_name(path.name + TEMPORARY)) as file:
        whole = {**told, "inode": disk.stat_file(file).identity}
        disk.write(file, 0, json.dumps(whole).encode() + b"\n")
        disk.sync(file)
    disk.sync_directory(path.parent)
