"""An empty filesystem that has the tree of a logfs mount and answers at once: it shows the cost of FUSE itself.

    python nullfs.py SIZE MOUNTPOINT

`bench-0/append` accepts and drops all writes (direct_io), `bench-0/records` has SIZE bytes (cached), each `offsets/N`
is a record of 99 bytes, and each `time/T` is a link to one. Inodes are computed from the names, so there is no state.
"""

from __future__ import annotations

import errno
import os
import stat
import sys

import pyfuse3
import trio

ROOT, PARTITION, APPEND, RECORDS, OFFSETS, TIME = range(1, 7)
_NAMES = {
    (ROOT, b"bench-0"): PARTITION,
    (PARTITION, b"append"): APPEND,
    (PARTITION, b"records"): RECORDS,
    (PARTITION, b"offsets"): OFFSETS,
    (PARTITION, b"time"): TIME,
}
_A_RECORD = 1 << 60
_A_LINK = 1 << 61
_RECORD = b"x" * 99
_BLOCK = (b"x" * 99 + b"\n") * 20_000


class Nothing(pyfuse3.Operations):
    """The operations of the filesystem, each with a fixed answer."""

    enable_writeback_cache = False
    supports_dot_lookup = False

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size

    def _entry(self, inode: int) -> pyfuse3.EntryAttributes:
        entry = pyfuse3.EntryAttributes()
        entry.st_ino = inode
        entry.entry_timeout = 1.0
        entry.attr_timeout = 3600.0
        entry.st_nlink = 1
        entry.st_blksize = 4096
        if inode & _A_RECORD:
            entry.st_mode, entry.st_size = stat.S_IFREG | 0o444, len(_RECORD)
        elif inode & _A_LINK:
            entry.st_mode, entry.entry_timeout = stat.S_IFLNK | 0o777, 0
        elif inode == RECORDS:
            entry.st_mode, entry.st_size = stat.S_IFREG | 0o444, self.size
        elif inode == APPEND:
            entry.st_mode = stat.S_IFREG | 0o222
        else:
            entry.st_mode = stat.S_IFDIR | 0o755
        return entry

    async def lookup(self, parent: int, name: bytes, ctx: object) -> pyfuse3.EntryAttributes:
        if parent == OFFSETS and name.isdigit():
            return self._entry(_A_RECORD | int(name))
        if parent == TIME and name.isdigit():
            return self._entry(_A_LINK | int(name))
        try:
            return self._entry(_NAMES[parent, name])
        except KeyError:
            raise pyfuse3.FUSEError(errno.ENOENT) from None

    async def getattr(self, inode: int, ctx: object) -> pyfuse3.EntryAttributes:
        return self._entry(inode)

    async def setattr(self, inode: int, *_: object) -> pyfuse3.EntryAttributes:
        return self._entry(inode)

    async def forget(self, inodes: object) -> None:
        pass

    async def readlink(self, inode: int, ctx: object) -> bytes:
        return b"../offsets/%d" % (inode % 100_000)

    async def open(self, inode: int, flags: int, ctx: object) -> pyfuse3.FileInfo:
        return pyfuse3.FileInfo(fh=inode, direct_io=inode == APPEND, keep_cache=inode != APPEND)

    async def read(self, fh: int, off: int, size: int) -> bytes:
        if fh == RECORDS:
            return _BLOCK[: min(size, self.size - off)]
        return _RECORD[off : off + size]

    async def write(self, fh: int, off: int, buf: bytes) -> int:
        return len(buf)

    async def release(self, fh: int) -> None:
        pass

    async def getxattr(self, inode: int, name: bytes, ctx: object) -> bytes:
        raise pyfuse3.FUSEError(errno.ENODATA)


async def _serve(mountpoint: str) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(pyfuse3.main)
        await trio.to_thread.run_sync(os.stat, mountpoint)
        print("ready", flush=True)


def main() -> None:
    size, mountpoint = int(sys.argv[1]), sys.argv[2]
    options = set(pyfuse3.default_options)
    options |= {"fsname=nullfs", "subtype=nullfs", "default_permissions", "nosuid", "nodev"}
    pyfuse3.init(Nothing(size), mountpoint, options)
    try:
        trio.run(_serve, mountpoint)
    finally:
        pyfuse3.close(unmount=True)


if __name__ == "__main__":
    main()
