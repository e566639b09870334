"""What the kernel's mount table says of a path, without asking the mount itself."""

from __future__ import annotations

import enum
import os
from pathlib import Path

_TABLE = Path("/proc/self/mountinfo")


class Mounted(enum.Enum):
    """Whether a FUSE filesystem is mounted on a path, and whether its daemon lives."""

    NOTHING = "nothing"
    LIVE = "live"
    DEAD = "dead"


def mounted_at(mountpoint: Path) -> Mounted:
    """What is mounted exactly here; a mount of another kind counts as nothing, for FUSE may go on top of it."""
    if str(mountpoint) not in fuse_mounts():
        return Mounted.NOTHING
    try:
        # Not stat, which the kernel may answer from what it remembers.
        os.statvfs(mountpoint)
    except OSError:
        return Mounted.DEAD
    return Mounted.LIVE


def fuse_mounts() -> dict[str, str]:
    """The FUSE mounts by mountpoint, each with its source; of several on one another, the topmost."""
    mounts: dict[str, str] = {}
    for line in _TABLE.read_text().splitlines():
        before, _, after = line.partition(" - ")
        kind, source = after.split(" ")[:2]
        path = _unescape(before.split(" ")[4])
        if kind == "fuse" or kind.startswith("fuse."):
            mounts[path] = source
        else:
            mounts.pop(path, None)
    return mounts


def _unescape(text: str) -> str:
    """The table writes blanks, tabs, newlines and backslashes as octal."""
    return text.encode().decode("unicode_escape").encode("latin-1").decode("utf-8", "replace")
