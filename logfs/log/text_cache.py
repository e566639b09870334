"""Text indexes of segments that somebody else wrote, kept in the user's cache directory.

A broker writes no text index, and a read-only store must not put one beside its files; to make one means to read the
segment. The files here are `$XDG_CACHE_HOME/logfs/text/<key>` (by default below `~/.cache`), each the entries of one
sealed segment and a checksum. The key is a digest of what tells one state of a file from every other: device, inode,
length, times of the last change of content and of the inode, base offset, and the first batch's header. So a file
that was changed, replaced or moved has another key, and its old entries are never found again; those unused for
longest are removed. What cannot be written or read here costs time, and is no error.
"""

from __future__ import annotations

import hashlib
import logging
import os
import stat
import struct
import zlib
from pathlib import Path
from typing import TYPE_CHECKING

from logfs.format.batch import HEADER_SIZE
from logfs.log.files import Disk

if TYPE_CHECKING:
    from logfs.log.files import File
    from logfs.log.text_index import TextIndex

logger = logging.getLogger(__name__)

# A smaller segment is read again sooner than a file is kept for it.
SMALLEST_BYTES = 1 << 20
# Text indexes of about 150 GiB of log, at an entry every 4 KiB.
LIMIT_BYTES = 1 << 30

_VERSION = b"logfs text index 2"
# Behind the entries: their checksum, in fewer bytes than an entry has.
_TRAILER = struct.Struct(">I")


def directory(kind: str = "text") -> Path | None:
    """Where the cache of a kind is; None for a user without a home."""
    home = os.environ.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(home):
        home = os.path.expanduser("~/.cache")
    return Path(home, "logfs", kind) if os.path.isabs(home) else None


def load(disk: Disk, log: File, index: TextIndex) -> bool:
    """Give a sealed segment's text index the entries that are kept for its .log file; whether there are any."""
    path = _path(disk, log, index)
    if path is None:
        return False
    own = Disk()
    try:
        file = own.open(path)
        data = own.read_file(path)
        os.utime(file.fd)
    except OSError as error:
        logger.debug("%s: %s", path, error)
        return False
    entries, trailer = data[: -_TRAILER.size], data[-_TRAILER.size :]
    if _TRAILER.pack(zlib.crc32(entries)) != trailer or len(entries) % index.entry.size:
        logger.warning("%s: damaged, and made anew", path)
        return False
    index.take_file(file, len(entries) // index.entry.size)
    return True


def save(disk: Disk, log: File, index: TextIndex) -> None:
    """Keep the entries of a sealed segment's text index, at the cost of those unused for longest."""
    path = _path(disk, log, index)
    if path is None:
        return
    entries = index.to_bytes()
    own = Disk()
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        own.replace_file(path, entries + _TRAILER.pack(zlib.crc32(entries)))
        remove_oldest(own, path.parent, LIMIT_BYTES)
        # From here on the entries are read when they are needed, and take no memory.
        index.take_file(own.open(path), len(entries) // index.entry.size)
    except OSError as error:
        logger.info("%s: the text index is not kept: %s", path, error)


def _path(disk: Disk, log: File, index: TextIndex) -> Path | None:
    """The file for a segment, as it is now; None for one that is too small, or where there is no cache."""
    found = disk.stat_file(log)
    home = directory()
    if found.st_size < SMALLEST_BYTES or home is None:
        return None
    state = (
        found.st_dev,
        found.st_ino,
        found.st_size,
        found.st_mtime_ns,
        found.st_ctime_ns,
        index.base_offset,
    )
    digest = hashlib.sha256(_VERSION)
    digest.update(repr(state).encode())
    digest.update(disk.read(log, 0, HEADER_SIZE))
    return home / digest.hexdigest()[:40]


def remove_oldest(disk: Disk, home: Path, limit_bytes: int) -> None:
    """Remove the files of a cache directory that were unused for longest, until the others are no more than that."""
    found = []
    for entry in disk.scan(home):
        status = entry.stat(follow_symlinks=False)
        if stat.S_ISREG(status.st_mode):
            found.append((status.st_mtime_ns, status.st_size, entry.name))
    size = sum(size for _, size, _ in found)
    for _, length, name in sorted(found):
        if size <= limit_bytes:
            break
        disk.unlink(home / name)
        size -= length
