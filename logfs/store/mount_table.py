"""What the kernel's mount table says of a path. Reading it asks no mounted filesystem, so no dead mount can block."""

from __future__ import annotations

import enum
import errno
import os
import re
import threading
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

_T = TypeVar("_T")

# The type that the kernel shows: FUSE, and the subtype that the mount is given.
FILESYSTEM_TYPE = "fuse.logfs"
# What any access to a mount without a daemon ends with.
DEAD_ERRORS = frozenset({errno.ENOTCONN, errno.ECONNABORTED})
# How long a mount may take to answer.
PATIENCE_SECONDS = 10.0

_TABLE = Path("/proc/self/mountinfo")
_ESCAPED = re.compile(rb"\\([0-7]{3})")


class Mounted(enum.Enum):
    """Whether a logfs is mounted on a path, and whether its daemon lives."""

    NOTHING = "nothing"
    LIVE = "live"
    DEAD = "dead"


class Mount(NamedTuple):
    """One line of the mount table.

    `number` is the kernel's own, `root` the directory of the filesystem that is mounted ("/" but for bind mounts of a
    part of it), `source` what was mounted, `device` the `st_dev` of the files in it.
    """

    number: int
    mountpoint: str
    root: str
    kind: str
    source: str
    device: int
    flags: frozenset[str]
    options: frozenset[str]


def mounts(table: Path = _TABLE) -> list[Mount]:
    """All mounts of this process's namespace, in the kernel's order; none where the table cannot be read."""
    return [_parse(line) for line in _lines(table)]


def logfs_mounts() -> dict[str, Mount]:
    """The mounts of logfs by mountpoint, bind mounts of directories in them included.

    Of several mounts on one another the topmost counts.
    """
    lines = _lines(_TABLE)
    # Asked often, and mostly there is none.
    if not any(FILESYSTEM_TYPE.encode() in line for line in lines):
        return {}
    topmost = {mount.mountpoint: mount for mount in map(_parse, lines)}
    return {path: mount for path, mount in topmost.items() if mount.kind == FILESYSTEM_TYPE}


def mounted_at(mountpoint: Path) -> Mounted:
    """Whether a logfs is mounted exactly here; a mount of another kind counts as nothing, alive or dead."""
    if str(mountpoint) not in logfs_mounts():
        return Mounted.NOTHING
    return Mounted.DEAD if is_dead(mountpoint) else Mounted.LIVE


def is_dead(path: str | os.PathLike[str]) -> bool:
    """Whether a path lies in a mount whose daemon has died; one that does not answer has not."""
    try:
        # Not stat, which the kernel may answer from what it remembers.
        within(PATIENCE_SECONDS, lambda: os.statvfs(path))
    except OSError as error:
        # Any other error is an answer: of a disk that has failed, say.
        return error.errno in DEAD_ERRORS
    return False


def within(seconds: float, ask: Callable[[], _T]) -> _T:
    """What `ask` gives; `TimeoutError` where it waits for a daemon that is stopped, or waits for its disk."""
    from concurrent.futures import Future

    answer: Future[_T] = Future()

    def run() -> None:
        try:
            answer.set_result(ask())
        except BaseException as error:
            answer.set_exception(error)

    # A thread that waits for a daemon cannot be ended, and keeps nobody waiting.
    threading.Thread(target=run, daemon=True).start()
    return answer.result(seconds)


def other_mounts(mount: Mount) -> dict[str, list[int]]:
    """Where else the filesystem of a mount is: paths, each with the processes of other mount namespaces that see it.

    A path without processes is a bind mount in this namespace. Processes that may not be looked at are left out.
    """
    here = _same(mount, "self")
    found: dict[str, list[int]] = {each.mountpoint: [] for each in here}
    # The number of a mount tells its namespace, too.
    known = {each.number for each in here}
    for name in sorted(filter(str.isdecimal, os.listdir("/proc")), key=int):
        for each in _same(mount, name):
            if each.number not in known:
                found.setdefault(each.mountpoint, []).append(int(name))
    return found


def is_served(mount: Mount) -> bool:
    """Whether the kernel still has a connection for a mount, wherever that is; False where it does not tell."""
    if any(each.device == mount.device for each in mounts()):
        # The device is another's by now.
        return False
    return os.path.exists(f"/sys/fs/fuse/connections/{os.minor(mount.device)}")


def _same(mount: Mount, process: str) -> list[Mount]:
    """The mounts of the same filesystem, as a process sees them."""
    table = mounts(Path("/proc", process, "mountinfo"))
    return [
        each
        for each in table
        if (each.device, each.kind, each.source) == (mount.device, mount.kind, mount.source)
    ]


def _lines(table: Path) -> list[bytes]:
    try:
        # Not splitlines: a carriage return in a path is not escaped.
        return table.read_bytes().split(b"\n")[:-1]
    except OSError:
        return []


def _parse(line: bytes) -> Mount:
    before, _, after = line.partition(b" - ")
    number, _, device, root, mountpoint, flags, *_ = map(_unescape, before.split(b" "))
    kind, source, options = map(_unescape, after.split(b" ")[:3])
    major, _, minor = device.partition(":")
    return Mount(
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
    """A field of the table, which writes blanks, tabs, newlines, `#` and backslashes as octal numbers."""
    return os.fsdecode(_ESCAPED.sub(lambda match: bytes([int(match[1], 8)]), text))
