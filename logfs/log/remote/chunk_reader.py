"""Reads bytes of objects in whole chunks, through the cache, and fetches ahead for sequential readers.

The files of the chunks that were read last stay open, so reading such a chunk again costs no more than reading a
local file. If several readers need the same chunk, and it is not open, they share one request.
"""

from __future__ import annotations

import hashlib
import logging
import re
import threading
import time
from collections import OrderedDict
from concurrent.futures import Future
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from logfs.errors import Corrupt, LogfsError, RemoteStorageError
from logfs.format.base.crc import crc32c
from logfs.format.batches.compression import Codec, decompress
from logfs.locks import Level, make_lock
from logfs.log.remote.chunk_cache import ChunkCache

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from typing_extensions import Buffer

    from logfs.format.tiered.chunk_index import ChunkIndex
    from logfs.log.disk.disk import Disk, File
    from logfs.log.remote.encryption import DataKey
    from logfs.log.remote.object_store import ObjectStore

    _ChunkId = tuple[str, str, int, int]

logger = logging.getLogger(__name__)

# How many chunks stay open. Their files, usually of 4 MiB each, take no memory except the page cache.
_MOST_OPEN = 128
# How many chunks stay open after a call of `read_afresh`. From then on, chunks are kept in memory, and not in files
# of the cache directory.
_MOST_OPEN_IN_MEMORY = 16
# The limit of the chunks that are fetched ahead of a sequential reader. Their number begins at 1, and doubles with
# each chunk read.
_MOST_AHEAD = 8
# A chunk that proves wrong is fetched at most this many times. If its bytes stay the same, the object is wrong.
_MOST_TRIES = 3
# `fetch_again` fetches a chunk at most `_MOST_TRIES` times within this time (seconds).
_TRY_SECONDS = 10.0
# Nothing is fetched ahead while this many requests are in progress.
_MOST_REQUESTS = 16

_MD5 = re.compile(r"[0-9a-f]{32}")


class StoredFile(NamedTuple):
    """A file of a segment, and the place of its bytes in an object.

    `key` is the name of the object. `chunks` are consecutive chunks of the object, from its byte `begin` on. Each is
    decrypted with `data_key`, if there is one, and then decompressed, if `is_compressed`. The decoded chunks form one
    sequence of bytes; the file is the bytes [position, position + size) of this sequence.

    `crcs` has the CRC-32C of each chunk as it is stored, or is empty if they are not known. `version` changes when
    the object is replaced. `is_part` says that the object also has bytes that are not in these chunks.
    """

    key: str
    position: int
    size: int
    chunks: ChunkIndex
    is_compressed: bool
    begin: int = 0
    data_key: DataKey | None = None
    crcs: Sequence[int] = ()
    version: str = ""
    is_part: bool = False

    def is_as_stored(self, data: Buffer) -> bool:
        """Whether the received bytes `data` have the MD5 that `version` states; True if this cannot be checked.

        It cannot be checked if `version` is no MD5, or if `data` is only a part of the object. On S3 the version is
        the ETag, which is the MD5 of an object that was stored in one request, unless S3 encrypts the object with a
        key of KMS.
        """
        version = self.version.strip('"')
        if self.is_part or len(self.chunks) != 1 or not _MD5.fullmatch(version):
            return True
        return hashlib.md5(data, usedforsecurity=False).hexdigest() == version

    def chunk_id(self, number: int) -> _ChunkId:
        """Return a tuple that identifies chunk `number` of `chunks` within the bucket."""
        return self.key, self.version, self.begin, number


class _ArrivedWrong(Corrupt):
    """The received bytes are not the stored ones: their CRC is wrong, or two requests returned different bytes."""


class ChunkReader:
    """Reads the objects of a bucket. Any thread may call `read`."""

    def __init__(self, store: ObjectStore, disk: Disk, cache: ChunkCache) -> None:
        """Read objects of `store` through `cache`.

        `disk` reads the files of the cache, and knows which thread must not wait.
        """
        self._store = store
        self._disk = disk
        self._cache = cache
        self._lock = make_lock(Level.CHUNKS)
        self._most_open = _MOST_OPEN
        self._open: OrderedDict[_ChunkId, File] = OrderedDict()
        self._coming: dict[_ChunkId, Future[File]] = {}
        # For each chunk that proved wrong: when it was first fetched again (monotonic seconds), and how often since.
        self._tries: dict[_ChunkId, tuple[float, int]] = {}
        # For each object that is read sequentially: the number of the next chunk, and how many chunks to fetch ahead.
        self._sequential: OrderedDict[str, tuple[int, int]] = OrderedDict()
        self.requests = 0
        self.fetched_bytes = 0

    def read(
        self,
        stored: StoredFile,
        position: int,
        size: int,
        following: Callable[[], StoredFile | None],
    ) -> memoryview:
        """Return the bytes [position, position + size) of a file, fewer only at its end.

        `following` returns the file that a sequential reader reads next, None if there is none. Raises `WouldBlock`
        in a thread that must not wait, if a chunk is not open; `RemoteStorageError`; `Corrupt` for a chunk that
        cannot be decrypted or decompressed, or has a wrong size; and `FileNotFoundError` if the object is missing.
        """
        if position < 0:
            raise Corrupt(
                f"{self._store.url(stored.key)}: cannot read at the negative position {position}; an index of the "
                "segment may be damaged"
            )
        size = max(min(size, stored.size - position), 0)
        start = stored.position + position
        numbers = stored.chunks.chunks(start, start + size)
        parts = []
        for number in numbers:
            chunk = stored.chunks[number]
            first, last = max(start, chunk.position), min(start + size, chunk.position + chunk.size)
            at, count = first - chunk.position, last - first
            data = self._disk.read(self._file(stored, number, following), at, count)
            if len(data) < count:
                # Another program has truncated the cached file of the chunk: fetch the chunk again.
                self._drop(stored, number)
                data = self._disk.read(self._file(stored, number, following), at, count)
            parts.append(data)
        return parts[0] if len(parts) == 1 else memoryview(b"".join(parts))

    def release(self) -> None:
        """Close the files of the open chunks. A read in progress is not disturbed."""
        with self._lock:
            self._open.clear()

    def read_afresh(self) -> None:
        """Stop using the cache, so that every chunk is fetched again.

        The files of the cache stay, because they may be all that is left of an object.
        """
        if self._most_open == _MOST_OPEN:
            self._cache, self._most_open = ChunkCache(0), _MOST_OPEN_IN_MEMORY
            self.release()

    def fetch_again(self, stored: StoredFile, start: int, end: int) -> bool:
        """Fetch the chunks of bytes [start, end) again, because they proved wrong; return whether any has changed.

        Fetches at most the first eight chunks, and each at most three times in ten seconds. A chunk that was not open
        counts as changed. Raises `WouldBlock` in a thread that must not wait; `RemoteStorageError`; `Corrupt` for a
        chunk that cannot be decrypted or decompressed, or has a wrong size; and `FileNotFoundError` if the object is
        missing.
        """
        self._disk.check_may_fetch()
        changed = False
        numbers = stored.chunks.chunks(stored.position + start, stored.position + end)
        for number in numbers[:_MOST_AHEAD]:
            which, chunk = stored.chunk_id(number), stored.chunks[number]
            with self._lock:
                since, tries = self._tries.get(which, (0.0, 0))
                if time.monotonic() - since > _TRY_SECONDS:
                    since, tries = time.monotonic(), 0
                if tries == _MOST_TRIES:
                    continue
                self._tries[which] = since, tries + 1
            file = self._drop(stored, number)
            before = None if file is None else bytes(self._disk.read(file, 0, chunk.size))
            file = self._begin(stored, number).result()
            changed |= bytes(self._disk.read(file, 0, chunk.size)) != before
        return changed

    def _file(
        self, stored: StoredFile, number: int, following: Callable[[], StoredFile | None]
    ) -> File:
        """Return the open file of chunk `number`. If it is not open, load it from the cache or fetch it.

        Also begins to fetch the next chunks for a sequential reader. `following` returns the file that such a reader
        reads after this one, None if there is none.
        """
        which = stored.chunk_id(number)
        with self._lock:
            file = self._open.get(which)
            if file is not None:
                self._open.move_to_end(which)
        if file is None:
            self._disk.check_may_fetch()
            coming = self._begin(stored, number)
            self._fetch_ahead(stored, number, following)
            return coming.result()
        if self._sequential.get(stored.key, (-1,))[0] == number:
            self._fetch_ahead(stored, number, following)
        return file

    def _drop(self, stored: StoredFile, number: int) -> File | None:
        """Drop chunk `number` from the open chunks and from the cache; return its file if it was open, else None."""
        with self._lock:
            file = self._open.pop(stored.chunk_id(number), None)
        self._cache.forget(self._name(stored, number))
        return file

    def _begin(self, stored: StoredFile, number: int) -> Future[File]:
        """Begin to fetch chunk `number`, unless it is being fetched already; return the future of its open file.

        Raises `RemoteStorageError` if no thread can be started.
        """
        which = stored.chunk_id(number)
        with self._lock:
            coming = self._coming.get(which)
            if coming is not None:
                return coming
            coming = Future()
            file = self._open.get(which)
            if file is not None:
                coming.set_result(file)
                return coming
            # Each fetch has a daemon thread: the threads that wait for it can be interrupted, and a request that
            # hangs delays neither other requests nor the end of the process. Change `_coming` last, so that the chunk
            # is in it only if the thread has started.
            self._start(self._fetch, coming, stored, number)
            self._coming[which] = coming
            return coming

    def _start(self, work: Callable[..., None], *arguments: object) -> None:
        try:
            threading.Thread(target=work, args=arguments, daemon=True).start()
        except RuntimeError as error:
            what = f"{self._store.bucket_url}: no thread to fetch a chunk: {error}; read again"
            raise RemoteStorageError(what) from None

    def _fetch(self, coming: Future[File], stored: StoredFile, number: int) -> None:
        which = stored.chunk_id(number)
        try:
            file = self._get(stored, number)
        except BaseException as error:
            with self._lock:
                self._coming.pop(which, None)
            coming.set_exception(error)
            return
        with self._lock:
            self._open[which] = file
            while len(self._open) > self._most_open:
                self._open.popitem(last=False)
            self._coming.pop(which, None)
        coming.set_result(file)

    def _name(self, stored: StoredFile, number: int) -> str:
        """Return the name of chunk `number` in the cache. No other chunk of any bucket has the same name."""
        part = f"{stored.version} {stored.begin} {number} {stored.chunks[number].size}"
        return f"{self._store.bucket_url}\n{stored.key}\n{part}"

    def _get(self, stored: StoredFile, number: int) -> File:
        name = self._name(stored, number)
        file = self._cache.load(name)
        if file is not None:
            return file
        for left in reversed(range(_MOST_TRIES)):
            try:
                data, is_certain = self._request(stored, number)
                break
            except _ArrivedWrong as error:
                if not left:
                    raise RemoteStorageError(str(error)) from None
            except Corrupt:
                if not left:
                    raise
        # Bytes that may have arrived wrong are kept in memory: other processes must not find them in the cache.
        return (self._cache.save if is_certain else self._cache.hold)(name, data)

    def _fetched(self, key: str, start: int, size: int) -> memoryview | bytes:
        data = self._store.get(key, start, size)
        self.requests += 1
        self.fetched_bytes += len(data)
        return data

    def _request(self, stored: StoredFile, number: int) -> tuple[memoryview | bytes, bool]:
        """Fetch and decode chunk `number`; return its bytes, and whether they may be kept in the cache.

        They must not be kept if they may have arrived wrong: no CRC is known for them, and `is_as_stored` is False.
        """
        chunk = stored.chunks[number]
        start = stored.begin + chunk.stored_at
        data: memoryview | bytes = self._fetched(stored.key, start, chunk.stored_size)
        what = f"{self._store.url(stored.key)}: bytes {start} to {start + chunk.stored_size - 1}"
        if len(data) != chunk.stored_size:
            raise Corrupt(
                f"{what}: the object is too short: only {len(data)} of these {chunk.stored_size} bytes were returned"
            )
        if stored.crcs and crc32c(data) != stored.crcs[number]:
            raise _ArrivedWrong(
                f"{what}: the CRC-32C is wrong; read again, and if the error stays, restore the object from a copy"
            )
        is_certain = bool(stored.crcs) or stored.is_as_stored(data)
        for _ in range(_MOST_TRIES - 1):
            if is_certain:
                break
            before, data = data, self._fetched(stored.key, start, chunk.stored_size)
            is_certain = stored.is_as_stored(data)
            if data != before and not is_certain:
                raise _ArrivedWrong(
                    f"{what}: two requests returned different bytes; repeat the read"
                )
        try:
            if stored.data_key is not None:
                data = stored.data_key.decrypt(data)
            if stored.is_compressed:
                data = decompress(Codec.ZSTD, bytes(data), limit=chunk.size)
        except Corrupt as error:
            raise Corrupt(f"{what}: {error}") from None
        if len(data) != chunk.size:
            raise Corrupt(
                f"{what}: contain {len(data)} bytes after decoding, but the manifest states {chunk.size}; the object "
                "or the manifest is damaged"
            )
        return data, is_certain

    def _fetch_ahead(
        self, stored: StoredFile, number: int, following: Callable[[], StoredFile | None]
    ) -> None:
        """Begin to fetch the chunks that a sequential reader at chunk `number` needs next.

        `following` returns the file that the reader reads after this one, None if there is none.
        """
        with self._lock:
            expected, ahead = self._sequential.pop(stored.key, (-1, 0))
            ahead = min(max(2 * ahead, 1), _MOST_AHEAD) if number == expected else 0
            self._sequential[stored.key] = number + 1, ahead
            while len(self._sequential) > _MOST_OPEN:
                self._sequential.popitem(last=False)
            ahead = min(ahead, _MOST_REQUESTS - len(self._coming))
        end = min(number + 1 + ahead, len(stored.chunks))
        # If no thread can be started, nothing is fetched ahead.
        with suppress(RemoteStorageError):
            for each in range(number + 1, end):
                self._begin(stored, each)
            if end < number + 1 + ahead:
                # Use another thread, because finding the next file may need a request.
                self._start(self._begin_following, following, ahead)

    def _begin_following(self, following: Callable[[], StoredFile | None], ahead: int) -> None:
        try:
            stored = following()
            if stored is not None and len(stored.chunks):
                with self._lock:
                    self._sequential[stored.key] = 0, ahead
                self._begin(stored, 0)
        except (LogfsError, OSError) as error:
            # A reader that needs the file will request it again, and get the error.
            logger.debug("not fetched ahead: %s", error)
