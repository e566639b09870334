"""Changing the flags of an existing mount: `mount -o remount,…`. The store's own options cannot change."""

from __future__ import annotations

import ctypes
import errno
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from logfs.errors import InvalidStore, InvalidUsage
from logfs.store.directory.lock import STATUS_FILE
from logfs.store.directory.mount_table import logfs_mounts

if TYPE_CHECKING:
    from collections.abc import Iterable

# From <sys/mount.h>.
_MS_REMOUNT = 32
_FLAGS = {
    "ro": 1,
    "nosuid": 2,
    "nodev": 4,
    "noexec": 8,
    "sync": 16,
    "dirsync": 128,
    "noatime": 1024,
    "nodiratime": 2048,
    "relatime": 1 << 21,
    "strictatime": 1 << 24,
}
# Options that clear flags, each with the flags that it clears.
_OPPOSITE = {
    "rw": ("ro",),
    "exec": ("noexec",),
    "diratime": ("nodiratime",),
    "atime": ("noatime",),
    "norelatime": ("relatime",),
    "nostrictatime": ("strictatime",),
}
# Of these flags, at most one can be set.
_ATIME = ("noatime", "relatime", "strictatime")

# Options that take effect only when the filesystem is mounted: a remount cannot change them.
_FIXED = frozenset({"allow_other", "isolation", "linger_ms", "sync", "dirsync", "write_behind"})
# Options that a remount can change. Every mount of logfs has nosuid and nodev, so a remount cannot change these two.
CHANGEABLE = frozenset({*_FLAGS, *_OPPOSITE} - {"nosuid", "nodev", *_FIXED})


def remount(mountpoint: Path, words: Iterable[str]) -> None:
    """Change the flags of the mount on `mountpoint` that `words` name. Other flags keep their values.

    `words` are options of `logfs mount`. An option that is already in force changes nothing. Raises `InvalidUsage`
    for an unknown option. Raises `InvalidStore` if no logfs is mounted there, for an option that needs a new mount,
    and for a mount that would be writable although the log directories are open read-only. Raises `OSError`: EPERM
    unless the caller is root, EBUSY for `ro` while a file is open for writing.
    """
    path = os.path.realpath(mountpoint)
    mount = logfs_mounts().get(path)
    if mount is None:
        raise InvalidStore(
            f"{mountpoint}: no logfs is mounted here; to mount it, leave out the option remount"
        )
    status = _status(path)
    in_force = mount.options | mount.flags
    in_force |= {f"{name}={status[name]}" for name in ("isolation", "linger_ms") if name in status}
    in_force |= {"write_behind"} & status.keys()
    # The kernel clears each flag that is left out of the call.
    flags = {*mount.flags & _FLAGS.keys(), *mount.options & {"sync", "dirsync"}}
    for word in words:
        if word in CHANGEABLE:
            flags -= {*_OPPOSITE.get(word, ()), *(_ATIME if word in _ATIME else ())}
            flags |= {word} & _FLAGS.keys()
        elif word not in in_force:
            _refuse(word)
    if "ro" not in flags and status.get("read_only"):
        raise InvalidStore(
            f"{mountpoint}: the log directories are open read-only, which a remount cannot change; unmount, and "
            "mount without ro"
        )
    bits = sum(_FLAGS[flag] for flag in flags) | _MS_REMOUNT
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(None, os.fsencode(path), None, ctypes.c_ulong(bits), None):
        number = ctypes.get_errno()
        reason = "a file is open for writing" if number == errno.EBUSY else os.strerror(number)
        raise OSError(number, f"cannot remount: {reason}", path)


def _refuse(word: str) -> NoReturn:
    name = word.partition("=")[0]
    if name not in _FIXED:
        raise InvalidUsage(f"-o {word}: no such mount option; 'logfs mount --help' lists them")
    raise InvalidStore(
        f"-o remount,{word}: {name} cannot change while mounted; unmount, and mount with -o {word}"
    )


def _status(path: str) -> dict[str, object]:
    try:
        told = json.loads(Path(path, STATUS_FILE).read_bytes())
    except (OSError, ValueError):
        return {}
    return told if isinstance(told, dict) else {}
