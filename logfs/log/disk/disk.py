"""Access to the files of a log directory: every open, read, write, sync and rename goes through a `Disk`.

This narrow interface serves three purposes. A fault or a crash can be injected at every call
(`tests/support/crashdisk.py` does so). No caller can forget to sync a directory after a rename. A thread that must
never wait for a disk cannot do so by accident: the mount calls `Disk.forbid_blocking` in the thread of its event
loop, and a read in this thread that would have to wait raises `WouldBlock`, so that the caller repeats it in a worker
thread.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import resource
import stat
import threading
import time
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, TypeVar

from logfs.errors import Corrupt, NotWritable, OffsetOutOfRange
from logfs.locks import Level, make_rlock
from logfs.log.disk import memory
from logfs.log.disk.latency_histogram import LatencyHistogram

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from typing_extensions import Buffer

    from logfs.errors import LogDirFailed

# The errors for a full disk, quota or file size limit, and for too many open files. They damage no data, so a
# partition can still be used.
EXHAUSTED = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EMFILE, errno.ENFILE})
# Too many open files: the call had no effect, and a later one may succeed.
NO_DESCRIPTOR = frozenset({errno.EMFILE, errno.ENFILE})

# The suffix of a temporary file that is to replace another file.
TEMPORARY = ".tmp"
# The modes of new files and directories: no access for other users, as Debian does for logs.
DIRECTORY_MODE = 0o750
FILE_MODE = 0o640
# The mode of new files outside log directories, such as reports. The umask is subtracted from all three modes.
USUAL_MODE = 0o666

# The maximum size in bytes of a file that is read as a whole. A checkpoint of a million partitions is smaller; a
# damaged (sparse) file might not fit into memory.
_MOST_BYTES = 64 * 1024 * 1024

# Changes that are at least this far apart get different mtimes: the clock for mtimes advances in steps of a few ms.
_SETTLED_NS = 50_000_000
# How many times a read is tried if its files disappear. On a busy machine, compaction may remove the files many times
# in a row before the read opens them.
TRIES = 100
# How long (seconds) a thread that must not wait for the network waits for a lock. The wait is limited, because the
# thread that has the lock may wait for the network.
_LOCK_SECONDS = 0.1
_STANDARD_ERROR = 2
# How many descriptors the files of logs leave to other uses, such as the status and the metrics: at most so many, and
# at most an eighth of the limit.
_RESERVED = 32

T = TypeVar("T")
_waits = threading.local()


class WouldBlock(Exception):
    """Raised by a call that would wait in a thread that must not. The caller repeats the call in a worker thread.

    If `on_network` is set, there is no bound on how long the repeated call waits: it needs an object store or a lock.
    """

    def __init__(self, *, on_network: bool = False) -> None:
        super().__init__()
        self.on_network = on_network


def run_without_network(work: Callable[..., T], *arguments: Any) -> T:
    """Call `work`, which may wait for the disk, and return its result.

    Raises `WouldBlock` with `on_network` if `work` would wait for the network, or for a lock for more than 0.1 s.
    """
    _waits.on_disk_only = True
    try:
        return work(*arguments)
    finally:
        _waits.on_disk_only = False


def _must_not_fetch() -> bool:
    return getattr(_waits, "on_disk_only", False)


class Gone(OffsetOutOfRange):
    """Raised if a file of a log that another process writes was deleted or cut since the directory was listed."""


@dataclass(slots=True, eq=False)
class File:
    """An open regular file, readable even after its name is removed. Deleting the object closes the descriptor."""

    path: Path
    fd: int
    # Whether the file is on a tmpfs or a ramfs; None if that is not known yet.
    _in_memory: bool | None = field(default=None, init=False)

    def is_in_memory(self) -> bool:
        """Whether reading the file waits for no disk, because it is on a tmpfs or a ramfs."""
        if self._in_memory is None:
            self._in_memory = memory.is_in_memory(self.fd)
        return self._in_memory

    def close(self) -> None:
        """Close the descriptor; closing twice is harmless."""
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)

    def __del__(self) -> None:
        self.close()


class Status(NamedTuple):
    """The status of a file or a directory.

    `identity` is the inode number on the device `device`, or in an object store a number derived from the object
    names. A file that replaces another of the same name has another identity. `mtime_ns` and `ctime_ns` are in ns
    since the epoch. `mode` has the type and the permission bits, as in `os.stat`.
    """

    identity: int
    size_bytes: int
    mtime_ns: int
    ctime_ns: int
    mode: int
    uid: int
    gid: int
    device: int = 0


class Entry(NamedTuple):
    """An entry of a directory. A symlink is neither a file nor a directory.

    `identity` is the inode number or, in an object store, a number derived from the object names.
    """

    name: str
    identity: int
    is_file: bool
    is_directory: bool


def _check_descriptor(fd: int, path: Path) -> None:
    """Raise EMFILE for `path` if its descriptor `fd` is one of those that files of logs must leave to other uses."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if fd >= limit - min(_RESERVED, limit // 8):
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), str(path))


def _status(found: os.stat_result) -> Status:
    return Status(
        found.st_ino,
        found.st_size,
        found.st_mtime_ns,
        found.st_ctime_ns,
        found.st_mode,
        found.st_uid,
        found.st_gid,
        found.st_dev,
    )


class Disk:
    """Files and directories below a log directory. The methods raise the `OSError` of the system call.

    Any thread may call any method. In the thread that called `forbid_blocking`, `read`, `hold`, `check_may_block` and
    `check_may_fetch` can raise `WouldBlock`. Within `run_without_network`, `hold` and `check_may_fetch` can raise it.
    In both cases, methods of a `BucketDisk` that need a listing or an object of the bucket can raise it, too.
    """

    writable = True
    # Whether the files are objects of a bucket: reading costs requests, and the objects never change.
    is_remote = False
    # The error because of which everything on this disk is offline, or None: see `checked_disk`.
    failure: LogDirFailed | None = None

    def __init__(self, file_mode: int = FILE_MODE) -> None:
        """Make a disk that creates files with the mode `file_mode` less the umask."""
        self._file_mode = file_mode
        self._loop_thread = -1
        # Other disks that must not block in the same thread as this disk (`share_blocking`).
        self._others: list[Disk] = []
        # Held while a file is opened by a name that may change, and while such a name is changed.
        self.naming = make_rlock(Level.NAMING)
        # The durations of the flushes that made logs durable.
        self.flush_times = LatencyHistogram()

    def forbid_blocking(self) -> None:
        """Make each later `read` in the calling thread raise `WouldBlock` instead of waiting for the disk.

        The other methods that raise `WouldBlock` in this thread are listed at the class. This applies to one thread
        at a time: a call in another thread allows the former thread to wait again.
        """
        self._set_loop_thread(threading.get_ident())

    def allow_blocking(self) -> None:
        """Undo `forbid_blocking`: from now on a `read` may wait for the disk in any thread."""
        self._set_loop_thread(-1)

    def share_blocking(self, other: Disk) -> None:
        """Make reads of the disk `other` raise `WouldBlock` in the same thread as reads of this disk.

        This takes effect at once, and `other` follows each later call of `forbid_blocking` or `allow_blocking` on
        this disk.
        """
        self._others.append(other)
        other._set_loop_thread(self._loop_thread)

    def _set_loop_thread(self, thread: int) -> None:
        self._loop_thread = thread
        for other in self._others:
            other._set_loop_thread(thread)

    def check_may_block(self) -> None:
        """Raise `WouldBlock` if the current thread has called `forbid_blocking`. Call this before long work."""
        if threading.get_ident() == self._loop_thread:
            raise WouldBlock

    def check_may_fetch(self) -> None:
        """Raise `WouldBlock` if the current thread has called `forbid_blocking` or is in `run_without_network`.

        Call this before each request to an object store, and before other waits that have no bound.
        """
        if threading.get_ident() == self._loop_thread or _must_not_fetch():
            raise WouldBlock(on_network=True)

    @contextmanager
    def hold(self, lock: threading.Lock | threading.RLock) -> Iterator[None]:
        """Hold `lock` during the `with` block.

        Waits if another thread has the lock. Raises `WouldBlock` instead of waiting if the current thread has called
        `forbid_blocking`, and after 0.1 s within `run_without_network`.
        """
        if not lock.acquire(blocking=False):
            self.check_may_block()
            if not lock.acquire(timeout=_LOCK_SECONDS if _must_not_fetch() else -1):
                raise WouldBlock(on_network=True)
        try:
            yield
        finally:
            lock.release()

    def release(self) -> None:
        """Close the resources that reads keep open; called when a store is closed. Later reads open them again."""

    def read_afresh(self) -> None:
        """Let all later reads bypass caches, for an audit. This class has no cache, so the method does nothing."""

    # Methods for files.

    def open(self, path: Path, *, write: bool = False, create: bool = False) -> File:
        """Open a regular file for reading, with `write` for writing too.

        Raises `OSError`, without waiting, for a symlink, a FIFO or anything else that is not a regular file, and with
        EMFILE while only the descriptors are left that other uses need (`_RESERVED`). `create` makes a missing file,
        by default with mode 0640 less the umask. Other users must not read the files in log directories: they read
        through the mount, whose mode bits control their access. A file that root makes gets the owner of its
        directory, who must be able to use the log afterwards.
        """
        is_roots = create and not os.geteuid() and not os.path.lexists(path)
        flags = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        flags |= os.O_RDWR if write else os.O_RDONLY
        if create:
            # Look at a descriptor first: a refused call must not leave a new file behind.
            flags |= os.O_CREAT
            probe = os.open("/", os.O_PATH | os.O_CLOEXEC)
            os.close(probe)
            _check_descriptor(probe, path)
        fd = os.open(path, flags, self._file_mode)
        if fd <= _STANDARD_ERROR:
            # The process has closed a standard stream, and the file has got its descriptor. Use another descriptor,
            # so that output to the stream does not go into the file.
            fd, low = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, _STANDARD_ERROR + 1), fd
            os.close(low)
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            os.close(fd)
            raise OSError(errno.EINVAL, "is not a regular file", str(path))
        if not create:
            try:
                _check_descriptor(fd, path)
            except OSError:
                os.close(fd)
                raise
        if is_roots:
            _give(fd, path.parent)
        return File(path, fd)

    def open_locked(self, path: Path, lock: Callable[[int], object]) -> File:
        """Open a file for writing, creating it if it is missing, and lock it by `lock`, which gets its descriptor.

        If another process removes or replaces the file before it is locked, the call begins again with the new file:
        a lock on a removed file excludes no process. Raises the errors of `lock`.
        """
        while True:
            file = self.open(path, write=True, create=True)
            try:
                lock(file.fd)
                if self.is_in_place(file):
                    return file
            except BaseException:
                file.close()
                raise
            file.close()

    def is_in_place(self, file: File) -> bool:
        """Whether the path by which a file was opened still names this file."""
        opened = self.stat_file(file)
        try:
            named = self.stat(file.path)
        except FileNotFoundError:
            return False
        return (named.device, named.identity) == (opened.device, opened.identity)

    def read(self, file: File, position: int, size: int) -> memoryview:
        """Return the bytes [position, position + size) of a file, fewer only at its end."""
        if threading.get_ident() != self._loop_thread:
            return memoryview(self._read_fully(file, position, size))
        import numpy as np

        # Use an array of numpy: a bytearray would be filled with zeros first.
        buffer = memoryview(np.empty(size, np.uint8))  # type: ignore[arg-type]
        try:
            done = os.preadv(file.fd, [buffer], position, os.RWF_NOWAIT)
        except OSError as error:
            # EAGAIN: the bytes are not in the page cache. EOPNOTSUPP: the filesystem cannot tell whether they are.
            if error.errno not in (errno.EAGAIN, errno.EOPNOTSUPP):
                raise
            if error.errno == errno.EAGAIN or not file.is_in_memory():
                raise WouldBlock from None
            return memoryview(self._read_fully(file, position, size))
        if done < size and position + done < os.fstat(file.fd).st_size:
            raise WouldBlock
        # Return a read-only view, like the views of bytes objects that other threads get: numba compiles a kernel
        # separately for read-only and for writable views.
        return buffer[:done].toreadonly()

    def read_ahead(self, file: File, position: int, size: int) -> None:
        """Ask the kernel to read [position, position + size) of a file into the page cache, without waiting.

        Ignores errors: the read that needs the bytes raises them.
        """
        with suppress(OSError):
            os.posix_fadvise(file.fd, position, size, os.POSIX_FADV_WILLNEED)

    def fetch_again(self, file: File, start: int, end: int) -> bool:
        """Fetch the damaged bytes [start, end) of a remote file again, and return whether they have changed.

        Returns False for a local file.
        """
        return False

    def is_cut(self, file: File) -> bool:
        """Whether only the beginning of a remote .log file is shown: the next segment has the offsets of the rest.

        The method `size` then returns the size of this beginning. Always False for a local file.
        """
        return False

    def described_end(self, file: File) -> tuple[int, int] | None:
        """Return where a remote .log file ends, from the manifest that was stored with its segment.

        The result is (the offset after the last record, the greatest timestamp in ms). The .log file is not read. The
        result is None for a local file, if the segment is not the last of its partition, and if there is no manifest
        with valid offsets.
        """
        return None

    def _read_fully(self, file: File, position: int, size: int) -> bytes:
        data = os.pread(file.fd, size, position)
        if len(data) == size or not data:
            return data
        parts = [data]
        done = len(data)
        while done < size and (data := os.pread(file.fd, size - done, position + done)):
            parts.append(data)
            done += len(data)
        return b"".join(parts)

    def write(self, file: File, position: int, data: Buffer) -> None:
        """Write all of `data` at `position`. After an `OSError`, any part of `data` may be in the file."""
        view = memoryview(data)
        done = os.pwrite(file.fd, view, position)
        while done < len(view):
            done += os.pwrite(file.fd, view[done:], position + done)

    def truncate(self, file: File, size: int) -> None:
        """Make the file exactly `size` bytes long, zero-filled where it grows."""
        os.ftruncate(file.fd, size)

    def size(self, file: File) -> int:
        """Return the file's length in bytes."""
        return os.fstat(file.fd).st_size

    def stat_file(self, file: File) -> Status:
        """Return the status of an open file, even if its name was removed or changed."""
        return _status(os.fstat(file.fd))

    def sync(self, file: File) -> None:
        """Wait until the file's data, and the metadata that is needed to read it, are safe from a power cut."""
        os.fdatasync(file.fd)

    def allocate(self, file: File, position: int, size: int) -> None:
        """Allocate disk blocks for [position, position + size), so that a mapped write cannot find the disk full."""
        os.posix_fallocate(file.fd, position, size)

    def map(self, file: File, size: int) -> mmap.mmap:
        """Return a shared mapping of the file's first `size` bytes, writable unless the disk is read-only."""
        access = mmap.ACCESS_WRITE if self.writable else mmap.ACCESS_READ
        return mmap.mmap(file.fd, size, access=access)

    def sync_map(self, mapping: mmap.mmap) -> None:
        """Wait until all bytes that were written through the mapping are safe from a power cut."""
        mapping.flush()

    # Methods for names and directories.

    def rename(self, old: Path, new: Path) -> None:
        """Rename `old` to `new`, replacing a file of that name, and sync the directory of `new`."""
        self.rename_unsynced(old, new)
        self.sync_directory(new.parent)

    def rename_unsynced(self, old: Path, new: Path) -> None:
        """Rename `old` to `new` without a sync. The caller must sync the directory, after the last of its renames."""
        os.rename(old, new)

    def unlink(self, path: Path) -> None:
        """Remove a file's name. A missing file is not an error."""
        path.unlink(missing_ok=True)

    def mkdir(self, path: Path, *, mode: int = DIRECTORY_MODE) -> None:
        """Make a directory, with `mode` less the umask, and sync its parent; if the sync fails, undo the mkdir.

        A directory that root makes gets the owner of its parent.
        """
        os.mkdir(path, mode)
        try:
            if not os.geteuid():
                _give(path, path.parent)
            self.sync_directory(path.parent)
        except BaseException:
            with suppress(OSError):
                self.rmdir(path)
            raise

    def rmdir(self, path: Path) -> None:
        """Remove an empty directory."""
        os.rmdir(path)

    def sync_directory(self, path: Path) -> None:
        """Sync a directory. Once this returns, its entries survive a power cut. Raises `OSError`."""
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def scan(self, path: Path) -> Iterator[Entry]:
        """Yield the entries of a directory, in no particular order."""
        with os.scandir(path) as entries:
            for found in entries:
                is_file = found.is_file(follow_symlinks=False)
                is_directory = not is_file and found.is_dir(follow_symlinks=False)
                yield Entry(found.name, found.inode(), is_file, is_directory)

    def free_bytes(self, path: Path) -> int:
        """Return the free bytes of a path's filesystem that are available to non-root users."""
        found = os.statvfs(path)
        return found.f_bavail * found.f_frsize

    def exists(self, path: Path) -> bool:
        """Whether anything exists at `path`, a dangling symlink included."""
        return os.path.lexists(path)

    def stat(self, path: Path, *, follow: bool = False) -> Status:
        """Return the status of the file or directory at a path. A symlink is followed only with `follow`."""
        return _status(os.stat(path) if follow else os.lstat(path))

    def stat_settled(
        self, path: Path, since_ns: int | None = None, *, follow: bool = False
    ) -> tuple[Status, bool]:
        """Return the status of a path, and whether any change of the file after this call will alter its mtime.

        The filesystem's clock advances in steps, and two changes within one step get the same mtime. So the second
        value is False if the mtime is less than 50 ms before this call. If `since_ns` is given (ns since the epoch),
        it takes the place of the time of this call. A symlink is followed only with `follow`.
        """
        since_ns = since_ns or time.time_ns()
        found = self.stat(path, follow=follow)
        return found, since_ns - found.mtime_ns > _SETTLED_NS

    def set_mtime(self, path: Path, mtime_ms: int) -> None:
        """Set a file's modification time, in ms since the epoch."""
        os.utime(path, ns=(mtime_ms * 1_000_000, mtime_ms * 1_000_000))

    # Methods for small files.

    def read_file(self, path: Path) -> bytes:
        """Return all bytes of a small regular file. Raises `Corrupt` for a file of more than 64 MiB."""
        with closing(self.open(path)) as file:
            return self.read_all(file)

    def read_all(self, file: File) -> bytes:
        """Return all bytes of an open small file. Raises `Corrupt` for a file of more than 64 MiB."""
        size = self.size(file)
        if size > _MOST_BYTES:
            raise Corrupt(
                f"{file.path}: is {size} bytes long, but a valid file of this name has at most {_MOST_BYTES}"
            )
        return self._read_fully(file, 0, size)

    def replace_file(self, path: Path, data: bytes) -> None:
        """Replace a small file atomically and durably.

        Kafka uses the same steps: write a `.tmp` file, fsync, rename, fsync of the directory (kafka-storage 1.4). A
        crash leaves the old content or the new.
        """
        self.put_file(path, data, sync=True)
        self.sync_directory(path.parent)

    def put_file(self, path: Path, data: bytes, *, sync: bool) -> None:
        """Replace a small file by writing a `.tmp` file and renaming it.

        If the process is killed, the file has the old content or the new; with `sync`, also after a power cut. The
        new content is durable only with `sync`, and only after the caller has synced the directory.
        """
        with self.replacing(path, path.with_name(path.name + TEMPORARY)) as file:
            self.write(file, 0, data)
            if sync:
                self.sync(file)

    @contextmanager
    def replacing(self, path: Path, temporary: Path) -> Iterator[File]:
        """Yield a new file `temporary`, which is renamed to `path` at the end of the context, or removed on an error.

        The caller must sync the file and the directory if the new content has to survive a power cut.
        """
        self.unlink(temporary)
        with closing(self.open(temporary, write=True, create=True)) as file:
            try:
                yield file
                self.rename_unsynced(temporary, path)
            except BaseException:
                # On a full disk, the unfinished file must not keep its space.
                with suppress(OSError):
                    self.unlink(temporary)
                raise

    def ensure_file(self, path: Path, data: bytes, *, sync: bool) -> None:
        """Replace a small file, as `put_file` does, but only if its content differs from `data`.

        When recovery writes files again after a kill, most of them are unchanged, and a read costs far less than a
        rename. With `sync`, the file is synced even if its content is `data` already. Without `sync`, the file is
        overwritten in place if the disk is full (ENOSPC). If the process is killed during this, the file may have
        new bytes followed by old bytes.
        """
        if self._holds(path, data, sync=sync):
            return
        try:
            self.put_file(path, data, sync=sync)
        except OSError as error:
            # There may be no free inode or block for a new file, while the old file can be overwritten.
            if sync or error.errno != errno.ENOSPC or not self._overwrite(path, data):
                raise

    def _overwrite(self, path: Path, data: bytes) -> bool:
        """Overwrite a small file in place with `data`. Return False if there is no such file."""
        with suppress(FileNotFoundError), closing(self.open(path, write=True)) as file:
            self.write(file, 0, data)
            self.truncate(file, len(data))
            return True
        return False

    def _holds(self, path: Path, data: bytes, *, sync: bool) -> bool:
        with suppress(FileNotFoundError), closing(self.open(path, write=True)) as file:
            if self.size(file) != len(data) or bytes(self.read(file, 0, len(data))) != data:
                return False
            if sync:
                self.sync(file)
            return True
        return False


def _give(made: Path | int, directory: Path) -> None:
    """Give a file or directory that this process has made to the owner of `directory`, if that is another user.

    Does nothing where root may not do so: on NFS, in a user namespace, or without the capability CAP_CHOWN.
    """
    with suppress(OSError):
        owner = os.stat(directory)
        if owner.st_uid != os.geteuid():
            os.chown(made, owner.st_uid, owner.st_gid)


class ReadOnlyDisk(Disk):
    """A read-only `Disk`: every call that would change or sync a file or directory raises `NotWritable`."""

    writable = False

    def open(self, path: Path, *, write: bool = False, create: bool = False) -> File:
        if write or create:
            self._refuse(path)
        return super().open(path)

    def sync_map(self, mapping: mmap.mmap) -> None:
        raise NotWritable("the store is open read-only: a memory-mapped file cannot be synced")

    def _refuse(self, path: Path) -> NoReturn:
        raise NotWritable(
            f"{path}: the store is open read-only; open it without --read-only to change it"
        )


def _refused(self: ReadOnlyDisk, subject: File | Path, *_: object, **__: object) -> NoReturn:
    self._refuse(subject.path if isinstance(subject, File) else subject)


# The methods of a disk that change a file or a name.
CHANGES = (
    *("write", "truncate", "allocate", "set_mtime", "replace_file", "put_file", "ensure_file"),
    *("rename", "rename_unsynced", "unlink", "mkdir", "rmdir"),
)
for _name in (*CHANGES, "sync", "sync_directory"):
    setattr(ReadOnlyDisk, _name, _refused)
