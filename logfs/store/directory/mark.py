"""Marks: small JSON files that contain their own inode number, which is wrong in a copy of the file (`cp -a`)."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple

from logfs.log.disk.disk import TEMPORARY

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from logfs.log.disk.disk import Disk


# The mark in the directory of a deleted partition, which tells what is needed to restore it.
DELETION = "deletion.json"


class Mark(NamedTuple):
    """The JSON object in a mark file (empty if the file is damaged), and whether the file is a copy of another."""

    told: Mapping[str, Any]
    is_copy: bool


def read_mark(disk: Disk, path: Path) -> Mark | None:
    """Return the mark at `path`, or None if there is no file. Raises `OSError`.

    For a damaged file, which has no valid inode number, `is_copy` is True.
    """
    try:
        data, inode = disk.read_file(path), disk.stat(path).identity
    except (FileNotFoundError, NotADirectoryError):
        return None
    told = parse_object(data)
    return Mark(told, told.get("inode") != inode)


def parse_object(data: bytes) -> dict[str, Any]:
    """Return the JSON object in `data`; an empty one if `data` is not JSON, or not a JSON object."""
    try:
        told = json.loads(data)
    except ValueError:
        return {}
    return told if isinstance(told, dict) else {}


def write_mark(disk: Disk, path: Path, told: Mapping[str, Any]) -> None:
    """Replace the mark at `path`, atomically and durably.

    The new file has the JSON object `told`, with its own inode number in the field `inode`.
    """
    with disk.replacing(path, path.with_name(path.name + TEMPORARY)) as file:
        whole = {**told, "inode": disk.stat_file(file).identity}
        disk.write(file, 0, json.dumps(whole).encode() + b"\n")
        disk.sync(file)
    disk.sync_directory(path.parent)
