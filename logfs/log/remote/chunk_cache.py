"""A cache of chunks of objects in files, so that each chunk is fetched only once.

The files are in the user's cache directory, `$XDG_CACHE_HOME/logfs/chunks` (by default below `~/.cache`), and any
number of processes share them. A file is named after a digest of the object and the chunk, and ends in a CRC-32C of
the chunk's bytes, which is checked when the file is opened: if it is wrong, the chunk is fetched again. A file gets
its name by a rename when it is complete. If all files together exceed the size limit, the least recently used files
are removed; a process that has such a file open can still read it. Without a usable cache directory, chunks are kept
in memory.
"""

from __future__ import annotations

import hashlib
import logging
import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from logfs.format.base.crc import crc32c
from logfs.locks import Level, make_lock
from logfs.log.disk.cache_directory import cache_directory, private_name, remove_oldest
from logfs.log.disk.disk import Disk, File

if TYPE_CHECKING:
    from typing_extensions import Buffer

logger = logging.getLogger(__name__)

LIMIT_BYTES = 4 << 30
"""The size that the files may have together by default."""

_CRC_BYTES = 4
# The total size of the cached files is checked each time this process has written a 16th of the size limit.
_SHARE = 16


class ChunkCache:
    """A directory of cached chunks. Any thread may call any method."""

    def __init__(self, limit_bytes: int = LIMIT_BYTES) -> None:
        """Use the cache directory of the user, whose files may take `limit_bytes` together; with 0, use memory."""
        self._home = cache_directory("chunks") if limit_bytes else None
        self._limit = limit_bytes
        self._disk = Disk()
        self._counting = make_lock(Level.CACHE)
        # The bytes that this process has written since it last checked the total size. At first the limit, so that
        # the first write checks the total size.
        self._written = limit_bytes

    def load(self, name: str) -> File | None:
        """Return an open file with the bytes of a chunk, followed by their CRC; None if the chunk is not cached."""
        path = self._path(name)
        if path is None:
            return None
        try:
            file = self._disk.open(path)
            data = self._disk.read(file, 0, self._disk.size(file))
            os.utime(file.fd)
        except FileNotFoundError:
            return None
        except OSError as error:
            logger.debug("%s: %s", path, error)
            return None
        if crc32c(data[:-_CRC_BYTES]).to_bytes(_CRC_BYTES, "big") != data[-_CRC_BYTES:]:
            logger.warning("%s: is damaged, and will be fetched again", path)
            return None
        return file

    def save(self, name: str, data: Buffer) -> File:
        """Add a chunk to the cache or, if that fails, keep it in memory; return an open file with its bytes."""
        path = self._path(name)
        if path is not None:
            try:
                return self._write(path, memoryview(data))
            except OSError as error:
                logger.info("%s: is not cached on the disk: %s", path, error)
        return self.hold(name, data)

    def hold(self, name: str, data: Buffer) -> File:
        """Return an open file in memory with the bytes of a chunk. It is not cached: `load` does not find it."""
        file = File(Path(name), os.memfd_create("logfs chunk", os.MFD_CLOEXEC))
        self._disk.write(file, 0, memoryview(data))
        return file

    def forget(self, name: str) -> None:
        """Remove a chunk, whose bytes proved wrong, from the cache."""
        path = self._path(name)
        if path is not None:
            with suppress(OSError):
                self._disk.unlink(path)

    def _path(self, name: str) -> Path | None:
        home = self._home
        return None if home is None else home / hashlib.sha256(name.encode()).hexdigest()[:40]

    def _write(self, path: Path, view: memoryview) -> File:
        """Write the bytes `view` of a chunk and their CRC to a file of the cache; return the open file."""
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        temporary = private_name(path)
        file = self._disk.open(temporary, write=True, create=True)
        try:
            self._disk.write(file, 0, view)
            self._disk.write(file, len(view), crc32c(view).to_bytes(_CRC_BYTES, "big"))
            self._disk.rename_unsynced(temporary, path)
        except BaseException:
            self._disk.unlink(temporary)
            raise
        self._count(len(view))
        return file

    def _count(self, size: int) -> None:
        """Note that a chunk of `size` bytes was written.

        Each time this process has written a 16th of the limit, check the total size of the cached files. If it
        exceeds the limit, remove the least recently used files.
        """
        self._written += size
        if self._written < self._limit // _SHARE or not self._counting.acquire(blocking=False):
            return
        try:
            self._written = 0
            assert self._home is not None
            remove_oldest(self._disk, self._home, self._limit)
        finally:
            self._counting.release()
