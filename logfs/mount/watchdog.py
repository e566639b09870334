"""A process that aborts the FUSE connection of a mount whose daemon was killed.

A thread of the daemon may wait in the kernel for a page that a reader has locked, while the reader waits for an
answer of the daemon. If the daemon is killed in this state, the thread cannot be interrupted and keeps the connection
open: the mount and all of its readers would hang until the connection is aborted. The kernel signals the watchdog
process when the daemon's main thread dies.
"""

from __future__ import annotations

import ctypes
import logging
import os
import signal
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, NoReturn

from logfs.store.directory.mount_table import logfs_mounts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from logfs.store.directory.mount_table import MountEntry

logger = logging.getLogger(__name__)

# The kernel sends this signal to the watchdog when the daemon dies. It is not SIGTERM, which a service manager sends
# to all processes of a service that it stops: SIGTERM must not count as the daemon's death.
_DEATH = signal.SIGUSR2
# From <sys/prctl.h> and <sys/mount.h>.
_PR_SET_PDEATHSIG = 1
_MNT_FORCE = 1
_LONGEST_PATH = 4096
_CONNECTIONS = "/sys/fs/fuse/connections"


@contextmanager
def watchdog() -> Iterator[Callable[[Path], None]]:
    """Start a watchdog process, and yield a function `watch(mountpoint)`, which tells the process what to watch.

    If this process dies inside the `with` block after the call of `watch`, the watchdog process aborts the mount's
    FUSE connection. Enter the block only in the main thread of a process that has no other threads. If no watchdog
    process can be started (EAGAIN, ENOMEM), this is logged as a warning, and the mount has no watchdog.
    """
    reader, writer = os.pipe()
    daemon = os.getpid()
    child = 0
    try:
        child = os.fork()
        if not child:
            _run(daemon, reader)
    except OSError as error:
        logger.warning(
            "no watchdog is started (%s), so the mount may hang if the daemon is killed; see ulimit -u",
            error,
        )
    os.close(reader)
    try:
        yield lambda mountpoint: _tell(writer, mountpoint)
    finally:
        os.close(writer)
        if child:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)


def _tell(writer: int, mountpoint: Path) -> None:
    # BrokenPipeError: the watchdog process was killed.
    with suppress(BrokenPipeError):
        os.write(writer, os.fsencode(mountpoint))


def _run(daemon: int, reader: int) -> NoReturn:
    try:
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, _DEATH, 0, 0, 0)
        # Keep nothing of the daemon open: no locked file, no terminal, and no pipe whose reader waits for its end.
        os.setsid()
        os.chdir("/")
        os.dup2(reader, 0)
        os.closerange(1, os.sysconf("SC_OPEN_MAX"))
        mountpoint = os.fsdecode(os.read(0, _LONGEST_PATH))
        mount = logfs_mounts().get(mountpoint)
        if mount is not None:
            if os.getppid() == daemon:
                signal.sigwait({_DEATH})
            _abort(mount)
    finally:
        os._exit(0)


def _abort(mount: MountEntry) -> None:
    """Abort the FUSE connection of a mount, if the mount is still in place. The mount itself stays in place.

    Only the user of the mount and root may abort the connection.
    """
    now = logfs_mounts().get(mount.mountpoint)
    if now is None or (now.number, now.device) != (mount.number, mount.device):
        return
    try:
        with open(f"{_CONNECTIONS}/{os.minor(mount.device)}/abort", "wb") as file:
            file.write(b"1")
    except OSError:
        # If the FUSE control filesystem is not mounted, a forced unmount aborts the connection. `place` keeps the
        # mount in use, so the mount itself stays.
        with suppress(OSError):
            place = os.open(mount.mountpoint, os.O_PATH)
            ctypes.CDLL(None).umount2(os.fsencode(mount.mountpoint), _MNT_FORCE)
            os.close(place)
