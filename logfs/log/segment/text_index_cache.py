"""A cache of text indexes in the user's cache directory, for segments that another program wrote.

A broker writes no text index, and a read-only store must not put a text index beside the broker's files. To make a
text index, the whole segment has to be read. The cache holds the entries of each sealed segment, and a checksum of
them, in the file `$XDG_CACHE_HOME/logfs/text/<key>` (by default below `~/.cache`).

The key is a digest of the values that distinguish one state of a .log file from every other: device, inode, length,
mtime, ctime, base offset, and the header of the first batch. If a .log file is changed, replaced or moved, its key
changes, so the cached entries of its old state are not used for it. If the cache has more than `LIMIT_BYTES`, the
cache files that were unused for longest are removed. A failure to read or write the cache is not an error; the
segment is read again.
"""

from __future__ import annotations

import logging
import os
import struct
import zlib
from typing import TYPE_CHECKING

from logfs.format.batches.batch import HEADER_SIZE
from logfs.log.disk.cache_directory import cache_directory, private_name, remove_oldest
from logfs.log.disk.disk import Disk

if TYPE_CHECKING:
    from pathlib import Path

    from logfs.log.disk.disk import File
    from logfs.log.segment.text_index import TextIndex

logger = logging.getLogger(__name__)

# For a .log file smaller than this, nothing is cached: the segment is read again.
SMALLEST_BYTES = 1 << 20
# The size limit of the cache: enough for the text indexes of 128 GiB of log, at 32 bytes for every 4 KiB.
LIMIT_BYTES = 1 << 30

_VERSION = b"logfs text index 2"
# The checksum after the entries. It has fewer bytes than an entry, so it is not taken for one.
_TRAILER = struct.Struct(">I")


def load(disk: Disk, log: File, index: TextIndex) -> bool:
    """Let a sealed segment's text index use the entries in the cache; return False if the cache has no valid entries.

    `log` is the segment's .log file, whose state is the key of the entries, and `disk` reads it.
    """
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
        logger.warning("%s: is damaged, and will be rebuilt", path)
        return False
    index.take_file(file, len(entries) // index.entry.size)
    return True


def save(disk: Disk, log: File, index: TextIndex) -> None:
    """Write the entries of a sealed segment's text index to the cache. From then on, the index reads them there.

    `log` is the segment's .log file, and `disk` reads it. If the cache then exceeds `LIMIT_BYTES`, the cache files
    that were unused for longest are removed.
    """
    path = _path(disk, log, index)
    if path is None:
        return
    entries = index.to_bytes()
    own = Disk()
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        # Not synced: a file that a power cut left unfinished has a wrong CRC, and is made again.
        with own.replacing(path, private_name(path)) as file:
            own.write(file, 0, entries + _TRAILER.pack(zlib.crc32(entries)))
        remove_oldest(own, path.parent, LIMIT_BYTES)
        # From here on, entries are read from the cache file when they are needed, and take no memory.
        index.take_file(own.open(path), len(entries) // index.entry.size)
    except OSError as error:
        logger.info("%s: the text index is not cached: %s", path, error)


def _path(disk: Disk, log: File, index: TextIndex) -> Path | None:
    """Return the path in the cache for the present state of a segment's .log file.

    Returns None if the segment is too small to be cached, or if there is no cache directory.
    """
    found = disk.stat_file(log)
    home = cache_directory("text")
    if found.size_bytes < SMALLEST_BYTES or home is None:
        return None
    state = (
        found.device,
        found.identity,
        found.size_bytes,
        found.mtime_ns,
        found.ctime_ns,
        index.base_offset,
    )
    import hashlib

    digest = hashlib.sha256(_VERSION)
    digest.update(repr(state).encode())
    digest.update(disk.read(log, 0, HEADER_SIZE))
    return home / digest.hexdigest()[:40]
