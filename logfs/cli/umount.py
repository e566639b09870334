"""`logfs umount`: unmount, and wait until the mount's daemon has closed the store and ended."""

from __future__ import annotations

import os
import select
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from logfs.cli.common import path_argument
from logfs.errors import InvalidStore

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from logfs.store.directory.mount_table import MountEntry

# The exit code if the mountpoint was unmounted, but the filesystem is still mounted elsewhere, so that the log
# directories stay locked.
SERVED_ELSEWHERE = 3
# How long to wait for the daemon to end before searching for other mounts of the filesystem.
_GRACE_SECONDS = 1.0
# How long to wait for the daemon before printing a message.
_SILENT_SECONDS = 5.0
_POLL_MS = 200
_MOST_PIDS = 5


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments: the mountpoint, and whether to unmount lazily."""
    parser.add_argument("mountpoint", type=path_argument)
    parser.add_argument(
        "-l",
        "--lazy",
        action="store_true",
        help="detach the mountpoint now, even if it is busy, and do not wait",
    )


def run(arguments: argparse.Namespace) -> int:
    """Unmount, and wait until another process can open the store.

    The command does not wait with `--lazy`, or if the daemon has already ended or its status cannot be read. The exit
    code is 3 if the daemon continues because the filesystem is also mounted elsewhere: in another mount namespace,
    such as a container's, or by a bind mount on another directory. The code is 1 if a log directory was left without
    its clean-shutdown marker. Raises `InvalidStore` if no logfs is mounted at the mountpoint, or if pyfuse3 or trio
    is missing, and the errors of `unmount`.
    """
    try:
        from logfs.mount.mounting import unmount
    except ImportError as error:
        raise InvalidStore(
            f"umount needs pyfuse3 and trio ({error}); install logfs[mount]"
        ) from None
    from logfs.store.directory.mount_table import logfs_mounts

    mountpoint = Path(os.path.abspath(arguments.mountpoint))
    mount = logfs_mounts().get(str(mountpoint))
    if mount is None:
        raise InvalidStore(f"{mountpoint}: no logfs is mounted here")
    if arguments.lazy:
        # Do not read the status from the mount first: a stopped daemon would never answer.
        unmount(mountpoint, lazy=True)
        return 0
    with _telling(
        f"{mountpoint}: its daemon does not respond: it is stopped or waits for its disk; still waiting for it"
    ):
        status = _status(mountpoint)
        pid = status.get("pid")
        try:
            daemon = None if pid is None else os.pidfd_open(pid)
        except OSError:
            daemon = None
        unmount(mountpoint)
    if pid is None or daemon is None:
        return 0
    try:
        code = _wait(mount, pid, daemon)
    finally:
        os.close(daemon)
    return code or _check_closed(status)


@contextmanager
def _telling(words: str) -> Iterator[None]:
    """Print `words` to standard error if the context lasts longer than `_SILENT_SECONDS`."""
    timer = threading.Timer(_SILENT_SECONDS, print, (f"logfs: {words}",), {"file": sys.stderr})
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _status(mountpoint: Path) -> dict[str, Any]:
    """Return the status that the mount's daemon reports, or an empty dict if it cannot be read."""
    import json

    try:
        return dict(json.loads((mountpoint / ".logfs/status.json").read_bytes()))
    except (OSError, ValueError):
        return {}


def _check_closed(status: dict[str, Any]) -> int:
    """Print each log directory that was left without a clean-shutdown marker; return 1 if there are any, else 0.

    `status` is the content of the mount's `status.json` before the unmount. A log directory that a process has locked
    again does not count, because the process has removed the marker. For a read-only or a write-behind mount, which
    leaves no marker, return 0.
    """
    from logfs.store.directory.log_dir import CLEAN_SHUTDOWN

    if "write_behind" in status or status["read_only"]:
        return 0
    # On a failed disk `exists` returns False, so its directory is reported, too.
    left = [
        path
        for path in status["log_dirs"]
        # A process that has opened the directory after the unmount has removed the marker.
        if not os.path.exists(f"{path}/{CLEAN_SHUTDOWN}") and not _is_in_use(path)
    ]
    if status["unloaded"] and not status["offline"]:
        why = "unmounted before all of its partitions were recovered: nothing is lost, the next mount continues"
    else:
        why = (
            "unmounted, but could not be closed properly: no fsynced data is lost, and the next mount recovers the "
            "directory; check whether the disk is full or has failed, or a partition is offline"
        )
    for path in left:
        print(f"logfs: {path}: {why}", file=sys.stderr)
    return 1 if left else 0


def _is_in_use(log_dir: str) -> bool:
    """Whether a process holds the lock of a log directory."""
    from logfs.log.disk.disk import Disk
    from logfs.store.directory.lock import holder

    try:
        return holder(Disk(), Path(log_dir)) is not None
    except OSError:
        return False


def _wait(mount: MountEntry, pid: int, daemon: int) -> int:
    """Wait until the daemon ends, or until it is known to serve the filesystem elsewhere; return the exit code.

    The exit code is 0 if the daemon has ended, and `SERVED_ELSEWHERE` if the filesystem of `mount` is still mounted
    elsewhere. `pid` is the daemon's process id, `daemon` its pidfd, which becomes readable when the process ends.
    """
    from logfs.store.directory.mount_table import is_served, other_mounts

    poll = select.poll()
    poll.register(daemon, select.POLLIN)
    began = time.monotonic()
    is_told = False
    while not poll.poll(_POLL_MS):
        waited = time.monotonic() - began
        if waited < _GRACE_SECONDS:
            continue
        others = other_mounts(mount)
        if others or is_served(mount):
            _tell(mount.mountpoint, pid, others)
            return SERVED_ELSEWHERE
        if waited > _SILENT_SECONDS and not is_told:
            is_told = True
            print(f"logfs: waiting for process {pid} to close the store", file=sys.stderr)
    return 0


def _tell(mountpoint: str, daemon: int, others: dict[str, list[int]]) -> None:
    """Print, in one line, where the filesystem is still mounted. `daemon` is the process id of its daemon.

    `others` is the result of `other_mounts`: it maps each mountpoint of the filesystem to the ids of the processes in
    other mount namespaces that see it there. The list of ids is empty if only this mount namespace sees it there.
    """
    places = []
    for path, pids in sorted(others.items()):
        some = ", ".join(map(str, pids[:_MOST_PIDS]))
        more = f" and {len(pids) - _MOST_PIDS} more" if len(pids) > _MOST_PIDS else ""
        word = "process" if len(pids) == 1 else "processes"
        places.append(f"at {path} for {word} {some}{more}" if pids else f"at {path}")
    where = "; ".join(places) or "in a mount namespace that is not accessible from here"
    print(
        f"logfs: {mountpoint}: unmounted here, but still mounted {where}: process {daemon} serves it and keeps the "
        "log directories locked until it is unmounted there, too",
        file=sys.stderr,
    )
