"""The mounts of log directories for volumes: at most one writable and one read-only mount of each log directory.

A mount is a separate daemon process, started by `logfs mount`. It continues when the plugin ends, so that containers
can continue to use it.
"""

from __future__ import annotations

import hashlib
import logging
import os
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from logfs.errors import InvalidStore
from logfs.locks import Level, make_lock
from logfs.log.disk.disk import Disk
from logfs.store.directory.lock import holder
from logfs.store.directory.mount_table import (
    FILESYSTEM_TYPE,
    PATIENCE_SECONDS,
    MountState,
    is_dead,
    logfs_mounts,
    mounted_at,
)

if TYPE_CHECKING:
    import threading

logger = logging.getLogger(__name__)

# The exit code of `logfs umount` if the filesystem is still mounted elsewhere.
_SERVED_ELSEWHERE = 3
_POLL_SECONDS = 0.05
# This environment variable is not passed on to the daemons: systemd would take their READY=1 for that of the plugin.
_MANAGER = "NOTIFY_SOCKET"


class LogMounts:
    """Mounts log directories on mountpoints in one directory.

    The argument `ro` chooses between the read-only and the writable mount of a log directory. Any thread may call the
    methods. A caller of `mount` or `unmount` must hold the `lock` of the log directory.
    """

    def __init__(self, directory: Path) -> None:
        """Use mountpoints in `directory`, which must exist. The daemons write log files beside the mountpoints."""
        self._directory = directory
        self._locks: dict[str, threading.Lock] = {}

    def lock(self, logdir: str) -> threading.Lock:
        """Return the lock that a thread must hold while it mounts or unmounts a log directory."""
        return self._locks.setdefault(logdir, make_lock(Level.VOLUME))

    def mountpoint(self, logdir: str, *, ro: bool) -> Path:
        """Return the mountpoint on which this object mounts a log directory.

        Its name contains a hash of `logdir`, because log directories in different places may have the same name.
        """
        digest = hashlib.sha256(os.fsencode(logdir)).hexdigest()[:8]
        return self._directory / f"{Path(logdir).name[:64]}-{digest}{'-ro' if ro else ''}"

    def find(self, logdir: str, *, ro: bool) -> Path | None:
        """Return the mountpoint at which a log directory can be used; None if it is not mounted.

        A log directory can have only one writable mount at a time. So without `ro`, the result can be a mountpoint on
        which another program has mounted the log directory.
        """
        own = self.mountpoint(logdir, ro=ro)
        if mounted_at(own) is MountState.LIVE:
            return own
        for path, mount in ({} if ro else logfs_mounts()).items():
            is_whole = (mount.kind, mount.root) == (FILESYSTEM_TYPE, "/")
            is_writable = "ro" not in mount.flags | mount.options
            if is_whole and is_writable and mount.source == logdir and not is_dead(path):
                return Path(path)
        return None

    def mount(self, logdir: str, *, ro: bool) -> Path:
        """Mount a log directory unless it is mounted, and return the mountpoint. A dead mount is replaced.

        Raises `InvalidStore` if `logfs mount` fails, and `OSError` if the mountpoint cannot be made.
        """
        found = self.find(logdir, ro=ro)
        if found is not None:
            return found
        mountpoint = self.mountpoint(logdir, ro=ro)
        if mounted_at(mountpoint) is MountState.NOTHING:
            mountpoint.mkdir(exist_ok=True)
        log_file = mountpoint.with_name(f"{mountpoint.name}.log")
        words = ["mount", f"--log-file={log_file}", *(["--read-only"] if ro else [])]
        if os.geteuid() == 0:
            # The processes in containers may run as other users, which get access by this option. Root may always use
            # the option; other users may use it only if /etc/fuse.conf permits it.
            words.append("-oallow_other")
        self._run([*words, "--", logdir, str(mountpoint)])
        return mountpoint

    def unmount(self, logdir: str, *, ro: bool) -> None:
        """Unmount a log directory from the path that `mountpoint` returns, and wait for the mount's daemon to end.

        If the log directory is not mounted there, only the mountpoint and the daemon's log file are removed. Raises
        `InvalidStore` if the unmount fails, and `OSError`.
        """
        mountpoint = self.mountpoint(logdir, ro=ro)
        state = mounted_at(mountpoint)
        goes_on = False
        if state is not MountState.NOTHING:
            words = ["umount", *(["-l"] if state is MountState.DEAD else []), str(mountpoint)]
            goes_on = self._run(words)
        if mountpoint.exists():
            # Removing the mountpoint makes the kernel detach the mount in other mount namespaces, too. The daemon of
            # a mount that was still mounted there ends only then.
            mountpoint.rmdir()
            if goes_on and not ro:
                _wait_until_closed(Path(logdir))
        mountpoint.with_name(f"{mountpoint.name}.log").unlink(missing_ok=True)

    @staticmethod
    def _run(words: list[str]) -> bool:
        """Run `logfs` with the arguments `words`, and wait for it.

        Returns True only for `logfs umount`, if it has unmounted the mountpoint, but the filesystem is still mounted
        elsewhere. For example, a container that is starting has copies of all mounts. This is logged as a warning.
        If the command fails, raises `InvalidStore` with the last line of its standard error.
        """
        environment = {name: value for name, value in os.environ.items() if name != _MANAGER}
        done = subprocess.run(
            [sys.executable, "-m", "logfs", *words],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="surrogateescape",
            check=False,
            env=environment,
            cwd="/",
        )
        said = done.stderr.strip().splitlines() or [f"{words[0]} failed"]
        reason = said[-1].removeprefix("logfs: ")
        if done.returncode == _SERVED_ELSEWHERE:
            logger.warning("%s", reason)
            return True
        if done.returncode:
            raise InvalidStore(reason)
        return False


def _wait_until_closed(logdir: Path) -> None:
    """Wait until no process holds the lock of a log directory, for up to `PATIENCE_SECONDS`.

    The full time passes if a bind mount keeps the filesystem mounted on another directory, or if another program has
    opened the log directory.
    """
    until = time.monotonic() + PATIENCE_SECONDS
    with suppress(OSError):
        while holder(Disk(), logdir) is not None and time.monotonic() < until:
            time.sleep(_POLL_SECONDS)
