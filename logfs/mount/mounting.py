"""Mounting and unmounting: the checks of a mountpoint, the FUSE session, and its end."""

from __future__ import annotations

import errno
import logging
import os
import re
import signal
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pyfuse3
import trio

from logfs.errors import InvalidStore
from logfs.log.disk.bucket_path import BucketPath
from logfs.store.directory.mount_table import MountState, mounted_at
from logfs.store.directory.recognition import PathKind, recognise

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence

_SPACE = ("f_blocks", "f_bfree", "f_bavail", "f_files", "f_ffree", "f_favail")
_STATVFS = ("f_bsize", "f_frsize", "f_namemax", *_SPACE)

# The signals that stop a mount.
_STOP = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)

logger = logging.getLogger(__name__)


def prepare_mountpoint(
    mountpoint: Path,
    check_sources: Callable[[], None],
    *,
    sources: Sequence[Path],
    nonempty: bool,
) -> Path:
    """Check a mountpoint and the paths to mount there, and return the absolute path of the mountpoint.

    `sources` are the paths to mount; `check_sources` must raise an error if they are unsuitable. With `nonempty`, the
    mountpoint may be a directory with files in it, which the mount will hide.

    If the mountpoint has a dead mount (one whose daemon has ended), the dead mount is unmounted, and then the
    directory under it is checked. The unmount stays done even if this check raises an error. Nothing else changes.

    Raises the errors of `check_sources`; `InvalidStore` if logfs is already mounted there or the mountpoint is
    unsuitable; and `OSError` (EBUSY) if a dead mount cannot be unmounted.
    """
    mountpoint = Path(os.path.abspath(mountpoint))
    found = mounted_at(mountpoint)
    if found is MountState.LIVE:
        raise InvalidStore(
            f"{mountpoint}: logfs is already mounted here; run 'logfs umount {mountpoint}' first"
        )
    if found is MountState.NOTHING:
        _check_mountpoint(mountpoint, sources, nonempty=nonempty)
    check_sources()
    if found is MountState.DEAD:
        logger.warning("%s: unmounting a dead mount, whose daemon has ended", mountpoint)
        # Unmount lazily: processes that have files of the dead mount open get errors, and must not delay the unmount.
        unmount(mountpoint, lazy=True)
        _check_mountpoint(mountpoint, sources, nonempty=nonempty)
    return mountpoint


def _check_mountpoint(mountpoint: Path, sources: Sequence[Path], *, nonempty: bool) -> None:
    """Raise `InvalidStore` if `mountpoint` is unsuitable.

    It is unsuitable if it is no directory, is or contains one of `sources`, is a log directory or a partition, lies
    in another mount of logfs, or is not empty although `nonempty` is false.
    """
    if not mountpoint.is_dir():
        if mountpoint.exists():
            raise InvalidStore(f"{mountpoint}: the mountpoint is not a directory")
        raise InvalidStore(f"{mountpoint}: the mountpoint does not exist; create it first")
    for source in sources:
        path = Path(os.path.realpath(source))
        real = Path(os.path.realpath(mountpoint))
        if path == real or real in path.parents:
            raise InvalidStore(
                f"{path}: is or lies in the mountpoint {mountpoint}, and the mount would hide it; mount on another "
                "directory"
            )
    kind = recognise(mountpoint).kind
    if kind in (PathKind.LOG_DIR, PathKind.PARTITION):
        what = "a log directory" if kind is PathKind.LOG_DIR else "a partition"
        raise InvalidStore(
            f"{mountpoint} is {what}, and a mount would hide it: give the LOGDIR first, and an empty directory to "
            "mount on last"
        )
    if kind is PathKind.IN_MOUNT:
        raise InvalidStore(
            f"{mountpoint}: lies in another mount of logfs; mount on a directory outside of it"
        )
    if not nonempty and any(os.scandir(mountpoint)):
        raise InvalidStore(
            f"{mountpoint}: is not empty, and a mount would hide its content; mount on an empty directory, or give "
            "-o nonempty"
        )


def unmount(mountpoint: Path, *, lazy: bool = False) -> None:
    """Unmount with `umount` as root, with `fusermount3` otherwise. Raises `OSError` (EBUSY) if that fails.

    With `lazy` the mountpoint is detached at once, even while files are open.
    """
    import subprocess

    if os.geteuid() == 0:
        command = ["umount", *(["-l"] if lazy else []), str(mountpoint)]
    else:
        command = ["fusermount3", "-u", *(["-z"] if lazy else []), str(mountpoint)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        reason = done.stderr.strip() or f"exit code {done.returncode}"
        # Only the end of the text is compared, because the path of the mountpoint may contain "busy", too.
        if reason.rstrip(".").endswith("busy"):
            reason = (
                f"it is busy; 'fuser -vm {mountpoint}' lists the processes that use it, and "
                f"'logfs umount -l {mountpoint}' detaches it at once"
            )
        raise OSError(errno.EBUSY, f"cannot unmount: {reason}", str(mountpoint))


class _Option(str):
    """A mount option that may contain a path that is not ASCII.

    pyfuse3 calls `encode` with ASCII. This `encode` uses UTF-8 with surrogateescape instead, so it accepts any path.
    """

    __slots__ = ()

    def encode(self, encoding: str = "utf-8", errors: str = "strict") -> bytes:
        return str.encode(self, "utf-8", "surrogateescape")


@contextmanager
def one_stop() -> Iterator[Callable[[], Awaitable[None]]]:
    """Yield a function that waits for SIGTERM, SIGINT or SIGHUP. After the first such signal, others are ignored.

    If they were not ignored, a second Ctrl-C would end the daemon before it has unmounted and closed the store. After
    the end of the context, all three are ignored. A signal that this process was started to ignore, as SIGHUP by
    `nohup`, stays ignored.
    """
    received: list[int] = []
    heeded = [each for each in _STOP if signal.getsignal(each) is not signal.SIG_IGN]
    for each in heeded:
        signal.signal(each, lambda number, _: received.append(number))

    async def stop_wanted() -> None:
        if not heeded:
            await trio.sleep_forever()
        with trio.open_signal_receiver(*heeded) as signals:
            number = received[0] if received else await anext(signals)
        logger.info("stopping on %s", signal.Signals(number).name)

    try:
        yield stop_wanted
    finally:
        # Unlike a handler in Python, SIG_IGN stays in force while the interpreter ends.
        for each in _STOP:
            signal.signal(each, signal.SIG_IGN)


@contextmanager
def mounted(
    operations: pyfuse3.Operations,
    mountpoint: Path,
    filesystem_type: str,
    source: str,
    words: Iterable[str],
) -> Iterator[None]:
    """Mount when the context is entered, and unmount when it is left.

    The mount table shows `filesystem_type`, such as `fuse.logfs`, and `source`. `words` are further mount options.
    Raises `OSError` (EPERM) if FUSE refuses the mount.
    """
    escaped = re.sub(r"([\\,])", r"\\\1", source)
    subtype = filesystem_type.removeprefix("fuse.")
    options = {*pyfuse3.default_options, _Option(f"fsname={escaped}"), f"subtype={subtype}", *words}
    try:
        pyfuse3.init(operations, str(mountpoint), options)
    except RuntimeError as error:
        raise OSError(
            errno.EPERM,
            f"cannot mount ({error}); check that fuse3 is installed, /dev/fuse exists, and, for allow_other, "
            "/etc/fuse.conf has user_allow_other",
            str(mountpoint),
        ) from None
    try:
        yield
    finally:
        pyfuse3.close(unmount=True)


def statvfs_of(path: Path) -> pyfuse3.StatvfsData:
    """Return the `statvfs` of the filesystem that holds `path`; `df` shows these values for a mount.

    For a bucket, all counts of blocks and files are 0, because an object store reports neither a size nor a limit.
    """
    # For a bucket, the block size and the longest name are taken from this computer's root filesystem.
    is_bucket = isinstance(path, BucketPath)
    below = os.statvfs("/" if is_bucket else path)
    answer = pyfuse3.StatvfsData()
    for field in _STATVFS:
        is_space = is_bucket and field in _SPACE
        setattr(answer, field, 0 if is_space else getattr(below, field))
    return answer


def start_notifier() -> None:
    """Start pyfuse3's notification thread, so that no request has to wait for its start.

    Raises `OSError` (EAGAIN) if the thread cannot be started.
    """
    try:
        # The first notification starts the thread. No file has this name, so the kernel has nothing to forget.
        name = pyfuse3.FileNameT(b".logfs.none")
        pyfuse3.invalidate_entry_async(pyfuse3.ROOT_INODE, name, ignore_enoent=True)
    except RuntimeError as error:
        raise OSError(
            errno.EAGAIN,
            f"the mount cannot start its threads ({error}); raise the limit of tasks (ulimit -u, TasksMax=)",
        ) from None


def first_error(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """Return the first error in trio's exception group, which may be nested: callers expect an ordinary error."""
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def forget_attributes(inode: int) -> None:
    """Make the kernel forget the attributes of a file, so that it asks for them again before it uses them."""
    try:
        pyfuse3.invalidate_inode(pyfuse3.InodeT(inode), attr_only=True)
    except OSError as error:
        # ENOENT: the kernel has forgotten the inode already.
        if error.errno != errno.ENOENT:
            raise
