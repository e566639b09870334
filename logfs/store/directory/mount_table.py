"""The mounts of logfs in the kernel's mount table. Reading the table accesses no mount, so none can block it."""

from __future__ import annotations

import enum
import errno
import os
import re
from pathlib import Path
from typing import NamedTuple

from logfs.deadline import within

# The type of logfs in the mount table: `fuse`, and the subtype `logfs`.
FILESYSTEM_TYPE = "fuse.logfs"
# The type of a write-behind mount, which collects appends for a logfs mount. Its source is that mount's mountpoint.
WRITE_BEHIND_TYPE = "fuse.logfs-write-behind"
_TYPES = (FILESYSTEM_TYPE, WRITE_BEHIND_TYPE)
# The errnos with which each access to a mount fails after its daemon has died.
DEAD_ERRORS = frozenset({errno.ENOTCONN, errno.ECONNABORTED})
# How long to wait until a mount answers. A daemon that is stopped, or that waits for its disk, does not answer.
PATIENCE_SECONDS = 10.0

_TABLE = Path("/proc/self/mountinfo")
_ESCAPED = re.compile(rb"\\([0-7]{3})")


class MountState(enum.Enum):
    """What is mounted on a path: no logfs, a logfs whose daemon is alive, or one whose daemon has died."""

    NOTHING = "nothing"
    LIVE = "live"
    DEAD = "dead"


class MountEntry(NamedTuple):
    """One line of the mount table.

    `number` is the kernel's mount id. `root` is the path, in the filesystem, of the directory that is mounted: "/"
    except for some bind mounts. `kind` is the filesystem type, `source` what was mounted (for logfs its log
    directories), `device` the `st_dev` of the files in the mount. `flags` are the options of this mount, `options`
    those of the filesystem.
    """

    number: int
    mountpoint: str
    root: str
    kind: str
    source: str
    device: int
    flags: frozenset[str]
    options: frozenset[str]


def mounts(table: Path = _TABLE) -> list[MountEntry]:
    """Return all mounts in the `mountinfo` file `table`, in the order of its lines; none if it cannot be read."""
    return [_parse(line) for line in _lines(table)]


def logfs_mounts() -> dict[str, MountEntry]:
    """Return all mounts of logfs by mountpoint.

    They include write-behind mounts, which collect appends for a mount, and bind mounts of directories in a mount.
    Where several filesystems are mounted on the same mountpoint, only the topmost counts.
    """
    lines = _lines(_TABLE)
    # Parse no line if there is no mount of logfs. This is the common case, and the function is called often.
    if not any(FILESYSTEM_TYPE.encode() in line for line in lines):
        return {}
    topmost = {mount.mountpoint: mount for mount in map(_parse, lines)}
    return {path: mount for path, mount in topmost.items() if mount.kind in _TYPES}


def mounted_at(mountpoint: Path) -> MountState:
    """Return the state of the logfs that is mounted on exactly this path; `NOTHING` if no logfs is mounted there."""
    if str(mountpoint) not in logfs_mounts():
        return MountState.NOTHING
    return MountState.DEAD if is_dead(mountpoint) else MountState.LIVE


def is_dead(path: str | os.PathLike[str]) -> bool:
    """Whether a path lies in a mount whose daemon has died. A daemon that does not answer counts as alive."""
    try:
        # Do not use `stat`, which the kernel may answer from its cache.
        within(PATIENCE_SECONDS, lambda: os.statvfs(path))
    except OSError as error:
        # Any other error comes from a live daemon, for example because its disk failed. After a timeout, it is
        # unknown whether the daemon has died.
        return error.errno in DEAD_ERRORS
    return False


def other_mounts(mount: MountEntry) -> dict[str, list[int]]:
    """Return where the filesystem of `mount` is still mounted, after `mount` was unmounted.

    Each key is a mountpoint. Its value lists the pids of the processes in other mount namespaces that see the mount,
    and is empty if only this namespace sees it. Processes that this process may not examine are left out.
    """
    here = _same(mount, "self")
    found: dict[str, list[int]] = {each.mountpoint: [] for each in here}
    # Each mount id belongs to one mount namespace, so a process that sees one of these ids is in this namespace.
    known = {each.number for each in here}
    for name in sorted(filter(str.isdecimal, os.listdir("/proc")), key=int):
        for each in _same(mount, name):
            if each.number not in known:
                found.setdefault(each.mountpoint, []).append(int(name))
    return found


def is_served(mount: MountEntry) -> bool:
    """Whether the kernel still has the FUSE connection of the unmounted `mount`; False if this is unknown.

    The connection lasts while the filesystem is mounted anywhere, in this or another mount namespace.
    """
    if any(each.device == mount.device for each in mounts()):
        # Another mount has this device number now, so a connection with this number is not that of `mount`.
        return False
    return os.path.exists(f"/sys/fs/fuse/connections/{os.minor(mount.device)}")


def _same(mount: MountEntry, process: str) -> list[MountEntry]:
    """Return the entries for the filesystem of `mount` in a process's mount table; `process` is a pid or "self"."""
    table = mounts(Path("/proc", process, "mountinfo"))
    return [
        each
        for each in table
        if (each.device, each.kind, each.source) == (mount.device, mount.kind, mount.source)
    ]


def _lines(table: Path) -> list[bytes]:
    try:
        # `splitlines` would also split at a carriage return, which is not escaped in a path.
        return table.read_bytes().split(b"\n")[:-1]
    except OSError:
        return []


def _parse(line: bytes) -> MountEntry:
    before, _, after = line.partition(b" - ")
    number, _, device, root, mountpoint, flags, *_ = map(_unescape, before.split(b" "))
    kind, source, options = map(_unescape, after.split(b" ")[:3])
    major, _, minor = device.partition(":")
    return MountEntry(
        int(number),
        mountpoint,
        root,
        kind,
        source,
        os.makedev(int(major), int(minor)),
        frozenset(flags.split(",")),
        frozenset(options.split(",")),
    )


def _unescape(text: bytes) -> str:
    """Decode a field of the table, in which blanks, tabs, newlines, `#` and backslashes are octal escapes."""
    return os.fsdecode(_ESCAPED.sub(lambda match: bytes([int(match[1], 8)]), text))
